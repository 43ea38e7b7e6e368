"""What the tests of reports share."""

from __future__ import annotations

import pytest

from txnqueue.manager import QueueManager
from txnqueue.testing import memory_manager

LANES = 100


@pytest.fixture(scope="package")
def busy() -> QueueManager:
    """A store of a hundred thousand messages in as many entries, besides a thousand decisions."""
    manager = memory_manager(name="busy")
    queue = manager.create_queue("orders", "n long", lanes=LANES)
    for _ in range(1_000):
        queue.send([{"n": n} for n in range(LANES)])
    return manager
