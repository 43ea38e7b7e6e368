"""A job's mistake is not a message's: which failures of a drain count as deliveries."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.errors import PySparkException

from tests.conformance.conftest import SCHEMA, World, in_memory, numbers, rows
from tests.inside import client_of
from txnqueue import errors
from txnqueue.core import model
from txnqueue.errors import (
    Busy,
    HandlerFailed,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    PayloadRemoved,
    QueueNotFound,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    TableNotFound,
    TransactionAborted,
    TxnQueueError,
)
from txnqueue.messages.charges import Fault, fault_of
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.payload.memory import MemoryPayload

pytestmark = in_memory


def charged(queue: Any) -> list[int]:
    """The delivery counts that the waiting messages stand at, in order."""
    return [row["_message"]["delivery_count"] for row in queue.peek_messages(1_000)]


def dead_of(world: World, queue: Any) -> Any:
    return world.manager("reader").queue(f"{queue.name}.dead")


def failing(*wrong: int) -> Any:
    """A handler that certain messages make fail."""

    def handler(batch: Any, tx: Any) -> None:
        found = set(numbers(batch)) & set(wrong)
        if found:
            raise ValueError(f"row {min(found)}")

    return handler


def broken(batch: Any, tx: Any) -> None:
    """A handler of a broken release: it fails whatever it gets."""
    raise TypeError("a bug")


def to_nowhere(batch: Any, tx: Any) -> None:
    tx.queue("nowhere").send(batch.messages())


def to_no_table(batch: Any, tx: Any) -> None:
    tx.table("gold").append(batch.to_arrow())


def import_nothing(batch: Any, tx: Any) -> None:
    importlib.import_module("no_such_module")


def misspelt(batch: Any, tx: Any) -> Any:
    return btach  # type: ignore[name-defined]  # noqa: F821


def wrong_columns(batch: Any, tx: Any) -> None:
    tx.queue(batch.messages()[0]["_message"]["queue"]).send([{"amount": 5}])


def wrong_argument(batch: Any, tx: Any) -> None:
    tx.queue(batch.messages()[0]["_message"]["queue"]).send([{"n": 5}], available_at="noon")


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (to_nowhere, QueueNotFound),
        (to_no_table, TableNotFound),
        (import_nothing, ModuleNotFoundError),
        (misspelt, NameError),
        (wrong_columns, SchemaMismatch),
        (wrong_argument, InvalidInput),
    ],
)
def test_what_no_message_can_cause_ends_the_drain_at_once_and_counts_no_delivery(
    world: World, handler: Any, cause: type[Exception]
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(1, 2))
    with pytest.raises(HandlerFailed, match=r"at fault.*[^.]\. Its batch was") as caught:
        world.open(orders, "b").drain(handler)
    assert isinstance(caught.value.__cause__, cause)
    assert (caught.value.result.errors, caught.value.result.failed) == (1, True)
    assert charged(orders) == [0, 0]
    assert (orders.depth(), orders.in_flight(), dead_of(world, orders).depth()) == (2, 0, 0)


def test_a_defect_of_the_library_ends_the_drain_at_once_and_counts_no_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.messages import placement

    orders = world.queue(deliveries_max=1, dead_letter=True)
    orders.send(rows(1))
    monkeypatch.setattr(placement, "check_number", None)  # calling it is a TypeError of ours
    with pytest.raises(HandlerFailed) as caught:
        world.open(orders, "b").drain(
            lambda batch, tx: tx.queue(orders.name).send(rows(2), priority=5)
        )
    assert isinstance(caught.value.__cause__, TypeError)
    assert (charged(orders), caught.value.result.errors) == ([0], 1)


def test_spark_not_understanding_the_query_is_the_jobs_mistake(world: World) -> None:
    from pyspark.errors import AnalysisException, ParseException

    orders = world.queue()
    orders.send(rows(1))
    for kind in (AnalysisException, ParseException):

        def handler(batch: Any, tx: Any, kind: type[Exception] = kind) -> None:
            raise kind("[UNRESOLVED_COLUMN] amout")

        with pytest.raises(HandlerFailed):
            world.open(orders, "b").drain(handler)
    assert charged(orders) == [0]


MISSING = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
    "file:///lake/payload/orders-1/a.parquet. File does not exist. SQLSTATE: KD001"
)


def reading(*_: Any) -> None:
    """Meets what Spark says when a file is missing that the batch's DataFrame reads."""
    raise PySparkException(f"An error occurred while calling o9.collectToPython.\n: {MISSING}")


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_damaged_file_that_a_handler_meets_ends_the_drain_and_counts_no_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Of good messages it made dead letters, whose reason was a trace of Java."""
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(1, 2, 3))
    monkeypatch.setattr(MemoryPayload, "folder", "/lake/payload/")
    handled = 0

    def handler(batch: Any, tx: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == 3:
            reading()

    with pytest.raises(StoreCorrupt, match=r"a\.parquet") as caught:
        world.open(orders, "b").drain(handler, batch_size=1, ahead=ahead)
    assert isinstance(caught.value.__cause__, PySparkException)
    left = charged(orders)
    assert left == [0] * len(left) and left


def test_a_message_that_tells_of_a_damaged_file_is_the_cause_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of errors is a message as any other."""
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(1))
    orders.send(rows(2))
    monkeypatch.setattr(MemoryPayload, "folder", "/lake/payload/")

    def handler(batch: Any, tx: Any) -> None:
        if batch.messages()[0]["n"] == 2:
            int(MISSING)

    done = world.open(orders, "b").drain(handler, batch_size=1)
    assert (done.finished, done.messages, done.dead_lettered) == (True, 1, 1)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_damaged_file_that_the_library_meets_in_a_handler_ends_the_drain_once(
    world: World, ahead: int
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(1, 2, 3))
    damaged = StoreCorrupt("A file of the store is damaged: put it back.")
    told: list[int] = []

    def handler(batch: Any, tx: Any) -> None:
        if batch.messages()[0]["n"] == 3:
            raise damaged

    with pytest.raises(StoreCorrupt) as caught:
        world.open(orders, "b").drain(handler, batch_size=1, ahead=ahead, on_batch=told.append)
    assert caught.value is damaged
    assert told == [1, 1]  # that of the batch before was committed, and told
    assert charged(orders) == [0]


