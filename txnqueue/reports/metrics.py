"""The current state of a store's queues in numbers: depth, ages, and dead letters by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txnqueue.client.client import Client
from txnqueue.core import markup
from txnqueue.core.redelivery import AT_ONCE
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, Segment, catalog
from txnqueue.errors import QueueNotFound
from txnqueue.reports.causes import Standing, counted, standing
from txnqueue.reports.report import Report
from txnqueue.types import DeadLetterCount, QueueMetrics

GAUGES = {
    "messages": "Messages in the queue: available, delayed, expired or in flight.",
    "available": "Messages that can be received now.",
    "in_flight": "Messages that are received and not settled.",
    "purge_pending": "Messages in flight that were purged: they go instead of coming back.",
    "delayed": "Messages whose time has not come, or that wait because their delivery failed.",
    "expired": "Messages whose time to live is over and that are still to be taken out.",
    "redelivered": "Waiting messages that had a failed delivery.",
    "dead": "Messages that wait in the dead-letter queue.",
    "duplicates": "Messages that were found to be duplicates, and not delivered.",
    "oldest_age_seconds": "The age of the oldest available message.",
    "newest_age_seconds": "The age of the newest available message.",
    "conflicts": "Appends of this client on the queue that lost a race.",
}
"""The measurements of each queue: whole numbers, except the ages, which may be null."""


class Metrics(Report[QueueMetrics]):
    """The measurements of all queues at one moment: ``queue``, and a column for each gauge."""

    def __init__(self, client: Client) -> None:
        """Measure the queues; users get this from ``manager.metrics``."""
        client.open()
        infos, now_ms = client.cache.queues(), client.runtime.now_ms()
        with client.lock:
            folds = client.states.folds(infos.values())
            each = zip(infos.values(), folds, strict=True)
            parts = {info.queue_id: [_measured(info, fold, now_ms)] for info, fold in each}
        for info in infos.values():
            for part in client.parts_of(info)[1:]:
                with part.state() as state:
                    parts[info.queue_id].append(_measured(info, state, now_ms))
        self._measured = [_row(client, info, parts) for info in infos.values()]
        columns = " ".join(["queue", *GAUGES])
        super().__init__(
            client, lambda: [row.copy() for row in self._measured], columns, is_short=True
        )

    def prometheus(self) -> str:
        """Write the rows in Prometheus' text format, one gauge per number.

        Example::

            # HELP txnqueue_available Messages that can be received now.
            # TYPE txnqueue_available gauge
            txnqueue_available{queue="orders"} 42
        """
        return "".join(_gauge(name, about, self._measured) for name, about in GAUGES.items())

    def __repr__(self) -> str:
        """Show the number of queues."""
        return f"<Metrics of {len(self._measured)} queues>"


@dataclass(slots=True)
class _Part:
    """The numbers of one part of a queue; ``at_once`` ignores the delays after failures."""

    messages: int
    available: int
    in_flight: int
    purge_pending: int
    expired: int
    redelivered: int
    duplicates: int
    at_once: int
    ages: list[float]


def _measured(info: QueueInfo, fold: QueueState, now_ms: int) -> _Part:
    """Measure one part of a queue."""
    waiting = [segment for lane in fold.lanes.values() for segment in lane.available]
    available = [segment for segment in waiting if segment.receivable(now_ms, info.redelivery)]
    in_flight = fold.in_flight()
    return _Part(
        messages=_count(waiting) + in_flight,
        available=_count(available),
        in_flight=in_flight,
        purge_pending=fold.purge_pending(),
        expired=_count(segment for segment in waiting if segment.position.expired(now_ms)),
        redelivered=_count(segment for segment in waiting if segment.delivery_count),
        duplicates=fold.left_out,
        at_once=fold.available(now_ms, AT_ONCE),
        ages=[max(0, now_ms - one.position.posted_at_ms) / 1000 for one in available],
    )


def _row(client: Client, info: QueueInfo, parts: Mapping[str, Sequence[_Part]]) -> QueueMetrics:
    """Add up the numbers of a queue's parts."""
    mine = parts[info.queue_id]
    messages = sum(p.messages for p in mine)
    available = sum(p.available for p in mine)
    in_flight, expired = sum(p.in_flight for p in mine), sum(p.expired for p in mine)
    ages = [age for part in mine for age in part.ages]
    return {
        "queue": info.name,
        "messages": messages,
        "available": available,
        "in_flight": in_flight,
        "purge_pending": sum(p.purge_pending for p in mine),
        "delayed": messages - in_flight - available - expired,
        "expired": expired,
        "redelivered": sum(p.redelivered for p in mine),
        "dead": sum(p.at_once for p in parts.get(info.dead_letter_id or "", ())),
        "duplicates": sum(p.duplicates for p in mine),
        "oldest_age_seconds": max(ages, default=None),
        "newest_age_seconds": min(ages, default=None),
        "conflicts": client.conflicts.get(info.name, 0),
    }


