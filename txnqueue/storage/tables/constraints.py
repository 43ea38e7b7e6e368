"""The requirements of a Delta table on rows, as SQL over its columns (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
)

from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.schemas import matched_columns
from txnqueue.storage.payload.types import sql_type
from txnqueue.storage.tables import (
    APPEND,
    DELETE,
    LINEAGE_COLUMN,
    UPDATE,
    Change,
    Filled,
    TableInfo,
)
from txnqueue.storage.tables.statements import closed

_NO_CODE = re.compile(
    r"""(`[^`]*`)|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
"""Texts and comments in SQL; the names in backticks that it finds too are kept."""
_DEFAULT = "CURRENT_DEFAULT"
"""The key of a column's default, as SQL, in its metadata."""
_LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
"""The key of a column's declared type in its metadata, if that type bounds texts."""
_GENERATED = "delta.generationExpression"
_IDENTITY = "delta.identity."
_IDENTITY_MAY_BE_GIVEN = "delta.identity.allowExplicitInsert"


def filled_by(schema: StructType, written: Mapping[str, Mapping[str, Any]] | None) -> Filled:
    """Find the columns that a table fills in.

    Args:
        schema: Its columns according to Spark.
        written: The metadata of its columns in its log, by name; None if that cannot be read.
    """
    defaults = {c.name: c.metadata[_DEFAULT] for c in schema.fields if _DEFAULT in c.metadata}
    if written is None:
        return Filled(defaults, others=frozenset(schema.names) - set(defaults))
    generated = {name: m[_GENERATED] for name, m in written.items() if _GENERATED in m}
    identities = {
        name: bool(metadata.get(_IDENTITY_MAY_BE_GIVEN))
        for name, metadata in written.items()
        if any(key.startswith(_IDENTITY) for key in metadata)
    }
    return Filled(defaults, generated, identities)


def lengths_of(schema: StructType) -> dict[str, DataType]:
    """Find the types of columns with texts of bounded length, which Spark shows as strings."""
    return {
        column.name: DataType.fromDDL(column.metadata[_LENGTHS])
        for column in schema.fields
        if _LENGTHS in column.metadata
    }


def check_columns(info: TableInfo, change: Change) -> None:
    """Check that the rows of an append have the columns of the table.

    Raises:
        SchemaMismatch: A column is unknown, of another type, missing, or filled only by the table.
    """
    if change.source is None or change.operation != APPEND:
        return
    given = StructType.fromJson(dict(change.source.schema))
    for name in given.names:
        if not info.filled.identities.get(name, True):
            raise SchemaMismatch(
                f"Column {name!r} of {info.name!r} is GENERATED ALWAYS AS IDENTITY: the table "
                "numbers its rows itself; omit the column.",
                column=name,
            )
    wanted = [
        column
        for column in info.schema.fields
        if not (change.lineage and folded(column.name) == LINEAGE_COLUMN)
        if column.name in given.names or column.name not in info.filled
    ]
    matched_columns(StructType(wanted), given)


def check_names(info: TableInfo, change: Change) -> None:
    """Check that an update or delete means no other column than it seems to.

    Its statement calls the table ``target``. In a table with a column of that name Spark takes
    ``target.id`` for the column ``id``, and not for the field ``id`` of that column.

    Raises:
        InvalidInput: A name in it may mean both.
    """
    if change.operation not in (UPDATE, DELETE):
        return  # in a merge ``target`` is the table, as documented
    columns = {folded(column.name): column for column in info.schema.fields}
    if "target" not in columns:
        return
    inside = _fields(columns["target"].dataType, info.schema.names)
    code = [_code(text) for text in (change.condition or "", *(change.update or {}).values())]
    for name in [one for one in inside if folded(one) in columns]:
        meant = rf"(?<![\w.`])`?target`?\.`?{re.escape(name)}\b"
        if any(re.search(meant, text, re.IGNORECASE) for text in code):
            raise InvalidInput(
                f"'target.{name}' may be the column {name!r} of {info.name!r} or be inside of its "
                f"column 'target': write 'target.target.{name}' for the latter, and {name!r} for "
                "the column.",
                column=name,
            )


def _fields(kind: DataType, columns: Collection[str]) -> Collection[str]:
    """Return what may follow the name of a column and a dot: of a map, any key."""
    if isinstance(kind, ArrayType):
        kind = kind.elementType
    if isinstance(kind, StructType):
        return kind.names
    return columns if isinstance(kind, MapType) else ()


def _code(sql: str) -> str:
    """Return SQL without its texts and comments, and without blanks around dots."""
    return re.sub(r"\s*\.\s*", ".", _NO_CODE.sub(lambda found: found[1] or " ", sql))


def completed(info: TableInfo, given: Collection[str]) -> list[list[str]]:
    """Return, step by step, the columns that a table is known to add to rows."""
    filled = info.filled
    return [
        [
            f"CAST(({closed(text)}) AS {sql_type(info.schema[name].dataType)}) "
            f"AS {identifier(name)}"
            for name, text in added.items()
            if name not in given
        ]
        for added in (filled.defaults, filled.generated)
    ]


def emptied(info: TableInfo, given: Collection[str]) -> list[str]:
    """Return columns as the table stores them: an empty text in a partition becomes null."""
    texts = {c.name for c in info.schema.fields if isinstance(c.dataType, StringType)}
    blank = texts.intersection(info.partitioned_by)
    return [
        f"nullif({identifier(name)}, '') AS {identifier(name)}"
        if name in blank
        else identifier(name)
        for name in given
    ]


def compared_key(name: str, kind: DataType, info: TableInfo) -> str:
    """Return a key of a merge's rows as a value that is equal if it matches the same rows.

    Texts are compared with a column of another type as values of that type, where '1' is '01';
    other values in the type that holds both: two neighbours of a long one are one double.
    """
    column = next(c for c in info.schema.fields if c.name == name)
    key, wanted = identifier(name), sql_type(column.dataType)
    if sql_type(kind) == wanted:
        return key
    if isinstance(kind, StringType):
        return f"try_cast({key} AS {wanted})"
    return f"coalesce({key}, CAST(NULL AS {wanted}))"


def rules(info: TableInfo, given: Collection[str]) -> dict[str, str]:
    """Return the requirements of a table on rows that are added as they are.

    Args:
        info: The table.
        given: The columns of the rows; ``completed`` adds others.

    Returns:
        SQL conditions on each row, by readable names of the rules.
    """
    filled = info.filled
    unknown = {
        name
        for name in info.schema.names
        if name not in given and (name in filled.identities or name in filled.others)
    }
    found: dict[str, str] = {}
    for column in info.schema.fields:
        if column.name in unknown:
            continue
        mine = identifier(column.name)
        for path in _required(column.dataType, mine, nullable=column.nullable):
            found[f"NOT NULL of column {path}"] = f"{path} IS NOT NULL"
        bounded = info.lengths.get(column.name)
        fits = None if bounded is None else _fits(bounded, mine, 0)
        if bounded is not None and fits is not None:
            found[f"the length of {column.name!r}, {bounded.simpleString()},"] = _held(
                fits, if_null=True
            )
        if column.name in filled.generated and column.name in given:
            text = filled.generated[column.name]
            found[f"the generated column {column.name!r}, {text},"] = f"{mine} <=> ({closed(text)})"
    for name, text in info.constraints.items():
        # Delta considers a null constraint broken; constraints on unknown columns are left to it.
        about_unknown = any(folded(one) in folded(text) for one in unknown)
        found[f"the constraint {name!r}, {text},"] = _held(text, if_null=about_unknown)
    return found


def broken(info: TableInfo, rule: str, count: int) -> InvalidInput:
    """Build the error for rows that break a rule."""
    return InvalidInput(
        f"{count} rows break {rule} of table {info.name!r}: nothing was decided; correct the rows.",
        table=info.name,
        constraint=rule,
        in_rows=True,
    )


def _held(text: str, *, if_null: bool) -> str:
    return f"coalesce(({closed(text)}), {str(if_null).lower()})"


def _required(kind: DataType, path: str, *, nullable: bool) -> Iterator[str]:
    """List the places where a value is required; a null struct lacks those inside it."""
    if not nullable:
        yield path
    if isinstance(kind, StructType):
        for one in kind.fields:
            yield from _required(
                one.dataType, f"{path}.{identifier(one.name)}", nullable=one.nullable
            )


def _fits(kind: DataType, value: str, depth: int) -> str | None:
    """Return the condition that texts fit the lengths of a type; None if it has no bounds."""
    if isinstance(kind, (CharType, VarcharType)):
        return f"length({value}) <= {kind.length}"
    parts: list[tuple[DataType, str, bool]] = []
    if isinstance(kind, StructType):
        parts = [(f.dataType, f"{value}.{identifier(f.name)}", False) for f in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [(kind.elementType, value, True)]
    elif isinstance(kind, MapType):
        parts = [
            (kind.keyType, f"map_keys({value})", True),
            (kind.valueType, f"map_values({value})", True),
        ]
    found = []
    for inner, where, many in parts:
        one = f"_x{depth}" if many else where
        text = _fits(inner, one, depth + 1)
        if text is not None:
            text = _held(text, if_null=True)
            found.append(f"forall({where}, {one} -> {text})" if many else text)
    return " AND ".join(_held(text, if_null=True) for text in found) or None
