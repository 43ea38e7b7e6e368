"""What a client has from its surroundings."""

from __future__ import annotations

import threading
import time

import pytest

from txnqueue.client.runtime import Runtime


def test_calls_in_the_background_run_one_after_the_other() -> None:
    may_end, second_began, worker = threading.Event(), threading.Event(), Runtime().new_background()
    first = worker.submit(lambda: may_end.wait(60))
    second = worker.submit(second_began.set)
    assert not second_began.wait(0.2)
    may_end.set()
    assert (first.result(), second.result(), second_began.is_set()) == (True, None, True)
    worker.shutdown(wait=True)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="a clock of Linux")
def test_the_clock_of_a_process_goes_on_while_its_machine_sleeps() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= Runtime().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
