"""Plan claims: which messages are taken, and what is taken over for them (pure)."""

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
"""Says which of some messages are duplicates."""


def firsts(
    candidates: Iterable[Segment],
    left_out: LeftOut | None,
    twice: list[Segment],
    full: Callable[[], bool],
) -> Iterator[Segment]:
    """Pass on what is no duplicate.

    Args:
        candidates: Messages in the order in which they are taken.
        left_out: Says which are duplicates; None: none is.
        twice: Gets the duplicates.
        full: Says that no more is wanted: then nothing more is looked at.
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
    """The messages that one claim takes from one lane, and what it finds to take out of it.

    ``supersedes`` are the claims that end with it, each with when its delivery ended.
    ``ending``: they are to end even if nothing is taken, because what they hold was purged, or
    is to wait from now on.
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
        """Return whether there is anything to write about."""
        return bool(self.segments or self.dead or self.expired or self.duplicates or self.ending)

    @property
    def delivery_count(self) -> int | None:
        """How many deliveries of the messages failed, all alike; None if there are none."""
        return self.segments[0].delivery_count if self.segments else None

    def ended(self) -> dict[str, list[int]]:
        """Write which claims of the lane end with an entry, and when their deliveries ended."""
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

    A claim takes messages of one history only: fresh ones, or ones that came back from
    claims of the same size as often. Redelivered ones come at most in the size that they
    had, and narrow from the second time on. A message that came back from a claim of its
    own as often as is allowed is dead; one whose time to live is over has expired.

    Args:
        lane: The lane as folded.
        returning: Messages of claims that this claim ends (take-over).
        limit: The most messages.
        now_ms: The instant for delays and times to live.
        rules: The queue's rules of redelivery.
        supersedes: The sequences of the claims that end, and when their deliveries ended.
        upto: Leave out positions that were posted after this version of the journal.
        wanted: Cuts what a selector wants out of segments that can be received.
        left_out: Says which messages are duplicates; None if all are delivered.
        consumer: Who takes them: not what it does not want again.
        in_order: Whether nothing may overtake what waits because it failed.
        pieces_max: The most ranges of neighbours.
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
        # A selector is to look no further than it must.
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
) -> Plan:
    """Write a selection as the next entry of its lane's log; no messages, no entry.

    The claim's (lane, sequence) is its name and its fencing token. One made for a move does
    not count as a delivery, however it ends.
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
    if head.not_to:
        body["not_to"] = sorted(head.not_to)
    if not counts:
        body["counts"] = False
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
