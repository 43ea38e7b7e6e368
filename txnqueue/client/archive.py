"""Read what the journal says, and what it said before it left for the archive.

An entry is copied into the archive before it leaves the journal. So the journal is read
first and the archive after it: what is moved in between is found there. That something is
removed from the archive is said in the journal before: so whether what is missing may have
been removed is read last.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import HistoryRemoved
from txnqueue.storage.journal import EntryFilter, Journal, Newest, Order
from txnqueue.storage.store import Store

_Name = TypeVar("_Name", str, int)
NAMES_MAX = 1_000
"""How many ids one filter names at most."""


class Past:
    """What is known of a store up to a commit; read as far as it is asked for.

    Attributes:
        version: The newest version that belongs to it.
        upto: The last commit_seq that belongs to it.
        beginning: From this version on all entries are there; -1: none was ever removed. Of what
            is older there is what matters to a message that is known.
    """

    _needed = sys.maxsize
    """From this commit_seq on everything was asked for: it must still be known when it is read."""

    def __init__(self, store: Store, upto: int | None = None) -> None:
        """Look how far the history reaches.

        Args:
            store: The store.
            upto: Leave out everything after this commit_seq.
        """
        self._store = store
        self._archived = False
        newest = store.journal.version() if upto is None else upto >> 10
        self.version = newest
        self.upto = model.commit_seq(newest + 1) - 1 if upto is None else upto
        self._refresh(store.journal.read([model.FENCE]).entries)

    def check_known(self, commit_seq: int) -> None:
        """Check that the history reaches back to a commit, now and whenever anything is read.

        Raises:
            HistoryRemoved: It does not.
        """
        if self.beginning >= 0 and commit_seq < model.commit_seq(self.beginning):
            raise removed(f"commit_seq={commit_seq} is not known any more", self.beginning)
        self._needed = min(self._needed, commit_seq)

    def horizon(self) -> int:
        """Read how far the horizon had advanced; -1 if no decision can be missing."""
        if self.beginning < 0:
            return -1
        advanced = EntryFilter(shards=[model.FENCE], kinds=[model.HORIZON_ADVANCED])
        return model.horizon(self.find(advanced))

    def catalog(self) -> list[Entry]:
        """Read what the catalog says; nothing of it ever leaves the journal."""
        return sorted(
            self._store.journal.find(self._narrowed(EntryFilter(shards=[model.CATALOG]))),
            key=Order.COMMIT.key,
        )

    def find(self, *wanted: EntryFilter) -> list[Entry]:
        """Read the entries that one of some filters lets through, in commit order.

        What entries from before the beginning say of positions that were removed is ``known``
        only to a caller that has the positions.

        Raises:
            HistoryRemoved: What it would need was removed meanwhile.
        """
        journal, narrowed = self._store.journal, [self._narrowed(one) for one in wanted]
        while True:
            found: tuple[Entry, ...] = journal.find(*narrowed)
            if self._has_archive():
                found = model.each_once((*found, *journal.archive.find(*narrowed)))
            if not self._has_moved():
                return list(self._decided(sorted(found, key=Order.COMMIT.key)))

    def stream(self, order: Order, after: int = -1) -> Iterator[Entry]:
        """Read all entries after a commit in an order, a bounded part at a time.

        In commit order, where positions come before what names them, it leaves out what older
        entries say of positions that were removed.

        Raises:
            HistoryRemoved: What it would need was removed meanwhile.
        """
        narrowed = self._narrowed(EntryFilter(after=after))
        while True:
            found = _opened(self._store.journal.stream(order, narrowed))
            if self._has_archive():
                archived = _opened(self._store.journal.archive.stream(order, narrowed))
                found = _once(heapq.merge(found, archived, key=order.key))
            if not self._has_moved():
                break
        told = self._decided(found)
        return known(told, self.beginning) if order is Order.COMMIT else told

    def newest(self, wanted: EntryFilter | None = None) -> Newest:
        """Find how far the entries reach, without reading them."""
        narrowed = self._narrowed(wanted or EntryFilter())
        here = self._store.journal.newest(narrowed)
        if not self._has_archive():
            return here
        there = self._store.journal.archive.newest(narrowed)
        return Newest(
            max(here.commit_seq, there.commit_seq), max(here.recorded_at_ms, there.recorded_at_ms)
        )

    def archived_ahead(self) -> int | None:
        """Find the newest archived commit if the journal does not reach so far; None if it does.

        So it is in a copy of a store whose archive was copied after a maintenance, and whose
        journal before it.
        """
        journal = self._store.journal
        try:
            newest = journal.archive.newest(EntryFilter()).commit_seq
        except Exception:
            if self._has_archive():
                raise
            return None
        return newest if newest >> 10 > journal.version() else None

    def _narrowed(self, wanted: EntryFilter) -> EntryFilter:
        upto = self.upto if wanted.upto is None else min(self.upto, wanted.upto)
        return replace(wanted, upto=upto)

    def _has_archive(self) -> bool:
        """Look whether anything can have left the journal by now."""
        if not self._archived:
            self._archived = model.horizon(self._store.journal.read([model.FENCE]).entries) >= 0
        return self._archived

    def _refresh(self, fence: Collection[Entry]) -> None:
        self.beginning = model.beginning(fence)
        self._decisions_from = model.decisions_beginning(fence)
        self._archived = model.horizon(fence) >= 0

    def _has_moved(self) -> bool:
        """Look whether the history begins later than when it was last looked at.

        Raises:
            HistoryRemoved: It begins behind the last commit that belongs to this, or behind one
                that was asked for.
        """
        before = self.beginning
        if self._archived:
            self._refresh(self._store.journal.read([model.FENCE]).entries)
            self.check_known(min(self.upto, self._needed))
        return self.beginning != before

    def _decided(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Leave out what was prepared and lacks its decision: that was removed before it.

        What is prepared and undecided never leaves the journal. Only versions before 0.2 removed
        decisions.
        """
        if self._decisions_from < 0:
            return iter(entries)
        archive, attempts = self._store.journal.archive, set[str | None]()
        old = archive.find(EntryFilter(kinds=[model.PREPARED]))
        for names in portions({entry.attempt or "" for entry in old}):
            meant = EntryFilter(kinds=model.DECISIONS, attempts=names)
            decisions = (*self._store.journal.find(meant), *archive.find(meant))
            attempts.update(entry.attempt for entry in decisions)
        lost = {entry.entry_id for entry in old if entry.attempt not in attempts}
        return (entry for entry in entries if entry.entry_id not in lost)


