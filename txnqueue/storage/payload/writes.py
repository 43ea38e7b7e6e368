"""What a write of rows says for itself, whatever the session says of all its writes."""

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
"""Instants as columns, elements, keys or values in a schema's JSON, and no name of a column."""


def options_of(send: Send, session: SparkSession) -> Mapping[str, str]:
    """Write the options of the write of a send.

    Where the session numbers its writes, so that Delta passes over what it takes for repeated,
    the send gets an application of its own. It has none elsewhere: Delta keeps each for ever,
    and reads the table's whole state to find it.

    Args:
        send: The send.
        session: What its rows live on.

    Raises:
        InvalidInput: The session would cut off what instants have below milliseconds.
    """
    # No option wins over it. Spark reads it in capitals, and gives it back as it was set.
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
    """Check that a write after which no rows were found had none to write.

    Raises:
        InvalidInput: Delta may have passed over it: the session has come to number its writes.
    """
    found = _numbering(session)
    if found is not None and "txnAppId" not in options:
        raise InvalidInput(
            f"Nothing was written: {found} was set in the session meanwhile, and Delta skips "
            "writes that it considers repeated. Unset it, or leave it unchanged, and send again.",
            name=found,
        )


def check_complete(runs: Iterable[Run], expected: int) -> None:
    """Check that as many rows were committed as were evaluated.

    Args:
        runs: Where the rows lie that were committed.
        expected: How many rows were written.

    Raises:
        StoreCorrupt: They are more or fewer.
    """
    found = sum(run.count for run in runs)
    if found != expected:
        raise StoreCorrupt(
            f"{expected} rows of a send were written, but {found} are in its payload table; "
            "nothing was sent. See in DESCRIBE HISTORY who else changes that table."
        )


def _numbering(session: SparkSession) -> str | None:
    """Name a setting by which a session numbers its writes; None without any."""
    return next((k for k in (APPLICATION, NUMBER) if session.conf.get(k, None) is not None), None)
