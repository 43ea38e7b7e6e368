"""What failed comes back: in which size, and after how long."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.conformance.test_placing import state_of
from tests.conformance.working import Branch
from tests.inside import client_of
from txnqueue.core import model
from txnqueue.core.state import compaction
from txnqueue.errors import InvalidInput, LeaseLost, LimitExceeded
from txnqueue.protocols.dtx import XaStatus

DAY = 24 * 3600


def compact_first_lane(keeper: Any, queue: Any) -> Any:
    """Plan the compaction of a queue's first lane; the lock is held."""
    return compaction.compact(keeper.states.fold(queue.info), 0, keeper.stamp())


def fail(queue: Any, limit: int = 100) -> list[int]:
    """Receive, and say that the delivery failed."""
    batch = queue.receive(limit)
    found = numbers(batch)
    if found:
        batch.modify()
    return found


# ------------------------------------------------------------------------------- the size


@on_delta_when_long
def test_a_killed_drivers_batch_comes_back_as_one_batch_from_all_its_lanes(world: World) -> None:
    orders = world.queue(lanes=4, group_by="key")
    for key in "abcdefgh":
        orders.send(rows(*range(5), key=key))
    tx = world.manager("killed").transaction()
    assert len(tx.queue(orders.name).receive(100)) == 40
    world.lease_over()
    again = world.open(orders, "next").receive(100)
    assert len(again) == 40
    assert {m["_message"]["delivery_count"] for m in again.messages()} == {1}
    assert again.accept() == 40


@in_memory
def test_what_failed_once_takes_no_fresh_message_of_another_lane_with_it(world: World) -> None:
    orders = world.queue(lanes=4, group_by="key")
    for key in "abcd":
        orders.send(rows(*range(5), key=key))
    assert len(fail(orders)) == 20
    for key in "efgh":
        orders.send(rows(*range(5, 10), key=key))
    sizes = []
    while len(batch := orders.receive(100)):
        counts = {m["_message"]["delivery_count"] for m in batch.messages()}
        assert len(counts) == 1
        sizes.append((counts.pop(), len(batch)))
    # Which lane is the first in turn decides whether fresh messages come before, after, or both.
    assert [size for count, size in sizes if count] == [20]
    assert sum(size for count, size in sizes if not count) == 20


@in_memory
def test_what_failed_twice_is_tried_lane_by_lane(world: World) -> None:
    orders = world.queue(lanes=2, group_by="key")
    for key in "abcdefgh":
        orders.send(rows(*range(20), key=key))
    fail(orders, 1_000)
    assert len(fail(orders, 1_000)) == 160
    narrow = orders.receive(1_000)
    assert len({m["_message"]["lane"] for m in narrow.messages()}) == 1
    assert len(narrow) < 20


@in_memory
def test_one_bad_message_ends_alone_and_costs_the_others_few_deliveries(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(*range(1_000)))
    delivered: dict[int, int] = {}

    def handle(batch: Any, tx: Any) -> None:
        found = numbers(batch)
        for n in found:
            delivered[n] = delivered.get(n, 0) + 1
        if 700 in found:
            raise ValueError("700")

    result = orders.drain(handle, until="empty")
    assert (result.messages, result.finished) == (999, True)
    assert numbers(world.manager().queue(f"{orders.name}.dead").peek_messages()) == [700]
    assert delivered[700] == 11, "nothing had succeeded when it failed once more"
    assert max(times for n, times in delivered.items() if n != 700) <= 6


@in_memory
@pytest.mark.parametrize("prepared", [True, False])
def test_what_failed_in_a_branch_comes_back_as_it_was_and_waits(
    world: World, prepared: bool
) -> None:
    orders = world.queue(redelivery_delay_seconds=60)
    orders.send(rows(*range(20)))
    branch = Branch(world, "x")
    assert len(branch.queue(orders).receive()) == 20
    world.clock.advance(100)
    if prepared:
        branch.prepare()
        world.clock.advance(100)
    else:
        branch.channel.end(branch.xid)
    assert branch.channel.rollback(branch.xid) is XaStatus.OK
    world.clock.advance(59)
    assert orders.depth() == 0
    world.clock.advance(1)
    assert len(orders.receive()) == 20


# ------------------------------------------------------------------------------ the delay


