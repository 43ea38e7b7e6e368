"""Random work over many days, and what must hold when parts of the history are removed.

The store in memory keeps every commit that ever was, whatever leaves its journal and its
archive: so each state of the past can be told a second time, from all of it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.conftest import LONG
from tests.faults.injection import Crash, FaultyStore, Injector, Meanwhile, faults_of
from tests.faults.pasts import Told, everything
from tests.inside import client_of
from txnqueue.admin import history_removal as txnqueue_forgetting
from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    HistoryRemoved,
    QueueError,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.manager import QueueManager
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.reports.snapshot import Snapshot
from txnqueue.reports.trace import TraceIndex
from txnqueue.storage.journal import Order
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager, plain_schema, runtime

HOUR, DAY = 3_600.0, 24 * 3_600.0
STALLED_AT = ("add", "read_archive", "remove", "forget", "append", "read_all", "find")


class Days:
    """A store that is worked on for days, and maintained now and then by anybody."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store, self.clock = MemoryStore(), Clock()
        self.manager = memory_manager(self.store, self.clock, "worker")
        settings: dict[str, Any] = {"lanes": 2, "deliveries_max": 2, "lease_seconds": 5 * HOUR}
        self.manager.create_queue("a", "n long", **settings)
        unique: dict[str, Any] = {"message_id": "n", "duplicate_window_seconds": HOUR}
        self.manager.create_queue("b", "n long", dead_letter=False, **unique)
        self.manager.create_queue("c", "n long", dead_letter=False)
        self.store.tables.create("gold", plain_schema("n long"))
        events = self.manager.create_exchange("events", "fanout", "n long not null")
        events.bind("a")
        events.bind("b")
        self.held: list[Any] = []
        self.open: list[Any] = []
        self.prepared: list[str] = []
        self.counts: Counter[str] = Counter()
        self._numbers = iter(range(10**9))

    def work(self, times: int) -> None:
        """Do something, so many times."""
        for _ in range(times):
            act = self.chance.choice(_ACTS)
            with contextlib.suppress(QueueError, TransactionError, HistoryRemoved):
                try:
                    act(self)
                except TxnQueueError as error:  # it came too late, and is told so
                    self.counts[type(error).__name__] += 1

    def queue(self) -> Any:
        """Choose a queue."""
        return self.manager.queue(self.chance.choice("aabc"))

    def send(self) -> None:
        rows = [{"n": next(self._numbers)} for _ in range(self.chance.choice((1, 1, 3, 9)))]
        rows += self.chance.choice(([], rows[:1]))
        delay = self.chance.choice((None, None, None, 3 * DAY))
        self.queue().send(rows, delay_seconds=delay)

    def receive(self) -> None:
        seconds = self.chance.choice((HOUR, HOUR, 4 * DAY))
        batch = self.queue().receive(self.chance.choice((1, 4, 20)), lease_seconds=seconds)
        if len(batch):
            self.held.append(batch)

    def settle(self) -> None:
        if self.held:
            batch = self.held.pop(self.chance.randrange(len(self.held)))
            self.chance.choice((batch.accept, batch.accept, batch.release, batch.modify))()

    def begin(self) -> None:
        tx = self.manager.transaction(lease_seconds=self.chance.choice((HOUR, 3 * DAY)))
        tx.queue(self.queue().name).receive(2)
        tx.queue(self.queue().name).send([{"n": next(self._numbers)}])
        if self.chance.random() < 0.5:
            tx.table("gold").append([{"n": next(self._numbers)}])
        self.open.append(tx)

    def end(self) -> None:
        if not self.open:
            return
        tx = self.open.pop(self.chance.randrange(len(self.open)))
        act = self.chance.choice(("commit", "commit", "rollback", "prepare"))
        getattr(tx, act)()
        if act == "prepare":
            self.prepared.append(tx.id)

    def decide(self) -> None:
        if self.prepared:
            self.chance.choice((self.manager.commit, self.manager.rollback))(self.prepared.pop())

    def publish(self) -> None:
        self.manager.exchange("events").publish([{"n": next(self._numbers)}] * 2)

    def share(self) -> None:
        """Work in a branch that several sessions may share, and commit it, or let it be."""
        branches: Any = Branches(client_of(self.manager))
        key = f"xid:1:{next(self._numbers):x}:"
        session = branches.start(key, HOUR)
        session.queue("a").receive(1)
        session.queue("b").send([{"n": next(self._numbers)}])
        if self.chance.random() < 0.7:
            branches.end(session)
            branches.commit(key, one_phase=True)

    def purge(self) -> None:
        if self.chance.random() < 0.2:
            self.queue().purge(reason="no longer wanted")

    def recreate(self) -> None:
        if self.chance.random() < 0.2 and self.manager.drop_queue("c").dropped:
            self.manager.create_queue("c", "n long", dead_letter=False)

    def recover(self) -> None:
        self.manager.recover()

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((60, HOUR, 12 * HOUR, DAY)))

    def maintain(self) -> None:
        """Let somebody maintain the store; now and then one stalls while days go by."""
        chance = self.chance

        def meanwhile() -> None:
            self.clock.advance(chance.choice((HOUR, 2 * DAY, 4 * DAY)))
            self.work(chance.randrange(8))
            for _ in range(2):
                self._maintain(self.keeper(None))
                self.clock.advance(DAY)
            self.counts["stalled"] += 1

        stalled = None
        if chance.random() < 0.3:
            stalled = Meanwhile(chance.choice(STALLED_AT), chance.choice((1, 2, 3)), meanwhile)
        keeper = self.keeper(stalled)
        if stalled is not None:
            keeper.list_queues()
            stalled.arm()
        self._maintain(keeper)

    def keeper(self, injector: Injector | None, off: int | None = None) -> QueueManager:
        """Start somebody who maintains, by a clock that may be days off."""
        chosen = self.chance.choice((0, 0, 0, -2, 1)) if off is None else off
        off_ms = round(chosen * DAY * 1000)
        made = runtime(self.clock, f"keeper {next(self._numbers)}")
        made.now_ms = lambda: self.clock.now_ms + off_ms
        store: Any = self.store if injector is None else FaultyStore(self.store, injector)
        return QueueManager(None, store=store, runtime=made)

    def _maintain(self, keeper: QueueManager) -> None:
        days = self.chance.choice((0, 0, 1, 3, None))
        done = keeper.maintain(
            transaction_seconds_max=self.chance.choice((0, HOUR, DAY)),
            payload_retention_days=0,
            history_retention_days=days,
        )
        self.counts["forgotten"] += done.forgotten
        self.counts["archived"] += done.archived
        self.counts["removals"] += done.forgotten > 0

    # -------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Check that what can be asked for is what was, and that the rest is refused."""
        history = memory_manager(self.store, self.clock, "asking").history
        past = Past(self.store)
        proof = history.verify()
        assert proof.ok, str(proof)
        landed = [entry for entries, _ in self.store.journal.commits for entry in entries]
        kept = {entry.entry_id for entry in past.stream(Order.COMMIT)}
        lost = [e.place for e in landed if e.version >= past.beginning and e.entry_id not in kept]
        assert not lost, f"lost since the beginning {past.beginning}: {lost}"
        for commit_seq in sorted({entry.commit_seq for entry in landed}):
            if commit_seq < model.commit_seq(max(past.beginning, 0)):
                with pytest.raises(HistoryRemoved):
                    history.as_of(commit_seq)
                self.counts["refused"] += 1
                continue
            then = (entry for entry in landed if entry.commit_seq <= commit_seq)
            truth = Snapshot(client_of(self.manager), Told(then, past.beginning))
            _same(history.as_of(commit_seq), truth, past.beginning)
            self.counts["asked"] += 1
        self._check_paths(past)

    def _check_paths(self, past: Past) -> None:
        """Check that the path of a message is the same, read by itself or of all entries."""
        known = list(past.stream(Order.COMMIT))
        posted = [entry for entry in known if entry.kind == model.POSTED]
        chance = random.Random(len(known))
        for entry in chance.sample(posted, min(5, len(posted))):
            message = (entry.body["send"], chance.choice(entry.ranges)[0])
            steps = TraceIndex(archive.of_messages(past, [message])).steps_of(message)
            assert steps == TraceIndex(known).steps_of(message), message
            self.counts["paths"] += len(steps) > 2


