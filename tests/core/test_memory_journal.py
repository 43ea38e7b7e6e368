"""The journal in memory: what others append while it reads."""

from __future__ import annotations

from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.storage.journal.memory import MemoryJournal


def test_all_entries_are_one_cut_though_a_shard_begins_while_they_are_read() -> None:
    journal = MemoryJournal()

    def appended(shard: str) -> None:
        entry = Entry(shard, "lane/0", model.CLAIMED, sequence=1)
        journal.append([Unit.of(f"to {shard}", (entry,), ())], {})

    def others(step: str) -> None:
        if step == "read" and journal.known_version() < 2:
            appended("lane/q/1")

    appended("lane/q/0")
    journal.step = others
    reading = journal.read_all()
    assert (reading.version, [entry.version for entry in reading.entries]) == (2, [1, 2])
