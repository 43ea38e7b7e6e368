"""Take waiting messages out of a queue for good: purge them, or move them to another one.

What is in flight is not touched. It is one append, or several when very many pieces leave
a lane; each names what it takes in the lane's log, and repeating what failed is harmless.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from txnqueue import finding, model, planning, ranges
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.errors import QueueNotFound, SchemaMismatch
from txnqueue.ledger import Position, Segment
from txnqueue.model import PositionId, Range
from txnqueue.payload.rows import MESSAGE_COLUMN, lane_of
from txnqueue.planning import REMOVALS_MAX, Plan, Removal, Selection, Target
from txnqueue.receiving import part_of
from txnqueue.selecting import Selector
from txnqueue.sifting import firsts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Sort = Callable[[Sequence[Segment]], list[Removal]]
"""Says for some messages of one lane how and where to they leave."""
Lanes = Mapping[PositionId, Mapping[int, tuple[Range, ...]]]


def remove(
    client: Client,
    info: QueueInfo,
    kind: str,
    selector: Selector | None,
    sort: Sort,
    among: Callable[[Segment], bool] = lambda segment: True,
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

    Returns:
        How many left.
    """
    upto = client.store.journal.version()
    removed, more = 0, True

    def plan(lost: int) -> Plan | None:
        nonlocal more
        more = False
        with client.lock:
            fold, stamp = client.fold_to_change(info), client.stamp()
            found = Plan()
            left_out = finding.left_out(client, info, fold)
            for lane in fold.lanes.values():
                waiting = [s for s in lane.available if s.position.place[0] <= upto and among(s)]
                if selector is not None:
                    waiting = selector.of_lane(lane, waiting)
                chosen = Selection(lane.lane, lane.next_sequence)
                more = more or len(waiting) > REMOVALS_MAX
                twice: list[Segment] = []
                once = list(firsts(waiting[:REMOVALS_MAX], left_out, twice, lambda: False))
                said = [planning.leaving_out(twice)] if twice else []
                for removal in [*said, *sort(once)]:
                    gone, chosen = planning.remove(info.queue_id, info.name, chosen, removal, stamp)
                    found += gone
        return found if found.entries else None

    while more:
        landed = client.land(plan, kind, queue=info.name)
        removed += sum(e.count or 0 for e in (landed.entries if landed else ()) if e.kind == kind)
    return removed


def purging(reason: str | None) -> Sort:
    """Say that messages are thrown away."""

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        return [Removal(model.PURGED, tuple(segments), reason)] if segments else []

    return sort


def moving(client: Client, info: QueueInfo, target: QueueInfo, schema: StructType) -> Sort:
    """Say that messages go to another queue, each to the lane that its rules give it.

    Raises:
        SchemaMismatch: The other queue has other columns.
    """
    if _columns(info) != _columns(target):
        raise SchemaMismatch(
            f"The queues {info.name!r} and {target.name!r} have different columns: messages "
            "cannot move between them."
        )

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        if not segments:
            return []
        lanes = _lanes_of(client, info, target, schema, segments)
        return [Removal(model.MOVED, tuple(segments), "moved", Target(target.queue_id, lanes))]

    return sort


def redriving(client: Client) -> Sort:
    """Say that messages go back to the queues and lanes that they came from.

    Raises:
        QueueNotFound: A queue that they came from is gone.
    """
    known = {info.queue_id: info for info in client.queues().values()}

    def sort(segments: Sequence[Segment]) -> list[Removal]:
        homes: dict[str, list[Segment]] = defaultdict(list)
        for segment in segments:
            origin = segment.position.origin
            assert origin is not None
            if origin["queue_id"] not in known:
                raise QueueNotFound(
                    f"The queue {origin['queue']!r}, where some came from, is gone: move them to "
                    "another one.",
                    name=origin["queue"],
                )
            homes[origin["queue_id"]].append(segment)
        return [
            Removal(
                model.MOVED,
                tuple(found),
                "redriven",
                Target(queue_id, {s.position.position_id: _home(s.position) for s in found}),
            )
            for queue_id, found in homes.items()
        ]

    return sort


def came_from_elsewhere(segment: Segment) -> bool:
    """Say whether messages came by a move; what was sent here has nowhere to go back to."""
    return model.was_moved(segment.position.origin)


def _home(position: Position) -> dict[int, tuple[Range, ...]]:
    assert position.origin is not None
    return {position.origin["lane"]: position.ranges}


def _columns(info: QueueInfo) -> list[tuple[str, object]]:
    return [(column["name"], column["type"]) for column in info.schema["fields"]]


def _lanes_of(
    client: Client,
    info: QueueInfo,
    target: QueueInfo,
    schema: StructType,
    segments: Sequence[Segment],
) -> Lanes:
    """Find the lane of each message in another queue: by its key, or position by position."""
    lanes, group_by = target.settings.lanes, target.settings.lanes_by
    if lanes == 1 or group_by is None:
        return {
            s.position.position_id: {_spread(s.position, lanes): s.position.ranges}
            for s in segments
        }
    parts = [part_of(s.position, ((s.first, s.last),), info.name, 0, 0) for s in segments]
    table = client.payload.table(schema, parts)
    messages = table.column(MESSAGE_COLUMN).to_pylist()
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, message in zip(table.column(group_by).to_pylist(), messages, strict=True):
        offsets[message["send_id"], lane_of(key, lanes)].append(message["send_offset"])
    found: dict[PositionId, dict[int, tuple[Range, ...]]] = {}
    for segment in segments:
        position = segment.position
        found[position.position_id] = {
            lane: mine
            for (send_id, lane), there in offsets.items()
            if send_id == position.send_id
            and (mine := ranges.intersection(position.ranges, ranges.of_offsets(there)))
        }
    return found


def _spread(position: Position, lanes: int) -> int:
    append_id, index = position.position_id
    return zlib.crc32(f"{append_id}/{index}".encode()) % lanes
