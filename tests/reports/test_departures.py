"""What verifying says of entries that are lost, or in the archive, where only the history looks.

The digest is the same wherever an entry is, and so is what Delta's log tells of one that was moved.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.inside import client_of
from txnqueue import HistoryDigest
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import TxnQueueError
from txnqueue.manager import QueueManager
from txnqueue.reports.consistency import Problems
from txnqueue.reports.departures import Departures
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
CLAIM = "entries that left the journal when finished"
DAY = "2000-01-01"
WINDOW: Any = {"message_id": "n", "duplicate_window_seconds": 7 * 86_400}


class Moved:
    """A store in memory that was maintained, and in which work goes on; entries can be moved."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.manager: QueueManager = memory_manager(clock=self.clock)
        self.queue = self.manager.create_queue("orders", "n long", dead_letter=False)
        self.manager.create_queue("gone", "n long", dead_letter=False).drop()
        self.queue.send([{"n": n} for n in range(3)])
        for _ in range(2):
            self.queue.receive(1).accept()
        self.maintain()
        self.queue.send([{"n": n} for n in range(3, 5)])
        self.queue.receive(1).accept()
        held = self.manager.transaction("held")
        self.queue.send([{"n": 5}], transaction=held)
        held.prepare()
        self.journal: Any = client_of(self.manager).store.journal
        self.kept: HistoryDigest = self.manager.history.digest()

    def maintain(self) -> None:
        """Archive what has finished."""
        self.clock.advance(3_600)
        assert self.manager.maintain(**AT_ONCE).archived

    def names(self) -> list[tuple[str, model.PositionId]]:
        """List the entries in the journal, by kind, in commit order."""
        found = sorted(self.journal.entries(), key=lambda entry: (*entry.place, entry.kind))
        return [(entry.kind, entry.entry_id) for entry in found]

    def away(self, kind: str, number: int) -> None:
        """Move an entry of a kind into the archive, as maintenance would if it had finished."""
        found = sorted(self.journal.entries(), key=lambda entry: entry.place)
        entry = [one for one in found if one.kind == kind][number]
        self.journal._shards[entry.shard].remove(entry)
        self.journal.archive.kept[DAY, entry.entry_id] = entry
        self.journal._removals.append((self.journal.version(), [entry]))

    def back(self, kind: str) -> None:
        """Move the entries of a kind back into the journal."""
        kept = self.journal.archive.kept
        for name, entry in list(kept.items()):
            if entry.kind == kind:
                del kept[name]
                self.journal._shards[entry.shard].append(entry)


def in_the_journal() -> Iterator[tuple[str, int]]:
    """Name every entry that the journal has, but the layout, without which there is no store."""
    seen: dict[str, int] = {}
    for kind, _ in Moved().names():
        seen[kind] = seen.get(kind, -1) + 1
        if kind != model.LAYOUT_CHANGED:
            yield kind, seen[kind]


@pytest.mark.parametrize(("kind", "number"), list(in_the_journal()))
def test_no_entry_can_be_moved_out_of_the_journal_unnoticed(kind: str, number: int) -> None:
    moved = Moved()
    assert moved.manager.history.verify(digest=moved.kept).ok
    moved.away(kind, number)
    proof = memory_again(moved).history.verify(digest=moved.kept)
    assert not proof.ok, proof
    if kind != model.HORIZON_ADVANCED:  # without it there is no archive
        assert any(f"({kind}) is needed in the journal" in one for one in proof.problems), proof


QUEUES = ["busy", "busy.dead", "empty", "empty.dead", "plain", "quiet", "quiet.dead"]


def with_quiet_queues(history_days: int | None) -> QueueManager:
    """Make a store in which some queues have long been quiet, and one has never had a message."""
    clock = Clock()
    manager = memory_manager(clock=clock)
    for name in ("busy", "quiet", "empty"):
        manager.create_queue(name, "n long", lanes=2)
    manager.create_queue("plain", "n long", dead_letter=False).send([{"n": 1}])
    quiet = manager.queue("quiet")
    for start in range(0, 12, 4):
        quiet.send([{"n": n} for n in range(start, start + 4)])
    quiet.receive(5).accept()
    quiet.receive(1)
    manager.queue("plain").receive(1).accept()
    for day in range(5):
        manager.queue("busy").send([{"n": day}])
        manager.queue("busy").receive(1).accept()
        clock.advance(86_400)
        manager.maintain(**AT_ONCE, history_retention_days=history_days)
    quiet.alter(add="key string")
    quiet.send([{"n": 12, "key": "a"}])
    return manager


