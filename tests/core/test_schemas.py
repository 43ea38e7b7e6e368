"""What columns a queue may have, and which of a DataFrame's fit them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tests import generated
from txnqueue.core.state import catalog
from txnqueue.errors import SchemaMismatch
from txnqueue.storage.payload import schemas
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.rows import schema_of
from txnqueue.storage.payload.types import sql_type
from txnqueue.testing import plain_schema

SCHEMA = plain_schema("id long not null, name string, amount double, day date, at timestamp")


def one_column(kind: Any, nullable: bool = True) -> Any:
    return T.StructType([T.StructField("c", kind, nullable)])


# ---------------------------------------------------------------------- Spark's columns


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (T.IntegerType(), T.LongType()),
        (T.ByteType(), T.ShortType()),
        (T.FloatType(), T.DoubleType()),
        (T.IntegerType(), T.DoubleType()),
        (T.NullType(), T.StringType()),
        (T.DecimalType(5, 2), T.DecimalType(7, 3)),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_a_frames_column_may_be_narrower(have: Any, want: Any) -> None:
    assert schemas.matched_columns(one_column(want), one_column(have)) == one_column(want).fields


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (T.LongType(), T.IntegerType()),
        (T.LongType(), T.DoubleType()),
        (T.DoubleType(), T.FloatType()),
        (T.StringType(), T.LongType()),
        (T.LongType(), T.StringType()),
        (T.TimestampType(), T.DateType()),
        (T.TimestampNTZType(), T.TimestampType()),
        (T.DecimalType(5, 2), T.DecimalType(5, 1)),
        (T.DecimalType(5, 2), T.DecimalType(4, 2)),
        (T.ArrayType(T.LongType()), T.ArrayType(T.StringType())),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_a_frames_column_of_another_type_is_refused(have: Any, want: Any) -> None:
    with pytest.raises(SchemaMismatch, match="'c' takes") as caught:
        schemas.matched_columns(one_column(want), one_column(have))
    assert caught.value.column == "c"


def test_a_frames_unknown_and_missing_columns_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'d' is not in the schema"):
        schemas.matched_columns(one_column(T.LongType()), plain_schema("c long, d long"))
    with pytest.raises(SchemaMismatch, match="it has e, d, c, b, a, f"):
        schemas.check_names(plain_schema("e int, d int, c int, b int, a int, f int"), ["x"])
    with pytest.raises(SchemaMismatch, match="'c' is missing"):
        schemas.matched_columns(
            one_column(T.LongType(), nullable=False), plain_schema("_message long")
        )


def test_a_frames_nullable_column_may_be_missing() -> None:
    schema = plain_schema("c long, d long")
    assert schemas.matched_columns(schema, plain_schema("d long")) == [schema["d"]]


# --------------------------------------------------------------------- a queue's schema


@pytest.mark.parametrize(
    "name", ["slice", "send_id", "send_offset", "headers", "SLICE", "_message", "_mine"]
)
def test_a_reserved_column_name_is_refused(name: Any) -> None:
    with pytest.raises(SchemaMismatch, match=f"'{name}'.*reserved"):
        schemas.check_schema(plain_schema(f"id long, {name} string"), None)


@pytest.mark.parametrize("twice", ["id", "ID"])
def test_a_column_twice_in_a_schema_is_refused(twice: bool) -> None:
    with pytest.raises(SchemaMismatch, match=f"'{twice}' is declared twice"):
        schemas.check_schema(plain_schema(f"id long, {twice} long"), None)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="at least one"):
        schemas.check_schema(T.StructType([]), None)


@pytest.mark.parametrize(
    "kind",
    [
        T.NullType(),
        T.DayTimeIntervalType(),
        T.YearMonthIntervalType(),
        T.VarcharType(5),
        T.ArrayType(T.NullType()),
        T.MapType(T.StringType(), T.NullType()),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_a_type_that_not_every_reader_knows_is_refused(kind: Any) -> None:
    with pytest.raises(SchemaMismatch, match="'c' has type"):
        schemas.check_schema(one_column(kind), None)


def test_a_type_inside_a_struct_is_named_with_its_path() -> None:
    inner = T.StructType([T.StructField("deep", T.NullType())])
    with pytest.raises(SchemaMismatch, match=r"'c\.deep'"):
        schemas.check_schema(one_column(inner), None)


@pytest.mark.parametrize("group_by", ["nobody", "amount", "at"])
def test_messages_are_grouped_by_a_string_a_whole_number_or_a_date(group_by: Any) -> None:
    with pytest.raises(SchemaMismatch, match=f"group_by='{group_by}'"):
        schemas.check_schema(SCHEMA, group_by)
    for usable in ("id", "name", "day"):
        assert schemas.check_schema(SCHEMA, usable) is SCHEMA


# --------------------------------------------------------------------- names and types


@pytest.mark.parametrize("name", generated.REFUSED_NAMES)
def test_a_name_that_delta_refuses_is_refused(name: Any) -> None:
    inner = T.StructType([T.StructField(name, T.LongType())])
    for schema in (
        T.StructType([T.StructField(name, T.LongType())]),
        one_column(inner),
        one_column(T.ArrayType(inner)),
        one_column(T.MapType(T.StringType(), T.MapType(T.StringType(), inner))),
    ):
        with pytest.raises(SchemaMismatch):
            schemas.check_schema(schema, None)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="surrogates not allowed"):
        schemas.check_schema(T.StructType([T.StructField("\ud83d", T.LongType())]), None)


@pytest.mark.parametrize("name", [name for name in generated.ODD_NAMES if name != "_x"])
def test_a_name_that_sql_would_read_otherwise_is_allowed(name: Any) -> None:
    inner = T.StructType([T.StructField(name, T.LongType())])
    schema = T.StructType([T.StructField(name, inner)])
    assert schemas.check_schema(schema, None) is schema


@pytest.mark.parametrize(
    "pair", ["aA", "ıi", "İi", "ſs", "Kk", "ßẞ", "µμ", "ςσ", "ǅǆ", "Ωω"], ids=ascii
)
def test_names_that_spark_cannot_tell_apart_are_refused(pair: Any) -> None:
    """It compares as Java does: small letters alone do not say it."""
    fields = T.StructType([T.StructField(name, T.LongType()) for name in pair])
    for schema in (fields, one_column(fields), one_column(T.ArrayType(fields))):
        with pytest.raises(SchemaMismatch, match="is declared twice"):
            schemas.check_schema(schema, None)
    assert folded("straße") != folded("strasse")


@pytest.mark.parametrize(
    "kind",
    [
        T.StructType([]),
        T.ArrayType(T.StructType([])),
        T.MapType(T.MapType(T.StringType(), T.LongType()), T.LongType()),
        T.MapType(T.ArrayType(T.MapType(T.StringType(), T.LongType())), T.LongType()),
        T.DecimalType(39, 0),
        T.DecimalType(5, 6),
        T.DecimalType(5, -1),
        T.StringType("UTF8_LCASE"),
    ],
    ids=str,
)
def test_a_type_that_no_table_can_have_is_refused(kind: Any) -> None:
    for schema in (one_column(kind), one_column(T.ArrayType(kind))):
        with pytest.raises(SchemaMismatch, match="'c"):
            schemas.check_schema(schema, None)


def test_types_are_told_apart_whatever_the_names_in_them_look_like() -> None:
    """Written without quotes they would be one type, and share a table of staged rows."""
    kinds = [
        T.StructType([T.StructField("x:bigint,y", T.LongType())]),
        T.StructType([T.StructField("x", T.LongType()), T.StructField("y", T.LongType())]),
    ]
    assert kinds[0].simpleString() == kinds[1].simpleString()
    assert sql_type(kinds[0]) != sql_type(kinds[1])
    with pytest.raises(SchemaMismatch):
        schemas.matched_columns(one_column(kinds[0]), one_column(kinds[1]))


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.uint8(), T.ShortType()),
        (pa.uint32(), T.LongType()),
        (pa.float16(), T.FloatType()),
        (pa.date64(), T.DateType()),
        (pa.string_view(), T.StringType()),
        (pa.binary_view(), T.BinaryType()),
        (pa.list_view(pa.large_string()), T.ArrayType(T.StringType())),
        (pa.timestamp("ns"), T.TimestampNTZType()),
        (pa.timestamp("s", "Europe/Berlin"), T.TimestampType()),
        (pa.dictionary(pa.int8(), pa.string()), T.StringType()),
    ],
    ids=str,
)
def test_a_schema_like_a_table_takes_the_tables_rows(have: Any, want: Any) -> None:
    """An instant without a zone stays one, so that the rows fit the queue made like them."""
    schema = schema_of(pa.table({"c": pa.array([None], have)}))
    assert schema == one_column(want)


@pytest.mark.parametrize("have", [pa.uint64(), pa.duration("us"), pa.month_day_nano_interval()])
def test_a_schema_like_a_table_of_other_types_is_refused(have: Any) -> None:
    with pytest.raises(SchemaMismatch, match="'c'"):
        schemas.check_schema(schema_of(pa.table({"c": pa.array([], have)})), None)


def test_a_message_says_by_which_columns_schemas_differ() -> None:
    def schema(*columns: Any) -> dict[Any, Any]:
        return {"fields": [{"name": name, "type": kind} for name, kind in columns]}

    one = schema(("a", "long"), ("b", "string"), ("c", {"type": "array"}))
    other = schema(("a", "long"), ("b", "double"), ("d", "long"))
    assert catalog.differing(one, other) == (
        "column 'b' (string, and double), column 'c' (array, and missing), "
        "column 'd' (missing, and long)"
    )
    turned = schema(("b", "string"), ("a", "long"))
    assert catalog.differing(schema(("a", "long"), ("b", "string")), turned).startswith("the order")


def test_a_schema_as_text_without_a_session_has_simple_types() -> None:
    schema = plain_schema("a tinyint, b short not null, c timestamp_ntz, d timestamp_ltz")
    kinds = [T.ByteType(), T.ShortType(), T.TimestampNTZType(), T.TimestampType()]
    assert [column.dataType for column in schema] == kinds
    for other in ("amount decimal(5,2)", "who struct<name:string>", "name", "a b c"):
        with pytest.raises(SchemaMismatch, match="StructType"):
            plain_schema(other)


JAVA = "\n\tat org.apache.spark.Some.method(Some.scala:1)"
"""A line of a trace."""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o60.applySchemaToPythonRDD.\n: org.apache.spark."
            "SparkException: [INTERNAL_ERROR] Logical plan should not have output of char/varchar "
            f"type when spark.sql.preserveCharVarcharTypeInfo is false{JAVA}",
            "schema='n x' has a column of type char or varchar: use string.",
        ),
        (
            '\n[UNSUPPORTED_DATATYPE] Unsupported data type "X". SQLSTATE: 0A000 (line 1, pos 2)\n'
            "\n== SQL ==\nn x\n--^^^\n",
            "schema='n x' is not a schema; give one such as 'order_id long, amount double': "
            '[UNSUPPORTED_DATATYPE] Unsupported data type "X". SQLSTATE: 0A000 (line 1, pos 2)',
        ),
    ],
)
def test_what_spark_says_of_a_schema_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    def refused(*_: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(schemas, "new_frame", refused)
    session: Any = object()
    with pytest.raises(SchemaMismatch) as caught:
        schemas.schema_from(session, "n x")
    assert str(caught.value) == told
