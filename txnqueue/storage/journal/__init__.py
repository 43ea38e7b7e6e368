"""The journal: one table of immutable entries, behind an interface of three calls.

``delta`` keeps it in a Delta table, ``memory`` is its twin with the same conflict rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from txnqueue.core.model import Entry, PositionId, Unit

__all__ = ["AppendConflict", "Appended", "Archive", "Audit", "Journal", "Reading"]


class AppendConflict(Exception):
    """The store says that another append was faster; reading tells whether that is true."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries of some shards, complete up to a version of the journal."""

    entries: tuple[Entry, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Which units of an append went in, and the version that it made (None: none did)."""

    won: tuple[bool, ...]
    version: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """What the store's own log says of the journal's entries, up to a version.

    Attributes:
        complete: Whether the log reaches back to the first version.
        inserted: The entries that were inserted, by id, with the version of each.
        deleted: The entries that were deleted.
        updated: How many changes there were that are neither: nothing may do that.
        since: The first version that the log tells of.
    """

    complete: bool
    inserted: Mapping[PositionId, int]
    deleted: frozenset[PositionId]
    updated: int
    since: int = 0


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

    def forget(
        self, day: str, standing: Mapping[str, int], metadata: Mapping[str, object] | None
    ) -> int:
        """Delete what is kept under the days before one, in one commit of the store.

        Args:
            day: The first day (ISO) that stays.
            standing: By queue id, a version from which on the queue's entries stay all the same.
            metadata: What the store's own history shall say of the commit; None: only count.

        Returns:
            How many rows those are.

        Raises:
            AppendConflict: Somebody changed the same days meanwhile.
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

    def audit(self, upto: int) -> Audit:
        """Ask the store's own log what happened to entries, up to a version."""
        ...

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that stand in the archive under a day, in one commit of the store.

        Those of them that do not stand there stay. Appends in flight that read one of the
        entries' shards lose, and start again.

        Raises:
            AppendConflict: Somebody added an entry to one of the shards meanwhile.
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
