"""Plans: which messages a claim takes, and what each append reads, expects and writes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.planning import Disposition, Plan, Stamp, decisions
from txnqueue.core.planning.tries import Tries
from txnqueue.core.redelivery import AT_ONCE, Redelivery
from txnqueue.core.state import (
    AttemptOwner,
    Claim,
    LaneState,
    LeaseOwner,
    Position,
    QueueState,
    Segment,
)

STAMP = Stamp("me", "run-1", 1_000)
TX = AttemptOwner("k", "a1", 5, "c1", 1)
LEASE = LeaseOwner("c1", 1)
NOW_MS = 1_000


def position(version: int, **body: Any) -> Any:
    content = {"payload": "p", "slice": 0, "send": f"s{version}", **body}
    entry = Entry("b", "l", model.POSTED, append_id=f"a{version}", version=version, queue_id="q")
    return Position.of(replace(entry, body=content))


def lane_of(*segments: Any) -> Any:
    lane = LaneState(0, next_sequence=4)
    for segment in segments:
        lane.put(segment)
    return lane


def select(
    segments: Any,
    limit: int = 100,
    deliveries_max: Any = None,
    returning: Any = (),
    upto: int | None = None,
) -> Any:
    lane = lane_of(*segments)
    return planning.select(
        lane=lane,
        returning=returning,
        limit=limit,
        now_ms=NOW_MS,
        rules=Redelivery(deliveries_max),
        supersedes=(),
        upto=upto,
    )


def held(count: int = 4, owner: Any = LEASE, lane: int = 0, sequence: int = 3) -> Claim:
    items: dict[Any, Any] = {("a1", 0): ((0, count - 1),)}
    return Claim(lane, sequence, owner, 2_000, 0, count, 0, items, 0)


def messages(segments: Any) -> list[Any]:
    return [(s.position.place[0], n) for s in segments for n in range(s.first, s.last + 1)]


# ----------------------------------------------------------------------- what a claim takes

HISTORIES = st.sampled_from([(0, 0), (1, 100), (1, 20), (2, 10), (3, 1), (5, 1), (9, 1)])


@st.composite
def lanes(draw: Any) -> Any:
    """Segments of up to 6 positions; each message has a history, some positions are not due."""
    segments = []
    for version in range(draw(st.integers(0, 6))):
        body = draw(st.sampled_from([{}, {}, {"available_at": 2_000}, {"expires_at": 500}]))
        where, first = position(version, **body), 0
        for size in draw(st.lists(st.integers(1, 12), max_size=3)):
            segments.append(Segment(where, first, first + size - 1, *draw(HISTORIES)))
            first += size + 1
    return segments


@given(lanes(), st.integers(1, 30), st.sampled_from([None, 3, 5]))
def test_a_claim_takes_the_first_messages_that_are_due_and_skips_only_the_dead(
    segments: Any, limit: int, deliveries_max: Any
) -> None:
    chosen = select(segments, limit, deliveries_max)
    due = messages(
        s for s in sorted(segments, key=lambda s: s.order) if s.receivable(NOW_MS, AT_ONCE)
    )
    dead = set(messages(chosen.dead))
    taken = messages(chosen.segments)
    assert taken == [m for m in due if m not in dead][: len(taken)]
    assert bool(taken or dead) == bool(due)


@given(lanes(), st.integers(1, 30), st.sampled_from([None, 3, 5]))
def test_a_claim_never_mixes_histories(segments: Any, limit: int, deliveries_max: Any) -> None:
    """Fresh messages must not share the fate of ones that failed before."""
    chosen = select(segments, limit, deliveries_max)
    assert len({(s.delivery_count, s.former) for s in chosen.segments}) <= 1


@given(lanes(), st.integers(1, 30), st.sampled_from([None, 3, 5]))
def test_a_claim_holds_at_most_its_limit_and_what_may_be_delivered_again_together(
    segments: Any, limit: int, deliveries_max: Any
) -> None:
    chosen = select(segments, limit, deliveries_max)
    for segment in chosen.segments:
        assert chosen.count <= limit
        narrow = segment.former if segment.delivery_count < 2 else max(1, segment.former // 10)
        assert not segment.former or chosen.count <= narrow


@given(lanes(), st.integers(1, 30), st.sampled_from([None, 3, 5]))
def test_dead_are_only_messages_that_failed_alone_and_often_enough(
    segments: Any, limit: int, deliveries_max: Any
) -> None:
    chosen = select(segments, limit, deliveries_max)
    assert all(s.former == 1 and s.delivery_count >= deliveries_max for s in chosen.dead)
    taken = {s.order for s in chosen.segments}
    assert taken.isdisjoint(s.order for s in chosen.dead)


def test_nothing_is_dead_without_a_limit_of_deliveries() -> None:
    chosen = select([Segment(position(1), 0, 0, 1_000, 1)])
    assert (chosen.count, chosen.dead) == (1, [])


@pytest.mark.parametrize(
    ("failures", "former", "expected"),
    [
        *((0, 0, 100), (1, 1000, 100), (1, 70, 70), (1, 1, 1)),
        *((2, 1000, 100), (2, 100, 10), (2, 99, 9), (2, 19, 1), (2, 9, 1), (3, 1, 1)),
    ],
)
def test_redelivery_comes_in_the_same_size_once_and_then_narrows_to_a_tenth(
    failures: Any, former: Any, expected: Any
) -> None:
    chosen = select([Segment(position(1), 0, 499, failures, former)])
    assert chosen.count == expected


def sizes(size: int, deliveries_max: Any, deliveries: Any) -> Any:
    """Deliver the first messages of a claim again and again, all in vain."""
    former, found = 0, []
    for failures in range(deliveries):
        waiting = [Segment(position(1), 0, size - 1, failures, former)]
        former = select(waiting, size, deliveries_max).count
        found.append(former)
    return found


def test_one_poison_row_in_100_000_is_alone_after_six_failures() -> None:
    assert sizes(100_000, 10, 7) == [100_000, 100_000, 10_000, 1_000, 100, 10, 1]


@pytest.mark.parametrize("size", [10, 99, 84_194, 100_000, 99_999_999, 100_000_000])
@pytest.mark.parametrize("deliveries_max", [3, 4, 5, 6, 9, 10, 11, 100, 1_000])
def test_a_message_is_alone_in_its_last_delivery_however_many_there_were(
    size: int, deliveries_max: Any
) -> None:
    deliveries = min(deliveries_max, 12)
    found = sizes(size, deliveries_max, deliveries)
    assert found[:2] == [size, size]
    assert found[-1] == 1
    assert all(after <= max(1, before // 10) for before, after in pairwise(found[1:]))


@given(st.integers(1, 10**8), st.integers(3, 1_000))
def test_single_messages_are_reached_before_deliveries_max_for_every_size(
    size: int, deliveries_max: Any
) -> None:
    rules, former = Redelivery(deliveries_max), size
    for failures in range(1, deliveries_max):
        former = rules.size_max(failures, former)
        assert not rules.is_dead(failures, 2)
    assert former == 1
    assert rules.is_dead(deliveries_max, former)


@given(st.integers(2, 10**8), st.sampled_from([None, 1, 2]))
def test_too_few_deliveries_bound_only_what_came_back_alone(size: int, deliveries_max: Any) -> None:
    """Where there is no room to narrow, tenths go on until the message is alone."""
    rules, former = Redelivery(deliveries_max), size
    for failures in range(1, 10):
        assert not rules.is_dead(failures, former) or former == 1
        narrower = rules.size_max(failures, former)
        assert narrower == (former if failures == 1 else max(1, former // 10))
        former = narrower
    assert former == 1


def test_a_queue_that_allows_few_deliveries_narrows_no_more_than_it_must() -> None:
    assert sizes(100_000, 5, 5) == [100_000, 100_000, 2_154, 46, 1]
    assert sizes(1_000, 5, 5) == [1_000, 1_000, 100, 10, 1]


def test_messages_that_failed_in_a_crowd_are_never_dead() -> None:
    """A few killed drivers send nobody to the dead-letter queue."""
    chosen = select([Segment(position(1), 0, 99, 1_000, 100)], deliveries_max=3)
    assert (chosen.dead, chosen.count) == ([], 10)


def test_messages_of_an_ended_claim_come_back_at_their_original_place() -> None:
    early, late = position(1), position(2)
    chosen = select([Segment(late, 0, 5)], returning=[Segment(early, 0, 5, 2, 30)])
    assert messages(chosen.segments) == [(1, 0), (1, 1), (1, 2)]


def test_what_was_posted_after_the_start_is_left_out() -> None:
    chosen = select([Segment(position(1), 0, 1), Segment(position(2), 0, 1)], upto=1)
    assert messages(chosen.segments) == [(1, 0), (1, 1)]


def test_a_selector_looks_no_further_than_it_must() -> None:
    def wanted(segments: Any) -> Any:
        yield from segments
        raise AssertionError("it has enough")

    whole = Segment(position(1), 0, 4)
    for limit in (2, 5):
        chosen = planning.select(lane_of(whole), (), limit, NOW_MS, Redelivery(None), wanted=wanted)
        assert chosen.count == limit
    with pytest.raises(AssertionError, match="enough"):
        planning.select(lane_of(whole), (), 6, NOW_MS, Redelivery(None), wanted=wanted)


def test_a_claim_by_a_selector_removes_what_is_over_and_tells_its_duplicates() -> None:
    over = Segment(position(1, expires_at=500), 0, 2)
    chosen = planning.select(
        lane_of(over), (), 5, NOW_MS, Redelivery(None),
        wanted=lambda segments: segments, left_out=lambda segment: ((1, 1),),
    )  # fmt: skip
    assert (messages(chosen.expired), messages(chosen.duplicates)) == ([(1, 0), (1, 2)], [(1, 1)])


def test_a_claim_takes_the_lanes_next_sequence_number() -> None:
    assert select([]).sequence == 4


def test_a_flood_of_dead_messages_is_moved_in_portions() -> None:
    many = [Segment(position(1), 2 * n, 2 * n, 9, 1) for n in range(planning.REMOVALS_MAX + 5)]
    chosen = select(many, deliveries_max=3)
    assert len(chosen.dead) == planning.REMOVALS_MAX
    assert chosen.count == 0  # the others are dead too, and come next


def test_grouping_keeps_delivery_order() -> None:
    first, second = position(1), position(2)
    segments = [Segment(second, 0, 1), Segment(first, 0, 1), Segment(second, 5, 5)]
    found = [(p.place[0], part) for p, part in planning.grouped(segments)]
    assert found == [(2, ((0, 1), (5, 5))), (1, ((0, 1),))]


# ------------------------------------------------------------------------- claims as entries


def test_a_claim_reads_its_lane_and_the_fence_and_writes_its_lane() -> None:
    plan = planning.claim("q", select([Segment(position(1), 0, 4)]), TX, 2_000, STAMP)
    assert {c.shard for c in plan.conditions} == {"lane/q/0", model.FENCE}
    assert [e.shard for e in plan.entries] == ["lane/q/0"]
    assert model.next_sequence("lane/q/0", "lane/0", 4) in plan.conditions


def test_a_claim_of_a_million_messages_is_one_entry_with_one_range() -> None:
    chosen = select([Segment(position(1), 0, 999_999)], 1_000_000)
    (entry,) = planning.claim("q", chosen, TX, 2_000, STAMP).entries
    assert (entry.ranges, entry.count) == (((0, 999_999),), 1_000_000)


def test_a_claim_carries_its_owner() -> None:
    (entry,) = planning.claim("q", select([Segment(position(1), 0, 4)]), TX, 2_000, STAMP).entries
    assert (entry.transaction_key, entry.attempt, entry.begun) == ("k", "a1", 5)
    assert (entry.actor, entry.run_id, entry.recorded_at_ms) == ("me", "run-1", 1_000)
    assert Claim.of(entry, {}).owner == TX


def test_no_messages_are_no_entry_but_the_lane_is_still_expected() -> None:
    plan = planning.claim("q", select([]), TX, 2_000, STAMP)
    assert plan.entries == ()
    assert model.next_sequence("lane/q/0", "lane/0", 4) in plan.conditions


def dead() -> Any:
    segments = [Segment(position(1), 0, 0, 3, 1), Segment(position(1), 1, 5)]
    return dead_letters(select(segments, deliveries_max=3), "q.dead")


def dead_letters(chosen: Any, target_id: Any) -> Any:
    target = planning.Target(target_id)
    removal = planning.Removal(model.DEAD_LETTERED, tuple(chosen.dead), "deliveries_max", target)
    return planning.remove("q", "orders", chosen, removal, STAMP)


def test_dead_letters_leave_the_lane_and_stand_in_the_target_by_one_append() -> None:
    plan, _ = dead()
    gone, posted = plan.entries
    assert (gone.kind, gone.shard, gone.ranges) == (model.DEAD_LETTERED, "lane/q/0", ((0, 0),))
    assert (posted.kind, posted.shard) == (model.POSTED, "backlog/q.dead")
    assert model.queue_open("q.dead") in plan.conditions


def test_a_dead_letter_is_a_new_position_on_the_same_payload() -> None:
    posted = Position.of(dead()[0].entries[1])
    assert (posted.payload_id, posted.send_id, posted.ranges) == ("p", "s1", ((0, 0),))
    assert dead()[0].entries[1].count == 1
    assert (posted.origin["queue"], posted.origin["delivery_count"]) == ("orders", 3)
    assert posted.origin["reason"] == "deliveries_max"


def test_the_claim_behind_dead_letters_takes_the_next_number() -> None:
    _, following = dead()
    assert (following.sequence, following.dead, messages(following.segments)[0]) == (5, [], (1, 1))


def test_what_follows_a_purge_of_messages_in_flight_takes_the_next_number() -> None:
    pending = [Segment(position(1), 0, 4)]
    plan, following = planning.purge_pending("q", select([]), pending, STAMP, "why")
    assert [entry.sequence for entry in plan.entries] == [4]
    assert (following.sequence, following.lane) == (5, 0)
    assert model.next_sequence("lane/q/0", "lane/0", 4) in plan.conditions


# ------------------------------------------------------------------------------ settlements


def test_a_settlement_outside_is_the_lanes_next_entry() -> None:
    entry = planning.settlement(
        "q", held(), Disposition(model.ACCEPTED), STAMP, sequence=9, owner=None
    )
    assert (entry.shard, entry.sequence, entry.claim_sequence) == ("lane/q/0", 9, 3)


def test_a_settlement_inside_is_a_fact_in_the_backlog() -> None:
    entry = planning.settlement(
        "q", held(), Disposition(model.ACCEPTED), STAMP, sequence=None, owner=TX
    )
    assert (entry.shard, entry.sequence, entry.attempt) == ("backlog/q", None, "a1")


@pytest.mark.parametrize(
    ("items", "count"), [(None, 4), (((("a1", 0), ((1, 2),)),), 2)], ids=["all", "a part"]
)
def test_a_settlement_counts_its_messages(items: Any, count: int) -> None:
    disposition = Disposition(model.REJECTED, items, "bad")
    entry = planning.settlement("q", held(), disposition, STAMP, sequence=9, owner=None)
    assert (entry.count, entry.reason) == (count, "bad")


def test_a_rollback_releases_what_was_acquired_inside_only() -> None:
    """What was held under a lease stays with its holder."""
    entries = planning.release_claims("q", [held(owner=TX), held(owner=LEASE)], STAMP, "why")
    assert [(e.kind, e.attempt, e.reason) for e in entries] == [(model.RELEASED, "a1", "why")]
    assert entries[0].body["counted"] is True


def test_lane_entries_expect_every_lane_and_an_open_queue() -> None:
    conditions = planning.lane_conditions("q", [(0, 4), (1, 7)])
    assert conditions == (
        model.next_sequence("lane/q/0", "lane/0", 4),
        model.next_sequence("lane/q/1", "lane/1", 7),
        model.queue_open("q"),
        model.layout_unchanged(),
    )


# -------------------------------------------------------------------------------- decisions

FACT = Entry("backlog/q", "lane/0", model.POSTED, queue_id="q", lane=0, ranges=((0, 2),), count=3)


def seal(kind: str, facts: Any = (FACT,), rolled_back: Any = ()) -> Any:
    return decisions.seal(
        kind, TX, facts, ["q2", "q", "q"], rolled_back, stamp=STAMP, body={"digest": "d"}
    )


@pytest.mark.parametrize("kind", [model.COMMITTED, model.PREPARED])
def test_a_seal_expects_what_the_design_says(kind: str) -> None:
    assert set(seal(kind, rolled_back=["a0"]).conditions) == {
        model.undecided("k", "a1", unprepared=True),
        model.key_free("k", "a1", ["a0"]),
        model.horizon_at_most(5),
        model.layout_unchanged(),
        model.queue_open("q"),
        model.queue_open("q2"),
    }


def test_a_commit_writes_its_facts_and_counts_them() -> None:
    decided, fact = seal(model.COMMITTED).entries
    assert fact == replace(FACT, recorded_at_ms=STAMP.now_ms)
    assert decided.body["manifest"] == {"posted": {"q": 3}, "settled": {}}
    assert decided.body["digest"] == "d"


def test_a_prepare_keeps_its_facts_to_itself() -> None:
    """Nothing of it may be seen before the decision."""
    (prepared,) = seal(model.PREPARED).entries
    assert prepared.kind == model.PREPARED
    assert prepared.body["manifest"]["entries"] == [decisions.entry_to_json(FACT)]


def test_committing_what_was_prepared_writes_the_same_facts() -> None:
    (prepared,) = seal(model.PREPARED).entries
    decided, fact = decisions.decide_prepared(
        prepared, commit=True, stamp=STAMP, reason=None
    ).entries
    assert fact == replace(FACT, recorded_at_ms=STAMP.now_ms)  # it enters the queue now
    assert (decided.kind, decided.body) == (model.COMMITTED, seal(model.COMMITTED).entries[0].body)


def test_rolling_back_what_was_prepared_releases_its_claims() -> None:
    released = planning.release_claims("q", [held(owner=TX)], STAMP, "prepared")
    body = {"claims": [decisions.entry_to_json(entry) for entry in released]}
    (prepared,) = decisions.seal(
        model.PREPARED, TX, [FACT], ["q"], [], stamp=STAMP, body=body
    ).entries
    plan = decisions.decide_prepared(prepared, commit=False, stamp=STAMP, reason="no")
    assert [(e.kind, e.reason) for e in plan.entries[:1]] == [(model.ROLLED_BACK, "no")]
    assert plan.entries[1:] == tuple(replace(entry, reason="no") for entry in released)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_on_a_prepared_attempt_expects_nothing_else(commit: bool) -> None:
    """Neither a horizon nor a closing queue stands in its way."""
    (prepared,) = seal(model.PREPARED).entries
    if not commit:
        prepared = replace(prepared, body={**prepared.body, "claims": []})
    plan = decisions.decide_prepared(prepared, commit=commit, stamp=STAMP, reason=None)
    assert plan.conditions == (
        model.is_prepared("k", "a1"),
        model.undecided("k", "a1", unprepared=False),
    )


def test_a_rollback_expects_that_nothing_is_decided_or_prepared() -> None:
    plan = decisions.rollback(TX, [FACT], STAMP, "why")
    assert set(plan.conditions) == {
        model.undecided("k", "a1", unprepared=True),
        model.horizon_at_most(5),
        model.layout_unchanged(),
    }
    assert [e.kind for e in plan.entries] == [model.ROLLED_BACK, model.POSTED]


def test_a_bind_is_the_lanes_next_entry_of_the_attempt() -> None:
    entry = planning.bind("q", held(), TX, 8, STAMP)
    assert (entry.shard, entry.sequence, entry.claim_sequence) == ("lane/q/0", 8, 3)
    assert (entry.kind, entry.attempt) == (model.BOUND, "a1")


def test_plans_joined_read_expect_and_write_both() -> None:
    one = Plan((FACT,), (model.queue_open("q"),))
    two = Plan((replace(FACT, lane=1),), (model.queue_open("q2"),))
    assert (one + two).entries == one.entries + two.entries
    assert (one + two).conditions == one.conditions + two.conditions


ENTRIES = st.builds(
    Entry,
    st.text(max_size=5),
    st.text(max_size=5),
    st.sampled_from([model.POSTED, model.ACCEPTED]),
    sequence=st.none() | st.integers(0, 9),
    queue_id=st.none() | st.text(max_size=5),
    lane=st.none() | st.integers(0, 9),
    ranges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 60))).map(tuple),
    count=st.none() | st.integers(0, 1 << 60),
    reason=st.none() | st.text(max_size=5),
    body=st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3)),
)


@given(ENTRIES)
def test_an_entry_survives_its_way_through_a_manifest(entry: Any) -> None:
    written = json.dumps(decisions.entry_to_json(entry))
    assert decisions.entry_from_json(json.loads(written)) == entry


# -------------------------------------------------------- what is planned can be folded


class FailingConsumer:
    """Claims and gives back, counted, as the plans say; the fold follows."""

    def __init__(self) -> None:
        self.fold, self.version, self.dead = QueueState("q", 1), 0, 0

    def land(self, *entries: Any) -> None:
        self.version += 1
        mine = [replace(e, version=self.version, append_id=f"a{self.version}") for e in entries]
        self.fold.advance([e for e in mine if e.queue_id == "q"], self.version)

    def post(self, size: int) -> None:
        body = {"payload": "p", "slice": 0, "send": f"s{self.version}"}
        self.land(replace(FACT, ranges=((0, size - 1),), body=body))

    def fail(self, limit: int) -> None:
        chosen = planning.select(self.fold.lanes[0], [], limit, NOW_MS, Redelivery(2))
        plan = Plan()
        if chosen.dead:
            self.dead += sum(segment.size for segment in chosen.dead)
            plan, chosen = dead_letters(chosen, "d")
        plan += planning.claim("q", chosen, TX, 2_000, STAMP)
        self.land(*plan.entries)
        self.land(*planning.release_claims("q", self.fold.claims(), STAMP, "failed"))


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30))
def test_every_plan_for_a_failing_consumer_can_be_folded_and_loses_nothing(rounds: Any) -> None:
    consumer, posted = FailingConsumer(), 0
    for size, post in rounds:
        if post:
            consumer.post(size)
            posted += size
        else:
            consumer.fail(size)
        assert consumer.fold.available(NOW_MS, AT_ONCE) + consumer.dead == posted


def test_a_queue_whose_handler_always_fails_ends_in_dead_letters() -> None:
    consumer = FailingConsumer()
    consumer.post(30)
    for _ in range(200):
        consumer.fail(30)
    assert (consumer.fold.available(NOW_MS, AT_ONCE), consumer.dead) == (0, 30)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("heuristic", [True, False])
def test_what_an_operator_decides_is_said_to_be_asked_for_and_on_record(
    commit: bool, heuristic: bool
) -> None:
    body = {"v": 1, "claims": [], "manifest": {"entries": []}}
    prepared = Entry(
        "transaction/0", "k", model.PREPARED, transaction_key="k", attempt="a", begun=5, body=body
    )
    stamp = Stamp("me", None, 1_000)
    plan = decisions.decide_prepared(
        prepared, commit=commit, stamp=stamp, reason="why", heuristic=heuristic
    )
    kind = model.COMMITTED if commit else model.ROLLED_BACK
    expected = [kind, model.HEURISTIC] if heuristic else [kind]
    assert [entry.kind for entry in plan.entries] == expected
    assert plan.entries[0].body.get("asked") is (True if heuristic else None)
    assert all(entry.body["decision"] == kind for entry in plan.entries[1:])


def test_lanes_of_the_try_that_was_lost_last_come_last() -> None:
    fold, tries = QueueState("q", 3), Tries()
    for lane in (0, 1):
        tries.note({lane: 9})
    assert tries.in_order(fold, [0, 1, 2]) == [0, 2, 1]
    tries.note({2: fold.lanes[2].next_sequence})
    assert tries.in_order(fold, [0, 1, 2]) == [2, 0, 1]


def test_two_plans_exclude_each_other_if_one_writes_what_the_other_expects_to_be_absent() -> None:
    entry = Entry("lane/q/0", "lane/0", model.CLAIMED, sequence=1)
    writes = Plan((entry,))
    expects = Plan((), (model.next_sequence("lane/q/0", "lane/0", 1),))
    assert writes.excludes(expects) and expects.excludes(writes)
    assert not writes.excludes(Plan()) and not Plan().excludes(expects)


def test_beside_an_earlier_try_that_landed_something_may_be_left() -> None:
    def removed(sequence: int, lane: int = 0) -> Entry:
        return Entry.in_lane("q", lane, model.PURGED, sequence=sequence)

    tries = Tries()
    assert tries.something_is_left([removed(5)], "q"), "the last plan could not be made"
    tries.want([removed(5), Entry.in_lane("other", 0, model.PURGED, sequence=7)], "q")
    assert not tries.something_is_left([removed(5)], "q")
    assert tries.something_is_left([removed(4)], "q")
    assert tries.something_is_left([removed(5), removed(1, lane=1)], "q")
    tries.want([], "q")
    assert not tries.something_is_left([removed(5)], "q"), "nothing was left to plan"
