"""What cannot be meant is refused by one typed error, and changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from tests.conformance.conftest import SCHEMA, World, in_memory, numbers, rows
from tests.inside import attempt_of
from txnqueue import look
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    HandlerFailed,
    InvalidInput,
    QueueNotFound,
    SchemaMismatch,
    TxnQueueError,
)
from txnqueue.manager import QueueManager
from txnqueue.protocols.flow import DataSource, MessageFlow
from txnqueue.protocols.mqqb import LocalQueueManager
from txnqueue.storage.store import MemoryStore
from txnqueue.storage.tables.memory import MemoryTables
from txnqueue.testing import plain_schema


@pytest.mark.parametrize("move", ["queue", "batch", "in a transaction"])
def test_messages_do_not_move_to_a_queue_of_another_store(move: Any) -> None:
    """It has the id of no queue of this store: there they would be lost."""
    here, there = World(MemoryStore()), World(MemoryStore())
    orders, other = here.queue("orders"), there.queue("orders")
    orders.send(rows(1, 2))
    batch = orders.receive(1)
    with pytest.raises(InvalidInput, match="store"):
        if move == "queue":
            orders.move(other)
        elif move == "batch":
            batch.move(other)
        else:
            with here.manager().transaction() as tx:
                tx.queue(orders.name).move(other)
    assert (orders.depth(), orders.in_flight()) == (1, 1)
    assert numbers(batch) == [1]


@in_memory
def test_messages_move_to_a_queue_that_another_manager_opened(world: World) -> None:
    orders, other = world.queue("orders"), world.queue("other")
    orders.send(rows(1))
    assert orders.move(world.open(other, "b")) == 1
    assert numbers(other.receive()) == [1]


@in_memory
def test_reasons_by_row_are_text_whatever_the_column_holds(world: World) -> None:
    orders = world.queue(dead_letter=True)
    orders.send(rows(1, 2, 3))
    batch = orders.receive()
    found = [{**row, "why": why} for row, why in zip(batch.messages(), (7, [1], None), strict=True)]
    assert batch.reject(matching=found, reason_column="why", reason="else") == 3
    dead = world.manager().queue(f"{orders.name}.dead").receive()
    assert [m["_message"]["origin"]["reason"] for m in dead.messages()] == ["7", "[1]", "else"]


@in_memory
def test_a_reason_is_written_whatever_characters_an_error_has(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        raise OSError("no such file: \udcff.csv")

    with pytest.raises(TxnQueueError, match="rolled back"):
        orders.drain(handler, errors_max=1)
    kinds = {e.kind: e.reason for e in world.store.journal.read_all().entries}
    assert kinds["rolled_back"] == "OSError: no such file: \\udcff.csv"


class Untold(Exception):
    """An error that cannot be written: its number is no text."""

    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


@in_memory
def test_an_error_that_cannot_be_written_is_the_handlers_as_any_other(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        raise Untold(404)

    with pytest.raises(HandlerFailed, match="Untold") as caught:
        orders.drain(handler, errors_max=1)
    assert isinstance(caught.value.__cause__, Untold)
    assert "Untold" in caught.value.result._repr_html_()
    batch = orders.receive()
    assert batch.messages()[0]["_message"]["delivery_count"] == 1
    batch.release()
    with pytest.raises(HandlerFailed), orders.stream(handler, errors_max=1) as stream:
        stream.await_termination()


@in_memory
def test_a_block_that_ends_with_an_error_that_cannot_be_written_is_rolled_back(
    world: World,
) -> None:
    orders = world.queue()
    orders.send(rows(1))
    with pytest.raises(Untold), world.manager().transaction() as tx:
        assert numbers(tx.queue(orders.name).receive()) == [1]
        raise Untold(404)
    assert (tx.status, orders.depth()) == (Status.ROLLED_BACK, 1)


@pytest.mark.parametrize("junk", [{"message": 5}, {"_message": None}, {"_message": {}}])
def test_what_is_no_message_is_not_matched(junk: Any) -> None:
    orders = World(MemoryStore()).queue()
    orders.send(rows(1))
    batch = orders.receive()
    with pytest.raises(InvalidInput):
        batch.accept(matching=[junk])
    for offset in ("\u00b2", "9" * 5_000, "\u0660"):  # Python reads the last one, Spark none
        with pytest.raises(InvalidInput):
            batch.accept(matching=[f"send:{offset}"])
    assert batch.accept() == 1


@pytest.mark.parametrize(
    "junk",
    [
        {"at": datetime.datetime(2020, 1, 1)},
        {5: "a"},
        "x",
        [1],
        {"a": {1, 2}},
        {"a": ["\ud800"]},
        {"a": float("nan")},
    ],
)
def test_metadata_is_what_can_be_written(junk: Any) -> None:
    manager = World(MemoryStore()).manager()
    with pytest.raises(InvalidInput):
        manager.transaction(metadata=junk)


@in_memory
def test_a_handler_that_is_none_delivers_nothing(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(1))
    before = world.store.journal.version()
    for wrong in (
        {"handler": 5},
        {"handler": print, "on_batch": 5},
        {"handler": print, "stopped": 5},
    ):
        with pytest.raises(InvalidInput):
            orders.drain(**wrong)
    assert world.store.journal.version() == before


async def later(*given: Any) -> None:
    """Nobody waits for it."""


def step_by_step(*given: Any) -> Iterator[None]:
    """Nobody goes through it."""
    yield


async def both(*given: Any) -> AsyncIterator[None]:
    """Nobody goes through it either."""
    yield


@in_memory
@pytest.mark.parametrize("prepares", [later, step_by_step, both])
def test_a_handler_that_would_not_run_is_refused(world: World, prepares: Any) -> None:
    """Its transaction would be committed, and accept its messages."""
    manager, orders = world.manager(), world.queue()
    orders.send(rows(1))
    before = world.store.journal.version()
    for call in (
        lambda: orders.drain(prepares),
        lambda: orders.drain(partial(prepares, 1)),
        lambda: orders.drain(print, on_batch=prepares),
        lambda: orders.drain(print, stopped=prepares),
        lambda: orders.stream(prepares),
        lambda: manager.run_transaction(prepares),
        lambda: manager.sink(prepares),
        lambda: manager.rehearse(prepares, orders),
        lambda: MessageFlow(manager, orders.name, [prepares]),
        lambda: DataSource("d", prepares),
        lambda: LocalQueueManager(manager, on_event=prepares),
    ):
        with pytest.raises(InvalidInput, match="yield"):
            call()
    assert world.store.journal.version() == before


@in_memory
@pytest.mark.parametrize("kind", [Mock, MagicMock])
def test_a_mock_of_a_handler_is_called_like_the_handler(world: World, kind: Any) -> None:
    """It says that it is a function, and has no code to look at."""

    def handler(batch: Any, tx: Any) -> None:
        """Do nothing."""

    orders = world.queue()
    for mock in (kind(), kind(spec=handler), partial(kind(spec=handler))):
        orders.send(rows(1))
        assert orders.drain(mock).messages == 1
    with pytest.raises(InvalidInput, match="yield"):
        orders.drain(AsyncMock())


@in_memory
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("prepares", [later, step_by_step, both])
def test_a_handler_that_returns_what_nobody_runs_accepts_nothing(
    world: World, prepares: Any, ahead: int
) -> None:
    """It may be hidden behind a decorator."""
    manager, orders = world.manager(), world.queue(deliveries_max=1)
    orders.send(rows(1, 2))
    with pytest.raises(HandlerFailed, match="was not done"):
        orders.drain(lambda batch, tx: prepares(), batch_size=1, ahead=ahead)
    with pytest.raises(InvalidInput, match="was not done"):
        manager.run_transaction(lambda tx: prepares(), transaction_id="T")
    assert not manager.transaction("T").already_committed
    assert isinstance(manager.rehearse(lambda batch, tx: prepares(), orders).error, InvalidInput)
    assert numbers(orders.receive()) == [1, 2]


@in_memory
@pytest.mark.parametrize("prepares", [later, step_by_step, both])
def test_what_a_drain_asks_has_to_answer(world: World, prepares: Any) -> None:
    """A drain that was told to stop by a coroutine, which is true, would have consumed nothing."""
    orders = world.queue()
    orders.send(rows(1, 2))
    for progress in (False, True):
        with pytest.raises(InvalidInput, match="stopped= returned"):
            orders.drain(print, stopped=lambda: prepares(1), progress=progress)
    assert orders.depth() == 2
    for progress in (False, True):
        with pytest.raises(InvalidInput, match="on_batch= returned"):
            orders.drain(print, batch_size=1, on_batch=lambda n: prepares(), progress=progress)
    assert (orders.depth(), orders.in_flight()) == (0, 0)  # it is told of what is committed


class Name(str, enum.Enum):
    """Text that writes itself otherwise: ``f"{Name.QUEUE}"`` is ``Name.QUEUE``."""

    QUEUE, EXCHANGE, ID, KEY, WHY = "orders", "events", "load/1", "eu.it", "damaged"
    ACTOR = "ada"


class Sql(str, enum.Enum):
    """SQL that is written once, for several jobs."""

    PAID, COLUMN, ZERO = "state = 'paid'", "n", "0"


@in_memory
def test_sql_is_the_text_that_it_holds_whatever_its_class(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``f"({Sql.PAID})"`` is ``(Sql.PAID)``, which names a column that there is not."""
    world.queue()
    manager = world.manager()
    world.store.tables.create("gold", plain_schema("n long"))
    monkeypatch.setattr(MemoryTables, "check", lambda *given: None)
    with contextlib.suppress(ZeroDivisionError), manager.transaction() as tx:
        gold = tx.table("gold")
        gold.update({Sql.COLUMN: Sql.ZERO}, Sql.PAID)
        gold.delete(Sql.PAID)
        gold.merge([{"n": 1}], Sql.COLUMN, update={Sql.COLUMN: Sql.ZERO}, delete=Sql.PAID)
        gold.merge([{"n": 1}], condition=Sql.PAID, insert={Sql.COLUMN: Sql.ZERO})
        said = repr([dataclasses.replace(change, source=None) for change in attempt_of(tx).changes])
        assert "Sql" not in said
        assert said.count("state = 'paid'") == 4
        raise ZeroDivisionError


