"""Make the entries about claims: settled, kept, bound, released or extended (pure)."""

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
    """How the delivery of some messages of a claim ends, or that they are kept.

    Attributes:
        kind: ``accepted``, ``released``, ``rejected``, ``moved`` or ``kept``.
        items: The messages; None for all that the claim still holds.
        reason: The reason recorded in the history.
        counted: Whether a release counts as a delivery.
        undeliverable_here: Whether this consumer never gets the released messages again.
        failed_at_ms: When the delivery failed, if that was before the settlement.
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
    """Make one settlement of a claim.

    Inside a transaction it is an entry of the backlog (no sequence), outside the next entry of
    the lane's log.
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
    """Make an entry about a claim: with a sequence in its lane's log, without in the backlog."""
    columns |= {"claim_lane": held.lane, "claim_sequence": held.sequence, **stamp.columns()}
    columns |= owner.columns() if owner else {}
    if sequence is None:
        return Entry.in_backlog(queue_id, held.lane, kind, **columns)
    return Entry.in_lane(queue_id, held.lane, kind, sequence=sequence, **columns)


def kept(
    queue_id: str, held: Claim, count: int, deadline_ms: int, stamp: Stamp, *, owner: AttemptOwner
) -> Entry:
    """Make the entry by which a commit leaves a claim's unsettled messages with its consumer.

    It comes after the claim's settlements; from then on a lease holds the remaining messages.
    """
    body = {"v": 1, "deadline": deadline_ms}
    return _of_claim(queue_id, held, model.KEPT, stamp, owner=owner, count=count, body=body)


def release_claims(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, reason: str, *, counted: bool = True
) -> tuple[Entry, ...]:
    """Make the ``released`` entries of a rollback, only for claims acquired by an attempt."""
    ended = Disposition(model.RELEASED, reason=reason, counted=counted)
    return _released(queue_id, claims, stamp, lambda _: ended)


def end_claims(
    queue_id: str, claims: Iterable[Claim], stamp: Stamp, reason: str
) -> tuple[Entry, ...]:
    """Make the ``released`` entries of a tombstone: each delivery ended with its lease, or now."""
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
    """Make the lane's next entry: an attempt settles messages held under a lease."""
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
    """Make the lane's next entry: a claim has a new deadline."""
    return _of_claim(
        queue_id,
        held,
        model.LEASE_EXTENDED,
        stamp,
        sequence=sequence,
        count=held.count,
        body={"v": 1, "deadline": deadline_ms},
    )
