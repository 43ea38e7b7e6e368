"""The fold: what entries make of a queue, message by message."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import custody, model, planning, ranges
from txnqueue.core.model import Entry
from txnqueue.core.planning import Disposition, Stamp
from txnqueue.core.redelivery import AT_ONCE, CLOCKS_APART_MS, Redelivery
from txnqueue.core.state import (
    AttemptOwner,
    Claim,
    LaneState,
    LeaseOwner,
    Position,
    QueueState,
    Segment,
    TransactionState,
)
from txnqueue.core.state.branch import Branch
from txnqueue.errors import StoreCorrupt

STAMP = Stamp("me", None, 1_000)
LEASE = LeaseOwner("c1", 1)
TX = AttemptOwner("k", "a1", 0, "c1", 1)
OTHER = AttemptOwner("k2", "a2", 0, "c2", 1)


def offsets(parts: Any) -> list[Any]:
    return [offset for first, last in parts for offset in range(first, last + 1)]


class Log:
    """A queue's log, written entry by entry, with the fold that follows it."""

    def __init__(self, lanes: int = 1) -> None:
        self.fold = QueueState("q", lanes)
        self.entries: list[Any] = []
        self.version = 0

    def append(self, *entries: Any) -> Any:
        """Land some entries as one append."""
        self.version += 1
        stamped = [
            replace(e, append_id=f"a{self.version}", index=i, version=self.version)
            for i, e in enumerate(entries)
        ]
        self.entries += stamped
        self.fold.advance(stamped, self.version)
        return stamped

    def post(self, *parts: Any, lane: int = 0, priority: int = 4) -> Any:
        body = {"payload": "p", "slice": 0, "send": f"s{self.version}", "priority": priority}
        entry = Entry("backlog/q", f"lane/{lane}", model.POSTED, queue_id="q", lane=lane)
        return self.append(replace(entry, ranges=parts, body=body))[0].entry_id

    def select(self, limit: int = 10, lane: int = 0, ended: Any = (), **limits: Any) -> Any:
        """Pick what a claim would take that ends some claims."""
        back = [s for claim in ended for s in self.fold.returning(claim, claim.ended_at_ms(1_000))]
        limits = {"now_ms": 1_000, "rules": AT_ONCE, **limits}
        superseded = [(claim.sequence, claim.ended_at_ms(1_000)) for claim in ended]
        return planning.select(self.fold.lanes[lane], back, limit, supersedes=superseded, **limits)

    def claim(
        self, limit: int = 10, owner: Any = LEASE, lane: int = 0, ended: Any = (), **limits: Any
    ) -> Any:
        chosen = self.select(limit, lane, ended, **limits)
        self.append(*planning.claim("q", chosen, owner, 2_000, STAMP).entries)
        return self.fold.claim(lane, chosen.sequence)

    def settle(
        self, claim: Any, kind: str, items: Any = None, owner: Any = None, counted: bool = False
    ) -> None:
        """End some of a claim: by its lane outside, by a fact of the owner inside."""
        sequence = None if owner else self.fold.lanes[claim.lane].next_sequence
        disposition = Disposition(kind, items, counted=counted)
        self.append(
            planning.settlement("q", claim, disposition, STAMP, sequence=sequence, owner=owner)
        )

    def available(self, lane: int = 0) -> list[Any]:
        return [
            offset
            for segment in self.fold.lanes[lane].available
            for offset in range(segment.first, segment.last + 1)
        ]


# -------------------------------------------------------------------- available segments

POSITION = Position.of(
    Entry(
        "b",
        "l",
        model.POSTED,
        append_id="a",
        version=1,
        body={"payload": "p", "slice": 0, "send": "s"},
    )
)
PARTS = st.sets(st.integers(0, 30), min_size=1).map(ranges.of_offsets)


