"""The listener, driven by Proton's client in another process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")

from tests.specifications.amqp_listener import Listener, eventually, listening


def numbers(listener: Listener, queue: str = "orders") -> list[int]:
    """Read what is available in a queue."""
    return [row["n"] for row in listener.manager.queue(queue).peek_messages(10_000)]


@pytest.fixture
def listener() -> Any:
    with listening() as made:
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
