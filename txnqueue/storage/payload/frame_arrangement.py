"""Arrangement of a send's rows in Spark: the queue's columns, and the lane and place of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.core.model import Range
from txnqueue.core.settings import DELAY_SECONDS_MAX, RUNS_PER_SEND_MAX
from txnqueue.errors import LimitExceeded
from txnqueue.storage.journal.tables import identifier, literal
from txnqueue.storage.payload import (
    OFFSETS_PER_TASK,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    Placing,
    Run,
    Send,
)
from txnqueue.storage.payload.arrangement import Arranged
from txnqueue.storage.payload.nulls import failure, fitted
from txnqueue.storage.payload.routes import SPARK_BITS, crc_lane, route_columns
from txnqueue.storage.payload.rows import lane_of
from txnqueue.storage.payload.schemas import matched_columns
from txnqueue.storage.payload.types import forbids_null, frame_of, sql_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_PRIORITY = "txnqueue: this is no priority"
NO_SECONDS = "txnqueue: so many seconds cannot be waited, column"
TASK_BITS = OFFSETS_PER_TASK.bit_length() - 1
_NUMBER = "monotonically_increasing_id()"
_OFFSET = (
    f"shiftleft(shiftright({_NUMBER}, {SPARK_BITS}), {TASK_BITS}) "
    f"| ({_NUMBER} & {(1 << SPARK_BITS) - 1}L) AS _offset"
)
"""Numbers the rows of each task in their order."""
_PLACE = {
    "_lane": pa.int32(),
    "_priority": pa.int32(),
    "_available": pa.int64(),
    "_expires": pa.int64(),
}
_ROWS = 10_000
"""The number of rows that are Python objects at a time."""


def aligned(session: SparkSession, schema: StructType, rows: Any) -> DataFrame:
    """Convert a DataFrame or a large table to the queue's columns."""
    if isinstance(rows, pa.Table):  # already checked
        return frame_of(session, rows)
    have = {column.name for column in matched_columns(schema, rows.schema)}
    frame: DataFrame = rows
    if any(forbids_null(column.dataType) for column in schema.fields):
        from pyspark.sql import functions as F

        return frame.select(
            *[
                fitted(frame[identifier(c.name)] if c.name in have else F.lit(None), c)
                for c in schema.fields
            ]
        )
    return frame.selectExpr(
        *[
            f"CAST({identifier(c.name) if c.name in have else 'NULL'} "
            f"AS {sql_type(c.dataType)}) AS {identifier(c.name)}"
            for c in schema.fields
        ]
    )


IN_STRETCHES = "Send in parts, or rows with the same delay and time to live beside each other."
"""The remedy for too many stretches of rows that keep their order."""


def stands_anywhere(send: Send) -> bool:
    """Return whether the rows of a send do not determine their places, so any lane will do."""
    alike = send.lanes == 1 or (send.group_by is None and not send.order_by)
    return send.routes is None and alike and not send.placing.columns


def numbered(send: Send, frame: DataFrame) -> DataFrame:
    """Sort within tasks by place, keeping the order of rows, and number them.

    Rows that may be anywhere are numbered in their order.
    """
    from pyspark.sql import functions as F

    if stands_anywhere(send) and not send.order_by:
        columns = [identifier(column.name) for column in send.schema.fields]
        return frame.selectExpr(*columns, f"{headers_of(send)} AS _headers", _OFFSET)
    if send.order_by:
        frame = frame.orderBy(*[identifier(name) for name in send.order_by])
    placed = frame.withColumn("_place", F.monotonically_increasing_id())
    placed = placed.withColumn("_headers", F.expr(headers_of(send)))
    lane, route, alike = F.lit(0), F.lit(""), F.lit("")
    if send.routes is not None:
        route, alike = route_columns(send, F.col("_place"), F.col("_headers"))
    elif send.group_by is not None:
        lane = crc_lane(identifier(send.group_by), send.lanes)
    else:
        start = F.pmod(F.crc32(F.lit(send.send_id)), F.lit(send.lanes))
        lane = F.pmod(F.col("_place") + start, F.lit(send.lanes))
    placing = send.placing
    arranged = placed.select(  # columns that only determine places may have these names
        *[identifier(column.name) for column in send.schema.fields],
        "_place",
        "_headers",
        lane.cast("int").alias("_lane"),
        route.alias("_route"),
        alike.alias("_alike"),
        _priority(placing).alias("_priority"),
        _available_step(placing).alias("_available"),
        _expires_step(placing).alias("_expires"),
    )
    if send.routes is None or not send.routes.keep_order:
        instants = [] if send.in_order else ["_available", "_expires"]
        arranged = arranged.sortWithinPartitions(
            "_alike", "_lane", F.desc("_priority"), *instants, "_place"
        )
    return arranged.selectExpr("*", _OFFSET)


