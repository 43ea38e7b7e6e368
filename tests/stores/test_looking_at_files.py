"""Looking at a store without Spark: at the one that 0.1.0 left, and at logs of every kind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

import txnqueue
from tests.stores import looking
from txnqueue import errors
from txnqueue.storage.files import roots
from txnqueue.storage.files.delta_log import DataFile, DeltaLog, TableVersion
from txnqueue.storage.files.entries import TABLE, EntryFiles
from txnqueue.storage.files.journal import FilesArchive, FilesJournal
from txnqueue.storage.journal import EntryFilter, Order

HERE = Path(__file__).parent
WITHOUT_SPARK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "delta", "py4j", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Blocker())
"""
"""What makes a process as one where only the package itself is installed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("older")
    with tarfile.open(HERE / "0.1.0.tar.gz") as packed:
        packed.extractall(made, filter="data")
    return made


@pytest.fixture
def store(folder: Path) -> txnqueue.StoreReader:
    return txnqueue.look(str(folder / "store"))


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("from txnqueue.cli.main import app\napp()", *arguments)


# ---------------------------------------------------------------------- an older store


MAINTAINED = 14
"""The commit of the older store with which its first maintenance advanced the horizon."""


def unmaintain(root: Path, aside: Path) -> None:
    """Take a copy of the older store back to before its first maintenance."""
    aside.mkdir()
    (root / "archive").rename(aside / "archive")
    for one in sorted((root / "journal" / "_delta_log").glob("*.*")):
        number = one.name.strip(".").split(".")[0]
        if number.isdigit() and int(number) >= MAINTAINED:
            one.rename(aside / one.name)


def maintain(root: Path, aside: Path) -> None:
    """Let happen what was taken back."""
    (aside / "archive").rename(root / "archive")
    for one in sorted(aside.iterdir()):
        one.rename(root / "journal" / "_delta_log" / one.name)


def test_a_store_is_looked_at_before_its_first_maintenance(folder: Path, tmp_path: Path) -> None:
    """Only maintenance, and the views, make an archive."""
    whole = txnqueue.look(str(folder / "store")).entries()
    root, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(folder / "store", root)
    unmaintain(root, aside)
    store = txnqueue.look(str(root))
    assert "orders" in store.list_queues()
    assert 0 < store.entries().num_rows < whole.num_rows
    store.refresh()
    maintain(root, aside)
    store.refresh()
    assert store.entries().equals(whole)


def test_an_archive_that_is_gone_is_named_and_not_taken_for_none(
    folder: Path, tmp_path: Path
) -> None:
    """Without it a transaction that was committed looked undecided."""
    root = tmp_path / "store"
    shutil.copytree(folder / "store", root)
    older = txnqueue.look(str(root))
    (root / "archive").rename(tmp_path / "aside")
    for ask in (older.refresh, lambda: txnqueue.look(str(root)).outcome("load/1")):
        with pytest.raises(errors.StoreCorrupt, match=f"{root}/archive"):
            ask()
    asked = cli("outcome", "load/1", "--root", str(root))
    assert asked.returncode == 3
    assert "is missing" in asked.stderr
    (tmp_path / "aside").rename(root / "archive")
    older.refresh()
    assert older.outcome("load/1").status.value == "committed"


def test_a_table_of_payload_that_is_gone_is_named_if_its_queue_is_there(
    folder: Path, tmp_path: Path
) -> None:
    """Its messages wait: they were not removed after their retention."""
    root = tmp_path / "store"
    shutil.copytree(folder / "store", root)
    (lost,) = (root / "payload").glob("orders-*")
    lost.rename(tmp_path / "aside")
    orders = txnqueue.look(str(root)).queue("orders")
    assert orders.depth() == 7
    with pytest.raises(errors.StoreCorrupt, match=re.escape(f"payload '{lost}' is missing")):
        orders.peek_messages()
    asked = cli("peek", "orders", "--root", str(root))
    assert asked.returncode == 3
    assert "is missing" in asked.stderr
    shutil.copytree(tmp_path / "aside" / "_delta_log", lost / "_delta_log")
    with pytest.raises(errors.StoreCorrupt, match=re.escape(str(lost))):
        orders.peek_messages()


def test_an_archive_that_the_first_maintenance_makes_meanwhile_is_not_missed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(folder / "store", root)
    unmaintain(root, aside)
    newest = DeltaLog.newest

    def late(log: DeltaLog, known: TableVersion | None = None) -> TableVersion:
        if log.folder.endswith("journal") and aside.exists():
            maintain(root, aside)
            aside.rmdir()
        return newest(log, known)

    monkeypatch.setattr(DeltaLog, "newest", late)
    assert txnqueue.look(str(root)).outcome("load/1").status.value == "committed"
    assert not aside.exists()


def test_what_a_store_holds_is_told_as_its_maker_says(store: txnqueue.StoreReader) -> None:
    assert store.list_queues() == sorted(
        ["invoices", "invoices.dead", "orders", "orders.dead", "unique", "unique.dead"]
    )
    orders = store.queue("orders")
    assert (orders.depth(), orders.in_flight(), store.queue("orders.dead").depth()) == (7, 5, 2)
    (dead,) = orders.dead_letters().rows()
    assert (dead["waiting"], dead["reason"]) == (2, "negative")
    counts = {row["queue"]: row for row in store.history.as_of().counts().rows()}
    assert counts["orders"]["accepted"] == 6 and counts["orders"]["delayed"] == 1
    metrics = {row["queue"]: row for row in store.metrics().rows()}
    assert metrics["orders"]["dead"] == 2 and metrics["invoices"]["available"] == 1
    statuses = {
        "load/1": "committed",  # which is in the archive
        "back/1": "undecided",
        "hold/1": "prepared",
        "totals/2": "committed",
    }
    assert {key: store.outcome(key).status.value for key in statuses} == statuses
    assert store.exchange("news").describe()["columns"] == {
        "customer": "string",
        "total": "double",
    }
    assert [row["queue"] for row in store.exchange("news").bindings().rows()] == ["invoices"]
    assert [m["order_id"] % 2 for m in orders.peek_messages(7)].count(0) > 0
    with pytest.raises(errors.InvalidInput, match="whole number"):
        orders.peek(2.5)  # type: ignore[arg-type]
    first = store.queue("unique").peek_messages()[0]
    assert first["k"] == first["_message"]["message_id"] == "a"
    steps = store.history.trace(first["_message"]["id"]).rows()
    assert [step["step"] for step in steps] == ["sent"]
    assert "<td>orders</td>" in store._repr_html_().replace('<td class="text">', "<td>")
    assert "order_id" in orders._repr_html_() and "dead letters" in orders._repr_html_()


def test_the_entries_are_each_there_once_in_commit_order(store: txnqueue.StoreReader) -> None:
    table = store.entries()
    rows = table.to_pylist()
    assert len({(row["append_id"], row["index"]) for row in rows}) == len(rows) > 40
    assert [row["commit_seq"] for row in rows] == sorted(row["commit_seq"] for row in rows)
    changes = store.history.changes().rows()
    assert sorted(row["commit_seq"] for row in changes) == [row["commit_seq"] for row in rows]


def test_looking_changes_no_file_and_refuses_to_write(
    folder: Path, store: txnqueue.StoreReader
) -> None:
    before = files_of(folder)
    test_what_a_store_holds_is_told_as_its_maker_says(store)
    journal: Any = store._client.store.journal
    for call in (
        lambda: journal.append((), {}),
        lambda: journal.remove((), "2026-01-01", {}),
        lambda: journal.archive.add((), "2026-01-01", {}),
        lambda: store._client.store.payload.drop("orders", [0]),
        store._client.store.create,
    ):
        with pytest.raises(errors.OnlyLooking, match="QueueManager"):
            call()
    assert files_of(folder) == before


def test_what_needs_spark_says_so(store: txnqueue.StoreReader) -> None:
    with pytest.raises(errors.FilesNotReadable, match="Spark"):
        store.history.trace(queue="orders", where="order_id = 3")
    with pytest.raises(errors.FilesNotReadable, match="Spark"):
        store.history.verify()
    with pytest.raises(errors.FilesNotReadable, match="verify=False"):
        store.history.report()
    assert store.history.report(verify=False).figures.differences
    with pytest.raises(errors.FilesNotReadable, match="catalog"):
        txnqueue.look("lake.messaging")
    with pytest.raises(errors.FilesNotReadable, match="filesystem="):
        txnqueue.look("nowhere://bucket/store")
    with pytest.raises(errors.InvalidInput, match=r"root='\.'"):
        txnqueue.look(".")


def test_no_store_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(errors.StoreNotFound, match="There is no store at"):
            txnqueue.look(str(path))


def test_a_store_that_was_never_maintained_has_no_archive(folder: Path, tmp_path: Path) -> None:
    root, aside = tmp_path / "young", tmp_path / "aside"
    shutil.copytree(folder / "store", root)
    older = txnqueue.look(str(root))
    queues, rows = older.list_queues(), older.entries().num_rows
    unmaintain(root, aside)
    young = txnqueue.look(str(root))
    assert young.list_queues() == queues
    assert young.outcome("load/1").status.value == "committed"
    assert 0 < young.entries().num_rows < rows
    young.refresh()
    assert json.loads(cli("depth", "orders", "--root", str(root), "--output", "json").stdout)
    (root / "archive" / "_delta_log").mkdir(parents=True)  # its creation was begun
    young.refresh()
    (root / "archive" / "_delta_log").rmdir()
    (root / "archive").rmdir()
    maintain(root, aside)
    young.refresh()
    assert young.entries().num_rows == rows


def test_a_store_is_found_by_uri_and_on_a_file_system_of_arrow(folder: Path) -> None:
    inside = SubTreeFileSystem(str(folder), LocalFileSystem())
    for store in (
        txnqueue.look(folder / "store"),
        txnqueue.look((folder / "store").as_uri()),
        txnqueue.look("store", filesystem=inside),
        txnqueue.look("", filesystem=SubTreeFileSystem(str(folder / "store"), LocalFileSystem())),
    ):
        assert store.queue("orders").depth() == 7
        assert len(store.queue("orders").peek_messages()) == 7


def test_each_answer_that_differs_from_sparks_is_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the long run compares all stores by; files stand in for Spark here."""
    real, root = txnqueue.look, str(folder / "store")
    monkeypatch.setattr(looking, "QueueManager", lambda _spark, root: real(root))
    assert looking.stores(folder) == [folder / "store"]
    assert looking.disagreements(None, folder) == []

    def careless(root: str) -> Any:
        store = real(root)
        monkeypatch.setattr(store, "list_queues", lambda: ["orders"])
        monkeypatch.setattr(store._store.journal, "version", lambda: 1)
        return store

    monkeypatch.setattr(txnqueue, "look", careless)
    found = looking.disagreements(None, folder)
    assert {f"{root}: queues", f"{root}: version", f"{root}: messages of unique"} < {*found}

    def refuses(root: str) -> Any:
        raise errors.StoreNotFound(f"{root} is gone", root=root)

    monkeypatch.setattr(txnqueue, "look", refuses)
    assert f"{root}: entries" in looking.disagreements(None, folder)
    monkeypatch.setattr(looking, "QueueManager", lambda _spark, root: refuses(root))
    assert looking.disagreements(None, folder) == []


