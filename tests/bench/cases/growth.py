"""How costs grow: with what waits, with what has happened, with the number of queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side, steps
from tests.bench.cases.receiving import BATCHES, Backlog, drained
from tests.bench.floors import aggregate
from tests.bench.world import SCHEMA, World
from txnqueue import Queue, QueueManager

BACKLOGS = (10_000, 100_000, 1_000_000, 10_000_000)
HISTORIES = (100, 1_000)
"""Transactions that have happened, without any maintenance."""
QUEUES = (1, 10, 100)
COUNT = 1_000
THREADS = 8
BACKLOG_TARGET = 1.3
TARGET = 1.2
"""The largest beside the smallest."""
ROW = {"order_id": 1, "customer": "ada", "amount": 9.5}


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    return {
        "growth of backlog": lambda: _backlog(world),
        "growth of history": lambda: _history(world),
        "growth of queues": lambda: _queues(world),
        "maintain 100 queues": lambda: _maintain(world),
    }


def _backlog(world: World) -> Case:
    def side(size: int) -> Side:
        backlog = Backlog(world, size, beside=False)
        return Side(
            f"{size:,} waiting",
            lambda: drained(backlog.queue, COUNT),
            lambda: backlog.need(max(size // 2, BATCHES * COUNT)),
        )

    return _case(
        "growth of backlog",
        f"a drained batch of {COUNT:,} messages, by how many wait",
        {f"{size}": side(size) for size in BACKLOGS},
        BACKLOG_TARGET,
    )


def _history(world: World) -> Case:
    def side(size: int) -> Side:
        manager = QueueManager(world.spark, str(world.path("store")))
        queue = manager.create_queue("orders", SCHEMA, dead_letter=False, lanes=4)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda _: queue.send([ROW]), range(size)))
        return Side(f"after {size:,} transactions", partial(_transaction, manager, queue))

    return _case(
        "growth of history",
        "send one message, receive one and commit, by how many transactions were before",
        {f"{size}": side(size) for size in HISTORIES},
        TARGET,
    )


def _queues(world: World) -> Case:
    def side(size: int) -> Side:
        manager, queues = _store(world, size)
        return Side(
            f"beside {size - 1} other queues" if size > 1 else "one queue",
            partial(_transaction, manager, queues[-1]),
        )

    return _case(
        "growth of queues",
        "send one message, receive one and commit, by the queues of the store",
        {f"{size}": side(size) for size in QUEUES},
        TARGET,
    )


def _maintain(world: World) -> Case:
    manager, _ = _store(world, QUEUES[-1])
    manager.maintain()
    return Case(
        "maintain 100 queues",
        f"maintain a store of {QUEUES[-1]} queues when there is nothing to do",
        {"txnqueue": Side("maintain", steps(maintain=manager.maintain))},
        [],
        rounds_max=3,
        warms=False,
    )


def _case(name: str, title: str, sides: Mapping[str, Side], target: float) -> Case:
    smallest, *_, largest = sides
    return Case(name, title, sides, [Comparison(largest, smallest, target)], rounds_max=7)


def _store(world: World, size: int) -> tuple[QueueManager, Sequence[Queue]]:
    manager = QueueManager(world.spark, str(world.path("store")))
    names = [f"orders{number}" for number in range(size)]
    return manager, [manager.create_queue(name, SCHEMA, dead_letter=False) for name in names]


def _transaction(manager: QueueManager, queue: Queue) -> Parts:
    """Do the smallest useful transaction."""

    def consume() -> None:
        with manager.transaction() as tx:
            batch: Any = queue.receive(1, transaction=tx)
            aggregate(batch.df, 1)

    return steps(send=lambda: queue.send([ROW]), consume=consume)()
