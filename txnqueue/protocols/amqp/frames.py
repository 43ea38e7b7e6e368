"""Frames of AMQP 1.0: performatives of connections and sessions, and the parsing of a stream.

The library has its own frames because Proton's engine hides from its users what transactions need:
see the decision records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Transfer,
)
from txnqueue.protocols.amqp.types import (
    AmqpError,
    Error,
    ErrorCondition,
)

AMQP, SASL = 0, 1
"""The frame types."""
AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
"""The header with which each end begins a layer."""
FRAME_OCTETS_MIN = 512
"""The frame size that every peer accepts."""
TRANSFER_OCTETS_MAX = 192
"""The maximum length here of a frame's header and a transfer, without the payload."""
NUMBERS = 1 << 32
"""The number of transfer ids, and of delivery ids, before they wrap around."""

_HEADER = struct.Struct(">IBBH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Opens a connection.

    Attributes:
        container_id: The sender's container.
        hostname: The host that the sender intends to reach.
        max_frame_size: The longest frame that the sender accepts.
        channel_max: The highest channel that the sender accepts.
        idle_time_out: The silence, in milliseconds, after which the sender closes the connection.
        offered_capabilities: The sender's capabilities.
        properties: The sender's description of itself.
    """

    container_id: str
    hostname: str | None = None
    max_frame_size: int = NUMBERS - 1
    channel_max: int = 65535
    idle_time_out: int | None = None
    offered_capabilities: Sequence[str] = ()
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The flow state of a session, as one end knows it.

    Attributes:
        next_incoming_id: The number of the transfer that it expects; None before the first one.
        incoming_window: The number of transfers that it accepts.
        next_outgoing_id: The number of its next transfer.
        outgoing_window: The number of transfers that it may send.
    """

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begins a session on a channel.

    Attributes:
        remote_channel: The channel of the begin that this one answers; None for a new session.
        window: Its flow state, before any transfer.
        handle_max: The highest handle that it accepts.
    """

    remote_channel: int | None = None
    window: Window
    handle_max: int = NUMBERS - 1


@dataclass(frozen=True, slots=True)
class End:
    """Ends a session."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a connection."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class SessionFlow:
    """A flow with the state of its session; without a handle it concerns the session only."""

    window: Window
    flow: Flow


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """The SASL mechanisms that a server offers."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Init:
    """The SASL mechanism that a client has chosen, with its initial response."""

    mechanism: str
    response: bytes = b""


@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """Whether a client is authenticated: 0, or 1 if not."""

    code: int


Frame = (
    Open
    | Begin
    | End
    | Close
    | SessionFlow
    | Attach
    | Transfer
    | Disposition
    | Detach
    | Mechanisms
    | Init
    | SaslOutcome
)


class FrameReader:
    """Splits a stream of octets into frames."""

    def __init__(self, octets_max: int) -> None:
        """Read frames up to a maximum length."""
        self._octets_max = octets_max
        self._rest = bytearray()

    def take_header(self) -> bytes | None:
        """Take the protocol header that a layer begins with; None if it is not complete yet."""
        if len(self._rest) < len(AMQP_HEADER):
            return None
        found = bytes(self._rest[: len(AMQP_HEADER)])
        del self._rest[: len(AMQP_HEADER)]
        return found

    def feed(self, octets: bytes) -> None:
        """Add octets that have arrived."""
        self._rest += octets

    def frame(self) -> tuple[int, int, bytes] | None:
        """Take a frame.

        Returns:
            Its type, its channel and its body; None if it is not complete yet.

        Raises:
            AmqpError: The octets are not a valid frame.
        """
        if len(self._rest) < _HEADER.size:
            return None
        size, offset, kind, channel = _HEADER.unpack_from(self._rest)
        if not _HEADER.size <= offset * 4 <= size <= self._octets_max:
            raise AmqpError(
                ErrorCondition.FRAMING_ERROR,
                f"A frame of {size} octets, from octet {offset * 4}: the maximum is "
                f"{self._octets_max}.",
            )
        if len(self._rest) < size:
            return None
        body = bytes(self._rest[offset * 4 : size])
        del self._rest[:size]
        return kind, channel, body

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Take all complete frames.

        Raises:
            AmqpError: One of them is not a valid frame.
        """
        while (found := self.frame()) is not None:
            yield found


def framed(body: bytes, channel: int = 0, kind: int = AMQP) -> bytes:
    """Write a frame; without a body, it is only a sign of life."""
    return _HEADER.pack(_HEADER.size + len(body), 2, kind, channel) + body
