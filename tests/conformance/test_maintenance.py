"""Maintenance: the store gets small, and nobody notices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import (
    BOTH_STORES,
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    own_world,
    rows,
)
from tests.conformance.working import Branch
from tests.faults.injection import FaultyStore, Meanwhile
from tests.inside import client_of
from txnqueue.admin import creation
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.core.settings import BRANCH_SECONDS_DEFAULT
from txnqueue.core.state import compaction
from txnqueue.errors import (
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    PayloadRemoved,
    TransactionAborted,
)
from txnqueue.protocols.dtx import XaStatus
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.removed_files import READING_SECONDS_MAX
from txnqueue.testing import memory_manager

DAY = 24 * 3600


@pytest.fixture(params=BOTH_STORES)
def world(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    """A store of its own: what is long ago by the clock of one test lies ahead by another's."""
    return own_world(request, tmp_path)


AT_ONCE: dict[str, Any] = {
    "transaction_seconds_max": 0,
    "payload_retention_days": 0,
    "vacuum": False,
}


def entries_of(world: World, queue: Any) -> list[Any]:
    """Read what the journal still holds of a queue."""
    journal = client_of(queue).store.journal
    lanes = range(queue.info.settings.lanes)
    shards = [model.lane_shard(queue.info.queue_id, lane) for lane in lanes]
    return list(journal.read([*shards, model.backlog_shard(queue.info.queue_id)]).entries)


def work(queue: Any, times: int, first: int = 0) -> None:
    """Send and consume some messages, one by one."""
    for n in range(first, first + times):
        queue.send(rows(n))
        batch = queue.receive(1)
        assert numbers(batch) == [n]
        batch.accept()


@on_delta_when_long
def test_what_is_finished_leaves_the_journal_and_stays_in_the_history(world: World) -> None:
    queue = world.queue()
    manager = world.manager("keeper")
    work(queue, 4)
    queue.send(rows(10, 11, 12))
    before = {(e.kind, e.place) for e in entries_of(world, queue)}
    done = manager.maintain(**AT_ONCE)
    assert done.compacted >= 1
    assert done.archived >= 12
    assert not done.skipped
    left = entries_of(world, queue)
    assert [e.kind for e in left if e.kind != model.POSTED] == [model.COMPACTED]
    changes = manager.history.changes().rows()
    seen = {(r["kind"], r["commit_seq"]) for r in changes if r["queue"] == queue.name}
    assert {(kind, model.commit_seq(*place[:2])) for kind, place in before} <= seen
    assert manager.history.verify().ok, manager.history.verify()
    fresh = world.open(queue, "fresh")
    assert numbers(fresh.receive(10)) == [10, 11, 12]


@on_delta_when_long
def test_a_repeated_maintenance_finds_nothing_to_do(world: World) -> None:
    work(world.queue(), 3)
    manager = world.manager("keeper")
    manager.maintain(**AT_ONCE)
    manager.maintain(**AT_ONCE)  # the newest entry of all leaves only now
    version = client_of(manager).store.journal.version()
    again = manager.maintain(**AT_ONCE)
    assert (again.compacted, again.archived, again.slices) == (0, 0, 0)
    assert client_of(manager).store.journal.version() == version


@in_memory
def test_a_lane_that_is_written_to_all_the_time_does_not_keep_everything_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(lanes=1)
    with world.manager("b").transaction(world.name("K")) as tx:
        tx.queue(world.queue("other").name).send(rows(9))
    work(queue, 3)
    world.clock.advance(DAY)
    lane, remove = model.lane_shard(queue.info.queue_id, 0), world.store.journal.remove

    def conflicts(entries: Any, *more: Any) -> None:
        if any(entry.shard == lane for entry in entries):
            raise AppendConflict("somebody was faster")
        remove(entries, *more)

    monkeypatch.setattr(world.store.journal, "remove", conflicts)
    done = world.manager("keeper").maintain(**AT_ONCE)
    assert done.archived and any("deletion" in skipped for skipped in done.skipped)
    left = world.store.journal.read_all().entries
    assert any(entry.shard == lane and entry.kind == model.CLAIMED for entry in left)
    assert all(entry.stream != tx.id for entry in left)
    monkeypatch.undo()
    assert world.manager("keeper").maintain(**AT_ONCE).skipped == ()
    assert not [e for e in entries_of(world, queue) if e.kind == model.CLAIMED]
    assert world.manager("keeper").history.verify().ok


