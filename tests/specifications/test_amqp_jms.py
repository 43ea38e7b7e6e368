"""The listener, driven by Qpid JMS in a process of its own: JMS transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")

from tests.conftest import LONG
from tests.specifications.amqp_listener import Listener, Refusal, Wire, eventually, listening
from tests.specifications.qpid_jms import JmsClient
from txnqueue.protocols.amqp import AccessRules, hashed

QUEUES = {"letters": "body string", "answers": "body string", "blobs": "body binary"}
TRANSACTIONS = 1_000 if LONG else 50
RULES = AccessRules.read(
    {
        "users": {"shop": hashed("secret")},
        "rules": [{"users": ["shop"], "send": ["letters"], "receive": ["letters", "answers"]}],
    }
)


@pytest.fixture(params=[None])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    """Serve three queues, by the rules that a test is parametrized with."""
    with listening(rules=request.param) as made:
        for name, schema in QUEUES.items():
            made.manager.create_queue(name, schema)
        yield made


@pytest.fixture
def jms() -> Iterator[JmsClient]:
    made = JmsClient()
    yield made
    made.end()


def connect(jms: JmsClient, listener: Listener, *user: str, mode: str = "transacted") -> None:
    """Connect, and begin a session."""
    url = f"amqp://127.0.0.1:{listener.port}?jms.prefetchPolicy.all=10"
    assert jms("connect", url, *user) == "QpidJMS"
    jms("session", mode)


def bodies(listener: Listener, queue: str) -> list[str]:
    """Read what is available in a queue."""
    return [row["body"] for row in listener.manager.queue(queue).peek_messages(10_000)]


@pytest.mark.rule("S1-01", "S1-14", "S1-25", "S1-34")
def test_a_transacted_session_commits_and_rolls_back(listener: Listener, jms: JmsClient) -> None:
    connect(jms, listener)
    jms("send", "letters", "one")
    jms("send", "letters", "two")
    assert bodies(listener, "letters") == []
    jms("commit")
    assert bodies(listener, "letters") == ["one", "two"]
    jms("send", "letters", "three")
    jms("rollback")
    assert bodies(listener, "letters") == ["one", "two"]
    assert jms("receive", "letters", 5000) == "one"
    jms("send", "answers", "to-one")
    jms("rollback")
    assert bodies(listener, "answers") == []
    assert jms("receive", "letters", 5000) == "one"
    jms("send", "answers", "to-one")
    jms("commit")
    jms("close")
    letters = listener.manager.queue("letters")
    assert eventually(lambda: letters.in_flight() == 0)
    assert bodies(listener, "letters") == ["two"] and bodies(listener, "answers") == ["to-one"]


def test_what_a_message_says_of_itself_comes_back(listener: Listener, jms: JmsClient) -> None:
    connect(jms, listener)
    message_id = jms("send", "letters", "hello")
    jms("commit")
    told = f"{message_id} 5 true letter c-hello"
    assert jms("describe", "letters") == f"{told} false"
    jms("rollback")
    assert jms("describe", "letters") == f"{told} true"
    jms("commit")
    assert jms("receive", "letters", 300) == "none"


def test_octets_come_back_over_many_transfers(listener: Listener, jms: JmsClient) -> None:
    connect(jms, listener, mode="not")
    jms("octets", "blobs", 1_000_000)
    assert jms("receive", "blobs", 10_000) == "1000000 octets"
    blobs = listener.manager.queue("blobs")
    assert eventually(lambda: (blobs.depth(), blobs.in_flight()) == (0, 0))


@pytest.mark.rule("S1-07")
def test_a_client_that_dies_leaves_nothing_of_its_transaction(
    listener: Listener, jms: JmsClient
) -> None:
    letters = listener.manager.queue("letters")
    letters.send([{"body": "one"}, {"body": "two"}])
    connect(jms, listener)
    assert jms("receive", "letters", 5000) == "one"
    jms("send", "answers", "to-one")
    assert letters.in_flight() == 2
    with pytest.raises(Refusal):
        jms("die")
    assert eventually(lambda: (letters.depth(), letters.in_flight()) == (2, 0))
    assert bodies(listener, "answers") == []


@pytest.fixture
def wire(listener: Listener) -> Iterator[Wire]:
    made = Wire(listener.port)
    yield made
    made.end()


@pytest.mark.rule("S1-07")
@pytest.mark.parametrize("url", ["amqp://127.0.0.1:{}", "failover:(amqp://127.0.0.1:{})"])
def test_a_transaction_does_not_outlive_a_cut_wire(
    listener: Listener, wire: Wire, jms: JmsClient, url: str
) -> None:
    letters = listener.manager.queue("letters")
    letters.send([{"body": "one"}, {"body": "two"}])
    jms("connect", url.format(wire.port))
    jms("session", "transacted")
    assert jms("receive", "letters", 5000) == "one"
    jms("send", "answers", "to-one")
    wire.cut()
    # Without failover the name depends on how much the client has noticed of the cut.
    with pytest.raises(Refusal, match="RolledBack" if "failover" in url else "Exception"):
        jms("commit")
    if "failover" in url:
        # Qpid JMS still hands out what it prefetched before it was reconnected, or has released
        # after a refused commit, and sends no outcome for it: a roll back empties its prefetch.
        jms("rollback")
    else:
        assert eventually(lambda: (letters.depth(), letters.in_flight()) == (2, 0))
        jms("connect", url.format(wire.port))
        jms("session", "transacted")
    assert {jms("receive", "letters", 5000) for _ in range(2)} == {"one", "two"}
    assert bodies(listener, "answers") == []
    jms("send", "answers", "to-both")
    jms("commit")
    jms("close")
    assert bodies(listener, "answers") == ["to-both"]
    assert eventually(lambda: (letters.depth(), letters.in_flight()) == (0, 0))


def test_transactions_move_each_message_once(listener: Listener, jms: JmsClient) -> None:
    letters = listener.manager.queue(
        "letters",
    )
    letters.send([{"body": f"{n}"} for n in range(TRANSACTIONS)])
    connect(jms, listener)
    done, aborted = jms("transactions", TRANSACTIONS, "letters", "answers", 10).split()
    jms("close")
    assert int(done) == TRANSACTIONS and int(aborted) >= TRANSACTIONS // 10 - 1
    assert sorted(int(one) for one in bodies(listener, "answers")) == list(range(TRANSACTIONS))
    assert eventually(lambda: letters.in_flight() == 0)
    assert letters.depth() == 0


@pytest.mark.parametrize("listener", [RULES], indirect=True, ids=["rules"])
def test_a_user_has_a_password_and_may_do_what_the_rules_say(
    listener: Listener, jms: JmsClient
) -> None:
    url = f"amqp://127.0.0.1:{listener.port}"
    with pytest.raises(Refusal, match="JMSSecurity"):
        jms("connect", url, "shop", "wrong")
    connect(jms, listener, "shop", "secret")
    jms("send", "letters", "hello")
    jms("commit")
    changes = listener.manager.history.changes().rows()
    assert changes[-1]["actor"] == "shop"
    for command in (("send", "answers", "x"), ("receive", "blobs", 100), ("send", "nothing", "x")):
        with pytest.raises(Refusal, match=r"JMSSecurity.*No rule lets this user"):
            jms(*command)
