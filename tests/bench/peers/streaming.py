"""Structured Streaming from a Delta table: one consumer, the owner of the checkpoint.

``ForeachBatch`` has a handler write with ``txnAppId`` and ``txnVersion``, so that Delta leaves out
what it has written already; ``Sink`` is Delta's own sink. A batch is one file of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.peers import append, create


class Streamed:
    """A table that is read as a stream."""

    def __init__(self, session: Any, path: Path) -> None:
        self._session, self._path = session, path
        create(session, path)

    def send(self, frame: Any) -> None:
        append(frame.coalesce(1), self._path)

    def _query(self) -> Any:
        stream = self._session.readStream.format("delta").option("maxFilesPerTrigger", 1)
        checkpoint = str(self._path) + "-checkpoint"
        writer = stream.load(str(self._path)).writeStream.option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True)

    @staticmethod
    def _seconds(query: Any) -> float:
        """Wait for the end, and tell what a batch took once the stream was under way."""
        query.awaitTermination()
        took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress]
        return float(median(took[1:] or took or [0])) / 1_000


class ForeachBatch(Streamed):
    """A handler for each batch."""

    def run(self, handle: Callable[[Any, int], None]) -> float:
        return self._seconds(self._query().foreachBatch(handle).start())


class Sink(Streamed):
    """Delta to Delta."""

    def run(self, out: Path) -> float:
        return self._seconds(self._query().format("delta").start(str(out)))
