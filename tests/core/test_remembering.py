"""Folds that are brought up together are those that are read one by one, and afresh."""

from __future__ import annotations

import random

import pytest

from tests.core.test_compacting import state
from txnqueue.client import readers
from txnqueue.client.readers import StateReader
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shards_max", [1_000, 3])
def test_folds_are_the_same_whoever_reads_them_and_when(
    seed: int, shards_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SHARDS_MAX", shards_max)
    chance, store, clock = random.Random(seed), MemoryStore(), Clock()
    manager = memory_manager(store, clock)
    queues = [manager.create_queue(f"q{n}", "n long", lanes=n + 1) for n in range(4)]
    known = StateReader(store.journal)
    horizons = set()
    for number in range(60):
        clock.advance(30)
        queue = chance.choice(queues)
        act = chance.choice(["send", "send", "take", "hold", "maintain"])
        if act == "send":
            queue.send([{"n": number}] * 3)
        elif act == "maintain":
            horizons.add(memory_manager(store, clock).maintain(transaction_seconds_max=60).horizon)
        elif batch := queue.receive(2):
            batch.accept() if act == "take" else batch.extend_lease(10)
        infos = [q.info for q in chance.sample(queues, chance.randint(1, 4))]
        afresh = [StateReader(store.journal).read([info])[0] for info in infos]
        assert [state(f) for f in known.read(infos)] == [state(f) for f in afresh]
    assert len(horizons) > 3, "vacuous: the horizon hardly moved"
