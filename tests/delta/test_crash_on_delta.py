"""The crash matrix on real Delta: a sample of its cells, one after another in one store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.protocol.faults import Fault
from tests.protocol.matrix import Case, cases, run
from tests.protocol.scenarios import OPERATIONS
from tests.protocol.world import World
from txnqueue.store import DeltaStore

pytestmark = [pytest.mark.spark]
AT_LEAST = 80


def sample() -> list[Case]:
    """Every operation, each of its store calls and each fault, with one recovery each."""
    chosen: list[Case] = []
    for operation in OPERATIONS:
        found = list(cases(operation))
        if LONG:
            chosen += found
            continue
        appends = [c for c in found if c.call == "append" and c.recovery == "same"]
        first = min(c.at for c in appends)
        chosen += [c for c in appends if c.at == first and c.fault is not Fault.INTERRUPTED]
    return chosen if LONG else _thinned(chosen)


def _thinned(cells: list[Case]) -> list[Case]:
    """Leave out what another operation or fault shows as well; keep 80 and more."""
    alike = {"release", "receive in a transaction", "rollback prepared", "prepare", "recover"}
    dull = {Fault.CRASH_BEFORE, Fault.FAIL_BEFORE}
    return [
        c
        for c in cells
        if c.fault is not Fault.CRASH_BEFORE and not (c.operation.name in alike and c.fault in dull)
    ]


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(store=DeltaStore(spark, str(tmp_path_factory.mktemp("crashes"))), messages=2)
    world.create("in", lanes=2)
    world.create("out")
    world.create_table()
    return world


def test_the_sample_is_large_enough() -> None:
    assert len(sample()) >= AT_LEAST


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", sample(), ids=str)
def test_no_fault_breaks_a_promise_on_delta(world: World, case: Case) -> None:
    run(world, case)
