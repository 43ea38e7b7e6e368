"""Erase the payload of messages for good: first the record, then the rows.

Only messages that have left every queue are erased, because nobody can need them any more. Waiting
messages are purged first, on record; messages in flight refuse the erasure. A message that has left
all its queues never returns, so the record needs no expectation when it lands.

The record names rows, but neither the predicate nor any value. From then on ``verify`` does not
require the rows; after a crash before their deletion, the next erasure, maintenance or recovery
deletes them.
"""

from __future__ import annotations

import datetime
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from txnqueue.admin import inventory
from txnqueue.client.archive import NAMES_MAX, Past
from txnqueue.client.client import Client
from txnqueue.client.runtime import Retries
from txnqueue.core import model, ranges
from txnqueue.core.instants import instant
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry, Range
from txnqueue.core.planning import Plan, Removal
from txnqueue.core.redelivery import CLOCKS_APART_MS
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import (
    LaneState,
    Position,
    QueueState,
    Segment,
    catalog,
    erasures,
    retention,
)
from txnqueue.core.state.closure import closed_error
from txnqueue.core.state.erasures import Erasure, Place, Rows
from txnqueue.core.state.topology import Topology
from txnqueue.errors import Busy, LimitExceeded, NotErasable, QueueClosed, QueueNotFound
from txnqueue.messages.removal import Progress, remove
from txnqueue.storage.journal import AppendConflict, EntryFilter

logger = logging.getLogger("txnqueue")
Schema = Mapping[str, Any]
"""Columns of payload, as the catalog describes them."""
RANGES_MAX = 10_000
"""How many ranges one erasure may name: every client reads its record for ever."""
_PURGED = "purged, and their payload still exists"


@dataclass(frozen=True, slots=True)
class EraseResult(Facts):
    """What an erasure did.

    Attributes:
        queue: The queue's name.
        erased: How many rows this call recorded as erased, and deleted.
        purged: How many of their messages were waiting, and were purged.
        undecided: How many matching rows stay because they may still become messages: rows of
            transactions that are undecided, were rolled back recently, or were forgotten with their
            history. Erase again a day later, after a ``maintain``; in a store with few commits,
            when its journal has advanced by a hundred versions.
        readable_until: Until then Delta keeps the files that held the rows, and older versions of
            the table show them; the next ``maintain`` removes the files. None if this call deleted
            no rows, neither its own nor those of interrupted erasures.
    """

    queue: str
    erased: int = 0
    purged: int = 0
    undecided: int = 0
    readable_until: datetime.datetime | None = None


def erase(client: Client, name: str, where: str, reason: str) -> EraseResult:
    """Erase the payload of a queue's messages that match a predicate; repeatable.

    Raises:
        QueueNotFound: There never was such a queue.
        NotErasable: Some messages are in flight, or needed to detect duplicates.
        QueueClosed: Some messages wait in a queue that is being dropped.
        LimitExceeded: The messages lie in too many ranges.
        Busy: Others won every retry; the error says what was done.
    """
    client.open()
    known = client.cache.catalog_entries()
    gone = {one.entry.entry_id for one in erasures.erasures(known) if one.done is not None}
    infos = client.cache.ever_named(name, known)
    search = _Search(client, infos, where)
    if sum(len(part) for found in search.rows.values() for part in found.values()) > RANGES_MAX:
        raise LimitExceeded(
            f"The messages of {name!r} that where= selects lie in more than {RANGES_MAX} ranges "
            "of adjacent rows: erase fewer of them at a time.",
            name="where",
        )
    progress = Progress()
    _Standing(client, search.rows, name, reason).purge(search.posted, progress)

    def plan(_lost: int) -> Plan | None:
        entries, stamp = client.cache.catalog_entries(), client.stamp()
        queue_id = infos[-1].queue_id
        made = erasures.record(
            entries, search.rows, gone, queue_id=queue_id, name=name, reason=reason, stamp=stamp
        )
        return made if made.entries else None

    with progress.telling(_PURGED):
        landed = client.land(plan, "erase")
    recorded = [e for e in landed.entries if e.kind == model.PAYLOAD_ERASING] if landed else []
    known = client.cache.catalog_entries()
    waiting = {one.payload_id for one in erasures.erasures(known) if one.done is None}
    failed = finish(client, known)
    for owner in search.rows.keys() & failed.keys():
        raise failed[owner]
    until = _readable_until(client, waiting - failed.keys())
    return EraseResult(name, model.messages(recorded), progress.removed, search.undecided, until)


