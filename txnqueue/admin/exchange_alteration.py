"""Add columns to an exchange, while others publish to it and consume what was published.

The queues must have the columns first, so that published messages can be read in each of them.
Columns are never removed: what was found about a queue stays true. A client that binds a queue
notices the alteration, because both write the exchange's next sequence in the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.admin.alteration import Changes, grown, new_columns, unrecorded
from txnqueue.client.client import Client
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog, topology
from txnqueue.core.state.topology import Topology
from txnqueue.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def alter(client: Client, info: ExchangeInfo, columns: StructType) -> Changes:
    """Add columns to an exchange; columns that exist are left alone.

    Raises:
        SchemaMismatch: A column is not nullable, exists with another type, or is missing in a
            queue that is bound.
        ExchangeClosed: The exchange is being dropped.
        ExchangeNotFound: The exchange was dropped.
        Busy: Others won every retry; the error says that the table has the columns.
    """
    client.open()
    before, after = _altered(client.cache.topology(), info, columns)
    if after == before:
        return {}
    client.store.payload.add_columns(info.payload_id, columns)  # an entry promises what exists

    made: Changes = {}

    def plan(_lost: int) -> Plan | None:
        nonlocal made
        found = client.cache.topology()
        now, wanted = _altered(found, info, columns)
        if wanted == now:  # others were faster, or an earlier try has landed
            return None
        made = new_columns(now, wanted)
        return topology.alter(wanted, found.sequences[now.name], client.stamp())

    with unrecorded(info.name, columns):
        landed = client.land(plan, "alter exchange")
    return made if landed is not None else {}


def _altered(
    found: Topology, info: ExchangeInfo, columns: StructType
) -> tuple[ExchangeInfo, ExchangeInfo]:
    """Return an exchange as it is now, and with added columns, which its queues must have."""
    now = found.newest(info)
    after = grown(now, columns)
    if after == now:
        return now, now
    targets = found.targets(now)
    names = {column["name"] for column in after.schema["fields"]}
    lacking = sorted(
        one.name
        for one in targets
        if not names <= {column["name"] for column in one.schema["fields"]}
    )
    if lacking:
        raise SchemaMismatch(
            f"Messages of the exchange {now.name!r} would not fit the columns of "
            f"{', '.join(lacking)}: add the columns there first with "
            f"manager.queue({lacking[0]!r}).alter(add=...). Nothing was changed.",
            name=now.name,
            queues=lacking,
        )
    for one in targets:
        check_columns(now.name, after.schema, one)
    return now, after


def check_columns(name: str, schema: Mapping[str, Any], info: QueueInfo) -> None:
    """Check that a queue can hold what an exchange publishes; extra columns are allowed.

    Raises:
        SchemaMismatch: The queue lacks a column, requires one that the exchange lacks, has one
            of another type, or one that is nullable only in the exchange.
    """
    here = {column["name"]: column for column in schema["fields"]}
    there = {column["name"]: column for column in info.schema["fields"]}
    needed = {name for name, column in there.items() if not column["nullable"]}
    if info.settings.group_by is not None:
        needed.add(info.settings.group_by)
    if (
        not here.keys() <= there.keys()
        or not needed <= here.keys()
        or any(column["type"] != there[name]["type"] for name, column in here.items())
    ):
        raise SchemaMismatch(
            f"Queue {info.name!r} and the exchange {name!r} differ in "
            f"{catalog.differing(info.schema, schema)}: published messages would not fit there. "
            "Alter the queue, or bind a queue that has the exchange's columns."
        )
    for column in here:
        if here[column]["nullable"] and not there[column]["nullable"]:
            raise SchemaMismatch(
                f"Column {column!r} may be null in the exchange {name!r} but not in queue "
                f"{info.name!r}: make the column nullable in both, or in neither.",
                column=column,
            )
