"""Queues that people write themselves on Delta tables, each as good as sixty lines can be.

They have the session settings of the library, and layouts that suit them: deletion vectors, and a
partition for each status. Their tables have the same columns and rows as the queue beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

LEASE_SECONDS = 10
"""After so long somebody else may take what a consumer has claimed and not acknowledged."""
Handler = Callable[[Any], None]


class Peer(Protocol):
    """A queue of orders."""

    def send(self, frame: Any) -> None:
        """Append messages."""

    def consume(self, count: int, handle: Handler) -> int:
        """Take the first messages, have them handled, and acknowledge them.

        Returns:
            How many there were.
        """


def retried(statement: Callable[[], int]) -> int:
    """Run a statement again while it loses against other commits.

    Delta's conflicts have no common class in Python, and some arrive wrapped; all say so.
    """
    while True:
        try:
            return statement()
        except Exception as error:
            if "DELTA_CONCURRENT_" not in str(error):
                raise
            time.sleep(0.05)


def create(session: Any, path: Path, more: str = "", clause: str = "") -> None:
    """Create a table of orders that can be changed cheaply, if it is not there."""
    session.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{path}` (order_id BIGINT, customer STRING, "
        f"amount DOUBLE{more}) USING delta {clause} "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    ).collect()


def append(frame: Any, path: Path) -> None:
    """Append rows to a table."""
    frame.write.format("delta").mode("append").save(str(path))
