"""The listener, frame by frame: what clients of libraries do not send, or cannot."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")


from tests.specifications.amqp_listener import SECONDS, Listener, eventually, listening
from txnqueue.errors import InvalidInput
from txnqueue.manager import QueueManager
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpData,
    AmqpServer,
    AmqpValue,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Limits,
    Properties,
    ProtonCodec,
    Released,
    Role,
    Source,
    Target,
    TransactionalState,
    Transfer,
    client_connection,
    connection,
)
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.frames import (
    AMQP_HEADER,
    SASL_HEADER,
    Begin,
    Close,
    End,
    FrameReader,
    Init,
    Mechanisms,
    Open,
    SaslOutcome,
    SessionFlow,
    Window,
    framed,
)
from txnqueue.protocols.amqp.performatives import ReceiverSettleMode, SenderSettleMode
from txnqueue.queue import Queue

WINDOW = Window(next_incoming_id=0, incoming_window=100, next_outgoing_id=0, outgoing_window=100)
MUCH = Window(next_incoming_id=0, incoming_window=9999, next_outgoing_id=0, outgoing_window=9)


class Wire:
    """A socket with a client's frames."""

    def __init__(self, listener: Listener) -> None:
        self.codec = FrameCodec(ProtonCodec())
        self.reader = FrameReader(1 << 20)
        self.socket = socket.create_connection(("127.0.0.1", listener.port), timeout=10)
        listener.clients.append(self)

    def end(self) -> None:
        """Close the socket, if it is not."""
        self.socket.close()

    def let_in(self) -> Wire:
        """Be somebody, open the connection and begin a session."""
        self.socket.sendall(SASL_HEADER)
        assert self.header() == SASL_HEADER
        assert self.take() == Mechanisms(["ANONYMOUS"])
        self.send(Init("ANONYMOUS"))
        assert self.take() == SaslOutcome(0)
        self.socket.sendall(AMQP_HEADER)
        assert self.header() == AMQP_HEADER
        self.send(Open(container_id="wire"))
        assert isinstance(self.take(), Open)
        return self

    def begun(self) -> Wire:
        """Begin a session on channel 0, after all else."""
        self.let_in().send(Begin(window=WINDOW))
        assert isinstance(self.take(), Begin)
        return self

    def send(self, *frames: Any, channel: int = 0) -> None:
        self.socket.sendall(b"".join(self.codec.write(frame, channel) for frame in frames))

    def header(self) -> bytes:
        while (found := self.reader.take_header()) is None:
            self.reader.feed(self.more())
        return found

    def more(self) -> bytes:
        octets = self.socket.recv(65536)
        if not octets:
            raise EOFError
        return octets

    def take(self) -> Any:
        """Take the next frame that says something."""
        while True:
            found = self.reader.frame()
            if found is None:
                self.reader.feed(self.more())
            elif found[2]:
                return self.codec.read(found[2])

    def until(self, kind: type[Any]) -> Any:
        """Take frames until there is one of a kind."""
        while not isinstance(found := self.take(), kind):
            pass
        return found

    def attach(self, handle: int, role: Role, **ends: Any) -> None:
        self.send(Attach(name=f"l{handle}", handle=handle, role=role, **ends))
        assert self.until(Attach).handle == handle

    def ask(self, number: int, body: Any) -> Any:
        """Ask the coordinator, whose link has handle 0, and give its answer."""
        payload = self.codec.values.encode((AmqpValue(body),))
        self.send(Transfer(handle=0, delivery_id=number, delivery_tag=b"c", payload=payload))
        while (found := self.until(Disposition)).role is not Role.RECEIVER:
            pass  # of what the server has sent
        assert found.first == number
        return found.state

    def ends_with(self, condition: str, kind: type[Any] = Close) -> bool:
        """Return whether the server ends something for a reason."""
        return str(self.until(kind).error.symbol) == condition


def rest_of(wire: Wire) -> int:
    """Count the octets that a client still gets until its socket is closed."""
    octets = 0
    with suppress(EOFError, ConnectionResetError):
        while True:
            octets += len(wire.more())
    return octets


