"""What operations cost, counted: Delta commits, Spark jobs, tasks, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.delta.counting import Cost
from tests.inside import client_of
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
APPEND_JOBS_MAX = 4
PROOF_JOBS_MAX = 12
TASKS_MAX = 3
"""Over all stages of a job: the one with the guard has three stages of one task each."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cost"))


@pytest.fixture(scope="module")
def manager(spark: Any, root: str) -> QueueManager:
    manager = QueueManager(spark, root, actor="cost")
    manager.create_queue("in", "i long", lanes=3, deliveries_max=1)
    manager.create_queue("out", "i long", dead_letter=False)
    manager.create_queue("other", "i long", dead_letter=False)
    return manager


def rows(spark: Any, n: int) -> Any:
    return spark.range(n).withColumnRenamed("id", "i")


def test_beginning_a_transaction_makes_no_commit(
    spark: Any, root: str, manager: QueueManager
) -> None:
    with Cost(spark, root) as cost, manager.transaction():
        pass
    assert cost.commits == 0


def test_sending_to_k_queues_makes_k_plus_1_commits(
    spark: Any, root: str, manager: QueueManager
) -> None:
    tx = manager.transaction()
    with Cost(spark, root) as staged:
        for name in ("in", "out", "other"):
            manager.queue(name).send(rows(spark, 30), transaction=tx)
    with Cost(spark, root) as decided:
        tx.commit()
    assert (staged.commits, decided.commits) == (3, 1)
    assert decided.jobs <= APPEND_JOBS_MAX
    assert max(decided.tasks) <= TASKS_MAX


def test_rolling_back_what_was_only_staged_makes_no_commit(
    spark: Any, root: str, manager: QueueManager
) -> None:
    tx = manager.transaction()
    manager.queue("out").send([{"i": 1}], transaction=tx)
    with Cost(spark, root) as cost:
        tx.rollback()
    assert cost.commits == 0


