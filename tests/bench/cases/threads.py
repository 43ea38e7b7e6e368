"""Transactions of several threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side
from tests.bench.floors import aggregate, orders
from tests.bench.world import World

LANES = 8
THREADS = (1, 4, 8)
COUNT = 500
SECONDS = 5.0
BACKLOG = 400_000


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"threads": lambda: _threads(world)}


def _threads(world: World) -> Case:
    queue = world.queue(lanes=LANES)

    def fill() -> None:
        if queue.depth() < BACKLOG // 2:
            queue.send(orders(world.spark, BACKLOG))

    def work(until: float, done: list[int]) -> None:
        while time.perf_counter() < until:
            with world.manager.transaction() as tx:
                batch = queue.receive(COUNT, transaction=tx)
                aggregate(batch.df, len(batch))
            done.append(len(batch))

    def run(count: int) -> Callable[[], Parts]:
        return lambda: {"transaction": _per_transaction(work, count, world.quick)}

    return Case(
        "threads",
        f"receive {COUNT}, aggregate, commit: by threads of one process, on {LANES} lanes",
        {f"{n}": Side(f"{n} threads" if n > 1 else "1 thread", run(n), fill) for n in THREADS},
        [Comparison("1", f"{n}", at_least=True) for n in THREADS[1:]],
        rounds_max=5,
    )


def _per_transaction(work: Callable[[float, list[int]], Any], count: int, quick: bool) -> float:
    """Tell the time of a window over the number of transactions that ended in it.

    A thread ends its last transaction after the window; its share of the window is counted.
    """
    done: list[int] = []
    failed: list[BaseException] = []
    began = time.perf_counter()
    until = began + (1.0 if quick else SECONDS)

    def guarded() -> None:
        try:
            work(until, done)
        except BaseException as error:  # it is raised where the threads are waited for
            failed.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    if 0 in done:
        raise AssertionError("a transaction received nothing")
    return (time.perf_counter() - began) / len(done)
