"""How costs grow: with what waits, is held or has happened, and with the number of queues."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.bench import stores
from tests.bench.case import Case, Comparison, Parts, Side, seconds, steps
from tests.bench.cases.receiving import BATCHES, Backlog, drained
from tests.bench.floors import aggregate, orders
from tests.bench.world import World
from txnqueue import Queue, QueueManager

DRAINED = (10_000, 100_000, 1_000_000, 10_000_000)
BACKLOGS = (1_000, 100_000, 10_000_000)
CLAIMS = (10, 1_000, 10_000)
QUEUES = (10, 100, 1_000)
DECISIONS = (1_000, 100_000, 10_000_000)
COMMITS, COMMITS_MAX = 100, 10_000
PREPARATION_SECONDS = 180.0
"""For so long a store is given a history; the other commits only remove files."""
MAINTAINED_QUEUES = 100
CYCLES = 40
"""Times that the foreground sends, receives and accepts while there is one maintenance."""
TRANSACTION_SECONDS = 15.0
"""What is older is maintained: longer than a step of the foreground takes beside it."""
QUICK: Mapping[str, tuple[int, ...]] = {
    "drain": (10_000, 20_000), "backlog": (1_000, 10_000), "claims": (10, 1_200),
    "queues": (2, 20), "decisions": (1_000, 10_000),
}  # fmt: skip
COUNT = 1_000
DRAIN_TARGET = 1.3
TARGET = 1.2
"""The largest beside the smallest."""
SHARE_TARGET = 1.05
ROW = {"order_id": 1, "customer": "ada", "amount": 9.5}


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    return {
        "growth of drain": lambda: _drain(world),
        "growth of backlog": lambda: _backlog(world),
        "growth of claims": lambda: _claims(world),
        "growth of history": lambda: _history(world),
        "growth of queues": lambda: _queues(world),
        "growth of decisions": lambda: _decisions(world),
    }


def maintenance_makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases of maintenance, and what prepares them."""
    return {
        "maintain 100 queues": lambda: _idle(world),
        "maintain beside": lambda: _beside(world),
    }


