"""Frame bodies: octets to performatives and back.

Proton's codec reads and writes the values; fields are in the order of the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp.codec import ProtonCodec
from txnqueue.protocols.amqp.frames import (
    AMQP,
    NUMBERS,
    SASL,
    Begin,
    Close,
    End,
    Frame,
    Init,
    Mechanisms,
    Open,
    SaslOutcome,
    SessionFlow,
    Window,
    framed,
)
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    Transfer,
)
from txnqueue.protocols.amqp.types import Coordinator, Described, Error, Source, Target

SIZES = 1 << 64
"""The number of sizes that a message may have."""


class FrameCodec:
    """Encodes and decodes frame bodies."""

    def __init__(self, codec: ProtonCodec) -> None:
        """Use a codec of values."""
        self.values = codec

    def read(self, body: bytes) -> Frame:
        """Read the body of a frame.

        Raises:
            InvalidInput: The octets are not a performative.
        """
        value, payload = self.values.decode_first(body)
        read = _READ.get(_code(value))
        if read is None:
            raise InvalidInput(f"{value!r} is not a performative.")
        try:
            return read(_Fields(value.value), payload)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{value!r} lacks a field, or has an invalid one: {error}"
            ) from error

    def write(self, frame: Frame, channel: int = 0) -> bytes:
        """Write a whole frame."""
        code, fields = _WRITTEN[type(frame)](self.values, frame)
        while fields and fields[-1] is None:
            fields.pop()
        body = self.values.encode_described(code, fields)
        if isinstance(frame, Transfer):
            assert isinstance(frame.payload, bytes) or not frame.payload
            body += bytes(frame.payload)  # type: ignore[arg-type]  # octets, or nothing
        return framed(body, channel, SASL if code >= 0x40 else AMQP)


# ---------------------------------------------------------------------------------- reading


class _Fields:
    """The fields of a performative; omitted fields are None."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, list):
            raise TypeError("a performative is a list")
        self._fields = fields

    def __getitem__(self, number: int) -> Any:
        return self._fields[number] if number < len(self._fields) else None

    def number(self, number: int, default: int | None = None, below: int = NUMBERS) -> int:
        """Read a whole number that is required unless there is a default."""
        found = self[number] if self[number] is not None else default
        if not isinstance(found, int) or isinstance(found, bool):
            raise TypeError(f"field {number} is {found!r}, and must be a number")
        if not 0 <= found < below:
            raise ValueError(f"field {number} is {found}, and must be below {below}")
        return found

    def number_or_none(self, number: int) -> int | None:
        """Read an optional whole number."""
        return None if self[number] is None else self.number(number)

    def flag(self, number: int, *, required: bool = False) -> bool:
        """Read a boolean; unless it is required, it is false if it is omitted."""
        found = self[number]
        if not (isinstance(found, bool) or (found is None and not required)):
            raise TypeError(f"field {number} is {found!r}, and must be a boolean")
        return bool(found)

    def text(self, number: int) -> str:
        """Read a required text."""
        if not isinstance(self[number], str):
            raise TypeError(f"field {number} is {self[number]!r}, and must be a string")
        return str(self[number])

    def octets(self, number: int) -> bytes:
        """Read optional octets."""
        found = self[number]
        if found is not None and not isinstance(found, bytes):
            raise TypeError(f"field {number} is {found!r}, and must be a binary")
        return found or b""

    def map(self, number: int) -> Mapping[Any, Any]:
        """Read an optional map."""
        found = self[number]
        if found is not None and not isinstance(found, dict):
            raise TypeError(f"field {number} is {found!r}, and must be a map")
        return found or {}

    def address(self, number: int) -> str | None:
        """Read an optional address; only text can be the name of a queue."""
        return None if self[number] is None else str(self[number])

    def error(self, number: int) -> Error | None:
        """Read an optional error."""
        found = self[number]
        return found if isinstance(found, Error) else None


def _code(value: object) -> int:
    """Find the descriptor of a performative, by number or by name."""
    if not isinstance(value, Described):
        return -1
    if isinstance(value.descriptor, str):
        return _NAMES.get(value.descriptor, -1)
    return value.descriptor


def _open(fields: _Fields, _payload: bytes) -> Open:
    return Open(
        container_id=fields.text(0),
        hostname=fields[1],
        max_frame_size=fields.number(2, NUMBERS - 1),
        channel_max=fields.number(3, 65535),
        idle_time_out=fields.number_or_none(4),
    )


