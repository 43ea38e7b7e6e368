"""Managers that nobody closes: what they used ends with them."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.inside import client_of
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
SECONDS_MAX = 60


def test_a_manager_that_is_dropped_leaves_no_threads_and_no_connections(
    spark: Any, tmp_path: Path
) -> None:
    root = str(tmp_path / "store")
    QueueManager(spark, root).create_queue("orders", "n long", dead_letter=False)
    threads, connections = _threads(), _connections()
    dropped = [_used(spark, root, number) for number in range(3)]
    gc.collect()
    assert [one() for one in dropped] == [None] * 3
    deadline = time.monotonic() + SECONDS_MAX
    while _threads() - threads and time.monotonic() < deadline:
        time.sleep(0.1)  # they end by themselves, as soon as they are scheduled
    assert not _threads() - threads
    assert _connections() <= connections


def _used(spark: Any, root: str, number: int) -> weakref.ref[Any]:
    """Use all kinds of threads that a manager has, and drop it."""
    manager = QueueManager(spark, root, consumer=f"consumer {number}")
    manager.queue("orders").send(spark.range(number, number + 1).toDF("n"))
    batch = manager.queue("orders").receive()
    assert batch.df.count() == 1
    batch.accept()
    assert manager.maintain().archived == 0
    return weakref.ref(client_of(manager).store)


def _threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("txnqueue")}


def _connections() -> int:
    """Count the connections to Java: each thread that talks to it has one."""
    return len([one for one in psutil.Process().net_connections("tcp") if one.raddr])