def _sizes(world: World, what: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return QUICK[what] if world.quick else sizes


def _drain(world: World) -> Case:
    def side(size: int) -> Side:
        backlog = Backlog(world, size, beside=False)
        return Side(
            f"{size:,} waiting",
            lambda: drained(backlog.queue, COUNT),
            lambda: backlog.need(max(size // 2, BATCHES * COUNT)),
        )

    return _case(
        "growth of drain",
        f"a drained batch of {COUNT:,} messages, by how many wait",
        {f"{size}": side(size) for size in _sizes(world, "drain", DRAINED)},
        DRAIN_TARGET,
    )


def _backlog(world: World) -> Case:
    def side(size: int) -> Side:
        queue = world.queue()
        queue.send(orders(world.spark, size))
        return _claim(f"{size:,} waiting", queue)

    return _case(
        "growth of backlog",
        "a claim of one message, by how many wait",
        {f"{size}": side(size) for size in _sizes(world, "backlog", BACKLOGS)},
    )


def _claims(world: World) -> Case:
    return _case(
        "growth of claims",
        "a claim of one message, by the unsettled claims of its lane",
        {
            f"{size}": _claim(f"beside {size:,} claims", stores.of_claims(world, size))
            for size in _sizes(world, "claims", CLAIMS)
        },
    )


def _history(world: World) -> Case:
    commits, most, time_max = COMMITS, COMMITS_MAX, PREPARATION_SECONDS
    if world.quick:
        commits, most, time_max = 6, 60, 2.0
    sides = {}
    for wanted, available in ((commits, float("inf")), (most, time_max)):
        manager, queue, found = stores.of_commits(world, wanted, available)
        title = f"after {wanted:,} Delta commits"
        if found < wanted:
            title += f" of one day, {found:,} of the library and others that remove files"
        sides[f"{wanted}"] = Side(title, partial(_transaction, manager, queue))
    return _case(
        "growth of history",
        "send one message, receive one and commit, by the Delta commits that were before, "
        f"with maintenance every {stores.MAINTAINED_EVERY}",
        sides,
    )


def _queues(world: World) -> Case:
    def side(size: int) -> Side:
        manager, queues = stores.of_queues(world, size)
        return Side(f"one of {size:,} queues", partial(_transaction, manager, queues[-1]))

    return _case(
        "growth of queues",
        "send one message, receive one and commit, by the queues of the store",
        {f"{size}": side(size) for size in _sizes(world, "queues", QUEUES)},
    )


def _decisions(world: World) -> Case:
    def side(size: int) -> Side:
        manager, queue = stores.of_decisions(world, size)
        numbers = itertools.count()
        return Side(
            f"beside {size:,} decisions", lambda: _fresh(manager, queue, f"fresh-{next(numbers)}")
        )

    return _case(
        "growth of decisions",
        "a transaction with an id of its own that sends one message, by the decisions of the "
        "archive, in which its id is looked for",
        {f"{size}": side(size) for size in _sizes(world, "decisions", DECISIONS)},
    )


def _idle(world: World) -> Case:
    queues = 3 if world.quick else MAINTAINED_QUEUES
    manager, _ = stores.of_queues(world, queues)
    manager.maintain()
    return Case(
        "maintain 100 queues",
        f"maintain a store of {queues} queues when there is nothing to do",
        {"txnqueue": Side("maintain", steps(maintain=manager.maintain))},
        [],
        rounds_max=3,
        warms=False,
    )


def _beside(world: World) -> Case:
    """Compare a stream with maintenance of what it left before, and the stream alone."""
    cycles = 2 if world.quick else CYCLES
    manager, (queue,) = stores.of_queues(world, 1)
    _stream(queue, cycles)

    def beside() -> Parts:
        with ThreadPoolExecutor(1) as thread:
            maintenance = thread.submit(_maintain, manager)
            taken = _stream(queue, cycles, lambda: not maintenance.done())
        maintenance.result()
        return taken

    return Case(
        "maintain beside",
        f"send, receive and accept one message: {cycles} times, while what as many left is "
        "maintained once",
        {
            "with": Side("with maintenance", beside),
            "without": Side("without", lambda: _stream(queue, cycles), lambda: _maintain(manager)),
        },
        [Comparison("with", "without", SHARE_TARGET)],
        rounds_max=3,
        warms=False,
    )


def _maintain(manager: QueueManager) -> None:
    manager.maintain(transaction_seconds_max=TRANSACTION_SECONDS, payload_retention_days=0)


def _stream(queue: Queue, cycles: int, goes_on: Callable[[], bool] = lambda: False) -> Parts:
    """Tell what a cycle takes, of so many, and of more as long as something goes on."""
    began, done = time.perf_counter(), 0
    while done < cycles or goes_on():
        queue.send([ROW])
        queue.receive(1).accept()
        done += 1
    return {"cycle": (time.perf_counter() - began) / done}


def _case(name: str, title: str, sides: Mapping[str, Side], target: float = TARGET) -> Case:
    smallest, *_, largest = sides
    return Case(name, title, sides, [Comparison(largest, smallest, target)], rounds_max=7)


def _claim(title: str, queue: Queue) -> Side:
    """Make a side that claims a message; what was claimed before is accepted outside of it."""
    held: list[Any] = []

    def settle() -> None:
        while held:
            held.pop().accept()
        queue.depth()

    def claim() -> None:
        held.append(queue.receive(1))

    def run() -> Parts:
        took = seconds(claim)
        if len(held[-1]) != 1:
            raise AssertionError("nothing was received")
        return {"claim": took}

    return Side(title, run, settle)


def _fresh(manager: QueueManager, queue: Queue, transaction_id: str) -> Parts:
    def transaction() -> None:
        with manager.transaction(transaction_id) as tx:
            if tx.already_committed:
                raise AssertionError("the id was decided before")
            queue.send([ROW], transaction=tx)

    return {"transaction": seconds(transaction)}


def _transaction(manager: QueueManager, queue: Queue) -> Parts:
    """Do the smallest useful transaction."""

    def consume() -> None:
        with manager.transaction() as tx:
            batch: Any = queue.receive(1, transaction=tx)
            aggregate(batch.df, 1)

    return steps(send=lambda: queue.send([ROW]), consume=consume)()
