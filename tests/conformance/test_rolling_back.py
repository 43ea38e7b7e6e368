"""``Rollback`` raised in a handler means what ``tx.rollback(reason)`` means there."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, rows
from tests.conformance.test_transactions import leave
from txnqueue import Rollback, Status
from txnqueue.errors import (
    HandlerFailed,
    InvalidInput,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.protocols.flow import DataSource, MessageFlow
from txnqueue.sink import _MicroBatch
from txnqueue.testing import memory_manager

REASON = "too few"


def reasons(world: World) -> list[str | None]:
    """List the reasons of the rollbacks in the journal."""
    entries = world.store.journal.read_all().entries
    return [entry.reason for entry in entries if entry.kind == "rolled_back"]


def of_counted(world: World) -> list[bool]:
    """List whether the rollbacks in the journal counted as deliveries."""
    entries = world.store.journal.read_all().entries
    return [e.body.get("counted", True) for e in entries if e.kind == "rolled_back"]


def test_it_may_be_copied_and_come_from_another_process() -> None:
    asked = Rollback(reason=REASON)
    for one in (copy.copy(asked), copy.deepcopy(asked), pickle.loads(pickle.dumps(asked))):
        assert (one.transaction, one.reason, str(one)) == (None, REASON, str(asked))
    for_it = Rollback(memory_manager().transaction())
    assert copy.copy(for_it).transaction is for_it.transaction


@in_memory
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("how", ["raised", "raised for it", "called"])
def test_a_drain_records_the_reason_and_charges_the_messages(
    world: World, how: str, ahead: int
) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))

    def handler(batch: Any, tx: Any) -> None:
        tx.queue(orders.name).send(rows(3))
        if how == "called":
            tx.rollback(REASON)
        else:
            leave(Rollback(tx if how == "raised for it" else None, reason=REASON))

    with pytest.raises(HandlerFailed, match="by its handler \\(too few\\)") as failed:
        orders.drain(handler, errors_max=2, ahead=ahead)
    error = failed.value.result.last_error
    assert isinstance(error, TransactionAborted)
    assert error.reason == REASON
    assert reasons(world) == [REASON] * 2
    assert of_counted(world) == [True, False]  # the first failure of a run that had no success
    assert numbers(orders.receive()) == [1, 2]


@in_memory
def test_a_rollback_that_counts_no_delivery_is_not_the_failure_that_counts(world: World) -> None:
    """The first failure of a run is charged; this one was not."""
    orders, tries = world.queue(), []
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        tries.append(batch.messages()[0]["_message"]["delivery_count"])
        tx.rollback(REASON, counted=len(tries) > 1)

    with pytest.raises(HandlerFailed):
        orders.drain(handler, errors_max=3)
    assert of_counted(world) == [False, True, False]


@in_memory
def test_a_message_that_was_rolled_back_too_often_says_why_it_is_dead(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(1))
    orders.drain(lambda batch, tx: leave(Rollback(reason=REASON)), errors_max=2)
    (dead,) = world.manager().queue(f"{orders.name}.dead").receive().messages()
    assert dead["_message"]["origin"]["error"] == REASON


@in_memory
def test_a_rollback_of_another_transaction_is_an_error_of_the_handler(world: World) -> None:
    orders, manager = world.queue(), world.manager()
    orders.send(rows(1))
    other = manager.transaction()
    with pytest.raises(HandlerFailed) as failed:
        orders.drain(lambda batch, tx: leave(Rollback(other)), errors_max=1)
    assert isinstance(failed.value.__cause__, Rollback)


@in_memory
@pytest.mark.parametrize("how", ["raised", "raised for it", "raised in a block inside"])
def test_a_repeated_block_that_is_committed_already_is_left_without_an_error(
    world: World, how: str
) -> None:
    """A receive gets nothing there, so that too few messages are what it is about to find."""
    orders, manager, ends = world.queue(), world.manager(), list[str]()
    orders.send(rows(1, 2))

    def job() -> Any:
        with manager.transaction("nightly") as tx:
            tx.auxiliary("ledger", Ledger(ends)).execute("INSERT")
            if len(tx.queue(orders.name).receive(2)) == 2:
                return tx
            if how == "raised in a block inside":
                with manager.transaction() as inside:
                    inside.queue(orders.name).send(rows(3))
                    leave(Rollback(tx, reason=REASON))
            leave(Rollback(tx if how == "raised for it" else None, reason=REASON))
        return tx

    first = job()
    for _ in range(2):
        again = job()
        assert again.already_committed and again.status is Status.COMMITTED
        assert again.receipt == first.receipt
    assert ends == ["commit", "rollback", "rollback"]
    assert (reasons(world), orders.depth()) == ([], 0)


@in_memory
def test_a_rollback_that_is_called_for_what_is_committed_already_is_an_error(world: World) -> None:
    manager = world.manager()
    orders = world.queue()
    for _ in range(2):
        with manager.transaction("nightly") as tx:
            tx.queue(orders.name).send(rows(1))
    with pytest.raises(TransactionFinished), manager.transaction("nightly") as tx:
        tx.queue(orders.name).receive()
        tx.rollback(REASON)
    with pytest.raises(TransactionFinished), manager.transaction() as tx:
        tx.queue(orders.name).send(rows(2))
        tx.commit()
        raise Rollback(reason=REASON)  # it was committed here, and cannot be undone
    assert numbers(orders.receive()) == [1, 2]


@in_memory
def test_a_rehearsal_is_rolled_back_without_an_error(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    found = world.manager().rehearse(lambda batch, tx: leave(Rollback(reason=REASON)), orders)
    assert (found.rolled_back, found.error) == (True, None)


@in_memory
def test_a_transaction_that_is_run_says_why_it_was_rolled_back(world: World) -> None:
    world.queue()
    with pytest.raises(TransactionAborted, match=REASON) as failed:
        world.manager().run_transaction(lambda tx: leave(Rollback(reason=REASON)))
    assert failed.value.reason == REASON


def in_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sink believe that a streaming query calls it with batch 1."""
    batch = _MicroBatch("q", 1, None, None)
    monkeypatch.setattr(_MicroBatch, "of", classmethod(lambda cls, *_given: batch))


