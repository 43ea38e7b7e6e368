"""Shards as last read: entries never change, so that only what came since is read again."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from txnqueue import model
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
        self.horizon = -1

    def read(self, shards: Iterable[str]) -> list[Entry]:
        """Read all entries of some shards, as they are now; some may be archived by now.

        It takes one query for those that were read before, and one for the others.
        """
        wanted = sorted(set(shards))
        with self._lock:
            if sum(len(entries) for _, entries in self._known.values()) > ENTRIES_MAX:
                self._known.clear()
            known = [shard for shard in wanted if shard in self._known]
            since = min((self._known[shard][0] for shard in known), default=self.horizon)
            self._read_on(known)
            if since < self.horizon:  # what came since may have left: all is read anew
                self._known.clear()
            self._read_on([shard for shard in wanted if shard not in self._known])
            return [entry for shard in wanted for entry in self._known[shard][1]]

    def _read_on(self, shards: list[str]) -> None:
        """Read what came since the first of these shards was read last."""
        if not shards:
            return
        known = {shard: self._known.get(shard, (-1, ())) for shard in shards}
        since = min(version for version, _ in known.values())
        # The horizon comes along: what was added below it may have left the journal since.
        reading = self._journal.read({*shards, model.FENCE}, after=since)
        self.horizon = max(self.horizon, model.horizon(reading.entries))
        for shard, (version, before) in known.items():
            new = (e for e in reading.entries if e.shard == shard and e.version > version)
            self._known[shard] = (max(version, reading.version), (*before, *new))