@given(PARTS, st.data())
def test_taking_leaves_exactly_the_rest(have: Any, data: Any) -> None:
    lane = LaneState(0)
    for first, last in have:
        lane.put(Segment(POSITION, first, last, 2, 7))
    wanted = ranges.of_offsets(data.draw(st.sets(st.sampled_from(offsets(have)), min_size=1)))
    lane.take(POSITION, wanted)
    rest = [(s.first, s.last) for s in lane.available]
    assert offsets(rest) == offsets(ranges.difference(have, wanted))
    assert all((s.delivery_count, s.former) == (2, 7) for s in lane.available)


@given(PARTS, PARTS)
def test_taking_what_is_not_there_is_corruption_and_takes_nothing(have: Any, wanted: Any) -> None:
    lane = LaneState(0)
    for first, last in have:
        lane.put(Segment(POSITION, first, last))
    before = list(lane.available)
    if ranges.difference(wanted, have):
        with pytest.raises(StoreCorrupt, match="lane 0"):
            lane.take(POSITION, wanted)
        assert lane.available == before
    else:
        lane.take(POSITION, wanted)


@given(PARTS, st.data())
def test_what_is_taken_and_put_back_stands_where_it_stood(have: Any, data: Any) -> None:
    lane = LaneState(0)
    for first, last in have:
        lane.put(Segment(POSITION, first, last))
    wanted = ranges.of_offsets(data.draw(st.sets(st.sampled_from(offsets(have)), min_size=1)))
    lane.take(POSITION, wanted)
    for first, last in wanted:
        lane.put(Segment(POSITION, first, last, 1))
    assert offsets((s.first, s.last) for s in lane.available) == offsets(have)


def test_what_is_wanted_may_lie_in_several_pieces_with_different_histories() -> None:
    lane = LaneState(0)
    for segment in (Segment(POSITION, 0, 2), Segment(POSITION, 3, 5, 1), Segment(POSITION, 6, 8)):
        lane.put(segment)
    found = [(s.first, s.last, s.delivery_count) for s in lane.standing(POSITION, ((1, 7),))]
    assert found == [(1, 2, 0), (3, 5, 1), (6, 7, 0)]
    lane.take(POSITION, ((1, 7),))
    assert offsets((s.first, s.last) for s in lane.available) == [0, 8]


def test_taking_leaves_other_positions_alone() -> None:
    """The same offsets of another send are other messages."""
    log = Log()
    log.post((0, 4))
    second = log.post((0, 4))
    log.fold.lanes[0].take(log.fold.positions[second], ((1, 3),))
    assert log.available() == [0, 1, 2, 3, 4, 0, 4]


# --------------------------------------------------------------------------------- order


def test_messages_stand_in_commit_order_whatever_the_order_of_reading() -> None:
    log = Log()
    log.post((5, 6))
    log.post((0, 1))
    again = QueueState("q", 1)
    again.advance(reversed(log.entries), log.version)
    assert again.lanes[0].available == log.fold.lanes[0].available
    assert log.available() == [5, 6, 0, 1]


def test_a_higher_priority_stands_before_earlier_commits() -> None:
    log = Log()
    log.post((0, 0), priority=4)
    log.post((9, 9), priority=5)
    assert log.available() == [9, 0]


def test_positions_of_one_commit_stand_in_the_order_of_its_entries() -> None:
    log = Log()
    body = {"payload": "p", "slice": 0, "send": "s"}
    entry = Entry("backlog/q", "lane/0", model.POSTED, queue_id="q", lane=0, body=body)
    log.append(*(replace(entry, ranges=(part,)) for part in [(7, 7), (3, 3)]))
    assert log.available() == [7, 3]


def test_released_messages_go_back_to_their_original_place() -> None:
    log = Log()
    log.post((0, 9))
    claim = log.claim(3)
    log.claim(3)
    log.settle(claim, model.RELEASED)
    assert log.available() == [0, 1, 2, 6, 7, 8, 9]


# --------------------------------------------------------------------- claims and their end


