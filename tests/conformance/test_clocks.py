"""Clocks that are years wrong: nothing waits for them, and nothing is lost by them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, on_delta_when_long
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.admin import creation
from txnqueue.core import model
from txnqueue.errors import InvalidInput, LeaseLost, TransactionAborted, TransactionNotFound
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.protocols.dtx.sessions import BranchSession
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

DAY = 86_400.0
YEARS = 3 * 365 * DAY


class Drivers:
    """One store in memory, and drivers whose clocks are apart."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.apart: dict[float, Clock] = {0.0: self.clock}
        self.made = 0

    def manager(self, name: str, apart_seconds: float = 0.0) -> QueueManager:
        clock = self.apart.setdefault(
            apart_seconds, Clock(self.clock.now_ms + round(apart_seconds * 1000))
        )
        self.made += 1
        given = runtime(clock, f"{name}#{self.made}")
        given.consumer = name
        return QueueManager(None, "memory", store=self.store, runtime=given)

    def advance(self, seconds: float) -> None:
        for clock in self.apart.values():
            clock.advance(seconds)


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Drivers:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    return Drivers()


def work(queue: Any, number: int) -> None:
    queue.send([{"n": number}])
    queue.receive(1).accept()


@pytest.mark.parametrize("apart_seconds", [YEARS, -YEARS])
def test_a_clock_that_is_years_wrong_stops_no_maintenance(
    drivers: Drivers, apart_seconds: float
) -> None:
    keeper = drivers.manager("keeper")
    queue = keeper.create_queue("orders", "n long", dead_letter=False)
    work(queue, 0)
    work(drivers.manager("wrong", apart_seconds).queue("orders"), 1)
    horizons = []
    for day in range(5):
        work(queue, 10 + day)
        drivers.advance(DAY)
        done = keeper.maintain(transaction_seconds_max=3_600, payload_retention_days=0)
        horizons.append(done.horizon)
    assert horizons == sorted(horizons) and horizons[-1] > horizons[0] > 0
    assert keeper.history.verify().ok


@pytest.mark.parametrize("apart_seconds", [YEARS, -YEARS])
def test_a_maintenance_by_a_wrong_clock_keeps_nothing_longer_than_others_would(
    drivers: Drivers, apart_seconds: float
) -> None:
    keeper = drivers.manager("keeper")
    queue = keeper.create_queue("orders", "n long", dead_letter=False)
    kept: dict[str, Any] = {"transaction_seconds_max": 3_600, "payload_retention_days": 1}
    with keeper.transaction("first") as first:
        queue.send([{"n": 0}], transaction=first)
    queue.receive(1).accept()
    drivers.manager("wrong", apart_seconds).maintain(**kept)
    done = []
    for day in range(8):
        work(queue, day)
        drivers.advance(DAY)
        done.append(keeper.maintain(**kept, history_retention_days=2))
        assert keeper.history.verify().ok
    assert done[-1].archived > 0
    assert sum(one.forgotten for one in done) > 0
    assert keeper.outcome("first").status.value in ("committed", "undecided")


def test_a_lease_of_a_clock_that_is_years_ahead_ends_when_its_own_time_is_over(
    drivers: Drivers,
) -> None:
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": n} for n in range(3)])
    drivers.manager("ahead", YEARS).queue("orders").receive(2, lease_seconds=60)
    queue.send([{"n": 9}])  # whose clock is right: this is when the lease began at the latest
    drivers.advance(59)
    assert len(drivers.manager("early").queue("orders").receive(9)) == 2
    drivers.advance(2)
    late = drivers.manager("late").queue("orders")
    assert {m["n"] for _ in range(2) for m in late.receive(2).messages()} == {0, 1}


def test_a_driver_that_watches_needs_nobody_elses_clock(drivers: Drivers) -> None:
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    drivers.manager("ahead", YEARS).queue("orders").receive(1, lease_seconds=60)
    assert len(queue.receive(1)) == 0
    drivers.advance(61)
    assert [m["n"] for m in queue.receive(1).messages()] == [1]


