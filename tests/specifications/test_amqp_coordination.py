"""AMQP 1.0 transactions: control links, declare and discharge, capabilities, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.conftest import in_memory, on_delta_when_long
from tests.silence import away, interrupted, unanswered
from tests.specifications.controllers import Pipeline, Scene, bodies, condition, message, row
from txnqueue.core.receipt import Status
from txnqueue.errors import InvalidInput, TransactionUnknown
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpError,
    AmqpValue,
    ApplicationProperties,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Header,
    Limits,
    Rejected,
    Released,
    Role,
    Source,
    TransactionalResource,
    TransactionalState,
    TransactionError,
    Transfer,
    TxnCapability,
    key_of,
    txn_id_of,
)
from txnqueue.protocols.amqp.types import transaction_id
from txnqueue.transactions import commit

LOCAL = TxnCapability.LOCAL_TRANSACTIONS
SEVERAL = TxnCapability.MULTI_TXNS_PER_SSN
DISTRIBUTED = TxnCapability.DISTRIBUTED_TRANSACTIONS
Part = tuple[Pipeline, Any]
"""A client at a resource, and the txn-id of its part of a global transaction."""
WITHOUT_REJECTED = ("amqp:accepted:list",)


def control(session: Any, body: Any, handle: int = 0, **how: Any) -> Any:
    """Send something to the coordinator as a bare performative; give what comes back."""
    payload = how.pop("payload", (AmqpValue(body),))
    return session.handle(Transfer(handle=handle, delivery_id=7, payload=payload, **how))


def end(pipe: Pipeline, how: str) -> None:
    """End what a connection has begun: its time, itself, or its control link."""
    if how == "tick":
        pipe.session.connection.tick()
    elif how == "close":
        pipe.session.connection.close()
    else:
        pipe.do(Detach(handle=pipe.control, closed=True))


def opened(scene: Scene) -> Any:
    """A session of bare performatives, with a control link of handle 0."""
    session = scene.resource.connect().begin()
    target = Coordinator((LOCAL,))
    session.handle(
        Attach(name="txn-ctl", handle=0, role=Role.SENDER, source=Source(), target=target)
    )
    return session


@in_memory
@pytest.mark.parametrize("late", [False, True])
def test_transactions_whose_commit_was_refused_do_not_count_any_more(
    world: Any, late: bool
) -> None:
    scene = Scene(world, limits=Limits(transactions=2), timeout_seconds=60)
    line = Pipeline(scene.resource.connect())
    known = []
    for _ in range(5):
        txn_id = line.declare()
        known.append(txn_id)
        if late:
            world.clock.advance(61)
            line.session.connection.tick()
        else:
            line.dispose(TransactionalState(txn_id, Accepted()), 99, settled=True)
        refused = "amqp:transaction:timeout" if late else "amqp:transaction:rollback"
        assert line.discharge(txn_id) == refused
    told = [line.discharge(txn_id) for txn_id in known]
    assert told == ["amqp:transaction:unknown-id"] * 2 + [refused] * 3


@on_delta_when_long
@pytest.mark.rule("S1-01", "S1-21")
def test_declare_and_discharge_allocate_and_complete_and_demarcate_nothing(world: Any) -> None:
    scene = Scene(world)
    sender = scene.sender()
    txn_id = scene.controller.declare()
    sender.send(row(1))  # between the two, and no work of the transaction
    sender.send(row(2), txn_id)
    assert scene.waiting() == [1]
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [1, 2]
    other = scene.controller.control_link()
    second = scene.controller.declare()
    with pytest.raises(AmqpError) as caught:
        other.discharge(second)
    assert condition(caught.value) == TransactionError.UNKNOWN_ID.value


@on_delta_when_long
@pytest.mark.rule("S1-02")
@pytest.mark.parametrize(
    "how",
    [
        {"payload": (AmqpValue({"n": 1}),)},
        {"payload": (AmqpValue(Declare()),), "state": TransactionalState(b"x")},
        {"payload": (AmqpValue(Declare()), AmqpValue(Declare()))},
        {"payload": ()},
    ],
)
def test_no_work_on_the_control_link(world: Any, how: Any) -> None:
    session = opened(Scene(world))
    (detach,) = control(session, None, **how)
    assert isinstance(detach, Detach) and condition(detach.error) == "amqp:not-allowed"


@on_delta_when_long
@pytest.mark.rule("S1-03")
def test_live_transactions_of_a_session_do_not_mix(world: Any) -> None:
    scene = Scene(world)
    one, two = scene.sender(), scene.sender()
    first, second = scene.controller.declare(), scene.controller.declare()
    one.send(row(1), first)
    one.send(row(2), second)
    two.send(row(3), first)
    scene.controller.discharge(second, fail=True)
    assert scene.waiting() == []
    scene.controller.discharge(first)
    assert scene.waiting() == [1, 3]


@on_delta_when_long
@pytest.mark.rule("S1-03", "S1-11")
@pytest.mark.parametrize("able", [True, False])
def test_other_sessions_of_the_connection_join_in_if_the_capability_allows(
    world: Any, able: bool
) -> None:
    capabilities = (LOCAL, TxnCapability.MULTI_SSNS_PER_TXN) if able else (LOCAL,)
    scene = Scene(world, capabilities=capabilities)
    txn_id = scene.controller.declare()
    elsewhere = scene.controller.session().sender(scene.name)
    if able:
        elsewhere.send(row(1), txn_id)
    else:
        with pytest.raises(AmqpError) as caught:
            elsewhere.send(row(1), txn_id)
        assert condition(caught.value) == "amqp:transaction:unknown-id"
    told = contextlib.nullcontext() if able else pytest.raises(AmqpError)
    with told:
        scene.controller.discharge(txn_id)
    assert scene.waiting() == ([1] if able else [])
    stranger = scene.connect()
    with pytest.raises(AmqpError):
        stranger.sender(scene.name).send(row(2), scene.controller.declare())


@on_delta_when_long
@pytest.mark.rule("S1-04")
@pytest.mark.parametrize("how", ["detach", "closed=False", "session", "connection"])
def test_a_closed_control_link_rolls_back_what_it_declared(world: Any, how: str) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    sender, receiver = scene.sender(), scene.receiver()
    mine, others = scene.controller.declare(), scene.connect()
    theirs = others.declare()
    others.sender(scene.name).send(row(3), theirs)
    sender.send(row(2), mine)
    assert bodies(receiver.flow(1, mine)) == [1]
    assert scene.counts == (0, 1)
    {
        "detach": scene.controller.control.detach,
        "closed=False": lambda: scene.controller.control.detach(closed=False),
        "session": scene.controller.sessions[0].session.end,
        "connection": scene.controller.close,
    }[how]()
    assert scene.waiting() == [1] and scene.counts == (1, 0)
    assert scene.manager.outcome(key_of(mine)).status is Status.ROLLED_BACK
    if how in ("detach", "closed=False"):
        with pytest.raises(AmqpError) as caught:
            sender.send(row(4), mine)
        assert condition(caught.value) == "amqp:transaction:unknown-id"
    others.discharge(theirs)
    assert scene.waiting() == [1, 3]


@on_delta_when_long
@pytest.mark.rule("S1-05")
def test_a_control_link_is_not_resumed(world: Any) -> None:
    session = opened(Scene(world))
    (answer,) = control(session, Declare())
    again = Attach(
        name="txn-ctl",
        handle=1,
        role=Role.SENDER,
        target=Coordinator(),
        unsettled={b"tag": answer.state},
    )
    (refusal, detach) = session.handle(again)  # while it is attached
    assert refusal.target is None and condition(detach.error) == "amqp:not-allowed"
    session.handle(Detach(handle=0, closed=False))
    (refusal, detach) = session.handle(again)
    assert refusal.target is None and condition(detach.error) == "amqp:not-allowed"
    session.handle(Attach(name="txn-ctl", handle=1, role=Role.SENDER, target=Coordinator()))
    (answer,) = control(session, Discharge(answer.state.txn_id), handle=1)
    assert condition(answer.state.error) == "amqp:transaction:unknown-id"


@on_delta_when_long
@pytest.mark.rule("S1-06", "S1-08")
def test_a_declare_is_one_amqp_value_section_and_the_others_are_ignored(world: Any) -> None:
    session = opened(Scene(world))
    sections = (Header(priority=9), ApplicationProperties({"a": "b"}), AmqpValue(Declare()))
    (answer,) = control(session, None, payload=sections)
    assert isinstance(answer, Disposition) and answer.settled and answer.first == 7
    assert isinstance(answer.state, Declared) and 1 <= len(answer.state.txn_id) <= 32


@on_delta_when_long
@pytest.mark.rule("S1-07")
@pytest.mark.parametrize("body", [Declare(), Discharge(b"x"), Discharge(b"x", fail=True)])
def test_declare_and_discharge_must_not_be_settled(world: Any, body: Any) -> None:
    session = opened(Scene(world))
    (detach,) = control(session, body, settled=True)
    assert isinstance(detach, Detach) and condition(detach.error) == "amqp:not-allowed"
    assert control(session, body) == [], "what was under way meanwhile is ignored"


@on_delta_when_long
@pytest.mark.rule("S1-08", "S1-44")
def test_the_resource_assigns_the_txn_id(world: Any) -> None:
    scene = Scene(world)
    assert {f.name for f in Declare.__dataclass_fields__.values()} == {"global_id"}
    drawn = {scene.controller.declare() for _ in range(5)}
    assert len(drawn) == 5
    for txn_id in drawn:
        scene.controller.discharge(txn_id)  # each is known by the id that was told
    with pytest.raises(TypeError):
        Declared()  # type: ignore[call-arg]


@on_delta_when_long
@pytest.mark.rule("S1-09", "S1-13")
@pytest.mark.parametrize("outcomes", [None, ("amqp:rejected:list",), WITHOUT_REJECTED, ()])
def test_a_declare_that_fails_is_rejected_or_ends_the_link(world: Any, outcomes: Any) -> None:
    scene = Scene(world, controller={"outcomes": outcomes})
    with pytest.raises(AmqpError) as caught:
        scene.controller.declare(global_id=b"global")
    assert condition(caught.value) == "amqp:not-implemented"
    rejects = outcomes is None or "amqp:rejected:list" in outcomes
    assert scene.controller.control.attached == rejects
    if rejects:
        assert scene.controller.declare()


@on_delta_when_long
@pytest.mark.rule("S1-10", "S1-11")
def test_the_resource_tells_what_it_can_and_the_controller_checks(world: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL, SEVERAL))
    for wanted in [(LOCAL,), (DISTRIBUTED,)]:
        session = scene.resource.connect().begin()
        answer, credit = session.handle(
            Attach(name="c", handle=0, role=Role.SENDER, target=Coordinator(wanted))
        )
        assert answer.target == Coordinator((LOCAL, SEVERAL)) and answer.role is Role.RECEIVER
        assert isinstance(credit, Flow) and credit.link_credit
    with pytest.raises(AmqpError) as caught:
        scene.connect(capabilities=(DISTRIBUTED,))
    assert condition(caught.value) == "amqp:not-implemented"
    assert scene.controller.control.capabilities == (LOCAL, SEVERAL)


@on_delta_when_long
@pytest.mark.rule("S1-11")
def test_capabilities_are_symbols(world: Any) -> None:
    assert {one.value for one in TxnCapability} == {
        "amqp:local-transactions",
        "amqp:distributed-transactions",
        "amqp:promotable-transactions",
        "amqp:multi-txns-per-ssn",
        "amqp:multi-ssns-per-txn",
    }
    assert Scene(world, capabilities=("amqp:local-transactions",)).resource.capabilities == (LOCAL,)
    for unknown in ("amqp:promotable-transactions", "amqp:nested-transactions"):
        with pytest.raises(InvalidInput):
            TransactionalResource(world.manager(), capabilities=(unknown,))


@on_delta_when_long
@pytest.mark.rule("S1-12")
def test_several_transactions_on_a_session_need_a_capability(world: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL,))
    first = scene.controller.declare()
    with pytest.raises(AmqpError) as caught:
        scene.controller.declare()
    assert condition(caught.value) == "amqp:resource-limit-exceeded"
    elsewhere = scene.controller.control_link(scene.controller.session())
    assert elsewhere.declare(), "another session is not busy"
    scene.controller.discharge(first)
    assert scene.controller.declare() != first
    able = Scene(world, capabilities=(LOCAL, SEVERAL), settings={"exist_ok": True}).controller
    assert len({able.declare() for _ in range(3)}) == 3


@on_delta_when_long
@pytest.mark.rule("S1-13", "S1-19")
def test_a_global_id_leaves_the_decision_to_the_global_transaction(world: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL, SEVERAL, DISTRIBUTED))
    scene.orders.send([row(1)])
    sender, receiver = scene.sender(), scene.receiver()
    txn_id = scene.controller.declare(global_id=b"global-1")
    sender.send(row(2), txn_id)
    receiver.dispose(receiver.flow(1, txn_id), Accepted(), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.counts == (0, 1), "nothing is decided by the discharge"
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:unknown-id"
    elsewhere = world.manager("coordinator")
    assert "global-1" in elsewhere.recover().prepared
    elsewhere.commit("global-1")
    assert scene.waiting() == [2] and scene.counts == (1, 0)
    with pytest.raises(AmqpError):
        scene.controller.declare(global_id=b"global-1")


@in_memory
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("room", [1, 0])
def test_what_a_global_transaction_acquired_without_an_outcome_goes_back(
    world: Any, commit: bool, room: int
) -> None:
    """It is decided elsewhere, so the controller cannot hold it any longer than the discharge."""
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED))
    scene.orders.send([row(1), row(2), row(3)])
    pipe = Pipeline(scene.resource.connect(payload_max=2))
    declared = pipe.transfer(pipe.control, (AmqpValue(Declare("global-3")),))
    txn_id, handle = pipe.outcomes()[declared].txn_id, pipe.receiver(scene.name)
    window = Flow(handle=handle, link_credit=3, incoming_window=5, properties={"txn-id": txn_id})
    pipe.do(window)  # a message is in two parts: half of the third one is sent
    pipe.do(Flow(handle=pipe.receiver(scene.name), incoming_window=room))
    pipe.dispose(TransactionalState(txn_id, Accepted()), 0)
    assert pipe.discharge(txn_id) == "accepted"
    told = {0: Accepted(), 1: Released()}
    assert pipe.outcomes(Role.SENDER) == (told if room else told | {2: Released()})
    aborted = [one.delivery_id for one in pipe.frames if isinstance(one, Transfer) and one.aborted]
    assert aborted == [2] * room and not pipe.session.unsettled
    elsewhere = world.manager("coordinator")
    (elsewhere.commit if commit else elsewhere.rollback)("global-3")
    assert scene.waiting() == ([2, 3] if commit else [1, 2, 3])
    pipe.dispose(Accepted(), 0, 2, settled=True)
    assert handle in pipe.session.links and scene.orders.in_flight() == 0


@in_memory
@pytest.mark.rule("S1-19")
def test_one_declare_at_a_time_works_on_a_global_transaction(world: Any) -> None:
    """One of two was discharged as failed, and the other one committed."""
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED, SEVERAL))
    one, two = (Pipeline(scene.resource.connect()) for _ in range(2))
    txn_id = one._ask(Declare(b"glob")).txn_id
    assert condition(two._ask(Declare(b"glob")).error) == "amqp:transaction:rollback"
    one.transfer(one.sender(scene.name), message(1), txn_id)
    assert one.discharge(txn_id, fail=True) == "accepted"
    assert condition(two._ask(Declare(b"glob")).error) == "amqp:transaction:rollback"
    assert scene.counts == (0, 0)


def in_two_parts(world: Any, key: bytes) -> tuple[Scene, Part, Part]:
    """Begin a global transaction at two resources, and do work at the first one."""
    one = Scene(world, capabilities=(LOCAL, DISTRIBUTED))
    other = TransactionalResource(world.manager("other"), capabilities=(LOCAL, DISTRIBUTED))
    here, there = Pipeline(one.resource.connect()), Pipeline(other.connect())
    mine, theirs = (each._ask(Declare(key)).txn_id for each in (here, there))
    here.transfer(here.sender(one.name), message(1), mine)
    return one, (here, mine), (there, theirs)


@in_memory
@pytest.mark.rule("S1-19")
def test_what_failed_at_another_resource_is_not_prepared(world: Any) -> None:
    one, (here, mine), (there, theirs) = in_two_parts(world, b"glob-2")
    assert there.discharge(theirs, fail=True) == "accepted"
    assert here.discharge(mine) == "amqp:transaction:rollback"
    assert one.manager.outcome("glob-2").status is Status.ROLLED_BACK
    assert one.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-19")
def test_what_fails_at_another_resource_at_the_same_moment_is_not_prepared(world: Any) -> None:
    """Between the look at the other parts and the append, a part was discharged as failed."""
    one, (here, mine), (there, theirs) = in_two_parts(world, b"glob-7")
    append = world.store.journal.append

    def beaten(*args: Any, **how: Any) -> Any:
        world.store.journal.append = append
        assert there.discharge(theirs, fail=True) == "accepted"
        return append(*args, **how)

    world.store.journal.append = beaten
    assert here.discharge(mine) == "amqp:transaction:rollback"
    assert one.manager.outcome("glob-7").status is Status.ROLLED_BACK
    assert world.manager("coordinator").recover().prepared == ()


@in_memory
@pytest.mark.rule("S1-19", "S1-41")
@pytest.mark.parametrize("then", ["tick", "close", "detach"])
@pytest.mark.parametrize("fails", ["by its discharge", "by its time"])
def test_a_part_that_failed_while_its_store_was_away_is_rolled_back_on_record_first(
    world: Any, fails: str, then: str
) -> None:
    """Otherwise another part could be prepared after this one was told to be rolled back."""
    scene = Scene(world, capabilities=(LOCAL, SEVERAL, DISTRIBUTED), timeout_seconds=60)
    pipe = Pipeline(scene.resource.connect())
    txn_ids = [pipe._ask(Declare(name)).txn_id for name in ("glob-8", "glob-9")]
    connection = pipe.session.connection
    with away(world.store.journal):
        if fails == "by its time":
            world.clock.advance(61)
            connection.tick()
        asked = [
            pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, True)),)) for txn_id in txn_ids
        ]
        end(pipe, then)
        assert not set(asked) & pipe.outcomes().keys()
    (scene.resource.connect() if then == "close" else connection).tick()
    pipe.frames += pipe.session.frames()
    told = [pipe.outcomes().get(number) for number in asked]
    assert told == [Accepted() if then == "tick" else None] * 2
    for name in ("glob-8", "glob-9"):
        assert scene.manager.outcome(name).status is Status.ROLLED_BACK


@in_memory
@pytest.mark.rule("S1-19")
@pytest.mark.parametrize("then", ["tick", "close", "detach"])
def test_only_its_coordinator_ends_what_a_discharge_in_doubt_has_prepared(
    world: Any, then: str
) -> None:
    """The coordinator saw it prepared, and then it was rolled back."""
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED))
    pipe = Pipeline(scene.resource.connect())
    txn_id = pipe._ask(Declare("global-5")).txn_id
    pipe.transfer(pipe.sender(scene.name), message(1), txn_id)
    with unanswered(world.store.journal, lands=True):
        asked = pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
    coordinator = world.manager("coordinator")
    assert coordinator.recover().prepared == ("global-5",) and asked not in pipe.outcomes()
    end(pipe, then)
    pipe.frames += pipe.session.frames()
    assert pipe.outcomes().get(asked) == (Accepted() if then == "tick" else None)
    coordinator.commit("global-5")
    assert scene.waiting() == [1]


@in_memory
@pytest.mark.rule("S1-19", "S1-20")
@pytest.mark.parametrize("then", ["tick", "close", "detach", "fail"])
def test_only_its_coordinator_ends_what_an_interrupted_discharge_has_prepared(
    world: Any, then: str
) -> None:
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED), timeout_seconds=60)
    pipe = Pipeline(scene.resource.connect())
    txn_id = pipe._ask(Declare("global-6")).txn_id
    pipe.transfer(pipe.sender(scene.name), message(1), txn_id)
    with interrupted(world.store.journal, lands=True):
        pipe.discharge(txn_id)
    world.clock.advance(61)
    if then == "fail":
        assert pipe.discharge(txn_id, fail=True) == "amqp:not-allowed"
    else:
        end(pipe, then)
    if then in ("fail", "tick"):
        assert pipe.discharge(txn_id) == "accepted"
    world.manager("coordinator").commit("global-6")
    assert scene.waiting() == [1]


@in_memory
@pytest.mark.rule("S1-41")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_rollback_that_failed_is_repeated_with_the_next_tick(
    world: Any, ordered: bool, closed: bool
) -> None:
    """The message, or its whole lane, was in flight until the lease was over."""
    scene = Scene(world, settings={"ordered": ordered})
    scene.orders.send([row(1), row(2)])
    failing = Pipeline(scene.resource.connect())
    txn_id, handle = failing.declare(), failing.receiver(scene.name)
    failing.do(Flow(handle=handle, link_credit=1, properties={"txn-id": txn_id}))
    with unanswered(world.store.journal, lands=False):
        assert failing.discharge(txn_id, fail=True) == "accepted"
    assert scene.counts == (1, 1)
    connection = failing.session.connection
    if closed:
        connection.close()
        connection = scene.resource.connect()
    connection.tick()
    assert scene.manager.outcome(key_of(txn_id)).status is Status.ROLLED_BACK
    assert scene.counts == (2, 0) or not closed
    connection.close()
    assert scene.waiting() == [1, 2]


@on_delta_when_long
@pytest.mark.rule("S1-19")
def test_a_discharge_that_fails_makes_the_global_transaction_rollback_only(world: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL, SEVERAL, DISTRIBUTED))
    txn_id = scene.controller.declare(global_id="global-2")
    scene.sender().send(row(1), txn_id)
    scene.controller.discharge(txn_id, fail=True)
    assert scene.manager.outcome("global-2").status is Status.ROLLED_BACK
    with pytest.raises(AmqpError) as caught:
        scene.controller.declare(global_id="global-2")
    assert condition(caught.value) == "amqp:transaction:rollback"
    local = scene.controller.declare()
    scene.sender().send(row(2), local)
    scene.controller.discharge(local)
    assert scene.waiting() == [2], "without a global-id the discharge decides"


@on_delta_when_long
@pytest.mark.rule("S1-13")
@pytest.mark.parametrize("global_id", [b"\xff\xff", "x" * 300, "", 7])
def test_a_global_id_that_cannot_be_an_id_is_refused(world: Any, global_id: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED))
    with pytest.raises(AmqpError) as caught:
        scene.controller.declare(global_id)
    assert condition(caught.value) == "amqp:invalid-field"
    assert scene.controller.declare()


@on_delta_when_long
@pytest.mark.rule("S1-14")
def test_a_txn_id_is_binary_of_1_to_32_octets(world: Any) -> None:
    assert transaction_id(b"x") == b"x" and len(transaction_id(b"x" * 32)) == 32
    for wrong in (b"", b"x" * 33, "text", 0, None):
        with pytest.raises(InvalidInput):
            transaction_id(wrong)
    scene = Scene(world)
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(b"x" * 33)
    assert condition(caught.value) == "amqp:invalid-field"
    with pytest.raises(AmqpError) as caught:
        scene.sender().send(row(1), b"x" * 33)
    assert condition(caught.value) == "amqp:invalid-field"


@on_delta_when_long
@pytest.mark.rule("S1-14")
def test_a_txn_id_names_the_transaction_in_the_store(world: Any) -> None:
    scene = Scene(world)
    txn_id = scene.controller.declare()
    assert txn_id_of(key_of(txn_id)) == txn_id
    scene.sender().send(row(1), txn_id)
    scene.controller.discharge(txn_id)
    assert world.manager("auditor").outcome(key_of(txn_id)).status is Status.COMMITTED
    for wrong in (b"x", b"\x10" + b"x" * 16):
        with pytest.raises(InvalidInput):
            key_of(wrong)
    with pytest.raises(InvalidInput):
        txn_id_of("mine")


@on_delta_when_long
@pytest.mark.rule("S1-15")
@pytest.mark.parametrize(("fail", "found"), [(None, [1]), (False, [1]), (True, [])])
def test_the_fail_flag_decides_and_success_is_accepted(
    world: Any, fail: bool | None, found: list[int]
) -> None:
    scene = Scene(world)
    session = opened(scene)
    (answer,) = control(session, Declare())
    txn_id = answer.state.txn_id
    session.handle(
        Attach(name="s", handle=1, role=Role.SENDER, target=scene.sender().answer.target)
    )
    state = TransactionalState(txn_id)
    session.handle(Transfer(handle=1, delivery_id=8, state=state, payload=message(1)))
    (answer,) = control(session, Discharge(txn_id, fail))
    assert (answer.state, answer.settled) == (Accepted(), True)
    assert scene.waiting() == found
    with pytest.raises(TypeError):
        Discharge(fail=True)  # type: ignore[call-arg]


@in_memory
@pytest.mark.rule("S1-16", "S1-30")
@pytest.mark.parametrize("outcomes", [None, WITHOUT_REJECTED])
def test_a_discharge_that_cannot_complete_is_refused(world: Any, outcomes: Any) -> None:
    scene = Scene(world, controller={"outcomes": outcomes})
    sender = scene.sender()
    txn_id = scene.controller.declare()
    assert sender.send(row(1), txn_id).state == TransactionalState(txn_id, Accepted())
    stage = world.store.payload.stage
    world.store.payload.stage = failing
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    world.store.payload.stage = stage
    assert condition(caught.value) == "amqp:transaction:rollback"
    assert scene.controller.control.attached == (outcomes is None)
    assert scene.waiting() == []


def lose_replies(journal: Any, *, landed: bool) -> tuple[Any, Any]:
    """Let appends lose their replies, and nobody read what became of them.

    Returns:
        How the journal appends and reads otherwise.
    """
    append, read = journal.append, journal.read

    def lost(units: Any, metadata: Any) -> Any:
        if landed:
            append(units, metadata)
        journal.read = failing
        raise OSError("no reply")

    journal.append = lost
    return append, read


def failing(*_: Any, **__: Any) -> None:
    raise OSError("no space left")


@on_delta_when_long
@pytest.mark.rule("S1-16", "S1-18")
def test_a_discharge_that_was_refused_has_rolled_back(world: Any) -> None:
    scene = Scene(world)
    txn_id = scene.controller.declare()
    scene.sender().send({"n": "no number"}, txn_id, settled=True)
    for _ in range(2):
        with pytest.raises(AmqpError) as caught:
            scene.controller.discharge(txn_id)
        assert condition(caught.value) == "amqp:transaction:rollback"
    with pytest.raises(AmqpError) as caught:
        scene.sender().send(row(1), txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"
    scene.controller.discharge(txn_id, fail=True)
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id, fail=True)
    assert condition(caught.value) == "amqp:transaction:unknown-id"


@in_memory
@pytest.mark.rule("S1-17")
def test_a_discharge_as_failed_always_completes(world: Any) -> None:
    scene = Scene(world, timeout_seconds=60)
    scene.orders.send([row(1)])
    sender, receiver = scene.sender(), scene.receiver()
    plain, doomed, late, partial = (scene.controller.declare() for _ in range(4))
    sender.send({"wrong": 1}, doomed, settled=True)
    receiver.flow(1, plain)
    scene.controller.discharge(plain, fail=True)
    scene.controller.discharge(doomed, fail=True)
    sender.transfer(message(1)[:1], state=TransactionalState(partial), more=True)
    scene.controller.discharge(partial, fail=True)
    unreachable = scene.controller.declare()
    scene.receiver().flow(1, unreachable)
    append = world.store.journal.append
    world.store.journal.append = failing
    scene.controller.discharge(unreachable, fail=True)
    world.store.journal.append = append
    world.clock.advance(61)
    scene.controller.tick()
    scene.controller.discharge(late, fail=True)
    world.lease_over()
    world.manager("other").recover()
    assert scene.waiting() == [1]


@on_delta_when_long
@pytest.mark.rule("S1-18", "S1-20")
def test_a_txn_id_that_is_unknown_or_finished(world: Any) -> None:
    scene = Scene(world)
    finished = scene.controller.declare()
    scene.controller.discharge(finished)
    for txn_id in (finished, b"never declared"):
        for fail in (False, True):
            with pytest.raises(AmqpError) as caught:
                scene.controller.discharge(txn_id, fail=fail)
            assert condition(caught.value) == "amqp:transaction:unknown-id"


@on_delta_when_long
@pytest.mark.rule("S1-20")
def test_a_transaction_that_took_too_long_is_rolled_back(world: Any) -> None:
    scene = Scene(world, timeout_seconds=10)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    receiver.flow(1, txn_id)
    world.clock.advance(9)
    scene.controller.tick()
    assert scene.counts == (0, 1)
    world.clock.advance(1)
    scene.controller.tick()
    assert scene.manager.outcome(key_of(txn_id)).status is Status.ROLLED_BACK
    assert [e.value for e in TransactionError] == [
        "amqp:transaction:unknown-id",
        "amqp:transaction:rollback",
        "amqp:transaction:timeout",
    ]
    for act in (
        lambda: scene.sender().send(row(2), txn_id),
        lambda: scene.controller.discharge(txn_id),
    ):
        with pytest.raises(AmqpError) as caught:
            act()
        assert condition(caught.value) == "amqp:transaction:timeout"


@on_delta_when_long
@pytest.mark.rule("S1-20")
def test_a_transaction_whose_lease_was_taken_over_took_too_long(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    txn_id = scene.controller.declare()
    receiver.dispose(receiver.flow(1, txn_id), Accepted(), txn_id)
    world.lease_over()
    assert len(scene.orders.receive()) == 1, "somebody else has it now"
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:timeout"
    assert scene.counts == (0, 1)


@in_memory
@pytest.mark.rule("S1-16")
@pytest.mark.parametrize("landed", [True, False])
def test_a_discharge_in_doubt_is_answered_once_it_is_known(world: Any, landed: bool) -> None:
    scene = Scene(world)
    txn_id = scene.controller.declare()
    scene.sender().send(row(1), txn_id)
    journal = world.store.journal
    append, read = lose_replies(journal, landed=landed)
    with pytest.raises(TransactionUnknown):
        scene.controller.discharge(txn_id)
    scene.controller.tick()  # still nobody knows
    journal.append, journal.read = append, read
    delivery: Any = list(scene.controller.control.deliveries.values())[-1]
    early = delivery.state
    assert early is None
    scene.controller.tick()
    assert isinstance(delivery.state, Accepted if landed else Rejected)
    assert scene.waiting() == ([1] if landed else [])


@in_memory
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("drain", [True, False])
def test_a_link_waits_for_a_discharge_in_doubt(world: Any, landed: bool, drain: bool) -> None:
    """Its credit remains, and is for no transaction once the outcome is known."""
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    pipe.do(Flow(handle=handle, link_credit=2, properties={"txn-id": txn_id}))
    journal = world.store.journal
    append, read = lose_replies(journal, landed=landed)
    asked = pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
    journal.read = read
    pipe.do(Flow(handle=handle, delivery_count=1, link_credit=2, drain=drain))
    journal.append = append
    assert handle in pipe.session.links and asked not in pipe.outcomes()
    pipe.session.tick()
    pipe.frames += pipe.session.frames()
    assert isinstance(pipe.outcomes()[asked], Accepted if landed else Rejected)
    link: Any = pipe.session.links[handle]
    assert link.credit == (0 if drain else 2 if landed else 1)
    sent = [one.state for one in pipe.frames if isinstance(one, Transfer) and one.handle == handle]
    assert sent == [TransactionalState(txn_id)] + [None] * (not landed)
    told = [one for one in pipe.frames if isinstance(one, Flow) and one.handle == handle][-1]
    assert told.properties == {"txn-id": None}


@in_memory
@pytest.mark.rule("S1-17")
def test_a_discharge_in_doubt_that_is_refused_can_be_discharged_as_failed(world: Any) -> None:
    """The txn-id is remembered as after every other refusal."""
    scene = Scene(world)
    txn_id = scene.controller.declare()
    scene.sender().send(row(1), txn_id)
    with unanswered(world.store.journal, lands=False), pytest.raises(TransactionUnknown):
        scene.controller.discharge(txn_id)
    scene.controller.tick()
    with pytest.raises(AmqpError) as caught:
        scene.controller.discharge(txn_id)
    assert condition(caught.value) == "amqp:transaction:rollback"
    scene.controller.discharge(txn_id, fail=True)
    assert scene.waiting() == []


@in_memory
@pytest.mark.rule("S1-17")
@pytest.mark.parametrize("lands", [True, False])
def test_a_discharge_as_failed_is_answered_once_it_is_known_what_an_interrupted_one_did(
    world: Any, lands: bool
) -> None:
    """It was told that all is rolled back, and then the messages were there."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    txn_id = pipe.declare()
    pipe.transfer(pipe.sender(scene.name), message(1), txn_id)
    with interrupted(world.store.journal, lands=lands):
        pipe.discharge(txn_id)
    with away(world.store.journal):
        asked = pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, True)),))
        pipe.session.tick()
        assert asked not in pipe.outcomes()
    pipe.session.tick()
    pipe.frames += pipe.session.frames()
    told = condition(getattr(pipe.outcomes()[asked], "error", None))
    assert told == ("amqp:not-allowed" if lands else None)
    assert scene.waiting() == [1] * lands


