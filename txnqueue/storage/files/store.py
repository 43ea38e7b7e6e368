"""A read-only store: the files of its tables at one moment."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pyarrow as pa

from txnqueue.core import custody, model
from txnqueue.core.state import AttemptOwner, catalog
from txnqueue.core.state.topology import Topology
from txnqueue.errors import OnlyLooking, StoreBusy, StoreNotFound
from txnqueue.storage import setbacks
from txnqueue.storage.files.delta_log import DeltaLog, TableVersion
from txnqueue.storage.files.entries import EntryFiles, in_commit_order
from txnqueue.storage.files.integrity import damaged
from txnqueue.storage.files.journal import FilesArchive, FilesJournal
from txnqueue.storage.files.payload import FilesPayload
from txnqueue.storage.files.roots import located
from txnqueue.storage.journal import Order
from txnqueue.storage.journal.memory import MemoryJournal

_TRIES = 5
"""How often the tables are read again while maintenance changes the archive."""


class FilesStore:
    """The tables below a path, read without Spark at the moment of the last ``refresh``.

    Attributes:
        root: The root of the store.
        journal_files: The entries of the journal.
        archive_files: The entries of the archive.
    """

    def __init__(self, root: str, filesystem: object = None) -> None:
        """Find the file system; nothing is read yet.

        Args:
            root: A path or a URI; with a given file system, a folder of it.
            filesystem: The file system of the store, if the root does not determine it.

        Raises:
            FilesNotReadable: The store is in a catalog, or on storage that Arrow cannot read.
        """
        self.filesystem, self.folder = located(root, filesystem)
        self.root = root if filesystem is not None else _shown(root)
        self.spark: None = None
        self._journal = DeltaLog(self.filesystem, f"{self.folder}/journal")
        self._archive = DeltaLog(self.filesystem, f"{self.folder}/archive")
        self._moment: tuple[TableVersion, TableVersion] | None = None
        self._moving = custody.freed_in_forks(threading.Lock())
        fs = self.filesystem
        self.journal_files = EntryFiles(fs, self._journal.folder, lambda: self._seen()[0])
        self.archive_files = EntryFiles(fs, self._archive.folder, lambda: self._seen()[1])
        self.journal = FilesJournal(
            self.journal_files, lambda: self._seen()[0], FilesArchive(self.archive_files)
        )
        self.payload = FilesPayload(fs, self.folder, self._owners)
        self.transient = NoTransient(self)

    def refresh(self) -> None:
        """Read the present state of the tables.

        It is a consistent cut over both tables: the archive did not change while the journal was
        read, so no entry that moved from one to the other is missing.

        Raises:
            StoreNotFound: There is no store at this root, or a different one.
            FilesNotReadable: The storage refuses access, or the tables are of a kind that only
                Spark can read.
            StoreBusy: The archive changed during every attempt.
            StoreSetBack: Somebody removed entries.
            StoreCorrupt: A file of a log is damaged or missing, or the archive is.
        """
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                with self._moving:  # else a slower thread would go back to an earlier moment
                    return self._look_anew()
            except FileNotFoundError as error:
                if not self._journal.exists():
                    raise StoreNotFound(
                        f"There is no store at {self.root!r}: check the path; create_queue makes a "
                        "new store.",
                        root=self.root,
                    ) from error
                if last:  # a store that is being removed loses its files one by one, but all
                    how = f"a file that a log names is gone ({error})"
                    raise damaged(self.folder, how) from error
        raise AssertionError

    def _look_anew(self) -> None:
        journal, archive = self._moment or (None, None)
        archive = self._archived(archive)
        for _ in range(_TRIES):
            journal = self._journal.newest(journal)
            self._check_same(journal)
            self._check_kept(journal)
            again = self._archived(archive)
            if again.version == archive.version:
                self._check_archive(journal, again)
                self._moment = journal, again
                return
            archive = again
        raise StoreBusy(
            "The archive changed during every attempt to read it: try again.", owner=None
        )

    def _archived(self, known: TableVersion | None) -> TableVersion:
        """Read the present state of the archive, which the first maintenance creates."""
        try:
            return self._archive.newest(known)
        except FileNotFoundError:
            if self._archive.exists():
                raise
            return TableVersion()

    def _check_archive(self, journal: TableVersion, archive: TableVersion) -> None:
        """Check that there is an archive if entries can have left the journal.

        The first maintenance creates it before it says so in the journal.

        Args:
            journal: The journal.
            archive: The archive, read after that.

        Raises:
            StoreCorrupt: It is gone.
        """
        if archive.version >= 0:
            return
        fence = self.journal_files.entries([model.FENCE], moment=journal)
        if model.horizon(fence) >= 0:
            raise setbacks.archive_gone(self._archive.folder)

    def _check_same(self, journal: TableVersion) -> None:
        """Check that the store is the one that was read before.

        Raises:
            StoreNotFound: It was deleted, and another one was created in its place.
        """
        if self._moment is not None and journal.table_id != self._moment[0].table_id:
            raise StoreNotFound(
                f"The store at {self.root!r} was replaced by another one: call look() again.",
                root=self.root,
            )

    def _check_kept(self, journal: TableVersion) -> None:
        """Check that none of the newly read commits removed entries.

        Raises:
            StoreSetBack: One did, or an older copy of the journal is in its place.
        """
        before = -1 if self._moment is None else self._moment[0].version
        if journal.version < before:
            raise setbacks.older(self.root, journal.version, before)
        if journal.version == before:
            return
        commits = journal.commits or self._journal.commits(journal.version)  # in a checkpoint
        if self._moment is None:
            back = setbacks.looked_up(commits, self._journal.commits)
        else:
            back = setbacks.met(commits)
        if back is not None:
            raise back.error(self.root)

    def entries(self) -> pa.Table:
        """Read all entries, each once, in commit order, with the columns of ``entries.TABLE``."""
        journal, archive = self._seen()  # once: another thread may refresh it meanwhile
        here = self.journal_files.table(moment=journal)
        archived = self.archive_files.table(moment=archive)
        return in_commit_order(pa.concat_tables([here, archived]))

    def exists(self) -> bool:
        """Return whether the journal exists.

        Raises:
            FilesNotReadable: The storage refuses access.
        """
        return self._journal.exists()

    def create(self) -> None:
        """Refuse to write."""
        raise OnlyLooking

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Refuse to write."""
        raise OnlyLooking

    def answers(self) -> bool:
        """Return that nothing is to be done: the store is not written to."""
        return False

    def close(self) -> None:
        """Release resources; there are none."""

    def _owners(self) -> set[str]:
        """Find the owners of payload, which are the queues and exchanges that exist."""
        entries = sorted(self.journal_files.entries([model.CATALOG]), key=Order.COMMIT.key)
        queues = {info.payload_id for info in catalog.queues(entries).values()}
        return queues | {info.payload_id for info in Topology.of(entries).exchanges.values()}

    def _seen(self) -> tuple[TableVersion, TableVersion]:
        if self._moment is None:
            self.refresh()
        assert self._moment is not None
        return self._moment


class NoTransient:
    """An empty transient store, because messages in other processes' memory cannot be seen.

    Attributes:
        used: Whether there are any messages.
        lock: The lock for readers.
        journal: The empty journal.
    """

    def __init__(self, store: FilesStore) -> None:
        """Make an empty one.

        Args:
            store: Its store.
        """
        self.used = False
        self.lock = custody.new_lock()
        self.journal = MemoryJournal()
        self.payload = store.payload
        self.root = store.root

    @property
    def transient(self) -> NoTransient:
        """Itself."""
        return self

    def belong_to(self, store_id: str) -> None:
        """Forget nothing."""

    def waiting(self) -> list[AttemptOwner]:
        """List the attempts whose work waits for an outcome: none."""
        return []

    def waiting_elsewhere(self) -> list[AttemptOwner]:
        """List the attempts that may be committed: none."""
        return []


def _shown(root: str) -> str:
    from txnqueue.storage.journal.location import canonical_root

    return canonical_root(root)
