"""Whatever a user's session says of reads and writes, messages and table changes stay the same."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core import model
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.storage.journal import selection
from txnqueue.storage.journal.sessions import APPLICATION
from txnqueue.storage.payload import writes

pytestmark = pytest.mark.spark

COMMITTER = "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter"
SETTINGS = {
    "spark.databricks.delta.optimizeWrite.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
    "spark.databricks.delta.stalenessLimit": "1h",
    "spark.databricks.delta.write.txnAppId": "my-stream",
    "spark.databricks.delta.write.txnVersion": "7",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.maxRecordsPerFile": "1",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.sources.outputCommitterClass": COMMITTER,
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
ONE_EACH = [{key: value} for key, value in SETTINGS.items()] if LONG else []
COMBINATIONS = [SETTINGS, {**SETTINGS, "spark.sql.ansi.enabled": "true"}, *ONE_EACH]
COMBINATIONS[1] |= {
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
}
TEXT = 'it\'s \\ a "text" of ${spark.app.name}\n'
INSTANT = datetime.datetime(2024, 3, 10, 2, 30, 0, 123456)  # an hour that New York does not have
SCHEMA = "n long, at timestamp_ltz, here timestamp_ntz, price decimal(10,2), text string, key int"
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return str(tmp_path_factory.mktemp("sessions") / "store")


@pytest.fixture
def said(spark: Any) -> Iterator[Any]:
    """Say something in the user's session, and take it back after the test."""
    before: dict[Any, Any] = {}

    def say(settings: Any) -> None:
        for key, value in settings.items():
            before.setdefault(key, spark.conf.get(key, None))
            spark.conf.set(key, value)

    yield say
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


@pytest.fixture
def configured(spark: Any) -> Iterator[Any]:
    """Say something in the application, of which each new session has it."""
    conf, names = spark._jsc.sc().conf(), list[str]()

    def say(settings: Any) -> None:
        for key, value in settings.items():
            names.append(key)
            conf.set(key, value)

    yield say
    for key in names:
        conf.remove(key)


def frame_of(spark: Any, numbers: Any) -> Any:
    """Rows with everything that a session might see otherwise; made before anything is said."""
    from pyspark.sql import functions as F

    at = F.timestamp_micros(F.lit(1_710_037_800_123_456))  # 2024-03-10 02:30:00.123456 UTC
    here = F.lit(INSTANT.isoformat(sep=" ")).cast("timestamp_ntz")
    return spark.range(numbers.start, numbers.stop, numPartitions=2).select(
        F.col("id").alias("n"),
        at.alias("at"),
        here.alias("here"),
        F.lit(Decimal("12.34")).cast("decimal(10,2)").alias("price"),
        F.lit(TEXT).alias("text"),
        (F.col("id") % 3).cast("int").alias("key"),
    )


def shown(frame: Any) -> Any:
    """Read a DataFrame of messages by numbers and texts, which no time zone changes."""
    found = frame.selectExpr(
        "n", "unix_micros(at) AS at", "CAST(here AS string) AS here",
        "CAST(price AS string) AS price", "text", "key", "_message.queue AS queue",
    )  # fmt: skip
    return sorted((tuple(row) for row in found.collect()), key=lambda row: row[0])


@pytest.mark.parametrize("settings", COMBINATIONS, ids=lambda found: str(len(found)))
def test_settings_of_the_users_session_change_nothing(
    spark: Any, root: Any, said: Any, settings: Any
) -> None:
    name = f"orders{next(_NUMBERS)}"
    table = f"{root}-{name}"
    spark.sql(f"CREATE TABLE delta.`{table}` (n long, total double) USING delta")
    expected = [
        (n, 1_710_037_800_123_456, str(INSTANT), "12.34", TEXT, n % 3, name) for n in range(12)
    ]
    frames = [frame_of(spark, range(5)), frame_of(spark, range(5, 10))]
    said(settings)
    manager = QueueManager(spark, root)
    queue = manager.create_queue(name, SCHEMA, group_by="key", lanes=2, dead_letter=False)
    assert queue.send(frames[0]).count == 5
    assert queue.send(frames[1], order_by="n").count == 5
    utc = INSTANT.replace(tzinfo=datetime.timezone.utc)
    few = {"at": utc, "here": INSTANT, "price": Decimal("12.34"), "text": TEXT}
    assert queue.send([{"n": n, "key": n % 3, **few} for n in (10, 11)]).count == 2
    assert [m["n"] for m in queue.peek_messages(20, where="n IN (3, 11)")] == [3, 11]
    with manager.transaction() as tx:
        batch = queue.receive(100, transaction=tx)
        assert shown(batch.df) == expected
        assert sorted(m["n"] for m in batch.messages()) == list(range(12))
        changes = tx.table(table)
        assert changes.append(spark.range(4).selectExpr("id AS n", "CAST(id AS double) total")) == 4
        rows = spark.range(3, 6).selectExpr("id AS n", "CAST(9 AS double) AS total")
        assert changes.merge(rows, on="n", update="*", insert="*") == 3
        changes.update({"total": "total + 1"}, where="n = 0")
    assert [tuple(r) for r in spark.table(f"delta.`{table}`").orderBy("n").collect()] == [
        (0, 1.0), (1, 1.0), (2, 2.0), (3, 9.0), (4, 9.0), (5, 9.0)
    ]  # fmt: skip
    assert QueueManager(spark, root).queue(name).depth() == 0


