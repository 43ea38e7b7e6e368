"""The public operations that write, with what the effect of each is in the journal.

Left out are ``Manager.take_over``, which does something only where one driver may write
(``tests/delta/test_s3.py``); ``enlist``, whose faults are those of a database
(``tests/databases``); and heartbeats, each of which is the append of ``extend lease``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql.types import StructType

from tests.faults.audit import Ledger
from tests.faults.behind import ORDERS
from tests.faults.injection import Crash, Injector
from tests.faults.world import (
    LEASE_SECONDS,
    SCHEMA,
    World,
    consume_and_append_twice,
    consume_and_change,
    consume_and_produce,
)
from tests.inside import client_of
from txnqueue.admin.maintenance import MaintenanceResult
from txnqueue.core import model
from txnqueue.core.state.branch import Ending
from txnqueue.core.state.erasures import erasures
from txnqueue.errors import Busy, ChangeWaiting
from txnqueue.manager import QueueManager
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.storage.payload import StagedPlace

Act = Callable[[QueueManager, Any], Any]
DAY_SECONDS = 24 * 3_600.0


@dataclass(frozen=True)
class Operation:
    """One public operation.

    Attributes:
        name: What it is called.
        prepare: Makes what it needs, with managers of its own; returns what ``act`` needs.
        act: Does it, through a client whose store calls may be spoiled.
        landed: Whether its effect is in the journal.
        sends: How many messages it adds to the queue ``in`` if it landed.
        key: The transaction id, if it has one.
        whole: Whether it is one append, and not several that stand for themselves.
        unique: Whether the queue ``in`` has to tell duplicates.
        slice_width: How many versions of the journal one slice of the payload has, if not as many
            as usual: a world is younger than such a slice, of which nothing is removed.
    """

    name: str
    prepare: Callable[[World, QueueManager], Any]
    act: Act
    landed: Callable[[World, Ledger], bool]
    sends: int = 0
    key: str | None = None
    whole: bool = True
    unique: bool = False
    slice_width: int | None = None


def _nothing(world: World, client: QueueManager) -> None:
    return None


def _wrote(kind: str, key: str | None = None) -> Callable[[World, Ledger], bool]:
    """The operation's client wrote an entry of this kind, after it was prepared."""

    def landed(world: World, ledger: Ledger) -> bool:
        return any(
            e.kind == kind
            and e.version > world.began_at
            and e.actor == world.actor
            and (key is None or e.stream == f"{key}{world.suffix}")
            for e in world.known
        )

    return landed


def _leased(world: World, client: QueueManager) -> Any:
    return client.queue("in").receive(3)


def _open(world: World, client: QueueManager) -> Any:
    tx = client.transaction(f"T{world.suffix}")
    consume_and_produce(client.queue("in").receive(3, transaction=tx), tx)
    return tx


def _changing(world: World, client: QueueManager, key: str = "T") -> Any:
    tx = client.transaction(f"{key}{world.suffix}")
    consume_and_change(client.queue("in").receive(3, transaction=tx), tx, world.table)
    return tx


def _appending_twice(world: World, client: QueueManager) -> Any:
    tx = client.transaction(f"T{world.suffix}")
    batch = client.queue("in").receive(3, transaction=tx)
    consume_and_append_twice(batch, tx, world.table)
    return tx


def _changes_prepared(world: World, client: QueueManager) -> Any:
    tx = _changing(world, client)
    tx.prepare()
    world.prepared.add(tx.id)
    return tx


def _changes_left(world: World, client: QueueManager) -> None:
    """Leave a change that was decided, and not applied."""
    injector = Injector()
    other = world.manager("X", injector)
    tx = _changing(world, other, "X")
    injector.stop_at = "apply"
    injector.arm()
    with contextlib.suppress(Crash):
        tx.commit()
    world.lease_over()


def _recover_changes(manager: QueueManager, world: World) -> None:
    waiting = manager.recover().waiting
    if waiting:
        raise ChangeWaiting(waiting[0].reason, change_id=waiting[0].change_id)


def _prepared(world: World, client: QueueManager) -> Any:
    tx = _open(world, client)
    tx.prepare()
    world.prepared.add(tx.id)
    return tx