@pytest.mark.parametrize("root", [5, None, b"store"])
def test_a_root_in_a_file_system_is_text_or_a_path(root: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="root="):
        txnqueue.look(root, filesystem=LocalFileSystem())


def test_a_file_system_of_fsspec_is_asked_anew_for_each_look(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem as Local

    class Remembering(Local):  # type: ignore[misc]
        """Lists each folder once, as those of object stores do."""

        cachable = False

        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, Any] = {}

        def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
            if path not in self.known:
                self.known[path] = super().ls(path, detail=True, **options)
            found = self.known[path]
            return found if detail else [one["name"] for one in found]

        def invalidate_cache(self, path: str | None = None) -> None:
            self.known.clear()

    root = tmp_path / "store"
    shutil.copytree(folder / "store", root)
    log = root / "journal" / "_delta_log"
    version = max(log.glob("[0-9]*.json")).stem
    newest = [file for file in log.iterdir() if version in file.name]
    for file in newest:
        file.rename(tmp_path / file.name)
    store = txnqueue.look(str(root), filesystem=Remembering())
    before = store.entries().num_rows
    for file in newest:
        (tmp_path / file.name).rename(file)
    store.refresh()
    assert store.entries().equals(txnqueue.look(root).entries())
    assert store.entries().num_rows != before
    with pytest.raises(errors.InvalidInput, match="filesystem="):
        txnqueue.look(str(root), filesystem="s3")