@in_memory
def test_names_and_ids_are_the_text_that_they_hold_whatever_their_class(world: World) -> None:
    """Otherwise a job that writes the id in another way does the same work once more."""
    manager = QueueManager(None, store=world.store, actor=Name.ACTOR)
    queue = manager.create_queue(Name.QUEUE, SCHEMA)
    with manager.transaction(Name.ID) as tx:
        tx.queue(Name.QUEUE).send(rows(1), headers={Name.KEY: Name.WHY})
    assert manager.outcome(Name.ID).status is Status.COMMITTED
    assert manager.outcome("load/1").status is Status.COMMITTED
    assert manager.transaction("load/1").queue("orders").send(rows(1)).count == 0
    queue.receive().reject(reason=Name.WHY)
    exchange = manager.create_exchange(Name.EXCHANGE, "topic", SCHEMA)
    exchange.bind(Name.QUEUE, Name.KEY)
    assert exchange.publish(rows(2), routing_key=Name.KEY).queues == {"orders": 1}
    assert manager.list_queues() == ["orders", "orders.dead"]
    dead = manager.queue("orders.dead").receive().messages()[0]["_message"]
    assert dead["headers"] == {"eu.it": "damaged"}
    said = [text for e in world.store.journal.read_all().entries for text in texts_of(e)]
    assert not [text for text in said if type(text) is not str]
    assert {"ada", "load/1", "damaged", "orders", "eu.it"} <= set(said)


