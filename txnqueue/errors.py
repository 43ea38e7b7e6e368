"""Every error that txnqueue raises; those of ``txnqueue.protocols`` are subclasses of them.

    TxnQueueError
    ├── PlatformMissing          pyspark, delta-spark or Java is missing
    ├── StoreError
    │   ├── StoreNotFound        no store at this root
    │   ├── StoreCorrupt         the stored data contradicts itself
    │   │   └── StoreSetBack     the journal was set back to an older state
    │   ├── StoreBusy            another process holds the store's lock
    │   │   └── SecondDriver     another driver uses storage that supports only one
    │   ├── StatementRefused     Spark could not parse a statement of the library
    │   ├── LayoutUnsupported    the store has a layout that this version does not support
    │   ├── OnlyLooking          a store opened by ``look()`` is read-only
    │   └── FilesNotReadable     the tables' files cannot be read without Spark
    ├── InvalidInput             a value, name or option that cannot be used
    │   ├── InvalidName
    │   ├── SchemaMismatch
    │   ├── LimitExceeded
    │   └── TableNotFound        no Delta table with that name
    ├── QueueError
    │   ├── QueueNotFound
    │   ├── QueueExists
    │   ├── QueueInUse           another queue needs it
    │   ├── QueueClosed          the queue is being dropped
    │   ├── ExchangeNotFound
    │   ├── ExchangeExists
    │   ├── ExchangeClosed       the exchange is being dropped
    │   └── Unroutable           the exchange refuses messages that no binding matches
    ├── TransactionError
    │   ├── TransactionAborted   certainly not committed
    │   │   └── TransactionIdReused
    │   ├── TransactionUnknown   in doubt; ``manager.outcome(id)`` answers
    │   ├── TransactionFinished  the transaction takes no more work
    │   ├── OnlyRehearsed        a rehearsal cannot do this without really doing it
    │   ├── TransactionNotGiven  a call inside a block left out ``transaction=``
    │   ├── TransactionMismatch  batch of another transaction, or transaction of another manager
    │   ├── TransactionNotFound  nothing is recorded under this id
    │   ├── TransactionNotPrepared  only prepared transactions can be decided by id
    │   ├── DecidedByDatabase    an enlisted database decides it
    │   ├── DatabaseUnavailable  an enlisted database cannot be asked
    │   ├── HeuristicNotFound    no operator's decision is recorded
    │   ├── SettlementPending    a prepared transaction settles these messages
    │   ├── BranchNotFound       no such branch, or it is completed
    │   ├── BranchExists         the branch was already started
    │   ├── BranchMisused        not allowed in this state of the branch
    │   └── NotPermitted         the branch is restricted to others
    ├── LeaseLost                another consumer may have these messages now
    ├── AlreadySettled           a message can be settled only once
    ├── ChangeWaiting            a decided table change cannot be applied yet
    ├── ChangeNotFound           no table change with this id is waiting
    ├── PayloadRemoved           the payload is past its retention, or was erased
    ├── NotErasable              messages are in use and cannot be erased yet
    ├── HistoryRemoved           the history begins after the requested commit
    ├── HandlerFailed            a drain's handler failed too often, or the job is at fault
    └── Busy                     conflicts outlasted the retries; nothing changed but ``done``

A class's docstring is its default message: it says what happened and what to do next.
The attributes hold the details that a program needs; the Delta or Spark error is the
``__cause__``.

A class takes its declared attributes as keywords, as a dataclass does, and type checkers verify
every ``raise``: an attribute without a default is on every error of the class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from txnqueue.core.receipt import Receipt
    from txnqueue.results import DrainResult
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        """Return the class unchanged: the decorator informs type checkers only."""
        return lambda cls: cls


def _attribute(*, default: Any, kw_only: bool) -> Any:  # noqa: ARG001 - for type checkers
    """Declare an attribute, and whether it is keyword-only."""
    return default


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(_attribute,))
class _Declared(Exception):
    """An error with the attributes that its class declares."""

    def __init__(self, message: str = "", **details: object) -> None:
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        super().__init__(self.message)


class TxnQueueError(_Declared):
    """Something went wrong in txnqueue; see the error that caused this one."""

    message: str = _attribute(default="", kw_only=False)
    """What happened and what to do; the class's docstring when left out."""
    done: int = 0
    """How many messages the call had already purged or moved when it failed; these stay so."""


class PlatformMissing(TxnQueueError):
    """Spark with Delta is missing: pip install 'txnqueue[spark]', then run txnqueue doctor."""

    missing: str | None = None
    """The missing Python package."""