def _count(segments: Iterable[Segment]) -> int:
    return sum(segment.size for segment in segments)


def _gauge(name: str, about: str, rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [f"# HELP txnqueue_{name} {about}", f"# TYPE txnqueue_{name} gauge"]
    # A queue's name has no character that would need escaping; repr keeps all digits of a number.
    lines += [
        f'txnqueue_{name}{{queue="{row["queue"]}"}} {row[name]!r}'
        for row in rows
        if row[name] is not None
    ]
    return "\n".join(lines) + "\n"


_COLUMNS = "queue reason waiting in_flight oldest_at newest_at error"


class DeadLetters(Report[DeadLetterCount]):
    """The dead letters of a queue at one moment, by origin and reason.

    Columns: queue (where they came from), reason string, waiting, in_flight long, oldest_at,
    newest_at timestamp (when they came into the dead-letter queue), error string (the error of
    the newest one's last delivery, if any). The most frequent come first.
    """

    def __init__(self, client: Client, info: QueueInfo) -> None:
        """Count the dead letters; users get this from ``queue.dead_letters``."""
        client.open()
        self._counted = _counted(client, info)
        super().__init__(
            client, lambda: [row.copy() for row in self._counted], _COLUMNS, is_short=True
        )

    def __len__(self) -> int:
        """Count the dead letters."""
        return sum(row["waiting"] + row["in_flight"] for row in self._counted)

    def __repr__(self) -> str:
        """Show the number of dead letters and of reasons."""
        return f"<DeadLetters: {len(self)} for {len(self._counted)} reasons>"


def _counted(client: Client, info: QueueInfo) -> list[DeadLetterCount]:
    """Count the dead letters of a queue, or all messages of a dead-letter queue, by cause."""
    here = info
    if info.dead_letter_id is not None:
        known = {one.queue_id: one for one in client.cache.queues().values()}
        if info.dead_letter_id not in known:
            raise QueueNotFound(
                f"The queue {info.name!r} was dropped together with its dead letters: "
                "manager.list_queues() names the existing queues.",
                name=info.name,
            )
        here = known[info.dead_letter_id]
    mine = None if here is info else {info.queue_id, info.in_memory().queue_id}
    found: list[Standing] = []
    for part in client.parts_of(here):
        with part.state() as state:
            found += standing(state)
    return [cause.row for cause in counted(found, mine)]


def queues_shown(client: Client) -> str:
    """Return the queues and their counts as HTML; reads what ``Metrics`` reads."""
    columns = ("queue", "available", "in_flight", "delayed", "dead", "oldest_age_seconds")
    return markup.records(f"Queues of {client.store.root}", Metrics(client).rows(), columns)


def queue_shown(client: Client, info: QueueInfo, available: int, in_flight: int) -> str:
    """Return depth, dead letters and columns of a queue as HTML; no payload is read."""
    dead = len(DeadLetters(client, info)) if info.dead_letter_id is not None else "none are kept"
    state = [
        *(("available", available), ("in flight", in_flight)),
        *(("dead letters", dead), ("lanes", info.settings.lanes)),
        *(("group_by", info.settings.group_by), ("lease_seconds", info.settings.lease_seconds)),
    ]
    columns = [(name, catalog.type_named(kind)) for name, kind in catalog.columns(info.schema)]
    now = markup.table(f"Queue {info.name}", ("", "now"), state)
    return now + markup.table("Columns", ("name", "type"), columns)
