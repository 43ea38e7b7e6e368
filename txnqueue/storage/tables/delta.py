"""The user's Delta tables: describing, checking, and applying each change once."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput, PayloadRemoved, TxnQueueError
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.exceptions import UsersTable, is_altered, misnamed
from txnqueue.storage.journal.location import canonical_root, default_elsewhere
from txnqueue.storage.journal.sessions import (
    APPLICATION,
    LAST_COMMIT,
    NUMBER,
    USER_METADATA,
    is_connect,
)
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload.delta import DeltaPayload
from txnqueue.storage.payload.staging import FEW_ROWS
from txnqueue.storage.tables import (
    APPEND,
    LINEAGE_COLUMN,
    Change,
    CommitStamp,
    Filled,
    Source,
    TableCommit,
    TableConflict,
    TableInfo,
    check_appends,
)
from txnqueue.storage.tables.constraints import (
    broken,
    check_columns,
    check_names,
    compared_key,
    completed,
    emptied,
    filled_by,
    lengths_of,
    rules,
)
from txnqueue.storage.tables.statements import (
    as_condition,
    is_merge,
    is_whole,
    merge,
    nothing,
    path_elsewhere,
    table_name,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructType

    from txnqueue.storage.tables import StagedRows

logger = logging.getLogger("txnqueue")
_CONSTRAINT = "delta.constraints."
_NUMBERS_KEPT = "delta.setTransactionRetentionDuration"
"""How long a table keeps the numbers of changes; for ever if it is not set."""
_SOURCE = "txnqueue_source"
"""The view of a merge's staged rows."""
_READS = re.compile(r"\b(select|table|from|values)\b", re.IGNORECASE)
"""A word without which no value reads a table."""
_SUBQUERY = re.compile(r"UNSUPPORTED_SUBQUERY|subqueries are not supported", re.IGNORECASE)
_PLANNING_FAILED = "Error occurred during query planning:"
_NO_TABLE = (
    "NOT_FOUND",
    "DELTA_MISSING",
    "DOES_NOT_EXIST",
    "doesn't exist",
    "PATH_NOT_EXIST",
    "REQUIRES_SINGLE_PART_NAMESPACE",
)
_OTHER = ("NOT_A_DELTA_TABLE", "ONLY_OPERATION", "EXPECT_TABLE_NOT_VIEW")
_FILLING = frozenset({"generatedColumns", "identityColumns"})
"""Features of tables that fill in columns, which are named only in the log."""
_HISTORY_ROWS = 50
_SMALL_BYTES = 16 << 20
"""Below this size, reading and changing are faster without compiling code first."""


