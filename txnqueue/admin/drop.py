"""Drop a queue or an exchange in two steps: close it, then drop it once nothing prepared names it.

After the closing no client can prepare work on it, so that the transactions that hold the drop
back can only become fewer: they are read once, after the closing, and need no expectation. The
closing of an exchange ends its bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from txnqueue.client.append import Landed
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo, check_text
from txnqueue.core.state import catalog, topology
from txnqueue.errors import QueueInUse


@dataclass(frozen=True, slots=True)
class QueueDropResult(Facts):
    """How far the drop of a queue has proceeded.

    Attributes:
        queue: The queue's name.
        dropped: Whether it is gone; if not, it is closing and takes no more work.
        held_by: The prepared transactions that hold it back: decide them with
            ``manager.commit`` or ``manager.rollback``, then drop again or ``recover``.
        messages: How many messages were, or will be, dropped with it.
        existed: Whether there was such a queue.
    """

    queue: str
    dropped: bool
    held_by: tuple[str, ...] = ()
    messages: int = 0
    existed: bool = True


@dataclass(frozen=True, slots=True)
class ExchangeDropResult(Facts):
    """How far the drop of an exchange has proceeded.

    Attributes:
        exchange: The exchange's name.
        dropped: Whether it is gone; if not, it is closing and takes no more messages.
        held_by: The prepared transactions that hold it back: decide them with
            ``manager.commit`` or ``manager.rollback``, then drop again or ``recover``.
        existed: Whether there was such an exchange.
    """

    exchange: str
    dropped: bool
    held_by: tuple[str, ...] = ()
    existed: bool = True


def drop_named(
    client: Client, name: str, reason: str | None = None, *, missing_ok: bool
) -> QueueDropResult:
    """Drop the queue that has a name now.

    Args:
        client: The client that drops.
        name: The queue's name.
        reason: Why; recorded in the history.
        missing_ok: Whether there may be no such queue.

    Raises:
        QueueNotFound: There is no such queue.
        QueueInUse: Another queue's dead letters go to it.
        InvalidInput: The reason is no text.
    """
    known = client.cache.queues()  # read anew: another client may have replaced the queue
    if missing_ok and name not in known:
        return QueueDropResult(name, dropped=True, existed=False)
    info = client.cache.newest(client.cache.queue(name))
    reason = check_text("reason", reason)
    return drop_queue(client, info, reason)


def drop_queue(client: Client, info: QueueInfo, reason: str | None = None) -> QueueDropResult:
    """Close a queue, and drop it unless prepared transactions hold it back; repeatable.

    Raises:
        QueueInUse: Another queue's dead letters go to it.
    """
    client.open()
    _close_queue(client, info, reason)
    _fence_memory(client, _queue_fence(client, info, model.QUEUE_CLOSING, reason))
    return finish_queue(client, info)


def finish_queue(client: Client, info: QueueInfo) -> QueueDropResult:
    """Drop a queue that is closing, unless prepared transactions hold it back."""
    stream = model.queue_stream(info.queue_id)
    held_by = holding(client.cache.transaction_entries(), stream)
    messages = 0
    for part in client.parts_of(info):
        with part.state() as state:
            messages += state.length()
    if held_by:
        return QueueDropResult(info.name, dropped=False, held_by=held_by, messages=messages)
    landed = _drop_closed_queue(client, info)
    gone = _fence_memory(client, _queue_fence(client, info, model.QUEUE_DROPPED, None))
    dropped = [e for e in landed.entries if e.kind == model.QUEUE_DROPPED] if landed else []
    messages = gone + model.messages(dropped) if landed else 0
    return QueueDropResult(info.name, dropped=True, messages=messages)


def drop_exchange(
    client: Client, info: ExchangeInfo, reason: str | None = None
) -> ExchangeDropResult:
    """Close an exchange, and drop it unless prepared transactions hold it back; repeatable."""
    client.open()
    _close_exchange(client, info, reason)
    return finish_exchange(client, info, reason)


def finish_exchange(
    client: Client, info: ExchangeInfo, reason: str | None = None
) -> ExchangeDropResult:
    """Drop an exchange that is closing, unless prepared transactions hold it back.

    Args:
        client: The client that drops.
        info: The exchange.
        reason: The reason for messages in memory; the store keeps that of the closing.
    """
    memory = client.transient
    _fence_memory(
        client,
        _Fence(
            model.exchange_stream(info.exchange_id),
            model.EXCHANGE_CLOSING,
            lambda _: topology.fence(model.EXCHANGE_CLOSING, info, memory.stamp(), reason),
        ),
    )
    stream = model.exchange_stream(info.exchange_id)
    held_by = holding(client.cache.transaction_entries(), stream)
    if held_by:
        return ExchangeDropResult(info.name, dropped=False, held_by=held_by)
    _drop_closed_exchange(client, info)
    return ExchangeDropResult(info.name, dropped=True)


def holding(entries: Iterable[Entry], stream: str) -> tuple[str, ...]:
    """Find the prepared and undecided transactions that work on a queue or an exchange.

    Args:
        entries: All entries about transactions.
        stream: The stream of the queue or of the exchange in the fence.
    """
    return tuple(sorted({e.stream for e in _in_doubt(entries) if stream in _named(e.body)}))


def _in_doubt(entries: Iterable[Entry]) -> list[Entry]:
    """Return the prepared entries of undecided attempts."""
    entries = list(entries)
    decided = {entry.attempt for entry in entries if entry.kind in model.DECISIONS}
    return [e for e in entries if e.kind == model.PREPARED and e.attempt not in decided]


def _named(body: Mapping[str, Any]) -> set[str]:
    """Find the queues and exchanges that a prepared attempt works on, as their streams."""
    entries = body["manifest"]["entries"]
    queues = (entry["queue_id"] for entry in (*entries, *body.get("claims", ())))
    exchanges = (model.published_to(entry["kind"], entry["body"]) for entry in entries)
    return {
        *map(model.queue_stream, filter(None, queues)),
        *map(model.exchange_stream, filter(None, exchanges)),
    }


def check_unused(info: QueueInfo, known: Iterable[QueueInfo]) -> None:
    """Check that no queue's dead letters go to a queue.

    Args:
        info: The queue.
        known: The queues of the store.

    Raises:
        QueueInUse: Another queue's dead letters go to it.
    """
    users = [one.name for one in known if one.dead_letter_id == info.queue_id]
    if users:
        raise QueueInUse(
            f"{info.name!r} takes the dead letters of {users[0]!r}: drop that queue first. "
            "Nothing was changed.",
            name=info.name,
            used_by=users[0],
        )


def _close_queue(client: Client, info: QueueInfo, reason: str | None) -> None:
    """Record that the queue is closing, unless that is recorded already."""

    def plan(_lost: int) -> Plan | None:
        entries = client.store.journal.read([model.CATALOG, model.FENCE]).entries
        known = catalog.queues(entries)
        now = known.get(info.name)
        if now is None or now.queue_id != info.queue_id or now.closing:
            return None
        check_unused(info, known.values())
        return _step(client, model.QUEUE_CLOSING, now, entries, reason)

    client.land(plan, "close queue", queue=info.name)


def _drop_closed_queue(client: Client, info: QueueInfo) -> Landed | None:
    """Record that the queue is dropped with all its messages, unless that is recorded already."""

    def plan(_lost: int) -> Plan | None:
        entries = client.store.journal.read([model.CATALOG, model.FENCE]).entries
        now = catalog.queues(entries).get(info.name)
        if now is None or now.queue_id != info.queue_id:
            return None
        closing = next(e for e in entries if e.stream == model.queue_stream(info.queue_id))
        with client.lock:
            count = client.states.fold(info).length()
        return _step(client, model.QUEUE_DROPPED, now, entries, closing.reason, count=count)

    return client.land(plan, "drop queue", queue=info.name)


def _close_exchange(client: Client, info: ExchangeInfo, reason: str | None) -> None:
    """Record that the exchange is closing and has no bindings, unless that is recorded already."""

    def plan(_lost: int) -> Plan | None:
        found = client.cache.topology()
        now = found.exchanges.get(info.name)
        if now is None or now.exchange_id != info.exchange_id or now.closing:
            return None
        bound = found.bound[now.exchange_id]
        ended = [bound[binding] for binding in found.bindings(now)]
        return topology.close(now, ended, found.sequences[now.name], client.stamp(), reason)

    client.land(plan, "close exchange")


def _drop_closed_exchange(client: Client, info: ExchangeInfo) -> None:
    """Record that the exchange is dropped, unless that is recorded already."""

    def plan(_lost: int) -> Plan | None:
        entries = client.cache.catalog_entries()
        found = topology.Topology.of(entries)
        now = found.exchanges.get(info.name)
        if now is None or now.exchange_id != info.exchange_id:
            return None
        mine = (e for e in entries if e.body.get("exchange") == info.exchange_id)
        closing = next(e for e in mine if e.kind == model.EXCHANGE_CLOSING)
        return topology.drop(now, found.sequences[info.name], client.stamp(), closing.reason)

    client.land(plan, "drop exchange")


@dataclass(frozen=True, slots=True)
class _Fence:
    """What a step of a drop writes to the journal in memory.

    Attributes:
        stream: The queue's or exchange's stream in the fence.
        kind: The step.
        plan: Plans the entry, given its number in the stream.
    """

    stream: str
    kind: str
    plan: Callable[[int], Plan]


def _queue_fence(client: Client, info: QueueInfo, kind: str, reason: str | None) -> _Fence:
    part, memory = info.in_memory(), client.transient

    def plan(sequence: int) -> Plan:
        count = memory.states.fold(part).length() if kind == model.QUEUE_DROPPED else None
        return catalog.fence(kind, part, sequence, memory.stamp(), count, reason=reason)

    return _Fence(model.queue_stream(part.queue_id), kind, plan)


def _fence_memory(client: Client, fence: _Fence) -> int:
    """Take the same step in memory, unless it was taken; return how many messages were dropped.

    Also if nothing was ever there: another manager may be about to send its first message.
    """
    memory = client.transient

    def plan(_lost: int) -> Plan | None:
        entries = memory.store.journal.read([model.FENCE]).entries
        known = [e for e in entries if e.stream == fence.stream]
        if any(entry.kind == fence.kind for entry in known):
            return None
        return fence.plan(model.newest_sequence(known) + 1)

    landed = memory.land(plan, fence.kind)
    return model.messages(landed.entries) if landed is not None else 0


def _step(
    client: Client,
    kind: str,
    info: QueueInfo,
    entries: Sequence[Entry],
    reason: str | None,
    *,
    count: int | None = None,
) -> Plan:
    """Plan one step: an entry for clients at work on the queue, one for those that look it up."""
    stream = model.queue_stream(info.queue_id)
    sequence = model.newest_sequence(e for e in entries if e.stream == stream) + 1
    newest = replace(info, sequence=catalog.next_sequence(entries, info.name))
    stamp = client.stamp()
    fenced = catalog.fence(kind, info, sequence, stamp, count, reason=reason)
    return fenced + catalog.write(kind, newest, stamp, reason)
