"""Making and finding queues and stores."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tests.conformance.conftest import SCHEMA, World, in_memory, rows
from tests.faults.injection import FaultyStore, Injector
from txnqueue import QueueManager
from txnqueue.errors import (
    InvalidInput,
    InvalidName,
    QueueExists,
    QueueNotFound,
    SchemaMismatch,
    StoreNotFound,
)
from txnqueue.storage.store import MemoryStore


def test_a_queue_is_made_once_with_its_dead_letter_queue(world: World) -> None:
    name = world.name("orders")
    orders = world.manager().create_queue(name, SCHEMA, lanes=2)
    other = world.manager("b")
    with pytest.raises(QueueExists, match="exist_ok"):
        other.create_queue(name, SCHEMA)
    same = other.create_queue(name, SCHEMA, exist_ok=True)
    assert same.info.queue_id == orders.info.queue_id
    assert {name, f"{name}.dead"} <= set(other.list_queues())
    assert (same.info.settings.lanes, same.name) == (2, name)


@in_memory
def test_whoever_makes_a_queue_knows_of_it_what_others_know(world: World) -> None:
    orders = world.queue()
    assert orders.info == world.open(orders, "b").info


class _Rival(Injector):
    """Creates a queue before one call of a client, and drops it before a later one."""

    def __init__(self, creates_at: int, drops_at: int, rival: Any, name: str) -> None:
        super().__init__()
        self._creates_at, self._drops_at = creates_at, drops_at
        self._rival, self._name = rival, name

    def call(self, name: str, perform: Any) -> Any:
        if self.armed and len(self.calls) == self._creates_at:
            self._rival.create_queue(self._name, SCHEMA, dead_letter=False)
        if self.armed and len(self.calls) == self._drops_at:
            self._rival.drop_queue(self._name)
        return super().call(name, perform)


@in_memory
def test_a_queue_that_another_makes_and_drops_at_once_is_made_or_found(world: World) -> None:
    world.queue("first")
    store, found = world.store, 0
    for creates_at in range(8):
        for drops_at in range(creates_at + 1, 12):
            name = world.name(f"q{creates_at}-{drops_at}")
            rival = _Rival(creates_at, drops_at, world.manager("rival"), name)
            runtime = world.runtime(name)
            faulty: Any = FaultyStore(store, rival)
            manager = QueueManager(None, "m", store=faulty, runtime=runtime)
            manager.list_queues()
            rival.arm()
            queue = manager.create_queue(name, SCHEMA, dead_letter=False, exist_ok=True)
            rival.disarm()
            if name not in world.manager("b").list_queues():
                found += 1
                with pytest.raises(QueueNotFound):
                    queue.send(rows(1))
    assert found, "vacuous"


def test_a_store_that_another_makes_while_it_is_opened_is_opened() -> None:
    world = World(MemoryStore())
    manager, name = world.manager("b"), world.name("orders")
    journal: Any = world.store.journal
    read = journal.read

    def too_early(*_: Any, **__: Any) -> Any:
        journal.read = read
        world.manager("a").create_queue(name, SCHEMA)
        raise LookupError("There is no journal yet.")

    journal.read = too_early
    assert manager.queue(name).depth() == 0


@in_memory
def test_an_existing_queue_is_used_only_with_its_own_schema(world: World) -> None:
    name = world.queue().name
    for other in ("n long", "n string, key string", "n long, key string, more long"):
        with pytest.raises(SchemaMismatch, match=name):
            world.manager("b").create_queue(name, other, exist_ok=True)


def test_a_schema_comes_as_ddl_as_a_struct_or_from_a_table(world: World) -> None:
    manager = world.manager()
    struct = T.StructType([T.StructField("n", T.LongType()), T.StructField("key", T.StringType())])
    given: list[dict[str, Any]] = [
        {"schema": SCHEMA},
        {"schema": struct},
        {"like": pa.Table.from_pylist(rows(1, key="k"))},
        {"like": pd.DataFrame(rows(1, key="k"))},
    ]
    if world.has_frames:
        given.append({"like": world.spark.createDataFrame(rows(1, key="k"), SCHEMA)})
    name = world.name("like")
    for one in given:
        queue = manager.create_queue(name, exist_ok=True, dead_letter=False, **one)
        assert queue.schema == struct


@in_memory
def test_settings_that_cannot_be_make_no_queue(world: World) -> None:
    manager, name = world.manager(), world.name("never")
    world.queue()
    refused = [
        (InvalidName, lambda: manager.create_queue("1 a", SCHEMA)),
        (InvalidName, lambda: manager.queue("../etc")),
        (InvalidInput, lambda: manager.create_queue(name)),
        (InvalidInput, lambda: manager.create_queue(name, SCHEMA, like=pa.table({"n": [1]}))),
        (InvalidInput, lambda: manager.create_queue(name, like=5)),  # type: ignore[arg-type]
        (InvalidInput, lambda: manager.create_queue(name, SCHEMA, lanes=0)),
        (InvalidInput, lambda: manager.create_queue(name, SCHEMA, lease_seconds="60")),  # type: ignore[arg-type]
        (SchemaMismatch, lambda: manager.create_queue(name, "no schema at all")),
        (SchemaMismatch, lambda: manager.create_queue(name, "send_id string")),
        (SchemaMismatch, lambda: manager.create_queue(name, "n long, N long")),
        (SchemaMismatch, lambda: manager.create_queue(name, SCHEMA, group_by="nobody")),
    ]
    for error, call in refused:
        with pytest.raises(error):
            call()
    assert name not in manager.list_queues()


@in_memory
def test_a_queue_that_is_not_there_is_named_with_those_that_are(world: World) -> None:
    name = world.queue().name
    with pytest.raises(QueueNotFound, match=name) as caught:
        world.manager("b").queue(world.name("ordres"))
    assert caught.value.name == world.name("ordres")
    with world.manager("b").transaction() as tx, pytest.raises(QueueNotFound):
        tx.queue(world.name("ordres"))


@in_memory
def test_a_dead_letter_queue_that_exists_must_have_the_same_schema(world: World) -> None:
    """Moved messages are read with the schema of the queue that they stand in."""
    manager, name = world.manager(), world.name("orders")
    manager.create_queue(f"{name}.dead", "other string", dead_letter=False)
    with pytest.raises(SchemaMismatch):
        manager.create_queue(name, SCHEMA)


def test_a_store_that_is_not_there_is_not_made_by_looking_for_it(alone: World) -> None:
    """A mistyped root is an error, not a new and empty store."""
    manager = alone.manager()
    calls = [
        lambda: manager.queue("orders"),
        manager.list_queues,
        lambda: manager.outcome("night"),
        manager.recover,
        lambda: manager.transaction().commit(),
        manager.history.as_of,
    ]
    for call in calls:
        with pytest.raises(StoreNotFound):
            call()
    manager.create_queue("orders", SCHEMA)
    assert alone.manager("b").list_queues() == ["orders", "orders.dead"]


@pytest.mark.parametrize(
    ("root", "said", "to_check"),
    [
        ("/lake", "at '/lake'", "the path"),
        ("lake", "in the schema 'lake'", r"its name.* '\./lake'"),
    ],
)
def test_an_error_says_whether_a_root_was_taken_for_a_path_or_a_schema(
    root: str, said: str, to_check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    store.root = root
    with pytest.raises(StoreNotFound, match=f"There is no store {said}"):
        World(store).manager().list_queues()

    def missing(*_: object) -> None:
        raise ValueError("no such table")

    monkeypatch.setattr(store.journal, "read", missing)
    monkeypatch.setattr(store, "exists", lambda: False)
    with pytest.raises(StoreNotFound, match=f"There is no store {said}: check {to_check}"):
        World(store).manager().list_queues()
