"""Acquire waiting messages for a move inside a transaction.

The transaction claims every message that a move outside a transaction would take, including delayed
and redelivered ones: in each lane one claim for each history. The claims deliver nothing, so a
rollback returns the messages with their history; but they no longer wait for their redelivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Protocol

from txnqueue.client.client import Client, QueuePart
from txnqueue.core import model, planning, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning import Plan, Selection, Target
from txnqueue.core.settings import MESSAGES_PER_RECEIVE_MAX, QueueInfo, check_count
from txnqueue.core.state import LaneState, Segment
from txnqueue.errors import TransactionFinished
from txnqueue.messages import duplicates, receive, removal
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.claim import ClaimPlanner, HeldClaim, Wanting
from txnqueue.messages.move import Route, routed
from txnqueue.messages.selector import Selector
from txnqueue.messages.settlement import Account, Name, completed, count, name_of

_EVERYTHING = 1 << 62
_Lanes = dict[int, tuple[Range, ...]]


class Mover(Acquirer, Protocol):
    """An attempt of a transaction that moves the messages it acquires."""

    def add_account(self, account: Account) -> None:
        """Record messages acquired inside the transaction.

        Raises:
            TransactionFinished: It takes no more work.
        """


def move(
    client: Client,
    info: QueueInfo,
    tx: Mover | None,
    route_of: Callable[[QueuePart], Route],
    reason: str,
    *,
    selector: Selector | None,
    limit: int | None,
    among: Callable[[Segment], bool] = lambda _segment: True,
    routed_first: bool = False,
) -> int:
    """Move waiting messages, by the commit of a transaction or at once.

    Args:
        client: The client that moves.
        info: The queue.
        tx: The transaction; None moves at once.
        route_of: Returns the route of the messages in each part of the queue.
        reason: The reason recorded in the history.
        selector: Selects messages; None for all that wait.
        limit: The most messages; None for any number.
        among: Returns whether a segment is eligible at all.
        routed_first: Whether all messages are routed before the first append, so that none is
            moved if one of them cannot be; for routes that read no payload.

    Returns:
        The number of messages moved, or to be moved by the commit.
    """
    if limit is not None:
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
    if tx is not None and tx.already_committed:
        return 0
    routes = [
        (part, route_of(part))
        for part in client.parts_of(info)
        if tx is None or tx.takes_transient or not part.info.transient
    ]
    wanted = selector.of_lane if selector is not None else None
    if routed_first:
        _route_all(routes, wanted, among, limit)
    if tx is not None:
        return move_inside(routes, tx, reason, wanted, among=among, limit=limit)
    progress = removal.Progress()
    with progress.telling(reason):
        for part, route in routes:
            removal.remove(
                part.client,
                part.info,
                model.MOVED,
                selector,
                removal.moving(route, reason),
                progress=progress,
                among=among,
                limit=limit,
            )
    return progress.removed


def _route_all(
    routes: Sequence[tuple[QueuePart, Route]],
    wanted: Wanting | None,
    among: Callable[[Segment], bool],
    limit: int | None,
) -> None:
    """Route all messages that will be moved: the route raises an error before anything has moved.

    Messages that others take or send meanwhile are routed once more when they are moved.
    """
    left = _EVERYTHING if limit is None else limit
    seen: dict[str, int] = {}  # messages posted while the selector is evaluated are left out

    def look(part: QueuePart, route: Route) -> int:
        fold = part.client.states.for_update(part.info)
        upto = seen.setdefault(fold.queue_id, fold.version)
        left_out = duplicates.left_out(part.client, part.info, fold)
        there = 0
        for lane in fold.lanes.values():
            waiting = [s for s in lane.available if s.by(upto) and among(s)]
            chosen = iter(waiting if wanted is None else wanted(lane, waiting))
            for segment in chosen:
                going: tuple[Range, ...] = ((segment.first, segment.last),)
                if left_out is not None:
                    going = ranges.difference(going, left_out(segment))
                route([segment.cut(first, last) for first, last in going])
                there += ranges.count(going)
                if there >= left:
                    return there
        return there

    for part, route in routes:
        if left > 0:
            left -= part.client.informed(partial(look, part, route))


def move_inside(
    routes: Sequence[tuple[QueuePart, Route]],
    tx: Mover,
    reason: str,
    wanted: Wanting | None,
    *,
    among: Callable[[Segment], bool] = lambda _segment: True,
    limit: int | None = None,
) -> int:
    """Acquire waiting messages now, and let the transaction's commit move them.

    A lane with very many pieces takes several claims. The transaction learns of none before the
    last one has landed: if one fails, the others are given back, and its commit moves none of them.

    Args:
        routes: The parts of the queue, each with the route of its messages.
        tx: The transaction.
        reason: The reason recorded in the history.
        wanted: Cuts the selected messages out of segments of a lane; None for all that wait.
        among: Returns whether a segment is eligible at all.
        limit: The most messages; None for any number.

    Returns:
        The number of messages that the commit will move.
    """
    held: list[HeldClaim] = []
    planned: dict[Name, Route] = {}
    left = _EVERYTHING if limit is None else limit
    try:
        for part, route in routes:
            if part.info.transient and not tx.takes_transient:
                continue
            client, info, more = part.client, part.info, True
            upto = client.store.journal.version()
            while more and left > 0:
                taker = _Taker(
                    client, info, left, tx, upto, route=route, wanted=wanted, among=among
                )
                landed = client.land(taker.plan, "claim", transaction_id=tx.id, queue=info.name)
                found = taker.held(landed.entries if landed else ())
                held += found
                planned.update((name_of(one), taker.planned_route) for one in found)
                left -= sum(one.claim.count for one in found)
                more = taker.more or (landed is not None and taker.has_left(landed.entries))
    except BaseException:
        _release_held(held, tx)
        raise
    try:
        with receive.given(tx.client, held, tx):
            return _move_held(Account(held, tx), tx, planned, reason) if held else 0
    except TransactionFinished:  # nothing is recorded: another thread decides it already
        receive.give_back(tx.client, held)
        raise


def _move_held(account: Account, tx: Mover, planned: Mapping[Name, Route], reason: str) -> int:
    """Record that the commit moves messages that were just acquired."""
    chosen = completed(
        account,
        account.chosen(model.MOVED, None, reason, tx.attempt_id),
        lambda one, said: routed(planned[name_of(one)], one, said),
    )
    account.say(tx.attempt_id, chosen)
    moved = count(chosen)
    tx.add_account(account)  # only after the dispositions: without them a commit accepts these
    return moved


def _release_held(held: Sequence[HeldClaim], tx: Mover) -> None:
    """Release messages that the transaction is not going to move, at its end if not now."""
    left = receive.give_back(tx.client, held)
    if not left:
        return
    account = Account(left, tx)
    account.say(tx.attempt_id, account.chosen(model.RELEASED, None, None, tx.attempt_id))
    with suppress(TransactionFinished):  # once it is decided, they are nobody's and come back
        tx.add_account(account)


class _Taker(ClaimPlanner):
    """Claims all waiting messages that are wanted, and routes them before it claims them."""

    def __init__(
        self,
        client: Client,
        info: QueueInfo,
        limit: int,
        tx: Acquirer,
        upto: int,
        *,
        route: Route,
        wanted: Wanting | None,
        among: Callable[[Segment], bool],
    ) -> None:
        lease_seconds = tx.lease_seconds or info.settings.lease_seconds
        super().__init__(client, info, limit, lease_seconds, tx, upto=upto, wanted=wanted)
        self.more = False
        self._tx = tx
        self._route = route
        self._among = among
        self._lanes: dict[PositionId, tuple[str, _Lanes]] = {}

    def plan(self, lost: int) -> Plan | None:
        """Plan the claims of all wanted messages; None if there are none."""
        with self.client.lock:
            return self._plan_claims()

    def has_left(self, landed: Sequence[Entry]) -> bool:
        """Return whether an earlier try landed, beside which there may be more."""
        return self._tries.something_is_left(landed, self.info.queue_id)

    def _plan_claims(self) -> Plan | None:
        client, info = self.client, self.info
        fold, stamp = client.states.for_update(info), client.stamp()
        owner = self._owner(fold)
        self.consumer.forget_ended(info, fold)
        left = self.limit
        self.more, self._tries.wanted = False, None
        plan = Plan()
        chosen: list[Selection] = []
        places: dict[int, int] = {}
        left_out = duplicates.left_out(client, info, fold)
        for number in self._tries.in_order(fold, fold.lanes):
            lane = fold.lanes[number]
            twice: list[Segment] = []
            once, more = removal.first_of(self._waiting(lane), left, left_out, twice)
            self.more = self.more or more
            left -= sum(segment.size for segment in once)
            here = Selection(lane.lane, lane.next_sequence)
            if once or twice:
                places[here.lane] = here.sequence
            if twice:
                said = planning.leaving_out(twice)
                gone, here = planning.remove(info.queue_id, info.name, here, said, stamp)
                plan += gone
            chosen += _by_history(here, once)
        deadline_ms = stamp.now_ms + round(self.lease_seconds * 1000)
        for selection in chosen:
            plan += planning.claim(
                info.queue_id, selection, owner, deadline_ms, stamp, counts=False
            )
        self._tries.want(plan.entries, info.queue_id)
        if not places or not self._tries.excluded_by(fold, places):
            return None
        self._tries.note(places)
        self._note([segment for selection in chosen for segment in selection.segments])
        for selection in chosen:
            self.consumer.ask(info, (selection.lane, selection.sequence))
        self._tx.claiming(transient=info.transient)
        return plan

    def planned_route(self, segments: Sequence[Segment]) -> list[tuple[Target, list[Segment]]]:
        """Route messages as was determined before they were claimed."""
        found: dict[str, tuple[dict[PositionId, _Lanes], list[Segment]]] = {}
        for segment in segments:
            position_id = segment.position.position_id
            queue_id, lanes = self._lanes[position_id]
            known, going = found.setdefault(queue_id, ({}, []))
            known[position_id] = lanes
            going.append(segment)
        return [(Target(queue_id, known), going) for queue_id, (known, going) in found.items()]

    # -------------------------------------------------------------------------- helpers

    def _waiting(self, lane: LaneState) -> Iterator[Segment]:
        upto = self.upto
        waiting = [
            s
            for s in lane.available
            if (upto is None or s.position.place[0] <= upto) and self._among(s)
        ]
        return iter(waiting if self.wanted is None else self.wanted(lane, waiting))

    def _note(self, segments: Sequence[Segment]) -> None:
        """Note where messages go, besides those of earlier plans, which may have landed too."""
        for target, going in self._route(segments):
            for position, _ in planning.grouped(going):
                self._positions[position.position_id] = position
                _, known = self._lanes.setdefault(position.position_id, (target.queue_id, {}))
                for lane, part in target.placed(position, position.ranges):
                    known[lane] = ranges.added(known.get(lane, ()), part)


def _by_history(here: Selection, segments: Sequence[Segment]) -> list[Selection]:
    """Sort a lane's messages into claims, each of messages with one history."""
    by_history = sorted(segments, key=_history)
    found = [list(same) for _, same in groupby(by_history, key=_history)]
    return [Selection(here.lane, here.sequence + number, same) for number, same in enumerate(found)]


def _history(segment: Segment) -> tuple[int, int, list[str]]:
    return (segment.delivery_count, segment.former, sorted(segment.not_to))
