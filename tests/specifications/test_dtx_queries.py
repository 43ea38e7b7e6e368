"""Queries of exchanges and bindings: what is not there is an answer, and never an error."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.conformance.conftest import SCHEMA, World, alone_on_delta_when_long
from tests.inside import client_of, topology
from txnqueue.admin.exchange_creation import Asked, create_exchange
from txnqueue.core.exchanges import BindingAnswer, ExchangeAnswer
from txnqueue.protocols.dtx import AccessTicket, Channel, Connection, XaStatus, Xid
from txnqueue.testing import plain_schema

BITS = tuple(BindingAnswer.__dataclass_fields__)


@pytest.fixture
def bound(world: World) -> Any:
    """A manager of a store with one exchange, a queue that is bound and one that is not."""
    manager = world.manager()
    for name in ("bound", "alone"):
        manager.create_queue(name, SCHEMA, dead_letter=False)
    said = {"kind": "late", "x-match": "any"}
    columns = plain_schema(SCHEMA)
    asked = Asked("e", "headers", columns, "return", None, {"limit": 5}, durable=False)
    create_exchange(client_of(manager), asked, exist_ok=False)
    manager.exchange("e").bind("bound", "key", said)
    return manager


def exchange(manager: Any, *given: Any) -> ExchangeAnswer:
    return topology(manager).query_exchange(*given)


def binding(manager: Any, *given: Any, **fields: Any) -> BindingAnswer:
    return topology(manager).query_binding(*given, **fields)


def bits(answer: BindingAnswer) -> set[str]:
    return {bit for bit in BITS if getattr(answer, bit)}


@alone_on_delta_when_long
@pytest.mark.rule("S4-34")
def test_a_field_that_is_not_given_is_not_looked_for(bound: Any) -> None:
    said = {"kind": "late", "x-match": "any"}
    given = {"queue": "bound", "routing_key": "key", "arguments": said}
    for chosen in product((False, True), repeat=3):
        fields = {name: given[name] for name, here in zip(given, chosen, strict=True) if here}
        assert bits(binding(bound, "e", **fields)) == set()
    # without an exchange it is the default one, to which queues are bound by their names
    assert bits(binding(bound, queue="alone", routing_key="alone")) == set()
    assert bits(binding(bound, routing_key="key")) == {"key_not_matched"}


@alone_on_delta_when_long
@pytest.mark.rule("S4-35")
def test_each_bit_is_set_by_its_own_field_and_nothing_is_raised(bound: Any) -> None:
    wrong = {
        "queue": ("alone", {"queue_not_matched"}),
        "routing_key": ("nobody's", {"key_not_matched"}),
        "arguments": ({"kind": "late"}, {"args_not_matched"}),
    }
    for chosen in product((False, True), repeat=3):
        asked = [name for name, here in zip(wrong, chosen, strict=True) if here]
        answer = binding(bound, "e", **{name: wrong[name][0] for name in asked})
        assert bits(answer) == set().union(*(wrong[name][1] for name in asked))
    assert bits(binding(bound, "e", "no queue")) == {
        "queue_not_found",
        "queue_not_matched",
    }
    assert bits(binding(bound, "no exchange")) == {"exchange_not_found"}
    assert bits(binding(bound, "no exchange", "no queue", "", {})) == set(BITS)
    assert bits(binding(bound, "e", arguments={"x-match": "some"})) == {"args_not_matched"}
    # a bit is about one field: that no one binding has all of them is not asked
    bound.exchange("e").bind("alone", "other", {"kind": "early", "x-match": "all"})
    mixed = {"kind": "early", "x-match": "all"}
    assert bits(binding(bound, "e", "bound", "other", mixed)) == set()
    assert bits(binding(bound, "e", "alone", "key", {"kind": "late"})) == {"args_not_matched"}
    bound.exchange("e").unbind("alone", "other", mixed)
    # what is unbound is found no more
    bound.exchange("e").unbind("bound", "key", {"kind": "late", "x-match": "any"})
    assert bits(binding(bound, "e", "bound", "key")) == {
        "queue_not_matched",
        "key_not_matched",
    }


@alone_on_delta_when_long
@pytest.mark.rule("S4-36")
def test_an_exchange_says_what_it_is_or_that_it_is_not_there(bound: Any) -> None:
    assert exchange(bound, "e") == ExchangeAnswer("headers", False, False, {"limit": 5})
    assert exchange(bound) == ExchangeAnswer("direct", True, False, {})
    assert exchange(bound, "no exchange") == ExchangeAnswer("", None, True, {})


@pytest.fixture
def channel(bound: Any) -> Channel:
    """A channel on the same store."""
    return Connection(bound).channel()


@alone_on_delta_when_long
@pytest.mark.rule("S4-34", "S4-35", "S4-36")
def test_a_channel_answers_the_same(bound: Any, channel: Channel) -> None:
    ticket = AccessTicket("any")
    for name in (None, "e", "no exchange"):
        found = channel.exchange_query(name, ticket=ticket)
        assert found == exchange(bound, name)
        for queue, key in ((None, None), ("bound", "key"), ("alone", "other"), ("no queue", "")):
            said = channel.binding_query(name, queue, key, {}, ticket=ticket)
            assert said == binding(bound, name, queue, key, {})


@alone_on_delta_when_long
@pytest.mark.rule("S4-07", "S4-19", "S4-23")
def test_what_is_published_in_a_branch_is_routed_by_its_commit(
    world: World, bound: Any, channel: Channel
) -> None:
    queue = bound.queue("bound")
    channel.select()
    for gtrid, waiting in ((b"undone", 0), (b"done", 1)):
        xid = Xid.of(1, world.name("g").encode() + gtrid)
        channel.start(xid)
        channel.exchange("e").publish([{"n": 1, "key": "k"}], headers={"kind": "late"})
        channel.end(xid)
        assert queue.depth() == 0
        assert channel.prepare(xid) is XaStatus.OK
        channel.commit(xid) if waiting else channel.rollback(xid)
        assert queue.depth() == waiting
    channel.exchange("e").publish([{"n": 2, "key": "k"}], headers={"kind": "late"})
    assert queue.depth() == 2  # outside of a branch it stands for itself
