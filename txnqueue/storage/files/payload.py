"""The payload of a read-only store: rows of Parquet files, found by their places."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import MESSAGE_COLUMN
from txnqueue.errors import FilesNotReadable, OnlyLooking, PayloadRemoved
from txnqueue.storage import setbacks
from txnqueue.storage.files import calendar, parquet
from txnqueue.storage.files.arrays import texts
from txnqueue.storage.files.delta_log import DataFile, DeltaLog, TableVersion, repeated
from txnqueue.storage.files.entries import lost, path_of
from txnqueue.storage.files.integrity import damaged, understanding
from txnqueue.storage.payload import Part, Run, Send, StagedPlace
from txnqueue.storage.payload.described import Described, arrow_type
from txnqueue.storage.payload.message_info import MESSAGE_INFO, message_info

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import ParquetFile, RowGroupMetaData
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_HEADERS = pa.map_(pa.string(), pa.string())
_KEYS = pa.schema(
    [
        ("send_id", pa.string()),
        ("send_offset", pa.int64()),
        ("headers", _HEADERS),
    ]
)
_send_id = attrgetter("send_id")
_Bounds = Mapping[str, tuple[Any, Any]]
"""The known minimum and maximum values of columns."""


class FilesPayload:
    """The payload tables below a store's folder."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        live: Callable[[], Collection[str]],
    ) -> None:
        """Read nothing yet.

        Args:
            filesystem: The file system of the store.
            folder: The store's folder.
            live: Reads which owners exist, whose tables are never removed.
        """
        self._filesystem = filesystem
        self._folder = folder
        self._live = live

    def schema(self, *described: Mapping[str, Any]) -> StructType:
        """Read columns from their description in the catalog; others are never searched here."""
        return Described(described[0]).as_schema()

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets.

        Raises:
            PayloadRemoved: Their payload is past its retention.
        """
        described = schema if isinstance(schema, Described) else Described(schema.jsonValue())
        columns = described.arrow()
        whole = columns.append(pa.field(MESSAGE_COLUMN, MESSAGE_INFO))
        tables = [
            rows.select(columns.names).append_column(whole[-1], _messages(rows, part))
            for part, rows in zip(parts, self.pieces(columns, parts), strict=True)
        ]
        return pa.concat_tables([whole.empty_table(), *tables])

    def pieces(self, columns: pa.Schema, parts: Sequence[Part]) -> Iterator[pa.Table]:
        """Read the rows of each part, in the order of their offsets.

        Args:
            columns: The payload's columns.
            parts: The messages.

        Returns:
            For each part, a table with these columns and send_id, send_offset and headers.

        Raises:
            PayloadRemoved: Some of them no longer exist.
            StoreCorrupt: A file is damaged or missing, or the table of an owner that exists is.
        """
        owners: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parts:
            owners[part.payload_id].append(part)
        found = {owner: _Rows(self._rows(owner, mine, columns)) for owner, mine in owners.items()}
        for part in parts:
            rows = found[part.payload_id].of(part)
            if rows.num_rows < ranges.count(part.ranges):
                raise PayloadRemoved
            yield rows

    def _rows(self, owner: str, parts: Sequence[Part], columns: pa.Schema) -> pa.Table:
        """Read the rows of some sends of an owner, with their places."""
        log = DeltaLog(self._filesystem, f"{self._folder}/payload/{owner}")
        slices = {str(part.slice) for part in parts}
        parts = sorted(parts, key=_send_id)
        wanted = _KEYS
        for field in columns:
            wanted = wanted.append(field)
        try:
            read = self._of_table(log, slices, parts, wanted)
        except PayloadRemoved as error:  # only here all of it is: rows are missed later
            if owner in self._live() and not log.exists():
                raise setbacks.payload_gone(log.folder) from error
            raise
        return pa.concat_tables([wanted.empty_table(), *read])

    def _of_table(
        self, log: DeltaLog, slices: Collection[str], parts: Sequence[Part], wanted: pa.Schema
    ) -> list[pa.Table]:
        """Read the rows of some sends in each file that may have them.

        Raises:
            PayloadRemoved: There is no such table any more.
            StoreCorrupt: A file is damaged, or is missing and needed.
        """

        def read(_last: bool) -> list[pa.Table]:  # noqa: FBT001 - as repeated() calls it
            newest = _newest(log)
            others = _others(newest, wanted)
            files = [
                one
                for one in newest.files.values()
                if one.partition.get("slice") in slices and _may_hold(_of_file(one), parts)
            ]
            paths = [path_of(log.folder, one) for one in files]
            try:
                return parquet.side_by_side(
                    lambda path: self._file(path, parts, wanted, others), paths
                )
            except FileNotFoundError as error:
                corrupt = lost(log, files)
                if corrupt is not None:
                    raise corrupt from error
                raise  # maintenance has rewritten or removed it meanwhile

        try:
            return repeated(read)
        except FileNotFoundError as error:
            raise PayloadRemoved from error

    def _file(
        self, path: str, parts: Sequence[Part], wanted: pa.Schema, others: Collection[str]
    ) -> pa.Table:
        """Read the rows of some sends in a file.

        Args:
            path: The file.
            parts: The messages, sorted by their sends.
            wanted: The columns.
            others: Those of them by whose names the table has other columns.
        """
        with (
            understanding(self._filesystem, path),
            self._filesystem.open_input_file(path) as content,
        ):
            file = parquet.opened(content)
            groups = _groups(file, parts)
            names = [name for name in wanted.names if name not in others]
            stored = parquet.read(file, names, groups)
            stored = stored.filter(_around(stored, parts))
            calendar.check(file.metadata.metadata, stored, path)
            count = stored.num_rows
            return pa.table(
                [
                    stored[field.name].cast(field.type)
                    if field.name in stored.column_names
                    else pa.nulls(count, field.type)
                    for field in wanted
                ],
                schema=wanted,
            )

    # ------------------------------------------------------------- not for read-only stores

    def matching(self, schema: StructType, payload_id: str, where: str) -> list[StagedPlace]:
        """Refuse: a predicate is SQL, which only Spark evaluates."""
        raise FilesNotReadable("where= is SQL, which only Spark evaluates: use QueueManager.")

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Refuse: a DataFrame needs a session."""
        raise FilesNotReadable("A DataFrame needs a session: use QueueManager.")

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Refuse to write."""
        _refuse()

    def add_columns(self, payload_id: str, columns: StructType) -> None:
        """Refuse to write."""
        _refuse()

    def stage(self, send: Send, rows: object) -> list[Run]:
        """Refuse to write."""
        _refuse()

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Refuse: it is read in order to write."""
        _refuse()

    def lanes(
        self, column: str, lanes: int, parts: Sequence[Part]
    ) -> list[dict[int, tuple[Range, ...]]]:
        """Refuse: it is read in order to write."""
        _refuse()

    def rows(self, payload_id: str, places: Sequence[tuple[int, str, tuple[Range, ...]]]) -> int:
        """Refuse: only the proof, which needs Spark, counts rows."""
        _refuse()

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        log = DeltaLog(self._filesystem, f"{self._folder}/payload/{payload_id}")
        found = (one.partition.get("slice") for one in log.newest().files.values())
        return {int(one) for one in found if one is not None}

    def drop(self, payload_id: str, slices: Collection[int]) -> None:
        """Refuse to write."""
        _refuse()

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        """Refuse to write."""
        _refuse()

    def files_kept_seconds(self, payload_id: str) -> float:
        """Refuse: only maintenance asks."""
        _refuse()

    def removed_files(self, payload_id: str) -> int | None:
        """Refuse: only maintenance asks."""
        _refuse()

    def orphans(self, known: Collection[str]) -> dict[str, int]:
        """Refuse: only maintenance asks."""
        _refuse()


