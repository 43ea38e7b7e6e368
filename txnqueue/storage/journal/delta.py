"""The journal in one Delta table: every append is one insert-only MERGE."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue.core import model
from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.errors import StatementRefused, StoreCorrupt
from txnqueue.storage.journal import Appended, Audit, Newest, Order, Reading
from txnqueue.storage.journal.archive import IDS, DeltaArchive, name_ids
from txnqueue.storage.journal.exceptions import is_absent, surely_not_begun
from txnqueue.storage.journal.feed import ChangeFeed, changes
from txnqueue.storage.journal.filters import EntryFilter
from txnqueue.storage.journal.groups import Groups, Request, groups_of
from txnqueue.storage.journal.log import CommitLog
from txnqueue.storage.journal.rows import NAMES, entry_of, rows_of
from txnqueue.storage.journal.selection import EntrySelection
from txnqueue.storage.journal.sessions import LAST_COMMIT, USER_METADATA
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import (
    JOURNAL_COLUMNS,
    create_journal,
    identifier,
    literal,
    literals,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
_RANGES = "array<struct<first:bigint,last:bigint>>"
FEED_VERSIONS_MAX = 200
"""What is further back than this many versions is read from the files: the change feed opens one
commit of Delta's log after the other."""
KNOWN_SECONDS_MAX = 30.0
"""What was the newest version so long ago is asked for again before it is relied on."""


