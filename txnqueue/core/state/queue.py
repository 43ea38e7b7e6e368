"""Fold the entries of one queue into its available messages and its claims (pure).

The state of a queue is a fold over its lanes' dispatch logs and its backlog, in commit
order. A fold is kept between calls and advanced by the entries appended since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter

from txnqueue.core import custody, model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.redelivery import Redelivery
from txnqueue.core.state.duplicates import Duplicates
from txnqueue.core.state.positions import (
    AttemptOwner,
    Claim,
    Errors,
    Position,
    Segment,
    forget_error,
    held_back,
    in_turn,
    note_error,
)
from txnqueue.errors import StoreCorrupt

_ORDER = attrgetter("order")


@dataclass(slots=True)
class LaneState:
    """The fold of one lane: its next sequence number, its available messages, its claims.

    ``touched`` is the place of the newest position from which messages were ever taken; all later
    positions are untouched. ``log`` counts the entries since the newest compaction that the next
    one makes superfluous, ``log_from`` is the version of the first of them; ``compactable`` says
    whether all are of kinds that a compaction can replace. ``left_out`` counts duplicates;
    ``duplicates`` holds those of positions posted after ``recent_after``, with the instant of
    posting: the duplicate window needs no older ones. ``errors`` holds the error of the last
    delivery of messages that are in the queue.
    """

    lane: int
    next_sequence: int = 1
    available: list[Segment] = field(default_factory=list)
    claims: dict[int, Claim] = field(default_factory=dict)
    touched: tuple[int, int, int] = (-1, -1, -1)
    log: int = 0
    log_from: int = -1
    compactable: bool = True
    left_out: int = 0
    duplicates: dict[PositionId, tuple[int, tuple[Range, ...]]] = field(default_factory=dict)
    recent_after: int = -1
    errors: dict[PositionId, Errors] = field(default_factory=dict)

    def leave_out(self, position: Position, part: tuple[Range, ...]) -> None:
        """Record messages that an entry removed as duplicates."""
        _, before = self.duplicates.get(position.position_id, (0, ()))
        both = ranges.added(before, part)
        self.duplicates[position.position_id] = (position.posted_at_ms, both)
        self.left_out += ranges.count(part)

    def forget_duplicates(self, upto_ms: int) -> None:
        """Forget the duplicates of positions posted by an instant: the window has passed them."""
        self.recent_after = upto_ms
        kept = self.duplicates.items()
        self.duplicates = {one: found for one, found in kept if found[0] > self.recent_after}

    def put(self, segment: Segment) -> None:
        """Insert a segment at its original place among the available ones."""
        insort(self.available, segment, key=_ORDER)

    def take(self, position: Position, wanted: tuple[Range, ...]) -> None:
        """Remove messages from the available ones.

        Raises:
            StoreCorrupt: Some of the messages are not available.
        """
        low, high = self._run(position, wanted)
        found = 0
        rest: list[Segment] = []
        for segment in self.available[low:high]:
            have = ((segment.first, segment.last),)
            left = ranges.difference(have, wanted)
            found += segment.size - ranges.count(left)
            rest.extend(segment.cut(first, last) for first, last in left)
        if found != ranges.count(wanted):
            raise StoreCorrupt(
                f"An entry of lane {self.lane} takes messages of {position.position_id} that are "
                "not available there: stop writing to the store, and keep it as it is."
            )
        self.available[low:high] = rest
        self.touched = max(self.touched, position.place)

    def standing(self, position: Position, wanted: tuple[Range, ...]) -> Iterator[Segment]:
        """Yield those of some messages of a position that are available."""
        low, high = self._run(position, wanted)
        for segment in self.available[low:high]:
            have = ((segment.first, segment.last),)
            for first, last in ranges.intersection(have, wanted):
                yield segment.cut(first, last)

    def _run(self, position: Position, wanted: tuple[Range, ...]) -> tuple[int, int]:
        """Find by bisection the slice of available segments that may hold some messages."""
        start = Segment(position, wanted[0][0], wanted[0][0])
        low = bisect_left(self.available, start.order, key=_ORDER)
        if low and self.available[low - 1].position is position:
            low -= 1
        high = low
        while high < len(self.available):
            segment = self.available[high]
            if segment.position is not position or segment.first > wanted[-1][1]:
                break
            high += 1
        return low, high


class QueueState:
    """The state of one queue at one version of the journal."""

    def __init__(
        self,
        queue_id: str,
        lanes: int,
        window_ms: int | None = None,
        mine: custody.Custody | None = None,
    ) -> None:
        """Start from nothing, before the first version.

        Args:
            queue_id: The queue.
            lanes: The number of its lanes.
            window_ms: The duplicate window; None delivers duplicates.
            mine: Checks that this thread may touch the fold; None if no other thread can.
        """
        self._mine = mine
        self.queue_id = queue_id
        self.version = -1
        self.closed: Entry | None = None
        self.altered: Entry | None = None
        self._lanes = {lane: LaneState(lane) for lane in range(lanes)}
        self._positions: dict[PositionId, Position] = {}
        self.purged_in_flight = 0
        self._unretired: dict[PositionId, int] = {}
        self._newest_clock_ms = 0
        self._read_ms = 0
        self.window_ms = window_ms
        self.duplicates = None if window_ms is None else Duplicates(window_ms)

    @property
    def lanes(self) -> dict[int, LaneState]:
        """The lanes, by their numbers."""
        custody.check(self._mine, "a fold")
        return self._lanes

    @property
    def positions(self) -> dict[PositionId, Position]:
        """The positions with messages left in the queue, by id."""
        custody.check(self._mine, "a fold")
        return self._positions

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that the fold is read from."""
        lanes = (model.lane_shard(self.queue_id, lane) for lane in self._lanes)
        return (*lanes, model.backlog_shard(self.queue_id), model.FENCE)

    def advance(self, entries: Iterable[Entry], version: int) -> None:
        """Apply the entries appended since, in commit order, and move on to a version."""
        custody.check(self._mine, "a fold")
        for entry in sorted(entries, key=attrgetter("place")):
            self.apply(entry)
        self.version = max(self.version, version)

    def apply(self, entry: Entry) -> None:
        """Apply one entry."""
        self._note_clock(entry.recorded_at_ms, entry.version)
        if entry.shard == model.FENCE:
            self._fenced(entry)
            return
        if entry.kind == model.QUEUE_ALTERED:
            self.altered = entry
            return
        lane = self._lanes[entry.lane or 0]
        if entry.sequence is not None:
            lane.next_sequence = max(lane.next_sequence, entry.sequence + 1)
        if entry.kind != model.POSTED:
            lane.log_from = lane.log_from if lane.log else entry.version
            lane.log += 1
        lane.compactable &= entry.kind in model.COMPACTABLE
        if entry.kind == model.POSTED:
            self._posted(lane, entry)
        elif entry.kind == model.COMPACTED:  # the fold already has the state that it records
            lane.log = 0
            lane.forget_duplicates(entry.body.get("recent_after", -1))
            if self.duplicates is not None:
                self.duplicates.forget(lane.lane, lane.recent_after)
        elif entry.kind == model.CLAIMED:
            self._claimed(lane, entry)
        elif entry.kind == model.BOUND:
            self._bound(lane, entry)
        elif entry.kind == model.LEASE_EXTENDED:
            self._lease_extended(lane, entry)
        elif entry.kind == model.PURGE_PENDING:
            self._purge_pending(lane, entry)
        elif entry.is_removal:
            self._removed(lane, entry)
        elif entry.is_settlement:
            self._settled(lane, entry)
        elif entry.kind == model.KEPT:
            self._kept(lane, entry)
        else:
            raise StoreCorrupt(
                f"An entry of kind {entry.kind!r} lies in {entry.shard!r}: stop writing to the "
                "store, and keep it as it is."
            )

    def available(self, now_ms: int, rules: Redelivery) -> int:
        """Count the messages that some consumer can receive at an instant."""
        found = self.receivable(now_ms, rules)
        return sum(segment.size for _, segments in found for segment in segments)

    def receivable(
        self,
        now_ms: int,
        rules: Redelivery,
        upto: int | None = None,
        without: Collection[int] = (),
        *,
        in_order: bool = False,
    ) -> list[tuple[LaneState, list[Segment]]]:
        """List the messages that can be received at an instant, lane by lane.

        Args:
            now_ms: The instant.
            rules: The queue's rules of redelivery.
            upto: Leave out messages posted after this version.
            without: Leave out these lanes.
            in_order: Leave out messages behind one that waits because it failed.
        """
        return [
            (
                lane,
                [
                    segment
                    for segment in in_turn(lane.available, now_ms, rules, in_order=in_order)
                    if segment.receivable(now_ms, rules) and segment.by(upto)
                ],
            )
            for lane in self.lanes.values()
            if lane.lane not in without
        ]

    def held_back(
        self, now_ms: int, rules: Redelivery, upto: int | None = None, *, in_order: bool = False
    ) -> list[tuple[LaneState, list[Segment]]]:
        """List the messages that failures keep from being received at an instant, lane by lane.

        Args:
            now_ms: The instant.
            rules: The queue's rules of redelivery.
            upto: Leave out messages posted after this version.
            in_order: Include messages behind one that waits because it failed.
        """
        return [
            (lane, [segment for segment in kept if segment.by(upto)])
            for lane in self.lanes.values()
            if (kept := list(held_back(lane.available, now_ms, rules, in_order=in_order)))
        ]

    def length(self) -> int:
        """Count all messages in the queue: waiting, delayed ones included, or in flight."""
        waiting = sum(s.size for lane in self.lanes.values() for s in lane.available)
        return waiting + self.in_flight()

    @property
    def left_out(self) -> int:
        """The number of messages removed as duplicates."""
        return sum(lane.left_out for lane in self.lanes.values())

    def in_flight(self) -> int:
        """Count the messages that are claimed and not settled."""
        return sum(claim.count for claim in self.claims())

    def purge_pending(self) -> int:
        """Count the messages in flight that were purged: they are removed if they would return."""
        pending = (claim.purge_pending.values() for claim in self.claims())
        return sum(ranges.count(part) for parts in pending for part in parts)

    def claims(self) -> list[Claim]:
        """List the claims that have not ended, in the order of lanes and sequences."""
        return [claim for lane in self.lanes.values() for claim in lane.claims.values()]

    def claim(self, lane: int, sequence: int) -> Claim | None:
        """Find a claim by its name; None if it has ended."""
        return self.lanes[lane].claims.get(sequence)

    def returning(
        self,
        claim: Claim,
        failed_at_ms: int,
        *,
        counted: bool = True,
        not_to: str | None = None,
    ) -> list[Segment]:
        """Return the messages of an ended claim as segments at their original places.

        Messages that were purged meanwhile do not come back.

        Args:
            claim: The claim that ends.
            failed_at_ms: When its delivery ended; used only if the delivery counts.
            counted: Whether the delivery counts: it failed, or its end is unknown.
            not_to: A consumer to which the messages are undeliverable from now on.
        """
        counted = counted and claim.counts
        count = claim.delivery_count + (1 if counted else 0)
        former = claim.size if counted else claim.former
        failed_at_ms = failed_at_ms if counted else 0
        others = claim.not_to if not_to is None else claim.not_to | {not_to}
        return [
            Segment(self.positions[position_id], first, last, count, former, others, failed_at_ms)
            for position_id, part in claim.items.items()
            for first, last in ranges.difference(part, claim.purging.get(position_id, ()))
        ]

    def know(self, position: Position, messages: int) -> None:
        """Record a position, with the number of its messages left in the queue."""
        self._positions[position.position_id] = position
        self._unretired[position.position_id] = messages

    def note_began(self, claim: Claim) -> None:
        """Record a claim's beginning as a clock seen, so that smaller clocks are noticed."""
        self._newest_clock_ms = max(self._newest_clock_ms, claim.began_by_ms)

    def seen_at(self, now_ms: int, before_ms: int | None = None) -> None:
        """Record that all claims have begun by a reader's clock, and later ones not before.

        Args:
            now_ms: The clock after the reading; its value before the reading may be too early.
            before_ms: The clock before the reading, by which claims that were not found had not
                begun; as after it when omitted.
        """
        if now_ms < self._newest_clock_ms:
            self._note_clock(now_ms, self.version)
        if now_ms < self._read_ms:  # set back: what it showed before is no bound by what it shows
            for claim in self.claims():
                claim.began_from_ms = min(claim.began_from_ms, now_ms)
        self._read_ms = now_ms if before_ms is None else min(now_ms, before_ms)

    def _note_clock(self, clock_ms: int, version: int) -> None:
        """Record that the claims of a version and earlier ones began by a clock's value.

        Clocks rarely go back from one entry to the next, so there is mostly nothing to do.
        """
        if 0 < clock_ms < self._newest_clock_ms:
            ahead = [claim for claim in self.claims() if claim.began_by_ms > clock_ms]
            for claim in ahead:
                if claim.version <= version:
                    claim.began_by_ms = clock_ms
            clock_ms = max([clock_ms, *(claim.began_by_ms for claim in ahead)])
        elif clock_ms < self._newest_clock_ms:
            return
        self._newest_clock_ms = clock_ms

    # ------------------------------------------------------------- one method per kind

    def _fenced(self, entry: Entry) -> None:
        """Record that the queue is closing, or was dropped with all its messages."""
        if entry.stream != model.queue_stream(self.queue_id):
            return
        self.closed = entry
        if entry.kind == model.QUEUE_DROPPED:
            for lane in self._lanes.values():
                lane.available.clear()
                lane.claims.clear()
                lane.errors.clear()
            self._positions.clear()
            self._unretired.clear()

    def _posted(self, lane: LaneState, entry: Entry) -> None:
        position = Position.of(entry)
        self.know(position, ranges.count(position.ranges))
        for first, last in position.ranges:
            lane.put(Segment(position, first, last))
        if self.duplicates is not None:
            self.duplicates.posted(position, entry.body.get("ids"))

    def _claimed(self, lane: LaneState, entry: Entry) -> None:
        claim = Claim.of(entry, self._take_items(lane, entry))
        claim.began_from_ms = self._read_ms
        lane.claims[claim.sequence] = claim

    def _bound(self, lane: LaneState, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim:
            claim.bound = AttemptOwner.of(entry).claiming_as(claim.owner)

    def _lease_extended(self, lane: LaneState, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim:
            claim.hold(entry, self._read_ms)

    def _removed(self, lane: LaneState, entry: Entry) -> None:
        for position_id, part in self._take_items(lane, entry).items():
            if entry.kind == model.DUPLICATE:
                lane.leave_out(self._positions[position_id], part)
                if self.duplicates is not None:
                    self.duplicates.left_out(position_id, part)
            self._retire(lane, position_id, part)

    def _purge_pending(self, lane: LaneState, entry: Entry) -> None:
        """Mark messages in flight as purged; remove those that came back since the purge's read."""
        named = dict(model.unpack_items(entry))
        for claim in lane.claims.values():
            for position_id, part in claim.items.items():  # in an order that a compaction repeats
                if position_id in named:
                    held = ranges.intersection(part, named[position_id])
                    marked = claim.purging.get(position_id, ())
                    claim.purging[position_id] = ranges.added(marked, held)
        back: dict[PositionId, list[Range]] = {}
        for segment in lane.available:
            if segment.position.position_id in named:
                found = back.setdefault(segment.position.position_id, [])
                found.append((segment.first, segment.last))
        for position_id, there in back.items():
            gone = ranges.intersection(there, named[position_id])
            if gone:
                lane.take(self._positions[position_id], gone)
                self._purge(lane, position_id, gone)

    def _settled(self, lane: LaneState, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        # A settlement in the backlog counts only for a claim that its attempt owns.
        if claim is None or (entry.sequence is None and not claim.ended_by(entry)):
            return
        named = dict(model.unpack_items(entry)) or dict(claim.items)
        part = replace(
            claim,
            items={
                position_id: common
                for position_id, wanted in named.items()
                if (common := ranges.intersection(claim.items.get(position_id, ()), wanted))
            },
        )
        for position_id, settled in part.items.items():
            rest = ranges.difference(claim.items[position_id], settled)
            if rest:
                claim.items[position_id] = rest
            else:
                del claim.items[position_id]
        if not claim.items:
            del lane.claims[claim.sequence]
        if entry.kind == model.RELEASED:
            counted, not_to = bool(entry.body.get("counted")), entry.body.get("not_to")
            if counted and claim.counts and entry.reason is not None:
                note_error(lane.errors, part.items, entry.reason)
            failed_at_ms = entry.body.get("failed_at", entry.recorded_at_ms)
            self._put_back(lane, part, failed_at_ms, counted=counted, not_to=not_to)
        else:
            for position_id, settled in part.items.items():
                self._retire(lane, position_id, settled)

    def _kept(self, lane: LaneState, entry: Entry) -> None:
        """Put under a lease the messages that a committed attempt acquired and did not settle.

        A commit reads no lane: the lease may have been extended while it was on its way, or since
        it was prepared. A lease that ends later stays as it is; one by a clock that was ahead only
        seems to.
        """
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim is None or not claim.ended_by(entry):
            return
        claim.lease()
        if entry.body["deadline"] >= claim.recorded_end_ms(entry.recorded_at_ms):
            claim.hold(entry, self._read_ms)

    # -------------------------------------------------------------------------- helpers

    def _put_back(
        self,
        lane: LaneState,
        claim: Claim,
        failed_at_ms: int,
        *,
        counted: bool = True,
        not_to: str | None = None,
    ) -> None:
        for segment in self.returning(claim, failed_at_ms, counted=counted, not_to=not_to):
            lane.put(segment)
        for position_id, part in claim.purge_pending.items():
            self._purge(lane, position_id, part)

    def _purge(self, lane: LaneState, position_id: PositionId, part: tuple[Range, ...]) -> None:
        self.purged_in_flight += ranges.count(part)
        self._retire(lane, position_id, part)

    def _supersede(self, lane: LaneState, entry: Entry) -> None:
        """End the claims that an entry supersedes; repeating it has no effect."""
        for sequence, ended_at_ms in model.superseded(entry):
            ended = lane.claims.pop(sequence, None)
            if ended:
                self._put_back(lane, ended, ended_at_ms)

    def _take_items(self, lane: LaneState, entry: Entry) -> dict[PositionId, tuple[Range, ...]]:
        self._supersede(lane, entry)
        items: dict[PositionId, tuple[Range, ...]] = dict(model.unpack_items(entry))
        for position_id, part in items.items():
            position = self._positions.get(position_id)
            if position is None:
                raise StoreCorrupt(
                    f"Lane {lane.lane} names the unknown position {position_id}: stop "
                    "writing to the store, and keep it as it is."
                )
            lane.take(position, part)
        return items

    def _retire(self, lane: LaneState, position_id: PositionId, part: tuple[Range, ...]) -> None:
        forget_error(lane.errors, position_id, part)
        left = self._unretired[position_id] - ranges.count(part)
        if left:
            self._unretired[position_id] = left
        else:
            del self._unretired[position_id], self._positions[position_id]
            if self.duplicates is not None:
                self.duplicates.retired(position_id)
