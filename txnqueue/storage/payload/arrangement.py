"""Arrangement of a send's rows in this process: the place of each row in the queue.

``payload.frame_arrangement`` does the same in Spark for DataFrames and large tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txnqueue.core import exchanges
from txnqueue.core.instants import exact_ms
from txnqueue.core.model import is_in_memory
from txnqueue.core.settings import DELAY_SECONDS_MAX, MESSAGE_COLUMN, did_you_mean
from txnqueue.core.state.duplicates import IDS_IN_ENTRY_MAX, digest
from txnqueue.errors import InvalidInput, LimitExceeded, SchemaMismatch
from txnqueue.storage.payload import PRIORITY_DEFAULT, PRIORITY_MAX, Placing, Run, Send
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.places import Place, sort_key
from txnqueue.storage.payload.routes import routes_of, sets_of
from txnqueue.storage.payload.rows import column_names, header_text, lane_of, texts_of, values_of
from txnqueue.storage.payload.types import sql_type

_HEADERS = (StringType, IntegralType, BooleanType, DateType)
_TAKEN = dict.fromkeys(("_headers", MESSAGE_COLUMN, "_place"), "")
"""Names that are used for numbering rows, or removed from them."""
_TYPES: dict[str, DataType] = {
    "priority": IntegerType(),
    "available_at": TimestampType(),
    "delay_seconds": DoubleType(),
    "ttl_seconds": DoubleType(),
}
"""The types in which columns outside the queue's schema are read."""
_SAYING: dict[str, tuple[type[DataType], ...]] = {
    "priority": (IntegralType,),
    "available_at": (TimestampType,),
    "delay_seconds": (IntegralType, FloatType, DoubleType),
    "ttl_seconds": (IntegralType, FloatType, DoubleType),
}
"""The types that columns of the queue may have for each use."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows in the order of their offsets, with the place, the headers and the id of each.

    Published rows also have a route, and lane 0 in their place.
    """

    rows: pa.Table
    places: list[Place]
    headers: list[dict[str, str] | None]
    routes: list[str]
    ids: list[bytes] | None = None

    @property
    def runs(self) -> list[Run]:
        """The runs of contiguous offsets in one place, as written by one task."""
        runs: list[Run] = []
        first = 0
        for (place, route), found in groupby(zip(self.places, self.routes, strict=True)):
            count = sum(1 for _ in found)
            lane, priority, available, expires = place
            ids = None if self.ids is None else tuple(self.ids[first : first + count])
            runs.append(Run(lane, first, count, priority, available, expires, route, ids))
            first += count
        return runs


def widened(send: Send, rows: Any) -> StructType:
    """Add to the queue's columns those that determine places and are not payload.

    Args:
        send: Names these columns.
        rows: A DataFrame, a pandas or Arrow table, or a list of dicts.

    Raises:
        SchemaMismatch: The rows have no such column, or its type does not fit its use.
        InvalidInput: The rows have an unknown form.
    """
    fields = list(send.schema.fields)
    placed, headers = send.placing.columns, send.header_columns
    given = column_names(rows) if placed or headers else set()
    taken = {folded(column.name): column.name for column in fields} | _TAKEN
    told = [(_argument(send, header), name) for header, name in headers.items()]
    for use, name in [*placed.items(), *told]:
        if given and name not in given:
            near = did_you_mean(name, given)
            raise SchemaMismatch(f"{use}={name!r} is not a column of the rows: {near}", column=name)
        if "${" in name:  # in SQL text, the session would substitute a variable
            raise SchemaMismatch(
                f"{use}={name!r}: a column with '${{' in its name cannot be used for this; rename "
                "it.",
                column=name,
            )
        if taken.setdefault(folded(name), name) != name:
            raise SchemaMismatch(
                f"{use}={name!r}: the name is taken, or differs from another one only in case; "
                "rename the column.",
                column=name,
            )
    for use, name in placed.items():
        known = next((column for column in fields if column.name == name), None)
        if known is None:
            fields.append(StructField(name, _TYPES[use], True))
        elif not isinstance(known.dataType, _SAYING[use]):
            raise SchemaMismatch(
                f"{use}={name!r}: the column has type {sql_type(known.dataType)}, but "
                f"{sql_type(_TYPES[use])} is needed: cast it.",
                column=name,
            )
    for header, name in headers.items():
        known = next((column for column in fields if column.name == name), None)
        if known is None:
            fields.append(StructField(name, StringType(), True))
        elif not isinstance(known.dataType, _HEADERS):
            raise SchemaMismatch(
                f"The header {header!r} takes a string, whole number, boolean or date; column "
                f"{name!r} is {sql_type(known.dataType)}: cast it.",
                column=name,
            )
    return StructType(fields)


def _argument(send: Send, header: str) -> str:
    """Return how the caller named the column of a header."""
    by_key = send.routes is not None and send.routes.key_column is not None
    if by_key and header == exchanges.ROUTING_KEY:
        return "routing_key_column"
    return f"header_columns[{header!r}]"


