"""What callers hand in, checked against a queue's schema before anything is written."""

from __future__ import annotations

import datetime
import math
import zoneinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests import generated
from tests.conftest import LONG
from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.storage.payload import rows
from txnqueue.storage.payload.schemas import matched_columns
from txnqueue.storage.payload.types import arrow_schema, spark_schema
from txnqueue.testing import plain_schema

SCHEMA = plain_schema("id long not null, name string, amount double, day date, at timestamp")
ROW = {"id": 1, "name": "n", "amount": 0.5}
NOON = datetime.datetime(2024, 1, 1, 12)
UTC = datetime.timezone.utc


def one_column(kind: Any, nullable: bool = True) -> Any:
    return T.StructType([T.StructField("c", kind, nullable)])


def mismatch(schema: Any, given: Any) -> Any:
    """Check that the rows are refused, and return the column that the error names."""
    with pytest.raises(SchemaMismatch) as caught:
        rows.arrow_table(schema, given)
    assert repr(caught.value.column) in str(caught.value)
    return caught.value.column


# ------------------------------------------------------------------------- what is taken


@pytest.mark.parametrize(
    "given",
    [
        [ROW],
        (ROW,),
        pa.Table.from_pylist([ROW]),
        pa.RecordBatch.from_pylist([ROW]),
        pd.DataFrame([ROW]),
    ],
    ids=["list", "tuple", "arrow table", "arrow batch", "pandas"],
)
def test_rows_come_in_many_forms_and_are_the_same(given: Any) -> None:
    table = rows.arrow_table(SCHEMA, given)
    assert table.to_pylist() == [{**ROW, "day": None, "at": None}]
    assert table.schema.names == SCHEMA.names


def test_columns_may_come_in_any_order() -> None:
    table = rows.arrow_table(SCHEMA, [{"name": "n", "id": 1}])
    assert table.to_pylist()[0]["id"] == 1


def test_no_rows_are_rows_too() -> None:
    assert rows.arrow_table(SCHEMA, []).num_rows == 0


def test_the_message_column_is_left_out() -> None:
    """What was received can be sent on as it is."""
    assert rows.arrow_table(SCHEMA, [{**ROW, "_message": {"id": "x:0"}}]).num_columns == 5


def test_a_missing_nullable_column_is_null() -> None:
    assert rows.arrow_table(SCHEMA, [{"id": 1}]).column("name").to_pylist() == [None]


def test_a_dictionary_column_is_read_as_its_values() -> None:
    name = pa.array(["x", "x"]).dictionary_encode()
    table = rows.arrow_table(SCHEMA, pa.table({"id": [1, 2], "name": name}))
    assert table.column("name").to_pylist() == ["x", "x"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16(), pa.int64()])
def test_narrower_whole_numbers_fit_into_a_long(kind: Any) -> None:
    table = rows.arrow_table(SCHEMA, pa.table({"id": pa.array([7], kind)}))
    assert table.column("id").type == pa.int64()


def test_an_aware_instant_is_kept_in_utc() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    table = rows.arrow_table(SCHEMA, [{"id": 1, "at": NOON.replace(tzinfo=zone)}])
    assert table.column("at").to_pylist() == [datetime.datetime(2024, 1, 1, 10, tzinfo=UTC)]


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("kind", [T.TimestampType(), T.ArrayType(T.TimestampType())])
def test_an_instant_of_the_hour_that_the_clocks_show_twice_is_kept(kind: Any, fold: int) -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    twice = datetime.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=berlin)
    value = [twice] if isinstance(kind, T.ArrayType) else twice
    table = rows.arrow_table(one_column(kind), [{"c": value}])
    found, columns = rows.source_rows([{"c": value}], None)
    there = datetime.datetime(2026, 10, 25, fold, 30, tzinfo=UTC)
    kept = [there] if isinstance(kind, T.ArrayType) else there
    assert table.column("c").to_pylist() == found.column("c").to_pylist() == [kept]
    assert columns["c"].dataType == kind


# ----------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "given",
    [[{**ROW, "ID": 1}], pa.table({"id": [1], "ID": [1]}), pd.DataFrame([{**ROW, "ID": 1}])],
)
def test_an_unknown_column_is_refused(given: Any) -> None:
    assert mismatch(SCHEMA, given) == "ID"


