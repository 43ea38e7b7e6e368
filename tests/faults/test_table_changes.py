"""Histories of table changes that once went wrong, or could."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, Injector, InjectorOfCall
from tests.faults.world import World
from tests.inside import client_of
from tests.silence import interrupted
from txnqueue.core import model
from txnqueue.errors import (
    ChangeNotFound,
    ChangeWaiting,
    InvalidInput,
    TableNotFound,
    TransactionFinished,
)
from txnqueue.manager import QueueManager
from txnqueue.messages import browse
from txnqueue.storage.tables import TableCommit
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


def applied_only(world: World) -> None:
    """Leave a change that was applied and not confirmed."""
    injector = InjectorOfCall("apply", 0, Fault.CRASH_AFTER)
    tx = world.manager("dying", injector).transaction()
    tx.table(world.table).append([{"i": 1}])
    injector.arm()
    with pytest.raises(Crash):
        tx.commit()


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
    applied_only(world)
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


# ------------------------------------------------------------------- confirmed in time


def committed_last(world: World, number: int) -> None:
    """Let a job change the table by its last append, and close its manager."""
    with world.manager(f"job {number}") as manager:
        with manager.transaction() as tx:
            tx.table(world.table).append([{"i": number}])
        assert tx.receipt is not None and tx.receipt.applied


def test_an_applied_change_of_a_manager_that_was_closed_does_not_wait_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table's history forgot it before anybody else looked, and it held up all later ones."""
    committed_last(world, 1)
    monkeypatch.setattr(world.store.tables, "history", lambda _name, _after: [])
    committed_last(world, 2)
    assert world.manager("operator").recover().waiting == ()
    assert world.table_numbers() == [1, 2]
    assert endings(world) == [model.CHANGE_APPLIED] * 2


def test_an_applied_change_of_a_manager_that_was_closed_is_not_for_a_table_made_anew(
    world: World,
) -> None:
    committed_last(world, 1)
    world.store.tables.create(world.table, plain_schema("i long"))
    assert world.manager("operator").recover().waiting == ()
    assert world.table_numbers() == []


def test_a_manager_is_closed_though_nothing_can_be_confirmed(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_given: Any) -> Any:
        raise OSError("no storage")

    closed: list[str] = []
    monkeypatch.setattr(world.store, "close", lambda: closed.append("yes"))
    with world.manager("job") as manager:
        with manager.transaction() as tx:
            tx.table(world.table).append([{"i": 1}])
        monkeypatch.setattr(world.store.journal, "append", unreachable)
        monkeypatch.setattr(world.store.journal, "read", unreachable)
    monkeypatch.undo()
    assert closed == ["yes"] and "not confirmed" in caplog.text
    assert world.manager("operator").recover().waiting == ()
    assert endings(world) == [model.CHANGE_APPLIED]


