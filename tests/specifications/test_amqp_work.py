"""AMQP 1.0 transactions: posting, acquiring, retiring, and how settlement meets them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import in_memory, on_delta_when_long
from tests.inside import client_of
from tests.silence import away
from tests.specifications.controllers import Pipeline, Scene, bodies, condition, message, row
from txnqueue.batch import Batch
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpError,
    ApplicationProperties,
    Attach,
    Coordinator,
    Declare,
    Detach,
    Discharge,
    Disposition,
    Error,
    ErrorCondition,
    Flow,
    Header,
    Limits,
    Modified,
    ProtonCodec,
    Received,
    ReceiverSettleMode,
    Rejected,
    Released,
    Role,
    SenderSettleMode,
    Source,
    Target,
    TransactionalState,
    Transfer,
    TxnCapability,
    sending_link,
)
from txnqueue.protocols.amqp.connection import Connection
from txnqueue.protocols.amqp.links import CREDIT
from txnqueue.protocols.amqp.messages import stage
from txnqueue.protocols.amqp.transactions import OutgoingDelivery
from txnqueue.protocols.amqp.types import AmqpValue
from txnqueue.queue import Queue
from txnqueue.storage.journal import AppendConflict
from txnqueue.transactions import commit

SECOND = ReceiverSettleMode.SECOND
SETTLED = SenderSettleMode.SETTLED


# ------------------------------------------------------------------------ all of the work


@pytest.mark.rule("S1-21", "S1-22", "S1-25", "S1-34", "S1-38")
def test_one_discharge_posts_acquires_and_retires(world: Any) -> None:
    """The three operations by the three performatives, in one transaction and in none."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2), row(3)])
    sender, receiver = scene.sender(), scene.receiver()
    (held,) = receiver.flow(1)
    txn_id = scene.controller.declare()
    sender.send(row(4), txn_id)
    acquired = receiver.flow(1, txn_id)
    receiver.dispose([held, *acquired], Accepted(), txn_id)
    assert scene.waiting() == [3] and scene.counts == (1, 2)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [3, 4] and scene.counts == (2, 0)
    assert (held.state, held.settled) == (Accepted(), True)
    assert (acquired[0].state, acquired[0].settled) == (Accepted(), True)


@on_delta_when_long
@pytest.mark.rule("S1-25", "S1-35", "S1-37", "S1-41")
def test_the_two_ways_to_roll_back(world: Any) -> None:
    """Acquired inside goes back to the queue; acquired outside stays with the controller."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    sender, receiver = scene.sender(), scene.receiver()
    (outside,) = receiver.flow(1)
    txn_id = scene.controller.declare()
    sender.send(row(3), txn_id)
    (inside,) = receiver.flow(1, txn_id)
    receiver.dispose([outside, inside], Accepted(), txn_id)
    scene.controller.discharge(txn_id, fail=True)
    assert scene.waiting() == [2] and scene.counts == (1, 1)
    assert (inside.state, inside.settled) == (Released(), True)
    assert not outside.settled
    again = scene.controller.declare()
    receiver.dispose([outside], Accepted(), again)
    scene.controller.discharge(again)
    assert scene.counts == (1, 0)


@in_memory
@pytest.mark.rule("S1-21")
def test_who_disappears_leaves_nothing_behind(world: Any) -> None:
    """The state lies in the store: everybody sees it, and can end it."""
    scene = Scene(world)
    scene.orders.send([row(1)])
    txn_id = scene.controller.declare()
    scene.sender().send(row(2), txn_id)
    scene.receiver().flow(1, txn_id)
    rows = world.manager("auditor").history.as_of(
        client_of(scene.orders).store.journal.version() << 10
    )
    assert [r["status"] for r in rows.transactions().rows()].count("pending") == 1
    world.lease_over()
    assert len(world.manager("other").recover().aborted) == 1
    assert scene.waiting() == [1] and scene.counts == (1, 0)


@on_delta_when_long
@pytest.mark.rule("S1-22")
def test_a_transactional_state_has_a_txn_id_and_maybe_an_outcome(world: Any) -> None:
    with pytest.raises(TypeError):
        TransactionalState(outcome=Accepted())  # type: ignore[call-arg]
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    receiver = scene.receiver()
    first, second = receiver.flow(2)
    txn_id = scene.controller.declare()
    receiver.dispose([first], None, txn_id)
    receiver.dispose([second], Rejected(Error(ErrorCondition.NOT_FOUND, "no such")), txn_id)
    receiver.dispose([second], Accepted(), txn_id)  # the last word in the transaction counts
    scene.controller.discharge(txn_id)
    assert scene.counts == (0, 1) and not first.settled
    assert (second.state, second.settled) == (Accepted(), True)


@on_delta_when_long
@pytest.mark.rule("S1-23")
def test_the_resource_tells_the_transaction_of_what_it_does(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2), row(3)])
    sender, receiver = scene.sender(rcv_settle_mode=SECOND), scene.receiver()
    txn_id = scene.controller.declare()
    (outside,) = receiver.flow(1)
    (inside,) = receiver.flow(1, txn_id)
    assert outside.state is None and inside.state == TransactionalState(txn_id)
    assert receiver.transaction == txn_id, "later transfers will be in it"
    assert sender.send(row(4)).state == Accepted()
    assert sender.send(row(5), txn_id).state == TransactionalState(txn_id, Accepted())
    scene.controller.discharge(txn_id)
    assert receiver.transaction is None
    (later,) = receiver.flow(1)
    assert later.state is None


@in_memory
@pytest.mark.rule("S1-23")
def test_later_parts_of_a_message_name_the_transaction_that_acquired_it(world: Any) -> None:
    """An outcome may be given before they are sent, and its transaction has not acquired it."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id, acquiring = pipe.declare(), pipe.declare()
    outside, inside = pipe.receiver(scene.name), pipe.receiver(scene.name)
    pipe.do(Flow(handle=outside, link_credit=1, incoming_window=1))  # a message has three parts
    pipe.dispose(TransactionalState(txn_id, Accepted()), 0)
    pipe.do(Flow(incoming_window=3))
    pipe.do(Flow(handle=inside, link_credit=1, properties={"txn-id": acquiring}))
    pipe.dispose(TransactionalState(acquiring, Accepted()), 1)
    pipe.do(Flow(incoming_window=9))
    states = [(one.delivery_id, one.state) for one in pipe.frames if isinstance(one, Transfer)]
    assert states == [(0, None)] * 3 + [(1, TransactionalState(acquiring))] * 3
    assert pipe.discharge(txn_id) == pipe.discharge(acquiring) == "accepted"
    assert scene.counts == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S1-24", "S1-18")
