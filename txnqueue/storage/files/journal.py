"""The journal and the archive of a read-only store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NoReturn

from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.errors import FilesNotReadable, OnlyLooking
from txnqueue.storage.files.entries import EntryFiles, Moment
from txnqueue.storage.journal import Appended, Audit, EntryFilter, Newest, Order, Reading


class FilesArchive:
    """The archive, read from its files."""

    def __init__(self, files: EntryFiles) -> None:
        """Read nothing yet."""
        self._files = files

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
        upto = None if before is None else model.commit_seq(before) - 1
        wanted = EntryFilter(
            shards=shards, streams=streams, append_ids=append_ids, kinds=kinds, upto=upto
        )
        if days is not None:  # only maintenance, which writes, asks by days
            _refuse("archive.read(days=)")
        ids = None if among is None else {entry.entry_id for entry in among}
        return tuple(
            entry
            for entry in self._files.find([wanted])
            if (stream_prefix is None or entry.stream.startswith(stream_prefix))
            and (ids is None or entry.entry_id in ids)
        )

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters."""
        return self._files.find(wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order."""
        return self._files.stream(order, wanted)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        return self._files.newest(wanted)

    def exists(self) -> bool:
        """Refuse what only writers ask."""
        _refuse("archive.exists")

    def create(self) -> None:
        """Refuse to write."""
        _refuse("archive.create")

    def add(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Refuse to write."""
        _refuse("archive.add")

    def forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        """Refuse to write."""
        _refuse("archive.forget")

    def files(self) -> dict[str, int]:
        """Refuse what only maintenance asks."""
        _refuse("archive.files")

    def rewrite(self, days: Collection[str], metadata: Mapping[str, object]) -> None:
        """Refuse to write."""
        _refuse("archive.rewrite")

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Refuse to write."""
        _refuse("archive.vacuum")


class FilesJournal:
    """The journal, read from its files at one version."""

    def __init__(self, files: EntryFiles, moment: Moment, archive: FilesArchive) -> None:
        """Read nothing yet.

        Args:
            files: The journal's entries.
            moment: Returns the version to read.
            archive: The archive of finished entries.
        """
        self._files = files
        self._moment = moment
        self.archive = archive

    def version(self) -> int:
        """Give the version that is looked at."""
        return self._moment().version

    def known_version(self) -> int:
        """Give the version that is looked at."""
        return self.version()

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut."""
        return self._reading(frozenset(shards), after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        return self._reading(None, after, upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters."""
        return self._files.find(wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order."""
        return self._files.stream(order, wanted)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        return self._files.newest(wanted)

    def files(self) -> dict[str, int]:
        """Count the files of each shard."""
        found = Counter(one.partition.get("shard") or "" for one in self._moment().files.values())
        return dict(found)

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Refuse: only Spark reads Delta's change feed."""
        raise FilesNotReadable(
            "The proof needs Delta's change feed, which only Spark reads: use QueueManager, or run "
            "txnqueue history --verify. A report leaves it out with verify=False."
        )

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Refuse to write."""
        _refuse("journal.remove")

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Refuse to write."""
        _refuse("journal.rewrite")

    def limit_removed_files(self, metadata: Mapping[str, object]) -> None:
        """Refuse to write."""
        _refuse("journal.limit_removed_files")

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Refuse to write."""
        _refuse("journal.vacuum")

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Refuse to write."""
        _refuse("journal.append")

    def _reading(self, shards: frozenset[str] | None, after: int, upto: int | None) -> Reading:
        moment = self._moment()  # once: another thread may move on to a later one meanwhile
        last = moment.version if upto is None else upto
        if upto is None and after >= last:
            return Reading((), last)
        entries = self._files.entries(shards, after, moment)
        return Reading(tuple(e for e in entries if e.version <= last), last)


def _refuse(what: str) -> NoReturn:
    raise OnlyLooking(
        f"{what}: a store opened by look() is read-only; use QueueManager with Spark."
    )
