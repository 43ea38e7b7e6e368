"""Ways to break the library that only a promise between a call and its answer shows.

The journal is consistent in itself with each of them.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from txnqueue.batch import Batch
from txnqueue.core.planning import claims
from txnqueue.core.state import positions
from txnqueue.errors import StoreCorrupt
from txnqueue.manager import QueueManager
from txnqueue.queue import Queue
from txnqueue.reports.history import History
from txnqueue.storage.journal.memory import MemoryJournal
from txnqueue.transaction import Transaction

OTHER = {"in": "out", "out": "in"}


def commits_what_is_to_be_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Who rolls back by an id is told so, and it is committed."""

    def rollback(self: QueueManager, key: str, *_: Any) -> None:
        self.commit(key)

    patch.setattr(QueueManager, "rollback", rollback)


def commits_when_it_rolls_back(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is rolled back commits."""

    def rollback(self: Transaction, *_: Any, **__: Any) -> None:
        self.commit()

    patch.setattr(Transaction, "rollback", rollback)


def rolls_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Who rolls back by an id is told so, and nothing happens."""
    patch.setattr(QueueManager, "rollback", lambda self, key, *_: None)


def sends_to_another_queue(patch: pytest.MonkeyPatch) -> None:
    """What is sent to a queue of two is in the other one."""
    real = Queue.send

    def send(self: Queue, rows: Any, *, transaction: Any) -> Any:
        return real(transaction.queue(OTHER[self.name]), rows, transaction=transaction)

    patch.setattr(Queue, "send", send)


def sends_to_both_queues(patch: pytest.MonkeyPatch) -> None:
    """What is sent to a queue of two is in both."""
    real = Queue.send

    def send(self: Queue, rows: Any, *, transaction: Any) -> Any:
        real(transaction.queue(OTHER[self.name]), rows, transaction=transaction)
        return real(self, rows, transaction=transaction)

    patch.setattr(Queue, "send", send)


def redelivers_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """What came back comes after all that waits."""

    def in_turn(segments: Any, *args: Any, **kwargs: Any) -> Any:
        return sorted(
            positions.in_turn(segments, *args, **kwargs), key=lambda one: one.delivery_count > 0
        )

    patch.setattr(claims, "in_turn", in_turn)


def redelivers_in_reverse(patch: pytest.MonkeyPatch) -> None:
    """What came back comes first, the last of it before the first."""

    def in_turn(segments: Any, *args: Any, **kwargs: Any) -> Any:
        found = list(positions.in_turn(segments, *args, **kwargs))
        again = [one for one in found if one.delivery_count > 0]
        return [*reversed(again), *(one for one in found if not one.delivery_count)]

    patch.setattr(claims, "in_turn", in_turn)


def hands_out_twice(patch: pytest.MonkeyPatch) -> None:
    """Half of those who receive under a lease are given what another one holds."""
    real, dice, held = Queue.receive, random.Random(1), list[tuple[str, Batch]]()

    def receive(self: Queue, limit: int, *, transaction: Any) -> Batch:
        if transaction is not None:
            return real(self, limit, transaction=transaction)
        mine = [batch for name, batch in held if name == self.name]
        if mine and dice.random() < 0.5:
            return mine[-1]
        batch = real(self, limit, transaction=None)
        if len(batch):
            held.append((self.name, batch))
        return batch

    patch.setattr(Queue, "receive", receive)


def releases_nothing(patch: pytest.MonkeyPatch) -> None:
    """Who gives messages back is told so, and holds them until the lease ends."""
    patch.setattr(Batch, "release", lambda self: 0)


def cries_wolf(patch: pytest.MonkeyPatch) -> None:
    """One of those who look is told that the store is corrupt."""
    real, calls = History.as_of, itertools.count()

    def as_of(self: History) -> Any:
        if next(calls) == 2:
            raise StoreCorrupt
        return real(self)

    patch.setattr(History, "as_of", as_of)


def looks_behind(patch: pytest.MonkeyPatch) -> None:
    """A look names a commit, and shows what was there a while before."""
    real = History.as_of

    def as_of(self: History) -> Any:
        newest = real(self)
        older = real(self, max(newest.commit_seq - (3 << 10), 1 << 10))
        return SimpleNamespace(
            commit_seq=newest.commit_seq, transactions=older.transactions, messages=older.messages
        )

    patch.setattr(History, "as_of", as_of)


def rewrites_the_past(patch: pytest.MonkeyPatch) -> None:
    """An entry of the journal changes a while after it was written."""
    real = MemoryJournal._land

    def land(self: MemoryJournal, *args: Any) -> int:
        version = real(self, *args)
        if version == 60:
            shard = next(iter(self._shards.values()))
            shard[0] = replace(shard[0], recorded_at_ms=shard[0].recorded_at_ms + 1)
        return version

    patch.setattr(MemoryJournal, "_land", land)


BROKEN = {
    commits_what_is_to_be_rolled_back: "rolled back and committed",
    commits_when_it_rolls_back: "rolled back and committed",
    rolls_nothing_back: "rolled back and committed",
    sends_to_another_queue: "torn transaction",
    sends_to_both_queues: "torn transaction",
    redelivers_at_the_end: "order after redelivery",
    redelivers_in_reverse: "order after redelivery",
    hands_out_twice: "handed to two",
    releases_nothing: "lost release",
    cries_wolf: "unexpected error",
    looks_behind: "wrong look",
    rewrites_the_past: "version changed",
}
"""What is found of each; other names may be found besides."""
