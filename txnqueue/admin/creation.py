"""Create stores and queues: payload tables first, then one append."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import NAME_LENGTH_MAX, SLICE_WIDTH, QueueInfo, QueueSettings
from txnqueue.core.state import catalog
from txnqueue.errors import (
    InvalidInput,
    InvalidName,
    PayloadRemoved,
    QueueClosed,
    QueueError,
    QueueExists,
    QueueNotFound,
    SchemaMismatch,
    StoreNotFound,
)
from txnqueue.storage.journal import EntryFilter
from txnqueue.storage.setbacks import gone, journal_gone

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def create_store(client: Client) -> None:
    """Create the store if it does not exist, and record its layout."""
    if create_journal(client):
        return

    def plan(_lost: int) -> Plan | None:
        layout = layout_of_new_store(client)
        return layout if layout.entries else None

    client.land(plan, "create store")
    client.open()


def create_journal(client: Client) -> bool:
    """Create the journal if it does not exist.

    Returns:
        Whether the store is complete: a new one lacks its layout.

    Raises:
        StoreNotFound: The store that this client works on was removed.
        StoreCorrupt: Only its journal was.
    """
    if _is_complete(client):
        return True
    if client.cache.is_open:
        raise gone(client.store.root)
    archive = client.store.journal.archive
    if archive.exists() and archive.newest(EntryFilter()).commit_seq >= 0:
        if _is_complete(client):  # by now: another client has created it, and maintained it
            return True
        raise journal_gone(client.store.root)
    client.store.create()
    return False


def _is_complete(client: Client) -> bool:
    """Open the store if it is there with its layout, and return whether it is."""
    if client.store.exists():
        with contextlib.suppress(StoreNotFound):
            client.open()
            return True
    return False


def layout_of_new_store(client: Client) -> Plan:
    """Record the layout of a store, unless another client has done so."""
    if client.cache.layouts():
        return Plan()
    body = {
        "v": 1,
        "layout": model.LAYOUT,
        "slice_width": SLICE_WIDTH,
        "store_id": client.runtime.new_id(),
        "root": client.store.root,
    }
    entry = Entry(
        model.FENCE,
        "layout",
        model.LAYOUT_CHANGED,
        sequence=model.LAYOUT,
        body=body,
        **client.stamp().columns(),
    )
    return Plan((entry,), (model.next_sequence(model.FENCE, "layout", 1),))


def ensure_queue(
    client: Client, name: str, columns: StructType, settings: QueueSettings, *, exist_ok: bool
) -> QueueInfo:
    """Create a queue, and the store if needed, or find the one that has the name and the columns.

    Args:
        client: The client of the store.
        name: The queue's name.
        columns: The payload's columns.
        settings: The settings of a new queue.
        exist_ok: Whether the queue may exist already.

    Returns:
        The queue's description.

    Raises:
        QueueExists: The queue exists already.
        QueueClosed: The queue exists and is being dropped.
        SchemaMismatch: The queue exists and has never had exactly these columns.
    """
    complete = create_journal(client)
    existing = client.cache.queues().get(name) if complete else None
    if existing is None:
        existing = create_queue(
            client, name, columns, settings, exist_ok=exist_ok, complete=complete
        )
    elif existing.closing or not exist_ok:
        raise taken(existing)
    if not _has_had(client, existing, columns):
        raise SchemaMismatch(
            f"Queue {name!r} exists and differs in "
            f"{catalog.differing(existing.schema, columns.jsonValue())}: open it with "
            "manager.queue(name), or add columns with queue.alter(add=...)."
        )
    return existing


def create_queue(
    client: Client,
    name: str,
    schema: StructType,
    settings: QueueSettings,
    *,
    exist_ok: bool,
    complete: bool = True,
) -> QueueInfo:
    """Create a queue and its dead-letter queue: payload tables first, then one append.

    Args:
        client: The client of the store.
        name: The queue's name.
        schema: The payload's columns.
        settings: The queue's settings.
        exist_ok: Whether another client may create the queue first.
        complete: Whether the store has its layout; if not, the same append records it.
    """
    here = client.cache.queues() if complete and settings.dead_letter else {}
    wanted, found = described(client, here, name, schema, settings)
    for one in wanted:
        client.store.payload.create(one.payload_id, schema)
    existing = wanted[0]

    def plan(_lost: int) -> Plan | None:
        nonlocal existing
        layout = Plan() if complete else layout_of_new_store(client)
        entries = [] if layout.entries else client.cache.catalog_entries()
        check_payload_there(entries, wanted)
        known = catalog.queues(entries)
        there = [one.name for one in wanted if one.name in known]
        if name in known and exist_ok and not known[name].closing:
            existing = known[name]
            return None
        if there:
            raise taken(known[there[0]])
        stamp = client.stamp()
        plans = [layout]
        plans += [
            catalog.create(one, catalog.next_sequence(entries, one.name), stamp) for one in wanted
        ]
        plans.append(Plan((), tuple(model.payload_there(one.payload_id) for one in wanted)))
        if found:
            now = _dead_letter_queue(known, name, schema)  # columns may have been added since
            if now is None or now.queue_id != found.queue_id:
                raise QueueNotFound(name=found.name)
            # Written under the target's name too: a client that is about to drop it reads that.
            newest = replace(now, sequence=catalog.next_sequence(entries, now.name))
            reason = f"takes the dead letters of {name}"
            plans.append(catalog.write(model.QUEUE_ALTERED, newest, stamp, reason))
            plans.append(Plan((), (model.queue_open(now.queue_id),)))
        return sum(plans, Plan())

    try:
        landed = client.land(plan, "create queue", queue=name)
    except (QueueNotFound, PayloadRemoved):
        # The dead-letter queue was dropped meanwhile; or the creation took so long that a
        # maintenance has removed a payload table that seemed unused.
        return create_queue(client, name, schema, settings, exist_ok=exist_ok)
    except QueueExists as error:
        if error.name == name:
            raise
        # Its dead-letter queue has been created meanwhile: use that.
        return create_queue(client, name, schema, settings, exist_ok=exist_ok)
    client.open()
    if landed is None:
        return existing  # it may be dropped by now: its users will learn that
    return catalog.queues(landed.entries)[name]


def described(
    client: Client,
    known: Mapping[str, QueueInfo],
    name: str,
    schema: StructType,
    settings: QueueSettings,
) -> tuple[list[QueueInfo], QueueInfo | None]:
    """Describe a new queue; nothing is written.

    Args:
        client: The client of the store.
        known: The queues of the store, by name.
        name: The queue's name.
        schema: The payload's columns.
        settings: The queue's settings.

    Returns:
        The queue, with its dead-letter queue if that is new, too; and the existing queue that takes
        its dead letters, if there is one.

    Raises:
        InvalidName: The name of its dead-letter queue would be too long.
        QueueClosed: The queue that takes its dead letters is being dropped.
        SchemaMismatch: That queue has other columns.
    """
    found: QueueInfo | None = None
    new: list[QueueInfo] = []
    if settings.dead_letter:
        found = _dead_letter_queue(known, name, schema)
        new = [] if found else [_new_dead_letter_queue(client, name, schema, settings)]
    target = next(iter(new), found)
    queue_id = f"{name}-{client.runtime.new_id()[:8]}"
    dead_id = target.queue_id if target else None
    info = QueueInfo(name, queue_id, queue_id, schema.jsonValue(), 1, settings, dead_id)
    return [info, *new], found


def _dead_letter_queue(
    known: Mapping[str, QueueInfo], name: str, schema: StructType
) -> QueueInfo | None:
    """Find the queue that takes the dead letters of a new one, if it exists.

    Raises:
        QueueClosed: That queue is being dropped.
        SchemaMismatch: That queue has other columns.
    """
    found = known.get(_dead_letter_name(name))
    if found is None:
        return None
    if found.closing:
        raise _closing(found)
    if catalog.columns(found.schema) != catalog.columns(schema.jsonValue()):
        raise SchemaMismatch(
            f"The queue {found.name!r} exists and differs in "
            f"{catalog.differing(found.schema, schema.jsonValue())}: its columns do not fit the "
            "dead letters. Drop it, or use another name."
        )
    return found


def _new_dead_letter_queue(
    client: Client, name: str, schema: StructType, settings: QueueSettings
) -> QueueInfo:
    """Describe the dead-letter queue to create for a new queue."""
    dead_name = _dead_letter_name(name)
    queue_id = f"{dead_name}-{client.runtime.new_id()[:8]}"
    plain = QueueSettings(
        1, None, settings.lease_seconds, settings.deliveries_max, dead_letter=False
    )
    return QueueInfo(dead_name, queue_id, queue_id, schema.jsonValue(), 1, plain)


def _dead_letter_name(name: str) -> str:
    """Return the name of a new queue's dead-letter queue.

    Raises:
        InvalidName: The name would be too long.
    """
    dead_name = name + catalog.DEAD_SUFFIX
    if len(dead_name) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"{name!r} is too long for a queue with a dead-letter queue, which would be named "
            f"{dead_name!r}: use at most {NAME_LENGTH_MAX - len(catalog.DEAD_SUFFIX)} characters.",
            name=name,
        )
    return dead_name


def check_payload_there(
    entries: Iterable[Entry], owners: Iterable[QueueInfo | ExchangeInfo]
) -> None:
    """Check that no maintenance has removed payload tables that have no owner yet.

    Raises:
        PayloadRemoved: One was removed.
    """
    removed = {e.stream for e in entries if e.kind == model.PAYLOAD_REMOVED}
    for owner in owners:
        if model.payload_stream(owner.payload_id) in removed:
            raise PayloadRemoved(
                f"Creating {owner.name!r} took so long that maintain() removed its empty payload "
                "table: create it again.",
                name=owner.name,
            )


def taken(info: QueueInfo) -> QueueError:
    """Return the error that says why a new queue cannot have the name."""
    if info.closing:
        return _closing(info)
    return QueueExists(
        f"There is already a queue {info.name!r}: pass exist_ok=True to use it.", name=info.name
    )


def _closing(info: QueueInfo) -> QueueClosed:
    return QueueClosed(
        f"The queue {info.name!r} is being dropped: drop_queue({info.name!r}) says what holds it "
        "back; create it when it has been removed.",
        name=info.name,
    )


def _has_had(client: Client, info: QueueInfo, columns: StructType) -> bool:
    """Return whether a queue has exactly these columns, or had before it grew."""
    wanted = catalog.columns(columns.jsonValue())
    if catalog.columns(info.schema) == wanted:
        return True
    if info.schema_version == 1:
        return False
    entries = client.cache.catalog_entries()
    return any(catalog.columns(one) == wanted for one in catalog.schemas(entries, info.queue_id))


def read_schema(client: Client, schema: str | StructType | None, like: Any) -> StructType:
    """Read a schema that is given as such or by rows that have it.

    Raises:
        InvalidInput: Neither is given, or both are.
        SchemaMismatch: The schema is invalid.
    """
    from txnqueue.storage.payload.rows import schema_of
    from txnqueue.storage.payload.schemas import schema_from

    if (schema is None) == (like is None):
        raise InvalidInput("Give either the schema, or like= to take the schema from.")
    return schema_of(like) if schema is None else schema_from(client.store.spark, schema)