@in_memory
@pytest.mark.rule("S1-20")
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("then", ["tick", "close", "detach"])
def test_what_an_interrupted_discharge_did_is_not_undone_nor_told_wrongly(
    world: Any, lands: bool, then: str
) -> None:
    scene = Scene(world, timeout_seconds=60)
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect())
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    pipe.do(Flow(handle=handle, link_credit=1, properties={"txn-id": txn_id}))
    pipe.dispose(TransactionalState(txn_id, Accepted()), 0, settled=True)
    with interrupted(world.store.journal, lands=lands):
        pipe.discharge(txn_id)
    world.clock.advance(61)
    connection = pipe.session.connection
    with away(world.store.journal):
        end(pipe, then)
        connection.tick()
    connection.tick()
    assert scene.waiting() == ([2] if lands else [1, 2]), "at once, and not after a lease"
    if then == "tick":
        told = pipe.discharge(txn_id)
        assert told == ("accepted" if lands else "amqp:transaction:timeout")


@in_memory
@pytest.mark.rule("S1-34", "S1-35")
@pytest.mark.parametrize("landed", [True, False])
def test_what_is_in_doubt_as_its_control_link_ends_is_known_later(world: Any, landed: bool) -> None:
    """Until then its deliveries belong to nothing else, and its links acquire nothing."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    receiver, other = scene.receiver(), scene.receiver()
    (held,) = receiver.flow(1)
    txn_id = scene.controller.declare()
    receiver.dispose([held], Accepted(), txn_id)
    other.flow(0, txn_id)
    with unanswered(world.store.journal, lands=landed):
        with pytest.raises(TransactionUnknown):
            scene.controller.discharge(txn_id)
        scene.controller.control.detach()
        scene.controller.tick()
    scene.controller.tick()
    assert held.settled == landed
    scene.controller.control = scene.controller.control_link()
    if not landed:
        txn_id = scene.controller.declare()
        receiver.dispose([held], Accepted(), txn_id)
        scene.controller.discharge(txn_id)
    assert held.settled and held.state == Accepted()
    assert [one.body for one in other.flow(1)] == [row(2)]


@contextlib.contextmanager
def discharge_in_doubt(world: Any, *, landed: bool) -> Iterator[Any]:
    """In the block a discharge has had no reply, its control link is gone, and the store is away.

    Yields:
        The scene, its receiver and what that holds, another control link, and its transaction.
    """
    scene = Scene(world)
    scene.orders.send([row(1)])
    receiver = scene.receiver()
    (held,) = receiver.flow(1)
    later = scene.controller.control_link()
    first, second = scene.controller.declare(), later.declare()
    receiver.dispose([held], Accepted(), first)
    with unanswered(world.store.journal, lands=landed):
        with pytest.raises(TransactionUnknown):
            scene.controller.discharge(first)
        scene.controller.control.detach()
        yield scene, receiver, held, later, second


@in_memory
@pytest.mark.rule("S1-34", "S1-35")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_an_outcome_of_what_a_discharge_in_doubt_has_left_counts(
    world: Any, landed: bool, inside: bool
) -> None:
    """The store answers again, and the next tick has not come yet."""
    with discharge_in_doubt(world, landed=landed) as (scene, receiver, held, later, second):
        pass
    receiver.dispose([held], Accepted(), second if inside else None, settled=not inside)
    if landed and inside:
        with pytest.raises(AmqpError):
            later.discharge(second)  # the first discharge has settled it
    elif inside:
        later.discharge(second)
    assert later.attached and receiver.attached and scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-32")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_an_outcome_of_what_is_still_in_doubt_is_not_dropped_without_a_word(
    world: Any, landed: bool, inside: bool
) -> None:
    with discharge_in_doubt(world, landed=landed) as (scene, receiver, held, later, second):
        if inside:
            receiver.dispose([held], Accepted(), second)
            assert condition(later.error) == "amqp:transaction:rollback"
        else:
            with pytest.raises(AmqpError) as caught:
                receiver.dispose([held], Accepted(), settled=True)
            assert condition(caught.value) == "amqp:transaction:rollback"
            scene.controller.sessions[0].session.end()
    scene.controller.tick()
    assert scene.counts == ((0, 0) if landed else (0, 1) if inside else (1, 0))


@in_memory
def test_a_global_transaction_that_could_not_be_rolled_back_is_not_begun_anew(world: Any) -> None:
    scene = Scene(world, capabilities=(LOCAL, DISTRIBUTED))
    one, two = (Pipeline(scene.resource.connect()) for _ in range(2))
    txn_id = one._ask(Declare(b"glob-4")).txn_id
    with away(world.store.journal):
        asked = one.transfer(one.control, (AmqpValue(Discharge(txn_id, True)),))
    assert condition(two._ask(Declare(b"glob-4")).error) == "amqp:transaction:rollback"
    one.session.connection.tick()
    one.frames += one.session.frames()
    assert one.outcomes()[asked] == Accepted()
    assert scene.manager.outcome("glob-4").status is Status.ROLLED_BACK
    assert condition(two._ask(Declare(b"glob-4")).error) == "amqp:transaction:rollback"


@in_memory
def test_an_outage_costs_a_tick_one_rollback(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    txn_ids = [pipe.declare() for _ in range(4)]
    handle = pipe.sender(scene.name)
    for n, txn_id in enumerate(txn_ids):
        pipe.transfer(handle, message(n), txn_id)
    tried: list[str] = []

    def fails(tx: Any, *reason: Any, **how: Any) -> None:
        tried.append(tx.id)
        raise ConnectionError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "rollback", fails)
        for txn_id in txn_ids:
            assert pipe.discharge(txn_id, fail=True) == "accepted"
        tried.clear()
        pipe.session.connection.tick()
        assert len(tried) == 1
    pipe.session.connection.tick()
    assert not scene.resource._left_open


@in_memory
def test_wrong_messages_read_the_store_no_more_than_once_a_second(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect())
    handle, read, reads = pipe.sender(scene.name), world.store.journal.read, list[Any]()

    def counted(*args: Any, **how: Any) -> Any:
        reads.append(args)
        return read(*args, **how)

    monkeypatch.setattr(world.store.journal, "read", counted)
    wrong = (AmqpValue({"n": 1, "nothing": 2}),)
    for _ in range(20):
        number = pipe.transfer(handle, wrong)
        assert condition(pipe.outcomes()[number].error) == "amqp:invalid-field"
    assert len(reads) <= 1

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the store is away")

    world.clock.advance(2)
    monkeypatch.setattr(world.store.journal, "read", away)
    number = pipe.transfer(handle, wrong)
    assert condition(pipe.outcomes()[number].error) == "amqp:invalid-field"
    assert handle in pipe.session.links
