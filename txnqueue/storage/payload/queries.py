"""SQL that finds messages by their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import MESSAGE_COLUMN
from txnqueue.storage.journal.tables import identifier, literal, literals
from txnqueue.storage.payload import CORRELATION_ID, REPLY_TO, Part
from txnqueue.storage.payload.types import sql_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_PLACES_MAX = 200
"""Up to this number of sends, offsets are named to skip files; more are named only by id."""
_DENSE = 10
"""From this number of sends for each slice on, the slices hold little else."""
_EXACT_MAX = 20
"""Up to this number of ranges, each is named; of more, only the bounds of each send."""
_ONE_TASK_MAX = 100_000
"""Up to this number of messages, one task counts them, without a shuffle."""
_REMOVED = (
    "PayloadRemoved: some messages are not there: their payload is past its retention and was "
    "removed, or was erased (history.changes() tells), or this session reads without them "
    "(spark.databricks.delta.stalenessLimit, spark.sql.files.ignoreMissingFiles, "
    "spark.sql.files.ignoreCorruptFiles)"
)
_STANDING = (
    *("queue", "lane", "delivery_count", "enqueued_at_ms", "transaction_id"),
    *("from_queue", "from_reason", "from_count", "from_error"),
)
"""The columns of a message's place and of its origin."""
_PLACE_COLUMNS = ", ".join(("rank", "send", "piece", "first", "last", *_STANDING))

PLACE = "_place"
"""A column with the place of a row's message, whose name no payload column may have."""


def columns_of(schema: StructType, lacks: Collection[str]) -> list[str]:
    """List the payload's columns; those that a table lacks are null."""
    return [null_column(c) if c.name in lacks else f"p.{identifier(c.name)}" for c in schema.fields]


def null_column(column: StructField) -> str:
    """Return a column of nulls."""
    return f"CAST(NULL AS {sql_type(column.dataType)}) AS {identifier(column.name)}"


def definitions(columns: Iterable[StructField], *, checked: bool = True) -> str:
    """Return column definitions for CREATE TABLE and ALTER TABLE.

    Args:
        columns: The columns.
        checked: Whether Delta enforces NOT NULL.
    """
    return ", ".join(
        f"{identifier(c.name)} {sql_type(c.dataType)}"
        f"{' NOT NULL' if checked and not c.nullable else ''}"
        for c in columns
    )


def message_struct(named: str | None, place: str = "r") -> str:
    """Return the expression for the ``_message`` struct.

    Args:
        named: The payload's column with the message id, if there is one.
        place: The alias of the row with the columns of its place.
    """
    offset = "coalesce(p.send_offset, 0L)"  # never null, which files cannot tell Spark
    own = f"concat({place}.send, ':', {offset})"
    given = own if named is None else f"coalesce(CAST(p.{identifier(named)} AS string), {own})"
    return (
        f"named_struct('id', {own}, 'message_id', {given}, 'queue', {place}.queue, "
        f"'lane', CAST({place}.lane AS int), "
        f"'delivery_count', CAST({place}.delivery_count AS int), "
        f"'redelivered', {place}.delivery_count > 0, "
        f"'enqueued_at', timestamp_millis({place}.enqueued_at_ms), "
        f"'transaction_id', CAST({place}.transaction_id AS string), 'headers', p.headers, "
        f"'correlation_id', try_element_at(p.headers, {literal(CORRELATION_ID)}), "
        f"'reply_to', try_element_at(p.headers, {literal(REPLY_TO)}), "
        f"'origin', if({place}.from_queue IS NULL, NULL, named_struct("
        f"'queue', CAST({place}.from_queue AS string), "
        f"'reason', CAST({place}.from_reason AS string), "
        f"'delivery_count', CAST({place}.from_count AS int), "
        f"'error', CAST({place}.from_error AS string))), "
        f"'send_id', {place}.send, 'send_offset', {offset}) AS {MESSAGE_COLUMN}"
    )


def piece_bits(parts: Sequence[Part]) -> int:
    """Return how many of an offset's lowest bits vary within a piece of a range.

    A row is joined only with the ranges of its piece, not with every range of its send.
    """
    return ranges.bin_bits([part.ranges for part in parts])