@pytest.mark.parametrize("given", [[{"name": "n"}], [{}], pa.table({"name": ["n"]})])
def test_a_missing_column_that_may_not_be_null_is_refused(given: Any) -> None:
    assert mismatch(SCHEMA, given) == "id"


@pytest.mark.parametrize(
    "given",
    [
        [{"id": 1}, {"id": None}],
        [{"id": 1}, {"name": "n"}],
        pa.table({"id": pa.array([1, None], pa.int64())}),
    ],
)
def test_a_forbidden_null_is_refused_and_counted(given: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"'id' may not be null, but is in 1 of 2 rows"):
        rows.arrow_table(SCHEMA, given)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), "5"),
        (T.LongType(), True),
        (T.LongType(), 1.0),
        (T.LongType(), math.nan),
        (T.LongType(), 2**63),
        (T.LongType(), [1]),
        (T.LongType(), NOON),
        (T.IntegerType(), 2**31),
        (T.ShortType(), 2**15),
        (T.ByteType(), -129),
        (T.DoubleType(), "1"),
        (T.DoubleType(), Decimal("1.1")),
        (T.DoubleType(), 2**60 + 1),
        (T.BooleanType(), 1),
        (T.BooleanType(), "true"),
        (T.StringType(), 5),
        (T.StringType(), math.nan),
        (T.DateType(), "2024-01-01"),
        (T.TimestampType(), datetime.date(2024, 1, 1)),
        (T.TimestampType(), "2024-01-01T12:00:00"),
        (T.DecimalType(5, 2), 1.5),
        (T.DecimalType(5, 2), Decimal("1.555")),
        (T.DecimalType(3, 2), Decimal(100)),
        (T.ArrayType(T.LongType()), 5),
        (T.ArrayType(T.LongType()), ["x"]),
        (T.MapType(T.StringType(), T.LongType()), {"a": "x"}),
        (T.StructType([T.StructField("a", T.LongType())]), 5),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else repr(given),
)
def test_a_value_of_another_type_is_refused(kind: Any, value: Any) -> None:
    assert mismatch(one_column(kind), [{"c": None}, {"c": value}]) == "c"


@pytest.mark.parametrize(
    ("kind", "value", "remedy"),
    [
        (T.TimestampType(), NOON, "give times with a time zone"),
        (T.TimestampNTZType(), NOON.replace(tzinfo=UTC), "give times without a time zone"),
        (T.LongType(), "1", "cast it"),
        (T.MapType(T.DoubleType(), T.LongType()), [(0.0, 1), (-0.0, 2)], "correct the rows"),
    ],
    ids=str,
)
def test_what_is_refused_says_what_to_give(kind: Any, value: Any, remedy: str) -> None:
    with pytest.raises(SchemaMismatch, match=f": {remedy}.$"):
        rows.arrow_table(one_column(kind), [{"c": value}])