def test_work_of_an_unknown_transaction(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    (held,) = receiver.flow(1)
    acts = [
        lambda: scene.sender().send(row(2), b"nobody's"),
        lambda: scene.receiver().flow(1, b"nobody's"),
    ]
    for act in acts:
        with pytest.raises(AmqpError) as caught:
            act()
        assert condition(caught.value) == "amqp:transaction:unknown-id"
    with pytest.raises(AmqpError):
        receiver.dispose([held], Accepted(), b"nobody's")
    assert condition(receiver.error) == "amqp:transaction:unknown-id"
    assert scene.waiting() == [1], "nothing was posted, retired or left acquired"


# ---------------------------------------------------------------------------- posting


@on_delta_when_long
@pytest.mark.rule("S1-26")
def test_the_parts_of_a_delivery_are_one_message(world: Any) -> None:
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    state = TransactionalState(txn_id)
    part = sender.transfer((Header(priority=9),), state=state, more=True)
    sender.transfer(message(2), state=state, part_of=part)
    sender.send(row(1), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [2, 1]


@on_delta_when_long
@pytest.mark.rule("S1-26")
@pytest.mark.parametrize("later", ["another", "none", "one where there was none"])
def test_the_parts_of_a_delivery_name_one_transaction(world: Any, later: str) -> None:
    scene = Scene(world)
    sender = scene.sender()
    first, second = scene.controller.declare(), scene.controller.declare()
    states = {
        "another": (TransactionalState(first), TransactionalState(second)),
        "none": (TransactionalState(first), None),
        "one where there was none": (None, TransactionalState(first)),
    }[later]
    part = sender.transfer((Header(),), state=states[0], more=True)
    with pytest.raises(AmqpError) as caught:
        sender.transfer(message(1), state=states[1], part_of=part)
    assert condition(caught.value) == "amqp:not-allowed"
    for txn_id, involved in ((first, True), (second, later == "another")):
        if involved:
            with pytest.raises(AmqpError):
                scene.controller.discharge(txn_id)
        else:
            scene.controller.discharge(txn_id)
    assert scene.waiting() == []


@on_delta_when_long
@pytest.mark.rule("S1-27")
def test_a_discharge_of_half_a_delivery_ends_the_control_link(world: Any) -> None:
    scene = Scene(world)
    sender = scene.sender()
    first, second = scene.controller.declare(), scene.controller.declare()
    sender.send(row(1), first)
    sender.send(row(2), second)
    part = sender.transfer((Header(),), state=TransactionalState(first), more=True)
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(first)
    assert condition(caught.value) == "amqp:transaction:rollback"
    assert not scene.controller.control.attached
    with pytest.raises(AmqpError) as caught:
        sender.transfer(message(3), state=TransactionalState(first), part_of=part)
    assert condition(caught.value) == "amqp:transaction:unknown-id"
    assert scene.waiting() == [], "all transactions of the link are rolled back"


@in_memory
def test_a_control_link_that_has_ended_grants_no_more_credit(world: Any) -> None:
    """The request that ends it is the one after which more credit is due."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    for _ in range(CREDIT // 4 - 1):
        assert pipe.discharge(pipe.declare()) == "accepted"
    txn_id = pipe.declare()
    pipe.transfer(pipe.sender(scene.name), (Header(),), txn_id, more=True)
    pipe.frames.clear()
    pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
    assert [type(one) for one in pipe.frames] == [Detach]


@on_delta_when_long
@pytest.mark.rule("S1-27")
def test_a_delivery_that_is_aborted_is_not_half_posted(world: Any) -> None:
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    part = sender.transfer((Header(),), state=TransactionalState(txn_id), more=True)
    sender.transfer((), state=TransactionalState(txn_id), aborted=True, part_of=part)
    sender.send(row(1), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [1]


@on_delta_when_long
@pytest.mark.rule("S1-28")
@pytest.mark.parametrize(("mode", "settles"), [(ReceiverSettleMode.FIRST, True), (SECOND, False)])
def test_the_outcome_is_told_before_the_discharge_is_accepted(
    world: Any, mode: Any, settles: bool
) -> None:
    scene = Scene(world)
    sender = scene.sender(rcv_settle_mode=mode)
    txn_id = scene.controller.declare()
    good, bad = sender.send(row(1), txn_id), sender.send({"wrong": 1}, txn_id)
    assert good.state == TransactionalState(txn_id, Accepted())
    assert isinstance(bad.state, TransactionalState) and isinstance(bad.state.outcome, Rejected)
    assert condition(bad.state.outcome.error) == "amqp:invalid-field"
    assert (good.settled, bad.settled) == (settles, settles)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [1], "a rejected message keeps nobody from committing"


@on_delta_when_long
@pytest.mark.rule("S1-29")
@pytest.mark.parametrize("outcomes", [None, ()])
def test_what_was_sent_settled_and_cannot_be_posted_forbids_the_commit(
    world: Any, outcomes: Any
) -> None:
    scene = Scene(world, controller={"outcomes": outcomes})
    sender = scene.sender()
    txn_id, other = scene.controller.declare(), scene.controller.declare()
    sender.send(row(1), txn_id, settled=True)
    assert sender.send({"n": "no number", "key": None}, txn_id, settled=True).state is None
    sender.send(row(2), other, settled=True)
    assert scene.waiting() == []
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"
    if outcomes is None:
        scene.controller.discharge(txn_id, fail=True)
        scene.controller.discharge(other)
        assert scene.waiting() == [2]
    else:
        assert not scene.controller.control.attached


@on_delta_when_long
@pytest.mark.rule("S1-30")
def test_an_outcome_that_can_no_longer_be_applied_forbids_the_commit(world: Any) -> None:
    """Here the outcome of a retirement: the lease ended, and somebody else has the message."""
    scene = Scene(world)
    scene.orders.send([row(1)])
    sender, receiver = scene.sender(), scene.receiver()
    (held,) = receiver.flow(1)
    txn_id = scene.controller.declare()
    posted = sender.send(row(2), txn_id)
    assert posted.settled and posted.state == TransactionalState(txn_id, Accepted())
    receiver.dispose([held], Accepted(), txn_id)
    world.lease_over()
    assert len(scene.orders.receive()) == 1
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"
    assert scene.counts == (0, 1)


@on_delta_when_long
@pytest.mark.rule("S1-31")
@pytest.mark.parametrize("fail", [False, True])
def test_an_unsettled_posting_shows_the_outcome_that_was_applied(world: Any, fail: bool) -> None:
    scene = Scene(world)
    sender = scene.sender(rcv_settle_mode=SECOND)
    txn_id = scene.controller.declare()
    posted = sender.send(row(1), txn_id)
    assert not posted.settled
    scene.controller.discharge(txn_id, fail=fail)
    session = scene.controller.sessions[0].session
    assert posted.state == (None if fail else Accepted()) and not posted.settled
    assert [d.state for d in session.incoming.values()] == [posted.state]
    sender.settle(posted)
    assert not session.incoming


# -------------------------------------------------------------------------- retirement


@on_delta_when_long
@pytest.mark.rule("S1-32")
@pytest.mark.parametrize("acquired", ["inside", "outside"])
def test_an_outcome_in_another_live_transaction_ends_the_control_link(
    world: Any, acquired: str
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver, theirs = scene.receiver(), scene.controller.control_link()
    first, second = scene.controller.declare(), theirs.declare()
    deliveries = receiver.flow(1, first if acquired == "inside" else None)
    if acquired == "outside":
        receiver.dispose(deliveries, Accepted(), first)
    scene.sender().send(row(2), second)
    receiver.dispose(deliveries, Accepted(), second)
    assert condition(theirs.error) == "amqp:transaction:rollback"
    assert scene.controller.control.attached
    receiver.dispose(deliveries, Accepted(), first)
    scene.controller.discharge(first)
    assert scene.counts == (0, 0), "the second transaction is rolled back, the first goes on"


@on_delta_when_long
@pytest.mark.rule("S1-32", "S1-33")
def test_an_outcome_may_be_of_another_transaction_than_a_discharged_one(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    receiver = scene.receiver()
    first, second = scene.controller.declare(), scene.controller.declare()
    deliveries = receiver.flow(2, first)
    scene.controller.discharge(first)
    assert scene.counts == (0, 2), "acquired, and no outcome yet"
    receiver.dispose(deliveries[:1], Accepted(), second)
    receiver.dispose(deliveries[1:], Released(), second)
    scene.controller.discharge(second)
    assert scene.counts == (1, 0) and scene.waiting() == [2]


@on_delta_when_long
@pytest.mark.rule("S1-34")
@pytest.mark.parametrize(
    ("outcome", "left", "dead"),
    [
        (Accepted(), [], 0),
        (Released(), [1], 0),
        (Modified(delivery_failed=True), [1], 0),
        (Rejected(Error(ErrorCondition.INVALID_FIELD, "bad amount")), [], 1),
    ],
)
def test_a_commit_applies_each_outcome(world: Any, outcome: Any, left: Any, dead: int) -> None:
    scene = Scene(world, settings={"dead_letter": True})
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    deliveries = receiver.flow(1)
    txn_id = scene.controller.declare()
    receiver.dispose(deliveries, outcome, txn_id)
    assert scene.counts == (0, 1)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == left and scene.orders.in_flight() == 0
    assert (deliveries[0].state, deliveries[0].settled) == (outcome, True)
    letters = world.manager().queue(f"{scene.name}.dead").receive().messages()
    assert [m["_message"]["origin"]["reason"] for m in letters] == ["bad amount"] * dead
    counts = [m["_message"]["delivery_count"] for m in scene.orders.receive().messages()]
    assert counts == [int(isinstance(outcome, Modified))] * len(left)


@on_delta_when_long
@pytest.mark.rule("S1-35")
@pytest.mark.parametrize("how", ["failed", "refused", "detached"])
def test_after_each_roll_back_the_controller_still_holds_the_messages(world: Any, how: str) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    sender, receiver = scene.sender(), scene.receiver()
    first, second = receiver.flow(2)
    txn_id = scene.controller.declare()
    receiver.dispose([first, second], Accepted(), txn_id)
    if how == "failed":
        scene.controller.discharge(txn_id, fail=True)
    elif how == "refused":
        sender.send({"wrong": 1}, txn_id, settled=True)
        with pytest.raises(AmqpError):
            scene.controller.discharge(txn_id)
    else:
        scene.controller.control.detach()
    assert scene.counts == (0, 2)
    assert len(scene.connect().receiver(scene.name).flow(2)) == 0, "nobody else gets them"
    receiver.dispose([first], Accepted())
    assert scene.counts == (0, 1) and first.settled
    control = scene.controller.control_link()
    again = control.declare()
    receiver.dispose([second], Accepted(), again)
    control.discharge(again)
    assert scene.counts == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S1-36")
@pytest.mark.parametrize("default", [None, Modified(delivery_failed=True), Rejected()])
def test_settled_and_rolled_back_the_default_outcome_is_applied(world: Any, default: Any) -> None:
    scene = Scene(world, settings={"dead_letter": True})
    scene.orders.send([row(1)])
    receiver = scene.receiver(default_outcome=default)
    deliveries = receiver.flow(1)
    txn_id = scene.controller.declare()
    receiver.dispose(deliveries, Accepted(), txn_id, settled=True)
    receiver.dispose(deliveries, Rejected())  # too late: it is settled
    assert scene.counts == (0, 1)
    scene.controller.discharge(txn_id, fail=True)
    rejected = isinstance(default, Rejected)
    assert scene.waiting() == ([] if rejected else [1]) and scene.orders.in_flight() == 0
    assert world.manager().queue(f"{scene.name}.dead").depth() == int(rejected)
    counts = [m["_message"]["delivery_count"] for m in scene.orders.receive().messages()]
    assert counts == ([] if rejected else [int(default is not None)])


@in_memory
@pytest.mark.parametrize("default", [Modified(undeliverable_here=True), Received(0, 0), "nothing"])
def test_a_default_outcome_that_cannot_be_applied_is_refused_with_its_link(
    world: Any, default: Any
) -> None:
    """Otherwise it would fail when nobody can be told any more."""
    scene = Scene(world)
    session = scene.resource.connect().begin()
    source = Source(scene.name, default)
    answers = session.handle(Attach(name="r", handle=0, role=Role.RECEIVER, source=source))
    assert condition(answers[-1].error) == "amqp:not-implemented" and not session.links


@on_delta_when_long
@pytest.mark.rule("S1-34", "S1-36")
def test_settled_and_committed_the_given_outcome_is_applied(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver(default_outcome=Released())
    txn_id = scene.controller.declare()
    receiver.dispose(receiver.flow(1), Accepted(), txn_id, settled=True)
    scene.controller.discharge(txn_id)
    assert scene.counts == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S1-37")
def test_unsettled_and_rolled_back_the_state_is_the_former_one(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    deliveries = receiver.flow(1)
    session = scene.controller.sessions[0].session
    (at_resource,) = session.unsettled.values()
    for fail in (True, True, False):
        txn_id = scene.controller.declare()
        receiver.dispose(deliveries, Accepted() if not fail else Rejected(), txn_id)
        assert at_resource.state is not None
        scene.controller.discharge(txn_id, fail=fail)
        assert fail == (at_resource in session.unsettled.values())
        assert not fail or at_resource.state is None
    assert scene.counts == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S1-34")
def test_links_that_close_leave_outcomes_to_their_transaction(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2), row(3), row(4)])
    receiver = scene.receiver()
    said, _ = receiver.flow(2)
    txn_id = scene.controller.declare()
    receiver.dispose([said], Accepted(), txn_id)
    receiver.flow(2, txn_id)
    receiver.detach()
    assert scene.waiting() == [2] and scene.counts == (1, 3)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [2, 3, 4] and scene.counts == (3, 0)


# ------------------------------------------------------------------------- acquisition


@on_delta_when_long
@pytest.mark.rule("S1-38")
def test_the_transaction_of_a_link_is_its_own(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(4)])
    one, two = scene.receiver(), scene.receiver()
    first, second = scene.controller.declare(), scene.controller.declare()
    assert [d.state for d in one.flow(1, first)] == [TransactionalState(first)]
    assert [d.state for d in two.flow(1, second)] == [TransactionalState(second)]
    assert [d.state for d in one.flow(1)] == [TransactionalState(first)], "no entry: no change"
    assert [d.state for d in scene.receiver().flow(1)] == [None], "it is optional"
    scene.controller.discharge(first, fail=True)
    assert scene.counts == (2, 2)


@on_delta_when_long
@pytest.mark.rule("S1-39")
def test_a_discharge_leaves_credit_and_clears_the_transaction(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    receiver.dispose(receiver.flow(3, txn_id), Accepted(), txn_id)
    scene.controller.discharge(txn_id)
    assert receiver.transaction is None and receiver.credit == 2
    scene.orders.send([row(2)])
    scene.controller.tick()
    outside = list(receiver.deliveries.values())[-1]
    assert outside.body["n"] == 2 and outside.state is None
    assert scene.counts == (0, 1)


@on_delta_when_long
@pytest.mark.rule("S1-39")
def test_a_link_that_drains_has_no_credit_left_when_its_transaction_ends(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    receiver.flow(5, txn_id, drain=True)
    assert receiver.credit == 0
    scene.controller.discharge(txn_id, fail=True)
    scene.controller.tick()
    assert scene.counts == (1, 0)
    again = scene.controller.declare()
    assert bodies(receiver.flow(5, again)) == [1] and receiver.credit == 4


@on_delta_when_long
@pytest.mark.rule("S1-40")
def test_a_link_that_does_not_acquire_in_transactions_is_ended(world: Any) -> None:
    scene = Scene(world, transactional_acquisition=False)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    with pytest.raises(AmqpError) as caught:
        receiver.flow(1, txn_id)
    assert condition(caught.value) == "amqp:not-implemented" and not receiver.attached
    assert scene.counts == (1, 0)


@on_delta_when_long
@pytest.mark.rule("S1-41")
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_an_acquisition_is_undone_with_its_outcome(world: Any, settled: bool, fail: bool) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    mode = SETTLED if settled else SenderSettleMode.UNSETTLED
    receiver = scene.receiver(snd_settle_mode=mode)
    txn_id = scene.controller.declare()
    deliveries = receiver.flow(2, txn_id)
    assert [d.settled for d in deliveries] == [settled] * 2
    if not settled:
        receiver.dispose(deliveries, Accepted(), txn_id)
    scene.controller.discharge(txn_id, fail=fail)
    assert scene.counts == ((2, 0) if fail else (0, 0))


@on_delta_when_long
@pytest.mark.rule("S1-41")
def test_sent_settled_in_no_transaction_is_gone_at_once(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    assert bodies(scene.receiver(snd_settle_mode=SETTLED).flow(1)) == [1]
    assert scene.counts == (0, 0)


@in_memory
def test_what_goes_settled_goes_in_portions_and_is_drained_to_its_end(world: Any) -> None:
    scene = Scene(world, limits=Limits(unsettled=4))
    scene.orders.send([row(n) for n in range(10)])
    connection = scene.resource.connect()
    session = connection.begin()
    source = Source(scene.name)
    session.handle(
        Attach(name="r", handle=0, role=Role.RECEIVER, source=source, snd_settle_mode=SETTLED)
    )

    def ticked() -> list[Any]:
        connection.tick()
        return [type(one) for one in session.frames()]

    told = session.handle(Flow(handle=0, link_credit=20, drain=True))
    assert [type(one) for one in told] == [Transfer] * 4
    connection.unread = lambda: 1 << 30
    assert ticked() == []
    assert scene.counts == (6, 0)
    connection.unread = None
    assert ticked() == [Transfer] * 4
    assert ticked() == [Transfer] * 2
    assert ticked() == [Flow]  # only now there is nothing left to give credit back for
    assert scene.counts == (0, 0)


def cut_short(world: Any, ends: Callable[[Connection], object]) -> tuple[Scene, int]:
    """Send ten messages settled through a window that takes some of them, and end it there.

    Returns:
        The scene, and how many messages have gone wholly.
    """
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(10)])
    connection = scene.resource.connect(payload_max=1)
    session = connection.begin(incoming_window=10)
    source = Source(scene.name)
    session.handle(
        Attach(name="r", handle=0, role=Role.RECEIVER, source=source, snd_settle_mode=SETTLED)
    )
    told = session.handle(Flow(handle=0, link_credit=100))
    assert [type(one) for one in told] == [Transfer] * 10
    gone = sum(not one.more for one in told if isinstance(one, Transfer))
    assert 0 < gone < 10 and scene.counts == (0, 10 - gone)
    ends(connection)
    return scene, gone


@in_memory
@pytest.mark.parametrize(
    "ends",
    [
        lambda connection: connection.sessions[0].handle(Detach(handle=0)),
        lambda connection: connection.sessions[0].handle(Detach(handle=0, closed=False)),
        lambda connection: connection.close(),
    ],
    ids=["closed", "detached", "connection"],
)
def test_what_was_to_go_settled_and_has_not_gone_is_there_for_others(world: Any, ends: Any) -> None:
    scene, gone = cut_short(world, ends)
    assert scene.counts == (10 - gone, 0)
    assert sorted(scene.waiting()) == list(range(gone, 10))


@in_memory
def test_what_waits_to_go_settled_is_held_until_it_goes(world: Any) -> None:
    def wait(connection: Connection) -> None:
        for _ in range(8):
            world.clock.advance(100)
            connection.tick()

    scene, gone = cut_short(world, wait)
    assert len(world.open(scene.orders, "other").receive(10)) == 0
    assert scene.counts == (0, 10 - gone)


@in_memory
def test_what_goes_settled_is_accepted_by_one_commit_and_not_one_each(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(10)])
    receiver, before = scene.receiver(snd_settle_mode=SETTLED), world.store.journal.version()
    assert len(receiver.flow(10)) == 10
    assert world.store.journal.version() - before == 2  # the claim, and what becomes of it
    assert scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-41")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("claims", [1, 4])
def test_a_transaction_keeps_nothing_of_each_message_that_has_gone_settled(
    world: Any, claims: int, fail: bool
) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(80)])
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=SETTLED)
    txn_id = pipe.declare()
    for nth in range(claims):
        known, credit = nth * 80 // claims, 80 // claims
        properties = {"txn-id": txn_id}
        flow = Flow(handle=handle, delivery_count=known, link_credit=credit, properties=properties)
        pipe.do(flow)
    assert len([one for one in pipe.frames if isinstance(one, Transfer)]) == 80
    (transaction,) = pipe.session.connection.transactions()
    assert len(transaction.deliveries) == 0 and len(transaction.consumed) == claims
    for _ in range(8):
        world.clock.advance(100)
        pipe.session.connection.tick()
    assert len(world.open(scene.orders, "other").receive(80)) == 0, "the leases are extended"
    assert pipe.discharge(txn_id, fail) == "accepted"
    assert scene.counts == ((80, 0) if fail else (0, 0))


@in_memory
@pytest.mark.parametrize("default", [None, Rejected()])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("fail", [False, True])
def test_a_transaction_keeps_the_claims_of_what_was_settled_in_it(
    world: Any, monkeypatch: Any, fail: bool, inside: bool, default: Any
) -> None:
    """Clients like those of JMS settle at once: as many as they like in one transaction."""
    monkeypatch.setattr("txnqueue.protocols.amqp.transactions.COMPACT_COUNT", 6)
    scene = Scene(world, settings={"dead_letter": True})
    scene.orders.send([row(n) for n in range(40)])
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name, default))
    txn_id, other = pipe.declare(), pipe.declare()
    properties = {"txn-id": txn_id} if inside else {}
    (transaction, beside) = pipe.session.connection.transactions()
    transaction.compact_count = beside.compact_count = 6
    for known in range(0, 40, 4):
        flow = Flow(handle=handle, delivery_count=known, link_credit=4, properties=properties)
        pipe.do(flow)
        for number in range(known, known + 4):
            if number == 0 and not inside:  # its claim has a message of another transaction
                pipe.dispose(TransactionalState(other, Accepted()), number, settled=True)
                continue
            outcome = Released() if number % 2 else Accepted()
            pipe.dispose(TransactionalState(txn_id, outcome), number, settled=True)
        assert len(transaction.deliveries) < 12
    assert len(transaction.consumed) >= 6
    for _ in range(8):
        world.clock.advance(100)
        pipe.session.connection.tick()
    assert len(world.open(scene.orders, "other").receive(40)) == 0, "the leases are extended"
    assert pipe.discharge(txn_id, fail) == pipe.discharge(other) == "accepted"
    odd, rest = list(range(1, 40, 2)), list(range(40 if inside else 1))[1:]
    if not fail:
        left = odd
    elif inside or default is None:
        left = list(range(0 if inside else 1, 40))
    else:
        left = rest
    assert scene.waiting() == left and scene.orders.in_flight() == 0
    dead = world.manager().queue(f"{scene.name}.dead").depth()
    assert dead == (39 if fail and not inside and default is not None else 0)


@in_memory
@pytest.mark.rule("S1-41", "S1-43")
@pytest.mark.parametrize("end", ["detach", "less credit"])
def test_a_claim_of_which_a_part_has_gone_settled_is_consumed_to_that_part(
    world: Any, end: str
) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(5)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id = pipe.declare()
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=SETTLED)
    pipe.do(Flow(incoming_window=7))  # a message has three parts here
    pipe.do(Flow(handle=handle, link_credit=5, properties={"txn-id": txn_id}))
    if end == "detach":
        pipe.do(Detach(handle=handle))
    else:
        pipe.do(Flow(handle=handle, delivery_count=3, link_credit=0))
        pipe.do(Flow(incoming_window=9))
    assert pipe.discharge(txn_id) == "accepted"
    assert scene.waiting() == ([2, 3, 4] if end == "detach" else [3, 4])
    assert scene.orders.in_flight() == 0


@in_memory
@pytest.mark.rule("S1-28", "S1-31")
def test_a_transaction_keeps_no_object_for_each_message_that_is_posted(world: Any) -> None:
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    handle, txn_id = pipe.sender(scene.name), pipe.declare()
    good = [pipe.transfer(handle, message(n), txn_id) for n in range(20)]
    bad = [
        pipe.transfer(handle, message("no number"), txn_id)  # type: ignore[arg-type]
        for _ in range(10)
    ]
    (transaction,) = pipe.session.connection.transactions()
    assert not transaction.incoming
    kept = [*transaction.accepted.values(), *transaction.rejected.values()]
    assert [len(one._firsts) for one in kept] == [1, 1]
    told = pipe.outcomes()
    for numbers in (good, bad):
        settled = Disposition(
            role=Role.SENDER,
            first=numbers[0],
            last=numbers[-1],
            settled=True,
            state=told[numbers[0]],
        )
        pipe.do(settled)
    assert pipe.discharge(txn_id) == "accepted" and scene.waiting() == list(range(20))


@in_memory
@pytest.mark.parametrize("durable", [True, False])
def test_a_delivery_has_the_priority_and_what_is_left_of_the_time_to_live(
    world: Any, durable: bool
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)], priority=7, ttl_seconds=60, durable=durable)
    scene.orders.send([row(2)], durable=durable)
    world.clock.advance(20)
    first, second = scene.receiver().flow(2)
    assert first.payload[0] == Header(7, 40_000, first_acquirer=True, durable=durable)
    assert second.payload[0] == Header(4, None, first_acquirer=True, durable=durable)


@in_memory
def test_credit_for_deliveries_that_were_aborted_is_renewed_without_a_tick(world: Any) -> None:
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.sender(scene.name)
    for _ in range(CREDIT + 1):
        number = pipe.transfer(handle, (), more=True)
        pipe.transfer(handle, (), delivery_id=number, aborted=True)
    pipe.transfer(handle, message(1))
    assert scene.waiting() == [1]


@in_memory
def test_of_a_link_that_ended_one_line_is_logged_whatever_its_name(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    pipe.receiver(scene.name, 1, name="a\nlink ended name=b")
    batch = pipe.session.unsettled[0].batch
    batch.release()
    pipe.dispose(Accepted(), 0, settled=True)
    lines = [record.getMessage() for record in caplog.records]
    assert "link ended name='a\\nlink ended name=b' error=" in lines[0]
    assert not any("\n" in line for line in lines)


@in_memory
def test_of_a_long_reason_of_a_rejection_the_beginning_is_kept(world: Any) -> None:
    scene = Scene(world, settings={"dead_letter": True})
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    why = Error("com.example:bad", "bad amount: " + "9" * 60_000)
    receiver.dispose(receiver.flow(1), Rejected(why))
    (letter,) = scene.manager.queue(f"{scene.name}.dead").peek_messages(2)
    assert letter["_message"]["origin"]["reason"] == why.description[:500]


@in_memory
@pytest.mark.parametrize("how", ["vanishes", "settles in a transaction that fails"])
def test_what_a_controller_leaves_behind_goes_back_by_one_commit_and_not_one_each(
    world: Any, how: str
) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(20)])
    connection = scene.resource.connect()
    pipe = Pipeline(connection)
    pipe.receiver(scene.name, 20)
    before = world.store.journal.version()
    if how == "vanishes":
        connection.close()
    else:
        txn_id = pipe.declare()
        pipe.dispose(TransactionalState(txn_id, Accepted()), 0, 19, settled=True)
        assert pipe.discharge(txn_id, fail=True) == "accepted"
    assert world.store.journal.version() == before + 1
    assert scene.counts == (20, 0) and not pipe.session.unsettled


@in_memory
def test_while_the_store_is_away_giving_back_is_tried_once_and_not_for_each_claim(
    world: Any, monkeypatch: Any
) -> None:
    """Each attempt takes long, and a server that stops waits for them."""
    scene = Scene(world)
    other = world.queue("others")
    for n in range(3):
        scene.orders.send([row(n)])
        other.send([row(n)])
    pipe = Pipeline(scene.resource.connect())
    handles = [pipe.receiver(name) for name in (scene.name, other.name)]
    for credit in range(1, 4):
        for handle in handles:
            pipe.do(Flow(handle=handle, link_credit=credit))
    tried: list[int] = []

    def away(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        for how in ("accept", "release", "modify"):
            patch.setattr(Batch, how, away)
        pipe.do(Detach(handle=handles[0]))
        assert tried == [1]
        pipe.do(Detach(handle=handles[1]))
        assert tried == [1] and not pipe.session.unsettled
    pipe.session.connection.tick()
    assert (scene.counts, other.depth()) == ((3, 0), 3), "the store answers again"


def away_for(monkeypatch: Any, is_concerned: Callable[[Batch], bool]) -> list[Batch]:
    """Let no messages of some claims be released; return the claims for which it is tried."""
    release, tried = Batch.release, []

    def away(batch: Batch, *arguments: Any, **named: Any) -> int:
        if is_concerned(batch):
            tried.append(batch)
            raise OSError("the store is away")
        return release(batch, *arguments, **named)

    monkeypatch.setattr(Batch, "release", away)
    return tried


@in_memory
def test_what_the_store_did_not_take_back_goes_back_with_the_next_tick(
    world: Any, monkeypatch: Any
) -> None:
    """Its lease does not end: the controller holds another message of the claim."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    connection = scene.resource.connect(payload_max=1)
    pipe = Pipeline(connection)
    pipe.session.window = 2  # not even the first message fits in
    handle = pipe.receiver(scene.name, 2)
    with monkeypatch.context() as patch:
        away_for(patch, lambda _: True)
        pipe.do(Flow(handle=handle, delivery_count=1, link_credit=0))
    assert scene.counts == (0, 2)
    connection.tick()
    assert scene.waiting() == [2] and scene.counts == (1, 1)


@in_memory
def test_a_claim_that_cannot_be_given_back_keeps_no_others_waiting_and_is_left_to_its_lease(
    world: Any, monkeypatch: Any
) -> None:
    scene = Scene(world)
    connection = scene.resource.connect()
    pipe = Pipeline(connection)
    handle = pipe.receiver(scene.name)
    for n in range(3):
        scene.orders.send([row(n)])
        pipe.do(Flow(handle=handle, delivery_count=n, link_credit=1))
    first = pipe.session.unsettled[0].batch
    tried = away_for(monkeypatch, lambda batch: batch is first)
    pipe.do(Detach(handle=handle))
    assert scene.counts == (0, 3) and len(tried) == 1
    connection.tick()
    assert scene.waiting() == [1, 2] and len(tried) == 2
    world.lease_over()
    for _ in range(3):
        connection.tick()
    assert len(tried) == 3


@in_memory
def test_while_the_store_is_away_a_rollback_is_tried_once_and_not_for_each_transaction(
    world: Any, monkeypatch: Any
) -> None:
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(3)])
    pipe = Pipeline(scene.resource.connect())
    for _ in range(3):
        handle, txn_id = pipe.receiver(scene.name), pipe.declare()
        pipe.do(Flow(handle=handle, link_credit=1, properties={"txn-id": txn_id}))
    tried: list[int] = []

    def away(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "rollback", away)
        pipe.session.connection.close()
    assert tried == [1] and scene.counts == (0, 3)
    scene.resource.connect().tick()
    assert scene.counts == (3, 0), "a later tick rolls all of them back"


