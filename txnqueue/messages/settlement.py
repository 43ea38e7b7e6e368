"""Settle a batch: keep account of its dispositions, and plan the entries about its claims."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from txnqueue.client.client import Client
from txnqueue.core import custody, model, planning, ranges
from txnqueue.core.model import Item, Parts, PositionId, Range
from txnqueue.core.planning import Disposition, Plan
from txnqueue.core.state import Claim, QueueState
from txnqueue.errors import AlreadySettled, LeaseLost, SettlementPending
from txnqueue.messages import move
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.claim import HeldClaim
from txnqueue.messages.move import departures
from txnqueue.messages.selector import Reasons

_recording = custody.freed_in_forks(threading.RLock())
"""Held while a deadline is recorded in a claim: several threads may extend one batch."""


class Account:
    """The account of some claims: their unsettled messages, and the dispositions by attempt.

    Threads may settle messages of one batch at the same time. What each of them changes here takes
    the lock, which nobody holds while something is appended.

    Attributes:
        held: The claims.
        acquirer: The attempt that acquired them; None if they are held under leases.
        keeping: Whether the attempt's commit leaves messages without a disposition under a lease.
    """

    def __init__(self, held: Sequence[HeldClaim], acquirer: Acquirer | None = None) -> None:
        """Begin with claims of which no message is settled."""
        self.held = list(held)
        self.acquirer = acquirer
        self.keeping = False
        self._rest = {name_of(one): dict(one.claim.items) for one in held}
        self._said: dict[str, Dispositions] = {}
        self._left: dict[str, dict[Name, Parts]] = {}
        """What is left of each claim in each attempt, as far as it was asked for and still holds:
        a handler may settle thousands of messages one by one."""
        self._places: dict[Name, dict[str, list[tuple[int, PositionId]]]] = {}
        """The positions of each claim by send, once messages were named."""
        self._whole = False
        self.unanswered: tuple[Unanswered, ...] = ()
        """The settlements at once that failed or were interrupted, and may have landed."""
        self._lock = threading.RLock()

    def rest(self, one: HeldClaim) -> Parts:
        """Return a claim's unsettled messages, whatever dispositions undecided attempts have."""
        return self._rest[name_of(one)]

    @property
    def anything(self) -> bool:
        """Whether some message is not settled yet."""
        return any(self._rest.values())

    def left(self, one: HeldClaim, attempt: str | None) -> Parts:
        """Return a claim's unsettled messages that have no disposition in an attempt."""
        with self._lock:
            name, known = name_of(one), self._left.setdefault(attempt or "", {})
            if name not in known:
                said = self._said.get(attempt or "", {}).get(name, ())
                known[name] = _without(dict(self._rest[name]), said)
            return known[name]

    def chosen(
        self, kind: str, named: Reasons | None, reason: str | None, attempt: str | None
    ) -> Dispositions:
        """Make the dispositions of the selected messages, among those left of each claim.

        Raises:
            AlreadySettled: All messages were settled by an earlier call without a selection.
        """
        meant: list[tuple[str | None, Mapping[str, tuple[Range, ...]] | None]]
        meant = [(reason, None)] if named is None else [(r or reason, s) for r, s in named.items()]
        chosen: Dispositions = {}
        with self._lock:
            for one in self.held:
                left = self.left(one, attempt)
                for why, by_send in meant:
                    items = self._meant(one, left, by_send)
                    if items:
                        disposition = Disposition(kind, items, why)
                        chosen.setdefault(name_of(one), []).append(disposition)
            if named is None and self.held:
                # The rest may be empty, depending on the data; but it is settled only once.
                if not chosen and self._whole:
                    raise AlreadySettled(
                        "All messages of this batch are already settled: receive again to get more."
                    )
                self._whole = True
            return chosen

    def missing(self, named: Reasons, chosen: Dispositions) -> tuple[int, int]:
        """Count the named messages that have none of the dispositions chosen for them, and all.

        A message may be in the batch several times, having come here by several ways. So it is not
        enough to compare numbers.
        """
        found: dict[str, list[Range]] = defaultdict(list)
        for one in self.held:
            for disposition in chosen.get(name_of(one), ()):
                for position_id, part in disposition.items or ():
                    found[one.positions[position_id].send_id] += part
        settled = {send_id: ranges.normalised(parts) for send_id, parts in found.items()}
        wanted = [
            (send_id, part) for by_send in named.values() for send_id, part in by_send.items()
        ]
        left = (ranges.difference(part, settled.get(send_id, ())) for send_id, part in wanted)
        return sum(map(ranges.count, left)), sum(ranges.count(part) for _, part in wanted)

    def say(self, attempt: str, chosen: Dispositions) -> None:
        """Record dispositions that the commit of an attempt carries out.

        Raises:
            AlreadySettled: Another thread has settled some of the messages since they were chosen.
        """
        with self._lock:
            for one in self.held:
                if _beyond(chosen.get(name_of(one), ()), self.left(one, attempt)):
                    raise AlreadySettled(
                        "Another thread has settled some of these messages meanwhile: let one "
                        "thread at a time settle a message. Nothing was changed."
                    )
            said, known = self._said.setdefault(attempt, {}), self._left.setdefault(attempt, {})
            for name, found in chosen.items():
                left = known.pop(name, None)  # after an interrupt it is found anew
                said.setdefault(name, []).extend(found)
                if left is not None:
                    known[name] = _without(left, found)

    def unsay(self, attempt: str) -> None:
        """Forget the dispositions of an attempt."""
        with self._lock:
            self._left.pop(attempt, None)
            self._said.pop(attempt, None)

    def said(self, attempt: str) -> Dispositions:
        """Return the dispositions of an attempt."""
        return self._said.get(attempt, {})

    def settled(self, chosen: Dispositions) -> None:
        """Record dispositions that were carried out outside a transaction."""
        with self._lock:
            self._left.clear()
            for name, found in chosen.items():
                self._rest[name] = _without(dict(self._rest[name]), found)

    def forget(self, call: Unanswered) -> None:
        """Forget a settlement at once: it goes on now, or its outcome is known."""
        with self._lock:
            self.unanswered = tuple(one for one in self.unanswered if one is not call)

    def remember(self, call: Unanswered) -> None:
        """Remember a settlement at once that may have landed."""
        with self._lock:
            self.forget(call)
            self.unanswered = (*self.unanswered, call)

    def dispositions(self, one: HeldClaim, attempt: str) -> list[Disposition]:
        """Return a claim's dispositions in a commit: those recorded, and those that follow."""
        with self._lock:
            said = self.said(attempt)
            found = list(said.get(name_of(one), ()))
            if self.acquirer is None:
                return found
            rest = tuple(self.left(one, attempt).items())
            accepted = any(d.kind == model.ACCEPTED for ds in said.values() for d in ds)
            follows = model.RELEASED if accepted else model.ACCEPTED
            if self.keeping:
                follows = model.KEPT
            if rest:
                found.append(Disposition(follows, rest if found else None))
            return found

    def committed(self, attempt: str) -> None:
        """Record that an attempt's dispositions were carried out."""
        with self._lock:
            for one in self.held:
                self._rest[name_of(one)] = dict(self.left(one, attempt))
            self._left.clear()
            self._said.pop(attempt, None)
            if self.keeping:
                for one in self.held:
                    one.claim.lease()
                self.acquirer, self.keeping = None, False

    def _meant(
        self, one: HeldClaim, left: Parts, by_send: Mapping[str, tuple[Range, ...]] | None
    ) -> tuple[Item, ...]:
        """Find the selected messages of a claim: all that are left, or those among given ranges."""
        if by_send is None:
            return tuple(left.items())
        name = name_of(one)
        if name not in self._places:
            self._places[name] = _places(one, self._rest[name])
        places = self._places[name]
        found = sorted((place, send_id) for send_id in by_send for place in places.get(send_id, ()))
        items = (
            (position_id, ranges.intersection(left.get(position_id, ()), by_send[send_id]))
            for (_, position_id), send_id in found
        )
        return tuple((position_id, part) for position_id, part in items if part)


