"""Who is interrupted in a call, by Ctrl-C or a notebook's stop button, can make the next one."""

from __future__ import annotations

import pytest

from tests.conftest import LONG
from tests.faults import interrupts, matrix
from tests.faults.interrupts import ALL, Interrupt
from txnqueue.testing import memory_manager

SAMPLE = 4_000 if LONG else 120


def test_what_is_interrupted_anywhere_can_be_gone_on_with() -> None:
    for operation, nth in interrupts.cases()[:SAMPLE]:
        interrupts.run(matrix.fresh(unique=operation.unique), operation, nth)


def test_each_operation_has_many_places_and_each_of_them_interrupts() -> None:
    for operation in ALL[::6]:
        assert interrupts.places(operation) > 50
    manager = memory_manager()
    queue = manager.create_queue("in", "i long")
    queue.send([{"i": 1}])  # the first one looks at more
    with Interrupt() as found:
        queue.send([{"i": 1}])
    for nth in (1, found.places // 2, found.places):
        with pytest.raises(KeyboardInterrupt, match=r"^[a-z_/]+\.py:[0-9]+"):
            with Interrupt(nth):
                queue.send([{"i": 1}])
