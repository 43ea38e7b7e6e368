"""The small programs whose interleavings are explored, and what must hold at their end."""

from __future__ import annotations

from typing import Any

from tests.faults.explore import Program
from tests.faults.world import (
    LEASE_SECONDS,
    World,
    check_exactly_once,
    consume_and_change,
    consume_and_produce,
    drain,
)
from tests.inside import claims_of, client_of
from txnqueue.core import model
from txnqueue.core.state.branch import Ending
from txnqueue.errors import BranchExists, LeaseLost
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.protocols.dtx.sessions import BranchSession


def build(world: World) -> None:
    """Two queues; two messages wait in the first one, in one lane."""
    world.create("in", dead_letter=False)
    world.create("out", dead_letter=False)
    world.create_table()
    world.helper("creator").queue("in").send([{"i": 0}, {"i": 1}])


def consumer(name: str, key: str | None = None, limit: int = 1) -> Program:
    """Receive, produce and commit, in one transaction."""

    def program(world: World) -> None:
        manager = world.manager(name)
        tx = manager.transaction(key)
        consume_and_produce(manager.queue("in").receive(limit, transaction=tx), tx)
        tx.commit()

    return program


def changer(name: str) -> Program:
    """Receive, produce and change a table of the user's, in one transaction."""

    def program(world: World) -> None:
        manager = world.manager(name)
        tx = manager.transaction()
        batch = manager.queue("in").receive(1, transaction=tx)
        consume_and_change(batch, tx, world.table)
        tx.commit()

    return program


def acknowledger(name: str) -> Program:
    """Receive under a lease and accept."""

    def program(world: World) -> None:
        batch = world.manager(name).queue("in").receive(1)
        if not len(batch):
            return
        try:
            batch.accept()
        except LeaseLost:
            mine = claims_of(batch)[0].claim.sequence
            landed = [
                entry
                for entries, _ in world.store.journal.commits
                for entry in entries
                if entry.kind == model.ACCEPTED and entry.claim_sequence == mine
            ]
            assert not landed, f"P9 {name} was told that its lease was lost, and had accepted"
            raise

    return program


def binder(name: str) -> Program:
    """Receive under a lease, and accept in a transaction that produces."""

    def program(world: World) -> None:
        manager = world.manager(name)
        batch = manager.queue("in").receive(1)
        tx = manager.transaction()
        if len(batch):
            consume_and_produce(batch, tx)
            batch.accept(transaction=tx)
        tx.commit()

    return program


def preparer(name: str, key: str) -> Program:
    """Receive, produce, prepare and commit."""

    def program(world: World) -> None:
        manager = world.manager(name)
        tx = manager.transaction(key)
        consume_and_produce(manager.queue("in").receive(1, transaction=tx), tx)
        tx.prepare()
        tx.commit()

    return program


def rolls_back(name: str) -> Program:
    """Receive, produce and roll back."""

    def program(world: World) -> None:
        manager = world.manager(name)
        tx = manager.transaction()
        consume_and_produce(manager.queue("in").receive(1, transaction=tx), tx)
        tx.rollback()

    return program


def drainer(name: str) -> Program:
    """Consume one by one: each commit is joined with the next claim."""

    def program(world: World) -> None:
        world.manager(name).queue("in").drain(
            consume_and_produce, batch_size=1, run_id="R", until="empty"
        )

    return program


def recoverer(name: str) -> Program:
    """Abort what is over, and decide what is prepared."""

    def program(world: World) -> None:
        manager = world.manager(name)
        for key in manager.recover().prepared:
            manager.commit(key)

    return program


def dropper(name: str, queue: str = "out") -> Program:
    """Drop the queue that the others produce to."""

    def program(world: World) -> None:
        result = world.manager(name).drop_queue(queue)
        assert result.dropped or result.held_by, "P5 it is held back by nothing"

    return program


KEY = "xid:1:K"


def build_branch(world: World) -> None:
    """Besides, a branch that is started, and in which nobody works."""
    build(world)
    branches: Any = Branches(client_of(world.helper("starter")))
    branches.end(branches.start(KEY, LEASE_SECONDS))


def build_parts(world: World) -> None:
    """Besides, a branch in which two sessions have worked, and have not ended."""
    build(world)
    first, second = (Branches(client_of(world.helper(name))) for name in ("X", "Y"))
    session = first.start(KEY, LEASE_SECONDS)
    joined = second.join(KEY)
    assert not isinstance(joined, Ending)
    for one in (session, joined):
        consume_and_produce(one.queue("in").receive(1), one)
    world.sessions.update({"A": (first, session), "B": (second, joined)})