def completed(account: Account, chosen: Dispositions, complete: Complete) -> Dispositions:
    """Complete the dispositions of each claim, for example by their targets."""
    held = {name_of(one): one for one in account.held}
    return {
        name: [full for disposition in found for full in complete(held[name], disposition)]
        for name, found in chosen.items()
    }


def count(chosen: Dispositions) -> int:
    """Count the messages that have a disposition."""
    return sum(
        ranges.count(part)
        for found in chosen.values()
        for disposition in found
        for _, part in disposition.items or ()
    )


def _places(one: HeldClaim, among: Iterable[PositionId]) -> dict[str, list[tuple[int, PositionId]]]:
    """List positions of a claim by send, each with its number in the order of delivery."""
    found: dict[str, list[tuple[int, PositionId]]] = defaultdict(list)
    for number, position_id in enumerate(among):
        found[one.positions[position_id].send_id].append((number, position_id))
    return found


def _beyond(said: Iterable[Disposition], left: Parts) -> bool:
    """Return whether dispositions name messages that are not among those that are left."""
    return any(
        ranges.difference(part, left.get(position_id, ()))
        for disposition in said
        for position_id, part in disposition.items or ()
    )


def _without(left: Parts, said: Iterable[Disposition]) -> Parts:
    """Take the messages of dispositions out of those that are left, and return these."""
    taken: dict[PositionId, list[Range]] = defaultdict(list)
    for disposition in said:
        for position_id, part in disposition.items or ():
            taken[position_id] += part
    for position_id, gone in taken.items():
        rest = ranges.difference(left.get(position_id, ()), ranges.normalised(gone))
        if rest:
            left[position_id] = rest
        else:
            left.pop(position_id, None)
    return left


