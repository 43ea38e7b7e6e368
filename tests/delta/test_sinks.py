"""Structured Streaming into queues: no row is lost in silence, none is sent twice by one query."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.drivers import start
from txnqueue import QueueManager
from txnqueue.errors import InvalidInput, TransactionNotGiven
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import plain_schema

pytestmark = [pytest.mark.spark]
SCHEMA = "n long, key string"
Function = Callable[[Any, int], object]


class Query:
    """A streaming query over a folder of files, run until there is no more."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.files_per_batch: int | None = None
        (folder / "files").mkdir(parents=True)

    def file(self, *numbers: int) -> None:
        """Put another file into the folder."""
        count = len(list((self.folder / "files").iterdir()))
        lines = [json.dumps({"n": n, "key": f"k{n}"}) for n in numbers]
        (self.folder / "files" / f"{count:03}.json").write_text("\n".join(lines))

    @property
    def rows(self) -> Any:
        """The stream."""
        reader = self.spark.readStream.schema(SCHEMA)
        if self.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self.files_per_batch)
        return reader.json(str(self.folder / "files"))

    def start(self, function: Function, checkpoint: str = "checkpoint") -> Any:
        """Start the query on what is there now."""
        writer = self.rows.writeStream.foreachBatch(function).queryName("ingest")
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, function: Function, checkpoint: str = "checkpoint") -> None:
        """Run the query to its end."""
        self.start(function, checkpoint).awaitTermination()

    def fail(self, function: Function, message: str, checkpoint: str = "checkpoint") -> None:
        """Run the query, which fails."""
        with pytest.raises(Exception, match=message):
            self.run(function, checkpoint)

    def lose_checkpoint(self) -> None:
        """Delete the checkpoint."""
        shutil.rmtree(self.folder / "checkpoint")


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


class Lake:
    """A store, and tables beside it."""

    def __init__(self, spark: Any, folder: Path, store: MemoryStore | None) -> None:
        self.spark, self.folder, self.store = spark, folder, store
        self.manager = QueueManager(spark, str(folder / "store"), store=store)

    def restarted(self) -> QueueManager:
        """Open the store anew, as another process would."""
        return QueueManager(self.spark, str(self.folder / "store"), store=self.store)

    def table(self) -> str:
        """Create a table."""
        name = str(self.folder / "gold")
        if self.store is not None:
            self.store.tables.create(name, plain_schema(SCHEMA))
        else:
            self.spark.sql(f"CREATE TABLE delta.`{name}` ({SCHEMA}) USING delta")
        return name

    def numbers_in(self, table: str) -> list[int]:
        """List what a table has."""
        if self.store is not None:
            return sorted(self.store.tables.rows(table).column("n").to_pylist())
        return sorted(row["n"] for row in self.spark.read.format("delta").load(table).collect())