class DeltaJournal:
    """The journal as a Delta table, partitioned by shard."""

    def __init__(
        self,
        statements: Statements,
        monotonic: Callable[[], float] = time.monotonic,
        groups: Groups | None = None,
    ) -> None:
        """Use the journal of a store; it need not exist yet.

        Args:
            statements: Runs what is said in SQL.
            monotonic: Seconds; it only decides when the newest version is asked for again.
            groups: Puts appends together; without it those of this process to this journal.
        """
        self._statements = statements
        self._session = statements.session
        self._table = statements.names.journal
        self.archive = DeltaArchive(statements)
        rank = "_metadata.row_commit_version"
        place = f"({rank} * 1024 + ordinal)"
        self._selection = EntrySelection(statements, self._table, rank, place)
        self._monotonic = monotonic
        self._known: int | None = None
        self._known_at = 0.0
        self._refused = -1
        self._shared = groups
        self._log = CommitLog(statements, self._table)

    def exists(self) -> bool:
        """Return whether the journal is there."""
        names = self._statements.names
        if names.by_path and self._log.is_absent(f"{names.root}/journal/_delta_log"):
            return False
        try:
            self._statements.run(
                lambda: self._session.sql(f"DESCRIBE DETAIL {self._table}").collect()
            )
        except Exception as error:
            if is_absent(error):
                return False
            raise
        return True

    def create(self) -> None:
        """Create the journal; no error if it is there."""

        def statement(session: SparkSession) -> str | None:
            session.conf.set(USER_METADATA, json.dumps({"operation": "create store"}))
            session.conf.unset(LAST_COMMIT)
            session.sql(create_journal(self._statements.names)).collect()
            return session.conf.get(LAST_COMMIT, None)

        if self._statements.committing("journal", statement) == "0":
            self._groups.tail.add(0, ())  # a journal that was there may begin with entries

    def version(self) -> int:
        """Read the newest version."""
        if self._known is not None and self._log.is_newest(self._known):
            self._learn_newest(self._known)
            return self._known
        history = f"DESCRIBE HISTORY {self._table} LIMIT 1"
        rows = self._statements.run(lambda: self._session.sql(history).select("version").collect())
        version = int(rows[0][0])
        if self._known is None:
            self._log.check_newest(version)
        self._learn_newest(version)
        return version

    def known_version(self) -> int:
        """Return what was the newest version a moment ago; asks the store only if it was longer."""
        if self._known is None or self._monotonic() - self._known_at > KNOWN_SECONDS_MAX:
            return self.version()
        return self._known

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut.

        What is new it reads from the change feed, whose cost is that of what came since; what
        is far back, or older than Delta's log, from the shards' files, which hold everything.
        """
        return self._read(frozenset(shards), after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        return self._read(None, after, upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that one of some filters lets through."""
        return self._selection.find(wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time."""
        return self._selection.stream(order, wanted)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find how far the entries reach that a filter lets through."""
        return self._selection.newest(wanted)

    def audit(self, upto: int, beginning: int = -1) -> Audit:
        """Ask Delta's change feed what happened to entries, as far back as it may be asked."""
        archived = model.horizon(self.read([model.FENCE]).entries) >= 0
        return ChangeFeed(self._statements).audit(upto, beginning, archived=archived)

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each wholly or not at all, by one MERGE.

        Raises:
            AppendConflict: Delta reports that another commit was faster.
            StatementRefused: Spark cannot read the MERGE; nothing landed.
        """
        request = Request(tuple(units), metadata, self._insert)
        try:
            answer = self._statements.result_of_append(self._groups.submit(request))
        except Exception as error:
            if surely_not_begun(error, lambda: self._analyse(admitted(self._table, units))):
                raise StatementRefused() from error
            raise
        appended = self._groups.resolved(answer, units, lambda v: self._landed(units, v))
        if appended.version is not None:
            self._learn_newest(appended.version)
        return appended

    def _insert(
        self, units: Sequence[Unit], metadata: Mapping[str, object]
    ) -> tuple[int, int | None]:
        """Insert the units of a group, each wholly or not at all, by one MERGE."""
        statement = merge(self._table, units)

        def run(session: SparkSession) -> tuple[int, str | None]:
            session.conf.set(USER_METADATA, json.dumps(metadata))
            session.conf.unset(LAST_COMMIT)
            inserted = session.sql(statement).collect()[0]["num_inserted_rows"]
            return int(inserted), session.conf.get(LAST_COMMIT, None)

        inserted, version = self._statements.append(run)
        if inserted and version is None:
            raise StoreCorrupt(
                "The MERGE inserted rows, and the session does not tell in which Delta commit: ask "
                "manager.outcome() what became of it, and report the versions of Spark and Delta."
            )
        return inserted, int(version) if inserted and version is not None else None

    def remove(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Delete entries that stand in the archive under a day, by one MERGE.

        What it deletes is read from the archive: what is not there stays.
        """
        shards = literals(sorted({entry.shard for entry in entries}))
        statement = (
            f"MERGE INTO {self._table} t USING (SELECT DISTINCT a.append_id, a.`index` "
            f"FROM {self._statements.names.archive} a JOIN {IDS} i "
            "ON a.append_id = i.append_id AND a.`index` = i.`index` "
            f"WHERE a.day = DATE{literal(day)}) s ON t.shard IN ({shards}) "
            "AND t.append_id = s.append_id AND t.`index` = s.`index` WHEN MATCHED THEN DELETE"
        )

        def run(session: SparkSession) -> None:
            name_ids(session, entries)
            _commit(session, statement, metadata)

        self._statements.committing("journal", run)

    def files(self) -> dict[str, int]:
        """Count the files of each shard."""
        query = (
            f"SELECT shard, count(DISTINCT _metadata.file_path) FROM {self._table} GROUP BY shard"
        )
        rows = self._statements.run(lambda: self._session.sql(query).collect())
        return {row[0]: int(row[1]) for row in rows}

    def rewrite(self, shards: Collection[str], metadata: Mapping[str, object]) -> None:
        """Write the entries of some shards into few files, by OPTIMIZE."""
        statement = f"OPTIMIZE {self._table} WHERE shard IN ({literals(sorted(shards))})"
        self._statements.committing("journal", lambda s: _commit(s, statement, metadata))

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of the journal that no retained version names."""
        return self._statements.vacuum("journal", self._table, seconds_min, full=full)

    # -------------------------------------------------------------------------- helpers

    @property
    def _groups(self) -> Groups:
        if self._shared is None:
            spark, names = self._statements.user, self._statements.names
            self._shared = groups_of(spark, names, self._log.table_id)
        return self._shared

    def _analyse(self, query: str) -> None:
        self._statements.run(lambda: self._session.sql(query).schema)

    def _read(self, shards: frozenset[str] | None, after: int, upto: int | None) -> Reading:
        """Read entries; None: of all shards.

        What this process has appended itself is known; nearly always that is all there is. What
        others appended is read from the change feed if it surely reaches back so far, else from
        the files.
        """
        wanted = "true" if shards is None else f"shard IN ({literals(sorted(shards))})"
        if upto is not None:
            return self._read_files(wanted, after, upto)
        recent, reached = self._groups.tail.after(after)
        mine = tuple(e for e in recent if shards is None or e.shard in shards)
        if reached >= 0 and self._log.is_newest(reached):
            self._learn_newest(reached)
            return Reading(mine, reached)
        if after < 0:  # what is in the tail may have left the journal meanwhile
            return self._read_files(wanted, after, None)
        reading = self._read_new(wanted, reached)
        return Reading((*mine, *reading.entries), reading.version)

    def _read_new(self, wanted: str, after: int) -> Reading:
        """Read what came since a version from the change feed, or else from the files.

        The feed refuses versions that are older than Delta keeps deleted files, or whose
        commits have left the log; by which error it says so is up to Delta. So whatever it
        fails with, the files answer. What it refused once it is not asked for again.
        """
        if after <= self._refused or self.known_version() - after > FEED_VERSIONS_MAX:
            return self._read_files(wanted, after, None)
        try:
            return self._read_since(wanted, after)
        except Exception as refused:
            try:
                reading = self._read_files(wanted, after, None)
            except Exception as error:
                raise error from refused
            logger.info("change feed refused after=%s error=%s", after, _first_line(refused))
            self._refused = max(self._refused, after)
            return reading

    def _landed(self, units: Sequence[Unit], version: int) -> set[str]:
        """Find which appends went in with a version: each is there as a whole."""
        shards = frozenset(entry.shard for unit in units for entry in unit.entries[:1])
        found = self._read(shards, version - 1, None).entries
        return {entry.append_id for entry in found if entry.version == version}

    def _learn(self, version: int) -> None:
        """Remember a version that exists; others may be newer."""
        self._known = max(version, self._known or 0)

    def _learn_newest(self, version: int) -> None:
        """Remember what is the newest version now."""
        self._learn(version)
        self._known_at = self._monotonic()

    def _read_since(self, wanted: str, after: int) -> Reading:
        known = max(after, self._known or 0)

        def statement() -> list[dict[str, Any]]:
            return rows_of(
                changes(self._session, self._statements.names, after + 1).where(
                    f"_change_type = 'insert' AND ({wanted})"
                ),
                "_commit_version",
            )

        entries = tuple(map(entry_of, self._statements.run(statement)))
        newest = max((entry.version for entry in entries), default=known)
        self._learn(max(known, newest))
        return Reading(entries, max(known, newest))

    def _read_files(self, wanted: str, after: int, upto: int | None) -> Reading:
        """Read the newest version's files; entries never change, so it holds every older one.

        One query reads one version. It is at least the one that was the newest before, and at
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _commit(session: SparkSession, statement: str, metadata: Mapping[str, object]) -> None:
    session.conf.set(USER_METADATA, json.dumps(metadata))
    session.sql(statement).collect()


# --------------------------------------------------------------------- the one statement


def merge(table: str, units: Sequence[Unit]) -> str:
    """Write the MERGE that appends some units.

    The guard is one aggregate over the literal shards of all conditions, evaluated on the
    MERGE's own snapshot; it yields the units that may go in. The shards stand as literals
    in the match condition too, so that Delta knows what was read, and nothing more.

    Which rows could break or fulfil a condition, and which appends are meant, stands besides as
    predicates on columns that Delta keeps statistics of: so it opens only the files that may
    hold them, of thousands. What counts as read is told by the shards alone.
    """
    shards = _reads(units)
    appends = literals(sorted({unit.append_id for unit in units}))
    return (
        f"MERGE INTO {table} t USING ({admitted(table, units)}) s "
        f"ON t.shard IN ({shards}) AND t.append_id IN ({appends}) "
        f"AND t.shard = s.shard AND t.append_id = s.append_id "
        f"AND t.`index` = s.`index` WHEN NOT MATCHED THEN INSERT *"
    )


def admitted(table: str, units: Sequence[Unit]) -> str:
    """Write the query of the entries whose units may go in, as the journal stands."""
    conditions = dict.fromkeys(_meant(c) for unit in units for c in unit.conditions)
    concerned = " OR ".join(f"({terms})" for terms in conditions) or "false"
    verdicts = ", ".join(_verdict(number, unit) for number, unit in enumerate(units))
    rows = ", ".join(
        _values(number, replace(entry, ordinal=number))
        for number, unit in enumerate(units)
        for entry in unit.entries
    )
    source = ", ".join(identifier(name) for name in ["unit", *NAMES])
    columns = ", ".join(map(_typed, JOURNAL_COLUMNS))
    return (
        f"SELECT {columns} FROM VALUES {rows} AS v({source}) "
        f"WHERE array_contains((SELECT array({verdicts}) FROM {table} g "
        f"WHERE g.shard IN ({_reads(units)}) AND ({concerned})), v.unit)"
    )


def _reads(units: Sequence[Unit]) -> str:
    return literals(sorted({shard for unit in units for shard in unit.reads}))


def _verdict(number: int, unit: Unit) -> str:
    """The unit's number if all its conditions hold, else a number that no unit has."""
    broken = " OR ".join(
        f"count_if(g.shard = {literal(c.shard)} AND {_meant(c)}) {'=' if c.present else '>'} 0"
        for c in unit.conditions
    )
    return f"if({broken or 'false'}, -1, {number})"


def _meant(condition: Condition) -> str:
    """What a condition is about in its shard, which is no part of it.

    From predicates that mix the shard with other columns Spark would infer one more, and Delta
    would list the files again.
    """
    terms = [f"g.stream = {literal(condition.stream)}"]
    if condition.kinds is not None:
        terms.append(f"g.kind IN ({literals(condition.kinds)})")
    if condition.attempts is not None:
        terms.append(f"g.attempt IN ({literals(condition.attempts)})")
    if condition.attempts_except is not None:
        terms.append(f"coalesce(g.attempt NOT IN ({literals(condition.attempts_except)}), true)")
    if condition.sequence_from is not None:
        terms.append(f"g.sequence >= {literal(condition.sequence_from)}")
    if condition.begun_above is not None:
        terms.append(f"g.begun > {literal(condition.begun_above)}")
    return " AND ".join(terms)


def _values(number: int, entry: Entry) -> str:
    """One row of VALUES; ranges and body as JSON, the instant as milliseconds."""
    texts: dict[str, str | int] = {
        "ranges": json.dumps([{"first": first, "last": last} for first, last in entry.ranges]),
        "body": json.dumps(dict(entry.body), separators=(",", ":")),
        "recorded_at": entry.recorded_at_ms,
    }
    cells = (literal(texts[n] if n in texts else getattr(entry, n)) for n in NAMES)
    return f"({number}, {', '.join(cells)})"


def _typed(column: tuple[str, str]) -> str:
    name, kind = column
    quoted = identifier(name)
    if name == "ranges":
        return f"from_json(v.{quoted}, '{_RANGES}') AS {quoted}"
    if name == "recorded_at":
        return f"timestamp_millis(v.{quoted}) AS {quoted}"
    return f"CAST(v.{quoted} AS {kind}) AS {quoted}"
