"""Rules S0-01 to S0-24: channels, what they hold, what is dispatched to them, and commits."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import (
    World,
    alone_on_delta_when_long,
    in_memory,
    on_delta_when_long,
    rows,
)
from tests.faults.injection import Crash, FaultyStore, Injector, faults_of
from tests.faults.interrupts import Interrupt
from tests.inside import client_of
from tests.silence import interrupted, unanswered
from txnqueue.batch import Batch
from txnqueue.core.receipt import Status as Outcome
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    QueueError,
    SchemaMismatch,
    StatementRefused,
    TransactionAborted,
    TransactionError,
    TransactionFinished,
    TransactionNotGiven,
    TransactionUnknown,
)
from txnqueue.manager import QueueManager
from txnqueue.protocols.openamq import Channel, Connection, Dispatch, Reply, Status
from txnqueue.queue import Queue
from txnqueue.storage.store import MemoryStore
from txnqueue.transactions.transient import TransientWork

rule = pytest.mark.rule


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class Broker:
    """Two queues, and connections of as many clients as are wanted."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.orders = world.queue(**settings)
        self.bills = world.queue("bills")
        self.names = (self.orders.name, self.bills.name)

    def channel(self, name: str = "c", *, transacted: bool = True) -> Channel:
        """Open a channel of a client of its own."""
        channel = Connection(self.world.manager(name)).channel()
        channel.select(transacted=transacted)
        return channel

    def depths(self) -> tuple[int, int]:
        """What can be received of each queue."""
        return self.orders.depth(), self.bills.depth()

    def waiting(self, queue: Any = None) -> list[int]:
        """List what can be received."""
        found = (queue or self.orders).peek_messages(100)
        return sorted(row["n"] for row in found)

    def entries(self) -> int:
        """Count what has been written so far."""
        return len(client_of(self.orders).store.journal.read_all().entries)


def carried(found: Reply | list[Dispatch]) -> list[int]:
    """Read the numbers that dispatched messages carry."""
    listed = found.dispatches if isinstance(found, Reply) else found
    return sorted(dispatch.message["n"] for dispatch in listed)


def got(broker: Broker, channel: Channel, *numbers: int, persistent: bool = True) -> Reply:
    """Send messages outside of a transaction, and dispatch them to a channel."""
    broker.orders.send(rows(*numbers), durable=persistent)
    return channel.dispatch(broker.orders.name)


# ----------------------------------------------------------------------------- the lists


@rule("S0-01")
@on_delta_when_long
def test_each_message_stands_in_one_list(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    orders, bills = broker.names
    broker.orders.send(rows(1, 2))
    channel.dispatch(orders, limit=1)
    channel.send(bills, rows(3, 4))
    assert carried(channel.dispatch_list) == [1]
    assert [(one.queue, one.count) for one in channel.transact_list] == [(bills, 2)]
    assert [row["n"] for row in channel.transact_list[0].messages()] == [3, 4]
    listed = Connection(world.manager()).message_list(orders)
    assert len(listed) == 2
    assert [one.client_id is None for one in listed] == [True, False]
    assert Connection(world.manager()).message_list(bills) == []
    channel.ack()
    channel.commit()
    assert (channel.dispatch_list, channel.transact_list) == ([], [])
    listed = Connection(world.manager()).message_list(bills)
    ids = [row["_message"]["id"] for row in broker.bills.peek_messages()]
    assert [one.message_id for one in listed] == ids


@rule("S0-02")
@in_memory
@pytest.mark.parametrize("transacted", [True, False])
def test_half_a_send_is_nowhere(world: World, transacted: bool) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=transacted)
    with pytest.raises(SchemaMismatch):
        channel.send(broker.orders.name, [{"n": 1}, {"n": "no number"}])
    stage = client_of(broker.orders).store.payload.stage

    def fails(send: Any, given: Any) -> Any:
        stage(send, given)
        raise ConnectionError("half-way")

    world.store.payload.stage = fails
    with pytest.raises(ConnectionError):
        channel.send(broker.orders.name, rows(1))
    world.store.payload.stage = stage
    assert (channel.transact_list, broker.depths()) == ([], (0, 0))
    channel.select()
    channel.commit()
    assert broker.depths() == (0, 0)


@rule("S0-03", "S0-04")
@on_delta_when_long
def test_what_is_sent_in_a_transaction_waits_and_the_rest_does_not(world: World) -> None:
    broker = Broker(world)
    channel, other = broker.channel(), broker.channel("b")
    orders = broker.orders.name
    channel.send(orders, rows(1))
    channel.send(orders, rows(2), persistent=False)
    assert broker.depths() == (0, 0)
    assert other.dispatch(orders).dispatches == ()
    channel.send(orders, rows(3), transacted=False)
    channel.send(orders, rows(4), transacted=False, persistent=False)
    assert broker.waiting() == [3, 4]
    assert carried(other.dispatch(orders)) == [3, 4]
    assert sum(one.count for one in channel.transact_list) == 2


# -------------------------------------------------------------------------- dispatching


@rule("S0-05")
@alone_on_delta_when_long
def test_one_queue_is_dispatched_or_all_that_have_messages(world: World) -> None:
    broker = Broker(world, dead_letter=True)
    channel, empty = broker.channel(), world.queue("empty")
    broker.orders.send(rows(1))
    broker.bills.send(rows(2))
    assert carried(channel.dispatch(broker.bills.name)) == [2]
    broker.bills.send(rows(3))
    before = broker.entries()
    found = channel.dispatch()
    assert {one.queue for one in found.dispatches} == set(broker.names)
    assert carried(found) == [1, 3]
    assert broker.entries() == before + 2  # a claim each; the empty ones are passed over
    assert empty.in_flight() == 0
    channel.dispatch(broker.orders.name)
    broker.orders.send(rows(4))
    broker.orders.receive().reject()
    assert channel.dispatch().count == 0  # dead letters are not for those who ask for all
    assert channel.dispatch(f"{broker.orders.name}.dead").count == 1
    walking = world.queue("walking.dead")  # which is a queue as any other
    walking.send(rows(5))
    assert carried(channel.dispatch()) == [5]
    broker.orders.send(rows(6))
    broker.orders.receive().reject()
    broker.orders.drop()
    assert channel.dispatch().count == 0  # whose they were does not matter any more


@on_delta_when_long
@rule("S0-06", "S0-07", "S0-08", "S0-09", "S0-23")
def test_both_kinds_are_dispatched_and_ungot(world: World) -> None:
    broker = Broker(world)
    channel, sibling = broker.channel(), broker.channel("b")
    orders = broker.orders.name
    broker.orders.send(rows(1))
    broker.orders.send(rows(2), durable=False)
    connection = Connection(world.manager("c"))
    assert [one.client_id for one in connection.message_list(orders)] == [None, None]
    found = channel.dispatch(orders)
    assert carried(found) == [1, 2]
    assert sorted(one.persistent for one in found.dispatches) == [False, True]
    # the one in memory has left its queue, the other one is marked
    (marked,) = connection.message_list(orders)
    assert marked.persistent
    assert marked.client_id == channel._connection.client_id
    assert sibling.dispatch(orders).count == 0
    assert sibling.dispatch_list == []
    for dispatch in found.dispatches:
        assert channel.unget(dispatch.tag).count == 1
    assert [one.client_id for one in connection.message_list(orders)] == [None, None]
    assert carried(sibling.dispatch(orders)) == [1, 2]
    assert channel.dispatch_list == []


