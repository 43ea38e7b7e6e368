"""Deciding a transaction that did nothing else: a MERGE, and a question to its own snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.bench.case import Case, Comparison, Side, steps
from tests.bench.world import World


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"decide": partial(_decide, world)}


def _decide(world: World) -> Case:
    def commit() -> None:
        with world.manager.transaction():
            pass

    def guarded() -> None:
        world.journal.merge_if_new()

    return Case(
        "decide",
        "commit a transaction without messages",
        {
            "txnqueue": Side("commit", steps(commit=commit)),
            "guarded": Side("MERGE with a guard", steps(MERGE=guarded)),
            "floor": Side("MERGE", steps(**world.merges(1))),
        },
        [Comparison(), Comparison(below="guarded"), Comparison(above="guarded")],
    )