def test_each_commit_is_one_where_the_application_lets_delta_compact_after_each(
    spark: Any, tmp_path: Path, configured: Any
) -> None:
    """Delta does so in the same statement, whose session then tells the version of that."""
    compacts = "spark.databricks.delta.autoCompact"
    configured({f"{compacts}.enabled": "true", f"{compacts}.minNumFiles": "2"})
    table = f"delta.`{tmp_path}/table`"

    def operations(of: str) -> list[str]:
        return [row["operation"] for row in spark.sql(f"DESCRIBE HISTORY {of}").collect()]

    def theirs() -> None:
        spark.newSession().sql(f"INSERT INTO {table} SELECT id FROM range(1)").collect()

    spark.sql(f"CREATE TABLE {table} (n long) USING delta")
    theirs()
    theirs()
    assert "OPTIMIZE" in operations(table), "vacuous: Delta does not compact"

    root = f"{tmp_path}/store"
    manager, other = (QueueManager(spark, root, actor=name) for name in ("one", "other"))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    for n in range(1, 4):
        with manager.transaction() as tx:
            assert queue.send([{"n": n}], transaction=tx).count == 1
            tx.table(f"{tmp_path}/table").append([{"n": n}])
        assert tx.receipt.applied
        assert other.queue("orders").depth() == queue.depth() == n
    assert "OPTIMIZE" not in operations(f"delta.`{root}/journal`")
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    ours = {row["version"] for row in history if "txnqueue" in (row["userMetadata"] or "")}
    entries = client_of(other).store.journal.read_all().entries
    told = {e.body["table_version"] for e in entries if e.kind == model.CHANGE_APPLIED}
    assert len(ours) == 3 and len(told) == 2 and told < ours
    assert sorted(row["n"] for row in other.queue("orders").receive(9).messages()) == [1, 2, 3]


