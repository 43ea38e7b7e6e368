"""The listener, driven by Proton's client in another process."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")

from tests.conftest import LONG
from tests.specifications.amqp_listener import (
    Listener,
    Refusal,
    eventually,
    listening,
)
from txnqueue.errors import InvalidInput, LimitExceeded, PlatformMissing
from txnqueue.manager import QueueManager
from txnqueue.protocols.amqp import (
    AccessRules,
    AmqpServer,
    Limits,
    TransactionalResource,
    hashed,
    transactions,
)
from txnqueue.protocols.amqp.server import consumer_of
from txnqueue.storage.store import MemoryStore

TRANSACTIONS = 1_000 if LONG else 50
RULES = AccessRules.read(
    {
        "users": {"shop": hashed("secret")},
        "rules": [
            {"users": ["shop"], "send": ["ord*"], "receive": ["orders"]},
            {"users": ["*"], "receive": ["invoices"]},
        ],
    }
)
FEW = Limits(connections=3, sessions=2, links=4, transactions=2, unsettled=3, message_bytes=10_000)


def served(**options: Any) -> pytest.MarkDecorator:
    """Let a test's listener have options."""
    return pytest.mark.parametrize("listener", [options], indirect=True, ids=["options"])


def numbers(listener: Listener, queue: str = "orders") -> list[int]:
    """Read what is available in a queue."""
    return [row["n"] for row in listener.manager.queue(queue).peek_messages(10_000)]


@pytest.fixture(params=[{}])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    """Serve three queues, with the options that a test is parametrized with."""
    with listening(**request.param) as made:
        made.manager.create_queue("letters", "body binary, subject string, weight int")
        made.manager.create_queue("orders", "n long")
        made.manager.create_queue("invoices", "n long")
        yield made


@pytest.mark.rule("S1-25", "S1-34")
def test_messages_are_sent_received_and_settled(listener: Listener) -> None:
    client = listener.client()
    client("sender", "s", "orders")
    assert [client("send", "s", {"n": n}) for n in (1, 2, 3)] == ["accepted"] * 3
    client("receiver", "r", "orders", credit=2)
    assert [one["body"]["n"] for one in client("receive", "r", 2)] == [1, 2]
    client("settle", "r", "accept")
    client("settle", "r", "release")
    client("close")
    orders = listener.manager.queue("orders")
    assert eventually(lambda: orders.depth() == 2 and orders.in_flight() == 0)
    assert sorted(numbers(listener)) == [2, 3]
    assert listener.manager.history.changes().rows()[-1]["actor"] == "anonymous"


@pytest.mark.rule("S1-01", "S1-14", "S1-25", "S1-35")
def test_a_transaction_is_committed_or_rolled_back_as_one(listener: Listener) -> None:
    listener.manager.queue("orders").send([{"n": 1}])
    client = listener.client()
    client("sender", "s", "invoices")
    client("receiver", "r", "orders", credit=1)
    for how, told in (("abort", "aborted"), ("commit", "committed")):
        client("receive", "r")
        client("declare")
        client("post", "s", {"n": 10}, {"n": 11})
        client("retire", "r")
        assert numbers(listener, "invoices") == []
        assert client("discharge", how) == told
        client("flow", "r", 1)
    assert numbers(listener, "invoices") == [10, 11]
    assert eventually(lambda: listener.manager.queue("orders").in_flight() == 0)
    assert numbers(listener) == []


@pytest.mark.rule("S1-07")
def test_a_cut_connection_leaves_nothing_of_its_transaction(listener: Listener) -> None:
    orders = listener.manager.queue("orders")
    orders.send([{"n": 1}, {"n": 2}])
    client = listener.client()
    client("sender", "s", "invoices")
    client("receiver", "r", "orders", credit=2)
    client("receive", "r", 2)
    client("declare")
    client("post", "s", {"n": 10})
    client("retire", "r")
    assert (orders.depth(), orders.in_flight()) == (0, 2)
    client.kill()
    assert eventually(lambda: (orders.depth(), orders.in_flight()) == (2, 0))
    assert numbers(listener, "invoices") == []
    assert eventually(lambda: listener.server.connections == 0)