def _to_be_rolled_back(world: World, client: QueueManager) -> Any:
    tx = _prepared(world, client)
    world.explicit.add(tx.id)
    return tx


def _bound(world: World, client: QueueManager) -> Any:
    batch = client.queue("in").receive(3)
    tx = client.transaction(f"T{world.suffix}")
    consume_and_produce(batch, tx)
    batch.accept(transaction=tx)
    return tx


def _keeping(world: World, client: QueueManager) -> Any:
    tx = client.transaction(f"T{world.suffix}")
    batch = client.queue("in").receive(3, transaction=tx)
    (done,) = batch.messages()[:1]
    tx.queue("out").send([{"i": done["i"]}])
    batch.accept(matching=[done], transaction=tx)
    batch.keep()
    return tx


def _abandoned(world: World, client: QueueManager) -> None:
    other = world.manager("X")
    tx = other.transaction()
    other.queue("in").receive(3, transaction=tx)
    world.lease_over()


def _abandoned_lease(world: World, client: QueueManager) -> None:
    world.manager("X").queue("in").receive(3)
    world.lease_over()


def _worn_out(world: World, client: QueueManager) -> None:
    """Leave messages that came back alone as often as is allowed."""
    other = world.manager("X")
    for _ in range(6):  # three times in each of two lanes
        other.queue("in").receive(1)
        world.lease_over()


def _sent_twice(world: World, client: QueueManager) -> None:
    """Leave messages whose numbers were sent before: one waits, one was consumed."""
    other = world.manager("X")
    other.queue("in").receive(1).accept()
    other.queue("in").send([{"i": world.base + i} for i in range(world.messages)])
    world.sent += world.messages


def _dead(world: World, client: QueueManager) -> None:
    """Leave two dead letters, and no others."""
    other = world.manager("X")
    other.queue("in.dead").purge()
    batch = other.queue("in").receive(2)
    for _ in range(2 - len(batch)):
        other.queue("in").receive(1).reject()
    batch.reject()


def _side(world: World, client: QueueManager) -> str:
    """Make a queue of the scenario's own, with messages of every kind."""
    name = f"side{world.suffix}"
    side = world.helper("creator").create_queue(name, "i long", dead_letter=False)
    side.send([{"i": world.base + 500 + n} for n in range(3)])
    world.manager("X").queue(name).receive(1)
    tx = world.manager("Y").transaction()
    world.helper("creator").queue(name)
    tx.queue(name).receive(1)
    client.queue(name).depth()
    return name


def _held_back(world: World, client: QueueManager) -> str:
    """Prepare a transaction that sends to such a queue, and consumes."""
    name = _side(world, client)
    other = world.manager("P")
    tx = other.transaction(f"P{world.suffix}")
    consume_and_produce(other.queue("in").receive(3, transaction=tx), tx)
    tx.queue(name).send([{"i": world.base + 600}])
    tx.prepare()
    world.prepared.add(tx.id)
    return name


def _closed(world: World, client: QueueManager) -> None:
    """Leave a drop that was begun, and that nothing holds back any more."""
    name = _held_back(world, client)
    assert not world.manager("X").drop_queue(name).dropped
    world.manager("X").commit(f"P{world.suffix}")
    world.prepared.clear()


def _drop_held_back(manager: QueueManager, name: str) -> None:
    assert not manager.drop_queue(name).dropped


def branch_key(world: World) -> str:
    """Name the branch of this scenario."""
    return f"xid:1:T{world.suffix}"


def _session(world: World, client: QueueManager) -> Any:
    """Work in a new branch."""
    session = Branches(client_of(client)).start(branch_key(world), LEASE_SECONDS)
    consume_and_produce(session.queue("in").receive(2), session)
    return session


def _parts(world: World, client: QueueManager) -> str:
    """Leave a branch of two parts, made by two other clients."""
    key = branch_key(world)
    first = _session(world, world.manager("X"))
    other = Branches(client_of(world.manager("Y")))
    second = other.join(key)
    assert not isinstance(second, Ending)
    consume_and_produce(second.queue("in").receive(2), second)
    assert other.end(second) is Ending.DONE
    assert Branches(first.client).end(first) is Ending.DONE
    return key


