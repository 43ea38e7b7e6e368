"""The SQL of changes of Delta tables (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal.tables import identifier, literal
from txnqueue.storage.tables import DELETE, LINEAGE_COLUMN, MERGE, UPDATE, Change

NOTHING = "(SELECT 1 AS _one)"
"""The source of a change without rows: one row, which each row of the table matches once."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def table_name(name: str) -> str:
    """Quote a table: a path if it has a "/", otherwise a catalog name."""
    if "/" in name:
        return f"delta.{identifier(name)}"
    return ".".join(map(identifier, name.split(".")))


def is_whole(name: str) -> bool:
    """Return whether a name means the same table in every session."""
    return "/" in name or name.count(".") > 1


def path_elsewhere(name: str) -> str:
    """Return a table's path where Spark's disk is not that of this process, which looks nowhere.

    Raises:
        InvalidInput: It is relative, and who applies the change may have another folder.
    """
    if not name.startswith("/") and _SCHEME.match(name) is None:
        raise InvalidInput(
            f"The path {shown(name)} is relative, to a folder that Spark or whoever applies the "
            "change may not have: give it from the root on, or with its scheme.",
            name=name,
        )
    return name.rstrip("/") or "/"


def merge(change: Change, source: str, transaction_id: str) -> str:
    """Return the MERGE of a change that is not an append.

    Updates and deletes are MERGEs too: a DELETE that finds nothing would leave no trace in the
    table's log, and could not be distinguished from one that never ran.

    Args:
        change: The change.
        source: The view of the staged rows.
        transaction_id: The id that rows written with lineage carry.
    """
    clauses = []
    if change.delete is not None:
        clauses.append(f"WHEN MATCHED AND ({closed(change.delete)}) THEN DELETE")
    lineage = {LINEAGE_COLUMN: literal(transaction_id)} if change.lineage else {}
    if change.update:
        written = {**change.update, **lineage}
        sets = ", ".join(
            f"target.{identifier(name)} = {closed(text)}" for name, text in written.items()
        )
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {sets}")
    if change.insert:
        clauses.append(f"WHEN NOT MATCHED THEN {_insert({**change.insert, **lineage})}")
    return f"{_merge_into(change, source)} {' '.join(clauses)}"


def as_condition(change: Change, source: str, name: str, text: str, *, inserted: bool) -> str:
    """Return a MERGE whose condition is one of the values that a change writes.

    Args:
        change: The change.
        source: The view of the staged rows.
        name: The column.
        text: The value, as SQL.
        inserted: Whether it is that of a new row, which sees only the staged rows.
    """
    condition = f"(({closed(text)}) IS NULL)"
    if inserted:
        clause = f"WHEN NOT MATCHED AND {condition} THEN {_insert({name: text})}"
    else:
        clause = f"WHEN MATCHED AND {condition} THEN DELETE"
    return f"{_merge_into(change, source)} {clause}"


def _merge_into(change: Change, source: str) -> str:
    using = identifier(source) if change.operation == MERGE else NOTHING
    return (
        f"MERGE INTO {table_name(change.table)} AS target USING {using} AS source "
        f"ON ({closed(change.condition or '')})"
    )


def nothing(change: Change) -> str:
    """Return a MERGE that changes nothing but uses up the change's number."""
    return (
        f"MERGE INTO {table_name(change.table)} AS target USING {NOTHING} AS source "
        "ON false WHEN MATCHED THEN DELETE"
    )


def _insert(values: Mapping[str, str]) -> str:
    names = ", ".join(map(identifier, values))
    return f"INSERT ({names}) VALUES ({', '.join(map(closed, values.values()))})"


def closed(sql: str) -> str:
    """End SQL that others wrote with its line, so that a comment in it ends there, too.

    A backslash just before the end of the line would continue the comment.
    """
    return f"{sql} \n"


def is_merge(change: Change) -> bool:
    """Return whether a change is applied by a MERGE."""
    return change.operation in (MERGE, UPDATE, DELETE)
