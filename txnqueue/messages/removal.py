"""Take waiting messages out of a queue for good: purge them, or move them to another one.

What is in flight is not moved; what of it is purged goes when it would come back. It is one
append, or several when very many pieces leave a lane; each names what it takes in the lane's
log, and repeating what failed is harmless.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Protocol

from txnqueue.client.client import Client
from txnqueue.core import model, planning, ranges
from txnqueue.core.model import PositionId, Range
from txnqueue.core.planning import REMOVALS_MAX, Plan, Removal, Selection, Stamp
from txnqueue.core.planning.claims import LeftOut, firsts
from txnqueue.core.planning.tries import Tries
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import LaneState, Position, QueueState, Segment
from txnqueue.messages import duplicates
from txnqueue.messages.move import Route
from txnqueue.messages.selector import Selector

Sort = Callable[[Sequence[Segment]], list[Removal]]
"""Says for some messages of one lane how and where to they leave."""
_Marked = tuple[Plan, Selection]
Mark = Callable[[Selection, Sequence[Segment], Stamp], _Marked]
"""Writes something about messages of one lane that are in flight."""
Gone = Callable[[Position, tuple[Range, ...]], None]
"""Is told which messages of a position have left."""


class Choice(Protocol):
    """Says which messages are meant, as a ``Selector`` does."""

    def of_lane(self, lane: LaneState, segments: Sequence[Segment], /) -> Iterator[Segment]:
        """Cut what is meant out of some segments of a lane, in the same order."""
        ...


def remove(
    client: Client,
    info: QueueInfo,
    kind: str,
    selector: Choice | None,
    sort: Sort,
    *,
    among: Callable[[Segment], bool] = lambda _segment: True,
    limit: int | None = None,
    in_flight: Mark | None = None,
    gone: Gone | None = None,
) -> int:
    """Take out all waiting messages, or those that a selector wants, append by append.

    Duplicates among them leave as what they are, so that the lane's log always tells.

    Args:
        client: Who does it.
        info: The queue.
        kind: What the lanes' entries are called.
        selector: Which messages; None for all that wait.
        sort: How they leave.
        among: Which messages come into question at all.
        limit: The most messages; None: any number.
        in_flight: What is written of those in flight, by the same append.
        gone: Is told what has left, append by append.

    Returns:
        How many left.
    """
    upto = client.store.journal.version()
    removed, more = 0, True
    positions: dict[PositionId, Position] = {}

    def wanted(lane: LaneState, segments: Sequence[Segment]) -> Iterator[Segment]:
        found = [s for s in segments if s.position.place[0] <= upto and among(s)]
        return iter(found) if selector is None else selector.of_lane(lane, found)

    def plan(_lost: int) -> Plan | None:
        with client.lock:
            return plan_now()

    def plan_now() -> Plan | None:
        nonlocal more
        more = False
        fold, stamp = client.states.for_update(info), client.stamp()
        found = Plan()
        left_out = duplicates.left_out(client, info, fold)
        left = limit if limit is None else limit - removed
        places: dict[int, int] = {}
        for number in tries.in_order(fold, fold.lanes):
            lane = fold.lanes[number]
            chosen = Selection(lane.lane, lane.next_sequence)
            twice: list[Segment] = []
            once, so_on = first_of(wanted(lane, lane.available), left, left_out, twice)
            if left is not None:
                left -= sum(segment.size for segment in once)
            held = list(wanted(lane, _in_flight(fold, lane))) if in_flight is not None else []
            more = more or so_on or len(held) > REMOVALS_MAX
            positions.update((s.position.position_id, s.position) for s in once)
            said = [planning.leaving_out(twice)] if twice else []
            for removal in [*said, *sort(once)]:
                leave, chosen = planning.remove(info.queue_id, info.name, chosen, removal, stamp)
                found += leave
            if in_flight is not None and held:
                marked, chosen = in_flight(chosen, held[:REMOVALS_MAX], stamp)
                found += marked
            if chosen.sequence > lane.next_sequence:
                places[number] = lane.next_sequence
        if not places or (limit is not None and not tries.excluded_by(fold, places)):
            return None
        tries.note(places)
        return found

    while more and (limit is None or removed < limit):
        tries = Tries()
        landed = client.land(plan, kind, queue=info.name)
        for entry in landed.entries if landed else ():
            if entry.kind != kind:
                continue
            removed += entry.count or 0
            if gone is not None:
                for position_id, part in model.unpack_items(entry):
                    gone(positions[position_id], part)
    return removed


def purge(
    client: Client,
    info: QueueInfo,
    selector: Selector | None,
    reason: str | None,
    gone: Gone | None = None,
) -> int:
    """Throw away what waits, and mark what is in flight: it goes instead of coming back.

    Returns:
        How many are gone at once.
    """

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        return [Removal(model.PURGED, tuple(segments), reason)] if segments else []

    def mark(lane: Selection, segments: Sequence[Segment], stamp: Stamp) -> _Marked:
        return planning.purge_pending(info.queue_id, lane, segments, stamp, reason)

    return remove(client, info, model.PURGED, selector, sort, in_flight=mark, gone=gone)


def moving(route: Route, reason: str) -> Sort:
    """Make the rule that messages are moved along a route."""

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        return [
            Removal(model.MOVED, tuple(found), reason, target) for target, found in route(segments)
        ]

    return sort


def first_of(
    waiting: Iterator[Segment],
    limit: int | None,
    left_out: LeftOut | None,
    twice: list[Segment],
) -> tuple[list[Segment], bool]:
    """Take the first messages of a lane for one append, and look at no more of them.

    Args:
        waiting: Messages in the order in which they are taken.
        limit: The most messages; None: any number.
        left_out: Says which are duplicates; None: none is.
        twice: Gets the duplicates among them.

    Returns:
        What is taken, and whether there is more for another append.
    """
    left = sys.maxsize if limit is None else limit
    taken: list[Segment] = []
    pieces = islice(waiting, REMOVALS_MAX) if left > 0 else ()
    for segment in firsts(pieces, left_out, twice, lambda: False):
        taken.append(segment.cut(segment.first, min(segment.last, segment.first + left - 1)))
        left -= taken[-1].size
        if left <= 0:
            break
    return taken, left > 0 and next(waiting, None) is not None


def _in_flight(fold: QueueState, lane: LaneState) -> list[Segment]:
    """List what is in flight in a lane and not purged yet, as it stood there."""
    found = [
        Segment(fold.positions[position_id], first, last, claim.delivery_count)
        for claim in lane.claims.values()
        for position_id, part in claim.items.items()
        for first, last in ranges.difference(part, claim.purging.get(position_id, ()))
    ]
    return sorted(found, key=attrgetter("order"))