@on_delta_when_long
def test_a_dry_run_tells_what_would_be_done_and_changes_nothing(world: World) -> None:
    queue = world.queue()
    work(queue, 3)
    manager = world.manager("keeper")
    version = client_of(manager).store.journal.version()
    told = manager.maintain(**AT_ONCE, dry_run=True)
    assert told.dry_run
    assert told.compacted >= 1
    assert client_of(manager).store.journal.version() == version
    assert manager.maintain(**AT_ONCE).compacted == told.compacted


@in_memory
def test_a_branch_of_a_dead_session_does_not_hold_the_horizon_for_ever(world: World) -> None:
    queue, busy = world.queue(), world.queue("busy")
    queue.send(rows(1))
    branch, alive = Branch(world, "dead"), Branch(world, "alive")
    assert numbers(branch.queue(queue).receive()) == [1]
    work(busy, 2)
    keeper = world.manager("keeper")
    assert keeper.maintain(**AT_ONCE).archived == 0, "vacuous: it may still be prepared"
    world.clock.advance(BRANCH_SECONDS_DEFAULT + 1)
    assert keeper.maintain(**AT_ONCE, dry_run=True).archived == 0
    assert keeper.maintain(**AT_ONCE).archived > 0
    assert numbers(queue.peek_messages()) == [1]
    assert keeper.recover().aborted == ()
    assert alive.channel.end(alive.xid) is XaStatus.RBTIMEOUT
    assert keeper.history.verify().ok


