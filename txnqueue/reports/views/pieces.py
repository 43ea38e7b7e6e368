"""The view of a queue at one moment: its ledger joined with the payload."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.core import ranges
from txnqueue.core.instants import instant
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state.erasures import Places, Rows
from txnqueue.reports.ledger import Piece
from txnqueue.reports.views.columns import Owner, content_of, shown
from txnqueue.storage.journal.sessions import new_frame
from txnqueue.storage.journal.tables import literals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SENDS_MAX = 200
"""The sends that a query names, to skip files; of more it reads the whole slices."""
_INSTANT = pa.timestamp("us", "UTC")
_TOLD: tuple[tuple[str, pa.DataType, Callable[[Piece], Any]], ...] = (
    ("slice", pa.int64(), lambda one: one.posted.body["slice"]),
    ("send_id", pa.string(), lambda one: one.posted.body["send"]),
    ("lane", pa.int32(), lambda one: one.posted.lane or 0),
    ("state", pa.string(), lambda one: one.state),
    ("delivery_count", pa.int32(), lambda one: one.delivery_count),
    ("sent_by", pa.string(), lambda one: one.posted.actor),
    ("sent_in", pa.string(), lambda one: one.posted.transaction_key),
    ("sent_at", _INSTANT, lambda one: _instant(one.posted)),
    ("claimed_by", pa.string(), lambda one: one.claimed and one.claimed.actor),
    ("claimed_in", pa.string(), lambda one: one.claimed and one.claimed.transaction_key),
    ("claimed_at", _INSTANT, lambda one: _instant(one.claimed)),
    ("settled_by", pa.string(), lambda one: one.settled and one.settled.actor),
    ("settled_in", pa.string(), lambda one: one.settled and one.settled.transaction_key),
    ("settled_at", _INSTANT, lambda one: _instant(one.settled)),
    ("reason", pa.string(), lambda one: one.reason),
)
_TOLD_OF = {
    "message_id": "concat(p.send_id, ':', send_offset)",
    **{name: f"p.{name}" for name, _, _ in _TOLD if name not in ("slice", "send_id")},
}
"""The columns with the fate of the messages of a range ``p``."""
_PLACE = (("bin", pa.int64()), ("first", pa.int64()), ("last", pa.int64()))
_SCHEMA = pa.schema([*((name, kind) for name, kind, _ in _TOLD), *_PLACE])
_SAME_SEND = "d.slice = p.slice AND d.send_id = p.send_id"


def frame(
    session: SparkSession,
    table: Callable[[str], str],
    info: QueueInfo,
    owners: Mapping[str, Owner],
    pieces: Iterable[Piece],
    *,
    erased: Rows | None = None,
    condition: str = "true",
) -> DataFrame:
    """Make a DataFrame of a queue's messages, as a ledger tells of them.

    It reads only the payload tables that the pieces name. Messages whose payload was removed,
    also later, are shown without it.

    Args:
        session: The session that it lives on.
        table: Finds the name of an owner's payload table in SQL.
        info: The queue.
        owners: The queues and exchanges that there ever were, by the ids of their payload.
        pieces: What became of the messages.
        erased: The rows that were erased: what goes in whole slices is found by a query, and
            these are not.
        condition: What must hold when a query runs; it fails otherwise.
    """
    by_owner: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_owner[piece.posted.body["payload"]].append(piece)
    frames: list[DataFrame] = []
    for payload_id, found in (by_owner or {info.payload_id: list[Piece]()}).items():
        kept, gone = _parted(found, (erased or {}).get(payload_id, {}))
        told = _relation(session, kept, condition)
        frames += _joined(told, table(payload_id), info, owners.get(payload_id, info), kept)
        if gone:
            frames.append(_without_payload(_relation(session, gone, condition), info))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _parted(found: Sequence[Piece], erased: Places) -> tuple[list[Piece], list[Piece]]:
    """Part pieces into what was not erased, and what was."""
    kept, gone = list[Piece](), list[Piece]()
    for piece in found:
        said = piece.posted.body
        lost = erased.get((int(said["slice"]), str(said["send"])), ())
        for part, into in (
            (ranges.difference(piece.ranges, lost), kept),
            (ranges.intersection(piece.ranges, lost), gone),
        ):
            if part:
                into.append(replace(piece, ranges=part))
    return kept, gone


def _joined(
    told: DataFrame, table: str, info: QueueInfo, owner: Owner, found: Sequence[Piece]
) -> tuple[DataFrame, DataFrame]:
    """Show the messages whose payload one table has, or had: those that it has, and the others.

    A row is joined with the ranges of its bin, and not with each range of its send.
    """
    from pyspark.sql import functions as F

    slices = sorted({int(one.posted.body["slice"]) for one in found})
    sends = sorted({str(one.posted.body["send"]) for one in found})
    where = f"slice IN ({', '.join(map(str, slices)) or 'NULL'})"
    if 0 < len(sends) <= _SENDS_MAX:
        where += f" AND send_id IN ({literals(sends)})"
    rows = told.sparkSession.sql(
        "SELECT slice, send_id, send_offset, headers, "
        f"struct({content_of(info, owner)}) AS content FROM {table} WHERE {where}"
    )
    in_bin = f"shiftright(d.send_offset, {_bits(found)}) = p.bin"
    same = f"{_SAME_SEND} AND {in_bin} AND d.send_offset BETWEEN p.first AND p.last"
    there = rows.alias("d").join(F.broadcast(told), F.expr(same))
    first = _first_of(found)
    known = rows.where(first or "true").select("slice", "send_id")
    known = known if first else known.distinct()
    lost = told.join(F.broadcast(known.alias("d")), F.expr(_SAME_SEND), "left_anti")
    return there.selectExpr(*shown(info, _TOLD_OF)), _without_payload(lost, info)


def _without_payload(told: DataFrame, info: QueueInfo) -> DataFrame:
    """Show each message of some ranges, without its payload."""
    each = told.selectExpr("p.*", "explode(sequence(p.first, p.last)) AS send_offset").alias("p")
    return each.selectExpr(*shown(info, _TOLD_OF, payload=False))


def _first_of(found: Sequence[Piece]) -> str | None:
    """Write the condition of a row from which it shows that a send is there; None: take any.

    Payload goes in whole slices. The first offsets of most sends are the same, so that they are
    few, and Parquet reads little else.
    """
    firsts: dict[str, int] = {}
    for piece in found:
        send, first = piece.posted.body["send"], piece.ranges[0][0]
        firsts[send] = min(first, firsts.get(send, first))
    offsets = sorted(set(firsts.values()))
    if not 0 < len(offsets) <= _SENDS_MAX:
        return None
    return f"send_offset IN ({', '.join(f'{offset}L' for offset in offsets)})"


def _bits(found: Sequence[Piece]) -> int:
    return ranges.bin_bits([piece.ranges for piece in found])


def _relation(session: SparkSession, found: Sequence[Piece], condition: str) -> DataFrame:
    """Lay pieces out as rows, cut where a bin ends."""
    bits = _bits(found)
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for piece in found:
        cells = [read(piece) for _, _, read in _TOLD]
        for place in ranges.cut(piece.ranges, bits):
            for column, cell in zip(columns.values(), (*cells, *place), strict=True):
                column.append(cell)
    told = new_frame(session, pa.table(columns, schema=_SCHEMA))
    return told.where(condition).alias("p")


def _instant(entry: Entry | None) -> datetime.datetime | None:
    if entry is None:
        return None
    return instant(entry.recorded_at_ms)
