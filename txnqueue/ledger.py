"""Fold the entries of one queue into what is available, in flight and gone (pure).

The state of a queue is a fold over its lanes' dispatch logs and its backlog, in commit
order. A fold is kept between calls and fed with what was appended since.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from txnqueue import model, ranges
from txnqueue.duplicates import Duplicates
from txnqueue.errors import StoreCorrupt
from txnqueue.model import Entry, PositionId, Range


@dataclass(frozen=True, slots=True)
class Position:
    """That some messages stand in a queue: where their payload lies, in which order they go.

    ``origin`` says where a moved or dead-lettered position came from, and why;
    ``message_id`` is the payload's column that names its messages, if one does.
    """

    position_id: PositionId
    queue_id: str
    lane: int
    payload_id: str
    slice: int
    send_id: str
    ranges: tuple[Range, ...]
    priority: int
    available_at_ms: int | None
    expires_at_ms: int | None
    schema_version: int
    origin: Mapping[str, Any] | None
    transaction_key: str | None
    place: tuple[int, int, int]
    posted_at_ms: int
    message_id: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Position:
        """Read a position from the entry that posted it."""
        body = entry.body
        return cls(
            position_id=entry.entry_id,
            queue_id=entry.queue_id or "",
            lane=entry.lane or 0,
            payload_id=body["payload"],
            slice=body["slice"],
            send_id=body["send"],
            ranges=entry.ranges,
            priority=body.get("priority", 4),
            available_at_ms=body.get("available_at"),
            expires_at_ms=body.get("expires_at"),
            schema_version=body.get("schema", 1),
            origin=body.get("origin"),
            transaction_key=entry.transaction_key,
            place=entry.place,
            posted_at_ms=entry.recorded_at_ms,
            message_id=body.get("message_id"),
        )

    def expired(self, now_ms: int) -> bool:
        """Say whether the position's time to live is over at an instant."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def receivable(self, now_ms: int) -> bool:
        """Say whether the position may be delivered at an instant."""
        return (self.available_at_ms or 0) <= now_ms and not self.expired(now_ms)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of messages of one position that can be claimed together.

    ``delivery_count`` counts their ended deliveries, ``former`` is the size of the claim
    that they last came back from (0: never delivered): the next one narrows to a tenth.
    ``not_to`` names consumers that do not want them again.
    """

    position: Position
    first: int
    last: int
    delivery_count: int = 0
    former: int = 0
    not_to: frozenset[str] = frozenset()

    @property
    def history(self) -> tuple[int, int, frozenset[str]]:
        """What a claim's messages have in common: they share what becomes of them next."""
        return (self.delivery_count, self.former, self.not_to)

    def cut(self, first: int, last: int) -> Segment:
        """Take a piece of the run."""
        return Segment(self.position, first, last, *self.history)

    @property
    def size(self) -> int:
        """How many messages the segment holds."""
        return self.last - self.first + 1

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """The original place in the lane: priority, commit order, then offset."""
        version, ordinal, index = self.position.place
        return (-self.position.priority, version, ordinal, index, self.first)


_ORDER = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a claim: a transaction's attempt, or a consumer with a lease."""

    consumer: str
    epoch: int
    key: str | None = None
    attempt: str | None = None
    begun: int | None = None

    @property
    def is_transaction(self) -> bool:
        """Say whether a transaction holds the claim."""
        return self.attempt is not None


