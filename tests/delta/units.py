"""Pairs of appends that must, or need not, meet: every kind of expectation of the protocol.

Each pair is made for a tag of its own, so that pairs share a journal and nothing else. It
comes with the state that it needs: (state, first, second).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from txnqueue.core import model, planning
from txnqueue.core.model import Entry, Unit
from txnqueue.core.planning import Disposition, Plan, Stamp, branches, decisions
from txnqueue.core.redelivery import AT_ONCE
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.core.state import AttemptOwner, Claim, LeaseOwner, Owner, QueueState, catalog
from txnqueue.core.state import branch as branching

STAMP = Stamp("tester", None, 1_700_000_000_000)
NEVER = 1 << 60
Pair = tuple[Unit, Unit, Unit]


def unit(tag: str, name: str, plan: Plan) -> Unit:
    """Make a unit whose append id is told by its name."""
    append_id = hashlib.md5(f"{tag} {name}".encode()).hexdigest()
    return Unit.of(append_id, plan.entries, plan.conditions, name)


@dataclass
class Scene:
    """One queue with two lanes, and what stands in it."""

    tag: str

    def __post_init__(self) -> None:
        self.queue = "q-" + hashlib.md5(self.tag.encode()).hexdigest()[:8]
        self.before: list[Entry] = []

    def key(self, number: int, shard: int | None = None) -> str:
        """Name a transaction, in a shard if one is asked for."""
        for salt in range(10_000):
            key = f"key {number} {self.tag} {salt}"
            if shard is None or model.transaction_shard(key) == f"transaction/{shard}":
                return key
        raise AssertionError("no such key")

    def owner(self, number: int, attempt: str = "a", shard: int | None = None) -> AttemptOwner:
        """Name an attempt."""
        key = self.key(number, shard)
        return AttemptOwner(key, f"{attempt} of {key}", 0, "consumer", 1)

    def posted(self, lane: int = 0) -> None:
        """Let a message stand in a lane."""
        self.before.append(self.position(lane, None))

    def position(self, lane: int, owner: AttemptOwner | None, queue: str | None = None) -> Entry:
        """Write a position."""
        body = {"v": 1, "payload": "p", "slice": 0, "send": "s", "priority": 4, "schema": 1}
        return Entry(
            model.backlog_shard(queue or self.queue),
            model.lane_stream(lane),
            model.POSTED,
            transaction_key=owner.key if owner else None,
            attempt=owner.attempt if owner else None,
            queue_id=queue or self.queue,
            lane=lane,
            ranges=((0, 0),),
            count=1,
            body=body,
        )

    def state(self) -> Unit:
        """The state so far, as a unit."""
        nobody = model.next_sequence(f"state/{self.queue}", "state", 1)
        return unit(self.tag, "state", Plan(tuple(self.before), (nobody,)))

    def fold(self) -> QueueState:
        """Fold the state so far."""
        fold = QueueState(self.queue, 2)
        mine = [e for e in self.state().entries if e.shard in fold.shards]
        fold.advance((replace(e, version=1) for e in mine), 1)
        return fold

    def claim(self, owner: Owner, lane: int = 0, over: Sequence[Claim] = ()) -> Plan:
        """Claim the first message of a lane."""
        fold = self.fold()
        returning = [segment for held in over for segment in fold.returning(held, 0)]
        superseded = [(held.sequence, 0) for held in over if held.attempt is None]
        chosen = planning.select(
            lane=fold.lanes[lane],
            returning=returning,
            limit=1,
            now_ms=0,
            rules=AT_ONCE,
            supersedes=superseded,
        )
        return planning.claim(self.queue, chosen, owner, NEVER, STAMP)

    def claimed(self, owner: Owner, lane: int = 0) -> Claim:
        """Let a message be claimed."""
        self.before += self.claim(owner, lane).entries
        return self.fold().claims()[-1]

    def commit(
        self, owner: AttemptOwner, facts: Sequence[Entry] = (), kind: str = model.COMMITTED
    ) -> Plan:
        """Commit an attempt."""
        queues = {fact.queue_id or "" for fact in facts}
        return decisions.seal(kind, owner, facts, queues, (), stamp=STAMP, body={})

    def settled(self, held: Claim, owner: AttemptOwner) -> Entry:
        """Accept a claim inside a transaction."""
        done = Disposition(model.ACCEPTED)
        return planning.settlement(self.queue, held, done, STAMP, sequence=None, owner=owner)

    def acknowledged(self, held: Claim) -> Plan:
        """Accept a claim outside a transaction."""
        sequence = self.fold().lanes[held.lane].next_sequence
        done = Disposition(model.ACCEPTED)
        entry = planning.settlement(self.queue, held, done, STAMP, sequence=sequence, owner=None)
        return Plan((entry,), planning.lane_conditions(self.queue, [(held.lane, sequence)]))

    def bound(self, held: Claim, owner: AttemptOwner) -> Plan:
        """Bind a leased claim to an attempt, and commit that."""
        sequence = self.fold().lanes[held.lane].next_sequence
        entry = planning.bind(self.queue, held, owner, sequence, STAMP)
        expected = model.next_sequence(entry.shard, entry.stream, sequence)
        return Plan((entry,), (expected,)) + self.commit(owner, [self.settled(held, owner)])

    def extended(self, held: Claim) -> Plan:
        """Extend a lease."""
        sequence = self.fold().lanes[held.lane].next_sequence
        entry = planning.lease_extended(self.queue, held, sequence, NEVER, STAMP)
        return Plan((entry,), planning.lane_conditions(self.queue, [(held.lane, sequence)]))

    def prepared(self, owner: AttemptOwner) -> Entry:
        """Let an attempt be prepared, with a message to post."""
        plan = self.commit(owner, [self.position(0, owner)], model.PREPARED)
        self.before += plan.entries
        return plan.entries[0]

    def info(self, queue: str | None = None) -> QueueInfo:
        """Describe a queue as the catalog does."""
        queue_id = queue or self.queue
        return QueueInfo(queue_id, queue_id, queue_id, {"fields": []}, 1, QueueSettings())

    def closing(self, queue: str | None = None) -> Plan:
        """Begin to drop a queue."""
        kind, info = model.QUEUE_CLOSING, self.info(queue)
        return catalog.fence(kind, info, 1, STAMP) + catalog.write(kind, info, STAMP)

    def pair(self, first: Plan, second: Plan) -> Pair:
        """Make the pair."""
        state = self.state()
        return state, unit(self.tag, "first", first), unit(self.tag, "second", second)


LEASE = LeaseOwner("consumer", 1)
OTHER = LeaseOwner("other", 1)


def two_attempts_of_a_key(tag: str) -> Pair:
    s = Scene(tag)
    return s.pair(s.commit(s.owner(1, "a")), s.commit(s.owner(1, "b")))


def a_commit_and_a_tombstone(tag: str) -> Pair:
    s = Scene(tag)
    return s.pair(s.commit(s.owner(1)), decisions.rollback(s.owner(1), (), STAMP, "late"))


def a_prepare_and_a_tombstone(tag: str) -> Pair:
    s = Scene(tag)
    prepare = s.commit(s.owner(1), (), model.PREPARED)
    return s.pair(prepare, decisions.rollback(s.owner(1), (), STAMP, "late"))


def a_prepare_and_another_attempts_commit(tag: str) -> Pair:
    s = Scene(tag)
    return s.pair(s.commit(s.owner(1, "a"), (), model.PREPARED), s.commit(s.owner(1, "b")))


def two_decisions_of_a_prepared(tag: str) -> Pair:
    s = Scene(tag)
    prepared = s.prepared(s.owner(1))
    commit = decisions.decide_prepared(prepared, commit=True, stamp=STAMP, reason=None)
    return s.pair(
        commit, decisions.decide_prepared(prepared, commit=False, stamp=STAMP, reason="no")
    )


def two_claims_of_a_lane(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    return s.pair(s.claim(LEASE), s.claim(OTHER))


def a_take_over_and_its_owners_commit(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    owner = s.owner(1)
    held = s.claimed(owner)
    released = planning.release_claims(s.queue, [held], STAMP, "lease over")
    over = decisions.rollback(owner, released, STAMP, "lease over") + s.claim(OTHER, 0, [held])
    return s.pair(over, s.commit(owner, [s.settled(held, owner)]))


def an_acknowledgement_and_a_take_over(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    held = s.claimed(LEASE)
    return s.pair(s.acknowledged(held), s.claim(OTHER, 0, [held]))


def a_lease_renewal_and_a_take_over(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    held = s.claimed(LEASE)
    return s.pair(s.extended(held), s.claim(OTHER, 0, [held]))


def a_bound_commit_and_a_take_over(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    held = s.claimed(LEASE)
    return s.pair(s.bound(held, s.owner(1)), s.claim(OTHER, 0, [held]))


def a_bound_commit_and_an_acknowledgement(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    held = s.claimed(LEASE)
    return s.pair(s.bound(held, s.owner(1)), s.acknowledged(held))


def a_joined_commit_and_claim_and_a_claim(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    s.posted()
    owner = s.owner(1)
    held = s.claimed(owner)
    joined = s.commit(owner, [s.settled(held, owner)]) + s.claim(s.owner(2))
    return s.pair(joined, s.claim(OTHER))


def a_dead_letter_and_a_claim(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    return s.pair(_dead_letter(s), s.claim(OTHER))


def a_dead_letter_and_its_targets_closing(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    return s.pair(_dead_letter(s), s.closing(f"{s.queue}.dead"))


def _dead_letter(s: Scene) -> Plan:
    chosen = planning.select(s.fold().lanes[0], (), 1, 0, AT_ONCE)
    chosen.dead, chosen.segments = chosen.segments, []
    target = planning.Target(f"{s.queue}.dead")
    removal = planning.Removal(model.DEAD_LETTERED, tuple(chosen.dead), "deliveries_max", target)
    return planning.remove(s.queue, "q", chosen, removal, STAMP)[0]


def a_commit_and_closing_a_queue_it_posts_to(tag: str) -> Pair:
    s = Scene(tag)
    owner = s.owner(1)
    return s.pair(s.commit(owner, [s.position(0, owner)]), s.closing())


def a_commit_and_closing_a_queue_it_settles_in(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    owner = s.owner(1)
    held = s.claimed(owner)
    return s.pair(s.commit(owner, [s.settled(held, owner)]), s.closing())


def a_claim_and_closing(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    return s.pair(s.claim(LEASE), s.closing())


def an_acknowledgement_and_closing(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    held = s.claimed(LEASE)
    return s.pair(s.acknowledged(held), s.closing())


def two_queues_of_a_name(tag: str) -> Pair:
    s = Scene(tag)
    info = QueueInfo(tag, s.queue, s.queue, {"fields": []}, 1, QueueSettings())
    other = replace(info, queue_id=f"{s.queue}-2")
    return s.pair(catalog.create(info, 1, STAMP), catalog.create(other, 1, STAMP))


def a_drop_and_a_new_user_of_the_dead_letters(tag: str) -> Pair:
    s = Scene(tag)
    user = replace(s.info(f"{s.queue}-user"), dead_letter_id=s.queue)
    linked = catalog.write(model.QUEUE_ALTERED, s.info(), STAMP)
    still_open = Plan((), (model.queue_open(s.queue),))
    return s.pair(s.closing(), catalog.create(user, 1, STAMP) + linked + still_open)


def a_prepare_and_closing(tag: str) -> Pair:
    s = Scene(tag)
    owner = s.owner(1)
    return s.pair(s.commit(owner, [s.position(0, owner)], model.PREPARED), s.closing())


def two_closings(tag: str) -> Pair:
    s = Scene(tag)
    return s.pair(s.closing(), s.closing())


def a_commit_and_the_horizon(tag: str) -> Pair:
    """The horizon is the store's: so each tag takes a sequence number of its own."""
    s = Scene(tag)
    number = 2 if "other" in tag else 1
    entry = Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, sequence=number, begun=0)
    moved = Plan((entry,), (model.next_sequence(model.FENCE, "horizon", number),))
    return s.pair(s.commit(s.owner(1)), moved)


