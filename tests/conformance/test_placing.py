"""Priority, delay and time to live: said as a value or as a column, on both stores."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd
import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long
from txnqueue.errors import InvalidInput, LimitExceeded, SchemaMismatch
from txnqueue.queue import Queue

HOUR = 3600


def spoken(*rows: tuple[int, Any]) -> list[dict[str, Any]]:
    """Make messages with a column ``said`` that is not the queue's."""
    return [{"n": n, "key": "k", "said": said} for n, said in rows]


def received(queue: Queue) -> list[int]:
    """Receive everything, and accept it."""
    batch = queue.receive(100)
    found = numbers(batch)
    if found:
        batch.accept()
    return found


def state_of(world: World, queue: Queue) -> Any:
    """Read what the history says of a queue now."""
    rows = world.manager().history.as_of().counts().rows()
    return next(row for row in rows if row["queue"] == queue.name)


@on_delta_when_long
def test_the_highest_priority_goes_first_and_equal_ones_keep_their_order(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1}, {"n": 2}])
    queue.send([{"n": 3}], priority=0)
    queue.send([{"n": 4}], priority=9)
    queue.send(spoken((5, 9), (6, None), (7, 5), (8, 9)), priority="said")
    assert numbers(queue.peek_messages(2)) == [4, 5]
    assert received(queue) == [4, 5, 8, 7, 1, 2, 6, 3]


@on_delta_when_long
def test_a_delayed_message_comes_when_its_time_has_come(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1}], delay_seconds=HOUR)
    queue.send(spoken((2, 30.5), (3, None), (4, 2 * HOUR)), delay_seconds="said")
    instant = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000 + 60, datetime.timezone.utc)
    queue.send([{"n": 5}], available_at=instant)
    queue.send(spoken((6, instant)), available_at="said")
    assert queue.depth() == 1
    assert received(queue) == [3]
    world.clock.advance(30)
    assert received(queue) == []
    world.clock.advance(1.5)
    assert received(queue) == [2]
    world.clock.advance(30)
    assert received(queue) == [5, 6]
    world.clock.advance(HOUR)
    assert received(queue) == [1]
    world.clock.advance(HOUR)
    assert received(queue) == [4]


@on_delta_when_long
def test_the_queues_own_columns_say_where_its_messages_stand(world: World) -> None:
    queue = world.manager().create_queue(
        world.name("placed"), "n long, at timestamp, wait float, prio smallint", dead_letter=False
    )
    noon = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000 + HOUR, datetime.timezone.utc)
    queue.send([{"n": 1, "at": noon}, {"n": 2, "at": None}], available_at="at")
    queue.send([{"n": 3, "wait": 30}, {"n": 4, "wait": None}], delay_seconds="wait")
    queue.send([{"n": 5, "prio": 9, "wait": 30}], priority="prio", ttl_seconds="wait")
    assert received(queue) == [5, 2, 4]
    world.clock.advance(HOUR)
    assert received(queue) == [1, 3]
    wrongly: list[dict[str, Any]] = [
        {"available_at": "wait"},
        {"priority": "at"},
        {"ttl_seconds": "at"},
    ]
    for wrong in wrongly:
        with pytest.raises(SchemaMismatch, match="is needed: cast it"):
            queue.send([{"n": 6, "at": noon, "wait": 1.0, "prio": 1}], **wrong)
    assert queue.depth() == 0


@on_delta_when_long
def test_an_expired_message_is_delivered_no_more(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1}], ttl_seconds=60)
    queue.send(spoken((2, 10), (3, None), (4, 120)), ttl_seconds="said")
    world.clock.advance(61)
    assert queue.depth() == 2
    assert received(queue) == [3, 4]
    row = state_of(world, queue)
    assert (row["expired"], row["accepted"], row["dead_lettered"]) == (2, 2, 0)


@on_delta_when_long
def test_expired_messages_become_dead_letters_if_the_queue_says_so(world: World) -> None:
    queue = world.queue(dead_letter=True, dead_letter_expired=True)
    queue.send([{"n": 1}, {"n": 2}], ttl_seconds=60)
    world.clock.advance(60)
    assert received(queue) == []
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    assert numbers(letters) == [1, 2]
    assert {row["_message"]["origin"]["reason"] for row in letters} == {"expired"}


@on_delta_when_long
def test_what_was_received_in_time_may_be_settled_later(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1}, {"n": 2}], ttl_seconds=60)
    batch = queue.receive()
    world.clock.advance(61)
    batch.accept(matching=batch.messages()[:1])
    batch.release()
    assert received(queue) == []


@on_delta_when_long
def test_a_message_that_comes_back_keeps_its_place_among_priorities(world: World) -> None:
    queue = world.queue()
    queue.send(spoken((1, 1), (2, 8), (3, 8)), priority="said")
    queue.receive(1).release()
    assert received(queue) == [2, 3, 1]