Name = tuple[str, int, int]
"""A claim's name that is unique over all queues: queue id, lane, sequence."""


Dispositions = dict[Name, list[Disposition]]
"""The dispositions of each claim, in the order of the calls."""


Complete = Callable[[HeldClaim, Disposition], Sequence[Disposition]]
"""Completes a disposition of a claim, which may split it."""
LaneWriter = Callable[[HeldClaim, Claim, int], Sequence[model.Entry]]


def name_of(one: HeldClaim) -> Name:
    """Return a claim's name that is unique over all queues."""
    return (one.info.queue_id, *one.claim.name)


def by_client(client: Client, claims: Sequence[HeldClaim]) -> list[tuple[Client, list[HeldClaim]]]:
    """Group claims into durable and transient ones: one append can settle a group."""
    kinds = ([one for one in claims if one.info.transient == kind] for kind in (False, True))
    return [(client.of(held[0].info), held) for held in kinds if held]


class Settling(Protocol):
    """One settlement outside a transaction, which may have been interrupted or be in doubt."""

    chosen: Dispositions

    def land(self) -> None:
        """Carry it out, or go on with it."""

    def outcome(self) -> bool | None:
        """Find out whether it was carried out; None if it was not, and still may be."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A settlement at once, and what the caller asked for.

    Attributes:
        asked: The arguments of the call.
        settling: The settlement.
    """

    asked: tuple[object, ...]
    settling: Settling


