"""Frames on real Delta: every message, or an error, whatever becomes of the files meanwhile."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.counting import Cost
from tests.inside import client_of
from txnqueue import QueueManager, copies
from txnqueue.admin import creation
from txnqueue.errors import LimitExceeded, SchemaMismatch
from txnqueue.reports import history
from txnqueue.storage.payload import data_files, file_frame, queries
from txnqueue.storage.store import MemoryStore

pytestmark = pytest.mark.spark
_NUMBERS = itertools.count(1)
GONE = "PayloadRemoved|FILE_NOT_EXIST"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("frames"))


@pytest.fixture
def manager(spark: Any, root: str) -> QueueManager:
    return QueueManager(spark, root)


@pytest.fixture
def queue(manager: QueueManager) -> Any:
    return manager.create_queue(f"q{next(_NUMBERS)}", "i long", dead_letter=False)


KINDS = ["files", "table"]
BY_FILES = pytest.mark.parametrize("kind", KINDS if LONG else KINDS[:1], indirect=True)
"""For what both kinds of frames have alike: one of them by default."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On what frames stand: on files, or on the table, where no log can be read."""
    if request.param == "table":
        on_the_table(monkeypatch)
    return str(request.param)


@pytest.fixture
def said(spark: Any) -> Iterator[Any]:
    """Let a test set what it likes on the user's session."""
    keys: list[str] = []

    def set_(key: str, value: str) -> None:
        keys.append(key)
        spark.conf.set(key, value)

    yield set_
    for key in keys:
        spark.conf.unset(key)


def on_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "LOG_BYTES_MAX", -1)


def numbers(spark: Any, n: int, tasks: int = 2) -> Any:
    return spark.range(0, n, 1, tasks).toDF("i")


def payload_table(root: str, queue: Any) -> str:
    return f"delta.`{root}/payload/{queue.info.payload_id}`"


def files_of(root: str, queue: Any) -> list[Path]:
    return sorted(Path(root, "payload", queue.info.payload_id).glob("slice=*/*.parquet"))


def test_a_frame_takes_no_more_jobs_than_a_read_of_files(spark: Any, root: str, queue: Any) -> None:
    queue.send(numbers(spark, 2_000))
    batch = queue.receive(1_000)
    batch.df.where("i >= 0").collect()
    with Cost(spark, root) as cost:
        batch.df.where("i >= 0").collect()
    assert cost.jobs == 1  # and none that lists files, or counts


