"""Messages held under a lease, outside of transactions."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    pick,
    rows,
)
from tests.inside import beside, claims_of, client_of, lease_over
from txnqueue.batch import half_of_lease_over
from txnqueue.core import model
from txnqueue.core.state import compaction
from txnqueue.errors import AlreadySettled, InvalidInput, LeaseLost, SettlementPending


@on_delta_when_long
def test_what_is_accepted_is_gone_and_settled_once(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    batch = orders.receive()
    assert batch.accept() == 2
    assert (orders.depth(), orders.in_flight()) == (0, 0)
    for settle in (batch.accept, batch.release, batch.reject):
        with pytest.raises(AlreadySettled):
            settle()


@on_delta_when_long
def test_what_is_released_stands_where_it_stood_and_was_not_delivered(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2, 3))
    first = orders.receive(1)
    second = orders.receive(1)
    assert first.release() == 1
    again = orders.receive(2)
    assert numbers(again) == [1, 3]
    assert {m["_message"]["delivery_count"] for m in again.messages()} == {0}
    assert numbers(second) == [2]


@on_delta_when_long
def test_what_is_held_too_long_is_counted_for_whoever_starts_a_consumer(world: World) -> None:
    orders = world.queue(redelivery_delay_seconds=60)
    orders.send(rows(*range(10)))
    killed, other = world.open(orders, "killed"), world.manager("other")
    killed.receive(1)
    undecided, prepared = other.transaction(), other.transaction()
    undecided.__enter__()
    undecided.queue(orders.name).receive(2)
    prepared.__enter__()
    prepared.queue(orders.name).receive(4)
    prepared.prepare()

    def counts() -> tuple[int, int, int]:
        return orders.depth(), orders.depth(lapsed=True), orders.in_flight()

    assert counts() == (3, 3, 7)
    world.clock.advance(301)
    assert counts() == (3, 3, 7)  # its redelivery is delayed
    world.clock.advance(60)
    assert counts() == (3, 6, 7)
    assert sum(len(orders.receive(10)) for _ in range(4)) == 6
    assert counts() == (0, 0, 10)


@on_delta_when_long
def test_a_batch_is_settled_in_parts(world: World) -> None:
    orders = world.queue()
    orders.send(rows(*range(6)))
    batch = orders.receive()
    assert batch.accept(matching=pick(batch, 0, 1)) == 2
    ids = [m["_message"]["id"] for m in pick(batch, 4)]
    assert batch.release(matching=ids) == 1
    with pytest.raises(AlreadySettled):
        batch.accept(matching=pick(batch, 1, 2))
    assert batch.accept() == 3
    assert numbers(orders.peek_messages()) == [4]


@on_delta_when_long
def test_held_messages_are_nobody_elses_until_the_lease_is_over(world: World) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1, 2, 3))
    mine, theirs = orders.receive(2), world.open(orders, "b")
    assert numbers(theirs.receive()) == [3]
    world.clock.advance(61)
    taken = theirs.receive()
    assert numbers(taken) == [1, 2]
    assert taken.messages()[0]["_message"]["redelivered"] is True
    with pytest.raises(LeaseLost):
        mine.accept()
    assert taken.accept() == 2


@on_delta_when_long
def test_a_lost_lease_settles_nothing(world: World) -> None:
    """A fenced client changes nothing and is told."""
    orders = world.queue(dead_letter=True)
    orders.send(rows(1))
    mine = orders.receive()
    world.lease_over()
    taken = world.open(orders, "b").receive()
    for settle in (mine.accept, mine.release, mine.reject, lambda: mine.extend_lease(60)):
        with pytest.raises(LeaseLost):
            settle()
    assert orders.in_flight() == len(taken) == 1
    assert world.manager().queue(f"{orders.name}.dead").depth() == 0


@in_memory
def test_a_lease_that_is_over_and_not_taken_is_still_good(world: World) -> None:
    """Clocks only decide when somebody else may try."""
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive()
    world.lease_over()
    assert batch.accept() == 1
    assert len(world.open(orders, "b").receive()) == 0


@on_delta_when_long
def test_an_extended_lease_holds_longer(world: World) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    batch, theirs = orders.receive(), world.open(orders, "b")
    world.clock.advance(50)
    batch.extend_lease(100)
    world.clock.advance(50)
    assert len(theirs.receive()) == 0
    world.clock.advance(51)
    assert numbers(theirs.receive()) == [1]


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_extending_a_lease_never_shortens_it(world: World, durable: bool) -> None:
    orders = world.queue()
    orders.send(rows(1), durable=durable)
    batch, theirs = orders.receive(lease_seconds=3_600), world.open(orders, "b")
    until = batch.held_until
    batch.extend_lease(60)
    assert batch.held_until == until
    with batch.heartbeat(10, every_seconds=0.001) as beating:
        while not beating.beats:
            time.sleep(0.001)
    assert batch.held_until == until
    world.clock.advance(3_599)
    assert not lease_over(batch) and not len(theirs.receive())
    world.clock.advance(2)
    assert lease_over(batch) and numbers(theirs.receive()) == [1]


@in_memory
@pytest.mark.parametrize(("first", "second"), [(3_600, 60), (60, 3_600)])
def test_extensions_by_two_threads_are_told_as_they_landed(
    world: World, first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one lands, and is recorded, before the first one has its answer."""
    orders = world.queue(lease_seconds=10)
    orders.send(rows(1))
    batch, append = orders.receive(), world.store.journal.append

    def late(*asked: Any) -> Any:
        monkeypatch.setattr(world.store.journal, "append", append)
        answer = append(*asked)
        batch.extend_lease(second)
        return answer

    monkeypatch.setattr(world.store.journal, "append", late)
    batch.extend_lease(first)
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 3_600_000
    world.clock.advance(3_599)
    assert not lease_over(batch) and not len(world.open(orders, "b").receive())
    assert batch.accept() == 1


