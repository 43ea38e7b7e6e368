"""What the simulator's clients do with transient messages, and what must become of them.

They are in one process only, which does one thing after the other: so a client knows them all.
A message exists if the attempt that sent it was committed, and is gone if one that received it
was; whether it was is for the journal to say, or, without durable work, for the commit's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.inside import attempt_id, attempt_of
from txnqueue.core import model
from txnqueue.errors import InvalidInput, LeaseLost, TransactionAborted

FLEETING, PASSING = "fleeting", "passing"
ACTIONS = {
    "fleeting_send": 1.5,
    "fleeting_receive": 1.5,
    "fleeting_send_inside": 4,
    "fleeting_receive_inside": 4,
}
SEEN = (
    *("fleeting sent", "fleeting published", "fleeting received", "fleeting committed alone"),
    "fleeting refused",
)


class Fleeting:
    """The part of a client that is about what is in its own memory."""

    simulation: Any
    reference: Any
    manager: Any
    runtime: Any
    ask: Any
    active: Any
    do_begin: Callable[[], None]
    call: str

    def forget_all(self) -> None:
        """Begin as a new process does."""
        self.sent: dict[int, str | None] = {}
        self.taken: list[tuple[int, str | None]] = []
        self.working: set[str] = set()
        self.alone: set[str | None] = {None}
        self.keys_alone: set[str] = set()

    def do_fleeting_send(self) -> None:
        self._send(None)

    def do_fleeting_send_inside(self) -> None:
        tx, _ = self.active()
        if tx is None:
            self.do_begin()
        else:
            self._send(tx)

    def do_fleeting_receive(self) -> None:
        batch = self._receive(None)
        if batch:
            batch.accept()
            self.taken += [(message, None) for message in _numbers(batch)]

    def do_fleeting_receive_inside(self) -> None:
        tx, _ = self.active()
        if tx is None:
            return self.do_begin()
        batch = self._receive(tx)
        if batch:
            self.working.add(attempt_id(tx))
            self.taken += [(message, attempt_id(tx)) for message in _numbers(batch)]
        return None

    def refuses_to_prepare(self, tx: Any) -> bool:
        """Whether a transaction has work in memory, and then refuses to be prepared."""
        # Claimed in memory; what was to come with it failed.
        given_back = bool(attempt_of(tx).participants.transient)
        if attempt_id(tx) not in self.working and not given_back:
            return False
        with pytest.raises(InvalidInput):
            tx.prepare()
        self.reference.counts["fleeting refused"] += 1
        return True

    def committed_with(self, tx: Any) -> None:
        """Take note that a commit said that it happened."""
        self.reference.follow()
        if attempt_id(tx) in self.working and attempt_id(tx) not in self.reference.decided:
            self.alone.add(attempt_id(tx))
            self.keys_alone.add(tx.id)
            self.reference.counts["fleeting committed alone"] += 1

    def find_fleeting(self) -> None:
        """At last: every message that was sent and not received is there, once."""
        self.call = self.runtime.run_id = f"fleeting at last {self.simulation.number()}"
        self.manager.recover()
        self.reference.follow()
        gone = [message for message, attempt in self.taken if self._happened(attempt)]
        assert len(gone) == len(set(gone)), "P2 a transient message was consumed twice"
        there = {m for m, attempt in self.sent.items() if self._happened(attempt)}
        queue, found = self.manager.queue(FLEETING), []
        while queue.depth() or queue.in_flight():
            batch = queue.receive(1_000)
            found += _numbers(batch)
            if len(batch):
                batch.accept()
        assert sorted(found) == sorted(there.difference(gone)), (
            f"P2 {sorted(found)} are in memory, and not {sorted(there.difference(gone))}"
        )

    def _send(self, tx: Any) -> None:
        numbers = [self.simulation.number() for _ in range(self.simulation.random.randint(1, 4))]
        rows = [{"n": number} for number in numbers]
        way = self.simulation.random.random()
        durable = None if way < 0.4 else False

        def send() -> Any:
            if way < 0.7:
                queue = self.manager.queue(FLEETING)
                return queue.send(rows, transaction=tx, durable=durable)
            return self.manager.exchange(PASSING).publish(rows, transaction=tx, durable=durable)

        sent, _ = self.ask(send, TransactionAborted)
        if sent:
            if tx is not None:
                self.working.add(attempt_id(tx))
            self.sent.update(dict.fromkeys(numbers, attempt_id(tx) if tx is not None else None))
            self.reference.counts["fleeting sent"] += len(numbers)
            self.reference.counts["fleeting published"] += way >= 0.7

    def _receive(self, tx: Any) -> Any:
        queue, limit = self.manager.queue(FLEETING), self.simulation.random.choice((1, 3, 20))
        self.reference.keys[self.call] = tx.id if tx is not None else "-"
        receive = partial(queue.receive, limit, transaction=tx)
        batch, error = self.ask(receive, LeaseLost, TransactionAborted)
        if isinstance(error, TransactionAborted):
            self.reference.denied.add(attempt_id(tx))
        if not batch:
            return None
        self.reference.follow()
        for message in _numbers(batch):
            assert self._happened(self.sent[message]), f"P3 {message} was received uncommitted"
            gone = [m for m, attempt in self.taken if m == message and self._happened(attempt)]
            assert not gone, f"P2 {message} is received again"
        self.reference.counts["fleeting received"] += len(batch)
        return batch

    def _happened(self, attempt: str | None) -> bool:
        return attempt in self.alone or self.reference.decided.get(attempt) == model.COMMITTED


def _numbers(batch: Any) -> list[int]:
    return [row["n"] for row in batch.messages()]
