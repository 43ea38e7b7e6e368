"""``format("txnqueue")`` read by Spark itself: types, streams, checkpoints, maintenance."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import txnqueue
from tests.conftest import LONG
from tests.drivers import start
from tests.stores.test_data_source import remove_payload
from txnqueue import Queue, QueueDataSource, QueueManager
from txnqueue.errors import FilesNotReadable, InvalidInput
from txnqueue.storage.payload.schemas import schema_from

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SCHEMA = (
    "n long, d decimal(20,3), at timestamp, on date, ntz timestamp_ntz, b binary, "
    "inner struct<a: array<int>, m: map<string, double>>"
)


def rows(*numbers: int) -> list[dict[str, Any]]:
    at = datetime.datetime(2026, 11, 1, 2, 30, tzinfo=datetime.timezone.utc)
    return [
        {
            "n": n,
            "d": Decimal(f"{n}.125"),
            "at": at,
            "on": at.date(),
            "ntz": at.replace(tzinfo=None),
            "b": bytes([n]),
            "inner": {"a": [n, None], "m": {"x": n / 2}},
        }
        for n in numbers
    ]


@pytest.fixture(scope="module")
def manager(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueManager]:
    spark.dataSource.register(QueueDataSource)
    with QueueManager(spark, str(tmp_path_factory.mktemp("source") / "store")) as made:
        yield made


@pytest.fixture(scope="module")
def orders(manager: QueueManager) -> Queue:
    return manager.create_queue("orders", SCHEMA)


def load(spark: Any, queue: Queue, root: str, **options: str) -> Any:
    return spark.read.format("txnqueue").options(queue=queue.name, **options).load(root)


class Log:
    """A streaming query that writes what comes to a queue into a table."""

    def __init__(self, spark: Any, root: str, queue: str, folder: Path) -> None:
        self._spark, self._root, self._queue, self._folder = spark, root, queue, folder

    def run(self, **options: str) -> None:
        source = self._spark.readStream.format("txnqueue").options(queue=self._queue, **options)
        query = (
            source.load(self._root)
            .select("n", "_commit_seq", "_message_id")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._folder / "log"))
        )
        query.awaitTermination()

    def rows(self) -> list[Any]:
        found = self._spark.read.parquet(str(self._folder / "log"))
        return list(found.orderBy("_commit_seq", "n").collect())


def test_rows_of_all_types_come_as_peek_shows_them(
    spark: Any, manager: QueueManager, orders: Queue
) -> None:
    first = orders.send(rows(1, 2)).receipt
    assert first is not None
    orders.receive(1).accept()
    orders.send(rows(3))
    names = ["n", "d", "at", "on", "ntz", "b", "inner"]
    found = load(spark, orders, manager.root)
    waiting = found.select(*names).orderBy("n").collect()
    assert waiting == orders.peek().select(*names).orderBy("n").collect()
    then = load(spark, orders, manager.root, asOf=str(first.commit_seq))
    assert [row["n"] for row in then.orderBy("n").collect()] == [1, 2]
    assert {row["_commit_seq"] for row in then.collect()} == {first.commit_seq}


def test_days_in_the_old_calendar_are_not_shown_as_others(
    spark: Any, manager: QueueManager
) -> None:
    """A session can have Spark write in it, and only Spark converts what it reads then."""
    queue = manager.create_queue("old", "n long, days array<date>")
    texts = {1: "DATE'1000-01-01'", 2: "DATE'1582-10-15'"}
    mode = "spark.sql.parquet.datetimeRebaseModeInWrite"
    spark.conf.set(mode, "LEGACY")
    try:
        for n, text in texts.items():
            queue.send(spark.sql(f"SELECT {n}L AS n, array({text}) AS days"))
    finally:
        spark.conf.unset(mode)
    days = [datetime.date(1000, 1, 1), datetime.date(1582, 10, 15)]
    assert [row["days"] for row in queue.peek().orderBy("n").collect()] == [[one] for one in days]
    with pytest.raises(FilesNotReadable, match="LEGACY"):
        txnqueue.look(manager.root).queue("old").peek_messages()
    queue.receive(1).accept()
    later = txnqueue.look(manager.root).queue("old").peek_messages()
    assert [message["days"] for message in later] == [[days[1]]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("inner struct<a: array<int>, more: int>", "no column 'inner.more'"),
        ("n long, inner struct<A: array<int>>", "no column 'inner.A'"),
        ("ntz timestamp_ltz", "'ntz' is timestamp_ltz"),
        ("at timestamp_ntz", "'at' is timestamp_ntz"),
    ],
)
def test_a_schema_that_is_given_makes_up_no_values(
    spark: Any, manager: QueueManager, orders: Queue, given: str, named: str
) -> None:
    """Arrow makes null of a field that is not there, and takes a time without a zone as UTC."""
    schema = schema_from(spark, given)
    source = QueueDataSource({"path": manager.root, "queue": orders.name})
    with pytest.raises(InvalidInput, match=named):
        source.reader(schema).partitions()


def test_a_stream_goes_on_after_a_restart_and_begins_anew_without_its_checkpoint(
    spark: Any, manager: QueueManager, tmp_path: Path
) -> None:
    queue = manager.create_queue("steady", "n long")
    log = Log(spark, manager.root, queue.name, tmp_path)
    queue.send([{"n": 1}, {"n": 2}])
    queue.receive(1).accept()
    log.run()
    with manager.transaction() as tx:
        queue.send([{"n": 3}], transaction=tx)
        log.run()  # it is not committed yet
        assert [row["n"] for row in log.rows()] == [1, 2]
    log.run()
    assert [row["n"] for row in log.rows()] == [1, 2, 3]
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "log")  # Parquet's own sink remembers its batches there
    log.run(startingAfter="earliest")
    assert [row["n"] for row in log.rows()] == [1, 2, 3]
    assert len({row["_message_id"] for row in log.rows()}) == 3


def test_a_stream_that_reads_what_there_is_does_so_in_batches_of_the_size_that_was_asked_for(
    spark: Any, manager: QueueManager, tmp_path: Path
) -> None:
    queue = manager.create_queue("many", "n long")
    for n in range(5):
        queue.send([{"n": n}])
    log = Log(spark, manager.root, queue.name, tmp_path)
    log.run(maxMessagesPerTrigger="2")
    assert [row["n"] for row in log.rows()] == list(range(5))
    batches = (tmp_path / "checkpoint" / "commits").iterdir()
    assert sorted(one.name for one in batches if one.name.isdigit()) == ["0", "1", "2"]
    log.run(maxMessagesPerTrigger="2")
    queue.send([{"n": 5}])
    log.run(maxMessagesPerTrigger="2")
    assert [row["n"] for row in log.rows()] == list(range(6))


def test_a_schema_that_would_round_values_is_refused(spark: Any, manager: QueueManager) -> None:
    queue = manager.create_queue("halves", "x double, y float, z array<decimal(20,2)>")
    queue.send([{"x": 0.1, "y": 0.5, "z": [Decimal("0.25")]}])
    source = QueueDataSource({"path": manager.root, "queue": queue.name})
    with pytest.raises(InvalidInput, match=r"'x' .* is double"):
        source.reader(schema_from(spark, "x float, y float")).partitions()
    with pytest.raises(InvalidInput, match=r"'z' .* is decimal\(20,2\)"):
        source.reader(schema_from(spark, "z array<double>")).partitions()
    assert source.reader(schema_from(spark, "x double, y double")).partitions()
    for of_real in ("x decimal(38,18)", "y decimal(10,1)"):
        with pytest.raises(InvalidInput, match="would change its values"):
            source.reader(schema_from(spark, of_real)).partitions()
    moments = manager.create_queue("moments", "at timestamp, there array<timestamp_ntz>")
    source = QueueDataSource({"path": manager.root, "queue": moments.name})
    for days in ("at date", "there array<date>"):
        with pytest.raises(InvalidInput, match="would change its values"):
            source.reader(schema_from(spark, days)).partitions()


def test_what_is_null_may_have_fields_that_must_not_be(spark: Any, manager: QueueManager) -> None:
    columns = "n long, s struct<a: int NOT NULL>, l array<struct<a: int NOT NULL>>"
    queue = manager.create_queue("inside", f"{columns}, m map<string, struct<a: int NOT NULL>>")
    queue.send([{"n": 1, "s": {"a": 1}, "l": [{"a": 1}], "m": {"k": {"a": 1}}}])
    queue.send([{"n": 2, "s": None, "l": [None], "m": {"k": None}}])
    frame = spark.read.format("txnqueue").option("queue", queue.name).load(manager.root)
    found = {row.n: row.asDict(recursive=True) for row in frame.collect()}
    assert {n: (row["s"], row["l"], row["m"]) for n, row in found.items()} == {
        1: ({"a": 1}, [{"a": 1}], {"k": {"a": 1}}),
        2: (None, [None], {"k": None}),
    }


@pytest.mark.skipif(not LONG, reason="four processes with a Java of their own")
@pytest.mark.timeout(900)
def test_killed_queries_copy_each_message_once(spark: Any, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    manager = QueueManager(spark, str(root))
    orders, copies = (manager.create_queue(name, "n long") for name in ("orders", "copies"))
    for n in range(4):
        orders.send([{"n": n}])
    orders.receive(2).accept()
    for when, batch, code in (("after", 0, -9), ("before", 2, -9), ("after", 3, -9), ("no", 0, 0)):
        process = start("tests.delta.source_driver", root, checkpoint, when, batch)
        assert process.wait(200) == code
    assert [message["n"] for message in copies.peek_messages()] == [0, 1, 2, 3]


def test_a_stream_behind_what_was_removed_fails_and_says_why(
    spark: Any, manager: QueueManager, tmp_path: Path
) -> None:
    queue = manager.create_queue("behind", "n long")
    queue.send([{"n": 1}])
    copy = tmp_path / "store"
    shutil.copytree(manager.root, copy)
    remove_payload(copy, queue.info.payload_id)
    with pytest.raises(Exception, match="PayloadRemoved"):
        Log(spark, str(copy), queue.name, tmp_path).run()
    assert not list((tmp_path / "log").rglob("*.parquet"))


def test_writing_is_refused(spark: Any, manager: QueueManager, orders: Queue) -> None:
    frame = spark.range(1)
    with pytest.raises(Exception, match=r"queue\.send"):
        frame.write.format("txnqueue").mode("append").save(manager.root)
