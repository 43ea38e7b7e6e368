"""Purge, move and redrive what waits, wait for what comes, and select: on both stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, pick, rows
from tests.conformance.working import understand_divisors
from tests.inside import attempt_of, client_of
from txnqueue.errors import (
    Busy,
    InvalidInput,
    PlatformMissing,
    QueueNotFound,
    SchemaMismatch,
    TransactionFinished,
    TransactionNotGiven,
    TransactionUnknown,
)
from txnqueue.messages import removal
from txnqueue.queue import Queue
from txnqueue.storage.journal import AppendConflict


def state_of(world: World, queue: Queue) -> Any:
    """Read what the history says of a queue now."""
    found = world.manager().history.as_of().counts().rows()
    return next(row for row in found if row["queue"] == queue.name)


def killed(queue: Queue, *reasons: str) -> None:
    """Reject one message for each reason."""
    for reason in reasons:
        queue.receive(1).reject(reason=reason)


@on_delta_when_long
def test_a_purge_takes_what_waits_and_what_is_in_flight_when_it_would_come_back(
    world: World,
) -> None:
    queue = world.queue(lanes=2)
    queue.send(rows(*range(10)))
    queue.send(rows(99), delay_seconds=60)
    held = queue.receive(4)
    assert queue.purge(reason="wrong import") == 7
    assert queue.purge() == 0
    assert (queue.depth(), queue.in_flight()) == (0, 4)
    row = state_of(world, queue)
    assert (row["purged"], row["in_flight"], row["purge_pending"]) == (7, 4, 4)
    assert held.accept(matching=pick(held, numbers(held)[0])) == 1
    assert held.release() == 3
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    row = state_of(world, queue)
    assert (row["purged"], row["posted"], row["accepted"]) == (10, 11, 1)
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_dead_letters_go_back_to_where_they_came_from(world: World) -> None:
    queue = world.queue(dead_letter=True, lanes=3, group_by="key")
    queue.send([{"n": n, "key": f"k{n}"} for n in range(6)])
    lanes = {row["n"]: row["_message"]["lane"] for row in queue.peek_messages()}
    killed(queue, "a", "b", "c")
    dead = world.manager().queue(f"{queue.name}.dead")
    dead.send(rows(50))
    assert (queue.depth(), dead.depth()) == (3, 4)
    assert dead.redrive() == 3
    assert (queue.depth(), dead.depth()) == (6, 1)
    back = queue.peek_messages()
    assert {row["n"]: row["_message"]["lane"] for row in back} == lanes
    assert {row["_message"]["delivery_count"] for row in back} == {0}
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_a_move_places_messages_by_the_other_queues_rules(world: World) -> None:
    queue = world.queue(lanes=2)
    other = world.queue("other", lanes=4, group_by="key")
    queue.send([{"n": n, "key": f"k{n % 5}"} for n in range(20)], priority=7)
    other.send([{"n": 100 + n, "key": f"k{n}"} for n in range(5)])
    assert queue.move(other) == 20
    assert (queue.depth(), other.depth()) == (0, 25)
    found = other.peek_messages(100)
    lanes: dict[str, set[int]] = {}
    for row in found:
        lanes.setdefault(row["key"], set()).add(row["_message"]["lane"])
    assert all(len(of_key) == 1 for of_key in lanes.values())
    assert sorted(numbers(found)) == [*range(20), *range(100, 105)]
    assert sorted(numbers(other.receive(100))) == sorted(numbers(found))
    assert state_of(world, queue)["moved"] == 20


@on_delta_when_long
def test_a_trace_follows_a_message_through_a_move(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    sent = queue.send(rows(1))
    queue.move(other.name)
    other.receive().accept()
    steps = world.manager().history.trace(f"{sent.send_id}:0").rows()
    assert [step["step"] for step in steps] == ["sent", "moved", "moved", "claimed", "accepted"]


@on_delta_when_long
def test_a_receive_waits_for_what_comes(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1), delay_seconds=30)
    batch = queue.receive(wait_seconds=60)
    assert numbers(batch) == [1]
    assert numbers(queue.receive(wait_seconds=1)) == []
    world.open(queue, "b").receive(1, wait_seconds=400)  # the lease of the first one ends
    assert queue.in_flight() == 1


@in_memory
def test_a_receive_that_waits_hears_of_another_clients_send(world: World) -> None:
    queue = world.queue()
    entered = threading.Event()
    watched: Any = client_of(queue).runtime
    watched.sleep = lambda seconds: (
        entered.set(),
        world.open(queue, "b").send(rows(7)),
    )
    assert numbers(queue.receive(wait_seconds=60)) == [7]
    assert entered.is_set()


@on_delta_when_long
def test_a_receive_in_a_transaction_waits_for_what_comes(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1), delay_seconds=30)
    manager = world.manager("b")
    mine = manager.queue(queue.name)
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        assert numbers(mine.receive(wait_seconds=60, transaction=tx)) == [1]
        raise ZeroDivisionError
    sends: list[float] = []

    def sleep(seconds: float) -> None:
        world.clock.advance(seconds)
        if not sends:
            world.open(queue, "c").send(rows(2))
        sends.append(seconds)

    with manager.transaction() as tx:
        assert numbers(mine.receive(transaction=tx)) == [1]  # it came back
        client_of(manager).runtime.sleep = sleep
        assert numbers(mine.receive(wait_seconds=60, transaction=tx)) == [2]
        before = world.clock.now_ms
        assert len(mine.receive(wait_seconds=20, transaction=tx)) == 0
        assert world.clock.now_ms == before + 20_000
        assert (queue.depth(), queue.in_flight()) == (0, 2)
    assert (queue.depth(), queue.in_flight()) == (0, 0)


@on_delta_when_long
def test_a_selector_receives_only_what_it_wants(world: World) -> None:
    queue = world.queue(lanes=2)
    queue.send([{"n": n, "key": "even" if n % 2 == 0 else "odd"} for n in range(10)])
    if not world.has_frames:
        with pytest.raises(PlatformMissing):
            queue.receive(where="n > 3")
        return
    batch = queue.receive(3, where="key = 'even' AND n > 3")
    assert sorted(numbers(batch)) == [4, 6, 8]
    assert len(queue.receive(where="key = 'even' AND n > 3")) == 0
    batch.release()
    wanted = world.spark.createDataFrame([(1,), (4,), (77,)], "n long")
    held = queue.receive(matching=wanted, on="n")
    assert sorted(numbers(held)) == [1, 4]
    assert queue.purge("_message.lane = 0 OR n < 3") + queue.purge() == 8
    held.accept()  # no drain is finished while something is in flight
    queue.send(rows(20, 21), headers={"country": "SE"})
    queue.send(rows(22), headers={"country": "NO", "correlation_id": "c-1"})
    swedish = "_message.headers['country'] = 'SE'"
    assert sorted(numbers(queue.peek_messages(where=swedish))) == [20, 21]
    assert queue.peek(where="_message.correlation_id = 'c-1'").count() == 1
    seen: list[int] = []
    result = queue.drain(lambda got, tx: seen.extend(numbers(got)), where=swedish, until="empty")
    assert (sorted(seen), result.finished) == ([20, 21], True)
    again = queue.receive(where="_message.headers['country'] IS NOT NULL")
    assert again.modify() == 1
    assert numbers(queue.receive(where="_message.redelivered")) == [22]
    with pytest.raises(InvalidInput, match="nobody"):
        queue.send(rows(1))
        queue.receive(where="nobody = 1")


@on_delta_when_long
def test_a_selector_receives_in_a_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand_divisors(world, monkeypatch)
    queue = world.queue(lanes=2)
    queue.send(rows(*range(1, 13)))
    manager = world.manager("b")
    with pytest.raises(ZeroDivisionError), manager.transaction() as tx:
        assert sorted(numbers(tx.queue(queue.name).receive(where="n % 5 = 0"))) == [5, 10]
        raise ZeroDivisionError
    assert queue.depth() == 12
    with manager.transaction() as tx:
        mine = tx.queue(queue.name)
        assert len(mine.receive(2, where="n % 4 = 0")) == 2
        assert len(mine.receive(where="n % 4 = 0")) == 1
        assert len(mine.receive(where="n % 4 = 0")) == 0
        assert (queue.depth(), queue.in_flight()) == (9, 3)
    assert sorted(numbers(queue.peek_messages())) == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    if world.has_frames:
        wanted = world.spark.createDataFrame([(1,), (4,), (7,)], "n long")
        with manager.transaction() as tx:
            found = manager.queue(queue.name).receive(matching=wanted, on="n", transaction=tx)
            assert sorted(numbers(found)) == [1, 7]
        assert queue.depth() == 7
    assert queue.in_flight() == 0


@on_delta_when_long
def test_what_cannot_be_moved_is_refused(world: World) -> None:
    queue = world.queue()
    other = world.manager().create_queue(world.name("wide"), "x string", dead_letter=False)
    queue.send(rows(1))
    with pytest.raises(SchemaMismatch, match="differ in"):
        queue.move(other)
    with pytest.raises(InvalidInput):
        queue.move(queue)
    with pytest.raises(QueueNotFound):
        queue.move("nobody")
    manager = world.manager("b")
    with manager.transaction(), pytest.raises(TransactionNotGiven):
        manager.queue(queue.name).purge()
    assert queue.depth() == 1


@in_memory
def test_each_message_that_moves_says_how_often_it_was_delivered(world: World) -> None:
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(1, 2, 3))
    for _ in range(2):
        queue.receive(1).modify()
    queue.move(other.name)
    moved = other.peek_messages(9)
    counts = [(m["n"], m["_message"]["origin"]["delivery_count"]) for m in moved]
    assert counts == [(1, 2), (2, 0), (3, 0)]


@in_memory
@pytest.mark.parametrize("inside", [False, True])
def test_what_moves_keeps_its_order_though_some_of_it_failed_once(
    world: World, inside: bool
) -> None:
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(*range(6)))
    held = queue.receive()
    held.modify(matching=pick(held, 1, 2, 4))
    held.release()
    manager = world.manager("b")
    with manager.transaction() if inside else nullcontext() as tx:
        assert manager.queue(queue.name).move(other.name, transaction=tx) == 6
    moved = other.peek_messages(9)
    counts = [(m["n"], m["_message"]["origin"]["delivery_count"]) for m in moved]
    assert counts == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 1), (5, 0)]
    assert numbers(other.receive()) == [*range(6)]
    assert world.manager().history.verify().ok


@in_memory
def test_batches_of_one_transaction_that_move_keep_the_order_of_their_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand_divisors(world, monkeypatch)
    queue, other = world.queue(lanes=1), world.queue("other", lanes=1)
    queue.send(rows(*range(6)))
    manager = world.manager("b")
    with manager.transaction() as tx:
        mine = tx.queue(queue.name)
        for batch in (mine.receive(where="n % 2 = 0"), mine.receive()):
            batch.move(other.name)
    assert numbers(other.receive()) == [*range(6)]


@in_memory
def test_dead_letters_of_a_queue_before_say_that_another_one_has_its_name(world: World) -> None:
    queue, manager = world.queue(dead_letter=True), world.manager("b")
    queue.send(rows(1))
    queue.receive(1).reject(reason="no")
    manager.drop_queue(queue.name)
    world.queue(dead_letter=True)
    with pytest.raises(QueueNotFound, match="no longer exists, and another one has its name"):
        manager.queue(f"{queue.name}.dead").redrive()


# ------------------------------------------------------------- more than one append


@pytest.fixture
def in_twos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each append take two pieces of a lane, so that few messages need several appends."""
    monkeypatch.setattr(removal, "REMOVALS_MAX", 2)


