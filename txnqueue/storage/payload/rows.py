"""Checks of callers' rows against a queue's schema, before anything is written.

Rows are a Spark DataFrame, a pandas or Arrow table, or a list of dicts.
"""

from __future__ import annotations

import datetime
import math
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnqueue.core.settings import MESSAGE_COLUMN, shown
from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.conversion import converted, flaw
from txnqueue.storage.payload.frames import is_of_pandas
from txnqueue.storage.payload.nulls import fitted
from txnqueue.storage.payload.schemas import (
    check_names,
    matched_columns,
    wrong_type,
)
from txnqueue.storage.payload.types import (
    arrow_schema,
    arrow_type,
    check_staged,
    has_type,
    names_of,
    spark_schema,
    spark_type,
    sql_type,
)


def arrow_table(schema: StructType, rows: object) -> pa.Table:
    """Make an Arrow table from a list of dicts, or a pandas or Arrow table.

    Raises:
        SchemaMismatch: A column is unknown, missing, of another type, or null although it must
            not be.
        InvalidInput: The rows have an unknown form.
    """
    given = _given(rows)
    if given is not None:
        names, read = given
        check_names(schema, [name for name in names if name != MESSAGE_COLUMN])
        count = len(rows) if hasattr(rows, "iloc") else rows.num_rows  # type: ignore[attr-defined, arg-type]  # pandas or Arrow
        columns = [
            _column(column, read(names.index(column.name)))
            if column.name in names
            else pa.nulls(count, arrow_type(column.dataType))
            for column in schema.fields
        ]
    elif _are_dicts(rows):
        names = _names_of(rows)
        check_names(schema, names if rows else schema.names)
        columns = [_of_values(c, [row.get(c.name) for row in rows]) for c in schema.fields]
    else:
        raise _unknown(rows, "sent")
    return pa.table(columns, schema=arrow_schema(schema))


def source_rows(
    rows: Any, schema: StructType | None, filled: Container[str] = ()
) -> tuple[Any, StructType]:
    """Convert the rows of a table change to a DataFrame or an Arrow table.

    Args:
        rows: A DataFrame, a pandas or Arrow table, or a list of dicts.
        schema: The columns that they must fit; None: they are taken as they are.
        filled: Columns that are omitted if the rows lack them; other missing columns are null.

    Returns:
        The rows without ``_message``, and their columns.

    Raises:
        SchemaMismatch: A column is unknown, missing or of another type, or Delta refuses its
            name.
        InvalidInput: The rows have an unknown form.
    """
    if isinstance(getattr(rows, "schema", None), StructType):
        frame = rows.drop(MESSAGE_COLUMN)
        if schema is None:
            for column in frame.schema.fields:
                check_staged(column)
            return frame, frame.schema
        schema = _without(schema, filled, frame.columns)
        matched_columns(schema, frame.schema)
        named = [
            fitted(frame[identifier(c.name)] if c.name in frame.columns else F.lit(None), c)
            for c in schema.fields
        ]
        return frame.select(*named), schema
    given = _given(rows)
    if schema is not None:
        names = given[0] if given is not None else _names_of(rows) if _are_dicts(rows) else ()
        schema = _without(schema, filled, names)
        return arrow_table(schema, rows), schema
    if given is not None:
        names, read = given
        found = [
            _inferred(name, read(number))
            for number, name in enumerate(names)
            if name != MESSAGE_COLUMN
        ]
    elif _are_dicts(rows):
        found = [_inferred(name, [row.get(name) for row in rows]) for name in _names_of(rows)]
    else:
        raise _unknown(rows, "used")
    for column, _ in found:
        check_staged(column)
    columns = [column for column, _ in found]
    return pa.table([data for _, data in found], names=[c.name for c in columns]), StructType(
        columns
    )


def _without(schema: StructType, filled: Container[str], given: Sequence[str]) -> StructType:
    """Omit columns that the rows lack and that the table fills in, or that cannot be staged.

    Raises:
        SchemaMismatch: A column is given that cannot be staged.
    """
    columns = []
    for column in schema.fields:
        if column.name in given:
            check_staged(column)
        elif column.name in filled or not _is_staged(column):
            continue
        columns.append(column)
    return StructType(columns)


def _is_staged(column: StructField) -> bool:
    try:
        check_staged(column)
    except SchemaMismatch:
        return False
    return True


def check_instants(column: StructField, target: StructType, table: str) -> None:
    """Check that instants match the kind of instants in the table's column of the same name.

    Spark would silently interpret an instant without a zone as UTC, and drop a zone.

    Raises:
        SchemaMismatch: One side has a zone, the other has none.
    """
    mine = column.dataType
    other = next((c.dataType for c in target.fields if folded(c.name) == folded(column.name)), mine)
    for kind, wanted in ((TimestampNTZType, TimestampType), (TimestampType, TimestampNTZType)):
        if has_type(mine, kind) and not has_type(other, kind) and has_type(other, wanted):
            raise SchemaMismatch(
                f"Column {column.name!r} is {sql_type(mine)}, but in {table!r} it is "
                f"{sql_type(other)}: convert it in SQL with an explicit time zone.",
                column=column.name,
            )


