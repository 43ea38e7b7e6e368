"""Send rows to a queue: staged where they are kept, and part of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnqueue.client import Client
from txnqueue.config import POSITIONS_PER_SEND_MAX, RANGES_PER_SEND_MAX, QueueInfo
from txnqueue.deciding import Receipt, StagedSend
from txnqueue.errors import LimitExceeded
from txnqueue.payload import Placing, Send
from txnqueue.placing import ordering_of
from txnqueue.staging import stage, staged_runs
from txnqueue.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Sent:
    """What a send answers.

    Attributes:
        count: How many messages were sent.
        send_id: The send's id; message ids are ``<send id>:<offset>``.
        transaction_id: The transaction that they belong to.
        receipt: The commit, if the send was a transaction of its own.
    """

    count: int
    send_id: str
    transaction_id: str
    receipt: Receipt | None


def staged(
    client: Client,
    info: QueueInfo,
    schema: StructType,
    tx: Transaction,
    durable: bool,
    rows: object,
    order_by: str | list[str] | None,
    placing: Placing,
    headers: Mapping[str, str],
    header_columns: Mapping[str, str],
) -> StagedSend:
    """Stage the rows of one send to a queue, and let the transaction know of it."""
    info = info if durable else info.in_memory()
    ordering = ordering_of(order_by, schema, info.name)
    send = Send(
        payload_id=info.payload_id,
        slice=tx.slice,
        send_id=client.runtime.new_id(),
        schema=schema,
        lanes=info.settings.lanes,
        group_by=info.settings.lanes_by,
        order_by=ordering,
        placing=placing,
        headers=headers,
        header_columns=header_columns,
        message_id=info.settings.detects_by,
        note={"transaction_id": tx.id, "queue": info.name, **tx.client.author()},
    )
    return stage(
        client,
        rows,
        info.name,
        durable,
        lambda side, here: _take_note(tx, side, info, send, here),
    )


def _take_note(
    tx: Transaction, side: Client, info: QueueInfo, send: Send, rows: object
) -> StagedSend:
    """Stage rows, and let the transaction know what it has staged."""
    send, runs = staged_runs(side, send, rows)
    staged = StagedSend(info, send.slice, send.send_id, tuple(runs), send.placing)
    if len(staged.places) > POSITIONS_PER_SEND_MAX:
        raise LimitExceeded(
            f"{len(staged.places)} different lanes, priorities, delays and times to live in "
            f"one send; {POSITIONS_PER_SEND_MAX} are the most. Create the queue with a coarser "
            "delay_step_seconds, or send in parts."
        )
    if len(runs) > RANGES_PER_SEND_MAX:
        raise LimitExceeded(
            f"The rows of one send lie in {len(runs)} ranges, one for each lane and Spark task; "
            f"{RANGES_PER_SEND_MAX} are the most. Send df.coalesce(n) with fewer partitions, or "
            "create the queue with fewer lanes."
        )
    if runs:
        tx.add_send(staged)
    return staged