@in_memory
@pytest.mark.parametrize("end", ["settled", "settled in the transaction", "detached"])
def test_of_what_a_controller_is_told_no_more_a_transaction_keeps_only_ids(
    world: Any, end: str
) -> None:
    """It may post millions, and have no more than a few unsettled at a time."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    txn_id = pipe.declare()
    handle = pipe.sender(scene.name, rcv_settle_mode=SECOND)
    good = [pipe.transfer(handle, message(n), txn_id) for n in range(5)]
    bad = pipe.transfer(handle, message("no number"), txn_id)  # type: ignore[arg-type]
    (transaction,) = pipe.session.connection.transactions()
    assert len(transaction.incoming) == 6
    if end == "detached":
        pipe.do(Detach(handle=handle))
    else:
        for number, state in pipe.outcomes().items():
            said = state if end == "settled in the transaction" else None
            pipe.do(Disposition(role=Role.SENDER, first=number, settled=True, state=said))
    assert not transaction.incoming
    assert transaction.accepted[pipe.session].count(range(bad)) == len(good)
    assert transaction.rejected[pipe.session].count(range(bad + 1)) == 1
    assert pipe.discharge(txn_id) == "accepted"
    assert scene.waiting() == [0, 1, 2, 3, 4]


@in_memory
def test_what_a_controller_leaves_behind_goes_back_as_far_as_it_is_held(world: Any) -> None:
    """A message that was settled past the resource does not keep the others from going back."""
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(3)])
    connection = scene.resource.connect()
    pipe = Pipeline(connection)
    pipe.receiver(scene.name, 3)
    held = pipe.session.unsettled[1]
    held.batch.accept(matching=[held.message_id])
    connection.close()
    assert scene.waiting() == [0, 2] and scene.counts == (2, 0)


@in_memory
def test_what_is_left_of_a_claim_goes_back_by_few_commits_if_a_lane_of_it_is_lost(
    world: Any,
) -> None:
    scene = Scene(world, settings={"lanes": 2})
    scene.orders.send([row(n) for n in range(80)])
    connection = scene.resource.connect()
    Pipeline(connection).receiver(scene.name, 80)
    world.clock.advance(310)
    assert len(world.open(scene.orders, "other").receive(40)) == 40
    before = world.store.journal.version()
    connection.close()
    assert world.store.journal.version() - before <= 3
    assert scene.counts == (40, 40)


@in_memory
def test_the_octets_of_a_message_are_forgotten_once_it_is_posted(world: Any) -> None:
    scene = Scene(world)
    txn_id = scene.controller.declare()
    sender = scene.sender(rcv_settle_mode=SECOND)
    sender.send(row(1), txn_id)
    sender.send({"n": "no number"}, txn_id)
    session = scene.controller.sessions[0].session
    (transaction,) = scene.controller.connection.transactions()
    remembered = [*transaction.incoming.values(), *session.incoming.values()]
    assert len(remembered) == 4
    assert [one.payload for one in remembered] == [()] * 4
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [1]


@in_memory
def test_who_does_not_settle_what_was_sent_gets_no_more_credit(world: Any) -> None:
    scene = Scene(world, limits=Limits(unsettled=4))
    sender, other = scene.sender(rcv_settle_mode=SECOND), scene.sender()
    sent = [sender.send(row(n)) for n in range(4)]
    assert sender.credit == 4, "it was granted no more"
    late = scene.sender(rcv_settle_mode=SECOND)
    assert (late.credit, other.credit) == (0, 1_000)
    sender.settle(sent[0])
    assert (sender.credit, late.credit) == (1, 1)
    sender.detach()
    scene.controller.tick()
    assert late.credit == 4, "what is forgotten with a link counts no more"
    late.send(row(4))
    assert scene.waiting() == [0, 1, 2, 3, 4]


@in_memory
@pytest.mark.rule("S1-28", "S1-31")
@pytest.mark.parametrize("transacted", [True, False])
def test_a_transfer_may_ask_to_be_settled_at_once_on_a_link_that_waits(
    world: Any, transacted: bool
) -> None:
    """The specification, 2.7.5: the mode of a transfer counts, by default it is the link's."""
    pipe = Pipeline(Scene(world).resource.connect())
    handle = pipe.sender(world.queue("others").name, rcv_settle_mode=SECOND)
    txn_id = pipe.declare() if transacted else None
    first = pipe.transfer(handle, message(1), txn_id, rcv_settle_mode=ReceiverSettleMode.FIRST)
    second = pipe.transfer(handle, message(2), txn_id)
    told = {one.first: one.settled for one in pipe.frames if isinstance(one, Disposition)}
    assert (told[first], told[second]) == (True, False)
    assert set(pipe.session.incoming) == {second}
    assert txn_id is None or pipe.discharge(txn_id) == "accepted"
    assert set(pipe.session.incoming) == {second}


