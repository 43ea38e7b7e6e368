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
        self._horizon = -1

    def read(self, shards: Iterable[str]) -> list[Entry]:
        """Read all entries of some shards, as they are now; some may be archived by now."""
        return self.read_with_horizon(shards)[0]

    def read_with_horizon(self, shards: Iterable[str]) -> tuple[list[Entry], int]:
        """Read all entries of some shards, and the horizon of the same version.

        It is one cut, read by one query: whether an attempt is absent and below the horizon
        can only be told by entries that are as new as the horizon. What is read for the first
        time is read in full, and everything that is wanted with it.
        """
        wanted = sorted(set(shards))
        with self._lock:
            if sum(len(entries) for _, entries in self._known.values()) > ENTRIES_MAX:
                self._known.clear()
            if not all(shard in self._known for shard in wanted):
                for shard in wanted:
                    self._known.pop(shard, None)
            since = min((self._known[s][0] for s in wanted if s in self._known), default=None)
            self._read_on(wanted)
            if since is not None and since < self._horizon:
                self._known.clear()  # what came since may have left: all is read anew
                self._read_on(wanted)
            entries = [entry for shard in wanted for entry in self._known[shard][1]]
            return entries, self._horizon

    def _read_on(self, shards: list[str]) -> None:
        """Read what came since the first of these shards was read last."""
        if not shards:
            return
        known = {shard: self._known.get(shard, (-1, ())) for shard in shards}
        since = min(version for version, _ in known.values())
        # The horizon comes along: what was added below it may have left the journal since.
        reading = self._journal.read({*shards, model.FENCE}, after=since)
        self._horizon = max(self._horizon, model.horizon(reading.entries))
        for shard, (version, before) in known.items():
            new = (e for e in reading.entries if e.shard == shard and e.version > version)
            self._known[shard] = (max(version, reading.version), (*before, *new))
