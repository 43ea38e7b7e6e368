"""Transient messages: in the memory of one process, with the transactions of all others."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import (
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    pick,
    rows,
)
from tests.conftest import LONG
from tests.faults.interrupts import Interrupt
from tests.inside import attempt_of, client_of
from tests.silence import interrupted, unanswered
from txnqueue.client.client import QueuePart
from txnqueue.core.receipt import Status
from txnqueue.core.redelivery import AT_ONCE
from txnqueue.core.state import QueueState
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    PayloadRemoved,
    QueueClosed,
    QueueNotFound,
    SettlementPending,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.manager import QueueManager
from txnqueue.messages.claim import ClaimPlanner
from txnqueue.messages.receive import claim
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.queue import Queue
from txnqueue.storage import transient
from txnqueue.storage.store import MemoryStore


def version(queue: Queue) -> int:
    """Read the journal's version: an append of any kind changes it."""
    return client_of(queue).store.journal.version()


def counts(queue: Queue) -> tuple[int, int]:
    """What can be received, and what is in flight."""
    return queue.depth(), queue.in_flight()


def both(queue: Queue) -> None:
    """Send 1 and 2 to the store, 3 and 4 to the memory."""
    queue.send(rows(1, 2))
    queue.send(rows(3, 4), durable=False)


@on_delta_when_long
def test_one_call_receives_both_kinds_and_settles_each_where_it_is(world: World) -> None:
    queue = world.queue(dead_letter=True)
    both(queue)
    assert queue.depth() == 4
    assert sorted(numbers(queue.peek_messages())) == [1, 2, 3, 4]
    batch = queue.receive()
    assert sorted(numbers(batch)) == [1, 2, 3, 4]
    assert counts(queue) == (0, 4)
    if world.has_frames:
        found = {row["n"]: row["_message"] for row in batch.df.collect()}
        assert sorted(found) == [1, 2, 3, 4]
        assert {row["queue"] for row in found.values()} == {queue.name}
    assert batch.release(matching=pick(batch, 1, 3)) == 2
    assert batch.reject(matching=pick(batch, 4), reason="bad") == 1
    assert batch.accept() == 1
    assert counts(queue) == (2, 0)
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    assert [(row["n"], row["_message"]["origin"]["reason"]) for row in letters] == [(4, "bad")]