def test_the_package_alone_is_enough(folder: Path) -> None:
    done = run(
        "import txnqueue\n"
        "store = txnqueue.look(sys.argv[1])\n"
        "print(store.queue('orders').depth(), len(store.queue('orders').peek_messages()),\n"
        "      store.history.as_of().messages('orders', 3).rows()[0]['state'],\n"
        "      store.entries().num_rows > 40)\n"
        "report = store.history.report(payload=True, verify=False)\n"
        "print([row['order_id'] for one in report.figures.dead_letters for row in one.payload])\n",
        str(folder / "store"),
    )
    assert (done.stdout, done.stderr) == ("7 7 available True\n[10, 12]\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="where a process's own threads are listed")
@pytest.mark.parametrize("filesystem", ["None", "LocalFileSystem()"])
def test_no_thread_of_arrows_is_left_holding_what_is_pythons(folder: Path, filesystem: str) -> None:
    """One that lets go of it while the interpreter ends, ends the process with an abort."""
    pytest.importorskip("fsspec")
    done = run(
        "import os, pyarrow\n"
        "from fsspec.implementations.local import LocalFileSystem\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "before = threads()\n"
        "import txnqueue\n"
        f"store = txnqueue.look(sys.argv[1], filesystem={filesystem})\n"
        "store.queue('orders').peek_messages()\n"
        "store.history.as_of().messages('orders', 3)\n"
        "store.entries()\n"
        "store.history.report(payload=True, verify=False)\n"
        "print(threads() - before)\n",
        str(folder / "store"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_a_copy_that_says_something_else_is_read_as_it_stands(tmp_path: Path) -> None:
    said = {"shard": "s", "stream": "s", "kind": "k", "append_id": "a", "index": 0}
    rows = [{**said, "ordinal": 0, "commit_seq": 1 << 10, "actor": who} for who in ("a", "b")]
    pq.write_table(pa.Table.from_pylist(rows, schema=TABLE), tmp_path / "two.parquet")
    moment = TableVersion(0, {"two.parquet": DataFile("two.parquet", {}, None)})
    files = EntryFiles(LocalFileSystem(), str(tmp_path), lambda: moment)
    assert len(files.find([EntryFilter()])) == 1
    assert [one.actor for one in files.stream(Order.COMMIT, EntryFilter())] == ["a", "b"]


@pytest.mark.parametrize(("commit_seq", "ordinal"), [(1029, 0), (1024, 1024), (None, 0), (1, None)])
def test_an_archived_entry_at_two_places_is_refused(
    tmp_path: Path, commit_seq: int | None, ordinal: int | None
) -> None:
    """The ordinal is in two columns; the history shows the one, and tools that read Arrow both."""
    row = {"shard": "s", "append_id": "a", "ordinal": ordinal, "commit_seq": commit_seq}
    pq.write_table(pa.Table.from_pylist([row], schema=TABLE), tmp_path / "one.parquet")
    moment = TableVersion(0, {"one.parquet": DataFile("one.parquet", {}, None)})
    files = EntryFiles(LocalFileSystem(), str(tmp_path), lambda: moment)
    with pytest.raises(errors.StoreCorrupt, match=r"one\.parquet.*contradict"):
        files.table()


@pytest.mark.parametrize(("version", "is_right"), [(2, True), (3, True), (None, True), (4, False)])
def test_a_row_of_a_later_version_than_its_file_is_refused(
    tmp_path: Path, version: int | None, is_right: bool
) -> None:
    """By the file's version it is skipped where only later entries are read."""
    row = {"stream": "s", "append_id": "a", "ordinal": 0, "own": version}
    schema = TABLE.remove(TABLE.get_field_index("commit_seq")).append(pa.field("own", pa.int64()))
    table = pa.Table.from_pylist([row], schema=schema.remove(0))
    pq.write_table(table, tmp_path / "one.parquet")
    named = {"delta.rowTracking.materializedRowCommitVersionColumnName": "own"}
    one = DataFile("one.parquet", {"shard": "s"}, 3)
    moment = TableVersion(9, {"one.parquet": one}, named)
    files = EntryFiles(LocalFileSystem(), str(tmp_path), lambda: moment)
    if is_right:
        (found,) = files.table()["commit_seq"].to_pylist()
        assert found == 1024 * (version or 3)
    else:
        with pytest.raises(errors.StoreCorrupt, match=r"one\.parquet.*contradict"):
            files.table()


def test_commands_look_without_spark(folder: Path) -> None:
    pytest.importorskip("typer")
    root = str(folder / "store")
    for words, shown in (
        (["list"], "orders.dead"),
        (["depth", "orders"], "7 available, 5 in flight"),
        (["peek", "orders", "--limit", "2"], "order_id"),
        (["dead-letters", "orders"], "negative"),
        (["history"], "prepared"),
        (["history", "--as-of", "20480", "--queue", "orders"], "order_id"),
        (["metrics"], "oldest_age_seconds"),
        (["outcome", "load/1"], "load/1: committed"),
        (["exchanges"], "news"),
        (["bindings", "news"], "bill.#"),
    ):
        done = cli(*words, "--root", root)
        assert done.returncode == 0 and shown in done.stdout, (words, done.stdout, done.stderr)
    lost = cli("list", "--root", f"{root}-not")
    assert (lost.returncode, lost.stderr.partition(":")[0]) == (3, "txnqueue")
    assert "There is no store at" in lost.stderr
    asked = cli("list", "--root", root, "--engine", "spark")
    assert asked.returncode == 3 and "Spark with Delta is missing" in asked.stderr
    proof = cli("report", "--root", root)
    assert proof.returncode == 3 and proof.stderr.endswith("report --no-verify.\n")
    assert "orders" in cli("report", "--no-verify", "--root", root).stdout


def test_a_look_by_the_command_line_takes_little_work(folder: Path) -> None:
    """Where nobody else works, that is its time: 1.5 seconds are the promise."""
    pytest.importorskip("typer")
    before = os.times()
    assert cli("list", "--root", str(folder / "store")).returncode == 0
    after = os.times()
    used = after.children_user + after.children_system
    assert used - before.children_user - before.children_system < 3


def test_a_file_of_a_log_that_is_gone_is_not_a_store_that_is_gone(
    folder: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(folder / "store", store)
    log = store / "journal" / "_delta_log"
    newest = max(int(file.stem) for file in log.glob("[0-9]*.json"))
    name = f"{newest:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json"
    lines = [
        {"checkpointMetadata": {"version": newest}},
        {"sidecar": {"path": "gone.parquet", "sizeInBytes": 1}},
    ]
    (log / name).write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(errors.StoreCorrupt, match=r"gone\.parquet"):
        txnqueue.look(str(store))


def test_that_there_is_no_store_is_known_after_a_few_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store each of them is a request."""
    listed: list[str] = []
    of_log = DeltaLog._list

    def counted(log: DeltaLog) -> list[str]:
        listed.append(log.folder)
        return of_log(log)

    monkeypatch.setattr(DeltaLog, "_list", counted)
    with pytest.raises(errors.StoreNotFound):
        txnqueue.look(str(tmp_path / "none"))
    assert 0 < len(listed) <= 12


def test_every_letter_of_a_root_counts(folder: Path, tmp_path: Path) -> None:
    for name in ("a#1", "a?1", "a%1", "a b"):
        place = tmp_path / name
        shutil.copytree(folder / "store", place)
        for root in (str(place), place.as_uri(), place.as_uri().replace("file:", "FILE:")):
            assert txnqueue.look(root).root == str(place)
        place.rename(tmp_path / "a")
        with pytest.raises(errors.StoreNotFound):
            txnqueue.look(str(place))
        shutil.rmtree(tmp_path / "a")
    found, path = FileSystem.from_uri(roots._for_arrow("s3a://lake/a b%20c#d/ü/x%2Fy?region=eu"))
    assert (found.type_name, path) == ("s3", "lake/a b%20c#d/ü/x%2Fy")
    keys = "s3://key:se%2Fcret@lake/a"
    assert roots._for_arrow(keys) == keys
    uri = "s3://lake/a?endpoint_override=127.0.0.1"
    assert roots._for_arrow(uri) == uri


def rewritten(journal: Path) -> tuple[Path, Path]:
    """Write a file anew, as maintenance does; return the old one, which may go, and the new one."""
    log = journal / "_delta_log"
    last = max(int(one.stem) for one in log.glob("[0-9]*.json"))
    actions = [json.loads(line) for line in (log / f"{last:020d}.json").read_text().splitlines()]
    added = next(one["add"] for one in actions if "%252F" in one.get("add", {}).get("path", ""))
    again = {**added, "path": added["path"].replace("part-", "again-"), "dataChange": False}
    named = {"operation": "OPTIMIZE", "operationParameters": {}}
    lines = [{"commitInfo": named}, {"remove": {"path": added["path"]}}, {"add": again}]
    (log / f"{last + 1:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    old, new = (journal / unquote(one["path"]) for one in (added, again))
    shutil.copy(old, new)
    return old, new


def test_a_file_that_maintenance_removed_is_told_from_a_lost_one(
    folder: Path, tmp_path: Path
) -> None:
    """Its shard has a slash in its name, for which Delta writes another path into its log."""
    shutil.copytree(folder / "store", tmp_path / "store")
    store = txnqueue.look(str(tmp_path / "store"))
    store.refresh()
    old, new = rewritten(tmp_path / "store" / "journal")
    old.unlink()
    with pytest.raises(errors.FilesNotReadable, match=r"refresh\(\)"):
        store.entries()
    store.refresh()
    assert store.entries().num_rows == txnqueue.look(str(folder / "store")).entries().num_rows
    new.unlink()
    for _ in range(2):
        with pytest.raises(errors.StoreCorrupt, match=f"{re.escape(str(new))} is damaged: it is m"):
            txnqueue.look(str(tmp_path / "store")).entries()


def test_one_lost_file_is_named_also_after_a_refresh(folder: Path, tmp_path: Path) -> None:
    """Where its shard had a slash in its name, readers were told to call refresh(), for ever."""
    shutil.copytree(folder / "store", tmp_path / "store")
    lost = next((tmp_path / "store" / "journal").glob("shard=transaction*/*.parquet"))
    lost.unlink()
    store = txnqueue.look(str(tmp_path / "store"))
    for _ in range(2):
        with pytest.raises(errors.StoreCorrupt, match=f"{re.escape(str(lost))} is damaged: it is"):
            store.entries()
        store.refresh()


def test_another_store_in_the_place_of_the_one_that_was_looked_at_is_told(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    shutil.copytree(folder / "store", place)
    store = txnqueue.look(str(place))
    assert store.queue("orders").depth() == 7
    (place / "journal/_delta_log").rename(tmp_path / "hidden")
    shutil.copytree(tmp_path / "hidden", place / "journal/_delta_log")  # as rsync would
    store.refresh()
    for file in (place / "journal/_delta_log").glob("*.json"):
        table_id = re.search(r'"metaData":{"id":"([^"]+)"', file.read_text())
        if table_id is not None:
            file.write_text(file.read_text().replace(table_id[1], "another"))
    log = place / "journal/_delta_log"
    for file in [*log.glob("*.parquet"), *log.glob(".*.crc")]:
        file.unlink()
    newest = max((place / "journal/_delta_log").glob("*.json"))
    newest.write_text(newest.read_text() + "\n")
    with pytest.raises(errors.StoreNotFound, match="look"):
        store.refresh()
    assert txnqueue.look(str(place)).queue("orders").depth() == 7


def test_where_a_path_may_be_on_a_cluster_spark_is_asked(folder: Path) -> None:
    """Here it is not installed, which is what the command says then."""
    pytest.importorskip("typer")
    code = "import os\nos.environ['HADOOP_CONF_DIR'] = '/etc/hadoop'\n"
    code += "from txnqueue.cli.main import app\napp()"
    asked = run(code, "list", "--root", str(folder / "none"))
    assert asked.returncode == 3 and "Trying with Spark" in asked.stderr
    alone = run(code, "list", "--root", str(folder / "none"), "--engine", "files")
    assert alone.returncode == 3 and "Trying with Spark" not in alone.stderr


# ------------------------------------------------------------------------ logs of every kind


class Log:
    """Writes the log of a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "_delta_log"
        self.folder.mkdir()
        self.log = DeltaLog(LocalFileSystem(), str(folder))

    def commit(self, version: int, *actions: dict[str, Any]) -> None:
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.folder / f"{version:020d}.json").write_text(text)

    def checkpoint(self, name: str, *actions: dict[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(actions), schema=CHECKPOINT), path)

    def paths(self) -> list[str]:
        return sorted(self.log.newest().files)


_MAP = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    [
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _MAP),
                    ("size", pa.int64()),
                    ("defaultRowCommitVersion", pa.int64()),
                ]
            ),
        ),
        ("remove", pa.struct([("path", pa.string())])),
        ("metaData", pa.struct([("id", pa.string()), ("configuration", _MAP)])),
        ("protocol", pa.struct([("minReaderVersion", pa.int32())])),
        ("sidecar", pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64())])),
    ]
)
META = {"metaData": {"id": "table", "configuration": {"a": "b"}}}
PROTOCOL = {"protocol": {"minReaderVersion": 1}}


