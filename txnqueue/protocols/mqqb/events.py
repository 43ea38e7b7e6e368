"""What a queue manager answers, and the events that it generates."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from txnqueue.protocols.mqqb.elements import MessagePosition, Queue


class RStatus(enum.IntEnum):
    """How a Transaction Commit or Transaction Abort event was processed."""

    MQ_OK = 0x00000000
    MQ_ERROR_TRANSACTION_SEQUENCE = 0xC00E0051


@dataclass(frozen=True, slots=True)
class MessagePositionDeleted:
    """The event Message Position Deleted: a message is there no more, and why."""

    queue: Queue
    position: MessagePosition
    reason: str | None


@dataclass(frozen=True, slots=True)
class MessagePositionAvailable:
    """The event Message Position Available: a message can be dequeued there."""

    queue: Queue
    position: MessagePosition


Event = MessagePositionDeleted | MessagePositionAvailable
