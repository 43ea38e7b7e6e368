"""Queues as the catalog names them: read, created."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from txnqueue import model
from txnqueue.config import QueueInfo, QueueSettings
from txnqueue.model import Entry
from txnqueue.planning import Plan, Stamp

DEAD_SUFFIX = ".dead"


def name_stream(name: str) -> str:
    """Name the stream of a queue's name in the catalog."""
    return f"name/{name}"


def queues(entries: Iterable[Entry]) -> dict[str, QueueInfo]:
    """Fold the catalog's entries into the queues that there are, by name."""
    found: dict[str, QueueInfo] = {}
    for entry in sorted(entries, key=lambda e: e.place):
        if entry.kind == model.QUEUE_CREATED:
            info = _info(entry)
            found[info.name] = info
    return found


def create(info: QueueInfo, sequence: int, stamp: Stamp) -> Plan:
    """Plan the entry that creates a queue."""
    body = {
        "v": 1,
        "name": info.name,
        "payload": info.payload_id,
        "schema": dict(info.schema),
        "schema_version": info.schema_version,
        "settings": asdict(info.settings),
        "dead_letter": info.dead_letter_id,
    }
    entry = Entry(
        model.CATALOG,
        name_stream(info.name),
        model.QUEUE_CREATED,
        sequence=sequence,
        queue_id=info.queue_id,
        body=body,
        **stamp.columns(),
    )
    conditions = (
        model.next_sequence(model.CATALOG, name_stream(info.name), sequence),
        model.layout_unchanged(),
    )
    return Plan((entry,), conditions)


def _info(entry: Entry) -> QueueInfo:
    body: dict[str, Any] = dict(entry.body)
    return QueueInfo(
        name=body["name"],
        queue_id=entry.queue_id or "",
        payload_id=body["payload"],
        schema=body["schema"],
        schema_version=body["schema_version"],
        settings=QueueSettings(**body["settings"]),
        dead_letter_id=body["dead_letter"],
        created_at_ms=entry.recorded_at_ms,
    )
