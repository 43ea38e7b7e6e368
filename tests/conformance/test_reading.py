"""A question reads what it is about, and both stores agree on what that is."""

from __future__ import annotations

import dataclasses
import importlib
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, on_delta_when_long, rows
from tests.faults import bulk
from tests.faults.pasts import everything
from tests.inside import client_of
from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import QueueNotFound
from txnqueue.reports import verification
from txnqueue.storage.journal import Audit, EntryFilter, Newest, Order
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import memory_manager

AT_ONCE: dict[str, Any] = {
    "transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False,
}  # fmt: skip


class Counted:
    """A journal, or its archive, that counts the entries which it hands over."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.entries = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find(self, *wanted: Any) -> Any:
        return self._count(self._inner.find(*wanted))

    def stream(self, *how: Any) -> Any:
        for entry in self._inner.stream(*how):
            self.entries += 1
            yield entry

    def read(self, *args: Any, **wanted: Any) -> Any:
        found = self._inner.read(*args, **wanted)
        self._count(getattr(found, "entries", found))
        return found

    def read_all(self, *args: Any) -> Any:
        found = self._inner.read_all(*args)
        self._count(found.entries)
        return found

    def _count(self, found: Any) -> Any:
        self.entries += len(found)
        return found


def brought(store: MemoryStore, ask: Any, *about: Any) -> tuple[int, Any]:
    """Count what a fresh driver's question brings, beside what opening the store does."""
    counted: Any = MemoryStore()
    vars(counted).update(vars(store))
    journal: Any = Counted(store.journal)
    counted.journal = journal
    journal.archive = archive = Counted(store.journal.archive)
    manager = memory_manager(counted, name="asking")
    manager.list_queues()
    journal.entries = archive.entries = 0
    answer = ask(manager, *about)
    return journal.entries + archive.entries, answer