def nested(depth: int) -> bytes:
    """Write a list of a list of a list."""
    found = b"\x40"
    for _ in range(depth):
        found = b"\xd0" + struct.pack(">II", 4 + len(found), 1) + found
    return found


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as made:
        made.manager.create_queue("orders", "n long")
        yield made


@pytest.mark.rule("S1-38", "S1-39", "S1-41")
@pytest.mark.parametrize("fail", [False, True])
def test_messages_are_acquired_in_a_transaction(listener: Listener, fail: bool) -> None:
    orders = listener.manager.queue("orders")
    orders.send([{"n": n} for n in range(3)])
    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, source=Source(), target=Coordinator())
    declared = wire.ask(0, Declare())
    assert isinstance(declared, Declared)
    wire.attach(1, Role.RECEIVER, source=Source("orders"), target=Target())
    flow = Flow(handle=1, link_credit=2, properties={"txn-id": declared.txn_id})
    wire.send(SessionFlow(WINDOW, flow))
    found = [wire.until(Transfer) for _ in range(2)]
    assert [one.state for one in found] == [TransactionalState(declared.txn_id)] * 2
    state = TransactionalState(declared.txn_id, Accepted())
    wire.send(Disposition(role=Role.RECEIVER, first=0, last=1, state=state))
    assert wire.ask(1, Discharge(declared.txn_id, fail)) == Accepted()
    wire.send(Close())
    wire.until(Close)
    assert eventually(lambda: orders.in_flight() == 0)
    assert orders.depth() == (3 if fail else 1)


@pytest.mark.parametrize("anonymous", [False, True])
def test_who_names_a_queue_that_there_is_not_is_told_nothing_of_the_others(
    listener: Listener, anonymous: bool
) -> None:
    wire = Wire(listener).begun()
    target = Target(None if anonymous else "order")
    wire.send(Attach(name="s", handle=0, role=Role.SENDER, target=target))
    if anonymous:
        payload = wire.codec.values.encode((Properties(to="order"), AmqpValue({"n": 1})))
        wire.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"x", payload=payload))
        error = wire.until(Disposition).state.error
    else:
        error = wire.until(Detach).error
    assert error.symbol == "amqp:not-found"
    assert error.description == "There is no queue 'order', or it is dropped."


def test_an_instant_that_python_does_not_have_is_refused_only_where_it_is_used(
    listener: Listener,
) -> None:
    listener.manager.create_queue("plain", "body string, creation_time timestamp")
    listener.manager.create_queue("bodies", "body string")
    wire = Wire(listener).begun()
    never = bytes.fromhex("83 7fffffffffffffff")
    created = bytes.fromhex("005373 c0 13 0a 40404040404040 40") + never + never
    headers = bytes.fromhex("005374 c1 0d 02 a1 01") + b"x" + never
    body = wire.codec.values.encode((AmqpValue("text"),))
    said = {}
    for handle, (queue, payload) in enumerate(
        [("plain", created + body), ("bodies", created + body), ("bodies", headers + body)]
    ):
        wire.attach(handle, Role.SENDER, target=Target(queue))
        wire.send(Transfer(handle=handle, delivery_id=handle, delivery_tag=b"a", payload=payload))
        said[handle] = wire.until(Disposition).state
    assert said[0].error.symbol == "amqp:invalid-field"
    assert (said[1], said[2]) == (Accepted(), Accepted())
    found = listener.manager.queue("bodies").peek_messages()
    assert [one["_message"]["headers"] for one in found] == [None, {"x": str(2**63 - 1)}]


def test_a_message_of_another_format_is_not_read_as_if_it_were_of_this_one(
    listener: Listener,
) -> None:
    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, target=Target("orders"))
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    one = Transfer(handle=0, delivery_id=0, delivery_tag=b"a", message_format=256, payload=payload)
    wire.send(one)
    assert wire.ends_with("amqp:not-implemented", Detach)
    assert listener.manager.queue("orders").depth() == 0


