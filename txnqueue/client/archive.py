"""Read the entries of the journal and of the archive.

An entry is copied into the archive before it leaves the journal. So the journal is read first and
the archive after it: an entry moved in between is found in the archive. A removal from the archive
is recorded in the journal beforehand. So whether missing entries may have been removed is read
last.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

from txnqueue.client.readers import ShardReader
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import HistoryRemoved
from txnqueue.storage import setbacks
from txnqueue.storage.journal import EntryFilter, Journal, Newest, Order
from txnqueue.storage.store import Store

_Name = TypeVar("_Name", str, int)
_Read = TypeVar("_Read")
NAMES_MAX = 1_000
"""The most ids that one filter names."""


class Past:
    """The known entries of a store up to a commit, read on demand.

    Attributes:
        version: The newest version that belongs to it.
        upto: The last commit_seq that belongs to it.
        beginning: The version from which on all entries are there; -1 if none was ever removed. Of
            older entries only those about a message that is still known are there.
    """

    _needed = sys.maxsize
    """The commit_seq from which on callers need all entries, checked again at each reading."""

    def __init__(
        self, store: Store, upto: int | None = None, shards: ShardReader | None = None
    ) -> None:
        """Read how far the history reaches.

        Args:
            store: The store.
            upto: Leave out entries after this commit_seq.
            shards: Remembers what was read of the fence and the catalog before; a new reader when
                omitted.
        """
        self._store = store
        self._shards = shards or ShardReader(store.journal)
        self._archived = False
        newest = store.journal.version() if upto is None else model.version_of(upto)
        self.version = newest
        self.upto = model.commit_seq(newest + 1) - 1 if upto is None else upto
        self._refresh()

    def check_known(self, commit_seq: int) -> None:
        """Check that the history reaches back to a commit, now and at each later reading.

        Raises:
            HistoryRemoved: The history begins later.
        """
        if self.beginning >= 0 and commit_seq < model.commit_seq(self.beginning):
            raise removed(f"commit_seq={commit_seq} is no longer known", self.beginning)
        self._needed = min(self._needed, commit_seq)

    def at_one_beginning(self, read: Callable[[], _Read]) -> _Read:
        """Read until the history began at the same version throughout, and return that reading.

        Raises:
            HistoryRemoved: Entries that the reading needs were removed meanwhile.
        """
        while True:
            beginning = self.beginning
            found = read()
            if self.beginning == beginning:
                return found

    def begins_now(self) -> int:
        """Read from which version on all entries are there by now; -1 if none was ever removed."""
        self._refresh()
        return self.beginning

    def catalog(self) -> list[Entry]:
        """Read the catalog's entries, which never leave the journal, in commit order.

        Those that were read before are remembered with those of the fence.
        """
        known = (one for one in self._shards.read([model.CATALOG]) if one.commit_seq <= self.upto)
        return sorted(known, key=Order.COMMIT.key)

    def find(self, *wanted: EntryFilter) -> list[Entry]:
        """Read the entries that match one of some filters, in commit order.

        Entries from before the beginning may name removed positions: ``known`` leaves these out
        for a caller that has the positions.

        Raises:
            HistoryRemoved: Entries that the reading needs were removed meanwhile.
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

        In commit order, where positions come before the entries that name them, older entries are
        read without the removed positions.

        Raises:
            HistoryRemoved: Entries that the reading needs were removed meanwhile.
        """
        wanted = self._narrowed(EntryFilter(after=after))
        told = (entry for entry, _ in self.placed(order, wanted))
        return known(told, self.beginning) if order is Order.COMMIT else told

    def placed(self, order: Order, wanted: EntryFilter) -> Iterator[tuple[Entry, bool]]:
        """Read the entries that match a filter in an order, each with whether it is in the journal.

        Neither removed positions nor entries after the last commit of this past are left out.

        Raises:
            HistoryRemoved: Entries that the reading needs were removed meanwhile.
        """
        while True:
            here = _opened(self._store.journal.stream(order, wanted))
            found: Iterator[tuple[Entry, bool]] = ((entry, True) for entry in here)
            if self._has_archive():
                there = _opened(self._store.journal.archive.stream(order, wanted))
                archived = ((entry, False) for entry in there)
                found = _once(heapq.merge(found, archived, key=lambda one: order.key(one[0])))
            if not self._has_moved():
                break
        lost = self._undecided()
        return (one for one in found if one[0].entry_id not in lost)

    def newest(self, wanted: EntryFilter | None = None) -> Newest:
        """Find the newest commit and the latest instant of the entries, without reading them."""
        narrowed = self._narrowed(wanted or EntryFilter())
        here = self._store.journal.newest(narrowed)
        if not self._has_archive():
            return here
        return here.or_newer(self._store.journal.archive.newest(narrowed))

    def archived_ahead(self) -> int | None:
        """Find the newest archived commit if it is newer than the journal; None if it is not.

        It is newer in a copy of a store whose journal was copied before a maintenance, and whose
        archive after it.
        """
        newest = self._newest_archived()
        return newest if self.is_ahead(newest) else None

    def is_ahead(self, commit_seq: int) -> bool:
        """Return whether a commit that was read before is newer than the journal is now.

        Rows that somebody else wrote can name any version. Queries up to the newest version leave
        them out, whereas queues and transactions read them.
        """
        return model.version_of(commit_seq) > self._store.journal.version()

    def is_archive_foreign(self) -> bool:
        """Return whether the archive has entries although nothing can have left the journal yet.

        They are not in the history, but whoever reads the archive's table finds them.
        """
        return not self._has_archive() and self._newest_archived() >= 0 and not self._has_archive()

    def _newest_archived(self) -> int:
        """Find the newest commit_seq in the archive; -1 if there is none."""
        was_there = self._archived
        try:
            return self._store.journal.archive.newest(EntryFilter()).commit_seq
        except Exception:  # there may be none
            if was_there:
                raise
            return self._newest_archived() if self._has_archive() else -1  # made meanwhile

    def _narrowed(self, wanted: EntryFilter) -> EntryFilter:
        upto = self.upto if wanted.upto is None else min(self.upto, wanted.upto)
        return replace(wanted, upto=upto)

    def _has_archive(self) -> bool:
        """Return whether entries can have left the journal by now."""
        if not self._archived:
            self._archived = model.horizon(self._shards.read([model.FENCE])) >= 0
        return self._archived

    def _refresh(self) -> None:
        fence = self._shards.read([model.FENCE])
        self.beginning = model.beginning(fence)
        self._decisions_from = model.decisions_beginning(fence)
        self._archived = model.horizon(fence) >= 0

    def _has_moved(self) -> bool:
        """Return whether the history begins later than at the last reading.

        Raises:
            HistoryRemoved: It begins after the last commit that belongs to this past, or after one
                that a caller needs.
        """
        before = self.beginning
        if self._archived:
            self._refresh()
            self.check_known(min(self.upto, self._needed))
        return self.beginning != before

    def _decided(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Leave out archived prepared entries without a decision, which was removed before them."""
        lost = self._undecided()
        return (entry for entry in entries if entry.entry_id not in lost)

    def _undecided(self) -> set[model.PositionId]:
        """Find the archived prepared entries whose decision was removed before them.

        A prepared, undecided entry never leaves the journal. Only versions before 0.2 removed
        decisions, and none from the history's beginning on.
        """
        before = min(self._decisions_from, self.beginning)
        if before < 0:
            return set()
        archive, attempts = self._store.journal.archive, set[str | None]()
        old = archive.find(EntryFilter(kinds=[model.PREPARED]))
        for names in portions({entry.attempt or "" for entry in old}):
            meant = EntryFilter(kinds=model.DECISIONS, attempts=names)
            decisions = (*self._store.journal.find(meant), *archive.find(meant))
            attempts.update(entry.attempt for entry in decisions)
        return {e.entry_id for e in old if e.version < before and e.attempt not in attempts}


