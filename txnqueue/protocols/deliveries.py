"""Reading of claims for a protocol's client; messages that cannot be read are given back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.transaction import Transaction
    from txnqueue.types import Message


def messages_of(batch: Batch, transaction: Transaction | None) -> list[Message]:
    """Read a claim's messages, or give all of them back.

    Args:
        batch: The claim.
        transaction: The transaction that acquired it; None if it is held under a lease.
    """
    try:
        return batch.messages()
    except BaseException as error:
        give_back(batch, transaction, error)
        raise


def give_back(batch: Batch, transaction: Transaction | None, error: BaseException) -> None:
    """Give back a claim whose messages its caller does not get because of an error.

    A commit accepts messages that its transaction received and did not settle; a message that
    the caller never saw must not be consumed that way. If one of them is at fault, the delivery
    counts as failed, so that it does not come again for ever.

    Args:
        batch: The claim.
        transaction: As in ``messages_of``.
        error: The error.
    """
    with contextlib.suppress(Exception):  # a lease ends by itself
        if is_of_messages(error):
            batch.modify(transaction=transaction)
        else:
            batch.release(transaction=transaction)


def is_of_messages(error: BaseException) -> bool:
    """Return whether the content of messages is at fault, such as one that Python cannot read."""
    return isinstance(error, InvalidInput) and error.in_rows
