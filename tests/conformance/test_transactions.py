"""Transactions: all or nothing, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, pick, rows
from tests.inside import attempt_id, client_of
from txnqueue import RetryPolicy, Rollback, Status
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
    TransactionNotGiven,
    TransactionUnknown,
)


class Oops(Exception):
    """A handler's own error."""


def test_everything_happens_at_the_commit_and_nothing_before(world: World) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1, 2))
    manager = world.manager("b")
    with manager.transaction() as tx:
        batch = tx.queue(orders.name).receive()
        tx.queue(invoices.name).send(batch.messages())
        assert (orders.in_flight(), invoices.depth()) == (2, 0)
    assert tx.status is Status.COMMITTED
    assert (orders.depth(), orders.in_flight(), invoices.depth()) == (0, 0, 2)


@on_delta_when_long
def test_an_exception_rolls_everything_back_and_goes_on(world: World) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1, 2))
    with pytest.raises(Oops), world.manager("b").transaction() as tx:
        tx.queue(invoices.name).send(tx.queue(orders.name).receive(1).messages())
        raise Oops
    assert tx.status is Status.ROLLED_BACK
    assert (orders.in_flight(), invoices.depth()) == (0, 0)
    again = orders.receive()
    assert numbers(again) == [1]  # alone: fresh messages do not share its fate
    assert again.messages()[0]["_message"]["delivery_count"] == 1


@in_memory
def test_receipts_number_commits_in_the_order_in_which_they_happened(world: World) -> None:
    orders = world.queue()
    receipts = [orders.send(rows(n)).receipt for n in range(3)]
    assert [r.commit_seq for r in receipts] == sorted({r.commit_seq for r in receipts})
    assert all(r.commit_seq >> 10 == r.journal_version and r.applied for r in receipts)


@in_memory
def test_a_transaction_that_did_nothing_writes_nothing(world: World) -> None:
    orders = world.queue()
    before = orders.send(rows(1)).receipt.journal_version
    with world.manager("b").transaction() as tx:
        assert numbers(orders.peek_messages()) == [1]
    assert tx.status is Status.COMMITTED
    assert orders.send(rows(2)).receipt.journal_version == before + 1


@on_delta_when_long
def test_what_is_released_inside_goes_back_and_the_rest_is_accepted(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2, 3))
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        assert batch.release(matching=pick(batch, 2)) == 1
    again = orders.receive()
    assert numbers(again) == [2]
    assert again.messages()[0]["_message"]["delivery_count"] == 0


@on_delta_when_long
def test_accepting_a_part_inside_releases_the_rest(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2, 3))
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        batch.accept(matching=pick(batch, 1))
    assert numbers(orders.peek_messages()) == [2, 3]


@in_memory
def test_accepting_a_part_inside_releases_the_rest_in_every_lane(world: World) -> None:
    orders = world.queue(lanes=3)
    orders.send(rows(1, 2, 3))
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        batch.accept(matching=pick(batch, 1))
    assert sorted(numbers(orders.peek_messages())) == [2, 3]


def test_a_transaction_whose_lease_is_over_can_be_aborted_by_whoever_wants_its_messages(
    world: World,
) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1))
    tx = world.manager("b").transaction(lease_seconds=60)
    tx.queue(orders.name).receive()
    tx.queue(invoices.name).send(rows(9))
    world.clock.advance(61)
    assert numbers(orders.receive()) == [1]
    with pytest.raises(TransactionAborted, match=r"lease over\. Run it again, for longer work"):
        tx.commit()
    assert (tx.status, invoices.depth(), orders.in_flight()) == (Status.ROLLED_BACK, 0, 1)


@in_memory
def test_a_transaction_whose_lease_is_over_can_still_commit(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    with world.manager("b").transaction() as tx:
        tx.queue(orders.name).receive()
        world.lease_over()
    assert len(orders.receive()) == 0


@in_memory
def test_a_transaction_whose_lease_is_over_can_receive_more(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    with world.manager("b").transaction() as tx:
        assert numbers(tx.queue(orders.name).receive(1)) == [1]
        world.lease_over()
        assert numbers(tx.queue(orders.name).receive(1)) == [2]
    assert (orders.depth(), orders.in_flight()) == (0, 0)


# ----------------------------------------------------------------- messages held under a lease


@on_delta_when_long
def test_what_was_held_under_a_lease_can_be_settled_inside(world: World) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1, 2, 3))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    with manager.transaction() as tx:
        assert batch.accept(matching=pick(batch, 1, 3), transaction=tx) == 2
        tx.queue(invoices.name).send(rows(9))
        assert (orders.in_flight(), invoices.depth()) == (3, 0)
    assert (orders.in_flight(), invoices.depth()) == (1, 1)
    assert batch.release() == 1  # the rest of the batch stayed with its holder
    assert numbers(orders.peek_messages()) == [2]


