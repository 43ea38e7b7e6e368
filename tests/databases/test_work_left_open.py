"""Work in a database whose transaction ended badly: it must not join that of the next one."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest

import txnqueue.attempts
from tests.databases.hiding import Hiding
from tests.faults.world import World
from tests.inside import client_of
from tests.postgres import connect, insert, values
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    HandlerFailed,
    InvalidInput,
    StoreBusy,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.messages.charges import Fault, fault_of
from txnqueue.transactions.commit import resolve_doubt


class Journal:
    """The journal of a manager's store, which can be away."""

    def __init__(self, manager: Any) -> None:
        """Take the store as it is."""
        self._journal: Any = client_of(manager).store.journal
        self._append, self._read = self._journal.append, self._journal.read

    def leave(self, *, after_one_append: bool = False) -> None:
        """Be away for appends, from now on; perhaps with one that lands without a reply."""

        def lost(*given: Any, **named: Any) -> None:
            if after_one_append:
                self._journal.append = self._journal.read = away
                self._append(*given, **named)
            raise ConnectionError("the store is away")

        def away(*_given: Any, **_named: Any) -> None:
            raise ConnectionError("the store is away")

        self._journal.append = lost

    def part(self) -> None:
        """Be away altogether."""
        self.leave()
        self._journal.read = self._journal.append

    def come_back(self) -> None:
        """Answer again."""
        self._journal.append, self._journal.read = self._append, self._read


def silent(connection: sqlite3.Connection) -> Any:
    """Make a connection that does not tell of open work, as those of many drivers."""
    return SimpleNamespace(
        autocommit=False,
        cursor=connection.cursor,
        commit=connection.commit,
        rollback=connection.rollback,
    )


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("tells", [True, False])
def test_a_rollback_that_is_not_on_record_is_carried_out_in_the_database(
    world: World, file: str, last: bool, tells: bool
) -> None:
    """The work of the failed batch was committed with that of the next one."""
    connection = sqlite3.connect(file)
    mine: Any = connection if tells else silent(connection)
    manager = world.manager("A")
    queue, journal, ids = manager.queue("in"), Journal(manager), list[str]()
    queue.send([{"i": 1}])

    def handler(batch: Any, tx: Any) -> None:
        ids.append(tx.id)
        used = tx.enlist("ledger", mine, last=True) if last else tx.auxiliary("ledger", mine)
        for message in batch.messages():
            insert(used, message["i"])
        if len(ids) == 1:
            journal.leave()
            raise ValueError("the handler failed")

    with pytest.raises(TransactionUnknown):
        queue.drain(handler, batch_size=1)
    assert not connection.in_transaction
    journal.come_back()
    world.lease_over()
    assert queue.drain(handler, batch_size=1).messages == 1
    assert values(connection) == [1]
    assert manager.outcome(ids[0]).status is Status.ROLLED_BACK


def test_a_transaction_that_was_rolled_back_in_the_database_is_not_committed(
    world: World, file: str
) -> None:
    connection = sqlite3.connect(file)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    tx = manager.transaction()
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection, last=True), 1)
    journal = Journal(manager)
    journal.part()
    with pytest.raises((TransactionUnknown, ConnectionError)):
        tx.rollback()
    journal.come_back()
    connection.execute("INSERT INTO ledger VALUES (2)")  # by somebody else, who has it now
    with pytest.raises(TransactionFinished, match="roll it back again"):
        tx.commit()
    tx.rollback()
    assert tx.status is Status.ROLLED_BACK
    connection.commit()
    assert values(connection) == [2]


def test_a_rollback_that_was_not_begun_changes_nothing_where_no_database_waits(
    world: World,
) -> None:
    manager = world.manager("A")
    queue = manager.queue("in")
    queue.send([{"i": 1}])
    tx = manager.transaction()
    tx.queue("in").receive(1)
    journal = Journal(manager)
    journal.part()
    with pytest.raises((TransactionUnknown, ConnectionError)):
        tx.rollback()
    journal.come_back()
    assert tx.commit().transaction_id == tx.id
    assert queue.depth() == 0