def stored(send: Send, numbered: DataFrame) -> DataFrame:
    """Give numbered rows the columns of the payload table.

    A column that is null in all rows is omitted, as Delta's files allow, because each column
    costs time in every row.
    """
    columns = [
        f"{literal(send.send_id)} AS send_id",
        "_offset AS send_offset",
        f"{literal(send.slice)} AS slice",
        *[identifier(column.name) for column in send.schema.fields],
    ]
    if _has_headers(send):
        columns.append("_headers AS headers")
    if not stands_anywhere(send):
        columns.append(f"{_arrangement(send)} AS arrangement")
    return numbered.selectExpr(*columns)


def _arrangement(send: Send) -> str:
    """Return the SQL expression for the place of each row."""
    standing = "'lane', _lane" if send.routes is None else "'route', _route"
    return (
        f"named_struct({standing}, 'priority', _priority, "
        "'available_step', _available, 'expires_step', _expires)"
    )


def arranged_frame(session: SparkSession, send: Send, arranged: Arranged) -> DataFrame:
    """Make a DataFrame from rows arranged in this process, with their numbers."""
    table = arranged.rows
    offsets = pa.array(range(table.num_rows), pa.int64())
    added: dict[str, pa.Array] = {"_offset": offsets}
    if _has_headers(send):
        added["_headers"] = pa.array(arranged.headers, pa.map_(pa.string(), pa.string()))
    if not stands_anywhere(send):
        added["_route"] = pa.array(arranged.routes, pa.string())
        for number, (name, kind) in enumerate(_PLACE.items()):
            added[name] = pa.array([place[number] for place in arranged.places], kind)
    for name, values in added.items():
        table = table.append_column(name, values)
    columns = [identifier(name) for name in (*added, *send.schema.names)]
    return frame_of(session, table).coalesce(1).selectExpr(*columns)


def _has_headers(send: Send) -> bool:
    """Return whether rows of a send may have headers."""
    return bool(send.headers or send.header_columns)


def headers_of(send: Send) -> str:
    """Return the SQL expression for the headers of each row; null if there are none."""
    if not _has_headers(send):
        return "CAST(NULL AS map<string,string>)"
    pairs = [literal(cell) for item in send.headers.items() for cell in item]
    for header, column in send.header_columns.items():
        pairs += [literal(header), f"CAST({identifier(column)} AS string)"]
    found = f"map_filter(map({', '.join(pairs)}), (header, value) -> value IS NOT NULL)"
    return f"CASE WHEN size({found}) > 0 THEN {found} END"


def _priority(placing: Placing) -> Column:
    from pyspark.sql import functions as F

    if not isinstance(placing.priority, str):
        return F.lit(placing.priority)
    given = F.coalesce(F.col(identifier(placing.priority)), F.lit(PRIORITY_DEFAULT))
    found = F.when(given.between(0, PRIORITY_MAX), given).otherwise(F.raise_error(NO_PRIORITY))
    return found.cast("int")


def _available_step(placing: Placing) -> Column:
    if isinstance(placing.available_at, str):
        from pyspark.sql import functions as F

        return _step(placing, F.unix_micros(F.col(identifier(placing.available_at))) / 1000)
    return _later(placing, placing.delay_seconds)


def _expires_step(placing: Placing) -> Column:
    return _later(placing, placing.ttl_seconds)


