"""What was consumed can be looked at again, as it was; nothing is held by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import (
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.inside import client_of, lease_over
from txnqueue import copies
from txnqueue.errors import (
    AlreadySettled,
    HistoryRemoved,
    InvalidInput,
    LimitExceeded,
    PayloadRemoved,
    SchemaMismatch,
    TransactionNotGiven,
)
from txnqueue.testing import plain_schema

DAY = 86_400


def consume(manager: Any, name: str, limit: int = 1_000) -> tuple[list[Any], int]:
    """Consume in a transaction, and return what was received and the commit."""
    with manager.transaction() as tx:
        found = tx.queue(name).receive(limit).messages()
    return found, tx.receipt.commit_seq


@on_delta_when_long
def test_what_was_consumed_between_two_commits_is_shown_as_it_was(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2, 3, 4, 5), headers={"who": "me"})
    first, one = consume(manager, orders.name, 2)
    second, two = consume(manager, orders.name, 2)
    version = client_of(manager).store.journal.version()
    everything = orders.replay()
    assert everything.messages() == first + second
    assert len(everything) == 4
    assert orders.replay(upto=one).messages() == first
    assert orders.replay(after=one).messages() == second
    assert orders.replay(after=one, upto=two).messages() == second
    assert orders.replay(after=two).messages() == []
    if world.has_frames:
        frame = orders.replay(after=one).df
        assert sorted(row["n"] for row in frame.collect()) == [3, 4]
        assert frame.columns == orders.peek().columns
        assert numbers(orders.replay(where="n % 2 = 0")) == [2, 4]
        with pytest.raises(InvalidInput):
            orders.replay(where="no_column = 1")
    assert client_of(manager).store.journal.version() == version
    assert orders.depth() == 1


@in_memory
def test_the_first_ones_are_shown_if_there_is_a_limit(world: World) -> None:
    queue = world.queue(lanes=2)
    for n in range(0, 9, 3):
        queue.send(rows(n, n + 1, n + 2))
        queue.receive(9).accept()
    every = numbers(queue.replay())
    assert sorted(every) == list(range(9))
    for limit in range(1, 11):
        assert numbers(queue.replay(limit=limit)) == every[:limit]
    for wrong in (0, -1):
        with pytest.raises(LimitExceeded):
            queue.replay(limit=wrong)


@in_memory
def test_only_what_was_accepted_is_in_it(world: World) -> None:
    orders, manager = world.queue(dead_letter=True), world.manager("b")
    other = world.queue("other")
    orders.send(rows(1, 2, 3, 4, 5, 6))
    with manager.transaction() as tx:
        batch = tx.queue(orders.name).receive(3)
        batch.reject(matching=[batch.messages()[0]], reason="bad")
        batch.move(other.name, matching=[batch.messages()[1]])
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        tx.rollback()
    leased = orders.receive(1)
    leased.accept()
    orders.purge()
    consume(manager, other.name)
    assert numbers(orders.replay()) == [3, 4]
    assert [m["_message"]["delivery_count"] for m in orders.replay().messages()] == [0, 1]
    (moved,) = other.replay().messages()
    assert (moved["n"], moved["_message"]["origin"]["queue"]) == (2, orders.name)


@in_memory
def test_what_lost_its_claim_before_the_commit_is_not_in_it_twice(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    slow = world.manager("slow")
    late = slow.transaction()
    batch = late.queue(orders.name).receive()
    assert len(batch) == 1
    world.lease_over()
    consume(world.manager("fast"), orders.name)
    with pytest.raises(Exception, match="aborted"):
        late.commit()
    assert numbers(orders.replay()) == [1]


@in_memory
def test_it_cannot_be_settled(world: World) -> None:
    orders = world.queue()
    other = world.queue("other")
    orders.send(rows(1, 2))
    orders.receive().accept()
    replay = orders.replay()
    refused: list[Callable[[], object]] = [
        replay.accept,
        replay.release,
        lambda: replay.reject(reason="x"),
        replay.modify,
        lambda: replay.accept(matching=replay.messages()[:1]),
        lambda: replay.move(other.name),
        replay.keep,
        lambda: replay.extend_lease(10),
        replay.heartbeat,
        lambda: orders.replay(after=1 << 40).accept(),
    ]
    for call in refused[:-1]:
        with pytest.raises(AlreadySettled, match=r"resend\(batch\)"):
            call()
    with pytest.raises(InvalidInput):
        refused[-1]()
    with pytest.raises(AlreadySettled), world.manager("b").transaction() as tx:
        replay.accept(transaction=tx)
    assert (replay.holds, replay.held_until, lease_over(replay)) == (False, None, False)
    assert "ReplayedBatch of 2" in repr(replay)


@in_memory
def test_a_queue_that_was_altered_shows_its_new_columns_as_null(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    orders.receive().accept()
    orders.alter(add=plain_schema("extra string"))
    (message,) = orders.replay().messages()
    assert (message["n"], message["extra"]) == (1, None)


@in_memory
def test_what_was_dropped_is_replayed_as_long_as_its_payload_is_there(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1))
    consume(manager, orders.name)
    manager.drop_queue(orders.name)
    assert numbers(orders.replay()) == [1]


@on_delta_when_long
def test_payload_that_was_removed_is_missed_at_once(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2))
    _, gone = consume(manager, orders.name)
    replay = orders.replay()
    payload, payload_id = client_of(manager).store.payload, orders.info.payload_id
    payload.drop(payload_id, payload.slices(payload_id))  # as maintain() does
    with pytest.raises(PayloadRemoved, match=f"after={gone}"):
        orders.replay()
    assert orders.replay(after=gone).messages() == []
    assert len(orders.replay(partial=True)) == 0
    with pytest.raises(PayloadRemoved):
        replay.messages()


@in_memory
def test_history_that_was_removed_is_missed_at_once(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2))
    consume(manager, orders.name, 1)
    for _ in range(4):
        world.clock.advance(20 * DAY)
        orders.send(rows(7))
        manager.maintain(payload_retention_days=7, history_retention_days=7, vacuum=False)
    horizon = manager.history.horizon()
    assert horizon > 1024
    with pytest.raises(HistoryRemoved):
        orders.replay(after=0)
    consume(manager, orders.name)
    assert numbers(orders.replay(after=horizon)) == [2, 7, 7, 7, 7]


@in_memory
def test_a_handler_takes_it_as_any_batch(world: World) -> None:
    """A handler that was mended is run again on what the old one had consumed."""
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1, 2, 3))

    def bill(batch: Any, tx: Any, factor: int = 1) -> None:
        tx.queue(bills.name).send(rows(*[factor * n for n in numbers(batch)]))

    orders.drain(bill)
    assert numbers(bills.receive(9)) == [1, 2, 3]
    with manager.transaction() as tx:
        bill(orders.replay(), tx, 10)
    assert numbers(bills.receive(9)) == [10, 20, 30]
    assert (len(orders.replay()), orders.depth(), orders.in_flight()) == (3, 0, 0)


@on_delta_when_long
def test_what_was_consumed_can_be_sent_anew_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, manager = world.queue(lanes=1), world.manager("b")
    retry = world.queue("retry", lanes=1)
    orders.send(rows(1, 2), headers={"who": "me"})
    world.clock.advance(1)
    orders.send(rows(3))
    first = orders.receive().messages()
    orders.receive()
    world.lease_over()
    consume(manager, orders.name)
    for _ in range(2):
        with manager.transaction(world.name("again")) as tx:
            result = tx.queue(retry.name).resend(orders.replay())
    assert (result.count, tx.already_committed) == (0, True)
    found = retry.peek_messages()
    assert numbers(found) == [1, 2, 3]
    origins = [m["_message"]["id"] for m in first]
    assert [m["_message"]["headers"] for m in found] == [
        {"who": "me", "txnqueue.origin": origins[0]},
        {"who": "me", "txnqueue.origin": origins[1]},
        {"txnqueue.origin": origins[2]},
    ]
    if world.has_frames:
        monkeypatch.setattr(copies, "_ROWS_HERE_MAX", 0)
        retry.purge()
        assert retry.resend(orders.replay()).count == 3
        assert retry.peek_messages() != found
        assert [(m["n"], m["_message"]["headers"]) for m in retry.peek_messages()] == [
            (m["n"], m["_message"]["headers"]) for m in found
        ]


@in_memory
def test_copies_are_checked_as_any_send(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    narrow = manager.create_queue(world.name("narrow"), plain_schema("n long"))
    named = manager.create_queue(
        world.name("named"), plain_schema("header0 long, Header1 string"), dead_letter=False
    )
    orders.send(rows(1))
    consume(manager, orders.name)
    with pytest.raises(SchemaMismatch):
        narrow.resend(orders.replay())
    with pytest.raises(InvalidInput, match="send"):
        orders.resend([{"n": 1}])
    with pytest.raises(TransactionNotGiven), manager.transaction():
        manager.queue(orders.name).resend(orders.replay())
    assert orders.resend(orders.replay(where=None, after=0)).count == 1
    named.send([{"header0": 7, "Header1": "x"}], headers={"header0": "mine"})
    with manager.transaction() as tx:
        tx.queue(named.name).receive()
    assert named.resend(named.replay()).count == 1
    (message,) = named.receive().messages()
    assert (message["header0"], message["_message"]["headers"]["header0"]) == (7, "mine")
    orders.purge()
    orders.send(rows(4), headers={"reply_to": "me"}, durable=False)
    fleeting = orders.receive()
    assert orders.resend(fleeting).count == 1
    (message,) = orders.peek_messages()
    about, (first,) = message["_message"], fleeting.messages()
    assert (message["n"], about["reply_to"]) == (4, "me")
    assert about["headers"]["txnqueue.origin"] == first["_message"]["id"] != about["id"]
    assert orders.resend(orders.replay(after=manager.history.as_of().commit_seq)).count == 0
