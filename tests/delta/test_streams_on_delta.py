"""A stream on Delta: processes that are killed in it lose nothing and do nothing twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.stream_driver import CHECKPOINT, copy_to
from tests.drivers import start
from txnqueue import QueueManager

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DEATHS = [("before", 1), ("after", 1), ("before", 0), ("after", 2)] * 5 if LONG else []
"""Processes that kill themselves: before or after a batch of theirs is committed."""
COUNT = 80 if LONG else 6


@pytest.mark.timeout(3_600 if LONG else 300)
def test_streams_that_die_lose_nothing_and_do_nothing_twice(spark: Any, tmp_path: Path) -> None:
    root, gold = str(tmp_path / "store"), f"{tmp_path}/gold"
    spark.sql(f"CREATE TABLE delta.`{gold}` (n long) USING delta")
    manager = QueueManager(spark, root)
    orders = manager.create_queue("in", "n long", dead_letter=False, deliveries_max=100)
    out = manager.create_queue("out", "n long", dead_letter=False)
    orders.send([{"n": n} for n in range(COUNT - 1)])

    def handler(batch: Any, tx: Any) -> None:
        copy_to(gold, batch, tx)

    def die(_count: int) -> None:
        raise KeyboardInterrupt

    for when, batch in DEATHS:
        process = start("tests.delta.stream_driver", root, gold, when, batch, attach_to=spark)
        assert process.wait(120) == -9
    with pytest.raises(KeyboardInterrupt):
        orders.stream(handler, checkpoint=CHECKPOINT, batch_size=2, on_batch=die).await_termination(
            120
        )
    with orders.stream(handler, checkpoint=CHECKPOINT) as stream:
        orders.send([{"n": COUNT - 1}])
        deadline = time.monotonic() + 120
        while out.depth() < COUNT and time.monotonic() < deadline:
            assert not stream.await_termination(0.1)
    for found in (out.peek(COUNT + 1), spark.read.format("delta").load(gold)):
        assert sorted(row["n"] for row in found.select("n").collect()) == list(range(COUNT))
    assert not LONG or manager.history.verify().ok
