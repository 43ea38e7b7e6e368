"""Messages found in files by their places, however the rows lie in them."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from tests.stores import damage
from txnqueue.errors import FilesNotReadable, PayloadRemoved, StoreCorrupt
from txnqueue.storage.files import calendar
from txnqueue.storage.files.delta_log import DeltaLog, TableVersion
from txnqueue.storage.files.payload import FilesPayload
from txnqueue.storage.payload import Part

SENDS = ("a", "b", "c", "d")
OFFSETS = 6
COLUMNS = pa.schema([("told", pa.string())])
LONGS = pa.list_(pa.int64())
Row = tuple[str, int]
ROWS: list[Row] = [(send, offset) for send in SENDS for offset in range(OFFSETS)]


def write(folder: Path, files: list[list[Row]], *, statistics: bool) -> FilesPayload:
    """Make a payload table whose files have these rows, in this order, three to a row group."""
    log = folder / "payload" / "owner" / "_delta_log"
    log.mkdir(parents=True)
    meta = {"id": "owner", "partitionColumns": ["slice"], "configuration": {}}
    meta |= {"schemaString": json.dumps({"type": "struct", "fields": []})}
    actions: list[dict[str, object]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": meta},
    ]
    for number, rows in enumerate(files):
        table = pa.table(
            {
                "send_id": pa.array([send for send, _ in rows], pa.string()),
                "send_offset": pa.array([offset for _, offset in rows], pa.int64()),
                "headers": pa.nulls(len(rows), pa.map_(pa.string(), pa.string())),
                "told": pa.array([f"{send}{offset}" for send, offset in rows], pa.string()),
            }
        )
        path = log.parent / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=3, write_statistics=statistics)
        add = {"path": path.name, "partitionValues": {"slice": "0"}, "size": path.stat().st_size}
        actions.append({"add": {**add, "modificationTime": 0, "dataChange": True}})
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return FilesPayload(LocalFileSystem(), str(folder), frozenset)


def commit(folder: Path, version: int, *actions: dict[str, object]) -> None:
    """Commit to the table."""
    log = folder / "payload" / "owner" / "_delta_log"
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def part(send: str, offsets: set[int]) -> Part:
    """Name messages of a send, as ranges of one offset each."""
    ranges = tuple((offset, offset) for offset in sorted(offsets))
    return Part("owner", 0, send, ranges, "queue", 0, 0, 0, None, None)


@given(
    rows=st.permutations(ROWS),
    cuts=st.lists(st.integers(0, len(ROWS)), max_size=3),
    asked=st.lists(
        st.tuples(st.sampled_from(SENDS), st.sets(st.integers(0, OFFSETS - 1), min_size=1)),
        max_size=5,
    ),
    statistics=st.booleans(),
)
def test_messages_are_found_wherever_their_rows_lie(
    rows: list[Row], cuts: list[int], asked: list[tuple[str, set[int]]], statistics: bool
) -> None:
    ends = [0, *sorted(cuts), len(rows)]
    files = [rows[begin:end] for begin, end in pairwise(ends)]
    with TemporaryDirectory() as folder:
        payload = write(Path(folder), files, statistics=statistics)
        found = list(payload.pieces(COLUMNS, [part(*one) for one in asked]))
    assert [piece["told"].to_pylist() for piece in found] == [
        [f"{send}{offset}" for offset in sorted(offsets)] for send, offsets in asked
    ]


@pytest.mark.parametrize("asked", [("b", {0, OFFSETS}), ("e", {0})])
def test_messages_whose_rows_are_gone_are_missed(
    tmp_path: Path, asked: tuple[str, set[int]]
) -> None:
    payload = write(tmp_path, [ROWS], statistics=True)
    with pytest.raises(PayloadRemoved):
        list(payload.pieces(COLUMNS, [part(*asked)]))


def test_a_lost_file_is_named_and_one_that_maintenance_removed_is_not_missed(
    tmp_path: Path,
) -> None:
    payload = write(tmp_path, [ROWS[:OFFSETS], ROWS[OFFSETS:]], statistics=True)
    lost = tmp_path / "payload" / "owner" / "0.parquet"
    lost.unlink()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=f"{re.escape(str(lost))} is damaged: it is missing"):
            list(payload.pieces(COLUMNS, [part("a", {0})]))
    commit(tmp_path, 1, {"remove": {"path": lost.name}})
    (found,) = payload.pieces(COLUMNS, [part("c", {1})])
    assert found["told"].to_pylist() == ["c1"]
    with pytest.raises(PayloadRemoved):
        list(payload.pieces(COLUMNS, [part("a", {0})]))


def test_a_file_that_is_written_anew_while_it_is_looked_for_is_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = write(tmp_path, [ROWS], statistics=True)
    old, new = (tmp_path / "payload" / "owner" / f"{name}.parquet" for name in ("0", "again"))
    newest = DeltaLog.newest

    def maintained(log: DeltaLog, known: TableVersion | None = None) -> TableVersion:
        found = newest(log, known)
        if old.exists():
            old.rename(new)
            add = {"path": new.name, "partitionValues": {"slice": "0"}, "size": 1}
            commit(tmp_path, 1, {"remove": {"path": old.name}}, {"add": add})
        return found

    monkeypatch.setattr(DeltaLog, "newest", maintained)
    (found,) = payload.pieces(COLUMNS, [part("b", {2})])
    assert found["told"].to_pylist() == ["b2"]


@pytest.mark.parametrize(
    ("kind", "stored", "shown"),
    [
        ("string", pa.string(), "b2"),
        ("long", pa.int64(), None),
        ({"type": "array", "elementType": "long", "containsNull": True}, LONGS, None),
        ("variant", pa.struct([("metadata", pa.binary()), ("value", pa.binary())]), None),
    ],
    ids=str,
)
def test_a_column_that_the_owner_got_with_another_type_is_another_one(
    tmp_path: Path, kind: Any, stored: pa.DataType, shown: str | None
) -> None:
    """A file that an erasure wrote anew has it beside the rows that were moved away before.

    Spark shows nulls; Arrow raised an error of its own, or showed the other column.
    """
    payload = write(tmp_path, [ROWS], statistics=True)
    path = tmp_path / "payload" / "owner" / "0.parquet"
    if kind != "string":
        others = pa.nulls(len(ROWS), stored)
        pq.write_table(pq.read_table(path).set_column(3, "told", others), path)
    meta = {"id": "owner", "schemaString": json.dumps({"fields": [{"name": "told", "type": kind}]})}
    commit(tmp_path, 1, {"metaData": meta})
    (found,) = payload.pieces(COLUMNS, [part("b", {2})])
    assert found["told"].to_pylist() == [shown]
    assert found.schema.field("told").type == pa.string()


def test_a_file_whose_column_has_neither_type_is_damaged(tmp_path: Path) -> None:
    payload = write(tmp_path, [ROWS], statistics=True)
    path = tmp_path / "payload" / "owner" / "0.parquet"
    listed = pa.nulls(len(ROWS), LONGS)
    pq.write_table(pq.read_table(path).set_column(3, "told", listed), path)
    with pytest.raises(StoreCorrupt, match=re.escape(str(path))):
        list(payload.pieces(COLUMNS, [part("b", {2})]))


def test_a_table_that_is_gone_was_removed_and_a_log_that_lacks_a_file_is_named(
    tmp_path: Path,
) -> None:
    payload = write(tmp_path, [ROWS], statistics=True)
    log = tmp_path / "payload" / "owner" / "_delta_log"
    checkpoint = log / f"{1:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json"
    checkpoint.write_text(json.dumps({"sidecar": {"path": "none.parquet", "sizeInBytes": 1}}))
    with pytest.raises(StoreCorrupt, match=r"owner is damaged: .*none\.parquet"):
        list(payload.pieces(COLUMNS, [part("a", {0})]))
    shutil.rmtree(log.parent)
    with pytest.raises(PayloadRemoved):
        list(payload.pieces(COLUMNS, [part("a", {0})]))


def test_a_damaged_footer_does_not_end_the_process(tmp_path: Path) -> None:
    """The type of a column is not that of its values: Arrow has no error for this in Python."""
    with tarfile.open(Path(__file__).parent / "0.1.0.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    cell = next(
        one
        for one in damage.cells(tmp_path / "store")
        if str(one) == "orders: data file 0, a bit flipped at 68%"
    )
    cell.do(tmp_path / "store")
    code = f"import txnqueue; txnqueue.look({str(tmp_path / 'store')!r}).queue('orders').peek()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "StoreCorrupt" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("ns", "UTC"),
        pa.list_(pa.date32()),
        pa.map_(pa.string(), pa.struct([("day", pa.date32())])),
        pa.map_(pa.date32(), pa.int32()),
        pa.struct([("n", pa.int32()), ("days", pa.list_(pa.timestamp("us", "UTC")))]),
    ],
    ids=str,
)
def test_old_days_in_the_former_calendar_are_left_to_spark(kind: pa.DataType) -> None:
    old, new = (pa.table({"told": pa.array([held(kind, y), None], kind)}) for y in (1700, 2024))
    if "date" in str(kind):
        old = pa.table({"told": pa.array([held(kind, 1500), None], kind)})
    for mark in (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"):
        calendar.check({mark: b""}, new, "file")
        with pytest.raises(FilesNotReadable, match="LEGACY"):
            calendar.check({mark: b""}, old, "file")
    for said in (None, {}, {b"org.apache.spark.version": b"4.2.0"}):
        calendar.check(said, old, "file")


def held(kind: pa.DataType, year: int) -> Any:
    """Make a value of a type with a day of a year in it."""
    if pa.types.is_map(kind):
        return [(held(kind.key_type, year), held(kind.item_type, year))]
    if pa.types.is_struct(kind):
        return {field.name: held(field.type, year) for field in kind}
    if pa.types.is_list(kind):
        return [held(kind.value_type, year)]
    if pa.types.is_temporal(kind):
        day = datetime.datetime(year, 2, 3)
        return day.date() if pa.types.is_date(kind) else day
    return "x" if pa.types.is_string(kind) else 1