@dataclass(slots=True)
class Claim:
    """Messages in flight: what one entry of a lane's log claimed and nobody ended yet.

    ``counts`` says whether its end counts as a delivery; a claim made for a move has
    delivered nothing. ``purging`` are the messages that were purged meanwhile: they go for
    good when they would come back.
    """

    lane: int
    sequence: int
    owner: Owner
    deadline_ms: int
    delivery_count: int
    size: int
    former: int
    items: dict[PositionId, tuple[Range, ...]]
    claimed_at_ms: int
    bound: Owner | None = None
    counts: bool = True
    not_to: frozenset[str] = frozenset()
    purging: dict[PositionId, tuple[Range, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Entry, items: Mapping[PositionId, tuple[Range, ...]]) -> Claim:
        """Read a claim from its entry in a lane's log."""
        body = entry.body
        return cls(
            lane=entry.lane or 0,
            sequence=entry.sequence or 0,
            owner=Owner(
                consumer=body["consumer"],
                epoch=body["epoch"],
                key=entry.transaction_key,
                attempt=entry.attempt,
                begun=entry.begun,
            ),
            deadline_ms=body["deadline"],
            delivery_count=body["delivery_count"],
            size=entry.count or 0,
            former=body["former"],
            items=dict(items),
            claimed_at_ms=entry.recorded_at_ms,
            counts=body.get("counts", True),
            not_to=frozenset(body.get("not_to", ())),
        )

    @property
    def name(self) -> tuple[int, int]:
        """The claim's name and fencing token: its lane and sequence."""
        return (self.lane, self.sequence)

    @property
    def holder(self) -> Owner:
        """Whose decision ends the claim: the transaction it is bound to, else its owner."""
        return self.bound or self.owner

    @property
    def count(self) -> int:
        """How many messages are still in flight under this claim."""
        return sum(map(ranges.count, self.items.values()))

    @property
    def purge_pending(self) -> dict[PositionId, tuple[Range, ...]]:
        """The messages in flight under it that were purged."""
        found = {
            position_id: ranges.intersection(part, self.purging.get(position_id, ()))
            for position_id, part in self.items.items()
        }
        return {position_id: part for position_id, part in found.items() if part}

    def takeable(self, now_ms: int, taker: Owner) -> bool:
        """Say whether somebody may try to take the claim over; clocks decide no more.

        An older epoch of the same consumer id and an older attempt of the same key are
        the taker's own past, and need not be waited for.
        """
        past_self = self.owner.consumer == taker.consumer and self.owner.epoch < taker.epoch
        past_attempt = self.owner.is_transaction and (
            self.owner.key == taker.key and self.owner.attempt != taker.attempt
        )
        return self.deadline_ms <= now_ms or past_self or past_attempt


@dataclass(slots=True)
class LaneFold:
    """One lane as folded: its next sequence number, what is available, what is in flight.

    ``touched`` is the place of the newest position that anything was ever taken of: all
    later ones wait untouched. ``log`` counts the entries since the newest compaction that
    the next one makes superfluous, ``log_from`` is the version of the first of them;
    ``compactable`` says whether all are of kinds that a compaction can stand for.
    """

    lane: int
    next_sequence: int = 1
    available: list[Segment] = field(default_factory=list)
    claims: dict[int, Claim] = field(default_factory=dict)
    touched: tuple[int, int, int] = (-1, -1, -1)
    log: int = 0
    log_from: int = -1
    compactable: bool = True

    def put(self, segment: Segment) -> None:
        """Place a segment where its messages were sent."""
        insort(self.available, segment, key=_ORDER)

    def take(self, position: Position, wanted: tuple[Range, ...]) -> None:
        """Remove messages from the available ones.

        Raises:
            StoreCorrupt: Some of them are not available.
        """
        start = Segment(position, wanted[0][0], wanted[0][0])
        low = bisect_left(self.available, start.order, key=_ORDER)
        if low and self.available[low - 1].position is position:
            low -= 1
        high = low
        found = 0
        rest: list[Segment] = []
        while high < len(self.available):
            segment = self.available[high]
            if segment.position is not position or segment.first > wanted[-1][1]:
                break
            have = ((segment.first, segment.last),)
            left = ranges.difference(have, wanted)
            found += segment.size - ranges.count(left)
            rest.extend(segment.cut(first, last) for first, last in left)
            high += 1
        if found != ranges.count(wanted):
            raise StoreCorrupt(
                f"An entry of lane {self.lane} takes messages of {position.position_id} that are "
                "not available there."
            )
        self.available[low:high] = rest
        self.touched = max(self.touched, position.place)


class QueueFold:
    """The state of one queue at one version of the journal."""

    def __init__(self, queue_id: str, lanes: int, window_ms: int | None = None) -> None:
        """Start from nothing, before the first version.

        Args:
            queue_id: The queue.
            lanes: How many it has.
            window_ms: For how long duplicates are to be told apart; None: not at all.
        """
        self.queue_id = queue_id
        self.version = -1
        self.closed: Entry | None = None
        self.altered: Entry | None = None
        self.lanes = {lane: LaneFold(lane) for lane in range(lanes)}
        self.positions: dict[PositionId, Position] = {}
        self.purged_in_flight = 0
        self._unretired: dict[PositionId, int] = {}
        self.duplicates = None if window_ms is None else Duplicates(window_ms)
        self.left_out = 0

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that the fold is read from."""
        lanes = (model.lane_shard(self.queue_id, lane) for lane in self.lanes)
        return (*lanes, model.backlog_shard(self.queue_id), model.FENCE)

    def advance(self, entries: Iterable[Entry], version: int) -> None:
        """Apply what was appended since, in commit order, and move on to a version."""
        for entry in sorted(entries, key=attrgetter("place")):
            self.apply(entry)
        self.version = max(self.version, version)

    def apply(self, entry: Entry) -> None:
        """Apply one entry."""
        if entry.shard == model.FENCE:
            self._fenced(entry)
            return
        if entry.kind == model.QUEUE_ALTERED:
            self.altered = entry
            return
        lane = self.lanes[entry.lane or 0]
        if entry.sequence is not None:
            lane.next_sequence = max(lane.next_sequence, entry.sequence + 1)
        if entry.kind != model.POSTED:
            lane.log_from = lane.log_from if lane.log else entry.version
            lane.log += 1
        lane.compactable &= entry.kind in model.COMPACTABLE
        if entry.kind == model.POSTED:
            self._posted(lane, entry)
        elif entry.kind == model.COMPACTED:  # says what is known here already
            lane.log = 0
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
            raise StoreCorrupt(f"An entry of kind {entry.kind!r} lies in {entry.shard!r}.")

    def available(self, now_ms: int) -> int:
        """Count what can be received at an instant, by whomever."""
        return sum(segment.size for _, found in self.receivable(now_ms) for segment in found)

    def receivable(
        self, now_ms: int, upto: int | None = None, without: Collection[int] = ()
    ) -> list[tuple[LaneFold, list[Segment]]]:
        """List what can be received at an instant, lane by lane.

        Args:
            now_ms: The instant.
            upto: Leave out what was posted after this version.
            without: Leave out these lanes.
        """
        return [
            (
                lane,
                [
                    segment
                    for segment in lane.available
                    if segment.position.receivable(now_ms)
                    and (upto is None or segment.position.place[0] <= upto)
                ],
            )
            for lane in self.lanes.values()
            if lane.lane not in without
        ]

    def length(self) -> int:
        """Count what stands in the queue: waiting, however long, or in flight."""
        waiting = sum(s.size for lane in self.lanes.values() for s in lane.available)
        return waiting + self.in_flight()

    def in_flight(self) -> int:
        """Count what is claimed and not settled."""
        return sum(claim.count for claim in self.claims())

    def purge_pending(self) -> int:
        """Count what is in flight and was purged: it goes instead of coming back."""
        pending = (claim.purge_pending.values() for claim in self.claims())
        return sum(ranges.count(part) for parts in pending for part in parts)

    def claims(self) -> list[Claim]:
        """List what is in flight, in the order of lanes and sequences."""
        return [claim for lane in self.lanes.values() for claim in lane.claims.values()]

    def lanes_of_others(self, consumer: str) -> set[int]:
        """Find the lanes in which other consumers have messages in flight."""
        return {claim.lane for claim in self.claims() if claim.owner.consumer != consumer}

    def claim(self, lane: int, sequence: int) -> Claim | None:
        """Find a claim that has not ended."""
        return self.lanes[lane].claims.get(sequence)

    def returning(
        self, claim: Claim, *, counted: bool = True, not_to: str | None = None
    ) -> list[Segment]:
        """Write the messages of an ended claim as segments at their original places.

        What was purged meanwhile does not come back.

        Args:
            claim: The claim that ends.
            counted: Whether the delivery counts: it failed, or nobody knows how it went.
            not_to: A consumer that does not want them again.
        """
        counted = counted and claim.counts
        count = claim.delivery_count + (1 if counted else 0)
        former = claim.size if counted else claim.former
        others = claim.not_to if not_to is None else claim.not_to | {not_to}
        return [
            Segment(self.positions[position_id], first, last, count, former, others)
            for position_id, part in claim.items.items()
            for first, last in ranges.difference(part, claim.purging.get(position_id, ()))
        ]

    def know(self, position: Position, messages: int) -> None:
        """Take a position for known, with so many of its messages left in the queue."""
        self.positions[position.position_id] = position
        self._unretired[position.position_id] = messages

    # ------------------------------------------------------------- one method per kind

    def _fenced(self, entry: Entry) -> None:
        """Note that the queue is closing, or dropped with everything in it."""
        if entry.stream != model.queue_stream(self.queue_id):
            return
        self.closed = entry
        if entry.kind == model.QUEUE_DROPPED:
            for lane in self.lanes.values():
                lane.available.clear()
                lane.claims.clear()
            self.positions.clear()
            self._unretired.clear()

    def _posted(self, lane: LaneFold, entry: Entry) -> None:
        position = Position.of(entry)
        self.know(position, ranges.count(position.ranges))
        for first, last in position.ranges:
            lane.put(Segment(position, first, last))
        if self.duplicates is not None:
            self.duplicates.posted(position, entry.body.get("ids"))

    def _claimed(self, lane: LaneFold, entry: Entry) -> None:
        items = self._take_items(lane, entry)
        lane.claims[entry.sequence or 0] = Claim.of(entry, items)

    def _bound(self, lane: LaneFold, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim:
            owner = claim.owner
            claim.bound = Owner(
                owner.consumer, owner.epoch, entry.transaction_key, entry.attempt, entry.begun
            )

    def _lease_extended(self, lane: LaneFold, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim:
            claim.deadline_ms = entry.body["deadline"]

    def _removed(self, lane: LaneFold, entry: Entry) -> None:
        for position_id, part in self._take_items(lane, entry).items():
            if entry.kind == model.DUPLICATE:
                self.left_out += ranges.count(part)
                if self.duplicates is not None:
                    self.duplicates.left_out(position_id, part)
            self._retire(position_id, ranges.count(part))

    def _purge_pending(self, lane: LaneFold, entry: Entry) -> None:
        """Mark what is in flight; what came back since the purge looked goes at once."""
        named = dict(model.unpack_items(entry))
        for claim in lane.claims.values():
            for position_id in claim.items.keys() & named.keys():
                held = ranges.intersection(claim.items[position_id], named[position_id])
                marked = claim.purging.get(position_id, ())
                claim.purging[position_id] = ranges.normalised((*marked, *held))
        back: dict[PositionId, list[Range]] = {}
        for segment in lane.available:
            if segment.position.position_id in named:
                found = back.setdefault(segment.position.position_id, [])
                found.append((segment.first, segment.last))
        for position_id, there in back.items():
            gone = ranges.intersection(there, named[position_id])
            if gone:
                lane.take(self.positions[position_id], gone)
                self._purge(position_id, gone)

    def _settled(self, lane: LaneFold, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        # A settlement in the backlog counts only for a claim that its attempt owns.
        if claim is None or (entry.sequence is None and claim.holder.attempt != entry.attempt):
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
            self._put_back(lane, part, counted=counted, not_to=not_to)
        else:
            for position_id, settled in part.items.items():
                self._retire(position_id, ranges.count(settled))

    def _kept(self, lane: LaneFold, entry: Entry) -> None:
        """Make a lease of what a committed transaction acquired and did not settle."""
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim is None or claim.holder.attempt != entry.attempt:
            return
        claim.owner = Owner(claim.owner.consumer, claim.owner.epoch)
        claim.bound = None
        claim.deadline_ms = entry.body["deadline"]

    # -------------------------------------------------------------------------- helpers

    def _put_back(
        self, lane: LaneFold, claim: Claim, *, counted: bool, not_to: str | None = None
    ) -> None:
        for segment in self.returning(claim, counted=counted, not_to=not_to):
            lane.put(segment)
        for position_id, part in claim.purge_pending.items():
            self._purge(position_id, part)

    def _purge(self, position_id: PositionId, part: tuple[Range, ...]) -> None:
        self.purged_in_flight += ranges.count(part)
        self._retire(position_id, ranges.count(part))

    def _take_items(self, lane: LaneFold, entry: Entry) -> dict[PositionId, tuple[Range, ...]]:
        for sequence in entry.body.get("supersedes", ()):
            ended = lane.claims.pop(sequence, None)
            if ended:
                self._put_back(lane, ended, counted=True)
        items: dict[PositionId, tuple[Range, ...]] = dict(model.unpack_items(entry))
        for position_id, part in items.items():
            position = self.positions.get(position_id)
            if position is None:
                raise StoreCorrupt(f"Lane {lane.lane} names the unknown position {position_id}.")
            lane.take(position, part)
        return items

    def _retire(self, position_id: PositionId, messages: int) -> None:
        left = self._unretired[position_id] - messages
        if left:
            self._unretired[position_id] = left
        else:
            del self._unretired[position_id], self.positions[position_id]
            if self.duplicates is not None:
                self.duplicates.retired(position_id)


@dataclass(slots=True)
class KeyState:
    """What the journal says of one transaction key, over all its attempts.

    ``heuristics`` are the decisions of an operator that nobody has forgotten yet; ``branch``
    is what sessions wrote that share the transaction; ``horizon`` is the version below which
    nobody decides any more, as far as was read.
    """

    key: str
    horizon: int = -1
    decisions: dict[str, Entry] = field(default_factory=dict)
    prepared: dict[str, Entry] = field(default_factory=dict)
    heuristics: dict[str, Entry] = field(default_factory=dict)
    branch: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, key: str, entries: Iterable[Entry], horizon: int = -1) -> KeyState:
        """Fold the entries of a transaction shard into the state of one key."""
        state = cls(key, horizon)
        for entry in sorted(entries, key=attrgetter("place")):
            if entry.stream != key or entry.attempt is None:
                continue
            if entry.kind == model.PREPARED:
                state.prepared[entry.attempt] = entry
            elif entry.kind in model.DECISIONS:
                state.decisions.setdefault(entry.attempt, entry)
            elif entry.kind == model.HEURISTIC:
                state.heuristics[entry.attempt] = entry
            elif entry.kind == model.FORGOTTEN:
                state.heuristics.pop(entry.attempt, None)
            elif entry.kind in model.BRANCH:
                state.branch.append(entry)
            else:
                raise StoreCorrupt(f"An entry of kind {entry.kind!r} lies in {entry.shard!r}.")
        return state

    @property
    def committed(self) -> Entry | None:
        """The decision that committed the key, if any attempt of it was."""
        return next((e for e in self.decisions.values() if e.kind == model.COMMITTED), None)

    @property
    def in_doubt(self) -> Entry | None:
        """The prepared entry that waits for a decision, if there is one."""
        return next((e for a, e in self.prepared.items() if a not in self.decisions), None)

    def rolled_back(self) -> list[str]:
        """List the attempts that were rolled back."""
        return [a for a, e in self.decisions.items() if e.kind == model.ROLLED_BACK]

    def decided(self, attempt: str) -> str | None:
        """Say how an attempt ended: committed, rolled_back, or None while undecided."""
        entry = self.decisions.get(attempt)
        return entry.kind if entry else None

    def is_over(self, owner: Owner) -> bool:
        """Say whether an attempt of the key has ended for ever.

        Below the horizon nobody decides any more but what was prepared: there an attempt
        without a decision never happened, and a decision may have left for the archive.
        """
        attempt = owner.attempt or ""
        if attempt in self.decisions:
            return True
        below = owner.begun is not None and owner.begun < self.horizon
        return below and attempt not in self.prepared
