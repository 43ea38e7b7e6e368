"""Every past state can be asked for again."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    alone_on_delta_when_long,
    in_memory,
    numbers,
    on_delta_when_long,
    pick,
    rows,
)
from txnqueue.core import model
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal import Audit
from txnqueue.testing import MemoryStore, plain_schema


def counts(snapshot: Any, queue: Any) -> dict[Any, Any]:
    """Read one queue's row of a snapshot, without what is zero."""
    (row,) = [row for row in snapshot.counts().rows() if row["queue"] == queue.name]
    return {name: n for name, n in row.items() if isinstance(n, int) and n and name != "lanes"}


@on_delta_when_long
def test_the_state_after_any_commit_can_be_seen_again(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    first = orders.send(rows(1, 2, 3)).receipt
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(2)
    orders.send(rows(4))
    then, later = (manager.history.as_of(r.commit_seq) for r in (first, tx.receipt))
    assert counts(then, orders) == {"posted": 3, "available": 3}
    assert counts(later, orders) == {"posted": 3, "available": 1, "accepted": 2}
    assert numbers(then.messages(orders.name).rows()) == [1, 2, 3]
    assert counts(manager.history.as_of(), orders)["posted"] == 4


@in_memory
def test_the_state_at_an_instant_can_be_seen_again(world: World) -> None:
    orders = world.queue()
    world.clock.advance(60)
    orders.send(rows(1))
    instant = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000, datetime.timezone.utc)
    world.clock.advance(60)
    orders.receive().accept()
    history = world.manager("b").history
    assert counts(history.as_of(timestamp=instant), orders) == {"posted": 1, "available": 1}
    before = history.as_of(timestamp=instant - datetime.timedelta(seconds=1))
    assert counts(before, orders) == {}


@in_memory
def test_what_is_not_a_commit_or_an_instant_is_refused(world: World) -> None:
    orders, history = world.queue(), world.manager("b").history
    newest = orders.send(rows(1)).receipt.commit_seq
    naive = datetime.datetime(2024, 1, 1)
    refused: list[Callable[[], object]] = [
        lambda: history.as_of(newest + 1024),
        lambda: history.as_of(-2),
        lambda: history.as_of("yesterday"),  # type: ignore[arg-type]
        lambda: history.as_of(True),
        lambda: history.report(True),
        lambda: history.as_of(timestamp=naive),
        lambda: history.as_of(newest, timestamp=naive),
        lambda: history.as_of(timestamp=pd.NaT),
        lambda: history.report(pd.NaT),
        lambda: history.changes(after=pd.NaT),
        history.trace,
        lambda: history.trace("nonsense"),
        lambda: history.trace("a:0", queue=orders.name),
        lambda: history.trace("a:0", where="n = 1"),
    ]
    for call in refused:
        with pytest.raises(InvalidInput):
            call()


@on_delta_when_long
def test_minus_one_is_the_state_before_the_first_commit(world: World) -> None:
    orders, history = world.queue(), world.manager("b").history
    orders.send(rows(1))
    first = history.as_of(-1)
    assert (first.commit_seq, first.queues().rows(), first.counts().rows()) == (-1, [], [])
    assert not first.transactions().rows()
    assert not first.dispatches().rows()
    whole = history.report(verify=False).figures.differences
    assert history.report(after=-1, verify=False).figures.differences == whole
    assert len(orders.replay(upto=-1)) == 0
    with pytest.raises(InvalidInput, match="commit_seq=-1: give a commit"):
        history.digest(-1)


@on_delta_when_long
def test_a_message_can_be_followed_through_the_store(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2))
    ids = [m["_message"]["id"] for m in orders.peek_messages()]
    orders.receive().release()
    with world.manager("b").transaction() as tx:
        batch = tx.queue(orders.name).receive()
        batch.reject(matching=pick(batch, 2), reason="bad")
    one, two = (world.manager().history.trace(one).rows() for one in ids)
    steps = ["sent", "claimed", "released", "claimed"]
    assert [row["step"] for row in one] == [*steps, "accepted"]
    assert {row["step"] for row in two[len(steps) :]} == {"rejected", "moved"}
    assert (one[-1]["transaction_id"], one[-1]["decision"]) == (tx.id, "committed")
    assert one[-1]["actor"] == world.name("b")


