"""One append to the journal: beside a MERGE, and beside one that asks its own snapshot first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.bench.case import Case, Comparison, Side, steps
from tests.bench.floors import orders
from tests.bench.world import World

WAITING = 100_000


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"claim": partial(_claim, world)}


def _claim(world: World) -> Case:
    queue = world.queue()
    queue.send(orders(world.spark, WAITING))

    def claim() -> None:
        if len(queue.receive(1)) != 1:
            raise AssertionError("nothing was received")

    def guarded() -> None:
        world.journal.merge_if_new()

    return Case(
        "claim",
        "receive one message, and read nothing of it",
        {
            "txnqueue": Side("claim", steps(claim=claim)),
            "guarded": Side("MERGE with a guard", steps(MERGE=guarded)),
            "floor": Side("MERGE", steps(**world.merges(1))),
        },
        [Comparison(), Comparison(below="guarded"), Comparison(above="guarded")],
    )