def in_piece(bits: int) -> str:
    """Return the condition that a row ``p`` is in the piece of a range ``r``."""
    return (
        f"p.send_id = r.send AND shiftright(p.send_offset, {bits}) = r.piece "
        "AND p.send_offset BETWEEN r.first AND r.last"
    )


def places(ranked: Sequence[tuple[int, Part]], bits: int) -> str:
    """Return the places of ranked parts as a table.

    Args:
        ranked: The parts, with their ranks.
        bits: The number of bits that vary within a piece.
    """
    return f"(SELECT * FROM VALUES {', '.join(_places(ranked, bits))} AS v({_PLACE_COLUMNS}))"


def guarded_places(table: str, ranked: Sequence[tuple[int, Part]], bits: int) -> str:
    """Return the places of ranked parts as a table that fails if messages are missing.

    Args:
        table: The payload table of the messages.
        ranked: The parts, with their ranks.
        bits: The number of bits that vary within a piece.
    """
    rows = _places(ranked, bits)
    parts = [part for _, part in ranked]
    lie = spans_of(parts)
    if not _are_few(lie):
        guard = _guard(f"({_joined_count(table, parts, bits)})", _count(parts))
        return f"(SELECT * FROM VALUES {', '.join(rows)} AS v({_PLACE_COLUMNS}) WHERE {guard})"
    structs = ", ".join(f"struct{row}" for row in rows)
    count = sum(map(ranges.count, lie.values()))
    return (
        f"(SELECT inline(array({structs})) AS ({_PLACE_COLUMNS}) "
        f"FROM ({_exact_count(table, parts, count)}) g WHERE {_guard('g.n', count)})"
    )


def place_case(parts: Sequence[Part]) -> str:
    """Return the place of the message of a row ``p`` as an expression, without a join.

    Args:
        parts: Parts in few places, one of which each row is in.
    """
    each = [(part, one) for part in parts for one in part.ranges]
    *others, last = [_place_struct(part) for part, _ in each]
    branches = " ".join(
        f"WHEN p.send_id = {literal(part.send_id)} AND p.send_offset BETWEEN {first}L AND {end}L "
        f"THEN {place}"
        for (part, (first, end)), place in zip(each, others, strict=False)
    )
    return f"CASE {branches} ELSE {last} END" if branches else last


def _place_struct(part: Part) -> str:
    named = zip(("send", *_STANDING), (literal(part.send_id), *_standing(part)), strict=True)
    return f"named_struct({', '.join(f'{literal(name)}, {cell}' for name, cell in named)})"


def are_few_places(parts: Sequence[Part], lie: Mapping[tuple[int, str], Sequence[Range]]) -> bool:
    """Return whether parts are in so few ranges that each is named, with each message in one.

    Args:
        parts: The parts.
        lie: Their offsets, as returned by ``spans_of``.
    """
    each = [one for part in parts for one in part.ranges]
    alone = ranges.count(each) == sum(map(ranges.count, lie.values()))
    return alone and len(each) <= _EXACT_MAX


def _places(ranked: Sequence[tuple[int, Part]], bits: int) -> list[str]:
    rows = []
    for rank, part in ranked:
        standing = _standing(part)
        for piece, first, last in ranges.cut(part.ranges, bits):
            lies = [literal(cell) for cell in (rank, part.send_id, piece, first, last)]
            rows.append(f"({', '.join([*lies, *standing])})")
    return rows


def _standing(part: Part) -> list[str]:
    """Return the values that all messages of a part share, in the order of the columns."""
    origin = part.origin or {}
    return [
        literal(part.queue),
        literal(part.lane),
        literal(part.delivery_count),
        literal(part.enqueued_at_ms),
        _typed(part.transaction_id, "string"),
        _typed(origin.get("queue"), "string"),
        _typed(origin.get("reason"), "string"),
        _typed(origin.get("delivery_count"), "bigint"),
        _typed(origin.get("error"), "string"),
    ]


def _typed(value: str | int | None, kind: str) -> str:
    return f"CAST(NULL AS {kind})" if value is None else literal(value)


