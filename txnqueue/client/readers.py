"""Readers of the journal that remember what they read: entries never change.

Shards are remembered as their entries, queues as their folds.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from txnqueue.core import custody, model
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, compaction
from txnqueue.storage.journal import Journal, Reading

ENTRIES_MAX = 100_000
"""The most entries kept; beyond that, all are dropped and read anew."""
ENTRIES_KEPT = 2_000
"""The most entries kept of which some may have been archived: some megabytes."""
SHARDS_MAX = 1_000
"""The number of shards, or a few more, that one query reads."""


class ShardReader:
    """Reads whole shards, each from where the last reading of it ended.

    Python may collect garbage at any step, and leave a transaction block that a generator holds:
    its rollback reads here, too, in the same thread. The other reading is then made again, because
    the horizon may be newer than what it has read.
    """

    def __init__(self, journal: Journal) -> None:
        """Read from a journal; nothing is remembered yet."""
        self._journal = journal
        self._lock = custody.freed_in_forks(threading.RLock())
        self._known: dict[str, tuple[int, tuple[Entry, ...]]] = {}
        self._horizon = self._kept_since = -1
        self._begun = 0
        """How many readings were begun: those of a collection come between the steps of another."""

    def read(self, shards: Iterable[str]) -> list[Entry]:
        """Read all entries of some shards, among them some that may be archived by now."""
        return self.read_with_horizon(shards)[0]

    def read_with_horizon(self, shards: Iterable[str]) -> tuple[list[Entry], int]:
        """Read all entries of some shards, and the horizon of the same version.

        It is one consistent view, read by one query: only entries as new as the horizon show
        whether an attempt is absent and below it. If a shard is read for the first time, all the
        given shards are read in full.
        """
        wanted = sorted(set(shards))
        with self._lock:
            while True:
                self._begun += 1
                begun = self._begun
                self._read(wanted)
                known = [self._known.get(shard, (-1, ())) for shard in wanted]
                entries, horizon = [entry for _, part in known for entry in part], self._horizon
                if begun == self._begun:
                    return entries, horizon

    def _read(self, wanted: list[str]) -> None:
        self._drop_outgrown()
        anew = not self._known
        if not all(shard in self._known for shard in wanted):
            for shard in wanted:
                self._known.pop(shard, None)
        if not self._read_on(wanted):
            self._known.clear()
            anew = True
            self._read_on(wanted)
        if anew:
            self._kept_since = self._horizon

    def _drop_outgrown(self) -> None:
        """Drop everything if it is much, and some of it may have left the journal meanwhile.

        Otherwise a process would keep in memory whatever it has seen of the journal.
        """
        most = ENTRIES_KEPT if self._horizon > self._kept_since else ENTRIES_MAX
        known = list(self._known.values())  # it may change meanwhile
        if sum(len(entries) for _, entries in known) > most:
            self._known.clear()

    def _read_on(self, shards: list[str]) -> bool:
        """Read the entries since the least recent reading of these shards.

        Returns:
            Whether they were remembered. They are not if some may have left the journal already,
            because then an interrupt would leave a gap: all must be read anew.
        """
        if not shards:
            return True
        known = {shard: self._known.get(shard, (-1, ())) for shard in shards}
        since = min(version for version, _ in known.values())
        # The horizon is read too: entries added below it may have left the journal since.
        reading = self._journal.read({*shards, model.FENCE}, after=since)
        self._horizon = max(self._horizon, model.horizon(reading.entries))
        if 0 <= since < self._horizon:
            return False
        for shard, (version, before) in known.items():
            new = (e for e in reading.entries if e.shard == shard and e.version > version)
            self._known[shard] = (max(version, reading.version), (*before, *new))
        return True


class StateReader:
    """Keeps the folds of queues, for one thread at a time."""

    def __init__(self, journal: Journal, mine: custody.Custody | None = None) -> None:
        """Read from a journal; nothing is folded yet.

        Args:
            journal: The journal.
            mine: Checks that this thread may use the folds.
        """
        self._journal = journal
        self._mine = mine
        self._known: dict[str, QueueState] = {}

    def read(self, infos: Sequence[QueueInfo]) -> list[QueueState]:
        """Advance the folds of some queues to the newest version.

        It takes one query of the new entries, and one more for each thousand shards of queues that
        were not folded before.
        """
        folds = [self._known.get(info.queue_id) or self._empty(info) for info in infos]
        warm = [fold for fold in folds if fold.version >= 0]
        if warm:
            reading = self._read(warm, min(fold.version for fold in warm))
            horizon = model.horizon(reading.entries)
            self._advance([fold for fold in warm if horizon <= fold.version], reading)
            # Entries added since a fold was read may have left the journal: it starts afresh.
            folds = [
                self._empty(info) if 0 <= fold.version < horizon else fold
                for info, fold in zip(infos, folds, strict=True)
            ]
        cold = iter([fold for fold in folds if fold.version < 0])
        while some := _some(cold):
            self._advance(some, self._read(some))
        return folds

    def _read(self, folds: Iterable[QueueState], after: int = -1) -> Reading:
        shards = dict.fromkeys(shard for fold in folds for shard in fold.shards)
        return self._journal.read(tuple(shards), after=after)

    def _advance(self, folds: Iterable[QueueState], reading: Reading) -> None:
        by_shard = defaultdict[str, list[Entry]](list)
        for entry in reading.entries:
            by_shard[entry.shard].append(entry)
        for fold in folds:
            mine = [e for shard in fold.shards for e in by_shard[shard] if e.version > fold.version]
            # Half applied, it must not be found: by who reads after an interrupt, or in a fork.
            self._known.pop(fold.queue_id, None)
            compaction.advance(fold, mine, reading.version)
            self._known[fold.queue_id] = fold

    def _empty(self, info: QueueInfo) -> QueueState:
        settings = info.settings
        fold = QueueState(info.queue_id, settings.lanes, settings.duplicate_window_ms, self._mine)
        self._known[info.queue_id] = fold
        return fold


def _some(folds: Iterator[QueueState]) -> list[QueueState]:
    """Take the next folds that one query reads."""
    found: list[QueueState] = []
    shards = 0
    while shards < SHARDS_MAX and (fold := next(folds, None)) is not None:
        found.append(fold)
        shards += len(fold.shards)
    return found
