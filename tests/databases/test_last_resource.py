"""Databases that cannot prepare: last resources and auxiliaries, with sqlite3."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, Injector
from tests.faults.world import World
from tests.inside import attempt_of, client_of
from tests.postgres import connect, insert, values
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    DatabaseUnavailable,
    DecidedByDatabase,
    HandlerFailed,
    InvalidInput,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.transactions import commit, connections, last_resource
from txnqueue.transactions.last_resource import DECISIONS

_KEYS = (f"key-{n}" for n in itertools.count())


def test_an_auxiliary_stands_for_itself(world: World, file: str) -> None:
    connection = sqlite3.connect(file)
    with pytest.raises(ZeroDivisionError), world.manager("A").transaction() as tx:
        ledger = tx.auxiliary("ledger", connection)
        assert tx.auxiliary("ledger", connection) is ledger
        ledger.execute("INSERT INTO ledger VALUES (1)")
        ledger.commit()
        ledger.execute("INSERT INTO ledger VALUES (2)")
        ledger.rollback()
        ledger.execute("INSERT INTO ledger VALUES (3)")
        raise ZeroDivisionError
    assert values(connection) == [1]
    with pytest.raises(TransactionFinished):
        ledger.cursor()


def test_what_an_auxiliary_leaves_open_follows_the_commit(world: World, file: str) -> None:
    connection = sqlite3.connect(file)
    with world.manager("A").transaction() as tx:
        tx.auxiliary("ledger", connection).execute("INSERT INTO ledger VALUES (3)")
        with pytest.raises(InvalidInput):
            tx.auxiliary("ledger", sqlite3.connect(file))
    assert values(connection) == [3]


def test_a_last_resource_decides(world: World, file: str) -> None:
    connection = sqlite3.connect(file)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with manager.transaction() as tx:
        (message,) = tx.queue("in").receive(1).messages()
        insert(tx.enlist("ledger", connection, last=True), message["i"])
        with pytest.raises(InvalidInput):
            tx.prepare()
        with pytest.raises(InvalidInput):
            tx.enlist("other", connection, last=True)
    assert tx.status is Status.COMMITTED and values(connection) == [1]
    assert manager.queue("in").depth() == 0 == manager.queue("in").in_flight()


def test_a_last_resource_rolls_back_with_the_rest(world: World, file: str) -> None:
    connection = sqlite3.connect(file)
    with pytest.raises(ZeroDivisionError), world.manager("A").transaction() as tx:
        insert(tx.enlist("ledger", connection, last=True), 1)
        raise ZeroDivisionError
    assert values(connection) == []


class Refusing(sqlite3.Connection):
    """A connection that refuses the next commit, if it is told to."""

    refuses = False

    def commit(self) -> None:
        if self.refuses:
            self.refuses = False
            raise sqlite3.OperationalError("disk full")
        super().commit()


def test_a_last_resource_that_cannot_commit_rolls_everything_back(world: World, file: str) -> None:
    connection: Any = sqlite3.connect(file, factory=Refusing)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(TransactionAborted, match="disk full"), manager.transaction() as tx:
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)
        connection.refuses = True
    assert values(connection) == [] and manager.queue("in").depth() == 1


def drained(queue: Any, handler: Any) -> None:
    queue.drain(handler, batch_size=1)


def streamed(queue: Any, handler: Any) -> None:
    with queue.stream(handler, batch_size=1) as stream:
        stream.await_termination(20)


@pytest.mark.parametrize("consume", [drained, streamed])
def test_a_last_resource_that_never_commits_empties_no_queue(
    world: World, file: str, consume: Callable[[Any, Any], None]
) -> None:
    """The commits were refused outside of the accounts of the run: each one counted."""
    manager = world.manager("A")
    queue = manager.create_queue("orders", "i long", deliveries_max=2)
    queue.send([{"i": i} for i in range(4)])
    connection: Any = sqlite3.connect(file, factory=Refusing, check_same_thread=False)

    def handler(batch: Any, tx: Any) -> None:
        tx.enlist("ledger", connection, last=True)
        connection.refuses = True

    with pytest.raises(HandlerFailed, match="disk full"):
        consume(queue, handler)
    counts = [row["_message"]["delivery_count"] for row in queue.peek_messages()]
    assert sorted(counts) == [0, 0, 0, 1], "only the run's first failure counts"
    assert manager.queue("orders.dead").depth() == 0


def test_a_drain_whose_last_resource_was_locked_goes_on_afterwards(world: World, file: str) -> None:
    """Its commit was called in doubt before it was sent, and no repetition of the run went on."""
    connection, other = sqlite3.connect(file, 0), sqlite3.connect(file, 0, isolation_level=None)
    queue, calls = world.manager("A").queue("in"), list[int]()
    queue.send([{"i": i} for i in range(3)])

    def handler(batch: Any, tx: Any) -> None:
        tx.enlist("ledger", connection, last=True)
        calls.extend(message["i"] for message in batch.messages())
        if len(calls) == 2:
            other.execute("BEGIN IMMEDIATE")  # somebody else begins to write
        else:
            insert(connection, calls[-1])

    with pytest.raises(HandlerFailed, match="database is locked"):
        queue.drain(handler, batch_size=1, run_id="nightly", errors_max=1)
    assert (queue.depth(), queue.in_flight()) == (2, 0)
    other.execute("ROLLBACK")
    assert queue.drain(handler, batch_size=1, run_id="nightly").finished
    assert values(other) == [0, 1, 2] and len(calls) == 4


def test_a_last_resource_that_is_closed_in_its_block_is_rolled_back(
    world: World, file: str
) -> None:
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(TransactionAborted, match="closed"), manager.transaction("load") as tx:
        tx.queue("in").receive(1)
        with contextlib.closing(sqlite3.connect(file)) as connection:
            insert(tx.enlist("ledger", connection, last=True), 1)
    assert manager.outcome("load").status is Status.ROLLED_BACK
    assert values(sqlite3.connect(file)) == [] and manager.queue("in").depth() == 1


class Unanswered(sqlite3.Connection):
    """A connection whose commits land, but while it is away nobody gets an answer."""

    away = False

    def commit(self) -> None:
        super().commit()
        self._answer()

    def rollback(self) -> None:
        self._answer()
        super().rollback()

    def _answer(self) -> None:
        if self.away:
            raise sqlite3.OperationalError("disk I/O error")


def test_a_commit_in_doubt_that_is_tried_again_may_have_landed(world: World, file: str) -> None:
    connection: Any = sqlite3.connect(file, factory=Unanswered)
    tx = world.manager("A").transaction()
    insert(tx.enlist("ledger", connection, last=True), 1)
    last = attempt_of(tx).participants.last
    assert last is not None
    connection.away = True
    with pytest.raises(sqlite3.OperationalError):
        last.decide()
    connection.away = False
    assert last.decide() and values(connection) == [1]


def test_a_drain_that_meets_a_batch_in_doubt_ends_until_that_is_decided(
    world: World, file: str
) -> None:
    """It called its handler 20 times, each time in vain."""
    connection: Any = sqlite3.connect(file, factory=Unanswered)
    manager, calls = world.manager("A"), list[int]()
    queue = manager.queue("in")
    queue.send([{"i": i} for i in range(3)])

    def handler(batch: Any, tx: Any) -> None:
        tx.enlist("ledger", connection, last=True)
        for message in batch.messages():
            insert(connection, message["i"])
            calls.append(message["i"])
        connection.away = len(calls) == 1

    with pytest.raises(TransactionUnknown, match="recover"):
        queue.drain(handler, batch_size=1, run_id="nightly")
    connection.away = False
    with pytest.raises(TransactionAborted, match="is prepared"):
        queue.drain(handler, batch_size=1, run_id="nightly")
    assert len(calls) == 2
    manager.recover({"ledger": connection})
    assert queue.drain(handler, batch_size=1, run_id="nightly").finished
    assert values(connection) == [0, 1, 2]


def die_in_commit(tx: Any, injector: Injector, fault: Fault, at: int) -> None:
    """Commit, and crash at a store call."""
    injector.arm()
    injector.fault, injector.at = fault, at
    with pytest.raises(Crash):
        tx.commit()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("append", [0, 1])
def test_a_crash_around_the_last_resource_is_finished_by_its_row(
    world: World, file: str, fault: Fault, append: int
) -> None:
    connection, injector, key = sqlite3.connect(file), Injector(), next(_KEYS)
    manager = world.manager("A", injector)
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction(key)
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection, last=True), 1)
    die_in_commit(tx, injector, fault, nth_append(world, append))
    connection.close()
    world.lease_over()
    again = sqlite3.connect(file)
    found = world.manager("B").recover({"ledger": again})
    assert found.prepared == ()
    committed = world.manager("C").outcome(key).status is Status.COMMITTED
    assert committed == (append == 1), "the row decides"
    assert values(again) == ([1] if committed else [])
    assert world.manager("C").queue("in").depth() == (0 if committed else 1)


@pytest.mark.parametrize("behind_seconds", [0, 3_600, -30])
def test_a_slow_client_is_not_decided_against_while_it_may_still_commit(
    world: World, file: str, behind_seconds: int
) -> None:
    """Between its prepare and the database's own commit somebody recovers, by whatever clock."""
    connection, manager, key = sqlite3.connect(file), world.manager("A"), next(_KEYS)
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction(key)
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection, last=True), 1)
    last = attempt_of(tx).participants.last
    assert last is not None
    decide = last.decide
    found: list[tuple[str, ...]] = []

    def slow() -> bool:
        connection.rollback()  # sqlite3 would lock the file
        world.clock.advance(20)
        helper = world.manager("B")
        client_of(helper).runtime.now_ms = lambda: world.clock.now_ms - behind_seconds * 1000
        found.append(helper.recover({"ledger": sqlite3.connect(file)}).prepared)
        begin_again(connection)
        insert(connection, 1)
        return decide()

    last.decide = slow
    tx.commit()
    assert found == [(key,)], "it waits for its client"
    assert tx.status is Status.COMMITTED and values(connection) == [1]


