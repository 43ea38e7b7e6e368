"""The archive in a Delta table: finished entries, with one partition per day of archiving."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import retention
from txnqueue.errors import StoreCorrupt, StoreError
from txnqueue.storage import setbacks
from txnqueue.storage.journal import Newest, Order
from txnqueue.storage.journal.exceptions import is_absent
from txnqueue.storage.journal.filters import EntryFilter
from txnqueue.storage.journal.log import CommitLog
from txnqueue.storage.journal.rows import entry_of, rows_of
from txnqueue.storage.journal.selection import EntrySelection
from txnqueue.storage.journal.sessions import commit_noted, new_frame
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import (
    JOURNAL_COLUMNS,
    TableNames,
    create_archive,
    identifier,
    literal,
    literals,
    uncached,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
IDS = "txnqueue_ids"
"""A temporary view in the library's own session: the entries that a statement concerns."""
_VERSION = (
    f"if((commit_seq & {model.COMMITS_PER_VERSION - 1}) = ordinal, "
    f"shiftright(commit_seq, {model.ORDINAL_BITS}), NULL)"
)
"""An entry's version; none if commit_seq, which SQL users see, contradicts the ordinal."""
_OPTIMIZE = {
    "spark.databricks.delta.optimize.maxFileSize": str(1 << 30),
    "spark.databricks.delta.optimize.maxThreads": "1",
    "spark.databricks.delta.optimize.minFileSize": str(1 << 30),
}
"""One day at a time, so that the work of others finds cores; the application says no sizes."""
_DAY = re.compile(r".*/day=(\d{4}-\d\d-\d\d)/")
_COLUMNS = ", ".join(identifier(name) for name, _ in JOURNAL_COLUMNS)


