"""A transaction as its users hold it: what works in it, and the block that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from txnqueue.client.client import Block, Client
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import check_flag, check_id
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    Busy,
    InvalidInput,
    OnlyRehearsed,
    TransactionAborted,
    TransactionFinished,
    TransactionIdReused,
    TransactionMismatch,
    TransactionNotGiven,
    TransactionUnknown,
)
from txnqueue.table import TableChanges
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.participants import Auxiliary
from txnqueue.types import NOT_GIVEN, Database, NotGiven, Rows, TwoPhaseDatabase

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.messages.send import SendResult
    from txnqueue.queue import Queue


class Rollback(Exception):
    """Leave a transaction's block and roll it back; the block ends without an error.

    Example::

        with manager.transaction() as tx:
            batch = orders.receive(100, transaction=tx)
            if len(batch) < 100:
                raise Rollback(reason="too few")
    """

    def __init__(
        self, transaction: Transaction | None = None, *, reason: str | None = None
    ) -> None:
        """Name the block to leave.

        Args:
            transaction: The transaction whose block is left, and those inside it with it; the
                innermost one when left out.
            reason: Why; it is recorded with the roll back.
        """
        super().__init__("Rollback was raised outside of the block of its transaction.")
        self.transaction = transaction
        self.reason = reason


DatabaseT = TypeVar("DatabaseT", bound=Database)
TwoPhaseT = TypeVar("TwoPhaseT", bound=TwoPhaseDatabase)


class Transaction:
    """Work that happens entirely and once, or not at all. Single use.

    As a block it commits on exit and rolls back on an exception::

        with manager.transaction() as tx:
            batch = orders.receive(1000, transaction=tx)
            invoices.send(price(batch.df), transaction=tx)

    ``raise Rollback()`` leaves the block and rolls back without an error. Without a block,
    ``commit()`` or ``rollback()`` ends it.
    """

    def __init__(self, attempt: Attempt) -> None:
        """Hold an attempt that has not begun; users get it from ``manager.transaction``."""
        self._attempt = attempt
        self._entered = False
        self._blocks: list[Block] = []

    @property
    def id(self) -> str:
        """The id: given, or made."""
        return self._attempt.id

    @property
    def status(self) -> Status:
        """Its status, as far as this process knows."""
        return self._attempt.status

    @property
    def receipt(self) -> Receipt | None:
        """What its commit answered; None while it is not committed."""
        return self._attempt.receipt

    @property
    def already_committed(self) -> bool:
        """Whether its id was committed before: its calls then change nothing."""
        return self._attempt.already_committed

    @property
    def lease_seconds(self) -> float | None:
        """How long what it receives is held; None: as the queue says."""
        return self._attempt.lease_seconds

    @property
    def digest(self) -> str | None:
        """What tells its work from other work under the same id."""
        return self._attempt.digest

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What its decision says besides, as it was given."""
        return self._attempt.metadata

    def queue(self, name: str) -> Queue:
        """Give a queue whose calls all work in this transaction.

        Raises:
            QueueNotFound: There is no such queue.
        """
        from txnqueue.queue import Queue  # which in turn hands out transactions, to drains

        attempt = self._attempt
        name = check_id(name, "name")
        attempt.begin()
        return Queue(attempt.client, attempt.client.cache.queue(name), attempt)

    def send(self, rows: Mapping[str, Rows]) -> dict[str, SendResult]:
        """Send to several queues in this transaction; the rows are written at the same time.

        It does what a ``Queue.send`` to each of them does, in less time. Rows that need options
        of their own, such as headers, are sent by ``Queue.send``.

        Args:
            rows: By the name of each queue its rows, as ``Queue.send`` takes them.

        Returns:
            The result for each queue.

        Raises:
            QueueNotFound: There is no such queue; nothing was sent.
            SchemaMismatch: As in ``Queue.send``, of the first queue whose rows do not fit;
                nothing was sent to any of them by this call.
            LimitExceeded: As in ``Queue.send``; nothing was sent.

        Example::

            with manager.transaction() as tx:
                batch = orders.receive(1_000, transaction=tx)
                tx.send({"invoices": price(batch.df), "audit": batch.df})
        """
        from txnqueue.sends import send_to_queues  # which hands out queues

        return send_to_queues(self._attempt, rows)

    def exchange(self, name: str) -> Exchange:
        """Give an exchange that publishes in this transaction.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        from txnqueue.exchange import open_exchange

        name = check_id(name, "name")
        self._attempt.begin()
        return open_exchange(self._attempt.client, name, self._attempt)

    def table(self, name: str, *, lineage: bool = False) -> TableChanges:
        """Give a Delta table of the user's that this transaction changes when it commits.

        Its changes are decided with the messages, and applied in commit order right after:
        by the commit itself, or by a recovery. Readers of the table may see that it
        was committed a moment later than they see the messages.

        Args:
            name: A path if it has a "/", otherwise a name of the catalog.
            lineage: Whether rows written carry the transaction's id, in a column
                ``_transaction_id`` that the table must have.

        Raises:
            InvalidInput: The transaction is one of a drain with ``ahead=1``.
        """
        self._check_decided_in_turn("table()")
        check_flag("lineage", lineage)
        return TableChanges(self._attempt, name, lineage=lineage)

    @overload
    def enlist(
        self, name: str, connection: TwoPhaseT, *, last: Literal[False] = False
    ) -> TwoPhaseT: ...
    @overload
    def enlist(self, name: str, connection: DatabaseT, *, last: bool) -> DatabaseT: ...
    def enlist(self, name: str, connection: Any, *, last: bool = False) -> Any:
        """Let a database take part: its work is committed with everything else, or not at all.

        Args:
            name: What the database is called, the same whenever it takes part; ``recover``
                asks for a connection to it by this name.
            connection: A DB-API 2.0 connection with two-phase commit (``tpc_begin`` …). Work on
                it from now on belongs to the transaction.
            last: For one database without two-phase commit: its own commit decides, by a row
                in a table ``txnqueue_decisions``.

        Returns:
            The connection.

        Raises:
            InvalidInput: It cannot take part so, or not in a drain with ``ahead=1``.
            LimitExceeded: The transaction's id is too long for a branch.
            OnlyRehearsed: It is one of a rehearsal.

        Example::

            with manager.transaction() as tx:
                batch = orders.receive(100, transaction=tx)
                billing = tx.enlist("billing", psycopg.connect(...))
                billing.cursor().execute("INSERT INTO ...")
        """
        self._check_decided_in_turn("enlist()")
        self._check_real("enlist()")
        check_flag("last", last)
        self._attempt.check_active()
        if self.already_committed:
            self._attempt.participants.ignore(connection)
        else:
            self._attempt.participants.enlist(name, connection, last=last)
        return connection

    def auxiliary(self, name: str, connection: Database) -> Auxiliary:
        """Use a database beside the transaction, in transactions that stand for themselves.

        They are committed and rolled back when the user says so; what is left open in the
        end follows the outcome.

        Args:
            name: The data source: one connection each.
            connection: A DB-API 2.0 connection.

        Raises:
            InvalidInput: The transaction is one of a drain with ``ahead=1``; or the name or the
                connection takes part already.
            OnlyRehearsed: It is one of a rehearsal.
        """
        self._check_decided_in_turn("auxiliary()")
        self._check_real("auxiliary()")
        self._attempt.check_active()
        return self._attempt.participants.auxiliary(name, connection)

    def commit(self) -> Receipt:
        """Commit everything that was done in the transaction, by one append.

        Returns:
            The receipt; under an id that was committed before, the first one.

        Raises:
            TransactionAborted: Not committed for certain: another client aborted this attempt
                after its lease, another attempt of the id was faster, or a queue is being
                dropped, which is then the error's cause.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
            LeaseLost: Messages that were held under a lease are others' now; rolled back.
            SettlementPending: Another transaction that is prepared settles messages of the
                same lease: nothing was changed; decide that one, and commit again.
            InvalidInput: It is one of a drain with ``ahead=1``, which commits it in its turn.
            OnlyRehearsed: It is one of a rehearsal.
        """
        self._check_decided_in_turn("commit()")
        self._check_real("commit()")
        return commit.commit(self._attempt)

    def prepare(self) -> None:
        """Prepare the transaction: it can be committed or rolled back from now on, by any client.

        From here on no time-out, crash or clean-up ends the transaction: only an explicit
        ``commit`` or ``rollback``, here or through the manager.

        Raises:
            TransactionAborted: As in ``commit``.
            TransactionUnknown: As in ``commit``.
            SettlementPending: As in ``commit``.
            InvalidInput: A database takes part that cannot prepare, or messages that are
                in memory only; nothing was changed. Or it is one of a drain with ``ahead=1``.
            OnlyRehearsed: It is one of a rehearsal.
        """
        self._check_decided_in_turn("prepare()")
        self._check_real("prepare()")
        commit.prepare(self._attempt)

    def rollback(self, reason: str | None = None, *, counted: bool = True) -> None:
        """Roll back; messages return to their original places.

        Messages acquired inside go back to the queue. Messages that were held under a
        lease stay with their holder, unsettled.

        Args:
            reason: Why; recorded in the journal.
            counted: Whether the messages' deliveries count; not if they were not looked at.

        Raises:
            TransactionFinished: It is committed, maybe by an interrupted commit that landed.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
        """
        check_flag("counted", counted)
        commit.rollback(self._attempt, reason, counted=counted)

    def _check_decided_in_turn(self, what: str) -> None:
        """Check that it is decided before other work begins that relies on it.

        Raises:
            InvalidInput: A drain handles the next batch before it is.
        """
        if self._attempt.ahead:
            raise InvalidInput(
                f"tx.{what} in a drain with ahead=1, where the next batch is handled before this "
                "transaction is committed, and its changes are applied: drain with ahead=0.",
                name="ahead",
            )

    def _check_real(self, what: str) -> None:
        """Check that it may have effects outside of itself.

        Raises:
            OnlyRehearsed: It is only to be seen what it would do.
        """
        if self._attempt.rehearsed:
            raise OnlyRehearsed(
                f"tx.{what} in a rehearsal, which decides nothing and holds no database: leave it "
                "out while the handler is rehearsed.",
                transaction_id=self.id,
            )

    def __enter__(self) -> Transaction:
        """Begin."""
        if self._entered:
            raise TransactionFinished("A transaction block can be used once: begin a new one.")
        self._entered = True
        self._attempt.check_active()
        self._blocks = self._attempt.client.blocks
        try:
            self._blocks.append(self._attempt)
        except BaseException:  # interrupted here, its end never comes
            if self._attempt in self._blocks:
                self._blocks.remove(self._attempt)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Commit, or roll back on an exception, which goes on unless it is this one's ``Rollback``.

        Type checkers read ``bool | None`` as a block that passes exceptions on: after a block
        that returns, they ask for no further ``return``.
        """
        attempt = self._attempt
        if attempt in self._blocks:  # first of all, and by nothing that can be interrupted
            self._blocks.remove(attempt)
        if attempt.already_committed:
            attempt.participants.undo_ignored()
        if isinstance(error, Rollback) and error.transaction in (None, self):
            self.rollback(error.reason)
            return True
        if error is None:
            if attempt.status is Status.ACTIVE:
                try:
                    self.commit()
                except Exception as failed:
                    commit.roll_back_after(attempt, failed)
                    raise
            return None
        commit.roll_back_after(attempt, error)
        return None

    def __repr__(self) -> str:
        """Show the id and the status."""
        return f"<Transaction {self.id} {self.status.value}>"


