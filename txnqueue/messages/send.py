"""Send rows to a queue: stage them where they are kept, as part of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from txnqueue.client.client import Client
from txnqueue.core.markup import Facts
from txnqueue.core.receipt import Receipt
from txnqueue.core.settings import (
    POSITIONS_PER_SEND_MAX,
    RANGES_PER_SEND_MAX,
    QueueInfo,
    check_flag,
)
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.placement import SendOptions
from txnqueue.messages.staged import StagedSend
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.payload import Placing, Run, Send

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")


def is_kept(durable: object, tx: Acquirer, name: str, *, otherwise: bool) -> bool:
    """Return whether messages are kept in the store.

    Args:
        durable: What the caller said; None: nothing.
        otherwise: What holds then.
        tx: The transaction that they belong to.
        name: Where they are sent to.

    Raises:
        InvalidInput: It is neither yes nor no, or the transaction takes durable messages only.
    """
    kept = otherwise if durable is None else check_flag("durable", durable)
    if not kept and not tx.takes_transient:
        raise InvalidInput(
            f"Messages in memory cannot be sent in branch {tx.id!r}: send to {name!r} with "
            "durable=True.",
            name="durable",
        )
    return kept


def stage(
    client: Client, rows: object, name: str, note: Callable[[Client, object], T], *, kept: bool
) -> T:
    """Stage rows, and let the transaction take note of it before anybody tidies up.

    Args:
        client: Whose store it is.
        rows: What a user sends.
        name: Where they are sent to.
        kept: Whether the store keeps them.
        note: Given the view of the store that they belong in, and the rows, stages them and
            takes note.

    Raises:
        LimitExceeded: There is no room for them in memory.
    """
    if kept:
        return note(client, rows)
    store = client.store.transient
    rows = store.brought_here(rows, name)
    with store.lock:
        return note(client.transient, rows)


def staged_runs(side: Client, send: Send, rows: object) -> tuple[Send, list[Run]]:
    """Stage rows, once more under another id if their table got a column meanwhile, which is rare.

    Returns:
        The send as it was staged, and where its rows lie.
    """
    payload = side.store.payload
    try:
        return send, payload.stage(send, rows)
    except AppendConflict:
        send = replace(send, send_id=side.runtime.new_id())
        return send, payload.stage(send, rows)


@dataclass(frozen=True, slots=True)
class SendResult(Facts):
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
    tx: Acquirer,
    rows: object,
    *,
    options: SendOptions,
    placing: Placing,
    durable: bool,
    recorded: bool = True,
) -> StagedSend:
    """Stage the rows of one send to a queue, and record it in the transaction.

    Args:
        client: Whose store it is.
        info: The queue.
        schema: Its columns.
        tx: The transaction.
        rows: What a user sends.
        options: What is said beside the rows.
        placing: What they say of priority, delay and time to live, at one instant.
        durable: Whether the store keeps the messages.
        recorded: Whether the transaction records it; else the caller lets it. What is in memory
            is recorded in any case.
    """
    headers, header_columns = options.all_headers()
    info = info if durable else info.in_memory()
    ordering = options.ordering(schema, info.name)
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

    def take_note(side: Client, here: object) -> StagedSend:
        found = _staged(side, info, send, here)
        if found.runs and (recorded or not durable):
            tx.add_send(found)
        return found

    return stage(client, rows, info.name, take_note, kept=durable)


def _staged(side: Client, info: QueueInfo, send: Send, rows: object) -> StagedSend:
    """Stage rows, and check that one send can say where they lie."""
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
    return staged
