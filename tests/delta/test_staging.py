"""What sends read on real Delta, what that costs, and what they fall back to."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.delta.counting import Cost
from txnqueue import QueueManager
from txnqueue.client.side_by_side import both
from txnqueue.errors import StoreCorrupt, StoreNotFound
from txnqueue.storage.payload import commits, frame_arrangement, writes
from txnqueue.storage.payload.commits import StagedCommit

pytestmark = pytest.mark.spark
ROWS = 1_000
_NUMBERS = itertools.count(1)
Reads = list[str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("staging"))


@pytest.fixture(scope="module")
def manager(spark: Any, root: str) -> QueueManager:
    return QueueManager(spark, root)


@pytest.fixture
def queue(manager: QueueManager) -> Any:
    return manager.create_queue(f"q{next(_NUMBERS)}", "i long", dead_letter=False)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The queries that read rows back."""
    found: Reads = []
    plain = frame_arrangement.runs_query

    def noted(*said: Any) -> str:
        found.append(plain(*said))
        return found[-1]

    monkeypatch.setattr("txnqueue.storage.payload.staging.runs_query", noted)
    return found


@pytest.fixture(autouse=True)
def settings(spark: Any) -> Iterator[None]:
    """Let a test set what it likes on the user's session."""
    keys = ("spark.databricks.delta.stats.collect", "spark.databricks.delta.history.metricsEnabled")
    yield
    for key in keys:
        spark.conf.unset(key)


def numbers(spark: Any, n: int = ROWS, tasks: int = 2) -> Any:
    return spark.range(0, n, 1, tasks).toDF("i")


def sent(queue: Any) -> list[int]:
    """Receive everything, in the order of delivery."""
    return list(queue.receive(2 * ROWS).to_arrow().column("i").to_pylist())


def test_a_send_of_one_place_writes_once_and_reads_nothing_back(
    spark: Any, root: str, manager: QueueManager, queue: Any, reads: Reads
) -> None:
    tx = manager.transaction()
    with Cost(spark, root) as cost:
        assert queue.send(numbers(spark), transaction=tx).count == ROWS
    assert (cost.commits, cost.jobs, reads) == (1, 1, [])
    tx.commit()
    assert sent(queue) == list(range(ROWS))
    written = spark.read.format("delta").load(f"{root}/payload/{queue.info.payload_id}")
    assert written.where("arrangement IS NOT NULL").count() == 0


def test_the_log_of_a_table_on_another_disk_is_read_by_spark(
    spark: Any, queue: Any, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "scheme_of", lambda _path: "hdfs")
    assert queue.send(numbers(spark)).count == ROWS
    assert reads == []
    assert sent(queue) == list(range(ROWS))


@pytest.mark.parametrize("collected", [True, False])
def test_lanes_share_what_may_stand_anywhere_without_a_look_at_it(
    spark: Any, root: str, manager: QueueManager, reads: Reads, collected: bool
) -> None:
    queue = manager.create_queue(f"q{next(_NUMBERS)}", "i long", lanes=3, dead_letter=False)
    spark.conf.set("spark.databricks.delta.stats.collect", str(collected).lower())
    tx = manager.transaction()
    with Cost(spark, root) as cost:
        queue.send(numbers(spark, tasks=4), transaction=tx)
    tx.commit()
    assert cost.commits == 1
    assert len(reads) == 1 - collected
    assert cost.jobs == 1 or not collected
    batch = queue.receive(2 * ROWS)
    by_lane: dict[int, list[int]] = {}
    for row in batch.messages():
        by_lane.setdefault(row["_message"]["lane"], []).append(row["i"])
    assert sorted(map(len, by_lane.values())) == [333, 333, 334]
    assert all(found == sorted(found) for found in by_lane.values())
    assert sorted(itertools.chain(*by_lane.values())) == list(range(ROWS))


