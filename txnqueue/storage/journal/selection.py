"""Reading entries of a Delta table, selected or streamed in bounded parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.storage.journal import Newest, Order
from txnqueue.storage.journal.filters import EntryFilter, any_of
from txnqueue.storage.journal.rows import entry_of, projected, rows_of
from txnqueue.storage.journal.sessions import is_connect
from txnqueue.storage.journal.statements import Statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_ROWS = 20_000
"""How many rows Spark returns at once while entries are streamed; so many are not sorted there."""
PIECE_ROWS = 2_000
"""How many of them are Python objects at once."""
_PLACE = ("version", "ordinal", "`index`")
_KEYS = {
    Order.COMMIT: _PLACE,
    Order.STREAM: ("shard", "stream", "coalesce(sequence, -1)", *_PLACE),
}


class EntrySelection:
    """Reads from the journal's table, or the archive's."""

    def __init__(self, statements: Statements, table: str, version: str, commit_seq: str) -> None:
        """Name the table.

        Args:
            statements: Runs SQL statements.
            table: The table, quoted for SQL.
            version: The expression for an entry's version.
            commit_seq: The expression for its commit_seq.
        """
        self._statements = statements
        self._table = table
        self._version = version
        self._commit_seq = commit_seq

    def find(self, wanted: Collection[EntryFilter]) -> tuple[Entry, ...]:
        """Read the entries that match any of some filters, each once."""
        session = self._statements.session
        rows = self._statements.run(lambda: rows_of(self._frame(session, wanted), "version"))
        return model.each_once(map(entry_of, rows))

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read entries in an order: few at once, many in parts that Spark has sorted."""
        session = self._statements.session

        def first() -> list[dict[str, Any]]:
            return rows_of(self._frame(session, [wanted]).limit(PART_ROWS + 1), "version")

        rows = self._statements.run(first)
        if len(rows) > PART_ROWS:
            return self._sorted(order, wanted)
        return iter(sorted(map(entry_of, rows), key=order.key))

    def _sorted(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Let Spark sort entries, which takes three scans."""
        run, session = self._statements.run, self._statements.compiling

        def opened() -> Iterator[Any]:
            from pyspark.sql import functions as F

            frame = self._frame(session, [wanted])
            parts = 1 + frame.count() // PART_ROWS
            keys = [F.expr(key) for key in _KEYS[order]]
            spread = frame.repartitionByRange(parts, *keys).sortWithinPartitions(*keys)
            ordered = projected(spread, "version")
            if is_connect(session):
                return ordered.toLocalIterator()
            # Jobs of a DataFrame's iterator begin after what Spark takes for the end of its query,
            # and Spark 4.2 keeps such jobs, with their rows, for as long as it runs.
            return ordered.rdd.toLocalIterator()

        rows = run(opened)
        while piece := run(lambda: list(islice(rows, PIECE_ROWS)), repeatable=False):
            yield from (entry_of(row.asDict()) for row in piece)

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find the newest of the entries that match a filter."""
        recorded = "unix_millis(recorded_at)"
        query = (
            f"SELECT max(struct({self._commit_seq}, {recorded})), max({recorded}) "
            f"FROM {self._table} WHERE {wanted.sql(self._commit_seq)}"
        )
        session = self._statements.session
        place, latest_ms = self._statements.run(lambda: session.sql(query).collect()[0])
        if place is None or place[0] is None:
            return Newest()
        return Newest(int(place[0]), int(place[1]), int(latest_ms))

    def _frame(self, session: SparkSession, wanted: Collection[EntryFilter]) -> DataFrame:
        return session.sql(
            f"SELECT *, {self._version} AS version FROM {self._table} "
            f"WHERE {any_of(wanted, self._commit_seq)}"
        )
