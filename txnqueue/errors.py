"""Every error that txnqueue raises.

    TxnQueueError
    ├── PlatformMissing          pyspark, delta-spark or Java is not there
    ├── StoreError
    │   ├── StoreNotFound        no store at this root
    │   ├── StoreCorrupt         what is stored contradicts itself
    │   ├── StoreBusy            somebody else holds the store's lock
    │   └── LayoutUnsupported    the store was written by another layout
    ├── InvalidInput             a value, name or option that cannot be used
    │   ├── InvalidName
    │   ├── SchemaMismatch
    │   ├── LimitExceeded
    │   └── TableNotFound        no Delta table of that name
    ├── QueueError
    │   ├── QueueNotFound
    │   ├── QueueExists
    │   ├── QueueInUse           another queue needs it
    │   ├── QueueClosed          the queue is being dropped
    │   ├── ExchangeNotFound
    │   ├── ExchangeExists
    │   └── Unroutable           the exchange refuses what no binding wants
    ├── TransactionError
    │   ├── TransactionAborted   surely not committed
    │   │   └── TransactionIdReused
    │   ├── TransactionUnknown   in doubt; ``manager.outcome(id)`` answers
    │   ├── TransactionFinished  the transaction takes no more work
    │   ├── TransactionNotGiven  a call inside a block forgot ``transaction=``
    │   ├── TransactionMismatch  a batch of another transaction
    │   │   └── TransactionNotFound  the journal says nothing of this id
    │   ├── BranchNotFound       no such branch, or it is completed
    │   ├── BranchExists         the branch was started before
    │   ├── BranchMisused        not in this state of the branch
    │   └── NotPermitted         the branch is restricted to others
    ├── LeaseLost                somebody else may have these messages now
    ├── AlreadySettled           a message is settled once
    ├── ChangeWaiting            a decided table change cannot be applied yet
    ├── PayloadRemoved           the payload is past its retention
    ├── HistoryRemoved           what is asked for lies before the history's beginning
    ├── HandlerFailed            a drain's handler failed too often, or by a mistake of the job
    └── Busy                     conflicts outlasted the retries; nothing changed

A class's docstring is its default message: it says what happened and what to do next.
What a program needs is in attributes; the Delta or Spark error is the ``__cause__``.
"""

from __future__ import annotations

import inspect


class TxnQueueError(Exception):
    """Something went wrong in txnqueue; see the error that caused this one."""

    def __init__(self, message: str | None = None, **details: object) -> None:
        """Make the error.

        Args:
            message: What happened and what to do; the class's docstring when left out.
            **details: What a program may want to read; each becomes an attribute.
        """
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class PlatformMissing(TxnQueueError):
    """Spark with Delta is not there: pip install 'txnqueue[spark]', then txnqueue doctor."""


class StoreError(TxnQueueError):
    """The store cannot be used; the message says why."""


class StoreNotFound(StoreError):
    """There is no store at this root: check the path; create_queue makes a new store."""


class StoreCorrupt(StoreError):
    """What is stored contradicts itself: stop writing to the store and keep it as it is."""


class StoreBusy(StoreError):
    """Another process held the store's lock for too long: see which one, then try again."""


class LayoutUnsupported(StoreError):
    """The store was written by another layout of txnqueue: use the version that wrote it."""


class InvalidInput(TxnQueueError, ValueError):
    """A value cannot be used; nothing was changed."""

    in_rows: bool = False
    """Whether it is a value of some rows, and not how they or the call are made."""


class InvalidName(InvalidInput):
    """A name is 1 to 100 letters, digits, '.', '_' or '-', and starts with a letter."""


class SchemaMismatch(InvalidInput):
    """The rows do not fit the queue's schema; nothing was staged."""


class LimitExceeded(InvalidInput):
    """A limit was exceeded; docs/limits.md lists them all; nothing was changed."""


class TableNotFound(InvalidInput):
    """There is no Delta table of that name: create it before a transaction changes it."""


class QueueError(TxnQueueError):
    """The queue cannot do that; the message says why."""


class QueueNotFound(QueueError):
    """There is no such queue: manager.list_queues() names them; create_queue makes one."""


class QueueExists(QueueError):
    """There is a queue of that name already: pass exist_ok=True to use it as it is."""


class QueueInUse(QueueError):
    """Another queue uses this one for its dead letters: drop that one first."""


class QueueClosed(QueueError):
    """The queue is being dropped and takes no more work; drop_queue says what holds it back."""


class ExchangeNotFound(QueueError):
    """There is no such exchange: manager.list_exchanges() names them; create_exchange makes one."""


class ExchangeExists(QueueError):
    """There is an exchange of that name already: pass exist_ok=True to use it as it is."""


class Unroutable(QueueError):
    """No binding wants some of the messages, and the exchange refuses them; nothing was sent."""


class TransactionError(TxnQueueError):
    """The transaction cannot do that; the message says why."""


class TransactionAborted(TransactionError):
    """The transaction was surely not committed; run it again as a fresh attempt."""


class TransactionIdReused(TransactionAborted):
    """This transaction id was committed with another digest: use a new id for new work."""


class TransactionUnknown(TransactionError):
    """The outcome is in doubt: ask manager.outcome(transaction_id) before trying again."""


class TransactionFinished(TransactionError):
    """The transaction takes no more work: begin a new one."""


class TransactionNotGiven(TransactionError):
    """Inside a transaction block say transaction=tx, or transaction=None to stay outside."""


class TransactionMismatch(TransactionError):
    """The batch belongs to another transaction: settle it in the one that received it."""


class TransactionNotFound(TransactionMismatch):
    """The journal says nothing of a transaction of this id: recover() lists those that wait."""


class BranchNotFound(TransactionError):
    """There is no such branch, or it is completed: recover() lists those that wait."""


class BranchExists(TransactionError):
    """The branch was started before: join it, or use a new xid for new work."""


class BranchMisused(TransactionError):
    """The branch does not allow that in its state; nothing was changed."""


class NotPermitted(TransactionError):
    """The branch is restricted to other principals; nothing was changed."""


class LeaseLost(TxnQueueError):
    """The lease was lost and others may have the messages now; nothing was changed."""


class AlreadySettled(TxnQueueError):
    """The messages are settled already; a message is settled once."""


class ChangeWaiting(TxnQueueError):
    """A decided change of a table cannot be applied: recover() lists it, and what to do."""


class PayloadRemoved(TxnQueueError):
    """The messages' payload is past its retention and was removed."""


class HistoryRemoved(TxnQueueError):
    """That was removed from the history: history.horizon() tells what can still be asked for."""


class HandlerFailed(TxnQueueError):
    """The handler failed too often in a row, or by a mistake of the job: see this one's cause."""


class Busy(TxnQueueError):
    """Others were faster at every try; nothing was changed; try again later."""
