"""Claim messages: read the queue, see what may be taken over, plan the claim.

The planner of a receive is asked again after each lost race; it always plans from what it
has just read. What it got is read from the entries that landed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry, Item, PositionId, Range
from txnqueue.core.planning import Plan, Removal, Selection, Stamp, Target, decisions
from txnqueue.core.planning.branches import tombstone
from txnqueue.core.planning.tries import Tries
from txnqueue.core.settings import RANGES_PER_CALL_MAX, QueueInfo
from txnqueue.core.state import (
    AttemptOwner,
    Claim,
    Errors,
    LaneState,
    LeaseOwner,
    Owner,
    Position,
    QueueState,
    Segment,
    TransactionState,
    compaction,
)
from txnqueue.core.state.branch import TIMED_OUT, Branch
from txnqueue.errors import LeaseLost
from txnqueue.messages import duplicates
from txnqueue.messages.acquirer import Acquirer
from txnqueue.storage.payload import Part

Wanting = Callable[[LaneState, Sequence[Segment]], Iterable[Segment]]


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim of ours: its name, its owner, and what it holds of which positions."""

    info: QueueInfo
    claim: Claim
    positions: dict[PositionId, Position]

    @property
    def items(self) -> tuple[Item, ...]:
        """What was claimed, in delivery order."""
        return tuple(self.claim.items.items())


@dataclass(slots=True)
class _TakeOver:
    """What a claim may end: leases that are over, void claims, undecided transactions."""

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


