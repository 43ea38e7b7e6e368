"""The locks that the tables of a store need at its location."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnqueue.errors import InvalidInput, StoreNotFound
from txnqueue.storage.journal import locked_file
from txnqueue.storage.journal.admission import (
    Admission,
    TableRegister,
    application_settings,
    driver_of,
    writers_at,
)
from txnqueue.storage.journal.location import FILE_URI, SCHEME, default_elsewhere, path_of
from txnqueue.storage.journal.lock import NoLock, TableLock, writing
from txnqueue.storage.journal.sessions import is_connect, is_stopped
from txnqueue.storage.journal.tables import TableNames, verbatim

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

logger = logging.getLogger("txnqueue")
Lock = TableLock | Admission | NoLock


class Locks:
    """The locks of a store's tables: by files, by admission of drivers, or none."""

    def __init__(
        self,
        user: SparkSession,
        session: Callable[[], SparkSession],
        names: TableNames,
        naming: Callable[[], AbstractContextManager[SparkSession]],
        *,
        several_drivers: bool,
    ) -> None:
        """Query nothing yet.

        Args:
            user: The user's session.
            session: Returns the session of the library for reading.
            names: The names of the store's tables.
            naming: Lends the session in which a driver registers as the writer.
            several_drivers: Whether several drivers may write, whatever the storage is.
        """
        self._user = user
        self._session = session
        self._names = names
        self._naming = naming
        self._several_drivers = several_drivers
        self._process = os.getpid()
        self._making = threading.RLock()
        self._locks: dict[str, Lock] = {}
        self._locked: locked_file.LockedFile | None = None
        self._admission: list[Admission | None] = []

    def leave(self) -> None:
        """Allow the next driver to begin."""
        atexit.unregister(self.leave)
        if os.getpid() != self._process:  # the end of a fork is not the end of the driver
            return
        for one in self._admission:
            if one is not None and not is_stopped(self._user):
                try:
                    one.leave()
                except Exception as error:  # the next driver then waits
                    logger.info("store not left error=%s", error)

    def of(self, table: str) -> Lock:
        """Return the lock of a table."""
        with self._making:
            if table not in self._locks:
                self._locks[table] = self._new_lock(table)
            return self._locks[table]

    def _new_lock(self, table: str) -> Lock:
        folder = self.folder()
        if folder is None:
            return self.admission() or NoLock()
        begins = table == "journal"
        proof = folder if begins else folder / "journal" / "_delta_log"
        return TableLock(
            folder / ".locks" / f"{table}.lock",
            self._jvm_pid,
            # In a catalog the folder holds nothing but the locks.
            proof if self._names.by_path else None,
            begins=begins,
            locked_by_jvm=lambda pid: self._locked_by_jvm(pid, folder / ".locks"),
        )

    def _locked_by_jvm(self, pid: int, folder: Path) -> locked_file.LockedFile | None:
        if is_connect(self._user):  # the server cannot be asked to
            return None
        session: Any = self._session()
        self._locked = locked_file.locked_by(lambda: session._jvm, pid, folder)
        return self._locked

    def admission(self) -> Admission | None:
        """Create the admission that keeps other drivers away; None if the storage needs none."""
        with self._making:
            if not self._admission:
                self._admission.append(self._new_admission())
            return self._admission[0]

    def _new_admission(self) -> Admission | None:
        location, conf = self._location(), application_settings(self._user)
        writers = writers_at(location, conf, several_drivers=self._several_drivers)
        if writers is None:
            return None
        table = TableRegister(self._naming, self._names.journal)
        if not is_connect(self._user):  # a server that is gone would block for minutes
            atexit.register(self.leave)
        return Admission(
            table,
            lambda: driver_of(self._user),
            location,
            writers,
            alone=not is_connect(self._user),
        )

    def _location(self) -> str:
        """Return the location of the store: its path, or that of its catalog schema."""
        if self._names.by_path:
            return self._names.root
        rows = self._described()
        return next((str(r[1]) for r in rows if str(r[0]).lower() == "location"), "")

    def folder(self) -> Path | None:
        """Return the folder of a store on the local disk; None if it is elsewhere."""
        root = self._names.root
        if not self._names.by_path:
            location = self._location()
            if not FILE_URI.match(location):
                return None
            schema = root.rpartition(".")[2].lower()  # the same with and without the catalog
            return self._shared(Path(path_of(location)) / f".txnqueue-{schema}")
        if SCHEME.match(root):
            return None
        default = default_elsewhere(self._session())
        if default is not None:
            raise InvalidInput(
                f"The root {root!r} has no scheme, and the default file system is {default}: give "
                "the root with its scheme."
            )
        return self._shared(Path(root))

    def _shared(self, folder: Path) -> Path:
        """Check that a local folder is the one that Spark sees under its path.

        Raises:
            InvalidInput: The Spark Connect server has its own disk; nothing was done.
        """
        from pyspark.errors import AnalysisException

        if not is_connect(self._user):
            return folder
        there = next(path for path in (folder, *folder.parents) if path.is_dir())
        with (
            writing(there),
            tempfile.NamedTemporaryFile("w", dir=there, prefix="txnqueue-seen-") as token,
        ):
            token.write(token.name)
            token.flush()
            Path(token.name).chmod(0o644)  # the server may run as another user
            reader = self._session().read
            try:
                rows = reader.text(f"file:{verbatim(token.name)}").collect()
            except AnalysisException as error:
                if "PATH_NOT_FOUND" not in str(error):
                    raise
                raise self._elsewhere() from error
            seen = [row[0] for row in rows]
        if seen != [token.name]:
            raise self._elsewhere()
        return folder

    def _elsewhere(self) -> InvalidInput:
        return InvalidInput(
            f"The root {self._names.root!r} is on a disk that the Spark Connect server does not "
            "share with this process, which must lock it: use storage that both can reach, such as "
            "hdfs: or abfss:.",
            name="root",
        )

    def _described(self) -> list[Row]:
        """Describe the catalog schema.

        Raises:
            StoreNotFound: There is no such schema.
        """
        from pyspark.errors import AnalysisException

        try:
            return self._session().sql(f"DESCRIBE SCHEMA {self._names.schema}").collect()
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error):
                raise
            raise StoreNotFound(
                f"There is no schema {self._names.root!r}: a root without a '/' is a catalog "
                f"schema; create it with CREATE SCHEMA {self._names.schema}.",
                root=self._names.root,
            ) from error

    def _jvm_pid(self) -> int | None:
        session: Any = self._session()
        query = "SELECT reflect('java.lang.ProcessHandle', 'current')"
        ways: list[Callable[[], Any]] = [lambda: session.sql(query).collect()[0][0]]
        if not is_connect(self._user):  # without a Spark job
            ways.insert(0, lambda: session._jvm.java.lang.ProcessHandle.current().pid())
        for ask in ways:
            try:
                return int(ask())
            except Exception as error:  # refused by the platform
                logger.info("process of Java not told error=%s", type(error).__name__)
        return None  # the lock's error then gives the remedy