def _same(found: Snapshot, truth: Snapshot, beginning: int) -> None:
    """Check that a state is told as it was."""
    at = f"after {truth.commit_seq}, history from {model.commit_seq(max(beginning, 0))}"
    assert found.counts().rows() == truth.counts().rows(), at
    for name, info in found._infos.items():
        assert found._parts(info) == truth._parts(info), f"{name} {at}"
    first = model.commit_seq(max(beginning, 0))
    lists = (found.dispatches().rows(), truth.dispatches().rows())
    late, all_late = ([r for r in rows if r["commit_seq"] >= first] for rows in lists)
    assert late == all_late, at
    mine, all_of_them = (
        {row["attempt"]: (row["status"], row["commit_seq"]) for row in one.transactions().rows()}
        for one in (found, truth)
    )
    for attempt, said in all_of_them.items():
        due = said[0] == model.PREPARED or said[1] is None or said[1] >= first
        assert mine.get(attempt, None if due else said) == said, f"{attempt} {at}"
    assert set(mine) <= set(all_of_them), at


_ACTS = [
    *[Days.send] * 5,
    *[Days.receive] * 8,
    *[Days.settle] * 8,
    *[Days.begin] * 2,
    *[Days.end] * 3,
    Days.publish,
    Days.share,
    Days.decide,
    Days.purge,
    Days.recreate,
    Days.recover,
    *[Days.pass_time] * 4,
]


