"""The results that a queue manager returns, and the events that it generates."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from txnqueue.protocols.mqqb.elements import MessagePosition, Queue


class RStatus(enum.IntEnum):
    """The result of a Transaction Commit or Transaction Abort event."""

    MQ_OK = 0x00000000
    MQ_ERROR_TRANSACTION_SEQUENCE = 0xC00E0051


@dataclass(frozen=True, slots=True)
class MessagePositionDeleted:
    """The event Message Position Deleted: a message has left its position, with the reason."""

    queue: Queue
    position: MessagePosition
    reason: str | None


@dataclass(frozen=True, slots=True)
class MessagePositionAvailable:
    """The event Message Position Available: a message can be dequeued from its position."""

    queue: Queue
    position: MessagePosition


Event = MessagePositionDeleted | MessagePositionAvailable