@on_delta_when_long
def test_transactions_and_dispatches_are_listed_with_who_and_why(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    tx = world.manager("b").transaction(world.name("night"))
    tx.queue(orders.name).receive()
    tx.rollback("no")
    snapshot = world.manager().history.as_of()
    (row,) = [r for r in snapshot.transactions().rows() if r["transaction_id"] == tx.id]
    assert (row["status"], row["reason"], row["actor"]) == ("rolled_back", "no", world.name("b"))
    kinds = [r["kind"] for r in snapshot.dispatches().rows() if r["queue"] == orders.name]
    assert kinds == ["posted", "claimed", "released"]


@alone_on_delta_when_long
def test_what_happened_between_two_commits_is_listed(world: World) -> None:
    manager = world.manager("a")
    orders = manager.create_queue("orders", "n long, key string")
    first = orders.send(rows(1, 2)).receipt.commit_seq
    with manager.transaction() as tx:
        tx.queue("orders").receive(1)
    listed = manager.history.changes(first, tx.receipt.commit_seq).rows()
    assert [row["kind"] for row in listed] == ["claimed", "committed", "accepted"]
    assert {row["transaction_id"] for row in listed} == {tx.id}
    everything = manager.history.changes().rows()
    assert len(everything) > len(listed)
    assert everything[0]["commit_seq"] == manager.history.horizon()
    if world.has_frames:
        assert manager.history.changes(first).df().count() == 3
    with pytest.raises(InvalidInput):
        manager.history.changes("yesterday").rows()  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="earlier commit first"):
        manager.history.changes(tx.receipt.commit_seq, first)
    assert manager.history.changes(first, first).rows() == []


def test_a_busy_store_is_verified(alone: World) -> None:
    manager, other = alone.manager("a"), alone.manager("b")
    orders = manager.create_queue("orders", "n long, key string", lanes=2)
    out = manager.create_queue("out", "n long, key string")
    orders.send(rows(*range(10)))
    with manager.transaction() as tx:
        batch = tx.queue("orders").receive(4)
        batch.reject(matching=batch.messages()[:1], reason="bad")
        tx.queue("out").send(batch.messages())
    batch = other.queue("orders").receive(3)
    batch.release(matching=batch.messages()[:1])
    with other.transaction() as tx:
        batch.accept(matching=batch.messages()[1:2], transaction=tx)
    tx = manager.transaction()
    tx.queue("orders").receive(1)
    tx.rollback()
    found = manager.history.verify()
    assert found.ok, found
    by_claim = {claim.claim: claim.found for claim in found.claims}
    assert by_claim["messages posted = waiting + in flight + gone"] == 15  # 10, 1 dead, 4 out
    assert by_claim["messages and waiting changes whose payload is there, once"] == 15
    assert out.depth() == 4 and "✓" in repr(found)


def tampering(store: Any) -> dict[Any, Any]:
    """Ways to break a store in memory, each with a word of what is then said."""
    journal, payload = store.journal, store.payload

    def entry(kind: Any) -> Any:
        return next(e for c, _ in journal.commits for e in c if e.kind == kind)

    def again(kind: Any) -> None:
        landed = entry(kind)
        journal.commits.append(((landed,), {}))
        journal._shards[landed.shard].append(landed)

    def without(kind: Any) -> None:
        gone = entry(kind)
        journal._shards[gone.shard].remove(gone)

    def shorter() -> None:
        name = next(name for name, table in payload._sends.items() if table.num_rows)
        payload._sends[name] = payload._sends[name].slice(1)

    return {
        "a decision twice": lambda: again("committed"),
        "a settlement twice": lambda: again("accepted"),
        "a settlement lost": lambda: without("accepted"),
        "a position lost": lambda: without("posted"),
        "payload lost": shorter,
    }


