"""Parquet files, read by the threads that ask for them.

Arrow's own threads may let go of the last reference to an object of Python's (a buffer over bytes,
a file of fsspec's) after a read has returned. Where the interpreter is ending by then, CPython
before 3.14 ends the thread, and C++ ends the process: "terminate called without an active
exception". So these threads get nothing to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

THREADS = 8
"""How many files are read at once: on object stores each waits for the network."""

Named = TypeVar("Named")
Found = TypeVar("Found")


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file; its instants, of which Spark writes 96 bits, are in microseconds."""
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
    """Read some columns, as far as they are there, of all row groups or of some."""
    groups = range(file.num_row_groups) if row_groups is None else row_groups
    return file.read_row_groups(list(groups), columns=list(columns), use_threads=False)


def side_by_side(read_one: Callable[[Named], Found], files: Sequence[Named]) -> list[Found]:
    """Read several files at once, by threads that have ended when this returns."""
    if len(files) < 2:
        return [read_one(one) for one in files]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(read_one, files))