@in_memory
@pytest.mark.parametrize("how", ["raised", "called"])
def test_a_sink_whose_handler_rolls_back_does_not_lose_the_batch(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query would go on with the next batch."""
    world.queue()
    in_a_query(monkeypatch)

    def handler(df: Any, tx: Any) -> None:
        tx.rollback(REASON) if how == "called" else leave(Rollback(reason=REASON))

    with pytest.raises(TransactionAborted, match=REASON):
        world.manager().sink(handler)(None, 1)  # type: ignore[arg-type]
    world.manager().sink(lambda df, tx: None)(None, 1)  # type: ignore[arg-type]


@in_memory
@pytest.mark.parametrize("how", ["prepared", "unknown"])
def test_a_sink_whose_handler_leaves_the_batch_undecided_does_not_lose_it(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch counted as written, but waited for a decision, or had not landed."""
    orders, journal = world.queue(), world.store.journal
    in_a_query(monkeypatch)

    def unreachable(*_given: Any) -> Any:
        raise OSError

    def handler(df: Any, tx: Any) -> None:
        tx.queue(orders.name).send(rows(1))
        if how == "prepared":
            tx.prepare()
            return
        with monkeypatch.context() as storage, suppress(TransactionUnknown):
            storage.setattr(journal, "append", unreachable)
            storage.setattr(journal, "read", unreachable)
            tx.commit()

    with pytest.raises(TransactionFinished, match=how) as left:
        world.manager().sink(handler)(None, 1)  # type: ignore[arg-type]
    assert orders.depth() == 0
    if how == "prepared":
        world.manager().rollback(str(left.value.transaction_id))

    def again(df: Any, tx: Any) -> None:
        tx.queue(orders.name).send(rows(1))

    world.manager().sink(again)(None, 1)  # type: ignore[arg-type]
    assert numbers(orders.receive()) == [1]


@in_memory
def test_a_handler_of_a_sink_may_commit_and_then_the_batch_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of nothing failed the query: it was to be rolled back again."""
    orders = world.queue()
    in_a_query(monkeypatch)

    def handler(df: Any, tx: Any) -> None:
        if df is not None:
            tx.queue(orders.name).send(df)
        tx.commit()

    world.manager().sink(handler, name="empty")(None, 1)  # type: ignore[arg-type]
    world.manager().sink(handler)(rows(1), 1)  # type: ignore[arg-type]
    assert numbers(orders.receive()) == [1]


class Ledger:
    """A database that notes how its transactions ended."""

    def __init__(self, ends: list[str]) -> None:
        self._ends = ends

    def cursor(self) -> Any:
        """Return something that executes statements."""
        return self

    def execute(self, *given: Any) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Note it."""
        self._ends.append("commit")

    def rollback(self) -> None:
        """Note it."""
        self._ends.append("rollback")

    def close(self) -> None:
        """Do nothing."""


@in_memory
def test_a_sink_commits_what_its_handler_left_open_in_an_auxiliary_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without other work it was rolled back, and the query went on."""
    world.queue()
    in_a_query(monkeypatch)
    ends = list[str]()

    def handler(df: Any, tx: Any) -> None:
        tx.auxiliary("ledger", Ledger(ends)).execute("INSERT")

    world.manager().sink(handler)(None, 1)  # type: ignore[arg-type]
    assert ends == ["commit"]


@in_memory
def test_a_node_that_rolls_back_leaves_no_transaction_open(world: World) -> None:
    """The message counted as processed, and auxiliary transactions stayed open."""
    orders, ends = world.queue(deliveries_max=2), list[str]()
    orders.send(rows(1))

    def node(processing: Any) -> None:
        processing.execute("ledger", "INSERT", uncoordinated=True)
        raise Rollback(reason=REASON)

    source = DataSource("ledger", lambda: Ledger(ends))
    flow = MessageFlow(world.manager(), orders.name, [node], data_sources=[source])
    with pytest.raises(TransactionAborted, match=REASON):
        flow.process()
    assert ends == ["rollback"]
    assert numbers(orders.receive()) == [1]


@in_memory
def test_a_reason_is_said_as_such(world: World) -> None:
    """``Rollback("too few")`` left no block, because no transaction is called that."""
    orders, wrong = world.queue(), REASON
    tx = world.manager().transaction()
    with pytest.raises(InvalidInput, match="reason="), tx:
        tx.queue(orders.name).send(rows(1))
        raise Rollback(wrong)  # type: ignore[arg-type]
    assert (tx.status, orders.depth()) == (Status.ROLLED_BACK, 0)
