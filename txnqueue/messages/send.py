"""Stage the rows of a send, in the store or in memory, as part of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from txnqueue.client.client import Client
from txnqueue.client.runtime import Retries
from txnqueue.core.markup import Facts
from txnqueue.core.receipt import Receipt
from txnqueue.core.settings import (
    POSITIONS_PER_SEND_MAX,
    RANGES_PER_SEND_MAX,
    QueueInfo,
    check_flag,
)
from txnqueue.errors import Busy, InvalidInput, LimitExceeded
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
        durable: The caller's value; None if it was left out.
        tx: The transaction that sends them.
        name: The queue or exchange that they are sent to.
        otherwise: The value that holds if ``durable`` was left out.

    Raises:
        InvalidInput: ``durable`` is not a boolean, or the transaction takes durable messages only.
    """
    kept = otherwise if durable is None else check_flag("durable", durable)
    if not kept and not tx.takes_transient:
        raise InvalidInput(
            f"Transient messages cannot be sent in branch {tx.id!r}: send to {name!r} with "
            "durable=True.",
            name="durable",
        )
    return kept


def stage(
    client: Client,
    tx: Acquirer,
    rows: object,
    name: str,
    note: Callable[[Client, object], T],
    *,
    kept: bool,
) -> T:
    """Stage rows and record them in the transaction, before the memory can be tidied.

    Args:
        client: The client of the store.
        tx: The transaction.
        rows: The rows that a user sends.
        name: The queue or exchange that they are sent to.
        note: Given the client of the durable or transient part and the rows, stages and records
            them.
        kept: Whether the store keeps them.

    Raises:
        LimitExceeded: There is no room for the rows in memory.
        TransactionFinished: Another thread has decided the transaction.
    """
    if kept:
        return note(client, rows)
    store = client.store.transient
    rows = store.brought_here(rows, name)
    with tx.adding(), store.lock:  # in the order in which a commit takes them
        return note(client.transient, rows)


def staged_runs(side: Client, send: Send, rows: object) -> tuple[Send, list[Run]]:
    """Stage rows, again under another id in the rare case that their table was just altered.

    Returns:
        The send as it was staged, and the runs in which its rows lie.

    Raises:
        Busy: Their table was altered at every try; no message was sent.
    """
    retries = Retries(side.runtime)
    while True:
        try:
            return send, side.store.payload.stage(send, rows)
        except AppendConflict as error:
            if not retries.fail():
                queue = send.note.get("queue")
                name = send.note.get("exchange", queue)
                raise Busy(
                    f"The columns of {name!r} were being altered at all {retries.failed} tries "
                    "to send to it; nothing was sent: try again later.",
                    operation="stage",
                    queue=None if queue is None else str(queue),
                    tries=retries.failed,
                ) from error
        retries.wait()
        send = replace(send, send_id=side.runtime.new_id())


@dataclass(frozen=True, slots=True)
class SendResult(Facts):
    """The result of a send.

    Attributes:
        count: The number of messages sent.
        send_id: The send's id; message ids are ``<send id>:<offset>``.
        transaction_id: The transaction that sends them.
        receipt: The receipt of the commit, if the send was a transaction by itself.
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
    record: Callable[[StagedSend], None] | None = None,
) -> StagedSend:
    """Stage the rows of one send to a queue, and record it in the transaction.

    Args:
        client: The client of the store.
        info: The queue.
        schema: The queue's columns.
        tx: The transaction.
        rows: The rows that a user sends.
        options: The options of the send.
        placing: Priority, delay and time to live from the options, taken at one instant.
        durable: Whether the store keeps the messages.
        record: Records the send instead of the transaction. Transient messages must be recorded
            by it, before the memory can be tidied.
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
        in_order=info.settings.ordered,
    )

    def take_note(side: Client, here: object) -> StagedSend:
        found = _staged(side, info, send, here)
        if found.runs:
            (record or tx.add_send)(found)
        return found

    return stage(client, tx, rows, info.name, take_note, kept=durable)


def _staged(side: Client, info: QueueInfo, send: Send, rows: object) -> StagedSend:
    """Stage rows, and check that they are in few enough positions and ranges for one send."""
    send, runs = staged_runs(side, send, rows)
    staged = StagedSend(info, send.slice, send.send_id, tuple(runs), send.placing)
    positions = len(staged.places)
    if positions > POSITIONS_PER_SEND_MAX:
        raise LimitExceeded(
            f"{positions} different lanes, priorities, delays and times to live in one "
            f"send{' (in an ordered queue, stretches of them)' if send.in_order else ''}; at most "
            f"{POSITIONS_PER_SEND_MAX} are allowed. Create the queue with a coarser "
            "delay_step_seconds, or send in parts."
        )
    if len(runs) > RANGES_PER_SEND_MAX:
        raise LimitExceeded(
            f"The rows of one send lie in {len(runs)} ranges, one for each lane and Spark task; "
            f"at most {RANGES_PER_SEND_MAX} are allowed. Send df.coalesce(n) with fewer "
            "partitions, or create the queue with fewer lanes."
        )
    return staged
