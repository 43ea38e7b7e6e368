"""A consumer: the holder of messages, as a manager or a stream has opened it."""

from __future__ import annotations

from collections.abc import Collection

from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import AttemptOwner, Claim, LeaseOwner, Owner, QueueState
from txnqueue.errors import LeaseLost

ClaimName = tuple[int, int]
"""The lane and the sequence number of a claim."""
Place = tuple[str, bool, int, int]
"""The queue of a claim, whether it is of transient messages, and its name."""


class Consumer:
    """A consumer id that a manager or a stream has opened.

    Its first look at a queue gives it an epoch there. Whoever opens an id later has a higher
    epoch: it takes over what the earlier one holds, and fences it.

    Attributes:
        id: The consumer id.
    """

    def __init__(self, consumer_id: str, opened_ms: int) -> None:
        """Open a consumer id; no queue is looked at yet.

        Args:
            consumer_id: The consumer id.
            opened_ms: The time, in epoch milliseconds.
        """
        self.id = consumer_id
        self._opened_ms = opened_ms
        self._epochs: dict[tuple[str, bool], int] = {}
        self._asked: set[Place] = set()
        self._given: set[Place] = set()
        """The claims in ordered queues that calls asked for; those that a caller was given."""

    def owner(self, info: QueueInfo, fold: QueueState, now_ms: int) -> LeaseOwner:
        """Return the owner of this consumer's leases on a queue, with its epoch there.

        An epoch is above those of all claims that the id has, and at least the time at which the id
        was opened: else two that open it while it holds nothing would have the same one, and work
        side by side. It is not the time of the first look at the queue: else an earlier opening
        would fence a later one on the queues that it comes to last. For the same reason it gets
        none while a later opening holds messages there.

        Args:
            info: The queue, or its transient part.
            fold: Its newest state.
            now_ms: The instant.

        Raises:
            LeaseLost: The same consumer id was opened later, elsewhere.
        """
        claims = [claim for claim in fold.claims() if claim.owner.consumer == self.id]
        latest = max((claim.owner.epoch for claim in claims), default=0)
        part = info.queue_id, info.transient
        if part not in self._epochs and any(self._is_fenced_by(c, now_ms) for c in claims):
            raise self._fenced()
        epoch = self._epochs.setdefault(part, max(latest + 1, self._opened_ms))
        if latest > epoch:
            raise self._fenced()
        return LeaseOwner(self.id, epoch, self._opened_ms)

    def _is_fenced_by(self, claim: Claim, now_ms: int) -> bool:
        """Return whether a claim that it finds at its first look is a later opening's.

        An instant that has not come yet is by another clock, which was ahead: its opening may have
        been the earlier one, and is taken over. Whichever clock was wrong, this ends with the
        lease: else an opening whose clock is behind might never get the messages.
        """
        is_later = self._opened_ms < claim.owner.opened_ms <= now_ms
        return is_later and claim.ends_at_ms(now_ms) > now_ms

    def _fenced(self) -> LeaseLost:
        return LeaseLost(
            f"Another instance opened the consumer id {self.id!r} and took over its leases: "
            "this one is fenced and receives nothing more. Give each instance its own id.",
            consumer=self.id,
        )

    def ask(self, info: QueueInfo, name: ClaimName) -> None:
        """Record a claim before it is appended: it is nobody's until its messages are given.

        It may have landed, or land later, though its call fails or is interrupted, wherever that
        is. Nobody can settle its messages then: they come back when its lease or its attempt ends,
        and only then those behind them in an ordered lane may go. In other queues nothing waits for
        them. If another call is given a claim of that name, this one has not landed.

        Args:
            info: The queue, or its transient part.
            name: The claim's name.
        """
        if info.settings.ordered:
            self._asked.add((info.queue_id, info.transient, *name))

    def give(self, info: QueueInfo, name: ClaimName) -> None:
        """Record a claim whose messages a caller is given.

        Args:
            info: The queue, or its transient part.
            name: The claim's name.
        """
        if info.settings.ordered:
            self._given.add((info.queue_id, info.transient, *name))

    def take_back(self, info: QueueInfo, name: ClaimName) -> None:
        """Record that the caller does not get the messages of a claim after all."""
        self._given.discard((info.queue_id, info.transient, *name))

    def others(self, info: QueueInfo, fold: QueueState, own: Collection[str] = ()) -> list[Claim]:
        """List the claims that are not this consumer's own, or that it was never given.

        Those of an earlier opening of the id are among them: what can be taken over ends before
        other messages of an ordered lane are received, and a prepared transaction waits for its
        decision, after which its messages may come back. So do those of this opening's other
        transactions: each may be in a thread of its own, and may be rolled back.

        Args:
            info: The queue, or its transient part.
            fold: Its newest state.
            own: The attempts of the transactions that are its own here.
        """
        part = info.queue_id, info.transient
        me = LeaseOwner(self.id, self._epochs.get(part, 0))
        self.forget_ended(info, fold)
        nobodys = {place[2:] for place in self._asked - self._given if place[:2] == part}
        return [c for c in fold.claims() if c.name in nobodys or not _is_own(c.owner, me, own)]

    def forget_ended(self, info: QueueInfo, fold: QueueState) -> None:
        """Forget the claims that are over, or never landed.

        Args:
            info: The queue, or its transient part.
            fold: Its newest state.
        """
        part = info.queue_id, info.transient
        for known in (self._given, self._asked):
            for place in list(known):  # other threads may add some
                if place[:2] == part and _has_ended(fold, *place[2:]):
                    known.discard(place)


def _has_ended(fold: QueueState, lane: int, sequence: int) -> bool:
    """Return whether a claim is over, or never landed."""
    return fold.lanes[lane].next_sequence > sequence and not fold.claim(lane, sequence)


def _is_own(owner: Owner, me: LeaseOwner, attempts: Collection[str]) -> bool:
    """Return whether a claim is a lease of this opening, or of these attempts, whoever claimed."""
    if isinstance(owner, AttemptOwner):
        return owner.attempt in attempts
    return owner == me