def test_a_claim_takes_messages_out_of_the_available_ones() -> None:
    log = Log()
    log.post((0, 9))
    claim = log.claim(4)
    assert (claim.name, claim.count, claim.deadline_ms) == ((0, 1), 4, 2_000)
    assert (log.available(), log.fold.in_flight()) == ([4, 5, 6, 7, 8, 9], 4)


@pytest.mark.parametrize("kind", [model.ACCEPTED, model.REJECTED])
def test_an_accepted_or_rejected_claim_is_gone(kind: str) -> None:
    log = Log()
    position = log.post((0, 3))
    log.settle(log.claim(), kind)
    assert (log.available(), log.fold.in_flight(), log.fold.claims()) == ([], 0, [])
    assert position not in log.fold.positions


def test_a_part_can_be_settled_and_the_rest_stays_in_flight() -> None:
    log = Log()
    position = log.post((0, 9))
    claim = log.claim()
    log.settle(claim, model.ACCEPTED, [(position, ((2, 3),))])
    log.settle(claim, model.RELEASED, [(position, ((5, 5),))])
    assert log.available() == [5]
    assert offsets(claim.items[position]) == [0, 1, 4, 6, 7, 8, 9]


def test_what_a_settlement_names_twice_is_settled_once() -> None:
    log = Log()
    position = log.post((0, 3))
    claim = log.claim()
    for _ in range(2):
        log.settle(claim, model.RELEASED, [(position, ((0, 1),))])
    assert log.available() == [0, 1]


def test_a_settlement_of_an_attempt_that_owns_nothing_does_not_count() -> None:
    log = Log()
    log.post((0, 3))
    claim = log.claim(owner=TX)
    log.settle(claim, model.ACCEPTED, owner=OTHER)
    assert log.fold.in_flight() == 4
    log.settle(claim, model.ACCEPTED, owner=TX)
    assert log.fold.in_flight() == 0


def test_a_late_settlement_of_an_ended_claim_changes_nothing() -> None:
    log = Log()
    log.post((0, 3))
    claim = log.claim(owner=TX)
    log.settle(claim, model.RELEASED, owner=TX)
    log.settle(claim, model.ACCEPTED, owner=TX)
    assert log.available() == [0, 1, 2, 3]


def test_what_a_commit_keeps_is_held_by_a_lease_from_then_on() -> None:
    log = Log()
    position = log.post((0, 3))
    claim = log.claim(owner=TX)
    log.settle(claim, model.ACCEPTED, [(position, ((0, 0),))], owner=TX)
    log.append(planning.kept("q", claim, 3, 7_777, STAMP, owner=OTHER))
    assert log.fold.claims()[0].attempt, "it is not the owner's word"
    log.append(planning.kept("q", claim, 3, 7_777, STAMP, owner=TX))
    (held,) = log.fold.claims()
    assert (held.attempt is not None, held.deadline_ms, held.count) == (False, 7_777, 3)
    log.settle(held, model.RELEASED, owner=TX)
    assert log.fold.in_flight() == 3, "the transaction has no say any more"
    log.settle(held, model.RELEASED)
    assert log.available() == [1, 2, 3]


def test_a_lease_that_is_kept_until_the_same_instant_begins_with_the_commit() -> None:
    """It was recorded by a clock that was ahead, and has been set right since."""
    log = Log()
    log.post((0, 3))
    claim = log.claim(owner=TX)
    later = replace(STAMP, now_ms=STAMP.now_ms + 5)
    log.append(planning.kept("q", claim, 4, claim.deadline_ms, later, owner=TX))
    (held,) = log.fold.claims()
    assert held.began_at_ms == later.now_ms


def test_a_bound_claim_is_ended_by_the_transaction_and_by_nobody_else() -> None:
    log = Log()
    log.post((0, 3))
    claim = log.claim(owner=LEASE)
    log.settle(claim, model.ACCEPTED, owner=TX)
    assert log.fold.in_flight() == 4
    log.append(planning.bind("q", claim, TX, 2, STAMP))
    assert claim.holder == TX
    log.settle(claim, model.ACCEPTED, owner=TX)
    assert log.fold.in_flight() == 0


