"""What the files of a store on a local disk hold, as one reads them who knew nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from tests.faults.pasts import everything
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.storage.files.delta_log import DeltaLog
from txnqueue.storage.files.store import FilesStore
from txnqueue.storage.payload import Part

SPARK_EACH = 10
"""In each tenth scenario Spark is asked as well, and both have to say the same."""

Carried = dict[tuple[str, int], int]
"""What messages carry, by their sends' ids and offsets."""


def entries_after(store: Any, after: int) -> tuple[Entry, ...]:
    """Read what came after a version, wherever it stands by now."""
    new: tuple[Entry, ...] = store.journal.read_all(after).entries
    if model.horizon(new) > after:  # some may have left for the archive since
        new = tuple(e for e in everything(store) if e.version > after)
    return new


def carried(store: Any, schema: Any, parts: Sequence[Part]) -> Carried:
    """Read the numbers that messages carry."""
    rows = store.payload.table(schema, parts).to_pylist()
    about = [(row["_message"], row["i"]) for row in rows]
    return {(one["send_id"], one["send_offset"]): number for one, number in about}


class Files:
    """A store, and a user's table beside it."""

    def __init__(self, root: str, table: str) -> None:
        """Name them; nothing is read yet."""
        self._store = FilesStore(root)
        self._table = DeltaLog(LocalFileSystem(), table)

    def entries_after(self, after: int) -> tuple[Entry, ...]:
        """Read what came after a version, as it is now."""
        self._store.refresh()
        return entries_after(self._store, after)

    def carried(self, schema: Any, parts: Sequence[Part]) -> Carried:
        """Read the numbers that messages carry."""
        return carried(self._store, schema, parts)

    def table_numbers(self) -> list[int]:
        """Read the user's table."""
        paths = [f"{self._table.folder}/{path}" for path in self._table.newest().files]
        return [n for path in paths for n in pq.ParquetFile(path).read(["i"])["i"].to_pylist()]
