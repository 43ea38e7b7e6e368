"""Arrange the rows of a send that are in this process: which lane each goes to, and where.

``payload.delta`` lets Spark do the same for DataFrames and for large tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from txnqueue.payload import Run, Send
from txnqueue.payload.rows import lane_of


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows in the order of their offsets, with the lane of each."""

    rows: pa.Table
    lanes: list[int]

    @property
    def runs(self) -> list[Run]:
        """The runs of contiguous offsets of one lane, as one task writes them."""
        runs: list[Run] = []
        first = 0
        for lane, found in groupby(self.lanes):
            count = sum(1 for _ in found)
            runs.append(Run(lane, first, count))
            first += count
        return runs


def arrange(send: Send, table: pa.Table) -> Arranged:
    """Sort rows by lane, and within a lane keep their order.

    Args:
        send: Says how the queue groups and orders.
        table: The rows, with the columns of the queue's schema.

    Returns:
        The rows as they are to be stored, from offset 0 on.
    """
    if send.order_by:
        keys = [(name, "ascending") for name in send.order_by]
        # Spark, too, has nulls first.
        table = table.take(pc.sort_indices(table, sort_keys=keys, null_placement="at_start"))
    if send.group_by is not None:
        lanes = [lane_of(key, send.lanes) for key in table.column(send.group_by).to_pylist()]
    else:
        start = lane_of(send.send_id, send.lanes)
        lanes = [(start + row) % send.lanes for row in range(table.num_rows)]
    order = sorted(range(table.num_rows), key=lanes.__getitem__)
    rows = table.take(pa.array(order, pa.int64()))
    return Arranged(rows, [lanes[row] for row in order])
