"""Message ids and grouping keys, read from one column without the rest of the rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import RANGES_PER_CALL_MAX
from txnqueue.errors import LimitExceeded, PayloadRemoved
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload import Part
from txnqueue.storage.payload.islands import too_many
from txnqueue.storage.payload.queries import (
    in_piece,
    literal_places,
    piece_bits,
    places_to_join,
    spans,
)
from txnqueue.storage.payload.routes import crc_lane

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Lanes = dict[int, tuple[Range, ...]]
"""Ranges of send offsets by lane."""
_VALUES = 10_000
"""The number of values that are Python objects at a time."""


def text_query(table: str, column: str | None, parts: Sequence[Part]) -> str:
    """Return the query for a column as text, with the places of its values; None: all null."""
    value = "NULL" if column is None else f"p.{identifier(column)}"
    return (
        f"SELECT p.send_id, p.send_offset, CAST({value} AS string) AS text "
        f"FROM {table} p WHERE {literal_places(parts)}"
    )


def lane_frame(
    session: SparkSession, table: str, column: str | None, lanes: int, parts: Sequence[Part]
) -> DataFrame:
    """Find the lanes of messages by a column; without one, their key is null."""
    key = "CAST(NULL AS string)" if column is None else f"p.{identifier(column)}"
    bits = piece_bits(parts)
    frame = session.sql(
        f"SELECT /*+ BROADCAST(r) */ p.send_id, p.send_offset, {key} AS key FROM {table} p "
        f"JOIN {spans(parts, bits)} r ON {in_piece(bits)} WHERE {places_to_join(parts)}"
    )
    return frame.select("send_id", "send_offset", crc_lane("key", lanes).alias("lane"))


class Texts:
    """The values of a column by send and offset, which become objects one by one."""

    def __init__(self, rows: pa.Table) -> None:
        """Sort the rows of a query, which stay in Arrow."""
        sends = pc.dictionary_encode(rows.column("send_id")).combine_chunks()
        places = pa.table({"send": sends.indices, "offset": rows.column("send_offset")})
        order = pc.sort_indices(places, [("send", "ascending"), ("offset", "ascending")])
        # As octets: a DataFrame's strings need not be UTF-8.
        self._values = rows.column("text").cast(pa.large_binary()).combine_chunks().take(order)
        offsets = places.column("offset").combine_chunks().take(order)
        self._offsets = memoryview(offsets.buffers()[1] or b"").cast("q")
        self._sends: dict[str, tuple[int, int]] = {}
        counts = pc.value_counts(sends.indices).to_pylist()
        start = 0
        for one in sorted(counts, key=lambda one: one["values"]):
            end = start + one["counts"]
            self._sends[sends.dictionary[one["values"]].as_py()] = (start, end)
            start = end

    def of(self, part: Part) -> Iterator[str | None]:
        """Yield the values of some messages, in the order of their ranges."""
        low, high = self._sends.get(part.send_id, (0, 0))
        for first, last in part.ranges:
            start = bisect_left(self._offsets, first, low, high)
            end = bisect_right(self._offsets, last, start, high)
            for at in range(start, end, _VALUES):
                yield from map(_decoded, self._values.slice(at, min(_VALUES, end - at)).to_pylist())


def _decoded(octets: bytes | None) -> str | None:
    return None if octets is None else octets.decode(errors="surrogateescape")


def by_part(lie: Iterable[tuple[int, str, int, int]], parts: Sequence[Part]) -> list[Lanes]:
    """Group ranges (lane, send and offsets of each) by part and lane."""
    found: dict[str, dict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for lane, send_id, first, last in lie:
        found[send_id][lane].append((first, last))
    known = {
        send_id: {lane: ranges.normalised(part) for lane, part in by_lane.items()}
        for send_id, by_lane in found.items()
    }
    return [_cut(known.get(part.send_id, {}), part) for part in parts]


def _cut(by_lane: Mapping[int, tuple[Range, ...]], part: Part) -> Lanes:
    cut = {
        lane: tuple(one for span in part.ranges for one in ranges.within(there, *span))
        for lane, there in by_lane.items()
    }
    return {lane: mine for lane, mine in cut.items() if mine}


def torn() -> LimitExceeded:
    """Build the error for messages that are moved by key and are in too many ranges."""
    return too_many(
        "The messages of each lane that a move to a grouped queue makes",
        "move them in parts (limit=), or receive them and send them to the other queue, which "
        "puts the rows of each lane together",
    )


def check_lanes(parts: Sequence[Part], found: list[Lanes]) -> list[Lanes]:
    """Check that all messages of some parts have a lane, in few enough ranges.

    Raises:
        PayloadRemoved: Some of them no longer exist.
        LimitExceeded: They are in too many ranges.
    """
    there = [one for by_lane in found for one in by_lane.values()]
    if sum(map(len, there)) > RANGES_PER_CALL_MAX:
        raise torn()
    if sum(map(ranges.count, there)) < sum(ranges.count(part.ranges) for part in parts):
        raise PayloadRemoved()
    return found
