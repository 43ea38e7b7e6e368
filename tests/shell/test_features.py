"""The table of features names a test in each cell, or says why there is none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "features.md"
COLUMNS = ["feature", "durable", "transient", "in a transaction", "in an XA branch"]


def rows() -> list[list[str]]:
    """Read the table's rows, the head first."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def names_of_tests() -> set[str]:
    """Find the names of all tests."""
    return {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_cell_names_a_test_that_there_is_or_says_why_not() -> None:
    head, *features = rows()
    assert head == COLUMNS
    known, wrong = names_of_tests(), []
    for name, *cells in features:
        assert len(cells) == len(COLUMNS) - 1, name
        for column, cell in zip(COLUMNS[1:], cells, strict=True):
            named = re.findall(r"`(test_\w+)`", cell)
            said = cell.startswith("— ") and len(cell) > 4
            if not set(named) <= known or not (named or said):
                wrong.append(f"{name}, {column}: {cell}")
    assert not wrong
    assert len({name for name, *_ in features}) == len(features) > 20
