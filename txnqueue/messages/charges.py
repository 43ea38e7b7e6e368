"""The possible causes of the error of a batch, and which failures count as deliveries.

A message that fails too often becomes a dead letter. So a delivery may count only if the message
may have caused the failure, and not if the job or the store did.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator, Sequence

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.state import LaneState, Segment
from txnqueue.errors import (
    Busy,
    DatabaseUnavailable,
    DecidedByDatabase,
    HeuristicNotFound,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    NotPermitted,
    PlatformMissing,
    QueueError,
    SettlementPending,
    StoreBusy,
    StoreError,
    TransactionAborted,
    TransactionIdReused,
    TransactionMismatch,
    TransactionNotFound,
    TransactionNotGiven,
    TransactionNotPrepared,
    TransactionUnknown,
    TxnQueueError,
    Unroutable,
)
from txnqueue.messages.claim import HeldClaim

NARROWING = 10
"""The divisor that gives the next batch's size from the failed one's, in a run without success."""


class Fault(enum.Enum):
    """Who may be to blame for an error."""

    JOB = "the job, whatever the messages hold"
    STORE = "the store, a database, or other clients: the same again may succeed"
    MESSAGE = "maybe a message, maybe the job"


_PASSING = (
    Busy,
    StoreBusy,
    LeaseLost,
    TransactionAborted,
    TransactionUnknown,
    DatabaseUnavailable,
)
_MISTAKES = (
    InvalidInput,
    QueueError,
    StoreError,
    PlatformMissing,
    TransactionIdReused,
    TransactionMismatch,
    TransactionNotFound,
    TransactionNotPrepared,
    DecidedByDatabase,
    HeuristicNotFound,
    SettlementPending,
    TransactionNotGiven,
    NotPermitted,
    ImportError,
    NameError,
)
_MAYBE = (LimitExceeded, Unroutable, UnboundLocalError)
"""Errors of the classes above that the content of a message can cause nevertheless."""


def fault_of(error: BaseException) -> Fault:
    """Return who may be to blame for an error of a handler, or of its commit.

    An error that is not certainly the job's or the store's may be a message's. So may an
    interrupt, wherever it struck: somebody may have waited too long for one message.
    """
    if not isinstance(error, Exception):
        return Fault.MESSAGE
    if isinstance(error, TransactionAborted) and error.__cause__ is not None:
        refused = isinstance(error.__cause__, InvalidInput)  # a table refuses the rows
        other = not isinstance(error.__cause__, TxnQueueError)  # a database does
        return Fault.MESSAGE if refused or other else Fault.STORE
    if isinstance(error, _PASSING) and not isinstance(error, TransactionIdReused):
        return Fault.STORE
    if isinstance(error, _MAYBE) and getattr(error, "name", None) == "transaction_id":
        return Fault.JOB  # whatever the messages hold, their transactions have these ids
    if isinstance(error, _MAYBE) or getattr(error, "in_rows", False):
        return Fault.MESSAGE
    if isinstance(error, _MISTAKES) or _is_analysis(error) or _is_defect(error):
        return Fault.JOB
    if isinstance(error, SyntaxError) and _is_of_a_module(error):
        return Fault.JOB
    return Fault.MESSAGE


def _is_of_a_module(error: SyntaxError) -> bool:
    """Return whether a module cannot be compiled, and not a text that a message may hold.

    Parsers of other languages have subclasses, such as that of ``xml.etree``.
    """
    of_python = type(error) in (SyntaxError, IndentationError, TabError)
    return of_python and not str(error.filename or "<").startswith("<")


def _is_analysis(error: BaseException) -> bool:
    """Return whether Spark could not even plan the query."""
    spark = sys.modules.get("pyspark.errors")
    return spark is not None and isinstance(error, spark.AnalysisException)


def _is_defect(error: BaseException) -> bool:
    """Return whether the library's code raised an error that is not one of its classes."""
    if isinstance(error, (TxnQueueError, OSError, MemoryError)) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "txnqueue"


class Charges:
    """Which failures of a run count as deliveries, and which messages the run tries next.

    A broken job fails with every batch, which cannot be told from broken messages. So until a
    batch of the run succeeds, only its first failure counts, and a message is charged with at
    most one delivery. Failures that do not count do not narrow the claims either. So the run
    itself tries smaller batches and, once it is down to a single message, other messages, unless
    the queue is ordered. After the first success all failures count, and narrow the claims by the
    queue's rules.
    """

    def __init__(self, *, ordered: bool) -> None:
        """Begin a run: nothing has succeeded, and nothing is charged."""
        self.proven = False
        self.charged = False
        self._ordered = ordered
        self._limit: int | None = None
        self._passed: dict[PositionId, tuple[Range, ...]] = {}

    @property
    def next_counts(self) -> bool:
        """Whether the next failure counts as a delivery."""
        return self.proven or not self.charged

    @property
    def passes_over(self) -> bool:
        """Whether single messages that failed are left out for now."""
        return bool(self._passed)

    def limit(self, size: int) -> int:
        """Return how many messages the next batch may hold, at most ``size``."""
        return size if self._limit is None else min(size, self._limit)

    def succeeded(self) -> None:
        """Record that a batch succeeded, so the job is not broken."""
        self.proven = True
        self._limit = None
        self._passed = {}

    def recall(self, decisions: Iterable[Entry]) -> None:
        """Record the run's decisions in the journal, which others may have written."""
        for entry in decisions:
            if entry.kind == model.COMMITTED:
                self.succeeded()
            elif entry.body.get("counted", True):
                self.charged = True

    def failed(self, held: Sequence[HeldClaim], *, counted: bool) -> None:
        """Record a batch that failed, possibly because of its messages."""
        if counted or self.proven:
            self.charged = True
            return
        size = sum(one.claim.count for one in held)
        self._limit = max(1, size // NARROWING)
        if size == 1 and not self._ordered:
            for one in held:
                for position_id, part in one.claim.items.items():
                    before = self._passed.get(position_id, ())
                    self._passed[position_id] = ranges.added(before, part)

    def forgive(self) -> None:
        """Try again the messages that were left out, as there are no others."""
        self._passed = {}

    def wanted(self, lane: LaneState, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Yield the messages except those that failed as single messages."""
        for segment in segments:
            whole = ((segment.first, segment.last),)
            passed = self._passed.get(segment.position.position_id, ())
            for first, last in ranges.difference(whole, passed):
                yield segment.cut(first, last)
