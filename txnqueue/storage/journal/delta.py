"""The journal in one Delta table: every append is one insert-only MERGE."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.core.settings import shown
from txnqueue.errors import (
    StatementRefused,
    StoreCorrupt,
    StoreError,
    StoreNotFound,
    StoreSetBack,
)
from txnqueue.platform import clock
from txnqueue.storage import setbacks
from txnqueue.storage.journal import AppendConflict, Appended, Audit, Newest, Order, Reading
from txnqueue.storage.journal.archive import IDS, DeltaArchive, name_ids
from txnqueue.storage.journal.exceptions import is_absent, misnamed, surely_not_begun
from txnqueue.storage.journal.feed import ChangeFeed, changes
from txnqueue.storage.journal.filters import EntryFilter
from txnqueue.storage.journal.groups import Groups, Request, groups_of
from txnqueue.storage.journal.history import JournalHistory
from txnqueue.storage.journal.insertion import inserted, merge
from txnqueue.storage.journal.log import CommitLog
from txnqueue.storage.journal.removed_files import longest
from txnqueue.storage.journal.rows import entry_of, rows_of
from txnqueue.storage.journal.selection import EntrySelection
from txnqueue.storage.journal.sessions import LAST_COMMIT, commit_noted
from txnqueue.storage.journal.statements import RETENTION, Statements
from txnqueue.storage.journal.tables import (
    create_journal,
    literal,
    literals,
    properties,
    uncached,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
FEED_VERSIONS_MAX = 200
"""Versions further back than this are read from the files, because the change feed opens the
commits of Delta's log one by one."""
KNOWN_SECONDS_MAX = 30.0
"""How long a newest version is relied on before it is asked for again."""


