"""Run the library's own statements: on tuned sessions, to their end.

A statement runs on a thread of the library. When its caller is interrupted (Ctrl-C, a
cancelled cell) the statement goes on and keeps the lock. If it was an append to the journal
all that follows waits for it: so nothing of this client ever lands behind the back of what
it does next.

Appends to the journal have one thread and one session for themselves, so that what takes
long keeps nobody from committing: reading, staging, changing tables, tidying files.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from txnqueue.errors import InvalidInput, PlatformMissing, StoreNotFound
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.lock import Lock, NoLock, TableLock
from txnqueue.storage.journal.sessions import (
    MEANING,
    SETTINGS,
    close_session,
    is_connect,
    new_session,
)
from txnqueue.storage.journal.tables import TableNames
from txnqueue.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

Result = TypeVar("Result")
logger = logging.getLogger("txnqueue")

POOL = "spark.scheduler.pool"
OWN_POOL = "txnqueue"
"""Where jobs are scheduled fairly, short statements of ours do not queue behind a user's jobs."""
THREADS_MAX = 64
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""What Delta writes into the history of a table with each commit of a session."""
RETENTION = "delta.deletedFileRetentionDuration"
_INTERVAL = re.compile(r"(?:interval )?([0-9]+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")


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
    """The library's sessions, the threads that use them, and the locks of the tables."""

    def __init__(self, spark: SparkSession, names: TableNames) -> None:
        """Open the session.

        Args:
            spark: The user's session; it is not changed.
            names: How the store's tables are called.
        """
        self.user = spark
        self.names = names
        self.session = new_session(spark, SETTINGS)
        self._appends = ThreadPoolExecutor(1, "txnqueue appends", self._enter_pool)
        self._others = ThreadPoolExecutor(THREADS_MAX, "txnqueue", self._enter_pool)
        self._users = ThreadPoolExecutor(THREADS_MAX, "txnqueue staging")
        self._idle: dict[bool, deque[SparkSession]] = {True: deque(), False: deque()}
        self._left: set[Future[Any]] = set()
        self._closed = False
        self._locks: dict[str, Lock] = {}
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @cached_property
    def appending(self) -> SparkSession:
        """The session of appends to the journal; nothing else ever uses it."""
        return new_session(self.user, SETTINGS)

    @cached_property
    def compiling(self) -> SparkSession:
        """The session for work on many rows, which pays for being compiled."""
        return new_session(self.user, MEANING)

    def run(self, statement: Callable[[], Result]) -> Result:
        """Run a statement that reads, on any session whose settings nobody changes."""
        self.check_running()
        wait(tuple(self._left))
        return self._others.submit(statement).result()

    def alone(
        self, statement: Callable[[SparkSession], Result], *, compiled: bool = False
    ) -> Result:
        """Run a statement with a session that nobody else uses meanwhile.

        Args:
            statement: What to run; it may set what it likes, and the next one sets it anew.
            compiled: Whether it works on so many rows that it pays to compile it.
        """
        idle = self._idle[compiled]

        def run() -> Result:
            try:
                session = idle.pop()
            except IndexError:
                session = new_session(self.user, MEANING if compiled else SETTINGS)
            try:
                return statement(session)
            finally:
                idle.append(session)

        return self.run(run)

    def append(self, statement: Callable[[SparkSession], Result]) -> Result:
        """Run an append to the journal to its end, even if the caller is interrupted meanwhile.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with self._lock("journal").held():
                return statement(self.appending)

        self.check_running()
        under_way = self._appends.submit(locked)
        try:
            return _committed(under_way)
        except BaseException:
            if not under_way.done():  # we are interrupted: what follows waits for it
                self._left.add(under_way)
                under_way.add_done_callback(self._left.discard)
            raise

    def committing(
        self, table: str, statement: Callable[[SparkSession], Result], *, compiled: bool = False
    ) -> Result:
        """Run another statement that makes a Delta commit, to its end, under the table's lock.

        One runs at a time on each table, and has a session for itself.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked(session: SparkSession) -> Result:
            with self._turns[table], self._lock(table).held():
                return statement(session)

        with _conflicts():
            return self.alone(locked, compiled=compiled)

    def staging(self, table: str, session: SparkSession, statement: Callable[[], Result]) -> Result:
        """Run a write of rows under the table's lock: for Spark the caller's own work.

        Other writes of this table wait on local disks only: rows that are staged are nobody's
        until a decision names them.

        Args:
            table: What its lock is called.
            session: What the rows live on.
            statement: Writes them.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with self._lock(table).held():
                return statement()

        if session in (self.session, self.compiling):
            with _conflicts():
                return self.run(locked)
        from pyspark.util import inheritable_thread_target

        self.check_running()
        wait(tuple(self._left))
        callers: Callable[[], Result] = inheritable_thread_target(session)(locked)
        return _committed(self._users.submit(callers))

    def _enter_pool(self) -> None:
        """Put the jobs of this thread into a pool of ours; Spark Connect knows none."""
        if not is_connect(self.user):
            self.user.sparkContext.setLocalProperty(POOL, OWN_POOL)

    def close(self) -> None:
        """Let what is under way end, and let the threads and sessions go."""
        self._closed = True
        for threads in (self._appends, self._others, self._users):
            threads.shutdown()
        made = (vars(self).get(name) for name in ("session", "appending", "compiling"))
        for session in (*made, *self._idle[True], *self._idle[False]):
            if session is not None:
                close_session(session)

    def check_running(self) -> None:
        """Check that the user's session was not stopped, and its manager not closed.

        Raises:
            PlatformMissing: It was; nothing was done.
        """
        if self._closed:
            raise PlatformMissing("This manager is closed, and nothing was done: make another.")
        if is_connect(self.user):
            stopped = bool(getattr(self.user, "is_stopped", False))
        else:
            context = self.user.sparkContext._jsc
            stopped = context is None or context.sc().isStopped()
        if stopped:
            raise PlatformMissing(
                "The Spark session of this manager was stopped (spark.stop()): nothing was done. "
                "Make a QueueManager with a session that runs."
            )

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

        def vacuum(session: SparkSession, how: str = "") -> None:
            about = {"txnqueue": __version__, "operation": "vacuum"}
            session.conf.set(USER_METADATA, json.dumps(about))
            session.sql(f"VACUUM {name}{how}").collect()

        if not full:
            try:
                self.committing(table, lambda session: vacuum(session, " LITE"))
                return None
            except Exception as error:
                logger.info("the folder is listed table=%s reason=%s", table, error)
        self.committing(table, vacuum)
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
            self.committing(table, lambda session: session.sql(drop).collect())
            return None
        root = self.run(self._local_folder)
        if root is None:  # SQL does not remove what has a path and no name
            return f"no queue ever got {name}: delete its folder"
        folder = root / "payload" / payload_id
        self.committing(table, lambda _: shutil.rmtree(folder) if folder.exists() else None)
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


def _committed(under_way: Future[Result]) -> Result:
    """Wait for a statement that commits."""
    with _conflicts():
        return under_way.result()


@contextmanager
def _conflicts() -> Iterator[None]:
    """Tell lost races from other errors.

    Raises:
        AppendConflict: Delta reports that another commit was faster.
    """
    try:
        yield
    except Exception as error:
        if _is_conflict(error):
            raise AppendConflict(str(error)) from error
        raise


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
