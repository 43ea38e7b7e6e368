"""The octets of AMQP 1.0's transaction types, by Proton; and messages as octets."""

from __future__ import annotations

import contextlib
import datetime
import tracemalloc
from decimal import Decimal
from typing import Any
from uuid import UUID

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.conformance.conftest import in_memory, on_delta_when_long
from tests.specifications.controllers import Pipeline, Scene, bodies, condition, row
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpData,
    AmqpError,
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Coordinator,
    Declare,
    Declared,
    Described,
    Discharge,
    Disposition,
    Error,
    ErrorCondition,
    Header,
    Modified,
    Properties,
    ProtonCodec,
    Received,
    Rejected,
    Released,
    Role,
    TransactionalState,
    TransactionError,
    TxnCapability,
)
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.frames import FRAME_OCTETS_MIN

LOCAL, SEVERAL = TxnCapability.LOCAL_TRANSACTIONS, TxnCapability.MULTI_TXNS_PER_SSN


@pytest.fixture
def codec() -> ProtonCodec:
    pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")
    return ProtonCodec()


@pytest.mark.rule("S1-14")
@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (Coordinator((LOCAL,)), "0053 30"),
        (Declare(), "0053 31 45"),
        (Declare(b"g"), "0053 31"),
        (Discharge(b"t", True), "0053 32"),
        (Declared(b"t"), "0053 33"),
        (TransactionalState(b"t"), "0053 34"),
    ],
)
def test_the_descriptors_of_the_five_types(codec: Any, value: Any, octets: str) -> None:
    assert codec.encode_type(value).startswith(bytes.fromhex(octets))
    assert codec.decode_type(codec.encode_type(value)) == value


@pytest.mark.rule("S1-14", "S1-22", "S1-08", "S1-15")
@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("005331 45", Declare()),
        ("00a311 616d71703a6465636c6172653a6c697374 45", Declare()),  # by its name
        ("005332 c0050 2a00174 41", Discharge(b"t", True)),
        ("005332 c0040 1a00174", Discharge(b"t")),
        ("005333 c0040 1a00174", Declared(b"t")),
        ("005334 c0080 2a00174 005324 45", TransactionalState(b"t", Accepted())),
        ("005330 45", Coordinator()),
        ("005323 c0030 24344", Received(0, 0)),
        ("005399 45", Described(0x99, [])),
        ("00a303 783a79 a1017a", Described("x:y", "z")),
        (
            "005334 c0080 2a00174 005399 45",
            TransactionalState(b"t", Described(0x99, [])),  # type: ignore[arg-type]
        ),
        ("83 7fffffffffffffff", 2**63 - 1),  # an instant that Python does not have
        ("83 8000000000000000", -(2**63)),
        (
            "005330 c0 1a 01 a3 17 616d71703a6c6f63616c2d7472616e73616374696f6e73",
            Coordinator((LOCAL,)),
        ),
    ],
)
def test_octets_that_others_write_are_read(codec: Any, octets: str, value: Any) -> None:
    assert codec.decode_type(bytes.fromhex(octets.replace(" ", ""))) == value


@pytest.mark.parametrize(
    "value",
    [
        Coordinator((LOCAL, SEVERAL)),
        Discharge(b"t", False),
        TransactionalState(b"t" * 32, Rejected(Error(TransactionError.TIMEOUT, "late"))),
        TransactionalState(b"t", Modified(delivery_failed=True)),
        Released(),
        Rejected(),
        Error(ErrorCondition.NOT_FOUND, "no such queue"),
        Header(9, 60_000, True, 3),
        Properties("id", "replies", "c-1", "orders"),
        Rejected(Error("amqp:precondition-failed", "not now")),
        Rejected(Error("com.example:no-such-customer")),
        Coordinator((LOCAL, "com.example:nested")),
        Received(1, 2**40),
        TransactionalState(b"t", Received(0, 0)),  # type: ignore[arg-type]
        AmqpData(b"octets"),
        AmqpSequence([1, "two", b"three"]),
        ApplicationProperties({"a": "b"}),
        AmqpValue({"n": 1, "x": None, "y": [1.5, True], "z": b"octets"}),
        AmqpValue({"at": datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)}),
    ],
)
def test_what_is_written_is_read_again(codec: Any, value: Any) -> None:
    assert codec.decode_type(codec.encode_type(value)) == value


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("74 32800001", "1"),
        ("74 77f8967f", "9.999999E+96"),
        ("84 31c0000000000005", "5"),
        ("84 b1c0000000000005", "-5"),
        ("84 7800000000000000", "Infinity"),
        ("84 f800000000000000", "-Infinity"),
        ("84 7c00000000000000", "NaN"),
        ("84 6c7386f26fc10000", "0"),  # a coefficient of too many digits
        ("94 303e00000000000000000000000000 7d", "12.5"),
    ],
)
def test_decimals_are_what_they_say_and_not_their_octets(
    codec: Any, octets: str, value: str
) -> None:
    found = codec.decode_type(bytes.fromhex(octets.replace(" ", "")))
    assert isinstance(found, Decimal)
    assert str(found) == value or (value == "0" and found == 0)


