"""Finish what dead clients left behind; anybody may, and repeating is a no-op."""

from __future__ import annotations

from dataclasses import dataclass

from txnqueue import model, planning, sealing
from txnqueue.applying import Applier, WaitingChange
from txnqueue.client import Client
from txnqueue.ledger import Claim, KeyState, Owner
from txnqueue.planning import Plan
from txnqueue.receiving import may_end


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery found and did.

    Attributes:
        aborted: Transactions whose leases were over, aborted now.
        released: How many messages that gave back.
        prepared: Transactions that are prepared and wait for ``commit`` or ``rollback``.
        waiting: Table changes that are decided and cannot be applied, with what to do.
    """

    aborted: tuple[str, ...]
    released: int
    prepared: tuple[str, ...]
    waiting: tuple[WaitingChange, ...] = ()


def recover(client: Client) -> Recovery:
    """Abort transactions whose leases are over, apply what was decided, list what waits."""
    waiting = prepared(client)
    left: dict[str, tuple[Owner, list[tuple[str, Claim]]]] = {}
    with client.lock:
        for info in client.queues().values():
            for claim in client.fold(info).claims():
                if claim.owner.is_transaction:
                    found = left.setdefault(claim.owner.attempt or "", (claim.owner, []))
                    found[1].append((info.queue_id, claim))
    now_ms = client.runtime.now_ms()
    dead = {
        attempt: (owner, claims)
        for attempt, (owner, claims) in left.items()
        if all(claim.deadline_ms <= now_ms for _, claim in claims)
    }
    states = client.key_states(owner.key or "" for owner, _ in dead.values())
    aborted: list[str] = []
    released = 0
    for owner, claims in dead.values():
        state = states[owner.key or ""]
        if state.decided(owner.attempt or "") or not may_end(claims[0][1], states):
            continue
        if _abort(client, owner, claims):
            aborted.append(owner.key or "")
            released += sum(claim.count for _, claim in claims)
    held_up = Applier(client).apply()
    client.confirm()
    return Recovery(tuple(aborted), released, waiting, tuple(held_up))


def prepared(client: Client) -> tuple[str, ...]:
    """List the transactions that are prepared and undecided."""
    shards = [f"transaction/{n}" for n in range(model.TRANSACTION_SHARDS)]
    entries = client.store.journal.read(shards).entries
    keys = sorted({e.stream for e in entries if e.kind == model.PREPARED})
    return tuple(key for key in keys if KeyState.of(key, entries).in_doubt is not None)


def _abort(client: Client, owner: Owner, claims: list[tuple[str, Claim]]) -> bool:
    """Write the tombstone of an attempt; false if it was decided meanwhile."""
    key, attempt = owner.key or "", owner.attempt or ""

    def plan(lost: int) -> Plan | None:
        state = client.key_states([key])[key]
        if state.decided(attempt) or attempt in state.prepared:
            return None
        stamp = client.stamp()
        released = [
            entry
            for queue_id, claim in claims
            for entry in planning.release_claims(queue_id, [claim], stamp, "lease over")
        ]
        return sealing.rollback(owner, released, stamp, "lease over")

    return client.land(plan, "recover", transaction_id=key) is not None
