"""A year of a busy store, maintained every night: every driver goes on, and it stays small."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.injection import FaultyStore, Injector
from txnqueue import QueueManager
from txnqueue.admin import creation
from txnqueue.errors import HistoryRemoved
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

DAY = 86_400
DAYS = 365
HISTORY_DAYS = 30
NIGHTLY: Any = {
    "transaction_seconds_max": 3_600,
    "payload_retention_days": 7,
    "history_retention_days": HISTORY_DAYS,
}


class Year:
    """A store whose drivers know as little of each other as drivers on Delta do."""

    def __init__(self) -> None:
        self.store, self.clock, self.made = MemoryStore(), Clock(), 0
        self.busy = self.manager("busy")
        self.queue = self.busy.create_queue("orders", "n long", lanes=2, lease_seconds=600)
        self.rare = self.manager("rare")
        self.expected: set[int] = set()

    def manager(self, name: str) -> QueueManager:
        self.made += 1
        given = runtime(self.clock, f"{name}#{self.made}")
        given.consumer = name
        store: Any = FaultyStore(self.store, Injector())
        return QueueManager(None, "memory", store=store, runtime=given)

    def work(self, day: int) -> None:
        """Send ten, take eight of what waits, which are poison once a week; two are left."""
        numbers = [day * 10 + n for n in range(10)]
        with self.busy.transaction(f"load/{day}") as tx:
            self.queue.send([{"n": n} for n in numbers], transaction=tx)
        self.expected.update(numbers)
        with self.busy.transaction(f"day/{day}") as tx:
            batch = self.queue.receive(8, transaction=tx)
            taken = [m["n"] for m in batch.messages()]
            if day % 7 == 3:
                batch.reject(reason="poison", transaction=tx)
        self.expected.difference_update(taken)

    def check(self, day: int) -> None:
        fresh = self.manager("fresh")
        assert fresh.history.verify().ok
        assert fresh.queue("orders").depth() == self.queue.depth() == len(self.expected)
        assert fresh.outcome(f"day/{day}").status.value == "committed"
        with fresh.transaction(f"load/{day}") as tx:
            assert tx.already_committed
        assert len(self.store.journal.read_all().entries) < 400

    def read_back(self) -> set[int]:
        found: set[int] = set()
        with self.rare.transaction() as tx:
            while batch := tx.queue("orders").receive(1_000):
                found.update(m["n"] for m in batch.messages())
            tx.rollback()
        self.clock.advance(3_600)
        return found


def test_a_store_is_worked_on_for_a_year_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 20)
    year = Year()
    forgotten = slices = 0
    with year.rare.transaction("long/1") as tx:
        tx.queue("orders").send([{"n": -1}])
        tx.prepare()
    for day in range(DAYS):
        year.work(day)
        year.clock.advance(DAY)
        done = year.manager("keeper").maintain(**NIGHTLY)
        forgotten, slices = forgotten + done.forgotten, slices + done.slices
        if day % 30 == 29:
            year.check(day)
    assert forgotten > DAYS and slices > 0
    assert year.manager("another").recover().prepared == ("long/1",)
    year.rare.commit("long/1")
    year.expected.add(-1)
    assert year.read_back() == year.expected
    assert year.manager("last").history.verify().ok
    with pytest.raises(HistoryRemoved):
        year.manager("auditor").history.as_of(commit_seq=5_000)
    dead = year.manager("looks").queue("orders.dead")
    assert dead.depth() == 8 * sum(day % 7 == 3 for day in range(DAYS))