def test_claiming_a_million_over_all_lanes_makes_one_commit_and_an_entry_per_lane(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.queue("in")
    while len(batch := queue.receive(100)):
        batch.accept()
    queue.send(rows(spark, 1_000_000))
    before = client_of(manager).store.journal.version()
    with Cost(spark, root) as cost:
        batch = queue.receive(1_000_000)
    entries = client_of(manager).store.journal.read(
        client_of(manager).states.fold(queue.info).shards
    )
    new = [entry for entry in entries.entries if entry.version > before]
    assert len(batch) == 1_000_000
    assert cost.commits == 1
    assert [entry.kind for entry in new] == ["claimed"] * 3
    assert cost.jobs <= APPEND_JOBS_MAX  # what is new is this process's own
    assert max(cost.tasks) <= TASKS_MAX
    with Cost(spark, root) as accepted:
        batch.accept()
    assert accepted.commits == 1


def test_consuming_and_producing_makes_three_commits(
    spark: Any, root: str, manager: QueueManager
) -> None:
    manager.queue("in").send(rows(spark, 30))
    with Cost(spark, root) as cost, manager.transaction() as tx:
        batch = manager.queue("in").receive(30, transaction=tx)
        manager.queue("out").send(batch.df, transaction=tx)
    assert cost.commits == 3


def test_an_append_adds_a_file_for_each_shard_that_it_writes_to(
    spark: Any, root: str, manager: QueueManager
) -> None:
    """Each file is removed one day, and listed in checkpoints that are read before each append."""
    log = Path(root) / "journal" / "_delta_log"

    def added() -> int:
        new = sorted(log.glob("*.json"))[known:]
        return sum(line.startswith('{"add"') for path in new for line in path.open())

    queue = manager.create_queue("filed", "i long", dead_letter=False)
    known = len(list(log.glob("*.json")))
    queue.send([{"i": 1}])
    assert added() == 2  # the position in its lane, the decision of its transaction
    known = len(list(log.glob("*.json")))
    queue.receive(1).accept()
    assert added() == 2  # the claim and the settlement, both in the lane
    queue.send([{"i": 2}])
    known = len(list(log.glob("*.json")))
    with manager.transaction() as tx:
        batch = tx.queue("filed").receive(1)
        tx.queue("out").send(batch.df)
    assert added() == 4  # the claim; the settlement, the position, the decision


def test_rolling_back_a_claim_makes_one_commit(
    spark: Any, root: str, manager: QueueManager
) -> None:
    manager.queue("other").send(rows(spark, 3))
    tx = manager.transaction()
    manager.queue("other").receive(3, transaction=tx)
    with Cost(spark, root) as cost:
        tx.rollback()
    assert cost.commits == 1
    assert cost.jobs <= APPEND_JOBS_MAX + 5  # and the look-up of the decision


def test_a_drain_makes_two_commits_a_batch_in_its_steady_state(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("drained", "i long", dead_letter=False)
    queue.send(rows(spark, 60))
    seen = []

    def handler(batch: Any, tx: Any) -> None:
        seen.append(len(batch))
        tx.queue("out").send(batch.df)

    with Cost(spark, root) as cost:
        result = queue.drain(handler, batch_size=10)
    assert result.messages == 60 and seen == [10] * 6
    assert cost.commits == 1 + 6 * 2  # the first claim; then a staged send and one append each


def test_dead_letters_found_by_a_claim_make_no_further_commit(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("poisoned", "i long", deliveries_max=1)
    queue.send([{"i": 1}])
    tx = manager.transaction()
    queue.receive(1, transaction=tx)
    tx.rollback()
    queue.send([{"i": 2}])
    with Cost(spark, root) as cost:
        batch = queue.receive(5)
    assert [m["i"] for m in batch.messages()] == [2]
    assert manager.queue("poisoned.dead").depth() == 1
    assert cost.commits == 1


def test_a_warm_claim_costs_the_same_beside_other_queues_and_history(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("warm", "i long", dead_letter=False)
    queue.send(rows(spark, 100))
    queue.receive(1)
    with Cost(spark, root) as early:
        queue.receive(1)
    for _ in range(5):
        manager.queue("other").send(rows(spark, 2))
        queue.send(rows(spark, 1000))
    queue.receive(1)
    with Cost(spark, root) as late:
        queue.receive(1)
    assert (late.commits, late.jobs) == (early.commits, early.jobs)


def test_an_append_opens_no_more_files_the_longer_a_queue_is_worked_on(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("long", "i long", dead_letter=False)
    read = []
    for number in range(9):
        queue.send([{"i": number}])
        batch = queue.receive(1)
        with Cost(spark, root) as cost:
            batch.accept()
        read.append(cost.bytes)
        assert 0 in cost.tasks, "the MERGE opened files to look for its own entries"
    journal = sum(file.stat().st_size for file in Path(root, "journal").rglob("*.parquet"))
    assert journal > 9 * 3 * 8_000, "three files of the queue came with each round"
    assert read[-1] - read[2] < 6 * 3 * 4_000, read


def test_receiving_reads_only_the_files_of_its_messages(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("many", "i long", dead_letter=False)
    for _ in range(6):
        queue.send(rows(spark, 10).coalesce(1))
    batch = queue.receive(10)
    assert len(batch.df.inputFiles()) >= 1
    plan = batch.df._jdf.queryExecution().executedPlan()
    batch.df.collect()
    files = _files_read(batch.df)
    everything = list(Path(root, "payload", queue.info.payload_id).glob("slice=*/*.parquet"))
    # One scan reads the messages, and none counts them: the file is named, and has them all.
    assert len(everything) == 6 and files == [1], str(plan)


def _files_read(frame: Any) -> list[int]:
    """Read the number of files from the metrics of each scan of the payload."""
    executed = frame._jdf.queryExecution()
    executed.executedPlan().executeCollect()
    return _scan_metrics(executed.executedPlan())


def _scan_metrics(plan: Any) -> list[int]:
    if "FileSourceScanExec" in plan.getClass().getName():
        return [int(plan.metrics().apply("numFiles").value())]
    if "AdaptiveSparkPlan" in plan.getClass().getName():
        return _scan_metrics(plan.executedPlan())
    if "QueryStageExec" in plan.getClass().getName():
        return _scan_metrics(plan.plan())
    children = plan.children()
    below = [_scan_metrics(children.apply(index)) for index in range(children.size())]
    return [files for scans in below for files in scans]


def test_every_delta_commit_says_who_did_what(spark: Any, root: str, manager: QueueManager) -> None:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{root}/journal`").collect()
    assert all(row["userMetadata"] for row in history)
    assert '"operation": "commit"' in " ".join(row["userMetadata"] for row in history)
    payload = manager.queue("in").info.payload_id
    history = spark.sql(f"DESCRIBE HISTORY delta.`{root}/payload/{payload}`").collect()
    assert all(row["userMetadata"] for row in history)


def test_the_tables_have_their_properties(spark: Any, root: str, manager: QueueManager) -> None:
    shown = spark.sql(f"SHOW TBLPROPERTIES delta.`{root}/journal`").collect()
    properties = {row["key"]: row["value"] for row in shown}
    assert properties["delta.enableDeletionVectors"] == "false"
    assert properties["delta.enableInCommitTimestamps"] == "true"
    assert properties["delta.checkpointInterval"] == "10"
    assert properties["delta.isolationLevel"] == "Serializable"
    assert properties["delta.minReaderVersion"] == "1"


@pytest.mark.parametrize("table", ["journal", "payload"])
def test_writers_outside_spark_are_refused_and_readers_are_not(
    root: str, manager: QueueManager, table: str
) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = f"{root}/{table}"
    if table == "payload":
        path += f"/{manager.queue('in').info.payload_id}"
    there = deltalake.DeltaTable(path)
    rows = there.to_pyarrow_table()
    for write in (
        lambda: deltalake.write_deltalake(path, rows, mode="append"),
        there.delete,
        there.optimize.compact,
    ):
        with pytest.raises(Exception, match="InCommitTimestamp"):
            write()
    assert deltalake.DeltaTable(path).version() == there.version()


def test_the_journal_refuses_an_entry_without_a_kind(
    spark: Any, root: str, manager: QueueManager
) -> None:
    with pytest.raises(Exception, match="CHECK constraint"):
        spark.sql(
            f"INSERT INTO delta.`{root}/journal` (shard, stream, append_id) VALUES ('x','y','z')"
        )


def test_a_proof_of_a_short_history_reads_the_journal_once_and_its_log_once(
    spark: Any, tmp_path: Path
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("in", "i long", dead_letter=False)
    queue.send(rows(spark, 30))
    assert queue.receive(10) is not None
    with Cost(spark, str(tmp_path)) as cost:
        assert manager.history.verify().ok
    assert cost.commits == 0
    assert cost.jobs <= PROOF_JOBS_MAX


def test_transient_work_makes_no_commit_and_adds_none_to_durable_work(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("fleeting", "i long", durable=False, dead_letter=False)
    with Cost(spark, root) as cost:
        queue.send(rows(spark, 30))
        with manager.transaction("named") as tx:
            batch = tx.queue("fleeting").receive(20)
            tx.queue("out").send(batch.df, durable=False)
        queue.receive(5).accept()
    assert (cost.commits, queue.depth()) == (0, 5)
    with Cost(spark, root) as both, manager.transaction() as tx:
        tx.queue("fleeting").receive()
        tx.queue("fleeting").send(rows(spark, 3), durable=True)
    assert both.commits == 2


def test_finding_duplicates_costs_no_commit_and_at_most_a_scan(
    spark: Any, root: str, manager: QueueManager
) -> None:
    plain = manager.create_queue("plain", "i long", dead_letter=False)
    unique = manager.create_queue(
        "unique", "i long", dead_letter=False, message_id="i", duplicate_window_seconds=600
    )
    found = {}
    for queue in (plain, unique):
        queue.send([{"i": 1}])
        queue.receive().accept()
        queue.send([{"i": n} for n in range(100)])
        with Cost(spark, root) as listed:
            received = len(queue.receive())
        queue.send(rows(spark, 2_000))
        with Cost(spark, root) as framed:
            received += len(queue.receive(5_000))
        assert (listed.commits, framed.commits) == (1, 1)
        found[queue.name] = (received, listed.jobs, framed.jobs)
    received, listed_jobs, framed_jobs = found["plain"]
    scan = 2  # Delta looks which files it is about, and Spark reads a column of them
    # No lock is held meanwhile, so that the queue is read on after it: a question to the file
    # system, and no job where nobody else wrote.
    assert found["unique"] == (2_100 - 101, listed_jobs, framed_jobs + scan)


def test_a_frame_of_few_ranges_counts_its_messages_where_it_names_their_places(
    spark: Any, root: str, manager: QueueManager
) -> None:
    queue = manager.create_queue("counted", "i long", dead_letter=False)
    queue.send(rows(spark, 1_000))
    queue.send(rows(spark, 1_000))
    batch = queue.receive(1_500)
    payload = f"delta.`{root}/payload/{queue.info.payload_id}`"
    raw = spark.sql(f"SELECT i FROM {payload} WHERE slice >= 0 AND send_offset >= 0")
    assert raw.agg({"i": "sum"}).collect()  # Delta knows the table's state from here on
    with Cost(spark, root) as plain:
        raw.agg({"i": "sum"}).collect()
    with Cost(spark, root) as counted:
        batch.df.agg({"i": "sum"}).collect()
    # Delta lists the files of the count, and one job counts the messages and broadcasts the places.
    assert counted.jobs <= plain.jobs + 2, (counted.tasks, plain.tasks)