def known(entries: Iterable[Entry], beginning: int) -> Iterator[Entry]:
    """Leave out what entries from before the beginning say of positions that were removed (pure).

    A claim may hold messages of several positions, and one of them may be known for longer
    than another.

    Args:
        entries: Entries in commit order, with the positions that they name.
        beginning: The version from which on all entries are there.
    """
    posted: set[model.PositionId] = set()
    for entry in entries:
        if entry.version < beginning:
            if entry.kind == model.POSTED:
                posted.add(entry.entry_id)
            elif entry.is_removal or entry.kind in (model.CLAIMED, model.PURGE_PENDING):
                items = model.unpack_items(entry)
                left = [item for item in items if item[0] in posted]
                if not left and not entry.body.get("supersedes"):
                    continue
                if len(left) < len(items):
                    listed, ranges, _ = model.pack_items(left)
                    entry = replace(entry, ranges=ranges, body={**entry.body, "items": listed})
        yield entry


def decided(archived: Iterable[Entry], here: Iterable[Entry]) -> list[Entry]:
    """Leave out what was prepared and lacks its decision: that was removed before it (pure).

    What is prepared and undecided never leaves the journal.
    """
    found = list(archived)
    attempts = {e.attempt for e in (*found, *here) if e.kind in model.DECISIONS}
    return [e for e in found if e.kind != model.PREPARED or e.attempt in attempts]


def of_lane(queue_id: str, lane: int) -> EntryFilter:
    """Mean what lies in a lane's dispatch log, and in the queue's backlog of that lane."""
    shards = (model.lane_shard(queue_id, lane), model.backlog_shard(queue_id))
    return EntryFilter(shards=shards, streams=[model.lane_stream(lane)])


def of_lanes(queue_id: str, lanes: int) -> EntryFilter:
    """Mean what lies in a queue's dispatch logs, and in its backlog."""
    shards = [model.lane_shard(queue_id, lane) for lane in range(lanes)]
    return EntryFilter(shards=[*shards, model.backlog_shard(queue_id)])


