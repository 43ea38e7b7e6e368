"""Appends of several threads and managers by one MERGE, and reading what is known already."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.counting import Cost
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core.receipt import Status
from txnqueue.storage.journal.delta import DeltaJournal
from txnqueue.storage.journal.log import CommitLog

pytestmark = pytest.mark.spark
THREADS = 5


def journal_of(manager: QueueManager) -> DeltaJournal:
    journal: DeltaJournal = client_of(manager).store.journal  # type: ignore[assignment]
    return journal


def test_what_several_managers_do_at_once_shares_commits(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    first = QueueManager(spark, root)
    queue = first.create_queue("orders", "n long", lanes=THREADS, dead_letter=False)
    queue.send([{"n": n} for n in range(THREADS * 20)])
    seen: list[int] = []
    errors: list[BaseException] = []
    together = threading.Barrier(THREADS, timeout=120)
    # Each begins with another lane: claims of one lane come one after the other.
    consumers = {zlib.crc32(f"c{n}".encode()) % THREADS: f"c{n}" for n in range(100)}

    def work(consumer: str) -> None:
        try:
            manager = QueueManager(spark, root, consumer=consumer)
            mine = manager.queue("orders")
            mine.depth()
            together.wait()
            with manager.transaction() as tx:
                batch = mine.receive(10, transaction=tx)
                rows = [m["n"] for m in batch.messages()]
            seen.extend(rows)
        except BaseException as error:
            errors.append(error)

    with Cost(spark, root) as cost:
        threads = [threading.Thread(target=work, args=(one,)) for one in consumers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert sorted(seen) == sorted(set(seen)), "nothing comes twice"
    assert len(seen) + queue.depth() == THREADS * 20
    assert cost.commits < 2 * THREADS, "a claim and a decision each, had they gone alone"
    log = sorted((tmp_path / "store/journal/_delta_log").glob("*.json"))
    said = [json.loads(json.loads(line)["commitInfo"]["userMetadata"]) for line in map(info, log)]
    assert any(len(one.get("group", ())) > 1 for one in said)
    assert not LONG or first.history.verify().ok
    _is_known_as_it_is(journal_of(first))


def info(commit: Path) -> str:
    """Read the line of a commit that says what it is."""
    return next(line for line in commit.read_text().splitlines() if line.startswith('{"commitInfo'))


def _is_known_as_it_is(journal: DeltaJournal) -> None:
    """What this process knows of its own appends is what anybody reads."""
    there = journal.read_all().entries
    versions = sorted({entry.version for entry in there})
    known = {v: journal._groups.tail.after(v - 1)[0] for v in versions}
    told = {v: sorted((e for e in there if e.version == v), key=lambda e: e.place) for v in known}
    compared = [v for v in versions if known[v]]
    assert len(compared) >= 5  # store, queue, send; and all claims, and all decisions, in one each
    for version in compared:
        of_it = [e for e in known[version] if e.version == version]
        assert sorted(of_it, key=lambda e: e.place) == told[version]


def test_where_nobody_else_writes_nothing_is_read(spark: Any, tmp_path: Path) -> None:
    manager = QueueManager(spark, str(tmp_path / "store"))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": n} for n in range(9)])
    queue.receive(1).accept()
    with Cost(spark, str(tmp_path / "store")) as asked:
        assert queue.depth() == 8
    assert asked.jobs == 0
    with Cost(spark, str(tmp_path / "store")) as claimed:
        batch = queue.receive(1)
    with Cost(spark, str(tmp_path / "store")) as settled:
        batch.accept()
    assert (claimed.commits, settled.commits) == (1, 1)
    assert claimed.jobs == settled.jobs == 4, "those of one MERGE"


def test_what_others_write_is_read(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    mine = QueueManager(spark, root)
    queue = mine.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    _stranger(spark, root).queue("orders").send([{"n": 2}])
    assert queue.depth() == 2
    queue.send([{"n": 3}])
    _stranger(spark, root).queue("orders").receive(1).accept()
    queue.send([{"n": 4}])
    assert [m["n"] for m in queue.receive(10).messages()] == [2, 3, 4]


def test_an_append_that_is_interrupted_before_its_turn_never_lands(
    spark: Any, tmp_path: Path
) -> None:
    manager = QueueManager(spark, str(tmp_path / "store"))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    groups, turn = journal_of(manager)._groups, threading.Event()
    groups._worker.submit(turn.wait)  # type: ignore[arg-type]
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        while not groups._waiting:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        with manager.transaction("t") as tx:
            queue.send([{"n": 1}], transaction=tx)
    pressing.join()
    turn.set()
    assert manager.outcome("t").status is Status.UNDECIDED
    assert queue.depth() == 0
    with manager.transaction("t") as tx:
        queue.send([{"n": 1}], transaction=tx)
    assert queue.depth() == 1


def _stranger(spark: Any, root: str) -> QueueManager:
    """Make a manager as of another process: it shares nothing."""
    from txnqueue.storage.journal.groups import Groups

    manager = QueueManager(spark, root)
    journal_of(manager)._shared = Groups()
    return manager


def test_a_store_that_was_made_anew_has_nothing_of_the_old_one(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    old = QueueManager(spark, root)
    orders = old.create_queue("orders", "n long", dead_letter=False)
    for n in range(5):
        orders.send([{"n": n}])
    shutil.rmtree(root)
    new = QueueManager(spark, root)
    queue = new.create_queue("orders", "n long", dead_letter=False)
    for n in range(2):
        queue.send([{"n": 10 + n}])
    assert [m["n"] for m in queue.receive(10).messages()] == [10, 11]
    assert new.history.verify().ok


def test_a_table_that_was_just_made_is_known_without_asking(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "a store, 100 % new")
    with monkeypatch.context() as watched:
        watched.setattr(CommitLog, "_describe", asked_only_if_known(CommitLog._describe))
        manager = QueueManager(spark, root)
        orders = manager.create_queue("orders", "n long", dead_letter=False)
        orders.send([{"n": 1}])
    stranger = _stranger(spark, root)
    assert journal_of(manager)._log.table_id == journal_of(stranger)._log.table_id
    assert journal_of(manager)._log.is_newest(journal_of(stranger).version())
    assert orders.depth() == 1


def asked_only_if_known(describe: Any) -> Any:
    def asked(log: CommitLog) -> Any:
        assert log._described is not None, "Spark was asked for what this process has just made"
        return describe(log)

    return asked


def test_a_log_that_was_cut_off_is_told_from_one_that_ends(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    warm = QueueManager(spark, root)
    warm.create_queue("orders", "n long", dead_letter=False)
    known = journal_of(warm).version()
    other = _stranger(spark, root)
    for n in range(3):
        other.queue("orders").send([{"n": n}])
    table = f"delta.`{root}/journal`"
    for interval in (1, 1_000):
        spark.sql(
            f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval'='{interval}')"
        )
    log = tmp_path / "store/journal/_delta_log"
    newest = journal_of(other).version()
    for version in range(newest - 1):
        (log / f"{version:020d}.json").unlink()
    assert not journal_of(warm)._log.is_newest(known)
    assert journal_of(warm)._log.is_newest(newest)
    assert warm.queue("orders").depth() == 3
