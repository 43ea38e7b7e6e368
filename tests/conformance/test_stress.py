"""Four threads of one manager, with heartbeats and metrics beside: nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.conformance.conftest import numbers, rows
from tests.inside import attempt_of, client_of
from tests.switching import switching
from txnqueue.core import model
from txnqueue.core.state import compaction
from txnqueue.errors import Busy, LeaseLost, TransactionAborted
from txnqueue.testing import Clock, MemoryStore, memory_manager

PASSING = (Busy, LeaseLost, TransactionAborted)
"""What a client meets when others are faster; the messages stand where they stood."""


def together(*programs: Any) -> None:
    """Run programs in threads of their own, to their ends; raises what one of them raised."""
    errors = []

    def run(program: Any) -> None:
        try:
            program()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("seed", range(8))
def test_four_threads_of_one_manager_lose_nothing_and_deliver_nothing_twice(seed: int) -> None:
    store, clock = MemoryStore(), Clock()
    manager = memory_manager(store, clock, "m")
    other = memory_manager(store, clock, "n")
    client_of(manager).log_max = client_of(other).log_max = 2
    manager.create_queue("orders", "n long, key string", dead_letter=False, lanes=2)
    sent, accepted, lock = set(), [], threading.Lock()
    over = threading.Event()

    def settle(found: Any) -> None:
        with lock:
            accepted.extend(found)

    def work(client: Any, thread: Any) -> Any:
        def program() -> None:
            dice, queue = random.Random(f"{seed}/{thread}"), client.queue("orders")
            for turn in range(30):
                with suppress(*PASSING):
                    one_turn(dice, client, queue, thread * 1000 + turn * 10)

        return program

    def one_turn(dice: Any, client: Any, queue: Any, first: Any) -> None:
        what = dice.choice(["send", "lease", "transaction", "rollback", "heartbeat"])
        if what == "send":
            mine = list(range(first, first + 4))
            with lock:
                sent.update(mine)
            queue.send(rows(*mine))
        elif what in ("lease", "heartbeat"):
            batch = queue.receive(3)
            if what == "heartbeat" and batch:
                with batch.heartbeat(60, every_seconds=0.001):
                    queue.depth()
            found = numbers(batch)
            if not found or dice.random() < 0.5:
                batch.release()
            else:
                batch.accept()
                settle(found)
        else:
            with client.transaction() as tx:
                found = numbers(queue.receive(3, transaction=tx))
                if what == "rollback":
                    tx.rollback()
                    return
            settle(found)

    def watch() -> None:
        while not over.is_set():
            manager.metrics()
            manager.queue("orders").depth()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with switching(1e-6):
            together(*(work(manager, n) for n in range(4)), work(other, 4))
    finally:
        over.set()
        watching.join()
    clock.advance(3600)
    left = []
    fresh = memory_manager(store, clock, "fresh")
    while batch := fresh.queue("orders").receive(100):
        left += numbers(batch)
        batch.accept()
    assert sorted(accepted + left) == sorted(sent)
    assert fresh.history.verify().ok
    assert any(e.kind == model.COMPACTED for e in store.journal.read_all().entries)


def test_what_a_compaction_says_is_of_one_version_whatever_other_threads_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clock = MemoryStore(), Clock()
    manager, other = memory_manager(store, clock, "m"), memory_manager(store, clock, "n")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": n} for n in range(10)])
    for _ in range(6):
        queue.receive(1).release()
    tx = other.transaction()
    attempt_of(tx).begin()
    other.queue("orders").receive(5, transaction=tx)
    client_of(manager).log_max = 3
    plain, reading = compaction._waiting, list[Any]()

    def interrupted(lane: Any) -> Any:
        """Between what waits and what is in flight another driver rolls back, a thread reads on."""
        found = plain(lane)
        if not reading:
            together(tx.rollback)
            reading.append(threading.Thread(target=manager.queue("orders").depth))
            reading[0].start()
            reading[0].join(0.2)  # it waits for the lock
        return found

    monkeypatch.setattr(compaction, "_waiting", interrupted)
    got = queue.receive(1)
    reading[0].join()
    got.release()
    assert queue.depth() == memory_manager(store, clock, "fresh").queue("orders").depth() == 10
    assert manager.history.verify().ok
