"""The proof of the demo, from the data itself: every flight is in exactly one place.

What was sent is compared with the source row by row. Where each message is comes from the
store's SQL views, which know nothing of the Python that counted the queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from flights_data import DELAYED, Work

from txnqueue import QueueManager

GONE = ("accepted", "rejected", "dead_lettered")


@dataclass(frozen=True)
class Proof:
    """One line of the proof: two numbers that must be the same, from two places."""

    claim: str
    found: float
    expected: float

    @property
    def holds(self) -> bool:
        return self.found == self.expected


@dataclass(frozen=True)
class Messages:
    """All messages that ever stood in a queue: rows, ids, states."""

    table: pa.Table
    columns: list[str]

    @classmethod
    def read(cls, spark: Any, view: str, columns: list[str]) -> Messages:
        names = [*columns, "message_id", "state", "delivery_count", "settled_at"]
        quoted = ", ".join(f"`{name}`" for name in names)
        return cls(spark.sql(f"SELECT {quoted} FROM `{view}`").toArrow(), columns)

    @property
    def rows(self) -> pa.Table:
        return self.table.select(self.columns)

    @property
    def states(self) -> Counter[Any]:
        return Counter(self.table.column("state").to_pylist())

    @property
    def distinct(self) -> int:
        return int(pc.count_distinct(self.table.column("message_id")).as_py())

    def standing(self) -> pa.Table:
        """The rows of the messages that are still there."""
        state = self.table.column("state")
        return self.table.filter(pc.invert(pc.is_in(state, pa.array(GONE)))).select(self.columns)


def messages(spark: Any, manager: QueueManager, work: Work) -> dict[str, Messages]:
    """Read all messages of all queues of the demo by the store's SQL views."""
    manager.create_views()
    columns = {name: list(work.table.column_names) for name in work.queues}
    if work.routed:
        columns["totals"] = ["carrier", "flights", "delay_minutes"]
    return {
        name: Messages.read(spark, name.replace(".", "_"), columns[name]) for name in work.queues
    }


def same_rows(left: pa.Table, right: pa.Table) -> int:
    """Count the rows that two tables have in common, repeated ones as often as in both."""
    right = right.select(left.column_names).cast(left.schema)
    order = [(name, "ascending") for name in left.column_names]
    sortable = left.num_rows == right.num_rows and _sortable(left)
    if sortable and left.sort_by(order).equals(right.sort_by(order)):
        return int(left.num_rows)
    return sum((_counted(left) & _counted(right)).values())


def prove(
    spark: Any, work: Work, found: dict[str, Messages], counts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Proof]:
    """Compare what is where with the source.

    Args:
        spark: Evaluates ``--reject-where`` on the source, for files of the user's own.
        work: The source.
        found: All messages, by queue.
        counts: What the library itself says of the queues, by queue.
    """
    source, sent, dead = work.table, found[work.queue], found[f"{work.queue}.dead"]
    total = source.num_rows
    name = work.queue
    yield Proof(f"rows in the source = messages posted to {name}", counts[name]["posted"], total)
    yield Proof("  row for row the same", same_rows(source, sent.rows), total)
    ids = sum(one.table.num_rows for one in found.values())
    yield Proof("no message id twice, in any queue", sum(m.distinct for m in found.values()), ids)

    states = sent.states
    waiting = sum(count for state, count in states.items() if state not in GONE)
    consumed, rejected = states["accepted"], states["rejected"] + states["dead_lettered"]
    places = consumed + dead.standing().num_rows + waiting
    yield Proof("consumed + dead letters + still waiting = rows in the source", places, total)
    yield Proof("  the library counts as many consumed as SQL", counts[name]["accepted"], consumed)
    yield Proof("  and nothing is in flight", counts[name]["in_flight"], 0)

    bad = source.filter(_rejected(spark, work))
    text = work.reject_where or "(nothing is rejected)"
    yield Proof(f"rejected = source rows where {text}", rejected, bad.num_rows)
    yield Proof(f"  row for row in {name}.dead", same_rows(bad, dead.standing()), bad.num_rows)
    if work.routed:
        yield from _prove_routes(source.filter(pc.invert(_rejected(spark, work))), found, consumed)


def _prove_routes(flown: pa.Table, found: dict[str, Messages], consumed: int) -> Iterator[Proof]:
    late = flown.filter(pc.fill_null(pc.greater(flown.column("dep_delay"), 60), fill_value=False))
    rebooking, totals = found["rebooking"].standing(), found["totals"].standing()
    yield Proof(f"rebooking = source rows where {DELAYED}", rebooking.num_rows, late.num_rows)
    yield Proof("  row for row the same", same_rows(late, rebooking), late.num_rows)
    counted = pc.sum(totals.column("flights")).as_py() or 0
    yield Proof("sum of totals.flights = consumed flights", counted, consumed)
    delay = pc.sum(totals.column("delay_minutes")).as_py() or 0
    expected = pc.sum(flown.column("dep_delay")).as_py() or 0
    yield Proof("sum of totals.delay_minutes = delay in the source", delay, expected)
    per_carrier = _per_carrier(totals, "flights", "sum")
    source = _per_carrier(flown, "carrier", "count")
    same = sum(per_carrier.get(carrier) == count for carrier, count in source.items())
    yield Proof("carriers whose totals are right", same, len(source))


def prove_table(spark: Any, manager: QueueManager, work: Work) -> Iterator[Proof]:
    """Compare the user's own table with the source, and let the store verify itself."""
    if work.routed:
        path = work.totals_table(manager.root)
        flown = work.table.filter(pc.invert(_rejected(spark, work)))
        table = spark.read.format("delta").load(path).toArrow()
        counted = pc.sum(table.column("flights")).as_py() or 0
        yield Proof("sum of flights in the table = flights in the source", counted, flown.num_rows)
        per_carrier = _per_carrier(table, "flights", "sum")
        source = _per_carrier(flown, "carrier", "count")
        same = sum(per_carrier.get(carrier) == count for carrier, count in source.items())
        yield Proof("  carriers whose row is right", same, len(source))
        decided = [r for r in manager.history.changes().rows() if r["kind"] == "change_decided"]
        history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("operation = 'MERGE'")
        notes = history.select("userMetadata").distinct().count()
        yield Proof("  changes decided = commits of the table", history.count(), len(decided))
        yield Proof("  each change once", notes, len(decided))
    found = manager.history.verify()
    holding = sum(claim.holds for claim in found.claims)
    yield Proof("what the store verifies of itself", holding, len(found.claims))


def _per_carrier(table: pa.Table, column: str, how: str) -> dict[str, int]:
    grouped = table.group_by("carrier").aggregate([(column, how)]).to_pydict()
    return dict(zip(grouped["carrier"], grouped[f"{column}_{how}"], strict=True))


def _rejected(spark: Any, work: Work) -> pa.Array:
    """Say of each source row whether it is to be rejected, without asking the library."""
    if work.routed and work.reject_where == "dep_time IS NULL":
        return pc.is_null(work.table.column("dep_time"))
    if not work.reject_where:
        return pa.array([False] * work.table.num_rows)
    numbered = work.table.append_column("_row", pa.array(range(work.table.num_rows)))
    frame = spark.createDataFrame(numbered).where(work.reject_where).select("_row")
    rows = set(frame.toArrow().column("_row").to_pylist())
    return pa.array([row in rows for row in range(work.table.num_rows)])


def _sortable(table: pa.Table) -> bool:
    return not any(pa.types.is_nested(column.type) for column in table.schema)


def _counted(table: pa.Table) -> Counter[Any]:
    return Counter(map(repr, table.to_pylist()))
