"""A listener for tests, on a store in memory, and clients of it in other processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from txnqueue.manager import QueueManager
from txnqueue.protocols.amqp import AmqpServer
from txnqueue.storage.store import MemoryStore

ROOT = Path(__file__).parents[2]
SECONDS = 10.0


class Refusal(Exception):
    """What the client's library raised."""


class ProtonClient:
    """A process with a client of Proton's."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.specifications.amqp_proton"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, *arguments: Any, **named: Any) -> None:
        """Let it do something, without waiting for the end of that."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments, named]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Take what was answered."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Refusal("the process ended")
        found = json.loads(line)
        if isinstance(found, dict) and "error" in found:
            raise Refusal(found["error"])
        return found

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Let it do something."""
        self.ask(name, *arguments, **named)
        return self.answer()

    def kill(self) -> None:
        """Cut its connection as the end of a process does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End the process, whatever it does."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Wire:
    """A way to a listener that can be cut while both ends live."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it begins."""
        return int(self._listening.getsockname()[1])

    def cut(self) -> None:
        """Cut what is connected; a new connection is a new way."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Cut it, and take no more connections."""
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while octets := one.recv(65_536):
                other.sendall(octets)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Ending(Protocol):
    """A client that a test leaves behind."""

    def end(self) -> None:
        """Cut its connection."""


class Listener:
    """A server with its store, and the clients that a test has made of it."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore()
        self.manager = QueueManager(None, store=self.store, actor="broker", consumer="broker")
        options = {"tick_seconds": 0.1, **options}
        self.server = AmqpServer(self.manager, port=0, **options)
        self.clients: list[Ending] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server.address[1]

    def client(self, scheme: str = "amqp", **options: Any) -> ProtonClient:
        """Connect a client."""
        made = ProtonClient()
        self.clients.append(made)
        host = "localhost" if scheme == "amqps" else "127.0.0.1"
        made("connect", f"{scheme}://{host}:{self.port}", **options)
        return made


@contextmanager
def listening(**options: Any) -> Iterator[Listener]:
    """Serve a store in memory."""
    listener = Listener(**options)
    with listener.server:
        try:
            yield listener
        finally:
            for client in listener.clients:
                client.end()


def eventually(true: Callable[[], object], seconds: float = SECONDS) -> bool:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
