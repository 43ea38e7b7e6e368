"""Find which waiting messages a selector means: a SQL predicate, or rows to match."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txnqueue import ranges
from txnqueue.client import Client
from txnqueue.custody import NotRead
from txnqueue.errors import InvalidInput
from txnqueue.journal.tables import identifier
from txnqueue.ledger import LaneFold, Segment
from txnqueue.model import PositionId, Range
from txnqueue.payload import Part, evaluating, places_where
from txnqueue.payload.schemas import MESSAGE_COLUMN
from txnqueue.receiving import part_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Wanted = dict[PositionId, tuple[Range, ...]]
"""The offsets that are meant, by position."""


class Selector:
    """What a caller wants of a queue; each message is looked at once in a call."""

    def __init__(
        self,
        client: Client,
        queue: str,
        schema: StructType,
        where: str | None = None,
        matching: DataFrame | None = None,
        on: str | Sequence[str] | None = None,
    ) -> None:
        """Describe what is wanted.

        Args:
            client: Reads the payload.
            queue: The queue's name.
            schema: The payload's columns.
            where: A SQL predicate over the columns of ``Batch.df``, ``_message`` included.
            matching: Instead: a DataFrame; wanted is what has a match in it.
            on: The columns that match.

        Raises:
            InvalidInput: It is neither the one nor the other, or ``on`` names no column.
        """
        if (where is None) == (matching is None):
            raise InvalidInput("Give where= or matching=: one of them.")
        if (matching is None) != (on is None):
            raise InvalidInput("matching= and on= go together: say which columns match.")
        self._client = client
        self._queue = queue
        self._schema = schema
        self._where = where
        self._matching = matching
        self._on = [on] if isinstance(on, str) else list(on or ())
        columns = getattr(matching, "columns", ())
        for name in self._on:
            if name not in schema.names or list(columns).count(name) != 1:
                raise InvalidInput(f"on={name!r} is no column of both sides.", name=name)
        self._seen: Wanted = {}
        self._wanted: Wanted = {}

    def of_lane(self, lane: LaneFold, segments: Sequence[Segment]) -> list[Segment]:
        """Cut the wanted messages out of some segments of a lane, in the same order.

        Raises:
            NotRead: They are to be looked at first, which takes a query.
        """
        number = lane.lane
        if any(self._new(segment) for segment in segments):
            raise NotRead(lambda: self._look(segments, number))
        return [
            s.cut(first, last)
            for s in segments
            for first, last in ranges.intersection(
                self._wanted.get(s.position.position_id, ()), ((s.first, s.last),)
            )
        ]

    # -------------------------------------------------------------------------- helpers

    def _new(self, segment: Segment) -> tuple[Range, ...]:
        """Find what of a segment was not looked at yet."""
        seen = self._seen.get(segment.position.position_id, ())
        return ranges.difference(((segment.first, segment.last),), seen)

    def _look(self, segments: Sequence[Segment], lane: int) -> None:
        """Evaluate what was not evaluated yet, in one query."""
        parts: list[Part] = []
        asked: dict[str, list[PositionId]] = defaultdict(list)
        seen: Wanted = {}
        for segment in segments:
            position_id = segment.position.position_id
            new = self._new(segment)
            if new:
                before = seen.get(position_id, self._seen.get(position_id, ()))
                seen[position_id] = ranges.normalised((*before, *new))
                count = segment.delivery_count
                parts.append(part_of(segment.position, new, self._queue, lane, count))
                asked[segment.position.send_id].append(position_id)
        offsets: dict[str, list[int]] = defaultdict(list)
        for send_id, offset in self._places(parts):
            offsets[send_id].append(offset)
        for send_id, found in offsets.items():
            there = ranges.of_offsets(found)
            for position_id in asked[send_id]:
                mine = ranges.intersection(there, seen[position_id])
                known = self._wanted.get(position_id, ())
                self._wanted[position_id] = ranges.normalised((*known, *mine))
        self._seen.update(seen)

    def _places(self, parts: Sequence[Part]) -> list[tuple[str, int]]:
        frame: Any = self._client.payload.frame(self._schema, parts)
        if self._matching is not None:
            with evaluating("matching", self._matching):
                columns = self._matching.select(*map(identifier, self._on))
                frame = frame.join(columns, self._on, "left_semi")
        frame = frame.withColumn("_send_id", frame[f"{MESSAGE_COLUMN}.send_id"])
        frame = frame.withColumn("_send_offset", frame[f"{MESSAGE_COLUMN}.send_offset"])
        return places_where(frame, self._where or "true", None, [])
