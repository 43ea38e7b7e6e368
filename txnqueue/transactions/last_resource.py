"""The last resource of a transaction: the database whose own commit decides."""

from __future__ import annotations

import logging
import re
from typing import Any

from txnqueue.core import model
from txnqueue.core.settings import text_of
from txnqueue.errors import DatabaseUnavailable
from txnqueue.transactions.connections import (
    begin,
    check_connection,
    check_idle,
    check_transactional,
    execute,
    is_always_inside,
    mark,
    quietly,
    release,
)

logger = logging.getLogger("txnqueue")

DECISIONS = "txnqueue_decisions"
"""The table in which a last resource records decisions: one row per attempt."""
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {DECISIONS} "
    "(attempt varchar(32) PRIMARY KEY, decision varchar(16) NOT NULL)"
)
_ATTEMPT = re.compile(r"[0-9a-f]{32}")


class LastResource:
    """A connection without two-phase commit, whose own commit is the decision.

    Attributes:
        refusal: What the database said when it did not commit; None if it said nothing.
        may_have_committed: Whether its own commit was begun, which decides.
    """

    def __init__(self, name: str, connection: Any, attempt: str) -> None:
        """Take part with a connection.

        Raises:
            InvalidInput: It is no connection, is in autocommit mode, or has other work open.
            DatabaseUnavailable: There is no table of decisions, and none can be created.
        """
        check_connection(name, connection)
        check_transactional(name, connection)
        check_idle(name, connection)
        self.name = name
        self.connection = connection
        self.refusal: Exception | None = None
        self._attempt = attempt
        self.may_have_committed = False
        if is_always_inside(connection):  # work that it may have belongs to the transaction
            execute(connection, _CREATE)
        else:
            _provide_table(connection)
        begin(connection)
        self._marked = mark(connection)
        if not self._marked:  # to some databases, a statement that they do not know is a failure
            connection.rollback()
            begin(connection)

    def decide(self) -> bool:
        """Commit the database's work with a decision row, unless another client decided already.

        Returns:
            Whether it is committed, as the row in the database says, if there can be one.
        """
        try:
            execute(self.connection, _insert(self._attempt, model.COMMITTED))
            self.may_have_committed = True
            if self._marked:  # last, because the release of what began a transaction commits it
                release(self.connection)
            self.connection.commit()
        except Exception as error:  # an error is not an outcome; the row tells it
            logger.warning("last resource name=%s error=%s", self.name, error)
            self.refusal = error
            if not self.may_have_committed:  # and nobody else writes that the attempt has
                quietly(self.connection.rollback)
                return False
        except BaseException:
            quietly(self.connection.rollback)
            raise
        return resolve(self.connection, self._attempt)

    def rollback(self) -> None:
        """Roll back the database's work."""
        self.connection.rollback()


def _provide_table(connection: Any) -> None:
    """Create the table of decisions unless it is there: not every user may create one.

    It is committed at once, so that nobody who creates it too waits for the user's work.

    Raises:
        DatabaseUnavailable: It is not there, and cannot be created.
    """
    if _has_table(connection):
        return
    try:
        execute(connection, _CREATE)
        connection.commit()
    except Exception as error:
        connection.rollback()
        if not _has_table(connection):  # another client may have been faster
            raise DatabaseUnavailable(
                f"The table {DECISIONS} cannot be read or created. If the connection's user may "
                f"not do so, let somebody who may execute {_CREATE!r}, and grant that user SELECT "
                f"and INSERT on it. The database said: {text_of(error)}"
            ) from error


def _has_table(connection: Any) -> bool:
    """Return whether the table of decisions can be read; if not, roll the failed read back.

    Nothing is rolled back otherwise: not every driver tells of work that is open already.
    """
    try:
        execute(connection, f"SELECT decision FROM {DECISIONS} WHERE 1 = 0").fetchall()
    except Exception as error:
        logger.debug("no table of decisions error=%s", error)
        connection.rollback()
        return False
    return True


def resolve(connection: Any, attempt: str) -> bool:
    """Read a last resource's decision; decide on rollback if there is none yet.

    Returns:
        Whether the attempt is committed.
    """
    connection.rollback()
    _provide_table(connection)
    committed = _decision(connection, attempt, may_decide=True)
    assert committed is not None
    return committed


def decision(connection: Any, attempt: str, *, may_decide: bool) -> bool | None:
    """Read a last resource's decision of an attempt that another client has prepared.

    Args:
        connection: The connection to the database.
        attempt: The attempt.
        may_decide: Whether to decide on rollback if there is no decision yet.

    Returns:
        Whether the attempt is committed; None if it is not decided.

    Raises:
        DatabaseUnavailable: No decision can be read or written. Without the table this is likely to
            be another database: to create it here would decide against what is committed there.
    """
    connection.rollback()  # an uncommitted row decides nothing
    if not _has_table(connection):
        raise DatabaseUnavailable(
            f"The table {DECISIONS} cannot be read, although a transaction waits for a row in it: "
            "give a connection to the database that took part, whose user may read it. If this is "
            f"that database, nothing was committed there: execute {_CREATE!r}, and call recover() "
            "again."
        )
    return _decision(connection, attempt, may_decide=may_decide)


def _decision(connection: Any, attempt: str, *, may_decide: bool) -> bool | None:
    failed: Exception | None = None
    for _ in range(2):
        for kind in (model.COMMITTED, model.ROLLED_BACK):
            if _is_recorded(connection, attempt, kind):
                return kind == model.COMMITTED
        if not may_decide:
            return None
        try:
            execute(connection, _insert(attempt, model.ROLLED_BACK))
            connection.commit()
            return False
        except Exception as error:  # another client may have decided: its row tells
            logger.info("last resource resolved by another error=%s", error)
            connection.rollback()
            failed = error
    raise DatabaseUnavailable(
        f"The table {DECISIONS} cannot be read or written: grant the connection's user SELECT and "
        "INSERT on it, and call recover() again."
    ) from failed


def _is_recorded(connection: Any, attempt: str, kind: str) -> bool:
    """Return whether the database has this decision: it compares, whatever its driver returns."""
    cursor = execute(
        connection,
        f"SELECT 1 FROM {DECISIONS} WHERE attempt = '{_hex(attempt)}' AND decision = '{kind}'",
    )
    found = cursor.fetchone() is not None
    connection.rollback()  # so that the next read sees rows committed meanwhile
    return found


def _insert(attempt: str, decision: str) -> str:
    return f"INSERT INTO {DECISIONS} VALUES ('{_hex(attempt)}', '{decision}')"


def _hex(attempt: str) -> str:
    if not _ATTEMPT.fullmatch(attempt):
        raise ValueError(f"{attempt!r} is not an attempt")
    return attempt
