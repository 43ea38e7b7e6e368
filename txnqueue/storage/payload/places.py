"""The place that the rows of a position share, and the order in which places are staged."""

from __future__ import annotations

Place = tuple[int, int, int | None, int | None]
"""Lane, priority, available step and expires step, which the rows of a position share."""


def sort_key(place: Place) -> tuple[int, int, int, int]:
    """Return the sort key of a place: lane, highest priority first, earliest availability first."""
    lane, priority, available, expires = place
    return (lane, -priority, -1 if available is None else available, expires or 0)
