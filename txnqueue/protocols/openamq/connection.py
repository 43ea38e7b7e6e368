"""A connection: channels on one manager's queues, and who waits on them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.errors import TransactionFinished
from txnqueue.protocols.openamq.channel import Channel, close_after
from txnqueue.protocols.openamq.lists import Consumer, Queued, queued

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.protocols.openamq.dispatches import Dispatches


logger = logging.getLogger("txnqueue")


class Connection:
    """Channels on one manager's queues, and the consumers that wait on them."""

    def __init__(self, manager: QueueManager) -> None:
        """Use a manager."""
        self.manager = manager
        self.consumers: list[Consumer] = []
        self._channels: list[Channel] = []
        self._closed = False
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._gave_back: set[tuple[str, Dispatches]] = set()
        self._dispatching = False

    @property
    def client_id(self) -> str:
        """What dispatched messages are marked with: the manager's consumer id."""
        return self.manager._client.consumer

    def channel(self, *, lease_seconds: float | None = None) -> Channel:
        """Open a channel; one for each thread.

        Args:
            lease_seconds: For how long dispatched messages are held before other clients may
                have them; each queue's setting when left out.

        Raises:
            TransactionFinished: The connection is closed.
        """
        if self._closed:
            raise TransactionFinished("The connection is closed: open another one.")
        made = Channel(self, lease_seconds=lease_seconds)
        self._channels.append(made)
        return made

    def close(self) -> None:
        """Close every channel; a connection whose channel could not be can be closed again.

        Raises:
            TransactionUnknown: What a channel was about to commit is still in doubt.
            TransactionFinished: A commit that was in doubt has happened.
        """
        self._closed = True
        self.consumers.clear()  # what one channel gives back is not for its neighbour
        failed: Exception | None = None
        for channel in list(self._channels):
            try:
                channel.close()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def forget(self, channel: Channel) -> None:
        """Record that a channel is closed; channels do."""
        with contextlib.suppress(ValueError):
            self._channels.remove(channel)  # in place: other threads open theirs meanwhile

    def cancel(self, consumers: Iterable[Consumer]) -> None:
        """Record that consumers wait no more; channels do."""
        for consumer in consumers:
            with contextlib.suppress(ValueError):
                self.consumers.remove(consumer)

    def message_list(self, queue: str) -> list[Queued]:
        """List the messages of a queue: those that wait, and those marked as dispatched."""
        opened = self.manager.queue(queue)
        client = opened._client
        found: list[Queued] = []
        for part in client.parts_of(opened.info):
            with part.state_for_read() as state:
                found += queued(state, persistent=not part.info.transient)
        return found

    def dispatch_waiting(
        self, queues: Iterable[str], given_back_by: Dispatches | None = None
    ) -> None:
        """Dispatch queues that have new messages to the consumers that wait for them.

        What cannot be dispatched now waits in its queue for the next time. What consumers send
        and give back meanwhile is dispatched after that, and never again to a channel that gave
        messages of the queue back: it cannot process them now.

        Args:
            queues: The queues' names.
            given_back_by: The channel that gave the messages back; None: they are new.
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
                for consumer in list(self.consumers):
                    gave_back = (queue, consumer.channel) in self._gave_back
                    if consumer.queue == queue and not gave_back:
                        self._deliver(consumer)
        except BaseException:
            if mine:  # else nobody would ever dispatch again
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
    def _deliver(consumer: Consumer) -> None:
        try:
            consumer.channel.deliver(consumer)
        except Exception as error:  # what was sent is sent, though it cannot be delivered now
            logger.warning("queue not dispatched queue=%s error=%s", consumer.queue, error)

    def __enter__(self) -> Connection:
        """Use the connection for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; an error that led here is the one to see."""
        close_after(error, "connection", self.close)
