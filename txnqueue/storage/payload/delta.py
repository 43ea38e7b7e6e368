"""Payload in Delta tables: blind appends, read back by literal places."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import StructField, StructType, TimestampNTZType

from txnqueue.core import ranges
from txnqueue.core.settings import MESSAGE_COLUMN
from txnqueue.errors import PayloadRemoved
from txnqueue.platform.log_store import scheme_of
from txnqueue.storage.journal.exceptions import damage
from txnqueue.storage.journal.location import default_elsewhere
from txnqueue.storage.journal.log import CommitLog
from txnqueue.storage.journal.sessions import commit_noted, is_connect
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import (
    PAYLOAD_PREFIX,
    create_payload,
    identifier,
    literal,
    literals,
    uncached,
    verbatim,
)
from txnqueue.storage.payload import (
    STAGING,
    STAGING_DIGITS,
    Part,
    Run,
    Send,
    StagedPlace,
    staging,
)
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.data_files import DataFiles
from txnqueue.storage.payload.file_frame import FILES_MAX, file_frame, may_show
from txnqueue.storage.payload.islands import islands, staged_places
from txnqueue.storage.payload.keys import (
    Lanes,
    Texts,
    by_part,
    check_lanes,
    lane_frame,
    text_query,
    torn,
)
from txnqueue.storage.payload.queries import (
    columns_of,
    definitions,
    guarded_places,
    in_piece,
    message_struct,
    null_column,
    piece_bits,
    places,
    places_to_join,
    spans_of,
)
from txnqueue.storage.payload.refusals import of_columns
from txnqueue.storage.payload.schemas import MESSAGE, described_columns, new_columns
from txnqueue.storage.payload.types import arrow_schema, has_type, sql_type
from txnqueue.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NTZ = "'delta.feature.timestampNtz' = 'supported'"
_SPANS_MAX = 5_000
"""The maximum number of ranges counted by one query."""
_ERASED_MAX = 200
"""The maximum number of ranges named by one DELETE."""
_Span = tuple[int, str, int, int]
"""Slice, send, first and last offset."""
_STALENESS = "spark.databricks.delta.stalenessLimit"


class DeltaPayload:
    """Payload with one Delta table per owner."""

    def __init__(self, statements: Statements) -> None:
        """Use the payload tables of a store."""
        self._statements = statements
        self._user = statements.user
        self._columns: dict[str, dict[str, StructField]] = {}
        self._files: dict[str, DataFiles] = {}

    @property
    def _session(self) -> SparkSession:
        return self._statements.session

    @property
    def folder(self) -> str:
        """What the path of each of its files contains."""
        names = self._statements.names
        return f"{names.root}/payload/" if names.by_path else PAYLOAD_PREFIX

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Create an owner's payload table if it does not exist."""
        columns, names = definitions(schema.fields), self._statements.names

        def statement(session: SparkSession) -> None:
            note = {"txnqueue": __version__, "operation": "create payload", "queue": payload_id}
            text = create_payload(names, payload_id, columns, routed=routed)
            with of_columns():
                commit_noted(session, text, note)

        log = CommitLog(self._statements, names.payload(payload_id))
        log.created(f"payload-{payload_id}", statement, f"payload/{payload_id}")

    def add_columns(self, payload_id: str, columns: StructType) -> None:
        """Add columns to an owner's payload table; existing ones are not changed."""
        table = self._statements.names.payload(payload_id)

        def lacking(session: SparkSession) -> list[StructField]:
            there = session.sql(f"SELECT * FROM {table}").schema.fields
            return new_columns({folded(c.name): c for c in there}, columns)

        def add(session: SparkSession, missing: Sequence[StructField]) -> None:
            note = {"txnqueue": __version__, "operation": "alter payload", "queue": payload_id}
            if any(has_type(column.dataType, TimestampNTZType) for column in missing):
                # Delta enables this type by itself only when a table is created.
                commit_noted(session, f"ALTER TABLE {table} SET TBLPROPERTIES ({_NTZ})", note)
            added = definitions(missing, checked=False)
            with of_columns():
                commit_noted(session, f"ALTER TABLE {table} ADD COLUMNS ({added})", note)

        def statement(session: SparkSession) -> None:
            while missing := lacking(session):
                try:
                    add(session, missing)
                    return
                except Exception:  # others may add the same columns, whatever the error says
                    if len(lacking(session)) == len(missing):
                        raise

        self._statements.ensuring(f"payload-{payload_id}", statement)

    def _every_column(
        self, session: SparkSession, payload_id: str, names: Collection[str]
    ) -> Mapping[str, StructField]:
        """Return an owner's columns by name; they are never removed, so few queries are needed."""
        if not set(names) <= self._columns.get(payload_id, {}).keys():
            table = self._statements.names.payload(payload_id)
            fields = session.sql(f"SELECT * FROM {table}").schema.fields
            self._columns[payload_id] = {one.name: one for one in fields}
        return self._columns[payload_id]

    def _table_columns(
        self, session: SparkSession, payload_id: str, schema: StructType
    ) -> Mapping[str, StructField]:
        """Return an owner's columns by name, without those of another type than the schema has.

        Such a column is another one, which the owner got after the messages that are to be shown
        had left it.
        """
        there = self._every_column(session, payload_id, schema.names)
        wanted = {one.name: one for one in schema.fields}
        others = {name for name in wanted.keys() & there if not _alike(there[name], wanted[name])}
        return {name: one for name, one in there.items() if name not in others}

    def _lacks(self, session: SparkSession, payload_id: str, schema: StructType) -> set[str]:
        """Find the columns that an owner's table does not have."""
        return set(schema.names) - self._table_columns(session, payload_id, schema).keys()

    def stage(self, send: Send, rows: object) -> list[Run]:
        """Write the rows of one send by one blind append."""
        return staging.stage(self._statements, send, rows)

    def _session_for(self, rows: int) -> SparkSession:
        """Choose the session for rows held in this process: few are faster without compiling."""
        return self._session if rows <= staging.FEW_ROWS else self._statements.compiling

    # -------------------------------------------------------------------------- reading

    def schema(self, *described: Mapping[str, Any]) -> StructType:
        """Read columns as the catalog describes them."""
        return described_columns(*described)

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets."""
        count = sum(ranges.count(part.ranges) for part in parts)

        def read() -> pa.Table:
            frame = self._joined(self._session_for(count), schema, parts)
            return frame.orderBy("_rank", "_offset").drop("_rank", "_offset").toArrow()

        found = self._statements.as_callers_work(read)
        if found.num_rows < count:
            raise PayloadRemoved()
        return found.cast(arrow_schema(StructType([*schema.fields, MESSAGE])))

    @damage()
    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame of messages, pinned to their places, on the user's session.

        If this process can read the log of the table, the frame names the files with the messages.
        """
        self._statements.check_running()
        owners = _by_table(parts)
        if not owners:
            return self._nothing(self._user, schema).drop("_rank", "_offset")
        frames = (self._on_files(schema, mine) or self._guarded(schema, mine) for mine in owners)
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _on_files(self, schema: StructType, ranked: Sequence[tuple[int, Part]]) -> DataFrame | None:
        """Make a frame on the files of a table; None if it may not be exact."""
        parts = [part for _, part in ranked]
        payload_id = parts[0].payload_id
        if not self._is_here:
            return None
        columns = self._table_columns(self._session, payload_id, schema)
        if not may_show(columns, schema):
            return None
        if payload_id not in self._files:
            folder = f"{self._statements.names.root}/payload/{payload_id}"
            self._files.setdefault(payload_id, DataFiles(folder))
        held = self._files[payload_id].holding(spans_of(parts))
        if held is None or not 0 < len(held.paths) <= FILES_MAX:
            return None
        return file_frame(self._user, held, schema, columns, parts)

    @cached_property
    def _is_here(self) -> bool:
        """Whether the tables are folders on this disk that Spark sees too."""
        names = self._statements.names
        if not names.by_path or scheme_of(names.root) or is_connect(self._user):
            return False
        return default_elsewhere(self._session) is None

    def _guarded(self, schema: StructType, ranked: Sequence[tuple[int, Part]]) -> DataFrame:
        """Make a frame on a table that counts its messages whenever it is evaluated."""
        self._refresh({ranked[0][1].payload_id})
        return self._ranked(self._user, schema, ranked, guarded=True).drop("_rank", "_offset")

    def staged(
        self, session: SparkSession, payload_id: str, slice_: int, send_ids: Iterable[str]
    ) -> DataFrame:
        """Return all rows of some sends, with the payload's columns and their places.

        Args:
            session: The session of the frame.
            payload_id: The owner of the payload table.
            slice_: The slice of the sends.
            send_ids: The sends.
        """
        return session.sql(
            f"SELECT * FROM {uncached(self._statements.names.payload(payload_id))} "
            f"WHERE slice = {slice_} AND send_id IN ({literals(send_ids)})"
        )

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Read one column as text with one scan of each table, and order it in this process."""
        found: dict[str, Texts] = {}
        for payload_id, mine in _by_owner(parts).items():
            found[payload_id] = Texts(
                self._statements.run(partial(self._text_rows, payload_id, column, mine))
            )
        return [found[part.payload_id].of(part) for part in parts]

    def _text_rows(self, payload_id: str, column: str, parts: Sequence[Part]) -> pa.Table:
        session = self._session_for(sum(ranges.count(part.ranges) for part in parts))
        there = self._existing(session, payload_id, column)
        return _arrow(session, text_query(self._statements.names.payload(payload_id), there, parts))

    def _existing(self, session: SparkSession, payload_id: str, column: str) -> str | None:
        """Return the column if the table has it: rows that were moved may lie in one that has not.

        Their queue got the column after they had been sent to another one, or to an exchange.
        """
        return column if column in self._every_column(session, payload_id, [column]) else None

    def lanes(self, column: str, lanes: int, parts: Sequence[Part]) -> list[Lanes]:
        """Find the lanes in Spark, with one scan of a column of each table."""
        lie: list[tuple[Any, ...]] = []
        for payload_id, mine in _by_owner(parts).items():
            run = partial(self._islands, payload_id, column, lanes, mine)
            found = self._statements.run(run)
            if found is None:
                raise torn()
            lie += found
        return check_lanes(parts, by_part(lie, parts))

    def _islands(
        self, payload_id: str, column: str, lanes: int, parts: Sequence[Part]
    ) -> list[tuple[Any, ...]] | None:
        session = self._session_for(sum(ranges.count(part.ranges) for part in parts))
        there = self._existing(session, payload_id, column)
        table = self._statements.names.payload(payload_id)
        return islands(lane_frame(session, table, there, lanes, parts), ["lane"])

    def rows(self, payload_id: str, places: Sequence[StagedPlace]) -> int:
        """Count the rows that exist at some places."""
        spans = [(s, send_id, *span) for s, send_id, part in places for span in part]
        pieces = (spans[n : n + _SPANS_MAX] for n in range(0, len(spans), _SPANS_MAX))
        return sum(self._count(payload_id, piece) for piece in pieces)

    def _count(self, payload_id: str, spans: Sequence[_Span]) -> int:
        values = ", ".join(
            f"({slice_}L, {literal(send_id)}, {first}L, {last}L)"
            for slice_, send_id, first, last in spans
        )
        query = (
            f"SELECT count(*) FROM {self._statements.names.payload(payload_id)} p JOIN "
            f"(SELECT * FROM VALUES {values} AS v(slice, send, first, last)) r "
            "ON p.slice = r.slice AND p.send_id = r.send "
            "AND p.send_offset BETWEEN r.first AND r.last"
        )
        session = self._session_for(sum(last - first + 1 for *_, first, last in spans))
        return int(self._statements.run(lambda: session.sql(query).collect()[0][0]))

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        query = f"SELECT DISTINCT slice FROM {self._statements.names.payload(payload_id)}"
        rows = self._statements.run(lambda: self._session.sql(query).collect())
        return {int(row[0]) for row in rows}

    def drop(self, payload_id: str, slices: Collection[int]) -> None:
        """Delete all rows of some slices: whole partitions, without rewriting files."""
        numbers = ", ".join(map(str, sorted(slices)))
        table = self._statements.names.payload(payload_id)
        note = {"txnqueue": __version__, "operation": "drop slices", "queue": payload_id}

        def statement(session: SparkSession) -> None:
            commit_noted(session, f"DELETE FROM {table} WHERE slice IN ({numbers})", note)

        self._statements.committing(f"payload-{payload_id}", statement)

    def erase(self, payload_id: str, places: Sequence[StagedPlace]) -> None:
        """Delete rows; Delta rewrites only the files that contain them.

        The tables have no deletion vectors, so the new files do not contain the rows.
        """
        table = self._statements.names.payload(payload_id)
        note = {"txnqueue": __version__, "operation": "erase", "queue": payload_id}
        spans = [(s, send_id, *span) for s, send_id, part in places for span in part]

        def statement(session: SparkSession, piece: Sequence[_Span]) -> None:
            commit_noted(session, f"DELETE FROM {table} WHERE {_lying_at(piece)}", note)

        for at in range(0, len(spans), _ERASED_MAX):
            piece = spans[at : at + _ERASED_MAX]
            self._statements.committing(
                f"payload-{payload_id}", partial(statement, piece=piece), compiled=True
            )

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of an owner's table that no retained version names."""
        name = self._statements.names.payload(payload_id)
        return self._statements.vacuum(f"payload-{payload_id}", name, seconds_min, full=full)

    def files_kept_seconds(self, payload_id: str) -> float:
        """Return how long an owner's table keeps the files of deleted rows."""
        return self._statements.files_kept(self._statements.names.payload(payload_id))[0]

    def removed_files(self, payload_id: str) -> int | None:
        """Count the files on disk that the newest version of an owner's table does not name.

        What is written meanwhile is counted, too. The folder of a catalog's table may be hidden.
        """
        names = self._statements.names
        detail = f"DESCRIBE DETAIL {names.payload(payload_id)}"

        def statement() -> int:
            (row,) = self._session.sql(detail).select("location", "numFiles").collect()
            folder = f"{names.root}/payload/{payload_id}" if names.by_path else row["location"]
            reader = self._session.read.format("binaryFile").option("recursiveFileLookup", "true")
            there = reader.load(verbatim(folder)).inputFiles()  # nothing of them is read
            data = sum(name.endswith(".parquet") for name in there)  # and no deletion vectors
            return max(data - int(row["numFiles"]), 0)

        try:
            return self._statements.run(statement)
        except Exception:
            if names.by_path:
                raise
            return None

    def orphans(self, known: Collection[str]) -> dict[str, int]:
        """List the tables of unknown owners, with the time of creation.

        A log that was cleaned up begins with a checkpoint.
        """
        names = self._statements.names
        if not names.by_path:
            return self._orphans_in_catalog({names.payload_table(one).lower() for one in known})
        from pyspark.errors import AnalysisException

        logs = "payload/*/_delta_log/{00000000000000000000.json,*.checkpoint*.parquet}"

        def statement() -> list[Any]:
            files = self._session.read.format("binaryFile").load(f"{verbatim(names.root)}/{logs}")
            return files.selectExpr("path", "unix_millis(modificationTime) AS at").collect()

        try:
            rows = self._statements.run(statement)
        except AnalysisException as error:
            if "PATH_NOT_FOUND" in str(error):
                return {}
            raise
        made: dict[str, int] = {}
        for row in rows:
            *_, owner, _, _ = unquote(row["path"]).split("/")
            if owner not in known:
                made[owner] = min(int(row["at"]), made.get(owner, int(row["at"])))
        return made

    def _orphans_in_catalog(self, known: Collection[str]) -> dict[str, int]:
        names, found = self._statements.names, {}
        query = f"SHOW TABLES IN {names.schema} LIKE '{PAYLOAD_PREFIX}*'"
        for row in self._statements.run(lambda: self._session.sql(query).collect()):
            if row["tableName"].lower() in known:
                continue
            table = f"{names.schema}.{identifier(row['tableName'])}"
            log = self._statements.run(partial(_history, self._session, table))
            owner = json.loads(log[-1]["userMetadata"] or "{}").get("queue")
            if owner is None:  # rows of table changes; their first commit leaves the log some day
                owner = f"{STAGING}{row['tableName'][-STAGING_DIGITS:].lower()}"
            table_name = names.payload_table(owner)
            if table_name.lower() == row["tableName"].lower():
                found[owner] = int(log[-1]["at"])
        return found

    def matching(self, schema: StructType, payload_id: str, where: str) -> list[StagedPlace]:
        """Find all rows whose columns and headers match a predicate, on the user's session."""
        return staged_places(self._searched(schema, payload_id), where, self.folder)

    def _searched(self, schema: StructType, payload_id: str) -> DataFrame:
        """Return all rows of an owner, with their headers and places, on the user's session."""
        self._refresh([payload_id])
        lacks = self._lacks(self._session, payload_id, schema)
        return self._user.sql(
            f"SELECT {', '.join(columns_of(schema, lacks))}, named_struct('headers', p.headers) "
            f"AS {MESSAGE_COLUMN}, p.slice AS _slice, p.send_id AS _send_id, "
            f"p.send_offset AS _send_offset FROM {self._statements.names.payload(payload_id)} p"
        )

    def _refresh(self, payload_ids: Collection[str]) -> None:
        """Make Delta look for new commits if the user's session accepts stale tables."""
        if self._user.conf.get(_STALENESS, "0") == "0":
            return
        for payload_id in payload_ids:
            table = self._statements.names.payload(payload_id)
            self._statements.run(partial(_opened, self._session, table))

    def _joined(
        self, session: SparkSession, schema: StructType, parts: Sequence[Part]
    ) -> DataFrame:
        frames = [self._ranked(session, schema, ranked) for ranked in _by_table(parts)]
        if not frames:
            return self._nothing(session, schema)
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _ranked(
        self,
        session: SparkSession,
        schema: StructType,
        ranked: Sequence[tuple[int, Part]],
        *,
        guarded: bool = False,
    ) -> DataFrame:
        """Read messages of one table, with the ranks of their parts, and their offsets."""
        parts = [part for _, part in ranked]
        payload_id, named, bits = parts[0].payload_id, parts[0].message_id, piece_bits(parts)
        table = self._statements.names.payload(payload_id)
        shown = columns_of(schema, self._lacks(session, payload_id, schema))
        lie = guarded_places(table, ranked, bits) if guarded else places(ranked, bits)
        return session.sql(
            f"SELECT /*+ BROADCAST(r) */ {', '.join(shown)}, {message_struct(named)}, "
            f"r.rank AS _rank, p.send_offset AS _offset FROM {table} p JOIN {lie} r "
            f"ON {in_piece(bits)} WHERE {places_to_join(parts)}"
        )

    def _nothing(self, session: SparkSession, schema: StructType) -> DataFrame:
        fields = ", ".join(map(null_column, (*schema.fields, MESSAGE)))
        return session.sql(f"SELECT {fields}, 0 AS _rank, 0L AS _offset WHERE false")