def known(entries: Iterable[Entry], beginning: int) -> Iterator[Entry]:
    """Leave removed positions out of the entries from before the beginning (pure).

    A claim may hold messages of several positions, some of which stay known longer than others.

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
    """Leave out archived prepared entries without a decision, which was removed first (pure).

    A prepared, undecided entry never leaves the journal.
    """
    found = list(archived)
    attempts = {e.attempt for e in (*found, *here) if e.kind in model.DECISIONS}
    return [e for e in found if e.kind != model.PREPARED or e.attempt in attempts]


def of_lane(queue_id: str, lane: int) -> EntryFilter:
    """Make the filter of a lane's dispatch log, and of the queue's backlog of that lane."""
    shards = (model.lane_shard(queue_id, lane), model.backlog_shard(queue_id))
    return EntryFilter(shards=shards, streams=[model.lane_stream(lane)])


def of_lanes(queue_id: str, lanes: int) -> EntryFilter:
    """Make the filter of a queue's dispatch logs and backlog."""
    shards = [model.lane_shard(queue_id, lane) for lane in range(lanes)]
    return EntryFilter(shards=[*shards, model.backlog_shard(queue_id)])


def of_fence(queue_id: str) -> EntryFilter:
    """Make the filter of a queue's entries in the fence: closing and dropped."""
    return EntryFilter(shards=[model.FENCE], streams=[model.queue_stream(queue_id)])


