"""Shards as last read: entries never change, so that only what came since is read again."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from txnqueue.journal import Journal
from txnqueue.model import Entry

ENTRIES_MAX = 100_000
"""So many entries are remembered at most; beyond, everything is forgotten and read anew."""


class ShardReader:
    """Reads whole shards, each from where the last reading of it ended."""

    def __init__(self, journal: Journal) -> None:
        """Read from a journal; nothing is remembered yet."""
        self._journal = journal
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, tuple[Entry, ...]]] = {}

    def read(self, shards: Iterable[str]) -> list[Entry]:
        """Read all entries of some shards, as they are now.

        Shards that were read up to the same version before take one query together.
        """
        wanted = sorted(set(shards))
        with self._lock:
            if sum(len(entries) for _, entries in self._known.values()) > ENTRIES_MAX:
                self._known.clear()
            by_version: dict[int, list[str]] = {}
            for shard in wanted:
                version, _ = self._known.get(shard, (-1, ()))
                by_version.setdefault(version, []).append(shard)
            for version, group in by_version.items():
                reading = self._journal.read(group, after=version)
                for shard in group:
                    new = tuple(entry for entry in reading.entries if entry.shard == shard)
                    before = self._known.get(shard, (-1, ()))[1]
                    self._known[shard] = (max(version, reading.version), before + new)
            return [entry for shard in wanted for entry in self._known[shard][1]]
