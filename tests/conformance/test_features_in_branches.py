"""What queues and exchanges can do, in branches that several processes share, on both stores."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.conformance.test_exchanges import exchange, keyed
from tests.conformance.test_removing import state_of
from tests.conformance.test_settling import standing, verified
from tests.conformance.working import Branch, understand_divisors
from tests.inside import client_of
from txnqueue.errors import BranchMisused, QueueClosed
from txnqueue.protocols.dtx import Connection, XaStatus

OUTCOMES = pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])


def everything(queue: Any) -> list[dict[str, Any]]:
    """Receive everything that there is to receive, batch by batch, and hold it."""
    found: list[dict[str, Any]] = []
    while batch := queue.receive(100):
        found += batch.messages()
    return found


# ------------------------------------------------------------------- order, and who is next


@on_delta_when_long
def test_a_key_keeps_its_order_through_branches(world: World) -> None:
    queue = world.queue(lanes=4, group_by="key")
    sending = Branch(world, "b")
    for first in (0, 20):
        sending.queue(queue).send([{"n": first + n, "key": f"k{n % 5}"} for n in range(20)])
    sending.decide(commit=True)
    undone = Branch(world, "c")
    assert len(undone.queue(queue).receive(7)) == 7
    undone.decide(commit=False)
    received = Branch(world, "d")
    messages = everything(received.queue(queue))
    received.decide(commit=True)
    assert sorted(numbers(messages)) == [*range(40)]
    assert len({m["_message"]["lane"] for m in messages}) > 1
    for key in {m["key"] for m in messages}:
        mine = [m for m in messages if m["key"] == key]
        assert len({m["_message"]["lane"] for m in mine}) == 1
        assert numbers(mine) == sorted(numbers(mine))
    assert (queue.depth(), queue.in_flight()) == (0, 0)


@on_delta_when_long
@OUTCOMES
def test_a_lane_is_a_branchs_until_it_is_decided(world: World, commit: bool) -> None:
    queue = world.queue(ordered=True)
    queue.send(rows(1, 2, 3))
    branch, rival = Branch(world, "b"), Branch(world, "c")
    assert numbers(branch.queue(queue).receive(1)) == [1]
    other = world.open(queue, "d")
    assert len(rival.queue(queue).receive()) == 0
    assert len(other.receive()) == 0
    branch.prepare()
    world.lease_over()
    assert len(other.receive()) == 0
    branch.channel.commit(branch.xid) if commit else branch.channel.rollback(branch.xid)
    assert numbers(other.receive(1)) == ([2] if commit else [1])
    assert rival.channel.end(rival.xid) is XaStatus.RBTIMEOUT


@in_memory
def test_a_lane_of_a_branch_is_free_for_all_that_work_in_it(world: World) -> None:
    queue = world.queue(ordered=True)
    queue.send(rows(1, 2, 3))
    branch = Branch(world, "b")
    assert numbers(branch.queue(queue).receive(1)) == [1]
    channel = Connection(world.manager("c")).channel()
    channel.select()
    assert channel.start(branch.xid, join=True) is XaStatus.OK
    assert numbers(channel.queue(queue.name).receive(1)) == [2]


@on_delta_when_long
def test_priority_delay_and_time_to_live_hold_in_branches(world: World) -> None:
    queue = world.queue()
    branch = Branch(world, "b")
    inside = branch.queue(queue)
    inside.send(rows(1))
    inside.send([{"n": 2, "said": 9}, {"n": 3, "said": 7}], priority="said")
    inside.send(rows(4), delay_seconds=60)
    inside.send(rows(5), delay_seconds=200)
    inside.send(rows(6), ttl_seconds=60)
    inside.send(rows(7), ttl_seconds=200)
    world.clock.advance(61)  # they count from the send on, however late the commit is
    branch.decide(commit=True)
    assert standing(queue) == [2, 3, 1, 4, 7]
    undone = Branch(world, "c")
    assert numbers(undone.queue(queue).receive(2)) == [2, 3]
    undone.decide(commit=False)
    assert standing(queue) == [2, 3, 1, 4, 7]  # back in their places
    late = Branch(world, "d")
    assert numbers(everything(late.queue(queue))) == [2, 3, 1, 4, 7]
    world.clock.advance(140)
    late.prepare()
    assert standing(queue) == [5]
    late.channel.commit(late.xid)  # 7 was received in time
    assert numbers(queue.receive()) == [5]
    row = state_of(world, queue)
    assert (row["accepted"], row["expired"], row["in_flight"]) == (5, 1, 1)
    assert verified(world)


@on_delta_when_long
def test_a_message_that_expires_in_a_branch_does_not_come_back(world: World) -> None:
    queue = world.queue(dead_letter=True, dead_letter_expired=True)
    queue.send(rows(1), ttl_seconds=60)
    branch = Branch(world, "b")
    assert numbers(branch.queue(queue).receive()) == [1]
    branch.prepare()
    world.clock.advance(61)
    branch.channel.rollback(branch.xid)
    taker = Branch(world, "c")
    assert len(taker.queue(queue).receive()) == 0
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    assert [(m["n"], m["_message"]["origin"]["reason"]) for m in letters] == [(1, "expired")]


@on_delta_when_long
def test_a_branch_answers_a_request_with_headers(world: World) -> None:
    requests, answers = world.queue("requests"), world.queue("answers")
    asking = Branch(world, "b")
    asking.queue(requests).send(
        [{"n": 1, "key": "a", "request": "r-1"}, {"n": 2, "key": "b", "request": "r-2"}],
        headers={"reply_to": answers.name, "kind": "price"},
        header_columns={"correlation_id": "request", "customer": "key"},
    )
    asking.decide(commit=True)
    branch = Branch(world, "c")
    for message in branch.queue(requests).receive().messages():
        about = message["_message"]
        assert dict(about["headers"])["kind"] == "price"
        assert dict(about["headers"])["customer"] == message["key"]
        branch.channel.queue(about["reply_to"]).send(
            rows(10 * message["n"]), headers={"correlation_id": about["correlation_id"]}
        )
    branch.decide(commit=True)
    found = {m["_message"]["correlation_id"]: m["n"] for m in answers.peek_messages()}
    assert found == {"r-1": 10, "r-2": 20}


# ------------------------------------------------------------------ receiving in other ways


@on_delta_when_long
@OUTCOMES
def test_a_selector_receives_in_a_branch(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    understand_divisors(world, monkeypatch)
    queue = world.queue()
    queue.send(rows(*range(10)))
    branch = Branch(world, "b")
    inside = branch.queue(queue)
    assert numbers(inside.receive(2, where="n % 3 = 0")) == [0, 3]
    assert numbers(inside.receive(where="n % 3 = 0")) == [6, 9]
    assert len(inside.receive(where="n % 3 = 0")) == 0
    if world.has_frames:
        wanted = world.spark.createDataFrame([(1,), (3,)], "n long")
        assert numbers(inside.receive(matching=wanted, on="n")) == [1]
        inside.receive(matching=wanted, on="n")
    assert not {0, 3, 6, 9} & set(numbers(world.open(queue, "c").receive(2)))
    branch.decide(commit=commit)
    left = set(numbers(queue.peek_messages(100)))
    assert left & {0, 3, 6, 9} == (set() if commit else {0, 3, 6, 9})
    assert verified(world)


@on_delta_when_long
@OUTCOMES
def test_a_receive_in_a_branch_waits_for_what_comes(world: World, commit: bool) -> None:
    queue = world.queue()
    queue.send(rows(1), delay_seconds=30)
    branch = Branch(world, "b")
    inside = branch.queue(queue)
    assert numbers(inside.receive(wait_seconds=60)) == [1]
    runtime = client_of(branch.channel._connection.manager).runtime
    runtime.sleep = lambda seconds: world.open(queue, "c").send(rows(2))
    assert numbers(inside.receive(1, wait_seconds=60)) == [2]
    runtime.sleep = world.clock.advance
    before = world.clock.now_ms
    inside.receive()  # the wait may have brought more than one
    assert len(inside.receive(wait_seconds=1)) == 0
    assert world.clock.now_ms == before + 1_000
    assert queue.depth() == 0
    branch.decide(commit=commit)
    assert set(standing(queue)) == (set() if commit else {1, 2})


# ------------------------------------------------------------------------- what went wrong


@on_delta_when_long
def test_a_message_whose_branches_fail_is_a_dead_letter(world: World) -> None:
    queue = world.queue(dead_letter=True, deliveries_max=2)
    queue.send(rows(1, 2))
    dead = world.manager().queue(f"{queue.name}.dead")
    for count, name in enumerate("bc"):
        failing = Branch(world, name)
        (message,) = failing.queue(queue).receive(1).messages()
        assert (message["n"], message["_message"]["delivery_count"]) == (1, count)
        failing.decide(commit=False)
        assert dead.depth() == 0
    branch = Branch(world, "d")
    assert numbers(branch.queue(queue).receive()) == [2]
    (letter,) = dead.peek_messages()
    origin = {
        "queue": queue.name,
        "reason": "deliveries_max",
        "delivery_count": 2,
        "error": "rolled back",
    }
    assert (letter["n"], letter["_message"]["origin"]) == (1, origin)
    branch.decide(commit=False)
    assert (standing(dead), standing(queue)) == ([1], [2])  # it is dead, whatever becomes of d
    assert verified(world)


@on_delta_when_long
def test_what_a_branch_received_cannot_be_kept_and_stays_in_it(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    branch = Branch(world, "b")
    batch = branch.queue(queue).receive(1)
    version = client_of(queue).store.journal.version()
    with pytest.raises(BranchMisused, match="settle them in the branch"):
        batch.keep()
    assert client_of(queue).store.journal.version() == version
    branch.decide(commit=True)
    assert (standing(queue), queue.in_flight()) == ([2], 0)


@on_delta_when_long
def test_what_a_lease_holds_is_not_settled_in_a_branch(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    branch = Branch(world, "b")
    held = branch.channel._connection.manager.queue(queue.name).receive()
    session = branch.channel._working
    version = client_of(queue).store.journal.version()
    for settle in (held.accept, held.release, held.reject, held.modify):
        with pytest.raises(BranchMisused, match="receive them in it"):
            settle(transaction=session)  # type: ignore[arg-type]
    assert client_of(queue).store.journal.version() == version
    assert held.release() == 1  # it is held as before
    assert numbers(branch.queue(queue).receive()) == [1]


@on_delta_when_long
def test_a_drop_ends_branches_and_waits_for_those_that_are_prepared(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2, 3))
    done, undone, late = (Branch(world, name) for name in "bcd")
    for n, branch in enumerate((done, undone, late)):
        branch.queue(queue).receive(1)
        branch.queue(other).send(rows(10 + n))
    done.prepare()
    undone.prepare()
    result = queue.drop()
    assert (result.dropped, set(result.held_by)) == (False, {done.id, undone.id})
    for call in (late.queue(queue).receive, lambda: late.queue(queue).send(rows(9))):
        with pytest.raises(QueueClosed, match=queue.name):
            call()
    assert late.channel.end(late.xid) is XaStatus.OK
    assert late.channel.prepare(late.xid) is XaStatus.RBROLLBACK
    assert done.channel.commit(done.xid) is XaStatus.OK
    assert queue.drop().held_by == (undone.id,)
    assert undone.channel.rollback(undone.xid) is XaStatus.OK
    result = queue.drop()
    assert (result.dropped, result.messages) == (True, 2)
    assert queue.name not in world.manager().list_queues()
    assert standing(other) == [10]
    assert verified(world)


@on_delta_when_long
def test_a_message_can_be_followed_through_branches(world: World) -> None:
    queue = world.queue()
    sending = Branch(world, "b")
    sent = sending.queue(queue).send(rows(1))
    sending.prepare()
    history, message = world.manager().history, f"{sent.send_id}:0"
    assert history.trace(message).rows() == []
    sending.channel.commit(sending.xid)
    branches = [Branch(world, "c")]
    branches[0].queue(queue).receive()
    branches[0].decide(commit=False)
    branches.append(Branch(world, "d"))
    branches[1].queue(queue).receive().reject(reason="bad")
    branches[1].prepare()
    steps = [step["step"] for step in history.trace(message).rows()]
    assert steps == ["sent", "claimed", "released", "claimed"]
    branches[1].channel.commit(branches[1].xid)
    found = history.trace(message).rows()
    assert [step["step"] for step in found] == [*steps, "rejected"]
    ids = [sending.id, *(branch.id for branch in branches for _ in range(2))]
    assert [step["transaction_id"] for step in found] == ids


# -------------------------------------------------------------------- exchanges, duplicates


@on_delta_when_long
@OUTCOMES
def test_a_branch_publishes_with_its_decision(world: World, commit: bool) -> None:
    events = exchange(world, "topic")
    eu, all_ = world.queue("eu"), world.queue("all", lanes=2)
    events.bind(eu, "eu.#")
    events.bind(all_, "#")
    all_.send(rows(9))
    branch = Branch(world, "b")
    assert numbers(branch.queue(all_).receive()) == [9]
    sent = keyed(n1="eu.ada", n2="us.ada")
    published = branch.exchange(events).publish(sent, routing_key_column="key")
    assert (published.receipt, published.transaction_id) == (None, branch.id)
    assert published.queues == {eu.name: 1, all_.name: 2}
    branch.prepare()
    late = world.queue("late")
    events.bind(late, "#")  # what is published goes by the bindings that there were
    assert (eu.depth(), all_.depth()) == (0, 0)
    branch.channel.commit(branch.xid) if commit else branch.channel.rollback(branch.xid)
    assert standing(eu) == ([1] if commit else [])
    assert sorted(standing(all_)) == ([1, 2] if commit else [9])
    assert late.depth() == 0
    assert verified(world)


@on_delta_when_long
def test_the_first_branch_to_be_committed_has_the_first_message_of_an_id(world: World) -> None:
    queue = world.queue(message_id="key", duplicate_window_seconds=60)
    undone, early, late = (Branch(world, name) for name in "bcd")
    for n, branch in enumerate((undone, late, early)):
        branch.queue(queue).send([{"n": n, "key": "a"}, {"n": 10 + n, "key": f"b{n}"}])
        branch.prepare()
    undone.channel.rollback(undone.xid)
    early.channel.commit(early.xid)
    late.channel.commit(late.xid)
    receiving = Branch(world, "e")
    assert numbers(receiving.queue(queue).receive()) == [2, 12, 11]
    receiving.decide(commit=False)
    assert standing(queue) == [2, 12, 11]  # it was no duplicate of itself
    assert state_of(world, queue)["duplicates"] == 1
    assert verified(world)
