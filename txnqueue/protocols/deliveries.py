"""Read what was claimed for a protocol's client; what cannot be read is given back."""

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

    What a transaction received and did not settle is accepted by its commit. A caller
    that never saw a message must not find it consumed by that.

    Args:
        batch: The claim.
        transaction: What acquired it; None: it is held under a lease.
    """
    return written_messages(batch, transaction, lambda message: message)


def written_messages(
    batch: Batch, transaction: Transaction | None, write: Callable[[Message], Written]
) -> list[Written]:
    """Read a claim's messages in the form in which they are sent on, or give all of them back.

    Args:
        batch: The claim.
        transaction: What acquired it; None: it is held under a lease.
        write: Writes a message in that form.
    """
    try:
        return [write(message) for message in batch.messages()]
    except BaseException:
        with contextlib.suppress(Exception):  # of a lease: then it ends by itself
            batch.release(transaction=transaction)
        raise
