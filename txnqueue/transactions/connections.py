"""Connections to databases: what they tell of their work, and how it begins and ends.

They are of Python's DB-API 2.0 (PEP 249); what it leaves open differs by driver.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput

logger = logging.getLogger("txnqueue")

_FAILED = 3
_AT_WORK = (1, 2, _FAILED)
"""What psycopg says of a connection with a transaction open: active, open, or failed."""
_MARK = "SAVEPOINT txnqueue"
_RELEASE = "RELEASE SAVEPOINT txnqueue"


def check_connection(name: str, connection: object) -> None:
    """Check that something is a connection to a database.

    Args:
        name: The database's name.
        connection: The connection.

    Raises:
        InvalidInput: It lacks a method of DB-API 2.0, or is asynchronous.
    """
    needed = ("cursor", "commit", "rollback")
    for method in needed:
        if not callable(getattr(connection, method, None)):
            raise InvalidInput(
                f"connection={shown(connection)} of {name!r} has no {method}(): give an open "
                "DB-API 2.0 connection.",
                name="connection",
            )
    check_waits(name, connection, needed)


def check_waits(name: str, connection: object, methods: Sequence[str]) -> None:
    """Check that a connection's methods have done what they should when they return.

    Raises:
        InvalidInput: They return coroutines.
    """
    if any(inspect.iscoroutinefunction(getattr(connection, method)) for method in methods):
        raise InvalidInput(
            f"connection={shown(connection)} of {name!r} is asynchronous: nobody would wait for "
            "what it does. Give a connection of the driver's other kind, such as "
            "psycopg.Connection.",
            name="connection",
        )


def check_idle(name: str, connection: object) -> None:
    """Check that a connection has no work open, as far as it tells.

    Args:
        name: The database's name.
        connection: The connection.

    Raises:
        InvalidInput: It has some, which would share the fate of what comes.
    """
    begun = getattr(connection, "in_transaction", False) is True
    if (begun and not is_always_inside(connection)) or _status(connection) in _AT_WORK:
        raise InvalidInput(
            f"The connection of {name!r} has an open transaction: commit it or roll it back first.",
            name=name,
        )


def has_failed(connection: object) -> bool:
    """Return whether a connection says that its work can only be rolled back."""
    return _status(connection) == _FAILED


def check_transactional(name: str, connection: object) -> None:
    """Check that a connection's work waits for its commit.

    Raises:
        InvalidInput: The connection is in autocommit mode.
    """
    tells = getattr(connection, "get_autocommit", None)  # where "autocommit" is what sets it
    says = bool(tells()) if callable(tells) else getattr(connection, "autocommit", None)
    by_itself = says is True
    if not isinstance(says, bool):  # sqlite3; to others, no level means that of the server
        by_itself = getattr(connection, "isolation_level", "") is None
    if by_itself:
        raise InvalidInput(f"The connection of {name!r} has autocommit on: turn it off.", name=name)


def _status(connection: object) -> int:
    """Return what psycopg says of a connection's transaction; 0, as if there were none, for others.

    PostgreSQL carries out a COMMIT or PREPARE TRANSACTION of one that has failed as a rollback, and
    the driver raises nothing.
    """
    status: int = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return status


def commit_unless_failed(connection: Any) -> None:
    """Commit; if the transaction has failed, roll it back and raise the database's error."""
    if has_failed(connection):
        try:
            execute(connection, "SELECT 1")  # refused, with the reason
        finally:
            connection.rollback()
    connection.commit()


def is_always_inside(connection: object) -> bool:
    """Return whether a connection is in a transaction at any time, and does not say in which.

    That of sqlite3 is with ``autocommit=False``.
    """
    return getattr(connection, "autocommit", None) is False and isinstance(
        getattr(connection, "isolation_level", None), str
    )


def begin(connection: Any) -> None:
    """Begin a transaction of sqlite3, which begins one by itself before some statements only.

    It does so if the first word is INSERT, UPDATE, DELETE or REPLACE: an INSERT that begins with
    WITH, or a CREATE TABLE, would be permanent at once.
    """
    level = getattr(connection, "isolation_level", None)
    if isinstance(level, str) and getattr(connection, "in_transaction", None) is False:
        execute(connection, f"BEGIN {level}")


def mark(connection: Any) -> bool:
    """Mark where the work begins, by a savepoint that is lost if the work is rolled back meanwhile.

    Its release then fails: after an error that a handler passed over and that had the database
    roll back, after the handler's own COMMIT or ROLLBACK, and in another session of a driver that
    connects again by itself.

    Returns:
        Whether it is marked; false if the database does not know these statements.
    """
    try:
        for statement in (_MARK, _RELEASE, _MARK):
            execute(connection, statement)
    except Exception as error:
        logger.debug("no savepoint error=%s", error)
        return False
    return True


def release(connection: Any) -> None:
    """Release the mark where the work begins.

    Raises:
        Exception: The database's error, if the work was rolled back since.
    """
    execute(connection, _RELEASE)


def execute(connection: Any, statement: str) -> Any:
    """Execute a statement on a new cursor, and return the cursor."""
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor


def quietly(act: Callable[[], object]) -> bool:
    """Carry out a consequence of a decision; a failure is only logged: ``recover`` repeats it."""
    try:
        act()
    except Exception as error:
        logger.warning("a participant could not follow error=%s", error)
        return False
    return True
