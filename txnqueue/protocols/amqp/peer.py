"""The server's end of a connection, without its socket: it takes frames and writes octets."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.protocols.amqp.channel import Channel, check_handle
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.frames import (
    FRAME_OCTETS_MIN,
    TRANSFER_OCTETS_MAX,
    Begin,
    Close,
    End,
    Frame,
    Open,
)
from txnqueue.protocols.amqp.performatives import Disposition, Transfer
from txnqueue.protocols.amqp.types import AmqpError, Error, ErrorCondition
from txnqueue.version import __version__

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.limits import Limits
    from txnqueue.protocols.amqp.resource import TransactionalResource

logger = logging.getLogger("txnqueue")
CAPABILITIES = ("ANONYMOUS-RELAY",)
"""Links without an address are supported; JMS clients ask for this capability."""


class Peer:
    """A client's connection; any thread may call it, and one at a time works on it.

    Attributes:
        opened: The client's open; None before it.
        closed: Whether this end has closed the connection and sends nothing more.
        over: Whether both ends have closed it.
        changed: Whether anything that others may be waiting for was done since this was last
            reset.
    """

    def __init__(
        self,
        resource: TransactionalResource,
        codec: FrameCodec,
        write: Callable[[bytes], None],
        container_id: str,
        idle_time_out_ms: int | None,
        *,
        unread: Callable[[], int] | None = None,
    ) -> None:
        """Take a connection of an authenticated client.

        Args:
            resource: The store that it works on, and the limits.
            codec: Writes and reads frames.
            write: Sends octets; it is called by whichever thread works.
            container_id: The server's name.
            idle_time_out_ms: The silence that the server tolerates, in milliseconds.
            unread: Returns how many of these octets the client has not read yet; None: it reads
                all of them at once.
        """
        self.opened: Open | None = None
        self.closed = self.over = self.changed = self._tick_due = False
        self._limits: Limits = resource.limits
        self._connection = resource.connect(codec=codec.values)
        self._connection.unread = unread
        self._codec = codec
        self._write = write
        self._channels: dict[int, Channel] = {}
        self._lock = threading.RLock()
        self._said = Open(
            container_id=container_id,
            max_frame_size=self._limits.frame_bytes,
            channel_max=self._limits.sessions - 1,
            idle_time_out=idle_time_out_ms,
            offered_capabilities=CAPABILITIES,
            properties={"product": "txnqueue", "version": __version__},
        )

    # ------------------------------------------------------------------------------ work

    def work(self, frames: Iterable[tuple[int, bytes]], seconds: float = math.inf) -> bool:
        """Process frames, each a channel and a body, and answer them.

        Args:
            frames: The frames; of an iterator, those that are left can be processed later.
            seconds: The time after which no further frame is begun.

        Returns:
            Whether all of them are processed.
        """
        until = time.monotonic() + seconds
        with self._lock:
            for channel, body in frames:
                if not self.over:
                    self._guarded(channel, body)
                self._tick_if_due()
                if time.monotonic() >= until:
                    return False
        return True

    @property
    def is_paused(self) -> bool:
        """Whether ``resume`` is due once the client has read enough of what it was sent."""
        return self._connection.is_paused and not self.closed

    def resume(self) -> None:
        """Go on acquiring and sending messages, because the client reads what it is sent."""
        with self._lock:
            if not self.closed:
                self._connection.pump()
                self._tell_all()
                self._tick_if_due()

    def tick(self) -> None:
        """Do the periodic work: new messages, leases, transactions that take too long.

        It never waits: if another thread works on the connection, that thread does it afterwards.
        """
        self._tick_due = True
        if self._lock.acquire(blocking=False):
            try:
                self._tick_if_due()
            finally:
                self._lock.release()

    def close(self, error: Error | None = None) -> None:
        """Close the connection; open transactions are rolled back before the client is told."""
        with self._lock:
            if self.closed:
                return
            self._connection.close()
            if self.opened is None:
                self._send(self._said)
            self._send(Close(error))
            self.closed = True

    def abandon(self) -> None:
        """Release a client that is gone; transactions that are not discharged are rolled back."""
        with self._lock:
            self._connection.close()
            self.closed = self.over = True

    # -------------------------------------------------------------------------- helpers

    def _tick_if_due(self) -> None:
        if not self._tick_due:
            return
        self._tick_due = False
        if self.opened is None or self.closed:
            return
        try:
            self._connection.tick()
            self._tell_all()
        except PlatformMissing as error:  # the store is closed: no tick will find it open again
            self.close(Error(ErrorCondition.CONNECTION_FORCED, str(error)))
        except Exception:  # the next tick tries again
            logger.exception("tick failed")

    def _guarded(self, channel: int, body: bytes) -> None:
        """Process a frame; an error ends the link, session or connection that it was for."""
        try:
            self._take(channel, self._codec.read(body))
        except AmqpError as error:
            self.close(error.error)
        except InvalidInput as error:  # it is unknown which transaction it was about
            self.close(Error(ErrorCondition.DECODE_ERROR, str(error)))
        except Exception as error:  # the server goes on for the others
            logger.exception("connection closed after an unexpected error")
            why = f"{type(error).__name__}: {error}"
            self.close(Error(ErrorCondition.INTERNAL_ERROR, why))

    def _take(self, number: int, frame: Frame) -> None:
        if isinstance(frame, Close):
            self.close()
            self.over = True
        elif self.closed:
            return  # sent before the client was told
        elif isinstance(frame, Open):
            self._open(frame)
        elif self.opened is None:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, "A connection must begin with an open.")
        elif number > self._said.channel_max:
            why = f"Channel {number}: the highest is {self._said.channel_max}."
            raise AmqpError(ErrorCondition.FRAMING_ERROR, why)
        elif isinstance(frame, Begin):
            self._begin(number, frame)
        else:
            channel = self._channels.get(number)
            if channel is None:
                raise AmqpError(ErrorCondition.NOT_ALLOWED, f"Channel {number} has no session.")
            self._on_channel(channel, frame)

    def _open(self, frame: Open) -> None:
        if self.opened is not None:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, "The connection is already open.")
        size = min(frame.max_frame_size, self._limits.frame_bytes)
        if size < FRAME_OCTETS_MIN:
            raise AmqpError(
                ErrorCondition.INVALID_FIELD, f"max-frame-size must be at least {FRAME_OCTETS_MIN}."
            )
        self.opened = frame
        self._connection.payload_max = size - TRANSFER_OCTETS_MAX
        self._send(self._said)

    def _begin(self, number: int, frame: Begin) -> None:
        if number in self._channels:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, f"Channel {number} is in use.")
        session = self._connection.begin(frame.window.incoming_window)
        channel = Channel(number, session, frame)
        self._channels[number] = channel
        self._send(channel.answer(), number)

    def _on_channel(self, channel: Channel, frame: Frame) -> None:
        if isinstance(frame, End):
            self._end(channel)
            del self._channels[channel.number]
            self._tell_all()  # other sessions may have worked in transactions that end with it
            return
        check_handle(frame)
        self.changed = self.changed or isinstance(frame, Transfer | Disposition)
        try:
            answers = channel.take(frame)
        except AmqpError as error:
            self._end(channel, error.error)
            self._tell_all()
            return
        for other in self._channels.values():
            if other is not channel:  # what a discharge gives up there comes before it (S1-43)
                self._tell(other)
        for told in answers:
            self._send(told, channel.number)
        self._tell(channel)

    def _end(self, channel: Channel, error: Error | None = None) -> None:
        """End a session, unless this end has already done so."""
        if channel.ended:
            return
        for told in channel.wire(channel.session.frames()):
            self._send(told, channel.number)
        channel.ended = True
        channel.session.end()
        self._send(End(error), channel.number)

    def _tell_all(self) -> None:
        """Send what the sessions have to say."""
        for channel in self._channels.values():
            self._tell(channel)

    def _tell(self, channel: Channel) -> None:
        """Send what a session has to say."""
        told = channel.wire(channel.session.frames())
        for frame in () if channel.ended else told:
            self._send(frame, channel.number)

    def _send(self, frame: Frame, channel: int = 0) -> None:
        if not self.closed:
            self._write(self._codec.write(frame, channel))
