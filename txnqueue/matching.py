"""Read which messages a caller means: a DataFrame, Arrow, messages or message ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from txnqueue.errors import InvalidInput
from txnqueue.payload.rows import MESSAGE_COLUMN

Reasons = dict[str | None, dict[str, list[int]]]
"""Send offsets by reason and send id."""


def offsets_of(matching: object, reason_column: str | None) -> Reasons:
    """Read which messages a caller means, by reason and send."""
    if hasattr(matching, "select") and hasattr(matching, "toArrow"):  # a Spark DataFrame
        from pyspark.sql import functions as F

        chosen = [F.col(f"{MESSAGE_COLUMN}.id").alias("id")]
        if reason_column:
            chosen.append(F.col(reason_column).cast("string").alias("reason"))
        rows = matching.select(*chosen).toArrow().to_pylist()
    elif hasattr(matching, "to_pylist"):  # Arrow
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
        if not send_id or not offset.isdigit():
            raise InvalidInput(f"{row['id']!r} is no message id: take it from _message.id.")
        found.setdefault(row.get("reason"), {}).setdefault(send_id, []).append(int(offset))
    return {
        reason: {send_id: sorted(set(offsets)) for send_id, offsets in by_send.items()}
        for reason, by_send in found.items()
    }


def _row(row: object, reason_column: str | None) -> dict[str, Any]:
    if isinstance(row, str):
        return {"id": row}
    if isinstance(row, Mapping) and MESSAGE_COLUMN in row:
        why = row.get(reason_column) if reason_column else None
        return {"id": row[MESSAGE_COLUMN]["id"], "reason": why}
    raise InvalidInput(f"{row!r} is neither a message id nor a message with {MESSAGE_COLUMN}.")
