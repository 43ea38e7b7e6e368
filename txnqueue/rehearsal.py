"""Rehearsals: what a handler would do on a past state, compared with what was done then."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from txnqueue.batch import Batch, claim_batch
from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.client.past_store import PastJournal, PastStore
from txnqueue.client.runtime import Runtime
from txnqueue.core import markup, model, ranges
from txnqueue.core.handlers import check_function
from txnqueue.core.model import Entry, Range
from txnqueue.core.receipt import Status
from txnqueue.core.settings import (
    MESSAGE_COLUMN,
    MESSAGES_PER_RECEIVE_MAX,
    QueueInfo,
    check_count,
    check_flag,
    check_id,
    describe_error,
)
from txnqueue.core.state import LaneState, Segment, catalog
from txnqueue.drain import Handler
from txnqueue.errors import PayloadRemoved, QueueNotFound
from txnqueue.messages.claim import Wanting
from txnqueue.messages.parts import part_of
from txnqueue.messages.receive import now
from txnqueue.messages.selector import Selector
from txnqueue.queue import Queue
from txnqueue.reports import changed_rows
from txnqueue.reports.changed_rows import Changes
from txnqueue.reports.consumption import consumed, settled_by
from txnqueue.reports.deeds import Deeds
from txnqueue.reports.moments import check_moment, state_at
from txnqueue.reports.presence import Presence
from txnqueue.reports.report import Report
from txnqueue.reports.snapshot import schema_of
from txnqueue.storage.payload import Part, messages_of
from txnqueue.transaction import Transaction, call_handler
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import commit
from txnqueue.types import ChangedRow, Message, RehearsalRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = "what queue table would really"
_ENDS = frozenset({model.ACCEPTED, model.REJECTED, model.MOVED})
_AT_ONCE = _ENDS | {model.POSTED}
LIMITS = (
    "What the handler does elsewhere (files, services, databases, tables that it writes itself, "
    "queues with transaction=None) is done for real and not shown."
)


@dataclass(frozen=True)
class _Side:
    """One of the two sides of a comparison: its messages, its queues and its deeds."""

    client: Client
    infos: Mapping[str, QueueInfo]
    deeds: Deeds

    def messages(self, queue: str) -> Report[Message]:
        """Report the messages that this side sent to a queue."""
        infos = [info for info in self.infos.values() if info.name == queue]
        if not infos:
            raise QueueNotFound(
                f"There is no queue {queue!r}; there are: {', '.join(sorted(self.names))}.",
                name=queue,
            )
        # Of several queues that had the name in turn, those that got messages.
        sent = [(schema_of(info), mine) for info in infos if (mine := self.deeds.parts(info))]
        found = sent or [(schema_of(infos[-1]), list[Part]())]
        payload = self.client.payload
        names = [str(name) for schema, _ in found for name in schema.names]
        none: dict[str, Any] = dict.fromkeys(names)

        def rows() -> list[Message]:
            tables = (payload.table(schema, parts) for schema, parts in found)
            each = chain.from_iterable(map(messages_of, tables))
            return [Message(none | dict(row)) for row in each]

        def frame() -> DataFrame:
            frames = (payload.frame(schema, parts) for schema, parts in found)
            return reduce(
                lambda one, other: one.unionByName(other, allowMissingColumns=True), frames
            )

        return Report(self.client, rows, " ".join([*none, MESSAGE_COLUMN]), frame)

    @property
    def changes(self) -> Changes:
        """What was decided about the user's tables."""
        return Changes(self.client.store.tables, self.deeds.entries)

    @property
    def names(self) -> set[str]:
        """The names of the queues."""
        return {info.name for info in self.infos.values()}


