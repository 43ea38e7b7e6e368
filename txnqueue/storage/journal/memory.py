"""The journal in memory: the same conflict rule, versions and conditions as on Delta.

As with Delta's MERGE, an append takes a snapshot, evaluates its conditions on it, and lands
unless another writer has since added an entry to a shard that it read.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from txnqueue.core import model
from txnqueue.core.model import Entry, PositionId, Unit
from txnqueue.core.state import retention
from txnqueue.storage import setbacks
from txnqueue.storage.journal import AppendConflict, Appended, Audit, Newest, Order, Reading
from txnqueue.storage.journal.filters import EntryFilter, shards_of

_VERSION = attrgetter("version")
Step = Callable[[str], None]
"""Called between the steps of a store call, so that a scheduler can interleave clients."""


def no_step(name: str) -> None:
    """Do nothing before an atomic step of a store call."""


class MemoryArchive:
    """The archive in the memory of this process."""

    def __init__(self, journal: MemoryJournal) -> None:
        """Create an empty archive of a journal."""
        self.step = journal.step
        self.kept: dict[tuple[str, PositionId], Entry] = {}
        self._journal = journal
        self._created = False

    def exists(self) -> bool:
        """Return whether the archive was created."""
        return self._created

    def create(self) -> None:
        """Create the archive if it does not exist."""
        self._created = True

    def add(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Copy entries of the journal, except those that have left it."""
        self._check_created()
        self.step("archive")
        there = self._journal.ids({entry.shard for entry in entries})
        for entry in entries:
            if entry.entry_id in there:
                self.kept.setdefault((day, entry.entry_id), entry)

    def read(
        self,
        *,
        shards: Collection[str] | None = None,
        streams: Collection[str] | None = None,
        stream_prefix: str | None = None,
        append_ids: Collection[str] | None = None,
        among: Sequence[Entry] | None = None,
        kinds: Collection[str] | None = None,
        days: tuple[str, str] | None = None,
        before: int | None = None,
    ) -> tuple[Entry, ...]:
        """Read entries, each once."""
        self._check_created()
        self.step("read archive")
        wanted = None if among is None else {entry.entry_id for entry in among}
        found = (
            entry
            for (day, _), entry in list(self.kept.items())
            if (shards is None or entry.shard in shards)
            and (streams is None or entry.stream in streams)
            and (stream_prefix is None or entry.stream.startswith(stream_prefix))
            and (append_ids is None or entry.append_id in append_ids)
            and (wanted is None or entry.entry_id in wanted)
            and (kinds is None or entry.kind in kinds)
            and (days is None or days[0] <= day <= days[1])
            and (before is None or entry.version < before)
        )
        return model.each_once(found)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters."""
        return model.each_once(self._kept(wanted))

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time."""
        yield from sorted(self._kept([wanted]), key=order.key)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        return _newest(self.find(wanted))

    def forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        """Delete what is kept under the days before one, except what must be kept."""
        self._check_created()
        self.step("forget")
        oldest, kept = retention.oldest(standing), list(self.kept.items())
        every = [entry for _, entry in kept if entry.queue_id in oldest]
        every += [e for e in self._journal.entries() if e.queue_id in oldest]
        stays = retention.concerning(every, standing)
        old = [
            name
            for name, entry in kept
            if name[0] < day
            and entry.kind not in model.KEPT_FOR_EVER
            and (
                entry.version < oldest.get(entry.queue_id or "", sys.maxsize)
                or (entry.kind in model.COMPACTABLE and entry.entry_id not in stays)
            )
        ]
        for name in old if metadata is not None else ():
            self.kept.pop(name, None)
        return len(old)

    def files(self) -> dict[str, int]:
        """Count the files of each day; there are none."""
        return {}

    def rewrite(self, days: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the files of some days; there are none."""

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove files that nothing names: here there are none."""
        return None

    def _kept(self, wanted: Collection[EntryFilter]) -> tuple[Entry, ...]:
        """Read entries with all their copies."""
        self._check_created()
        self.step("read archive")
        return _matching(list(self.kept.values()), wanted)

    def _check_created(self) -> None:
        """Fail as a missing table would."""
        if not self._created:
            raise setbacks.archive_gone("archive")


class MemoryJournal:
    """A journal in the memory of this process; many clients may share it."""

    def __init__(self, step: Step = no_step) -> None:
        """Create an empty journal at version 0.

        Args:
            step: Called before each atomic step of a call, with the step's name.
        """
        self.step = step
        self.commits: list[tuple[tuple[Entry, ...], Mapping[str, object]]] = [((), {})]
        self._removals: list[tuple[int, list[Entry]]] = []
        self._shards: dict[str, list[Entry]] = defaultdict(list)
        self._lock = threading.Lock()
        self.archive = MemoryArchive(self)

    def version(self) -> int:
        """Read the newest version."""
        self.step("version")
        return self.known_version()

    def known_version(self) -> int:
        """Return the newest version, which costs nothing in memory."""
        return len(self.commits) - 1

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut."""
        self.step("read")
        with self._lock:
            return self._cut(shards, after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        self.step("read")
        with self._lock:  # a shard begins with its first entry
            return self._cut(self._shards, after, upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters, one consistent cut."""
        self.step("read")
        with self._lock:
            shards = shards_of(wanted)
            meant = self._shards.values() if shards is None else map(self._shards.get, shards)
            return _matching((e for found in meant for e in found or ()), wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time."""
        yield from sorted(self.find(wanted), key=order.key)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        return _newest(self.find(wanted))

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Count the inserted and deleted entries; entries are never updated here."""
        inserted = {e.entry_id: e.version for found, _ in self.commits[: upto + 1] for e in found}
        gone = {e.entry_id for version, left in self._removals if version <= upto for e in left}
        here = {e.entry_id for found in self._shards.values() for e in found if e.version <= upto}
        due = {name for name in gone if inserted[name] >= beginning}
        known = here | {name for _, name in self.archive.kept}
        since = sum(version >= beginning for version in inserted.values())
        return Audit(0, since, 0, len(due), len(due & known), len(gone & here))

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each entirely or not at all, in one version."""
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
            if self._missed(units, snapshot):
                raise AppendConflict("an entry that a condition is about was removed")
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

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that are in the archive under a day, in one version."""
        self.step("remove starts")
        shards = {entry.shard for entry in entries}
        wanted = {e.entry_id for e in entries if (day, e.entry_id) in self.archive.kept}
        with self._lock:
            snapshot = self.known_version()
        self.step("remove lands")
        with self._lock:
            removed = {entry.shard for entry in self._removed_since(snapshot)}
            if shards & removed or any(self._added_since(shard, snapshot) for shard in shards):
                raise AppendConflict(f"an entry was added to one of {sorted(shards)}, or removed")
            version = len(self.commits)
            gone = [e for s in shards for e in self._shards[s] if e.entry_id in wanted]
            if not gone:
                return
            for shard in {entry.shard for entry in gone}:
                kept = [e for e in self._shards[shard] if e.entry_id not in wanted]
                self._shards[shard] = kept
            self._removals.append((version, gone))
            self.commits.append(((), dict(metadata)))

    def entries(self) -> list[Entry]:
        """List the entries that are in the journal now."""
        with self._lock:
            return [entry for found in self._shards.values() for entry in found]

    def ids(self, shards: Collection[str]) -> set[PositionId]:
        """Return the ids of the entries that are in some shards now."""
        with self._lock:
            return {e.entry_id for shard in shards for e in self._shards.get(shard, ())}

    def files(self) -> dict[str, int]:
        """Count the files of each shard; there are none."""
        return {}

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the files of some shards; there are none."""

    def limit_removed_files(self, metadata: Mapping[str, object]) -> None:
        """Limit the number of removed files; there are none."""

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove files that nothing names: here there are none."""
        return None

    def _admitted(self, unit: Unit, snapshot: int) -> bool:
        own = (e for shard in unit.reads for e in self._between(shard, -1, snapshot))
        if any(entry.append_id == unit.append_id for entry in own):
            return False
        return all(
            condition.holds(self._between(condition.shard, -1, snapshot))
            for condition in unit.conditions
        )

    def _cut(self, shards: Iterable[str], after: int, upto: int | None) -> Reading:
        end = self.known_version() if upto is None else upto
        found = [e for shard in shards for e in self._between(shard, after, end)]
        return Reading(tuple(found), end)

    def _between(self, shard: str, after: int, upto: int) -> list[Entry]:
        """Find the entries of some versions by bisection: of many, mostly the last few are new."""
        entries = self._shards.get(shard, [])
        first = bisect_right(entries, after, key=_VERSION)
        return entries[first : bisect_right(entries, upto, first, key=_VERSION)]

    def _added_since(self, shard: str, snapshot: int) -> bool:
        """Return whether anything was added to a shard since a snapshot."""
        entries = self._shards.get(shard, [])
        return bool(entries) and entries[-1].version > snapshot

    def _removed_since(self, snapshot: int) -> list[Entry]:
        return [entry for version, gone in self._removals if version > snapshot for entry in gone]

    def _missed(self, units: Sequence[Unit], snapshot: int) -> bool:
        """Return whether an entry was deleted since that the units read, as Delta read its file.

        Delta may have read other files too, and then reports more conflicts than this.
        """
        gone = self._removed_since(snapshot)
        return any(
            condition.matches(entry)
            for unit in units
            for condition in unit.conditions
            for entry in gone
        )


def numbered(units: Sequence[Unit], admitted: Sequence[bool], version: int) -> tuple[Entry, ...]:
    """Give the entries of the admitted units their places in a version."""
    return tuple(
        replace(entry, version=version, ordinal=ordinal)
        for ordinal, (unit, won) in enumerate(zip(units, admitted, strict=True))
        if won
        for entry in unit.entries
    )


def _matching(entries: Iterable[Entry], wanted: Collection[EntryFilter]) -> tuple[Entry, ...]:
    return tuple(e for e in entries if any(one.matches(e) for one in wanted))


def _newest(entries: Iterable[Entry]) -> Newest:
    return Newest.among((entry.commit_seq, entry.recorded_at_ms) for entry in entries)
