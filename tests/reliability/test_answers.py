"""The table at the top of the page says yes only where all that was asked for passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import answers
from tests.reliability.answers import HELD_FIRST, Done
from tests.reliability.kinds import KINDS
from tests.reliability.results import Failure, Run


def told(kind: str, done: Done, folder: Path) -> list[str]:
    """Return what the table says of a kind: asked, reached, failing, and the answer."""
    rows = [row for row in answers.lines({kind: done}, folder) if not row.startswith("|---")]
    (row,) = rows[1:]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def ran(kind: str, n: int, of: int | None = None) -> list[Run]:
    return [Run(kind, "2026-11-24", "abc", 0, n, of, n)]


@pytest.mark.parametrize(
    ("n", "failing", "answer"), [(300, 0, "yes"), (299, 0, "in part"), (300, 1, "in part")]
)
def test_what_is_drawn_is_answered_by_enough_that_passed(
    tmp_path: Path, n: int, failing: int, answer: str
) -> None:
    done = Done(ran("kills-hdfs", n), {}, failing)
    assert told("kills-hdfs", done, tmp_path) == ["300 kills", str(n), str(failing), answer]


def test_a_list_is_answered_by_all_of_it(tmp_path: Path) -> None:
    runs = ran("damage", 40, of=40)
    assert told("damage", Done(runs, {"": 40}, 0), tmp_path)[-1] == "yes"
    assert told("damage", Done(runs, {"": 39}, 0), tmp_path)[1:] == ["39", "0", "in part"]
    changed = told("damage", Done(runs, {"": 40}, 0, changed=True), tmp_path)
    assert changed[-1] == "yes, of a list that has changed since"


def test_of_the_pairs_on_delta_a_part_is_asked_for(tmp_path: Path) -> None:
    passed = {HELD_FIRST: 144, "something else": 3}
    asked, reached, _, answer = told("pairs-delta", Done(ran("x", 9, 9), passed, 0), tmp_path)
    assert (asked, reached, answer) == ("144 meetings", "144", "yes")
    passed[HELD_FIRST] -= 1
    assert told("pairs-delta", Done(ran("x", 9, 9), passed, 0), tmp_path)[-1] == "in part"


def test_mutants_that_are_equivalent_are_not_asked_for(tmp_path: Path) -> None:
    run = Run("mutants", "2026-11-24", "abc", 0, 100, 100, 100)
    run.counts = {"killed": 85, "equivalent": 10}
    run.failures = [Failure(n, "survived: unknown") for n in range(5)]
    assert told("mutants", Done([run], {}, 0), tmp_path)[1:] == [
        "94.4% of those that are not equivalent", "0", "yes",
    ]  # fmt: skip
    run.counts = {"killed": 80, "equivalent": 10}
    assert told("mutants", Done([run], {}, 0), tmp_path)[-1] == "no"


def test_what_lives_long_is_not_flat_before_that_is_known(tmp_path: Path) -> None:
    assert told("soak", Done(ran("soak", 10_000), {}, 0), tmp_path)[-1] == "not known yet"


def test_each_question_is_about_kinds_that_there_are() -> None:
    asked = [name for one in answers.QUESTIONS for name in one.kinds]
    assert set(asked) <= set(KINDS) and len(asked) == len(set(asked))
    for one in answers.QUESTIONS:
        drawn = [KINDS[name].total is None for name in one.kinds]
        assert all(drawn) == (one.goal is not None), f"a goal, or lists: {one.text}"
