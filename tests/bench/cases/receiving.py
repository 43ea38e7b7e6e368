"""Receiving and draining, beside raw reads of the same rows and MERGEs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side, seconds, steps
from tests.bench.floors import aggregate, orders
from tests.bench.world import World

RECEIVED = {(1_000, 40_000): 1.15, (1_000, 1_000_000): 1.1}
"""Messages of a receive and of the queue, and what its time may be beside the floor's."""
RECEIVED_IN_FULL = {(300_000, 3_000_000): 1.1}
READ = {(1_000, 40_000): 1.15, (100_000, 400_000): 1.15}
DRAINED = {(1_000, 40_000): 1.1, (100_000, 1_600_000): 1.1}
BATCHES = 4
"""Of one drain; the time is that from the end of the first to the end of the last."""


class Backlog:
    """The same rows in a queue and in a plain table, from which both are read in order."""

    def __init__(self, world: World, size: int, *, beside: bool = True) -> None:
        """Create both, empty.

        Args:
            world: Where they are.
            size: How many rows are sent whenever there are too few.
            beside: Whether the plain table gets rows at all.
        """
        self._spark, self._size, self._beside = world.spark, size, beside
        self.queue, self.raw = world.queue(), world.raw_table()
        self._sent = 0
        self._read = 0

    def need(self, count: int) -> None:
        """See to it that so many messages wait in the queue; it is full again when they do not."""
        if self.queue.depth() < count:
            self._more()

    def need_raw(self, count: int) -> None:
        """See to it that so many rows of the table were not read yet."""
        if self._read + count > self._sent:
            self._more()

    def read(self, count: int) -> None:
        """Read the next rows of the table."""
        self.raw.aggregate(self._read, count)
        self._read += count

    def _more(self) -> None:
        frame = orders(self._spark, self._size, self._sent)
        self.queue.send(frame)
        if self._beside:
            self.raw.append(frame)
        self._sent += self._size


def makers(world: World) -> dict[str, Callable[[], Case]]:
    """Name the cases of one receive and one commit, and what prepares them."""
    return {f"receive {n} of {m}": partial(_receive, world, n, m, t)
            for (n, m), t in RECEIVED.items()}  # fmt: skip


def full_makers(world: World) -> dict[str, Callable[[], Case]]:
    """Name those of the full run."""
    return {f"receive {n} of {m}": partial(_receive, world, n, m, t)
            for (n, m), t in RECEIVED_IN_FULL.items()}  # fmt: skip


def read_makers(world: World) -> dict[str, Callable[[], Case]]:
    """Name the cases of reading a batch."""
    return {f"batch.df {n}": partial(_read, world, n, m, t) for (n, m), t in READ.items()}


def drain_makers(world: World) -> dict[str, Callable[[], Case]]:
    """Name the cases of draining."""
    return {f"drain {n}": partial(_drain, world, n, m, t) for (n, m), t in DRAINED.items()}


def _receive(world: World, count: int, size: int, target: float) -> Case:
    backlog = Backlog(world, size)

    def run() -> Parts:
        tx = world.manager.transaction()
        taken: list[Any] = []
        return steps(
            receive=lambda: taken.append(backlog.queue.receive(count, transaction=tx)),
            aggregate=lambda: aggregate(taken[0].df, count),
            commit=tx.commit,
        )()

    return Case(
        f"receive {count} of {size}",
        f"receive {count:,} of {size:,} messages, aggregate them, commit",
        {
            "txnqueue": Side("receive, aggregate, commit", run, lambda: backlog.need(count)),
            "floor": Side(
                "raw read + 2 MERGEs",
                steps(**{"raw read": lambda: backlog.read(count)}, **world.merges(2)),
                lambda: backlog.need_raw(count),
            ),
        },
        [Comparison(target=target)],
    )


def _read(world: World, count: int, size: int, target: float) -> Case:
    backlog, tx = Backlog(world, size), world.manager.transaction

    def run() -> Parts:
        """Read a batch that is held, as a handler does."""
        with tx() as one:
            batch = backlog.queue.receive(count, transaction=one)
            return {"aggregate": seconds(lambda: aggregate(batch.df, count))}

    return Case(
        f"batch.df {count}",
        f"read {count:,} received messages of {size:,} by batch.df",
        {
            "txnqueue": Side("batch.df", run, lambda: backlog.need(count)),
            "floor": Side(
                "raw read",
                steps(**{"raw read": lambda: backlog.read(count)}),
                lambda: backlog.need_raw(count),
            ),
        },
        [Comparison(target=target)],
    )


def _drain(world: World, count: int, size: int, target: float) -> Case:
    backlog = Backlog(world, size)
    return Case(
        f"drain {count}",
        f"a batch of {count:,} messages of a drain of {size:,} whose handler aggregates them",
        {
            "txnqueue": Side(
                "a drained batch",
                lambda: drained(backlog.queue, count),
                lambda: backlog.need(BATCHES * count),
            ),
            "floor": Side(
                "raw read + MERGE",
                steps(**{"raw read": lambda: backlog.read(count)}, **world.merges(1)),
                lambda: backlog.need_raw(count),
            ),
        },
        [Comparison(target=target)],
    )


def drained(queue: Any, count: int, read: Callable[[Any], object] | None = None) -> Parts:
    """Drain some batches, and tell what one takes once the drain is under way.

    Args:
        queue: The queue.
        count: How many messages a batch has.
        read: Reads a batch's messages; if omitted, they are aggregated.
    """
    ends: list[float] = []
    reads = read or partial(aggregate, count=count)

    def handler(batch: Any, tx: Any) -> None:
        reads(batch.df)

    queue.drain(
        handler,
        batch_size=count,
        max_batches=BATCHES,
        on_batch=lambda number: ends.append(time.perf_counter()),
    )
    return {"batch": (ends[-1] - ends[0]) / (len(ends) - 1)}
