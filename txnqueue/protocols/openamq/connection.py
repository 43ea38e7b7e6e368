"""A connection: channels on one manager's queues, and their waiting consumers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.errors import TransactionFinished
from txnqueue.manager import client_of
from txnqueue.protocols.openamq.channel import Channel, close_after
from txnqueue.protocols.openamq.lists import Consumer, Queued, queued

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager


logger = logging.getLogger("txnqueue")


class Connection:
    """The channels on one manager's queues, and their waiting consumers."""

    def __init__(self, manager: QueueManager) -> None:
        """Use a manager.

        Raises:
            InvalidInput: It is none.
        """
        client_of(manager)
        self.manager = manager
        self.consumers: list[Consumer] = []
        self._channels: list[Channel] = []
        self._closed = False
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._gave_back: set[tuple[str, Channel]] = set()
        self._dispatching = False

    @property
    def client_id(self) -> str:
        """The name that marks dispatched messages: the manager's consumer id."""
        return client_of(self.manager).consumer.id

    def channel(self, *, lease_seconds: float | None = None) -> Channel:
        """Open a channel; each thread needs its own.

        Args:
            lease_seconds: How long dispatched messages are held before other clients may get
                them; if omitted, each queue's setting.

        Raises:
            TransactionFinished: The connection is closed.
        """
        if self._closed:
            raise TransactionFinished("The connection is closed: open another one.")
        made = Channel(self, lease_seconds=lease_seconds)
        self._channels.append(made)
        return made

    def close(self) -> None:
        """Close every channel; if closing a channel fails, the connection can be closed again.

        Raises:
            TransactionUnknown: A commit of a channel is still in doubt.
            TransactionFinished: A commit that was in doubt has happened.
        """
        self._closed = True
        self.consumers.clear()  # messages that a channel gives back must not go to another one
        failed: Exception | None = None
        for channel in list(self._channels):
            try:
                channel.close()
            except Exception as error:  # the other channels are closed all the same
                failed = failed or error
        if failed is not None:
            raise failed

    def forget(self, channel: Channel) -> None:
        """Record that a channel is closed; called by channels."""
        with contextlib.suppress(ValueError):
            self._channels.remove(channel)  # in place, because other threads open channels

    def cancel(self, consumers: Iterable[Consumer]) -> None:
        """Record that consumers no longer wait; called by channels."""
        for consumer in consumers:
            with contextlib.suppress(ValueError):
                self.consumers.remove(consumer)

    def message_list(self, queue: str) -> list[Queued]:
        """List the messages of a queue, waiting or marked as dispatched."""
        opened = self.manager.queue(queue)
        client = opened._client
        found: list[Queued] = []
        for part in client.parts_of(opened.info):
            with part.state_for_read() as state:
                found += queued(state, persistent=not part.info.transient)
        return found

    def dispatch_waiting(self, queues: Iterable[str], given_back_by: Channel | None = None) -> None:
        """Dispatch queues with new messages to the waiting consumers.

        Messages that cannot be dispatched now wait for the next time. Messages that consumers send
        or give back meanwhile are dispatched afterwards, but not to a channel that gave back
        messages of the queue, because it cannot process them now.

        Args:
            queues: The names of the queues.
            given_back_by: The channel that gave the messages back; None if they are new.
        """
        mine = False
        try:
            with self._lock:
                for name in queues:
                    self._waiting.append(name)
                    if given_back_by is not None:
                        self._gave_back.add((name, given_back_by))
                if self._dispatching:
                    return
                self._dispatching = mine = True
            while (queue := self._next()) is not None:
                may_be_left = False
                for consumer in list(self.consumers):
                    gave_back = (queue, consumer.channel) in self._gave_back
                    if consumer.queue == queue and not gave_back:
                        may_be_left |= self._deliver(consumer)
                if may_be_left:
                    with self._lock:
                        self._waiting.append(queue)
        except BaseException:
            if mine:  # otherwise nobody would ever dispatch again
                with self._lock:
                    self._end()
            raise

    def _next(self) -> str | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._end()
            return None

    def _end(self) -> None:
        self._waiting.clear()
        self._gave_back.clear()
        self._dispatching = False

    @staticmethod
    def _deliver(consumer: Consumer) -> bool:
        """Dispatch to a consumer, and return whether it got as many as it takes at a time."""
        try:
            return consumer.channel.deliver(consumer) >= consumer.limit
        except Exception as error:  # the send stands even if its messages cannot be delivered now
            logger.warning("queue not dispatched queue=%s error=%s", consumer.queue, error)
            return False

    def __enter__(self) -> Connection:
        """Use the connection in a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection; an error of the block takes precedence."""
        close_after(error, "connection", self.close)
