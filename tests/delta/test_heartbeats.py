"""A heartbeat beats on Delta while the same manager does what takes long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from txnqueue import QueueManager

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def manager(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    manager = QueueManager(spark, str(tmp_path_factory.mktemp("heartbeats") / "store"))
    manager.create_queue("orders", "n long", dead_letter=False)
    manager.create_queue("out", "n long", dead_letter=False).send([{"n": 0}])
    manager.queue("orders").send([{"n": n} for n in range(9)])
    return manager


def rows(spark: Any, tasks: Any, seconds: float, unless: str = "no such file") -> Any:
    """As many rows, each of a task of its own that takes so long, unless a file is there."""
    from pyspark.sql import functions as F

    path = str(unless)
    slow = F.udf(lambda n: (os.path.exists(path) or time.sleep(seconds), n)[1], "long")
    return spark.range(0, tasks, numPartitions=tasks).select(slow("id").alias("n"))


def test_while_one_long_task_is_staged_every_beat_beats(spark: Any, manager: QueueManager) -> None:
    batch = manager.queue("orders").receive(1, lease_seconds=8)
    started = time.monotonic()
    with batch.heartbeat(lease_seconds=8, every_seconds=1) as beating:
        assert manager.queue("out").send(rows(spark, 1, 12)).count == 1
        took = time.monotonic() - started
        assert beating.beats >= 2
        assert not beating.lost
    assert took > 12
    batch.accept()


@pytest.mark.skipif(not LONG, reason="a cluster of tasks that wait: in the long run")
def test_where_tasks_fill_all_cores_a_beat_waits_for_one_of_them_and_not_for_all(
    spark: Any, manager: QueueManager, tmp_path: Path
) -> None:
    seen = tmp_path / "two beats were seen"
    tasks = 400 * spark.sparkContext.defaultParallelism  # minutes, if no beat beats

    def watch(beating: Any) -> Any:
        while not ended.wait(0.1):
            if beating.beats >= 2:
                return seen.touch()
        return None

    ended = threading.Event()
    batch = manager.queue("orders").receive(1, lease_seconds=120)
    with batch.heartbeat(lease_seconds=120, every_seconds=1) as beating:
        watching = threading.Thread(target=watch, args=(beating,))
        watching.start()
        try:
            assert manager.queue("out").send(rows(spark, tasks, 0.5, str(seen))).count == tasks
        finally:
            ended.set()
            watching.join()
        assert seen.exists()
        assert not beating.lost
    batch.accept()