def of_messages(past: Past, messages: Collection[tuple[str, int]]) -> list[Entry]:
    """Read the entries about some messages, wherever they went, in commit order.

    These are their positions, the entries of those lanes that name them, the entries about claims
    that held them, the decisions of the attempts of all of these, and the catalog.

    Args:
        past: The known entries.
        messages: The send id and the offset of each message; at most a thousand.
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
        # Delta's statistics of kinds spare the files that have only positions: half of a backlog.
        replace(of_lane(*lane), kinds=model.NAMING, naming=names, offsets=offsets)
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
    known = _attempts_of(found)
    about += _decisions_of(known)
    found += past.find(*about) if about else []
    # A whole claim may be settled by an attempt that names none of its messages, mostly its own.
    others = {name: key for name, key in _attempts_of(found).items() if name not in known}
    found += past.find(*_decisions_of(others)) if others else []
    found += past.catalog()
    return sorted(model.each_once(found), key=Order.COMMIT.key)


def _attempts_of(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the attempts that wrote some entries, with the keys of their transactions."""
    return {e.attempt: e.transaction_key or "" for e in entries if e.attempt is not None}


def _decisions_of(attempts: Mapping[str, str]) -> list[EntryFilter]:
    """Name the decisions and the table changes of attempts, given with their transactions' keys."""
    wanted = []
    for names in portions(attempts):
        keys = {attempts[name] for name in names}
        shards = {model.transaction_shard(key) for key in keys}
        wanted += [
            EntryFilter(shards=shards, streams=keys, kinds=model.DECISIONS, attempts=names),
            EntryFilter(shards=model.ALL_TABLES, kinds=[model.CHANGE_DECIDED], attempts=names),
        ]
    return wanted


def beginning_of(journal: Journal) -> int:
    """Read from which version on the history is complete; -1 if nothing was ever removed."""
    return model.beginning(journal.read([model.FENCE]).entries)


def decisions_beginning_of(journal: Journal) -> int:
    """Read from which version on all decisions are known; -1 if none was ever removed."""
    return model.decisions_beginning(journal.read([model.FENCE]).entries)


def removed(what: str, beginning: int) -> HistoryRemoved:
    """Make the error of a question about the time before the beginning of the history."""
    first = model.commit_seq(beginning)
    return HistoryRemoved(
        f"{what}: the history begins at commit_seq {first}; maintain(history_retention_days=) "
        "sets how long it is kept.",
        commit_seq=first,
    )


def check_archive(store: Store, horizon: int) -> None:
    """Check that the archive is there if, and has entries only if, any can have left the journal.

    Raises:
        StoreCorrupt: It is gone, or its entries cannot be those of this journal: they would be
            read as this store's own.
    """
    there = store.journal.archive.exists()
    if horizon >= 0 and not there:
        raise setbacks.archive_gone(setbacks.place_of(store.root, "archive"))
    if horizon < 0 and there and Past(store).is_archive_foreign():
        raise setbacks.archive_foreign(store.root)


def of_append(store: Store, append_ids: Collection[str], shards: Collection[str]) -> list[Entry]:
    """Read what the tries of one append wrote into some shards, in commit order."""
    journal = store.journal
    found = _and_fence(journal, *shards)
    if model.horizon(found) >= 0:
        archived = journal.archive.read(shards=shards, append_ids=append_ids)
        found = model.each_once((*found, *archived))
    mine = (e for e in found if e.append_id in append_ids and e.shard in shards)
    return sorted(mine, key=lambda entry: entry.place)


def of_shard(store: Store, shard: str, prefix: str) -> list[Entry]:
    """Read the entries of a shard in the streams whose names begin with a prefix."""
    journal = store.journal
    found = _and_fence(journal, shard)
    if model.horizon(found) >= 0:
        archived = journal.archive.read(shards=[shard], stream_prefix=prefix)
        found = model.each_once((*found, *archived))
    return [e for e in found if e.shard == shard and e.stream.startswith(prefix)]


def _and_fence(journal: Journal, *shards: str) -> tuple[Entry, ...]:
    return journal.read({*shards, model.FENCE}).entries


def _opened(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Read the first entry at once, so that all entries come from one version."""
    return chain(list(islice(entries, 1)), entries)


def _once(entries: Iterable[tuple[Entry, bool]]) -> Iterator[tuple[Entry, bool]]:
    """Yield each of some sorted entries once; entries that differ at all are all yielded.

    Copies in the archive are left out, as there may be some. The journal never has two.

    Args:
        entries: Each with whether it is in the journal, and if so before its copies.
    """
    before = None
    for entry, here in entries:
        if here or before is None or not _is_copy(entry, before):
            yield entry, here
        before = entry


def _is_copy(entry: Entry, other: Entry) -> bool:
    """Return whether two entries are the same, also as text: ``1 == True`` in Python (pure)."""
    if entry != other:
        return False
    one, two = (json.dumps(dict(e.body), sort_keys=True) for e in (entry, other))
    return one == two


def portions(names: Iterable[_Name]) -> Iterator[list[_Name]]:
    """Divide ids into sorted lists that are short enough for one filter each."""
    left = sorted(names)
    for start in range(0, len(left), NAMES_MAX):
        yield left[start : start + NAMES_MAX]
