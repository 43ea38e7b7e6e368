"""The queues and lanes of each row of a publish, computed in this process or by Spark.

A row's *route* lists the numbers of the queues that get it, each with the row's lane there. The
rows of an ungrouped queue are spread over its lanes in stretches, not one by one, so that rows
stored together for one queue are stored together for the others too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from txnqueue.core import exchanges
from txnqueue.core.exchanges import Binding
from txnqueue.errors import LimitExceeded, Unroutable
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload import Destination, Routes, Send
from txnqueue.storage.payload.rows import header_text, lane_of

if TYPE_CHECKING:
    from pyspark.sql import Column

NO_ROUTE, LONG_KEY = "txnqueue: nobody wants this row", "txnqueue: this key is too long"
_STRETCH = 10_000
"""The number of rows of a task that go to one lane of an ungrouped queue before the next lane."""
SPARK_BITS = 33
"""The low bits of the numbers that Spark gives to rows: the row in its task, below the task."""
_SPECIAL = re.compile(r"(?![0-9A-Za-z_])[\x00-\x7f]")


def places_of(route: str) -> list[tuple[int, int]]:
    """Parse a route: the number of each queue, and the lane there."""
    pairs = (one.partition(":") for one in route.split(",") if one)
    return [(int(number), int(lane)) for number, _, lane in pairs]


def unroutable(exchange: str) -> Unroutable:
    """Build the error for messages that match no binding."""
    return Unroutable(
        f"No binding of the exchange {exchange!r} matches some of the messages, so they are "
        "refused: nothing was sent. Bind a queue for them, or create an exchange with "
        "unroutable='return', or with 'dead_letter' and a dead-letter queue that exists.",
        name=exchange,
    )


def key_too_long(column: str) -> LimitExceeded:
    """Build the error for a column with a routing key that is too long."""
    return LimitExceeded(
        f"Column {column!r} holds a routing key of more than {exchanges.KEY_LENGTH_MAX} "
        "characters: publish with shorter keys.",
        column=column,
    )


# ----------------------------------------------------------------------- in this process


def routes_of(
    send: Send, table: pa.Table, headers: Sequence[Mapping[str, str] | None]
) -> list[str]:
    """Return the route of each row; rows sent to one queue have none.

    Args:
        send: Defines the destinations of rows.
        table: The rows, with the columns of the routing key and of grouping.
        headers: The headers of each row.

    Raises:
        Unroutable: Some rows match no binding, and the exchange refuses such a publish.
    """
    routes = send.routes
    if routes is None:
        return [""] * table.num_rows
    keys = _keys(routes, table)
    rules = [exchanges.rule_of(routes.kind, one.bindings) for one in routes.destinations]
    lanes = [_lanes(send, number, one, table) for number, one in enumerate(routes.all)]
    known: dict[object, list[int]] = {}
    found = []
    for row, key in enumerate(keys):
        said = headers[row] or {}
        alike = frozenset(said.items()) if routes.kind == exchanges.HEADERS else key
        if alike not in known:
            known[alike] = [number for number, rule in enumerate(rules) if rule(key, said)]
        numbers = known[alike]
        if not numbers and routes.otherwise is not None:
            numbers = [len(rules)]
        if not numbers and routes.refuse:
            raise unroutable(str(send.note.get("exchange")))
        found.append(",".join(f"{number}:{lanes[number][row]}" for number in numbers))
    return found


def sets_of(send: Send, routes: Sequence[str]) -> list[str]:
    """Return a key of the rows to be stored together: their queues and grouped lanes."""
    assert send.routes is not None
    grouped = [one.group_by is not None for one in send.routes.all]
    known = {
        route: ",".join(
            f"{number}:{lane}" if grouped[number] else f"{number}"
            for number, lane in places_of(route)
        )
        for route in set(routes)
    }
    return [known[route] for route in routes]


def _keys(routes: Routes, table: pa.Table) -> list[str]:
    if routes.key_column is None:
        return [routes.key] * table.num_rows
    found = table.column(routes.key_column).to_pylist()
    keys = ["" if key is None else header_text(key) for key in found]
    if max(map(len, keys), default=0) > exchanges.KEY_LENGTH_MAX:
        raise key_too_long(routes.key_column)
    return keys


def _lanes(send: Send, number: int, one: Destination, table: pa.Table) -> list[int]:
    """Return the lane of each row in one queue, as if all went there."""
    if one.group_by is not None:
        return [lane_of(key, one.lanes) for key in table.column(one.group_by).to_pylist()]
    start, rows = _start(send, number, one), max(1, table.num_rows)
    return [(start + row * one.lanes // rows) % one.lanes for row in range(table.num_rows)]


def _start(send: Send, number: int, one: Destination) -> int:
    """Choose the lane of the first rows, which varies by send and queue."""
    return lane_of(f"{send.send_id}/{number}", one.lanes)


# ------------------------------------------------------------------------------ by Spark


def route_columns(send: Send, place: Column, headers: Column) -> tuple[Column, Column]:
    """Return the columns for the route of each row and for the key of rows stored together.

    Args:
        send: Defines the destinations of rows.
        place: The task of a row and its number there, as assigned by Spark.
        headers: The headers of a row; null without any.
    """
    from pyspark.sql import functions as F

    routes = send.routes
    assert routes is not None
    key: Column = F.lit(routes.key)
    if routes.key_column is not None:
        key = F.coalesce(F.col(identifier(routes.key_column)).cast("string"), F.lit(""))
        too_long = F.length(key) > F.lit(exchanges.KEY_LENGTH_MAX)
        key = F.when(too_long, F.raise_error(F.lit(LONG_KEY))).otherwise(key)
    full: list[Column] = []
    common: list[Column] = []
    for number, one in enumerate(routes.destinations):
        wanted = _wanted(routes.kind, one.bindings, key, headers)
        lane = _lane_column(send, number, one, place)
        placed = F.concat(F.lit(f"{number}:"), lane.cast("string"))
        full.append(F.when(wanted, placed))
        common.append(F.when(wanted, placed if one.group_by is not None else F.lit(f"{number}")))
    route, alike = F.concat_ws(",", *full), F.concat_ws(",", *common)
    if routes.otherwise is not None:
        number = len(routes.destinations)
        lane = _lane_column(send, number, routes.otherwise, place)
        placed = F.concat(F.lit(f"{number}:"), lane.cast("string"))
        route = F.when(route == "", placed).otherwise(route)
    elif routes.refuse:
        route = F.when(route == "", F.raise_error(F.lit(NO_ROUTE))).otherwise(route)
    return route, alike


def _wanted(kind: str, bindings: Sequence[Binding], key: Column, headers: Column) -> Column:
    from pyspark.sql import functions as F

    if kind == exchanges.FANOUT:
        return F.lit(bool(bindings))
    if kind == exchanges.HEADERS:
        return _any([_headers_wanted(one, headers) for one in bindings])
    keys = sorted({one.routing_key for one in bindings})
    if kind == exchanges.DIRECT:
        return key.isin(keys)
    # Each word of a key follows a dot, so that the empty key has no words.
    words = F.when(key == "", F.lit("")).otherwise(F.concat(F.lit("."), key))
    return _any([words.rlike(expression_of(pattern)) for pattern in keys])


def _headers_wanted(one: Binding, headers: Column) -> Column:
    from pyspark.sql import functions as F

    asked = [
        F.map_contains_key(headers, name)
        if value is None
        else F.try_element_at(headers, F.lit(name)) == F.lit(value)
        for name, value in one.arguments
    ]
    found = [F.coalesce(column, F.lit(False)) for column in asked]
    if one.match == exchanges.ANY:
        return _any(found)
    return ~_any([~column for column in found])


def _any(columns: Sequence[Column]) -> Column:
    from pyspark.sql import functions as F

    wanted: Column = F.lit(False)
    for column in columns:
        wanted = wanted | column
    return wanted


def _lane_column(send: Send, number: int, one: Destination, place: Column) -> Column:
    from pyspark.sql import functions as F

    if one.group_by is not None:
        return crc_lane(identifier(one.group_by), one.lanes)
    task = F.shiftright(place, SPARK_BITS)
    row = place.bitwiseAND(F.lit((1 << SPARK_BITS) - 1))
    stretch = F.floor(row / F.lit(_STRETCH))
    return F.pmod(task + stretch + F.lit(_start(send, number, one)), F.lit(one.lanes))


def crc_lane(column: str, lanes: int) -> Column:
    """Return the expression for the lane of a grouping key, with the result of ``lane_of``."""
    from pyspark.sql import functions as F

    key = F.col(column).cast("string")
    return F.coalesce(F.pmod(F.crc32(key.cast("binary")), F.lit(lanes)), F.lit(0))


def expression_of(pattern: str) -> str:
    """Convert a topic pattern to a regular expression over words that each follow a dot.

    The words between two "#" are matched once, at their first occurrence, without backtracking,
    which is sufficient and keeps the time short for any number of "#".
    """
    pieces: list[list[str]] = [[]]
    for word in exchanges.pattern_words(pattern):
        if word == exchanges.ANY_WORDS:
            pieces.append([])
        else:
            pieces[-1].append(_word_expression(word))
    first, *others = ("".join(piece) for piece in pieces)
    if not others:
        return f"^{first}\\z"
    middle = "".join(f"(?>(?:\\.[^.]*)*?{piece})" for piece in others[:-1])
    return f"^{first}{middle}(?:\\.[^.]*)*{others[-1]}\\z"


def _word_expression(word: str) -> str:
    """Return the expression for one whole word of a pattern."""
    text = "[^.]*" if word == exchanges.ONE_WORD else _SPECIAL.sub(r"\\\g<0>", word)
    return f"\\.{text}(?![^.])"
