"""Stores that are older than Delta keeps its log and deleted files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.aging import age
from tests.faults.injection import Fault, FaultyStore, Injector
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.admin import creation
from txnqueue.storage.journal import feed
from txnqueue.storage.store import DeltaStore
from txnqueue.testing import Clock, runtime

pytestmark = pytest.mark.spark
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0}


@pytest.fixture
def old(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store that lay for weeks, and the drivers that knew it before."""
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    return Old(spark, str(tmp_path / "store"))


class Old:
    """A queue with past and present messages, before and after the weeks."""

    def __init__(self, spark: Any, root: str) -> None:
        self.spark, self.root = spark, root
        self.clock, self.made = Clock(), 0
        first = self.manager("first")
        queue = first.create_queue("orders", "n long", dead_letter=False)
        first.create_queue("idle", "n long", dead_letter=False).send([{"n": 0}])
        for n in range(3):
            with first.transaction(f"load/{n}") as tx:
                queue.send([{"n": n}], transaction=tx)
            queue.receive(1).accept()
        self.commit_seq = tx.receipt.commit_seq
        queue.send([{"n": n} for n in range(10, 14)])

    def manager(self, name: str, injector: Injector | None = None) -> QueueManager:
        """Start a driver, which knows nothing of what others have read."""
        store: Any = DeltaStore(self.spark, self.root)
        if injector is not None:
            store = FaultyStore(store, injector)
        self.made += 1
        made = runtime(self.clock, f"{name}#{self.made}")
        return QueueManager(self.spark, self.root, store=store, runtime=made)

    def lie_for_weeks(self, **how: Any) -> None:
        age(self.spark, self.root, **how)


QUESTIONS: dict[str, Callable[[QueueManager], Any]] = {
    "queues": lambda m: m.list_queues(),
    "idle depth": lambda m: m.queue("idle").depth(),
    "metrics": lambda m: [(row["queue"], row["in_flight"]) for row in m.metrics().rows()],
    "outcome": lambda m: m.outcome("load/0").status.value,
    "nothing known": lambda m: m.outcome("never").status.value,
    "steps": lambda m: [s["step"] for s in m.history.trace(queue="orders", where="n = 10").rows()],
}


def answers(manager: QueueManager) -> dict[str, Any]:
    return {name: ask(manager) for name, ask in QUESTIONS.items()}


def test_after_weeks_every_driver_goes_on_as_before(old: Old) -> None:
    injector = Injector()
    warm, rare = old.manager("warm", injector), old.manager("rare")
    before = answers(warm)
    assert before["outcome"] == "committed"
    rare.queue("idle").depth()
    old.lie_for_weeks()
    fresh = old.manager("fresh")
    assert answers(fresh) == before
    proof = fresh.history.verify()
    assert 0 < proof.log_from_version <= client_of(fresh).store.journal.version()
    assert "could not be compared" in str(proof), "no entry came since"
    assert fresh.queue("idle").depth() == 1, "what was read from files is read on"

    with warm.transaction() as tx:
        tx.queue("orders").send([{"n": 99}])
        injector.at, injector.fault = 0, Fault.REPLY_LOST
        injector.arm()
    injector.disarm()
    assert injector.calls[0] == "append" and tx.receipt is not None
    assert [m["n"] for m in rare.queue("orders").receive(1).messages()] == [10]
    rare.queue("idle").receive(1).accept()
    assert fresh.queue("idle").depth() == warm.queue("idle").depth() == 0


@pytest.mark.skipif(not LONG, reason="minutes: in the long run")
def test_after_weeks_the_past_is_told_and_maintained_as_before(old: Old) -> None:
    warm = old.manager("warm")
    before = answers(warm)
    proof = warm.history.verify()
    assert proof.ok and proof.log_from_version == 0
    old.lie_for_weeks()
    assert answers(warm) == before and warm.history.verify().ok
    fresh = old.manager("fresh")
    assert fresh.create_queue("orders", "n long", dead_letter=False, exist_ok=True).depth() == 4
    then = fresh.history.as_of(commit_seq=old.commit_seq)
    assert sum(row["queue"] == "orders" for row in then.counts().rows()) == 1
    warm.queue("orders").send([{"n": 99}])
    fresh.queue("orders").receive(1).accept()

    old.clock.advance(60)
    later = old.manager("later").transaction()
    later.queue("orders").send([{"n": 100}])
    done = fresh.maintain(transaction_seconds_max=59, payload_retention_days=0)
    assert done.archived > 5 and done.horizon > 0
    assert not [reason for reason in done.skipped if "keeps deleted files" not in reason]
    assert later.commit() is not None, "a fresh driver begins at the newest version"
    assert old.manager("another").history.verify().ok
    assert warm.outcome("load/0").status.value == "committed"


