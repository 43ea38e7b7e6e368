"""The history reaches back as far as it is kept, and says where it begins."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.conformance.conftest import (
    BOTH_STORES,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    own_world,
    rows,
)
from tests.databases.hiding import Hiding
from tests.inside import client_of
from txnqueue.admin import history_removal
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    HistoryRemoved,
    InvalidInput,
    LimitExceeded,
    TransactionAborted,
    TransactionNotFound,
)
from txnqueue.reports import verification
from txnqueue.storage.store import MemoryStore

DAY = 24 * 3600
KEPT: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}


@pytest.fixture(params=BOTH_STORES)
def world(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    """A store of its own, whose clock is turned by days."""
    return own_world(request, tmp_path)


def consume(world: World, queue: Any, *sent: int) -> Any:
    """Send messages and accept them, in a transaction called after the first."""
    queue.send(rows(*sent))
    with world.manager("b").transaction(world.name(f"of-{sent[0]}")) as tx:
        assert numbers(tx.queue(queue.name).receive(len(sent))) == list(sent)
    return tx


def age(world: World, keeper: Any, days: float = 2, **more: Any) -> Any:
    """Archive what is over, and let days go by."""
    done = keeper.maintain(**KEPT, **more)
    assert not done.skipped
    world.clock.advance(days * DAY)
    return done


@on_delta_when_long
def test_nobody_is_told_what_was_removed(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    first = consume(world, queue, 1, 2)
    age(world, keeper)
    consume(world, queue, 3)
    age(world, keeper)
    late = consume(world, queue, 5)
    if world.has_frames:
        keeper.create_views("then_", as_of=first.receipt.commit_seq)
        assert world.spark.sql("SELECT * FROM then_queues").count() == 1
    assert keeper.maintain(**KEPT, history_retention_days=1).forgotten >= 2
    history = world.manager("asking").history
    assert first.receipt.commit_seq < history.horizon() < late.receipt.commit_seq
    with pytest.raises(HistoryRemoved):
        history.as_of(first.receipt.commit_seq)
    assert history.as_of(late.receipt.commit_seq).counts().rows()
    if world.has_frames:
        with pytest.raises(Exception, match="HistoryRemoved"):
            world.spark.sql("SELECT * FROM then_queues").collect()


@in_memory
def test_history_that_is_removed_during_a_proof_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, keeper, asking = world.queue(lanes=1), world.manager("keeper"), world.manager("asking")
    consume(world, queue, 1, 2)
    age(world, keeper)
    consume(world, queue, 3)
    age(world, keeper)
    removed: list[Any] = []
    journal = client_of(asking).store.journal
    plain = journal.audit

    def audit(*wanted: Any) -> Any:
        done = keeper.maintain(**KEPT, history_retention_days=1) if not removed else None
        removed.append(done and done.forgotten)
        return plain(*wanted)

    def in_turn(_: None, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
        found = other()  # the entries were read when Delta's log is
        return one(), found

    monkeypatch.setattr(journal, "audit", audit)
    monkeypatch.setattr(verification, "both", in_turn)
    assert asking.history.verify().ok
    assert len(removed) == 2 and removed[0]


@on_delta_when_long
def test_what_is_past_its_retention_is_removed_and_asking_for_it_is_refused(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    other = world.queue("other", lanes=1)
    first = consume(world, queue, 1, 2)
    queue.send(rows(7, 8, 9))
    seven = queue.peek_messages(1)[0]["_message"]["id"]
    queue.receive(1).release()
    queue.receive(1).accept()
    age(world, keeper)
    spare = consume(world, other, 3)
    age(world, keeper)
    late = consume(world, other, 5)
    now = keeper.history.as_of()
    states = [(now.commit_seq, now.messages(queue.name).rows())]
    if world.has_frames:
        keeper.create_views("then_", as_of=first.receipt.commit_seq)
        assert world.spark.sql("SELECT * FROM then_queues").count() == 2
    told = keeper.maintain(**KEPT, history_retention_days=1, dry_run=True)
    assert keeper.history.verify().ok
    done = keeper.maintain(**KEPT, history_retention_days=1)
    assert done.forgotten == told.forgotten > 2
    assert keeper.maintain(**KEPT, history_retention_days=1).forgotten == 0
    history = world.manager("asking").history
    assert history.verify().ok, history.verify()
    begins = history.horizon()
    assert first.receipt.commit_seq < spare.receipt.commit_seq < begins < late.receipt.commit_seq
    with pytest.raises(HistoryRemoved) as refused:
        history.as_of(first.receipt.commit_seq)
    assert refused.value.commit_seq == begins
    instant = datetime.datetime.fromtimestamp(
        (world.clock.now_ms - 4 * DAY * 1000) / 1000, datetime.timezone.utc
    )
    for refuse in (
        lambda: history.as_of(timestamp=instant),
        lambda: history.as_of(begins - 1),
        lambda: history.changes(after=begins - 2).rows(),
    ):
        with pytest.raises(HistoryRemoved):
            refuse()
    assert numbers(history.as_of(begins).messages(queue.name).rows()) == [8, 9]
    for commit_seq, found in states:
        assert history.as_of(commit_seq).messages(queue.name).rows() == found
    assert numbers(found) == [8, 9]
    listed = history.changes().rows()
    assert listed and min(row["commit_seq"] for row in listed) >= begins
    assert history.changes(after=begins - 1).rows() == listed
    steps = [step["step"] for step in history.trace(seven).rows()]
    assert steps == ["sent", "claimed", "released", "claimed", "accepted"]
    if world.has_frames:
        check_views(world, keeper, queue)


@on_delta_when_long
def test_what_was_not_decided_in_time_is_told_as_rolled_back(world: World) -> None:
    queue, busy, keeper = world.queue(lanes=1), world.queue("busy"), world.manager("keeper")
    queue.send(rows(1))
    tx = world.manager("dying").transaction(world.name("lost"))
    assert numbers(tx.queue(queue.name).receive(1)) == [1]

    def told() -> set[str]:
        found: list[Any] = list(keeper.history.as_of().transactions().rows())
        found += map(asdict, keeper.history.report(verify=False).figures.attempts)
        if world.has_frames:
            keeper.create_views("now_")
            found += [row.asDict() for row in world.spark.table("now_transactions").collect()]
        return {row["status"] for row in found if row["transaction_id"] == tx.id}

    consume(world, busy, 2)
    assert told() == {"pending"}
    world.clock.advance(DAY)
    for n in range(3, 6):
        consume(world, busy, n)
        age(world, keeper)
    assert told() == {"rolled_back"}
    assert keeper.outcome(tx.id).status is not Status.COMMITTED
    assert numbers(world.open(queue, "fresh").receive(1)) == [1]
    assert told() == {"rolled_back"}


def check_views(world: World, keeper: Any, queue: Any) -> None:
    """Check that views show what is known as it is, and fail where nothing is known."""
    view = queue.name.replace("-", "_")
    for name in ("then_queues", "then_transactions", f"then_{view}"):
        with pytest.raises(Exception, match="HistoryRemoved"):
            world.spark.sql(f"SELECT * FROM {name}").collect()
    keeper.create_views("now_")
    shown = world.spark.sql(f"SELECT n, state FROM now_{view} ORDER BY n").collect()
    assert [tuple(row) for row in shown] == [(7, "accepted"), (8, "available"), (9, "available")]
    found = world.spark.sql("SELECT status, count(*) FROM now_transactions GROUP BY status")
    assert {row[0] for row in found.collect()} == {"committed"}
    keeper.create_views("begins_", as_of=keeper.history.horizon())
    assert world.spark.sql(f"SELECT * FROM begins_{view} WHERE state = 'available'").count() == 2


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers of a version that removed decisions with the rest of the history."""
    monkeypatch.setattr(model, "KEPT_FOR_EVER", frozenset())
    monkeypatch.setattr(history_removal, "_decisions", lambda fence: {})


