"""Count and read waiting messages without claiming them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from txnqueue.client.client import Client, QueuePart
from txnqueue.client.consumer import Consumer
from txnqueue.core import ranges
from txnqueue.core.settings import QueueInfo, check_flag
from txnqueue.core.state import LaneState, LeaseOwner, QueueState, Segment
from txnqueue.messages.parts import part_of
from txnqueue.messages.receive import VersionLimit, upto_of
from txnqueue.messages.selector import Selector
from txnqueue.messages.takeover import Takeovers
from txnqueue.storage.payload import Part

if TYPE_CHECKING:
    from txnqueue.storage.transient import TransientRows


def total(client: Client, info: QueueInfo, count: Callable[[QueueState], int]) -> int:
    """Add up a count over the durable and the transient part of a queue."""
    found = 0
    for part in client.parts_of(info):
        with part.state_for_read() as state:
            found += count(state)
    return found


def depth(client: Client, info: QueueInfo, *, lapsed: bool) -> int:
    """Count the messages that can be received, with ``lapsed`` also those to be taken over.

    Raises:
        InvalidInput: ``lapsed`` is neither True nor False.
    """
    check_flag("lapsed", lapsed)
    now_ms = client.runtime.now_ms()

    def available(fold: QueueState) -> int:
        return fold.available(now_ms, client.cache.newest(info).redelivery)

    found = total(client, info, available)
    rules = client.cache.newest(info).redelivery
    if not lapsed:
        return found
    for part in client.parts_of(info):
        with part.state_for_read() as fold:
            taker = LeaseOwner(part.client.consumer.id, 0)
            takeovers = Takeovers(part.client, part.info, (), fresh_only=False)
            takeover = takeovers.find(fold, taker, now_ms)
            found += sum(
                segment.size
                for lane in fold.lanes
                for segment in takeover.returning(fold, lane, now_ms)
                if segment.receivable(now_ms, rules)
            )
    return found


def left(
    client: Client,
    info: QueueInfo,
    consumer: Consumer,
    upto: VersionLimit | None,
    selector: Selector | None = None,
) -> tuple[bool, int]:
    """Return, by one reading, whether a consumer can receive something, and how much it cannot yet.

    Args:
        client: The client that would receive.
        info: The queue.
        consumer: The holder of what it would receive.
        upto: Leave out messages posted after this.
        selector: Only messages that it selects; those in flight are all counted. What is posted
            while it looks is left out: it would look for as long as somebody sends.

    Returns:
        Whether there is a message to receive, and how many messages are in flight, are for other
        consumers only, wait because their last delivery failed, or wait behind such a one.
    """
    ordered, now_ms = info.settings.ordered, client.runtime.now_ms()
    found = of_others = 0
    seen: dict[bool, int] = {}

    def count(part: QueuePart) -> tuple[int, int]:
        fold = part.client.states.for_update(part.info)
        taken = {c.lane for c in consumer.others(part.info, fold)} if ordered else ()
        rules, version = client.cache.newest(info).redelivery, upto_of(upto, part.info)
        if version is None and selector is not None:
            version = seen.setdefault(part.info.transient, fold.version)
        here, not_here = 0, fold.in_flight()
        waiting = fold.held_back(now_ms, rules, version, in_order=ordered)
        not_here += sum(s.size for s in _wanted(waiting, selector))
        ready = fold.receivable(now_ms, rules, version, taken, in_order=ordered)
        for segment in _wanted(ready, selector):
            if consumer.id in segment.not_to:
                not_here += segment.size
            else:
                here += segment.size
        return here, not_here

    for part in client.parts_of(info):
        here, not_here = part.client.informed(partial(count, part))
        found += here
        of_others += not_here
    return found > 0, of_others


def _wanted(
    by_lane: Iterable[tuple[LaneState, list[Segment]]], selector: Selector | None
) -> Iterator[Segment]:
    for lane, segments in by_lane:
        yield from segments if selector is None else selector.of_lane(lane, segments)


def first(
    client: Client, info: QueueInfo, limit: int, selector: Selector | None
) -> tuple[list[Part], list[TransientRows]]:
    """Find the first available messages, over all lanes in turn.

    Returns:
        The parts of the payload, and the objects that keep the transient ones in memory.
    """
    parts: list[Part] = []
    carried: list[TransientRows] = []
    now_ms, memory = client.runtime.now_ms(), client.store.transient.payload
    seen: dict[str, int] = {}  # messages posted while the selector is evaluated are left out

    def look(one: QueuePart, left: int) -> list[Part]:
        fold = one.client.states.for_read(one.info)
        upto = seen.setdefault(fold.queue_id, fold.version)
        ready = fold.receivable(now_ms, client.cache.newest(info).redelivery, upto)
        found = list(_first_of(ready, info.name, left, selector))
        if one.info.transient:
            carried.extend(memory.carried(part.payload_id, part.send_id) for part in found)
        return found

    for one in client.parts_of(info):
        found = one.client.informed(partial(look, one, limit))
        parts += found
        limit -= sum(ranges.count(part.ranges) for part in found)
    return parts, carried


def _first_of(
    ready: Iterable[tuple[LaneState, list[Segment]]],
    name: str,
    limit: int,
    selector: Selector | None,
) -> Iterator[Part]:
    for lane, segments in ready:
        if limit <= 0:
            return
        for segment in segments if selector is None else selector.of_lane(lane, segments):
            taken = ranges.take([(segment.first, segment.last)], limit)
            limit -= ranges.count(taken)
            count = segment.delivery_count
            yield part_of(segment.position, taken, name, lane.lane, count)
            if limit <= 0:
                return
