"""The places of messages as ranges computed by Spark, with one row per range.

However many messages are selected, this process does not get an object for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import MESSAGE_COLUMN, RANGES_PER_CALL_MAX
from txnqueue.errors import LimitExceeded
from txnqueue.storage.payload import StagedPlace, evaluating

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PIECE_BITS = 20
"""Ranges are computed within pieces of this many offsets, so a long send is not a single task."""


def places_of(messages: DataFrame) -> DataFrame:
    """Reduce messages, in the form of ``Batch.df``, to their places in the payload."""
    return messages.select(f"{MESSAGE_COLUMN}.send_id", f"{MESSAGE_COLUMN}.send_offset")


def islands(places: DataFrame, by: Sequence[str] = ()) -> list[tuple[Any, ...]] | None:
    """Find the ranges of messages; None if there are more than ``RANGES_PER_CALL_MAX``.

    Args:
        places: ``send_id`` and ``send_offset`` of each message, and the grouping columns.
        by: The grouping columns, which are equal for all messages of a range.

    Returns:
        For each range the grouping values, the send, and the first and the last offset; in no
        order, and ranges may touch.
    """
    from pyspark.sql import functions as F

    keys = [*by, "send_id", "piece"]
    # A message that is named twice gets the same rank both times.
    rank = f"dense_rank() OVER (PARTITION BY {', '.join(keys)} ORDER BY send_offset)"
    cut = places.selectExpr("*", f"shiftright(send_offset, {_PIECE_BITS}) AS piece")
    stretches = cut.selectExpr("*", f"send_offset - {rank} AS stretch")
    first, last = F.min("send_offset").alias("first"), F.max("send_offset").alias("last")
    found = stretches.groupBy(*keys, "stretch").agg(first, last)
    few = found.limit(RANGES_PER_CALL_MAX + 1).select(*by, "send_id", "first", "last").toArrow()
    if few.num_rows > RANGES_PER_CALL_MAX:
        return None
    return list(zip(*map(_values, few.columns), strict=True))


def staged_places(rows: DataFrame, where: str, folder: str = "") -> list[StagedPlace]:
    """Find the places of all rows that match a user's predicate, which must not be about places.

    Args:
        rows: The payload's columns, ``_message``, and the places: ``_slice``, ``_send_id`` and
            ``_send_offset``.
        where: A SQL predicate.
        folder: What the paths of the payload's files contain.

    Raises:
        InvalidInput: The predicate cannot be evaluated, or is about what the user does not see.
        StoreCorrupt: A file of the payload is damaged.
        LimitExceeded: They are in too many ranges.
    """
    places = [name for name in rows.columns if name[:1] == "_" and name != MESSAGE_COLUMN]
    with evaluating("where", where, folder):
        # Without a name Spark would find in the rows below what is left out here.
        _ = rows.drop(*places).alias("messages").where(where).schema
        meant = rows.where(where).selectExpr(
            "_slice AS slice", "_send_id AS send_id", "_send_offset AS send_offset"
        )
        found = islands(meant, ["slice"])
    if found is None:
        raise too_many(
            "The messages that where= selects", "select fewer of them at a time", "where"
        )
    lie: dict[tuple[int, str], list[Range]] = defaultdict(list)
    for slice_, send_id, first, last in found:
        lie[int(slice_), send_id].append((first, last))
    return [(*place, ranges.normalised(part)) for place, part in sorted(lie.items())]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Convert values to Python, each distinct text once."""
    if not pa.types.is_string(column.type):
        return list(column.to_pylist())
    encoded = column.dictionary_encode().combine_chunks()
    texts = encoded.dictionary.to_pylist()
    return [None if n is None else texts[n] for n in encoded.indices.to_pylist()]


def by_send(found: Iterable[tuple[Any, ...]]) -> Mapping[str, tuple[Range, ...]]:
    """Group ranges by send, and join those that touch."""
    parts: dict[str, list[Range]] = defaultdict(list)
    for send_id, first, last in found:
        parts[send_id].append((first, last))
    return {send_id: ranges.normalised(part) for send_id, part in parts.items()}


def too_many(what: str, remedy: str, name: str | None = None) -> LimitExceeded:
    """Build the error for messages in too many ranges for one call."""
    return LimitExceeded(
        f"{what} lie in more than {RANGES_PER_CALL_MAX} ranges of adjacent rows, the maximum of "
        f"one call: {remedy}.",
        name=name,
    )
