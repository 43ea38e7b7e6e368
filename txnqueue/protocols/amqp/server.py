"""A listener for AMQP 1.0 clients: it serves a store of queues on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.core.settings import (
    BRANCH_SECONDS_MAX,
    LEASE_SECONDS_MAX,
    check_count,
    check_id,
    check_number,
    shown,
)
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.manager import client_of
from txnqueue.protocols.amqp.access import AccessRules
from txnqueue.protocols.amqp.client_connection import UNPROCESSED_OCTETS, ClientConnection
from txnqueue.protocols.amqp.codec import ProtonCodec
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.limits import Limits, check_limits
from txnqueue.protocols.amqp.resource import TransactionalResource
from txnqueue.protocols.amqp.types import Error, ErrorCondition

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager

logger = logging.getLogger("txnqueue")
CLOCK_SECONDS = 0.2
"""How often the timeouts of clients are checked."""
BEAT_THREADS = 2
"""The threads that extend leases, independently of acquisitions and commits under way."""
THREADS_MAX = 1_000


@dataclass(slots=True)
class Services:
    """What the connections of a server share.

    Attributes:
        codec: Writes and reads frames.
        tls: The TLS context; None: clients of this machine are not encrypted.
        container_id: The server's name.
        rules: Who may do what; None: every admitted client may do everything.
        limits: The limits of clients.
        idle_seconds: The silence after which a client is closed.
        resource_of: Returns the resource of a user.
        workers: The threads that do what clients request.
        beats: The threads that do the periodic work, but for sending new messages.
        doorkeeper: The thread that checks passwords, one at a time.
        nudge: Sends all clients what is available for them.
    """

    codec: FrameCodec
    tls: ssl.SSLContext | None
    container_id: str
    rules: AccessRules | None
    limits: Limits
    idle_seconds: float
    resource_of: Callable[[str], TransactionalResource]
    workers: ThreadPoolExecutor
    beats: ThreadPoolExecutor
    doorkeeper: ThreadPoolExecutor
    nudge: Callable[[], None]


class AmqpServer:
    """Serves AMQP 1.0 clients on a socket, in its own threads.

    Clients from other machines are served only over TLS. A client authenticates with its
    certificate (EXTERNAL) or a password (PLAIN); on this machine it may be anonymous. Its name is
    recorded in the journal as the actor of everything that it does.

    Example::

        with AmqpServer(manager, port=5672) as server:
            print(server.address)
            wait()
    """

    def __init__(
        self,
        manager: QueueManager,
        host: str = "127.0.0.1",
        port: int = 5672,
        *,
        tls: ssl.SSLContext | None = None,
        rules: AccessRules | None = None,
        limits: Limits | None = None,
        tick_seconds: float = 1.0,
        idle_seconds: float = 60.0,
        transaction_seconds: float = 600.0,
        threads: int = 8,
    ) -> None:
        """Create a server; ``start`` makes it listen.

        Args:
            manager: The store. The server's clients hold leases as consumers whose ids begin
                with the manager's consumer id: a server with the same id takes over the leases of
                one that was killed. Give each server a manager with another consumer id.
            host: The address to listen on.
            port: The port; 0 selects a free one.
            tls: The TLS context; its ``verify_mode`` decides whether clients need certificates.
            rules: Who may send to and receive from which queue; if omitted, every admitted client
                may do everything.
            limits: The limits of clients.
            tick_seconds: How often leases, and queues for new messages, are checked.
            idle_seconds: The silence after which a client is closed.
            transaction_seconds: The time after which open transactions are rolled back.
            threads: The number of clients that may wait for the store at once.

        Raises:
            InvalidInput: Other machines could reach it without TLS, or a value is of a wrong type.
            LimitExceeded: A number is out of range.
            PlatformMissing: python-qpid-proton is not installed.
        """
        client = client_of(manager)
        check_count("port", port, 0, 65_535)
        check_count("threads", threads, 1, THREADS_MAX)
        if rules is not None and not isinstance(rules, AccessRules):
            raise InvalidInput(
                f"rules={shown(rules)}: give AccessRules, or omit them.", name="rules"
            )
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise InvalidInput(f"tls={shown(tls)}: give an ssl.SSLContext, or omit it.", name="tls")
        if not _is_loopback(check_id(host, "host")) and tls is None:
            raise InvalidInput(
                f"host={shown(host)}: other machines can connect only over TLS: give tls=, or "
                "listen on 127.0.0.1.",
                name="host",
            )
        # Clients rely on the time that they are told, which is a uint of milliseconds.
        check_number("idle_seconds", idle_seconds, 0.1, LEASE_SECONDS_MAX)
        check_number("transaction_seconds", transaction_seconds, 0.001, BRANCH_SECONDS_MAX)
        check_number("tick_seconds", tick_seconds, 0.001, LEASE_SECONDS_MAX)
        self._manager = manager
        self._host, self._port = host, port
        self._tick_seconds = tick_seconds
        self._transaction_seconds = transaction_seconds
        self._resources: dict[str, TransactionalResource] = {}
        self._lock = threading.Lock()
        self._clients: dict[ClientConnection, asyncio.Task[None]] = {}
        self._address: tuple[str, int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over: asyncio.Event | None = None
        self._grace_seconds = 0.0
        self._services = Services(
            codec=FrameCodec(ProtonCodec()),
            tls=tls,
            container_id=client.runtime.consumer,
            rules=rules,
            limits=check_limits(limits),
            idle_seconds=idle_seconds,
            resource_of=self._resource_of,
            workers=ThreadPoolExecutor(threads, "txnqueue amqp"),
            beats=ThreadPoolExecutor(BEAT_THREADS, "txnqueue amqp beat"),
            doorkeeper=ThreadPoolExecutor(1, "txnqueue amqp door"),
            nudge=self._nudge,
        )

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port on which it listens.

        Raises:
            InvalidInput: It is not listening.
        """
        if self._address is None:
            raise InvalidInput("The server is not listening: call start() first.")
        return self._address

    @property
    def connections(self) -> int:
        """Return the number of connected clients."""
        return len(self._clients)

    def start(self) -> None:
        """Listen, and return once clients can connect.

        Raises:
            PlatformMissing: The address cannot be listened on.
            InvalidInput: It was started before.
        """
        if self._thread is not None:
            raise InvalidInput("A server can be started only once: create another one.")
        started: list[BaseException | None] = []
        ready = threading.Event()

        def run() -> None:
            try:
                asyncio.run(self._serve(ready))
            except (OSError, UnicodeError) as error:  # the latter: no host has such a name
                started.append(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="txnqueue amqp server", daemon=True)
        self._thread.start()
        ready.wait()
        if self._address is None:
            why = started[0] if started else "the server ended immediately"
            raise PlatformMissing(f"Nothing can listen on {self._host}:{self._port}: {why}")
        client_of(self._manager).streams.add(self)
        logger.info("amqp listens on %s:%s", *self._address)

    def stop(self, grace_seconds: float = 10.0, timeout_seconds: float = 60.0) -> bool:
        """Stop: finish the work in progress, and roll back open transactions.

        A call to the store is not interrupted. One that takes longer than the time-out goes on in
        a thread, after which its client's transactions are rolled back; the process ends after
        that. ``QueueManager.close`` stops the servers of its manager.

        Args:
            grace_seconds: The time that clients have before their sockets are closed.
            timeout_seconds: Wait at most this long, the grace included.

        Returns:
            Whether everything has ended.

        Raises:
            InvalidInput: A time is not a number.
            LimitExceeded: A time is out of range.
        """
        check_number("grace_seconds", grace_seconds, 0, LEASE_SECONDS_MAX)
        check_number("timeout_seconds", timeout_seconds, 0, LEASE_SECONDS_MAX)
        if self._thread is None or self._loop is None or self._over is None:
            return True
        until = time.monotonic() + timeout_seconds
        self._grace_seconds = min(grace_seconds, timeout_seconds)
        with contextlib.suppress(RuntimeError):  # it has stopped
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(timeout_seconds)
        ending = threading.Thread(target=self._end_threads, name="txnqueue amqp end", daemon=True)
        ending.start()
        ending.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() or ending.is_alive():
            logger.warning("amqp work goes on after the stop, which waited %s s", timeout_seconds)
            return False
        client_of(self._manager).streams.discard(self)
        return True

    def __enter__(self) -> AmqpServer:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def _end_threads(self) -> None:
        """Wait until the work that is under way has ended."""
        for pool in (self._services.workers, self._services.beats, self._services.doorkeeper):
            pool.shutdown()

    # ---------------------------------------------------------------------- in the loop

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        # Each client does its TLS handshake itself, so that it counts and has its time from the
        # first octet on.
        listener = await asyncio.start_server(
            self._accept, self._host, self._port, limit=UNPROCESSED_OCTETS
        )
        self._address = listener.sockets[0].getsockname()[:2]
        clock = asyncio.create_task(self._watch_clock())
        ready.set()
        try:
            await self._over.wait()
        finally:
            listener.close()
            await self._end_clients()
            clock.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= self._services.limits.connections:
            logger.warning("amqp client refused: there are %s", len(self._clients))
            writer.transport.abort()  # there is nothing for the client to read
            return
        client = ClientConnection(self._services, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._clients[client] = task
        try:
            await client.serve()
        except asyncio.CancelledError:  # the server no longer waits
            logger.warning("amqp client left behind user=%s", client.user)
        except Exception:  # of one client: the others go on
            logger.exception("amqp client ended")
        finally:
            del self._clients[client]

    async def _watch_clock(self) -> None:
        assert self._loop is not None
        next_tick = self._loop.time()
        while True:
            await asyncio.sleep(min(CLOCK_SECONDS, self._tick_seconds))
            for client in list(self._clients):
                client.look_at_clock()
            if self._loop.time() >= next_tick:
                next_tick = self._loop.time() + self._tick_seconds
                self._nudge()

    async def _end_clients(self) -> None:
        why = Error(ErrorCondition.CONNECTION_FORCED, "The server stops.")
        for client in self._clients:
            client.shut(why)
        if self._clients:
            await asyncio.wait(self._clients.values(), timeout=self._grace_seconds)
        for task in self._clients.values():
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients.values(), timeout=1.0)

    def _nudge(self) -> None:
        for client in self._clients:
            client.nudge()

    # ------------------------------------------------------------------------- the store

    def _resource_of(self, user: str) -> TransactionalResource:
        """Return a resource that records this user as the actor in the journal."""
        from txnqueue.manager import QueueManager

        rules = self._services.rules
        with self._lock:
            if user not in self._resources:
                client = client_of(self._manager)
                manager = QueueManager(
                    client.store.spark,
                    store=client.store,
                    runtime=replace(client.runtime),
                    actor=user,
                    consumer=consumer_of(client.runtime.consumer, user),
                )
                self._resources[user] = TransactionalResource(
                    manager,
                    timeout_seconds=self._transaction_seconds,
                    allows=None if rules is None else (lambda *how: rules.allows(user, *how)),
                    limits=self._services.limits,
                )
            return self._resources[user]


def consumer_of(server: str, user: str) -> str:
    """Return the consumer id of a server's user, which no user of another server has.

    Either name may contain slashes: only the last one separates them.
    """
    return f"{server}/{user.replace('%', '%25').replace('/', '%2F')}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
