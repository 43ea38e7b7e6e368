"""Reading of claims for a protocol's client; messages that cannot be read are given back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.transaction import Transaction
    from txnqueue.types import Message

Written = TypeVar("Written")


def messages_of(batch: Batch, transaction: Transaction | None) -> list[Message]:
    """Read a claim's messages, or give all of them back.

    A commit accepts messages that its transaction received and did not settle; a message that
    the caller never saw must not be consumed that way.

    Args:
        batch: The claim.
        transaction: The transaction that acquired it; None if it is held under a lease.
    """
    return written_messages(batch, transaction, lambda message: message)


def written_messages(
    batch: Batch, transaction: Transaction | None, write: Callable[[Message], Written]
) -> list[Written]:
    """Read a claim's messages in the form in which they are passed on, or give all of them back.

    The delivery of one that has no such form counts as failed: otherwise it would be received
    again and again, and keep the messages behind it from everybody.

    Args:
        batch: The claim.
        transaction: The transaction that acquired it; None if it is held under a lease.
        write: Writes a message in that form.
    """
    failed: list[Message] = []
    try:
        messages = batch.messages()
        return [_written(message, write, failed) for message in messages]
    except BaseException:
        with contextlib.suppress(Exception):  # a lease ends by itself
            if failed:
                batch.modify(matching=failed, transaction=transaction)
            batch.release(transaction=transaction)
        raise


def _written(
    message: Message, write: Callable[[Message], Written], failed: list[Message]
) -> Written:
    """Write a message; one that cannot be written is added to the failed ones."""
    try:
        return write(message)
    except Exception:
        failed.append(message)
        raise