@in_memory
@pytest.mark.rule("S1-29")
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("part", [True, False])
def test_a_transfer_may_not_wait_on_a_link_that_settles_at_once(
    world: Any, settled: bool, part: bool
) -> None:
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    handle, txn_id = pipe.sender(scene.name), pipe.declare()
    number = pipe.transfer(handle, (), txn_id, more=True) if part else None
    how = {"rcv_settle_mode": SECOND, "settled": settled, "delivery_id": number}
    pipe.transfer(handle, message(1), txn_id, **how)
    if settled:  # then the mode is ignored
        assert pipe.discharge(txn_id) == "accepted" and scene.waiting() == [1]
        return
    assert condition(pipe.frames[-1].error) == "amqp:invalid-field"
    assert handle not in pipe.session.links
    assert pipe.discharge(txn_id) == "amqp:transaction:rollback" and scene.waiting() == []


@in_memory
def test_a_control_link_settles_at_once_whatever_is_asked(world: Any) -> None:
    session = Scene(world).resource.connect().begin()
    attach = Attach(
        name="c", handle=0, role=Role.SENDER, target=Coordinator(), rcv_settle_mode=SECOND
    )
    answer = session.handle(attach)[0]
    assert isinstance(answer, Attach) and answer.rcv_settle_mode is ReceiverSettleMode.FIRST
    declared = Transfer(handle=0, delivery_id=0, payload=(AmqpValue(Declare()),))
    assert session.handle(declared)[0].settled


