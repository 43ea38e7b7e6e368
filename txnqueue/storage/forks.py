"""Processes that were forked from a manager's: its threads, and what they send, are not there."""

from __future__ import annotations

import os

from txnqueue.errors import PlatformMissing


def check_process(made_in: int) -> None:
    """Check that this is the process in which a manager was made.

    Raises:
        PlatformMissing: This one was forked from it; nothing was done.
    """
    if os.getpid() != made_in:
        raise PlatformMissing(
            f"This manager belongs to process {made_in}, from which this one was forked: "
            "nothing was done. Let multiprocessing start processes by the method 'spawn', and "
            "make a Spark session and a QueueManager in each."
        )
