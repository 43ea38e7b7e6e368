"""Several threads of one manager: a heartbeat is one, whoever settles is another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, rows
from tests.inside import client_of, lease_over
from tests.locks import in_another_thread
from txnqueue import QueueManager
from txnqueue.client.states import TransientStates
from txnqueue.errors import AlreadySettled, Busy, LeaseLost, TransactionFinished
from txnqueue.messages import settlement
from txnqueue.messages.selector import Selector
from txnqueue.storage.payload import arrangement
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import memory_manager, plain_schema
from txnqueue.transactions.transient import TransientWork


class Watched:
    """A journal that tells of its calls before they return."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.after_read: Callable[..., Any] = lambda *_: None
        self.after_append: Callable[..., Any] = lambda *_: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, shards: Any, after: Any = -1, upto: int | None = None) -> Any:
        found = self.inner.read(shards, after, upto)
        self.after_read(shards)
        return found

    def append(self, units: Any, metadata: Any) -> Any:
        answer = self.inner.append(units, metadata)
        self.after_append()
        return answer


@pytest.fixture
def world() -> World:
    return World(MemoryStore())


@pytest.fixture
def journal(world: World) -> Watched:
    return Watched(world.store.journal)


@pytest.fixture
def manager(world: World, journal: Any) -> QueueManager:
    store = MemoryStore()
    store.payload, store.journal = world.store.payload, journal
    return QueueManager(None, store=store, runtime=world.runtime("threads"))


@pytest.mark.parametrize("settle", ["at once", "in a transaction", "extend", "receive", "purge"])
def test_while_a_thread_folds_a_queue_no_other_one_does(
    world: World, manager: QueueManager, journal: Any, settle: Any
) -> None:
    """What two threads have read at once would be applied twice: then messages stand twice."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1, 2, 3))
    batch = orders.receive(1)
    lock, seen = client_of(manager).lock, []

    def free() -> Any:
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    def look(shards: Any) -> None:
        if any(shard.startswith("lane/") for shard in shards):
            seen.append(in_another_thread(free))

    journal.after_read = look
    if settle == "at once":
        batch.accept()
    elif settle == "in a transaction":
        with manager.transaction() as tx:
            batch.accept(transaction=tx)
    elif settle == "extend":
        batch.extend_lease(10)
    elif settle == "receive":
        assert numbers(orders.receive(1)) == [2]
    else:
        assert orders.purge() == 2
    journal.after_read = lambda shards: None
    # A read of the land that looks for the append's fate is no fold: none is made here.
    assert seen and not any(seen)


@pytest.mark.parametrize("work", ["send", "receive", "move", "accept"])
def test_work_that_comes_too_late_for_the_commit_of_another_thread_is_refused(
    world: World, manager: QueueManager, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Nobody would ever do it, and its caller would not know."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    bills = manager.create_queue("bills", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    held = orders.receive(1) if work == "accept" else None
    tx = manager.transaction()
    bills.send(rows(7), transaction=tx)
    store = client_of(manager).store
    steps = {"send": (store.payload, "stage"), "accept": (settlement.Account, "chosen")}
    part, name = steps.get(work, (store.journal, "append"))
    act = getattr(part, name)

    def after_the_commit(*given: Any, **how: Any) -> Any:
        monkeypatch.setattr(part, name, act)
        in_another_thread(tx.commit)
        return act(*given, **how)

    monkeypatch.setattr(part, name, after_the_commit)
    with pytest.raises(TransactionFinished, match="committed and takes no more work"):
        if work == "send":
            bills.send(rows(8), transaction=tx)
        elif work == "receive":
            orders.receive(1, transaction=tx)
        elif held is not None:
            held.accept(transaction=tx)
        else:
            orders.move("bills", transaction=tx)
    assert [row["n"] for row in bills.peek_messages(9)] == [7]
    world.clock.advance(10 * 86_400)
    assert numbers(orders.receive()) == [1], "what was acquired comes back"


@pytest.mark.parametrize("work", ["send", "receive", "accept"])
def test_work_that_comes_while_another_thread_commits_in_memory_is_in_it_or_is_refused(
    world: World, manager: QueueManager, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """The commit looks into the journal first; then it would leave out what is to be kept."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    bills = manager.create_queue("bills", "n long, key string", dead_letter=False)
    orders.send(rows(1, 2))
    held = orders.receive(1)
    tx = manager.transaction("named")
    bills.send(rows(7), durable=False, transaction=tx)
    look = TransientWork._look
    acts: dict[str, Callable[[], Any]] = {
        "send": lambda: bills.send(rows(8), transaction=tx),
        "receive": lambda: orders.receive(1, transaction=tx),
        "accept": lambda: held.accept(transaction=tx),
    }

    def refused() -> str:
        with pytest.raises(TransactionFinished) as caught:
            acts[work]()
        return str(caught.value)

    def meanwhile(self: Any) -> None:
        monkeypatch.setattr(TransientWork, "_look", look)
        assert "takes no more work" in in_another_thread(refused)
        look(self)

    monkeypatch.setattr(TransientWork, "_look", meanwhile)
    tx.commit()
    assert TransientWork._look is look
    assert [row["n"] for row in bills.peek_messages(9)] == [7]
    world.clock.advance(10 * 86_400)
    assert sorted(numbers(orders.receive()) + numbers(orders.receive())) == [1, 2]


