"""Exchanges that grow, and that are dropped, beside whoever publishes and consumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conformance.test_exchanges import exchange
from tests.conformance.working import Branch
from tests.inside import client_of, topology
from txnqueue.admin import creation
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.core.settings import RetryPolicy
from txnqueue.errors import (
    ExchangeClosed,
    ExchangeNotFound,
    InvalidInput,
    QueueClosed,
    SchemaMismatch,
    TransactionAborted,
    TransactionNotGiven,
)
from txnqueue.storage.journal import AppendConflict


def bound(world: World, *words: str, **said: Any) -> tuple[Any, list[Any]]:
    """Create a fanout exchange, and queues that are bound to it."""
    events = exchange(world, "fanout", **said)
    queues = [world.queue(word) for word in words]
    for queue in queues:
        events.bind(queue)
    return events, queues


def prepared(world: World, events: Any, *sent: int, client: str = "p") -> Any:
    """Prepare a transaction that publishes."""
    tx = world.manager(client).transaction(world.name(f"tx-{client}"))
    tx.exchange(events.name).publish(rows(*sent))
    tx.prepare()
    return tx


def meanwhile(world: World, operation: str, act: Callable[[], Any]) -> None:
    """Do something right before the first append of an operation."""
    append, met = world.store.journal.append, list[Any]()

    def crossed(units: Any, metadata: Any) -> Any:
        if metadata["operation"] == operation and not met:
            met.append(True)
            act()
        return append(units, metadata)

    world.store.journal.append = crossed


def notes(queue: Any) -> list[tuple[int, str | None]]:
    """Read the numbers and the notes that wait in a queue."""
    return [(row["n"], row["note"]) for row in queue.peek_messages()]


# ------------------------------------------------------------------------------- growing


@on_delta_when_long
def test_an_exchange_grows_beside_those_who_publish(world: World) -> None:
    events, (left, right) = bound(world, "left", "right")
    other = world.manager("b").exchange(events.name)  # opened before
    tx = world.manager("c").transaction()
    tx.exchange(events.name).publish(rows(1))
    events.publish(rows(2))
    for queue in (left, right):
        queue.alter("note string")
    assert numbers(left.peek_messages()) == [2]
    assert events.alter(add="note string") == {"column note": (None, "string")}
    assert events.alter(add="note string") == {}, "repeated, it changes nothing"
    other.publish([{"n": 3, "note": "new"}])
    tx.commit()
    assert notes(left) == notes(right) == [(2, None), (3, "new"), (1, None)]
    assert world.manager().exchange(events.name).info.schema_version == 2
    assert other.describe()["columns"] == {"n": "bigint", "key": "string", "note": "string"}
    manager = world.manager("d")
    for columns in (SCHEMA, f"{SCHEMA}, note string"):  # what it has, and what it had
        again = manager.create_exchange(events.name, "fanout", columns, exist_ok=True)
        assert again.info == manager.exchange(events.name).info
    with pytest.raises(SchemaMismatch):
        manager.create_exchange(events.name, "fanout", "n long, note string", exist_ok=True)
    assert manager.history.verify().ok


@in_memory
def test_messages_in_memory_have_the_new_column_too(world: World) -> None:
    events, (queue,) = bound(world, "q")
    events.publish(rows(1), durable=False)
    queue.alter("note string")
    events.alter("note string")
    events.publish([{"n": 2, "note": "new"}], durable=False)
    assert notes(queue) == [(1, None), (2, "new")]


@in_memory
def test_an_exchange_grows_after_the_queues_that_it_posts_to(world: World) -> None:
    rest = world.queue("rest")
    events, (left, right) = bound(
        world, "left", "right", unroutable="dead_letter", dead_letter_queue=rest.name
    )
    left.alter("note string")
    with pytest.raises(SchemaMismatch, match=right.name) as caught:
        events.alter("note string")
    assert caught.value.queues == sorted([rest.name, right.name])
    rest.alter("note string")
    right.alter("note long")
    with pytest.raises(SchemaMismatch):  # another type than the exchange's
        events.alter("note string")
    for wrong in ("key long", "note string not null"):
        with pytest.raises(SchemaMismatch):
            events.alter(wrong)
    with pytest.raises(InvalidInput):
        world.manager().exchange().alter("note string")
    with world.manager("b").transaction() as tx, pytest.raises(TransactionNotGiven):
        tx.exchange(events.name).alter("note string")
    assert world.manager().exchange(events.name).info.schema_version == 1
    events.unbind(right)
    assert events.alter("note string")
    with pytest.raises(SchemaMismatch):
        events.bind(right)


@in_memory
def test_two_that_alter_an_exchange_at_once_both_count(world: World) -> None:
    events, (queue,) = bound(world, "q")
    queue.alter("one string, two string")
    other = world.manager("b").exchange(events.name)
    meanwhile(world, "alter exchange", lambda: other.alter("two string"))
    assert events.alter("one string, two string") == {"column one": (None, "string")}
    info = world.manager().exchange(events.name).info
    assert [column["name"] for column in info.schema["fields"]][2:] == ["two", "one"]
    assert info.schema_version == 3


@in_memory
def test_a_queue_that_lacks_the_column_is_not_bound_while_it_comes(world: World) -> None:
    events, plain = exchange(world, "fanout"), world.queue("plain")
    other = world.manager("b").exchange(events.name)
    meanwhile(world, "alter exchange", lambda: other.bind(plain.name))
    with pytest.raises(SchemaMismatch, match=plain.name):
        events.alter("note string")
    events.unbind(plain)
    meanwhile(world, "bind", lambda: other.alter("note string"))
    with pytest.raises(SchemaMismatch, match=plain.name):
        events.bind(plain)
    assert events.bindings().rows() == []


@in_memory
def test_a_publish_that_meets_a_new_column_is_staged_once_more(world: World) -> None:
    events, (queue,) = bound(world, "q")
    payload, met = world.store.payload, list[Any]()
    stage = payload.stage

    def altered(send: Any, given: Any) -> Any:
        if not met:
            met.append(send.send_id)
            raise AppendConflict("the table was changed")
        return stage(send, given)

    payload.stage = altered
    published = events.publish(rows(1))
    assert met != [published.send_id]
    (row,) = queue.peek_messages()
    assert (row["n"], row["_message"]["send_id"]) == (1, published.send_id)


@in_memory
def test_an_alter_that_was_interrupted_is_finished_by_the_next_one(world: World) -> None:
    events, (queue,) = bound(world, "q")
    queue.alter("note string")
    append = world.store.journal.append

    def down(units: Any, metadata: Any) -> Any:
        raise ConnectionError

    world.store.journal.append = down
    manager = world.manager("b")
    client_of(manager).runtime.retry = RetryPolicy(attempts_max=1, wait_seconds_first=0)
    with pytest.raises(Exception, match="doubt"):
        manager.exchange(events.name).alter("note string")
    world.store.journal.append = append
    assert events.publish(rows(1)).count == 1, "a column that nothing speaks of is in nobody's way"
    with pytest.raises(SchemaMismatch, match="unfinished alter"):
        events.unbind(queue)
        events.alter("note long")
    events.bind(queue)
    assert events.alter("note string")
    events.publish([{"n": 2, "note": "b"}])
    assert notes(queue) == [(1, None), (2, "b")]


# ------------------------------------------------------------------------------ dropping


@on_delta_when_long
def test_a_dropped_exchange_leaves_what_it_published_and_frees_its_name(world: World) -> None:
    events, (left, right) = bound(world, "left", "right")
    late = world.manager("late").exchange(events.name)
    sent = events.publish(rows(1, 2))
    held = world.manager("b").queue(left.name).receive(1)
    before = world.manager().history.as_of().commit_seq
    result = world.manager("c").drop_exchange(events.name, reason="moved")
    assert (result.exchange, result.dropped, result.held_by) == (events.name, True, ())
    assert events.name not in world.manager().list_exchanges()
    assert topology(world.manager()).query_exchange(events.name).not_found
    held.accept()
    for call in (
        lambda: late.publish(rows(9)),
        lambda: late.publish(rows(9), durable=False),
        lambda: late.bind(left, "k"),
        lambda: late.unbind(left),
        lambda: late.alter("note string"),
        late.describe,
        lambda: world.manager().exchange(events.name),
    ):
        with pytest.raises(ExchangeNotFound, match=events.name):
            call()
    assert late.drop() == result, "repeated, it says the same"
    assert numbers(left.peek_messages()) == [2]

    fresh = exchange(world, "direct")
    assert fresh.info.exchange_id != events.info.exchange_id
    assert (fresh.bindings().rows(), fresh.bindings(history=True).rows()) == ([], [])
    assert fresh.publish(rows(3)).unroutable == 1
    fresh.bind(left)
    fresh.publish(rows(4))
    with pytest.raises(ExchangeNotFound):
        late.publish(rows(10))
    assert late.drop() == result
    assert fresh.publish(rows(5)).queues == {left.name: 1}, "it is the other one that went"
    assert numbers(left.receive()) == [2, 4, 5]
    assert numbers(right.receive()) == [1, 2]

    history = world.manager().history
    mine = [
        row for row in history.as_of(before).bindings().rows() if row["exchange"] == events.name
    ]
    assert {row["queue"] for row in mine} == {left.name, right.name}
    (then,) = [r for r in history.as_of(before).exchanges().rows() if r["exchange"] == events.name]
    (now,) = [r for r in history.as_of().exchanges().rows() if r["exchange"] == events.name]
    assert (then["bindings"], now["bindings"]) == (2, 1)
    assert then["exchange_id"] != now["exchange_id"], "it was dropped, and made anew"
    steps = history.trace(f"{sent.send_id}:1").rows()
    assert [s["exchange"] for s in steps if s["step"] == "published"] == [events.name] * 2
    assert history.verify().ok, history.verify()


@in_memory
def test_the_history_tells_when_a_drop_ended_bindings_and_why(world: World) -> None:
    events, _ = bound(world, "q")
    world.manager("b").drop_exchange(events.name, reason="moved")
    catalog = world.store.journal.read([model.CATALOG]).entries
    told = [
        (e.kind, e.sequence, e.reason, e.actor)
        for e in sorted(catalog, key=lambda e: e.place)
        if e.stream == f"exchange/{events.name}"
    ]
    a, b = world.name("a"), world.name("b")
    assert told == [
        ("exchange_created", 1, None, a),
        ("queue_bound", 2, None, a),
        ("exchange_closing", 3, "moved", b),
        ("queue_unbound", 4, "moved", b),
        ("exchange_dropped", 5, "moved", b),
    ]
    exchange(world)
    newest = world.store.journal.read([model.CATALOG]).entries[-1]
    assert (newest.kind, newest.sequence) == ("exchange_created", 6), "numbers of a name go on"


@on_delta_when_long
def test_what_is_prepared_holds_the_drop_of_an_exchange_back(world: World) -> None:
    events, (queue,) = bound(world, "q")
    committing = prepared(world, events, 1)
    undone = prepared(world, events, 2, client="r")
    result = events.drop(reason="old")
    assert (result.dropped, set(result.held_by)) == (False, {committing.id, undone.id})
    assert events.drop() == result, "repeated, it says the same"
    assert world.manager().exchange(events.name).describe()["closing"]
    assert events.name in world.manager().list_exchanges()
    manager = world.manager("d")

    def drops() -> list[Any]:
        return [d for d in manager.recover().exchange_drops if d.exchange == events.name]

    assert drops() == [result]
    manager.commit(committing.id)
    assert manager.outcome(committing.id).status is Status.COMMITTED
    assert manager.drop_exchange(events.name).held_by == (undone.id,)
    manager.rollback(undone.id)
    assert [d.dropped for d in drops()] == [True]
    assert drops() == []
    assert numbers(queue.receive()) == [1]
    assert manager.history.verify().ok


@in_memory
def test_from_the_closing_of_an_exchange_on_nobody_publishes(world: World) -> None:
    events, (queue,) = bound(world, "q")
    managers = {name: world.manager(name) for name in "abcdf"}
    publishing, preparing, inside = (managers[name].transaction() for name in "abc")
    for tx in (publishing, preparing):
        tx.exchange(events.name).publish(rows(7))
    inside.exchange(events.name).publish(rows(7), durable=False)
    branch = Branch(world, "e")
    branch.exchange(events).publish(rows(8))
    late = managers["d"].exchange(events.name)
    prepared(world, events, 1)
    assert not managers["f"].drop_exchange(events.name).dropped
    count = world.store.journal.version()
    for number, call in enumerate(
        (
            lambda: late.publish(rows(9)),
            lambda: late.publish(rows(9), durable=False),
            lambda: late.bind(queue, "k"),
            lambda: late.unbind(queue),
            lambda: late.alter("note string"),
            lambda: exchange(world, "fanout", exist_ok=True),
        )
    ):
        with pytest.raises(ExchangeClosed, match=events.name) as caught:
            call()
        assert caught.value.name == events.name, number
    assert world.store.journal.version() == count, "it changes nothing"
    for decide in (publishing.commit, preparing.prepare):
        with pytest.raises(TransactionAborted, match=events.name) as aborted:
            decide()
        assert isinstance(aborted.value.__cause__, ExchangeClosed)
    assert branch.channel.end(branch.xid).name == "OK"
    assert "RB" in branch.channel.commit(branch.xid, one_phase=True).name
    assert inside.status is Status.ACTIVE
    world.manager().commit(world.name("tx-p"))
    assert managers["f"].drop_exchange(events.name).dropped
    assert numbers(queue.receive()) == [1]


@in_memory
def test_what_was_published_in_memory_ends_with_the_exchange(world: World) -> None:
    events, (queue,) = bound(world, "q")
    events.publish(rows(1), durable=False)
    manager = world.manager("b")
    tx = manager.transaction()
    tx.exchange(events.name).publish(rows(2), durable=False)
    assert manager.drop_exchange(events.name).dropped
    with pytest.raises(TransactionAborted, match=events.name):
        tx.commit()
    assert numbers(queue.receive()) == [1]


@in_memory
def test_a_publish_in_flight_and_a_drop_exclude_each_other(world: World) -> None:
    events, (queue,) = bound(world, "q")
    other = world.manager("b")
    meanwhile(world, "commit", lambda: other.drop_exchange(events.name))
    with pytest.raises(ExchangeNotFound, match=events.name):
        events.publish(rows(1))
    assert queue.depth() == 0


@in_memory
def test_a_queue_bound_in_flight_and_a_drop_exclude_each_other(world: World) -> None:
    events, queue = exchange(world, "fanout"), world.queue("q")
    other = world.manager("b")
    meanwhile(
        world, "close exchange", lambda: other.exchange(events.name).bind(queue.name, "first")
    )
    late = world.manager("c").exchange(events.name)
    assert events.drop().dropped
    kinds = [e.kind for e in world.store.journal.read([model.CATALOG]).entries]
    assert kinds.count("queue_bound") == kinds.count("queue_unbound") == 1
    fresh = exchange(world, "fanout")
    assert fresh.publish(rows(1)).unroutable == 1
    meanwhile(world, "bind", lambda: other.drop_exchange(fresh.name))
    with pytest.raises(ExchangeNotFound):
        fresh.bind(queue)
    with pytest.raises(ExchangeNotFound):
        late.bind(queue)


@in_memory
def test_two_that_drop_an_exchange_at_once_drop_it_once(world: World) -> None:
    events, _ = bound(world, "q")
    other = world.manager("b")
    meanwhile(world, "close exchange", lambda: other.drop_exchange(events.name))
    assert events.drop().dropped
    again = exchange(world, "fanout")
    meanwhile(world, "drop exchange", lambda: other.drop_exchange(again.name))
    assert again.drop().dropped
    fence = world.store.journal.read([model.FENCE]).entries
    steps = [e.kind for e in sorted(fence, key=lambda e: e.place) if "exchange" in e.kind]
    assert steps == ["exchange_closing", "exchange_dropped"] * 2


@in_memory
def test_one_that_another_client_drops_between_two_readings_may_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, _ = bound(world, "q")
    manager, other = world.manager("b"), world.manager("c")
    manager.list_exchanges()
    cache = client_of(manager).cache
    read, readings = cache.catalog_entries, list[Any]()

    def dropped_after_the_first_reading() -> Any:
        if len(readings) == 1:
            other.drop_exchange(events.name)
        readings.append(read())
        return readings[-1]

    monkeypatch.setattr(cache, "catalog_entries", dropped_after_the_first_reading)
    assert manager.drop_exchange(events.name, missing_ok=True).dropped


@in_memory
def test_an_exchange_made_while_its_namesake_goes_is_another_one(world: World) -> None:
    events, (queue,) = bound(world, "q")
    other = world.manager("b")

    def goes_and_comes() -> None:
        other.drop_exchange(events.name)
        other.create_exchange(events.name, "fanout", SCHEMA)

    meanwhile(world, "alter exchange", goes_and_comes)
    with pytest.raises(ExchangeNotFound):
        queue.alter("note string")
        events.alter("note string")
    assert events.drop().dropped
    assert other.exchange(events.name).info.schema_version == 1


@in_memory
def test_a_transaction_that_met_a_closed_exchange_is_not_tried_again(world: World) -> None:
    events, (queue,) = bound(world, "q")
    source, manager, calls = world.queue("source"), world.manager("b"), []
    source.send(rows(1, 2))

    def work(tx: Any) -> None:
        calls.append(tx)
        tx.exchange(events.name).publish(rows(1))
        if len(calls) == 1:
            world.manager("c").drop_exchange(events.name)

    with pytest.raises(TransactionAborted, match=events.name):
        manager.run_transaction(work)
    assert len(calls) == 1

    again = exchange(world, "fanout")
    again.bind(queue)
    into = again.name

    def handler(batch: Any, tx: Any) -> None:
        opened = tx.exchange(into)
        world.manager("c").drop_exchange(into)
        opened.publish(rows(3))

    with pytest.raises(ExchangeNotFound):
        manager.queue(source.name).drain(handler)
    assert source.receive().messages()[0]["_message"]["delivery_count"] == 0, "not its fault"
    assert queue.depth() == 0


@in_memory
def test_payload_of_a_dropped_exchange_stays_as_long_as_anything_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 4)
    events, (queue,) = bound(world, "q")
    events.publish(rows(1))
    events.drop()
    manager = world.manager()
    payload = world.store.payload
    owner = events.info.payload_id
    patience: Any = {
        "transaction_seconds_max": 0,
        "payload_retention_days": 0,
        "vacuum": False,
    }
    for _ in range(3):
        for _ in range(client_of(manager).cache.slice_width + 1):
            world.queue("other", exist_ok=True).send(rows(0))
        manager.maintain(**patience)
        world.clock.advance(2 * 86_400)
        assert payload.slices(owner), "the message waits"
    batch = world.manager("b").queue(queue.name).receive()
    assert numbers(batch) == [1]
    batch.accept()
    for _ in range(3):
        for _ in range(client_of(manager).cache.slice_width + 1):
            world.queue("other", exist_ok=True).send(rows(0))
        manager.maintain(**patience)
        world.clock.advance(2 * 86_400)
    assert not payload.slices(owner)
    assert manager.history.verify().ok


@in_memory
def test_what_is_asked_wrongly_of_a_drop_is_refused(world: World) -> None:
    manager, (events, _) = world.manager(), bound(world, "q")
    with pytest.raises(ExchangeNotFound):
        manager.drop_exchange(world.name("nobody"))
    assert manager.drop_exchange(world.name("nobody"), missing_ok=True).dropped
    with pytest.raises(InvalidInput):
        manager.exchange().drop()
    with pytest.raises(InvalidInput):
        manager.drop_exchange("")
    with pytest.raises(InvalidInput):
        events.drop(reason=5)
    for call in (
        lambda: manager.drop_exchange(events.name),
        lambda: manager.drop_exchange(world.name("nobody"), missing_ok=True),
        lambda: manager.exchange(events.name).drop(),
    ):
        with manager.transaction(), pytest.raises(TransactionNotGiven, match="at once"):
            call()
    assert events.name in manager.list_exchanges()


@in_memory
def test_queues_and_an_exchange_go_in_any_order(world: World) -> None:
    rest = world.queue("rest")
    events, (left, right) = bound(
        world, "left", "right", unroutable="dead_letter", dead_letter_queue=rest.name
    )
    held = prepared(world, events, 1)
    assert not world.manager().drop_queue(left.name).dropped
    assert world.manager().drop_queue(rest.name).dropped
    assert not events.drop().dropped
    with pytest.raises(QueueClosed):
        left.send(rows(2))
    world.manager().commit(held.id)
    found = world.manager().recover()
    assert [d.dropped for d in found.drops] == [d.dropped for d in found.exchange_drops] == [True]
    assert numbers(right.receive()) == [1]
    assert world.manager().history.as_of().bindings().rows() == []
    assert world.manager().history.verify().ok
