"""Follow one message through a store's entries (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from txnqueue import catalog, model, ranges
from txnqueue.config import QueueInfo
from txnqueue.ledger import Position
from txnqueue.model import Entry, PositionId
from txnqueue.snapshot import author_of
from txnqueue.topology import Topology

Claims = set[tuple[str | None, int | None, int | None]]


def steps_of(message: tuple[str, int], entries: list[Entry]) -> list[dict[str, Any]]:
    """Follow one message, in commit order.

    Args:
        message: Its send id and offset.
        entries: All entries, in commit order.

    Returns:
        One row per step; ``History.trace`` tells their columns.
    """
    send_id, offset = message
    decisions = {e.attempt: e.kind for e in entries if e.kind in model.DECISIONS}
    infos = catalog.every_queue(entries)
    exchanges: dict[str, str | None] = {
        info.exchange_id: info.name or None for info in Topology.of(entries).exchanges.values()
    }
    positions: dict[PositionId, Position] = {}
    claims: Claims = set()
    standing: set[str | None] = set()
    changed = [entry for entry in entries if entry.kind == model.CHANGE_DECIDED]
    found: list[tuple[str, Entry]] = []
    for entry in entries:
        step = _step(entry, send_id, offset, positions, claims, standing)
        if step is not None:
            found.append((step, entry))
        if step == model.ACCEPTED and entry.attempt is not None:
            found += [("changed", one) for one in changed if one.attempt == entry.attempt]
    return [
        {
            "message_id": f"{send_id}:{offset}",
            "step": step,
            "queue": infos[entry.queue_id].name if entry.queue_id in infos else None,
            "lane": entry.lane,
            "target": _target(entry, step, infos),
            "exchange": exchanges.get(entry.body.get("exchange", "")),
            "rows": entry.count if step == "changed" else None,
            "transaction_id": entry.transaction_key,
            "attempt": entry.attempt,
            "decision": decisions.get(entry.attempt) if entry.attempt else None,
            **author_of(entry),
            "commit_seq": entry.commit_seq,
        }
        for step, entry in found
    ]


def _target(entry: Entry, step: str, infos: Mapping[str, QueueInfo]) -> str | None:
    """Say where a step led: the queue that a message was moved to, or the table it changed."""
    if step == "changed":
        table = str(entry.body["change"]["table"])
        lineage = f" where _transaction_id = '{entry.transaction_key}'"
        return table + (lineage if entry.body["change"]["lineage"] else "")
    target_id = entry.body.get("target")
    here = infos.get(entry.queue_id or "")
    if step == model.REJECTED and here is not None:
        target_id = here.dead_letter_id
    target = infos.get(target_id or "")
    return target.name if target else None


def _step(
    entry: Entry,
    send_id: str,
    offset: int,
    positions: dict[PositionId, Position],
    claims: Claims,
    standing: set[str | None],
) -> str | None:
    """Say what an entry did to a message; None if it is about others.

    ``standing`` keeps the queues in which the message stands.
    """
    if entry.kind == model.QUEUE_DROPPED:
        gone = entry.shard == model.FENCE and entry.queue_id in standing
        return entry.kind if gone else None
    if entry.kind == model.POSTED:
        here = entry.body["send"] == send_id and _holds(entry.ranges, offset)
        if not here:
            return None
        positions[entry.entry_id] = Position.of(entry)
        standing.add(entry.queue_id)
        if model.was_moved(entry.body.get("origin")):
            return "moved"
        return "published" if "exchange" in entry.body else "sent"
    if entry.kind == model.CLAIMED or entry.kind in model.REMOVALS:
        if not _names(entry, positions, offset):
            return None
        if entry.kind == model.CLAIMED:
            claims.add((entry.queue_id, entry.lane, entry.sequence))
        else:
            standing.discard(entry.queue_id)
        return entry.kind
    if entry.claim_sequence is not None:
        claim = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        whole = not entry.body.get("items")
        if claim in claims and (whole or _names(entry, positions, offset)):
            if entry.kind in (model.ACCEPTED, model.REJECTED):
                standing.discard(entry.queue_id)
            return entry.kind
    return None


def _names(entry: Entry, positions: dict[PositionId, Position], offset: int) -> bool:
    return any(
        position_id in positions and _holds(part, offset)
        for position_id, part in model.unpack_items(entry)
    )


def _holds(part: Iterable[model.Range], offset: int) -> bool:
    return bool(ranges.intersection(tuple(part), ((offset, offset),)))