def test_a_transaction_of_both_kinds_is_one_decision(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    both(queue)
    with world.manager().transaction() as tx:
        batch = tx.queue(queue.name).receive()
        tx.queue(other.name).send(rows(5))
        before = version(queue)
        tx.queue(other.name).send(rows(6), durable=False)
        assert (len(batch), other.depth(), version(queue)) == (4, 0, before)
    assert version(queue) == before + 1
    assert sorted(numbers(other.peek_messages())) == [5, 6]
    assert counts(queue) == (0, 0)
    assert sorted(numbers(batch)) == [1, 2, 3, 4]  # a batch stays readable
    tx = world.manager().transaction()
    tx.queue(other.name).receive()
    tx.queue(queue.name).send(rows(7), durable=False)
    tx.rollback()
    assert (counts(other), counts(queue)) == ((2, 0), (0, 0))


@on_delta_when_long
def test_what_has_nothing_durable_in_it_appends_nothing(world: World) -> None:
    queue = world.queue(durable=False, lanes=2)
    before = version(queue)
    queue.send(rows(1, 2))
    batch = queue.receive()
    batch.extend_lease(60)
    batch.accept()
    with world.manager().transaction(world.name("run-7")) as tx:
        tx.queue(queue.name).send(rows(3))
        assert queue.depth() == 0
    with world.manager().transaction() as tx:
        assert numbers(tx.queue(queue.name).receive()) == [3]
    aborted = world.manager().transaction()
    aborted.queue(queue.name).send(rows(4))
    aborted.queue(queue.name).receive()
    aborted.rollback()
    queue.send(rows(5))
    assert queue.purge() == 1
    assert (counts(queue), version(queue)) == ((0, 0), before)


@in_memory
def test_another_process_sees_none_of_them(world: World) -> None:
    queue = world.queue()
    both(queue)
    elsewhere = world.open(queue, "b")
    assert elsewhere.depth() == 4  # a manager of the same process shares them
    world.store.transient = transient.TransientStore("another process")
    assert numbers(world.open(queue, "c").receive()) == [1, 2]


@in_memory
def test_leases_redelivery_and_dead_letters_are_as_everywhere(world: World) -> None:
    queue = world.queue(durable=False, dead_letter=True, deliveries_max=2, lease_seconds=60)
    queue.send(rows(*range(20)))
    first = queue.receive(20)
    theirs = world.open(queue, "b")
    assert len(theirs.receive()) == 0
    world.clock.advance(61)
    second = theirs.receive(20)
    assert numbers(second) == [*range(20)]
    assert {row["_message"]["delivery_count"] for row in second.messages()} == {1}
    with pytest.raises(LeaseLost):
        first.accept()
    second.modify()
    narrow = theirs.receive(20)
    assert numbers(narrow) == [0, 1]
    narrow.modify()
    for _ in range(2):
        theirs.receive(1).modify()
    rest = theirs.receive(1)
    assert numbers(rest) == [2]
    letters = world.manager().queue(f"{queue.name}.dead")
    assert numbers(letters.peek_messages()) == [0, 1]
    rest.release()
    assert letters.redrive() == 2
    assert queue.depth() == 20


@in_memory
def test_priority_delay_and_time_to_live_are_as_everywhere(world: World) -> None:
    queue = world.queue(durable=False)
    queue.send(rows(1))
    queue.send(rows(2), priority=9)
    queue.send(rows(3), delay_seconds=60)
    queue.send(rows(4), ttl_seconds=60)
    assert numbers(queue.receive(2)) == [2, 1]
    world.clock.advance(61)
    assert numbers(queue.receive()) == [3]


@in_memory
def test_headers_and_lanes_are_as_everywhere(world: World) -> None:
    queue = world.queue(lanes=4, group_by="key")
    queue.send(rows(1, key="x"), durable=False, headers={"correlation_id": "c", "h": "v"})
    queue.send(rows(2, key="x"))
    found = {row["n"]: row["_message"] for row in queue.receive().messages()}
    assert found[1]["lane"] == found[2]["lane"]
    assert (found[1]["correlation_id"], dict(found[1]["headers"])["h"]) == ("c", "v")
    assert found[2]["headers"] is None


@in_memory
def test_what_failed_is_tried_alone_whichever_kind_it_is(world: World) -> None:
    queue = world.queue()
    queue.send(rows(*range(10)), durable=False)
    queue.receive().modify()
    queue.send(rows(100))
    for _ in range(3):  # they take turns
        batch = queue.receive()
        assert numbers(batch) in ([*range(10)], [100])
        batch.release()


@in_memory
def test_neither_kind_keeps_the_other_waiting(world: World) -> None:
    queue, seen = world.queue(), set()
    queue.send(rows(*range(4)))
    for n in range(4):
        queue.send(rows(10 + n, 20 + n), durable=False)
        batch = queue.receive(1)
        seen.update(numbers(batch))
        batch.accept()
    assert seen & {0, 1, 2, 3} and seen & {10, 11, 12, 13}


@in_memory
def test_a_committed_id_without_durable_work_is_known_to_this_process(world: World) -> None:
    queue, key = world.queue(durable=False), world.name("K")

    def once(name: str) -> Any:
        tx = world.manager(name).transaction(key)
        tx.queue(queue.name).send(rows(1))
        tx.commit()
        return tx

    first, again = once("a"), once("b")
    assert (first.already_committed, again.already_committed) == (False, True)
    assert again.receipt == first.receipt
    assert queue.depth() == 1
    outcome = world.manager().outcome(key)
    assert (outcome.status, outcome.receipt) == (Status.COMMITTED, first.receipt)
    assert world.manager().run_transaction(lambda tx: None, transaction_id=key) == first.receipt


@in_memory
def test_of_two_attempts_of_an_id_one_is_committed(world: World) -> None:
    queue, key = world.queue(durable=False), world.name("K")
    one, two = world.manager("a").transaction(key), world.manager("b").transaction(key)
    for tx in (one, two):
        tx.queue(queue.name).send(rows(1))
    one.commit()
    with pytest.raises(TransactionAborted):
        two.commit()
    assert queue.depth() == 1


@in_memory
@pytest.mark.parametrize("more", [False, True], ids=["only in memory", "both kinds"])
def test_prepare_refuses_transient_work_and_changes_nothing(world: World, more: bool) -> None:
    queue = world.queue()
    tx = world.manager().transaction()
    tx.queue(queue.name).send(rows(1), durable=False)
    if more:
        tx.queue(queue.name).send(rows(2))
    before = version(queue)
    with pytest.raises(InvalidInput, match="durable=True"):
        tx.prepare()
    assert (tx.status, version(queue)) == (Status.ACTIVE, before)
    tx.commit()
    assert queue.depth() == 1 + more


@in_memory
@pytest.mark.parametrize("more", [False, True], ids=["only in memory", "both kinds"])
def test_a_transaction_whose_messages_were_taken_over_is_aborted(world: World, more: bool) -> None:
    """Its lease was over: somebody else has its transient messages, and it changes nothing."""
    queue, out = world.queue(lease_seconds=60), world.queue("out")
    queue.send(rows(1), durable=False)
    tx = world.manager().transaction()
    assert numbers(tx.queue(queue.name).receive()) == [1]
    tx.queue(out.name).send(rows(2), durable=more)
    world.clock.advance(61)
    taken = world.open(queue, "b").receive()
    assert numbers(taken) == [1]
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert counts(out) == (0, 0)
    taken.accept()
    assert counts(queue) == (0, 0)


@in_memory
def test_a_lost_durable_part_takes_the_transient_part_with_it(world: World) -> None:
    """The durable messages were taken over: what is in memory comes back."""
    queue, out = world.queue(lease_seconds=60), world.queue("out")
    both(queue)
    tx = world.manager().transaction()
    assert len(tx.queue(queue.name).receive()) == 4
    tx.queue(out.name).send(rows(5), durable=False)
    world.clock.advance(61)
    others = world.manager("b")
    client_of(others).store.transient  # noqa: B018 (shared: this process)
    part = client_of(others.queue(queue.name))
    planner = ClaimPlanner(part, queue.info, 10, 60, None)
    assert part.land(planner.plan, "claim") is not None
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert out.depth() == 0
    assert numbers(queue.receive()) == [3, 4]


def doubtful(world: World, queue: Queue, lands: bool) -> Any:
    """Commit both kinds while the store answers nothing: the decision lands, or does not."""
    client = world.manager("doubtful")
    tx = client.transaction(world.name("K"))
    tx.queue(queue.name).receive()
    tx.queue(queue.name).send(rows(5))
    tx.queue(queue.name).send(rows(6), durable=False)
    with (
        unanswered(client_of(client).store.journal, lands=lands),
        pytest.raises(TransactionUnknown),
    ):
        tx.commit()
    return tx


@in_memory
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("ask", ["outcome", "recover", "receive", "rollback"])
def test_while_the_outcome_is_in_doubt_the_transient_part_waits(
    world: World, lands: bool, ask: str
) -> None:
    queue = world.queue(lease_seconds=60)
    queue.send(rows(3, 4), durable=False)
    tx = doubtful(world, queue, lands)
    memory = client_of(queue).transient
    with memory.lock:
        assert (
            memory.states.fold(queue.info.in_memory()).available(world.clock.now_ms, AT_ONCE) == 0
        )
    world.clock.advance(61)
    others = world.manager("b")
    if ask == "outcome":
        known = others.outcome(tx.id).status is Status.COMMITTED
        assert known is lands
    elif ask == "recover":
        others.recover()
    elif ask == "rollback" and lands:
        with pytest.raises(TransactionFinished):
            tx.rollback()
    elif ask == "rollback":
        tx.rollback()
    received = numbers(others.queue(queue.name).receive())
    if lands:
        assert sorted(received) == [5, 6]
    elif ask in ("recover", "rollback"):
        assert received == [3, 4]  # redelivered, as they were
    else:  # nobody knows yet: somebody has to decide
        assert received == []


@in_memory
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
def test_after_a_commit_that_failed_nothing_is_added_that_it_would_leave_out(
    world: World, commit: bool
) -> None:
    queue, out = world.queue(), world.queue("out")
    both(queue)
    manager = world.manager("b")
    held = manager.queue(queue.name).receive()
    tx = manager.transaction()
    held.accept(matching=pick(held, 1, 3), transaction=tx)
    tx.queue(out.name).send(rows(5), durable=False)
    journal = client_of(manager).store.journal
    read = journal.read

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the store is away")

    journal.read = away
    with pytest.raises(ConnectionError):
        tx.commit()
    journal.read = read
    assert tx.status is Status.ACTIVE
    for more in (
        lambda: tx.queue(out.name).send(rows(6), durable=False),
        lambda: tx.queue(out.name).send(rows(6)),
        lambda: tx.queue(queue.name).receive(),
        lambda: held.accept(matching=pick(held, 4), transaction=tx),
    ):
        with pytest.raises(TransactionFinished, match="commit it again"):
            more()
    tx.commit() if commit else tx.rollback()
    assert numbers(out.peek_messages()) == ([5] if commit else [])
    assert held.release() == (2 if commit else 4)
    assert sorted(numbers(queue.peek_messages())) == ([2, 4] if commit else [1, 2, 3, 4])


@in_memory
def test_a_fresh_attempt_ends_the_doubt_about_an_older_one(world: World) -> None:
    queue = world.queue()
    queue.send(rows(3, 4), durable=False)
    older = doubtful(world, queue, lands=False)
    with world.manager("b").transaction(older.id) as tx:
        assert numbers(tx.queue(queue.name).receive()) == [3, 4]
        tx.queue(queue.name).send(rows(7))
    with pytest.raises(TransactionFinished):
        older.commit()
    older.rollback()
    assert numbers(queue.peek_messages()) == [7]


@in_memory
@pytest.mark.parametrize("lands", [True, False])
def test_a_doubt_that_outlasts_the_horizon_is_settled(world: World, lands: bool) -> None:
    """The decision is in the archive by then, or there will never be one."""
    queue = world.queue(lease_seconds=60)
    queue.send(rows(3), durable=False)
    tx = doubtful(world, queue, lands)
    others = world.manager("b")
    for _ in range(2):
        world.clock.advance(10_000)
        others.queue(queue.name).send(rows(1))
        others.maintain(transaction_seconds_max=3600)
    assert all(e.stream != tx.id for e in world.store.journal.read_all().entries)
    with others.transaction(tx.id) as again:
        assert again.already_committed is lands
        received = numbers(again.queue(queue.name).receive(1))
    received += [n for _ in range(4) for n in numbers(queue.receive())]
    assert sorted(received) == ([1, 1, 5, 6] if lands else [1, 1, 3])


@in_memory
@pytest.mark.parametrize("first", ["commits", "prepares", "is in memory"])
def test_of_two_attempts_of_an_id_one_is_committed_whatever_they_work_on(
    world: World, first: str
) -> None:
    queue, key = world.queue(), world.name("K")
    durable, memory = world.manager("a").transaction(key), world.manager("b").transaction(key)
    for tx in (durable, memory):
        tx.queue(queue.name).send(rows(1 if tx is durable else 2), durable=tx is durable)
    one, two = (memory, durable) if first == "is in memory" else (durable, memory)
    if first == "prepares":
        one.prepare()
    else:
        one.commit()
    with pytest.raises(TransactionAborted):
        two.commit()
    one.commit()
    assert numbers(queue.receive(2)) == [2 if one is memory else 1]
    assert not client_of(queue).store.transient.elsewhere


@in_memory
@pytest.mark.parametrize("kinds", ["both", "durable"])
def test_what_is_only_in_memory_waits_for_an_attempt_that_may_land_late(
    world: World, kinds: str
) -> None:
    """Of two attempts of an id one is committed, whichever kinds of messages they send."""
    queue = world.queue()
    client = world.manager("late")
    journal = client_of(client).store.journal
    older = client.transaction(world.name("K"))
    older.queue(queue.name).send(rows(1))
    if kinds == "both":
        older.queue(queue.name).send(rows(2), durable=False)
    append, read, late = journal.append, journal.read, []

    def silent(*args: Any) -> Any:
        late.append(args)
        journal.append, journal.read = append, gone
        raise ConnectionError("no reply")

    def gone(*args: Any, **kwargs: Any) -> Any:
        journal.read = read
        raise ConnectionError("gone")

    watched: Any = journal
    watched.append = silent
    with pytest.raises(TransactionUnknown):
        older.commit()
    with client.transaction(older.id) as younger:
        younger.queue(queue.name).send(rows(3), durable=False)
    assert not append(*late.pop()).won[0]
    client.recover()
    assert numbers(queue.receive()) + numbers(queue.receive()) == [3]


@in_memory
@pytest.mark.parametrize("kinds", ["both", "durable"])
def test_nothing_is_committed_in_memory_beside_an_attempt_that_is_being_decided(
    world: World, kinds: str
) -> None:
    queue = world.queue()
    client = world.manager("two")
    journal = client_of(client).store.journal
    older, younger = (client.transaction(world.name("K")) for _ in range(2))
    younger.queue(queue.name).send(rows(2), durable=False)
    older.queue(queue.name).send(rows(1), durable=kinds == "durable")
    older.queue(queue.name).send(rows(3))
    append = journal.append

    def meanwhile(*args: Any) -> Any:
        journal.append = append
        with pytest.raises(TransactionAborted):
            younger.commit()
        return append(*args)

    watched: Any = journal
    watched.append = meanwhile
    older.commit()
    assert sorted(numbers(queue.receive()) + numbers(queue.receive())) == [1, 3]


@in_memory
@pytest.mark.parametrize("receives", [True, False])
def test_a_commit_that_is_interrupted_when_its_memory_is_prepared_can_be_taken_back(
    world: World, receives: bool
) -> None:
    queue = world.queue()
    queue.send(rows(1), durable=False)
    memory = client_of(queue).store.transient
    tx = world.manager().transaction()
    if receives:
        assert numbers(tx.queue(queue.name).receive()) == [1]
    tx.queue(queue.name).send(rows(2))
    tx.queue(queue.name).send(rows(3), durable=False)
    landed = memory.landed

    def interrupted() -> None:
        memory.landed = landed
        raise KeyboardInterrupt

    memory.landed = interrupted
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    tx.rollback()
    assert not memory.journal.prepared
    assert numbers(queue.receive()) == [1]


@in_memory
@pytest.mark.parametrize("again", ["commit", "rollback"])
def test_a_memory_commit_that_was_interrupted_happened(world: World, again: str) -> None:
    queue = world.queue(durable=False)
    tx = world.manager().transaction()
    tx.queue(queue.name).send(rows(1))
    landed = client_of(queue).store.transient.landed

    def interrupted() -> None:
        landed()
        raise KeyboardInterrupt

    client_of(queue).store.transient.landed = interrupted
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    client_of(queue).store.transient.landed = landed
    if again == "commit":
        assert tx.commit() == tx.receipt
    else:
        with pytest.raises(TransactionFinished):
            tx.rollback()
    assert (queue.depth(), tx.status) == (1, Status.COMMITTED)


@in_memory
def test_a_batch_of_both_kinds_settles_as_a_whole_or_not_at_all(world: World) -> None:
    queue = world.queue(lease_seconds=60)
    both(queue)
    batch = queue.receive()
    world.clock.advance(61)
    queue.send(rows(9), durable=False, priority=9)
    taken = world.open(queue, "b")
    assert numbers(taken.receive(1)) == [9]  # the turn of the memory
    memory = client_of(taken).transient
    client_of(taken).parts_of = lambda info: [QueuePart(memory, info.in_memory())]
    assert numbers(taken.receive(10)) == [3, 4]
    with memory.lock:
        assert memory.states.fold(queue.info.in_memory()).in_flight() == 3
    with pytest.raises(LeaseLost):
        batch.accept()
    with client_of(queue).lock:
        assert (
            client_of(queue).states.fold(queue.info).in_flight() == 2
        )  # 1 and 2 are held as before
    with client_of(queue).lock:
        before = [claim.deadline_ms for claim in client_of(queue).states.fold(queue.info).claims()]
    with pytest.raises(LeaseLost, match=r"receive again, for longer.*Nothing was changed"):
        batch.extend_lease(60)
    with client_of(queue).lock:
        claims = client_of(queue).states.fold(queue.info).claims()
        assert [claim.deadline_ms for claim in claims] == before


@in_memory
@pytest.mark.parametrize("turn", [0, 1])
def test_a_receive_that_fails_half_way_holds_nothing(world: World, turn: int) -> None:
    """The messages of the other kind were held until their lease ended, and it counted."""
    queue = world.queue()
    both(queue)
    client, claimed = client_of(queue), list[int]()

    def wanted(_lane: Any, segments: Any) -> Any:
        claimed.append(1)
        if len(claimed) > 1:
            raise InvalidInput("a predicate fails on the rows of the second kind")
        return segments

    for _ in range(turn):
        client.transient.turn(f"{queue.info.queue_id}/kinds")
    with pytest.raises(InvalidInput, match="second kind"):
        claim(client, queue.info, 10, None, wanted=wanted)
    assert counts(queue) == (4, 0)
    messages = queue.receive().messages()
    assert [message["_message"]["delivery_count"] for message in messages] == [0] * 4


@in_memory
def test_a_message_is_settled_once_whichever_kind_it_is(world: World) -> None:
    queue = world.queue()
    both(queue)
    batch = queue.receive()
    batch.extend_lease(1_000)
    world.lease_over()
    assert len(world.open(queue, "b").receive()) == 0
    batch.accept()
    for settle in (batch.accept, batch.release, batch.reject):
        with pytest.raises(AlreadySettled):
            settle()


@in_memory
def test_a_leased_batch_of_both_kinds_is_settled_in_a_transaction(world: World) -> None:
    queue = world.queue()
    both(queue)
    manager = world.manager()
    batch = manager.queue(queue.name).receive()
    tx = manager.transaction()
    batch.accept(transaction=tx)
    tx.rollback()
    assert counts(queue) == (0, 4)  # roll back gives nothing of what was held before back
    with manager.transaction() as tx:
        batch.accept(matching=pick(batch, 2, 3), transaction=tx)
    batch.release()
    assert sorted(numbers(queue.peek_messages())) == [1, 4]


@in_memory
def test_a_drain_consumes_both_kinds(world: World) -> None:
    queue, out = world.queue(), world.queue("out")
    both(queue)
    seen = []

    def handler(batch: Any, tx: Any) -> None:
        seen.extend(numbers(batch))
        tx.queue(out.name).send(batch.messages(), durable=False)

    result = world.open(queue, "b").drain(handler, batch_size=1, until="empty")
    assert (sorted(seen), result.messages, result.finished) == ([1, 2, 3, 4], 4, True)
    assert (counts(queue), out.depth()) == ((0, 0), 4)


@in_memory
def test_a_drain_of_what_was_there_at_its_start_leaves_what_came_later(world: World) -> None:
    queue, run_id = world.queue(durable=False), world.name("night")
    queue.send(rows(1, 2, 3))

    def handler(batch: Any, tx: Any) -> None:
        queue.send(rows(9), transaction=None)

    before = version(queue)
    result = world.open(queue, "b").drain(handler, batch_size=2, run_id=run_id)
    assert (result.batches, result.messages, queue.depth()) == (2, 3, 2)
    assert version(queue) == before + 1  # that the run has ended is written down
    again = world.open(queue, "c").drain(handler, run_id=run_id)
    assert again.already_finished


@in_memory
def test_messages_move_and_metrics_count_both_kinds(world: World) -> None:
    queue, other = world.queue(dead_letter=True), world.queue("other")
    both(queue)
    queue.receive(1)
    assert queue.move(other.name) == 3
    measured = {row["queue"]: row for row in world.manager().metrics().rows()}
    assert (measured[other.name]["available"], measured[queue.name]["in_flight"]) == (3, 1)
    assert measured[queue.name]["messages"] == 1


@in_memory
def test_a_waiting_receive_hears_of_a_message_in_memory(world: World) -> None:
    queue, asked = world.queue(), []
    client_of(queue).runtime.sleep = lambda seconds: queue.send(rows(7), durable=False)
    journal = client_of(queue).store.journal
    real = journal.version
    journal.version = lambda: asked.append(1) or real()
    assert numbers(queue.receive(wait_seconds=60)) == [7]
    assert len(asked) <= 3


@in_memory
def test_memory_is_bounded_by_what_is_alive(world: World) -> None:
    """What was consumed is forgotten, entries and payload."""
    queue = world.queue(durable=False, lanes=2)
    store = client_of(queue).store.transient
    kept: dict[str, Callable[[], int]] = {
        "entries": lambda: store.journal.size,
        "sends": lambda: len(store.payload._known),
    }
    for n in range(600):
        queue.send(rows(n))
        if n % 3 == 0:
            queue.receive(10).accept()
        else:
            with world.manager().transaction() as tx:
                tx.queue(queue.name).receive()
    gc.collect()
    assert kept["entries"]() < 2 * transient.TIDY_ENTRIES_MIN
    assert kept["sends"]() < transient.TIDY_ENTRIES_MIN
    queue.send(rows(-1))
    store.tidy()
    gc.collect()
    assert kept["sends"]() <= 2  # the last batch can still be read
    assert kept["entries"]() <= 8
    assert numbers(queue.receive()) == [-1]


@in_memory
def test_duplicates_that_were_left_out_are_not_kept_in_memory(world: World) -> None:
    queue = world.queue(durable=False, message_id="n", duplicate_window_seconds=60)
    store = client_of(queue).store.transient
    for n in range(10):
        queue.send(rows(n, n))
        batch = queue.receive()
        assert numbers(batch) == [n]
        batch.accept()
    store.tidy()
    with store.lock:
        fold = store.folds[queue.info.in_memory().queue_id]
        assert (fold.left_out, fold.lanes[0].duplicates) == (10, {})
    queue.send(rows(9))
    assert len(queue.receive()) == 0, "its window has not passed"


@in_memory
def test_tidying_up_keeps_what_is_still_needed(world: World) -> None:
    queue, other = world.queue(durable=False), world.queue("other", durable=False)
    store = client_of(queue).store.transient
    key = world.name("K")
    with world.manager().transaction(key) as tx:
        tx.queue(queue.name).send(rows(1, 2, 3))
    open_one = world.manager().transaction()
    open_one.queue(other.name).send(rows(4))
    abandoned = world.manager("x").transaction()
    abandoned.queue(queue.name).receive(1)
    held = queue.receive(1)
    store.tidy()
    gc.collect()
    assert world.manager().transaction(key).id == key
    open_one.commit()
    store.tidy()
    assert numbers(other.peek_messages()) == [4]
    held.extend_lease(1_000)
    world.lease_over()
    taken = world.open(queue, "b").receive(1)
    assert numbers(taken) == [1]
    store.tidy()
    with pytest.raises(TransactionAborted):
        abandoned.commit()
    assert held.accept() == 1
    again = world.manager().transaction(key)
    attempt_of(again).begin()
    assert again.already_committed
    store.payload.keep(())
    gc.collect()
    with pytest.raises(PayloadRemoved):
        other.peek_messages()


@in_memory
def test_there_is_a_limit_to_what_is_kept_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient, "TRANSIENT_BYTES_MAX", 100)
    queue = world.queue(durable=False)
    queue.send(rows(*range(20)))
    with pytest.raises(LimitExceeded, match="durable=True"):
        queue.send(rows(1))
    assert queue.depth() == 20
    queue.receive().accept()
    queue.send(rows(1))
    assert queue.depth() == 1