def test_an_id_of_octets_is_text_as_in_headers(codec: Any) -> None:
    """The example is the message-id and the correlation-id of a client that has binary ids."""
    octets = bytes.fromhex("005373 c00c06 a002 01ff 40404040 a001 02".replace(" ", ""))
    assert codec.decode_type(octets) == Properties(message_id="Af8=", correlation_id="Ag==")


@pytest.mark.rule("S1-14", "S1-22")
@pytest.mark.parametrize(
    "octets",
    [
        "005332 45",  # no txn-id
        "005334 45",
        "005333 c0020 140",  # null
        "005334 c0" + "24 01 a0 21" + "78" * 33,  # 33 octets
        "005334 c0050 1a10178",  # a string
        "005334 c0",
        "00",
        "00d000000000 45",  # described by a list
        "d100000006 02 45 40",
        "00531d 45",  # an error without a condition
        "005331 45 45",
    ],
)
def test_octets_that_are_wrong_are_refused(codec: Any, octets: str) -> None:
    with pytest.raises(InvalidInput):
        codec.decode_type(bytes.fromhex(octets.replace(" ", "")))


@pytest.mark.parametrize(
    ("section", "count"),
    [("005375 a0 00", 70_000), ("005372 c1 01 00", 17), ("005376 45", 17)],
)
def test_a_message_has_no_more_sections_than_are_read_in_a_moment(
    codec: Any, section: str, count: int
) -> None:
    octets = bytes.fromhex(section.replace(" ", ""))
    codec.decode(octets * (count - 7_000 if count > 17 else 16))
    with pytest.raises(InvalidInput, match="at most 65535 data sections, and 16 others"):
        codec.decode(octets * count)


def test_to_cut_off_a_section_copies_nothing_of_those_behind_it(codec: Any) -> None:
    octets = codec.encode((Header(), AmqpData(bytes(1 << 20))))
    tracemalloc.start()
    try:
        assert codec.decode(octets)[0] == Header()
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(octets)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda n: b"\x98" + (n << 64).to_bytes(16, "big"), lambda n: str(UUID(int=n << 64))),
        (lambda n: b"\x94" + (6176 << 113 | n).to_bytes(16, "big"), str),
    ],
)
def test_keys_of_which_many_can_have_one_hash_are_text(codec: Any, written: Any, text: Any) -> None:
    same = [n * (2**61 - 1) for n in range(1, 4)]
    items = b"".join(written(n) + b"\x40" for n in same)
    octets = b"\x00\x53\x77\xc1" + bytes((1 + len(items), 2 * len(same))) + items
    assert codec.decode(octets) == (AmqpValue({text(n): None for n in same}),)


@pytest.mark.parametrize("key", ["45", "005399 43", "005377 43"])
def test_what_cannot_be_a_key_of_a_map_is_refused(codec: Any, key: str) -> None:
    items = bytes.fromhex(key.replace(" ", "")) + b"\x40"
    with pytest.raises(InvalidInput):
        codec.decode(b"\x00\x53\x77\xc1" + bytes((1 + len(items), 2)) + items)


def test_octets_are_keys_of_a_map_but_no_names_of_properties(codec: Any) -> None:
    one = b"\xc1\x05\x02\xa0\x01k\x40"
    assert codec.decode(b"\x00\x53\x77" + one) == (AmqpValue({b"k": None}),)
    with pytest.raises(InvalidInput):
        codec.decode(b"\x00\x53\x74" + one)


def test_a_value_without_a_type_is_refused(codec: Any) -> None:
    with pytest.raises(InvalidInput):
        codec.encode((AmqpValue(object()),))


