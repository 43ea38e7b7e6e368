"""The transaction as an object of the API, and as a block."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from txnqueue.client.client import Block, Client
from txnqueue.core.handlers import check_ran
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import check_flag, check_id, check_text, shown
from txnqueue.errors import (
    InvalidInput,
    OnlyRehearsed,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
    TransactionNotGiven,
)
from txnqueue.storage.journal.exceptions import met_by_handler
from txnqueue.table import TableChanges
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.auxiliary import Auxiliary
from txnqueue.types import NOT_GIVEN, Database, NotGiven, Rows, TwoPhaseDatabase

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.messages.send import SendResult
    from txnqueue.queue import Queue


class Rollback(Exception):
    """Raised in a transaction's block, rolls it back and leaves the block without an error.

    If the transaction's id was committed before, the block is only left.

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
            transaction: The transaction whose block to leave, with all blocks inside it; the
                innermost one when omitted.
            reason: Why; recorded with the rollback.

        Raises:
            InvalidInput: One of them is something else, such as a reason without ``reason=``.
        """
        super().__init__("Rollback was raised outside of the block of its transaction.")
        if transaction is not None and not isinstance(transaction, Transaction):
            raise InvalidInput(
                f"Rollback({shown(transaction)}): give the transaction whose block to leave, and "
                "the reason as reason=.",
                name="transaction",
            )
        self.transaction = transaction
        self.reason = check_text("reason", reason)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy be made without ``__init__``, which takes no message as other errors do."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


DatabaseT = TypeVar("DatabaseT", bound=Database)
TwoPhaseT = TypeVar("TwoPhaseT", bound=TwoPhaseDatabase)
GivenT = TypeVar("GivenT")


class Transaction:
    """Work that happens entirely and once, or not at all. Single use.

    As a block it commits on exit and rolls back on an exception::

        with manager.transaction() as tx:
            batch = orders.receive(1000, transaction=tx)
            invoices.send(price(batch.df), transaction=tx)

    ``raise Rollback()`` leaves the block and rolls back without an error. Outside a block,
    ``commit()`` or ``rollback()`` ends the transaction.
    """

    def __init__(self, attempt: Attempt) -> None:
        """Hold an attempt that has not begun; users get it from ``manager.transaction``."""
        self._attempt = attempt
        self._entered = False
        self._blocks: list[Block] = []

    @property
    def id(self) -> str:
        """The transaction id: as given, or generated."""
        return self._attempt.id

    @property
    def status(self) -> Status:
        """The status, as far as this process knows."""
        return self._attempt.status

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the commit; None before it."""
        return self._attempt.receipt

    @property
    def already_committed(self) -> bool:
        """Whether the id was committed before, so that calls change nothing."""
        return self._attempt.already_committed

    @property
    def lease_seconds(self) -> float | None:
        """How long received messages are held; None: each queue's setting."""
        return self._attempt.lease_seconds

    @property
    def digest(self) -> str | None:
        """What distinguishes a repetition from other work under the same id."""
        return self._attempt.digest

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata stored with the decision, as given."""
        return self._attempt.metadata

    def queue(self, name: str) -> Queue:
        """Return a queue whose calls all work in this transaction.

        Raises:
            QueueNotFound: There is no such queue.
        """
        from txnqueue.queue import Queue  # which imports this module: drains have transactions

        attempt = self._attempt
        name = check_id(name, "name")
        attempt.begin()
        return Queue(attempt.client, attempt.client.cache.queue(name), attempt)

    def send(self, rows: Mapping[str, Rows]) -> dict[str, SendResult]:
        """Send to several queues in this transaction, writing all rows at the same time.

        The result is that of a ``Queue.send`` to each queue, in less time. Rows that need options,
        such as headers, are sent by ``Queue.send``.

        Args:
            rows: The rows for each queue, by its name, as ``Queue.send`` takes them.

        Returns:
            The result for each queue.

        Raises:
            QueueNotFound: There is no such queue; nothing was sent.
            SchemaMismatch: As in ``Queue.send``, for the first queue whose rows do not fit;
                this call sent nothing to any queue.
            LimitExceeded: As in ``Queue.send``; nothing was sent.

        Example::

            with manager.transaction() as tx:
                batch = orders.receive(1_000, transaction=tx)
                tx.send({"invoices": price(batch.df), "audit": batch.df})
        """
        from txnqueue.sends import send_to_queues  # which hands out queues

        return send_to_queues(self._attempt, rows)

    def exchange(self, name: str) -> Exchange:
        """Return an exchange that publishes in this transaction.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        from txnqueue.exchange import open_exchange

        name = check_id(name, "name")
        self._attempt.begin()
        return open_exchange(self._attempt.client, name, self._attempt)

    def table(self, name: str, *, lineage: bool = False) -> TableChanges:
        """Return a Delta table of the user's that this transaction changes when it commits.

        Its changes are decided with the messages and applied in commit order right afterwards, by
        the commit itself or by a recovery. Readers of the table may see them a moment later than
        the messages.

        Args:
            name: A path if it has a "/", otherwise a catalog name, as your session understands it:
                one without schema or catalog is in those that are current there.
            lineage: Whether the rows that are written carry the transaction's id, in a column
                ``_transaction_id`` that the table must have.

        Raises:
            InvalidInput: The name is empty or no text, or the transaction belongs to a drain with
                ``ahead=1``.
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
        """Enlist a database: its work is committed with everything else, or not at all.

        Args:
            name: The database's name, the same whenever it takes part; ``recover`` asks for a
                connection to it by this name.
            connection: A DB-API 2.0 connection with two-phase commit (``tpc_begin`` …). Work on
                it from now on belongs to the transaction.
            last: Make it the last resource, the one database without two-phase commit: its own
                commit decides, by a row in a table ``txnqueue_decisions``. The connection must
                have no work open: it is refused if the driver tells of it, and otherwise may be
                rolled back, for example where that table is still missing.

        Returns:
            The connection.

        Raises:
            DatabaseUnavailable: The last resource has no table of decisions, and none can be
                created.
            InvalidInput: The database cannot take part this way, or not in a drain with
                ``ahead=1``.
            LimitExceeded: The transaction's id is too long for a branch.
            OnlyRehearsed: The transaction belongs to a rehearsal.

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
            self._attempt.participants.ignore(name, connection, last=last)
        else:
            self._attempt.participants.enlist(name, connection, last=last)
        return connection

    def auxiliary(self, name: str, connection: Database) -> Auxiliary:
        """Use a database beside the transaction, in auxiliary transactions.

        The user commits or rolls back each of them on its own; one that is still open at the end
        follows the outcome.

        Args:
            name: The data source; each has one connection.
            connection: A DB-API 2.0 connection.

        Raises:
            InvalidInput: The transaction belongs to a drain with ``ahead=1``, the name or the
                connection already takes part, or the connection is in autocommit mode.
            OnlyRehearsed: The transaction belongs to a rehearsal.
        """
        self._check_decided_in_turn("auxiliary()")
        self._check_real("auxiliary()")
        self._attempt.check_active()
        return self._attempt.participants.auxiliary(name, connection)

    def commit(self) -> Receipt:
        """Commit everything that was done in the transaction, by one append.

        Returns:
            The receipt; the first one if the id was committed before.

        Raises:
            TransactionAborted: Certainly not committed: another client aborted this attempt after
                its lease, another attempt of the id was faster, others won every conflict, or a
                queue is being dropped, which is then the error's cause.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` tells the outcome.
            TransactionFinished: It was prepared, and another client has rolled it back by its id.
            LeaseLost: Messages that were held under a lease now belong to others; rolled back.
            SettlementPending: A prepared transaction settles messages of the same lease: nothing
                was changed; decide that transaction, and commit again. At the end of a ``with``
                block this one is rolled back: decide that transaction, and run the block again.
            InvalidInput: The transaction belongs to a drain with ``ahead=1``, which commits it.
            OnlyRehearsed: The transaction belongs to a rehearsal.
        """
        self._check_decided_in_turn("commit()")
        self._check_real("commit()")
        return commit.commit(self._attempt)

    def prepare(self) -> None:
        """Prepare the transaction, so that any client can commit it or roll it back.

        From here on no time-out, crash or clean-up ends the transaction: only an explicit
        ``commit`` or ``rollback``, here or through the manager.

        Raises:
            TransactionAborted: As in ``commit``.
            TransactionUnknown: As in ``commit``.
            SettlementPending: As in ``commit``.
            InvalidInput: A database that cannot prepare, or messages that are in memory only, take
                part; nothing was changed. Or the transaction belongs to a drain with ``ahead=1``.
            OnlyRehearsed: The transaction belongs to a rehearsal.
        """
        self._check_decided_in_turn("prepare()")
        self._check_real("prepare()")
        commit.prepare(self._attempt)

    def rollback(self, reason: str | None = None, *, counted: bool = True) -> None:
        """Roll back; messages return to their original places.

        Messages received in the transaction go back to the queue. Messages that were held under a
        lease stay with their holder, unsettled.

        Args:
            reason: Why; recorded in the journal, unless the work is only staged, of which there is
                no entry.
            counted: Whether the deliveries count; pass False if the messages were not looked at.

        Raises:
            TransactionFinished: The transaction is committed, perhaps by an interrupted commit.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` tells the outcome.
            Busy: Others won every conflict; nothing was changed: call again.
        """
        check_flag("counted", counted)
        commit.rollback(self._attempt, reason, counted=counted)

    def _check_decided_in_turn(self, what: str) -> None:
        """Check that the transaction is decided before other work that relies on it begins.

        Raises:
            InvalidInput: A drain handles the next batch before the decision.
        """
        if self._attempt.ahead:
            raise InvalidInput(
                f"tx.{what} is not possible in a drain with ahead=1, which handles the next batch "
                "before this transaction is committed and its changes are applied: drain with "
                "ahead=0.",
                name="ahead",
            )

    def _check_real(self, what: str) -> None:
        """Check that the transaction may have effects outside itself.

        Raises:
            OnlyRehearsed: The transaction belongs to a rehearsal.
        """
        if self._attempt.rehearsed:
            raise OnlyRehearsed(
                f"tx.{what} is not possible in a rehearsal, which decides nothing and uses no "
                "database: skip it while the handler is rehearsed.",
                transaction_id=self.id,
            )

    def __enter__(self) -> Transaction:
        """Begin the transaction."""
        if self._entered:
            raise TransactionFinished(
                "A transaction block can be used only once: begin a new transaction.",
                transaction_id=self.id,
            )
        self._entered = True
        self._attempt.check_active()
        self._blocks = self._attempt.client.blocks
        try:
            self._blocks.append(self._attempt)
        except BaseException:  # interrupted here, the block never ends
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
        """Commit, or roll back on an exception; only this block's ``Rollback`` is swallowed.

        Type checkers read ``bool | None`` as a block that passes exceptions on: after a block
        that returns, they require no further ``return``.
        """
        attempt = self._attempt
        if attempt in self._blocks:  # first, and without anything that can be interrupted
            self._blocks.remove(attempt)
        if attempt.already_committed:
            attempt.participants.undo_ignored()
        if isinstance(error, Rollback) and error.transaction in (None, self):
            if not attempt.already_committed:  # a repeated block did nothing that could be undone
                self.rollback(error.reason)
            return True
        if error is None:
            if attempt.status is Status.ACTIVE:
                try:
                    self.commit()
                except Exception as failed:
                    commit.roll_back_after(attempt, failed)
                    raise
                except BaseException as interrupt:  # nobody else may be left to end it
                    commit.end_interrupted(attempt, interrupt, counted=True)
                    raise
            return None
        of_file = met_by_handler(attempt.client.payload.folder, error)
        if of_file is not None:
            commit.roll_back_after(attempt, of_file, counted=False)
            if of_file is not error:
                raise of_file from error
            return None
        commit.roll_back_after(attempt, error)
        return None

    def __repr__(self) -> str:
        """Show the id and the status."""
        return f"<Transaction {self.id} {self.status.value}>"


