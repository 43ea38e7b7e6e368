"""A store as it was after a commit, to be worked on without changing it.

What was there is read from the store as far as it is asked for. What is added stays in the
memory of this object, by the same rules as in every store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.model import Entry, Range, Unit
from txnqueue.errors import OnlyRehearsed
from txnqueue.storage.journal import Appended, Newest, Order, Reading
from txnqueue.storage.journal.filters import EntryFilter
from txnqueue.storage.journal.memory import MemoryArchive, MemoryJournal
from txnqueue.storage.payload import Part, PayloadStore
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.storage.payload.types import frame_of
from txnqueue.storage.store import Store
from txnqueue.storage.tables import Change, CommitStamp, Source, TableCommit, TableInfo
from txnqueue.storage.transient import TransientStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_UNDECIDED = ("transaction/", "table/", "protocol/")
"""Shards of which only this can matter to whoever works now: what is still in the journal, and what
became of whoever held messages then."""


class PastStore:
    """A store as it was after a commit; what is done here stays here."""

    def __init__(self, store: Store, past: Past) -> None:
        """Look at a store; nothing is read yet.

        Args:
            store: The store, which is only read.
            past: What is known of it up to the commit.
        """
        self.spark: SparkSession | None = store.spark
        self.root = store.root
        self.journal = PastJournal(store, past)
        self.payload = PastPayload(store)
        self.tables = PastTables(store, self.payload)
        self.transient = TransientStore(f"the past of {store.root}")

    def exists(self) -> bool:
        """Return whether the journal is there: it was read."""
        return True

    def create(self) -> None:
        """Refuse to make what was not there."""
        raise OnlyRehearsed

    def take_over(self, about: Mapping[str, object]) -> None:
        """Take nothing over: nothing is written."""

    def close(self) -> None:
        """Let go of nothing: what is held belongs to the store."""


class PastJournal(MemoryJournal):
    """The journal up to a commit, and behind it what is appended here."""

    def __init__(self, store: Store, past: Past) -> None:
        """Begin behind the last version that belongs to the past."""
        super().__init__()
        self._past, self._known = past, set[str]()
        self._store = store
        self.archive = PastArchive(self, store, past.upto)

    def known_version(self) -> int:
        """Return the newest version: that of the past, until something is appended."""
        return self._past.version + len(self.commits) - 1

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards."""
        self._look_up(shards)
        return super().read(shards, after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Reading:
        """Read every entry of every shard after a version, and up to one."""
        self._look_up({entry.shard for entry in self._past.find(EntryFilter())})
        return super().read_all(after, upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read the entries that one of some filters lets through."""
        mine = (e for e in self.landed() if any(one.matches(e) for one in wanted))
        return (*self._past.find(*wanted), *mine)

    def landed(self) -> list[Entry]:
        """List what was appended here."""
        with self._lock:
            return [entry for found, _ in self.commits for entry in found]

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units here: the store's own journal does not hear of it."""
        shards = {shard for unit in units for shard in unit.reads}
        self._look_up(shards | {entry.shard for unit in units for entry in unit.entries})
        return super().append(units, metadata)

    def _look_up(self, shards: Collection[str]) -> None:
        """Read what there was in some shards, once; lanes with what has left the journal since."""
        missing = set(shards) - self._known
        if not missing:
            return
        short = {shard for shard in missing if shard.startswith(_UNDECIDED)}
        found: list[Entry] = []
        if short:
            wanted = EntryFilter(shards=short, upto=self._past.upto)
            found += self._store.journal.find(wanted)
        if missing - short:
            whole = self._past.find(EntryFilter(shards=missing - short))
            left = list(archive.known(whole, self._past.beginning))
            found += left
            found += self._past.of_attempts(_holding(left))
        with self._lock:
            for entry in sorted(found, key=Order.COMMIT.key):
                self._keep(entry)
            self._known |= missing

    def _keep(self, entry: Entry) -> None:
        """Keep an entry of the past in its place, once: a holder's is read before its shard."""
        there = self._shards[entry.shard]
        if not there or there[-1].place < entry.place:  # nearly always
            there.append(entry)
            return
        at = bisect_left(there, entry.place, key=attrgetter("place"))
        if there[at] != entry:
            there.insert(at, entry)


def _holding(entries: Collection[Entry]) -> dict[str, str]:
    """Find the attempts that held messages in some lanes, each with its key.

    An attempt whose claim was settled in its name, or left to its consumer, was decided then.
    """
    ended = {
        (e.queue_id, e.claim_lane, e.claim_sequence, e.attempt)
        for e in entries
        if e.is_settlement or e.kind == model.KEPT
    }
    held: dict[str, str] = {}
    for entry in entries:
        if entry.attempt is None or entry.kind not in (model.CLAIMED, model.BOUND):
            continue
        claim = (entry.lane, entry.sequence)
        if entry.kind == model.BOUND:
            claim = (entry.claim_lane, entry.claim_sequence)
        if (entry.queue_id, *claim, entry.attempt) not in ended:
            held[entry.attempt] = entry.transaction_key or ""
    return held


class PastArchive(MemoryArchive):
    """The archive up to a commit; nothing is added to it."""

    def __init__(self, journal: MemoryJournal, store: Store, upto: int) -> None:
        """Look at a store's archive."""
        super().__init__(journal)
        self._archive, self._upto = store.journal.archive, upto

    def read(self, **wanted: Any) -> tuple[Entry, ...]:
        """Read entries, each once."""
        return tuple(e for e in self._archive.read(**wanted) if e.commit_seq <= self._upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Read nothing: the journal's own ``find`` knows what is here."""
        return ()

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Read nothing, as ``find``."""
        return iter(())

    def newest(self, wanted: EntryFilter) -> Newest:
        """Find nothing, as ``find``."""
        return Newest()


class PastPayload(MemoryPayload):
    """The payload of a store, and what is staged here."""

    def __init__(self, store: Store) -> None:
        """Look at a store's payload."""
        super().__init__(store.spark)
        self._there = store.payload

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Make no table: what is staged here has its columns with it."""

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets."""
        pieces = [store.table(schema, found) for store, found in self._by_store(parts)]
        return pa.concat_tables([super().table(schema, ()), *pieces])

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame of messages, pinned."""
        here = [part for part in parts if self._is_here(part)]
        there = [part for part in parts if not self._is_here(part)]
        if not here:
            return self._there.frame(schema, there)
        mine = super().frame(schema, here)
        return self._there.frame(schema, there).unionByName(mine) if there else mine

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Read one column as text: for each part its values, in the order of its ranges."""
        found = (store.texts(column, mine) for store, mine in self._by_store(parts))
        return [text for texts in found for text in texts]

    def lanes(
        self, column: str, lanes: int, parts: Sequence[Part]
    ) -> list[dict[int, tuple[Range, ...]]]:
        """Find the lane of each message by a column that groups them: each part's by lane."""
        found = (store.lanes(column, lanes, mine) for store, mine in self._by_store(parts))
        return [by_lane for each in found for by_lane in each]

    def rows(self, payload_id: str, places: Sequence[tuple[int, str, tuple[Range, ...]]]) -> int:
        """Count the rows that there are at some places."""
        return super().rows(payload_id, places) + self._there.rows(payload_id, places)

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        return super().slices(payload_id) | self._there.slices(payload_id)

    def staged_rows(
        self, session: SparkSession, payload_id: str, send_ids: Sequence[str]
    ) -> DataFrame:
        """Show all rows of some sends that were staged here."""
        return frame_of(session, pa.concat_tables(self.staged(payload_id, s) for s in send_ids))

    def _by_store(self, parts: Sequence[Part]) -> Iterator[tuple[PayloadStore, list[Part]]]:
        """Split messages where the next ones lie elsewhere."""
        mine = cast("PayloadStore", super())
        for here, found in groupby(parts, key=self._is_here):
            yield mine if here else self._there, list(found)

    def _is_here(self, part: Part) -> bool:
        return (part.payload_id, part.send_id) in self._sends


class PastTables:
    """The user's tables, as they are now: a change is checked against them, and not applied."""

    def __init__(self, store: Store, payload: PastPayload) -> None:
        """Look at the tables; rows of changes are staged here."""
        self._tables = store.tables.for_rows_of(payload.staged_rows)
        self._payload = payload

    def describe(self, name: str) -> TableInfo | None:
        """Look at a table; None if there is none of that name."""
        return self._tables.describe(name)

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Check all that can be known of a change before it is decided."""
        self._tables.check(info, change, transaction_id)

    def for_rows_of(self, staged: object) -> PastTables:
        """Give these tables: where rows are staged is decided here."""
        return self

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Refuse: nothing is decided here."""
        raise OnlyRehearsed

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change that were staged here."""
        staged = [self._payload.staged(source.payload_id, one) for one in source.send_ids]
        return pa.concat_tables(staged).rename_columns(source.names)

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List the commits of a table after a version."""
        return self._tables.history(name, after)
