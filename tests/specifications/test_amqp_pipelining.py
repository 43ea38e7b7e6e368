"""AMQP 1.0: a controller that waits for no answer learns by the discharge what was not done."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import in_memory, on_delta_when_long
from tests.silence import interrupted, unanswered
from tests.specifications.controllers import Pipeline, Scene, condition, message, row
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpError,
    AmqpValue,
    Attach,
    Described,
    Detach,
    Discharge,
    Disposition,
    Error,
    Flow,
    Modified,
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
)
from txnqueue.protocols.amqp.delivery_ids import DeliveryIds

ROLLBACK = "amqp:transaction:rollback"
ONLY_ACCEPTED = Source(outcomes=("amqp:accepted:list",))
State = TransactionalState
LAST_NUMBER = 2**32 - 1


class Pipe(Pipeline):
    """A pipeline with a scene around it, and a second session of the same connection."""

    def __init__(self, world: Any, **options: Any) -> None:
        self.scene = Scene(world, **options)
        self.connection = self.scene.resource.connect()
        super().__init__(self.connection)
        self.other = Pipeline(self.connection)
        self.sent: set[int] = set()

    def ended_sender(self) -> int:
        """A link that the resource has just ended, which the controller does not know yet."""
        handle = self.sender(self.scene.name)
        self.transfer(handle, b"octets")
        return handle

    def held(self, *numbers: int) -> int:
        """A link that has got messages, whose delivery ids begin with 0."""
        self.scene.orders.send([row(n) for n in numbers])
        self.sent.update(numbers)
        return self.receiver(self.scene.name, len(numbers))


# ---------------------------------------------------------- transfers that are not carried out


def that_is_no_message(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.transfer(handle, b"octets", txn_id)
    assert handle not in pipe.session.links


def that_is_settled_and_no_message(pipe: Pipe, txn_id: bytes) -> None:
    pipe.transfer(pipe.sender(pipe.scene.name), b"octets", txn_id, settled=True)


def that_is_settled_and_no_row(pipe: Pipe, txn_id: bytes) -> None:
    pipe.transfer(pipe.sender(pipe.scene.name), (AmqpValue("text"),), txn_id, settled=True)


def without_credit(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.session.links[handle]._credit = 0
    pipe.transfer(handle, message(1), txn_id)


def without_an_id(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.do(Transfer(handle=handle, state=State(txn_id), payload=message(1)))


def to_an_ended_link(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.ended_sender()
    pipe.transfer(handle, message(1), txn_id, settled=True)


def to_a_refused_link(pipe: Pipe, txn_id: bytes) -> None:
    pipe.transfer(pipe.sender("no such queue"), message(1), txn_id)


def to_no_link(pipe: Pipe, txn_id: bytes) -> None:
    with pytest.raises(AmqpError):
        pipe.transfer(99, message(1), txn_id)


def to_a_link_that_was_detached(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.do(Detach(handle=handle))
    with pytest.raises(AmqpError):
        pipe.transfer(handle, message(1), txn_id)


def against_the_direction(pipe: Pipe, txn_id: bytes) -> None:
    pipe.transfer(pipe.receiver(pipe.scene.name), message(1), txn_id)


def to_a_control_link(pipe: Pipe, txn_id: bytes) -> None:
    pipe.other.transfer(pipe.other.control, message(1), txn_id)


def in_a_later_part_to_a_control_link(pipe: Pipe, txn_id: bytes) -> None:
    number = pipe.other.transfer(pipe.other.control, message(1)[:0], more=True)
    pipe.other.transfer(pipe.other.control, message(1), txn_id, delivery_id=number)


def in_an_ended_session(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.other.sender(pipe.scene.name)
    pipe.other.session.end()
    with pytest.raises(AmqpError):
        pipe.other.transfer(handle, message(1), txn_id)


def while_another_is_under_way(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.transfer(handle, message(1)[:0], txn_id, more=True)
    pipe.transfer(handle, message(1), txn_id)


def interrupted_by_another(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    pipe.transfer(handle, message(1)[:0], txn_id, more=True)
    pipe.transfer(handle, message(1))


def settled_by_its_last_part(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    number = pipe.transfer(handle, (), txn_id, more=True)
    pipe.do(
        Transfer(
            handle=handle,
            delivery_id=number,
            state=State(txn_id),
            settled=True,
            payload=message("no number"),  # type: ignore[arg-type]
        )
    )


def where_a_rejection_cannot_be_told(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name, source=ONLY_ACCEPTED)
    pipe.transfer(handle, message("no number"), txn_id)  # type: ignore[arg-type]
    assert handle not in pipe.session.links


def settled_before_its_rejection_can_be_heard(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    number = pipe.transfer(handle, message("no number"), txn_id)  # type: ignore[arg-type]
    pipe.do(Disposition(role=Role.SENDER, first=number, settled=True, state=State(txn_id)))


TRANSFERS = [
    that_is_no_message,
    that_is_settled_and_no_message,
    that_is_settled_and_no_row,
    without_credit,
    without_an_id,
    to_an_ended_link,
    to_a_refused_link,
    to_no_link,
    to_a_link_that_was_detached,
    against_the_direction,
    to_a_control_link,
    in_a_later_part_to_a_control_link,
    in_an_ended_session,
    while_another_is_under_way,
    interrupted_by_another,
    settled_by_its_last_part,
    where_a_rejection_cannot_be_told,
    settled_before_its_rejection_can_be_heard,
]


# ------------------------------------------------------- dispositions that are not carried out


def of_a_delivery_that_never_came(pipe: Pipe, txn_id: bytes) -> None:
    pipe.dispose(State(txn_id, Accepted()), 99)


def of_some_that_came_and_some_that_did_not(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5, 6)
    pipe.dispose(State(txn_id, Accepted()), 0, 2)


def of_a_link_that_has_ended(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    pipe.dispose(Modified(undeliverable_here=True), 0)
    pipe.dispose(State(txn_id, Accepted()), 0)


def of_a_link_that_was_closed(pipe: Pipe, txn_id: bytes) -> None:
    pipe.do(Detach(handle=pipe.held(5)))
    pipe.dispose(State(txn_id, Accepted()), 0)


def of_a_settled_delivery(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    pipe.dispose(Released(), 0, settled=True)
    pipe.dispose(State(txn_id, Accepted()), 0)


def of_a_delivery_that_came_again(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    again = pipe.receiver(pipe.scene.name, 1)
    pipe.dispose(Released(), 0, settled=True)
    pipe.connection.tick()
    assert [one.link.handle for one in pipe.session.unsettled.values()] == [again]
    pipe.dispose(State(txn_id, Accepted()), 0)
    assert list(pipe.session.unsettled) == [1]


def of_no_delivery(pipe: Pipe, txn_id: bytes) -> None:
    pipe.dispose(State(txn_id, Accepted()), 1, 0)


def of_another_session(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    pipe.other.dispose(State(txn_id, Accepted()), 0)


def with_what_is_no_outcome(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    pipe.dispose(State(txn_id, Received(0, 0)), 0)  # type: ignore[arg-type]


def with_an_outcome_that_nobody_knows(pipe: Pipe, txn_id: bytes) -> None:
    pipe.held(5)
    pipe.dispose(State(txn_id, Described("x:y", [])), 0)  # type: ignore[arg-type]


def of_what_the_controller_has_posted_elsewhere(pipe: Pipe, txn_id: bytes) -> None:
    number = pipe.transfer(pipe.sender(pipe.scene.name), message(7))
    pipe.do(Disposition(role=Role.SENDER, first=number, state=State(txn_id), settled=True))


DISPOSITIONS = [
    of_a_delivery_that_never_came,
    of_some_that_came_and_some_that_did_not,
    of_a_link_that_has_ended,
    of_a_link_that_was_closed,
    of_a_settled_delivery,
    of_a_delivery_that_came_again,
    of_no_delivery,
    of_another_session,
    with_what_is_no_outcome,
    with_an_outcome_that_nobody_knows,
    of_what_the_controller_has_posted_elsewhere,
]


# ---------------------------------------------------- flows and attaches, in the same position


def a_flow_to_an_ended_link(pipe: Pipe, txn_id: bytes) -> None:
    pipe.do(Flow(handle=pipe.ended_sender(), link_credit=1, properties={"txn-id": txn_id}))


def a_flow_of_the_session(pipe: Pipe, txn_id: bytes) -> None:
    pipe.do(Flow(properties={"txn-id": txn_id}))


def a_flow_to_a_link_that_receives(pipe: Pipe, txn_id: bytes) -> None:
    handle = pipe.sender(pipe.scene.name)
    detach = pipe.do(Flow(handle=handle, properties={"txn-id": txn_id}))[-1]
    assert condition(detach.error) == "amqp:not-implemented"


def an_attach_that_resumes(pipe: Pipe, txn_id: bytes) -> None:
    unsettled = {b"tag": State(txn_id, Accepted())}
    source = Source(pipe.scene.name)
    pipe.attach(Role.RECEIVER, source=source, unsettled=unsettled)


OTHERS = [
    a_flow_to_an_ended_link,
    a_flow_of_the_session,
    a_flow_to_a_link_that_receives,
    an_attach_that_resumes,
]


@in_memory
@pytest.mark.rule("S1-16", "S1-17", "S1-28", "S1-29", "S1-34")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("act", TRANSFERS + DISPOSITIONS + OTHERS, ids=lambda one: one.__name__)
def test_what_names_a_transaction_and_is_not_done_keeps_it_from_committing(
    world: Any, act: Callable[[Pipe, bytes], None], fail: bool
) -> None:
    """Whatever the reason: the rest of its work does not happen either, nor anybody else's ends."""
    pipe = Pipe(world)
    sender = pipe.sender(pipe.scene.name)
    stranger = Pipeline(pipe.scene.resource.connect())
    stranger_sender = stranger.sender(pipe.scene.name)
    txn_id, beside, theirs = pipe.declare(), pipe.declare(), stranger.declare()
    pipe.transfer(sender, message(101), txn_id, settled=True)
    pipe.transfer(sender, message(102), beside)
    stranger.transfer(stranger_sender, message(103), theirs)
    act(pipe, txn_id)
    assert pipe.discharge(txn_id, fail) == ("accepted" if fail else ROLLBACK)
    assert pipe.discharge(beside) == stranger.discharge(theirs) == "accepted"
    left = {101, 102, 103}.intersection(pipe.scene.waiting())
    assert left == {102, 103}
    pipe.connection.close()
    assert pipe.sent <= set(pipe.scene.waiting()), "nothing is consumed"


