"""Plan what becomes of claims: settled, kept, bound, released, extended (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry, Item
from txnqueue.core.planning.plan import Stamp
from txnqueue.core.planning.removals import Target
from txnqueue.core.state import AttemptOwner, Claim


@dataclass(frozen=True, slots=True)
class Disposition:
    """How some messages of a claim end: accepted, released, rejected, moved, or kept.

    Attributes:
        kind: ``accepted``, ``released``, ``rejected``, ``moved`` or ``kept``.
        items: The messages; None for whatever the claim still holds.
        reason: What the history says of it.
        counted: Whether a release counts as a delivery.
        undeliverable_here: Whether what is released is not for this consumer any more.
        failed_at_ms: When the delivery failed, if that was before it is settled.
        target: Where moved messages go.
    """

    kind: str
    items: tuple[Item, ...] | None = None
    reason: str | None = None
    counted: bool = False
    undeliverable_here: bool = False
    failed_at_ms: int | None = None
    target: Target | None = None


def settlement(
    queue_id: str,
    held: Claim,
    disposition: Disposition,
    stamp: Stamp,
    *,
    sequence: int | None,
    owner: AttemptOwner | None,
) -> Entry:
    """Write one settlement of a claim.

    Inside a transaction it is a fact in the backlog (no sequence), outside it is the next
    entry of the lane's log.
    """
    named = () if disposition.items is None else disposition.items
    items, parts, count = model.pack_items(named)
    body: dict[str, Any] = {"v": 1, "items": items, "counted": disposition.counted}
    if disposition.undeliverable_here:
        body["not_to"] = held.owner.consumer
    if disposition.failed_at_ms is not None:
        body["failed_at"] = disposition.failed_at_ms
    if disposition.target is not None:
        body["target"] = disposition.target.queue_id
    return _of_claim(
        queue_id,
        held,
        disposition.kind,
        stamp,
        sequence=sequence,
        owner=owner,
        ranges=parts,
        count=held.count if disposition.items is None else count,
        reason=disposition.reason,
        body=body,
    )


def _of_claim(
    queue_id: str,
    held: Claim,
    kind: str,
    stamp: Stamp,
    *,
    sequence: int | None = None,
    owner: AttemptOwner | None = None,
    **columns: Any,
) -> Entry:
    """Write an entry about a claim: in its lane's log with a number, else in the backlog."""
    columns |= {"claim_lane": held.lane, "claim_sequence": held.sequence, **stamp.columns()}
    columns |= owner.columns() if owner else {}
    if sequence is None:
        return Entry.in_backlog(queue_id, held.lane, kind, **columns)
    return Entry.in_lane(queue_id, held.lane, kind, sequence=sequence, **columns)


def kept(
    queue_id: str, held: Claim, count: int, deadline_ms: int, stamp: Stamp, *, owner: AttemptOwner
) -> Entry:
    """Write that a commit leaves what it did not settle of a claim with its consumer.

    It comes after the claim's settlements: from then on a lease holds what is left.
    """
    body = {"v": 1, "deadline": deadline_ms}
    return _of_claim(queue_id, held, model.KEPT, stamp, owner=owner, count=count, body=body)


def release_claims(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, reason: str, *, counted: bool = True
) -> tuple[Entry, ...]:
    """Write the ``released`` facts of a rollback: for claims acquired inside only."""
    ended = Disposition(model.RELEASED, reason=reason, counted=counted)
    return _released(queue_id, claims, stamp, lambda _: ended)


def end_claims(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, reason: str
) -> tuple[Entry, ...]:
    """Write the ``released`` facts of a tombstone: deliveries ended with the claims' leases."""
    return _released(
        queue_id,
        claims,
        stamp,
        lambda held: Disposition(
            model.RELEASED,
            reason=reason,
            counted=True,
            failed_at_ms=held.ended_at_ms(stamp.now_ms),
        ),
    )


def _released(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, how: Callable[[Claim], Disposition]
) -> tuple[Entry, ...]:
    return tuple(
        settlement(queue_id, held, how(held), stamp, sequence=None, owner=held.owner)
        for held in claims
        if isinstance(held.owner, AttemptOwner)
    )


def bind(queue_id: str, held: Claim, owner: AttemptOwner, sequence: int, stamp: Stamp) -> Entry:
    """Write that an attempt settles messages held under a lease: the lane's next entry."""
    return _of_claim(
        queue_id,
        held,
        model.BOUND,
        stamp,
        sequence=sequence,
        owner=owner,
        count=held.count,
        body={"v": 1},
    )


def lease_extended(
    queue_id: str, held: Claim, sequence: int, deadline_ms: int, stamp: Stamp
) -> Entry:
    """Write a new deadline of a claim: the lane's next entry."""
    return _of_claim(
        queue_id,
        held,
        model.LEASE_EXTENDED,
        stamp,
        sequence=sequence,
        count=held.count,
        body={"v": 1, "deadline": deadline_ms},
    )