@in_memory
def test_a_transaction_id_is_known_for_ever(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    tx = consume(world, queue, 1)
    with pytest.raises(ZeroDivisionError), world.manager("b").transaction(world.name("back")) as no:
        no.queue(queue.name).send(rows(8))
        no.queue(queue.name).receive(1)
        raise ZeroDivisionError
    held = world.manager("c").transaction(world.name("xid"))
    queue.send(rows(1))
    held.queue(queue.name).receive(1)
    held.prepare()
    keeper.commit(held.id)
    for n in range(2, 8):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, n)
    assert keeper.history.horizon() > tx.receipt.commit_seq, "the rest of it was removed"
    fresh = world.manager("fresh")
    assert fresh.outcome(tx.id).receipt == tx.receipt
    assert fresh.outcome(held.id).status is Status.COMMITTED
    fresh.commit(held.id)
    with world.manager("again").transaction(tx.id) as again:
        assert again.already_committed and again.receipt == tx.receipt
    assert fresh.outcome("never").status is Status.UNDECIDED
    assert fresh.outcome("never").reason is None
    with pytest.raises(TransactionNotFound):
        fresh.commit("never")
    assert fresh.history.verify().ok


@in_memory
def test_a_branch_of_a_database_is_ended_as_was_decided_however_long_ago(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    database: Any = Hiding()
    tx = world.manager("b").transaction(world.name("xid"))
    tx.queue(queue.name).send(rows(1))
    tx.enlist("ledger", database)
    tx.commit()
    keeper.recover({"ledger": Hiding()})  # not the one that it is prepared in
    queue.receive(1).accept()
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, 10 + n)
    ended: list[str] = []
    database.tpc_commit = lambda xid: ended.append("committed")
    database.tpc_rollback = lambda xid: ended.append("rolled back")
    keeper.recover({"ledger": database}, branch_seconds_min=0)
    assert ended == ["committed"]