class Rehearsal(Report[RehearsalRow]):
    """What a handler would have sent and changed, beside what was really sent and changed.

    Each row has what was done (sent, accepted, rejected, released, moved, or append, merge, update
    and delete of a table), the queue or table, how many messages or rows it would have been, and
    how many it really were. What was really done is the work of the transactions that consumed
    these very messages; they may have consumed others as well.
    """

    limits = LIMITS
    """What a rehearsal cannot prevent."""

    def __init__(
        self,
        would: _Side,
        really: _Side,
        *,
        messages: int,
        batches: int,
        consumed: int,
        transactions: Sequence[str],
        error: Exception | None,
        rolled_back: bool,
        commit_seq: int,
    ) -> None:
        """Hold both sides; users get rehearsals from ``manager.rehearse``."""
        super().__init__(really.client, self._compared, _COLUMNS, is_short=True)
        self._would, self._was = would, really
        self.messages = messages
        """How many messages the handler got."""
        self.batches = batches
        """How many batches it got, each in a separate transaction."""
        self.consumed = consumed
        """How many of the messages were settled since: accepted, rejected, or moved by a batch."""
        self.transactions = tuple(transactions)
        """The transactions that consumed them; messages consumed outside a transaction add none."""
        self.error = error
        """What the handler raised, or its commit would have; the batch would have been rolled back.
        ``PayloadRemoved`` if payload of the batch's messages is gone, with the first state from
        which on all of it is there. No further batch was begun."""
        self.rolled_back = rolled_back
        """Whether the last batch would have sent and changed nothing: the handler failed, or rolled
        back itself. The work of the batches before it counts."""
        self.commit_seq = commit_seq
        """The last commit of the state that the handler ran on."""

    def sent(self, queue: str) -> Report[Message]:
        """Report the messages that the handler would have sent to a queue; columns as ``Batch.df``.

        Args:
            queue: The queue's name.

        Raises:
            QueueNotFound: There was no such queue.
        """
        return self._would.messages(check_id(queue, "queue"))

    def was_sent(self, queue: str) -> Report[Message]:
        """Report the messages that were really sent to a queue then; columns as ``Batch.df``.

        Reading the report raises ``PayloadRemoved`` if their payload is past its retention.

        Args:
            queue: The queue's name.

        Raises:
            QueueNotFound: There never was such a queue.
        """
        return self._was.messages(check_id(queue, "queue"))

    def changes(self, table: str, limit: int = 1_000) -> Report[ChangedRow]:
        """Report the rows that would have changed a table, beside those that really did.

        Each row has the operation (append, merge, update or delete), the terms of a merge, update
        or delete, the row that an append or a merge was given (both as JSON), and how often this
        would have happened and really did. Values that a database or a clock makes differ.

        Args:
            table: The table, as ``rows()`` names it.
            limit: More rows than this on a side raise ``LimitExceeded`` when they are read.
                Past rows whose payload was removed since raise ``PayloadRemoved``.

        Raises:
            TableNotFound: Neither side changes the table.
        """
        check_id(table, "table")
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        would, really = self._would.changes, self._was.changes
        changed_rows.check_known((would, really), table)
        return Report(
            self._client,
            lambda: changed_rows.compared(would, really, table, limit),
            changed_rows.COLUMNS,
        )

    def _compared(self) -> list[RehearsalRow]:
        would, really = self._would.deeds.counts(), self._was.deeds.counts()
        both = sorted({*would, *really}, key=lambda key: tuple(part or "" for part in key))
        return [
            {
                "what": what,
                "queue": queue,
                "table": table,
                "would": would[what, queue, table],
                "really": really[what, queue, table],
            }
            for what, queue, table in both
        ]

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show both sides, how the handler ended, and what a rehearsal cannot prevent."""
        shown = markup.records(repr(self)[1:-1], self.rows(), _COLUMNS.split())
        return f"{shown}<p>{LIMITS}</p>"

    def __repr__(self) -> str:
        """Show how many messages there were, and how the handler ended."""
        ended = "" if self.error is None else f", failed: {describe_error(self.error)}"
        if self.rolled_back and self.error is None:
            ended = ", rolled back"
        several = f" in {self.batches} batches" if self.batches > 1 else ""
        return (
            f"<Rehearsal of {self.messages} messages{several} on commit {self.commit_seq}, "
            f"{self.consumed} consumed since{ended}>"
        )


@dataclass(slots=True)
class _Trial:
    """One run of a handler on a past state, without any effect on the store."""

    client: Client
    past: PastJournal
    handler: Handler
    outside: Client
    """The manager's own client: a call in the handler that omits its transaction is refused
    there, as it is in a drain."""
    presence: Presence | None = None
    """Leaves out messages whose payload is gone, where that is wanted."""
    attempts: list[Attempt] = field(default_factory=list)
    received: list[list[Part]] = field(default_factory=list)
    """The messages of each batch."""
    error: Exception | None = None
    done: list[Entry] = field(default_factory=list)

    def run(self, info: QueueInfo, limit: int, batch_size: int | None, where: str | None) -> None:
        """Hand batches to the handler, each in a transaction, until one of them fails.

        Args:
            info: The queue.
            limit: The most messages.
            batch_size: The most messages of a batch; None: all are one batch.
            where: Only messages that match this predicate.
        """
        queue = Queue(self.client, info)
        selector = queue._selector(where, few=True)
        snapshot = now(self.client)  # a batch does not get what earlier ones sent, as in a drain
        while self.messages < limit and not self.rolled_back:
            attempt = self._begin()
            batch = claim_batch(
                self.client,
                info,
                queue.schema,
                min(batch_size or limit, limit - self.messages),
                attempt,
                upto=snapshot,
                wanted=self._wanting(info, selector),
            )
            if not len(batch):
                break
            self.received.append(batch._parts())
            self._hand(batch, attempt, goes_on=batch_size is not None and self.messages < limit)
            if batch_size is None:
                break
        self.done += self._beside()

    def _wanting(self, info: QueueInfo, selector: Selector | None) -> Wanting | None:
        """Return the filter of the messages that a batch may hold; None for no filter."""
        chosen = selector.of_lane if selector is not None else None
        presence = self.presence
        if presence is None:
            return chosen

        def left(lane: LaneState, segments: Iterable[Segment]) -> Iterator[Segment]:
            for segment in segments:
                whole = ((segment.first, segment.last),)
                part = part_of(segment.position, whole, info.name, lane.lane, 0)
                for one in presence.left([part]):
                    yield from (segment.cut(first, last) for first, last in one.ranges)

        if chosen is None:
            return left
        return lambda lane, segments: chosen(lane, list(left(lane, segments)))

    @property
    def parts(self) -> list[Part]:
        """The messages of all batches."""
        return list(chain.from_iterable(self.received))

    @property
    def messages(self) -> int:
        """How many messages the handler got."""
        return sum(ranges.count(part.ranges) for part in self.parts)

    @property
    def rolled_back(self) -> bool:
        """Whether the last batch would have been rolled back."""
        last = self.attempts[-1].status if self.attempts else None
        return self.error is not None or last is Status.ROLLED_BACK

    def _begin(self) -> Attempt:
        attempt = Attempt(self.client)
        attempt.rehearsed = True
        attempt.begin()
        self.attempts.append(attempt)
        return attempt

    def _hand(self, batch: Batch, attempt: Attempt, *, goes_on: bool) -> None:
        """Hand a batch to the handler, and gather the entries of its commit."""
        blocks = (self.client.blocks, self.outside.blocks)
        try:
            for found in blocks:
                found.append(attempt)
            call_handler(self.handler, batch, Transaction(attempt))
            self._gather(attempt, goes_on=goes_on)
        except Exception as error:  # the rehearsal reports it
            self.error = error
        finally:
            for found in blocks:
                if attempt in found:
                    found.remove(attempt)
            attempt.close()  # later calls of the batch or the transaction are refused

    def _gather(self, attempt: Attempt, *, goes_on: bool) -> None:
        """Gather the entries of the commit, and commit if another batch builds on it."""
        client = self.client
        if attempt.status is not Status.ACTIVE:
            return
        attempt.committing()(0)  # raises what a commit would raise
        # Both sides or none: a refused commit would have done neither.
        found = [
            attempt.work.gathered(side, attempt.owner, side.stamp()).facts
            for side in (client, client.transient)
        ]
        if goes_on:
            commit(attempt)
        self.done += chain.from_iterable(found)

    def _beside(self) -> list[Entry]:
        """List the work outside the transactions, by calls with ``transaction=None``."""
        store = self.client.store
        landed = [*self.past.landed(), *store.transient.journal.read_all().entries]
        mine = {attempt.attempt_id for attempt in self.attempts}
        return [e for e in landed if e.kind in _AT_ONCE and e.attempt not in mine]


def rehearse(
    client: Client,
    handler: Handler,
    queue: str | Queue,
    as_of: int | datetime.datetime | None,
    limit: int,
    *,
    batch_size: int | None,
    where: str | None,
    partial: bool,
) -> Rehearsal:
    """Run a handler on a past state, as described in ``manager.rehearse``."""
    check_function("handler", handler)
    check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1, MESSAGES_PER_RECEIVE_MAX)
    check_flag("partial", partial)
    check_moment("as_of", as_of)
    client.open()
    past, at_ms = state_at(client, as_of, name="as_of")
    newest = past.newest()
    if newest.commit_seq < 0:
        name = queue.name if isinstance(queue, Queue) else check_id(queue, "queue")
        raise QueueNotFound(
            f"The queue {name!r} did not exist then: the store's first commit is later.", name=name
        )
    store = PastStore(client.store, past)
    own = Client(
        store,
        _runtime(client.runtime, max(0, newest.recorded_at_ms) if at_ms is None else at_ms),
    )
    own.open()
    info = _queue_then(own, queue)
    presence = Presence(store.payload, client.cache.catalog_entries()) if partial else None
    trial = _Trial(own, store.journal, handler, client, presence)
    trial.run(info, limit, batch_size, where)
    known = Past(client.store)
    known.check_known(past.upto + 1)  # the handler may have outlasted the retention
    entries, consumed_since = _really(known, info, past.upto, trial.parts)
    keys = dict.fromkeys(e.transaction_key for e in entries if e.transaction_key is not None)
    then, ever = own.cache.queues(), catalog.every_queue(known.catalog())
    return Rehearsal(
        _side(own, {one.queue_id: one for one in then.values()}, trial.done),
        _side(client, ever, entries),
        messages=trial.messages,
        batches=len(trial.received),
        consumed=consumed_since,
        transactions=list(keys),
        error=trial.error and _explained(trial, info, known, past.upto),
        rolled_back=trial.rolled_back,
        commit_seq=newest.commit_seq,
    )


def _explained(trial: _Trial, info: QueueInfo, known: Past, upto: int) -> Exception | None:
    """Return why a handler failed; if payload that is gone may be why, also which state has all.

    Args:
        trial: The run of the handler; it failed with the newest batch.
        info: The queue.
        known: The history as it is now.
        upto: The last commit of the state that was rehearsed on.
    """
    presence = Presence(trial.client.store.payload, trial.outside.cache.catalog_entries())
    parts = [part for part in trial.received[-1] if not model.is_in_memory(part.payload_id)]
    gone = presence.gone(parts)
    if not gone or trial.error is None:
        return trial.error
    missing = _offsets(gone)
    since = max(
        (
            one.entry.commit_seq
            for one in consumed(known, info, upto, _ENDS)
            if any(ranges.intersection(p.ranges, missing.get(p.send_id, ())) for p in one.parts)
        ),
        default=None,
    )
    counts = [sum(ranges.count(part.ranges) for part in some) for some in (gone, parts)]
    reach = (
        "maintain(payload_retention_days=) says for how long payload is kept."
        if since is None
        else f"They were consumed up to commit {since}: rehearse as_of={since} or later."
    )
    explained = PayloadRemoved(
        f"Payload of {counts[0]} of {counts[1]} messages that the handler got from {info.name!r} "
        f"was removed or erased since. {reach} partial=True leaves them out. The handler raised "
        f"{describe_error(trial.error)}.",
        queue=info.name,
    )
    explained.__cause__ = trial.error
    return explained


def _offsets(parts: Iterable[Part]) -> Mapping[str, tuple[Range, ...]]:
    """Sort the offsets of messages by their sends."""
    found: defaultdict[str, tuple[Range, ...]] = defaultdict(tuple)
    for part in parts:
        found[part.send_id] = ranges.normalised((*found[part.send_id], *part.ranges))
    return found


def _side(client: Client, infos: Mapping[str, QueueInfo], entries: Sequence[Entry]) -> _Side:
    names = {queue_id: info.name for queue_id, info in infos.items()}
    names |= {info.in_memory().queue_id: info.name for info in infos.values()}
    return _Side(client, infos, Deeds(entries, names))


def _runtime(runtime: Runtime, at_ms: int) -> Runtime:
    """Return a runtime whose time goes on from an instant, with an unused consumer id."""
    began = runtime.now_ms()
    return replace(
        runtime,
        now_ms=lambda: at_ms + runtime.now_ms() - began,
        consumer=f"rehearsal-{runtime.new_id()}",
    )


def _queue_then(own: Client, queue: str | Queue) -> QueueInfo:
    """Find a queue as it was then.

    Raises:
        QueueNotFound: There was no queue of that name, or not this queue.
    """
    if not isinstance(queue, Queue):
        return own.cache.queue(check_id(queue, "queue"))
    known = {info.queue_id: info for info in own.cache.queues().values()}
    if queue.info.queue_id not in known:
        raise QueueNotFound(
            f"The queue {queue.name!r} did not exist then: name a queue that did.",
            name=queue.name,
        )
    return known[queue.info.queue_id]


def _really(
    now: Past, info: QueueInfo, after: int, received: Iterable[Part]
) -> tuple[list[Entry], int]:
    """Find the work of the transactions that consumed messages, and how many were consumed."""
    wanted = _offsets(received)
    if not wanted:
        return [], 0
    attempts: set[str] = set()
    alone: list[Entry] = []
    count = 0
    for one in consumed(now, info, after, _ENDS):
        mine = sum(
            ranges.count(ranges.intersection(part.ranges, wanted.get(part.send_id, ())))
            for part in one.parts
        )
        count += mine
        if mine and one.entry.attempt is not None:
            attempts.add(one.entry.attempt)
        elif mine:
            alone.append(replace(one.entry, count=mine))
    return [*settled_by(now, attempts), *alone], count