def texts_of(found: Any) -> Iterator[str]:
    """Go through the texts of an entry."""
    if dataclasses.is_dataclass(found):
        found = [getattr(found, field.name) for field in dataclasses.fields(found)]
    if isinstance(found, Mapping):
        found = [*found, *found.values()]
    if isinstance(found, str):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from texts_of(one)


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_text_that_no_table_can_hold_is_refused_before_it_is_sent(
    world: World, durable: bool
) -> None:
    """In memory it was sent, and nobody could receive from the queue any more."""
    manager, queue = world.manager(), world.queue(durable=durable)
    exchange = manager.create_exchange(world.name("x"), "headers", "n long, key string")
    half = "\ud800"
    for wrong in (
        lambda: queue.send(rows(1), headers={"a": half}),
        lambda: queue.send(rows(1), headers={half: "a"}),
        lambda: queue.send(rows(1), header_columns={half: "key"}),
        lambda: exchange.publish(rows(1), routing_key=half, durable=durable),
        lambda: exchange.bind(queue, half),
        lambda: exchange.bind(queue, arguments={half: "a"}),
        lambda: exchange.bind(queue, arguments={"a": half}),
        lambda: manager.create_exchange("y", schema="n long", arguments={"a": half}),
        lambda: manager.create_exchange("y", schema="n long", arguments={"a": float("inf")}),
        lambda: manager.transaction(metadata={"a": [half]}),
        lambda: manager.transaction(metadata={"a": float("nan")}),
    ):
        with pytest.raises(InvalidInput):
            wrong()
    queue.send(rows(2))
    assert numbers(queue.receive()) == [2]


