"""Stores on S3's log store, which bears one driver; and statements that Spark cannot read."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.inside import client_of
from txnqueue import QueueManager, Status
from txnqueue.errors import SecondDriver, StatementRefused
from txnqueue.platform.log_store import TAIL_LISTING
from txnqueue.storage.journal import admission, delta, insertion, locked_file

pytestmark = [pytest.mark.spark]
BUCKET = "txnqueue-tests"


@pytest.fixture
def bucket(spark: Any, tmp_path: Path) -> str:
    """A folder of this disk under an address of S3: Delta takes its log store for S3 there."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.s3a.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme")
    hadoop.set("fs.s3a.impl.disable.cache", "true")
    hadoop.set(f"fs.viewfs.mounttable.{BUCKET}.link./{tmp_path.name}", f"file://{tmp_path}")
    return f"s3a://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Play one driver after the other in one process."""
    monkeypatch.setattr(admission, "SETTLE_SECONDS", 0.01)
    me = list(admission._here)

    def become(name: str) -> None:
        admission._here[:] = [name]

    yield become
    admission._here[:] = me


def test_on_s3_a_second_driver_is_refused_until_the_first_leaves(
    spark: Any, bucket: str, drivers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers("one")
    first = QueueManager(spark, bucket)
    orders = first.create_queue("orders", "n long", dead_letter=False)
    orders.send([{"n": 1}])
    drivers("two")
    second = QueueManager(spark, bucket)
    theirs = second.queue("orders")
    version = client_of(first).store.journal.version()
    for act in (lambda: theirs.send([{"n": 2}]), lambda: theirs.receive(1)):
        with pytest.raises(SecondDriver, match=r"spark\.delta\.logStore\.s3a\.impl"):
            act()
    assert client_of(first).store.journal.version() == version
    assert theirs.depth() == 1  # to look is no harm
    payload = f"{bucket}/payload/{orders.info.payload_id}"
    assert spark.read.format("delta").load(payload).count() == 1  # nothing was staged either
    drivers("one")
    orders.send([{"n": 3}])
    first.close()
    drivers("two")
    assert len(theirs.receive(10)) == 2
    assert second.history.verify().ok
    drivers("three")
    third = QueueManager(spark, bucket)
    with pytest.raises(SecondDriver):
        third.queue("orders").send([{"n": 4}])
    third.take_over("the machine of the second is gone")
    third.queue("orders").send([{"n": 4}])
    log = spark.sql(f"DESCRIBE HISTORY delta.`{bucket}/journal`")
    (said,) = log.where("userMetadata LIKE '%taken_from%'").select("userMetadata").collect()
    assert '"taken_from": "two"' in said[0] and "machine of the second" in said[0]
    drivers("two")
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.0)
    with pytest.raises(SecondDriver):
        theirs.send([{"n": 5}])


def test_java_keeps_one_file_locked_in_a_store_on_a_disk(tmp_path: Path, spark: Any) -> None:
    """By it a driver in another container knows that it lives."""
    locks = tmp_path / "store" / ".locks"
    locks.mkdir(parents=True)
    (locks / f"dead{locked_file.SUFFIX}").touch()
    managers = [QueueManager(spark, str(tmp_path / "store")) for _ in range(2)]
    for manager, name in zip(managers, ("one", "two"), strict=True):
        manager.create_queue(name, "n long", dead_letter=False).send([{"n": 1}])
    (file,) = locks.glob(f"*{locked_file.SUFFIX}")
    assert locked_file.is_alive(file) and file.stem != "dead"
    shutil.rmtree(locks)  # somebody tidied up
    for manager in managers:
        manager.queue("one").send([{"n": 2}])
    (another,) = locks.glob(f"*{locked_file.SUFFIX}")
    assert locked_file.is_alive(another) and another != file
    while managers:
        managers.pop().close()
    del manager
    gc.collect()
    assert not list(locks.glob(f"*{locked_file.SUFFIX}"))


@pytest.mark.parametrize("left", ["", ".00000000000000000000.json.0a1b.tmp"])
def test_a_creation_that_was_killed_is_finished_by_the_next_one(
    spark: Any, tmp_path: Path, left: str
) -> None:
    """Delta makes the folders of a log before the first commit, and takes them for a table."""
    for table in ("journal", "archive"):
        log = tmp_path / table / "_delta_log"
        (log / "_staged_commits").mkdir(parents=True)
        if left:
            (log / left).write_text("{")
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    archive = client_of(manager).store.journal.archive
    archive.create()
    archive.create()  # what is there stays
    assert spark.read.format("delta").load(f"{tmp_path}/archive").count() == 0
    assert queue.depth() == 1 and manager.history.verify().ok


