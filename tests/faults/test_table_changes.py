"""Histories of table changes that once went wrong, or could."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, Injector, InjectorOfCall
from tests.faults.world import World
from tests.inside import client_of
from tests.silence import interrupted
from txnqueue.core import model
from txnqueue.errors import TransactionFinished
from txnqueue.manager import QueueManager
from txnqueue.messages import browse
from txnqueue.testing import plain_schema


@pytest.fixture
def world() -> World:
    world = World()
    world.create("in")
    world.create_table()
    return world


def left_behind(world: World) -> str:
    """Leave a change that was decided and not applied; tell its id."""
    injector = Injector()
    tx = world.manager("dying", injector).transaction()
    tx.table(world.table).append([{"i": 1}])
    injector.stop_at = "apply"
    injector.arm()
    with pytest.raises(Crash):
        tx.commit()
    entry = next(e for e in reversed(world.entries()) if e.kind == model.CHANGE_DECIDED)
    return f"{entry.append_id}:{entry.index}"


@contextmanager
def unheard(manager: QueueManager) -> Iterator[None]:
    """Let what a manager does to tables land without a reply."""
    tables = client_of(manager).store.tables
    apply = tables.apply

    def lands(*args: Any, **kwargs: Any) -> None:
        apply(*args, **kwargs)
        raise ConnectionError("no reply")

    tables.apply = lands
    yield
    tables.apply = apply


def endings(world: World) -> list[str]:
    """How changes ended."""
    kinds = (model.CHANGE_APPLIED, model.CHANGE_WAIVED)
    return [entry.kind for entry in world.entries() if entry.kind in kinds]


def test_a_waiver_that_dies_half_way_stays_a_waiver(world: World) -> None:
    change_id, injector = left_behind(world), Injector()
    waiving = world.manager("W", injector)
    injector.stop_at = "append"
    injector.arm()
    with pytest.raises(Crash):
        waiving.waive_change(change_id, "not wanted")
    assert world.manager("B").recover().waiting == ()
    assert endings(world) == [model.CHANGE_WAIVED] and world.table_numbers() == []
    assert world.entries()[-1].reason == "not wanted"


def test_a_waiver_whose_reply_is_lost_is_a_waiver(world: World) -> None:
    change_id = left_behind(world)
    manager = world.manager("W")
    with unheard(manager):
        manager.waive_change(change_id, "not wanted")
    assert world.manager("B").recover().waiting == ()
    assert endings(world) == [model.CHANGE_WAIVED] and world.table_numbers() == []


def test_applied_to_another_table_with_the_reply_lost_it_is_applied_once(world: World) -> None:
    for _ in range(3):  # the old table has more versions than the new one will have
        tx = world.helper("Z").transaction()
        tx.table(world.table).append([{"i": 100}])
        tx.commit()
    world.helper("Z").recover()
    change_id = left_behind(world)
    world.store.tables.create(world.table, plain_schema("i long"))
    manager = world.manager("C")
    (waiting,) = manager.recover().waiting
    assert waiting.change_id == change_id and "another table" in waiting.reason
    with unheard(manager):
        manager.apply_change(change_id)
    assert world.table_numbers() == [1] and world.manager("B").recover().waiting == ()


def test_a_change_that_loses_to_a_replacement_of_its_table_waits(world: World) -> None:
    """The next try was made on the new table."""
    left_behind(world)
    manager = world.manager("C")
    tables, replaced = world.store.tables, False

    def replace(step: str) -> None:
        nonlocal replaced
        if step == "apply lands" and not replaced:
            replaced = True
            tables.create(world.table, plain_schema("i long"))

    tables.step = replace
    (waiting,) = manager.recover().waiting
    assert replaced and "another table" in waiting.reason
    assert world.table_numbers() == [] and endings(world) == []
    manager.apply_change(waiting.change_id)
    assert world.table_numbers() == [1] and world.manager("B").recover().waiting == ()


def test_an_applied_change_that_no_history_shows_is_not_called_a_restore(world: World) -> None:
    """Delta forgets commits after a while, and never the number of the change."""
    injector = InjectorOfCall("apply", 0, Fault.CRASH_AFTER)
    tx = world.manager("dying", injector).transaction()
    tx.table(world.table).append([{"i": 1}])
    injector.arm()
    with pytest.raises(Crash):
        tx.commit()
    assert world.table_numbers() == [1]
    world.store.tables.history = lambda _name, _after: []
    manager = world.manager("C")
    (waiting,) = manager.recover().waiting
    assert "no longer tells" in waiting.reason and "restored" not in waiting.reason
    manager.waive_change(waiting.change_id, "it is there")
    assert world.table_numbers() == [1] and world.manager("B").recover().waiting == ()


def test_an_interrupted_commit_that_landed_applies_its_changes(world: World) -> None:
    manager = world.manager("A")
    tx = manager.transaction("k")
    tx.table(world.table).append([{"i": 1}])
    with interrupted(client_of(manager).store.journal, lands=True):
        tx.commit()
    with pytest.raises(TransactionFinished):
        tx.rollback()
    assert tx.receipt is not None and tx.receipt.applied and world.table_numbers() == [1]


def test_staged_rows_of_a_waiting_change_that_are_lost_are_found(world: World) -> None:
    left_behind(world)
    manager = world.manager("V")
    assert manager.history.verify().ok
    sends = world.store.payload._sends
    del sends[next(name for name in sends if name[0].startswith("change-"))]
    assert not manager.history.verify().ok


def _end(act: str, batch: Any, tx: Any) -> None:
    getattr(tx, act)()


def test_a_handler_does_not_end_its_own_transaction(world: World) -> None:
    manager = world.manager("A")
    for act in ("commit", "prepare"):
        manager.queue("in").send([{"i": 1}])
        with pytest.raises(TransactionFinished, match="only the drain may"):
            manager.queue("in").drain(partial(_end, act))
    assert len(manager.recover().prepared) == 1


def test_what_comes_back_at_the_end_of_a_drain_is_consumed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = world.manager("A"), world.manager("B")
    manager.queue("in").send([{"i": n} for n in range(3)])
    held = other.queue("in").receive(3)
    queue = manager.queue("in")
    left = browse.left

    def meanwhile(*given: Any) -> Any:
        if held.held_until and len(held) and not given_back:
            given_back.append(held.release())
        return left(*given)

    given_back: list[int] = []
    monkeypatch.setattr(browse, "left", meanwhile)
    result = queue.drain(lambda batch, tx: None, run_id="run")
    assert (result.messages, result.finished, queue.depth()) == (3, True, 0)


# ----------------------------------------------------------------------- appends together


def append(tx: Any, table: str, *numbers: int) -> None:
    for number in numbers:
        tx.table(table).append([{"i": number}])


def decided(world: World) -> list[Any]:
    return [e for e in world.entries() if e.kind == model.CHANGE_DECIDED]


def test_appends_of_a_transaction_to_one_table_are_one_commit_of_it(world: World) -> None:
    world.store.tables.create("other", plain_schema("i long"))
    manager = world.manager("A")
    with manager.transaction() as tx:
        append(tx, world.table, 1)
        append(tx, "other", 10)
        append(tx, world.table, 2, 3)
    assert tx.receipt is not None and tx.receipt.applied
    assert world.table_numbers() == [1, 2, 3]
    assert world.store.tables.rows("other").column("i").to_pylist() == [10]
    assert len(world.store.tables.history(world.table, 0)) == 1
    assert sorted(entry.count for entry in decided(world)) == [1, 3]
    manager.queue("in").send([{"i": 1}])  # the confirmations ride on it
    assert endings(world) == [model.CHANGE_APPLIED] * 2
    assert manager.recover().waiting == () and manager.history.verify().ok


def test_more_appends_than_a_statement_names_are_several_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnqueue.storage.tables.SENDS_PER_CHANGE_MAX", 2)
    with world.manager("A").transaction() as tx:
        append(tx, world.table, 1, 2, 3, 4, 5)
    assert world.table_numbers() == [1, 2, 3, 4, 5]
    assert [entry.count for entry in decided(world)] == [2, 2, 1]


def test_appends_together_that_wait_are_one_change_to_whoever_ends_it(world: World) -> None:
    injector = Injector()
    tx = world.manager("dying", injector).transaction()
    append(tx, world.table, 1, 2)
    injector.stop_at = "apply"
    injector.arm()
    with pytest.raises(Crash):
        tx.commit()
    world.store.tables.create(world.table, plain_schema("i long"))
    manager = world.manager("A")
    assert manager.history.verify().ok
    (waiting,) = manager.recover().waiting
    assert waiting.rows == 2
    manager.apply_change(waiting.change_id)
    assert world.table_numbers() == [1, 2] and manager.recover().waiting == ()


def test_rows_of_appends_together_that_are_lost_are_found(world: World) -> None:
    injector = Injector()
    tx = world.manager("dying", injector).transaction()
    append(tx, world.table, 1, 2)
    injector.stop_at = "apply"
    injector.arm()
    with pytest.raises(Crash):
        tx.commit()
    sends = world.store.payload._sends
    del sends[[name for name in sends if name[0].startswith("change-")][-1]]
    assert not world.manager("V").history.verify().ok


@pytest.mark.parametrize("applied", [0, 1, 2])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.REPLY_LOST])
def test_appends_that_were_decided_one_by_one_are_finished_so(
    world: World, applied: int, fault: Fault
) -> None:
    """A store of the first layout may be shared with a version that knows one send a change."""

    def commit(injector: Injector) -> None:
        older = world.manager("older", injector)
        client_of(older).open()
        client_of(older).cache.layout = 1
        tx = older.transaction()
        append(tx, world.table, 1, 2, 3)
        injector.arm()
        tx.commit()

    counting = Injector()
    commit(counting)
    applies = [n for n, call in enumerate(counting.calls) if call == "apply"]
    with contextlib.suppress(Crash):
        commit(Injector(applies[applied], fault))
    assert [e.count for e in decided(world)] == [1, 1, 1] * 2
    assert all("also" not in e.body["change"]["source"] for e in decided(world))
    with world.manager("A").transaction() as tx:
        append(tx, world.table, 4, 5)
    assert tx.receipt is not None and tx.receipt.applied
    assert world.manager("B").recover().waiting == ()
    assert world.table_numbers() == [1, 2, 3, 1, 2, 3, 4, 5]
