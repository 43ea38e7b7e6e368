"""The crash matrix on real Delta: a sample of its cells, one after another in one store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults.injection import DESTROYS, WRITES, Fault
from tests.faults.matrix import Case, cases, furnished, run
from tests.faults.scenarios import EVERYTHING, Operation
from tests.faults.world import World
from txnqueue.storage.store import DeltaStore

pytestmark = [pytest.mark.spark]
MESSAGES = 2
AT_MOST = 15
"""So many cells are run by default: they cost seconds each."""
CALLS = (*WRITES, *DESTROYS)
"""The long run has each of these calls of each operation with each fault, some hours of it; the
long kind has them with each recovery."""
BY_DEFAULT = """
    create queue, drop queue, send, purge, dead letter,
    commit, commit prepared, commit with a table change,
    take over a transaction, commit a branch, drain, recover
"""
"""One of each way to append; what they have in common with the others, memory shows."""
NOT_HERE: dict[str, str] = {}
"""The operations that are run in memory alone, and why."""
HERE = [one for one in EVERYTHING if one.name not in NOT_HERE]
Worlds = dict[tuple[bool, int | None], World]
"""The worlds that cells are run in, one after another: by what their queues are like."""
LANDS = (Fault.CRASH_AFTER, Fault.CONFLICT_THOUGH_LANDED, Fault.LANDS_LATE)


def default_names() -> set[str]:
    """The operations of the default run."""
    return {name.strip() for name in BY_DEFAULT.split(",")}


def sample() -> list[Case]:
    """Of operations of each kind the first append, heard of by nobody; of some other faults too."""
    chosen: list[Case] = []
    for operation in HERE:
        if operation.name not in default_names():
            continue
        found = cases(operation, MESSAGES)
        appends = [c for c in found if c.call == "append" and c.recovery == "other"]
        first = min(c.at for c in appends)
        wanted = {Fault.REPLY_LOST, *(LANDS if operation.name == "commit" else ())}
        chosen += [c for c in appends if c.at == first and c.fault in wanted]
    return chosen


def everything() -> list[Case]:
    """Each writing call of each operation with each fault and each recovery."""
    found = (case for operation in HERE for case in cases(operation, MESSAGES))
    return [case for case in found if case.call in CALLS]


def long_sample() -> list[Case]:
    """Each writing call of each operation with each fault, recovered by another client."""
    return [case for case in everything() if case.recovery == "other"]


def kind_of_world(operation: Operation) -> tuple[bool, int | None]:
    """Say what the queues of an operation's world are like."""
    return operation.unique, operation.slice_width


def new_world(store: DeltaStore, operation: Operation) -> World:
    """Make a world that an operation, and others of its kind, can be run in."""
    return furnished(World(store=store, messages=MESSAGES), operation)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return {}


def test_the_samples_are_large_enough() -> None:
    assert {case.operation.name for case in sample()} == default_names()
    assert len(sample()) <= AT_MOST
    assert {case.operation.name for case in long_sample()} == {one.name for one in HERE}
    assert len(long_sample()) >= 500
    assert len(everything()) == 3 * len(long_sample())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", long_sample() if LONG else sample(), ids=str)
def test_no_fault_breaks_a_promise_on_delta(
    worlds: Worlds, spark: Any, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    kind = kind_of_world(case.operation)
    if kind not in worlds:
        store = DeltaStore(spark, str(tmp_path_factory.mktemp("crashes")))
        worlds[kind] = new_world(store, case.operation)
    run(worlds[kind], case)
