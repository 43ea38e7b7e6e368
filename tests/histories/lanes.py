"""What is wrong with the order of messages in their lanes, and with the claims that hold them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from tests.histories.anomaly import Anomaly, anomaly
from tests.histories.history import (
    ACCEPTED,
    CLAIMED,
    COMMITTED,
    OK,
    POSTED,
    PREPARED,
    RELEASED,
    ROLLED_BACK,
    Claim,
    Fact,
    History,
    Operation,
    Place,
)

Lane = tuple[str, int]


def first_claims_in_order(history: History) -> Iterator[Anomaly]:
    """What is claimed for the first time comes in the order in which it was sent to its lane."""
    waiting: defaultdict[Lane, list[str]] = defaultdict(list)
    for fact in sorted(history.said(POSTED, CLAIMED), key=lambda f: (f.seq, f.kind != POSTED)):
        lane = waiting[fact.queue, fact.lane]
        if fact.kind == POSTED:
            lane += fact.ids
            continue
        fresh = [message for message in fact.ids if message in lane]
        if fresh != lane[: len(fresh)]:
            yield anomaly("lane order", f"{fresh} before {lane[: len(fresh)]}", fact)
        waiting[fact.queue, fact.lane] = [message for message in lane if message not in fresh]


# --------------------------------------------------------------------------- redeliveries


@dataclass
class _Waiting:
    """What waits in a lane, each message at the place that it was posted to.

    Attributes:
        places: The places of all messages that were ever posted to the lane.
        since: Of each message that waits the commit since which it does.
        logged: The messages of which the lane's own log says that they wait: who claims has read
            all of it, because a claim is its next entry.
        held: Of each message that is held the claim that holds it.
    """

    places: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)

    def post(self, fact: Fact) -> None:
        for message in fact.ids:
            self.places[message] = len(self.places)
            self.since[message] = fact.seq

    def end(self, fact: Fact, claims: tuple[int, ...]) -> None:
        """Let what some claims hold return to its places."""
        for message in [m for m, claim in self.held.items() if claim in claims]:
            self.put_back(message, fact, logged=True)

    def put_back(self, message: str, fact: Fact, *, logged: bool) -> None:
        del self.held[message]
        self.since[message] = fact.seq
        if logged:
            self.logged.add(message)

    def claim(self, fact: Fact) -> None:
        for message in fact.ids:
            self.since.pop(message, None)
            self.logged.discard(message)
            self.held[message] = fact.claim

    def settle(self, fact: Fact) -> None:
        """Settle what the claim still holds: what it does not hold any more is another's."""
        for message in [m for m in fact.ids if self.held.get(m) == fact.claim]:
            if fact.kind == RELEASED:
                self.put_back(message, fact, logged=fact.txn is None)
            else:
                del self.held[message]

    def known(self, landed: int) -> set[str]:
        """List what waits to the knowledge of who reads the queue after a commit landed."""
        return self.logged | {m for m, since in self.since.items() if since <= landed}


def redeliveries_in_order(history: History) -> Iterator[Anomaly]:
    """A claim takes the first of what waits in its lane, also of what came back.

    Who receives reads the queue, but what others post and roll back need not have landed by then:
    a claim must know only of what had landed before the receive was called, and of what its lane's
    log says. Nothing in a run is delayed, has priority or expires.
    """
    lanes: defaultdict[Lane, _Waiting] = defaultdict(_Waiting)
    receives = {claim: one for one in _delivered(history) for claim in one.by_claim}
    landed = _Landed(history)
    for fact in history.said(POSTED, CLAIMED, ACCEPTED, RELEASED):
        lane = lanes[fact.queue, fact.lane]
        if fact.kind == POSTED:
            lane.post(fact)
        elif fact.kind == CLAIMED:
            lane.end(fact, fact.supersedes)
            receive = receives.get(fact.of_claim)
            known = lane.known(landed.before(receive.invoked) if receive else -1)
            yield from _claimed_in_order(lane, fact, known, receive)
            lane.claim(fact)
        else:
            lane.settle(fact)


def _claimed_in_order(
    lane: _Waiting, claim: Fact, known: set[str], receive: Operation | None
) -> Iterator[Anomaly]:
    places = [lane.places.get(message, -1) for message in claim.ids]
    if places != sorted(places):
        yield anomaly("order after redelivery", f"{claim.ids} is another order", claim, receive)
    first = [m for m in known - set(claim.ids) if lane.places[m] < max(places, default=-1)]
    if first:
        yield anomaly("order after redelivery", f"{sorted(first)} came before", claim, receive)


