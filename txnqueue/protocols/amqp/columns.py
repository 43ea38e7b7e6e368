"""Column values in AMQP: in the matching AMQP type if there is one, otherwise as text."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnqueue.storage.payload.types import sql_type

Conversion = Callable[[DataType, Any], Any]


def _instant(text: str, *, zoned: bool) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    if (found.tzinfo is not None) != zoned:
        raise ValueError("it has a time zone where none is allowed, or lacks a required one")
    return found


_READ: Mapping[type[DataType], Callable[[str], Any]] = {
    DateType: datetime.date.fromisoformat,
    DecimalType: Decimal,
    TimestampNTZType: partial(_instant, zoned=False),
    TimestampType: partial(_instant, zoned=True),
}


def unwritable(schema: StructType) -> str | None:
    """Return which column an AMQP message cannot carry, and why; None if it can carry all."""
    for column in schema.fields:
        if not _has_form(column.dataType):
            return (
                f"column {column.name!r} is {sql_type(column.dataType)}, and only plain "
                "values other than binaries are keys of a map here"
            )
    return None


def written(kind: DataType, value: Any) -> Any:
    """Convert a column value to the form that a message carries."""
    if isinstance(kind, DateType | TimestampNTZType) and value is not None:
        return value.isoformat()
    if isinstance(kind, DecimalType) and value is not None:
        return format(value, "f")
    return _inside(kind, value, written)


def read(kind: DataType, value: Any) -> Any:
    """Convert a message's value to a column value; one that does not fit is left to be refused."""
    conversion = _READ.get(type(kind))
    if conversion is not None and isinstance(value, str):
        try:
            return conversion(value)
        except (ValueError, InvalidOperation):
            return value
    return _inside(kind, value, read)


def _inside(kind: DataType, value: Any, convert: Conversion) -> Any:
    """Convert the elements of a value; a value of another form is left as it is."""
    if isinstance(kind, ArrayType) and isinstance(value, list | tuple):
        return [convert(kind.elementType, one) for one in value]
    if isinstance(kind, StructType) and isinstance(value, Mapping):
        kinds = {field.name: field.dataType for field in kind.fields}
        return {k: convert(kinds[k], one) if k in kinds else one for k, one in value.items()}
    if isinstance(kind, MapType) and isinstance(value, Mapping | list | tuple):
        pairs = list(value.items() if isinstance(value, Mapping) else value)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            return value
        inside = [(convert(kind.keyType, k), convert(kind.valueType, v)) for k, v in pairs]
        if convert is read:
            return inside
        # AMQP timestamps have milliseconds only: as keys, they could become equal.
        instants = isinstance(kind.keyType, TimestampType)
        return {key.isoformat() if instants else key: one for key, one in inside}
    return value


def _has_form(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_form(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_form(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        # Proton writes maps with binary keys, but cannot read them.
        keyed = not isinstance(kind.keyType, ArrayType | BinaryType | MapType | StructType)
        return keyed and _has_form(kind.valueType)
    return True
