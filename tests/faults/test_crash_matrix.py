"""The crash matrix: every operation × every store call in it × every fault × every recovery."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults.injection import (
    DESTROYS,
    READS,
    WRITES,
    Crash,
    Fault,
    FaultyStore,
    InjectorOfCall,
    faults_of,
)
from tests.faults.matrix import calls_of, cases, fresh_for, run
from tests.faults.scenarios import EVERYTHING, REMOVING, Operation
from tests.faults.world import Unmade
from txnqueue import QueueManager
from txnqueue.errors import TransactionUnknown
from txnqueue.testing import Clock, runtime

EVERY = 1 if LONG else 7
"""Of seven cells the default run has one: faults and recoveries take turns."""
EVERY_OF_MANY = 1 if LONG else 13
"""The same of operations with some hundred calls."""


@pytest.mark.parametrize("operation", EVERYTHING, ids=lambda one: one.name)
def test_no_fault_breaks_a_promise(operation: Operation) -> None:
    count = 0
    every = EVERY_OF_MANY if operation in REMOVING else EVERY
    for case in islice(cases(operation), None, None, every):
        try:
            run(fresh_for(operation), case)
        except BaseException as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        count += 1
    assert count >= 3


def test_each_call_that_writes_is_made_by_an_operation() -> None:
    made = {call for operation in EVERYTHING for call in calls_of(operation)}
    assert made <= {*WRITES, *DESTROYS, *READS}, "nobody has said whether it writes"
    missed = {*WRITES, *DESTROYS} - made
    assert missed == {"create_store"}, "that one comes with a new store, below"


@pytest.mark.parametrize("operation", REMOVING, ids=lambda o: o.name)
def test_payload_is_removed_where_all_has_finished(operation: Operation) -> None:
    assert {"drop", "rewrite"} <= set(calls_of(operation))


@pytest.mark.parametrize("fault", faults_of("create_store"), ids=lambda fault: fault.value)
@pytest.mark.parametrize("call", ["create_store", "exists", "create", "append", "read"])
def test_no_fault_keeps_a_store_from_being_created(call: str, fault: Fault) -> None:
    if fault not in faults_of(call):
        pytest.skip("it makes no difference there")
    store, clock = Unmade(), Clock()

    def client(name: str, through: Any) -> QueueManager:
        return QueueManager(None, "memory", store=through, runtime=runtime(clock, name))

    injector = InjectorOfCall(call, 0, fault)
    first = client("A", FaultyStore(store, injector))
    injector.arm()
    with contextlib.suppress(Crash, ConnectionError, TransactionUnknown):
        first.create_queue("in", "i long")
    injector.disarm()
    assert injector.spoiled, injector.calls
    for name in ("B", "A"):
        again = client(name, store)
        again.create_queue("in", "i long", exist_ok=True).send([{"i": 1}])
        injector.flush()
        (message,) = again.queue("in").receive(5).messages()
        assert message["i"] == 1
        assert client("C", store).list_queues() == ["in", "in.dead"]
        again.queue("in").purge()
        clock.advance(1_000)
        client("C", store).queue("in").purge()