def sent_one_by_one(world: World, *numbers: int, **settings: Any) -> Any:
    queue = world.queue(lanes=1, **settings)
    for number in numbers:
        queue.send(rows(number))
    return queue


def after(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    meanwhile: Callable[[], object],
    nth: int = 1,
) -> None:
    """Let something happen before each append of an operation that follows the nth of them."""
    append, seen = world.store.journal.append, 0

    def hooked(units: Any, metadata: Any) -> Any:
        nonlocal seen
        if metadata["operation"] == operation:
            seen += 1
            if seen > nth:
                meanwhile()
        return append(units, metadata)

    monkeypatch.setattr(world.store.journal, "append", hooked)


def conflict() -> None:
    raise AppendConflict("others were faster")


def no_reply() -> None:
    raise ConnectionError("no reply")


@in_memory
@pytest.mark.usefixtures("in_twos")
@pytest.mark.parametrize("what", ["purged", "moved", "redriven"])
@pytest.mark.parametrize(("fails", "kind"), [(conflict, Busy), (no_reply, TransactionUnknown)])
def test_what_fails_after_its_first_append_says_how_many_messages_are_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, fails: Any, kind: Any
) -> None:
    queue, other = sent_one_by_one(world, 1, 2, 3, 4, 5), world.queue("other", lanes=1)
    if what == "redriven":
        queue.move(other.name)
        queue, other = other, queue
    calls = {
        "purged": queue.purge,
        "moved": lambda: queue.move(other.name),
        "redriven": queue.redrive,
    }
    with monkeypatch.context() as patched:
        after(world, patched, "purged" if what == "purged" else "moved", fails)
        with pytest.raises(kind, match=f"Before that, 2 messages were {what}") as error:
            calls[what]()
    assert error.value.done == 2
    assert "othing was changed" not in str(error.value)
    assert queue.depth() == 3
    assert calls[what]() == 3
    assert other.depth() == (0 if what == "purged" else 5)
    assert world.manager().history.verify().ok


