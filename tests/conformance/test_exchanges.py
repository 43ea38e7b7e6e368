"""Exchanges and bindings, on both stores."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import pickle
from typing import Any, get_type_hints

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conformance.test_removing import state_of
from tests.conformance.working import Branch
from tests.inside import client_of, topology
from txnqueue import PublishResult
from txnqueue.core import model
from txnqueue.errors import (
    ExchangeExists,
    ExchangeNotFound,
    InvalidInput,
    InvalidName,
    LimitExceeded,
    PlatformMissing,
    QueueClosed,
    QueueNotFound,
    SchemaMismatch,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
    TransactionNotGiven,
    Unroutable,
)


def exchange(world: World, kind: Any = "direct", word: str = "events", **said: Any) -> Any:
    """Create an exchange by a manager ``a`` of its own."""
    return world.manager().create_exchange(world.name(word), kind, SCHEMA, **said)


def keyed(**keys: str | None) -> list[dict[str, Any]]:
    """Make messages by name: n is the name's number, key the routing key."""
    return [{"n": int(name[1:]), "key": key} for name, key in keys.items()]


# ---------------------------------------------------------------------------- publishing


@on_delta_when_long
def test_one_payload_and_a_position_in_every_queue_that_wants_it(world: World) -> None:
    events = exchange(world, "topic")
    eu, ada, everything = (world.queue(word) for word in ("eu", "ada", "everything"))
    events.bind(eu, "eu.#")
    events.bind(ada, "*.ada")
    events.bind(ada, "eu.ada")  # twice is once
    events.bind(everything.name, "#")
    sent = keyed(n1="eu.ada", n2="us.ada", n3="eu.bob.x", n4=None)
    published = events.publish(sent, routing_key_column="key", headers={"source": "web"})
    assert (published.count, published.unroutable) == (4, 0)
    assert published.queues == {eu.name: 2, ada.name: 2, everything.name: 4}
    assert numbers(eu.receive()) == [1, 3]
    assert numbers(ada.peek_messages()) == [1, 2]
    batch = everything.receive()
    assert numbers(batch) == [1, 2, 3, 4]
    about = {row["n"]: row["_message"] for row in batch.messages()}
    assert dict(about[1]["headers"]) == {"source": "web", "routing_key": "eu.ada"}
    assert dict(about[4]["headers"]) == {"source": "web"}
    assert about[2]["id"] == f"{published.send_id}:{about[2]['send_offset']}"
    assert about[3]["origin"] is None
    commit = published.receipt.commit_seq
    posted = list(world.manager().history.changes(commit - 1, commit).rows())
    assert [row["kind"] for row in posted].count("posted") == 3


@on_delta_when_long
def test_each_queue_has_its_own_lanes_and_keeps_the_order_of_the_rows(world: World) -> None:
    events = exchange(world, "fanout")
    one, spread = world.queue("one"), world.queue("spread", lanes=3)
    grouped = world.queue("grouped", lanes=4, group_by="key")
    for queue in (one, spread, grouped):
        events.bind(queue)
    events.publish([{"n": n, "key": f"k{n % 5}"} for n in range(40)])
    assert numbers(one.receive()) == list(range(40))
    for queue in (spread, grouped):
        lanes: dict[int, list[int]] = {}
        keys: dict[str, set[int]] = {}
        for row in queue.receive(100).messages():
            lanes.setdefault(row["_message"]["lane"], []).append(row["n"])
            keys.setdefault(row["key"], set()).add(row["_message"]["lane"])
        assert sorted(n for found in lanes.values() for n in found) == list(range(40))
        assert all(found == sorted(found) for found in lanes.values())
        assert len(lanes) > 1
        if queue is grouped:
            assert all(len(found) == 1 for found in keys.values())


