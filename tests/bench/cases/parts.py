"""Where the time of a step goes: to Spark's statements, by kind, or to the library itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.case import Case, Parts, Side, seconds
from tests.bench.cases.receiving import BATCHES, drained
from tests.bench.floors import aggregate, orders
from tests.bench.world import World
from tests.inside import client_of
from txnqueue import Queue, QueueManager

COUNT = 1_000
BACKLOG, BACKLOG_QUICK = 40_000, 6_000
KINDS = {"staging": "write of the rows", "append": "MERGE", "run": "questions to the store"}
"""What the library has Spark do, by the method that it is done by."""
MERGE = KINDS["append"]
BEGUN, MERGED = "MERGE: analysis, commit, checkpoint", "MERGE: reading and writing files"
"""Its parts: Delta's history tells how long it worked on files; the rest is around that."""
READ, REST = "read of the messages", "the library itself"
ALL = (KINDS["staging"], READ, BEGUN, MERGED, KINDS["run"], REST)


class Stopwatch:
    """What a manager waits for."""

    def __init__(self, manager: QueueManager) -> None:
        """Measure each statement from now on."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._merges = 0
        store: Any = client_of(manager).store
        self._spark, self._journal = store.spark, store.names.journal
        for method, kind in KINDS.items():
            setattr(store.statements, method, self._timed(kind, getattr(store.statements, method)))

    def _timed(self, kind: str, statement: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return statement(*given, **options)
            finally:
                self._spent[kind] += time.perf_counter() - began
                self._merges += kind == MERGE

        return timed

    def read(self, frame: Any) -> None:
        """Read messages as a user does."""
        self._spent[READ] += seconds(lambda: aggregate(frame, COUNT))

    def parts(self, step: Callable[[], object], times: int = 1) -> Parts:
        """Do something, and tell where its time went.

        Args:
            step: What is done.
            times: How often it does the same: the parts are those of one time.
        """
        self._spent.clear()
        self._merges = 0
        total, spent = seconds(step), dict(self._spent)
        rest = total - sum(spent.values())
        worked = self._worked_seconds(self._merges)
        found = {**spent, BEGUN: spent.get(MERGE, 0.0) - worked, MERGED: worked, REST: rest}
        return {name: max(found.get(name, 0.0), 0.0) / times for name in ALL}

    def _worked_seconds(self, merges: int) -> float:
        """Ask Delta's history how long the last MERGEs worked on files."""
        history = self._spark.sql(f"DESCRIBE HISTORY {self._journal} LIMIT {merges + 1}")
        found = history.where("operation = 'MERGE'").select("operationMetrics").collect()
        return sum(int(row[0]["executionTimeMs"]) for row in found[:merges]) / 1000


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"parts of steps": lambda: _case(world)}


def _case(world: World) -> Case:
    manager = QueueManager(world.spark, world.manager.root, actor="bench")
    watch, size = Stopwatch(manager), BACKLOG_QUICK if world.quick else BACKLOG
    frame = orders(world.spark, COUNT)
    sent, received, backlog = (manager.queue(world.queue().name) for _ in range(3))

    def need(queue: Queue, count: int) -> None:
        if queue.depth() < count:
            queue.send(orders(world.spark, size))

    def consume() -> None:
        with manager.transaction() as tx:
            batch: Any = received.receive(COUNT, transaction=tx)
            watch.read(batch.df)

    return Case(
        "parts of steps",
        f"where the time of a step goes, {COUNT:,} rows or messages each",
        {
            "send": Side("send", lambda: watch.parts(lambda: sent.send(frame))),
            "receive": Side(
                "receive, aggregate, commit",
                lambda: watch.parts(consume),
                lambda: need(received, COUNT),
            ),
            "drain": Side(
                "a drained batch",
                lambda: watch.parts(lambda: drained(backlog, COUNT, watch.read), BATCHES),
                lambda: need(backlog, BATCHES * COUNT),
            ),
        },
        [],
    )
