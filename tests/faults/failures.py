"""Which errors may tell a client that an operation has failed, and which are findings."""

from __future__ import annotations

from txnqueue.errors import HandlerFailed, StoreCorrupt, TxnQueueError

OF_STORAGE = ("pyspark", "py4j", "delta")
"""The packages whose errors are those of Spark, Java and Delta."""
DEFECTS = (AssertionError, AttributeError, LookupError, NameError, TypeError, RecursionError)
"""What only a defect raises."""


def unfit(error: BaseException | None) -> str:
    """Say what is wrong with an error that tells of a failure of the storage; empty: nothing.

    The storage fails, and does not damage anything: a store that is called corrupt or set back is
    a finding, and so is each error that neither the library nor its platform raises on purpose.
    """
    if error is None:
        return ""
    if isinstance(error, HandlerFailed):  # the handlers of the tests do not fail by themselves
        return unfit(error.__cause__)
    if isinstance(error, StoreCorrupt) or not _is_typed(error):
        return f"the error is {type(error).__name__}: {error}"[:500]
    return ""


def _is_typed(error: BaseException) -> bool:
    if isinstance(error, (TxnQueueError, OSError)):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint(OF_STORAGE) and not isinstance(error, DEFECTS)
