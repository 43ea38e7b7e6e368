"""A heartbeat beats on Delta while the same manager does what takes long."""

import time

import pytest

from txnqueue import QueueManager

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def manager(spark, tmp_path_factory):
    manager = QueueManager(spark, str(tmp_path_factory.mktemp("heartbeats") / "store"))
    manager.create_queue("orders", "n long", dead_letter=False)
    manager.create_queue("out", "n long", dead_letter=False).send([{"n": 0}])
    manager.queue("orders").send([{"n": n} for n in range(9)])
    return manager


def rows(spark, tasks, seconds):
    """As many rows, each of a task of its own that takes so long."""
    from pyspark.sql import functions as F

    slow = F.udf(lambda n: (time.sleep(seconds), n)[1], "long")
    return spark.range(0, tasks, numPartitions=tasks).select(slow("id").alias("n"))


def test_while_one_long_task_is_staged_every_beat_beats(spark, manager):
    batch = manager.queue("orders").receive(1, lease_seconds=8)
    started = time.monotonic()
    with batch.heartbeat(lease_seconds=8, every_seconds=1) as beating:
        assert manager.queue("out").send(rows(spark, 1, 12)).count == 1
        took = time.monotonic() - started
        assert beating.beats >= 2
        assert not beating.lost
    assert took > 12
    batch.accept()


def test_where_long_tasks_fill_all_cores_a_beat_waits_for_one_of_them_at_most(spark, manager):
    batch = manager.queue("orders").receive(1, lease_seconds=30)
    with batch.heartbeat(lease_seconds=30, every_seconds=1) as beating:
        cores = spark.sparkContext.defaultParallelism
        assert manager.queue("out").send(rows(spark, 4 * cores, 3)).count == 4 * cores
        assert beating.beats >= 2
        assert not beating.lost
    batch.accept()
