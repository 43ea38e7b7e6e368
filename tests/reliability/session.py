"""What a long run works with: a Spark session, if it needs one, and folders."""

from __future__ import annotations

import itertools
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.conftest import INTERPRETED, OPTIMIZES_LATE, REMEMBERS_LITTLE


class Session:
    """Starts what is needed when it is needed; ``close`` ends it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._numbers = itertools.count()
        self._temporary = tempfile.TemporaryDirectory(prefix="txnqueue-reliability-")
        self.kept: dict[str, Any] = {}

    @cached_property
    def spark(self) -> Any:
        """A session as the tests have one."""
        from txnqueue.platform.local_spark import local_spark

        return local_spark(
            "txnqueue reliability",
            memory="3g",
            settings={
                "spark.driver.extraJavaOptions": OPTIMIZES_LATE,
                "spark.sql.warehouse.dir": str(self.folder()),
                "spark.sql.shuffle.partitions": "2",
                **REMEMBERS_LITTLE,
                **INTERPRETED,
                "spark.databricks.delta.snapshotPartitions": "2",
            },
        )

    def folder(self) -> Path:
        """Make a new folder."""
        path = Path(self._temporary.name) / str(next(self._numbers))
        path.mkdir()
        return path

    def close(self) -> None:
        """End what was started."""
        for one in self.kept.values():
            if hasattr(one, "close"):
                one.close()
        if "spark" in self.__dict__:
            self.spark.stop()
        self._temporary.cleanup()
