"""Rejection, redelivery and dead letters."""

from __future__ import annotations

from contextlib import suppress
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
from txnqueue.errors import AlreadySettled, PlatformMissing


def dead_of(world: World, queue: Any) -> Any:
    return world.manager("reader").queue(f"{queue.name}.dead")


def test_rejected_messages_stand_in_the_dead_letter_queue_each_with_its_reason(
    world: World,
) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2, 3))
    batch = orders.receive()
    bad = [{**row, "why": f"reason {row['n']}"} for row in pick(batch, 1, 3)]
    assert batch.reject(matching=bad, reason_column="why") == 2
    assert batch.accept() == 1
    found = {m["n"]: m["_message"]["origin"] for m in dead_of(world, orders).peek_messages()}
    assert {n: origin["reason"] for n, origin in found.items()} == {1: "reason 1", 3: "reason 3"}
    assert {origin["queue"] for origin in found.values()} == {orders.name}


@on_delta_when_long
def test_rejected_inside_messages_are_dead_at_the_commit(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2))
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        assert batch.reject(matching=pick(batch, 2), reason="bad") == 1
        assert dead_of(world, orders).depth() == 0
    dead = dead_of(world, orders).receive()
    assert (numbers(dead), orders.depth(), orders.in_flight()) == ([2], 0, 0)
    assert dead.accept() == 1


@in_memory
def test_dead_letters_lie_in_lane_0_whatever_lanes_their_queue_has(world: World) -> None:
    name, manager = world.name("orders"), world.manager()
    manager.create_queue(f"{name}.dead", SCHEMA, lanes=4, group_by="key", dead_letter=False)
    orders = manager.create_queue(name, SCHEMA, lanes=4, group_by="key")
    for key in "abcdef":
        orders.send(rows(1, key=key))
    orders.receive(6).reject(reason="bad")
    dead = dead_of(world, orders)
    assert [(row["key"], row["_message"]["lane"]) for row in dead.peek_messages()] == [
        (key, 0) for key in "abcdef"
    ]
    dead.send(rows(2, key="a"))
    assert {row["_message"]["lane"] for row in dead.peek_messages() if row["n"] == 2} == {3}
    assert dead.redrive() == 6


@in_memory
def test_a_dead_letter_stays_whatever_time_to_live_it_was_sent_with(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1), ttl_seconds=10)
    orders.receive().reject(reason="bad")
    world.clock.advance(366 * 86_400)
    for _ in range(3):
        world.manager().maintain(payload_retention_days=0, history_retention_days=0)
        world.clock.advance(86_400)
    dead = dead_of(world, orders)
    assert numbers(dead.receive()) == [1]


@in_memory
def test_rejected_without_a_dead_letter_queue_messages_are_dropped(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    assert orders.receive().reject(reason="bad") == 1
    assert (orders.depth(), orders.in_flight()) == (0, 0)


@in_memory
def test_the_general_reason_is_for_rows_that_have_none(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2, 3))
    batch = orders.receive()
    reasons = {1: None, 2: "bad", 3: "worse"}
    wrong = [{**row, "why": reasons[row["n"]]} for row in batch.messages()]
    assert batch.reject(matching=wrong, reason="bad", reason_column="why") == 3
    found = dead_of(world, orders).peek_messages()
    expected = {1: "bad", 2: "bad", 3: "worse"}
    assert {m["n"]: m["_message"]["origin"]["reason"] for m in found} == expected


@in_memory
def test_a_message_that_is_named_twice_is_rejected_once(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1))
    batch = orders.receive()
    (row,) = batch.messages()
    with suppress(AlreadySettled, ValueError):  # refused is as good
        batch.reject(matching=[{**row, "why": "a"}, {**row, "why": "b"}], reason_column="why")
    assert dead_of(world, orders).depth() <= 1


@on_delta_when_long
def test_a_message_that_fails_alone_too_often_is_a_dead_letter(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(1, 2))
    manager = world.manager("b")
    counts = []
    for _ in range(2):
        tx = manager.transaction()
        (message,) = tx.queue(orders.name).receive(1).messages()
        counts.append((message["n"], message["_message"]["delivery_count"]))
        tx.rollback()
    assert counts == [(1, 0), (1, 1)]
    assert numbers(orders.receive()) == [2]  # the dead letter is moved by the same append
    (dead,) = dead_of(world, orders).peek_messages()
    origin = {
        "queue": orders.name,
        "reason": "deliveries_max",
        "delivery_count": 2,
        "error": "rolled back",
    }
    assert (dead["n"], dead["_message"]["origin"]) == (1, origin)


