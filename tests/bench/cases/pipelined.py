"""A drain that commits behind the next handler, beside its handler alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side, seconds
from tests.bench.cases.receiving import Backlog
from tests.bench.world import World

SIZE = 1_000
"""The messages of a batch."""
BACKLOG = 40_000
BATCHES = 7
STEADY = 2
"""So many batches begin before anything is committed behind a handler."""
TARGETS = {"waits": 1.25, "computes": 1.6}
"""What a batch may take beside its handler, which waits or keeps all cores busy as long as one
commit takes."""
TASKS = 16
PROBE = 20_000_000


def makers(world: World) -> dict[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    return {
        f"drain ahead, {what}": partial(_ahead, world, what, target)
        for what, target in TARGETS.items()
    }


def _ahead(world: World, what: str, target: float) -> Case:
    backlog = Backlog(world, BACKLOG, beside=False)
    backlog.need(BACKLOG)
    commit = median(period(backlog.queue, lambda: None)["batch"] for _ in range(3))
    handler = partial(time.sleep, commit) if what == "waits" else _computing(world, commit)
    sides = {
        name: Side(
            f"a drained batch, ahead={ahead}",
            partial(period, backlog.queue, handler, ahead=ahead),
            lambda: backlog.need(BATCHES * SIZE),
        )
        for name, ahead in (("txnqueue", 1), ("after", 0))
    }
    sides["floor"] = Side("its handler", lambda: {"handler": seconds(handler)})
    return Case(
        f"drain ahead, {what}",
        f"a drained batch of {SIZE:,} messages whose handler {what} as long as a commit takes",
        sides,
        [Comparison(target=target), Comparison(above="after")],
        rounds_max=5,
    )


def _computing(world: World, wanted: float) -> Callable[[], object]:
    """Make what keeps all cores busy for a time, in tasks that are short."""

    def compute(count: int) -> None:
        frame = world.spark.range(0, count, 1, TASKS)
        frame.selectExpr("sum(hash(id, id + 1) % 7)").collect()

    compute(PROBE)
    rate = PROBE / median(seconds(lambda: compute(PROBE)) for _ in range(3))
    return partial(compute, round(rate * wanted))


def period(queue: Any, work: Callable[[], object], *, ahead: int = 0) -> Parts:
    """Drain some batches, and tell what one takes from handler to handler."""
    begun: list[float] = []

    def handler(batch: Any, tx: Any) -> None:
        begun.append(time.perf_counter())
        work()

    queue.drain(handler, batch_size=SIZE, max_batches=BATCHES, ahead=ahead)
    steady = begun[STEADY:]
    return {"batch": (steady[-1] - steady[0]) / (len(steady) - 1)}
