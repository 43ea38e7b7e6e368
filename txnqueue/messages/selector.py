"""Which messages a caller means: a SQL predicate, rows to match, messages or message ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.client.client import Client
from txnqueue.core import ranges
from txnqueue.core.custody import NotRead
from txnqueue.core.model import PositionId, Range
from txnqueue.core.settings import check_text
from txnqueue.core.state import LaneState, Segment
from txnqueue.errors import InvalidInput
from txnqueue.messages.claim import part_of
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload import Part, evaluating, places_where
from txnqueue.storage.payload.frames import is_frame
from txnqueue.storage.payload.schemas import MESSAGE_COLUMN
from txnqueue.types import Matching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Reasons = dict[str | None, dict[str, list[int]]]
"""Send offsets by reason and send id."""


def offsets_of(matching: Matching, reason_column: str | None) -> Reasons:
    """Read which messages a caller means, by reason and send."""
    if is_frame(matching):
        with evaluating("matching", matching):
            rows = _rows_of(matching, reason_column)
    elif isinstance(matching, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        rows = [_row(row, reason_column) for row in matching.to_pylist()]
    elif isinstance(matching, Iterable) and not isinstance(matching, (str, bytes)):
        rows = [_row(row, reason_column) for row in matching]
    else:
        raise InvalidInput(
            f"matching={type(matching).__name__}: give a DataFrame with {MESSAGE_COLUMN}, "
            "messages, or message ids."
        )
    found: Reasons = {}
    seen: set[str] = set()
    for row in rows:
        if row["id"] in seen:  # named twice: the first reason stands
            continue
        seen.add(row["id"])
        send_id, _, offset = str(row["id"]).rpartition(":")
        if not send_id or not offset.isdecimal():
            raise InvalidInput(f"{row['id']!r} is no message id: take it from _message.id.")
        found.setdefault(row.get("reason"), {}).setdefault(send_id, []).append(int(offset))
    return {
        reason: {send_id: sorted(set(offsets)) for send_id, offsets in by_send.items()}
        for reason, by_send in found.items()
    }


def _rows_of(frame: Any, reason_column: str | None) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    chosen = [F.col(f"{MESSAGE_COLUMN}.id").alias("id")]
    if reason_column is not None:
        chosen.append(F.col(identifier(reason_column)).cast("string").alias("reason"))
    rows: list[dict[str, Any]] = frame.select(*chosen).toArrow().to_pylist()
    return rows


def _row(row: object, reason_column: str | None) -> dict[str, Any]:
    if isinstance(row, str) and reason_column is None:
        return {"id": row}
    message = row.get(MESSAGE_COLUMN) if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(message, Mapping) and "id" in message:
        if reason_column is not None and reason_column not in row:
            raise InvalidInput(
                f"reason_column={reason_column!r} is no column of matching=.", name="reason_column"
            )
        why = None if reason_column is None else row[reason_column]
        said = None if why is None else check_text("reason_column", str(why))
        return {"id": message["id"], "reason": said}
    if isinstance(row, str):
        raise InvalidInput("reason_column= names a column of matching=, and ids have none.")
    raise InvalidInput(f"{row!r} is neither a message id nor a message with {MESSAGE_COLUMN}.")


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

    def of_lane(self, lane: LaneState, segments: Sequence[Segment]) -> list[Segment]:
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
