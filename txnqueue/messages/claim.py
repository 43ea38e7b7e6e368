"""Plan the claims of a receive: messages that are available or can be taken over.

The planner plans anew after each lost race, always from the queue as it has just read it. The
entries that landed show which messages it got.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry, Item, PositionId
from txnqueue.core.planning import Plan, Removal, Selection, Target
from txnqueue.core.planning.tries import Tries
from txnqueue.core.settings import RANGES_PER_CALL_MAX, QueueInfo
from txnqueue.core.state import (
    Claim,
    Errors,
    LaneState,
    Owner,
    Position,
    QueueState,
    Segment,
    compaction,
)
from txnqueue.messages import duplicates
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.takeover import LEASE_OVER, Takeover, Takeovers

Wanting = Callable[[LaneState, Sequence[Segment]], Iterable[Segment]]


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim of this client, with the positions of its messages."""

    info: QueueInfo
    claim: Claim
    positions: dict[PositionId, Position]

    @property
    def items(self) -> tuple[Item, ...]:
        """The messages that were claimed, in delivery order."""
        return tuple(self.claim.items.items())


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
        beside: Collection[str] = (),
        wanted: Wanting | None = None,
        fresh_only: bool = False,
    ) -> None:
        """Describe the receive.

        Args:
            client: The client that receives.
            info: The queue.
            limit: The most messages.
            lease_seconds: How long the messages are held.
            transaction: The attempt that acquires them; None for a lease of the consumer.
            upto: Leave out positions that were posted after this version.
            beside: The undecided attempts of the same drain, whose claims are never taken over,
                however late: the same append commits one of them, or their handlers run.
            wanted: Cuts the selected messages out of segments of a lane.
            fresh_only: Whether to leave messages that came back from a failure for another
                receive, because the batch has other messages already.
        """
        self.client = client
        self.info = info
        self.limit = limit
        self.lease_seconds = lease_seconds
        self.transaction = transaction
        self.consumer = client.consumer if transaction is None else transaction.consumer
        self.upto = upto
        self.wanted = wanted
        self.fresh_only = fresh_only
        self.takeovers = Takeovers(client, info, beside, fresh_only=fresh_only)
        self._tries = Tries()
        self._turn: int | None = None
        self._positions: dict[PositionId, Position] = {}

    def plan(self, lost: int) -> Plan | None:
        """Plan the claim from the queue's present state; None if there is nothing to claim.

        Raises:
            LeaseLost: Another client opened the same consumer id later.
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
            self.upto = fold.version  # leaves messages posted during the selector's query
        in_turn = self._in_turn(fold, lost)
        takeover = self.takeovers.find(fold, owner, stamp.now_ms)
        chosen = self._choose(fold, takeover, stamp.now_ms, in_turn)
        if self.takeovers.asks_closely(fold, owner, stamp.now_ms) and (
            not chosen or client.asks_again(info.queue_id)
        ):
            takeover = self.takeovers.find(fold, owner, stamp.now_ms, closely=True)
            in_turn.sort(key=lambda lane: lane not in takeover.superseded)
            chosen = self._choose(fold, takeover, stamp.now_ms, in_turn)
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
        plan = takeover.tombstones_of(info.queue_id, chosen, stamp)
        deadline_ms = stamp.now_ms + round(self.lease_seconds * 1000)
        shared = self.fresh_only or sum(bool(c.segments) for c in chosen) > 1
        for selection in chosen:
            compacted, selection = compaction.before(fold, selection, stamp, client.log_max)
            plan += compacted
            for removal in self._removals(selection, errors):
                gone, selection = planning.remove(
                    info.queue_id, info.name, selection, removal, stamp
                )
                plan += gone
            self.consumer.ask(info, (selection.lane, selection.sequence))
            plan += planning.claim(
                info.queue_id, selection, owner, deadline_ms, stamp, shared=shared
            )
        return plan

    def held(self, entries: Iterable[Entry]) -> list[HeldClaim]:
        """Read this client's claims from the entries that landed.

        If several tries landed, one of them without a reply, the first may have ended meanwhile:
        then the later one holds its messages.
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
        lease = self.consumer.owner(self.info, fold, self.client.runtime.now_ms())
        if self.transaction is None:
            return lease
        return self.transaction.owner.claiming_as(lease)

    def _in_turn(self, fold: QueueState, lost: int) -> list[int]:
        """List the lanes in the order in which they are tried, beginning with the next in turn.

        After a lost race other lanes come first, unless the lost try may still land.
        """
        lanes = len(fold.lanes)
        if self._turn is None:  # once in a receive, however often it is planned
            self._turn = self.client.turn(self.info.queue_id)
        turn = lost or self._turn
        start = (zlib.crc32(self.consumer.id.encode()) + turn) % lanes
        return self._tries.in_order(fold, ((start + step) % lanes for step in range(lanes)))

    def _choose(
        self, fold: QueueState, takeover: Takeover, now_ms: int, in_turn: Iterable[int]
    ) -> list[Selection]:
        """Choose messages, lane by lane."""
        chosen: list[Selection] = []
        left, pieces = self.limit, RANGES_PER_CALL_MAX
        failures = 0 if self.fresh_only else None
        taken = self._taken_lanes(fold, takeover)
        for lane in in_turn:
            if left <= 0 or pieces <= 0:
                break
            if lane in taken:
                continue
            selection = self._select(fold, takeover, lane, left, now_ms, pieces_max=pieces)
            if not selection:
                continue
            if selection.segments:
                # Failed messages share a claim with no others: those that failed once go together
                # over all lanes, as before; those that failed more often go lane by lane.
                if failures not in (None, selection.delivery_count):
                    continue
                failures = selection.delivery_count
            chosen.append(selection)
            pieces -= len(selection.segments)
            left = 0 if failures is not None and failures > 1 else left - selection.count
        return chosen

    def _taken_lanes(self, fold: QueueState, takeover: Takeover) -> set[int]:
        """Find the lanes of an ordered queue in which others hold what is not taken over.

        Those who hold are consumers, and the transactions of this one.
        """
        if not self.info.settings.ordered:
            return set()
        own = set(self.takeovers.beside)
        if self.transaction is not None:
            own.add(self.transaction.attempt_id)
        others, ending = self.consumer.others(self.info, fold, own), takeover.ending()
        return {claim.lane for claim in others if claim.name not in ending}

    def _removals(self, selection: Selection, errors: Mapping[PositionId, Errors]) -> list[Removal]:
        """Return the removals of the dead, expired and duplicate messages that the claim found."""
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
            # The ended claims hold only purged or waiting messages: this entry ends the claims.
            return [Removal(model.PURGED, (), LEASE_OVER)]
        return found

    def _select(
        self,
        fold: QueueState,
        takeover: Takeover,
        lane: int,
        limit: int,
        now_ms: int,
        *,
        pieces_max: int,
    ) -> Selection:
        rules = self.info.redelivery
        superseded = takeover.superseded.get(lane, ())
        returning = takeover.returning(fold, lane, now_ms)
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
            consumer=self.consumer.id,
            in_order=self.info.settings.ordered,
            pieces_max=pieces_max,
        )
        # An entry ends these claims so that the wait of their messages begins: else it would begin
        # anew at each look until the lease ends.
        waiting = any(segment.waits(now_ms, rules) for segment in returning)
        chosen.ending = waiting or takeover.purges(lane)
        return chosen