def test_a_value_that_arrow_refuses_is_told_in_a_sentence() -> None:
    with pytest.raises(SchemaMismatch, match=r"takes bigint, not these values \(.*'x'.*\): cast"):
        rows.arrow_table(one_column(T.LongType()), [{"c": "x"}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), Decimal("1.5")),
        (T.LongType(), np.True_),
        (T.DoubleType(), True),
        (T.FloatType(), 1e300),
        (T.StringType(), b"x"),
        (T.BinaryType(), "x"),
        (T.DateType(), NOON),
        (T.DateType(), 5),
        (T.TimestampType(), 5),
        (T.TimestampType(), NOON),
        (T.TimestampNTZType(), NOON.replace(tzinfo=UTC)),
        (T.ArrayType(T.LongType()), [1.5]),
        (T.ArrayType(T.LongType(), containsNull=False), [None]),
        (T.StructType([T.StructField("a", T.LongType())]), {"a": 1, "b": 2}),
        (T.StructType([T.StructField("a", T.LongType(), False)]), {"a": None}),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else repr(given),
)
def test_a_value_is_never_changed_silently(kind: Any, value: Any) -> None:
    """What would arrive as something else is refused, as it is in an Arrow table."""
    assert mismatch(one_column(kind), [{"c": value}]) == "c"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (T.LongType(), pa.array([1.0])),
        (T.LongType(), pa.array(["1"])),
        (T.LongType(), pa.array([True])),
        (T.LongType(), pa.array([2**63], pa.uint64())),
        (T.IntegerType(), pa.array([2**31])),
        (T.DoubleType(), pa.array([2**60 + 1])),
        (T.StringType(), pa.array([5])),
        (T.StringType(), pa.array([b"x"])),
        (T.BinaryType(), pa.array(["x"])),
        (T.BooleanType(), pa.array([1])),
        (T.DateType(), pa.array([NOON])),
        (T.TimestampType(), pa.array([NOON])),
        (T.TimestampNTZType(), pa.array([NOON], pa.timestamp("us", "UTC"))),
        (T.DecimalType(3, 2), pa.array([Decimal("100.00")])),
        (T.ArrayType(T.LongType()), pa.array([["x"]])),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else str(given.type),
)
def test_an_arrow_column_of_another_type_is_refused(kind: Any, given: Any) -> None:
    assert mismatch(one_column(kind), pa.table({"c": given})) == "c"


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("id", [1, None]),
        ("id", [0.5, 1.5]),
        ("name", [1, 2]),
        ("day", pd.to_datetime(["2024-01-01"] * 2)),
    ],
)
def test_a_pandas_column_of_another_type_is_refused(column: Any, values: Any) -> None:
    """A whole number column with a gap is a float column to pandas, and says so here."""
    assert mismatch(SCHEMA, pd.DataFrame({"id": [1, 2], column: values})) == column


def test_a_pandas_column_of_mixed_types_is_named() -> None:
    assert mismatch(SCHEMA, pd.DataFrame({"id": [1, 2], "name": ["x", 1]})) == "name"


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([b"a", "b"], None),
        (["a", "b"], None),
        ([b"a", None], [b"a", None]),
        ([b"a", bytearray(b"b")], [b"a", b"b"]),
    ],
)
def test_a_pandas_column_of_octets_holds_no_text(values: Any, kept: Any) -> None:
    given = pd.DataFrame({"c": values})
    if kept is None:
        assert mismatch(one_column(T.BinaryType()), given) == "c"
    else:
        table = rows.arrow_table(one_column(T.BinaryType()), given)
        assert table.column("c").to_pylist() == kept


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 2, 17, 30)],
        [NOON, NOON.replace(tzinfo=UTC)],
        [NOON.replace(tzinfo=UTC), NOON],
        [pd.Timestamp("2026-01-01T00:00:00.000000001Z"), None],
        [{"at": pd.Timestamp("2026-01-01T00:00:00.000000001Z")}],
        [b"a", "b"],
        [{1, 2}],
    ],
    ids=str,
)
def test_a_pandas_column_whose_type_is_inferred_is_kept_or_refused(values: Any) -> None:
    """As a list of dicts is: a table change takes both."""
    for one in (pd.DataFrame({"c": pd.Series(values, dtype=object)}), [{"c": v} for v in values]):
        with pytest.raises(SchemaMismatch) as caught:
            rows.source_rows(one, None)
        assert caught.value.column == "c"


def test_a_pandas_column_whose_type_is_inferred_may_have_gaps() -> None:
    given = pd.DataFrame({"c": pd.Series(["a", None, float("nan"), pd.NA], dtype=object)})
    found, columns = rows.source_rows(given, None)
    assert found.column("c").to_pylist() == ["a", None, None, None]
    assert columns["c"].dataType == T.StringType()


def test_text_of_arrow_that_is_no_utf_8_is_refused() -> None:
    wrong = pa.array([b"\xff", b"a"], pa.binary())
    assert mismatch(one_column(T.StringType()), pa.table({"c": wrong.view(pa.string())})) == "c"
    inside = pa.ListArray.from_arrays([0, 2], wrong.view(pa.string()))
    kind = T.ArrayType(T.StringType())
    assert mismatch(one_column(kind), pa.table({"c": inside})) == "c"
    for schema in (one_column(T.StringType()), None):
        with pytest.raises(SchemaMismatch, match="has text that is not UTF-8: correct the rows"):
            rows.source_rows(pa.table({"c": wrong.view(pa.string())}), schema)