@in_memory
def test_many_small_parts_are_put_together_in_one_go(world: Any) -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")
    codec = ProtonCodec()
    scene = Scene(world)
    session = scene.resource.connect(codec=codec).begin()
    session.handle(Attach(name="s", handle=0, role=Role.SENDER, target=Target(scene.name)))
    octets = codec.encode((AmqpValue({"n": 1, "key": "x" * 12_000_000}),))
    began = time.monotonic()
    for start in range(0, len(octets), 400):
        part = octets[start : start + 400]
        more = start + 400 < len(octets)
        session.handle(Transfer(handle=0, delivery_id=0, payload=part, more=more))
    assert time.monotonic() - began < 5  # copied anew with each part it takes a minute
    assert scene.waiting() == [1]


@in_memory
def test_a_long_message_is_sent_in_many_small_parts_in_one_go(world: Any) -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")
    codec = ProtonCodec()
    scene = Scene(world)
    scene.orders.send([{"n": 1, "key": "x" * 12_000_000}])
    session = scene.resource.connect(codec=codec, payload_max=400).begin()
    session.handle(Attach(name="r", handle=0, role=Role.RECEIVER, source=Source(scene.name)))
    began = time.monotonic()
    parts: list[Any] = session.handle(Flow(handle=0, link_credit=1))
    assert time.monotonic() - began < 5  # what is left copied with each part, it takes minutes
    assert len(parts) > 30_000 and not parts[-1].more
    value: Any = codec.decode(b"".join(one.payload for one in parts))[-1]
    assert len(value.value["key"]) == 12_000_000


