"""Check what callers hand in against a queue's schema, before anything is written.

Rows come as a Spark DataFrame, a pandas or Arrow table, or a list of dicts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.journal.tables import identifier
from txnqueue.payload.schemas import (
    MESSAGE_COLUMN,
    arrow_schema,
    check_names,
    matched_columns,
    wrong_type,
)


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
                in_rows=True,
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
            f"Column {column!r} has mixed types: {error}", column=column, in_rows=True
        ) from error


def _from_table(schema: StructType, table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name != MESSAGE_COLUMN]
    check_names(schema, names)
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
            fits = _arrow_fits(data.type, into.type)  # then it is a value that does not
            raise wrong_type(column, str(data.type), in_rows=fits) from error
    return pa.table(columns, schema=_nullable(target))


def _from_dicts(schema: StructType, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row if name != MESSAGE_COLUMN))
    check_names(schema, names if rows else schema.names)
    target = arrow_schema(schema)
    columns = []
    for column, into in zip(schema.fields, target, strict=True):
        values = [row.get(column.name) for row in rows]
        try:
            array = pa.array(values, into.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as error:
            raise wrong_type(column, str(error), in_rows=True) from error
        for value, kept in zip(values, array.to_pylist(), strict=True):
            if not _same(value, kept) or _null_inside(column.dataType, value):
                said = f"{type(value).__name__} {value!r}"
                raise wrong_type(column, said, in_rows=True)
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