def begin_again(connection: sqlite3.Connection) -> None:
    """Begin as a connection does that is enlisted."""
    connection.execute("BEGIN")
    connection.execute("SAVEPOINT txnqueue")


@pytest.mark.parametrize("ahead_seconds", [0, 10**8])
def test_who_died_before_the_last_resource_committed_is_waited_for_a_minute(
    world: World, file: str, ahead_seconds: int
) -> None:
    injector, key = Injector(), next(_KEYS)
    manager = world.manager("A", injector)
    client_of(manager).runtime.now_ms = lambda: world.clock.now_ms + ahead_seconds * 1000
    connection, tx = sqlite3.connect(file), manager.transaction(key)
    tx.queue("in").send([{"i": 1}])
    insert(tx.enlist("ledger", connection, last=True), 1)
    die_in_commit(tx, injector, Fault.CRASH_AFTER, nth_append(world, 0))
    connection.close()
    again = sqlite3.connect(file)
    assert world.manager("B").recover({"ledger": again}).prepared == (key,)
    with world.manager("C").transaction() as other:  # whose clock is right
        other.queue("in").send([{"i": 2}])
    world.clock.advance(61)
    assert world.manager("B").recover({"ledger": again}).prepared == ()
    assert world.manager("B").outcome(key).status is Status.ROLLED_BACK
    assert values(again) == []