@on_delta_when_long
def test_what_failed_waits_twice_as_long_each_time_up_to_a_maximum(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=10, redelivery_delay_seconds_max=35)
    orders.send(rows(1, 2))
    waits = []
    for _ in range(5):
        assert len(fail(orders, 1)) == 1
        assert fail(orders, 1) == [2]  # nobody else waits with it
        waited = 0
        while not orders.depth():
            assert len(orders.receive()) == 0
            world.clock.advance(5)
            waited += 5
        waits.append(waited)
    assert waits == [10, 20, 35, 35, 35]


@in_memory
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize(
    "how", ["rollback", "failed", "released", "lease over", "killed", "restarted", "recover"]
)
def test_every_failed_delivery_waits_and_a_plain_release_does_not(
    world: World, how: str, durable: bool
) -> None:
    orders = world.queue(redelivery_delay_seconds=60, lease_seconds=30, durable=durable)
    orders.send(rows(1, 2, 3))
    manager = world.manager("x")
    tx = manager.transaction() if how in ("rollback", "killed", "recover") else None
    batch = manager.queue(orders.name).receive(transaction=tx)
    assert len(batch) == 3
    other = world.open(orders, "b")
    if how == "rollback":
        tx.rollback()
    elif how == "failed":
        batch.modify(delivery_failed=True)
    elif how == "released":
        batch.release()
    elif how == "restarted":
        other = world.open(orders, "x")
        assert len(other.receive()) == 0  # it waits from here on, and not for the lease
    else:  # nobody says anything: from the end of the lease on it waits
        world.clock.advance(30)
        if how == "recover":
            world.manager("r").recover()
        assert len(other.receive()) == 0
    waiting = 0 if how == "released" else 3
    assert (other.depth(), other.in_flight()) == (3 - waiting, 0)
    row = next(r for r in world.manager().metrics().rows() if r["queue"] == orders.name)
    assert (row["delayed"], row["available"], row["redelivered"]) == (waiting, 3 - waiting, waiting)
    if durable:
        assert state_of(world, orders)["delayed"] == waiting
        assert world.manager().history.verify().ok
    world.clock.advance(59)
    assert other.depth() == 3 - waiting
    world.clock.advance(1)
    again = other.receive()
    assert numbers(again) == [1, 2, 3]
    if how in ("lease over", "killed", "recover", "restarted"):
        with pytest.raises(LeaseLost) if tx is None else pytest.raises(Exception):  # noqa: PT011 - whatever there is
            batch.accept()
            tx.commit()
    assert again.accept() == 3


@in_memory
@pytest.mark.parametrize("inside", [True, False])
def test_a_lease_that_was_over_long_ago_has_waited_already(world: World, inside: bool) -> None:
    """A job that comes once an hour need not wait for what a killed one left behind."""
    orders = world.queue(redelivery_delay_seconds=60, lease_seconds=30)
    orders.send(rows(1, 2, 3))
    manager = world.manager("killed")
    manager.queue(orders.name).receive(transaction=manager.transaction() if inside else None)
    world.clock.advance(3_600)
    assert numbers(world.open(orders, "next").receive()) == [1, 2, 3]


@in_memory
def test_a_receive_wakes_when_the_wait_is_over(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=7, lease_seconds=20)
    orders.send(rows(1))
    started = world.clock.now_ms
    fail(orders)
    held = orders.receive(wait_seconds=30)
    assert numbers(held) == [1]
    assert world.clock.now_ms - started == pytest.approx(7_000, abs=200)
    # Now the lease ends first, and then the wait, which is twice as long.
    started = world.clock.now_ms
    assert numbers(world.open(orders, "b").receive(wait_seconds=60)) == [1]
    assert world.clock.now_ms - started == pytest.approx(34_000, abs=600)


@in_memory
@pytest.mark.parametrize("ordered", [False, True])
def test_others_overtake_what_waits_but_not_in_an_ordered_queue(
    world: World, ordered: bool
) -> None:
    orders = world.queue(redelivery_delay_seconds=60, ordered=ordered)
    orders.send(rows(1, 2, 3))
    assert fail(orders, 1) == [1]
    later = orders.receive()
    assert numbers(later) == ([] if ordered else [2, 3])
    later.release()
    found = orders.drain(lambda batch, tx: None, until="empty")
    assert (found.messages, found.finished) == (0 if ordered else 2, False)
    orders.send(rows(9), priority=9)
    assert numbers(orders.receive(1)) == [9], "it stands before what waits"
    world.clock.advance(60)
    assert numbers(orders.receive(1)) == [1]