def test_a_coordinator_takes_no_long_messages(listener: Listener) -> None:
    """Whoever may do nothing else may declare."""
    wire = Wire(listener).begun()
    wire.send(Attach(name="c", handle=0, role=Role.SENDER, target=Coordinator()))
    assert wire.until(Attach).max_message_size == 4_096
    payload = wire.codec.values.encode((AmqpData(bytes(4_000)), AmqpValue(Declare())))
    wire.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"c", payload=payload))
    assert isinstance(wire.until(Disposition).state, Declared)
    wire.send(Transfer(handle=0, delivery_id=1, delivery_tag=b"d", payload=bytes(4_097)))
    assert wire.ends_with("amqp:link:message-size-exceeded", Detach)


@pytest.mark.rule("S1-33")
def test_work_that_came_too_late_for_its_link_forbids_the_commit(listener: Listener) -> None:
    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, source=Source(), target=Coordinator())
    txn_id = wire.ask(0, Declare()).txn_id
    wire.attach(1, Role.SENDER, source=Source(), target=Target("orders"))
    listener.manager.drop_queue("orders", reason="gone")
    assert wire.until(Detach).error.symbol == "amqp:resource-deleted"
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    late = Transfer(
        handle=1,
        delivery_id=1,
        delivery_tag=b"x",
        state=TransactionalState(txn_id),
        payload=payload,
    )
    wire.send(late)
    refused = wire.ask(2, Discharge(txn_id, fail=False))
    assert refused.error.symbol == "amqp:transaction:rollback"


def test_the_manager_of_a_user_is_not_made_by_the_thread_that_serves_all_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_by: list[str] = []
    resource_of = AmqpServer._resource_of

    def noting(server: AmqpServer, user: str) -> Any:
        made_by.append(threading.current_thread().name)
        return resource_of(server, user)

    monkeypatch.setattr(AmqpServer, "_resource_of", noting)
    with listening() as listener:
        Wire(listener).begun()
    assert [name.startswith("txnqueue amqp_") for name in made_by] == [True]


def test_a_client_that_does_not_say_who_it_is_gets_no_further(listener: Listener) -> None:
    wire = Wire(listener)
    wire.socket.sendall(AMQP_HEADER)
    assert wire.header() == SASL_HEADER
    with pytest.raises(EOFError):
        wire.more()


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        SASL_HEADER + b"\xff" * 8,
        SASL_HEADER + framed(b"\x00\x53\x41\xc0\x01\x00", kind=1),
        SASL_HEADER + framed(b"garbage", kind=1),
        SASL_HEADER + framed(b"\x00\x53\x10\xc0\x03\x01\xa1\x00"),
    ],
)
def test_garbage_before_the_end_of_sasl_ends_the_socket(listener: Listener, octets: bytes) -> None:
    wire = Wire(listener)
    wire.socket.sendall(octets)
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            wire.more()
    assert eventually(lambda: listener.server.connections == 0)


def test_a_response_of_sasl_that_is_a_text_is_no_response() -> None:
    with pytest.raises(InvalidInput, match="binary"):
        FrameCodec(ProtonCodec()).read(b"\x00\x53\x41\xc0\x0c\x02\xa3\x05PLAIN\xa1\x02no")


@pytest.mark.parametrize(
    ("octets", "condition"),
    [
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x09\x00\x00\x00", "amqp:connection:framing-error"),
        (framed(b"", kind=7), "amqp:connection:framing-error"),
        (framed(b"garbage"), "amqp:decode-error"),
        (framed(b"\x00\x53\x12\xc0\x03\x01\xa1\x00"), "amqp:decode-error"),
        (framed(b"\x00\x53\x99\xc0\x01\x00"), "amqp:decode-error"),
        (framed(b"\x00\x53\x17\xc0\x01\x00", channel=9), "amqp:not-allowed"),
        (framed(b"\x00\x53\x10\xa1\x01x"), "amqp:decode-error"),
        (framed(b"\x00\x53\x10" + nested(2_000)), "amqp:decode-error"),
    ],
)
def test_garbage_closes_the_connection_and_rolls_back(
    listener: Listener, octets: bytes, condition: str
) -> None:
    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, source=Source(), target=Coordinator())
    txn_id = wire.ask(0, Declare()).txn_id
    wire.attach(1, Role.SENDER, source=Source(), target=Target("orders"))
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    state = TransactionalState(txn_id)
    wire.send(Transfer(handle=1, delivery_id=1, delivery_tag=b"x", state=state, payload=payload))
    wire.until(Disposition)
    wire.socket.sendall(octets)
    assert wire.ends_with(condition)
    wire.send(Close())
    assert eventually(lambda: listener.server.connections == 0)
    assert listener.manager.queue("orders").depth() == 0


