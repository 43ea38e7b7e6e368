"""Claims that are held, as the journal has them now: still ours, held longer, settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txnqueue import model, moving, planning, ranges
from txnqueue.client import Client
from txnqueue.errors import LeaseLost, TransactionMismatch
from txnqueue.ledger import Claim, QueueFold
from txnqueue.moving import departures
from txnqueue.planning import Disposition, Plan
from txnqueue.receiving import Held

Name = tuple[str, int, int]
"""A claim's name over all queues: queue id, lane, sequence."""
Said = dict[Name, list[Disposition]]
"""What was said of each claim, in the order in which it was said."""
LaneWriter = Callable[[Held, Claim, int], Sequence[model.Entry]]


def name_of(one: Held) -> Name:
    """Name a claim over all queues."""
    return (one.info.queue_id, *one.claim.name)


def settle(side: Client, involved: Sequence[Held], chosen: Said) -> None:
    """Settle claims outside a transaction: the lane entries are the settlement."""

    def plan(lost: int) -> Plan:
        stamp, moved = side.stamp(), Plan()

        def write(one: Held, held: Claim, sequence: int) -> list[model.Entry]:
            nonlocal moved
            written: list[model.Entry] = []
            for disposition in chosen[name_of(one)]:
                check_held(one, held, disposition)
                moved += departures(one, disposition, stamp)
                number = sequence + len(written)
                queue_id = one.info.queue_id
                written.append(
                    planning.settlement(
                        queue_id, held, disposition, stamp, sequence=number, owner=None
                    )
                )
            return written

        lanes = lane_plan(side, involved, write)
        posted = moving.in_order(moved.entries, involved)
        return lanes + Plan(tuple(posted), moved.conditions)

    side.land(plan, "settle", queue=involved[0].info.name)


def extend(side: Client, mine: Sequence[Held], seconds: float) -> int:
    """Hold claims longer, by one append.

    Returns:
        The new deadline, in milliseconds.
    """
    deadline_ms = 0

    def plan(lost: int) -> Plan:
        nonlocal deadline_ms
        stamp = side.stamp()
        deadline_ms = stamp.now_ms + round(seconds * 1000)
        return lane_plan(
            side,
            mine,
            lambda one, held, sequence: [
                planning.lease_extended(one.info.queue_id, held, sequence, deadline_ms, stamp)
            ],
        )

    side.land(plan, "extend lease", queue=mine[0].info.name)
    return deadline_ms


def lane_plan(side: Client, involved: Sequence[Held], write: LaneWriter) -> Plan:
    """Plan entries of the lanes that hold our claims, which must be ours still.

    Args:
        side: The view of the store that they are in.
        involved: The claims that the entries are about.
        write: Given what we hold, the claim as it stands in the journal, and the next
            sequence number of its lane, writes entries with sequence numbers from there.
    """
    entries: list[model.Entry] = []
    firsts: dict[tuple[str, int], int] = {}
    nexts: dict[tuple[str, int], int] = {}
    folds: dict[str, QueueFold] = {}
    with side.lock:
        for one in involved:
            fold, held = still_ours(side, one, folds)
            lane = (one.info.queue_id, held.lane)
            sequence = nexts.setdefault(lane, fold.lanes[held.lane].next_sequence)
            firsts.setdefault(lane, sequence)
            written = write(one, held, sequence)
            nexts[lane] += len(written)
            entries += written
    conditions = [
        condition
        for (queue_id, lane), sequence in firsts.items()
        for condition in planning.lane_conditions(queue_id, [(lane, sequence)])
    ]
    return Plan(tuple(entries), tuple(conditions))


def still_ours(client: Client, one: Held, folds: dict[str, QueueFold]) -> tuple[QueueFold, Claim]:
    """Find a claim of ours in the journal as it is now.

    Args:
        client: Reads the journal; its lock must be held as long as the answer is used.
        one: The claim.
        folds: The queues that were read for the same append; each is read once.

    Raises:
        LeaseLost: It was ended: taken over, or settled.
        TransactionMismatch: A transaction that is not decided yet settles it.
    """
    if one.info.queue_id not in folds:
        folds[one.info.queue_id] = client.fold_to_change(one.info)
    fold = folds[one.info.queue_id]
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if claim.bound is None:
        return fold, claim
    # The transaction is read first and the queue after it: what it settled is seen then.
    bound = claim.bound
    state = client.key_state(bound.key or "", archived_since=None)
    fold = folds[one.info.queue_id] = client.fold(one.info)
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if not state.is_over(bound):
        raise TransactionMismatch(
            f"Transaction {bound.key!r} is about to settle these messages: decide it first.",
            transaction_id=bound.key,
        )
    return fold, claim


def check_held(one: Held, held: Claim, disposition: Disposition) -> None:
    """Check that everything that is about to be settled is still in flight under the claim.

    Args:
        one: The claim as we got it.
        held: The claim as it stands, of the reading that says the lane's next number: what
            changes later bars the append.
        disposition: What is about to be settled.

    Raises:
        LeaseLost: Some of it was settled meanwhile.
    """
    for position_id, part in disposition.items or ():
        if ranges.difference(part, held.items.get(position_id, ())):
            raise _lost(one)


def _lost(one: Held) -> LeaseLost:
    return LeaseLost(
        f"The claim {one.claim.name} on {one.info.name!r} was lost: its lease ended and others "
        "may have the messages now, or they are settled. Nothing was changed.",
        queue=one.info.name,
        claim=one.claim.name,
    )
