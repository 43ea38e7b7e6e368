"""Check the options of a send: order, priority, delay, time to live, headers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnqueue.core.instants import from_then_ms, is_instant
from txnqueue.core.settings import (
    DELAY_SECONDS_MAX,
    QueueSettings,
    check_id,
    check_number,
    did_you_mean,
    is_text,
    plain_text,
    shown,
)
from txnqueue.errors import InvalidInput
from txnqueue.storage.payload import PRIORITY_DEFAULT, PRIORITY_MAX, Placing

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """The options of a send or a publish, as the caller gave them.

    Attributes:
        order_by: One column, several, or none.
        priority: A number, or a column.
        available_at: An instant, or a column.
        delay_seconds: A duration, or a column.
        ttl_seconds: A duration, or a column.
        headers: Headers of all messages.
        header_columns: The columns that headers are taken from, by header name.
        durable: Whether the store keeps the messages; None leaves it to the queue or exchange.
    """

    order_by: str | list[str] | None = None
    priority: int | str | None = None
    available_at: datetime.datetime | str | None = None
    delay_seconds: float | str | None = None
    ttl_seconds: float | str | None = None
    headers: Mapping[str, str] | None = None
    header_columns: Mapping[str, str] | None = None
    durable: bool | None = None

    def __post_init__(self) -> None:
        """Copy what the caller may change later: a sink sends each batch by the same options."""
        for name in ("order_by", "headers", "header_columns"):
            given = getattr(self, name)
            if isinstance(given, (list, dict)):
                object.__setattr__(self, name, copy(given))

    def check(self, schema: StructType, settings: QueueSettings, name: str) -> None:
        """Check the options as far as possible without rows.

        Args:
            schema: The columns of the queue or exchange.
            settings: Its settings.
            name: Its name.

        Raises:
            InvalidInput: A value cannot be used.
        """
        self.placing(settings, 0)
        self.ordering(schema, name)
        self.all_headers()

    def placing(self, settings: QueueSettings, now_ms: int) -> Placing:
        """Check priority, delay and time to live, and return them in the form of payload stores.

        Raises:
            InvalidInput: A value is of a wrong type, or two contradict each other.
            LimitExceeded: A value is out of range.
        """
        if self.available_at is not None and self.delay_seconds is not None:
            raise InvalidInput("Give available_at= or delay_seconds=, not both.")
        for name in ("priority", "available_at", "delay_seconds", "ttl_seconds"):
            if isinstance(getattr(self, name), str):
                check_id(getattr(self, name), name)  # the name of a column
        _check_priority(self.priority)
        delay, ttl = self.delay_seconds, self.ttl_seconds
        later = {"delay_seconds": delay, "ttl_seconds": ttl}
        ends = {name: _instant(name, value, now_ms) for name, value in later.items()}
        return Placing(
            priority=PRIORITY_DEFAULT if self.priority is None else self.priority,
            available_at=_available_at(self.available_at, ends),
            delay_seconds=delay if isinstance(delay, str) else None,
            expires_at=ends["ttl_seconds"],
            ttl_seconds=ttl if isinstance(ttl, str) else None,
            step_ms=max(1, round(settings.delay_step_seconds * 1000)),
            now_ms=now_ms,
        )

    def ordering(self, schema: StructType, name: str) -> tuple[str, ...]:
        """Check and return the columns that order the rows.

        Args:
            schema: The columns of the queue or exchange.
            name: Its name.

        Raises:
            InvalidInput: A name is not a column's, or the column's type has no order.
        """
        order_by: object = [self.order_by] if isinstance(self.order_by, str) else self.order_by
        if order_by is not None and not isinstance(order_by, (list, tuple)):
            raise InvalidInput(
                f"order_by={shown(order_by)}: give one column name, or a list of them.",
                name="order_by",
            )
        for column in order_by or ():
            if column not in schema.names:
                raise InvalidInput(
                    f"order_by={shown(column)} is not a column of {name!r}: "
                    f"{did_you_mean(column, schema.names)}",
                    name="order_by",
                )
            kind = schema[column].dataType.typeName()
            if kind in ("array", "map", "struct"):
                raise InvalidInput(
                    f"order_by={shown(column)}: columns of type {kind} cannot be ordered; name "
                    "others.",
                    name="order_by",
                )
        return tuple(order_by or ())

    def all_headers(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Check and return the headers given by value, and those given by column.

        Raises:
            InvalidInput: A header is not a string, or is given by value and by column.
        """
        headers = {} if self.headers is None else self.headers
        header_columns = {} if self.header_columns is None else self.header_columns
        for what, found in (("headers", headers), ("header_columns", header_columns)):
            if not isinstance(found, Mapping):
                raise InvalidInput(f"{what}={shown(found)}: give a dict of strings.", name=what)
            for name, value in found.items():
                if not is_text(name) or not name or not is_text(value):
                    raise InvalidInput(
                        f"{what}: {shown(name)}: {shown(value)} is not text under a name: give "
                        "two texts, of which the name is not empty.",
                        name=what,
                    )
        twice = sorted(headers.keys() & header_columns.keys())
        if twice:
            raise InvalidInput(
                f"The header {twice[0]!r} is given both by value and by column: omit one of the "
                "two."
            )
        return _plain(headers), _plain(header_columns)


def _plain(found: Mapping[str, str]) -> dict[str, str]:
    return {plain_text(name): plain_text(value) for name, value in found.items()}


def _check_priority(priority: int | str | None) -> None:
    if priority is None or isinstance(priority, str):
        return
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidInput(
            f"priority={shown(priority)}: give 0 to {PRIORITY_MAX}, or a column.", name="priority"
        )
    check_number("priority", priority, 0, PRIORITY_MAX)


def _available_at(
    available_at: datetime.datetime | str | None, ends: Mapping[str, int | None]
) -> int | str | None:
    if available_at is None:
        return ends["delay_seconds"]
    if isinstance(available_at, str):
        return available_at
    if not is_instant(available_at):
        raise InvalidInput(
            f"available_at={shown(available_at)}: give a datetime with a time zone, or a column.",
            name="available_at",
        )
    return from_then_ms(available_at)


def _instant(name: str, seconds: float | str | None, now_ms: int) -> int | None:
    """Return the instant (ms) some seconds from now; None if a column or nothing gives them."""
    if seconds is None or isinstance(seconds, str):
        return None
    check_number(name, seconds, 0, DELAY_SECONDS_MAX)
    return now_ms + round(seconds * 1000)
