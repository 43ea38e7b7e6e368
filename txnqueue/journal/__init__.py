"""The journal: one table of immutable entries, behind an interface of three calls.

``delta`` keeps it in a Delta table, ``memory`` is its twin with the same conflict rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from txnqueue.model import Entry, Unit

__all__ = ["AppendConflict", "Appended", "Journal", "Reading"]


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


class Journal(Protocol):
    """A totally ordered log of entries with conditional, atomic appends."""

    def version(self) -> int:
        """Read the newest version."""
        ...

    def known_version(self) -> int:
        """Return a version that surely exists, without asking the store if one is known."""
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

    def audit(self, upto: int) -> tuple[int | None, int]:
        """Ask the store's own log what happened to entries, up to a version.

        Returns:
            How many were inserted (None if the log no longer reaches back to the first), and
            how many were changed or deleted in the part of the log that is there.
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
