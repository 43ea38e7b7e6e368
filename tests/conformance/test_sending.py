"""Sending, receiving and looking."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from txnqueue.errors import Busy, InvalidInput, LimitExceeded, SchemaMismatch
from txnqueue.messages import send
from txnqueue.storage.journal import AppendConflict


def test_what_was_sent_is_received_in_the_order_of_its_commits(world: World) -> None:
    orders = world.queue()
    orders.send(rows(5, 3))
    orders.send(pa.Table.from_pylist(rows(9, 1)))
    assert orders.depth() == 4
    assert numbers(orders.receive(3)) == [5, 3, 9]
    assert (orders.depth(), orders.in_flight()) == (1, 3)


@on_delta_when_long
def test_a_message_says_what_is_known_of_it(world: World) -> None:
    orders = world.queue()
    sent = orders.send(rows(7))
    (message,) = orders.receive().messages()
    about = message["_message"]
    assert about["id"] == f"{sent.send_id}:{about['send_offset']}"
    assert (about["queue"], about["lane"], about["delivery_count"]) == (orders.name, 0, 0)
    assert (about["redelivered"], about["origin"]) == (False, None)
    assert about["transaction_id"] == sent.transaction_id == sent.receipt.transaction_id
    assert about["enqueued_at"].timestamp() * 1000 == world.clock.now_ms


def test_order_by_orders_the_messages_of_one_send(world: World) -> None:
    orders = world.queue()
    orders.send(rows(3, 1, 2), order_by="n")
    assert numbers(orders.peek_messages()) == [1, 2, 3]


@in_memory
def test_what_was_received_can_be_sent_on_as_it_is(world: World) -> None:
    orders, copies = world.queue(), world.queue("copies")
    orders.send(rows(1, 2))
    assert copies.send(orders.receive().messages()).count == 2
    assert numbers(copies.peek_messages()) == [1, 2]


@on_delta_when_long
def test_a_group_stays_in_one_lane_and_in_order(world: World) -> None:
    orders = world.queue(lanes=4, group_by="key")
    orders.send([{"n": n, "key": f"k{n % 7}"} for n in range(70)])
    messages = orders.receive(70).messages()
    lanes: dict[str, set[int]] = {m["key"]: set() for m in messages}
    for message in messages:
        lanes[message["key"]].add(message["_message"]["lane"])
    assert all(len(found) == 1 for found in lanes.values())
    assert len(set.union(*lanes.values())) > 1
    for key in lanes:
        assert (of_key := [m["n"] for m in messages if m["key"] == key]) == sorted(of_key)


@on_delta_when_long
def test_peeking_claims_nothing_and_shows_committed_messages_only(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    with world.manager("b").transaction() as tx:
        tx.queue(orders.name).send(rows(3))
        assert (numbers(orders.peek_messages(1)), numbers(orders.peek_messages())) == ([1], [1, 2])
        assert orders.depth() == 2
    assert (orders.depth(), orders.in_flight()) == (3, 0)


def test_frames_show_what_messages_show(world: World) -> None:
    if not world.has_frames:
        pytest.skip("a store in memory has no DataFrames")
    orders, others = world.queue(dead_letter=True), world.queue("others")
    orders.send(world.spark.createDataFrame(rows(1, 2, 3), "n long, key string"))
    batch = orders.receive()
    assert batch.reject(where="n > 2", reason="too many") == 1
    assert sorted(row["n"] for row in batch.df.collect()) == [1, 2, 3]
    assert others.send(batch.df).count == 3
    assert batch.to_arrow().num_rows == len(batch) == 3


@on_delta_when_long
def test_rows_that_do_not_fit_send_nothing(world: World) -> None:
    orders = world.queue()
    for wrong, column in [([{"m": 1}], "m"), ([{"n": "1"}], "n"), ([{"n": 1}, {"n": 0.5}], "n")]:
        with pytest.raises(SchemaMismatch) as caught:
            orders.send(wrong)
        assert caught.value.column == column
    assert orders.depth() == 0


@in_memory
@pytest.mark.parametrize("met", [3, 1_000])
def test_a_send_that_meets_alterations_is_staged_again_or_says_so(world: World, met: int) -> None:
    """The second conflict was an error of the library's own inside, which no retry policy knew."""
    orders, payload = world.queue(), world.store.payload
    stage, tries = payload.stage, list[str]()

    def altered(given: Any, found: Any) -> Any:
        tries.append(given.send_id)
        if len(tries) <= met:
            raise AppendConflict("a column was added")
        return stage(given, found)

    payload.stage = altered
    if met < 10:
        sent = orders.send(rows(1, 2))
        assert sent.send_id == tries[met] and len(set(tries)) == met + 1
        assert numbers(orders.receive()) == [1, 2]
    else:
        with pytest.raises(Busy) as caught:
            orders.send(rows(1, 2))
        assert (caught.value.queue, caught.value.operation) == (orders.name, "stage")
        assert caught.value.tries == len(tries) < met and orders.depth() == 0
        said = f"'{orders.name}' were being altered at all {len(tries)} tries"
        assert said in str(caught.value) and "nothing was sent: try again" in str(caught.value)