def test_an_extended_lease_of_a_clock_that_is_ahead_lasts_as_long_as_it_was_extended(
    drivers: Drivers,
) -> None:
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    batch = drivers.manager("ahead", YEARS).queue("orders").receive(1, lease_seconds=60)
    drivers.advance(50)
    batch.extend_lease(60)
    queue.send([{"n": 2}])
    drivers.advance(50)
    assert [m["n"] for m in queue.receive(2).messages()] == [2]
    drivers.advance(11)
    assert [m["n"] for m in queue.receive(2).messages()] == [1]


def test_a_clock_that_is_years_behind_ends_nobody_elses_lease(drivers: Drivers) -> None:
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    batch = queue.receive(1, lease_seconds=60)
    work(drivers.manager("behind", -YEARS).queue("orders"), 2)
    drivers.advance(59)
    assert len(drivers.manager("b").queue("orders").receive(1)) == 0
    batch.accept()


def test_what_a_compaction_carries_of_a_lease_ends_in_its_own_time(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    batch = drivers.manager("ahead", YEARS).queue("orders").receive(1, lease_seconds=60)
    batch.extend_lease(60)
    client_of(manager).log_max = 1
    work(queue, 2)  # compacts the lane
    assert manager.history.verify().ok
    fresh = drivers.manager("fresh").queue("orders")
    assert len(fresh.receive(1)) == 0
    drivers.advance(61)
    assert [m["n"] for m in fresh.receive(1).messages()] == [1]


def test_every_fresh_client_counts_a_compacted_lease_from_where_it_began(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    drivers.manager("ahead", 7_200).queue("orders").receive(1, lease_seconds=300)
    client_of(manager).log_max = 1
    work(queue, 2)
    work(queue, 3)
    entries = drivers.store.journal.read_all().entries
    assert any(e.kind == model.COMPACTED and e.body["in_flight"] for e in entries)
    for n in range(3):
        drivers.advance(150)
        queue.send([{"n": 10 + n}])
    fresh = drivers.manager("fresh").queue("orders")
    assert 1 in {m["n"] for _ in range(4) for m in fresh.receive(1).messages()}


def started(manager: QueueManager, name: str = "b", seconds: float = 60) -> BranchSession:
    """Start a branch in which several sessions may work."""
    session = Branches(client_of(manager)).start(f"xid:{name}", seconds)
    assert isinstance(session, BranchSession)
    return session


@pytest.mark.parametrize("sees", ["its claim", "another commit"])
def test_a_branch_of_a_clock_that_is_years_ahead_ends_when_its_own_time_is_over(
    drivers: Drivers, sees: str
) -> None:
    """Its time is a length, as a lease's is; who watches what it holds needs no other clock."""
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    session = started(drivers.manager("ahead", YEARS))
    session.queue("orders").receive(1, lease_seconds=7 * DAY)
    if sees == "its claim":
        assert len(queue.receive(1)) == 0
    else:
        for n in range(model.TRANSACTION_SHARDS):  # whatever shard the branch is in
            drivers.manager(f"m{n}").transaction(f"t/{n}").prepare()
    drivers.advance(59)
    assert len(queue.receive(1)) == 0
    drivers.advance(2)
    if sees == "its claim":
        assert [m["n"] for m in queue.receive(1).messages()] == [1]
    else:
        assert drivers.manager("recovering").recover().aborted == ("xid:b",)
        assert queue.depth() == 1


def test_a_branch_that_is_not_ahead_lasts_as_long_as_it_says(drivers: Drivers) -> None:
    """A slower clock beside it shortens nothing."""
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    session = started(drivers.manager("starts"))
    session.queue("orders").receive(1)
    work(drivers.manager("behind", -YEARS).queue("orders"), 2)
    drivers.advance(59)
    assert len(queue.receive(1)) == 0
    assert drivers.manager("recovering").recover().aborted == ()
    drivers.advance(2)
    assert drivers.manager("recovering").recover().aborted == ("xid:b",)


def test_an_open_branch_of_a_clock_that_is_ahead_holds_no_horizon_for_ever(
    drivers: Drivers,
) -> None:
    keeper = drivers.manager("keeper")
    queue = keeper.create_queue("orders", "n long", dead_letter=False)
    started(drivers.manager("ahead", YEARS))
    work(queue, 0)
    drivers.advance(DAY)
    keeper.recover()
    done = []
    for day in range(3):
        work(queue, day)
        drivers.advance(DAY)
        done.append(
            keeper.maintain(transaction_seconds_max=3_600, payload_retention_days=0).horizon
        )
    assert done[-1] > done[0] >= 0


@pytest.mark.parametrize("apart_seconds", [YEARS, -YEARS])
def test_delays_and_times_to_live_are_instants_of_the_senders_clock(
    drivers: Drivers, apart_seconds: float
) -> None:
    """They cannot be told from instants that were asked for; an operator moves what waits."""
    queue = drivers.manager("a").create_queue("orders", "n long", dead_letter=False)
    drivers.manager("a").create_queue("others", "n long", dead_letter=False)
    wrong = drivers.manager("wrong", apart_seconds).queue("orders")
    wrong.send([{"n": 1}], delay_seconds=60)
    wrong.send([{"n": 2}], ttl_seconds=60)
    queue.send([{"n": 3}])
    drivers.advance(61)
    got = {m["n"] for _ in range(3) for m in queue.receive(3).messages()}
    assert got == ({2, 3} if apart_seconds > 0 else {1, 3})
    if apart_seconds > 0:
        assert queue.move("others") == 1


def test_a_slow_clock_that_names_the_day_costs_no_payload_its_retention(drivers: Drivers) -> None:
    keeper, slow = drivers.manager("keeper"), drivers.manager("slow", -9 * DAY)
    queue = keeper.create_queue("orders", "n long", dead_letter=False)
    kept: dict[str, Any] = {"transaction_seconds_max": 0, "payload_retention_days": 7}
    work(queue, 0)
    keeper.maintain(**kept)
    work(slow.queue("orders"), 1)
    work(queue, 2)
    slow.maintain(**kept)
    drivers.advance(DAY)
    work(queue, 3)
    assert keeper.maintain(**kept).slices == 0
    drivers.advance(30 * DAY)
    work(queue, 4)
    keeper.maintain(**kept)
    drivers.advance(30 * DAY)
    work(queue, 5)
    assert keeper.maintain(**kept).slices > 0, "vacuous: nothing is ever dropped"


@on_delta_when_long
def test_a_rollback_ends_another_attempt_than_the_one_that_was_prepared(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1, "key": "a"}, {"n": 2, "key": "a"}])
    first = world.manager("first").transaction("job/1")
    first.queue(queue.name).receive(1)
    first.prepare()
    first.rollback("not yet")
    second = world.manager("second").transaction("job/1")
    second.queue(queue.name).receive(2)
    world.manager("operator").rollback("job/1", "it hangs")
    assert world.open(queue, "other").depth() == 2
    with pytest.raises(TransactionAborted):
        second.commit()


