"""Which of two openings of a consumer id is the later one, by what their claims say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.test_ledger import TX, Log
from txnqueue.client.consumer import Consumer
from txnqueue.core.state import LeaseOwner
from txnqueue.errors import LeaseLost

NOW, LEASE_END = 1_500, 2_000
QUEUE: Any = SimpleNamespace(queue_id="q", transient=False)


def log_of(*owners: Any) -> Log:
    log = Log()
    log.post((0, 9))
    for owner in owners:
        log.claim(1, owner=owner)
    return log


@pytest.mark.parametrize("opened_ms", [1_001, 1_500])
def test_a_later_opening_that_holds_messages_fences_an_earlier_one(opened_ms: int) -> None:
    lease = LeaseOwner("c1", opened_ms, opened_ms)
    for owner in (lease, TX.claiming_as(lease)):
        fold, consumer = log_of(owner).fold, Consumer("c1", 1_000)
        with pytest.raises(LeaseLost):
            consumer.owner(QUEUE, fold, NOW)
        assert consumer.owner(QUEUE, fold, LEASE_END).epoch == opened_ms + 1  # the lease is over


@pytest.mark.parametrize(
    ("other", "epoch"),
    [
        (LeaseOwner("c1", 1_200), 1_201),  # of an older version, which does not say
        (LeaseOwner("c1", 1_501, 1_501), 1_502),  # by a clock that is ahead
        (LeaseOwner("c1", 1_200, 900), 1_201),  # opened earlier, above a claim of its own past
        (LeaseOwner("c2", 1_200, 1_200), 1_000),
        (LeaseOwner("c1", 1_000, 1_000), 1_001),  # at the same instant: whoever comes last
        (TX.claiming_as(LeaseOwner("c1", 1_000, 1_000)), 1_001),
    ],
)
def test_what_no_later_opening_holds_is_taken_over(other: Any, epoch: int) -> None:
    consumer = Consumer("c1", 1_000)
    found = consumer.owner(QUEUE, log_of(other).fold, NOW)
    assert (found.epoch, found.opened_ms) == (epoch, 1_000)


def test_an_opening_that_has_an_epoch_is_fenced_by_a_higher_one_alone() -> None:
    log, consumer = log_of(), Consumer("c1", 1_000)
    assert consumer.owner(QUEUE, log.fold, NOW).epoch == 1_000
    log.claim(1, owner=LeaseOwner("c1", 1_000, 1_200))
    assert consumer.owner(QUEUE, log.fold, NOW).epoch == 1_000
    log.claim(1, owner=LeaseOwner("c1", 1_001, 900))
    with pytest.raises(LeaseLost):
        consumer.owner(QUEUE, log.fold, NOW)
