"""Numbers for dashboards, leases that are kept alive, deliveries that count: on both stores."""

from __future__ import annotations

import datetime
import json
import threading
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.inside import client_of
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
        "messages": 8,
        "available": 5,
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
    assert f'txnqueue_available{{queue="{queue.name}"}} 5\n' in metrics.prometheus()
    if world.has_frames:
        row = metrics.df().where(f"queue = '{queue.name}'").collect()[0]
        assert row.asDict() == found


@in_memory
def test_an_empty_queue_has_no_age(world: World) -> None:
    queue = world.queue()
    found = measured(world, queue.name)
    assert (found["oldest_age_seconds"], found["messages"]) == (None, 0)
    assert "oldest_age_seconds{" not in world.manager().metrics().prometheus()


@in_memory
def test_what_a_clock_that_is_ahead_sent_is_new(world: World) -> None:
    orders, other, manager = world.queue(), world.queue("other"), world.manager("b")
    world.clock.advance(60)
    orders.send(rows(1))
    world.clock.advance(-60)
    (row,) = [row for row in manager.metrics().rows() if row["queue"] == orders.name]
    assert (row["oldest_age_seconds"], row["newest_age_seconds"]) == (0.0, 0.0)
    at = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000 + 30, datetime.timezone.utc)
    other.send(rows(2))  # by then both are recorded, whatever the clock said of the first
    lanes = manager.history.report(upto=at, verify=False).figures.lanes
    assert {one.queue: one.oldest_age_seconds for one in lanes} == {
        orders.name: 0.0,
        other.name: 30.0,
    }


@in_memory
def test_prometheus_gets_every_digit(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    world.clock.advance(7_654_321.125)
    manager = world.manager()
    client_of(manager).conflicts[queue.name] = 1_234_569
    text = manager.metrics().prometheus()
    assert f'txnqueue_conflicts{{queue="{queue.name}"}} 1234569\n' in text
    assert f'txnqueue_oldest_age_seconds{{queue="{queue.name}"}} 7654321.125\n' in text


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
    assert batch.heartbeat(0.001).beats == 0  # the shortest lease has a beat, too


def test_a_report_reads_when_it_is_asked_and_says_the_same_in_every_form(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": 1, "key": "a"}, {"n": 2, "key": "b"}])
    snapshot = world.manager().history.as_of()
    report = snapshot.dispatches()
    queue.send([{"n": 3, "key": "c"}])
    rows = [row for row in report.rows() if row["queue"] == queue.name]
    assert sum(row["count"] or 0 for row in rows if row["kind"] == "posted") == 2
    written = [row for row in json.loads(report.json()) if row["queue"] == queue.name]
    assert [row.keys() for row in written] == [row.keys() for row in rows]
    assert written[0]["recorded_at"] == rows[0]["recorded_at"].isoformat()
    (settings,) = [row for row in snapshot.queues().rows() if row["queue"] == queue.name]
    assert settings["queue_id"] == queue.info.queue_id and not settings["closing"]


@on_delta_when_long
def test_messages_of_a_snapshot_have_their_state_and_can_be_few(world: World) -> None:
    queue = world.queue()
    queue.send([{"n": n, "key": "a"} for n in range(4)])
    queue.receive(1)
    snapshot = world.manager().history.as_of()
    states = [row["state"] for row in snapshot.messages(queue.name).rows()]
    assert sorted(states) == ["available"] * 3 + ["in_flight"]
    assert [row["n"] for row in snapshot.messages(queue.name, 2).rows()] == [1, 2]
