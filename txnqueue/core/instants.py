"""Instants: as users give and see them, and in milliseconds, as entries record them (pure).

Conversions are exact. By way of seconds as a float an instant would be rounded: after midnight
instead of before, or to another microsecond than the one recorded.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MS = datetime.timedelta(milliseconds=1)
FIRST_MS = -62_135_596_800_000
"""The beginning of the year 1 in UTC, before which Python has no instants."""
LAST_MS = 253_402_300_799_999
"""The end of the year 9999 in UTC, after which it has none."""


def instant(at_ms: int) -> datetime.datetime:
    """Convert milliseconds since 1970 to an instant in UTC.

    Outside the years 1 to 9999 it is the nearest one of these years.
    """
    return EPOCH + datetime.timedelta(milliseconds=min(max(at_ms, FIRST_MS), LAST_MS))


def is_instant(value: object) -> TypeGuard[datetime.datetime]:
    """Return whether a value is a datetime that names an instant: one whose time zone is known."""
    try:
        return isinstance(value, datetime.datetime) and value.utcoffset() is not None
    except ValueError:  # pandas' NaT, which is a datetime and none
        return False


def by_then_ms(value: datetime.datetime) -> int:
    """Return the last whole millisecond that is not after an instant."""
    return int((value - EPOCH) // _MS)


def from_then_ms(value: datetime.datetime) -> int:
    """Return the first whole millisecond that is not before an instant."""
    return -int((EPOCH - value) // _MS)


def exact_ms(value: datetime.datetime) -> float:
    """Return an instant in milliseconds, with its microseconds as a fraction."""
    return float((value - EPOCH) / _MS)
