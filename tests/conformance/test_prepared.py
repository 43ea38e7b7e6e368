"""Prepared transactions, and what recovery finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, pick, rows
from tests.inside import client_of
from tests.silence import interrupted
from txnqueue import Status, Transaction
from txnqueue.errors import (
    SettlementPending,
    TransactionAborted,
    TransactionFinished,
    TransactionNotFound,
)


def prepare(world: World, orders: Any, client: str = "b") -> Any:
    """Prepare a transaction that received one message and sent another one."""
    tx = world.manager(client).transaction(world.name("two-phase"))
    tx.queue(orders.name).receive(1)
    tx.queue(orders.name).send(rows(9))
    tx.prepare()
    return tx


@in_memory
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("decide", ["commit", "prepare", "rollback"])
@pytest.mark.parametrize("leased", [True, False])
def test_a_prepare_that_was_interrupted_is_gone_on_from(
    world: World, decide: str, lands: bool, leased: bool
) -> None:
    """It has landed or not: no call waits for itself, or takes itself for a rival."""
    orders = world.open(world.queue(), "b")
    orders.send(rows(1))
    manager = world.manager("c")
    mine = manager.queue(orders.name)
    tx = manager.transaction()
    batch = mine.receive(1, transaction=None if leased else tx)
    batch.accept(transaction=tx)
    mine.send(rows(9), transaction=tx)
    with interrupted(client_of(manager).store.journal, lands=lands):
        tx.prepare()
    before = client_of(manager).runtime.now_ms()
    getattr(tx, decide)()
    assert client_of(manager).runtime.now_ms() == before, "it waited"
    if decide == "prepare":
        assert (tx.status, world.manager("x").recover().prepared) == (Status.PREPARED, (tx.id,))
        tx.commit()
    committed = decide != "rollback"
    assert numbers(orders.peek_messages()) == ([9] if committed else [] if leased else [1])
    assert orders.in_flight() == (not committed and leased)
    assert world.manager("x").recover().prepared == ()
    assert world.manager("x").history.verify().ok


@in_memory
@pytest.mark.parametrize("lands", [True, False])
def test_a_block_that_is_interrupted_as_it_prepares_stays_prepared_if_it_is(
    world: World, lands: bool
) -> None:
    """As one stays that is interrupted right afterwards: others may have seen it prepared."""
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("c").transaction()
    tx.queue(orders.name).receive(1)
    with interrupted(world.store.journal, lands=lands), tx:
        tx.prepare()
    assert tx.status is (Status.PREPARED if lands else Status.ROLLED_BACK)
    assert world.manager("x").recover().prepared == (tx.id,) * lands
    assert orders.depth() == (0 if lands else 1)


@in_memory
@pytest.mark.parametrize("decide", ["commit", "prepare"])
def test_who_goes_on_with_what_others_have_rolled_back_is_told_so(
    world: World, decide: str
) -> None:
    orders = world.queue()
    tx = world.manager("c").transaction()
    tx.queue(orders.name).send(rows(9))
    with interrupted(world.store.journal, lands=True):
        tx.prepare()
    world.manager("b").rollback(tx.id)
    with pytest.raises(TransactionAborted, match=r"aborted by .*: rolled back"):
        getattr(tx, decide)()


@on_delta_when_long
def test_a_prepared_transaction_survives_until_anybody_commits_it(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = prepare(world, orders)
    world.lease_over()
    other = world.manager("c")
    assert (len(other.queue(orders.name).receive()), orders.depth()) == (0, 0)
    assert other.outcome(tx.id).status is Status.PREPARED
    receipt = other.commit(tx.id)
    assert numbers(orders.peek_messages()) == [9]
    assert other.commit(tx.id) == tx.commit() == receipt
    with pytest.raises(TransactionFinished):
        other.rollback(tx.id)


@in_memory
def test_a_prepared_transaction_takes_no_more_work(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = prepare(world, orders)
    with pytest.raises(TransactionFinished, match="prepared"):
        tx.queue(orders.name).send(rows(2))
    tx.rollback()


@on_delta_when_long
def test_rolled_back_by_anybody_a_prepared_transaction_gives_everything_back(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = prepare(world, orders)
    other = world.manager("c")
    other.rollback(tx.id, reason="the other side said no")
    assert numbers(orders.peek_messages()) == [1]
    assert other.outcome(tx.id).reason == "the other side said no"
    other.rollback(tx.id)
    with pytest.raises(TransactionFinished):
        other.commit(tx.id)


@on_delta_when_long
def test_what_was_held_under_a_lease_stays_so_when_a_prepared_transaction_is_rolled_back(
    world: World,
) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1))
    batch = manager.queue(orders.name).receive()
    tx = manager.transaction()
    batch.accept(transaction=tx)
    tx.prepare()
    world.lease_over()
    assert len(orders.receive()) == 0  # it is about to be settled
    tx.rollback()
    assert orders.in_flight() == 1
    assert numbers(orders.receive()) == [1]


@in_memory
def test_after_a_rollback_a_lease_is_respected_by_other_attempts_of_the_id_too(
    world: World,
) -> None:
    orders, night = world.queue(), world.name("night")
    orders.send(rows(1))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    tx = manager.transaction(night)
    batch.accept(transaction=tx)
    tx.prepare()
    tx.rollback()
    with world.manager("c").transaction(night) as again:
        assert len(again.queue(orders.name).receive()) == 0


@in_memory
def test_a_prepared_attempt_keeps_other_attempts_of_its_id_from_committing(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    prepare(world, orders)
    rival = world.manager("c").transaction(world.name("two-phase"))
    rival.queue(orders.name).send(rows(5))
    with pytest.raises(TransactionAborted, match="prepared"):
        rival.commit()
    world.manager("d").commit(world.name("two-phase"))
    assert numbers(orders.peek_messages()) == [9]


@in_memory
def test_a_decision_through_an_old_handle_does_not_decide_another_attempt(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    old = prepare(world, orders)
    world.manager("c").rollback(old.id)
    new = prepare(world, orders, "d")
    with pytest.raises(TransactionFinished):
        old.commit()
    assert world.manager("c").outcome(new.id).status is Status.PREPARED
    new.rollback()


@in_memory
def test_an_id_that_was_committed_is_so_whatever_an_earlier_attempt_had_prepared(
    world: World,
) -> None:
    orders, other = world.queue(), world.manager("c")
    orders.send(rows(1))
    old = prepare(world, orders)
    other.rollback(old.id)
    with world.manager("d").transaction(old.id) as tx:
        tx.queue(orders.name).send(rows(2))
    receipt = other.commit(old.id)
    assert tx.receipt is not None and receipt.commit_seq == tx.receipt.commit_seq
    for decide in (
        lambda: other.rollback(old.id),
        lambda: other.decide_heuristically(old.id, commit=False, reason="gone"),
    ):
        with pytest.raises(TransactionFinished, match="already committed"):
            decide()


@in_memory
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
def test_who_settles_the_rest_of_what_a_prepared_one_settles_waits_for_it(
    world: World, commit: bool
) -> None:
    orders = world.queue()
    orders.send(rows(1, 2, 3))
    manager = world.manager("b")
    held = manager.queue(orders.name).receive()
    waiting, other = manager.transaction(), manager.transaction()
    held.accept(matching=pick(held, 1), transaction=waiting)
    held.accept(matching=pick(held, 2), transaction=other)
    waiting.prepare()
    before = client_of(orders).store.journal.version()
    for decide in (other.commit, other.prepare):
        with pytest.raises(SettlementPending, match=f"{waiting.id}.*decide it first"):
            decide()
    assert (other.status, client_of(orders).store.journal.version()) == (Status.ACTIVE, before)
    waiting.commit() if commit else waiting.rollback()
    other.commit()
    assert held.release() == (1 if commit else 2)
    assert numbers(orders.peek_messages()) == ([3] if commit else [1, 3])


@in_memory
def test_only_what_is_prepared_can_be_decided_by_its_id(world: World) -> None:
    world.queue()
    for decide in (world.manager("c").commit, world.manager("c").rollback):
        with pytest.raises(TransactionNotFound):
            decide(world.name("never"))


def test_recovery_aborts_what_dead_clients_left_and_lists_what_is_prepared(alone: World) -> None:
    orders = alone.queue()
    orders.send(rows(1, 2))
    waiting = prepare(alone, orders)
    dead = alone.manager("d").transaction()
    dead.queue(orders.name).receive()
    alive = alone.manager("c")
    assert alive.recover().aborted == ()  # its lease is not over yet
    alone.lease_over()
    recovery = alive.recover()
    assert (recovery.aborted, recovery.released) == ((dead.id,), 1)
    assert recovery.prepared == (waiting.id,)
    assert alive.recover().aborted == ()
    assert numbers(orders.peek_messages()) == [2]


@in_memory
@pytest.mark.parametrize("during", ["dead", "late"])
def test_recovery_aborts_nothing_whose_lease_is_extended_meanwhile(
    world: World, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while another transaction is aborted, or between the look and the append."""
    orders = world.queue(lease_seconds=10)
    orders.send(rows(1, 2, 3, 4))
    dead, late = (world.manager(name).transaction(name) for name in ("dead", "late"))
    taken, held = dead.queue(orders.name).receive(2), late.queue(orders.name).receive(2)
    assert (len(taken), len(held)) == (2, 2)
    world.clock.advance(11)
    append = world.store.journal.append

    def beside(units: Any, metadata: Any) -> Any:
        if metadata["transaction_id"] == during:
            monkeypatch.setattr(world.store.journal, "append", append)
            held.extend_lease(600)
        return append(units, metadata)

    monkeypatch.setattr(world.store.journal, "append", beside)
    recovery = world.manager("c").recover()
    assert (recovery.aborted, recovery.released) == (("dead",), 2)
    assert numbers(orders.receive()) == numbers(taken)
    late.commit()
    assert orders.depth() == 0 and world.manager().history.verify().ok