def _newest(log: DeltaLog) -> TableVersion:
    """Read the newest version of a payload table.

    Raises:
        PayloadRemoved: There is no such table any more.
        StoreCorrupt: A file that its log names is gone.
    """
    try:
        return log.newest()
    except FileNotFoundError as error:
        if log.exists():
            raise damaged(log.folder, f"a file that its log names is gone ({error})") from error
        raise PayloadRemoved from error


def _others(table: TableVersion, wanted: pa.Schema) -> set[str]:
    """Find the columns that a table has with other types than the catalog says (pure).

    Such a column is another one, which the owner got after the messages that are to be shown had
    left it. A file that is written anew has it, with nulls, beside their rows.
    """
    there = ((name, table.columns.get(name)) for name in wanted.names if name not in _KEYS.names)
    return {
        name
        for name, kind in there
        if kind is not None and not _is_of_type(kind, wanted.field(name).type)
    }


def _is_of_type(kind: str | Mapping[str, Any], wanted: pa.DataType) -> bool:
    """Return whether a type, as Spark's JSON, is that of a column (pure)."""
    try:
        found: pa.DataType = arrow_type(kind)
    except KeyError:  # no payload has columns of this type
        return False
    return bool(found.equals(wanted))


def _around(rows: pa.Table, parts: Sequence[Part]) -> pa.ChunkedArray:
    """Tell which rows are of some parts' sends, between the first and the last offset of all."""
    sends = texts(dict.fromkeys(map(_send_id, parts)))
    named = [one for part in parts for one in part.ranges]
    lowest = min((first for first, _ in named), default=0)
    highest = max((last for _, last in named), default=0)
    offsets = rows["send_offset"]
    inside = pc.and_(pc.greater_equal(offsets, lowest), pc.less_equal(offsets, highest))
    return pc.and_(pc.is_in(rows["send_id"], sends), inside)