def two_starts_of_a_branch(tag: str) -> Pair:
    s = Scene(tag)
    key = f"xid:{s.key(1)}"
    starts = [branches.start(key, f"{a} {key}", 0, a, 60.0, ticket=None, stamp=STAMP) for a in "ab"]
    return s.pair(*starts)


def a_join_and_a_commit_of_a_branch(tag: str) -> Pair:
    s = Scene(tag)
    key = f"xid:{s.key(1)}"
    s.before += branches.start(key, f"a {key}", 0, "a", 60.0, ticket=None, stamp=STAMP).entries
    s.before += branches.end(branching.fold(key, s.before), "a", (), (), STAMP).entries
    branch = branching.fold(key, s.before)
    join = branches.associate(branch, "b", None, STAMP)
    return s.pair(join, branches.seal(branch, model.COMMITTED, STAMP))


RIVALS: dict[str, Callable[[str], Pair]] = {
    function.__name__.replace("_", " ").replace("and claim and", "and claim, and"): function
    for function in (
        two_attempts_of_a_key,
        a_commit_and_a_tombstone,
        a_prepare_and_a_tombstone,
        a_prepare_and_another_attempts_commit,
        two_decisions_of_a_prepared,
        two_claims_of_a_lane,
        a_take_over_and_its_owners_commit,
        an_acknowledgement_and_a_take_over,
        a_lease_renewal_and_a_take_over,
        a_bound_commit_and_a_take_over,
        a_bound_commit_and_an_acknowledgement,
        a_joined_commit_and_claim_and_a_claim,
        a_dead_letter_and_a_claim,
        two_queues_of_a_name,
        a_drop_and_a_new_user_of_the_dead_letters,
        two_closings,
        two_starts_of_a_branch,
        a_join_and_a_commit_of_a_branch,
    )
}