@contextlib.contextmanager
def without(store: Any, lost: Entry) -> Iterator[None]:
    """Take an entry out of the journal, the archive and Delta's log, and put it back."""
    journal = store.journal
    shards, commits, removals = dict(journal._shards), journal.commits, journal._removals
    kept = journal.archive.kept

    def left(entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.entry_id != lost.entry_id]

    journal._shards.update((name, left(entries)) for name, entries in shards.items())
    journal.commits = [(tuple(left(entries)), about) for entries, about in commits]
    journal._removals = [(version, left(entries)) for version, entries in removals]
    journal.archive.kept = {n: e for n, e in kept.items() if e.entry_id != lost.entry_id}
    yield
    journal._shards.update(shards)
    journal.commits, journal._removals, journal.archive.kept = commits, removals, kept


@pytest.mark.parametrize("history_days", [None, 1])
def test_no_entry_can_be_lost_unnoticed_without_which_a_queue_cannot_be_read(
    history_days: int | None,
) -> None:
    manager = with_quiet_queues(history_days)
    store: Any = client_of(manager).store
    journal, runtime = store.journal, client_of(manager).runtime
    assert manager.history.verify().ok

    def anew() -> QueueManager:
        return QueueManager(None, "memory", store=store, runtime=runtime)

    def is_readable() -> bool:
        cold = anew()
        try:
            for name in QUEUES:
                queue = cold.queue(name)
                queue.depth()
                queue.peek_messages(100)
        except TxnQueueError:
            return False
        return True

    assert is_readable()
    needed: list[str] = []
    for entry in model.each_once([*journal.entries(), *journal.archive.kept.values()]):
        if entry.kind == model.LAYOUT_CHANGED:  # without it there is no store
            continue
        with without(store, entry):
            if not is_readable():
                needed.append(entry.kind)
                assert not anew().history.verify().ok, entry
    assert Counter(needed) == {model.QUEUE_CREATED: 5, model.POSTED: 2}


def test_positions_by_which_duplicates_are_detected_are_needed() -> None:
    """In the archive alone nobody finds them: a duplicate inside the window was delivered."""
    moved = Moved()
    queue = moved.manager.create_queue("once", "n long", dead_letter=False, **WINDOW)
    for day in range(3):
        queue.send([{"n": day}])
        queue.receive(1).accept()
        moved.clock.advance(90_000)
        moved.maintain()
    proof = memory_again(moved).history.verify()
    assert proof.ok, proof
    sends = [
        e
        for e in moved.journal.entries()
        if (e.kind, e.queue_id) == (model.POSTED, queue.info.queue_id)
    ]
    assert len(sends) == 3, "maintenance keeps them"
    for entry in sends:
        moved.journal._shards[entry.shard].remove(entry)
        moved.journal.archive.kept[DAY, entry.entry_id] = entry
    moved.journal._removals.append((moved.journal.version(), sends))
    proof = memory_again(moved).history.verify()
    assert sum("(posted) is needed in the journal" in one for one in proof.problems) == 3, proof


def test_positions_that_a_clock_that_was_ahead_let_go_are_not_missed() -> None:
    moved = Moved()
    queue = moved.manager.create_queue("once", "n long", dead_letter=False, **WINDOW)

    def work() -> None:
        for number in range(3):
            queue.send([{"n": number}])
            queue.receive(1).accept()

    work()
    moved.clock.advance(400 * 86_400)  # and back
    moved.maintain()
    moved.maintain()
    moved.clock.advance(-400 * 86_400)
    work()
    moved.maintain()
    moved.maintain()
    found = {
        e.entry_id: e for e in (*moved.journal.entries(), *moved.journal.archive.kept.values())
    }
    after = [
        entry.body["recent_after"]
        for entry in sorted(found.values(), key=lambda entry: entry.place)
        if (entry.kind, entry.queue_id) == (model.COMPACTED, queue.info.queue_id)
    ]
    assert after != sorted(after), "no clock was ahead"
    proof = memory_again(moved).history.verify()
    assert proof.ok, proof


