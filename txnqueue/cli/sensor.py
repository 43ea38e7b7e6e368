"""Waiting until a queue has enough messages, for sensors of schedulers."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from txnqueue.errors import FilesNotReadable, StoreBusy

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue
    from txnqueue.queue_reader import QueueReader
    from txnqueue.store_reader import StoreReader

logger = logging.getLogger("txnqueue")


def wait(
    store: QueueManager | StoreReader,
    queue: Queue | QueueReader,
    at_least: int,
    timeout_seconds: float | None,
    poll_seconds: float,
) -> int:
    """Check a queue until enough messages can be received, or the time is over.

    What a killed consumer holds counts once its lease is over: nobody else would ask for it. A
    storage that has answered before is asked again if it fails: one failure in hours of waiting is
    no reason to end as if the store could not be read at all.

    Args:
        store: What is looked at.
        queue: The queue there.
        at_least: How many messages are enough.
        timeout_seconds: For how long to look; None: for ever.
        poll_seconds: How long to wait between two looks.

    Returns:
        How many there were at the last look.

    Raises:
        FilesNotReadable: The storage cannot be read at the first look, or at the last one.
        StoreBusy: The same of a store that maintenance changes.
    """
    until = time.monotonic() + (math.inf if timeout_seconds is None else timeout_seconds)
    looked = False
    while True:
        try:
            refresh(store)
            if (available := queue.depth(lapsed=True)) >= at_least or time.monotonic() >= until:
                return available
            looked = True
        except (FilesNotReadable, StoreBusy) as error:
            if not looked or time.monotonic() >= until:
                raise
            logger.warning("store not read, looking again error=%s", error)
        time.sleep(max(0, min(poll_seconds, until - time.monotonic())))


def refresh(store: QueueManager | StoreReader) -> None:
    """Look at the store as it is now; a manager always does."""
    from txnqueue.store_reader import StoreReader

    if isinstance(store, StoreReader):
        store.refresh()
