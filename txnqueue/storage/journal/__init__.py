"""The journal: one table of immutable entries, behind an interface.

``delta`` keeps it in a Delta table, and ``memory`` in memory with the same conflict rule.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txnqueue.core.model import Entry, Unit
from txnqueue.storage.journal.filters import EntryFilter

__all__ = [
    "AppendConflict", "Appended", "Archive", "Audit", "EntryFilter", "Journal", "Newest", "Order",
    "Reading",
]  # fmt: skip


class AppendConflict(Exception):
    """The store reports that another append won; reading shows whether that is true."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries of some shards, complete up to a version of the journal."""

    entries: tuple[Entry, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The units of an append that landed, and where.

    Attributes:
        won: The units that landed.
        version: The version that it created; None if no unit landed.
        ordinal: The ordinal of the first unit within the version.
    """

    won: tuple[bool, ...]
    version: int | None
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """What the store's own log tells about the journal's entries, up to a version.

    Attributes:
        since: The first version that the log covers; after the last one if it covers none.
        inserted: The number of entries inserted since then, and not before the beginning.
        updated: The number of other changes, which are never allowed.
        deleted: The number of deleted entries that the history must still know.
        known: The number of those that are in the archive or in the journal.
        returned: The number of entries that are in the journal although they were deleted.
        set_back: The commit that removed entries, and the remedy; empty if there was none.
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
    """The newest commit and the latest instant among some entries; -1 if there are none.

    Attributes:
        commit_seq: The largest commit_seq.
        recorded_at_ms: When that commit was recorded.
        latest_ms: The latest instant that any of the entries was recorded at: later than that if
            a clock was ahead.
    """

    commit_seq: int = -1
    recorded_at_ms: int = -1
    latest_ms: int = -1

    @classmethod
    def among(cls, places: Iterable[tuple[int, int]]) -> Newest:
        """Find the newest of some entries, given by their commit_seq and recorded instant."""
        found = list(places)
        if not found:
            return cls()
        return cls(*max(found), max(recorded_at_ms for _, recorded_at_ms in found))

    def or_newer(self, other: Newest) -> Newest:
        """Return the newest of the entries that either was found among."""
        one, two = ((it.commit_seq, it.recorded_at_ms) for it in (self, other))
        return Newest(*max(one, two), max(self.latest_ms, other.latest_ms))


class Order(enum.Enum):
    """The order in which entries are streamed."""

    COMMIT = "commit"
    """Commit order."""
    STREAM = "stream"
    """By shard, stream and sequence number; entries without a number first."""

    def key(self, entry: Entry) -> tuple[Any, ...]:
        """Return the sort key of an entry."""
        if self is Order.COMMIT:
            return entry.place
        number = -1 if entry.sequence is None else entry.sequence
        return (entry.shard, entry.stream, number, *entry.place)


class Archive(Protocol):
    """Finished entries, the same as in the journal, each with its version.

    An entry may be here more than once, and in the journal as well; its id identifies it.
    """

    def exists(self) -> bool:
        """Return whether the archive is there; it may be empty."""
        ...

    def create(self) -> None:
        """Create the archive if it does not exist."""
        ...

    def add(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Copy entries of the journal verbatim; entries that are already there are no error.

        Args:
            entries: The entries.
            day: The day (ISO) under which they are kept.
            metadata: The description of the commit in the store's own history.
        """
        ...

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
        """Read entries, each once.

        Args:
            among: Only entries with the ids of these.
            kinds: Only entries of these kinds.
            shards: Only entries of these shards.
            streams: Only entries of these streams.
            stream_prefix: Only entries whose stream begins with this.
            append_ids: Only entries of these appends.
            days: Only entries kept under days from the first to the last, inclusive.
            before: Only entries of versions before this one.
        """
        ...

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters, one consistent cut.

        Only they are brought to the caller, however many others there are.
        """
        ...

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time, one consistent cut.

        The cut is taken when the first one is asked for.
        """
        ...

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        ...

    def forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        """Delete what is kept under the days before one.

        If it is interrupted, the remaining entries are consistent, and repeating it completes it.

        Args:
            day: The first day (ISO) that is kept.
            standing: Known positions; entries that concern their messages are kept.
            metadata: The description of the commit in the store's own history; None: only count.

        Returns:
            The number of rows.

        Raises:
            AppendConflict: Another writer changed the same days meanwhile.
        """
        ...

    def files(self) -> dict[str, int]:
        """Count the files of each day (ISO)."""
        ...

    def rewrite(self, days: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the entries of some days into few files.

        Raises:
            AppendConflict: Another writer changed the same days meanwhile.
        """
        ...

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the archive's files that no retained version names, as for the journal."""
        ...


class Journal(Protocol):
    """A totally ordered log of entries with conditional, atomic appends."""

    @property
    def archive(self) -> Archive:
        """The archive of finished entries."""
        ...

    def version(self) -> int:
        """Read the newest version."""
        ...

    def known_version(self) -> int:
        """Return a recent newest version, mostly without asking the store."""
        ...

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut.

        Args:
            shards: The shards to read; others are not touched.
            after: Only versions after this one are read.
            upto: Only versions up to this one are read; None: up to the newest.
        """
        ...

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        ...

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters, one consistent cut.

        Only they are brought to the caller, however many others there are.
        """
        ...

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time, one consistent cut.

        The cut is taken when the first one is asked for.
        """
        ...

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        ...

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Check with the store's own log what happened to entries.

        Args:
            upto: The last version to check.
            beginning: The version from which the history is complete; -1: all of it.
        """
        ...

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that are in the archive under a day, in one commit of the store.

        Entries that are not there are kept. Concurrent appends that read one of the entries'
        shards lose and start again.

        Raises:
            AppendConflict: Another writer added an entry to one of the shards meanwhile.
        """
        ...

    def files(self) -> dict[str, int]:
        """Count the files of each shard."""
        ...

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the entries of some shards into few files, without other changes."""
        ...

    def limit_removed_files(self, metadata: Mapping[str, object]) -> None:
        """Keep removed files for a shorter time if they are many, or longer if they are few.

        The store lists them and reads the list before every append.

        Args:
            metadata: The description of the commit in the store's own history.

        Raises:
            AppendConflict: Another writer changed the journal's properties meanwhile.
        """
        ...

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the journal's files that no retained version names.

        Args:
            seconds_min: Files are removed only if deleted files are kept at least this long.
            full: Whether to remove also files that no version ever named, which appends that
                lost a race leave behind.

        Returns:
            Why nothing was removed; None if files were removed.
        """
        ...

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each entirely or not at all, in one commit of the store.

        Args:
            units: The units, in the order in which they are numbered.
            metadata: The description of the commit in the store's own history.

        Raises:
            AppendConflict: The store reports that it lost a race. As with any exception, the
                append may have landed all the same.
        """
        ...