@on_delta_when_long
def test_frames_keep_their_order_or_lie_together(world: World) -> None:
    if not world.has_frames:
        pytest.skip("a store without a session has no frames")
    events = exchange(world, "headers", unroutable="refuse")
    kept, half = world.queue("kept"), world.queue("half", lanes=2, group_by="key")
    for key in ("a", "b"):
        events.bind(kept, arguments={"k": key})
    events.bind(half, arguments={"k": "a"})
    many = world.spark.range(0, 200, 1, 4).selectExpr("id AS n", "if(id % 2 = 0, 'a', 'b') AS key")
    said = {"header_columns": {"k": "key"}}
    published = events.publish(many, order_by="n", **said)
    assert published.queues == {kept.name: 200, half.name: 100}
    assert numbers(kept.receive()) == list(range(200))
    arranged = events.publish(many, **said)
    assert sorted(numbers(kept.receive())) == list(range(200))
    assert sorted(numbers(half.receive())) == sorted([*range(0, 200, 2)] * 2)
    entries = client_of(world.manager()).store.journal.read_all().entries
    posted = [e for e in entries if e.body.get("send") == arranged.send_id]
    assert max(len(entry.ranges) for entry in posted) <= 8  # two sets of queues in four tasks
    with pytest.raises(Unroutable):
        events.publish(many.selectExpr("n", "upper(key) AS key"), **said)
    assert kept.depth() == 0


@on_delta_when_long
def test_inside_a_transaction_it_happens_with_everything_else_or_not_at_all(world: World) -> None:
    manager = world.manager()
    source = world.queue("source")
    events = exchange(world, "fanout")
    left, right = world.queue("left"), world.queue("right", lanes=2)
    events.bind(left)
    events.bind(right)
    source.send(rows(1))
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        tx.exchange(events.name).publish(rows(1, 2))
        raise ZeroDivisionError
    assert (left.depth(), right.depth()) == (0, 0)
    with manager.transaction() as tx:
        batch = tx.queue(source.name).receive()
        published = tx.exchange(events.name).publish(rows(*numbers(batch), 7))
        assert (published.receipt, published.transaction_id) == (None, tx.id)
        assert left.depth() == 0
        with pytest.raises(TransactionNotGiven):
            manager.exchange(events.name).publish(rows(8))
    assert numbers(left.peek_messages()) == sorted(numbers(right.peek_messages())) == [1, 7]
    prepared = manager.transaction(world.name("prepared"))
    manager.exchange(events.name).publish(rows(9), transaction=prepared)
    prepared.prepare()
    assert left.depth() == 2
    world.manager("b").commit(prepared.id)
    assert (left.depth(), right.depth()) == (3, 3)
    again = manager.transaction(prepared.id)
    assert manager.exchange(events.name).publish(rows(9), transaction=again).count == 0
    with pytest.raises(TransactionFinished):
        manager.exchange(events.name).publish(rows(9), transaction=prepared)


@on_delta_when_long
def test_published_messages_are_settled_moved_and_dead_lettered_for_each_queue(
    world: World,
) -> None:
    events = exchange(world, "fanout")
    left, right = world.queue("left", dead_letter=True), world.queue("right")
    events.bind(left)
    events.bind(right)
    published = events.publish(rows(1, 2, 3))
    batch = left.receive()
    batch.accept(matching=batch.messages()[:1])
    batch.reject(matching=batch.messages()[1:2], reason="bad")
    batch.release()
    dead = world.manager().queue(f"{left.name}.dead")
    assert numbers(dead.peek_messages()) == [2]
    assert numbers(right.peek_messages()) == [1, 2, 3]
    assert dead.redrive() == 1
    assert right.move(left) == 3
    both = left.receive()  # one message stands here twice, by two positions
    assert sorted(numbers(both)) == [1, 2, 2, 3, 3]
    both.accept()
    assert (left.depth(), left.in_flight(), right.depth()) == (0, 0, 0)
    offset = both.messages()[0]["_message"]["send_offset"]
    steps = world.manager().history.trace(f"{published.send_id}:{offset}").rows()
    assert {(s["step"], s["queue"], s["exchange"]) for s in steps if s["step"] == "published"} == {
        ("published", left.name, events.name),
        ("published", right.name, events.name),
    }
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_priorities_delays_and_times_to_live_are_the_messages_own(world: World) -> None:
    events = exchange(world, "direct")
    left, right = world.queue("left"), world.queue("right")
    events.bind(left, "l")
    events.bind(right, "l")
    events.publish(
        [{"n": 1, "key": "l", "p": 1, "w": None}, {"n": 2, "key": "l", "p": 9, "w": 5.0},
         {"n": 3, "key": "l", "p": 9, "w": None}],
        routing_key_column="key", priority="p", delay_seconds="w", ttl_seconds=60,
    )  # fmt: skip
    assert numbers(left.receive()) == [3, 1]
    world.clock.advance(7)
    assert numbers(right.receive()) == [3, 2, 1]  # what could be received sooner stands first
    world.clock.advance(60)
    assert left.depth() == 0


