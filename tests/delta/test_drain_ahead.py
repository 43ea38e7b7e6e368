"""A drain that commits behind the next handler, on real Delta and by a real thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.inside import client_of
from txnqueue import QueueManager, Status
from txnqueue.errors import HandlerFailed

pytestmark = pytest.mark.spark
BATCHES, SIZE = 4, 5


def test_frames_are_read_and_sent_while_the_batch_before_is_committed(
    spark: Any, tmp_path: Path
) -> None:
    root = str(tmp_path / "store")
    manager = QueueManager(spark, root)
    orders = manager.create_queue("orders", "i long", dead_letter=False)
    manager.create_queue("done", "i long", dead_letter=False)
    orders.send(spark.range(BATCHES * SIZE).toDF("i"))
    reader, threads, early = QueueManager(spark, root), list[str](), list[Status]()

    def handler(batch: Any, tx: Any) -> None:
        number = int(tx.id.rpartition("/")[2])
        if number > 1:
            early.append(reader.outcome(f"run/{number - 1}").status)
        tx.queue("done").send(batch.df.select("i"))

    client = client_of(orders)
    land = client.land

    def landing(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return land(*args, **kwargs)

    client.land = landing
    result = orders.drain(handler, batch_size=SIZE, run_id="run", ahead=1)
    assert (result.batches, result.messages, result.finished) == (BATCHES, BATCHES * SIZE, True)
    assert Status.UNDECIDED in early, "nothing was handled before the batch before was committed"
    assert any(name.startswith("txnqueue behind") for name in threads)
    found = manager.queue("done").receive(1_000).to_arrow().column("i").to_pylist()
    assert sorted(found) == list(range(BATCHES * SIZE))
    assert (orders.depth(), orders.in_flight()) == (0, 0)

    orders.send(spark.range(3 * SIZE).toDF("i"))
    seen: list[int] = []

    def fails(batch: Any, tx: Any) -> None:
        seen.append(len(batch))
        if len(seen) == 3:
            raise NameError("mistaken")

    with pytest.raises(HandlerFailed):
        orders.drain(fails, batch_size=SIZE, ahead=1)
    assert (orders.depth(), orders.in_flight()) == (SIZE, 0)
    proof = manager.history.verify()
    assert proof.ok, proof
