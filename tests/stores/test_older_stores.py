"""Stores that earlier versions wrote: each later one goes on with them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inside import client_of
from tests.stores.make_store import SCHEMA
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
_LEFT = Path(__file__).parent.glob("[0-9]*.tar.gz")  # others are named by what is in them
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in _LEFT)


@pytest.fixture(params=VERSIONS)
def root(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Unpack a store, and name the user's table as its transactions do."""
    with tarfile.open(Path(__file__).parent / f"{request.param}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    spark.sql(f"CREATE TABLE {SCHEMA}.totals USING delta LOCATION '{tmp_path}/totals'")
    yield str(tmp_path / "store")
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def numbers(batch: Any) -> list[int]:
    return sorted(message["order_id"] for message in batch.messages())


def test_what_waits_is_held_prepared_dead_or_over_in_an_older_store_goes_on(
    spark: Any, root: str
) -> None:
    manager = QueueManager(spark, root, consumer="later")
    orders, invoices = manager.queue("orders"), manager.queue("invoices")
    assert manager.list_queues() == sorted(
        ["invoices", "invoices.dead", "orders", "orders.dead", "unique", "unique.dead"]
    )
    assert (orders.depth(), orders.in_flight(), manager.queue("orders.dead").depth()) == (7, 5, 2)
    assert manager.history.verify().ok
    outcomes = {
        "load/1": "committed",
        "back/1": "undecided",  # nothing that it staged was ever named
        "hold/1": "prepared",
        "totals/1": "committed",
        "totals/2": "committed",
    }
    assert {key: manager.outcome(key).status.value for key in outcomes} == outcomes
    with manager.transaction("load/1") as tx:
        assert tx.already_committed

    recovered = manager.recover()
    assert recovered.prepared == ("hold/1",)
    assert recovered.waiting == ()
    totals = spark.table(f"{SCHEMA}.totals").orderBy("customer").collect()
    assert [tuple(row) for row in totals] == [("ada", 1.0), ("bob", 2.0)]
    manager.commit("hold/1")
    assert invoices.depth() == 2

    taken: list[int] = []
    while batch := orders.receive(100):
        taken += numbers(batch)
        batch.accept()
    assert len(taken) == 10 and len(set(taken)) == 10 and 99 not in taken
    assert orders.depth() == orders.in_flight() == 0
    dead = manager.queue("orders.dead").receive(10)
    assert len(set(numbers(dead)) | set(taken)) == 12
    dead.release()

    manager.exchange("news").publish([{"customer": "zoe", "total": 9.0}], routing_key="bill.new")
    assert invoices.depth() == 3
    assert [m["k"] for m in manager.queue("unique").receive(5).messages()] == ["a"]
    assert manager.queue("unique").send([{"k": "b"}]).count == 1
    manager.create_views("older_")
    assert spark.sql("SELECT count(*) FROM older_orders").first()[0] >= 15
    steps = [
        step["step"] for step in manager.history.trace(queue="orders", where="order_id = 3").rows()
    ]
    assert "sent" in steps and "accepted" in steps


def test_an_older_store_is_maintained_and_still_proves_itself(spark: Any, root: str) -> None:
    manager = QueueManager(spark, root)
    done = manager.maintain(transaction_seconds_max=0, payload_retention_days=0)
    assert done.archived > 0
    assert [one for one in done.skipped if "keeps deleted files" not in one] == []
    assert [entry.sequence for entry in client_of(manager).cache.layouts()] == [1]
    fresh = QueueManager(spark, root)
    assert fresh.history.verify().ok
    assert fresh.queue("orders").depth() == 7
    assert fresh.recover().prepared == ("hold/1",)
