"""Queues for plain bodies: a column ``body`` of text or octets, and columns for properties.

Clients of such a queue send and receive text or octets instead of a map of all columns. A column
with the name of an AMQP property holds that property; any other column holds the
application-property of its name. Properties without a column become headers.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp.columns import read, written
from txnqueue.protocols.amqp.types import (
    AmqpData,
    AmqpError,
    AmqpValue,
    ApplicationProperties,
    ErrorCondition,
    Properties,
    Section,
)

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BODY = "body"
PROPERTIES = tuple(one.name for one in fields(Properties))
KEPT = frozenset(
    ("message_id", "subject", "content_type", "group_id", "reply_to", "correlation_id")
)
"""The properties that become headers if the queue has no column for them."""


def is_plain(schema: StructType) -> bool:
    """Return whether a queue with these columns is one for plain bodies."""
    from pyspark.sql.types import BinaryType, StringType

    return BODY in schema.names and isinstance(schema[BODY].dataType, BinaryType | StringType)


def unwritable_property(schema: StructType) -> str | None:
    """Return which column of a queue for plain bodies cannot be a property, and why."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    for column in schema.fields:
        if isinstance(column.dataType, ArrayType | MapType | StructType):
            return f"column {column.name!r} is not of a simple type, as properties must be"
    return None


def row_of(
    schema: StructType,
    bodies: Sequence[Section],
    properties: Properties,
    application: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a message with a plain body.

    Returns:
        The row, and the headers: the properties without a column.

    Raises:
        AmqpError: The body is neither text nor octets.
        InvalidInput: The body is not valid text, a property does not fit its column, or an
            application-property contradicts it.
    """
    said = {name: getattr(properties, name) for name in PROPERTIES}
    kept = {name: one for name, one in said.items() if name in KEPT or name in schema.names}
    values = together(kept, application)
    row = {name: values.get(name) for name in schema.names}
    row[BODY] = _body(schema[BODY].dataType, bodies)
    headers = {
        name: as_text(value)
        for name, value in values.items()
        if value is not None and (name not in row or name == BODY)
    }
    return read(schema, row), headers


def together(properties: Mapping[str, Any], application: Mapping[str, Any]) -> dict[str, Any]:
    """Join properties that are given with the application-properties.

    Raises:
        InvalidInput: Two of one name differ, and a queue has one place for them.
    """
    given = {name: value for name, value in properties.items() if value is not None}
    for name, value in given.items():
        other = application.get(name)
        if other is not None and as_text(other) != as_text(value):
            raise InvalidInput(
                f"The application-property {name!r} differs from the property of that name, and "
                "the queue has one place for both: omit one, or name it otherwise.",
                name=name,
            )
    return {**application, **given}


def plain_sections(
    message: Mapping[str, Any], schema: StructType, headers: Mapping[str, str], own_id: str
) -> tuple[Section, ...]:
    """Write a message of a queue for plain bodies as sections: its properties and its body."""
    row = {name: message[name] for name in schema.names}
    values: dict[str, Any] = dict(headers)
    values.update((n, v) for n, v in written(schema, row).items() if v is not None and n != BODY)
    values.setdefault("message_id", own_id)
    own = {
        name: values.pop(name, None) if name in KEPT or name in row else None for name in PROPERTIES
    }
    created = own.pop("creation_time")
    texts = {name: None if value is None else as_text(value) for name, value in own.items()}
    if not (texts["content_type"] or "").isascii():  # it would be a symbol
        values["content_type"] = texts.pop("content_type")
    if created is not None and not isinstance(created, datetime.datetime):
        values["creation_time"], created = created, None
    found: list[Section] = [Properties(**texts, creation_time=created)]
    if values:
        found.append(ApplicationProperties(values))
    body = message[BODY]
    octets = isinstance(body, bytes | bytearray)
    found.append(AmqpData(bytes(body)) if octets else AmqpValue(body))
    return tuple(found)


def as_text(value: object) -> str:
    """Write a property as a header, which is text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _body(kind: DataType, bodies: Sequence[Section]) -> str | bytes | None:
    from pyspark.sql.types import BinaryType

    found = _content(bodies)
    if found is None or isinstance(found, bytes) == isinstance(kind, BinaryType):
        return found
    if isinstance(found, str):
        return found.encode()
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The body is not UTF-8 text, which the queue's column {BODY!r} requires: {error}",
            name=BODY,
        ) from error


def _content(bodies: Sequence[Section]) -> str | bytes | None:
    if bodies and all(isinstance(one, AmqpData) for one in bodies):
        return b"".join(one.octets for one in bodies if isinstance(one, AmqpData))
    value = bodies[0].value if len(bodies) == 1 and isinstance(bodies[0], AmqpValue) else bodies
    if value is None or isinstance(value, str | bytes):
        return value
    raise AmqpError(
        ErrorCondition.NOT_IMPLEMENTED,
        "This queue takes messages whose body is text or octets: send an amqp-value section with "
        "a string or a binary, or data sections.",
    )