def _prepared_parts(world: World, client: QueueManager) -> str:
    key = _parts(world, client)
    assert Branches(client_of(world.manager("Y"))).prepare(key) is Ending.DONE
    world.prepared.add(key)
    return key


def _parts_to_be_rolled_back(world: World, client: QueueManager) -> str:
    key = _prepared_parts(world, client)
    world.explicit.add(key)
    return key


def _decided_by_operator(world: World, client: QueueManager) -> str:
    key = _prepared_parts(world, client)
    world.manager("O").decide_heuristically(key, commit=True, reason="gone")
    world.prepared.discard(key)
    return key


def _join(manager: QueueManager, key: str) -> None:
    branches = Branches(client_of(manager))
    session = branches.join(key)
    assert not isinstance(session, Ending)
    session.queue("out").send([])
    branches.end(session)


BRANCH = "xid:1:T"


def _held_by_another(world: World, client: QueueManager) -> None:
    _open(world, world.manager("X"))


def _open_and_purged(world: World, client: QueueManager) -> Any:
    tx = _open(world, client)
    world.manager("X").queue("in").purge()
    return tx


def _moved_aside(world: World, client: QueueManager) -> Any:
    """Leave two messages in a queue beside."""
    world.create("aside", dead_letter=False)
    other = world.manager("X")
    aside, source = other.queue("aside"), other.queue("in")
    there = set(aside.schema.names)
    grown = [column for column in source.schema.fields if column.name not in there]
    if grown:  # another scenario has added columns
        aside.alter(add=StructType(grown))
    aside.purge()
    assert source.move("aside", limit=2) == 2


def _to_and_fro(world: World, client: QueueManager) -> Any:
    _moved_aside(world, client)
    return client.queue("aside").receive()


def _moving(world: World, client: QueueManager) -> Any:
    _moved_aside(world, client)
    tx = client.transaction(f"T{world.suffix}")
    assert client.queue("aside").move("in", transaction=tx) == 2
    return tx


def _moving_prepared(world: World, client: QueueManager) -> Any:
    tx = _moving(world, client)
    tx.prepare()
    world.prepared.add(tx.id)
    return tx


def _redriving(world: World, client: QueueManager) -> Any:
    _dead(world, client)
    tx = client.transaction(f"T{world.suffix}")
    assert client.queue("in.dead").redrive(transaction=tx) == 2
    return tx


def _run(manager: QueueManager, world: World) -> None:
    def handler(tx: Any) -> None:
        consume_and_produce(tx.queue("in").receive(3), tx)

    manager.run_transaction(handler, transaction_id=f"T{world.suffix}")


def _drain_ahead(manager: QueueManager, world: World, worker: Any) -> None:
    client_of(manager).runtime.new_background = worker
    manager.queue("in").drain(
        consume_and_produce, batch_size=1, run_id=f"R{world.suffix}", until="empty", ahead=1
    )


def _receive_in_transaction(manager: QueueManager, world: World) -> None:
    tx = manager.transaction()
    manager.queue("in").receive(3, transaction=tx)


def _create(manager: QueueManager, world: World) -> None:
    manager.create_queue(f"new{world.suffix}", "i long", exist_ok=True)


def _create_again(manager: QueueManager, name: str) -> None:
    manager.create_queue(name, "i long", dead_letter=False, exist_ok=True)


def _dropped(world: World, client: QueueManager) -> str:
    name = _side(world, client)
    assert world.manager("X").drop_queue(name).dropped
    return name


def _used(world: World, client: QueueManager) -> None:
    """Leave a journal with much that has finished, and some that has not."""
    other = world.manager("X")
    queue = other.queue("in")
    queue.receive(1).accept()
    queue.receive(2).release()
    tx = other.transaction()
    consume_and_produce(queue.receive(1, transaction=tx), tx)
    tx.prepare()
    tx.commit()
    queue.receive(1)  # in flight


