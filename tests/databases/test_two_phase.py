"""Databases that prepare: their branches follow the queue's decision."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.databases.hiding import Hiding
from tests.faults.injection import Crash, Fault, Injector
from tests.faults.world import World
from tests.inside import attempt_of
from tests.postgres import connect, insert, values
from txnqueue.core.receipt import Status
from txnqueue.errors import LimitExceeded, TransactionAborted
from txnqueue.transactions import connections

_KEYS = (f"key-{n}" for n in itertools.count())


def test_what_cannot_be_seen_is_not_confirmed(world: World) -> None:
    """A connection that cannot list what is prepared says nothing of it."""
    database = Hiding()
    with world.manager("A").transaction(next(_KEYS)) as tx:
        tx.queue("in").send([{"i": 1}])
        tx.enlist("billing", database)
    assert tx.receipt is not None and not tx.receipt.applied
    blind = sqlite3.connect(":memory:")
    assert world.manager("B").recover({"billing": blind}).databases == ("billing",)
    assert database.prepared, "the commit never came there"
    assert world.manager("B").recover({"billing": database}).databases == ()
    assert database.committed and not database.prepared


def test_what_is_confirmed_together_with_an_abort_is_confirmed(world: World) -> None:
    """A confirmation rides on the next append, which may be one of the recovery's own."""
    database = Hiding()
    world.helper("creator").queue("in").send([{"i": 1}])
    with world.manager("A").transaction(next(_KEYS)) as tx:
        tx.queue("in").send([{"i": 2}])
        tx.enlist("billing", database)
    world.manager("dead").transaction(left := next(_KEYS)).queue("in").receive(1)
    world.lease_over()
    found = world.manager("B").recover({"billing": database})
    assert found.aborted == (left,) and found.databases == ()
    assert world.manager("C").recover().databases == ()


def test_postgres_commits_with_the_queue(world: World, database: str) -> None:
    manager = world.manager("A")
    manager.queue("in").send([{"i": 7}])
    with connect(database) as connection, connect(database) as reader:
        with manager.transaction() as tx:
            (message,) = tx.queue("in").receive(1).messages()
            insert(tx.enlist("ledger", connection), message["i"])
            assert values(reader) == []
        assert tx.receipt is not None and tx.receipt.applied
        assert values(reader) == [7] and manager.queue("in").depth() == 0
        assert reader.tpc_recover() == []


def test_what_a_repeated_body_does_again_is_undone_in_its_branch(
    world: World, database: str
) -> None:
    with connect(database) as connection, connect(database) as reader:
        for _ in range(3):
            with world.manager("A").transaction("load of monday") as tx:
                insert(tx.enlist("ledger", connection), 1)
            assert values(reader) == [1] and reader.tpc_recover() == []
        insert(connection, 2)  # work of nobody's
        with pytest.raises(Exception, match="INTRANS"):
            with world.manager("A").transaction("load of monday") as tx:
                tx.enlist("ledger", connection)


def test_postgres_rolls_back_with_the_queue(world: World, database: str) -> None:
    with connect(database) as connection, connect(database) as reader:
        with pytest.raises(ZeroDivisionError), world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection), 1)
            raise ZeroDivisionError
        assert values(reader) == [] and reader.tpc_recover() == []


