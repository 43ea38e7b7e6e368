"""What columns a queue may have, and which of a DataFrame's fit them."""

import pytest
from pyspark.sql import types as T

from txnqueue.errors import SchemaMismatch
from txnqueue.payload import schemas
from txnqueue.testing import plain_schema

SCHEMA = plain_schema("id long not null, name string, amount double, day date, at timestamp")


def one_column(kind, nullable=True):
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
def test_a_frames_column_may_be_narrower(have, want):
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
def test_a_frames_column_of_another_type_is_refused(have, want):
    with pytest.raises(SchemaMismatch, match="'c' takes") as caught:
        schemas.matched_columns(one_column(want), one_column(have))
    assert caught.value.column == "c"


def test_a_frames_unknown_and_missing_columns_are_refused():
    with pytest.raises(SchemaMismatch, match="'d' is not in the schema"):
        schemas.matched_columns(one_column(T.LongType()), plain_schema("c long, d long"))
    with pytest.raises(SchemaMismatch, match="'c' is missing"):
        schemas.matched_columns(
            one_column(T.LongType(), nullable=False), plain_schema("_message long")
        )


def test_a_frames_nullable_column_may_be_missing():
    schema = plain_schema("c long, d long")
    assert schemas.matched_columns(schema, plain_schema("d long")) == [schema["d"]]


# --------------------------------------------------------------------- a queue's schema


@pytest.mark.parametrize(
    "name", ["slice", "send_id", "send_offset", "headers", "SLICE", "_message", "_mine"]
)
def test_a_reserved_column_name_is_refused(name):
    with pytest.raises(SchemaMismatch, match=f"'{name}'.*reserved"):
        schemas.check_schema(plain_schema(f"id long, {name} string"), None)


@pytest.mark.parametrize("twice", ["id", "ID"])
def test_a_column_twice_in_a_schema_is_refused(twice):
    with pytest.raises(SchemaMismatch, match=f"'{twice}' stands twice"):
        schemas.check_schema(plain_schema(f"id long, {twice} long"), None)


def test_a_schema_without_columns_is_refused():
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
def test_a_type_that_not_every_reader_knows_is_refused(kind):
    with pytest.raises(SchemaMismatch, match="'c' has type"):
        schemas.check_schema(one_column(kind), None)


def test_a_type_inside_a_struct_is_named_with_its_path():
    inner = T.StructType([T.StructField("deep", T.NullType())])
    with pytest.raises(SchemaMismatch, match=r"'c\.deep'"):
        schemas.check_schema(one_column(inner), None)


@pytest.mark.parametrize("group_by", ["nobody", "amount", "at"])
def test_messages_are_grouped_by_a_string_a_whole_number_or_a_date(group_by):
    with pytest.raises(SchemaMismatch, match=f"group_by='{group_by}'"):
        schemas.check_schema(SCHEMA, group_by)
    for usable in ("id", "name", "day"):
        assert schemas.check_schema(SCHEMA, usable) is SCHEMA
