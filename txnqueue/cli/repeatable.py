"""Work of a command in one transaction, which is done once under its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from txnqueue.transaction import attempt_of

if TYPE_CHECKING:
    from txnqueue.core.receipt import Receipt
    from txnqueue.manager import QueueManager
    from txnqueue.transaction import Transaction
    from txnqueue.transactions.attempt import Attempt

Result = TypeVar("Result")


def done_once(
    manager: QueueManager,
    act: Callable[[Transaction], Result],
    transaction_id: str | None,
    what: str,
) -> tuple[Result | None, Receipt]:
    """Do work in one transaction, again after a conflict.

    Args:
        manager: Whose transaction it is.
        act: Does the work.
        transaction_id: The id, if the user gave one.
        what: Tells this work from other work under the id.

    Returns:
        The result, and the receipt. None if the id was committed by somebody else, before this
        work or while it was at it.
    """
    done: list[tuple[Attempt, Result]] = []

    def work(tx: Transaction) -> None:
        done[:] = [(attempt_of(tx), act(tx))]

    digest = None if transaction_id is None else what
    receipt = manager.run_transaction(work, transaction_id=transaction_id, digest=digest)
    if done and (done[0][0].receipt is not None or done[0][0].has_won()):
        return done[0][1], receipt
    return None, receipt
