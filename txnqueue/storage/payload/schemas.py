"""The columns of payload and messages: which a queue may have, and which rows fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
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

from txnqueue.core.settings import (
    MESSAGE_COLUMN,
    RESERVED_COLUMNS,
    did_you_mean,
    is_text,
    plain_text,
    shown,
)
from txnqueue.errors import SchemaMismatch
from txnqueue.storage.journal.exceptions import spark_message
from txnqueue.storage.journal.sessions import new_frame
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.types import check_column, sql_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_TYPE = StructType(
    [
        StructField("id", StringType(), False),
        StructField("message_id", StringType(), False),
        StructField("queue", StringType(), False),
        StructField("lane", IntegerType(), False),
        StructField("delivery_count", IntegerType(), False),
        StructField("redelivered", BooleanType(), False),
        StructField("enqueued_at", TimestampType(), False),
        StructField("transaction_id", StringType(), True),
        StructField("headers", MapType(StringType(), StringType()), True),
        StructField("correlation_id", StringType(), True),
        StructField("reply_to", StringType(), True),
        StructField(
            "origin",
            StructType(
                [
                    StructField("queue", StringType(), True),
                    StructField("reason", StringType(), True),
                    StructField("delivery_count", IntegerType(), True),
                    StructField("error", StringType(), True),
                ]
            ),
            True,
        ),
        StructField("send_id", StringType(), False),
        StructField("send_offset", LongType(), False),
    ]
)
MESSAGE = StructField(MESSAGE_COLUMN, MESSAGE_TYPE, False)

_GROUPING = (StringType, ByteType, ShortType, IntegerType, LongType, DateType)
_WIDER: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "bigint": (),
    "float": ("double",),
}


def check_schema(
    schema: StructType, group_by: str | None, message_id: str | None = None
) -> StructType:
    """Check that a queue can have this schema.

    Returns:
        The schema, in which the column of message ids is not nullable.

    Raises:
        SchemaMismatch: A column's name is reserved, refused by Delta or repeated, its type is
            not known to every reader of Delta tables, or ``group_by`` or ``message_id`` is not a
            suitable column.
    """
    if not schema.fields:
        raise SchemaMismatch(
            "A queue needs at least one payload column: give a schema such as 'order_id long'."
        )
    seen: set[str] = set()
    for column in schema.fields:
        plain = folded(column.name)
        if plain in RESERVED_COLUMNS or plain.startswith("_"):
            raise SchemaMismatch(
                f"Column {column.name!r}: the names {', '.join(sorted(RESERVED_COLUMNS))} and "
                "those that begin with '_' are reserved; rename the column.",
                column=column.name,
            )
        if plain in seen:
            raise SchemaMismatch(
                f"Column {column.name!r} is declared twice (names that differ only in case are "
                "equal): rename one.",
                column=column.name,
            )
        seen.add(plain)
        check_column(column)
    if group_by is not None:
        _check_key("group_by", group_by, schema)
    if message_id is None:
        return schema
    _check_key("message_id", message_id, schema)
    return StructType(
        [
            StructField(c.name, c.dataType, c.nullable and c.name != message_id, c.metadata)
            for c in schema.fields
        ]
    )


def _check_key(what: str, name: str, schema: StructType) -> None:
    column = next((c for c in schema.fields if c.name == name), None)
    if column is None:
        near = did_you_mean(name, schema.names)
        raise SchemaMismatch(f"{what}={shown(name)} is not a column: {near}", column=name)
    if not isinstance(column.dataType, _GROUPING):
        raise SchemaMismatch(
            f"{what}={shown(name)}: give a column of strings, whole numbers or dates, not of "
            f"{sql_type(column.dataType)}.",
            column=name,
        )


def schema_from(spark: SparkSession | None, schema: object, name: str = "schema") -> StructType:
    """Read a user's schema: a StructType or DDL, which without a session may have plain types only.

    Args:
        spark: The session, if there is one.
        schema: The schema.
        name: The argument that it was given as.

    Raises:
        SchemaMismatch: It is not a schema.
    """
    if isinstance(schema, StructType):
        return schema
    if not is_text(schema) or not schema.strip():
        raise SchemaMismatch(
            f"{name}={shown(schema)}: give columns as DDL, such as 'order_id long, amount "
            "double', or as a StructType."
        )
    ddl = plain_text(schema)
    if spark is None:
        return plain_schema(ddl)
    try:
        return new_frame(spark, [], ddl).schema
    except Exception as error:
        if "char/varchar type" in str(error):  # what Spark says of them names no column
            raise SchemaMismatch(
                f"{name}={shown(schema)} has a column of type char or varchar: use string."
            ) from error
        raise SchemaMismatch(
            f"{name}={shown(schema)} is not a schema; give one such as 'order_id long, amount "
            f"double': {spark_message(str(error))}"
        ) from error


def plain_schema(ddl: str) -> StructType:
    """Read a schema of plain types written as DDL, without a session.

    Raises:
        SchemaMismatch: It has types that only a session can read.
    """
    plain: Mapping[str, DataType] = {
        "string": StringType(),
        "tinyint": ByteType(),
        "byte": ByteType(),
        "short": ShortType(),
        "long": LongType(),
        "bigint": LongType(),
        "int": IntegerType(),
        "integer": IntegerType(),
        "smallint": ShortType(),
        "double": DoubleType(),
        "float": FloatType(),
        "boolean": BooleanType(),
        "date": DateType(),
        "timestamp": TimestampType(),
        "timestamp_ltz": TimestampType(),
        "timestamp_ntz": TimestampNTZType(),
        "binary": BinaryType(),
    }
    columns = []
    for text in ddl.split(","):
        words: Sequence[str] = text.split()
        required = [word.lower() for word in words[2:]] == ["not", "null"]
        if (
            len(words) not in (2, 4)
            or words[1].lower() not in plain
            or (len(words) == 4 and not required)
        ):
            raise SchemaMismatch(
                f"{text.strip()!r} is not a plain column: write 'name type'. Without a session "
                "other types than these need a StructType: " + ", ".join(sorted(plain)) + "."
            )
        columns.append(StructField(words[0].strip("`"), plain[words[1].lower()], not required))
    return StructType(columns)


def new_columns(there: Mapping[str, StructField], columns: StructType) -> list[StructField]:
    """Find the columns that a payload table lacks.

    Args:
        there: Its columns, by their folded names.
        columns: The columns that it should have.

    Raises:
        SchemaMismatch: One exists with another type.
    """
    missing = []
    for column in columns.fields:
        old = there.get(folded(column.name))
        if old is None:
            missing.append(column)
        elif (old.name, sql_type(old.dataType)) != (column.name, sql_type(column.dataType)):
            raise SchemaMismatch(
                f"An unfinished alter added the column {old.name!r} of type "
                f"{sql_type(old.dataType)}: add it with this type, or choose another name.",
                column=column.name,
            )
    return missing


def described_columns(*described: Mapping[str, Any]) -> StructType:
    """Read columns as the catalog describes them; of equal names only the first.

    Args:
        described: The descriptions: of one table, or also of others with more columns.
    """
    columns: dict[str, StructField] = {}
    for one in described:
        for column in StructType.fromJson(dict(one)).fields:
            columns.setdefault(folded(column.name), column)
    return StructType([*columns.values()])


def matched_columns(schema: StructType, have: StructType) -> list[StructField]:
    """Match a DataFrame's columns with the queue's, by name.

    Returns:
        The queue's columns that the DataFrame has; the others are nullable and get null.

    Raises:
        SchemaMismatch: A column is unknown, missing, given twice or of another type.
    """
    columns = [column for column in have.fields if column.name != MESSAGE_COLUMN]
    check_names(schema, [column.name for column in columns])
    given = {column.name: column for column in columns}
    matched = []
    for column in schema.fields:
        found = given.get(column.name)
        if found is None:
            continue
        if not _fits(found.dataType, column.dataType):
            raise wrong_type(column, sql_type(found.dataType))
        matched.append(column)
    return matched


def check_names(schema: StructType, given: list[str]) -> None:
    """Check that the given columns are in the schema, each once, and that none is missing."""
    known = dict.fromkeys(column.name for column in schema.fields)
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise SchemaMismatch(f"Column {twice!r} is given twice: rename one.", column=twice)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SchemaMismatch(
            f"Column {unknown[0]!r} is not in the schema; it has {', '.join(known)}. Leave the "
            "column out, or add it by alter.",
            column=unknown[0],
        )
    for column in schema.fields:
        if column.name not in given and not column.nullable:
            raise SchemaMismatch(
                f"Column {column.name!r} is missing and may not be null: give it in all rows.",
                column=column.name,
            )


def wrong_type(column: StructField, found: str, *, in_rows: bool = False) -> SchemaMismatch:
    """Build the error for a column whose type differs from that of the given column or values."""
    remedy = "cast it"
    if isinstance(column.dataType, TimestampType):
        remedy = "give times with a time zone"
    elif isinstance(column.dataType, TimestampNTZType):
        remedy = "give times without a time zone"
    return SchemaMismatch(
        f"Column {column.name!r} takes {sql_type(column.dataType)}, not {found}: {remedy}.",
        column=column.name,
        in_rows=in_rows,
    )


def wrong_null(name: str) -> SchemaMismatch:
    """Build the error for a null inside a column that allows none."""
    return SchemaMismatch(
        f"Column {name!r} contains a null where its type allows none: fill it.",
        column=name,
        in_rows=True,
    )


def _fits(have: DataType, want: DataType) -> bool:
    if sql_type(have) in ("void", sql_type(want)):
        return True
    if isinstance(have, DecimalType) and isinstance(want, DecimalType):
        return want.scale >= have.scale and want.precision - want.scale >= (
            have.precision - have.scale
        )
    return sql_type(want) in _WIDER.get(sql_type(have), ())
