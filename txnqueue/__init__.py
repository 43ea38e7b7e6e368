"""A transactional message queue that lives inside the lakehouse.

What a committed transaction sent, received, moved and changed happens entirely and once;
what a rolled back or abandoned one did is never seen by anybody; nothing is seen before
the commit; every past state can be asked for again.
"""

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "DrainResult",
    "DropResult",
    "Outcome",
    "Queue",
    "QueueManager",
    "Receipt",
    "RetryPolicy",
    "Status",
    "Transaction",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load the public names on first use, so that a missing Spark is one clear error."""
    homes = {
        "Batch": "batch",
        "DrainResult": "consumer",
        "DropResult": "dropping",
        "Outcome": "transactions",
        "Queue": "queue",
        "QueueManager": "manager",
        "Receipt": "deciding",
        "RetryPolicy": "config",
        "Status": "deciding",
        "Transaction": "transaction",
    }
    if name not in homes:
        raise AttributeError(f"module 'txnqueue' has no attribute {name!r}")
    import importlib

    from txnqueue.errors import PlatformMissing

    try:
        return getattr(importlib.import_module(f"txnqueue.{homes[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("pyspark", "delta"):
            raise PlatformMissing(
                f"txnqueue needs {error.name}: pip install 'txnqueue[spark]' on a laptop; on a "
                "platform use its own Spark with Delta.",
                missing=error.name,
            ) from error
        raise
