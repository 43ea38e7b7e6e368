"""Old days and instants in files that Spark wrote in the calendar of its first versions.

A session can have it write that way: ``spark.sql.parquet.datetimeRebaseModeInWrite`` and
``int96RebaseModeInWrite`` = ``LEGACY``. Spark says so in the file and converts what it reads;
Arrow would show other days.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txnqueue.errors import FilesNotReadable

_MARKS = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
"""The keys in a file's metadata of days and instants, and of instants with 96 bits."""
_FIRST_DAY = -141_427
"""15 October 1582 in days since 1970: from then on both calendars are the same."""
_FIRST_INSTANT = -2_208_988_800_000_000
"""1900 in microseconds since 1970: from then on the time zones are the same, too."""


def check(said: Mapping[bytes, bytes] | None, rows: pa.Table, path: str) -> None:
    """Check that rows of a file mean to Arrow what they mean to Spark.

    Args:
        said: The file's own metadata.
        rows: Rows that were read from it.
        path: The file.

    Raises:
        FilesNotReadable: They have days or instants that only Spark converts.
    """
    if _MARKS.isdisjoint(said or {}):
        return
    for column in rows.columns:
        if any(_is_old(values) for chunk in column.chunks for values in _plain(chunk)):
            raise FilesNotReadable(
                f"{path} has days or instants of long ago that were written with the setting "
                "datetimeRebaseModeInWrite or int96RebaseModeInWrite = LEGACY, which only Spark "
                "converts: use QueueManager.",
                path=path,
            )


def _plain(values: pa.Array) -> Iterator[pa.Array]:
    """List the plain values inside of a column."""
    kind: Any = values.type
    if pa.types.is_struct(kind):
        inside = values.flatten()
    elif pa.types.is_map(kind):
        inside = [values.keys, values.items]
    elif pa.types.is_list(kind):
        inside = [values.flatten()]
    else:
        yield values
        return
    for one in inside:
        yield from _plain(one)


def _is_old(values: pa.Array) -> bool:
    if pa.types.is_date(values.type):
        first, number = _FIRST_DAY, values.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        # Coarser units hold more years than this one.
        unit = pa.timestamp("us", values.type.tz)
        first, number = _FIRST_INSTANT, values.cast(unit, safe=False).cast(pa.int64())
    else:
        return False
    return (pc.min(number).as_py() or 0) < first
