"""Ordered queues: one consumer at a time works on a lane, on both stores."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.conformance.working import understand_divisors
from tests.inside import beside, claims_of


def lanes(batch: Any) -> set[int]:
    """Say which lanes a batch is of."""
    return {one.claim.lane for one in claims_of(batch)}


@in_memory
def test_without_ordered_several_consumers_have_messages_of_one_lane_in_flight(
    world: World,
) -> None:
    queue = world.queue(lanes=1)
    queue.send(rows(*range(4)))
    other = world.open(queue, "b")
    first, second = queue.receive(2), other.receive(1)
    assert (numbers(first), numbers(second)) == ([0, 1], [2])
    first.release()
    assert numbers(other.receive(10)) == [0, 1, 3]  # after the one that came behind them


@on_delta_when_long
def test_a_lane_in_flight_is_given_to_no_other_consumer(world: World) -> None:
    queue = world.queue(ordered=True)
    queue.send(rows(*range(6)))
    other = world.open(queue, "b")
    first = queue.receive(2)
    assert numbers(first) == [0, 1]
    assert len(other.receive(10)) == 0
    assert numbers(queue.receive(2)) == [2, 3]
    first.release()
    assert len(other.receive(10)) == 0  # the consumer still has two others
    world.lease_over()
    batch = other.receive(10)
    assert numbers(batch) == [0, 1]  # what comes back from a lease is tried apart
    batch.accept()
    assert len(queue.receive(10)) > 0


@on_delta_when_long
def test_other_lanes_are_free(world: World) -> None:
    queue = world.queue(lanes=2, ordered=True)
    queue.send(rows(*range(8)))
    other = world.open(queue, "b")
    mine, theirs = queue.receive(2), other.receive(100)
    assert lanes(mine).isdisjoint(lanes(theirs))
    assert len(theirs) == 4


@on_delta_when_long
def test_a_drain_does_not_wait_for_a_lane_that_another_consumer_works_on(world: World) -> None:
    queue = world.queue(ordered=True)
    queue.send(rows(*range(4)))
    held = queue.receive(1)
    result = world.open(queue, "b").drain(lambda batch, tx: None, until="empty")
    assert (result.messages, result.finished) == (0, False)
    held.accept()
    result = world.open(queue, "b").drain(lambda batch, tx: None, until="empty")
    assert (result.messages, result.finished) == (3, True)


@on_delta_when_long
def test_a_rolled_back_transaction_gives_its_lane_back(world: World) -> None:
    queue = world.queue(ordered=True)
    queue.send(rows(1, 2, 3))
    other = world.open(queue, "b")
    manager = world.manager("c")
    inside = manager.transaction()
    assert len(manager.queue(queue.name).receive(1, transaction=inside)) == 1
    assert len(other.receive(1)) == 0
    inside.rollback()
    assert numbers(other.receive(1)) == [1]


@on_delta_when_long
def test_a_lane_is_that_of_one_transaction_of_a_consumer(world: World) -> None:
    """Each may be in a thread of its own, and what one gives back comes first again."""
    manager = world.manager("b")
    queue = manager.queue(world.queue(ordered=True).name)
    queue.send(rows(*range(6)))
    one, two = manager.transaction(), manager.transaction()
    assert numbers(queue.receive(1, transaction=one)) == [0]
    assert numbers(queue.receive(1, transaction=one)) == [1]  # its own
    assert len(queue.receive(1, transaction=two)) == 0
    assert len(queue.receive(1)) == 0
    drained = queue.drain(lambda batch, tx: None, until="empty")
    assert (drained.messages, drained.finished) == (0, False)
    one.rollback()
    assert numbers(queue.receive(1, transaction=two)) == [0]
    assert numbers(queue.receive(1, transaction=two)) == [1]
    two.commit()
    drained = queue.drain(lambda batch, tx: None, batch_size=1, until="empty")
    assert (drained.messages, drained.finished) == (4, True)


@on_delta_when_long
@pytest.mark.parametrize("act", ["releases", "fails", "accepts a part"])
def test_a_drain_hands_nothing_out_before_what_its_handler_gave_back(
    world: World, act: str
) -> None:
    """The commit that gives it back is no append in which what is behind it can be claimed."""
    queue = world.queue(ordered=True, dead_letter=False)
    queue.send(rows(1, 2, 3))
    seen: list[list[int]] = []

    def handler(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))
        if len(seen) > 1:
            return
        if act == "releases":
            batch.release(transaction=tx)
        elif act == "fails":
            batch.modify(delivery_failed=True, transaction=tx)
        else:
            batch.accept(matching=batch.messages()[:1], transaction=tx)

    queue.drain(handler, batch_size=2)
    behind = {"releases": [[1, 2], [3]], "fails": [[1, 2], [3]], "accepts a part": [[2, 3]]}
    assert seen == [[1, 2], *behind[act]]
    assert (queue.depth(), queue.in_flight()) == (0, 0)


@in_memory
def test_a_run_has_not_finished_with_messages_behind_one_that_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that waits is none of those that the run selects."""
    understand_divisors(world, monkeypatch)
    queue, run_id = world.queue(ordered=True, redelivery_delay_seconds=60), world.name("run")
    queue.send(rows(1, 2, 3))
    queue.receive(1).modify(delivery_failed=True)

    def drain() -> tuple[int, bool]:
        result = queue.drain(lambda batch, tx: None, where="n % 2 = 0", run_id=run_id)
        return result.messages, result.finished

    assert drain() == (0, False)
    world.clock.advance(60)
    assert drain() == (1, True)
    assert numbers(queue.peek_messages()) == [1, 3]


