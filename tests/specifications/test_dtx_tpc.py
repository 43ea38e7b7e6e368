"""A store of queues as a resource of somebody else's transaction manager (PEP 249)."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import drivers
from tests.conformance.conftest import (
    World,
    alone_on_delta_when_long,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conftest import LONG
from tests.faults.interrupts import Interrupt
from tests.inside import client_of
from tests.silence import unanswered
from tests.specifications import coordinator
from tests.specifications.dtx_world import refused
from txnqueue import Status
from txnqueue.errors import InvalidInput, TransactionAborted
from txnqueue.protocols.dtx import (
    BranchRolledBack,
    CommandInvalid,
    Connection,
    HeuristicallyCompleted,
    NotFound,
    TpcConnection,
    TpcXid,
    XaStatus,
)
from txnqueue.testing import MemoryStore

rule = pytest.mark.rule


@pytest.fixture
def orders(world: World) -> Any:
    orders = world.queue()
    orders.send(rows(1, 2))
    return orders


def connect(world: World, name: str = "rm") -> TpcConnection:
    return TpcConnection(world.manager(name))


def unheard(connection: TpcConnection) -> AbstractContextManager[None]:
    """Let the next append land, and nothing be read or written after it."""
    return unanswered(client_of(connection._connection.manager).store.journal, lands=True)


def begin(world: World, connection: TpcConnection, orders: Any) -> TpcXid:
    """Receive a message and send one, in a new branch."""
    xid = connection.xid(1, world.name("transfer"), orders.name)
    connection.tpc_begin(xid)
    queue = connection.queue(orders.name)
    assert numbers(queue.receive(1)) == [1]
    queue.send(rows(9))
    return xid


@on_delta_when_long
@rule("S4-18")
def test_two_phases(world: World, orders: Any) -> None:
    connection = connect(world)
    begin(world, connection, orders)
    connection.tpc_prepare()
    assert numbers(orders.peek_messages()) == [2]
    connection.tpc_commit()
    assert numbers(orders.peek_messages()) == [2, 9]
    connection.commit()  # nothing is left to be done


@on_delta_when_long
@rule("S4-18")
def test_one_phase(world: World, orders: Any) -> None:
    connection = connect(world)
    begin(world, connection, orders)
    connection.tpc_commit()
    assert numbers(orders.peek_messages()) == [2, 9]


@on_delta_when_long
@rule("S4-18")
@pytest.mark.parametrize("prepared", [False, True])
def test_roll_back(world: World, orders: Any, prepared: bool) -> None:
    connection = connect(world)
    begin(world, connection, orders)
    if prepared:
        connection.tpc_prepare()
    connection.tpc_rollback()
    assert numbers(orders.peek_messages()) == [1, 2]
    connection.rollback()
    connection.tpc_begin(connection.xid(1, world.name("next"), ""))  # it can be used again
    connection.tpc_prepare()  # there was nothing to do
    connection.tpc_commit()


@on_delta_when_long
@rule("S4-28")
def test_another_process_recovers(world: World, orders: Any) -> None:
    xid = begin(world, connection := connect(world), orders)
    connection.tpc_prepare()
    connection.close()
    restarted = connect(world)
    (found,) = [x for x in restarted.tpc_recover() if x.gtrid == xid.gtrid]
    assert found[:3] == xid[:3] and found.prepared is not None
    restarted.tpc_commit(found)
    assert numbers(orders.peek_messages()) == [2, 9]
    assert found not in restarted.tpc_recover()


@on_delta_when_long
@rule("S4-18", "S4-06")
def test_calls_out_of_order_are_refused(world: World, orders: Any) -> None:
    connection = connect(world)
    for call in (connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback):
        with refused(503):
            call()
    xid = begin(world, connection, orders)
    for call in (
        connection.commit,
        connection.rollback,
        lambda: connection.tpc_begin(xid),
        lambda: connection.tpc_commit(xid),
        lambda: connection.tpc_rollback(xid),
    ):
        with refused(503):
            call()
    connection.tpc_prepare()
    with refused(503):
        connection.tpc_prepare()
    connection.tpc_commit()
    with refused(404):
        connection.tpc_commit(xid)
    with refused(530):
        connection.tpc_begin(xid)


@on_delta_when_long
@rule("S4-03")
def test_what_is_not_offered_answers_540(world: World) -> None:
    with refused(540):
        connect(world).cursor()


@on_delta_when_long
@rule("S4-02")
def test_text_becomes_octets_and_back(world: World) -> None:
    connection = connect(world)
    for text in ("", "ü", "\udcff"):
        xid = connection.xid(1, text, text)
        assert TpcXid.of(xid.xid) == xid
    with pytest.raises(InvalidInput):
        connection.xid(1, "ü" * 60, "x" * 20)


@on_delta_when_long
@rule("S4-32", "S4-24")
def test_what_took_too_long_is_aborted(world: World, orders: Any) -> None:
    connection = connect(world)
    for end in (connection.tpc_prepare, connection.tpc_commit):
        connection.tpc_begin(connection.xid(1, world.name(end.__name__), ""))
        connection.queue(orders.name).send(rows(9))
        world.clock.advance(301)
        with pytest.raises(TransactionAborted, match="xa-rbtimeout"):
            end()
    assert numbers(orders.peek_messages()) == [1, 2]
    connection.tpc_begin(connection.xid(1, world.name("back"), ""))
    world.clock.advance(301)
    connection.tpc_rollback()  # which is what was wanted


@on_delta_when_long
@rule("S4-22")
@pytest.mark.parametrize("committed", [True, False])
def test_an_operators_decision_is_told_where_it_differs(
    world: World, orders: Any, committed: bool
) -> None:
    connection = connect(world)
    xid = begin(world, connection, orders)
    connection.tpc_prepare()
    key = xid.xid.transaction_id
    world.manager("op").decide_heuristically(key, commit=committed, reason="gone")
    agreeing, differing = connection.tpc_commit, connection.tpc_rollback
    if not committed:
        agreeing, differing = differing, agreeing
    agreeing()
    with pytest.raises(HeuristicallyCompleted) as caught:
        differing(xid)
    assert caught.value.status == ("xa-heurcom" if committed else "xa-heurrb")


# --------------------------------------------------- what is in doubt, interrupted, or misused


@in_memory
@rule("S4-24", "S4-25")
def test_a_prepared_transaction_takes_no_work_until_it_is_decided(
    world: World, orders: Any
) -> None:
    """It would happen by itself, whatever becomes of the transaction (PEP 249)."""
    connection = connect(world)
    early = connection.queue(orders.name)
    begin(world, connection, orders)
    connection.tpc_prepare()
    for queue in (early, connection.queue(orders.name)):
        for work in (lambda q=queue: q.send(rows(7)), queue.receive):
            with refused(503):
                work()
    connection.tpc_rollback()
    assert numbers(orders.peek_messages()) == [1, 2]
    early.send(rows(7))  # a transaction of its own again
    assert numbers(orders.peek_messages()) == [1, 2, 7]


@in_memory
@rule("S4-12")
def test_a_begin_in_doubt_of_what_was_rolled_back_since_is_told(world: World, orders: Any) -> None:
    connection = connect(world)
    xid = connection.xid(1, world.name("transfer"), "")
    with unheard(connection), refused(541):
        connection.tpc_begin(xid)
    world.clock.advance(301)
    world.manager("x").recover()
    with pytest.raises(BranchRolledBack):
        connection.tpc_begin(xid)
    with refused(503):
        connection.tpc_rollback()
    begin(world, connection, orders)


@in_memory
@rule("S4-24")
@pytest.mark.parametrize("again", [True, False])
def test_a_prepare_in_doubt_is_asked_again_or_decided(
    world: World, orders: Any, again: bool
) -> None:
    connection = connect(world)
    xid = begin(world, connection, orders)
    connection._channel.end(xid.xid)
    with unheard(connection), refused(541):
        connection.tpc_prepare()
    if again:
        connection.tpc_prepare()
    connection.tpc_commit()
    assert numbers(orders.peek_messages()) == [2, 9]


@in_memory
@rule("S4-18", "S4-21")
def test_what_another_coordinator_prepared_is_not_committed(world: World, orders: Any) -> None:
    connection = connect(world)
    xid = begin(world, connection, orders)
    connection._channel.end(xid.xid)
    coordinator = Connection(world.manager("tm")).channel()
    assert coordinator.prepare(xid.xid) is XaStatus.OK
    for act in (connection.tpc_prepare, connection.tpc_prepare, connection.tpc_commit):
        with refused(503):
            act()
    assert coordinator.rollback(xid.xid) is XaStatus.OK


@in_memory
@rule("S4-20")
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("decide", ["tpc_commit", "tpc_rollback"])
def test_a_decision_in_doubt_leaves_the_connection_of_use(
    world: World, orders: Any, decide: str, prepared: bool
) -> None:
    connection = connect(world)
    xid = begin(world, connection, orders)
    connection.tpc_prepare() if prepared else connection._channel.end(xid.xid)
    with unheard(connection), refused(541):
        getattr(connection, decide)()
    with refused(404) as caught:  # it was carried out
        getattr(connection, decide)()
    assert ("committed" if decide == "tpc_commit" else "rolled_back") in str(caught.value)
    connection.tpc_begin(connection.xid(1, world.name("next"), ""))
    connection.tpc_rollback()


@in_memory
@rule("S4-29")
def test_a_recovery_that_fails_half_way_answers_541(
    world: World, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(world, connection := connect(world), orders)
    connection.tpc_prepare()
    recover_all = connection._channel.recover_all

    def then_away(**options: Any) -> Any:
        found = recover_all(**options)
        monkeypatch.setattr(connection._connection.branches, "find", lambda _: 1 / 0)
        return found

    monkeypatch.setattr(connection._channel, "recover_all", then_away)
    with refused(541):
        connection.tpc_recover()


@in_memory
@rule("S4-02")
def test_what_is_no_xid_is_refused(world: World) -> None:
    connection = connect(world)
    wrong: Any
    for wrong in (b"g", None, 7, "\ud800"):
        for parts in ((wrong, ""), ("", wrong)):
            with pytest.raises(InvalidInput):
                connection.xid(1, *parts)
    for wrong in ((1, "g", "b"), "g", 7):
        for act in (connection.tpc_begin, connection.tpc_commit, connection.tpc_rollback):
            with pytest.raises(InvalidInput):
                act(wrong)


@rule("S4-14", "S4-25")
def test_a_transaction_that_is_interrupted_anywhere_can_be_rolled_back_or_has_happened() -> None:
    nth, happened = 0, set()
    while True:
        nth += 1 if LONG else 3
        world = World(MemoryStore())
        orders, connection = world.queue(), connect(world)
        with suppress(KeyboardInterrupt), Interrupt(nth) as interrupt:
            connection.tpc_begin(connection.xid(1, "g", ""))
            connection.queue(orders.name).send(rows(9))
            connection.tpc_prepare()
            connection.tpc_commit()
        if interrupt.at is None:
            break
        with suppress(NotFound, CommandInvalid):  # it is completed, or was never begun
            connection.tpc_rollback()
        found = numbers(orders.peek_messages())
        assert found in ([], [9]), interrupt.at
        happened.add(bool(found))
        connection.queue(orders.name).send(rows(7))
        assert numbers(orders.peek_messages()) == [*found, 7], interrupt.at
        connection.tpc_begin(connection.xid(1, "next", ""))
        connection.close()
        assert world.manager("x").recover().prepared == ()
    assert happened == {True, False}


# ------------------------------------------------------------- two stores, and two resources


@pytest.mark.parametrize("crash", [False, True])
@rule("S4-18", "S4-25")
def test_a_store_takes_part_in_a_transaction_of_another_store(crash: bool) -> None:
    from txnqueue.testing import MemoryStore

    here, there = World(MemoryStore()), World(MemoryStore())
    mine, theirs = here.queue("mine"), there.queue("theirs")
    mine.send(rows(1))
    manager = here.manager("a")
    remote: Any = connect(there)
    tx = manager.transaction("transfer")
    got = numbers(manager.queue(mine.name).receive(transaction=tx))
    tx.enlist("remote", remote)
    remote.queue(theirs.name).send(rows(*got))
    if crash:
        remote.tpc_commit = lambda *_: 1 / 0
        tx.commit()
        assert numbers(theirs.peek_messages()) == []
        recovery = here.manager("b").recover({"remote": connect(there, "again")})
        assert recovery.databases == ()
    else:
        tx.commit()
    assert numbers(theirs.peek_messages()) == [1] and mine.in_flight() == 0
    assert there.manager("x").recover().prepared == ()


class Killed(BaseException):
    """The coordinator ends here."""


def both_or_none(world: World, orders: Any, database: sqlite3.Connection, step: str) -> None:
    """Recover, and look at both sides."""
    coordinator.recover(connect(world, "restarted"), database)
    world.clock.advance(301)
    world.manager("restarted").recover()
    sent = numbers(orders.receive(100))
    assert sent == [row[0] for row in database.execute("SELECT n FROM orders ORDER BY n")]
    assert bool(sent) == (step in ("decided", "committed")), step


@alone_on_delta_when_long
@rule("S4-25")
@pytest.mark.parametrize("step", coordinator.STEPS)
def test_a_coordinator_that_is_killed_at_a_step_leaves_both_or_none(
    world: World, step: str, tmp_path: Path
) -> None:
    orders = world.queue()
    path = str(tmp_path / "orders.db")

    def kill(name: str) -> None:
        if name == step:
            raise Killed

    database = coordinator.open_database(path)
    with pytest.raises(Killed):
        coordinator.place_order(connect(world), database, orders.name, 7, kill)
    database.close()  # without a commit
    both_or_none(world, orders, coordinator.open_database(path), step)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="in the long run only: it starts a driver for each step")
@pytest.mark.timeout(1800)
@rule("S4-25")
def test_a_coordinator_process_that_is_killed_leaves_both_or_none(
    spark: Any, tmp_path: Path
) -> None:
    for step in coordinator.STEPS:
        root, path = str(tmp_path / step / "store"), str(tmp_path / f"{step}.db")
        world = World(None, spark, root)
        orders = world.queue()
        arguments = (root, path, orders.name, 7, step)
        process = drivers.start(coordinator.__name__, *arguments, stderr=subprocess.PIPE)
        _, said = process.communicate()
        assert process.returncode == -9, said[-2000:]
        assert world.manager("op").outcome(f"xid:1:order-7:{orders.name}").status in (
            (Status.ACTIVE,) if step in ("begun", "sent") else (Status.PREPARED, Status.COMMITTED)
        )
        world.clock.now_ms = 1 << 42  # past the real clock by which the process worked
        both_or_none(world, orders, coordinator.open_database(path), step)
