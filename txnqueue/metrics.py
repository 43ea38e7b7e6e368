"""What a store's queues look like now, in numbers: for dashboards and alarms.

The numbers come from the folds that receiving works with, so that asking often is cheap:
what was appended since is read, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.framing import frame_of
from txnqueue.ledger import QueueFold, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAUGES = {
    "length": "Messages that wait or are in flight.",
    "visible": "Messages that can be received now.",
    "in_flight": "Messages that are received and not settled.",
    "purge_pending": "Messages in flight that were purged: they go instead of coming back.",
    "delayed": "Messages whose time has not come.",
    "expired": "Messages whose time to live is over and that are still to be taken out.",
    "redelivered": "Waiting messages that were delivered before.",
    "dead": "Messages that wait in the dead-letter queue.",
    "duplicates": "Messages that were found to be duplicates, and not delivered.",
    "oldest_age_seconds": "The age of the oldest visible message.",
    "newest_age_seconds": "The age of the newest visible message.",
    "conflicts": "Appends of this client on the queue that lost a race.",
}
"""What is measured of each queue; all are whole numbers but the ages, which may be null."""
_JOINED: Mapping[str, Callable[[list[Any]], Any]] = {
    "oldest_age_seconds": max,
    "newest_age_seconds": min,
}
"""How numbers of the parts of a queue are put together that are not added up."""


class Metrics:
    """The numbers of all queues at one moment."""

    def __init__(self, client: Client) -> None:
        """Measure; users get this from ``manager.metrics``."""
        self._client = client
        client.open()
        infos, now_ms = client.queues(), client.runtime.now_ms()
        with client.lock:
            folds = client.folds(infos.values())
            parts = {fold.queue_id: [_measured(fold, now_ms)] for fold in folds}
        memory = client.transient
        for info in infos.values():
            for part in client.parts_of(info)[1:]:
                with memory.lock:
                    parts[info.queue_id].append(_measured(memory.fold(part), now_ms))
        queues = {queue_id: _together(found) for queue_id, found in parts.items()}
        self._rows = [_row(client, info, queues) for info in infos.values()]

    def rows(self) -> list[dict[str, Any]]:
        """List one dict per queue: ``queue`` and what ``GAUGES`` names."""
        return [dict(row) for row in self._rows]

    def df(self) -> DataFrame:
        """Show one row per queue: queue string, and what ``GAUGES`` names, as longs.

        The ages are doubles, and null where nothing is visible.
        """
        return frame_of(self._client, self.rows(), " ".join(["queue", *GAUGES]))

    def json(self) -> str:
        """Write the rows as JSON."""
        return json.dumps(self._rows)

    def prometheus(self) -> str:
        """Write the rows in Prometheus' text format, one gauge per number.

        Example::

            # HELP txnqueue_visible Messages that can be received now.
            # TYPE txnqueue_visible gauge
            txnqueue_visible{queue="orders"} 42
        """
        return "".join(_gauge(name, about, self._rows) for name, about in GAUGES.items())

    def __repr__(self) -> str:
        """Show the rows."""
        return f"<Metrics of {len(self._rows)} queues>"


def _measured(fold: QueueFold, now_ms: int) -> dict[str, Any]:
    """Measure one part of a queue."""
    standing = [segment for lane in fold.lanes.values() for segment in lane.available]
    in_flight = fold.in_flight()
    visible = [segment for segment in standing if segment.position.receivable(now_ms)]
    expired = [segment for segment in standing if segment.position.expired(now_ms)]
    ages = [(now_ms - segment.position.posted_at_ms) / 1000 for segment in visible]
    return {
        "length": _count(standing) + in_flight,
        "visible": _count(visible),
        "in_flight": in_flight,
        "purge_pending": fold.purge_pending(),
        "delayed": _count(standing) - _count(visible) - _count(expired),
        "expired": _count(expired),
        "redelivered": _count(s for s in standing if s.delivery_count),
        "duplicates": fold.left_out,
        "oldest_age_seconds": max(ages, default=None),
        "newest_age_seconds": min(ages, default=None),
    }


def _together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the numbers of a queue's parts together."""
    whole: dict[str, Any] = {}
    for name in parts[0]:
        found = [part[name] for part in parts if part[name] is not None]
        whole[name] = _JOINED.get(name, sum)(found) if found else None
    return whole


def _row(
    client: Client, info: QueueInfo, queues: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    dead = queues.get(info.dead_letter_id or "", {"visible": 0})
    numbers = queues[info.queue_id]
    there = {"dead": dead["visible"], "conflicts": client.conflicts.get(info.name, 0)}
    return {"queue": info.name, **{name: {**numbers, **there}[name] for name in GAUGES}}


def _count(segments: Iterable[Segment]) -> int:
    return sum(segment.size for segment in segments)


def _gauge(name: str, about: str, rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [f"# HELP txnqueue_{name} {about}", f"# TYPE txnqueue_{name} gauge"]
    # A queue's name has no character that would need escaping.
    lines += [
        f'txnqueue_{name}{{queue="{row["queue"]}"}} {row[name]:g}'
        for row in rows
        if row[name] is not None
    ]
    return "\n".join(lines) + "\n"