class AtOnce:
    """Settles claims of one client outside a transaction, by one append to their lanes."""

    def __init__(self, side: Client, involved: Sequence[HeldClaim], chosen: Dispositions) -> None:
        """Describe the settlement; nothing is appended yet.

        Args:
            side: The client of the durable or the transient part, whichever holds the claims.
            involved: The claims.
            chosen: The dispositions of their messages.
        """
        self.chosen = chosen
        self._side = side
        self._involved = involved
        self._append = side.append("settle", queue=involved[0].info.name)

    def land(self) -> None:
        """Append the settlements, unless an earlier call has done so.

        Raises:
            LeaseLost: Others may have some of the messages now, or have settled them.
            SettlementPending: An undecided transaction settles some of the claims.
            TransactionUnknown: It may have landed, or still land.
        """
        self._side.land_append(self._append, self._plan)

    def outcome(self) -> bool | None:
        """Find out whether it was carried out; None if it was not, and still may be."""
        return self._append.outcome()

    def _plan(self, _lost: int) -> Plan:
        stamp, moved = self._side.stamp(), Plan()

        def write(one: HeldClaim, held: Claim, sequence: int) -> list[model.Entry]:
            nonlocal moved
            written: list[model.Entry] = []
            for disposition in self.chosen[name_of(one)]:
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

        lanes = lane_plan(self._side, self._involved, write)
        posted = move.in_order(moved.entries, self._involved)
        return lanes + Plan(tuple(posted), moved.conditions)


def extend(
    side: Client,
    mine: Sequence[HeldClaim],
    seconds: float,
    pending: dict[Name, SettlementPending] | None = None,
    lost: dict[Name, LeaseLost] | None = None,
) -> None:
    """Extend the leases of claims to some seconds from now, by one append.

    A lease that ends later stays as it is. The new deadlines are recorded in the claims: those of
    the tries that landed, and of extensions by several threads that of the last one in its lane.

    Args:
        side: The client of the durable or the transient part, whichever holds the claims.
        mine: The claims.
        seconds: The length of the new leases.
        pending: Takes, with the error that says so, the claims that an undecided transaction
            settles, so that the leases of the others do not end for that; None refuses them.
        lost: Takes the claims that are lost in the same way.
    """

    def plan(_lost: int) -> Plan | None:
        if pending is not None:
            pending.clear()
        stamp = side.stamp()
        wanted_ms = stamp.now_ms + round(seconds * 1000)

        def write(one: HeldClaim, held: Claim, sequence: int) -> list[model.Entry]:
            # As this clock sees it: the deadline may be one of a clock that was years ahead.
            until_ms = max(held.ends_at_ms(stamp.now_ms), wanted_ms)
            return [planning.lease_extended(one.info.queue_id, held, sequence, until_ms, stamp)]

        found = lane_plan(side, mine, write, pending, lost)
        return found if found.entries else None

    holder = mine[0].claim.acquirer
    landed = side.land(
        plan,
        "extend lease",
        transaction_id=None if holder is None else holder.key,
        queue=mine[0].info.name,
    )
    by_name = {name_of(one): one.claim for one in mine}
    with _recording:
        for entry in landed.entries if landed else ():
            if entry.kind == model.LEASE_EXTENDED:
                name = (entry.queue_id or "", entry.lane or 0, entry.claim_sequence or 0)
                _extended(by_name[name], entry)


def _extended(claim: Claim, entry: model.Entry) -> None:
    """Record an extension that landed in a claim as this client got it."""
    if entry.version <= claim.version:  # a later one, of another thread, is recorded already
        return
    before_ms = claim.deadline_ms if claim.began_at_ms <= entry.recorded_at_ms else 0
    claim.hold(entry, 0)
    # What a commit kept longer stays, unless the clock that the deadline is by was set back.
    claim.deadline_ms = max(claim.deadline_ms, before_ms)


def kept_until(claim: Claim, deadline_ms: int, at_ms: int) -> None:
    """Record in a claim, as this client got it, until when a commit keeps its messages.

    A lease that ends later stays as it is: it was extended since, or was longer before.

    Args:
        claim: The claim.
        deadline_ms: The deadline that the commit gives it.
        at_ms: When it was committed.
    """
    with _recording:
        claim.deadline_ms = max(claim.deadline_seen_ms(at_ms), deadline_ms)
        claim.began_at_ms = min(claim.began_at_ms, at_ms)


