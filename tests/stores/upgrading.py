"""The first work of this version on a store of an older one, spoiled at each store call."""

from __future__ import annotations

import atexit
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.faults.audit import check
from tests.faults.injection import Crash, Fault, FaultyStore, Injector, faults_of
from tests.faults.pasts import everything
from tests.stores.in_memory import in_memory
from txnqueue import QueueManager
from txnqueue.core.receipt import Status
from txnqueue.core.settings import RetryPolicy
from txnqueue.errors import TxnQueueError
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

VERSION = "0.1.0"
DAY = "2026-11-22"
NOW_MS = round(datetime(2026, 11, 22, 20, tzinfo=timezone.utc).timestamp() * 1000)
"""Some hours after the older version wrote last: its leases are over."""
RETRY = RetryPolicy(attempts_max=6, seconds_max=1e4, wait_seconds_first=0.0)
LEASE_SECONDS = 400.0
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}


@dataclass(frozen=True)
class Spoiled:
    """One store call of the upgrade, and what happens there."""

    at: int
    call: str
    fault: Fault

    def __str__(self) -> str:
        return f"call {self.at} {self.call} / {self.fault.value}"


@cache
def unpacked(version: str = VERSION) -> str:
    """Unpack the store of a version."""
    folder = mkdtemp(prefix="txnqueue-older-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(Path(__file__).parent / f"{version}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return f"{folder}/store"


class Upgrade:
    """An older store in memory, a clock, and clients of this version."""

    def __init__(self) -> None:
        self.store: MemoryStore = in_memory(unpacked(), DAY)
        self.clock = Clock(NOW_MS)

    def client(self, name: str, injector: Injector | None = None) -> QueueManager:
        """Start a client."""
        store: Any = FaultyStore(self.store, injector) if injector else self.store
        return QueueManager(None, "memory", store=store, runtime=runtime(self.clock, name, RETRY))


def work(manager: QueueManager) -> None:
    """Go on with all that waits; to be repeated after whatever happened."""
    manager.recover()
    if manager.outcome("hold/1").status is Status.PREPARED:
        manager.commit("hold/1")

    def handler(batch: Any, tx: Any) -> None:
        rows = [{"customer": "old", "total": float(n)} for n in _numbers(batch)]
        tx.queue("invoices").send(rows)

    manager.queue("orders").drain(handler, batch_size=4, until="empty")
    manager.maintain(**AT_ONCE)
    with manager.transaction("new/1") as tx:
        if not tx.already_committed:
            tx.queue("unique").send([{"k": "b"}])
    manager.maintain(**AT_ONCE)


def calls() -> list[str]:
    """Find the store calls of the work."""
    upgrade, injector = Upgrade(), Injector()
    client = upgrade.client("A", injector)
    injector.arm()
    work(client)
    return injector.calls


def cases() -> Iterator[Spoiled]:
    """List what can happen."""
    for at, call in enumerate(calls()):
        for fault in faults_of(call):
            yield Spoiled(at, call, fault)


def run(case: Spoiled) -> None:
    """Spoil one call of the work; another client goes on, and finds everything once."""
    upgrade, injector = Upgrade(), Injector(case.at, case.fault)
    client = upgrade.client("A", injector)
    injector.arm()
    try:
        work(client)
    except (Crash, KeyboardInterrupt, TxnQueueError, ConnectionError):
        injector.dead = True
    injector.disarm()
    upgrade.clock.advance(LEASE_SECONDS)
    second = upgrade.client("B")
    second.recover()
    injector.flush()  # what was on its way lands in the middle of another's work
    work(second)
    upgrade.clock.advance(LEASE_SECONDS)
    work(upgrade.client("C"))
    check_whole(upgrade)


def check_whole(upgrade: Upgrade) -> None:
    """Check that nothing of the older version's work is lost, or there twice."""
    manager = upgrade.client("auditor")
    check(everything(upgrade.store))
    proof = manager.history.verify()
    assert proof.ok, str(proof)
    assert manager.outcome("hold/1").status is Status.COMMITTED
    assert manager.outcome("load/1").status is Status.COMMITTED
    orders = manager.queue("orders")
    assert (orders.depth(), orders.in_flight()) == (0, 0)
    dead = _numbers(manager.queue("orders.dead").receive(10))
    found = Counter(
        (row["customer"], row["total"]) for row in manager.queue("invoices").receive(100).messages()
    )
    old = Counter({name: count for name, count in found.items() if name[0] == "old"})
    assert found - old == Counter({("ada", 1.0): 1, ("eve", 5.0): 1})
    assert set(old.values()) == {1} and len(old) == 10, old
    taken = {int(total) for _, total in old}
    assert len(dead) == 2 and not taken & set(dead) and taken | set(dead) < set(range(10, 24))
    assert [m["k"] for m in manager.queue("unique").receive(9).messages()] == ["a", "b"]
    (table,) = upgrade.store.tables._tables
    totals = upgrade.store.tables.rows(table).to_pylist()
    assert [(row["customer"], row["total"]) for row in totals] == [("ada", 1.0), ("bob", 2.0)]


def _numbers(batch: Any) -> list[int]:
    return sorted(batch.to_arrow().column("order_id").to_pylist())
