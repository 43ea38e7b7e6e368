"""A client's socket: authentication, reading and writing, and timeouts.

The thread of the event loop reads and writes; work on the store is done by threads of the server,
for each client one item at a time, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp import connection, sasl
from txnqueue.protocols.amqp.frames import (
    AMQP,
    AMQP_HEADER,
    SASL,
    SASL_HEADER,
    FrameReader,
    Init,
    Mechanisms,
    SaslOutcome,
    framed,
)
from txnqueue.protocols.amqp.limits import FRAME_BYTES_MIN
from txnqueue.protocols.amqp.peer import Peer
from txnqueue.protocols.amqp.types import AmqpError, Error, ErrorCondition

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.server import Services

Result = TypeVar("Result")
logger = logging.getLogger("txnqueue")
READ_OCTETS = 64 * 1024
UNPROCESSED_OCTETS = 128 * 1024
"""The octets of a socket that are read in advance; twice as many at most."""
INBOX_OCTETS_MAX = 4 * 1024 * 1024
"""The octets that may wait to be processed; beyond that, nothing more is read from the client."""
FRAME_OCTETS = 200
"""What each waiting frame counts for in addition to its body, however short it is."""
UNREAD_SECONDS = 300.0
"""The time within which a client must read some of what waits for it.

It is longer than the allowed silence, because over TLS progress shows only in large steps.
"""
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.005, 0.2
"""How often it is checked whether a client has read what messages wait for."""
TURN_SECONDS = 0.2
"""The time after which a client that has sent much lets others use its thread."""
OPENING_SECONDS = 20.0
"""The time that a client has to authenticate and to open its connection."""
REFUSED_SECONDS = 0.5
"""The delay of a refused client, so that passwords cannot be guessed in large numbers."""
CLOSING_SECONDS = 5.0
"""The time that a client has to answer a close, and then to read what is left for it."""
DEAF_SECONDS = 1.0
"""The time that a client has to read a close if its answer could not be understood."""


class Refused(Exception):
    """The client is refused; it has been told so as far as the protocol allows."""


class ClientConnection:
    """Serves one client, from its first octet to its last.

    Attributes:
        user: The client's user name, once it is known.
    """

    def __init__(
        self, services: Services, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take over a socket."""
        self.user: str | None = None
        self._services = services
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(services.limits.frame_bytes)
        self._inbox: list[tuple[int, bytes]] = []
        self._inbox_octets = 0
        self._room, self._wake = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._peer: Peer | None = None
        self._gone = self._ticking = self._at_work = self._looking = self._resumes = False
        self._shut: Error | None = None
        self._closing_seconds = CLOSING_SECONDS
        self._received = self._sent = self._took = self._loop.time()
        self._written_octets = self._taken_octets = 0
        self._said_octets = self._spoken_octets = self._passed_octets = 0
        self._deadline: float | None = self._received + OPENING_SECONDS

    async def serve(self) -> None:
        """Serve the client until it leaves or the server stops."""
        try:
            await self._encrypt()
        except OSError as error:
            logger.info("client gone in its TLS handshake: %s", error)
            return
        reading: asyncio.Task[None] | None = None
        try:
            self._peer = peer = await self._let_in()
            reading = asyncio.create_task(self._read())
            await self._work(peer)
        except (Refused, OSError) as error:
            logger.info("client gone user=%s: %s", self.user, error)
        finally:
            if reading is not None:
                reading.cancel()
            await self._close()

    # ---------------------------------------------------------------------- from the server

    def nudge(self) -> None:
        """Send the client what is available for it now, unless that is under way already."""
        if self._peer is not None and not self._ticking:
            self._ticking = True
            ticking = self._loop.run_in_executor(self._services.beats, self._peer.tick)
            ticking.add_done_callback(self._ticked)

    def shut(self, error: Error) -> None:
        """Close the connection once the work in progress is finished."""
        self._shut = self._shut or error
        self._wake.set()
        if self._peer is None:  # nothing was done for it yet
            self._writer.transport.abort()

    def look_at_clock(self) -> None:
        """Send a sign of life if this end was silent; close the connection if the client was."""
        now = self._loop.time()
        opened = self._peer.opened if self._peer is not None else None
        if self._at_work and self._opening:  # it is the client that waits for this end
            self._deadline = now + OPENING_SECONDS
        if self._deadline is not None and now > self._deadline:
            self._writer.transport.abort()
            return
        if self._peer is None or opened is None or self._peer.closed:
            return
        if opened.idle_time_out and (now - self._sent) * 2000 >= opened.idle_time_out:
            self._write(framed(b""))
        self._look_at_reading(now)
        silence = self._services.idle_seconds
        if now - self._received > silence:
            why = f"Nothing was heard for more than {silence} seconds."
        elif now - self._took > UNREAD_SECONDS:
            why = f"Nothing was read for more than {UNREAD_SECONDS} seconds."
        else:
            return
        self.shut(Error(ErrorCondition.RESOURCE_LIMIT_EXCEEDED, why))
        if self._deadline is None:  # the client may not even be reading
            self._deadline = now + self._closing_seconds

    def _look_at_reading(self, now: float) -> None:
        """Check whether the client reads what it is sent, and whether its silence counts."""
        unread = self._writer.transport.get_write_buffer_size()
        taken = self._written_octets - unread
        if taken > self._taken_octets or not unread:
            self._taken_octets, self._took = taken, now
        if not self._room.is_set():  # reading pauses while this end works or the client reads
            self._received = now if self._at_work else max(self._received, self._took)

    async def _close(self) -> None:
        """Close the socket, whether or not the client reads what is left for it."""
        self._writer.close()
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), CLOSING_SECONDS)
        finally:
            self._writer.transport.abort()

    # -------------------------------------------------------------------------- letting in

    async def _encrypt(self) -> None:
        """Do the TLS handshake, if the server has TLS.

        Raises:
            OSError: The client does something else, or nothing.
        """
        if self._services.tls is None:
            return
        plain = self._writer.transport
        assert isinstance(plain, asyncio.Transport)
        plain.pause_reading()  # nothing is read yet: all that comes belongs to the handshake
        reader = asyncio.StreamReader(UNPROCESSED_OCTETS)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            encrypted = await self._loop.start_tls(
                plain,
                protocol,
                self._services.tls,
                server_side=True,
                ssl_handshake_timeout=OPENING_SECONDS,
            )
        except BaseException:
            plain.abort()
            raise
        assert encrypted is not None
        protocol.connection_made(encrypted)
        self._reader = reader
        self._writer = asyncio.StreamWriter(encrypted, protocol, reader, self._loop)

    async def _let_in(self) -> Peer:
        """Find out who the client is.

        Raises:
            Refused: The client is refused.
        """
        header = await self._header()
        self._write(SASL_HEADER)
        if header != SASL_HEADER:
            raise Refused(f"it began with {header!r} instead of the SASL header")
        caller, rules = self._caller(), self._services.rules
        self._say(Mechanisms(sasl.mechanisms(caller, rules)))
        init = await self._init()
        # Checking a password takes time on purpose; clients already admitted must not wait for it.
        self.user = user = await self._at(
            self._services.doorkeeper, lambda: sasl.identity(init, caller, rules)
        )
        if user is None:
            await asyncio.sleep(REFUSED_SECONDS)
        self._say(SaslOutcome(0 if user is not None else 1))
        if user is None:
            raise Refused(f"{init.mechanism!r} did not authenticate it")
        header = await self._header()
        self._write(AMQP_HEADER)
        if header != AMQP_HEADER:
            raise Refused(f"it continued with {header!r} instead of the AMQP header")
        # The first time it makes a manager, for which Spark is asked.
        resource = await self._at(self._services.workers, lambda: self._services.resource_of(user))
        return Peer(
            resource,
            self._services.codec,
            self._write_soon,
            self._services.container_id,
            round(self._services.idle_seconds * 500),  # a half, as the specification advises
            unread=self._unread,
        )

    def _caller(self) -> sasl.Caller:
        encrypted = self._writer.get_extra_info("ssl_object")
        certificate = encrypted.getpeercert() if encrypted is not None else None
        address = str(self._writer.get_extra_info("peername")[0])
        return sasl.Caller(
            secure=encrypted is not None,
            loopback=ip_address(address.partition("%")[0]).is_loopback,
            certified=sasl.name_in(certificate),
        )

    async def _header(self) -> bytes:
        while (found := self._frames.take_header()) is None:
            await self._receive()
        return found

    async def _init(self) -> Init:
        try:
            while (found := self._frames.frame()) is None:
                await self._receive()
            kind, _, body = found
            if kind == SASL and len(body) <= FRAME_BYTES_MIN:
                said = self._services.codec.read(body)
                if isinstance(said, Init):
                    return said
        except (AmqpError, InvalidInput) as error:
            raise Refused(str(error)) from error
        raise Refused("it sent no SASL init")

    # ----------------------------------------------------------------------------- reading

    async def _receive(self) -> None:
        octets = await self._reader.read(READ_OCTETS)
        if not octets:
            raise ConnectionResetError("its socket is closed")
        self._received = self._loop.time()
        self._frames.feed(octets)

    async def _read(self) -> None:
        """Read frames until the client goes."""
        try:
            await self._read_frames()
            while await self._reader.read(READ_OCTETS):
                pass  # what follows cannot be parsed
        except OSError as error:
            logger.debug("client gone user=%s: %s", self.user, error)
        self._gone = True
        self._wake.set()

    async def _read_frames(self) -> None:
        """Read frames until something else arrives."""
        try:
            while True:
                for kind, channel, body in self._frames.frames():
                    if kind != AMQP:
                        raise AmqpError(
                            ErrorCondition.FRAMING_ERROR,
                            f"Frames of type {kind} are not allowed here.",
                        )
                    self._put(channel, body)
                await self._room.wait()
                await self._receive()
        except AmqpError as error:
            self._closing_seconds = DEAF_SECONDS
            self.shut(error.error)

    def _put(self, channel: int, body: bytes) -> None:
        if not body:
            return  # only a sign of life
        self._inbox.append((channel, body))
        self._inbox_octets += len(body) + FRAME_OCTETS
        if self._inbox_octets > INBOX_OCTETS_MAX:
            self._room.clear()
        self._wake.set()

    # ----------------------------------------------------------------------------- working

    async def _work(self, peer: Peer) -> None:
        """Process what arrives, in order, until the connection is over."""
        closing = False
        try:
            while not peer.over:
                await self._wake.wait()
                self._wake.clear()
                if self._shut is not None and not peer.closed:
                    await self._at(self._services.workers, lambda: peer.close(self._shut))
                await self._resume(peer)
                if self._inbox:
                    await self._take(peer)
                elif self._gone:
                    return
                self._look_for_room()
                if peer.closed and not closing:
                    closing, self._deadline = True, self._loop.time() + self._closing_seconds
                if self._gone:
                    self._wake.set()
        finally:
            if not peer.over:  # also if nobody waits for that any more
                gone = self._loop.run_in_executor(self._services.workers, peer.abandon)
                await asyncio.shield(gone)

    async def _take(self, peer: Peer) -> None:
        frames, self._inbox, self._inbox_octets = iter(self._inbox), [], 0
        self._room.set()
        finished = False
        while not finished and (self._shut is None or peer.closed):
            finished = await self._at(
                self._services.workers, lambda: peer.work(frames, TURN_SECONDS)
            )
            if self._opening and peer.opened is not None:
                self._deadline = None
            if peer.changed:
                peer.changed = False
                self._services.nudge()
            self._look_for_room()  # who sends much still gets messages meanwhile
            await self._resume(peer)
            if not self._gone:
                await self._writer.drain()

    async def _resume(self, peer: Peer) -> None:
        """Let sending go on if it is due."""
        if self._resumes:
            self._resumes = False
            await self._at(self._services.workers, peer.resume)

    @property
    def _opening(self) -> bool:
        """Whether the deadline, if there is one, is that of the open and not of the close."""
        closed = self._shut is not None or (self._peer is not None and self._peer.closed)
        return self._deadline is not None and not closed

    def _ticked(self, _ticking: asyncio.Future[None]) -> None:
        self._ticking = False
        self._look_for_room()
        if self._peer is not None and self._peer.closed:
            self._wake.set()

    def _look_for_room(self) -> None:
        """Let sending go on once the client has read what messages wait for."""
        if not self._looking and self._peer is not None and self._peer.is_paused:
            self._looking = True
            self._look_again(LOOK_SECONDS_MIN)

    def _look_again(self, seconds: float) -> None:
        """Check whether the client has read enough; if not, check again later."""
        if self._gone or self._peer is None or not self._peer.is_paused:
            self._looking = False
            return
        self._count_unread()
        if self._unread() <= connection.UNREAD_OCTETS_MAX // 2:
            self._looking, self._resumes = False, True
            self._wake.set()
        else:
            longer = min(2 * seconds, LOOK_SECONDS_MAX)
            self._loop.call_later(seconds, self._look_again, longer)

    async def _at(self, pool: Executor, act: Callable[[], Result]) -> Result:
        self._at_work = True
        try:
            return await self._loop.run_in_executor(pool, act)
        finally:
            self._at_work = False

    # ----------------------------------------------------------------------------- writing

    def _say(self, frame: Mechanisms | SaslOutcome) -> None:
        self._write(self._services.codec.write(frame))

    def _unread(self) -> int:
        """Count the octets of the peer's that wait for the client, as last seen.

        Any thread may ask; the peer's own count is changed by one thread at a time, and the other
        one by the thread of the loop only.
        """
        return self._said_octets - self._passed_octets

    def _count_unread(self) -> None:
        self._passed_octets = self._spoken_octets - self._writer.transport.get_write_buffer_size()

    def _write_soon(self, octets: bytes) -> None:
        """Write from a worker thread."""
        self._said_octets += len(octets)
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._write_spoken, octets)

    def _write_spoken(self, octets: bytes) -> None:
        self._spoken_octets += len(octets)
        self._write(octets)
        self._count_unread()

    def _write(self, octets: bytes) -> None:
        self._sent = self._loop.time()
        self._written_octets += len(octets)
        self._writer.write(octets)