@pytest.fixture(params=["memory", *(["delta"] if LONG else [])])
def lake(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Lake:
    """A store in memory: the streams are Spark's, and the queues' own part is tried elsewhere."""
    return Lake(spark, tmp_path, MemoryStore(spark) if request.param == "memory" else None)


@pytest.fixture
def manager(lake: Lake) -> QueueManager:
    return lake.manager


def numbers(queue: Any) -> list[int]:
    return sorted(row["n"] for row in queue.peek_messages(1_000))


def dies_after(function: Function, batch: int) -> Function:
    """Fail in a batch, after the function has done its work and before the checkpoint says so."""

    def called(rows: Any, batch_id: int) -> None:
        function(rows, batch_id)
        if batch_id == batch:
            raise RuntimeError("died")

    return called


@pytest.mark.parametrize("where", ["memory", "delta"])
def test_no_batch_is_lost_or_sent_twice_by_a_query(
    spark: Any, tmp_path: Path, query: Query, where: str
) -> None:
    lake = Lake(spark, tmp_path, MemoryStore(spark) if where == "memory" else None)
    orders = lake.manager.create_queue("orders", SCHEMA, dead_letter=False)
    query.file(1, 2)
    query.fail(dies_after(orders.sink(), 0), "died")
    query.file(3)
    orders = lake.restarted().queue("orders")
    query.run(orders.sink())
    assert numbers(orders) == [1, 2, 3]

    # Where a name and a number would be the id of a batch, this one would be lost.
    query.lose_checkpoint()
    query.file(4)
    query.run(orders.sink())
    assert numbers(orders) == [1, 1, 2, 2, 3, 3, 4]


@pytest.mark.skipif(not LONG, reason="four processes with a Java of their own")
@pytest.mark.timeout(900)
def test_killed_processes_lose_nothing_and_send_nothing_twice(
    spark: Any, tmp_path: Path, query: Query
) -> None:
    manager = QueueManager(spark, str(tmp_path / "store"))
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    for n in range(4):
        query.file(n)
    places = [tmp_path / "store", query.folder / "files", query.folder / "checkpoint"]
    for when, batch, code in (("after", 0, -9), ("before", 2, -9), ("after", 3, -9), ("no", 0, 0)):
        process = start("tests.delta.sink_driver", *places, when, batch)
        assert process.wait(200) == code
    assert numbers(orders) == [0, 1, 2, 3]


def test_a_restored_checkpoint_is_noticed(manager: QueueManager, query: Query) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    query.file(1)
    query.run(orders.sink())
    shutil.copytree(query.folder / "checkpoint", query.folder / "backup")
    query.file(2)
    query.run(orders.sink())
    query.lose_checkpoint()
    shutil.copytree(query.folder / "backup", query.folder / "checkpoint")
    query.file(3)
    query.fail(orders.sink(), "Another batch 1 of the query was written here")
    assert numbers(orders) == [1, 2]
    query.run(orders.sink(name="restored"))
    assert numbers(orders) == [1, 2, 2, 3]


def test_a_restored_checkpoint_is_noticed_at_a_batch_that_had_no_rows(
    manager: QueueManager, query: Query
) -> None:
    """Nothing is recorded of such a batch: planned anew, it has the rows of later ones, too."""
    large = manager.create_queue("large", SCHEMA, dead_letter=False)
    sink = manager.sink(lambda rows, tx: tx.queue("large").send(rows.where("n > 9")))
    query.file(10)
    query.run(sink)
    shutil.copytree(query.folder / "checkpoint", query.folder / "backup")
    for number in (1, 20):
        query.file(number)
        query.run(sink)
    assert numbers(large) == [10, 20]
    query.lose_checkpoint()
    shutil.copytree(query.folder / "backup", query.folder / "checkpoint")
    query.fail(sink, "Batch 2 of the query was written here, and this is batch 1")
    assert numbers(large) == [10, 20]


class Crash:
    """A store that is dead from some step on, until it is there again."""

    def __init__(self, at: int) -> None:
        self.at, self.steps, self.armed = at, 0, False

    def step(self, name: str) -> None:
        if self.armed:
            self.steps += 1
            if self.steps > self.at:
                raise OSError(f"crashed at {name}")


def test_a_crash_at_any_step_of_a_batch_loses_and_doubles_nothing(spark: Any, query: Query) -> None:
    query.file(1, 2)
    for at in itertools.count():
        crash = Crash(at)
        store = MemoryStore(spark, crash.step)
        orders = QueueManager(spark, store=store).create_queue("orders", SCHEMA, dead_letter=False)
        sink, crash.armed = orders.sink(), True
        with contextlib.suppress(Exception):
            query.run(sink, f"checkpoint {at}")
        crash.armed = False
        query.run(QueueManager(spark, store=store).queue("orders").sink(), f"checkpoint {at}")
        assert numbers(orders) == [1, 2]
        if crash.steps <= at:
            break
    assert at > 3


def test_a_query_that_begins_anew_is_delivered_once_by_its_ids(
    manager: QueueManager, query: Query
) -> None:
    once = manager.create_queue(
        "once", SCHEMA, message_id="key", duplicate_window_seconds=3_600, dead_letter=False
    )
    query.file(1, 2)
    query.run(once.sink())
    query.lose_checkpoint()
    query.file(3)
    query.run(once.sink())
    assert sorted(row["n"] for row in once.receive(1_000).messages()) == [1, 2, 3]
    assert once.depth() == 0


def test_two_queries_of_one_name_are_two(manager: QueueManager, query: Query) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    query.file(1)
    query.run(orders.sink())
    query.run(orders.sink(), checkpoint="of another query")
    assert numbers(orders) == [1, 1]
    known = manager.history.as_of().transactions().rows()
    ids = [one["transaction_id"].split("/") for one in known]
    queries = {parts[1] for parts in ids if parts[0] == "sink"}
    assert len(queries) == 2
    assert json.loads((query.folder / "checkpoint/metadata").read_text())["id"] in queries


def test_a_handler_changes_queues_and_tables_once_for_each_batch(lake: Lake, query: Query) -> None:
    manager, table = lake.manager, lake.table()
    bills = manager.create_queue("bills", SCHEMA, dead_letter=False)

    def book(rows: Any, tx: Any) -> None:
        tx.queue("bills").send(rows.where("n > 1"))
        tx.table(table).append(rows)

    query.file(1, 2)
    query.fail(dies_after(manager.sink(book), 0), "died")
    query.file(3)
    query.run(manager.sink(book))
    assert numbers(bills) == [2, 3]
    assert lake.numbers_in(table) == [1, 2, 3]


def test_an_interrupted_query_goes_on_where_it_was(manager: QueueManager, query: Query) -> None:
    paused = manager.create_queue("paused", SCHEMA, dead_letter=False)
    sink = paused.sink()
    running: list[Any] = []

    def stop() -> None:
        running[0].stop()

    stops = threading.Thread(target=stop)

    def is_stopped(rows: Any, batch_id: int) -> None:
        if batch_id == 1:
            stops.start()  # Spark interrupts the thread that runs this
        sink(rows, batch_id)

    query.files_per_batch = 1
    for n in range(3):
        query.file(n)
    running.append(query.start(is_stopped))
    with contextlib.suppress(Exception):  # it may say that it was interrupted
        running[0].awaitTermination()
    stops.join()
    assert len(numbers(paused)) in (1, 2)
    query.run(sink)
    assert numbers(paused) == [0, 1, 2]


def test_what_a_sink_says_beside_the_rows_is_sent_with_them(
    manager: QueueManager, query: Query
) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    orders.send([{"n": 9}])
    query.file(2, 1, 3)
    sink = orders.sink(
        order_by="n", priority=7, headers={"from": "files"}, header_columns={"of": "key"}
    )
    query.run(sink)
    first, *_ = found = orders.receive().messages()
    assert [row["n"] for row in found] == [1, 2, 3, 9]
    assert first["_message"]["headers"] == {"from": "files", "of": "k1"}
    later = manager.create_queue("later", SCHEMA, dead_letter=False)
    query.run(later.sink(delay_seconds=3_600, ttl_seconds=7_200), checkpoint="later")
    assert later.depth() == 0
    (waiting,) = (row for row in manager.metrics().rows() if row["queue"] == "later")
    assert waiting["delayed"] == 3


def test_an_exchange_has_a_sink_that_takes_nothing_back(
    manager: QueueManager, query: Query
) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    news = manager.create_exchange("news", "topic", SCHEMA)
    news.bind(orders, routing_key="k1")
    query.file(1)
    query.run(dies_after(news.sink(routing_key_column="key"), 7))
    assert numbers(orders) == [1]
    query.file(1, 2)
    query.fail(news.sink(routing_key_column="key"), "No binding matches 1 messages")
    assert numbers(orders) == [1]
    news.bind(orders, routing_key="#")
    query.run(news.sink(routing_key_column="key"))
    assert numbers(orders) == [1, 1, 2]
    by_default = manager.exchange().sink(routing_key="orders")
    query.run(by_default, checkpoint="of another query")
    assert numbers(orders) == [1, 1, 1, 1, 2, 2]


def test_two_sinks_of_a_batch_need_names(manager: QueueManager, query: Query) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    hints = manager.create_queue("hints", SCHEMA, durable=False)

    def halves(*names: str | None, queue: Any = orders) -> Function:
        def called(rows: Any, batch_id: int) -> None:
            for half, name in enumerate(names):
                queue.sink(name=name)(rows.where(f"n % 2 = {half}"), batch_id)

        return called

    query.file(1, 2, 3)
    for _ in range(3):  # whoever starts it again does not lose what the second one would write
        query.fail(halves(None, None), "give each further sink")
        query.fail(halves(None, None, queue=hints), "give each further sink")
    assert numbers(orders) == numbers(hints) == [2]
    query.run(halves(None, "odd"))
    assert numbers(orders) == [1, 2, 3]


def test_two_sinks_of_a_batch_need_names_whatever_their_function_does(
    manager: QueueManager, query: Query
) -> None:
    """A job group of its own, handlers, or threads."""
    from pyspark import InheritableThread

    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    context, again = query.spark.sparkContext, "give each further sink"

    def grouped(rows: Any, batch_id: int) -> None:
        context.setJobGroup("ingest", "small and large orders")
        orders.sink()(rows.where("n < 2"), batch_id)
        orders.sink()(rows.where("n >= 2"), batch_id)

    def handled(rows: Any, batch_id: int) -> None:
        for part in ("n < 2", "n >= 2"):
            manager.sink(lambda found, tx: tx.queue("orders").send(found))(
                rows.where(part), batch_id
            )

    def threads(rows: Any, batch_id: int) -> None:
        def write(part: str) -> None:
            try:
                orders.sink()(rows.where(part), batch_id)
            except InvalidInput as error:
                errors.append(error)

        errors: list[InvalidInput] = []
        both = [InheritableThread(write, args=(part,)) for part in ("n < 2", "n >= 2")]
        for one in both:
            one.start()
        for one in both:
            one.join()
        (error,) = errors
        raise error

    query.file(1, 2)
    for function in (grouped, handled, threads):
        for _ in range(2):
            query.fail(function, again, checkpoint=function.__name__)
    assert len(orders.peek_messages(9)) == 3  # of the first sink of each


def test_a_call_that_fails_may_be_made_again_in_the_same_run(
    manager: QueueManager, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    tries: list[int] = []

    def patient(rows: Any, batch_id: int) -> None:
        def write(found: Any, tx: Any) -> None:
            tries.append(batch_id)
            tx.queue("orders").send(found)
            if len(tries) == 1:
                raise OSError("once")

        sink = manager.sink(write)
        try:
            sink(rows, batch_id)
        except OSError:
            sink(rows, batch_id)

    query.file(1, 2)
    query.run(patient)
    assert numbers(orders) == [1, 2]


def test_sinks_of_the_default_exchange_write_to_the_queues_that_they_name(
    manager: QueueManager, query: Query
) -> None:
    options: Any = {"dead_letter": False}
    first, second = (manager.create_queue(name, SCHEMA, **options) for name in ("a", "b"))

    def write(rows: Any, batch_id: int) -> None:
        manager.exchange().sink(routing_key="a")(rows.where("n = 1"), batch_id)
        manager.exchange().sink(routing_key="b")(rows.where("n = 2"), batch_id)
        if dies:
            raise OSError("it dies")

    query.file(1, 2)
    dies = True
    query.fail(write, "it dies")
    assert (numbers(first), numbers(second)) == ([1], [2])
    manager.drop_queue("b")
    second = manager.create_queue("b", SCHEMA, **options)
    dies = False
    query.run(write)
    assert (numbers(first), numbers(second)) == ([1], [2])


def test_a_batch_without_rows_writes_nothing_down(manager: QueueManager, query: Query) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    before = manager.history.as_of().commit_seq
    query.file(1)
    query.run(lambda rows, batch_id: orders.sink()(rows.where("n > 1"), batch_id))
    assert manager.history.as_of().commit_seq == before


def test_a_sink_is_for_foreach_batch(manager: QueueManager, query: Query) -> None:
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    sink = orders.sink()
    frame = query.spark.range(1).selectExpr("id AS n", "'k' AS key")
    dicts: Any = [{"n": 1}]
    for rows in (frame, dicts):
        with pytest.raises(InvalidInput, match="foreachBatch"):
            sink(rows, 0)
    query.file(1)
    query.fail(lambda rows, _: sink(rows, 17), "pass on what foreachBatch gives")
    query.fail(manager.sink(lambda rows, tx: orders.send(rows)), TransactionNotGiven.__name__)
    assert orders.depth() == 0
    with manager.transaction() as tx:
        for opened in (tx.queue("orders"), tx.exchange("")):
            with pytest.raises(InvalidInput, match="begins a transaction for each batch"):
                opened.sink()
    for wrong in ({"order_by": "x"}, {"priority": 11}, {"headers": 1}, {"name": "a b"}):
        with pytest.raises(InvalidInput):
            orders.sink(**wrong)
    long = manager.create_queue("q" * 95, SCHEMA, dead_letter=False)
    with pytest.raises(InvalidInput, match="at most 33 characters"):  # and a hundred batches work
        long.sink(name="s" * 34)
    long.sink(name="s" * 33)
    with pytest.raises(InvalidInput, match="handler"):
        manager.sink(None)  # type: ignore[arg-type]


def test_a_streaming_frame_is_taken_by_no_call(lake: Lake, query: Query) -> None:
    manager, table = lake.manager, lake.table()
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    news = manager.create_exchange("news", "fanout", SCHEMA)
    orders.send([{"n": 1}])
    batch, tx = orders.receive(), manager.transaction()
    calls: dict[str, Callable[[], object]] = {
        r"orders\.send .*\.foreachBatch\(queue\.sink\(\)\)": lambda: orders.send(query.rows),
        r"orders\.send .*": lambda: orders.send(query.rows, durable=False),
        r"news\.publish .*\.foreachBatch\(exchange\.sink\(\)\)": lambda: news.publish(query.rows),
        r"table change .*\.foreachBatch\(manager\.sink\(handler\)\)": (
            lambda: tx.table(table).append(query.rows)
        ),
        "matching= ": lambda: batch.accept(matching=query.rows),
        "matching=  *takes": lambda: orders.receive(matching=query.rows, on="key"),
    }
    for message, call in calls.items():
        with pytest.raises(InvalidInput, match=message):
            call()
    assert (orders.depth(), orders.in_flight()) == (0, 1)
