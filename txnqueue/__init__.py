"""A transactional message queue that lives inside the lakehouse.

What a committed transaction sent, received, moved and changed happens entirely and once;
what a rolled back or abandoned one did is never seen by anybody; nothing is seen before
the commit; every past state can be asked for again.
"""

from typing import TYPE_CHECKING

from txnqueue import errors

__version__ = "0.2.0.dev0"

__all__ = [
    "NOT_GIVEN",
    "Assignments",
    "Auxiliary",
    "Batch",
    "BindingRow",
    "ChangeRow",
    "ChangeableSettings",
    "Database",
    "DeadLetterCount",
    "DeadLetters",
    "DispatchRow",
    "DrainResult",
    "DropResult",
    "Exchange",
    "ExchangeDescription",
    "ExchangeDrop",
    "ExchangeInfo",
    "ExchangeKind",
    "Handler",
    "Heartbeat",
    "History",
    "Maintenance",
    "Matching",
    "Message",
    "MessageInfo",
    "Metrics",
    "NotGiven",
    "Origin",
    "Outcome",
    "Published",
    "Queue",
    "QueueInfo",
    "QueueManager",
    "QueueMetrics",
    "QueueRow",
    "QueueSettings",
    "Receipt",
    "Recovery",
    "RetryPolicy",
    "Rows",
    "Sent",
    "Snapshot",
    "Status",
    "Step",
    "TableChanges",
    "Tabular",
    "TraceStep",
    "Transaction",
    "TransactionRow",
    "TwoPhaseDatabase",
    "Until",
    "Unwanted",
    "Vacuum",
    "Verification",
    "WaitingChange",
    "__version__",
    "errors",
    "local_spark",
]

if TYPE_CHECKING:
    from txnqueue.applying import WaitingChange
    from txnqueue.batch import Batch
    from txnqueue.changes import Assignments, TableChanges
    from txnqueue.config import QueueInfo, QueueSettings, RetryPolicy
    from txnqueue.consumer import DrainResult, Handler
    from txnqueue.dead_letters import DeadLetters
    from txnqueue.deciding import Receipt, Status
    from txnqueue.declaring import Step
    from txnqueue.dropping import DropResult
    from txnqueue.environment import local_spark
    from txnqueue.exchange import Exchange
    from txnqueue.exchange_drop import ExchangeDrop
    from txnqueue.heartbeat import Heartbeat
    from txnqueue.history import History
    from txnqueue.maintenance import Maintenance, Vacuum
    from txnqueue.manager import QueueManager
    from txnqueue.metrics import Metrics
    from txnqueue.participants import Auxiliary
    from txnqueue.publishing import Published
    from txnqueue.queue import Queue
    from txnqueue.recovery import Recovery
    from txnqueue.routing import ExchangeInfo
    from txnqueue.scope import NOT_GIVEN, NotGiven
    from txnqueue.sending import Sent
    from txnqueue.snapshot import Snapshot
    from txnqueue.transaction import Transaction
    from txnqueue.transactions import Outcome
    from txnqueue.types import (
        BindingRow,
        ChangeableSettings,
        ChangeRow,
        Database,
        DeadLetterCount,
        DispatchRow,
        ExchangeDescription,
        ExchangeKind,
        Matching,
        Message,
        MessageInfo,
        Origin,
        QueueMetrics,
        QueueRow,
        Rows,
        Tabular,
        TraceStep,
        TransactionRow,
        TwoPhaseDatabase,
        Until,
        Unwanted,
    )
    from txnqueue.verifying import Verification
else:
    _HOMES = {
        "Assignments": "changes",
        "Auxiliary": "participants",
        "Batch": "batch",
        "BindingRow": "types",
        "ChangeRow": "types",
        "ChangeableSettings": "types",
        "Database": "types",
        "DeadLetterCount": "types",
        "DeadLetters": "dead_letters",
        "DispatchRow": "types",
        "DrainResult": "consumer",
        "DropResult": "dropping",
        "Exchange": "exchange",
        "ExchangeDescription": "types",
        "ExchangeDrop": "exchange_drop",
        "ExchangeInfo": "routing",
        "ExchangeKind": "types",
        "Handler": "consumer",
        "Heartbeat": "heartbeat",
        "History": "history",
        "Maintenance": "maintenance",
        "Matching": "types",
        "Message": "types",
        "MessageInfo": "types",
        "Metrics": "metrics",
        "NOT_GIVEN": "scope",
        "NotGiven": "scope",
        "Origin": "types",
        "Outcome": "transactions",
        "Published": "publishing",
        "Queue": "queue",
        "QueueInfo": "config",
        "QueueManager": "manager",
        "QueueMetrics": "types",
        "QueueRow": "types",
        "QueueSettings": "config",
        "Receipt": "deciding",
        "Recovery": "recovery",
        "RetryPolicy": "config",
        "Rows": "types",
        "Sent": "sending",
        "Snapshot": "snapshot",
        "Status": "deciding",
        "Step": "declaring",
        "TableChanges": "changes",
        "Tabular": "types",
        "TraceStep": "types",
        "Transaction": "transaction",
        "TransactionRow": "types",
        "TwoPhaseDatabase": "types",
        "Until": "types",
        "Unwanted": "types",
        "Vacuum": "maintenance",
        "Verification": "verifying",
        "WaitingChange": "applying",
        "local_spark": "environment",
    }

    def __getattr__(name: str) -> object:
        """Load the public names on first use, so that a missing Spark is one clear error."""
        if name not in _HOMES:
            raise AttributeError(f"module 'txnqueue' has no attribute {name!r}")
        import importlib

        try:
            return getattr(importlib.import_module(f"txnqueue.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name in ("pyspark", "delta"):
                raise errors.PlatformMissing(
                    f"txnqueue needs {error.name}: pip install 'txnqueue[spark]' on a laptop; on a "
                    "platform use its own Spark with Delta.",
                    missing=error.name,
                ) from error
            raise

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return __all__