def test_a_branch_that_cannot_prepare_aborts_everything(world: World, database: str) -> None:
    manager = world.manager("A")
    manager.queue("in").send([{"i": 7}])
    with connect(database) as good, connect(database) as bad, connect(database) as reader:
        bad.execute("DROP TABLE IF EXISTS late")
        bad.execute("CREATE TABLE late (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        bad.commit()
        with pytest.raises(TransactionAborted), manager.transaction() as tx:
            tx.queue("in").receive(1)
            insert(tx.enlist("good", good), 1)
            worse = tx.enlist("bad", bad)
            insert(worse, 5, "late")
            insert(worse, 5, "late")  # found out at the preparation only
        assert values(reader) == [] and reader.tpc_recover() == []
        assert manager.queue("in").depth() == 1


def pass_over(connection: Any) -> None:
    """Insert a row, and pass over what the database says of another."""
    from psycopg import IntegrityError

    insert(connection, 1)
    with contextlib.suppress(IntegrityError):
        insert(connection, 1000)


def roll_back(connection: Any) -> None:
    insert(connection, 1)
    connection.cursor().execute("ROLLBACK")
    insert(connection, 2)


@pytest.mark.parametrize("work", [pass_over, roll_back])
def test_what_postgres_rolls_back_while_the_block_goes_on_is_committed_nowhere(
    world: World, database: str, work: Any
) -> None:
    """It prepares a failed transaction, or one that begins after a rollback, without an error."""
    manager = world.manager("A")
    manager.queue("in").send([{"i": 7}])
    with connect(database) as connection, connect(database) as reader:
        with (
            pytest.raises(TransactionAborted, match="'ledger' could not prepare"),
            manager.transaction() as tx,
        ):
            tx.queue("in").receive(1)
            work(tx.enlist("ledger", connection))
        assert values(reader) == [] and reader.tpc_recover() == []
        assert manager.queue("in").depth() == 1


def test_what_a_handler_rolls_back_to_a_savepoint_of_its_own_is_its_own_matter(
    world: World, database: str
) -> None:
    from psycopg import IntegrityError

    with connect(database) as connection, connect(database) as reader:
        with world.manager("A").transaction() as tx:
            insert(tx.enlist("ledger", connection), 1)
            with contextlib.suppress(IntegrityError), connection.transaction():
                insert(connection, 1000)
            insert(connection, 2)
        assert values(reader) == [1, 2]


def test_a_branch_that_has_failed_before_its_work_is_not_prepared(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MARK", "SELECT 1 / 0")
    manager = world.manager("A")
    with connect(database) as connection:
        with pytest.raises(TransactionAborted, match="prepare"), manager.transaction() as tx:
            tx.queue("in").send([{"i": 1}])
            tx.enlist("ledger", connection)
        assert connection.tpc_recover() == [] and manager.queue("in").depth() == 0


def test_a_database_without_savepoints_commits(world: World) -> None:
    class Plain(Hiding):
        def cursor(self) -> Any:
            return SimpleNamespace(execute=self._refuse)

        def _refuse(self, statement: str) -> None:
            raise SyntaxError(statement)

    database = Plain()
    with world.manager("A").transaction() as tx:
        tx.queue("in").send([{"i": 1}])
        tx.enlist("billing", database)
    assert len(database.prepared) == 1 and tx.status is Status.COMMITTED


def test_a_preparation_that_was_interrupted_is_repeated(world: World) -> None:
    """The savepoint is released once: to release it again would fail."""

    class Interrupted(Hiding):
        interrupts = True
        marked = False

        def cursor(self) -> Any:
            return SimpleNamespace(execute=self._execute)

        def _execute(self, statement: str) -> None:
            marks = statement == connections._MARK
            assert marks or self.marked
            self.marked = marks

        def tpc_prepare(self) -> None:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            super().tpc_prepare()

    database = Interrupted()
    tx = world.manager("A").transaction(next(_KEYS))
    tx.enlist("billing", database)
    with pytest.raises(KeyboardInterrupt):
        tx.prepare()
    tx.prepare()
    assert len(database.prepared) == 1


def test_prepared_work_waits_in_both(world: World, database: str) -> None:
    key = next(_KEYS)
    with connect(database) as connection:
        tx = world.manager("A").transaction(key)
        insert(tx.enlist("ledger", connection), 1)
        tx.prepare()
        connection.close()
    world.lease_over()
    with connect(database) as again:
        found = world.manager("B").recover({"ledger": again}, branch_seconds_min=0)
        assert found.prepared == (key,) and len(again.tpc_recover()) == 1
        again.rollback()
        receipt = world.manager("B").commit(key)
        assert not receipt.applied
        found = world.manager("C").recover()
        assert found.databases == ("ledger",)
        found = world.manager("C").recover({"ledger": again})
        assert found.databases == () == found.prepared
        again.rollback()
        assert values(again) == [1]
    decided = world.manager("D").outcome(key).receipt
    assert decided is not None and decided.applied


STEPS = [*(f"store call {n}" for n in range(8)), "prepare", "commit"]


def dying(act: Any, what: str) -> Any:
    """Do it, and be killed right after it."""

    def dies() -> None:
        act()
        raise Crash(what)

    return dies


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_is_finished_from_both_sides(
    world: World, database: str, step: str
) -> None:
    """Each store call of a commit, and each of the database's, may be the last."""
    key, injector = next(_KEYS), Injector()
    manager = world.manager("A", injector)
    manager.queue("in").send([{"i": 7}])
    connection = connect(database)
    tx = manager.transaction(key)
    tx.queue("in").receive(1)
    insert(tx.enlist("ledger", connection), 7)
    injector.arm()
    if step in ("prepare", "commit"):
        branch = attempt_of(tx).participants._branches["ledger"]
        setattr(branch, step, dying(getattr(branch, step), step))
    else:
        injector.at, injector.fault = int(step[-1]), Fault.CRASH_AFTER
    died = False
    try:
        tx.commit()
    except Crash:
        died = True
    connection.close()
    world.lease_over()
    recovering = world.manager("B")
    with connect(database) as again:
        found = recovering.recover({"ledger": again}, branch_seconds_min=0)
        assert found.prepared == () == found.databases
        again.rollback()
        committed = recovering.outcome(key).status is Status.COMMITTED
        assert values(again) == ([7] if committed else [])
        assert again.tpc_recover() == []
    assert recovering.queue("in").depth() == (0 if committed else 1)
    if step in ("prepare", "commit"):
        assert died and committed == (step == "commit")


def test_others_branches_are_left_alone(world: World, database: str) -> None:
    with connect(database) as connection, connect(database) as other:
        foreign = other.xid(1, "somebody", "else")
        other.tpc_begin(foreign)
        insert(other, 9)
        other.tpc_prepare()
        mine = world.manager("A").transaction(next(_KEYS))
        insert(mine.enlist("ledger", connection), 1)
        attempt_of(mine).participants.prepare()
        other.close()
        connection.close()
    elsewhere = World(generation=100)  # ids of its own
    elsewhere.create("in")
    with connect(database) as again:
        elsewhere.manager("X").recover({"ledger": again}, branch_seconds_min=0)
        assert len(again.tpc_recover()) == 2, "another store's branch was touched"
        world.manager("B").recover({"ledger": again})
        assert len(again.tpc_recover()) == 2, "a branch that is decided just now was aborted"
        world.manager("B").recover({"ledger": again}, branch_seconds_min=0)
        assert [x.gtrid for x in again.tpc_recover()] == ["somebody"]
        again.tpc_rollback(again.tpc_recover()[0])


def test_a_branch_prepared_during_a_recovery_is_not_confirmed(world: World, database: str) -> None:
    key = next(_KEYS)
    with connect(database) as connection, connect(database) as recovering:
        tx = world.manager("A").transaction(key)
        insert(tx.enlist("ledger", connection), 1)
        branch = attempt_of(tx).participants._branches["ledger"]
        branch.commit = dying(lambda: None, "before the commit")
        listed = recovering.tpc_recover

        class Meanwhile:
            def __getattr__(self, name: str) -> Any:
                return getattr(recovering, name)

            def tpc_recover(self) -> Any:
                found = listed()
                recovering.rollback()
                with pytest.raises(Crash):
                    tx.commit()
                return found

        found = world.manager("B").recover({"ledger": Meanwhile()}, branch_seconds_min=0)
        assert found.databases == ("ledger",)
        connection.close()
        recovering.rollback()
        assert world.manager("B").recover({"ledger": recovering}).databases == ()
        recovering.rollback()
        assert values(recovering) == [1]


@pytest.mark.parametrize("undone", [True, False])
def test_a_commit_of_which_no_branch_is_left_is_confirmed_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture, undone: bool
) -> None:
    """Somebody may have rolled it back in the database, or this may be another database."""
    database, key = Hiding(), next(_KEYS)
    with world.manager("A").transaction(key) as tx:
        tx.queue("in").send([{"i": 1}])
        tx.enlist("billing", database)
    if undone:
        database.tpc_rollback(*database.prepared)
    caplog.clear()
    assert world.manager("B").recover({"billing": database}).databases == ()
    told = f"it counts as committed name=billing transaction_id={key}" in caplog.text
    assert told == undone == (not database.committed)


@pytest.fixture
def elsewhere(database: str) -> str:
    """Create another database of the cluster."""
    with connect(database) as owner:
        owner.autocommit = True
        owner.execute("DROP DATABASE IF EXISTS other")
        owner.execute("CREATE DATABASE other TEMPLATE template0")
    other = database.replace("dbname=postgres", "dbname=other")
    with connect(other) as connection:
        connection.execute("CREATE TABLE ledger (n integer)")
    return other


def test_two_databases_of_one_cluster_are_recovered_at_once(
    world: World, database: str, elsewhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL lists the branches of both in each of them."""
    with connect(database) as one, connect(elsewhere) as two:
        tx = world.manager("A").transaction(next(_KEYS))
        for name, connection in (("one", one), ("two", two)):
            insert(tx.enlist(name, connection), 1)
            attempt_of(tx).participants._branches[name].commit = dying(lambda: None, "unheard")
        with pytest.raises(Crash):
            tx.commit()
        one.close()
        two.close()
    with connect(database) as one, connect(elsewhere) as two:
        assert world.manager("B").recover({"one": one, "two": two}).databases == ()
        assert values(one) == [1] == values(two)
    assert not caplog.text


def test_a_branch_in_another_database_of_the_cluster_is_not_taken_for_committed(
    world: World, database: str, elsewhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as connection:
        tx = world.manager("A").transaction(next(_KEYS))
        insert(tx.enlist("ledger", connection), 1)
        attempt_of(tx).participants._branches["ledger"].commit = dying(lambda: None, "unheard")
        with pytest.raises(Crash):
            tx.commit()
        connection.close()
    with connect(database) as right, connect(elsewhere) as wrong:
        assert world.manager("B").recover({"ledger": wrong}).databases == ("ledger",)
        assert "prepared in another database of the cluster" in caplog.text
        assert world.manager("B").recover({"ledger": right}).databases == ()
        assert values(right) == [1]


class OfCluster(Hiding):
    """One of several databases whose server lists the branches of all of them."""

    def __init__(self, database: str, prepared: list[Any], *, dies: bool = False) -> None:
        super().__init__()
        self.prepared, self._database, self._dies = prepared, database, dies

    def xid(self, *parts: Any) -> Any:
        return Xid._make((*parts, self._database))

    def tpc_commit(self, xid: Any = None) -> None:
        super().tpc_commit(None if self._dies else xid or self._xid)

    def cursor(self) -> Any:
        asked: list[str] = []
        return SimpleNamespace(
            execute=lambda _statement, names=(): asked.extend(names),
            fetchone=lambda: (1,) if asked == [self._database] else None,
        )

    def rollback(self) -> None:
        """Do nothing: nothing is open."""


class Xid(NamedTuple):
    format_id: int
    gtrid: str
    bqual: str
    database: str


def test_while_a_branch_is_prepared_elsewhere_in_the_cluster_nothing_is_confirmed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The client died between two commits; by mistake, one database is given for the other."""
    prepared: list[Any] = []
    with world.manager("A").transaction(next(_KEYS)) as tx:
        tx.queue("in").send([{"i": 1}])
        tx.enlist("one", OfCluster("one", prepared))
        tx.enlist("two", OfCluster("two", prepared, dies=True))
    one, two = OfCluster("one", prepared), OfCluster("two", prepared)
    caplog.clear()
    assert "two" in world.manager("B").recover({"two": one}).databases
    assert "prepared in another database of the cluster" in caplog.text
    assert world.manager("B").recover({"two": two, "one": one}).databases == ()
    assert two.committed and not prepared


def test_an_id_too_long_for_a_branch_is_refused(world: World, database: str) -> None:
    with connect(database) as connection, pytest.raises(LimitExceeded):
        world.manager("A").transaction("x" * 65).enlist("ledger", connection)
