"""Which claims of others a client may end, and how an undecided transaction is aborted for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from txnqueue.client.client import Client
from txnqueue.core import planning
from txnqueue.core.planning import Plan, Selection, Stamp, decisions
from txnqueue.core.planning.branches import tombstone
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import (
    AttemptOwner,
    Claim,
    Owner,
    QueueState,
    Segment,
    TransactionState,
)
from txnqueue.core.state.branch import TIMED_OUT, Branch


@dataclass(slots=True)
class Takeover:
    """What a claim may end: leases that are over, void claims, undecided transactions.

    Attributes:
        superseded: By lane the claims that the next claim of the lane supersedes.
        tombstones: By attempt the undecided transactions that have to be aborted first.
        elsewhere: What those of them that are branches hold in other queues.
    """

    superseded: dict[int, list[Claim]]
    tombstones: dict[str, tuple[AttemptOwner, list[Claim]]]
    elsewhere: dict[str, list[tuple[str, Claim]]]

    def ends(self, claim: Claim) -> bool:
        """Return whether a claim may be ended."""
        return claim in self.superseded.get(claim.lane, ()) or any(
            claim in claims for _, claims in self.tombstones.values()
        )

    def of_lane(self, lane: int) -> list[Claim]:
        """The claims that would end in a lane."""
        claims = list(self.superseded.get(lane, ()))
        return claims + [c for _, held in self.tombstones.values() for c in held if c.lane == lane]

    def returning(self, fold: QueueState, lane: int, now_ms: int) -> list[Segment]:
        """The messages that would come back in a lane."""
        return [
            segment
            for claim in self.of_lane(lane)
            for segment in fold.returning(claim, claim.ended_at_ms(now_ms))
        ]

    def purges(self, lane: int) -> bool:
        """Return whether messages that were purged would go with the claims of a lane."""
        return any(claim.purge_pending for claim in self.of_lane(lane))

    def tombstones_of(self, queue_id: str, chosen: Iterable[Selection], stamp: Stamp) -> Plan:
        """Abort the undecided transactions whose messages the chosen lanes take.

        That a branch may be among them, and its time-out be over, was seen in its state.
        """
        lanes = {selection.lane for selection in chosen}
        plan = Plan()
        for attempt, (owner, claims) in self.tombstones.items():
            if lanes.isdisjoint(claim.lane for claim in claims):
                continue
            reason = TIMED_OUT if owner.is_branch else "lease over"
            released = planning.end_claims(queue_id, claims, stamp, reason)
            for other_id, claim in self.elsewhere.get(attempt, ()):
                released += planning.end_claims(other_id, [claim], stamp, reason)
            plan += decisions.rollback(owner, released, stamp, reason)
        return plan


class Takeovers:
    """Finds what claims of a queue a receive may end.

    Attributes:
        beside: The attempts of the same drain that are not decided; their claims are left alone.
    """

    def __init__(
        self, client: Client, info: QueueInfo, beside: Collection[str], *, fresh_only: bool
    ) -> None:
        """Describe the receive.

        Args:
            client: Whose receive it is.
            info: The queue.
            beside: The attempts of the same drain that are not decided.
            fresh_only: Whether what came back from a failure is left for another receive.
        """
        self._client = client
        self._info = info
        self._fresh_only = fresh_only
        self.beside = beside

    def find(
        self, fold: QueueState, owner: Owner, now_ms: int, *, closely: bool = False
    ) -> Takeover:
        """Find which claims may be ended; clocks only decide that we look.

        The transactions are read first and the queue once more after them: a decision that
        is seen has its settlements in the queue as it is then seen, so that a claim without
        one is void, and not just settled a moment later.
        """
        found = self._candidates(fold, owner, now_ms, closely=closely)
        states = self._client.states.key_states(
            c.attempt.key for c, _ in found if c.attempt is not None
        )
        if any(
            c.attempt is not None and may_end(c, states, now_ms, lease_over=over)
            for c, over in found
        ):
            fold = self._client.states.fold(self._info)
            found = self._candidates(fold, owner, now_ms, closely=closely)
        superseded: dict[int, list[Claim]] = {}
        tombstones: dict[str, tuple[AttemptOwner, list[Claim]]] = {}
        for claim, over in found:
            attempt = claim.attempt
            if attempt is not None and attempt.key not in states:
                continue  # it came between the two readings
            if not may_end(claim, states, now_ms, lease_over=over):
                continue
            if attempt is None or states[attempt.key].is_over(attempt):
                superseded.setdefault(claim.lane, []).append(claim)
            else:
                tombstones.setdefault(attempt.attempt, (attempt, []))[1].append(claim)
        return Takeover(superseded, tombstones, self._elsewhere(tombstones))

    def _elsewhere(
        self, tombstones: dict[str, tuple[AttemptOwner, list[Claim]]]
    ) -> dict[str, list[tuple[str, Claim]]]:
        """Find what overdue branches hold in other queues: there no lease needs to be over."""
        branches = [a for a, (o, _) in tombstones.items() if o.is_branch]
        if not branches:
            return {}
        infos = self._client.states.queues().values()
        held = held_inside(self._client, (i for i in infos if i.queue_id != self._info.queue_id))
        return {attempt: held[attempt][1] for attempt in branches if attempt in held}

    def _candidates(
        self, fold: QueueState, taker: Owner, now_ms: int, *, closely: bool
    ) -> list[tuple[Claim, bool]]:
        """List the claims that may have ended, and whether their leases are over.

        A transaction lives as long as one of its leases does. But no lease says how long a
        branch may take, and what a decided transaction still holds has no owner: a branch is
        always asked for, a plain transaction only ``closely``.
        """
        alive = {c.attempt_id for c in fold.claims() if not c.takeable(now_ms, taker)}
        ours = self._ours(taker)
        found = []
        for claim in fold.claims():
            attempt, acquirer = claim.attempt, claim.acquirer
            if attempt is not None and attempt.attempt in ours:
                continue
            shared = attempt is not None and attempt.attempt in alive
            over = claim.takeable(now_ms, taker) and not shared
            if over or (acquirer is not None and (closely or acquirer.is_branch)):
                found.append((claim, over))
        return found

    def asks_closely(self, fold: QueueState, taker: Owner, now_ms: int) -> bool:
        """Return whether there are plain transactions, with leases that still run, to look up.

        Mostly they are at work, and the question is for nothing: so it is asked by who would go
        away with nothing, and otherwise seldom.
        """
        ours = self._ours(taker)
        return not self._fresh_only and any(
            claim.acquirer is not None
            and claim.acquirer.attempt not in ours
            and not (claim.acquirer.is_branch or claim.takeable(now_ms, taker))
            for claim in fold.claims()
        )

    def _ours(self, taker: Owner) -> set[str]:
        """The attempts whose claims are not to be taken over: those beside, and the taker's."""
        return {*self.beside, *([taker.attempt] if isinstance(taker, AttemptOwner) else [])}