def test_what_breaks_the_rules_of_sessions_ends_the_session(listener: Listener) -> None:
    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, source=Source(), target=Target("orders"))
    wire.send(Attach(name="other", handle=0, role=Role.SENDER, target=Target("orders")))
    assert wire.ends_with("amqp:session:handle-in-use", End)
    wire.send(End())
    wire.send(Begin(window=WINDOW), channel=1)
    wire.until(Begin)
    wire.send(Transfer(handle=5, delivery_id=0, delivery_tag=b"x"), channel=1)
    assert wire.ends_with("amqp:session:unattached-handle", End)
    wire.send(Transfer(handle=5, delivery_id=1, delivery_tag=b"y"), End(), channel=1)
    wire.send(Begin(window=WINDOW), channel=1)
    assert isinstance(wire.take(), Begin)
    wire.send(Begin(window=WINDOW), channel=1)
    assert wire.ends_with("amqp:not-allowed")


def test_other_sessions_are_told_at_once_of_what_ends_with_a_session() -> None:
    """A transaction is rolled back with its control link, and a tick is far away."""
    with listening(tick_seconds=600) as listener:
        listener.manager.create_queue("orders", "n long").send([{"n": 1}])
        wire = Wire(listener).begun()
        wire.attach(0, Role.SENDER, source=Source(), target=Coordinator())
        txn_id = wire.ask(0, Declare()).txn_id
        wire.send(Begin(window=WINDOW), channel=1)
        wire.until(Begin)
        source, target = Source("orders"), Target()
        attach = Attach(name="r", handle=0, role=Role.RECEIVER, source=source, target=target)
        wire.send(attach, channel=1)
        flow = Flow(handle=0, link_credit=1, properties={"txn-id": txn_id})
        wire.send(SessionFlow(WINDOW, flow), channel=1)
        assert wire.until(Transfer).delivery_id == 0
        wire.send(End())
        told = wire.until(Disposition)
        assert (told.first, told.settled, told.state) == (0, True, Released())