@in_memory
def test_a_lease_longer_than_its_extensions_needs_none_before_it_is_half_over(world: World) -> None:
    """It is one of before the queue's was shortened; an extension at each look would be in vain."""
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive(lease_seconds=3_600)
    for seconds, over in ((0, False), (1_799, False), (1, True)):
        world.clock.advance(seconds)
        assert half_of_lease_over(batch, 60, world.clock.now_ms, ()) is over
    batch.extend_lease(60)
    assert not half_of_lease_over(batch, 60, world.clock.now_ms, ())


@in_memory
def test_the_end_of_a_lease_is_that_of_messages_that_are_left(world: World) -> None:
    orders = world.queue(lanes=2, lease_seconds=10)
    orders.send(rows(1, 2))
    batch = orders.receive()
    batch.accept(matching=batch.messages()[:1])
    batch.extend_lease(100)
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 100_000


@in_memory
def test_a_lease_is_not_prolonged_by_the_years_of_a_clock_that_was_ahead(world: World) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    years = 30 * 365 * 86_400
    world.clock.advance(years)
    batch = orders.receive()
    world.clock.advance(-years)
    batch.extend_lease(100)
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 100_000
    world.clock.advance(101)
    assert numbers(world.open(orders, "b").receive()) == [1]


@in_memory
def test_extending_a_lease_is_about_what_is_still_held(world: World) -> None:
    orders = world.queue(lanes=2)
    orders.send(rows(1, 2))
    batch = orders.receive()
    batch.accept(matching=batch.messages()[:1])
    batch.extend_lease(1_000)
    world.lease_over()
    assert len(world.open(orders, "b").receive()) == 0


@in_memory
def test_extending_a_lease_holds_what_no_prepared_transaction_settles(world: World) -> None:
    """That transaction holds its part by itself: no lease is over for want of the other's."""
    orders = world.queue(lanes=2)
    orders.send(rows(1, 2))
    batch, tx = orders.receive(), beside(orders)
    batch.accept(matching=batch.messages()[:1], transaction=tx)
    tx.prepare()
    with pytest.raises(SettlementPending):
        batch.extend_lease(1_000)
    world.lease_over()
    assert len(world.open(orders, "b").receive()) == 0
    tx.commit()
    assert batch.accept() == 1


