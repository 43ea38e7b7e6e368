"""The entries in the data files of the journal or the archive, read with pyarrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import FilesNotReadable, StoreCorrupt, StoreError
from txnqueue.storage.files import parquet
from txnqueue.storage.files.arrays import empty, numbers, texts
from txnqueue.storage.files.delta_log import DataFile, DeltaLog, TableVersion
from txnqueue.storage.files.integrity import content_of, damaged, reaching, understanding
from txnqueue.storage.journal import EntryFilter, Newest, Order
from txnqueue.storage.journal.filters import shards_of
from txnqueue.storage.journal.rows import entry_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

KEPT_BYTES_MAX = 64 << 20
"""The size of the cache of what was read."""
_RANGE = pa.struct([("first", pa.int64()), ("last", pa.int64())])
_INSTANT = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        ("shard", pa.string()),
        ("stream", pa.string()),
        ("sequence", pa.int64()),
        ("kind", pa.string()),
        ("append_id", pa.string()),
        ("ordinal", pa.int32()),
        ("index", pa.int32()),
        ("transaction_key", pa.string()),
        ("attempt", pa.string()),
        ("begun", pa.int64()),
        ("queue_id", pa.string()),
        ("lane", pa.int32()),
        ("claim_lane", pa.int32()),
        ("claim_sequence", pa.int64()),
        ("ranges", pa.list_(_RANGE)),
        ("count", pa.int64()),
        ("reason", pa.string()),
        ("actor", pa.string()),
        ("run_id", pa.string()),
        ("recorded_at", _INSTANT),
        ("body", pa.string()),
    ]
)
"""The columns of entries in Arrow types."""
TABLE = COLUMNS.append(pa.field("commit_seq", pa.int64()))
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
"""The beginning of a path that is not below the table's folder."""
_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"

Moment = Callable[[], TableVersion]
"""Returns the version of the table to read."""


