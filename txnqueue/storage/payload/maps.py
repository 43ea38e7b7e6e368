"""Maps in Python rows: Arrow returns lists of pairs, which are ambiguous when empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa


class MapItems(list[tuple[Any, Any]]):
    """The pairs of a map, in a list that is recognisable as a map even when empty."""


def mark_maps(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    """Mark the maps in rows, according to the types of the columns."""
    kinds = {column.name: column.type for column in schema if _has_map(column.type)}
    if not kinds:
        return
    for row in rows:
        row.update({name: _marked(kind, row[name]) for name, kind in kinds.items()})


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in _fields(kind))
    return pa.types.is_map(kind) or (_is_list(kind) and _has_map(kind.value_type))


def _marked(kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        of_key, of_item = kind.key_type, kind.item_type
        return MapItems((_marked(of_key, key), _marked(of_item, item)) for key, item in value)
    if pa.types.is_struct(kind):
        return {field.name: _marked(field.type, value[field.name]) for field in _fields(kind)}
    if _is_list(kind):
        return [_marked(kind.value_type, one) for one in value]
    return value


def _fields(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _is_list(kind: pa.DataType) -> bool:
    of = pa.types
    return bool(of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind))