def _long_ago(world: World, client: QueueManager) -> None:
    """Leave an archive of former days, and a journal of which more has finished by now."""
    world.create("past")  # where nothing stands that keeps what came after it
    for n in (901, 902):
        queue = world.manager("Y").queue("past")
        queue.send([{"i": world.base + n}])
        queue.receive(1).accept()
        _maintain_before(world)
        world.clock.advance(2 * DAY_SECONDS)
    _used(world, client)


def _dropped_empty(world: World, client: QueueManager) -> None:
    """Leave a queue that was dropped, and an inventory that knows nothing of it."""
    _used(world, client)
    _maintain_before(world)
    other = world.manager("X")
    name = f"gone{world.suffix}"
    world.helper("creator").create_queue(name, "i long", dead_letter=False)
    assert other.drop_queue(name).dropped
    _used(world, client)


def _maintain_before(world: World) -> None:
    world.numbers(world.ledger())  # what is removed must be known before
    _maintain(world.manager("X"), world)


def _give_back(manager: QueueManager, world: World) -> None:
    assert _maintained(manager, vacuum=True).removed


def _maintain(manager: QueueManager, world: World) -> None:
    _maintained(manager)


def _forget(manager: QueueManager, world: World) -> None:
    assert _maintained(manager, history_retention_days=1).forgotten


def _maintained(manager: QueueManager, **more: Any) -> MaintenanceResult:
    options = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
    done = manager.maintain(**{**options, **more})
    if done.skipped:
        raise Busy(done.skipped[0])
    return done


def _exchange(world: World, client: QueueManager) -> None:
    """Make an exchange to which two queues are bound, with a dead-letter queue beside."""
    creator = world.helper("creator")
    world.create("also", lanes=3, dead_letter=False)
    events = creator.create_exchange("events", "topic", f"{SCHEMA} not null", exist_ok=True)
    for queue, pattern in (("in", "#.two"), ("also", "to.*"), ("also", "to.two")):
        events.bind(queue, pattern)


def _published(world: World, ledger: Ledger) -> bool:
    """What an exchange posted stands in both queues, or in neither."""
    standing: dict[str, set[tuple[str, int]]] = {"in": set(), "also": set()}
    for (_, offset), entry in ledger.posted.items():
        if (
            entry.actor == world.actor
            and entry.version > world.began_at
            and "exchange" in entry.body
        ):
            for name, found in standing.items():
                if entry.queue_id == world.queue_id(name):
                    found.add((entry.body["send"], offset))
    assert standing["in"] == standing["also"], f"P1 published to one of two queues: {standing}"
    return bool(standing["in"])


def _unbound(world: World, client: QueueManager) -> None:
    _exchange(world, client)
    world.helper("creator").exchange("events").unbind("out", "x")


def _growing(world: World, client: QueueManager) -> str:
    """Let a queue grow, so that the exchange to which it is bound can."""
    _exchange(world, client)
    column = f"e{world.scenario} string"
    creator = world.helper("creator")
    for name in ("in", "also", "out"):
        creator.queue(name).alter(column)
    return column


def _leaving(world: World, client: QueueManager) -> str:
    """Make an exchange of the scenario's own, to which somebody is about to publish."""
    name = f"leaving{world.suffix}"
    leaving = world.helper("creator").create_exchange(name, "fanout", f"{SCHEMA} not null")
    world.create("aside", dead_letter=False)
    leaving.bind("aside")
    leaving.publish([{"i": world.base + 700}])
    return name


def _left_behind(world: World, client: QueueManager, name: str | None = None) -> str:
    """Prepare a transaction that publishes to such an exchange, and consumes."""
    name = name or _leaving(world, client)
    other = world.manager("P")
    tx = other.transaction(f"P{world.suffix}")
    consume_and_produce(other.queue("in").receive(3, transaction=tx), tx)
    tx.exchange(name).publish([{"i": world.base + 600}])
    tx.prepare()
    world.prepared.add(tx.id)
    return name


def _exchange_closed(world: World, client: QueueManager) -> None:
    """Leave the drop of an exchange that was begun, and that nothing holds back any more."""
    name = _left_behind(world, client)
    assert not world.manager("X").drop_exchange(name).dropped
    world.manager("X").commit(f"P{world.suffix}")
    world.prepared.clear()


def _drop_exchange_held_back(manager: QueueManager, name: str) -> None:
    assert not manager.drop_exchange(name).dropped


