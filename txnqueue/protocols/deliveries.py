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

    Args:
        batch: The claim.
        transaction: The transaction that acquired it; None if it is held under a lease.
        write: Writes a message in that form.
    """
    try:
        return [write(message) for message in batch.messages()]
    except BaseException:
        with contextlib.suppress(Exception):  # a lease ends by itself
            batch.release(transaction=transaction)
        raise
