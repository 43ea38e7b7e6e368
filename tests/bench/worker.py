"""Threads that receive, aggregate and commit, here or in a process of its own.

The process does a window of work whenever it is told to, and says what a transaction took. It
uses only what older versions have as well: it runs with the library that lies in its folder.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from tests import drivers
from tests.bench.floors import aggregate, orders
from txnqueue import QueueManager

LANES = 8
COUNT = 500
"""The messages of a transaction."""
BACKLOG = 400_000
SCHEMA = "order_id long, customer string, amount double"


class Work:
    """A queue of a store of its own, and threads that consume it."""

    def __init__(self, spark: Any, root: str) -> None:
        """Open the store, or create it."""
        self._spark, self._manager = spark, QueueManager(spark, root, actor="bench")
        self._queue = self._manager.create_queue(
            "orders", SCHEMA, lanes=LANES, dead_letter=False, exist_ok=True
        )

    def fill(self) -> None:
        """See to it that enough messages wait, and that this client knows them."""
        if self._queue.depth() < BACKLOG // 2:
            self._queue.send(orders(self._spark, BACKLOG))

    def per_transaction(self, threads: int, seconds: float) -> float:
        """Tell the time of a window over the number of transactions that ended in it.

        A thread ends its last transaction after the window, which lasts until all have done so.

        Args:
            threads: How many consume side by side.
            seconds: So long after the beginning none begins another transaction.
        """
        done: list[int] = []
        failed: list[BaseException] = []
        began = time.perf_counter()

        def guarded() -> None:
            try:
                while time.perf_counter() < began + seconds:
                    done.append(self._transaction())
            except BaseException as error:  # it is raised where the threads are waited for
                failed.append(error)

        running = [threading.Thread(target=guarded) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failed:
            raise failed[0]
        if 0 in done:
            raise AssertionError("a transaction received nothing")
        return (time.perf_counter() - began) / len(done)

    def _transaction(self) -> int:
        with self._manager.transaction() as tx:
            batch = self._queue.receive(COUNT, transaction=tx)
            aggregate(batch.df, len(batch))
        return len(batch)


def main(root: str, threads: str, seconds: str) -> None:
    work = Work(drivers.session("bench"), root)
    for line in sys.stdin:
        if line == "fill\n":
            work.fill()
            print("filled", flush=True)
        else:
            print(work.per_transaction(int(threads), float(seconds)), flush=True)
    drivers.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
