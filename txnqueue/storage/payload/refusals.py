"""Translation of refusals by Spark and Delta into the library's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from txnqueue.errors import SchemaMismatch
from txnqueue.storage.payload import Send
from txnqueue.storage.payload.arrangement import wrong_priority, wrong_seconds
from txnqueue.storage.payload.frame_arrangement import NO_PRIORITY, NO_SECONDS
from txnqueue.storage.payload.nulls import NULL_INSIDE, column_of
from txnqueue.storage.payload.routes import LONG_KEY, NO_ROUTE, key_too_long, unroutable
from txnqueue.storage.payload.schemas import wrong_null

_COLUMNS = re.compile(
    r"\[(?:COLUMN_ALREADY_EXISTS|DELTA_COMPLEX_TYPE_COLUMN_CONTAINS_NULL_TYPE"
    r"|DELTA_DUPLICATE_COLUMNS_FOUND|DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES"
    r"|DELTA_UNSUPPORTED_DATA_TYPES|UNSUPPORTED_DATATYPE|UNSUPPORTED_TIME_TYPE)[^\n]*"
)


@contextmanager
def of_columns() -> Iterator[None]:
    """Translate Delta's objections to the columns of a table into errors of the user."""
    try:
        yield
    except Exception as error:
        found = _COLUMNS.search(str(error))
        if found is None:
            raise
        raise SchemaMismatch(
            f"A table cannot have these columns; rename them or change their types: {found[0]}"
        ) from error


def of_rows(error: Exception, send: Send) -> Exception:
    """Return the error for rows of a send that were not written; other errors are unchanged."""
    text, schema = str(error), send.schema
    if NO_PRIORITY in text:
        return wrong_priority(str(send.placing.priority))
    for marker, explain in ((NO_SECONDS, wrong_seconds), (NULL_INSIDE, wrong_null)):
        column = column_of(marker, text)
        if column is not None:
            return explain(column)
    if NO_ROUTE in text:
        return unroutable(str(send.note.get("exchange")))
    if LONG_KEY in text and send.routes is not None:
        return key_too_long(str(send.routes.key_column))
    if "NOT_NULL" not in text and "NOT NULL constraint" not in text:
        return error
    name = next((c.name for c in schema.fields if not c.nullable and c.name in text), "?")
    return SchemaMismatch(
        f"Column {name!r} may not be null, but is in some rows: fill it.", column=name, in_rows=True
    )
