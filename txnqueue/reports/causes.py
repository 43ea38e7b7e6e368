"""Dead letters by origin and reason (pure)."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from txnqueue.core import ranges
from txnqueue.core.instants import instant
from txnqueue.core.model import Range
from txnqueue.core.state import Position, QueueState
from txnqueue.types import DeadLetterCount

SAMPLES_MAX = 5
"""How many messages of a cause are named."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Messages of one position that are in a queue."""

    what: Literal["waiting", "in_flight"]
    position: Position
    ranges: tuple[Range, ...]
    lane: int
    delivery_count: int


@dataclass(slots=True)
class CountedCause:
    """The dead letters of one origin and reason.

    Attributes:
        row: What is told of them.
        samples: Where some of them stand: at most so many places as samples.
    """

    row: DeadLetterCount
    samples: list[Standing] = field(default_factory=list)


def standing(fold: QueueState) -> Iterator[Standing]:
    """Pass on what is in a queue: what waits, and what is in flight."""
    for lane in fold.lanes.values():
        for segment in lane.available:
            place = (segment.position, ((segment.first, segment.last),), lane.lane)
            yield Standing("waiting", *place, segment.delivery_count)
        for claim in lane.claims.values():
            for position_id, part in claim.items.items():
                position, count = fold.positions[position_id], claim.delivery_count
                yield Standing("in_flight", position, part, lane.lane, count)


def counted(
    found: Iterable[Standing], of_queues: Collection[str] | None = None
) -> list[CountedCause]:
    """Count dead letters by origin and reason, the most frequent first.

    Args:
        found: What is in a dead-letter queue.
        of_queues: Only what came from the queues of these ids; all that came when left out.
    """
    causes: dict[tuple[str, str | None], CountedCause] = {}
    for one in found:
        origin = one.position.origin
        if origin is None or (of_queues is not None and origin.get("queue_id") not in of_queues):
            continue
        at_ms = one.position.posted_at_ms
        at = instant(at_ms)
        queue, reason = origin["queue"], origin["reason"]
        cause = causes.get((queue, reason))
        if cause is None:
            cause = causes[queue, reason] = CountedCause(_fresh(queue, reason, at))
        row = cause.row
        row[one.what] += ranges.count(one.ranges)
        row["oldest_at"] = min(row["oldest_at"], at)
        if at > row["newest_at"]:
            row["newest_at"], row["error"] = at, origin.get("error")
        elif at == row["newest_at"]:  # of those that came together one with an error
            row["error"] = row["error"] or origin.get("error")
        if len(cause.samples) < SAMPLES_MAX:
            cause.samples.append(one)

    def order(cause: CountedCause) -> tuple[int, str]:
        return (-cause.row["waiting"] - cause.row["in_flight"], str(cause.row["reason"]))

    return sorted(causes.values(), key=order)


def _fresh(queue: str, reason: str | None, at: datetime.datetime) -> DeadLetterCount:
    return {
        "queue": queue,
        "reason": reason,
        "waiting": 0,
        "in_flight": 0,
        "oldest_at": at,
        "newest_at": at,
        "error": None,
    }
