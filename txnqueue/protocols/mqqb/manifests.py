"""Reading the operations of a prepared transaction from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry, Item
from txnqueue.core.planning.decisions import entry_from_json
from txnqueue.core.settings import QueueInfo
from txnqueue.protocols.mqqb.elements import (
    Message,
    MessagePosition,
    OperationType,
    Queue,
    TransactionalOperation,
)

_DEQUEUES = (model.ACCEPTED, model.REJECTED)


def operations_of(
    client: Client,
    queue: Callable[[str], Queue],
    prepared: Entry,
    pending: Callable[[], str | None],
) -> list[TransactionalOperation]:
    """List the operations of a prepared transaction: first its posts, then its settlements.

    Args:
        client: The client that reads its claims.
        queue: Returns a queue by name.
        prepared: The entry that prepared it.
        pending: Returns its identifier while it is undecided.
    """
    known = {info.queue_id: info for info in client.cache.queues().values()}
    manifest: dict[str, Any] = prepared.body.get("manifest", {})
    found: list[TransactionalOperation] = []
    for entry in map(entry_from_json, manifest.get("entries", ())):
        info = known.get(entry.queue_id or "")
        if info is None:
            continue
        if entry.kind == model.POSTED and not model.was_moved(entry.body.get("origin")):
            found += _enqueues(queue(info.name), entry, pending)
        elif entry.is_settlement and entry.kind != model.RELEASED:
            target = known.get(entry.body.get("target") or "")
            to = queue(target.name) if target is not None else None
            found += _settles(client, info, queue(info.name), entry, to)
    return found


def _enqueues(
    queue: Queue, entry: Entry, pending: Callable[[], str | None]
) -> Iterator[TransactionalOperation]:
    for offset in _offsets(entry.ranges):
        message = Message(f"{entry.body['send']}:{offset}")
        position = MessagePosition(queue, message, pending=pending)
        yield TransactionalOperation(OperationType.ENQUEUE, position)


def _settles(
    client: Client, info: QueueInfo, queue: Queue, entry: Entry, target: Queue | None
) -> Iterator[TransactionalOperation]:
    items: list[Item] = model.unpack_items(entry)
    with client.lock:
        fold = client.states.fold(info)
        claim = fold.claim(entry.claim_lane or 0, entry.claim_sequence or 0)
        if not items and claim is not None:  # the whole claim
            items = list(claim.items.items())
        positions = {name: fold.positions.get(name) for name, _ in items}
    for position_id, part in items:
        position = positions[position_id]
        if position is None:
            continue
        for offset in _offsets(part):
            message = Message(f"{position.send_id}:{offset}")
            where = MessagePosition(queue, message, position_id)
            if entry.kind in _DEQUEUES:
                reason = entry.reason or entry.kind
                yield TransactionalOperation(OperationType.DEQUEUE, where, reason)
            elif entry.kind == model.MOVED:
                yield TransactionalOperation(
                    OperationType.MOVE, where, target_queue_reference=target
                )


def _offsets(part: tuple[model.Range, ...]) -> Iterator[int]:
    return (offset for first, last in part for offset in range(first, last + 1))
