"""The types of payload columns in the catalog, converted to Arrow and SQL without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PLAIN: Mapping[str, tuple[pa.DataType, str]] = {
    "string": (pa.string(), "string"),
    "long": (pa.int64(), "bigint"),
    "integer": (pa.int32(), "int"),
    "short": (pa.int16(), "smallint"),
    "byte": (pa.int8(), "tinyint"),
    "double": (pa.float64(), "double"),
    "float": (pa.float32(), "float"),
    "boolean": (pa.bool_(), "boolean"),
    "date": (pa.date32(), "date"),
    "timestamp": (pa.timestamp("us", "UTC"), "timestamp"),
    "timestamp_ntz": (pa.timestamp("us"), "timestamp_ntz"),
    "binary": (pa.binary(), "binary"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


class Described:
    """The catalog's description of columns, in place of Spark's StructType."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Hold a description: Spark's JSON of a StructType."""
        self.described = described

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [field["name"] for field in self.described["fields"]]

    def arrow(self) -> pa.Schema:
        """Convert the columns to Arrow, as they are stored."""
        return pa.schema([(c["name"], arrow_type(c["type"])) for c in self.described["fields"]])

    def as_schema(self) -> StructType:
        """Return itself, typed as the StructType that interfaces expect."""
        return cast("StructType", self)


def arrow_type(kind: str | Mapping[str, Any]) -> pa.DataType:
    """Convert a type to Arrow; instants are microseconds, in UTC if they have a zone."""
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return _PLAIN[kind][0]
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"])))
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.struct([(field["name"], arrow_type(field["type"])) for field in kind["fields"]])


def type_name(kind: str | Mapping[str, Any]) -> str:
    """Return a type in the form of Spark's ``simpleString``."""
    if isinstance(kind, str):
        return _PLAIN[kind][1] if kind in _PLAIN else kind
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])},{type_name(kind['valueType'])}>"
    fields = (f"{field['name']}:{type_name(field['type'])}" for field in kind["fields"])
    return f"struct<{','.join(fields)}>"