@on_delta_when_long
def test_priority_delay_and_time_to_live_hold_in_transactions(world: World) -> None:
    queue = world.queue()
    manager = world.manager("b")
    with manager.transaction() as tx:
        inside = tx.queue(queue.name)
        inside.send(spoken((1, 4), (2, 9), (3, 9)), priority="said")
        inside.send([{"n": 4}], delay_seconds=60)
        inside.send([{"n": 5}], ttl_seconds=60)
        inside.send([{"n": 6}], ttl_seconds=200)
        assert queue.depth() == 0
        world.clock.advance(61)  # they count from the send on
    assert numbers(queue.peek_messages()) == [2, 3, 1, 4, 6]
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        assert numbers(tx.queue(queue.name).receive(1)) == [2]
        raise ZeroDivisionError
    assert numbers(queue.peek_messages()) == [2, 3, 1, 4, 6]
    tx = manager.transaction()
    assert numbers(tx.queue(queue.name).receive(1)) == [2]
    assert numbers(tx.queue(queue.name).receive()) == [3, 1, 4, 6]
    world.clock.advance(140)
    tx.commit()  # 6 was received in time
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        tx.queue(queue.name).send([{"n": 7}], ttl_seconds=60)
        raise ZeroDivisionError
    assert len(queue.receive()) == 0
    row = state_of(world, queue)
    assert (row["accepted"], row["expired"], row["in_flight"]) == (5, 1, 0)


@on_delta_when_long
def test_a_column_of_the_queue_may_say_it_too(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1}, {"n": 9}], priority="n")
    assert received(queue) == [9, 1]


def test_frames_say_it_as_lists_do(world: World) -> None:
    if not world.has_frames:
        pytest.skip("a store without a session has no frames")
    queue = world.queue(lanes=2)
    rows = [(n, n % 3, float(n % 2) * HOUR) for n in range(12)]
    frame = world.spark.createDataFrame(rows, "n long, p int, d double")
    queue.send(frame, priority="p", delay_seconds="d")
    assert queue.depth() == 6
    assert sorted(received(queue)) == [0, 2, 4, 6, 8, 10]
    world.clock.advance(HOUR)
    batch = queue.receive(100)
    by_lane: dict[int, list[int]] = {}
    for row in batch.messages():
        by_lane.setdefault(row["_message"]["lane"], []).append(row["n"] % 3)
    assert all(found == sorted(found, reverse=True) for found in by_lane.values())
    assert len(batch) == 6
    with pytest.raises(InvalidInput, match="give priorities from 0 to 9"):
        queue.send(frame.selectExpr("n", "99 AS p"), priority="p")


@in_memory
@pytest.mark.parametrize(
    ("said", "error", "names"),
    [
        ({"priority": 10}, LimitExceeded, "priority"),
        ({"priority": True}, InvalidInput, "priority"),
        ({"priority": "nobody"}, SchemaMismatch, "nobody"),
        ({"priority": "key"}, SchemaMismatch, "key"),
        ({"delay_seconds": -1}, LimitExceeded, "delay_seconds"),
        ({"ttl_seconds": "key"}, SchemaMismatch, "key"),
        ({"ttl_seconds": float("inf")}, LimitExceeded, "ttl_seconds"),
        ({"available_at": datetime.datetime(2024, 1, 1)}, InvalidInput, "available_at"),
        ({"available_at": 5}, InvalidInput, "available_at"),
        ({"available_at": pd.NaT}, InvalidInput, "available_at"),
        (
            {
                "available_at": datetime.datetime.now(datetime.timezone.utc),
                "delay_seconds": 1,
            },
            InvalidInput,
            "not both",
        ),
    ],
)
def test_what_cannot_be_said_is_refused(world: World, said: Any, error: Any, names: str) -> None:
    queue = world.queue()
    with pytest.raises(error, match=names):
        queue.send([{"n": 1, "key": "k"}], **said)
    assert queue.depth() == 0


@in_memory
def test_a_priority_in_a_row_is_checked(world: World) -> None:
    with pytest.raises(InvalidInput, match="holds 10"):
        world.queue().send(spoken((1, 3), (2, 10)), priority="said")


@in_memory
def test_too_many_different_delays_are_refused_with_the_remedy(world: World) -> None:
    many = spoken(*((n, float(n)) for n in range(10_001)))
    with pytest.raises(LimitExceeded, match="delay_step_seconds"):
        world.queue().send(many, delay_seconds="said")
    coarse = world.queue("coarse", delay_step_seconds=60)
    coarse.send(many, delay_seconds="said")
    world.clock.advance(120)
    assert 61 <= coarse.depth() <= 121