class DeltaJournal:
    """The journal as a Delta table, partitioned by shard."""

    def __init__(
        self,
        statements: Statements,
        monotonic: Callable[[], float] = clock.monotonic,
        groups: Groups | None = None,
    ) -> None:
        """Use the journal of a store, which need not exist yet.

        Args:
            statements: Runs SQL statements.
            monotonic: A clock in seconds, used only to ask again for the newest version.
            groups: Groups appends; if omitted, the group commit of this process and journal.
        """
        self._statements = statements
        self._table = statements.names.journal
        self.archive = DeltaArchive(statements)
        rank = "_metadata.row_commit_version"
        place = f"({rank} * {model.COMMITS_PER_VERSION} + ordinal)"
        self._selection = EntrySelection(statements, self._table, rank, place)
        self._monotonic = monotonic
        self._known: int | None = None
        self._known_at = 0.0
        self._refused = -1
        self._shared = groups
        self._log = CommitLog(statements, self._table)
        self._history = JournalHistory(statements)

    def exists(self) -> bool:
        """Return whether the journal exists.

        Raises:
            InvalidInput: There can be no table at this root.
            StoreError: Its host is not found, or this user must not look there.
        """
        names = self._statements.names
        if names.by_path and self._log.is_absent(f"{names.root}/journal/_delta_log"):
            _check_permitted(names.root)
            return False
        try:
            self._statements.run(
                lambda: self._session.sql(f"DESCRIBE DETAIL {self._table}").collect()
            )
        except Exception as error:
            if is_absent(error):
                return False
            remedy = "Give a path that Spark can open, or the name of a catalog schema."
            refused = misnamed(error, f"root={shown(names.root)}", remedy, "root")
            if refused is None:
                raise
            raise refused from error
        return True

    def create(self) -> None:
        """Create the journal if it does not exist."""

        def statement(session: SparkSession) -> None:
            note = {"operation": "create store"}
            commit_noted(session, create_journal(self._statements.names), note)

        if self._log.created("journal", statement) == "0":
            self._log.learn_created()
            self._groups.tail.add(0, ())  # an existing journal may begin with entries

    def version(self) -> int:
        """Read the newest version.

        Raises:
            StoreSetBack: Somebody removed entries, or put an older copy in the table's place.
            StoreNotFound: The table was removed.
        """
        with self._unless_gone():
            return self._newest_version()

    def _newest_version(self) -> int:
        if self._known is not None and self._log.is_newest(self._known):
            self._learn_newest(self._known)
            return self._known
        known = self._known  # another thread may append before the history is here
        commits = self._history.newest(1 if known else setbacks.COMMITS)
        newest = max(one.version for one in commits)
        if newest < (known or 0):
            raise setbacks.older(self._statements.names.root, newest, known or 0)
        back = setbacks.looked_up(commits, lambda version: self._history.since(version, newest))
        if back is not None:
            raise back.error(self._statements.names.root)
        if known is None:
            self._log.check_newest(newest)
        self._learn_newest(newest)
        return newest

    def known_version(self) -> int:
        """Return a recent newest version; the store is asked only if it is too old."""
        if self._known is None or self._monotonic() - self._known_at > KNOWN_SECONDS_MAX:
            return self.version()
        return self._known

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut.

        New entries are read from the change feed, whose cost depends on what was added since.
        Entries far back, or older than Delta's log, are read from the shards' files.
        """
        with self._unless_gone():
            return self._read(frozenset(shards), after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        with self._unless_gone():
            return self._read(None, after, upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters."""
        with self._unless_gone():
            return self._selection.find(wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time."""
        with self._unless_gone():
            yield from self._selection.stream(order, wanted)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        with self._unless_gone():
            return self._selection.newest(wanted)

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Check with Delta's change feed what happened to entries, as far back as it reaches."""
        with self._unless_gone():
            archived = model.horizon(self.read([model.FENCE]).entries) >= 0
            audit = ChangeFeed(self._statements).audit(upto, beginning, archived=archived)
            back = setbacks.found(self._history.since(min(audit.since, upto), upto))
        return replace(audit, set_back="" if back is None else str(back))

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each entirely or not at all, by one MERGE.

        Raises:
            AppendConflict: Delta reports that another commit won; or only some units of the MERGE
                landed, and the journal could not be read to find out which; or the session does
                not tell where they landed.
            StatementRefused: Spark cannot parse the MERGE; nothing landed.
            StoreNotFound: The table was removed; nothing landed.
        """
        request = Request(tuple(units), metadata, self._insert)
        try:
            groups = self._groups
            answer = self._statements.result_of_append(
                request.answer, lambda: groups.submit(request)
            )
        except Exception as error:
            if surely_not_begun(error, lambda: self._analyse(inserted(self._table, units))):
                raise (self._gone() if self._is_gone(error) else StatementRefused()) from error
            raise
        try:
            appended = self._groups.resolved(answer, units, lambda v: self._landed(units, v))
        except Exception as error:  # an error of this library would say that nothing was done
            raise AppendConflict("only some appends of the MERGE landed") from error
        if appended.version is not None:
            self._learn_newest(appended.version)
        return appended

    def _insert(
        self, units: Sequence[Unit], metadata: Mapping[str, object]
    ) -> tuple[int, int | None]:
        """Insert the units of a group, each entirely or not at all, by one MERGE."""
        statement = merge(self._table, units)

        def run(session: SparkSession) -> tuple[int, str | None]:
            session.conf.unset(LAST_COMMIT)
            count = commit_noted(session, statement, metadata)[0]["num_inserted_rows"]
            return int(count), session.conf.get(LAST_COMMIT, None)

        count, version = self._statements.append(run)
        if count and version is None:
            logger.warning("the version of an append is not told by the session, and read")
            raise AppendConflict("it landed, in a Delta commit that the session does not tell")
        return count, int(version) if count and version is not None else None

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that are in the archive under a day, by one MERGE.

        The entries to delete are read from the archive, so others are kept.
        """
        shards = literals(sorted({entry.shard for entry in entries}))
        statement = (
            f"MERGE INTO {self._table} t USING (SELECT DISTINCT a.append_id, a.`index` "
            f"FROM {uncached(self._statements.names.archive)} a JOIN {IDS} i "
            "ON a.append_id = i.append_id AND a.`index` = i.`index` "
            f"WHERE a.day = DATE{literal(day)}) s ON t.shard IN ({shards}) "
            "AND t.append_id = s.append_id AND t.`index` = s.`index` WHEN MATCHED THEN DELETE"
        )

        def run(session: SparkSession) -> None:
            name_ids(session, entries)
            commit_noted(session, statement, metadata)

        self._statements.committing("journal", run)

    def files(self) -> dict[str, int]:
        """Count the files of each shard."""
        query = (
            f"SELECT shard, count(DISTINCT _metadata.file_path) FROM {self._table} GROUP BY shard"
        )
        rows = self._statements.run(lambda: self._session.sql(query).collect())
        return {row[0]: int(row[1]) for row in rows}

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the entries of some shards into few files, by OPTIMIZE."""
        statement = f"OPTIMIZE {self._table} WHERE shard IN ({literals(sorted(shards))})"
        self._statements.committing("journal", lambda s: commit_noted(s, statement, metadata))

    def limit_removed_files(self, metadata: Mapping[str, object]) -> None:
        """Choose how long Delta keeps removed files, by how many its newest checkpoint lists."""
        removed = self._log.removed_files()
        if removed is None:
            return
        kept, said = self._statements.files_kept(self._table)
        chosen = longest(kept, removed)
        if chosen is None:
            return
        logger.info("removed files=%s are kept for=%s before=%s", removed, chosen, said)
        values = properties({RETENTION: f"interval {chosen}"})
        statement = f"ALTER TABLE {self._table} SET TBLPROPERTIES ({values})"
        self._statements.committing("journal", lambda s: commit_noted(s, statement, metadata))

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the journal's files that no retained version names."""
        return self._statements.vacuum("journal", self._table, seconds_min, full=full)

    # -------------------------------------------------------------------------- helpers

    @property
    def _session(self) -> SparkSession:
        return self._statements.session

    @property
    def _groups(self) -> Groups:
        if self._shared is None:
            spark, names = self._statements.user, self._statements.names
            self._shared = groups_of(spark, names, self._log.table_id)
        return self._shared

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Tell a reader of a store that was removed what happened.

        Raises:
            StoreNotFound: The table does not exist any more.
        """
        try:
            yield
        except Exception as error:
            if self._is_gone(error):
                raise self._gone() from error
            raise

    def _is_gone(self, error: Exception) -> bool:
        """Return whether an error was raised because the table does not exist any more.

        Files that are gone look like damage to a statement that had found their table.
        """
        if not (is_absent(error) or isinstance(error, StoreCorrupt)):
            return False
        try:
            return not self.exists()
        except Exception:  # the first error tells more
            logger.info("journal not found", exc_info=True)
            return False

    def _gone(self) -> StoreNotFound:
        return setbacks.gone(self._statements.names.root)

    def _analyse(self, query: str) -> None:
        self._statements.run(lambda: self._session.sql(query).schema)

    def _read(self, shards: frozenset[str] | None, after: int, upto: int | None) -> Reading:
        """Read entries of some shards; None: of all.

        What this process itself appended is known, which is nearly always everything. Other
        appends are read from the change feed if it certainly reaches back far enough, otherwise
        from the files.
        """
        wanted = "true" if shards is None else f"shard IN ({literals(sorted(shards))})"
        if upto is not None:
            return self._read_files(wanted, after, upto)
        recent, reached = self._groups.tail.after(after)
        mine = tuple(e for e in recent if shards is None or e.shard in shards)
        if reached >= 0 and self._log.is_newest(reached):
            self._learn_newest(reached)
            return Reading(mine, reached)
        if after < 0:  # entries of the tail may have left the journal meanwhile
            return self._read_files(wanted, after, None)
        reading = self._read_new(wanted, reached)
        return Reading((*mine, *reading.entries), reading.version)

    def _read_new(self, wanted: str, after: int) -> Reading:
        """Read what was added since a version from the change feed, or else from the files.

        The feed refuses versions that are older than Delta keeps deleted files, or whose commits
        have left the log, with errors that depend on Delta. So after any error the files are
        read, and a version that was refused is not requested again.
        """
        if after <= self._refused or self.known_version() - after > FEED_VERSIONS_MAX:
            return self._read_files(wanted, after, None)
        try:
            return self._read_since(wanted, after)
        except StoreSetBack:
            raise
        except Exception as refused:
            try:
                self.version()  # checks that this is still the same table
                reading = self._read_files(wanted, after, None)
            except Exception as error:
                raise error from refused
            logger.info("change feed refused after=%s error=%s", after, _first_line(refused))
            self._refused = max(self._refused, after)
            return reading

    def _landed(self, units: Sequence[Unit], version: int) -> set[str]:
        """Find the appends that landed in a version; each is there as a whole."""
        shards = frozenset(entry.shard for unit in units for entry in unit.entries[:1])
        found = self._read(shards, version - 1, None).entries
        return {entry.append_id for entry in found if entry.version == version}

    def _learn(self, version: int) -> None:
        """Remember a version that exists, which may not be the newest."""
        self._known = max(version, self._known or 0)

    def _learn_newest(self, version: int) -> None:
        """Remember the version that is newest now."""
        self._learn(version)
        self._known_at = self._monotonic()

    def _read_since(self, wanted: str, after: int) -> Reading:
        known = max(after, self._known or 0)

        def statement() -> list[dict[str, Any]]:
            return rows_of(
                changes(self._session, self._statements.names, after + 1).where(wanted),
                "_commit_version",
                "_change_type",
            )

        rows = self._statements.run(statement)
        gone = [row["version"] for row in rows if row["_change_type"] != "insert"]
        if gone:  # by maintenance, or by somebody unaware of the journal
            self._check_kept(min(gone))
        entries = tuple(entry_of(row) for row in rows if row["_change_type"] == "insert")
        newest = max((entry.version for entry in entries), default=known)
        self._learn(max(known, newest))
        return Reading(entries, max(known, newest))

    def _check_kept(self, version: int) -> None:
        """Check that from a version on nothing was removed except what went to the archive.

        Raises:
            StoreSetBack: Something was.
        """
        back = setbacks.met(self._history.since(version, max(version, self._known or 0)))
        if back is not None:
            raise back.error(self._statements.names.root)

    def _read_files(self, wanted: str, after: int, upto: int | None) -> Reading:
        """Read the newest version's files; entries never change, so it contains all older versions.

        One query reads one version, which is at least the newest version known before, and at
        least that of the newest entry found.
        """
        known = self.known_version()
        rank = "_metadata.row_commit_version"

        def statement() -> list[dict[str, Any]]:
            frame = self._session.sql(
                f"SELECT *, {rank} AS version FROM {self._table} WHERE {wanted}"
                + (f" AND {rank} > {after}" if after >= 0 else "")
            )
            return rows_of(frame, "version")

        entries = tuple(map(entry_of, self._statements.run(statement)))
        newest = max((entry.version for entry in entries), default=known)
        self._learn(max(known, newest))
        last = max(known, newest) if upto is None else upto
        return Reading(tuple(e for e in entries if after < e.version <= last), last)


def _check_permitted(root: str) -> None:
    """Check that what Hadoop calls absent is not just out of this user's reach.

    Raises:
        StoreError: It is.
    """
    try:
        os.stat(f"{root}/journal/_delta_log")
    except PermissionError as error:
        raise StoreError(
            f"The store at {root!r} cannot be read: {error}. Let this user read below {root!r}."
        ) from error
    except OSError:  # it is absent, or on another storage
        pass


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
