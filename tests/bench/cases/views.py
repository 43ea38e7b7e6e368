"""The SQL view of a queue, beside scans of a plain table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.bench.case import Case, Comparison, Parts, Side, steps
from tests.bench.floors import aggregate, orders
from tests.bench.world import World

MESSAGES = 1_000_000
TARGET = 4.0


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    return {"view of 1000000": lambda: _large(world), "view of 3": lambda: _small(world)}


def _large(world: World) -> Case:
    queue, raw = world.queue(), world.raw_table()
    frame = orders(world.spark, MESSAGES)
    queue.send(frame)
    raw.append(frame)
    for _ in range(4):
        with world.manager.transaction() as tx:
            queue.receive(1_000, transaction=tx)
    create = world.manager.create_views
    return Case(
        "view of 1000000",
        "the SQL view of a queue of 1,000,000 messages, aggregated",
        {
            "txnqueue": Side("the view", _query(world, queue.name, MESSAGES), create),
            "floor": Side("raw scan", steps(scan=lambda: raw.aggregate(0, MESSAGES))),
        },
        [Comparison(target=TARGET)],
    )


def _small(world: World) -> Case:
    queue = world.queue()
    queue.send(orders(world.spark, 3))
    create = world.manager.create_views
    return Case(
        "view of 3",
        "the SQL view of a queue of three messages, aggregated",
        {
            "txnqueue": Side("the view", _query(world, queue.name, 3), create),
            "creation": Side("create_views, of all queues of the store", steps(create=create)),
        },
        [],
    )


def _query(world: World, name: str, count: int) -> Callable[[], Parts]:
    return steps(query=lambda: aggregate(world.spark.table(name), count))
