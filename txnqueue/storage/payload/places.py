"""The place that the rows of a position share, and the order in which places are staged."""

from __future__ import annotations

from collections.abc import Callable

Place = tuple[int, int, int | None, int | None]
"""Lane, priority, available step and expires step, which the rows of a position share."""


def sort_key(place: Place) -> tuple[int, ...]:
    """Return the sort key of a place: lane, highest priority first, earliest availability first."""
    lane, priority, available, expires = place
    return (lane, -priority, -1 if available is None else available, expires or 0)


def sort_key_in_order(place: Place) -> tuple[int, ...]:
    """Return the sort key of a place where rows keep their order, whatever their instants."""
    lane, priority, _, _ = place
    return (lane, -priority)


def sort_key_of(*, in_order: bool) -> Callable[[Place], tuple[int, ...]]:
    """Return the sort key of the places of a send.

    Args:
        in_order: Whether rows with different delays and times to live keep their order. Then each
            stretch of them with the same ones is a position, and otherwise all of them are one.
    """
    return sort_key_in_order if in_order else sort_key
