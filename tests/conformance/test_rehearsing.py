"""A handler is rehearsed on a past state: what it would do is told, and nothing is done."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.faults.pasts import everything
from tests.inside import client_of
from txnqueue.core import model
from txnqueue.errors import (
    HistoryRemoved,
    InvalidInput,
    LimitExceeded,
    OnlyRehearsed,
    PayloadRemoved,
    QueueNotFound,
    SchemaMismatch,
    TableNotFound,
    TransactionFinished,
    TransactionMismatch,
    TransactionNotGiven,
)
from txnqueue.testing import plain_schema


def compared(rehearsal: Any) -> dict[Any, tuple[int, int]]:
    """Read both sides by what it is about."""
    return {
        (row["what"], row["queue"] or row["table"]): (row["would"], row["really"])
        for row in rehearsal.rows()
    }


def forward(target: str, factor: int = 1) -> Callable[[Any, Any], None]:
    """Make a handler that sends on what it gets."""

    def handle(batch: Any, tx: Any) -> None:
        found = [{"n": m["n"] * factor, "key": m["key"]} for m in batch.messages()]
        tx.queue(target).send(found)

    return handle


@contextmanager
def untouched(manager: Any) -> Iterator[None]:
    """Prove that neither the journal, the payload, the files nor the memory has changed."""

    def state() -> Any:
        store = client_of(manager).store
        root = Path(store.root)
        files = sorted(
            (str(path), path.stat().st_size)
            for path in (root.rglob("*") if "/" in store.root else ())
            if path.is_file()
        )
        staged = [] if files else [(n, store.payload.slices(n)) for n in store.payload.orphans(())]
        return store.journal.version(), store.transient.used, staged, files

    before = state()
    yield
    assert state() == before


@on_delta_when_long
def test_a_handler_is_compared_with_what_was_done_then(world: World) -> None:
    orders, bills, audit = world.queue(), world.queue("bills"), world.queue("audit")
    manager = world.manager("b")
    sent = orders.send(rows(1, 2, 3)).receipt
    orders.drain(forward(bills.name), batch_size=2)
    orders.send(rows(4))

    def other(batch: Any, tx: Any) -> None:
        forward(bills.name, 10)(batch, tx)
        found = batch.messages()
        tx.send({audit.name: found[:1]})
        batch.reject(matching=found[2:])

    with untouched(manager):
        rehearsal = manager.rehearse(other, orders.name, as_of=sent.commit_seq)
        assert compared(rehearsal) == {
            ("accepted", orders.name): (2, 3),
            ("rejected", orders.name): (1, 0),
            ("sent", audit.name): (1, 0),
            ("sent", bills.name): (3, 3),
        }
        assert numbers(rehearsal.sent(bills.name).rows()) == [10, 20, 30]
        assert numbers(rehearsal.was_sent(bills.name).rows()) == [1, 2, 3]
        assert numbers(rehearsal.sent(audit.name).rows()) == [1]
        assert rehearsal.was_sent(audit.name).rows() == []
        if world.has_frames:
            assert rehearsal.df().count() == 4
            assert {r["n"] for r in rehearsal.sent(bills.name).df().collect()} == {10, 20, 30}
        about = (rehearsal.messages, rehearsal.consumed, rehearsal.error, rehearsal.rolled_back)
        assert about == (3, 3, None, False)
        assert len(rehearsal.transactions) == 2
        assert "done for real" in rehearsal._repr_html_()
    assert (orders.depth(), bills.depth(), audit.depth()) == (1, 3, 0)


@in_memory
def test_it_runs_on_what_could_be_received_then(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2, 3))
    held = orders.receive(1)
    orders.send(rows(9), delay_seconds=100)
    seen: list[list[int]] = []

    def look(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))

    world.clock.advance(60)
    instant = datetime.datetime.fromtimestamp(world.clock.now_ms / 1000, datetime.timezone.utc)
    world.clock.advance(60)
    held.accept()
    with untouched(manager):
        manager.rehearse(look, orders, as_of=instant)
        manager.rehearse(look, orders.name)
        manager.rehearse(look, orders.name, limit=1)
    assert seen == [[2, 3], [2, 3, 9], [2]]
    orders.purge()
    empty = manager.rehearse(look, orders)
    assert (empty.messages, empty.rows(), len(seen)) == (0, [], 3)


@in_memory
def test_a_handler_that_fails_or_rolls_back_would_change_nothing(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1))

    def fails(batch: Any, tx: Any) -> None:
        forward(bills.name)(batch, tx)
        raise ValueError("no price")

    def gives_up(batch: Any, tx: Any) -> None:
        forward(bills.name)(batch, tx)
        tx.rollback("later")

    def interrupted(batch: Any, tx: Any) -> None:
        raise KeyboardInterrupt

    with untouched(manager):
        failed = manager.rehearse(fails, orders)
        assert isinstance(failed.error, ValueError) and failed.rolled_back
        assert compared(failed) == {} and "no price" in repr(failed)
        given_up = manager.rehearse(gives_up, orders)
        assert (given_up.error, given_up.rolled_back, given_up.rows()) == (None, True, [])
        with pytest.raises(KeyboardInterrupt):
            manager.rehearse(interrupted, orders)
        assert manager.queue(orders.name).depth() == 1
    manager.queue(orders.name).receive().accept()


@in_memory
def test_what_a_send_refuses_is_refused(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1))
    mine = manager.queue(bills.name)
    refused: list[tuple[type[Exception], Callable[[Any, Any], object]]] = [
        (SchemaMismatch, lambda batch, tx: tx.queue(bills.name).send([{"wrong": 1}])),
        (QueueNotFound, lambda batch, tx: tx.queue("nowhere").send(rows(1))),
        (TransactionMismatch, lambda batch, tx: mine.send(rows(1), transaction=tx)),
        (TransactionNotGiven, lambda batch, tx: mine.send(rows(1))),
        (OnlyRehearsed, lambda batch, tx: tx.commit()),
        (OnlyRehearsed, lambda batch, tx: tx.prepare()),
        (OnlyRehearsed, lambda batch, tx: tx.enlist("billing", object(), last=True)),
        (OnlyRehearsed, lambda batch, tx: tx.auxiliary("log", object())),
    ]
    with untouched(manager):
        for expected, handle in refused:
            rehearsal = manager.rehearse(handle, orders)
            assert isinstance(rehearsal.error, expected), rehearsal.error
        with pytest.raises(InvalidInput):
            manager.rehearse("no function", orders)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            manager.rehearse(forward(bills.name), orders, as_of=1 << 40)
        with pytest.raises(QueueNotFound):
            manager.rehearse(forward(bills.name), "nowhere")


@in_memory
def test_whoever_keeps_the_batch_or_the_transaction_is_refused_later(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1, 2))
    kept: list[Any] = []
    with untouched(manager):
        manager.rehearse(lambda batch, tx: kept.extend([batch, tx]), orders)
        batch, tx = kept
        assert numbers(batch) == [1, 2]
        for call in (
            batch.accept,
            lambda: batch.reject(reason="late"),
            lambda: tx.queue(bills.name).send(rows(1)),
        ):
            with pytest.raises(TransactionFinished):
                call()
        with pytest.raises(OnlyRehearsed):
            tx.commit()
    assert orders.depth() == 2


@in_memory
def test_a_handler_may_send_to_the_queue_itself_and_look_into_it(world: World) -> None:
    orders, manager = world.queue(lanes=1, ordered=True), world.manager("b")
    orders.send(rows(1, 2, 3))

    def handle(batch: Any, tx: Any) -> None:
        queue = tx.queue(orders.name)
        more = queue.receive(1)
        queue.send(rows(*(10 * n for n in numbers(batch) + numbers(more))))
        batch.release(matching=batch.messages()[:1])

    with untouched(manager):
        rehearsal = manager.rehearse(handle, orders, limit=2)
        assert rehearsal.error is None
        assert compared(rehearsal)["sent", orders.name] == (3, 0)
        assert compared(rehearsal)["released", orders.name][0] >= 1
        assert numbers(rehearsal.sent(orders.name).rows()) == [10, 20, 30]
    assert orders.depth() == 3


@on_delta_when_long
def test_batch_by_batch_it_is_what_a_drain_does_then(world: World, tmp_path: Path) -> None:
    """The same handler on the same messages in the same batches: both sides are equal."""
    orders, bills, side = world.queue(), world.queue("bills"), world.queue("side")
    manager, table = world.manager("b"), str(tmp_path / "totals")
    if world.has_frames:
        empty = world.spark.createDataFrame([], "n long")
        empty.write.format("delta").save(table)
    else:
        world.store.tables.create(table, plain_schema("n long"))
    sent = orders.send(rows(1, 2, 3, 4, 5)).receipt
    sizes: list[int] = []

    def handle(batch: Any, tx: Any) -> None:
        sizes.append(len(batch))
        found = batch.messages()
        earlier = tx.queue(side.name).receive(10)  # what the batch before it sent
        tx.queue(bills.name).send(rows(*numbers(earlier)))
        tx.send({side.name: found, orders.name: rows(*(10 * n for n in numbers(found)))})
        tx.queue(bills.name).send(rows(*(-n for n in numbers(found))), durable=False)
        tx.table(table).append([{"n": n} for n in numbers(found)])
        batch.reject(matching=found[1:], reason="odd")

    with untouched(manager):
        before = manager.rehearse(handle, orders.name, batch_size=2)
        assert (before.messages, before.batches, sizes) == (5, 3, [2, 2, 1])
        assert "5 messages in 3 batches" in repr(before)
        assert numbers(before.sent(bills.name).rows()) == [-1, -2, 1, 2, -3, -4, 3, 4, -5]
        would = {what: told[0] for what, told in compared(before).items()}
        assert would == {
            ("accepted", orders.name): 3,
            ("accepted", side.name): 4,
            ("append", table): 5,
            ("rejected", orders.name): 2,
            ("sent", bills.name): 9,
            ("sent", orders.name): 5,
            ("sent", side.name): 5,
        }
    drained = orders.drain(handle, batch_size=2)
    assert (drained.messages, drained.batches) == (5, 3)
    durable = {**would, ("sent", bills.name): 4}  # no history has what was in memory only
    with untouched(manager):
        after = manager.rehearse(handle, orders.name, as_of=sent.commit_seq, batch_size=2)
        found = compared(after)
        assert {what: told[0] for what, told in found.items()} == would
        assert {what: told[1] for what, told in found.items()} == durable
        assert all(row["would"] == row["really"] for row in after.changes(table).rows())
        assert (after.consumed, len(after.transactions)) == (5, 3)


@in_memory
def test_after_a_batch_that_fails_there_is_no_other_and_those_before_it_count(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1, 2, 3, 4, 5))
    seen: list[int] = []

    def fails(batch: Any, tx: Any) -> None:
        seen.extend(numbers(batch))
        forward(bills.name)(batch, tx)
        if 3 in seen:
            raise ValueError("three")

    def gives_up(batch: Any, tx: Any) -> None:
        forward(bills.name)(batch, tx)
        if 3 in numbers(batch):
            tx.rollback()

    with untouched(manager):
        failed = manager.rehearse(fails, orders, batch_size=2)
        assert seen == [1, 2, 3, 4]
        assert (str(failed.error), failed.rolled_back, failed.batches) == ("three", True, 2)
        given_up = manager.rehearse(gives_up, orders, batch_size=2)
        assert (given_up.error, given_up.rolled_back, given_up.batches) == (None, True, 2)
        for one in (failed, given_up):
            assert {what: told[0] for what, told in compared(one).items()} == {
                ("accepted", orders.name): 2,
                ("sent", bills.name): 2,
            }
            assert numbers(one.sent(bills.name).rows()) == [1, 2]


@in_memory
def test_batches_end_at_the_limit_whatever_comes_back(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2, 3))
    seen: list[list[int]] = []

    def releases(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))
        batch.release()

    with untouched(manager):
        rehearsal = manager.rehearse(releases, orders, limit=7, batch_size=3)
        assert (seen, rehearsal.messages) == ([[1, 2, 3], [1, 2, 3], [1]], 7)
        assert rehearsal.error is None and not rehearsal.rolled_back
        for wrong in (0, 1.5, "2", -1):
            with pytest.raises(InvalidInput):
                manager.rehearse(releases, orders, batch_size=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput):
                manager.rehearse(releases, orders, limit=wrong)  # type: ignore[arg-type]
    assert len(seen) == 3


@in_memory
def test_exchanges_moves_transient_messages_and_tables_are_told(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    news = manager.create_exchange(world.name("news"), "fanout", plain_schema("n long, key string"))
    news.bind(bills)
    orders.send(rows(1, 2))
    world.store.tables.create("gold/totals", plain_schema("n long"))

    def handle(batch: Any, tx: Any) -> None:
        tx.exchange(news.name).publish(rows(7, 8))
        tx.queue(bills.name).send(rows(9), durable=False)
        tx.table("gold/totals").append([{"n": 1}, {"n": 2}])
        batch.move(bills.name, matching=batch.messages()[:1])
        batch.accept()

    with untouched(manager):
        rehearsal = manager.rehearse(handle, orders)
        assert rehearsal.error is None
        assert compared(rehearsal) == {
            ("accepted", orders.name): (1, 0),
            ("append", "gold/totals"): (2, 0),
            ("moved", bills.name): (1, 0),
            ("sent", bills.name): (3, 0),
        }
        assert sorted(numbers(rehearsal.sent(bills.name).rows())) == [7, 8, 9]
    assert world.store.tables.rows("gold/totals").num_rows == 0
    with manager.transaction() as tx:
        handle(tx.queue(orders.name).receive(), tx)
    again = manager.rehearse(handle, orders, as_of=rehearsal.commit_seq)
    assert compared(again)["append", "gold/totals"] == (2, 2)
    assert compared(again)["moved", bills.name] == (1, 1)


@in_memory
def test_maps_in_the_rows_of_changes_are_the_same_in_whatever_order(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    sent = orders.send(rows(1)).receipt
    counts, texts = MapType(StringType(), LongType()), MapType(LongType(), StringType())
    inside = StructType([StructField("l", ArrayType(texts))])
    table = StructType([StructField("m", counts), StructField("s", inside)])
    world.store.tables.create("gold/totals", table)

    def add(turn: int) -> Callable[[Any, Any], None]:
        def handle(batch: Any, tx: Any) -> None:
            pairs, numbered = [("b", 1), ("a", 2)][::turn], [(10, "x"), (9, "y")][::turn]
            row = {"m": dict(pairs), "s": {"l": [dict(numbered), None]}}
            tx.table("gold/totals").append([row])

        return handle

    orders.drain(add(1))
    (found,) = (
        manager.rehearse(add(-1), orders, as_of=sent.commit_seq).changes("gold/totals").rows()
    )
    assert (found["would"], found["really"]) == (1, 1)
    assert found["row"] == '{"m": {"a": 2, "b": 1}, "s": {"l": [{"10": "x", "9": "y"}, null]}}'


@in_memory
def test_the_rows_of_a_tables_changes_are_shown_beside_those_of_then(world: World) -> None:
    orders, manager = world.queue(), world.manager("b")
    sent = orders.send(rows(1, 2, 3)).receipt
    world.store.tables.create("gold/totals", plain_schema("n long, key string"))

    def add(more: int) -> Callable[[Any, Any], None]:
        def handle(batch: Any, tx: Any) -> None:
            found = [{"n": m["n"] + more, "key": "é"} for m in batch.messages()]
            tx.table("gold/totals").append(found[:1])
            tx.table("gold/totals").append([*found[1:], {"n": 9, "key": None}])

        return handle

    orders.drain(add(0))
    with untouched(manager):
        rehearsal = manager.rehearse(add(1), orders, as_of=sent.commit_seq)
        found = rehearsal.changes("gold/totals").rows()
        assert {(row["operation"], row["how"]) for row in found} == {("append", None)}
        assert sorted((row["row"], row["would"], row["really"]) for row in found) == [
            ('{"n": 1, "key": "é"}', 0, 1),
            ('{"n": 2, "key": "é"}', 1, 1),
            ('{"n": 3, "key": "é"}', 1, 1),
            ('{"n": 4, "key": "é"}', 1, 0),
            ('{"n": 9, "key": null}', 1, 1),
        ]
        with pytest.raises(LimitExceeded, match="have 4 rows"):
            rehearsal.changes("gold/totals", limit=3).rows()
        with pytest.raises(LimitExceeded):
            rehearsal.changes("gold/totals", limit=0)
        with pytest.raises(TableNotFound, match="gold/totals"):
            rehearsal.changes("gold/none")
    (staged,) = [e for e in everything(world.store) if e.kind == "change_decided"]
    source = staged.body["change"]["source"]
    client_of(manager).store.payload.drop(source["payload_id"], {source["slice"]})
    with pytest.raises(PayloadRemoved, match=r"'gold/totals' were removed.* rehearse a later"):
        rehearsal.changes("gold/totals").rows()


@in_memory
def test_the_past_has_the_queues_and_columns_of_then(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    sent = orders.send(rows(1)).receipt
    orders.drain(forward(bills.name))
    bills.alter(add=plain_schema("extra string"))
    manager.drop_queue(orders.name)
    new = manager.create_queue(orders.name, plain_schema("other string"))
    with untouched(manager):
        rehearsal = manager.rehearse(forward(bills.name), orders.name, as_of=sent.commit_seq)
        assert rehearsal.error is None
        assert compared(rehearsal)["sent", bills.name] == (1, 1)
        assert numbers(rehearsal.was_sent(bills.name).rows()) == [1]
        older = manager.rehearse(
            lambda _, tx: tx.queue(bills.name).send([{"n": 1, "extra": "x"}]),
            orders.name,
            as_of=sent.commit_seq,
        )
        assert isinstance(older.error, SchemaMismatch)
        with pytest.raises(QueueNotFound):
            manager.rehearse(forward(bills.name), new, as_of=sent.commit_seq)
        with pytest.raises(QueueNotFound):
            rehearsal.sent("nowhere")


@in_memory
def test_payload_and_history_that_were_removed_are_missed(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    sent = orders.send(rows(1)).receipt
    orders.drain(forward(bills.name))
    consumed = client_of(manager).store.journal.version() << 10
    payload, payload_id = client_of(manager).store.payload, orders.info.payload_id
    payload.drop(payload_id, payload.slices(payload_id))
    rehearsal = manager.rehearse(forward(bills.name), orders, as_of=sent.commit_seq)
    assert isinstance(rehearsal.error, PayloadRemoved)
    assert f"rehearse as_of={consumed} or later" in str(rehearsal.error)
    assert (rehearsal.messages, rehearsal.consumed) == (1, 1)
    left = manager.rehearse(forward(bills.name), orders, as_of=sent.commit_seq, partial=True)
    assert (left.error, left.messages) == (None, 0)
    failing = manager.rehearse(lambda batch, tx: 1 / 0, bills)
    assert isinstance(failing.error, ZeroDivisionError)  # with which payload has nothing to do
    later = manager.rehearse(forward(bills.name), orders, as_of=consumed)
    assert (later.error, later.messages) == (None, 0)
    for _ in range(4):
        world.clock.advance(20 * 86_400)
        bills.send(rows(7))
        manager.maintain(payload_retention_days=7, history_retention_days=7, vacuum=False)
    with pytest.raises(HistoryRemoved):
        manager.rehearse(forward(bills.name), orders, as_of=sent.commit_seq)


@in_memory
def test_history_that_is_removed_while_the_handler_runs_is_missed(world: World) -> None:
    orders, busy, manager = world.queue(), world.queue("busy"), world.manager("b")
    sent = orders.send(rows(1)).receipt
    orders.receive().accept()

    def slow(batch: Any, tx: Any) -> None:
        assert numbers(batch) == [1]
        for _ in range(4):
            world.clock.advance(2 * 86_400)
            busy.send(rows(7))
            manager.maintain(
                transaction_seconds_max=0, payload_retention_days=0, history_retention_days=0
            )

    with pytest.raises(HistoryRemoved):
        manager.rehearse(slow, orders, as_of=sent.commit_seq)


@in_memory
def test_what_was_archived_and_compacted_is_rehearsed_as_it_was(world: World) -> None:
    orders, bills, manager = world.queue(dead_letter=True), world.queue("bills"), world.manager("b")
    first = orders.send(rows(*range(20))).receipt
    for _ in range(5):
        orders.drain(forward(bills.name), batch_size=2, max_batches=1)
    middle = manager.history.as_of().commit_seq
    orders.drain(forward(bills.name))
    world.clock.advance(2 * 86_400)
    manager.maintain(transaction_seconds_max=0, payload_retention_days=7, vacuum=False)
    with untouched(manager):
        whole = manager.rehearse(forward(bills.name), orders, as_of=first.commit_seq)
        assert (whole.error, whole.messages, whole.consumed) == (None, 20, 20)
        rest = manager.rehearse(forward(bills.name), orders, as_of=middle)
        assert numbers(rest.sent(bills.name).rows()) == list(range(10, 20))
        assert compared(rest)["sent", bills.name] == (10, 10)


@in_memory
def test_what_was_prepared_then_is_held_though_it_was_decided_and_archived_since(
    world: World,
) -> None:
    orders, busy, manager = world.queue(), world.queue("busy"), world.manager("b")
    orders.send(rows(1, 2))
    tx = world.manager("holder").transaction(world.name("xid"))
    tx.queue(orders.name).receive(1)
    tx.prepare()
    earlier = world.manager("holder").transaction(world.name("earlier"))
    earlier.queue(busy.name).send(rows(3))
    earlier.prepare()
    manager.commit(earlier.id)
    world.lease_over()
    manager.maintain(transaction_seconds_max=0)
    busy.receive().accept()
    then = manager.history.as_of().commit_seq
    seen: list[list[int]] = []

    def look(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))

    manager.rehearse(look, orders, as_of=then)
    manager.commit(tx.id)
    busy.send(rows(4))
    world.clock.advance(86_400)
    manager.maintain(transaction_seconds_max=0)
    archived = client_of(manager).store.journal.archive.read(kinds=[model.PREPARED])
    assert len(archived) == 2, "vacuous"
    manager.rehearse(look, orders, as_of=then)
    assert seen == [[2], [2]]


@on_delta_when_long
def test_what_was_sent_to_queues_of_one_name_is_shown_of_each(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    sent = orders.send(rows(1, 2)).receipt
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        tx.queue(bills.name).send(rows(10))
    bills.drop()
    manager.create_queue(bills.name, "n long, paid boolean")
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        tx.queue(bills.name).send([{"n": 20, "paid": True}])
    rehearsal = manager.rehearse(forward(bills.name), orders, as_of=sent.commit_seq)
    assert compared(rehearsal)["sent", bills.name] == (2, 2)
    shown = rehearsal.was_sent(bills.name).rows()
    assert [(row["n"], row["key"], row["paid"]) for row in shown] == [
        (10, None, None),
        (20, None, True),
    ]


def archive(world: World, manager: Any, busy: Any) -> None:
    """Let everything leave the journal that is over."""
    for _ in range(3):
        world.clock.advance(2 * 86_400)
        manager.maintain(transaction_seconds_max=0, payload_retention_days=9, vacuum=False)
        busy.send(rows(0))


def received(manager: Any, queue: Any, then: int) -> list[int]:
    """Rehearse on a past state, and say what the handler got."""
    got: list[int] = []
    manager.rehearse(lambda batch, _: got.extend(numbers(batch)), queue, as_of=then)
    return got


@in_memory
def test_what_nobody_held_then_is_received_though_that_was_archived_since(world: World) -> None:
    orders, busy, manager = world.queue(), world.queue("busy"), world.manager("b")
    orders.send(rows(1))
    tx = world.manager("late").transaction()
    tx.queue(orders.name).receive(1)
    world.lease_over()
    orders.receive(1).accept()  # the transaction is aborted
    orders.send(rows(2))
    assert len(tx.queue(orders.name).receive(1)) == 1  # and does not know it
    then = busy.send(rows(0)).receipt.commit_seq
    assert received(manager, orders, then) == [2]
    orders.receive(1).accept()
    archive(world, manager, busy)
    assert received(manager, orders, then) == [2]


@in_memory
def test_what_is_done_at_once_by_the_rehearsed_transactions_queues_is_told(world: World) -> None:
    orders, bills, manager = world.queue(), world.queue("bills"), world.manager("b")
    orders.send(rows(1))
    bills.send(rows(5))

    def handle(batch: Any, tx: Any) -> None:
        queue = tx.queue(bills.name)
        queue.send(rows(7), transaction=None)
        queue.receive(1, transaction=None).accept(transaction=None)
        raise ValueError("after that")

    with untouched(manager):
        rehearsal = manager.rehearse(handle, orders)
        assert isinstance(rehearsal.error, ValueError)
        assert compared(rehearsal) == {
            ("accepted", bills.name): (1, 0),
            ("sent", bills.name): (1, 0),
        }
    assert numbers(bills.peek_messages()) == [5]


@in_memory
def test_what_others_had_lost_by_then_is_received(world: World) -> None:
    orders, manager = world.queue(dead_letter=True, deliveries_max=2), world.manager("b")
    orders.send(rows(1))
    holder = world.manager("holder").transaction(world.name("holding"))
    holder.queue(orders.name).receive()
    held = manager.history.as_of().commit_seq
    world.lease_over()
    orders.send(rows(2))
    over = manager.history.as_of().commit_seq
    holder.rollback()
    seen: list[Any] = []

    def look(batch: Any, tx: Any) -> None:
        seen.append([(m["n"], m["_message"]["delivery_count"]) for m in batch.messages()])

    with untouched(manager):
        manager.rehearse(look, orders, as_of=held)
        manager.rehearse(look, orders, as_of=over)
        manager.rehearse(look, orders, as_of=over)
    assert seen == [[(1, 1)]] * 2  # alone, as it was before


@in_memory
def test_messages_that_became_dead_letters_since_are_not_consumed(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    bills, manager = world.queue("bills"), world.manager("b")
    sent = orders.send(rows(1, 2)).receipt
    with manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        tx.rollback()
    assert len(orders.receive()) == 1
    with untouched(manager):
        rehearsal = manager.rehearse(forward(bills.name), orders, as_of=sent.commit_seq)
        assert compared(rehearsal)["sent", bills.name] == (2, 0)
        assert (rehearsal.messages, rehearsal.consumed, rehearsal.transactions) == (2, 0, ())
        dead = manager.rehearse(forward(bills.name), f"{orders.name}.dead")
        assert (dead.messages, dead.error) == (1, None)


@pytest.mark.parametrize("world", [pytest.param("delta", marks=pytest.mark.spark)], indirect=True)
def test_changes_of_delta_tables_are_checked_and_not_made(world: World, tmp_path: Path) -> None:
    orders, manager = world.queue(), world.manager("b")
    orders.send(rows(1, 2))
    table = str(tmp_path / "totals")
    world.spark.createDataFrame([(1, 10)], "n long, total long").write.format("delta").save(table)

    def handle(batch: Any, tx: Any) -> None:
        totals = batch.df.selectExpr("n", "n * 5 AS total")
        tx.table(table).merge(
            totals, on="n", update={"total": "target.total + source.total"}, insert="*"
        )
        tx.table(table).append([{"n": 9, "total": 9}])
        tx.table(table).delete("n = 1")

    def twice(batch: Any, tx: Any) -> None:
        tx.table(table).merge([{"n": 1}, {"n": 1}], on="n", update="*")

    with untouched(manager):
        rehearsal = manager.rehearse(handle, orders)
        assert rehearsal.error is None
        told = {row["what"]: row["would"] for row in rehearsal.rows()}
        assert told == {"accepted": 2, "append": 1, "delete": 1, "merge": 2}
        shown: list[Any] = rehearsal.changes(str(rehearsal.rows()[-1]["table"])).rows()
        assert [(row["operation"], row["row"], row["would"], row["really"]) for row in shown] == [
            ("merge", '{"n": 1, "total": 5}', 1, 0),
            ("merge", '{"n": 2, "total": 10}', 1, 0),
            ("append", '{"n": 9, "total": 9}', 1, 0),
            ("delete", None, 1, 0),
        ]
        assert json.loads(shown[-1]["how"]) == {"condition": "n = 1", "delete": "true"}
        assert json.loads(shown[0]["how"])["update"] == {"total": "target.total + source.total"}
        one = manager.rehearse(handle, orders, where="n = 2", batch_size=5)
        assert (one.messages, one.batches, one.error) == (1, 1, None)
        each = manager.rehearse(handle, orders, where="n > 0", batch_size=1)
        assert (each.messages, each.batches, each.error) == (2, 2, None)
        told = {row["what"]: row["would"] for row in each.rows()}
        assert told == {"accepted": 2, "append": 2, "delete": 2, "merge": 2}
        with pytest.raises(InvalidInput, match="where"):
            manager.rehearse(handle, orders, where="nothing = 1")
        refused = manager.rehearse(twice, orders)
        assert isinstance(refused.error, InvalidInput), refused.error
    assert [(r.n, r.total) for r in world.spark.read.format("delta").load(table).collect()] == [
        (1, 10)
    ]


@in_memory
def test_a_rehearsal_on_the_current_state_has_what_can_be_received_now(world: World) -> None:
    orders = world.queue()
    last = orders.send(rows(1), delay_seconds=60).receipt
    world.clock.advance(61)
    manager = world.manager("b")
    rehearsed = [
        manager.rehearse(lambda *_: None, orders.name, as_of=at).messages
        for at in (None, last.commit_seq)
    ]
    assert rehearsed == [1, 0]
