"""No two faults in one operation break a promise: those of a few operations."""

from __future__ import annotations

import pytest

from tests.faults.crash_twice import run, twice
from tests.faults.injection import Fault
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation

NAMES = ("send", "commit", "commit with a table change", "prepare", "accept", "recover")


def operation(name: str) -> Operation:
    (found,) = (one for one in (*OPERATIONS, *IN_MEMORY) if one.name == name)
    return found


def test_the_second_fault_comes_at_what_the_first_one_leads_to() -> None:
    found = list(twice(operation("commit")))
    lost = [one for one in found if one.first.fault is Fault.REPLY_LOST]
    assert {one.call for one in lost} == {"read"}, "it is asked whether it has landed"
    late = [one for one in found if one.first.fault is Fault.LANDS_LATE]
    assert {"read", "append"} <= {one.call for one in late}, "and tried again"


@pytest.mark.parametrize("name", NAMES)
def test_no_two_faults_in_one_operation_break_a_promise(name: str) -> None:
    for cell in twice(operation(name)):
        try:
            run(cell)
        except BaseException as error:
            raise AssertionError(f"{cell}: {type(error).__name__}: {error}") from error