@in_memory
def test_small_messages_and_headers_take_memory_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bytes a message were counted, of three thousand."""
    monkeypatch.setattr(transient, "TRANSIENT_BYTES_MAX", 100_000)
    queue = world.queue(durable=False)
    with pytest.raises(LimitExceeded, match="durable=True"):
        for n in range(100):
            queue.send(rows(n))
    assert 20 < queue.depth() < 50
    queue.receive(100).accept()
    told = [{**row, "told": "x" * 50} for row in rows(*range(400))]
    queue.send(told, header_columns={"told": "told"})
    with pytest.raises(LimitExceeded, match="durable=True"):
        queue.send(rows(1))


@in_memory
def test_a_copy_of_a_fold_shares_what_never_changes(world: World) -> None:
    """Tidying up copies the folds: with each waiting message it took longer."""
    queue = world.queue(durable=False)
    queue.send(rows(1))
    memory = client_of(queue).transient
    with memory.lock:
        fold = memory.states.fold(queue.info.in_memory())
        copied = copy.deepcopy(fold)
        (position,) = fold.positions.values()
        assert copied.positions[position.position_id] is position
        assert copied.lanes[0].available[0] is fold.lanes[0].available[0]
        assert copied.lanes[0].available is not fold.lanes[0].available


@in_memory
def test_a_shared_branch_is_about_durable_messages_only(world: World) -> None:
    queue = world.queue(durable=False)
    queue.send(rows(1))
    queue.send(rows(2), durable=True)
    session = Branches(client_of(world.manager())).start(f"xid:{world.name('b')}", 60)
    mine = session.queue(queue.name)
    with pytest.raises(InvalidInput, match="durable=True"):
        mine.send(rows(3))
    assert numbers(mine.receive()) == [2]
    assert counts(queue) == (1, 1)


@in_memory
def test_what_is_in_memory_goes_with_its_queue(world: World) -> None:
    queue, out = world.queue(), world.queue("out", durable=False)
    both(queue)
    tx, other = world.manager().transaction(), world.manager("b").transaction()
    for one in (tx, other):
        one.queue(queue.name).send(rows(5), durable=False)
    other.queue(out.name).send(rows(6))
    assert queue.drop().messages == 4
    with pytest.raises((QueueClosed, QueueNotFound)):
        queue.send(rows(7), durable=False)
    for one in (tx, other):
        with pytest.raises(TransactionAborted, match="dropped"):
            one.commit()
    assert out.depth() == 0
    again = world.queue()
    assert again.depth() == 0


@in_memory
def test_a_dropped_queue_takes_nothing_in_memory_by_a_manager_that_knew_it(world: World) -> None:
    queue = world.queue()
    theirs = world.open(queue, "b")
    queue.drop()
    again = world.queue()
    with pytest.raises(QueueNotFound):
        theirs.send(rows(1), durable=False)
    world.open(queue, "b").send(rows(2), durable=False)
    assert numbers(again.receive()) == [2]


@in_memory
def test_another_process_drops_a_queue_with_messages_in_memory(world: World) -> None:
    queue = world.queue()
    both(queue)
    mine = world.store.transient
    world.store.transient = transient.TransientStore("another process")
    world.open(queue, "b").drop()
    world.store.transient = mine
    with pytest.raises(QueueNotFound):
        queue.send(rows(5))
    with pytest.raises(QueueNotFound):
        queue.send(rows(6), durable=False)


@in_memory
def test_an_interrupted_fold_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = world.queue(durable=False)
    queue.send(rows(1, 2))
    held = queue.receive(1)
    client_of(queue).store.transient.tidy()
    queue.send(rows(3))

    def pressed(self: QueueState, entry: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(QueueState, "apply", pressed)
    with pytest.raises(KeyboardInterrupt):
        queue.depth()
    assert (numbers(queue.peek_messages()), held.accept()) == ([2, 3], 1)
    assert numbers(queue.receive()) == [2, 3]


@in_memory
def test_threads_share_the_memory_and_lose_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some send, some receive, and all tidy up all the time."""
    monkeypatch.setattr(transient, "TIDY_ENTRIES_MIN", 0)
    queue = world.queue(durable=False, lanes=2)
    client_of(queue).store.transient._tidy_at = (0, 0)
    received: list[int] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        manager = world.manager(f"thread{number}")
        mine = manager.queue(queue.name)
        try:
            for n in range(40):
                if number % 2:
                    mine.send(rows(number * 1_000 + n))
                    mine.peek_messages()
                else:
                    with manager.transaction() as tx:
                        found = numbers(tx.queue(queue.name).receive(3))
                    received.extend(found)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    while len(batch := queue.receive(100)):
        received.extend(numbers(batch))
        batch.accept()
    assert sorted(received) == sorted(n * 1_000 + m for n in (1, 3) for m in range(40))


