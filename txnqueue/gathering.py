"""Receive by one call what is durable and what is in memory.

Each kind is claimed on its own, in the order of its own part of the queue; between the two
there is no order, as there is none between lanes. They take turns in being first, so that
neither keeps the other waiting for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from txnqueue import model, planning
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.planning import Disposition, Plan
from txnqueue.receiving import Held, Receiver
from txnqueue.transient_work import resolve

if TYPE_CHECKING:
    from txnqueue.transaction import Transaction

Upto = tuple[int, int]
"""A version of the journal, and one of what is in memory."""
MakeReceiver = Callable[[Client, QueueInfo, int, bool], Receiver]
"""Makes the planner of a claim: of which part of the queue, how many, only fresh ones?"""


def now(client: Client) -> Upto:
    """Say how far things have come by now."""
    store = client.store
    return store.journal.version(), store.transient.journal.known_version()


def upto_of(upto: Upto | None, part: QueueInfo) -> int | None:
    """Pick the version that concerns a part of a queue."""
    return upto[int(part.transient)] if upto is not None else None


def gather(
    client: Client,
    info: QueueInfo,
    limit: int,
    transaction: Transaction | None,
    make: MakeReceiver,
    before: Sequence[Held] = (),
) -> list[Held]:
    """Claim messages of a queue, of both kinds.

    What came back from a failure is tried alone, and takes nothing of the other kind with it.

    Args:
        client: Who claims.
        info: The queue.
        limit: At most so many messages.
        transaction: What acquires them; None for a lease.
        make: Makes the planner of each claim.
        before: What a claim of the durable part has brought already, and counts.
    """
    held = list(before)
    parts = client.parts_of(info)
    if transaction is not None and not transaction.takes_transient:
        parts = [info]
    if len(parts) > 1:
        resolve(client, abort=() if transaction is None else (transaction.id,))
    if before:
        parts = parts[1:]
    elif client.transient.turn(f"{info.queue_id}/kinds") % 2 == 0:
        parts.reverse()
    for part in parts:
        left = limit - sum(one.claim.count for one in held)
        if left <= 0 or any(one.claim.former for one in held):
            break
        try:
            held += _claimed(client.of(part), make(client.of(part), part, left, bool(held)), info)
        except BaseException:
            for one in held:
                if one.info.transient:
                    _give_back(client.transient, one)
            raise
    return held


def _claimed(side: Client, receiver: Receiver, info: QueueInfo) -> list[Held]:
    transaction = receiver.transaction
    while True:
        landed = side.land(
            receiver.plan,
            "claim",
            transaction_id=transaction.id if transaction else None,
            queue=info.name,
        )
        if landed is None:
            return []
        held = receiver.held(landed.entries)
        if held or all(entry.kind != model.DUPLICATE for entry in landed.entries):
            return held
        # It found duplicates and nothing else: there may be more behind them.


def _give_back(memory: Client, one: Held) -> None:
    """Release messages in memory that nobody gets to see, because the rest of a claim failed."""

    def plan(lost: int) -> Plan | None:
        claim = memory.fold(one.info).claim(*one.claim.name)
        if claim is None:
            return None
        sequence = memory.fold(one.info).lanes[claim.lane].next_sequence
        released = Disposition(model.RELEASED)
        queue_id = one.info.queue_id
        entry = planning.settlement(
            queue_id, claim, released, memory.stamp(), sequence=sequence, owner=None
        )
        return Plan((entry,), planning.lane_conditions(queue_id, [(claim.lane, sequence)]))

    memory.land(plan, "settle", queue=one.info.name)