def _later(placing: Placing, column: str | None) -> Column:
    """Return the step of an instant given by a column of seconds from now."""
    from pyspark.sql import functions as F

    if column is None:
        return F.lit(None).cast("bigint")
    seconds = F.col(identifier(column)).cast("double")
    wrong = F.isnan(seconds) | (F.abs(seconds) > DELAY_SECONDS_MAX)
    seconds = F.when(wrong, failure(NO_SECONDS, column)).otherwise(seconds)
    return _step(placing, F.lit(placing.now_ms) + seconds * 1000)


def _step(placing: Placing, milliseconds: Column) -> Column:
    from pyspark.sql import functions as F

    return F.ceil(milliseconds / F.lit(placing.step_ms)).cast("bigint")


def runs_query(send: Send, table: str) -> str:
    """Return the query for the runs of a send, limited to the allowed number.

    Arranged rows have one run for each place and task, and rows that may be anywhere one for each
    task. Where rows keep their order, the rows of a place form a run as long as offsets and numbers
    grow together.
    """
    stretch = f"shiftright(send_offset, {TASK_BITS})"
    if stands_anywhere(send):
        return (
            "SELECT min(send_offset) AS first, count(*) AS count "
            f"FROM {table} WHERE slice = {send.slice} AND send_id = {literal(send.send_id)} "
            f"GROUP BY {stretch} LIMIT {RUNS_PER_SEND_MAX + 1}"
        )
    if send.routes is not None or send.in_order:
        window = f"PARTITION BY arrangement, {stretch} ORDER BY send_offset"
        stretch = f"send_offset - row_number() OVER ({window})"
    return (
        "SELECT arrangement.*, min(send_offset) AS first, count(*) AS count "
        f"FROM (SELECT arrangement, send_offset, {stretch} AS stretch FROM {table} "
        f"WHERE slice = {send.slice} AND send_id = {literal(send.send_id)}) "
        f"GROUP BY arrangement, stretch LIMIT {RUNS_PER_SEND_MAX + 1}"
    )


def runs_of(send: Send, rows: pa.Table) -> list[Run]:
    """Read the runs of a send.

    Raises:
        LimitExceeded: There are too many of them.
    """
    _check_few(send, rows.num_rows)
    found = (row for batch in rows.to_batches(_ROWS) for row in batch.to_pylist())
    if stands_anywhere(send):
        ends = ((row["first"], row["first"] + row["count"] - 1) for row in found)
        return spread_runs(send, sorted(ends))
    return _in_order(Run(**{"lane": 0, **row}) for row in found)


def spread_runs(send: Send, spans: Sequence[Range]) -> list[Run]:
    """Give each lane a part of the rows of each task, for rows that may be anywhere.

    The numbers of rows of the lanes differ by at most one.

    Args:
        send: The send.
        spans: The offsets of each task, in order.

    Raises:
        LimitExceeded: There are too many runs.
    """
    _check_few(send, sum(min(last - first + 1, send.lanes) for first, last in spans))
    priority = send.placing.priority
    if isinstance(priority, str):
        raise TypeError(f"{priority!r} is a column: it determines the place of rows")
    runs, lane = [], lane_of(send.send_id, send.lanes)
    for first, last in spans:
        size, rest = divmod(last - first + 1, send.lanes)
        at = first
        for step in range(send.lanes):
            count = size + (step < rest)
            if count:
                runs.append(Run((lane + step) % send.lanes, at, count, priority))
            at += count
        lane = (lane + rest) % send.lanes
    return _in_order(runs)


def _in_order(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.lane, run.first))


def _check_few(send: Send, runs: int) -> None:
    if runs > RUNS_PER_SEND_MAX:
        remedy = "Send df.coalesce(n) with fewer partitions, or create the queue with fewer lanes."
        if send.routes is not None:
            remedy = "Publish in parts, or with keep_order=False."
        elif send.in_order and send.placing.columns:
            remedy = IN_STRETCHES
        raise LimitExceeded(
            f"The rows of one send lie in more than {RUNS_PER_SEND_MAX} ranges, which is more "
            f"than any receiver takes. {remedy}",
            name=str(send.note.get("exchange") or send.note.get("queue")),
        )
