"""A journal in memory whose clients share one process: their appends go in by groups."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import greenlet

from txnqueue.core.model import Entry, Unit
from txnqueue.storage.journal import Appended, Reading
from txnqueue.storage.journal.groups import Groups, Request
from txnqueue.storage.journal.memory import MemoryJournal, Step


class LostAnswer(ConnectionError):
    """The statement of a group has landed, or has not: nobody was told."""


class Inline:
    """What carries out the groups: no client, so that it goes on when a client is killed."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], Any]] = deque()
        self._thread = greenlet.greenlet(self._work)

    def submit(self, task: Callable[[], Any]) -> None:
        self._tasks.append(task)

    def go_on(self) -> None:
        """Let it work until it waits, or another client's turn has come."""
        self._thread.switch()

    def finish(self) -> None:
        """Carry out what clients have left behind that were killed."""
        while self._tasks:
            self.go_on()

    def _work(self) -> None:
        while True:
            while self._tasks:
                self._tasks.popleft()()
            greenlet.getcurrent().parent.switch()


class GroupingJournal(MemoryJournal):
    """Appends by groups, and reads what it appended from their tail, as the Delta journal does."""

    def __init__(self, step: Step, chance: random.Random, pause: Callable[[], None]) -> None:
        super().__init__(step)
        self._pause = pause
        self._chance = chance
        self._inline = Inline()
        self.groups = Groups(self._inline)
        self.fault_rate = 0.0
        self.sizes: list[int] = []

    def finish(self) -> None:
        """Let everything land that is on its way."""
        self._inline.finish()

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        if self._chance.random() < 0.3:  # this one comes from another process
            return super().append(units, metadata)
        answer = self.groups.submit(Request(tuple(units), metadata, self._insert))
        if self._chance.random() < 0.5:
            self._pause()  # others come, too
        while not answer.done():
            self.step("append waits")
            if not answer.done():
                self._inline.go_on()
        found = answer.result()
        return self.groups.resolved(found, units, self._landed)

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        if after < 0 or upto is not None:
            return super().read(shards, after, upto)
        return self._since(
            after, lambda entry: entry.shard in shards, partial(super().read, shards)
        )

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        if after < 0 or upto is not None:
            return super().read_all(after, upto)
        return self._since(after, lambda _: True, super().read_all)

    def _since(
        self, after: int, wanted: Callable[[Entry], bool], read: Callable[[int], Reading]
    ) -> Reading:
        self.step("read")
        recent, reached = self.groups.tail.after(after)
        mine = tuple(filter(wanted, recent))
        if reached == self.known_version():
            return Reading(mine, reached)
        reading = read(reached)
        return Reading((*mine, *reading.entries), reading.version)

    def _insert(
        self, units: Sequence[Unit], metadata: Mapping[str, object]
    ) -> tuple[int, int | None]:
        if self._chance.random() < self.fault_rate:
            raise LostAnswer("before the statement")
        appended = super().append(units, metadata)
        self.sizes.append(sum(appended.won))
        if self._chance.random() < self.fault_rate:
            raise LostAnswer("after the statement")
        won = [unit for unit, there in zip(units, appended.won, strict=True) if there]
        return sum(len(unit.entries) for unit in won), appended.version

    def _landed(self, version: int) -> set[str]:
        return {entry.append_id for entry in self.commits[version][0]}
