"""Moves in transactions, purges of what is in flight, and messages that are not for everybody."""

from __future__ import annotations

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
from tests.conformance.test_removing import killed, state_of
from tests.conformance.working import Branch, understand_divisors
from tests.inside import beside
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    QueueNotFound,
    SchemaMismatch,
    TransactionAborted,
    TransactionNotGiven,
)
from txnqueue.messages import removal
from txnqueue.protocols.dtx import XaStatus


class Stop(Exception):
    """What a handler fails with."""


def standing(queue: Any) -> list[int]:
    """Read what can be received, in order."""
    return numbers(queue.peek_messages(1_000))


def verified(world: World) -> bool:
    """Say whether the store proves that every message is in one place."""
    return bool(world.manager().history.verify().ok)


# -------------------------------------------------------------------------------- moves


@on_delta_when_long
def test_a_move_in_a_transaction_is_seen_with_its_commit_or_never(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    manager = world.manager("b")
    queue.send(rows(*range(6)))
    other.send(rows(50))
    mine = manager.queue(queue.name)
    with pytest.raises(Stop), manager.transaction() as tx:
        assert mine.move(other.name, transaction=tx) == 6
        assert (queue.depth(), queue.in_flight(), other.depth()) == (0, 6, 1)
        raise Stop
    assert standing(queue) == [0, 1, 2, 3, 4, 5]
    assert {m["_message"]["delivery_count"] for m in queue.peek_messages()} == {0}
    with manager.transaction() as tx:
        assert mine.move(other.name, limit=4, transaction=tx) == 4
        manager.queue(other.name).send(rows(60), transaction=tx)
        held = mine.receive(1, transaction=tx)
        held.move(other.name)
        assert standing(other) == [50]
    assert (standing(queue), standing(other)) == ([5], [50, 60, 0, 1, 2, 3, 4])
    row = state_of(world, queue)
    assert (row["moved"], row["accepted"], row["available"]) == (5, 0, 1)
    origin = other.peek_messages()[-1]["_message"]["origin"]
    assert (origin["queue"], origin["reason"]) == (queue.name, "moved")
    assert numbers(other.receive()) == [50, 60, 0, 1, 2, 3, 4]
    assert verified(world)


@in_memory
def test_a_move_keeps_priority_delay_and_time_to_live(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    other.send(rows(9, 10))
    queue.send(rows(1))
    queue.send(rows(2), priority=9)
    queue.send(rows(3), delay_seconds=60)
    queue.send(rows(4), ttl_seconds=30)
    manager = world.manager("b")
    with manager.transaction() as tx:
        assert manager.queue(queue.name).move(other.name, transaction=tx) == 4
    assert standing(other) == [2, 9, 10, 1, 4]
    world.clock.advance(61)
    assert standing(other) == [2, 9, 10, 1, 3]
    assert other.move(queue) == 6  # outside of a transaction too, and so do those that expired
    assert standing(queue) == [2, 9, 10, 1, 3]


@in_memory
def test_a_move_puts_each_message_into_the_lane_of_its_key(world: World) -> None:
    queue, other = world.queue(lanes=2), world.queue("other", lanes=4, group_by="key")
    queue.send([{"n": n, "key": f"k{n % 5}"} for n in range(20)])
    other.send([{"n": 100 + n, "key": f"k{n}"} for n in range(5)])
    held = queue.receive(7)
    assert held.move(other) == 7
    manager = world.manager("b")
    with manager.transaction() as tx:
        manager.queue(queue.name).move(other.name, transaction=tx)
    lanes: dict[str, set[int]] = {}
    for row in other.peek_messages(100):
        lanes.setdefault(row["key"], set()).add(row["_message"]["lane"])
    assert other.depth() == 25
    assert {len(of_key) for of_key in lanes.values()} == {1}
    assert verified(world)


@in_memory
def test_what_others_hold_is_not_moved_and_what_is_moved_is_not_received(world: World) -> None:
    queue, other = world.queue(lease_seconds=60), world.queue("other")
    queue.send(rows(1, 2, 3))
    theirs = world.open(queue, "b").receive(1)
    tx = world.manager("c").transaction(lease_seconds=60)
    moving = tx.queue(queue.name)
    assert moving.move(other.name) == 2
    assert len(queue.receive()) == 0
    theirs.release()
    assert queue.receive().accept() == 1
    world.clock.advance(61)  # whoever moves is dead: somebody takes the messages over
    assert numbers(world.open(queue, "d").receive()) == [2, 3]
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert other.depth() == 0
    assert verified(world)


@in_memory
def test_a_prepared_move_waits_for_its_decision(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2, 3))
    for commit, expected in ((False, ([1, 2, 3], [])), (True, ([], [1, 2, 3]))):
        manager = world.manager("b")
        tx = manager.transaction()
        manager.queue(queue.name).move(other.name, transaction=tx)
        tx.prepare()
        world.lease_over()
        assert (queue.depth(), other.depth()) == (0, 0)
        decide = world.manager("c").commit if commit else world.manager("c").rollback
        decide(tx.id)
        assert (standing(queue), standing(other)) == expected
    assert verified(world)


@in_memory
def test_redelivered_messages_move_at_once_and_do_not_count_a_delivery(world: World) -> None:
    queue, other = world.queue(deliveries_max=2), world.queue("other")
    queue.send(rows(*range(30)))
    queue.receive(20).modify()
    manager = world.manager("b")
    tx = manager.transaction()
    assert manager.queue(queue.name).move(other.name, transaction=tx) == 30
    tx.rollback()
    counts = [m["_message"]["delivery_count"] for m in queue.peek_messages(30)]
    assert (standing(queue), counts) == ([*range(30)], [1] * 20 + [0] * 10)
    queue.receive(30).modify()
    assert len(queue.receive(30)) == 2  # it narrows as if nothing had happened
    with manager.transaction() as tx:
        assert tx.queue(queue.name).move(other.name) == 28
    assert standing(other) == [*range(2, 30)]
    assert {m["_message"]["delivery_count"] for m in other.peek_messages(30)} == {0}


@in_memory
def test_a_lane_with_very_many_pieces_moves_in_several_claims(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_MAX", 2)
    queue, other = world.queue(), world.queue("other")
    for n in range(7):
        queue.send(rows(n))
    with world.manager("b").transaction() as tx:
        assert tx.queue(queue.name).move(other.name, limit=5) == 5
    assert (standing(queue), standing(other)) == ([5, 6], [0, 1, 2, 3, 4])


@on_delta_when_long
def test_a_held_batch_is_moved_in_part(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(6)), priority=7)
    other.send(rows(50), priority=6)
    batch = queue.receive()
    assert batch.move(other, matching=pick(batch, 1, 2)) == 2
    with pytest.raises(AlreadySettled, match="1 of these 1 messages"):
        batch.move(other, matching=pick(batch, 2))
    assert standing(other) == [1, 2, 50]
    assert batch.accept(matching=pick(batch, 0)) == 1
    assert batch.release() == 3
    with world.manager("b").transaction() as tx:
        inside = tx.queue(queue.name).receive()
        inside.move(other.name, matching=pick(inside, 4))  # the rest is accepted
    assert (standing(queue), standing(other)) == ([], [1, 2, 4, 50])
    row = state_of(world, queue)
    assert (row["accepted"], row["moved"]) == (3, 3)
    steps = world.manager().history.trace(inside.messages()[1]["_message"]["id"]).rows()
    assert [s["step"] for s in steps][-2:] == ["moved", "moved"]
    assert steps[-2]["target"] == other.name
    assert verified(world)


@in_memory
def test_a_message_that_is_settled_is_noticed_beside_one_that_stands_twice_in_the_batch(
    world: World,
) -> None:
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    exchange = world.manager().create_exchange(world.name("x"), "fanout", "n long, key string")
    for one in (queue, other):
        exchange.bind(one.name)
    for number in (1, 2):
        exchange.publish(rows(number))
    assert other.move(queue.name, limit=1) == 1
    batch = queue.receive(10)
    assert sorted(numbers(batch)) == [1, 1, 2]
    assert batch.reject(matching=pick(batch, 2)) == 1
    with pytest.raises(AlreadySettled, match="1 of these 2 messages"):
        batch.accept(matching=pick(batch, 1, 2))
    assert queue.in_flight() == 2
    assert batch.accept(matching=pick(batch, 1)) == 2


@in_memory
def test_a_move_of_a_lost_lease_moves_nothing(world: World) -> None:
    queue, other = world.queue(lease_seconds=60), world.queue("other")
    queue.send(rows(1))
    batch = queue.receive()
    world.clock.advance(61)
    world.open(queue, "b").receive()
    with pytest.raises(LeaseLost):
        batch.move(other)
    assert (other.depth(), queue.depth(), queue.in_flight()) == (0, 0, 1)


@in_memory
def test_what_cannot_be_moved_inside_is_refused(world: World) -> None:
    queue = world.queue()
    wide = world.manager().create_queue(world.name("wide"), "x string", dead_letter=False)
    queue.send(rows(1))
    manager = world.manager("b")
    with manager.transaction() as tx:
        mine = tx.queue(queue.name)
        for target, error in (
            (wide.name, SchemaMismatch),
            (queue.name, InvalidInput),
            ("nobody", QueueNotFound),
        ):
            with pytest.raises(error):
                mine.move(target)
        with pytest.raises(TransactionNotGiven):
            manager.queue(queue.name).move(wide.name)
        with pytest.raises(InvalidInput):
            mine.receive(transaction=tx).move(queue.name)
    with manager.transaction(tx.id) as again:  # it was committed: nothing happens any more
        assert manager.queue(queue.name).move(world.queue("x").name, transaction=again) == 0


@on_delta_when_long
def test_a_redrive_in_a_transaction_goes_back_with_its_commit(world: World) -> None:
    queue = world.queue(dead_letter=True, lanes=3, group_by="key")
    queue.send([{"n": n, "key": f"k{n}"} for n in range(6)])
    lanes = {row["n"]: row["_message"]["lane"] for row in queue.peek_messages()}
    killed(queue, "a", "b", "c")
    manager = world.manager("b")
    dead = manager.queue(f"{queue.name}.dead")
    dead.send(rows(50))
    with pytest.raises(Stop), manager.transaction() as tx:
        assert dead.redrive(transaction=tx) == 3
        raise Stop
    assert (queue.depth(), dead.depth()) == (3, 4)
    with manager.transaction() as tx:
        assert dead.redrive(limit=2, transaction=tx) == 2
        assert queue.depth() == 3
    assert (queue.depth(), dead.depth()) == (5, 2)
    assert all(lanes[row["n"]] == row["_message"]["lane"] for row in queue.peek_messages())
    assert verified(world)


# ------------------------------------------------------------------------------- purges


@in_memory
@pytest.mark.parametrize("ending", ["rollback", "commit", "release", "recover", "reject"])
def test_a_purge_respects_what_a_transaction_holds(world: World, ending: str) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(1, 2, 3))
    tx = world.manager("b").transaction()
    batch = tx.queue(queue.name).receive(2)
    assert queue.purge(reason="wrong") == 1
    if ending == "rollback":
        tx.rollback()
    elif ending == "recover":
        world.lease_over()
        assert world.manager("c").recover().aborted == (tx.id,)
    else:
        if ending != "commit":
            getattr(batch, ending)(matching=pick(batch, 1))
        tx.commit()
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    row = state_of(world, queue)
    expected = {
        "rollback": (3, 0, 0),
        "recover": (3, 0, 0),
        "release": (2, 1, 0),
        "commit": (1, 2, 0),
        "reject": (1, 1, 1),
    }
    assert (row["purged"], row["accepted"], row["rejected"]) == expected[ending]
    steps = world.manager().history.trace(batch.messages()[0]["_message"]["id"]).rows()
    purged = ending in ("rollback", "recover", "release")
    assert [s["step"] for s in steps][:3] == ["sent", "claimed", "purge_pending"]
    assert (steps[-1]["step"] == "purged") is purged
    assert verified(world)