def test_a_commit_and_a_send_in_memory_do_not_wait_for_each_other(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each needs the transaction and the memory: both take them in one order."""
    bills = manager.create_queue("bills", "n long, key string", dead_letter=False)
    tx = manager.transaction("named")
    bills.send(rows(7), transaction=tx)
    memory = client_of(manager).store.transient.payload
    stage, told = memory.stage, list[Any]()
    committing, waits = threading.Thread(target=lambda: told.append(tx.commit())), threading.Event()
    prepare = TransientWork.prepare

    def prepared(self: Any) -> None:
        waits.set()
        prepare(self)

    def slowly(*given: Any) -> Any:
        committing.start()
        waits.wait(0.2)  # does not come if the commit waits for this send
        return stage(*given)

    monkeypatch.setattr(TransientWork, "prepare", prepared)
    monkeypatch.setattr(memory, "stage", slowly)
    sending = threading.Thread(
        target=lambda: bills.send(rows(8), durable=False, transaction=tx), daemon=True
    )
    committing.daemon = True
    sending.start()
    for thread in (sending, committing):
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(row["n"] for row in bills.peek_messages(9)) == [7, 8]
    assert len(told) == 1


@pytest.mark.parametrize("settle", ["at once", "in a transaction"])
def test_a_beat_between_the_settlement_and_its_reply_is_no_lost_lease(
    world: World, manager: QueueManager, journal: Any, settle: Any
) -> None:
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    batch = orders.receive()
    with batch.heartbeat(10, every_seconds=0.001) as beating:

        def beat_on() -> None:
            here = threading.current_thread() is beating._thread
            if not here and world.manager("b").queue("orders").in_flight() == 0:
                beating._thread.join()  # it meets a claim that has ended, and stops

        journal.after_append = beat_on
        if settle == "at once":
            batch.accept()
        else:
            with manager.transaction() as tx:
                batch.accept(transaction=tx)
        assert not beating.lost


def test_a_beat_between_the_settlement_of_a_part_and_its_reply_holds_the_rest(
    world: World, manager: QueueManager, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = manager.create_queue("orders", "n long, key string", lanes=2, dead_letter=False)
    orders.send(rows(1, 2))
    batch = orders.receive()
    tries, extend = list[Any](), settlement.extend

    def counted(*given: Any) -> Any:
        try:
            return extend(*given)
        finally:
            tries.append(given)

    monkeypatch.setattr(settlement, "extend", counted)
    with batch.heartbeat(1_000, every_seconds=0.001) as beating:

        def beat_on(more: int = 2) -> None:
            before = len(tries)
            while beating._thread.is_alive() and len(tries) < before + more:
                threading.Event().wait(0.001)

        def landed() -> None:
            if threading.current_thread() is not beating._thread:
                beat_on()  # it meets a claim that has ended

        part = batch.messages()[:1]
        journal.after_append = landed
        assert batch.accept(matching=part) == 1
        journal.after_append = lambda: None
        assert not beating.lost
        world.clock.advance(900)
        beat_on()
    world.clock.advance(900)
    assert len(world.manager("b").queue("orders").receive()) == 0
    assert batch.accept() == 1


def test_a_beat_that_fails_tells_whoever_still_has_messages(
    world: World, manager: QueueManager
) -> None:
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1, 2))
    batch = orders.receive()
    batch.accept(matching=batch.messages()[:1])
    world.clock.advance(400)
    assert numbers(world.manager("b").queue("orders").receive()) == [2]
    with pytest.raises(LeaseLost), batch.heartbeat(10, every_seconds=0.001) as beating:
        beating._thread.join()
        assert beating.lost


def test_a_beat_that_meets_what_was_settled_meanwhile_does_not_stop_for_the_rest(
    world: World, manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has listed both claims, and the block settles the first one before it extends them."""
    orders = manager.create_queue("orders", "n long, key string", lanes=2, dead_letter=False)
    orders.send(rows(1, 2))
    batch = orders.receive()
    listed, settled, extend = threading.Event(), threading.Event(), settlement.extend

    def late(*given: Any) -> Any:
        if not listed.is_set():
            listed.set()
            assert settled.wait(30)
        return extend(*given)

    monkeypatch.setattr(settlement, "extend", late)
    with batch.heartbeat(1_000, every_seconds=0.001) as beating:
        assert listed.wait(30)
        assert batch.accept(matching=batch.messages()[:1]) == 1
        settled.set()
        while not beating.beats:
            assert beating._thread.is_alive()
            threading.Event().wait(0.001)
        assert not beating.lost
    world.clock.advance(900)
    assert len(world.manager("b").queue("orders").receive()) == 0
    assert batch.accept() == 1


def test_a_beat_that_fails_does_not_end_for_the_lease_of_what_was_settled(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """The lease of the part that was settled is not extended any more, and ends."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    orders.send(rows(2), durable=False)
    batch = orders.receive(lease_seconds=1_000)
    (transient,) = (one for one in batch.messages() if one["n"] == 2)
    assert batch.accept(matching=[transient]) == 1
    world.clock.advance(900)
    with batch.heartbeat(1_000, every_seconds=0.001) as beating:
        while not beating.beats:
            threading.Event().wait(0.001)
        world.clock.advance(200)
        left = failing(journal, Busy("others were faster"))
        before = beating.beats
        while left or beating.beats == before:
            assert beating._thread.is_alive()
            threading.Event().wait(0.001)
        assert not beating.lost
    assert batch.accept() == 1


def soon(happened: Any) -> None:
    """Wait until something has happened."""
    for _ in range(20_000):
        if happened():
            return
        threading.Event().wait(0.001)
    pytest.fail("it did not happen")


def test_a_heartbeat_holds_the_lanes_that_are_not_lost(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """It extended none of them any more, so that others got all, while a handler worked on."""
    orders = manager.create_queue("orders", "n long, key string", lanes=3, dead_letter=False)
    orders.send(rows(1, 2, 3))
    batch = orders.receive(lease_seconds=100)
    world.clock.advance(101)
    for other in "bc":
        assert len(world.manager(other).queue("orders").receive(1)) == 1
    with pytest.raises(LeaseLost), batch.heartbeat(1_000, every_seconds=0.001) as beating:
        soon(lambda: beating.beats)
        assert beating.lost
        left = failing(journal, OSError("no connection"))
        soon(lambda: not left)  # nor is the rest lost because the leases of those are over
        before = beating.beats
        soon(lambda: beating.beats > before)
        world.clock.advance(900)
        late = world.manager("d").queue("orders")
        assert sum(len(late.receive()) for _ in range(3)) == 2  # those of b and c
    with pytest.raises(LeaseLost):
        batch.extend_lease(1_000)


def failing(journal: Any, *errors: Any) -> Any:
    """Let the next appends of leases fail."""
    append, left = journal.append, list(errors)

    def flaky(units: Any, metadata: Any) -> Any:
        if metadata["operation"] == "extend lease" and left:
            raise left.pop(0)
        return append(units, metadata)

    journal.append = flaky
    return left


def test_a_heartbeat_goes_on_after_an_error_that_passes(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """One beat that fails is no lost lease: the next ones hold the messages."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    batch = orders.receive(lease_seconds=50)
    left = failing(journal, Busy("others were faster"), OSError("no connection"))
    with batch.heartbeat(1_000, every_seconds=0.001) as beating:
        while not beating.beats:
            assert not beating.lost
            threading.Event().wait(0.001)
    assert left == []
    world.clock.advance(900)
    assert len(world.manager("b").queue("orders").receive()) == 0
    assert batch.accept() == 1


def test_a_heartbeat_that_fails_until_the_lease_is_over_has_lost_it(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    batch = orders.receive(lease_seconds=50)
    failing(journal, *[OSError("no connection")] * 100_000)
    with (
        pytest.raises(LeaseLost, match="could not be extended") as told,
        batch.heartbeat(50, every_seconds=0.001) as beating,
    ):
        beating._thread.join(10)  # the tries take time by the world's clock
        assert beating.lost and lease_over(batch)
    assert told.value.__cause__ is not None


def test_a_heartbeat_that_failed_last_does_not_fail_the_block(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """The messages are held still: whoever settles them is told if that changes."""
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))
    batch = orders.receive(lease_seconds=500_000)
    left = failing(journal, *[OSError("no connection")] * 100_000)
    with batch.heartbeat(50, every_seconds=0.001) as beating:
        while len(left) > 99_990:
            threading.Event().wait(0.001)
        assert not beating.lost
    left.clear()
    assert batch.accept() == 1


def all_places(parts: Any) -> list[Any]:
    """Name all messages of some parts, as a selector that wants each of them."""
    return [
        (part.send_id, offset, offset)
        for part in parts
        for first, last in part.ranges
        for offset in range(first, last + 1)
    ]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("act", ["receive", "peek", "purge", "move", "move inside", "drain"])
def test_no_lock_is_held_while_a_selector_looks(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch, act: Any, durable: Any
) -> None:
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False, lanes=2)
    done = manager.create_queue("done", "n long, key string", dead_letter=False)
    for n in (1, 2, 3):
        orders.send(rows(n), durable=durable)
    client, looks = client_of(manager), []

    def free(lock: Any) -> Any:
        taken = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    def places(selector: Any, parts: Any) -> Any:
        assert in_another_thread(lambda: free(client.lock) and free(client.transient.lock))
        looks.extend(all_places(parts))
        return all_places(parts)

    monkeypatch.setattr(Selector, "_ranges", places)
    if act == "receive":
        assert sorted(numbers(orders.receive(where="n > 0"))) == [1, 2, 3]
    elif act == "peek":
        assert len(orders.peek_messages(where="n > 0")) == 3
    elif act == "purge":
        assert orders.purge(where="n > 0") == 3
    elif act == "move":
        assert orders.move(done, where="n > 0") == 3
    elif act == "move inside":
        with manager.transaction() as tx:
            assert orders.move(done, where="n > 0", transaction=tx) == 3
        assert done.depth() == 3
    else:
        assert orders.drain(lambda batch, tx: None, where="n > 0").messages == 3
    assert sorted(looks) == sorted(set(looks)), "each message is looked at once in a call"


def test_what_comes_while_a_selector_looks_is_left_for_the_next_receive(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False)
    orders.send(rows(1))

    def places(selector: Any, parts: Any) -> Any:
        orders.send(rows(2))  # another one at each look: a receive ends all the same
        return all_places(parts)

    monkeypatch.setattr(Selector, "_ranges", places)
    assert numbers(orders.receive(where="n > 0")) == [1]
    assert orders.depth() == 1


def test_no_lock_is_held_while_keys_and_ids_are_read_from_the_payload(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    once: dict[str, Any] = {"message_id": "n", "duplicate_window_seconds": 60}
    orders = manager.create_queue("orders", "n long, key string", dead_letter=False, **once)
    grouped = manager.create_queue(
        "grouped", "n long, key string", group_by="key", lanes=4, dead_letter=False
    )
    client, reads = client_of(manager), []
    payload = client.store.payload

    def watched(name: str, plain: Any) -> Any:
        def read(*given: Any) -> Any:
            reads.append(name)
            taken = in_another_thread(lambda: client.lock.acquire(False) and client.lock.release())
            assert taken is None, "the lock was free"
            return plain(*given)

        return read

    for name in ("texts", "lanes"):
        monkeypatch.setattr(payload, name, watched(name, getattr(payload, name)))
    monkeypatch.setattr(arrangement, "IDS_IN_ENTRY_MAX", 0)
    orders.send([*rows(1, 1, key="a"), *rows(2, key="b")])
    assert orders.move(grouped) == 2
    assert set(reads) == {"texts", "lanes"}
    assert sorted(numbers(grouped.receive())) == [1, 2]


@in_memory
def test_two_threads_that_look_into_the_memory_first_share_one_view(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each view would open the consumer id anew, and take over what the other one holds."""
    queue = world.queue()
    queue.send(rows(1), durable=False)
    taken = world.open(queue, "b")
    client, found, made = client_of(taken), list[Any](), TransientStates.__init__

    def meanwhile(self: Any, *given: Any) -> None:
        monkeypatch.setattr(TransientStates, "__init__", made)
        other = threading.Thread(target=lambda: found.append(taken.receive()))
        other.start()
        other.join()
        made(self, *given)

    monkeypatch.setattr(TransientStates, "__init__", meanwhile)
    client.transient  # noqa: B018 - the first look makes the view
    assert numbers(found[0]) == [1]
    queue.send(rows(2), durable=False)
    assert numbers(taken.receive()) == [2]
    assert found[0].accept() == 1


@pytest.mark.parametrize("inside", [False, True])
def test_threads_that_settle_different_messages_of_a_batch_settle_all(
    world: World, manager: QueueManager, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Each of them writes down what it has settled while another one does."""
    queue = manager.queue(world.queue().name)
    queue.send(rows(*range(4)))
    tx = manager.transaction() if inside else None
    batch = queue.receive(transaction=tx)
    first, second, *_ = batch.messages()
    without, threads = settlement._without, list[threading.Thread]()

    def interleaved(left: Any, said: Any) -> Any:
        said = list(said)
        if said and not threads:  # this thread has read what is left, and has not written it yet
            other = threading.Thread(target=lambda: batch.accept(matching=[second]))
            threads.append(other)
            other.start()
            other.join(0.5)  # it comes to its end at once, or when this one has
        return without(left, said)

    monkeypatch.setattr(settlement, "_without", interleaved)
    assert batch.accept(matching=[first]) == 1
    for other in threads:
        other.join()
    assert threads
    assert batch.accept() == 2
    if tx is not None:
        tx.commit()
    assert (queue.depth(), queue.in_flight(), batch.holds) == (0, 0, False)


@pytest.mark.parametrize("settle", ["in its transaction", "in another one", "at once"])
def test_of_two_threads_that_settle_one_message_one_is_told_that_it_did_not(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch, settle: str
) -> None:
    """Whoever gets an answer may rely on it, and a message has one end."""
    orders = manager.create_queue("orders", "n long, key string")
    orders.send(rows(1, 2))
    tx = manager.transaction()
    batch = orders.receive(transaction=tx if settle == "in its transaction" else None)
    first, second = batch.messages()
    into = None if settle == "at once" else tx
    missing = settlement.Account.missing

    def while_the_other_one_settles(*given: Any) -> Any:
        monkeypatch.setattr(settlement.Account, "missing", missing)
        in_another_thread(lambda: batch.reject(matching=[first], transaction=into))
        return missing(*given)

    monkeypatch.setattr(settlement.Account, "missing", while_the_other_one_settles)
    with pytest.raises(AlreadySettled, match="Another thread has settled"):
        batch.accept(matching=[first], transaction=tx)
    assert batch.accept(matching=[second], transaction=tx) == 1
    tx.commit()
    assert (orders.depth(), orders.in_flight(), manager.queue("orders.dead").depth()) == (0, 0, 1)


def test_changes_of_tables_by_two_threads_have_different_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table takes a number once: a second change with it would be taken for applied."""
    store = MemoryStore()
    manager = memory_manager(store)
    manager.create_queue("orders", "n long")
    tables = store.tables
    tables.create("gold", plain_schema("n long, _transaction_id string"))
    check = tables.check
    with manager.transaction() as tx:

        def while_the_other_one_appends(*given: Any) -> None:
            monkeypatch.setattr(tables, "check", check)
            in_another_thread(lambda: tx.table("gold", lineage=True).append([{"n": 1}]))
            check(*given)

        monkeypatch.setattr(tables, "check", while_the_other_one_appends)
        tx.table("gold").append([{"n": 2}])
    assert tx.receipt is not None and tx.receipt.applied
    assert len(tables.history("gold", 0)) == 2