def add(path: str, version: int = 0) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": {}, "defaultRowCommitVersion": version}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path}}


def of_checkpoint(*paths: str) -> list[dict[str, Any]]:
    configuration = [("a", "b")]
    meta: dict[str, Any] = {"metaData": {"id": "table", "configuration": configuration}}
    found: list[dict[str, Any]] = [meta, PROTOCOL]
    return [*found, *({"add": {"path": path, "partitionValues": []}} for path in paths)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_commits_are_applied_in_order(log: Log) -> None:
    log.commit(0, META, PROTOCOL, add("a"), add("b%2520c"))
    log.commit(1, add("d", 1), remove("a"))
    known = log.log.newest()
    assert (known.version, known.properties, known.table_id) == (1, {"a": "b"}, "table")
    assert [one.path for one in known.files.values()] == ["b%20c", "d"]
    assert log.log.newest(known) is known
    log.commit(2, remove("d"), add("d", 2))  # written again at the same place
    newer = log.log.newest(known)
    assert (newer.version, newer.files["d"].row_commit_version) == (2, 2)


def test_a_checkpoint_stands_for_what_was_before(log: Log) -> None:
    log.checkpoint(f"{10:020d}.checkpoint.parquet", *of_checkpoint("a", "b"), remove("x"))
    for version in (9, 10):
        log.commit(version, add("never applied"))
    log.commit(11, remove("a"))
    assert (log.paths(), log.log.newest().version) == (["b"], 11)
    assert log.log.newest().properties == {"a": "b"}


def test_a_checkpoint_of_several_parts_counts_when_all_are_there(log: Log) -> None:
    log.checkpoint(f"{5:020d}.checkpoint.parquet", *of_checkpoint("old"))
    for version in range(6, 9):
        log.commit(version, add(f"c{version}"))
    log.checkpoint(f"{8:020d}.checkpoint.{1:010d}.{2:010d}.parquet", *of_checkpoint("a"))
    assert log.paths() == ["c6", "c7", "c8", "old"]
    log.checkpoint(f"{8:020d}.checkpoint.{2:010d}.{2:010d}.parquet", add("b"))
    assert log.paths() == ["a", "b"]


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_checkpoint_of_the_second_kind_names_its_sidecars(log: Log, form: str) -> None:
    name = f"{3:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.{form}"
    log.checkpoint("_sidecars/one.parquet", add("a"), add("b"))
    sidecar = {"sidecar": {"path": "one.parquet", "sizeInBytes": 1}}
    if form == "json":
        lines = [META, PROTOCOL, sidecar, {"checkpointMetadata": {"version": 3}}]
        (log.folder / name).write_text("\n".join(map(json.dumps, lines)))
    else:
        log.checkpoint(name, *of_checkpoint(), sidecar)
    log.commit(4, add("c"))
    assert log.paths() == ["a", "b", "c"]


def test_a_log_that_was_cleaned_up_meanwhile_is_read_anew(log: Log) -> None:
    log.commit(0, META, PROTOCOL, add("a"))
    known = log.log.newest()
    for version in (0, 1, 2):
        (log.folder / f"{version:020d}.json").unlink(missing_ok=True)
    log.checkpoint(f"{3:020d}.checkpoint.parquet", *of_checkpoint("b"))
    log.commit(3, add("b"))
    assert (log.log.newest(known).version, log.paths()) == (3, ["b"])


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_table_in_the_place_of_another_one_is_read_anew(log: Log, commits: int) -> None:
    log.commit(0, META, PROTOCOL, add("a"))
    log.commit(1, add("b"))
    known = log.log.newest()
    shutil.rmtree(log.folder)
    log.folder.mkdir()
    log.commit(0, {"metaData": {"id": "other", "configuration": {}}}, PROTOCOL, add("c"))
    for version in range(1, commits):
        log.commit(version, add(f"other-{version}"))
    found = log.log.newest(known)
    assert (found.table_id, found.version) == ("other", commits - 1)
    assert sorted(found.files) == ["c", *(f"other-{n}" for n in range(1, commits))]


def test_a_log_with_a_gap_is_not_guessed_at(log: Log) -> None:
    log.commit(0, META, PROTOCOL)
    log.commit(2, add("a"))
    with pytest.raises(errors.StoreCorrupt, match=r"01\.json is damaged: it is missing"):
        log.paths()


def test_a_log_without_its_beginning_and_a_checkpoint_is_named(log: Log) -> None:
    for version in (5, 6):
        log.commit(version, add(f"c{version}"))
    with pytest.raises(errors.StoreCorrupt, match=r"_delta_log is damaged: .* begin with 5, and"):
        log.paths()


def test_a_commit_that_comes_while_the_log_is_listed_is_not_missing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit(0, META, PROTOCOL, add("a"))
    log.commit(2, add("c"))
    listed = log.log._list

    def late() -> list[str]:
        names: list[str] = listed()
        log.commit(1, add("b"))
        return names

    monkeypatch.setattr(log.log, "_list", late)
    assert log.paths() == ["a", "b", "c"]


def test_a_gap_in_a_log_whose_commits_may_be_elsewhere_is_left_to_spark(log: Log) -> None:
    elsewhere = {"protocol": {"minReaderVersion": 3, "writerFeatures": ["catalogManaged"]}}
    log.commit(0, META, elsewhere)
    log.commit(2, add("a"))
    with pytest.raises(errors.FilesNotReadable, match="catalogManaged"):
        log.paths()


@pytest.mark.parametrize(
    "action",
    [
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["shinyNew"]}},
        {"protocol": {"minReaderVersion": 4}},
        {"protocol": {"minReaderVersion": 3, "writerFeatures": ["catalogManaged"]}},
        {"metaData": {"id": "t", "configuration": {"delta.columnMapping.mode": "name"}}},
        {"add": {"path": "a", "deletionVector": {"storageType": "u", "pathOrInlineDv": "x"}}},
    ],
)
def test_what_would_be_read_wrongly_is_refused(log: Log, action: dict[str, Any]) -> None:
    log.commit(0, META, PROTOCOL, action)
    with pytest.raises(errors.FilesNotReadable, match="Spark"):
        log.paths()