def test_sections_without_a_use_are_skipped(codec: Any) -> None:
    sections = (Header(priority=9), AmqpValue({"n": 1}))
    annotations = bytes.fromhex("005372c10100")
    octets = codec.encode(sections[:1]) + annotations + codec.encode(sections[1:])
    assert codec.decode(octets) == sections
    with pytest.raises(InvalidInput):
        codec.decode(codec.encode_type(Declare()))


@on_delta_when_long
@pytest.mark.rule("S1-26")
def test_a_controller_that_speaks_in_octets(world: Any, codec: Any) -> None:
    """Messages as octets, in frames that are shorter than a message."""
    scene = Scene(world, controller={"codec": codec, "payload_max": 20})
    sender, receiver = scene.sender(), scene.receiver()
    txn_id = scene.controller.declare()
    sender.send(row(1), txn_id, headers={"a": "b"})
    octets = codec.encode((AmqpValue(row(2)),))
    state = TransactionalState(txn_id)
    part = sender.transfer(octets[:5], state=state, more=True)
    sender.transfer(octets[5:], state=state, part_of=part)
    scene.controller.discharge(txn_id)
    txn_id = scene.controller.declare()
    found = receiver.flow(2, txn_id)
    assert bodies(found) == [1, 2] and ApplicationProperties({"a": "b"}) in found[0].payload
    receiver.dispose(found, Accepted(), txn_id)
    scene.controller.discharge(txn_id)
    assert scene.counts == (0, 0)
    with pytest.raises(AmqpError) as caught:
        sender.transfer(b"\x00\x53")
    assert condition(caught.value) == "amqp:decode-error"


@in_memory
@pytest.mark.rule("S1-16", "S1-29")
def test_states_that_mean_nothing_here_are_refused_in_their_session(world: Any, codec: Any) -> None:
    """Reading them fails nobody: what they belong to is refused where its transaction is known."""
    scene = Scene(world)
    scene.orders.send([row(1)])
    pipe = Pipeline(scene.resource.connect(codec=None))
    pipe.receiver(scene.name, 1)
    txn_id = pipe.declare()
    state = TransactionalState(txn_id, codec.decode_type(bytes.fromhex("00539945")))
    pipe.dispose(state, 0)
    assert condition(pipe.frames[-1].error) == "amqp:not-implemented"
    assert pipe.discharge(txn_id) == "amqp:transaction:rollback"


@in_memory
@pytest.mark.parametrize(
    "body",
    [
        (AmqpValue("text"),),
        (AmqpData(b"octets"),),
        (AmqpSequence([{"n": 1}]),),
        (AmqpValue({"n": 1, "key": None}), AmqpValue({"n": 2, "key": None})),
        (),
    ],
)
def test_a_body_that_no_queue_takes_is_rejected(world: Any, codec: Any, body: Any) -> None:
    scene = Scene(world, controller={"codec": codec})
    sender = scene.sender()
    refused = sender.transfer(codec.encode((Header(priority=9), *body)))
    assert isinstance(refused.state, Rejected)
    assert condition(refused.state.error) == "amqp:not-implemented"
    assert sender.send(row(3)).state == Accepted() and scene.waiting() == [3]


@hypothesis.given(st.binary(max_size=40), st.sampled_from(["", "005377", "005334c0", "005373d0"]))
def test_octets_are_read_or_refused(octets: bytes, before: str) -> None:
    proton = pytest.importorskip("proton")
    assert proton
    for read in (ProtonCodec().decode, ProtonCodec().decode_type):
        with contextlib.suppress(InvalidInput):
            read(bytes.fromhex(before) + octets)


def test_without_the_library_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "proton", None)
    with pytest.raises(PlatformMissing, match="amqp"):
        ProtonCodec()


def test_what_is_wrong_is_told_in_a_frame_of_the_smallest_size(codec: ProtonCodec) -> None:
    frames = FrameCodec(codec)
    for description in ("x" * 1_000_000, "é" * 400, "\ud800" * 300, "short", ""):
        rejected = Rejected(Error(TransactionError.ROLLBACK, f"{description}: do it otherwise."))
        state = TransactionalState(bytes(32), rejected)
        told = Disposition(role=Role.RECEIVER, first=2**32 - 1, last=2**32 - 1, state=state)
        octets = frames.write(told)
        assert len(octets) <= FRAME_OCTETS_MIN
        read = frames.read(octets[8:])
        assert isinstance(read, Disposition) and isinstance(read.state, TransactionalState)
        outcome = read.state.outcome
        assert isinstance(outcome, Rejected) and outcome.error is not None
        assert outcome.error.description.endswith(": do it otherwise.")
