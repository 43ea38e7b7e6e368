"""Answers are about what was asked: attempts in doubt, steps of one message, counts, errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory
from tests.faults.injection import Fault, FaultyStore, Injector
from tests.inside import beside
from txnqueue import QueueManager
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    TransactionAborted,
    TransactionNotGiven,
    TransactionUnknown,
)
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

ROWS = [{"n": n, "key": "a"} for n in range(4)]


class Doubt:
    """An attempt of ``job`` in doubt, after another one that was rolled back."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.other = QueueManager(None, "m", store=self.store, runtime=runtime(self.clock, "o"))
        queue = self.other.create_queue("orders", "n long, key string", dead_letter=False)
        queue.send(ROWS)
        with self.other.transaction("job") as first:
            queue.receive(1, transaction=first)
            first.rollback("first run failed")
        self.injector = Injector(0, Fault.LANDS_LATE)
        store: Any = FaultyStore(self.store, self.injector)
        manager = QueueManager(None, "m", store=store, runtime=runtime(self.clock, "d"))
        tx = manager.transaction("job")
        tx.queue("orders").receive(2)
        tx.queue("orders").send(ROWS[:1])
        self.injector.arm()
        store.journal.read = store.journal.append = self._away(store.journal.append)
        with pytest.raises(TransactionUnknown) as raised:
            tx.commit()
        self.error = raised.value

    def _away(self, append: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            if not self.injector.late:
                return append(*given, **more)
            raise ConnectionError("the storage is away")

        return call


def test_an_attempt_in_doubt_is_unknown_though_another_was_rolled_back() -> None:
    doubt = Doubt()
    found = doubt.other.outcome(doubt.error.transaction_id, doubt.error.attempt)
    assert (found.status.value, "may still land" in str(found.reason)) == ("undecided", True)
    assert f"attempt={doubt.error.attempt!r}" in str(doubt.error)
    doubt.injector.flush()
    found = doubt.other.outcome("job", doubt.error.attempt)
    assert found.status.value == "committed" and found.receipt is not None


def test_an_attempt_is_not_called_prepared_because_another_is() -> None:
    doubt = Doubt()
    other = doubt.other.transaction("job")
    other.queue("orders").send(ROWS[:1])
    other.prepare()
    assert doubt.other.outcome("job").status.value == "prepared"
    assert doubt.other.outcome("job", doubt.error.attempt).status.value == "undecided"


def test_an_attempt_is_not_called_committed_because_another_is() -> None:
    """Its client would believe that the messages that it has received are settled."""
    doubt = Doubt()
    with doubt.other.transaction("job") as other:
        other.queue("orders").send(ROWS[:1])
    doubt.injector.flush()
    found = doubt.other.outcome("job", doubt.error.attempt)
    assert (found.status.value, found.receipt) == ("rolled_back", None)
    assert "another attempt" in str(found.reason)
    assert doubt.other.outcome("job").status.value == "committed"


def test_an_attempt_in_doubt_is_ended_by_a_rollback_that_names_it() -> None:
    doubt = Doubt()
    doubt.other.rollback("job", "in doubt since noon", doubt.error.attempt)
    doubt.injector.flush()
    found = doubt.other.outcome("job", doubt.error.attempt)
    assert (found.status.value, found.reason) == ("rolled_back", "in doubt since noon")
    assert doubt.other.queue("orders").depth() == 4


def test_an_attempt_below_the_horizon_was_never_decided() -> None:
    doubt = Doubt()
    doubt.clock.advance(10 * 86_400)
    doubt.other.queue("orders").send(ROWS)
    doubt.clock.advance(10 * 86_400)
    doubt.other.recover()
    doubt.other.maintain(transaction_seconds_max=3_600, payload_retention_days=0)
    doubt.injector.flush()
    assert doubt.other.outcome("job", doubt.error.attempt).status.value == "rolled_back"
    with pytest.raises(InvalidInput, match="attempt"):
        doubt.other.outcome("job", "x")


@in_memory
def test_a_trace_tells_only_what_was_done_to_the_message(world: World) -> None:
    queue = world.queue(lanes=1)
    queue.send(ROWS)
    batch = queue.receive(4)
    messages = batch.messages()
    batch.accept(matching=messages[0:1])
    batch.release(matching=messages[1:2])
    batch.extend_lease(600)
    with world.manager().transaction() as no:
        no.rollback()
    batch.accept(matching=messages[2:3])
    history = world.manager("auditor").history
    steps = [[s["step"] for s in history.trace(m["_message"]["id"]).rows()] for m in messages]
    assert steps == [
        ["sent", "claimed", "accepted"],
        ["sent", "claimed", "released"],
        ["sent", "claimed", "lease_extended", "accepted"],
        ["sent", "claimed", "lease_extended"],
    ]


@in_memory
def test_a_commit_that_takes_one_message_is_no_step_of_the_others(world: World) -> None:
    queue = world.queue(lanes=1)
    queue.send(ROWS)
    batch = queue.receive(4)
    messages = batch.messages()
    with beside(queue) as tx:
        batch.accept(matching=messages[:1], transaction=tx)
    history = world.manager("auditor").history
    steps = [[s["step"] for s in history.trace(m["_message"]["id"]).rows()] for m in messages[:2]]
    assert steps == [["sent", "claimed", "accepted"], ["sent", "claimed"]]


@in_memory
def test_what_is_left_of_a_batch_may_be_nothing_depending_on_the_data(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(ROWS)
    batch = queue.receive(4)
    assert batch.move(other.name, matching=batch.messages()) == 4
    assert batch.accept() == 0
    with pytest.raises(AlreadySettled):
        batch.accept()
    assert other.depth() == 4


@in_memory
def test_what_no_transaction_holds_back_is_refused_inside_a_block(world: World) -> None:
    manager = world.manager()
    queue = manager.create_queue(world.name("q"), "n long", dead_letter=False)
    with pytest.raises(TransactionNotGiven, match="before or after the block"):
        with manager.transaction():
            manager.create_queue(world.name("new"), "n long")
    with pytest.raises(TransactionNotGiven, match="before or after the block"):
        with manager.transaction():
            manager.create_exchange(world.name("new"), schema="n long")
    as_it_is, new = ({name: {"schema": "n long"}} for name in (queue.name, world.name("new")))
    nothing: dict[str, Any] = {}
    for declared in (as_it_is, new, nothing):
        with pytest.raises(TransactionNotGiven, match=r"declare .* before or after the block"):
            with manager.transaction():
                manager.declare({"queues": declared})
    with manager.transaction():
        assert manager.declare({"queues": as_it_is}, dry_run=True) == []  # which has no effect
    assert manager.list_queues() == [queue.name]
    with manager.transaction() as tx:
        tx.queue(queue.name).send([{"n": 1}])
        tx.commit()
        with pytest.raises(TransactionNotGiven) as raised:
            queue.send([{"n": 2}])
        assert "transaction=tx" not in str(raised.value) and "committed" in str(raised.value)
        assert queue.send([{"n": 2}], transaction=None).count == 1
    assert queue.depth() == 2


@in_memory
def test_an_aborted_attempt_is_told_apart_from_one_in_doubt(world: World) -> None:
    queue = world.queue()
    queue.send(ROWS)
    stuck = world.manager("stuck").transaction(world.name("t"))
    stuck.queue(queue.name).receive(2)
    world.manager("operator").rollback(stuck.id, "hangs")
    with pytest.raises(TransactionAborted):
        stuck.commit()


@pytest.mark.parametrize("key", ["append:orders@2024", "append:orders@transaction/3", "append:@"])
def test_a_transaction_may_be_named_as_an_append_is(key: str) -> None:
    manager = QueueManager(None, store=MemoryStore())
    orders = manager.create_queue("orders", "n long, key string")
    assert manager.outcome(key).status.value == "undecided"
    receipts = [
        manager.run_transaction(
            lambda tx: orders.send(ROWS[:1], transaction=tx), transaction_id=key
        )
        for _ in range(2)
    ]
    assert receipts[0] == receipts[1] == manager.outcome(key).receipt
    assert orders.depth() == 1
    memory = f"{key} in memory"
    with manager.transaction(memory) as tx:
        orders.send(ROWS[:1], transaction=tx, durable=False)
    assert manager.outcome(memory).status.value == "committed"
