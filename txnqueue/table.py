"""A user's Delta table, which a transaction changes when it commits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue.core.settings import (
    check_column_names,
    check_predicate,
    is_text,
    plain_text,
    shown,
)
from txnqueue.errors import InvalidInput, LimitExceeded, SchemaMismatch
from txnqueue.messages.send import staged_runs
from txnqueue.storage.payload import STAGING, STAGING_DIGITS, Send
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.frames import check_not_streaming
from txnqueue.storage.tables import (
    APPEND,
    CHANGES_PER_TRANSACTION_MAX,
    DELETE,
    LINEAGE_COLUMN,
    MERGE,
    UPDATE,
    Change,
    Source,
    TableInfo,
    assignments,
)
from txnqueue.transactions.table_changes import look
from txnqueue.types import Rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnqueue.transactions.attempt import Attempt


Assignments = Mapping[str, str] | str | None
"""New values by column: SQL, ``"*"`` for all of the source's columns, None for no change."""


class TableChanges:
    """One of the user's Delta tables, changed by a transaction when it commits."""

    def __init__(self, transaction: Attempt, name: str, *, lineage: bool) -> None:
        """Hold a table and its transaction; users get this from ``tx.table``."""
        self._transaction = transaction
        self._client = transaction.client
        self._name = _table_name(name)
        self._lineage = lineage

    def __repr__(self) -> str:
        """Show the table and the transaction."""
        return f"<table {self._name} in transaction {self._transaction.id}>"

    @property
    def schema(self) -> StructType:
        """The table's current columns.

        Raises:
            TableNotFound: There is no such table.
        """
        return look(self._client, self._name).schema

    def append(self, rows: Rows) -> int:
        """Append rows.

        Args:
            rows: A DataFrame, a pandas or Arrow table, or a list of dicts, with the table's
                columns. The table fills a missing column (by a default, a generation expression or
                an identity), otherwise it is null. A ``_message`` column is ignored.

        Returns:
            The number of staged rows.

        Raises:
            TableNotFound: There is no such table.
            SchemaMismatch: A column is unknown, missing, of another type, or one that only the
                table numbers; or, with ``lineage=True``, the table lacks the column for it.
            InvalidInput: Rows break a constraint of the table, are too long for a ``char`` or
                ``varchar``, or contradict a generated column.
            LimitExceeded: The transaction has as many table changes as it can have.
            TransactionFinished: The transaction takes no more work.
        """
        info = self._begin()
        if info is None:
            return 0
        columns = [c for c in info.schema.fields if not (self._lineage and _is_lineage(c.name))]
        source = self._stage(rows, type(info.schema)(columns), filled=info.filled)
        return self._add(info, APPEND, source)

    def merge(
        self,
        rows: Rows,
        on: str | Sequence[str] | None = None,
        *,
        condition: str | None = None,
        update: Assignments = None,
        insert: Assignments = None,
        delete: str | None = None,
    ) -> int:
        """Merge rows: update, delete or insert depending on what matches.

        Args:
            rows: As in ``append``, with columns of any names.
            on: The column or columns to match, with the same names on both sides. No two rows
                may have the same values in them.
            condition: Instead, SQL over ``target`` and ``source``. This and all other SQL of
                changes is evaluated in UTC and as ANSI SQL, whatever the session's settings.
            update: The new values of matched rows: SQL over ``target`` and ``source`` by
                column, or ``"*"`` for all columns of the rows.
            insert: The values inserted for rows without a match: SQL over ``source`` by column, or
                ``"*"``.
            delete: Which matched rows to delete instead, as SQL.

        Returns:
            The number of staged rows.

        Raises:
            TableNotFound: There is no such table.
            SchemaMismatch: With ``lineage=True``, the table lacks the column for it.
            InvalidInput: The table would refuse the merge, or a value reads another table.
            LimitExceeded: The transaction has as many table changes as it can have.
            TransactionFinished: The transaction takes no more work.

        Example::

            tx.table("gold.totals").merge(
                totals, on="customer", update={"total": "target.total + source.total"}, insert="*"
            )
        """
        if (on is None) == (condition is None):
            raise InvalidInput("Give either on= (columns) or condition= (SQL).")
        keys = () if on is None else check_column_names("on", on)
        condition = None if condition is None else check_predicate(condition, "condition")
        delete = None if delete is None else check_predicate(delete, "delete")
        _check_assignments(update=update, insert=insert)
        if not (update or insert or delete):
            raise InvalidInput("The merge does nothing: give update=, insert= or delete=.")
        info = self._begin()
        if info is None:
            return 0
        whole = "*" in (update, insert)
        source = self._stage(
            rows, None, lambda name: info if whole or name in keys else None, keys=(keys, info)
        )
        match = condition
        if match is None:
            target = assignments(keys, "target")
            match = " AND ".join(f"{target[k]} = {v}" for k, v in assignments(keys).items())
        return self._add(
            info,
            MERGE,
            source,
            condition=match,
            update=_written(update, source.names),
            insert=_written(insert, source.names),
            delete=delete,
            keys=keys,
        )

    def update(self, set: Mapping[str, str], where: str) -> None:
        """Update rows of the table, which the statement calls ``target``.

        Args:
            set: SQL over the table's columns, by column; evaluated in UTC, as ``where`` is.
            where: Which rows, as SQL over the table's columns.

        Raises:
            TableNotFound: There is no such table.
            SchemaMismatch: With ``lineage=True``, the table lacks the column for it.
            InvalidInput: The table would refuse the update, a value reads another table, or a
                name may be that of two columns.
            LimitExceeded: The transaction has as many table changes as it can have.
            TransactionFinished: The transaction takes no more work.
        """
        _check_assignments(star=False, set=set)
        if not set:
            raise InvalidInput(
                f"set={shown(set)}: give at least one column and its new value.", name="set"
            )
        condition = check_predicate(where)
        info = self._begin()
        if info is not None:
            self._add(info, UPDATE, None, condition=condition, update=_written(set, ()))

    def delete(self, where: str) -> None:
        """Delete rows of the table, which the statement calls ``target``.

        Args:
            where: Which rows, as SQL over the table's columns; evaluated in UTC and as ANSI SQL.

        Raises:
            TableNotFound: There is no such table.
            SchemaMismatch: With ``lineage=True``, the table lacks the column for it.
            InvalidInput: The table would refuse the delete, or a name may be that of two columns.
            LimitExceeded: The transaction has as many table changes as it can have.
            TransactionFinished: The transaction takes no more work.
        """
        condition = check_predicate(where)
        info = self._begin()
        if info is not None:
            self._add(info, DELETE, None, condition=condition, delete="true")

    # -------------------------------------------------------------------------- helpers

    def _begin(self) -> TableInfo | None:
        """Look at the table; return None if the transaction's id was committed before."""
        self._transaction.check_active()
        if self._transaction.already_committed:
            return None
        info = look(self._client, self._name)
        if self._lineage and not any(_is_lineage(name) for name in info.schema.names):
            raise SchemaMismatch(
                f"lineage=True needs a column {LINEAGE_COLUMN}: run ALTER TABLE {self._name} ADD "
                f"COLUMN {LINEAGE_COLUMN} string.",
                column=LINEAGE_COLUMN,
            )
        return info

    def _stage(
        self,
        rows: object,
        schema: StructType | None,
        meets: Callable[[str], TableInfo | None] = lambda _name: None,
        filled: Container[str] = (),
        keys: tuple[Sequence[str], TableInfo] | None = None,
    ) -> Source:
        """Stage rows.

        Args:
            rows: The rows as the user gave them.
            schema: The columns that the rows must fit; None: any columns.
            meets: Returns the table whose column of this name gets a column's values unchanged.
            filled: Columns of the schema that stay absent if the rows lack them.
            keys: Columns that both the rows and a table must have, and the table.
        """
        from txnqueue.storage.payload.rows import check_instants, source_rows
        from txnqueue.storage.payload.types import sql_type

        client, tx = self._client, self._transaction
        check_not_streaming(rows, "a table change", "manager.sink(handler)")
        given, columns = source_rows(rows, schema, filled)
        if keys is not None:
            _check_keys(columns.names, *keys)
        for column in columns.fields:
            target = meets(column.name)
            if target is not None:
                check_instants(column, target.schema, target.name)
        plain, staged = _under_plain_names(given, columns)
        types = ",".join(sql_type(column.dataType) for column in staged.fields)
        digest = hashlib.md5(types.encode(), usedforsecurity=False).hexdigest()
        payload_id = f"{STAGING}{digest[:STAGING_DIGITS]}"
        client.create_staging(payload_id, staged)
        note = {"transaction_id": tx.id, "table": self._name, **client.author()}
        send_id = client.runtime.new_id()
        send = Send(payload_id, tx.slice, send_id, staged, 1, None, note=note)
        send, runs = staged_runs(client, send, plain)
        count = sum(run.count for run in runs)
        return Source(payload_id, send.slice, send.send_id, count, columns.jsonValue())

    def _add(self, info: TableInfo, operation: str, source: Source | None, **what: Any) -> int:
        """Record a change after checking that the table would take it."""
        if source is not None and not source.count:
            return 0
        tx = self._transaction
        lineage = self._lineage and operation != DELETE
        change = Change(
            _number_in(tx),
            info.name,
            info.table_id,
            info.version,
            operation,
            source,
            lineage=lineage,
            **what,
        )
        self._client.store.tables.check(info, change, tx.id)
        with tx.adding():  # another thread may have added one meanwhile: no two have one number
            tx.changes.append(replace(change, number=_number_in(tx)))
        return source.count if source else 0


