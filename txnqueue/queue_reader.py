"""The read-only view of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnqueue.core import markup
from txnqueue.core.settings import MESSAGES_PER_RECEIVE_MAX, check_count
from txnqueue.core.state import QueueState
from txnqueue.messages import browse
from txnqueue.reports.metrics import DeadLetters, queue_shown
from txnqueue.storage.payload import messages_of

if TYPE_CHECKING:
    import pyarrow as pa

    from txnqueue.client.client import Client
    from txnqueue.core.settings import QueueInfo
    from txnqueue.types import Message


class QueueReader:
    """The reading half of a ``Queue``: how much there is, and what comes first."""

    def __init__(self, client: Client, info: QueueInfo) -> None:
        """Hold a queue; users get it from ``StoreReader.queue``."""
        self._client = client
        self._opened = info

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._opened.name

    @property
    def info(self) -> QueueInfo:
        """The queue's description in the catalog, the newest that was read."""
        return self._client.cache.newest(self._opened)

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show depth, dead letters and columns in a notebook, as a ``Queue`` does."""
        return queue_shown(self._client, self.info, self.depth(), self.in_flight())

    def __repr__(self) -> str:
        """Show the queue's name and the store."""
        return f"<QueueReader of {self.name} of {self._client.store.root}>"

    def depth(self, *, lapsed: bool = False) -> int:
        """Count the messages that can be received now: not in flight, delayed or expired.

        Args:
            lapsed: Whether to count also messages whose lease or transaction has ended, as in
                ``Queue.depth``.

        Returns:
            The number of messages.

        Raises:
            InvalidInput: ``lapsed`` is neither True nor False.
        """
        return browse.depth(self._client, self.info, lapsed=lapsed)

    def in_flight(self) -> int:
        """Count the messages that are received and not settled.

        Returns:
            The number of messages.
        """
        return browse.total(self._client, self.info, QueueState.in_flight)

    def peek(self, limit: int = 20) -> pa.Table:
        """Look at the first available messages without claiming them.

        Args:
            limit: At most this many messages.

        Returns:
            A table with the payload's columns and ``_message``, in delivery order.

        Raises:
            InvalidInput: The limit cannot be used.
            PayloadRemoved: The payload of some of the messages was removed or erased.
        """
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        parts, _ = browse.first(self._client, self.info, limit, None)
        payload = self._client.store.payload
        return payload.table(payload.schema(self.info.schema), parts)

    def peek_messages(self, limit: int = 20) -> list[Message]:
        """Look at the first available messages as ``peek`` does, as dicts in delivery order.

        Args:
            limit: As in ``peek``.

        Returns:
            One dict per message, with the payload's columns and ``_message``.

        Raises:
            InvalidInput: As in ``peek``.
            PayloadRemoved: As in ``peek``.
        """
        return messages_of(self.peek(limit))

    def dead_letters(self) -> DeadLetters:
        """Report this queue's dead letters by origin and reason, as ``Queue.dead_letters`` does.

        Returns:
            The dead letters of this queue; for a dead-letter queue itself, all messages that came
            into it.
        """
        return DeadLetters(self._client, self.info)