def of_fence(queue_id: str) -> EntryFilter:
    """Mean what the fence says of a queue: that it is closing, and that it was dropped."""
    return EntryFilter(shards=[model.FENCE], streams=[model.queue_stream(queue_id)])


def of_messages(past: Past, messages: Collection[tuple[str, int]]) -> list[Entry]:
    """Read what concerns some messages, wherever they went, in commit order.

    First where they were posted; then what names them there; then what is about the claims that
    held them, and what was decided of all of those.

    Args:
        past: What is known.
        messages: A send id and an offset of each; at most a thousand.
    """
    offsets = {offset for _, offset in messages}
    wanted = EntryFilter(
        kinds=[model.POSTED], sends={send_id for send_id, _ in messages}, offsets=offsets
    )
    found = past.find(wanted) if messages else []
    lanes: dict[tuple[str, int], set[str]] = {}
    for entry in found:
        lanes.setdefault((entry.queue_id or "", entry.lane or 0), set()).add(entry.append_id)
    naming = [
        replace(of_lane(*lane), naming=names, offsets=offsets)
        for lane, append_ids in lanes.items()
        for names in portions(append_ids)
    ]
    found += past.find(*naming) if naming else []
    claims: dict[tuple[str, int], set[int]] = {}
    for entry in found:
        if entry.kind == model.CLAIMED:
            claims.setdefault((entry.queue_id or "", entry.lane or 0), set()).add(
                entry.sequence or 0
            )
    about = [
        replace(of_lane(*lane), claims=numbers)
        for lane, sequences in claims.items()
        for numbers in portions(sequences)
    ]
    about += [of_fence(queue_id) for queue_id in sorted({queue_id for queue_id, _ in lanes})]
    found += past.find(*about) if lanes else []
    found += _of_attempts(past, found)
    found += past.catalog()
    return sorted(model.each_once(found), key=Order.COMMIT.key)


def _of_attempts(past: Past, entries: Iterable[Entry]) -> list[Entry]:
    """Read what was decided of the attempts that wrote some entries, tables included."""
    attempts = {e.attempt: e.transaction_key or "" for e in entries if e.attempt is not None}
    wanted = []
    for names in portions(attempts):
        keys = {attempts[name] for name in names}
        shards = {model.transaction_shard(key) for key in keys}
        wanted += [
            EntryFilter(shards=shards, streams=keys, kinds=model.DECISIONS, attempts=names),
            EntryFilter(shards=model.ALL_TABLES, kinds=[model.CHANGE_DECIDED], attempts=names),
        ]
    return past.find(*wanted) if wanted else []


def beginning_of(journal: Journal) -> int:
    """Read from which version on the history is whole; -1 if nothing was ever removed."""
    return model.beginning(journal.read([model.FENCE]).entries)


def decisions_beginning_of(journal: Journal) -> int:
    """Read from which version on all decisions are known; -1 if none was ever removed."""
    return model.decisions_beginning(journal.read([model.FENCE]).entries)


def removed(what: str, beginning: int) -> HistoryRemoved:
    """Make the error of something that lies before the beginning of the history."""
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
        found = model.each_once((*found, *journal.archive.read(append_ids=[append_id])))
    return [e for e in found if e.append_id == append_id and e.shard == shard]


def of_shard(store: Store, shard: str, prefix: str) -> list[Entry]:
    """Read the entries of a shard whose streams' names begin alike."""
    journal = store.journal
    found = _and_fence(journal, shard)
    if model.horizon(found) >= 0:
        found = model.each_once((*found, *journal.archive.read(stream_prefix=prefix)))
    return [e for e in found if e.shard == shard and e.stream.startswith(prefix)]


def _and_fence(journal: Journal, shard: str) -> tuple[Entry, ...]:
    return journal.read({shard, model.FENCE}).entries


def _opened(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Take the first of some entries, so that from now on they are those of one version."""
    return chain(list(islice(entries, 1)), entries)


def _once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Take each of some sorted entries once; copies that differ are no copies."""
    before = None
    for entry in entries:
        if entry != before:
            yield entry
        before = entry


def portions(names: Iterable[_Name]) -> Iterator[list[_Name]]:
    """Divide ids among filters."""
    left = sorted(names)
    for start in range(0, len(left), NAMES_MAX):
        yield left[start : start + NAMES_MAX]
