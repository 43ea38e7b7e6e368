"""The in-memory implementation of the user's tables: appends only, each applied once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from txnqueue.errors import PlatformMissing
from txnqueue.storage.journal.memory import Step, no_step
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.storage.tables import (
    APPEND,
    Change,
    CommitStamp,
    Source,
    TableCommit,
    TableConflict,
    TableInfo,
)
from txnqueue.storage.tables.constraints import check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnqueue.storage.tables import StagedRows


@dataclass(slots=True)
class _Table:
    table_id: str
    schema: StructType
    pieces: list[pa.Table] = field(default_factory=list)
    commits: list[TableCommit] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)


class MemoryTables:
    """Tables in the memory of this process, with appends only; other changes need Delta."""

    def __init__(self, payload: MemoryPayload, step: Step = no_step) -> None:
        """Create an empty set of tables.

        Args:
            payload: The payload in which rows are staged.
            step: Called before each atomic step of a call, with the step's name.
        """
        self.step = step
        self._payload = payload
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()
        self._made = 0

    def create(self, name: str, schema: StructType) -> None:
        """Create a table, replacing one with the same name."""
        self._made += 1
        created = TableCommit(0, "CREATE TABLE", None, {})
        self._tables[name] = _Table(f"table-{self._made}", schema, commits=[created])

    def drop(self, name: str) -> None:
        """Drop a table."""
        del self._tables[name]

    def numbers(self, name: str) -> dict[str, int]:
        """Return the last number that a table has seen of each application."""
        return dict(self._tables[name].numbers)

    def rows(self, name: str) -> pa.Table:
        """Read a table."""
        pieces = self._tables[name].pieces
        return pa.concat_tables(pieces) if pieces else pa.table({})

    def describe(self, name: str) -> TableInfo | None:
        """Describe a table; None if there is no table with that name."""
        self.step("describe")
        found = self._tables.get(name)
        if found is None:
            return None
        return TableInfo(name, found.table_id, len(found.commits) - 1, found.schema)

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Refuse changes that need SQL, and rows with other columns."""
        if change.operation != APPEND:
            raise PlatformMissing(
                f"A table in memory cannot {change.operation}: that needs Spark and a Delta table."
            )
        check_columns(info, change)

    def for_rows_of(self, staged: StagedRows) -> MemoryTables:
        """Return itself, because it reads no rows before appending them."""
        return self

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Append the staged rows once per number, as Delta does."""
        self.step("apply starts")
        table = self._tables[change.table]
        seen = table.numbers.get(stamp.application_id, -1)
        if seen >= stamp.number:
            return None
        self.step("apply lands")
        with self._lock:
            if self._tables.get(change.table) is not table:
                raise TableConflict(f"{change.table!r} was replaced")
            if table.numbers.get(stamp.application_id, -1) != seen:
                raise TableConflict(f"another change of {change.table!r} was faster")
            if not empty and change.source is not None:
                for send_id in change.source.send_ids:
                    staged = self._payload.staged(change.source.payload_id, send_id)
                    table.pieces.append(staged.rename_columns(change.source.names))
            table.numbers[stamp.application_id] = stamp.number
            version = len(table.commits)
            table.commits.append(TableCommit(version, "WRITE", "Append", dict(stamp.note)))
        return version

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change; none if their payload was removed."""
        try:
            staged = [self._payload.staged(source.payload_id, one) for one in source.send_ids]
        except KeyError:
            return pa.table({})
        return pa.concat_tables(staged).rename_columns(source.names)

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List the commits of a table after a version, newest first."""
        self.step("history")
        return [c for c in reversed(self._tables[name].commits) if c.version > after]
