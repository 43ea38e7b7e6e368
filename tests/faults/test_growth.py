"""With maintenance a claim and a commit cost the same, however much has happened before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inside import client_of
from txnqueue.client import readers
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.manager import QueueManager
from txnqueue.storage.journal.memory import MemoryJournal
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

COMMITS_BEFORE, COMMITS_AFTER = 100, 10_000
EVERY = 500
"""So many commits lie between one maintenance and the next."""
COMMITS_PER_ROUND = 3


class CountingJournal(MemoryJournal):
    """A journal that counts which entries calls look at: those read, and those of guards."""

    looked_at = reads = 0

    def _cut(self, shards: Any, after: int, upto: int | None) -> Any:
        reading = super()._cut(shards, after, upto)
        self.looked_at += len(reading.entries)
        self.reads += 1
        return reading

    def _admitted(self, unit: Any, snapshot: int) -> bool:
        self.looked_at += sum(len(self._shards.get(shard, ())) for shard in unit.reads)
        return super()._admitted(unit, snapshot)


class Plant:
    """A queue that is worked on all the time."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.journal = self.store.journal = CountingJournal()
        self.number = 0
        self.worker = self.manager()
        self.worker.create_queue("in", "n long", lanes=2)

    def manager(self) -> QueueManager:
        self.number += 1
        made = runtime(self.clock, f"m{self.number}")
        return QueueManager(None, store=self.store, runtime=made)

    def work(self, commits: int, maintained: bool) -> None:
        queue = self.worker.queue("in")
        for number in range(commits // COMMITS_PER_ROUND):
            self.clock.advance(1)
            queue.send([{"n": number}])
            queue.receive(5).accept()
            if maintained and number % (EVERY // COMMITS_PER_ROUND) == 0:
                self.maintain()
        if maintained:
            self.maintain()

    def maintain(self) -> None:
        self.manager().maintain(transaction_seconds_max=10)

    def costs(self) -> dict[str, int]:
        """Count the entries that a cold client's work looks at, and a warm one's."""
        found = {}
        client = self.manager()
        for name in ("cold", "warm"):
            queue = client.queue("in")
            for act in ("send", "claim", "commit"):
                before = self.journal.looked_at
                if act == "send":
                    queue.send([{"n": 1}])
                elif act == "claim":
                    tx = client.transaction()
                    tx.queue("in").receive(1)
                else:
                    tx.commit()
                found[f"{name} {act}"] = self.journal.looked_at - before
        return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_work_costs_the_same_after_ten_thousand_commits_as_after_a_hundred() -> None:
    plant = Plant()
    plant.work(COMMITS_BEFORE, maintained=True)
    before = plant.costs()
    plant.work(COMMITS_AFTER - COMMITS_BEFORE, maintained=True)
    after = plant.costs()
    commits = len(plant.store.journal.commits)
    print(f"entries looked at after {COMMITS_BEFORE}: {before}; after {commits}: {after}")
    assert commits > COMMITS_AFTER - 10
    for name, count in after.items():
        assert count <= 1.2 * before[name] + 10, f"{name}: {before[name]} and then {count}"


def test_without_maintenance_it_grows() -> None:
    plant = Plant()
    plant.work(90, maintained=False)
    before = plant.costs()
    plant.work(900, maintained=False)
    after = plant.costs()
    assert after["cold claim"] > 5 * before["cold claim"]


def test_who_works_for_long_remembers_no_more_than_others_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was archived since it was read is not kept in memory as long as the process lives."""
    monkeypatch.setattr(readers, "ENTRIES_KEPT", 20)
    plant = Plant()
    queue = plant.worker.queue("in")
    known = client_of(plant.worker).cache._shards._known
    most = 0
    for number in range(600):
        plant.clock.advance(1)
        with plant.worker.transaction(f"T/{number}") as tx:
            queue.send([{"n": 1}], transaction=tx)
        if number % 50 == 49:
            plant.maintain()
        most = max(most, sum(len(entries) for _, entries in known.values()))
    assert 50 < most < 150
    assert plant.worker.outcome("T/0").status is Status.COMMITTED


def test_what_is_much_is_read_once_by_who_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it was archived since, so that nothing has to be read anew."""
    monkeypatch.setattr(readers, "ENTRIES_KEPT", 20)
    plant = Plant()
    plant.work(300, maintained=True)
    for number in range(200):
        with plant.worker.transaction(f"T/{number}") as tx:
            plant.worker.queue("in").send([{"n": 1}], transaction=tx)
    client, looked_at = plant.manager(), []
    for _ in range(3):
        before = plant.journal.looked_at
        client_of(client).cache._shards.read(model.ALL_TRANSACTIONS)
        looked_at.append(plant.journal.looked_at - before)
    assert looked_at[0] > 200
    assert max(looked_at[1:]) < 20


@pytest.mark.parametrize(
    ("ask", "cold", "warm"), [("recover", 3, 2), ("metrics", 3, 2), ("maintain", 8, 7)]
)
def test_what_asks_all_queues_reads_no_more_often_for_many(ask: str, cold: int, warm: int) -> None:
    for queues in (1, 40):
        plant = Plant()
        for number in range(queues):
            queue = plant.worker.create_queue(f"q{number}", "n long", dead_letter=False)
            queue.send([{"n": number}])
            queue.receive(1)
        counted = []
        client = plant.manager()
        for _ in range(2):
            before = plant.journal.reads
            getattr(client, ask)()
            counted.append(plant.journal.reads - before)
        assert counted == [cold, warm]
