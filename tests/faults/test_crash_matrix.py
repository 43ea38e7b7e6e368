"""The crash matrix: every operation × every store call in it × every fault × every recovery."""

from __future__ import annotations

import pytest

from tests.faults.matrix import cases, fresh, run
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation


@pytest.mark.parametrize("operation", [*OPERATIONS, *IN_MEMORY], ids=lambda o: o.name)
def test_no_fault_breaks_a_promise(operation: Operation) -> None:
    count = 0
    for case in cases(operation):
        try:
            run(fresh(unique=operation.unique), case)
        except BaseException as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        count += 1
    assert count >= 3
