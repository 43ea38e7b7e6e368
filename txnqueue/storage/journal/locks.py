"""Where a store lies, and which locks its tables have for that."""

from __future__ import annotations

import atexit
import logging
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from txnqueue.errors import InvalidInput, StoreNotFound
from txnqueue.storage.journal.lock import NoLock, TableLock
from txnqueue.storage.journal.sessions import is_connect, is_stopped
from txnqueue.storage.journal.storage import (
    Admission,
    TableRegister,
    application_settings,
    driver_of,
    writers_at,
)
from txnqueue.storage.journal.tables import TableNames

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

logger = logging.getLogger("txnqueue")
Lock = TableLock | Admission | NoLock
_FILE = re.compile(r"file:(?://[^/]*)?", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")


def canonical_root(root: str) -> str:
    """Write a root in the one way in which the store knows it.

    A path without a scheme lies on the local disk, unless Spark's default file system
    says otherwise; symbolic links are followed, so that two spellings are one store.
    """
    if "/" not in root:
        return root
    if _FILE.match(root):
        root = _path_of(root)
    if _SCHEME.match(root):
        return root.rstrip("/")
    return str(Path(root).expanduser().resolve())


def _path_of(uri: str) -> str:
    """Read the path of a file's URI; "#" and "?" are part of it, as for Spark (pure)."""
    return unquote(_FILE.sub("", uri, count=1))


def default_elsewhere(session: SparkSession) -> str | None:
    """Name Spark's default file system, where paths without a scheme lie; None: on this disk."""
    default = str(session.sql("SET fs.defaultFS").collect()[0][1])
    return None if default.startswith(("file:", "<undefined>")) else default


class Locks:
    """The locks of a store's tables: of files, of the drivers that may write, or none."""

    def __init__(
        self,
        user: SparkSession,
        session: SparkSession,
        names: TableNames,
        naming: Callable[[], SparkSession],
        *,
        several_drivers: bool,
    ) -> None:
        """Ask nothing yet.

        Args:
            user: The user's session.
            session: A session of ours for reading.
            names: How the store's tables are called.
            naming: Gives the session in which a driver says that it writes here.
            several_drivers: Whether several may, whatever the storage is.
        """
        self._user = user
        self._session = session
        self._names = names
        self._naming = naming
        self._several_drivers = several_drivers
        self._making = threading.RLock()
        self._locks: dict[str, Lock] = {}
        self._admission: list[Admission | None] = []

    def leave(self) -> None:
        """Tell the next driver that it may begin."""
        atexit.unregister(self.leave)
        for one in self._admission:
            if one is not None and not is_stopped(self._user):
                try:
                    one.leave()
                except Exception as error:  # then it waits
                    logger.info("store not left error=%s", error)

    def of(self, table: str) -> Lock:
        """Give the lock of a table."""
        with self._making:
            if table not in self._locks:
                self._locks[table] = self._new_lock(table)
            return self._locks[table]

    def _new_lock(self, table: str) -> Lock:
        folder = self.folder()
        if folder is None:
            return self.admission() or NoLock()
        return TableLock(folder / ".locks" / f"{table}.lock", self._jvm_pid)

    def admission(self) -> Admission | None:
        """Make what keeps other drivers away; None where the storage bears any."""
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
        if not is_connect(self._user):  # a server that is gone would not answer for minutes
            atexit.register(self.leave)
        return Admission(
            table,
            lambda: driver_of(self._user),
            location,
            writers,
            alone=not is_connect(self._user),
        )

    def _location(self) -> str:
        """Find where the store lies: as it is named, or as its catalog schema says."""
        if self._names.by_path:
            return self._names.root
        rows = self._described()
        return next((str(r[1]) for r in rows if str(r[0]).lower() == "location"), "")

    def folder(self) -> Path | None:
        """Find the folder of a store on the local disk; None if it lies elsewhere."""
        root = self._names.root
        if not self._names.by_path:
            location = self._location()
            if not _FILE.match(location):
                return None
            schema = root.rpartition(".")[2].lower()  # with and without the catalog the same
            return self._shared(Path(_path_of(location)) / f".txnqueue-{schema}")
        if _SCHEME.match(root):
            return None
        default = default_elsewhere(self._session)
        if default is not None:
            raise InvalidInput(
                f"The root {root!r} has no scheme, and the default file system is {default}: give "
                "the root with its scheme."
            )
        return self._shared(Path(root))

    def _shared(self, folder: Path) -> Path:
        """Check that a folder of this disk is the one that Spark sees under its path.

        Raises:
            InvalidInput: A Spark Connect server has a disk of its own; nothing was done.
        """
        if not is_connect(self._user):
            return folder
        there = next(path for path in (folder, *folder.parents) if path.is_dir())
        with tempfile.NamedTemporaryFile("w", dir=there, prefix="txnqueue-seen-") as token:
            token.write(token.name)
            token.flush()
            Path(token.name).chmod(0o644)  # the server may be another user's
            try:
                seen = [row[0] for row in self._session.read.text(f"file:{token.name}").collect()]
            except Exception as error:
                raise self._elsewhere() from error
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
            return self._session.sql(f"DESCRIBE SCHEMA {self._names.schema}").collect()
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error):
                raise
            raise StoreNotFound(
                f"There is no schema {self._names.root!r}: a root without a '/' is a catalog "
                f"schema; create it with CREATE SCHEMA {self._names.schema}.",
                root=self._names.root,
            ) from error

    def _jvm_pid(self) -> int | None:
        session: Any = self._session
        query = "SELECT reflect('java.lang.ProcessHandle', 'current')"
        ways: list[Callable[[], Any]] = [lambda: session.sql(query).collect()[0][0]]
        if not is_connect(self._user):  # without a Spark job
            ways.insert(0, lambda: session._jvm.java.lang.ProcessHandle.current().pid())
        for ask in ways:
            try:
                return int(ask())
            except Exception as error:  # refused by the platform
                logger.info("process of Java not told error=%s", type(error).__name__)
        return None  # the lock then says what to do