@in_memory
def test_a_purge_ends_what_a_dead_consumer_held(world: World) -> None:
    queue = world.queue(lease_seconds=60)
    queue.send(rows(1, 2, 3, 4))
    world.open(queue, "b").receive(2)
    assert queue.purge("n = 1") if world.has_frames else queue.purge() == 2
    queue.send(rows(5))
    world.clock.advance(61)
    taker = world.open(queue, "c")
    assert numbers(taker.receive()) == [5]
    world.open(queue, "d").receive(1)
    queue.send(rows(6))
    tx = world.manager("e").transaction(lease_seconds=60)
    assert numbers(tx.queue(queue.name).receive()) == [6]
    assert queue.purge() == 0
    world.clock.advance(301)
    assert queue.in_flight() == 2
    assert len(taker.receive()) == 0  # nothing comes back, and nothing is left in flight
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    assert verified(world)


@in_memory
def test_a_drain_ends_when_the_rest_was_purged(world: World) -> None:
    queue = world.queue(lease_seconds=60)
    queue.send(rows(1, 2, 3))
    world.open(queue, "b").receive(2)
    queue.purge()
    world.clock.advance(61)
    result = queue.drain(lambda batch, tx: None, until="empty")
    assert (result.messages, result.finished) == (0, True)


@in_memory
def test_a_message_that_came_back_while_the_purge_looked_goes_too(world: World) -> None:
    """A roll back writes no lane's log: the purge cannot notice it, and need not."""
    queue = world.queue()
    queue.send(rows(1, 2, 3))
    tx = world.manager("b").transaction()
    tx.queue(queue.name).receive(2)
    journal, real = world.store.journal, world.store.journal.append

    def meanwhile(units: Any, metadata: Any) -> Any:
        journal.append = real
        tx.rollback()
        return real(units, metadata)

    journal.append = meanwhile
    assert queue.purge(reason="wrong") == 1
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    assert state_of(world, queue)["purged"] == 3
    assert verified(world)