def finish(client: Client, facts: Iterable[Entry]) -> dict[str, Exception]:
    """Delete the rows that were recorded as erased and may still exist, and record that.

    A failure in one table does not stop the others; the next call continues with that table.

    Args:
        client: The client that deletes.
        facts: The catalog's entries about erasures, and possibly others.

    Returns:
        Why rows may still exist, by their owners: ``Busy`` if others wrote at every try.
    """
    waiting = [e for e in erasures.erasures(facts) if e.done is None]
    failed: dict[str, Exception] = {}
    for owner, places in erasures.rows_of(waiting).items():
        try:
            _delete(client, owner, places)
            _say_deleted(client, [one for one in waiting if one.payload_id == owner])
        except Exception as error:
            logger.warning("erasure not finished owner=%s", owner, exc_info=True)
            failed[owner] = error
    return failed


def _delete(client: Client, owner: str, places: erasures.Places) -> None:
    """Delete rows of one owner.

    Raises:
        Busy: Others wrote to the payload at every try.
    """
    listed = [(*place, part) for place, part in places.items()]
    retries = Retries(client.runtime)
    while True:
        try:
            client.store.payload.erase(owner, listed)
            return
        except AppendConflict as error:
            if not retries.fail():
                raise Busy(
                    f"Rows of {owner} are recorded as erased, but concurrent writes to its "
                    "payload won every retry: the next erase, maintain or recover deletes them.",
                    operation="erase",
                    tries=retries.failed,
                ) from error
        retries.wait()


def _say_deleted(client: Client, deleted: Sequence[Erasure]) -> None:
    """Record that the rows of erasures are gone.

    Raises:
        Busy: Others were faster at every try.
    """

    def plan(_lost: int) -> Plan | None:
        made = erasures.finish(client.cache.catalog_entries(), deleted, client.stamp())
        return made if made.entries else None

    try:
        client.land(plan, "erase")
    except Busy as error:
        raise Busy(
            f"Rows of {deleted[0].payload_id} are erased, but others won every retry to record "
            "that: the next erase, maintain or recover does.",
            operation="erase",
            tries=error.tries,
        ) from error


def _readable_until(client: Client, owners: Iterable[str]) -> datetime.datetime | None:
    """Return when the next maintenance removes the files, however soon the tables forget them."""
    kept = [client.store.payload.files_kept_seconds(owner) for owner in owners]
    if not kept:
        return None
    seconds = max(*kept, inventory.FILES_DAYS * 86_400)
    return instant(client.runtime.now_ms() + math.ceil(seconds * 1000))


