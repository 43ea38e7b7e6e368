"""Copies of a store's folder, in each order and of each moment, looked at without Spark."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import txnqueue
from tests.inside import client_of
from tests.stores import copying, upgrading
from txnqueue.errors import (
    FilesNotReadable,
    PayloadRemoved,
    StoreCorrupt,
    StoreSetBack,
)
from txnqueue.storage.files.delta_log import DeltaLog

MAINTAINED = 18
"""From this version on the journal of the older store is not maintained any more."""

LATER_MS = 2_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Copy the older store."""
    root = tmp_path / "store"
    shutil.copytree(upgrading.unpacked(), root)
    return root


def log_of(table: Path) -> Path:
    return table / "_delta_log"


def commits(table: Path) -> list[tuple[int, int, Path]]:
    """List the commits of a table: when it was, its version, its file."""
    found = []
    for file in sorted(log_of(table).glob("[0-9]*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        (when,) = [one["commitInfo"]["timestamp"] for one in actions if "commitInfo" in one]
        found.append((when, int(file.stem), file))
    return found


def tables(store: Path) -> list[Path]:
    return [log.parent for log in sorted(store.rglob("_delta_log"))]


def cut(store: Path, target: Path, journal_ms: int, others_ms: int) -> None:
    """Copy a store as it was copied by a tool that took the journal and the rest at two times."""
    shutil.copytree(store, target, copy_function=os.link)  # nothing is changed in place
    for table in tables(target):
        upto = journal_ms if table.name == "journal" else others_ms
        for when, _, file in commits(table):
            if when > upto:
                for one in log_of(table).glob(f"*{file.stem}*"):
                    one.unlink()
        if not list(log_of(table).glob("[0-9]*.json")):
            shutil.rmtree(table)


def waiting(root: Path) -> int:
    """Read every message that waits, and count them."""
    look = txnqueue.look(str(root))
    return sum(len(look.queue(name).peek_messages(1_000)) for name in look.list_queues())


def moments(store: Path) -> Iterator[int]:
    for when, version, _ in commits(store / "journal"):
        if version >= MAINTAINED:
            yield when


def test_what_is_copied_after_the_journal_has_all_that_it_names(
    store: Path, tmp_path: Path
) -> None:
    """At each two moments, the journal's before that of the other tables or after it."""
    lost, whole = 0, dict[int, int]()
    times = list(moments(store))
    for journal_ms in times[::3]:
        cut(store, tmp_path / "same", journal_ms, journal_ms)
        whole[journal_ms] = waiting(tmp_path / "same")
        shutil.rmtree(tmp_path / "same")
    for number, (journal_ms, others_ms) in enumerate(itertools.product(times[::3], times[::4])):
        copy = tmp_path / f"copy-{number}"
        cut(store, copy, journal_ms, others_ms)
        try:
            assert waiting(copy) == whole[journal_ms]
        except PayloadRemoved:
            assert others_ms < journal_ms, "the right order lost something"
            lost += 1
        shutil.rmtree(copy)
    assert lost > 1, "vacuous"


def test_the_recipe_takes_the_moment_first_and_leaves_out_what_is_not_whole(
    store: Path, tmp_path: Path
) -> None:
    (store / ".locks").mkdir()
    (log_of(store / "journal") / ".00000000000000000029.json.1.tmp").write_text("{", "utf-8")
    copying.recipe()(store, tmp_path / "copy")
    copied, whole = txnqueue.look(str(tmp_path / "copy")), txnqueue.look(str(store))
    assert copied.entries().equals(whole.entries())
    assert waiting(tmp_path / "copy") == waiting(store) > 0
    assert not [path for path in (tmp_path / "copy").rglob(".*") if "_staged" not in path.name]
    with pytest.raises(FileExistsError):  # a copy is never made over another one
        copying.recipe()(store, tmp_path / "copy")


def commit(table: Path, *actions: Mapping[str, object]) -> int:
    """Write a commit of a table."""
    version = commits(table)[-1][1] + 1
    told = "\n".join(map(json.dumps, actions))
    (log_of(table) / f"{version:020}.json").write_text(told, encoding="utf-8")
    return version


def restore(store: Path, version: int) -> int:
    """Take the journal back to a version as Delta does it."""
    table = store / "journal"
    now = _files(table)
    kept = {file.name: file for _, n, file in commits(table) if n > version}
    away = table.with_name("away")
    away.mkdir()
    for name, file in kept.items():
        file.rename(away / name)
    then = _files(table)
    for name in kept:
        (away / name).rename(log_of(table) / name)
    away.rmdir()
    said = {"version": version, "timestamp": None}
    info = {"timestamp": LATER_MS, "operation": "RESTORE", "operationParameters": said}
    gone = [{"remove": {"path": path, "dataChange": True}} for path in now.keys() - then.keys()]
    back = [{"add": then[path]} for path in then.keys() - now.keys()]
    return commit(table, {"commitInfo": info}, *gone, *back)


def _files(table: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for _, _, file in commits(table):
        for line in file.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
            if "add" in action:
                found[action["add"]["path"]] = action["add"]
    return found


def test_a_look_tells_a_journal_that_was_restored_until_that_is_undone(store: Path) -> None:
    before = txnqueue.look(str(store))
    entries = before.entries()
    back = restore(store, 24)
    told = (
        f"RESTORE made version {back} of the journal, which lacks what was committed since: "
        "4 from version 25 to 28; "
        f"RESTORE the journal TO VERSION AS OF {back - 1} makes it whole"
    )
    for look in (lambda: txnqueue.look(str(store)).list_queues(), before.refresh):
        with pytest.raises(StoreSetBack, match=told) as refused:
            look()
        assert (refused.value.version, refused.value.operation) == (back, "RESTORE")
    restore(store, back - 1)
    with pytest.raises(StoreSetBack, match="what was read before does not fit"):
        before.refresh()
    assert txnqueue.look(str(store)).entries().equals(entries)


def test_an_older_copy_in_the_place_of_a_store_is_told(store: Path, tmp_path: Path) -> None:
    before = txnqueue.look(str(store))
    assert before.entries().num_rows
    times = list(moments(store))
    cut(store, tmp_path / "older", times[3], times[-1])
    shutil.rmtree(store)
    (tmp_path / "older").rename(store)
    with pytest.raises(StoreSetBack, match="ends at version 21, but was at 28 before"):
        before.refresh()
    assert txnqueue.look(str(store)).list_queues()


def test_what_is_read_of_the_journal_and_of_the_archive_is_of_one_moment(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread refreshes the look between both."""
    first = next(moments(store))
    cut(store, tmp_path / "older", first, first)
    look = txnqueue.look(str(tmp_path / "older"))
    before = look.entries()
    shutil.copytree(store, tmp_path / "older", dirs_exist_ok=True, copy_function=replaced)
    looked: Any = client_of(look).store
    files = looked.archive_files
    table = files.table

    def late(*given: Any, **more: Any) -> Any:
        look.refresh()
        return table(*given, **more)

    monkeypatch.setattr(files, "table", late)
    assert look.entries().equals(before)
    assert look.entries().num_rows > before.num_rows


def replaced(source: str, target: str) -> None:
    """Copy what is missing."""
    if not os.path.exists(target):
        os.link(source, target)


def test_a_log_that_was_copied_with_a_gap_is_told(store: Path) -> None:
    (log_of(store / "journal") / f"{26:020}.json").unlink()
    with pytest.raises(StoreCorrupt, match=r"0026\.json is damaged: it is missing"):
        txnqueue.look(str(store)).list_queues()


def test_data_that_was_copied_before_its_log_is_told(store: Path) -> None:
    (payload,) = store.glob("payload/orders-*")
    for path in _files(payload):
        (payload / path).unlink()
    with pytest.raises(StoreCorrupt, match=r"orders-.*\.parquet is damaged: it is missing"):
        waiting(store)
    journal = store / "journal"
    (journal / next(path for path in _files(journal) if "catalog" in path)).unlink()
    with pytest.raises(StoreCorrupt, match=r"catalog.* it is missing"):
        waiting(store)


def test_a_look_names_a_payload_table_that_is_a_shallow_clone(store: Path, tmp_path: Path) -> None:
    (payload,) = store.glob("payload/orders-*")
    original = tmp_path / "original"
    shutil.copytree(payload, original)
    for _, _, file in commits(payload):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"path":"slice=', f'"path":"file:{original}/slice='), "utf-8")
        file.with_name(f".{file.name}.crc").unlink()
    with pytest.raises(FilesNotReadable, match="is a shallow clone"):
        waiting(store)


def test_the_journal_and_its_files_are_read_as_the_tests_do(store: Path) -> None:
    """What the tests above take for the files of a version is what the library takes."""
    files: Any = txnqueue.look(str(store))._client.store
    look: DeltaLog = files._journal
    assert len(look.newest().files) == len(_files(store / "journal")) > 10
