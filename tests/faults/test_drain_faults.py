"""Drains whose store calls fail: nothing is lost, and nothing waits for the end of a lease."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from tests.faults.behind import ORDERS, AtOnce
from tests.faults.injection import Fault, Injector
from tests.faults.world import World
from tests.inside import client_of
from txnqueue import drain_steps
from txnqueue.batch import claim_batch
from txnqueue.errors import TransactionUnknown
from txnqueue.messages.claim import ClaimPlanner


def numbers(batch: Any) -> list[int]:
    return [message["i"] for message in batch.messages()]


@pytest.mark.parametrize("order", [None, *ORDERS])
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.REPLY_LOST, Fault.LANDS_LATE])
def test_whichever_call_fails_a_drain_holds_nothing_afterwards(
    fault: Fault, order: str | None
) -> None:
    """Also one that is ahead, whose appends land before the handler at hand, or after it."""
    for at in itertools.count():
        world, injector = World(), Injector(at, fault)
        world.create("in", lanes=2)
        world.manager("sender").queue("in").send([{"i": n} for n in range(6)])

        def handler(batch: Any, tx: Any, injector: Injector = injector) -> None:
            injector.arm()
            numbers(batch)

        manager = world.manager("A", injector)
        how: dict[str, Any] = {"batch_size": 3} if order is None else {"batch_size": 1, "ahead": 1}
        client_of(manager).runtime.new_background = ORDERS.get(order or "", AtOnce)
        with contextlib.suppress(ConnectionError, TransactionUnknown):
            manager.queue("in").drain(handler, **how)
        injector.disarm()
        injector.flush()
        queue = world.manager("B").queue("in")
        queue.drain(lambda batch, tx: numbers(batch), batch_size=10)
        assert queue.depth() == queue.in_flight() == 0, f"{fault} at call {at} of {injector.calls}"
        world.ledger()
        if at >= len(injector.calls):
            break
    assert at > 5


def failing(real: Any, error: BaseException, when: Any) -> Any:
    """Fail once: at the first call that a predicate of its number and arguments tells."""
    calls: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(when(len(calls), kwargs))
        if calls[-1] and sum(calls) == 1:
            raise error
        return real(*args, **kwargs)

    return call


def second(number: int, given: Any) -> bool:
    return number == 1


@pytest.mark.parametrize("what", ["what landed cannot be read", "memory fails"])
def test_what_fails_after_a_commit_gives_back_what_was_claimed_with_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.create("in")
    queue, away = world.manager("A").queue("in"), OSError("for a moment")
    queue.send([{"i": n} for n in range(6)])
    if what == "memory fails":
        queue.send([{"i": n} for n in range(6, 8)], durable=False)
        claim = failing(claim_batch, away, lambda number, given: given.get("before"))
        monkeypatch.setattr(drain_steps, "claim_batch", claim)
    else:
        monkeypatch.setattr(ClaimPlanner, "held", failing(ClaimPlanner.held, away, second))
    handled: list[int] = []
    reported: list[int] = []
    result = queue.drain(
        lambda batch, tx: handled.extend(numbers(batch)), batch_size=3, on_batch=reported.append
    )
    assert result.finished and result.messages == sum(reported) == len(handled)
    assert sorted(handled) == list(range(len(handled))) and len(handled) >= 6
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    world.ledger()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_interrupted_after_a_commit_gives_back_what_was_claimed_with_it(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.create("in")
    queue = world.manager("A").queue("in")
    queue.send([{"i": n} for n in range(4)])
    monkeypatch.setattr(ClaimPlanner, "held", failing(ClaimPlanner.held, error, second))
    with pytest.raises(type(error)):
        queue.drain(lambda batch, tx: numbers(batch), batch_size=2)
    (batch,) = [world.manager("B").queue("in").receive(5)]
    assert [m["_message"]["delivery_count"] for m in batch.messages()] == [0, 0]
    world.ledger()