class _Search:
    """The rows that match a predicate, sorted by whether they may still become messages.

    Attributes:
        rows: The rows that no undecided transaction can still make messages of.
        undecided: The number of the other rows.
    """

    def __init__(self, client: Client, infos: Sequence[QueueInfo], where: str) -> None:
        """Search all that was ever sent, published or moved to some queues."""
        self._client = client
        self.rows: dict[str, dict[Place, tuple[Range, ...]]] = defaultdict(dict)
        self.undecided = 0
        backlogs = [model.backlog_shard(info.queue_id) for info in infos]
        here = EntryFilter(shards=backlogs, kinds=[model.POSTED])
        others = {entry.body["payload"] for entry in Past(client.store).find(here)}
        own = {info.payload_id for info in infos}
        facts = client.cache.catalog_entries()  # read last: they name all these owners
        topology = Topology.of(facts)
        bound = {one.payload_id for info in infos for one in topology.owners(info.queue_id)}
        schemas = {one.payload_id: one.schema for one in catalog.every_queue(facts).values()}
        schemas |= {one.payload_id: one.schema for one in topology.ever.values()}
        searched = {owner: schemas[owner] for owner in sorted(own | bound | others)}
        meant = self._matching(searched, [info.schema for info in infos], where)
        self._sends = sorted({send_id for found in meant.values() for _, send_id in found})
        # What is not posted by now, and began below this horizon, never will be.
        horizon = model.horizon(client.store.journal.read([model.FENCE]).entries)
        prepared = self._prepared()
        everywhere = self.posted()  # once for both: a row may be published at any time
        posted = _by_send(everywhere)
        came = _by_send(entry for entry in everywhere if entry.shard in backlogs)
        for owner, found in meant.items():
            for (slice_, send_id), lie in found.items():
                known = posted.get((owner, send_id), ())
                part = lie
                if owner not in own:
                    part = ranges.intersection(lie, came.get((owner, send_id), ()))
                if owner in bound:  # not known to be posted: it may come here, or came once
                    part = ranges.normalised((*part, *ranges.difference(lie, known)))
                there = ranges.intersection(part, known)
                over = (slice_ + 1) * client.cache.slice_width <= horizon
                if over and slice_ not in prepared.get(owner, ()):
                    there = part
                self.undecided += ranges.count(part) - ranges.count(there)
                if there:
                    self.rows[owner][slice_, send_id] = there

    def posted(self) -> list[Entry]:
        """Read where the messages of the matching sends were ever posted, in any queue."""
        past, found = Past(self._client.store), list[Entry]()
        for at in range(0, len(self._sends), NAMES_MAX):
            sends = self._sends[at : at + NAMES_MAX]
            found += past.find(EntryFilter(kinds=[model.POSTED], sends=sends))
        return found

    def _matching(
        self, owners: Mapping[str, Schema], named: Sequence[Schema], where: str
    ) -> dict[str, dict[Place, tuple[Range, ...]]]:
        """Search the queues' own tables, and the tables that rows were published or moved from.

        Each has null in the columns of the queues that it lacks: dropped queues of the same name
        may have had other columns.

        Args:
            owners: The columns of the tables, by owner.
            named: The columns of the queues.
            where: The predicate.
        """
        payload = self._client.store.payload
        return {
            owner: {
                (slice_, send_id): lie
                for slice_, send_id, lie in payload.matching(
                    payload.schema(schema, *named), owner, where
                )
            }
            for owner, schema in owners.items()
        }

    def _prepared(self) -> retention.Slices:
        return retention.named_slices(self._client.cache.transaction_entries())


def _by_send(posted: Iterable[Entry]) -> dict[tuple[str, str], tuple[Range, ...]]:
    """Collect posted ranges by owner and send."""
    spans: dict[tuple[str, str], list[Range]] = defaultdict(list)
    for entry in posted:
        spans[entry.body["payload"], entry.body["send"]].extend(entry.ranges)
    return {place: ranges.normalised(part) for place, part in spans.items()}


def _after_purging(error: NotErasable | QueueClosed, purged: int) -> NotErasable:
    """Say that an erasure is refused although some messages were already purged."""
    why = str(error).removesuffix(" Nothing was changed.")
    return NotErasable(
        f"{why} {purged} waiting messages were already purged; their payload still exists.",
        queue=error.name if isinstance(error, QueueClosed) else error.queue,
        in_flight=0 if isinstance(error, QueueClosed) else error.in_flight,
        purged=purged,
        done=purged,
    )


