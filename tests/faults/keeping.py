"""What maintenance must never do, each as a check that can be run on right and wrong code."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any
from unittest import mock

from tests.faults.injection import Crash, Fault, Injector, Meanwhile, faults_of
from tests.faults.matrix import fresh
from tests.faults.pasts import everything
from tests.faults.world import World
from tests.inside import client_of
from txnqueue.admin import creation, orphans
from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.core.receipt import Status
from txnqueue.core.state import catalog as catalog_of
from txnqueue.core.state.branch import Ending
from txnqueue.errors import Busy, LeaseLost, PayloadRemoved, TransactionAborted, TxnQueueError
from txnqueue.manager import QueueManager
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.transaction import Transaction

AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}


def used(world: World) -> None:
    """Let some messages come and go in the queue ``out``."""
    manager = world.helper("user")
    queue = manager.queue("out")
    queue.send([{"i": n} for n in range(3)])
    queue.receive(1).accept()
    with manager.transaction() as tx:
        tx.queue("out").receive(1)


def maintain(world: World, name: str = "keeper") -> QueueManager:
    """Let a fresh client maintain the store, twice: the newest entry leaves by the second."""
    manager = world.manager(name)
    manager.maintain(**AT_ONCE)
    used(world)
    manager.maintain(**AT_ONCE)
    return manager


def horizon_of(world: World) -> int:
    """Read the horizon."""
    return model.horizon(world.store.journal.read([model.FENCE]).entries)


def nothing_is_lost_between_journal_and_archive() -> None:
    """Crash at every call of a maintenance: every entry that ever landed is still there."""
    calls = 1
    at = 0
    while at < calls:
        world = fresh()
        used(world)
        injector = Injector(at, Fault.CRASH_BEFORE)
        keeper = world.manager("keeper", injector)
        keeper.list_queues()
        injector.arm()
        try:
            keeper.maintain(**AT_ONCE)
        except Crash:
            calls = at + 2
        commits = world.store.journal.commits
        landed = {entry.entry_id for entries, _ in commits for entry in entries}
        found = {entry.entry_id for entry in everything(world.store)}
        assert found == landed, f"P4 crash at call {at}: {len(landed - found)} entries are gone"
        at += 1
    assert at > 8, "the maintenance did next to nothing"


def a_cold_client_knows_what_failed() -> None:
    """Deliver a message in vain as often as is allowed, with fresh clients in between."""
    world = fresh()
    world.helper("sender").queue("in").send([{"i": 1}])
    for n in range(3):
        batch = world.manager(f"c{n}").queue("in").receive(1)
        assert len(batch), f"P2 the message is not there at delivery {n}"
        said = batch.messages()[0]["_message"]["delivery_count"]
        assert said == n, f"P2 delivery {n} is said to be the {said}th"
        batch.modify()
        maintain(world)
    world.ledger()


def what_is_in_flight_stays_with_its_holder() -> None:
    """Hold a message while the lane is compacted and archived; then settle it."""
    world = fresh()
    sender = world.helper("sender").queue("in")
    sender.send([{"i": n} for n in range(4)])
    held = world.helper("holder").queue("in").receive(2)
    maintain(world)
    taken = world.manager("rival").queue("in").receive(100)
    both = {r["i"] for r in held.messages()} & {r["i"] for r in taken.messages()}
    assert not both, f"P2 {both} are delivered twice"
    try:
        held.accept()
    except LeaseLost as error:
        raise AssertionError("P2 the holder lost what was in flight") from error
    world.ledger()


def nobody_decides_below_the_horizon() -> None:
    """Let a transaction sleep while its messages are given to others without a tombstone."""
    world = fresh()
    world.helper("sender").queue("in").send([{"i": 1}])
    sleeper = world.helper("sleeper").transaction("S")
    sleeper.queue("in").receive(1).accept()
    world.lease_over()
    maintain(world)
    batch = world.manager("next").queue("in").receive(1)
    assert len(batch), "P2 the message does not come back"
    batch.accept()
    with contextlib.suppress(TransactionAborted):
        sleeper.commit()
    world.ledger()


def what_was_prepared_can_be_carried_out() -> None:
    """Let a prepared send wait while its slice of the payload is long over."""
    with mock.patch.object(creation, "SLICE_WIDTH", 1):
        world = fresh()
        tx = world.helper("preparing").transaction("P")
        tx.queue("in").send([{"i": 77}])
        tx.prepare()
        world.clock.advance(30 * 24 * 3600)
        keeper = maintain(world)
        assert keeper.recover().prepared == ("P",), "P5 what is prepared is listed, and no more"
        keeper.commit("P")
        taken = world.manager("next").queue("in").receive(100)
        try:
            found = [row["i"] for row in taken.messages()]
        except PayloadRemoved as error:
            raise AssertionError("P5 what was prepared has no payload") from error
        assert 77 in found, f"P5 {found}"
        taken.accept()
        keeper = maintain(world)
        used(world)
        keeper.maintain(**AT_ONCE)
        left = [e.kind for e in world.store.journal.read_all().entries if e.stream == "P"]
        assert not left, f"{left} of a decided transaction are left"
        assert keeper.recover().prepared == (), "P5 what is decided is prepared again"
        world.explicit.add("P")
        world.ledger()


def an_id_is_used_once() -> None:
    """Repeat a transaction whose commit is in the archive."""
    world = fresh()
    for _ in range(2):
        with world.manager("job").transaction("nightly") as tx:
            tx.queue("in").send([{"i": 5}])
        maintain(world)
    entries = everything(world.store)
    committed = [e for e in entries if e.kind == model.COMMITTED and e.stream == "nightly"]
    assert len(committed) == 1, "P1 nightly was committed twice"


def what_is_prepared_is_nobody_elses() -> None:
    """Prepare, and move the horizon on, at every reading of somebody who takes messages over.

    Of two transactions whose leases are over, the taker has read one before.
    """
    nth, acted = 1, True
    while acted:
        world = fresh()
        world.create("one", dead_letter=False)
        user, key = world.helper("user").queue("one"), "prepared"
        user.send([{"i": n} for n in range(4)])
        while len(batch := user.receive(10)):
            batch.accept()
        used(world)
        user.send([{"i": n} for n in range(10, 14)])
        held = world.manager("preparing").transaction(key)
        held.queue("one").receive(1)
        others = (f"other-{n}" for n in range(model.TRANSACTION_SHARDS))
        shard = model.transaction_shard(key)
        other = next(name for name in others if model.transaction_shard(name) != shard)
        world.manager("other").transaction(other).queue("one").receive(1)
        used(world)
        world.manager("keeper").maintain(**AT_ONCE)  # compacts, so that the next one need not

        def meanwhile(world: World = world, held: Transaction = held) -> None:
            with contextlib.suppress(TransactionAborted):  # late in the call the taker has it
                held.prepare()
            used(world)
            world.manager("keeper").maintain(**AT_ONCE)

        injector = Meanwhile("read", nth, meanwhile)
        taker = world.manager("taker", injector)
        queue = taker.queue("one")
        taker.outcome(key)
        world.lease_over()
        used(world)
        injector.arm()
        queue.receive(100).accept()
        injector.disarm()
        acted = injector.acted
        if held.status is Status.PREPARED:
            world.manager("next").commit(key)
        world.explicit.add(key)
        world.ledger()
        nth += 1
    assert nth > 4, "nobody acted in between"


def what_the_horizon_has_passed_is_over() -> None:
    """Start a branch while a maintenance is about to move the horizon past its beginning."""
    world = fresh()
    world.helper("user").queue("in").send([{"i": 1}])
    slow = world.manager("slow")
    begun = client_of(slow).store.journal.version()
    client_of(slow).cache.version_to_begin = lambda: begun
    branches, sessions = Branches(client_of(slow)), []
    used(world)

    def meanwhile() -> None:
        sessions.append(branches.start("xid:1:67:62", 30.0))
        assert len(sessions[0].queue("in").receive(1))

    injector = Meanwhile("create", 1, meanwhile)  # of the archive: the horizon comes next
    keeper = world.manager("keeper", injector)
    keeper.list_queues()
    injector.arm()
    keeper.maintain(**AT_ONCE)
    injector.disarm()
    horizon = horizon_of(world)
    assert injector.acted and begun < horizon, "the horizon was never moved"
    assert slow.outcome("xid:1:67:62").status is Status.ROLLED_BACK, "P6 it seems undecided"
    assert branches.join("xid:1:67:62") is Ending.TIMED_OUT, "P6 its client is not told"
    slow.rollback("xid:1:67:62")
    world.lease_over()
    try:
        world.manager("next").recover()
    except Busy as error:
        raise AssertionError("P7 nobody can recover any more") from error
    assert len(world.manager("next").queue("in").receive(1)), "P2 the message does not come back"
    maintain(world)
    moved = horizon_of(world)
    assert moved > horizon, "what is over holds the horizon back for ever"
    world.ledger()


def as_an_older_version_does(world: World) -> None:
    """Remove payload tables that nothing names, as 0.1.0 does: it says so first."""
    journal, payload = world.store.journal, world.store.payload
    catalog = journal.read([model.CATALOG]).entries
    for owner in payload.orphans(orphans.owners(catalog)):
        stream, name = model.payload_stream(owner), owner.rpartition("-")[0]
        body = {"v": 1, "payload": owner}
        if not any(entry.stream == stream for entry in catalog):
            entry = Entry(model.CATALOG, stream, model.PAYLOAD_REMOVED, sequence=1, body=body)
            nexts = (
                model.next_sequence(model.CATALOG, one, catalog_of.next_of_stream(catalog, one))
                for one in (stream, catalog_of.name_stream(name))
            )
            unit = Unit.of("older", (entry,), tuple(nexts), "remove payload")
            if not journal.append([unit], {"operation": "remove payload", "run_id": None}).won[0]:
                continue
        del payload._columns[owner]


def what_is_created_has_its_payload() -> None:
    """Spoil every call of a creation, and maintain before and after what lands late.

    Those who maintain list what nothing names yet, and one of an older version removes it.
    """

    def create(manager: QueueManager) -> Any:
        return manager.create_queue("new", "i long", exist_ok=True)

    def keep(world: World, older: bool) -> None:
        if older:
            as_an_older_version_does(world)
        else:
            world.manager("keeper").maintain(**AT_ONCE)

    def check(world: World, what: str) -> None:
        payload = world.store.payload
        catalog = world.store.journal.read([model.CATALOG]).entries
        lacking = orphans.owners(catalog) - set(payload.orphans(()))
        assert not lacking, f"P2 {what}: {lacking} have no payload"
        queue = create(world.manager("after"))
        queue.send([{"i": 1}])
        assert len(queue.receive(1)), f"P2 {what}: the queue is of no use"
        found = world.manager("keeper").maintain(**AT_ONCE, dry_run=True).orphans
        catalog = world.store.journal.read([model.CATALOG]).entries
        assert set(found) == payload.orphans(()).keys() - orphans.owners(catalog), what
        world.ledger()

    counting = Injector()
    counting.arm()
    create(fresh().manager("counting", counting))
    for older in (False, True):
        for at, call in enumerate(counting.calls):
            for fault in faults_of(call):
                world, injector = fresh(), Injector(at, fault)
                creator = world.manager("creator", injector)
                injector.arm()
                with contextlib.suppress(Crash, KeyboardInterrupt, TxnQueueError, ConnectionError):
                    create(creator)
                keep(world, older)
                injector.flush()
                check(world, f"{fault.value} at {call}")
        for nth in range(1, counting.calls.count("append") + counting.calls.count("read") + 1):
            for call in ("append", "read"):
                world = fresh()
                injector = Meanwhile(call, nth, partial(keep, world, older))
                creator = world.manager("creator", injector)
                injector.arm()
                made = create(creator)
                assert made.info.payload_id in world.store.payload.orphans(()), "its table is gone"
                check(world, f"maintained before {call} {nth}")


CHECKS = [
    nothing_is_lost_between_journal_and_archive,
    a_cold_client_knows_what_failed,
    what_is_in_flight_stays_with_its_holder,
    nobody_decides_below_the_horizon,
    what_was_prepared_can_be_carried_out,
    an_id_is_used_once,
    what_is_prepared_is_nobody_elses,
    what_the_horizon_has_passed_is_over,
    what_is_created_has_its_payload,
]
