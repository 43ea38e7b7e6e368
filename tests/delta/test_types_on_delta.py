"""Types and names of columns that come from strangers, on every way into a store and out."""

from __future__ import annotations

import datetime
import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests import generated
from tests.conftest import LONG
from tests.inside import client_of
from txnqueue.errors import SchemaMismatch
from txnqueue.manager import QueueManager
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload import staging
from txnqueue.storage.payload.rows import arrow_table
from txnqueue.storage.payload.types import arrow_schema, sql_type, stored_type

pytestmark = pytest.mark.spark
_NUMBERS = itertools.count(1)
COLUMNS = 40
SEEDS = pytest.mark.parametrize("seed", range(20 if LONG else 1))


@pytest.fixture(scope="module")
def manager(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> QueueManager:
    return QueueManager(spark, str(tmp_path_factory.mktemp("types") / "store"))


def create(manager: QueueManager, schema: Any) -> Any:
    return manager.create_queue(f"q{next(_NUMBERS)}", schema, dead_letter=False)


def payload(table: Any) -> Any:
    """Read the payload of messages, by their numbers."""
    if "_message" in table.column_names:
        table = table.drop_columns(["_message"])
    return table.sort_by("n").to_pylist()


def pandas_rows(schema: Any, rows: Any) -> Any:
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=object) for name in schema.names}
    )


def without_nan(rows: Any) -> list[Any]:
    """NaN is how pandas says that there is no value."""
    return [{k: None if is_nan(v) else v for k, v in row.items()} for row in rows]


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


# ------------------------------------------------------------------------------- as SQL


@settings(max_examples=500 if LONG else 50, suppress_health_check=list(HealthCheck))
@given(st.lists(generated.types(generated.ANY_NAMES), min_size=20, max_size=20))
def test_a_type_written_as_sql_means_what_it_meant(spark: Any, kinds: Any) -> None:
    text = ", ".join(f"c{number} {sql_type(kind)}" for number, kind in enumerate(kinds))
    read = T.StructType.fromDDL(text)
    assert isinstance(read, T.StructType)
    assert [column.dataType for column in read.fields] == [stored_type(kind) for kind in kinds]


# ------------------------------------------------------------------------- every way in


def moved(rows: Any, by: Any) -> list[Any]:
    """Give rows other numbers."""
    return [{**row, "n": row["n"] + by} for row in rows]


@SEEDS
def test_what_a_schema_allows_comes_out_as_it_went_in(
    manager: QueueManager, spark: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    schema, rows = generated.wide_table(COLUMNS, seed)
    queue, onward = create(manager, schema), create(manager, schema)
    tables = [arrow_table(schema, moved(rows, by)) for by in range(0, 40, 10)]
    queue.send(moved(rows, 40))
    queue.send(tables[0])
    queue.send(spark.createDataFrame(tables[1], stored_type(schema)))
    queue.send(pandas_rows(schema, moved(rows, 20)))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "FEW_ROWS", 0)
        queue.send(tables[3], order_by=["n"])
        batch = queue.receive(100)
        found = batch.to_arrow()
    assert found.schema.remove(len(schema)).equals(arrow_schema(schema))
    ways = [moved(rows, by) for by in range(0, 50, 10)]
    ways[2] = without_nan(ways[2])
    expected = list(itertools.chain(*ways))
    assert generated.equal(payload(found), expected)
    onward.send(batch.df)
    batch.accept()
    assert generated.equal(payload(onward.receive(100).to_arrow()), expected)


@SEEDS
def test_columns_of_any_type_can_be_added_and_are_shown_by_the_view(
    manager: QueueManager, spark: Any, seed: int
) -> None:
    schema, rows = generated.wide_table(COLUMNS, seed)
    added = T.StructType([T.StructField(c.name, c.dataType) for c in schema.fields[1:]])
    queue = create(manager, "n long")
    queue.send([{"n": -1}])
    queue.alter(add=added)
    queue = manager.queue(queue.name)
    queue.send(rows)
    wanted = [{"n": -1, **dict.fromkeys(added.names)}, *rows]
    manager.create_views(f"v{queue.name}_")
    shown = spark.table(f"v{queue.name}_{queue.name}").select(*map(identifier, schema.names))
    assert generated.equal(payload(shown.toArrow()), wanted)
    assert generated.equal(payload(queue.receive(100).to_arrow()), wanted)


