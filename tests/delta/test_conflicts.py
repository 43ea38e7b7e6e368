"""Forced conflicts of two sessions on real Delta, both ways round.

The first append takes its snapshot and waits inside its MERGE until the second has landed.
In the long run the same on a real HDFS, where a commit is Delta's own and needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.hdfs import MiniHdfs
from tests.delta.units import APART, BARRED, RIVALS, unit
from txnqueue import QueueManager
from txnqueue.core.model import CLAIMED, Condition, Entry, Unit, next_sequence
from txnqueue.core.planning import Plan
from txnqueue.storage.journal import AppendConflict, delta, statements
from txnqueue.storage.journal.delta import DeltaJournal
from txnqueue.storage.journal.groups import Groups
from txnqueue.storage.journal.lock import NoLock
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.payload.delta import DeltaPayload
from txnqueue.testing import plain_schema

pytestmark = pytest.mark.spark
WAIT_SECONDS = 45
CREATORS = 3


class Waiting:
    """A session whose MERGE waits, once it has its snapshot, until a file appears."""

    def __init__(self, session: Any, folder: Path) -> None:
        self._session = session
        self.reached = folder / "reached"
        self.go_on = folder / "go on"
        reached, go_on = str(self.reached), str(self.go_on)

        def barrier(unit: int) -> bool:
            import pathlib
            import time

            pathlib.Path(reached).touch()
            deadline = time.monotonic() + WAIT_SECONDS
            while not pathlib.Path(go_on).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody let the MERGE go on")
                time.sleep(0.005)
            return True

        session.udf.register("barrier", barrier, "boolean")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def sql(self, statement: str) -> Any:
        if statement.startswith("MERGE"):
            source, condition = statement.split(") s ON ", 1)
            source = source.replace("USING (", "USING (SELECT * FROM (", 1)
            statement = f"{source}) WHERE barrier(unit)) s ON {condition}"
        return self._session.sql(statement)

    def reset(self) -> None:
        self.reached.unlink(missing_ok=True)
        self.go_on.unlink(missing_ok=True)


class Unlocked(Statements):
    """Statements without the lock: one JVM's Delta commits are atomic without it."""

    waiting: Any = None

    def __init__(self, spark: Any, names: TableNames, **_: Any) -> None:
        super().__init__(spark, names)
        self._locks.of = lambda table: NoLock()

    @property
    def appending(self) -> Any:
        return self.waiting or super().appending