@in_memory
def test_a_drain_is_not_finished_while_something_waits_for_its_redelivery(world: World) -> None:
    """A table that is away for a minute does not cost all deliveries of a message."""
    orders, away, seen = world.queue(redelivery_delay_seconds=30, dead_letter=True), [1], []
    orders.send(rows(1, 2, 3))

    def handle(batch: Any, tx: Any) -> None:
        seen.extend(numbers(batch))
        if away:
            raise ConnectionError("the table is away")

    first = orders.drain(handle, run_id=world.name("run"))
    assert (first.finished, first.messages, first.errors, seen) == (False, 0, 1, [1, 2, 3])
    assert orders.drain(handle, run_id=world.name("run")).finished is False
    assert seen == [1, 2, 3], "nothing was delivered meanwhile"
    world.clock.advance(60)
    away.clear()
    last = orders.drain(handle, run_id=world.name("run"))
    assert (last.finished, last.messages) == (True, 3)


@in_memory
def test_what_has_used_up_its_deliveries_does_not_wait_to_be_dead(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=60, dead_letter=True, deliveries_max=2)
    orders.send(rows(1))
    fail(orders)
    world.clock.advance(60)
    assert fail(orders) == [1]
    assert len(orders.receive()) == 0
    assert numbers(world.manager().queue(f"{orders.name}.dead").peek_messages()) == [1]


@in_memory
def test_what_expires_while_it_waits_is_not_delivered_and_holds_nobody_up(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=60, ordered=True)
    orders.send(rows(1), ttl_seconds=20)
    orders.send(rows(2))
    assert fail(orders, 1) == [1]
    world.clock.advance(20)
    assert numbers(orders.receive()) == [2]
    assert state_of(world, orders)["expired"] == 1


@in_memory
def test_a_move_takes_what_waits_and_it_need_not_wait_there(world: World) -> None:
    orders, other = world.queue(redelivery_delay_seconds=60), world.queue("other")
    orders.send(rows(1, 2))
    fail(orders)
    assert orders.move(other.name) == 2
    assert numbers(other.receive()) == [1, 2]


@in_memory
def test_a_move_that_is_rolled_back_ends_the_wait(world: World) -> None:
    """Its claim records no instant of a failure: with this the messages come back at once."""
    orders, other = world.queue(redelivery_delay_seconds=3_600), world.queue("other")
    orders.send(rows(1))
    orders.receive(1).modify(delivery_failed=True)
    assert not orders.receive(1)
    with world.manager().transaction() as tx:
        assert tx.queue(orders.name).move(other.name) == 1
        tx.rollback()
    (message,) = orders.receive(1).messages()
    assert message["_message"]["delivery_count"] == 1


@in_memory
def test_a_clock_that_is_far_ahead_makes_nobody_wait_for_it(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=60)
    orders.send(rows(1))
    world.clock.advance(1_000 * DAY)
    fail(orders)
    world.clock.advance(-1_000 * DAY)
    assert fail(orders) == [1]
    assert orders.depth() == 0, "a clock that is right makes it wait"


@in_memory
def test_the_wait_survives_a_compaction_and_a_fresh_driver(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=100)
    orders.send(rows(1, 2, 3))
    fail(orders)
    world.clock.advance(50)
    keeper = client_of(world.manager("keeper"))
    compacted = partial(compact_first_lane, keeper, orders)
    keeper.land(lambda lost: keeper.informed(compacted), "")
    (entry,) = [e for e in world.store.journal.read_all().entries if e.kind == model.COMPACTED]
    assert len(entry.body["failures"]) == 1
    fresh = world.open(orders, "fresh")
    assert fresh.depth() == orders.depth() == 0
    world.clock.advance(49)
    assert fresh.depth() == 0
    world.clock.advance(1)
    assert numbers(fresh.receive()) == [1, 2, 3]
    assert world.manager().history.verify().ok


@in_memory
def test_a_store_whose_compactions_did_not_say_what_failed_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue(redelivery_delay_seconds=100)
    orders.send(rows(*range(20)))

    def compact(name: str) -> None:
        keeper = client_of(world.manager(name))
        compacted = partial(compact_first_lane, keeper, orders)
        keeper.land(lambda lost: keeper.informed(compacted), "compact")

    fail(orders, 10)
    with monkeypatch.context() as older:
        older.setattr(compaction, "failures", lambda lane: [])
        compact("older")
    fresh = world.open(orders, "fresh")
    assert fail(fresh, 5) == [*range(5)], "it is not known that they wait"
    compact("newer")
    assert world.open(orders, "next").depth() == 15
    assert world.manager().history.verify().ok


