"""No two faults, one after the other, break a promise: a sample of all ordered pairs."""

from __future__ import annotations

from tests.conftest import LONG
from tests.faults.crash_pairs import AS_THEY_LEFT_IT, HERE, OF_EACH, pairs, run
from tests.faults.matrix import fresh

EACH = 1 if LONG else 100


def test_each_operation_comes_after_each_other_one() -> None:
    found = {(pair.first.operation.name, pair.second.operation.name) for pair in pairs()}
    assert len(found) == len(HERE) * (len(HERE) - len(AS_THEY_LEFT_IT)) > 4_000
    assert len(pairs()) == OF_EACH * len(found)


def test_no_two_faults_break_a_promise() -> None:
    for pair in pairs()[::EACH]:
        try:
            run(fresh(), pair)
        except BaseException as error:
            raise AssertionError(f"{pair}: {type(error).__name__}: {error}") from error