@on_delta_when_long
def test_what_is_published_in_memory_goes_by_the_same_bindings(world: World) -> None:
    events = exchange(world, "topic")
    eu, everything = world.queue("eu", dead_letter=True), world.queue("all", lanes=2)
    grown = world.queue("grown")
    events.bind(eu, "eu.#")
    events.bind(everything, "#")
    grown.alter(add="more string")
    events.bind(grown, "us.*")
    version = client_of(eu).store.journal.version()
    sent = keyed(n1="eu.ada", n2="us.ada", n3="eu.bob")
    published = events.publish(
        sent, routing_key_column="key", headers={"source": "web"}, durable=False
    )
    assert published.queues == {eu.name: 2, everything.name: 3, grown.name: 1}
    with pytest.raises(ZeroDivisionError), world.manager("b").transaction() as tx:
        tx.exchange(events.name).publish(sent, routing_key_column="key", durable=False)
        raise ZeroDivisionError
    with world.manager("b").transaction() as tx:
        tx.exchange(events.name).publish(rows(4), routing_key="eu", priority=9, durable=False)
        client_of(eu).store.transient.tidy()  # it keeps what the commit will post
        assert eu.depth() == 2
    assert (numbers(eu.peek_messages()), everything.depth()) == ([4, 1, 3], 4)
    (only,) = grown.receive().messages()
    assert (only["n"], only["more"]) == (2, None)
    batch = eu.receive()
    about = {row["n"]: row["_message"] for row in batch.messages()}
    assert dict(about[1]["headers"]) == {"source": "web", "routing_key": "eu.ada"}
    assert about[3]["id"] == f"{published.send_id}:{about[3]['send_offset']}"
    batch.accept(matching=batch.messages()[:1])
    batch.reject(matching=batch.messages()[1:2], reason="bad")
    batch.release()
    assert everything.move(eu) == 4
    dead = world.manager().queue(f"{eu.name}.dead")
    assert (numbers(dead.peek_messages()), dead.redrive()) == ([1], 1)
    client_of(eu).store.transient.tidy()
    assert sorted(row["n"] for row in eu.peek_messages()) == [1, 1, 2, 3, 3, 4]
    assert client_of(eu).store.journal.version() == version  # all of it went on in memory
    everything.send(rows(5))
    events.publish(rows(6), routing_key="x", durable=True)
    events.publish(rows(7), routing_key="x")
    events.publish(rows(8), routing_key="x", durable=False)
    assert sorted(numbers(everything.receive())) == [5, 6, 7, 8]
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_one_transaction_publishes_to_the_store_and_to_memory(world: World) -> None:
    events, queue = exchange(world, "fanout"), world.queue("q")
    quiet = world.queue("quiet", durable=False)
    events.bind(queue)
    with world.manager("b").transaction() as tx:
        inside = tx.exchange(events.name)
        inside.publish(rows(1))
        inside.publish(rows(2), durable=False)
        tx.exchange("").publish(rows(3), routing_key=queue.name, durable=False)
        tx.exchange("").publish(rows(4), routing_key=quiet.name)  # the queue's own setting
        assert (queue.depth(), quiet.depth()) == (0, 0)
    assert sorted(numbers(queue.peek_messages())) == [1, 2, 3]
    assert numbers(quiet.peek_messages()) == [4]
    assert (state_of(world, queue)["posted"], state_of(world, quiet)["posted"]) == (1, 0)
    events.publish(rows(5), durable=False)
    tx = world.manager("d").transaction()
    tx.exchange(events.name).publish(rows(6), durable=False)
    assert queue.drop().dropped
    with pytest.raises(TransactionAborted, match="dropped"):
        tx.commit()
    assert events.publish(rows(7), durable=False).unroutable == 1


# ---------------------------------------------------------------------------- unroutable


