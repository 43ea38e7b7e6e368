"""What Spark makes of a send's rows: the queue's columns, and the lane and place of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
from txnqueue.storage.payload.nulls import failure, fitted
from txnqueue.storage.payload.routes import crc_lane, route_columns
from txnqueue.storage.payload.schemas import matched_columns
from txnqueue.storage.payload.types import frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_PRIORITY = "txnqueue: this is no priority"
NO_SECONDS = "txnqueue: so many seconds cannot be waited, column"
TASK_BITS = OFFSETS_PER_TASK.bit_length() - 1
_SPARK_BITS = 33
_ROWS = 10_000
"""How many rows are Python objects at a time."""


def aligned(session: SparkSession, schema: StructType, rows: Any) -> DataFrame:
    """Bring a DataFrame or a large table to the queue's columns."""
    from pyspark.sql import functions as F

    if isinstance(rows, pa.Table):  # which was checked
        return frame_of(session, rows)
    have = {column.name for column in matched_columns(schema, rows.schema)}
    columns = [
        fitted(rows[identifier(c.name)] if c.name in have else F.lit(None), c)
        for c in schema.fields
    ]
    aligned: DataFrame = rows.select(*columns)
    return aligned


def numbered(send: Send, frame: DataFrame) -> DataFrame:
    """Sort within tasks by place, keeping the order of rows, and number them."""
    from pyspark.sql import functions as F

    if send.order_by:
        frame = frame.orderBy(*[identifier(name) for name in send.order_by])
    placed = frame.withColumn("_place", F.monotonically_increasing_id())
    placed = placed.withColumn("_headers", headers_column(send))
    lane, route, alike = F.lit(0), F.lit(""), F.lit("")
    if send.routes is not None:
        route, alike = route_columns(send, F.col("_place"), F.col("_headers"))
    elif send.group_by is not None:
        lane = crc_lane(identifier(send.group_by), send.lanes)
    else:
        start = F.pmod(F.crc32(F.lit(send.send_id)), F.lit(send.lanes))
        lane = F.pmod(F.col("_place") + start, F.lit(send.lanes))
    placing = send.placing
    arranged = placed.select(  # columns that only say where rows stand may be called as these
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
        arranged = arranged.sortWithinPartitions(
            "_alike", "_lane", F.desc("_priority"), "_available", "_expires", "_place"
        )
    number = F.monotonically_increasing_id()
    offset = F.shiftleft(F.shiftright(number, _SPARK_BITS), TASK_BITS).bitwiseOR(
        number.bitwiseAND(F.lit((1 << _SPARK_BITS) - 1))
    )
    return arranged.withColumn("_offset", offset)


def stored(send: Send, numbered: DataFrame) -> DataFrame:
    """Give numbered rows the columns of the payload table."""
    from pyspark.sql import functions as F

    standing = F.col("_lane").alias("lane")
    if send.routes is not None:
        standing = F.col("_route").alias("route")
    return numbered.select(
        F.lit(send.send_id).alias("send_id"),
        F.col("_offset").alias("send_offset"),
        F.lit(send.slice).cast("bigint").alias("slice"),
        *[F.col(identifier(column.name)) for column in send.schema.fields],
        F.col("_headers").alias("headers"),
        F.struct(
            standing,
            F.col("_priority").alias("priority"),
            F.col("_available").alias("available_step"),
            F.col("_expires").alias("expires_step"),
        ).alias("arrangement"),
    )


def headers_column(send: Send) -> Column:
    """Write the headers of each row; without any they are null."""
    from pyspark.sql import functions as F

    pairs = [cell for item in send.headers.items() for cell in map(F.lit, item)]
    for header, column in send.header_columns.items():
        pairs += [F.lit(header), F.col(identifier(column)).cast("string")]
    if not pairs:
        return F.lit(None).cast("map<string,string>")
    found = F.map_filter(F.create_map(*pairs), lambda _, value: value.isNotNull())
    return F.when(F.size(found) > 0, found)


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
    """The step of an instant that a column of seconds says, from now on."""
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
    """Write the query for the runs of a send, and for no more than it may have.

    What was arranged has one run in each place and task. Otherwise the rows of a place
    are a run as long as their offsets grow as their numbers do.
    """
    stretch = f"shiftright(send_offset, {TASK_BITS})"
    if send.routes is not None:
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
        LimitExceeded: They are more than anything takes.
    """
    if rows.num_rows > RUNS_PER_SEND_MAX:
        remedy = "Send df.coalesce(n) with fewer partitions, or create the queue with fewer lanes."
        if send.routes is not None:
            remedy = "Publish in parts, or with keep_order=False."
        raise LimitExceeded(
            f"The rows of one send lie in more than {RUNS_PER_SEND_MAX} ranges, which nothing "
            f"takes. {remedy}",
            name=str(send.note.get("exchange") or send.note.get("queue")),
        )
    found = (row for batch in rows.to_batches(_ROWS) for row in batch.to_pylist())
    return sorted(
        (Run(**{"lane": 0, **row}) for row in found), key=lambda run: (run.lane, run.first)
    )
