"""A reader of queues' pasts that remembers what it read: entries never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core.model import Entry

ENTRIES_MAX = 20_000
"""The most entries kept, of all queues together: some ten megabytes."""


@dataclass(frozen=True)
class _Known:
    """The entries of a queue up to a commit.

    Attributes:
        beginning: The version at which the history began when they were read.
        upto: The commit_seq up to which they were read.
        entries: In commit order.
    """

    beginning: int
    upto: int
    entries: Sequence[Entry]


class PastReader:
    """Reads the entries of queues up to a commit, each queue from where its last reading ended."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._lock = threading.RLock()
        """A collection of garbage at any step may leave a block, which may read here again."""
        self._known = OrderedDict[tuple[str, int], _Known]()

    def read(self, past: Past, queue_id: str, lanes: int) -> list[Entry]:
        """Read the entries of a queue's lanes and backlog, and those of the fence about it.

        Removed positions are left out.

        Args:
            past: How far to read: to a commit that there is.
            queue_id: The queue.
            lanes: Its number of lanes.

        Returns:
            The entries, in commit order.

        Raises:
            HistoryRemoved: Entries that belong to the past were removed meanwhile.
        """
        key = (queue_id, lanes)
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:
                self._known[key] = known
        if known is None or known.beginning != past.beginning:
            # A past that was cut before a removal learns of it only when it is read.
            known = _Known(past.beginning, -1, ())
        if known.upto < past.upto:
            known = self._read_on(past, key, known)
            self._keep(key, known)
        found = (entry for entry in known.entries if entry.commit_seq <= past.upto)
        return list(archive.known(found, known.beginning))

    def _read_on(self, past: Past, key: tuple[str, int], known: _Known) -> _Known:
        """Read what was added; everything if the history begins later than it did before.

        Of what was removed, a position may be known, and a claim of it may be gone unseen.
        """
        wanted = (archive.of_lanes(*key), archive.of_fence(key[0]))
        while True:
            found = past.find(*(replace(one, after=known.upto) for one in wanted))
            if past.beginning == known.beginning:
                return _Known(known.beginning, past.upto, [*known.entries, *found])
            known = _Known(past.beginning, -1, ())

    def _keep(self, key: tuple[str, int], known: _Known) -> None:
        """Remember what was read, and forget what nobody has read for longest."""
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = known
            kept = sum(len(one.entries) for one in list(self._known.values()))
            while kept > ENTRIES_MAX and self._known:
                _, gone = self._known.popitem(last=False)
                kept -= len(gone.entries)
