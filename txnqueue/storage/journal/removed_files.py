"""How long Delta keeps the files that were removed from the journal (pure).

Delta's checkpoints list them for that long, and Delta reads the list before every append.
"""

from __future__ import annotations

REMOVED_MAX = 2_000
"""Checkpoints should not list more removed files than this."""
READING_SECONDS_MAX = 1_200.0
"""A query of the journal has read its files after this time."""
INTERVALS: dict[float, str] = {
    3_600.0: "1 hour",
    10_800.0: "3 hours",
    21_600.0: "6 hours",
    43_200.0: "12 hours",
    86_400.0: "1 day",
    259_200.0: "3 days",
    604_800.0: "7 days",
}
"""The durations to choose from, by their seconds; the shortest covers clocks that differ.

Any other one was set by the store's owner, and stays.
"""


def longest(seconds: float, removed: int) -> str | None:
    """Choose how long to keep removed files from now on.

    It is the longest time for which the list stays short, if as many files are removed as lately.
    A longer one than now is chosen only if the list would be half as long as it may be: a change
    makes the appends that are under way start again.

    Args:
        seconds: How long they are kept now.
        removed: How many the newest checkpoint lists.

    Returns:
        The duration; None if it should stay.
    """
    if seconds not in INTERVALS:
        return None
    each_second = removed / seconds
    short = [
        step
        for step in INTERVALS
        if each_second * step <= (REMOVED_MAX if step <= seconds else REMOVED_MAX / 2)
    ]
    chosen = max(short, default=min(INTERVALS))
    return None if chosen == seconds else INTERVALS[chosen]