@pytest.mark.rule("S1-14")
def test_transactions_move_each_message_once(listener: Listener) -> None:
    orders = listener.manager.queue("orders")
    orders.send([{"n": n} for n in range(TRANSACTIONS)])
    client = listener.client()
    done, aborted = client("transactions", TRANSACTIONS, "orders", "invoices", 10)
    client("close")
    assert done == TRANSACTIONS and aborted >= TRANSACTIONS // 10 - 1
    assert sorted(numbers(listener, "invoices")) == list(range(TRANSACTIONS))
    assert eventually(lambda: (orders.depth(), orders.in_flight()) == (0, 0))


@pytest.mark.rule("S1-25")
def test_a_link_without_an_address_posts_where_each_message_says(listener: Listener) -> None:
    client = listener.client()
    client("sender", "s", None)
    assert client("send", "s", {"n": 1}, address="orders") == "accepted"
    assert client("send", "s", {"n": 2}, address="nothing") == "rejected amqp:not-found"
    assert client("send", "s", {"n": 3}) == "rejected amqp:invalid-field"
    assert client("send", "s", {"n": "x"}, address="orders") == "rejected amqp:invalid-field"
    assert client("send", "s", "text", address="orders") == "rejected amqp:not-implemented"
    assert numbers(listener) == [1]


@pytest.mark.rule("S1-16", "S1-20", "S1-29")
def test_a_commit_that_is_refused_says_so(listener: Listener) -> None:
    client = listener.client()
    client("sender", "s", "orders")
    client("declare")
    client("post", "s", {"n": 1})
    client("post_blindly", "s", {"n": "no number"})
    assert client("discharge", "commit") == "amqp:transaction:rollback"
    assert numbers(listener) == []


# --------------------------------------------------------------------------------- who it is


@served(rules=RULES)
def test_a_wrong_password_is_refused_and_a_right_one_is_the_actor(listener: Listener) -> None:
    for user, password in (("shop", "wrong"), ("nobody", "secret"), ("anonymous", "")):
        with pytest.raises(Refusal, match="amqp:unauthorized-access"):
            listener.client(
                user=user, password=password, allowed_mechs="PLAIN", allow_insecure_mechs=True
            )
    client = listener.client(
        user="shop", password="secret", allowed_mechs="PLAIN", allow_insecure_mechs=True
    )
    client("sender", "s", "orders")
    assert client("send", "s", {"n": 1}) == "accepted"
    assert listener.manager.history.changes().rows()[-1]["actor"] == "shop"


@served(rules=RULES)
def test_nothing_is_allowed_that_no_rule_allows(listener: Listener) -> None:
    listener.manager.queue("invoices").send([{"n": 7}])
    client = listener.client()  # anonymous
    client("receiver", "i", "invoices", credit=1)
    assert client("receive", "i")[0]["body"] == {"n": 7}
    client("settle", "i")
    for link, queue in (("sender", "orders"), ("receiver", "orders"), ("sender", "nothing")):
        with pytest.raises(Refusal, match=f"No rule lets this user .* '{queue}'"):
            client(link, "x", queue)
    client("sender", "s", None)
    for queue in ("orders", "nothing"):
        outcome = client("send", "s", {"n": 1}, address=queue)
        assert outcome == "rejected amqp:unauthorized-access"
    assert numbers(listener) == []


def test_no_two_users_of_servers_have_one_consumer_id() -> None:
    """They would take over each other's messages, and end each other's leases."""
    pairs = [("a", "b"), ("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a", "b%252Fc")]
    assert len({consumer_of(server, user) for server, user in pairs}) == len(pairs)
    assert consumer_of("broker", "shop@example.com") == "broker/shop@example.com"


def test_a_listener_for_other_machines_needs_tls() -> None:
    manager = QueueManager(None, store=MemoryStore())
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(InvalidInput, match="only over TLS"):
            AmqpServer(manager, host)