def test_a_lease_that_was_extended_has_a_later_deadline() -> None:
    log = Log()
    log.post((0, 3))
    claim = log.claim()
    log.append(planning.lease_extended("q", claim, 2, 9_000, STAMP))
    assert (claim.deadline_ms, log.fold.lanes[0].next_sequence) == (9_000, 3)


def test_extending_an_ended_claim_changes_nothing() -> None:
    log = Log()
    log.post((0, 3))
    claim = log.claim()
    log.settle(claim, model.ACCEPTED)
    log.append(planning.lease_extended("q", claim, 3, 9_000, STAMP))
    assert log.fold.claims() == []


def test_a_claim_that_takes_over_ends_the_former_one() -> None:
    log = Log()
    log.post((0, 3))
    former = log.claim(owner=LEASE)
    claim = log.claim(owner=OTHER, ended=[former])
    assert log.fold.claims() == [claim]
    assert (claim.delivery_count, claim.former, claim.sequence) == (1, 4, 2)


def test_a_dead_message_leaves_its_lane() -> None:
    log = Log()
    log.post((0, 0))
    for _ in range(2):
        log.settle(log.claim(), model.RELEASED, counted=True)
    chosen = log.select(rules=Redelivery(2))
    removal = planning.Removal(model.DEAD_LETTERED, tuple(chosen.dead), "deliveries_max")
    log.append(planning.remove("q", "orders", chosen, removal, STAMP)[0].entries[0])
    assert (log.available(), log.fold.in_flight(), log.fold.positions) == ([], 0, {})


# ------------------------------------------------------------------------ delivery counts


@pytest.mark.parametrize(("counted", "expected"), [(False, (0, 0)), (True, (1, 4))])
def test_only_a_counted_release_counts_and_narrows(counted: Any, expected: Any) -> None:
    """Given back by its holder a message is as fresh as before; rolled back it is not."""
    log = Log()
    log.post((0, 3))
    log.settle(log.claim(), model.RELEASED, counted=counted)
    segment = log.fold.lanes[0].available[0]
    assert (segment.delivery_count, segment.former) == expected


def test_an_uncounted_release_keeps_the_narrowing_that_was() -> None:
    log = Log()
    log.post((0, 99))
    for counted in (True, True, False):
        log.settle(log.claim(100), model.RELEASED, counted=counted)
    segment = log.fold.lanes[0].available[0]
    assert (segment.last, segment.delivery_count, segment.former) == (9, 2, 100)


def test_narrowing_goes_by_the_claims_size_not_by_what_was_left_of_it() -> None:
    log = Log()
    position = log.post((0, 99))
    claim = log.claim(100)
    log.settle(claim, model.ACCEPTED, [(position, ((0, 97),))])
    log.settle(claim, model.RELEASED, counted=True)
    assert [s.former for s in log.fold.lanes[0].available] == [100]


def test_what_failed_knows_when_and_a_plain_release_forgets_it() -> None:
    log = Log()
    log.post((0, 3))
    for counted, at_ms in ((True, STAMP.now_ms), (False, 0)):
        log.settle(log.claim(4), model.RELEASED, counted=counted)
        assert [s.failed_at_ms for s in log.fold.lanes[0].available] == [at_ms]


@pytest.mark.parametrize("said", [{}, {"failed_at": 700}])
def test_a_tombstone_says_when_the_delivery_ended_and_older_entries_when_they_were_recorded(
    said: Any,
) -> None:
    log = Log()
    log.post((0, 3))
    held = log.claim(4, TX)
    (entry,) = planning.end_claims("q", [replace(held, deadline_ms=700)], STAMP, "lease over")
    assert entry.body["failed_at"] == 700
    body = {k: v for k, v in entry.body.items() if k != "failed_at"}
    log.append(replace(entry, body={**body, **said}))
    assert log.fold.lanes[0].available[0].failed_at_ms == said.get("failed_at", STAMP.now_ms)


