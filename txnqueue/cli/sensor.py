"""Waiting until a queue has enough messages, for sensors of schedulers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue
    from txnqueue.queue_reader import QueueReader
    from txnqueue.store_reader import StoreReader


def wait(
    store: QueueManager | StoreReader,
    queue: Queue | QueueReader,
    at_least: int,
    timeout_seconds: float | None,
    poll_seconds: float,
) -> int:
    """Check a queue until enough messages can be received, or the time is over.

    What a killed consumer holds counts once its lease is over: nobody else would ask for it.

    Args:
        store: What is looked at.
        queue: The queue there.
        at_least: How many messages are enough.
        timeout_seconds: For how long to look; None: for ever.
        poll_seconds: How long to wait between two looks.

    Returns:
        How many there were at the last look.
    """
    started = time.monotonic()
    while True:
        refresh(store)
        available = queue.depth(lapsed=True)
        left = (
            poll_seconds
            if timeout_seconds is None
            else started + timeout_seconds - time.monotonic()
        )
        if available >= at_least or left <= 0:
            return available
        time.sleep(min(poll_seconds, left))


def refresh(store: QueueManager | StoreReader) -> None:
    """Look at the store as it is now; a manager always does."""
    from txnqueue.store_reader import StoreReader

    if isinstance(store, StoreReader):
        store.refresh()
