"""Count the fates of one queue's messages, entry by entry (pure)."""

from __future__ import annotations

from collections import Counter

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState
from txnqueue.types import QueueCounts


class Tally:
    """Folds one queue, entry by entry, and counts the fates of its messages."""

    def __init__(self, info: QueueInfo) -> None:
        """Begin before the first entry."""
        self.info = info
        self.fold = QueueState(info.queue_id, info.settings.lanes)
        self._shards = frozenset(self.fold.shards)
        self._counts: Counter[str] = Counter()
        self._before: tuple[int, int] | None = None

    def begin(self) -> None:
        """Count from now on: what the queue holds counts as posted."""
        if self._before is None:
            self._before = (self.fold.length(), self.fold.purged_in_flight)

    def add(self, entry: Entry, *, known: bool) -> None:
        """Record an entry; only those from the history's beginning on count."""
        if known:
            self.begin()
        if entry.shard in self._shards:
            self.fold.apply(entry)
        if known:
            self._counts[entry.kind] += entry.count or 0

    def row(self, at_ms: int) -> QueueCounts:
        """Give what ``counts`` shows of it."""
        fold, info = self.fold, self.info
        length, purged_before = self._before or (fold.length(), fold.purged_in_flight)
        standing = sum(s.size for lane in fold.lanes.values() for s in lane.available)
        available = fold.available(at_ms, info.redelivery)
        posted = length + self._counts[model.POSTED]
        removed = {kind: self._counts[kind] for kind in sorted(model.REMOVALS)}
        over = sum(
            s.size
            for lane in fold.lanes.values()
            for s in lane.available
            if s.position.expired(at_ms)
        )
        removed[model.PURGED] += fold.purged_in_flight - purged_before
        gone = sum(removed.values())
        rejected = self._counts[model.REJECTED]
        in_flight = fold.in_flight()
        return {
            "queue": info.name,
            "lanes": info.settings.lanes,
            "posted": posted,
            "available": available,
            "delayed": standing - available - over,
            "in_flight": in_flight,
            "purge_pending": fold.purge_pending(),
            "accepted": posted - standing - in_flight - gone - rejected,
            "rejected": rejected,
            "dead_lettered": removed[model.DEAD_LETTERED],
            "expired": removed[model.EXPIRED] + over,
            "purged": removed[model.PURGED],
            "moved": removed[model.MOVED],
            "duplicates": removed[model.DUPLICATE],
        }
