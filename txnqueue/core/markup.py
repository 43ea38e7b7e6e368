"""How texts and objects are shown to people: in terminals, pages and notebooks (pure)."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, TypeVar

ROWS_MAX = 20
"""The rows of a table that a notebook shows."""
TEXT_MAX = 300
"""The characters of a value that a notebook shows."""
Shown = TypeVar("Shown")


def printable(text: str) -> str:
    """Write out control characters, so that no message can control a terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def told(value: object) -> str:
    """Write a value for a cell of a table, whatever is in it."""
    text = printable(_written(value))
    return escape(text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…")


def _written(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    return str(value)


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], more: int = 0
) -> str:
    """Write a table as HTML.

    Args:
        caption: What it is.
        columns: What the columns are called.
        rows: The values, by row.
        more: How many rows are left out.
    """
    head = "".join(f'<th scope="col">{told(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{told(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    left = f"<p>and {more:,} more</p>" if more > 0 else ""
    return (
        f"<table><caption>{told(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{left}"
    )


def records(caption: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Write the first of some rows as a table."""
    shown = ([row.get(name) for name in columns] for row in rows[:ROWS_MAX])
    return table(caption, columns, shown, len(rows) - ROWS_MAX)


def never_raising(show: Callable[[Shown], str]) -> Callable[[Shown], str]:
    """Have a method that shows an object say what it could not read, instead of raising."""

    @functools.wraps(show)
    def shown(self: Shown) -> str:
        try:
            return show(self)
        except Exception as error:
            return f"<p>{told(repr(self))}</p><p>{told(f'{type(error).__name__}: {error}')}</p>"

    return shown


class Facts:
    """What a result of a call has in common: a notebook shows its fields as a table."""

    __slots__ = ()

    @never_raising
    def _repr_html_(self) -> str:
        """Show the fields; nothing is read."""
        return table(type(self).__name__, ("field", "value"), list(_facts(self)))


def _facts(result: Facts, before: str = "") -> Iterator[tuple[str, object]]:
    """Pass on the fields of a result, and those of results in it, by their names."""
    for field in dataclasses.fields(result):  # type: ignore[arg-type]  # its subclasses are dataclasses
        name, value = before + field.name, getattr(result, field.name)
        if field.name.startswith("_"):
            continue
        if isinstance(value, Facts):
            yield from _facts(value, f"{name}.")
        else:
            yield name, value
