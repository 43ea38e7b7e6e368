"""The in-memory implementation of payload, as Arrow tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import MESSAGE_COLUMN
from txnqueue.errors import PayloadRemoved, PlatformMissing
from txnqueue.storage.journal.memory import Step, no_step
from txnqueue.storage.payload import Part, Run, Send, StagedPlace
from txnqueue.storage.payload.arrangement import Arranged, arrange, widened
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.frames import is_frame
from txnqueue.storage.payload.islands import staged_places
from txnqueue.storage.payload.keys import Lanes, check_lanes
from txnqueue.storage.payload.message_info import message_info
from txnqueue.storage.payload.rows import arrow_table, lane_of, texts_of
from txnqueue.storage.payload.schemas import MESSAGE, described_columns, new_columns
from txnqueue.storage.payload.types import arrow_schema, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Headers = list[dict[str, str] | None]
_MESSAGE = arrow_schema(StructType([MESSAGE])).field(0)


_SAID = pa.struct([("headers", pa.map_(pa.string(), pa.string()))])
"""What a predicate may use besides the payload's columns."""


class MemoryPayload:
    """Sends by id, each with the offsets of one task.

    Threads share it: what is iterated is a copy, which Python makes in one step.
    """

    def __init__(self, spark: SparkSession | None = None, step: Step = no_step) -> None:
        """Create an empty payload store.

        Args:
            spark: The session for DataFrames; without one, only Arrow tables are possible.
            step: Called before each atomic step of a call, with the step's name.
        """
        self.step = step
        self._spark = spark
        self._sends: dict[tuple[str, str], pa.Table] = {}
        self._headers: dict[tuple[str, str], Headers] = {}
        self._columns: dict[str, dict[str, StructField]] = {}
        self._slices: dict[tuple[str, str], int] = {}
        self._erased: dict[tuple[str, str], tuple[Range, ...]] = {}
        self.made_ms: dict[str, int] = {}

    @property
    def folder(self) -> str:
        """Return no path: there are no files."""
        return ""

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Create an owner's payload table if it does not exist."""
        self.step("create payload")
        self._columns.setdefault(payload_id, {folded(c.name): c for c in schema.fields})

    def add_columns(self, payload_id: str, columns: StructType) -> None:
        """Add columns to an owner's rows; existing ones are not changed."""
        self.step("alter payload")
        there = self._columns[payload_id]
        for column in new_columns(there, columns):
            there[folded(column.name)] = column

    def stage(self, send: Send, rows: object) -> list[Run]:
        """Write the rows of one send, arranged by lane."""
        given = rows.toArrow() if is_frame(rows) else rows
        arranged = arrange(send, arrow_table(widened(send, given), given))
        self.step("stage")
        self._put(send, arranged)
        return arranged.runs

    def schema(self, *described: Mapping[str, Any]) -> StructType:
        """Read columns as the catalog describes them."""
        return described_columns(*described)

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets."""
        self.step("scan")
        wanted = arrow_schema(StructType([*schema.fields, MESSAGE]))
        found = (self._part(part, first, last) for part in parts for first, last in part.ranges)
        pieces = [_grown(piece, wanted) for piece in found]
        return pa.concat_tables([wanted.empty_table(), *pieces])

    def _part(self, part: Part, first: int, last: int) -> pa.Table:
        staged, headers = self._staged(part.payload_id, part.send_id)
        if self._gone(part.payload_id, part.send_id, ((first, last),)):
            raise PayloadRemoved(send_id=part.send_id)
        rows = staged.slice(first, last - first + 1)
        named = rows.column(part.message_id) if part.message_id else pa.nulls(rows.num_rows)
        messages = [
            message_info(part, offset, headers[offset], name)
            for offset, name in zip(
                range(first, last + 1), texts_of(named.to_pylist()), strict=True
            )
        ]
        return rows.append_column(_MESSAGE, pa.array(messages, _MESSAGE.type))

    def _put(self, send: Send, arranged: Arranged) -> None:
        self._sends[send.payload_id, send.send_id] = arranged.rows
        self._headers[send.payload_id, send.send_id] = arranged.headers
        self._slices[send.payload_id, send.send_id] = send.slice

    def _staged(self, payload_id: str, send_id: str) -> tuple[pa.Table, Headers]:
        if (payload_id, send_id) not in self._sends:
            raise PayloadRemoved(send_id=send_id)
        return self._sends[payload_id, send_id], self._headers[payload_id, send_id]

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Read one column as text: the values of each part, in the order of its ranges."""
        self.step("scan")
        return [self._texts(column, part) for part in parts]

    def _texts(self, column: str, part: Part) -> Iterator[str | None]:
        try:
            rows, _ = self._staged(part.payload_id, part.send_id)
        except (KeyError, PayloadRemoved):
            return
        # Rows moved here may be older than the column.
        known = column in rows.column_names
        values = rows.column(column) if known else pa.nulls(rows.num_rows)
        there = ranges.difference(
            part.ranges, self._erased.get((part.payload_id, part.send_id), ())
        )
        for first, last in there:
            yield from texts_of(values.slice(first, last - first + 1).to_pylist())

    def lanes(self, column: str, lanes: int, parts: Sequence[Part]) -> list[Lanes]:
        """Find the lane of each message by a grouping column, for each part by lane."""
        found: list[Lanes] = []
        for part, texts in zip(parts, self.texts(column, parts), strict=True):
            offsets: dict[int, list[int]] = defaultdict(list)
            numbers = (n for first, last in part.ranges for n in range(first, last + 1))
            for offset, key in zip(numbers, texts, strict=False):
                offsets[lane_of(key, lanes)].append(offset)
            found.append({lane: ranges.of_offsets(mine) for lane, mine in offsets.items()})
        return check_lanes(parts, found)

    def staged(self, payload_id: str, send_id: str) -> pa.Table:
        """Read all rows of one send."""
        self.step("scan")
        return self._sends[payload_id, send_id]

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame of messages."""
        return frame_of(self._session(), self.table(schema, parts))

    def rows(self, payload_id: str, places: Sequence[StagedPlace]) -> int:
        """Count the rows that exist at some places."""
        return sum(
            rows.slice(first, last - first + 1).num_rows
            for _, send_id, part in places
            if (rows := self._sends.get((payload_id, send_id))) is not None
            for first, last in ranges.difference(part, self._erased.get((payload_id, send_id), ()))
        )

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        self.step("slices")
        return {slice_ for (owner, _), slice_ in [*self._slices.items()] if owner == payload_id}

    def drop(self, payload_id: str, slices: Collection[int]) -> None:
        """Delete all rows of some slices."""
        self.step("drop")
        gone = [k for k, s in [*self._slices.items()] if k[0] == payload_id and s in slices]
        for key in gone:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        for kept in (self._slices, self._sends, self._headers, self._erased):
            kept.pop(key, None)  # another maintenance may be doing the same

    def erase(self, payload_id: str, places: Sequence[StagedPlace]) -> None:
        """Replace the rows at some places by nulls, so that the others keep their offsets."""
        self.step("erase")
        for _, send_id, part in places:
            key = (payload_id, send_id)
            if key not in self._sends:
                continue
            rows, headers = self._sends[key], self._headers[key]
            gone = ranges.intersection(part, ((0, rows.num_rows - 1),))
            erased = ranges.normalised((*self._erased.get(key, ()), *gone))
            if ranges.count(erased) == rows.num_rows:
                self._drop(key)
                continue
            lost = {n for first, last in gone for n in range(first, last + 1)}
            kept = [None if n in lost else n for n in range(rows.num_rows)]
            self._sends[key] = rows.take(pa.array(kept, pa.int64()))
            self._headers[key] = [None if n in lost else one for n, one in enumerate(headers)]
            self._erased[key] = erased

    def _gone(self, payload_id: str, send_id: str, part: Sequence[Range]) -> bool:
        return bool(ranges.intersection(part, self._erased.get((payload_id, send_id), ())))

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove unneeded files; there are none."""
        return None

    def files_kept_seconds(self, payload_id: str) -> float:
        """Return how long, in seconds, files of deleted rows are kept; there are none."""
        return 0.0

    def removed_files(self, payload_id: str) -> int | None:
        """Count the files of deleted rows, which leave nothing behind."""
        return 0

    def orphans(self, known: Collection[str]) -> dict[str, int]:
        """List the tables of unknown owners, with the time of creation."""
        self.step("list payload")
        return {one: self.made_ms.get(one, 0) for one in [*self._columns] if one not in known}

    def matching(self, schema: StructType, payload_id: str, where: str) -> list[StagedPlace]:
        """Find all rows that match a SQL predicate, on the session if there is one."""
        self.step("scan")
        frame = self._all_rows(schema, payload_id)
        return [] if frame is None else staged_places(frame, where)

    def _all_rows(self, schema: StructType, payload_id: str) -> DataFrame | None:
        """Return all rows of an owner that were not erased, with their places; None if none.

        Columns that rows lack are null.
        """
        session = self._session()
        sends = [self._with_places(key) for key in [*self._sends] if key[0] == payload_id]
        if not sends:
            return None
        rows = pa.concat_tables(sends, promote_options="default")
        for field in arrow_schema(schema):
            if field.name not in rows.schema.names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return frame_of(session, rows)

    def _with_places(self, key: tuple[str, str]) -> pa.Table:
        rows, count = self._sends[key], self._sends[key].num_rows
        there = ranges.difference(((0, count - 1),), self._erased.get(key, ()))
        offsets = [n for first, last in there for n in range(first, last + 1)]
        said = [{"headers": one and list(one.items())} for one in self._headers[key]]
        return (
            rows.append_column("_slice", pa.repeat(pa.scalar(self._slices[key]), count))
            .append_column("_send_id", pa.repeat(pa.scalar(key[1]), count))
            .append_column("_send_offset", pa.array(range(count), pa.int64()))
            .append_column(MESSAGE_COLUMN, pa.array(said, _SAID))
            .take(pa.array(offsets, pa.int64()))
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise PlatformMissing(
                "A store in memory needs a session for DataFrames and predicates: use messages() "
                "or to_arrow(), or give the store a SparkSession."
            )
        return self._spark


def _grown(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Add to rows the columns that their queue got later."""
    if rows.schema.names == wanted.names:
        return rows
    columns = [
        rows.column(field.name)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)