def test_a_column_that_stands_twice_is_refused() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    assert mismatch(SCHEMA, twice) == "id"
    column = T.StructField("id", T.LongType())
    with pytest.raises(SchemaMismatch, match="'id' is given twice"):  # as a DataFrame may have it
        matched_columns(SCHEMA, T.StructType([column, column]))


def test_a_name_that_is_no_text_is_refused_wherever_a_table_is_taken() -> None:
    odd = pa.table([pa.array([1])], names=[b"id\xff"])
    assert mismatch(SCHEMA, odd) == "id\\xff"
    with pytest.raises(SchemaMismatch, match="is not UTF-8 text"):
        spark_schema(odd.schema)  # as create_queue(like=) reads it


@pytest.mark.parametrize("given", [None, "rows", 5, {"id": [1]}, ["x"], [ROW, None], iter([ROW])])
def test_rows_in_no_known_form_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be sent"):
        rows.arrow_table(SCHEMA, given)


def test_a_pandas_series_is_no_table() -> None:
    with pytest.raises(InvalidInput, match="cannot be sent"):
        rows.arrow_table(SCHEMA, pd.Series([1]))


# --------------------------------------------------------------------------------- lanes


def test_a_keys_lane_never_changes() -> None:
    """pmod(crc32(UTF-8 of the key), lanes), in Spark and in Python alike."""
    assert rows.lane_of("123456789", 256) == 0xCBF43926 % 256  # the checksum's published example
    assert rows.lane_of(123456789, 256) == rows.lane_of("123456789", 256)
    assert [rows.lane_of(key, 8) for key in ("UA", "é", datetime.date(2024, 1, 1))] == [0, 6, 0]


def test_a_key_that_is_null_goes_to_the_first_lane() -> None:
    assert rows.lane_of(None, 8) == 0


# -------------------------------------------------------------------------- never changed

