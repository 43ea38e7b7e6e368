"""What has finished, and may leave the journal: each rule at its boundary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.test_ledger import TX, Log
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import retention

HORIZON = 10


def entry(shard: str, stream: str, kind: str, version: int, **more: Any) -> Entry:
    return Entry(shard, stream, kind, version=version, append_id=f"e{version}", **more)


def table(kind: str, version: int, **more: Any) -> Entry:
    return entry("table/t", "table", kind, version, **more)


def decided(kind: str, version: int, attempt: str = "a", **body: Any) -> Entry:
    return entry("transaction/0", "x", kind, version, attempt=attempt, body=body)


def versions(entries: list[Entry], horizon: int = HORIZON) -> list[int]:
    return sorted(one.version for one in retention.finished(entries, horizon))


@pytest.mark.parametrize("kind", [model.CHANGE_APPLIED, model.CHANGE_WAIVED])
@pytest.mark.parametrize(
    ("ending", "left"), [(HORIZON - 1, [3, HORIZON - 1]), (HORIZON, []), (HORIZON + 1, [])]
)
def test_a_change_leaves_with_its_ending_and_both_below_the_horizon(
    kind: str, ending: int, left: list[int]
) -> None:
    change = table(model.CHANGE_DECIDED, 3)
    applied = table(kind, ending, body={"change": list(change.entry_id)})
    assert versions([change, applied]) == left


def test_a_change_that_nobody_ended_stays() -> None:
    change, other = table(model.CHANGE_DECIDED, 3), table(model.CHANGE_DECIDED, 4)
    applied = table(model.CHANGE_APPLIED, 5, body={"change": list(other.entry_id)})
    assert versions([change, other, applied]) == [4, 5]


def test_an_ending_whose_change_has_left_leaves_too() -> None:
    assert versions([table(model.CHANGE_APPLIED, 5, body={"change": ["gone", 0]})]) == [5]


def test_a_confirmation_leaves_once_its_decision_has_left() -> None:
    confirmed = table(model.BRANCH_CONFIRMED, 5, attempt="a", body={"participant": "db"})
    assert versions([confirmed]) == [5]
    committed = decided(model.COMMITTED, 4, participants=["db"])
    assert versions([confirmed, committed]) == [4]


def test_a_commit_that_a_database_has_not_confirmed_stays() -> None:
    committed = decided(model.COMMITTED, 4, participants=["db", "other"])
    confirmed = table(model.BRANCH_CONFIRMED, 5, attempt="a", body={"participant": "db"})
    assert versions([committed, confirmed]) == []
    also = table(model.BRANCH_CONFIRMED, 6, attempt="a", body={"participant": "other"})
    assert versions([committed, confirmed, also]) == [4]
    foreign = table(model.BRANCH_CONFIRMED, 6, attempt="b", body={"participant": "other"})
    assert 4 not in versions([committed, confirmed, foreign])


def test_a_roll_back_waits_for_no_database() -> None:
    assert versions([decided(model.ROLLED_BACK, 4, participants=["db"])]) == [4]


def test_what_was_prepared_leaves_with_its_decision_only() -> None:
    prepared = decided(model.PREPARED, 3)
    assert versions([prepared]) == []
    assert versions([prepared, decided(model.COMMITTED, HORIZON)]) == []
    assert versions([prepared, decided(model.COMMITTED, 7)]) == [3, 7]
    assert versions([prepared, decided(model.COMMITTED, 7, attempt="b")]) == [7]


def test_a_transaction_with_an_entry_of_another_kind_stays_whole() -> None:
    found = [decided(model.PREPARED, 3), decided(model.COMMITTED, 4), decided("later kind", 5)]
    assert versions(found) == []


def test_a_transaction_that_stays_keeps_no_other() -> None:
    strange = entry("transaction/0", "x", "strange", 1, attempt="a")
    other = replace(decided(model.COMMITTED, 2, "b"), stream="y")
    assert versions([strange, decided(model.COMMITTED, 2), other]) == [2]


def test_all_inventories_but_the_newest_leave() -> None:
    taken = [entry("catalog", "payload/p", model.PAYLOAD_LISTED, n, sequence=n) for n in (2, 4, 6)]
    assert versions([*taken, entry("catalog", "queue/q", model.QUEUE_CREATED, 1)]) == [2, 4]


def test_all_horizons_but_the_newest_leave() -> None:
    said = [
        entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, n, begun=begun)
        for n, begun in ((3, 1), (5, 4), (7, HORIZON))
    ]
    assert versions(said) == [3, 5]


@pytest.mark.parametrize(("dropped", "left"), [(HORIZON - 1, [3]), (HORIZON, [])])
def test_a_queue_leaves_when_it_was_dropped_below_the_horizon(
    dropped: int, left: list[int]
) -> None:
    drop = entry(model.FENCE, "queue/q", model.QUEUE_DROPPED, dropped, queue_id="q")
    closing = entry(model.FENCE, "queue/r", model.QUEUE_CLOSING, 2, queue_id="r")
    posted = [
        entry(f"backlog/{queue}", "lane/0", model.POSTED, n, queue_id=queue, lane=0)
        for queue, n in (("q", 3), ("r", 4))
    ]
    assert versions([drop, closing, *posted]) == left


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_compaction_decides_what_it_replaces_whatever_the_order_of_reading(
    backwards: bool,
) -> None:
    first, second = (
        entry(
            "lane/q/0", "lane/0", model.COMPACTED, n, sequence=n, queue_id="q", lane=0,
            body={"pin": n - 1, "waiting": [], "in_flight": []},
        )
        for n in (3, 6)
    )  # fmt: skip
    claim = entry("lane/q/0", "lane/0", model.CLAIMED, 4, sequence=4, queue_id="q", lane=0)
    found = [first, claim, second]
    assert versions(found[::-1] if backwards else found) == [3, 4]


def recorded(version: int, at_ms: int) -> Entry:
    return entry("lane/q/0", "lane/0", model.CLAIMED, version, recorded_at_ms=at_ms)


@pytest.mark.parametrize(
    ("said", "cutoff_ms", "expected"),
    [
        ([], 100, -1),
        ([(1, 50), (2, 60)], 100, 2),
        ([(1, 50), (2, 100), (3, 101)], 100, 2),
        ([(1, 50), (2, 101), (3, 60)], 100, 1),  # what came after it may have begun after it
        ([(1, 101), (2, 60)], 100, -1),
        ([(1, 50), (2, 60), (2, 101)], 100, 1),  # one commit, or none of it
        ([(1, 50), (2, 9_000), (3, 60)], 100, 3),  # by a clock that is ahead: before 60
        ([(1, 50), (2, 9_000)], 100, 1),  # nobody said when, but now
        ([(1, 50), (2, 1_000), (3, 60)], 100, 1),  # now: by a clock that is right
    ],
)
def test_the_horizon_passes_what_was_recorded_before_the_cutoff_and_all_before_it(
    said: list[tuple[int, int]], cutoff_ms: int, expected: int
) -> None:
    entries = [recorded(version, at_ms) for version, at_ms in said]
    for found in (entries, entries[::-1]):
        assert retention.next_horizon(found, [], 1_000, cutoff_ms) == expected


@pytest.mark.parametrize(("now_ms", "expected"), [(1_999, TX.begun), (2_000, 7)])
def test_a_claim_in_a_transaction_holds_the_horizon_until_its_lease_is_over(
    now_ms: int, expected: int
) -> None:
    log = Log()
    log.post((0, 1))
    assert log.claim(owner=TX).deadline_ms == 2_000
    assert retention.next_horizon([recorded(7, 50)], [log.fold], now_ms, 100) == expected


@pytest.mark.parametrize("ended", [model.COMMITTED, model.ROLLED_BACK])
def test_what_a_decided_transaction_left_of_a_lease_does_not_hold_the_horizon(ended: str) -> None:
    log = Log()
    log.post((0, 1))
    log.claim(owner=TX)
    decision = entry("transaction/0", "x", ended, 6, attempt=TX.attempt)
    assert retention.next_horizon([decision, recorded(7, 50)], [log.fold], 1_999, 100) == 7


def test_a_transaction_that_the_horizon_has_passed_does_not_hold_it() -> None:
    log = Log()
    log.post((0, 1))
    log.claim(owner=TX)
    before = entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, 4, begun=TX.begun + 1)
    assert retention.next_horizon([before, recorded(7, 50)], [log.fold], 1_999, 100) == 7


def test_a_slice_may_go_that_ends_below_the_horizon_and_is_not_named() -> None:
    assert retention.droppable([4, 0, 1, 2], [0], 200, 100) == [1]
    assert retention.droppable([4, 0, 1, 2], [0], 199, 100) == []


@pytest.mark.parametrize(
    ("begun", "ended", "expected"),
    [
        (4, None, 4),
        (8, None, 7),  # nothing is held back that lies above it anyway
        (4, model.PREPARED, 7),
        (4, model.COMMITTED, 7),
        (4, model.ROLLED_BACK, 7),
        (3, None, 3),  # where the horizon is by now
        (2, None, 7),  # the horizon has passed it: it is over
    ],
)
def test_an_undecided_branch_holds_the_horizon_where_it_began(
    begun: int, ended: str | None, expected: int
) -> None:
    started = entry("transaction/0", "x", model.STARTED, 5, attempt="a", begun=begun)
    other = entry("transaction/0", "y", model.COMMITTED, 6, attempt="b", begun=begun)
    said = [entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, 4, begun=3), started, other]
    said += [entry("transaction/0", "x", ended, 6, attempt="a")] if ended else []
    assert retention.next_horizon([*said, recorded(7, 50)], [], 1_000, 100) == expected