@in_memory
@pytest.mark.rule("S1-04", "S1-27")
def test_a_link_that_ends_half_way_leaves_half_a_delivery(world: Any) -> None:
    pipe = Pipe(world)
    handle, txn_id = pipe.sender(pipe.scene.name), pipe.declare()
    pipe.transfer(handle, (), txn_id, more=True)
    pipe.do(Detach(handle=handle))
    assert pipe.discharge(txn_id, fail=True) == "accepted"
    handle, txn_id = pipe.sender(pipe.scene.name), pipe.declare()
    pipe.transfer(handle, (), txn_id, more=True)
    pipe.do(Detach(handle=handle))
    with pytest.raises(KeyError):  # no outcome: the control link ends
        pipe.discharge(txn_id)
    assert condition(pipe.frames[-1].error) == ROLLBACK


@in_memory
@pytest.mark.rule("S1-28", "S1-31")
@pytest.mark.parametrize("mode", list(ReceiverSettleMode))
def test_settling_what_was_posted_asks_for_nothing(world: Any, mode: Any) -> None:
    """A sender may name the transaction when it settles, and the outcome that it was told."""
    pipe = Pipe(world)
    handle = pipe.sender(pipe.scene.name, rcv_settle_mode=mode)
    txn_id = pipe.declare()
    good = pipe.transfer(handle, message(1), txn_id)
    bad = pipe.transfer(handle, message("no number"), txn_id)  # type: ignore[arg-type]
    told = pipe.outcomes()
    for number, state in [(good, State(txn_id)), (good, told[good]), (bad, told[bad])]:
        pipe.do(Disposition(role=Role.SENDER, first=number, settled=True, state=state))
    assert not pipe.session.incoming
    assert pipe.discharge(txn_id) == "accepted" and pipe.scene.waiting() == [1]