class DeltaTables:
    """Delta tables by path or catalog name, changed on the library's own session."""

    def __init__(
        self, statements: Statements, payload: DeltaPayload, staged: StagedRows | None = None
    ) -> None:
        """Use the tables that a user's session sees.

        Args:
            statements: Runs statements on the library's sessions.
            payload: The payload in which rows of changes are staged.
            staged: Returns rows that are staged elsewhere.
        """
        self._statements = statements
        self._payload = payload
        self._staged = staged
        self._bytes: dict[str, int] = {}  # the sizes of tables when last described

    def for_rows_of(self, staged: StagedRows) -> DeltaTables:
        """Give the same tables for changes whose rows are staged elsewhere."""
        return DeltaTables(self._statements, self._payload, staged)

    def describe(self, name: str) -> TableInfo | None:
        """Describe a table; None if there is no table with that name.

        Raises:
            InvalidInput: It is not a Delta table, or a damaged one, or the name cannot be that of
                a table.
            StoreError: Its host is not found.
        """
        found = self._described(name)
        if found is None:
            return None
        whole, detail, schema, version = found
        self._bytes[detail["id"]] = detail["sizeInBytes"] or 0
        # Others may have named the table by its path.
        named = detail["name"] or whole
        name = named if is_whole(named) and "/" not in whole else whole
        filled, lengths = self._statements.run(
            lambda: (self._filled(detail, schema), lengths_of(schema)), table=UsersTable(name)
        )
        return _info_of(name, detail, schema, version, filled=filled, lengths=lengths)

    def check(self, info: TableInfo, change: Change, transaction_id: str) -> None:
        """Check all that can be known of a change before it is decided.

        Raises:
            InvalidInput: The table would refuse it, or is damaged.
        """
        check_appends(info, change)
        check_columns(info, change)
        check_names(info, change)
        self._statements.alone(
            lambda session: self._check(session, info, change, transaction_id),
            compiled=self._is_large(change),
            table=UsersTable(info.name, beside=self._payload.folder),
        )

    def apply(self, change: Change, stamp: CommitStamp, *, empty: bool = False) -> int | None:
        """Apply a change by one commit of the table, or only use up its number."""

        def statement(session: SparkSession) -> int | None:
            try:
                session.conf.set(APPLICATION, stamp.application_id)
                session.conf.set(NUMBER, str(stamp.number))
                session.conf.set(USER_METADATA, json.dumps(dict(stamp.note)))
                session.conf.unset(LAST_COMMIT)
                if not empty:
                    self._check_staged(session, change)
                if empty:
                    session.sql(nothing(change)).collect()
                elif is_merge(change):
                    session.sql(self._merge(session, change, stamp.transaction_id)).collect()
                else:
                    self._append(session, change, stamp.transaction_id)
                version = session.conf.get(LAST_COMMIT, None)
            finally:
                for key in (APPLICATION, NUMBER, USER_METADATA):
                    session.conf.unset(key)
            return None if version is None else int(version)

        try:
            table, compiled = f"table-{change.table_id}", self._is_large(change)
            return self._statements.committing(table, statement, compiled=compiled)
        except Exception as error:
            if isinstance(error, AppendConflict) or is_altered(error):
                raise TableConflict(str(error)) from error
            raise

    def rows_of(self, source: Source) -> pa.Table:
        """Read the rows of a change; fewer, if their payload was removed."""
        session = self._statements.session
        return self._statements.run(lambda: self._source(session, source).toArrow())

    def history(self, name: str, after: int) -> list[TableCommit]:
        """List the commits of a table after a version, newest first.

        Raises:
            InvalidInput: The table is damaged.
        """
        rows: list[Row] = []
        limit = _HISTORY_ROWS
        while True:
            query = f"DESCRIBE HISTORY {table_name(name)} LIMIT {limit}"
            session = self._statements.session
            asked = partial(_collected, session, query)
            rows = self._statements.run(asked, table=UsersTable(name))
            if len(rows) < limit or rows[-1]["version"] <= after:
                return [_commit(row) for row in rows if row["version"] > after]
            limit *= 4

    # -------------------------------------------------------------------------- helpers

    def _described(self, name: str) -> tuple[str, Row, StructType, int] | None:
        """Ask Delta about a table; None if there is none.

        Returns:
            Its whole name, Delta's details, its columns and its newest version.

        Raises:
            InvalidInput: As in ``describe``.
            StoreError: As in ``describe``.
        """

        def statement() -> tuple[str, Row, StructType, int | None]:
            session, whole = self._statements.session, self._whole(name)
            table = table_name(whole)
            detail = session.sql(f"DESCRIBE DETAIL {table}").collect()[0]
            newest = session.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()
            version = int(newest[0]["version"]) if newest else None  # it was deleted meanwhile
            return whole, detail, session.table(table).schema, version

        try:
            whole, detail, schema, version = self._statements.run(statement, table=UsersTable(name))
        except TxnQueueError:  # it may quote what is looked for below
            raise
        except Exception as error:
            said = _said(error)
            if any(sign in said for sign in _NO_TABLE):
                return None
            refused = _not_a_delta_table(error, name)
            if refused is None:
                raise
            raise refused from error
        return None if version is None else (whole, detail, schema, version)

    def _whole(self, name: str) -> str:
        """Return a table's whole name, as the user's session means it now.

        Only that knows its schema and catalog; the library's begin in Spark's own. Delta names the
        catalog, unless a setting of the session (``v1IdentifierNoCatalog``) leaves it out.

        Raises:
            InvalidInput: It is a path that leads nowhere, or is relative to a folder elsewhere.
        """
        if "/" in name:
            return canonical_root(name) if self._is_here else path_elsewhere(name)
        if is_whole(name):
            return name
        user = self._statements.user
        detail = user.sql(f"DESCRIBE DETAIL {table_name(name)}").collect()[0]
        whole = str(detail["name"] or name)
        return whole if is_whole(whole) else f"{user.catalog.currentCatalog()}.{whole}"

    @cached_property
    def _is_here(self) -> bool:
        """Whether a path without a scheme is one on this process's disk for Spark, too."""
        if is_connect(self._statements.user):
            return False
        return default_elsewhere(self._statements.session) is None

    def _filled(self, detail: Row, schema: StructType) -> Filled:
        """Find the columns that a table fills in.

        Some are unknown if Spark runs in another process, or Delta is not the open-source version.
        """
        if not _FILLING.intersection(detail["tableFeatures"] or ()):
            return filled_by(schema, {})
        session = self._statements.session
        if is_connect(session):
            return filled_by(schema, None)
        from py4j.protocol import Py4JError

        try:
            logs = session._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
            log = logs.forTable(session._jsparkSession, detail["location"])
            columns = json.loads(log.unsafeVolatileSnapshot().metadata().schemaString())["fields"]
        except (Py4JError, TypeError) as error:
            logger.info("columns that a table fills in are not known error=%s", error)
            return filled_by(schema, None)
        return filled_by(schema, {column["name"]: column["metadata"] for column in columns})

    def _is_large(self, change: Change) -> bool:
        """Return whether a change is large enough for compiling to pay."""
        few = change.source is None or change.source.count <= FEW_ROWS
        size = self._bytes.get(change.table_id)
        small = change.operation == APPEND or (size is not None and size <= _SMALL_BYTES)
        return not (few and small)

    def _source(self, session: SparkSession, source: Source) -> DataFrame:
        """Return staged rows with their own column names."""
        owner, ids = source.payload_id, source.send_ids
        if self._staged is not None:
            staged = self._staged(session, owner, ids)
        else:
            staged = self._payload.staged(session, owner, source.slice, ids)
        names = (f"c{number} AS {identifier(name)}" for number, name in enumerate(source.names))
        return staged.selectExpr(*names)

    def _check_staged(self, session: SparkSession, change: Change) -> None:
        """Check that all rows of a change are there: a statement would merely find fewer.

        Raises:
            PayloadRemoved: Some are missing.
        """
        source = change.source
        if source is None:
            return
        rows = self._source(session, source)
        if source.count <= FEW_ROWS:
            rows = rows.coalesce(1)  # so they are counted without a shuffle
        found = rows.count()
        if found != source.count:
            raise PayloadRemoved(
                f"{found} of the {source.count} rows of the {change.operation} on {change.table!r} "
                f"are in the payload table {source.payload_id!r}: it was set back, or copied "
                "before they were staged.",
                name=source.payload_id,
            )

    def _merge(self, session: SparkSession, change: Change, transaction_id: str) -> str:
        if change.source is not None:
            self._source(session, change.source).createOrReplaceTempView(_SOURCE)
        return merge(change, _SOURCE, transaction_id)

    def _rows(self, session: SparkSession, change: Change, transaction_id: str) -> DataFrame:
        """Return the rows that an append adds."""
        assert change.source is not None
        frame = self._source(session, change.source)
        if change.lineage:
            frame = frame.withColumn(LINEAGE_COLUMN, F.lit(transaction_id))
        return frame

    def _append(self, session: SparkSession, change: Change, transaction_id: str) -> None:
        """Append rows to a table that is there: ``saveAsTable`` would create it anew."""
        rows, table = self._rows(session, change, transaction_id), table_name(change.table)
        if "/" in change.table:
            # Delta makes a table at any path that has none, so Spark is asked just before.
            _ = session.table(table).schema
            rows.write.format("delta").mode("append").save(change.table)
        else:
            rows.writeTo(table).append()

    def _check(
        self, session: SparkSession, info: TableInfo, change: Change, transaction_id: str
    ) -> None:
        if is_merge(change):
            reason = self._refusal(session, self._merge(session, change, transaction_id))
            if reason:
                raise InvalidInput(
                    f"The {change.operation} on {info.name!r} cannot be done: {_first(reason)}",
                    table=info.name,
                )
            self._check_reads_alone(session, info, change)
            if change.source is not None:
                self._check_keys(self._source(session, change.source), change, info)
        else:
            self._check_rules(self._rows(session, change, transaction_id), info)

    def _check_reads_alone(self, session: SparkSession, info: TableInfo, change: Change) -> None:
        """Check that the values written come from the rows and the table alone.

        They are computed after the commit, maybe days later and by another client, for which other
        tables may hold something else, and their names may mean others. Delta refuses to read
        tables in conditions only, so that it is asked about each value as a condition.
        """
        for inserted, values in ((False, change.update), (True, change.insert)):
            for name, text in (values or {}).items():
                if _READS.search(text) is None:
                    continue
                asked = as_condition(change, _SOURCE, name, text, inserted=inserted)
                if _SUBQUERY.search(self._refusal(session, asked)):
                    raise InvalidInput(
                        f"The value of {name!r} in the {change.operation} on {info.name!r} reads a "
                        "table: read it first, and give its rows or the value.",
                        column=name,
                    )

    @staticmethod
    def _check_rules(frame: DataFrame, info: TableInfo) -> None:
        """Check with one query that rows meet the requirements of the table."""
        wanted = rules(info, frame.columns)
        if not wanted:
            return
        for added in completed(info, frame.columns):
            frame = frame.selectExpr("*", *added)
        frame = frame.selectExpr(*emptied(info, frame.columns))
        found = frame.selectExpr(*(f"count_if(NOT ({rule}))" for rule in wanted.values())).collect()
        for name, count in zip(wanted, found[0], strict=True):
            if count:
                raise broken(info, name, count)

    @staticmethod
    def _refusal(session: SparkSession, statement: str) -> str:
        """Let Spark plan a statement, and return why it cannot; empty if it can."""
        from pyspark.errors import AnalysisException

        try:
            rows = session.sql(f"EXPLAIN {statement}").collect()
        except AnalysisException as error:  # not even valid SQL
            return str(error)
        plan = "\n".join(row[0] for row in rows)  # an error has a row for each of its lines
        failed = plan.lstrip().startswith(_PLANNING_FAILED)  # else a text of the statement says so
        return plan.partition(_PLANNING_FAILED)[2] if failed else ""

    @staticmethod
    def _check_keys(frame: DataFrame, change: Change, info: TableInfo) -> None:
        """Check that no two rows have the same keys.

        They would match the same row of the table; and where none matches, both would be inserted.
        """
        if not change.keys:
            return
        names = [f"_{number}" for number in range(len(change.keys))]
        compared = [
            f"{compared_key(name, frame.schema[name].dataType, info)} AS {alias}"
            for name, alias in zip(change.keys, names, strict=True)
        ]
        counted = frame.selectExpr(*compared).dropna().groupBy(*names).agg(F.count("*"))
        twice = counted.where(F.col(counted.columns[-1]) > 1).take(1)
        if twice:
            *values, count = twice[0]
            keys = dict(zip(change.keys, values, strict=True))
            raise InvalidInput(
                f"The rows to merge contain {keys} {count} times: give each key once.",
                keys=keys,
                in_rows=True,
            )