def nth_append(world: World, n: int) -> int:
    """Find the number of the store call of a commit that is its nth append."""
    trial, injector = World(), Injector()
    trial.create("in")
    manager = trial.manager("A", injector)
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction("trial")
    tx.queue("in").receive(1)
    with sqlite3.connect(":memory:") as connection:
        tx.enlist("ledger", connection, last=True)
        injector.arm()
        tx.commit()
    return [at for at, call in enumerate(injector.calls) if call == "append"][n]


def test_recovering_before_the_row_forbids_it(world: World, file: str) -> None:
    """A client that sleeps between its preparation and its row finds the door shut."""
    connection = sqlite3.connect(file)
    tx = world.manager("A").transaction(next(_KEYS))
    insert(tx.enlist("ledger", connection, last=True), 1)
    last = attempt_of(tx).participants.last
    assert last is not None
    decide = last.decide

    def asleep() -> bool:
        connection.rollback()  # sqlite3 would lock the file
        world.manager("B").recover({"ledger": sqlite3.connect(file)}, branch_seconds_min=0)
        begin_again(connection)
        insert(connection, 1)
        return decide()

    last.decide = asleep
    with pytest.raises((TransactionAborted, TransactionUnknown, TransactionFinished)):
        tx.commit()
    assert values(connection) == []
    rows = connection.execute(f"SELECT decision FROM {DECISIONS}").fetchall()
    assert rows == [("rolled_back",)]


def test_a_drain_lets_the_last_resource_decide(world: World, file: str) -> None:
    connection = sqlite3.connect(file)
    manager = world.manager("A")
    manager.queue("in").send([{"i": n} for n in range(5)])

    def enlisting(batch: Any, tx: Any) -> None:
        tx.enlist("ledger", connection, last=True)
        for message in batch.messages():
            insert(connection, message["i"])

    result = manager.queue("in").drain(enlisting, batch_size=2)
    assert (result.messages, result.finished) == (5, True)
    other = sqlite3.connect(file)
    assert values(other) == [0, 1, 2, 3, 4]
    assert other.execute(f"SELECT count(*) FROM {DECISIONS}").fetchone() == (3,)


