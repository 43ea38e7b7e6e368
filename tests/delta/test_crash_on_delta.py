"""The crash matrix on real Delta: a sample of its cells, one after another in one store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults.injection import Fault
from tests.faults.matrix import Case, cases, run
from tests.faults.scenarios import OPERATIONS
from tests.faults.world import World
from txnqueue.storage.store import DeltaStore

pytestmark = [pytest.mark.spark]
MESSAGES = 2
AT_MOST = 15
"""So many cells are run by default: they cost seconds each."""
WRITES = ("append", "stage", "create", "add_columns", "apply", "add", "remove", "forget")
"""The long run has each of these calls of each operation with each fault, some hours of it."""
BY_DEFAULT = """
    create queue, drop queue, send, purge, dead letter,
    commit, commit prepared, commit with a table change,
    take over a transaction, commit a branch, drain, recover
"""
"""One of each way to append; what they have in common with the others, memory shows."""
HERE = [one for one in OPERATIONS if not one.unique]
"""All that work on one and the same store."""
LANDS = (Fault.CRASH_AFTER, Fault.CONFLICT_THOUGH_LANDED, Fault.LANDS_LATE)


def default_names() -> set[str]:
    """The operations of the default run."""
    return {name.strip() for name in BY_DEFAULT.split(",")}


def sample() -> list[Case]:
    """Of operations of each kind the first append, heard of by nobody; of some other faults too."""
    chosen: list[Case] = []
    for operation in HERE:
        found = list(cases(operation, MESSAGES))
        if LONG:
            chosen += [c for c in found if c.call in WRITES and c.recovery == "other"]
            continue
        if operation.name not in default_names():
            continue
        appends = [c for c in found if c.call == "append" and c.recovery == "other"]
        first = min(c.at for c in appends)
        wanted = {Fault.REPLY_LOST, *(LANDS if operation.name == "commit" else ())}
        chosen += [c for c in appends if c.at == first and c.fault in wanted]
    return chosen


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(
        store=DeltaStore(spark, str(tmp_path_factory.mktemp("crashes"))), messages=MESSAGES
    )
    world.create("in", lanes=2)
    world.create("out")
    world.create_table()
    return world


def test_the_sample_is_large_enough() -> None:
    names = {case.operation.name for case in sample()}
    assert names == ({one.name for one in HERE} if LONG else default_names())
    assert len(sample()) >= 500 if LONG else len(sample()) <= AT_MOST


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", sample(), ids=str)
def test_no_fault_breaks_a_promise_on_delta(world: World, case: Case) -> None:
    run(world, case)