@in_memory
def test_who_cannot_prepare_is_named(world: World) -> None:
    database: Any = Hiding()
    tx = world.manager().transaction()
    database.tpc_prepare = lambda: 1 / 0
    tx.queue(world.queue().name).send(rows(1))
    tx.enlist("ledger", database)
    with pytest.raises(TransactionAborted, match="database 'ledger' could not prepare"):
        tx.commit()


@in_memory
def test_a_key_whose_decision_was_removed_is_new_and_nobody_says_what_became_of_it(
    world: World, older: None
) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    tx = consume(world, queue, 1)
    known = keeper.outcome(tx.id)
    assert known.status is Status.COMMITTED
    for n in range(2, 6):
        age(world, keeper, history_retention_days=1)
        consume(world, queue, n)
    found = keeper.outcome(tx.id)
    assert found.status is Status.UNKNOWN and "removed from the history" in str(found.reason)
    assert keeper.outcome(world.name("of-4")).status is Status.COMMITTED
    with world.manager("again").transaction(tx.id) as again:
        assert not again.already_committed
        again.queue(queue.name).send(rows(9))
    assert keeper.outcome(tx.id).receipt == again.receipt
    assert keeper.history.verify().ok


@in_memory
def test_a_trace_of_what_may_have_been_removed_is_refused_unless_in_part(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Former positions of moved messages were removed by earlier releases."""
    monkeypatch.setattr(history_removal, "_with_former", lambda _, standing, _day: standing)
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    keeper = world.manager("keeper")
    sent = queue.send(rows(1))
    moved = queue.send(rows(2))
    queue.receive(1).accept()
    queue.receive(1).move(other.name)
    messages = [f"{one.send_id}:0" for one in (sent, moved)]
    for n in range(3, 6):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, n)
    history = keeper.history
    for message in messages:
        with pytest.raises(HistoryRemoved, match="partial=True"):
            history.trace(message).rows()
    assert history.trace(messages[0], partial=True).rows() == []
    assert [step["step"] for step in history.trace(messages[1], partial=True).rows()] == ["moved"]
    fresh = other.send(rows(6))
    assert [step["step"] for step in history.trace(f"{fresh.send_id}:0").rows()] == ["sent"]


@in_memory
def test_a_search_in_a_queue_that_is_older_than_the_history_may_miss_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, n)
    fresh = world.queue("fresh")
    sent = {one.name: one.send(rows(7)).send_id for one in (queue, fresh)}
    for one in (queue, fresh):
        # SQL needs Spark; what matters here is what is said of the rest.
        there = [(0, sent[one.name], ((0, 0),))]
        payload = client_of(keeper).store.payload
        monkeypatch.setattr(payload, "matching", lambda *_, there=there: there)
        ask: Any = {"queue": one.name, "where": "n > 0"}
        steps = [step["step"] for step in keeper.history.trace(**ask, partial=True).rows()]
        assert steps == ["sent"]
        if one is fresh:
            assert [step["step"] for step in keeper.history.trace(**ask).rows()] == steps
        else:
            with pytest.raises(HistoryRemoved, match="partial=True"):
                keeper.history.trace(**ask).rows()


@in_memory
def test_messages_that_stand_keep_what_was_done_to_them_however_long(world: World) -> None:
    queue, keeper = world.queue("kept", lanes=1), world.manager("keeper")
    queue.send(rows(*range(5)))
    ids = [m["_message"]["id"] for m in queue.peek_messages()]
    queue.receive(2).accept()
    queue.receive(1).modify()
    busy = world.queue("busy", lanes=1)
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, busy, 10 + n)
    assert keeper.history.horizon() > 10 * 1024
    steps = [[step["step"] for step in keeper.history.trace(one).rows()] for one in ids]
    assert (
        steps
        == [["sent", "claimed", "accepted"]] * 2
        + [["sent", "claimed", "released"]]
        + [["sent"]] * 2
    )
    (row,) = [r for r in keeper.history.as_of().counts().rows() if r["queue"] == queue.name]
    assert (row["posted"], row["available"], row["accepted"]) == (3, 3, 0)
    assert keeper.history.verify().ok


@on_delta_when_long
@pytest.mark.parametrize("way", ["dead", "moved", "redriven"])
def test_a_message_that_went_elsewhere_keeps_what_was_done_to_it_before(
    world: World, way: str
) -> None:
    queue, keeper = world.queue("parcels", lanes=1, dead_letter=True), world.manager("keeper")
    other = world.queue("other", lanes=1)
    queue.send(rows(1))
    if way == "moved":
        queue.receive(1).move(other.name)
        where = other
    else:
        with world.manager("b").transaction(world.name("broken")) as tx:
            tx.queue(queue.name).receive(1).reject(reason="no address")
        where = world.manager().queue(f"{queue.name}.dead")
    if way == "redriven":
        where.redrive()
        where = queue
    (standing,) = [m["_message"]["id"] for m in where.peek_messages()]
    told = keeper.history.trace(standing).rows()
    assert len(told) >= 3
    busy = [world.queue("busy", lanes=1)] + ([queue] if where is not queue else [])
    forgotten = 0
    for n in range(3 if world.has_frames else 12):
        forgotten += age(world, keeper, 2, history_retention_days=0).forgotten
        for one in busy:
            consume(world, one, 10 + 2 * n + busy.index(one))
    forgotten += age(world, keeper, 0, history_retention_days=0).forgotten
    assert forgotten, "vacuous"
    assert keeper.history.trace(standing).rows() == told
    proof = world.manager("auditor").history.verify()
    assert proof.ok, str(proof)
    assert keeper.maintain(**KEPT, history_retention_days=0).forgotten == 0, "it is never done"
    counts = {row["queue"]: row for row in keeper.history.as_of().counts().rows()}
    assert counts[where.name]["available"] == 1
    where.receive(1).accept()
    for n in range(3):
        age(world, keeper, 2, history_retention_days=0)
        consume(world, busy[0], 90 + n)
    age(world, keeper, 0, history_retention_days=0)
    with pytest.raises(HistoryRemoved):
        keeper.history.trace(standing).rows()


@on_delta_when_long
def test_a_message_that_stands_keeps_what_was_done_to_it_and_no_more(world: World) -> None:
    """It failed once, and the lease of who had it next was ended by a claim of another one."""
    queue, keeper = world.queue("held", lanes=1), world.manager("keeper")
    queue.send(rows(0), priority=0)
    (standing,) = [m["_message"]["id"] for m in queue.peek_messages()]
    queue.receive(1).modify()
    world.open(queue, "gone").receive(1)
    world.lease_over()
    consume(world, queue, 1)
    told = keeper.history.trace(standing).rows()
    assert len(told) >= 4
    rounds = 3 if world.has_frames else 12
    for n in range(2, rounds + 2):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, n)
    age(world, keeper, 0, history_retention_days=0)
    assert keeper.history.trace(standing).rows() == told
    (row,) = [r for r in keeper.history.as_of().counts().rows() if r["queue"] == queue.name]
    assert (row["available"], row["in_flight"]) == (1, 0)
    archived = client_of(keeper).store.journal.archive.read()
    left = [e for e in archived if e.queue_id == queue.info.queue_id and e.kind == model.ACCEPTED]
    assert len(left) <= 3, "what was consumed beside it is forgotten"
    proof = world.manager("auditor").history.verify()
    assert proof.ok, str(proof)
    assert keeper.maintain(**KEPT, history_retention_days=0).forgotten == 0, "it is never done"
    if world.has_frames:
        keeper.create_views("stands_")
        view = f"stands_{queue.name}".replace("-", "_")
        states = {
            row.state: row.n
            for row in world.spark.sql(
                f"SELECT state, count(*) n FROM {view} GROUP BY state"
            ).collect()
        }
        assert states["available"] == 1 and "in_flight" not in states


@in_memory
def test_what_is_prepared_stays_and_is_decided_however_late(world: World, older: None) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    queue.send(rows(1, 2))
    tx = world.manager("b").transaction(world.name("xid"))
    tx.queue(queue.name).receive(1)
    tx.prepare()
    busy = world.queue("busy", lanes=1)
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, busy, 10 + n)
    begins = keeper.history.horizon()
    (pending,) = [
        r
        for r in keeper.history.as_of(begins).transactions().rows()
        if r["transaction_id"] == tx.id
    ]
    assert pending["status"] == "prepared"
    keeper.commit(tx.id)
    assert queue.depth() == 1 and keeper.history.verify().ok
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, busy, 20 + n)
    for decide in (lambda: keeper.commit(tx.id), tx.commit):
        with pytest.raises(HistoryRemoved, match=tx.id):
            decide()
    assert keeper.history.verify().ok


@in_memory
def test_a_branch_of_a_database_is_not_ended_by_a_guess(
    world: World, caplog: pytest.LogCaptureFixture, older: None
) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    database: Any = Hiding()
    tx = world.manager("b").transaction(world.name("xid"))
    tx.queue(queue.name).send(rows(1))
    tx.enlist("ledger", database)
    tx.commit()
    keeper.recover({"ledger": Hiding()})  # not the one that it is prepared in
    queue.receive(1).accept()
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, queue, 10 + n)
    assert keeper.outcome(tx.id).status is Status.UNKNOWN
    ended: list[Any] = []
    for name in ("tpc_commit", "tpc_rollback"):
        setattr(database, name, ended.append)
    keeper.recover({"ledger": database}, branch_seconds_min=0)
    assert not ended, "it was ended by a guess"
    assert "branch left in doubt" in caplog.text


@in_memory
@pytest.mark.parametrize("how", ["a decision", "a claim", "payload", "an entry of the archive"])
def test_what_was_tampered_with_after_a_removal_is_found(world: World, how: str) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    busy = world.queue("busy", lanes=1)
    queue.send(rows(1, 2, 3))
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, busy, 10 + n)
    age(world, keeper, days=0)
    queue.receive(1)
    assert keeper.history.verify().ok
    journal, payload = world.store.journal, world.store.payload
    begins = keeper.history.horizon() >> 10
    if how == "an entry of the archive":
        name = next(n for n, e in journal.archive.kept.items() if e.version > begins)
        del journal.archive.kept[name]
    elif how == "payload":
        name = next(n for n, table in payload._sends.items() if table.num_rows == 3)
        payload._sends[name] = payload._sends[name].slice(1)
    elif how == "a decision":
        kept = [e for e in journal.archive.kept.values() if e.version > begins]
        again = next(entry for entry in kept if entry.kind == model.COMMITTED)
        journal._shards[again.shard].append(replace(again, append_id="forged"))
    else:
        every = [entry for found in journal._shards.values() for entry in found]
        gone = next(entry for entry in every if entry.kind == model.CLAIMED)
        journal._shards[gone.shard].remove(gone)
    assert not keeper.history.verify().ok


@in_memory
def test_payload_of_a_dead_letter_is_missed_though_nobody_knows_what_was_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Former positions of dead letters were removed by earlier releases."""
    monkeypatch.setattr(history_removal, "_with_former", lambda _, standing, _day: standing)
    queue, keeper = world.queue(lanes=1, dead_letter=True), world.manager("keeper")
    queue.send(rows(1, 2, 3))
    queue.receive(3).reject(reason="bad")
    busy = world.queue("busy", lanes=1)
    for n in range(4):
        age(world, keeper, history_retention_days=0)
        consume(world, busy, 10 + n)
    posted = [e for e in world.store.journal.archive.read() if e.kind == model.POSTED]
    assert queue.info.queue_id not in {entry.queue_id for entry in posted}
    assert keeper.history.verify().ok
    payload = world.store.payload
    name = next(n for n, table in payload._sends.items() if table.num_rows == 3)
    payload._sends[name] = payload._sends[name].slice(1)
    assert not keeper.history.verify().ok


# ------------------------------------------------------------- what is removed while it is read


class Eaten:
    """A store of which a part of the history is going to be removed: an early message's."""

    def __init__(self, world: World) -> None:
        self.world, self.keeper = world, world.manager("keeper")
        self.queue, busy = world.queue(lanes=1), world.queue("busy", lanes=1)
        self.queue.send(rows(0))
        self.message = self.queue.peek_messages()[0]["_message"]["id"]
        self.before = self.keeper.history.as_of().commit_seq
        consume_some(world, self.queue, 1)
        self.queue.send(rows(*range(1, 6)))
        consume_some(world, self.queue, 2)
        for n in range(5):
            age(world, self.keeper)
            consume(world, busy, 10 + n)
            if n == 1:
                consume_some(world, self.queue, 2)
        self.asking = world.manager("asking")
        self.asking.queue(self.queue.name).depth()

    def remove(self) -> None:
        """Remove what is older than some days."""
        journal = self.world.store.journal
        journal.step = journal.archive.step = lambda _: None
        assert self.keeper.maintain(**KEPT, history_retention_days=3).forgotten
        assert self.keeper.history.horizon() > self.before

    def remove_at(self, nth: int) -> None:
        """Remove it before a step of the store that is to come."""
        steps = itertools.count(1)

        def step(_: str) -> None:
            if next(steps) == nth:
                self.remove()

        journal = self.world.store.journal
        journal.step = journal.archive.step = step

    def is_removed(self) -> bool:
        """Return whether it was removed."""
        return bool(self.world.manager("b").history.horizon() > self.before)


def consume_some(world: World, queue: Any, count: int) -> None:
    """Accept messages in a transaction."""
    with world.manager("c").transaction() as tx:
        assert len(tx.queue(queue.name).receive(count)) == count


def flows(eaten: Eaten) -> object:
    """Report what came and went."""
    figures = eaten.asking.history.report(eaten.before, verify=False).figures
    return [(d.posted, d.accepted) for d in figures.differences], len(figures.events)


ASKED: dict[str, Callable[[Eaten], object]] = {
    "changes": lambda e: len(e.asking.history.changes(e.before).rows()),
    "a report": flows,
    "a trace": lambda e: [s["step"] for s in e.asking.history.trace(e.message).rows()],
    "a replay": lambda e: numbers(e.asking.queue(e.queue.name).replay(after=e.before)),
}


@pytest.mark.parametrize("asked", list(ASKED))
def test_what_is_removed_while_it_is_read_is_never_a_silent_gap(asked: str) -> None:
    whole, refused = ASKED[asked](Eaten(World(MemoryStore()))), 0
    for nth in range(1, 60):
        eaten = Eaten(World(MemoryStore()))
        eaten.remove_at(nth)
        try:
            assert ASKED[asked](eaten) == whole, nth
        except HistoryRemoved:
            refused += 1
        if not eaten.is_removed():
            break
    assert refused and nth > refused


@in_memory
def test_a_list_of_changes_that_is_read_later_misses_what_was_removed_since(world: World) -> None:
    eaten = Eaten(world)
    after, known = (eaten.asking.history.changes(first) for first in (eaten.before, -1))
    eaten.remove()
    with pytest.raises(HistoryRemoved):
        after.rows()
    horizon = eaten.keeper.history.horizon()
    assert min(row["commit_seq"] for row in known.rows()) >= horizon


@in_memory
def test_a_snapshot_counts_from_the_beginning_that_the_history_has_by_then(world: World) -> None:
    eaten = Eaten(world)
    snapshot = eaten.asking.history.as_of()
    eaten.remove()
    assert snapshot.counts().rows() == world.manager("d").history.as_of().counts().rows()


@in_memory
def test_a_rehearsal_misses_what_was_removed_while_the_handler_ran(world: World) -> None:
    eaten = Eaten(world)
    with pytest.raises(HistoryRemoved):
        eaten.asking.rehearse(lambda *_: eaten.remove(), eaten.queue.name, as_of=eaten.before)


@in_memory
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"history_retention_days": -1}, LimitExceeded),
        ({"history_retention_days": 36_601}, LimitExceeded),
        ({"history_retention_days": 7.5}, InvalidInput),
        ({"history_retention_days": "7"}, InvalidInput),
        ({"history_retention_days": 6}, InvalidInput),
        ({"history_retention_days": 1, "payload_retention_days": 2}, InvalidInput),
    ],
)
def test_options_that_cannot_be(world: World, options: Any, error: type[Exception]) -> None:
    world.queue()
    with pytest.raises(error, match="history_retention_days"):
        world.manager().maintain(**options)


