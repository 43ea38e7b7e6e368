"""A connection: channels on one manager's queues, and who waits on them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnqueue.protocols.openamq.channel import Channel
from txnqueue.protocols.openamq.lists import Consumer, Queued, queued

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager


logger = logging.getLogger("txnqueue")


class Connection:
    """Channels on one manager's queues, and the consumers that wait on them."""

    def __init__(self, manager: QueueManager) -> None:
        """Use a manager."""
        self.manager = manager
        self.consumers: list[Consumer] = []

    @property
    def client_id(self) -> str:
        """What dispatched messages are marked with: the manager's consumer id."""
        return self.manager._client.consumer

    def channel(self, *, lease_seconds: float | None = None) -> Channel:
        """Open a channel; one for each thread.

        Args:
            lease_seconds: For how long dispatched messages are held before other clients may
                have them; each queue's setting when left out.
        """
        return Channel(self, lease_seconds=lease_seconds)

    def message_list(self, queue: str) -> list[Queued]:
        """List the messages of a queue: those that wait, and those marked as dispatched."""
        opened = self.manager.queue(queue)
        client = opened._client
        found: list[Queued] = []
        for part in client.parts_of(opened.info):
            side = client.of(part)
            with side.lock:
                found += queued(side.fold_to_show(part), persistent=not part.transient)
        return found

    def dispatch_waiting(self, queues: Iterable[str]) -> None:
        """Dispatch queues that have new messages to the consumers that wait for them.

        What cannot be dispatched now waits in its queue for the next time.
        """
        for queue in queues:
            for consumer in [c for c in self.consumers if c.queue == queue]:
                try:
                    consumer.channel.deliver(consumer)
                except Exception as error:  # what was sent is sent, whoever cannot get it now
                    logger.warning("queue not dispatched queue=%s error=%s", queue, error)