def build_prepared(world: World) -> None:
    """Besides, that branch is prepared; it is rolled back only if somebody says so."""
    build_parts(world)
    for branches, session in world.sessions.values():
        branches.end(session)
    assert Branches(client_of(world.helper("X"))).prepare(KEY) is Ending.DONE
    world.explicit.add(KEY)


def ender(name: str) -> Program:
    """End what was begun."""

    def program(world: World) -> None:
        branches, session = world.sessions[name]
        branches.end(session)

    return program


def judge_drop(world: World) -> None:
    """When all is over, the queue is gone or open, and whoever committed did both or nothing."""
    world.ledger()
    target = next(e for e in world.entries() if e.body.get("name") == "out").queue_id
    world.lease_over()
    last = world.manager("last")
    for key in last.recover().prepared:
        last.commit(key)
    assert all(drop.dropped for drop in last.recover().drops), "P5 held back by what is decided"
    ledger = world.ledger()
    assert ledger.closed.get(target or "") != model.QUEUE_CLOSING, "the drop is not finished"
    assert (target in ledger.closed) == ("out" not in last.list_queues())
    for attempt in ledger.committed.values():
        taken = [e for e in ledger.retired.values() if e.attempt == attempt]
        made = [e for e in ledger.posted.values() if e.attempt == attempt and e.queue_id == target]
        assert all(e.kind == model.ACCEPTED for e in taken)
        if made or taken:
            assert len(taken) == len(made), f"P1 {attempt} took {len(taken)}, made {len(made)}"
    source = world.queue_id("in")
    accepted = [e for e in ledger.retired.values() if e.queue_id == source]
    assert last.queue("in").depth() == 2 - len(accepted), "P2 what was aborted is there again"


def judge_source_dropped(world: World) -> None:
    """When all is over, every message that was sent went one way, and once."""
    last = world.manager("last")
    last.recover()
    ledger = world.ledger()
    if "in" not in last.list_queues():
        assert len(ledger.retired) == len(ledger.posted) == 2, "P2 nothing is left over"


def starter(name: str) -> Program:
    """Start the branch and work in it; whoever comes second joins."""

    def program(world: World) -> None:
        branches: Any = Branches(client_of(world.manager(name)))
        try:
            session = branches.start(KEY, LEASE_SECONDS)
        except BranchExists:
            _take_part(branches)
        else:
            _work(branches, session)

    return program


def joiner(name: str) -> Program:
    """Join the branch, receive, produce, and end."""

    def program(world: World) -> None:
        _take_part(Branches(client_of(world.manager(name))))

    return program


def _take_part(branches: Branches) -> None:
    found = branches.join(KEY)
    if not isinstance(found, Ending):
        _work(branches, found)


def _work(branches: Branches, session: BranchSession) -> None:
    consume_and_produce(session.queue("in").receive(1), session)
    branches.end(session)


def suspender(name: str) -> Program:
    """Start, work, suspend, resume, work and end."""

    def program(world: World) -> None:
        branches: Any = Branches(client_of(world.manager(name)))
        session = branches.start(KEY, LEASE_SECONDS)
        consume_and_produce(session.queue("in").receive(1), session)
        branches.end(session, suspend=True)
        found = branches.resume(KEY, session)
        if not isinstance(found, Ending):
            _work(branches, found)

    return program


def undoer(name: str) -> Program:
    """Roll the branch back."""

    def program(world: World) -> None:
        Branches(client_of(world.manager(name))).rollback(KEY)

    return program


def coordinator(name: str, *, one_phase: bool = False, prepared: bool = False) -> Program:
    """Prepare and commit the branch, or commit it in one phase."""

    def program(world: World) -> None:
        branches: Any = Branches(client_of(world.manager(name)))
        if one_phase:
            branches.commit(KEY, one_phase=True)
        elif prepared or branches.prepare(KEY) is Ending.DONE:
            branches.commit(KEY)

    return program


def operator(name: str) -> Program:
    """Commit the branch over everybody's head, if it is prepared."""

    def program(world: World) -> None:
        manager = world.manager(name)
        manager.decide_heuristically(KEY, commit=True, reason="gone")

    return program


def judge(world: World) -> None:
    """When all is over, somebody recovers and drains: nothing is lost, nothing happens twice."""
    world.ledger()
    world.lease_over()
    last = world.manager("last")
    for key in last.recover().prepared:
        last.commit(key)
    drain(last)
    check_exactly_once(world, world.ledger(), 2)