@in_memory
def test_a_report_of_what_is_removed_before_it_is_read_is_refused_and_not_shortened(
    world: World,
) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    first = consume(world, queue, 1).receipt.commit_seq
    for n in (2, 3):
        age(world, keeper)
        consume(world, queue, n)
    history = world.manager("asking").history
    told, all_known = history.changes(after=first), history.changes()
    whole = len(history.changes().rows())
    assert keeper.maintain(**KEPT, history_retention_days=1).forgotten
    assert history.horizon() > first, "vacuous"
    with pytest.raises(HistoryRemoved):
        told.rows()
    with pytest.raises(HistoryRemoved):
        history.changes(upto=first)
    assert 0 < len(all_known.rows()) < whole
    assert history.changes(after=history.horizon()).rows()


@in_memory
@pytest.mark.parametrize("days_long", [1, 3])
def test_a_keeper_whose_clock_is_behind_does_not_shorten_the_history(
    world: World, days_long: int
) -> None:
    """It denies the day that the others said, and says some that are over for long."""
    queue, kept = world.queue(lanes=1), 5
    keeper, behind = world.manager("keeper"), world.manager("behind")
    client_of(behind).runtime.now_ms = lambda: world.clock.now_ms - 30 * DAY * 1000
    states: list[tuple[int, int]] = []
    for day in range(45):
        states.append((world.clock.now_ms, consume(world, queue, day).receipt.commit_seq))
        for _ in range(2 * (20 <= day < 20 + days_long)):
            behind.queue(queue.name).send(rows(99))
            behind.queue(queue.name).receive(1).accept()
            behind.maintain(**KEPT, history_retention_days=kept)
        world.clock.advance(DAY)
        if day != 20:
            keeper.maintain(**KEPT, history_retention_days=kept)
        for at_ms, commit_seq in states:
            if at_ms >= world.clock.now_ms - kept * DAY * 1000:
                keeper.history.as_of(commit_seq)
    fence = client_of(keeper).store.journal.read([model.FENCE]).entries
    assert model.newest_day(fence)[0], "vacuous: nobody corrected the day"
    with pytest.raises(HistoryRemoved):  # later than else, but not for ever
        keeper.history.as_of(states[-2 * kept][1])
    assert keeper.history.verify().ok


@in_memory
def test_past_states_reach_back_as_long_as_was_said(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    states: list[tuple[int, int]] = []
    for n in range(40):
        tx = consume(world, queue, n)
        states.append((world.clock.now_ms, tx.receipt.commit_seq))
        keeper.maintain(**KEPT, history_retention_days=5)
        world.clock.advance(0.3 * DAY)
        for at_ms, commit_seq in states:
            if at_ms >= world.clock.now_ms - 5 * DAY * 1000:
                keeper.history.as_of(commit_seq)
    with pytest.raises(HistoryRemoved):
        keeper.history.as_of(states[10][1])