def _erasable(world: World, client: QueueManager) -> str:
    """Leave messages of which one waits and one is consumed, in a queue of the scenario's own."""
    name = f"past{world.suffix}"
    world.create(name)
    queue = world.manager("X").queue(name)
    for n in (901, 902):
        queue.send([{"i": world.base + n}])
    queue.receive(1).accept()
    if world.store.spark is None:  # which knows no SQL
        world.store.payload.matching = partial(_everything, world.store.payload)
    return name


def _everything(payload: Any, _schema: object, payload_id: str, _where: str) -> list[StagedPlace]:
    """Find all rows of an owner: a store in memory has no SQL."""
    inside = vars(payload)
    return [
        (inside["_slices"][owner, send], send, ((0, rows.num_rows - 1),))
        for (owner, send), rows in inside["_sends"].items()
        if owner == payload_id
    ]


def _erased(world: World, ledger: Ledger) -> bool:
    """What is recorded is gone, and that too is on record: whoever recovers sees to it."""
    world.helper("Z").recover()  # what landed last, nobody has seen yet
    world.ledger()
    owner = client_of(world.helper("creator")).cache.queue(f"past{world.suffix}").payload_id
    recorded = [one for one in erasures(world.known) if one.payload_id == owner]
    assert all(one.done is not None for one in recorded), "P7 nobody has said that it is gone"
    left = world.rows_of(owner)
    assert bool(left) != bool(recorded), f"P7 {left} rows are left, {len(recorded)} recorded"
    return bool(recorded)


def _change_id(world: World, client: QueueManager) -> str:
    """Leave a change that was decided, and not applied; name it."""
    _changes_left(world, client)
    world.ledger()
    decided = next(e for e in world.known if e.kind == model.CHANGE_DECIDED)
    return f"{decided.append_id}:{decided.index}"


def _waived(world: World, ledger: Ledger) -> bool:
    """Whether a change was waived, which may be recorded twice; else it is applied by now."""
    ended = {e.kind for e in world.known if e.kind in model.CHANGE_ENDINGS}
    assert len(ended) == 1, f"P7 the change has ended as {ended}"
    return ended == {model.CHANGE_WAIVED}


def _sent_before(world: World, client: QueueManager) -> Any:
    """Replay what was consumed, but not in earlier scenarios of the same store."""
    other = world.manager("X")
    before = other.history.as_of().commit_seq
    other.queue("in").receive(2).accept()
    client.list_queues()
    return client.queue("in").replay(after=before)


def _resend(manager: QueueManager, batch: Any) -> None:
    assert manager.queue("in").resend(batch).count == 2


def _declare(manager: QueueManager, world: World) -> None:
    lease = {"schema": SCHEMA, "lease_seconds": 61.0}
    new = {f"declared{world.suffix}": {"schema": "i long", "lanes": 2}}
    manager.declare({"queues": {"in": lease, **new}})


def _declared(world: World, ledger: Ledger) -> bool:
    """Both are as declared; it is two appends."""
    known = world.manager("reader")
    there = f"declared{world.suffix}" in known.list_queues()
    return there and known.queue("in").info.settings.lease_seconds == 61.0


def _bound_queue(world: World, client: QueueManager) -> None:
    _exchange(world, client)
    world.helper("creator").exchange("events").bind("out", "x")


def _finished_before(
    prepare: Callable[[World, QueueManager], Any], world: World, client: QueueManager
) -> Any:
    """Leave messages besides that have gone, and whose payload nothing keeps.

    The journal and the archive say that they are in many files: in memory they have none.
    """
    journal = world.store.journal
    journal.files = lambda: {model.CATALOG: 1_000}
    journal.archive.files = lambda: {"1969-12-31": 1_000}
    subject = prepare(world, client)
    world.create("done")
    other = world.manager("X").queue("done")
    for n in (801, 802):
        other.send([{"i": world.base + n}])
        other.receive(1).accept()
    return subject


