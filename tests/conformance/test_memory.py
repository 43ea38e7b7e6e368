"""The store in memory as tests of users' code get it."""

from __future__ import annotations

from typing import Any

import pytest

from txnqueue.errors import PlatformMissing, SchemaMismatch
from txnqueue.testing import Clock, MemoryStore, memory_manager, plain_schema


def test_two_managers_of_one_store_never_draw_the_same_id() -> None:
    store = MemoryStore()
    orders = memory_manager(store).create_queue("orders", "n long")
    orders.send([{"n": 1}])
    memory_manager(store).queue("orders").send([{"n": 2}])
    memory_manager(store).queue("orders").send([{"n": 3}])
    assert [row["n"] for row in orders.peek_messages()] == [1, 2, 3]


def test_two_managers_share_a_store_and_a_clock() -> None:
    store, clock = MemoryStore(), Clock()
    orders = memory_manager(store, clock, "a").create_queue("orders", "n long", lease_seconds=10)
    orders.send([{"n": 1}])
    assert len(memory_manager(store, clock, "b").queue("orders").receive()) == 1
    assert len(orders.receive()) == 0
    clock.advance(11)
    assert len(orders.receive()) == 1


def test_without_a_session_there_are_no_frames() -> None:
    orders = memory_manager().create_queue("orders", "n long")
    orders.send([{"n": 1}])
    with pytest.raises(PlatformMissing, match="messages"):
        orders.peek()


@pytest.mark.parametrize("ddl", ["n", "n number", "n long null", "n long, ", "n array<long>"])
def test_a_plain_schema_has_plain_columns(ddl: Any) -> None:
    with pytest.raises(SchemaMismatch):
        plain_schema(ddl)


def test_a_plain_schema_knows_what_may_not_be_null() -> None:
    schema = plain_schema("`n` long not null, s STRING")
    assert [(c.name, c.dataType.simpleString(), c.nullable) for c in schema] == [
        ("n", "bigint", False),
        ("s", "string", True),
    ]
