"""A client of a recorded run: draws what it does from its dice, and records all of it.

Messages are ids that nobody else sends: ``<transaction>:<n>``. Transactions are named by their
client and a number, each for one attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.faults.injection import Crash
from tests.histories.history import COMMITTED, ROLLED_BACK
from tests.histories.recorder import Recorder
from tests.inside import claims_of
from txnqueue.core.receipt import Status
from txnqueue.errors import TransactionUnknown, TxnQueueError

QUEUES = ("in", "out")
SCHEMA = "id string"
ACTIONS = {
    "produce": 5,
    "pass_on": 6,
    "consume": 3,
    "lease": 4,
    "look": 3,
    "ask": 1,
    "decide": 1,
    "pause": 1,
}
PASSING = (TxnQueueError, ConnectionError)
"""What the next action of a client does not depend on; the checker knows which may be raised."""
Told = dict[str, Any]
"""What is told of a message that was delivered: its ``id``, its ``lane`` and its ``claim``."""
DRAINED_IN_A_ROW, DRAINS_MAX = 2, 40
"""A queue is drained when it was empty so often; what is left after so many tries, is lost."""


def create_queues(manager: Any, lease_seconds: float, lanes: int) -> None:
    """Create the queues of a run."""
    for name in QUEUES:
        manager.create_queue(
            name,
            SCHEMA,
            lanes=lanes,
            lease_seconds=lease_seconds,
            deliveries_max=1_000,
            dead_letter=False,
        )


class Client:
    """One client: a manager of its own, a name, and dice."""

    def __init__(
        self,
        name: str,
        manager: Any,
        recorder: Recorder,
        dice: random.Random,
        *,
        pause: Callable[[], object],
        snapshot: Callable[[], Any],
    ) -> None:
        """Hold what it works with.

        Args:
            name: Names its transactions; never two alike in a run.
            manager: Its manager.
            recorder: Records it.
            dice: Decides what it does.
            pause: Waits longer than any lease.
            snapshot: Looks at the store as of now, and gives a snapshot of the history.
        """
        self.name, self.manager, self.dice = name, manager, dice
        self._pause, self._snapshot = pause, snapshot
        self._call = recorder.call
        self._number = 0
        self._unknown: list[str] = []
        self._batches: list[tuple[str, Any, list[Told]]] = []

    def step(self) -> None:
        """Do one thing; what it may be told in a conflict or a fault does not stop it."""
        (name,) = self.dice.choices(list(ACTIONS), list(ACTIONS.values()))
        try:
            getattr(self, name)()
        except PASSING:
            return

    # ------------------------------------------------------------------------- actions

    def produce(self) -> None:
        """Send to one queue or to both, and end the transaction."""
        key, tx = self._begin()
        with _RolledBack(self, tx, key):
            for queue in self.dice.sample(QUEUES, self.dice.randint(1, 2)):
                self._send(tx, key, queue, self.dice.randint(1, 4))
            self._end(tx, key)

    def pass_on(self) -> None:
        """Take from one queue and send to the other."""
        key, tx = self._begin()
        with _RolledBack(self, tx, key):
            _, found = self._receive("in", key, tx)
            if found:
                self._send(tx, key, "out", len(found))
            self._end(tx, key)

    def consume(self) -> None:
        """Take from one or two queues."""
        key, tx = self._begin()
        with _RolledBack(self, tx, key):
            for queue in self.dice.sample(QUEUES, self.dice.randint(1, 2)):
                self._receive(queue, key, tx)
            self._end(tx, key)

    def lease(self) -> None:
        """Receive outside of transactions, or settle what was received: in time or not."""
        if not self._batches or self.dice.random() < 0.5:
            queue = self.dice.choice(QUEUES)
            batch, told = self._receive(queue, None, None)
            if told:
                self._batches.append((queue, batch, told))
            return
        queue, batch, told = self._batches.pop(self.dice.randrange(len(self._batches)))
        how = "accept" if self.dice.random() < 0.7 else "release"
        self._call(how, getattr(batch, how), queue=queue, messages=told)

    def look(self) -> None:
        """Look at both queues at one moment."""
        self._call("look", self._seen, told=lambda seen: seen)

    def ask(self) -> None:
        """Ask what became of a transaction of its own, first of those that nobody answered for."""
        number = self.dice.randint(1, self._number) if self._number else None
        if self._unknown:
            key = self._unknown.pop()
        elif number is not None:
            key = f"{self.name}/{number}"
        else:
            return
        self._call("outcome", lambda: self.manager.outcome(key), key, _status)

    def decide(self) -> None:
        """Decide something that is prepared, whoever did that."""
        waiting = self._recover()
        if waiting:
            self._decide(self.dice.choice(waiting), commit=self.dice.random() < 0.7)

    def pause(self) -> None:
        """Do nothing until every lease is over."""
        self._pause()

    def drain(self) -> None:
        """Let everything come to its end: decide, recover, and take what is left."""
        self._pause()
        for key in self._recover():
            self._decide(key, commit=True)
        self._recover()
        for queue in QUEUES:
            empty = 0
            for _ in range(DRAINS_MAX):
                key, tx = self._begin()
                _, found = self._receive(queue, key, tx, limit=1_000)
                empty = 0 if found else empty + 1
                self._commit(tx, key)
                if empty == DRAINED_IN_A_ROW:
                    break
                if not found:
                    self._pause()
        self.look()

    # ------------------------------------------------------------------------- helpers

    def _begin(self) -> tuple[str, Any]:
        self._number += 1
        key = f"{self.name}/{self._number}"
        return key, self._call("begin", lambda: self.manager.transaction(key), key)

    def _recover(self) -> list[str]:
        recovery = self._call("recover", self.manager.recover)
        return list(recovery.prepared)

    def _send(self, tx: Any, key: str, queue: str, count: int) -> None:
        ids = [f"{key}:{queue}{n}" for n in range(count)]
        rows = [{"id": one} for one in ids]

        def send() -> Any:
            return self.manager.queue(queue).send(rows, transaction=tx)

        self._call("send", send, key, queue=queue, ids=ids)

    def _receive(
        self, queue: str, key: str | None, tx: Any, limit: int | None = None
    ) -> tuple[Any, list[Told]]:
        most = limit or self.dice.randint(1, 4)

        def receive() -> tuple[Any, list[Told]]:
            batch = self.manager.queue(queue).receive(most, transaction=tx)
            return batch, _messages_of(batch)

        answer: tuple[Any, list[Told]] = self._call(
            "receive", receive, key, lambda got: {"messages": got[1]}, queue=queue
        )
        return answer

    def _end(self, tx: Any, key: str) -> None:
        chance = self.dice.random()
        if chance < 0.15:
            self._call("rollback", tx.rollback, key)
        elif chance < 0.3:
            self._call("prepare", tx.prepare, key)
            if self.dice.random() < 0.5:
                self._commit(tx, key)
        else:
            self._commit(tx, key)

    def _commit(self, tx: Any, key: str) -> None:
        self._call("commit", tx.commit, key, lambda receipt: {"seq": receipt.commit_seq})

    def _decide(self, key: str, *, commit: bool) -> None:
        how = self.manager.commit if commit else self.manager.rollback
        self._call("decide", lambda: how(key), key, commit=commit)

    def _seen(self) -> dict[str, Any]:
        snapshot = self._snapshot()
        rows = snapshot.transactions().rows()
        return {
            "seq": snapshot.commit_seq,
            "committed": [r["transaction_id"] for r in rows if r["status"] == COMMITTED],
            "states": {
                queue: {m["id"]: m["state"] for m in snapshot.messages(queue).rows()}
                for queue in QUEUES
            },
        }

    def roll_back(self, tx: Any, key: str) -> None:
        """Give up a transaction that something went wrong in."""
        if tx.status is Status.ACTIVE:
            self._call("rollback", tx.rollback, key)

    def in_doubt(self, key: str) -> None:
        """Keep in mind that nobody knows of a transaction."""
        self._unknown.append(key)


class _RolledBack:
    """Gives a transaction up if something in it fails, as a handler does."""

    def __init__(self, client: Client, tx: Any, key: str) -> None:
        self._client, self._tx, self._key = client, tx, key

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Roll back after an error; not after a crash, and not what is in doubt."""
        if kind is None or issubclass(kind, Crash):
            return
        if issubclass(kind, TransactionUnknown):
            self._client.in_doubt(self._key)
        else:
            self._client.roll_back(self._tx, self._key)


def _messages_of(batch: Any) -> list[Told]:
    """Tell of each message of a batch which claim delivered it."""
    claims = {
        (one.positions[position_id].send_id, offset): one.claim.sequence
        for one in claims_of(batch)
        for position_id, part in one.claim.items.items()
        for first, last in part
        for offset in range(first, last + 1)
    }
    rows = [(row["id"], row["_message"]) for row in batch.messages()]
    return [
        {"id": i, "lane": about["lane"], "claim": claims[about["send_id"], about["send_offset"]]}
        for i, about in rows
    ]


def _status(outcome: Any) -> dict[str, str]:
    said = {Status.COMMITTED: COMMITTED, Status.ROLLED_BACK: ROLLED_BACK}
    return {"status": said.get(outcome.status, outcome.status.value)}
