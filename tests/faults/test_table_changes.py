"""Histories of table changes that once went wrong, or could."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.injection import Crash, Injector
from tests.faults.world import World
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
    tables = manager._client.store.tables
    apply = tables.apply

    def lands(*args: Any, **kwargs: Any) -> None:
        apply(*args, **kwargs)
        raise ConnectionError("no reply")

    tables.apply = lands  # type: ignore[method-assign]
    yield
    tables.apply = apply  # type: ignore[method-assign]


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


def test_an_interrupted_commit_that_landed_applies_its_changes(world: World) -> None:
    manager = world.manager("A")
    tx = manager.transaction("k")
    tx.table(world.table).append([{"i": 1}])
    with interrupted(manager._client.store.journal, lands=True):
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


def test_a_handler_does_not_end_its_own_transaction(world: World) -> None:
    manager = world.manager("A")
    for act in ("commit", "prepare"):
        manager.queue("in").send([{"i": 1}])
        with pytest.raises(TransactionFinished, match="the drain commits it"):
            manager.queue("in").drain(lambda batch, tx, act=act: getattr(tx, act)())
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
