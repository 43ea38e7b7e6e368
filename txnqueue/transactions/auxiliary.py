"""Auxiliary databases of a transaction, whose work is committed on its own."""

from __future__ import annotations

from typing import Any

from txnqueue.core.settings import check_flag
from txnqueue.errors import TransactionFinished
from txnqueue.transactions.connections import (
    begin,
    check_connection,
    check_idle,
    check_transactional,
    commit_unless_failed,
)


class Auxiliary:
    """A connection with separate transactions; one that is left open follows the outcome.

    It has the connection's ``cursor``, ``commit`` and ``rollback``; after a commit or rollback,
    the next transaction begins on the same connection.
    """

    def __init__(self, name: str, connection: Any) -> None:
        """Wrap a connection.

        Raises:
            InvalidInput: It is no connection, is in autocommit mode, so that no rollback would undo
                its work, or has other work open, which would follow this outcome.
        """
        check_connection(name, connection)
        check_transactional(name, connection)
        check_idle(name, connection)
        self.name = name
        self.connection = connection
        self._ended = self._resolved = False

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Open a cursor of the connection.

        Raises:
            TransactionFinished: The transaction that the connection belongs to has ended.
        """
        self._check()
        begin(self.connection)
        return self.connection.cursor(*args, **kwargs)

    def execute(self, statement: str, *args: Any) -> Any:
        """Execute a statement on a new cursor, and return the cursor."""
        cursor = self.cursor()
        cursor.execute(statement, *args)
        return cursor

    def commit(self) -> None:
        """Commit the work since the last commit or rollback, whatever the transaction's outcome.

        Raises:
            Exception: The database's error; in PostgreSQL also if an earlier statement has failed,
                which rolls back the others.
        """
        self._check()
        commit_unless_failed(self.connection)

    def rollback(self) -> None:
        """Roll back the work since the last commit or rollback."""
        self._check()
        self.connection.rollback()

    def end(self, *, commit: bool) -> None:
        """Commit or roll back the work left open, by the outcome; repeating it does nothing."""
        check_flag("commit", commit)
        if not self._resolved:
            self._ended = True
            if commit:
                commit_unless_failed(self.connection)
            else:
                self.connection.rollback()
            self._resolved = True

    def _check(self) -> None:
        if self._ended:
            raise TransactionFinished(
                f"The transaction of {self.name!r} has ended: begin a new one, and use the "
                "database in it."
            )
