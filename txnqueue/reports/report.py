"""Make DataFrames of rows that tell what is and what was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.client.client import Client
from txnqueue.errors import PlatformMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COUNTS = (
    "posted available delayed in_flight purge_pending accepted rejected dead_lettered expired "
    "purged moved sequence claim_sequence count rows commit_seq length visible redelivered dead "
    "conflicts waiting duplicates"
)
_TYPES = {
    **dict.fromkeys(_COUNTS.split(), pa.int64()),
    **dict.fromkeys(("lane", "lanes"), pa.int32()),
    **dict.fromkeys(("oldest_age_seconds", "newest_age_seconds"), pa.float64()),
    "arguments": pa.map_(pa.string(), pa.string()),
    **dict.fromkeys(("recorded_at", "oldest_at", "newest_at"), pa.timestamp("us", "UTC")),
}


def frame_of(client: Client, rows: Sequence[Mapping[str, Any]], columns: str) -> DataFrame:
    """Make a DataFrame of rows about the store, on the user's session.

    Args:
        client: Whose session it is.
        rows: The rows, by column.
        columns: The columns in their order; what is no count and no instant is a string.

    Raises:
        PlatformMissing: There is no session.
    """
    spark = client.store.spark
    if spark is None:
        raise PlatformMissing("A DataFrame needs a session: use the method that ends in rows.")
    schema = pa.schema((name, _TYPES.get(name, pa.string())) for name in columns.split())
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))