class NeverEmpty:
    """A queue to which a message comes with each claim, and which notes who claims."""

    def __init__(self, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claimed_by: list[str] = []
        self.came = threading.Event()
        self.waited_in_vain = False
        self._orders = listener.manager.queue("orders")
        receive = Queue.receive

        def claiming(*how: Any, **named: Any) -> Any:
            self._note()
            return receive(*how, **named)

        monkeypatch.setattr(Queue, "receive", claiming)

    def _note(self) -> None:
        if self.claimed_by and not self.waited_in_vain:
            self.waited_in_vain = not self.came.wait(SECONDS)
        self.claimed_by.append(threading.current_thread().name)
        self._orders.send([{"n": len(self.claimed_by)}])


def test_of_a_queue_that_is_never_empty_messages_are_sent_as_they_are_acquired(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ones are acquired once the client has the first, and not by the ticks' threads."""
    queue = NeverEmpty(listener, monkeypatch)
    wire = Wire(listener).begun()
    wire.attach(0, Role.RECEIVER, source=Source("orders"), target=Target())
    wire.send(SessionFlow(MUCH, Flow(handle=0, link_credit=1_000)))
    assert wire.until(Transfer).delivery_id == 0
    queue.came.set()
    assert [wire.until(Transfer).delivery_id for _ in range(20)] == list(range(1, 21))
    assert not queue.waited_in_vain
    assert eventually(lambda: len(queue.claimed_by) >= 25)
    assert not any("beat" in name for name in queue.claimed_by)


@pytest.mark.parametrize("sessions", [1, 2])
def test_the_links_of_a_client_take_turns_and_none_waits_for_what_the_others_acquire(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    wire = Wire(listener).begun()
    if sessions == 2:
        wire.send(Begin(window=WINDOW), channel=1)
        wire.until(Begin)
    for handle in (0, 1):
        channel = handle if sessions == 2 else 0
        source, target = Source("orders"), Target()
        attach = Attach(
            name=f"r{handle}", handle=handle, role=Role.RECEIVER, source=source, target=target
        )
        wire.send(attach, channel=channel)
        wire.send(
            SessionFlow(MUCH, Flow(handle=handle, link_credit=100, echo=True)), channel=channel
        )
        wire.until(SessionFlow)
    queue = NeverEmpty(listener, monkeypatch)
    first = wire.until(Transfer).handle
    queue.came.set()
    while wire.until(Transfer).handle == first:
        pass
    assert not queue.waited_in_vain


@pytest.mark.parametrize("goes", [True, False])
def test_a_client_with_much_credit_of_a_queue_that_is_never_empty_keeps_nobody_from_stopping(
    monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    listener = Listener()
    with listener.server:
        listener.manager.create_queue("orders", "n long")
        queue = NeverEmpty(listener, monkeypatch)
        queue.came.set()
        wire = Wire(listener).begun()
        wire.attach(0, Role.RECEIVER, source=Source("orders"), target=Target())
        wire.send(SessionFlow(MUCH, Flow(handle=0, link_credit=1_000)))
        wire.until(Transfer)
        if goes:
            wire.end()
            assert eventually(lambda: listener.server.connections == 0)
        assert listener.server.stop(grace_seconds=0.1, timeout_seconds=SECONDS)
        claims = len(queue.claimed_by)
        assert claims < 1_000
        wire.end()
        assert listener.manager.queue("orders").in_flight() == 0
        assert len(queue.claimed_by) == claims


def test_no_more_is_sent_than_the_window_of_a_session_takes(listener: Listener) -> None:
    listener.manager.queue("orders").send([{"n": n} for n in range(5)])
    wire = Wire(listener).let_in()
    few = Window(next_incoming_id=None, incoming_window=2, next_outgoing_id=0, outgoing_window=9)
    wire.send(Begin(window=few))
    wire.attach(0, Role.RECEIVER, source=Source("orders"), target=Target())
    few = Window(next_incoming_id=0, incoming_window=2, next_outgoing_id=0, outgoing_window=9)
    wire.send(SessionFlow(few, Flow(handle=0, link_credit=5)))
    assert [wire.take().delivery_id for _ in range(2)] == [0, 1]
    wire.send(SessionFlow(few, Flow(echo=True)))  # it has got none of them yet
    assert isinstance(wire.take(), SessionFlow)
    more = Window(next_incoming_id=2, incoming_window=1, next_outgoing_id=0, outgoing_window=9)
    wire.send(SessionFlow(more, Flow()))
    assert wire.take().delivery_id == 2
    wire.send(SessionFlow(more, Flow(echo=True)))
    assert isinstance(wire.take(), SessionFlow)


@pytest.mark.parametrize(
    ("ends", "condition"),
    [
        ({"source": Source(dynamic=True)}, "amqp:not-implemented"),
        ({"source": Source("orders", distribution_mode="copy")}, "amqp:not-implemented"),
        ({"source": Source("nothing")}, "amqp:not-found"),
        ({}, "amqp:not-found"),
    ],
)
def test_a_link_that_cannot_be_had_says_why(
    listener: Listener, ends: dict[str, Any], condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.protocols.amqp import frame_codec

    def whole(codec: ProtonCodec, source: Source | None) -> Any:
        if source is None:
            return None
        fields = [source.address, None, None, None, source.dynamic, None]
        mode = source.distribution_mode
        return codec.described(0x28, [*fields, None if mode is None else codec.symbol(mode)])

    wire = Wire(listener).begun()
    monkeypatch.setattr(frame_codec, "_written_source", whole)
    wire.attach(0, Role.RECEIVER, **ends)
    assert wire.ends_with(condition, Detach)


def test_an_attach_that_names_unsettled_deliveries_is_refused_as_a_link_only(
    listener: Listener,
) -> None:
    wire = Wire(listener).begun()
    values = wire.codec.values
    left = {b"tag": None}
    attach = ["l0", values.uint(0), Role.SENDER.value, None, None, None, None, left]
    body = values.encode_described(0x12, attach)
    wire.socket.sendall(framed(body))
    assert wire.ends_with("amqp:not-allowed", Detach)


def test_a_delivery_is_put_together_of_its_parts_or_given_up() -> None:
    with listening(limits=Limits(frame_bytes=512)) as listener:
        letters = listener.manager.create_queue("letters", "body binary")
        wire = Wire(listener).begun()
        wire.attach(0, Role.SENDER, source=Source(), target=Target("letters"))
        payload = wire.codec.values.encode((AmqpData(b"x" * 1000),))
        for number, aborted in enumerate((True, False)):
            for at in range(0, 900, 300):
                part = payload[at : at + 300]
                tag = b"%d" % number
                wire.send(
                    Transfer(
                        handle=0, delivery_id=number, delivery_tag=tag, more=True, payload=part
                    )
                )
            wire.send(
                Transfer(handle=0, delivery_id=number, aborted=True)
                if aborted
                else Transfer(handle=0, payload=payload[900:])
            )
        assert wire.until(Disposition).state == Accepted()
        assert [row["body"] for row in letters.peek_messages()] == [b"x" * 1000]


def test_the_settle_mode_of_a_transfer_is_read_from_its_frame(listener: Listener) -> None:
    wire = Wire(listener).begun()
    second = ReceiverSettleMode.SECOND
    wire.attach(0, Role.SENDER, source=Source(), target=Target("orders"), rcv_settle_mode=second)
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    for number, mode in enumerate((None, ReceiverSettleMode.FIRST, second)):
        transfer = Transfer(
            handle=0,
            delivery_id=number,
            delivery_tag=b"%d" % number,
            rcv_settle_mode=mode,
            payload=payload,
        )
        wire.send(transfer)
        assert wire.until(Disposition).settled == (mode is ReceiverSettleMode.FIRST)


def heavy_letters(listener: Listener) -> Any:
    """Create a queue and send 40 MB to it."""
    letters = listener.manager.create_queue("letters", "body binary")
    letters.send([{"body": b"x" * 1_000_000} for _ in range(40)])
    return letters


def wait_until_stuck(listener: Listener) -> None:
    """Wait until a client that reads nothing is sent nothing more: all buffers are full."""
    (client,) = listener.server._clients
    said = -1
    while said != client._said_octets or not client._unread():
        said = client._said_octets
        time.sleep(0.5)


def receiving(listener: Listener, queue: str) -> Wire:
    """Connect a client with a link from a queue, without credit."""
    wire = Wire(listener).begun()
    wire.attach(0, Role.RECEIVER, source=Source(queue), target=Target())
    return wire


def unread(listener: Listener) -> tuple[Any, Wire]:
    """Connect a client to which 40 MB are sent, of which it reads nothing."""
    letters = heavy_letters(listener)
    wire = receiving(listener, "letters")
    wire.send(SessionFlow(MUCH, Flow(handle=0, link_credit=40)))
    assert eventually(lambda: letters.in_flight() == 40)
    return letters, wire


def test_of_what_a_client_has_claimed_only_as_much_is_read_as_it_soon_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim is of 100 MB; the client reads nothing at first, and then everything."""
    monkeypatch.setattr(connection, "UNREAD_OCTETS_MAX", 100_000)
    with listening(limits=Limits(unsent_bytes=3_000_000)) as listener:
        letters = listener.manager.create_queue("letters", "body binary")
        letters.send([{"body": b"x" * 1_000_000} for _ in range(100)])
        table, read = listener.store.payload.table, []

        def counting(schema: Any, parts: Any) -> Any:
            found = table(schema, parts)
            read.append(found.num_rows)
            return found

        monkeypatch.setattr(listener.store.payload, "table", counting)
        wire = receiving(listener, "letters")
        window = Window(
            next_incoming_id=0, incoming_window=99_999, next_outgoing_id=0, outgoing_window=9
        )
        wire.send(SessionFlow(window, Flow(handle=0, link_credit=100)))
        assert eventually(lambda: letters.in_flight() == 100)
        wait_until_stuck(listener)
        assert sum(read) < 50, "the buffers of the sockets take some of it"
        ends_seen = 0
        while ends_seen < 100:
            ends_seen += not wire.until(Transfer).more
        assert max(read[1:]) <= 3 and sum(read) == 100


def test_a_client_that_neither_reads_nor_writes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "CLOSING_SECONDS", 0.5)
    with listening(idle_seconds=0.5) as listener:
        letters, _wire = unread(listener)
        assert eventually(lambda: listener.server.connections == 0)
        assert eventually(lambda: (letters.depth(), letters.in_flight()) == (40, 0))


def test_a_client_that_reads_no_more_is_counted_until_its_socket_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "CLOSING_SECONDS", 2.0)
    with listening(limits=Limits(connections=1)) as listener:
        letters = listener.manager.create_queue("letters", "body binary")
        wire = receiving(listener, "letters")
        wire.send(SessionFlow(MUCH, Flow(handle=0, link_credit=40, echo=True)))
        wire.until(SessionFlow)
        letters.send([{"body": b"x" * 1_000_000} for _ in range(40)])
        assert eventually(lambda: letters.in_flight() == 40)
        wait_until_stuck(listener)
        wire.socket.shutdown(socket.SHUT_WR)
        assert eventually(lambda: letters.in_flight() == 0)
        assert listener.server.connections == 1
        with pytest.raises((EOFError, ConnectionResetError)):
            Wire(listener).let_in()
        assert eventually(lambda: listener.server.connections == 0)
        Wire(listener).let_in()
        assert rest_of(wire) < 40_000_000  # the socket is closed, and not only forgotten


def test_a_client_that_says_it_lives_and_reads_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "CLOSING_SECONDS", 0.5)
    monkeypatch.setattr(client_connection, "UNREAD_SECONDS", 0.5)
    with listening() as listener:
        _, wire = unread(listener)

        def left() -> bool:
            with suppress(OSError):
                wire.socket.sendall(framed(b""))
            return listener.server.connections == 0

        assert eventually(left)


def test_a_client_that_reads_slowly_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "CLOSING_SECONDS", 0.3)
    monkeypatch.setattr(client_connection, "UNREAD_SECONDS", 1.5)
    with listening() as listener:
        _, wire = unread(listener)
        until, octets = time.monotonic() + 3.0, 0
        while time.monotonic() < until:
            octets += len(wire.socket.recv(65_536))
            time.sleep(0.01)
        assert octets < 40_000_000, "it has read all of it"
        assert listener.server.connections == 1


def test_a_client_that_sends_without_reading_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "CLOSING_SECONDS", 0.5)
    monkeypatch.setattr(client_connection, "INBOX_OCTETS_MAX", 10_000)
    with listening(idle_seconds=1.0) as listener:
        _, wire = unread(listener)
        wire.send(*[SessionFlow(MUCH, Flow())] * 1_000)
        assert eventually(lambda: listener.server.connections == 0)


def test_short_frames_take_room_too(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    stage = listener.store.payload.stage

    def stuck(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        return stage(*arguments, **named)

    wire = Wire(listener).begun()
    wire.attach(0, Role.SENDER, source=Source(), target=Target("orders"))
    monkeypatch.setattr(listener.store.payload, "stage", stuck)
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    wire.send(Transfer(handle=0, delivery_id=0, delivery_tag=b"x", payload=payload))
    assert entered.wait(10)
    wire.send(*[SessionFlow(WINDOW, Flow())] * 50_000)
    (client,) = listener.server._clients
    room = client_connection.INBOX_OCTETS_MAX // client_connection.FRAME_OCTETS
    assert eventually(lambda: not client._room.is_set())
    assert len(client._inbox) < 2 * room
    go_on.set()
    assert wire.until(Disposition).state == Accepted()


def test_what_goes_settled_waits_in_the_queue_until_the_client_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNREAD_OCTETS_MAX", 100_000)
    with listening(limits=Limits(unsettled=5)) as listener:
        letters, wire = heavy_letters(listener), Wire(listener).begun()
        settled = SenderSettleMode.SETTLED
        ends = {"source": Source("letters"), "target": Target(), "snd_settle_mode": settled}
        wire.attach(0, Role.RECEIVER, **ends)
        window = Window(
            next_incoming_id=0, incoming_window=99_999, next_outgoing_id=0, outgoing_window=9
        )
        wire.send(SessionFlow(window, Flow(handle=0, link_credit=1_000)))
        assert not eventually(lambda: letters.depth() < 20, 1.0)
        ends_seen = 0
        while ends_seen < 40:
            ends_seen += not wire.until(Transfer).more
        assert (letters.depth(), letters.in_flight()) == (0, 0)


def post_slowly(
    monkeypatch: pytest.MonkeyPatch, listener: Listener, wire: Wire, *, handle: int, count: int
) -> None:
    """Send messages, each of which takes the server a tenth of a second."""
    stage = listener.store.payload.stage

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.1)
        return stage(*arguments, **named)

    monkeypatch.setattr(listener.store.payload, "stage", slow)
    payload = wire.codec.values.encode((AmqpValue({"n": 1}),))
    wire.send(
        *(
            Transfer(handle=handle, delivery_id=n, delivery_tag=b"%d" % n, payload=payload)
            for n in range(count)
        )
    )


def test_much_work_of_a_client_keeps_its_own_leases_from_ending(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = listener.manager.create_queue("short", "n long", lease_seconds=0.6)
    short.send([{"n": 1}])
    wire = receiving(listener, "short")
    wire.send(SessionFlow(WINDOW, Flow(handle=0, link_credit=1)))
    held = wire.until(Transfer)
    wire.attach(1, Role.SENDER, source=Source(), target=Target("orders"))
    post_slowly(monkeypatch, listener, wire, handle=1, count=20)
    for _ in range(20):
        assert wire.until(Disposition).state == Accepted()
    other = QueueManager(None, store=listener.store, consumer="other").queue("short")
    assert len(other.receive(1)) == 0
    settled = Disposition(
        role=Role.RECEIVER, first=held.delivery_id, settled=True, state=Accepted()
    )
    wire.send(settled)
    assert eventually(lambda: (short.depth(), short.in_flight()) == (0, 0))


def test_a_client_that_has_sent_much_takes_turns_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread serves them all; what the first has sent takes it longer than others may wait."""
    monkeypatch.setattr(client_connection, "OPENING_SECONDS", 2.0)
    with listening(threads=1) as listener:
        listener.manager.create_queue("orders", "n long")
        wire = Wire(listener).begun()
        wire.attach(0, Role.SENDER, source=Source(), target=Target("orders"))
        post_slowly(monkeypatch, listener, wire, handle=0, count=50)
        wire.until(Disposition)
        Wire(listener).begun()
        assert len(listener.manager.queue("orders").peek_messages(100)) < 40
        for _ in range(49):
            assert wire.until(Disposition).state == Accepted()


def test_a_client_that_has_sent_much_gets_messages_before_all_of_it_is_processed(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.manager.create_queue("others", "n long")
    wire = receiving(listener, "orders")
    wire.send(SessionFlow(WINDOW, Flow(handle=0, link_credit=1)))
    wire.attach(1, Role.SENDER, source=Source(), target=Target("others"))
    post_slowly(monkeypatch, listener, wire, handle=1, count=30)
    wire.until(Disposition)
    listener.manager.queue("orders").send([{"n": 1}])
    wire.until(Transfer)
    assert len(listener.manager.queue("others").peek_messages(100)) < 30


def test_a_client_that_waits_for_a_thread_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time to open the connection is its own time, not the server's."""
    monkeypatch.setattr(client_connection, "OPENING_SECONDS", 0.5)
    with listening(threads=1) as listener:
        listener.manager.create_queue("orders", "n long")
        busy, free = threading.Event(), threading.Event()
        listener.server._services.workers.submit(lambda: (busy.set(), free.wait(10)))
        assert busy.wait(10)
        threading.Timer(1.5, free.set).start()
        Wire(listener).begun()
