"""The metadata of a message beside its payload, in Python and Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from txnqueue.core.instants import instant
from txnqueue.storage.payload import CORRELATION_ID, REPLY_TO, Part

_ORIGIN = pa.struct(
    [
        ("queue", pa.string()),
        ("reason", pa.string()),
        ("delivery_count", pa.int32()),
        ("error", pa.string()),
    ]
)
MESSAGE_INFO = pa.struct(
    [
        ("id", pa.string()),
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("lane", pa.int32()),
        ("delivery_count", pa.int32()),
        ("redelivered", pa.bool_()),
        ("enqueued_at", pa.timestamp("us", "UTC")),
        ("transaction_id", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("correlation_id", pa.string()),
        ("reply_to", pa.string()),
        ("origin", _ORIGIN),
        ("send_id", pa.string()),
        ("send_offset", pa.int64()),
    ]
)
"""The type of the ``_message`` column."""


def message_info(
    part: Part,
    offset: int,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Return the ``_message`` column of one message."""
    enqueued = instant(part.enqueued_at_ms)
    origin = part.origin and {
        name: part.origin.get(name) for name in ("queue", "reason", "delivery_count", "error")
    }
    return {
        "id": f"{part.send_id}:{offset}",
        "message_id": f"{part.send_id}:{offset}" if name is None else name,
        "queue": part.queue,
        "lane": part.lane,
        "delivery_count": part.delivery_count,
        "redelivered": part.delivery_count > 0,
        "enqueued_at": enqueued,
        "transaction_id": part.transaction_id,
        "headers": headers,
        "correlation_id": (headers or {}).get(CORRELATION_ID),
        "reply_to": (headers or {}).get(REPLY_TO),
        "origin": origin,
        "send_id": part.send_id,
        "send_offset": offset,
    }