def test_nobody_decides_for_the_last_resource(world: World, file: str) -> None:
    connection, key = sqlite3.connect(file), next(_KEYS)
    tx = world.manager("A").transaction(key)
    insert(tx.enlist("ledger", connection, last=True), 1)
    last = attempt_of(tx).participants.last
    assert last is not None

    def unreachable() -> bool:
        last.may_have_committed = True
        raise sqlite3.OperationalError("gone")

    last.decide = unreachable
    with pytest.raises(TransactionUnknown):
        tx.commit()
    with pytest.raises(TransactionUnknown):
        tx.rollback()
    other = world.manager("B")
    for decide in (other.commit, other.rollback):
        with pytest.raises(DecidedByDatabase, match="ledger"):
            decide(key)
    connection.rollback()
    world.clock.advance(61)
    other.recover({"ledger": sqlite3.connect(file)})
    assert other.outcome(key).status is Status.ROLLED_BACK


def test_interrupted_before_its_commit_the_row_says_nothing(world: World, file: str) -> None:
    class Interrupted(sqlite3.Connection):
        armed = False

        def commit(self) -> None:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            super().commit()

    connection: Any = sqlite3.connect(file, factory=Interrupted)
    manager, key = world.manager("A"), next(_KEYS)
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(KeyboardInterrupt), manager.transaction(key) as tx:
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)
        connection.armed = True
    world.clock.advance(61)
    manager.recover({"ledger": connection})
    assert values(connection) == [] and manager.queue("in").depth() == 1
    assert manager.outcome(key).status is Status.ROLLED_BACK


@pytest.mark.parametrize("drains", [True, False])
def test_interrupted_as_its_row_is_written_nothing_is_held(
    world: World, file: str, *, drains: bool
) -> None:
    """It stayed prepared, which no lease ends; but nobody could have committed it."""

    class Stopped(sqlite3.Cursor):
        def execute(self, statement: str, *values: Any) -> Any:
            if statement.startswith(f"INSERT INTO {DECISIONS}"):
                raise KeyboardInterrupt
            return super().execute(statement, *values)

    class Stopping(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Stopped)

    connection: Any = sqlite3.connect(file, factory=Stopping)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])

    def work(tx: Any) -> None:
        insert(tx.enlist("ledger", connection, last=True), 1)

    with pytest.raises(KeyboardInterrupt):
        if drains:
            manager.queue("in").drain(lambda batch, tx: work(tx))
        else:
            with manager.transaction() as tx:
                tx.queue("in").receive(1)
                work(tx)
    assert values(sqlite3.connect(file)) == []
    assert (manager.queue("in").depth(), manager.queue("in").in_flight()) == (1, 0)
    assert not manager.recover().prepared


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_a_block_whose_commit_is_interrupted_holds_nothing(
    world: World, file: str, *, last: bool, lands: bool
) -> None:
    """Its connection kept the database locked, and its messages waited for their lease to end."""
    connection, key = sqlite3.connect(file), next(_KEYS)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    journal: Any = client_of(manager).store.journal
    append = journal.append

    def interrupted(units: Any, metadata: Any) -> Any:
        journal.append = append
        if lands:
            append(units, metadata)
        raise KeyboardInterrupt

    def work(tx: Any) -> None:
        tx.queue("in").receive(1)
        enlist = (lambda *named: tx.enlist(*named, last=True)) if last else tx.auxiliary
        insert(enlist("ledger", connection), 1)

    with pytest.raises(KeyboardInterrupt), manager.transaction(key) as tx:
        work(tx)
        journal.append = interrupted
    committed = lands and not last  # with a last resource, only the prepare had landed
    other = sqlite3.connect(file, timeout=0)
    insert(other, 2)
    assert values(other) == ([1, 2] if committed else [2])
    assert manager.queue("in").depth() == (0 if committed else 1)
    told = manager.outcome(key)
    assert told.status is tx.status is (Status.COMMITTED if committed else Status.ROLLED_BACK)
    again = [row["_message"]["delivery_count"] for row in manager.queue("in").peek_messages()]
    assert again == ([] if committed else [1]), "the block had it, and failed"


def test_what_a_repeated_body_does_again_is_undone(world: World, file: str) -> None:
    connection, log = sqlite3.connect(file), sqlite3.connect(":memory:")
    log.execute("CREATE TABLE ledger (n integer)")
    manager = world.manager("A")
    for key in ("first", "first", "second"):
        with manager.transaction(key) as tx:
            insert(tx.enlist("ledger", connection, last=True), 1)
            insert(tx.auxiliary("log", log), 1)
    assert values(connection) == [1, 1] == values(log)