# ----------------------------------------------------------------------- not for everybody


@on_delta_when_long
def test_an_undeliverable_message_goes_to_others_only(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2, 3))
    batch = queue.receive()
    count = batch.modify(matching=pick(batch, 1, 2), delivery_failed=False, undeliverable_here=True)
    assert count == 2
    batch.release()
    assert queue.depth() == 3
    assert numbers(queue.receive()) == [3]
    again = world.manager("a").queue(queue.name)  # the same consumer id, started anew
    assert 1 not in numbers(again.receive())
    other = world.open(queue, "b")
    found = other.receive()
    assert numbers(found) == [1, 2]
    assert {m["_message"]["delivery_count"] for m in found.messages()} == {0}
    found.modify(undeliverable_here=True)
    assert len(other.receive()) == 0
    assert len(again.receive(1)) == 0  # not for the first one either: it is not forgotten
    assert numbers(world.open(queue, "c").receive(1)) == [1]
    assert verified(world)


@on_delta_when_long
def test_a_failed_delivery_counts_with_the_commit(world: World) -> None:
    queue = world.queue(dead_letter=True, deliveries_max=2)
    queue.send(rows(1, 2, 3))
    manager = world.manager("b")
    held = manager.queue(queue.name).receive(1)
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive()
        assert batch.modify(matching=pick(batch, 2)) == 1
        assert batch.modify(matching=pick(batch, 3), delivery_failed=False) == 1
        held.modify(transaction=tx)
        assert queue.depth() == 0
    counts = {m["n"]: m["_message"]["delivery_count"] for m in queue.peek_messages()}
    assert counts == {1: 1, 2: 1, 3: 0}
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive(1)
        assert numbers(batch) == [1]
        batch.modify()
    assert numbers(queue.receive(1)) == [2]
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    assert [(m["n"], m["_message"]["origin"]["delivery_count"]) for m in letters] == [(1, 2)]
    assert verified(world)