@in_memory
@pytest.mark.parametrize("inside", [True, False])
def test_messages_of_a_claim_that_are_read_later_are_given_back_if_one_cannot_be_sent(
    world: Any, inside: bool
) -> None:
    """The first reading takes 16 messages; the last of the claim cannot be sent."""

    class Picky:
        def encode(self, sections: Any) -> bytes:
            if sections[-1].value["n"] == 29:
                raise ValueError("no such number")
            return b"octets"

        def decode(self, octets: Any) -> Any:
            return octets

    scene = Scene(world)
    scene.orders.send([row(n) for n in range(30)])
    connection = scene.resource.connect(codec=Picky())
    pipe = Pipeline(connection)
    connection.codec = None
    txn_id = pipe.declare()
    handle = pipe.receiver(scene.name)
    pipe.do(Flow(handle=handle, properties={"txn-id": txn_id} if inside else {}))
    connection.codec = Picky()
    pipe.do(Flow(handle=handle, link_credit=30))
    connection.codec = None
    assert len([one for one in pipe.frames if isinstance(one, Transfer)]) == 16
    assert handle not in pipe.session.links
    assert pipe.discharge(txn_id) == "accepted" and scene.counts == (30, 0)
    about = {row["n"]: row["_message"]["delivery_count"] for row in scene.orders.peek_messages(50)}
    assert about == {n: int(n == 29) for n in range(30)}


@in_memory
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_default_outcome_is_not_for_what_was_not_sent(
    world: Any, inside: bool, closed: bool
) -> None:
    """Of three messages the first has come wholly, the second in part, the third not at all."""
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(3)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    pipe.do(Flow(incoming_window=4))  # a message has three parts here
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name, Accepted()))
    txn_id = pipe.declare()
    properties = {"txn-id": txn_id} if inside else {}
    pipe.do(Flow(handle=handle, link_credit=3, properties=properties))
    pipe.do(Detach(handle=handle, closed=closed))
    assert pipe.discharge(txn_id) == "accepted"
    assert sorted(scene.waiting()) == [1, 2], "one is accepted, or still held"
    pipe.session.end()
    assert sorted(scene.waiting()) == [1, 2] and scene.counts == (2, 0)


