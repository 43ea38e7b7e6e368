"""What queues can do with messages that are in memory only, as with all others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, numbers, on_delta_when_long, pick, rows
from tests.conformance.test_removing import killed
from tests.conformance.test_settling import Stop, standing
from tests.conformance.working import understand_divisors
from tests.inside import client_of
from txnqueue.errors import LeaseLost


def written(queue: Any) -> int:
    """Read the journal's version: what is in memory does not change it."""
    return client_of(queue).store.journal.version()


@on_delta_when_long
def test_a_key_keeps_its_order_in_memory(world: World) -> None:
    queue = world.queue(durable=False, lanes=4, group_by="key")
    version = written(queue)
    for first in (0, 20):
        queue.send([{"n": first + n, "key": f"k{n % 5}"} for n in range(20)])
    queue.receive(7).release()
    with pytest.raises(Stop), world.manager("b").transaction() as tx:
        assert len(tx.queue(queue.name).receive(7)) == 7
        raise Stop
    messages = []
    while batch := queue.receive(100):
        messages += batch.messages()
    assert sorted(numbers(messages)) == [*range(40)]
    assert len({m["_message"]["lane"] for m in messages}) > 1
    for key in {m["key"] for m in messages}:
        mine = [m for m in messages if m["key"] == key]
        assert len({m["_message"]["lane"] for m in mine}) == 1
        assert numbers(mine) == sorted(numbers(mine))
    assert written(queue) == version


@on_delta_when_long
def test_a_lane_in_memory_is_given_to_no_other_consumer(world: World) -> None:
    queue = world.queue(ordered=True, durable=False, lease_seconds=60)
    queue.send(rows(*range(6)))
    other, version = world.open(queue, "b"), written(queue)
    first = queue.receive(2)
    assert numbers(first) == [0, 1]
    assert len(other.receive()) == 0
    assert numbers(queue.receive(2)) == [2, 3]
    first.accept()
    assert len(other.receive()) == 0  # the consumer still has two others
    world.clock.advance(61)
    taken = other.receive(1)
    assert numbers(taken) == [2]
    assert len(queue.receive()) == 0  # now the lane is the other's
    taken.release()
    tx = world.manager("c").transaction()
    assert numbers(tx.queue(queue.name).receive(1)) == [2]
    assert len(other.receive()) == 0
    tx.rollback()
    assert numbers(other.receive(1)) == [2]
    assert written(queue) == version


@on_delta_when_long
def test_other_lanes_in_memory_are_free(world: World) -> None:
    queue = world.queue(lanes=2, ordered=True, durable=False)
    queue.send(rows(*range(8)))
    mine, theirs = queue.receive(2), world.open(queue, "b").receive(100)
    assert len({m["_message"]["lane"] for m in mine.messages()}) == 1
    assert len(theirs) == 4
    assert mine.messages()[0]["_message"]["lane"] != theirs.messages()[0]["_message"]["lane"]


@on_delta_when_long
def test_a_selector_finds_what_is_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = understand_divisors(world, monkeypatch)
    queue, other = world.queue(durable=False, lanes=2), world.queue("other", durable=False)
    queue.send(rows(*range(20)))
    version = written(queue)
    assert sorted(numbers(queue.peek_messages(where="n % 7 = 0"))) == [0, 7, 14]
    held = queue.receive(where="n % 7 = 0")
    assert sorted(numbers(held)) == [0, 7, 14]
    assert len(queue.receive(where="n % 7 = 0")) == 0
    held.release()
    with pytest.raises(Stop), world.manager("b").transaction() as tx:
        assert sorted(numbers(tx.queue(queue.name).receive(where="n % 17 = 0"))) == [0, 17]
        raise Stop
    assert queue.move(other, "n % 5 = 0") == 4
    assert sorted(standing(other)) == [0, 5, 10, 15]
    assert queue.purge("n % 2 = 0") == 8
    assert sorted(standing(queue)) == [1, 3, 7, 9, 11, 13, 17, 19]
    assert written(queue) == version  # all of it went on in memory
    seen: list[int] = []
    looked.clear()
    result = queue.drain(
        lambda got, tx: seen.extend(numbers(got)), where="n % 3 = 0", until="empty"
    )
    assert (sorted(seen), result.finished) == ([3, 9], True)
    assert len(looked) == len(set(looked))  # each message once
    if world.has_frames:
        wanted = world.spark.createDataFrame([(1,), (13,), (77,)], "n long")
        assert sorted(numbers(queue.receive(matching=wanted, on="n"))) == [1, 13]


@on_delta_when_long
def test_a_selector_finds_messages_of_both_kinds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand_divisors(world, monkeypatch)
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(6)))
    queue.send(rows(*range(6, 12)), durable=False)
    assert sorted(numbers(queue.peek_messages(where="n % 5 = 0"))) == [0, 5, 10]
    held = queue.receive(where="n % 5 = 0")
    assert sorted(numbers(held)) == [0, 5, 10]
    held.release()
    assert queue.move(other, "n % 4 = 0") == 3
    assert queue.purge("n % 3 = 0") == 3
    seen: list[int] = []
    queue.drain(lambda got, tx: seen.extend(numbers(got)), where="n % 2 = 0", until="empty")
    assert sorted(seen) == [2, 10]
    assert sorted(standing(queue)) == [1, 5, 7, 11]
    assert sorted(standing(other)) == [0, 4, 8]


