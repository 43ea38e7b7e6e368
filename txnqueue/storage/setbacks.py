"""The journal's own history, and the commits in it that removed entries.

The library itself only adds entries, and removes those that are in the archive. A RESTORE of the
table, a clone in its place, or a DELETE undoes commits that clients were told of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txnqueue.errors import StoreCorrupt, StoreNotFound, StoreSetBack

COMMITS = 10
"""How many of the newest commits a client checks when it opens a store: as many as Delta reads."""
_RESTORE = "RESTORE"
_CLONE = "CLONE"
_REPLACING = "REPLACE TABLE"
_CHANGING = ("DELETE", "UPDATE", "TRUNCATE", "OVERWRITE")
_OF_ENTRIES = "MERGE"


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit, as described in the table's history.

    Attributes:
        version: The version that it created.
        operation: Delta's name of the operation.
        restored: The version to which a RESTORE took the table back; None for other operations,
            or if it was given as a time.
    """

    version: int
    operation: str
    restored: int | None = None

    @classmethod
    def of(cls, version: int, operation: str, said: Mapping[str, Any] | None) -> LoggedCommit:
        """Create a description; the parameters of the operation may be values or JSON."""
        about = said or {}
        if operation == "WRITE" and about.get("mode") == "Overwrite":
            return cls(version, "OVERWRITE")
        told = about.get("version") if operation == _RESTORE else None
        number = json.loads(told) if isinstance(told, str) and told else told
        return cls(version, operation, number if isinstance(number, int) else None)

    @property
    def sets_back(self) -> bool:
        """Whether it may have removed entries or replaced the table."""
        return (
            self.operation in (_RESTORE, _CLONE)
            or self.operation.startswith(_CHANGING)
            or _REPLACING in self.operation
        )


@dataclass(frozen=True, slots=True)
class SetBack:
    """The entries that somebody removed from the journal.

    Attributes:
        commit: The last commit that removed entries.
        missing: The commits that are no longer in the table, as far as known.
        whole: The version to which a RESTORE brings everything back; None if there is none.
    """

    commit: LoggedCommit
    missing: tuple[int, ...]
    whole: int | None

    def __str__(self) -> str:
        """Describe what was done, and the remedy."""
        did = f"{self.commit.operation} made version {self.commit.version} of the journal"
        if self.missing:
            first, last, count = self.missing[0], self.missing[-1], len(self.missing)
            which = f"version {first}" if count == 1 else f"{count} from version {first} to {last}"
            did += f", which lacks what was committed since: {which}"
        if self.whole == self.commit.version:
            return f"{did}, and nothing is missing; what was read before does not fit it"
        if self.commit.operation == _CLONE:
            return f"{did}; a clone has lost in which order entries came: copy the files instead"
        if self.whole is None:
            return f"{did}; go on with a copy of the store from before that"
        return f"{did}; RESTORE the journal TO VERSION AS OF {self.whole} makes it whole again"

    def error(self, root: str) -> StoreSetBack:
        """Build the error for a client that encounters it."""
        return StoreSetBack(
            f"The store at {root!r} was set back: {self}. Stop its drivers, and open it again.",
            root=root,
            version=self.commit.version,
            operation=self.commit.operation,
        )


def found(commits: Iterable[LoggedCommit]) -> SetBack | None:
    """Find what is missing after some consecutive commits (pure).

    For each version, the commits whose work is missing are determined. A RESTORE takes over those
    of the version to which it goes back, and adds what was committed since; so a RESTORE to a
    version before an earlier one undoes it.

    Args:
        commits: The history, or its end; what precedes it is assumed to be complete.
    """
    listed = sorted(commits, key=lambda one: one.version)
    first = listed[0].version if listed else 0
    entries = {one.version for one in listed if one.operation == _OF_ENTRIES}
    now: frozenset[int] = frozenset()
    broken = {first - 1: now}
    cause: LoggedCommit | None = None
    for one in listed:
        if one.restored is not None:
            since = entries.intersection(range(one.restored + 1, one.version))
            now = broken.get(one.restored, frozenset()) | since
            now |= set(range(one.restored + 1, first))
        elif one.sets_back:
            now |= {one.version}
        if one.sets_back:
            cause = one
        broken[one.version] = now
    if not now or cause is None:
        return None
    newest = max(entries, default=first - 1)
    whole = (version for version, left in broken.items() if not left and version >= newest)
    missing = sorted(v for v in now if v in entries or v < first)
    return SetBack(cause, tuple(missing), max(whole, default=None))