@rule("S0-07")
@on_delta_when_long
def test_two_channels_of_one_connection_share_no_dispatch(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    one, two = connection.channel(), connection.channel()
    broker.orders.send(rows(*range(4)))
    one.dispatch(broker.orders.name, limit=2)
    two.dispatch(broker.orders.name)
    assert (carried(one.dispatch_list), carried(two.dispatch_list)) == ([0, 1], [2, 3])
    two.ack([dispatch.tag for dispatch in one.dispatch_list])
    assert (carried(one.dispatch_list), len(two.dispatch_list)) == ([0, 1], 0)
    assert broker.orders.in_flight() == 2


@rule("S0-09")
@on_delta_when_long
def test_a_dispatch_is_a_lease_of_the_core(world: World) -> None:
    broker = Broker(world, lease_seconds=60)
    channel = broker.channel()
    got(broker, channel, 1)
    assert broker.orders.in_flight() == 1
    other = broker.channel("b")
    world.clock.advance(59)
    assert other.dispatch(broker.orders.name).count == 0  # marked for as long as the lease
    world.clock.advance(2)
    assert carried(other.dispatch(broker.orders.name)) == [1]
    with pytest.raises(LeaseLost):
        channel.ack(transacted=False)
    assert channel.dispatch_list == []  # it is another client's now
    assert len(other.dispatch_list) == 1


# ------------------------------------------------------------------------ acknowledging


@rule("S0-10")
@on_delta_when_long
@pytest.mark.parametrize("transacted", [True, False])
@pytest.mark.parametrize(
    ("tags", "left"),
    [
        ([], [0, 1, 2, 3, 4]),
        (99, [0, 1, 2, 3, 4]),
        (2, [0, 2, 3, 4]),
        (range(2, 5), [0, 4]),
        ({1, 5, 99}, [1, 2, 3]),
        (None, []),
    ],
)
def test_an_acknowledgement_is_about_any_number(
    world: World, transacted: bool, tags: Any, left: list[int]
) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=transacted)
    got(broker, channel, 0, 1)
    got(broker, channel, 2, 3, persistent=False)
    got(broker, channel, 4)
    assert channel.ack(tags).count == 5 - len(left)
    assert channel.ack(tags).count == 0 if tags is not None else True
    if transacted:
        channel.commit()
    assert carried(channel.dispatch_list) == left
    assert broker.orders.in_flight() == len(left)


@rule("S0-11")
@on_delta_when_long
@pytest.mark.parametrize("persistent", [True, False])
def test_in_a_transaction_an_acknowledgement_is_a_mark(world: World, persistent: bool) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1, 2, persistent=persistent)
    before, listed = broker.entries(), channel._connection.message_list(broker.orders.name)
    channel.ack(1)
    assert [one.acknowledged for one in channel.dispatch_list] == [True, False]
    assert broker.entries() == before
    assert channel._connection.message_list(broker.orders.name) == listed
    assert broker.orders.in_flight() == 2


@rule("S0-12")
@in_memory
def test_what_the_store_keeps_is_consumed_before_its_dispatch_goes(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=False)
    got(broker, channel, 1)
    journal = world.store.journal
    append = journal.append

    def looks(*args: Any) -> Any:
        assert len(channel.dispatch_list) == 1
        return append(*args)

    journal.append = looks
    channel.ack(1)
    journal.append = append
    assert (channel.dispatch_list, broker.orders.in_flight(), broker.depths()) == ([], 0, (0, 0))
    got(broker, channel, 2)

    def fails(*args: Any) -> Any:
        raise ConnectionError("away")

    journal.append = fails
    with pytest.raises(TransactionUnknown):
        channel.ack()
    journal.append = append
    assert carried(channel.dispatch_list) == [2]
    assert channel.ack().count == 1
    assert broker.orders.in_flight() == 0


@rule("S0-13")
@in_memory
def test_what_is_in_memory_goes_with_its_dispatch(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=False)
    got(broker, channel, 1, 2, persistent=False)
    before = broker.entries()
    assert channel.ack(1).count == 1
    assert carried(channel.dispatch_list) == [2]
    assert (broker.orders.in_flight(), broker.depths(), broker.entries()) == (1, (0, 0), before)


# --------------------------------------------------------------------------- committing


