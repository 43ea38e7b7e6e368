"""A discharge whose store calls fail, land unheard, land late, or are the last: all or nothing.

And what the controller is told is what has happened.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, Injector
from tests.faults.world import World
from tests.silence import interrupted
from tests.specifications.amqp_controller import TransactionController
from txnqueue.errors import TransactionUnknown
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpError,
    Released,
    TransactionalResource,
)

CALLS = 14
"""More store calls than a discharge makes."""


def numbers(queue: Any) -> list[int]:
    return sorted(row["i"] for row in queue.peek_messages(100))


def discharge(controller: TransactionController, txn_id: bytes) -> bool | None:
    """Discharge, and say what one was told: committed, rolled back, or nothing yet."""
    try:
        controller.discharge(txn_id)
    except AmqpError:
        return False
    except (TransactionUnknown, Crash, KeyboardInterrupt):
        return None
    return True


@pytest.mark.rule("S1-15", "S1-16", "S1-34", "S1-35")
@pytest.mark.parametrize("fault", list(Fault))
def test_a_discharge_happens_wholly_or_not_at_all_and_says_so(fault: Fault) -> None:
    outcomes = set()
    for at in range(CALLS):
        world, injector = World(), Injector(at, fault)
        world.create("in")
        world.create("out")
        world.helper("creator").queue("in").send([{"i": n} for n in range(3)])
        controller = TransactionController(TransactionalResource(world.manager("A", injector)))
        sender, receiver = controller.sender("out"), controller.receiver("in")
        (held,) = receiver.flow(1)  # 0 under a lease
        txn_id = controller.declare()
        inside = receiver.flow(2, txn_id)  # 1 and 2 in the transaction
        receiver.dispose([held, inside[0]], Accepted(), txn_id)
        receiver.dispose(inside[1:], Released(), txn_id)
        sender.send({"i": 7}, txn_id)
        injector.arm()
        told = discharge(controller, txn_id)
        injector.disarm()
        injector.flush()
        if told is None and not injector.dead:
            controller.tick()
            state = list(controller.control.deliveries.values())[-1].state
            told = None if state is None else isinstance(state, Accepted)
            assert told is not None or fault is Fault.INTERRUPTED, f"{at}: never answered"
        world.lease_over()
        world.manager("B").recover()
        world.ledger()
        fresh = world.manager("C")
        done = numbers(fresh.queue("out")) == [7]
        left = [m["i"] for m in fresh.queue("in").receive(3).messages()]
        rest = [m["i"] for m in fresh.queue("in").receive(3).messages()]
        assert sorted(left + rest)[: 1 if done else 2] == ([2] if done else [0, 1]), at
        assert told in (None, done), f"{at}: told {told}, and it is {done}"
        outcomes.add(done)
    assert True in outcomes
    assert False in outcomes or fault in (
        Fault.REPLY_LOST,
        Fault.CONFLICT_THOUGH_LANDED,
        Fault.LANDS_LATE,
        Fault.FAIL_BEFORE,
    )


@pytest.mark.rule("S1-15", "S1-25")
@pytest.mark.parametrize("lands", [True, False])
def test_a_discharge_that_was_interrupted_is_repeated_once_and_for_all(lands: bool) -> None:
    world = World()
    world.create("in")
    world.create("out")
    world.helper("creator").queue("in").send([{"i": n} for n in range(2)])
    manager = world.manager("A")
    controller = TransactionController(TransactionalResource(manager))
    sender, receiver = controller.sender("out"), controller.receiver("in")
    (held,) = receiver.flow(1)
    txn_id = controller.declare()
    sender.send({"i": 7}, txn_id)
    receiver.dispose([held], Accepted(), txn_id)
    with interrupted(world.store.journal, lands=lands):
        controller.discharge(txn_id)
    controller.discharge(txn_id)
    assert numbers(manager.queue("out")) == [7] and numbers(manager.queue("in")) == [1]
    assert manager.queue("in").in_flight() == 0
    assert held.settled and held.state == Accepted()
