"""The processing of one message: the object that nodes work with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txnqueue.core.receipt import Status
from txnqueue.core.settings import check_flag, check_id, text_of
from txnqueue.errors import TransactionAborted, TransactionFinished, TransactionUnknown
from txnqueue.protocols.deliveries import messages_of
from txnqueue.transactions.auxiliary import Auxiliary

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.protocols.flow.message_flow import MessageFlow
    from txnqueue.table import TableChanges
    from txnqueue.transaction import Transaction
    from txnqueue.types import Message, Rows

logger = logging.getLogger("txnqueue")
LAKEHOUSE = "lakehouse"
"""The name of the data source of all Delta tables."""


class DataSourceFailed(TransactionAborted):
    """A data source could not commit its open work, so the message was rolled back."""

    name: str
    """The data source. ``transaction_id`` is empty if there is no main transaction."""


class Processing:
    """The processing of one message by the nodes of a flow.

    Attributes:
        message: The input message, with the queue's columns and ``_message``.
    """

    def __init__(
        self, flow: MessageFlow, message: Mapping[str, Any], main: Transaction | None
    ) -> None:
        """Begin the processing; called by the flow."""
        self._flow = flow
        self._main = main
        self._enlisted: dict[str, Any] = {}
        self._auxiliaries: dict[str, Auxiliary] = {}
        self._tables: Transaction | None = None
        self._ended = False
        self.message = message

    # ------------------------------------------------------------------------- messages

    def put(
        self, queue: str, rows: Sequence[Mapping[str, Any]], *, uncoordinated: bool = False
    ) -> None:
        """Write output messages.

        Args:
            queue: The queue to write to.
            rows: The messages.
            uncoordinated: Whether to write outside the main transaction: the messages are
                available at once, and no rollback removes them.
        """
        transaction = self._transaction(uncoordinated=uncoordinated)
        self._flow.manager.queue(queue).send(rows, transaction=transaction)

    def get(self, queue: str, limit: int = 1, *, uncoordinated: bool = False) -> list[Message]:
        """Take further messages.

        Args:
            queue: The queue to take from.
            limit: The maximum number.
            uncoordinated: Whether to take them outside the main transaction: they are consumed
                at once.
        """
        transaction = self._transaction(uncoordinated=uncoordinated)
        batch = self._flow.manager.queue(queue).receive(limit, transaction=transaction)
        messages = messages_of(batch, transaction)
        if transaction is None and messages:
            batch.accept(transaction=None)
        return messages

    # --------------------------------------------------------------------------- tables

    def execute(
        self,
        data_source: str,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        uncoordinated: bool = False,
    ) -> Any:
        """Execute an SQL statement on a database.

        Args:
            data_source: The data source name.
            statement: The statement.
            parameters: Its parameters, in the style of the database's driver.
            uncoordinated: Whether to use the data source's auxiliary transaction, which every
                statement uses in a flow that is not coordinated.

        Returns:
            The cursor.
        """
        self._check()
        check_flag("uncoordinated", uncoordinated)
        flow, main = self._flow, self._main
        coordinated = flow.coordinated and not uncoordinated
        source, connection = flow.source(data_source, coordinated=coordinated)
        if main is None:
            try:
                cursor = connection.cursor()
                cursor.execute(statement, parameters)
                connection.commit()
            except BaseException:
                # The connection is used for later messages, and its locks would block others.
                flow.roll_back(data_source, coordinated=coordinated)
                raise
            return cursor
        if not coordinated:
            if data_source not in self._auxiliaries:
                self._auxiliaries[data_source] = Auxiliary(data_source, connection)
            return self._auxiliaries[data_source].execute(statement, parameters)
        if data_source not in self._enlisted:
            self._enlisted[data_source] = main.enlist(data_source, connection, last=source.last)
        cursor = connection.cursor()
        cursor.execute(statement, parameters)
        return cursor

    def table(self, name: str, *, uncoordinated: bool = False) -> TableChanges | Immediate:
        """Give a Delta table to change, by ``append``, ``merge``, ``update`` and ``delete``.

        Args:
            name: As in ``Transaction.table``.
            uncoordinated: Whether to use the auxiliary transaction of the Delta tables.
        """
        self._check()
        check_flag("uncoordinated", uncoordinated)
        if self._main is None:
            return Immediate(self._flow.manager, name)
        if self._flow.coordinated and not uncoordinated:
            return self._main.table(name)
        if self._tables is None:
            self._tables = self._flow.manager.transaction()
        return self._tables.table(name)

    def commit(self, data_source: str) -> None:
        """Commit the auxiliary transaction of a data source; the next change begins another.

        The main transaction and those of other data sources are not affected. An auxiliary
        transaction of the Delta tables that is in doubt stays open: ``rollback``, or the end of
        the message, finds out its outcome or makes sure that it does not happen.

        Raises:
            Exception: The data source's error if it cannot commit; for the Delta tables, the
                errors of ``Transaction.commit``.
        """
        self._end_auxiliary(data_source, commit=True)

    def rollback(self, data_source: str) -> None:
        """Roll back the auxiliary transaction of a data source, and nothing else.

        Raises:
            TransactionFinished: A transaction of the Delta tables that was in doubt is committed.
            Exception: The data source's error if it cannot roll back.
        """
        self._end_auxiliary(data_source, commit=False)

    # ------------------------------------------------------------------------------ end

    def end(self) -> None:
        """Take no more work; called by the flow when the nodes have finished."""
        self._ended = True

    def commit_open(self) -> None:
        """Commit the open auxiliary transactions; called by the flow before the main commit.

        Raises:
            DataSourceFailed: One of them could not be committed; the remaining ones are open.
        """
        self.end()
        for name, auxiliary in self._auxiliaries.items():
            with _committing(name, self._main):
                auxiliary.commit()
        if self._tables is not None:
            with _committing(LAKEHOUSE, self._main):
                _commit(self._tables)
            self._tables = None

    def roll_back_open(self) -> None:
        """Roll back the open auxiliary transactions; called by the flow after the main one's."""
        self.end()
        for name, auxiliary in self._auxiliaries.items():
            _quietly(name, auxiliary.rollback)
        if self._tables is not None:
            _quietly(LAKEHOUSE, self._tables.rollback)
        self._flow.close()  # closing a connection releases what it holds

    def _end_auxiliary(self, data_source: str, *, commit: bool) -> None:
        self._check()
        if check_id(data_source, "data_source") == LAKEHOUSE:
            tables = self._tables
            if tables is not None:
                try:
                    _commit(tables) if commit else tables.rollback()
                finally:
                    if tables.status in (Status.COMMITTED, Status.ROLLED_BACK):
                        self._tables = None  # after an error it is still open or in doubt
            return
        self._flow.check_source(data_source)
        auxiliary = self._auxiliaries.get(data_source)
        if auxiliary is not None:
            (auxiliary.commit if commit else auxiliary.rollback)()

    def _transaction(self, *, uncoordinated: bool) -> Transaction | None:
        """Return the transaction of an operation on queues; None does it at once."""
        self._check()
        return None if check_flag("uncoordinated", uncoordinated) else self._main

    def _check(self) -> None:
        if self._ended:
            raise TransactionFinished(
                "This message has been processed: call its methods only inside the nodes."
            )


