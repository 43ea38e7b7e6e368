"""Drop a queue in two steps: it closes, and when nothing prepared names it, it is gone.

From the closing on nobody can prepare work on the queue, so that what holds the drop back can
only become less: it is read once, behind the closing, and needs no expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from txnqueue.client.append import Landed
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.errors import QueueInUse


@dataclass(frozen=True, slots=True)
class QueueDropResult:
    """How far the drop of a queue has come.

    Attributes:
        queue: The queue's name.
        dropped: Whether it is gone; if not, it is closing and takes no more work.
        held_by: The prepared transactions that hold it back: decide them by
            ``manager.commit`` or ``manager.rollback``, then drop again or ``recover``.
        messages: How many messages went, or will go, with it.
    """

    queue: str
    dropped: bool
    held_by: tuple[str, ...] = ()
    messages: int = 0


def drop(client: Client, info: QueueInfo, reason: str | None = None) -> QueueDropResult:
    """Close a queue, and drop it unless prepared transactions hold it back; repeatable.

    Raises:
        QueueInUse: Another queue's dead letters go there.
    """
    client.open()
    _close(client, info, reason)
    _fence_memory(client, info, model.QUEUE_CLOSING, reason)
    return finish(client, info)


def finish(client: Client, info: QueueInfo) -> QueueDropResult:
    """Drop a queue that is closing, unless prepared transactions hold it back."""
    held_by = holding(client.cache.transaction_entries(), info.queue_id)
    messages = 0
    for part in client.parts_of(info):
        with part.state() as state:
            messages += state.length()
    if held_by:
        return QueueDropResult(info.name, dropped=False, held_by=held_by, messages=messages)
    landed = _drop(client, info)
    gone = _fence_memory(client, info, model.QUEUE_DROPPED, None)
    dropped = [e for e in landed.entries if e.kind == model.QUEUE_DROPPED] if landed else []
    messages = gone + model.messages(dropped) if landed else 0
    return QueueDropResult(info.name, dropped=True, messages=messages)


def holding(entries: Iterable[Entry], queue_id: str) -> tuple[str, ...]:
    """Find the prepared and undecided transactions that post to a queue or settle in it.

    Args:
        entries: All entries about transactions.
        queue_id: The queue.
    """
    waiting = in_doubt(entries)
    return tuple(sorted({entry.stream for entry in waiting if queue_id in _named(entry.body)}))


def in_doubt(entries: Iterable[Entry]) -> list[Entry]:
    """Find what is prepared and undecided."""
    entries = list(entries)
    decided = {entry.attempt for entry in entries if entry.kind in model.DECISIONS}
    return [e for e in entries if e.kind == model.PREPARED and e.attempt not in decided]


def _named(body: Mapping[str, object]) -> set[str]:
    """Find the queues that a prepared attempt speaks of."""
    manifest = body["manifest"]
    assert isinstance(manifest, Mapping)
    found = {entry["queue_id"] for entry in manifest["entries"]}
    claims = body.get("claims", ())
    assert isinstance(claims, Iterable)
    return found | {entry["queue_id"] for entry in claims}


def _close(client: Client, info: QueueInfo, reason: str | None) -> None:
    """Write that the queue is closing, if it is not."""

    def plan(_lost: int) -> Plan | None:
        entries = client.store.journal.read([model.CATALOG, model.FENCE]).entries
        known = catalog.queues(entries)
        now = known.get(info.name)
        if now is None or now.queue_id != info.queue_id or now.closing:
            return None
        users = [i.name for i in known.values() if i.dead_letter_id == info.queue_id]
        if users:
            raise QueueInUse(
                f"{info.name!r} takes the dead letters of {users[0]!r}: drop that queue first. "
                "Nothing was changed.",
                name=info.name,
                used_by=users[0],
            )
        return _step(client, model.QUEUE_CLOSING, now, entries, reason)

    client.land(plan, "close queue", queue=info.name)


def _drop(client: Client, info: QueueInfo) -> Landed | None:
    """Write that the queue is dropped, with everything in it, if it is not."""

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


def _fence_memory(client: Client, info: QueueInfo, kind: str, reason: str | None) -> int:
    """Close or drop the transient part of a queue likewise; answers how many messages went."""
    part, memory = info.in_memory(), client.transient
    if not client.store.transient.used:
        return 0

    def plan(_lost: int) -> Plan | None:
        entries = memory.store.journal.read([model.FENCE]).entries
        known = [e for e in entries if e.stream == model.queue_stream(part.queue_id)]
        if any(entry.kind == kind for entry in known):
            return None
        sequence = model.newest_sequence(known) + 1
        count = memory.states.fold(part).length() if kind == model.QUEUE_DROPPED else None
        return catalog.fence(kind, part, sequence, memory.stamp(), count, reason=reason)

    landed = memory.land(plan, kind, queue=info.name)
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
