"""Route moved, rejected and redriven messages, and plan their new positions.

A move is a new position on the same payload: nothing is copied. The target's rules determine the
lane of each message; its priority, delay and time to live stay.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from txnqueue.client.client import Client
from txnqueue.core import model, planning, ranges
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning import Disposition, Plan, Stamp, Target
from txnqueue.core.settings import QueueInfo, check_name, shown
from txnqueue.core.state import AttemptOwner, Position, Segment, catalog
from txnqueue.errors import InvalidInput, QueueNotFound, SchemaMismatch
from txnqueue.messages.claim import HeldClaim
from txnqueue.messages.parts import part_of

Lanes = dict[PositionId, dict[int, tuple[Range, ...]]]
Route = Callable[[Sequence[Segment]], list[tuple[Target, list[Segment]]]]
"""Returns where some messages go: each target, with its messages."""


def target_of(client: Client, to: object) -> QueueInfo:
    """Find the queue that messages are to move to, which must be in the same store.

    Raises:
        InvalidInput: The value is not a queue, or the queue is in another store.
        QueueNotFound: There is no such queue.
    """
    if isinstance(to, str):
        return client.cache.queue(check_name(to))
    info, other = getattr(to, "info", None), getattr(to, "_client", None)
    if not isinstance(info, QueueInfo) or other is None:
        raise InvalidInput(f"to={shown(to)}: give a queue or its name.", name="to")
    if other.cache.store_id != client.cache.store_id:
        raise InvalidInput(
            f"The queue {info.name!r} is in the store {other.store.root!r}: messages can be moved "
            "only within one store. Receive and send them instead.",
            name="to",
        )
    return info


def to_queue(client: Client, info: QueueInfo, target: QueueInfo) -> Route:
    """Route messages to another queue, each to the lane that that queue's rules give it.

    The route raises ``NotRead`` to a caller that holds the lock, if keys must be read first.

    Raises:
        InvalidInput: Both are the same queue.
        SchemaMismatch: The other queue has other columns.
    """
    if target.queue_id == info.queue_id:
        raise InvalidInput(
            f"Messages of {info.name!r} are already in that queue: name another one."
        )
    known = info
    found: Lanes = {}
    covered: dict[PositionId, tuple[Range, ...]] = {}

    def check_now() -> None:
        nonlocal known, target
        there = {one.queue_id: one for one in client.of(info).states.queues().values()}
        known = there.get(known.queue_id, known)
        target = there.get(target.queue_id, target)
        if not same_columns(known, target):
            raise SchemaMismatch(
                f"The queues {info.name!r} and {target.name!r} differ in "
                f"{catalog.differing(known.schema, target.schema)}: alter one of them, or "
                "receive the messages and send them there."
            )

    def check() -> None:
        """Check the columns as read with the messages: a queue grew before they came into it.

        The journal in memory has no entries of that, so the catalog is read for transient messages.
        """
        nonlocal known, target
        known, target = client.cache.newest(known), client.cache.newest(target)
        if info.transient or not same_columns(known, target):
            check_now()

    check()

    def route(segments: Sequence[Segment]) -> list[tuple[Target, list[Segment]]]:
        if not segments:
            return []
        check()  # columns may have been added that the other queue does not have
        unknown = _beyond(covered, segments)

        def read() -> None:
            for position_id, by_lane in _lanes_of(client, info, target, unknown).items():
                there = found.setdefault(position_id, {})
                for lane, part in by_lane.items():
                    there[lane] = ranges.added(there.get(lane, ()), part)
                    covered[position_id] = ranges.added(covered.get(position_id, ()), part)

        if unknown:
            if client.holds_lock() and target.settings.lanes_by is not None:
                raise NotRead(read)
            read()
        return [(Target(target.queue_id, found), list(segments))]

    return route


def to_origin(client: Client) -> Route:
    """Route messages back to the queues and lanes that they came from.

    The route raises ``QueueNotFound`` if a queue that they came from is gone.
    """
    queues = client.states.queues()
    known = {info.queue_id for info in queues.values()}

    def route(segments: Sequence[Segment]) -> list[tuple[Target, list[Segment]]]:
        homes: dict[str, list[Segment]] = defaultdict(list)
        for segment in segments:
            origin = segment.position.origin
            assert origin is not None
            if origin["queue_id"] not in known:
                since = ", and another one has its name" if origin["queue"] in queues else ""
                raise QueueNotFound(
                    f"The queue {origin['queue']!r}, where some came from, no longer "
                    f"exists{since}: move them to another one.",
                    name=origin["queue"],
                )
            homes[origin["queue_id"]].append(segment)
        return [
            (Target(queue_id, {s.position.position_id: _home(s.position) for s in found}), found)
            for queue_id, found in homes.items()
        ]

    return route


def came_from_elsewhere(segment: Segment) -> bool:
    """Return whether messages came by a move; only these have an origin to return to."""
    return model.was_moved(segment.position.origin)


def same_columns(info: QueueInfo, other: QueueInfo) -> bool:
    """Return whether messages of one queue fit the columns of another."""
    return _columns(info) == _columns(other)


def _columns(info: QueueInfo) -> list[tuple[str, object]]:
    return [(column["name"], column.get("type")) for column in info.schema["fields"]]


def routed(route: Route, one: HeldClaim, disposition: Disposition) -> list[Disposition]:
    """Split a disposition by the targets of its messages: one disposition for each."""
    segments = [
        Segment(one.positions[position_id], first, last)
        for position_id, part in disposition.items or ()
        for first, last in part
    ]
    found = []
    for target, going in route(segments):
        items = tuple((p.position_id, part) for p, part in planning.grouped(going))
        found.append(
            Disposition(disposition.kind, items, disposition.reason, target=target),
        )
    return found


def departures(
    one: HeldClaim, disposition: Disposition, stamp: Stamp, owner: AttemptOwner | None = None
) -> Plan:
    """Plan the new positions of moved messages, and of rejected ones in the dead-letter queue.

    The plan is empty for other dispositions, and if there is no dead-letter queue.
    """
    target = disposition.target
    if disposition.kind == model.REJECTED and one.info.dead_letter_id is not None:
        target = Target(one.info.dead_letter_id)
    if target is None:
        return Plan()
    entries = []
    for position_id, part in disposition.items if disposition.items is not None else one.items:
        position = one.positions[position_id]
        origin = planning.origin_of(
            one.info.name, position, disposition.reason, one.claim.delivery_count
        )
        for lane, piece in target.placed(position, part):
            moved = planning.move(
                position,
                piece,
                target.queue_id,
                stamp,
                origin,
                owner=owner,
                lane=lane,
                keeps_times=disposition.kind == model.MOVED,
            )
            entries.append(moved)
    return Plan(tuple(entries), (model.queue_open(target.queue_id),))


def in_order(
    posted: Iterable[Entry], held: Iterable[HeldClaim], *, cut: bool = False
) -> list[Entry]:
    """Sort new positions by their messages' former order, whichever claims held them.

    Args:
        posted: The new positions.
        held: The claims that held the messages.
        cut: Whether positions are cut where messages of several lay alternately in one former
            position, as they do if some of them failed once. Otherwise they come one after the
            other.
    """
    places = {pid: position.place for one in held for pid, position in one.positions.items()}
    found = list(posted)
    pieces = sorted(
        (_former(entry, places), parts, number)
        for number, entry in enumerate(found)
        for parts in (((part,) for part in entry.ranges) if cut else (entry.ranges,))
    )
    return [
        _piece(found[number], [part for _, parts, _ in run for part in parts])
        for (_, number), run in groupby(pieces, key=itemgetter(0, 2))
    ]


def _former(
    entry: Entry, places: Mapping[PositionId, tuple[int, int, int]]
) -> tuple[str, int, int, tuple[int, int, int]]:
    """Return what a new position is sorted by: its lane, its priority, its former position."""
    append_id, index = entry.body["origin"]["position"]
    place = places[append_id, index]
    return (entry.queue_id or "", entry.lane or 0, -entry.body["priority"], place)


def _piece(entry: Entry, parts: Sequence[Range]) -> Entry:
    return replace(entry, ranges=tuple(parts), count=ranges.count(parts))


# ---------------------------------------------------------------------------- the lanes


def _home(position: Position) -> dict[int, tuple[Range, ...]]:
    assert position.origin is not None
    return {position.origin["lane"]: position.ranges}


def _lanes_of(
    client: Client,
    info: QueueInfo,
    target: QueueInfo,
    segments: Sequence[Segment],
) -> Lanes:
    """Find the lane of each message in another queue, by its key or else by its position."""
    lanes, group_by = target.settings.lanes, target.settings.lanes_by
    if lanes == 1 or group_by is None:
        return {
            s.position.position_id: {_spread(s.position, lanes): s.position.ranges}
            for s in segments
        }
    parts = [part_of(s.position, ((s.first, s.last),), info.name, 0, 0) for s in segments]
    by_part = client.of(info).store.payload.lanes(group_by, lanes, parts)
    found: dict[PositionId, dict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for segment, by_lane in zip(segments, by_part, strict=True):
        for lane, part in by_lane.items():
            found[segment.position.position_id][lane] += part
    return {
        position_id: {lane: ranges.normalised(part) for lane, part in by_lane.items()}
        for position_id, by_lane in found.items()
    }


def _beyond(
    covered: Mapping[PositionId, Sequence[Range]], segments: Iterable[Segment]
) -> list[Segment]:
    """Leave out what was read before: others may have claimed some of the messages since."""
    return [
        Segment(segment.position, first, last)
        for segment in segments
        for first, last in ranges.difference(
            ((segment.first, segment.last),), covered.get(segment.position.position_id, ())
        )
    ]


def _spread(position: Position, lanes: int) -> int:
    append_id, index = position.position_id
    return zlib.crc32(f"{append_id}/{index}".encode()) % lanes
