"""A store on real Delta that has lost its journal or its archive is refused, and not continued."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from txnqueue import QueueManager
from txnqueue.core.receipt import Status
from txnqueue.errors import StoreCorrupt
from txnqueue.storage.store import DeltaStore

pytestmark = [pytest.mark.spark]
AT_ONCE: dict[str, Any] = {"transaction_seconds_max": 0, "vacuum": False}


def maintained(spark: Any, root: str) -> None:
    """Make a store in which a transaction has left the journal."""
    manager = QueueManager(spark, root)
    queue = manager.create_queue("orders", "i long", dead_letter=False)
    with manager.transaction(transaction_id="load/1") as tx:
        tx.queue("orders").send([{"i": 1}])
    queue.receive(1).accept()
    assert manager.maintain(**AT_ONCE).archived
    assert manager.outcome("load/1").status is Status.COMMITTED
    manager.close()


def test_no_journal_is_made_beside_the_archive_of_a_lost_one(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    maintained(spark, str(root))
    (root / "journal").rename(tmp_path / "aside")
    with pytest.raises(StoreCorrupt, match=r"journal' is missing.*empty root"):
        QueueManager(spark, str(root)).create_queue("orders", "i long", exist_ok=True)
    assert not (root / "journal").exists()
    (tmp_path / "aside").rename(root / "journal")
    assert QueueManager(spark, str(root)).outcome("load/1").status is Status.COMMITTED


def test_a_lost_archive_is_named_and_not_made_anew(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    maintained(spark, str(root))
    (root / "archive").rename(tmp_path / "aside")
    manager = QueueManager(spark, str(root))
    for ask in (
        lambda: manager.outcome("load/1"),
        manager.history.verify,
        manager.history.digest,
        manager.create_views,
    ):
        with pytest.raises(StoreCorrupt, match=f"{root}/archive"):
            ask()
    queue = manager.queue("orders")
    queue.send([{"i": 2}])
    queue.receive(1).accept()
    with pytest.raises(StoreCorrupt, match=f"{root}/archive"):
        manager.maintain(**AT_ONCE)
    assert not (root / "archive").exists()
    (tmp_path / "aside").rename(root / "archive")
    again = QueueManager(spark, str(root))
    assert again.maintain(**AT_ONCE).archived
    assert again.outcome("load/1").status is Status.COMMITTED
    assert again.history.verify().ok


def test_a_store_is_made_beside_an_archive_that_is_empty_or_was_only_begun(
    spark: Any, tmp_path: Path
) -> None:
    store = DeltaStore(spark, str(tmp_path / "empty"))
    store.create()
    assert not store.journal.archive.exists()
    store.journal.archive.create()
    assert store.journal.archive.exists()
    shutil.rmtree(tmp_path / "empty" / "journal")
    begun = tmp_path / "begun"
    (begun / "archive" / "_delta_log").mkdir(parents=True)
    for root in (tmp_path / "empty", begun):
        manager = QueueManager(spark, str(root))
        queue = manager.create_queue("orders", "i long", dead_letter=False)
        queue.send([{"i": 1}])
        queue.receive(1).accept()
        assert manager.maintain(**AT_ONCE).archived