def call_handler(
    handler: Callable[[GivenT, Transaction], object], given: GivenT, transaction: Transaction
) -> None:
    """Call a handler, whose ``Rollback`` rolls its transaction back as ``tx.rollback`` does.

    Args:
        handler: ``handler(given, transaction)``.
        given: What it handles.
        transaction: Its transaction, which the caller decides unless it is rolled back already.

    Raises:
        InvalidInput: It only prepared what it would do.
        Exception: What it raised.
    """
    try:
        check_ran(handler(given, transaction))
    except Rollback as asked:
        if asked.transaction not in (None, transaction):
            raise
        transaction.rollback(asked.reason)


def rolled_back_by_handler(attempt: Attempt) -> TransactionAborted:
    """Make the error of a handler that rolled back, and did not say so by an error of its own."""
    reason = attempt.rollback_reason
    why = "" if reason is None else f" ({reason})"
    return TransactionAborted(
        f"Transaction {attempt.id!r} was rolled back by its handler{why}: nothing happened.",
        transaction_id=attempt.id,
        reason=reason,
    )


def attempt_of(transaction: Transaction) -> Attempt:
    """Return the attempt behind a transaction, for the library's own rooms."""
    return transaction._attempt


def resolve(
    client: Client,
    transaction: Transaction | Attempt | NotGiven | None,
    what: str,
    bound: Attempt | None = None,
) -> Attempt | None:
    """Find the attempt that a call works in; None: the call commits its own transaction.

    Args:
        client: The client that makes the call.
        transaction: The call's ``transaction`` argument.
        what: The call, for messages.
        bound: The attempt of the called object, used when the argument was omitted.

    Raises:
        TransactionNotGiven: The call is inside a block and gives neither transaction=tx
            nor transaction=None: a forgotten argument must not commit by itself.
        InvalidInput: The argument is no transaction.
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
            f"transaction={shown(transaction)}: give a transaction begun by manager.transaction(), "
            "or None.",
            name="transaction",
        )
    if attempt.client is not client:
        raise TransactionMismatch(
            f"Transaction {attempt.id!r} belongs to another manager: use tx.queue(name), or "
            "tx.exchange(name).",
            transaction_id=attempt.id,
        )
    attempt.check_active()
    return attempt


def at_once(client: Client, what: str, bound: Attempt | None = None) -> None:
    """Check that a call which takes effect at once is outside every transaction.

    Args:
        client: The client that makes the call.
        what: The call, for messages.
        bound: The attempt of the called object.

    Raises:
        TransactionNotGiven: The call is inside a block, or its object works in a transaction,
            and the effect would survive a rollback.
    """
    if bound is not None:
        raise TransactionNotGiven(
            f"{what} takes effect at once, even if transaction {bound.id!r} of this object is "
            "rolled back: call it on an object from the manager, outside the transaction.",
            transaction_id=bound.id,
        )
    if client.blocks:
        inside = client.blocks[-1].id
        raise TransactionNotGiven(
            f"{what} inside the block of transaction {inside!r} takes effect at once, even if the "
            "transaction is rolled back: call it before or after the block.",
            transaction_id=inside,
        )


def _not_given(what: str, block: Block) -> TransactionNotGiven:
    remedy = "transaction=None to do it at once"
    if block.takes_work:
        remedy = f"transaction=tx to do it in that transaction, or {remedy}"
    else:
        remedy = f"{remedy}, because that transaction is {block.status.value}"
    return TransactionNotGiven(
        f"{what} inside the block of transaction {block.id!r}: pass {remedy}.",
        transaction_id=block.id,
    )
