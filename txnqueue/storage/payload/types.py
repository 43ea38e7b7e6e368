"""The types of columns: which are allowed, and their forms in SQL and Arrow."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnqueue.errors import SchemaMismatch
from txnqueue.storage.journal.sessions import new_frame
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload.column_names import folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN: Mapping[type[DataType], str] = {
    BinaryType: "X''",
    BooleanType: "false",
    ByteType: "0",
    DateType: "DATE '1970-01-01'",
    DecimalType: "0",
    DoubleType: "0",
    FloatType: "0",
    IntegerType: "0",
    LongType: "0",
    ShortType: "0",
    TimestampNTZType: "TIMESTAMP_NTZ '1970-01-01 00:00:00'",
    TimestampType: "timestamp_seconds(0)",
}
"""The plain types besides text, each with an example value."""
_REFUSED_BY_DELTA = frozenset(" ,;{}()\n\t=")
_DECIMAL_DIGITS_MAX = 38
_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


# ------------------------------------------------------------------------- names and types


def check_column(column: StructField) -> None:
    """Check that a payload table can have a column, including everything inside it.

    Raises:
        SchemaMismatch: Delta refuses its name or a name inside it, or its type is not known to
            every reader of Delta tables.
    """
    _check_name(column.name, column.name)
    _check_names(column.name, column.dataType)
    _check_type(column.name, column.dataType)


def check_staged(column: StructField) -> None:
    """Check that a column can be staged under another name, whatever its own name is.

    Raises:
        SchemaMismatch: Delta refuses a name inside it, the fields of a struct cannot be told
            apart, or its type is unknown.
    """
    _check_names(column.name, column.dataType)
    kind = column.dataType
    if not isinstance(kind, NullType) and has_type(kind, NullType):
        raise SchemaMismatch(
            f"Column {column.name!r} is {sql_type(kind)}, because all its values are empty or "
            "null: give an Arrow table or a DataFrame with its type.",
            column=column.name,
        )


def _check_name(path: str, name: str) -> None:
    wrong = sorted(_REFUSED_BY_DELTA.intersection(name))
    if wrong:
        raise SchemaMismatch(
            f"Column {path!r}: Delta does not allow {wrong[0]!r} in a name; rename it.", column=path
        )
    if not name:
        raise SchemaMismatch(
            f"Column {path!r}: it contains an empty name; fill it in.", column=path
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SchemaMismatch(f"Column {path!r}: {error}; rename it.", column=path) from error


def _check_names(path: str, kind: DataType) -> None:
    seen: set[str] = set()
    for name, inner in _inside(kind):
        whole = f"{path}.{name}"
        if isinstance(kind, StructType):
            _check_name(whole, name)
            if folded(name) in seen:
                raise SchemaMismatch(
                    f"Column {whole!r} is declared twice: names in a struct must differ in more "
                    "than case.",
                    column=whole,
                )
            seen.add(folded(name))
        _check_names(whole, inner)


def _check_type(path: str, kind: DataType) -> None:
    wrong = None
    if isinstance(kind, StructType) and not kind.fields:
        wrong = "is a struct without fields: give it at least one"
    elif isinstance(kind, MapType) and _has_map(kind.keyType):
        wrong = "has keys that hold maps, which Spark refuses: use other keys"
    elif isinstance(kind, DecimalType) and not _is_decimal(kind):
        wrong = f"has type {sql_type(kind)}: give 1 to 38 digits, and at most as many decimals"
    elif not (isinstance(kind, (ArrayType, MapType, StructType, *_PLAIN)) or _is_text(kind)):
        wrong = (
            f"has type {kind.simpleString()}, which not every reader of Delta tables knows: use a "
            "plain type, a struct, an array or a map"
        )
    if wrong:
        raise SchemaMismatch(f"Column {path!r} {wrong}.", column=path)
    for name, inner in _inside(kind):
        _check_type(f"{path}.{name}" if isinstance(kind, StructType) else path, inner)


def _inside(kind: DataType) -> Iterable[tuple[str, DataType]]:
    """List the types inside a type, with the names of their places in SQL."""
    if isinstance(kind, ArrayType):
        return [("element", kind.elementType)]
    if isinstance(kind, MapType):
        return [("key", kind.keyType), ("value", kind.valueType)]
    if isinstance(kind, StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    return []


def _has_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) or any(_has_map(inner) for _, inner in _inside(kind))


def _is_text(kind: DataType) -> bool:
    """Return whether a type is a string compared byte by byte."""
    return type(kind) is StringType and kind.simpleString() == "string"


def _is_decimal(kind: DecimalType) -> bool:
    return 1 <= kind.precision <= _DECIMAL_DIGITS_MAX and 0 <= kind.scale <= kind.precision


def has_type(kind: DataType, wanted: type[DataType]) -> bool:
    """Return whether a type is the wanted one, or contains it."""
    return isinstance(kind, wanted) or any(has_type(inner, wanted) for _, inner in _inside(kind))


def forbids_null(kind: DataType) -> bool:
    """Return whether a type forbids nulls inside it; keys of maps, which are never null, aside."""
    if isinstance(kind, ArrayType):
        return not kind.containsNull or forbids_null(kind.elementType)
    if isinstance(kind, MapType):
        return (
            not kind.valueContainsNull or forbids_null(kind.keyType) or forbids_null(kind.valueType)
        )
    if isinstance(kind, StructType):
        return any(not f.nullable or forbids_null(f.dataType) for f in kind.fields)
    return False


# ----------------------------------------------------------------------- in other systems


def some_value(kind: DataType) -> str | None:
    """Return some value of a type as SQL; None for a type that is not plain."""
    plain = "''" if _is_text(kind) else _PLAIN.get(type(kind))
    return None if plain is None else f"CAST({plain} AS {sql_type(kind)})"


def sql_type(kind: DataType) -> str:
    """Return a type as SQL in which every name is literal, whatever the session's settings.

    Two types have the same SQL if they hold the same values, regardless of nullability.
    """
    if isinstance(kind, TimestampType):  # the meaning of ``timestamp`` depends on the session
        return "timestamp_ltz"
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)},{sql_type(kind.valueType)}>"
    if isinstance(kind, StructType):
        fields = (f"{identifier(f.name)}:{sql_type(f.dataType)}" for f in kind.fields)
        return f"struct<{','.join(fields)}>"
    return kind.simpleString()


def stored_type(kind: DataType) -> DataType:
    """Return the type of a payload table's column: the same type with everything nullable.

    Delta does not enforce NOT NULL inside a column, so it is checked beforehand.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(stored_type(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(stored_type(kind.keyType), stored_type(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, stored_type(f.dataType)) for f in kind.fields])
    return kind


def _in_utc() -> Mapping[str, Any]:
    """Return this PySpark's argument for instants in UTC, which has another name in 4.2."""
    known = inspect.signature(to_arrow_type).parameters
    return {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}


IN_UTC = _in_utc()
"""The argument for PySpark's conversions of types to Arrow."""


def arrow_type(kind: DataType) -> pa.DataType:
    """Convert a type to Arrow; instants are microseconds, in UTC if they have a zone."""
    return to_arrow_type(stored_type(kind), **IN_UTC)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert columns to Arrow, as they are stored."""
    return pa.schema([(column.name, arrow_type(column.dataType)) for column in schema.fields])


def spark_type(path: str, kind: pa.DataType) -> DataType:
    """Return the type of a column that can hold every value of an Arrow column.

    Raises:
        SchemaMismatch: There is no such type.
    """
    try:
        return from_arrow_type(_known(kind), prefer_timestamp_ntz=True)
    except (PySparkTypeError, pa.ArrowException) as error:
        raise SchemaMismatch(
            f"Column {path!r} has the Arrow type {kind}, which no column type corresponds to: "
            "cast it first.",
            column=path,
        ) from error


def names_of(schema: pa.Schema) -> list[str]:
    """List the names of Arrow columns, which may be any octets.

    Raises:
        SchemaMismatch: One of them is not UTF-8 text.
    """
    try:
        return list(schema.names)
    except UnicodeDecodeError as error:
        name = error.object.decode("utf-8", "backslashreplace")
        raise SchemaMismatch(
            f"The name of column {name!r} is not UTF-8 text: rename the column.", column=name
        ) from error


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns that can hold the values of an Arrow table.

    Raises:
        SchemaMismatch: One has no corresponding type, or its name is not UTF-8 text.
    """
    columns = zip(names_of(schema), schema, strict=True)
    return StructType([StructField(n, spark_type(n, c.type), c.nullable) for n, c in columns])


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame from a table; instants without a zone stay so, whatever the settings."""
    # Spark considers an empty batch the end, unless it is the first one.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    found = pa.Table.from_batches(batches, table.schema) if batches else table
    return new_frame(session, found, spark_schema(table.schema))


def _known(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type for the same values that PySpark supports."""
    types = pa.types
    if types.is_dictionary(kind):
        return _known(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_float16(kind):
        return pa.float32()
    if is_list(kind):
        return pa.list_(_known_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_known_field(kind.key_field), _known_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_known_field(field) for field in kind])
    return _SIGNED.get(kind, kind)


def _known_field(field: pa.Field) -> pa.Field:
    return field.with_type(_known(field.type))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's list types."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