@in_memory
@pytest.mark.usefixtures("in_twos")
def test_a_purge_says_how_many_in_flight_it_marked_before_it_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = sent_one_by_one(world, 1, 2, 3)
    queue.receive(3)
    with monkeypatch.context() as patched:
        after(world, patched, "purged", conflict)
        with pytest.raises(Busy, match="0 messages were purged, and 2 in flight were marked"):
            queue.purge()


@in_memory
def test_a_call_that_fails_at_its_first_append_says_that_nothing_was_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = sent_one_by_one(world, 1)
    with monkeypatch.context() as patched:
        after(world, patched, "purged", conflict, nth=0)
        with pytest.raises(Busy, match="nothing was changed") as error:
            queue.purge()
    assert (error.value.done, queue.depth()) == (0, 1)
    assert f"tries of 'purged' on the queue {queue.name!r}; " in str(error.value)


@in_memory
@pytest.mark.usefixtures("in_twos")
def test_a_move_whose_target_is_dropped_meanwhile_says_how_many_were_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = sent_one_by_one(world, 1, 2, 3), world.queue("other")
    dropping = world.manager("b")
    with monkeypatch.context() as patched:
        after(world, patched, "moved", lambda: dropping.drop_queue(other.name))
        with pytest.raises(QueueNotFound, match="2 messages were moved") as error:
            queue.move(other.name)
    assert (error.value.done, error.value.name) == (2, other.name)
    assert queue.depth() == 1


