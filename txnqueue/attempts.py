"""Attempts of one transaction: its work is run again until it is committed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from txnqueue.client.append import in_doubt
from txnqueue.client.client import Client
from txnqueue.client.runtime import Retries
from txnqueue.core import model
from txnqueue.core.handlers import check_function, check_ran
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import RetryPolicy, check_id, check_retry, text_of
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    Busy,
    InvalidInput,
    TransactionAborted,
    TransactionIdReused,
    TransactionUnknown,
)
from txnqueue.messages.takeover import RIVAL, is_taken_over
from txnqueue.transaction import Transaction, attempt_of, rolled_back_by_handler
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import resolve_doubt
from txnqueue.transactions.outcome import outcome_of

_DECIDED = frozenset({Status.COMMITTED, Status.PREPARED})


class RepeatableTransaction(Transaction):
    """A transaction whose block swallows a conflict, so that it can be run again."""

    last = False
    failure: Exception | None = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        """End the attempt; swallow an error that is worth another attempt."""
        if self._attempt in self._blocks:
            self._blocks.remove(self._attempt)
        try:
            if super().__exit__(kind, error, trace):
                return True
        except (TransactionAborted, Busy, TransactionUnknown) as failure:
            error = failure
            if self._hopeless(failure):
                raise
            self.failure = failure
            return True
        if error is None or self._hopeless(error) or self.status in _DECIDED:
            return False  # what came after the handler's own commit would not be done again
        self.failure = error
        return True

    def warn_if_lost(self) -> None:
        """Warn that nothing was committed, and that nobody tries again.

        The loop of attempts was left, as by ``return``: an error would reach nobody.
        """
        if self.failure is not None:
            warnings.warn(
                f"Transaction {self.id!r} was not committed ({text_of(self.failure)}), and could "
                "not be tried again, because its block was left by return or break: return after "
                "the loop, or use run_transaction().",
                RuntimeWarning,
                stacklevel=3,
            )

    def _hopeless(self, error: BaseException) -> bool:
        """Return whether another attempt would be useless, or is not allowed."""
        retryable = isinstance(error, (TransactionAborted, Busy, TransactionUnknown))
        final = isinstance(error, TransactionIdReused) or is_closed(error.__cause__)
        of_others = getattr(error, "transaction_id", None) != self.id
        # A call of the handler outside of the transaction, which may have happened.
        would_be_repeated = isinstance(error, TransactionUnknown) and of_others
        to_rival = is_taken_over(error, self.id) and error.reason == RIVAL
        return self.last or not retryable or final or would_be_repeated or to_rival


def attempts(
    client: Client,
    retry: RetryPolicy | None = None,
    *,
    transaction_id: str | None = None,
    digest: str | None = None,
) -> Iterator[Transaction]:
    """Yield attempts of one transaction until one is committed, as ``QueueManager.attempts`` does.

    It is handed out itself, by no other generator: only then the warning about lost work names the
    line that left the loop.

    Args:
        client: The client of the store.
        retry: How often and for how long to retry; as the client does when omitted.
        transaction_id: Names the work; generated when omitted.
        digest: Distinguishes a repetition from other work under the same id.

    Raises:
        InvalidInput: A value is invalid, or an attempt was neither entered nor decided.
        TransactionUnknown: An attempt in doubt is prepared.
    """
    runtime = client.runtime
    policy = runtime.retry if retry is None else check_retry(retry)
    key = transaction_id
    if key is None:
        key = model.generated_key(client.shard, runtime.new_id())
    tries, last = Retries(replace(runtime, retry=policy)), False
    while not last:
        look_up = transaction_id is not None or tries.failed > 0
        attempt = Attempt(client, key, digest=digest, look_up=look_up)
        attempt.begin()
        if attempt.already_committed:
            return
        tx = RepeatableTransaction(attempt)
        last = tx.last = tries.last
        try:
            yield tx
        except GeneratorExit:
            tx.warn_if_lost()
            raise
        if tx.status is Status.ACTIVE and tx.failure is None:
            tx.rollback("its block was not entered", counted=False)
            raise InvalidInput(
                "An attempt was neither entered nor decided, so it was rolled back: write "
                "'with attempt as tx:' in the loop, and do the work in that block."
            )
        if tx.status is Status.COMMITTED or tx.failure is None:
            return
        if isinstance(tx.failure, TransactionUnknown):
            status = resolve_doubt(attempt)
            if status is Status.COMMITTED:
                return
            if status is Status.PREPARED:  # it has to be decided first
                raise tx.failure
        tries.fail()
        tries.wait()


def run(
    client: Client,
    handler: Callable[[Transaction], object],
    *,
    retry: RetryPolicy | None = None,
    transaction_id: str | None = None,
    digest: str | None = None,
) -> Receipt:
    """Run a handler in attempts of one transaction until one is committed.

    Args:
        client: The client of the store.
        handler: ``handler(tx)``.
        retry: As in ``attempts``.
        transaction_id: As in ``attempts``.
        digest: As in ``attempts``.

    Returns:
        The receipt; the first one if the id was committed before.

    Raises:
        InvalidInput: A value is invalid.
        TransactionAborted: Conflicts outlasted the retries, or the handler rolled back.
        Busy: Conflicts of a call of the handler outlasted the retries.
        TransactionUnknown: It is in doubt.
    """
    check_function("handler", handler)
    key, attempt = "" if transaction_id is None else transaction_id, None
    for attempt in attempts(client, retry, transaction_id=transaction_id, digest=digest):
        key = attempt.id
        with attempt as tx:
            check_ran(handler(tx))
    if attempt is not None and attempt.receipt is not None:
        return attempt.receipt
    key = check_id(key)
    client.open()
    receipt = outcome_of(client, key).receipt
    if receipt is None and attempt is not None and attempt.status is Status.ROLLED_BACK:
        raise rolled_back_by_handler(attempt_of(attempt))
    if receipt is None:
        raise in_doubt(key or "", None, None)
    return receipt
