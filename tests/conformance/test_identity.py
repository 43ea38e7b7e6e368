"""A transaction's id names the work: it happens once, however often it is run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from txnqueue import Status
from txnqueue.errors import TransactionAborted, TransactionIdReused


def test_under_an_id_that_was_committed_nothing_happens_again(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    receipts = []
    for client in ("b", "c"):
        with world.manager(client).transaction(world.name("night")) as tx:
            tx.queue(orders.name).receive()
            sent = tx.queue(orders.name).send(rows(2))
        receipts.append(tx.receipt)
    assert receipts[0] == receipts[1]
    assert (tx.already_committed, sent.count, sent.receipt) == (True, 0, receipts[0])
    assert numbers(orders.peek_messages()) == [2]


@on_delta_when_long
def test_an_id_may_be_what_something_else_in_the_journal_is_called(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1))
    names = ("lane/0", "horizon", "queue", "catalog", "participant/sales", orders.info.queue_id)
    ids = [*names, world.name("night")]
    for name in ids:
        with manager.transaction(name) as tx:
            tx.queue(orders.name).send(rows(2))
            tx.queue(orders.name).receive(1)
            tx.prepare()
    for _ in range(3):  # so much later that what is finished leaves the journal
        world.clock.advance(2 * 86_400)
        orders.send(rows(3))
        orders.receive(1).accept()
        manager.maintain()
    assert set(manager.recover().prepared) >= set(ids)
    for name in ids:
        assert world.manager("c").commit(name) == world.manager("d").outcome(name).receipt
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_a_reused_id_is_told_by_its_digest(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    night = world.name("night")
    with manager.transaction(night, digest="monday") as tx:
        tx.queue(orders.name).send(rows(1))
    with manager.transaction(night, digest="monday") as same:
        assert same.already_committed
    with pytest.raises(TransactionIdReused) as caught, manager.transaction(night, digest="tuesday"):
        pass
    assert (caught.value.transaction_id, caught.value.digest) == (night, "monday")


@on_delta_when_long
def test_a_rollback_ends_the_attempt_not_the_id(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1))
    night = world.name("night")
    tx = manager.transaction(night)
    tx.queue(orders.name).receive()
    tx.rollback("changed my mind")
    assert manager.outcome(night).status is Status.ROLLED_BACK
    assert manager.outcome(night).reason == "changed my mind"
    with manager.transaction(night) as again:
        assert len(again.queue(orders.name).receive()) == 1
    assert (again.already_committed, again.status) == (False, Status.COMMITTED)
    assert manager.outcome(night).receipt == again.receipt


@on_delta_when_long
def test_of_two_attempts_at_once_one_is_committed(world: World) -> None:
    orders, night = world.queue(), world.name("night")
    one, two = (world.manager(client).transaction(night) for client in ("b", "c"))
    one.queue(orders.name).send(rows(1))
    two.queue(orders.name).send(rows(2))
    receipt = one.commit()
    with pytest.raises(TransactionAborted) as caught:
        two.commit()
    assert caught.value.receipt == receipt
    assert numbers(orders.peek_messages()) == [1]


@in_memory
def test_a_fresh_attempt_takes_the_messages_of_an_older_one_at_once(world: World) -> None:
    orders, night = world.queue(), world.name("night")
    orders.send(rows(1))
    old, new = (world.manager(client).transaction(night) for client in ("b", "c"))
    assert len(old.queue(orders.name).receive()) == 1
    assert len(new.queue(orders.name).receive()) == 1
    with pytest.raises(TransactionAborted):
        old.commit()
    new.commit()
    assert (orders.depth(), orders.in_flight()) == (0, 0)


@on_delta_when_long
def test_run_transaction_under_a_committed_id_does_not_run_the_handler(world: World) -> None:
    orders, manager, ran = world.queue(), world.manager("b"), []

    def handler(tx: Any) -> None:
        ran.append(tx)
        tx.queue(orders.name).send(rows(1))

    receipts = [
        manager.run_transaction(handler, transaction_id=world.name("night")) for _ in range(2)
    ]
    assert receipts[0] == receipts[1]
    assert (len(ran), orders.depth()) == (1, 1)
    assert list(manager.attempts(transaction_id=world.name("night"))) == []


@in_memory
def test_nobody_knows_an_id_that_was_never_used(world: World) -> None:
    world.queue()
    outcome = world.manager("b").outcome(world.name("never"))
    assert (outcome.status, outcome.receipt, outcome.attempts) == (Status.UNDECIDED, None, 0)
