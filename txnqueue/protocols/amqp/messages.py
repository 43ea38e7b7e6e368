"""Conversion of messages between AMQP sections and rows of a queue.

The amqp-value section is a map of the queue's columns, which ``columns`` converts;
application-properties are headers. ``bodies`` has queues for plain bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import is_in_memory
from txnqueue.errors import InvalidInput
from txnqueue.messages.placement import SendOptions
from txnqueue.protocols.amqp.bodies import BODY, as_text, is_plain, plain_sections, row_of, together
from txnqueue.protocols.amqp.columns import read, written
from txnqueue.protocols.amqp.limits import NUMBER_MAX
from txnqueue.protocols.amqp.types import (
    AmqpData,
    AmqpError,
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    ErrorCondition,
    Header,
    Properties,
    Section,
)
from txnqueue.storage.payload import CORRELATION_ID, PRIORITY_MAX, REPLY_TO

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnqueue.core.state import Position
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

MESSAGE = "_message"
_PRIORITY, _TTL, _HEADER = "_priority", "_ttl_seconds", "_header_"


@dataclass(frozen=True, slots=True)
class Posting:
    """A message that a queue will take: a row, and its place in the queue."""

    row: Mapping[str, Any]
    priority: int | None = None
    ttl_seconds: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def posting_of(queue: Queue, sections: Sequence[Section]) -> Posting:
    """Read a message, and check that the queue will take it.

    Raises:
        InvalidInput: It would not.
        AmqpError: Its body is not of the kind that the queue takes.
    """
    from txnqueue.storage.payload.rows import arrow_table

    bodies: list[Any] = []
    header = Header()
    properties, application = Properties(), ApplicationProperties({})
    for section in sections:
        if isinstance(section, AmqpValue | AmqpData | AmqpSequence):
            bodies.append(section)
        elif isinstance(section, Header):
            header = section
        elif isinstance(section, ApplicationProperties):
            application = section
        elif isinstance(section, Properties):
            properties = section
        else:
            raise InvalidInput(
                f"{section!r} is not a section of a message: give what decode() returned."
            )
    row, headers = _row_of(queue.schema, bodies, properties, application.values)
    arrow_table(queue.schema, [row])
    ttl_seconds = None if header.ttl is None else header.ttl / 1000
    priority = header.priority
    if priority is not None:  # all that are higher than those of a queue mean its highest
        priority = min(priority, PRIORITY_MAX)
    said = SendOptions(priority=priority, ttl_seconds=ttl_seconds, headers=headers)
    said.all_headers()
    said.placing(queue.info.settings, 0)
    return Posting(row, priority, ttl_seconds, headers)


def _row_of(
    schema: StructType,
    bodies: Sequence[Section],
    properties: Properties,
    application: Mapping[str, Any],
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Read a message's columns, and its headers.

    Raises:
        AmqpError: Its body is not of a kind that the queue takes.
        InvalidInput: One of its properties is given twice, or does not fit its column.
    """
    row = bodies[0].value if len(bodies) == 1 and isinstance(bodies[0], AmqpValue) else None
    if isinstance(row, Mapping):
        known = {REPLY_TO: properties.reply_to, CORRELATION_ID: properties.correlation_id}
        headers = together(known, application)
        return read(schema, row), {n: as_text(v) for n, v in headers.items() if v is not None}
    if is_plain(schema):
        return row_of(schema, bodies, properties, application)
    raise AmqpError(
        ErrorCondition.NOT_IMPLEMENTED,
        "This queue takes messages whose body is one amqp-value section with a map of its "
        f"columns; text and octets need a queue with a column {BODY!r}.",
    )


def stage(queue: Queue, postings: Sequence[Posting], transaction: Transaction | None) -> None:
    """Send messages together, in their order; without a transaction they are posted at once."""
    alike = {
        name: value
        for name, value in postings[0].headers.items()
        if all(posting.headers.get(name) == value for posting in postings)
    }
    names = sorted({name for posting in postings for name in posting.headers} - alike.keys())
    columns = {name: f"{_HEADER}{number}" for number, name in enumerate(names)}
    placed: dict[str, Any] = {}
    if any(posting.priority is not None for posting in postings):
        placed["priority"] = _PRIORITY
    if any(posting.ttl_seconds is not None for posting in postings):
        placed["ttl_seconds"] = _TTL
    rows = [_widened(posting, placed, columns) for posting in postings]
    queue.send(rows, headers=alike, header_columns=columns, transaction=transaction, **placed)


def _widened(
    posting: Posting, placed: Mapping[str, str], columns: Mapping[str, str]
) -> dict[str, Any]:
    row = {name: value for name, value in posting.row.items() if name != MESSAGE}
    if "priority" in placed:
        row[_PRIORITY] = posting.priority
    if "ttl_seconds" in placed:
        row[_TTL] = posting.ttl_seconds
    return row | {column: posting.headers.get(name) for name, column in columns.items()}


def sections_of(
    message: Mapping[str, Any], schema: StructType, position: Position, now_ms: int
) -> tuple[Section, ...]:
    """Write a received message as sections, by its place and the columns of its queue."""
    about = message[MESSAGE]
    expires = position.expires_at_ms
    found: list[Section] = [
        Header(
            priority=position.priority,
            ttl=None if expires is None else min(max(0, expires - now_ms), NUMBER_MAX),
            first_acquirer=not about["redelivered"],
            delivery_count=about["delivery_count"],
            durable=not is_in_memory(position.payload_id),
        ),
    ]
    headers = dict(about["headers"] or {})
    if is_plain(schema):
        return (*found, *plain_sections(message, schema, headers, about["id"]))
    found.append(Properties(about["id"], about["reply_to"], about["correlation_id"]))
    if headers:
        found.append(ApplicationProperties(headers))
    row = {name: value for name, value in message.items() if name != MESSAGE}
    found.append(AmqpValue(written(schema, row)))
    return tuple(found)
