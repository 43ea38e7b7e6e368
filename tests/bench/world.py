"""What the cases work on: a session, a store that has a past, and the floors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.floors import COLUMNS, VERSIONS, Journal, RawTable, orders
from txnqueue import Queue, QueueManager

SCHEMA = "order_id long, customer string, amount double"
WARM_ROUNDS = 30
"""Of send, receive and accept: about a hundred commits of the journal, and a warm JVM."""


class World:
    """One store for all cases, as a user has one."""

    manager: QueueManager
    journal: Journal
    calibrated: RawTable

    def __init__(self, spark: Any, folder: Path, *, quick: bool = False) -> None:
        """Name where everything goes; nothing is done yet."""
        self.spark, self.folder, self.quick = spark, folder, quick
        self._numbers = itertools.count()

    def prepare(self) -> None:
        """Create the store and the floors."""
        self.manager = QueueManager(self.spark, str(self.folder / "store"), actor="bench")
        versions = 1 if self.quick else VERSIONS
        self._template = Journal.make(self.spark, self.folder / "floor", versions)
        self.journal = self._template.copy(self.path("journal"))
        self.calibrated = self.raw_table()

    def warm(self) -> None:
        """Do everything often enough for Java to have compiled it, and give the store a past."""
        queue = self.queue(lanes=4)
        for number in range(1 if self.quick else WARM_ROUNDS):
            queue.send([{"order_id": number, "customer": "ada", "amount": 9.5}])
            queue.receive().accept()
            self.journal.merge()
            self.calibrate()

    def begin_group(self) -> None:
        """Let the next group find the MERGE's table as the ones before did."""
        self.journal = self._template.copy(self.path("journal"))
        self.journal.merge()

    def merges(self, count: int) -> dict[str, Callable[[], None]]:
        """Name so many MERGEs as steps of a floor."""
        return {f"MERGE {n + 1}" if count > 1 else "MERGE": self._merge for n in range(count)}

    def _merge(self) -> None:
        self.journal.merge()

    def calibrate(self) -> None:
        """Append the same thousand rows as ever."""
        self.calibrated.append(orders(self.spark, 1_000))

    def path(self, what: str) -> Path:
        """Name a folder that is not there yet."""
        return self.folder / f"{what}-{next(self._numbers)}"

    def queue(self, lanes: int = 1, schema: str = SCHEMA) -> Queue:
        """Create a queue for a case."""
        name = f"q{next(self._numbers)}"
        return self.manager.create_queue(name, schema, lanes=lanes, dead_letter=False)

    def raw_table(self, columns: str = COLUMNS) -> RawTable:
        """Create a plain table for a case."""
        return RawTable(self.spark, self.path("raw"), columns)