@in_memory
def test_those_who_settle_in_a_lane_hold_up_no_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue(lease_seconds=10)
    orders.send(rows(1, 2, 3))
    dead = world.manager("d").transaction()
    dead.queue(orders.name).receive(1)
    world.clock.advance(9)
    busy = world.open(orders, "busy").receive(2)
    world.clock.advance(2)
    append, tries = world.store.journal.append, list[str]()

    def beside(units: Any, metadata: Any) -> Any:
        if metadata["transaction_id"] == dead.id:
            tries.append(dead.id)
            busy.accept(matching=busy.messages()[:1])
        return append(units, metadata)

    monkeypatch.setattr(world.store.journal, "append", beside)
    assert world.manager("c").recover().aborted == (dead.id,) == tuple(tries)


@in_memory
def test_a_prepare_that_lands_late_is_found_by_the_append_that_meets_it(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    manager, journal = world.manager("b"), world.store.journal
    tx = manager.transaction()
    manager.queue(orders.name).receive(1, transaction=tx)
    append, first = journal.append, list[Any]()

    def interrupts(*asked: Any) -> Any:
        first.append(asked)
        journal.append = late
        raise KeyboardInterrupt

    def late(*asked: Any) -> Any:  # it waited for its turn, and comes before what follows it
        journal.append = append
        append(*first[0])
        return append(*asked)

    journal.append = interrupts
    with pytest.raises(KeyboardInterrupt):
        tx.prepare()
    with pytest.raises(TransactionFinished, match="already prepared"):
        tx.commit()
    assert tx.status is Status.PREPARED
    tx.commit()
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def _hanging(world: World) -> tuple[Any, Transaction]:
    """Make a queue whose message an undecided transaction holds."""
    orders = world.queue()
    orders.send(rows(1))
    hanging = world.manager("b").transaction(world.name("job"))
    hanging.queue(orders.name).receive()
    return orders, hanging


@on_delta_when_long
def test_repeating_an_operators_rollback_changes_nothing(world: World) -> None:
    orders, hanging = _hanging(world)
    operator = world.manager("operator")
    operator.rollback(hanging.id, "it hangs")
    operator.rollback(hanging.id, "once more")
    assert operator.outcome(hanging.id).reason == "it hangs"
    for decide in (
        operator.commit,
        lambda key: operator.decide_heuristically(key, commit=False, reason="late"),
    ):
        with pytest.raises(TransactionFinished, match="already rolled_back"):
            decide(hanging.id)
    assert numbers(orders.peek_messages()) == [1]


@on_delta_when_long
def test_what_its_own_client_has_committed_is_told_to_be_committed(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    with manager.transaction(world.name("job")) as tx:
        tx.queue(orders.name).send(rows(1))
    operator = world.manager("operator")
    assert operator.commit(tx.id) == tx.receipt
    for decide in (
        operator.rollback,
        lambda key: operator.decide_heuristically(key, commit=True, reason="late"),
    ):
        with pytest.raises(TransactionFinished, match="already committed") as raised:
            decide(tx.id)
        assert raised.value.transaction_id == tx.id
    assert numbers(orders.peek_messages()) == [1]


@on_delta_when_long
def test_a_rollback_ends_an_attempt_beside_the_one_that_was_committed(world: World) -> None:
    orders, hanging = _hanging(world)
    with world.manager("c").transaction(hanging.id) as tx:
        tx.queue(orders.name).send(rows(2))
    world.manager("operator").rollback(hanging.id, "it hangs")
    assert sorted(numbers(orders.peek_messages())) == [1, 2]
    with pytest.raises(TransactionAborted):
        hanging.commit()
