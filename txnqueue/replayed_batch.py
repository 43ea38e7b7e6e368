"""A replay: consumed messages as they were, which can only be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from txnqueue.batch import Batch
from txnqueue.client.client import Client
from txnqueue.core import ranges
from txnqueue.core.settings import QueueInfo
from txnqueue.errors import AlreadySettled
from txnqueue.messages.selector import fulfilling
from txnqueue.reports import consumption
from txnqueue.reports.moments import commits_between
from txnqueue.reports.presence import Presence
from txnqueue.storage.payload import Part

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnqueue.heartbeat import Heartbeat


class ReplayedBatch(Batch):
    """Messages that were consumed, as a batch that can be read, but not settled.

    It has the columns of a batch, and the messages as they were delivered. No lease and no
    transaction holds them.
    """

    def __init__(
        self, client: Client, info: QueueInfo, schema: StructType, parts: list[Part]
    ) -> None:
        """Wrap consumed messages; users get replays from ``Queue.replay``."""
        super().__init__(client, schema, ())
        self._queue = info.name
        self._consumed = parts

    def __len__(self) -> int:
        """Count the messages."""
        return sum(ranges.count(part.ranges) for part in self._consumed)

    def __repr__(self) -> str:
        """Show the number of messages and the queue."""
        return f"<ReplayedBatch of {len(self)} from {self._queue}, consumed before>"

    def keep(self) -> None:
        """Refuse: nothing is held.

        Raises:
            AlreadySettled: Always.
        """
        self._refuse()

    def heartbeat(
        self, lease_seconds: float = 300.0, every_seconds: float | None = None
    ) -> Heartbeat:
        """Refuse: nothing is held.

        Raises:
            AlreadySettled: Always.
        """
        self._refuse()

    def extend_lease(self, seconds: float) -> None:
        """Refuse: nothing is held.

        Raises:
            AlreadySettled: Always.
        """
        self._refuse()

    def _parts(self) -> list[Part]:
        return self._consumed

    def _named(self, *_: object) -> NoReturn:
        self._refuse()

    def _settle(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AlreadySettled(
            f"These messages of {self._queue!r} are already consumed and can only be read: "
            "queue.resend(batch) sends them again; manager.rehearse() runs a handler on a past "
            "state."
        )


def _first(parts: Sequence[Part], limit: int) -> list[Part]:
    """Take the first messages of some parts."""
    taken: list[Part] = []
    for part in parts:
        if limit <= 0:
            break
        taken.append(replace(part, ranges=ranges.take(part.ranges, limit)))
        limit -= ranges.count(part.ranges)
    return taken


def replayed(
    client: Client,
    info: QueueInfo,
    schema: StructType,
    after: int,
    upto: int | None,
    *,
    where: str | None,
    limit: int | None,
    partial: bool,
) -> ReplayedBatch:
    """Find what was consumed of a queue between two commits, as ``Queue.replay`` says."""
    past = commits_between(client, after, upto)
    found = consumption.consumed(past, info, after)
    presence = Presence(client.store.payload, client.cache.catalog_entries())
    parts: Sequence[Part] = [part for one in found for part in one.parts]
    if partial:
        parts = presence.left(parts)
    else:
        consumption.check_payload(presence, found, info.name)
    if where is not None and parts:
        folder = client.store.payload.folder
        whole = ReplayedBatch(client, info, schema, list(parts))
        parts = consumption.meant(parts, dict(fulfilling(whole.df, where, folder)[None]))
    shown = parts if limit is None else _first(parts, limit)
    return ReplayedBatch(client, info, schema, list(shown))