@on_delta_when_long
def test_what_nobody_wants_is_returned_refused_or_a_dead_letter(world: World) -> None:
    rest = world.queue("rest", lanes=2)
    wanted = world.queue("wanted")
    found = {}
    for how, said in (
        ("return", {}),
        ("refuse", {}),
        ("dead_letter", {"dead_letter_queue": rest.name}),
    ):
        one = exchange(world, "direct", how, unroutable=how, **said)
        one.bind(wanted, "yes")
        found[how] = one
    mixed = keyed(n1="yes", n2="no", n3=None, n4="yes")
    returned = found["return"].publish(mixed, routing_key_column="key")
    assert (returned.count, returned.unroutable, returned.queues) == (4, 2, {wanted.name: 2})
    back = returned.returned_messages()
    assert [(row["n"], row["_message"]["origin"]["reason"]) for row in back] == [
        (2, "unroutable"),
        (3, "unroutable"),
    ]
    if world.has_frames:
        assert sorted(row["n"] for row in returned.returned().collect()) == [2, 3]
    alone = found["return"].publish(rows(5), routing_key="no")
    assert (alone.receipt, alone.unroutable, numbers(alone.returned_messages())) == (None, 1, [5])

    version = client_of(world.manager()).store.journal.version()
    with pytest.raises(Unroutable, match="nothing was sent"):
        found["refuse"].publish(mixed, routing_key_column="key")
    assert client_of(world.manager()).store.journal.version() == version
    assert found["refuse"].publish(rows(6), routing_key="yes").count == 1

    dead = found["dead_letter"].publish(mixed, routing_key_column="key")
    assert (dead.unroutable, dead.returned_messages()) == (2, [])
    assert dead.queues == {wanted.name: 2, rest.name: 2}
    batch = rest.receive()
    assert sorted(numbers(batch)) == [2, 3]
    assert {row["_message"]["origin"]["queue"] for row in batch.messages()} == {
        found["dead_letter"].name
    }
    batch.release()
    assert rest.redrive() == 0  # they came from no queue
    assert numbers(wanted.receive()) == [1, 4, 6, 1, 4]


@on_delta_when_long
def test_what_had_been_published_before_returns_no_messages(world: World) -> None:
    one, key = exchange(world, "direct", "x", unroutable="return"), world.name("load")
    for _ in range(2):
        with world.manager().transaction(key) as tx:
            again = tx.exchange(one.name).publish(rows(5))
    sent = world.manager().exchange().publish(rows(6), routing_key=world.queue().name)
    for result in (again, sent):
        assert result.returned_messages() == []
        if world.has_frames:
            assert result.returned().count() == 0
        else:  # which is all that is missing
            with pytest.raises(PlatformMissing):
                result.returned()


@in_memory
def test_a_result_may_be_copied_and_sent_to_another_process(world: World) -> None:
    published = exchange(world, "direct", "x", unroutable="return").publish(rows(5))
    for copied in (copy.copy(published), copy.deepcopy(published)):
        assert copied == published and numbers(copied.returned_messages()) == [5]
    assert dataclasses.asdict(published)["unroutable"] == 1
    assert get_type_hints(PublishResult)["count"] is int
    sent = pickle.loads(pickle.dumps(published))
    assert sent == published
    with pytest.raises(InvalidInput, match="process that has published"):
        sent.returned_messages()


@on_delta_when_long
def test_what_nobody_wants_in_memory_is_returned_refused_or_a_dead_letter(world: World) -> None:
    rest, wanted = world.queue("rest"), world.queue("wanted")
    found = {}
    for how, said in (
        ("return", {}),
        ("refuse", {}),
        ("dead_letter", {"dead_letter_queue": rest.name}),
    ):
        found[how] = exchange(world, "direct", how, unroutable=how, **said)
        found[how].bind(wanted, "yes")
    version = client_of(rest).store.journal.version()
    mixed = keyed(n1="yes", n2="no")
    returned = found["return"].publish(mixed, routing_key_column="key", durable=False)
    alone = found["return"].publish(rows(5), routing_key="no", durable=False)
    wanted.receive().accept()
    client_of(rest).store.transient.tidy()
    gc.collect()
    assert numbers(returned.returned_messages()) == [2]  # as long as the answer is held
    if world.has_frames:
        assert [row["n"] for row in returned.returned().collect()] == [2]
    assert (alone.receipt, numbers(alone.returned_messages())) == (None, [5])
    with pytest.raises(Unroutable, match="nothing was sent"):
        found["refuse"].publish(mixed, routing_key_column="key", durable=False)
    assert wanted.depth() == 0
    dead = found["dead_letter"].publish(mixed, routing_key_column="key", durable=False)
    assert dead.queues == {wanted.name: 1, rest.name: 1}
    (letter,) = rest.peek_messages()
    assert (letter["n"], letter["_message"]["origin"]["reason"]) == (2, "unroutable")
    assert client_of(rest).store.journal.version() == version