def test_nothing_is_asked_of_a_server_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would try that for ten minutes."""
    with world.manager("job") as manager:
        with manager.transaction() as tx:
            tx.table(world.table).append([{"i": 1}])
        monkeypatch.setattr(world.store, "answers", lambda: False)
        before = world.store.journal.version()
    assert world.store.journal.version() == before


def test_closing_costs_an_append_only_if_something_is_to_be_confirmed(world: World) -> None:
    before = world.store.journal.version()
    with world.manager("job") as manager:
        with manager.transaction() as tx:
            tx.table(world.table).append([{"i": 1}])
        manager.queue("in").send([{"i": 1}])  # the confirmation rides on it
    assert world.store.journal.version() == before + 2
    committed_last(world, 2)
    assert world.store.journal.version() == before + 4


def test_maintenance_confirms_what_dead_clients_have_applied_and_applies_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_only(world)
    left_behind(world)
    keeper = world.manager("keeper")
    keeper.maintain(dry_run=True)
    assert endings(world) == []
    keeper.maintain()
    assert endings(world) == [model.CHANGE_APPLIED] and world.table_numbers() == [1]
    version = world.store.journal.version()
    keeper.maintain()
    assert world.store.journal.version() == version
    world.manager("operator").recover()
    assert world.table_numbers() == [1, 1]
    asked: list[str] = []
    monkeypatch.setattr(world.store.tables, "describe", asked.append)
    keeper.maintain()
    assert asked == [], "no table is looked at when all changes are confirmed"


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
    assert sorted(world.table_numbers()) == [1, 2, 3]
    assert world.store.tables.rows("other").column("i").to_pylist() == [10]
    assert len(world.store.tables.history(world.table, 0)) == 1
    assert sorted(entry.count for entry in decided(world)) == [1, 3]
    manager.queue("in").send([{"i": 1}])  # the confirmations ride on it
    assert endings(world) == [model.CHANGE_APPLIED] * 2
    assert manager.recover().waiting == () and manager.history.verify().ok


def test_appends_to_a_table_and_to_its_copy_stay_apart(world: World) -> None:
    """A folder that is copied keeps Delta's id of the table: all rows went to the first one."""
    world.create_table()
    tables: Any = world.store.tables
    tables.create("lake/copy", plain_schema("i long"))
    tables._tables["lake/copy"].table_id = tables._tables[world.table].table_id
    with world.manager("A").transaction() as tx:
        tx.table(world.table).append([{"i": 1}])
        tx.table("lake/copy").append([{"i": 2}])
    assert tx.receipt is not None and tx.receipt.applied
    assert world.table_numbers() == [1]
    assert tables.rows("lake/copy").column("i").to_pylist() == [2]


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


def test_what_waits_of_a_replaced_table_does_not_hinder_the_changes_of_the_new_one(
    world: World,
) -> None:
    """Both took their numbers from one row, and the table refused the smaller one for ever."""
    old = world.manager("old").transaction("T")
    old.table(world.table).append([{"i": 1}])
    old.prepare()
    world.store.tables.create(world.table, plain_schema("i long"))
    tables, apply = world.store.tables, world.store.tables.apply

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("storage is away")

    tables.apply = away
    with world.manager("new").transaction("T2") as new:
        new.table(world.table).append([{"i": 2}])
    manager = world.manager("M")
    manager.commit("T")
    waiting = {one.transaction_id: one for one in manager.recover().waiting}
    tables.apply = apply
    manager.waive_change(waiting["T"].change_id, "its table was replaced")
    assert world.manager("B").recover().waiting == ()
    assert world.table_numbers() == [2]


def test_a_change_of_a_replaced_table_is_applied_to_the_new_one_that_others_have_used(
    world: World,
) -> None:
    change_id = left_behind(world)
    world.store.tables.create(world.table, plain_schema("i long"))
    with world.manager("new").transaction() as new:
        new.table(world.table).append([{"i": 2}])
    assert new.receipt is not None and new.receipt.applied
    manager = world.manager("C")
    with unheard(manager), pytest.raises(ChangeWaiting, match=r"no reply.* give it up"):
        manager.apply_change(change_id)  # the table has a later number: it is applied apart
    assert world.table_numbers() == [2]
    manager.apply_change(change_id)
    assert world.manager("B").recover().waiting == ()
    assert sorted(world.table_numbers()) == [1, 2] and endings(world)[-1] == model.CHANGE_APPLIED
    with world.manager("new").transaction() as new:
        new.table(world.table).append([{"i": 3}])
    assert new.receipt is not None and new.receipt.applied
    assert sorted(world.table_numbers()) == [1, 2, 3]


