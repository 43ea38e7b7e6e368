"""Conversion of Arrow columns to the types of a queue's columns, without changing values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnqueue.storage.payload.types import is_list

_DAYS = (-719_162, 2_932_896)
"""The years 1 to 9999 in days, the range of Python and of standard SQL."""
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def converted(data: pa.Array | pa.ChunkedArray, want: pa.DataType) -> pa.ChunkedArray:
    """Convert a column to a type, provided that every value stays the same.

    Whole numbers and decimals may get more or fewer digits, strings and lists may have any of
    Arrow's forms, and a struct may lack fields or have them in another order.

    Raises:
        pa.ArrowException: A value would change, or is of another type.
    """
    chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
    return pa.chunked_array([_array(chunk, want) for chunk in chunks], want)


def flaw(kind: DataType, data: pa.ChunkedArray, *, nullable: bool) -> str | None:
    """Describe content that a column must not have although its Arrow type allows it; None if none.

    Args:
        kind: The column's type, which determines where nulls are allowed.
        nullable: Whether nulls are allowed at this level.
        data: The column, as returned by ``converted``.
    """
    try:
        data.validate(full=True)
    except pa.ArrowInvalid:
        return "text that is not UTF-8"
    found = (_flaw(kind, chunk, nullable=nullable) for chunk in data.chunks)
    return next((why for why in found if why), None)


def _array(data: pa.Array, want: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(data.type):
        data = data.dictionary_decode()
    if pa.types.is_null(data.type):
        return pa.nulls(len(data), want)
    if pa.types.is_list(want):
        return _list(data, want)
    if pa.types.is_map(want):
        return _map(data, want)
    if pa.types.is_struct(want):
        return _struct(data, want)
    return _plain(data, want)


def _list(data: pa.Array, want: pa.ListType) -> pa.Array:
    if not is_list(data.type):
        raise _misfit(data, want)
    values = _array(data.flatten(), want.value_type)  # without values under nulls
    lengths = pc.fill_null(pc.list_value_length(data), 0)
    offsets = pa.concat_arrays([_zero(), pc.cumulative_sum(lengths).cast(pa.int32())])
    # Arrow may keep a bitmap of nulls although none is null, and would refuse it.
    offsets = pa.Array.from_buffers(offsets.type, len(offsets), [None, offsets.buffers()[1]])
    return pa.ListArray.from_arrays(offsets, values, type=want, mask=data.is_null())


def _map(data: pa.Array, want: pa.MapType) -> pa.Array:
    if not pa.types.is_map(data.type):
        raise _misfit(data, want)
    data = _compact(data)
    starts = pc.if_else(data.is_null(), pa.scalar(None, pa.int32()), data.offsets[:-1])
    offsets = pa.concat_arrays([starts, data.offsets[-1:]])
    keys, items = _array(data.keys, want.key_type), _array(data.items, want.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items)


def _struct(data: pa.Array, want: pa.StructType) -> pa.Array:
    names = [field.name for field in data.type] if pa.types.is_struct(data.type) else []
    known = {field.name for field in want}
    if not names or len(set(names)) < len(names) or not known.issuperset(names):
        raise _misfit(data, want)
    have = dict(zip(names, data.flatten(), strict=True))
    children = [
        _array(have[field.name], field.type)
        if field.name in have
        else pa.nulls(len(data), field.type)
        for field in want
    ]
    return pa.StructArray.from_arrays(children, fields=list(want), mask=data.is_null())


def _plain(data: pa.Array, want: pa.DataType) -> pa.Array:
    if not _fits(data.type, want):
        raise _misfit(data, want)
    found = data.cast(want)  # raises if a value would change, except for floats
    if pa.types.is_float32(want) and pa.types.is_float64(data.type):
        changed = pc.and_(pc.not_equal(found.cast(data.type), data), pc.invert(pc.is_nan(data)))
        if pc.any(changed).as_py():
            value = data.filter(changed)[0]
            raise pa.ArrowInvalid(f"{value} would be rounded to {value.cast(want, safe=False)}")
    return found


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    types = pa.types
    if have == want:
        return True
    wider: list[tuple[Any, tuple[Any, ...]]] = [
        (types.is_integer, (types.is_integer,)),
        (types.is_floating, (types.is_floating, types.is_integer)),
        (types.is_string, (types.is_large_string, types.is_string_view)),
        (
            types.is_binary,
            (types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
        ),
        (types.is_decimal, (types.is_decimal,)),
        (types.is_date, (types.is_date,)),
    ]
    for wanted, accepted in wider:
        if wanted(want):
            return any(accepts(have) for accepts in accepted)
    return bool(
        types.is_timestamp(want)
        and types.is_timestamp(have)
        and (have.tz is None) == (want.tz is None)
    )


def _flaw(kind: DataType, data: pa.Array, *, nullable: bool) -> str | None:
    if data.null_count:
        if not nullable:
            return "a null where there may be none"
        data = data.filter(data.is_valid())
    if isinstance(kind, ArrayType):
        return _flaw(kind.elementType, data.flatten(), nullable=kind.containsNull)
    if isinstance(kind, MapType):
        data = _compact(data)
        why = "a map with a key twice" if _key_twice(data) else None
        why = why or _flaw(kind.keyType, data.keys, nullable=False)
        return why or _flaw(kind.valueType, data.items, nullable=kind.valueContainsNull)
    if isinstance(kind, StructType):
        pairs = zip(kind.fields, data.flatten(), strict=True)
        found = (_flaw(field.dataType, child, nullable=field.nullable) for field, child in pairs)
        return next((why for why in found if why), None)
    if isinstance(kind, (DateType, TimestampType, TimestampNTZType)) and len(data):
        days = isinstance(kind, DateType)
        first, last = _DAYS if days else _MICROSECONDS
        ends = pc.min_max(data.cast(pa.int32() if days else pa.int64())).as_py()
        if ends["min"] < first or ends["max"] > last:
            return "a day that is not in the years 1 to 9999"
    return None


def _key_twice(data: pa.MapArray) -> bool:
    """Return whether a map has two keys that are equal in Spark and in Python, as 0.0 and -0.0."""
    keys = data.keys
    lists = pa.ListArray.from_arrays(data.offsets, keys)
    rows = pc.list_parent_indices(lists)
    if pa.types.is_nested(keys.type):
        texts = (repr(_unsigned(key)) for key in keys.to_pylist())
        return len(set(zip(rows.to_pylist(), texts, strict=True))) < len(rows)
    if pa.types.is_floating(keys.type):
        keys = pc.add(keys, 0.0)
    table = pa.table({"row": rows, "key": keys})
    return bool(table.group_by(["row", "key"]).aggregate([]).num_rows < len(rows))


def _unsigned(value: Any) -> Any:
    """Return a value in which every zero is positive."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list):
        return [_unsigned(one) for one in value]
    if isinstance(value, dict):
        return {name: _unsigned(one) for name, one in value.items()}
    return value


def _compact(data: pa.Array) -> pa.Array:
    """Copy maps, so that their keys and items begin with the first map and end with the last."""
    return data.take(pa.array(range(len(data)), pa.int64()))


def _zero() -> pa.Array:
    return pa.array([0], pa.int32())


def _misfit(data: pa.Array, want: pa.DataType) -> pa.ArrowException:
    return pa.ArrowTypeError(f"{data.type} does not fit {want}")