@in_memory
def test_durable_is_yes_or_no(world: World) -> None:
    queue = world.queue()
    with pytest.raises(InvalidInput, match="durable"):
        queue.send(rows(1), durable="no")
    assert queue.depth() == 0


@in_memory
def test_an_interrupted_settlement_of_both_kinds_leaves_nothing_that_waits(world: World) -> None:
    """Nobody else knows the transaction of the call, and could decide it."""

    def begun() -> tuple[World, Any, Any]:
        fresh = World(MemoryStore())
        queue = fresh.queue()
        queue.send(rows(1))
        queue.send(rows(2), durable=False)
        return fresh, queue, queue.receive()

    for _ in range(2):  # the first one looks at more
        _, _, batch = begun()
        with Interrupt() as counted:
            batch.accept()
    for nth in range(1, len(counted.places) + 1, 1 if LONG else 4):
        fresh, queue, batch = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            batch.accept()
        memory = client_of(queue).store.transient
        assert not (memory.journal.prepared or memory.deciding), found.at
        with contextlib.suppress(AlreadySettled):  # nobody else had the messages meanwhile
            batch.accept()
        fresh.lease_over()
        left = [n for _ in range(3) for n in numbers(queue.receive())]
        assert not left, found.at


@in_memory
@pytest.mark.parametrize("again", ["commit", "rollback"])
@pytest.mark.parametrize("lands", [True, False])
def test_what_was_found_of_an_interrupted_commit_is_what_the_journal_says(
    world: World, lands: bool, again: str
) -> None:
    """The memory follows the journal; it is not asked in its place."""
    queue, manager = world.queue(), world.manager("b")
    tx = manager.transaction()
    for n, durable in ((1, True), (2, False)):
        manager.queue(queue.name).send(rows(n), transaction=tx, durable=durable)
    with interrupted(world.store.journal, lands=lands):
        tx.commit()
    world.manager("c").recover()
    assert not world.store.transient.journal.prepared, "vacuous"
    if not lands and again == "commit":
        with pytest.raises(TransactionAborted, match="in doubt"):
            tx.commit()
    elif lands and again == "rollback":
        with pytest.raises(TransactionFinished):
            tx.rollback()
    else:
        getattr(tx, again)()
    assert tx.receipt == world.manager("d").outcome(tx.id).receipt
    assert sorted(numbers(queue.receive())) == ([1, 2] if lands else [])


