"""Claims that land after their transaction was decided: nobody's, and not for a lease's time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.inside import attempt_of, client_of
from tests.locks import in_another_thread
from txnqueue.errors import TransactionAborted


def drained(queue: Any) -> list[int]:
    """Receive and accept until nothing comes."""
    found = []
    while len(batch := queue.receive(10)):
        found += numbers(batch)
        batch.accept()
    return sorted(found)


@on_delta_when_long
def test_what_an_aborted_transaction_still_receives_is_free_at_once(world: World) -> None:
    orders, other = world.queue(lease_seconds=10), world.queue("other", lease_seconds=1e5)
    orders.send(rows(1, 2))
    other.send(rows(3))
    tx = world.manager("z").transaction()
    tx.queue(orders.name).receive(1)
    world.clock.advance(11)
    mine = world.manager("x")
    assert drained(mine.queue(orders.name)) == [1, 2]  # the transaction is aborted
    orders.send(rows(4))
    for queue in (orders, other):
        assert len(tx.queue(queue.name).receive(1)) == 1
    assert drained(mine.queue(orders.name)) == [4]
    assert drained(mine.queue(other.name)) == [3]
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert mine.queue(orders.name).in_flight() == mine.queue(other.name).in_flight() == 0


@in_memory
def test_what_is_received_by_what_the_horizon_has_passed_is_free_at_once(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("z").transaction()
    attempt_of(tx).begin()
    for _ in range(3):
        orders.send(rows(2))
    assert drained(orders) == [1, 2, 2, 2]
    orders.send(rows(3))
    world.clock.advance(100)
    world.manager("k").maintain(transaction_seconds_max=10, vacuum=False)
    assert len(tx.queue(orders.name).receive(1)) == 1
    assert drained(world.manager("x").queue(orders.name)) == [3]
    with pytest.raises(TransactionAborted):
        tx.commit()


@in_memory
def test_a_waiting_receive_takes_what_is_nobodys(world: World) -> None:
    orders = world.queue(lease_seconds=10)
    orders.send(rows(1))
    late, mine = world.manager("z"), world.manager("x")
    tx = late.transaction()
    tx.queue(orders.name).receive(1)
    world.clock.advance(11)
    assert drained(mine.queue(orders.name)) == [1]
    orders.send(rows(2))
    runtime, sleep = client_of(mine).runtime, client_of(mine).runtime.sleep
    held = mine.queue(orders.name).receive(1)

    def meanwhile(seconds: float) -> None:
        runtime.sleep = sleep
        held.release()
        tx.queue(orders.name).receive(1, lease_seconds=1e5)
        sleep(seconds)

    runtime.sleep = meanwhile
    began = world.clock.now_ms
    assert numbers(mine.queue(orders.name).receive(1, wait_seconds=1_000)) == [2]
    assert world.clock.now_ms - began < 10_000


@in_memory
def test_what_a_rolled_back_transaction_had_only_settled_stays_with_who_holds_it(
    world: World,
) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    holder, other = world.manager("h"), world.manager("x")
    batch = holder.queue(orders.name).receive(1)
    tx = holder.transaction()
    batch.accept(transaction=tx)
    tx.prepare()
    other.rollback(tx.id)
    working = world.manager("w").transaction()  # makes others look closely
    assert numbers(working.queue(orders.name).receive(1)) == [2]
    for _ in range(2):
        assert len(other.queue(orders.name).receive(1)) == 0
    batch.accept()
    working.commit()
    assert drained(other.queue(orders.name)) == []


@in_memory
def test_what_is_undecided_or_prepared_is_looked_at_and_left(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    working, prepared = world.manager("w").transaction(), world.manager("p").transaction()
    for tx in (working, prepared):
        assert len(tx.queue(orders.name).receive(1)) == 1
    prepared.prepare()
    calls: list[str] = []
    mine = world.manager("x").queue(orders.name)
    assert len(mine.receive(1)) == 0
    world.store.journal.step = calls.append
    assert len(mine.receive(1)) == 0
    assert calls.count("read") == 2, "the queue, and once who holds all of it"
    assert "append" not in calls
    working.commit()
    world.lease_over()
    calls.clear()
    assert len(mine.receive(1)) == 0
    assert calls.count("read") == 2, "what is prepared is asked for once, too"
    prepared.commit()


@in_memory
def test_a_decision_that_lands_between_the_two_readings_is_not_taken_for_void(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("w").transaction()
    assert len(tx.queue(orders.name).receive(1)) == 1
    other = world.manager("x")
    mine = other.queue(orders.name)
    key_states = client_of(other).states.key_states

    def after_a_commit(keys: Any, **more: Any) -> Any:
        client_of(other).states.key_states = key_states
        in_another_thread(tx.commit)
        return key_states(keys, **more)

    assert len(mine.receive(1)) == 0  # warm
    watched: Any = client_of(other)
    watched.states.key_states = after_a_commit
    assert len(mine.receive(1)) == 0
    assert (mine.depth(), mine.in_flight()) == (0, 0)
    assert other.history.verify().ok


def held_by_nobody(world: World, name: str) -> None:
    """Let a transaction receive one more message after it was aborted."""
    tx = world.manager("z").transaction()
    tx.queue(name).receive(1)
    world.clock.advance(11)
    taker = world.manager("t").queue(name)
    while batch := taker.receive(10):
        batch.accept()
    taker.send(rows(0))
    assert numbers(tx.queue(name).receive(1, lease_seconds=1e5)) == [0]


@in_memory
@pytest.mark.parametrize("lanes", [1, 4])
def test_in_a_queue_that_is_never_empty_a_void_claim_ends_soon(world: World, lanes: int) -> None:
    orders = world.queue(lease_seconds=10, lanes=lanes)
    orders.send(rows(100))
    held_by_nobody(world, orders.name)
    manager = world.manager("x")
    mine, found, began = manager.queue(orders.name), [], world.clock.now_ms
    while 0 not in found:
        orders.send(rows(*range(1, 9)))
        batch = mine.receive(4)
        assert len(batch), "it is never empty"
        found += numbers(batch)
        batch.accept()
        world.clock.advance(1)
        assert world.clock.now_ms - began < 60_000, "as soon as the holders are asked for"
    assert manager.history.verify().ok


@in_memory
def test_who_works_on_a_busy_queue_is_asked_for_seldom(world: World) -> None:
    orders = world.queue(lease_seconds=1e5)
    orders.send(rows(*range(300)))
    working = world.manager("w").transaction()
    assert len(working.queue(orders.name).receive(1)) == 1
    client = world.manager("x")
    mine, asked = client.queue(orders.name), []
    key_states = client_of(client).states.key_states

    def counted(keys: Any, **more: Any) -> Any:
        asked.extend(found := list(keys))
        return key_states(found, **more)

    watched: Any = client_of(client)
    watched.states.key_states = counted
    for _ in range(120):  # two minutes
        assert len(mine.receive(1)) == 1
        world.clock.advance(1)
    assert asked == [working.id] * 3
