"""Remove waiting messages from a queue for good, by purging or moving them.

Messages in flight are not moved; a purge removes them if they would return. It takes one append, or
several if very many pieces leave a lane; each append names its messages in the lane's log, and
repeating a failed call is harmless. An error after the first append says how many have left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from txnqueue.client.client import Client
from txnqueue.core import model, planning, ranges
from txnqueue.core.model import PositionId, Range
from txnqueue.core.planning import REMOVALS_MAX, Plan, Removal, Selection, Stamp
from txnqueue.core.planning.claims import LeftOut, firsts
from txnqueue.core.planning.tries import Tries
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import LaneState, Position, QueueState, Segment
from txnqueue.errors import TxnQueueError
from txnqueue.messages import duplicates
from txnqueue.messages.move import Route
from txnqueue.messages.selector import Selector

Sort = Callable[[Sequence[Segment]], list[Removal]]
"""Makes the removals by which some messages of one lane leave."""
_Marked = tuple[Plan, Selection]
Mark = Callable[[Selection, Sequence[Segment], Stamp], _Marked]
"""Plans an entry about messages of one lane that are in flight."""
Gone = Callable[[Position, tuple[Range, ...]], None]
"""Called with the messages of a position that have left."""


class Choice(Protocol):
    """Selects messages, as a ``Selector`` does."""

    def of_lane(self, lane: LaneState, segments: Sequence[Segment], /) -> Iterator[Segment]:
        """Cut the selected messages out of some segments of a lane, in the same order."""
        ...


@dataclass(slots=True)
class Progress:
    """What the appends of one call have done so far, in both parts of a queue.

    Attributes:
        removed: The number of messages that have left, without duplicates.
        marked: The number of messages in flight that will not return.
    """

    removed: int = 0
    marked: int = 0

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Let an error say what was done before it: the appends that have landed stay.

        Args:
            what: What was done with the messages, as a participle.
        """
        try:
            yield
        except TxnQueueError as error:
            if not self.removed and not self.marked:
                raise
            raise self._told(error, what) from error.__cause__

    def _told(self, error: TxnQueueError, what: str) -> TxnQueueError:
        """Make the same error, which no longer says that nothing was changed."""
        said = str(error).replace("; nothing was changed", "").removesuffix(" Nothing was changed.")
        marked = f", and {self.marked} in flight were marked" if self.marked else ""
        details: dict[str, Any] = {**error.details, "done": self.removed}
        return type(error)(
            f"{said} Before that, {self.removed} messages were {what}{marked}: a repeated call "
            "goes on with the others.",
            **details,
        )


def remove(
    client: Client,
    info: QueueInfo,
    kind: str,
    selector: Choice | None,
    sort: Sort,
    *,
    progress: Progress,
    among: Callable[[Segment], bool] = lambda _segment: True,
    limit: int | None = None,
    in_flight: Mark | None = None,
    gone: Gone | None = None,
) -> None:
    """Take out all waiting messages, or those that a selector selects, append by append.

    Duplicates among them leave as duplicates, so that the lane's log always tells them apart.

    Args:
        client: The client that removes them.
        info: The queue.
        kind: The kind of the lanes' entries.
        selector: Selects messages; None for all that wait.
        sort: Makes the removals of the selected messages.
        progress: Counts what the call has done, here and before.
        among: Returns whether a segment is eligible at all.
        limit: The most messages of the call; None for any number.
        in_flight: Plans the entry about those in flight, in the same append.
        gone: Called after each append with the messages that have left.
    """
    upto = client.store.journal.version()
    more = True
    positions: dict[PositionId, Position] = {}

    def wanted(lane: LaneState, segments: Sequence[Segment]) -> Iterator[Segment]:
        found = [s for s in segments if s.position.place[0] <= upto and among(s)]
        return iter(found) if selector is None else selector.of_lane(lane, found)

    def plan(_lost: int) -> Plan | None:
        with client.lock:
            return plan_now()

    def plan_now() -> Plan | None:
        nonlocal more
        more, tries.wanted = False, None
        fold, stamp = client.states.for_update(info), client.stamp()
        found = Plan()
        left_out = duplicates.left_out(client, info, fold)
        left = limit if limit is None else limit - progress.removed
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
        tries.want(found.entries, info.queue_id)
        if not places or (limit is not None and not tries.excluded_by(fold, places)):
            return None
        tries.note(places)
        return found

    while more and (limit is None or progress.removed < limit):
        tries = Tries()
        landed = client.land(plan, kind, queue=info.name)
        if landed and tries.something_is_left(landed.entries, info.queue_id):
            more = True
        for entry in landed.entries if landed else ():
            if entry.kind == model.PURGE_PENDING:
                progress.marked += entry.count or 0
            if entry.kind != kind:
                continue
            progress.removed += entry.count or 0
            if gone is not None:
                for position_id, part in model.unpack_items(entry):
                    gone(positions[position_id], part)


def purge(
    client: Client,
    info: QueueInfo,
    selector: Selector | None,
    reason: str | None,
    *,
    progress: Progress,
    gone: Gone | None = None,
) -> None:
    """Purge waiting messages, and mark those in flight, which are removed if they would return."""

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        return [Removal(model.PURGED, tuple(segments), reason)] if segments else []

    def mark(lane: Selection, segments: Sequence[Segment], stamp: Stamp) -> _Marked:
        return planning.purge_pending(info.queue_id, lane, segments, stamp, reason)

    remove(client, info, model.PURGED, selector, sort, progress=progress, in_flight=mark, gone=gone)


def moving(route: Route, reason: str) -> Sort:
    """Make the function that removes messages by moving them along a route."""

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
    """Take the first messages of a lane for one append, and examine no more of them.

    Args:
        waiting: Messages in the order in which they are taken.
        limit: The most messages; None for any number.
        left_out: Returns which are duplicates; None if none are.
        twice: The list to which the duplicates among them are added.

    Returns:
        The messages taken, and whether there are more for another append.
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
    """List the messages in flight in a lane that are not purged, in their original order."""
    found = [
        Segment(fold.positions[position_id], first, last, claim.delivery_count)
        for claim in lane.claims.values()
        for position_id, part in claim.items.items()
        for first, last in ranges.difference(part, claim.purging.get(position_id, ()))
    ]
    return sorted(found, key=attrgetter("order"))