@in_memory
def test_who_meets_what_waits_in_memory_is_told_what_ends_that(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1), durable=False)
    manager = world.manager("b")
    batch = manager.queue(queue.name).receive()
    tx = manager.transaction()
    batch.accept(transaction=tx)
    manager.queue(queue.name).send(rows(2), transaction=tx)
    with unanswered(world.store.journal, lands=True), pytest.raises(TransactionUnknown):
        tx.commit()
    with pytest.raises(SettlementPending, match=r"its outcome is unknown.* recover\(\)"):
        batch.release()
    manager.recover()
    with pytest.raises(LeaseLost):
        batch.release()
    assert numbers(queue.receive()) == [2]


@in_memory
def test_the_first_message_in_memory_is_not_sent_to_a_queue_that_was_dropped(world: World) -> None:
    """It was accepted and gone: a drop closed the part in memory only if it had been used."""
    queue, staged = world.queue(), world.manager("staged").transaction()
    other = world.open(queue, "other")
    staged.queue(queue.name).send(rows(1), durable=False)
    queue.drop()
    with pytest.raises(QueueNotFound):
        other.send(rows(2), durable=False)
    with pytest.raises(TransactionAborted):
        staged.commit()


@in_memory
def test_nor_is_it_published_to_an_exchange_that_was_dropped(world: World) -> None:
    queue, name = world.queue(), world.name("events")
    events = world.manager().create_exchange(name, "fanout", "n long, key string")
    events.bind(queue)
    staged = world.manager("staged").transaction()
    staged.exchange(name).publish(rows(1), durable=False)
    events.drop()
    with pytest.raises(TransactionAborted):
        staged.commit()
    assert queue.depth() == 0


