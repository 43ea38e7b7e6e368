"""The read-only view of a store, without Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from txnqueue.client.client import Client
from txnqueue.client.runtime import Runtime
from txnqueue.core import exchanges, markup
from txnqueue.core.settings import check_id, check_name, check_root, shown
from txnqueue.errors import InvalidInput
from txnqueue.exchange_reader import ExchangeReader
from txnqueue.queue_reader import QueueReader
from txnqueue.reports.history import History
from txnqueue.reports.metrics import Metrics, queues_shown
from txnqueue.storage.files.store import FilesStore
from txnqueue.transactions.outcome import outcome_of

if TYPE_CHECKING:
    import pyarrow as pa
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

    from txnqueue.results import Outcome
    from txnqueue.storage.store import Store


def look(
    root: str | os.PathLike[str], *, filesystem: FileSystem | AbstractFileSystem | None = None
) -> StoreReader:
    """Look at a store without Spark: nothing is written, and no lock is taken.

    It reads Delta's log and the tables' files by pyarrow, in a second where Spark takes ten to
    start. All answers are of one moment, which ``refresh`` moves on; only what is delayed or
    expired goes by the clock.

    Args:
        root: The store's path, or its URI on an object store. A store in a catalog needs Spark.
        filesystem: The file system of the store, if the root does not determine it: one of
            ``pyarrow.fs`` or of fsspec, with the root as a folder on it.

    Returns:
        The store, as it is now.

    Raises:
        StoreNotFound: There is no store at this root.
        LayoutUnsupported: A newer version of the library wrote it.
        FilesNotReadable: It is in a catalog, on storage that Arrow does not know, or its tables
            have a feature of Delta that only Spark reads.
        InvalidInput: The root or the file system cannot be used.

    Example::

        store = txnqueue.look("/lake/messaging")
        store.queue("orders").depth()
        store.history.as_of().counts().rows()
    """
    where = check_root(root) if filesystem is None else _path_in(root)
    return StoreReader(FilesStore(where, filesystem))


def _path_in(root: object) -> str:
    """Check a path in a file system that the user gave, where any text may be a path."""
    said = os.fspath(root) if isinstance(root, os.PathLike) else root
    if not isinstance(said, str):
        raise InvalidInput(
            f"root={shown(root)}: give the store's path in the file system.", name="root"
        )
    return said


class StoreReader:
    """The reading half of a ``QueueManager``, at one moment of the store; see ``look``."""

    def __init__(self, store: FilesStore) -> None:
        """Look at a store; users get this from ``look``."""
        self._store = store
        # Only what writes tells the kinds of stores apart.
        self._client = Client(cast("Store", store), Runtime())
        self._client.open()

    @property
    def root(self) -> str:
        """The store's address: a path or a URI."""
        return self._store.root

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show the queues and their counts in a notebook, as a ``QueueManager`` does."""
        return queues_shown(self._client)

    def __repr__(self) -> str:
        """Show the store's address."""
        return f"<StoreReader of {self.root}>"

    def refresh(self) -> None:
        """Move on to the moment of this call: what came since is read when it is asked for.

        Raises:
            StoreNotFound: The store is gone, or another one is in its place.
        """
        self._store.refresh()

    def list_queues(self) -> list[str]:
        """List the names of the queues, including dead-letter queues and closing ones."""
        return sorted(self._client.cache.queues())

    def queue(self, name: str) -> QueueReader:
        """Open a queue to look at it.

        Args:
            name: The queue's name.

        Returns:
            The reading half of the queue.

        Raises:
            QueueNotFound: There is no such queue.
            InvalidName: The name is invalid.
        """
        return QueueReader(self._client, self._client.cache.queue(check_name(name)))

    def list_exchanges(self) -> list[str]:
        """List the names of the exchanges, including closing ones, without the default one."""
        return sorted(filter(None, self._client.cache.topology().exchanges))

    def exchange(self, name: str) -> ExchangeReader:
        """Open an exchange to look at it.

        Args:
            name: The exchange's name; empty for the default exchange.

        Returns:
            The reading half of the exchange.

        Raises:
            ExchangeNotFound: There is no such exchange.
            InvalidName: The name is invalid.
        """
        return ExchangeReader(self._client, exchanges.check_exchange_name(name))

    @property
    def history(self) -> History:
        """Queries of the past: the state after a commit, traces, changes.

        ``trace(where=)`` and ``verify()`` need Spark: they raise ``FilesNotReadable``.
        """
        return History(self._client)

    def metrics(self) -> Metrics:
        """Measure every queue: messages available, delayed, in flight and dead, and their ages.

        Returns:
            The measurements as rows, JSON and Prometheus text.
        """
        return Metrics(self._client)

    def outcome(self, transaction_id: str, attempt: str | None = None) -> Outcome:
        """Look up the outcome of a transaction in the journal.

        Args:
            transaction_id: The id, or ``error.transaction_id`` of a ``TransactionUnknown``.
            attempt: ``error.attempt`` of a ``TransactionUnknown``: the outcome is that of this
                attempt; without it, that of the last attempt that was decided.

        Returns:
            The outcome: its ``status``, and what is known of it. An unknown id is ``undecided``.

        Raises:
            InvalidInput: The id is empty, or ``attempt`` is not one that an error names.
        """
        transaction_id = check_id(transaction_id)
        return outcome_of(self._client, transaction_id, attempt)

    def entries(self) -> pa.Table:
        """Read all entries of the journal and the archive, for other tools.

        DuckDB, Polars and pandas take the table as it is.

        Returns:
            One row per entry, in commit order: shard, stream string, sequence long, kind,
            append_id string, ordinal, index int, transaction_key, attempt string, begun long,
            queue_id string, lane, claim_lane int, claim_sequence long, ranges (lists of first,
            last long), count long, reason, actor, run_id string, recorded_at timestamp, body
            string (JSON), commit_seq long.
        """
        return self._store.entries()
