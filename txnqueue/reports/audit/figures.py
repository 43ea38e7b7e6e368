"""The figures of an audit report (pure)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnqueue.types import DeadLetterCount


@dataclass(frozen=True, slots=True)
class Moment:
    """One of the two moments of a report.

    Attributes:
        commit_seq: The last commit that belongs to it; -1: before the first one.
        at: What is delayed and expired then goes by this instant; None: all that is known comes
            after the moment.
    """

    commit_seq: int
    at: datetime.datetime | None


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """What a queue held after one commit.

    Attributes:
        queue: The queue.
        commit_seq: The commit.
        at: When the commit was recorded.
        available: Messages that could be received.
        delayed: Messages that had to wait.
        in_flight: Messages that were received and not settled.
        purge_pending: How many of those were purged meanwhile.
        expired: Messages whose time to live was over.
        oldest_age_seconds: The age of the oldest available message.
    """

    queue: str
    commit_seq: int
    at: datetime.datetime
    available: int
    delayed: int
    in_flight: int
    purge_pending: int
    expired: int
    oldest_age_seconds: float | None

    @property
    def messages(self) -> int:
        """All messages in the queue."""
        return self.available + self.delayed + self.in_flight + self.expired


@dataclass(frozen=True, slots=True)
class LaneLag:
    """What waits in one lane at the end of the report."""

    queue: str
    lane: int
    available: int
    delayed: int
    in_flight: int
    oldest_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """What happened in a queue between the two moments: how many messages came and went.

    Attributes:
        queue: The queue.
        messages_before: How many messages it held at the first moment.
        posted: How many came: sent, published or moved.
        accepted: How many were consumed.
        rejected: How many a consumer rejected; they are dead letters now, if there is a queue.
        dead_lettered: How many went to the dead-letter queue by themselves.
        expired: How many were taken out because their time to live was over.
        purged: How many were purged.
        moved: How many were moved to another queue.
        duplicates: How many were found to be duplicates.
        dropped: How many went with the queue.
        messages_after: How many messages it held at the second moment.
        there: Whether there was the queue at the second moment.
    """

    queue: str
    messages_before: int
    posted: int
    accepted: int
    rejected: int
    dead_lettered: int
    expired: int
    purged: int
    moved: int
    duplicates: int
    dropped: int
    messages_after: int
    there: bool


@dataclass(frozen=True, slots=True)
class RunLine:
    """What one actor did in one run: how often, and of how many messages.

    Attributes:
        run_id: The run of a job; where none was said, the run of the drain, which its transactions
            ``<run id>/<n>`` are named by; else None.
        actor: Who.
        first_at: When it wrote first.
        last_at: When it wrote last.
        committed: How many transactions it committed.
        rolled_back: How many attempts it rolled back.
        sent: How many messages it sent or published.
        received: How many messages it received.
        accepted: How many it consumed.
        rejected: How many it rejected.
        released: How many it gave back.
        queues: The queues that it worked on.
    """

    run_id: str | None
    actor: str | None
    first_at: datetime.datetime
    last_at: datetime.datetime
    committed: int
    rolled_back: int
    sent: int
    received: int
    accepted: int
    rejected: int
    released: int
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """One attempt of a transaction that wrote anything between the two moments.

    Attributes:
        transaction_id: The transaction.
        attempt: The attempt.
        status: committed, rolled_back, prepared or pending, at the second moment.
        reason: Why.
        actor: Who decided, or wrote last.
        run_id: In which run.
        began_at: When its first entry was written.
        decided_at: When it was decided.
        commit_seq: The commit that decided.
        posted: How many messages it posted.
        settled: How many messages it settled.
        changes: How many changes of tables it decided.
    """

    transaction_id: str
    attempt: str
    status: str
    reason: str | None
    actor: str | None
    run_id: str | None
    began_at: datetime.datetime
    decided_at: datetime.datetime | None
    commit_seq: int | None
    posted: int
    settled: int
    changes: int


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the journal."""

    commit_seq: int
    at: datetime.datetime
    kind: str
    queue: str | None
    lane: int | None
    count: int | None
    transaction_id: str | None
    table: str | None
    reason: str | None
    actor: str | None
    run_id: str | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why messages did not go the way they should, between the two moments.

    Attributes:
        kind: rejected, dead_lettered, expired, purged, purge_pending (in flight: they go if they
            would come back), released or rolled_back.
        queue: The queue; None of transactions.
        reason: Why.
        times: How often.
        messages: Of how many messages.
        first_at: When it happened first.
        last_at: When it happened last.
    """

    kind: str
    queue: str | None
    reason: str | None
    times: int
    messages: int
    first_at: datetime.datetime
    last_at: datetime.datetime


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Dead letters of one queue with one origin and reason, at the second moment.

    Attributes:
        dead_letter_queue: Where they are.
        count: What ``Queue.dead_letters`` says of them.
        message_ids: Some of them.
        payload: The rows of those, if payload was asked for and is still there.
    """

    dead_letter_queue: str
    count: DeadLetterCount
    message_ids: tuple[str, ...]
    payload: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of a table that a transaction decided.

    Attributes:
        table: The table.
        operation: append, merge, update or delete.
        rows: How many rows were staged for it.
        transaction_id: The transaction.
        actor: Who decided.
        run_id: In which run.
        commit_seq: The commit that decided.
        decided_at: When.
        status: applied or waived as the journal had recorded by the second moment, else
            unconfirmed: its client may have applied it, and records that with its next append.
        ended_at: When it was recorded that it is applied or waived.
        reason: Why it was waived.
    """

    table: str
    operation: str
    rows: int | None
    transaction_id: str
    actor: str | None
    run_id: str | None
    commit_seq: int
    decided_at: datetime.datetime
    status: str
    ended_at: datetime.datetime | None
    reason: str | None

    @property
    def lag_seconds(self) -> float | None:
        """How long the table lagged behind the decision, at most; None while unconfirmed."""
        if self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.decided_at).total_seconds())


@dataclass(frozen=True, slots=True)
class TableLag:
    """The changes of one table, put together."""

    table: str
    decided: int
    applied: int
    waived: int
    unconfirmed: int
    lag_seconds_median: float | None
    lag_seconds_max: float | None


@dataclass(frozen=True, slots=True)
class HeuristicDecision:
    """A prepared transaction that an operator decided without its coordinator.

    Attributes:
        transaction_id: The transaction.
        decision: committed or rolled_back.
        reason: Why.
        actor: Who decided.
        run_id: In which run.
        at: When.
        commit_seq: The commit.
        forgotten_at: When it was acknowledged by ``forget``; None: it is still on record.
        forgotten_by: By whom.
    """

    transaction_id: str
    decision: str
    reason: str | None
    actor: str | None
    run_id: str | None
    at: datetime.datetime
    commit_seq: int
    forgotten_at: datetime.datetime | None = None
    forgotten_by: str | None = None


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """The figures of an audit report, all from one reading of the journal's entries.

    Attributes:
        first: The moment that the report begins after.
        last: The moment that it ends with.
        beginning: The first commit_seq whose state is known; -1: nothing was ever removed.
        differences: What came and went in each queue between the two.
        depths: What the queues held, after commits between the two.
        depth_every_versions: So many versions of the journal lie between two points of a queue;
            1: there is one after each commit that touched it.
        lanes: What waits in each lane at the end.
        runs: Who did what in which run.
        attempts: The attempts of transactions.
        events: The entries, in commit order.
        events_left_out: How many older entries are not among them.
        causes: Why messages went astray.
        dead_letters: The dead letters at the end, by cause.
        changes: Changes of tables that were decided or ended between the two, or are unconfirmed.
        tables: The same by table.
        heuristics: Heuristic decisions between the two, and older ones that are on record.
    """

    first: Moment
    last: Moment
    beginning: int = -1
    differences: tuple[QueueDifference, ...] = ()
    depths: tuple[DepthPoint, ...] = ()
    depth_every_versions: int = 1
    lanes: tuple[LaneLag, ...] = ()
    runs: tuple[RunLine, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()
    events: tuple[Event, ...] = ()
    events_left_out: int = 0
    causes: tuple[Cause, ...] = ()
    dead_letters: tuple[DeadLetterCause, ...] = ()
    changes: tuple[TableChange, ...] = ()
    tables: tuple[TableLag, ...] = ()
    heuristics: tuple[HeuristicDecision, ...] = ()
