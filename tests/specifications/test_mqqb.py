"""MS-MQQB's Transaction Commit: transactions, operations and message positions of a store."""

from __future__ import annotations

import contextlib
import itertools
import threading
from functools import partial
from typing import Any

import pytest

from tests.conformance.conftest import (
    World,
    alone_on_delta_when_long,
    in_memory,
    on_delta_when_long,
    pick,
    rows,
)
from tests.conftest import LONG
from tests.databases.hiding import Hiding
from tests.faults.interrupts import Interrupt
from tests.inside import client_of
from tests.silence import interrupted, lands_later, unanswered
from txnqueue.batch import Batch
from txnqueue.errors import (
    InvalidInput,
    QueueNotFound,
    SchemaMismatch,
    SettlementPending,
    TransactionFinished,
    TransactionNotFound,
    TransactionUnknown,
)
from txnqueue.protocols.mqqb import (
    LocalQueueManager,
    Message,
    MessagePosition,
    MessagePositionAvailable,
    MessagePositionDeleted,
    OperationType,
    RStatus,
    State,
)
from txnqueue.queue import Queue as PlainQueue
from txnqueue.storage.store import MemoryStore
from txnqueue.transactions import commit

OK, SEQUENCE = RStatus.MQ_OK, RStatus.MQ_ERROR_TRANSACTION_SEQUENCE