def looked_up(
    commits: Sequence[LoggedCommit], since: Callable[[int], Iterable[LoggedCommit]]
) -> SetBack | None:
    """Find what is missing after the newest commits; older ones are read if they matter.

    Args:
        commits: The newest commits.
        since: Reads the known commits from a version on.
    """
    back = found(commits)
    while back is not None:
        first = min(one.version for one in commits)
        to = min((one.restored for one in commits if one.restored is not None), default=first)
        if to >= first:
            return back
        more = list(since(to))
        if min((one.version for one in more), default=first) >= first:
            return back
        commits, back = more, found(more)
    return None


def met(commits: Iterable[LoggedCommit]) -> SetBack | None:
    """Find a removal that a client with earlier knowledge must not read past (pure).

    This holds even if another commit undid it, because entries that came back have other versions
    in the change feed.
    """
    listed = list(commits)
    last = max((one for one in listed if one.sets_back), key=lambda o: o.version, default=None)
    return found(listed) or (None if last is None else SetBack(last, (), last.version))


def gone(root: str) -> StoreNotFound:
    """Return the error for a store that existed, and was removed since."""
    return StoreNotFound(
        f"The store at {root!r} is gone: put it back if it was removed or moved, or mount its "
        "disk.",
        root=root,
    )


def journal_gone(root: str) -> StoreCorrupt:
    """Return the error for a store without a journal that has an archive of one."""
    return StoreCorrupt(
        f"{place_of(root, 'journal')!r} is missing, and {place_of(root, 'archive')!r} holds "
        "entries of it: put the journal back from a copy. A new journal would take these entries "
        "for its own. Nothing was created; for a new store, use an empty root."
    )


def archive_gone(place: str) -> StoreCorrupt:
    """Return the error for a store that archived entries, and whose archive is not there.

    Args:
        place: Where it was.
    """
    return StoreCorrupt(
        f"The archive {place!r} is missing, and entries have left the journal for it: stop writing "
        "to the store, keep it as it is, and put the archive back from a copy."
    )


def payload_gone(place: str) -> StoreCorrupt:
    """Return the error for a queue or an exchange whose table of payload is not there.

    Args:
        place: Where it was.
    """
    return StoreCorrupt(
        f"The table of payload {place!r} is missing from the store: put it back from a copy."
    )


def archive_foreign(root: str) -> StoreCorrupt:
    """Return the error for an archive with entries that have not left the journal."""
    return StoreCorrupt(
        f"{place_of(root, 'archive')!r} holds entries, and {place_of(root, 'journal')!r} says that "
        "nothing was archived yet: they are those of another journal, or of another moment. Keep "
        "both as they are, and put the journal of this archive back from a copy. If this journal "
        "is the right one, move the archive away: all entries are still in the journal."
    )


def place_of(root: str, table: str) -> str:
    """Name a table of a store: a folder below a path, or a table of a catalog schema."""
    return f"{root.rstrip('/')}/{table}" if "/" in root else f"{root}.txnqueue_{table}"


def replaced(root: str, version: int) -> StoreSetBack:
    """Build the error for a client that finds another commit where it knows one."""
    return StoreSetBack(
        f"Version {version} of the journal of the store at {root!r} is another one than before: "
        "an older copy of the store has taken its place, and others went on from there. Stop its "
        "drivers, and open it again.",
        root=root,
        version=version,
    )


def older(root: str, version: int, known: int) -> StoreSetBack:
    """Build the error for a client that finds the journal at an older version than it knows."""
    return StoreSetBack(
        f"The journal of the store at {root!r} ends at version {version}, but was at {known} "
        "before: another store, or an older copy of it, has taken its place. Stop its drivers, and "
        "open it again.",
        root=root,
        version=version,
    )
