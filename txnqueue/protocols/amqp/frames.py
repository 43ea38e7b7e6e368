"""Frames of AMQP 1.0: what connections and sessions say, and how a stream is taken apart.

Frames are our own because Proton's engine keeps from its users what transactions need: see the
decision records.
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
"""The types of frames."""
AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
"""What each end begins a layer with."""
FRAME_OCTETS_MIN = 512
"""What every peer can take."""
TRANSFER_OCTETS_MAX = 192
"""The most that a frame's header and a transfer are long here, beside its part of a message."""
NUMBERS = 1 << 32
"""The number of transfer ids before they begin anew."""

_HEADER = struct.Struct(">IBBH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Opens a connection.

    Attributes:
        container_id: Who opens it.
        hostname: Whom it believes to talk to.
        max_frame_size: The longest frame that it takes.
        channel_max: The highest channel that it takes.
        idle_time_out: After so many milliseconds of silence it closes the connection.
        offered_capabilities: What it can do.
        properties: What it says of itself.
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
        next_incoming_id: The number of the transfer that it awaits; None: it has got none yet.
        incoming_window: The transfers that it takes.
        next_outgoing_id: The number of its next transfer.
        outgoing_window: The transfers that it may send.
    """

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begins a session on a channel.

    Attributes:
        remote_channel: The channel that this answers; None: it begins something new.
        window: Its flow state, which awaits no transfer yet.
        handle_max: The highest handle that it takes.
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
    """A flow with the state of its session; a flow of a session only has no handle."""

    window: Window
    flow: Flow


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """The SASL mechanisms that a server offers."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Init:
    """The SASL mechanism that a client has chosen, with its first words."""

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
    """Takes octets of a stream apart into frames."""

    def __init__(self, octets_max: int) -> None:
        """Read frames that are at most so long."""
        self._octets_max = octets_max
        self._rest = bytearray()

    def take_header(self) -> bytes | None:
        """Take the protocol header that a layer begins with; None: it is not all here."""
        if len(self._rest) < len(AMQP_HEADER):
            return None
        found = bytes(self._rest[: len(AMQP_HEADER)])
        del self._rest[: len(AMQP_HEADER)]
        return found

    def feed(self, octets: bytes) -> None:
        """Take what has come."""
        self._rest += octets

    def frame(self) -> tuple[int, int, bytes] | None:
        """Take a frame.

        Returns:
            Its type, its channel and its body; None: it is not all here.

        Raises:
            AmqpError: It is none.
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
        """Take all frames that are here.

        Raises:
            AmqpError: One of them is none.
        """
        while (found := self.frame()) is not None:
            yield found


def framed(body: bytes, channel: int = 0, kind: int = AMQP) -> bytes:
    """Write a frame; without a body it says only that this end is alive."""
    return _HEADER.pack(_HEADER.size + len(body), 2, kind, channel) + body
