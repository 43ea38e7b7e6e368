"""Frames from strangers: each is answered by what the specification has for it, never by a fault.

A client opens, works in transactions, and says something else in between: wrong values in a field,
frames in another order, octets that are bent. Nothing is held for it when it is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import LONG
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpValue,
    Coordinator,
    Declare,
    Declared,
    Described,
    Detach,
    Discharge,
    Disposition,
    Header,
    Modified,
    Properties,
    ProtonCodec,
    Received,
    Rejected,
    Released,
    Role,
    TransactionalResource,
    TransactionalState,
)
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.frames import Close, End, FrameReader
from txnqueue.protocols.amqp.peer import Peer
from txnqueue.protocols.amqp.performatives import Transfer
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

VALUES = ProtonCodec()
SENT = 3
"""So many messages are there before."""
IN_TRANSACTION, DISCHARGED = 7777, 3
"""What is sent in the transaction, and the number of the delivery that commits it."""
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SOURCE, TARGET = 0x28, 0x29
OFTEN = settings(
    max_examples=2_000 if LONG else 200,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def octets(code: int, *fields: Any) -> bytes:
    """Write a performative."""
    return VALUES.encode_described(code, fields)


def message(body: object) -> bytes:
    return VALUES.encode((AmqpValue(body),))


def attach(handle: int, role: Role, source: str | None, target: Any) -> bytes:
    """Write the attach of a link."""
    here = VALUES.described(SOURCE, [source])
    there = target if isinstance(target, Coordinator) else VALUES.described(TARGET, [target])
    return octets(
        *(ATTACH, f"link{handle}", VALUES.uint(handle), role.value, VALUES.ubyte(2)),
        *(VALUES.ubyte(0), here, there, None, None, VALUES.uint(0)),
    )


def usual(txn_id: bytes) -> list[bytes]:
    """Write what a client says that works as it should."""
    uint = VALUES.uint
    state = TransactionalState(txn_id)
    accepted = TransactionalState(txn_id, Accepted())
    return [
        attach(1, Role.SENDER, None, "orders"),
        attach(2, Role.RECEIVER, "orders", None),
        octets(FLOW, uint(0), uint(100), uint(0), uint(100), uint(2), uint(0), uint(10)),
        octets(TRANSFER, uint(1), uint(1), b"a", uint(0), False, False, None, state)
        + message({"n": IN_TRANSACTION}),
        octets(TRANSFER, uint(1), uint(2), b"b", uint(0), True, True) + message({"n": 8})[:3],
        octets(TRANSFER, uint(1), uint(2), b"b", uint(0), True, False) + message({"n": 8})[3:],
        octets(DISPOSITION, True, uint(0), uint(0), True, accepted),
        octets(TRANSFER, uint(0), uint(DISCHARGED), b"c") + message(Discharge(txn_id, False)),
        octets(DETACH, uint(1), True),
        octets(FLOW, uint(0), uint(100), uint(0), uint(100)),
        octets(END),
        octets(BEGIN, None, uint(0), uint(100), uint(100)),
        octets(CLOSE),
    ]


NUMBERS = st.sampled_from((0, 1, 2, 5, 255, 2**31 - 1, 2**31, 2**32 - 1))
STATES = st.sampled_from(
    (
        *(Accepted(), Released(), Modified(), Modified(undeliverable_here=True), Received(0, 0)),
        *(
            Rejected(None),
            Declared(b"t"),
            Declare(),
            Header(),
            Properties(),
            TransactionalState(b""),
        ),
        TransactionalState(b"x" * 33, Released()),
    )
)
FIELDS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        NUMBERS.map(VALUES.uint),
        st.floats(),
        st.text(max_size=4),
        st.binary(max_size=4),
        st.sampled_from(("orders", "", "orders.dead", "\x00")),
        st.sampled_from(("amqp:accepted:list", "copy", "amqp:local-transactions")).map(
            VALUES.symbol
        ),
        STATES,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
        st.tuples(st.sampled_from((SOURCE, TARGET, 0x30, 0x34, 0x1D, 0, 2**40)), inner).map(
            lambda made: VALUES.described(made[0], made[1] if isinstance(made[1], list) else [])
        ),
    ),
    max_leaves=5,
)
DRAWN = st.tuples(
    st.one_of(st.integers(OPEN, CLOSE), st.sampled_from((0x00, 0x19, 0x35, 0x41, 2**40))),
    st.lists(st.one_of(FIELDS, NUMBERS.map(VALUES.uint)), max_size=12),
    st.one_of(st.just(b""), FIELDS.map(message), st.binary(max_size=20)),
).map(lambda drawn: octets(drawn[0], *drawn[1]) + drawn[2])


@st.composite
def bent(draw: st.DrawFn) -> tuple[int, int, bytes | None]:
    """Draw what happens to one of the usual frames: other octets, an end, or another place."""
    return (
        draw(st.integers(0, 12)),
        draw(st.integers(0, 60)),
        draw(st.one_of(st.none(), st.binary(max_size=3))),
    )


class Client:
    """A client without a socket, and what it was told."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.manager = memory_manager(self.store, Clock(), "broker")
        self.manager.create_queue("orders", "n long").send([{"n": n} for n in range(SENT)])
        self._reader, self._codec = FrameReader(1 << 20), FrameCodec(VALUES)
        self.peer = Peer(
            TransactionalResource(self.manager), self._codec, self._reader.feed, "here", None
        )
        uint = VALUES.uint
        self.say(octets(OPEN, "client"))
        self.say(octets(BEGIN, None, uint(0), uint(100), uint(100)))
        self.say(attach(0, Role.SENDER, None, Coordinator()))
        self.say(octets(TRANSFER, uint(0), uint(0), b"d") + message(Declare()))
        declared = [
            frame.state
            for frame in self.told()
            if isinstance(frame, Disposition) and isinstance(frame.state, Declared)
        ]
        self.txn_id = declared[0].txn_id

    def say(self, *bodies: bytes, channel: int = 0) -> None:
        self.peer.work([(channel, body) for body in bodies])
        self.peer.tick()

    def told(self) -> Iterator[Any]:
        """Take what it was told: it must be able to read all of it."""
        for _, _, body in self._reader.frames():
            yield self._codec.read(body)


