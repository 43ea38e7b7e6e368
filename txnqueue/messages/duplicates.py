"""Find the duplicates among messages by their ids, from the journal or from the payload."""

from __future__ import annotations

from collections.abc import Sequence

from txnqueue.client.client import Client
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Range
from txnqueue.core.planning.claims import LeftOut
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import Position, QueueState, Segment
from txnqueue.core.state.duplicates import DIGEST_BYTES, Arrival, Duplicates, digest
from txnqueue.errors import PayloadRemoved
from txnqueue.storage.payload import Part


def left_out(client: Client, info: QueueInfo, fold: QueueState) -> LeftOut | None:
    """Make the function that returns which messages are duplicates, by the fold's present state.

    It reads the payload at most once for many messages, and not at all for small sends, whose ids
    are in the journal.

    Args:
        client: Reads the payload; its lock must be held as long as the answer is used.
        info: The queue.
        fold: The queue's fold.

    Returns:
        The function, which raises ``NotRead`` if ids must be read first; None if the queue
        delivers duplicates.
    """
    duplicates = fold.duplicates
    if duplicates is None:
        return None
    known: Duplicates = duplicates

    def of(segment: Segment) -> tuple[Range, ...]:
        position = segment.position
        if not known.looked_at(position.position_id):
            _look(client, info, known, position)
        return known.of(position.position_id)

    return of


def _look(client: Client, info: QueueInfo, known: Duplicates, position: Position) -> None:
    """Find the duplicates up to a position.

    Raises:
        NotRead: Some ids must be read from the payload first.
    """
    arrivals = known.to_look_at(position, client.runtime.now_ms())
    unread = [arrival for arrival in arrivals if arrival.ids is None]
    if unread:
        raise NotRead(lambda: _read(client, info, unread))
    known.learn(arrivals)


def _read(client: Client, info: QueueInfo, unread: Sequence[Arrival]) -> None:
    """Read the ids of some arrivals from the payload; every reader finds the same.

    Raises:
        PayloadRemoved: The payload of some of them no longer exists.
    """
    column = info.settings.message_id
    assert column is not None
    found = client.store.payload.texts(column, [_part(arrival) for arrival in unread])
    for arrival, texts in zip(unread, found, strict=True):
        ids = b"".join(map(digest, texts))
        count = len(ids) // DIGEST_BYTES
        if count != arrival.size:
            raise PayloadRemoved(
                f"Only {count} of {arrival.size} messages of {info.name!r} still have their "
                "payload, so duplicates of the others cannot be detected: keep payload for longer "
                "than the duplicate window.",
                queue=info.name,
            )
        arrival.ids = ids


def _part(arrival: Arrival) -> Part:
    position = arrival.position
    return Part(
        payload_id=position.payload_id,
        slice=position.slice,
        send_id=position.send_id,
        ranges=position.ranges,
        queue=position.queue_id,
        lane=position.lane,
        delivery_count=0,
        enqueued_at_ms=position.posted_at_ms,
        transaction_id=position.transaction_key,
        origin=position.origin,
    )