@in_memory
@pytest.mark.parametrize("how", list(tampering(MemoryStore())))
def test_what_was_tampered_with_is_found(world: World, how: str) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2, 3))
    *_, last = (message["_message"]["id"] for message in orders.peek_messages())
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(2)
    assert manager.history.verify().ok
    tampering(world.store)[how]()
    proof = manager.history.verify()
    assert not proof.ok
    if how == "payload lost":
        said = f"queue {orders.name}: 2 rows of payload are there in slice 0, of 3"
        assert proof.problems == (f"{said}; the first that is not there once is {last}",)


@in_memory
def test_payload_of_what_is_prepared_is_missed_until_it_is_rolled_back(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    world.store.tables.create("gold", plain_schema("n long, key string"))
    tx = manager.transaction()
    tx.queue(orders.name).send(rows(1, 2, 3))
    tx.table("gold").append(rows(1, 2))
    tx.prepare()
    proof = manager.history.verify()
    assert proof.ok, proof
    (payload,) = (line for line in proof.claims if "payload is there" in line.claim)
    assert payload.found == 5
    sends = world.store.payload._sends
    for name, table in sends.items():
        sends[name] = table.slice(1)
        (problem,) = manager.history.verify().problems
        assert f"{table.num_rows - 1} rows of payload are there in slice 0" in problem
        sends[name] = table
    for name, table in sends.items():
        sends[name] = table.slice(1)
    manager.rollback(tx.id)
    assert manager.history.verify().ok


def tell_nothing(journal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log of a store in memory be as Delta's is after some days."""
    silent = Audit(journal.version() + 1, 0, 0, 0, 0, 0)
    monkeypatch.setattr(journal, "audit", lambda *_: silent)


@in_memory
@pytest.mark.parametrize("kind", ["committed", "rolled_back"])
def test_a_decision_that_was_lost_is_missed_without_a_log(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2, 3))
    tx = manager.transaction()
    tx.queue(orders.name).receive(2)
    tx.rollback()
    journal = world.store.journal
    tell_nothing(journal, monkeypatch)
    assert manager.history.verify().ok
    gone = next(e for found, _ in journal.commits for e in found if e.kind == kind)
    journal._shards[gone.shard].remove(gone)
    (problem,) = manager.history.verify().problems
    assert problem == f"no decision of {gone.attempt} stands beside what it did"


@in_memory
def test_what_moved_is_missed_where_it_went_and_nothing_else_came(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, other = world.queue(dead_letter=True, deliveries_max=1), world.queue("other")
    orders.send(rows(1, 2, 3, 4, 5))
    orders.receive(1).reject(reason="bad")
    orders.receive(1).modify()
    with world.manager("b").transaction() as tx:
        tx.queue(orders.name).receive(1).move(other.name)
    assert orders.move(other.name, limit=1) == 1
    manager, journal = world.manager("b"), world.store.journal
    tell_nothing(journal, monkeypatch)
    proof = manager.history.verify()
    assert proof.ok, proof
    left = {claim.claim: claim.found for claim in proof.claims if "left a queue" in claim.claim}
    assert left == {"messages that left a queue for another one, and came there": 4}
    moved = [
        entry
        for found in journal._shards.values()
        for entry in found
        if entry.kind == model.POSTED and "origin" in entry.body
    ]
    assert len(moved) == 4
    for entry in moved:
        backlog = journal._shards[entry.shard]
        backlog.remove(entry)
        assert any("and 1 left for it" in one for one in manager.history.verify().problems)
        backlog.append(entry)
        assert manager.history.verify().ok
    sent = next(e for e in journal._shards[model.backlog_shard(orders.info.queue_id)])
    for forged in (moved[0], replace(sent, attempt=None)):
        late = replace(forged, append_id="forged", version=journal.version())
        journal._shards[late.shard].append(late)
        assert any("1 messages came from" in one for one in manager.history.verify().problems)
        journal._shards[late.shard].remove(late)


@on_delta_when_long
def test_a_trace_tells_where_a_message_went_and_what_it_changed(world: World) -> None:
    if not world.has_frames:
        world.store.tables.create("gold", plain_schema("n long, key string"))
        table = "gold"
    else:
        table = f"{world.root}-tables/{world.name('gold')}"
        world.spark.sql(f"CREATE TABLE delta.`{table}` (n long, key string) USING delta")
    orders, manager = world.queue(dead_letter=True), world.manager("b")
    orders.send(rows(1, 2))
    with manager.transaction() as tx:
        batch = tx.queue(orders.name).receive(2)
        ids = [row["_message"]["id"] for row in batch.messages()]
        batch.reject(matching=pick(batch, 2), reason="bad")
        tx.table(table).append(rows(1))
    first, second = (manager.history.trace(one).rows() for one in ids)
    assert [(s["step"], s["target"], s["rows"]) for s in first] == [
        ("sent", None, None),
        ("claimed", None, None),
        ("accepted", None, None),
        ("changed", table, 1),
    ]
    assert [(s["step"], s["target"]) for s in second if s["step"] != "moved"] == [
        ("sent", None),
        ("claimed", None),
        ("rejected", f"{orders.name}.dead"),
    ]
    assert "moved" in {s["step"] for s in second}
    assert all(s["actor"] and s["commit_seq"] for s in first)


@on_delta_when_long
def test_the_current_state_goes_by_the_clock_and_not_by_the_last_commit(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1), delay_seconds=60)
    last = orders.send(rows(2), ttl_seconds=60).receipt
    waiting = {"posted": 2, "available": 1, "delayed": 1}
    assert counts(manager.history.as_of(), orders) == waiting
    world.clock.advance(61)
    assert counts(manager.history.as_of(), orders) == {"posted": 2, "available": 1, "expired": 1}
    states = {m["n"]: m["state"] for m in manager.history.as_of().messages(orders.name).rows()}
    assert states[1] == "available" != states[2]
    assert counts(manager.history.as_of(last.commit_seq), orders) == waiting


@in_memory
def test_a_commit_that_is_yet_to_come_is_named_by_its_argument(world: World) -> None:
    queue, manager = world.queue(), world.manager("b")
    last = queue.send(rows(1)).receipt.commit_seq
    later, history = last + 1024, manager.history
    asked: list[tuple[str, Callable[[], object]]] = [
        ("commit_seq", lambda: history.as_of(later)),
        ("after", lambda: history.report(after=later, verify=False)),
        ("upto", lambda: history.report(upto=later, verify=False)),
        ("after", lambda: queue.replay(after=later)),
        ("upto", lambda: queue.replay(upto=later)),
        ("as_of", lambda: manager.rehearse(lambda *_: None, queue.name, as_of=later)),
    ]
    for name, ask in asked:
        with pytest.raises(InvalidInput) as refused:
            ask()
        assert str(refused.value).startswith(f"{name}={later}: give at most {last}")
        assert refused.value.name == name


@in_memory
def test_a_trace_tells_a_table_change_once_however_often_the_message_was_consumed(
    world: World,
) -> None:
    manager = world.manager("b")
    events = manager.create_exchange(world.name("events"), "fanout", SCHEMA)
    queues = [world.queue("one"), world.queue("two")]
    for queue in queues:
        events.bind(queue.name)
    world.store.tables.create("/gold/seen", queues[0].schema)
    events.publish(rows(1))
    with manager.transaction() as tx:
        batches = [tx.queue(queue.name).receive() for queue in queues]
        found = batches[0].messages()
        tx.table("/gold/seen").append([{"n": 1, "key": None}])
    traced = manager.history.trace(found[0]["_message"]["id"]).rows()
    steps = [row["step"] for row in traced]
    assert (steps.count("accepted"), steps.count("changed")) == (2, 1)