def _said(error: Exception) -> str:
    """Return what Spark says of a statement that it refuses; empty for other errors."""
    from pyspark.errors import AnalysisException

    return str(error) if isinstance(error, AnalysisException) else ""


def _not_a_delta_table(error: Exception, name: str) -> TxnQueueError | None:
    """Return the error that says that a name is of no Delta table; None if it is another one."""
    said = _said(error)
    if any(sign in said for sign in _OTHER):
        return InvalidInput(
            f"{name!r} is not a Delta table: convert it with CONVERT TO DELTA, or name "
            "another one.",
            name=name,
        )
    remedy = "Give a path that Spark can open, or the name of a table."
    return misnamed(error, f"table({shown(name)})", remedy, name)


def _info_of(
    name: str,
    detail: Row,
    schema: StructType,
    version: int,
    *,
    filled: Filled,
    lengths: Mapping[str, DataType],
) -> TableInfo:
    """Describe a table from Delta's details."""
    properties = detail["properties"] or {}
    constraints = {
        key.removeprefix(_CONSTRAINT): text
        for key, text in properties.items()
        if key.startswith(_CONSTRAINT)
    }
    # Others may have written it in capitals, as Delta reads it.
    append_only = properties.get("delta.appendOnly", "").strip().lower() == "true"
    return TableInfo(
        name,
        detail["id"],
        version,
        schema,
        constraints,
        append_only,
        filled,
        lengths,
        tuple(detail["partitionColumns"]),
        _NUMBERS_KEPT in properties,
    )


def _collected(session: SparkSession, query: str) -> list[Row]:
    return session.sql(query).collect()


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _commit(row: Row) -> TableCommit:
    mode = (row["operationParameters"] or {}).get("mode")
    try:
        note = json.loads(row["userMetadata"] or "{}")
    except ValueError:
        note = {}
    if not isinstance(note, dict):
        note = {}
    return TableCommit(int(row["version"]), row["operation"], mode, note)
