"""Schemas that nobody would write, and rows that fit them: made by hypothesis."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import hypothesis
from hypothesis import strategies as st
from pyspark.sql import types as T

from txnqueue.errors import SchemaMismatch
from txnqueue.storage.payload.types import check_column

UTC = datetime.timezone.utc
_WIDE = Context(prec=80)
ODD_NAMES = (
    "a-b",
    "x.y",
    "a`b",
    "``",
    "'",
    '"',
    "--",
    "/*",
    "a:bigint>--",
    "select",
    "null",
    "1",
    "*",
    "weiß",
    "İ",
    "\u00a0",
    "\\",
    "\r",
    "a/b",
    "%s",
    "$x",
    "😀",
    "element",
    "key",
    "value",
    "_x",
)
REFUSED_NAMES = (
    "a b",
    "a:bigint>)--",
    "a,b",
    "a;b",
    "{",
    "}",
    "${x}",
    "(",
    ")",
    "a\nb",
    "a\tb",
    "a=b",
    "",
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
NAMES = st.one_of(st.sampled_from(ODD_NAMES), st.sampled_from("abcdef"), _TEXT)
ANY_NAMES = st.one_of(NAMES, st.sampled_from(REFUSED_NAMES))


@st.composite
def decimals(draw: st.DrawFn) -> T.DecimalType:
    precision = draw(st.integers(1, 38))
    return T.DecimalType(precision, draw(st.integers(0, precision)))


KEYS = st.one_of(
    st.sampled_from([T.StringType(), T.LongType(), T.DateType(), T.BinaryType(), T.ByteType()]),
    decimals(),
)
PLAIN = st.one_of(
    KEYS,
    st.sampled_from(
        [
            T.BooleanType(),
            T.ShortType(),
            T.IntegerType(),
            T.FloatType(),
            T.DoubleType(),
            T.TimestampType(),
            T.TimestampNTZType(),
        ]
    ),
)


def structs(names: st.SearchStrategy[str], kinds: Any) -> Any:
    fields = st.builds(T.StructField, names, kinds, st.booleans())
    return st.lists(fields, min_size=1, max_size=3).map(T.StructType)


def types(names: st.SearchStrategy[str] = NAMES) -> st.SearchStrategy[T.DataType]:
    """Make types of columns; the names of nested fields may fold to the same."""
    return st.recursive(
        PLAIN,
        lambda inner: st.one_of(
            st.builds(T.ArrayType, inner, st.booleans()),
            st.builds(T.MapType, KEYS, inner, st.booleans()),
            structs(names, inner),
        ),
        max_leaves=6,
    )


def values(kind: T.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Make values of a type, as Arrow writes them for Python."""
    found = _values(kind)
    return st.one_of(st.none(), found) if nullable else found


def _values(kind: T.DataType) -> st.SearchStrategy[Any]:
    if isinstance(kind, T.ArrayType):
        return st.lists(values(kind.elementType, kind.containsNull), max_size=3)
    if isinstance(kind, T.MapType):
        pairs = st.tuples(
            values(kind.keyType, False), values(kind.valueType, kind.valueContainsNull)
        )
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if isinstance(kind, T.StructType):
        return st.fixed_dictionaries({f.name: values(f.dataType, f.nullable) for f in kind.fields})
    if isinstance(kind, T.DecimalType):
        most = 10**kind.precision - 1
        whole = st.integers(-most, most)
        return whole.map(lambda n: Decimal(n).scaleb(-kind.scale, _WIDE))
    plain: dict[type[T.DataType], Any] = {
        T.BinaryType: st.binary(max_size=5),
        T.BooleanType: st.booleans(),
        T.ByteType: st.integers(-(2**7), 2**7 - 1),
        T.ShortType: st.integers(-(2**15), 2**15 - 1),
        T.IntegerType: st.integers(-(2**31), 2**31 - 1),
        T.LongType: st.integers(-(2**63), 2**63 - 1),
        T.FloatType: st.floats(width=32),
        T.DoubleType: st.floats(),
        T.DateType: st.dates(),
        T.TimestampType: st.datetimes(timezones=st.just(UTC)),
        T.TimestampNTZType: st.datetimes(),
        T.StringType: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    }
    drawn: st.SearchStrategy[Any] = plain[type(kind)]
    return drawn


@st.composite
def columns(draw: st.DrawFn, rows: int = 3) -> tuple[T.StructField, list[Any]]:
    """Make a column that a queue can have, and its values."""
    fields = st.builds(T.StructField, NAMES, types(), st.booleans())
    field = draw(fields.filter(_can_stand))
    if isinstance(field.dataType, (T.FloatType, T.DoubleType)):
        field.nullable = True  # pandas takes NaN for null
    values_of = values(field.dataType, field.nullable)
    return field, [draw(values_of) for _ in range(rows)]


def table(drawn: Sequence[tuple[T.StructField, list[Any]]]) -> tuple[T.StructType, list[Any]]:
    """Put columns together, with a number for each row; their names begin with numbers."""
    fields = [T.StructField("n", T.LongType(), False)]
    rows: list[dict[str, Any]] = [{"n": n} for n in range(len(drawn[0][1]))]
    for number, (field, made) in enumerate(drawn):
        fields.append(T.StructField(f"{number}{field.name}", field.dataType, field.nullable))
        for row, value in zip(rows, made, strict=True):
            row[fields[-1].name] = value
    return T.StructType(fields), rows


def wide_table(count: int, seed: int) -> tuple[T.StructType, list[Any]]:
    """Make many columns at once: a statement costs as much for one as for a hundred."""
    drawn: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(columns())
    def draw(column: Any) -> None:
        drawn.append(column)

    draw()
    return table(drawn[:count])


def can_be(kind: T.DataType) -> bool:
    """Say whether a column can be of a type."""
    return _can_stand(T.StructField("c", kind))


def _can_stand(field: T.StructField) -> bool:
    try:
        check_column(field)
    except SchemaMismatch:
        return False
    return True


def equal(one: Any, other: Any) -> bool:
    """Say whether two values are the same, to the type and the sign, with NaN like NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)