STRUCT = T.StructType([T.StructField("name", T.StringType()), T.StructField("age", T.LongType())])
NS = pa.timestamp("ns", "UTC")
FORMS = pytest.mark.parametrize(
    "make",
    [lambda v: [{"c": v}], lambda v: pd.DataFrame({"c": pd.Series([v], dtype=object)})],
    ids=["dicts", "pandas"],
)
FLOATS = T.ArrayType(T.FloatType())


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (STRUCT, pa.array([{"name": "a", "age": 3, "vip": True}])),
        (STRUCT, pa.array([{"name": "a", "age": "3"}])),
        (STRUCT, pa.array([{"name": "a", "age": 3.0}])),
        (T.ArrayType(STRUCT), pa.array([[{"name": "a", "vip": True}]])),
        (T.MapType(T.StringType(), STRUCT), pa.array([{"name": "a", "age": 3}])),
        (T.ArrayType(T.IntegerType()), pa.array([["1"]])),
        (T.ArrayType(T.IntegerType()), pa.array([[1.0]])),
        (T.ArrayType(T.IntegerType()), pa.array([[2**31]])),
        (T.ArrayType(T.TimestampType()), pa.array([[NOON]])),
        (T.ArrayType(T.TimestampNTZType()), pa.array([[NOON.replace(tzinfo=UTC)]])),
        (T.FloatType(), pa.array([1e300])),
        (T.FloatType(), pa.array([1.1])),
        (FLOATS, pa.array([[1.5, 1.1]])),
        (
            T.MapType(T.StringType(), FLOATS),
            pa.array([[("k", [1.1])]], pa.map_(pa.string(), pa.list_(pa.float64()))),
        ),
        (T.TimestampType(), pa.array([1], NS)),
        (T.ArrayType(T.TimestampType()), pa.array([[1]], pa.list_(NS))),
        (T.DecimalType(5, 1), pa.array([Decimal("1.55")])),
        (T.ArrayType(T.DecimalType(5, 1)), pa.array([[Decimal("1.55")]])),
        (T.DateType(), pa.array([86_400_001], pa.date64())),
        (T.ArrayType(T.LongType(), False), pa.array([[1, None]])),
        (
            T.MapType(T.StringType(), T.LongType()),
            pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
        ),
        (T.TimestampType(), pa.array([2**60], pa.timestamp("us", "UTC"))),
        (T.DateType(), pa.array([-(2**30)], pa.date32())),
        (T.StringType(), pa.array([5]).dictionary_encode()),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else str(given.type),
)
def test_an_arrow_value_is_never_changed_silently(kind: Any, given: Any) -> None:
    """Types are compared all the way down, and so are the values that may not survive."""
    assert mismatch(one_column(kind), pa.table({"c": given})) == "c"


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (T.FloatType(), pa.array([1.5, math.inf, None]), [1.5, math.inf, None]),
        (T.FloatType(), pa.array(np.array([1.5], np.float16)), [1.5]),
        (STRUCT, pa.array([{"age": 3}, None]), [{"name": None, "age": 3}, None]),
        (STRUCT, pa.array([{"age": 3, "name": "a"}]), [{"name": "a", "age": 3}]),
        (
            T.ArrayType(T.IntegerType()),
            pa.array([[1], None, [2, 3]], pa.large_list(pa.int64())),
            [[1], None, [2, 3]],
        ),
        (
            T.ArrayType(T.IntegerType()),
            pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
            [[1, 2], None, [3, 4]],
        ),
        (
            T.ArrayType(T.IntegerType()),
            pa.array([[1], None], pa.list_view(pa.int64())),
            [[1], None],
        ),
        (T.ArrayType(T.StringType()), pa.array([["a"]], pa.list_(pa.string_view())), [["a"]]),
        (T.ArrayType(T.StringType()), pa.array([["a"]], pa.list_(pa.large_string())), [["a"]]),
        (
            T.ArrayType(T.StringType()),
            pa.array([["a", None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            [["a", None]],
        ),
        (T.BinaryType(), pa.array([b"xy"], pa.binary(2)), [b"xy"]),
        (T.BinaryType(), pa.array([b"xy"], pa.binary_view()), [b"xy"]),
        (
            T.DecimalType(10, 3),
            pa.array([Decimal("1.5")], pa.decimal256(50, 1)),
            [Decimal("1.500")],
        ),
        (T.DateType(), pa.array([86_400_000], pa.date64()), [datetime.date(1970, 1, 2)]),
        (
            T.TimestampType(),
            pa.array([1_000], NS),
            [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)],
        ),
        (
            T.MapType(T.StringType(), T.IntegerType()),
            pa.array(
                [[("a", 1)], None, [("b", None)]], pa.map_(pa.large_string(), pa.int64())
            ).slice(1),
            [None, [("b", None)]],
        ),
        (T.LongType(), pa.nulls(2), [None, None]),
        (T.ArrayType(T.LongType()), pa.array([[None], []]), [[None], []]),
    ],
    ids=lambda given: (
        given.simpleString() if isinstance(given, T.DataType) else str(getattr(given, "type", ""))
    ),
)
def test_an_arrow_value_that_stays_what_it_is_may_have_another_type(
    kind: Any, given: Any, kept: Any
) -> None:
    table = rows.arrow_table(one_column(kind), pa.table({"c": given}))
    assert table.column("c").to_pylist() == kept
    assert table.schema == arrow_schema(one_column(kind))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (T.MapType(T.StringType(), T.LongType()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (T.MapType(T.StringType(), T.LongType()), [("a", 1)], [("a", 1)]),
        (
            T.MapType(T.LongType(), T.MapType(T.StringType(), STRUCT)),
            {1: {"x": {"age": 2}}},
            [(1, [("x", {"name": None, "age": 2})])],
        ),
        (T.ArrayType(T.LongType()), np.array([1, 2]), [1, 2]),
        (T.ArrayType(T.DoubleType()), np.array([1.5, 2.5], np.float32), [1.5, 2.5]),
        (T.ArrayType(T.ArrayType(T.LongType())), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (T.ArrayType(T.StringType()), np.array(["a", "b"]), ["a", "b"]),
        (
            T.StructType([T.StructField("v", T.ArrayType(T.LongType()))]),
            {"v": np.array([1])},
            {"v": [1]},
        ),
        (T.MapType(T.StringType(), T.ArrayType(T.LongType())), {"v": np.array([1])}, [("v", [1])]),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else "",
)
@FORMS
def test_maps_come_as_dicts_and_arrays_as_those_of_numpy(
    kind: Any, value: Any, kept: Any, make: Any
) -> None:
    assert rows.arrow_table(one_column(kind), make(value)).to_pylist() == [{"c": kept}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.MapType(T.StringType(), T.LongType()), {"a": 1.5}),
        (T.MapType(T.StringType(), T.LongType()), {1: 1}),
        (T.MapType(T.StringType(), T.LongType()), {None: 1}),
        (T.MapType(T.StringType(), T.LongType()), [("a", 1), ("a", 2)]),
        (T.MapType(T.DoubleType(), T.LongType()), [(0.0, 1), (-0.0, 2)]),
        (T.MapType(T.FloatType(), T.LongType()), [(-0.0, 1), (0.0, 2)]),
        (T.MapType(T.ArrayType(T.DoubleType()), T.LongType()), [([0.0], 1), ([-0.0], 2)]),
        (T.MapType(T.StringType(), T.LongType()), [("a", 1, 2)]),
        (T.MapType(T.StringType(), T.LongType(), False), {"a": None}),
        (T.ArrayType(T.LongType()), np.array([1.5])),
        (T.ArrayType(T.LongType()), np.array([[1]])),
        (T.ArrayType(T.LongType()), np.array(1)),
        (T.ArrayType(T.LongType()), {"a": 1}),
        (T.ArrayType(T.LongType()), {1}),
        (T.ArrayType(T.IntegerType()), np.array([2**40])),
        (T.TimestampType(), pd.Timestamp(1, tz="UTC")),
        (STRUCT, {"name": "a", "vip": True}),
        (STRUCT, ("a", 3)),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else repr(given),
)
@FORMS
def test_maps_and_arrays_are_checked_like_all_else(kind: Any, value: Any, make: Any) -> None:
    assert mismatch(one_column(kind), make(value)) == "c"


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.dates(),
        st.datetimes(),
        st.datetimes(timezones=st.just(UTC)),
        st.decimals(),
        st.just(object()),
        st.just(pd.NaT),
        st.just(pd.NA),
        st.just(np.array([1, 2])),
        st.just(np.datetime64("2024-01-01")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=2),
        st.tuples(inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=5_000 if LONG else 300, suppress_health_check=list(HealthCheck))
@example(kind=T.DateType(), value=-719163, as_pandas=False)  # the day before the year 1
@example(kind=T.DateType(), value=2_932_897, as_pandas=True)
@example(kind=T.ArrayType(T.TimestampType()), value=[2**62], as_pandas=False)
@given(kind=generated.types().filter(generated.can_be), value=ANYTHING, as_pandas=st.booleans())
def test_any_value_is_kept_or_refused(kind: Any, value: Any, as_pandas: Any) -> None:
    """Nothing else ever comes out of it: no other error, and no other value."""
    given_rows = [{"c": value}]
    if as_pandas:
        given_rows = pd.DataFrame({"c": pd.Series([value], dtype=object)})
    try:
        table = rows.arrow_table(one_column(kind), given_rows)
    except SchemaMismatch:
        return
    (kept,) = table.column("c").to_pylist()
    again = rows.arrow_table(one_column(kind), [{"c": kept}])
    assert generated.equal(again.to_pylist(), [{"c": kept}])
    if kept is not None and isinstance(value, (bool, int, str, bytes, datetime.date)):
        assert kept == value


@settings(max_examples=1_000 if LONG else 50, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(generated.columns(), min_size=1, max_size=3))
def test_what_fits_is_kept_in_every_form(drawn: Any) -> None:
    schema, made = generated.table(drawn)
    table = rows.arrow_table(schema, made)
    assert generated.equal(table.to_pylist(), made)
    assert generated.equal(rows.arrow_table(schema, table.slice(1)).to_pylist(), made[1:])
    parts = pa.concat_tables([table.slice(2), table.slice(0, 2)])
    assert generated.equal(rows.arrow_table(schema, parts).to_pylist(), made[2:] + made[:2])