BARRED: dict[str, Callable[[str], Pair]] = {
    function.__name__.replace("_", " "): function
    for function in (
        a_dead_letter_and_its_targets_closing,
        a_commit_and_closing_a_queue_it_posts_to,
        a_commit_and_closing_a_queue_it_settles_in,
        a_claim_and_closing,
        a_prepare_and_closing,
        an_acknowledgement_and_closing,
        a_commit_and_the_horizon,
    )
}
"""The second append bars the first for ever; a first one that lands before it has its effect."""


def commits_in_two_shards_that_post_to_one_lane(tag: str) -> Pair:
    s = Scene(tag)
    one, two = s.owner(1, shard=1), s.owner(2, shard=2)
    return s.pair(s.commit(one, [s.position(0, one)]), s.commit(two, [s.position(0, two)]))


def a_commit_that_posts_to_a_lane_and_a_claim_of_it(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    owner = s.owner(1)
    return s.pair(s.commit(owner, [s.position(0, owner)]), s.claim(LEASE))


def a_commit_that_settles_in_a_lane_and_a_claim_of_it(tag: str) -> Pair:
    s = Scene(tag)
    s.posted()
    s.posted()
    owner = s.owner(1)
    held = s.claimed(owner)
    return s.pair(s.commit(owner, [s.settled(held, owner)]), s.claim(LEASE))


def claims_of_two_lanes(tag: str) -> Pair:
    s = Scene(tag)
    s.posted(0)
    s.posted(1)
    return s.pair(s.claim(LEASE, 0), s.claim(OTHER, 1))


def joined_appends_on_other_lanes_and_shards(tag: str) -> Pair:
    s = Scene(tag)
    s.posted(0)
    s.posted(1)
    one, two = s.owner(1, shard=3), s.owner(2, shard=4)
    return s.pair(s.commit(one) + s.claim(LEASE, 0), s.commit(two) + s.claim(OTHER, 1))


def the_commit_of_a_prepared_and_closing(tag: str) -> Pair:
    s = Scene(tag)
    prepared = s.prepared(s.owner(1))
    commit = decisions.decide_prepared(prepared, commit=True, stamp=STAMP, reason=None)
    return s.pair(commit, s.closing())


APART: dict[str, Callable[[str], Pair]] = {
    function.__name__.replace("_", " "): function
    for function in (
        commits_in_two_shards_that_post_to_one_lane,
        a_commit_that_posts_to_a_lane_and_a_claim_of_it,
        a_commit_that_settles_in_a_lane_and_a_claim_of_it,
        claims_of_two_lanes,
        joined_appends_on_other_lanes_and_shards,
        the_commit_of_a_prepared_and_closing,
    )
}
