"""A store: one journal and the payload that it speaks of, on Delta or in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from txnqueue.storage.journal import Journal
from txnqueue.storage.journal.memory import MemoryJournal, Step, _no_step
from txnqueue.storage.payload import PayloadStore
from txnqueue.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnqueue.storage.transient import TransientStore


class Store(Protocol):
    """Where a manager keeps everything."""

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...

    @property
    def payload(self) -> PayloadStore:
        """What the messages carry."""
        ...

    @property
    def tables(self) -> Tables:
        """The user's own tables."""
        ...

    @property
    def transient(self) -> TransientStore:
        """The messages that this process alone has, and loses when it ends."""
        ...

    @property
    def root(self) -> str:
        """Where the store is."""
        ...

    @property
    def spark(self) -> SparkSession | None:
        """The session that DataFrames live on."""
        ...

    def exists(self) -> bool:
        """Return whether the journal is there."""
        ...

    def create(self) -> None:
        """Create the journal; no error if it is there."""
        ...

    def take_over(self, about: Mapping[str, object]) -> None:
        """Be the driver that may write, on record, where the storage bears only one.

        Args:
            about: Who does so, and why.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds of this process; what is under way ends before."""
        ...


class DeltaStore:
    """A store in Delta tables below a path, or in a catalog schema."""

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        several_drivers: bool = False,
    ) -> None:
        """Name the store; nothing is read or written yet.

        Args:
            spark: The user's session; what users give or get lives on it.
            root: With a "/" a path, otherwise a catalog schema.
            monotonic: Seconds; it only decides when the newest version is asked for again.
            several_drivers: Whether the platform lets several drivers write, whatever the
                storage is.
        """
        from txnqueue.storage.journal.delta import DeltaJournal
        from txnqueue.storage.journal.locks import canonical_root
        from txnqueue.storage.journal.statements import Statements
        from txnqueue.storage.journal.tables import TableNames
        from txnqueue.storage.payload.delta import DeltaPayload
        from txnqueue.storage.tables.delta import DeltaTables
        from txnqueue.storage.transient import of_root

        self.spark: SparkSession | None = spark
        self.root = canonical_root(root)
        self.names = TableNames.of(self.root)
        self.statements = Statements(spark, self.names, several_drivers=several_drivers)
        self.journal = DeltaJournal(self.statements, monotonic)
        self.payload = DeltaPayload(self.statements)
        self.tables = DeltaTables(self.statements, self.payload)
        self.transient = of_root(self.root)

    def exists(self) -> bool:
        """Return whether the journal is there."""
        return self.journal.exists()

    def create(self) -> None:
        """Create the journal; no error if it is there."""
        self.journal.create()

    def take_over(self, about: Mapping[str, object]) -> None:
        """Be the driver that may write, on record, where the storage bears only one."""
        self.statements.take_over(about)

    def close(self) -> None:
        """Wait for statements that are under way, and let sessions and threads go."""
        self.statements.close()


class MemoryStore:
    """A store in the memory of this process: for tests, with Delta's conflict rule."""

    def __init__(self, spark: SparkSession | None = None, step: Step = _no_step) -> None:
        """Make an empty store that several managers of this process may share.

        Args:
            spark: Makes DataFrames of messages; without one there are only Arrow tables.
            step: Called before each atomic step of a store call, with the step's name.
        """
        from txnqueue.storage.payload.memory import MemoryPayload
        from txnqueue.storage.tables.memory import MemoryTables
        from txnqueue.storage.transient import TransientStore

        self.spark = spark
        self.root = "memory"
        self.journal = MemoryJournal(step)
        self.payload = MemoryPayload(spark, step)
        self.tables = MemoryTables(self.payload, step)
        self.transient = TransientStore(self.root, step)

    def exists(self) -> bool:
        """Return whether the journal is there: in memory always."""
        return True

    def create(self) -> None:
        """Create the journal: in memory it is there."""

    def take_over(self, about: Mapping[str, object]) -> None:
        """Take nothing over: all writers are in this process."""

    def close(self) -> None:
        """Let go of what it holds: nothing, because several managers may share it."""
