"""Purge, move and redrive what waits, wait for what comes, and select: on both stores."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, pick, rows
from tests.conformance.working import understand_divisors
from tests.inside import client_of
from txnqueue.errors import (
    InvalidInput,
    PlatformMissing,
    QueueNotFound,
    SchemaMismatch,
    TransactionNotGiven,
)
from txnqueue.queue import Queue


def state_of(world: World, queue: Queue) -> Any:
    """Read what the history says of a queue now."""
    found = world.manager().history.as_of().counts().rows()
    return next(row for row in found if row["queue"] == queue.name)


def killed(queue: Queue, *reasons: str) -> None:
    """Reject one message for each reason."""
    for reason in reasons:
        queue.receive(1).reject(reason=reason)


@on_delta_when_long
def test_a_purge_takes_what_waits_and_what_is_in_flight_when_it_would_come_back(
    world: World,
) -> None:
    queue = world.queue(lanes=2)
    queue.send(rows(*range(10)))
    queue.send(rows(99), delay_seconds=60)
    held = queue.receive(4)
    assert queue.purge(reason="wrong import") == 7
    assert queue.purge() == 0
    assert (queue.depth(), queue.in_flight()) == (0, 4)
    row = state_of(world, queue)
    assert (row["purged"], row["in_flight"], row["purge_pending"]) == (7, 4, 4)
    assert held.accept(matching=pick(held, numbers(held)[0])) == 1
    assert held.release() == 3
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    row = state_of(world, queue)
    assert (row["purged"], row["posted"], row["accepted"]) == (10, 11, 1)
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_dead_letters_go_back_to_where_they_came_from(world: World) -> None:
    queue = world.queue(dead_letter=True, lanes=3, group_by="key")
    queue.send([{"n": n, "key": f"k{n}"} for n in range(6)])
    lanes = {row["n"]: row["_message"]["lane"] for row in queue.peek_messages()}
    killed(queue, "a", "b", "c")
    dead = world.manager().queue(f"{queue.name}.dead")
    dead.send(rows(50))
    assert (queue.depth(), dead.depth()) == (3, 4)
    assert dead.redrive() == 3
    assert (queue.depth(), dead.depth()) == (6, 1)
    back = queue.peek_messages()
    assert {row["n"]: row["_message"]["lane"] for row in back} == lanes
    assert {row["_message"]["delivery_count"] for row in back} == {0}
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_a_move_places_messages_by_the_other_queues_rules(world: World) -> None:
    queue = world.queue(lanes=2)
    other = world.queue("other", lanes=4, group_by="key")
    queue.send([{"n": n, "key": f"k{n % 5}"} for n in range(20)], priority=7)
    other.send([{"n": 100 + n, "key": f"k{n}"} for n in range(5)])
    assert queue.move(other) == 20
    assert (queue.depth(), other.depth()) == (0, 25)
    found = other.peek_messages(100)
    lanes: dict[str, set[int]] = {}
    for row in found:
        lanes.setdefault(row["key"], set()).add(row["_message"]["lane"])
    assert all(len(of_key) == 1 for of_key in lanes.values())
    assert sorted(numbers(found)) == [*range(20), *range(100, 105)]
    assert sorted(numbers(other.receive(100))) == sorted(numbers(found))
    assert state_of(world, queue)["moved"] == 20


@on_delta_when_long
def test_a_trace_follows_a_message_through_a_move(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    sent = queue.send(rows(1))
    queue.move(other.name)
    other.receive().accept()
    steps = world.manager().history.trace(f"{sent.send_id}:0").rows()
    assert [step["step"] for step in steps] == ["sent", "moved", "moved", "claimed", "accepted"]


@on_delta_when_long
def test_a_receive_waits_for_what_comes(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1), delay_seconds=30)
    batch = queue.receive(wait_seconds=60)
    assert numbers(batch) == [1]
    assert numbers(queue.receive(wait_seconds=1)) == []
    world.open(queue, "b").receive(1, wait_seconds=400)  # the lease of the first one ends
    assert queue.in_flight() == 1


@in_memory
def test_a_receive_that_waits_hears_of_another_clients_send(world: World) -> None:
    queue = world.queue()
    entered = threading.Event()
    watched: Any = client_of(queue).runtime
    watched.sleep = lambda seconds: (
        entered.set(),
        world.open(queue, "b").send(rows(7)),
    )
    assert numbers(queue.receive(wait_seconds=60)) == [7]
    assert entered.is_set()


@on_delta_when_long
def test_a_receive_in_a_transaction_waits_for_what_comes(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1), delay_seconds=30)
    manager = world.manager("b")
    mine = manager.queue(queue.name)
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        assert numbers(mine.receive(wait_seconds=60, transaction=tx)) == [1]
        raise ZeroDivisionError
    sends: list[float] = []

    def sleep(seconds: float) -> None:
        world.clock.advance(seconds)
        if not sends:
            world.open(queue, "c").send(rows(2))
        sends.append(seconds)

    with manager.transaction() as tx:
        assert numbers(mine.receive(transaction=tx)) == [1]  # it came back
        client_of(manager).runtime.sleep = sleep
        assert numbers(mine.receive(wait_seconds=60, transaction=tx)) == [2]
        before = world.clock.now_ms
        assert len(mine.receive(wait_seconds=20, transaction=tx)) == 0
        assert world.clock.now_ms == before + 20_000
        assert (queue.depth(), queue.in_flight()) == (0, 2)
    assert (queue.depth(), queue.in_flight()) == (0, 0)


@on_delta_when_long
def test_a_selector_receives_only_what_it_wants(world: World) -> None:
    queue = world.queue(lanes=2)
    queue.send([{"n": n, "key": "even" if n % 2 == 0 else "odd"} for n in range(10)])
    if not world.has_frames:
        with pytest.raises(PlatformMissing):
            queue.receive(where="n > 3")
        return
    batch = queue.receive(3, where="key = 'even' AND n > 3")
    assert sorted(numbers(batch)) == [4, 6, 8]
    assert len(queue.receive(where="key = 'even' AND n > 3")) == 0
    batch.release()
    wanted = world.spark.createDataFrame([(1,), (4,), (77,)], "n long")
    held = queue.receive(matching=wanted, on="n")
    assert sorted(numbers(held)) == [1, 4]
    assert queue.purge("_message.lane = 0 OR n < 3") + queue.purge() == 8
    held.accept()  # no drain is finished while something is in flight
    queue.send(rows(20, 21), headers={"country": "SE"})
    queue.send(rows(22), headers={"country": "NO", "correlation_id": "c-1"})
    swedish = "_message.headers['country'] = 'SE'"
    assert sorted(numbers(queue.peek_messages(where=swedish))) == [20, 21]
    assert queue.peek(where="_message.correlation_id = 'c-1'").count() == 1
    seen: list[int] = []
    result = queue.drain(lambda got, tx: seen.extend(numbers(got)), where=swedish, until="empty")
    assert (sorted(seen), result.finished) == ([20, 21], True)
    again = queue.receive(where="_message.headers['country'] IS NOT NULL")
    assert again.modify() == 1
    assert numbers(queue.receive(where="_message.redelivered")) == [22]
    with pytest.raises(InvalidInput, match="nobody"):
        queue.send(rows(1))
        queue.receive(where="nobody = 1")


@on_delta_when_long
def test_a_selector_receives_in_a_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand_divisors(world, monkeypatch)
    queue = world.queue(lanes=2)
    queue.send(rows(*range(1, 13)))
    manager = world.manager("b")
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        assert sorted(numbers(tx.queue(queue.name).receive(where="n % 5 = 0"))) == [5, 10]
        raise ZeroDivisionError
    assert queue.depth() == 12
    with manager.transaction() as tx:
        mine = tx.queue(queue.name)
        assert len(mine.receive(2, where="n % 4 = 0")) == 2
        assert len(mine.receive(where="n % 4 = 0")) == 1
        assert len(mine.receive(where="n % 4 = 0")) == 0
        assert (queue.depth(), queue.in_flight()) == (9, 3)
    assert sorted(numbers(queue.peek_messages())) == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    if world.has_frames:
        wanted = world.spark.createDataFrame([(1,), (4,), (7,)], "n long")
        with manager.transaction() as tx:
            found = manager.queue(queue.name).receive(matching=wanted, on="n", transaction=tx)
            assert sorted(numbers(found)) == [1, 7]
        assert queue.depth() == 7
    assert queue.in_flight() == 0


@on_delta_when_long
def test_what_cannot_be_moved_is_refused(world: World) -> None:
    queue = world.queue()
    other = world.manager().create_queue(world.name("wide"), "x string", dead_letter=False)
    queue.send(rows(1))
    with pytest.raises(SchemaMismatch, match="differ in"):
        queue.move(other)
    with pytest.raises(InvalidInput):
        queue.move(queue)
    with pytest.raises(QueueNotFound):
        queue.move("nobody")
    manager = world.manager("b")
    with manager.transaction(), pytest.raises(TransactionNotGiven):
        manager.queue(queue.name).purge()
    assert queue.depth() == 1


@in_memory
def test_each_message_that_moves_says_how_often_it_was_delivered(world: World) -> None:
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(1, 2, 3))
    for _ in range(2):
        queue.receive(1).modify()
    queue.move(other.name)
    moved = other.peek_messages(9)
    counts = [(m["n"], m["_message"]["origin"]["delivery_count"]) for m in moved]
    assert counts == [(1, 2), (2, 0), (3, 0)]


@in_memory
@pytest.mark.parametrize("inside", [False, True])
def test_what_moves_keeps_its_order_though_some_of_it_failed_once(
    world: World, inside: bool
) -> None:
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(*range(6)))
    held = queue.receive()
    held.modify(matching=pick(held, 1, 2, 4))
    held.release()
    manager = world.manager("b")
    with manager.transaction() if inside else nullcontext() as tx:
        assert manager.queue(queue.name).move(other.name, transaction=tx) == 6
    moved = other.peek_messages(9)
    counts = [(m["n"], m["_message"]["origin"]["delivery_count"]) for m in moved]
    assert counts == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 1), (5, 0)]
    assert numbers(other.receive()) == [*range(6)]
    assert world.manager().history.verify().ok


@in_memory
def test_batches_of_one_transaction_that_move_keep_the_order_of_their_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand_divisors(world, monkeypatch)
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(*range(6)))
    manager = world.manager("b")
    with manager.transaction() as tx:
        mine = tx.queue(queue.name)
        for batch in (mine.receive(where="n % 2 = 0"), mine.receive()):
            batch.move(other.name)
    assert numbers(other.receive()) == [*range(6)]


@in_memory
def test_dead_letters_of_a_queue_before_say_that_another_one_has_its_name(world: World) -> None:
    queue, manager = world.queue(dead_letter=True), world.manager("b")
    queue.send(rows(1))
    queue.receive(1).reject(reason="no")
    manager.drop_queue(queue.name)
    world.queue(dead_letter=True)
    with pytest.raises(QueueNotFound, match="no longer exists, and another one has its name"):
        manager.queue(f"{queue.name}.dead").redrive()
