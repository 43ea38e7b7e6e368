"""A client of AMQP 1.0 in a process of its own: Proton's, told line by line what to do.

Each line of its input is a JSON list, a method's name and its arguments; each line of its output
is the JSON of what the method returned, or ``{"error": …}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

from proton import Delivery, Message, ProtonException, SSLDomain
from proton.handlers import TransactionHandler
from proton.utils import BlockingConnection

NAMES = {
    Delivery.ACCEPTED: "accepted",
    Delivery.REJECTED: "rejected",
    Delivery.RELEASED: "released",
    Delivery.MODIFIED: "modified",
    0x34: "transactional",
}


class Told(TransactionHandler):
    """What the coordinator said last."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction: Any = None
        self.said: str | None = None

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction, self.said = event.transaction, "declared"

    def on_transaction_declare_failed(self, event: Any) -> None:
        self.said = event.delivery.remote.condition.name

    def on_transaction_committed(self, event: Any) -> None:
        self.said = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.said = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.said = event.delivery.remote.condition.name


class Client:
    """One connection, with named links."""

    def __init__(self) -> None:
        self.links: dict[str, Any] = {}
        self.told: list[Told] = []

    def connect(self, url: str, authority: str | None = None, **options: Any) -> str:
        if authority is not None:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(authority)
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
            if "certificate" in options:
                domain.set_credentials(options.pop("certificate"), options.pop("key"), None)
            options["ssl_domain"] = domain
        self.connection = BlockingConnection(url, timeout=options.pop("timeout", 10), **options)
        return str(self.connection.conn.remote_container)

    def close(self) -> None:
        self.connection.close()

    def sender(self, name: str, address: str | None) -> None:
        self.links[name] = self.connection.create_sender(address, name=name)

    def receiver(self, name: str, address: str, credit: int = 0) -> None:
        self.links[name] = self.connection.create_receiver(address, name=name, credit=credit)

    def detach(self, name: str, closed: bool = True) -> None:
        link = self.links.pop(name)
        if closed:
            link.close()
        else:
            link.link.detach()
            self.sleep(0.3)

    def send(self, name: str, body: Any, **said: Any) -> str:
        """Send outside of transactions, and tell what becomes of it."""
        delivery = self.links[name].send(self.message(body, said), error_states=[])
        condition = delivery.remote.condition
        outcome = NAMES[delivery.remote_state]
        return outcome if condition is None else f"{outcome} {condition.name}"

    def send_octets(self, name: str, count: int, fill: str = "x") -> str:
        """Send a long body of one letter, as octets."""
        return self.send(name, None, octets=count, fill=fill)

    def post(self, name: str, *bodies: Any) -> None:
        """Send in the transaction at hand."""
        for body in bodies:
            delivery = self.told[-1].transaction.send(self.links[name].link, self.message(body, {}))
            self.wait(lambda one=delivery: one.settled or one.remote_state)

    def post_blindly(self, name: str, body: Any) -> None:
        """Send in the transaction at hand, and settle before any answer."""
        self.told[-1].transaction.send(self.links[name].link, self.message(body, {})).settle()

    def message(self, body: Any, said: dict[str, Any]) -> Message:
        octets, fill = said.pop("octets", None), said.pop("fill", "x")
        if octets is not None:
            body = fill.encode() * octets
        return Message(body=body, **said)

    def receive(self, name: str, count: int = 1, timeout: float = 10) -> list[Any]:
        """Receive messages, and give their bodies and what they say of themselves."""
        found = []
        for _ in range(count):
            message = self.links[name].receive(timeout=timeout)
            body = message.body
            if isinstance(body, memoryview | bytes):
                body = {"octets": len(body), "begin": bytes(body[:20]).decode()}
            found.append(
                {
                    "body": body,
                    "id": message.id,
                    "subject": message.subject,
                    "correlation_id": message.correlation_id,
                    "content_type": message.content_type,
                    "properties": message.properties,
                    "delivery_count": message.delivery_count,
                }
            )
        return found

    def flow(self, name: str, credit: int) -> None:
        self.links[name].link.flow(credit)

    def drain(self, name: str, credit: int) -> int:
        """Ask for what is there now, and tell how much of the credit came back unused."""
        link = self.links[name].link
        link.drain(credit)
        self.wait(lambda: not link.draining() or not link.credit)
        return int(link.drained())

    def settle(self, name: str, how: str = "accept", count: int = 1) -> None:
        for _ in range(count):
            getattr(self.links[name], how)()
        self.sleep(0.05)

    def retire(self, name: str, count: int = 1) -> None:
        """Accept messages in the transaction at hand."""
        unsettled = self.links[name].fetcher.unsettled
        for _ in range(count):
            self.told[-1].transaction.accept(unsettled.popleft())

    def declare(self) -> str | None:
        told = Told()
        self.told.append(told)
        connection: Any = self.connection.conn
        self.connection.container.declare_transaction(connection, handler=told)
        self.wait(lambda: told.said)
        return told.said

    def discharge(self, how: str) -> str | None:
        told = self.told.pop()
        told.said = None
        getattr(told.transaction, how)()
        self.wait(lambda: told.said)
        return told.said

    def transactions(self, count: int, source: str, target: str, aborted_every: int) -> list[int]:
        """Move numbers from queue to queue, one a transaction; abort some, which are redone.

        Returns:
            How many were committed, and how many aborted.
        """
        self.sender("t", target)
        self.receiver("s", source, credit=0)
        done, aborted = 0, 0
        while done < count:
            if not self.links["s"].fetcher.incoming:
                self.links["s"].link.flow(1)
            (found,) = self.receive("s")
            self.declare()
            self.post("t", {"n": found["body"]["n"]})
            self.retire("s")
            if aborted < done // aborted_every:
                assert self.discharge("abort") == "aborted"
                aborted += 1
            else:
                assert self.discharge("commit") == "committed"
                done += 1
        return [done, aborted]

    def sleep(self, seconds: float) -> None:
        """Work on the connection for a while."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until)

    def silent(self, seconds: float) -> None:
        """Do nothing at all, so that nothing is said either."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Answer what the server has ended."""
        connection = getattr(self, "connection", None)
        with contextlib.suppress(ProtonException, OSError):
            if connection is not None and connection.conn is not None:
                connection.container.timeout = 0.05
                for _ in range(3):
                    connection.container.process()

    def die(self) -> None:
        os._exit(9)

    def wait(self, until: Any) -> None:
        connection = self.connection
        deadline = time.monotonic() + 20
        timeout, connection.container.timeout = connection.container.timeout, 0.05
        try:
            while not until():
                connection.container.process()
                if connection.disconnected or connection.conn.state & 32:
                    condition = connection.conn.remote_condition
                    raise ConnectionError(condition.name if condition else "disconnected")
                if time.monotonic() > deadline:
                    raise TimeoutError("nothing came")
        finally:
            connection.container.timeout = timeout


def main() -> None:
    """Do what the lines say."""
    client = Client()
    for line in sys.stdin:
        name, arguments, named = json.loads(line)
        try:
            answer = getattr(client, name)(*arguments, **named)
        except (ProtonException, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
            client.flush()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