@rule("S0-14", "S0-16")
def test_a_commit_stores_what_was_sent_and_consumes_what_was_acknowledged(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    orders, bills = broker.names
    got(broker, channel, 1, 2)
    got(broker, channel, 3, persistent=False)
    channel.send(bills, rows(4))
    channel.send(bills, rows(5), persistent=False)
    channel.send(orders, rows(6))
    channel.ack([1, 3])
    version = client_of(world.manager()).store.journal.version
    before = version()
    reply = channel.commit()
    assert (reply.count, version()) == (5, before + 1)
    assert (broker.waiting(), broker.waiting(broker.bills)) == ([6], [4, 5])
    assert [(one.tag, one.acknowledged) for one in channel.dispatch_list] == [(2, False)]
    assert broker.orders.in_flight() == 1
    outcome = world.manager().outcome(reply.receipt.transaction_id)  # the core's own
    assert outcome.receipt == reply.receipt
    assert channel.ack().count == 1
    assert broker.orders.in_flight() == 1
    channel.commit()
    assert broker.orders.in_flight() == 0


def commit_with(injector: Injector) -> tuple[Broker, Channel, Any]:
    """Prepare a commit of sends to two queues and of acknowledgements, which may be spoiled."""
    world = World(MemoryStore())
    broker = Broker(world)
    store: Any = FaultyStore(world.store, injector)
    store.transient = world.store.transient
    manager = QueueManager(None, world.root, store=store, runtime=world.runtime("x"))
    channel = Connection(manager).channel()
    channel.select()
    got(broker, channel, 1, 2)
    got(broker, channel, 3, persistent=False)
    for queue in broker.names:
        channel.send(queue, rows(4))
        channel.send(queue, rows(5), persistent=False)
    channel.ack([1, 3])
    injector.arm()
    return broker, channel, manager


@rule("S0-15")
def test_a_commit_happens_entirely_or_not_at_all() -> None:
    clean = Injector()
    _, channel, _ = commit_with(clean)
    channel.commit()
    assert clean.calls.count("append") == 1
    outcomes = set()
    for at, call in enumerate(clean.calls):
        for fault in faults_of(call):
            injector = Injector(at, fault)
            broker, channel, manager = commit_with(injector)
            transaction: Any = channel.transaction_id
            try:
                channel.commit()
            except (Crash, KeyboardInterrupt, ConnectionError, TransactionUnknown):
                pass
            except (StatementRefused, TransactionAborted, LeaseLost):
                pass
            injector.disarm()
            injector.flush()
            injector.dead = False
            manager.recover()
            happened = broker.world.manager().outcome(transaction).status is Outcome.COMMITTED
            outcomes.add(happened)
            depths = (2, 2) if happened else (0, 0)
            assert (broker.depths(), broker.orders.in_flight()) == (depths, 3 - 2 * happened)
    assert outcomes == {True, False}


@rule("S0-17")
@on_delta_when_long
def test_after_a_commit_the_queues_with_new_messages_are_dispatched(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channel, waiting = connection.channel(), connection.channel()
    seen: dict[str, list[int]] = {name: [] for name in broker.names}

    def deliver(dispatch: Dispatch) -> None:
        seen[dispatch.queue].append(dispatch.message["n"])
        waiting.ack(dispatch.tag)

    for name in broker.names:
        waiting.consume(name, deliver)
    orders, bills = broker.names
    channel.select()
    channel.send(orders, rows(1))
    channel.send(orders, rows(2), persistent=False)
    assert seen == {orders: [], bills: []}
    broker.bills.send(rows(9))  # by another client: this commit has nothing to do with it
    channel.commit()
    assert sorted(seen[orders]) == [1, 2]
    assert (seen[bills], broker.depths(), broker.orders.in_flight()) == ([], (0, 1), 0)
    channel.send(bills, rows(3), transacted=False)
    assert sorted(seen[bills]) == [3, 9]
    channel.send(orders, rows(4))
    channel.rollback()
    assert sorted(seen[orders]) == [1, 2]


@rule("S0-17")
@on_delta_when_long
def test_a_consumer_that_fails_does_not_undo_a_commit(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channel, waiting = connection.channel(), connection.channel()

    def deliver(dispatch: Dispatch) -> None:
        raise ValueError("not now")

    waiting.consume(broker.orders.name, deliver)
    channel.select()
    channel.send(broker.orders.name, rows(1))
    assert channel.commit().status is Status.OK
    assert carried(waiting.dispatch_list) == [1]
    waiting.close()
    assert broker.waiting() == [1]
    channel.send(broker.orders.name, rows(2), transacted=False)
    assert broker.waiting() == [1, 2]  # nobody waits any more


@in_memory
def test_a_consumer_that_only_prepares_what_it_does_is_told_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A lambda does not show that what it calls is async."""
    broker = Broker(world)
    broker.orders.send(rows(1))
    channel = Connection(world.manager()).channel()
    channel.consume(broker.orders.name, lambda dispatch: (n for n in [dispatch]))
    assert "deliver= returned a generator" in caplog.text
    assert carried(channel.dispatch_list) == [1]


# ------------------------------------------------------------------------- rolling back


@rule("S0-18", "S0-19", "S0-20")
@alone_on_delta_when_long
def test_a_roll_back_drops_what_was_sent_and_keeps_what_was_dispatched(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1, 2)
    got(broker, channel, 3, persistent=False)
    before = broker.entries()
    for persistent in (True, False):
        channel.send(broker.bills.name, rows(4), persistent=persistent)
    channel.ack([1, 3])
    assert channel.rollback().count == 4
    assert broker.entries() == before
    assert (broker.depths(), broker.orders.in_flight()) == ((0, 0), 3)
    assert [one.acknowledged for one in channel.dispatch_list] == [False] * 3
    assert carried(channel.dispatch_list) == [1, 2, 3]
    assert broker.channel("b").dispatch().count == 0  # nothing came back to a queue
    world.manager().recover()
    assert (broker.waiting(), broker.waiting(broker.bills)) == ([], [])
    for tag in (1, 2, 3):
        channel.unget(tag)
    assert broker.waiting() == [1, 2, 3]
    assert {row["_message"]["redelivered"] for row in broker.orders.peek_messages()} == {True}


@rule("S0-21")
@on_delta_when_long
def test_a_roll_back_is_about_the_last_transaction(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1, 2, 3)
    channel.send(broker.bills.name, rows(4))
    channel.ack(1)
    channel.commit()
    assert (channel.transact_list, channel.transaction_id) == ([], None)
    channel.send(broker.bills.name, rows(5))
    channel.ack(2)
    channel.rollback()
    assert (channel.transact_list, channel.transaction_id) == ([], None)
    assert not any(one.acknowledged for one in channel.dispatch_list)
    channel.commit()
    assert (broker.waiting(broker.bills), carried(channel.dispatch_list)) == ([4], [2, 3])


@rule("S0-21")
@on_delta_when_long
def test_messages_that_were_lost_abort_the_commit_alone(world: World) -> None:
    """It is as after a roll back, and the next transaction is a new one."""
    broker = Broker(world, lease_seconds=60)
    channel = broker.channel()
    got(broker, channel, 1)
    channel.ack()
    channel.send(broker.bills.name, rows(4))
    world.clock.advance(61)
    broker.channel("b").dispatch()
    with pytest.raises(LeaseLost):
        channel.commit()
    assert (channel.transact_list, channel.dispatch_list, broker.depths()) == ([], [], (0, 0))
    channel.send(broker.bills.name, rows(5))
    channel.commit()
    assert broker.waiting(broker.bills) == [5]


@rule("S0-14", "S0-15")
@in_memory
@pytest.mark.parametrize("how", ["extend_lease", "ack", "unget", "reject"])
def test_an_acknowledgement_that_is_lost_aborts_the_commit_whoever_noticed_it(
    world: World, how: str
) -> None:
    """A call about another message finds out; what was sent with the first must not go alone."""
    broker = Broker(world, lease_seconds=60)
    channel, other = broker.channel(), broker.channel("b")
    got(broker, channel, 1, 2)
    channel.ack(1)
    channel.send(broker.bills.name, rows(10))
    world.clock.advance(61)
    assert carried(other.dispatch(broker.orders.name)) == [1, 2]
    calls: dict[str, Callable[[], object]] = {
        "extend_lease": lambda: channel.extend_lease(100),
        "ack": lambda: channel.ack(2, transacted=False),
        "unget": lambda: channel.unget(2),
        "reject": lambda: channel.reject(2),
    }
    with pytest.raises(LeaseLost):
        calls[how]()
    assert [one.acknowledged for one in channel.dispatch_list] == [True]
    with pytest.raises(LeaseLost):
        channel.commit()
    assert (channel.dispatch_list, broker.waiting(broker.bills)) == ([], [])
    channel.send(broker.bills.name, rows(11))
    channel.commit()
    assert broker.waiting(broker.bills) == [11]


@rule("S0-14", "S0-15")
@in_memory
def test_an_acknowledgement_that_another_thread_finds_lost_meanwhile_aborts_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(world, lease_seconds=60)
    channel, other = broker.channel(), broker.channel("b")
    got(broker, channel, 1)
    channel.send(broker.bills.name, rows(10))
    world.clock.advance(61)
    assert carried(other.dispatch(broker.orders.name)) == [1]
    opening = channel._open_transaction

    def meanwhile() -> Any:
        with pytest.raises(LeaseLost):
            channel.extend_lease(100)
        return opening()

    monkeypatch.setattr(channel, "_open_transaction", meanwhile)
    channel.ack()
    assert [one.acknowledged for one in channel.dispatch_list] == [True]
    with pytest.raises(LeaseLost):
        channel.commit()
    assert (channel.dispatch_list, broker.waiting(broker.bills)) == ([], [])


@rule("S0-10", "S0-14")
@in_memory
def test_a_lost_acknowledgement_does_not_keep_the_other_leases_from_being_extended(
    world: World,
) -> None:
    broker = Broker(world, lease_seconds=60)
    channel, other = broker.channel(), broker.channel("b")
    got(broker, channel, 1)
    channel.ack(1)
    world.clock.advance(61)
    assert carried(other.dispatch(broker.orders.name)) == [1]
    got(broker, channel, 2)
    with pytest.raises(LeaseLost):
        channel.extend_lease(100)
    assert channel.extend_lease(100).count == 1
    world.clock.advance(61)
    assert carried(other.dispatch(broker.orders.name)) == [1], "the second one is still held"
    channel.rollback()
    assert carried(channel.dispatch_list) == [2]
    channel.ack(2)
    assert channel.commit().count == 1


@rule("S0-15")
@in_memory
def test_a_commit_in_memory_that_was_interrupted_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(world)
    channel = broker.channel()
    broker.orders.send(rows(1), durable=False)
    channel.dispatch(broker.orders.name)
    channel.ack()
    with monkeypatch.context() as patched:
        patched.setattr(TransientWork, "commit_alone", interrupt)
        with pytest.raises(KeyboardInterrupt):
            channel.commit()
    assert channel.commit().count == 1
    assert (channel.dispatch_list, broker.orders.in_flight()) == ([], 0)


@rule("S0-14", "S0-15")
@in_memory
def test_an_acknowledgement_that_is_lost_leaves_with_the_rollback(world: World) -> None:
    broker = Broker(world, lease_seconds=60)
    channel, other = broker.channel(), broker.channel("b")
    got(broker, channel, 1, 2)
    channel.ack(1)
    world.clock.advance(61)
    other.dispatch(broker.orders.name)
    channel.rollback()
    with pytest.raises(LeaseLost):
        channel.ack(2, transacted=False)
    assert channel.dispatch_list == []


@rule("S0-15", "S0-18")
@in_memory
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_a_commit_in_doubt_is_settled_by_asking(world: World, lands: bool, then: str) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1)
    channel.ack()
    channel.send(broker.bills.name, rows(4))
    with unanswered(world.store.journal, lands=lands), pytest.raises(TransactionUnknown):
        channel.commit()
    if lands and then == "commit":
        assert channel.commit().count == 2
    elif lands:
        with pytest.raises(TransactionFinished):
            channel.rollback()
    elif then == "commit":
        with pytest.raises(TransactionUnknown):
            channel.commit()
        channel.rollback()
    else:
        channel.rollback()
    assert broker.waiting(broker.bills) == ([4] if lands else [])
    assert carried(channel.dispatch_list) == ([] if lands else [1])
    assert broker.orders.in_flight() == (0 if lands else 1)
    assert channel.transact_list == []


# -------------------------------------------------------------------------------- unget


@rule("S0-22")
@on_delta_when_long
def test_an_unget_of_nothing_reports_so_and_changes_nothing(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1, 2)
    channel.ack(2)
    before = broker.entries()
    for tag in (0, 3, 2):  # not there, not there, about to be acknowledged
        reply = channel.unget(tag)
        assert (reply.status, reply.count) == (Status.NO_MATCH, 0)
    assert (len(channel.dispatch_list), broker.entries()) == (2, before)
    assert channel.unget(1).status is Status.OK
    assert channel.unget(1).status is Status.NO_MATCH
    assert broker.waiting() == [1]


@rule("S0-23")
@in_memory
def test_a_channel_is_closed_by_two_appends_however_many_receives_it_holds(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    for number in range(6):
        got(broker, channel, number)
    assert channel.dispatch_list[0].message["n"] == 0
    version = client_of(world.manager()).store.journal.version
    before = version()
    channel.close()
    assert version() == before + 2  # what was looked at, and what was not
    assert broker.waiting() == [0, 1, 2, 3, 4, 5]


@rule("S0-23")
@alone_on_delta_when_long
def test_a_closed_channel_gives_everything_back(world: World) -> None:
    broker = Broker(world, lease_seconds=60)
    lost = broker.channel()
    got(broker, lost, 1, 2)
    got(broker, lost, 3, persistent=False)
    got(broker, lost, 4)
    lost.ack(1)
    lost.send(broker.bills.name, rows(9))
    world.clock.advance(61)
    other = broker.channel("b")
    other.dispatch(limit=1)
    lost.close()
    assert lost.close().count == 0
    lost_ones = carried(other.dispatch_list)
    assert sorted(broker.waiting() + lost_ones) == [1, 2, 3, 4]
    assert broker.bills.depth() == 0
    with pytest.raises(TransactionFinished):
        lost.dispatch()


@rule("S0-24")
@alone_on_delta_when_long
def test_every_operation_reports_a_status(world: World) -> None:
    broker = Broker(world)
    orders = broker.orders.name
    with Connection(world.manager()).channel(lease_seconds=10) as channel:
        replies = [
            channel.select(transacted=True),
            channel.send(orders, rows(1)),
            channel.send(orders, rows(2, 3), transacted=False),
            channel.send(orders, []),
            channel.dispatch(orders),
            channel.dispatch(),
            channel.ack(1),
            channel.unget(2),
            channel.commit(),
            channel.rollback(),
            channel.consume(broker.bills.name, print),
        ]
        nothing = (channel.ack(99), channel.unget(99))
        replies.append(channel.close())
    assert [reply.status for reply in nothing] == [Status.OK, Status.NO_MATCH]
    assert [reply.status for reply in replies] == [Status.OK] * len(replies)
    assert [reply.count for reply in replies] == [0, 1, 2, 0, 2, 0, 1, 1, 2, 0, 0, 0]
    assert Status.OK.value == "OK"


@rule("S0-15")
@in_memory
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_that_was_interrupted_can_be_repeated(world: World, lands: bool) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1, 2)
    channel.ack(1)
    channel.send(broker.bills.name, rows(4))
    with interrupted(world.store.journal, lands=lands):
        channel.commit()
    for more in (lambda: channel.send(broker.bills.name, rows(5)), lambda: channel.ack(2)):
        with pytest.raises(TransactionFinished, match="commit it again"):
            more()  # what is on its way would not name it
    assert channel.commit().count == 2
    assert broker.waiting(broker.bills) == [4]
    assert [one.tag for one in channel.dispatch_list] == [2]


@rule("S0-14", "S0-17", "S0-04")
@in_memory
@pytest.mark.parametrize("transacted", [True, False])
def test_a_dispatch_that_fails_does_not_make_a_failure_of_what_was_sent(
    world: World, transacted: bool
) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channel, waiting = connection.channel(), connection.channel()
    waiting.consume(broker.bills.name, print)
    waiting.consume(broker.orders.name, print)
    channel.select(transacted=transacted)
    journal = world.store.journal
    append = journal.append

    def then_away(*asked: Any) -> Any:
        answer = append(*asked)
        journal.append = away
        return answer

    def away(*asked: Any) -> Any:
        raise ConnectionError("away")

    if transacted:
        channel.send(broker.bills.name, rows(1))
    journal.append = then_away
    reply = channel.commit() if transacted else channel.send(broker.bills.name, rows(1))
    assert (reply.status, reply.count) == (Status.OK, 1)
    journal.append = append
    assert broker.waiting(broker.bills) == [1] and channel.transact_list == []
    assert carried(waiting.dispatch()) == [1]


# ----------------------------------------------------------------- redelivered messages


@rule("S0-05", "S0-17")
@on_delta_when_long
def test_redelivered_messages_are_dispatched_as_completely_as_others(world: World) -> None:
    """They may be claimed in pieces; nobody who waits has to ask for each."""
    broker = Broker(world, lease_seconds=60)
    broker.orders.send(rows(*range(10)))
    for _ in range(2):  # their holder dies, and so does the next one
        world.open(broker.orders, "dies").receive(10)
        world.clock.advance(61)
    connection = Connection(world.manager())
    channel = connection.channel()
    assert channel.dispatch(broker.orders.name, limit=4).count == 4
    waiting, seen = connection.channel(), list[int]()
    reply = waiting.consume(broker.orders.name, lambda one: seen.append(one.message["n"]))
    assert (reply.count, seen) == (6, [4, 5, 6, 7, 8, 9])
    for dispatch in channel.dispatch_list:
        channel.unget(dispatch.tag)
    channel.send(broker.orders.name, rows(10))
    assert sorted(seen) == list(range(11))
    assert broker.orders.depth() == 0


@rule("S0-05")
@in_memory
def test_what_cannot_be_dispatched_any_more_does_not_hide_what_was(world: World) -> None:
    broker = Broker(world, lanes=1)
    broker.orders.send(rows(*range(20)))
    for _ in range(2):
        batch = world.open(broker.orders, "fails").receive(10)
        batch.modify()
    channel = broker.channel()
    journal, claims = world.store.journal, list[Any]()
    append = journal.append

    def then_away(*asked: Any) -> Any:
        claims.append(asked)
        if len(claims) > 1:
            raise ConnectionError("away")
        return append(*asked)

    journal.append = then_away
    found = channel.dispatch(broker.orders.name)
    journal.append = append
    assert len(claims) > 1
    assert 0 < found.count < 20
    assert carried(found) == carried(channel.dispatch_list)
    with pytest.raises(TransactionError):
        journal.append = then_away
        channel.dispatch(broker.orders.name)
    journal.append = append


@rule("S0-05")
@in_memory
@pytest.mark.parametrize("away", [False, True])
def test_a_queue_that_cannot_be_dispatched_does_not_hide_the_others(
    world: World, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(world)
    channel = broker.channel()
    broker.orders.send(rows(1))
    names = [broker.orders.name, world.name("dropped-meanwhile"), broker.bills.name]
    monkeypatch.setattr(channel._manager, "list_queues", lambda: names if away else names[::-1])
    broker.bills.send(rows(2))
    if away:  # from the second queue on
        opened = channel._manager.queue
        unreachable = iter([opened])
        monkeypatch.setattr(
            channel._manager,
            "queue",
            lambda name: next(unreachable)(name),  # noqa: PLW0108 - the next one at each call
        )
    assert carried(channel.dispatch()) == ([1] if away else [1, 2])


@rule("S0-07")
@in_memory
def test_what_one_receive_brought_is_read_once(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    found = got(broker, channel, *range(50)).dispatches
    reads, payload = list[int](), world.store.payload
    table = payload.table

    def counted(schema: Any, parts: Any) -> Any:
        reads.append(len(parts))
        return table(schema, parts)

    payload.table = counted
    assert [one.message["n"] for one in found] == list(range(50))
    found[0].message["n"] = "spoiled"
    spoiled: Any = found[0].message["_message"]
    spoiled.clear()
    assert carried(list(found)) == list(range(50))
    assert found[0].message["_message"]["id"] == found[0].message_id
    del payload.table
    assert len(reads) == 1


@rule("S0-23")
@on_delta_when_long
def test_a_message_that_nobody_can_process_becomes_a_dead_letter(world: World) -> None:
    broker = Broker(world, dead_letter=True, deliveries_max=3)
    broker.orders.send(rows(1))
    channel = broker.channel()
    for times in range(3):
        (dispatch,) = channel.dispatch(broker.orders.name).dispatches
        said = dispatch.message["_message"]
        assert (said["delivery_count"], said["redelivered"]) == (times, times > 0)
        channel.unget(dispatch.tag)
    assert channel.dispatch(broker.orders.name).count == 0
    dead = channel.dispatch(f"{broker.orders.name}.dead").dispatches
    assert [one.message["_message"]["origin"]["reason"] for one in dead] == ["deliveries_max"]


@rule("S0-23")
@on_delta_when_long
@pytest.mark.parametrize("persistent", [True, False])
def test_a_close_counts_the_deliveries_of_what_was_looked_at(
    world: World, persistent: bool
) -> None:
    broker = Broker(world)
    channel = broker.channel()
    found = got(broker, channel, 1, 2, 3, persistent=persistent).dispatches
    assert found[1].message["n"] == 2
    got(broker, channel, 4, persistent=persistent)
    before = broker.entries()
    channel.close()
    assert persistent or broker.entries() == before
    again = {row["n"]: row["_message"]["delivery_count"] for row in broker.orders.peek_messages()}
    assert again == {1: 0, 2: 1, 3: 0, 4: 0}


# ------------------------------------------------------------------- consumers who wait


@rule("S0-17", "S0-23")
@on_delta_when_long
@pytest.mark.parametrize("back", ["unget", "close"])
def test_what_is_given_back_is_dispatched_to_others_who_wait(world: World, back: str) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    gives, waits = connection.channel(), connection.channel()
    seen: dict[str, list[int]] = {"gives": [], "waits": []}
    gives.consume(broker.orders.name, lambda one: seen["gives"].append(one.message["n"]))
    gives.send(broker.orders.name, rows(1))
    waits.consume(broker.orders.name, lambda one: seen["waits"].append(one.message["n"]))
    assert seen == {"gives": [1], "waits": []}
    assert gives.unget(1).count == 1 if back == "unget" else gives.close()
    assert seen == {"gives": [1], "waits": [1]}
    assert broker.orders.in_flight() == 1


@rule("S0-17", "S0-22")
@in_memory
def test_a_message_that_every_consumer_gives_back_waits_in_its_queue(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channels = [connection.channel() for _ in range(3)]
    seen: list[int] = []

    def cannot(number: int) -> Any:
        def deliver(dispatch: Dispatch) -> None:
            seen.append(number)
            channels[number].unget(dispatch.tag)

        return deliver

    for number, channel in enumerate(channels):
        channel.consume(broker.orders.name, cannot(number))
    channels[0].send(broker.orders.name, rows(1))
    assert seen == [0, 1, 2]
    assert broker.waiting() == [1]
    assert broker.orders.peek_messages()[0]["_message"]["delivery_count"] == 3


@rule("S0-17")
@in_memory
@pytest.mark.parametrize("first", ["waits", "sent"])
def test_a_consumer_gets_all_messages_however_many_it_takes_at_a_time(
    world: World, first: str
) -> None:
    broker = Broker(world)
    channel, heard = broker.channel(transacted=False), list[int]()

    def consume() -> None:
        channel.consume(broker.orders.name, lambda one: heard.append(one.message["n"]), limit=2)

    if first == "waits":
        consume()
    channel.send(broker.orders.name, rows(1, 2, 3, 4, 5))
    if first == "sent":
        consume()
    assert heard == [1, 2, 3, 4, 5]
    assert carried(channel.dispatch_list) == heard


@rule("S0-17")
@in_memory
def test_consumers_take_turns(world: World) -> None:
    broker = Broker(world)
    connection, heard = Connection(world.manager()), list[tuple[str, int]]()
    for name in ("one", "other"):
        connection.channel().consume(
            broker.orders.name,
            lambda one, name=name: heard.append((name, one.message["n"])),  # type: ignore[misc]
            limit=1,
        )
    connection.channel().send(broker.orders.name, rows(1, 2, 3))
    assert heard == [("one", 1), ("other", 2), ("one", 3)]


@rule("S0-17", "S0-23")
@in_memory
@pytest.mark.parametrize("first", ["waits", "sent"])
def test_a_consumer_that_gives_its_messages_back_does_not_get_them_again_at_once(
    world: World, first: str
) -> None:
    """However few it takes at a time: otherwise they would end as dead letters on the spot."""
    broker = Broker(world)
    channel, heard = broker.channel(transacted=False), list[int]()

    def gives_back(dispatch: Dispatch) -> None:
        heard.append(dispatch.message["n"])
        channel.unget(dispatch.tag)

    if first == "waits":
        channel.consume(broker.orders.name, gives_back, limit=1)
    channel.send(broker.orders.name, rows(1, 2))
    if first == "sent":
        channel.consume(broker.orders.name, gives_back, limit=1)
    assert heard == [1]
    assert broker.waiting() == [1, 2]


@rule("S0-17")
@on_delta_when_long
def test_a_consumer_can_be_cancelled_alone(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=False)
    seen: list[tuple[str, int]] = []
    first = channel.consume(
        broker.orders.name, lambda one: seen.append(("first", one.message["n"]))
    )
    channel.consume(broker.bills.name, lambda one: seen.append(("bills", one.message["n"])))
    channel.send(broker.orders.name, rows(1))
    assert first.consumer is not None
    assert channel.cancel(first.consumer).status is Status.OK
    assert channel.cancel(first.consumer).status is Status.NO_MATCH
    assert broker.channel("b").cancel(2).status is Status.NO_MATCH  # another channel's
    for name in broker.names:
        channel.send(name, rows(2))
    assert seen == [("first", 1), ("bills", 2)]
    assert [one.queue for one in channel.dispatch_list] == list(broker.names)
    assert broker.waiting() == [2]


@rule("S0-17")
@in_memory
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_consumer_that_ends_on_its_first_message_leaves_the_others_to_others(
    world: World, how: str
) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channel, waits = connection.channel(), connection.channel()
    seen: list[int] = []

    def ends(dispatch: Dispatch) -> None:
        seen.append(dispatch.message["n"])
        channel.cancel(1) if how == "cancel" else channel.close()

    channel.consume(broker.orders.name, ends)
    others: list[int] = []
    waits.consume(broker.orders.name, lambda one: others.append(one.message["n"]))
    waits.send(broker.orders.name, rows(1, 2, 3))
    assert seen == [1]
    assert sorted(others) == ([2, 3] if how == "cancel" else [1, 2, 3])


@rule("S0-17")
@in_memory
def test_a_consumer_that_could_not_be_served_at_once_does_not_wait(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    channel = connection.channel()
    broker.orders.send(rows(1))
    with unanswered(world.store.journal, lands=False), pytest.raises(TransactionUnknown):
        channel.consume(broker.orders.name, print)
    assert connection.consumers == []


# --------------------------------------------------------------- what the text leaves open


@rule("S0-04", "S0-14")
@on_delta_when_long
def test_a_commit_without_a_transaction_is_refused(world: World) -> None:
    """Whoever forgot to select would take for held what has happened."""
    broker = Broker(world)
    channel = Connection(world.manager()).channel()
    channel.send(broker.orders.name, rows(1))
    for end in (channel.commit, channel.rollback):
        with pytest.raises(TransactionNotGiven, match="has taken effect"):
            end()
    channel.select(transacted=False)
    with pytest.raises(TransactionNotGiven):
        channel.commit()
    channel.send(broker.orders.name, rows(2), transacted=True)
    assert channel.commit().count == 1
    assert channel.commit().count == channel.rollback().count == 0
    assert broker.waiting() == [1, 2]


@rule("S0-02")
@in_memory
def test_input_that_cannot_be_is_a_typed_error_and_changes_nothing(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    got(broker, channel, 1)
    before, orders = broker.entries(), broker.orders.name
    wrong = [
        lambda: channel.consume(orders, None),  # type: ignore[arg-type]
        lambda: channel.consume(orders, print, limit=0),
        lambda: channel.consume(orders, print, limit=1.5),  # type: ignore[arg-type]
        lambda: channel.dispatch(orders, limit=True),
        lambda: channel.ack("x"),  # type: ignore[arg-type]
        lambda: channel.ack("1"),  # type: ignore[arg-type]
        lambda: channel.ack(["1"]),  # type: ignore[list-item]
        lambda: channel.ack(1.0),  # type: ignore[arg-type]
        lambda: channel.ack(True),
        lambda: channel.ack(1, transacted="yes"),  # type: ignore[arg-type]
        lambda: channel.unget("x"),  # type: ignore[arg-type]
        lambda: channel.unget([1]),  # type: ignore[arg-type]
        lambda: channel.cancel("x"),  # type: ignore[arg-type]
        lambda: channel.reject({"x": 1}),  # type: ignore[dict-item]
        lambda: channel.reject(1, reason=7),  # type: ignore[arg-type]
        lambda: channel.extend_lease(-1),
        lambda: channel.select(transacted="yes"),  # type: ignore[arg-type]
        lambda: channel.send(orders, rows(2), transaction=None),
        lambda: channel.send(orders, rows(2), durable=True),
        lambda: channel.send(orders, rows(2), persistent="yes"),  # type: ignore[arg-type]
        lambda: channel.publish("events", rows(2), transaction=None),
        lambda: Connection(world.manager()).channel(lease_seconds=0),
    ]
    for call in wrong:
        with pytest.raises(InvalidInput):
            call()
    assert (broker.entries(), channel.transact_list, len(channel.dispatch_list)) == (before, [], 1)
    assert channel._connection.consumers == []
    assert not channel.dispatch_list[0].acknowledged


@rule("S0-03", "S0-04", "S0-14", "S0-17")
@on_delta_when_long
@pytest.mark.parametrize("persistent", [True, False])
def test_what_is_published_to_an_exchange_is_held_and_dispatched_as_what_is_sent(
    world: World, persistent: bool
) -> None:
    broker = Broker(world)
    manager = world.manager()
    events = manager.create_exchange(world.name("events"), "topic", "n long, key string")
    events.bind(broker.orders.name, routing_key="eu.#")
    events.bind(broker.bills.name, routing_key="#")
    connection = Connection(manager)
    channel, waiting = connection.channel(), connection.channel()
    seen: list[tuple[str, int]] = []
    for name in broker.names:
        waiting.consume(name, lambda one: seen.append((one.queue, one.message["n"])))
    channel.select()
    reply = channel.publish(events.name, rows(1, 2), "eu.de", persistent=persistent)
    assert reply.published is not None
    assert (reply.count, dict(reply.published.queues)) == (2, dict.fromkeys(broker.names, 2))
    held = channel.transact_list
    assert sorted((one.queue, one.count) for one in held) == sorted(
        (name, 2) for name in broker.names
    )
    assert [[row["n"] for row in one.messages()] for one in held] == [[1, 2], [1, 2]]
    assert (seen, broker.depths()) == ([], (0, 0))
    assert channel.commit().count == 4
    assert sorted(seen) == sorted((name, n) for name in broker.names for n in (1, 2))
    seen.clear()
    channel.publish(events.name, rows(3), "us", persistent=persistent, transacted=False)
    assert seen == [(broker.bills.name, 3)]
    channel.publish(events.name, rows(4), "us", persistent=persistent)
    channel.rollback()
    assert (seen, channel.transact_list) == ([(broker.bills.name, 3)], [])


@rule("S0-18", "S0-23")
@on_delta_when_long
def test_a_connection_is_closed_with_all_its_channels(world: World) -> None:
    broker = Broker(world)
    with Connection(world.manager()) as connection:
        one, two = connection.channel(), connection.channel()
        broker.orders.send(rows(1, 2))
        two.consume(broker.bills.name, print)
        one.dispatch(broker.orders.name, limit=1)
        two.dispatch(broker.orders.name)
        one.send(broker.bills.name, rows(3), transacted=True)
        one.ack(transacted=True)
    assert (broker.waiting(), broker.depths()) == ([1, 2], (2, 0))
    assert connection.consumers == []
    for closed in (connection.channel, one.dispatch, two.ack):
        with pytest.raises(TransactionFinished, match="closed"):
            closed()
    connection.close()


@rule("S0-15", "S0-18")
@in_memory
def test_a_connection_with_a_commit_in_doubt_closes_the_rest_and_can_be_closed_again(
    world: World,
) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    doubtful, other = connection.channel(), connection.channel()
    broker.orders.send(rows(1))
    other.dispatch(broker.orders.name)
    doubtful.send(broker.bills.name, rows(3), transacted=True)
    with unanswered(world.store.journal, lands=True), pytest.raises(TransactionUnknown):
        doubtful.commit()
    with pytest.raises(TransactionFinished, match="committed"):
        connection.close()
    assert (broker.waiting(), broker.depths()) == ([1], (1, 1))
    connection.close()
    with pytest.raises(TransactionFinished, match="closed"):
        doubtful.dispatch()


@rule("S0-10", "S0-22")
@on_delta_when_long
def test_rejected_messages_are_dead_letters_at_once(world: World) -> None:
    broker = Broker(world, dead_letter=True)
    channel = broker.channel()
    got(broker, channel, 1, 2)
    got(broker, channel, 3, persistent=False)
    got(broker, channel, 4)
    channel.ack(4)
    assert channel.reject([1, 3, 4, 99], reason="no such customer").count == 2
    assert carried(channel.dispatch_list) == [2, 4]
    dead = client_of(world.open(broker.orders, "reader"))
    found = channel.dispatch(f"{broker.orders.name}.dead").dispatches
    assert carried(list(found)) == [1, 3]
    assert {one.message["_message"]["origin"]["reason"] for one in found} == {"no such customer"}
    assert channel.commit().count == 1
    with dead.lock:
        assert dead.states.fold(broker.orders.info).in_flight() == 1


@rule("S0-09")
@on_delta_when_long
def test_a_channel_can_hold_what_is_dispatched_longer(world: World) -> None:
    broker = Broker(world, lease_seconds=60)
    channel, other = broker.channel(), broker.channel("b")
    got(broker, channel, 1)
    got(broker, channel, 2, persistent=False)
    world.clock.advance(50)
    before = broker.entries()
    assert channel.extend_lease(100).count == 2
    assert broker.entries() == before + 1
    world.clock.advance(90)
    assert other.dispatch(broker.orders.name).count == 0
    assert channel.ack().count == 2
    channel.commit()
    assert channel.extend_lease(100).count == 0
    got(broker, channel, 3)
    world.clock.advance(61)
    assert carried(other.dispatch(broker.orders.name)) == [3]
    got(broker, channel, 4)
    with pytest.raises(LeaseLost):
        channel.extend_lease(100)
    assert carried(channel.dispatch_list) == [4]
    assert channel.extend_lease(100).count == 1


# ------------------------------------------------------- what is not the channel's any more


@rule("S0-10", "S0-14", "S0-22")
@in_memory
@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("how", ["commit", "ack", "unget", "reject", "extend_lease"])
def test_a_queue_that_is_dropped_takes_its_messages_out_of_the_dispatch_list(
    world: World, how: str, closing: bool
) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=how == "commit")
    orders, bills = broker.names
    broker.orders.send(rows(1, 2))
    broker.bills.send(rows(3))
    channel.dispatch(orders, limit=1)
    channel.dispatch(bills)
    manager = world.manager("x")
    if closing:  # what is prepared holds the drop back
        tx = manager.transaction()
        manager.queue(orders).receive(1, transaction=tx)
        tx.prepare()
    assert manager.queue(orders).drop().dropped is not closing
    if how == "commit":
        assert channel.ack().count == 2
    calls: dict[str, Any] = {"unget": (1,), "extend_lease": (60,)}
    with pytest.raises(TransactionAborted if how == "commit" else QueueError):
        getattr(channel, how)(*calls.get(how, ()))
    assert [one.queue for one in channel.dispatch_list] == [bills]
    channel.ack()
    if how == "commit":
        assert channel.commit().count == 1
    assert (channel.dispatch_list, broker.bills.in_flight()) == ([], 0)


@rule("S0-10", "S0-20")
@in_memory
def test_a_channel_is_closed_though_a_queue_was_dropped(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    broker.orders.send(rows(1))
    broker.orders.send(rows(2), durable=False)
    broker.bills.send(rows(3, 4))
    for name in broker.names:
        channel.dispatch(name)
    assert channel.dispatch_list[-1].message["n"] == 4
    assert broker.orders.drop().dropped
    assert channel.close().status is Status.OK
    assert broker.waiting(broker.bills) == [3, 4]
    counts = [one["_message"]["delivery_count"] for one in broker.bills.peek_messages()]
    assert counts == [0, 1]


@rule("S0-12", "S0-20")
@in_memory
@pytest.mark.parametrize("how", ["ack", "close"])
def test_what_was_settled_behind_the_channels_back_leaves_the_dispatch_list(
    world: World, how: str
) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=False)
    found = got(broker, channel, 1, 2).dispatches
    found[0].batch.accept(matching=[found[0].message_id])
    if how == "ack":
        with pytest.raises(AlreadySettled):
            channel.ack()
        assert channel.dispatch_list == [found[1]]
        assert channel.ack().count == 1
    channel.close()
    assert (channel.dispatch_list, broker.orders.in_flight()) == ([], 0)
    assert broker.waiting() == ([] if how == "ack" else [2])


@rule("S0-12")
@in_memory
def test_a_list_that_cannot_be_looked_through_stays_and_the_loss_is_told(world: World) -> None:
    broker = Broker(world, lease_seconds=60)
    channel = broker.channel(transacted=False)
    got(broker, channel, 1)
    world.clock.advance(61)
    world.open(broker.orders, "other").receive()
    reads, read = list[Any](), world.store.journal.read

    def once(*asked: Any, **how: Any) -> Any:
        reads.append(asked)
        if len(reads) > 1:
            raise ConnectionError("away")
        return read(*asked, **how)

    world.store.journal.read = once
    with pytest.raises(LeaseLost):
        channel.ack()
    world.store.journal.read = read
    assert len(reads) > 1 and len(channel.dispatch_list) == 1
    with pytest.raises(LeaseLost):
        channel.ack()
    assert channel.dispatch_list == []


@rule("S0-14")
@in_memory
@pytest.mark.parametrize("where", ["between two receives", "after it happened"])
def test_a_commit_can_be_repeated_wherever_it_was_interrupted(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(world)
    channel = broker.channel()
    for number in (1, 2):
        got(broker, channel, number)
    channel.ack()
    channel.send(broker.bills.name, rows(3))
    accept, destroy, calls = Batch.accept, channel._dispatches.destroy, list[Any]()

    def once(call: Any, *asked: Any, **how: Any) -> Any:
        calls.append(asked)
        if len(calls) == (2 if call is accept else 1):
            raise KeyboardInterrupt
        return call(*asked, **how)

    if where == "after it happened":
        dispatches = channel._dispatches
        monkeypatch.setattr(dispatches, "destroy", lambda settled: once(destroy, settled))
    else:
        monkeypatch.setattr(Batch, "accept", lambda *asked, **how: once(accept, *asked, **how))
    with pytest.raises(KeyboardInterrupt):
        channel.commit()
    assert channel.commit().count == 3
    assert (broker.waiting(), broker.waiting(broker.bills)) == ([], [3])
    assert (channel.dispatch_list, channel.transaction_id) == ([], None)
    assert (channel.commit().count, broker.orders.in_flight()) == (0, 0)


@rule("S0-20")
@in_memory
def test_a_message_that_could_not_be_read_was_not_looked_at(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel()
    (dispatch,) = got(broker, channel, 1).dispatches
    payload = world.store.payload

    def away(*asked: Any) -> Any:
        raise ConnectionError("away")

    payload.table = away
    with pytest.raises(ConnectionError):
        _ = dispatch.message
    del payload.table
    assert not dispatch.looked_at
    channel.close()
    assert not broker.orders.peek_messages()[0]["_message"]["redelivered"]


@rule("S0-10")
@in_memory
def test_a_range_of_tags_may_be_of_any_length(world: World) -> None:
    broker = Broker(world)
    channel = broker.channel(transacted=False)
    got(broker, channel, 1, 2, 3)
    tracemalloc.start()
    assert channel.ack(range(2, 1_000_000)).count == 2
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000  # the tags are not written out
    assert [one.tag for one in channel.dispatch_list] == [1]


@rule("S0-07")
@in_memory
def test_what_another_thread_dispatches_meanwhile_is_in_the_list_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit on one channel dispatches to the consumers of others, in its own thread."""
    broker = Broker(world)
    channel = broker.channel()
    broker.orders.send(rows(1, 2))
    broker.bills.send(rows(3, 4))
    made = Dispatch.__init__

    def meanwhile(*given: Any, **said: Any) -> None:
        monkeypatch.setattr(Dispatch, "__init__", made)
        other = threading.Thread(target=channel.dispatch, args=(broker.bills.name,))
        other.start()
        other.join()
        made(*given, **said)

    monkeypatch.setattr(Dispatch, "__init__", meanwhile)
    channel.dispatch(broker.orders.name)
    assert carried(channel.dispatch_list) == [1, 2, 3, 4]
    assert sorted(one.tag for one in channel.dispatch_list) == [1, 2, 3, 4]
    assert channel.ack([1, 2, 3, 4]).count == 4


BRIEFLY_SECONDS = 0.5
"""So long a thread is waited for that should wait for another one."""


def invoiced(world: World) -> tuple[Broker, Channel, Channel]:
    """Open a channel whose consumer bills each order, and another one of its connection."""
    broker = Broker(world)
    channel = broker.channel()

    def bill(order: Dispatch) -> None:
        channel.send(broker.bills.name, rows(10 * order.message["n"]))
        channel.ack(order.tag)

    channel.consume(broker.orders.name, bill)
    return broker, channel, channel._connection.channel()


@in_memory
def test_a_commit_waits_for_what_a_consumer_sends_in_another_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, channel, other = invoiced(world)
    other.send(broker.orders.name, rows(1))
    staging, go_on = threading.Event(), threading.Event()
    payload, bills = client_of(broker.bills).store.payload, broker.bills.info.payload_id
    stage = payload.stage

    def slow(send: Any, given: Any) -> Any:
        if send.payload_id == bills:
            staging.set()
            assert go_on.wait(60)
        return stage(send, given)

    monkeypatch.setattr(payload, "stage", slow)
    sending = threading.Thread(target=other.send, args=(broker.orders.name, rows(2)))
    sending.start()
    assert staging.wait(60)
    committing = threading.Thread(target=channel.commit)
    committing.start()
    committing.join(BRIEFLY_SECONDS)
    go_on.set()
    sending.join()
    committing.join()
    channel.commit()
    assert broker.waiting(broker.bills) == [10, 20]
    assert broker.depths()[0] == broker.orders.in_flight() == 0


@in_memory
def test_what_is_acknowledged_in_another_thread_during_a_commit_is_of_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, channel, other = invoiced(world)
    other.send(broker.orders.name, rows(1))
    accept, threads = Batch.accept, list[threading.Thread]()

    def meanwhile(*given: Any, **how: Any) -> Any:
        monkeypatch.setattr(Batch, "accept", accept)
        threads.append(threading.Thread(target=other.send, args=(broker.orders.name, rows(2))))
        threads[0].start()
        threads[0].join(BRIEFLY_SECONDS)
        return accept(*given, **how)

    monkeypatch.setattr(Batch, "accept", meanwhile)
    assert channel.commit().count == 2
    threads[0].join()
    assert channel.commit().count == 2
    assert broker.waiting(broker.bills) == [10, 20]
    assert channel.dispatch_list == [] and broker.orders.in_flight() == 0


@rule("S0-01", "S0-03")
@in_memory
def test_what_was_staged_is_in_the_list_though_its_send_was_interrupted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit would send it: who looks sees so."""
    broker = Broker(world)
    channel = broker.channel()
    send = Queue.send

    def interrupts(*given: Any, **how: Any) -> Any:
        send(*given, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "send", interrupts)
        with pytest.raises(KeyboardInterrupt):
            channel.send(broker.bills.name, rows(1, 2))
    assert [(one.queue, one.count) for one in channel.transact_list] == [(broker.bills.name, 2)]
    assert channel.commit().count == 2
    assert broker.waiting(broker.bills) == [1, 2]


@in_memory
def test_what_other_threads_open_and_wait_for_meanwhile_stays(world: World) -> None:
    broker = Broker(world)
    connection = Connection(world.manager())
    opened = list[Channel]()

    class Meanwhile(list[Any]):
        """Lets another thread act once, where Python may change threads."""

        def __init__(self, act: Any) -> None:
            super().__init__()
            self.act: Any = act

        def _once(self) -> None:
            act, self.act = self.act, None
            if act is not None:
                other = threading.Thread(target=act)
                other.start()
                other.join()

        def append(self, one: Any) -> None:
            super().append(one)
            self._once()

        def __iter__(self) -> Any:
            yield from list(super().__iter__())
            self._once()

    connection._channels = Meanwhile(lambda: opened.append(connection.channel()))
    channel = connection.channel()
    assert channel is not opened[0]
    connection.consumers = Meanwhile(None)
    number = channel.consume(broker.orders.name, print).consumer
    heard = list[int]()
    connection.consumers.act = lambda: opened[0].consume(
        broker.orders.name, lambda one: heard.append(one.message["n"])
    )
    assert number is not None and channel.cancel(number).status is Status.OK
    channel.send(broker.orders.name, rows(1), transacted=False)
    assert heard == [1]
    connection.close()
    assert connection._channels == [] and broker.waiting() == [1]


@rule("S0-17")
def test_consumers_are_served_though_a_send_before_was_interrupted_anywhere() -> None:
    def begun() -> tuple[Broker, Channel, list[int]]:
        broker = Broker(World(MemoryStore()))
        connection, heard = Connection(broker.world.manager()), list[int]()
        connection.channel().consume(broker.orders.name, lambda one: heard.append(one.message["n"]))
        return broker, connection.channel(), heard

    for _ in range(2):  # the first one looks at more
        broker, channel, heard = begun()
        with Interrupt() as counted:
            channel.send(broker.orders.name, rows(1))
    found = [nth for nth, place in enumerate(counted.places, 1) if "openamq" in place]
    assert len(found) > 20
    for nth in found:
        broker, channel, heard = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as interrupt:
            channel.send(broker.orders.name, rows(1))
        channel.send(broker.orders.name, rows(2))
        assert 2 in heard, interrupt.at


@rule("S0-10", "S0-12")
@in_memory
@pytest.mark.parametrize("how", ["ack", "range", "reject", "unget", "another thread"])
def test_no_call_settles_what_a_consumer_was_not_called_with_yet(world: World, how: str) -> None:
    """Who acknowledges all that it has got does not acknowledge what it is about to get."""
    broker = Broker(world, dead_letter=True)
    broker.orders.send(rows(1, 2, 3))
    channel, heard = broker.channel(transacted=False), list[int]()
    calls: dict[str, Any] = {
        "ack": channel.ack,
        "range": lambda: channel.ack(range(1, 100)),
        "reject": channel.reject,
        "unget": lambda: channel.unget(3),
        "another thread": channel.ack,
    }

    def deliver(dispatch: Dispatch) -> None:
        heard.append(dispatch.message["n"])
        listed = [one.tag for one in channel.dispatch_list]
        assert listed == (list(range(1, len(heard) + 1)) if how == "unget" else [dispatch.tag])
        if how == "another thread":
            other = threading.Thread(target=channel.ack)
            other.start()
            other.join()
        elif how != "unget" or len(heard) < 3:
            calls[how]()

    assert channel.consume(broker.orders.name, deliver).count == 3
    assert heard == [1, 2, 3]
    assert len(channel.dispatch_list) == (3 if how == "unget" else 0)
    assert broker.orders.depth() == 0


@in_memory
def test_what_an_interrupted_consumer_was_not_called_with_is_in_the_list(world: World) -> None:
    broker = Broker(world)
    broker.orders.send(rows(1, 2, 3))
    channel = broker.channel(transacted=False)

    def interrupts(dispatch: Dispatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        channel.consume(broker.orders.name, interrupts)
    assert carried(channel.dispatch_list) == [1, 2, 3]
    assert channel.ack().count == 3
