"""The crash matrix: every operation × every store call in it × every fault × every recovery."""

from __future__ import annotations

from itertools import islice
from unittest import mock

import pytest

from tests.conftest import LONG
from tests.faults.matrix import cases, fresh, run
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation
from txnqueue.admin import creation

EVERY = 1 if LONG else 2
"""Of the three recoveries after each fault, the default run has the middle one, or both others."""
REMOVING = [one for one in OPERATIONS if one.name.startswith(("maintain", "forget", "give"))]


@pytest.mark.parametrize("operation", [*OPERATIONS, *IN_MEMORY], ids=lambda o: o.name)
def test_no_fault_breaks_a_promise(operation: Operation) -> None:
    every_cell(operation)


@pytest.mark.parametrize("operation", REMOVING, ids=lambda o: o.name)
def test_no_fault_breaks_a_promise_where_all_finished_payload_is_removed(
    operation: Operation,
) -> None:
    with mock.patch.object(creation, "SLICE_WIDTH", 1):  # else a world is younger than a slice
        every_cell(operation)


def every_cell(operation: Operation) -> None:
    count = 0
    for case in islice(cases(operation), None, None, EVERY):
        try:
            run(fresh(unique=operation.unique), case)
        except BaseException as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        count += 1
    assert count >= 3
