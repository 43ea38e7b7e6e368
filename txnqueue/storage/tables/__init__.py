"""The user's own tables, behind an interface of four calls.

``delta`` changes Delta tables, ``memory`` is its twin. A change is applied under the
store's application id and a version that rises with commit order, which the table itself
remembers: so repeating a change is a no-op, whoever repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from txnqueue.errors import InvalidInput
from txnqueue.storage.journal.tables import identifier

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

APPEND = "append"
MERGE = "merge"
UPDATE = "update"
DELETE = "delete"
LINEAGE_COLUMN = "_transaction_id"
CHANGES_PER_TRANSACTION_MAX = 1 << 16
"""So many numbers each commit has for its changes."""


class TableConflict(Exception):
    """Another commit on the table was faster: the same again."""


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
    """

    name: str
    table_id: str
    version: int
    schema: StructType
    constraints: Mapping[str, str] = field(default_factory=dict)
    append_only: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of a change are staged.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice.
        send_id: Under which id the rows were staged.
        count: How many they are.
        schema: The rows' columns, as Spark's JSON; staged as ``c0``, ``c1``, ….
    """

    payload_id: str
    slice: int
    send_id: str
    count: int
    schema: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column["name"] for column in self.schema["fields"]]


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
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Change:
        """Read a change from an entry's body."""
        source = data["source"] and Source(**data["source"])
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
            f"The {change.operation} on {info.name!r} cannot be done: the table has the property "
            "delta.appendOnly, so that rows are only ever added.",
            table=info.name,
        )


def assignments(names: Sequence[str], side: str = "source") -> dict[str, str]:
    """Write ``*``: each column from the column of the same name."""
    return {name: f"{side}.{identifier(name)}" for name in names}
