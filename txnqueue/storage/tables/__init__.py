"""The user's own tables, behind an interface of four calls.

``delta`` changes Delta tables, ``memory`` tables in memory. A change is applied under the
store's application id and a version that rises with commit order, which the table itself
remembers: so repeating a change is a no-op, whichever process repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from txnqueue.errors import InvalidInput
from txnqueue.storage.journal.tables import identifier

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    StagedRows = Callable[[SparkSession, str, Sequence[str]], DataFrame]
    """Shows on a session all rows that an owner staged under some ids."""

APPEND = "append"
MERGE = "merge"
UPDATE = "update"
DELETE = "delete"
LINEAGE_COLUMN = "_transaction_id"
CHANGES_PER_TRANSACTION_MAX = 1 << 16
"""The numbers that each commit has for its changes."""
SENDS_PER_CHANGE_MAX = 1_000
"""The appends put together at most: a statement names each of them."""


class TableConflict(Exception):
    """Another commit on the table was faster: the same again."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The columns that a table fills in itself, where rows do not have them.

    Attributes:
        defaults: The SQL of values that stand in for what is not given.
        generated: The SQL of values that what is given must be equal to.
        identities: Columns that are numbered; whether rows may give numbers of their own.
        others: Further columns of which that may be so; it cannot be told.
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    generated: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, bool] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        """Return whether the table may fill a column in."""
        return any(
            name in names for names in (self.defaults, self.generated, self.identities, self.others)
        )


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A user's table as it stands.

    Attributes:
        name: How to find it again, from any session: a path, or its full catalog name.
        table_id: Delta's own id of the table; a table that replaces it has another.
        version: Its newest Delta version.
        schema: Its columns.
        constraints: Its CHECK constraints, by name.
        append_only: Whether it refuses whatever would remove or change a row.
        filled: The columns that it fills in itself.
        lengths: The types of columns in which texts are bounded, by name.
    """

    name: str
    table_id: str
    version: int
    schema: StructType
    constraints: Mapping[str, str] = field(default_factory=dict)
    append_only: bool = False
    filled: Filled = field(default_factory=Filled)
    lengths: Mapping[str, DataType] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of a change are staged.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice.
        send_id: Under which id the rows were staged.
        count: How many they are.
        schema: The rows' columns, as Spark's JSON; staged as ``c0``, ``c1``, ….
        also: Further ids, under which more of these rows were staged in the same slice.
    """

    payload_id: str
    slice: int
    send_id: str
    count: int
    schema: Mapping[str, Any]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column["name"] for column in self.schema["fields"]]

    @property
    def send_ids(self) -> tuple[str, ...]:
        """All ids under which the rows were staged."""
        return (self.send_id, *self.also)

    def joined(self, other: Source) -> Source | None:
        """Take more rows; None if they lie elsewhere, have other columns, or are too many sends."""
        if (self.payload_id, self.slice, self.names) != (
            other.payload_id,
            other.slice,
            other.names,
        ) or len(self.send_ids) + len(other.send_ids) > SENDS_PER_CHANGE_MAX:
            return None
        also = (*self.also, *other.send_ids)
        return replace(self, count=self.count + other.count, also=also)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one table: what the redo log holds of it.

    Attributes:
        number: Its place among the changes of its transaction.
        table: How the table is found.
        table_id: Which table it was.
        table_version: Its Delta version when the transaction was sealed.
        operation: append, merge, update or delete.
        source: The rows of an append or merge.
        condition: Which rows of the table, as SQL over ``target`` and, in a merge, ``source``.
        update: What becomes of columns of matched rows, as SQL; None: nothing.
        insert: What columns of new rows hold, as SQL over ``source``; None: none are added.
        delete: Which matched rows are deleted, as SQL; None: none.
        keys: The columns that the rows of a merge are matched by; each row's must be its own.
        lineage: Whether rows written carry the transaction's id in ``_transaction_id``.
    """

    number: int
    table: str
    table_id: str
    table_version: int
    operation: str
    source: Source | None = None
    condition: str | None = None
    update: Mapping[str, str] | None = None
    insert: Mapping[str, str] | None = None
    delete: str | None = None
    keys: tuple[str, ...] = ()
    lineage: bool = False

    def to_json(self) -> dict[str, Any]:
        """Write the change for an entry's body."""
        written = asdict(self)
        if self.source is not None and not self.source.also:
            del written["source"]["also"]  # which the first layout does not know
        return written

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Change:
        """Read a change from an entry's body."""
        source = data["source"]
        if source is not None:
            source = Source(**{**source, "also": tuple(source.get("also", ()))})
        return cls(**{**data, "source": source, "keys": tuple(data["keys"])})


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """What a table remembers of a change: under whose id, as which version, and a note.

    Attributes:
        application_id: The store; Delta's ``txnAppId``.
        number: Rises with commit order; Delta's ``txnVersion``.
        transaction_id: The transaction that decided the change.
        note: What the table's history shows: store, number, transaction and operation.
    """

    application_id: str
    number: int
    transaction_id: str
    note: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit in a table's history: what it did, and the note that we left, if it was ours."""

    version: int
    operation: str
    mode: str | None
    note: Mapping[str, Any]


class Tables(Protocol):
    """A user's tables behind four calls."""

    def describe(self, name: str) -> TableInfo | None:
        """Look at a table; None if there is none of that name."""
        ...

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Check all that can be known of a change before it is decided.

        Raises:
            InvalidInput: The table would refuse it: names, types, constraints, keys.
        """
        ...

    def for_rows_of(self, staged: StagedRows) -> Tables:
        """Give the same tables for changes whose rows are staged elsewhere."""
        ...

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Apply a change by one commit of the table.

        Args:
            change: The change.
            stamp: What the table remembers of it.
            empty: Take the change's number without changing anything.

        Returns:
            The version that it made; None if the table has seen this number already.

        Raises:
            TableConflict: Another commit was faster.
        """
        ...

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change; fewer, if their payload was removed."""
        ...

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List the commits of a table after a version that the table still knows, newest first."""
        ...


def check_appends(info: TableInfo, change: Change) -> None:
    """Check that a table which can only be appended to is only appended to.

    Raises:
        InvalidInput: The change would update or delete rows.
    """
    if info.append_only and (change.update is not None or change.delete is not None):
        raise InvalidInput(
            f"The {change.operation} on {info.name!r} is not possible: the table has the property "
            "delta.appendOnly, which only lets rows be added.",
            table=info.name,
        )


def together(changes: Iterable[Change]) -> list[Change]:
    """Put appends together that follow each other on their table: one commit makes them all.

    Whatever else a change does depends on what the earlier ones made of the table, so that it
    stays on its own, and keeps the appends before it from those after it.
    """
    found: list[Change] = []
    newest: dict[str, int] = {}  # where the newest change of a table stands
    for change in changes:
        place = newest.get(change.table_id)
        joined = None if place is None else _joined(found[place], change)
        if place is None or joined is None:
            newest[change.table_id] = len(found)
            found.append(change)
        else:
            found[place] = joined
    return found


def _joined(earlier: Change, later: Change) -> Change | None:
    """Put two appends together; None if they cannot be."""
    if {earlier.operation, later.operation} != {APPEND} or earlier.lineage != later.lineage:
        return None
    assert earlier.source is not None
    assert later.source is not None
    source = earlier.source.joined(later.source)
    return None if source is None else replace(earlier, source=source)


def assignments(names: Sequence[str], side: str = "source") -> dict[str, str]:
    """Write ``*``: each column from the column of the same name."""
    return {name: f"{side}.{identifier(name)}" for name in names}