def test_every_statement_that_a_repeated_body_does_again_is_undone(world: World, file: str) -> None:
    """sqlite3 begins no transaction by itself before an INSERT that begins with WITH."""
    connection, manager = sqlite3.connect(file), world.manager("A")
    for _ in range(3):
        with manager.transaction("load of monday") as tx:
            tx.enlist("ledger", connection, last=True)
            connection.execute("WITH rows(n) AS (VALUES (1)) INSERT INTO ledger SELECT n FROM rows")
    assert values(sqlite3.connect(file)) == [1]
    insert(connection, 2)  # work of nobody's
    with pytest.raises(InvalidInput, match="open transaction"):
        with manager.transaction("load of monday") as tx:
            tx.enlist("ledger", connection, last=True)
    connection.commit()
    by_itself = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(InvalidInput, match="autocommit"):
        with manager.transaction("load of monday") as tx:
            tx.enlist("ledger", by_itself, last=True)
    assert values(sqlite3.connect(file)) == [1, 2]


def as_bytes(connection: sqlite3.Connection) -> None:
    connection.text_factory = bytes


def as_dicts(connection: sqlite3.Connection) -> None:
    connection.row_factory = lambda cursor, row: dict(
        zip([column[0] for column in cursor.description], row, strict=True)
    )


@pytest.mark.parametrize("rows", [as_bytes, as_dicts])
def test_the_decision_is_found_whatever_a_driver_returns(
    world: World, file: str, rows: Callable[[sqlite3.Connection], None]
) -> None:
    """As bytes it was none: what the database had committed was rolled back, and done again."""
    connection, manager = sqlite3.connect(file), world.manager("A")
    rows(connection)
    manager.queue("in").send([{"i": 1}])
    runs = list[str]()

    def handler(tx: Any) -> None:
        runs.append(tx.id)
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)

    manager.run_transaction(handler, transaction_id="load")
    assert manager.outcome("load").status is Status.COMMITTED and len(runs) == 1
    assert values(sqlite3.connect(file)) == [1] and not manager.queue("in").depth()


def test_another_database_decides_nothing(world: World, file: str, tmp_path: Path) -> None:
    """Somebody recovers from another folder: a new, empty file was the database there."""
    connection, injector = sqlite3.connect(file), Injector()
    manager = world.manager("A", injector)
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction("load")
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection, last=True), 1)
    die_in_commit(tx, injector, Fault.CRASH_BEFORE, nth_append(world, 1))
    connection.close()
    world.lease_over()
    world.clock.advance(1_000)
    elsewhere = sqlite3.connect(tmp_path / "another.db")
    assert world.manager("B").recover({"ledger": elsewhere}).prepared == ("load",)
    assert not elsewhere.execute("SELECT * FROM sqlite_master").fetchall()
    assert world.manager("B").recover({"ledger": sqlite3.connect(file)}).prepared == ()
    assert world.manager("C").outcome("load").status is Status.COMMITTED
    assert not world.manager("C").queue("in").depth()


class Asynchronous:
    """A connection whose calls return coroutines, of which nobody waits for the end."""

    autocommit = False

    async def later(self, *_given: object) -> None:
        raise AssertionError

    cursor = commit = rollback = later
    xid = tpc_begin = tpc_prepare = tpc_commit = tpc_rollback = tpc_recover = later


@pytest.mark.parametrize("last", [False, True])
def test_an_asynchronous_connection_is_refused(world: World, last: bool) -> None:
    """Nothing was done there, and all was told to be committed."""
    tx, connection = world.manager("A").transaction(), Asynchronous()
    with pytest.raises(InvalidInput, match="is asynchronous"):
        tx.enlist("ledger", connection, last=last)
    with pytest.raises(InvalidInput, match="is asynchronous"):
        tx.auxiliary("beside", connection)


def test_committed_there_and_busy_here_is_in_doubt(world: World, file: str) -> None:
    connection, key = sqlite3.connect(file), next(_KEYS)
    manager = world.manager("A")
    journal: Any = client_of(manager).store.journal
    runs: list[Any] = []

    def handler(tx: Any) -> None:
        runs.append(tx.id)
        insert(tx.enlist("ledger", connection, last=True), 1)
        decide = attempt_of(tx).participants.last.decide

        def decides() -> bool:
            decided = decide()
            journal.append = unreachable
            return decided

        attempt_of(tx).participants.last.decide = decides

    def unreachable(*_: Any) -> None:
        raise ConnectionError("the journal is away")

    append = journal.append
    with pytest.raises(TransactionUnknown):
        manager.run_transaction(handler, transaction_id=key)
    journal.append = append
    assert runs == [key] and values(connection) == [1]
    assert world.manager("B").recover({"ledger": sqlite3.connect(file)}).prepared == ()
    assert world.manager("C").outcome(key).status is Status.COMMITTED