@in_memory
def test_a_dry_run_tells_what_would_be_dropped_where_nothing_was_ever_archived(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    queue = world.queue()
    work(queue, 1)
    orphan = world.manager("crashed").transaction()
    orphan.queue(queue.name).send(rows(99))
    world.queue("busy").send(rows(1))
    work(queue, 3, 1)
    keeper = world.manager("keeper")
    assert keeper.maintain(**AT_ONCE, dry_run=True).slices == 1
    assert keeper.maintain(**AT_ONCE).slices >= 1


@in_memory
@pytest.mark.parametrize("held", ["a lease", "a transaction"])
def test_files_are_kept_as_long_as_anything_that_is_in_flight(
    world: World, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    slow, tx = world.open(queue, "slow"), None
    if held == "a transaction":
        tx = world.manager("slow").transaction(lease_seconds=5 * DAY)
        slow = tx.queue(queue.name)
    slow.receive(1, **({} if tx else {"lease_seconds": 5 * DAY}))
    asked: list[float] = []
    of_journal: list[float] = []
    keeper = world.manager("keeper")
    store = client_of(keeper).store
    for kept, found in ((store.journal, of_journal), (store.payload, asked)):
        monkeypatch.setattr(
            kept, "vacuum", lambda *given, full, found=found: found.append(given[-1])
        )
    keeper.maintain(transaction_seconds_max=0, vacuum="full")
    assert asked and min(asked) >= 5 * DAY
    # What is held reads payload; the journal's files are only for queries that are under way.
    assert of_journal == [READING_SECONDS_MAX]
    world.clock.advance(6 * DAY)
    asked.clear()
    keeper.maintain(transaction_seconds_max=0, vacuum="full")
    assert max(asked) < DAY, "a lease that is over keeps nothing"


@on_delta_when_long
def test_clients_that_were_there_before_go_on_as_if_nothing_happened(world: World) -> None:
    queue = world.queue(lanes=1)
    other = world.open(queue, "other")
    work(queue, 3)
    queue.send(rows(*range(10, 20)))
    held = other.receive(2)
    tx = world.manager("third").transaction()
    tx.queue(queue.name).receive(2).release()
    manager = world.manager("keeper")
    assert manager.maintain(**AT_ONCE).archived
    assert numbers(held) == [10, 11]
    held.accept()
    assert numbers(queue.receive(1)) == [14]
    tx.rollback()
    assert queue.depth() == 7
    assert manager.history.verify().ok


@on_delta_when_long
def test_messages_that_failed_are_not_forgotten(world: World) -> None:
    queue = world.queue("fragile", dead_letter=True, deliveries_max=2)
    queue.send(rows(1))
    for _ in range(2):
        queue.receive(1).modify()
        world.manager("keeper").maintain(**AT_ONCE)
    fresh = world.open(queue, "fresh")
    assert len(fresh.receive(1)) == 0
    dead = world.manager("fresh").queue(f"{queue.name}.dead")
    assert [m["_message"]["origin"]["delivery_count"] for m in dead.peek_messages()] == [2]


@on_delta_when_long
def test_a_transaction_that_began_below_the_horizon_is_refused(world: World) -> None:
    queue = world.queue()
    tx = world.manager("slow").transaction()
    tx.queue(queue.name).send(rows(1))
    work(queue, 3)
    world.manager("keeper").maintain(**AT_ONCE)
    with pytest.raises(TransactionAborted, match="open longer than"):
        tx.commit()
    assert tx.status is Status.ROLLED_BACK
    assert queue.depth() == 0


@on_delta_when_long
def test_a_transaction_that_holds_messages_holds_the_horizon_back(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    slow = world.manager("slow")
    tx = slow.transaction()
    assert numbers(slow.queue(queue.name).receive(1, transaction=tx)) == [1]
    work(world.queue("busy"), 3)
    keeper = world.manager("keeper")
    keeper.maintain(**AT_ONCE)
    tx.commit()
    assert queue.depth() == 1


@on_delta_when_long
def test_claims_of_a_transaction_below_the_horizon_come_back(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    slow = world.manager("slow")
    tx = slow.transaction("slow")
    slow.queue(queue.name).receive(2, transaction=tx)
    world.lease_over()
    work(world.queue("busy"), 3)
    keeper = world.manager("keeper")
    keeper.maintain(**AT_ONCE)
    assert keeper.history.horizon() >= 0
    assert numbers(world.open(queue, "next").receive(2)) == [1, 2]
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert keeper.outcome("slow").status is Status.UNDECIDED


@on_delta_when_long
def test_prepared_work_survives_every_maintenance(world: World) -> None:
    queue, target = world.queue(), world.queue("target")
    queue.send(rows(1, 2))
    preparing = world.manager("preparing")
    tx = preparing.transaction(world.name("xid"))
    preparing.queue(queue.name).receive(1, transaction=tx)
    preparing.queue(target.name).send(rows(7), transaction=tx)
    tx.prepare()
    keeper = world.manager("keeper")
    for n in range(3):
        world.clock.advance(DAY)
        work(world.queue(f"busy{n}"), 2)
        keeper.maintain(**AT_ONCE)
    assert keeper.recover().prepared == (tx.id,)
    keeper.commit(tx.id)
    assert numbers(world.open(target, "fresh").receive(5)) == [7]
    assert queue.depth() == 1
    work(world.queue("busy9"), 2)
    keeper.maintain(**AT_ONCE)
    assert keeper.recover().prepared == ()
    assert keeper.outcome(tx.id).status is Status.COMMITTED
    assert keeper.history.verify().ok


@on_delta_when_long
def test_an_archived_transaction_id_is_still_known(world: World) -> None:
    queue = world.queue()
    key, run = world.name("nightly"), world.name("run")
    with world.manager().transaction(key) as tx:
        tx.queue(queue.name).send(rows(1))
    drained = queue.drain(lambda batch, tx: None, run_id=run)
    assert drained.messages == 1
    work(queue, 2)
    keeper = world.manager("keeper")
    keeper.maintain(**AT_ONCE)
    journal = client_of(keeper).store.journal
    assert key not in {e.stream for e in journal.read([model.transaction_shard(key)]).entries}
    assert keeper.outcome(key).receipt == tx.receipt
    with world.manager("again").transaction(key) as again:
        assert again.already_committed
        again.queue(queue.name).send(rows(2))
    assert again.receipt == tx.receipt
    assert queue.depth() == 0
    queue.send(rows(3))
    repeated = world.open(queue, "again").drain(lambda batch, tx: None, run_id=run)
    assert repeated.already_finished


@on_delta_when_long
def test_an_idle_client_reads_afresh_what_left_behind_its_back(world: World) -> None:
    queue = world.queue()
    idle = world.open(queue, "idle")
    queue.send(rows(1, 2, 3))
    assert idle.depth() == 3
    work_all = queue.receive(2)
    work_all.accept()
    work(world.queue("busy"), 2)
    world.manager("keeper").maintain(**AT_ONCE)
    assert idle.depth() == 1
    assert numbers(idle.receive(5)) == [3]


@in_memory
def test_every_past_state_can_still_be_asked_for(world: World) -> None:
    queue = world.queue()
    states = []
    for n in range(12):
        queue.send(rows(n, n + 100))
        batch = queue.receive(1)
        (batch.accept if n % 3 else batch.release)()
        snapshot = world.manager().history.as_of()
        states.append((snapshot.commit_seq, snapshot.counts().rows(), snapshot.dispatches().rows()))
        if n % 4 == 3:
            world.clock.advance(DAY)
            world.manager("keeper").maintain(**{**AT_ONCE, "payload_retention_days": 7})
    for commit_seq, queues, dispatches in states:
        found = world.manager("asking").history.as_of(commit_seq)
        assert (found.counts().rows(), found.dispatches().rows()) == (queues, dispatches)


@in_memory
def test_a_claim_in_a_long_log_compacts_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = world.queue()
    client_of(queue).log_max = 6
    work(queue, 6)
    kinds = [entry.kind for entry in entries_of(world, queue)]
    assert kinds.count(model.COMPACTED) == 1
    assert world.manager().history.verify().ok
    assert world.open(queue, "fresh").depth() == 0
    assert compaction.LOG_MAX > 100


@in_memory
def test_payload_goes_when_nobody_can_need_it(world: World) -> None:
    queue = world.queue()
    payload = client_of(queue).store.payload
    owner = queue.info.payload_id
    orphan = world.manager("crashed").transaction()
    orphan.queue(queue.name).send(rows(99))
    queue.send(rows(0))
    spare = queue.receive(1)
    work(queue, 1, 1)
    sent = queue.send(rows(5))
    last = queue.receive(1)
    parts = last.messages()
    assert parts
    last.accept()
    fill_slice(world)
    keeper = world.manager("keeper")
    assert keeper.maintain(**AT_ONCE).slices == 0  # one message is in flight
    assert payload.slices(owner) == {0}
    spare.accept()
    keeper.maintain(**{**AT_ONCE, "payload_retention_days": 2})
    assert payload.slices(owner) == {0}
    world.clock.advance(3 * DAY)
    done = keeper.maintain(**{**AT_ONCE, "payload_retention_days": 2})
    assert done.slices >= 1
    assert payload.slices(owner) == set()
    with pytest.raises(PayloadRemoved):
        last.messages()
    assert keeper.history.verify().ok
    assert sent.count == 1
    assert keeper.maintain(**{**AT_ONCE, "payload_retention_days": 2}).slices == 0


@in_memory
def test_a_proof_and_a_maintenance_do_not_disturb_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    queue = world.queue()
    work(queue, 3)
    queue.send(rows(7))
    asking, keeper = world.manager("asking"), world.manager("keeper")
    payload = client_of(asking).store.payload
    count, dropped = payload.rows, list[Any]()

    def meanwhile(owner: str, places: Any) -> int:
        if not dropped:
            dropped.append(keeper.maintain(**AT_ONCE).slices)
        return count(owner, places)

    monkeypatch.setattr(payload, "rows", meanwhile)
    proof = asking.history.verify()
    assert dropped[0] >= 3
    assert proof.ok, proof
    payload.drop(queue.info.payload_id, payload.slices(queue.info.payload_id))
    assert not asking.history.verify().ok, "what waits must be there"


@in_memory
@pytest.mark.parametrize("inside", [True, False])
def test_a_move_of_what_others_have_settled_is_too_late_payload_or_not(
    world: World, inside: bool
) -> None:
    queue, other = world.queue(lease_seconds=60), world.queue("other", lanes=2, group_by="key")
    queue.send(rows(1))
    manager = world.manager("b")
    batch = manager.queue(queue.name).receive()
    world.clock.advance(61)
    world.open(queue, "c").receive().accept()
    fill_slice(world)
    assert world.manager("keeper").maintain(**AT_ONCE).slices >= 1
    version = world.store.journal.version()
    with pytest.raises(LeaseLost):
        batch.move(other.name, transaction=manager.transaction() if inside else None)
    assert (world.store.journal.version(), other.depth()) == (version, 0)


@in_memory
def test_a_search_says_that_payload_was_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    queue = world.queue()
    work(queue, 3)
    sent = queue.send(rows(7))
    keeper = world.manager("keeper")
    there = (0, sent.send_id, ((0, 0),))
    # SQL needs Spark; what matters here is what is said of the rest.
    monkeypatch.setattr(client_of(keeper).store.payload, "matching", lambda *given: [there])
    ask = {"queue": queue.name, "where": "n > 0"}
    assert [step["step"] for step in keeper.history.trace(**ask).rows()] == ["sent"]
    assert keeper.maintain(**AT_ONCE).slices >= 3
    with pytest.raises(PayloadRemoved, match="partial=True"):
        keeper.history.trace(**ask).rows()
    assert [step["step"] for step in keeper.history.trace(**ask, partial=True).rows()] == ["sent"]


@in_memory
@pytest.mark.parametrize("what", ["a queue", "an exchange"])
def test_payload_tables_that_nothing_names_are_listed_and_stay(
    world: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue()
    queue.send(rows(1))
    crashing, keeper = world.manager("crashing"), world.manager("keeper")
    journal: Any = client_of(crashing).store.journal
    payload: Any = client_of(crashing).store.payload

    def crash(*given: Any) -> Any:
        raise KeyboardInterrupt

    create = crashing.create_queue if what == "a queue" else crashing.create_exchange
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal, "append", crash)
        create(world.name("never"), schema=SCHEMA)
    lost = set(payload.orphans({queue.info.payload_id}))
    assert lost
    payload.made_ms.update(dict.fromkeys(lost, world.clock.now_ms))
    assert keeper.maintain(vacuum=False, dry_run=True).orphans == ()
    world.clock.advance(DAY)
    for options in ({"dry_run": True}, {"vacuum": "full"}, {"vacuum": False}):
        assert set(keeper.maintain(**options).orphans) == lost
    assert set(payload.orphans(())) == {queue.info.payload_id, *lost}
    assert create(world.name("never"), schema=SCHEMA).name == world.name("never")
    assert numbers(queue.receive(1)) == [1]
    assert keeper.history.verify().ok


@in_memory
@pytest.mark.parametrize("off_days", [-400, 400])
def test_a_creation_is_never_in_the_way_of_a_maintenance_whatever_its_clock(
    world: World, off_days: int
) -> None:
    """Between the payload table and the entry that names it, a maintenance comes and goes."""
    world.queue()
    keeper = world.manager("keeper")
    runtime = client_of(keeper).runtime
    runtime.now_ms = lambda: world.clock.now_ms + off_days * DAY * 1000
    listed: list[str] = []
    injector = Meanwhile(
        "append", 1, lambda: listed.extend(keeper.maintain(**AT_ONCE, dry_run=True).orphans)
    )
    store: Any = FaultyStore(world.store, injector)
    creating = memory_manager(store, world.clock, "creating")
    injector.arm()
    made = creating.create_queue("new", SCHEMA, dead_letter=False)
    assert injector.acted and set(listed) <= {made.info.payload_id}
    keeper.maintain(**AT_ONCE)
    assert keeper.maintain(**AT_ONCE, dry_run=True).orphans == ()
    made.send(rows(1))
    assert numbers(made.receive(1)) == [1]


@in_memory
def test_payload_that_a_prepared_transaction_names_stays(world: World) -> None:
    queue = world.queue()
    tx = world.manager("p").transaction(world.name("xid"))
    tx.queue(queue.name).send(rows(42))
    tx.prepare()
    fill_slice(world)
    keeper = world.manager("keeper")
    world.clock.advance(30 * DAY)
    keeper.maintain(**AT_ONCE)
    keeper.commit(tx.id)
    assert numbers(world.open(queue, "fresh").receive(1)) == [42]


@in_memory
@pytest.mark.parametrize("end", ["commit", "rollback", "operator"])
def test_payload_of_a_branch_is_removed_once_it_is_decided_and_consumed(
    world: World, end: str
) -> None:
    queue, keeper = world.queue(), world.manager("keeper")
    branch = Branch(world, "worker")
    branch.queue(queue).send(rows(42))
    if end == "operator":
        branch.prepare()
        keeper.decide_heuristically(branch.id, commit=True, reason="gone")
        branch.channel.forget(branch.xid)
    else:
        branch.decide(commit=end == "commit")
    assert numbers(queue.receive(9)) == ([] if end == "rollback" else [42])
    payload, owner = world.store.payload, queue.info.payload_id
    assert payload.slices(owner)
    fill_slice(world)
    for _ in range(2):
        world.clock.advance(30 * DAY)
        world.open(queue, "late").receive(9).accept()
        keeper.maintain(**AT_ONCE)
    assert not payload.slices(owner)
    assert keeper.history.verify().ok


def fill_slice(world: World) -> None:
    """Let so many versions pass that a slice is over."""
    journal = world.store.journal
    with journal._lock:
        for _ in range(1_001):
            journal.commits.append(((), {"operation": "idle", "run_id": None}))
    work(world.queue("filler"), 2)


@in_memory
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"transaction_seconds_max": -1}, LimitExceeded),
        ({"payload_retention_days": 10**6}, LimitExceeded),
        ({"payload_retention_days": 1.5}, InvalidInput),
        ({"payload_retention_days": None}, InvalidInput),
        ({"transaction_seconds_max": "1"}, InvalidInput),
    ],
)
def test_options_that_cannot_be(world: World, options: Any, error: type[Exception]) -> None:
    world.queue()
    with pytest.raises(error):
        world.manager().maintain(**options)


@in_memory
def test_the_default_leaves_what_is_younger_than_a_day(world: World) -> None:
    queue = world.queue()
    work(queue, 3)
    keeper = world.manager("keeper")
    assert keeper.maintain().archived == 0
    world.clock.advance(DAY + 1)
    work(queue, 1, 7)
    assert keeper.maintain().archived >= 9
