"""Work of both kinds under every fault: what is in memory does as the journal decided.

And protocols for it that are wrong on purpose, each of which must be caught.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, FaultyStore, Injector, faults_of
from tests.faults.world import LEASE_SECONDS, RETRY, World
from tests.inside import client_of
from txnqueue.core import model
from txnqueue.core.redelivery import AT_ONCE
from txnqueue.errors import InvalidInput, LeaseLost, PayloadRemoved, TxnQueueError
from txnqueue.manager import QueueManager
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.storage.transient import TransientStore
from txnqueue.testing import runtime
from txnqueue.transactions import transient
from txnqueue.transactions.transient import TransientWork

Act = Callable[[QueueManager, Any], Any]


def commits(client: QueueManager, batch: Any) -> Any:
    """Receive and send both kinds in one transaction."""
    tx = client.transaction("T")
    client.queue("in").receive(10, transaction=tx)
    client.queue("out").send([{"i": 10}], transaction=tx)
    client.queue("out").send([{"i": 11}], transaction=tx, durable=False)
    tx.commit()
    return tx


def settles_leased(client: QueueManager, batch: Any) -> Any:
    """Settle in a transaction what was held before."""
    tx = client.transaction("T")
    client.queue("out").send([{"i": 10}], transaction=tx)
    client.queue("out").send([{"i": 11}], transaction=tx, durable=False)
    batch.accept(transaction=tx)
    tx.commit()
    return tx


def rolls_back(client: QueueManager, batch: Any) -> Any:
    """Receive and send both kinds, and take it back."""
    tx = client.transaction("T")
    client.queue("in").receive(10, transaction=tx)
    client.queue("out").send([{"i": 11}], transaction=tx, durable=False)
    tx.rollback()
    return tx


def publishes(client: QueueManager, batch: Any) -> Any:
    """Receive both kinds and publish both, while somebody tidies up in memory."""
    tx = client.transaction("T")
    client.queue("in").receive(10, transaction=tx)
    client.exchange("events").publish([{"i": 10}], transaction=tx)
    client.exchange("events").publish([{"i": 11}], transaction=tx, durable=False)
    client_of(client).store.transient.tidy()
    tx.commit()
    return tx


ACTS: dict[str, Act] = {
    "commit": commits,
    "publish": publishes,
    "settle": settles_leased,
    "rollback": rolls_back,
}


class Place:
    """One process with both kinds of messages, whose way to the store may be spoiled."""

    def __init__(self, at: int | None = None, fault: Fault | None = None) -> None:
        self.world = World()
        self.world.create("in", dead_letter=False)
        self.world.create("out", dead_letter=False)
        self.injector = Injector(at, fault)
        self.store: Any = FaultyStore(self.world.store, self.injector)
        self.client = self.manager("A")
        self.client.create_exchange("events", "fanout", "i long not null").bind("out")
        queue = self.client.queue("in")
        queue.send([{"i": 0}, {"i": 1}])
        queue.send([{"i": 2}, {"i": 3}], durable=False)

    def manager(self, name: str) -> QueueManager:
        """Start a client in the same process."""
        made = runtime(self.world.clock, f"{name}#{self.world.generation}", RETRY)
        self.world.generation += 1
        made.actor = made.consumer = name
        return QueueManager(None, "memory", store=self.store, runtime=made)

    def committed(self) -> bool:
        """Whether the journal says that it was."""
        return any(e.kind == model.COMMITTED and e.stream == "T" for e in self.world.entries())

    def check(self, *, late: bool = False) -> None:
        """Whatever happened: all of it, of both kinds, or nothing.

        Args:
            late: Whether what is on its way lands after the recovery, and not before it.
        """
        self.injector.disarm()
        if self.injector.dead:  # what was in memory is gone with the process
            self.injector.dead = False
            self.store.transient = TransientStore("reborn")
            self.client = self.manager("A")
        before = self.standing("out")
        assert before in ((0, 0), (1, 1), (1, 0)), f"P1 {before} of each kind are out"
        if not late:
            self.injector.flush()
        self.client.recover()
        self.injector.flush()
        self.world.clock.advance(LEASE_SECONDS + 1)
        last = self.manager("last")
        expected = [10, 11] if self.committed() else [0, 1, 2, 3]
        if not self.store.transient.used:
            expected = [i for i in expected if i not in (2, 3, 11)]
        found = sorted(self.drained(last))
        assert found == expected, f"P1 {found} came, and not {expected}"
        self.world.ledger()

    def standing(self, name: str) -> tuple[int, int]:
        """Count what can be received of each kind."""
        client, info = client_of(self.client), self.client.queue(name).info
        now_ms = self.world.clock.now_ms
        with client.transient.lock:
            memory = client.transient.states.fold(info.in_memory()).available(now_ms, AT_ONCE)
        with client.lock:
            return client.states.fold(info).available(now_ms, AT_ONCE), memory

    def drained(self, client: QueueManager) -> Iterator[int]:
        """Receive and accept whatever there is."""
        for name in ("in", "out"):
            while len(batch := client.queue(name).receive(10)):
                yield from (row["i"] for row in batch.messages())
                batch.accept()


def run(act: Act, at: int | None, fault: Fault | None, *, late: bool = False) -> list[str]:
    """Do it with one fault, and check what became of it; answers which calls it made."""
    place = Place(at, fault)
    batch = place.client.queue("in").receive(10) if act is settles_leased else None
    place.injector.arm()
    with contextlib.suppress(Crash, KeyboardInterrupt, TxnQueueError, ConnectionError):
        act(place.client, batch)
    place.check(late=late)
    return place.injector.calls


def all_faults(act: Act) -> int:
    """Try every fault at every call."""
    count = 0
    for at, call in enumerate(run(act, None, None)):
        for fault in faults_of(call):
            for late in (False, True):
                try:
                    run(act, at, fault, late=late)
                except AssertionError as error:
                    raise AssertionError(f"{call} {at} {fault.value}: {error}") from error
                count += 1
    return count


@pytest.mark.parametrize("name", ACTS)
def test_both_kinds_have_one_outcome_under_every_fault(name: str) -> None:
    assert all_faults(ACTS[name]) > 5


def overtaken() -> None:
    """Somebody of the same process looks for what is over, while the decision is on its way."""
    place = Place()
    other = place.manager("B").queue("in")
    tx = place.client.transaction("T")
    place.client.queue("in").receive(10, transaction=tx)
    place.client.queue("out").send([{"i": 10}], transaction=tx)
    place.client.queue("out").send([{"i": 11}], transaction=tx, durable=False)
    journal, append = place.world.store.journal, place.world.store.journal.append

    def slow(*args: Any) -> Any:
        journal.append = append
        answer = append(*args)
        place.world.clock.advance(LEASE_SECONDS + 1)
        other.receive(10)
        return answer

    journal.append = slow
    tx.commit()
    place.check()


def test_nobody_overtakes_a_decision_that_is_on_its_way() -> None:
    overtaken()


def not_prepared_first(patch: pytest.MonkeyPatch) -> None:
    """Commit in memory after the decision, without having made sure that it can be."""

    def commit(self: TransientWork) -> None:
        if self:
            with contextlib.suppress(LeaseLost, TxnQueueError):
                self._seal(model.COMMITTED)

    patch.setattr(TransientWork, "prepare", lambda self: None)
    patch.setattr(TransientWork, "commit", commit)


def memory_first(patch: pytest.MonkeyPatch) -> None:
    """Commit in memory before the journal has decided."""
    patch.setattr(TransientWork, "prepare", lambda self: self._seal(model.COMMITTED))


def doubt_is_no(patch: pytest.MonkeyPatch) -> None:
    """Take an exception for an outcome."""
    deciding = TransientWork.deciding

    def hasty(self: TransientWork) -> Any:
        with deciding(self):
            try:
                yield
            except BaseException:
                self.rollback("failed", counted=True)
                raise

    patch.setattr(TransientWork, "deciding", contextlib.contextmanager(hasty))


def never_follows(patch: pytest.MonkeyPatch) -> None:
    """Forget what waits in memory for an outcome."""
    patch.setattr(transient, "_resolve", lambda *_, **_named: None)


def published_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Take what was published for the queue's own payload when tidying up."""

    def staged(self: TransientWork) -> list[tuple[str, str]]:
        sends = [send for send in self._work.sends if send.info.transient]
        return [(send.info.payload_id, send.send_id) for send in sends]

    patch.setattr(TransientWork, "staged", staged)


