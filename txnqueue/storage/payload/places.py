"""What the rows of one position share, and in which order places are staged."""

from __future__ import annotations

Place = tuple[int, int, int | None, int | None]
"""Lane, priority, available step, expires step: what the rows of one position share."""


def sort_key(place: Place) -> tuple[int, int, int, int]:
    """Order places: by lane, highest priority first, what can be delivered sooner first."""
    lane, priority, available, expires = place
    return (lane, -priority, -1 if available is None else available, expires or 0)
