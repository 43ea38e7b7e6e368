"""A clock that nobody sets, for what must be younger or older than so many seconds."""

from __future__ import annotations

import time

_INCLUDING_SLEEP = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""On Linux and macOS; elsewhere Python's own clock goes on while the machine sleeps."""


def monotonic() -> float:
    """Return seconds on a clock that goes on while the machine sleeps.

    ``time.monotonic`` stands still then on Linux and macOS: a laptop that wakes after two days
    would take what it knew before for some seconds old.
    """
    return time.monotonic() if _INCLUDING_SLEEP is None else time.clock_gettime(_INCLUDING_SLEEP)