@in_memory
def test_a_compaction_holds_that_follows_one_which_did_not_say_by_what_error_messages_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history knows more than who wrote it: what came before the older one failed too."""
    orders, written = world.queue(), compaction.body
    orders.send(rows(*range(4)))

    def fails(name: str, limit: int) -> None:
        tx = world.manager(name).transaction()
        tx.queue(orders.name).receive(limit)
        tx.rollback("the oven is cold")

    def compact(name: str) -> Any:
        keeper = client_of(world.manager(name))
        compacted = partial(compact_first_lane, keeper, orders)
        keeper.land(lambda lost: keeper.informed(compacted), "compact")
        entries = world.store.journal.read_all().entries
        return [e for e in entries if e.kind == model.COMPACTED][-1].body.get("errors")

    def as_0_1_0(*given: Any) -> dict[str, Any]:
        body = written(*given)
        return {k: v for k, v in body.items() if k not in ("failures", "errors")}

    fails("b", 3)
    with monkeypatch.context() as older:
        older.setattr(compaction, "body", as_0_1_0)
        assert compact("older") is None
    fails("c", 1)
    ((*_, errors),) = compact("newer")
    assert errors == [[[[0, 0]], "the oven is cold"]]
    proof = world.manager().history.verify()
    assert proof.ok, str(proof)
    (entry,) = [e for e in world.store.journal.read_all().entries if e.body.get("errors")]
    errors[0][0][:] = [[0, 3]]  # nobody gave the last one back
    assert entry.body["errors"][0][2] is errors
    assert not world.manager().history.verify().ok


# --------------------------------------------------------------------------- the settings


@in_memory
def test_an_altered_delay_holds_for_what_waits_already(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=1_000)
    orders.send(rows(1))
    other = world.open(orders, "b")
    assert fail(orders) == [1]
    assert other.depth() == 0
    assert orders.alter(redelivery_delay_seconds=10) == {"redelivery_delay_seconds": (1_000, 10)}
    world.clock.advance(10)
    assert (other.depth(), numbers(other.receive())) == (1, [1])
    fresh = world.manager("fresh").queue(orders.name).info.settings
    assert fresh.redelivery_delay_seconds == 10


@in_memory
def test_delays_can_be_declared_and_configured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXNQUEUE_QUEUE_REDELIVERY_DELAY_SECONDS", "2.5")
    manager, name = world.manager(), world.name("declared")
    assert world.queue().info.settings.redelivery_delay_seconds == 2.5
    for wanted in (7, 9):
        said = {"schema": "n long", "redelivery_delay_seconds": wanted}
        assert len(manager.declare({"queues": {name: said}})) == 1
        assert manager.declare({"queues": {name: said}}) == []
        assert manager.queue(name).info.settings.redelivery_delay_seconds == wanted


@in_memory
def test_delays_that_cannot_be_are_refused_and_change_nothing(world: World) -> None:
    orders = world.queue()
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (LimitExceeded, {"redelivery_delay_seconds": -1}),
        (LimitExceeded, {"redelivery_delay_seconds_max": 8 * DAY}),
        (InvalidInput, {"redelivery_delay_seconds": "10"}),
        (InvalidInput, {"redelivery_delay_seconds": True}),
        (InvalidInput, {"redelivery_delay_seconds": 7_200}),
    ]
    for error, settings in wrong:
        with pytest.raises(error, match="redelivery_delay_seconds"):
            orders.alter(**settings)
        with pytest.raises(error, match="redelivery_delay_seconds"):
            world.queue("wrong", **settings)
    assert world.manager().queue(orders.name).info.settings == orders.info.settings


@in_memory
def test_a_queue_without_a_delay_is_written_as_it_always_was(world: World) -> None:
    """Libraries that do not know the setting can read the catalog."""
    plain, delayed = world.queue(), world.queue("delayed", redelivery_delay_seconds=5)
    bodies = {e.queue_id: e.body for e in client_of(plain).cache.catalog_entries()}
    unknown = [set(body["settings"]) for body in bodies.values() if "settings" in body]
    assert not any("redelivery_delay_seconds" in names for names in unknown)
    assert "later" not in bodies[plain.info.queue_id]
    assert bodies[delayed.info.queue_id]["later"]["redelivery_delay_seconds"] == 5