def days_go_by(seed: int, rounds: int = 8) -> Counter[str]:
    """Run one seed, and count what happened."""
    days = Days(seed)
    try:
        for _ in range(rounds):
            days.work(days.chance.randrange(20))
            days.maintain()
            days.check()
    except BaseException:
        print(f"Again with: days_go_by({seed}, {rounds})")
        raise
    return days.counts


def days_on_end() -> None:
    """Run some seeds; together they have to remove, to stall and to refuse something."""
    counts: Counter[str] = Counter()
    for seed in range(8):
        counts += days_go_by(seed)
    for what in ("asked", "refused", "removals", "stalled", "paths"):
        assert counts[what] > 5, f"vacuous: {what} {counts[what]}"


def clocks_decide_nothing() -> None:
    """Let clocks that are days apart take turns: what was done lately stays, by either."""
    days = Days(seed=0)
    queue = days.manager.queue("a")
    for _ in range(6):
        for off in (0, 1):
            crashing = Injector()
            crashing.stop_at = "add"  # the horizon is advanced, and the archive left to others
            for injector in (None, crashing):
                queue.send([{"n": -1}])
                queue.receive(1).accept()
                keeper = days.keeper(injector, off)
                keeper.list_queues()
                crashing.arm()
                with contextlib.suppress(Crash):
                    days.counts["forgotten"] += _remove(keeper)
            days.counts["forgotten"] += _remove(days.keeper(None, -2))
        days.check()
        days.clock.advance(DAY)
    assert days.counts["forgotten"] > 20, "next to nothing was removed"


def what_is_removed_was_announced() -> None:
    """Spoil every call of a maintenance that removes something: nobody is told half a past.

    The long run spoils each in every way, the default one in one way, by turns.
    """
    counting = Injector()
    assert _spoiled(counting) > 5, "next to nothing was removed"
    for at, call in enumerate(counting.calls):
        faults = faults_of(call)
        for fault in faults if LONG else [faults[at % len(faults)]]:
            _spoiled(Injector(at, fault))


def a_lease_that_another_claim_ended_is_over() -> None:
    """Let a message stand whose lease was ended by a claim of another one, for days."""
    days = Days(seed=1)
    queue = days.manager.create_queue("stands", "n long", dead_letter=False)
    queue.send([{"n": 1}], priority=0)
    memory_manager(days.store, days.clock, "gone").queue("stands").receive(1)
    days.clock.advance(HOUR)
    for n in range(4):
        queue.send([{"n": n}])
        (taken,) = (batch := queue.receive(1)).messages()
        assert taken["n"] == n, "vacuous: it is not the other one that is taken"
        batch.accept()
        _remove(days.keeper(None, 0))
        days.clock.advance(2 * DAY)
    _remove(days.keeper(None, 0))
    rows = memory_manager(days.store, days.clock, "asking").history.as_of().counts().rows()
    (row,) = [row for row in rows if row["queue"] == "stands"]
    assert (row["available"], row["in_flight"]) == (1, 0), f"what stands is told wrongly: {row}"


def _spoiled(injector: Injector) -> int:
    """Maintain a store of some days through an injector, then again, and look in between.

    Returns:
        How many entries the first of them removed.
    """
    days, removed = Days(seed=8), 0
    queue = days.manager.queue("a")
    for _ in range(4):
        queue.send([{"n": -1}])
        queue.receive(1).accept()
        days.keeper(None).maintain(transaction_seconds_max=0, payload_retention_days=0)
        days.clock.advance(DAY)
    days.work(10)
    days.clock.advance(2 * DAY)
    store: Any = FaultyStore(days.store, injector)
    keeper = memory_manager(store, days.clock, "spoiled")
    keeper.list_queues()
    injector.arm()
    with contextlib.suppress(Crash, KeyboardInterrupt, ConnectionError, TxnQueueError):
        removed = _remove(keeper)
    injector.disarm()
    days.check()
    injector.flush()
    days.check()
    _remove(memory_manager(days.store, days.clock))
    assert _remove(memory_manager(days.store, days.clock)) == 0, "it is never done"
    days.check()
    assert days.counts["refused"], "nothing was removed"
    return removed


def _remove(keeper: QueueManager) -> int:
    done = keeper.maintain(
        transaction_seconds_max=0, payload_retention_days=0, history_retention_days=0
    )
    return done.forgotten


