"""How long operations take on a store that is old, against a new one, in one process.

The two stores take turns while nothing else works, so that the machine is the same for both. What
they are measured with leaves no message behind; a message of it that a kill left has a negative
number, and passes through like any other.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from txnqueue import QueueManager

ROUNDS = 12
"""So many pairs are measured, after one that brings both to the newest state."""
MESSAGES = 100


class Gauge:
    """Two stores with the queues ``in`` and ``out``, and the ratio of their times."""

    def __init__(self, old: QueueManager, new: QueueManager) -> None:
        """Measure nothing yet."""
        self._stores = (old, new)
        self._numbers = itertools.count(1)

    def ratio(self) -> float:
        """Return how many times as long as on the new store the same work takes on the old one.

        Only whole rounds are compared: Delta writes a checkpoint with every tenth commit, and a
        round has five, so that it would always be the same operation that waits for one.
        """
        spent = dict.fromkeys(self._stores, 0.0)
        for number in range(ROUNDS + 1):
            for manager in self._stores if number % 2 else self._stores[::-1]:
                seconds = self._round(manager)
                spent[manager] += seconds if number else 0.0
        old, new = (spent[manager] for manager in self._stores)
        return round(old / new, 4)

    def _round(self, manager: QueueManager) -> float:
        """Send messages, pass them on, and take them out; return how long that took."""
        mine = [{"i": -next(self._numbers), "what": "measured"} for _ in range(MESSAGES)]
        began = time.perf_counter()
        manager.run_transaction(lambda tx: tx.queue("in").send(mine))
        manager.run_transaction(_pass_on)
        manager.run_transaction(lambda tx: tx.queue("out").receive(MESSAGES))
        return time.perf_counter() - began


def _pass_on(tx: Any) -> None:
    batch = tx.queue("in").receive(MESSAGES)
    rows = [{"i": row["i"], "what": row["what"]} for row in batch.messages()]
    assert len(rows) == MESSAGES, f"{len(rows)} messages of {MESSAGES} are there to be measured"
    tx.queue("out").send(rows)
