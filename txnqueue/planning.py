"""Plan what an append shall say: claims, take-overs, seals, settlements (pure).

A plan is made from folds read at one version. Whether it still holds when the append
lands is what its conditions say.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnqueue import model, ranges
from txnqueue.ledger import Claim, LaneFold, Owner, Position, Segment
from txnqueue.model import Condition, Entry, Item, Range
from txnqueue.sifting import LeftOut, firsts

NARROWING = 10
REMOVALS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Entries to append and the conditions under which they may land."""

    entries: tuple[Entry, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __add__(self, other: Plan) -> Plan:
        """Join two plans into one append: the union of what both read, expect and write."""
        return Plan(self.entries + other.entries, self.conditions + other.conditions)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who writes, in which run, when: what every entry of an append says of its author."""

    actor: str
    run_id: str | None
    now_ms: int

    def columns(self) -> dict[str, Any]:
        """The columns that every entry gets."""
        return {"actor": self.actor, "run_id": self.run_id, "recorded_at_ms": self.now_ms}


# -------------------------------------------------------------------------------- claims


@dataclass(slots=True)
class Selection:
    """The messages that one claim takes from one lane, and what it finds to take out of it.

    ``ending``: claims that are over hold messages that were purged, which go with them.
    """

    lane: int
    sequence: int
    segments: list[Segment] = field(default_factory=list)
    dead: list[Segment] = field(default_factory=list)
    expired: list[Segment] = field(default_factory=list)
    duplicates: list[Segment] = field(default_factory=list)
    supersedes: tuple[int, ...] = ()
    ending: bool = False

    @property
    def count(self) -> int:
        """How many messages the claim takes."""
        return sum(segment.size for segment in self.segments)

    def __bool__(self) -> bool:
        """Say whether there is anything to write about."""
        return bool(self.segments or self.dead or self.expired or self.duplicates or self.ending)

    @property
    def redelivered(self) -> bool:
        """Whether the messages came back from a claim that failed."""
        return bool(self.segments) and self.segments[0].former > 0


def select(
    lane: LaneFold,
    returning: Iterable[Segment],
    limit: int,
    now_ms: int,
    deliveries_max: int | None,
    supersedes: Sequence[int] = (),
    upto: int | None = None,
    wanted: Callable[[Sequence[Segment]], Iterable[Segment]] | None = None,
    left_out: LeftOut | None = None,
    consumer: str | None = None,
) -> Selection:
    """Pick the first available messages of a lane, at most ``limit``.

    A claim takes messages of one history only: fresh ones, or ones that came back from
    claims of the same size as often. Redelivered ones narrow: at most a tenth of the
    claim that they came back from. A message that came back from a claim of its own as
    often as is allowed is dead; one whose time to live is over has expired.

    Args:
        lane: The lane as folded.
        returning: Messages of claims that this claim ends (take-over).
        limit: At most so many messages.
        now_ms: The instant for delays and times to live.
        deliveries_max: So many ended deliveries make a message dead; None: never.
        supersedes: The sequences of the claims that end.
        upto: Leave out positions that were posted after this version of the journal.
        wanted: Cuts what a selector wants out of segments that can be received.
        left_out: Says which messages are duplicates; None if all are delivered.
        consumer: Who takes them: not what it does not want again.
    """
    chosen = Selection(lane.lane, lane.next_sequence, supersedes=tuple(supersedes))
    candidates: Iterable[Segment]
    candidates = heapq.merge(lane.available, sorted(returning, key=_order), key=_order)
    if wanted is not None:
        found = list(candidates)
        over = [s for s in found if s.position.expired(now_ms)][:REMOVALS_MAX]
        chosen.expired += firsts(over, left_out, chosen.duplicates, lambda: False)
        candidates = wanted([s for s in found if s.position.receivable(now_ms)])
    due = (
        s
        for s in candidates
        if (upto is None or s.position.place[0] <= upto)
        and (
            (s.position.receivable(now_ms) and consumer not in s.not_to)
            or s.position.expired(now_ms)
        )
    )
    candidates = firsts(due, left_out, chosen.duplicates, lambda: limit <= 0)
    history: tuple[int, int, frozenset[str]] | None = None
    for segment in candidates:
        position = segment.position
        if position.expired(now_ms):
            if len(chosen.expired) < REMOVALS_MAX:
                chosen.expired.append(segment)
            continue
        if _dead(segment, deliveries_max):
            if len(chosen.dead) == REMOVALS_MAX:
                break
            chosen.dead.append(segment)
            continue
        if history is None:
            history = segment.history
            if segment.former:
                limit = min(limit, max(1, segment.former // NARROWING))
        if limit <= 0 or history != segment.history:
            break
        last = min(segment.last, segment.first + limit - 1)
        chosen.segments.append(segment.cut(segment.first, last))
        limit -= last - segment.first + 1
    return chosen


def _order(segment: Segment) -> tuple[int, int, int, int, int]:
    return segment.order


def _dead(segment: Segment, deliveries_max: int | None) -> bool:
    return (
        deliveries_max is not None
        and segment.former == 1
        and segment.delivery_count >= deliveries_max
    )


def grouped(segments: Iterable[Segment]) -> list[tuple[Position, tuple[Range, ...]]]:
    """Group segments by position, keeping the order in which they come."""
    by_position: dict[model.PositionId, tuple[Position, list[Range]]] = {}
    for segment in segments:
        found = by_position.setdefault(segment.position.position_id, (segment.position, []))
        found[1].append((segment.first, segment.last))
    return [(position, tuple(part)) for position, part in by_position.values()]


def claim(
    queue_id: str,
    chosen: Selection,
    owner: Owner,
    deadline_ms: int,
    stamp: Stamp,
    *,
    counts: bool = True,
) -> Plan:
    """Write a selection as the next entry of its lane's log; no messages, no entry.

    The claim's (lane, sequence) is its name and its fencing token. One made for a move does
    not count as a delivery, however it ends.
    """
    shard = model.lane_shard(queue_id, chosen.lane)
    stream = model.lane_stream(chosen.lane)
    conditions = (
        model.next_sequence(shard, stream, chosen.sequence),
        model.queue_open(queue_id),
        model.layout_unchanged(),
    )
    if not chosen.segments:
        return Plan((), conditions)
    items, parts, count = model.pack_items(
        (position.position_id, part) for position, part in grouped(chosen.segments)
    )
    head = chosen.segments[0]
    body = {
        "v": 1,
        "items": items,
        "consumer": owner.consumer,
        "epoch": owner.epoch,
        "deadline": deadline_ms,
        "delivery_count": head.delivery_count,
        "former": head.former,
        "supersedes": list(chosen.supersedes),
    }
    if head.not_to:
        body["not_to"] = sorted(head.not_to)
    if not counts:
        body["counts"] = False
    entry = Entry(
        shard,
        stream,
        model.CLAIMED,
        sequence=chosen.sequence,
        transaction_key=owner.key,
        attempt=owner.attempt,
        begun=owner.begun,
        queue_id=queue_id,
        lane=chosen.lane,
        ranges=parts,
        count=count,
        body=body,
        **stamp.columns(),
    )
    return Plan((entry,), conditions)


@dataclass(frozen=True, slots=True)
class Removal:
    """Why available messages leave a lane for good, and where they stand then.

    Attributes:
        kind: ``dead_lettered``, ``expired``, ``duplicate``, ``purged`` or ``moved``.
        segments: The messages.
        reason: What the history says of it.
        target: The queue and the lane of each position's messages; None: nowhere.
    """

    kind: str
    segments: tuple[Segment, ...]
    reason: str | None
    target: Target | None = None


def leaving_out(duplicates: Sequence[Segment]) -> Removal:
    """Say that messages leave a lane as duplicates."""
    return Removal(model.DUPLICATE, tuple(duplicates), "duplicate")


def remove(
    queue_id: str, queue_name: str, chosen: Selection, removal: Removal, stamp: Stamp
) -> tuple[Plan, Selection]:
    """Take messages out of a lane, in the append that found them.

    They leave the lane by an entry of its log with their ranges written out, and stand in
    the target, if there is one, by new positions on the same payload. The claim behind
    them, if any, takes the next sequence number.

    Returns:
        The plan, and the selection with the sequence number that its claim gets.
    """
    shard, stream = model.lane_shard(queue_id, chosen.lane), model.lane_stream(chosen.lane)
    groups = grouped(removal.segments)
    items, parts, count = model.pack_items((p.position_id, part) for p, part in groups)
    target = removal.target
    gone = Entry(
        shard,
        stream,
        removal.kind,
        sequence=chosen.sequence,
        queue_id=queue_id,
        lane=chosen.lane,
        ranges=parts,
        count=count,
        reason=removal.reason,
        body={
            "v": 1,
            "items": items,
            "target": target.queue_id if target else None,
            "supersedes": list(chosen.supersedes),
        },
        **stamp.columns(),
    )
    conditions = [
        model.next_sequence(shard, stream, chosen.sequence),
        model.queue_open(queue_id),
        model.layout_unchanged(),
    ]
    posted = []
    if target is not None:
        conditions.append(model.queue_open(target.queue_id))
        counts = {s.position.position_id: s.delivery_count for s in removal.segments}
        for position, part in groups:
            delivered = counts[position.position_id]
            origin = origin_of(queue_name, position, removal.reason, delivered)
            for lane, piece in target.placed(position, part):
                moved = move(
                    position,
                    piece,
                    target.queue_id,
                    stamp,
                    origin,
                    lane=lane,
                    keeps_times=removal.kind == model.MOVED,
                )
                posted.append(moved)
    following = Selection(chosen.lane, chosen.sequence + 1, chosen.segments)
    return Plan((gone, *posted), tuple(conditions)), following


def purge_pending(
    queue_id: str, chosen: Selection, segments: Sequence[Segment], stamp: Stamp, reason: str | None
) -> tuple[Plan, Selection]:
    """Write that messages in flight are to go when they would come back.

    Returns:
        The plan, and the selection with the sequence number that comes next.
    """
    items, parts, count = model.pack_items((p.position_id, part) for p, part in grouped(segments))
    entry = Entry(
        model.lane_shard(queue_id, chosen.lane),
        model.lane_stream(chosen.lane),
        model.PURGE_PENDING,
        sequence=chosen.sequence,
        queue_id=queue_id,
        lane=chosen.lane,
        ranges=parts,
        count=count,
        reason=reason,
        body={"v": 1, "items": items},
        **stamp.columns(),
    )
    conditions = lane_conditions(queue_id, [(chosen.lane, chosen.sequence)])
    return Plan((entry,), conditions), Selection(chosen.lane, chosen.sequence + 1)


@dataclass(frozen=True, slots=True)
class Target:
    """Where moved messages go: a queue, and the lane that each message gets there.

    ``lanes`` gives the ranges of each lane by position; what it does not name goes to lane 0.
    """

    queue_id: str
    lanes: Mapping[model.PositionId, Mapping[int, tuple[Range, ...]]] = field(default_factory=dict)

    def placed(
        self, position: Position, part: tuple[Range, ...]
    ) -> list[tuple[int, tuple[Range, ...]]]:
        """Split some messages of a position by the lanes that they go to."""
        known = self.lanes.get(position.position_id)
        if known is None:
            return [(0, part)]
        found = ((lane, ranges.intersection(part, there)) for lane, there in known.items())
        return [(lane, piece) for lane, piece in found if piece]


def origin_of(
    queue_name: str, position: Position, reason: str | None, delivery_count: int
) -> dict[str, Any]:
    """Say where a moved position came from: what dead letters show."""
    return {
        "queue": queue_name,
        "queue_id": position.queue_id,
        "lane": position.lane,
        "position": list(position.position_id),
        "reason": reason,
        "delivery_count": delivery_count,
    }


def move(
    position: Position,
    part: Sequence[Range],
    target_id: str,
    stamp: Stamp,
    origin: dict[str, Any],
    *,
    owner: Owner | None = None,
    lane: int = 0,
    keeps_times: bool = False,
) -> Entry:
    """Post a new position on the payload of another one; nothing is copied.

    With ``keeps_times`` it is delayed and expires as the other one: not a dead letter, whose
    time may be over.
    """
    times = {"available_at": position.available_at_ms, "expires_at": position.expires_at_ms}
    kept = {name: at for name, at in times.items() if keeps_times and at is not None}
    return Entry(
        model.backlog_shard(target_id),
        model.lane_stream(lane),
        model.POSTED,
        transaction_key=owner.key if owner else None,
        attempt=owner.attempt if owner else None,
        begun=owner.begun if owner else None,
        queue_id=target_id,
        lane=lane,
        ranges=tuple(part),
        count=sum(last - first + 1 for first, last in part),
        reason=origin["reason"],
        body={
            "v": 1,
            "payload": position.payload_id,
            "slice": position.slice,
            "send": position.send_id,
            "priority": position.priority,
            "schema": position.schema_version,
            "origin": origin,
            **({"message_id": position.message_id} if position.message_id else {}),
            **kept,
        },
        **stamp.columns(),
    )


# -------------------------------------------------------------------------- settlements


@dataclass(frozen=True, slots=True)
class Disposition:
    """How some messages of a claim end: accepted, released, rejected, moved, or kept.

    Attributes:
        kind: ``accepted``, ``released``, ``rejected``, ``moved`` or ``kept``.
        items: The messages; None for whatever the claim still holds.
        reason: What the history says of it.
        counted: Whether a release counts as a delivery.
        undeliverable_here: Whether what is released is not for this consumer any more.
        target: Where moved messages go.
    """

    kind: str
    items: tuple[Item, ...] | None = None
    reason: str | None = None
    counted: bool = False
    undeliverable_here: bool = False
    target: Target | None = None


def settlement(
    queue_id: str,
    held: Claim,
    disposition: Disposition,
    stamp: Stamp,
    *,
    sequence: int | None,
    owner: Owner | None,
) -> Entry:
    """Write one settlement of a claim.

    Inside a transaction it is a fact in the backlog (no sequence), outside it is the next
    entry of the lane's log.
    """
    named = () if disposition.items is None else disposition.items
    items, parts, count = model.pack_items(named)
    in_lane = sequence is not None
    body: dict[str, Any] = {"v": 1, "items": items, "counted": disposition.counted}
    if disposition.undeliverable_here:
        body["not_to"] = held.owner.consumer
    if disposition.target is not None:
        body["target"] = disposition.target.queue_id
    return Entry(
        model.lane_shard(queue_id, held.lane) if in_lane else model.backlog_shard(queue_id),
        model.lane_stream(held.lane),
        disposition.kind,
        sequence=sequence,
        transaction_key=owner.key if owner else None,
        attempt=owner.attempt if owner else None,
        begun=owner.begun if owner else None,
        queue_id=queue_id,
        lane=held.lane,
        claim_lane=held.lane,
        claim_sequence=held.sequence,
        ranges=parts,
        count=held.count if disposition.items is None else count,
        reason=disposition.reason,
        body=body,
        **stamp.columns(),
    )


def kept(
    queue_id: str, held: Claim, count: int, deadline_ms: int, stamp: Stamp, owner: Owner
) -> Entry:
    """Write that a commit leaves what it did not settle of a claim with its consumer.

    It stands behind the claim's settlements: from then on a lease holds what is left.
    """
    return Entry(
        model.backlog_shard(queue_id),
        model.lane_stream(held.lane),
        model.KEPT,
        transaction_key=owner.key,
        attempt=owner.attempt,
        begun=owner.begun,
        queue_id=queue_id,
        lane=held.lane,
        claim_lane=held.lane,
        claim_sequence=held.sequence,
        count=count,
        body={"v": 1, "deadline": deadline_ms},
        **stamp.columns(),
    )


def release_claims(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, reason: str, counted: bool = True
) -> tuple[Entry, ...]:
    """Write the ``released`` facts of a rollback: for claims acquired inside only."""
    ended = Disposition(model.RELEASED, reason=reason, counted=counted)
    return tuple(
        settlement(queue_id, held, ended, stamp, sequence=None, owner=held.owner)
        for held in claims
        if held.owner.is_transaction
    )


def bind(queue_id: str, held: Claim, owner: Owner, sequence: int, stamp: Stamp) -> Entry:
    """Write that an attempt settles messages held under a lease: the lane's next entry."""
    return Entry(
        model.lane_shard(queue_id, held.lane),
        model.lane_stream(held.lane),
        model.BOUND,
        sequence=sequence,
        transaction_key=owner.key,
        attempt=owner.attempt,
        begun=owner.begun,
        queue_id=queue_id,
        lane=held.lane,
        claim_lane=held.lane,
        claim_sequence=held.sequence,
        count=held.count,
        body={"v": 1},
        **stamp.columns(),
    )


def lease_extended(
    queue_id: str, held: Claim, sequence: int, deadline_ms: int, stamp: Stamp
) -> Entry:
    """Write a new deadline of a claim: the lane's next entry."""
    return Entry(
        model.lane_shard(queue_id, held.lane),
        model.lane_stream(held.lane),
        model.LEASE_EXTENDED,
        sequence=sequence,
        queue_id=queue_id,
        lane=held.lane,
        claim_lane=held.lane,
        claim_sequence=held.sequence,
        count=held.count,
        body={"v": 1, "deadline": deadline_ms},
        **stamp.columns(),
    )


def lane_conditions(queue_id: str, sequences: Iterable[tuple[int, int]]) -> tuple[Condition, ...]:
    """Expect the next sequence of some lanes, and that their queue is open."""
    nexts = (
        model.next_sequence(model.lane_shard(queue_id, lane), model.lane_stream(lane), sequence)
        for lane, sequence in sequences
    )
    return (*nexts, model.queue_open(queue_id), model.layout_unchanged())