class _Standing:
    """The messages of rows to erase that are still in queues, wherever they went."""

    def __init__(self, client: Client, rows: Rows, name: str, reason: str) -> None:
        """Look for the messages of rows that are to be erased.

        Args:
            client: The client that erases.
            rows: The rows.
            name: The queue in which they were found.
            reason: Why.
        """
        self._client = client
        self._rows = rows
        self._name = name
        self._reason = reason

    def purge(self, posted: Callable[[], list[Entry]], progress: Progress) -> None:
        """Purge the waiting messages, and make sure that none is left in any queue.

        A message may be moved to another queue during the search; so the places where messages were
        posted are read once more after the queues.

        Args:
            posted: Reads where the messages were posted.
            progress: Counts the messages that were waiting.

        Raises:
            NotErasable: Some messages are in flight, or needed to detect duplicates.
            QueueClosed: Some messages wait in a queue that is being dropped.
        """
        known = posted()
        while True:
            infos = self._queues(known)
            try:
                self._check(infos, known)
                waiting = self._waiting(infos)  # only these: another queue may be closing
                self._check_open(waiting)
            except (NotErasable, QueueClosed) as error:
                if not progress.removed:
                    raise
                raise _after_purging(error, progress.removed) from None
            # A queue that is being dropped is looked at once more.
            with suppress(QueueNotFound, QueueClosed), progress.telling(_PURGED):
                for info in waiting:
                    remove(self._client, info, model.PURGED, self, self._sort, progress=progress)
            stands = self._stands(infos)
            newest = posted()
            # Not by their number: others may have been removed with their history meanwhile.
            if not stands and {e.entry_id for e in newest} <= {e.entry_id for e in known}:
                return
            known = newest

    def _check_open(self, infos: Sequence[QueueInfo]) -> None:
        """Check that all messages can be purged, before any is.

        Raises:
            QueueClosed: A queue is being dropped.
        """
        closing = {info.queue_id for info in infos if info.closing}
        if closing:
            for entry in self._client.store.journal.read([model.FENCE]).entries:
                if entry.queue_id in closing:
                    raise closed_error(entry)

    def of_lane(self, _lane: LaneState, segments: Sequence[Segment]) -> Iterator[Segment]:
        """Cut the messages of the rows out of some segments of a lane, in the same order."""
        for segment in segments:
            for part in self._within(segment.position, ((segment.first, segment.last),)):
                yield segment.cut(*part)

    def _sort(self, segments: Sequence[Segment]) -> list[Removal]:
        return [Removal(model.PURGED, tuple(segments), self._reason)] if segments else []

    def _within(self, position: Position, part: Sequence[Range]) -> tuple[Range, ...]:
        places = self._rows.get(position.payload_id, {})
        return ranges.intersection(part, places.get((position.slice, position.send_id), ()))

    def _queues(self, posted: Iterable[Entry]) -> list[QueueInfo]:
        """List the existing queues to which the messages were posted."""
        there = {
            entry.queue_id for entry in posted if self._within(Position.of(entry), entry.ranges)
        }
        return [i for i in self._client.cache.queues().values() if i.queue_id in there]

    def _stands(self, infos: Sequence[QueueInfo]) -> bool:
        """Return whether any message is still in these queues."""
        with self._client.lock:
            if self._waiting(infos):
                return True
            return any(map(self._in_flight, self._client.states.folds(infos)))

    def _waiting(self, infos: Sequence[QueueInfo]) -> list[QueueInfo]:
        """List the queues in which any of the messages waits."""
        with self._client.lock:
            return [
                info
                for info, fold in zip(infos, self._client.states.folds(infos), strict=True)
                if any(next(self.of_lane(n, n.available), None) for n in fold.lanes.values())
            ]

    def _in_flight(self, fold: QueueState) -> int:
        return sum(
            ranges.count(self._within(fold.positions[position_id], part))
            for claim in fold.claims()
            for position_id, part in claim.items.items()
        )

    def _check(self, infos: Sequence[QueueInfo], posted: Iterable[Entry]) -> None:
        """Check that no message is in flight or needed to detect duplicates.

        Raises:
            NotErasable: Some are.
        """
        with self._client.lock:
            for info, fold in zip(infos, self._client.states.folds(infos), strict=True):
                held = self._in_flight(fold)
                if held:
                    raise NotErasable(
                        f"{held} of the messages of {self._name!r} that where= selects are in "
                        f"flight in {info.name!r}: let their holders settle them, let recover() "
                        "end abandoned transactions, or end leases with "
                        f"manager.release({info.name!r}, consumer=, reason=); then erase again.",
                        queue=info.name,
                        in_flight=held,
                    )
                if fold.window_ms is not None:
                    self._check_window(info, fold, fold.window_ms, posted)

    def _check_window(
        self, info: QueueInfo, fold: QueueState, window_ms: int, posted: Iterable[Entry]
    ) -> None:
        """Check that no duplicate detection still needs the messages' ids, which are payload.

        A clock that was ahead recorded an instant whose window would not end for years: it does not
        count if the ids are in the entry, too, so that nobody reads them from the payload.
        """
        oldest_ms = min((p.posted_at_ms for p in fold.positions.values()), default=None)
        now_ms = self._client.runtime.now_ms()
        by_ms = now_ms - CLOCKS_APART_MS
        over_ms = (by_ms if oldest_ms is None else min(by_ms, oldest_ms)) - window_ms
        needed = [
            entry
            for entry in posted
            if entry.queue_id == info.queue_id and entry.recorded_at_ms > over_ms
            if entry.recorded_at_ms <= now_ms + CLOCKS_APART_MS or "ids" not in entry.body
            if self._within(Position.of(entry), entry.ranges)
        ]
        if needed:
            raise NotErasable(
                f"Messages of {self._name!r} that where= selects are needed in {info.name!r} to "
                f"detect duplicates: erase again {(window_ms + CLOCKS_APART_MS) / 1000:.0f} s "
                "after they were sent, when the queue has no message left that was sent before "
                f"them or up to {window_ms / 1000:.0f} s after them; purge those that wait.",
                queue=info.name,
            )
