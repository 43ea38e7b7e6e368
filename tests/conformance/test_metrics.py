"""Numbers for dashboards, leases that are kept alive, deliveries that count: on both stores."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from txnqueue.errors import LeaseLost, LimitExceeded


def measured(world: World, name: str) -> Any:
    """Measure one queue."""
    return next(row for row in world.manager().metrics().rows() if row["queue"] == name)


@on_delta_when_long
def test_every_message_is_counted_where_it_is(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(*range(6)))
    world.clock.advance(40)
    queue.send(rows(7), delay_seconds=60)
    queue.send(rows(8), ttl_seconds=1)
    queue.send(rows(9))
    batch = queue.receive(3)
    batch.reject(matching=batch.messages()[:1])
    batch.modify(matching=batch.messages()[1:2])
    world.clock.advance(2)
    found = measured(world, queue.name)
    assert found == {
        "queue": queue.name,
        "length": 8,
        "visible": 5,
        "in_flight": 1,
        "purge_pending": 0,
        "delayed": 1,
        "expired": 1,
        "redelivered": 1,
        "dead": 1,
        "duplicates": 0,
        "oldest_age_seconds": 42.0,
        "newest_age_seconds": 2.0,
        "conflicts": 0,
    }
    metrics = world.manager().metrics()
    assert json.loads(metrics.json()) == metrics.rows()
    assert f'txnqueue_visible{{queue="{queue.name}"}} 5\n' in metrics.prometheus()
    if world.has_frames:
        row = metrics.df().where(f"queue = '{queue.name}'").collect()[0]
        assert row.asDict() == found


@in_memory
def test_an_empty_queue_has_no_age(world: World) -> None:
    queue = world.queue()
    found = measured(world, queue.name)
    assert (found["oldest_age_seconds"], found["length"]) == (None, 0)
    assert "oldest_age_seconds{" not in world.manager().metrics().prometheus()


@on_delta_when_long
def test_a_failed_delivery_counts_and_a_plain_one_does_not(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    queue.receive().modify(delivery_failed=False)
    assert queue.peek_messages()[0]["_message"]["delivery_count"] == 0
    queue.receive().modify()
    assert queue.peek_messages()[0]["_message"]["delivery_count"] == 1


@in_memory
def test_a_heartbeat_keeps_the_messages_while_its_block_runs(world: World) -> None:
    queue = world.queue(lease_seconds=10)
    queue.send(rows(1))
    batch = queue.receive()
    with batch.heartbeat(lease_seconds=1_000, every_seconds=0.001) as beating:
        waiting = threading.Event()
        while not beating.beats:
            waiting.wait(0.001)
    world.clock.advance(900)
    assert len(world.open(queue, "b").receive()) == 0
    assert batch.accept() == 1


@in_memory
def test_a_heartbeat_says_that_the_lease_was_lost(world: World) -> None:
    queue = world.queue(lease_seconds=10)
    queue.send(rows(1))
    batch = queue.receive()
    world.clock.advance(11)
    assert numbers(world.open(queue, "b").receive()) == [1]
    waiting = threading.Event()
    with pytest.raises(LeaseLost), batch.heartbeat(10, every_seconds=0.001) as beating:
        while not beating.lost:
            waiting.wait(0.001)
    with pytest.raises(LimitExceeded):
        batch.heartbeat(10, every_seconds=11)
