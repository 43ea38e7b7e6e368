"""Follow one message through a store's entries (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import Position, catalog, erasures
from txnqueue.core.state.topology import Topology
from txnqueue.reports.snapshot import author_of
from txnqueue.types import TraceStep

ClaimName = tuple[str | None, int | None, int | None]


@dataclass(slots=True)
class _Path:
    """What is known of one message after some entries: where it stood, who claimed it."""

    send_id: str
    offset: int
    positions: dict[PositionId, Position] = field(default_factory=dict)
    held: dict[PositionId, ClaimName] = field(default_factory=dict)
    purged: set[PositionId] = field(default_factory=set)
    standing: dict[PositionId, str | None] = field(default_factory=dict)

    def leaves(self, places: Iterable[PositionId]) -> None:
        """Record that the message is no longer in some places."""
        for position_id in places:
            self.standing.pop(position_id, None)

    def named(self, entry: Entry) -> list[PositionId]:
        """List the places of the message that an entry names."""
        return [
            position_id
            for position_id, part in model.unpack_items(entry)
            if position_id in self.positions and _holds(part, self.offset)
        ]

    def ended(self, entry: Entry) -> list[PositionId]:
        """List the places where an entry ends a claim of the message."""
        whole, named = not entry.body.get("items"), self.named(entry)
        claim = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        superseded = {
            (entry.queue_id, entry.lane, number) for number in entry.body.get("supersedes", ())
        }
        return [
            position_id
            for position_id, holder in self.held.items()
            if holder in superseded
            or (entry.is_settlement and holder == claim and (whole or position_id in named))
        ]


class TraceIndex:
    """The entries of messages that are followed, by what each of them is about.

    A thousand messages have thousands of entries, of which each message has a few.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Sort the entries, which are in commit order."""
        self._entries = list(entries)
        self._decisions = {e.attempt: e.kind for e in self._entries if e.kind in model.DECISIONS}
        self._infos = catalog.every_queue(self._entries)
        self._exchanges = Topology.of(self._entries).ever
        self._changed: dict[str | None, list[Entry]] = defaultdict(list)
        self._of_all: set[int] = set()
        self._posted: dict[str, list[int]] = defaultdict(list)
        self._naming: dict[PositionId, list[tuple[int, tuple[Range, ...]]]] = defaultdict(list)
        self._about: dict[ClaimName, list[int]] = defaultdict(list)
        for number, entry in enumerate(self._entries):
            self._sort(number, entry)

    def _sort(self, number: int, entry: Entry) -> None:
        if entry.kind == model.CHANGE_DECIDED:
            self._changed[entry.attempt].append(entry)
        elif entry.kind in (model.QUEUE_DROPPED, model.PAYLOAD_ERASING):
            self._of_all.add(number)
        elif entry.kind == model.POSTED:
            self._posted[entry.body["send"]].append(number)
        for position_id, part in model.unpack_items(entry):
            self._naming[position_id].append((number, part))
        ended = [(entry.lane, sequence) for sequence in entry.body.get("supersedes", ())]
        if entry.claim_sequence is not None:
            ended.append((entry.claim_lane, entry.claim_sequence))
        for lane, sequence in ended:
            self._about[entry.queue_id, lane, sequence].append(number)

    def _of(self, send_id: str, offset: int) -> Iterator[Entry]:
        """Pass on all entries that can be about a message, and a few others, in commit order."""
        posted = [n for n in self._posted[send_id] if _holds(self._entries[n].ranges, offset)]
        found = {*self._of_all, *posted}
        for number in posted:
            naming = self._naming[self._entries[number].entry_id]
            found.update(other for other, part in naming if _holds(part, offset))
        held = [e for e in map(self._entries.__getitem__, found) if e.kind == model.CLAIMED]
        for entry in held:
            found.update(self._about[entry.queue_id, entry.lane, entry.sequence])
        return (self._entries[number] for number in sorted(found))

    def steps_of(self, message: tuple[str, int]) -> list[TraceStep]:
        """Follow one message, in commit order.

        Args:
            message: Its send id and offset.

        Returns:
            One row per step; ``History.trace`` tells their columns.
        """
        found = _steps(_Path(*message), self._of(*message), self._changed)
        infos, decisions = self._infos, self._decisions
        send_id, offset = message
        return [
            {
                "message_id": f"{send_id}:{offset}",
                "step": step,
                "queue": infos[entry.queue_id].name if entry.queue_id in infos else None,
                "lane": entry.lane,
                "target": _target(entry, step, infos),
                "exchange": one.name
                if (one := self._exchanges.get(entry.body.get("exchange", "")))
                else None,
                "rows": entry.count if step == "changed" else None,
                "transaction_id": entry.transaction_key,
                "attempt": entry.attempt,
                "decision": decisions.get(entry.attempt) if entry.attempt else None,
                **author_of(entry),
                "commit_seq": entry.commit_seq,
            }
            for step, entry in found
        ]


def _steps(
    path: _Path, entries: Iterable[Entry], changed: Mapping[str | None, Sequence[Entry]]
) -> list[tuple[str, Entry]]:
    """List the steps of a message, each with the entry that tells it.

    Args:
        path: The message before its first entry.
        entries: The entries that can be about it, in commit order.
        changed: The changes of tables, by attempt.
    """
    found: list[tuple[str, Entry]] = []
    told: set[str] = set()
    for entry in entries:
        ended = path.ended(entry)
        for position_id in ended:
            del path.held[position_id]
        if entry.is_settlement and entry.kind != model.RELEASED:
            path.leaves(ended)
        step = _step(entry, path, ended)
        if step is not None:
            found.append((step, entry))
        if step == model.ACCEPTED and entry.attempt is not None and entry.attempt not in told:
            told.add(entry.attempt)  # it may have consumed the message in several queues
            found += [("changed", one) for one in changed.get(entry.attempt, ())]
        if path.purged.intersection(ended):
            path.leaves(path.purged.intersection(ended))
            path.purged.difference_update(ended)
            if entry.kind == model.RELEASED or not entry.is_settlement:
                found.append((model.PURGED, entry))
    return found


def _target(entry: Entry, step: str, infos: Mapping[str, QueueInfo]) -> str | None:
    """Return where a step led: the queue that a message was moved to, or the table it changed."""
    if step == "changed":
        table = str(entry.body["change"]["table"])
        lineage = f" where _transaction_id = '{entry.transaction_key}'"
        return table + (lineage if entry.body["change"]["lineage"] else "")
    target_id = entry.body.get("target")
    here = infos.get(entry.queue_id or "")
    if step == model.REJECTED and here is not None:
        target_id = here.dead_letter_id
    target = infos.get(target_id or "")
    return target.name if target else None


def _step(entry: Entry, path: _Path, ended: Collection[PositionId]) -> str | None:
    """Return what an entry did to a message; None if it is about others.

    Args:
        entry: The entry.
        path: The message before it.
        ended: The places where the entry has ended a claim of the message.
    """
    if entry.kind == model.QUEUE_DROPPED:
        gone = entry.shard == model.FENCE and entry.queue_id in path.standing.values()
        return entry.kind if gone else None
    if entry.kind == model.POSTED:
        here = entry.body["send"] == path.send_id and _holds(entry.ranges, path.offset)
        if not here:
            return None
        path.positions[entry.entry_id] = Position.of(entry)
        path.standing[entry.entry_id] = entry.queue_id
        if model.was_moved(entry.body.get("origin")):
            return "moved"
        return "published" if "exchange" in entry.body else "sent"
    if entry.kind == model.PAYLOAD_ERASING:
        return "erased" if _was_erased(entry, path) else None
    named = path.named(entry)
    if entry.kind == model.CLAIMED and named:
        claim = (entry.queue_id, entry.lane, entry.sequence)
        path.held.update(dict.fromkeys(named, claim))
    if entry.kind == model.PURGE_PENDING and named:
        still = path.held.keys() & set(named)
        path.purged |= still
        path.leaves(set(named) - still)
        return entry.kind if still else model.PURGED  # it had come back already
    if entry.is_settlement:
        return entry.kind if ended else None
    if entry.claim_sequence is not None:  # about all that the claim still holds
        claim = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        told = entry.kind != model.BOUND and claim in path.held.values()
        return entry.kind if told else None
    if entry.is_removal:
        path.leaves(named)
    return entry.kind if named else None


def _was_erased(entry: Entry, path: _Path) -> bool:
    places = erasures.places_of(entry)
    return any(
        send_id == path.send_id and _holds(part, path.offset)
        for (_, send_id), part in places.items()
    )


def _holds(part: Sequence[Range], offset: int) -> bool:
    return bool(ranges.intersection(part, ((offset, offset),)))
