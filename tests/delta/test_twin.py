"""The same random operations on Delta and in memory have the same results, step by step.

Also where the clients' clocks are an hour apart and jump back, and the times of Delta's commits,
and of its files, are wrong: nothing that is decided depends on those.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.test_commit_times import shift
from tests.faults.audit import check
from txnqueue import QueueManager
from txnqueue.errors import TxnQueueError
from txnqueue.storage.store import DeltaStore, MemoryStore
from txnqueue.testing import Clock, runtime

pytestmark = [pytest.mark.spark]
SEEDS = range(40) if LONG else range(1)
STEPS = 30
APART_SECONDS, BACK_SECONDS = 3_600, 600
WRONG_MS = 3 * 365 * 86_400_000


class Side:
    """One store with two clients, told what to do by the same dice."""

    def __init__(self, store: Any, apart: Sequence[int] = ()) -> None:
        """Begin; the clients have one clock, or one each, so many seconds from the right one."""
        self.store = store
        self.clocks = [Clock() for _ in apart] or [Clock()]
        for clock, seconds in zip(self.clocks, apart, strict=False):
            clock.advance(seconds)
        self.start("a", "b")
        self.managers[0].create_queue("in", "i long", lanes=2, group_by="i", lease_seconds=60)
        self.managers[0].create_queue("out", "i long", dead_letter=False)
        self.batches: list[Any] = []
        self.open: list[Any] = []
        self.explicit: set[str] = set()

    def start(self, *names: str) -> None:
        """Start two clients, instead of those that were there."""
        self.managers = [
            QueueManager(None, "x", store=self.store, runtime=runtime(clock, name))
            for name, clock in zip(names, self.clocks * 2, strict=False)
        ]

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
        for clock in self.clocks:
            clock.advance(61 if pick < 0.5 else 10)

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


def compare(spark: Any, folder: Path, seed: int) -> Counter[str]:
    """Do the same on Delta and in memory; count what came of it.

    Raises:
        AssertionError: A step had another result, or the journals differ.
    """
    delta, memory = Side(DeltaStore(spark, str(folder))), Side(MemoryStore())
    dice, same_dice = random.Random(seed), random.Random(seed)
    told: Counter[str] = Counter()
    for step in range(STEPS):
        told.update(_same(memory.do(same_dice), delta.do(dice), f"seed {seed}, step {step}"))
    _compare_journals(delta, memory)
    return told


def compare_with_wrong_clocks(spark: Any, folder: Path, seed: int) -> Counter[str]:
    """Do the same where each client has a clock of its own, up to an hour wrong.

    Now and then one of them jumps back. What Delta had written before is years older or newer, in
    its log and on the disk.

    Raises:
        AssertionError: A step had another result, or the journals differ.
    """
    chance = random.Random(f"clocks {seed}")
    apart = [chance.randint(-APART_SECONDS, APART_SECONDS) for _ in range(2)]
    delta, memory = Side(DeltaStore(spark, str(folder)), apart), Side(MemoryStore(), apart)
    _misdate(spark, folder, chance.choice([-WRONG_MS, WRONG_MS]))
    for side in (delta, memory):  # who had it open would take it for a copy
        side.start("c", "d")
    dice, same_dice = random.Random(seed), random.Random(seed)
    told: Counter[str] = Counter()
    for step in range(STEPS):
        if chance.random() < 0.2:
            nth, seconds = chance.randrange(2), chance.randint(1, BACK_SECONDS)
            for side in (delta, memory):
                side.clocks[nth].advance(-seconds)
            told["jumps back"] += 1
        said = f"seed {seed} with wrong clocks, step {step}"
        told.update(_same(memory.do(same_dice), delta.do(dice), said))
    _compare_journals(delta, memory)
    return told


def _misdate(spark: Any, root: Path, apart_ms: int) -> None:
    """Let all that was committed so far have been so at another time."""
    assert shift(spark, root, apart_ms) > 2
    for file in (root / "journal").rglob("*"):
        seconds = file.stat().st_mtime + apart_ms / 1000
        os.utime(file, (seconds, seconds))


def _same(expected: Any, found: Any, when: str) -> list[str]:
    """Compare what a step came to, and name what it was."""
    assert found == expected, f"{when}: {found} on Delta, {expected} in memory"
    name, came = found
    return [name, came] if isinstance(came, str) else [name]


def _compare_journals(delta: Side, memory: Side) -> None:
    for side in (delta, memory):
        check(side.store.journal.read_all().entries, side.explicit)
    assert [_bare(e) for e in _entries(delta)] == [_bare(e) for e in _entries(memory)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_stores_answer_alike(seed: int, spark: Any, tmp_path: Path) -> None:
    assert compare(spark, tmp_path, seed).total() >= STEPS


@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="as long as the other one, in the long run")
@pytest.mark.parametrize("seed", SEEDS)
def test_both_stores_answer_alike_whatever_the_clocks_say(
    seed: int, spark: Any, tmp_path: Path
) -> None:
    told = compare_with_wrong_clocks(spark, tmp_path, seed)
    assert told["jumps back"]


def _entries(side: Side) -> list[Any]:
    return sorted(side.store.journal.read_all().entries, key=lambda entry: entry.place)


def _bare(entry: Any) -> Any:
    """What both stores write alike; offsets are told by Spark's tasks."""
    return (entry.version, entry.index, entry.shard, entry.kind, entry.sequence, entry.count)
