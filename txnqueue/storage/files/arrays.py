"""Small Arrow arrays of known values, built from their bytes.

``pa.array`` and ``pa.scalar`` load pandas if it is installed, which takes longer than reading a
whole store. The bytes are in Arrow's own memory, which any thread may release at any time;
releasing Python's memory while the interpreter shuts down ends the process (see ``parquet``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa


def numbers(value: int, count: int) -> pa.Array:
    """Repeat a whole number."""
    return pa.Array.from_buffers(pa.int64(), count, [None, _copied(array("q", [value]) * count)])


def texts(values: Iterable[str]) -> pa.Array:
    """List strings."""
    encoded = [value.encode() for value in values]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    buffers = [None, _copied(ends), _copied(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def empty(schema: pa.Schema) -> pa.Table:
    """Make a table without rows."""
    return pa.Table.from_batches([], schema)


def _copied(content: array[int] | bytes) -> pa.Buffer:
    """Copy bytes from Python into Arrow's memory."""
    copy = pa.BufferOutputStream()
    copy.write(memoryview(content))
    return copy.getvalue()
