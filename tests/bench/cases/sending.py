"""Sending, beside raw appends of the same rows and one MERGE."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.bench.case import Case, Comparison, Side, steps
from tests.bench.floors import orders
from tests.bench.world import World

ALONE = {1: 1.2, 1_000: 1.15, 100_000: 1.15, 1_000_000: 1.2}
"""Rows of one send, and what its time may be beside the floor's."""
IN_BULK = 10_000_000
IN_BULK_QUICK = 100_000
IN_BULK_TARGET = 1.4
"""So many rows are sent in the full run, beside a raw append alone: a MERGE is little of it."""
TOGETHER = {2: 1.15, 5: 0.8}
"""Queues that one transaction sends 1,000 rows each to; raw appends go one after the other."""


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    alone = {f"send {n}": partial(_alone, world, n, target) for n, target in ALONE.items()}
    together = {
        f"send to {n} queues": partial(_together, world, n, target)
        for n, target in TOGETHER.items()
    }
    return {**alone, **together}


def full_makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case of the full run, and what prepares it."""
    return {f"bulk send {IN_BULK}": lambda: _in_bulk(world)}


def _in_bulk(world: World) -> Case:
    count = IN_BULK_QUICK if world.quick else IN_BULK
    queue, raw, frame = world.queue(), world.raw_table(), orders(world.spark, count)
    return Case(
        f"bulk send {IN_BULK}",
        f"send {count:,} rows, beside an append alone",
        {
            "txnqueue": Side("send", steps(send=lambda: queue.send(frame))),
            "floor": Side("raw append", steps(**{"raw append": lambda: raw.append(frame)})),
        },
        [Comparison(target=IN_BULK_TARGET)],
        rounds_max=5,
    )


def _alone(world: World, count: int, target: float) -> Case:
    queue, raw, numbers = world.queue(), world.raw_table(), itertools.count()
    frame = orders(world.spark, count)
    row = {"order_id": 1, "customer": "ada", "amount": 9.5}
    rows: Any = [row] if count == 1 else frame

    def append() -> None:
        if count == 1:
            raw.insert(next(numbers))
        else:
            raw.append(frame)

    return Case(
        f"send {count}",
        f"send {count:,} rows" if count > 1 else "send 1 row",
        {
            "txnqueue": Side("send", steps(send=lambda: queue.send(rows))),
            "floor": Side(
                "raw append + MERGE",
                steps(**{"raw append": append}, **world.merges(1)),
            ),
        },
        [Comparison(target=target)],
    )


def _together(world: World, count: int, target: float) -> Case:
    queues, tables = ([make() for _ in range(count)] for make in (world.queue, world.raw_table))
    frame = orders(world.spark, 1_000)

    def send() -> None:
        with world.manager.transaction() as tx:
            tx.send({queue.name: frame for queue in queues})

    def appends() -> dict[str, Callable[[], None]]:
        return {f"raw append {n + 1}": _append(table, frame) for n, table in enumerate(tables)}

    return Case(
        f"send to {count} queues",
        f"send 1,000 rows to each of {count} queues in one transaction",
        {
            "txnqueue": Side("send and commit", steps(transaction=send)),
            "floor": Side(
                f"{count} raw appends, one after the other, + MERGE",
                steps(**appends(), **world.merges(1)),
            ),
        },
        [Comparison(target=target)],
    )


def _append(table: Any, frame: Any) -> Callable[[], None]:
    return lambda: table.append(frame)