@in_memory
def test_what_fails_in_memory_says_how_many_durable_messages_are_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = sent_one_by_one(world, 1), world.queue("other")
    queue.send(rows(2), durable=False)
    memory = world.store.transient.journal

    def fail(*_: Any) -> Any:
        raise SchemaMismatch("The queues differ. Nothing was changed.")

    for call in (queue.purge, lambda: queue.move(other.name)):
        with monkeypatch.context() as patched:
            patched.setattr(memory, "append", fail)
            with pytest.raises(SchemaMismatch, match="Before that, 1 messages") as error:
                call()
        assert error.value.done == 1
        queue.send(rows(3))


@in_memory
@pytest.mark.usefixtures("in_twos")
@pytest.mark.parametrize("again", [False, True])
def test_a_move_that_fails_inside_a_transaction_moves_nothing_at_its_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    queue, other = sent_one_by_one(world, 1, 2, 3, 4, 5), world.queue("other", lanes=1)
    with world.manager().transaction() as tx:
        mine = tx.queue(queue.name)
        with monkeypatch.context() as patched:
            after(world, patched, "claim", conflict, nth=2)
            with pytest.raises(Busy, match="nothing was changed"):
                mine.move(other.name)
        assert (queue.depth(), queue.in_flight()) == (5, 0)
        if again:
            assert mine.move(other.name) == 5
    assert (queue.depth(), other.depth()) == ((0, 5) if again else (5, 0))
    assert queue.in_flight() == 0
    found = numbers((other if again else queue).receive(5))
    assert found == [1, 2, 3, 4, 5]
    assert world.manager().history.verify().ok


