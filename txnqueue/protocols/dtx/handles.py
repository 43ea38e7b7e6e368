"""Queues and exchanges taken from a channel outside any branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txnqueue.batch import Batch
from txnqueue.exchange import Exchange
from txnqueue.protocols.dtx.sessions import BranchSession
from txnqueue.queue import Queue
from txnqueue.transactions.attempt import Attempt

AtWork = Callable[[], BranchSession | None]
"""Returns the branch session in which a channel works now, if any."""


class ChannelQueue(Queue):
    """A queue that works in whichever branch its channel works in."""

    def __init__(self, queue: Queue, at_work: AtWork) -> None:
        """Hold a queue for a channel."""
        super().__init__(queue._client, queue.info)
        self._at_work = at_work

    @property
    def _bound(self) -> Attempt | None:
        return self._at_work()

    def receive(self, *args: Any, **how: Any) -> Batch:
        """Receive as ``Queue.receive``; a branch refuses to settle what was received outside it."""
        batch = super().receive(*args, **how)
        batch._at_work = self._at_work
        return batch


class ChannelExchange(Exchange):
    """An exchange that publishes in whichever branch its channel works in."""

    def __init__(self, exchange: Exchange, at_work: AtWork) -> None:
        """Hold an exchange for a channel."""
        super().__init__(exchange._client, exchange.info)
        self._at_work = at_work

    @property
    def _bound(self) -> Attempt | None:
        return self._at_work()