@pytest.mark.parametrize("lands", [False, True])
def test_a_commit_in_doubt_is_carried_out_before_it_is_tried_again(
    world: World, file: str, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    connection, manager = sqlite3.connect(file), world.manager("A")
    world.create("out")
    journal, runs = Journal(manager), list[int]()

    def handler(tx: Any) -> None:
        runs.append(1)
        tx.queue("out").send([{"i": 1}])
        insert(tx.auxiliary("ledger", connection), 1)
        if len(runs) == 1:
            journal.leave(after_one_append=True) if lands else journal.part()

    def answered(attempt: Any) -> Status:
        journal.come_back()
        return resolve_doubt(attempt)

    monkeypatch.setattr(txnqueue.attempts, "resolve_doubt", answered)
    receipt = manager.run_transaction(handler)
    assert len(runs) == (1 if lands else 2)
    assert receipt.commit_seq is not None and manager.queue("out").depth() == 1
    assert not connection.in_transaction and values(connection) == [1]


def test_a_branch_whose_commit_was_in_doubt_is_committed(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed prepared, with its locks, and no other branch could begin on its connection."""
    manager = world.manager("A")
    journal = Journal(manager)

    def answered(attempt: Any) -> Status:
        journal.come_back()
        return resolve_doubt(attempt)

    monkeypatch.setattr(txnqueue.attempts, "resolve_doubt", answered)
    with connect(database) as connection, connect(database) as reader:

        def handler(tx: Any) -> None:
            tx.queue("in").send([{"i": 1}])
            insert(tx.enlist("billing", connection), 1)
            journal.leave(after_one_append=True)

        manager.run_transaction(handler, transaction_id="booked")
        assert values(reader) == [1]
        assert connection.tpc_recover() == []


def test_a_store_that_stays_away_leaves_a_commit_in_doubt(world: World) -> None:
    manager = world.manager("A")
    journal = Journal(manager)

    def handler(tx: Any) -> None:
        tx.queue("in").send([{"i": 1}])
        journal.part()

    with pytest.raises(TransactionUnknown, match="outcome"):
        manager.run_transaction(handler)


def test_a_connection_with_work_open_is_no_auxiliary(world: World, file: str) -> None:
    """It would have been committed with the work of the transaction."""
    connection = sqlite3.connect(file)
    insert(connection, 1)
    with (
        pytest.raises(InvalidInput, match=r"'ledger' has an open transaction.*first"),
        world.manager("A").transaction() as tx,
    ):
        tx.auxiliary("ledger", connection)
    assert connection.in_transaction
    connection.rollback()
    with world.manager("A").transaction() as tx:
        insert(tx.auxiliary("ledger", connection), 2)
    assert values(connection) == [2]


def test_a_recovery_leaves_open_work_alone(world: World, file: str) -> None:
    """It rolled back what the application had not committed yet, and said nothing."""
    connection = sqlite3.connect(file)
    insert(connection, 1)
    with pytest.raises(InvalidInput, match=r"'ledger' has an open transaction.*first"):
        world.manager("A").recover({"ledger": connection})
    connection.commit()
    world.manager("A").recover({"ledger": connection})
    assert values(connection) == [1]


def test_a_recovery_takes_a_connection_whose_work_has_failed(world: World, database: str) -> None:
    with connect(database) as connection:
        with pytest.raises(Exception, match="syntax"):
            connection.cursor().execute("NO STATEMENT")
        assert world.manager("A").recover({"ledger": connection}).databases == ()


class AsOfMySQL:
    """A connection whose ``autocommit`` is the method that sets it, as PyMySQL's and mysqlclient's.

    With autocommit, a savepoint is gone as soon as it is made.
    """

    def __init__(self, file: str, *, commits_by_itself: bool) -> None:
        """Connect."""
        level = None if commits_by_itself else "DEFERRED"
        self._connection = sqlite3.connect(file, isolation_level=level)  # type: ignore[arg-type]
        self._commits_by_itself = commits_by_itself
        self.cursor, self.commit = self._connection.cursor, self._connection.commit
        self.rollback = self._connection.rollback

    def autocommit(self, on: bool) -> None:
        """Set it."""
        raise AssertionError(on)

    def get_autocommit(self) -> bool:
        """Tell it."""
        return self._commits_by_itself


@pytest.mark.parametrize("take_part", ["enlist", "auxiliary"])
def test_autocommit_is_noticed_where_a_method_tells_it(
    world: World, file: str, take_part: str
) -> None:
    """What was rolled back stayed in the database."""

    def use(connection: Any) -> Any:
        with world.manager("A").transaction() as tx:
            if take_part == "enlist":
                return insert(tx.enlist("ledger", connection, last=True), 1)
            return insert(tx.auxiliary("ledger", connection), 1)

    with pytest.raises(InvalidInput, match="autocommit on"):
        use(AsOfMySQL(file, commits_by_itself=True))
    use(AsOfMySQL(file, commits_by_itself=False))
    assert values(sqlite3.connect(file)) == [1]


@pytest.mark.parametrize("length", [53, 54, 62])
def test_a_run_whose_ids_will_be_too_long_for_a_database_fails_at_its_first_batch(
    world: World, length: int
) -> None:
    """From the tenth batch on each one failed, until good messages were dead letters."""
    manager, database = world.manager("A"), Hiding()
    queue = manager.queue("in")
    queue.send([{"i": i} for i in range(3)])

    def handler(_batch: Any, tx: Any) -> None:
        tx.enlist("billing", database)

    def drain() -> Any:
        return queue.drain(handler, batch_size=1, run_id="r" * length)

    if length == 53:
        assert drain().batches == 3
        return
    with pytest.raises(HandlerFailed, match=r"up to .* in later batches") as caught:
        drain()
    assert caught.value.result is not None and caught.value.result.batches == 0
    assert [row["_message"]["delivery_count"] for row in queue.peek_messages()] == [0, 0, 0]


@pytest.mark.parametrize("kind", [ValueError("x"), KeyboardInterrupt()])
def test_what_a_handler_prepared_stays_prepared(world: World, kind: BaseException) -> None:
    """Others may rely on it. A drain rolled it back, and gave the message to the next batch."""
    manager, ids = world.manager("A"), list[str]()
    queue = manager.queue("in")
    queue.send([{"i": 1}])

    def handler(_batch: Any, tx: Any) -> None:
        ids.append(tx.id)
        tx.prepare()
        raise kind

    expected = TransactionFinished if isinstance(kind, Exception) else KeyboardInterrupt
    with pytest.raises(expected):
        queue.drain(handler)
    (key,) = ids
    other = world.manager("B")
    assert other.outcome(key).status is Status.PREPARED
    assert other.commit(key).transaction_id == key


def test_a_database_that_does_not_answer_is_no_fault_of_a_message(world: World, file: str) -> None:
    def refuse(_statement: str) -> Any:
        raise sqlite3.OperationalError("no such table, and none may be created")

    connection = silent(sqlite3.connect(file))
    connection.cursor = lambda: SimpleNamespace(execute=refuse)
    with pytest.raises(Exception, match="cannot be read or created") as caught:
        world.manager("A").transaction().enlist("ledger", connection, last=True)
    assert fault_of(caught.value) is Fault.STORE


@pytest.mark.parametrize("last", [True, False])
def test_a_commit_that_the_store_refuses_leaves_nothing_open(
    world: World, file: str, last: bool
) -> None:
    """Nothing has landed: whoever repeats the drain on the connection must not find old work."""
    connection = sqlite3.connect(file)
    mine, runs = silent(connection), list[int]()
    manager = world.manager("A")
    queue = manager.queue("in")
    journal: Any = client_of(manager).store.journal
    queue.send([{"i": 1}])
    append = journal.append

    def busy(*_given: Any, **_named: Any) -> None:
        raise StoreBusy(owner=None)

    def handler(batch: Any, tx: Any) -> None:
        runs.append(1)
        used = tx.enlist("ledger", mine, last=True) if last else tx.auxiliary("ledger", mine)
        insert(used, 1)
        if len(runs) == 1:
            journal.append = busy

    with pytest.raises(StoreBusy):
        queue.drain(handler, batch_size=1)
    assert not connection.in_transaction
    journal.append = append
    world.lease_over()
    queue.drain(handler, batch_size=1)
    assert (values(connection), len(runs)) == ([1], 2)


class InterruptedOnce(sqlite3.Connection):
    """A database in whose next commit or rollback the user presses Ctrl-C."""

    pressed = False

    def commit(self) -> None:
        """Commit, if it is not interrupted."""
        self._press()
        super().commit()

    def rollback(self) -> None:
        """Roll back, if it is not interrupted."""
        self._press()
        super().rollback()

    def _press(self) -> None:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["drain", "block"])
def test_who_interrupts_what_follows_a_decision_finds_it_carried_out(
    world: World, file: str, fails: bool, how: str
) -> None:
    """What is consumed is in the database, and what was rolled back is not open there."""
    connection = InterruptedOnce(file)
    connection.pressed = True  # not while the table is made
    manager, runs = world.manager("A"), list[int]()
    queue = manager.queue("in")
    queue.send([{"i": 1}])

    def handler(batch: Any, tx: Any) -> None:
        runs.append(1)
        insert(tx.auxiliary("ledger", silent(connection)), 1)
        connection.pressed = len(runs) > 1
        if fails and len(runs) == 1:
            raise ValueError("the first time")

    def block() -> None:
        with manager.transaction() as tx:
            handler(tx.queue("in").receive(), tx)

    work = block if how == "block" else lambda: queue.drain(handler)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert not connection.in_transaction
    if fails:
        world.lease_over()
        work()
    assert values(sqlite3.connect(file)) == [1]