def test_of_a_local_log_only_what_is_new_is_read(tmp_path: Path, spark: Any) -> None:
    """Delta's own log store asks the disk for each file that was ever committed."""
    table, commits = str(tmp_path / "table"), 4000
    spark.range(1).write.format("delta").save(table)
    spark.range(1).write.format("delta").mode("append").save(table)
    (tmp_path / "table/_delta_log/old 12:30.json").touch()  # a name that Hadoop minds
    jvm, hadoop = spark._jvm, spark._jsc.hadoopConfiguration()
    path, context = jvm.org.apache.hadoop.fs.Path, spark.sparkContext._jsc.sc().conf()
    taken = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(context, hadoop)
    ours = taken.getDelegate(path(f"file:{table}")).logStoreImpl()
    assert ours.getClass().getName() == TAIL_LISTING
    theirs = jvm.io.delta.storage.HDFSLogStore(hadoop)

    def listed(store: Any, name: str) -> list[tuple[str, int, int]]:
        found = store.listFrom(path(f"file:{tmp_path}/{name}"), hadoop)
        return [
            (status.getPath().toString(), status.getLen(), status.getModificationTime())
            for status in iter(lambda: found.next() if found.hasNext() else None, None)
        ]

    second = f"table/_delta_log/{1:020d}."
    first = [name.rpartition("/")[2] for name, *_ in listed(ours, second)][:2]
    assert first == [f"{1:020d}.crc", f"{1:020d}.json"]
    for name in (second, f"table/_delta_log/{0:020d}.json", "table/part", "table/_delta_log/_a"):
        assert listed(ours, name) == listed(theirs, name), name
    for store in (ours, theirs):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            store.listFrom(path(f"file:{tmp_path}/none/_delta_log/{0:020d}.json"), hadoop)

    for version in range(2, commits):
        (tmp_path / f"table/_delta_log/{version:020d}.json").touch()
    newest = path(f"file:{table}/_delta_log/{commits - 1:020d}.json")
    seconds: dict[Any, list[float]] = {ours: [], theirs: []}
    for _ in range(7):
        for store, taken in seconds.items():
            began = time.perf_counter()
            assert store.listFrom(newest, hadoop).hasNext()
            taken.append(time.perf_counter() - began)
    assert min(seconds[ours]) < min(seconds[theirs]) / 2


SETTINGS: list[dict[str, str]] = [
    {},
    {"spark.delta.logStore.s3a.impl": "io.delta.storage.HDFSLogStore"},
    {"delta.logStore.s3a.impl": "io.delta.storage.HDFSLogStore"},
    {"spark.delta.logStore.s3.impl": "io.delta.storage.HDFSLogStore"},
    {"spark.delta.logStore.class": "io.delta.storage.HDFSLogStore"},
    {"delta.logStore.class": "io.delta.storage.HDFSLogStore"},
    {"spark.delta.logStore.class": admission._DELEGATING},
    {"spark.delta.logStore.class": "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"},
]


def test_the_log_store_that_we_expect_is_the_one_that_delta_takes(
    spark: Any, request: pytest.FixtureRequest
) -> None:
    jvm, conf = spark._jvm, spark.sparkContext._jsc.sc().conf()
    of_local_files = "spark.delta.logStore.file.impl"
    assert conf.get(of_local_files) == TAIL_LISTING
    conf.remove(of_local_files)  # one for all schemes is refused beside it
    request.addfinalizer(partial(conf.set, of_local_files, TAIL_LISTING))
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    for scheme in admission.OF_S3:
        path = jvm.org.apache.hadoop.fs.Path(f"{scheme}://bucket/x")
        for said in SETTINGS:
            for key, value in said.items():
                conf.set(key, value)
            try:
                # what is resolved reads the application's settings, and so do we
                ours = admission.log_store(scheme, admission.application_settings(spark))
                chosen = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(conf, hadoop)
                if chosen.getClass().getName() == admission._DELEGATING:
                    chosen = chosen.getDelegate(path)
                if chosen.getClass().getName().endswith("LogStoreAdaptor"):
                    chosen = chosen.logStoreImpl()
                assert ours == chosen.getClass().getName(), (scheme, said)
            finally:
                for key in said:
                    conf.remove(key)


def test_a_statement_that_spark_cannot_read_is_refused_and_nothing_is_in_doubt(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import AnalysisException

    manager = QueueManager(spark, str(tmp_path))
    orders = manager.create_queue("orders", "n long", dead_letter=False)
    monkeypatch.setattr(
        client_of(manager).runtime, "sleep", lambda seconds: pytest.fail("it was tried again")
    )
    for key, module, name, said in (
        ("a", delta, "merge", "MERGE INTO )"),
        ("b", insertion, "_source", "SELECT nothing FROM range(1)"),
    ):
        with monkeypatch.context() as broken, pytest.raises(StatementRefused) as refused:
            broken.setattr(module, name, lambda table, units, said=said: said)
            with manager.transaction(transaction_id=key) as tx:
                orders.send([{"n": 1}], transaction=tx)
        assert isinstance(refused.value.__cause__, AnalysisException)
        assert manager.outcome(key).status is not Status.COMMITTED
    store: Any = client_of(manager).store
    statements = store.statements
    append = statements.append

    def landed(statement: Any) -> None:
        append(statement)
        raise AnalysisException("[SOMETHING] that came up after the commit")

    with monkeypatch.context() as broken:
        broken.setattr(statements, "append", landed)
        orders.send([{"n": 1}])
    assert orders.depth() == 1