@pytest.mark.parametrize("old", [True, False])
def test_a_take_over_says_when_each_delivery_ended(old: Any) -> None:
    log = Log()
    log.post((0, 3))
    log.post((0, 3))
    first, second = log.claim(4), log.claim(4)
    first.deadline_ms, second.deadline_ms = 300, 90_000
    chosen = log.select(1, ended=[first, second])
    assert chosen.supersedes == ((first.sequence, 300), (second.sequence, 1_000))
    (entry,) = planning.claim("q", chosen, OTHER, 2_000, STAMP).entries
    assert entry.body["ended_at"] == [300, 1_000]
    body = {k: v for k, v in entry.body.items() if not (old and k == "ended_at")}
    log.append(replace(entry, body=body))
    expected = [STAMP.now_ms] * 2 if old else [300, 1_000]
    assert [s.failed_at_ms for s in log.fold.lanes[0].available] == expected


def test_a_wait_doubles_up_to_its_maximum_and_the_dead_do_not_wait() -> None:
    rules = Redelivery(deliveries_max=5, delay_ms=100, delay_ms_max=450)
    assert [rules.due_ms(n, 9, 1_000) for n in (1, 2, 3, 4, 900)] == [1100, 1200, 1400, 1450, 1450]
    assert rules.due_ms(5, 1, 1_000) == rules.due_ms(1, 9, 0) == AT_ONCE.due_ms(3, 9, 1_000) == 0


@pytest.mark.parametrize(
    ("failed_at_ms", "now_ms", "waits"),
    [
        (0, 1, False),  # it has not failed
        (1_000, 1_099, True),
        (1_000, 1_100, False),
        (1_000 + CLOCKS_APART_MS, 1_000, True),
        (1_001 + CLOCKS_APART_MS, 1_000, False),  # no clock is believed to be so far ahead
    ],
)
def test_what_failed_waits_until_it_is_due_unless_a_wrong_clock_said_when(
    failed_at_ms: int, now_ms: int, waits: bool
) -> None:
    segment = Segment(POSITION, 0, 3, 1, 4, failed_at_ms=failed_at_ms)
    assert segment.waits(now_ms, Redelivery(delay_ms=100, delay_ms_max=450)) is waits


@pytest.mark.parametrize("available_at_ms", [None, 500])
@pytest.mark.parametrize("expires_at_ms", [None, 900])
@pytest.mark.parametrize("failed_at_ms", [0, 700])
def test_timeless_is_what_can_be_received_at_any_instant(
    available_at_ms: int | None, expires_at_ms: int | None, failed_at_ms: int
) -> None:
    position = replace(POSITION, available_at_ms=available_at_ms, expires_at_ms=expires_at_ms)
    segment = Segment(position, 0, 3, 1, 4, failed_at_ms=failed_at_ms)
    rules = Redelivery(delay_ms=100, delay_ms_max=450)
    received = [segment.receivable(now_ms, rules) for now_ms in (0, 499, 700, 799, 900, 10**15)]
    assert segment.timeless is all(received)


# ------------------------------------------------------------------------------ take-over


@pytest.mark.parametrize(
    ("taker", "now_ms", "expected"),
    [
        (LeaseOwner("c2", 1), 1_999, False),
        (LeaseOwner("c2", 1), 2_000, True),
        (LeaseOwner("c1", 1), 1_000, False),
        (LeaseOwner("c1", 2), 1_000, True),
        (AttemptOwner("k", "a9", 0, "c2", 1), 1_000, True),
        (AttemptOwner("k", "a1", 0, "c2", 1), 1_000, False),
        (AttemptOwner("k9", "a9", 0, "c2", 1), 1_000, False),
    ],
    ids=[
        "before the deadline",
        "at the deadline",
        "the same instance",
        "a newer instance of the consumer",
        "a newer attempt of the key",
        "the same attempt",
        "another key",
    ],
)
def test_who_may_try_to_take_over(taker: Any, now_ms: int, expected: Any) -> None:
    log = Log()
    log.post((0, 3))
    assert log.claim(owner=TX).takeable(now_ms, taker) is expected


