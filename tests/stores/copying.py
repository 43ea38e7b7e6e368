"""Copies of a store on which others work: by the recipe of the page, and in a wrong order."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

from tests.delta.test_two_drivers import Driver
from tests.drivers import FOLDER
from txnqueue import QueueManager

SENDS = 60
COPIES = 1
_BLOCK = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def recipe() -> Callable[[Path, Path], None]:
    """Read how a store is copied from the page that says so."""
    (code,) = (
        found
        for found in _BLOCK.findall((FOLDER / "docs" / "backup.md").read_text(encoding="utf-8"))
        if "def copy_store" in found
    )
    names: dict[str, Any] = {}
    exec(code, names)
    copy: Callable[[Path, Path], None] = names["copy_store"]
    return copy


def payload_first(store: Path, target: Path) -> None:
    """Copy in a wrong order: the journal last."""
    hidden = ignore_patterns(".*", "_last_checkpoint")
    copytree(store / "payload", target / "payload", ignore=hidden)
    time.sleep(1.0)
    copytree(store / "journal", target / "journal", ignore=hidden)


def beside_drivers(spark: Any, folder: Path, number: int) -> Counter[str]:
    """Copy a store while a producer and a consumer work on it, and see what the copies have.

    Args:
        spark: The session.
        folder: A new one.
        number: A seed.
    """
    dice = random.Random(number)
    root = folder / "store"
    manager = QueueManager(spark, str(root), actor="auditor")
    for name in ("in", "out"):
        manager.create_queue(name, "i long", lease_seconds=5, deliveries_max=1000)
    drivers = [
        Driver(str(root), "produce", "producer", SENDS, attach_to=spark),
        Driver(str(root), "consume", "consumer", SENDS, attach_to=spark),
    ]
    counts: Counter[str] = Counter()
    for copy in range(COPIES):
        time.sleep(dice.uniform(0.5, 3.0))  # a random moment, not a wait for something
        known = _sent(manager)
        recipe()(root, folder / f"right-{copy}")
        payload_first(root, folder / f"wrong-{copy}")
        _check(spark, folder / f"right-{copy}", known, counts)
        counts["told of a wrong order"] += _is_told(spark, folder / f"wrong-{copy}")
        if drivers[1].process.poll() is not None:
            drivers[1].start()
    for driver in drivers:
        driver.kill()
    assert manager.history.verify().ok
    return counts


def _sent(manager: QueueManager) -> int:
    counts = {row["queue"]: row for row in manager.history.as_of().counts().rows()}
    return int(counts["in"]["posted"])


def _check(spark: Any, copy: Path, known: int, counts: Counter[str]) -> None:
    """Check that a copy is whole, has what was known before, and is worked on."""
    manager = QueueManager(spark, str(copy))
    proof = manager.history.verify()
    assert proof.ok, str(proof)
    sent = _sent(manager)
    assert sent >= known, f"{sent} of at least {known} messages are in the copy"
    moved: list[int] = [m["i"] for m in manager.queue("out").peek_messages(100_000)]
    queue = manager.queue("in")
    while queue.depth() or queue.in_flight():  # what the consumer held comes back after its lease
        batch = queue.receive(100_000, wait_seconds=10)
        moved += [message["i"] for message in batch.messages()]
        batch.accept()
    assert sorted(moved) == list(range(sent)), f"{len(moved)} of {sent} messages are in the copy"
    assert manager.history.verify().ok
    counts["copies"] += 1
    counts["messages in copies"] += sent


def _is_told(spark: Any, copy: Path) -> bool:
    """Return whether a copy is told to be broken; else all of its messages must be there."""
    try:
        manager = QueueManager(spark, str(copy))
        if not manager.history.verify().ok:
            return True
    except Exception:  # a table lacks what its log names
        return True
    queue = manager.queue("in")
    assert len(queue.peek_messages(100_000)) == queue.depth(), "verified, and messages are missing"
    return False
