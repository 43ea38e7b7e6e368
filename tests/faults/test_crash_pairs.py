"""No two faults, one after the other, break a promise: a sample of all ordered pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import LONG
from tests.faults.crash_pairs import AS_THEY_LEFT_IT, HERE, OF_EACH, pairs, run
from tests.faults.matrix import fresh

EACH = 1 if LONG else 100


def test_each_operation_comes_after_each_other_one() -> None:
    found = {(pair.first.operation.name, pair.second.operation.name) for pair in pairs()}
    assert len(found) == len(HERE) * (len(HERE) - len(AS_THEY_LEFT_IT)) > 4_000
    assert len(pairs()) == OF_EACH * len(found)


def test_no_two_faults_break_a_promise() -> None:
    drawn, both = pairs()[::EACH], 0
    for pair in drawn:
        try:
            both += run(fresh(), pair)
        except BaseException as error:
            raise AssertionError(f"{pair}: {type(error).__name__}: {error}") from error
    assert both > 0.9 * len(drawn), "most second faults did not happen"


def test_a_pair_whose_faults_do_not_happen_is_told_from_others() -> None:
    pair = next(one for one in pairs() if run(fresh(), one))
    first, second = (replace(one, call="none") for one in (pair.first, pair.second))
    assert not run(fresh(), replace(pair, second=second))
    with pytest.raises(AssertionError, match="the first one made"):
        run(fresh(), replace(pair, first=first))