def check_ours(side: Client, mine: Sequence[HeldClaim]) -> None:
    """Check that claims of this client are still held.

    Raises:
        LeaseLost: Others may have some of the messages now.
    """
    lane_plan(side, mine, lambda _one, _held, _sequence: (), {})


def lane_plan(
    side: Client,
    involved: Sequence[HeldClaim],
    write: LaneWriter,
    pending: dict[Name, SettlementPending] | None = None,
    lost: dict[Name, LeaseLost] | None = None,
) -> Plan:
    """Plan entries of the lanes of this client's claims, which it must still hold.

    Args:
        side: The client of the durable or the transient part, whichever holds the claims.
        involved: The claims that the entries are about.
        write: Given a claim as this client got it, the claim as recorded in the journal, and the
            next sequence number of its lane, makes entries with sequence numbers from there.
        pending: Takes the claims that an undecided transaction settles, which are left out; None
            refuses them.
        lost: Takes the claims that are lost in the same way.
    """
    entries: list[model.Entry] = []
    firsts: dict[tuple[str, int], int] = {}
    nexts: dict[tuple[str, int], int] = {}
    folds: dict[str, QueueState] = {}
    with side.lock:
        for one in involved:
            try:
                fold, held = still_ours(side, one, folds)
            except SettlementPending as error:
                if pending is None:
                    raise
                pending[name_of(one)] = error
                continue
            except LeaseLost as error:
                if lost is None:
                    raise
                lost[name_of(one)] = error
                continue
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


def still_ours(
    client: Client, one: HeldClaim, folds: dict[str, QueueState]
) -> tuple[QueueState, Claim]:
    """Find a claim of this client in the present state of its queue.

    Args:
        client: Reads the journal; its lock must be held as long as the result is used.
        one: The claim.
        folds: The states of queues that were read for the same append; each is read once.

    Raises:
        LeaseLost: The claim has ended: it was taken over, or settled.
        SettlementPending: A transaction that is not decided yet settles the claim.
    """
    if one.info.queue_id not in folds:
        folds[one.info.queue_id] = client.states.for_update(one.info)
    fold = folds[one.info.queue_id]
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if claim.bound is None:
        return fold, claim
    # The transaction is read first and the queue after it, so that its settlements are seen.
    bound = claim.bound
    state = client.states.key_states([bound.key])[bound.key]
    fold = folds[one.info.queue_id] = client.states.fold(one.info)
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if not state.is_over(bound):
        what = "is prepared and settles these messages: decide it first"
        if one.info.transient:
            what = "settles these messages, and its outcome is unknown: recover() finds it"
        raise SettlementPending(
            f"Transaction {bound.key!r} {what}.",
            transaction_id=bound.key,
        )
    return fold, claim


def check_held(one: HeldClaim, held: Claim, disposition: Disposition) -> None:
    """Check that all messages to be settled are still in flight under their claim.

    Args:
        one: The claim as this client got it.
        held: The claim as recorded, from the same reading as the lane's next sequence number, so
            that any later change bars the append.
        disposition: The disposition of the messages to be settled.

    Raises:
        LeaseLost: Some of the messages were settled meanwhile.
    """
    for position_id, part in disposition.items or ():
        if ranges.difference(part, held.items.get(position_id, ())):
            raise _lost(one)


def _lost(one: HeldClaim) -> LeaseLost:
    return LeaseLost(
        f"The claim {one.claim.name} on {one.info.name!r} was lost: its lease ended and others "
        "may have the messages now, or they are settled: receive again, for longer work with "
        "batch.heartbeat() or more lease_seconds. Nothing was changed.",
        queue=one.info.name,
        claim=one.claim.name,
    )