@in_memory
def test_a_lease_of_nothing_is_not_extended(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive()
    batch.accept()
    before = world.store.journal.version()
    with contextlib.suppress(AlreadySettled, LeaseLost):
        batch.extend_lease(60)
    assert world.store.journal.version() == before


def test_a_new_instance_of_a_consumer_takes_over_at_once_and_fences_the_old_one(
    world: World,
) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    zombie = orders.receive(1)
    restarted = world.open(orders, "a")
    taken = restarted.receive(1)
    assert numbers(taken) == [1]
    with pytest.raises(LeaseLost):
        zombie.accept()
    with pytest.raises(LeaseLost):
        orders.receive()
    assert taken.accept() == 1


@in_memory
def test_messages_that_were_taken_over_come_again_in_order(world: World) -> None:
    orders = world.queue()
    orders.send(rows(*range(30)))
    orders.receive(20)
    world.lease_over()
    theirs = world.open(orders, "b")
    assert numbers(theirs.receive(5)) == [*range(5)]
    assert numbers(theirs.receive(30)) == [*range(5, 20)]
    assert numbers(theirs.receive(30)) == [*range(20, 30)]


@in_memory
def test_settling_reads_a_queue_once_however_many_lanes_it_has(world: World) -> None:
    manager, other = world.manager(), world.queue("other")
    orders = manager.create_queue(world.name("many"), SCHEMA, lanes=16, group_by="key")
    orders.send([{"n": n, "key": str(n)} for n in range(200)])
    batch, calls = orders.receive(200), list[Any]()
    assert len(claims_of(batch)) == 16

    def settled(settle: Any) -> Any:
        calls.clear()
        settle()
        return calls.count("read")

    def accept_inside() -> None:
        with manager.transaction() as tx:
            batch.accept(matching=pick(batch, *range(50, 100)), transaction=tx)

    world.store.journal.step = calls.append
    assert settled(lambda: batch.extend_lease(100)) == 1
    assert settled(lambda: batch.accept(matching=pick(batch, *range(50)))) == 1
    assert settled(lambda: batch.move(other, matching=pick(batch, *range(100, 150)))) == 1
    assert settled(accept_inside) == 1


@in_memory
def test_a_lease_that_a_decided_transaction_had_bound_is_released(world: World) -> None:
    queue, operator = world.queue(), world.manager("op")
    queue.send(rows(1, 2, 3))
    batch = queue.receive(3)
    consumer, tx = client_of(queue).consumer.id, beside(queue)
    batch.accept(matching=pick(batch, 1), transaction=tx)
    tx.prepare()
    with pytest.raises(InvalidInput, match="holds no lease"):  # it is not decided yet
        operator.release(queue.name, consumer=consumer, reason="gone")
    tx.commit()
    released = operator.release(queue.name, consumer=consumer, reason="gone")
    assert released == 2
    assert numbers(operator.queue(queue.name).receive(9)) == [2, 3]
    assert operator.history.verify().ok


@in_memory
def test_leases_that_one_transaction_settled_in_part_end_each_for_itself(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2, 3, 4))
    first, second = (queue.receive(2) for _ in range(2))
    with beside(queue) as tx:
        first.accept(matching=pick(first, 1), transaction=tx)
        second.accept(matching=pick(second, 3), transaction=tx)
    second.extend_lease(3_600)
    world.lease_over()
    other = world.open(queue, "b")
    assert numbers(other.receive(9)) == [2]
    assert numbers(other.receive(9)) == [] and second.accept() == 1
    assert world.manager("op").history.verify().ok


def check_fenced(queue: Any, taken: Any) -> None:
    """Check that a client can neither settle what it took, nor receive more."""
    with pytest.raises(LeaseLost):
        taken.accept()
    with pytest.raises(LeaseLost, match="its own id"):
        queue.receive(1)


@in_memory
def test_of_two_that_open_an_id_while_it_holds_nothing_one_is_fenced(world: World) -> None:
    queue = world.queue(ordered=True)

    def opened(number: int) -> Any:
        world.clock.advance(1)
        client = world.open(queue, "pay")
        queue.send(rows(number))
        client.receive(1).accept()
        return client

    early, late = opened(1), opened(2)
    queue.send(rows(3, 4))
    taken = early.receive(1)
    assert numbers(late.receive(1)) == [3]
    check_fenced(early, taken)


