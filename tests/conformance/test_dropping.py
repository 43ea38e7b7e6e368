"""Dropping a queue: it closes, what is prepared holds it back, and then it is gone."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    LeaseLost,
    QueueClosed,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    TransactionAborted,
    TransactionNotGiven,
)


def prepared(world: World, queue: Any, *sent: int, client: str = "p") -> Any:
    """Prepare a transaction that takes one message of a queue, and sends some to it."""
    manager = world.manager(client)
    tx = manager.transaction(world.name(f"tx-{client}"))
    mine = manager.queue(queue.name)
    mine.receive(1, transaction=tx)
    if sent:
        mine.send(rows(*sent), transaction=tx)
    tx.prepare()
    return tx


def changes(world: World) -> list[Any]:
    """List what happened, but for the records of what was rolled back."""
    found = world.manager().history.changes().rows()
    return [row for row in found if row["kind"] != model.ROLLED_BACK]


@in_memory
def test_what_could_not_be_sent_to_a_dropped_queue_is_not_kept(world: World) -> None:
    queue = world.queue()
    world.manager("other").drop_queue(queue.name)
    sent = pa.table({"n": [1, 2], "key": ["a", "b"]})
    kept = weakref.ref(sent)
    with contextlib.suppress(QueueNotFound):
        queue.send(sent)
    del sent
    gc.collect()
    assert kept() is None
    with pytest.raises(QueueNotFound, match="was dropped by"):
        queue.send(rows(3))


@in_memory
def test_the_queue_is_dropped_that_has_the_name_now(world: World) -> None:
    queue, manager = world.queue(), world.manager("keeper")
    manager.queue(queue.name).depth()
    other = world.manager("other")
    other.drop_queue(queue.name)
    other.create_queue(queue.name, SCHEMA, dead_letter=False).send(rows(1, 2))
    assert manager.drop_queue(queue.name).messages == 2
    assert queue.name not in other.list_queues()


@in_memory
@pytest.mark.parametrize("call", ["release", "create_exchange"])
def test_an_operator_means_the_queue_that_has_the_name_now(world: World, call: str) -> None:
    """It was refused because the manager remembered the queue that had the name before."""
    queue, manager = world.queue(), world.manager("keeper")
    manager.queue(queue.name).depth()
    other = world.manager("other")
    other.drop_queue(queue.name)
    fresh = other.create_queue(queue.name, SCHEMA, dead_letter=False)
    if call == "release":
        fresh.send(rows(1))
        fresh.receive()
        assert manager.release(queue.name, consumer=world.name("other"), reason="gone") == 1
        return
    said = {"unroutable": "dead_letter", "dead_letter_queue": queue.name}
    made = manager.create_exchange(world.name("events"), "direct", SCHEMA, **said)
    assert made.info.dead_letter_id == fresh.info.queue_id


@on_delta_when_long
def test_a_drop_takes_everything_and_the_name_is_free_for_a_new_queue(world: World) -> None:
    manager = world.manager()
    queue, other = world.queue(lanes=2), world.queue("other")
    queue.send(rows(1, 2, 3))
    late = world.open(queue, "late")
    held = world.open(queue, "b").receive(1)
    before = world.manager().history.as_of().commit_seq
    result = world.open(queue, "c").drop(reason="moved to orders-2")
    assert (result.dropped, result.held_by, result.messages) == (True, (), 3)
    assert queue.name not in manager.list_queues() and other.name in manager.list_queues()
    for call in (lambda: late.send(rows(9)), late.receive, late.depth, late.peek_messages):
        with pytest.raises(QueueNotFound, match=queue.name):
            call()
    with pytest.raises(QueueNotFound, match=queue.name):
        held.accept()

    fresh = manager.create_queue(queue.name, SCHEMA, dead_letter=False)
    fresh.send(rows(7))
    assert fresh.info.queue_id != queue.info.queue_id
    assert numbers(fresh.peek_messages()) == [7]
    with pytest.raises(QueueNotFound):
        late.send(rows(10))
    assert world.manager("late").queue(queue.name).depth() == 1

    history = world.manager().history
    then = history.as_of(before)
    row = next(r for r in then.counts().rows() if r["queue"] == queue.name)
    assert (row["posted"], row["in_flight"]) == (3, 1)
    assert len(then.messages(queue.name).rows()) == 3
    dispatched = [r for r in history.as_of().dispatches().rows() if r["kind"] == "queue_dropped"]
    mine = [r for r in dispatched if r["queue"] == queue.name]
    assert [(r["count"], r["reason"], r["actor"]) for r in mine] == [
        (3, "moved to orders-2", world.name("c"))
    ]
    assert history.verify().ok, history.verify()


@on_delta_when_long
def test_what_is_prepared_holds_a_drop_back_until_it_is_decided(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    committing = prepared(world, queue, 5)
    undone = prepared(world, queue, client="q")
    result = queue.drop()
    assert (result.dropped, set(result.held_by)) == (False, {committing.id, undone.id})
    assert queue.name in world.manager().list_queues()
    assert world.manager().queue(queue.name).in_flight() == 2, "it can be looked at"
    assert queue.drop() == result, "repeated, it says the same"

    manager = world.manager("d")
    drops = [d for d in manager.recover().drops if d.queue == queue.name]
    assert drops == [result]
    manager.commit(committing.id)
    assert manager.outcome(committing.id).status is Status.COMMITTED
    assert manager.drop_queue(queue.name).held_by == (undone.id,)
    manager.rollback(undone.id)
    drops = [d for d in manager.recover().drops if d.queue == queue.name]
    assert [(d.dropped, d.messages) for d in drops] == [(True, 2)], "what came back and what came"
    assert [d for d in manager.recover().drops if d.queue == queue.name] == []
    assert manager.history.verify().ok


@in_memory
def test_from_the_closing_on_nothing_goes_through(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2, 3, 4, 5, 6))
    other.send(rows(1))
    clients = {name: world.manager(name) for name in "abcdefgi"}
    leased = clients["a"].queue(queue.name).receive(1)
    bound = clients["b"].queue(queue.name).receive(1)
    inside = clients["c"].transaction()
    clients["c"].queue(queue.name).receive(1, transaction=inside)
    sending = clients["d"].transaction()
    clients["d"].queue(queue.name).send(rows(7), transaction=sending)
    late = clients["i"].queue(queue.name)
    preparing = clients["e"].transaction()
    clients["e"].queue(queue.name).send(rows(8), transaction=preparing)
    binding = clients["b"].transaction()
    bound.accept(transaction=binding)
    prepared(world, queue)
    assert not queue.drop().dropped
    count = len(changes(world))

    opened = clients["f"].queue(queue.name)
    told: list[Callable[[], object]] = [
        lambda: clients["g"].queue(queue.name).send(rows(9)),
        opened.receive,
        lambda: opened.receive(wait_seconds=10),
        opened.purge,
        lambda: opened.move(other),
        lambda: clients["g"].queue(other.name).move(queue.name),
        lambda: opened.drain(lambda batch, tx: None),
        leased.accept,
        leased.release,
        lambda: leased.extend_lease(60),
        lambda: world.manager("h").create_queue(queue.name, SCHEMA, exist_ok=True),
    ]
    for number, call in enumerate(told):
        with pytest.raises(QueueClosed, match=queue.name) as caught:
            call()
        assert caught.value.name == queue.name, number
    assert len(changes(world)) == count, "it changes nothing"
    for decide in (inside.commit, sending.commit, preparing.prepare, binding.commit):
        with pytest.raises(TransactionAborted, match=queue.name) as aborted:
            decide()
        assert isinstance(aborted.value.__cause__, QueueClosed)
    for tx in (inside, sending, preparing, binding):
        assert tx.status is Status.ROLLED_BACK
        assert world.manager().outcome(tx.id).status is Status.ROLLED_BACK
    with pytest.raises(TransactionAborted), clients["i"].transaction() as tx:
        tx.queue(other.name).send(rows(1))
        late.send(rows(2), transaction=tx)
    assert other.depth() == 1, "what else the transaction sent was not seen either"


@in_memory
def test_work_that_met_a_closed_queue_is_not_tried_again(world: World) -> None:
    queue = world.queue()
    source = world.queue("source")
    source.send(rows(1, 2, 3))
    manager, ran = world.manager("b"), []
    target = manager.queue(queue.name)
    manager.queue(source.name).depth()
    queue.send(rows(1))
    prepared(world, queue)
    queue.drop()

    def handler(tx: Any) -> None:
        ran.append(tx.id)
        target.send(rows(1), transaction=tx)

    with pytest.raises(TransactionAborted):
        manager.run_transaction(handler)
    with pytest.raises(QueueClosed):
        manager.run_transaction(handler)
    assert len(ran) == 2
    fresh = world.manager("c")
    target = fresh.queue(queue.name)

    def passing_on(batch: Any, tx: Any) -> None:
        target.send(rows(1), transaction=tx)

    with pytest.raises(QueueClosed, match=queue.name):
        fresh.queue(source.name).drain(passing_on, batch_size=2)
    with pytest.raises(QueueClosed, match=queue.name):
        fresh.queue(source.name).drain(passing_on, batch_size=2)
    assert source.depth() == 3, "they went back"


@in_memory
def test_a_rollback_goes_through_when_the_queue_is_gone(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1))
    other.send(rows(2))
    manager = world.manager("b")
    tx = manager.transaction()
    manager.queue(queue.name).receive(transaction=tx)
    manager.queue(other.name).receive(transaction=tx)
    assert queue.drop().messages == 1
    tx.rollback()
    assert other.depth() == 1
    assert world.manager().history.verify().ok
    third = world.manager("c")
    abandoned = third.transaction()
    third.queue(other.name).receive(transaction=abandoned)
    assert other.drop().dropped
    world.lease_over()
    assert world.manager().recover().aborted == ()
    with pytest.raises(TransactionAborted):
        abandoned.commit()


@in_memory
def test_a_dead_letter_queue_goes_after_the_queue_that_uses_it(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(1, 2))
    queue.receive(1).reject(reason="bad")
    manager, dead = world.manager("b"), f"{queue.name}.dead"
    with pytest.raises(QueueInUse, match=queue.name) as caught:
        manager.drop_queue(dead)
    assert caught.value.used_by == queue.name
    assert manager.queue(dead).depth() == 1

    assert manager.drop_queue(queue.name).dropped
    letters = manager.queue(dead)
    assert numbers(letters.peek_messages()) == [1], "its payload stays while it is needed"
    with pytest.raises(QueueNotFound, match=queue.name):
        letters.redrive()
    again = manager.create_queue(queue.name, SCHEMA)
    assert again.info.dead_letter_id == letters.info.queue_id
    with pytest.raises(QueueInUse):
        manager.drop_queue(dead)
    assert again.drop().dropped
    assert manager.drop_queue(dead).messages == 1
    assert manager.history.verify().ok


@in_memory
def test_a_queue_that_gets_a_dead_letter_queue_and_its_drop_exclude_each_other(
    world: World,
) -> None:
    """A drop that has looked for users, and a new user that has looked for the queue."""
    dead, name = f"{world.name('orders')}.dead", world.name("orders")
    world.manager().create_queue(dead, SCHEMA, dead_letter=False)
    creator, dropper = world.manager("creator"), world.manager("dropper")
    append, met = world.store.journal.append, list[Any]()

    def interrupted(units: Any, metadata: Any) -> Any:
        if metadata["operation"] == "close queue" and not met:
            met.append(1)
            creator.create_queue(name, SCHEMA)
        return append(units, metadata)

    world.store.journal.append = interrupted
    with pytest.raises(QueueInUse):
        dropper.drop_queue(dead)

    other, met[:] = world.name("other"), []
    world.manager().create_queue(f"{other}.dead", SCHEMA, dead_letter=False)

    def crossed(units: Any, metadata: Any) -> Any:
        if metadata["operation"] == "create queue" and not met:
            met.append(1)
            dropper.drop_queue(f"{other}.dead")
        return append(units, metadata)

    world.store.journal.append = crossed
    made = creator.create_queue(other, SCHEMA)
    assert made.info.dead_letter_id == creator.queue(f"{other}.dead").info.queue_id
    assert len(met) == 1


@in_memory
def test_what_is_asked_wrongly_is_refused(world: World) -> None:
    queue = world.queue()
    manager = world.manager("b")
    with manager.transaction(), pytest.raises(TransactionNotGiven):
        manager.queue(queue.name).drop()
    with pytest.raises(QueueNotFound):
        manager.drop_queue(world.name("nobody"))
    assert manager.drop_queue(world.name("nobody"), missing_ok=True).dropped
    assert queue.drop().dropped
    assert queue.drop().dropped, "it is gone, and stays so"
    again = manager.create_queue(queue.name, SCHEMA, dead_letter=False)
    with pytest.raises(QueueExists):
        world.manager().create_queue(queue.name, SCHEMA)
    assert queue.drop().dropped, "the one that it was, not the one that has its name now"
    assert again.depth() == 0 and queue.name in world.manager().list_queues()


@in_memory
def test_a_trace_ends_where_the_queue_was_dropped(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    consumed, left = queue.send(rows(1)), queue.send(rows(2))
    moved = other.send(rows(3))
    queue.receive(1).accept()
    other.move(queue.name)
    queue.drop(reason="over")

    def steps(sent: Any) -> list[str]:
        return [s["step"] for s in world.manager().history.trace(f"{sent.send_id}:0").rows()]

    assert steps(consumed) == ["sent", "claimed", "accepted"]
    assert steps(left) == ["sent", "queue_dropped"]
    assert steps(moved) == ["sent", "moved", "moved", "queue_dropped"]


@in_memory
def test_metrics_and_listings_show_a_closing_queue_until_it_is_gone(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    tx = prepared(world, queue)
    queue.drop()
    manager = world.manager("b")
    shown = {row["queue"]: row["messages"] for row in manager.metrics().rows()}
    assert shown == {queue.name: 2}
    manager.rollback(tx.id)
    assert manager.recover().drops[0].dropped
    assert manager.metrics().rows() == [] == manager.list_queues()
    with pytest.raises(QueueNotFound):
        manager.queue(queue.name)
    with pytest.raises((QueueNotFound, LeaseLost)):
        world.manager("c").queue(queue.name)


@in_memory
def test_a_batch_of_both_kinds_tells_of_a_dropped_queue_as_any_other(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    queue.send(rows(2), durable=False)
    batch = queue.receive()
    assert len(batch) == 2
    queue.drop()
    with pytest.raises(QueueNotFound, match="was dropped"):
        batch.accept()
