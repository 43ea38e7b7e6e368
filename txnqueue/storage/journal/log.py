"""The folder of Delta's commits, read without a Spark job."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from txnqueue.errors import StoreCorrupt, StoreSetBack
from txnqueue.storage import setbacks
from txnqueue.storage.journal.sessions import LAST_COMMIT, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnqueue.storage.journal.statements import Statements

logger = logging.getLogger("txnqueue")
_COMMIT = re.compile(r"([0-9]{20})\.json")
_COORDINATED = ("catalog", "coordinated")
"""Parts of the names of features with which commits are not in the folder."""

BEGUN_SECONDS = 2.0
"""A log without a commit that does not change for so long was left by whoever began it."""
APART_MS = 300_000
"""How far the clocks of drivers and of the storage may be apart."""


class _Begun:
    """What a log without a commit looked like, and since when."""

    def __init__(self) -> None:
        self._found: Mapping[str, int] | None = None
        self._since = 0.0

    def is_left(self, found: Mapping[str, int], seconds: float) -> bool:
        """Return whether it has looked like this for so long."""
        now = time.monotonic()
        if found != self._found:
            self._found, self._since = found, now
        return now - self._since >= seconds


class CommitLog:
    """The commits of one Delta table, each in a file named by its version."""

    def __init__(self, statements: Statements, table: str) -> None:
        """Read nothing yet.

        Args:
            statements: Runs Spark statements.
            table: The table, quoted for SQL.
        """
        self._statements = statements
        self._table = table
        self._described: tuple[str, str] | None = None
        self._files: Any = None
        self._newest: tuple[int, int, int] | None = None
        """The version that was the newest one: its number, length, and time in milliseconds."""

    @property
    def table_id(self) -> str:
        """The id that distinguishes the table from another one created in its place."""
        return self._statements.run(self._describe)[0]

    def learn_created(self) -> None:
        """Read the table's description from its first commit, which this process has just made.

        This avoids a Spark job, which is expensive in a new process. If anything is not as
        expected, Spark is asked when the description is needed.
        """
        names = self._statements.names
        if not names.by_path or is_connect(self._statements.user):
            return
        folder = f"{names.root}/journal/_delta_log"
        try:
            text = self._statements.run(lambda: self._text(f"{folder}/{0:020d}.json"))
            actions = {
                key: one for line in text.splitlines() for key, one in json.loads(line).items()
            }
            if not _is_elsewhere(actions["protocol"].get("writerFeatures") or ()):
                self._described = str(actions["metaData"]["id"]), folder
        except Exception as error:  # a shortcut only: Spark is asked instead
            if self._statements.closed:
                raise
            logger.info("commit not read table=%s error=%s", self._table, type(error).__name__)

    def created(
        self, lock: str, create: Callable[[SparkSession], object], folder: str | None = None
    ) -> str | None:
        """Create the table, even if an earlier creation was interrupted.

        Delta creates the folder of the log, and one in it, before it writes the first commit, and
        considers a folder without any commit an existing table.

        Args:
            lock: The name of the table's lock.
            create: Creates the table if it does not exist.
            folder: The table's folder below the root; the same name when omitted.

        Returns:
            The version of the commit; None if the table was there.

        Raises:
            Busy: Others were creating the table at every try, and it is not there yet.
        """
        names, seen = self._statements.names, _Begun()
        looks = names.by_path and not is_connect(self._statements.user)
        log = f"{names.root}/{folder or lock}/_delta_log"

        def whole(session: SparkSession) -> str | None:
            keep_seconds = 0.0 if self._statements.is_locked(lock) else BEGUN_SECONDS
            is_there = looks and self._is_written(log, seen, keep_seconds)
            session.conf.unset(LAST_COMMIT)
            create(session)
            version = session.conf.get(LAST_COMMIT, None)
            if version is None and not is_there:  # another driver may be about to write it
                session.sql(f"DESCRIBE DETAIL {self._table}").collect()
            return version

        return self._statements.ensuring(lock, whole)

    def is_newest(self, version: int) -> bool:
        """Return whether a version of the table is certainly the newest one.

        This version must exist and the next one not: Delta removes old commits in order, so a log
        that was cleaned up beyond both is distinguished from one that ends here.

        Returns:
            False also if that cannot be determined: over Spark Connect, if a catalog keeps the
            commits, or if the storage does not respond.

        Raises:
            StoreSetBack: The log ends before this version, or has another one in its place.
        """
        if is_connect(self._statements.user):
            return False
        try:
            return self._statements.run(lambda: self._ends_with(version))
        except StoreSetBack:
            raise
        except Exception as error:  # a shortcut only: Spark is asked instead
            if self._statements.closed:
                raise
            logger.info("commits not listed table=%s error=%s", self._table, type(error).__name__)
            return False

    def check_newest(self, version: int) -> None:
        """Check that no later commit left a trace and is missing: it would be written again.

        Only the next commit is checked, and none if commits are kept elsewhere.

        Raises:
            StoreCorrupt: A file that Delta writes after a commit exists, but the commit does not.
        """
        if is_connect(self._statements.user):
            return
        try:
            gone = self._statements.run(lambda: self._trace_after(version))
        except Exception as error:  # the log cannot be listed: no trace is known
            if self._statements.closed:
                raise
            logger.info("commits not listed table=%s error=%s", self._table, type(error).__name__)
            return
        if gone:
            raise StoreCorrupt(
                f"Commit {version + 1} of {self._table} was written but is missing. Stop writing "
                "to the store, keep it as it is, and put the file back from a copy."
            )

    def is_absent(self, folder: str) -> bool:
        """Return whether a folder certainly does not exist; False also if that is unknown."""
        if is_connect(self._statements.user):
            return False
        try:
            return not self._statements.run(lambda: self._is_there(folder))
        except Exception as error:  # unknown is not absent
            if self._statements.closed:
                raise
            logger.info("folder not found folder=%s error=%s", folder, type(error).__name__)
            return False

    def has_commits(self, folder: str) -> bool | None:
        """Return whether a log has a commit or a checkpoint; None if that is unknown."""
        if is_connect(self._statements.user):
            return None
        try:
            return self._statements.run(lambda: self._has_commits(folder))
        except Exception as error:
            if self._statements.closed:
                raise
            logger.info("log not listed folder=%s error=%s", folder, type(error).__name__)
            return None

    def removed_files(self) -> int | None:
        """Return how many removed files the newest checkpoint lists, approximately.

        Returns:
            None if that cannot be determined: without a checkpoint, over Spark Connect, or if a
            catalog keeps the commits.
        """
        if is_connect(self._statements.user):
            return None
        text = self._statements.run(self._checkpointed)
        said = json.loads(text) if text else {}
        actions, added = said.get("size"), said.get("numOfAddFiles")
        return None if actions is None or added is None else int(actions) - int(added)

    def _checkpointed(self) -> str | None:
        """Read the file in which Delta describes the newest checkpoint."""
        _, folder = self._describe()
        name = f"{folder}/_last_checkpoint"
        return self._text(name) if folder and self._is_there(name) else None

    def _is_written(self, folder: str, seen: _Begun, keep_seconds: float) -> bool:
        """Return whether a log has a file of Delta; remove one that was begun and then left.

        What another driver has just begun looks the same, so it is removed only once it has not
        changed for a while, and not if that happens meanwhile.
        """
        path, recursively = self._path(folder), False
        files = self._files_of(path)
        if not files.exists(path):
            return False
        begun, is_kept, listing = {}, False, files.listStatusIterator(path)
        while listing.hasNext():
            status = listing.next()
            one = status.getPath()
            if not (status.isDirectory() or one.getName().startswith(".")):
                return True
            # What a log store keeps in a folder is for Delta to understand.
            is_kept |= status.isDirectory() and files.listStatusIterator(one).hasNext()
            begun[str(one)] = one, int(status.getModificationTime())
        looks = {name: at for name, (_, at) in begun.items()}
        if not is_kept and seen.is_left(looks, keep_seconds):
            for one in (*(one for one, _ in begun.values()), path):
                files.delete(one, recursively)  # empty folders, unfinished commits, the folder
        return False

    def _has_commits(self, folder: str) -> bool:
        if not self._is_there(folder):
            return False
        path = self._path(folder)
        listing = self._files_of(path).listStatusIterator(path)
        while listing.hasNext():
            if str(listing.next().getPath().getName())[0].isdigit():
                return True
        return False

    def _ends_with(self, version: int) -> bool:
        _, folder = self._describe()
        if not folder:
            return False
        after, newest = (f"{folder}/{number:020d}.json" for number in (version + 1, version))
        seen = self._newest  # other threads may look as well
        if self._is_there(after):
            if seen is not None:
                name = f"{folder}/{seen[0]:020d}.json"
                self._check_is(name, seen, self._status(name))
            return False
        status = self._status(newest)
        if status is not None:
            if seen is not None and seen[0] == version:
                self._check_is(newest, seen, status)
            self._newest = version, *status
            return True
        last = self._last(folder)
        if last < version:
            raise setbacks.older(self._statements.names.root, last, version)
        return False

    def _check_is(
        self, name: str, seen: tuple[int, int, int], status: tuple[int, int] | None
    ) -> None:
        """Check that the file of the version that was the newest one has the same commit.

        A file with the same commit is newer if the store was moved, or if somebody finished the
        commit for another driver.

        Args:
            name: The file.
            seen: What it was when that version was the newest one.
            status: What it is now; None: it was cleaned up.

        Raises:
            StoreSetBack: An older copy was put in the store's place, and others went on from it.
        """
        version, length, written_ms = seen
        if status is None or status == (length, written_ms):
            return
        if status[0] != length or self._committed_ms(name) > written_ms + APART_MS:
            raise setbacks.replaced(self._statements.names.root, version)

    def _committed_ms(self, name: str) -> int:
        """Read when a commit was made, by its driver's clock; 0 if it does not say."""
        for line in self._text(name).splitlines():
            about = json.loads(line).get("commitInfo")
            if about is not None:
                return int(about.get("timestamp") or 0)
        return 0

    def _status(self, name: str) -> tuple[int, int] | None:
        """Return a file's length and time in milliseconds; None if there is no such file."""
        path = self._path(name)
        try:
            found = self._files_of(path).getFileStatus(path)
        except Exception:  # there may be no such file
            if self._is_there(name):
                raise
            return None
        return int(found.getLen()), int(found.getModificationTime())

    def _last(self, folder: str) -> int:
        """Return the newest commit in the folder; -1 if there is none."""
        path = self._path(folder)
        found = self._files_of(path).listStatus(path)
        names = (_COMMIT.fullmatch(str(one.getPath().getName())) for one in found)
        return max((int(name[1]) for name in names if name), default=-1)

    def _trace_after(self, version: int) -> bool:
        _, folder = self._describe()
        if not folder:
            return False
        trace, after = (f"{folder}/{version + 1:020d}.{end}" for end in ("crc", "json"))
        # In this order, because another driver may commit between the two checks.
        return self._is_there(trace) and not self._is_there(after)

    def _is_there(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._files_of(path).exists(path))

    def _text(self, name: str) -> str:
        path, session = self._path(name), cast("Any", self._statements.session)
        stream = self._files_of(path).open(path)
        try:
            read = session._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream)
        finally:
            stream.close()
        return bytes(read).decode()

    def _files_of(self, path: Any) -> Any:
        """Return the file system of the commits, which the first path determines."""
        if self._files is None:
            session: Any = self._statements.session
            settings = session._jsparkSession.sessionState().newHadoopConf()
            self._files = path.getFileSystem(settings)
        return self._files

    def _path(self, name: str) -> Any:
        session: Any = self._statements.session
        return session._jvm.org.apache.hadoop.fs.Path(name)

    def _describe(self) -> tuple[str, str]:
        """Return the table's id, and the folder of its commits; "" if not all of them are there."""
        if self._described is None:
            query = self._statements.session.sql(f"DESCRIBE DETAIL {self._table}")
            (detail,) = query.select("id", "location", "tableFeatures").collect()
            elsewhere = _is_elsewhere(detail["tableFeatures"] or ())
            folder = "" if elsewhere else f"{detail['location']}/_delta_log"
            self._described = str(detail["id"]), folder
        return self._described


def _is_elsewhere(features: Iterable[str]) -> bool:
    """Return whether a table's features mean that not all its commits are in the folder."""
    return any(sign in str(feature).lower() for feature in features for sign in _COORDINATED)
