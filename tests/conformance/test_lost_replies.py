"""What a client is told when replies get lost: committed, surely not, or in doubt; never wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.conformance.conftest import SCHEMA, World, numbers, pick, rows
from tests.inside import attempt_id, client_of, lease_over
from txnqueue import Batch, Queue, QueueManager, Status
from txnqueue.core import model
from txnqueue.errors import (
    AlreadySettled,
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.messages import removal
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import plain_schema


class UnluckyJournal:
    """The shared journal as one client sees it: its next appends and reads go wrong.

    lost: it landed, and no reply came · late: it lands while the client waits · later: it
    lands so too, and the read after it fails · conflict: Delta says so, and nothing landed ·
    silence: it landed, no reply came, and the next read fails too · nothing: nothing landed,
    no reply came, and the next read fails too · asleep: so too, and it lands by ``land_late``.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.faults: list[Any] = []
        self.late: list[Any] = []
        self.deaf = self.deaf_later = False
        self.reads_left = -1
        self.meanwhile = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        self.reads_left -= 1
        if self.reads_left == 0:
            self.land_late()
        if self.deaf:
            self.deaf = False
            raise ConnectionError("no answer")
        return self.inner.read(*args, **kwargs)

    def append(self, units: Any, metadata: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        if fault == "conflict":
            raise AppendConflict
        if fault in ("late", "later", "asleep"):
            self.late.append((units, metadata))
        elif fault != "nothing":
            answer = self.inner.append(units, metadata)
        self.deaf = fault in ("silence", "nothing", "asleep")
        self.deaf_later = fault == "later"
        if fault is not None:
            raise ConnectionError("no reply")
        return answer

    def wait(self) -> None:
        self.deaf, self.deaf_later = self.deaf_later, False
        if self.reads_left < 0:
            self.land_late()
        self.meanwhile()

    def land_late(self) -> None:
        while self.late:
            self.inner.append(*self.late.pop())


@pytest.fixture
def world() -> World:
    return World(MemoryStore())


@pytest.fixture
def journal(world: World) -> UnluckyJournal:
    return UnluckyJournal(world.store.journal)


@pytest.fixture
def manager(world: World, journal: Any) -> QueueManager:
    """The unlucky client; while it waits, what is late lands."""
    store = MemoryStore()
    store.payload, store.journal, store.tables = world.store.payload, journal, world.store.tables
    made = world.runtime("unlucky")
    made.sleep = lambda seconds: journal.wait()
    return QueueManager(None, store=store, runtime=made)


def test_a_lost_reply_is_no_failure(world: World, manager: QueueManager, journal: Any) -> None:
    orders = manager.queue(world.queue().name)
    for fault in ("lost", "late"):
        journal.faults = [fault]
        orders.send(rows(1))
        journal.faults = [fault]
        batch = orders.receive()
        journal.faults = [fault]
        assert batch.accept() == len(batch) == 1
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def test_a_commit_that_nobody_answered_is_in_doubt_and_its_id_tells(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    for fault, status in [("silence", Status.COMMITTED), ("nothing", Status.UNDECIDED)]:
        journal.faults = [fault]
        with pytest.raises(TransactionUnknown) as caught:
            orders.send(rows(1))
        assert manager.outcome(caught.value.transaction_id).status is status
    assert orders.depth() == 1


@pytest.mark.parametrize("fault", ["silence", "asleep", "nothing"])
@pytest.mark.parametrize("inside", [True, False])
def test_what_lies_behind_a_receive_in_doubt_in_an_ordered_lane_waits_for_it(
    world: World, manager: QueueManager, journal: Any, inside: bool, fault: str
) -> None:
    """Nobody was given its messages; those behind them must not be handled first."""
    queue = world.queue(ordered=True)
    orders = manager.queue(queue.name)
    orders.send(rows(1, 2, 3, 4))
    tx = manager.transaction() if inside else None
    if tx is not None:
        assert len(orders.receive(1, transaction=tx)) == 1
    journal.faults = [fault]
    with pytest.raises(TransactionUnknown):
        orders.receive(1, transaction=tx)
    if fault == "asleep":  # it lands now, or what is received here has barred it
        journal.land_late()
    first = 2 if inside else 1
    got = [*numbers(orders.receive(1, transaction=tx)), *numbers(orders.receive(1, transaction=tx))]
    # What did not land holds nothing up: whoever is given one message gets the next one, too.
    assert got == ([first, first + 1] if fault == "nothing" else [])
    if tx is not None:
        tx.commit()
        assert orders.depth() + orders.in_flight() == 5 - first - len(got)
    world.lease_over()
    left = [n for _ in range(4) for n in numbers(orders.receive(4))]
    assert sorted({*got, *left}) == list(range(first, 5)) and left == sorted(left)


def test_what_another_thread_is_given_is_not_missed_by_who_asked_for_it_too(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """Both planned the same claim; one got it, and the other one got nothing, and does not know."""
    queue = world.queue(ordered=True)
    orders = manager.queue(queue.name)
    orders.send(rows(1, 2, 3))
    journal.faults, got = ["conflict", None, "nothing"], list[int]()
    journal.meanwhile = lambda: got.extend(numbers(orders.receive(1))) if not got else None
    with pytest.raises(TransactionUnknown):
        orders.receive(1)
    assert [*got, *numbers(orders.receive(1))] == [1, 2]


def test_a_move_in_doubt_is_not_overtaken_in_an_ordered_lane(
    world: World, manager: QueueManager, journal: Any
) -> None:
    queue, other = world.queue(ordered=True), world.queue("other")
    orders = manager.queue(queue.name)
    orders.send(rows(1, 2))
    with manager.transaction() as tx:
        journal.faults = ["silence"]
        with pytest.raises(TransactionUnknown):
            orders.move(other.name, limit=1, transaction=tx)
        assert numbers(orders.receive(1, transaction=tx)) == []
    assert numbers(orders.receive(2)) == [1, 2]


def received(world: World, manager: QueueManager, count: int = 1) -> tuple[Queue, Batch]:
    """Send so many messages, and receive them outside a transaction."""
    orders = manager.queue(world.queue().name)
    orders.send(rows(*range(1, count + 1)))
    return orders, orders.receive()


def test_a_settlement_in_doubt_can_be_asked_about_too(
    world: World, manager: QueueManager, journal: Any
) -> None:
    _, batch = received(world, manager)
    journal.faults = ["silence"]
    with pytest.raises(TransactionUnknown) as caught:
        batch.accept()
    assert manager.outcome(caught.value.transaction_id).status is Status.COMMITTED


def settlements(world: World) -> list[str]:
    """List the kinds of all settlements in the journal."""
    entries = [entry for landed, _ in world.store.journal.commits for entry in landed]
    return [entry.kind for entry in entries if entry.is_settlement]


@pytest.mark.parametrize("fault", ["silence", "nothing", "later", "asleep"])
@pytest.mark.parametrize("part", [False, True])
def test_a_settlement_in_doubt_is_repeated_and_happens_once(
    world: World, manager: QueueManager, journal: Any, fault: str, part: bool
) -> None:
    """Told that it was in doubt, the holder tried again, and heard that its lease was lost."""
    orders, batch = received(world, manager, 2)
    named = batch.messages()[:1] if part else None
    journal.faults = [fault]
    with pytest.raises(TransactionUnknown):
        batch.accept(matching=named)
    journal.land_late()
    assert batch.accept(matching=named) == (1 if part else 2)
    assert settlements(world) == [model.ACCEPTED]
    with pytest.raises(AlreadySettled):
        batch.accept(matching=named)
    assert orders.in_flight() == (1 if part else 0)
    assert not part or batch.release() == 1


@pytest.mark.parametrize("fault", ["silence", "nothing"])
def test_another_settlement_than_the_one_in_doubt_is_told_what_came_of_that(
    world: World, manager: QueueManager, journal: Any, fault: str
) -> None:
    _, batch = received(world, manager)
    journal.faults = [fault]
    with pytest.raises(TransactionUnknown):
        batch.accept()
    if fault == "silence":
        with pytest.raises(AlreadySettled):
            batch.release()
    else:
        assert batch.release() == 1
    assert settlements(world) == [model.ACCEPTED if fault == "silence" else model.RELEASED]


def test_what_others_have_settled_is_not_ones_own(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders, batch = received(world, manager)
    journal.faults = ["nothing"]
    with pytest.raises(TransactionUnknown):
        batch.accept()
    world.lease_over()
    assert world.open(orders, "b").receive().accept() == 1
    for _ in range(2):
        with pytest.raises(LeaseLost):
            batch.accept()
    assert settlements(world) == [model.ACCEPTED]


def test_a_rollback_settles_a_commit_in_doubt(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """Once it is written, the lost commit cannot land any more."""
    orders = manager.queue(world.queue().name)
    tx = manager.transaction()
    orders.send(rows(1), transaction=tx)
    journal.faults = ["nothing"]
    with pytest.raises(TransactionUnknown):
        tx.commit()
    assert tx.status is Status.UNKNOWN
    tx.rollback()
    assert (tx.status, manager.outcome(tx.id).status) == (Status.ROLLED_BACK, Status.ROLLED_BACK)
    assert orders.depth() == 0


def test_a_rollback_of_what_was_committed_after_all_is_refused(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    tx = manager.transaction()
    orders.send(rows(1), transaction=tx)
    journal.faults = ["silence"]
    with pytest.raises(TransactionUnknown):
        tx.commit()
    with pytest.raises(TransactionFinished):
        tx.rollback()


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("lands", ["before", "after", "never"])
def test_after_an_interrupted_commit_nothing_is_added_that_it_would_not_name(
    world: World, manager: QueueManager, journal: Any, lands: Any, mixed: Any
) -> None:
    orders = manager.queue(world.queue().name)
    orders.send(rows(5))
    tx = manager.transaction()
    batch = orders.receive(transaction=tx)
    orders.send(rows(1), transaction=tx)
    if mixed:
        orders.send(rows(3), transaction=tx, durable=False)
    append, on_its_way = journal.append, []

    def interrupted(*asked: Any) -> None:
        journal.append = append
        on_its_way.append(asked)
        raise KeyboardInterrupt

    journal.append = interrupted
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    if lands == "before":
        append(*on_its_way.pop())
    for work in (
        lambda: orders.send(rows(2), transaction=tx),
        lambda: orders.receive(transaction=tx),
        lambda: batch.release(transaction=tx),
    ):
        with pytest.raises(TransactionFinished, match="commit it again, or roll it back"):
            work()
    if lands == "after":
        append(*on_its_way.pop())
    assert tx.commit() == manager.outcome(tx.id).receipt
    if on_its_way:
        assert append(*on_its_way.pop()).won == (False,)
    assert sorted(numbers(orders.peek_messages())) == ([1, 3] if mixed else [1])
    assert orders.in_flight() == 0


def test_a_rollback_of_what_was_prepared_after_all_rolls_it_back(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    tx = manager.transaction()
    orders.send(rows(1), transaction=tx)
    journal.faults = ["silence"]
    with pytest.raises(TransactionUnknown):
        tx.prepare()
    tx.rollback()
    assert manager.outcome(tx.id).status is Status.ROLLED_BACK


def test_a_prepare_that_meets_conflicts_only_is_aborted_like_a_commit(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    tx = manager.transaction()
    orders.send(rows(1), transaction=tx)
    journal.faults = ["conflict"] * 12
    with pytest.raises(TransactionAborted):
        tx.prepare()
    assert tx.status is Status.ROLLED_BACK


def test_a_commit_that_meets_conflicts_only_is_aborted(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    journal.faults = ["conflict"] * 12
    with pytest.raises(TransactionAborted):
        orders.send(rows(1))
    assert orders.depth() == 0


def test_run_transaction_settles_what_is_in_doubt_before_it_tries_again(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)

    def run(fault: Any) -> int:
        ran: list[Any] = []

        def handler(tx: Any) -> None:
            tx.queue(orders.name).send(rows(len(ran)))
            journal.faults = [] if ran else [fault]
            ran.append(attempt_id(tx))

        manager.run_transaction(handler)
        return len(ran)

    assert (run("silence"), orders.depth()) == (1, 1)
    assert (run("nothing"), orders.depth()) == (2, 2)


def test_what_is_to_be_confirmed_is_confirmed_beside_a_settlement_that_was_in_doubt(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """The settlement that is found had landed before there was anything to confirm."""
    world.store.tables.create("gold", plain_schema("n long, key string"))
    orders = manager.queue(world.queue().name)
    orders.send(rows(1))
    batch = orders.receive()
    journal.faults = ["silence"]
    with pytest.raises(TransactionUnknown):
        batch.accept()
    with manager.transaction() as tx:
        tx.table("gold").append(rows(7))
    assert tx.receipt.applied
    assert batch.accept() == 1
    for n in (2, 3):
        orders.send(rows(n))
        confirmed = [e for e in journal.entries() if e.kind == model.CHANGE_APPLIED]
        assert len(confirmed) == 1


def test_a_part_that_was_rejected_late_is_rejected_once(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue(dead_letter=True).name)
    orders.send(rows(1, 2))
    batch = orders.receive()
    journal.faults = ["late"]
    assert batch.reject(matching=pick(batch, 1), reason="bad") == 1
    assert manager.queue(f"{orders.name}.dead").depth() == 1


def test_messages_that_were_claimed_late_are_not_left_lying(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    orders.send(rows(*range(4)))
    journal.faults = ["late"]
    batch = orders.receive(2)
    assert orders.in_flight() == len(batch) == 2
    assert numbers(batch) == [0, 1]


class Late:
    """A journal that lets the first append land at a later step of its client, without a reply."""

    def __init__(self, inner: Any, meanwhile: Any) -> None:
        self.inner, self.meanwhile, self.armed = inner, meanwhile, False
        self.late: tuple[Any, ...] | None = None
        self.steps_left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self) -> None:
        self.steps_left -= 1
        if self.late and self.steps_left == 0:
            self.land()

    def land(self) -> None:
        late, self.late = self.late or (), None
        with contextlib.suppress(AppendConflict):
            self.inner.append(*late)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        self.step()
        return self.inner.read(*args, **kwargs)

    def append(self, *args: Any) -> Any:
        if self.armed:
            self.armed, self.late = False, args
            self.meanwhile()
            raise ConnectionError("no reply")
        self.step()
        return self.inner.append(*args)


@pytest.mark.parametrize("call", ["receive", "receive inside", "move", "move inside"])
@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_try_that_lands_late_takes_no_more_than_was_asked_for(
    call: Any, steps: int, lanes: Any
) -> None:
    """What comes meanwhile stands in the lanes that are looked at first."""
    world = World(MemoryStore())
    created = world.queue(lanes=lanes, group_by="key")
    world.manager().create_queue("elsewhere", SCHEMA, dead_letter=False)
    turned = world.open(created, "b")

    def come() -> None:
        turned.send([{"n": 100 + n, "key": str(n)} for n in range(16)])

    journal = Late(world.store.journal, come)
    store: Any = MemoryStore()
    store.payload, store.journal, store.tables = world.store.payload, journal, world.store.tables
    runtime = world.runtime("late")
    runtime.sleep = lambda seconds: journal.step()
    manager = QueueManager(None, store=store, runtime=runtime)
    orders = manager.queue(created.name)
    created.send([{"n": 1, "key": "3"}, {"n": 2, "key": "3"}, {"n": 3, "key": "3"}])
    journal.armed, journal.steps_left = True, steps
    tx = manager.transaction() if call.endswith("inside") else None
    if call.startswith("receive"):
        found = len(orders.receive(2, transaction=tx))
    else:
        found = orders.move("elsewhere", limit=2, transaction=tx)
    if journal.late:
        journal.land()
    assert found == 2
    if call == "move":
        assert manager.queue("elsewhere").depth() == 2
    else:
        assert orders.in_flight() == 2


def test_a_read_that_fails_while_a_commit_is_in_doubt_leaves_it_in_doubt(
    world: World, manager: QueueManager, journal: Any
) -> None:
    """The try whose reply was lost may still land: that is no failure."""
    orders = manager.queue(world.queue().name)
    tx = manager.transaction()
    orders.send(rows(1), transaction=tx)
    journal.faults = ["later"]
    with pytest.raises(TransactionUnknown):
        tx.commit()
    assert manager.outcome(tx.id).status is Status.COMMITTED


def test_a_part_that_was_rejected_at_whatever_moment_is_rejected_once(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue(dead_letter=True).name)
    for reads in range(1, 8):
        orders.send(rows(1, 2))
        batch = orders.receive()
        journal.faults, journal.reads_left = ["late"], reads
        assert batch.reject(matching=pick(batch, 1), reason="bad") == 1
        journal.land_late()
        assert manager.queue(f"{orders.name}.dead").depth() == reads
        batch.accept()


def test_a_claim_that_was_over_by_the_time_it_is_known_is_not_in_the_batch(
    world: World, manager: QueueManager, journal: Any
) -> None:
    orders = manager.queue(world.queue().name)
    orders.send(rows(*range(4)))
    journal.faults, journal.meanwhile = ["late"], world.lease_over
    batch = orders.receive(2)
    assert numbers(batch) == [0, 1]  # it took over from itself
    assert batch.accept() == 2


@pytest.mark.parametrize("lane", ["another", "its own"])
def test_who_is_fenced_while_a_claim_is_in_doubt_is_told_whether_it_may_land(
    world: World, manager: QueueManager, journal: Any, lane: str
) -> None:
    """What fences it stands in another lane, and does not bar the claim."""
    created = world.queue(lanes=2, group_by="key")
    created.send([{"n": n, "key": str(n)} for n in range(8)])
    orders, heir = manager.queue(created.name), world.manager("unlucky").queue(created.name)
    client_of(heir)._turns = {created.info.queue_id: -1 if lane == "another" else 0}
    orders.receive(1)
    append, late = journal.append, []

    def silent(*args: Any) -> None:
        journal.append = append
        late.append(args)
        raise ConnectionError("no reply")

    journal.append = silent
    journal.meanwhile = lambda: heir.receive(1)
    with pytest.raises(TransactionUnknown if lane == "another" else LeaseLost):
        orders.receive(1)
    assert append(*late.pop()).won[0] is (lane == "another")


@pytest.mark.parametrize("what", ["purge", "move", "redrive", "move in a transaction"])
def test_what_takes_several_appends_goes_on_after_one_that_landed_late(
    world: World, manager: QueueManager, journal: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_MAX", 2)
    orders, other = (manager.queue(world.queue(word, lanes=1).name) for word in ("q", "other"))
    for n in (1, 2, 3):
        (other if what == "redrive" else orders).send(rows(n))
    if what == "redrive":
        other.move(orders)
    tx = manager.transaction()
    acts = {
        "purge": orders.purge,
        "move": lambda: orders.move(other),
        "redrive": orders.redrive,
        "move in a transaction": lambda: orders.move(other, transaction=tx),
    }
    journal.faults = ["late"]
    assert acts[what]() == 3 and not journal.faults
    tx.commit()
    assert (orders.depth(), other.depth()) == (0, 0 if what == "purge" else 3)
    assert manager.history.verify().ok


def test_a_lease_ends_when_the_extension_says_that_landed(
    world: World, manager: QueueManager, journal: Any
) -> None:
    _, batch = received(world, manager)
    journal.faults, journal.meanwhile = ["late"], lambda: world.clock.advance(50)
    batch.extend_lease(360)
    (extended,) = (
        entry
        for landed, _ in world.store.journal.commits
        for entry in landed
        if entry.kind == model.LEASE_EXTENDED
    )
    assert batch.held_until is not None
    assert batch.held_until.timestamp() * 1_000 == extended.body["deadline"]
    world.clock.advance(311)
    assert lease_over(batch)


def test_a_kept_lease_ends_as_the_commit_says_that_landed(
    world: World, manager: QueueManager, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted after it has landed, and called again much later."""
    orders = manager.queue(world.queue(lease_seconds=60).name)
    orders.send(rows(1))
    tx = manager.transaction()
    batch = orders.receive(transaction=tx)
    batch.keep()
    append = journal.append

    def interrupted(units: Any, metadata: Any) -> Any:
        append(units, metadata)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(journal, "append", interrupted)
        tx.commit()
    world.clock.advance(50)
    assert tx.commit() is not None
    kept = [e for landed, _ in world.store.journal.commits for e in landed if e.kind == model.KEPT]
    assert batch.held_until is not None
    assert [batch.held_until.timestamp() * 1_000] == [entry.body["deadline"] for entry in kept]
    world.clock.advance(11)
    assert lease_over(batch)


class Unanswered:
    """A journal whose appends get no reply, and whose tries can be landed afterwards."""

    def __init__(self, inner: Any, clock: Any) -> None:
        self.inner, self.clock = inner, clock
        self.tries: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, units: Any, metadata: Any) -> Any:
        self.clock.advance(1)
        self.tries.append((units, metadata))
        raise ConnectionError("no reply")


def in_doubt(world: World, queue: Any, call: str) -> tuple[str, Unanswered]:
    """Make a call whose tries all get no reply: the name that its error tells, and its tries."""
    queue.send(rows(1, 2, 3, 4))
    mine = world.open(queue, "b")
    held = mine.receive(1)
    store: Any = client_of(mine).store
    store.journal = journal = Unanswered(store.journal, world.clock)
    with pytest.raises(TransactionUnknown) as raised:
        if call == "receive":
            mine.receive(2)
        else:
            held.extend_lease(600)
    store.journal = journal.inner
    known_as = raised.value.transaction_id
    assert known_as is not None and str(raised.value).count(known_as) == 1
    return known_as, journal


@pytest.mark.parametrize("call", ["receive", "extend"])
@pytest.mark.parametrize("nth", [0, 1, -1])
def test_a_call_in_doubt_whose_deadline_moved_is_found_by_whichever_try_landed(
    call: str, nth: int
) -> None:
    """Each try has an id of its own, as its deadline is another one."""
    world = World(MemoryStore())
    known_as, journal = in_doubt(world, world.queue(lanes=3), call)
    operator = world.manager("operator")
    assert operator.outcome(known_as).status is Status.UNDECIDED
    assert len({units[0].append_id for units, _ in journal.tries}) > 2
    journal.inner.append(*journal.tries[nth])
    found = operator.outcome(known_as)
    assert found.status is Status.COMMITTED and found.receipt is not None
    landed = max(e.commit_seq for e in journal.inner.read_all().entries)
    assert found.receipt.commit_seq == landed
    # What an earlier version told is the last try alone.
    ids, _, shards = known_as.removeprefix("append:").partition("@")
    last = f"append:{ids.split(',')[-1]}@{shards.split(',')[-1]}"
    old = operator.outcome(last).status
    assert old is (Status.COMMITTED if nth == -1 else Status.UNDECIDED)


def test_a_try_that_landed_late_is_found_in_the_archive_too() -> None:
    world = World(MemoryStore())
    queue = world.queue(lanes=3)
    known_as, journal = in_doubt(world, queue, "extend")
    journal.inner.append(*journal.tries[0])
    world.clock.advance(1_000)
    operator = world.manager("operator")
    for _ in range(2):
        operator.queue(queue.name).receive(9).accept()
        world.clock.advance(90_000)
        done = operator.maintain(transaction_seconds_max=0)
    assert done.archived, "vacuous"
    assert operator.outcome(known_as).status is Status.COMMITTED