def _begin(fields: _Fields, _payload: bytes) -> Begin:
    window = Window(
        next_incoming_id=None,
        incoming_window=fields.number(2),
        next_outgoing_id=fields.number(1),
        outgoing_window=fields.number(3),
    )
    return Begin(remote_channel=fields.number_or_none(0), window=window)


def _attach(fields: _Fields, _payload: bytes) -> Attach:
    return Attach(
        name=fields.text(0),
        handle=fields.number(1),
        role=Role(fields.flag(2, required=True)),
        snd_settle_mode=SenderSettleMode(fields.number(3, SenderSettleMode.MIXED)),
        rcv_settle_mode=ReceiverSettleMode(fields.number(4, ReceiverSettleMode.FIRST)),
        source=_source(fields[5]),
        target=fields[6] if isinstance(fields[6], Coordinator) else _target(fields[6]),
        unsettled=fields.map(7) or None,
        initial_delivery_count=fields.number_or_none(9),
        max_message_size=fields.number(10, 0, below=SIZES) or None,
    )


def _source(found: object) -> Source | None:
    if found is None:
        return None
    if not isinstance(found, Described):
        raise TypeError(f"{found!r} is not a source")
    fields = _Fields(found.value)
    outcomes = [fields[9]] if isinstance(fields[9], str) else fields[9]
    return Source(
        address=fields.address(0),
        default_outcome=fields[8],
        outcomes=None if outcomes is None else tuple(outcomes),
        dynamic=fields.flag(4),
        distribution_mode=fields[6],
        filters=tuple(map(str, fields.map(7))),
    )


def _target(found: object) -> Target | None:
    if found is None:
        return None
    if not isinstance(found, Described):
        raise TypeError(f"{found!r} is not a target")
    fields = _Fields(found.value)
    return Target(address=fields.address(0), dynamic=fields.flag(4))


def _flow(fields: _Fields, _payload: bytes) -> SessionFlow:
    window = Window(
        next_incoming_id=fields.number_or_none(0),
        incoming_window=fields.number(1),
        next_outgoing_id=fields.number(2),
        outgoing_window=fields.number(3),
    )
    flow = Flow(
        handle=fields.number_or_none(4),
        delivery_count=fields.number_or_none(5),
        link_credit=fields.number_or_none(6),
        drain=fields.flag(8),
        echo=fields.flag(9),
        properties=fields.map(10),
    )
    return SessionFlow(window, flow)


def _transfer(fields: _Fields, payload: bytes) -> Transfer:
    mode = fields.number_or_none(6)
    return Transfer(
        handle=fields.number(0),
        delivery_id=fields.number_or_none(1),
        delivery_tag=fields[2] or b"",
        message_format=fields.number(3, 0),
        settled=fields.flag(4),
        more=fields.flag(5),
        rcv_settle_mode=None if mode is None else ReceiverSettleMode(mode),
        state=fields[7],
        aborted=fields.flag(9),
        payload=payload,
    )


def _disposition(fields: _Fields, _payload: bytes) -> Disposition:
    return Disposition(
        role=Role(fields.flag(0, required=True)),
        first=fields.number(1),
        last=fields.number_or_none(2),
        settled=fields.flag(3),
        state=fields[4],
    )


_READ: Mapping[int, Callable[[_Fields, bytes], Frame]] = {
    0x10: _open,
    0x11: _begin,
    0x12: _attach,
    0x13: _flow,
    0x14: _transfer,
    0x15: _disposition,
    0x16: lambda f, _: Detach(handle=f.number(0), closed=f.flag(1), error=f.error(2)),
    0x17: lambda f, _: End(f.error(0)),
    0x18: lambda f, _: Close(f.error(0)),
    0x40: lambda f, _: Mechanisms([f[0]] if isinstance(f[0], str) else f[0]),
    0x41: lambda f, _: Init(f.text(0), f.octets(1)),
    0x44: lambda f, _: SaslOutcome(f.number(0)),
}
_NAMES = {
    "amqp:open:list": 0x10,
    "amqp:begin:list": 0x11,
    "amqp:attach:list": 0x12,
    "amqp:flow:list": 0x13,
    "amqp:transfer:list": 0x14,
    "amqp:disposition:list": 0x15,
    "amqp:detach:list": 0x16,
    "amqp:end:list": 0x17,
    "amqp:close:list": 0x18,
    "amqp:sasl-init:list": 0x41,
}


