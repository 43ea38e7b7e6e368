"""A client of somebody else's, over a socket: Apache Qpid Proton's transactions."""

from __future__ import annotations

import socket
from typing import Any

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")

from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.conformance.conftest import on_delta_when_long, rows
from tests.specifications.amqp_server import Server
from txnqueue.protocols.amqp import TransactionalResource

SECONDS = 20.0


class Client(MessagingHandler, TransactionHandler):
    """Does one step after another, each when the one before is answered."""

    def __init__(self, url: str, queue: str, steps: Any) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.url, self.queue = url, queue
        self.steps = steps(self)
        self.told: list[str] = []
        self.received: list[Any] = []

    def connect(self, container: Any) -> None:
        self.container = container
        self.connection = container.connect(self.url, handler=self, reconnect=False)

    def on_connection_opened(self, event: Any) -> None:
        self.sender = self.container.create_sender(self.connection, self.queue)
        self.receiver = self.container.create_receiver(self.connection, self.queue, handler=self)
        self.go_on()

    def go_on(self) -> None:
        next(self.steps, None)

    def declare(self) -> None:
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.go_on()

    def on_message(self, event: Any) -> None:
        self.received.append(event.message)
        self.delivery = event.delivery
        self.go_on()

    def on_transaction_committed(self, event: Any) -> None:
        self.told.append("committed")
        self.go_on()

    def on_transaction_aborted(self, event: Any) -> None:
        self.told.append("aborted")
        self.go_on()

    def on_transaction_commit_failed(self, event: Any) -> None:
        condition = event.delivery.remote.condition
        self.told.append(condition.name)
        self.go_on()


class Program(MessagingHandler):
    """Server and client in one loop, over a socket on this machine."""

    def __init__(self, server: Server, client: Any) -> None:
        super().__init__()
        self.server, self.client = server, client

    def on_start(self, event: Any) -> None:
        host, _, port = self.client.url.rpartition(":")
        self.acceptor = event.container.acceptor(host, int(port), handler=self.server)
        self.client.connect(event.container)
        self.alarm = event.container.schedule(SECONDS, self)
        self.client.stop = self.stop

    def on_timer_task(self, event: Any) -> None:
        self.acceptor.close()
        self.client.connection.close()
        raise AssertionError(f"the client hangs: {self.client.told}")

    def stop(self) -> None:
        self.alarm.cancel()
        self.acceptor.close()
        self.client.connection.close()


def run(world: Any, orders: Any, steps: Any) -> Client:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    server = Server(TransactionalResource(world.manager("broker")))
    client = Client(url, orders.name, steps)
    Container(Program(server, client)).run()
    return client


@on_delta_when_long
@pytest.mark.rule("S1-01", "S1-14", "S1-25", "S1-34", "S1-35")
def test_proton_posts_and_retires_in_transactions(world: Any) -> None:
    orders = world.queue()
    seen: list[Any] = []

    def steps(client: Any) -> Any:
        client.declare()
        yield
        for n in (1, 2):
            client.transaction.send(client.sender, Message(body={"n": n, "key": None}))
        client.transaction.commit()
        yield
        seen.append(orders.depth())
        client.declare()
        yield
        client.transaction.send(client.sender, Message(body={"n": 3, "key": None}))
        client.transaction.abort()
        yield
        seen.append(orders.depth())
        client.receiver.flow(1)
        yield
        client.declare()
        yield
        client.transaction.accept(client.delivery)
        client.transaction.commit()
        yield
        seen.append((orders.depth(), orders.in_flight()))
        client.stop()

    client = run(world, orders, steps)
    assert client.told == ["committed", "aborted", "committed"]
    assert seen == [2, 2, (1, 0)]
    assert [message.body["n"] for message in client.received] == [1]


@on_delta_when_long
@pytest.mark.rule("S1-25")
def test_proton_posts_on_a_link_without_an_address(world: Any) -> None:
    orders = world.queue()

    def steps(client: Any) -> Any:
        anywhere = client.container.create_sender(client.connection, None)
        client.declare()
        yield
        for n, address in [(1, orders.name), (2, "nothing")]:
            message = Message(body={"n": n, "key": None}, address=address)
            client.transaction.send(anywhere, message)
        client.transaction.commit()
        yield
        client.stop()

    assert run(world, orders, steps).told == ["committed"]
    assert [row["n"] for row in orders.peek_messages()] == [1]


@on_delta_when_long
@pytest.mark.rule("S1-04", "S1-16", "S1-20", "S1-29")
def test_proton_hears_why_a_commit_is_refused(world: Any) -> None:
    orders = world.queue()
    orders.send(rows(1))

    def steps(client: Any) -> Any:
        client.declare()
        yield
        client.transaction.send(client.sender, Message(body={"n": 7, "key": None}))
        wrong = client.transaction.send(client.sender, Message(body={"n": "no number"}))
        wrong.settle()
        client.transaction.commit()
        yield
        client.declare()
        yield
        client.transaction.send(client.sender, Message(body={"n": 8, "key": None}))
        client.stop()  # without a discharge

    client = run(world, orders, steps)
    assert client.told == ["amqp:transaction:rollback"]
    assert [row["n"] for row in orders.peek_messages()] == [1]