def left(client: Client, caplog: pytest.LogCaptureFixture) -> tuple[list[int], bool]:
    """Let the client go, and check that it was answered and that nothing is held for it.

    Returns:
        What waits in the queue then, and whether the discharge was accepted.
    """
    accepted = False
    for frame in client.told():
        if isinstance(frame, Close | End) and frame.error is not None:
            assert frame.error.symbol != "amqp:internal-error", frame
        if isinstance(frame, Disposition) and isinstance(frame.state, Accepted):
            last = frame.first if frame.last is None else frame.last
            accepted |= frame.first <= DISCHARGED <= last
    client.peer.abandon()
    faults = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert not faults, [(one.getMessage(), one.exc_info) for one in faults]
    orders = client.manager.queue("orders")
    assert orders.in_flight() == 0
    proof = client.manager.history.verify()
    assert proof.ok, str(proof)
    return sorted(row["n"] for row in orders.peek_messages(100)), accepted


def check_ended(client: Client, caplog: pytest.LogCaptureFixture, symbol: str) -> None:
    """Check that one link ended with an error, and that nothing was posted or discharged."""
    (ended,) = [frame for frame in client.told() if isinstance(frame, Detach)]
    assert ended.error is not None and ended.error.symbol == symbol
    assert left(client, caplog) == ([0, 1, 2], False)


def test_what_such_a_client_asks_for_happens_if_it_says_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Client()
    client.say(*usual(client.txn_id))
    assert left(client, caplog) == ([1, 2, 8, IN_TRANSACTION], True)


