"""Queues as the catalog lists them: created, altered, closing, dropped.

Each entry describes its queue completely, so the newest entry of a name suffices. The entries of
a name are numbered consecutively, over all queues that ever had the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, Stamp
from txnqueue.core.settings import QueueInfo, QueueSettings

DEAD_SUFFIX = ".dead"
LATER = {
    name: getattr(QueueSettings(), name)
    for name in ("redelivery_delay_seconds", "redelivery_delay_seconds_max")
}
"""Settings added later, with their defaults. They are written beside the others, and only if they
were set, because older libraries do not know them and ignore them there."""
KINDS = (model.QUEUE_CREATED, model.QUEUE_ALTERED, model.QUEUE_CLOSING, model.QUEUE_DROPPED)


def name_stream(name: str) -> str:
    """Name the stream of a queue's name in the catalog."""
    return f"name/{name}"


def queues(entries: Iterable[Entry]) -> dict[str, QueueInfo]:
    """Fold the catalog's entries into the existing queues, closing ones included, by name."""
    found: dict[str, QueueInfo] = {}
    for entry in _of_queues(entries):
        info = _info(entry, found.get(entry.body["name"]))
        if entry.kind == model.QUEUE_DROPPED:
            found.pop(info.name, None)
        else:
            found[info.name] = info
    return found


def every_queue(entries: Iterable[Entry]) -> dict[str, QueueInfo]:
    """Fold the catalog's entries into all queues that ever existed, by id."""
    found: dict[str, QueueInfo] = {}
    for entry in _of_queues(entries):
        queue_id = entry.queue_id or ""
        found[queue_id] = _info(entry, found.get(queue_id))
    return found


def every_schema(entries: Iterable[Entry]) -> dict[str, list[Mapping[str, Any]]]:
    """List the schemas that each queue ever had, oldest first, by the queues' ids."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in _of_queues(entries):
        found.setdefault(entry.queue_id or "", []).append(entry.body["schema"])
    return found


def schemas(entries: Iterable[Entry], queue_id: str) -> list[Mapping[str, Any]]:
    """List the schemas in a queue's catalog entries, oldest first."""
    return every_schema(entries).get(queue_id, [])


def told(entry: Entry, before: QueueInfo) -> QueueInfo:
    """Read an altered queue's description from the entry in its backlog that records it."""
    return _info(replace(entry, sequence=entry.body["sequence"]), before)


def next_sequence(entries: Iterable[Entry], name: str) -> int:
    """Find the next sequence number of a name."""
    return next_of_stream(entries, name_stream(name))


def next_of_stream(entries: Iterable[Entry], stream: str) -> int:
    """Find the next sequence number of a stream of the catalog."""
    return model.newest_sequence(e for e in entries if e.stream == stream) + 1


def columns(schema: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """List a schema's columns by name and type, which must be equal where payload is shared."""
    return [(column["name"], column["type"]) for column in schema["fields"]]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Describe the columns in which two schemas differ, for error messages."""
    here, there = dict(columns(one)), dict(columns(other))
    found = [
        f"column {name!r} ({_type_of(here, name)}, and {_type_of(there, name)})"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    return ", ".join(found) or "the order of their columns"


def _type_of(types: Mapping[str, Any], name: str) -> str:
    return type_named(types.get(name, "missing"))


def type_named(written: Any) -> str:
    """Return the short name of a column's type from its form in a schema."""
    return str(written if isinstance(written, str) else written["type"])


def write(kind: str, info: QueueInfo, stamp: Stamp, reason: str | None = None) -> Plan:
    """Plan the entry that records a queue's new description, under ``info.sequence``."""
    body = {
        "v": 1,
        "name": info.name,
        "payload": info.payload_id,
        "schema": dict(info.schema),
        "schema_version": info.schema_version,
        "settings": {k: v for k, v in asdict(info.settings).items() if k not in LATER},
        "dead_letter": info.dead_letter_id,
    }
    said = {name: getattr(info.settings, name) for name, default in LATER.items()}
    if said != LATER:
        body["later"] = said
    stream = name_stream(info.name)
    entry = Entry(
        model.CATALOG,
        stream,
        kind,
        sequence=info.sequence,
        queue_id=info.queue_id,
        reason=reason,
        body=body,
        **stamp.columns(),
    )
    conditions = (
        model.next_sequence(model.CATALOG, stream, info.sequence),
        model.layout_unchanged(),
    )
    return Plan((entry,), conditions)


def create(info: QueueInfo, sequence: int, stamp: Stamp) -> Plan:
    """Plan the entry that creates a queue."""
    return write(model.QUEUE_CREATED, replace(info, sequence=sequence), stamp)


def fence(
    kind: str,
    info: QueueInfo,
    sequence: int,
    stamp: Stamp,
    count: int | None = None,
    *,
    reason: str | None = None,
) -> Plan:
    """Plan the entry in the fence, closing or dropped, that stops every append on the queue.

    Args:
        kind: ``queue_closing`` or ``queue_dropped``.
        info: The queue.
        sequence: The next sequence number of the queue's stream in the fence.
        stamp: The author and the instant.
        count: The number of messages dropped with the queue.
        reason: The reason.
    """
    stream = model.queue_stream(info.queue_id)
    entry = Entry(
        model.FENCE,
        stream,
        kind,
        sequence=sequence,
        queue_id=info.queue_id,
        count=count,
        reason=reason,
        body={"v": 1, "name": info.name},
        **stamp.columns(),
    )
    return Plan((entry,), (model.next_sequence(model.FENCE, stream, sequence),))


def _of_queues(entries: Iterable[Entry]) -> list[Entry]:
    mine = (e for e in entries if e.shard == model.CATALOG and e.kind in KINDS)
    return sorted(mine, key=lambda e: e.place)


def _info(entry: Entry, before: QueueInfo | None) -> QueueInfo:
    body: dict[str, Any] = dict(entry.body)
    same = before is not None and before.queue_id == entry.queue_id
    return QueueInfo(
        name=body["name"],
        queue_id=entry.queue_id or "",
        payload_id=body["payload"],
        schema=body["schema"],
        schema_version=body["schema_version"],
        settings=QueueSettings(**body["settings"], **body.get("later", {})),
        dead_letter_id=body["dead_letter"],
        created_at_ms=before.created_at_ms if same and before else entry.recorded_at_ms,
        sequence=entry.sequence or 0,
        closing=entry.kind in (model.QUEUE_CLOSING, model.QUEUE_DROPPED),
    )