def test_both_kinds_of_frames_show_the_same(
    spark: Any, manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, and the same schema, where null is allowed and where it is not."""
    schema = (
        "id string NOT NULL, n long NOT NULL, d decimal(38, 3) NOT NULL, at timestamp, "
        "tags array<string>, t timestamp_ltz NOT NULL, z timestamp_ntz NOT NULL, "
        "s struct<a: int, b: map<string, double>>, b binary NOT NULL"
    )
    name = f"kinds{next(_NUMBERS)}"
    queue = manager.create_queue(name, schema, message_id="id", lanes=3)
    rows = spark.range(40).selectExpr(
        "concat('m', id) AS id",
        "id AS n",
        "CAST(id AS decimal(38, 3)) AS d",
        "if(id % 2 = 0, NULL, timestamp_seconds(id)) AS at",
        "if(id % 3 = 0, NULL, array('x', NULL, CAST(id AS string))) AS tags",
        "if(id % 5 = 0, NULL, named_struct('a', CAST(id AS int), 'b', map('k', id / 2))) AS s",
        "CAST(CAST(id AS string) AS binary) AS b",
        "timestamp_seconds(id) AS t",
        "TIMESTAMP_NTZ '2026-01-01 00:00:00' AS z",
    )
    queue.send(rows, headers={"correlation_id": "c", "x": "1"})
    queue.send(rows.where("n < 7").withColumn("id", rows.n.cast("string")))
    queue.receive(5).modify()
    batch = queue.receive(47)
    of_files = batch.df
    assert "FileScan parquet" in of_files._jdf.queryExecution().toString()
    with monkeypatch.context() as patched:
        on_the_table(patched)
        other = QueueManager(spark, manager.root, consumer="another")
        parts = batch._parts()
        of_table = client_of(other).payload.frame(batch.df.drop("_message").schema, parts)
    assert of_files.schema == of_table.schema
    assert of_files.count() == len(batch)
    by_id = "_message.id"
    assert of_files.orderBy(by_id).collect() == of_table.orderBy(by_id).collect()


@BY_FILES
def test_a_frame_of_long_ago_has_every_message_or_fails(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Somebody else ended the claim, consumed the messages and tidied up: no clock tells."""
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    first = QueueManager(spark, str(tmp_path), consumer="one")
    queue = first.create_queue("q", "i long", dead_letter=False)
    queue.send(numbers(spark, 10))
    batch = queue.receive(10, lease_seconds=3_600)
    frame = batch.df
    second = QueueManager(spark, str(tmp_path), consumer="one")
    assert second.queue("q").receive(10).accept() == 10
    second.queue("q").send([{"i": 1}])
    second.queue("q").receive(1).accept()
    assert second.maintain(transaction_seconds_max=0, payload_retention_days=0).slices
    assert batch.held_until is not None
    assert batch.held_until > datetime.datetime.now(datetime.timezone.utc)
    with pytest.raises(Exception, match="PayloadRemoved"):
        batch.df.count()
    if kind == "table":
        with pytest.raises(Exception, match="PayloadRemoved"):
            frame.count()
        return
    assert sorted(row.i for row in frame.collect()) == list(range(10))
    for file in files_of(str(tmp_path), queue):  # as VACUUM does, a week later
        file.unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        frame.collect()


@pytest.mark.parametrize("ranges", ["few", "many"])
def test_a_frame_has_every_message_or_fails(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch, ranges: str, kind: str
) -> None:
    queue = manager.create_queue(f"q{next(_NUMBERS)}", "i long", dead_letter=False)
    queue.send([{"i": i} for i in range(60)])
    every = 2 if ranges == "many" else 30
    queue.receive(60).release(f"i % {every} > 0")
    batch = queue.receive(60)
    wanted = [i for i in range(60) if i % every]
    assert sorted(row.i for row in batch.df.collect()) == wanted
    assert batch.df.where("i = 31").count() == 1
    monkeypatch.setattr(queries, "_ONE_TASK_MAX", 0)  # as if they were many
    assert batch.df.count() == len(wanted)
    frame = batch.df
    client_of(manager).store.spark.sql(
        f"DELETE FROM {payload_table(manager.root, queue)} WHERE i = 31"
    )
    if kind == "files":  # of which none was changed
        assert frame.count() == len(wanted)
    else:
        with pytest.raises(Exception, match="PayloadRemoved"):
            frame.count()
    with pytest.raises(Exception, match="PayloadRemoved"):
        batch.df.where("i < 3").collect()


@BY_FILES
def test_a_frame_shows_moved_messages_beside_those_that_were_sent(
    spark: Any, manager: QueueManager, queue: Any, kind: str
) -> None:
    other = manager.create_queue(f"q{next(_NUMBERS)}", "i long", dead_letter=False)
    queue.send(numbers(spark, 4))
    assert queue.move(other) == 4
    assert other.move(queue, "i < 2") == 2
    queue.send(numbers(spark, 2))
    rows = queue.receive(10).df.select("i", "_message.origin.queue").collect()
    expected = [(0, None), (0, other.name), (1, None), (1, other.name)]
    assert sorted(map(tuple, rows), key=str) == sorted(expected, key=str)


@BY_FILES
def test_a_column_that_the_first_queue_got_later_with_another_type_is_another_one(
    manager: QueueManager, kind: str
) -> None:
    names = [f"grown{next(_NUMBERS)}" for _ in range(2)]
    first, second = (manager.create_queue(name, "i long", dead_letter=False) for name in names)
    first.send([{"i": 1}])
    assert first.move(second.name) == 1
    first.alter("e array<string>, f int")
    second.alter("e int, f long")
    second.send([{"i": 2, "e": 5, "f": 6}])
    wanted: list[dict[str, Any]] = [{"i": 1, "e": None, "f": None}, {"i": 2, "e": 5, "f": 6}]

    for limit in (1, 2):
        batch = second.receive(limit)
        shown = batch.df.drop("_message")
        assert dict(shown.dtypes) == {"i": "bigint", "e": "int", "f": "bigint"}
        assert sorted((row.asDict() for row in shown.collect()), key=str) == wanted[:limit]
        told = [{name: message[name] for name in ("i", "e", "f")} for message in batch.messages()]
        assert told == wanted[:limit]
        batch.release()
    assert len(second.peek(9, "e IS NULL AND f IS NULL").collect()) == 1


def test_what_is_moved_is_in_the_lanes_of_its_keys_whatever_their_type(
    manager: QueueManager,
) -> None:
    names, numbered = [f"lanes{next(_NUMBERS)}" for _ in range(2)], [{"i": n} for n in range(8)]
    plain = manager.create_queue(names[0], "i long", dead_letter=False)
    grouped = manager.create_queue(names[1], "i long", group_by="i", lanes=4, dead_letter=False)
    plain.send(numbered)
    assert plain.move(grouped.name) == 8
    grouped.send(numbered)
    lanes = {(row["i"], row["_message"]["lane"]) for row in grouped.peek_messages(99)}
    assert len(lanes) == 8 and len({lane for _, lane in lanes}) > 1


def test_messages_that_are_older_than_the_column_of_their_ids_are_received(
    manager: QueueManager,
) -> None:
    """They lie in the table of the exchange, which never got the column."""
    first, second, exchange = (f"{name}{next(_NUMBERS)}" for name in ("ids", "ids", "x"))
    manager.create_queue(first, "i long", dead_letter=False)
    published = manager.create_exchange(exchange, "fanout", "i long")
    published.bind(first)
    published.publish([{"i": 1}])
    manager.queue(first).alter("k string")
    told = manager.create_queue(
        second,
        "i long, k string",
        message_id="k",
        duplicate_window_seconds=60,
        dead_letter=False,
    )
    assert manager.queue(first).move(second) == 1
    told.send([{"i": 2, "k": "a"}, {"i": 3, "k": "a"}])
    assert [(row["i"], row["k"]) for row in told.receive(9).messages()] == [(1, None), (2, "a")]


def test_a_column_of_payload_that_spark_takes_for_another_keeps_its_values(
    manager: QueueManager,
) -> None:
    """To Java the long s and s are the same letter."""
    name = f"letters{next(_NUMBERS)}"
    manager.create_queue(name, "`\u017ftate` string", dead_letter=False).send(
        [{"\u017ftate": "mine"}]
    )
    shown = manager.history.as_of().messages(name)
    assert [(r["\u017ftate"], r["_state"]) for r in shown.df().collect()] == [("mine", "available")]
    assert [(r["\u017ftate"], r["_state"]) for r in shown.rows()] == [("mine", "available")]


def test_a_column_that_arrow_has_not_is_refused_in_memory_as_in_the_store(
    spark: Any, manager: QueueManager, queue: Any
) -> None:
    frame = spark.sql("SELECT 1L AS i, INTERVAL '1' MONTH AS more")
    for durable in (True, False):
        with pytest.raises(SchemaMismatch):
            queue.send(frame, durable=durable)


@BY_FILES
def test_messages_that_stand_in_two_queues_are_shown_in_each(
    spark: Any, manager: QueueManager, kind: str
) -> None:
    """Their payload stands once: a row of a file is two messages of a frame."""
    names = [f"both{next(_NUMBERS)}" for _ in range(2)]
    for name in names:
        manager.create_queue(name, "i long", dead_letter=False)
    exchange = manager.create_exchange(f"x{next(_NUMBERS)}", "fanout", "i long")
    for name in names:
        exchange.bind(name)
    exchange.publish(numbers(spark, 30))
    parts = [part for name in names for part in manager.queue(name).receive(30)._parts()]
    client = client_of(manager)
    frame = client.payload.frame(manager.queue(names[0]).schema, parts)
    rows = frame.select("_message.queue", "i").collect()
    assert sorted(map(tuple, rows)) == sorted(itertools.product(names, range(30)))


@pytest.mark.parametrize("how", ["other bytes", "other bits"])
def test_a_damaged_file_is_never_passed_over(
    spark: Any, root: str, queue: Any, said: Any, how: str
) -> None:
    """As long as before, without the sums beside it, on a session that passes over the like."""
    queue.send(numbers(spark, 20_000, 1).selectExpr("hash(i) * 1L AS i"))
    batch = queue.receive(20_000)
    assert batch.df.count() == 20_000
    (file,) = files_of(root, queue)
    content = file.read_bytes()
    half = len(content) // 2
    wrong = bytes(len(content)) if how == "other bytes" else bytearray(content)
    if isinstance(wrong, bytearray):
        wrong[half : half + 8] = bytes(byte ^ 0x55 for byte in content[half : half + 8])
    file.write_bytes(wrong)
    Path(file.parent, f".{file.name}.crc").unlink(missing_ok=True)
    said("spark.sql.files.ignoreCorruptFiles", "true")
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|is not a Parquet file|checksum"):
        batch.df.selectExpr("sum(i)", "count(_message.id)").collect()
    file.write_bytes(content)
    assert batch.df.count() == 20_000


def test_a_file_that_goes_while_the_frame_is_made_is_noticed(
    spark: Any, root: str, queue: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(numbers(spark, 4, 1))
    queue.send(numbers(spark, 4, 1))
    batch = queue.receive(8)
    file, _ = files_of(root, queue)
    plain = file_frame.file_frame

    def late(*args: Any) -> Any:
        content = file.read_bytes()
        file.unlink()
        try:
            return plain(*args)
        finally:
            file.write_bytes(content)

    said("spark.sql.files.ignoreMissingFiles", "true")
    monkeypatch.setattr("txnqueue.storage.payload.delta.file_frame", late)
    frame = batch.df
    assert sorted(row.i for row in frame.collect()) == sorted([*range(4)] * 2)
    assert "raise_error" in frame._jdf.queryExecution().toString()


def test_messages_of_many_files_are_listed_in_pieces_and_of_more_read_from_the_table(
    spark: Any, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(numbers(spark, 40, 40))
    batch = queue.receive(40)
    for most, counted in ((40, False), (39, True)):
        monkeypatch.setattr("txnqueue.storage.payload.delta.FILES_MAX", most)
        assert ("raise_error" in batch.df._jdf.queryExecution().toString()) == counted
        assert sorted(row.i for row in batch.df.collect()) == list(range(40))


def test_a_frame_follows_files_that_were_rewritten(spark: Any, root: str, queue: Any) -> None:
    """OPTIMIZE puts rows of several sends into one file: then the table is read."""
    queue.send(numbers(spark, 4, 1))
    queue.send(numbers(spark, 4, 1))
    batch = queue.receive(8)
    before = batch.df
    spark.sql(f"OPTIMIZE {payload_table(root, queue)}").collect()
    wanted = sorted([*range(4)] * 2)
    for frame in (before, batch.df):
        assert sorted(row.i for row in frame.collect()) == wanted


@BY_FILES
def test_a_null_where_none_may_be_fails(spark: Any, manager: QueueManager, kind: str) -> None:
    """Somebody has taken the constraint away, behind the back of a client that knows it."""
    queue = manager.create_queue(f"q{next(_NUMBERS)}", "i long NOT NULL", dead_letter=False)
    queue.send([{"i": 1}])
    batch = queue.receive(1)
    assert batch.df.collect()[0].i == 1
    table = payload_table(manager.root, queue)
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN i DROP NOT NULL")
    place = batch.messages()[0]["_message"]["send_id"]
    spark.sql(f"UPDATE {table} SET i = NULL WHERE send_id = '{place}'")
    if kind == "table":
        assert batch.df.collect()[0].i is None
    else:
        with pytest.raises(Exception, match="declared NOT NULL"):
            batch.df.collect()


ROOTS = ["a%20 b", "ä{b,c}*"]
ROOTS_WHEN_LONG = ["a[b]", "a?", "a\\b", "a:b", "a'b"]


@pytest.mark.parametrize("name", ROOTS + (ROOTS_WHEN_LONG if LONG else []))
def test_the_root_may_be_called_anything(spark: Any, tmp_path: Path, name: str) -> None:
    manager = QueueManager(spark, str(tmp_path / name))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    queue.send(numbers(spark, 4))
    assert sorted(row.i for row in queue.receive(4).df.collect()) == [0, 1, 2, 3]


def test_many_copies_stand_in_the_order_of_what_they_copy(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends of one transaction have one instant, and ids that say nothing of their order."""
    monkeypatch.setattr(copies, "_ROWS_HERE_MAX", 0)
    names = [f"copied{next(_NUMBERS)}" for _ in range(2)]
    first, second = (
        manager.create_queue(name, "header0 long", dead_letter=False, lanes=1) for name in names
    )
    with manager.transaction() as tx:
        for n in range(8):
            tx.queue(first.name).send([{"header0": 2 * n}, {"header0": 2 * n + 1}])
    first.receive(5).accept()
    first.receive(11).accept()
    second.resend(first.replay())
    found = second.peek_messages(99)
    assert [message["header0"] for message in found] == list(range(16))
    assert all("txnqueue.origin" in (message["_message"]["headers"] or {}) for message in found)


@pytest.mark.skipif(not LONG, reason="two copies are told apart by a predicate always")
def test_many_copies_of_what_is_in_a_batch_twice_are_two_each(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"copied{next(_NUMBERS)}" for _ in range(3)]
    first, second, out = (manager.create_queue(name, "i long", dead_letter=False) for name in names)
    news = manager.create_exchange(f"news{names[0]}", "fanout", "i long")
    news.bind(first)
    news.bind(second)
    news.publish([{"i": n} for n in range(3)])
    assert second.move(first.name, limit=2) == 2
    batch = first.receive(9)
    for most in (10_000, 0):
        monkeypatch.setattr(copies, "_ROWS_HERE_MAX", most)
        out.resend(batch)
        taken = out.receive(99)
        assert sorted(message["i"] for message in taken.messages()) == [0, 0, 1, 1, 2]
        taken.accept()


def test_a_search_of_the_history_finds_what_was_sent_to_the_queue_and_nothing_else(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was rolled back, nor what an exchange published for other queues."""
    monkeypatch.setattr(history, "TRACED_MAX", 3)
    manager = QueueManager(spark, "memory", store=MemoryStore(spark))
    mine, others = (manager.create_queue(name, "i long", dead_letter=False) for name in "ab")
    news = manager.create_exchange("news", "direct", "i long")
    news.bind(mine, "a")
    news.bind(others, "b")
    transaction = manager.transaction()
    mine.send([{"i": 1}] * 5, transaction=transaction)
    transaction.rollback()
    news.publish([{"i": 1}] * 5, routing_key="b")
    sent = mine.send([{"i": 1}, {"i": 2}, {"i": 1}])
    news.publish([{"i": 1}], routing_key="a")
    steps = manager.history.trace(queue="a", where="i = 1").rows()
    assert [(step["step"], step["queue"]) for step in steps] == [
        ("sent", "a"),
        ("sent", "a"),
        ("published", "a"),
    ]
    assert {step["message_id"] for step in steps} > {f"{sent.send_id}:0", f"{sent.send_id}:2"}
    with pytest.raises(LimitExceeded, match="trace fewer"):
        manager.history.trace(queue="a", where="i > 0")


def test_a_predicate_tells_two_copies_of_a_message_apart(
    manager: QueueManager,
) -> None:
    """Two queues got it from an exchange, and rejected it; their dead letters are in one queue."""
    names = [f"apart{next(_NUMBERS)}" for _ in range(3)]
    dead = manager.create_queue(names[2], "i long", dead_letter=False)
    news = manager.create_exchange(f"news{names[0]}", "fanout", "i long")
    for name in names[:2]:
        news.bind(manager.create_queue(name, "i long"))
    news.publish([{"i": n} for n in range(4)])
    for name in names[:2]:
        manager.queue(name).receive(9).reject(reason=f"of {name}")
        assert manager.queue(f"{name}.dead").move(dead.name) == 4
    mine = f"_message.origin.queue = '{names[0]}.dead'"

    def left() -> list[tuple[int, str]]:
        found = dead.peek_messages(99)
        return sorted((one["i"], one["_message"]["origin"]["queue"]) for one in found)

    assert {one["_message"]["origin"]["queue"] for one in dead.peek_messages(99, mine)} == {
        f"{names[0]}.dead"
    }
    assert dead.purge(f"{mine} AND i = 0") == 1
    batch = dead.receive(9, where=f"{mine} AND i = 1")
    assert [message["i"] for message in batch.messages()] == [1]
    batch.accept()
    assert dead.redrive(f"{mine} AND i = 2") == 1
    both = [f"{name}.dead" for name in names[:2]]
    assert left() == [(0, both[1]), (1, both[1]), (2, both[1]), (3, both[0]), (3, both[1])]