@in_memory
def test_the_later_opening_of_an_id_is_the_later_one_on_every_queue(world: World) -> None:
    first, second = world.queue("first"), world.queue("second")
    first.receive(1)
    world.clock.advance(1)
    late = world.manager()
    for queue in (first, second):
        assert len(late.queue(queue.name).receive(1)) == 0
    world.clock.advance(1)
    second.send(rows(1, 2))
    taken = second.receive(1)  # the first look of the earlier one
    assert numbers(late.queue(second.name).receive(1)) == [1]
    check_fenced(second, taken)


@in_memory
@pytest.mark.parametrize("inside", [False, True], ids=["lease", "transaction"])
def test_an_opening_that_comes_late_to_a_queue_takes_nothing_from_a_later_one(
    world: World, inside: bool
) -> None:
    queue = world.queue()
    old = world.manager("nightly")
    world.clock.advance(3_600)
    new = world.manager("nightly")
    queue.send(rows(1, 2, 3))
    tx = new.transaction() if inside else None
    held = new.queue(queue.name).receive(3, transaction=tx)
    world.clock.advance(1)
    for _ in range(2):
        check_refused(old, queue.name)
    if tx is None:
        assert held.accept() == 3
    else:
        tx.commit()
    assert queue.depth() == 0


def check_refused(manager: Any, name: str) -> None:
    """Check that an earlier opening gets nothing, under a lease or in a transaction."""
    with pytest.raises(LeaseLost, match="its own id"):
        manager.queue(name).receive(3)
    with pytest.raises(LeaseLost, match="its own id"), manager.transaction() as tx:
        tx.queue(name).receive(3)


@in_memory
@pytest.mark.parametrize("older", [False, True])
def test_which_opening_is_the_later_one_is_known_behind_a_compaction(
    world: World, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """Of one that an older version wrote it is not, as if that had claimed."""
    queue = world.queue(lanes=1)
    old = world.manager("nightly")
    world.clock.advance(1)
    held = world.open(queue, "nightly")
    queue.send(rows(1))
    batch = held.receive(1)
    client_of(queue).log_max = 1
    with monkeypatch.context() as patched:
        if older:
            patched.setattr(compaction, "_opening", lambda claim: {})
        for n in (2, 3):
            queue.send(rows(n))
            assert queue.receive(1).accept() == 1
    entries = client_of(queue).store.journal.read_all().entries
    said = [e.body["in_flight"] for e in entries if e.kind == model.COMPACTED]
    assert [["opened" in claim for claim in claims] for claims in said] == [[not older]]
    assert world.manager("auditor").history.verify().ok
    if older:
        assert numbers(old.queue(queue.name).receive(1)) == [1]
        return
    check_refused(old, queue.name)
    assert batch.accept() == 1


@in_memory
def test_an_earlier_opening_takes_over_what_a_later_one_has_left(world: World) -> None:
    """Its clock may have been behind: it must not wait for ever."""
    queue = world.queue()
    old = world.manager("nightly")
    world.clock.advance(1)
    queue.send(rows(1))
    world.open(queue, "nightly").receive(1)
    check_refused(old, queue.name)
    world.lease_over()
    assert numbers(old.queue(queue.name).receive(1)) == [1]


@in_memory
def test_keeping_shortens_no_lease(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    with beside(queue) as tx:
        batch = queue.receive(10, lease_seconds=3600, transaction=tx)
        until = batch.held_until
        batch.keep()
    assert until is not None and batch.held_until == until
    world.clock.advance(1800)
    assert world.manager("b").queue(queue.name).receive(1).messages() == []


@in_memory
def test_a_heartbeat_of_what_a_transaction_has_is_not_lost(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    batch = queue.receive(1)
    with batch.heartbeat(1, every_seconds=0.001) as beating:
        tx = beside(queue)
        batch.accept(transaction=tx)
        tx.prepare()
        world.clock.advance(60)
        before = beating.beats
        until = time.monotonic() + 20
        while beating.beats < before + 3 and time.monotonic() < until:
            time.sleep(0.001)
        assert beating.beats >= before + 3
        assert not beating.lost
    tx.commit()
    with beside(queue) as tx:
        held = queue.receive(1, transaction=tx)
        with held.heartbeat(1, every_seconds=0.001) as beating:
            tx.rollback()
            beating._thread.join(1)
        assert not beating.lost