@in_memory
@pytest.mark.usefixtures("in_twos")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("lands", [True, False])
def test_what_a_failed_move_cannot_give_back_at_once_comes_back_when_its_transaction_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool, lands: bool
) -> None:
    queue, other = sent_one_by_one(world, 1, 2, 3), world.queue("other")
    tx = world.manager().transaction()
    waiting: list[Any] = []
    append = world.store.journal.append
    with monkeypatch.context() as patched:
        after(world, patched, "claim", conflict)
        hooked = world.store.journal.append

        def unanswered(units: Any, metadata: Any) -> Any:
            if metadata["operation"] == "settle":
                waiting[:] = [(units, metadata)]
                raise ConnectionError("no reply")
            return hooked(units, metadata)

        patched.setattr(world.store.journal, "append", unanswered)
        with pytest.raises(Busy):
            tx.queue(queue.name).move(other.name)
    if lands:
        append(*waiting[0])
    if commit:
        tx.commit()
    else:
        tx.rollback()
    assert (queue.depth(), queue.in_flight(), other.depth()) == (3, 0, 0)
    batch = queue.receive(3)
    assert numbers(batch) == [1, 2, 3]
    assert [row["_message"]["delivery_count"] for row in batch.messages()] == [0, 0, 0]
    assert world.manager().history.verify().ok


@in_memory
@pytest.mark.usefixtures("in_twos")
def test_a_move_that_comes_too_late_for_its_transaction_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = sent_one_by_one(world, 1, 2, 3), world.queue("other")
    tx = world.manager().transaction()
    with monkeypatch.context() as patched:
        after(world, patched, "claim", attempt_of(tx).close)  # as another thread does
        with pytest.raises(TransactionFinished):
            tx.queue(queue.name).move(other.name)
    assert (queue.depth(), queue.in_flight()) == (3, 0)


@in_memory
@pytest.mark.usefixtures("in_twos")
@pytest.mark.parametrize("inside", [True, False])
def test_a_redrive_sends_nothing_back_if_a_queue_that_some_came_from_is_gone(
    world: World, inside: bool
) -> None:
    queue, here = sent_one_by_one(world, 1, 2, 3), world.queue("here", lanes=1)
    gone = world.queue("gone", lanes=1)
    queue.move(here.name)
    gone.send(rows(4))
    gone.move(here.name)
    here.send(rows(5))  # was never elsewhere
    gone.drop()
    with world.manager().transaction() if inside else nullcontext() as tx:
        mine = here if tx is None else tx.queue(here.name)
        with pytest.raises(QueueNotFound, match="no longer exists") as error:
            mine.redrive()
        assert error.value.done == 0
    assert (here.depth(), queue.depth()) == (5, 0)
    with world.manager().transaction() if inside else nullcontext() as tx:
        mine = here if tx is None else tx.queue(here.name)
        assert mine.redrive(limit=3) == 3
    assert (here.depth(), queue.depth()) == (2, 3)