@in_memory
def test_an_id_that_looks_generated_is_remembered_if_a_client_gave_it(world: World) -> None:
    """It may be that of an earlier attempt, from an error or a log."""
    queue, key = world.queue(durable=False), f"t7-{'0123456789abcdef' * 2}"
    world.manager().run_transaction(
        lambda tx: tx.queue(queue.name).send(rows(1)), transaction_id=key
    )
    queue.send(rows(2))
    world.store.transient.tidy()
    with world.manager().transaction(key) as tx:
        assert tx.already_committed
    assert queue.depth() == 2


def test_what_a_removed_store_left_in_memory_is_not_of_the_one_made_anew_in_its_place() -> None:
    """The process goes on, and a transaction that was committed in the first is new to the second.

    In memory: stores on Delta of one root share what is transient by its root.
    """
    shared, world = transient.of_root("/removed"), World(MemoryStore())

    def work(tx: Any) -> None:
        tx.queue("lasting").send(rows(1))
        tx.queue("passing").send(rows(1))

    for _ in range(2):
        store = MemoryStore()
        store.transient = shared
        manager = QueueManager(None, store=store, runtime=world.runtime("notebook"))
        for name, durable in (("lasting", True), ("passing", False)):
            options: Any = {"durable": durable, "dead_letter": False}
            manager.create_queue(name, "n long, key string", **options)
        assert manager.outcome("day-1").status is Status.UNDECIDED
        manager.run_transaction(work, transaction_id="day-1")
        again = QueueManager(None, store=store, runtime=world.runtime("again"))
        again.run_transaction(work, transaction_id="day-1")
        depths = [again.queue(name).depth() for name in ("lasting", "passing")]
        assert depths == [1, 1]