class ClaimPlanner:
    """Plans one receive: at most ``limit`` messages of one queue for one owner."""

    def __init__(
        self,
        client: Client,
        info: QueueInfo,
        limit: int,
        lease_seconds: float,
        transaction: Acquirer | None,
        *,
        upto: int | None = None,
        joined_with: str | None = None,
        wanted: Wanting | None = None,
        fresh_only: bool = False,
    ) -> None:
        """Describe the receive.

        Args:
            client: Whose receive it is.
            info: The queue.
            limit: The most messages.
            lease_seconds: For how long they are held.
            transaction: What acquires them; None for a lease of the consumer.
            upto: Leave out positions that were posted after this version.
            joined_with: The attempt that the same append commits. Its claims end by that,
                and are not to be taken over, however late it is.
            wanted: Cuts what a selector wants out of segments of a lane.
            fresh_only: Whether what came back from a failure is left for another receive.
        """
        self.client = client
        self.info = info
        self.limit = limit
        self.lease_seconds = lease_seconds
        self.transaction = transaction
        self.upto = upto
        self.joined_with = joined_with
        self.wanted = wanted
        self.fresh_only = fresh_only
        self._tries = Tries()
        self._turn: int | None = None
        self._positions: dict[PositionId, Position] = {}

    def plan(self, lost: int) -> Plan | None:
        """Plan the claim from what the queue holds now; None when it has nothing for us.

        Raises:
            LeaseLost: Somebody opened the same consumer id after us.
        """
        with self.client.lock:
            return self._plan(lost)

    def _plan(self, lost: int) -> Plan | None:
        """Plan the claim; the lock is held from the first look at the fold to the last."""
        client = self.client
        fold = client.states.for_update(self.info)
        info = self.info = client.cache.newest(self.info)
        owner = self._owner(fold)
        stamp = client.stamp()
        if self.wanted is not None and self.upto is None:
            self.upto = fold.version  # what comes while the selector looks is left for the next
        in_turn = self._in_turn(fold, lost)
        take_over = self._take_over(fold, owner, stamp.now_ms)
        chosen = self._choose(fold, take_over, stamp.now_ms, in_turn)
        if self._asks_closely(fold, owner, stamp.now_ms) and (
            not chosen or client.asks_again(info.queue_id)
        ):
            take_over = self._take_over(fold, owner, stamp.now_ms, closely=True)
            in_turn.sort(key=lambda lane: lane not in take_over.superseded)
            chosen = self._choose(fold, take_over, stamp.now_ms, in_turn)
        errors = {
            s.position.position_id: fold.lanes[c.lane].errors.get(s.position.position_id, ())
            for c in chosen
            for s in c.dead
        }
        places = {selection.lane: selection.sequence for selection in chosen}
        if not chosen or not self._tries.excluded_by(fold, places):
            return None
        if self.transaction is not None:
            self.transaction.claiming(transient=self.info.transient)
        self._tries.note(places)
        self._positions.update(
            (s.position.position_id, s.position) for c in chosen for s in c.segments
        )
        plan = _tombstones(info, take_over, chosen, stamp)
        deadline_ms = stamp.now_ms + round(self.lease_seconds * 1000)
        for selection in chosen:
            compacted, selection = compaction.before(fold, selection, stamp, client.log_max)
            plan += compacted
            for removal in self._removals(selection, errors):
                gone, selection = planning.remove(
                    info.queue_id, info.name, selection, removal, stamp
                )
                plan += gone
            plan += planning.claim(info.queue_id, selection, owner, deadline_ms, stamp)
        return plan

    def held(self, entries: Iterable[Entry]) -> list[HeldClaim]:
        """Read from what landed what is ours now.

        If several tries landed, one after a lost reply, the first may be over by now: then
        the later one has its messages.
        """
        found = []
        entries = [e for e in entries if e.queue_id == self.info.queue_id]
        if self.transaction is not None:
            dead = (e for e in entries if e.kind == model.DEAD_LETTERED)
            self.transaction.dead_lettered += model.messages(dead)
        over: set[tuple[int, int]] = set()
        if len({e.append_id for e in entries}) > 1:
            names = {(e.lane or 0, e.sequence or 0) for e in entries}
            with self.client.lock:
                fold = self.client.states.fold(self.info)
                over = {name for name in names if not fold.claim(*name)}
        for entry in entries:
            if (entry.lane or 0, entry.sequence or 0) in over:
                continue
            if entry.kind == model.CLAIMED:
                items = dict(model.unpack_items(entry))
                positions = {position_id: self._positions[position_id] for position_id in items}
                found.append(HeldClaim(self.info, Claim.of(entry, items), positions))
        return found

    # -------------------------------------------------------------------------- helpers

    def _owner(self, fold: QueueState) -> Owner:
        consumer, epoch = self.client.consumer, self.client.epoch(fold)
        if any(c.owner.consumer == consumer and c.owner.epoch > epoch for c in fold.claims()):
            raise LeaseLost(
                f"Another instance opened the consumer id {consumer!r} and has taken over: this "
                "one is fenced and gets nothing more.",
                consumer=consumer,
            )
        lease = LeaseOwner(consumer, epoch)
        if self.transaction is None:
            return lease
        return self.transaction.owner.claiming_as(lease)

    def _take_over(
        self, fold: QueueState, owner: Owner, now_ms: int, *, closely: bool = False
    ) -> _TakeOver:
        """Find which claims may be ended; clocks only decide that we look.

        The transactions are read first and the queue once more after them: a decision that
        is seen has its settlements in the queue as it is then seen, so that a claim without
        one is void, and not just settled a moment later.
        """
        found = self._candidates(fold, owner, now_ms, closely=closely)
        states = self.client.states.key_states(
            c.attempt.key for c, _ in found if c.attempt is not None
        )
        if any(
            c.attempt is not None and may_end(c, states, now_ms, lease_over=over)
            for c, over in found
        ):
            fold = self.client.states.fold(self.info)
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
        return _TakeOver(superseded, tombstones, self._elsewhere(tombstones))

    def _elsewhere(
        self, tombstones: dict[str, tuple[AttemptOwner, list[Claim]]]
    ) -> dict[str, list[tuple[str, Claim]]]:
        """Find what overdue branches hold in other queues: there no lease needs to be over."""
        branches = [a for a, (o, _) in tombstones.items() if o.is_branch]
        if not branches:
            return {}
        infos = self.client.states.queues().values()
        held = held_inside(self.client, (i for i in infos if i.queue_id != self.info.queue_id))
        return {attempt: held[attempt][1] for attempt in branches if attempt in held}

    def _candidates(
        self, fold: QueueState, taker: Owner, now_ms: int, *, closely: bool
    ) -> list[tuple[Claim, bool]]:
        """List the claims that may have ended, and whether their leases are over.

        A transaction lives as long as one of its leases does. But no lease says how long a
        branch may take, and what a decided transaction still holds is nobody's: a branch is
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

    def _asks_closely(self, fold: QueueState, taker: Owner, now_ms: int) -> bool:
        """Return whether there are plain transactions, with leases that still run, to look up.

        Mostly they are at work, and the question is for nothing: so it is asked by who would go
        away with nothing, and otherwise seldom.
        """
        ours = self._ours(taker)
        return not self.fresh_only and any(
            claim.acquirer is not None
            and claim.acquirer.attempt not in ours
            and not (claim.acquirer.is_branch or claim.takeable(now_ms, taker))
            for claim in fold.claims()
        )

    def _ours(self, taker: Owner) -> tuple[str | None, ...]:
        """The attempts whose claims are not to be taken over: the one joined, and the taker's."""
        return (self.joined_with, taker.attempt if isinstance(taker, AttemptOwner) else None)

    def _in_turn(self, fold: QueueState, lost: int) -> list[int]:
        """List the lanes in the order in which they are tried: the next one in turn first.

        After a lost race others come before it; unless the try may still land.
        """
        lanes = len(fold.lanes)
        if self._turn is None:  # once in a receive, however often it is planned
            self._turn = self.client.turn(self.info.queue_id)
        turn = lost or self._turn
        start = (zlib.crc32(self.client.consumer.encode()) + turn) % lanes
        return self._tries.in_order(fold, ((start + step) % lanes for step in range(lanes)))

    def _choose(
        self, fold: QueueState, take_over: _TakeOver, now_ms: int, in_turn: Iterable[int]
    ) -> list[Selection]:
        """Choose messages, lane by lane."""
        chosen: list[Selection] = []
        left, pieces = self.limit, RANGES_PER_CALL_MAX
        failures = 0 if self.fresh_only else None
        taken = self._taken_lanes(fold, take_over)
        for lane in in_turn:
            if left <= 0 or pieces <= 0:
                break
            if lane in taken:
                continue
            selection = self._select(fold, take_over, lane, left, now_ms, pieces_max=pieces)
            if not selection:
                continue
            if selection.segments:
                # What failed takes nobody with it: once, it goes with what failed once in other
                # lanes, as it did before; what failed more often is tried alone.
                if failures not in (None, selection.delivery_count):
                    continue
                failures = selection.delivery_count
            chosen.append(selection)
            pieces -= len(selection.segments)
            left = 0 if failures is not None and failures > 1 else left - selection.count
        return chosen

    def _taken_lanes(self, fold: QueueState, take_over: _TakeOver) -> set[int]:
        """Find the lanes of an ordered queue that another consumer is working on."""
        if not self.info.settings.ordered:
            return set()
        me = self.client.consumer
        others = (claim for claim in fold.claims() if claim.owner.consumer != me)
        return {claim.lane for claim in others if not take_over.ends(claim)}

    def _removals(self, selection: Selection, errors: Mapping[PositionId, Errors]) -> list[Removal]:
        """Return what the claim removes from the lane for good: what it found on its way."""
        info = self.info
        dead_letters = Target(info.dead_letter_id) if info.dead_letter_id else None
        kept = dead_letters if info.settings.dead_letter_expired else None
        found = [
            Removal(
                model.DEAD_LETTERED, tuple(selection.dead), "deliveries_max", dead_letters, errors
            ),
            Removal(model.EXPIRED, tuple(selection.expired), "expired", kept),
            planning.leaving_out(selection.duplicates),
        ]
        found = [removal for removal in found if removal.segments]
        if selection.supersedes and not found and not selection.segments:
            # What the claims that are over still held was purged, or is to wait: this ends them.
            return [Removal(model.PURGED, (), "lease over")]
        return found

    def _select(
        self,
        fold: QueueState,
        take_over: _TakeOver,
        lane: int,
        limit: int,
        now_ms: int,
        *,
        pieces_max: int,
    ) -> Selection:
        rules = self.info.redelivery
        superseded = take_over.superseded.get(lane, ())
        returning = take_over.returning(fold, lane, now_ms)
        chosen = planning.select(
            fold.lanes[lane],
            returning,
            limit,
            now_ms,
            rules,
            supersedes=[(claim.sequence, claim.ended_at_ms(now_ms)) for claim in superseded],
            upto=self.upto,
            wanted=None if self.wanted is None else partial(self.wanted, fold.lanes[lane]),
            left_out=duplicates.left_out(self.client, self.info, fold),
            consumer=self.client.consumer,
            in_order=self.info.settings.ordered,
            pieces_max=pieces_max,
        )
        # What is to wait from now on is said to: else it would wait for as long as it is held.
        waiting = any(segment.waits(now_ms, rules) for segment in returning)
        chosen.ending = waiting or take_over.purges(lane)
        return chosen


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