class RepeatableTransaction(Transaction):
    """A transaction whose block keeps a conflict to itself, so that it can be run again."""

    last = False
    failure: Exception | None = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        """End the attempt; swallow what is worth another one."""
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
        if error is None or self._hopeless(error):
            return False
        self.failure = error
        return True

    def _hopeless(self, error: BaseException) -> bool:
        """Return whether another attempt is of no use, or not allowed."""
        retryable = isinstance(error, (TransactionAborted, Busy, TransactionUnknown))
        final = isinstance(error, TransactionIdReused) or is_closed(error.__cause__)
        return self.last or not retryable or final


def attempt_of(transaction: Transaction) -> Attempt:
    """Give the attempt behind a transaction, for the library's own rooms."""
    return transaction._attempt


def resolve(
    client: Client,
    transaction: Transaction | Attempt | NotGiven | None,
    what: str,
    bound: Attempt | None = None,
) -> Attempt | None:
    """Find the attempt that a call works in; None: a transaction of its own.

    Args:
        client: Whose call it is.
        transaction: What the call was given.
        what: The call, for messages.
        bound: What the called object works in where the call says nothing.

    Raises:
        TransactionNotGiven: The call is inside a block and says neither transaction=tx
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
    attempt = transaction._attempt if isinstance(transaction, Transaction) else transaction
    if not isinstance(attempt, Attempt):
        raise InvalidInput(
            f"transaction={transaction!r}: give what manager.transaction() began, or None.",
            name="transaction",
        )
    if attempt.client is not client:
        raise TransactionMismatch(
            f"Transaction {attempt.id!r} belongs to another manager: use the queue that "
            "tx.queue(name) gives."
        )
    attempt.check_active()
    return attempt


def at_once(client: Client, what: str, bound: Attempt | None = None) -> None:
    """Check that a call which takes effect at once is outside of every transaction.

    Args:
        client: Whose call it is.
        what: The call, for messages.
        bound: What the called object works in.

    Raises:
        TransactionNotGiven: It is inside a block, or of an object that works in a transaction,
            and would survive its rollback.
    """
    if bound is not None:
        raise TransactionNotGiven(
            f"{what} takes effect at once, whatever becomes of transaction {bound.id!r}, in which "
            "this object works: call it of what the manager gives, outside of the transaction.",
            transaction_id=bound.id,
        )
    if client.blocks:
        inside = client.blocks[-1].id
        raise TransactionNotGiven(
            f"{what} inside the block of transaction {inside!r} takes effect at once, whatever "
            "becomes of the transaction: call it before or after the block.",
            transaction_id=inside,
        )


def _not_given(what: str, block: Block) -> TransactionNotGiven:
    remedy = "transaction=None to do it at once"
    if block.takes_work:
        remedy = f"transaction=tx to do it in that transaction, or {remedy}"
    else:
        remedy = f"{remedy}, because that transaction is {block.status.value}"
    return TransactionNotGiven(
        f"{what} inside the block of transaction {block.id!r}: say {remedy}.",
        transaction_id=block.id,
    )
