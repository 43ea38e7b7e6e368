"""The settlements of a queue's messages: which ones, by which transaction, in which commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import Claim, QueueState, catalog
from txnqueue.errors import PayloadRemoved
from txnqueue.messages.parts import part_of
from txnqueue.reports.presence import Presence
from txnqueue.storage.journal import EntryFilter
from txnqueue.storage.payload import Part


@dataclass(frozen=True, slots=True)
class Consumption:
    """Messages that one entry of the journal settled.

    Attributes:
        entry: The entry.
        parts: The messages, as they were delivered.
    """

    entry: Entry
    parts: tuple[Part, ...]

    @property
    def count(self) -> int:
        """How many messages they are."""
        return sum(ranges.count(part.ranges) for part in self.parts)


def consumed(
    past: Past, info: QueueInfo, after: int, kinds: Collection[str] = (model.ACCEPTED,)
) -> list[Consumption]:
    """Find what was consumed of a queue after a commit, in commit order.

    Args:
        past: What is known, up to the last commit that is meant.
        info: The queue.
        after: The commit_seq to begin after; -1: from the beginning on.
        kinds: How it was settled.

    Raises:
        HistoryRemoved: What was posted or claimed of it is not all known any more.
    """
    wanted = (archive.of_lanes(info.queue_id, info.settings.lanes), archive.of_fence(info.queue_id))
    if after >= 0:
        past.check_known(after + 1)
    entries = past.find(*wanted)
    fold = QueueState(info.queue_id, info.settings.lanes)
    claimed = {
        (e.lane, e.sequence) for e in entries if e.kind == model.CLAIMED and e.sequence is not None
    }
    found: list[Consumption] = []
    for entry in archive.known(entries, past.beginning):
        if entry.kind in kinds and entry.is_settlement and entry.commit_seq > after:
            claim = fold.claim(entry.lane or 0, entry.claim_sequence or 0)
            parts: tuple[Part, ...] = ()
            counts = True
            if claim is not None:
                # A settlement in the backlog counts only for a claim that its attempt owns.
                counts = entry.sequence is not None or claim.ended_by(entry)
                parts = _settled(fold, info, claim, entry) if counts else ()
            else:
                counts = (entry.lane, entry.claim_sequence) not in claimed
            one = Consumption(entry, parts)
            if counts and one.count < (entry.count or 0) and past.beginning >= 0:
                raise archive.removed(
                    f"What was consumed by commit {entry.commit_seq} is no longer completely known",
                    past.beginning,
                )
            if parts:
                found.append(one)
        fold.apply(entry)
    return found


def _settled(fold: QueueState, info: QueueInfo, claim: Claim, entry: Entry) -> tuple[Part, ...]:
    named: dict[PositionId, tuple[Range, ...]] = dict(model.unpack_items(entry)) or claim.items
    return tuple(
        part_of(fold.positions[position_id], mine, info.name, claim.lane, claim.delivery_count)
        for position_id, part in named.items()
        if (mine := ranges.intersection(part, claim.items.get(position_id, ())))
    )


def check_payload(presence: Presence, found: Iterable[Consumption], name: str) -> None:
    """Check that what was consumed can still be read.

    Args:
        presence: What is there still.
        found: What was consumed, in commit order.
        name: What the queue is called.

    Raises:
        PayloadRemoved: Some of it was removed, or erased.
    """
    latest: int | None = None
    latest_erased: int | None = None
    for one in found:
        for part in one.parts:
            if presence.is_removed(part):
                latest = one.entry.commit_seq
            if presence.erased(part):
                latest_erased = one.entry.commit_seq
    if latest_erased is not None and (latest is None or latest < latest_erased):
        raise PayloadRemoved(
            f"Messages that commit {latest_erased} consumed from {name!r} were erased: read "
            f"after={latest_erased}, or upto= an earlier commit, or all others with partial=True; "
            "history.trace shows who erased a message.",
            queue=name,
        )
    if latest is not None:
        raise PayloadRemoved(
            f"Payload of messages consumed from {name!r} up to commit {latest} was removed: read "
            f"after={latest}, or what is left with partial=True; "
            "maintain(payload_retention_days=) sets how long payload is kept.",
            queue=name,
        )


def settled_by(past: Past, attempts: Collection[str]) -> list[Entry]:
    """Read what attempts posted, settled and changed, in commit order."""
    if not attempts:
        return []
    queues = catalog.every_queue(past.catalog())
    shards = {model.backlog_shard(queue_id) for queue_id in queues} | {*model.ALL_TABLES}
    kinds = {model.POSTED, model.CHANGE_DECIDED, *model.SETTLEMENTS}
    return past.find(EntryFilter(shards=shards, kinds=kinds, attempts=attempts))


def meant(parts: Iterable[Part], by_send: dict[str, tuple[Range, ...]]) -> list[Part]:
    """Leave of some messages those at some places."""
    return [
        replace(part, ranges=mine)
        for part in parts
        if (mine := ranges.intersection(part.ranges, by_send.get(part.send_id, ())))
    ]