@in_memory
def test_a_branch_publishes_to_the_store_only(world: World) -> None:
    events, queue = exchange(world, "fanout"), world.queue("q")
    events.bind(queue)
    branch = Branch(world, "b")
    for publish in (
        lambda: branch.exchange(events).publish(rows(1), durable=False),
        lambda: branch.channel.exchange().publish(rows(1), routing_key=queue.name, durable=False),
    ):
        with pytest.raises(InvalidInput, match="durable=True"):
            publish()
    branch.exchange(events).publish(rows(2), durable=True)
    branch.decide(commit=True)
    assert numbers(queue.peek_messages()) == [2]


# ------------------------------------------------------------------------------ bindings


@on_delta_when_long
def test_bindings_keep_their_history(world: World) -> None:
    events = exchange(world, "headers")
    queue = world.queue("q")
    asked = {"x-match": "any", "kind": "late", "n": 5, "there": None}
    assert events.bind(queue, "seen", asked)
    assert not events.bind(queue, "seen", asked)
    before = world.manager().history.as_of().commit_seq
    assert world.manager("b").exchange(events.name).unbind(queue, "seen", asked)
    assert not events.unbind(queue, "seen", asked)
    assert events.bind(queue)
    told = [
        (r["kind"], r["queue"], r["routing_key"], r["actor"])
        for r in events.bindings(history=True).rows()
    ]
    assert told == [
        ("bound", queue.name, "seen", world.name("a")),
        ("unbound", queue.name, "seen", world.name("b")),
        ("bound", queue.name, "", world.name("a")),
    ]
    (now,) = events.bindings().rows()
    assert now["arguments"] == {"x-match": "all"}
    (then,) = [r for r in world.manager().history.as_of(before).bindings().rows()
               if r["exchange"] == events.name]  # fmt: skip
    assert then["arguments"] == {"x-match": "any", "kind": "late", "n": "5", "there": None}
    assert then["recorded_at"].timestamp() * 1000 == world.clock.now_ms
    everything = world.manager().history.as_of().exchanges()
    (mine,) = [row for row in everything.rows() if row["exchange"] == events.name]
    assert (mine["type"], mine["unroutable"]) == ("headers", "return")
    assert (mine["bindings"], mine["closing"], mine["dead_letter_id"]) == (1, False, None)
    if world.has_frames:
        (row,) = everything.df().where(f"exchange = '{events.name}'").collect()
        assert row.asDict() == {**mine, "created_at": row["created_at"]}
        frame = events.bindings(history=True).df()
        assert [row["kind"] for row in frame.collect()] == ["bound", "unbound", "bound"]
        shown = world.manager().history.as_of().bindings().df().where(f"exchange = '{events.name}'")
        assert shown.collect()[0]["arguments"] == {"x-match": "all"}


@in_memory
def test_bindings_count_as_they_were_when_it_was_published(world: World) -> None:
    events, queue = exchange(world, "fanout"), world.queue("q")
    assert events.publish(rows(1)).unroutable == 1
    world.manager("b").exchange(events.name).bind(queue)  # another manager's: seen at once
    with world.manager().transaction() as tx:
        events = tx.exchange(events.name)
        events.publish(rows(2))
        assert world.manager("b").exchange(events.name).unbind(queue)
        assert events.publish(rows(3)).unroutable == 1
    assert numbers(queue.receive()) == [2]


