"""Run a transaction again after conflicts: fresh attempts of one id."""

from __future__ import annotations

from typing import Any

from txnqueue.closing import is_closed
from txnqueue.errors import Busy, TransactionAborted, TransactionIdReused, TransactionUnknown
from txnqueue.transaction import Transaction


class Attempt(Transaction):
    """An attempt whose block keeps a conflict to itself, so that the next one can run."""

    last = False
    failure: Exception | None = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:  # type: ignore[override]
        """End the attempt; swallow what is worth another one."""
        try:
            super().__exit__(kind, error, trace)
        except (TransactionAborted, Busy, TransactionUnknown) as failure:
            error = failure
            if self._hopeless(failure):
                raise
            self.failure = failure
            return True
        if error is None or self._hopeless(error):
            return False
        self.failure = error
        return True

    def _hopeless(self, error: BaseException) -> bool:
        """Say whether another attempt is of no use, or not allowed."""
        retryable = isinstance(error, (TransactionAborted, Busy, TransactionUnknown))
        final = isinstance(error, TransactionIdReused) or is_closed(error.__cause__)
        return self.last or not retryable or final
