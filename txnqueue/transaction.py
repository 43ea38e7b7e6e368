"""A transaction: what works in it, and the block that ends it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from txnqueue.changes import TableChanges
from txnqueue.closing import is_closed
from txnqueue.config import check_known_as, reason_of
from txnqueue.contents import Contents
from txnqueue.deciding import Receipt, StagedSend, Status
from txnqueue.ending import Ending
from txnqueue.errors import TransactionAborted, TransactionFinished
from txnqueue.participants import Auxiliary
from txnqueue.types import Database, TwoPhaseDatabase

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")
DatabaseT = TypeVar("DatabaseT", bound=Database)
TwoPhaseT = TypeVar("TwoPhaseT", bound=TwoPhaseDatabase)


class Transaction(Ending):
    """Work that happens entirely and once, or not at all. Single use.

    As a block it commits on exit and rolls back on an exception::

        with manager.transaction() as tx:
            batch = orders.receive(1000, transaction=tx)
            invoices.send(price(batch.df), transaction=tx)

    Without a block, ``commit()`` or ``rollback()`` ends it.
    """

    takes_transient = True
    """Whether it may send and receive messages that are in memory only."""
    keeps = True
    """Whether its commit may leave what it received under a lease of its own client."""

    def queue(self, name: str) -> Queue:
        """Give a queue whose calls all work in this transaction.

        Raises:
            QueueNotFound: There is no such queue.
        """
        check_known_as(name, "name")
        self.begin()
        return self.client.make_queue(self.client.queue(name), self)

    def exchange(self, name: str) -> Exchange:
        """Give an exchange that publishes in this transaction.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        check_known_as(name, "name")
        self.begin()
        return self.client.make_exchange(name, self)

    def table(self, name: str, *, lineage: bool = False) -> TableChanges:
        """Give a Delta table of the user's that this transaction changes when it commits.

        Its changes are decided with the messages, and applied in commit order right after:
        by the commit itself, or by whoever recovers. Readers of the table may see that it
        was committed a moment later than they see the messages.

        Args:
            name: A path if it has a "/", otherwise a name of the catalog.
            lineage: Whether rows written carry the transaction's id, in a column
                ``_transaction_id`` that the table must have.
        """
        return TableChanges(self, name, lineage)

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
            InvalidInput: It cannot take part so.
            LimitExceeded: The transaction's id is too long for a branch.

        Example::

            with manager.transaction() as tx:
                batch = orders.receive(100, transaction=tx)
                billing = tx.enlist("billing", psycopg.connect(...))
                billing.cursor().execute("INSERT INTO ...")
        """
        self.check_active()
        if self.already_committed:
            self._participants.ignore(connection)
        else:
            self._participants.enlist(name, connection, last)
        return connection

    def auxiliary(self, name: str, connection: Database) -> Auxiliary:
        """Use a database beside the transaction, in transactions that stand for themselves.

        They are committed and rolled back when the user says so; what is left open in the
        end follows the outcome.

        Args:
            name: The data source: one connection each.
            connection: A DB-API 2.0 connection.
        """
        self.check_active()
        return self._participants.auxiliary(name, connection)

    def __enter__(self) -> Transaction:
        """Begin."""
        if self._entered:
            raise TransactionFinished("A transaction block can be used once: begin a new one.")
        self._entered = True
        self.check_active()
        self.client.blocks.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back on an exception, which goes on."""
        self.client.blocks.remove(self)
        if self.already_committed:
            self._participants.undo_ignored()
        if error is None:
            if self.status is Status.ACTIVE:
                try:
                    self.commit()
                except Exception as failed:
                    self.roll_back_after(failed)
                    raise
            return
        self.roll_back_after(error)

    def __repr__(self) -> str:
        """Show the id and the status."""
        return f"<Transaction {self.id} {self.status.value}>"

    # ------------------------------------------------------- for queues, batches, drains

    @property
    def staged(self) -> list[StagedSend]:
        """What it has staged, in the order of the sends."""
        return list(self._work.sends)

    @property
    def slice(self) -> int:
        """The slice that its payload is staged into."""
        return self.client.slice_of(self._begun)

    @property
    def takes_work(self) -> bool:
        """Whether it is neither decided nor about to be."""
        return self.status in (Status.NOT_STARTED, Status.ACTIVE) and not self.interrupted

    def check_active(self) -> None:
        """Check that it takes more work.

        Raises:
            TransactionFinished: It is decided, prepared, in doubt, or about to be decided: what
                an interrupted commit has named can still land, and nothing else with it.
        """
        self.begin()
        if self.interrupted:
            raise TransactionFinished(
                f"Transaction {self.id!r} was about to be decided and takes no more work: commit "
                "it again, or roll it back."
            )
        if self.status is not Status.ACTIVE and not self.already_committed:
            raise TransactionFinished(
                f"Transaction {self.id!r} is {self.status.value} and takes no more work: begin a "
                "new one."
            )

    def add_send(self, send: StagedSend) -> None:
        """Take note of staged rows."""
        self._work.sends.append(send)
        if send.info.transient:
            self._transient.begin(self.owner)

    def claiming(self, *, transient: bool = False) -> None:
        """Take note that a claim is about to be appended: a rollback must say so from now on."""
        if transient:
            self._transient.begin(self.owner)
            self._transient.claimed = True
        else:
            self._claiming = True

    def add_batch(self, batch: Contents) -> None:
        """Take note of messages acquired inside."""
        self._work.batches.append(batch)

    def roll_back_after(self, error: BaseException, *, counted: bool = True) -> None:
        """Roll back if nothing is decided yet; the error that led here is the one to see."""
        if self.status is not Status.ACTIVE:
            return
        try:
            self.rollback(reason=reason_of(error), counted=counted)
        except Exception as failed:
            logger.warning("rollback failed transaction_id=%s error=%s", self.id, failed)

    def adopt(self, batch: Contents) -> None:
        """Take note of a batch held under a lease that is settled in this transaction."""
        if batch not in self._work.batches:
            self._work.batches.append(batch)
        if any(one.info.transient for one in batch.claims):
            self._transient.begin(self.owner)


def commit_alone(tx: Transaction) -> Receipt:
    """Commit a call's own transaction; what closed under it is the call's own error."""
    try:
        return tx.commit()
    except TransactionAborted as error:
        if error.__cause__ is not None and is_closed(error.__cause__):
            raise error.__cause__ from None
        raise