def schema_of(like: Any) -> StructType:
    """Take the schema of a DataFrame, or of a pandas or Arrow table.

    Raises:
        InvalidInput: It is none of these.
        SchemaMismatch: One of the columns has no corresponding type.
    """
    if isinstance(getattr(like, "schema", None), StructType):
        columns = like.schema.fields
    elif isinstance(like, (pa.Table, pa.RecordBatch)):
        columns = spark_schema(like.schema).fields
    elif (given := _given(like)) is not None:
        names, read = given
        columns = [_inferred(name, read(number))[0] for number, name in enumerate(names)]
    else:
        raise InvalidInput(f"like={type(like).__name__}: give a DataFrame, pandas or Arrow table.")
    return StructType([column for column in columns if column.name != MESSAGE_COLUMN])


def column_names(rows: Any) -> set[str]:
    """Return the names of the columns of rows that a user sends.

    Raises:
        InvalidInput: The rows have an unknown form.
    """
    if isinstance(getattr(rows, "schema", None), StructType):
        return set(rows.columns)
    given = _given(rows)
    if given is not None:
        return set(given[0])
    if _are_dicts(rows):
        return {name for row in rows for name in row}
    raise _unknown(rows, "sent")


def header_text(value: object) -> str:
    """Return a value of a header's column as text, equal in Spark and in Python."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def values_of(name: str, column: Any) -> list[Any]:
    """Return the values of a column.

    Raises:
        SchemaMismatch: Python cannot hold one of them.
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]  # PyArrow has no types
    except (ValueError, OverflowError) as error:
        raise SchemaMismatch(
            f"Column {name!r} has a value that cannot be read in Python ({error}): correct the "
            "rows.",
            column=name,
            in_rows=True,
        ) from error


def texts_of(values: Iterable[object]) -> list[str | None]:
    """Return values as text, as Spark casts them."""
    return [None if value is None else str(value) for value in values]


def lane_of(key: object, lanes: int) -> int:
    """Return the lane of a grouping key, equal in Spark and in Python."""
    return 0 if key is None else zlib.crc32(str(key).encode()) % lanes


def _given(rows: object) -> tuple[list[str], Callable[[int], Any]] | None:
    """Return the columns of a pandas or Arrow table and a reader of one; None for other rows."""
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        return names_of(rows.schema), rows.column
    if is_of_pandas(rows):
        table: Any = rows
        if hasattr(table, "columns"):
            return [str(name) for name in table.columns], lambda number: table.iloc[:, number]
    return None


def _are_dicts(rows: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):  # even an empty one
        return False
    return all(isinstance(row, Mapping) for row in rows)


def _names_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the columns of dicts, whose keys may differ."""
    return list(dict.fromkeys(name for row in rows for name in row if name != MESSAGE_COLUMN))


def _unknown(rows: object, use: str) -> InvalidInput:
    return InvalidInput(
        f"Rows of {type(rows).__name__} cannot be {use}: give a DataFrame, a pandas or Arrow "
        "table, or a list of dicts."
    )


def _column(column: StructField, data: Any) -> pa.ChunkedArray:
    """Convert a column of a pandas or Arrow table to a column's type.

    Objects in pandas are checked one by one: Arrow cannot distinguish a map from a struct there,
    and truncates instants that are too precise.
    """
    want = arrow_type(column.dataType)
    try:
        if not isinstance(data, (pa.Array, pa.ChunkedArray)):
            if data.dtype == object and not pa.types.is_string(want):
                return _of_values(column, _objects(data))
            data = pa.array(data, from_pandas=True)
        return _sound(column, converted(data, want))
    except (pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, SchemaMismatch):
            raise
        kind = data.type if hasattr(data, "type") else data.dtype
        in_rows = isinstance(error, pa.ArrowInvalid)  # the type fits, but a value does not
        raise wrong_type(column, f"{kind} ({error})", in_rows=in_rows) from error


def _inferred(name: str, data: Any) -> tuple[StructField, pa.ChunkedArray]:
    """Infer the type of a column, and convert the column to it.

    Args:
        name: The column.
        data: Values, or a column of a pandas or Arrow table.
    """
    if not isinstance(data, list) and getattr(data, "dtype", None) == object:  # noqa: E721
        data = _objects(data)
    values = data if isinstance(data, list) else None
    try:
        if not isinstance(data, (pa.Array, pa.ChunkedArray)):
            data = pa.array(data, from_pandas=values is None)
        if values is not None:
            for value, kept in zip(values, data.to_pylist(), strict=True):
                if not _same(value, kept):
                    raise pa.ArrowInvalid(f"{shown(value)} would become {shown(kept)}")
        column = StructField(name, spark_type(name, data.type))
        return column, _sound(column, converted(data, arrow_type(column.dataType)))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SchemaMismatch):
            raise
        raise SchemaMismatch(
            f"Column {name!r} has no single type: {error}. Give an Arrow table or a DataFrame.",
            column=name,
            in_rows=True,
        ) from error


def _objects(data: Any) -> list[Any]:
    """Return the values of a pandas column of objects, with None for what is missing."""
    return [None if _is_missing(value) else value for value in data]


def _of_values(column: StructField, values: Sequence[Any]) -> pa.ChunkedArray:
    """Convert Python values to a column's type."""
    want = arrow_type(column.dataType)
    try:
        if pa.types.is_nested(want):
            values = [_plain(column.dataType, value) for value in values]
        data = pa.chunked_array([pa.array(values, want)], want)
        read = data.to_pylist()  # Arrow accepts days outside Python's range
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise wrong_type(column, f"these values ({error})", in_rows=True) from error
    for value, kept in zip(values, read, strict=True):
        if not _same(value, kept):
            raise wrong_type(column, f"{type(value).__name__} {shown(value)}", in_rows=True)
    return _sound(column, data)