@pytest.mark.rule("S1-43")
@pytest.mark.parametrize(("window", "how"), [(1, "Transfer"), (0, "Detach")])
def test_what_a_discharge_gives_up_in_another_session_is_told_before_its_answer(
    window: int, how: str
) -> None:
    client, uint = Client(), VALUES.uint
    client.peer._connection.payload_max = 4
    acquiring = (uint(0), uint(0), uint(1), None, False, False, {"txn-id": client.txn_id})
    client.say(
        octets(BEGIN, None, uint(0), uint(1), uint(100)),
        attach(0, Role.RECEIVER, "orders", None),
        octets(FLOW, uint(0), uint(1), uint(0), uint(100), *acquiring),
        channel=1,
    )
    sent = [frame for frame in client.told() if isinstance(frame, Transfer)]
    assert [frame.more for frame in sent] == [True]
    client.say(attach(5, Role.RECEIVER, "orders", None), channel=1)
    list(client.told())
    of_another = (uint(5), uint(0), uint(0))  # so that nothing more is sent on the first one
    opens = octets(FLOW, uint(1), uint(window), uint(0), uint(100), *of_another)
    failed = octets(TRANSFER, uint(0), uint(1), b"c")
    failed += message(Discharge(client.txn_id, fail=True))
    client.peer.work([(1, opens), (0, failed)])
    told = [
        type(frame).__name__
        for frame in client.told()
        if (isinstance(frame, Transfer) and frame.aborted)
        or isinstance(frame, Detach)
        or (isinstance(frame, Disposition) and frame.role is Role.RECEIVER)
    ]
    assert told == [how, "Disposition"]