def test_a_host_that_there_cannot_be_is_told() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    manager = QueueManager(None, store=MemoryStore())
    for host in ("a..b", "x" * 64):
        with pytest.raises(PlatformMissing, match=f"Nothing can listen on {host}:0"):
            AmqpServer(manager, host, 0, tls=tls).start()
    for wrong in (5, None):
        with pytest.raises(InvalidInput, match="host="):
            AmqpServer(manager, cast(str, wrong), 0, tls=tls)


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0, 0, 1e10, "60"])
def test_a_time_that_clients_cannot_be_promised_is_refused_at_once(seconds: Any) -> None:
    manager = QueueManager(None, store=MemoryStore())
    for name in ("idle_seconds", "transaction_seconds"):
        with pytest.raises((InvalidInput, LimitExceeded), match=name):
            AmqpServer(manager, port=0, **{name: seconds})
    with pytest.raises((InvalidInput, LimitExceeded), match="timeout_seconds"):
        TransactionalResource(manager, timeout_seconds=seconds)


# ---------------------------------------------------------------------------------- messages


@served(limits=Limits(frame_bytes=2048))
def test_long_messages_go_and_come_in_many_transfers(listener: Listener) -> None:
    client = listener.client(max_frame_size=1024)
    client("sender", "s", "letters")
    assert client("send_octets", "s", 500_000, "x") == "accepted"
    assert client("send_octets", "s", 0, "x") == "accepted"
    client("receiver", "r", "letters", credit=2)
    first, second = client("receive", "r", 2)
    assert first["body"] == {"octets": 500_000, "begin": "x" * 20}
    assert second["body"] == {"octets": 0, "begin": ""}


def test_properties_are_columns_or_headers_of_a_plain_body(listener: Listener) -> None:
    client = listener.client()
    client("sender", "s", "letters")
    said = {"id": "m-1", "subject": "greeting", "correlation_id": "c-1", "content_type": "text/x"}
    sent = client("send", "s", "hello", properties={"weight": 7, "colour": "red"}, **said)
    assert sent == "accepted"
    (row,) = listener.manager.queue("letters").peek_messages()
    assert (row["body"], row["subject"], row["weight"]) == (b"hello", "greeting", 7)
    about = {"message_id": "m-1", "content_type": "text/x", "colour": "red"}
    assert row["_message"]["headers"] == about | {"correlation_id": "c-1"}
    client("receiver", "r", "letters", credit=1)
    (found,) = client("receive", "r")
    assert found["body"] == {"octets": 5, "begin": "hello"}
    assert {name: found[name] for name in said} == said
    assert found["properties"] == {"weight": 7, "colour": "red"}
    outcome = client("send", "s", "heavy", properties={"weight": "seven"})
    assert outcome == "rejected amqp:invalid-field"
    assert client("send", "s", [1, 2]) == "rejected amqp:not-implemented"


@pytest.mark.parametrize("credit", [2, 10])
def test_credit_that_cannot_be_used_comes_back(listener: Listener, credit: int) -> None:
    listener.manager.queue("orders").send([{"n": n} for n in range(5)])
    client = listener.client()
    client("receiver", "r", "orders")
    assert client("drain", "r", credit) == max(0, credit - 5)
    assert len(client("receive", "r", min(credit, 5))) == min(credit, 5)


@pytest.mark.rule("S1-34")
def test_what_a_detached_link_held_goes_back_when_it_is_closed(listener: Listener) -> None:
    orders = listener.manager.queue("orders")
    orders.send([{"n": 1}])
    client = listener.client()
    client("receiver", "r", "orders", credit=1)
    client("receive", "r")
    client("detach", "r", closed=False)
    assert orders.in_flight() == 1
    client("close")
    assert eventually(lambda: (orders.depth(), orders.in_flight()) == (1, 0))


def test_messages_come_as_soon_as_another_client_has_sent_them() -> None:
    with listening(tick_seconds=60.0) as listener:
        listener.manager.create_queue("orders", "n long")
        receiver, sender = listener.client(), listener.client()
        receiver("receiver", "r", "orders", credit=1)
        sender("sender", "s", "orders")
        sender("send", "s", {"n": 1})
        assert receiver("receive", "r")[0]["body"] == {"n": 1}


def test_a_transaction_of_long_messages_waits_in_the_store_and_not_in_memory(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "POSTED_OCTETS_MAX", 250_000)
    stage, staged = listener.store.payload.stage, []

    def counting(*arguments: Any, **named: Any) -> Any:
        staged.append(arguments)
        return stage(*arguments, **named)

    monkeypatch.setattr(listener.store.payload, "stage", counting)
    client = listener.client()
    client("sender", "s", "letters")
    client("declare")
    client("post", "s", *["x" * 100_000] * 7)
    assert len(staged) == 2
    assert client("discharge", "abort") == "aborted"
    assert listener.manager.queue("letters").depth() == 0
    client("declare")
    client("post", "s", *["x" * 100_000] * 7)
    assert client("discharge", "commit") == "committed"
    assert (len(staged), listener.manager.queue("letters").depth()) == (5, 7)