@pytest.mark.parametrize("how", [{"order_by": ["i"]}, {"priority": "i"}])
def test_rows_that_say_where_they_stand_are_sorted_and_read_back(
    spark: Any, manager: QueueManager, reads: Reads, how: dict[str, Any]
) -> None:
    queue = manager.create_queue(f"q{next(_NUMBERS)}", "i int", lanes=2, dead_letter=False)
    assert queue.send(numbers(spark, 10).selectExpr("int(9 - i) AS i"), **how).count == 10
    assert len(reads) == 1
    by_lane: dict[int, list[int]] = {}
    for row in queue.receive(20).messages():
        by_lane.setdefault(row["_message"]["lane"], []).append(row["i"])
    down = "priority" in how
    assert all(found == sorted(found, reverse=down) for found in by_lane.values())
    assert sorted(itertools.chain(*by_lane.values())) == list(range(10))


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_with_different_times_to_live_keep_their_order_in_an_ordered_queue(
    spark: Any, manager: QueueManager, ordered: bool
) -> None:
    name = f"q{next(_NUMBERS)}"
    queue = manager.create_queue(name, "i long", ordered=ordered, dead_letter=False)
    frame = numbers(spark, 12).selectExpr("i", "DOUBLE(IF(i % 3 = 0, NULL, 1000 - i % 3)) AS ttl")
    queue.send(frame, ttl_seconds="ttl")
    queue.send([{"i": 12, "ttl": 20.0}, {"i": 13, "ttl": 10.0}], ttl_seconds="ttl")
    found = sent(queue)
    if ordered:
        assert found == list(range(14))
    else:
        assert found == [*range(0, 12, 3), *range(2, 12, 3), *range(1, 12, 3), 13, 12]


@pytest.mark.parametrize("off", ["stats.collect", "history.metricsEnabled"])
def test_without_statistics_or_metrics_the_rows_are_read_back(
    spark: Any, queue: Any, reads: Reads, off: str
) -> None:
    spark.conf.set(f"spark.databricks.delta.{off}", "false")
    assert queue.send(numbers(spark), priority=7).count == ROWS
    assert len(reads) == 1
    assert sent(queue) == list(range(ROWS))