def test_a_look_stays_at_its_moment_until_it_is_refreshed(folder: Path, tmp_path: Path) -> None:
    log = folder / "store/journal/_delta_log"
    version = max(log.glob("*.json")).stem
    newest = [*log.glob(f"{version}.*"), *log.glob(f".{version}.*")]
    for file in newest:
        file.rename(tmp_path / file.name)
    try:
        store = txnqueue.look(str(folder / "store"))
        before = store.entries().num_rows
    finally:
        for file in newest:
            (tmp_path / file.name).rename(file)
    started = time.monotonic()
    assert store.entries().num_rows == before
    store.refresh()
    assert store.entries().num_rows > before
    assert store.queue("orders").depth() == 7 and time.monotonic() - started < 60


def test_two_threads_that_refresh_do_not_take_each_other_for_a_set_back(
    folder: Path, tmp_path: Path
) -> None:
    """The slower one compared what it had read with the later moment of the other."""
    shutil.copytree(folder / "store", tmp_path / "store")
    log = tmp_path / "store/journal/_delta_log"
    version = max(log.glob("*.json")).stem
    newest = [*log.glob(f"{version}.*"), *log.glob(f".{version}.*")]
    for file in newest:
        file.rename(tmp_path / file.name)
    store = txnqueue.look(str(tmp_path / "store"))
    before, files = store.entries().num_rows, vars(store)["_store"]
    read, others = files._journal.newest, [threading.Thread(target=store.refresh)]

    def slowly(known: TableVersion | None) -> TableVersion:
        found: TableVersion = read(known)
        if not others[0].is_alive() and others[0].ident is None:
            for file in newest:
                (tmp_path / file.name).rename(file)
            others[0].start()
            others[0].join(1)
        return found

    files._journal.newest = slowly
    store.refresh()
    others[0].join()
    assert store.entries().num_rows > before


