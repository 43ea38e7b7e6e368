"""Options of writes of rows that override the session's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, StoreCorrupt
from txnqueue.storage.journal.sessions import APPLICATION, NUMBER
from txnqueue.storage.payload import Run, Send
from txnqueue.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = {
    "maxRecordsPerFile": "0",
    "mergeSchema": "false",
    "optimizeWrite": "false",
    "partitionOverwriteMode": "static",
}
_INSTANTS = "spark.sql.parquet.outputTimestampType"
_INSTANT = re.compile('ype":"timestamp"')
"""Matches timestamps of columns, elements, keys or values in a schema's JSON, not names."""


def options_of(send: Send, session: SparkSession) -> Mapping[str, str]:
    """Return the options for the write of a send.

    If the session numbers its writes, so that Delta skips those that it considers repeated, the
    send gets an application id of its own. Otherwise it gets none, because Delta keeps each id
    for ever, and reads the table's whole state to find it.

    Args:
        send: The send.
        session: The session of its rows.

    Raises:
        InvalidInput: The session would truncate timestamps to milliseconds.
    """
    # No option overrides this setting. Spark ignores its case, and returns it as it was set.
    cut = (session.conf.get(_INSTANTS, None) or "").upper() == "TIMESTAMP_MILLIS"
    if cut and _INSTANT.search(send.schema.json()):
        raise InvalidInput(
            f"The session has {_INSTANTS}=TIMESTAMP_MILLIS, which would cut off the microseconds "
            "of timestamps; nothing was sent. Set it to TIMESTAMP_MICROS.",
            name=_INSTANTS,
        )
    about = {"txnqueue": __version__, "operation": "stage", "send_id": send.send_id}
    options = {**_OPTIONS, "userMetadata": json.dumps({**about, **send.note})}
    if _numbering(session) is not None:
        options |= {"txnAppId": f"txnqueue {send.send_id}", "txnVersion": "0"}
    return options


def check_written(options: Mapping[str, str], session: SparkSession) -> None:
    """Check that a write that left no rows was not skipped.

    Raises:
        InvalidInput: Delta may have skipped it, because the session now numbers its writes.
    """
    found = _numbering(session)
    if found is not None and "txnAppId" not in options:
        raise InvalidInput(
            f"Nothing was written: {found} was set in the session meanwhile, and Delta skips "
            "writes that it considers repeated. Unset it, or leave it unchanged, and send again.",
            name=found,
        )


def check_complete(runs: Iterable[Run], expected: int) -> None:
    """Check that the number of committed rows is the number of written rows.

    Args:
        runs: The runs of committed rows.
        expected: The number of rows that were written.

    Raises:
        StoreCorrupt: The numbers differ.
    """
    found = sum(run.count for run in runs)
    if found != expected:
        raise StoreCorrupt(
            f"{expected} rows of a send were written, but {found} are in its payload table; "
            "nothing was sent. See in DESCRIBE HISTORY who else changes that table."
        )


def _numbering(session: SparkSession) -> str | None:
    """Return a setting with which a session numbers its writes; None if there is none."""
    return next((k for k in (APPLICATION, NUMBER) if session.conf.get(k, None) is not None), None)