class LateReply(Injector):
    """Lets the first append land, and days go by before its caller hears that it failed."""

    def __init__(self, days: Days, error: type[BaseException]) -> None:
        super().__init__()
        self._days, self._error, self.acted = days, error, False

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call."""
        if not self.armed or self.acted or name != "append":
            return super().call(name, perform)
        self.acted = True
        perform()
        go_by(self._days)
        raise self._error("no reply for days")


def go_by(days: Days) -> None:
    """Let so many days go by that nothing is known of what is over now."""
    queue = memory_manager(days.store, days.clock, "other").queue("a")
    for _ in range(4):
        queue.send([{"n": -1}])
        queue.receive(1).accept()
        _remove(memory_manager(days.store, days.clock, "keeper"))
        days.clock.advance(2 * DAY)


def late(error: type[BaseException]) -> tuple[Days, QueueManager, LateReply]:
    """Start somebody who hears of an append when nobody knows of it any more."""
    days = Days(seed=0)
    injector = LateReply(days, error)
    store: Any = FaultyStore(days.store, injector)
    manager = memory_manager(store, days.clock, "late")
    manager.list_queues()
    return days, manager, injector


def _removes_decisions(fence: object) -> dict[str, int]:
    return {}


def by_an_older_version(check: Callable[[], None]) -> Callable[[], None]:
    """Let the keepers be of a version that removed decisions with the rest of the history."""
    check = mock.patch.object(model, "KEPT_FOR_EVER", frozenset())(check)
    return mock.patch.object(txnqueue_forgetting, "_decisions", _removes_decisions)(check)


def what_was_decided_is_known_however_late() -> None:
    """Commit, and hear of it when all but the decision was removed: it is told."""
    days, manager, injector = late(KeyboardInterrupt)
    tx = manager.transaction("interrupted")
    tx.queue("a").send([{"n": 1}])
    injector.arm()
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert tx.commit().transaction_id == "interrupted"

    days, manager, injector = late(ConnectionError)
    ran = []

    def handler(tx: Any) -> None:
        ran.append(tx)
        tx.queue("a").send([{"n": 1}])
        injector.arm()

    receipt = manager.run_transaction(handler, transaction_id="tried")
    assert len(ran) == 1 and manager.outcome("tried").receipt == receipt
    known = Past(days.store)
    assert known.beginning > receipt.journal_version, "vacuous: nothing was removed"


@by_an_older_version
def what_is_not_known_is_not_guessed() -> None:
    """Commit, and hear of it when the decision was removed: nobody calls it undone."""
    days, manager, injector = late(KeyboardInterrupt)
    tx = manager.transaction("interrupted")
    tx.queue("a").send([{"n": 1}])
    injector.arm()
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    for act in (tx.commit, tx.rollback):
        with contextlib.suppress(HistoryRemoved, TransactionUnknown, TransactionAborted):
            act()
    assert tx.status is Status.UNKNOWN, f"P9 it says that it is {tx.status.value}"
    _check_gone(days, "interrupted")

    days, manager, injector = late(ConnectionError)
    ran: list[Any] = []

    def handler(tx: Any) -> None:
        assert not ran, "P1 what was committed is done again"
        ran.append(tx)
        tx.queue("a").send([{"n": 1}])
        injector.arm()

    with pytest.raises(HistoryRemoved):
        manager.run_transaction(handler, transaction_id="tried")
    _check_gone(days, "tried")


@by_an_older_version
def what_is_in_memory_waits_for_an_answer() -> None:
    """Commit durable and transient messages, and hear of it when nobody knows of that."""
    days, manager, injector = late(ConnectionError)
    tx = manager.transaction("both")
    tx.queue("a").send([{"n": 1}])
    tx.queue("c").send([{"n": 2}], durable=False)
    injector.arm()
    with pytest.raises(TransactionUnknown):
        tx.commit()
    _check_gone(days, "both")
    manager.recover()
    waiting = client_of(manager).store.transient.waiting()
    assert [owner.key for owner in waiting] == ["both"], "P1 one half was rolled back"
    with pytest.raises(HistoryRemoved):
        manager.outcome("both")


def _check_gone(days: Days, key: str) -> None:
    """Check that a commit happened, and that it is not known any more."""
    landed = [entry for entries, _ in days.store.journal.commits for entry in entries]
    committed = [e for e in landed if e.kind == model.COMMITTED and e.stream == key]
    assert len(committed) == 1, f"P1 {key} was committed {len(committed)} times"
    known = [entry for entry in everything(days.store) if entry.stream == key]
    assert not known, "vacuous: it is known"


CHECKS = [
    a_lease_that_another_claim_ended_is_over,
    days_on_end,
    clocks_decide_nothing,
    what_is_removed_was_announced,
    what_was_decided_is_known_however_late,
    what_is_not_known_is_not_guessed,
    what_is_in_memory_waits_for_an_answer,
]
