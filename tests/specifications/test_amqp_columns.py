"""Columns of every type in AMQP messages: there and back, in octets and without."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests import generated
from tests.conformance.conftest import World, in_memory
from tests.conftest import LONG
from tests.inside import client_of
from tests.specifications.amqp_controller import TransactionController
from tests.specifications.controllers import Pipeline, Scene, condition
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpValue,
    ApplicationProperties,
    Properties,
    ProtonCodec,
    Rejected,
    TransactionalResource,
)
from txnqueue.protocols.amqp.columns import read, unwritable, written
from txnqueue.protocols.amqp.performatives import Attach, Detach, Flow, Role, Transfer
from txnqueue.protocols.amqp.types import Source
from txnqueue.storage.payload.rows import arrow_table
from txnqueue.storage.payload.types import has_type

UTC = datetime.timezone.utc
AT = datetime.datetime(1969, 2, 28, 23, 59, 59, 123000, UTC)
NAIVE = datetime.datetime(2024, 3, 31, 2, 30, 0, 1)
"""An hour that does not exist in Berlin, and a microsecond."""

VALUES: list[tuple[DataType, Any, Any]] = [
    (StringType(), "äöü", "äöü"),
    (BinaryType(), b"\x00\xff", b"\x00\xff"),
    (BooleanType(), True, True),
    (ByteType(), -128, -128),
    (ShortType(), 1 << 14, 1 << 14),
    (IntegerType(), 1 << 30, 1 << 30),
    (LongType(), -(1 << 63), -(1 << 63)),
    (FloatType(), 0.5, 0.5),
    (DoubleType(), 1e300, 1e300),
    (DateType(), datetime.date(1, 1, 1), "0001-01-01"),
    (DecimalType(38, 10), Decimal("-0.0000000001"), "-0.0000000001"),
    (DecimalType(38, 0), Decimal(10**37), "1" + "0" * 37),
    (TimestampType(), AT, AT),
    (TimestampNTZType(), NAIVE, "2024-03-31T02:30:00.000001"),
    (ArrayType(DateType()), [datetime.date(2024, 1, 2), None], ["2024-01-02", None]),
    (MapType(StringType(), DecimalType(4, 2)), [("a", Decimal("1.50"))], {"a": "1.50"}),
    (MapType(TimestampType(), LongType()), [(AT, 1)], {AT.isoformat(): 1}),
    (
        StructType([StructField("d", DateType()), StructField("x", ArrayType(LongType()))]),
        {"d": datetime.date(2024, 1, 2), "x": [1]},
        {"d": "2024-01-02", "x": [1]},
    ),
]


def broker(world: World, schema: StructType, codec: str | None) -> tuple[Any, Any]:
    """Make a queue of some columns, and a controller of it."""
    try:
        octets = ProtonCodec() if codec else None
    except PlatformMissing:
        pytest.skip("python-qpid-proton is not installed: it needs a compiler")
    manager = world.manager("broker")
    queue = manager.create_queue("typed", schema)
    return queue, TransactionController(TransactionalResource(manager), codec=octets)


@in_memory
@pytest.mark.parametrize("codec", [None, "proton"])
def test_a_column_of_every_type_goes_out_and_comes_back(world: World, codec: str | None) -> None:
    columns = [StructField(f"c{n}", kind) for n, (kind, _, _) in enumerate(VALUES)]
    queue, controller = broker(world, StructType(columns), codec)
    row = {f"c{n}": value for n, (_, value, _) in enumerate(VALUES)}
    queue.send([row, dict.fromkeys(row)])
    full, empty = controller.receiver("typed").flow(2)
    assert full.body == {f"c{n}": said for n, (_, _, said) in enumerate(VALUES)}
    assert empty.body == dict.fromkeys(row)
    queue.purge()
    sender = controller.sender("typed")
    for body in (full.body, empty.body):
        sender.send(body)
    found = queue.receive(2).messages()
    assert [{name: m[name] for name in row} for m in found] == [row, dict.fromkeys(row)]


@in_memory
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DateType(), "2024-13-01"),
        (DecimalType(4, 2), "12,5"),
        (DecimalType(4, 2), "1.555"),
        (DecimalType(4, 2), "NaN"),
        (TimestampType(), "2024-01-02T03:04:05"),  # of which zone?
        (TimestampNTZType(), "2024-01-02T03:04:05+01:00"),
        (TimestampNTZType(), AT),
        (ArrayType(DateType()), ["soon"]),
        (MapType(StringType(), LongType()), [["a", 1, 2]]),
        (MapType(StringType(), LongType()), "a"),
        (LongType(), "5"),
    ],
    ids=str,
)
def test_what_is_no_value_of_the_column_is_rejected(world: World, kind: Any, body: Any) -> None:
    queue, controller = broker(world, StructType([StructField("c", kind)]), None)
    outcome = controller.sender("typed").send({"c": body}).state
    assert isinstance(outcome, Rejected)
    assert condition(outcome.error) == "amqp:invalid-field" and queue.depth() == 0


@in_memory
def test_instants_may_be_sent_as_text_with_a_zone(world: World) -> None:
    queue, controller = broker(world, StructType([StructField("c", TimestampType())]), None)
    controller.sender("typed").send({"c": "2024-01-02T03:04:05.000006+01:00"})
    want = datetime.datetime(2024, 1, 2, 2, 4, 5, 6, UTC)
    assert queue.receive(1).messages()[0]["c"] == want


@in_memory
def test_a_queue_whose_messages_cannot_be_written_is_refused_once_at_the_attach(
    world: World,
) -> None:
    keys = StructType([StructField("x", LongType())])
    kind = ArrayType(MapType(keys, LongType()))
    queue, controller = broker(world, StructType([StructField("c", kind)]), None)
    queue.send([{"c": []}])
    pipe = Pipeline(controller.connection)
    pipe.do(Attach(name="r", handle=9, role=Role.RECEIVER, source=Source("typed")))
    (ended,) = [frame for frame in pipe.frames if isinstance(frame, Detach)]
    assert condition(ended.error) == "amqp:not-implemented" and "'c'" in ended.error.description
    assert (queue.depth(), queue.in_flight()) == (1, 0)
    controller.sender("typed").send({"c": []})
    assert queue.depth() == 2


@settings(max_examples=2_000 if LONG else 100, suppress_health_check=list(HealthCheck))
@given(generated.columns(rows=2))
def test_a_column_of_any_type_goes_out_and_comes_back(drawn: Any) -> None:
    schema, rows = generated.table([drawn])
    if unwritable(schema) is not None:
        return
    carried = [written(schema, row) for row in rows]
    assert generated.equal(arrow_table(schema, read_all(schema, carried)).to_pylist(), rows)
    if has_type(schema, TimestampType):  # octets have milliseconds
        return
    try:
        codec = ProtonCodec()
    except PlatformMissing:
        return
    octets = [codec.decode(codec.encode([AmqpValue(row)])) for row in carried]
    carried = [section.value for (section,) in octets]
    assert generated.equal(arrow_table(schema, read_all(schema, carried)).to_pylist(), rows)


def read_all(schema: StructType, rows: list[Any]) -> list[Any]:
    return [read(schema, row) for row in rows]


LISTS = StructType([StructField("x", ArrayType(LongType()))])
UNSENDABLE: list[tuple[Any, Any, int | None]] = [
    (LISTS, {"x": [1] * 70_000}, None),  # more values than a section has in Proton
    ("body string", {"body": "x" * 2_000}, 1_000),  # longer than the client takes
]


def three_links(manager: Any, **asked: Any) -> tuple[list[Any], list[Transfer]]:
    """Attach one link after the other: the errors with which they end, and what they send."""
    try:
        controller = TransactionController(TransactionalResource(manager), codec=ProtonCodec())
    except PlatformMissing:
        pytest.skip("python-qpid-proton is not installed: it needs a compiler")
    pipe, ended, sent = Pipeline(controller.connection), list[Any](), list[Transfer]()
    for number in range(3):
        link = Attach(
            name=f"r{number}", handle=9, role=Role.RECEIVER, source=Source("typed"), **asked
        )
        frames = [*pipe.do(link), *pipe.do(Flow(handle=9, link_credit=5))]
        ended += [condition(one.error) for one in frames if isinstance(one, Detach)]
        sent += [one for one in frames if isinstance(one, Transfer)]
        pipe.do(Detach(handle=9))
    return ended, sent


@in_memory
@pytest.mark.parametrize(("columns", "odd", "size_max"), UNSENDABLE)
def test_a_message_that_cannot_be_sent_does_not_hold_up_the_others_for_ever(
    world: World, columns: Any, odd: Any, size_max: int | None
) -> None:
    manager = world.manager("broker")
    queue = manager.create_queue("typed", columns, deliveries_max=2)
    name = next(iter(odd))
    plain: dict[str, Any] = {name: [1]} if name == "x" else {name: "short"}
    queue.send([odd, plain])
    ended, sent = three_links(manager, max_message_size=size_max)
    why = "amqp:internal-error" if size_max is None else "amqp:link:message-size-exceeded"
    assert ended[:2] == [why, why] and len(sent) == 1, "the third time, it is a dead letter"
    assert manager.queue("typed.dead").depth() == 1


@in_memory
def test_a_message_that_python_cannot_read_does_not_hold_up_the_others_for_ever(
    world: World,
) -> None:
    """A DataFrame's text need not be UTF-8."""
    manager = world.manager("broker")
    queue = manager.create_queue("typed", "body string", deliveries_max=2)
    queue.send([{"body": "odd"}, {"body": "plain"}])
    staged: Any = client_of(manager).store.payload
    (key,) = staged._sends
    octets = pa.array([b"\xff", b"plain"], pa.binary())
    staged._sends[key] = pa.table({"body": octets.view(pa.string())})
    ended, sent = three_links(manager)
    assert ended[:2] == ["amqp:internal-error"] * 2 and len(sent) == 1
    assert manager.queue("typed.dead").depth() == 1
    with pytest.raises(InvalidInput, match="'body' has a value that cannot be read in Python"):
        manager.queue("typed.dead").peek_messages()


