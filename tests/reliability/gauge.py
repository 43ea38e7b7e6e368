"""What operations cost on a store that is old, against a new one, in one process.

The two stores take turns while nothing else works, so that the machine is the same for both. What
they are measured with leaves no message behind; a message of it that a kill left has a negative
number, and passes through like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from txnqueue import QueueManager

ROUNDS = 12
"""So many pairs are measured, after one that brings both to the newest state."""
MESSAGES = 100


@dataclass(frozen=True)
class Cost:
    """What work has cost, or how many times as much as other work.

    Attributes:
        seconds: How long it took.
        processor: The time of processors, in seconds.
        read: What was read from files and other processes, in bytes.
        written: What was written to them, in bytes.
    """

    seconds: float = 0.0
    processor: float = 0.0
    read: float = 0.0
    written: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Add what other work has cost."""
        return Cost(*(mine + its for mine, its in zip(self._all, other._all, strict=True)))

    def __sub__(self, other: Cost) -> Cost:
        """Return what was spent since the other count."""
        return Cost(*(mine - its for mine, its in zip(self._all, other._all, strict=True)))

    def times(self, other: Cost) -> Cost:
        """Return how many times as much as other work it has cost; what that did not is 0."""
        return Cost(
            *(
                round(mine / its, 4) if its else 0.0
                for mine, its in zip(self._all, other._all, strict=True)
            )
        )

    @property
    def _all(self) -> tuple[float, ...]:
        return self.seconds, self.processor, self.read, self.written


def spent(processes: Sequence[psutil.Process]) -> Cost:
    """Count what some processes have cost so far."""
    cost = Cost(seconds=time.perf_counter())
    for one in processes:
        times, moved = one.cpu_times(), one.io_counters()
        cost += Cost(0.0, times.user + times.system, moved.read_chars, moved.write_chars)
    return cost


class Gauge:
    """Two stores with the queues ``in`` and ``out``, and the ratio of what they cost."""

    def __init__(
        self, old: QueueManager, new: QueueManager, processes: Sequence[psutil.Process]
    ) -> None:
        """Measure nothing yet; both stores are worked on by these processes."""
        self._stores = (old, new)
        self._processes = processes
        self._numbers = itertools.count(1)

    def ratio(self) -> Cost:
        """Return how many times as much as on the new store the same work costs on the old one.

        Only whole rounds are compared: Delta writes a checkpoint with every tenth commit, and a
        round has five, so that it would always be the same operation that waits for one.
        """
        costs = dict.fromkeys(self._stores, Cost())
        for number in range(ROUNDS + 1):
            for manager in self._stores if number % 2 else self._stores[::-1]:
                cost = self._round(manager)
                costs[manager] += cost if number else Cost()
        old, new = (costs[manager] for manager in self._stores)
        return old.times(new)

    def _round(self, manager: QueueManager) -> Cost:
        """Send messages, pass them on, and take them out; return what that cost."""
        mine = [{"i": -next(self._numbers), "what": "measured"} for _ in range(MESSAGES)]
        before = spent(self._processes)
        manager.run_transaction(lambda tx: tx.queue("in").send(mine))
        manager.run_transaction(_pass_on)
        manager.run_transaction(lambda tx: tx.queue("out").receive(MESSAGES))
        return spent(self._processes) - before


def _pass_on(tx: Any) -> None:
    batch = tx.queue("in").receive(MESSAGES)
    rows = [{"i": row["i"], "what": row["what"]} for row in batch.messages()]
    assert len(rows) == MESSAGES, f"{len(rows)} messages of {MESSAGES} are there to be measured"
    tx.queue("out").send(rows)
