"""Maintenance does none of what it must never do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.keeping import CHECKS
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.testing import Clock, MemoryStore, memory_manager


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_maintenance_breaks_no_promise(check: Callable[[], None]) -> None:
    check()


def test_a_message_that_is_held_for_weeks_does_not_keep_what_was_erased_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was ever removed from any table while its holder renewed the lease."""
    asked = list[float]()
    vacuum = MemoryPayload.vacuum

    def seen(payload: Any, owner: str, seconds_min: float, *, full: bool = False) -> str | None:
        asked.append(seconds_min)
        return vacuum(payload, owner, seconds_min, full=full)

    monkeypatch.setattr(MemoryPayload, "vacuum", seen)
    store, clock = MemoryStore(), Clock()
    manager = memory_manager(store, clock, "a")
    queue, other = (manager.create_queue(name, "n long") for name in ("orders", "other"))
    other.send([{"n": 1}])
    held = other.receive(1)
    for day in range(30):
        queue.send([{"n": day}])
        queue.receive(1).accept()
        for _ in range(2):
            clock.advance(43_200)
            held.extend_lease(86_400)
        manager.maintain(payload_retention_days=0)
    assert asked and max(asked) <= 7 * 86_400
