"""The journal: one table of immutable entries, behind an interface of three calls.

``delta`` keeps it in a Delta table, ``memory`` in memory, with the same conflict rule.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txnqueue.core.model import Entry, Unit
from txnqueue.storage.journal.filters import EntryFilter

__all__ = [
    "AppendConflict", "Appended", "Archive", "Audit", "EntryFilter", "Journal", "Newest", "Order",
    "Reading",
]  # fmt: skip


class AppendConflict(Exception):
    """The store says that another append was faster; reading tells whether that is true."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries of some shards, complete up to a version of the journal."""

    entries: tuple[Entry, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Which units of an append went in, and where.

    Attributes:
        won: Which ones.
        version: The version that it made; None: none did.
        ordinal: The place of the first unit among all those of the version.
    """

    won: tuple[bool, ...]
    version: int | None
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """What the store's own log says of the journal's entries, up to a version.

    Attributes:
        since: The first version that the log tells of; after the last one if it tells nothing.
        inserted: How many entries were inserted from then on, and from the beginning on.
        updated: How many changes there were that are neither: nothing may do that.
        deleted: How many entries were deleted that the history must still know.
        known: How many of those are known: they stand in the archive, or in the journal.
        returned: How many entries stand in the journal though they were deleted.
        set_back: By what entries were taken away, and what undoes it; empty: by nothing.
    """

    since: int
    inserted: int
    updated: int
    deleted: int
    known: int
    returned: int
    set_back: str = ""


@dataclass(frozen=True, slots=True)
class Newest:
    """The largest commit_seq and the latest instant among some entries; -1: there are none."""

    commit_seq: int = -1
    recorded_at_ms: int = -1


class Order(enum.Enum):
    """In which order entries are streamed."""

    COMMIT = "commit"
    """As they were committed."""
    STREAM = "stream"
    """Shard by shard and stream by stream; in each by sequence number, without one first."""

    def key(self, entry: Entry) -> tuple[Any, ...]:
        """Make what entries are sorted by."""
        if self is Order.COMMIT:
            return entry.place
        number = -1 if entry.sequence is None else entry.sequence
        return (entry.shard, entry.stream, number, *entry.place)


class Archive(Protocol):
    """Entries that are finished: the same as in the journal, each with its version.

    An entry may stand here more than once, and in the journal as well: its id tells.
    """

    def create(self) -> None:
        """Create the archive; no error if it is there."""
        ...

    def add(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Copy entries of the journal, verbatim; no error if some are there.

        Args:
            entries: The entries.
            day: The day (ISO) under which they are kept.
            metadata: What the store's own history shall say of the commit.
        """
        ...

    def read(
        self,
        *,
        streams: Collection[str] | None = None,
        stream_prefix: str | None = None,
        append_ids: Collection[str] | None = None,
        among: Sequence[Entry] | None = None,
        kinds: Collection[str] | None = None,
        days: tuple[str, str] | None = None,
        before: int | None = None,
    ) -> tuple[Entry, ...]:
        """Read entries, each once.

        Args:
            among: Only those with the ids of these entries.
            kinds: Only those of these kinds.
            streams: Only those of these streams.
            stream_prefix: Only those whose stream begins so.
            append_ids: Only those of these appends.
            days: Only those kept under a day from the first to the last, both included.
            before: Only those of versions before this one.
        """
        ...

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that one of some filters lets through, one consistent cut.

        Only they are brought to the caller, however many others there are.
        """
        ...

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time, one consistent cut.

        The cut is taken when the first one is asked for.
        """
        ...

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find how far the entries reach that a filter lets through."""
        ...

    def forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        """Delete what is kept under the days before one.

        In the end, or repeated, it is all gone; in between what is left tells nothing wrong.

        Args:
            day: The first day (ISO) that stays.
            standing: Positions that are known: what concerns their messages stays all the same.
            metadata: What the store's own history shall say of the commit; None: only count.

        Returns:
            How many rows those are.

        Raises:
            AppendConflict: Another writer changed the same days meanwhile.
        """
        ...

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of the archive that no retained version names; as the journal's."""
        ...


class Journal(Protocol):
    """A totally ordered log of entries with conditional, atomic appends."""

    @property
    def archive(self) -> Archive:
        """Where finished entries are kept."""
        ...

    def version(self) -> int:
        """Read the newest version."""
        ...

    def known_version(self) -> int:
        """Return what was the newest version a moment ago; mostly without asking the store."""
        ...

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut.

        Args:
            shards: The shards to read; nothing else is touched.
            after: Leave out this version and all before it.
            upto: Leave out everything after this version; None reads to the newest.
        """
        ...

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        ...

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that one of some filters lets through, one consistent cut.

        Only they are brought to the caller, however many others there are.
        """
        ...

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time, one consistent cut.

        The cut is taken when the first one is asked for.
        """
        ...

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find how far the entries reach that a filter lets through."""
        ...

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Ask the store's own log what happened to entries.

        Args:
            upto: Up to this version.
            beginning: From this version on the history is whole; -1: all of it.
        """
        ...

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that stand in the archive under a day, in one commit of the store.

        Those of them that do not stand there stay. Appends in flight that read one of the
        entries' shards lose, and start again.

        Raises:
            AppendConflict: Another writer added an entry to one of the shards meanwhile.
        """
        ...

    def files(self) -> dict[str, int]:
        """Count the files of each shard."""
        ...

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Write the entries of some shards into few files; nothing else changes."""
        ...

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of the journal that no retained version names.

        Args:
            seconds_min: Only if deleted files are kept for so long.
            full: Whether files are removed too that no version ever named, as an append leaves
                them that lost a race.

        Returns:
            Why nothing was removed; None if it was.
        """
        ...

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each wholly or not at all, in one commit of the store.

        Args:
            units: What goes in, in the order in which they are numbered.
            metadata: What the store's own history shall say of the commit.

        Raises:
            AppendConflict: The store says that it lost a race. Like every other exception
                it does not mean that nothing landed.
        """
        ...