def test_one_bad_connection_holds_up_nobody(world: World, file: str) -> None:
    class Broken:
        def tpc_recover(self) -> None:
            raise OSError("no such host")

    connection, key = sqlite3.connect(file), next(_KEYS)
    tx = world.manager("A").transaction(key)
    insert(tx.enlist("ledger", connection, last=True), 1)
    commit._prepare(attempt_of(tx))
    connection.rollback()
    world.clock.advance(61)
    broken: Any = Broken()
    found = world.manager("B").recover({"broken": broken, "ledger": sqlite3.connect(file)})
    assert found.prepared == ()


def test_a_connection_that_commits_by_itself_is_refused(world: World, file: str) -> None:
    tx = world.manager("A").transaction()
    with pytest.raises(InvalidInput, match="autocommit"):
        tx.enlist("ledger", sqlite3.connect(file, isolation_level=None), last=True)
    with pytest.raises(InvalidInput, match="autocommit"):  # no roll back would undo its work
        tx.auxiliary("beside", sqlite3.connect(file, isolation_level=None))
    busy = sqlite3.connect(file)
    insert(busy, 1)
    with pytest.raises(InvalidInput, match="open transaction"):
        tx.enlist("ledger", busy, last=True)


class AlwaysInside(sqlite3.Connection):
    """What ``sqlite3.connect(autocommit=False)`` gives from Python 3.12 on."""

    autocommit, in_transaction = False, True

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.execute("BEGIN")

    def commit(self) -> None:
        super().commit()
        self.execute("BEGIN")

    def rollback(self) -> None:
        super().rollback()
        self.execute("BEGIN")


@pytest.mark.parametrize("fails", [False, True])
def test_sqlite_that_is_always_in_a_transaction_is_the_last_resource(
    world: World, file: str, fails: bool
) -> None:
    connection: Any = AlwaysInside(file)
    if sys.version_info >= (3, 12):
        connection = sqlite3.connect(file, autocommit=False)
    for i in range(2):  # the second time on a connection that was used before
        with contextlib.suppress(ZeroDivisionError), world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection, last=True), i)
            if fails:
                raise ZeroDivisionError
    assert values(sqlite3.connect(file)) == [0, 1] * (not fails)


def forget_what_was_seen(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO seen VALUES (5)")


@pytest.mark.parametrize("end", [forget_what_was_seen, sqlite3.Connection.rollback])
@pytest.mark.parametrize("goes_on", [False, True])
def test_what_sqlite_rolls_back_while_the_block_goes_on_is_committed_nowhere(
    world: World, file: str, end: Callable[[sqlite3.Connection], None], goes_on: bool
) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE seen (n integer UNIQUE)")
    connection.execute("INSERT INTO seen VALUES (5)")
    connection.commit()
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(TransactionAborted, match="ledger"), manager.transaction() as tx:
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)
        end(connection)
        if goes_on:
            insert(connection, 2)
    assert values(connection) == [] and manager.queue("in").depth() == 1


