"""Running the library's statements on tuned sessions, to their end.

A statement runs on a thread of the library. If its caller is interrupted (Ctrl-C, a cancelled
cell), the statement continues and keeps the lock. If it was an append to the journal, all later
statements wait for it, so it cannot land unnoticed between them.

Appends to the journal have their own thread and session, so long statements (reading, staging,
changing tables, cleaning up files) do not delay commits.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from txnqueue.errors import Busy, PlatformMissing, StoreBusy
from txnqueue.storage.forks import check_process
from txnqueue.storage.journal.exceptions import (
    UsersTable,
    conflicts,
    damage,
    is_file_missing,
    is_rivalry,
    is_session_ended,
    is_unanswered,
    needs_listing,
)
from txnqueue.storage.journal.lock import NoLock
from txnqueue.storage.journal.locks import Locks
from txnqueue.storage.journal.sessions import (
    APPENDING,
    MEANING,
    SETTINGS,
    answers,
    close_session,
    commit_noted,
    is_connect,
    is_known,
    is_ours,
    is_stopped,
    leave_session,
    new_session,
)
from txnqueue.storage.journal.storage_clock import seconds_ahead, too_far_ahead
from txnqueue.storage.journal.tables import TableNames
from txnqueue.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
logger = logging.getLogger("txnqueue")

POOL = "spark.scheduler.pool"
OWN_POOL = "txnqueue"
"""The scheduler pool in which the library's short statements do not queue behind a user's jobs."""
THREADS_MAX = 64
TRIES_MAX = 5
TRIES_WAIT_SECONDS = 0.25
ASKED_SECONDS = 60.0
"""A Spark Connect server is asked at most so often whether it still knows a session."""
RETENTION = "delta.deletedFileRetentionDuration"
_PART = re.compile(r"\s*([0-9]+)\s+(millisecond|second|minute|hour|day|week)s?(?=\s|$)")
_SECONDS = {
    "millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0,
    "week": 604_800.0,
}  # fmt: skip
_DEFAULT_DAYS = 7
"""How long Delta keeps deleted files where a table does not say."""


def seconds_of(interval: str) -> float | None:
    """Read an interval as Delta's properties have it: in seconds (pure).

    Args:
        interval: For example ``interval 14 days 12 hours``.

    Returns:
        The seconds; None if it is something else.
    """
    left, seconds = interval.strip().lower().removeprefix("interval"), 0.0
    while left.strip():
        part = _PART.match(left)
        if part is None:
            return None
        seconds += int(part[1]) * _SECONDS[part[2]]
        left = left[part.end() :]
    return seconds


class Statements:
    """The library's sessions, the threads that use them, and the locks of the tables."""

    def __init__(
        self, spark: SparkSession, names: TableNames, *, several_drivers: bool = False
    ) -> None:
        """Open the sessions.

        Args:
            spark: The user's session, which is not changed.
            names: The names of the store's tables.
            several_drivers: Whether the platform lets several drivers write, whatever the
                storage is.
        """
        self.user = spark
        self.names = names
        # A thread keeps what it began with: with a reference to this, none of them would end
        # before the process does, as they do once nobody uses the manager any more.
        begin = partial(_enter_pool, weakref.ref(spark))
        self._appends = ThreadPoolExecutor(1, "txnqueue appends", begin)
        self._commits = ThreadPoolExecutor(THREADS_MAX, "txnqueue commits", begin)
        self._readings = ThreadPoolExecutor(THREADS_MAX, "txnqueue", begin)
        self._users = ThreadPoolExecutor(THREADS_MAX, "txnqueue staging")
        self._idle: dict[bool, deque[SparkSession]] = {True: deque(), False: deque()}
        self._left: set[Future[Any]] = set()
        self._closed = False
        self._process = os.getpid()
        self._making = threading.RLock()
        self._sessions: dict[str, SparkSession] = {}
        self._is_remote = is_connect(spark)
        self._asked: weakref.WeakKeyDictionary[SparkSession, float] = weakref.WeakKeyDictionary()
        self._made("reading", SETTINGS)
        self._locks = Locks(
            spark, lambda: self.session, names, self._naming, several_drivers=several_drivers
        )
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def closed(self) -> bool:
        """Whether its manager was closed."""
        return self._closed

    @property
    def session(self) -> SparkSession:
        """The session for reading, and for work on few rows."""
        return self._made("reading", SETTINGS)

    @property
    def appending(self) -> SparkSession:
        """The session that only appends to the journal use."""
        return self._made("appending", APPENDING)

    @property
    def compiling(self) -> SparkSession:
        """The session for work on many rows, where compiling pays."""
        return self._made("compiling", MEANING)

    def run(
        self,
        statement: Callable[[], Result],
        *,
        repeatable: bool = True,
        table: UsersTable | None = None,
    ) -> Result:
        """Run a statement that reads, on a session whose settings do not change.

        A file may be missing because maintenance deleted it after the statement was planned: by a
        clock that is far ahead, or while a long statement ran. The newest version does not name
        it, so the statement is run again, once. So is one whose session a Spark Connect server has
        ended: by then there is another one.

        Args:
            statement: The statement.
            repeatable: Whether it can be run again. One that takes the next part of what an earlier
                one began cannot: after an error there is no next part, which looks like the end.
            table: The user's table that it reads, if any.

        Raises:
            InvalidInput: A file of the user's table is damaged.
            StoreCorrupt: A file of the store is damaged.
            StoreBusy: A file is missing, or the session has ended, and the statement cannot be run
                again.
        """
        with damage(table):
            return _read(
                lambda: self._begun(self._readings, statement).result(), repeatable=repeatable
            )

    def as_callers_work(self, statement: Callable[[], Result]) -> Result:
        """Run a statement that reads in the caller's thread, with its job group and pool.

        It is run again as ``run`` does.

        Raises:
            StoreCorrupt: A file of the store is damaged.
        """

        def read() -> Result:
            self.check_running()
            return self._run(statement)

        with damage():
            return _read(read)

    def alone(
        self,
        statement: Callable[[SparkSession], Result],
        *,
        compiled: bool = False,
        table: UsersTable | None = None,
    ) -> Result:
        """Run a statement on a session that nothing else uses meanwhile.

        Args:
            statement: The statement; it may change settings, because each one sets its own.
            compiled: Whether it works on enough rows for compiling to pay.
            table: The user's table that it reads, if any.
        """

        def run() -> Result:
            with self._idle_session(compiled=compiled) as session:
                return statement(session)

        return self.run(run, table=table)

    def append(self, statement: Callable[[SparkSession], Result]) -> Result:
        """Run an append to the journal to its end, even if the caller is interrupted meanwhile.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with (
                self._locks.of("journal").held(),
                self._kept_unless_unanswered("appending", self.appending) as session,
            ):
                return statement(session)

        under_way = self._submit(self._appends, locked)
        return self.result_of_append(under_way, lambda: None)

    def result_of_append(self, under_way: Future[Result], begin: Callable[[], object]) -> Result:
        """Begin an append, and wait for it.

        If the caller is interrupted, the append never lands unless it is already being carried
        out; then later statements wait for it.

        Args:
            under_way: Its future result.
            begin: Passes it to the thread that carries it out; may be interrupted too.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
            PlatformMissing: This process was forked from the manager's; nothing was done.
        """
        self._check_process()
        try:
            begin()
            return _committed(under_way)
        except BaseException:
            if not under_way.cancel() and not under_way.done():
                self._left.add(under_way)
                under_way.add_done_callback(self._left.discard)
            raise

    def committing(
        self, table: str, statement: Callable[[SparkSession], Result], *, compiled: bool = False
    ) -> Result:
        """Run any other statement that makes a Delta commit, to its end, under the table's lock.

        One statement at a time runs on each table, on a session of its own.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with (
                self._turn(table),
                self._locks.of(table).held(),
                self._idle_session(compiled=compiled) as one,
            ):
                return statement(one)

        return _committed(self._begun(self._commits, locked))

    def ensuring(self, table: str, statement: Callable[[SparkSession], Result]) -> Result:
        """Run a statement that makes something unless it is there: a table, or a column.

        Two drivers may find that it is not. The slower one meets a conflict, or a table that is
        not whole yet, and has nothing left to do once the other one is ready: the statement is
        repeated.

        Raises:
            Busy: Others were at it at every try.
        """
        for failed in range(1, TRIES_MAX + 1):
            try:
                return self.committing(table, statement)
            except Exception as error:
                if not is_rivalry(error):
                    raise
                logger.info("others are at it table=%s error=%s", table, type(error).__name__)
                if failed == TRIES_MAX:
                    raise Busy(
                        f"Others were creating or altering the table {table!r} at every try: try "
                        "again.",
                        operation="create or alter a table",
                        tries=failed,
                    ) from error
            time.sleep((1 + random.random()) / 2 * TRIES_WAIT_SECONDS * 2**failed)  # noqa: S311 - no secret
        raise AssertionError

    def is_locked(self, table: str) -> bool:
        """Return whether no other driver can write to a table meanwhile."""
        return not isinstance(self._locks.of(table), NoLock)

    def staging(self, table: str, session: SparkSession, statement: Callable[[], Result]) -> Result:
        """Run a write of rows under the table's lock, as work of the caller for Spark.

        Other writes to this table wait only on local disks: staged rows belong to no queue until
        a decision names them.

        Args:
            table: The name of its lock.
            session: The session of the rows.
            statement: Writes the rows.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
        """

        def locked() -> Result:
            with self._locks.of(table).held():
                return statement()

        if is_ours(session):
            return _committed(self._begun(self._commits, locked))
        from pyspark.util import inheritable_thread_target

        self.check_running()
        callers: Callable[[], Result] = inheritable_thread_target(session)(locked)
        return _committed(self._begun(self._users, callers))

    def answers(self) -> bool:
        """Return whether statements can still be run, without waiting for a server that is gone.

        Raises:
            PlatformMissing: As in ``check_running``.
        """
        self.check_running()
        return all(map(answers, list(self._sessions.values())))

    def close(self) -> None:
        """Wait for running statements, then release the threads, the sessions and the store.

        A call that needs another statement is refused from now on.
        """
        self._closed = True
        if self._is_copy:  # the process that made them goes on with them
            return
        for threads in (self._appends, self._commits, self._readings, self._users):
            threads.shutdown()
        self._locks.leave()
        for session in (*self._sessions.values(), *self._idle[True], *self._idle[False]):
            close_session(session)

    def check_running(self) -> None:
        """Check that the user's session was not stopped, and the manager not closed or copied.

        Raises:
            PlatformMissing: One of them was; nothing was done.
        """
        self._check_process()
        if self._closed:
            raise PlatformMissing(
                "This manager is closed, and nothing was done: create another one."
            )
        if is_stopped(self.user):
            raise PlatformMissing(
                "The Spark session of this manager was stopped (spark.stop()), and nothing was "
                "done: create a QueueManager with a running session."
            )

    @property
    def _is_copy(self) -> bool:
        """Whether this process was forked from the one that made it: no thread came along."""
        return os.getpid() != self._process

    def _check_process(self) -> None:
        """Check that what is begun is not left waiting for threads of another process.

        Raises:
            PlatformMissing: It would be.
        """
        check_process(self._process)

    def vacuum(self, table: str, name: str, seconds_min: float, *, full: bool) -> str | None:
        """Remove a table's files that no retained version names.

        Delta can determine them from its log if the log reaches back to the last vacuum;
        otherwise it must list the table's folder, whose files it takes for old by Java's clock.

        Args:
            table: The name of its lock.
            name: The table, quoted for SQL.
            seconds_min: Files are removed only if the table keeps deleted files at least this long.
            full: Whether to list the folder and find files that are in no log.

        Returns:
            Why nothing was removed; None if files were removed.
        """
        kept, said = self.files_kept(name)
        if kept < seconds_min:
            return f"{name} keeps deleted files for {said!r}, and {seconds_min:.0f} s are needed"

        def vacuum(session: SparkSession, how: str = "") -> None:
            note = {"txnqueue": __version__, "operation": "vacuum"}
            commit_noted(session, f"VACUUM {name}{how}", note)

        if not full:
            try:
                self.committing(table, lambda session: vacuum(session, " LITE"))
                return None
            except Exception as error:
                if not needs_listing(error):
                    raise
                logger.info("the folder is listed table=%s reason=%s", table, error)
        reason = too_far_ahead(name, self.run(lambda: self._seconds_ahead(name)))
        if reason is None:
            self.committing(table, vacuum)
        return reason

    def _seconds_ahead(self, name: str) -> float | None:
        """Return by how much Java's clock is ahead of that of a table's storage; None: unknown."""
        (detail,) = self.session.sql(f"DESCRIBE DETAIL {name}").select("location").collect()
        return seconds_ahead(self.session, detail["location"])

    def files_kept(self, name: str) -> tuple[float, str]:
        """Return how long a table keeps deleted files: in seconds (0 if unknown), and as set."""
        query = f"SHOW TBLPROPERTIES {name}"
        rows = self.run(lambda: self.session.sql(query).collect())
        said = {row["key"]: row["value"] for row in rows}.get(RETENTION)
        if said is None:  # the user has unset it
            said = f"interval {_DEFAULT_DAYS} days"
        return seconds_of(said) or 0.0, said

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Make this driver the one that may write, if the storage supports only one.

        Returns:
            Whether it does.

        Raises:
            SecondDriver: Another driver did the same at the same time.
        """
        admission = self.run(self._locks.admission)
        if admission is None:
            return False
        _committed(self._begun(self._commits, lambda: admission.take_over(about)))
        return True

    # -------------------------------------------------------------- threads and sessions

    def _begun(
        self, threads: ThreadPoolExecutor, statement: Callable[[], Result]
    ) -> Future[Result]:
        """Begin a statement after interrupted appends have ended."""
        self.check_running()
        wait(tuple(self._left))
        return self._submit(threads, statement)

    def _submit(
        self, threads: ThreadPoolExecutor, statement: Callable[[], Result]
    ) -> Future[Result]:
        self.check_running()
        try:
            return threads.submit(self._run, statement)
        except RuntimeError:  # closed since the check
            self.check_running()
            raise

    def _run(self, statement: Callable[[], Result]) -> Result:
        """Run a statement; if a server has ended its session, the others are asked for, too."""
        try:
            return statement()
        except Exception as error:
            if is_session_ended(error):
                self._asked.clear()
            raise

    @contextmanager
    def _idle_session(self, *, compiled: bool) -> Iterator[SparkSession]:
        """Lend a session that nothing else uses meanwhile.

        One in which a statement may still be at work is not lent again: nor are its settings known.
        """
        session = self._next_idle(compiled=compiled)
        try:
            yield session
        except BaseException as error:
            if is_unanswered(error):
                leave_session(session)
            else:
                self._idle[compiled].append(session)
            raise
        self._idle[compiled].append(session)

    def _next_idle(self, *, compiled: bool) -> SparkSession:
        """Take a session out of the idle ones, or create one."""
        while True:
            try:
                session = self._idle[compiled].pop()
            except IndexError:
                return self._new(MEANING if compiled else SETTINGS)
            try:
                known = self._is_known(session)
            except BaseException:  # whether it is, nobody knows yet
                self._idle[compiled].append(session)
                raise
            if known:
                return session
            close_session(session)

    def _turn(self, table: str) -> threading.Lock:
        with self._making:
            return self._turns[table]

    @contextmanager
    def _naming(self) -> Iterator[SparkSession]:
        """Lend the session in which a driver registers as the writer."""
        with self._kept_unless_unanswered("naming", self._made("naming", SETTINGS)) as session:
            yield session

    @contextmanager
    def _kept_unless_unanswered(self, name: str, session: SparkSession) -> Iterator[SparkSession]:
        """Lend one of the kept sessions, and have another one made if nothing comes back of it.

        A statement may still be at work in it, and its commit would then be told as that of the
        next statement.
        """
        try:
            yield session
        except BaseException as error:
            if is_unanswered(error):
                with self._making:
                    if self._sessions.get(name) is session:
                        del self._sessions[name]
                leave_session(session)
            raise

    def _made(self, name: str, settings: Mapping[str, str]) -> SparkSession:
        """Create a session once, whichever thread needs it first, and again when it has ended."""
        with self._making:
            found = self._sessions.get(name)
            if found is None:
                found = self._sessions[name] = self._new(settings)
                return found
        if self._is_known(found):  # without the lock: a server may be slow to answer
            return found
        with self._making:
            now = self._sessions.get(name)
            if now is None or now is found:
                now = self._sessions[name] = self._new(settings)
                close_session(found)
            return now

    def _new(self, settings: Mapping[str, str]) -> SparkSession:
        session = new_session(self.user, settings)
        self._asked[session] = time.time()
        return session

    def _is_known(self, session: SparkSession) -> bool:
        """Return whether a server has not ended a session, as far as it was asked lately.

        Whoever reads keeps the user's session, too: others are cloned from it. The clock is that of
        the day, which goes on while a machine sleeps.

        Raises:
            PlatformMissing: This process was forked from the manager's.
        """
        if not self._is_remote or self._closed:  # what is under way as it closes goes on
            return True
        self._check_process()
        now = time.time()
        if 0 <= now - self._asked.get(session, 0.0) < ASKED_SECONDS:
            return True
        if not is_known(session):
            return False
        self._asked[session] = now
        if session is self._sessions["reading"]:
            with suppress(Exception):
                is_known(self.user)
        return True


def _enter_pool(user: weakref.ref[SparkSession]) -> None:
    """Put the jobs of this thread into the library's pool; Spark Connect has no pools."""
    spark = user()
    if spark is not None and not is_connect(spark):
        spark.sparkContext.setLocalProperty(POOL, OWN_POOL)


def _read(read: Callable[[], Result], *, repeatable: bool = True) -> Result:
    """Read, and read once more if a file was missing or a server had ended the session.

    Raises:
        StoreBusy: It cannot be read again.
    """
    try:
        return read()
    except Exception as error:
        ended = is_session_ended(error)
        if not ended and not is_file_missing(error):
            raise
        if not repeatable:
            why = (
                "The Spark Connect server ended the session while rows were read"
                if ended
                else "Maintenance deleted files while they were read, which took long"
            )
            raise StoreBusy(f"{why}: ask again.", owner=None) from error
        logger.info("read again session_ended=%s error=%s", ended, type(error).__name__)
    return read()


def _committed(under_way: Future[Result]) -> Result:
    """Wait for a statement that commits."""
    with conflicts():
        return under_way.result()
