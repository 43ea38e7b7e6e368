"""A replay of messages entry by entry, independent of the fold that the library works with.

The replay uses neither the fold nor compactions: it follows every message from where it was posted
to where it went. Messages that have left are forgotten, so it holds only present ones.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, Parts, PositionId, Range
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState
from txnqueue.core.state import compaction as compactions
from txnqueue.errors import StoreCorrupt
from txnqueue.reports.consistency import CheckedPromise, Problems

Pins = Mapping[str, Mapping[int, Iterable[int]]]
"""Up to which versions the compactions of each lane of each queue speak, in their order."""
_ClaimName = tuple[int | None, int | None]
_Start = Callable[[QueueState, Iterable[Entry]], list[Entry]]


class Replay:
    """All queues of a store, entry by entry in commit order."""

    def __init__(
        self, infos: Mapping[str, QueueInfo], pins: Pins, beginning: int, problems: Problems
    ) -> None:
        """Begin before the first entry.

        Args:
            infos: All queues that there ever were, by id.
            pins: What compactions are to come, from the beginning on.
            beginning: Of what came before this version not all is known.
            problems: Takes what is wrong.
        """
        self._queues = {
            queue_id: _Queue(info, pins.get(queue_id, {}), beginning, problems)
            for queue_id, info in infos.items()
        }
        self._others = _Messages(problems)

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        queue = self._queues.get(entry.queue_id or "")
        if queue is not None:
            queue.see(entry)
        else:  # of a queue that was never created
            self._others.see(entry)

    def claims(self) -> list[CheckedPromise]:
        """Tell what was found of all messages, and of the compactions of all lanes."""
        queues = self._queues.values()
        counted = [*(queue.messages for queue in queues), self._others]
        standing = [(queue, part) for queue in queues for part in queue.standing().items()]
        both = sum(
            ranges.count(ranges.difference(part, queue.messages.left.get(position_id, ())))
            for queue, (position_id, part) in standing
        )
        found = sum(ranges.count(part) for _, (_, part) in standing)
        found += sum(one.gone for one in counted)
        total, twice = sum(one.posted for one in counted), sum(one.twice for one in counted)
        return [
            CheckedPromise("messages posted = waiting + in flight + gone", found, total),
            CheckedPromise("messages both here and gone", both, 0),
            CheckedPromise("messages retired twice", twice, 0),
            CheckedPromise(
                "compactions that hold",
                sum(queue.compactions.right for queue in queues),
                sum(queue.compactions.expected for queue in queues),
            ),
        ]


class _Queue:
    """One queue, told three times: by message, by the fold, and by its compactions."""

    def __init__(
        self, info: QueueInfo, pins: Mapping[int, Iterable[int]], beginning: int, problems: Problems
    ) -> None:
        self.messages = _Messages(problems)
        self.compactions = _Compactions(info, pins, beginning, problems)
        self._fold = QueueState(info.queue_id, info.settings.lanes)
        self._shards = frozenset(self._fold.shards)
        self._problems = problems
        self._broken = False

    def see(self, entry: Entry) -> None:
        self.messages.see(entry)
        if entry.shard not in self._shards:
            return
        self.compactions.see(entry)
        if self._broken:
            return
        try:
            self._fold.apply(entry)
        except StoreCorrupt as error:
            self._broken = True
            self._problems.add(str(error))

    def standing(self) -> Parts:
        """Read from the fold which messages are waiting or in flight."""
        lie: dict[PositionId, list[Range]] = defaultdict(list)
        for lane in self._fold.lanes.values():
            for segment in lane.available:
                lie[segment.position.position_id].append((segment.first, segment.last))
        for claim in self._fold.claims():
            for position_id, part in claim.items.items():
                lie[position_id] += part
        return _normalised(lie)


class _Messages:
    """Which messages of a queue are left, and how many have gone.

    Attributes:
        left: What is waiting or in flight, by the position where it was posted.
        posted: How many messages were posted.
        gone: How many of them have gone.
        twice: How often messages went that were not there.
    """

    def __init__(self, problems: Problems) -> None:
        self.left: Parts = {}
        self.posted = self.gone = self.twice = 0
        self._claimed: dict[_ClaimName, tuple[Entry, Parts]] = {}
        self._bound: dict[_ClaimName, str | None] = {}
        self._purging: Parts = {}
        self._problems = problems

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        name = (entry.claim_lane, entry.claim_sequence)
        if entry.kind == model.POSTED:
            self.posted += ranges.count(entry.ranges)
            _add(self.left, entry.entry_id, entry.ranges)
        elif entry.kind == model.QUEUE_DROPPED and entry.shard == model.FENCE:
            self._dropped()
        elif entry.kind == model.CLAIMED:
            items = dict(model.unpack_items(entry))
            self._claimed[entry.lane, entry.sequence] = (entry, items)
        elif entry.kind == model.BOUND:
            if name in self._claimed:
                self._bound[name] = entry.attempt
        elif entry.kind == model.PURGE_PENDING:
            self._purged(entry)
        elif entry.is_removal:
            self._retire(model.unpack_items(entry), entry)
        elif entry.is_settlement and name in self._claimed:
            self._settled(name, entry)
        if entry.kind == model.CLAIMED or entry.is_removal:
            for sequence in entry.body.get("supersedes", ()):
                ended = self._end(entry.lane, sequence)
                self._back(ended[1] if ended else {}, entry)

    def _dropped(self) -> None:
        """Everything that is left goes with the queue."""
        self.gone += sum(map(ranges.count, self.left.values()))
        self.left.clear()
        self._claimed.clear()
        self._bound.clear()
        self._purging.clear()

    def _settled(self, name: _ClaimName, entry: Entry) -> None:
        claim, items = self._claimed[name]
        if entry.sequence is None and self._bound.get(name, claim.attempt) != entry.attempt:
            return  # not the holder's: it does not count
        meant = dict(model.unpack_items(entry)) or dict(items)
        for position_id, part in meant.items():
            mine = ranges.intersection(items.get(position_id, ()), part)
            items[position_id] = ranges.difference(items.get(position_id, ()), part)
            if entry.kind == model.RELEASED:
                self._back({position_id: mine}, entry)
            elif mine:
                self._retire([(position_id, mine)], entry)
        if not any(items.values()):
            self._end(*name)

    def _purged(self, entry: Entry) -> None:
        """What is in flight goes when it comes back, and what has come back already goes now."""
        lie: dict[PositionId, list[Range]] = defaultdict(list)
        for (lane, _), (_, items) in self._claimed.items():
            if lane == entry.lane:
                for position_id, part in items.items():
                    lie[position_id] += part
        held = _normalised(lie)
        for position_id, part in model.unpack_items(entry):
            mine = ranges.intersection(part, held.get(position_id, ()))
            _add(self._purging, position_id, mine)
            here = ranges.intersection(part, self.left.get(position_id, ()))
            self._retire([(position_id, ranges.difference(here, mine))], entry)

    def _end(self, lane: int | None, sequence: int | None) -> tuple[Entry, Parts] | None:
        self._bound.pop((lane, sequence), None)
        return self._claimed.pop((lane, sequence), None)

    def _back(self, items: Parts, entry: Entry) -> None:
        """What comes back goes, if it was purged meanwhile."""
        for position_id, part in items.items():
            purging = self._purging.get(position_id, ())
            going = ranges.intersection(part, purging)
            if going:
                _keep(self._purging, position_id, ranges.difference(purging, going))
                self._retire([(position_id, going)], entry)

    def _retire(self, items: Iterable[tuple[PositionId, tuple[Range, ...]]], entry: Entry) -> None:
        for position_id, part in items:
            left = self.left.get(position_id, ())
            here = ranges.intersection(part, left)
            if ranges.difference(part, left):
                self.twice += 1
                text = f"retired twice, or never posted: {position_id} by {entry.kind}"
                self._problems.add(f"{text} in {entry.append_id}")
            self.gone += ranges.count(here)
            _keep(self.left, position_id, ranges.difference(left, here))
            if position_id not in self.left:
                self._purging.pop(position_id, None)


class _Compactions:
    """What each compaction says is what the entries before it make of its lane.

    Before the history's beginning not all entries are known, and what the last compaction said
    then stands for them.
    """

    def __init__(
        self, info: QueueInfo, pins: Mapping[int, Iterable[int]], beginning: int, problems: Problems
    ) -> None:
        self._info = info
        self._pins = {lane: deque(found) for lane, found in pins.items()}
        self._beginning = beginning
        self._problems = problems
        self._fold = QueueState(info.queue_id, info.settings.lanes)
        self._old: dict[int, list[Entry]] = {}
        self._coming: dict[int, deque[Entry]] = {}
        self._broken: set[int] = set()
        self.right = self.expected = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry; it counts from the next compaction on whose pin it is in."""
        lane = entry.lane
        if lane is None or not self._pins.get(lane):
            return  # no compaction of it is to come
        if entry.version < self._beginning:
            kept = self._old.setdefault(lane, [])
            if entry.kind == model.COMPACTED:
                kept[:] = _needed(kept, entry)
            kept.append(entry)
            return
        if entry.kind == model.COMPACTED:
            self.expected += 1
            self.right += self._holds(lane, entry)
            self._pins[lane].popleft()
        self._coming.setdefault(lane, deque()).append(entry)
        self._advance(lane)

    def _holds(self, lane: int, compaction: Entry) -> bool:
        pin, fold = compaction.body["pin"], self._fold
        if pin < self._beginning - 1:  # what came up to the beginning is still to come
            fold = QueueState(self._info.queue_id, self._info.settings.lanes)
            old = (e for e in self._old.get(lane, ()) if e.version <= pin)
            self._apply(lane, fold, compactions.start, old)
        else:
            self._advance(lane)
        if lane in self._broken:
            return False
        if _says(compaction.body, _told(fold, lane, compaction)):
            return True
        self._problems.add(f"the compaction {compaction.entry_id} is not what came before it")
        return False

    def _advance(self, lane: int) -> None:
        """Apply what the next compaction says; what comes after its pin waits."""
        coming, pins = self._coming.get(lane, deque()), self._pins[lane]
        if not pins:
            coming.clear()
        elif pins[0] >= self._beginning - 1 and lane in self._old:
            self._apply(lane, self._fold, compactions.start, self._old.pop(lane))
        while coming and coming[0].version <= pins[0]:
            self._apply(lane, self._fold, None, [coming.popleft()])

    def _apply(
        self, lane: int, fold: QueueState, start: _Start | None, entries: Iterable[Entry]
    ) -> None:
        if lane in self._broken:
            return
        try:
            left = start(fold, entries) if start else entries
            for entry in sorted(left, key=lambda one: one.place):
                fold.apply(entry)
        except StoreCorrupt as error:
            self._broken.add(lane)
            self._problems.add(str(error))