@pytest.mark.parametrize("name", ["actor", "run_id", "consumer", "retry"])
def test_what_a_manager_writes_into_every_entry_is_text(name: str) -> None:
    for junk in (5, b"x", [1], "\ud800", datetime.date(2026, 1, 1), object()):
        wrong: dict[str, Any] = {name: junk}
        with pytest.raises(InvalidInput, match=f"{name}="):
            QueueManager(None, store=MemoryStore(), **wrong)


@in_memory
def test_a_transaction_is_not_made_with_a_lease_that_cannot_be(world: World) -> None:
    wrong: list[Any] = [-1, 0, "5", float("nan"), 10**9]
    for junk in wrong:
        with pytest.raises(TxnQueueError, match="lease_seconds="):
            world.manager().transaction(lease_seconds=junk)


@in_memory
@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.update({"n": 0}, "true"),
        lambda t: t.update({"n": Decimal(0)}, "true"),  # fits as SQL, and failed at the commit
        lambda t: t.update("*", "true"),
        lambda t: t.update({"n": "0"}, None),
        lambda t: t.update({"n": "0"}, True),
        lambda t: t.delete(True),  # such as of a comparison in Python: it deleted all rows
        lambda t: t.delete(None),
        lambda t: t.merge(rows(1), on=5, update="*"),
        lambda t: t.merge(rows(1), on=[5], update="*"),
        lambda t: t.merge(rows(1), on="n", insert={"n": np.int64(1)}),
        lambda t: t.merge(rows(1), on="n", update={5: "1"}),
        lambda t: t.merge(rows(1), on="n", update=[("n", "1")]),
        lambda t: t.merge(rows(1), on="n", delete=True),
        lambda t: t.merge(rows(1), condition=True, update="*"),
        lambda t: t.merge(rows(1), condition=" ", update="*"),
        lambda t: t.merge(rows(1), on=[], update="*"),
        lambda t: t.merge(rows(1), on="n", insert={"n": ""}),
        lambda t: t.merge(rows(1), on="n", delete="\n"),
        lambda t: t.update({"n": "0"}, ""),
        lambda t: t.delete(" "),
    ],
)
def test_a_table_is_changed_by_sql_that_is_text(world: World, wrong: Any) -> None:
    world.queue()
    world.store.tables.create("gold", plain_schema(SCHEMA))
    tx = world.manager().transaction()
    with pytest.raises(InvalidInput, match=r"SQL|column"):
        wrong(tx.table("gold"))
    tx.commit()
    assert world.store.tables.rows("gold").num_rows == 0