def test_a_damaged_file_that_a_block_meets_counts_no_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue()
    orders.send(rows(1))
    monkeypatch.setattr(MemoryPayload, "folder", "/lake/payload/")
    manager = world.manager("b")
    with pytest.raises(StoreCorrupt, match=r"a\.parquet"), manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        reading()
    assert charged(orders) == [0]
    with pytest.raises(OSError, match="away"), manager.transaction() as tx:
        tx.queue(orders.name).receive(1)
        raise OSError("the user's own storage is away")
    assert charged(orders) == [1]


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (TypeError(), Fault.MESSAGE),
        (ZeroDivisionError(), Fault.MESSAGE),
        (KeyError("amount"), Fault.MESSAGE),
        (UnboundLocalError(), Fault.MESSAGE),  # another way through the job
        (ConnectionError(), Fault.MESSAGE),  # not known: a message may name the host
        (LimitExceeded(), Fault.MESSAGE),
        (PayloadRemoved(), Fault.MESSAGE),
        (SchemaMismatch(column="n", in_rows=True), Fault.MESSAGE),
        (SchemaMismatch(column="n"), Fault.JOB),
        (SyntaxError("invalid", ("/jobs/pay.py", 1, 1, "x =")), Fault.JOB),
        (IndentationError("unexpected", ("/jobs/pay.py", 1, 1, " x")), Fault.JOB),
        (SyntaxError("invalid", ("<unknown>", 1, 1, "{")), Fault.MESSAGE),  # ast.literal_eval
        (SyntaxError(), Fault.MESSAGE),
        (ElementTree.ParseError("unclosed token"), Fault.MESSAGE),
        (Busy(), Fault.STORE),
        (LeaseLost(consumer="a"), Fault.STORE),
    ],
)
def test_whose_fault_an_error_may_be(world: World, error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


def test_a_table_or_a_database_that_refuses_rows_may_do_so_for_a_message(world: World) -> None:
    found = []
    for cause in (None, Busy(), InvalidInput("breaks c"), builtins.RuntimeError("unique")):
        error = TransactionAborted(transaction_id="t")
        error.__cause__ = cause
        found.append(fault_of(error))
    assert found == [Fault.STORE, Fault.STORE, Fault.MESSAGE, Fault.MESSAGE]


def test_a_value_of_a_message_that_no_column_takes_may_be_the_messages_fault(world: World) -> None:
    orders, done = world.queue(dead_letter=True), world.queue("done")
    orders.send(rows(1, 2))

    def handler(batch: Any, tx: Any) -> None:
        for row in batch.messages():
            tx.queue(done.name).send([{"n": "one" if row["n"] == 1 else row["n"]}])

    result = world.open(orders, "b").drain(handler)
    assert (result.messages, result.dead_lettered) == (1, 1)
    assert (numbers(done.peek_messages()), numbers(dead_of(world, orders).peek_messages())) == (
        [2],
        [1],
    )


def test_a_broken_release_that_is_repeated_makes_no_dead_letters(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=4)
    orders.send(rows(*range(50)))
    for run in range(3):
        for _ in range(3):  # a scheduler repeats the run
            with pytest.raises(HandlerFailed):
                world.open(orders, "b").drain(broken, batch_size=20, run_id=world.name(f"r{run}"))
    assert max(charged(orders)) == 3  # one per run, not one per try
    assert (orders.depth(), dead_of(world, orders).depth()) == (50, 0)
    assert world.open(orders, "b").drain(lambda batch, tx: None).messages == 50


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_run_in_which_nothing_succeeds_charges_a_message_once(
    world: World, batch_size: int, lanes: int
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=3, lanes=lanes)
    orders.send(rows(*range(10)))
    with pytest.raises(HandlerFailed) as caught:
        world.open(orders, "b").drain(broken, batch_size=batch_size)
    assert caught.value.result.dead_lettered == 0
    assert sum(charged(orders)) <= batch_size and set(charged(orders)) <= {0, 1}


def test_where_one_delivery_is_allowed_a_broken_run_costs_one_batch_and_not_the_queue(
    world: World,
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=1)
    orders.send(rows(*range(50)))
    with pytest.raises(HandlerFailed) as caught:
        world.open(orders, "b").drain(broken, batch_size=1)
    assert (caught.value.result.dead_lettered, orders.depth()) == (1, 49)
    assert dead_of(world, orders).depth() == 1


def test_a_handler_that_rolls_back_itself_charges_no_more_than_one_that_raises(
    world: World,
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(1, 2))
    with pytest.raises(HandlerFailed):
        world.open(orders, "b").drain(lambda batch, tx: tx.rollback(), batch_size=1)
    assert (charged(orders), dead_of(world, orders).depth()) == ([1, 0], 0)


@pytest.mark.parametrize("wrong", [[0], [0, 1, 2], [49], [7, 23]])
def test_messages_that_fail_are_found_in_one_run_wherever_they_stand(
    world: World, wrong: list[int]
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=3)
    orders.send(rows(*range(50)))
    result = world.open(orders, "b").drain(failing(*wrong))
    assert (result.messages, result.finished) == (50 - len(wrong), True)
    assert (result.dead_lettered, result.failed) == (len(wrong), True)
    assert sorted(numbers(dead_of(world, orders).peek_messages())) == wrong


def test_nothing_overtakes_a_failed_message_of_an_ordered_queue(world: World) -> None:
    orders, seen = world.queue(dead_letter=True, deliveries_max=4, ordered=True), set[int]()
    orders.send(rows(*range(5)))

    def handler(batch: Any, tx: Any) -> None:
        seen.update(numbers(batch) if len(batch) == 1 else [])
        raise ValueError("no")

    for run in range(3):
        with pytest.raises(HandlerFailed):
            world.open(orders, "b").drain(handler)
        assert (seen, max(charged(orders))) == ({0}, run + 1)
    assert dead_of(world, orders).depth() == 0


def test_a_message_that_is_alone_in_its_queue_and_fails_is_dead_after_so_many_runs(
    world: World,
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=3)
    orders.send(rows(1))
    for count in (1, 2):
        with pytest.raises(HandlerFailed):
            world.open(orders, "b").drain(failing(1))
        assert charged(orders) == [count]
    result = world.open(orders, "b").drain(failing(1))
    assert (result.dead_lettered, result.errors, result.finished) == (1, 1, True)
    assert result.failed


def test_a_run_that_succeeded_before_it_was_killed_counts_as_before(world: World) -> None:
    orders, run_id = world.queue(dead_letter=True, deliveries_max=2), world.name("run")
    orders.send(rows(*range(3)))

    def handler(batch: Any, tx: Any) -> None:
        if numbers(batch) == [1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.open(orders, "b").drain(handler, batch_size=1, run_id=run_id)
    result = world.open(orders, "b").drain(failing(1), batch_size=1, run_id=run_id)
    assert (result.messages, result.dead_lettered, result.finished) == (1, 1, True)


@pytest.mark.parametrize("counted", [True, False])
def test_a_roll_back_that_does_not_say_so_counted(world: World, counted: bool) -> None:
    """A driver of the run that was killed, or had an older version, has charged the run."""
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1))
    earlier = world.manager("b").transaction(transaction_id=f"{run_id}/0")
    earlier.queue(orders.name).receive()
    earlier.rollback(counted=counted)
    with pytest.raises(HandlerFailed):
        world.open(orders, "c").drain(broken, run_id=run_id)
    assert charged(orders) == [1]