@pytest.mark.skipif(not LONG, reason="two maintenances before and two after take a minute")
def test_what_a_user_has_cached_of_the_archive_does_not_hide_what_another_driver_archived(
    spark: Any, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    other = QueueManager(spark, str(there))
    queue = other.create_queue("orders", "n long", dead_letter=False)

    def archive_all() -> None:
        for _ in range(2):
            queue.send([{"n": 2}])
            other.maintain(transaction_seconds_max=0)

    archive_all()
    shutil.copytree(there, here)
    archived = f"delta.`{here}/archive`"
    cached = spark.table(archived).cache()
    try:
        before = cached.count()
        with other.transaction("nightly") as tx:
            queue.send([{"n": 1}], transaction=tx)
        archive_all()
        assert other.outcome("nightly").status == "committed"
        shutil.copytree(there, here, dirs_exist_ok=True)  # as if it had worked here
        assert spark.table(archived).count() == before, "Spark answers from its cache"
        with QueueManager(spark, str(here)).transaction("nightly") as tx:
            assert tx.already_committed
    finally:
        cached.unpersist()


def test_rows_change_where_the_application_refuses_joins_without_a_condition(
    spark: Any, tmp_path: Path, configured: Any
) -> None:
    configured({"spark.sql.crossJoin.enabled": "false"})
    table = f"{tmp_path}/table"
    spark.sql(f"CREATE TABLE delta.`{table}` (n long, total double) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 1.0), (2, 2.0)")
    manager = QueueManager(spark, f"{tmp_path}/store")
    manager.create_queue("orders", "n long", dead_letter=False)
    with manager.transaction() as tx:
        tx.table(table).update({"total": "total + 1"}, where="n = 1")
        tx.table(table).delete(where="n = 2")
    assert tx.receipt.applied
    assert [tuple(row) for row in spark.table(f"delta.`{table}`").collect()] == [(1, 2.0)]


def test_the_session_that_is_active_stays_the_users(spark: Any, root: Any) -> None:
    spark.createDataFrame([(1,)], "n int")  # makes it the active one
    sessions = type(spark)._get_j_spark_session_class(spark._jvm)
    manager = QueueManager(spark, root)
    store: Any = client_of(manager).store
    queue = manager.create_queue(f"orders{next(_NUMBERS)}", "n long")

    def move_on() -> None:
        queue.send([{"n": 1}, {"n": 2}])
        queue.receive(1).accept()

    def while_another_thread_makes_one() -> None:
        type(spark)._activeSession = store.statements.session
        move_on()

    for step in (
        move_on,
        while_another_thread_makes_one,
        lambda: queue.peek().collect(),
        lambda: manager.maintain(transaction_seconds_max=0, vacuum=False),
        lambda: manager.history.as_of().messages(queue.name).df().collect(),
        lambda: manager.history.as_of().counts().df().collect(),
    ):
        step()
        assert type(spark).getActiveSession() is spark
        assert sessions.getActiveSession().get().equals(spark._jsparkSession), step


def test_a_session_that_would_cut_instants_off_is_refused_where_there_are_any(
    spark: Any, root: Any, said: Any
) -> None:
    manager = QueueManager(spark, root)
    manager.create_queue("instants", "n long, at array<timestamp_ltz>", dead_letter=False)
    manager.create_queue("plain", "timestamp long", dead_letter=False)
    frame = spark.sql("SELECT 1L AS n, array(timestamp_micros(123456L)) AS at")
    said({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"})
    with pytest.raises(InvalidInput, match="outputTimestampType"):
        manager.queue("instants").send(frame)
    assert manager.queue("instants").depth() == 0
    assert manager.queue("plain").send(spark.range(3).toDF("timestamp")).count == 3


def test_instants_stay_instants_where_a_session_means_others_by_timestamp(
    spark: Any, root: Any, said: Any
) -> None:
    from pyspark.sql import types as T

    said({"spark.sql.timestampType": "TIMESTAMP_NTZ"})
    manager = QueueManager(spark, root)
    nested = T.ArrayType(T.StructType([T.StructField("at", T.TimestampType())]))
    schema = T.StructType([T.StructField("n", T.LongType()), T.StructField("spans", nested)])
    name = f"instants{next(_NUMBERS)}"
    queue = manager.create_queue(name, schema, dead_letter=False)
    utc = INSTANT.replace(tzinfo=datetime.timezone.utc)
    queue.send([{"n": 1, "spans": [{"at": utc}]}])
    queue.alter(T.StructType([T.StructField("at", T.TimestampType())]))
    queue.send([{"n": 2, "spans": [{"at": utc}], "at": utc}])
    batch, nothing = queue.receive(), queue.receive()
    for frame in (batch.df, nothing.df):
        assert frame.schema["spans"].dataType == nested
        assert frame.schema["at"].dataType == T.TimestampType()
    assert nothing.df.count() == 0
    found = {m["n"]: (m["spans"][0]["at"], m["at"]) for m in batch.messages()}
    assert found == {1: (utc, None), 2: (utc, utc)}
    empty = T.StructType([T.StructField("at", T.TimestampType())])
    manager.create_exchange(f"{name}.x", schema=empty)
    to = manager.create_queue(f"{name}.to", empty, dead_letter=False)
    manager.exchange(f"{name}.x").bind(to.name, routing_key="k")
    manager.exchange(f"{name}.x").publish([{"at": utc}], routing_key="k")
    to.alter(T.StructType([T.StructField("later", T.TimestampType())]))
    frame = to.receive().df  # the exchange's table does not have the column
    assert frame.schema["later"].dataType == T.TimestampType()
    assert [row.later for row in frame.collect()] == [None]


def test_a_schema_is_that_of_the_catalog_which_the_session_is_in(spark: Any, root: Any) -> None:
    """Another catalog's schema of the same name is another store: its data is not this one's."""
    session, schema = spark.newSession(), f"catalogs{next(_NUMBERS)}"
    derby = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    session.conf.set("spark.sql.catalog.other", derby)
    session.conf.set("spark.sql.catalog.other.url", f"jdbc:derby:{root}/derby;create=true")
    session.conf.set("spark.sql.catalog.other.driver", "org.apache.derby.jdbc.EmbeddedDriver")
    session._jvm.System.setProperty("derby.stream.error.file", f"{root}/derby.log")
    session.sql(f"CREATE SCHEMA {schema}")
    manager = QueueManager(session, schema)
    queue = manager.create_queue("q", "n long", dead_letter=False)
    session.sql("SET CATALOG other")
    queue.send([{"n": 1}])
    manager.create_views()
    with pytest.raises(InvalidInput, match=f"root='other.{schema}'"):
        QueueManager(session, schema).create_queue("q", "n long")
    same = QueueManager(session, f"spark_catalog.{schema}")
    assert [message["n"] for message in same.queue("q").receive().messages()] == [1]
    assert manager.maintain().skipped == () and manager.history.verify().ok
    shown = session.sql(f"SELECT n, state FROM spark_catalog.{schema}.q").collect()
    assert [tuple(row) for row in shown] == [(1, "in_flight")]


def test_a_send_without_rows_sends_nothing_whatever_the_session_says(
    spark: Any, root: Any, said: Any
) -> None:
    queue = QueueManager(spark, root).create_queue("empty", "n long", dead_letter=False)
    assert queue.send(spark.range(0).toDF("n")).count == 0
    said({k: v for k, v in SETTINGS.items() if "txn" in k})
    assert queue.send(spark.range(0).toDF("n")).count == 0


def test_a_write_that_delta_passed_over_is_an_error_that_names_the_setting(
    spark: Any, root: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueManager(spark, root).create_queue("skipped", "n long", dead_letter=False)
    said({k: v for k, v in SETTINGS.items() if "txn" in k})
    plain, answers = writes._numbering, iter([None])  # they are set just after we have looked
    monkeypatch.setattr(writes, "_numbering", lambda session: next(answers, plain(session)))
    assert queue.send(spark.range(3).toDF("n")).count == 3  # nothing was written under it yet
    answers = iter([None])
    with pytest.raises(InvalidInput, match="txnAppId") as caught:
        queue.send(spark.range(3).toDF("n"))
    assert caught.value.name == APPLICATION
    assert queue.depth() == 3


@pytest.mark.parametrize("wanting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_a_batch_never_shows_fewer_rows_than_were_received(
    spark: Any, root: Any, said: Any, tmp_path: Path, wanting: Any
) -> None:
    from pathlib import Path

    name = f"short{next(_NUMBERS)}"
    queue = QueueManager(spark, root).create_queue(name, "n long", dead_letter=False)
    queue.send([{"n": 1}])
    queue.send([{"n": 2}])
    batch = queue.receive()
    frame = batch.df
    assert frame.count() == 2
    said({f"spark.sql.files.{wanting}": "true"})
    payload = Path(root) / "payload" / queue.info.payload_id
    file = sorted(payload.rglob("*.parquet"))[0]
    content = file.read_bytes()
    if wanting == "ignoreMissingFiles":
        file.unlink()
    else:
        file.write_bytes(b"this is no Parquet" * 100)
    Path(file.parent, f".{file.name}.crc").unlink(missing_ok=True)
    try:
        with pytest.raises(Exception, match=f"PayloadRemoved.*{wanting}"):
            batch.df.collect()
    finally:
        file.write_bytes(content)
    assert batch.df.count() == 2


def test_after_its_session_was_stopped_a_manager_says_so(
    spark: Any, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = QueueManager(spark, root)
    queue = manager.create_queue("stopped", "n long", dead_letter=False)
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)  # what stop() leaves
    for act in (queue.depth, manager.maintain, lambda: queue.send([{"n": 1}])):
        with pytest.raises(PlatformMissing, match="stopped"):
            act()
    monkeypatch.undo()
    assert queue.depth() == 0


def test_an_append_waits_for_a_core_however_long_the_platform_lets_a_broadcast_take(
    spark: Any, tmp_path: Path
) -> None:
    context = spark.sparkContext
    application = context._jsc.sc().conf()
    application.set("spark.sql.broadcastTimeout", "1")  # of each session that is made from now on
    tasks, seconds = 4 * context.defaultParallelism, 2.5
    try:
        manager = QueueManager(spark, str(tmp_path / "store"))
        orders = manager.create_queue("orders", "n long", dead_letter=False)
        orders.send([{"n": 1}])
        with ThreadPoolExecutor(1) as beside:
            busy = beside.submit(context.parallelize(range(tasks), tasks).foreach, _sleeps(seconds))
            while not context.statusTracker().getActiveStageIds():
                assert not busy.done()
            orders.receive(1).accept()
            busy.result()
    finally:
        application.remove("spark.sql.broadcastTimeout")
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def _sleeps(seconds: float) -> Callable[[int], None]:
    def sleep(_number: int) -> None:
        import time

        time.sleep(seconds)

    return sleep


def test_nothing_of_a_streamed_reading_stays_in_java(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 4.2 keeps the jobs of a DataFrame's iterator, with all rows, until it stops."""
    monkeypatch.setattr(selection, "PART_ROWS", 2)
    manager = QueueManager(spark, str(tmp_path / "store"))
    manager.create_queue("orders", "n long").send([{"n": 1}])
    kept = spark._jsc.sc().dagScheduler().activeQueryToJobs()
    before = kept.size()
    assert manager.history.verify().ok and kept.size() == before
    journal = f"delta.`{tmp_path}/store/journal`"
    assert list(spark.table(journal).toLocalIterator())
    assert kept.size() > before, "vacuous: this Spark does not keep them"
