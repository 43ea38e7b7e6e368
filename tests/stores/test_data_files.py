"""Which files hold the rows of a send: told by a log only if nothing else can be meant."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.storage.files.delta_log import DeltaLog
from txnqueue.storage.files.integrity import reaching
from txnqueue.storage.payload import data_files
from txnqueue.storage.payload.commits import StagedFile
from txnqueue.storage.payload.data_files import DataFiles, covering

SEND, OTHER = "a" * 32, "b" * 32
Action = Mapping[str, Any]


class Table:
    """A payload table's folder, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.log.mkdir(parents=True)
        self._versions = itertools.count()
        self.commit({"metaData": {"id": "t", "configuration": {}}})

    def commit(self, *actions: Action) -> Path:
        file = self.log / f"{next(self._versions):020}.json"
        file.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
        return file

    def add(self, name: str, first: int, last: int, **said: Any) -> dict[str, Any]:
        """Write a file of so many bytes as it has offsets, and describe it."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(last - first + 1))
        sends = said.get("sends", (SEND, SEND))
        stats = {
            "numRecords": said.get("rows", last - first + 1),
            "minValues": {"send_id": sends[0], "send_offset": first},
            "maxValues": {"send_id": sends[1], "send_offset": last},
        }
        about = {"path": name, "partitionValues": {"slice": "3"}, "size": last - first + 1}
        return {"add": {**about, "stats": json.dumps(stats), **said.get("more", {})}}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def held(files: DataFiles, *wanted: Range, send: str = SEND, slice_: int = 3) -> list[str] | None:
    found = files.holding({(slice_, send): wanted})
    return None if found is None else [Path(one).name for one in found.paths]


def test_files_are_found_by_their_offsets_as_commits_follow(table: Table) -> None:
    files = DataFiles(str(table.folder))
    assert held(files, (0, 0)) is None
    table.commit(table.add("slice=3/one", 0, 9), table.add("slice=3/two", 10, 19))
    assert held(files, (0, 4)) == ["one"]
    assert held(files, (3, 5), (12, 12)) == ["one", "two"]
    assert held(files, (9, 10)) == ["one", "two"]
    assert held(files, (15, 20)) is None
    for wanted, only in (((0, 9), True), ((0, 19), True), ((0, 8), False), ((10, 18), False)):
        found = files.holding({(3, SEND): [wanted]})
        assert found is not None
        assert found.only == only
    assert held(files, (0, 4), send=OTHER) is None
    assert held(files, (0, 4), slice_=4) is None
    table.commit({"remove": {"path": "slice=3/one"}})
    assert held(files, (0, 4)) is None
    assert held(files, (12, 12)) == ["two"]


def test_only_what_was_committed_since_is_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DataFiles(str(table.folder))
    old = table.commit(table.add("slice=3/one", 0, 9))
    assert held(files, (0, 4)) == ["one"]
    lists: list[object] = []
    monkeypatch.setattr("txnqueue.storage.files.delta_log.DeltaLog._list", lists.append)
    was = os.stat(old)
    old.write_text("x" * was.st_size, encoding="utf-8")  # nobody reads it again
    os.utime(old, ns=(was.st_atime_ns, was.st_mtime_ns))
    table.commit(table.add("slice=3/two", 10, 19))
    assert held(files, (0, 14)) == ["one", "two"]
    assert not lists


@pytest.mark.parametrize(
    "said",
    [
        {"rows": 9},
        {"rows": 11},
        {"sends": (SEND, OTHER)},
        {"sends": (None, None)},
        {"more": {"stats": None}},
        {"more": {"stats": "{}"}},
        {"more": {"partitionValues": {}}},
        {"more": {"size": 11}},
        {"more": {"deletionVector": {"storageType": "u"}}},
    ],
    ids=str,
)
def test_a_file_of_which_too_little_is_known_is_read_by_delta(
    table: Table, said: dict[str, Any]
) -> None:
    table.commit(table.add("slice=3/one", 0, 9, **said))
    assert held(DataFiles(str(table.folder)), (0, 4)) is None


def test_a_disk_that_fails_once_is_asked_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(table.add("slice=3/one", 0, 9))
    files = DataFiles(str(table.folder))

    def fail(_: object) -> NoReturn:
        with reaching("the log"):
            raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(DeltaLog, "_list", fail)
        assert held(files, (0, 4)) is None
    assert held(files, (0, 4)) == ["one"]


def test_a_table_that_was_too_large_is_looked_at_again_later(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(table.add("slice=3/one", 0, 9))
    files = DataFiles(str(table.folder))
    with monkeypatch.context() as small:
        small.setattr(data_files, "FILES_MAX", 0)
        assert held(files, (0, 4)) is None
    assert held(files, (0, 4)) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + data_files.REST_SECONDS + 1)
    assert held(files, (0, 4)) == ["one"]


def test_what_only_spark_reads_is_not_looked_at_again(table: Table) -> None:
    table.commit(
        {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}},
        table.add("slice=3/one", 0, 9),
    )
    files = DataFiles(str(table.folder))
    assert held(files, (0, 4)) is None
    table.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    assert held(files, (0, 4)) is None


def test_a_file_that_is_gone_or_of_another_table_is_read_by_delta(table: Table) -> None:
    table.commit(table.add("slice=3/one", 0, 9))
    files = DataFiles(str(table.folder))
    (table.folder / "slice=3/one").unlink()
    assert held(files, (0, 4)) is None
    elsewhere = table.add("slice=3/two", 10, 19)["add"]
    table.commit({"add": {**elsewhere, "path": f"file:{table.folder}/slice=3/two"}})
    assert held(files, (10, 14)) is None


@pytest.mark.parametrize(
    "actions",
    [
        [{"protocol": {"minReaderVersion": 3, "readerFeatures": ["unheard"]}}],
        [{"metaData": {"id": "t", "configuration": {"delta.columnMapping.mode": "name"}}}],
    ],
    ids=["a feature", "mapped columns"],
)
def test_a_table_of_another_kind_is_read_by_delta(table: Table, actions: Sequence[Action]) -> None:
    files = DataFiles(str(table.folder))
    table.commit(table.add("slice=3/one", 0, 9))
    assert held(files, (0, 4)) == ["one"]
    table.commit(*actions)
    assert held(files, (0, 4)) is None
    assert held(files, (0, 4)) is None


def test_a_log_that_is_damaged_gone_or_too_large_is_read_by_delta(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = table.commit(table.add("slice=3/one", 0, 9))
    monkeypatch.setattr(data_files, "LOG_BYTES_MAX", 10)
    assert held(DataFiles(str(table.folder)), (0, 4)) is None
    monkeypatch.undo()
    monkeypatch.setattr(data_files, "FILES_MAX", 0)
    many = DataFiles(str(table.folder))
    assert held(many, (0, 4)) is None
    monkeypatch.undo()
    assert held(many, (0, 4)) is None  # it is not read again and again
    commit.write_text("{", encoding="utf-8")
    assert held(DataFiles(str(table.folder)), (0, 4)) is None
    assert held(DataFiles(str(table.folder / "none")), (0, 4)) is None


def test_a_log_that_was_cleaned_up_or_replaced_is_read_anew(table: Table) -> None:
    files = DataFiles(str(table.folder))
    commit = table.commit(table.add("slice=3/one", 0, 9))
    assert held(files, (0, 4)) == ["one"]
    commit.write_text(json.dumps(table.add("slice=3/another", 0, 9)), encoding="utf-8")
    assert held(files, (0, 4)) == ["another"]


def test_a_file_that_was_learnt_halfway_is_forgotten(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DataFiles(str(table.folder))
    table.commit(table.add("slice=3/one", 0, 9))
    assert held(files, (0, 4)) == ["one"]
    table.commit({"remove": {"path": "slice=3/one"}}, table.add("slice=3/two", 0, 9))

    def interrupted(*said: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(data_files, "_described", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held(files, (0, 4))
    assert held(files, (0, 4)) == ["two"]


@given(
    cuts=st.lists(st.integers(0, 30), max_size=6),
    wanted=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=4),
    without=st.integers(0, 6),
)
def test_files_are_chosen_if_they_hold_each_offset(
    cuts: list[int], wanted: list[tuple[int, int]], without: int
) -> None:
    ends = sorted({0, 31, *cuts})
    files = [StagedFile(b - a, a, b - 1) for a, b in itertools.pairwise(ends)]
    del files[without : without + 1]
    asked = ranges.normalised((first, first + more) for first, more in wanted)
    chosen = covering(files, asked)
    offsets = {n for first, last in asked for n in range(first, last + 1)}
    there = {n for file in files for n in range(file.first, file.last + 1)}
    assert (chosen is not None) == (offsets <= there)
    if chosen is not None:
        assert offsets <= {n for file in chosen for n in range(file.first, file.last + 1)}
        assert all(offsets & set(range(file.first, file.last + 1)) for file in chosen)


@pytest.mark.parametrize(
    "files",
    [
        [StagedFile(5, 0, 4), StagedFile(5, 0, 4)],
        [StagedFile(5, 0, 4), StagedFile(5, 4, 8)],
        [StagedFile(4, 0, 4)],
        [StagedFile(6, 0, 4)],
    ],
    ids=["twice", "overlapping", "a gap", "one offset twice"],
)
def test_files_that_may_have_an_offset_twice_are_not_chosen(files: list[StagedFile]) -> None:
    assert covering(files, [(4, 4)]) is None