@on_delta_when_long
def test_what_an_earlier_process_prepared_is_not_overtaken_by_its_successor(world: World) -> None:
    """Its decision may give the messages back; what is taken over instead comes first anyway."""
    queue = world.queue(ordered=True)
    queue.send(rows(*range(3)))
    tx = beside(queue)
    with tx:
        assert numbers(queue.receive(1, transaction=tx)) == [0]
        assert numbers(queue.receive(1, transaction=tx)) == [1]  # nor does it wait for itself
        tx.prepare()
    world.clock.advance(1)
    restarted, got = world.open(queue, "a"), list[int]()
    result = restarted.drain(lambda batch, tx: got.extend(numbers(batch)), until="empty")
    assert (got, result.finished) == ([], False)
    tx.rollback()
    result = restarted.drain(lambda batch, tx: got.extend(numbers(batch)), until="empty")
    assert (got, result.finished) == ([0, 1, 2], True)


@on_delta_when_long
@pytest.mark.parametrize("how", ["send", "publish", "publish in few ranges", "two sends"])
def test_rows_with_different_times_to_live_keep_their_order(world: World, how: str) -> None:
    queue = world.queue(ordered=True)
    lives = [100, 50, None, 50, 50, 100]
    given = [{**row, "ttl": ttl} for row, ttl in zip(rows(*range(6)), lives, strict=True)]
    if how == "send":
        queue.send(given, ttl_seconds="ttl")
    elif how.startswith("publish"):
        exchange = world.manager("c").create_exchange("x", "fanout", queue.schema)
        exchange.bind(queue.name)
        exchange.publish(given, ttl_seconds="ttl", keep_order=how == "publish")
    else:
        with world.manager("c").transaction() as tx:
            tx.queue(queue.name).send(given[:3], ttl_seconds="ttl")
            tx.queue(queue.name).send(given[3:], ttl_seconds="ttl")
    first = queue.receive(2)
    assert numbers(first) == [0, 1]
    first.accept()
    assert numbers(queue.receive(10)) == [2, 3, 4, 5]


@in_memory
def test_what_is_delayed_is_overtaken_until_its_time_has_come(world: World) -> None:
    for ordered, after in ((True, [0, 1, 2]), (False, [1, 2, 0])):
        queue = world.queue(f"q{ordered}", ordered=ordered)
        waits = [5, None, 1]
        given = [{**row, "w": wait} for row, wait in zip(rows(*range(3)), waits, strict=True)]
        queue.send(given, delay_seconds="w")
        batch = queue.receive(10)
        assert numbers(batch) == [1]
        batch.release()
        world.clock.advance(60)
        assert numbers(queue.receive(10)) == after
