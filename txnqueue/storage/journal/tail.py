"""The newest entries of the journal that this process wrote itself.

Entries never change. A process that knows all entries of a version need not read it, so most
reads only check whether there is a version after the known ones.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from txnqueue.core.model import Condition, Entry

ENTRIES_MAX = 20_000
"""How many entries and ranges are kept; the oldest versions are dropped first."""


class Tail:
    """All entries of some versions of one journal; several threads may use it."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        """Create an empty tail.

        Args:
            entries_max: How many entries and ranges are kept.
        """
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Entry, ...]] = {}
        self._shards: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self._size = 0

    def add(self, version: int, entries: Iterable[Entry]) -> None:
        """Keep all entries of a version that has landed, with their places."""
        kept = tuple(_as_read(replace(entry, version=version)) for entry in entries)
        with self._lock:
            if version in self._versions:
                return
            self._versions[version] = kept
            self._size += _size(kept)
            for entry in kept:
                self._shards[entry.shard].append(entry)
            while self._size > self._entries_max:
                self._drop(min(self._versions))

    def after(self, version: int) -> tuple[list[Entry], int]:
        """Return the entries of the versions that follow one, up to the first unknown version.

        Returns:
            The entries in commit order, and the last version covered.
        """
        found: list[Entry] = []
        # Without the lock: Python may collect garbage here, and so end the block of a transaction
        # in this thread. Its rollback waits for the thread that calls ``add``, which would wait
        # for the lock.
        while (entries := self._versions.get(version + 1)) is not None:
            version += 1
            found.extend(entries)
        return found, version

    def breaks(self, conditions: Collection[Condition]) -> bool:
        """Return whether an entry that has landed breaks one of some conditions permanently.

        Only conditions that something does not exist are checked: conditions that something
        exists may be met by versions that are not kept.
        """
        with self._lock:
            return any(
                condition.matches(entry)
                for condition in conditions
                if not condition.present
                for entry in self._shards.get(condition.shard, ())
            )

    def _drop(self, version: int) -> None:
        dropped = self._versions.pop(version)
        self._size -= _size(dropped)
        for entry in dropped:
            self._shards[entry.shard].remove(entry)


def _size(entries: Iterable[Entry]) -> int:
    return sum(1 + len(entry.ranges) for entry in entries)


def _as_read(entry: Entry) -> Entry:
    """Give an entry the body that a reader of the journal gets, after a round trip through JSON."""
    body = json.loads(json.dumps(dict(entry.body)))
    ranges = tuple((first, last) for first, last in entry.ranges)
    return replace(entry, body=body, ranges=ranges)
