"""Find the claims of others that a client may end, and abort the undecided transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry
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
from txnqueue.errors import TransactionAborted, TransactionFinished

LEASE_OVER = "lease over"
RIVAL = "taken over by another attempt of its transaction id"
RESTARTED = "taken over by a later opening of its consumer"
"""Why an undecided transaction was aborted by another client. A rival is at work at the same time:
whoever finds this reason leaves the work to it, or they would abort each other again and again."""


def is_taken_over(error: BaseException, transaction_id: str) -> TypeGuard[TransactionAborted]:
    """Return whether an error says that this transaction, and no other, was taken over."""
    return (
        isinstance(error, TransactionAborted)
        and error.transaction_id == transaction_id
        and error.reason in (LEASE_OVER, RIVAL, RESTARTED)
    )


def ended_error(decided: Entry) -> TransactionAborted | TransactionFinished:
    """Make the error of work in an attempt that is decided, from its decision."""
    key = decided.stream
    if decided.kind == model.COMMITTED:
        return TransactionFinished(
            f"Transaction {key!r} is already committed: begin another one for more work.",
            transaction_id=key,
        )
    late = decided.reason == LEASE_OVER
    longer = ", for longer work with batch.heartbeat() or more lease_seconds"
    return TransactionAborted(
        f"Transaction {key!r} was aborted by {decided.actor}: "
        f"{decided.reason or 'rolled back'}. Run it again{longer if late else ''}.",
        transaction_id=key,
        reason=decided.reason,
    )


def too_late_error(key: str) -> TransactionAborted:
    """Make the error of an attempt that began below the horizon, and never happens."""
    return TransactionAborted(
        f"Transaction {key!r} stayed open longer than maintain() allows, and can no "
        "longer be committed: run it again.",
        transaction_id=key,
    )


@dataclass(slots=True)
class Takeover:
    """The claims that a new claim may end: expired leases, void claims, undecided transactions.

    Attributes:
        superseded: By lane, the claims that the next claim of the lane supersedes.
        tombstones: By attempt, the undecided transactions to be aborted first, with their claims.
        elsewhere: By attempt, the claims in other queues of those that are branches.
        taker: The owner of the new claim.
    """

    superseded: dict[int, list[Claim]]
    tombstones: dict[str, tuple[AttemptOwner, list[Claim]]]
    elsewhere: dict[str, list[tuple[str, Claim]]]
    taker: Owner
    _by_lane: dict[int, list[Claim]] = field(init=False)

    def __post_init__(self) -> None:
        """Sort the claims by lane once: there may be thousands, in hundreds of lanes."""
        self._by_lane = {lane: list(claims) for lane, claims in self.superseded.items()}
        for _, held in self.tombstones.values():
            for claim in held:
                self._by_lane.setdefault(claim.lane, []).append(claim)

    def ending(self) -> set[tuple[int, int]]:
        """Name the claims that may be ended."""
        return {claim.name for claims in self._by_lane.values() for claim in claims}

    def of_lane(self, lane: int) -> Sequence[Claim]:
        """Return the claims that would end in a lane."""
        return self._by_lane.get(lane, ())

    def returning(self, fold: QueueState, lane: int, now_ms: int) -> list[Segment]:
        """Return the messages that would come back in a lane."""
        return [
            segment
            for claim in self.of_lane(lane)
            for segment in fold.returning(claim, claim.ended_at_ms(now_ms))
        ]

    def purges(self, lane: int) -> bool:
        """Return whether the claims that would end in a lane hold purged messages."""
        return any(claim.purge_pending for claim in self.of_lane(lane))

    def tombstones_of(self, queue_id: str, chosen: Iterable[Selection], stamp: Stamp) -> Plan:
        """Plan the tombstones of the undecided transactions with claims in the chosen lanes.

        A branch is among them only if its state showed that its time-out is over.
        """
        lanes = {selection.lane for selection in chosen}
        plan = Plan()
        for attempt, (owner, claims) in self.tombstones.items():
            if lanes.isdisjoint(claim.lane for claim in claims):
                continue
            reason = self._reason(owner, claims, stamp.now_ms)
            released = planning.end_claims(queue_id, claims, stamp, reason)
            for other_id, claim in self.elsewhere.get(attempt, ()):
                released += planning.end_claims(other_id, [claim], stamp, reason)
            plan += decisions.rollback(owner, released, stamp, reason)
            rival = self._rival_of(owner)
            if rival is not None:  # else two attempts could abort each other
                mine = model.undecided(rival.key, rival.attempt, unprepared=True)
                plan += Plan((), (mine,))
        return plan

    def _rival_of(self, owner: AttemptOwner) -> AttemptOwner | None:
        """Return the taker if it is another attempt of an attempt's transaction id."""
        taker = self.taker
        return taker if isinstance(taker, AttemptOwner) and taker.key == owner.key else None

    def _reason(self, owner: AttemptOwner, claims: Sequence[Claim], now_ms: int) -> str:
        if owner.is_branch:
            return TIMED_OUT
        if all(claim.ends_at_ms(now_ms) <= now_ms for claim in claims):
            return LEASE_OVER
        return RIVAL if self._rival_of(owner) is not None else RESTARTED


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A claim that may have ended.

    Attributes:
        claim: The claim.
        over: Whether its own lease is over for the taker.
        shared: Whether another lease of the same attempt runs.
    """

    claim: Claim
    over: bool
    shared: bool

    def may_end(self, states: dict[str, TransactionState], now_ms: int) -> bool:
        """Return whether the taker may end it.

        An undecided transaction lives as long as one of its leases. What a decided one has left of
        the leases that it settled in part are leases again, each for itself.
        """
        attempt = self.claim.attempt
        alone = attempt is None or not self.shared or states[attempt.key].is_over(attempt)
        return may_end(self.claim, states, now_ms, lease_over=self.over and alone)


class Takeovers:
    """Finds the claims of a queue that a receive may end.

    Attributes:
        beside: The undecided attempts of the same drain, whose claims are not ended.
    """

    def __init__(
        self, client: Client, info: QueueInfo, beside: Collection[str], *, fresh_only: bool
    ) -> None:
        """Describe the receive.

        Args:
            client: The client that receives.
            info: The queue.
            beside: The undecided attempts of the same drain.
            fresh_only: Whether to leave messages that came back from a failure for another
                receive.
        """
        self._client = client
        self._info = info
        self._fresh_only = fresh_only
        self.beside = beside

    def find(
        self, fold: QueueState, owner: Owner, now_ms: int, *, closely: bool = False
    ) -> Takeover:
        """Find the claims that may be ended; clocks decide only which of them to look up.

        The transactions are read first and the queue again after them: then the queue shows the
        settlements of every decision that was read, so a claim without one is void, and not
        merely settled a moment later.

        Raises:
            TransactionAborted: Another attempt of the taker's id holds messages here, and the taker
                can no longer be committed: it aborts nobody.
            TransactionFinished: The taker is committed.
        """
        found = self._candidates(fold, owner, now_ms, closely=closely)
        states = self._client.states.key_states(
            one.claim.attempt.key for one in found if one.claim.attempt is not None
        )
        if isinstance(owner, AttemptOwner) and owner.key in states:
            _check_undecided(states[owner.key], owner)
        if any(one.claim.attempt is not None and one.may_end(states, now_ms) for one in found):
            fold = self._client.states.fold(self._info)
            found = self._candidates(fold, owner, now_ms, closely=closely)
        superseded: dict[int, list[Claim]] = {}
        tombstones: dict[str, tuple[AttemptOwner, list[Claim]]] = {}
        for one in found:
            claim, attempt = one.claim, one.claim.attempt
            if attempt is not None and attempt.key not in states:
                continue  # the claim landed between the two readings
            if not one.may_end(states, now_ms):
                continue
            if attempt is None or states[attempt.key].is_over(attempt):
                superseded.setdefault(claim.lane, []).append(claim)
            else:
                tombstones.setdefault(attempt.attempt, (attempt, []))[1].append(claim)
        return Takeover(superseded, tombstones, self._elsewhere(tombstones), owner)

    def _elsewhere(
        self, tombstones: dict[str, tuple[AttemptOwner, list[Claim]]]
    ) -> dict[str, list[tuple[str, Claim]]]:
        """Find the claims of overdue branches in other queues, whose leases may still run."""
        branches = [a for a, (o, _) in tombstones.items() if o.is_branch]
        if not branches:
            return {}
        infos = self._client.states.queues().values()
        held = held_inside(self._client, (i for i in infos if i.queue_id != self._info.queue_id))
        return {attempt: held[attempt][1] for attempt in branches if attempt in held}

    def _candidates(
        self, fold: QueueState, taker: Owner, now_ms: int, *, closely: bool
    ) -> list[_Candidate]:
        """List the claims that may have ended.

        No lease limits a branch, and the claims of a decided transaction are void whatever their
        leases: so a branch is always looked up, a plain transaction with a running lease only
        ``closely``.
        """
        alive = {c.attempt_id for c in fold.claims() if not c.takeable(now_ms, taker)}
        ours = self._ours(taker)
        found = []
        for claim in fold.claims():
            attempt, acquirer = claim.attempt, claim.acquirer
            if attempt is not None and attempt.attempt in ours:
                continue
            shared = attempt is not None and attempt.attempt in alive
            over = claim.takeable(now_ms, taker)
            if over or (acquirer is not None and (closely or acquirer.is_branch)):
                found.append(_Candidate(claim, over, shared))
        return found

    def asks_closely(self, fold: QueueState, taker: Owner, now_ms: int) -> bool:
        """Return whether there are plain transactions with running leases to look up.

        Mostly they are at work and the look-up is in vain: so only a receive that would get
        nothing makes it, and others seldom.
        """
        ours = self._ours(taker)
        return not self._fresh_only and any(
            claim.acquirer is not None
            and claim.acquirer.attempt not in ours
            and not (claim.acquirer.is_branch or claim.takeable(now_ms, taker))
            for claim in fold.claims()
        )

    def _ours(self, taker: Owner) -> set[str]:
        """Return the attempts whose claims are not taken over: those beside, and the taker's."""
        return {*self.beside, *([taker.attempt] if isinstance(taker, AttemptOwner) else [])}