@on_delta_when_long
def test_what_failed_or_is_not_for_us_goes_back_in_memory(world: World) -> None:
    queue = world.queue(durable=False, dead_letter=True, deliveries_max=2)
    queue.send(rows(1, 2, 3))
    version = written(queue)
    batch = queue.receive()
    batch.modify(matching=pick(batch, 1), delivery_failed=False)
    batch.modify(matching=pick(batch, 2))
    batch.modify(matching=pick(batch, 3), delivery_failed=False, undeliverable_here=True)
    counts = {m["n"]: m["_message"]["delivery_count"] for m in queue.peek_messages()}
    assert counts == {1: 0, 2: 1, 3: 0}
    assert numbers(queue.receive(1)) == [1]
    assert numbers(queue.receive(1)) == [2]
    again = world.manager("a").queue(queue.name)  # the same consumer id, started anew
    assert 3 not in numbers(again.receive())
    other = world.open(queue, "b")
    failed = other.receive()
    assert numbers(failed) == [3]
    failed.modify(undeliverable_here=True)
    assert len(other.receive()) == 0
    assert len(again.receive(1)) == 0  # it is not forgotten
    last = world.open(queue, "c").receive()
    assert [(m["n"], m["_message"]["delivery_count"]) for m in last.messages()] == [(3, 1)]
    last.modify()
    assert len(world.open(queue, "d").receive()) == 0
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    reasons = {m["n"]: m["_message"]["origin"]["reason"] for m in letters}
    assert reasons == {2: "deliveries_max", 3: "deliveries_max"}  # 2 failed with its consumer
    assert written(queue) == version


@on_delta_when_long
def test_what_a_commit_in_memory_says_of_messages_is_part_of_it(world: World) -> None:
    queue = world.queue(durable=False)
    queue.send(rows(1, 2))
    manager = world.manager("b")
    with pytest.raises(Stop), manager.transaction() as tx:
        tx.queue(queue.name).receive(1).modify(delivery_failed=False, undeliverable_here=True)
        raise Stop
    counts = [m["_message"]["delivery_count"] for m in queue.peek_messages()]
    assert counts == [1, 0]  # the roll back counts, and says nothing more
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive(1)
        assert numbers(batch) == [1]
        batch.modify(undeliverable_here=True)
    assert [m["_message"]["delivery_count"] for m in queue.peek_messages()] == [2, 0]
    assert numbers(manager.queue(queue.name).receive()) == [2]
    assert numbers(queue.receive()) == [1]


@on_delta_when_long
def test_what_is_kept_in_memory_is_settled_after_the_commit(world: World) -> None:
    queue = world.queue(durable=False, lease_seconds=60)
    queue.send(rows(1, 2, 3, 4))
    version, manager = written(queue), world.manager("b")
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive(3)
        batch.accept(matching=pick(batch, 1))
        batch.keep()
    assert (standing(queue), queue.in_flight()) == ([4], 2)
    with manager.transaction() as later:
        batch.accept(matching=pick(batch, 2), transaction=later)
    assert batch.release() == 1
    assert standing(queue) == [3, 4]
    with pytest.raises(Stop), manager.transaction() as tx:
        tx.queue(queue.name).receive(1).keep()
        raise Stop
    assert standing(queue) == [3, 4]  # a roll back keeps nothing
    with manager.transaction() as tx:
        lost = tx.queue(queue.name).receive(1)
        lost.keep()
    world.clock.advance(61)
    assert numbers(queue.receive(1)) == [3]
    with pytest.raises(LeaseLost):
        lost.accept()
    assert written(queue) == version


@on_delta_when_long
def test_what_is_kept_of_both_kinds_is_settled_as_a_whole(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    queue.send(rows(3, 4), durable=False)
    manager = world.manager("b")
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive()
        assert len(batch) == 4
        batch.accept(matching=pick(batch, 1, 3))
        batch.keep()
    assert (queue.depth(), queue.in_flight()) == (0, 2)
    with manager.transaction() as tx:
        batch.reject(matching=pick(batch, 4), transaction=tx)
        batch.release(matching=pick(batch, 2), transaction=tx)
        assert queue.in_flight() == 2
    assert (standing(queue), queue.in_flight()) == ([2], 0)


@on_delta_when_long
def test_dead_letters_in_memory_go_back_to_where_they_came_from(world: World) -> None:
    queue = world.queue(dead_letter=True, durable=False, lanes=3, group_by="key")
    queue.send([{"n": n, "key": f"k{n}"} for n in range(6)])
    version = written(queue)
    lanes = {row["n"]: row["_message"]["lane"] for row in queue.peek_messages()}
    assert len(set(lanes.values())) > 1
    killed(queue, "a", "b", "c")
    manager = world.manager("b")
    dead = manager.queue(f"{queue.name}.dead")
    dead.send(rows(50), durable=False)  # sent here: it has nowhere to go back to
    with pytest.raises(Stop), manager.transaction() as tx:
        assert dead.redrive(transaction=tx) == 3
        assert (queue.depth(), dead.depth()) == (3, 1)
        raise Stop
    assert (queue.depth(), dead.depth()) == (3, 4)
    assert dead.redrive(limit=1) == 1
    with manager.transaction() as tx:
        assert dead.redrive(transaction=tx) == 2
    assert (queue.depth(), standing(dead)) == (6, [50])
    back = queue.peek_messages()
    assert {row["n"]: row["_message"]["lane"] for row in back} == lanes
    assert {row["_message"]["delivery_count"] for row in back} == {0}
    assert written(queue) == version