@in_memory
def test_the_last_instant_that_there_is_means_for_ever(world: World) -> None:
    world.queue().send(rows(1))
    history = world.manager().history
    now = history.report().figures.last.commit_seq
    zone = datetime.timezone(datetime.timedelta(hours=-14))
    for last in (datetime.timezone.utc, zone):
        upto = datetime.datetime.max.replace(tzinfo=last)
        assert history.report(upto=upto).figures.last.commit_seq == now
        assert history.report(after=upto, upto=upto).figures.first.commit_seq == now


@in_memory
def test_a_digest_ends_with_a_commit(world: World) -> None:
    world.queue().send(rows(1))
    now = datetime.datetime.now(datetime.timezone.utc)
    with pytest.raises(InvalidInput, match="commit_seq"):
        world.manager().history.digest(now)  # type: ignore[arg-type]


@in_memory
def test_an_empty_id_is_no_id_that_was_left_out(world: World) -> None:
    """Work that is to happen once would happen with every run."""
    manager = world.manager()
    for call in (
        lambda: manager.transaction(""),
        lambda: manager.run_transaction(print, transaction_id=""),
        lambda: list(manager.attempts(transaction_id="")),
    ):
        with pytest.raises(InvalidInput, match="1 to 200"):
            call()


@in_memory
def test_dead_letters_of_a_queue_that_is_gone_with_them(world: World) -> None:
    orders, manager = world.queue(dead_letter=True), world.manager()
    manager.drop_queue(orders.name)
    assert len(orders.dead_letters()) == 0
    manager.drop_queue(f"{orders.name}.dead")
    with pytest.raises(QueueNotFound):
        orders.dead_letters()


@pytest.mark.spark
def test_what_spark_cannot_evaluate_is_a_typed_error_and_changes_nothing(spark: Any) -> None:
    """Of predicates and of frames to match; the messages are those of the twin in memory."""
    world = World(MemoryStore(spark=spark), spark)
    orders = world.queue()
    orders.send(rows(1, 2))
    batch = orders.receive()
    before = world.store.journal.version()
    for where in ("nope = 1", "n +", "n", "sum(n) = 1", "cast('x' as int) = 1", "1 / 0 = n"):
        with pytest.raises(InvalidInput):
            batch.accept(where=where)
    for matching in (spark.range(2), spark.sql("SELECT 1 AS _message")):
        with pytest.raises(InvalidInput):
            batch.accept(matching=matching)
    with pytest.raises(InvalidInput):
        batch.reject(matching=batch.df, reason_column="nope")
    assert world.store.journal.version() == before
    assert batch.accept(where="n = 1") == batch.accept(matching=batch.df.where("n = 2")) == 1


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_a_number_of_messages_is_a_whole_number(world: World, durable: bool) -> None:
    queue = world.queue(durable=durable)
    queue.send(rows(*range(25)))
    other = world.queue("other", durable=durable)
    for call in (
        lambda: queue.drain(lambda batch, tx: None, batch_size=1e1),
        lambda: queue.drain(lambda batch, tx: None, max_messages=2.5),
        lambda: queue.drain(lambda batch, tx: None, errors_max=2.0),
        lambda: queue.receive(2.0),
        lambda: queue.peek_messages(2.5),
        lambda: queue.move(other.name, limit=2.5),
        lambda: queue.replay(limit=2.5),
    ):
        with pytest.raises(InvalidInput, match="whole number"):
            call()
    assert (queue.depth(), other.depth()) == (25, 0)
    assert len(queue.receive(100)) == 25