def _check_undecided(state: TransactionState, owner: AttemptOwner) -> None:
    """Check that an attempt can still be committed, before it aborts another one of its id."""
    decided = state.decisions.get(owner.attempt)
    if decided is not None:
        raise ended_error(decided)
    if state.is_over(owner):
        raise too_late_error(owner.key)


def may_end(
    claim: Claim, states: dict[str, TransactionState], now_ms: int, *, lease_over: bool = True
) -> bool:
    """Return whether another client may end a claim.

    It may end a claim whose lease is over, and with it an undecided transaction; a prepared
    transaction is ended only by its decision. Whatever their leases, it may end the claims of an
    overdue branch, and those acquired by a decided transaction, which are void.
    """
    holder = claim.attempt
    if holder is None:
        return lease_over
    state = states[holder.key]
    if state.is_over(holder):
        return lease_over or claim.acquirer is not None
    branch = Branch.of(state)
    if branch is not None and branch.attempt == holder.attempt:
        return branch.overdue(now_ms, claim.began_by_ms)  # the claim began after the branch
    return lease_over and holder.attempt not in state.prepared


def held_inside(
    client: Client, infos: Iterable[QueueInfo]
) -> dict[str, tuple[AttemptOwner, list[tuple[str, Claim]]]]:
    """Find the claims of transactions in some queues: by attempt, each with its queue id."""
    found: dict[str, tuple[AttemptOwner, list[tuple[str, Claim]]]] = {}
    with client.lock:
        for fold in client.states.folds(infos):
            for claim in fold.claims():
                if isinstance(claim.owner, AttemptOwner):
                    held = found.setdefault(claim.owner.attempt, (claim.owner, []))
                    held[1].append((fold.queue_id, claim))
    return found


def abort_branch(client: Client, branch: Branch, reason: str) -> Plan:
    """Plan the tombstone of a branch, which releases all claims of its sessions."""
    stamp = client.stamp()
    _, claims = held_inside(client, client.cache.queues().values()).get(branch.attempt, (None, []))
    given_back = [
        entry
        for queue_id, claim in claims
        for entry in planning.release_claims(queue_id, [claim], stamp, reason)
    ]
    return tombstone(branch, given_back, stamp, reason)
