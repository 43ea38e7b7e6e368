"""Limits on what a client of a server may use."""

from __future__ import annotations

from dataclasses import dataclass

from txnqueue.core.settings import check_count, shown
from txnqueue.errors import InvalidInput

FRAME_BYTES_MIN = 512
"""The frame size that every client may send."""
NUMBER_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the clients of a server; what exceeds a limit is refused.

    Attributes:
        connections: The number of connections of a server.
        sessions: The number of sessions of a connection.
        links: The number of links of a connection.
        transactions: The transactions of a connection that are declared and not discharged, or in
            doubt.
        unsettled: The deliveries of a connection that are sent and not settled; at the limit,
            sending pauses. The client's own unsettled deliveries have the same limit; at it, no
            link gets more credit.
        unsent_bytes: The octets of a connection's messages that are read from the store and not
            sent; at the limit, messages are read one by one. How long messages are is known once
            they are read: a reading exceeds the limit if its messages are longer than the longest
            one of the reading before.
        partial_bytes: The octets of a connection's messages from the client that have not come
            completely; a message that comes alone has only its own limit.
        message_bytes: The length in bytes of a message from a client.
        frame_bytes: The length in bytes of a frame, in either direction.
    """

    connections: int = 200
    sessions: int = 64
    links: int = 256
    transactions: int = 64
    unsettled: int = 5_000
    unsent_bytes: int = 16 * 1024 * 1024
    partial_bytes: int = 64 * 1024 * 1024
    message_bytes: int = 16 * 1024 * 1024
    frame_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InvalidInput: One of them is not a number, or out of range.
        """
        for name in self.__slots__:
            check_count(name, getattr(self, name), 1, NUMBER_MAX)
        check_count("frame_bytes", self.frame_bytes, FRAME_BYTES_MIN, NUMBER_MAX)
        check_count("sessions", self.sessions, 1, 65_536)


def check_limits(limits: object) -> Limits:
    """Check that a value is limits, and return them; None means the defaults.

    Raises:
        InvalidInput: It is something else.
    """
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise InvalidInput(f"limits={shown(limits)}: give Limits, or omit them.", name="limits")
    return limits