class EntryFiles:
    """The entries of one table at one version."""

    def __init__(self, filesystem: FileSystem, folder: str, moment: Moment) -> None:
        """Read nothing yet.

        Args:
            filesystem: The file system of the table.
            folder: The table's folder.
            moment: Returns the version of the table.
        """
        self._filesystem = filesystem
        self._folder = folder
        self._moment = moment
        self._known: dict[str, pa.Table] = {}
        self._known_bytes = 0

    def table(
        self,
        shards: Collection[str] | None = None,
        after: int = -1,
        moment: TableVersion | None = None,
    ) -> pa.Table:
        """Read entries as an Arrow table with the columns of ``TABLE``.

        Args:
            shards: The shards; None: all.
            after: Only entries of later versions of the journal are read.
            moment: The version of the table; the present one when omitted.
        """
        moment = moment or self._moment()
        wanted = [one for one in moment.files.values() if _may_hold(one, shards, after)]
        parts = self._read(wanted, moment)
        found = pa.concat_tables([empty(TABLE), *parts])
        if shards is not None:
            found = found.filter(pc.is_in(found["shard"], texts(sorted(shards))))
        if after >= 0:
            since = numbers(model.commit_seq(after + 1), found.num_rows)
            found = found.filter(pc.greater_equal(found["commit_seq"], since))
        return found

    def entries(
        self,
        shards: Collection[str] | None = None,
        after: int = -1,
        moment: TableVersion | None = None,
    ) -> list[Entry]:
        """Read entries in no particular order; arguments as for ``table``."""
        return entries_of(self.table(shards, after, moment))

    def find(self, wanted: Collection[EntryFilter]) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters, each once."""
        return model.each_once(self._matching(wanted))

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read all entries in an order, including copies that differ.

        They are all held in memory.
        """
        yield from sorted(self._matching([wanted]), key=order.key)

    def _matching(self, wanted: Collection[EntryFilter]) -> Iterator[Entry]:
        since = min((one.after for one in wanted), default=-1)
        entries = self.entries(shards_of(wanted), model.version_of(since) - 1 if since >= 0 else -1)
        return (entry for entry in entries if any(one.matches(entry) for one in wanted))

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        recorded_ms = wanted.recorded_upto_ms
        if wanted == EntryFilter(upto=wanted.upto, recorded_upto_ms=recorded_ms):
            table = self.table()  # no other columns of the entries are needed
            instants = table["recorded_at"].cast(pa.int64()).to_pylist()
            places = [
                (commit_seq, instant // 1000)
                for commit_seq, instant in zip(
                    table["commit_seq"].to_pylist(), instants, strict=True
                )
                if (wanted.upto is None or commit_seq <= wanted.upto)
                and (recorded_ms is None or instant // 1000 <= recorded_ms)
            ]
        else:
            places = [(one.commit_seq, one.recorded_at_ms) for one in self.find([wanted])]
        return Newest.among(places)

    def _read(self, files: Sequence[DataFile], moment: TableVersion) -> list[pa.Table]:
        def read(one: DataFile) -> pa.Table:
            known = self._known.get(one.path)
            return self._one(one, moment) if known is None else known

        try:
            found = parquet.side_by_side(read, files)
        except FileNotFoundError as error:
            raise self._gone(files) from error
        self._keep(files, found)
        return found

    def _gone(self, files: Sequence[DataFile]) -> StoreError:
        """Build the error for a file that is gone: lost, or no longer needed."""
        return lost(DeltaLog(self._filesystem, self._folder), files) or FilesNotReadable(
            f"Files of {self._folder} that this state of the store needs were removed because "
            "they are old: call refresh() to read the store as it is now.",
            path=self._folder,
        )

    def _keep(self, files: Sequence[DataFile], found: Sequence[pa.Table]) -> None:
        """Cache what was read: a file never changes, and most queries read it twice."""
        if self._known_bytes > KEPT_BYTES_MAX:
            self._known.clear()
            self._known_bytes = 0
        for one, table in zip(files, found, strict=True):
            if one.path not in self._known and self._known_bytes <= KEPT_BYTES_MAX:
                self._known[one.path] = table
                self._known_bytes += table.nbytes

    def _one(self, one: DataFile, moment: TableVersion) -> pa.Table:
        """Read a file, with the commit_seq of each entry."""
        versions = moment.properties.get(_VERSION_COLUMN)
        stored = self._stored(one, moment, [*TABLE.names, str(versions)])
        count = stored.num_rows
        columns = [_column(stored, field, one, count) for field in COLUMNS]
        ordinals = columns[COLUMNS.get_field_index("ordinal")].cast(pa.int64())
        width = numbers(model.COMMITS_PER_VERSION, count)
        if "commit_seq" in stored.column_names:  # only the archive has it
            places = stored["commit_seq"]
            right = pc.equal(
                pc.bit_wise_and(places, numbers(model.COMMITS_PER_VERSION - 1, count)), ordinals
            )
        else:
            default = _default(one, count)
            own = stored[versions] if versions in stored.column_names else default
            version = pc.coalesce(own, default)
            places = pc.add(pc.multiply(version, width), ordinals)
            # Rows never come from a later version than their file: by it readers skip files.
            right = pc.less_equal(version, pc.coalesce(default, version))
        if not pc.all(right, skip_nulls=False, min_count=0).as_py():
            how = "the places of its entries in the commit order contradict each other"
            raise damaged(path_of(self._folder, one), how)
        return pa.table([*columns, places], schema=TABLE)

    def _stored(self, one: DataFile, moment: TableVersion, columns: Sequence[str]) -> pa.Table:
        """Read those of some columns that a file has, with instants in microseconds.

        Raises:
            StoreCorrupt: The file is not as it was written.
        """
        path = path_of(self._folder, one)
        with understanding(self._filesystem, path):
            file = parquet.opened(pa.BufferReader(content_of(self._filesystem, path)))
            there = set(file.schema_arrow.names)
            renamed = _renamed(there | one.partition.keys(), moment)
            if renamed is not None:
                raise KeyError(f"the table has no column {renamed!r}")
            return parquet.read(file, columns)


def _renamed(there: Set[str], moment: TableVersion) -> str | None:
    """Find a column that was renamed in a file, and would be read as missing (pure).

    A file may lack columns that were added later, and may have columns of Delta, whose names begin
    with an underscore or are given by a property.
    """
    known = moment.columns.keys() | {*moment.properties.values()}
    unknown = [name for name in there if name not in known and name[:1] != "_"]
    return min(unknown) if unknown and moment.columns.keys() - there else None


def path_of(folder: str, one: DataFile) -> str:
    """Return the path of a data file on its file system.

    Raises:
        FilesNotReadable: It belongs to another table, of which this one is a shallow clone.
    """
    if _ELSEWHERE.match(one.path):
        raise FilesNotReadable(
            f"The table at {folder} is a shallow clone, whose files belong to another table and "
            "cannot be read without Spark: use Spark.",
            path=one.path,
        )
    return f"{folder}/{one.path}"


def lost(log: DeltaLog, files: Iterable[DataFile]) -> StoreCorrupt | None:
    """Return the error for one of some files that is lost; None if maintenance removed them.

    Maintenance removes a file only after a commit that takes it out of the table. So a file that
    was missed before the log is read here, and of which the newest version says that it is there,
    was removed by something else.

    Args:
        log: The log of the table.
        files: The files, one of which was missed.
    """
    try:
        needed = {one.path for one in log.newest().files.values()}
    except FileNotFoundError:  # the table is gone as a whole
        return None
    for one in files:
        path = path_of(log.folder, one)
        with reaching(path):
            is_missed = one.path in needed and not log.filesystem.get_file_info(path).is_file
        if is_missed:
            return damaged(path, "it is missing, and the newest version of the table needs it")
    return None


def entries_of(table: pa.Table) -> list[Entry]:
    """Make entries from rows with the columns of ``TABLE``."""
    plain = table.drop_columns(["recorded_at", "commit_seq"])
    count = table.num_rows
    milliseconds = pc.divide(table["recorded_at"].cast(pa.int64()), numbers(1000, count))
    plain = plain.append_column("recorded_at_ms", milliseconds)
    plain = plain.append_column("version", pc.shift_right(table["commit_seq"], numbers(10, count)))
    return list(map(entry_of, plain.to_pylist()))


def in_commit_order(table: pa.Table) -> pa.Table:
    """Return each entry once, in commit order: entries being archived are in both tables."""
    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    first = numbered.group_by(["append_id", "index"], use_threads=False).aggregate(
        [("row", "min")]
    )["row_min"]
    keys = [("commit_seq", "ascending"), ("index", "ascending")]
    return table.take(first).sort_by(keys)


def _column(
    stored: pa.Table, field: pa.Field, one: DataFile, count: int
) -> pa.Array | pa.ChunkedArray:
    if field.name in one.partition:
        value = one.partition[field.name]
        return pa.nulls(count, field.type) if value is None else texts([value] * count)
    if field.name not in stored.column_names:
        return pa.nulls(count, field.type)
    found: Any = stored[field.name]
    if field.type == _INSTANT and found.type.tz is None:  # as Spark stores instants, in UTC
        return found.cast(pa.timestamp("us")).cast(_INSTANT)
    return found.cast(field.type)


def _default(one: DataFile, count: int) -> pa.Array:
    version = one.row_commit_version
    return pa.nulls(count, pa.int64()) if version is None else numbers(version, count)


def _may_hold(one: DataFile, shards: Collection[str] | None, after: int) -> bool:
    """Return whether a file can have entries of some shards and later versions."""
    shard = one.partition.get("shard")
    if shards is not None and shard is not None and shard not in shards:
        return False
    # The entries that OPTIMIZE rewrites are older than the file, never newer.
    return (
        one.row_commit_version is None
        or "shard" not in one.partition
        or (one.row_commit_version > after)
    )