def test_a_last_resource_without_savepoints_commits(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To some databases, a statement that they do not know is a failure of the transaction."""
    monkeypatch.setattr(connections, "_RELEASE", "UNKNOWN")
    with connect(database) as connection:
        with world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection, last=True), 1)
        assert values(connection) == [1]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_every_statement_on_sqlite_is_rolled_back_with_the_rest(
    world: World, file: str, fails: bool, last: bool
) -> None:
    """sqlite3 begins a transaction by itself only where the first word is INSERT, or the like."""
    statement = "WITH one AS (SELECT 1) INSERT INTO ledger SELECT * FROM one"
    connection = sqlite3.connect(file)
    for _ in range(2):  # the second time on a connection that was used before
        with contextlib.suppress(ZeroDivisionError), world.manager("A").transaction() as tx:
            if last:
                connection = tx.enlist("ledger", connection, last=True)
                connection.execute(statement)
            else:
                tx.auxiliary("ledger", connection).execute(statement)
            if fails:
                raise ZeroDivisionError
    assert values(connection) == [1, 1] * (not fails)
    assert not connection.in_transaction


@pytest.mark.parametrize("fails", [False, True])
def test_postgres_without_two_phase_commit_is_the_last_resource(
    world: World, database: str, fails: bool
) -> None:
    """psycopg has no isolation level if the server is to choose it; that is no autocommit."""
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    connection, beside = connect(database), connect(database)
    with contextlib.suppress(ZeroDivisionError), manager.transaction() as tx:
        (message,) = tx.queue("in").receive(1).messages()
        insert(tx.enlist("ledger", connection, last=True), message["i"])
        insert(tx.auxiliary("beside", beside), 2)
        if fails:
            raise ZeroDivisionError
    assert values(connection) == ([] if fails else [1, 2])
    assert manager.queue("in").depth() == fails
    for one in (connection, beside):
        one.close()


def half_failed(tx: Any, connection: Any) -> Any:
    """Insert a row beside the transaction, and pass over what the database says of another."""
    from psycopg.errors import CheckViolation

    log = tx.auxiliary("log", connection)
    insert(log, 1)
    with contextlib.suppress(CheckViolation):
        insert(log, 1000)
    return log


def test_an_auxiliary_commit_that_postgres_would_carry_out_as_a_rollback_fails(
    world: World, database: str
) -> None:
    from psycopg.errors import InFailedSqlTransaction

    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with connect(database) as connection:
        with pytest.raises(InFailedSqlTransaction), manager.transaction() as tx:
            tx.queue("in").receive(1)
            half_failed(tx, connection).commit()
        assert manager.queue("in").depth() == 1
        insert(connection, 2)  # the failed transaction is over
        connection.commit()
        assert values(connection) == [2]


def test_an_auxiliary_that_has_failed_in_postgres_is_logged_and_rolled_back_at_the_end(
    world: World, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as connection:
        with world.manager("A").transaction() as tx:
            half_failed(tx, connection)
        assert "current transaction is aborted" in caplog.text
        insert(connection, 2)
        connection.commit()
        assert values(connection) == [2]


def test_postgres_with_other_work_open_is_refused(world: World, database: str) -> None:
    connection = connect(database)
    insert(connection, 1)
    tx = world.manager("A").transaction()
    with pytest.raises(InvalidInput, match="open transaction"):
        tx.enlist("ledger", connection, last=True)
    connection.commit()
    insert(tx.enlist("ledger", connection, last=True), 2)
    tx.rollback()
    assert values(connection) == [1]
    connection.close()


def test_work_that_a_driver_does_not_tell_of_is_committed_with_the_rest(
    world: World, file: str
) -> None:
    """PyMySQL, mysqlclient and pyodbc do not tell of it."""
    ledger = sqlite3.connect(file)
    ledger.execute(last_resource._CREATE)
    silent = SimpleNamespace(
        autocommit=False, cursor=ledger.cursor, commit=ledger.commit, rollback=ledger.rollback
    )
    insert(silent, 1)
    with world.manager("A").transaction() as tx:
        insert(tx.enlist("ledger", silent, last=True), 2)
    assert tx.status is Status.COMMITTED and values(ledger) == [1, 2]


def role(database: str, *statements: str) -> Any:
    """Connect as a user who may do what these statements grant, and create nothing."""
    with connect(database) as owner:
        for statement in ("DROP OWNED BY job", "DROP ROLE job"):
            with contextlib.suppress(Exception), owner.transaction():
                owner.execute(statement)
        for statement in ("CREATE ROLE job LOGIN", "GRANT ALL ON ledger TO job", *statements):
            owner.execute(statement)
    return connect(database.replace("user=postgres", "user=job"))


def test_who_may_not_create_the_table_of_decisions_uses_the_one_that_is_there(
    world: World, database: str
) -> None:
    granted = f"GRANT SELECT, INSERT ON {DECISIONS} TO job"
    with role(database, last_resource._CREATE, granted) as connection:
        with world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection, last=True), 1)
        assert tx.status is Status.COMMITTED and values(connection) == [1]


def test_who_can_neither_use_nor_create_the_table_of_decisions_is_told(
    world: World, database: str
) -> None:
    tx = world.manager("A").transaction()
    with role(database) as connection:
        with pytest.raises(DatabaseUnavailable, match="grant"):
            tx.enlist("ledger", connection, last=True)
        assert values(connection) == [], "it can be used for other work"


def test_what_keeps_the_table_of_decisions_from_being_created_is_told(
    world: World, file: str
) -> None:
    other = sqlite3.connect(file)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseUnavailable, match="database is locked"):
        world.manager("A").transaction().enlist("ledger", sqlite3.connect(file, 0), last=True)


def test_the_table_of_decisions_may_be_created_by_another_client_meanwhile(
    world: World, database: str
) -> None:
    """PostgreSQL says of two that one breaks a constraint, even with IF NOT EXISTS."""
    with connect(database) as connection, connect(database) as faster:
        cursor = connection.cursor

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

            def cursor(self) -> Any:
                return SimpleNamespace(execute=self._execute, fetchall=lambda: [])

            def _execute(self, statement: str) -> None:
                if statement == last_resource._CREATE:
                    faster.execute(statement)
                    faster.commit()
                    statement = statement.replace("IF NOT EXISTS ", "")
                cursor().execute(statement)

        last_resource._provide_table(Slow())
        connection.rollback()  # what it has read
        with world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection, last=True), 1)
        assert values(connection) == [1]


def test_who_creates_the_table_of_decisions_holds_up_nobody(world: World, database: str) -> None:
    with connect(database) as one, connect(database) as two:
        two.execute("SET lock_timeout = 1")
        two.commit()
        tx, other = (world.manager(name).transaction() for name in "AB")
        insert(tx.enlist("ledger", one, last=True), 1)
        insert(other.enlist("ledger", two, last=True), 2)
        tx.commit()
        other.commit()
        assert values(one) == [1, 2]


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_driver_left_prepared_is_decided_by_its_row_in_postgres(
    world: World, database: str, committed: bool
) -> None:
    key, connection = next(_KEYS), connect(database)
    tx = world.manager("A").transaction(key)
    insert(tx.enlist("ledger", connection, last=True), 1)
    commit._prepare(attempt_of(tx))
    last = attempt_of(tx).participants.last
    assert last is not None
    if committed:
        assert last.decide()
    connection.close()  # the driver dies
    world.clock.advance(61)
    other = connect(database)
    found = world.manager("B").recover({"ledger": other})
    assert found.prepared == () and values(other) == [1] * committed
    expected = Status.COMMITTED if committed else Status.ROLLED_BACK
    assert world.manager("C").outcome(key).status is expected
    other.close()


def test_what_cannot_take_part_is_refused(world: World, file: str) -> None:
    tx = world.manager("A").transaction()
    with pytest.raises(InvalidInput, match="last=True"):
        tx.enlist("ledger", sqlite3.connect(file))  # type: ignore[call-overload]
    with pytest.raises(InvalidInput):
        tx.enlist("", sqlite3.connect(file), last=True)
    unlisted = SimpleNamespace(xid=tuple, tpc_begin=print, tpc_prepare=print)
    with pytest.raises(InvalidInput, match="tpc_recover"):
        tx.enlist("billing", unlisted)
    name: Any
    for name in (None, 7, "\ud800"):
        with pytest.raises(InvalidInput):
            tx.enlist(name, sqlite3.connect(file), last=True)


def test_a_connection_takes_part_once(world: World, file: str) -> None:
    """What commits it as an auxiliary would commit what is decided by the transaction."""
    connection = sqlite3.connect(file)
    tx = world.manager("A").transaction()
    tx.enlist("main", connection, last=True)
    with pytest.raises(InvalidInput, match="'main'"):
        tx.auxiliary("beside", connection)
    tx.rollback()
    other = world.manager("A").transaction()
    other.auxiliary("beside", connection)
    with pytest.raises(InvalidInput, match="'beside'"):
        other.enlist("main", connection, last=True)


class Interrupted:
    """A connection whose first end is interrupted before it begins."""

    def __init__(self, file: str) -> None:
        self._connection = sqlite3.connect(file)
        self._ends = 0

    def cursor(self) -> Any:
        return self._connection.cursor()

    def commit(self) -> None:
        self._end()
        self._connection.commit()

    def rollback(self) -> None:
        self._end()
        self._connection.rollback()

    def _end(self) -> None:
        self._ends += 1
        if self._ends == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("committed", [True, False])
def test_what_follows_a_decision_is_finished_by_who_calls_again(
    world: World, file: str, committed: bool
) -> None:
    manager = world.manager("A")
    connection, last = Interrupted(file), sqlite3.connect(file)
    tx = manager.transaction()
    tx.auxiliary("ledger", connection).execute("INSERT INTO ledger VALUES (1)")
    end = tx.commit if committed else tx.rollback
    with pytest.raises(KeyboardInterrupt):
        end()
    assert tx.status is (Status.COMMITTED if committed else Status.ROLLED_BACK)
    end()
    end()
    assert values(last) == [1] * committed
    insert(last, 2)  # nothing is locked
    last.commit()


@pytest.mark.parametrize("append", ["prepare", "rollback prepared"])
def test_a_last_resource_that_did_not_commit_is_not_passed_over(
    world: World, file: str, append: str
) -> None:
    """Interrupted before it was asked, or after it had refused, it is still what decides."""
    connection = sqlite3.connect(file)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction()
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection, last=True), 1)
    last = attempt_of(tx).participants.last
    assert last is not None
    last.decide = lambda: False
    client, lands = client_of(manager), append == "prepare"
    land = client.land

    def interrupts(plan: Any, operation: str, **about: Any) -> Any:
        landed = land(plan, operation, **about) if lands or operation != append else None
        if operation == append:
            raise KeyboardInterrupt
        return landed

    client.land = interrupts
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    client.land = land
    with pytest.raises(TransactionUnknown, match="ledger"):
        tx.commit()
    connection.rollback()
    world.lease_over()
    assert world.manager("B").recover({"ledger": connection}).prepared == ()
    assert (values(connection), world.manager("B").queue("in").depth()) == ([], 1)
