"""A stream: a queue is consumed beside the program, whenever something comes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import numbers, rows
from tests.inside import client_of
from txnqueue import QueueManager, RetryPolicy, Stream
from txnqueue.errors import HandlerFailed, InvalidInput, LeaseLost, QueueError, TransactionNotGiven
from txnqueue.messages.receive import Poller
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.payload.rows import lane_of
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

SECONDS_MAX = 20.0
"""After so long something that should happen has not."""
SCHEMA = "n long, key string"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def manager(store: MemoryStore) -> Iterator[QueueManager]:
    """A manager whose clock runs: streams sleep by it."""
    with QueueManager(None, store=store, consumer="first") as made:
        yield made


@pytest.fixture
def orders(manager: QueueManager) -> Any:
    return manager.create_queue("orders", SCHEMA)


@pytest.fixture
def done(manager: QueueManager) -> Any:
    return manager.create_queue("done", SCHEMA, dead_letter=False)


def until(true: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stops_after(stopping: threading.Event, seconds: float, call: Callable[[], bool]) -> bool:
    """Call something that is stopped after a while."""
    timer = threading.Timer(seconds, stopping.set)
    timer.start()
    try:
        return call()
    finally:
        timer.cancel()


def copy(batch: Any, tx: Any) -> None:
    """Send what a batch has to another queue."""
    tx.queue("done").send([{"n": row["n"], "key": row["key"]} for row in batch.messages()])


def test_a_stream_consumes_what_is_there_and_what_comes(orders: Any, done: Any) -> None:
    orders.send(rows(1, 2, 3))
    sizes: list[int] = []
    with orders.stream(copy, batch_size=2, on_batch=sizes.append) as stream:
        until(lambda: done.depth() == 3)
        orders.send(rows(4))
        until(lambda: done.depth() == 4)
        assert stream.is_active and stream.exception is None
    assert not stream.is_active
    assert sizes == [2, 1, 1]
    assert (stream.result.batches, stream.result.messages, stream.result.stopped) == (3, 4, True)
    assert sorted(numbers(done.peek_messages())) == [1, 2, 3, 4]
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def test_a_stream_wakes_when_a_delay_is_over(orders: Any, done: Any) -> None:
    with orders.stream(copy):
        orders.send(rows(1), delay_seconds=0.5)
        until(lambda: done.depth() == 1)


def test_a_stream_hears_of_a_message_in_memory(orders: Any, done: Any) -> None:
    with orders.stream(copy):
        orders.send(rows(1), durable=False)
        until(lambda: done.depth() == 1)


def test_a_delay_that_ends_while_a_look_is_under_way_is_not_missed() -> None:
    clock = Clock()
    manager = memory_manager(clock=clock)
    orders = manager.create_queue("orders", SCHEMA)
    orders.send(rows(1), delay_seconds=60)
    stopping = threading.Event()
    poller = Poller(client_of(manager), orders.info, float("inf"), stopping)
    assert orders.depth() == 0  # the look, which is over only after the delay
    clock.advance(60)
    assert stops_after(stopping, SECONDS_MAX, poller.wait_for_change) and orders.depth() == 1
    assert not stops_after(stopping, 0.3, poller.wait_for_change)  # that delay was heard of


def test_a_stream_turns_no_clock() -> None:
    clock = Clock()
    orders = memory_manager(clock=clock).create_queue("orders", SCHEMA)
    orders.send(rows(1), delay_seconds=60)
    before = clock.now_ms
    with orders.stream(lambda batch, tx: None) as stream:
        time.sleep(0.3)
        assert (clock.now_ms, stream.result.messages) == (before, 0)
        clock.advance(60)
        until(lambda: stream.result.messages == 1)


def test_a_stream_takes_what_another_consumer_let_go_of(
    store: MemoryStore, orders: Any, done: Any
) -> None:
    orders.send(rows(1))
    other = QueueManager(None, store=store, consumer="other")
    other.queue("orders").receive(1, lease_seconds=0.5)
    with orders.stream(copy):
        until(lambda: done.depth() == 1)


def test_a_stopped_stream_ends_after_the_batch_at_hand(orders: Any, done: Any) -> None:
    orders.send(rows(1, 2))
    handles, may_go_on = threading.Event(), threading.Event()

    def slow(batch: Any, tx: Any) -> None:
        handles.set()
        may_go_on.wait(SECONDS_MAX)
        copy(batch, tx)

    stream = orders.stream(slow, batch_size=1)
    assert handles.wait(SECONDS_MAX)
    assert stream.stop(timeout_seconds=0) is False
    assert stream.await_termination(timeout_seconds=0.05) is False and stream.is_active
    may_go_on.set()
    assert stream.stop() is True
    assert stream.await_termination() is True
    assert numbers(done.peek_messages()) == [1]
    assert (orders.depth(), orders.in_flight()) == (1, 0)


def test_a_waiting_stream_stops_at_once(orders: Any) -> None:
    stream = orders.stream(copy)
    time.sleep(1)  # by now it sleeps for longer than a stop may take
    began = time.monotonic()
    assert stream.stop() is True
    assert time.monotonic() - began < 1


def test_a_stream_ends_after_so_many_messages(orders: Any, done: Any) -> None:
    orders.send(rows(1, 2, 3))
    stream = orders.stream(copy, batch_size=2, max_messages=3)
    assert stream.await_termination(SECONDS_MAX) is True
    orders.send(rows(4))
    assert (stream.result.messages, stream.result.stopped) == (3, False)
    assert (orders.depth(), done.depth()) == (1, 3)


def test_a_stream_goes_on_after_a_message_that_fails(
    manager: QueueManager, orders: Any, done: Any
) -> None:
    def picky(batch: Any, tx: Any) -> None:
        if 13 in numbers(batch):
            raise ValueError("13")
        copy(batch, tx)

    with orders.stream(picky) as stream:
        orders.send(rows(1))
        until(lambda: done.depth() == 1)
        orders.send(rows(12, 13, 14))
        until(lambda: done.depth() == 3)
        dead = manager.queue("orders.dead")
        until(lambda: dead.depth() == 1)
        orders.send(rows(15))
        until(lambda: done.depth() == 4)
    assert numbers(dead.peek_messages()) == [13]
    assert stream.result.dead_lettered == 1 and isinstance(stream.result.last_error, ValueError)


def test_a_mistake_of_the_job_ends_the_stream_and_takes_no_message(orders: Any, done: Any) -> None:
    orders.send(rows(1, 2))
    stream = orders.stream(lambda batch, tx: tx.queue("nowhere"))
    with pytest.raises(HandlerFailed, match="nowhere"):
        stream.await_termination(SECONDS_MAX)
    assert not stream.is_active and isinstance(stream.exception, HandlerFailed)
    assert stream.stop() is True
    with pytest.raises(HandlerFailed):
        with stream:
            pass
    with orders.stream(copy):
        until(lambda: done.depth() == 2)


def test_a_stream_that_always_fails_gives_up(orders: Any, caplog: pytest.LogCaptureFixture) -> None:
    orders.send(rows(1))
    stream = orders.stream(lambda batch, tx: 1 / 0, errors_max=3)
    with pytest.raises(HandlerFailed, match="3 batches in a row"):
        stream.await_termination(SECONDS_MAX)
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "stream ended queue=orders" in told and "division by zero" in told, "nobody may wait"


def test_streams_of_two_managers_share_a_queue(
    store: MemoryStore, manager: QueueManager, done: Any
) -> None:
    shared = manager.create_queue("shared", SCHEMA, lanes=4, group_by="key")
    other = QueueManager(None, store=store, consumer="other").queue("shared")
    with shared.stream(copy, batch_size=3), other.stream(copy, batch_size=3):
        for first in range(0, 40, 4):
            shared.send([{"n": first + i, "key": str(i)} for i in range(4)])
        until(lambda: done.depth() == 40)
    assert sorted(numbers(done.peek_messages(100))) == list(range(40))


def test_a_stream_goes_on_when_others_are_faster(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = QueueManager(None, store=store, retry=RetryPolicy(attempts_max=1))
    orders = manager.create_queue("orders", SCHEMA, dead_letter=False)
    manager.create_queue("done", SCHEMA, dead_letter=False)
    orders.send(rows(1))
    append, lost = store.journal.append, [0]

    def refused(units: Any, metadata: Any) -> Any:
        if lost[0] < 2:  # the claim, and the roll back after it
            lost[0] += 1
            raise AppendConflict
        return append(units, metadata)

    monkeypatch.setattr(store.journal, "append", refused)
    with orders.stream(copy):
        until(lambda: manager.queue("done").depth() == 1)
    assert lost[0] == 2


class Held:
    """A handler that copies, and holds its first batch until it is let go."""

    def __init__(self) -> None:
        self.holds, self.let_go = threading.Event(), threading.Event()

    def __call__(self, batch: Any, tx: Any) -> None:
        if not self.holds.is_set():
            self.holds.set()
            assert self.let_go.wait(SECONDS_MAX)
        copy(batch, tx)


@pytest.mark.parametrize("same_manager", [False, True])
def test_a_stream_with_the_checkpoint_of_another_takes_over_at_once(
    store: MemoryStore, manager: QueueManager, orders: Any, done: Any, same_manager: bool
) -> None:
    orders.send(rows(1, 2))
    held = Held()
    gone = orders.stream(held, checkpoint="pay")
    assert held.holds.wait(SECONDS_MAX)
    other = manager if same_manager else QueueManager(None, store=store, consumer="other")
    with other.queue("orders").stream(copy, checkpoint="pay"):
        until(lambda: done.depth() == 2)
        held.let_go.set()
        until(lambda: not gone.is_active or orders.depth() == 0)
    assert sorted(numbers(done.peek_messages())) == [1, 2]
    gone.stop()
    assert gone.result.messages == 0


def test_two_streams_of_a_manager_keep_the_order_of_a_lane(
    manager: QueueManager, done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    wait = Poller.wait_for_change
    monkeypatch.setattr(Poller, "wait_for_change", lambda poller: waits.set() or wait(poller))
    line = manager.create_queue("line", SCHEMA, ordered=True)
    line.send(rows(*range(6)))
    held = Held()
    with line.stream(held, batch_size=2):
        assert held.holds.wait(SECONDS_MAX)
        with line.stream(copy, batch_size=2):
            assert waits.wait(SECONDS_MAX)  # it has found nothing that it may receive
            held.let_go.set()
            until(lambda: done.depth() == 6)
    assert numbers(done.peek_messages()) == list(range(6))


def test_a_stream_whose_checkpoint_was_opened_elsewhere_ends_and_says_so(
    store: MemoryStore, manager: QueueManager, done: Any
) -> None:
    shared = manager.create_queue("shared", SCHEMA, lanes=2, group_by="key", ordered=True)
    sent = itertools.count()
    early = shared.stream(copy, checkpoint=Path("/chk/pay"))
    shared.send([{"n": next(sent), "key": "a"}])
    until(lambda: done.depth() == 1)  # it is open now, and holds nothing
    second = Held()
    late = QueueManager(None, store=store, consumer="late").queue("shared")
    with late.stream(second, batch_size=1, checkpoint="/chk/pay"):
        until(lambda: second.holds.is_set() or not shared.send([{"n": next(sent), "key": "a"}]))
        until(lambda: not early.is_active or not shared.send([{"n": next(sent), "key": "a"}]))
        second.let_go.set()
        count = next(sent)
        until(lambda: done.depth() == count)
    with pytest.raises(LeaseLost, match="'/chk/pay'"):
        early.await_termination(0)
    assert numbers(done.peek_messages(1_000)) == list(range(count))


def test_what_a_fenced_stream_has_handled_is_committed_or_handled_again(
    store: MemoryStore, manager: QueueManager, done: Any
) -> None:
    shared = manager.create_queue("shared", SCHEMA, lanes=2, group_by="key")
    keys = [next(key for key in "abcd" if lane_of(key, 2) == lane) for lane in range(2)]
    first, second = Held(), Held()
    shared.send([{"n": 1, "key": keys[0]}])
    early = shared.stream(first, checkpoint="pay")
    assert first.holds.wait(SECONDS_MAX)
    shared.send([{"n": 2, "key": keys[1]}])
    late = QueueManager(None, store=store, consumer="late").queue("shared")
    with late.stream(second, batch_size=1, checkpoint="pay"):
        assert second.holds.wait(SECONDS_MAX)
        first.let_go.set()
        with pytest.raises(LeaseLost):
            early.await_termination(SECONDS_MAX)
        second.let_go.set()
        until(lambda: done.depth() == 2)
    assert sorted(numbers(done.peek_messages())) == [1, 2]
    assert (shared.depth(), shared.in_flight()) == (0, 0)


def test_a_closed_manager_has_stopped_its_streams(store: MemoryStore) -> None:
    with QueueManager(None, store=store) as manager:
        stream = manager.create_queue("orders", SCHEMA).stream(copy)
        assert stream.is_active
    assert stream.await_termination(0) is True


def test_a_dropped_queue_ends_its_stream(manager: QueueManager, orders: Any, done: Any) -> None:
    stream = orders.stream(copy)
    assert manager.drop_queue("orders").dropped
    with pytest.raises(QueueError, match="orders"):
        stream.await_termination(SECONDS_MAX)


def test_an_error_of_the_store_ends_a_stream_and_the_next_one_goes_on(
    store: MemoryStore, orders: Any, done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = orders.stream(copy)
    orders.send(rows(1))
    until(lambda: done.depth() == 1)

    def away() -> int:
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(store.journal, "version", away)
        with pytest.raises(OSError, match="the disk is away"):
            stream.await_termination(SECONDS_MAX)
    orders.send(rows(2))
    with orders.stream(copy):
        until(lambda: done.depth() == 2)


def test_a_handler_cannot_wait_for_its_own_stream(orders: Any) -> None:
    streams: list[Stream] = []
    there = threading.Event()

    def waits(batch: Any, tx: Any) -> None:
        assert there.wait(SECONDS_MAX)
        streams[0].stop()

    orders.send(rows(1))
    streams.append(orders.stream(waits, errors_max=1))
    there.set()
    with pytest.raises(HandlerFailed, match="its own stream"):
        streams[0].await_termination(SECONDS_MAX)


def test_a_stop_that_is_refused_stops_nothing(orders: Any, done: Any) -> None:
    with orders.stream(copy) as stream:
        for seconds in (-1, float("nan"), "soon"):
            with pytest.raises(InvalidInput):
                stream.stop(seconds)
            with pytest.raises(InvalidInput):
                stream.await_termination(seconds)
        orders.send(rows(1))
        until(lambda: done.depth() == 1)
        assert stream.is_active and not stream.result.stopped


def test_wrong_input_starts_nothing(manager: QueueManager, orders: Any) -> None:
    threads = threading.active_count()
    for wrong in (
        {"handler": None},
        {"handler": copy, "batch_size": 0},
        {"handler": copy, "max_messages": 0},
        {"handler": copy, "errors_max": 0},
        {"handler": copy, "where": ""},
        {"handler": copy, "on_batch": 1},
        {"handler": copy, "checkpoint": ""},
        {"handler": copy, "checkpoint": 1},
        {"handler": copy, "checkpoint": "\ud800"},
    ):
        with pytest.raises(InvalidInput):
            orders.stream(**wrong)
    with manager.transaction(), pytest.raises(TransactionNotGiven):
        orders.stream(copy)
    assert threading.active_count() == threads