@pytest.fixture(scope="module", params=["local", "hdfs"] if LONG else ["local"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("conflicts")
    if request.param == "local":
        return str(folder)
    hdfs = MiniHdfs(folder)
    request.addfinalizer(hdfs.close)  # noqa: PT021 - there is not always one to close
    return f"{hdfs.url}/conflicts"


@pytest.fixture(scope="module")
def journals(
    spark: Any, root: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DeltaJournal, DeltaJournal, Waiting]:
    names, folder = TableNames.of(f"{root}/store"), tmp_path_factory.mktemp("waiting")
    slow_statements, fast_statements = Unlocked(spark, names), Unlocked(spark, names)
    slow, fast = (DeltaJournal(s, groups=Groups()) for s in (slow_statements, fast_statements))
    slow.create()
    waiting = Waiting(slow_statements.appending, folder)
    slow_statements.waiting = waiting
    return slow, fast, waiting


def meet(
    journals: tuple[DeltaJournal, DeltaJournal, Waiting], first: Unit, second: Unit
) -> tuple[bool, bool]:
    """Let the second append land between the first one's snapshot and its commit."""
    slow, fast, waiting = journals
    waiting.reset()
    outcome: list[bool] = []

    def run() -> None:
        try:
            outcome.append(slow.append([first], {"operation": "first"}).won[0])
        except AppendConflict:
            outcome.append(False)

    thread = threading.Thread(target=run)
    thread.start()
    _until(waiting.reached, thread)
    landed = fast.append([second], {"operation": "second"}).won[0]
    waiting.go_on.touch()
    thread.join(WAIT_SECONDS)
    entries = fast.read({e.shard for u in (first, second) for e in u.entries}).entries
    there = {entry.append_id for entry in entries}
    assert (outcome[0], landed) == (first.append_id in there, second.append_id in there)
    return outcome[0], landed


def _until(path: Path, thread: threading.Thread) -> None:
    import time

    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        assert thread.is_alive() and time.monotonic() < deadline, "the MERGE never got there"
        time.sleep(0.005)


WAYS = ("one way", "the other way")
BOTH_WAYS = [(name, way) for name in RIVALS for way in WAYS]
BY_TURNS = [(name, WAYS[nth % 2]) for nth, name in enumerate(RIVALS)]


@pytest.mark.parametrize(("name", "way"), BOTH_WAYS if LONG else BY_TURNS)
def test_of_two_rivals_exactly_one_lands(journals: Any, name: str, way: str) -> None:
    before, first, second = RIVALS[name](f"{name} {way}")
    if before.entries:
        assert journals[1].append([before], {"operation": "state"}).won[0]
    if way == "the other way":
        first, second = second, first
    assert meet(journals, first, second) == (False, True)


@pytest.mark.parametrize("name", BARRED)
def test_what_is_barred_does_not_land(journals: Any, name: str) -> None:
    before, first, barring = BARRED[name](f"{name} barred")
    if before.entries:
        assert journals[1].append([before], {"operation": "state"}).won[0]
    assert meet(journals, first, barring) == (False, True)
    assert journals[1].append([first], {"operation": "again"}).won == (
        "horizon" in name,  # which has not passed it here
    )


@pytest.mark.parametrize("name", BARRED if LONG else ["a commit and closing a queue it posts to"])
def test_what_lands_before_the_bar_has_its_effect(journals: Any, name: str) -> None:
    before, first, barring = BARRED[name](f"{name} before, other")
    if before.entries:
        assert journals[1].append([before], {"operation": "state"}).won[0]
    assert meet(journals, barring, first) == (True, True)


@pytest.mark.parametrize("way", WAYS if LONG else WAYS[:1])
@pytest.mark.parametrize("name", APART)
def test_appends_that_need_not_meet_both_land(journals: Any, name: str, way: str) -> None:
    before, first, second = APART[name](f"{name} {way}")
    if before.entries:
        assert journals[1].append([before], {"operation": "state"}).won[0]
    if way == "the other way":
        first, second = second, first
    assert meet(journals, first, second) == (True, True)


def test_a_late_duplicate_inserts_nothing(journals: Any) -> None:
    _, first, _ = RIVALS["two claims of a lane"]("late duplicate")
    assert journals[1].append([first], {}).won == (True,)
    assert journals[1].append([first], {}).won == (False,)


def test_a_unit_with_one_broken_condition_inserts_nothing_at_all(journals: Any) -> None:
    before, first, second = RIVALS["a joined commit and claim, and a claim"]("broken")
    journals[1].append([before], {})
    assert journals[1].append([second], {}).won == (True,)
    assert journals[1].append([first], {}).won == (False,)
    shards = {entry.shard for entry in first.entries}
    entries = journals[1].read(shards).entries
    assert first.append_id not in {entry.append_id for entry in entries}


NAMES = [
    "a",
    "x" * 31 + "\U0010ffff" * 9,
    "x" * 40,
    "\U0010ffff" * 40,
    "\uffff" * 33,
    "\ud7ff" * 33,
    "é" * 31 + "\U0001f600" * 3,
    "line\nbreak\ttab\u0001",
    "'quoted' \"twice\" \\ %_ ${x}",
]
"""Of strings Delta's statistics keep the first 32 characters."""


def test_what_an_expectation_is_about_is_found_by_statistics_of_any_name(journals: Any) -> None:
    journal = journals[1]

    def named(tag: str, name: str, sequence: int, condition: Condition) -> Unit:
        entry = Entry("lane/names/0", name, CLAIMED, sequence=sequence, actor="x")
        return unit(tag, f"{name} {sequence}", Plan((entry,), (condition,)))

    firsts = [named("first", name, 7, _next(name, 7)) for name in NAMES]
    assert journal.append(firsts, {}).won == (True,) * len(NAMES)
    there = [replace(_next(name, 7), present=True) for name in NAMES]

    for files in ("many", "few"):
        rivals = [named(files, n, late, _next(n, late)) for n in NAMES for late in (6, 7)]
        assert not any(journal.append(rivals, {"operation": "late"}).won), files
        others = [named(files, f"{n} in {files}", 1, c) for n, c in enumerate(there)]
        assert all(journal.append(others, {"operation": "there"}).won), files
        journal.rewrite(["lane/names/0"], {"operation": "rewrite"})


def _next(name: str, sequence: int) -> Condition:
    return next_sequence("lane/names/0", name, sequence)


def test_of_a_group_each_unit_goes_in_by_itself(journals: Any) -> None:
    _, won, _ = RIVALS["two claims of a lane"]("group won")
    _, lost, rival = RIVALS["two claims of a lane"]("group lost")
    assert journals[1].append([rival], {}).won == (True,)
    answer = journals[1].append([won, lost], {"operation": "group"})
    assert answer.won == (True, False)


@pytest.mark.parametrize("number", range(12 if LONG else 2))
def test_clients_that_create_a_store_at_the_same_time_have_one_together(
    spark: Any, root: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "Statements", Unlocked)
    monkeypatch.setattr(delta, "groups_of", lambda *_: Groups())
    there, begin = f"{root}/new{number}", threading.Barrier(CREATORS)

    def create(n: int) -> None:
        manager = QueueManager(spark, there, actor=f"client {n}")
        begin.wait()
        queue = manager.create_queue("q", "n long", dead_letter=False, exist_ok=True)
        queue.send([{"n": n}])

    with ThreadPoolExecutor(CREATORS) as threads:
        list(threads.map(create, range(CREATORS)))
    manager = QueueManager(spark, there)
    found = [message["n"] for message in manager.queue("q").peek_messages()]
    assert sorted(found) == [*range(CREATORS)]
    assert manager.history.verify().ok


@pytest.mark.parametrize("locked", [True, False] if LONG else [False])
@pytest.mark.parametrize("what", ["journal", "archive", "payload"])
def test_a_table_that_was_begun_and_left_is_made_whole(
    spark: Any, root: str, what: str, locked: bool
) -> None:
    """Delta takes a folder in which there is no commit for a table, and creates no other one."""
    there = f"{root}/begun-{what}-{locked}"
    made = (Statements if locked else Unlocked)(spark, TableNames.of(there))
    folder = {"payload": "payload/change-1"}.get(what, what)
    if what != "journal":
        DeltaJournal(made, groups=Groups()).create()
    begun = spark._jvm.org.apache.hadoop.fs.Path(f"{there}/{folder}/_delta_log/_staged_commits")
    begun.getFileSystem(spark._jsc.hadoopConfiguration()).mkdirs(begun)
    journal, payload = DeltaJournal(made, groups=Groups()), DeltaPayload(made)
    ways: dict[str, Callable[[], object]] = {
        "journal": journal.create,
        "archive": journal.archive.create,
        "payload": lambda: payload.create("change-1", plain_schema("n long")),
    }
    for _ in range(2):  # the second time it is there
        ways[what]()
        made_of = spark.read.format("delta").load(f"{there}/{folder}").columns
        assert {"journal": "shard", "archive": "day", "payload": "arrangement"}[what] in made_of


def test_drivers_that_add_one_column_at_the_same_time_have_it(
    spark: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "Statements", Unlocked)
    manager = QueueManager(spark, f"{root}/columns")
    manager.create_queue("q", "n long", dead_letter=False)
    for number in range(6 if LONG else 2):
        begin = threading.Barrier(CREATORS)

        def alter(n: int, added: str, begin: threading.Barrier) -> None:
            other = QueueManager(spark, f"{root}/columns", actor=f"client {n}").queue("q")
            begin.wait()
            other.alter(add=added)
            other.send([{"n": n}])

        with ThreadPoolExecutor(CREATORS) as threads:
            added = [f"at{number} timestamp_ntz"] * CREATORS
            list(threads.map(alter, range(CREATORS), added, [begin] * CREATORS))
    found = manager.queue("q").peek_messages()
    assert len(found) == CREATORS * (number + 1) and f"at{number}" in found[0]
