"""What is remembered is what is read afresh: folds of queues, in whichever order, and pasts."""

from __future__ import annotations

import gc
import linecache
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.core.test_compacting import state
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.client import past_reader, readers
from txnqueue.client.readers import ShardReader, StateReader
from txnqueue.core import model
from txnqueue.core.model import POSTED, Entry
from txnqueue.errors import HistoryRemoved, QueueNotFound
from txnqueue.storage.journal import EntryFilter
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager
from txnqueue.types import Message


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shards_max", [1_000, 3])
def test_folds_are_the_same_whoever_reads_them_and_when(
    seed: int, shards_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SHARDS_MAX", shards_max)
    chance, store, clock = random.Random(seed), MemoryStore(), Clock()
    manager = memory_manager(store, clock)
    queues = [manager.create_queue(f"q{n}", "n long", lanes=n + 1) for n in range(4)]
    known = StateReader(store.journal)
    horizons = set()
    for number in range(60):
        clock.advance(30)
        queue = chance.choice(queues)
        act = chance.choice(["send", "send", "take", "hold", "maintain"])
        if act == "send":
            queue.send([{"n": number}] * 3)
        elif act == "maintain":
            horizons.add(memory_manager(store, clock).maintain(transaction_seconds_max=60).horizon)
        elif batch := queue.receive(2):
            batch.accept() if act == "take" else batch.extend_lease(10)
        infos = [q.info for q in chance.sample(queues, chance.randint(1, 4))]
        afresh = [StateReader(store.journal).read([info])[0] for info in infos]
        assert [state(f) for f in known.read(infos)] == [state(f) for f in afresh]
    assert len(horizons) > 3, "vacuous: the horizon hardly moved"


class Prepared:
    """A store in memory with a transaction, t, that is prepared."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.manager = memory_manager(self.store, self.clock)
        self.queue = self.manager.create_queue("q", "n long")
        tx = self.manager.transaction("t")
        self.queue.send([{"n": 1}], transaction=tx)
        tx.prepare()

    def leave(self) -> None:
        """Commit it, and let its decision leave the journal."""
        self.manager.commit("t")
        for _ in range(2):
            self.clock.advance(120)
            self.queue.send([{"n": 2}])
            memory_manager(self.store, self.clock).maintain(transaction_seconds_max=60)


def test_a_reading_of_shards_that_is_interrupted_anywhere_leaves_no_gap() -> None:
    """A transaction was remembered as prepared, and its decision had left the journal unread."""
    steps = 0
    for nth in range(1_000):
        given = Prepared()
        store = given.store
        known, shard = ShardReader(store.journal), model.transaction_shard("t")
        known.read([shard])
        given.leave()
        if not _interrupted_at(nth, partial(known.read, [shard])):
            break
        steps += 1
        assert known.read([shard]) == ShardReader(store.journal).read([shard]), nth
    assert steps > 20


def test_a_block_that_a_collection_leaves_during_a_reading_is_rolled_back() -> None:
    """The reading held the lock for which the rollback, in the same thread, waited for ever."""
    store = MemoryStore()
    manager = memory_manager(store, Clock())
    queue = manager.create_queue("q", "n long")
    queue.send([{"n": 1}])
    seen = []

    def abandon() -> None:
        def working() -> Iterator[None]:
            with manager.transaction() as tx:
                queue.receive(transaction=tx)
                yield

        work: list[Any] = [working()]
        next(work[0])
        work.append(work)

    def collect(step: str) -> None:
        store.journal.step = lambda _: None
        gc.collect()

    def read() -> None:
        abandon()
        store.journal.step = collect
        seen.append(client_of(manager).cache.key_state("another").committed)

    gc.disable()
    try:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(20)
    finally:
        gc.enable()
    assert seen == [None]
    assert queue.depth() == 1


def test_a_reading_of_shards_sees_what_another_one_amid_it_has_seen() -> None:
    """That of a rollback, in the same thread, may find a newer horizon, and forget shards."""
    steps = 0
    for nth in range(1_000):
        given = Prepared()
        store = given.store
        known, shards = ShardReader(store.journal), [model.transaction_shard("t"), model.CATALOG]
        known.read(shards[:1])

        def amid(given: Prepared = given, known: ShardReader = known) -> None:
            given.leave()
            known.read([model.CATALOG])

        before = ShardReader(store.journal).read_with_horizon(shards)
        found = _at_line(nth, partial(known.read_with_horizon, shards), amid)
        if found is None:
            break
        steps += 1
        after = ShardReader(store.journal).read_with_horizon(shards)
        assert found in (before, after), nth
        assert known.read_with_horizon(shards) == after, nth
    assert steps > 20


def _at_line(nth: int, act: Callable[[], object], amid: Callable[[], object]) -> object | None:
    """Do something amid another act, at the nth line that the reader executes for that.

    Returns:
        What the act returned; None if it has no such line.
    """
    left = nth

    def look(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != readers.__file__:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                amid()
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        found = act()
    finally:
        sys.settrace(before)
    return found if left < 0 else None


def _interrupted_at(nth: int, act: Callable[[], object]) -> bool:
    """Press Ctrl-C at the nth line that the reader executes; return whether there is one.

    Where it lets the lock go, Python sees to that itself, unless a program traces it.
    """
    left = nth

    def look(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != readers.__file__:
            return None
        line = linecache.getline(readers.__file__, frame.f_lineno)
        left -= event == "line" and "with self._lock" not in line
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def asked(manager: QueueManager, commit_seq: int, name: str) -> list[Message] | str:
    """Return what a queue was, or why nobody can tell."""
    try:
        return manager.history.as_of(commit_seq).messages(name).rows()
    except (HistoryRemoved, QueueNotFound) as error:
        return str(error)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("entries_max", [past_reader.ENTRIES_MAX, 30])
def test_a_past_is_the_same_whoever_asks_and_whatever_was_asked_before(
    seed: int, entries_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_reader, "ENTRIES_MAX", entries_max)
    chance, store, clock = random.Random(seed), MemoryStore(), Clock()
    manager, asking = memory_manager(store, clock), memory_manager(store, clock)
    queues = [manager.create_queue(f"q{n}", "n long", lanes=n + 1) for n in range(3)]
    removed, told = 0, list[object]()
    for number in range(60):
        clock.advance(7_200)
        queue = chance.choice(queues)
        act = chance.choice(["send", "send", "take", "hold", "maintain", "forget"])
        if act == "send":
            queue.send([{"n": number}] * 3)
        elif act in ("maintain", "forget"):
            memory_manager(store, clock).maintain(
                transaction_seconds_max=60,
                payload_retention_days=1,
                history_retention_days=1 if act == "forget" else None,
            )
        elif batch := queue.receive(2):
            batch.accept() if act == "take" else batch.extend_lease(10)
        newest = asking.history.as_of().commit_seq
        for _ in range(2):
            commit_seq, name = chance.randint(0, newest), chance.choice(queues).name
            found = asked(asking, commit_seq, name)
            assert found == asked(memory_manager(store, clock), commit_seq, name)
            told.append(found)
            removed += isinstance(found, str) and "history begins" in found
    assert removed, "vacuous: no history was removed"
    assert sum(isinstance(found, list) and len(found) > 3 for found in told) > 10


def test_a_queues_past_is_read_once_and_then_what_was_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    manager = memory_manager(store, Clock())
    queue = manager.create_queue("q", "n long")
    sent = [queue.send([{"n": n}]).receipt.commit_seq for n in range(5)]
    find, read = store.journal.find, list[list[Entry]]()

    def counted(*wanted: EntryFilter) -> tuple[Entry, ...]:
        found = find(*wanted)
        read.append([entry for entry in found if entry.kind == POSTED])
        return found

    monkeypatch.setattr(store.journal, "find", counted)

    def numbers(commit_seq: int) -> list[int]:
        return [row["n"] for row in manager.history.as_of(commit_seq).messages("q").rows()]

    assert numbers(sent[2]) == [0, 1, 2]
    assert [len(found) for found in read] == [3], "what came later was read, too"
    assert numbers(sent[1]) == [0, 1] and numbers(sent[2]) == [0, 1, 2]
    assert numbers(sent[4]) == [0, 1, 2, 3, 4]
    assert [len(found) for found in read] == [3, 2]
    monkeypatch.setattr(past_reader, "ENTRIES_MAX", 5)
    sent.append(queue.send([{"n": 5}]).receipt.commit_seq)
    assert numbers(sent[5]) == numbers(sent[5]) == [0, 1, 2, 3, 4, 5]
    assert [len(found) for found in read] == [3, 2, 1, 6], "more was kept than may be"


def test_a_trace_reads_the_journal_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more if another transaction settled other messages of the claim."""
    store = MemoryStore()
    manager = memory_manager(store, Clock())
    queue = manager.create_queue("q", "n long")
    queue.send([{"n": n} for n in range(3)])
    first, second, third = (row["_message"]["id"] for row in queue.peek_messages(3))
    with manager.transaction("the receiver") as tx:
        queue.receive(1, transaction=tx)
    leased = queue.receive()
    with manager.transaction("another") as tx:
        leased.accept(matching=leased.messages()[:1], transaction=tx)
    find, asked = store.journal.find, list[int]()

    def counted(*wanted: EntryFilter) -> tuple[Entry, ...]:
        asked.append(len(wanted))
        return find(*wanted)

    monkeypatch.setattr(store.journal, "find", counted)
    for message_id, times, last in (
        (first, 3, ("accepted", "the receiver", "committed")),
        (second, 3, ("accepted", "another", "committed")),
        (third, 4, ("claimed", None, None)),
    ):
        asked.clear()
        path = manager.history.trace(message_id).rows()
        assert len(asked) == times, message_id
        assert tuple(path[-1][name] for name in ("step", "transaction_id", "decision")) == last


def test_what_was_removed_since_the_last_question_is_no_part_of_the_next_answer() -> None:
    store, clock = MemoryStore(), Clock()
    working, asking = memory_manager(store, clock), memory_manager(store, clock)
    queue = working.create_queue("q", "n long")
    sent = queue.send([{"n": 1}]).receipt.commit_seq
    assert len(asking.history.as_of(sent).messages("q").rows()) == 1
    for _ in range(8):  # its claim is removed, and so is all else about it
        queue.receive(1).accept()
        queue.send([{"n": 2}])
        clock.advance(86_400)
        working.maintain(
            transaction_seconds_max=60, payload_retention_days=2, history_retention_days=2
        )
    assert working.history.horizon() > sent, "vacuous: nothing was removed"
    (left,) = asking.history.as_of().messages("q").rows()
    assert left["n"] == 2


def test_a_state_of_before_a_removal_is_refused_though_a_later_one_was_asked_for() -> None:
    store, clock = MemoryStore(), Clock()
    manager = memory_manager(store, clock)
    queue = manager.create_queue("q", "n long")
    queue.send([{"n": 1}])
    before, beside = manager.history.as_of(), manager.history.as_of()
    for _ in range(8):
        queue.receive(1).accept()
        queue.send([{"n": 2}])
        clock.advance(86_400)
        manager.maintain(
            transaction_seconds_max=60, payload_retention_days=2, history_retention_days=2
        )
    with pytest.raises(HistoryRemoved):
        beside.messages("q").rows()
    assert len(manager.history.as_of().messages("q").rows()) == 1
    with pytest.raises(HistoryRemoved):
        before.messages("q").rows()
