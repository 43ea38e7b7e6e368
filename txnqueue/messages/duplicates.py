"""Find the duplicates among messages by their ids, from the journal or from the payload."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from txnqueue.client.client import Client
from txnqueue.core import ranges
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Range
from txnqueue.core.planning.claims import LeftOut
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import Position, QueueState, Segment, erasures
from txnqueue.core.state.duplicates import DIGEST_BYTES, NO_ID, Arrival, Duplicates, digest
from txnqueue.core.state.erasures import Rows
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
    """Read the ids of some arrivals from the payload.

    The window needs no erased id, except for a send that lands more than an hour after its stamp.
    Such a send is compared with the ids that are left: a duplicate may be delivered, but the queue
    goes on. A client that read the ids before they were erased may decide otherwise about it; the
    decision that lands first is in the lane's log.

    Raises:
        PayloadRemoved: The payload of some of them no longer exists, and was not erased.
    """
    with suppress(PayloadRemoved):
        _read_all_but(client, info, unread, {})
        return
    # Looked up only now, because it takes a query. A row is recorded before it is deleted.
    erased = erasures.rows_of(erasures.erasures(client.cache.catalog_entries()))
    _read_all_but(client, info, [one for one in unread if one.ids is None], erased)


def _read_all_but(client: Client, info: QueueInfo, unread: Sequence[Arrival], erased: Rows) -> None:
    """Read the ids of some arrivals; those of erased rows are ``NO_ID``.

    Raises:
        PayloadRemoved: The payload of others no longer exists.
    """
    column = info.settings.message_id
    assert column is not None
    parts = [_left(_part(arrival), erased) for arrival in unread]
    found = iter(client.store.payload.texts(column, [part for part in parts if part.ranges]))
    for arrival, part in zip(unread, parts, strict=True):
        ids = b"".join(map(digest, next(found) if part.ranges else ()))
        count = len(ids) // DIGEST_BYTES
        if count != ranges.count(part.ranges):
            raise PayloadRemoved(
                f"Only {count} of {arrival.size} messages of {info.name!r} still have their "
                "payload, so duplicates of the others cannot be detected: keep payload for longer "
                "than the duplicate window.",
                queue=info.name,
            )
        arrival.ids = _spread(ids, part.ranges, arrival.position.ranges)


def _left(part: Part, erased: Rows) -> Part:
    gone = erased.get(part.payload_id, {}).get((part.slice, part.send_id), ())
    return replace(part, ranges=ranges.difference(part.ranges, gone))


def _spread(ids: bytes, left: tuple[Range, ...], posted: tuple[Range, ...]) -> bytes:
    """Put the ids of the messages that are left at their places among those that were posted."""
    gone = dict.fromkeys(ranges.difference(posted, left))
    octets = io.BytesIO(ids)
    return b"".join(
        NO_ID * ranges.count([span])
        if span in gone
        else octets.read(ranges.count([span]) * DIGEST_BYTES)
        for span in sorted((*left, *gone))
    )


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
