"""The user's own tables, behind an interface.

``delta`` changes Delta tables, and ``memory`` tables in memory. A change is applied under the
store's application id and a number that rises with commit order, which the table itself
remembers, so repeating a change has no effect, whichever process repeats it.
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
    """Returns, on a session, all rows that an owner staged under some ids."""

APPEND = "append"
MERGE = "merge"
UPDATE = "update"
DELETE = "delete"
LINEAGE_COLUMN = "_transaction_id"
CHANGES_PER_TRANSACTION_MAX = 1 << 16
"""The maximum number of changes, for which each commit has this many numbers."""
SENDS_PER_CHANGE_MAX = 1_000
"""The maximum number of joined appends, each of which a statement names."""


class TableConflict(Exception):
    """Another commit on the table won: try the change again."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The columns that a table fills in itself if rows lack them.

    Attributes:
        defaults: The default values, as SQL.
        generated: The generated values, as SQL; given values must equal them.
        identities: Identity columns, and whether rows may give their own numbers.
        others: Further columns that the table may fill in, which is unknown.
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
    """The present state of a user's table.

    Attributes:
        name: The name by which any session finds it: a path, or its full catalog name.
        table_id: Delta's id of the table; a table that replaces it has another one.
        version: Its newest Delta version.
        schema: Its columns.
        constraints: Its CHECK constraints, by name.
        append_only: Whether it refuses changes that remove or update rows.
        filled: The columns that it fills in itself.
        lengths: The types of columns with texts of bounded length, by name.
        partitioned_by: The columns that it is partitioned by.
        forgets_numbers: Whether it forgets the numbers of changes after a while.
    """

    name: str
    table_id: str
    version: int
    schema: StructType
    constraints: Mapping[str, str] = field(default_factory=dict)
    append_only: bool = False
    filled: Filled = field(default_factory=Filled)
    lengths: Mapping[str, DataType] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()
    forgets_numbers: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """The staged rows of a change.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice.
        send_id: The id under which the rows were staged.
        count: The number of rows.
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
        """Add more rows; None if they are elsewhere, have other columns, or too many sends."""
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
    """One change of one table, as recorded in the journal.

    Attributes:
        number: Its place among the changes of its transaction.
        table: The name of the table.
        table_id: The id of the table.
        table_version: Its Delta version when the transaction was sealed.
        operation: append, merge, update or delete.
        source: The rows of an append or merge.
        condition: The condition on rows, as SQL over ``target`` and, in a merge, ``source``.
        update: The new values of columns of matched rows, as SQL; None: no update.
        insert: The values of new rows, as SQL over ``source``; None: no insert.
        delete: The condition of matched rows to delete, as SQL; None: no delete.
        keys: The columns that match the rows of a merge; their values must be unique.
        lineage: Whether written rows carry the transaction's id in ``_transaction_id``.
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
            del written["source"]["also"]  # unknown in the first layout
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
    """What a table remembers of a change: an application id, a number and a note.

    Attributes:
        application_id: The id of the store; Delta's ``txnAppId``.
        number: Rises with commit order; Delta's ``txnVersion``.
        transaction_id: The transaction that decided the change.
        note: The note in the table's history: store, number, transaction and operation.
    """

    application_id: str
    number: int
    transaction_id: str
    note: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit in a table's history, with the library's note if it is one of its own."""

    version: int
    operation: str
    mode: str | None
    note: Mapping[str, Any]


class Tables(Protocol):
    """The interface of a user's tables."""

    def describe(self, name: str) -> TableInfo | None:
        """Describe a table; None if there is no table with that name."""
        ...

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Check everything that can be known about a change before its decision.

        Raises:
            InvalidInput: The table would refuse it because of names, types, constraints or keys.
        """
        ...

    def for_rows_of(self, staged: StagedRows) -> Tables:
        """Return the same tables, for changes whose rows are staged elsewhere."""
        ...

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Apply a change by one commit of the table.

        Args:
            change: The change.
            stamp: What the table remembers of it.
            empty: Whether to use up the change's number without changing anything.

        Returns:
            The version that it created; None if the table has already seen this number.

        Raises:
            TableConflict: Another commit won.
        """
        ...

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change; fewer if their payload was removed."""
        ...

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List a table's commits after a version that it still knows, newest first."""
        ...


def check_appends(info: TableInfo, change: Change) -> None:
    """Check that a change of an append-only table is an append.

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
    """Join consecutive appends to the same table, so that one commit makes them all.

    Any other change depends on the effects of the earlier ones, so it stays separate, and
    separates the appends before it from those after it.
    """
    found: list[Change] = []
    newest: dict[str, int] = {}  # the index of the newest change of a table
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
    """Join two appends; None if that is not possible.

    A table that was copied with its folder has the id of the original.
    """
    if earlier.table != later.table:
        return None
    if {earlier.operation, later.operation} != {APPEND} or earlier.lineage != later.lineage:
        return None
    assert earlier.source is not None
    assert later.source is not None
    source = earlier.source.joined(later.source)
    return None if source is None else replace(earlier, source=source)


def assignments(names: Sequence[str], side: str = "source") -> dict[str, str]:
    """Return the assignments of ``*``: each column from the column of the same name."""
    return {name: f"{side}.{identifier(name)}" for name in names}
