"""How values are written into tables that notebooks show."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from txnqueue.core import markup
from txnqueue.core.markup import Facts


@dataclass(frozen=True)
class Result(Facts):
    """A result with something of its own between its fields."""

    first: int
    _kept: str = field(default="private", repr=False)
    last: int = 2


def test_what_is_private_hides_nothing_that_comes_after_it() -> None:
    shown = Result(1)._repr_html_()
    assert "<td>first</td><td>1</td>" in shown and "<td>last</td><td>2</td>" in shown
    assert "_kept" not in shown and "private" not in shown


@pytest.mark.parametrize(("rows", "left"), [(19, None), (20, None), (21, "1"), (1_220, "1,200")])
def test_a_table_says_how_many_rows_it_leaves_out(rows: int, left: str | None) -> None:
    shown = markup.records("rows", [{"n": n} for n in range(rows)], ["n"])
    assert shown.count("<tr><td>") == min(rows, 20)
    assert (f"<p>and {left} more</p>" in shown) if left else "more" not in shown


@pytest.mark.parametrize(("length", "written"), [(300, "x" * 300), (301, "x" * 300 + "…")])
def test_a_long_value_is_cut(length: int, written: str) -> None:
    assert markup.told("x" * length) == written


def test_only_what_steers_who_reads_it_is_written_out() -> None:
    assert markup.printable("Größe 5 µ\n→ ok") == "Größe 5 µ\n→ ok"
    assert markup.printable("a\x1b[2J\u202eb\t\r") == "a\\x1b[2J\\u202eb\\t\\r"