@in_memory
@pytest.mark.rule("S1-24", "S1-33")
def test_late_words_of_a_finished_transaction_harm_nobody(world: Any) -> None:
    pipe = Pipe(world)
    handle = pipe.held(5, 6)
    first, second = pipe.declare(), pipe.declare()
    pipe.dispose(State(first, Accepted()), 0)
    assert pipe.discharge(first) == "accepted"
    pipe.dispose(State(first, Accepted()), 0, settled=True)
    pipe.dispose(State(second, Accepted()), 1)
    assert handle in pipe.session.links and pipe.discharge(second) == "accepted"
    assert pipe.scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-32")
def test_a_disposition_over_several_links_ends_the_control_link_and_no_other(world: Any) -> None:
    pipe = Pipe(world)
    links = [pipe.held(5), pipe.held(6)]
    first, second = pipe.declare(), pipe.other.declare()
    pipe.dispose(State(first, Accepted()), 0)
    pipe.dispose(State(second, Accepted()), 0, 1)
    assert pipe.other.control not in pipe.other.session.links
    assert set(links) <= set(pipe.session.links)
    assert pipe.discharge(first) == "accepted" and pipe.scene.counts == (0, 1)


@in_memory
@pytest.mark.rule("S1-32", "S1-36")
@pytest.mark.parametrize("default", [None, Accepted()])
@pytest.mark.parametrize("acquired", ["outside", "inside", "inside, with an outcome"])
@pytest.mark.parametrize("in_another", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_what_is_settled_against_a_live_transaction_is_not_held_any_longer(
    world: Any, in_another: bool, acquired: str, default: Any, fail: bool
) -> None:
    """The controller has forgotten it: its transaction decides, otherwise the default outcome."""
    pipe = Pipe(world)
    pipe.scene.orders.send([row(5), row(6)])
    handle = pipe.attach(Role.RECEIVER, source=Source(pipe.scene.name, default))
    first, second = pipe.declare(), pipe.other.declare()
    named = {} if acquired == "outside" else {"txn-id": first}
    pipe.do(Flow(handle=handle, link_credit=1, properties=named))
    pipe.do(Flow(handle=handle, delivery_count=1, link_credit=1, properties={"txn-id": None}))
    if acquired != "inside":
        pipe.dispose(State(first, Rejected()), 0)
    pipe.dispose(State(second, Accepted()) if in_another else Accepted(), 0, 1, settled=True)
    ended = pipe.other.control if in_another else pipe.control
    assert ended not in (pipe.other if in_another else pipe).session.links
    assert handle in pipe.session.links and not pipe.session.unsettled
    kept = 0 if default else 1  # the second delivery, which belongs to no transaction
    if in_another:
        assert pipe.scene.counts == (kept, 1), "it follows the end of the first transaction"
        assert pipe.discharge(first, fail) == "accepted"
    if (fail or not in_another) and acquired != "outside":
        kept += 1  # its acquisition is undone
    elif fail or not in_another or acquired == "inside":
        kept += 0 if default else 1
    assert pipe.scene.counts == (kept, 0)
    left = pipe if in_another else pipe.other
    again = left.declare()
    pipe.held(7)
    pipe.dispose(State(again, Accepted()), 0, 2)  # it passes over what is settled
    assert left.discharge(again) == "accepted"


@in_memory
@pytest.mark.rule("S1-04", "S1-07")
def test_a_control_link_of_another_session_takes_nothing_after_its_end(world: Any) -> None:
    pipe = Pipe(world)
    pipe.held(5)
    first, second = pipe.declare(), pipe.other.declare()
    pipe.dispose(State(first, Accepted()), 0)
    pipe.dispose(State(second, Accepted()), 0)
    with pytest.raises(KeyError):
        pipe.other.declare()
    assert len(list(pipe.connection.transactions())) == 1


# ------------------------------------------------------------ ranges, and what they pass over


def settled_at_once(pipe: Pipe) -> None:
    pipe.dispose(Accepted(), 1, settled=True)


def given_an_outcome_at_once(pipe: Pipe) -> None:
    pipe.dispose(Accepted(), 1)


def settled_in_another_transaction(pipe: Pipe) -> None:
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 1, settled=True)
    assert pipe.discharge(txn_id) == "accepted"


def given_an_outcome_in_another_transaction(pipe: Pipe) -> None:
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 1)
    assert pipe.discharge(txn_id) == "accepted"


def settled_with_the_last_words_of_a_transaction(pipe: Pipe) -> None:
    given_an_outcome_in_another_transaction(pipe)
    pipe.dispose(Accepted(), 1, settled=True)


@in_memory
@pytest.mark.rule("S1-21", "S1-34")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        settled_at_once,
        given_an_outcome_at_once,
        settled_in_another_transaction,
        given_an_outcome_in_another_transaction,
        settled_with_the_last_words_of_a_transaction,
    ],
    ids=lambda one: one.__name__,
)
def test_a_range_passes_over_what_is_settled_already(
    world: Any, before: Callable[[Pipe], None], fail: bool
) -> None:
    pipe = Pipe(world)
    pipe.held(5, 6, 7)
    before(pipe)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 0, 2, settled=True)
    assert pipe.discharge(txn_id, fail) == "accepted"
    assert pipe.scene.counts == ((2, 0) if fail else (0, 0))


@in_memory
@pytest.mark.rule("S1-21", "S1-34")
def test_a_range_over_what_was_sent_settled_is_carried_out(world: Any) -> None:
    """The ids of deliveries of several links follow each other."""
    pipe = Pipe(world)
    pipe.held(5)
    mode = SenderSettleMode.SETTLED
    beside = pipe.attach(Role.RECEIVER, source=Source(pipe.scene.name), snd_settle_mode=mode)
    pipe.scene.orders.send([row(6)])
    pipe.do(Flow(handle=beside, link_credit=1))
    pipe.held(7)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 0, 2)
    assert pipe.discharge(txn_id) == "accepted" and pipe.scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-21", "S1-34")
