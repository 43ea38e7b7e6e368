"""Results of calls on a queue and on the store."""

from __future__ import annotations

from dataclasses import dataclass

from txnqueue.core.markup import Facts
from txnqueue.core.receipt import Receipt, Status


@dataclass(frozen=True, slots=True)
class DrainResult(Facts):
    """The result of a drain.

    Attributes:
        run_id: The run; repeat it with the same id to go on.
        batches: The number of batches committed.
        messages: The number of messages in them.
        errors: How often the handler raised an error. Its own rollbacks are not counted, but end
            the drain too after ``errors_max`` failures in a row.
        finished: Whether everything that was to be consumed has been; messages that their sender
            delayed, and that are not due yet, do not count.
        already_finished: Whether an earlier drain under this id had finished.
        last_error: The handler's last error.
        applied: Whether all table changes of its batches are applied; if not, ``recover``
            finishes them, and the run must not be repeated for that.
        stopped: Whether it was asked to stop.
        dead_lettered: How many messages it found whose deliveries were used up: they are dead
            letters now. What the handler rejects is not among them.
    """

    run_id: str
    batches: int = 0
    messages: int = 0
    errors: int = 0
    finished: bool = False
    already_finished: bool = False
    last_error: Exception | None = None
    applied: bool = True
    stopped: bool = False
    dead_lettered: int = 0

    @property
    def failed(self) -> bool:
        """Whether it must not pass for a success: it only failed, or made dead letters."""
        return self.dead_lettered > 0 or (self.last_error is not None and not self.batches)


@dataclass(frozen=True, slots=True)
class Outcome(Facts):
    """The outcome of a transaction.

    Attributes:
        transaction_id: The transaction's id.
        status: committed, rolled_back, prepared, active (a branch that is started), or
            undecided: one that left no entry is undecided too, and its messages return when
            its leases end. unknown: its decision may have been removed from the history; the
            reason says from where on that is known.
        receipt: The commit.
        reason: Why it was rolled back, or may be unknown.
        attempts: How many attempts the journal knows.
        heuristic: Whether an operator decided it, and ``forget`` was not called since.
    """

    transaction_id: str
    status: Status
    receipt: Receipt | None = None
    reason: str | None = None
    attempts: int = 0
    heuristic: bool = False