def test_a_lease_without_a_transaction_is_not_another_attempt_of_no_key() -> None:
    log = Log()
    log.post((0, 3))
    assert not log.claim(owner=LEASE).takeable(1_000, LeaseOwner("c2", 1))


# ----------------------------------------------------------------------------- invariants


class Reference:
    """Where each single message is, kept by hand beside the fold."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.state: dict[Any, Any] = {}

    def move(self, position: Any, offset: Any, before: Any, after: Any) -> None:
        assert self.state.get((position, offset)) == before
        self.state[position, offset] = after

    def of_claim(self, claim: Any) -> list[tuple[Any, Any]]:
        return [(p, offset) for p, part in claim.items.items() for offset in offsets(part)]

    def check(self) -> None:
        fold = self.log.fold
        seen = Counter(
            (s.position.position_id, offset, "available")
            for lane in fold.lanes.values()
            for s in lane.available
            for offset in range(s.first, s.last + 1)
        )
        seen.update((*m, claim.name) for claim in fold.claims() for m in self.of_claim(claim))
        expected = Counter((*m, where) for m, where in self.state.items() if where != "retired")
        assert seen == expected
        assert set(fold.positions) == {p for (p, _), w in self.state.items() if w != "retired"}


@given(st.data())
def test_each_message_is_available_in_flight_or_retired_after_any_legal_sequence(data: Any) -> None:
    """Exactly one of them, and the one that the sequence of entries says."""
    log = Log(lanes=2)
    reference = Reference(log)
    steps = st.sampled_from(["post", "claim", "accept", "release", "take over", "prune"])
    for step in data.draw(st.lists(steps, max_size=25)):
        lane = data.draw(st.integers(0, 1))
        claims = [c for c in log.fold.claims() if c.lane == lane]
        if step == "post":
            size = data.draw(st.integers(1, 30))
            position = log.post((100, 99 + size), lane=lane)
            for offset in range(100, 100 + size):
                reference.move(position, offset, None, "available")
        elif step in ("claim", "take over"):
            ended = claims[:1] if step == "take over" else []
            for claim in ended:
                for message in reference.of_claim(claim):
                    reference.move(*message, claim.name, "available")
            chosen = log.select(data.draw(st.integers(1, 20)), lane, ended)
            if chosen.segments:
                claim = log.claim(chosen.count, OTHER, lane, ended)
                for message in reference.of_claim(claim):
                    reference.move(*message, "available", claim.name)
        elif claims:
            claim = data.draw(st.sampled_from(claims))
            held = reference.of_claim(claim)
            chosen = data.draw(st.lists(st.sampled_from(held), min_size=1, unique=True))
            items = [
                (p, ranges.of_offsets(o for q, o in chosen if q == p))
                for p in {p for p, _ in chosen}
            ]
            kinds = {"accept": model.ACCEPTED, "release": model.RELEASED, "prune": model.REJECTED}
            for position, offset in chosen:
                after = "available" if step == "release" else "retired"
                reference.move(position, offset, claim.name, after)
            log.settle(claim, kinds[step], items, counted=data.draw(st.booleans()))
        reference.check()


@given(st.data())
def test_a_fold_fed_in_pieces_is_the_fold_fed_at_once(data: Any) -> None:
    log = Log()
    for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=9)):
        log.post((0, size))
        claim = log.claim(data.draw(st.integers(1, 9)))
        if claim and data.draw(st.booleans()):
            log.settle(claim, model.RELEASED, counted=True)
    at_once = QueueState("q", 1)
    at_once.advance(log.entries, log.version)
    assert at_once.lanes == log.fold.lanes
    assert at_once.version == log.fold.version


def test_what_can_be_received_depends_on_the_instant() -> None:
    log = Log()
    body = {"payload": "p", "slice": 0, "send": "s", "available_at": 500, "expires_at": 900}
    entry = Entry("backlog/q", "lane/0", model.POSTED, queue_id="q", lane=0)
    log.append(replace(entry, ranges=((0, 4),), body=body))
    assert [log.fold.available(now, AT_ONCE) for now in (499, 500, 899, 900)] == [0, 5, 5, 0]


def test_an_unknown_kind_is_corruption() -> None:
    with pytest.raises(StoreCorrupt, match="'sung'"):
        Log().append(Entry("lane/q/0", "lane/0", "sung", lane=0))


def test_a_claim_of_an_unknown_position_is_corruption() -> None:
    entry = Entry("lane/q/0", "lane/0", model.CLAIMED, sequence=1, lane=0, ranges=((0, 0),))
    with pytest.raises(StoreCorrupt, match="unknown position"):
        Log().append(replace(entry, body={"items": [["x", 0, 1]]}))


def test_of_a_queue_that_was_dropped_nothing_is_left() -> None:
    log = Log()
    log.post((0, 9))
    held = log.claim(3)
    log.append(
        planning.settlement(
            "q", held, Disposition(model.RELEASED, None, "broken", counted=True), STAMP,
            sequence=2, owner=None,
        )
    )  # fmt: skip
    log.claim(2)
    lane = log.fold.lanes[0]
    assert lane.errors and lane.claims and lane.available

    def fence(kind: str, queue_id: str) -> Entry:
        return Entry(model.FENCE, model.queue_stream(queue_id), kind, queue_id=queue_id)

    log.append(fence(model.QUEUE_DROPPED, "other"))
    assert (log.fold.closed, log.fold.length()) == (None, 10)
    (closing,) = log.append(fence(model.QUEUE_CLOSING, "q"))
    assert (log.fold.closed, log.fold.length()) == (closing, 10)
    log.append(fence(model.QUEUE_DROPPED, "q"))
    assert (log.fold.length(), log.fold.positions, log.fold._unretired) == (0, {}, {})
    assert (lane.available, lane.claims, lane.errors) == ([], {}, {})


def test_a_fold_is_touched_by_who_holds_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "CHECKED", True)
    lock = threading.RLock()
    fold = QueueState("q", 1, mine=custody.Custody(lock))
    for touch in (lambda: fold.lanes, lambda: fold.positions, lambda: fold.advance([], 1)):
        with pytest.raises(AssertionError, match="a fold is touched without its lock"):
            touch()
        with lock:
            touch()
    with lock:
        copied = copy.deepcopy(fold)
    with pytest.raises(AssertionError, match="without its lock"):
        copied.advance([], 2)
    assert fold.version == 1


def test_a_fold_names_the_shards_that_it_is_read_from() -> None:
    assert QueueState("q", 2).shards == ("lane/q/0", "lane/q/1", "backlog/q", "fence")


# ------------------------------------------------------------------------------- the keys


def said(kind: str, attempt: Any, version: int, key: str = "k") -> Entry:
    shard = model.transaction_shard(key)
    return Entry(shard, key, kind, transaction_key=key, attempt=attempt, version=version)


def test_a_key_is_committed_by_the_attempt_that_was() -> None:
    history = [said(model.ROLLED_BACK, "a1", 1), said(model.COMMITTED, "a2", 2)]
    state = TransactionState.of("k", history)
    assert state.committed.attempt == "a2"
    assert (state.decided("a1"), state.decided("a3")) == (model.ROLLED_BACK, None)
    assert state.rolled_back() == ["a1"]


def test_a_prepared_attempt_is_in_doubt_until_it_is_decided() -> None:
    history = [said(model.PREPARED, "a1", 1)]
    assert TransactionState.of("k", history).in_doubt.attempt == "a1"
    history.append(said(model.ROLLED_BACK, "a1", 2))
    assert TransactionState.of("k", history).in_doubt is None


def test_the_first_decision_of_an_attempt_counts() -> None:
    history = [said(model.COMMITTED, "a1", 2), said(model.ROLLED_BACK, "a1", 1)]
    assert TransactionState.of("k", history).decided("a1") == model.ROLLED_BACK


@pytest.mark.parametrize(
    "kind", [model.COMMITTED, model.ROLLED_BACK, model.PREPARED, model.HEURISTIC, model.STARTED]
)
def test_a_key_is_known_by_whatever_is_said_of_it(kind: str) -> None:
    """What else was said may have left the journal."""
    assert TransactionState.of("k", [said(kind, "a1", 1)]).is_known
    assert not TransactionState.of("k", [said(kind, "a1", 1, key="other")]).is_known


def test_other_keys_of_the_shard_say_nothing() -> None:
    assert TransactionState.of("k", [said(model.COMMITTED, "a1", 1, key="other")]).committed is None


def test_a_claim_is_held_by_its_owner_until_it_is_bound() -> None:
    entry = Entry("lane/q/0", "lane/0", model.CLAIMED, sequence=3, lane=1, count=0)
    body = {"consumer": "c1", "epoch": 1, "deadline": 5, "delivery_count": 0, "former": 0}
    claim = Claim.of(replace(entry, body=body), {})
    assert (claim.name, claim.holder) == ((1, 3), LEASE)
    claim.bound = TX
    assert claim.holder == TX


def test_a_branch_that_was_never_started_is_corrupt() -> None:
    part = replace(said(model.PART, "a1", 1), sequence=3)
    with pytest.raises(StoreCorrupt, match="never started"):
        Branch.of(TransactionState.of("k", [part]))


@pytest.mark.parametrize(
    ("clocks_ms", "began_by_ms"), [((), 900), ((950, 0), 900), ((850, 0, 870), 850)]
)
def test_a_branch_began_by_the_smallest_clock_that_was_recorded_since(
    clocks_ms: tuple[int, ...], began_by_ms: int
) -> None:
    """By any client, of any key; who recorded no clock says nothing."""
    started = replace(said(model.STARTED, "a1", 2), recorded_at_ms=900)
    history = [replace(said(model.COMMITTED, "a0", 1, key="other"), recorded_at_ms=1), started]
    history += [
        replace(said(model.COMMITTED, f"b{n}", n, key="other"), recorded_at_ms=ms)
        for n, ms in enumerate(clocks_ms, 3)
    ]
    every = TransactionState.by_key(history[::-1])["k"]
    assert every.began_by_ms == began_by_ms
    alone = TransactionState.of("k", history[::-1])
    assert min(alone.began_by_ms, 900) == began_by_ms


def test_a_kind_that_has_no_place_among_transactions_is_corrupt() -> None:
    with pytest.raises(StoreCorrupt):
        TransactionState.of("k", [said("surprise", "a1", 1)])


def test_a_clock_that_was_looked_at_before_a_claim_was_read_says_nothing_of_its_beginning() -> None:
    """A reading may take minutes; a lease that came meanwhile has its whole time."""
    log = Log()
    log.post((0, 3))
    log.claim(1)  # at 1,000, until 2,000
    log.post((0, 3))  # by no clock
    (claim,) = log.fold.claims()
    assert claim.ends_at_ms(100) == 2_000  # looked at before the reading
    assert claim.ends_at_ms(900) == 2_000
    log.fold.seen_at(800)  # read by a clock that is behind: it had begun by then
    assert claim.ends_at_ms(900) == 1_800
    log.fold.seen_at(950)
    assert claim.ends_at_ms(900) == 1_800
    assert claim.ends_at_ms(1_000) == 2_000