@on_delta_when_long
def test_an_operator_ends_an_undecided_transaction_on_record(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1, "key": "a"}, {"n": 2, "key": "a"}])
    stuck = world.manager("stuck").transaction("stuck/1", lease_seconds=7 * DAY)
    stuck.queue(queue.name).receive(2)
    operator = world.manager("operator")
    with pytest.raises(TransactionNotFound):
        operator.rollback("never", "it hangs")
    operator.rollback("stuck/1", "it hangs")
    assert operator.outcome("stuck/1").status.value == "rolled_back"
    assert operator.outcome("stuck/1").reason == "it hangs"
    assert world.open(queue, "other").depth() == 2
    with pytest.raises(TransactionAborted):
        stuck.commit()


@on_delta_when_long
def test_an_operator_ends_the_leases_of_a_consumer_on_record(world: World) -> None:
    queue = world.queue(lanes=2)
    queue.send([{"n": n, "key": "a"} for n in range(6)])
    gone = world.open(queue, "gone").receive(4, lease_seconds=7 * DAY)
    kept = world.open(queue, "kept").receive(1, lease_seconds=7 * DAY)
    operator = world.manager("operator")
    consumer = client_of(gone).consumer.id
    with pytest.raises(InvalidInput, match=consumer):
        operator.release(queue.name, consumer="nobody", reason="gone for good")
    assert operator.release(queue.name, consumer=consumer, reason="gone for good") == 4
    assert world.open(queue, "other").depth() == 5
    with pytest.raises(LeaseLost):
        gone.accept()
    kept.accept()
