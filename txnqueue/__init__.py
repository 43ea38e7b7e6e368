"""A transactional message queue inside the lakehouse.

Everything that a committed transaction sent, received, moved and changed happens entirely and
once. Nothing is visible before the commit, and the work of a transaction that was rolled back or
abandoned is never visible. Every past state can be queried.
"""

from typing import TYPE_CHECKING

from txnqueue import errors
from txnqueue.version import __version__

__all__ = [
    "NOT_GIVEN",
    "Assignments",
    "AuditFigures",
    "AuditReport",
    "Auxiliary",
    "Batch",
    "BindingRow",
    "ChangeRow",
    "ChangeableSettings",
    "ChangedRow",
    "Database",
    "DeadLetterCount",
    "DeadLetters",
    "DeclarationResult",
    "DispatchRow",
    "DrainResult",
    "EraseResult",
    "Exchange",
    "ExchangeDescription",
    "ExchangeDropResult",
    "ExchangeInfo",
    "ExchangeKind",
    "ExchangeReader",
    "ExchangeRow",
    "Handler",
    "Heartbeat",
    "History",
    "HistoryDigest",
    "MaintenanceResult",
    "Matching",
    "Message",
    "MessageInfo",
    "Metrics",
    "NotGiven",
    "Origin",
    "Outcome",
    "PublishResult",
    "Queue",
    "QueueCounts",
    "QueueDataSource",
    "QueueDropResult",
    "QueueInfo",
    "QueueManager",
    "QueueMetrics",
    "QueueReader",
    "QueueRow",
    "QueueSettings",
    "Receipt",
    "RecoveryResult",
    "Rehearsal",
    "RehearsalRow",
    "ReplayedBatch",
    "Report",
    "RetryPolicy",
    "Rollback",
    "Rows",
    "SendResult",
    "SinkHandler",
    "Snapshot",
    "Status",
    "StoreReader",
    "Stream",
    "TableChanges",
    "Tabular",
    "TraceStep",
    "Transaction",
    "TransactionRow",
    "TwoPhaseDatabase",
    "Until",
    "Unwanted",
    "Vacuum",
    "VerificationResult",
    "WaitingChange",
    "__version__",
    "errors",
    "local_spark",
    "look",
]

if TYPE_CHECKING:
    from txnqueue.admin.declarations import DeclarationResult
    from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult
    from txnqueue.admin.erasure import EraseResult
    from txnqueue.admin.maintenance import MaintenanceResult
    from txnqueue.admin.reclamation import Vacuum
    from txnqueue.admin.recovery import RecoveryResult
    from txnqueue.batch import Batch
    from txnqueue.core.exchanges import ExchangeInfo
    from txnqueue.core.receipt import Receipt, Status
    from txnqueue.core.settings import QueueInfo, QueueSettings, RetryPolicy
    from txnqueue.data_source import QueueDataSource
    from txnqueue.drain import Handler
    from txnqueue.exchange import Exchange
    from txnqueue.exchange_reader import ExchangeReader
    from txnqueue.heartbeat import Heartbeat
    from txnqueue.manager import QueueManager
    from txnqueue.messages.publish import PublishResult
    from txnqueue.messages.send import SendResult
    from txnqueue.platform.local_spark import local_spark
    from txnqueue.queue import Queue
    from txnqueue.queue_reader import QueueReader
    from txnqueue.rehearsal import Rehearsal
    from txnqueue.replayed_batch import ReplayedBatch
    from txnqueue.reports.audit.figures import AuditFigures
    from txnqueue.reports.audit_report import AuditReport
    from txnqueue.reports.digest import HistoryDigest
    from txnqueue.reports.history import History
    from txnqueue.reports.metrics import DeadLetters, Metrics
    from txnqueue.reports.report import Report
    from txnqueue.reports.snapshot import Snapshot
    from txnqueue.reports.verification import VerificationResult
    from txnqueue.results import DrainResult, Outcome
    from txnqueue.sink import SinkHandler
    from txnqueue.store_reader import StoreReader, look
    from txnqueue.stream import Stream
    from txnqueue.table import Assignments, TableChanges
    from txnqueue.transaction import Rollback, Transaction
    from txnqueue.transactions.auxiliary import Auxiliary
    from txnqueue.transactions.table_applier import WaitingChange
    from txnqueue.types import (
        NOT_GIVEN,
        BindingRow,
        ChangeableSettings,
        ChangedRow,
        ChangeRow,
        Database,
        DeadLetterCount,
        DispatchRow,
        ExchangeDescription,
        ExchangeKind,
        ExchangeRow,
        Matching,
        Message,
        MessageInfo,
        NotGiven,
        Origin,
        QueueCounts,
        QueueMetrics,
        QueueRow,
        RehearsalRow,
        Rows,
        Tabular,
        TraceStep,
        TransactionRow,
        TwoPhaseDatabase,
        Until,
        Unwanted,
    )
