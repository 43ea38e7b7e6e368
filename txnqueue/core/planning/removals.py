"""Plan removals without a claim: purged, expired, duplicate, dead or moved messages (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, Range
from txnqueue.core.planning.claims import Selection, grouped
from txnqueue.core.planning.plan import Plan, Stamp, lane_conditions
from txnqueue.core.state import AttemptOwner, Errors, Position, Segment


@dataclass(frozen=True, slots=True)
class Removal:
    """Why available messages leave a lane for good, and where they go.

    Attributes:
        kind: ``dead_lettered``, ``expired``, ``duplicate``, ``purged`` or ``moved``.
        segments: The messages.
        reason: The reason recorded in the history.
        target: The queue, and the lane of each position's messages; None if they go nowhere.
        errors: The errors of the messages' last deliveries, by position.
    """

    kind: str
    segments: tuple[Segment, ...]
    reason: str | None
    target: Target | None = None
    errors: Mapping[model.PositionId, Errors] = field(default_factory=dict)


def leaving_out(duplicates: Sequence[Segment]) -> Removal:
    """Make the removal of duplicates from a lane."""
    return Removal(model.DUPLICATE, tuple(duplicates), "duplicate")


def remove(
    queue_id: str, queue_name: str, chosen: Selection, removal: Removal, stamp: Stamp
) -> tuple[Plan, Selection]:
    """Plan the removal of messages from a lane, in the append that found them.

    They leave the lane by an entry of its log that lists their ranges, and are put into the
    target, if there is one, by new positions on the same payload. The claim of the same append,
    if any, takes the next sequence number.

    Returns:
        The plan, and the selection with the sequence number that its claim gets.
    """
    groups = grouped(removal.segments)
    items, parts, count = model.pack_items((p.position_id, part) for p, part in groups)
    target = removal.target
    gone = Entry.in_lane(
        queue_id,
        chosen.lane,
        removal.kind,
        sequence=chosen.sequence,
        ranges=parts,
        count=count,
        reason=removal.reason,
        body={
            "v": 1,
            "items": items,
            "target": target.queue_id if target else None,
            **chosen.ended(),
        },
        **stamp.columns(),
    )
    conditions = [*lane_conditions(queue_id, [(chosen.lane, chosen.sequence)])]
    posted = []
    if target is not None:
        conditions.append(model.queue_open(target.queue_id))
        for delivered, position, part in _by_count(removal.segments):
            origin = origin_of(queue_name, position, removal.reason, delivered)
            errors = removal.errors.get(position.position_id, ())
            for lane, piece in target.placed(position, part):
                for failed, error in _by_error(piece, errors):
                    moved = move(
                        position,
                        failed,
                        target.queue_id,
                        stamp,
                        origin if error is None else {**origin, "error": error},
                        lane=lane,
                        keeps_times=removal.kind == model.MOVED,
                    )
                    posted.append(moved)
    following = Selection(chosen.lane, chosen.sequence + 1, chosen.segments)
    return Plan((gone, *posted), tuple(conditions)), following


def _by_count(segments: Sequence[Segment]) -> Iterator[tuple[int, Position, tuple[Range, ...]]]:
    """Group segments by position within each run of equal delivery counts."""
    for delivered, alike in groupby(segments, key=lambda segment: segment.delivery_count):
        for position, part in grouped(alike):
            yield delivered, position, part


def _by_error(
    part: tuple[Range, ...], errors: Errors
) -> list[tuple[tuple[Range, ...], str | None]]:
    """Split messages of a position into runs by the error of their last delivery."""
    found: list[tuple[tuple[Range, ...], str | None]] = []
    for failed, error in errors:
        common = ranges.intersection(part, failed)
        if common:
            found.append((common, error))
            part = ranges.difference(part, common)
    found.append((part, None))
    pieces = sorted(((one, error) for some, error in found for one in some), key=itemgetter(0))
    runs = groupby(pieces, key=itemgetter(1))
    return [(tuple(one for one, _ in run), error) for error, run in runs]


def purge_pending(
    queue_id: str, chosen: Selection, segments: Sequence[Segment], stamp: Stamp, reason: str | None
) -> tuple[Plan, Selection]:
    """Plan the purge of messages in flight: they are removed if they would return.

    Returns:
        The plan, and the selection with the sequence number that comes next.
    """
    items, parts, count = model.pack_items((p.position_id, part) for p, part in grouped(segments))
    entry = Entry.in_lane(
        queue_id,
        chosen.lane,
        model.PURGE_PENDING,
        sequence=chosen.sequence,
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
    """Where moved messages go: a queue, and the lane of each message there.

    ``lanes`` gives the ranges of each lane by position; positions not named go to lane 0.
    """

    queue_id: str
    lanes: Mapping[model.PositionId, Mapping[int, tuple[Range, ...]]] = field(default_factory=dict)

    def placed(
        self, position: Position, part: tuple[Range, ...]
    ) -> list[tuple[int, tuple[Range, ...]]]:
        """Split messages of a position by the lane that they go to."""
        known = self.lanes.get(position.position_id)
        if known is None:
            return [(0, part)]
        found = ((lane, ranges.intersection(part, there)) for lane, there in known.items())
        return [(lane, piece) for lane, piece in found if piece]


def origin_of(
    queue_name: str, position: Position, reason: str | None, delivery_count: int
) -> dict[str, Any]:
    """Write the origin of a moved position, which dead letters show."""
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
    owner: AttemptOwner | None = None,
    lane: int = 0,
    keeps_times: bool = False,
) -> Entry:
    """Make the entry of a new position on the payload of another one; nothing is copied.

    With ``keeps_times`` the new position keeps delay and expiry. A dead letter does not, because
    its time to live may be over.
    """
    times = {"available_at": position.available_at_ms, "expires_at": position.expires_at_ms}
    kept = {name: at for name, at in times.items() if keeps_times and at is not None}
    return Entry.in_backlog(
        target_id,
        lane,
        model.POSTED,
        **(owner.columns() if owner else {}),
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
