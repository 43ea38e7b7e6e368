"""Checks for forbidden nulls inside columns, which Spark and Delta do not check."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnqueue.storage.payload.types import forbids_null, stored_type

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField

NULL_INSIDE = "txnqueue: a null inside of column"


def fitted(value: Column, column: StructField) -> Column:
    """Cast a value to a column's type and name, and fail where it contains a forbidden null."""
    from pyspark.sql import functions as F

    value = value.cast(stored_type(column.dataType))
    if forbids_null(column.dataType):
        wrong = _null_at(column.dataType, value, nullable=True)
        value = F.when(wrong, failure(NULL_INSIDE, column.name)).otherwise(value)
    return value.alias(column.name)


def failure(marker: str, column: str) -> Column:
    """Return an expression that fails when it is evaluated, naming a column."""
    from pyspark.sql import functions as F

    return F.raise_error(F.lit(f"{marker} {column.encode().hex()};"))


def column_of(marker: str, text: str) -> str | None:
    """Read from an error the column that made a send fail; None if it has no such mark."""
    found = re.search(f"{marker} ([0-9a-f]*);", text)
    return bytes.fromhex(found[1]).decode() if found else None


def _null_at(kind: DataType, value: Column, *, nullable: bool) -> Column:
    """Return the condition that a value is, or contains, a forbidden null."""
    from pyspark.sql import functions as F

    found = F.lit(False) if nullable else value.isNull()
    if not forbids_null(kind):
        return found
    inside = F.lit(False)
    if isinstance(kind, ArrayType):
        inside = _null_in(kind.elementType, value, nullable=kind.containsNull)
    elif isinstance(kind, MapType):
        keys = _null_in(kind.keyType, F.map_keys(value), nullable=True)
        inside = keys | _null_in(
            kind.valueType, F.map_values(value), nullable=kind.valueContainsNull
        )
    elif isinstance(kind, StructType):
        for field in kind.fields:
            inside = inside | _null_at(
                field.dataType, value.getField(field.name), nullable=field.nullable
            )
    return found | F.coalesce(value.isNotNull() & inside, F.lit(False))


def _null_in(kind: DataType, values: Column, *, nullable: bool) -> Column:
    from pyspark.sql import functions as F

    return F.exists(values, lambda value: _null_at(kind, value, nullable=nullable))