class _Rows:
    """Rows of many sends, found by send: those of one lie together, or in few runs."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        start = 0
        for chunk in pc.run_end_encode(rows["send_id"], run_end_type=pa.int64()).chunks:
            ends = [start + end for end in chunk.run_ends.to_pylist()]
            for send_id, end in zip(chunk.values.to_pylist(), ends, strict=True):
                self._runs[send_id].append((start, end - start))
                start = end

    def of(self, part: Part) -> pa.Table:
        """Select the rows of a part, in the order of their offsets."""
        runs = [self._rows.slice(*run) for run in self._runs.get(part.send_id, ())]
        mine = pa.concat_tables([self._rows.slice(0, 0), *runs]).sort_by("send_offset")
        offsets = mine["send_offset"].combine_chunks()
        places = range(mine.num_rows)

        def offset(place: int) -> int:
            return cast("int", offsets[place].as_py())

        wanted = [mine.slice(0, 0)]
        for first, last in part.ranges:
            begin = bisect_left(places, first, key=offset)
            end = bisect_right(places, last, begin, key=offset)
            wanted.append(mine.slice(begin, end - begin))
        return pa.concat_tables(wanted)


def _messages(rows: pa.Table, part: Part) -> pa.Array:
    """Return the ``_message`` of each row."""
    names: list[str | None] = [None] * rows.num_rows
    if part.message_id is not None:
        names = [None if name is None else str(name) for name in rows[part.message_id].to_pylist()]
    offsets, headers = rows["send_offset"].to_pylist(), rows["headers"].to_pylist()
    found = [
        message_info(part, offset, None if pairs is None else dict(pairs), name)
        for offset, pairs, name in zip(offsets, headers, names, strict=True)
    ]
    return pa.array(found, MESSAGE_INFO)


def _of_file(one: DataFile) -> _Bounds:
    """Return the bounds of a file's rows, from Delta's log (pure)."""
    stats = json.loads(one.stats or "{}")
    least, most = stats.get("minValues", {}), stats.get("maxValues", {})
    return {name: (least[name], most[name]) for name in least.keys() & most.keys()}


def _groups(file: ParquetFile, parts: Sequence[Part]) -> list[int]:
    """List the row groups of a file that may have rows of some parts, sorted by send.

    If there is only one, its statistics are not looked at: they say no more than those in Delta's
    log, and if they are damaged, Arrow may end the process instead of raising an error.
    """
    groups = range(file.num_row_groups)
    if len(groups) == 1:
        return [0]
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    places = {name: paths.index(name) for name in ("send_id", "send_offset") if name in paths}
    return [n for n in groups if _may_hold(_of_group(file.metadata.row_group(n), places), parts)]


def _of_group(group: RowGroupMetaData, places: Mapping[str, int]) -> _Bounds:
    """Return the bounds of a row group's rows, from the file (pure).

    Args:
        group: The row group.
        places: The places of the columns whose bounds are asked for.
    """
    known = {name: group.column(place).statistics for name, place in places.items()}
    return {
        name: (one.min, one.max)
        for name, one in known.items()
        if one is not None and one.has_min_max
    }


def _may_hold(bounds: _Bounds, parts: Sequence[Part]) -> bool:
    """Return whether rows within some bounds may belong to some parts, sorted by send (pure)."""
    if "send_id" not in bounds:
        return True
    first, last = bounds["send_id"]
    lowest, highest = bounds.get("send_offset", (0, float("inf")))
    begin = bisect_left(parts, first, key=_send_id)
    end = bisect_right(parts, last, begin, key=_send_id)
    return any(
        start <= highest and stop >= lowest
        for part in parts[begin:end]
        for start, stop in part.ranges
    )


def _refuse() -> NoReturn:
    raise OnlyLooking
