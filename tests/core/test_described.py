"""The types that are read without Spark are those that Spark's own classes tell."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnqueue.storage.payload.described import Described, type_name
from txnqueue.storage.payload.message_info import MESSAGE_INFO
from txnqueue.storage.payload.schemas import MESSAGE_TYPE
from txnqueue.storage.payload.types import arrow_schema, arrow_type

INSIDE = StructType([StructField("at", TimestampType()), StructField("no", IntegerType(), False)])
KINDS: list[DataType] = [
    *(StringType(), LongType(), IntegerType(), ShortType(), ByteType(), DoubleType()),
    *(FloatType(), BooleanType(), DateType(), TimestampType(), TimestampNTZType(), BinaryType()),
    *(DecimalType(38, 0), DecimalType(5, 5), INSIDE, ArrayType(TimestampNTZType(), False)),
    *(MapType(StringType(), INSIDE, False), ArrayType(MapType(DateType(), ArrayType(INSIDE)))),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_type_is_the_same_in_arrow_and_is_called_the_same(kind: DataType) -> None:
    schema = StructType([StructField("a b", kind), StructField("é", kind, False)])
    described = Described(schema.jsonValue())
    assert described.names == schema.names
    assert described.arrow() == arrow_schema(schema)
    assert type_name(kind.jsonValue()) == kind.simpleString()


def test_what_is_known_of_a_message_has_the_type_that_spark_gives_it() -> None:
    assert arrow_type(MESSAGE_TYPE) == MESSAGE_INFO
