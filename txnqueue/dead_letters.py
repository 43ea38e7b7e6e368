"""Which dead letters there are: where they came from, and why."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from txnqueue import ranges
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.errors import QueueNotFound
from txnqueue.framing import frame_of
from txnqueue.ledger import Position, QueueFold
from txnqueue.types import DeadLetterCount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = "queue reason waiting in_flight oldest_at newest_at error"


class DeadLetters:
    """The dead letters of a queue at one moment, by where they came from and why."""

    def __init__(self, client: Client, info: QueueInfo) -> None:
        """Count them; users get this from ``queue.dead_letters``."""
        self._client = client
        client.open()
        self._rows = _counted(client, info)

    def rows(self) -> list[DeadLetterCount]:
        """List one dict per origin and reason, the most frequent first: columns as in ``df``."""
        return [row.copy() for row in self._rows]

    def df(self) -> DataFrame:
        """Show one row per origin and reason.

        Columns: queue (where they came from), reason string, waiting, in_flight long,
        oldest_at, newest_at timestamp (when they came here), error string (what the last
        delivery of the newest one failed with, if anything).
        """
        return frame_of(self._client, self.rows(), _COLUMNS)

    def __len__(self) -> int:
        """Count the dead letters."""
        return sum(row["waiting"] + row["in_flight"] for row in self._rows)

    def __repr__(self) -> str:
        """Say how many there are."""
        return f"<DeadLetters: {len(self)} for {len(self._rows)} reasons>"


def _counted(client: Client, info: QueueInfo) -> list[DeadLetterCount]:
    """Count the dead letters of a queue; of a dead-letter queue, all that came into it."""
    here = info
    if info.dead_letter_id is not None:
        known = {one.queue_id: one for one in client.queues().values()}
        if info.dead_letter_id not in known:
            raise QueueNotFound(
                f"The queue {info.name!r} was dropped, and its dead letters with it.",
                name=info.name,
            )
        here = known[info.dead_letter_id]
    mine = {info.queue_id, info.in_memory().queue_id}
    standing: list[tuple[Literal["waiting", "in_flight"], Position, int]] = []
    for part in client.parts_of(here):
        side = client.of(part)
        with side.lock:
            standing += _standing(side.fold(part))
    found: dict[tuple[str, str | None], DeadLetterCount] = {}
    for what, position, count in standing:
        origin = position.origin
        if origin is None or (here is not info and origin.get("queue_id") not in mine):
            continue
        at = datetime.datetime.fromtimestamp(position.posted_at_ms / 1000, datetime.timezone.utc)
        queue, reason = origin["queue"], origin["reason"]
        fresh: DeadLetterCount = {
            "queue": queue,
            "reason": reason,
            "waiting": 0,
            "in_flight": 0,
            "oldest_at": at,
            "newest_at": at,
            "error": None,
        }
        row = found.setdefault((queue, reason), fresh)
        row[what] += count
        row["oldest_at"] = min(row["oldest_at"], at)
        row["newest_at"] = max(row["newest_at"], at)
        if at == row["newest_at"]:
            row["error"] = origin.get("error") or row["error"]
    return sorted(
        found.values(), key=lambda row: (-row["waiting"] - row["in_flight"], str(row["reason"]))
    )


def _standing(fold: QueueFold) -> Iterator[tuple[Literal["waiting", "in_flight"], Position, int]]:
    for lane in fold.lanes.values():
        for segment in lane.available:
            yield "waiting", segment.position, segment.size
        for claim in lane.claims.values():
            for position_id, part in claim.items.items():
                yield "in_flight", fold.positions[position_id], ranges.count(part)