def may_end(
    claim: Claim, states: dict[str, TransactionState], now_ms: int, *, lease_over: bool = True
) -> bool:
    """Return whether another client may end a claim.

    A lease may once it is over, and with its leases a transaction that is undecided; a
    prepared one only by its decision. However long the claim was to be held, a branch may
    once it took too long, and so may what a transaction owns that is decided: it is void.
    """
    holder = claim.attempt
    if holder is None:
        return lease_over
    state = states[holder.key]
    if state.is_over(holder):
        return lease_over or claim.acquirer is not None
    branch = Branch.of(state)
    if branch is not None and branch.attempt == holder.attempt:
        return branch.overdue(now_ms, claim.began_by_ms)  # what holds began after it
    return lease_over and holder.attempt not in state.prepared


def held_inside(
    client: Client, infos: Iterable[QueueInfo]
) -> dict[str, tuple[AttemptOwner, list[tuple[str, Claim]]]]:
    """Find what transactions hold in some queues: by attempt, with the queue."""
    found: dict[str, tuple[AttemptOwner, list[tuple[str, Claim]]]] = {}
    with client.lock:
        for fold in client.states.folds(infos):
            for claim in fold.claims():
                if isinstance(claim.owner, AttemptOwner):
                    held = found.setdefault(claim.owner.attempt, (claim.owner, []))
                    held[1].append((fold.queue_id, claim))
    return found


def abort_branch(client: Client, branch: Branch, reason: str) -> Plan:
    """Plan the tombstone of a branch, with whatever any of its sessions holds now."""
    stamp = client.stamp()
    _, claims = held_inside(client, client.cache.queues().values()).get(branch.attempt, (None, []))
    given_back = [
        entry
        for queue_id, claim in claims
        for entry in planning.release_claims(queue_id, [claim], stamp, reason)
    ]
    return tombstone(branch, given_back, stamp, reason)