OPERATIONS = [
    Operation("create queue", _nothing, _create, _wrote(model.QUEUE_CREATED)),
    Operation(
        "alter queue",
        _nothing,
        lambda m, w: m.queue("in").alter(f"c{w.scenario} string", lease_seconds=61 + w.scenario),
        _wrote(model.QUEUE_ALTERED),
    ),
    Operation(
        "drop queue",
        _side,
        lambda m, name: m.drop_queue(name),
        _wrote(model.QUEUE_DROPPED),
        whole=False,
    ),
    Operation(
        "drop queue that is held back",
        _held_back,
        _drop_held_back,
        _wrote(model.QUEUE_CLOSING),
        whole=False,
    ),
    Operation(
        "recover a drop",
        _closed,
        lambda m, w: m.recover(),
        _wrote(model.QUEUE_DROPPED),
        whole=False,
    ),
    Operation("create queue again", _dropped, _create_again, _wrote(model.QUEUE_CREATED)),
    Operation(
        "send",
        _nothing,
        lambda m, w: m.queue("in").send([{"i": w.base + 100}, {"i": w.base + 101}]),
        _wrote(model.COMMITTED),
        sends=2,
    ),
    Operation(
        "publish",
        _exchange,
        lambda m, w: m.exchange("events").publish(
            [{"i": w.base + 102}, {"i": w.base + 103}], routing_key="to.two"
        ),
        _published,
        sends=2,
    ),
    Operation("receive", _nothing, lambda m, w: m.queue("in").receive(3), _wrote(model.CLAIMED)),
    Operation("receive in a transaction", _nothing, _receive_in_transaction, _wrote(model.CLAIMED)),
    Operation("accept", _leased, lambda m, batch: batch.accept(), _wrote(model.ACCEPTED)),
    Operation("release", _leased, lambda m, batch: batch.release(), _wrote(model.RELEASED)),
    Operation(
        "reject",
        _leased,
        lambda m, batch: batch.reject(matching=batch.messages()[:1], reason="bad"),
        _wrote(model.REJECTED),
    ),
    Operation("modify", _leased, lambda m, batch: batch.modify(), _wrote(model.RELEASED)),
    Operation(
        "undeliverable here",
        _leased,
        lambda m, batch: batch.modify(undeliverable_here=True),
        _wrote(model.RELEASED),
    ),
    Operation("purge", _nothing, lambda m, w: m.queue("in").purge(), _wrote(model.PURGED)),
    Operation(
        "purge of what is in flight",
        _held_by_another,
        lambda m, w: m.queue("in").purge(),
        _wrote(model.PURGE_PENDING),
    ),
    Operation(
        "rollback of what was purged",
        _open_and_purged,
        lambda m, tx: tx.rollback(),
        _wrote(model.ROLLED_BACK, "T"),
        key="T",
    ),
    Operation(
        "move what is held",
        _to_and_fro,
        lambda m, batch: batch.move("in"),
        _wrote(model.MOVED),
        sends=2,
    ),
    Operation(
        "acquire for a move",
        _moved_aside,
        lambda m, w: m.queue("aside").move("in", transaction=m.transaction()),
        _wrote(model.CLAIMED),
    ),
    Operation(
        "commit of a move",
        _moving,
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        sends=2,
        key="T",
    ),
    Operation(
        "rollback of a move",
        _moving,
        lambda m, tx: tx.rollback(),
        _wrote(model.ROLLED_BACK, "T"),
        key="T",
    ),
    Operation(
        "commit prepared of a move",
        _moving_prepared,
        lambda m, tx: m.commit(tx.id),
        lambda world, ledger: f"T{world.suffix}" in ledger.committed,
        sends=2,
        key="T",
        whole=False,  # whoever recovers commits it as well
    ),
    Operation(
        "commit of a redrive",
        _redriving,
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        sends=2,
        key="T",
    ),
    Operation(
        "redrive", _dead, lambda m, w: m.queue("in.dead").redrive(), _wrote(model.MOVED), sends=2
    ),
    Operation(
        "extend lease",
        _leased,
        lambda m, batch: batch.extend_lease(90),
        _wrote(model.LEASE_EXTENDED),
    ),
    Operation("commit", _open, lambda m, tx: tx.commit(), _wrote(model.COMMITTED, "T"), key="T"),
    Operation("commit and keep", _keeping, lambda m, tx: tx.commit(), _wrote(model.KEPT), key="T"),
    Operation(
        "rollback", _open, lambda m, tx: tx.rollback(), _wrote(model.ROLLED_BACK, "T"), key="T"
    ),
    Operation(
        "prepare",
        _open,
        lambda m, tx: tx.prepare(),
        _wrote(model.PREPARED, "T"),
        key="T",
    ),
    Operation(
        "commit prepared",
        _prepared,
        lambda m, tx: m.commit(tx.id),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "commit prepared by its own handle",
        _prepared,
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "rollback prepared",
        _to_be_rolled_back,
        lambda m, tx: m.rollback(tx.id),
        _wrote(model.ROLLED_BACK, "T"),
        key="T",
    ),
    Operation(
        "commit of leased", _bound, lambda m, tx: tx.commit(), _wrote(model.COMMITTED, "T"), key="T"
    ),
    Operation(
        "commit with a table change",
        _changing,
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "commit with two appends to a table",
        _appending_twice,
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "commit prepared with a table change",
        _changes_prepared,
        lambda m, tx: m.commit(tx.id),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "commit after another's unapplied change",
        lambda world, client: [_changes_left(world, client), _changing(world, client)][1],
        lambda m, tx: tx.commit(),
        _wrote(model.COMMITTED, "T"),
        key="T",
    ),
    Operation(
        "recover a table change",
        _changes_left,
        _recover_changes,
        _wrote(model.CHANGE_APPLIED),
        whole=False,
    ),
    Operation(
        "take over a transaction",
        _abandoned,
        lambda m, w: m.queue("in").receive(2),
        _wrote(model.CLAIMED),
    ),
    Operation(
        "take over a lease",
        _abandoned_lease,
        lambda m, w: m.queue("in").receive(2),
        _wrote(model.CLAIMED),
    ),
    Operation(
        "dead letter",
        _worn_out,
        lambda m, w: m.queue("in").receive(100),
        _wrote(model.DEAD_LETTERED),
    ),
    Operation(
        "start a branch",
        _nothing,
        lambda m, w: Branches(client_of(m)).start(branch_key(w), LEASE_SECONDS),
        _wrote(model.STARTED, BRANCH),
        key=BRANCH,
    ),
    Operation("join a branch", _parts, _join, _wrote(model.ENDED, BRANCH), key=BRANCH, whole=False),
    Operation(
        "end a part of a branch",
        _session,
        lambda m, session: Branches(client_of(m)).end(session),
        _wrote(model.ENDED, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "suspend a part of a branch",
        _session,
        lambda m, session: Branches(client_of(m)).end(session, suspend=True),
        _wrote(model.SUSPENDED, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "prepare a branch",
        _parts,
        lambda m, key: Branches(client_of(m)).prepare(key),
        _wrote(model.PREPARED, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "commit a branch",
        _parts,
        lambda m, key: Branches(client_of(m)).commit(key, one_phase=True),
        _wrote(model.COMMITTED, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "roll a branch back",
        _parts,
        lambda m, key: Branches(client_of(m)).rollback(key),
        _wrote(model.ROLLED_BACK, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "commit a prepared branch",
        _prepared_parts,
        lambda m, key: Branches(client_of(m)).commit(key),
        _wrote(model.COMMITTED, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "roll a prepared branch back",
        _parts_to_be_rolled_back,
        lambda m, key: Branches(client_of(m)).rollback(key),
        _wrote(model.ROLLED_BACK, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "decide heuristically",
        _parts_to_be_rolled_back,
        lambda m, key: m.decide_heuristically(key, commit=False, reason="gone"),
        _wrote(model.HEURISTIC, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "forget",
        _decided_by_operator,
        lambda m, key: m.forget(key),
        _wrote(model.FORGOTTEN, BRANCH),
        key=BRANCH,
    ),
    Operation(
        "leave duplicates out",
        _sent_twice,
        lambda m, w: m.queue("in").receive(100),
        _wrote(model.DUPLICATE),
        unique=True,
    ),
    Operation("run transaction", _nothing, _run, _wrote(model.COMMITTED, "T"), key="T"),
    Operation(
        "drain",
        _nothing,
        lambda m, w: m.queue("in").drain(
            consume_and_produce, batch_size=3, run_id=f"R{w.suffix}", until="empty"
        ),
        _wrote(model.COMMITTED),
        whole=False,
    ),
    Operation(
        "maintain",
        _used,
        _maintain,
        _wrote(model.HORIZON_ADVANCED),
        whole=False,
    ),
    Operation(
        "forget history",
        _long_ago,
        _forget,
        _wrote(model.HISTORY_REMOVED),
        whole=False,
    ),
    Operation(
        "recover",
        _abandoned,
        lambda m, w: m.recover(),
        _wrote(model.ROLLED_BACK),
        whole=False,
    ),
]

IN_MEMORY = [
    *(
        Operation(
            f"drain ahead, {order}",
            _nothing,
            partial(_drain_ahead, worker=worker),
            _wrote(model.COMMITTED),
            whole=False,
        )
        for order, worker in ORDERS.items()
    ),
    Operation(
        "give payload back",
        _dropped_empty,
        _give_back,
        _wrote(model.PAYLOAD_REMOVED),
        whole=False,
    ),
    Operation(
        "maintain where duplicates are told",
        _used,
        _maintain,
        _wrote(model.HORIZON_ADVANCED),
        whole=False,
        unique=True,
    ),
    Operation(
        "bind",
        _unbound,
        lambda m, w: m.exchange("events").bind("out", "x"),
        _wrote(model.QUEUE_BOUND),
    ),
    Operation(
        "alter exchange",
        _growing,
        lambda m, column: m.exchange("events").alter(column),
        _wrote(model.EXCHANGE_ALTERED),
    ),
    Operation(
        "drop exchange",
        _leaving,
        lambda m, name: m.drop_exchange(name, missing_ok=True),
        _wrote(model.EXCHANGE_DROPPED),
        whole=False,
    ),
    Operation(
        "drop exchange that is held back",
        _left_behind,
        _drop_exchange_held_back,
        _wrote(model.EXCHANGE_CLOSING),
        whole=False,
    ),
    Operation(
        "recover the drop of an exchange",
        _exchange_closed,
        lambda m, w: m.recover(),
        _wrote(model.EXCHANGE_DROPPED),
        whole=False,
    ),
]
"""Operations that a store cannot make a difference to."""

MORE = [
    Operation(
        "erase",
        _erasable,
        lambda m, name: m.erase(name, "true", reason="request 1"),
        _erased,
        whole=False,  # it is recorded, and whoever recovers deletes the rows
    ),
    Operation(
        "waive a change",
        _change_id,
        lambda m, change_id: m.waive_change(change_id, reason="never"),
        _waived,
        whole=False,  # the table takes its number first, by which whoever recovers ends it
    ),
    Operation(
        "apply a change",
        _change_id,
        lambda m, change_id: m.apply_change(change_id),
        _wrote(model.CHANGE_APPLIED),
        whole=False,  # whoever recovers applies it as well
    ),
    Operation(
        "create exchange",
        _nothing,
        lambda m, w: m.create_exchange(f"new{w.suffix}", "topic", "i long", exist_ok=True),
        _wrote(model.EXCHANGE_CREATED),
    ),
    Operation(
        "unbind",
        _bound_queue,
        lambda m, w: m.exchange("events").unbind("out", "x"),
        _wrote(model.QUEUE_UNBOUND),
    ),
    Operation("resend", _sent_before, _resend, _wrote(model.COMMITTED), sends=2),
    Operation("declare", _nothing, _declare, _declared, whole=False),
]
"""Operations of the crash matrix in memory alone: no pairs of operations are drawn from them."""
REMOVING = [
    replace(
        one,
        name=f"{one.name}, of all that has finished",
        prepare=partial(_finished_before, one.prepare),
        slice_width=1,
    )
    for one in (*OPERATIONS, *IN_MEMORY)
    if one.name.startswith(("maintain", "forget history", "give"))
]
"""Maintenance in worlds of which it removes all payload that is finished."""
EVERYTHING = (*OPERATIONS, *IN_MEMORY, *MORE, *REMOVING)
"""The operations of the crash matrix in memory."""