@SEEDS
def test_a_table_of_any_types_is_changed_by_what_was_staged(
    manager: QueueManager, spark: Any, tmp_path: Path, seed: int
) -> None:
    schema, rows = generated.wide_table(COLUMNS, seed)
    path = str(tmp_path / "table")
    empty = pa.Table.from_pylist([], arrow_schema(schema))
    frame = spark.createDataFrame(empty, stored_type(schema))
    frame.write.format("delta").save(path)
    with manager.transaction() as tx:
        tx.table(path).append(rows[:2])
        known = spark.createDataFrame(arrow_table(schema, rows[1:]), stored_type(schema))
        tx.table(path).merge(known, on="n", update="*", insert="*")
    found = spark.read.format("delta").load(path).toArrow()
    assert generated.equal(payload(found), rows)


# ---------------------------------------------------------------------- what is refused


def test_a_name_inside_of_a_column_is_no_sql(manager: QueueManager, spark: Any) -> None:
    """It stands in CREATE TABLE, ALTER TABLE, casts and views, and means itself in all of them."""
    evil = "x:bigint>) USING delta TBLPROPERTIES('delta.appendOnly'='true') --"
    for name in (evil, f"x`:bigint>)--{evil}"):
        kind = T.StructType([T.StructField(name, T.LongType())])
        with pytest.raises(SchemaMismatch, match="Delta does not allow"):
            create(manager, T.StructType([T.StructField("s", kind)]))
    names = ["x:bigint>--", "x`:bigint>--", "'/*"]
    kind = T.StructType([T.StructField(name, T.LongType()) for name in names])
    queue = create(manager, T.StructType([T.StructField("n", T.LongType())]))
    queue.alter(add=T.StructType([T.StructField("s", kind)]))
    queue = manager.queue(queue.name)
    queue.send([{"n": 1, "s": dict.fromkeys(names, 7)}])
    store: Any = client_of(manager).store
    table = store.names.payload(queue.info.payload_id)
    described = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert described["partitionColumns"] == ["slice"]
    assert "delta.appendOnly" not in described["properties"]
    columns = ["send_id", "send_offset", "slice", "n", "headers", "arrangement", "s"]
    assert spark.sql(f"SELECT * FROM {table}").columns == columns
    assert payload(queue.receive(1).to_arrow()) == [{"n": 1, "s": dict.fromkeys(names, 7)}]


def test_what_is_refused_by_delta_is_refused_before_anything_is_written(
    manager: QueueManager, spark: Any
) -> None:
    """The names that are refused are those that Delta refuses, and those that it would not tell."""
    before = set(manager.list_queues())
    for name in generated.REFUSED_NAMES:
        inner = T.StructType([T.StructField(name, T.LongType())])
        for column in (T.StructField(name, T.LongType()), T.StructField("s", inner)):
            with pytest.raises(SchemaMismatch):
                create(manager, T.StructType([T.StructField("n", T.LongType()), column]))
    assert set(manager.list_queues()) == before


def test_a_null_inside_of_a_frame_is_found_where_the_type_allows_none(
    manager: QueueManager, spark: Any
) -> None:
    inner = T.StructType([T.StructField("a.b", T.LongType(), False)])
    kinds: dict[str, tuple[T.DataType, list[Any], list[Any]]] = {
        "struct": (inner, [{"a.b": 1}], [{"a.b": None}]),
        "array": (T.ArrayType(T.LongType(), False), [[1]], [[1, None]]),
        "map": (T.MapType(T.StringType(), inner, False), [{"k": {"a.b": 1}}], [{"k": None}]),
        "deep": (
            T.ArrayType(T.MapType(T.StringType(), inner)),
            [None, [None], [{"k": None}], [{"k": {"a.b": 1}}]],
            [[{"k": {"a.b": None}}]],
        ),
    }
    schema = T.StructType([T.StructField(name, kind) for name, (kind, *_) in kinds.items()])
    queue = create(manager, schema)
    loose = stored_type(schema)
    for name, (_, right, wrong) in kinds.items():
        frame = spark.createDataFrame([{name: value} for value in right], loose)
        assert queue.send(frame).count == len(right)
        with pytest.raises(SchemaMismatch, match=f"'{name}' contains a null"):
            queue.send(spark.createDataFrame([{name: value} for value in wrong], loose))