@on_delta_when_long
@pytest.mark.rule("S1-42")
@pytest.mark.parametrize("settled", [True, False])
def test_the_outcome_of_an_acquired_message_belongs_to_its_transaction(
    world: Any, settled: bool
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    deliveries = receiver.flow(1, txn_id)
    receiver.dispose(deliveries, Accepted(), settled=settled)
    assert condition(scene.controller.control.error) == "amqp:transaction:rollback"
    assert scene.waiting() == [1] and scene.counts == (1, 0)


@on_delta_when_long
@pytest.mark.rule("S1-43")
@pytest.mark.parametrize("room", [1, 0])
@pytest.mark.parametrize("how", ["failed", "refused", "committed"])
def test_a_discharge_decides_an_acquisition_that_is_half_sent(
    world: Any, how: str, room: int
) -> None:
    """A message has three sections here, and the session's window takes two of them.

    A flow for another link may open it again. If not, the link's end says what an aborted transfer
    would say.
    """
    scene = Scene(world, controller={"incoming_window": 2, "payload_max": 1})
    scene.orders.send([row(1)])
    receiver, other = scene.receiver(), scene.receiver()
    txn_id = scene.controller.declare()
    (half,) = receiver.flow(1, txn_id)
    assert not half.complete and len(half.payload) == 2
    scene.controller.sessions[0].send(Flow(handle=other.handle, incoming_window=room))
    if how == "committed":
        scene.controller.discharge(txn_id)
        assert scene.counts == (0, 1), "acquired for good"
        scene.controller.sessions[0].send(Flow(incoming_window=2))
        assert half.complete and half.body["n"] == 1
        receiver.dispose([half], Accepted())
        assert scene.counts == (0, 0)
        return
    if how == "refused":
        scene.sender().send({"wrong": 1}, txn_id, settled=True)
        with pytest.raises(AmqpError):
            scene.controller.discharge(txn_id)
    else:
        scene.controller.discharge(txn_id, fail=True)
    assert half.aborted == receiver.attached == bool(room)
    assert room or condition(receiver.error) == "amqp:transaction:rollback"
    assert scene.waiting() == [1] and scene.counts == (1, 0)
    scene.controller.sessions[0].send(Flow(incoming_window=9))
    assert not half.complete, "nothing of it comes after it was given up"


@on_delta_when_long
@pytest.mark.rule("S1-43")
def test_it_is_given_up_before_the_discharge_is_answered(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    session = scene.resource.connect(payload_max=1).begin(incoming_window=1)
    session.handle(Attach(name="c", handle=0, role=Role.SENDER, target=Coordinator()))
    declared = Transfer(handle=0, delivery_id=0, payload=(AmqpValue(Declare()),))
    txn_id = session.handle(declared)[0].state.txn_id
    session.handle(Attach(name="r", handle=1, role=Role.RECEIVER, source=Source(scene.name)))
    session.handle(Flow(handle=1, link_credit=1, properties={"txn-id": txn_id}))
    session.handle(Attach(name="o", handle=2, role=Role.RECEIVER, source=Source(scene.name)))
    session.handle(Flow(handle=2, incoming_window=1))
    failed = (AmqpValue(Discharge(txn_id, fail=True)),)
    frames = session.handle(Transfer(handle=0, delivery_id=1, payload=failed))
    aborted = [f for f in frames if isinstance(f, Transfer) and f.aborted]
    answer = next(f for f in frames if isinstance(f, Disposition) and f.role is Role.RECEIVER)
    assert frames.index(aborted[0]) < frames.index(answer)


# ------------------------------------------------------------------ links, outside of rules


@in_memory
def test_a_message_keeps_what_a_queue_can_keep(world: Any) -> None:
    scene = Scene(world)
    sender, receiver = scene.sender(), scene.receiver()
    txn_id = scene.controller.declare()
    sender.send(row(1), txn_id, headers={"a": "b"})
    sender.send(row(2), txn_id, header=Header(priority=9, ttl=60_000))
    sender.send(row(3), txn_id)
    scene.controller.discharge(txn_id)
    found = receiver.flow(3)
    assert bodies(found) == [2, 1, 3]
    assert [len(d.payload) for d in found] == [3, 4, 3]
    assert found[1].payload[2].values == {"a": "b"}
    world.clock.advance(61)
    receiver.dispose(found, Released())
    assert [d.payload[0].delivery_count for d in receiver.flow(5)] == [0, 0]


@in_memory
def test_a_priority_higher_than_those_of_queues_is_their_highest(world: Any) -> None:
    """The specification, 3.2.1: so it must be treated by who has fewer priorities."""
    scene = Scene(world)
    sender = scene.sender()
    for number, priority in enumerate((9, 255, None, 10)):
        sent = sender.send(row(number), header=Header(priority=priority))
        assert sent.state == Accepted()
    assert scene.waiting() == [0, 1, 3, 2]


@in_memory
def test_an_outcome_that_came_too_late_is_told_to_have_failed(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    (held,) = receiver.flow(1)
    world.lease_over()
    scene.orders.receive()
    receiver.dispose([held], Accepted())
    assert held.state == Modified(delivery_failed=True) and held.settled


@in_memory
@pytest.mark.parametrize("kept", [0, 1])
def test_an_outcome_that_came_too_late_for_one_delivery_is_applied_to_the_other(
    world: Any, kept: int
) -> None:
    """The resource was busy when one of two leases had to be extended."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.receiver(scene.name, 1)
    pipe.do(Flow(handle=handle, delivery_count=1, link_credit=1))
    world.clock.advance(200)
    pipe.session.unsettled[kept].batch.extend_lease(300)
    world.clock.advance(150)
    assert len(scene.orders.receive()) == 1, "somebody else has the other one"
    pipe.dispose(Accepted(), 0, 1)
    told = pipe.outcomes(Role.SENDER)
    assert told == {kept: Accepted(), 1 - kept: Modified(delivery_failed=True)}
    assert scene.counts == (0, 1)


@in_memory
def test_an_outcome_that_came_too_late_for_one_lane_of_a_claim_is_applied_to_the_other(
    world: Any,
) -> None:
    scene = Scene(world, settings={"lanes": 2})
    scene.orders.send([row(n) for n in range(4)])
    pipe = Pipeline(scene.resource.connect())
    pipe.receiver(scene.name, 4)
    world.clock.advance(310)
    taken = world.open(scene.orders, "other").receive(2)
    lost = {one["n"] for one in taken.messages()}
    transfers = [frame for frame in pipe.frames if isinstance(frame, Transfer)]
    sent = {one.delivery_id: one.payload[-1].value["n"] for one in transfers}
    pipe.dispose(Accepted(), 0, 3)
    told = pipe.outcomes(Role.SENDER)
    failed = {number for number, state in told.items() if state == Modified(delivery_failed=True)}
    assert {sent[number] for number in failed} == lost and len(told) == 4
    assert scene.counts == (0, 2)


@in_memory
def test_the_resource_keeps_leases_alive(world: Any) -> None:
    scene = Scene(world, settings={"lease_seconds": 60})
    scene.orders.send([row(1), row(2)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    receiver.flow(1)
    receiver.flow(1, txn_id)
    for _ in range(5):
        world.clock.advance(40)
        scene.controller.tick()
        assert len(scene.orders.receive()) == 0
    assert scene.counts == (0, 2)


@in_memory
@pytest.mark.parametrize("lost", [0, 1])
def test_the_leases_of_many_claims_are_extended_together(
    world: Any, lost: int, monkeypatch: Any
) -> None:
    """One append for each of thousands would take longer than the leases last."""
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(20)])
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.receiver(scene.name)
    for known in range(20):
        pipe.do(Flow(handle=handle, delivery_count=known, link_credit=1))
    deliveries = list(pipe.session.unsettled.values())
    assert len({one.batch for one in deliveries}) == 20
    if lost:
        world.clock.advance(290)
        for one in deliveries[lost:]:
            one.batch.extend_lease(300)
        world.clock.advance(20)
        assert len(world.open(scene.orders, "other").receive(20)) == lost
    world.clock.advance(200)
    before = world.store.journal.version()
    pipe.session.connection.tick()
    assert world.store.journal.version() - before == 1
    world.clock.advance(200)
    before = world.store.journal.version()
    pipe.session.connection.tick()
    assert world.store.journal.version() - before == 1, "what is lost is not asked for again"
    monkeypatch.setattr("txnqueue.protocols.amqp.session.CLAIMS_MAX", 8)
    world.clock.advance(200)
    before = world.store.journal.version()
    pipe.session.connection.tick()
    assert world.store.journal.version() - before == 3
    assert len(world.open(scene.orders, "third").receive(20)) == lost
    pipe.dispose(Accepted(), lost, 19)
    assert scene.counts == (0, lost)


@in_memory
def test_of_a_claim_on_several_lanes_the_leases_that_are_not_lost_are_extended(world: Any) -> None:
    """The resource was busy for longer than a lease, and somebody else needed one message."""
    scene = Scene(world, settings={"lanes": 2})
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect())
    pipe.receiver(scene.name, 2)
    assert len({one.batch for one in pipe.session.unsettled.values()}) == 1
    world.clock.advance(310)
    assert len(world.open(scene.orders, "other").receive(1, lease_seconds=10_000)) == 1
    pipe.session.connection.tick()
    before = world.store.journal.version()
    pipe.session.connection.tick()
    assert world.store.journal.version() == before, "what is lost is not asked for again"
    for _ in range(4):
        world.clock.advance(160)
        pipe.session.connection.tick()
    assert len(world.open(scene.orders, "third").receive(2)) == 0, "the other lease is extended"


@in_memory
def test_an_outcome_of_a_detached_link_that_cannot_be_applied_ends_the_session(world: Any) -> None:
    """There is no link to end, and the controller must not take the message for settled."""
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    handle = pipe.receiver(scene.name, 1)
    pipe.do(Detach(handle=handle, closed=False))
    with away(world.store.journal), pytest.raises(AmqpError, match="the store is away"):
        pipe.dispose(Accepted(), 0, settled=True)
    pipe.session.end()
    assert scene.counts == (1, 0)


@in_memory
def test_an_outcome_of_a_detached_link_whose_queue_is_dropped_ends_nothing(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    pipe.do(Detach(handle=pipe.receiver(scene.name, 1), closed=False))
    scene.orders.drop()
    pipe.dispose(Accepted(), 0, settled=True)
    assert pipe.receiver(world.queue("letters").name) in pipe.session.links


@in_memory
@pytest.mark.parametrize("how", ["suspended", "in a transaction"])
def test_the_drop_of_a_queue_ends_no_lease_of_messages_of_others(world: Any, how: str) -> None:
    scene = Scene(world)
    other = world.queue("letters")
    for queue in (scene.orders, other):
        queue.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    pipe.receiver(scene.name, 1)
    handle = pipe.receiver(other.name, 1)
    if how == "suspended":
        pipe.do(Detach(handle=handle, closed=False))
    else:
        pipe.dispose(TransactionalState(pipe.declare(), Accepted()), 1, settled=True)
    other.drop()
    for _ in range(4):
        world.clock.advance(160)
        pipe.session.connection.tick()
    assert len(world.open(scene.orders, "other").receive(1)) == 0
    pipe.dispose(Accepted(), 0)
    assert pipe.outcomes(Role.SENDER)[0] == Accepted()


@in_memory
@pytest.mark.parametrize("how", ["settled", "unsettled", "sent settled", "acquired outside"])
def test_the_resource_keeps_leases_of_a_transaction_alive_until_its_discharge(
    world: Any, how: str
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    line = Pipeline(scene.resource.connect())
    txn_id = line.declare()
    mode = SETTLED if how == "sent settled" else SenderSettleMode.MIXED
    handle = line.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=mode)
    properties = {} if how == "acquired outside" else {"txn-id": txn_id}
    line.do(Flow(handle=handle, link_credit=1, properties=properties))
    if how != "sent settled":
        line.dispose(TransactionalState(txn_id, Accepted()), 0, settled=how != "unsettled")
    for _ in range(8):
        world.clock.advance(100)
        line.session.connection.tick()
    assert len(world.open(scene.orders, "other").receive(1)) == 0
    assert line.discharge(txn_id) == "accepted"
    assert scene.counts == (0, 0)


@in_memory
def test_links_are_refused_with_a_reason(world: Any) -> None:
    scene = Scene(world)
    session = scene.resource.connect().begin()

    def refused(**what: Any) -> str | None:
        answer, detach = session.handle(Attach(**{"name": "x", "handle": 3, **what}))
        assert isinstance(detach, Detach) and answer.source is None and answer.target is None
        return condition(detach.error)

    assert refused(role=Role.RECEIVER, source=Source("nothing")) == "amqp:not-found"
    assert refused(role=Role.RECEIVER) == "amqp:not-found"
    session.handle(Attach(name="r", handle=3, role=Role.RECEIVER, source=Source(scene.name)))
    assert refused(role=Role.RECEIVER, source=Source(scene.name)) == "amqp:not-allowed"
    assert refused(role=Role.RECEIVER, source=Source("nothing"), name="y") == "amqp:not-allowed"
    target = scene.sender().answer.target
    session.handle(Attach(name="r", handle=4, role=Role.SENDER, target=target))
    assert session.links[4].attached, "a sender and a receiver may have the same name"
    session.handle(Attach(name="z", handle=5, role=Role.RECEIVER))
    assert session.handle(Detach(handle=5)) == [], "the answer to a refusal"
    with pytest.raises(AmqpError) as caught:
        session.handle(Flow(handle=9, link_credit=1))
    assert condition(caught.value) == "amqp:session:unattached-handle"


@in_memory
def test_wrong_frames_end_their_link(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    sender = scene.sender()
    with pytest.raises(AmqpError) as caught:
        sender.transfer(b"octets")
    assert condition(caught.value) == "amqp:decode-error"
    with pytest.raises(AmqpError) as caught:
        scene.sender().send({"wrong": 1}, settled=True)
    assert condition(caught.value) == "amqp:invalid-field"
    receiver = scene.receiver()
    with pytest.raises(AmqpError):
        receiver.dispose(receiver.flow(1), Modified(undeliverable_here=True))
    assert condition(receiver.error) == "amqp:not-implemented"
    assert scene.waiting() == [1]


@in_memory
def test_a_controller_sends_as_much_as_it_has_credit_for(world: Any) -> None:
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    for n in range(1_500):
        sender.send(row(n), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.orders.depth() == 1_500
    session = scene.resource.connect().begin()
    target = sender.answer.target
    session.handle(Attach(name="s", handle=0, role=Role.SENDER, target=target))
    session.links[0]._credit = 0  # type: ignore[attr-defined]
    (detach,) = session.handle(Transfer(handle=0, delivery_id=1, payload=message(1)))
    assert condition(detach.error) == "amqp:link:transfer-limit-exceeded"


@in_memory
def test_many_messages_of_a_transaction_are_staged_on_the_way(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("txnqueue.protocols.amqp.transactions.POSTINGS_HELD_MAX", 2)
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    for n in range(5):
        sender.send(row(n), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [0, 1, 2, 3, 4]


@in_memory
def test_messages_with_header_names_of_their_own_are_staged_in_small_parts(
    world: Any, monkeypatch: Any
) -> None:
    """Every name is a column of all messages that are staged together."""
    monkeypatch.setattr("txnqueue.protocols.amqp.transactions.HEADER_WORK_MAX", 1_000)
    staged: list[tuple[int, int]] = []
    send = Queue.send

    def noting(queue: Any, rows: Any, **how: Any) -> Any:
        staged.append((len(rows), len(how["header_columns"])))
        return send(queue, rows, **how)

    monkeypatch.setattr(Queue, "send", noting)
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    handle, txn_id = pipe.sender(scene.name), pipe.declare()
    own = {n: {f"{n}-{number}": "x" for number in range(10)} for n in range(7)}
    for n, headers in own.items():
        pipe.transfer(handle, (ApplicationProperties({**headers, "all": "y"}), *message(n)), txn_id)
    many = {str(number): "x" for number in range(5_000)}
    pipe.transfer(handle, (ApplicationProperties(many), *message(7)), txn_id)
    assert pipe.discharge(txn_id) == "accepted"
    assert staged == [(2, 20)] * 3 + [(1, 0)] * 2
    found = scene.orders.peek_messages(10)
    assert sorted(one["n"] for one in found) == list(range(8))
    assert {one["n"]: dict(one["_message"]["headers"]) for one in found} == {
        **{n: {**headers, "all": "y"} for n, headers in own.items()},
        7: many,
    }


@in_memory
@pytest.mark.rule("S1-27")
@pytest.mark.parametrize("closed", [True, False])
def test_of_a_delivery_whose_link_has_ended_half_way_nothing_is_kept(
    world: Any, closed: bool
) -> None:
    """Otherwise a controller could attach and detach links until the memory is full."""
    pipe = Pipeline(Scene(world).resource.connect())
    handle, txn_id = pipe.sender(None), pipe.declare()
    pipe.transfer(handle, b"x" * 1_000, txn_id, more=True)
    pipe.do(Detach(handle=handle, closed=closed))
    (transaction,) = pipe.session.connection.transactions()
    assert [len(one.parts) for one in transaction.partial] == [0]
    with pytest.raises(KeyError):  # no outcome: the control link ends
        pipe.discharge(txn_id)


@in_memory
@pytest.mark.rule("S1-26")
def test_the_messages_that_come_at_the_same_time_have_a_limit_together(world: Any) -> None:
    scene = Scene(world, limits=Limits(partial_bytes=1_000, message_bytes=2_000))
    pipe = Pipeline(scene.resource.connect())
    first, second, txn_id = pipe.sender(None), pipe.sender(None), pipe.declare()
    alone = pipe.transfer(first, b"x" * 1_500, more=True)
    pipe.transfer(second, b"x", txn_id, more=True)
    assert condition(pipe.frames[-1].error) == "amqp:resource-limit-exceeded"
    assert pipe.discharge(txn_id) == "amqp:transaction:rollback"
    pipe.do(Transfer(handle=first, delivery_id=alone, aborted=True))
    third = pipe.sender(None)
    for _ in range(2):
        number = pipe.transfer(third, b"x" * 900, more=True)
        pipe.do(Transfer(handle=third, delivery_id=number, aborted=True))
    assert {first, third} <= set(pipe.session.links)


def nearly_full(scene: Any, monkeypatch: Any) -> tuple[Pipeline, int, Any, Any]:
    """Begin two transactions, and send in the first one nearly as much as memory has room for."""
    monkeypatch.setattr("txnqueue.protocols.amqp.transactions.POSTED_OCTETS_MAX", 5_000)
    pipe = Pipeline(scene.resource.connect())
    handle, first, second = pipe.sender(scene.name), pipe.declare(), pipe.declare()
    for n in range(7):
        pipe.transfer(handle, message(n), first, settled=True)
    return pipe, handle, first, second


@in_memory
@pytest.mark.parametrize("fails", [False, True])
def test_the_transactions_of_a_connection_share_the_memory_for_their_messages(
    world: Any, monkeypatch: Any, fails: bool
) -> None:
    """Short messages count with what they take; the transaction that holds most is staged."""
    scene = Scene(world)
    pipe, handle, first, second = nearly_full(scene, monkeypatch)

    def failing(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(world.store.payload, "stage", failing)
        for n in range(10, 15):
            pipe.transfer(handle, message(n), second, settled=True)
    live = {one.txn_id: one for one in pipe.session.connection.transactions()}
    assert live[first].posted_octets == 0 and live[second].posted_octets > 0
    assert pipe.discharge(first) == ("amqp:transaction:rollback" if fails else "accepted")
    assert pipe.discharge(second) == "accepted" and handle in pipe.session.links
    assert scene.waiting() == [*([] if fails else range(7)), *range(10, 15)]


@in_memory
def test_an_interrupt_while_another_transaction_is_staged_posts_nothing_twice(
    world: Any, monkeypatch: Any
) -> None:
    scene = Scene(world)
    pipe, handle, first, second = nearly_full(scene, monkeypatch)

    def interrupted(*given: Any) -> None:
        stage(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("txnqueue.protocols.amqp.transactions.stage", interrupted)
        for n in range(10, 15):
            pipe.transfer(handle, message(n), second, settled=True)
    assert pipe.discharge(first) == "amqp:transaction:rollback"
    assert not set(scene.waiting()) & set(range(7))


@in_memory
def test_discharges_in_doubt_count_as_transactions(world: Any) -> None:
    """While the store is away a controller could declare and discharge without end."""
    scene = Scene(world, limits=Limits(transactions=3))
    scene.orders.send([row(n) for n in range(4)])
    pipe = Pipeline(scene.resource.connect())
    pipe.receiver(scene.name, 4)

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("away")

    for nth in range(3):
        txn_id = pipe.declare()
        pipe.dispose(TransactionalState(txn_id, Accepted()), nth)
        journal = world.store.journal
        append, journal.append = journal.append, away
        pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
        journal.append = append
    with pytest.raises(AttributeError):
        pipe.declare()
    refused: Any = list(pipe.outcomes().values())[-1]
    assert condition(refused.error) == "amqp:resource-limit-exceeded"
    pipe.session.connection.tick()
    pipe.frames += pipe.session.frames()
    assert pipe.discharge(pipe.declare()) == "accepted"


@in_memory
def test_what_could_not_be_staged_on_the_way_forbids_the_commit(
    world: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("txnqueue.protocols.amqp.transactions.POSTINGS_HELD_MAX", 2)
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    sender.send(row(1), txn_id)

    def failing(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.payload, "stage", failing)
        with pytest.raises(AmqpError) as caught:
            sender.send(row(2), txn_id)
    assert condition(caught.value) == "amqp:internal-error"
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"
    assert scene.waiting() == []


@in_memory
def test_links_of_a_queue_that_is_dropped_end(world: Any) -> None:
    scene = Scene(world)
    sender, receiver = scene.sender(), scene.receiver()
    txn_id = scene.controller.declare()
    sender.send(row(1), txn_id)
    world.manager().drop_queue(scene.name)
    for act in (lambda: sender.send(row(2)), lambda: receiver.flow(1)):
        with pytest.raises(AmqpError) as caught:
            act()
        assert condition(caught.value) == "amqp:resource-deleted"
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"


@in_memory
def test_a_resource_without_several_transactions_is_still_one(world: Any) -> None:
    scene = Scene(world, capabilities=(TxnCapability.LOCAL_TRANSACTIONS,))
    txn_id = scene.controller.declare()
    scene.sender().send(row(1), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [1]


@in_memory
@pytest.mark.rule("S1-41", "S1-38")
def test_what_was_acquired_and_never_sent_is_not_consumed_by_the_commit(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    sender, receiver = scene.sender(), scene.receiver()
    txn_id = scene.controller.declare()
    sender.send(row(3), txn_id)
    payload = client_of(scene.resource.manager).store.payload

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("away")

    payload.table = away
    receiver.flow(0, txn_id)
    with pytest.raises(AmqpError):
        receiver.flow(1)
    del payload.table
    scene.controller.discharge(txn_id)
    assert sorted(scene.waiting()) == [1, 2, 3]


@in_memory
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_link_whose_claims_lose_to_others_stays_and_tries_again(
    world: Any, where: str, drain: bool
) -> None:
    """Of many consumers of one lane, a few lose every conflict."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    scene.orders.send([row(1)])
    journal = world.store.journal
    append = journal.append

    def loses(*_: Any, **__: Any) -> Any:
        raise AppendConflict("another consumer was faster")

    journal.append = loses
    properties = {} if where == "outside" else {"txn-id": txn_id}
    told = pipe.do(Flow(handle=handle, link_credit=2, drain=drain, properties=properties))
    assert not [one for one in told if isinstance(one, Detach | Transfer)]
    told_credit = [one.link_credit for one in told if isinstance(one, Flow)]
    assert told_credit == ([] if where == "outside" else [2])  # nothing is drained as if none was
    journal.append = append
    pipe.session.connection.tick()
    told = pipe.session.frames()
    assert [one.payload for one in told if isinstance(one, Transfer)]
    assert [one.link_credit for one in told if isinstance(one, Flow)] == ([0] if drain else [])


@in_memory
@pytest.mark.rule("S1-34")
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["ids_of", "the first delivery", "the second delivery"])
@pytest.mark.parametrize("where", ["outside", "inside", "inside, and cannot be returned"])
def test_what_was_acquired_as_something_broke_is_not_consumed_unseen(
    world: Any, monkeypatch: Any, where: str, step: str, error: Any
) -> None:
    """The claim belonged to the transaction, and no delivery said what becomes of it."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    properties = {} if where == "outside" else {"txn-id": txn_id}
    pipe.do(Flow(handle=handle, link_credit=10, properties=properties))
    scene.orders.send([row(1), row(2)])
    making = iter(["the first delivery", "the second delivery"])

    def made(*what: Any, **more: Any) -> OutgoingDelivery:
        if next(making) == step:
            raise error
        return OutgoingDelivery(*what, **more)

    def breaks(*_: Any, **__: Any) -> None:
        raise error

    def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("the store is away")

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(sending_link, "OutgoingDelivery", made)
        if step == "ids_of":
            patch.setattr(sending_link, "ids_of", breaks)
        if where == "inside, and cannot be returned":
            patch.setattr(Batch, "release", fails)
        pipe.session.tick()
    pipe.frames += pipe.session.frames()
    doomed = where == "inside, and cannot be returned"
    assert pipe.discharge(txn_id) == ("amqp:transaction:rollback" if doomed else "accepted")
    assert scene.waiting() == [1, 2] and scene.orders.in_flight() == 0
    assert not any(isinstance(one, Transfer) and one.handle == handle for one in pipe.frames)