@in_memory
def test_a_queue_that_is_dropped_before_the_commit_bars_it(world: World) -> None:
    events = exchange(world, "fanout")
    left, right = world.queue("left"), world.queue("right")
    events.bind(left)
    events.bind(right)
    tx = world.manager().transaction()
    tx.exchange(events.name).publish(rows(1))
    assert world.manager("b").drop_queue(right.name).dropped
    with pytest.raises(TransactionAborted, match="dropped"):
        tx.commit()
    assert (tx.status.value, left.depth()) == ("rolled_back", 0)
    assert events.publish(rows(2)).queues == {left.name: 1}  # its binding is gone with it
    assert [row["queue"] for row in events.bindings().rows()] == [left.name]
    assert len(events.bindings(history=True).rows()) == 2
    world.manager("b").create_queue(right.name, SCHEMA, dead_letter=False)
    assert events.publish(rows(3)).queues == {left.name: 1}  # another one of that name
    assert events.bind(right.name)
    assert events.publish(rows(4)).queues == {left.name: 1, right.name: 1}


@in_memory
def test_a_queue_that_is_being_dropped_is_neither_bound_nor_published_to(world: World) -> None:
    events, queue = exchange(world, "fanout"), world.queue("q")
    other = world.manager("b")
    events.bind(queue, "old")
    tx = other.transaction(world.name("T"))
    tx.queue(queue.name).send([{"n": 1}])
    tx.prepare()
    assert not other.drop_queue(queue.name).dropped
    with pytest.raises(QueueClosed, match="says what holds it back"):
        events.bind(queue, "new")
    assert events.publish(rows(2)).unroutable == 1
    assert events.bindings().rows() == []


@in_memory
def test_without_its_queue_for_dead_letters_an_exchange_refuses_them(world: World) -> None:
    rest, wanted = world.queue("rest"), world.queue("wanted")
    said = {"unroutable": "dead_letter", "dead_letter_queue": rest.name}
    events = exchange(world, "direct", **said)
    events.bind(wanted, "yes")
    assert world.manager("b").drop_queue(rest.name).dropped
    with pytest.raises(Unroutable):
        events.publish(rows(1), routing_key="no")
    assert events.publish(rows(2), routing_key="yes").count == 1
    assert events.describe()["dead_letter"] is None


@in_memory
def test_a_queue_that_has_grown_gets_what_is_published(world: World) -> None:
    events, queue = exchange(world, "direct"), world.queue("q")
    events.bind(queue, "a")
    events.publish(rows(1), routing_key="a")
    queue.alter("note string")
    assert events.bind(queue, "b")
    events.publish(rows(2), routing_key="b")
    queue.send([{"n": 3, "note": "mine"}])
    found = [(row["n"], row["note"]) for row in queue.receive().messages()]
    assert found == [(1, None), (2, None), (3, "mine")]


@in_memory
def test_two_managers_bind_at_once_and_both_are_bound(world: World) -> None:
    events = exchange(world, "direct")
    queues = [world.queue(f"q{n}") for n in range(2)]
    other = world.manager("b")
    journal = world.store.journal
    append, raced = journal.append, list[Any]()

    def race(units: Any, metadata: Any) -> Any:
        if not raced:
            raced.append(True)
            other.exchange(events.name).bind(queues[1].name, "k")
        return append(units, metadata)

    journal.append = race
    assert events.bind(queues[0], "k")
    assert [row["queue"] for row in events.bindings().rows()] == [queues[1].name, queues[0].name]
    sequences = [e.sequence for e in journal.read([model.CATALOG]).entries
                 if e.stream == f"exchange/{events.name}"]  # fmt: skip
    assert sequences == [1, 2, 3]


# ----------------------------------------------------------------------------- exchanges


