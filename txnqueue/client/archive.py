"""Read what the journal says, and what it said before it left for the archive.

An entry is copied into the archive before it leaves the journal. So the journal is read
first and the archive after it: what is moved in between is found there. That something is
removed from the archive is said in the journal before: so whether what is missing may have
been removed is read last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import HistoryRemoved
from txnqueue.storage.journal import Journal
from txnqueue.storage.store import Store


@dataclass(frozen=True, slots=True)
class Past:
    """Everything that is known of a store, up to a version of its journal.

    Attributes:
        entries: The entries.
        version: The version.
        beginning: From this version on they are all there; -1: none was ever removed. Of what
            is older there is what matters to a message that is known.
    """

    entries: tuple[Entry, ...]
    version: int
    beginning: int = -1

    def check_known(self, commit_seq: int) -> None:
        """Check that the history reaches back to a commit.

        Raises:
            HistoryRemoved: It does not.
        """
        if self.beginning >= 0 and commit_seq < model.commit_seq(self.beginning):
            raise removed(f"commit_seq={commit_seq} is not known any more", self.beginning)


def everything(store: Store, upto: int | None = None) -> Past:
    """Read every entry that there is, as far as the history reaches back.

    Args:
        store: The store.
        upto: Leave out everything after this version.
    """
    while True:
        reading = store.journal.read_all()
        entries, beginning = reading.entries, -1
        if model.horizon(entries) >= 0:
            archived = decided(store.journal.archive.read(), entries)
            entries = distinct((*entries, *archived))
            beginning = beginning_of(store.journal)
            entries = known(entries, beginning)
        if beginning <= reading.version:  # else it was removed while we read
            break
    last = reading.version if upto is None else upto
    return Past(tuple(e for e in entries if e.version <= last), last, beginning)


def known(entries: tuple[Entry, ...], beginning: int) -> tuple[Entry, ...]:
    """Leave out what entries from before the beginning say of positions that were removed (pure).

    A claim may hold messages of several positions, and one of them may be known for longer
    than another.
    """
    if beginning < 0:
        return entries
    posted = {entry.entry_id for entry in entries if entry.kind == model.POSTED}
    found: list[Entry] = []
    for entry in entries:
        old = entry.version < beginning
        if old and (entry.is_removal or entry.kind in (model.CLAIMED, model.PURGE_PENDING)):
            items = model.unpack_items(entry)
            left = [item for item in items if item[0] in posted]
            if not left and not entry.body.get("supersedes"):
                continue
            if len(left) < len(items):
                listed, ranges, _ = model.pack_items(left)
                entry = replace(entry, ranges=ranges, body={**entry.body, "items": listed})
        found.append(entry)
    return tuple(found)


def decided(archived: Iterable[Entry], here: Iterable[Entry]) -> list[Entry]:
    """Leave out what was prepared and lacks its decision: that was removed before it (pure).

    What is prepared and undecided never leaves the journal.
    """
    found = list(archived)
    attempts = {e.attempt for e in (*found, *here) if e.kind in model.DECISIONS}
    return [e for e in found if e.kind != model.PREPARED or e.attempt in attempts]


def beginning_of(journal: Journal) -> int:
    """Read from which version on the history is whole; -1 if nothing was ever removed."""
    return model.beginning(journal.read([model.FENCE]).entries)


def decisions_beginning_of(journal: Journal) -> int:
    """Read from which version on all decisions are known; -1 if none was ever removed."""
    return model.decisions_beginning(journal.read([model.FENCE]).entries)


def removed(what: str, beginning: int) -> HistoryRemoved:
    """Say of something that it lies before the beginning of the history."""
    first = model.commit_seq(beginning)
    return HistoryRemoved(
        f"{what}: the history begins at commit_seq {first}; "
        "maintain(history_retention_days=) says for how long it is kept.",
        commit_seq=first,
    )


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