def test_a_busy_store_charges_nobody(world: World) -> None:
    orders, tries = world.queue(dead_letter=True, deliveries_max=1), []
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        tries.append(charged_in(batch))
        if len(tries) < 4:
            raise Busy("others were faster")

    result = world.open(orders, "b").drain(handler)
    assert (result.messages, tries) == (1, [[0]] * 4)


@pytest.mark.parametrize("waits_for", ["a durable append", "its coordinator"])
def test_what_was_prepared_is_charged_only_if_its_roll_back_counts(
    world: World, waits_for: str
) -> None:
    """Messages in memory are prepared before an append that may find the store busy."""
    orders, consumer = world.queue(), world.manager("b")
    journal: Any = client_of(consumer).store.journal
    append = journal.append
    orders.send(rows(1), durable=waits_for == "its coordinator")
    tx = consumer.transaction()
    tx.queue(orders.name).receive()
    if waits_for == "its coordinator":
        tx.prepare()
        tx.rollback(counted=False)
    else:
        tx.queue(orders.name).send(rows(2), delay_seconds=60)

        def busy(units: Any, metadata: Any) -> Any:
            if metadata["operation"] == "commit":
                raise AppendConflict("others were faster")
            return append(units, metadata)

        journal.append = busy
        with pytest.raises(TransactionAborted):
            tx.commit()
        journal.append = append
    assert charged_in(orders.receive()) == [0]