def _tombstones(
    info: QueueInfo, take_over: _TakeOver, chosen: list[Selection], stamp: Stamp
) -> Plan:
    """Abort the undecided transactions whose messages the chosen lanes take.

    That a branch may be among them, and its time-out be over, was seen in its state.
    """
    lanes = {selection.lane for selection in chosen}
    plan = Plan()
    for attempt, (owner, claims) in take_over.tombstones.items():
        if lanes.isdisjoint(claim.lane for claim in claims):
            continue
        reason = TIMED_OUT if owner.is_branch else "lease over"
        released = planning.end_claims(info.queue_id, claims, stamp, reason)
        for queue_id, claim in take_over.elsewhere.get(attempt, ()):
            released += planning.end_claims(queue_id, [claim], stamp, reason)
        plan += decisions.rollback(owner, released, stamp, reason)
    return plan


def part_of(
    position: Position, part: tuple[Range, ...], queue: str, lane: int, delivery_count: int
) -> Part:
    """Return where the payload of some messages lies, and what they have in common."""
    return Part(
        payload_id=position.payload_id,
        slice=position.slice,
        send_id=position.send_id,
        ranges=part,
        queue=queue,
        lane=lane,
        delivery_count=delivery_count,
        enqueued_at_ms=position.posted_at_ms,
        transaction_id=position.transaction_key,
        origin=position.origin,
        message_id=position.message_id,
    )
