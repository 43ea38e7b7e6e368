"""Plan claims: which messages are taken, and which claims are taken over for them (pure)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, Range
from txnqueue.core.planning.plan import Plan, Stamp, lane_conditions
from txnqueue.core.redelivery import Redelivery
from txnqueue.core.settings import RANGES_PER_CALL_MAX
from txnqueue.core.state import LaneState, Owner, Position, Segment, in_turn

DUPLICATES_MAX = 10_000
"""The pieces of positions that leave a lane as duplicates in one append."""


LeftOut = Callable[[Segment], tuple[Range, ...]]
"""Returns which offsets of a segment are duplicates."""


def firsts(
    candidates: Iterable[Segment],
    left_out: LeftOut | None,
    twice: list[Segment],
    full: Callable[[], bool],
) -> Iterator[Segment]:
    """Yield the messages that are not duplicates.

    Args:
        candidates: Messages in the order in which they are taken.
        left_out: Returns which are duplicates; None if none are.
        twice: The list to which duplicates are added.
        full: Returns whether enough was found; then no further segment is examined.
    """
    for segment in candidates:
        if left_out is None:
            yield segment
            continue
        if full() or len(twice) >= DUPLICATES_MAX:
            return
        whole, found = ((segment.first, segment.last),), left_out(segment)
        twice += _pieces(segment, ranges.intersection(whole, found))
        yield from _pieces(segment, ranges.difference(whole, found))


def _pieces(segment: Segment, parts: Iterable[Range]) -> list[Segment]:
    return [segment.cut(first, last) for first, last in parts]


REMOVALS_MAX = 1_000


@dataclass(slots=True)
class Selection:
    """The messages that one claim takes from one lane, and those that it finds to remove from it.

    ``supersedes`` names the claims that end with it, each with the instant (ms) at which its
    delivery ended. ``ending`` says that they end even if no message is taken, because the
    messages that they hold were purged, or have to wait from now on.
    """

    lane: int
    sequence: int
    segments: list[Segment] = field(default_factory=list)
    dead: list[Segment] = field(default_factory=list)
    expired: list[Segment] = field(default_factory=list)
    duplicates: list[Segment] = field(default_factory=list)
    supersedes: tuple[tuple[int, int], ...] = ()
    ending: bool = False

    @property
    def count(self) -> int:
        """How many messages the claim takes."""
        return sum(segment.size for segment in self.segments)

    def __bool__(self) -> bool:
        """Return whether an entry has to be written."""
        return bool(self.segments or self.dead or self.expired or self.duplicates or self.ending)

    @property
    def delivery_count(self) -> int | None:
        """How many deliveries failed, equal for all the messages; None if it takes none."""
        return self.segments[0].delivery_count if self.segments else None

    def ended(self) -> dict[str, list[int]]:
        """Write the fields that say which claims end with an entry, and when (ms) each ended."""
        found = {"supersedes": [sequence for sequence, _ in self.supersedes]}
        if self.supersedes:
            found["ended_at"] = [ended_at_ms for _, ended_at_ms in self.supersedes]
        return found


def select(
    lane: LaneState,
    returning: Iterable[Segment],
    limit: int,
    now_ms: int,
    rules: Redelivery,
    *,
    supersedes: Sequence[tuple[int, int]] = (),
    upto: int | None = None,
    wanted: Callable[[Sequence[Segment]], Iterable[Segment]] | None = None,
    left_out: LeftOut | None = None,
    consumer: str | None = None,
    in_order: bool = False,
    pieces_max: int = RANGES_PER_CALL_MAX,
) -> Selection:
    """Pick the first available messages of a lane, at most ``limit``.

    A claim takes messages of one history only: new ones, or ones that came back equally often
    from claims of the same size. Redelivered messages come at most in their former size, and in
    smaller claims from the second time on. A message is dead if it used up its deliveries and
    the last claim held it alone; it has expired if its time to live is over.

    Args:
        lane: The lane as folded.
        returning: Messages of claims that this claim ends (take-over).
        limit: The most messages.
        now_ms: The instant for delays and times to live.
        rules: The queue's rules of redelivery.
        supersedes: The sequences of the claims that end, and when (ms) their deliveries ended.
        upto: Leave out positions that were posted after this version of the journal.
        wanted: Cuts the messages that a selector wants out of segments that can be received.
        left_out: Returns which messages are duplicates; None if all are delivered.
        consumer: The consumer id that claims; messages undeliverable to it are left out.
        in_order: Whether no message may overtake one that waits because it failed.
        pieces_max: The most ranges of consecutive offsets.
    """
    chosen = Selection(lane.lane, lane.next_sequence, supersedes=tuple(supersedes))
    candidates: Iterable[Segment]
    candidates = heapq.merge(lane.available, sorted(returning, key=_order), key=_order)
    candidates = in_turn(candidates, now_ms, rules, in_order=in_order)
    if wanted is not None:
        found = list(candidates)
        over = [s for s in found if s.position.expired(now_ms)][:REMOVALS_MAX]
        chosen.expired += firsts(over, left_out, chosen.duplicates, lambda: False)
        candidates = wanted([s for s in found if s.by(upto) and s.receivable(now_ms, rules)])
    due = (
        s
        for s in candidates
        if s.by(upto)
        and (
            (s.receivable(now_ms, rules) and consumer not in s.not_to) or s.position.expired(now_ms)
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
        if rules.is_dead(segment.delivery_count, segment.former):
            if len(chosen.dead) == REMOVALS_MAX:
                break
            chosen.dead.append(segment)
            continue
        if history is None:
            history = segment.history
            if segment.former:
                limit = min(limit, rules.size_max(segment.delivery_count, segment.former))
        if limit <= 0 or history != segment.history:
            break
        last = min(segment.last, segment.first + limit - 1)
        chosen.segments.append(segment.cut(segment.first, last))
        limit -= last - segment.first + 1
        # Taking one more segment would evaluate a costly selector further than necessary.
        if len(chosen.segments) >= pieces_max or (wanted is not None and limit <= 0):
            break
    return chosen


def _order(segment: Segment) -> tuple[int, int, int, int, int]:
    return segment.order


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
    shared: bool = False,
) -> Plan:
    """Plan a selection's claim as the next entry of its lane's log; no messages, no entry.

    The claim's (lane, sequence) is its name and its fencing token. A claim made for a move
    (``counts=False``) does not count as a delivery, however it ends. In a batch with other claims
    (``shared=True``) a single message is not delivered alone, so its claim counts as one of two.
    """
    conditions = lane_conditions(queue_id, [(chosen.lane, chosen.sequence)])
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
        **chosen.ended(),
    }
    if owner.opened_ms:
        body["opened"] = owner.opened_ms
    if head.not_to:
        body["not_to"] = sorted(head.not_to)
    if not counts:
        body["counts"] = False
    if shared and count == 1:
        body["size"] = 2
    entry = Entry.in_lane(
        queue_id,
        chosen.lane,
        model.CLAIMED,
        sequence=chosen.sequence,
        **owner.columns(),
        ranges=parts,
        count=count,
        body=body,
        **stamp.columns(),
    )
    return Plan((entry,), conditions)