def test_message_ids_that_are_not_utf_8_are_told_apart(manager: QueueManager, spark: Any) -> None:
    name = f"q{next(_NUMBERS)}"
    settings: dict[str, Any] = {"message_id": "key", "duplicate_window_seconds": 60}
    queue = manager.create_queue(name, "n long, key string", dead_letter=False, **settings)
    octets = "CASE n WHEN 0 THEN X'FF41' WHEN 1 THEN X'FE41' WHEN 2 THEN X'FF41' ELSE X'42' END"
    numbers = spark.range(4).withColumnRenamed("id", "n").coalesce(1)
    queue.send(numbers.selectExpr("n", f"CAST({octets} AS string) AS key"))
    batch = manager.queue(name).receive(10)
    assert sorted(row["n"] for row in batch.df.select("n").collect()) == [0, 1, 3]


def test_an_instant_without_a_zone_stays_one_whatever_is_set(
    manager: QueueManager, spark: Any
) -> None:
    """Also beside messages in memory, and in a session of another time zone."""
    naive = datetime.datetime(2024, 3, 10, 2, 30)  # an hour that New York does not have
    row = {"n": 1, "at": naive, "many": [naive]}
    queue = create(manager, "n long")
    queue.alter(add="at timestamp_ntz, many array<timestamp_ntz>")
    queue = manager.queue(queue.name)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        queue.send([row], order_by="at")
        queue.send([{**row, "n": 2}], durable=False)
        batch = queue.receive(10)
        found = batch.df.drop("_message")
        assert dict(found.dtypes)["at"] == "timestamp_ntz"
        assert payload(found.toArrow()) == [row, {**row, "n": 2}]
        batch.accept()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_rows_of_a_merge_are_not_changed_on_their_way_in(
    manager: QueueManager, spark: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    spark.sql(f"CREATE TABLE delta.`{path}` (id bigint, at timestamp, tags array<int>) USING delta")
    naive = datetime.datetime(2024, 1, 1)
    with manager.transaction() as tx:
        table = tx.table(path)
        for rows in (
            [{"id": 1, "at": naive}],
            pa.table({"id": [1], "at": [naive]}),
            pd.DataFrame({"id": [1], "at": [naive]}),
        ):
            with pytest.raises(SchemaMismatch, match="explicit time zone"):
                table.merge(rows, on="id", insert="*")
        with pytest.raises(SchemaMismatch, match="'tags' is array<void>"):
            table.merge([{"id": 1, "tags": []}], on="id", insert="*")
        with pytest.raises(SchemaMismatch, match="'x' has no single type"):
            table.merge([{"id": 1, "x": 1}, {"id": 2, "x": "a"}], on="id", insert="*")
        with pytest.raises(SchemaMismatch, match="'d' has the Arrow type"):
            table.merge(pa.table({"id": [1], "d": pa.array([1], pa.uint64())}), on="id", insert="*")
        with pytest.raises(SchemaMismatch, match="cannot have these columns"):
            frame = spark.sql("SELECT 1L AS id, INTERVAL '1' DAY AS d")
            table.merge(frame, on="id", insert={"id": "source.id"})
        rows = [{"id": 1, "at": None}, {"id": 2, "at": None, "tags": [5]}]
        assert table.merge(rows, on="id", insert="*") == 2  # columns of the second row count too
    found = spark.read.format("delta").load(path).orderBy("id").toArrow().to_pylist()
    assert found == [{"id": 1, "at": None, "tags": None}, {"id": 2, "at": None, "tags": [5]}]