@pytest.mark.parametrize("how", ["closed", "lost", "rolled back", "settled and forgotten"])
def test_a_range_over_what_the_controller_has_not_settled_is_not_carried_out(
    world: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipe(world)
    pipe.held(5)
    txn_id = pipe.declare()
    if how == "closed":
        pipe.do(Detach(handle=pipe.held(6)))
    elif how == "lost":
        pipe.held(6)
        world.lease_over()
        pipe.session.unsettled[0].batch.extend_lease(300)
        assert len(pipe.scene.orders.receive()) == 1
        pipe.dispose(Accepted(), 1)
    elif how == "rolled back":
        handle, inside = pipe.receiver(pipe.scene.name), pipe.declare()
        pipe.scene.orders.send([row(6)])
        pipe.do(Flow(handle=handle, link_credit=1, properties={"txn-id": inside}))
        assert pipe.discharge(inside, fail=True) == "accepted"
        pipe.do(Detach(handle=handle))
    else:
        pipe.held(6, 7, 8, 9)
        pipe.session.settled._ranges_max = 1
        for number in (1, 3):
            pipe.dispose(Accepted(), number, settled=True)
    assert 0 in pipe.session.unsettled and 1 not in pipe.session.unsettled
    pipe.dispose(State(txn_id, Accepted()), 0, 1)
    assert pipe.discharge(txn_id) == ROLLBACK


@in_memory
@pytest.mark.rule("S1-24")
def test_a_disposition_of_nothing_in_no_transaction_ends_the_session(world: Any) -> None:
    """There is no link to be ended, and no discharge to be refused."""
    pipe = Pipe(world)
    pipe.held(5)
    with pytest.raises(AmqpError) as caught:
        pipe.dispose(State(b"nobody's", Accepted()), 7)
    assert condition(caught.value) == "amqp:transaction:unknown-id"
    pipe.dispose(Accepted(), 0)
    pipe.dispose(
        State(b"nobody's", Accepted()), 0
    )  # settled: maybe the last words of a finished one
    pipe.dispose(Accepted(), 7)
    assert pipe.scene.counts == (0, 0)


@in_memory
def test_ids_that_are_used_anew_are_not_taken_for_settled_ones(world: Any) -> None:
    pipe = Pipe(world)
    pipe.session._next_delivery_id = LAST_NUMBER - 1
    pipe.held(5, 6)
    pipe.held(7)
    pipe.dispose(Accepted(), LAST_NUMBER - 1, LAST_NUMBER, settled=True)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), LAST_NUMBER, 0)
    assert pipe.discharge(txn_id) == "accepted"
    pipe.session._next_delivery_id = (LAST_NUMBER + 1) // 2
    pipe.held(8)
    pipe.session._next_delivery_id = LAST_NUMBER
    pipe.do(Detach(handle=pipe.held(9)))
    pipe.held(10)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), LAST_NUMBER, 0)
    assert pipe.discharge(txn_id) == ROLLBACK


def test_delivery_ids_are_kept_as_ranges() -> None:
    chance = random.Random(7)
    for ranges_max in (None, 3):
        ids, known = DeliveryIds(ranges_max), set[int]()
        for number in chance.sample(range(40), 30):
            ids.add(number)
            ids.add(number)
            known.add(number)
            kept = {one for one in range(40) if one in ids}
            assert kept <= known if ranges_max else kept == known
            assert ids.count(range(5, 25)) == len(kept & set(range(5, 25)))
            assert ranges_max is None or len(ids._firsts) <= ranges_max
    ids.clear()
    for number in (LAST_NUMBER, 0, 1):
        ids.add(number)
    assert ids.count(range(LAST_NUMBER - 1, LAST_NUMBER + 3)) == 3


# -------------------------------------------------------------------- detached, and not closed


@on_delta_when_long
@pytest.mark.rule("S1-34", "S1-35")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_an_outcome_counts_after_a_detach_that_does_not_close(
    world: Any, inside: bool, fail: bool
) -> None:
    pipe = Pipe(world)
    pipe.scene.orders.send([row(1), row(2)])
    handle, txn_id = pipe.receiver(pipe.scene.name), pipe.declare()
    properties = {"txn-id": txn_id} if inside else {}
    pipe.do(Flow(handle=handle, link_credit=2, properties=properties))
    assert pipe.do(Detach(handle=handle, closed=False)) == [Detach(handle=handle, closed=False)]
    assert pipe.scene.counts == (0, 2)
    for _ in range(3):
        world.clock.advance(200)
        pipe.connection.tick()
    pipe.dispose(State(txn_id, Accepted()), 0)
    assert pipe.discharge(txn_id, fail) == "accepted"
    assert pipe.scene.counts == ((0, 1) if not fail else (2, 0) if inside else (0, 2))
    if not (inside and fail):
        pipe.dispose(Accepted(), 0, 1)
        assert pipe.scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-24")
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("state", "why"),
    [
        (State(b"nobody's", Accepted()), "amqp:transaction:unknown-id"),
        (Modified(undeliverable_here=True), "amqp:not-implemented"),
    ],
)
def test_an_outcome_that_is_not_taken_ends_the_session_if_its_link_is_detached(
    world: Any, state: Any, why: str, beside: bool
) -> None:
    """No link is left to tell that; others that the range names end before."""
    pipe = Pipe(world)
    pipe.do(Detach(handle=pipe.held(5), closed=False))
    if beside:
        pipe.held(6)
    with pytest.raises(AmqpError) as caught:
        pipe.dispose(state, 0, int(beside))
    assert condition(caught.value) == why
    pipe.session.end()
    assert pipe.scene.counts == (1 + beside, 0)


@in_memory
@pytest.mark.rule("S1-34", "S1-43")
def test_what_had_not_come_wholly_goes_back_with_a_detach(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    connection = scene.resource.connect(payload_max=1)
    pipe = Pipeline(connection)
    pipe.do(Flow(incoming_window=4))  # a message has three sections
    handle = pipe.receiver(scene.name, 2)
    pipe.do(Detach(handle=handle, closed=False))
    assert scene.counts == (1, 1)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 1)
    assert pipe.discharge(txn_id) == ROLLBACK
    pipe.dispose(Accepted(), 0)
    assert scene.counts == (1, 0)


@in_memory
@pytest.mark.rule("S1-34", "S1-43")
def test_an_outcome_of_what_has_not_been_sent_yet_is_not_taken(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    pipe.do(Flow(incoming_window=3))  # a message has three sections
    pipe.receiver(scene.name, 2)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 0, 1)
    assert pipe.discharge(txn_id) == ROLLBACK and scene.counts == (0, 2)
    pipe.do(Flow(incoming_window=9))
    pipe.dispose(Accepted(), 0, 1)
    assert scene.counts == (0, 0)