def test_a_change_of_a_table_that_is_not_found_is_waived_only_by_who_knows_that_it_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been applied, or still be, by whose session finds the table."""
    applied_only(world)
    manager = world.manager("operator")
    with monkeypatch.context() as patch:
        patch.setattr(world.store.tables, "describe", lambda _name: None)
        (waiting,) = manager.recover().waiting
        assert "table_gone=True" in waiting.remedy
        with pytest.raises(TableNotFound, match="or has applied it"):
            manager.waive_change(waiting.change_id, "gone")
    with pytest.raises(ChangeNotFound, match="already applied"):
        manager.waive_change(waiting.change_id, "gone")
    assert world.manager("B").recover().waiting == ()
    assert endings(world) == [model.CHANGE_APPLIED] and world.table_numbers() == [1]


@pytest.mark.parametrize("found", ["nothing", "a view", "no storage"])
def test_a_change_of_a_table_that_is_gone_for_good_can_be_waived(
    world: World, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    change_id = left_behind(world)

    def describe(name: str) -> None:
        if found == "a view":
            raise InvalidInput(f"{name!r} is not a Delta table", name=name)
        if found == "no storage":
            raise ConnectionError("unknown host")

    monkeypatch.setattr(world.store.tables, "describe", describe)
    manager = world.manager("operator")
    refusal = {"nothing": TableNotFound, "a view": InvalidInput, "no storage": ConnectionError}
    with pytest.raises(refusal[found]):
        manager.waive_change(change_id, "given up")
    assert len(manager.recover().waiting) == 1
    manager.waive_change(change_id, "given up", table_gone=True)
    assert world.manager("B").recover().waiting == ()
    assert endings(world) == [model.CHANGE_WAIVED]


@pytest.mark.parametrize("forgets", [True, False])
def test_a_change_is_not_applied_to_a_table_that_may_have_forgotten_it(
    world: World, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    left_behind(world)
    tables = world.store.tables
    for _ in range(2):  # its owner's commits, and the older ones are no longer in its log
        tables._tables[world.table].commits.append(TableCommit(0, "WRITE", "Append", {}))
    describe = tables.describe
    monkeypatch.setattr(tables, "history", lambda _name, _after: [])
    monkeypatch.setattr(
        tables, "describe", lambda name: replace(describe(name), forgets_numbers=forgets)
    )
    waiting = world.manager("C").recover().waiting
    if not forgets:  # its numbers tell
        assert waiting == () and world.table_numbers() == [1]
        return
    (one,) = waiting
    assert "setTransactionRetentionDuration" in one.reason and world.table_numbers() == []
    world.manager("D").apply_change(one.change_id)
    assert world.table_numbers() == [1]


@pytest.mark.parametrize("ends", ["waived", "applied"])
def test_who_still_takes_the_table_for_the_old_one_does_nothing_after_its_change_has_ended(
    world: World, ends: str
) -> None:
    change_id = left_behind(world)
    tables, late = world.store.tables, world.manager("late")
    interposed = False

    def replace_and_end(step: str) -> None:
        nonlocal interposed
        if step == "apply starts" and not interposed:
            interposed = True  # it has looked at the old table
            tables.create(world.table, plain_schema("i long"))
            operator = world.manager("operator")
            if ends == "waived":
                operator.waive_change(change_id, "its table was replaced")
            else:
                operator.apply_change(change_id)

    tables.step = replace_and_end
    late.recover()
    assert interposed and world.manager("B").recover().waiting == ()
    assert world.table_numbers() == ([] if ends == "waived" else [1])
    assert len(set(endings(world))) == 1


def test_a_change_of_a_replaced_table_whose_mark_is_gone_is_not_called_a_restore(
    world: World,
) -> None:
    change_id = left_behind(world)
    tables = world.store.tables
    tables.create(world.table, plain_schema("i long"))
    manager = world.manager("C")
    injector = InjectorOfCall("apply", 0, Fault.CRASH_AFTER)
    dying = world.manager("dying", injector)
    injector.arm()
    with pytest.raises(Crash):
        dying.apply_change(change_id)
    tables.history = lambda _name, _after: []
    with pytest.raises(ChangeWaiting, match="its history no longer tells"):
        manager.apply_change(change_id)
    assert world.table_numbers() == [1]