def _sound(column: StructField, data: pa.ChunkedArray) -> pa.ChunkedArray:
    if data.null_count and not column.nullable:
        raise SchemaMismatch(
            f"Column {column.name!r} may not be null, but is in {data.null_count} of {len(data)} "
            "rows: fill it, because it is declared NOT NULL or holds the message ids.",
            column=column.name,
            in_rows=True,
        )
    why = flaw(column.dataType, data, nullable=True)
    if why is not None:
        raise SchemaMismatch(
            f"Column {column.name!r} has {why}: correct the rows.", column=column.name, in_rows=True
        )
    return data


def _plain(kind: DataType, value: Any) -> Any:
    """Convert maps to pairs and arrays to lists, as Arrow expects; nothing else is changed.

    Other values are not passed to Arrow, where some of them would end the process.

    Raises:
        TypeError: It is not a map, array or struct.
    """
    if value is None:
        return None
    if isinstance(kind, MapType):
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if isinstance(pairs, (list, tuple)) and all(map(_is_pair, pairs)):
            return [(_plain(kind.keyType, k), _plain(kind.valueType, v)) for k, v in pairs]
    elif isinstance(kind, ArrayType):
        if isinstance(value, (list, tuple)) or _is_array(value):
            return [_plain(kind.elementType, one) for one in value]
    elif isinstance(kind, StructType):
        if isinstance(value, Mapping):
            kinds = {field.name: field.dataType for field in kind.fields}
            return {k: _plain(kinds[k], v) if k in kinds else v for k, v in value.items()}
    else:
        return value
    raise TypeError(f"{type(value).__name__} {shown(value)} is not a {kind.typeName()}")


def _is_pair(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


def _is_array(value: object) -> bool:
    return type(value).__name__ == "ndarray" and getattr(value, "ndim", 0) > 0


def _is_missing(value: object) -> bool:
    """Return whether pandas considers a value missing."""
    return type(value).__name__ in ("NaTType", "NAType") or (
        isinstance(value, float) and math.isnan(value)
    )


def _same(value: Any, kept: Any) -> bool:
    """Return whether Arrow kept a value, because it silently converts some and drops fields."""
    if value is None or kept is None:
        return value is kept or type(value).__name__ == "NaTType"
    if isinstance(kept, bool) or type(value).__name__ in ("bool", "bool_"):
        return isinstance(kept, bool) and bool(value) == kept
    if isinstance(kept, float):
        rounded = isinstance(value, (int, float)) and abs(value - kept) <= abs(value) * 1e-6
        is_nan = value != value  # noqa: PLR0124 - of whatever type, numpy's too
        return bool(value == kept or is_nan or rounded)
    if isinstance(kept, dict):
        known = isinstance(value, Mapping) and set(value) <= set(kept)
        return known and all(_same(value.get(k), v) for k, v in kept.items())
    if isinstance(kept, (list, tuple)):
        many = isinstance(value, (list, tuple)) or _is_array(value)
        return many and len(value) == len(kept) and all(map(_same, value, kept))
    if isinstance(kept, int) and isinstance(value, float):
        return False
    if _is_aware(value) and _is_aware(kept):
        # In the hour that clocks show twice, no instants of two zones are ever equal.
        value, kept = (one.astimezone(datetime.timezone.utc) for one in (value, kept))
    return bool(value == kept)


def _is_aware(value: object) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None