@in_memory
def test_what_is_wrong_with_an_argument_is_said_with_what_to_give(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    batch, wrong = queue.receive(), list[Any]([1])
    for call, said in (
        (
            lambda: queue.drain(lambda b, tx: None, max_messages=0),
            "max_messages=0: give at least 1",
        ),
        (lambda: queue.drain(lambda b, tx: None, max_seconds=-1), "give at least 0"),
        (
            lambda: queue.send(rows(1), headers={"": "x"}),
            "headers: '': 'x' is not text under a name: give two",
        ),
        (lambda: batch.accept(matching=wrong), r"batch\.messages\(\) or queue\.peek_messages\(\)"),
    ):
        with pytest.raises(InvalidInput, match=said):
            call()


@pytest.mark.parametrize("option", ["actor", "run_id", "consumer"])
@pytest.mark.parametrize("junk", [5, b"x", "\ud800"])
def test_who_works_is_said_by_text(option: str, junk: Any) -> None:
    with pytest.raises(InvalidInput, match=option):
        QueueManager(None, "memory", store=MemoryStore(), **{option: junk})


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_a_header_that_nobody_could_read_is_not_sent(world: World, durable: bool) -> None:
    """Names of files that Python reads may have such letters."""
    queue = world.queue()
    queue.send(rows(1), durable=durable)
    for said in ({"headers": {"file": "a\udcff"}}, {"header_columns": {"a\udcff": "key"}}):
        with pytest.raises(InvalidInput, match="not text"):
            queue.send(rows(2), durable=durable, **said)
    assert numbers(queue.receive()) == [1]


@in_memory
def test_a_queue_of_another_store_is_not_bound_and_not_called_dropped(world: World) -> None:
    exchange = world.manager().create_exchange(world.name("e"), "fanout", "n long, key string")
    with pytest.raises(InvalidInput, match="own store"):
        exchange.bind(World(MemoryStore()).queue())
    assert exchange.bindings().rows() == []


@in_memory
@pytest.mark.parametrize(
    "said",
    [
        {"routing_key": "\ud800"},
        {"arguments": {"a": "\ud800"}},
        {"arguments": {"\ud800": None}},
        {"arguments": {"a": 10**5_000}},
    ],
)
def test_a_binding_that_no_table_can_hold_is_not_made(world: World, said: dict[str, Any]) -> None:
    queue = world.queue()
    exchange = world.manager().create_exchange(world.name("e"), "direct", "n long, key string")
    with pytest.raises(InvalidInput):
        exchange.bind(queue, **said)
    assert exchange.bindings().rows() == []


@in_memory
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("junk", [None, 5, "rows", {"n": 1}, [5], ["key"], [{"key": "a"}, None]])
def test_what_is_no_rows_is_refused_whether_or_not_a_column_places_them(
    world: World, junk: Any, durable: bool
) -> None:
    queue = world.queue()
    exchange = world.manager().create_exchange(world.name("e"), "direct", "n long, key string")
    for send in (
        partial(queue.send, priority="n"),
        partial(queue.send, header_columns={"key": "key"}),
        partial(exchange.publish, routing_key_column="key"),
    ):
        with pytest.raises(InvalidInput, match="cannot be sent"):
            send(junk, durable=durable)
    assert queue.depth() == 0


@in_memory
def test_a_value_that_cannot_be_written_is_refused_as_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, manager = world.queue(), world.manager()
    arrays = StructType([StructField("n", ArrayType(LongType()))])
    long: Any = 10**5_000  # too long for Python's repr
    nested = manager.create_queue(world.name("nested"), arrays)
    monkeypatch.setenv("TXNQUEUE_QUEUE_LANES", "x" * 9_999)
    refused: list[Callable[[], object]] = [
        lambda: queue.send(rows(1), headers={"a": long}),
        lambda: queue.send(rows(1), header_columns={long: "n"}),
        lambda: queue.alter(lanes=long),
        lambda: manager.declare({"queues": {"q": {long: 1, "schema": "n long"}}}),
        lambda: look(long, filesystem=LocalFileSystem()),
        lambda: nested.send([{"n": long}]),
        lambda: manager.create_queue(world.name("other"), "n long"),
    ]
    for wrong in refused:
        with pytest.raises((InvalidInput, SchemaMismatch)) as error:
            wrong()
        assert len(str(error.value)) < 2_000
