"""In which transaction a call works: said, bound, or forgotten."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from txnqueue.errors import InvalidInput, TransactionMismatch, TransactionNotGiven

if TYPE_CHECKING:
    from txnqueue.client import Client
    from txnqueue.transaction import Transaction


class NotGiven(enum.Enum):
    """The type of an argument that was left out."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        """Show up readably in signatures."""
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN


def resolve(
    client: Client,
    transaction: Transaction | NotGiven | None,
    what: str,
    bound: Transaction | None = None,
) -> Transaction | None:
    """Find the transaction that a call works in; None: one of its own.

    Args:
        client: Whose call it is.
        transaction: What the call was given.
        what: The call, for messages.
        bound: What the called object works in where the call says nothing.

    Raises:
        TransactionNotGiven: The call stands inside a block and says neither transaction=tx
            nor transaction=None: a forgotten argument must not commit by itself.
        InvalidInput: It is no transaction.
        TransactionMismatch: The transaction belongs to another manager.
        TransactionFinished: The transaction takes no more work.
    """
    if transaction is NOT_GIVEN:
        if bound is not None:
            bound.check_active()
            return bound
        if client.blocks:
            raise _not_given(what, client.blocks[-1])
        return None
    if transaction is None:
        return None
    assert not isinstance(transaction, NotGiven)
    if not hasattr(type(transaction), "check_active"):  # a DataFrame of Connect has any attribute
        raise InvalidInput(
            f"transaction={transaction!r}: give what manager.transaction() began, or None.",
            name="transaction",
        )
    if transaction.client is not client:
        raise TransactionMismatch(
            f"Transaction {transaction.id!r} belongs to another manager: use the queue that "
            "tx.queue(name) gives."
        )
    transaction.check_active()
    return transaction


def at_once(client: Client, what: str) -> None:
    """Check that a call which no transaction can hold back stands outside of every block.

    Raises:
        TransactionNotGiven: It stands inside a block, and would survive its roll back.
    """
    if client.blocks:
        inside = client.blocks[-1].id
        raise TransactionNotGiven(
            f"{what} inside the block of transaction {inside!r} takes effect at once, whatever "
            "becomes of the transaction: call it before or after the block.",
            transaction_id=inside,
        )


def _not_given(what: str, block: Transaction) -> TransactionNotGiven:
    remedy = "transaction=None to do it at once"
    if block.takes_work:
        remedy = f"transaction=tx to do it in that transaction, or {remedy}"
    else:
        remedy = f"{remedy}, because that transaction is {block.status.value}"
    return TransactionNotGiven(
        f"{what} inside the block of transaction {block.id!r}: say {remedy}.",
        transaction_id=block.id,
    )
