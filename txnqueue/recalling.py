"""Read what the journal says, and what it said before it left for the archive.

An entry is copied into the archive before it leaves the journal. So the journal is read
first and the archive after it: what is moved in between is found there.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnqueue import model
from txnqueue.journal import Journal, Reading
from txnqueue.model import Entry
from txnqueue.store import Store


def everything(store: Store, upto: int | None = None) -> Reading:
    """Read every entry that there ever was, as far as the history reaches back.

    Args:
        store: The store.
        upto: Leave out everything after this version.
    """
    reading = store.journal.read_all()
    entries = reading.entries
    if model.horizon(entries) >= 0:
        entries = distinct((*entries, *store.journal.archive.read()))
    last = reading.version if upto is None else upto
    return Reading(tuple(e for e in entries if e.version <= last), last)


def of_append(store: Store, append_id: str, shard: str) -> list[Entry]:
    """Read the entries that one append wrote into a shard."""
    journal = store.journal
    found = _and_fence(journal, shard)
    if model.horizon(found) >= 0:
        found = distinct((*found, *journal.archive.read(append_ids=[append_id])))
    return [e for e in found if e.append_id == append_id and e.shard == shard]


def of_shard(store: Store, shard: str, prefix: str) -> list[Entry]:
    """Read the entries of a shard whose streams' names begin alike."""
    journal = store.journal
    found = _and_fence(journal, shard)
    if model.horizon(found) >= 0:
        found = distinct((*found, *journal.archive.read(stream_prefix=prefix)))
    return [e for e in found if e.shard == shard and e.stream.startswith(prefix)]


def distinct(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Take each entry once: one that is being moved stands in both tables."""
    return tuple({entry.entry_id: entry for entry in entries}.values())


def _and_fence(journal: Journal, shard: str) -> tuple[Entry, ...]:
    return journal.read({shard, model.FENCE}).entries
