"""What a failed batch is charged with: whose fault an error is, and which failures count.

A message that fails too often becomes a dead letter. So a delivery may count only if the message
can be what failed, and not if it was the job, or the store.
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
"""The next batch of a run without a success is at most such a part of the one that failed."""


class Fault(enum.Enum):
    """Who may be to blame for an error."""

    JOB = "the job, whatever the messages hold"
    STORE = "the store, or other clients: the same again may succeed"
    MESSAGE = "maybe a message, maybe the job"


_PASSING = (Busy, StoreBusy, LeaseLost, TransactionAborted, TransactionUnknown)
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
    SyntaxError,
    NameError,
)
_MAYBE = (LimitExceeded, Unroutable, UnboundLocalError)
"""Mistakes by their class that the content of a message can lead to."""


def fault_of(error: BaseException) -> Fault:
    """Return who may be to blame for an error of a handler, or of its commit.

    What is not surely the job's or the store's may be a message's.
    """
    if isinstance(error, TransactionAborted) and error.__cause__ is not None:
        refused = isinstance(error.__cause__, InvalidInput)  # a table refuses the rows
        other = not isinstance(error.__cause__, TxnQueueError)  # a database does
        return Fault.MESSAGE if refused or other else Fault.STORE
    if isinstance(error, _PASSING) and not isinstance(error, TransactionIdReused):
        return Fault.STORE
    if isinstance(error, _MAYBE) or getattr(error, "in_rows", False):
        return Fault.MESSAGE
    if isinstance(error, _MISTAKES) or _is_analysis(error) or _is_defect(error):
        return Fault.JOB
    return Fault.MESSAGE


def _is_analysis(error: BaseException) -> bool:
    """Return whether Spark could not even plan what it was asked for."""
    spark = sys.modules.get("pyspark.errors")
    return spark is not None and isinstance(error, spark.AnalysisException)


def _is_defect(error: BaseException) -> bool:
    """Return whether the library itself raised an error that is none of its own classes."""
    if isinstance(error, (TxnQueueError, OSError, MemoryError)) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "txnqueue"


class Charges:
    """Which failures of a run count as deliveries, and what it tries next.

    A job that is broken fails with every batch, and nothing tells that from messages that are:
    until a batch of the run succeeds, only its first failure counts, so that a message is charged
    with one delivery at most. What does not count does not narrow either. So the run itself
    tries smaller batches, and once it is down to a single message other ones, unless the queue is
    ordered. With the first success all failures count, and narrow by the queue's rules.
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
        """How many messages the next batch may hold."""
        return size if self._limit is None else min(size, self._limit)

    def succeeded(self) -> None:
        """Record that the job can succeed."""
        self.proven = True
        self._limit = None
        self._passed = {}

    def recall(self, decisions: Iterable[Entry]) -> None:
        """Record what the journal says of the run: others may have worked on it."""
        for entry in decisions:
            if entry.kind == model.COMMITTED:
                self.succeeded()
            elif entry.body.get("counted", True):
                self.charged = True

    def failed(self, held: Sequence[HeldClaim], *, counted: bool) -> None:
        """Record a batch that failed, maybe because of its messages."""
        if counted or self.proven:
            self.charged = True
            return
        size = sum(one.claim.count for one in held)
        self._limit = max(1, size // NARROWING)
        if size == 1 and not self._ordered:
            for one in held:
                for position_id, part in one.claim.items.items():
                    before = self._passed.get(position_id, ())
                    self._passed[position_id] = ranges.normalised((*before, *part))

    def forgive(self) -> None:
        """Take those again that were left out: there are no others."""
        self._passed = {}

    def wanted(self, lane: LaneState, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Leave single messages out that failed."""
        for segment in segments:
            whole = ((segment.first, segment.last),)
            passed = self._passed.get(segment.position.position_id, ())
            for first, last in ranges.difference(whole, passed):
                yield segment.cut(first, last)
