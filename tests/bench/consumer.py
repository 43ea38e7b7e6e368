"""A consumer of its own process: writes the id of each message to an output until none is left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tests import drivers
from tests.bench.floors import COLUMNS, orders
from tests.bench.peers import LEASE_SECONDS, append
from tests.bench.peers.deletion import Deletion
from tests.bench.peers.status_merge import StatusMerge
from tests.bench.peers.status_update import StatusUpdate
from tests.bench.peers.streaming import ForeachBatch, Sink
from txnqueue import QueueManager

BATCH = 10
IDLE_SECONDS = 3.0
"""After so long without a message there is none, unless a killed one holds some."""


class Consumer(Protocol):
    """A queue with an output."""

    streams: ClassVar[bool]

    def __init__(self, spark: Any, place: Path) -> None:
        """Create it, or open what is there."""

    def send(self, batches: int) -> None:
        """Send so many batches of messages."""

    def consume(self) -> int:
        """Consume what is there, a batch or more; tell how many messages there were."""

    def written(self) -> list[int]:
        """Read the ids that are in the output."""


class _Peer:
    """A peer whose output is a Delta table."""

    streams: ClassVar[bool] = False
    kind: ClassVar[Any]
    columns: ClassVar[str] = "order_id BIGINT"

    def __init__(self, spark: Any, place: Path) -> None:
        self._spark, self._out = spark, place / "out"
        self._peer = self.kind(spark, place / "queue")
        output = f"delta.`{self._out}` ({self.columns}) USING delta"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {output}").collect()

    def send(self, batches: int) -> None:
        for number in range(batches):
            self._peer.send(orders(self._spark, BATCH, number * BATCH))

    def consume(self) -> int:
        return int(self._peer.consume(BATCH, self._write))

    def written(self) -> list[int]:
        found = self._spark.read.format("delta").load(str(self._out)).select("order_id")
        return [int(row[0]) for row in found.collect()]

    def _write(self, frame: Any) -> None:
        append(frame.select("order_id"), self._out)


class _Update(_Peer):
    kind = StatusUpdate


class _Merge(_Peer):
    kind = StatusMerge


class _Deletion(_Peer):
    kind = Deletion


class _Foreach(_Peer):
    streams: ClassVar[bool] = True
    kind = ForeachBatch

    def consume(self) -> int:
        self._peer.run(self._write_once)
        return 0

    def _write_once(self, frame: Any, number: int) -> None:
        writer = frame.select("order_id").write.format("delta").mode("append")
        named = writer.option("txnAppId", "bench").option("txnVersion", number)
        named.save(str(self._out))
        print("batch", flush=True)


class _Sink(_Peer):
    streams: ClassVar[bool] = True
    kind = Sink
    columns = COLUMNS

    def consume(self) -> int:
        threading.Thread(target=self._watch, daemon=True).start()
        self._peer.run(self._out)
        return 0

    def _watch(self) -> None:
        """Say when a batch was written: there is no call of ours in it."""
        seen = 0
        while True:
            there = len(list(self._out.glob("_delta_log/*.json")))
            for _ in range(there - seen):
                print("batch", flush=True)
            seen = there
            time.sleep(0.05)


class _Queue:
    """The library; its output is another queue, in the same transaction."""

    streams: ClassVar[bool] = False

    def __init__(self, spark: Any, place: Path) -> None:
        self._spark = spark
        self._manager = QueueManager(spark, str(place))
        new: dict[str, Any] = {"dead_letter": False, "exist_ok": True}
        more = {"lanes": 4, "lease_seconds": LEASE_SECONDS, **new}
        schema = "order_id long, customer string, amount double"
        self._orders = self._manager.create_queue("orders", schema, **more)
        self._out = self._manager.create_queue("out", "order_id long", **new)

    def send(self, batches: int) -> None:
        for number in range(batches):
            self._orders.send(orders(self._spark, BATCH, number * BATCH))

    def consume(self) -> int:
        def handler(batch: Any, tx: Any) -> None:
            tx.queue("out").send(batch.df.select("order_id"))

        return self._orders.drain(handler, batch_size=BATCH, max_batches=1).messages

    def written(self) -> list[int]:
        with self._manager.transaction() as tx:
            batch = self._out.receive(1_000_000, transaction=tx)
            return [int(message["order_id"]) for message in batch.messages()]


CONSUMERS: Mapping[str, type[Consumer]] = {
    "txnqueue": _Queue,
    "status UPDATE": _Update,
    "status MERGE": _Merge,
    "DELETE": _Deletion,
    "foreachBatch": _Foreach,
    "stream to Delta": _Sink,
}


def work(consumer: Consumer, idle_seconds: float, failed: list[BaseException]) -> None:
    """Consume until there was nothing for long enough."""
    last = time.monotonic()
    try:
        while time.monotonic() - last < idle_seconds and not failed:
            if consumer.consume():
                print("batch", flush=True)
                last = time.monotonic()
            else:
                time.sleep(0.2)
            if consumer.streams:
                return
    except BaseException as error:
        failed.append(error)
        raise


def main(name: str, place: str, threads: str, after: str) -> None:
    spark = drivers.session(name)
    consumer = CONSUMERS[name](spark, Path(place))
    failed: list[BaseException] = []
    idle_seconds = IDLE_SECONDS + (LEASE_SECONDS if after == "killed" else 0)
    print("ready", flush=True)
    working = [
        threading.Thread(target=work, args=(consumer, idle_seconds, failed))
        for _ in range(int(threads))
    ]
    for one in working:
        one.start()
    for one in working:
        one.join()
    print(f"failed: {str(failed[0])[:400]}" if failed else "done", flush=True)
    drivers.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