class StoreError(TxnQueueError):
    """The store cannot be used; the message says why."""


class StoreNotFound(StoreError):
    """There is no store at this root: check the path; create_queue makes a new store."""

    root: str


class StoreCorrupt(StoreError):
    """The stored data contradicts itself: stop writing to the store and keep it as it is."""


class StoreSetBack(StoreCorrupt):
    """The journal was set back to an older state: stop its drivers, and restore what is missing."""

    root: str
    version: int
    """The version of the journal's table that shows it."""
    operation: str | None = None
    """Delta's name of the operation that set the journal back; None if no Delta commit did."""


class StoreBusy(StoreError):
    """Another process held the store's lock for too long: see ``owner``, then try again."""

    owner: Mapping[str, Any] | None
    """The processes that hold the lock; None if they have just released it."""


class SecondDriver(StoreBusy):
    """Another driver uses this store, whose storage supports only one: let that one end first."""

    driver: str | None
    """The other driver: the id of its Spark application, and where it runs."""
    setting: str
    """Spark's setting for a log store that supports several drivers."""


class StatementRefused(StoreError):
    """Spark could not parse a statement of the library; nothing was changed: see the cause."""


class LayoutUnsupported(StoreError):
    """The store has a layout that this version does not support: use a version that does."""

    layout: int | None
    """The layout with which the store was written."""


class OnlyLooking(StoreError):
    """A store opened by look() is read-only: use QueueManager with Spark to write."""


class FilesNotReadable(StoreError):
    """The files of the store's tables cannot be read without Spark: use QueueManager."""

    path: str | None = None
    """The path of the files."""
    feature: str | None = None
    """The feature of the tables that only Spark can read."""


class InvalidInput(TxnQueueError, ValueError):
    """A value cannot be used; nothing was changed."""

    name: str | None = None
    """The argument, setting or key that cannot be used, or the invalid name itself."""
    source: str | None = None
    """Where the setting comes from."""
    column: str | None = None
    table: str | None = None
    constraint: str | None = None
    """The table's constraint that rows would break."""
    keys: Mapping[str, object] | None = None
    """The key that several rows share, by column."""
    in_rows: bool = False
    """Whether values in the rows are at fault, and not their columns or the call."""


class InvalidName(InvalidInput):
    """A name is 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter."""


class SchemaMismatch(InvalidInput):
    """The rows do not fit the queue's schema; nothing was staged."""

    queues: Sequence[str] = ()
    """The queues to which columns must be added first."""


class LimitExceeded(InvalidInput):
    """A limit was exceeded, and nothing was changed: see docs/limits.md for all limits."""


class TableNotFound(InvalidInput):
    """There is no Delta table with that name: create it before a transaction changes it."""


class QueueError(TxnQueueError):
    """The queue cannot do that; the message says why."""


class QueueNotFound(QueueError):
    """There is no such queue: manager.list_queues() names them; create_queue makes one."""

    name: str
    queue_id: str | None = None


class QueueExists(QueueError):
    """There is already a queue with that name: pass exist_ok=True to use it as it is."""

    name: str


class QueueInUse(QueueError):
    """Another queue uses this one for its dead letters: drop that one first."""

    name: str
    used_by: str
    """The queue that needs it."""


class QueueClosed(QueueError):
    """The queue is being dropped and takes no more work; drop_queue says what holds it back."""

    name: str
    queue_id: str | None = None


class ExchangeNotFound(QueueError):
    """There is no such exchange: manager.list_exchanges() names them; create_exchange makes one."""

    name: str
    exchange_id: str | None = None


class ExchangeExists(QueueError):
    """There is already an exchange with that name: pass exist_ok=True to use it as it is."""

    name: str


class ExchangeClosed(QueueError):
    """The exchange is being dropped; drop_exchange says what holds it back."""

    name: str
    exchange_id: str | None = None


class Unroutable(QueueError):
    """No binding matches some of the messages, and the exchange refuses them; nothing was sent."""

    name: str
    """The exchange."""


class TransactionError(TxnQueueError):
    """The transaction cannot do that; the message says why."""


class TransactionAborted(TransactionError):
    """The transaction was not committed; run it again as a fresh attempt."""

    transaction_id: str = ""
    """The transaction; empty if a handler raised the error and named none."""
    reason: str | None = None
    receipt: Receipt | None = None
    """The receipt of another attempt with the same id that committed first."""


