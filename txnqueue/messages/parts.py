"""The payload parts of positions."""

from __future__ import annotations

from txnqueue.core.model import Range
from txnqueue.core.state import Position
from txnqueue.storage.payload import Part


def part_of(
    position: Position, part: tuple[Range, ...], queue: str, lane: int, delivery_count: int
) -> Part:
    """Return the payload part of some messages of a position, with their common properties."""
    return Part(
        payload_id=position.payload_id,
        slice=position.slice,
        send_id=position.send_id,
        ranges=part,
        queue=queue,
        lane=lane,
        delivery_count=delivery_count,
        enqueued_at_ms=position.posted_at_ms,
        transaction_id=position.transaction_key,
        origin=position.origin,
        message_id=position.message_id,
    )
