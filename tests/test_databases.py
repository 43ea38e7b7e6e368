"""Databases in a transaction: two-phase, last resource, auxiliary; sqlite3 and PostgreSQL."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.faults import Crash, Fault, Injector
from tests.protocol.world import World
from txnqueue.errors import (
    InvalidInput,
    LimitExceeded,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
    TransactionUnknown,
)
from txnqueue.participants import DECISIONS
from txnqueue.transaction import Status

_KEYS = (f"key-{n}" for n in itertools.count())


@pytest.fixture
def world() -> World:
    world = World()
    world.create("in")
    return world


def values(connection: Any, table: str = "ledger") -> list[int]:
    cursor = connection.cursor()
    cursor.execute(f"SELECT n FROM {table} ORDER BY n")
    found = [row[0] for row in cursor.fetchall()]
    connection.rollback()
    return found


def insert(connection: Any, n: int, table: str = "ledger") -> None:
    connection.cursor().execute(f"INSERT INTO {table} VALUES ({n})")


# ------------------------------------------------------------------------------- sqlite3


@pytest.fixture
def file(tmp_path: Path) -> str:
    name = str(tmp_path / "ledger.db")
    with sqlite3.connect(name) as connection:
        connection.execute("CREATE TABLE ledger (n integer)")
    return name


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


def test_a_last_resource_that_cannot_commit_rolls_everything_back(world: World, file: str) -> None:
    class Refusing(sqlite3.Connection):
        refused = False

        def commit(self) -> None:
            if not Refusing.refused:
                Refusing.refused = True
                raise sqlite3.OperationalError("disk full")
            super().commit()

    connection = sqlite3.connect(file, factory=Refusing)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(TransactionAborted), manager.transaction() as tx:
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)
    assert values(connection) == [] and manager.queue("in").depth() == 1


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
    injector.arm()
    injector.fault, injector.at = fault, nth_append(world, append)
    with pytest.raises(Crash):
        tx.commit()
    connection.close()
    world.lease_over()
    again = sqlite3.connect(file)
    found = world.manager("B").recover({"ledger": again})
    assert found.prepared == ()
    committed = world.manager("C").outcome(key).status is Status.COMMITTED
    assert committed == (append == 1), "the row decides"
    assert values(again) == ([1] if committed else [])
    assert world.manager("C").queue("in").depth() == (0 if committed else 1)


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
    last = tx._participants.last
    assert last is not None
    decide = last.decide

    def asleep() -> bool:
        connection.rollback()  # sqlite3 would lock the file
        world.manager("B").recover({"ledger": sqlite3.connect(file)})
        insert(connection, 1)
        return decide()

    last.decide = asleep  # type: ignore[method-assign]
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
    last = tx._participants.last
    assert last is not None

    def unreachable() -> bool:
        raise sqlite3.OperationalError("gone")

    last.decide = unreachable  # type: ignore[method-assign]
    with pytest.raises(TransactionUnknown):
        tx.commit()
    with pytest.raises(TransactionUnknown):
        tx.rollback()
    other = world.manager("B")
    for decide in (other.commit, other.rollback):
        with pytest.raises(TransactionMismatch, match="ledger"):
            decide(key)
    connection.rollback()
    other.recover({"ledger": sqlite3.connect(file)})
    assert other.outcome(key).status is Status.ROLLED_BACK


def test_interrupted_before_its_commit_the_row_says_nothing(world: World, file: str) -> None:
    class Interrupted(sqlite3.Connection):
        armed = True

        def commit(self) -> None:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            super().commit()

    connection, key = sqlite3.connect(file, factory=Interrupted), next(_KEYS)
    manager = world.manager("A")
    manager.queue("in").send([{"i": 1}])
    with pytest.raises(KeyboardInterrupt), manager.transaction(key) as tx:
        tx.queue("in").receive(1)
        insert(tx.enlist("ledger", connection, last=True), 1)
    manager.recover({"ledger": connection})
    assert values(connection) == [] and manager.queue("in").depth() == 1
    assert manager.outcome(key).status is Status.ROLLED_BACK


def test_what_a_repeated_body_does_again_is_undone(world: World, file: str) -> None:
    connection, log = sqlite3.connect(file), sqlite3.connect(":memory:")
    log.execute("CREATE TABLE ledger (n integer)")
    manager = world.manager("A")
    for key in ("first", "first", "second"):
        with manager.transaction(key) as tx:
            insert(tx.enlist("ledger", connection, last=True), 1)
            insert(tx.auxiliary("log", log), 1)
    assert values(connection) == [1, 1] == values(log)


def test_committed_there_and_busy_here_is_in_doubt(world: World, file: str) -> None:
    connection, key = sqlite3.connect(file), next(_KEYS)
    manager = world.manager("A")
    journal, runs = manager._client.store.journal, []

    def handler(tx: Any) -> None:
        runs.append(tx.id)
        insert(tx.enlist("ledger", connection, last=True), 1)
        decide = tx._participants.last.decide

        def decides() -> bool:
            decided = decide()
            journal.append = unreachable  # type: ignore[method-assign]
            return decided

        tx._participants.last.decide = decides

    def unreachable(*_: Any) -> None:
        raise ConnectionError("the journal is away")

    append = journal.append
    with pytest.raises(TransactionUnknown):
        manager.run_transaction(handler, transaction_id=key)
    journal.append = append  # type: ignore[method-assign]
    assert runs == [key] and values(connection) == [1]
    assert world.manager("B").recover({"ledger": sqlite3.connect(file)}).prepared == ()
    assert world.manager("C").outcome(key).status is Status.COMMITTED


class Hiding:
    """A database that prepares, loses its connection, and may tell what is prepared, or not."""

    def __init__(self) -> None:
        self.prepared: list[Any] = []
        self.committed: list[Any] = []
        self._xid: Any = None

    def xid(self, *parts: Any) -> Any:
        return parts

    def tpc_begin(self, xid: Any) -> None:
        self._xid = xid

    def tpc_prepare(self) -> None:
        self.prepared.append(self._xid)

    def tpc_commit(self, xid: Any = None) -> None:
        if xid is None:
            raise ConnectionError("it is gone")
        self.prepared.remove(xid)
        self.committed.append(xid)

    def tpc_recover(self) -> list[Any]:
        return list(self.prepared)


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


def test_one_bad_connection_holds_up_nobody(world: World, file: str) -> None:
    class Broken:
        def tpc_recover(self) -> None:
            raise OSError("no such host")

    connection, key = sqlite3.connect(file), next(_KEYS)
    tx = world.manager("A").transaction(key)
    insert(tx.enlist("ledger", connection, last=True), 1)
    tx._prepare()
    connection.rollback()
    found = world.manager("B").recover({"broken": Broken(), "ledger": sqlite3.connect(file)})
    assert found.prepared == ()


def test_a_connection_that_commits_by_itself_is_refused(world: World, file: str) -> None:
    tx = world.manager("A").transaction()
    with pytest.raises(InvalidInput, match="autocommit"):
        tx.enlist("ledger", sqlite3.connect(file, isolation_level=None), last=True)
    busy = sqlite3.connect(file)
    insert(busy, 1)
    with pytest.raises(InvalidInput, match="open work"):
        tx.enlist("ledger", busy, last=True)


def test_what_cannot_take_part_is_refused(world: World, file: str) -> None:
    tx = world.manager("A").transaction()
    with pytest.raises(InvalidInput, match="last=True"):
        tx.enlist("ledger", sqlite3.connect(file))
    with pytest.raises(InvalidInput):
        tx.enlist("", sqlite3.connect(file), last=True)
    unlisted = SimpleNamespace(xid=tuple, tpc_begin=print, tpc_prepare=print)
    with pytest.raises(InvalidInput, match="tpc_recover"):
        tx.enlist("billing", unlisted)


# ---------------------------------------------------------------------------- PostgreSQL


def _postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a private PostgreSQL on localhost, and tell how to connect to it."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install psycopg[binary]")
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine: apt-get install postgresql")
    folder = tmp_path_factory.mktemp("postgres")
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL does not run as root
        user = {"user": "nobody", "group": "nogroup"}
        folder = Path(tempfile.mkdtemp(prefix="txnqueue-postgres-", dir="/tmp"))
        shutil.chown(folder, "nobody", "nogroup")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

    run("initdb", "-U", "postgres", "-A", "trust", "--no-sync")
    options = f"-p {port} -k {folder} -h 127.0.0.1 -c max_prepared_transactions=20 -c fsync=off"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: str) -> str:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        for xid in connection.tpc_recover():  # what a test that failed left behind
            connection.tpc_rollback(xid)
        connection.execute("DROP TABLE IF EXISTS ledger")
        connection.execute("CREATE TABLE ledger (n integer CHECK (n < 100))")
    return postgres


def connect(database: str) -> Any:
    import psycopg

    return psycopg.connect(database)


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
        branch = tx._participants._branches["ledger"]
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
        mine._participants.prepare()
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
        branch = tx._participants._branches["ledger"]
        branch.commit = dying(lambda: None, "before the commit")  # type: ignore[method-assign]
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


def test_an_id_too_long_for_a_branch_is_refused(world: World, database: str) -> None:
    with connect(database) as connection, pytest.raises(LimitExceeded):
        world.manager("A").transaction("x" * 65).enlist("ledger", connection)