@on_delta_when_long
def test_rolled_back_what_was_held_under_a_lease_stays_with_its_holder(world: World) -> None:
    """The other flavour: acquired outside of the transaction, it does not go back."""
    orders = world.queue()
    orders.send(rows(1, 2))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    with pytest.raises(Oops), manager.transaction() as tx:
        batch.accept(matching=pick(batch, 1), transaction=tx)
        raise Oops
    assert len(orders.receive()) == 0
    assert batch.accept() == 2


@on_delta_when_long
def test_a_lease_lost_inside_rolls_the_transaction_back(world: World) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    tx = manager.transaction()
    batch.accept(transaction=tx)
    manager.queue(invoices.name).send(rows(9), transaction=tx)
    world.lease_over()
    assert len(orders.receive()) == 1
    with pytest.raises(LeaseLost):
        tx.commit()
    assert (tx.status, invoices.depth(), orders.in_flight()) == (Status.ROLLED_BACK, 0, 1)


@in_memory
def test_what_is_rejected_at_once_is_not_rejected_again_by_a_later_commit(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    batch.reject(matching=pick(batch, 1), reason="bad")
    with manager.transaction() as tx:
        batch.accept(transaction=tx)
    assert manager.queue(f"{orders.name}.dead").depth() == 1


@in_memory
@pytest.mark.parametrize("first", ["at once", "another transaction"])
def test_what_is_settled_elsewhere_meanwhile_is_not_settled_again_by_a_commit(
    world: World, first: Any
) -> None:
    """A message is retired once: who comes second is told."""
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2))
    manager = world.manager("b")
    batch = manager.queue(orders.name).receive()
    tx, other = manager.transaction(), manager.transaction()
    batch.reject(matching=pick(batch, 1), reason="bad", transaction=tx)
    try:
        target = other if first == "another transaction" else None
        batch.reject(matching=pick(batch, 1), reason="worse", transaction=target)
        other.commit()
        tx.commit()
    except (AlreadySettled, LeaseLost):
        pass
    assert manager.queue(f"{orders.name}.dead").depth() == 1


# ----------------------------------------------------------------------- a forgotten argument


@on_delta_when_long
def test_inside_a_block_a_call_says_in_which_transaction_it_works(world: World) -> None:
    manager = world.manager("b")
    orders = manager.queue(world.queue().name)
    orders.send(rows(1))
    leased = orders.receive()
    with manager.transaction(world.name("id")) as tx:
        calls: list[Callable[[], object]] = [
            lambda: orders.send(rows(2)),
            orders.receive,
            leased.accept,
            leased.release,
            leased.reject,
        ]
        for call in calls:
            with pytest.raises(TransactionNotGiven, match=tx.id) as caught:
                call()
            assert "transaction=tx" in str(caught.value)
            assert "transaction=None" in str(caught.value)
        assert (orders.depth(), numbers(orders.peek_messages())) == (0, [])
    assert leased.accept() == 1


@in_memory
def test_inside_a_block_none_means_at_once_and_tx_queue_needs_no_argument(world: World) -> None:
    manager = world.manager("b")
    orders = manager.queue(world.queue().name)
    with pytest.raises(Oops), manager.transaction() as tx:
        orders.send(rows(1), transaction=None)
        orders.send(rows(2), transaction=tx)
        tx.queue(orders.name).send(rows(3))
        tx.queue(orders.name).send(rows(4), transaction=None)
        raise Oops
    assert numbers(orders.peek_messages()) == [1, 4]


@in_memory
def test_another_managers_calls_stand_outside_of_the_block(world: World) -> None:
    orders = world.queue()
    with pytest.raises(Oops), world.manager("b").transaction():
        orders.send(rows(1))
        raise Oops
    assert orders.depth() == 1


@in_memory
def test_a_handler_of_a_drain_stands_in_a_block(world: World) -> None:
    manager = world.manager("b")
    orders = manager.queue(world.queue().name)
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        with pytest.raises(TransactionNotGiven):
            orders.send(rows(2))

    assert orders.drain(handler).messages == 1


# --------------------------------------------------------------------------- single use


