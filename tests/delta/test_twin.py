"""The same random operations on Delta and in memory have the same results, step by step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults.audit import check
from txnqueue import QueueManager
from txnqueue.errors import TxnQueueError
from txnqueue.storage.store import DeltaStore, MemoryStore
from txnqueue.testing import Clock, runtime

pytestmark = [pytest.mark.spark]
SEEDS = range(40) if LONG else range(1)
STEPS = 30


class Side:
    """One store with two clients, told what to do by the same dice."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.clock = Clock()
        self.managers = [
            QueueManager(None, "x", store=store, runtime=runtime(self.clock, name))
            for name in ("a", "b")
        ]
        self.managers[0].create_queue("in", "i long", lanes=2, group_by="i", lease_seconds=60)
        self.managers[0].create_queue("out", "i long", dead_letter=False)
        self.batches: list[Any] = []
        self.open: list[Any] = []
        self.explicit: set[str] = set()

    def do(self, dice: random.Random) -> Any:
        """Do the next thing; say what came of it."""
        names = ["send", "lease", "accept", "release", "reject", "begin", "commit", "rollback"]
        name = dice.choice([*names, "prepare", "tick", "drain", "depth"])
        pick = dice.random()
        try:
            return name, getattr(self, name)(dice, pick)
        except TxnQueueError as error:
            return name, type(error).__name__

    def manager(self, dice: random.Random) -> QueueManager:
        return self.managers[dice.randrange(2)]

    def send(self, dice: random.Random, pick: float) -> Any:
        numbers = [dice.randrange(100) for _ in range(dice.randrange(1, 6))]
        return self.manager(dice).queue("in").send([{"i": i} for i in numbers]).count

    def lease(self, dice: random.Random, pick: float) -> Any:
        batch = self.manager(dice).queue("in").receive(dice.randrange(1, 5))
        self.batches.append(batch)
        return self.seen(batch)

    def accept(self, dice: random.Random, pick: float) -> Any:
        return self.one(self.batches, pick, lambda batch: batch.accept())

    def release(self, dice: random.Random, pick: float) -> Any:
        return self.one(self.batches, pick, lambda batch: batch.release())

    def reject(self, dice: random.Random, pick: float) -> Any:
        def reject(batch: Any) -> int:
            return int(batch.reject(matching=batch.messages()[:1], reason="bad"))

        return self.one(self.batches, pick, reject)

    def begin(self, dice: random.Random, pick: float) -> Any:
        tx = self.manager(dice).transaction()
        batch = tx.queue("in").receive(dice.randrange(1, 5))
        numbers = self.seen(batch)
        tx.queue("out").send([{"i": i} for i, _ in numbers])
        self.open.append(tx)
        return numbers

    def commit(self, dice: random.Random, pick: float) -> Any:
        return self.one(self.open, pick, lambda tx: tx.commit().commit_seq)

    def rollback(self, dice: random.Random, pick: float) -> Any:
        def roll_back(tx: Any) -> None:
            self.explicit.add(tx.id)
            tx.rollback()

        return self.one(self.open, pick, roll_back)

    def prepare(self, dice: random.Random, pick: float) -> Any:
        return self.one(self.open, pick, lambda tx: tx.prepare(), keep=True)

    def tick(self, dice: random.Random, pick: float) -> Any:
        self.clock.advance(61 if pick < 0.5 else 10)

    def drain(self, dice: random.Random, pick: float) -> Any:
        return self.manager(dice).queue("in").drain(lambda b, tx: None, batch_size=4).messages

    def depth(self, dice: random.Random, pick: float) -> Any:
        return [self.managers[0].queue(n).depth() for n in ("in", "out", "in.dead")]

    def one(self, among: list[Any], pick: float, act: Any, keep: bool = False) -> Any:
        if not among:
            return None
        index = int(pick * len(among))
        chosen = among[index] if keep else among.pop(index)
        return act(chosen)

    @staticmethod
    def seen(batch: Any) -> Any:
        return [(m["i"], m["_message"]["delivery_count"]) for m in batch.messages()]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_stores_answer_alike(seed: int, spark: Any, tmp_path: Path) -> None:
    delta, memory = Side(DeltaStore(spark, str(tmp_path))), Side(MemoryStore())
    dice, same_dice = random.Random(seed), random.Random(seed)
    for step in range(STEPS):
        expected, found = memory.do(same_dice), delta.do(dice)
        assert found == expected, f"seed {seed}, step {step}: {found} on Delta, {expected}"
    for side in (delta, memory):
        check(side.store.journal.read_all().entries, side.explicit)
    assert [_bare(e) for e in _entries(delta)] == [_bare(e) for e in _entries(memory)]


def _entries(side: Side) -> list[Any]:
    return sorted(side.store.journal.read_all().entries, key=lambda entry: entry.place)


def _bare(entry: Any) -> Any:
    """What both stores write alike; offsets are told by Spark's tasks."""
    return (entry.version, entry.index, entry.shard, entry.kind, entry.sequence, entry.count)
