"""Maintenance on real Delta: files, payload, views, and what the log says of it."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import txnqueue
from tests.conftest import LONG
from tests.delta.aging import backdate
from tests.delta.counting import Cost
from tests.inside import claims_of, client_of
from txnqueue import MaintenanceResult, QueueManager
from txnqueue.admin import creation, maintenance
from txnqueue.core import model
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.reports.snapshot import schema_of
from txnqueue.storage.journal import removed_files, storage_clock
from txnqueue.storage.journal.statements import RETENTION, Statements
from txnqueue.testing import Clock, runtime

pytestmark = [pytest.mark.spark]
DAY = 86_400
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0}


def test_files_get_few_payload_goes_and_every_question_is_still_answered(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    monkeypatch.setattr(maintenance, "FILES_MAX", 0)
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    batches = []
    for n in range(3):
        queue.send([{"i": n}])
        batches.append(queue.receive(1))
        batches[-1].accept()
    for n in (7, 8):
        queue.send([{"i": n}])
    looked_at, later = batches[0].df, batches[0].df
    assert [row.i for row in looked_at.collect()] == [0]
    done = manager.maintain(**AT_ONCE)
    assert done.archived >= 9
    assert done.slices >= 2
    assert done.rewritten >= 1
    assert done.skipped == ()
    said = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/journal`").collect()
    about = [json.loads(row.userMetadata).get("operation") for row in said if row.userMetadata]
    assert about.count("remove archived") == 1  # whatever kinds of shards it was in
    copies = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/archive`").collect()
    assert len([row for row in copies if row.operation == "MERGE"]) == 1
    journal = client_of(manager).store.journal
    assert max(journal.files().values()) == 1
    assert [row.i for row in later.collect()] == [0]  # Delta keeps its file for a while
    with pytest.raises(Exception, match="PayloadRemoved"):
        batches[0].df.collect()
    number = next(iter(claims_of(batches[0])[0].positions.values())).slice
    spark.sql(  # a statement of a client that is long dead lands late
        f"INSERT INTO delta.`{tmp_path}/payload/{queue.info.payload_id}` "
        f"(send_id, send_offset, slice, i) VALUES ('late', 0, {number}, 99)"
    )
    with pytest.raises(Exception, match="PayloadRemoved"):
        batches[0].df.collect()
    assert [m["i"] for m in QueueManager(spark, str(tmp_path)).queue("q").peek_messages()] == [7, 8]
    proof = manager.history.verify()
    assert proof.ok, str(proof)
    manager.create_views("kept_")
    states = spark.sql("SELECT state, count(*) FROM kept_q GROUP BY state").collect()
    assert {row[0]: row[1] for row in states} == {"accepted": 3, "available": 2}
    assert spark.sql("SELECT * FROM kept_transactions WHERE status = 'committed'").count() == 5


def test_a_vacuum_that_lists_small_folders_takes_few_tasks(spark: Any, tmp_path: Path) -> None:
    """By default Spark starts 10,000 of them for each of its jobs: a minute for a new store."""
    manager = QueueManager(spark, str(tmp_path))
    manager.create_queue("q", "i long", dead_letter=False)
    with Cost(spark, str(tmp_path)) as cost:
        assert manager.maintain(vacuum="full").skipped == ()
    assert 32 < max(cost.tasks) < 64, cost.tasks


def test_a_clock_that_is_ahead_of_the_storages_removes_no_files_by_a_listing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    manager.create_queue("q", "i long", dead_letter=False)
    store: Any = client_of(manager).store
    ahead = storage_clock.seconds_ahead(store.statements.session, f"{tmp_path}/journal")
    assert ahead is not None and abs(ahead) < 60
    left = tmp_path / "journal" / "txnqueue-clock-of-a-driver-that-died"
    left.touch()
    os.utime(left, (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(storage_clock, "AHEAD_SECONDS_MAX", -3_600.0)
        skipped = manager.maintain(vacuum="full").skipped
    assert skipped and all("set the clock right" in one for one in skipped), skipped
    assert list(tmp_path.glob("**/*txnqueue-clock-*")) == [left]
    manager.maintain(vacuum="full")
    assert not left.exists()


@pytest.mark.skipif(not LONG, reason="two minutes: in the long run")
def test_others_may_tidy_and_copy_the_tables_and_payload_that_they_delete_is_named(
    spark: Any, tmp_path: Path
) -> None:
    """What ``docs/how-to/schedulers.md`` calls safe, and what it says ``verify`` finds."""
    root, backup = tmp_path / "store", tmp_path / "backup"
    manager = QueueManager(spark, str(root))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    for n in range(3):
        queue.send([{"i": n}])
    held = queue.receive(1)
    payload = f"payload/{queue.info.payload_id}"
    for name in ("journal", payload):
        (tidied,) = spark.sql(f"OPTIMIZE delta.`{root}/{name}`").collect()
        assert tidied.metrics.numFilesRemoved > 1, "vacuous"
        spark.sql(f"VACUUM delta.`{root}/{name}`").collect()
    queue.send([{"i": 3}])
    held.accept()
    shutil.copytree(root, backup)
    copied = QueueManager(spark, str(backup))
    assert [message["i"] for message in queue.receive(1).messages()] == [1]
    assert [message["i"] for message in copied.queue("q").peek_messages()] == [1, 2, 3]
    assert txnqueue.look(str(backup)).queue("q").depth() == 3  # and nothing is archived yet
    proof = copied.history.verify()
    assert proof.ok, proof
    (gone,) = (m["_message"]["id"] for m in copied.queue("q").peek_messages() if m["i"] == 2)
    spark.sql(f"DELETE FROM delta.`{backup}/{payload}` WHERE i = 2").collect()
    proof = copied.history.verify()
    assert not proof.ok
    told = "queue q: 3 rows of payload are there in slice 0, of 4"
    assert proof.problems == (f"{told}; the first that is not there once is {gone}",)


@pytest.mark.parametrize("place", ["a path", "a schema"])
def test_payload_tables_that_no_queue_got_are_listed_and_stay(
    spark: Any, tmp_path: Path, place: str
) -> None:
    """Catalogs write names in small letters, and a folder may be called as other ones match."""
    root = str(tmp_path / "store[1]") if place == "a path" else "orphans"
    beside = tmp_path / "store1" / "payload" / "Neighbour-00000003" / "_delta_log"
    beside.mkdir(parents=True)
    (beside / f"{0:020}.json").write_text("{}", encoding="utf-8")
    if place == "a schema":
        spark.sql("CREATE SCHEMA orphans")
    manager = QueueManager(spark, root)
    queue = manager.create_queue("Q.one", "i long", dead_letter=False)
    queue.send([{"i": 1}])
    payload: Any = client_of(manager).store.payload
    for owner in ("Lost-00000001", "Written-00000002"):
        payload.create(owner, queue.schema)
    spark.sql(
        f"INSERT INTO {payload._statements.names.payload('Written-00000002')} "
        "(send_id, send_offset, slice, i) VALUES ('s', 0, 0, 1)"
    )
    assert manager.maintain(vacuum=False).orphans == ()
    done = manager.maintain(transaction_seconds_max=0, dry_run=True)
    assert done.orphans == ("Lost-00000001", "Written-00000002")
    assert payload.orphans(()).keys() == {queue.info.payload_id, *done.orphans}
    assert payload.removed_files(queue.info.payload_id) == 0
    assert QueueManager(spark, root).queue("Q.one").depth() == 1
    assert [m["i"] for m in queue.receive(1).messages()] == [1]
    if place == "a schema":  # its oldest commit says nothing, as once the first one left the log
        spark.sql("CREATE TABLE orphans.txnqueue_payload_change_0123456789ab (i long) USING delta")
        assert "change-0123456789ab" in payload.orphans(())


def test_how_long_a_table_keeps_deleted_files_is_read_however_it_is_said(
    spark: Any, tmp_path: Path
) -> None:
    """Otherwise what is erased would never leave the disk, and nobody would be told until when."""
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("people", "name string", dead_letter=False)
    queue.send([{"name": "anna"}])
    queue.receive().accept()
    payload: Any = client_of(manager).store.payload
    table = payload._statements.names.payload(queue.info.payload_id)
    longer = f"SET TBLPROPERTIES ('{RETENTION}' = 'interval 14 days 12 hours')"
    for said, days in ((longer, 14.5), (f"UNSET TBLPROPERTIES ('{RETENTION}')", 7.0)):
        spark.sql(f"ALTER TABLE {table} {said}").collect()
        assert payload.files_kept_seconds(queue.info.payload_id) == days * DAY


@pytest.mark.skipif(not LONG, reason="a long run; in memory it is shown always")
@pytest.mark.timeout(3_600)
def test_the_payload_of_dropped_queues_leaves_the_disk_and_they_cost_nothing_any_more(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    # A millisecond is what the table says below, which no lease is shorter than.
    monkeypatch.setattr(Statements, "files_kept", lambda self, name: (7.0 * DAY, "7 days"))
    clock, root = Clock(), str(tmp_path)
    manager = QueueManager(spark, root, runtime=runtime(clock, "keeper"))
    queue = manager.create_queue("kept", "i long, secret string", dead_letter=False)

    def maintain(days: float = 0.0) -> tuple[MaintenanceResult, Cost]:
        clock.advance(days * DAY)
        queue.send([{"i": 1, "secret": "no"}])
        queue.receive(1).accept()
        fresh = QueueManager(spark, root, runtime=runtime(clock, f"keeper {clock.now_ms}"))
        fresh.list_queues()
        with Cost(spark, root) as cost:
            done = fresh.maintain(**AT_ONCE)
        assert done.skipped == ()
        return done, cost

    for days in (0.0, 0.1, 8.0):  # until every round archives as many kinds and has a vacuum due
        maintain(days)
    few = maintain(0.1)[1]
    gone = manager.create_queue("gone", "i long, secret string", dead_letter=False)
    gone.send([{"i": n, "secret": "hush"} for n in range(3)])
    manager.create_views("held_")
    assert manager.drop_queue("gone").dropped
    many = 36 if LONG else 4
    made_and_dropped(manager, gone.info, many)
    done, _ = maintain(0.5)
    assert len(done.removed) == many and done.slices >= 1
    log = f"delta.`{root}/payload/{gone.info.payload_id}`"
    spark.sql(
        f"ALTER TABLE {log} SET TBLPROPERTIES "
        "('delta.deletedFileRetentionDuration' = 'interval 1 milliseconds')"
    ).collect()
    folder = Path(root, "payload", gone.info.payload_id)
    data = [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]
    assert data, "vacuous: nothing is there"
    backdate(folder)
    done, _ = maintain(8)
    assert done.removed == (gone.info.payload_id,)
    assert not any(file.exists() for file in data)
    assert not [file for file in folder.rglob("*") if b"hush" in _content(file)]
    again = maintain(0.1)[1]
    assert (again.commits, again.jobs) == (few.commits, few.jobs)
    # As it was when the view was created.
    assert spark.sql("SELECT count(*) FROM held_kept WHERE state = 'accepted'").first()[0] == 4
    assert manager.history.verify().ok


@pytest.mark.skipif(not LONG, reason="over a minute: in the long run")
def test_days_of_the_archive_that_are_over_get_few_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DAY_FILES_MAX", 2)
    clock, root, archive = Clock(), str(tmp_path), tmp_path / "archive"
    manager = QueueManager(spark, root, runtime=runtime(clock, "keeper"))
    queue = manager.create_queue("q", "i long", dead_letter=False)

    def day() -> str:
        moment = datetime.datetime.fromtimestamp(clock.now_ms / 1000, datetime.timezone.utc)
        return moment.date().isoformat()

    def maintain(hours: float) -> MaintenanceResult:
        clock.advance(hours * 3_600)
        queue.send([{"i": 1}])
        queue.receive(1).accept()
        return manager.maintain(**AT_ONCE, vacuum=False)

    def rewritings() -> int:
        said = spark.sql(f"DESCRIBE HISTORY delta.`{archive}`").collect()
        about = [json.loads(row.userMetadata) for row in said if row.operation == "OPTIMIZE"]
        assert {one["operation"] for one in about} <= {"rewrite archive"}
        return len(about)

    kept = client_of(manager).store.journal.archive
    clock.advance(24 * 3_600 - clock.now_ms / 1000 % (24 * 3_600))
    first, count = day(), maintenance.DAY_FILES_MAX + 1
    for _ in range(count):
        done = maintain(24 / (count + 1))
        assert (done.skipped, done.rewritten) == ((), 0) and done.archived > 0
    assert kept.files()[first] >= count and rewritings() == 0
    digest = manager.history.digest()
    assert maintain(24 / count).rewritten == 1 and day() > first
    assert kept.files()[first] == 1 and rewritings() == 1
    assert maintain(1).rewritten == 0 and rewritings() == 1
    assert txnqueue.look(root).history.digest(digest.commit_seq) == digest
    assert manager.history.verify(digest=digest).ok


def made_and_dropped(manager: QueueManager, like: QueueInfo, count: int) -> None:
    """Let there have been queues, by entries as ``create_queue`` and ``drop_queue`` write them."""
    client, plans = client_of(manager), []
    for n in range(count):
        info = replace(like, name=f"gone{n}", queue_id=f"gone{n}-1", payload_id=f"gone{n}-1")
        client.store.payload.create(info.payload_id, schema_of(info))
        plans.append(catalog.create(info, 1, client.stamp()))
        for number, kind in enumerate((model.QUEUE_CLOSING, model.QUEUE_DROPPED), 1):
            newest = replace(info, sequence=number + 1)
            plans.append(catalog.write(kind, newest, client.stamp()))
            plans.append(catalog.fence(kind, info, number, client.stamp()))
    client.land(lambda lost: sum(plans, Plan()), "create and drop")


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


@pytest.mark.skipif(not LONG, reason="a long run")
@pytest.mark.timeout(3_600)
def test_work_costs_the_same_jobs_and_commits_however_much_has_happened(
    spark: Any, tmp_path: Path
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    manager.create_queue("q", "i long", dead_letter=False)

    def work(rounds: int) -> None:
        queue = manager.queue("q")
        for n in range(rounds):
            queue.send([{"i": n}])
            queue.receive(1).accept()
        manager.maintain(**AT_ONCE)

    def costs() -> list[tuple[int, int]]:
        fresh = QueueManager(spark, str(tmp_path))
        queue = fresh.queue("q")
        queue.send([{"i": -1}])
        found = []
        tx = fresh.transaction()
        with Cost(spark, str(tmp_path)) as claim:
            tx.queue("q").receive(1)
        with Cost(spark, str(tmp_path)) as commit:
            tx.commit()
        found += [(claim.commits, claim.jobs), (commit.commits, commit.jobs)]
        return found

    work(5)
    before = costs()
    work(100)
    assert costs() == before


def test_what_was_planned_before_its_files_were_deleted_is_read_again(
    spark: Any, tmp_path: Path
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    for n in range(3):  # the second and the third add a file where there is one
        queue.send([{"i": n}])
    store: Any = client_of(manager).store
    statements = store.statements
    journal = f"delta.`{tmp_path}/journal`"
    counted, planned = f"SELECT count(*) FROM {journal} WHERE count >= 0", []

    def plan() -> Any:
        frame = statements.session.sql(counted)
        frame._jdf.queryExecution().executedPlan()
        return frame

    planned.append(statements.run(plan))
    statements.run(lambda: spark.sql(f"OPTIMIZE {journal}").collect())
    spark.sql(
        f"ALTER TABLE {journal} SET TBLPROPERTIES ('{RETENTION}' = 'interval 1 milliseconds')"
    ).collect()
    backdate(tmp_path / "journal")
    spark.sql(f"VACUUM {journal}").collect()
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        planned[0].collect()
    calls = []

    def read() -> int:
        calls.append(planned.pop() if planned else plan())
        return int(calls[-1].collect()[0][0])

    assert statements.run(read) > 0
    assert len(calls) == 2


def test_removed_files_are_listed_for_a_shorter_time_while_they_are_many(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = f"delta.`{tmp_path}/journal`"

    def kept() -> str:
        shown = spark.sql(f"SHOW TBLPROPERTIES {journal} ('{RETENTION}')")
        return str(shown.collect()[0]["value"])

    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    for n in range(2):
        queue.send([{"i": n}])
        queue.receive(1).accept()
    assert manager.maintain(**AT_ONCE).skipped == ()
    assert kept() == "interval 7 days"
    other = QueueManager(spark, str(tmp_path)).queue("q")
    other.send([{"i": 8}])
    monkeypatch.setattr(removed_files, "REMOVED_MAX", 0)
    client_of(manager).cache.layout = 1
    assert manager.maintain().skipped == ()
    assert kept() == "interval 7 days", "drivers of 0.1.0 need the change feed"
    client_of(manager).cache.layout = model.LAYOUT
    assert manager.maintain().skipped == ()
    assert kept() == "interval 1 hour"
    other.send([{"i": 9}])  # by a client that knows the table as it was
    assert [message["i"] for message in other.receive(2).messages()] == [8, 9]
    monkeypatch.setattr(removed_files, "REMOVED_MAX", 10**6)
    assert manager.maintain().skipped == ()
    assert kept() == "interval 7 days"
    said = spark.sql(f"DESCRIBE HISTORY {journal}").where("operation = 'SET TBLPROPERTIES'")
    about = [json.loads(row["userMetadata"])["operation"] for row in said.collect()]
    assert about == ["limit removed files"] * 2
    spark.sql(f"ALTER TABLE {journal} SET TBLPROPERTIES ('{RETENTION}' = 'interval 8 days')")
    monkeypatch.setattr(removed_files, "REMOVED_MAX", 0)
    assert manager.maintain().skipped == ()
    assert kept() == "interval 8 days", "the owner chose it"
