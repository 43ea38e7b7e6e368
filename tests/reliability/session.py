"""What a long run works with: a Spark session, if it needs one, and folders."""

from __future__ import annotations

import copy
import itertools
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.conftest import COLLECTS_ALONE, INTERPRETED, REMEMBERS_LITTLE

SHOWS_GROWTH = "-Xms3g -XX:+AlwaysPreTouch -XX:NativeMemoryTracking=summary"
"""The heap has its full size from the start: what a Java's memory grows by lies outside of it, and
Java keeps an account of it."""


class Session:
    """Starts what is needed when it is needed; ``close`` ends it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._numbers = itertools.count()
        self._temporary = tempfile.TemporaryDirectory(prefix="txnqueue-reliability-")
        self.kept: dict[str, Any] = {}
        self._others: list[Session] = []
        self._started: list[Any] = []
        self._starting = threading.Lock()

    @property
    def spark(self) -> Any:
        """A session as the tests have one, but its Java compiles when it would for users."""
        with self._starting:
            if not self._started:
                self._started.append(self._new_spark())
            return self._started[0]

    def _new_spark(self) -> Any:
        from txnqueue.platform.local_spark import local_spark

        return local_spark(
            "txnqueue reliability",
            memory="3g",
            settings={
                "spark.driver.extraJavaOptions": f"{COLLECTS_ALONE} {SHOWS_GROWTH}",
                "spark.sql.warehouse.dir": str(self.folder()),
                "spark.sql.shuffle.partitions": "2",
                **REMEMBERS_LITTLE,
                **INTERPRETED,
                "spark.databricks.delta.snapshotPartitions": "2",
            },
        )

    def beside(self) -> Session:
        """Make one for another thread: it keeps things of its own, and shares all else."""
        made = copy.copy(self)
        made.kept = {}
        self._others.append(made)
        return made

    def folder(self) -> Path:
        """Make a new folder."""
        path = Path(self._temporary.name) / str(next(self._numbers))
        path.mkdir()
        return path

    def close(self) -> None:
        """End what was started."""
        for session in (self, *self._others):
            for one in session.kept.values():
                if hasattr(one, "close"):
                    one.close()
        for spark in self._started:
            spark.stop()
        self._temporary.cleanup()