def a_long_store(rounds: int, queues: int = 100) -> tuple[MemoryStore, str, list[int]]:
    """Make a store of many queues, half of whose past is in the archive."""
    store = MemoryStore()
    manager = memory_manager(store)
    made = [manager.create_queue(f"q{n}", "n long", dead_letter=False) for n in range(queues)]
    for start in (0, rounds // 2):
        for queue in made:
            numbers = range(start, start + rounds // 2)
            send_id = "shared" if queue.name == "q8" else f"s/{queue.name}"
            bulk.append_rounds(store.journal, queue.info.queue_id, send_id, numbers)
        if not start:
            manager.maintain(**AT_ONCE)
            journal, archive = store.journal, store.journal.archive
            old = [e for e in journal.read_all().entries if e.queue_id and e.shard != "catalog"]
            archive.add(old, "2024-01-01", {})
            journal.remove(old, "2024-01-01", {})
    special = manager.queue("q7")
    receipt = special.send(rows_of(1, 2)).receipt
    message_id = special.peek_messages()[0]["_message"]["id"]
    batch = special.receive(1)
    batch.release()
    special.receive(1).accept()
    return store, message_id, [receipt.commit_seq]


def rows_of(*numbers: int) -> list[dict[str, int]]:
    return [{"n": n} for n in numbers]


QUESTIONS = {
    "messages of a queue": lambda m, _, then: m.history.as_of(then).messages("q7").rows(),
    "messages of a queue now": lambda m, _, then: m.history.as_of().messages("q7").rows(),
    "changes of a queue": lambda m, _, then: m.history.changes(queue="q7").rows(),
    "changes lately": lambda m, _, then: m.history.changes(then - 1).rows(),
    "trace": lambda m, one, _: m.history.trace(one).rows(),
    "trace of one of a send's messages": lambda m, *_: m.history.trace("shared:1").rows(),
}


def test_a_question_brings_what_it_is_about_of_a_long_history() -> None:
    counts: dict[str, list[int]] = {name: [] for name in QUESTIONS}
    for rounds in (4, 12):
        store, message_id, (then,) = a_long_store(rounds)
        queue_id = memory_manager(store).queue("q7").info.queue_id
        known = everything(store)
        told = sum(entry.queue_id == queue_id for entry in known)
        aside = sum(e.shard in (model.CATALOG, model.FENCE) for e in known)
        for name, ask in QUESTIONS.items():
            found, answer = brought(store, ask, message_id, then)
            assert len(answer) > 0, name
            own = 0 if name.startswith("trace") or name == "changes lately" else told
            assert found <= own + 6 * aside + 40, f"{name}: {found} of {len(known)}"
            counts[name].append(found - own)
    for name, (short, long) in counts.items():
        assert long <= short + 5, f"{name} brings more of what it is not about: {short}, {long}"


@on_delta_when_long
def test_changes_of_a_queue_are_those_of_all_queues_that_had_its_name(world: World) -> None:
    first, other = world.queue(), world.queue("other")
    first.send(rows(1))
    other.send(rows(2))
    first.receive(1).accept()
    first.drop()
    assert world.queue().name == first.name
    world.open(first, "c").send(rows(3))
    history = world.manager("b").history
    listed = history.changes(queue=first.name).rows()
    assert {row["queue"] for row in listed} == {first.name}
    of_all = [row for row in history.changes().rows() if row["queue"] == first.name]
    assert listed == of_all
    assert [row["kind"] for row in listed].count("posted") == 2
    with pytest.raises(QueueNotFound):
        history.changes(queue=world.name("never")).rows()


def worked(world: World) -> Any:
    """Make a store in which every field of a filter has something to find."""
    manager = world.manager()
    queue = manager.create_queue("orders", "n long, key string", lanes=2)
    queue.send(rows(1, 2, 3))
    queue.receive(2).release()
    with manager.transaction("named") as tx:
        tx.queue("orders").receive(1)
    batch = queue.receive(2, lease_seconds=1)
    assert len(batch)
    manager.maintain(**AT_ONCE)
    world.clock.advance(100_000)
    world.manager("b").queue("orders").receive(3)
    queue.send(rows(4))
    return client_of(manager).store.journal


def filters(entries: tuple[Entry, ...]) -> Iterator[EntryFilter]:
    """Write filters of each field, that let through some entries and not others."""
    posted = next(e for e in entries if e.kind == model.POSTED)
    claim = next(e for e in entries if e.kind == model.CLAIMED)
    taken = next((e for e in entries if e.body.get("supersedes")), claim)
    middle = sorted(e.commit_seq for e in entries)[len(entries) // 2]
    quoted = 'it\'s \\ "quoted" – ü'
    yield EntryFilter()
    yield EntryFilter(shards=[posted.shard, quoted])
    yield EntryFilter(shards=[])
    yield EntryFilter(streams=[claim.stream])
    yield EntryFilter(kinds=[model.POSTED, model.CLAIMED])
    yield EntryFilter(append_ids=[posted.append_id, quoted])
    yield EntryFilter(attempts=[posted.attempt or ""])
    yield EntryFilter(queue_ids=[claim.queue_id or ""])
    yield EntryFilter(kinds=[model.POSTED], sends=[posted.body["send"], quoted])
    yield EntryFilter(naming=[posted.append_id])
    yield EntryFilter(kinds=[model.CLAIMED], offsets=[2, 77])
    yield EntryFilter(kinds=[model.POSTED], offsets=[])
    yield EntryFilter(shards=[claim.shard], claims=[claim.sequence or 0])
    yield EntryFilter(shards=[taken.shard], claims=[*taken.body["supersedes"], 1])
    yield EntryFilter(after=middle)
    yield EntryFilter(upto=middle)
    yield EntryFilter(upto=-1)
    yield EntryFilter(recorded_upto_ms=posted.recorded_at_ms)


def test_both_stores_find_stream_and_measure_what_a_filter_lets_through(
    alone: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.storage.journal import selection

    monkeypatch.setattr(selection, "PART_ROWS", 5)
    monkeypatch.setattr(selection, "PIECE_ROWS", 3)
    journal = worked(alone)
    there = journal.read_all().entries
    assert any(entry.body.get("supersedes") for entry in there)
    meant = list(filters(there))
    in_turn = [*meant[:1], meant[4], meant[14]] if alone.has_frames else meant
    for wanted in meant:
        meant_here = {e.entry_id: e for e in there if wanted.matches(e)}
        assert {e.entry_id: e for e in journal.find(wanted)} == meant_here, wanted
    either = journal.find(meant[1], meant[5])
    assert {e.entry_id for e in either} == {
        e.entry_id for e in there if meant[1].matches(e) or meant[5].matches(e)
    }
    for wanted in in_turn:
        right = [e for e in there if wanted.matches(e)]
        for order in Order:
            assert list(journal.stream(order, wanted)) == sorted(right, key=order.key), wanted
        newest = journal.newest(wanted)
        places = [(e.commit_seq, e.recorded_at_ms) for e in right]
        assert (newest.commit_seq, newest.recorded_at_ms) == max(places, default=(-1, -1))
        assert newest.latest_ms == max((e.recorded_at_ms for e in right), default=-1)
    assert journal.newest(meant[2]) == Newest()
    archive = journal.archive
    old = [e for e in there if e.kind in (model.CLAIMED, model.RELEASED)]
    archive.add(old, "2024-01-01", {})
    archive.add(old[:1], "2024-01-02", {})
    kept = archive.find(meant[0])
    assert {e.entry_id for e in kept} >= {e.entry_id for e in old}
    for wanted in (meant[9], meant[14]):
        assert set(_ids(archive.find(wanted))) == set(_ids(filter(wanted.matches, kept)))
    assert set(_ids(archive.stream(Order.STREAM, meant[0]))) == set(_ids(kept))
    assert archive.newest(meant[0]).commit_seq == max(e.commit_seq for e in kept)
    told = _ids(Past(client_of(alone.manager("c")).store).stream(Order.COMMIT))
    assert len(told) == len(set(told)), "what stands in both tables comes once"
    assert set(told) == {*_ids(there), *_ids(kept)}


def _ids(entries: Iterable[Entry]) -> list[model.PositionId]:
    return [entry.entry_id for entry in entries]


class Rounds(Past):
    """So many rounds of one queue, made when they are asked for."""

    def __init__(self, store: Any, queue_id: str, rounds: int) -> None:
        super().__init__(store)
        self._queue_id, self._rounds = queue_id, rounds

    def stream(self, order: Order, after: int = -1) -> Iterator[Entry]:
        assert after == -1, "these rounds are read whole"
        return self._rounds_by_commit() if order is Order.COMMIT else self._rounds_by_stream()

    def placed(self, order: Order, wanted: EntryFilter) -> Iterator[tuple[Entry, bool]]:
        return ((entry, True) for entry in chain(self.catalog(), self.stream(order)))

    def _rounds_by_commit(self) -> Iterator[Entry]:
        for number in range(self._rounds):
            for n, entry in enumerate(bulk.a_round(self._queue_id, "s", number)):
                yield dataclasses.replace(entry, version=4 * number + max(n, 1))

    def _rounds_by_stream(self) -> Iterator[Entry]:
        for n in range(bulk.ENTRIES):
            for number in range(self._rounds):
                found = bulk.a_round(self._queue_id, "s", number)
                if n < 2:
                    yield found[n]
                elif n == 2:
                    yield from found[2:]


def test_what_verify_remembers_does_not_grow_with_the_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "ENTRIES_MAX", 200)
    manager = memory_manager()
    queue_id = manager.create_queue("q", "n long", dead_letter=False).info.queue_id
    peaks = []
    importlib.import_module("pyarrow.compute")  # what it holds is not of the history
    for rounds in (100, 1_000):
        past = Rounds(client_of(manager).store, queue_id, rounds)
        audit = Audit(0, bulk.ENTRIES * rounds, 0, 0, 0, 0)
        tracemalloc.start()
        proof = verification._checked(client_of(manager), past).compared(audit, past.beginning)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert proof.ok, proof
        assert proof.claims[0].found == rounds, "every round was looked at"
    # Of a commit it keeps 24 bytes, and garbage waits to be collected; entries would be megabytes.
    assert peaks[1] < 1.5 * peaks[0] + 300_000, peaks


@in_memory
def test_a_proof_says_from_which_version_on_the_log_was_compared(world: World) -> None:
    world.queue().send(rows(1))
    proof = world.manager("b").history.verify()
    assert proof.log_from_version == 0 and "from version 0 on" in str(proof)
    journal = client_of(world.manager("b")).store.journal
    plain = journal.audit

    def since(version: int, inserted: int) -> Any:
        return lambda upto, beginning=-1: dataclasses.replace(
            plain(upto, beginning), since=version, inserted=inserted
        )

    newest = journal.version()
    lately = sum(entry.version == newest for entry in everything(world.store))
    journal.audit = since(newest, lately)
    proof = world.manager("b").history.verify()
    assert proof.ok and f"from version {newest} on" in str(proof)
    journal.audit = since(newest, lately - 1)
    assert not world.manager("b").history.verify().ok, "a part of the log is compared as well"
    journal.audit = since(newest + 1, 0)
    proof = world.manager("b").history.verify()
    assert proof.ok and "could not be compared" in str(proof)


@in_memory
def test_a_question_reads_on_where_the_last_one_ended_in_the_fence(world: World) -> None:
    queue, asks = world.queue(), world.manager("b")
    then = queue.send(rows(1, 2)).receipt.commit_seq
    asks.history.as_of(then).messages(queue.name).rows()
    journal, read = client_of(asks).store.journal, list[int]()
    plain = journal.read

    def recorded(shards: Any, after: int = -1, upto: Any = None) -> Any:
        read.append(after)
        return plain(shards, after, upto)

    journal.read = recorded
    assert len(asks.history.as_of(then).messages(queue.name).rows()) == 2
    assert read and min(read) >= 0, read
