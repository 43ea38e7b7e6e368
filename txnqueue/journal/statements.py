"""Run the library's own statements: on a tuned session, one at a time, to their end.

A statement runs on a thread of its own. When its caller is interrupted (Ctrl-C, a
cancelled cell) the statement goes on, keeps the lock, and the next one waits for it: so
nothing of this client ever lands behind the back of what it does next.
"""

from __future__ import annotations

import importlib
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlparse

from txnqueue.errors import InvalidInput, StoreNotFound
from txnqueue.journal import AppendConflict
from txnqueue.journal.lock import Lock, NoLock, TableLock
from txnqueue.journal.tables import TableNames

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Result = TypeVar("Result")
logger = logging.getLogger("txnqueue")

SETTINGS = {
    "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.variable.substitute": "false",
}
"""The library's own session; the user's keeps its settings."""

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""What Delta writes into the history of a table with each commit of a session."""
RETENTION = "delta.deletedFileRetentionDuration"
_INTERVAL = re.compile(r"(?:interval )?([0-9]+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")


def new_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Make a session with settings of its own beside the user's."""
    # Delta's own exceptions come through only where this was imported before the call.
    importlib.import_module("delta.exceptions")
    remote = not hasattr(spark, "newSession") or "connect" in type(spark).__module__
    # Connect has no newSession; its cloneSession is not in the classic class's type.
    session: SparkSession = spark.cloneSession() if remote else spark.newSession()  # type: ignore[attr-defined]
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def canonical_root(root: str) -> str:
    """Write a root in the one way in which the store knows it.

    A path without a scheme lies on the local disk, unless Spark's default file system
    says otherwise; symbolic links are followed, so that two spellings are one store.
    """
    if "/" not in root:
        return root
    if root.startswith("file:"):
        root = unquote(urlparse(root).path)
    if _SCHEME.match(root):
        return root.rstrip("/")
    return str(Path(root).expanduser().resolve())


class Statements:
    """The tuned session, the thread that uses it, and the locks of the tables."""

    def __init__(self, spark: SparkSession, names: TableNames) -> None:
        """Open the session.

        Args:
            spark: The user's session; it is not changed.
            names: How the store's tables are called.
        """
        self.user = spark
        self.names = names
        self.session = new_session(spark, SETTINGS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="txnqueue")
        self._locks: dict[str, Lock] = {}

    def run(self, statement: Callable[[], Result]) -> Result:
        """Run a statement to its end, even if the caller is interrupted meanwhile."""
        return self._thread.submit(statement).result()

    def committing(self, table: str, statement: Callable[[], Result]) -> Result:
        """Run a statement that makes a Delta commit, under the table's lock.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with self._lock(table).held():
                return statement()

        try:
            return self.run(locked)
        except Exception as error:
            if _is_conflict(error):
                raise AppendConflict(str(error)) from error
            raise

    def vacuum(self, table: str, name: str, seconds_min: float, full: bool) -> str | None:
        """Remove files of a table that no retained version names.

        Delta can tell by its log which those are, as long as the log reaches back to the last
        time that it was asked; else it has to list the table's folder.

        Args:
            table: What its lock is called.
            name: The table, quoted for SQL.
            seconds_min: Only if the table keeps deleted files for so long.
            full: Whether to list the folder, and find files that are in no log.

        Returns:
            Why nothing was removed; None if it was.
        """
        query = f"SHOW TBLPROPERTIES {name} ('{RETENTION}')"
        said = str(self.run(lambda: self.session.sql(query).collect()[0]["value"]))
        found = _INTERVAL.fullmatch(said.strip().lower())
        kept = float(found.group(1)) * _SECONDS[found.group(2)] if found else 0.0
        if kept < seconds_min:
            return f"{name} keeps deleted files for {said!r}, and {seconds_min:.0f} s are needed"

        def by_log() -> None:
            self.session.sql(f"VACUUM {name} LITE").collect()

        def by_listing() -> None:
            self.session.sql(f"VACUUM {name}").collect()

        if not full:
            try:
                self.committing(table, by_log)
                return None
            except Exception as error:
                logger.info("the folder is listed table=%s reason=%s", table, error)
        self.committing(table, by_listing)
        return None

    def remove(self, table: str, payload_id: str) -> str | None:
        """Remove a payload table with everything in it.

        Args:
            table: What its lock is called.
            payload_id: Its owner.

        Returns:
            Why it was not removed; None if it was.
        """
        name = self.names.payload(payload_id)
        if not self.names.by_path:
            drop = f"DROP TABLE IF EXISTS {name}"
            self.committing(table, lambda: self.session.sql(drop).collect())
            return None
        root = self.run(self._local_folder)
        if root is None:  # SQL does not remove what has a path and no name
            return f"no queue ever got {name}: delete its folder"
        folder = root / "payload" / payload_id
        self.committing(table, lambda: shutil.rmtree(folder) if folder.exists() else None)
        return None

    def _lock(self, table: str) -> Lock:
        if table not in self._locks:
            self._locks[table] = self._new_lock(table)
        return self._locks[table]

    def _new_lock(self, table: str) -> Lock:
        folder = self._local_folder()
        if folder is None:
            return NoLock()
        return TableLock(folder / ".locks" / f"{table}.lock", self._jvm_pid)

    def _local_folder(self) -> Path | None:
        """Find the folder of a store on the local disk; None if it lies elsewhere."""
        root = self.names.root
        if not self.names.by_path:
            rows = self._described()
            location = next((r[1] for r in rows if str(r[0]).lower() == "location"), "")
            if not str(location).startswith("file:"):
                return None
            schema = root.rpartition(".")[2].lower()  # with and without the catalog the same
            return Path(unquote(urlparse(location).path)) / f".txnqueue-{schema}"
        if _SCHEME.match(root):
            return None
        default = self.session.sql("SET fs.defaultFS").collect()[0][1]
        if not str(default).startswith(("file:", "<undefined>")):
            raise InvalidInput(
                f"The root {root!r} has no scheme and the default file system is {default}: "
                "write the root with its scheme."
            )
        return Path(root)

    def _described(self) -> list[Row]:
        """Describe the catalog schema.

        Raises:
            StoreNotFound: There is no such schema.
        """
        from pyspark.errors import AnalysisException

        try:
            return self.session.sql(f"DESCRIBE SCHEMA {self.names.schema}").collect()
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error):
                raise
            raise StoreNotFound(
                f"There is no schema {self.names.root!r}: a root without a '/' is a catalog "
                f"schema; CREATE SCHEMA {self.names.schema} makes it.",
                root=self.names.root,
            ) from error

    def _jvm_pid(self) -> int | None:
        query = "SELECT reflect('java.lang.ProcessHandle', 'current')"
        try:
            return int(self.session.sql(query).collect()[0][0])
        except Exception:  # refused by the platform; the lock then says what to do
            return None


def _is_conflict(error: BaseException) -> bool:
    """Say whether Delta reports that another commit was faster.

    Delta's conflict exceptions have no base class of their own in Python, and arrive
    wrapped when the commit ran inside something else: so the error class is looked at too.
    """
    from delta import exceptions

    known = (
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentTransactionException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )
    return isinstance(error, known) or "DELTA_CONCURRENT_" in str(error)