@in_memory
def test_a_content_type_that_is_no_symbol_is_an_application_property(world: World) -> None:
    manager = world.manager("broker")
    manager.create_queue("letters", "body string").send(
        [{"body": "x"}], headers={"content_type": "téxt"}
    )
    try:
        controller = TransactionController(TransactionalResource(manager), codec=ProtonCodec())
    except PlatformMissing:
        pytest.skip("python-qpid-proton is not installed: it needs a compiler")
    (found,) = controller.receiver("letters").flow(1)
    assert found.body == "x"
    assert ApplicationProperties({"content_type": "téxt"}) in found.payload


@in_memory
@pytest.mark.parametrize("columns", ["body string", "body string, to string, creation_time bigint"])
def test_an_application_property_with_the_name_of_a_property_comes_back(
    world: World, columns: str
) -> None:
    manager = world.manager("broker")
    queue = manager.create_queue("letters", columns)
    pipe = Pipeline(TransactionalResource(manager).connect())
    said = ApplicationProperties({"to": "Paris", "creation_time": 1889, "colour": "red"})
    pipe.transfer(pipe.sender("letters"), (said, AmqpValue("x")))
    pipe.receiver("letters", 1)
    (sent,) = [one for one in pipe.frames if isinstance(one, Transfer)]
    _, properties, application, _ = sent.payload
    if "to" in queue.schema.names:
        assert (properties.to, application.values) == (
            "Paris",
            {"creation_time": 1889, "colour": "red"},
        )
    else:
        assert (properties.to, application.values) == (
            None,
            {"to": "Paris", "creation_time": "1889", "colour": "red"},
        )