def _number_in(tx: Attempt) -> int:
    """Return the number of a transaction's next change.

    Raises:
        LimitExceeded: It has as many as there can be.
    """
    number = len(tx.changes)
    if number >= CHANGES_PER_TRANSACTION_MAX:
        raise LimitExceeded(
            f"A transaction takes at most {CHANGES_PER_TRANSACTION_MAX} table changes: put "
            "rows of one table into one call, or use several transactions."
        )
    return number


def _check_keys(columns: Sequence[str], keys: Sequence[str], info: TableInfo) -> None:
    """Check that rows and a table can be matched.

    Raises:
        InvalidInput: One of them lacks a column.
    """
    for key in keys:
        if key not in columns or key not in info.schema.names:
            raise InvalidInput(
                f"on={shown(key)} is not a column of both the rows and {info.name!r}: name columns "
                "that both have.",
                name=key,
            )


def _written(what: Assignments, names: Sequence[str]) -> dict[str, str] | None:
    if what is None:
        return None
    if isinstance(what, str):
        return assignments(names)
    return {plain_text(name): plain_text(sql) for name, sql in what.items()}


def _check_assignments(*, star: bool = True, **given: object) -> None:
    """Check assignments of columns: only text is certain to be the intended SQL.

    Args:
        star: Whether ``"*"`` is allowed.
        **given: The assignments, by argument name.

    Raises:
        InvalidInput: One of them is no assignment.
    """
    for name, what in given.items():
        if what is None or (star and isinstance(what, str) and what == "*"):
            continue
        if not isinstance(what, Mapping) or not all(
            is_text(text) and text.strip() for text in (*what, *what.values())
        ):
            otherwise = ", or '*'" if star else ""
            raise InvalidInput(
                f"{name}={shown(what)}: give a dict of SQL by column, such as "
                f"{{'total': '0'}}{otherwise}.",
                name=name,
            )


def _table_name(name: object) -> str:
    """Check the name of a table.

    Raises:
        InvalidInput: It is empty or no text.
    """
    if not is_text(name) or not name.strip():
        raise InvalidInput(
            f"table({shown(name)}): give a path or the name of a table.", name="name"
        )
    return plain_text(name)


def _is_lineage(name: str) -> bool:
    return folded(name) == LINEAGE_COLUMN


def _under_plain_names(rows: Any, columns: StructType) -> tuple[Any, StructType]:
    """Rename columns to c0, c1, …: a user's table may have any names, the payload may not."""
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

    names = [f"c{number}" for number in range(len(columns.fields))]
    renamed = rows.rename_columns(names) if isinstance(rows, pa.Table) else rows.toDF(*names)
    fields = [
        StructField(name, c.dataType, True) for name, c in zip(names, columns.fields, strict=True)
    ]
    return renamed, StructType(fields)
