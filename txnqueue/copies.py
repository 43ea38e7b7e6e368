"""Messages of a batch as rows to resend, with their payload, headers and origin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from txnqueue.batch import Batch
from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import MESSAGE_COLUMN
from txnqueue.types import Rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from txnqueue.storage.payload import Part

ORIGIN = "txnqueue.origin"
"""The header of a copy that names the message that it is a copy of."""
_ROWS_HERE_MAX = 10_000
"""So many rows are copied in this process, others by Spark."""


def copies_of(batch: Batch, *, by_spark: bool) -> tuple[Rows, dict[str, str]]:
    """Write the messages of a batch as rows, in their order.

    Args:
        batch: The messages.
        by_spark: Whether there is a session that copies many of them.

    Returns:
        The rows, and by each header's name the column that holds it.
    """
    if by_spark and len(batch) > _ROWS_HERE_MAX:
        return _of_frame(batch.df, batch._parts())
    return _of_table(batch.to_arrow())


def _of_table(found: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    import pyarrow as pa

    about = [one[MESSAGE_COLUMN] for one in found.select([MESSAGE_COLUMN]).to_pylist()]
    headers = [{**dict(one["headers"] or ()), ORIGIN: one["id"]} for one in about]
    columns = _columns((name for one in headers for name in one), found.schema.names)
    rows = found.drop_columns([MESSAGE_COLUMN])
    for name, column in columns.items():
        values = pa.array([one.get(name) for one in headers], pa.string())
        rows = rows.append_column(column, values)
    return rows, columns


def _of_frame(found: DataFrame, parts: Sequence[Part]) -> tuple[DataFrame, dict[str, str]]:
    """Write a frame of messages as rows in the order of their parts.

    A message that is in two parts has two rows, which both lie where the first part is.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    from txnqueue.storage.payload.queries import piece_bits
    from txnqueue.storage.payload.types import frame_of

    headers = f"{MESSAGE_COLUMN}.headers"
    names = found.select(F.explode(F.map_keys(headers)).alias("name")).distinct().collect()
    columns = _columns([ORIGIN, *sorted(row["name"] for row in names)], found.columns)
    bits = piece_bits(parts)  # a row is compared with the spans of its piece, and not of its send
    spans = [
        (rank, send_id, piece, first, last)
        for rank, send_id, left in _each_once(parts)
        for first, last in left
        for piece in range(first >> bits, (last >> bits) + 1)
    ]
    send_id, offset = (F.col(f"{MESSAGE_COLUMN}.{name}") for name in ("send_id", "send_offset"))
    added = [*_columns(("rank", "send", "piece", "first", "last"), found.columns).values()]
    rank, send, piece, first, last = map(F.col, added)
    ordered = pa.table(list(map(pa.array, zip(*spans, strict=True))), added)
    lie = F.broadcast(frame_of(found.sparkSession, ordered))
    in_piece = (send_id == send) & (F.shiftright(offset, bits) == piece)
    rows = found.join(lie, in_piece & offset.between(first, last)).orderBy(rank, offset)
    rows = rows.drop(*added)
    values = {
        column: F.col(f"{MESSAGE_COLUMN}.id") if name == ORIGIN else F.col(headers).getItem(name)
        for name, column in columns.items()
    }
    return rows.withColumns(values).drop(MESSAGE_COLUMN), columns


def _each_once(parts: Sequence[Part]) -> Iterator[tuple[int, str, tuple[Range, ...]]]:
    """Yield the rank and the send of each part, and its ranges that no earlier part has."""
    seen: dict[str, tuple[Range, ...]] = {}
    for rank, part in enumerate(parts):
        known = seen.get(part.send_id, ())
        yield rank, part.send_id, ranges.difference(part.ranges, known)
        seen[part.send_id] = ranges.added(known, part.ranges)


def _columns(wanted: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Give each header, or whatever is to have a column, one of a name that is free."""
    prefix = "header"
    while any(name.lower().startswith(prefix) for name in taken):
        prefix += "_"
    return {name: f"{prefix}{n}" for n, name in enumerate(dict.fromkeys(wanted))}