def memory_again(moved: Moved) -> QueueManager:
    """Open the store anew: nothing is remembered."""
    store: MemoryStore = client_of(moved.manager).store  # type: ignore[assignment]
    return QueueManager(None, "memory", store=store, runtime=client_of(moved.manager).runtime)


def test_what_maintenance_moves_had_finished() -> None:
    moved = Moved()
    for _ in range(3):
        moved.queue.receive(1).accept()
        moved.maintain()
        proof = moved.manager.history.verify(digest=moved.kept)
        assert proof.ok, proof
    moved.manager.commit("held")
    other = moved.manager.create_queue("other", "n long", dead_letter=False)
    moved.maintain()
    moved.queue.drop()
    other.send([{"n": 1}])
    moved.maintain()
    proof = moved.manager.history.verify(digest=moved.kept)
    assert proof.ok, proof
    claim = next(claim for claim in proof.claims if claim.claim == CLAIM)
    assert claim.found == claim.expected > 20


def test_a_transaction_is_not_in_doubt_again() -> None:
    moved = Moved()
    moved.manager.commit("held")
    moved.queue.send([{"n": 6}])
    moved.maintain()
    assert moved.manager.history.verify().ok
    moved.back(model.PREPARED)
    proof = moved.manager.history.verify()
    assert any("(committed) is needed in the journal" in one for one in proof.problems), proof


def _of_table(kind: str, append_id: str, version: int, **body: Any) -> Entry:
    return Entry("table/0", "t", kind, append_id=append_id, attempt="a", version=version, body=body)


DECIDED = _of_table(model.CHANGE_DECIDED, "decided", 3)
APPLIED = _of_table(model.CHANGE_APPLIED, "applied", 4, change=["decided", 0])
COMMITTED = Entry(
    "transaction/0", "k", model.COMMITTED, append_id="k", attempt="a", version=3,
    body={"participants": ["ledger"]},
)  # fmt: skip
CONFIRMED = _of_table(model.BRANCH_CONFIRMED, "confirmed", 4, participant="ledger")
HORIZON = Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=9, version=5)


@pytest.mark.parametrize(
    ("here", "away", "unfinished", "right"),
    [
        ([], [DECIDED, APPLIED], [], 2),
        ([APPLIED], [DECIDED], [], 1),
        ([DECIDED], [APPLIED], [], 0),  # it would be applied again
        ([], [DECIDED], [DECIDED], 0),  # it would never be applied
        ([APPLIED], [DECIDED], [DECIDED], 1),  # applied since
        ([], [COMMITTED, CONFIRMED], [], 2),
        ([CONFIRMED], [COMMITTED], [], 1),
        ([], [COMMITTED], [], 0),  # the database would never be told
        ([], [Entry("protocol/1", "p", "x", version=1)], [], 0),
        ([], [Entry(model.CATALOG, "q", model.QUEUE_CREATED, version=1)], [], 0),
    ],
)
def test_an_entry_stays_as_long_as_another_one_needs_it(
    here: list[Entry], away: list[Entry], unfinished: list[Entry], right: int
) -> None:
    store, problems = MemoryStore(), Problems()
    for entry in (HORIZON, *here):
        store.journal._shards[entry.shard].append(entry)
    store.journal.commits += [((), {})] * 10
    store.journal.archive.create()
    store.journal.archive.kept |= {(DAY, entry.entry_id): entry for entry in away}
    departures = Departures(store, -1, problems)
    for entry in away:
        departures.see(entry)
    (claim,) = departures.claims(unfinished)
    assert (claim.found, claim.expected) == (right, len(away))
    assert len(problems.told) == len(away) - right
