"""Mutants are found, missed and named as they are: or their share says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability import mutation, nursery, results
from tests.reliability.mutants import TARGETS, Mutant, mutants
from tests.reliability.mutation import Judge

RANGES = "txnqueue/core/ranges.py"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = Judge(("tests/core/test_ranges.py",), tmp_path_factory.mktemp("judge"))
    yield judge
    judge.close()


def drawn(path: str, after: str) -> Mutant:
    return next(one for one in mutants() if one.path == path and one.change()[1].startswith(after))


def test_a_mistake_is_found_by_a_test_that_passes_without_it(judge: Judge) -> None:
    outcome, test = judge.judge(
        drawn(RANGES, "return at - 1 if at > low and ranges[at - 1][1] > offset")
    )
    assert outcome == "killed"
    assert str(test).startswith("tests/core/test_ranges.py::")


def test_what_no_test_reaches_is_told_from_what_is_found(judge: Judge) -> None:
    path = "txnqueue/client/append.py"
    assert judge.judge(next(m for m in mutants() if m.path == path)) == ("not reached", None)


def test_a_mistake_without_end_is_ended(judge: Judge) -> None:
    endless = [m for m in mutants() if m.path == RANGES and m.change() == ("at += 1", "pass")]
    in_difference = max(endless, key=lambda one: one.line)
    assert judge.judge(in_difference)[0] == "killed by time"


def test_every_mutant_has_a_place_of_its_own_and_only_functions_are_mutated() -> None:
    found = mutants()
    assert len({one.place for one in found}) == len(found) > 2_000
    assert {one.path for one in found} <= set(TARGETS)
    for one in found[:40]:
        first = max(n for n in nursery.statements(_text(one.path)) if n <= one.line)
        assert first > 0
        assert one.change()[0] != one.change()[1]


def _text(path: str) -> str:
    return (nursery.ROOT / path).read_text(encoding="utf-8")


def test_what_was_looked_at_is_found_by_what_a_failure_says() -> None:
    for one in mutation._verdicts():
        said = f"AssertionError: survived: {one.key}"[:300]
        assert mutation.looked_at(said) is not None
        assert one.verdict in {"equivalent", "killed since", "gap", "dead code"}
        assert one.why
    assert mutation.looked_at("survived: nowhere.py: a → b") is None


def test_what_is_equivalent_still_is_there() -> None:
    """A line that has changed is another question, until somebody has looked at it ``now``."""
    for one in mutation._verdicts():
        if one.verdict == "equivalent":
            lines = " ".join(_text(one.path).split())
            assert " ".join((one.now or one.before).split()) in lines, one.key


def test_a_share_has_an_interval() -> None:
    low, high = results.interval(90, 100)
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)
    assert results.interval(0, 0) == (0.0, 1.0)
    assert results.interval(10, 10)[1] == 1.0
