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


MESSAGES = 2
LANDS = (Fault.CRASH_AFTER, Fault.REPLY_LOST, Fault.CONFLICT_THOUGH_LANDED, Fault.LANDS_LATE)
"""The faults of which only Delta can say what they leave; the others leave nothing."""


def sample() -> list[Case]:
    """Of every operation its first append with every fault that lands; in the long run all."""
    chosen: list[Case] = []
    for operation in OPERATIONS:
        found = list(cases(operation, MESSAGES))
        if LONG:
            chosen += found
            continue
        appends = [c for c in found if c.call == "append" and c.recovery == "other"]
        first = min(c.at for c in appends)
        wanted = LANDS if operation.name in ALIKE else (*LANDS, Fault.FAIL_BEFORE)
        chosen += [c for c in appends if c.at == first and c.fault in wanted]
    return chosen if LONG else [c for c in chosen if c.operation.name not in SHOWN_BY_OTHERS]


ALIKE = {operation.name for operation in OPERATIONS} - {"send", "commit"}
"""That nothing happens when an append fails is shown by two of them."""
SHOWN_BY_OTHERS = {"release", "receive in a transaction", "rollback prepared", "recover"}
"""These append as another operation does: accept, receive, commit prepared, take over."""


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
    assert len(sample()) >= AT_LEAST


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", sample(), ids=str)
def test_no_fault_breaks_a_promise_on_delta(world: World, case: Case) -> None:
    run(world, case)