class _Landed:
    """Tells what surely had landed at an instant: what somebody had been told of by then."""

    def __init__(self, history: History) -> None:
        """Collect the places in commit order that somebody was told of."""
        told = sorted((one.answered, seq) for one, seq in _told_places(history))
        self._instants = [instant for instant, _ in told]
        self._newest = list(accumulate((seq for _, seq in told), max))

    def before(self, instant: int) -> int:
        """Find the last commit that surely had landed before an instant; -1 if none."""
        place = bisect_left(self._instants, instant)
        return self._newest[place - 1] if place else -1


def _told_places(history: History) -> Iterator[tuple[Operation, int]]:
    ends = {(fact.txn, fact.kind): fact for fact in history.said(ROLLED_BACK, PREPARED)}
    for one in history.operations:
        if one.outcome != OK:
            continue
        found: list[Fact | None] = [history.claims.get(claim) for claim in one.by_claim]
        if one.what in ("commit", "decide") and one.given.get("commit", True):
            found.append(history.committed.get(one.txn or ""))
        elif one.what in ("rollback", "decide"):
            found.append(ends.get((one.txn, ROLLED_BACK)))
        elif one.what == "prepare":
            found.append(ends.get((one.txn, PREPARED)))
        elif one.what == "look":
            yield one, one.got["seq"]
        yield from ((one, fact.seq) for fact in found if fact is not None)


# --------------------------------------------------------------------------------- claims


def _delivered(history: History) -> list[Operation]:
    return [one for one in history.of("receive") if one.outcome == OK]


def handed_to_one(history: History) -> Iterator[Anomaly]:
    """Who is given messages is given all that one claim of its own has, and nobody else is."""
    given: dict[Claim, Operation] = {}
    for one in _delivered(history):
        for name, ids in one.by_claim.items():
            claim = history.claims.get(name)
            if claim is None or claim.ids != ids:
                yield anomaly("not what was claimed", f"{ids} by {name}", one, claim)
            elif claim.txn != one.txn:
                yield anomaly("not what was claimed", f"{claim.txn} claimed {ids}", one, claim)
            other = given.setdefault(name, one)
            if other is not one:
                yield anomaly("handed to two", f"{ids} by the claim {name}", other, one)


def claimed_where_posted(history: History) -> Iterator[Anomaly]:
    """What a lane's claim takes had been posted to that lane."""
    posted: dict[Place, Fact] = {
        place: fact for fact in history.said(POSTED) for place in fact.places
    }
    for claim in history.said(CLAIMED):
        for place in claim.places:
            fact = posted.get(place)
            if fact is None or fact.seq >= claim.seq or fact.lane != claim.lane:
                yield anomaly("claimed elsewhere", f"{place[1]} was not there", fact, claim)


def fences(history: History) -> Iterator[Anomaly]:
    """A message is held by one claim at a time, and settled by the one that holds it."""
    holder: dict[Place, Fact] = {}
    newest: dict[Lane, Fact] = {}
    decided = {fact.attempt: fact.seq for fact in history.said(COMMITTED, ROLLED_BACK)}
    for fact in history.said(CLAIMED, ACCEPTED, RELEASED):
        if fact.kind == CLAIMED:
            before = newest.get((fact.queue, fact.lane))
            if before is not None and fact.claim <= before.claim:
                yield anomaly("fence order", f"claim {fact.claim} is not new", before, fact)
            newest[fact.queue, fact.lane] = fact
            for place in [k for k, held in holder.items() if _ends(fact, held)]:
                over = holder.pop(place)
                if over.txn is not None and decided.get(over.attempt, fact.seq + 1) > fact.seq:
                    what = f"{place[1]} was taken from {over.txn}, which is undecided"
                    yield anomaly("taken over too early", what, over, fact)
            for place in fact.places:
                held = holder.get(place)
                if held is not None:
                    yield anomaly("claimed twice", f"{place[1]} was held", held, fact)
                holder[place] = fact
            continue
        for place in fact.places:
            held = holder.get(place)
            if held is not None and held.of_claim == fact.of_claim:
                del holder[place]
                if fact.txn is not None and held.txn not in (None, fact.txn):
                    yield anomaly("fence order", f"{place[1]} is {held.txn}'s", held, fact)
            elif fact.kind == ACCEPTED or fact.txn is None:
                # What rolls back may name a claim that was taken over, and changes nothing then.
                yield anomaly("fence order", f"{place[1]} was not held by it", held, fact)
    for (_, message), held in holder.items():
        yield anomaly("hanging", f"{message} is held for ever", held)


def _ends(claim: Fact, held: Fact) -> bool:
    same = (claim.queue, claim.lane) == (held.queue, held.lane)
    return same and held.claim in claim.supersedes