@in_memory
@pytest.mark.rule("S1-34")
@pytest.mark.parametrize("end", ["another of the name", "session"])
def test_a_detached_link_holds_its_messages_until_another_takes_its_place(
    world: Any, end: str
) -> None:
    pipe = Pipe(world)
    pipe.scene.orders.send([row(1)])
    handle = pipe.receiver(pipe.scene.name, 1, name="r")
    pipe.do(Detach(handle=handle, closed=False))
    source = Source(pipe.scene.name)
    pipe.attach(Role.RECEIVER, source=source, name="another")
    pipe.other.attach(Role.SENDER, target=Target(pipe.scene.name), name="r")
    pipe.attach(Role.RECEIVER, source=source, name="r", unsettled={b"": None})
    assert pipe.scene.counts == (0, 1)
    if end == "session":
        pipe.session.end()
        assert pipe.scene.counts == (1, 0)
        return
    pipe.other.attach(Role.RECEIVER, source=source, name="r")
    assert pipe.scene.counts == (1, 0)
    txn_id = pipe.declare()
    pipe.dispose(State(txn_id, Accepted()), 0)
    assert pipe.discharge(txn_id) == ROLLBACK


# ------------------------------------------------------------------- what else links are told


@in_memory
@pytest.mark.rule("S1-30", "S1-41")
def test_what_a_codec_cannot_write_goes_back(world: Any) -> None:
    """It was acquired and not sent: neither a commit nor anybody else finds it consumed."""

    class Failing:
        def encode(self, sections: Any) -> bytes:
            raise ValueError("no such type")

        def decode(self, octets: Any) -> Any:
            return octets

    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    connection = scene.resource.connect(codec=Failing())
    pipe = Pipeline(connection)
    pipe.session.connection.codec = None
    txn_id = pipe.declare()
    handle = pipe.receiver(scene.name)
    pipe.do(Flow(handle=handle, properties={"txn-id": txn_id}))
    connection.codec = Failing()
    pipe.do(Flow(handle=handle, link_credit=2))
    connection.codec = None
    assert handle not in pipe.session.links
    assert pipe.discharge(txn_id) == "accepted" and scene.counts == (2, 0)


def acquired_settled(scene: Any, *, window: int, link_credit: int) -> tuple[Pipeline, Any, int]:
    """Acquire settled messages in a transaction, in more parts than the window has room for."""
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id = pipe.declare()
    pipe.do(Flow(incoming_window=window))
    mode = SenderSettleMode.SETTLED
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=mode)
    pipe.do(Flow(handle=handle, link_credit=link_credit, properties={"txn-id": txn_id}))
    return pipe, txn_id, handle


@in_memory
@pytest.mark.rule("S1-41", "S1-43")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("window", [1, 4])
def test_what_would_go_settled_waits_for_a_discharge_in_doubt(
    world: Any, landed: bool, window: int
) -> None:
    """The discharge did not accept it; what is sent meanwhile would be accepted by nothing."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    pipe, txn_id, _ = acquired_settled(scene, window=window, link_credit=2)
    with unanswered(world.store.journal, lands=landed):
        asked = pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
        pipe.frames.clear()
        pipe.do(Flow(incoming_window=1000))
    assert not [one for one in pipe.frames if isinstance(one, Transfer)]
    pipe.session.connection.tick()
    pipe.session.connection.pump()
    pipe.frames += pipe.session.frames()
    assert isinstance(pipe.outcomes()[asked], Accepted if landed else Rejected)
    assert scene.orders.in_flight() == 0
    assert scene.orders.depth() == 0 or not landed


@in_memory
@pytest.mark.rule("S1-41", "S1-43")
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("mode", [SenderSettleMode.SETTLED, SenderSettleMode.UNSETTLED])
@pytest.mark.parametrize("landed", [True, False])
def test_what_a_link_leaves_behind_while_a_discharge_is_in_doubt_goes_back(
    world: Any, landed: bool, mode: SenderSettleMode, ends: bool
) -> None:
    """The discharge kept it, under a lease that nobody held then."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2), row(3)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id = pipe.declare()
    pipe.do(Flow(incoming_window=1))
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=mode)
    pipe.do(Flow(handle=handle, link_credit=3, properties={"txn-id": txn_id}))
    with unanswered(world.store.journal, lands=landed):
        asked = pipe.transfer(pipe.control, (AmqpValue(Discharge(txn_id, False)),))
        if ends:
            pipe.do(Detach(handle=handle, closed=True))
        else:
            pipe.do(Flow(handle=handle, delivery_count=1, link_credit=0))
    pipe.session.connection.tick()
    pipe.frames += pipe.session.frames()
    assert isinstance(pipe.outcomes()[asked], Accepted if landed else Rejected)
    # The first one has begun to go: what goes settled is accepted by the discharge.
    goes_settled = mode is SenderSettleMode.SETTLED
    accepted = int(landed and goes_settled)
    held = int(landed and not goes_settled and not ends)
    assert scene.counts == (3 - accepted - held, held)


@in_memory
@pytest.mark.rule("S1-41", "S1-43")
@pytest.mark.parametrize("fail", [False, True])
def test_what_goes_settled_and_has_not_gone_is_not_consumed(world: Any, fail: bool) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe, txn_id, handle = acquired_settled(scene, window=1, link_credit=1)
    pipe.do(Detach(handle=handle))
    pipe.frames.clear()
    assert pipe.discharge(txn_id, fail) == "accepted" and scene.counts == (1, 0)
    assert [one for one in pipe.frames if isinstance(one, Transfer)] == [], "the link is gone"