def test_what_a_reading_covers_is_there_though_another_thread_refreshes(
    folder: Path, tmp_path: Path
) -> None:
    """Maintenance had moved entries meanwhile: they were missing, and never looked for again."""
    disk, table, before = LocalFileSystem(), folder / "store/journal", tmp_path / "journal"
    shutil.copytree(table, before)
    for file in before.glob("_delta_log/*"):
        if file.is_file() and re.search(r"000(1[5-9]|2\d)\.", file.name):
            file.unlink()  # what came after the horizon had advanced
    (before / "_delta_log/_last_checkpoint").unlink(missing_ok=True)
    early, late = (DeltaLog(disk, str(one)).newest() for one in (before, table))
    moments = [early, late]

    def moment() -> TableVersion:
        return moments.pop(0) if len(moments) > 1 else late

    files = EntryFiles(disk, str(table), moment)
    reading = FilesJournal(files, moment, FilesArchive(files)).read_all()
    there = EntryFiles(disk, str(before), lambda: early).entries()
    assert reading.version == early.version
    assert {e.entry_id for e in reading.entries} == {e.entry_id for e in there}


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("s3a://lake/messages", "lake/messages"),
        ("s3://lake/messages", "lake/messages"),
        ("gs://lake/messages", "lake/messages"),
        ("abfss://lake@account.dfs.core.windows.net/messages", "lake/messages"),
        ("wasbs://lake@account.blob.core.windows.net/messages", "lake/messages"),
        ("abfs://lake/messages", "lake/messages"),
        ("az://lake/messages", "lake/messages"),
        ("oci://lake@namespace/messages", "lake/messages"),
        ("hdfs://name:8020/lake/messages", "/lake/messages"),
        ("file:///lake/messages", "/lake/messages"),
        ("/lake/s3a://messages", "/lake/s3a://messages"),
        ("lake/messages", "lake/messages"),
    ],
)
def test_a_file_system_that_is_given_knows_the_root_that_spark_has(uri: str, folder: str) -> None:
    assert roots.without_scheme(uri) == folder