class Immediate:
    """A Delta table outside any transaction of the flow: each change commits by itself."""

    def __init__(self, manager: QueueManager, name: str) -> None:
        """Open a table for changes."""
        self._manager = manager
        self._name = name

    def append(self, rows: Rows) -> int:
        """Append rows; see ``TableChanges.append``."""
        with self._manager.transaction() as transaction:
            return transaction.table(self._name).append(rows)

    def merge(self, rows: Rows, on: Any = None, **what: Any) -> int:
        """Merge rows; see ``TableChanges.merge``."""
        with self._manager.transaction() as transaction:
            return transaction.table(self._name).merge(rows, on, **what)

    def update(self, set: Mapping[str, str], where: str) -> None:
        """Update rows; see ``TableChanges.update``."""
        with self._manager.transaction() as transaction:
            transaction.table(self._name).update(set, where)

    def delete(self, where: str) -> None:
        """Delete rows; see ``TableChanges.delete``."""
        with self._manager.transaction() as transaction:
            transaction.table(self._name).delete(where)


def committed_after_all(transaction: Transaction) -> bool:
    """Return whether a commit in doubt has happened; if not, roll it back, if that is possible."""
    try:
        transaction.rollback("in doubt")
    except TransactionFinished:
        return True
    except Exception as error:
        logger.warning("still in doubt transaction_id=%s error=%s", transaction.id, error)
    return False


@contextmanager
def _committing(data_source: str, main: Transaction | None) -> Iterator[None]:
    """Name the data source in the error of a failed commit."""
    try:
        yield
    except Exception as error:
        raise DataSourceFailed(
            f"The data source {data_source!r} could not commit, so the message was rolled back: "
            f"{text_of(error)}",
            transaction_id=main.id if main is not None else "",
            name=data_source,
        ) from error


def _commit(transaction: Transaction) -> None:
    try:
        transaction.commit()
    except TransactionUnknown:
        if not committed_after_all(transaction):
            raise


def _quietly(data_source: str, rollback: Callable[[], object]) -> None:
    try:
        rollback()
    except Exception as error:  # the error that led here takes precedence
        logger.warning("auxiliary transaction not ended name=%s error=%s", data_source, error)
