"""What a queue manager answers, and the events that it generates."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from txnqueue import model
from txnqueue.protocols.mqqb.elements import (
    MessagePosition,
    OperationType,
    Queue,
    TransactionalOperation,
)


class RStatus(enum.IntEnum):
    """How a Transaction Commit or Transaction Abort event was processed."""

    MQ_OK = 0x00000000
    MQ_ERROR_TRANSACTION_SEQUENCE = 0xC00E0051


@dataclass(frozen=True, slots=True)
class MessagePositionDeleted:
    """The event Message Position Deleted: a message stands there no more, and why."""

    queue: Queue
    position: MessagePosition
    reason: str | None


@dataclass(frozen=True, slots=True)
class MessagePositionAvailable:
    """The event Message Position Available: a message can be dequeued there."""

    queue: Queue
    position: MessagePosition


Event = MessagePositionDeleted | MessagePositionAvailable


def event_of(operation: TransactionalOperation) -> Event:
    """Say what an operation that was committed did."""
    position, kind = operation.message_position_reference, operation.operation_type
    queue, message = position.queue_reference, position.message_reference
    if kind is OperationType.DEQUEUE:
        return MessagePositionDeleted(queue, position, operation.dequeue_reason)
    if kind is OperationType.ENQUEUE:
        posted = queue.find(message, lambda found: not model.was_moved(found.origin))
        position.position_id = posted.position_id if posted is not None else None
        return MessagePositionAvailable(queue, position)
    target = operation.target_queue_reference
    assert target is not None
    former = list(position.position_id or ())
    moved = target.find(message, lambda found: (found.origin or {}).get("position") == former)
    return MessagePositionAvailable(target, moved or MessagePosition(target, message))