# ---------------------------------------------------------------------------------- writing

Written = tuple[int, list[Any]]


def _written_open(codec: ProtonCodec, frame: Open) -> Written:
    said = frame.properties
    return 0x10, [
        frame.container_id,
        frame.hostname,
        codec.uint(frame.max_frame_size),
        codec.ushort(frame.channel_max),
        codec.uint(frame.idle_time_out),
        None,
        None,
        codec.symbols(frame.offered_capabilities),
        None,
        None if said is None else {codec.symbol(key): value for key, value in said.items()},
    ]


def _written_window(codec: ProtonCodec, window: Window) -> list[Any]:
    return [
        codec.uint(window.next_incoming_id),
        codec.uint(window.incoming_window),
        codec.uint(window.next_outgoing_id),
        codec.uint(window.outgoing_window),
    ]


def _written_begin(codec: ProtonCodec, frame: Begin) -> Written:
    window = frame.window
    return 0x11, [
        codec.ushort(frame.remote_channel),
        codec.uint(window.next_outgoing_id),
        codec.uint(window.incoming_window),
        codec.uint(window.outgoing_window),
        codec.uint(frame.handle_max),
    ]


def _written_attach(codec: ProtonCodec, frame: Attach) -> Written:
    first = frame.initial_delivery_count
    if first is None and frame.role is Role.SENDER:
        first = 0  # required of senders, even for a link that is refused
    return 0x12, [
        frame.name,
        codec.uint(frame.handle),
        frame.role.value,
        codec.ubyte(frame.snd_settle_mode),
        codec.ubyte(frame.rcv_settle_mode),
        _written_source(codec, frame.source),
        _written_target(codec, frame.target),
        None,
        None,
        codec.uint(first),
        codec.ulong(frame.max_message_size),
    ]


def _written_source(codec: ProtonCodec, source: Source | None) -> object:
    if source is None:
        return None
    outcomes = None if source.outcomes is None else codec.symbols(source.outcomes)
    fields = [source.address, *[None] * 7, source.default_outcome, outcomes]
    return codec.described(0x28, fields)


def _written_target(codec: ProtonCodec, target: Target | Coordinator | None) -> object:
    if target is None or isinstance(target, Coordinator):
        return target
    return codec.described(0x29, [target.address])


def _written_flow(codec: ProtonCodec, frame: SessionFlow) -> Written:
    flow = frame.flow
    properties = {codec.symbol(key): value for key, value in flow.properties.items()}
    return 0x13, [
        *_written_window(codec, frame.window),
        codec.uint(flow.handle),
        codec.uint(flow.delivery_count),
        codec.uint(flow.link_credit),
        None,
        flow.drain or None,
        flow.echo or None,
        properties or None,
    ]


def _written_transfer(codec: ProtonCodec, frame: Transfer) -> Written:
    return 0x14, [
        codec.uint(frame.handle),
        codec.uint(frame.delivery_id),
        frame.delivery_tag or None,
        codec.uint(frame.message_format),
        frame.settled,
        frame.more,
        codec.ubyte(frame.rcv_settle_mode),
        frame.state,
        None,
        frame.aborted or None,
    ]


def _written_disposition(codec: ProtonCodec, frame: Disposition) -> Written:
    return 0x15, [
        frame.role.value,
        codec.uint(frame.first),
        codec.uint(frame.last),
        frame.settled,
        frame.state,
    ]


_WRITTEN: Mapping[type[Frame], Callable[[ProtonCodec, Any], Written]] = {
    Open: _written_open,
    Begin: _written_begin,
    Attach: _written_attach,
    SessionFlow: _written_flow,
    Transfer: _written_transfer,
    Disposition: _written_disposition,
    Detach: lambda codec, f: (0x16, [codec.uint(f.handle), f.closed, f.error]),
    End: lambda _, f: (0x17, [f.error]),
    Close: lambda _, f: (0x18, [f.error]),
    Mechanisms: lambda codec, f: (0x40, [codec.symbols(f.names)]),
    Init: lambda codec, f: (0x41, [codec.symbol(f.mechanism), f.response]),
    SaslOutcome: lambda codec, f: (0x44, [codec.ubyte(f.code)]),
}
