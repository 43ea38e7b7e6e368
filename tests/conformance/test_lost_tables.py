"""A store that has lost one of its tables is refused, and not continued as another one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import SCHEMA, World, rows
from tests.faults.world import Unmade
from tests.inside import client_of
from txnqueue.core.receipt import Status
from txnqueue.errors import StoreCorrupt
from txnqueue.storage.journal.memory import MemoryArchive, MemoryJournal

DAY = 24 * 3600
AT_ONCE: dict[str, Any] = {"transaction_seconds_max": 0, "vacuum": False}


class Losing(Unmade):
    """A store in memory that can lose its tables, as one on a disk."""

    def lose_journal(self) -> None:
        """Leave only the archive and the payload."""
        archive, self.journal, self.made = self.journal.archive, MemoryJournal(), False
        self.journal.archive, archive._journal = archive, self.journal

    def lose_archive(self) -> None:
        """Leave only the journal and the payload."""
        self.journal.archive = MemoryArchive(self.journal)


def maintained() -> World:
    """A store in which a transaction has left the journal."""
    world = World(Losing())
    queue = world.queue(lanes=1)
    with world.manager().transaction(transaction_id="load/1") as tx:
        tx.queue(queue.name).send(rows(1))
    queue.receive(1).accept()
    world.clock.advance(2 * DAY)
    assert world.manager("keeper").maintain(**AT_ONCE).archived
    assert world.manager("b").outcome("load/1").status is Status.COMMITTED
    return world


def test_no_journal_is_made_beside_the_archive_of_a_lost_one() -> None:
    world = maintained()
    name = world.manager().list_queues()[0]
    world.store.lose_journal()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"journal' is missing.*empty root"):
            world.manager("b").create_queue(name, SCHEMA, dead_letter=False, exist_ok=True)
        assert not world.store.exists()
    with pytest.raises(StoreCorrupt, match=r"journal' is missing"):
        world.manager("b").create_exchange(world.name("news"), "topic", schema=SCHEMA)


def test_a_store_is_made_beside_an_archive_without_entries() -> None:
    """As an interrupted creation of one of its views may leave it."""
    world = World(Losing())
    world.store.journal.archive.create()
    assert world.queue().depth() == 0


def test_a_store_that_another_makes_and_maintains_meanwhile_is_used() -> None:
    world = maintained()
    name, late, store = world.manager().list_queues()[0], world.manager("b"), world.store
    exists, asked = store.exists, list[str]()

    def not_yet() -> bool:
        store.exists = exists
        asked.append("exists")
        return False

    store.exists = not_yet
    late.create_queue(name, SCHEMA, dead_letter=False, exist_ok=True).send(rows(2))
    assert asked == ["exists"] and world.manager().queue(name).depth() == 1


def test_a_maintenance_does_not_make_a_lost_archive_anew() -> None:
    world = maintained()
    name = world.manager().list_queues()[0]
    archive = world.store.journal.archive
    world.store.lose_archive()
    world.manager().queue(name).send(rows(2))
    world.manager().queue(name).receive(1).accept()
    for days in range(3):
        with pytest.raises(StoreCorrupt, match="archive' is missing"):
            world.manager("keeper").maintain(dry_run=days == 2, **AT_ONCE)
        with pytest.raises(StoreCorrupt, match="archive' is missing"):
            world.manager("b").outcome("load/1")
        world.clock.advance(DAY)
    world.store.journal.archive = archive
    assert world.manager("keeper").maintain(**AT_ONCE).archived
    assert world.manager("b").outcome("load/1").status is Status.COMMITTED


def test_an_archive_of_another_journal_is_not_taken_over() -> None:
    world = maintained()
    archive = world.store.journal.archive
    other = World(Losing())
    queue = other.queue()
    archive._journal, other.store.journal.archive = other.store.journal, archive
    kept = dict(archive.kept)
    queue.send(rows(1))
    queue.receive(1).accept()
    other.clock.advance(2 * DAY)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"archive' holds entries"):
            other.manager("keeper").maintain(**AT_ONCE)
    assert archive.kept == kept
    assert other.manager("b").outcome("load/1").status is not Status.COMMITTED


def test_the_first_maintenance_may_be_done_by_another_meanwhile() -> None:
    world = World(Losing())
    queue = world.queue(lanes=1)
    queue.send(rows(1))
    queue.receive(1).accept()
    world.clock.advance(2 * DAY)
    keeper, other = world.manager("keeper"), world.manager("other")
    archive: Any = client_of(keeper).store.journal.archive
    exists = archive.exists

    def too_late() -> bool:
        archive.exists = exists
        assert other.maintain(**AT_ONCE).archived
        return bool(exists())

    archive.exists = too_late
    keeper.maintain(**AT_ONCE)
    assert archive.kept