class TransactionIdReused(TransactionAborted):
    """This transaction id was committed for other work: use a new id for new work."""

    digest: str | None
    """The digest of the work that was committed under this id; None if it has none."""


class TransactionUnknown(TransactionError):
    """The outcome is in doubt: ask manager.outcome(transaction_id) before trying again."""

    transaction_id: str
    attempt: str | None = None
    """The attempt; ``outcome`` and ``rollback`` take it beside the id."""
    last_error: BaseException | None = None


class TransactionFinished(TransactionError):
    """The transaction takes no more work: begin a new one."""

    transaction_id: str | None = None


class OnlyRehearsed(TransactionError):
    """A rehearsal decides and writes nothing: do this in a real transaction."""

    transaction_id: str | None = None


class TransactionNotGiven(TransactionError):
    """Inside a transaction block, pass transaction=tx, or transaction=None to stay outside."""

    transaction_id: str | None = None
    """The transaction of the block."""


class TransactionMismatch(TransactionError):
    """The object belongs to another transaction: use it in the one that it came from."""

    transaction_id: str | None = None


class TransactionNotFound(TransactionError):
    """No transaction is recorded under this id: check it; recover() lists those that wait."""

    transaction_id: str | None = None


class TransactionNotPrepared(TransactionError):
    """Only a prepared transaction can be decided by its id: recover() lists those that can."""

    transaction_id: str


class DecidedByDatabase(TransactionError):
    """An enlisted database decides this transaction: call recover({name: connection}) to ask it."""

    transaction_id: str
    database: str
    """The name under which the database was enlisted with ``last=True``."""


class DatabaseUnavailable(TransactionError):
    """An enlisted database could not be asked: see the cause, then call recover() again."""


class HeuristicNotFound(TransactionError):
    """No operator's decision on this transaction is recorded: see recover().heuristic."""

    transaction_id: str


class SettlementPending(TransactionError):
    """A prepared transaction settles these messages: commit it or roll it back first."""

    transaction_id: str | None = None
    """The prepared transaction."""


class BranchNotFound(TransactionError):
    """There is no such branch, or it is completed: recover() lists those that wait."""

    transaction_id: str


class BranchExists(TransactionError):
    """The branch was already started: join it, or use a new xid for new work."""

    transaction_id: str


class BranchMisused(TransactionError):
    """The branch does not allow this in its current state; nothing was changed: see the message."""

    transaction_id: str | None = None


class NotPermitted(TransactionError):
    """The branch is restricted to other principals; nothing was changed: use one of them."""

    transaction_id: str


class LeaseLost(TxnQueueError):
    """The lease was lost and others may have the messages now; nothing was changed."""

    consumer: str | None = None
    """The consumer id that held the lease."""
    queue: str | None = None
    claim: tuple[int, int] | None = None
    """The claim's lane and its sequence number in that lane."""


class AlreadySettled(TxnQueueError):
    """The messages are already settled, which is possible only once: receive again for more."""


class ChangeWaiting(TxnQueueError):
    """A decided change of a table cannot be applied: recover() lists it, and what to do."""

    change_id: str


class ChangeNotFound(TxnQueueError):
    """No table change with this id is waiting: recover().waiting lists those that are."""

    change_id: str


class PayloadRemoved(TxnQueueError):
    """The payload was removed after its retention (payload_retention_days), or was erased.

    history.changes() shows who erased what, and why.
    """

    queue: str | None = None
    name: str | None = None
    send_id: str | None = None


class NotErasable(TxnQueueError):
    """Some of the messages are in use: erase again when they are consumed; nothing was erased.

    If messages were claimed, or a queue was dropped, while others were being purged, the message
    says how many were purged.
    """

    queue: str
    """The queue in which the messages are in use."""
    in_flight: int = 0
    """The number in flight; 0 if the messages are needed to detect duplicates, or the queue is
    being dropped."""
    purged: int = 0
    """The number purged before the erasure was refused; their payload still exists."""


class HistoryRemoved(TxnQueueError):
    """That part of the history was removed: history.horizon() is the oldest known commit."""

    commit_seq: int
    """The oldest commit that is still known."""


class HandlerFailed(TxnQueueError):
    """The handler failed too often in a row, or the job itself is at fault: see the cause."""

    result: DrainResult
    """The result of the drain up to the failure."""


class Busy(TxnQueueError):
    """Concurrent writers won every retry; nothing was changed: try again later."""

    operation: str | None = None
    queue: str | None = None
    tries: int = 0
