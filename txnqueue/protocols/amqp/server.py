"""A listener for clients of AMQP 1.0: a store of queues on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.core.settings import BRANCH_SECONDS_MAX, LEASE_SECONDS_MAX, check_number
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.protocols.amqp.access import AccessRules
from txnqueue.protocols.amqp.client_connection import ClientConnection
from txnqueue.protocols.amqp.codec import ProtonCodec
from txnqueue.protocols.amqp.frame_codec import FrameCodec
from txnqueue.protocols.amqp.limits import Limits
from txnqueue.protocols.amqp.resource import TransactionalResource
from txnqueue.protocols.amqp.types import Error, ErrorCondition
from txnqueue.transaction import attempt_of

if TYPE_CHECKING:
    from txnqueue.client.client import Client
    from txnqueue.manager import QueueManager

logger = logging.getLogger("txnqueue")
CLOCK_SECONDS = 0.2
"""How often the clock is looked at for what clients were promised."""
BEAT_THREADS = 2
"""The threads that extend leases and look for messages, whatever commits are under way."""


@dataclass(slots=True)
class Services:
    """What the connections of a server share.

    Attributes:
        codec: Writes and reads frames.
        container_id: The server's name.
        rules: Who may do what; None: whoever is let in may do everything.
        limits: What clients may have.
        idle_seconds: The silence after which a client is closed.
        resource_of: Gives a user's view of the store.
        workers: The threads that do what clients ask for.
        beats: The threads that do what time brings.
        doorkeeper: The thread that checks passwords, one after the other.
        nudge: Lets all clients have what there is for them.
    """

    codec: FrameCodec
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
    """Serves clients of AMQP 1.0 on a socket, in threads of its own.

    Clients from other machines are served over TLS only. A client is known by its certificate
    (EXTERNAL) or by a password (PLAIN); on this machine it may be anonymous. Who it is stands as
    the actor of all that it does in the journal.

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
        """Describe a server; ``start`` makes it listen.

        Args:
            manager: The store. The server's clients hold leases as consumers whose ids begin
                with the manager's: a server of the same consumer takes over what one that was
                killed has left.
            host: The address to listen on.
            port: The port; 0 takes a free one.
            tls: Encrypts; with ``verify_mode`` it asks clients for certificates.
            rules: Who may send to and receive from which queue; when left out, everybody who
                is let in may do everything.
            limits: What clients may have.
            tick_seconds: How often leases are looked at, and queues for new messages.
            idle_seconds: The silence after which a client is closed.
            transaction_seconds: Transactions that take longer are rolled back.
            threads: How many clients may wait for the store at once.

        Raises:
            InvalidInput: Other machines could reach it, and it has no TLS; or a time is no number.
            LimitExceeded: A time is out of range.
            PlatformMissing: python-qpid-proton is not installed.
        """
        if tls is None and not _is_loopback(host):
            raise InvalidInput(
                f"host={host!r}: other machines can connect only over TLS: give tls=, or listen "
                "on 127.0.0.1.",
                name="host",
            )
        # Clients are told the silence, as a uint of milliseconds, and count on what they are told.
        check_number("idle_seconds", idle_seconds, 0.1, LEASE_SECONDS_MAX)
        check_number("transaction_seconds", transaction_seconds, 0.001, BRANCH_SECONDS_MAX)
        self._manager = manager
        self._host, self._port, self._tls = host, port, tls
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
            container_id=_client_of(manager).runtime.consumer,
            rules=rules,
            limits=limits or Limits(),
            idle_seconds=idle_seconds,
            resource_of=self._resource_of,
            workers=ThreadPoolExecutor(threads, "txnqueue amqp"),
            beats=ThreadPoolExecutor(BEAT_THREADS, "txnqueue amqp beat"),
            doorkeeper=ThreadPoolExecutor(1, "txnqueue amqp door"),
            nudge=self._nudge,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: the host and the port.

        Raises:
            InvalidInput: It does not listen.
        """
        if self._address is None:
            raise InvalidInput("The server is not listening: call start() first.")
        return self._address

    @property
    def connections(self) -> int:
        """Count the clients that are connected."""
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
            except OSError as error:
                started.append(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="txnqueue amqp server", daemon=True)
        self._thread.start()
        ready.wait()
        if self._address is None:
            why = started[0] if started else "it ended at once"
            raise PlatformMissing(f"Nothing can listen on {self._host}:{self._port}: {why}")
        logger.info("amqp listens on %s:%s", *self._address)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """Stop: what is being done is finished, open transactions are rolled back.

        Args:
            grace_seconds: So long clients may take; then their sockets are closed.
        """
        if self._thread is None or self._loop is None or self._over is None:
            return
        self._grace_seconds = grace_seconds
        with contextlib.suppress(RuntimeError):  # it has stopped
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        for pool in (self._services.workers, self._services.beats, self._services.doorkeeper):
            pool.shutdown()

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

    # ---------------------------------------------------------------------- in the loop

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        listener = await asyncio.start_server(
            self._accept, self._host, self._port, ssl=self._tls, limit=1 << 17
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
            writer.transport.abort()  # nothing is left for it that it would have to read
            return
        client = ClientConnection(self._services, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._clients[client] = task
        try:
            await client.serve()
        except asyncio.CancelledError:  # the server waits no longer
            logger.warning("amqp client left behind user=%s", client.user)
        except Exception:
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
        """Give a user's view of the store, in whose journal he is the actor."""
        from txnqueue.manager import QueueManager

        rules = self._services.rules
        with self._lock:
            if user not in self._resources:
                client = _client_of(self._manager)
                manager = QueueManager(
                    client.store.spark,
                    store=client.store,
                    runtime=replace(client.runtime),
                    actor=user,
                    consumer=f"{client.runtime.consumer}/{user}",
                )
                self._resources[user] = TransactionalResource(
                    manager,
                    timeout_seconds=self._transaction_seconds,
                    allows=None if rules is None else (lambda *how: rules.allows(user, *how)),
                    limits=self._services.limits,
                )
            return self._resources[user]


def _client_of(manager: QueueManager) -> Client:
    return attempt_of(manager.transaction()).client


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
