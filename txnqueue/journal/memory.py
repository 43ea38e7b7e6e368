"""The journal's twin in memory: the same conflict rule, versions and conditions as on Delta.

Like Delta's MERGE an append takes a snapshot, evaluates its conditions on it, and lands
unless somebody has added an entry to a shard that it read since the snapshot.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from txnqueue.journal import AppendConflict, Appended, Reading
from txnqueue.model import Entry, Unit

Step = Callable[[str], None]
"""Called between the steps of a store call, so that a scheduler can interleave clients."""


def _no_step(name: str) -> None:
    pass


class MemoryJournal:
    """A journal in the memory of this process; many clients may share it."""

    def __init__(self, step: Step = _no_step) -> None:
        """Make an empty journal at version 0.

        Args:
            step: Called before each atomic step of a call, with the step's name.
        """
        self.step = step
        self.commits: list[tuple[tuple[Entry, ...], Mapping[str, object]]] = [((), {})]
        self._shards: dict[str, list[Entry]] = defaultdict(list)
        self._lock = threading.Lock()

    def version(self) -> int:
        """Read the newest version."""
        self.step("version")
        return self.known_version()

    def known_version(self) -> int:
        """Return the newest version; in memory it costs nothing."""
        return len(self.commits) - 1

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut."""
        self.step("read")
        with self._lock:
            end = self.known_version() if upto is None else upto
            found = [e for shard in shards for e in self._between(shard, after, end)]
        return Reading(tuple(found), end)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        return self.read(tuple(self._shards), after, upto)

    def audit(self, upto: int) -> tuple[int | None, int]:
        """Count what was inserted; nothing is ever changed here."""
        return sum(len(entries) for entries, _ in self.commits[: upto + 1]), 0

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each wholly or not at all, in one version."""
        self.step("append starts")
        with self._lock:
            snapshot = self.known_version()
            admitted = tuple(self._admitted(unit, snapshot) for unit in units)
        if not any(admitted):
            return Appended(admitted, None)
        self.step("append lands")
        reads = {shard for unit in units for shard in unit.reads}
        with self._lock:
            if any(self._added_since(shard, snapshot) for shard in reads):
                raise AppendConflict(f"an entry was added to one of {sorted(reads)}")
            return Appended(admitted, self._land(units, admitted, metadata))

    def _land(
        self, units: Sequence[Unit], admitted: Sequence[bool], metadata: Mapping[str, object]
    ) -> int:
        version = self.known_version() + 1
        landed = numbered(units, admitted, version)
        self.commits.append((landed, dict(metadata)))
        for entry in landed:
            self._shards[entry.shard].append(entry)
        return version

    def _admitted(self, unit: Unit, snapshot: int) -> bool:
        return all(
            condition.holds(self._between(condition.shard, -1, snapshot))
            for condition in unit.conditions
        )

    def _between(self, shard: str, after: int, upto: int) -> list[Entry]:
        entries = self._shards.get(shard, [])
        return [entry for entry in entries if after < entry.version <= upto]

    def _added_since(self, shard: str, snapshot: int) -> bool:
        entries = self._shards.get(shard)
        return entries is not None and entries[-1].version > snapshot


def numbered(units: Sequence[Unit], admitted: Sequence[bool], version: int) -> tuple[Entry, ...]:
    """Give the entries of the admitted units the places that they have in a version."""
    return tuple(
        replace(entry, version=version, ordinal=ordinal)
        for ordinal, (unit, won) in enumerate(zip(units, admitted, strict=True))
        if won
        for entry in unit.entries
    )