class DeltaArchive:
    """The archive as a Delta table."""

    def __init__(self, statements: Statements) -> None:
        """Use the archive of a store, which need not exist yet."""
        self._statements = statements
        self._table = statements.names.archive
        self._log = CommitLog(statements, self._table)
        self._selection = EntrySelection(statements, uncached(self._table), _VERSION, "commit_seq")

    @property
    def _session(self) -> SparkSession:
        return self._statements.session

    def exists(self) -> bool:
        """Return whether the archive's table is there: without a Spark job, and mostly no query.

        A log without a commit was left by an interrupted creation, which ``create`` completes.
        """
        names = self._statements.names
        if names.by_path:
            is_there = self._log.has_commits(f"{names.root}/archive/_delta_log")
            if is_there is not None:
                return is_there
        try:
            self._statements.run(lambda: self._session.sql(f"SELECT * FROM {self._table}").schema)
        except Exception as error:
            if is_absent(error):
                return False
            raise
        return True

    def create(self) -> None:
        """Create the archive if it does not exist."""

        def statement(session: SparkSession) -> None:
            note = {"operation": "create archive"}
            commit_noted(session, create_archive(self._statements.names), note)

        self._log.created("archive", statement)

    def add(self, entries: Sequence[Entry], day: str, metadata: Mapping[str, object]) -> None:
        """Copy entries of the journal that are not under this day yet."""
        shards = literals(sorted({entry.shard for entry in entries}))
        statement = (
            f"MERGE INTO {self._table} t USING (SELECT j.* FROM "
            f"(SELECT {_COLUMNS}, _metadata.row_commit_version * {model.COMMITS_PER_VERSION} "
            "+ ordinal AS commit_seq, "
            f"DATE{literal(day)} AS day FROM {self._statements.names.journal} "
            f"WHERE shard IN ({shards})) j JOIN {IDS} i "
            "ON j.append_id = i.append_id AND j.`index` = i.`index`) s "
            f"ON t.day = DATE{literal(day)} AND t.append_id = s.append_id "
            "AND t.`index` = s.`index` WHEN NOT MATCHED THEN INSERT *"
        )

        def run(session: SparkSession) -> None:
            name_ids(session, entries)
            commit_noted(session, statement, metadata)

        with self._unless_gone():
            self._statements.committing("archive", run)

    def read(
        self,
        *,
        shards: Collection[str] | None = None,
        streams: Collection[str] | None = None,
        stream_prefix: str | None = None,
        append_ids: Collection[str] | None = None,
        among: Sequence[Entry] | None = None,
        kinds: Collection[str] | None = None,
        days: tuple[str, str] | None = None,
        before: int | None = None,
    ) -> tuple[Entry, ...]:
        """Read entries, each once."""
        terms = ["true"]
        if shards is not None:
            terms.append(f"shard IN ({literals(sorted(shards))})")
        if streams is not None:
            terms.append(f"stream IN ({literals(sorted(streams))})")
        if stream_prefix is not None:
            terms.append(f"startswith(stream, {literal(stream_prefix)})")
        if append_ids is not None:
            terms.append(f"append_id IN ({literals(sorted(append_ids))})")
        if kinds is not None:
            terms.append(f"kind IN ({literals(sorted(kinds))})")
        if among is not None:
            terms.append(f"(append_id, `index`) IN (SELECT append_id, `index` FROM {IDS})")
        if days is not None:
            first, last = map(literal, days)
            terms.append(f"day BETWEEN DATE{first} AND DATE{last}")
        if before is not None:
            terms.append(f"commit_seq < {literal(model.commit_seq(before))}")

        def statement(session: SparkSession) -> list[dict[str, Any]]:
            if among is not None:
                name_ids(session, among)
            frame = session.sql(
                f"SELECT * FROM {uncached(self._table)} WHERE {' AND '.join(terms)}"
            )
            return rows_of(frame, _VERSION)

        with self._unless_gone():
            return model.each_once(map(entry_of, self._statements.alone(statement)))

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters."""
        with self._unless_gone():
            return self._selection.find(wanted)

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order, a bounded part at a time."""
        with self._unless_gone():
            return self._selection.stream(order, wanted)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        with self._unless_gone():
            return self._selection.newest(wanted)

    def forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        """Delete what is kept under the days before one, except what must be kept."""
        with self._unless_gone():
            return self._forget(day, standing, metadata)

    def _forget(
        self, day: str, standing: Sequence[Entry], metadata: Mapping[str, object] | None
    ) -> int:
        queues = retention.oldest(standing)
        old = _old(day, queues)
        count = f"SELECT count(*) FROM {self._table} WHERE {old}"
        found = int(self._statements.run(lambda: self._session.sql(count).collect()[0][0]))
        if found and metadata is not None:

            def run(session: SparkSession) -> None:
                commit_noted(session, f"DELETE FROM {self._table} WHERE {old}", metadata)

            self._statements.committing("archive", run)
        return found + (self._forget_beside(day, standing, queues, metadata) if queues else 0)

    def _forget_beside(
        self,
        day: str,
        standing: Sequence[Entry],
        queues: Mapping[str, int],
        metadata: Mapping[str, object] | None,
    ) -> int:
        """Delete entries of queues with old messages, except those that concern these messages."""
        kinds = literals(sorted(model.COMPACTABLE))
        old = f"day < DATE{literal(day)} AND kind IN ({kinds})"
        mine = f"queue_id IN ({literals(sorted(queues))})"
        source = (
            f"SELECT DISTINCT o.append_id, o.`index` FROM (SELECT * FROM {self._table} "
            f"WHERE {old} AND {mine}) o LEFT ANTI JOIN "
            f"({concerning(self._statements.names, mine)}) c "
            "ON o.append_id = c.append_id AND o.`index` = c.`index`"
        )
        count = (
            f"SELECT count(*) FROM {self._table} t LEFT SEMI JOIN ({source}) s "
            f"ON t.append_id = s.append_id AND t.`index` = s.`index` WHERE {old} "
            f"AND NOT ({_old(day, queues)})"  # a dry run leaves there what is certainly deleted
        )
        delete = (
            f"MERGE INTO {self._table} t USING ({source}) s ON t.day < DATE{literal(day)} "
            "AND t.append_id = s.append_id AND t.`index` = s.`index` WHEN MATCHED THEN DELETE"
        )

        def counted(session: SparkSession) -> int:
            name_ids(session, standing)
            return int(session.sql(count).collect()[0][0])

        found = self._statements.alone(counted, compiled=True)
        if found and metadata is not None:

            def run(session: SparkSession) -> None:
                name_ids(session, standing)
                commit_noted(session, delete, metadata)

            self._statements.committing("archive", run, compiled=True)
        return found

    def files(self) -> dict[str, int]:
        """Count the files of each day, by their folders: no file is opened."""
        query = f"SELECT * FROM {uncached(self._table)}"
        with self._unless_gone():
            paths = self._statements.run(lambda: self._session.sql(query).inputFiles())
        return dict(Counter(match[1] for match in map(_DAY.match, paths) if match))

    def rewrite(self, days: Collection[str], metadata: Mapping[str, object]) -> None:
        """Rewrite the entries of some days into few files, by OPTIMIZE."""
        wanted = ", ".join(f"DATE{literal(day)}" for day in sorted(days))

        def run(session: SparkSession) -> None:
            for name, value in _OPTIMIZE.items():
                session.conf.set(name, value)
            commit_noted(session, f"OPTIMIZE {self._table} WHERE day IN ({wanted})", metadata)

        self._statements.committing("archive", run, compiled=True)

    def vacuum(self, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the archive's files that no retained version names."""
        return self._statements.vacuum("archive", self._table, seconds_min, full=full)

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Tell a reader of an archive that is not there any more what happened.

        Raises:
            StoreCorrupt: It is missing. It is there before anything has left the journal.
            StoreNotFound: The whole store is.
        """
        try:
            yield
        except Exception as error:
            gone = self._gone(error)
            if gone is not None:
                raise gone from error
            raise

    def _gone(self, error: Exception) -> StoreError | None:
        """Return what to say instead of an error if it was raised because the table is missing.

        Files that are gone look like damage to a statement that had found their table.
        """
        from pyspark.errors import AnalysisException

        if not isinstance(error, (AnalysisException, StoreCorrupt)):
            return None
        names = self._statements.names
        try:
            if self.exists():
                return None
        except Exception:  # the first error tells more
            logger.info("archive not found", exc_info=True)
            return None
        if names.by_path and self._log.has_commits(f"{names.root}/journal/_delta_log") is False:
            return setbacks.gone(names.root)
        return setbacks.archive_gone(setbacks.place_of(names.root, "archive"))


def _old(day: str, standing: Mapping[str, int]) -> str:
    """Write which rows surely go: no decisions, and only from before a queue's oldest message."""
    old = f"day < DATE{literal(day)} AND kind NOT IN ({literals(sorted(model.KEPT_FOR_EVER))})"
    stays = " OR ".join(
        f"(queue_id = {literal(queue_id)} AND commit_seq >= {literal(model.commit_seq(version))})"
        for queue_id, version in sorted(standing.items())
    )
    return f"{old} AND NOT coalesce({stays}, false)" if stays else old


def concerning(names: TableNames, mine: str) -> str:
    """Write the query for the entries that ``retention.concerning`` finds.

    Args:
        names: The names of the store's tables.
        mine: A predicate on entries that selects those of the positions' queues.
    """
    told = ("kind", "queue_id", "lane", "sequence", "claim_lane", "claim_sequence", "append_id")
    columns = f"{', '.join(told)}, `index`, body"
    entries = (
        f"SELECT {columns} FROM {uncached(names.archive)} WHERE {mine} "
        f"UNION ALL SELECT {columns} FROM {names.journal} WHERE {mine}"
    )
    items = "from_json(get_json_object(body, '$.items'), 'array<array<string>>')"
    ended = "from_json(get_json_object(body, '$.supersedes'), 'array<bigint>')"
    named = (
        f"SELECT n.append_id, n.`index` FROM (SELECT append_id, `index`, explode({items}) AS item "
        f"FROM ({entries})) n JOIN {IDS} i "
        "ON n.item[0] = i.append_id AND CAST(n.item[1] AS int) = i.`index`"
    )
    found = (
        f"SELECT e.* FROM ({entries}) e LEFT SEMI JOIN ({named}) n "
        "ON e.append_id = n.append_id AND e.`index` = n.`index` "
        f"UNION ALL SELECT * FROM ({entries}) WHERE coalesce(size({ended}), 0) > 0"
    )
    return (
        f"WITH found AS ({found}) SELECT append_id, `index` FROM {IDS} "
        "UNION ALL SELECT append_id, `index` FROM found "
        f"UNION ALL SELECT e.append_id, e.`index` FROM ({entries}) e "
        "LEFT SEMI JOIN (SELECT * FROM found WHERE "
        f"kind = {literal(model.CLAIMED)}) c ON e.queue_id = c.queue_id "
        "AND e.claim_lane = c.lane AND e.claim_sequence = c.sequence"
    )


def name_ids(session: Any, entries: Sequence[Entry]) -> None:
    """Put the ids of entries into the view that statements join with."""
    ids = pa.table(
        {
            "append_id": pa.array([entry.append_id for entry in entries], pa.string()),
            "index": pa.array([entry.index for entry in entries], pa.int32()),
        }
    )
    new_frame(session, ids).createOrReplaceTempView(IDS)