# --------------------------------------------------------------------------------- the clock


@served(idle_seconds=2.0)
def test_a_silent_client_is_closed_and_its_messages_are_free(listener: Listener) -> None:
    orders = listener.manager.queue("orders")
    orders.send([{"n": 1}])
    lively, silent = listener.client(), listener.client()
    silent("receiver", "r", "orders", credit=1)
    silent("receive", "r")
    silent.ask("silent", 6.0)
    lively("sleep", 4.0)
    assert eventually(lambda: (orders.depth(), orders.in_flight()) == (1, 0), 1.5)
    lively("sender", "s", "orders")
    silent.answer()
    with pytest.raises(Refusal):
        silent("sender", "s", "orders")


def test_the_server_says_that_it_is_alive(listener: Listener) -> None:
    client = listener.client(heartbeat=0.5)  # the client closes after so much silence
    client("sleep", 1.6)
    client("sender", "s", "orders")
    assert client("send", "s", {"n": 1}) == "accepted"


def test_leases_are_extended_as_long_as_a_client_holds_messages(listener: Listener) -> None:
    short = listener.manager.create_queue("short", "n long", lease_seconds=0.8)
    short.send([{"n": 1}])
    client = listener.client()
    client("receiver", "r", "short", credit=1)
    client("receive", "r")
    client("sleep", 2.0)
    other = QueueManager(None, store=listener.store, consumer="other").queue("short")
    assert len(other.receive(1)) == 0
    client("settle", "r")
    assert eventually(lambda: (short.depth(), short.in_flight()) == (0, 0))