else:
    _HOMES = {
        "NOT_GIVEN": "types",
        "Assignments": "table",
        "AuditFigures": "reports.audit.figures",
        "AuditReport": "reports.audit_report",
        "Auxiliary": "transactions.auxiliary",
        "Batch": "batch",
        "BindingRow": "types",
        "ChangeRow": "types",
        "ChangeableSettings": "types",
        "ChangedRow": "types",
        "Database": "types",
        "DeadLetterCount": "types",
        "DeadLetters": "reports.metrics",
        "DeclarationResult": "admin.declarations",
        "DispatchRow": "types",
        "DrainResult": "results",
        "EraseResult": "admin.erasure",
        "Exchange": "exchange",
        "ExchangeDescription": "types",
        "ExchangeDropResult": "admin.drop",
        "ExchangeInfo": "core.exchanges",
        "ExchangeKind": "types",
        "ExchangeReader": "exchange_reader",
        "ExchangeRow": "types",
        "Handler": "drain",
        "Heartbeat": "heartbeat",
        "History": "reports.history",
        "HistoryDigest": "reports.digest",
        "MaintenanceResult": "admin.maintenance",
        "Matching": "types",
        "Message": "types",
        "MessageInfo": "types",
        "Metrics": "reports.metrics",
        "NotGiven": "types",
        "Origin": "types",
        "Outcome": "results",
        "PublishResult": "messages.publish",
        "Queue": "queue",
        "QueueCounts": "types",
        "QueueDataSource": "data_source",
        "QueueDropResult": "admin.drop",
        "QueueInfo": "core.settings",
        "QueueManager": "manager",
        "QueueMetrics": "types",
        "QueueReader": "queue_reader",
        "QueueRow": "types",
        "QueueSettings": "core.settings",
        "Receipt": "core.receipt",
        "RecoveryResult": "admin.recovery",
        "Rehearsal": "rehearsal",
        "RehearsalRow": "types",
        "ReplayedBatch": "replayed_batch",
        "Report": "reports.report",
        "RetryPolicy": "core.settings",
        "Rollback": "transaction",
        "Rows": "types",
        "SendResult": "messages.send",
        "SinkHandler": "sink",
        "Snapshot": "reports.snapshot",
        "Status": "core.receipt",
        "StoreReader": "store_reader",
        "Stream": "stream",
        "TableChanges": "table",
        "Tabular": "types",
        "TraceStep": "types",
        "Transaction": "transaction",
        "TransactionRow": "types",
        "TwoPhaseDatabase": "types",
        "Until": "types",
        "Unwanted": "types",
        "Vacuum": "admin.reclamation",
        "VerificationResult": "reports.verification",
        "WaitingChange": "transactions.table_applier",
        "local_spark": "platform.local_spark",
        "look": "store_reader",
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
                    f"txnqueue needs {error.name}: pip install 'txnqueue[spark]' on a laptop; on "
                    "a platform, use the Spark with Delta that it provides.",
                    missing=error.name,
                ) from error
            raise

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return __all__