@in_memory
def test_undeliverable_here_is_part_of_the_commit(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    manager = world.manager("b")
    with pytest.raises(Stop), manager.transaction() as tx:
        batch = tx.queue(queue.name).receive(1)
        batch.modify(undeliverable_here=True)
        raise Stop
    with manager.transaction() as tx:
        batch = tx.queue(queue.name).receive(1)
        assert numbers(batch) == [1]
        batch.modify(undeliverable_here=True)
    assert numbers(manager.queue(queue.name).receive()) == [2]
    assert numbers(queue.receive(1)) == [1]
    lease = world.manager("c")
    world.lease_over()
    held = lease.queue(queue.name).receive(1)
    with lease.transaction() as tx:
        held.modify(undeliverable_here=True, transaction=tx)
    assert not set(numbers(held)) & set(numbers(lease.queue(queue.name).receive()))


@in_memory
def test_what_only_this_consumer_could_get_waits(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2))
    batch = queue.receive()
    batch.modify(matching=pick(batch, 1), undeliverable_here=True)
    batch.release()
    result = queue.drain(lambda batch, tx: None, until="empty")
    assert (result.messages, result.finished) == (1, False)
    assert len(queue.receive(wait_seconds=5)) == 0
    assert queue.depth() == 1
    assert queue.move(other) == 1  # moved, it is as new
    assert numbers(world.open(other, "a").receive()) == [1]


@in_memory
def test_a_move_in_a_transaction_leaves_duplicates_out(world: World) -> None:
    queue = world.queue(message_id="key", duplicate_window_seconds=60)
    other = world.queue("other")
    queue.send([{"n": n, "key": key} for n, key in enumerate("abac")])
    queue.send([{"n": 4, "key": "b"}, {"n": 5, "key": "d"}])
    with pytest.raises(Stop), world.manager("b").transaction() as tx:
        assert tx.queue(queue.name).move(other.name, limit=3, transaction=tx) == 3
        raise Stop
    with world.manager("b").transaction() as tx:
        assert tx.queue(queue.name).move(other.name) == 4
    assert (standing(queue), standing(other)) == ([], [0, 1, 3, 5])
    row = state_of(world, queue)
    assert (row["duplicates"], row["moved"]) == (2, 4)
    assert verified(world)


# ---------------------------------------------------------------------------- selectors