@in_memory
@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("body string", "subject"),
        ("body string, to string", "to"),
        ("n long", "reply_to"),
    ],
)
def test_a_property_and_an_application_property_of_its_name_must_agree(
    world: World, columns: str, name: str
) -> None:
    manager = world.manager("broker")
    queue = manager.create_queue("letters", columns)
    pipe = Pipeline(TransactionalResource(manager).connect())
    handle = pipe.sender("letters")
    body = AmqpValue({"n": 1} if columns == "n long" else "x")
    properties = replace(Properties(), **{name: "one"})  # type: ignore[arg-type]
    same = pipe.transfer(handle, (properties, ApplicationProperties({name: "one"}), body))
    null = pipe.transfer(handle, (properties, ApplicationProperties({name: None}), body))
    other = pipe.transfer(handle, (properties, ApplicationProperties({name: "two"}), body))
    outcomes = pipe.outcomes()
    assert isinstance(outcomes[same], Accepted) and isinstance(outcomes[null], Accepted)
    assert condition(outcomes[other].error) == "amqp:invalid-field"
    assert queue.depth() == 2


@in_memory
@pytest.mark.parametrize("inside", [True, False])
def test_a_column_that_was_added_elsewhere_just_now_is_known(world: Any, inside: bool) -> None:
    scene = Scene(world)
    client = Pipeline(scene.resource.connect())
    handle = client.sender(scene.name)
    txn_id = client.declare() if inside else None
    world.open(scene.orders, "owner").alter("extra string")
    posted = (AmqpValue({"n": 1, "key": None, "extra": "e"}),)
    number = client.transfer(handle, posted, txn_id)
    if txn_id is not None:
        assert client.discharge(txn_id) == "accepted"
    else:
        assert isinstance(client.outcomes()[number], Accepted)
    assert [one["extra"] for one in scene.orders.peek_messages()] == ["e"]
    wrong = client.transfer(handle, (AmqpValue({"n": 1, "other": "e"}),))
    assert condition(client.outcomes()[wrong].error) == "amqp:invalid-field"