def _alike(one: StructField, other: StructField) -> bool:
    return sql_type(one.dataType) == sql_type(other.dataType)


def _by_table(parts: Sequence[Part]) -> list[list[tuple[int, Part]]]:
    """Group parts by their tables, with their ranks among all."""
    found: dict[tuple[str, str | None], list[tuple[int, Part]]] = defaultdict(list)
    for rank, part in enumerate(parts):
        found[part.payload_id, part.message_id].append((rank, part))
    return list(found.values())


def _lying_at(spans: Sequence[_Span]) -> str:
    """Return the condition that a row is at one of some places; it names their partitions."""
    slices = ", ".join(str(number) for number in sorted({slice_ for slice_, *_ in spans}))
    each = (
        f"(slice = {slice_} AND send_id = {literal(send_id)} "
        f"AND send_offset BETWEEN {first}L AND {last}L)"
        for slice_, send_id, first, last in spans
    )
    return f"slice IN ({slices}) AND ({' OR '.join(each)})"


def _by_owner(parts: Sequence[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        found[part.payload_id].append(part)
    return found


def _history(session: SparkSession, table: str) -> list[Any]:
    """Read the history of a table, newest first."""
    log = session.sql(f"DESCRIBE HISTORY {table}").orderBy("version", ascending=False)
    return log.selectExpr("userMetadata", "unix_millis(timestamp) AS at").collect()


def _opened(session: SparkSession, table: str) -> StructType:
    return session.sql(f"SELECT * FROM {table}").schema


def _arrow(session: SparkSession, query: str) -> pa.Table:
    return session.sql(query).toArrow()