def test_the_commit_of_another_thread_is_not_taken_for_ones_own(
    spark: Any, queue: Any, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(numbers(spark, 5))
    plain = commits.find_commit

    def late(send: Any, said: str, *where: Any) -> StagedCommit | None:
        assert int(said) > 1
        return plain(send, "1", *where)  # the first send's, as if another thread had just made it

    monkeypatch.setattr("txnqueue.storage.payload.staging.find_commit", late)
    assert queue.send(numbers(spark)).count == ROWS
    assert reads == []
    assert sent(queue) == [*range(5), *range(ROWS)]


def test_sends_side_by_side_are_the_callers_jobs_and_read_nothing_back(
    spark: Any, root: str, manager: QueueManager, reads: Reads
) -> None:
    names = [f"q{next(_NUMBERS)}" for _ in range(3)]
    queues = [manager.create_queue(name, "i long", dead_letter=False) for name in names]
    context = spark.sparkContext
    tx = manager.transaction()
    context.setJobGroup("mine", "sends of one call")
    try:
        with Cost(spark, root) as cost:
            sends = tx.send({name: numbers(spark, ROWS + n) for n, name in enumerate(names)})
        mine = context.statusTracker().getJobIdsForGroup("mine")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    assert (cost.commits, cost.jobs, reads) == (3, 3, [])
    assert len(mine) == 3
    tx.commit()
    assert [sends[name].count for name in names] == [ROWS, ROWS + 1, ROWS + 2]
    assert [sent(queue) for queue in queues] == [list(range(ROWS + n)) for n in range(3)]


def test_an_interrupt_of_two_calls_waits_for_none_and_an_error_for_both(spark: Any) -> None:
    go, ended = threading.Event(), threading.Event()

    def one() -> int:
        go.wait(60)
        ended.set()
        return 1

    def interrupted() -> str:
        raise KeyboardInterrupt

    def failed() -> str:
        go.set()
        raise ValueError("of the other call")

    assert both(spark, lambda: 1, lambda: "x") == both(None, lambda: 1, lambda: "x") == (1, "x")
    with pytest.raises(KeyboardInterrupt):
        both(spark, one, interrupted)
    assert not ended.is_set()
    go.set()
    assert ended.wait(60)
    ended.clear()
    with pytest.raises(ValueError, match="of the other call"):
        both(spark, one, failed)
    assert ended.is_set()


def test_a_task_that_writes_several_files_has_one_range(
    spark: Any, root: str, queue: Any, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(writes._OPTIONS, "maxRecordsPerFile", "100")
    assert queue.send(numbers(spark)).count == ROWS
    files = list(Path(root, "payload", queue.info.payload_id).rglob("part-*.parquet"))
    assert (len(files), reads) == (10, [])
    assert sent(queue) == list(range(ROWS))


def test_a_session_that_cuts_files_short_does_not_cut_those_of_a_send(
    spark: Any, root: str, queue: Any, reads: Reads
) -> None:
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "100")
    try:
        assert queue.send(numbers(spark)).count == ROWS
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    files = list(Path(root, "payload", queue.info.payload_id).rglob("part-*.parquet"))
    assert (len(files), reads) == (2, [])


def test_empty_frames_and_tasks_without_rows_are_no_ranges(
    spark: Any, queue: Any, reads: Reads
) -> None:
    assert queue.send(numbers(spark, 0)).count == 0
    assert len(reads) == 1, (
        "Delta makes no commit of nothing, so the table says that there is nothing"
    )
    assert queue.send(numbers(spark).where("i BETWEEN 700 AND 709")).count == 10
    assert len(reads) == 1
    assert sent(queue) == list(range(700, 710))


def test_rows_that_were_evaluated_and_not_committed_fail_the_send(
    spark: Any, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = commits.find_commit

    def more(*said: Any) -> StagedCommit:
        found = plain(*said)
        assert found is not None
        return StagedCommit(found.version, found.rows + 1, found.files)

    monkeypatch.setattr("txnqueue.storage.payload.staging.find_commit", more)
    with pytest.raises(StoreCorrupt, match="1001 rows of a send were written, but 1000"):
        queue.send(numbers(spark))
    assert queue.depth() == 0


def test_payload_is_written_by_the_newer_encodings_of_parquet(
    spark: Any, root: str, queue: Any
) -> None:
    import pyarrow.parquet as pq

    queue.send(numbers(spark))
    folder = Path(root, "payload", queue.info.payload_id)
    for file in folder.rglob("part-*.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        offset = next(one for one in columns if one.path_in_schema == "send_offset")
        assert "DELTA_BINARY_PACKED" in offset.encodings


@pytest.mark.parametrize("gone", ["all of it", "its tables"])
def test_a_store_that_was_removed_is_told_and_nothing_comes_in_its_place(
    spark: Any, tmp_path: Path, gone: str
) -> None:
    """A send left a folder with rows of nobody's, and a change of a table one more."""
    root, table = tmp_path / "store", str(tmp_path / "gold")
    spark.sql(f"CREATE TABLE delta.`{table}` (n long) USING delta")
    manager = QueueManager(spark, str(root))
    queue = manager.create_queue("q", "n long")
    queue.send([{"n": 1}])
    queue.send(spark.range(2).selectExpr("id AS n"))
    batch, tx = queue.receive(1), manager.transaction()
    assert tx.queue("q").depth() == 2
    if gone == "all of it":
        shutil.rmtree(root)
    else:
        for folder in ("journal", "payload"):
            shutil.rmtree(root / folder)
    before = sorted(tmp_path.rglob("*"))
    calls: list[Any] = [
        lambda: queue.send([{"n": 2}]),
        lambda: queue.send(spark.range(2).selectExpr("id AS n")),
        lambda: tx.table(table).append([{"n": 2}]),
        batch.accept,
        lambda: queue.receive(1),
        manager.history.verify,
        manager.history.report,
        lambda: manager.create_queue("other", "n long"),
    ]
    for call in calls:
        with pytest.raises(StoreNotFound, match="put it back"):
            call()
    assert [one for one in sorted(tmp_path.rglob("*")) if ".locks" not in str(one)] == [
        one for one in before if ".locks" not in str(one)
    ]
