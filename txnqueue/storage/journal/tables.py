"""The Delta tables of a store: columns, properties, names and SQL literals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

JOURNAL_COLUMNS: tuple[tuple[str, str], ...] = (
    ("shard", "string"),
    ("stream", "string"),
    ("sequence", "bigint"),
    ("kind", "string"),
    ("append_id", "string"),
    ("ordinal", "int"),
    ("index", "int"),
    ("transaction_key", "string"),
    ("attempt", "string"),
    ("begun", "bigint"),
    ("queue_id", "string"),
    ("lane", "int"),
    ("claim_lane", "int"),
    ("claim_sequence", "bigint"),
    ("ranges", "array<struct<first:bigint,last:bigint>>"),
    ("count", "bigint"),
    ("reason", "string"),
    ("actor", "string"),
    ("run_id", "string"),
    ("recorded_at", "timestamp"),
    ("body", "string"),
)

_COMMON = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.autoOptimize.autoCompact": "false",
    "delta.autoOptimize.optimizeWrite": "false",
    "delta.isolationLevel": "Serializable",
    # Commit times never decrease; and writers outside Spark, which are unaware of the journal,
    # refuse a table with this feature.
    "delta.enableInCommitTimestamps": "true",
}
JOURNAL_PROPERTIES = {
    **_COMMON,
    "delta.enableRowTracking": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.dataSkippingStatsColumns": "stream,kind,append_id,sequence",
    "delta.constraints.entry_is_named": "append_id IS NOT NULL AND kind IS NOT NULL",
    "delta.constraints.counts_are_not_negative": "count IS NULL OR count >= 0",
}
PAYLOAD_PROPERTIES = {
    **_COMMON,
    # Whatever the session's default for new tables: a feed would repeat rows that are erased.
    "delta.enableChangeDataFeed": "false",
    "delta.dataSkippingStatsColumns": "send_id,send_offset",
    "parquet.writer.version": "PARQUET_2_0",
}
ARCHIVE_PROPERTIES = {
    **_COMMON,
    "delta.dataSkippingStatsColumns": "stream,kind,append_id,commit_seq",
}
PAYLOAD_COMMENT = "Raw payload, including uncommitted and consumed rows: read the view"
JOURNAL_COMMENT = "Immutable entries of a txnqueue store: read the views"
ARCHIVE_COMMENT = "Finished entries of a txnqueue store: read the views"
SESSION_CATALOG = "spark_catalog"
"""The name of Spark's own catalog in every session."""
TABLE_PREFIX = "txnqueue_"
"""The prefix of a store's tables in a catalog schema, which no view has."""
PAYLOAD_PREFIX = f"{TABLE_PREFIX}payload_"
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/@#%&*+=|(){}\[\]<>?!\"^~-]*")
"""Text that is literal between quotes, whatever the session's rules for escapes and variables."""
_WILDCARD = re.compile(r"[][{}*?\\]")
_STEPS = "priority:int,available_step:bigint,expires_step:bigint"
ARRANGEMENT_TYPE = f"struct<lane:int,{_STEPS}>"
ROUTED_TYPE = f"struct<route:string,{_STEPS}>"
"""The type of the places of published rows, in lanes of several queues."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """The names of a store's tables in SQL, by path or in a catalog schema."""

    root: str
    by_path: bool

    @classmethod
    def of(cls, root: str) -> TableNames:
        """Return the names for a root: a path if it has a "/", otherwise a catalog schema."""
        return cls(root.rstrip("/") if "/" in root else root, "/" in root)

    @property
    def journal(self) -> str:
        """The journal's table, quoted for SQL."""
        return self._table("journal", f"{TABLE_PREFIX}journal")

    @property
    def archive(self) -> str:
        """The archive's table, quoted for SQL."""
        return self._table("archive", f"{TABLE_PREFIX}archive")

    def payload(self, payload_id: str) -> str:
        """An owner's payload table, quoted for SQL."""
        return self._table(f"payload/{payload_id}", self.payload_table(payload_id))

    @staticmethod
    def payload_table(payload_id: str) -> str:
        """The name of an owner's payload table in a catalog schema."""
        return PAYLOAD_PREFIX + payload_id.replace(".", "_").replace("-", "_")

    @property
    def namespace(self) -> list[str]:
        """The catalog and the schema; no parts if the store has a path."""
        if self.by_path:
            return []
        parts = self.root.split(".")
        return parts if len(parts) > 1 else [SESSION_CATALOG, *parts]

    @property
    def schema(self) -> str:
        """The catalog schema with its catalog, quoted for SQL."""
        return ".".join(map(identifier, self.namespace))

    def _table(self, folder: str, name: str) -> str:
        if self.by_path:
            return f"delta.{identifier(f'{self.root}/{folder}')}"
        return f"{self.schema}.{identifier(name)}"


def identifier(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str | int | None) -> str:
    """Write a value as a SQL literal, safe from its contents and from variable substitution."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return f"{value}L" if not isinstance(value, bool) else str(value).lower()
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"CAST(X'{value.encode().hex()}' AS string)"


def verbatim(path: str) -> str:
    """Write a path for Spark's readers of files, which take brackets and the like for wildcards."""
    return _WILDCARD.sub(r"\\\g<0>", path)


def literals(values: Iterable[str]) -> str:
    """Write a list of strings for ``IN``."""
    return ", ".join(literal(value) for value in values)


def uncached(table: str) -> str:
    """Write a relation that has a table's rows as they are now.

    If a user has cached a DataFrame of a whole table, Spark answers each query of the application
    that reads it with the rows of that moment, to which other drivers may have added since. One
    that names the files, too, is not that query; Spark's optimizer removes the condition.
    """
    return f"(SELECT * FROM {table} WHERE _metadata.file_name IS NOT NULL)"


def properties(values: dict[str, str]) -> str:
    """Write table properties for CREATE TABLE."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in values.items())


def create_journal(names: TableNames) -> str:
    """Write the statement that creates the journal."""
    columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in JOURNAL_COLUMNS)
    return (
        f"CREATE TABLE IF NOT EXISTS {names.journal} ({columns}) USING delta "
        f"PARTITIONED BY (shard) COMMENT {literal(JOURNAL_COMMENT)} "
        f"TBLPROPERTIES ({properties(JOURNAL_PROPERTIES)})"
    )


def create_archive(names: TableNames) -> str:
    """Write the statement that creates the archive."""
    columns = ", ".join(f"{identifier(name)} {kind}" for name, kind in JOURNAL_COLUMNS)
    return (
        f"CREATE TABLE IF NOT EXISTS {names.archive} ({columns}, commit_seq bigint, day date) "
        f"USING delta PARTITIONED BY (day) COMMENT {literal(ARCHIVE_COMMENT)} "
        f"TBLPROPERTIES ({properties(ARCHIVE_PROPERTIES)})"
    )


def create_payload(
    names: TableNames, payload_id: str, columns: str, *, routed: bool = False
) -> str:
    """Write the statement that creates an owner's payload table, a queue's or an exchange's."""
    arrangement = ROUTED_TYPE if routed else ARRANGEMENT_TYPE
    return (
        f"CREATE TABLE IF NOT EXISTS {names.payload(payload_id)} (send_id string NOT NULL, "
        f"send_offset bigint NOT NULL, slice bigint NOT NULL, {columns}, "
        f"headers map<string,string>, arrangement {arrangement}) USING delta "
        f"PARTITIONED BY (slice) COMMENT {literal(PAYLOAD_COMMENT)} "
        f"TBLPROPERTIES ({properties(PAYLOAD_PROPERTIES)})"
    )
