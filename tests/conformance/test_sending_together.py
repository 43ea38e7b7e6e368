"""One call that sends to several queues: all of it is sent, or nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.inside import attempt_of, client_of
from txnqueue.errors import (
    InvalidInput,
    QueueNotFound,
    SchemaMismatch,
    TransactionFinished,
)


@on_delta_when_long
def test_rows_reach_each_queue_by_the_commit(world: World) -> None:
    names = [world.queue(word).name for word in ("a", "b", "c")]
    manager = world.manager("sender")
    with manager.transaction() as tx:
        sent = tx.send({name: rows(n, n + 10) for n, name in enumerate(names)})
        assert [manager.queue(name).depth() for name in names] == [0, 0, 0]
    assert [sent[name].count for name in names] == [2, 2, 2]
    assert {result.transaction_id for result in sent.values()} == {tx.id}
    found = {name: manager.queue(name).receive() for name in names}
    assert [numbers(found[name]) for name in names] == [[0, 10], [1, 11], [2, 12]]
    for name in names:
        sends = {message["_message"]["send_id"] for message in found[name].messages()}
        assert sends == {sent[name].send_id}


@on_delta_when_long
def test_a_frame_that_does_not_fit_keeps_the_others_from_being_sent(world: World) -> None:
    good, other = world.queue("a"), world.queue("b")
    manager = world.manager("sender")
    with manager.transaction() as tx:
        tx.queue(good.name).send(rows(1))
        with pytest.raises(SchemaMismatch):
            tx.send({good.name: rows(2), other.name: [{"wrong": 5}]})
        tx.queue(other.name).send(rows(3))
    assert numbers(good.receive()) == [1]
    assert numbers(other.receive()) == [3]


@in_memory
def test_what_is_in_memory_is_sent_with_the_rest_or_not_at_all(world: World) -> None:
    kept, passing = world.queue("a"), world.queue("b", durable=False)
    manager = world.manager("sender")
    fleeting = manager.queue(passing.name)
    with manager.transaction() as tx:
        with pytest.raises(SchemaMismatch):
            tx.send({passing.name: [{"wrong": 5}], kept.name: rows(1)})
        with pytest.raises(SchemaMismatch):
            tx.send({passing.name: rows(1), kept.name: [{"wrong": 5}]})
        assert not attempt_of(tx).staged
        assert tx.send({passing.name: rows(2), kept.name: rows(3)})[passing.name].count == 1
    assert (numbers(fleeting.receive()), numbers(kept.receive())) == ([2], [3])


@in_memory
def test_what_does_not_name_queues_is_refused_and_nothing_is_sent(world: World) -> None:
    orders = world.queue()
    no_names: list[Any] = [rows(1), {}, {5: rows(1)}, None]
    with world.manager("sender").transaction() as tx:
        for wrong in no_names:
            with pytest.raises(InvalidInput):
                tx.send(wrong)
        with pytest.raises(QueueNotFound):
            tx.send({orders.name: rows(1), "nowhere": rows(2)})
    assert orders.depth() == 0
    with pytest.raises(TransactionFinished):
        tx.send({orders.name: rows(1)})


@in_memory
def test_an_id_that_was_committed_sends_nothing_again(world: World) -> None:
    orders, key = world.queue(), world.name("k")
    for _ in range(2):
        with world.manager("sender").transaction(key) as tx:
            sent = tx.send({orders.name: rows(1)})
    assert (sent[orders.name].count, sent[orders.name].receipt) == (0, tx.receipt)
    assert orders.depth() == 1


@in_memory
def test_queues_without_rows_are_left_out_of_the_commit(world: World) -> None:
    orders, others = world.queue("a"), world.queue("b")
    with world.manager("sender").transaction() as tx:
        assert tx.send({orders.name: [], others.name: rows(1)})[orders.name].count == 0
    assert (orders.depth(), others.depth()) == (0, 1)


class Crowd:
    """A payload store each of whose stagings waits until so many are under way."""

    def __init__(self, store: Any, count: int) -> None:
        self._stage, self._barrier = store.payload.stage, threading.Barrier(count, timeout=20)
        store.payload.stage = self

    def __call__(self, send: Any, rows: Any) -> Any:
        self._barrier.wait()
        return self._stage(send, rows)


@in_memory
def test_the_rows_are_staged_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [world.queue(word).name for word in ("a", "b", "c")]
    monkeypatch.setattr("pyspark.util.inheritable_thread_target", lambda session: lambda act: act)
    monkeypatch.setattr(world.store, "spark", object())  # there are threads where there is Spark
    manager = world.manager("sender")
    Crowd(world.store, 3)
    with manager.transaction() as tx:
        tx.send({name: rows(n) for n, name in enumerate(names)})
    assert [numbers(manager.queue(name).receive()) for name in names] == [[0], [1], [2]]


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_what_another_thread_sends_meanwhile_stays_if_a_send_to_several_queues_fails(
    world: World, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = world.queue("slow", durable=durable), world.queue("other")
    passing, mine = world.queue("passing", durable=durable), world.manager()
    payload = client_of(mine).store.payload
    stage, meanwhile = payload.stage, list[Any]()

    with mine.transaction() as tx:

        def staged(send: Any, rows_: Any) -> Any:
            found = stage(send, rows_)
            if not meanwhile:  # nested, for another thread: it records a send of its own
                meanwhile.append(True)
                tx.queue(other.name).send(rows(7, 8))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(payload, "stage", staged)
            with pytest.raises(SchemaMismatch):
                tx.send({slow.name: rows(1), passing.name: [{"wrong": 1}], other.name: rows(5)})
    assert numbers(other.receive()) == [7, 8]
    assert (slow.depth(), passing.depth()) == (0, 0)