def test_a_storage_that_refuses_is_named_and_is_not_an_empty_one(folder: Path) -> None:
    pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem as Local

    class Refusing(Local):  # type: ignore[misc]
        cachable = False

        def info(self, path: str, **options: Any) -> Any:
            raise PermissionError(403, "Forbidden")

    with pytest.raises(errors.FilesNotReadable, match=r"Forbidden.*credentials") as refused:
        txnqueue.look(str(folder / "store"), filesystem=Refusing())
    assert refused.value.path == str(folder / "store" / "journal")


def test_a_storage_that_goes_away_is_named_whatever_is_read(folder: Path) -> None:
    pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem as Local

    class Leaving(Local):  # type: ignore[misc]
        cachable = False
        gone = ""

        def _open(self, path: str, *args: Any, **options: Any) -> Any:
            self._look(path)
            return super()._open(path, *args, **options)

        def info(self, path: str, **options: Any) -> Any:
            self._look(path)
            return super().info(path, **options)

        def _look(self, path: str) -> None:
            if self.gone and self.gone in path:
                raise ConnectionResetError(104, "Connection reset by peer")

    for gone, look in {
        "/payload/": lambda store: store.queue("orders").peek(),
        "/archive/": lambda store: store.refresh(),
        "/journal/": lambda store: store.refresh(),
        ".parquet": lambda store: store.entries(),
    }.items():
        storage = Leaving()
        store = txnqueue.look(str(folder / "store"), filesystem=storage)
        storage.gone = gone
        with pytest.raises(errors.FilesNotReadable, match=r"Connection reset.*credentials"):
            look(store)
