"""What the views must show, by the fold; and how tests look at them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from txnqueue.core import model
from txnqueue.core.state import QueueState
from txnqueue.reports.ledger import Piece

FAR_FUTURE_MS = 4_000_000_000_000
FOLDED = (
    "message_id", "lane", "state", "delivery_count", "sent_by", "sent_in",
    "claimed_by", "claimed_in", "unix_millis(claimed_at)",
    "settled_by", "settled_in", "unix_millis(settled_at)", "reason",
)  # fmt: skip
STATES = {
    "available", "delayed", "expired", "in_flight", "purge_pending",
    "accepted", "rejected", "dead_lettered", "moved", "purged",
}  # fmt: skip


def quick_session(spark: Any) -> Any:
    """Make the session of a user who does not let Spark compile long queries on small data."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session


def replay(info: Any, entries: Any, at_ms: int) -> Any:
    """Fold one entry after the other and note what each of them did to every message."""
    fold = QueueState(info.queue_id, info.settings.lanes)
    shards = set(fold.shards)
    posted, claimed, now, gone, purged = (
        dict[Any, Any](),
        dict[Any, Any](),
        dict[Any, Any](),
        dict[Any, Any](),
        dict[Any, Any](),
    )
    for entry in sorted((e for e in entries if e.shard in shards), key=lambda e: e.place):
        if entry.kind == model.POSTED:
            posted[entry.entry_id] = entry
        if entry.kind == model.CLAIMED:
            claimed[entry.lane, entry.sequence] = entry
        before = now
        fold.apply(entry)
        now = _standing_and_held(fold, lambda segment: segment.waits(at_ms, info.redelivery))
        for key in before.keys() - now.keys():
            state, count, claim = before[key]
            counts = claim is not None and claimed[claim].body.get("counts", True)
            retired = entry.is_settlement and entry.kind != model.RELEASED
            if entry.kind == model.QUEUE_DROPPED:
                gone[key] = ("dropped", count, claim, entry)
            elif state == "purge_pending" and not retired:  # it would have come back
                failed = entry.kind != model.RELEASED or entry.body["counted"]
                settled = replace(entry, reason=purged[key])
                gone[key] = (model.PURGED, count + (counts and failed), claim, settled)
            elif entry.kind == model.PURGE_PENDING:
                gone[key] = (model.PURGED, count, None, entry)
            else:
                lost = entry.is_removal and state == "in_flight" and counts
                gone[key] = (entry.kind, count + lost, None if entry.is_removal else claim, entry)
        if entry.kind == model.PURGE_PENDING:
            for key, (state, _, _) in now.items():
                if state == "purge_pending":
                    purged.setdefault(key, entry.reason)
    rows = []
    for key, (state, count, claim) in now.items():
        if state == "standing":
            state = _standing(posted[key[0]].body, at_ms)
        elif state == "waiting":
            state = "delayed"
        rows.append(_row(key, posted, claimed, state, count, claim=claim, settled=None))
    for key, (state, count, claim, entry) in gone.items():
        rows.append(_row(key, posted, claimed, state, count, claim=claim, settled=entry))
    return Counter(rows), fold


def _standing_and_held(fold: Any, waits: Any) -> Any:
    found: dict[Any, Any] = {}
    for lane in fold.lanes.values():
        for segment in lane.available:
            for offset in range(segment.first, segment.last + 1):
                key = (segment.position.position_id, offset)
                assert key not in found
                state = "waiting" if waits(segment) else "standing"
                found[key] = (state, segment.delivery_count, None)
        for claim in lane.claims.values():
            for position_id, parts in claim.items.items():
                for first, last in parts:
                    for offset in range(first, last + 1):
                        assert (position_id, offset) not in found
                        pending = claim.purge_pending.get(position_id, ())
                        held = any(low <= offset <= high for low, high in pending)
                        found[position_id, offset] = (
                            "purge_pending" if held else "in_flight",
                            claim.delivery_count, (lane.lane, claim.sequence),
                        )  # fmt: skip
    return found


def _standing(body: Any, at_ms: int) -> Any:
    if body.get("expires_at") is not None and body["expires_at"] <= at_ms:
        return "expired"
    return "delayed" if (body.get("available_at") or 0) > at_ms else "available"


def _row(
    key: str, posted: Any, claimed: Any, state: Any, count: int, *, claim: Any, settled: Any
) -> Any:
    position, offset = posted[key[0]], key[1]
    taken = claimed[claim] if claim else None
    return (
        f"{position.body['send']}:{offset}", position.lane, state, count,
        position.actor, position.transaction_key,
        taken and taken.actor, taken and taken.transaction_key, taken and taken.recorded_at_ms,
        settled and settled.actor, settled and settled.transaction_key,
        settled and settled.recorded_at_ms,
        (settled and settled.reason) or position.reason,
    )  # fmt: skip


def told_of(piece: Piece, offset: int) -> Any:
    """Write what a ledger tells of one message, like the rows of ``replay``."""
    posted, taken, settled = piece.posted, piece.claimed, piece.settled
    return (
        f"{posted.body['send']}:{offset}", posted.lane, piece.state, piece.delivery_count,
        posted.actor, posted.transaction_key,
        taken and taken.actor, taken and taken.transaction_key, taken and taken.recorded_at_ms,
        settled and settled.actor, settled and settled.transaction_key,
        settled and settled.recorded_at_ms, piece.reason,
    )  # fmt: skip


def plain_types(frame: Any) -> list[Any]:
    """List the columns and their types, whatever may be null."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


def shown(session: Any, view: Any) -> Counter[Any]:
    return Counter(map(tuple, session.table(view).selectExpr(*FOLDED).collect()))


def per_state(rows: Any) -> Any:
    counts: Counter[Any] = Counter()
    for row, number in rows.items():
        counts[row[2]] += number
    return counts
