"""The place that the rows of a position share, and the order in which places are staged."""

from __future__ import annotations

Place = tuple[int, int, int | None, int | None]
"""Lane, priority, available step and expires step, which the rows of a position share."""


def sort_key(place: Place, *, in_order: bool) -> tuple[int, ...]:
    """Return the sort key of a place: lane, highest priority first, earliest availability first.

    Args:
        place: The place.
        in_order: Whether rows with different delays and times to live keep their order. Then each
            stretch of them with the same ones is a position, and otherwise all of them are one.
    """
    lane, priority, available, expires = place
    if in_order:
        return (lane, -priority)
    return (lane, -priority, -1 if available is None else available, expires or 0)