def charged_in(batch: Any) -> list[int]:
    return [row["_message"]["delivery_count"] for row in batch.messages()]


def test_dead_letters_tell_what_their_last_delivery_failed_with(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        for n in numbers(batch):
            if n in (1, 2, 4):
                raise ValueError(f"row {n} " + "x" * (n == 4) * 1_000)

    world.open(orders, "b").drain(handler)
    origins = {
        row["n"]: row["_message"]["origin"] for row in dead_of(world, orders).peek_messages()
    }
    assert {n: origin["error"][:17] for n, origin in origins.items()} == {
        1: "ValueError: row 1",
        2: "ValueError: row 2",
        4: "ValueError: row 4",
    }
    assert {origin["reason"] for origin in origins.values()} == {"deliveries_max"}
    assert max(len(origin["error"]) for origin in origins.values()) <= 500
    long = origins[4]["error"]
    assert long.startswith("ValueError: row 4 xxx") and " … " in long
    (letters,) = orders.dead_letters().rows()
    assert (letters["waiting"], letters["error"][:11]) == (3, "ValueError:")
    proof = world.manager("reader").history.verify()
    assert proof.ok, proof


def test_the_error_outlives_a_compaction_of_the_lane(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    orders.send(rows(*range(3)))
    failed = world.manager("b").transaction()
    failed.queue(orders.name).receive(1)
    failed.rollback("the oven is cold")
    busy = world.open(orders, "c")
    client_of(busy).log_max = 5
    for _ in range(10):
        batch = busy.receive(1)
        assert numbers(batch) == [0]
        batch.release()
    compacted = [e for e in world.store.journal.read_all().entries if e.kind == model.COMPACTED]
    assert compacted and all("errors" in entry.body for entry in compacted)
    fresh = world.open(orders, "fresh")
    fresh.receive(1).modify(delivery_failed=True)  # does not say why
    assert fresh.receive().accept() == 2
    for one in (fresh, world.open(orders, "later")):
        with client_of(one).lock:
            assert client_of(one).states.fold(one.info).lanes[0].errors == {}
    (dead,) = dead_of(world, orders).peek_messages()
    assert (dead["n"], dead["_message"]["origin"]["error"]) == (0, "the oven is cold")
    proof = world.manager("reader").history.verify()
    assert proof.ok, proof


def test_what_cannot_be_planned_of_the_next_claim_leaves_no_handled_batch_undecided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.messages import duplicates

    orders, handled, reported, asked = world.queue(), list[Any](), list[Any](), list[Any]()
    orders.send(rows(*range(4)))
    real = duplicates.left_out

    def left_out(*arguments: Any) -> Any:
        asked.append(True)
        if len(asked) > 1:
            raise PayloadRemoved("the payload is away")
        return real(*arguments)

    monkeypatch.setattr(duplicates, "left_out", left_out)
    with pytest.raises(PayloadRemoved):
        world.open(orders, "b").drain(
            lambda batch, tx: handled.append(numbers(batch)), batch_size=2, on_batch=reported.append
        )
    monkeypatch.undo()
    assert (handled, reported) == ([[0, 1]], [2])
    assert (numbers(orders.peek_messages()), orders.in_flight()) == ([2, 3], 0)


def test_what_could_not_be_planned_once_is_planned_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.messages import duplicates

    orders, asked = world.queue(), []
    orders.send(rows(*range(4)))
    real = duplicates.left_out

    def left_out(*arguments: Any) -> Any:
        asked.append(True)
        if len(asked) == 2:
            raise OSError("for a moment")
        return real(*arguments)

    monkeypatch.setattr(duplicates, "left_out", left_out)
    result = world.open(orders, "b").drain(lambda batch, tx: None, batch_size=2)
    assert (result.messages, result.batches, result.finished) == (4, 2, True)


def test_a_commit_that_fails_for_another_reason_leaves_its_batch_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    world.store.tables.create("gold", orders.schema)
    describe = world.store.tables.describe
    calls: list[str] = []

    def away(name: str) -> Any:
        calls.append(name)
        if len(calls) > 1:
            raise ConnectionError("the table's storage is away")
        return describe(name)

    world.store.tables.describe = away
    with pytest.raises(ConnectionError):
        world.open(orders, "b").drain(to_no_table)
    assert (charged(orders), orders.in_flight()) == ([0, 0], 0)


def test_a_result_says_whether_it_may_pass_for_a_success(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=2)
    assert not orders.drain(broken).failed  # there was nothing to do
    orders.send(rows(1, 2))
    assert not orders.drain(lambda batch, tx: batch.reject(reason="old")).failed
    orders.send(rows(1, 2))
    with pytest.raises(HandlerFailed) as caught:
        orders.drain(broken, errors_max=2)
    assert caught.value.result.failed
    orders.receive(1).modify(delivery_failed=True)
    result = world.open(orders, "b").drain(failing(1))
    assert (result.failed, result.dead_lettered, result.messages) == (True, 1, 1)


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (ValueError("a row"), 1),
        (KeyboardInterrupt(), 1),
        (LimitExceeded("too many rows"), 1),
        (NameError("not defined"), 1),  # nobody else would end a message that causes it each time
        (QueueNotFound("no such queue", name="x"), 1),
        (Busy("others were faster"), 0),
        (StoreBusy("the store", owner=None), 0),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else str(one),
)
def test_a_block_counts_what_neither_the_store_nor_others_caused(
    world: World, error: BaseException, count: int
) -> None:
    manager = world.manager()
    orders = manager.create_queue(world.name("orders"), SCHEMA)
    orders.send(rows(1))
    with pytest.raises(type(error)), manager.transaction() as tx:
        assert len(orders.receive(transaction=tx)) == 1
        raise error
    assert charged(orders) == [count]


def test_what_is_run_again_after_conflicts_makes_no_dead_letters(world: World) -> None:
    manager = world.manager()
    orders = manager.create_queue(world.name("orders"), SCHEMA, dead_letter=True, deliveries_max=2)
    orders.send(rows(1))
    tries: list[list[int]] = []

    def handle(tx: Any) -> None:
        tries.append(numbers(tx.queue(orders.name).receive()))
        if len(tries) < 5:
            raise Busy("others were faster")

    manager.run_transaction(handle)
    assert tries == [[1]] * 5


@pytest.mark.parametrize(
    "error",
    [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, TxnQueueError)],
    ids=lambda error: error.__name__,
)
def test_a_handler_may_raise_any_error_of_the_library_by_hand(world: World, error: Any) -> None:
    """It gives it no attributes: what the library then asked for was not there."""
    manager = world.manager()
    orders = manager.create_queue(world.name("orders"), SCHEMA)
    orders.send(rows(1))
    tries: list[object] = []

    def raises(*given: object) -> None:
        tries.append(given)
        raise error("by hand")

    def block() -> None:
        with manager.transaction() as tx:
            raises(orders.receive(transaction=tx))

    def stream() -> None:
        with orders.stream(raises, errors_max=2) as streaming:
            streaming.await_termination(20)

    calls: list[Callable[[], object]] = [
        lambda: orders.drain(raises, errors_max=2),
        lambda: orders.drain(raises, errors_max=2, run_id=world.name("run")),
        lambda: orders.drain(raises, errors_max=2, ahead=1),
        lambda: manager.run_transaction(raises),
        block,
        stream,
    ]
    for call in calls:
        with pytest.raises(TxnQueueError, match="by hand"):
            call()
    told = len(tries)
    assert "by hand" in manager.rehearse(raises, orders)._repr_html_() and len(tries) == told + 1


def test_what_a_handler_raises_by_hand_to_be_run_again_is_run_again(world: World) -> None:
    orders = world.queue()
    tries: list[Any] = []

    def handle(tx: Any) -> None:
        tries.append(tx.queue(orders.name).send(rows(1)))
        if len(tries) < 3:
            raise TransactionAborted("the peer was not ready")

    world.manager().run_transaction(handle)
    assert len(tries) == 3 and orders.depth() == 1


def test_an_interrupt_in_the_library_s_own_code_counts(world: World) -> None:
    """A wait for one message may have been too long for somebody."""
    manager = world.manager()
    orders = manager.create_queue(world.name("orders"), SCHEMA)
    orders.send(rows(1))
    describe = world.store.tables.describe

    def interrupted(name: str) -> Any:
        world.store.tables.describe = describe
        exec("raise KeyboardInterrupt", {"__name__": "txnqueue.storage"})

    world.store.tables.describe = interrupted
    with pytest.raises(KeyboardInterrupt), manager.transaction() as tx:
        orders.receive(transaction=tx)
        tx.table("gold").append(rows(1))
    assert charged(orders) == [1]
