"""Receive durable and transient messages from a queue, at once or after a wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from txnqueue.client.client import Client, QueuePart
from txnqueue.client.consumer import Consumer
from txnqueue.core import model
from txnqueue.core.planning import Disposition, Plan, lane_conditions, settlement
from txnqueue.core.settings import LEASE_SECONDS_MAX, QueueInfo, check_number
from txnqueue.core.state import AttemptOwner
from txnqueue.core.state.branch import Branch
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.claim import ClaimPlanner, HeldClaim, Wanting
from txnqueue.messages.settlement import by_client

logger = logging.getLogger("txnqueue")
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0
_REMOVING = frozenset({model.DUPLICATE, model.DEAD_LETTERED})
"""What a claim removes instead of acquiring it, up to a limit."""


class Poller:
    """Waits until another try to receive is worthwhile.

    Between two tries it reads only the journal's version, a listing of one folder, at growing
    intervals; the memory of this process, which costs nothing, all the time. A try is worthwhile
    when one of them has changed, when a delay, a lease or the time-out of a branch has ended, or
    when the clock was set back, by which these end at other instants.
    """

    def __init__(
        self,
        client: Client,
        info: QueueInfo,
        wait_seconds: float,
        stopping: threading.Event | None = None,
    ) -> None:
        """Begin to wait, before the first try.

        Args:
            client: The client whose clock and journal are used.
            info: The queue.
            wait_seconds: How long to wait in all.
            stopping: Ends the wait when set; sleeps then use this event, not the client's clock.
        """
        self._stopped = (stopping or threading.Event()).is_set
        self._pause: Callable[[float], object] = (
            client.runtime.sleep if stopping is None else stopping.wait
        )
        self._client = client
        self._info = info
        self._deadline = client.runtime.monotonic() + wait_seconds
        self._waits = wait_seconds > 0
        self._looked_ms = client.runtime.now_ms()
        self._seen = now(client) if self._waits else (-1, -1)

    def wait_for_change(self) -> bool:
        """Wait until another try is worthwhile; return false once time is up or it was stopped."""
        if not self._waits:
            return False
        runtime, pause, due_ms = self._client.runtime, FIRST_SECONDS, self._due_ms()
        while True:
            left = self._deadline - runtime.monotonic()
            if left <= 0 or self._stopped():
                return False
            if due_ms is not None:
                left = min(left, max(0.001, (due_ms - runtime.now_ms()) / 1000))
            self._sleep(min(left, pause))
            seen, self._seen = self._seen, now(self._client)
            now_ms = runtime.now_ms()
            is_set_back = now_ms < self._looked_ms  # the instant that is waited for moves away
            if self._seen != seen or is_set_back or (due_ms is not None and now_ms >= due_ms):
                self._looked_ms = now_ms
                return True
            pause = min(2 * pause, LONGEST_SECONDS)

    def _due_ms(self) -> int | None:
        """Return when (ms) the next delay, lease or time-out of a branch with messages ends.

        One that has ended since the last try began counts: that try may have been too early.
        """
        now_ms = self._client.runtime.now_ms()
        instants: list[int] = []
        for part in self._client.parts_of(self._info):
            with part.state() as fold:
                waiting = [s for lane in fold.lanes.values() for s in lane.available]
                rules = self._client.cache.newest(self._info).redelivery
                instants += [s.position.available_at_ms or 0 for s in waiting]
                instants += [s.due_ms(rules) for s in waiting if s.failed_at_ms]
                claims = list(fold.claims())
                instants += [claim.ends_at_ms(now_ms) for claim in claims]
                held = {
                    c.owner.key: c.began_by_ms
                    for c in claims
                    if isinstance(c.owner, AttemptOwner) and c.owner.is_branch
                }
                branches = map(Branch.of, part.client.states.key_states(held).values())
                instants += [
                    b.ends_at_ms(now_ms, held[b.key]) for b in branches if b is not None and b.open
                ]
        return min((instant for instant in instants if instant > self._looked_ms), default=None)

    def _sleep(self, seconds: float) -> None:
        """Sleep, at most until the journal in memory changes or the wait is stopped."""
        memory = self._client.store.transient.journal
        while seconds > 0 and not self._stopped():
            self._pause(min(seconds, FIRST_SECONDS))
            if memory.known_version() != self._seen[1]:
                return
            seconds -= FIRST_SECONDS


VersionLimit = tuple[int, int]
"""A version of the durable journal, and one of the journal in memory."""


def now(client: Client) -> VersionLimit:
    """Return the current versions of the durable and the in-memory journal."""
    store = client.store
    return store.journal.version(), store.transient.journal.known_version()


def upto_of(upto: VersionLimit | None, part: QueueInfo) -> int | None:
    """Return the version that applies to a part of a queue."""
    return upto[int(part.transient)] if upto is not None else None


def _parts_in_turn(
    client: Client, info: QueueInfo, acquirer: Acquirer | None, *, durable_done: bool
) -> list[QueuePart]:
    """List the parts of a queue to claim from; each of the two comes first every other time."""
    parts = client.parts_of(info)
    if acquirer is not None and not acquirer.takes_transient:
        parts = parts[:1]
    if durable_done:
        return parts[1:]
    if client.transient.turn(f"{info.queue_id}/kinds") % 2 == 0:
        parts.reverse()
    return parts


def _stays_alone(one: HeldClaim) -> bool:
    claim = one.claim
    return claim.former > 0 or one.info.redelivery.is_dead(claim.delivery_count + 1, claim.size)


def _claimed(planner: ClaimPlanner, info: QueueInfo) -> list[HeldClaim]:
    transaction = planner.transaction
    while True:
        landed = planner.client.land(
            planner.plan,
            "claim",
            transaction_id=transaction.id if transaction else None,
            queue=info.name,
        )
        if landed is None:
            return []
        held = planner.held(landed.entries)
        if held or not any(entry.kind in _REMOVING for entry in landed.entries):
            return held

        # Only what nobody gets was found: there may be other messages behind it.


@contextmanager
def given(client: Client, held: Sequence[HeldClaim], acquirer: Acquirer | None) -> Iterator[None]:
    """Record that a caller is given the messages of claims, unless the block fails."""
    consumer = _consumer_of(client, acquirer)
    try:
        for one in held:
            consumer.give(one.info, one.claim.name)
        yield
    except BaseException:
        for one in held:
            consumer.take_back(one.info, one.claim.name)
        raise


def _consumer_of(client: Client, acquirer: Acquirer | None) -> Consumer:
    return client.consumer if acquirer is None else acquirer.consumer


def give_back(client: Client, held: Sequence[HeldClaim]) -> list[HeldClaim]:
    """Release messages that are not delivered because another claim of the call failed.

    Args:
        client: The client of the store.
        held: The claims, of durable and of transient messages.

    Returns:
        The claims of which it is not known that they were released. If nobody else does it, their
        messages come back when the lease ends.
    """
    left: list[HeldClaim] = []
    for side, claims in by_client(client, held):
        try:
            side.land(partial(_giving_back, side, claims), "settle", queue=claims[0].info.name)
        except Exception as error:  # the error of the other claim tells more
            name = claims[0].info.name
            logger.warning("claims not given back queue=%s error=%s", name, error)
            left += claims
    return left


def _giving_back(side: Client, held: Sequence[HeldClaim], _lost: int) -> Plan | None:
    """Plan the release of those claims that have not ended."""
    plan, stamp = Plan(), side.stamp()
    places: dict[tuple[str, int], int] = {}
    with side.lock:
        for one in held:
            queue_id, fold = one.info.queue_id, side.states.fold(one.info)
            claim = fold.claim(*one.claim.name)
            if claim is None:
                continue
            lane = (queue_id, claim.lane)
            sequence = places.setdefault(lane, fold.lanes[claim.lane].next_sequence)
            places[lane] += 1
            released = Disposition(model.RELEASED)
            entry = settlement(queue_id, claim, released, stamp, sequence=sequence, owner=None)
            plan += Plan((entry,), lane_conditions(queue_id, [(claim.lane, sequence)]))
    return plan if plan.entries else None


def claim(
    client: Client,
    info: QueueInfo,
    limit: int,
    acquirer: Acquirer | None,
    lease_seconds: float | None = None,
    *,
    upto: VersionLimit | None = None,
    wanted: Wanting | None = None,
    beside: Collection[str] = (),
    before: Sequence[HeldClaim] = (),
) -> list[HeldClaim]:
    """Claim durable and transient messages, for an attempt or under a lease.

    Messages that came back from a failure are not claimed together with the other kind, nor is a
    single message that is dead if this delivery fails: its claim says that it is alone.

    Args:
        client: The client that claims.
        info: The queue.
        limit: The most messages.
        acquirer: The attempt that acquires them; None for a lease.
        lease_seconds: How long the messages are held.
        upto: Leave out messages posted after this.
        wanted: Cuts the selected messages out of segments of a lane.
        beside: The undecided attempts of the same drain, whose claims are not taken over.
        before: Claims of the durable part made already, which belong to the batch and count
            towards the limit.
    """
    seconds = lease_of(info, acquirer, lease_seconds)
    held = list(before)
    for part in _parts_in_turn(client, info, acquirer, durable_done=bool(before)):
        left = limit - sum(one.claim.count for one in held)
        if left <= 0 or any(map(_stays_alone, held)):
            break
        try:
            planner = ClaimPlanner(
                part.client,
                part.info,
                left,
                seconds,
                acquirer,
                upto=upto_of(upto, part.info),
                beside=beside,
                wanted=wanted,
                fresh_only=bool(held),
            )
            held += _claimed(planner, info)
        except BaseException:
            give_back(client, held[len(before) :])
            raise
    return held


def lease_of(
    info: QueueInfo, acquirer: Acquirer | None, lease_seconds: float | None = None
) -> float:
    """Return the lease in seconds: the call's, else its transaction's, else the queue's."""
    seconds = lease_seconds
    if seconds is None and acquirer is not None:
        seconds = acquirer.lease_seconds
    if seconds is None:
        seconds = info.settings.lease_seconds
    check_number("lease_seconds", seconds, 0.001, LEASE_SECONDS_MAX)
    return seconds