def anybody_may(patch: pytest.MonkeyPatch) -> None:
    """Let branches, which other processes commit, publish to the memory of this one."""
    patch.setattr(
        "txnqueue.messages.publish.is_kept", lambda durable, *_, **_named: durable is not False
    )


def publishing() -> None:
    """Publish both kinds, and receive what was published."""
    try:
        run(publishes, None, None)
    except PayloadRemoved as error:
        raise AssertionError(f"P2 {error}") from error


def in_a_branch() -> None:
    """Publish in a branch: it is refused, or what was published is there after the commit."""
    place = Place()
    branches: Any = Branches(client_of(place.client))
    session = branches.start("xid:1", 60)
    try:
        session.exchange("events").publish([{"i": 11}], durable=False)
    except InvalidInput:
        return
    branches.end(session)
    branches.commit("xid:1", one_phase=True)
    assert place.standing("out") == (0, 1), "P1 a message of a committed branch is lost"


def test_a_branch_publishes_nothing_in_memory() -> None:
    in_a_branch()


def all_commits() -> None:
    """Every fault in a commit of both kinds."""
    all_faults(commits)


VARIANTS = {
    "not prepared first": (not_prepared_first, overtaken),
    "memory first": (memory_first, all_commits),
    "doubt taken for a roll back": (doubt_is_no, all_commits),
    "nobody follows a decision": (never_follows, all_commits),
    "what is published is forgotten": (published_is_forgotten, publishing),
    "branches publish to memory": (anybody_may, in_a_branch),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_protocol_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, catch = VARIANTS[name]
    broken(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        catch()
    print(f"{name}: {str(caught.value)[:150]}")