@in_memory
def test_a_transaction_that_ended_takes_no_more_work(world: World) -> None:
    orders = world.queue()
    manager = world.manager("b")
    for end in ("commit", "rollback"):
        tx = manager.transaction()
        tx.queue(orders.name).send(rows(1))
        getattr(tx, end)()
        calls: list[Any] = [
            lambda tx=tx: manager.queue(orders.name).send(rows(2), transaction=tx),
            tx.__enter__,
            tx.rollback if end == "commit" else tx.prepare,
        ]
        for call in calls:
            with pytest.raises(TransactionFinished) as told:
                call()
            assert told.value.transaction_id == tx.id
    assert orders.depth() == 1


@in_memory
def test_a_batch_is_settled_in_the_transaction_that_received_it(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    manager = world.manager("b")
    with manager.transaction() as tx:
        batch = tx.queue(orders.name).receive()
        for other in (None, manager.transaction()):
            with pytest.raises(TransactionMismatch) as told:
                batch.accept(transaction=other)
            assert told.value.transaction_id == tx.id
        assert batch.release(transaction=tx) == 1
    assert orders.depth() == 1


@in_memory
def test_a_queue_works_in_its_own_managers_transactions(world: World) -> None:
    orders = world.queue()
    tx = world.manager("b").transaction()
    with pytest.raises(TransactionMismatch, match=r"tx\.queue") as told:
        orders.send(rows(1), transaction=tx)
    assert told.value.transaction_id == tx.id
    assert orders.depth() == 0


# --------------------------------------------------------------------------- run again


@in_memory
def test_run_transaction_runs_again_after_a_conflict_and_commits_once(world: World) -> None:
    orders, tries = world.queue(), []

    def handler(tx: Any) -> None:
        tries.append(attempt_id(tx))
        tx.queue(orders.name).send(rows(len(tries)))
        if len(tries) < 3:
            raise TransactionAborted("somebody was faster", transaction_id="t")

    receipt = world.manager("b").run_transaction(handler)
    assert len(set(tries)) == 3
    assert numbers(orders.peek_messages()) == [3]
    assert receipt.commit_seq > 0


@in_memory
def test_a_handlers_own_error_is_not_tried_again(world: World) -> None:
    tries = []

    def handler(tx: Any) -> None:
        tries.append(tx)
        raise Oops

    world.queue()
    with pytest.raises(Oops):
        world.manager("b").run_transaction(handler)
    assert [tx.status for tx in tries] == [Status.ROLLED_BACK]


@in_memory
def test_attempts_are_bounded(world: World) -> None:
    world.queue()
    tries = []
    with pytest.raises(TransactionAborted):
        for attempt in world.manager("b").attempts(RetryPolicy(attempts_max=3)):
            with attempt as tx:
                tries.append(tx.id)
                raise TransactionAborted(transaction_id="t")
    assert len(tries) == 3
    assert len(set(tries)) == 1


@in_memory
def test_an_attempt_that_is_lost_settles_the_lease_again(world: World) -> None:
    """What an attempt promised is forgotten with it: the next one can promise it again."""
    orders = world.queue()
    orders.send(rows(1))
    manager = world.manager("b")
    batch, tries = manager.queue(orders.name).receive(), []

    def handler(tx: Any) -> None:
        tries.append(batch.accept(transaction=tx))
        if len(tries) == 1:
            raise TransactionAborted(transaction_id="t")

    manager.run_transaction(handler)
    assert (tries, orders.in_flight()) == ([1, 1], 0)


def leave(rollback: Rollback) -> None:
    """Raise it, where a type checker does not see that nothing comes after."""
    raise rollback


@on_delta_when_long
def test_rollback_leaves_a_block_without_an_error_and_nothing_happened(world: World) -> None:
    orders, manager = world.queue(), world.manager()
    with manager.transaction() as tx:
        tx.queue(orders.name).send(rows(1))
        leave(Rollback(reason="too few"))
    assert (tx.status, orders.depth()) == (Status.ROLLED_BACK, 0)
    assert manager.history.verify().ok


@on_delta_when_long
def test_rollback_of_an_outer_transaction_leaves_the_inner_block_too(world: World) -> None:
    orders, manager = world.queue(), world.manager()
    reached = []
    with manager.transaction() as outer:
        with manager.transaction() as inner:
            inner.queue(orders.name).send(rows(1))
            leave(Rollback(outer))
        reached.append("behind the inner block")
    assert (outer.status, inner.status) == (Status.ROLLED_BACK, Status.ROLLED_BACK)
    assert (reached, orders.depth()) == ([], 0)


@on_delta_when_long
def test_rollback_of_what_is_committed_is_an_error(world: World) -> None:
    orders, tx = world.queue(), world.manager().transaction()
    with pytest.raises(TransactionFinished), tx:
        tx.queue(orders.name).send(rows(1))
        tx.commit()
        raise Rollback()


@on_delta_when_long
def test_rollback_ends_the_attempts(world: World) -> None:
    orders, manager = world.queue(), world.manager()

    def give_up(tx: Any) -> None:
        tx.queue(orders.name).send(rows(1))
        raise Rollback()

    with pytest.raises(TransactionAborted, match="by its handler"):
        manager.run_transaction(give_up)
    tries = []
    for attempt in manager.attempts():
        with attempt as tx:
            tries.append(tx.id)
            give_up(tx)
    assert (len(tries), orders.depth()) == (1, 0)


@in_memory
def test_an_attempt_whose_block_was_forgotten_is_told(world: World) -> None:
    """The loop ended as if all was well: nothing was sent, and the messages were held."""
    orders, manager = world.queue(), world.manager()
    orders.send(rows(1))
    with pytest.raises(InvalidInput, match="with attempt as tx"):
        for attempt in manager.attempts():
            assert numbers(attempt.queue(orders.name).receive()) == [1]
    assert attempt.status is Status.ROLLED_BACK
    for attempt in manager.attempts():  # who decides himself needs no block
        attempt.queue(orders.name).receive().accept()
        attempt.commit()
    assert (orders.depth(), orders.in_flight()) == (0, 0)


@in_memory
def test_an_id_that_could_not_be_looked_up_is_looked_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first decision has left the journal: nothing else keeps the second one out."""
    queue, manager = world.queue(), world.manager("b")
    job = world.name("job")
    with manager.transaction(job) as tx:
        tx.queue(queue.name).send(rows(1))
    for _ in range(3):
        world.clock.advance(20 * 86_400)
        queue.send(rows(7))
        manager.maintain(transaction_seconds_max=0)
    repeated = manager.transaction(job)
    cache, asked = client_of(manager).cache, list[str]()
    states = cache.key_state

    def fails_once(key: str, *args: Any) -> Any:
        asked.append(key)
        if len(asked) == 1:
            raise OSError("no answer")
        return states(key, *args)

    monkeypatch.setattr(cache, "key_state", fails_once)
    here = manager.queue(queue.name)
    with pytest.raises(OSError, match="no answer"):
        here.send(rows(1), transaction=repeated)
    here.send(rows(1), transaction=repeated)
    assert repeated.already_committed
    repeated.commit()
    assert numbers(queue.peek_messages(99)).count(1) == 1


@in_memory
def test_what_is_in_doubt_is_to_be_asked_for_and_not_to_be_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, manager = world.queue(), world.manager("b")
    tx = manager.transaction()
    manager.queue(queue.name).send(rows(1), transaction=tx)
    journal = client_of(manager).store.journal

    def no_answer(*_: Any) -> NoReturn:
        raise ConnectionError("no reply")

    with monkeypatch.context() as silent:
        silent.setattr(journal, "append", no_answer)
        with pytest.raises(TransactionUnknown):
            tx.commit()
    for again in (tx.commit, lambda: manager.queue(queue.name).send(rows(2), transaction=tx)):
        with pytest.raises(TransactionFinished, match=r"outcome\('.*or roll it back"):
            again()
    tx.rollback()
    assert queue.depth() == 0


@in_memory
def test_a_drain_inside_a_block_is_refused(world: World) -> None:
    queue, manager = world.queue(), world.manager("b")
    queue.send(rows(1, 2, 3))
    with pytest.raises(TransactionNotGiven, match="drain"), manager.transaction():
        manager.queue(queue.name).drain(lambda batch, tx: None)
    assert queue.depth() == 3


@in_memory
def test_what_takes_effect_at_once_is_no_call_of_a_queue_in_a_transaction(world: World) -> None:
    """All its calls work in the transaction: without a block, too."""
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("b").transaction()
    mine = tx.queue(orders.name)
    for act in (
        mine.purge,
        mine.drop,
        lambda: mine.alter("note string"),
        lambda: mine.drain(lambda batch, tx: None),
        lambda: mine.stream(lambda batch, tx: None),
    ):
        with pytest.raises(TransactionNotGiven, match=tx.id):
            act()
    tx.rollback()
    assert numbers(orders.peek_messages()) == [1]