def arrange(send: Send, table: pa.Table) -> Arranged:
    """Sort rows by place, keeping their order within a place.

    Args:
        send: Defines the grouping, the order and the placing.
        table: The rows, with the columns of ``widened``.

    Returns:
        The rows in the order to be stored, from offset 0 on, with the queue's columns.

    Raises:
        InvalidInput: A priority is invalid.
        Unroutable: Some rows match no binding, and the exchange refuses such a publish.
    """
    if send.order_by:
        table = table.take(_ordering(send.order_by, table))
    places = list(
        zip(
            _lanes(send, table),
            _priorities(send.placing, table),
            _available_steps(send.placing, table),
            _expires_steps(send.placing, table),
            strict=True,
        )
    )
    headers = _headers(send, table)
    routes = routes_of(send, table, headers)
    order = list(range(table.num_rows))
    keys = [sort_key(place, in_order=send.in_order) for place in places]
    if send.routes is None:
        order.sort(key=keys.__getitem__)
    elif not send.routes.keep_order:
        sets = sets_of(send, routes)
        order.sort(key=lambda row: (sets[row], *keys[row]))
    rows = table.select(send.schema.names).take(pa.array(order, pa.int64()))
    return Arranged(
        rows,
        [places[row] for row in order],
        [headers[row] for row in order],
        [routes[row] for row in order],
        _ids(send, rows),
    )


def _ids(send: Send, rows: pa.Table) -> list[bytes] | None:
    """Return digests of the message ids, for few rows or rows kept in memory."""
    many = rows.num_rows > IDS_IN_ENTRY_MAX and not is_in_memory(send.payload_id)
    if send.message_id is None or many:
        return None
    return [
        digest(text) for text in texts_of(values_of(send.message_id, rows.column(send.message_id)))
    ]


def _headers(send: Send, table: pa.Table) -> list[dict[str, str] | None]:
    """Return the headers of each row; a null in a column means that the row lacks the header."""
    found = [dict(send.headers) for _ in range(table.num_rows)]
    for header, name in send.header_columns.items():
        for row, value in enumerate(values_of(name, table.column(name))):
            if value is not None:
                found[row][header] = header_text(value)
    return [headers or None for headers in found]


def _ordering(names: Sequence[str], table: pa.Table) -> pa.Array:
    """Return the order of rows as Spark sorts them, with nulls first."""
    keys: dict[str, pa.ChunkedArray] = {}
    for number, name in enumerate(names):
        keys[f"{number} is there"] = pc.is_valid(table.column(name))
        keys[f"{number}"] = table.column(name)
    return pc.sort_indices(pa.table(keys), sort_keys=[(key, "ascending") for key in keys])


def _lanes(send: Send, table: pa.Table) -> list[int]:
    if send.routes is not None:
        return [0] * table.num_rows
    if send.group_by is not None:
        keys = values_of(send.group_by, table.column(send.group_by))
        return [lane_of(key, send.lanes) for key in keys]
    start = lane_of(send.send_id, send.lanes)
    return [(start + row) % send.lanes for row in range(table.num_rows)]


def _priorities(placing: Placing, table: pa.Table) -> list[int]:
    if not isinstance(placing.priority, str):
        return [placing.priority] * table.num_rows
    found = table.column(placing.priority).to_pylist()
    wrong = next((n for n in found if n is not None and not 0 <= n <= PRIORITY_MAX), None)
    if wrong is not None:
        raise wrong_priority(placing.priority, wrong)
    return [PRIORITY_DEFAULT if number is None else number for number in found]


def wrong_priority(column: str, value: object = "a value") -> InvalidInput:
    """Build the error for a column with an invalid priority."""
    return InvalidInput(
        f"Column {column!r} holds {value}: give priorities from 0 to {PRIORITY_MAX}.",
        column=column,
        in_rows=True,
    )


def wrong_seconds(column: str, value: object = "a value") -> LimitExceeded:
    """Build the error for a column with an invalid delay or time to live."""
    return LimitExceeded(
        f"Column {column!r} holds {value}: give up to {DELAY_SECONDS_MAX} seconds, or null.",
        column=column,
        in_rows=True,
    )


def _available_steps(placing: Placing, table: pa.Table) -> list[int | None]:
    if isinstance(placing.available_at, str):
        return _steps(placing, table, placing.available_at, exact_ms)
    if placing.delay_seconds is not None:
        return _steps(placing, table, placing.delay_seconds, _later(placing.delay_seconds, placing))
    return [None] * table.num_rows


def _expires_steps(placing: Placing, table: pa.Table) -> list[int | None]:
    if placing.ttl_seconds is not None:
        return _steps(placing, table, placing.ttl_seconds, _later(placing.ttl_seconds, placing))
    return [None] * table.num_rows


def _steps(
    placing: Placing, table: pa.Table, column: str, instant: Callable[[Any], float]
) -> list[int | None]:
    """Round the instants in a column up to steps."""
    values = table.column(column).to_pylist()
    return [None if v is None else math.ceil(instant(v) / placing.step_ms) for v in values]


def _later(column: str, placing: Placing) -> Callable[[float], float]:
    """Return a function that converts seconds from now to an instant in milliseconds."""

    def instant(seconds: float) -> float:
        if not abs(seconds) <= DELAY_SECONDS_MAX:  # also true for NaN
            raise wrong_seconds(column, seconds)
        return placing.now_ms + seconds * 1000

    return instant
