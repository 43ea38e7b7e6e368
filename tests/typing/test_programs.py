"""Users' programs: right ones pass every type checker and run, wrong ones are refused."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.typing import checkers
from tests.typing.checkers import PROGRAMS
from txnqueue.testing import memory_manager

WRONG = "# wrong: "


def expected(checker: int) -> checkers.Found:
    """Read what one of the checkers is to say, from the ends of the programs' lines."""
    return {
        (program.name, number): set(line.partition(WRONG)[2].split(", ")[checker].split())
        for program in PROGRAMS.glob("*.py")
        for number, line in enumerate(program.read_text().splitlines(), 1)
        if WRONG in line
    }


@pytest.mark.parametrize(("number", "checker"), [(0, checkers.mypy), (1, checkers.pyright)])
def test_right_programs_pass_and_each_wrong_line_is_refused(number: Any, checker: Any) -> None:
    assert checker() == expected(number)


@pytest.mark.parametrize(
    "user",
    [one.stem for one in sorted(PROGRAMS.glob("*.py")) if not one.name.startswith("wrong_")],
)
def test_what_passes_runs(user: Any) -> None:
    importlib.import_module(f"tests.typing.programs.{user}").main(memory_manager())