@in_memory
def test_no_rows_are_no_commit(world: World) -> None:
    orders = world.queue()
    sent = orders.send([])
    assert (sent.count, sent.receipt) == (0, None)
    assert len(orders.receive()) == 0


@in_memory
def test_wrong_arguments_are_refused_by_name(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive()
    refused = [
        (InvalidInput, "limit", lambda: orders.receive("10")),
        (InvalidInput, "limit", lambda: orders.receive(1.5)),
        (InvalidInput, "limit", lambda: orders.receive(True)),
        (LimitExceeded, "limit", lambda: orders.receive(0)),
        (LimitExceeded, "limit", lambda: orders.peek_messages(0)),
        (LimitExceeded, "lease_seconds", lambda: orders.receive(lease_seconds=0)),
        (InvalidInput, "lease_seconds", lambda: orders.receive(lease_seconds="60")),
        (InvalidInput, "order_by", lambda: orders.send(rows(1), order_by="m")),
        (InvalidInput, "cannot be sent", lambda: orders.send("rows")),
        (InvalidInput, "where= or matching=", lambda: batch.accept("n = 1", matching=[])),
        (InvalidInput, "reason_column", lambda: batch.reject(reason_column="why")),
        (InvalidInput, "where=5", lambda: batch.accept(5)),
        (InvalidInput, "not a message id", lambda: batch.accept(matching=["nonsense"])),
        (InvalidInput, "matching", lambda: batch.accept(matching=5)),
        (InvalidInput, "neither a message", lambda: batch.accept(matching=[{"n": 1}])),
        (LimitExceeded, "seconds", lambda: batch.extend_lease(0)),
        (InvalidInput, "until", lambda: orders.drain(print, until="noon")),
        (LimitExceeded, "batch_size", lambda: orders.drain(print, batch_size=0)),
        (LimitExceeded, "errors_max", lambda: orders.drain(print, errors_max=0)),
        (InvalidInput, "run_id", lambda: orders.drain(print, run_id="x" * 200)),
    ]
    for error, named, call in refused:
        with pytest.raises(error, match=named):
            call()
    assert orders.in_flight() == 1


@in_memory
def test_a_batch_says_until_when_it_is_held(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive(lease_seconds=60)
    until = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000 + 60, datetime.timezone.utc)
    assert batch.held_until == until
    nothing = orders.receive()
    assert nothing.held_until is None
    assert orders.name in repr(batch) and f"held until {until}" in repr(batch)
    batch.release()
    assert repr(batch) == f"<Batch of 1 from {orders.name}, no longer held>"
    assert repr(nothing) == "<Batch without messages>"


@in_memory
def test_a_send_that_lies_in_too_many_ranges_says_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "RANGES_PER_SEND_MAX", 3)
    queue = world.queue(lanes=8)
    with pytest.raises(LimitExceeded, match="coalesce"):
        queue.send(rows(*range(80)))
    with pytest.raises(LimitExceeded), world.manager().transaction() as tx:
        tx.queue(queue.name).send(rows(*range(80)))
    assert queue.depth() == 0 and queue.send(rows(1)).count == 1


@pytest.mark.parametrize("durable", [True, False])
def test_a_receipt_says_when_it_was_committed_by_the_clients_clock(
    world: World, durable: bool
) -> None:
    world.clock.advance(86_400.5)
    sent = world.queue(durable=durable).send(rows(1))
    assert sent.receipt.committed_at.timestamp() * 1000 == world.clock.now_ms
