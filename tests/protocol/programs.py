"""The small programs whose interleavings are explored, and what must hold at their end."""

from __future__ import annotations

from tests.protocol.explore import Program
from tests.protocol.world import (
    World,
    check_exactly_once,
    consume_and_change,
    consume_and_produce,
    drain,
)
from txnqueue import model
from txnqueue.errors import LeaseLost


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
            mine = batch.claims[0].claim.sequence
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


def judge(world: World) -> None:
    """When all is over, somebody recovers and drains: nothing is lost, nothing happens twice."""
    world.ledger()
    world.lease_over()
    last = world.manager("last")
    for key in last.recover().prepared:
        last.commit(key)
    drain(last)
    check_exactly_once(world, 2)