def spans(parts: Sequence[Part], bits: int) -> str:
    """Return the places of parts as a table of values."""
    values = ", ".join(
        f"({literal(part.send_id)}, {piece}L, {first}L, {last}L)"
        for part in parts
        for piece, first, last in ranges.cut(part.ranges, bits)
    )
    return f"(SELECT * FROM VALUES {values} AS v(send, piece, first, last))"


def literal_places(parts: Sequence[Part]) -> str:
    """Return the places of messages as literals, so that only their files are read.

    The condition is exact if they are in few ranges; otherwise it also admits other rows.
    """
    lie = spans_of(parts)
    return f"{_in_slices(lie)} AND {literal_offsets(lie)}"


def places_to_join(parts: Sequence[Part]) -> str:
    """Return a condition for rows that are joined with the places of messages: it saves files.

    Many sends are not named if their slices hold little else. Delta compares each one with the
    statistics of each file, which takes many times as long as to read all files of the slices.
    """
    lie = spans_of(parts)
    slices = {slice_ for slice_, _ in lie}
    if len(lie) > _PLACES_MAX and len(lie) >= _DENSE * len(slices):
        return _in_slices(lie)
    return literal_places(parts)


def _in_slices(lie: Iterable[tuple[int, str]]) -> str:
    return f"p.slice IN ({', '.join(map(str, sorted({slice_ for slice_, _ in lie})))})"


def literal_offsets(lie: Mapping[tuple[int, str], Sequence[Range]]) -> str:
    """Return the sends and offsets of messages as literals, as exact as ``literal_places``.

    Args:
        lie: The offsets of each send, by slice and id.
    """
    sends = literals(sorted({send_id for _, send_id in lie}))
    terms = [f"p.send_id IN ({sends})"]
    if _are_few(lie):
        ends = [(send_id, one) for (_, send_id), found in lie.items() for one in found]
    else:
        ends = [(send_id, (found[0][0], found[-1][1])) for (_, send_id), found in lie.items()]
    if len(lie) <= _PLACES_MAX:
        places = (
            f"(p.send_id = {literal(send_id)} AND p.send_offset BETWEEN {first}L AND {last}L)"
            for send_id, (first, last) in ends
        )
        terms.append(f"({' OR '.join(places)})")
    return " AND ".join(terms)


def spans_of(parts: Sequence[Part]) -> dict[tuple[int, str], tuple[Range, ...]]:
    """Group ranges by slice and send, with each message once."""
    found: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for part in parts:
        found[part.slice, part.send_id].extend(part.ranges)
    return {place: ranges.normalised(part) for place, part in found.items()}


def _are_few(lie: Mapping[tuple[int, str], Sequence[Range]]) -> bool:
    return sum(map(len, lie.values())) <= _EXACT_MAX


def _guard(counted: str, expected: int) -> str:
    """Return a condition that raises an error, whenever it is evaluated, if messages are missing.

    A join would merely find fewer rows if a slice was removed, or if the session reads an old
    state of the table or skips files that it cannot read. One query reads one state of the table,
    so the rows that are counted are those that are read.
    """
    return f"if({counted} = {expected}, true, raise_error({literal(_REMOVED)}))"


def _exact_count(table: str, parts: Sequence[Part], count: int) -> str:
    """Return the count of messages in few ranges, with the predicates used to read them.

    So Delta lists the files of both only once, and few messages are counted without a shuffle.
    """
    there = f"{table} p WHERE {literal_places(parts)}"
    if count <= _ONE_TASK_MAX:
        there = f"(SELECT /*+ COALESCE(1) */ p.send_offset FROM {there})"
    return f"SELECT count(*) AS n FROM {there}"


def _joined_count(table: str, parts: Sequence[Part], bits: int) -> str:
    """Return the count of messages in many ranges, by a join with the ranges."""
    return (
        f"SELECT /*+ BROADCAST(r) */ count(*) FROM {table} p "
        f"JOIN {spans(parts, bits)} r ON {in_piece(bits)} WHERE {places_to_join(parts)}"
    )


def _count(parts: Sequence[Part]) -> int:
    return sum(ranges.count(part.ranges) for part in parts)
