"""Tables that can be read in a terminal of any width."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txnqueue.core.markup import printable

FOLDED = 12
"""To so many characters a column may be folded; narrower ones cannot be read."""


def fitted(columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> RenderableType:
    """Make a table that is as wide as a terminal at most, and whose columns can be read.

    Long values are folded. If that is not enough, the table has no lines, then not the columns that
    are empty or 0 in all rows, which are named below it; and in the end each row is a block.

    Args:
        columns: The names of the columns, the first of which stays.
        rows: Their cells.
        width: The terminal's.
    """
    names = [Text(printable(name)) for name in columns]
    cells = [[row[i] for row in rows] for i in range(len(names))]
    empty = [i for i, found in enumerate(cells) if i and not any(map(_says_something, found))]
    heads = list(map(_wide, names))
    # What is wider than the terminal counts as one that is as wide: a cell may hold megabytes.
    widest = [
        min(width, max(head, *map(_wide, found))) for head, found in zip(heads, cells, strict=True)
    ]
    for left_out, lines in itertools.product(([], empty), (True, False)):
        kept = [i for i in range(len(columns)) if i not in left_out]
        # Beside each column a line and two blanks, and at the end another line; or two blanks.
        room = width - (3 * len(kept) + 1 if lines else 2 * len(kept) - 2)
        widths = _widths([heads[i] for i in kept], [widest[i] for i in kept], room)
        if widths is None:
            continue
        table = Table(header_style="bold", highlight=False) if lines else _without_lines()
        for i, wide in zip(kept, widths, strict=True):
            table.add_column(names[i], overflow="fold", width=wide)
        for row in rows:
            table.add_row(*(row[i] for i in kept))
        below = Text(", ").join(names[i] for i in left_out)
        return Group(table, Text("Empty or 0: ").append(below)) if left_out else table
    # However long names are, half of the width is for the values.
    named = min(max(heads), width // 2)
    return Group(*(_block(names, row, named) for row in rows))


def _says_something(cell: Text) -> bool:
    return cell.plain not in ("", "0", "False")


def _widths(headers: Sequence[int], widest: Sequence[int], room: int) -> list[int] | None:
    """Give columns their widths, by those of their headers and cells; None if they do not fit."""
    wanted = list(widest)
    least = [max(head, min(FOLDED, wide)) for head, wide in zip(headers, widest, strict=True)]
    if sum(least) > room:
        return None
    while sum(wanted) > room:
        _, most = max((w, i) for i, w in enumerate(wanted) if w > least[i])
        wanted[most] -= 1
    return wanted


def _wide(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _without_lines(*, header: bool = True) -> Table:
    return Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header, header_style="bold"
    )


def _block(names: Sequence[Text], row: Sequence[Text], width: int) -> Table:
    """Write one row line by line; the names have a width."""
    block = _without_lines(header=False)
    block.add_column(style="bold", overflow="fold", width=width)
    block.add_column(overflow="fold")
    for name, cell in zip(names, row, strict=True):
        value = cell.copy()
        value.justify = "left"
        block.add_row(name, value)
    block.add_row("", "")
    return block
