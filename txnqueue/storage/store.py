"""A store: a journal and its payload, in Delta tables or in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from txnqueue.platform import clock
from txnqueue.storage.journal import Journal
from txnqueue.storage.journal.memory import MemoryJournal, Step, no_step
from txnqueue.storage.payload import PayloadStore
from txnqueue.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnqueue.storage.transient import TransientStore


class Store(Protocol):
    """The storage of a manager."""

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...

    @property
    def payload(self) -> PayloadStore:
        """The payload of messages."""
        ...

    @property
    def tables(self) -> Tables:
        """The user's own tables."""
        ...

    @property
    def transient(self) -> TransientStore:
        """The transient messages, which only this process has and loses when it ends."""
        ...

    @property
    def root(self) -> str:
        """The root of the store."""
        ...

    @property
    def spark(self) -> SparkSession | None:
        """The session of DataFrames."""
        ...

    def exists(self) -> bool:
        """Return whether the journal is there."""
        ...

    def create(self) -> None:
        """Create the journal; no error if it is there."""
        ...

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Register this driver as the one that may write, if the storage supports only one.

        Args:
            about: Who takes over, and why.

        Returns:
            Whether it does.
        """
        ...

    def answers(self) -> bool:
        """Return whether something can be done before ``close``; no call is tried long after it.

        Raises:
            PlatformMissing: The session was stopped, or the process forked.
        """
        ...

    def close(self) -> None:
        """Wait for running work, then release the resources of this process."""
        ...


class DeltaStore:
    """A store in Delta tables below a path, or in a catalog schema."""

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        monotonic: Callable[[], float] = clock.monotonic,
        several_drivers: bool = False,
    ) -> None:
        """Name the store; nothing is read or written yet.

        Args:
            spark: The user's session, with the users' DataFrames.
            root: A path if it has a "/", otherwise a catalog schema: without a catalog, in the one
                that is the session's current one now.
            monotonic: A clock in seconds, used only to ask again for the newest version.
            several_drivers: Whether the platform lets several drivers write, whatever the
                storage is.
        """
        from txnqueue.storage.journal.delta import DeltaJournal
        from txnqueue.storage.journal.location import canonical_root
        from txnqueue.storage.journal.sessions import in_current_catalog, is_connect
        from txnqueue.storage.journal.statements import Statements
        from txnqueue.storage.journal.tables import TableNames
        from txnqueue.storage.payload.delta import DeltaPayload
        from txnqueue.storage.tables.delta import DeltaTables
        from txnqueue.storage.transient import of_root

        self.spark: SparkSession | None = spark
        self.root = canonical_root(in_current_catalog(spark, root))
        self.names = TableNames.of(self.root)
        self.statements = Statements(spark, self.names, several_drivers=several_drivers)
        self.journal = DeltaJournal(self.statements, monotonic)
        self.payload = DeltaPayload(self.statements)
        self.tables = DeltaTables(self.statements, self.payload)
        # A path means the same in all sessions of a Spark application.
        is_place = self.names.by_path and not is_connect(spark)
        self.transient = of_root(self.root, is_place=is_place)

    def exists(self) -> bool:
        """Return whether the journal is there."""
        return self.journal.exists()

    def create(self) -> None:
        """Create the journal; no error if it is there."""
        self.journal.create()

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Register this driver as the one that may write, if the storage supports only one."""
        return self.statements.take_over(about)

    def answers(self) -> bool:
        """Return whether the session is running, and the server there that it may need."""
        return self.statements.answers()

    def close(self) -> None:
        """Wait for running statements, then release sessions and threads."""
        self.statements.close()


class MemoryStore:
    """A store in the memory of this process: for tests, with Delta's conflict rule."""

    def __init__(self, spark: SparkSession | None = None, step: Step = no_step) -> None:
        """Create an empty store that several managers of this process may share.

        Args:
            spark: The session for DataFrames; without one, only Arrow tables are possible.
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
        """Return whether the journal exists: in memory always."""
        return True

    def create(self) -> None:
        """Create the journal: in memory it always exists."""

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Do nothing: all writers are in this process."""
        return False

    def answers(self) -> bool:
        """Return that it does: it is in this process."""
        return True

    def close(self) -> None:
        """Do nothing, because several managers may share the store."""