def _needed(entries: Iterable[Entry], compaction: Entry) -> list[Entry]:
    """Keep of a lane's entries what a fold that starts at a compaction needs."""
    named = compactions.names(compaction)
    return [
        e
        for e in entries
        if compactions.is_after(e, compaction) or (e.kind == model.POSTED and e.entry_id in named)
    ]


def _told(fold: QueueState, number: int, compaction: Entry) -> dict[str, Any]:
    """Write what a compaction of a lane had to say."""
    recent_after = compaction.body.get("recent_after")
    return compactions.body(fold.lanes[number], compaction.body["pin"], recent_after)


def _comparable(body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a compaction what depends on the version, or the process, that wrote it.

    Older versions say less of when leases began, when their consumers were opened, and of what
    failed, and each process of theirs said what is purged in an order of its own.
    """
    clocks = ("began_at", "began_by", "opened")
    claims = [
        {k: v for k, v in one.items() if k not in clocks} | {"purging": sorted(one["purging"])}
        for one in body["in_flight"]
    ]
    kept = {k: v for k, v in body.items() if k not in ("failures", "errors")}
    return {**kept, "in_flight": claims}


def _says(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a compaction is right.

    It may follow one of an older version, which did not say when what failed, or by what error.
    """
    failed, known = (set(map(tuple, body.get("failures", ()))) for body in (found, expected))
    by, known_by = _errors_of(found), _errors_of(expected)
    found, expected = _comparable(found), _comparable(expected)
    return (
        failed <= known
        and not any(ranges.difference(part, known_by.get(one, ())) for one, part in by.items())
        and found == expected
    )


def _errors_of(body: Mapping[str, Any]) -> dict[tuple[PositionId, str], tuple[Range, ...]]:
    """Read which messages a compaction says failed last, by position and error."""
    return {
        ((append_id, index), text): tuple((first, last) for first, last in parts)
        for append_id, index, errors in body.get("errors", ())
        for parts, text in errors
    }


def _normalised(lie: Mapping[PositionId, Iterable[Range]]) -> Parts:
    return {position_id: ranges.normalised(part) for position_id, part in lie.items()}


def _add(parts: Parts, position_id: PositionId, part: tuple[Range, ...]) -> None:
    _keep(parts, position_id, ranges.added(parts.get(position_id, ()), part))


def _keep(parts: Parts, position_id: PositionId, part: tuple[Range, ...]) -> None:
    """Set a part; nothing of it is nothing to remember."""
    if part:
        parts[position_id] = part
    else:
        parts.pop(position_id, None)
