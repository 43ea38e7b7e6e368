"""SQL that finds messages by where they lie."""

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
"""The sends named with their offsets, to skip files; more are named by their ids only."""
_EXACT_MAX = 20
"""The ranges named one by one; of more, only the ends of each send: each row meets all of them."""
_ONE_TASK_MAX = 100_000
"""The messages counted in one task, which needs no exchange."""
_REMOVED = (
    "PayloadRemoved: some messages are not there: their payload is past its retention and was "
    "removed, or was erased (history.changes() tells), or this session reads without them "
    "(spark.databricks.delta.stalenessLimit, spark.sql.files.ignoreMissingFiles, "
    "spark.sql.files.ignoreCorruptFiles)"
)
_PLACE_COLUMNS = (
    "rank, send, piece, first, last, queue, lane, delivery_count, enqueued_at_ms, transaction_id, "
    "from_queue, from_reason, from_count, from_error"
)

_ID = "concat(p.send_id, ':', p.send_offset)"
_MESSAGE = (
    "'queue', r.queue, "
    "'lane', CAST(r.lane AS int), 'delivery_count', CAST(r.delivery_count AS int), "
    "'redelivered', r.delivery_count > 0, 'enqueued_at', timestamp_millis(r.enqueued_at_ms), "
    "'transaction_id', CAST(r.transaction_id AS string), 'headers', p.headers, "
    f"'correlation_id', try_element_at(p.headers, {literal(CORRELATION_ID)}), "
    f"'reply_to', try_element_at(p.headers, {literal(REPLY_TO)}), "
    "'origin', if(r.from_queue IS NULL, NULL, named_struct("
    "'queue', CAST(r.from_queue AS string), 'reason', CAST(r.from_reason AS string), "
    "'delivery_count', CAST(r.from_count AS int), 'error', CAST(r.from_error AS string))), "
    f"'send_id', p.send_id, 'send_offset', p.send_offset) AS {MESSAGE_COLUMN}"
)


def columns_of(schema: StructType, lacks: Collection[str]) -> str:
    """List the payload's columns; those that a table does not have are null."""
    return ", ".join(
        null_column(c) if c.name in lacks else f"p.{identifier(c.name)}" for c in schema.fields
    )


def null_column(column: StructField) -> str:
    """Write a column in which nothing stands."""
    return f"CAST(NULL AS {sql_type(column.dataType)}) AS {identifier(column.name)}"


def definitions(columns: Iterable[StructField], *, checked: bool = True) -> str:
    """Write columns as CREATE TABLE and ALTER TABLE take them.

    Args:
        columns: The columns.
        checked: Whether Delta checks that those are not null which may not be.
    """
    return ", ".join(
        f"{identifier(c.name)} {sql_type(c.dataType)}"
        f"{' NOT NULL' if checked and not c.nullable else ''}"
        for c in columns
    )


def message_struct(named: str | None) -> str:
    """Write the message's struct; ``named`` is the column of its id, if there is one."""
    given = _ID if named is None else f"coalesce(CAST(p.{identifier(named)} AS string), {_ID})"
    return f"named_struct('id', {_ID}, 'message_id', {given}, {_MESSAGE}"


def piece_bits(parts: Sequence[Part]) -> int:
    """Return how many of an offset's lowest bits vary inside a piece of a range.

    Rows are joined with the ranges of their piece, and not each row with each range of its send.
    """
    return ranges.bin_bits([part.ranges for part in parts])


def in_piece(bits: int) -> str:
    """Write the condition that a row ``p`` lies in the piece of a range ``r``."""
    return (
        f"p.send_id = r.send AND shiftright(p.send_offset, {bits}) = r.piece "
        "AND p.send_offset BETWEEN r.first AND r.last"
    )


