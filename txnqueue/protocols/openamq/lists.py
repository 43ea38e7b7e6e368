"""The elements of the lists of channels and queues, and the replies of operations."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claims_of
from txnqueue.client.client import Client
from txnqueue.core.model import Range
from txnqueue.core.receipt import Receipt
from txnqueue.core.state import QueueState
from txnqueue.errors import QueueError
from txnqueue.messages.claim import HeldClaim
from txnqueue.messages.publish import PublishResult
from txnqueue.messages.staged import StagedSend
from txnqueue.queue import Queue
from txnqueue.storage.payload import Part, messages_of

if TYPE_CHECKING:
    from txnqueue.protocols.openamq.channel import Channel
    from txnqueue.types import Message


class Status(str, enum.Enum):
    """The status of an operation; one that is impossible raises an exception."""

    OK = "OK"
    NO_MATCH = "NO_MATCH"


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of an operation.

    Attributes:
        status: OK, or ``NO_MATCH`` if an unget matched no dispatched message, or a cancel no
            consumer.
        count: The number of messages concerned.
        dispatches: The dispatched messages.
        receipt: The receipt of a commit.
        consumer: The number of a new consumer, for ``cancel``.
        published: The result of a publish: how many each queue gets, and how many are unroutable.
    """

    status: Status = Status.OK
    count: int = 0
    dispatches: tuple[Dispatch, ...] = ()
    receipt: Receipt | None = None
    consumer: int | None = None
    published: PublishResult | None = None


class Delivery:
    """The messages of one receive, read only once."""

    def __init__(self, batch: Batch) -> None:
        """Hold a batch without reading it yet."""
        self.batch = batch
        self._messages: dict[str, Message] | None = None

    def message(self, message_id: str) -> Message:
        """Return a message of the batch."""
        if self._messages is None:
            rows = self.batch.messages()
            self._messages = {row["_message"]["id"]: row for row in rows}
        return deepcopy(self._messages[message_id])  # the caller may change it


@dataclass(eq=False)
class Dispatch:
    """A message dispatched to a channel.

    Attributes:
        tag: Its number on the channel: 1, 2, 3, …
        queue: Its queue.
        message_id: Its id.
        persistent: Whether the store keeps it.
        acknowledged: Whether an acknowledgement waits for the commit.
        looked_at: Whether the message has been read through this object.
    """

    tag: int
    queue: str
    message_id: str
    persistent: bool
    acknowledged: bool = field(default=False, init=False)
    looked_at: bool = field(default=False, init=False)
    _waits: object = field(default=None, repr=False, kw_only=True)
    """Marks that its consumer has not been called with it yet; None: the client has it."""
    _is_lost: bool = field(default=False, init=False, repr=False)
    """Whether its acknowledgement waits for a commit that will fail: others may have it."""
    _delivery: Delivery = field(repr=False, kw_only=True)
    _held: HeldClaim = field(repr=False, kw_only=True)

    @property
    def message(self) -> Message:
        """The message: the payload's columns and ``_message``."""
        message = self._delivery.message(self.message_id)
        self.looked_at = True
        return message

    @property
    def batch(self) -> Batch:
        """The receive in which it was dispatched."""
        return self._delivery.batch


@dataclass(frozen=True, eq=False)
class Held:
    """The messages of one send in a transaction, which wait for its end.

    Attributes:
        queue: The target queue.
        count: Their number.
        persistent: Whether the store will keep them.
    """

    queue: str
    count: int
    persistent: bool
    _queue: Queue = field(repr=False)
    _send: StagedSend = field(repr=False)

    def messages(self) -> list[Message]:
        """Read the messages: the payload's columns and ``_message``."""
        send = self._send
        parts = [
            Part(
                send.payload_id,
                send.slice,
                send.send_id,
                (run.range,),
                self.queue,
                run.lane,
                0,
                0,
                None,
                None,
            )
            for run in send.runs
        ]
        table = self._queue._client.payload.table(self._queue.schema, parts)
        return messages_of(table)


@dataclass(frozen=True, slots=True)
class Queued:
    """A message in the list of a queue.

    Attributes:
        message_id: Its id.
        persistent: Whether the store keeps it.
        client_id: The client to which it is dispatched; None if it waits. A transient message
            leaves the list when it is dispatched.
    """

    message_id: str
    persistent: bool
    client_id: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """A consumer that waits on a channel for messages of a queue."""

    channel: Channel
    number: int
    queue: str
    deliver: Callable[[Dispatch], object]
    limit: int


def queued(fold: QueueState, *, persistent: bool) -> Iterator[Queued]:
    """List the messages of one part of a queue."""
    for lane in fold.lanes.values():
        for segment in lane.available:
            part = ((segment.first, segment.last),)
            for message_id in ids(segment.position.send_id, part):
                yield Queued(message_id, persistent, None)
    for claim in fold.claims() if persistent else ():
        for position_id, ranges in claim.items.items():
            for message_id in ids(fold.positions[position_id].send_id, ranges):
                yield Queued(message_id, persistent, claim.owner.consumer)


def ids(send_id: str, ranges: Iterable[Range]) -> Iterator[str]:
    """Yield the ids of the messages at some offsets of a send."""
    for first, last in ranges:
        for offset in range(first, last + 1):
            yield f"{send_id}:{offset}"


def by_batch(found: Iterable[Dispatch]) -> list[tuple[Batch, list[str]]]:
    """Group dispatched messages by the receive that they belong to."""
    batches: dict[Batch, list[str]] = {}
    for dispatch in found:
        batches.setdefault(dispatch.batch, []).append(dispatch.message_id)
    return list(batches.items())


def held_by(client: Client, batch: Batch) -> Iterator[str]:
    """List the messages of a batch that are still ours; none if the queue is dropped."""
    for one in claims_of(batch):
        side = client.of(one.info)
        with side.lock:
            try:
                claim = side.states.for_update(one.info).claim(*one.claim.name)
            except QueueError:
                continue
        for position_id, ranges in claim.items.items() if claim is not None else ():
            yield from ids(one.positions[position_id].send_id, ranges)
