"""Reports: rows about a store, as dicts, as a DataFrame and as JSON."""

from __future__ import annotations

import base64
import datetime
import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from txnqueue.client.client import Client
from txnqueue.core import markup
from txnqueue.errors import PlatformMissing
from txnqueue.storage.journal.sessions import new_frame
from txnqueue.storage.payload.maps import MapItems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RowT_co = TypeVar("RowT_co", bound=Mapping[str, Any], covariant=True)
_COUNTS = (
    "posted available delayed in_flight purge_pending accepted rejected dead_lettered expired "
    "purged moved sequence claim_sequence count rows commit_seq messages redelivered dead "
    "conflicts waiting duplicates bindings would really"
)
_TYPES = {
    **dict.fromkeys(_COUNTS.split(), pa.int64()),
    **dict.fromkeys(("lane", "lanes", "deliveries_max"), pa.int32()),
    **dict.fromkeys(("oldest_age_seconds", "newest_age_seconds", "lease_seconds"), pa.float64()),
    "arguments": pa.map_(pa.string(), pa.string()),
    "closing": pa.bool_(),
    **dict.fromkeys(
        ("recorded_at", "oldest_at", "newest_at", "created_at"), pa.timestamp("us", "UTC")
    ),
}


class Report(Generic[RowT_co]):
    """Rows about a store, in three forms; nothing is read before one of them is requested.

    A report on a past state returns the same rows each time.
    """

    def __init__(
        self,
        client: Client,
        read: Callable[[], Sequence[RowT_co]],
        columns: str,
        show: Callable[[], DataFrame] | None = None,
        *,
        is_short: bool = False,
    ) -> None:
        """Hold a query; users get reports from the manager, queues and exchanges.

        Args:
            client: The client of the store, with the user's session.
            read: Reads the rows.
            columns: The columns in their order; all but counts and instants are strings.
            show: Makes the DataFrame, where that needs no rows in Python.
            is_short: Whether there are few rows and reading them costs little, so that a
                notebook may read them for display.
        """
        self._client = client
        self._read = read
        self._columns = columns
        self._show = show
        self._is_short = is_short

    def rows(self) -> list[RowT_co]:
        """Return the rows as dicts."""
        return list(self._read())

    def df(self) -> DataFrame:
        """Return the rows as a DataFrame on the user's session.

        Raises:
            PlatformMissing: The manager has no session.
        """
        if self._client.store.spark is None:
            raise PlatformMissing("A DataFrame needs a session: use rows() or json().")
        if self._show is not None:
            return self._show()
        return frame_of(self._client, self._read(), self._columns)

    def json(self) -> str:
        """Return the rows as a JSON array: instants as ISO 8601, binary values as base64."""
        return json.dumps([plain(row) for row in self._read()], ensure_ascii=False)

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show the first rows in a notebook if reading them costs little, else the columns."""
        columns = self._columns.split()
        if self._is_short:
            return markup.records(type(self).__name__, self.rows(), columns)
        asked = [("rows() or json() reads them, df() shows them as a DataFrame",)]
        return markup.table(f"{type(self).__name__} of {', '.join(columns)}", ("rows",), asked)

    def __repr__(self) -> str:
        """Show the columns."""
        return f"<{type(self).__name__} of {', '.join(self._columns.split())}>"


def frame_of(client: Client, rows: Sequence[Mapping[str, Any]], columns: str) -> DataFrame:
    """Make a DataFrame of rows about the store, on the user's session.

    Args:
        client: The client with the session.
        rows: The rows, by column.
        columns: The columns in their order.
    """
    spark = client.store.spark
    assert spark is not None
    schema = pa.schema((name, _TYPES.get(name, pa.string())) for name in columns.split())
    return new_frame(spark, pa.Table.from_pylist(list(rows), schema=schema))


def plain(value: object) -> object:
    """Convert a value to what JSON has: instants to ISO 8601, bytes to base64.

    Decimals, infinities and NaN become strings; maps become objects, whose keys are converted as
    values are.
    """
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, MapItems):
        return {str(plain(key)): plain(inner) for key, inner in value}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode()
    return str(value)