def places(table: str, ranked: Sequence[tuple[int, Part]], bits: int, *, guarded: bool) -> str:
    """Write the places of ranked parts as a table.

    Args:
        table: The payload table that the messages lie in.
        ranked: The parts, with their ranks.
        bits: How pieces of ranges are cut.
        guarded: Whether evaluating them fails if messages are not there.
    """
    rows = _places(ranked, bits)
    parts = [part for _, part in ranked]
    if not guarded:
        return f"(SELECT * FROM VALUES {', '.join(rows)} AS v({_PLACE_COLUMNS}))"
    lie = _spans(parts)
    if not _are_few(lie):
        guard = _guard(f"({_joined_count(table, parts, bits)})", _count(parts))
        return f"(SELECT * FROM VALUES {', '.join(rows)} AS v({_PLACE_COLUMNS}) WHERE {guard})"
    structs = ", ".join(f"struct{row}" for row in rows)
    count = sum(map(ranges.count, lie.values()))
    return (
        f"(SELECT inline(array({structs})) AS ({_PLACE_COLUMNS}) "
        f"FROM ({_exact_count(table, parts, count)}) g WHERE {_guard('g.n', count)})"
    )


def _places(ranked: Sequence[tuple[int, Part]], bits: int) -> list[str]:
    rows = []
    for rank, part in ranked:
        origin = part.origin or {}
        for piece, first, last in ranges.cut(part.ranges, bits):
            known = (rank, part.send_id, piece, first, last, part.queue, part.lane)
            cells = [
                *[literal(cell) for cell in (*known, part.delivery_count, part.enqueued_at_ms)],
                _typed(part.transaction_id, "string"),
                _typed(origin.get("queue"), "string"),
                _typed(origin.get("reason"), "string"),
                _typed(origin.get("delivery_count"), "bigint"),
                _typed(origin.get("error"), "string"),
            ]
            rows.append(f"({', '.join(cells)})")
    return rows


def _typed(value: str | int | None, kind: str) -> str:
    return f"CAST(NULL AS {kind})" if value is None else literal(value)


def spans(parts: Sequence[Part], bits: int) -> str:
    """Write the places of parts as a table of values, without anything else."""
    values = ", ".join(
        f"({literal(part.send_id)}, {piece}L, {first}L, {last}L)"
        for part in parts
        for piece, first, last in ranges.cut(part.ranges, bits)
    )
    return f"(SELECT * FROM VALUES {values} AS v(send, piece, first, last))"


def literal_places(parts: Sequence[Part]) -> str:
    """Write where the messages lie as literals, so that only their files are read.

    It is exact if they lie in few ranges, and else lets others pass.
    """
    lie = _spans(parts)
    slices = ", ".join(str(number) for number in sorted({slice_ for slice_, _ in lie}))
    sends = literals(sorted({send_id for _, send_id in lie}))
    terms = [f"p.slice IN ({slices})", f"p.send_id IN ({sends})"]
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


def _spans(parts: Sequence[Part]) -> dict[tuple[int, str], tuple[Range, ...]]:
    """Sort ranges by their slices and sends, each message once."""
    found: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for part in parts:
        found[part.slice, part.send_id].extend(part.ranges)
    return {place: ranges.normalised(part) for place, part in found.items()}


def _are_few(lie: Mapping[tuple[int, str], Sequence[Range]]) -> bool:
    return sum(map(len, lie.values())) <= _EXACT_MAX


def _guard(counted: str, expected: int) -> str:
    """Write a condition that fails loudly, whenever it is evaluated, if messages are not there.

    A join would just find fewer rows: where a slice is gone, and where the session reads an old
    state of the table or passes over files that it cannot read. One query reads one state of the
    table, so that what is counted is what is read.
    """
    return f"if({counted} = {expected}, true, raise_error({literal(_REMOVED)}))"


def _exact_count(table: str, parts: Sequence[Part], count: int) -> str:
    """Count messages in few ranges by the predicates that they are read by.

    So Delta lists the files of both once; and few messages need no exchange to be counted.
    """
    there = f"{table} p WHERE {literal_places(parts)}"
    if count <= _ONE_TASK_MAX:
        there = f"(SELECT /*+ COALESCE(1) */ p.send_offset FROM {there})"
    return f"SELECT count(*) AS n FROM {there}"


def _joined_count(table: str, parts: Sequence[Part], bits: int) -> str:
    """Count messages in many ranges by a join with them."""
    return (
        f"SELECT /*+ BROADCAST(r) */ count(*) FROM {table} p "
        f"JOIN {spans(parts, bits)} r ON {in_piece(bits)} WHERE {literal_places(parts)}"
    )


def _count(parts: Sequence[Part]) -> int:
    return sum(ranges.count(part.ranges) for part in parts)
