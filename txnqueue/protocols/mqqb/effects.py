"""The effects of a transaction's decision on positions, according to the journal.

The present place of a message may differ, because others may have taken it since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import AttemptOwner, QueueState
from txnqueue.protocols.mqqb.elements import (
    MessagePosition,
    OperationType,
    Queue,
    State,
    Transaction,
    TransactionalOperation,
)
from txnqueue.protocols.mqqb.events import Event, MessagePositionAvailable, MessagePositionDeleted

Origin = Mapping[str, Any] | None
PURGED = "purged"
"""The reason for which a purged message is deleted if none was given."""


class Effects:
    """The effects of a transaction's operations; created before its decision, queried after it."""

    def __init__(self, client: Client, transaction: Transaction) -> None:
        """Record the state before a transaction is decided."""
        self._client = client
        self._owner: AttemptOwner = transaction.owner
        operations = transaction.transactional_operation_collection
        self._queues = _queues_of(operations)
        positions = [operation.message_position_reference for operation in operations]
        # The transient store discards with the decision what it no longer needs.
        self._marked = {position for position in positions if self._is_marked(position)}
        self._known: list[Entry] | None = None

    def of_commit(self, operation: TransactionalOperation) -> Event:
        """Return the event of an operation that was committed."""
        position, kind = operation.message_position_reference, operation.operation_type
        queue, message = position.queue_reference, position.message_reference
        if kind is OperationType.DEQUEUE:
            return MessagePositionDeleted(queue, position, operation.dequeue_reason)
        if kind is OperationType.ENQUEUE:
            self._look_for(position, _came_new)
            return MessagePositionAvailable(queue, position)
        target, former = operation.target_queue_reference, list(position.position_id or ())
        assert target is not None
        moved = MessagePosition(target, message)
        self._look_for(moved, lambda origin: (origin or {}).get("position") == former)
        return MessagePositionAvailable(target, moved)

    def of_abort(self, operation: TransactionalOperation) -> Event | None:
        """Return the event of an operation that was aborted; None if no message was affected."""
        position = operation.message_position_reference
        queue = position.queue_reference
        if operation.operation_type is OperationType.ENQUEUE or self._dropped(queue):
            return None
        released = list(self._mine(queue, model.RELEASED))
        for entry in self._of(queue, model.PURGE_PENDING):
            back = [e.place for e in released if e.queue_id == entry.queue_id]
            if _purges(entry, position) and (not back or entry.place < back[0]):
                return MessagePositionDeleted(queue, position, entry.reason)
        if position in self._marked:
            return MessagePositionDeleted(queue, position, PURGED)
        if not released and not self._is_free(position):
            return None
        return MessagePositionAvailable(queue, position)

    # -------------------------------------------------------------------------- helpers

    @property
    def _entries(self) -> list[Entry]:
        """The entries since the transaction began, read once for all operations."""
        if self._known is None:
            self._known = []  # a read that failed is not repeated
            self._known = self._read()
        return self._known

    def _read(self) -> list[Entry]:
        client = self._client
        begun = -1 if self._owner.begun is None else self._owner.begun
        infos = [queue.core.info for queue in self._queues.values()]
        entries = list(client.store.journal.read(_shards(infos), after=begun).entries)
        if model.horizon(entries) > begun:  # it was prepared long ago
            entries += client.store.journal.archive.read(kinds=[model.PURGE_PENDING])
        if client.store.transient.used:
            here = [info.in_memory() for info in infos]
            entries += client.store.transient.journal.read(_shards(here)).entries
        return sorted(entries, key=lambda entry: entry.place)

    def _look_for(self, posted: MessagePosition, came: Callable[[Origin], bool]) -> None:
        """Find the position that the commit posted, wherever its message has gone since."""
        send_id, offset = posted.message_reference.place
        for entry in self._mine(posted.queue_reference, model.POSTED):
            here = entry.body["send"] == send_id and _within(entry.ranges, offset)
            if here and came(entry.body.get("origin")):
                posted.position_id = entry.entry_id
                return
        found = posted.queue_reference.find(posted.message_reference, lambda p: came(p.origin))
        posted.position_id = found.position_id if found is not None else None

    def _of(self, queue: Queue, kind: str) -> Iterable[Entry]:
        ids = {queue.core.info.queue_id, model.in_memory(queue.core.info.queue_id)}
        return (e for e in self._entries if e.kind == kind and e.queue_id in ids)

    def _mine(self, queue: Queue, kind: str) -> Iterable[Entry]:
        return (e for e in self._of(queue, kind) if e.attempt == self._owner.attempt)

    def _dropped(self, queue: Queue) -> bool:
        stream = model.queue_stream(queue.core.info.queue_id)
        return any(e.kind == model.QUEUE_DROPPED and e.stream == stream for e in self._entries)

    def _is_free(self, position: MessagePosition) -> bool:
        """Return whether no other attempt holds a message that no rollback names."""
        standing = position.queue_reference.standing_of(position)
        ours = standing.claim is not None and standing.claim.attempt_id == self._owner.attempt
        return standing.state is State.AVAILABLE or ours

    def _is_marked(self, position: MessagePosition) -> bool:
        info, (_, offset) = position.queue_reference.core.info, position.message_reference.place
        if position.position_id is None or not self._client.store.transient.used:
            return False
        side = self._client.transient
        with side.lock:
            return any(
                _within(claim.purging.get(position.position_id, ()), offset)
                for claim in side.states.fold(info.in_memory()).claims()
            )


def _queues_of(operations: Iterable[TransactionalOperation]) -> dict[str, Queue]:
    """Return the queues of operations, by name."""
    found: dict[str, Queue] = {}
    for operation in operations:
        here, target = (
            operation.message_position_reference.queue_reference,
            (operation.target_queue_reference),
        )
        found.update((queue.name, queue) for queue in (here, target) if queue is not None)
    return found


def _shards(infos: Iterable[QueueInfo]) -> set[str]:
    return {
        shard for info in infos for shard in QueueState(info.queue_id, info.settings.lanes).shards
    }


def _came_new(origin: Origin) -> bool:
    return not model.was_moved(origin)


def _purges(entry: Entry, position: MessagePosition) -> bool:
    offset = position.message_reference.place[1]
    return any(
        position_id == position.position_id and _within(part, offset)
        for position_id, part in model.unpack_items(entry)
    )


def _within(part: Iterable[model.Range], offset: int) -> bool:
    return bool(ranges.intersection(tuple(part), ((offset, offset),)))
