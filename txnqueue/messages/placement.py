"""Read what a send says beside its rows: priority, delay, time to live, headers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnqueue.core.settings import DELAY_SECONDS_MAX, QueueSettings, check_number, did_you_mean
from txnqueue.errors import InvalidInput
from txnqueue.storage.payload import PRIORITY_DEFAULT, PRIORITY_MAX, Placing

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def placing_of(
    settings: QueueSettings,
    now_ms: int,
    priority: int | str | None,
    available_at: datetime.datetime | str | None,
    delay_seconds: float | str | None,
    *,
    ttl_seconds: float | str | None,
) -> Placing:
    """Check what a send says and write it as the payload stores take it.

    Raises:
        InvalidInput: A value is of a wrong type, or two contradict each other.
        LimitExceeded: A value is out of range.
    """
    if available_at is not None and delay_seconds is not None:
        raise InvalidInput("Give available_at= or delay_seconds=, not both.")
    _check_priority(priority)
    later = {"delay_seconds": delay_seconds, "ttl_seconds": ttl_seconds}
    ends = {name: _instant(name, value, now_ms) for name, value in later.items()}
    return Placing(
        priority=PRIORITY_DEFAULT if priority is None else priority,
        available_at=_available_at(available_at, ends),
        delay_seconds=delay_seconds if isinstance(delay_seconds, str) else None,
        expires_at=ends["ttl_seconds"],
        ttl_seconds=ttl_seconds if isinstance(ttl_seconds, str) else None,
        step_ms=max(1, round(settings.delay_step_seconds * 1000)),
        now_ms=now_ms,
    )


def ordering_of(order_by: object, schema: StructType, name: str) -> tuple[str, ...]:
    """Check the columns that order the rows of a send.

    Args:
        order_by: One column, several, or none.
        schema: Those that there are.
        name: The queue or exchange.

    Raises:
        InvalidInput: One is no column, or nothing orders what it holds.
    """
    if isinstance(order_by, str):
        order_by = [order_by]
    if order_by is not None and not isinstance(order_by, (list, tuple)):
        raise InvalidInput(f"order_by={order_by!r}: name one column, or a list.", name="order_by")
    for column in order_by or ():
        if column not in schema.names:
            raise InvalidInput(
                f"order_by={column!r} is no column of {name!r}: "
                f"{did_you_mean(column, schema.names)}",
                name="order_by",
            )
        kind = schema[column].dataType.typeName()
        if kind in ("array", "map", "struct"):
            raise InvalidInput(
                f"order_by={column!r}: nothing orders columns of type {kind}; name others.",
                name="order_by",
            )
    return tuple(order_by or ())


def check_headers(
    headers: Mapping[str, str], header_columns: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Check headers by value and by column.

    Raises:
        InvalidInput: One is no string, or stands on both sides.
    """
    for what, found in (("headers", headers), ("header_columns", header_columns)):
        if not isinstance(found, Mapping):
            raise InvalidInput(f"{what}={found!r}: give a dict of strings.", name=what)
        for name, value in found.items():
            if not isinstance(name, str) or not name or not isinstance(value, str):
                raise InvalidInput(f"{what}: {name!r}: {value!r} is no string.", name=what)
    twice = sorted(headers.keys() & header_columns.keys())
    if twice:
        raise InvalidInput(f"The header {twice[0]!r} is given by value and by column.")
    return headers, header_columns


def _check_priority(priority: int | str | None) -> None:
    if priority is None or isinstance(priority, str):
        return
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidInput(f"priority={priority!r}: give 0 to {PRIORITY_MAX}, or a column.")
    check_number("priority", priority, 0, PRIORITY_MAX)


def _available_at(
    available_at: datetime.datetime | str | None, ends: Mapping[str, int | None]
) -> int | str | None:
    if available_at is None:
        return ends["delay_seconds"]
    if isinstance(available_at, str):
        return available_at
    if not isinstance(available_at, datetime.datetime) or available_at.tzinfo is None:
        raise InvalidInput(
            f"available_at={available_at!r}: give a datetime with a time zone, or a column.",
            name="available_at",
        )
    return round(available_at.timestamp() * 1000)


def _instant(name: str, seconds: float | str | None, now_ms: int) -> int | None:
    """The instant so many seconds from now; None if a column says it, or nothing does."""
    if seconds is None or isinstance(seconds, str):
        return None
    check_number(name, seconds, 0, DELAY_SECONDS_MAX)
    return now_ms + round(seconds * 1000)