def test_a_tick_that_comes_while_messages_are_sent_is_done_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that is sent messages all the time has leases, too."""
    client = Client()
    connection = client.peer._connection
    ticks: list[int] = []
    monkeypatch.setattr(connection, "tick", lambda: ticks.append(1))

    def ticking() -> None:
        other = threading.Thread(target=client.peer.tick)
        other.start()
        other.join()
        assert not ticks, "another thread works on the connection"

    monkeypatch.setattr(connection, "pump", ticking)
    client.peer.resume()
    assert ticks == [1]


@OFTEN
@given(
    frames=st.lists(
        st.tuples(st.integers(0, 12), DRAWN, st.sampled_from((0, 0, 0, 1, 9))), max_size=4
    )
)
def test_whatever_a_frame_says_the_answer_is_in_the_specification(
    frames: Sequence[tuple[int, bytes, int]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    client = Client()
    for at, body in enumerate(usual(client.txn_id)):
        for before, odd, channel in frames:
            if before == at:
                client.say(odd, channel=channel)
        client.say(body)
    waiting, accepted = left(client, caplog)
    assert accepted or IN_TRANSACTION not in waiting


@OFTEN
@given(changes=st.lists(bent(), min_size=1, max_size=3))
def test_bent_octets_and_frames_out_of_order_are_answered(
    changes: Sequence[tuple[int, int, bytes | None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    client = Client()
    bodies = usual(client.txn_id)
    for which, at, other in changes:
        body = bodies[which]
        if other is None:
            bodies.insert(at % len(bodies), bodies.pop(which))
        else:
            at %= len(body)
            bodies[which] = body[:at] + other + body[at + len(other) :]
    client.say(*bodies)
    left(client, caplog)


LINK = VALUES.described(TARGET, ["orders"])
MANY = VALUES.ulong(2**63 + 5)
OTHERWISE = VALUES.described(0x1D, ["ü"])


def rejecting(error: object) -> bytes:
    zero = VALUES.uint(0)
    return octets(DISPOSITION, True, zero, zero, False, VALUES.described(0x25, [error]))


@pytest.mark.parametrize(
    "body",
    [
        octets(ATTACH, "x", -1, False, None, None, None, LINK),
        octets(ATTACH, "x", VALUES.uint(3), False, None, None, None, LINK, [1]),
        octets(DISPOSITION, True, VALUES.uint(0), MANY, True, Accepted()),
        octets(TRANSFER, VALUES.uint(1), -1, b"a") + message({"n": 9}),
        octets(
            *(FLOW, VALUES.uint(0), VALUES.uint(9), VALUES.uint(0), VALUES.uint(9)),
            *(VALUES.uint(1), VALUES.uint(0), VALUES.uint(9), None, None, None, [1]),
        ),
        octets(ATTACH, "x", VALUES.uint(3), None, None, None, None, LINK),
        octets(ATTACH, "x", VALUES.uint(3), 0, None, None, None, LINK),
        octets(
            *(ATTACH, "x", VALUES.uint(3), False, None, None, None),
            VALUES.described(TARGET, ["orders", None, None, None, "false"]),
        ),
        octets(TRANSFER, VALUES.uint(1), VALUES.uint(1), b"a", VALUES.uint(0), "false")
        + message({"n": 9}),
        octets(TRANSFER, VALUES.uint(1), VALUES.uint(1), b"a", VALUES.uint(0), True, 0)
        + message({"n": 9}),
        octets(DISPOSITION, None, VALUES.uint(0), VALUES.uint(0), True, Accepted()),
        octets(DISPOSITION, True, VALUES.uint(0), VALUES.uint(0), "true", Accepted()),
        octets(DETACH, VALUES.uint(1), ""),
        octets(
            *(FLOW, VALUES.uint(0), VALUES.uint(9), VALUES.uint(0), VALUES.uint(9)),
            *(VALUES.uint(2), VALUES.uint(0), VALUES.uint(9), None, 1),
        ),
        VALUES.encode_type(VALUES.described(0x74, [1])),
        rejecting("wrong"),
        rejecting(OTHERWISE),
        rejecting(VALUES.described(0x1D, [VALUES.symbol("x:y"), 5])),
    ],
)
def test_fields_of_a_wrong_type_or_out_of_range_are_no_frame(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    list(client.told())
    client.say(*usual(client.txn_id)[:3], body)
    (closed,) = [frame for frame in client.told() if isinstance(frame, Close)]
    assert closed.error is not None and closed.error.symbol == "amqp:decode-error"
    client.peer.abandon()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []
    assert sorted(row["n"] for row in client.manager.queue("orders").peek_messages()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("channel", "body"),
    [
        (64, octets(BEGIN, None, VALUES.uint(0), VALUES.uint(100), VALUES.uint(100))),
        (64, octets(DETACH, VALUES.uint(1), True)),
        (0, attach(70_000, Role.RECEIVER, "orders", None)),
        (0, octets(DETACH, VALUES.uint(65_536), True)),
        (0, octets(TRANSFER, VALUES.uint(70_000), VALUES.uint(1), b"a") + message({"n": 9})),
        (0, octets(FLOW, *map(VALUES.uint, (0, 9, 0, 9, 70_000, 0, 9)))),
    ],
)
def test_a_channel_or_a_handle_out_of_range_closes_the_connection(
    channel: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Part 2 of the specification, 2.7.1 and 2.7.2."""
    client = Client()
    client.say(*usual(client.txn_id)[:2])
    client.say(octets(BEGIN, None, *map(VALUES.uint, (0, 100, 100))), channel=63)
    client.say(attach(65_535, Role.RECEIVER, "orders", None))
    assert not [frame for frame in client.told() if isinstance(frame, Close | End)]
    client.say(body, channel=channel)
    (closed,) = [frame for frame in client.told() if isinstance(frame, Close | End)]
    assert isinstance(closed, Close) and closed.error is not None
    assert closed.error.symbol == "amqp:connection:framing-error"
    assert left(client, caplog) == ([0, 1, 2], False)