@on_delta_when_long
def test_an_exchange_is_made_once_and_told(world: World) -> None:
    manager = world.manager()
    rest, name = world.queue("rest"), world.name("events")
    said = {"unroutable": "dead_letter", "dead_letter_queue": rest.name, "arguments": {"a": 1}}
    events = manager.create_exchange(name, "topic", SCHEMA, **said)
    events.bind(rest, "a")
    assert events.describe() == {
        "name": name,
        "type": "topic",
        "arguments": {"a": 1},
        "unroutable": "dead_letter",
        "dead_letter": rest.name,
        "columns": {"n": "bigint", "key": "string"},
        "bindings": 1,
        "closing": False,
    }
    assert name in manager.list_exchanges()
    assert "" not in manager.list_exchanges()
    assert name in repr(manager.exchange(name))
    with pytest.raises(ExchangeExists, match="exist_ok"):
        manager.create_exchange(name, "topic", SCHEMA)
    with pytest.raises(ExchangeExists, match="kind='topic'"):
        manager.create_exchange(name, "fanout", SCHEMA, exist_ok=True)
    with pytest.raises(SchemaMismatch):
        manager.create_exchange(name, "topic", "n long", exist_ok=True)
    again = world.manager("b").create_exchange(name, "topic", SCHEMA, exist_ok=True, **said)
    assert again.info == manager.exchange(name).info
    answer = topology(manager).query_exchange(name)
    assert (answer.type, answer.durable, answer.not_found) == ("topic", True, False)
    assert topology(manager).query_exchange(world.name("nobody")).not_found
    asked = topology(manager).query_binding(name, rest.name, "a", {})
    assert not any(getattr(asked, bit) for bit in asked.__dataclass_fields__)
    asked = topology(manager).query_binding(name, world.name("nobody"), "b")
    assert (asked.queue_not_found, asked.key_not_matched, asked.args_not_matched) == (
        True,
        True,
        False,
    )


@in_memory
def test_two_managers_create_an_exchange_at_once_and_there_is_one(world: World) -> None:
    name, made = world.name("events"), list[Any]()
    world.queue("any")
    first, second = world.manager("a"), world.manager("b")
    journal = world.store.journal
    append = journal.append

    def race(units: Any, metadata: Any) -> Any:
        if not made:
            made.append(None)
            made.append(second.create_exchange(name, "fanout", SCHEMA, exist_ok=True))
        return append(units, metadata)

    journal.append = race
    mine = first.create_exchange(name, "fanout", SCHEMA, exist_ok=True)
    assert mine.info == made[1].info


@on_delta_when_long
def test_the_default_exchange_sends_to_the_queue_of_that_name(world: World) -> None:
    queue, default = world.queue("q"), world.manager().exchange()
    published = default.publish(rows(1, 2), routing_key=queue.name, priority=7)
    assert (published.count, published.queues) == (2, {queue.name: 2})
    assert published.returned_messages() == []
    assert numbers(queue.receive()) == [1, 2]
    asked = topology(world.manager()).query_binding(queue=queue.name, routing_key=queue.name)
    assert not (asked.queue_not_matched or asked.key_not_matched)
    assert (default.describe()["type"], default.bindings().rows()) == ("direct", [])
    with pytest.raises(QueueNotFound):
        default.publish(rows(1), routing_key=world.name("nobody"))
    with world.manager("b").transaction() as tx:
        tx.exchange("").publish(rows(3), routing_key=queue.name)
        assert queue.depth() == 0
    assert queue.depth() == 1


@in_memory
def test_a_sink_of_the_default_exchange_is_checked_when_it_is_made(world: World) -> None:
    queue, default = world.queue("q"), world.manager().exchange()
    default.sink(routing_key=queue.name, order_by="n", priority="n")
    for error, said in (
        (LimitExceeded, {"routing_key": queue.name, "priority": 99}),
        (InvalidInput, {"routing_key": queue.name, "order_by": "nobody"}),
        (InvalidInput, {"routing_key_column": "key"}),
        (QueueNotFound, {"routing_key": world.name("nobody")}),
    ):
        with pytest.raises(error):
            default.sink(**said)