@in_memory
@pytest.mark.rule("S1-41", "S1-43")
@pytest.mark.parametrize("goes", [True, False])
def test_what_goes_settled_after_the_commit_is_accepted_as_it_goes(world: Any, goes: bool) -> None:
    """The first message has begun to go at the discharge, and the second has not."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2), row(3)])
    pipe, txn_id, handle = acquired_settled(scene, window=2, link_credit=2)
    assert pipe.discharge(txn_id) == "accepted"
    if goes:
        pipe.do(Flow(incoming_window=100))
    pipe.do(Detach(handle=handle))
    assert scene.waiting() == ([3] if goes else [2, 3]) and scene.orders.in_flight() == 0


@in_memory
@pytest.mark.rule("S1-17", "S1-15")
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_after_a_discharge_that_was_interrupted_the_truth_is_told(
    world: Any, lands: bool, fail: bool
) -> None:
    pipe = Pipe(world)
    handle, txn_id = pipe.sender(pipe.scene.name), pipe.declare()
    pipe.transfer(handle, message(1), txn_id)
    with interrupted(world.store.journal, lands=lands):
        pipe.discharge(txn_id)
    pipe.transfer(handle, message(2), txn_id)
    assert condition(pipe.frames[-1].error) == "amqp:not-allowed"
    told = pipe.discharge(txn_id, fail)
    if lands:
        assert told == ("amqp:not-allowed" if fail else "accepted")
    else:
        assert told == ("accepted" if fail else ROLLBACK)
    assert pipe.scene.waiting() == ([1] if lands else [])


@in_memory
@pytest.mark.rule("S1-15")
def test_a_discharge_that_is_interrupted_while_it_stages_posts_nothing_twice(
    world: Any, monkeypatch: Any
) -> None:
    pipe = Pipe(world)
    handle, txn_id = pipe.sender(pipe.scene.name), pipe.declare()
    pipe.transfer(handle, message(1), txn_id)
    stage = world.store.payload.stage

    def stopped(*args: Any, **kwargs: Any) -> None:
        stage(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.store.payload, "stage", stopped)
        with pytest.raises(KeyboardInterrupt):
            pipe.discharge(txn_id)
    assert pipe.discharge(txn_id) == ROLLBACK and pipe.scene.waiting() == []


@on_delta_when_long
@pytest.mark.rule("S1-39")
def test_links_of_a_dropped_queue_end_without_being_used(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect())
    anonymous = pipe.sender(None)
    links = [pipe.sender(scene.name), pipe.receiver(scene.name), pipe.receiver(scene.name, 1)]
    txn_id = pipe.declare()
    pipe.transfer(links[0], message(2), txn_id)
    world.manager("dropper").drop_queue(scene.name)
    world.queue()  # of the same name
    world.clock.advance(200)
    pipe.session.connection.tick()
    ended = [one for one in pipe.session.frames() if isinstance(one, Detach)]
    assert sorted(one.handle for one in ended) == links
    assert {condition(one.error) for one in ended} == {"amqp:resource-deleted"}
    assert set(pipe.session.links) == {pipe.control, anonymous}
    assert pipe.discharge(txn_id) == ROLLBACK
    assert world.open(scene.orders, "reader").depth() == 0


@in_memory
def test_a_store_that_is_away_ends_neither_a_tick_nor_a_session(world: Any) -> None:
    pipe = Pipe(world)
    idle, busy = pipe.sender(pipe.scene.name), pipe.held(5)
    world.clock.advance(200)

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("away")

    journal = world.store.journal
    journal.read, read = away, journal.read
    journal.append, append = away, journal.append
    pipe.connection.tick()
    (refusal, detach) = pipe.do(
        Attach(name="x", handle=50, role=Role.RECEIVER, source=Source("unheard-of"))
    )
    journal.read, journal.append = read, append
    assert refusal.source is None and condition(detach.error) == "amqp:internal-error"
    assert {idle, busy} <= set(pipe.session.links)


@in_memory
@pytest.mark.rule("S1-28", "S1-29")
def test_a_link_that_cannot_be_told_of_a_rejection_ends(world: Any) -> None:
    pipe = Pipe(world)
    handle = pipe.sender(pipe.scene.name, source=ONLY_ACCEPTED)
    good = pipe.transfer(handle, message(1))
    assert pipe.outcomes()[good] == Accepted()
    pipe.transfer(handle, message("no number"))  # type: ignore[arg-type]
    assert condition(pipe.frames[-1].error) == "amqp:invalid-field"
    assert handle not in pipe.session.links and pipe.scene.waiting() == [1]


@in_memory
def test_a_state_that_is_no_outcome_changes_nothing(world: Any) -> None:
    pipe = Pipe(world)
    handle = pipe.held(5)
    pipe.dispose(Received(1, 10), 0)
    assert handle in pipe.session.links and pipe.scene.counts == (0, 1)
    pipe.dispose(Received(1, 10), 0, settled=True)  # the default outcome: released
    assert handle in pipe.session.links and pipe.scene.counts == (1, 0)


@in_memory
def test_delivery_counts_begin_where_the_sender_says(world: Any) -> None:
    scene = Scene(world)
    session = scene.resource.connect().begin()
    first = LAST_NUMBER
    answer, credit = session.handle(
        Attach(
            name="s",
            handle=0,
            role=Role.SENDER,
            target=Target(scene.name),
            initial_delivery_count=first,
        )
    )
    assert answer.initial_delivery_count is None and credit.delivery_count == first
    for number in range(3):
        session.handle(Transfer(handle=0, delivery_id=number, payload=message(number)))
    (told,) = session.handle(Flow(handle=0, echo=True))
    assert (told.delivery_count, told.link_credit) == (2, (credit.link_credit or 0) - 3)
    (answer,) = session.handle(
        Attach(name="r", handle=1, role=Role.RECEIVER, source=Source(scene.name))
    )
    assert answer.initial_delivery_count == 0


@in_memory
def test_delivery_counts_go_on_with_zero_after_the_last_number(world: Any) -> None:
    """A controller that drains moves the count by as much credit as it likes to give."""
    pipe = Pipe(world)
    handle = pipe.receiver(pipe.scene.name)
    for known, credit, count in ((0, LAST_NUMBER, LAST_NUMBER), (LAST_NUMBER, 10, 9)):
        drain = Flow(handle=handle, delivery_count=known, link_credit=credit, drain=True)
        (told,) = pipe.do(drain)
        assert (told.delivery_count, told.link_credit) == (count, 0)
    pipe.scene.orders.send([row(1), row(2), row(3)])
    pipe.do(Flow(handle=handle, delivery_count=9, link_credit=1))
    assert pipe.scene.counts == (2, 1)
    pipe.do(Flow(handle=handle, delivery_count=9, link_credit=2))  # one of them is under way
    assert pipe.scene.counts == (1, 2)


@in_memory
@pytest.mark.parametrize("transacted", [True, False])
def test_delivery_ids_go_on_with_zero_after_the_last_number(world: Any, transacted: bool) -> None:
    pipe = Pipe(world)
    txn_id = pipe.declare() if transacted else None
    mode = ReceiverSettleMode.SECOND
    handle = pipe.sender(pipe.scene.name, rcv_settle_mode=mode)
    for number in (LAST_NUMBER, 0, 1):
        pipe.transfer(handle, message(number), txn_id, delivery_id=number)
    state = State(txn_id, Accepted()) if txn_id else Accepted()
    settled = Disposition(role=Role.SENDER, first=LAST_NUMBER, last=1, settled=True, state=state)
    pipe.do(settled)
    assert not pipe.session.incoming
    assert txn_id is None or pipe.discharge(txn_id) == "accepted"
    assert pipe.scene.counts == (3, 0)


@in_memory
@pytest.mark.parametrize("transacted", [True, False])
@pytest.mark.parametrize("others", [0, 9])
def test_outcomes_are_for_ids_on_both_sides_of_the_last_number(
    world: Any, others: int, transacted: bool
) -> None:
    """The resource counts so far only in a long-lived session: here it is told to."""
    pipe = Pipe(world)
    pipe.session._next_delivery_id = LAST_NUMBER - others
    pipe.held(*range(others + 3))
    txn_id = pipe.declare() if transacted else None
    state = State(txn_id, Accepted()) if txn_id else Accepted()
    pipe.dispose(state, LAST_NUMBER, 1, settled=True)
    assert txn_id is None or pipe.discharge(txn_id) == "accepted"
    assert pipe.scene.counts == (0, others)
    pipe.dispose(Accepted(), 5, 3, settled=True)  # its last one is before its first
    assert pipe.scene.counts == (0, others)


def sent_ids(pipe: Pipeline) -> list[int | None]:
    """The ids of deliveries in the order in which their first transfers were sent."""
    transfers = [one for one in pipe.frames if isinstance(one, Transfer)]
    return list(dict.fromkeys(one.delivery_id for one in transfers))


@in_memory
@pytest.mark.parametrize("ends", ["discharge", "detach", "keep", "another transaction"])
def test_what_was_acquired_and_not_sent_leaves_no_gap_in_the_delivery_ids(
    world: Any, ends: str
) -> None:
    """Libraries of clients end a session whose delivery ids do not follow each other."""
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(3)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    flow = Flow(handle=handle, link_credit=3, properties={"txn-id": txn_id}, incoming_window=3)
    pipe.do(flow)  # a message has three parts here
    assert sent_ids(pipe) == [0]
    other = pipe.receiver(scene.name)
    if ends == "another transaction":
        pipe.do(Flow(handle=handle, properties={"txn-id": pipe.declare()}))
    if ends in ("detach", "keep"):
        pipe.do(Detach(handle=handle, closed=ends == "detach"))
    assert pipe.discharge(txn_id, fail=True) == "accepted"
    pipe.do(Flow(handle=other, link_credit=2, incoming_window=9))
    assert sent_ids(pipe) == [0, 1, 2]
    if ends in ("discharge", "another transaction"):
        told = [one for one in pipe.do(Flow(handle=handle, echo=True)) if isinstance(one, Flow)]
        assert (told[-1].delivery_count, told[-1].link_credit) == (2, 1), "its credit remained"
    pipe.session.end()
    assert scene.counts == (3, 0)


@in_memory
@pytest.mark.parametrize("mode", [SenderSettleMode.MIXED, SenderSettleMode.SETTLED])
@pytest.mark.parametrize("how", ["commit", "roll back", "without a transaction"])
def test_what_waits_goes_back_when_its_credit_is_withdrawn(
    world: Any, how: str, mode: SenderSettleMode
) -> None:
    """A controller sets the credit to 0 before a discharge, and relies on the answer."""
    scene = Scene(world)
    scene.orders.send([row(n) for n in range(3)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id = None if how == "without a transaction" else pipe.declare()
    handle = pipe.attach(Role.RECEIVER, source=Source(scene.name), snd_settle_mode=mode)
    flow = Flow(handle=handle, link_credit=3, properties={"txn-id": txn_id}, incoming_window=3)
    pipe.do(flow)  # a message has three parts here
    (told,) = pipe.do(Flow(handle=handle, delivery_count=1, link_credit=0, echo=True))
    assert (told.delivery_count, told.link_credit) == (1, 0)
    pipe.do(Flow(incoming_window=99))
    assert txn_id is None or pipe.discharge(txn_id, how == "roll back") == "accepted"
    assert sent_ids(pipe) == [0] and set(pipe.outcomes(Role.SENDER)) <= {0}
    assert scene.orders.depth() == (3 if how == "roll back" else 2)
    pipe.session.end()
    gone = mode is SenderSettleMode.SETTLED and how != "roll back"
    assert scene.counts == (2 if gone else 3, 0)


@in_memory
def test_a_transfer_that_gives_up_a_delivery_uses_up_the_window_as_any_other(world: Any) -> None:
    """The window opens with a flow for another link, so the delivery is still half sent."""
    scene = Scene(world)
    scene.orders.send([row(1), row(2)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    other = pipe.receiver(scene.name)
    flow = Flow(handle=handle, link_credit=1, incoming_window=2, properties={"txn-id": txn_id})
    pipe.do(flow)
    pipe.do(Flow(handle=other, link_credit=0, incoming_window=3))
    assert pipe.discharge(txn_id, fail=True) == "accepted"
    pipe.frames.clear()
    pipe.do(Flow(handle=other, link_credit=1))
    assert len([one for one in pipe.frames if isinstance(one, Transfer)]) == 2


@in_memory
@pytest.mark.rule("S1-43")
@pytest.mark.parametrize("default", [None, Accepted()])
@pytest.mark.parametrize("mode", [SenderSettleMode.SETTLED, SenderSettleMode.UNSETTLED])
@pytest.mark.parametrize("how", ["discharged", "control link closed", "too late"])
def test_what_a_rollback_gives_up_is_not_said_by_more_transfers_than_the_window_takes(
    world: Any, how: str, mode: SenderSettleMode, default: Any
) -> None:
    """A client would end the connection; the end of the link tells it, before the answer."""
    scene = Scene(world, timeout_seconds=60)
    scene.orders.send([row(n) for n in range(1, 5)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id = pipe.declare()
    here = {"source": Source(scene.name, default), "snd_settle_mode": mode}
    handle, other = pipe.attach(Role.RECEIVER, **here), pipe.receiver(scene.name)
    pipe.do(Flow(handle=handle, link_credit=1, incoming_window=4))  # a message has three parts
    pipe.do(Flow(handle=handle, delivery_count=1, link_credit=2, properties={"txn-id": txn_id}))
    pipe.frames.clear()
    if how == "discharged":
        assert pipe.discharge(txn_id, fail=True) == "accepted"
    elif how == "too late":
        world.clock.advance(61)
        pipe.session.connection.tick()
        pipe.frames += pipe.session.frames()
    else:
        pipe.do(Detach(handle=pipe.control))
    assert not [one for one in pipe.frames if isinstance(one, Transfer)]
    kinds = [type(one) for one in pipe.frames]
    (ended,) = [one for one in pipe.frames if isinstance(one, Detach) and one.handle == handle]
    assert condition(ended.error) == ROLLBACK
    if how == "discharged":
        assert kinds.index(Detach) < kinds.index(Disposition)
    first_is_gone = mode is SenderSettleMode.SETTLED or default is not None
    assert scene.waiting() == ([2, 3, 4] if first_is_gone else [1, 2, 3, 4])
    assert scene.orders.in_flight() == 0
    pipe.frames.clear()
    pipe.do(Flow(handle=other, link_credit=1, incoming_window=3))
    assert len([one for one in pipe.frames if isinstance(one, Transfer)]) == 3


@in_memory
@pytest.mark.rule("S1-43")
def test_what_a_commit_releases_half_sent_is_sent_to_its_end_if_the_window_is_closed(
    world: Any,
) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    txn_id, handle = pipe.declare(), pipe.receiver(scene.name)
    named = {"txn-id": txn_id}
    pipe.do(Flow(handle=handle, link_credit=1, incoming_window=1, properties=named))
    pipe.dispose(State(txn_id, Released()), 0)
    pipe.frames.clear()
    assert pipe.discharge(txn_id) == "accepted"
    assert not [one for one in pipe.frames if isinstance(one, Transfer)]
    assert pipe.outcomes(Role.SENDER) == {0: Released()} and scene.counts == (1, 0)
    pipe.do(Flow(incoming_window=9))
    parts = [one for one in pipe.frames if isinstance(one, Transfer)]
    assert [(one.more, one.aborted) for one in parts] == [(True, False), (False, False)]
    assert handle in pipe.session.links and scene.counts == (1, 0)


@in_memory
def test_a_delivery_has_its_id_when_it_is_sent(world: Any) -> None:
    """What another link sends first has the lower id, although it was acquired later."""
    scene = Scene(world)
    pipe = Pipeline(scene.resource.connect(payload_max=1))
    first, second = pipe.receiver(scene.name), pipe.receiver(scene.name)
    scene.orders.send([row(n) for n in range(4)])
    pipe.do(Flow(handle=second, link_credit=2, incoming_window=3))
    pipe.do(Flow(handle=first, link_credit=2))
    pipe.do(Flow(handle=second, echo=True))
    counts = [one for one in pipe.frames if isinstance(one, Flow) and one.handle == second]
    assert (counts[-1].delivery_count, counts[-1].link_credit) == (1, 1)
    pipe.do(Flow(incoming_window=99))
    assert sent_ids(pipe) == [0, 1, 2, 3]
    pipe.do(Flow(handle=second, delivery_count=2, link_credit=1))
    pipe.dispose(Accepted(), 0, 3, settled=True)
    assert scene.counts == (0, 0) and set(pipe.session.links) >= {first, second}


@in_memory
def test_a_detached_link_says_so(world: Any) -> None:
    scene = Scene(world)
    scene.orders.send([row(1)])
    sender, receiver = scene.sender(), scene.receiver()
    found = receiver.flow(1)
    txn_id = scene.controller.declare()
    receiver.detach(closed=False)
    receiver.dispose(found, Accepted(), txn_id)
    sender.detach()
    closed = scene.receiver()
    closed.detach()
    for act in (
        lambda: sender.send(row(2), txn_id),
        lambda: receiver.flow(1),
        lambda: closed.dispose(found, Accepted(), txn_id),
    ):
        with pytest.raises(AmqpError) as caught:
            act()
        assert condition(caught.value) == "amqp:session:unattached-handle"
    scene.controller.discharge(txn_id)
    assert scene.counts == (0, 0)


# ------------------------------------------------------------------------ anonymous terminus


@on_delta_when_long
@pytest.mark.rule("S1-21", "S1-25")
def test_a_link_without_an_address_posts_where_each_message_says(world: Any) -> None:
    scene = Scene(world)
    invoices = world.queue("invoices")
    sender = scene.controller.sender()
    txn_id = scene.controller.declare()
    sender.send(row(1), txn_id, to=scene.name)
    sender.send(row(2), txn_id, to=invoices.name)
    assert sender.send(row(3), to=scene.name).state == Accepted()
    scene.controller.discharge(txn_id)
    assert scene.waiting() == [3, 1] and invoices.depth() == 1


@in_memory
@pytest.mark.rule("S1-28", "S1-29")
@pytest.mark.parametrize(
    ("to", "why"),
    [
        (None, "amqp:invalid-field"),
        ("no such queue", "amqp:not-found"),
        ("", "amqp:not-found"),
        ("dropped", "amqp:not-found"),
    ],
)
def test_a_message_that_no_queue_is_found_for_is_refused(world: Any, to: Any, why: str) -> None:
    scene = Scene(world)
    sender = scene.controller.sender()
    if to == "dropped":
        to = world.queue("dropped").name
        sender.send(row(0), to=to)
        world.manager("dropper").drop_queue(to)
    refused = sender.send(row(1), to=to)
    assert isinstance(refused.state, Rejected) and condition(refused.state.error) == why
    if why == "amqp:invalid-field":
        txn_id = scene.controller.declare()
        sender.send(row(1), txn_id, to=to, settled=True)
        with pytest.raises(AmqpError):
            scene.controller.discharge(txn_id)
    txn_id = scene.controller.declare()
    sender.send(row(2), txn_id, to=scene.name)
    scene.controller.discharge(txn_id)
    with pytest.raises(AmqpError) as caught:
        sender.send(row(1), to=to, settled=True)
    assert condition(caught.value) == why and scene.waiting() == [2]


def test_an_error_has_a_symbol_that_may_be_anybodys() -> None:
    assert AmqpError("x:y", "z").error == Error("x:y", "z") and Error("x:y").symbol == "x:y"
