"""Who is interrupted in a call, by Ctrl-C or a notebook's stop button, can make the next one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults import interrupts, matrix
from tests.faults.interrupts import ALL, BLOCKS, Interrupt
from tests.faults.scenarios import Operation
from tests.inside import beside
from txnqueue.batch import Batch
from txnqueue.client.readers import StateReader
from txnqueue.core.state import QueueState, compaction
from txnqueue.manager import QueueManager
from txnqueue.protocols.openamq import Connection
from txnqueue.queue import Queue
from txnqueue.testing import Clock, memory_manager
from txnqueue.transaction import Transaction

SAMPLE = 4_000 if LONG else 100


def within(operation: Operation, files: tuple[str, ...]) -> list[int]:
    """Number the places of an operation that are in some files."""
    found = enumerate(interrupts.places(operation), 1)
    return [nth for nth, place in found if place.startswith(files)]


def test_what_is_interrupted_anywhere_can_be_gone_on_with() -> None:
    for operation, nth in interrupts.cases()[:SAMPLE]:
        interrupts.run(matrix.fresh(unique=operation.unique), operation, nth)


@pytest.mark.parametrize("operation", BLOCKS, ids=lambda one: one.name)
def test_a_block_that_is_interrupted_as_it_is_entered_or_left_is_left(operation: Operation) -> None:
    found = within(operation, ("transaction.py", "client/client.py:2"))
    assert len(found) > 10
    for nth in found:
        interrupts.run(matrix.fresh(), operation, nth)


def test_who_is_interrupted_while_duplicates_are_told_loses_and_doubles_nothing() -> None:
    operation = next(one for one in ALL if one.name == "leave duplicates out")
    found = within(operation, ("core/state/duplicates.py", "core/ranges.py"))
    assert len(found) > 100
    for nth in found if LONG else found[::12]:
        interrupts.run(matrix.fresh(unique=True), operation, nth)


def test_a_place_that_is_not_reached_is_none() -> None:
    with pytest.raises(AssertionError, match="place 1000000 was not reached"):
        interrupts.run(matrix.fresh(), BLOCKS[0], 10**6)


def _closes() -> None:
    """Do nothing, as a generator ends."""


def _rows() -> Iterator[int]:
    try:
        yield 1
    finally:
        _closes()


def _throws_a_generator_away(client: QueueManager, subject: object) -> None:
    rows = _rows()
    next(rows)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_that_does_not_arrive_is_told_from_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Operation("throw", lambda *_: None, _throws_a_generator_away, lambda *_: True)
    monkeypatch.setattr(interrupts, "PACKAGE", __file__)
    told = [interrupts.run(matrix.fresh(), one, n + 1) for n in range(len(interrupts.places(one)))]
    assert set(told[:-1]) == {"crashed"} and told[-1] == interrupts.UNHEARD


def test_a_case_is_named_by_its_place_and_not_by_its_line() -> None:
    names = interrupts.names()
    assert len(set(names)) == len(names) == len(interrupts.cases())
    assert names[0].startswith(f"{interrupts.cases()[0][0].name} / place ")
    assert not [one for one in names if re.search(r"\.py:\d", one)]
    assert interrupts.sought("send / place 4 a.py after get") == "send / place "


def test_a_state_that_is_left_half_applied_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(_: Any, folds: Iterable[QueueState], reading: Any) -> None:
        """Apply what is new, and keep what was applied if that is interrupted."""
        by_shard = defaultdict[str, list[Any]](list)
        for entry in reading.entries:
            by_shard[entry.shard].append(entry)
        for fold in folds:
            mine = [e for shard in fold.shards for e in by_shard[shard] if e.version > fold.version]
            compaction.advance(fold, mine, reading.version)

    monkeypatch.setattr(StateReader, "_advance", advance)
    with pytest.raises(AssertionError, match="StoreCorrupt"):
        for nth in within(BLOCKS[0], ("core/ranges.py", "core/state/queue.py")):
            interrupts.run(matrix.fresh(), BLOCKS[0], nth)


def test_each_place_interrupts() -> None:
    for operation in ALL[::6]:
        assert len(interrupts.places(operation)) > 50
    manager = memory_manager()
    queue = manager.create_queue("in", "i long")
    queue.send([{"i": 1}])  # the first one looks at more
    with Interrupt() as found:
        queue.send([{"i": 1}])
    count = len(found.places)
    for nth in (1, count // 2, count):
        with pytest.raises(KeyboardInterrupt, match=r"^[a-z_/]+\.py:[0-9]+"):
            with Interrupt(nth):
                queue.send([{"i": 1}])


SETTLE = ["accept", "release", "modify", "reject", "move"]


@pytest.mark.parametrize("durable", [True, False, None])
@pytest.mark.parametrize("settle", SETTLE if LONG else ["accept", "move"])
def test_a_settlement_that_is_interrupted_anywhere_is_repeated_and_happens_once(
    settle: str, durable: bool | None
) -> None:
    """Who pressed Ctrl-C and tried again heard that the lease was lost, or all was settled."""

    def begun() -> tuple[QueueManager, Any]:
        manager = memory_manager()
        for name in ("in", "out"):
            manager.create_queue(name, "i long")
        for kept in (True, False) if durable is None else (durable,):
            manager.queue("in").send([{"i": 1}, {"i": 2}], durable=kept)
        batch = manager.queue("in").receive(4)
        act = getattr(batch, settle)
        return manager, (lambda: act("out")) if settle == "move" else act

    for _ in range(2):  # the first one looks at more
        manager, act = begun()
        with Interrupt() as counted:
            count = act()
    waiting = {name: manager.queue(name).depth() for name in ("in", "out", "in.dead")}
    places = len(counted.places)
    for nth in range(1, places + 1, 1 if LONG else 7):
        manager, act = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            act()
        assert act() == count, found.at
        assert manager.queue("in").in_flight() == 0, found.at
        assert {name: manager.queue(name).depth() for name in waiting} == waiting, found.at
        assert manager.history.verify().ok, found.at


def test_an_acknowledgement_of_several_receives_that_is_interrupted_is_repeated() -> None:
    """It had landed: who tried again heard that the lease was lost."""

    def begun() -> tuple[QueueManager, Any]:
        manager = memory_manager()
        for n in range(2):
            manager.create_queue(f"q{n}", "i long").send([{"i": n}])
        channel = Connection(manager).channel()
        for n in range(2):
            channel.dispatch(f"q{n}")
        return manager, channel

    for _ in range(2):  # the first one looks at more
        manager, channel = begun()
        with Interrupt() as counted:
            assert channel.ack().count == 2
    places = len(counted.places)
    for nth in range(1, places + 1, 1 if LONG else 7):
        manager, channel = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            channel.ack()
        assert channel.ack().count in (0, 2), found.at
        assert channel.dispatch_list == [], found.at
        assert [manager.queue(f"q{n}").in_flight() for n in range(2)] == [0, 0], found.at
        assert [manager.queue(f"q{n}").depth() for n in range(2)] == [0, 0], found.at


def _takes(queue: Queue) -> Batch:
    return queue.receive(1)


def _takes_in_a_transaction(queue: Queue) -> Batch:
    return beside(queue).queue(queue.name).receive(1)


@pytest.mark.parametrize("take", [_takes, _takes_in_a_transaction])
def test_in_an_ordered_lane_nothing_passes_what_an_interrupted_receive_holds(take: Any) -> None:
    def begun() -> tuple[Clock, Queue]:
        manager = memory_manager(clock=(clock := Clock()))
        queue = manager.create_queue("in", "i long", ordered=True, dead_letter=False)
        for i in (1, 2):
            queue.send([{"i": i}])
        return clock, queue

    for _ in range(2):  # the first one looks at more
        _, queue = begun()
        with Interrupt() as counted:
            taken = take(queue)
        assert len(taken) == 1
    waited = 0
    for nth in range(1, len(counted.places) + 1):
        clock, queue = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            take(queue)
        if not (taken := take(queue)):
            waited += 1
            clock.advance(1_000)
            taken = take(queue)
        assert [row["i"] for row in taken.messages()] == [1], found.at
    assert waited, "vacuous: nothing was held"


def test_a_transaction_passes_nothing_that_its_interrupted_move_still_holds() -> None:
    def begun() -> tuple[Queue, Transaction]:
        manager = memory_manager()
        manager.create_queue("out", "i long", dead_letter=False)
        queue = manager.create_queue("in", "i long", ordered=True, dead_letter=False)
        for i in (1, 2):
            queue.send([{"i": i}])
        return queue, manager.transaction()

    for _ in range(2):  # the first one looks at more
        queue, tx = begun()
        with Interrupt() as counted:
            queue.move("out", limit=1, transaction=tx)
    for nth in range(1, len(counted.places) + 1):
        queue, tx = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            queue.move("out", limit=1, transaction=tx)
        taken = [row["i"] for row in queue.receive(1, transaction=tx).messages()]
        tx.commit()
        left = queue.depth() + queue.in_flight()
        assert taken != [2] or not left, f"{found.at}: the first one comes back"


def _receives(manager: QueueManager, tx: Transaction) -> None:
    manager.queue("in").receive(2, transaction=tx)


def _moves(manager: QueueManager, tx: Transaction) -> None:
    manager.queue("in").move("out", transaction=tx)


def _publishes(manager: QueueManager, tx: Transaction) -> None:
    manager.exchange("x").publish([{"i": 3}], transaction=tx)


def _sends(manager: QueueManager, tx: Transaction) -> None:
    tx.send({"in": [{"i": 3}], "out": [{"i": 3}], "memory": [{"i": 3}]})


@pytest.mark.parametrize("act", [_receives, _moves, _publishes, _sends])
def test_what_an_interrupted_call_left_in_a_transaction_is_whole_or_nothing(act: Any) -> None:
    """Who commits in spite of it consumes nothing unseen, and sends and moves all or nothing."""

    def begun() -> tuple[QueueManager, Transaction]:
        manager = memory_manager()
        for name in ("in", "out"):
            manager.create_queue(name, "i long")
        manager.create_queue("memory", "i long", durable=False)
        exchange = manager.create_exchange("x", "fanout", "i long")
        for name in ("in", "out"):
            exchange.bind(name)
        manager.queue("in").send([{"i": 1}, {"i": 2}])
        return manager, manager.transaction()

    for _ in range(2):  # the first one looks at more
        manager, tx = begun()
        with Interrupt() as counted:
            act(manager, tx)
    count = len(counted.places)
    for nth in range(max(1, count - (count if LONG else 120)), count + 1):
        manager, tx = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as found:
            act(manager, tx)
        tx.commit()
        left = {name: list[int]() for name in ("in", "out", "memory")}
        for name, numbers in left.items():
            while batch := manager.queue(name).receive():  # what came back comes by itself
                numbers += [row["i"] for row in batch.messages()]
                batch.accept()
        told = tuple(sorted(numbers) for numbers in left.values())
        nothing: tuple[list[int], ...] = ([1, 2], [], [])
        whole: dict[Any, tuple[list[int], ...]] = {
            _receives: nothing,
            _moves: ([], [1, 2], []),
            _publishes: ([1, 2, 3], [3], []),
            _sends: ([1, 2, 3], [3], [3]),
        }
        assert told in (nothing, whole[act]), f"{found.at}: {told}"