@in_memory
def test_dead_letters_of_one_append_keep_their_order_whatever_their_errors(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(*range(4)))
    manager = world.manager("b")
    failing = [manager.transaction() for _ in range(4)]
    for tx in failing:
        assert len(tx.queue(orders.name).receive(1)) == 1
    for number, tx in enumerate(failing):
        tx.rollback("odd" if number % 2 else "even")
    assert numbers(orders.receive()) == []
    dead = dead_of(world, orders).peek_messages()
    errors = [(row["n"], row["_message"]["origin"]["error"]) for row in dead]
    assert errors == [(0, "even"), (1, "odd"), (2, "even"), (3, "odd")]


@in_memory
def test_redelivery_narrows_so_that_what_fails_ends_up_alone(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(*range(100)))
    manager, sizes = world.manager("b"), []
    for _ in range(4):
        tx = manager.transaction()
        sizes.append(len(tx.queue(orders.name).receive()))
        tx.rollback()
    assert sizes == [100, 100, 10, 1]
    assert dead_of(world, orders).depth() == 0  # often enough, but not alone often enough


@in_memory
@pytest.mark.parametrize("deliveries_max", [1, 2])
def test_no_message_is_dead_that_always_came_with_those_of_other_lanes(
    world: World, deliveries_max: int
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=deliveries_max, lanes=64, group_by="key")
    for n, key in enumerate("abcdefgh"):
        orders.send(rows(n, key=key))
    assert len({row["_message"]["lane"] for row in orders.peek_messages()}) > 4
    manager, accepted = world.manager("b"), list[int]()
    while True:
        tx = manager.transaction()
        found = numbers(tx.queue(orders.name).receive())
        if not found:
            break
        if 0 in found:
            tx.rollback("a bad message")
        else:
            tx.commit()
            accepted += found
    assert numbers(dead_of(world, orders).peek_messages()) == [0]
    assert sorted(accepted) == [1, 2, 3, 4, 5, 6, 7]


@in_memory
def test_a_limit_that_was_lowered_holds_only_for_what_failed_alone(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=9, lanes=64, group_by="key")
    for n, key in enumerate("abcdefgh"):
        orders.send(rows(n, key=key))
    orders.receive().modify()
    orders.alter(deliveries_max=1)
    assert len(world.open(orders, "b").receive()) == 8
    assert dead_of(world, orders).depth() == 0


@in_memory
@pytest.mark.parametrize("receives", [0, 1])
def test_no_message_is_dead_that_came_with_those_in_memory(world: World, receives: int) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    for _ in range(receives):  # each begins with the other kind
        orders.receive()
    orders.send(rows(1))
    orders.send(rows(2, 3), durable=False)
    batch = orders.receive()
    batch.modify()
    for _ in range(2):
        orders.receive()
    dead = numbers(dead_of(world, orders).peek_messages())
    assert dead == ([1] if numbers(batch) == [1] else [])


@in_memory
def test_killed_drivers_send_nobody_to_the_dead_letter_queue(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(*range(40)))
    for _ in range(6):
        world.manager("b").transaction().queue(orders.name).receive()
        world.lease_over()
    result = world.open(orders, "c").drain(lambda batch, tx: None, until="empty")
    assert (result.messages, orders.depth(), dead_of(world, orders).depth()) == (40, 0, 0)


@in_memory
def test_a_delivery_that_nobody_ended_does_not_count(world: World) -> None:
    """A prefetch that is given back, and a release, leave the count as it was."""
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(1))
    for _ in range(3):
        orders.receive().release()
    assert orders.receive().messages()[0]["_message"]["delivery_count"] == 0


@on_delta_when_long
def test_dead_letters_are_counted_by_origin_and_reason(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(*range(6)))
    orders.receive(3).reject(reason="bad")
    world.clock.advance(10)
    orders.receive(2).reject(reason="worse")
    orders.receive(1).reject(reason="bad")
    dead = world.manager().queue(f"{orders.name}.dead")
    dead.send(rows(50))  # sent here: it came from nowhere
    dead.receive(2)
    found = orders.dead_letters()
    assert [(r["reason"], r["waiting"], r["in_flight"]) for r in found.rows()] == [
        ("bad", 2, 2),
        ("worse", 2, 0),
    ]
    assert {r["queue"] for r in found.rows()} == {orders.name}
    ages = [(r["newest_at"] - r["oldest_at"]).total_seconds() for r in found.rows()]
    assert (ages, len(found)) == ([10, 0], 6)
    assert dead.dead_letters().rows() == found.rows()
    assert len(world.queue("plain").dead_letters()) == 0
    if world.has_frames:
        shown = found.df().where("reason = 'worse'").collect()
        assert [(r["queue"], r["waiting"], r["in_flight"]) for r in shown] == [(orders.name, 2, 0)]
        assert dead.redrive("_message.origin.reason = 'worse'") == 2
    else:
        with pytest.raises(PlatformMissing):
            found.df()
