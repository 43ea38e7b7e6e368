"""Read which messages a caller means: a DataFrame, Arrow, messages or message ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from txnqueue.config import check_text
from txnqueue.errors import InvalidInput
from txnqueue.journal.tables import identifier
from txnqueue.payload import evaluating
from txnqueue.payload.frames import is_frame
from txnqueue.payload.schemas import MESSAGE_COLUMN
from txnqueue.types import Matching

Reasons = dict[str | None, dict[str, list[int]]]
"""Send offsets by reason and send id."""


def offsets_of(matching: Matching, reason_column: str | None) -> Reasons:
    """Read which messages a caller means, by reason and send."""
    if is_frame(matching):
        with evaluating("matching", matching):
            rows = _rows_of(matching, reason_column)
    elif isinstance(matching, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        rows = [_row(row, reason_column) for row in matching.to_pylist()]
    elif isinstance(matching, Iterable) and not isinstance(matching, (str, bytes)):
        rows = [_row(row, reason_column) for row in matching]
    else:
        raise InvalidInput(
            f"matching={type(matching).__name__}: give a DataFrame with {MESSAGE_COLUMN}, "
            "messages, or message ids."
        )
    found: Reasons = {}
    seen: set[str] = set()
    for row in rows:
        if row["id"] in seen:  # named twice: the first reason stands
            continue
        seen.add(row["id"])
        send_id, _, offset = str(row["id"]).rpartition(":")
        if not send_id or not offset.isdecimal():
            raise InvalidInput(f"{row['id']!r} is no message id: take it from _message.id.")
        found.setdefault(row.get("reason"), {}).setdefault(send_id, []).append(int(offset))
    return {
        reason: {send_id: sorted(set(offsets)) for send_id, offsets in by_send.items()}
        for reason, by_send in found.items()
    }


def _rows_of(frame: Any, reason_column: str | None) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    chosen = [F.col(f"{MESSAGE_COLUMN}.id").alias("id")]
    if reason_column is not None:
        chosen.append(F.col(identifier(reason_column)).cast("string").alias("reason"))
    rows: list[dict[str, Any]] = frame.select(*chosen).toArrow().to_pylist()
    return rows


def _row(row: object, reason_column: str | None) -> dict[str, Any]:
    if isinstance(row, str) and reason_column is None:
        return {"id": row}
    message = row.get(MESSAGE_COLUMN) if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(message, Mapping) and "id" in message:
        if reason_column is not None and reason_column not in row:
            raise InvalidInput(
                f"reason_column={reason_column!r} is no column of matching=.", name="reason_column"
            )
        why = None if reason_column is None else row[reason_column]
        said = None if why is None else check_text("reason_column", str(why))
        return {"id": message["id"], "reason": said}
    if isinstance(row, str):
        raise InvalidInput("reason_column= names a column of matching=, and ids have none.")
    raise InvalidInput(f"{row!r} is neither a message id nor a message with {MESSAGE_COLUMN}.")
