"""A store as it was after a commit, for work that does not change the store.

Its past is read from the store on demand. Work done on it stays in this object's memory, by the
same rules as in every store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
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
"""Shards whose entries matter only if they are in the journal at that commit."""


class PastStore:
    """A store as it was after a commit; changes stay in this object."""

    def __init__(self, store: Store, past: Past) -> None:
        """Wrap a store; nothing is read yet.

        Args:
            store: The store, which is only read.
            past: The known entries of the store up to the commit.
        """
        self.spark: SparkSession | None = store.spark
        self.root = store.root
        self.journal = PastJournal(store, past)
        self.payload = PastPayload(store)
        self.tables = PastTables(store, self.payload)
        self.transient = TransientStore(f"the past of {store.root}")

    def exists(self) -> bool:
        """Return true: the journal was read."""
        return True

    def create(self) -> None:
        """Refuse to create a store."""
        raise OnlyRehearsed

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Do nothing: the store is not written to."""
        return False

    def answers(self) -> bool:
        """Return that nothing is to be done: the store is not written to."""
        return False

    def close(self) -> None:
        """Do nothing: all resources belong to the store."""


class PastJournal(MemoryJournal):
    """The journal up to a commit, followed by the entries appended in memory."""

    def __init__(self, store: Store, past: Past) -> None:
        """Begin after the last version that belongs to the past."""
        super().__init__()
        self._past, self._known = past, set[str]()
        self._store = store
        self.archive = PastArchive(self, store, past.upto)

    def known_version(self) -> int:
        """Return the newest version: that of the past, plus one for each append in memory."""
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
        """Read the entries that match one of some filters."""
        mine = (e for e in self.landed() if any(one.matches(e) for one in wanted))
        return (*self._past.find(*wanted), *mine)

    def landed(self) -> list[Entry]:
        """List the entries appended in memory."""
        with self._lock:
            return [entry for found, _ in self.commits for entry in found]

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units in memory only."""
        shards = {shard for unit in units for shard in unit.reads}
        self._look_up(shards | {entry.shard for unit in units for entry in unit.entries})
        return super().append(units, metadata)

    def _look_up(self, shards: Collection[str]) -> None:
        """Read the past of some shards once, with entries that have left the journal since."""
        missing = set(shards) - self._known
        if not missing:
            return
        short = {shard for shard in missing if shard.startswith(_UNDECIDED)}
        found: list[Entry] = []
        if short:
            wanted = EntryFilter(shards=short, upto=self._past.upto)
            here = self._store.journal.find(wanted)
            found += model.each_once((*here, *self._left_since(wanted)))
        if missing - short:
            whole = self._past.find(EntryFilter(shards=missing - short))
            found += archive.known(whole, self._past.beginning)
        with self._lock:
            for entry in sorted(found, key=Order.COMMIT.key):
                if entry.shard not in self._known:
                    self._shards[entry.shard].append(entry)
            self._known |= missing

    def _left_since(self, wanted: EntryFilter) -> list[Entry]:
        """Find entries that were in the journal then and left it since; call it after reading that.

        These are the entries at and above the horizon of then; below it, the prepared entries,
        which stay in the journal until they are decided, and their decisions.
        """
        horizon = model.horizon(self.read([model.FENCE]).entries)
        if model.horizon(self._store.journal.read([model.FENCE]).entries) <= horizon:
            return []  # no entry has left since
        old = self._store.journal.archive
        found = [*old.find(replace(wanted, after=model.commit_seq(horizon) - 1))]
        prepared = old.find(replace(wanted, kinds=[model.PREPARED]))
        for attempts in archive.portions({entry.attempt or "" for entry in prepared}):
            found += old.find(replace(wanted, kinds=model.DECISIONS, attempts=attempts))
        return [*found, *prepared]


class PastArchive(MemoryArchive):
    """The archive up to a commit, to which nothing is added."""

    def __init__(self, journal: MemoryJournal, store: Store, upto: int) -> None:
        """Wrap a store's archive."""
        super().__init__(journal)
        self._archive, self._upto = store.journal.archive, upto

    def read(self, **wanted: Any) -> tuple[Entry, ...]:
        """Read entries, each once."""
        return tuple(e for e in self._archive.read(**wanted) if e.commit_seq <= self._upto)

    def find(self, *wanted: EntryFilter) -> tuple[Entry, ...]:
        """Return no entries: the journal's ``find`` reads the archive, too."""
        return ()

    def stream(self, order: Order, wanted: EntryFilter) -> Iterator[Entry]:
        """Return no entries, as ``find``."""
        return iter(())

    def newest(self, wanted: EntryFilter) -> Newest:
        """Return no entry, as ``find``."""
        return Newest()


class PastPayload(MemoryPayload):
    """The payload of a store, and the rows staged in memory."""

    def __init__(self, store: Store) -> None:
        """Wrap a store's payload."""
        super().__init__(store.spark)
        self._there = store.payload

    @property
    def folder(self) -> str:
        """What the path of each file of the store's payload contains."""
        return self._there.folder

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Do nothing: rows staged in memory carry their columns."""

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets."""
        pieces = [store.table(schema, found) for store, found in self._by_store(parts)]
        return pa.concat_tables([super().table(schema, ()), *pieces])

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a pinned DataFrame of messages."""
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
        """Find the lane of each message by the group column: for each part its ranges by lane."""
        found = (store.lanes(column, lanes, mine) for store, mine in self._by_store(parts))
        return [by_lane for each in found for by_lane in each]

    def rows(self, payload_id: str, places: Sequence[tuple[int, str, tuple[Range, ...]]]) -> int:
        """Count the existing rows at some places."""
        return super().rows(payload_id, places) + self._there.rows(payload_id, places)

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        return super().slices(payload_id) | self._there.slices(payload_id)

    def staged_rows(
        self, session: SparkSession, payload_id: str, send_ids: Sequence[str]
    ) -> DataFrame:
        """Make a DataFrame of all rows of some sends that were staged in memory."""
        return frame_of(session, pa.concat_tables(self.staged(payload_id, s) for s in send_ids))

    def _by_store(self, parts: Sequence[Part]) -> Iterator[tuple[PayloadStore, list[Part]]]:
        """Group consecutive parts by the payload store that holds them."""
        mine = cast("PayloadStore", super())
        for here, found in groupby(parts, key=self._is_here):
            yield mine if here else self._there, list(found)

    def _is_here(self, part: Part) -> bool:
        return (part.payload_id, part.send_id) in self._sends


class PastTables:
    """The user's tables in their present state: changes are checked and never applied."""

    def __init__(self, store: Store, payload: PastPayload) -> None:
        """Wrap the tables; rows of changes are staged in memory."""
        self._tables = store.tables.for_rows_of(payload.staged_rows)
        self._payload = payload

    def describe(self, name: str) -> TableInfo | None:
        """Return the description of a table; None if there is none of that name."""
        return self._tables.describe(name)

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Check a change as far as possible before it is decided."""
        self._tables.check(info, change, transaction_id)

    def for_rows_of(self, staged: object) -> PastTables:
        """Return these tables, as their rows are always staged in memory."""
        return self

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Refuse to apply a change."""
        raise OnlyRehearsed

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change that were staged in memory."""
        staged = [self._payload.staged(source.payload_id, one) for one in source.send_ids]
        return pa.concat_tables(staged).rename_columns(source.names)

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List the Delta commits of a table after a version."""
        return self._tables.history(name, after)
