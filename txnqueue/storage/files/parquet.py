"""Parquet files, read by the calling threads.

Arrow's own threads may release the last reference to a Python object (a buffer over bytes, a file
of fsspec) after a read has returned. If the interpreter is shutting down by then, CPython before
3.14 ends the thread, and C++ ends the process: "terminate called without an active exception". So
these threads are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

THREADS = 8
"""How many files are read at once, because on object stores each waits for the network."""

Named = TypeVar("Named")
Found = TypeVar("Found")


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file; instants that Spark wrote with 96 bits are read in microseconds."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        source,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        pre_buffer=False,
    )


def read(
    file: pq.ParquetFile, columns: Sequence[str], row_groups: Sequence[int] | None = None
) -> pa.Table:
    """Read those of some columns that exist, from all or some row groups."""
    groups = range(file.num_row_groups) if row_groups is None else row_groups
    return file.read_row_groups(list(groups), columns=list(columns), use_threads=False)


def side_by_side(read_one: Callable[[Named], Found], files: Sequence[Named]) -> list[Found]:
    """Read several files at once, in threads that have ended when this returns."""
    if len(files) < 2:
        return [read_one(one) for one in files]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(read_one, files))
