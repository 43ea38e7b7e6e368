"""Stage rows where they are kept: in the store, or in the memory of this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from txnqueue.client import Client
from txnqueue.config import check_flag
from txnqueue.errors import InvalidInput
from txnqueue.journal import AppendConflict
from txnqueue.payload import Run, Send
from txnqueue.transaction import Transaction

T = TypeVar("T")


def is_kept(durable: object, otherwise: bool, tx: Transaction, name: str) -> bool:
    """Say whether messages are kept in the store.

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
    client: Client, rows: object, name: str, kept: bool, note: Callable[[Client, object], T]
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