@pytest.mark.rule("S1-15")
@pytest.mark.parametrize("fail", [0, 1, "", "false", "true", b"", [], {}])
def test_a_discharge_says_by_a_boolean_whether_the_work_has_failed(
    fail: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    list(client.told())
    body = VALUES.described(0x32, [client.txn_id, fail])
    client.say(usual(client.txn_id)[0], usual(client.txn_id)[3])
    client.say(octets(TRANSFER, VALUES.uint(0), VALUES.uint(DISCHARGED), b"c") + message(body))
    check_ended(client, caplog, "amqp:decode-error")


@pytest.mark.rule("S1-22")
@pytest.mark.parametrize(
    "state",
    [VALUES.described(0x9934, [b"t", Accepted()]), "transactional", 5, b"t", [b"t"], Header()],
)
@pytest.mark.parametrize("part", ["whole", "first", "last"])
def test_a_message_with_a_state_that_nobody_knows_is_not_posted(
    state: Any, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be meant for a transaction."""
    client, uint = Client(), VALUES.uint
    list(client.told())
    client.say(usual(client.txn_id)[0])
    first, last = (None, state) if part == "last" else (state, None)
    start = (TRANSFER, uint(1), uint(1), b"a", uint(0), False)
    client.say(octets(*start, part != "whole", None, first) + message({"n": 9}))
    if part == "last":
        client.say(octets(*start, False, None, last))
    check_ended(client, caplog, "amqp:not-implemented")


@pytest.mark.rule("S1-02")
def test_a_discharge_with_a_state_that_nobody_knows_commits_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, uint = Client(), VALUES.uint
    client.say(usual(client.txn_id)[0], usual(client.txn_id)[3])
    list(client.told())
    asked = (TRANSFER, uint(0), uint(DISCHARGED), b"c", uint(0), False, False, None)
    odd = VALUES.described(0x9934, [client.txn_id])
    client.say(octets(*asked, odd) + message(Discharge(client.txn_id, False)))
    check_ended(client, caplog, "amqp:not-implemented")


@pytest.mark.parametrize(
    "section",
    [
        bytes.fromhex("005374 45"),
        bytes.fromhex("005375 a10178"),
        bytes.fromhex("005376 a10178"),
        bytes.fromhex("005370 c00603 40 40 a10178"),
        bytes.fromhex("005373 c00e0a" + "40" * 9 + "a10178"),
    ],
)
def test_a_section_with_a_value_of_a_wrong_type_is_no_message(
    section: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    list(client.told())
    sent = octets(TRANSFER, VALUES.uint(1), VALUES.uint(1), b"a") + section + message({"n": 9})
    client.say(usual(client.txn_id)[0], sent)
    (ended,) = [frame for frame in client.told() if isinstance(frame, Detach)]
    assert ended.error is not None and ended.error.symbol == "amqp:decode-error"
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_link_is_told_which_of_its_wishes_is_not_met(caplog: pytest.LogCaptureFixture) -> None:
    """Legal values of types that names of queues and filters do not have here."""
    client = Client()
    list(client.told())
    source = VALUES.described(SOURCE, ["orders", *[None] * 6, {VALUES.ulong(5): 1}])
    client.say(
        octets(ATTACH, "x", VALUES.uint(3), True, None, None, source),
        octets(ATTACH, "y", VALUES.uint(4), False, None, None, None, VALUES.described(TARGET, [5])),
    )
    ended = [frame for frame in client.told() if isinstance(frame, Detach)]
    assert [one.error.symbol for one in ended if one.error] == [
        "amqp:not-implemented",
        "amqp:not-found",
    ]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


@st.composite
def another_field(draw: st.DrawFn) -> tuple[int, int, Any]:
    """Draw which field of which of the usual frames has another value."""
    return draw(st.integers(0, 12)), draw(st.integers(0, 11)), draw(FIELDS)


@OFTEN
@given(changes=st.lists(another_field(), min_size=1, max_size=2, unique_by=lambda one: one[0]))
def test_a_frame_with_one_odd_field_is_answered(
    changes: Sequence[tuple[int, int, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """All its other fields are right, so that it gets further than one of odd fields only."""
    caplog.clear()
    client = Client()
    bodies = usual(client.txn_id)
    for which, place, value in changes:
        performative, payload = VALUES.decode_first(bodies[which])
        fields = [as_sent(one) for one in performative.value]
        fields += [None] * (12 - len(fields))
        fields[place] = value
        bodies[which] = octets(performative.descriptor, *fields) + payload
    client.say(*bodies)
    left(client, caplog)


def as_sent(value: Any) -> Any:
    """Return a field that was read in a form that can be written."""
    if isinstance(value, Described):
        return VALUES.described(int(value.descriptor), list(map(as_sent, value.value)))
    return value
