"""Every past state can be asked for again."""

import datetime

import pytest

from tests.conformance.conftest import in_memory, numbers, pick, rows
from txnqueue.errors import InvalidInput


def counts(snapshot, queue):
    """Read one queue's row of a snapshot, without what is zero."""
    (row,) = [row for row in snapshot.queue_rows() if row["queue"] == queue.name]
    return {name: n for name, n in row.items() if isinstance(n, int) and n and name != "lanes"}


def test_the_state_after_any_commit_can_be_seen_again(world):
    orders, manager = world.queue(), world.manager("b")
    first = orders.send(rows(1, 2, 3)).receipt
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(2)
    orders.send(rows(4))
    then, later = (manager.history.as_of(r.commit_seq) for r in (first, tx.receipt))
    assert counts(then, orders) == {"posted": 3, "available": 3}
    assert counts(later, orders) == {"posted": 3, "available": 1, "accepted": 2}
    assert numbers(then.message_rows(orders.name).to_pylist()) == [1, 2, 3]
    assert counts(manager.history.as_of(), orders)["posted"] == 4


@in_memory
def test_the_state_at_an_instant_can_be_seen_again(world):
    orders = world.queue()
    world.clock.advance(60)
    orders.send(rows(1))
    instant = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000, datetime.timezone.utc)
    world.clock.advance(60)
    orders.receive().accept()
    history = world.manager("b").history
    assert counts(history.as_of(timestamp=instant), orders) == {"posted": 1, "available": 1}
    before = history.as_of(timestamp=instant - datetime.timedelta(seconds=1))
    assert counts(before, orders) == {}


@in_memory
def test_what_is_not_a_commit_or_an_instant_is_refused(world):
    orders, history = world.queue(), world.manager("b").history
    newest = orders.send(rows(1)).receipt.commit_seq
    naive = datetime.datetime(2024, 1, 1)
    refused = [
        lambda: history.as_of(newest + 1024),
        lambda: history.as_of(-1),
        lambda: history.as_of("yesterday"),
        lambda: history.as_of(timestamp=naive),
        lambda: history.as_of(newest, timestamp=naive),
        lambda: history.trace(),
        lambda: history.trace("nonsense"),
    ]
    for call in refused:
        with pytest.raises(InvalidInput):
            call()


def test_a_message_can_be_followed_through_the_store(world):
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2))
    ids = [m["_message"]["id"] for m in orders.peek_messages()]
    orders.receive().release()
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        batch.reject(matching=pick(batch, 2), reason="bad")
    one, two = map(world.manager().history.trace, ids)
    steps = ["sent", "claimed", "released", "claimed"]
    assert [row["step"] for row in one] == [*steps, "accepted"]
    assert {row["step"] for row in two[len(steps) :]} == {"rejected", "moved"}
    assert (one[-1]["transaction_id"], one[-1]["decision"]) == (tx.id, "committed")
    assert one[-1]["actor"] == world.name("b")


def test_transactions_and_dispatches_are_listed_with_who_and_why(world):
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("b").transaction(world.name("night"))
    tx.queue(orders.name).receive()
    tx.rollback("no")
    snapshot = world.manager().history.as_of()
    (row,) = [r for r in snapshot.transaction_rows() if r["transaction_id"] == tx.id]
    assert (row["status"], row["reason"], row["actor"]) == ("rolled_back", "no", world.name("b"))
    kinds = [r["kind"] for r in snapshot.dispatch_rows() if r["queue"] == orders.name]
    assert kinds == ["posted", "claimed", "released"]