@in_memory
def test_wrong_use_is_refused_by_name_and_changes_nothing(world: World) -> None:
    manager = world.manager()
    events, queue = exchange(world, "topic"), world.queue("q")
    other = manager.create_queue(world.name("other"), "n long", dead_letter=False)
    strict = manager.create_queue(world.name("strict"), "n long not null, key string")
    events.bind(queue, "#")
    newest = world.store.journal.version()
    publish = events.publish

    def create(kind: Any = "direct", schema: Any = SCHEMA, **said: Any) -> Any:
        return manager.create_exchange(world.name("fresh"), kind, schema, **said)

    def dead(queue: str) -> Any:
        return create(unroutable="dead_letter", dead_letter_queue=queue)

    def by_column(column: Any, default: bool = False, **said: Any) -> Any:
        one = manager.exchange() if default else events
        return one.publish(rows(1, key="x" * 256), routing_key_column=column, **said)

    refused = [
        (ExchangeNotFound, events.name, lambda: manager.exchange("nobody")),
        (InvalidName, "exchange", lambda: manager.exchange("a'; DROP")),
        (InvalidName, "exchange", lambda: manager.create_exchange("", "direct", SCHEMA)),
        (InvalidInput, "kind", lambda: create("queue")),
        (InvalidInput, "unroutable", lambda: create(unroutable="lose")),
        (InvalidInput, "dead_letter_queue", lambda: create(unroutable="dead_letter")),
        (InvalidInput, "dead_letter_queue", lambda: create(dead_letter_queue=queue.name)),
        (QueueNotFound, "nobody", lambda: dead("nobody")),
        (SchemaMismatch, "columns", lambda: dead(other.name)),
        (InvalidInput, "schema", lambda: create(schema=None)),
        (InvalidInput, "arguments", lambda: create(arguments={"a": []})),
        (QueueNotFound, "nobody", lambda: events.bind("nobody")),
        (SchemaMismatch, other.name, lambda: events.bind(other)),
        (SchemaMismatch, "may be null", lambda: events.bind(strict)),
        (InvalidInput, "routing_key", lambda: events.bind(queue, 5)),
        (InvalidInput, "default exchange", lambda: manager.exchange().bind(queue)),
        (InvalidInput, "default exchange", lambda: manager.exchange().unbind(queue)),
        (InvalidInput, "not both", lambda: by_column("key", routing_key="a")),
        (InvalidInput, "routing_key_column", lambda: by_column(5)),
        (SchemaMismatch, "not a column", lambda: by_column("where")),
        (LimitExceeded, "255", lambda: publish(rows(1), routing_key="x" * 256)),
        (LimitExceeded, "255", lambda: by_column("key")),
        (
            InvalidInput,
            "set by publish itself",
            lambda: publish(rows(1), headers={"routing_key": "a"}),
        ),
        (SchemaMismatch, "m", lambda: publish([{"m": 1}])),
        (InvalidInput, "order_by", lambda: publish(rows(1), order_by="m")),
        (InvalidInput, "no columns", lambda: by_column("key", default=True)),
        (InvalidInput, "durable", lambda: publish(rows(1), durable="no")),
    ]
    for error, named, call in refused:
        with pytest.raises(error, match=named):
            call()
    assert world.store.journal.version() == newest
    assert manager.list_exchanges() == [events.name]


@in_memory
def test_an_exchange_has_so_many_queues_and_no_more(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("txnqueue.core.exchanges.QUEUES_MAX", 1)
    monkeypatch.setattr("txnqueue.core.exchanges.BINDINGS_MAX", 2)
    events = exchange(world, "direct")
    left, right = world.queue("left"), world.queue("right")
    assert events.bind(left, "a")
    with pytest.raises(LimitExceeded, match="queues"):
        events.bind(right, "a")
    assert events.bind(left, "b")
    with pytest.raises(LimitExceeded, match="2 bindings"):
        events.bind(left, "c")
    assert not events.bind(left, "a")


@in_memory
def test_so_many_ranges_and_no_more_unless_the_order_may_go(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("txnqueue.messages.publish.RANGES_PER_PUBLISH_MAX", 20)
    events = exchange(world, "direct")
    left, both = world.queue("left"), world.queue("both")
    events.bind(left, "a")
    events.bind(both, "a")
    events.bind(both, "b")
    mixed = [{"n": n, "key": key} for n, key in zip(range(60), itertools.cycle("ab"))]
    with pytest.raises(LimitExceeded, match="keep_order=False"):
        events.publish(mixed, routing_key_column="key")
    assert both.depth() == 0
    events.publish(mixed, routing_key_column="key", keep_order=False)
    assert numbers(left.receive()) == list(range(0, 60, 2))
    assert numbers(both.receive()) == [*range(0, 60, 2), *range(1, 60, 2)]


@in_memory
def test_a_transaction_of_another_manager_is_told_how_to_publish(world: World) -> None:
    events = exchange(world)
    with pytest.raises(TransactionMismatch, match=r"tx\.exchange"):
        events.publish(rows(1), transaction=world.manager("b").transaction())
