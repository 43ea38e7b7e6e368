"""Alter a queue beside open transactions: add nullable columns, change settings.

The columns are added to the payload tables first, then recorded in the catalog. An entry in the
queue's backlog, in the same append, informs all clients that work on the queue; no append reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo, QueueSettings, did_you_mean, shown
from txnqueue.core.state import catalog
from txnqueue.errors import Busy, InvalidInput, QueueInUse, QueueNotFound, SchemaMismatch
from txnqueue.types import ChangeableSettings

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHANGEABLE = tuple(ChangeableSettings.__annotations__)
Changes = dict[str, tuple[object, object]]
"""What changed, by name: the former and the new value."""
Owner = TypeVar("Owner", QueueInfo, ExchangeInfo)


def alter(
    client: Client, info: QueueInfo, columns: StructType | None, settings: Mapping[str, object]
) -> Changes:
    """Add columns to a queue and change its settings; what is already so is left alone.

    Raises:
        QueueInUse: The queue takes another queue's dead letters, and gets its columns from it.
        SchemaMismatch: A column is not nullable, or exists with another type.
        Busy: Others won every retry; if columns were added to the table, the error says so.
    """
    client.open()
    client.states.check_open(info)
    known = client.cache.queues()
    before, *others = involved(info, known, columns)
    changed(before, columns, settings)  # refused before a table is changed
    if columns is not None:
        for one in (before, *others):  # the tables first: an entry never promises missing columns
            changed(one, columns, {})
            client.store.payload.add_columns(one.payload_id, columns)

    made: Changes = {}

    def plan(_lost: int) -> Plan | None:
        nonlocal made
        entries = client.cache.catalog_entries()
        mine, *followers = involved(info, catalog.queues(entries), columns)
        wanted = [(mine, changed(mine, columns, settings))]
        wanted += [(one, changed(one, columns, {})) for one in followers]
        plans = [_write(client, new, entries) for old, new in wanted if new != old]
        if not plans:  # others were faster, or an earlier try has landed
            return None
        made = differences(*wanted[0])
        return sum(plans, Plan())

    with unrecorded(info.name, columns):
        landed = client.land(plan, "alter queue", queue=info.name)
    if landed is None:
        return {}
    for entry in landed.entries:
        if entry.shard == model.backlog_shard(info.queue_id):
            client.cache.learn(catalog.told(entry, before))
    return made


@contextmanager
def unrecorded(name: str, columns: StructType | None) -> Iterator[None]:
    """Say, if columns of a payload table cannot be recorded, what is left to be done."""
    try:
        yield
    except Busy as error:
        if columns is None:
            raise
        raise Busy(
            f"The payload table of {name!r} has the columns {', '.join(columns.names)}, but others "
            "won every retry to record them, so that they cannot be used yet: alter it again with "
            "the same columns and types.",
            operation=error.operation,
            queue=error.queue,
            tries=error.tries,
        ) from error


def changed(
    info: QueueInfo, columns: StructType | None, settings: Mapping[str, object]
) -> QueueInfo:
    """Return a queue with added columns and changed settings; nothing is written."""
    unknown = sorted(set(settings) - {field.name for field in fields(QueueSettings)})
    if unknown:
        known = did_you_mean(unknown[0], CHANGEABLE)
        raise InvalidInput(f"{unknown[0]!r} is not a setting of a queue: {known}", name=unknown[0])
    fixed = sorted(set(settings) - set(CHANGEABLE))
    if fixed:
        raise InvalidInput(
            f"{fixed[0]}={shown(settings[fixed[0]])}: this is fixed when the queue is created; "
            "create another queue and move the messages. "
            f"{', '.join(CHANGEABLE)} can be changed.",
            name=fixed[0],
        )
    values: Any = dict(settings)
    found = replace(info, settings=replace(info.settings, **values))
    return found if columns is None else grown(found, columns)


def grown(info: Owner, columns: StructType) -> Owner:
    """Return a queue or an exchange with added columns; nothing is written.

    Raises:
        SchemaMismatch: A column is not nullable, or exists with another type.
    """
    added: list[Mapping[str, Any]] = _added(info, columns.jsonValue()["fields"])
    if not added:
        return info
    schema = {**info.schema, "fields": [*info.schema["fields"], *added]}
    return replace(info, schema=schema, schema_version=info.schema_version + 1)


def differences(before: QueueInfo, after: QueueInfo) -> Changes:
    """List the differences, by name."""
    found: Changes = {
        name: (old, new)
        for name in CHANGEABLE
        if (old := getattr(before.settings, name)) != (new := getattr(after.settings, name))
    }
    return found | new_columns(before, after)


def new_columns(before: Owner, after: Owner) -> Changes:
    """List the added columns, by name."""
    came = after.schema["fields"][len(before.schema["fields"]) :]
    return {f"column {column['name']}": (None, column["type"]) for column in came}


def _added(
    info: QueueInfo | ExchangeInfo, columns: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Find the columns that a queue or an exchange does not have yet."""
    from txnqueue.storage.payload.column_names import folded

    there = {folded(column["name"]): column for column in info.schema["fields"]}
    added = []
    for column in columns:
        name, old = column["name"], there.get(folded(column["name"]))
        if old is None and not column["nullable"]:
            raise SchemaMismatch(
                f"Column {name!r} of {info.name!r} must be nullable: existing messages have no "
                "value for it.",
                column=name,
            )
        if old is None:
            added.append(column)
        elif (old["name"], old["type"]) != (name, column["type"]):
            raise SchemaMismatch(
                f"{info.name!r} already has a column {old['name']!r} of type {old['type']}: "
                "columns can be added, not changed.",
                column=name,
            )
    return added


def involved(
    info: QueueInfo, known: Mapping[str, QueueInfo], columns: StructType | None
) -> list[QueueInfo]:
    """Return the queue as it is now and, if columns are added, its dead-letter queue.

    Args:
        info: The queue.
        known: The queues of the store, by name.
        columns: The columns to add; None for none.

    Raises:
        QueueNotFound: The queue was dropped.
        QueueInUse: The queue takes another queue's dead letters, and gets its columns from it.
    """
    now = known.get(info.name)
    if now is None or now.queue_id != info.queue_id:
        raise QueueNotFound(
            f"The queue {info.name!r} was dropped: if it was created again, open the new one with "
            f"manager.queue({info.name!r}).",
            name=info.name,
        )
    if columns is None:
        return [now]
    users = [one.name for one in known.values() if one.dead_letter_id == now.queue_id]
    if users:
        raise QueueInUse(
            f"{now.name!r} takes the dead letters of {users[0]!r} and has its columns: add them "
            "to that queue, and this one gets them as well.",
            name=now.name,
            used_by=users[0],
        )
    return [now, *(one for one in known.values() if one.queue_id == now.dead_letter_id)]


def _write(client: Client, info: QueueInfo, entries: Sequence[Entry]) -> Plan:
    """Record the altered queue, for clients that look it up and for those that work on it."""
    newest = replace(info, sequence=catalog.next_sequence(entries, info.name))
    stamp = client.stamp()
    said = catalog.write(model.QUEUE_ALTERED, newest, stamp)
    fact = replace(
        said.entries[0],
        shard=model.backlog_shard(info.queue_id),
        stream="queue",
        sequence=None,
        body={**said.entries[0].body, "sequence": newest.sequence},
    )
    return said + Plan((fact,), (model.queue_open(info.queue_id),))