@served(threads=1)
def test_a_slow_commit_keeps_nobody_elses_lease_from_being_extended(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = listener.manager.create_queue("short", "n long", lease_seconds=0.8)
    short.send([{"n": 1}])
    holder, slow = listener.client(), listener.client()
    holder("receiver", "r", "short", credit=1)
    holder("receive", "r")
    slow("sender", "s", "orders")
    stage, entered, go_on = listener.store.payload.stage, threading.Event(), threading.Event()

    def stuck(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        return stage(*arguments, **named)

    monkeypatch.setattr(listener.store.payload, "stage", stuck)
    slow.ask("send", "s", {"n": 2})
    assert entered.wait(10)
    holder("sleep", 2.0)
    other = QueueManager(None, store=listener.store, consumer="other").queue("short")
    assert len(other.receive(1)) == 0
    go_on.set()
    assert slow.answer() == "accepted"


@served(transaction_seconds=0.3)
@pytest.mark.rule("S1-07")
def test_a_transaction_that_takes_too_long_is_rolled_back(listener: Listener) -> None:
    client = listener.client()
    client("sender", "s", "orders")
    client("declare")
    client("post", "s", {"n": 1})
    client("sleep", 0.8)
    assert client("discharge", "commit") == "amqp:transaction:timeout"
    assert numbers(listener) == []


# -------------------------------------------------------------------------------- the limits


@served(limits=FEW)
def test_what_is_over_a_limit_is_refused(listener: Listener) -> None:
    listener.manager.queue("orders").send([{"n": n} for n in range(10)])
    client = listener.client()
    client("declare")
    client("declare")
    for number in range(3):  # and the link to the coordinator
        client("sender", f"s{number}", "orders")
    with pytest.raises(Refusal, match=r"amqp:resource-limit-exceeded.*at most 4 links"):
        client("sender", "s3", "orders")
    receiver = listener.client()
    receiver("receiver", "r", "orders", credit=10)
    assert len(receiver("receive", "r", 3)) == 3
    with pytest.raises(Refusal, match="Timeout"):
        receiver("receive", "r", timeout=0.5)
    receiver("settle", "r", "accept", 2)
    assert len(receiver("receive", "r", 2)) == 2
    third = listener.client()
    with pytest.raises(Refusal):
        listener.client(timeout=2)
    third("sender", "s", "letters")
    with pytest.raises(Refusal, match="amqp:link:message-size-exceeded"):
        third("send_octets", "s", 20_000)


@served(limits=FEW)
def test_a_third_transaction_is_refused_until_one_is_discharged(listener: Listener) -> None:
    client = listener.client()
    assert [client("declare") for _ in range(3)] == [
        "declared",
        "declared",
        "amqp:resource-limit-exceeded",
    ]


# ------------------------------------------------------------------------------- the ends


def at_work(listener: Listener) -> tuple[Any, Any]:
    """Connect a client that holds the one message of ``orders``, and posts in a transaction."""
    orders = listener.manager.queue("orders")
    orders.send([{"n": 1}])
    client = listener.client()
    client("sender", "s", "invoices")
    client("receiver", "r", "orders", credit=1)
    client("receive", "r")
    client("declare")
    client("post", "s", {"n": 2})
    return orders, client


def test_a_stop_rolls_back_what_is_open_and_tells_clients(listener: Listener) -> None:
    orders, client = at_work(listener)
    client("retire", "r")
    client.ask("sleep", 5.0)
    listener.server.stop()
    assert (orders.depth(), orders.in_flight()) == (1, 0)
    assert numbers(listener, "invoices") == []
    with pytest.raises(Refusal, match="amqp:connection:forced"):
        client.answer()
    with pytest.raises(Refusal):
        listener.client()


def test_closing_the_manager_stops_its_server(listener: Listener) -> None:
    """Clients are told, and nothing is held for them, before the store is closed."""
    orders, client = at_work(listener)
    client.ask("sleep", 5.0)
    listener.manager.close()
    assert listener.server.connections == 0
    with pytest.raises(Refusal, match="amqp:connection:forced"):
        client.answer()
    assert (orders.depth(), orders.in_flight()) == (1, 0)
    assert numbers(listener, "invoices") == []
    assert listener.server.stop(), "it is stopped already"


@pytest.mark.parametrize("tick_seconds", [0.1, 60.0])
def test_a_store_that_is_closed_under_its_server_is_told_to_clients(
    tick_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another manager has closed the store that they share, or the Spark session was stopped."""

    def closed(*_: Any, **__: Any) -> Any:
        raise PlatformMissing("This manager is closed, and nothing was done: create another one.")

    with listening(tick_seconds=tick_seconds) as listener:
        orders = listener.manager.create_queue("orders", "n long")
        orders.send([{"n": 1}])
        client, other = listener.client(), listener.client()
        client("receiver", "r", "orders", credit=1)
        client("receive", "r")
        client("declare")
        client("retire", "r")
        store = listener.store
        with monkeypatch.context() as patch:
            for name in ("append", "read", "version"):
                patch.setattr(store.journal, name, closed)
            if tick_seconds > 1:
                with pytest.raises(Refusal, match=r"amqp:internal-error.*This manager is closed"):
                    other("sender", "s", "unheard-of")
            else:
                with pytest.raises(Refusal, match=r"amqp:connection:forced.*is closed"):
                    client("discharge", "commit")
                    client("sleep", 5.0)
        listener.server.stop()
        assert orders.depth() + orders.in_flight() == 1


def test_a_stop_waits_only_so_long_for_the_store(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has not done then goes on, and its client's transaction is rolled back."""
    orders = listener.manager.queue("orders")
    orders.send([{"n": 1}])
    client = listener.client()
    client("receiver", "r", "orders", credit=1)
    client("receive", "r")
    client("sender", "s", "invoices")
    client("declare")
    client("post", "s", {"n": 2})
    stage, entered, go_on = listener.store.payload.stage, threading.Event(), threading.Event()

    def stuck(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert go_on.wait(60)
        return stage(*arguments, **named)

    monkeypatch.setattr(listener.store.payload, "stage", stuck)
    client.ask("discharge", "commit")
    assert entered.wait(10)
    try:
        began = time.monotonic()
        assert not listener.server.stop(grace_seconds=0.5, timeout_seconds=3.0)
        assert time.monotonic() - began < 20
    finally:
        go_on.set()
    assert listener.server.stop()
    assert orders.in_flight() == 0 and orders.depth() == 1
    assert numbers(listener, "invoices") in ([], [2])