@in_memory
def test_a_selector_works_wherever_messages_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = understand_divisors(world, monkeypatch)
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(20)))
    assert numbers(queue.peek_messages(3, where="n % 6 = 0")) == [0, 6, 12]
    looked.clear()
    seen: list[int] = []
    result = queue.drain(
        lambda got, tx: seen.extend(numbers(got)), where="n % 3 = 0", batch_size=2, until="empty"
    )
    assert (seen, result.batches, result.finished) == ([0, 3, 6, 9, 12, 15, 18], 4, True)
    assert sorted(looked) == [*range(20)]  # each message once, however many batches
    with world.manager("b").transaction() as tx:
        assert tx.queue(queue.name).move(other.name, "n % 5 = 0", limit=1) == 1
    assert standing(other) == [5]
    held = queue.receive(3)
    assert numbers(held) == [1, 2, 4]
    assert queue.purge("n % 2 = 0") == 4
    held.release()
    assert standing(queue) == [1, 7, 11, 13, 17, 19]


# ---------------------------------------------------------------------------- both kinds


@in_memory
def test_both_kinds_move_in_one_transaction(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2))
    queue.send(rows(3, 4), durable=False)
    with pytest.raises(Stop), beside(queue) as tx:
        assert queue.move(other, transaction=tx) == 4
        raise Stop
    assert sorted(standing(queue)) == [1, 2, 3, 4]
    with beside(queue) as tx:
        assert queue.move(other, limit=3, transaction=tx) == 3
        assert queue.receive(transaction=tx).move(other) == 1
        assert (queue.in_flight(), other.depth()) == (4, 0)
    assert (queue.depth(), queue.in_flight(), sorted(standing(other))) == (0, 0, [1, 2, 3, 4])
    held = other.receive()
    assert held.move(queue, matching=pick(held, 1, 3)) == 2
    held.release()
    assert (sorted(standing(queue)), sorted(standing(other))) == ([1, 3], [2, 4])
    assert verified(world)


@in_memory
def test_a_purge_of_both_kinds_marks_what_is_in_flight(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    queue.send(rows(3, 4), durable=False)
    tx = beside(queue)
    batch = queue.receive(3, transaction=tx)
    assert len(batch) == 3
    assert queue.purge() == 1
    tx.rollback()
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    queue.send(rows(5), durable=False)
    queue.receive().release()
    assert standing(queue) == [5]


@in_memory
def test_dead_letters_of_both_kinds_are_counted(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(1, 2))
    queue.send(rows(3, 4), durable=False)
    queue.receive().reject(reason="bad")
    (found,) = queue.dead_letters().rows()
    assert (found["queue"], found["reason"], found["waiting"]) == (queue.name, "bad", 4)


# ---------------------------------------------------------------------------- XA branches


@in_memory
def test_a_branch_moves_messages_with_its_decision(world: World) -> None:
    queue, other = world.queue(dead_letter=True), world.queue("other")
    queue.send(rows(1, 2, 3))
    queue.send(rows(4), priority=9)
    queue.receive(1).reject(reason="bad")
    dead = world.manager().queue(f"{queue.name}.dead")
    for name, commit in (("b", False), ("c", True)):
        branch = Branch(world, name)
        assert branch.queue(queue).move(other.name, limit=2) == 2
        assert branch.queue(queue).receive().move(other.name) == 1
        assert branch.queue(dead).redrive() == 1
        assert (queue.depth(), other.depth(), dead.depth()) == (0, 0, 0)
        branch.decide(commit=commit)
        expected = ([4], [1, 2, 3], []) if commit else ([1, 2, 3], [], [4])
        assert tuple(map(standing, (queue, other, dead))) == expected
    assert verified(world)


@in_memory
def test_a_purge_respects_what_a_branch_holds(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2, 3))
    branch, other = Branch(world, "b"), Branch(world, "c")
    branch.queue(queue).receive(1)
    other.queue(queue).receive(1)
    branch.channel.end(branch.xid)
    assert branch.channel.prepare(branch.xid) is XaStatus.OK
    assert queue.purge() == 1
    branch.channel.rollback(branch.xid)
    other.decide(commit=True)
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    row = state_of(world, queue)
    assert (row["purged"], row["accepted"]) == (2, 1)
    assert verified(world)


@in_memory
def test_a_branch_gives_messages_back_to_others(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    branch = Branch(world, "b")
    branch.queue(queue).receive().modify(undeliverable_here=True)
    branch.decide(commit=True)
    assert len(world.open(queue, "b").receive()) == 0
    found = world.open(queue, "c").receive().messages()
    assert [m["_message"]["delivery_count"] for m in found] == [1]
