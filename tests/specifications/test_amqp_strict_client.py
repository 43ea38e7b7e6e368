"""A client that counts: delivery ids follow each other, and no transfer exceeds credit or window.

Libraries of clients end a session or a link otherwise. Two links receive messages that are longer
than a transfer, in transactions and outside, and the client says whatever it may.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conftest import LONG
from tests.specifications.controllers import Pipeline
from txnqueue.protocols.amqp import (
    Accepted,
    Detach,
    Flow,
    Released,
    Role,
    SenderSettleMode,
    Source,
    TransactionalResource,
    TransactionalState,
    Transfer,
    sending_link,
)
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

STEPS = 40


class Strict(Pipeline):
    """A client with two receiving links, which checks all that it is told."""

    def __init__(self, connection: Any, dice: random.Random) -> None:
        self.dice = dice
        self.started: list[int | None] = []
        self.window = 0
        self.count: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.txn_ids: list[bytes] = []
        super().__init__(connection)
        for _ in range(2):
            mode = dice.choice([SenderSettleMode.MIXED, SenderSettleMode.SETTLED])
            handle = self.attach(Role.RECEIVER, source=Source("orders"), snd_settle_mode=mode)
            self.count[handle], self.credit[handle] = 0, 0

    def do(self, performative: Any) -> list[Any]:
        """Hand something over, and check what comes back."""
        frames = super().do(performative)
        self.check(frames)
        return frames

    def check(self, frames: list[Any]) -> None:
        for frame in frames:
            if isinstance(frame, Transfer):
                self.window -= 1
                assert self.window >= 0
                if not frame.aborted:
                    self.check_delivery(frame)
            elif isinstance(frame, Flow) and frame.handle in self.count:
                assert frame.delivery_count is not None
                used = frame.delivery_count - self.count[frame.handle]
                assert used >= 0
                self.count[frame.handle] += used
                self.credit[frame.handle] -= used
                assert frame.link_credit == self.credit[frame.handle]
            elif isinstance(frame, Detach):
                assert frame.error is None or frame.error.symbol != "amqp:internal-error"
                self.count.pop(frame.handle, None)

    def check_delivery(self, frame: Transfer) -> None:
        if frame.delivery_id in self.started:
            return
        assert frame.delivery_id == len(self.started)
        self.started.append(frame.delivery_id)
        self.count[frame.handle] += 1
        self.credit[frame.handle] -= 1
        assert self.credit[frame.handle] >= 0

    def step(self) -> None:
        acts = [self.flow, self.flow, self.dispose_some, self.end_one, self.open, self.tick]
        acts.append(self.read_or_not)
        self.dice.choice(acts)()

    def flow(self) -> None:
        self.window = self.dice.choice([0, 2, 4, 7])
        if not self.count or self.dice.random() < 0.3:
            self.do(Flow(incoming_window=self.window))
            return
        handle = self.dice.choice(list(self.count))
        credit = self.credit[handle] = self.dice.choice([0, 1, 2, 4])
        named = {"txn-id": self.dice.choice([*self.txn_ids, None])}
        flow = Flow(
            handle=handle,
            delivery_count=self.count[handle],
            link_credit=credit,
            incoming_window=self.window,
            properties=self.dice.choice([named, {}]),
            echo=self.dice.random() < 0.3,
            drain=self.dice.random() < 0.2,
        )
        self.do(flow)

    def dispose_some(self) -> None:
        if self.started:
            first = self.dice.randrange(len(self.started))
            last = min(first + self.dice.randrange(3), len(self.started) - 1)
            state: Any = self.dice.choice([Accepted(), Released()])
            live = self.txn_ids and self.control in self.session.links  # else the session ends
            if live and self.dice.random() < 0.6:
                state = TransactionalState(self.dice.choice(self.txn_ids), state)
            self.dispose(state, first, last, settled=self.dice.random() < 0.6)

    def open(self) -> None:
        if self.control in self.session.links:
            self.txn_ids.append(self.declare())

    def end_one(self) -> None:
        if self.txn_ids and self.control in self.session.links:
            txn_id = self.txn_ids.pop(self.dice.randrange(len(self.txn_ids)))
            self.discharge(txn_id, fail=self.dice.random() < 0.5)
        elif self.count and self.dice.random() < 0.1:
            self.do(Detach(handle=self.dice.choice(list(self.count)), closed=False))

    def read_or_not(self) -> None:
        """Read what was sent, or no longer."""
        unread = self.dice.choice([0, 1 << 30])
        self.session.connection.unread = lambda: unread
        self.session.connection.pump()
        self.check(self.session.frames())

    def tick(self) -> None:
        self.session.tick()
        self.check(self.session.frames())


@pytest.mark.parametrize("first", range(0, 3_000 if LONG else 60, 20))
def test_what_is_sent_follows_what_the_client_counts(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 20):
        monkeypatch.setattr(sending_link, "PORTION_GROWTH", 1 + seed % 3)
        manager = memory_manager(MemoryStore(), Clock(), "broker")
        orders = manager.create_queue("orders", "n long")
        orders.send([{"n": n} for n in range(12)])
        connection = TransactionalResource(manager).connect(payload_max=1)
        client = Strict(connection, random.Random(seed))
        client.do(Flow(incoming_window=0))
        for _ in range(STEPS):
            client.step()
        connection.close()
        assert orders.in_flight() == 0
        assert manager.history.verify().ok
