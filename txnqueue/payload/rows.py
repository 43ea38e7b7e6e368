"""Check what callers hand in against a queue's schema, before anything is written.

Rows come as a Spark DataFrame, a pandas or Arrow table, or a list of dicts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
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

from txnqueue.config import RESERVED_COLUMNS
from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.journal.tables import identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_COLUMN = "_message"
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
                ]
            ),
            True,
        ),
        StructField("send_id", StringType(), False),
        StructField("send_offset", LongType(), False),
    ]
)

_PLAIN = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)
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
        The schema, in which the column that names the messages may not be null.

    Raises:
        SchemaMismatch: A column's name is reserved or stands twice, its type is not one
            that every reader of Delta tables knows, ``group_by`` cannot group, or
            ``message_id`` cannot name anything.
    """
    if not schema.fields:
        raise SchemaMismatch("A queue needs at least one payload column.")
    seen: set[str] = set()
    for column in schema.fields:
        folded = column.name.lower()
        if folded in RESERVED_COLUMNS or folded.startswith("_"):
            raise SchemaMismatch(
                f"Column {column.name!r}: the names {', '.join(sorted(RESERVED_COLUMNS))} and "
                "those that start with '_' are reserved; rename the column.",
                column=column.name,
            )
        if folded in seen:
            raise SchemaMismatch(f"Column {column.name!r} stands twice.", column=column.name)
        seen.add(folded)
        _check_type(column.name, column.dataType)
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
        raise SchemaMismatch(f"{what}={name!r} is no column.", column=name)
    if not isinstance(column.dataType, _GROUPING):
        raise SchemaMismatch(
            f"{what}={name!r}: give a column of strings, whole numbers or dates, not of "
            f"{column.dataType.simpleString()}.",
            column=name,
        )


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, ArrayType):
        _check_type(name, kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(name, kind.keyType)
        _check_type(name, kind.valueType)
    elif isinstance(kind, StructType):
        for inner in kind.fields:
            _check_type(f"{name}.{inner.name}", inner.dataType)
    elif type(kind) is not StringType and not isinstance(kind, _PLAIN):
        raise SchemaMismatch(
            f"Column {name!r} has type {kind.simpleString()}, which not every reader of Delta "
            "tables knows: use a plain type, a struct, an array or a map.",
            column=name,
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Translate a payload schema; instants are microseconds in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def schema_from(spark: SparkSession | None, schema: str | StructType) -> StructType:
    """Read a schema that a user gives: as it is, or DDL, of plain types if there is no session.

    Raises:
        SchemaMismatch: It is no schema.
    """
    if isinstance(schema, StructType):
        return schema
    if spark is None:
        return plain_schema(str(schema))
    try:
        return spark.createDataFrame([], str(schema)).schema
    except Exception as error:
        raise SchemaMismatch(f"{schema!r} is no schema: {error}") from error


def plain_schema(ddl: str) -> StructType:
    """Read a schema of plain types written as DDL, without a session.

    Raises:
        SchemaMismatch: It has types that only a session can read.
    """
    plain: Mapping[str, DataType] = {
        "string": StringType(),
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
            raise SchemaMismatch(f"{text.strip()!r} is no plain column: write 'name type'.")
        columns.append(StructField(words[0].strip("`"), plain[words[1].lower()], not required))
    return StructType(columns)


def new_columns(there: Mapping[str, StructField], columns: StructType) -> list[StructField]:
    """Find the columns that a payload table does not have yet.

    Args:
        there: Its columns, by their names in small letters.
        columns: The columns that it shall have.

    Raises:
        SchemaMismatch: One is there with another type.
    """
    missing = []
    for column in columns.fields:
        old = there.get(column.name.lower())
        if old is None:
            missing.append(column)
        elif (old.name, old.dataType) != (column.name, column.dataType):
            raise SchemaMismatch(
                f"An alter that was not finished added the column {old.name!r} of type "
                f"{old.dataType.simpleString()}: add it with this type, or choose another name.",
                column=column.name,
            )
    return missing


def matched_columns(schema: StructType, have: StructType) -> list[StructField]:
    """Match a DataFrame's columns with the queue's, by name.

    Returns:
        The queue's columns that the DataFrame has; the others are nullable, and get null.

    Raises:
        SchemaMismatch: A column is unknown, missing or of another type.
    """
    given = {column.name: column for column in have.fields if column.name != MESSAGE_COLUMN}
    _check_names(schema, list(given))
    matched = []
    for column in schema.fields:
        found = given.get(column.name)
        if found is None:
            continue
        if not _fits(found.dataType, column.dataType):
            raise _wrong_type(column, found.dataType.simpleString())
        matched.append(column)
    return matched


def arrow_table(schema: StructType, rows: object) -> pa.Table:
    """Make an Arrow table of a list of dicts, a pandas or an Arrow table.

    Raises:
        SchemaMismatch: A column is unknown, missing, of another type, or null though it
            may not be.
        InvalidInput: The rows come in no form that is known.
    """
    if isinstance(rows, pa.Table):
        table = _from_table(schema, rows)
    elif isinstance(rows, pa.RecordBatch):
        table = _from_table(schema, pa.Table.from_batches([rows]))
    elif type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        table = _from_table(schema, _from_pandas(rows))
    elif isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        table = _from_dicts(schema, rows)
    else:
        raise InvalidInput(
            f"Rows of {type(rows).__name__} cannot be sent: give a DataFrame, a pandas or Arrow "
            "table, or a list of dicts."
        )
    for column in schema.fields:
        if not column.nullable and table.column(column.name).null_count:
            raise SchemaMismatch(
                f"Column {column.name!r} may not be null, and is in "
                f"{table.column(column.name).null_count} of {table.num_rows} rows.",
                column=column.name,
            )
    return table


def source_rows(rows: Any, schema: StructType | None) -> tuple[Any, StructType]:
    """Bring the rows of a table change into one of two forms, a DataFrame or an Arrow table.

    Args:
        rows: A DataFrame, a pandas or Arrow table, or a list of dicts.
        schema: The columns that they must fit; None takes them as they are.

    Returns:
        The rows without ``_message``, and their columns.

    Raises:
        SchemaMismatch: A column is unknown, missing or of another type.
        InvalidInput: The rows come in no form that is known.
    """
    if isinstance(getattr(rows, "schema", None), StructType):
        frame = rows.drop(MESSAGE_COLUMN)
        if schema is None:
            return frame, frame.schema
        columns = matched_columns(schema, frame.schema)
        cast = (frame[identifier(c.name)].cast(c.dataType) for c in columns)
        named = [column.alias(c.name) for column, c in zip(cast, columns, strict=True)]
        return frame.select(*named), StructType(columns)
    if schema is not None:
        return arrow_table(schema, rows), schema
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        table = pa.Table.from_pylist(list(rows))
    elif type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        table = _from_pandas(rows)
    elif isinstance(rows, pa.Table):
        table = rows
    else:
        raise InvalidInput(
            f"Rows of {type(rows).__name__} cannot be used: give a DataFrame, a pandas or Arrow "
            "table, or a list of dicts."
        )
    table = table.drop_columns([name for name in table.column_names if name == MESSAGE_COLUMN])
    return table, from_arrow_schema(table.schema, prefer_timestamp_ntz=False)


def header_text(value: object) -> str:
    """Write a value of a header's column as text; the same in Spark and in Python."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts_of(column: Any) -> list[str | None]:
    """Write the values of a column as text, as Spark casts them."""
    return [None if value is None else str(value) for value in column.to_pylist()]


def lane_of(key: object, lanes: int) -> int:
    """Find the lane of a grouping key; the same in Spark and in Python."""
    return 0 if key is None else zlib.crc32(str(key).encode()) % lanes


def _from_pandas(rows: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        # Arrow's message ends with "Conversion failed for column x with type object".
        column = str(error.args[-1]).partition("for column ")[2].partition(" with type")[0] or "?"
        raise SchemaMismatch(
            f"Column {column!r} has mixed types: {error}", column=column
        ) from error


def _from_table(schema: StructType, table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name != MESSAGE_COLUMN]
    _check_names(schema, names)
    target = arrow_schema(schema)
    columns = []
    for column, into in zip(schema.fields, target, strict=True):
        if column.name not in names:
            columns.append(pa.nulls(table.num_rows, into.type))
            continue
        data = table.column(column.name)
        if pa.types.is_dictionary(data.type):
            data = data.cast(data.type.value_type)
        try:
            if not _arrow_fits(data.type, into.type):
                raise pa.ArrowTypeError(str(data.type))
            columns.append(data.cast(into.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise _wrong_type(column, str(data.type)) from error
    return pa.table(columns, schema=_nullable(target))


def _from_dicts(schema: StructType, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row if name != MESSAGE_COLUMN))
    _check_names(schema, names if rows else schema.names)
    target = arrow_schema(schema)
    columns = []
    for column, into in zip(schema.fields, target, strict=True):
        values = [row.get(column.name) for row in rows]
        try:
            array = pa.array(values, into.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as error:
            raise _wrong_type(column, str(error)) from error
        for value, kept in zip(values, array.to_pylist(), strict=True):
            if not _same(value, kept) or _null_inside(column.dataType, value):
                raise _wrong_type(column, f"{type(value).__name__} {value!r}")
        columns.append(array)
    return pa.table(columns, schema=_nullable(target))


def _null_inside(kind: DataType, value: Any) -> bool:
    """Say whether a nested value has a null where its type forbids one; Arrow lets it pass."""
    inside: list[tuple[DataType, bool, Any]] = []
    if isinstance(kind, ArrayType):
        inside = [(kind.elementType, kind.containsNull, one) for one in value or ()]
    elif isinstance(kind, MapType):
        found = dict(value or {}).values()
        inside = [(kind.valueType, kind.valueContainsNull, one) for one in found]
    elif isinstance(kind, StructType) and value is not None:
        inside = [(f.dataType, f.nullable, value.get(f.name)) for f in kind.fields]
    return any(
        (one is None and not nullable) or _null_inside(of, one) for of, nullable, one in inside
    )


def _same(value: Any, kept: Any) -> bool:
    """Say whether Arrow kept a value: it converts some silently, and drops unknown fields."""
    if isinstance(kept, bool) or type(value).__name__ in ("bool", "bool_"):
        return isinstance(kept, bool) and bool(value) == kept
    if isinstance(kept, float):
        rounded = isinstance(value, (int, float)) and abs(value - kept) <= abs(value) * 1e-6
        return bool(value == kept or value != value or rounded)
    if isinstance(kept, dict) and isinstance(value, Mapping):
        return set(value) <= set(kept) and all(_same(value.get(k), v) for k, v in kept.items())
    if isinstance(kept, list) and isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) == len(kept) and all(map(_same, value, kept))
    if isinstance(kept, int) and isinstance(value, float):
        return False
    return kept is None or bool(value == kept)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column.with_nullable(True) for column in schema])


def _check_names(schema: StructType, given: list[str]) -> None:
    known = {column.name for column in schema.fields}
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise SchemaMismatch(f"Column {twice!r} stands twice.", column=twice)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SchemaMismatch(
            f"Column {unknown[0]!r} is not in the schema; it has {', '.join(known)}.",
            column=unknown[0],
        )
    for column in schema.fields:
        if column.name not in given and not column.nullable:
            raise SchemaMismatch(
                f"Column {column.name!r} is missing and may not be null.", column=column.name
            )


def _wrong_type(column: StructField, found: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Column {column.name!r} takes {column.dataType.simpleString()}, not {found}.",
        column=column.name,
    )


def _fits(have: DataType, want: DataType) -> bool:
    if have.simpleString() in ("void", want.simpleString()):
        return True
    if isinstance(have, DecimalType) and isinstance(want, DecimalType):
        return want.scale >= have.scale and want.precision - want.scale >= (
            have.precision - have.scale
        )
    return want.simpleString() in _WIDER.get(have.simpleString(), ())


def _arrow_fits(have: pa.DataType, want: pa.DataType) -> bool:
    types = pa.types
    if have == want or types.is_null(have) or types.is_nested(want):
        return True
    wider: list[tuple[Any, tuple[Any, ...]]] = [
        (types.is_integer, (types.is_integer,)),
        (types.is_floating, (types.is_floating, types.is_integer)),
        (types.is_string, (types.is_large_string, types.is_string_view)),
        (types.is_binary, (types.is_large_binary, types.is_fixed_size_binary)),
        (types.is_decimal, (types.is_decimal,)),
    ]
    for wanted, accepted in wider:
        if wanted(want):
            return any(accepts(have) for accepts in accepted)
    return bool(
        types.is_timestamp(want)
        and types.is_timestamp(have)
        and (have.tz is None) == (want.tz is None)
    )