class Mqqb:
    """Two queues, with three messages in the first one, and a local queue manager."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.orders = world.queue(**settings)
        self.other = world.queue("other", **settings)
        self.orders.send(rows(1, 2, 3))
        self.seen: list[Any] = []
        self.local = self.again("a")

    def again(self, name: str) -> LocalQueueManager:
        """Start another local queue manager on the store."""
        return LocalQueueManager(self.world.manager(name), self.seen.append)

    def position(self, index: int, queue: Any = None) -> MessagePosition:
        """Find where a message stands."""
        name = (queue or self.orders).name
        return self.local.queue(name).message_position_list[index]

    def numbers(self, queue: Any) -> list[int]:
        """List what stands in a queue, and is available."""
        found = self.local.queue(queue.name).message_position_list
        bodies = [p.body for p in found if p.state is State.AVAILABLE]
        return [body["n"] for body in bodies if body]

    def version(self) -> int:
        """Which version of the journal there is: every change makes a new one."""
        return client_of(self.local).store.journal.version()


@pytest.fixture
def mqqb(world: World) -> Mqqb:
    return Mqqb(world)


@pytest.mark.rule("S3-01", "S3-02", "S3-04", "S3-05", "S3-06", "S3-07", "S3-09")
def test_a_commit_processes_every_operation_in_order(mqqb: Mqqb) -> None:
    local, orders, other = mqqb.local, mqqb.orders, mqqb.other
    first, second, third = local.queue(orders.name).message_position_list
    transaction = local.create_transaction()
    id_ = transaction.identifier
    enqueued = local.enqueue_message(other.name, {"n": 7, "key": None}, id_)
    local.move_message(second, other.name, id_)
    assert local.dequeue_message(first, "priced", id_)["n"] == 1
    operations = local.transaction_collection[id_].transactional_operation_collection
    kinds = [operation.operation_type for operation in operations]
    assert kinds == [OperationType.ENQUEUE, OperationType.MOVE, OperationType.DEQUEUE]
    assert [o.message_position_reference for o in operations] == [enqueued, second, first]
    assert (operations[1].target_queue_reference.name, operations[2].dequeue_reason) == (
        other.name,
        "priced",
    )
    assert [p.state for p in (enqueued, first, second, third)] == [
        State.LOCKED,
        State.LOCKED,
        State.LOCKED,
        State.AVAILABLE,
    ]
    assert mqqb.numbers(other) == []
    left: list[int] = []
    local._on_event = lambda event: (mqqb.seen.append(event), left.append(len(operations)))
    answer = local.transaction_commit(id_)
    assert (answer, int(answer)) == (OK, 0x00000000)
    assert [type(event) for event in mqqb.seen] == [
        MessagePositionAvailable,
        MessagePositionAvailable,
        MessagePositionDeleted,
    ]
    moved = mqqb.seen[1].position
    assert (mqqb.seen[0].position, mqqb.seen[2].position) == (enqueued, first)
    assert (mqqb.seen[2].queue.name, mqqb.seen[2].reason) == (orders.name, "priced")
    assert moved.message_reference == second.message_reference
    assert (moved.queue_reference.name, moved != second) == (other.name, True)
    assert [p.state for p in (enqueued, moved, first, second)] == [
        State.AVAILABLE,
        State.AVAILABLE,
        State.DELETED,
        State.DELETED,
    ]
    assert (left, operations) == ([3, 2, 1], [])  # each is removed once it is processed
    assert id_ not in local.transaction_collection
    assert mqqb.world.manager("reader").history.verify().ok


@on_delta_when_long
@pytest.mark.rule("S3-01", "S3-02", "S3-03")
def test_what_is_not_in_the_collection_changes_nothing(mqqb: Mqqb) -> None:
    local = mqqb.local
    open_one = local.create_transaction()
    local.dequeue_message(mqqb.position(0), transaction_identifier=open_one.identifier)
    before = mqqb.version()
    for answer in (local.transaction_commit("nobody"), local.transaction_abort("nobody")):
        assert (answer, int(answer)) == (SEQUENCE, 0xC00E0051)
    assert mqqb.again("b").transaction_commit(open_one.identifier) is SEQUENCE  # not there
    assert (mqqb.version(), mqqb.seen) == (before, [])
    assert list(local.transaction_collection) == [open_one.identifier]
    assert len(open_one.transactional_operation_collection) == 1
    assert {status.value for status in RStatus} == {0x00000000, 0xC00E0051}


@on_delta_when_long
@pytest.mark.rule("S3-05")
def test_an_enqueued_message_is_available_with_the_commit_and_never_after_an_abort(
    mqqb: Mqqb,
) -> None:
    local, other = mqqb.local, mqqb.other
    aborted, committed = local.create_transaction(), local.create_transaction()
    lost = local.enqueue_message(other.name, {"n": 8, "key": None}, aborted.identifier)
    kept = local.enqueue_message(other.name, {"n": 9, "key": None}, committed.identifier)
    assert (other.depth(), lost.state, kept.state) == (0, State.LOCKED, State.LOCKED)
    assert local.transaction_abort(aborted.identifier) is OK
    assert local.transaction_commit(committed.identifier) is OK
    assert (lost.state, kept.state) == (State.DELETED, State.AVAILABLE)
    assert mqqb.numbers(other) == [9]
    assert [event.position for event in mqqb.seen] == [kept]


@on_delta_when_long
@pytest.mark.rule("S3-06")
def test_the_reason_of_a_dequeue_is_kept_in_the_store(mqqb: Mqqb) -> None:
    local, position = mqqb.local, mqqb.position(0)
    transaction = local.create_transaction()
    local.dequeue_message(position, "stock is empty", transaction.identifier)
    assert local.transaction_commit(transaction.identifier) is OK
    (event,) = mqqb.seen
    assert event == MessagePositionDeleted(event.queue, position, "stock is empty")
    steps = mqqb.world.manager("b").history.trace(position.message_reference.identifier).rows()
    assert (steps[-1]["step"], steps[-1]["reason"]) == ("accepted", "stock is empty")
    local.dequeue_message(mqqb.position(0))  # outside of a transaction it happens at once
    assert (mqqb.seen[1].reason, mqqb.orders.depth()) == ("received", 1)


@on_delta_when_long
@pytest.mark.rule("S3-07")
def test_a_move_is_a_new_position_of_the_same_message(mqqb: Mqqb) -> None:
    local, old = mqqb.local, mqqb.position(1)
    transaction = local.create_transaction()
    local.move_message(old, mqqb.other.name, transaction.identifier)
    assert local.transaction_commit(transaction.identifier) is OK
    (new,) = local.queue(mqqb.other.name).message_position_list
    assert new.message_reference == old.message_reference
    assert (old.state, new.state, old.body) == (State.DELETED, State.AVAILABLE, None)
    assert mqqb.seen == [MessagePositionAvailable(mqqb.seen[0].queue, new)]
    assert (new.body or {})["n"] == 2
    local.move_message(new, mqqb.orders.name)  # and back: another position again
    back = local.queue(mqqb.orders.name).message_position_list[-1]
    assert (back.message_reference, back.state) == (old.message_reference, State.AVAILABLE)
    assert (old.state, new.state) == (State.DELETED, State.DELETED)


@on_delta_when_long
@pytest.mark.rule("S3-08")
def test_a_moved_position_takes_its_place_by_the_targets_rules(mqqb: Mqqb) -> None:
    local, orders, other = mqqb.local, mqqb.orders, mqqb.other
    orders.send(rows(4), priority=9)
    other.send(rows(50), priority=6)
    other.send(rows(51))
    transaction = local.create_transaction()
    urgent, ordinary = local.queue(orders.name).message_position_list[:2]
    local.move_message(ordinary, other.name, transaction.identifier)
    local.move_message(urgent, other.name, transaction.identifier)
    assert local.transaction_commit(transaction.identifier) is OK
    assert mqqb.numbers(other) == [4, 50, 51, 1]
    assert mqqb.numbers(orders) == [2, 3]


@on_delta_when_long
@pytest.mark.rule("S3-09")
def test_there_are_three_types_of_operations_and_a_committed_transaction_is_gone(
    mqqb: Mqqb,
) -> None:
    assert [kind.value for kind in OperationType] == ["Enqueue", "Dequeue", "Move"]
    transaction = mqqb.local.create_transaction()
    mqqb.local.dequeue_message(mqqb.position(0), transaction_identifier=transaction.identifier)
    assert len(mqqb.local.transaction_collection) == 1
    assert mqqb.local.transaction_commit(transaction.identifier) is OK
    assert len(mqqb.local.transaction_collection) == 0
    assert transaction.transactional_operation_collection == []


@on_delta_when_long
@pytest.mark.rule("S3-10", "S3-03")
def test_a_transaction_is_decided_once(mqqb: Mqqb) -> None:
    local = mqqb.local
    empty, committed, aborted = (local.create_transaction() for _ in range(3))
    assert local.transaction_commit(empty.identifier) is OK
    local.dequeue_message(mqqb.position(0), transaction_identifier=committed.identifier)
    assert local.transaction_commit(committed.identifier) is OK
    local.dequeue_message(mqqb.position(0), transaction_identifier=aborted.identifier)
    assert local.transaction_abort(aborted.identifier) is OK
    before, events = mqqb.version(), len(mqqb.seen)
    for transaction in (empty, committed, aborted):
        assert local.transaction_commit(transaction.identifier) is SEQUENCE
        assert local.transaction_abort(transaction.identifier) is SEQUENCE
    assert (mqqb.version(), len(mqqb.seen)) == (before, events)
    with pytest.raises(TransactionFinished):
        local.create_transaction(committed.identifier)
    assert mqqb.numbers(mqqb.orders) == [2, 3]


# -------------------------------------------------------------- beside the plain interface


@on_delta_when_long
@pytest.mark.rule("S3-02", "S3-03")
def test_what_others_ended_is_not_in_the_collection(world: World) -> None:
    mqqb = Mqqb(world, lease_seconds=60)
    transaction = mqqb.local.create_transaction(lease_seconds=60)
    position = mqqb.position(0)
    mqqb.local.dequeue_message(position, transaction_identifier=transaction.identifier)
    lost = mqqb.local.enqueue_message(
        mqqb.other.name, {"n": 8, "key": None}, transaction.identifier
    )
    world.clock.advance(61)
    recovery = world.manager("c").recover()
    assert recovery.aborted == (transaction.identifier,)
    assert mqqb.local.transaction_commit(transaction.identifier) is SEQUENCE
    assert (position.state, lost.state, mqqb.other.depth()) == (State.AVAILABLE, State.DELETED, 0)
    assert mqqb.seen == []


@alone_on_delta_when_long
@pytest.mark.rule("S3-02", "S3-06", "S3-07")
@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_is_in_every_collection(world: World, commit: bool) -> None:
    mqqb = Mqqb(world)
    local = mqqb.local
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    transaction = local.create_transaction("transfer 17")
    local.dequeue_message(first, "priced", transaction.identifier)
    local.move_message(second, mqqb.other.name, transaction.identifier)
    local.enqueue_message(mqqb.other.name, {"n": 7, "key": None}, transaction.identifier)
    assert local.transaction_prepare("transfer 17") is OK
    world.lease_over()
    restarted = mqqb.again("b")  # it knows nothing but the store
    found = restarted.transaction_collection["transfer 17"]
    about = {
        o.operation_type: o.message_position_reference
        for o in found.transactional_operation_collection
    }
    assert (about[OperationType.DEQUEUE], about[OperationType.MOVE]) == (first, second)
    assert about[OperationType.ENQUEUE].state is State.LOCKED
    decide = restarted.transaction_commit if commit else restarted.transaction_abort
    assert decide("transfer 17") is OK
    reasons = [e.reason for e in mqqb.seen if isinstance(e, MessagePositionDeleted)]
    assert reasons == (["priced"] if commit else [])
    assert (first.state is State.DELETED, second.state is State.DELETED) == (commit, commit)
    assert sorted(mqqb.numbers(mqqb.other)) == ([2, 7] if commit else [])
    assert local.transaction_commit("transfer 17") is SEQUENCE
    status = world.manager("c").outcome("transfer 17").status.value
    assert status == ("committed" if commit else "rolled_back")


@on_delta_when_long
@pytest.mark.rule("S3-02")
def test_a_transaction_of_the_plain_interface_is_decided_here_and_the_reverse(
    world: World,
) -> None:
    mqqb = Mqqb(world)
    manager = world.manager("plain")
    tx = manager.transaction()
    queue = manager.queue(mqqb.orders.name)
    queue.move(mqqb.other.name, limit=1, transaction=tx)
    queue.receive(1, transaction=tx)
    manager.queue(mqqb.other.name).send(rows(8), transaction=tx)
    tx.prepare()
    kinds = [
        o.operation_type.value
        for o in mqqb.local.transaction_collection[tx.id].transactional_operation_collection
    ]
    assert sorted(kinds) == ["Dequeue", "Enqueue", "Move"]
    assert mqqb.local.transaction_commit(tx.id) is OK
    assert sorted(mqqb.numbers(mqqb.other)) == [1, 8]
    assert sorted(type(event).__name__ for event in mqqb.seen) == [
        "MessagePositionAvailable",
        "MessagePositionAvailable",
        "MessagePositionDeleted",
    ]
    mine = mqqb.local.create_transaction()
    mqqb.local.dequeue_message(mqqb.position(0), transaction_identifier=mine.identifier)
    assert mqqb.local.transaction_prepare(mine.identifier) is OK
    assert manager.recover().prepared == (mine.identifier,)
    manager.commit(mine.identifier)
    assert mqqb.local.transaction_commit(mine.identifier) is SEQUENCE
    assert mqqb.numbers(mqqb.orders) == []
    assert world.manager("reader").history.verify().ok


@on_delta_when_long
@pytest.mark.rule("S3-06")
def test_a_locked_position_that_is_purged_is_pending_and_deleted_instead_of_returned(
    mqqb: Mqqb,
) -> None:
    local = mqqb.local
    first, second, third = local.queue(mqqb.orders.name).message_position_list
    keeps, gives_back = local.create_transaction(), local.create_transaction()
    local.dequeue_message(first, transaction_identifier=keeps.identifier)
    local.move_message(second, mqqb.other.name, gives_back.identifier)
    assert local.purge_queue(mqqb.orders.name) == 1
    assert [p.state for p in (first, second, third)] == [
        State.PURGE_PENDING,
        State.PURGE_PENDING,
        State.DELETED,
    ]
    assert local.transaction_commit(keeps.identifier) is OK
    assert local.transaction_abort(gives_back.identifier) is OK
    assert [(e.position, e.reason) for e in mqqb.seen] == [
        (third, "purged"),
        (first, "received"),
        (second, "purged"),
    ]
    assert (mqqb.orders.depth(), mqqb.orders.in_flight()) == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S3-03")
def test_an_abort_makes_positions_available_in_their_old_places(mqqb: Mqqb) -> None:
    local = mqqb.local
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    transaction = local.create_transaction()
    local.dequeue_message(first, transaction_identifier=transaction.identifier)
    local.move_message(second, mqqb.other.name, transaction.identifier)
    assert local.transaction_abort(transaction.identifier) is OK
    assert mqqb.seen == [
        MessagePositionAvailable(mqqb.seen[0].queue, first),
        MessagePositionAvailable(mqqb.seen[1].queue, second),
    ]
    assert mqqb.numbers(mqqb.orders) == [1, 2, 3]
    assert local.transaction_commit(transaction.identifier) is SEQUENCE


@in_memory
@pytest.mark.rule("S3-01")
@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_in_doubt_has_no_status_until_it_is_known(world: World, landed: bool) -> None:
    mqqb = Mqqb(world)
    local = mqqb.local
    transaction = local.create_transaction()
    local.dequeue_message(mqqb.position(0), transaction_identifier=transaction.identifier)
    with unanswered(world.store.journal, lands=landed), pytest.raises(TransactionUnknown):
        local.transaction_commit(transaction.identifier)
    assert transaction.identifier in local.transaction_collection
    again = local.transaction_commit(transaction.identifier)
    assert again is (OK if landed else SEQUENCE)
    assert len(mqqb.seen) == int(landed)
    assert mqqb.orders.depth() == (2 if landed else 3)


@in_memory
@pytest.mark.rule("S3-02")
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_in_doubt_of_what_another_driver_prepared_is_found_out(
    world: World, lands: bool, commit: bool
) -> None:
    mqqb = Mqqb(world)
    mqqb.local.create_transaction("transfer 17")
    mqqb.local.dequeue_message(mqqb.position(0), "priced", "transfer 17")
    assert mqqb.local.transaction_prepare("transfer 17") is OK
    restarted = mqqb.again("b")
    decide = restarted.transaction_commit if commit else restarted.transaction_abort
    with unanswered(world.store.journal, lands=lands), pytest.raises(TransactionUnknown):
        decide("transfer 17")
    assert "transfer 17" in restarted.transaction_collection
    assert decide("transfer 17") is OK
    assert "transfer 17" not in restarted.transaction_collection
    assert mqqb.orders.depth() == (2 if commit else 3)
    reasons = [e.reason for e in mqqb.seen if isinstance(e, MessagePositionDeleted)]
    assert reasons == (["priced"] if commit else [])
    assert decide("transfer 17") is SEQUENCE


@in_memory
@pytest.mark.parametrize("commit", [True, False])
def test_databases_take_part_in_the_decision_of_what_was_prepared_here(
    mqqb: Mqqb, commit: bool
) -> None:
    class Database(Hiding):
        def tpc_commit(self, xid: Any = None) -> None:
            super().tpc_commit(xid or self._xid)

        def tpc_rollback(self, xid: Any = None) -> None:
            super().tpc_rollback(xid or self._xid)

    local, database = mqqb.local, Database()
    transaction = local.create_transaction()
    assert transaction.core is not None
    transaction.core.enlist("ledger", database)
    local.enqueue_message(mqqb.other.name, {"n": 7, "key": None}, transaction.identifier)
    assert local.transaction_prepare(transaction) is OK and len(database.prepared) == 1
    decide = local.transaction_commit if commit else local.transaction_abort
    assert decide(transaction) is OK
    assert (len(database.prepared), len(database.committed)) == (0, int(commit))


@in_memory
@pytest.mark.parametrize("commit", [True, False])
def test_the_decision_of_ones_own_does_not_decide_another_attempt(mqqb: Mqqb, commit: bool) -> None:
    local, world = mqqb.local, mqqb.world
    transaction = local.create_transaction(world.name("transfer"))
    local.enqueue_message(mqqb.other.name, {"n": 7, "key": None}, transaction.identifier)
    assert local.transaction_prepare(transaction) is OK
    with unanswered(world.store.journal, lands=False), pytest.raises(TransactionUnknown):
        local.transaction_commit(transaction)
    other = world.manager("c")
    other.rollback(transaction.identifier)
    with other.transaction(transaction.identifier) as tx:
        tx.queue(mqqb.other.name).send(rows(8))
        tx.prepare()
    decide = local.transaction_commit if commit else local.transaction_abort
    assert decide(transaction) is (SEQUENCE if commit else OK)
    assert other.outcome(transaction.identifier).status.value == "prepared"


@in_memory
def test_work_that_cannot_be_is_refused_and_changes_nothing(mqqb: Mqqb) -> None:
    local, world = mqqb.local, mqqb.world
    wide = world.manager().create_queue(world.name("wide"), "x string", dead_letter=False)
    first = mqqb.position(0)
    transaction = local.create_transaction()
    local.dequeue_message(first, transaction_identifier=transaction.identifier)
    before = mqqb.version()
    with pytest.raises(InvalidInput, match="Locked"):
        local.dequeue_message(first)
    with pytest.raises(InvalidInput, match="Locked"):
        local.move_message(first, mqqb.other.name, transaction.identifier)
    with pytest.raises(SchemaMismatch):
        local.move_message(mqqb.position(1), wide.name, transaction.identifier)
    with pytest.raises(TransactionNotFound):
        local.enqueue_message(mqqb.other.name, {"n": 1}, "nobody")
    assert mqqb.version() == before
    mqqb.orders.send(rows(4), delay_seconds=60)
    with pytest.raises(InvalidInput, match="delayed"):
        local.dequeue_message(mqqb.position(-1))


@in_memory
@pytest.mark.rule("S3-06", "S3-04")
def test_what_could_not_be_dequeued_is_not_deleted_by_the_commit(mqqb: Mqqb) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    position = mqqb.position(0)
    payload = client_of(local).store.payload

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("away")

    payload.table = away
    with pytest.raises(ConnectionError):
        local.dequeue_message(position, "priced", transaction.identifier)
    del payload.table
    assert transaction.transactional_operation_collection == []
    local.dequeue_message(mqqb.position(1), "priced", transaction.identifier)
    assert local.transaction_commit(transaction.identifier) is OK
    assert mqqb.numbers(mqqb.orders) == [1, 3]


@in_memory
@pytest.mark.rule("S3-10")
@pytest.mark.parametrize("lands", [True, False])
def test_a_prepare_in_doubt_can_be_asked_for_again_and_never_promises_too_much(
    mqqb: Mqqb, lands: bool
) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    id_ = transaction.identifier
    local.dequeue_message(mqqb.position(0), "priced", id_)
    with unanswered(mqqb.world.store.journal, lands=lands), pytest.raises(TransactionUnknown):
        local.transaction_prepare(id_)
    answer = local.transaction_prepare(id_)
    assert answer is (OK if lands else SEQUENCE)
    prepared = mqqb.world.manager("other").recover().prepared
    assert prepared == ((id_,) if lands else ())
    assert local.transaction_commit(id_) is answer
    assert mqqb.numbers(mqqb.orders) == ([2, 3] if lands else [1, 2, 3])


@in_memory
@pytest.mark.rule("S3-10")
@pytest.mark.parametrize("ask", ["prepare", "commit"])
@pytest.mark.parametrize("reading", range(6))
def test_a_prepare_in_doubt_that_lands_at_last_is_never_taken_back(
    mqqb: Mqqb, ask: str, reading: int
) -> None:
    """It was seen as prepared, and rolled back by the call that asked what had become of it."""
    local, journal = mqqb.local, mqqb.world.store.journal
    transaction = local.create_transaction()
    id_ = transaction.identifier
    local.dequeue_message(mqqb.position(0), "priced", id_)
    with lands_later(journal) as land, pytest.raises(TransactionUnknown):
        local.transaction_prepare(id_)
    read, readings, seen = journal.read, itertools.count(), list[Any]()

    def landing(*args: Any, **how: Any) -> Any:
        if next(readings) == reading:
            land()
            seen.extend(mqqb.world.manager("other").recover().prepared)
        return read(*args, **how)

    journal.read = landing
    answer = getattr(local, f"transaction_{ask}")(id_)
    journal.read = read
    assert answer is (OK if seen else SEQUENCE)
    if ask == "prepare":
        assert mqqb.world.manager("other").recover().prepared == tuple(seen)
    else:
        assert mqqb.numbers(mqqb.orders) == ([2, 3] if seen else [1, 2, 3])


@in_memory
def test_a_prepare_that_meets_a_commit_that_was_on_its_way_returns_a_status(mqqb: Mqqb) -> None:
    local, journal = mqqb.local, mqqb.world.store.journal
    transaction = local.create_transaction()
    local.dequeue_message(mqqb.position(0), "priced", transaction)
    append, late = journal.append, list[Any]()

    def after_it(*args: Any, **how: Any) -> Any:
        while late:
            late.pop()()
        return append(*args, **how)

    def interrupts(*args: Any, **how: Any) -> Any:
        late.append(partial(append, *args, **how))
        journal.append = after_it
        raise KeyboardInterrupt

    journal.append = interrupts
    with pytest.raises(KeyboardInterrupt):
        local.transaction_commit(transaction)
    assert local.transaction_prepare(transaction) is SEQUENCE
    assert not late, "the commit has landed meanwhile"
    assert local.transaction_commit(transaction) is OK
    assert mqqb.numbers(mqqb.orders) == [2, 3]


@on_delta_when_long
@pytest.mark.rule("S3-01", "S3-04")
def test_who_fails_to_hear_an_event_keeps_no_operation_from_being_processed(mqqb: Mqqb) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    for position in local.queue(mqqb.orders.name).message_position_list:
        local.dequeue_message(position, "priced", transaction.identifier)

    def fails(event: Any) -> None:
        mqqb.seen.append(event)
        raise ValueError("not now")

    local._on_event = fails
    assert local.transaction_commit(transaction.identifier) is OK
    assert len(mqqb.seen) == 3 and transaction.transactional_operation_collection == []


@in_memory
def test_a_listener_that_only_prepares_what_it_does_is_told_of(
    mqqb: Mqqb, caplog: pytest.LogCaptureFixture
) -> None:
    """A lambda does not show that what it calls is async."""
    local = mqqb.local
    transaction = local.create_transaction()
    local.dequeue_message(
        local.queue(mqqb.orders.name).message_position_list[0], "priced", transaction
    )
    local._on_event = lambda event: (n for n in [event])
    assert local.transaction_commit(transaction.identifier) is OK
    assert "on_event= returned a generator" in caplog.text


# ------------------------------------------------------------------------------- events


def deleted_and_available(mqqb: Mqqb) -> list[tuple[str, Any, str | None]]:
    """List the events so far: what kind, of which position, why."""
    return [
        (type(e).__name__.removeprefix("MessagePosition"), e.position, getattr(e, "reason", None))
        for e in mqqb.seen
    ]


@on_delta_when_long
@pytest.mark.rule("S3-01", "S3-04")
@pytest.mark.parametrize("decide", ["commit", "abort"])
def test_a_listener_that_fails_hears_everything_and_the_answer_is_ok(
    mqqb: Mqqb, decide: str
) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    local.dequeue_message(first, "priced", transaction)
    local.move_message(second, mqqb.other.name, transaction)

    def fails(event: Any) -> None:
        mqqb.seen.append(event)
        raise ValueError("not now")

    local._on_event = fails
    assert getattr(local, f"transaction_{decide}")(transaction) is OK
    assert len(mqqb.seen) == 2
    assert transaction.transactional_operation_collection == []
    assert transaction.identifier not in local.transaction_collection


@on_delta_when_long
@pytest.mark.rule("S3-04", "S3-05", "S3-07")
@pytest.mark.parametrize("decide", ["commit", "abort"])
def test_events_tell_what_the_decision_did_whatever_a_listener_does(
    mqqb: Mqqb, decide: str
) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    local.dequeue_message(first, "priced", transaction)
    local.move_message(second, mqqb.other.name, transaction)
    new = [
        local.enqueue_message(mqqb.other.name, {"n": n, "key": None}, transaction) for n in (8, 9)
    ]

    def drains(event: Any) -> None:
        mqqb.seen.append(event)
        for queue in (mqqb.orders, mqqb.other):
            queue.receive().accept() if queue.depth() else None

    local._on_event = drains
    assert getattr(local, f"transaction_{decide}")(transaction) is OK
    found = deleted_and_available(mqqb)
    if decide == "abort":
        assert found == [("Available", first, None), ("Available", second, None)]
        return
    assert [kind for kind, _, _ in found] == ["Deleted", "Available", "Available", "Available"]
    moved, *enqueued = [position for _, position, _ in found[1:]]
    assert moved.message_reference == second.message_reference
    assert enqueued == new
    assert None not in {position.position_id for position in (moved, *enqueued)}
    assert {position.state for position in (moved, *enqueued)} == {State.DELETED}


@in_memory
@pytest.mark.rule("S3-04")
def test_a_position_that_others_take_right_after_an_abort_was_available(mqqb: Mqqb) -> None:
    local, journal = mqqb.local, mqqb.world.store.journal
    transaction = local.create_transaction()
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    local.dequeue_message(first, "priced", transaction)
    local.dequeue_message(second, "priced", transaction)
    other = mqqb.world.open(mqqb.orders, "other")
    append = journal.append

    def then_taken(*asked: Any) -> Any:
        journal.append = append
        landed = append(*asked)
        other.receive(1)
        other.receive(1).accept()
        return landed

    journal.append = then_taken
    assert local.transaction_abort(transaction) is OK
    assert deleted_and_available(mqqb) == [("Available", first, None), ("Available", second, None)]


@on_delta_when_long
@pytest.mark.rule("S3-06")
@pytest.mark.parametrize("how", ["here", "plain interface", "without a reason"])
@pytest.mark.parametrize("prepared", [True, False])
def test_an_abort_deletes_what_was_purged_for_the_reason_of_the_purge(
    mqqb: Mqqb, how: str, prepared: bool
) -> None:
    local, name = mqqb.local, mqqb.orders.name
    first, second, third = local.queue(name).message_position_list
    transaction = local.create_transaction()
    local.dequeue_message(first, "priced", transaction)
    if how == "here":
        local.purge_queue(name, "season over")
    elif how == "plain interface":
        mqqb.orders.purge(reason="season over")
    else:
        local.purge_queue(name, None)
    reason = None if how == "without a reason" else "season over"
    at_once = [("Deleted", one, reason) for one in (second, third)]
    assert deleted_and_available(mqqb) == ([] if how == "plain interface" else at_once)
    mqqb.orders.send(rows(4))
    (fourth,) = local.queue(name).message_position_list[1:]
    local.dequeue_message(fourth, "priced", transaction)
    mqqb.seen.clear()
    deciding = local
    if prepared:
        assert local.transaction_prepare(transaction) is OK
        deciding = mqqb.again("b")
    assert deciding.transaction_abort(transaction.identifier) is OK
    assert sorted(deleted_and_available(mqqb), key=lambda event: event[0]) == [
        ("Available", fourth, None),
        ("Deleted", first, reason),
    ]


@in_memory
@pytest.mark.rule("S3-06")
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_transient_position_that_was_purged_is_deleted_by_the_abort(
    world: World, forgotten: bool
) -> None:
    mqqb = Mqqb(world)
    local, memory = mqqb.local, world.store.transient
    mqqb.other.send(rows(7, 8), durable=False)
    first, second = local.queue(mqqb.other.name).message_position_list
    transaction = local.create_transaction()
    local.dequeue_message(first, "priced", transaction)
    local.purge_queue(mqqb.other.name, "season over")
    assert first.state is State.PURGE_PENDING
    assert deleted_and_available(mqqb) == [("Deleted", second, "season over")]
    if forgotten:
        mqqb.other.send(rows(9), durable=False)
        world.open(mqqb.other, "busy").receive().accept()
        memory.tidy()  # as it does by itself, once much has come together
    mqqb.other.send(rows(10), durable=False)
    third = local.queue(mqqb.other.name).message_position_list[-1]
    local.dequeue_message(third, "priced", transaction)
    if forgotten:
        memory._tidy_at = (0, 0)  # and with the abort itself
    assert local.transaction_abort(transaction) is OK
    reason = "purged" if forgotten else "season over"
    assert deleted_and_available(mqqb)[1:] == [
        ("Deleted", first, reason),
        ("Available", third, None),
    ]


@in_memory
@pytest.mark.rule("S3-06")
def test_the_reason_of_a_purge_outlives_the_journal(mqqb: Mqqb) -> None:
    """A prepared transaction may wait for its decision until the purge stands in the archive."""
    local, world, name = mqqb.local, mqqb.world, mqqb.orders.name
    first = mqqb.position(0)
    transaction = local.create_transaction()
    local.dequeue_message(first, "priced", transaction)
    assert local.transaction_prepare(transaction) is OK
    local.purge_queue(name, "season over")
    mqqb.seen.clear()
    busy = world.manager("busy")
    client_of(busy).log_max = 3
    for day in range(4):
        for _ in range(4):
            busy.queue(name).send(rows(day))
            busy.queue(name).receive().accept()
        world.clock.advance(2 * 86_400)
        busy.maintain(vacuum=False)
    kinds = {entry.kind for entry in world.store.journal.read_all().entries}
    assert "purge_pending" not in kinds
    assert mqqb.again("b").transaction_abort(transaction.identifier) is OK
    assert deleted_and_available(mqqb) == [("Deleted", first, "season over")]


@on_delta_when_long
@pytest.mark.rule("S3-03")
def test_a_transaction_on_a_queue_that_was_dropped_is_aborted_without_events(mqqb: Mqqb) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    local.dequeue_message(mqqb.position(0), "priced", transaction)
    mqqb.other.send(rows(7))
    local.dequeue_message(mqqb.position(0, mqqb.other), "priced", transaction)
    assert mqqb.world.manager("b").queue(mqqb.orders.name).drop().dropped
    assert local.transaction_abort(transaction) is OK
    assert [(e.queue.name, type(e)) for e in mqqb.seen] == [
        (mqqb.other.name, MessagePositionAvailable)
    ]


@in_memory
@pytest.mark.rule("S3-01")
def test_a_decision_whose_events_cannot_be_read_is_a_decision(mqqb: Mqqb) -> None:
    local, journal = mqqb.local, mqqb.world.store.journal
    transaction = local.create_transaction()
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    local.move_message(first, mqqb.other.name, transaction)
    local.dequeue_message(second, "priced", transaction)
    append, read = journal.append, journal.read

    def away(*asked: Any, **how: Any) -> Any:
        raise ConnectionError("away")

    def then_away(*asked: Any) -> Any:
        landed = append(*asked)
        journal.read = away
        return landed

    journal.append = then_away
    assert local.transaction_commit(transaction) is OK
    journal.append, journal.read = append, read
    assert deleted_and_available(mqqb) == [("Deleted", second, "priced")]
    assert transaction.transactional_operation_collection == []
    assert mqqb.numbers(mqqb.other) == [1]


@in_memory
@pytest.mark.parametrize("alone", [True, False])
def test_a_message_that_cannot_be_read_becomes_a_dead_letter(
    world: World, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    mqqb = Mqqb(world, deliveries_max=2, dead_letter=True)
    position = mqqb.position(0)

    def unreadable(batch: Batch) -> Any:
        raise InvalidInput("Column 'n' has a value that cannot be read.", column="n", in_rows=True)

    monkeypatch.setattr(Batch, "messages", unreadable)
    for _ in range(2):
        transaction = None if alone else mqqb.local.create_transaction()
        with pytest.raises(InvalidInput, match="cannot be read"):
            mqqb.local.dequeue_message(position, transaction_identifier=transaction)
        if transaction is not None:
            assert mqqb.local.transaction_commit(transaction) is OK
    monkeypatch.undo()
    assert len(mqqb.orders.receive(9)) == 2  # which takes the dead letter out of the queue
    assert world.manager("b").queue(f"{mqqb.orders.name}.dead").depth() == 1


# ---------------------------------------------------------------------- what is asked for


@on_delta_when_long
@pytest.mark.rule("S3-02")
def test_a_transaction_is_named_by_itself_or_by_its_identifier(mqqb: Mqqb) -> None:
    local = mqqb.local
    for given in (lambda t: t, lambda t: t.identifier):
        transaction = local.create_transaction()
        first, second = local.queue(mqqb.orders.name).message_position_list[:2]
        local.dequeue_message(first, "priced", given(transaction))
        local.move_message(second, mqqb.other.name, given(transaction))
        local.enqueue_message(mqqb.orders.name, {"n": 9, "key": None}, given(transaction))
        assert local.transaction_prepare(given(transaction)) is OK
        assert local.transaction_commit(given(transaction)) is OK
        assert local.transaction_abort(given(transaction)) is SEQUENCE


@in_memory
def test_what_is_no_position_and_no_transaction_is_a_typed_error(mqqb: Mqqb) -> None:
    local, first, before = mqqb.local, mqqb.position(0), mqqb.version()
    calls = [
        lambda: local.dequeue_message("x"),  # type: ignore[arg-type]
        lambda: local.dequeue_message(first, 7),  # type: ignore[arg-type]
        lambda: local.dequeue_message(first, transaction_identifier=7),  # type: ignore[arg-type]
        lambda: local.move_message(None, mqqb.other.name),  # type: ignore[arg-type]
        lambda: local.move_message(first, 7),  # type: ignore[arg-type]
        lambda: local.enqueue_message(mqqb.other.name, "x"),  # type: ignore[arg-type]
        lambda: local.enqueue_message(mqqb.other.name, {"n": 1}, 7),  # type: ignore[arg-type]
        lambda: local.purge_queue(mqqb.orders.name, 7),  # type: ignore[arg-type]
        lambda: local.transaction_prepare(None),  # type: ignore[arg-type]
        lambda: local.transaction_commit(7),  # type: ignore[arg-type]
        lambda: local.transaction_abort(first),  # type: ignore[arg-type]
        lambda: LocalQueueManager(local.manager, "print"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert mqqb.version() == before
    assert (first.state, mqqb.orders.in_flight()) == (State.AVAILABLE, 0)


@in_memory
@pytest.mark.rule("S3-06")
def test_a_position_of_another_manager_is_dequeued_by_this_one(mqqb: Mqqb) -> None:
    other = mqqb.again("b")
    transaction = other.create_transaction()
    assert other.dequeue_message(mqqb.position(0), "priced", transaction)["n"] == 1
    other.move_message(mqqb.position(1), mqqb.other.name, transaction)
    assert other.transaction_commit(transaction) is OK
    assert mqqb.numbers(mqqb.other) == [2]


@in_memory
@pytest.mark.rule("S3-04")
def test_what_fails_outside_of_a_transaction_locks_nothing(mqqb: Mqqb) -> None:
    local, payload = mqqb.local, client_of(mqqb.local).store.payload

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("away")

    payload.table = away
    with pytest.raises(ConnectionError):
        local.dequeue_message(mqqb.position(0))
    del payload.table
    assert (mqqb.numbers(mqqb.orders), mqqb.orders.in_flight()) == ([1, 2, 3], 0)
    assert not mqqb.orders.peek_messages()[0]["_message"]["redelivered"]  # nobody saw it


@on_delta_when_long
@pytest.mark.rule("S3-02", "S3-05")
def test_a_position_says_which_transaction_has_it_locked(mqqb: Mqqb) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    first, second, _ = local.queue(mqqb.orders.name).message_position_list
    local.dequeue_message(first, "priced", transaction)
    new = local.enqueue_message(mqqb.other.name, {"n": 9, "key": None}, transaction)
    named = [one.transaction_identifier for one in (first, second, new)]
    assert named == [transaction.identifier, None, transaction.identifier]
    assert local.transaction_prepare(transaction) is OK
    (listed, *_) = mqqb.again("b").queue(mqqb.orders.name).message_position_list
    assert listed.transaction_identifier == transaction.identifier
    local.manager.commit(transaction.identifier)  # through the plain interface
    assert [one.transaction_identifier for one in (first, second, new)] == [None] * 3
    assert [one.state for one in (first, second, new)] == [
        State.DELETED,
        State.AVAILABLE,
        State.AVAILABLE,
    ]
    assert (new.body or {})["n"] == 9
    mqqb.orders.receive(1)  # a lease locks it too, without a transaction
    assert (second.state, second.transaction_identifier) == (State.LOCKED, None)


# ------------------------------------------------------------------ who asks again, and who else


@in_memory
@pytest.mark.rule("S3-01", "S3-03", "S3-10")
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("event", ["prepare", "commit", "abort"])
def test_an_event_that_was_interrupted_is_answered_when_it_is_generated_again(
    mqqb: Mqqb, event: str, lands: bool
) -> None:
    local, first = mqqb.local, mqqb.position(0)
    transaction = local.create_transaction()
    local.dequeue_message(first, "priced", transaction)
    with interrupted(mqqb.world.store.journal, lands=lands):
        getattr(local, f"transaction_{event}")(transaction)
    assert list(local.transaction_collection) == [transaction.identifier]
    if event == "commit" and lands:  # it is neither prepared nor aborted any more
        assert local.transaction_prepare(transaction) is SEQUENCE
        assert local.transaction_abort(transaction) is SEQUENCE
    assert getattr(local, f"transaction_{event}")(transaction) is OK
    if event == "prepare":
        assert local.transaction_commit(transaction) is OK
    assert [type(one) for one in mqqb.seen] == [
        MessagePositionAvailable if event == "abort" else MessagePositionDeleted
    ]
    assert mqqb.numbers(mqqb.orders) == ([1, 2, 3] if event == "abort" else [2, 3])
    assert local.transaction_commit(transaction) is SEQUENCE
    assert list(local.transaction_collection) == []


@in_memory
@pytest.mark.rule("S3-01", "S3-03")
def test_a_commit_that_is_interrupted_while_it_is_carried_out_is_answered_again(
    mqqb: Mqqb, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = mqqb.local
    transaction = local.create_transaction()
    local.dequeue_message(mqqb.position(0), "priced", transaction)
    carry_out = commit._carry_out

    def interrupts(attempt: Any) -> None:
        carry_out(attempt)
        raise KeyboardInterrupt

    monkeypatch.setattr(commit, "_carry_out", interrupts)
    with pytest.raises(KeyboardInterrupt):
        local.transaction_commit(transaction)
    monkeypatch.undo()
    assert local.transaction_commit(transaction) is OK
    assert len(mqqb.seen) == 1
    assert local.transaction_commit(transaction) is SEQUENCE


@in_memory
@pytest.mark.rule("S3-02", "S3-03", "S3-10")
@pytest.mark.parametrize("how", ["commit", "rollback"])
@pytest.mark.parametrize("event", ["commit", "abort"])
def test_what_the_plain_interface_decided_without_the_journal_is_not_in_the_collection(
    mqqb: Mqqb, how: str, event: str
) -> None:
    """What is in memory only, or was only sent, leaves no entry when it is decided."""
    local = mqqb.local
    mqqb.other.send(rows(7), durable=False)
    transaction, sends = local.create_transaction(), local.create_transaction()
    local.dequeue_message(mqqb.position(0, mqqb.other), "priced", transaction)
    staged = local.enqueue_message(mqqb.other.name, {"n": 8, "key": None}, sends)
    assert transaction.core is not None and sends.core is not None
    getattr(transaction.core, how)()
    sends.core.rollback()
    assert list(local.transaction_collection) == []
    assert staged.state is State.DELETED
    for one in (transaction, sends):
        assert getattr(local, f"transaction_{event}")(one) is SEQUENCE
    assert mqqb.seen == []


@in_memory
@pytest.mark.rule("S3-01", "S3-03", "S3-04", "S3-10")
def test_a_listener_that_asks_for_the_same_decision_is_told_that_it_is_made(mqqb: Mqqb) -> None:
    local, answers = mqqb.local, list[RStatus]()
    mqqb.other.send(rows(7, 8), durable=False)
    transaction = local.create_transaction()
    for position in local.queue(mqqb.other.name).message_position_list:
        local.dequeue_message(position, "priced", transaction)

    def asks(event: Any) -> None:
        mqqb.seen.append(event)
        answers.append(local.transaction_commit(transaction))

    local._on_event = asks
    assert local.transaction_commit(transaction) is OK
    assert (len(mqqb.seen), answers) == (2, [SEQUENCE, SEQUENCE])


@in_memory
@pytest.mark.rule("S3-01", "S3-03")
@pytest.mark.parametrize("event", ["prepare", "commit"])
def test_a_commit_that_waits_for_a_prepared_transaction_is_no_refusal(
    mqqb: Mqqb, event: str
) -> None:
    local, queue = mqqb.local, mqqb.local.manager.queue(mqqb.orders.name)
    held = queue.receive(2)
    first = local.manager.transaction()
    held.accept(matching=pick(held, 1), transaction=first)
    first.prepare()
    transaction = local.create_transaction()
    local.dequeue_message(mqqb.position(2), "priced", transaction)
    held.accept(matching=pick(held, 2), transaction=transaction.core)
    with pytest.raises(SettlementPending):
        getattr(local, f"transaction_{event}")(transaction)
    assert transaction.identifier in local.transaction_collection
    first.commit()
    assert getattr(local, f"transaction_{event}")(transaction) is OK
    if event == "prepare":
        assert local.transaction_commit(transaction) is OK
    assert (queue.depth(), queue.in_flight()) == (0, 0)


@in_memory
def test_a_body_says_how_often_its_message_was_delivered(mqqb: Mqqb) -> None:
    mqqb.orders.receive(1).modify()
    position = mqqb.position(0)
    assert position.body and position.body["_message"]["delivery_count"] == 1
    transaction = mqqb.local.create_transaction()
    found = mqqb.local.dequeue_message(position, "priced", transaction)
    assert position.state is State.LOCKED
    assert position.body["_message"]["redelivered"] and found["_message"]["redelivered"]


@in_memory
def test_a_position_that_was_made_by_hand_is_found_or_refused(mqqb: Mqqb) -> None:
    known = mqqb.position(0)
    again = MessagePosition(known.queue_reference, Message(known.message_reference.identifier))
    for text in ("x", "", ":", "x:y", 7):
        wrong = MessagePosition(known.queue_reference, Message(text))  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="send id"):
            mqqb.local.dequeue_message(wrong)
    assert mqqb.local.dequeue_message(again)["n"] == 1


@in_memory
def test_an_error_says_why_an_available_position_cannot_be_dequeued(mqqb: Mqqb) -> None:
    mqqb.other.send(rows(7), delay_seconds=60)
    with pytest.raises(InvalidInput, match="is Available: it is delayed"):
        mqqb.local.dequeue_message(mqqb.position(0, mqqb.other))
    mqqb.orders.receive(1)
    with pytest.raises(InvalidInput, match="is Locked: take one that is Available"):
        mqqb.local.dequeue_message(mqqb.position(0))


@in_memory
def test_each_of_two_threads_gets_the_position_of_its_own_message(
    mqqb: Mqqb, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, found = mqqb.local, dict[int, MessagePosition]()
    transaction = local.create_transaction()
    send = PlainQueue.send

    def enqueue(n: int) -> None:
        found[n] = local.enqueue_message(mqqb.other.name, {"n": n, "key": None}, transaction)

    def meanwhile(*given: Any, **how: Any) -> Any:
        monkeypatch.setattr(PlainQueue, "send", send)
        sent = send(*given, **how)
        other = threading.Thread(target=enqueue, args=(9,))
        other.start()
        other.join()
        return sent

    monkeypatch.setattr(PlainQueue, "send", meanwhile)
    enqueue(8)
    assert local.transaction_commit(transaction) is OK
    assert {n: (one.body or {})["n"] for n, one in found.items()} == {8: 8, 9: 9}


@pytest.mark.rule("S3-03", "S3-04")
@pytest.mark.parametrize("what", ["dequeue", "commit", "abort"])
def test_wherever_it_is_interrupted_a_message_is_not_consumed_unseen_and_events_come(
    what: str,
) -> None:
    def begun() -> tuple[Mqqb, Any]:
        mqqb = Mqqb(World(MemoryStore()))
        transaction = mqqb.local.create_transaction()
        if what != "dequeue":
            mqqb.local.dequeue_message(mqqb.position(0), "priced", transaction)
            mqqb.local.move_message(mqqb.position(1), mqqb.other.name, transaction)
        first = mqqb.position(0)

        def act() -> Any:
            if what == "dequeue":
                return mqqb.local.dequeue_message(first, "priced", transaction)
            return getattr(mqqb.local, f"transaction_{what}")(transaction)

        return mqqb, act

    for _ in range(2):  # the first one looks at more
        _, act = begun()
        with Interrupt() as counted:
            act()
    count = len(counted.places)
    for nth in range(count - 150, count + 1, 1 if LONG else 3):
        mqqb, act = begun()
        with contextlib.suppress(KeyboardInterrupt), Interrupt(nth) as found:
            act()
        if found.at is None:  # its ids lie in other shards, where there is less to look at
            assert nth > count - 10
            continue
        (transaction,) = mqqb.local.transaction_collection.values()
        if what == "dequeue":
            assert transaction.transactional_operation_collection == [], found.at
            assert mqqb.local.transaction_commit(transaction) is OK, found.at
            mqqb.world.lease_over()
            left = [len(mqqb.orders.receive()) for _ in range(3)]
            assert (sum(left), mqqb.seen) == (3, []), found.at
        else:
            assert act() is OK, found.at
            heard = {(type(one), one.position.message_reference) for one in mqqb.seen}
            assert (len(heard), len(mqqb.seen) in (2, 3)) == (2, True), found.at
            assert len(mqqb.numbers(mqqb.orders)) == (1 if what == "commit" else 3), found.at


@in_memory
@pytest.mark.rule("S3-02")
def test_an_attempt_that_was_aborted_here_does_not_hide_one_that_is_prepared(world: World) -> None:
    mqqb = Mqqb(world, lease_seconds=60)
    local, identifier = mqqb.local, world.name("transfer")
    aborted = local.create_transaction(identifier, lease_seconds=60)
    local.dequeue_message(mqqb.position(0), "priced", aborted)
    world.clock.advance(61)
    assert world.manager("c").recover().aborted == (identifier,)
    again = world.manager("d").transaction(identifier)  # of the same id, by another client
    again.queue(mqqb.orders.name).receive(1)
    again.prepare()
    assert list(local.transaction_collection) == [identifier]
    assert local.transaction_commit(identifier) is OK
    assert mqqb.numbers(mqqb.orders) == [2, 3]


@in_memory
@pytest.mark.parametrize("what", ["enqueue", "dequeue", "move"])
def test_what_is_done_at_once_tells_of_a_dropped_queue_as_such(mqqb: Mqqb, what: str) -> None:
    """Not that a transaction was aborted, of which nobody knew."""
    local, name = mqqb.local, mqqb.orders.name
    first, append = mqqb.position(0), mqqb.world.store.journal.append

    def after_a_drop(*asked: Any) -> Any:
        mqqb.world.store.journal.append = append
        mqqb.world.manager("b").queue(name).drop()
        return append(*asked)

    def then_dropped(*asked: Any) -> Any:  # between its claim and its commit
        mqqb.world.store.journal.append = after_a_drop
        return append(*asked)

    mqqb.world.store.journal.append = after_a_drop if what == "enqueue" else then_dropped
    with pytest.raises(QueueNotFound, match="was dropped"):
        if what == "enqueue":
            local.enqueue_message(name, {"n": 9, "key": None})
        elif what == "dequeue":
            local.dequeue_message(first)
        else:
            local.move_message(first, mqqb.other.name)
    assert (mqqb.seen, mqqb.other.depth()) == ([], 0)


@in_memory
def test_a_dequeue_at_once_that_is_interrupted_locks_nothing(mqqb: Mqqb) -> None:
    journal = mqqb.world.store.journal
    append = journal.append

    def then_interrupted(*asked: Any) -> Any:
        journal.append = interrupts
        return append(*asked)

    def interrupts(*asked: Any) -> Any:
        journal.append = append
        raise KeyboardInterrupt

    journal.append = then_interrupted
    with pytest.raises(KeyboardInterrupt):
        mqqb.local.dequeue_message(mqqb.position(0))
    assert (mqqb.numbers(mqqb.orders), mqqb.orders.in_flight()) == ([1, 2, 3], 0)
    assert not mqqb.orders.peek_messages()[0]["_message"]["redelivered"]
