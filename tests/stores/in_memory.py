"""A store that an older version wrote, read into memory, where every store call can be spoiled."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import txnqueue
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.storage.files.delta_log import DeltaLog
from txnqueue.storage.journal import EntryFilter
from txnqueue.storage.payload.types import spark_schema
from txnqueue.storage.store import MemoryStore
from txnqueue.storage.tables import TableCommit
from txnqueue.storage.tables.memory import _Table
from txnqueue.transactions.table_applier import Decided, unapplied

_OF_THE_LIBRARY = ("send_id", "send_offset", "slice", "headers", "arrangement")


def in_memory(root: str, day: str) -> MemoryStore:
    """Read a store, and the user's tables that it changes, as far as it says what they hold.

    Args:
        root: Where it is.
        day: Under which day its archive is kept.
    """
    files: Any = txnqueue.look(root)._client.store
    store = MemoryStore()
    here, archived = files.journal.read_all().entries, files.journal.archive.find(EntryFilter())
    _fill_journal(store, here, archived, files.journal.version(), day)
    for folder in sorted(Path(root, "payload").iterdir()):
        _fill_payload(store, DeltaLog(files.filesystem, str(folder)), folder.name)
    _fill_tables(store, here)
    return store


def _fill_journal(
    store: MemoryStore, here: tuple[Entry, ...], archived: tuple[Entry, ...], version: int, day: str
) -> None:
    journal = store.journal
    standing = {entry.entry_id for entry in here}
    commits = defaultdict[int, dict[tuple[str, int], Entry]](dict)
    for entry in sorted((*here, *archived), key=lambda one: one.place):
        commits[entry.version][entry.entry_id] = entry
    journal.commits += [(tuple(commits[n].values()), {}) for n in range(1, version + 1)]
    for entry in sorted(here, key=lambda one: one.place):
        journal._shards[entry.shard].append(entry)
    journal.archive.create()
    journal.archive.kept |= {(day, entry.entry_id): entry for entry in archived}
    gone = [entry for entry in archived if entry.entry_id not in standing]
    journal._removals.append((version, gone))


def _fill_payload(store: MemoryStore, log: DeltaLog, owner: str) -> None:
    payload = store.payload
    for path, one in log.newest().files.items():
        rows = pq.ParquetFile(f"{log.folder}/{path}").read()
        columns = [name for name in rows.column_names if name not in _OF_THE_LIBRARY]
        payload.create(owner, spark_schema(rows.select(columns).schema))
        for send_id in pc.unique(rows["send_id"]).to_pylist():
            mine = rows.filter(pc.equal(rows["send_id"], send_id))
            known = payload._sends.get((owner, send_id))
            if known is not None:  # written by another task
                raise ValueError(f"the send {send_id} lies in several files")
            mine = mine.sort_by("send_offset")
            assert mine["send_offset"].to_pylist() == list(range(mine.num_rows))
            payload._sends[owner, send_id] = mine.select(columns)
            payload._headers[owner, send_id] = [
                dict(told) if told else None for told in mine["headers"].to_pylist()
            ]
            payload._slices[owner, send_id] = int(one.partition["slice"] or 0)


def _fill_tables(store: MemoryStore, entries: tuple[Entry, ...]) -> None:
    (store_id,) = (e.body["store_id"] for e in entries if e.kind == model.LAYOUT_CHANGED)
    decided = [e for e in entries if e.kind == model.CHANGE_DECIDED]
    waiting = {one.entry.entry_id for found in unapplied(entries).values() for one in found}
    for entry in decided:
        ((one,),) = unapplied([entry]).values()
        table = store.tables._tables.get(one.change.table) or _made(store, one)
        if entry.entry_id not in waiting:
            stamp = one.stamp(store_id)
            assert one.change.source is not None
            for send_id in one.change.source.send_ids:
                staged = store.payload.staged(one.change.source.payload_id, send_id)
                table.pieces.append(staged.rename_columns(one.change.source.names))
            table.numbers[stamp.application_id] = stamp.number
            version = len(table.commits)
            table.commits.append(TableCommit(version, "WRITE", "Append", dict(stamp.note)))


def _made(store: MemoryStore, one: Decided) -> _Table:
    """Make a table as it was when its first change was decided."""
    source = one.change.source
    assert source is not None
    staged = store.payload.staged(source.payload_id, source.send_ids[0])
    schema = spark_schema(pa.schema(staged.rename_columns(source.names).schema))
    created = [
        TableCommit(n, "CREATE TABLE", None, {}) for n in range(one.change.table_version + 1)
    ]
    table = _Table(one.change.table_id, schema, commits=created)
    store.tables._tables[one.change.table] = table
    return table
