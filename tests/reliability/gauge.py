"""How long operations take on a store that is old, against a new one, in one process.

The two stores take turns while nothing else works, so that the machine is the same for both. What
they are measured with leaves no message behind; a message of it that a kill left has a negative
number, and passes through like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from txnqueue import QueueManager

ROUNDS = 12
"""So many pairs are measured, after one that brings both to the newest state."""
MESSAGES = 100


class Gauge:
    """Two stores with the queues ``in`` and ``out``, and the ratios of their times."""

    def __init__(self, old: QueueManager, new: QueueManager) -> None:
        """Measure nothing yet."""
        self._stores = (old, new)
        self._numbers = itertools.count(1)

    def ratios(self) -> tuple[float, float]:
        """Return how many times as long as on the new store it takes on the old one.

        Returns:
            For a send, and for a transaction that receives, sends on and commits.
        """
        found: list[tuple[float, float]] = []
        for number in range(ROUNDS + 1):
            turn = self._stores if number % 2 else self._stores[::-1]
            times = {manager: self._times(manager) for manager in turn}
            (send, receive), (new_send, new_receive) = (times[one] for one in self._stores)
            found.append((send / new_send, receive / new_receive))
        sends, receives = zip(*found[1:], strict=True)
        return round(median(sends), 4), round(median(receives), 4)

    def _times(self, manager: QueueManager) -> tuple[float, float]:
        mine = [{"i": -next(self._numbers), "what": "measured"} for _ in range(MESSAGES)]
        send = _time(lambda: manager.run_transaction(lambda tx: tx.queue("in").send(mine)))
        receive = _time(lambda: manager.run_transaction(_pass_on))
        manager.run_transaction(lambda tx: tx.queue("out").receive(MESSAGES))
        return send, receive


def _pass_on(tx: Any) -> None:
    batch = tx.queue("in").receive(MESSAGES)
    rows = [{"i": row["i"], "what": row["what"]} for row in batch.messages()]
    assert len(rows) == MESSAGES, f"{len(rows)} messages of {MESSAGES} are there to be measured"
    tx.queue("out").send(rows)


def _time(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
