"""What a transaction acquired and keeps: after its commit it is held under a lease."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, pick, rows
from tests.inside import lease_over
from txnqueue import Status
from txnqueue.errors import LeaseLost, StoreBusy, TransactionAborted, TransactionFinished


@on_delta_when_long
def test_what_is_kept_is_settled_after_the_commit(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2, 3))
    manager = world.manager("b")
    mine = manager.queue(orders.name)
    with manager.transaction() as tx:
        batch = mine.receive(transaction=tx)
        batch.accept(matching=pick(batch, 1), transaction=tx)
        batch.keep()
    assert (orders.depth(), orders.in_flight()) == (0, 2)
    assert len(orders.receive()) == 0
    with manager.transaction() as later:
        batch.reject(matching=pick(batch, 2), transaction=later)
    assert batch.release() == 1
    assert numbers(orders.receive()) == [3]


@in_memory
def test_a_roll_back_gives_back_what_was_to_be_kept(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("b").transaction()
    batch = tx.queue(orders.name).receive()
    batch.keep()
    tx.rollback()
    assert numbers(orders.receive()) == [1]
    with pytest.raises(TransactionFinished):
        batch.keep()


@in_memory
def test_the_lease_of_what_is_kept_ends_like_every_other(world: World) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    tx = world.manager("b").transaction(lease_seconds=5)
    batch = tx.queue(orders.name).receive()
    batch.keep()
    world.clock.advance(4)
    tx.commit()
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 60_000
    world.clock.advance(59)
    assert len(orders.receive()) == 0
    batch.extend_lease(10)
    world.clock.advance(11)
    taken = orders.receive()
    assert taken.messages()[0]["_message"]["delivery_count"] == 1
    with pytest.raises(LeaseLost):
        batch.accept()


@in_memory
def test_a_new_instance_of_the_consumer_takes_over_what_is_kept(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    with world.manager("b").transaction() as tx:
        tx.queue(orders.name).receive().keep()
    assert numbers(world.open(orders, "b").receive()) == [1]


@in_memory
def test_prepared_and_kept(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    tx = world.manager("b").transaction("prepared-and-kept")
    batch = tx.queue(orders.name).receive()
    batch.accept(matching=pick(batch, 1), transaction=tx)
    batch.keep()
    tx.prepare()
    world.clock.advance(3_600)
    world.manager("c").commit(tx.id)
    assert (orders.depth(), orders.in_flight()) == (0, 1)
    assert not len(orders.receive())  # its lease begins with the commit
    world.lease_over()
    assert numbers(orders.receive()) == [2]


@in_memory
def test_a_batch_knows_that_its_lease_begins_with_the_commit_of_what_was_prepared(
    world: World,
) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    tx = world.manager("b").transaction("prepared-and-kept")
    batch = tx.queue(orders.name).receive()
    batch.keep()
    tx.prepare()
    world.clock.advance(3_600)
    tx.commit()
    assert tx.commit() == tx.receipt
    assert batch.held_until is not None and not lease_over(batch)
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 60_000
    batch.accept()


@in_memory
@pytest.mark.parametrize("who", ["b", "c"])
@pytest.mark.parametrize("settle", ["accept", "release"])
def test_what_was_kept_is_settled_after_its_prepared_transaction_was_decided_by_its_id(
    world: World, who: str, settle: str
) -> None:
    """The batch went on saying that the transaction is prepared and takes no more work."""
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1, 2))
    manager = world.manager("b")
    tx = manager.transaction("prepared-and-kept")
    batch = tx.queue(orders.name).receive()
    batch.accept(matching=pick(batch, 1), transaction=tx)
    batch.keep()
    tx.prepare()
    with pytest.raises(TransactionFinished, match=r"is prepared .* commit it or roll it back"):
        batch.accept()
    world.clock.advance(3_600)
    (manager if who == "b" else world.manager(who)).commit(tx.id)
    world.clock.advance(30)
    assert getattr(batch, settle)() == 1
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 30_000
    assert (orders.depth(), orders.in_flight()) == (settle == "release", 0)
    assert tx.status is Status.COMMITTED
    assert world.manager().history.verify().ok


@in_memory
def test_what_was_to_be_kept_is_nobodys_after_its_prepared_transaction_was_rolled_back_by_its_id(
    world: World,
) -> None:
    orders = world.queue()
    orders.send(rows(1))
    manager = world.manager("b")
    tx = manager.transaction("prepared-and-kept")
    batch = tx.queue(orders.name).receive()
    batch.keep()
    tx.prepare()
    world.manager("c").rollback(tx.id)
    with pytest.raises(TransactionFinished, match="rolled_back"):
        batch.accept()
    assert tx.status is Status.ROLLED_BACK
    assert numbers(orders.receive()) == [1]


@in_memory
def test_keeping_says_nothing_of_a_batch_that_is_held_under_a_lease(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    batch = orders.receive()
    batch.keep()
    assert batch.accept() == 1
    assert world.manager().history.verify().ok


@in_memory
@pytest.mark.parametrize("prepared", [True, False])
def test_a_commit_shortens_no_lease_that_was_extended_while_it_was_on_its_way(
    world: World, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    manager = world.manager("b")
    tx = manager.transaction("kept")
    batch = tx.queue(orders.name).receive()
    batch.keep()
    if prepared:
        tx.prepare()
        world.clock.advance(1)
        batch.extend_lease(3_600)
        world.clock.advance(1)
        tx.commit()
    else:
        append = world.store.journal.append

        def later(*given: Any) -> Any:
            monkeypatch.undo()
            batch.extend_lease(3_600)
            return append(*given)

        monkeypatch.setattr(world.store.journal, "append", later)
        tx.commit()
    extended_ms = world.clock.now_ms + 3_600_000 - prepared * 1_000
    assert batch.held_until.timestamp() * 1000 == extended_ms
    world.clock.advance(3_590)
    assert not lease_over(batch)
    assert len(orders.receive()) == 0
    assert len(world.open(orders, "c").receive()) == 0  # whose fold begins with all of it
    assert batch.accept() == 1


@in_memory
def test_a_short_extension_of_what_is_prepared_does_not_shorten_the_lease(world: World) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1))
    tx = world.manager("b").transaction("kept")
    batch = tx.queue(orders.name).receive()
    batch.keep()
    tx.prepare()
    batch.extend_lease(2)
    world.clock.advance(1)
    tx.commit()
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 60_000
    world.clock.advance(59)
    assert len(orders.receive()) == 0
    assert batch.accept() == 1


def refused(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """Keep a batch by a commit that the store refuses, when 200 seconds of its 300 are over."""
    orders = world.queue(lease_seconds=300)
    orders.send(rows(1))
    tx = world.manager("b").transaction()
    batch = tx.queue(orders.name).receive()
    until, append = batch.held_until, world.store.journal.append
    batch.keep()
    world.clock.advance(200)

    def refuse(*_: Any) -> Any:
        monkeypatch.setattr(world.store.journal, "append", append)
        raise StoreBusy(owner=None)

    monkeypatch.setattr(world.store.journal, "append", refuse)
    with pytest.raises(StoreBusy):
        tx.commit()
    assert tx.status is Status.ACTIVE and batch.held_until == until
    return orders, tx, batch


@in_memory
def test_a_commit_that_did_not_land_has_kept_nothing_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch went on to tell a lease of a commit that the store had refused."""
    orders, tx, batch = refused(world, monkeypatch)
    world.clock.advance(101)
    assert lease_over(batch)
    assert numbers(orders.receive()) == [1]
    with pytest.raises(TransactionAborted, match="lease over"):
        tx.commit()


@in_memory
def test_a_commit_that_lands_at_the_second_try_keeps_from_then_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, tx, batch = refused(world, monkeypatch)
    world.clock.advance(50)
    tx.commit()
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 300_000
    world.clock.advance(299)
    assert not lease_over(batch) and not len(orders.receive())
    assert batch.accept() == 1


@in_memory
@pytest.mark.parametrize("both", [True, False])
def test_what_is_kept_in_memory_is_held_from_the_commit_on(world: World, both: bool) -> None:
    orders = world.queue(lease_seconds=60)
    orders.send(rows(1), durable=False)
    if both:
        orders.send(rows(2))
    tx = world.manager("b").transaction()
    batch = tx.queue(orders.name).receive()
    batch.keep()
    world.clock.advance(50)
    tx.commit()
    assert batch.held_until.timestamp() * 1000 == world.clock.now_ms + 60_000
    world.clock.advance(59)
    assert not lease_over(batch) and not len(orders.receive())
    assert batch.accept() == 1 + both
