"""A store of queues as a resource of somebody else's transaction manager (PEP 249)."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import drivers
from tests.conformance.conftest import (
    World,
    alone_on_delta_when_long,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conftest import LONG
from tests.specifications import coordinator
from tests.specifications.dtx_world import refused
from txnqueue import Status
from txnqueue.errors import InvalidInput, TransactionAborted
from txnqueue.protocols.dtx import HeuristicallyCompleted, TpcConnection, TpcXid

rule = pytest.mark.rule


@pytest.fixture
def orders(world: World) -> Any:
    orders = world.queue()
    orders.send(rows(1, 2))
    return orders


def connect(world: World, name: str = "rm") -> TpcConnection:
    return TpcConnection(world.manager(name))


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