@pytest.mark.skipif(not LONG, reason="minutes: in the long run")
def test_files_leave_the_disk_though_the_log_no_longer_says_which(old: Old) -> None:
    keeper = old.manager("keeper")
    assert keeper.maintain(**AT_ONCE, vacuum=False).archived > 5
    old.clock.advance(5 * 86_400)
    old.manager("first").queue("orders").receive(4).accept()
    keeper.maintain(**AT_ONCE, vacuum=False)
    old.clock.advance(5 * 86_400)
    old.manager("first").queue("idle").receive(1).accept()
    assert keeper.maintain(**AT_ONCE, history_retention_days=1, vacuum=False).forgotten > 0
    old.lie_for_weeks(vacuum=False)
    store = client_of(keeper).store
    for table, vacuum in (("journal", store.journal), ("archive", store.journal.archive)):
        before = _files(old.root, table)
        assert vacuum.vacuum(0.0) is None
        assert _files(old.root, table) < before
    assert old.manager("another").history.verify().ok


def test_a_proof_compares_what_the_log_tells_and_hides_no_other_failure(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = QueueManager(spark, str(tmp_path / "store"))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    first = _checkpointed(spark, tmp_path / "store/journal")
    queue.send([{"n": 2}])
    log = tmp_path / "store/journal/_delta_log"
    for version in range(first - 1):  # the last one is left, and says nothing by itself
        for file in [*log.glob(f"{version:020}.*"), *log.glob(f".{version:020}.*")]:
            file.unlink()
    asking = QueueManager(spark, str(tmp_path / "store"))
    proof = asking.history.verify()
    assert proof.ok and proof.log_from_version == first, str(proof)
    assert f"compared from version {first} on" in str(proof)

    def fails(*_: Any) -> Any:
        raise OSError("the storage is away")

    monkeypatch.setattr(feed, "changes", fails)
    with pytest.raises(OSError, match="the storage is away"):
        asking.history.verify()


@pytest.mark.parametrize("shortened", ["by the table", *(["by the statement"] if LONG else [])])
def test_a_proof_begins_after_what_was_vacuumed_while_files_were_kept_for_less_time(
    spark: Any, tmp_path: Path, shortened: str
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}, {"n": 2}])
    queue.receive(1).accept()
    assert manager.maintain(**AT_ONCE, vacuum=False).archived
    journal = client_of(manager).store.journal
    feed_files = partial((tmp_path / "journal/_change_data").rglob, "*.parquet")
    assert list(feed_files()) and manager.history.verify().log_from_version == 0
    table = f"delta.`{tmp_path}/journal`"
    keep = f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '{{}}')"
    if shortened == "by the table":
        spark.sql(keep.format("interval 1 milliseconds")).collect()
        spark.sql(f"VACUUM {table}").collect()
        spark.sql(keep.format("interval 7 days")).collect()
    else:
        session = spark.newSession()
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM {table} RETAIN 0 HOURS").collect()
    assert not list(feed_files()), "vacuous: the change feed is still whole"
    queue.send([{"n": 3}])
    proof = QueueManager(spark, str(tmp_path)).history.verify()
    assert proof.ok and 0 < proof.log_from_version <= journal.version(), str(proof)
    queue.receive(2).accept()
    assert manager.maintain(**AT_ONCE, vacuum=False).archived and manager.history.verify().ok


def _checkpointed(spark: Any, journal: Path) -> int:
    """Commit something after which Delta writes a checkpoint; its version."""
    every = "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('delta.checkpointInterval' = '{}')"
    spark.sql(every.format(journal, 1)).collect()
    spark.sql(every.format(journal, 1_000)).collect()
    found = sorted((journal / "_delta_log").glob("*.checkpoint*.parquet"))
    return int(found[0].name[:20])


def _files(root: str, table: str) -> int:
    return sum("_delta_log" not in file.parts for file in Path(root, table).rglob("*.parquet"))
