"""The participants of a transaction: its work in memory, and databases.

They prepare before the journal's decision, and commit or roll back after it. Databases take part
through Python's DB-API 2.0 (PEP 249), in one of three ways:

- *two-phase*: ``tpc_prepare``, then the queue's decision, then ``tpc_commit``;
- *last resource*: one database without two-phase commit decides by a row in its own table, after
  all other participants are prepared;
- *auxiliary*: separate transactions, several in a row, which the user commits or rolls back; only
  work left open follows the outcome.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.settings import check_flag, check_id, shown, text_of
from txnqueue.core.state.confirmations import FORMAT_ID, branch_of, confirmation
from txnqueue.errors import (
    DatabaseUnavailable,
    InvalidInput,
    LimitExceeded,
    TransactionAborted,
    TransactionFinished,
)
from txnqueue.transactions.transient import TransientWork

if TYPE_CHECKING:
    from txnqueue.transactions.attempt import Attempt

logger = logging.getLogger("txnqueue")

PART_LENGTH_MAX = 64
"""The most bytes in either part of a branch's name (XA)."""
DECISIONS = "txnqueue_decisions"
"""The table in which a last resource records decisions: one row per attempt."""
_FAILED = 3
_AT_WORK = (1, 2, _FAILED)
"""What psycopg says of a connection with a transaction open: active, open, or failed."""
_MARK = "SAVEPOINT txnqueue"
_RELEASE = "RELEASE SAVEPOINT txnqueue"
_ATTEMPT = re.compile(r"[0-9a-f]{32}")


class TwoPhase:
    """A connection that prepares, and commits or rolls back as the queue decides."""

    def __init__(self, name: str, connection: Any, transaction: Attempt, number: int) -> None:
        """Begin the branch of a transaction on a connection.

        Raises:
            InvalidInput: The connection has no two-phase commit, or is asynchronous.
            LimitExceeded: The transaction's id is too long for a branch's name.
        """
        needed = ("xid", "tpc_begin", "tpc_prepare", "tpc_recover")
        lacking = [method for method in needed if not hasattr(connection, method)]
        if lacking:
            raise InvalidInput(
                f"The connection of {name!r} has no {lacking[0]}: a database without two-phase "
                "commit can take part with last=True, or as an auxiliary.",
                name=name,
            )
        _check_waits(name, connection, needed)
        key = transaction.id
        length = len(transaction.longest_id.encode())
        if length > PART_LENGTH_MAX:
            grows = "" if key == transaction.longest_id else f", up to {length} in later batches"
            raise LimitExceeded(
                f"The transaction id {key!r} is too long for a branch of {name!r}: with two-phase "
                f"databases an id may have at most {PART_LENGTH_MAX} bytes{grows}.",
                name="transaction_id",
            )
        self.name = name
        self.connection = connection
        self._prepared = self._ended = False
        self.xid = connection.xid(
            FORMAT_ID, key, branch_of(transaction.owner, transaction.client.cache.store_id, number)
        )
        connection.tpc_begin(self.xid)
        self._marked = _mark(connection)

    def prepare(self) -> None:
        """Prepare the branch, unless the database has rolled back its work."""
        if not self._prepared:
            if self._marked or has_failed(self.connection):
                _execute(self.connection, _RELEASE)
                self._marked = False  # released once, also if an interrupt follows
            self.connection.tpc_prepare()
            self._prepared = True

    def commit(self) -> None:
        """Commit the prepared branch; repeating it does nothing."""
        if not self._ended:
            self.connection.tpc_commit()
            self._ended = True

    def rollback(self) -> None:
        """Roll back the branch, prepared or not; repeating it does nothing.

        If that fails, the connection is closed, which rolls back an unprepared branch; ``recover``
        rolls back a prepared one.
        """
        if self._ended:
            return
        try:
            self.connection.tpc_rollback()
        except Exception as error:
            logger.warning("branch not rolled back name=%s error=%s", self.name, error)
            self.connection.close()
        self._ended = True


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
        _check_transactional(name, connection)
        check_idle(name, connection)
        self.name = name
        self.connection = connection
        self.refusal: Exception | None = None
        self._attempt = attempt
        self.may_have_committed = False
        if _is_always_inside(connection):  # work that it may have belongs to the transaction
            _execute(connection, _CREATE)
        else:
            _provide_table(connection)
        _begin(connection)
        self._marked = _mark(connection)
        if not self._marked:  # to some databases, a statement that they do not know is a failure
            connection.rollback()
            _begin(connection)

    def decide(self) -> bool:
        """Commit the database's work with a decision row, unless another client decided already.

        Returns:
            Whether it is committed, as the row in the database says, if there can be one.
        """
        try:
            _execute(self.connection, _insert(self._attempt, model.COMMITTED))
            self.may_have_committed = True
            if self._marked:  # last, because the release of what began a transaction commits it
                _execute(self.connection, _RELEASE)
            self.connection.commit()
        except Exception as error:  # an error is not an outcome; the row tells it
            logger.warning("last resource name=%s error=%s", self.name, error)
            self.refusal = error
            if not self.may_have_committed:  # and nobody else writes that the attempt has
                _quietly(self.connection.rollback)
                return False
        except BaseException:
            _quietly(self.connection.rollback)
            raise
        return resolve(self.connection, self._attempt)

    def rollback(self) -> None:
        """Roll back the database's work."""
        self.connection.rollback()


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
        _check_transactional(name, connection)
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
        _begin(self.connection)
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
        _commit(self.connection)

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
                _commit(self.connection)
            else:
                self.connection.rollback()
            self._resolved = True

    def _check(self) -> None:
        if self._ended:
            raise TransactionFinished(
                f"The transaction of {self.name!r} has ended: begin a new one, and use the "
                "database in it."
            )


class Participants:
    """The participants of one transaction.

    Attributes:
        transient: The work in memory, which takes part once there is any.
        auxiliaries: The auxiliary databases, by name.
        last: The last resource: the database whose own commit decides.
        followed: Whether the decision was carried out, or tried, in all participants; false if
            that was interrupted.
    """

    def __init__(self, transaction: Attempt) -> None:
        """Begin without databases."""
        self._transaction = transaction
        self.transient = TransientWork(transaction)
        self._branches: dict[str, TwoPhase] = {}
        self.auxiliaries: dict[str, Auxiliary] = {}
        self.last: LastResource | None = None
        self.followed = False
        self._ignored: list[LastResource | TwoPhase] = []

    def ignore(self, name: str, connection: Any, *, last: bool) -> None:
        """Ignore what is done with a connection: it was committed before, and is rolled back.

        Raises:
            InvalidInput: As when the work was done: what cannot be undone, or is not of this work.
        """
        if any(one.connection is connection for one in self._ignored):
            return
        if last:
            attempt = self._transaction.attempt_id
            self._ignored.append(LastResource(name, connection, attempt))
        else:
            number = len(self._ignored)
            self._ignored.append(TwoPhase(name, connection, self._transaction, number))

    def undo_ignored(self) -> None:
        """Roll back the work that a repeated block has done again."""
        for one in self._ignored:
            _quietly(one.rollback)
        self._end(commit=False)

    def __bool__(self) -> bool:
        """Return whether a database depends on the decision, so that the journal must record it."""
        return bool(self._branches) or self.last is not None

    @property
    def are_waiting(self) -> bool:
        """Whether anything waits for the decision: work in memory, or a database."""
        return bool(self or self.auxiliaries or self.transient)

    @property
    def names(self) -> list[str]:
        """The names of the databases that confirm the decision afterwards."""
        return sorted(self._branches)

    def enlist(self, name: str, connection: Any, *, last: bool) -> None:
        """Let a database take part, with two-phase commit or as the last resource.

        Raises:
            InvalidInput: The name or the connection is taken, or there is a last resource already.
        """
        self._check_new(name, connection)
        if last:
            if self.last is not None:
                raise InvalidInput(
                    f"{self.last.name!r} is already the last resource, and there can be only one: "
                    f"enlist {name!r} without last=True.",
                    name=name,
                )
            self.last = LastResource(name, connection, self._transaction.attempt_id)
        else:
            number = len(self._branches)
            self._branches[name] = TwoPhase(name, connection, self._transaction, number)

    def auxiliary(self, name: str, connection: Any) -> Auxiliary:
        """Return an auxiliary database of the transaction; one connection per name.

        Raises:
            InvalidInput: The name or the connection is taken.
        """
        known = self.auxiliaries.get(check_id(name, "name"))
        if known is not None and known.connection is connection:
            return known
        self._check_new(name, connection)
        self.auxiliaries[name] = Auxiliary(name, connection)
        return self.auxiliaries[name]

    def prepare(self) -> None:
        """Prepare the work in memory, which costs nothing, and then every two-phase database.

        Raises:
            TransactionAborted: A participant cannot prepare.
            QueueClosed: A queue with transient messages is being dropped.
            LeaseLost: Transient messages that were held under a lease were taken over.
        """
        self.transient.prepare()
        key = self._transaction.id
        for branch in self._branches.values():
            try:
                branch.prepare()
            except Exception as error:
                raise TransactionAborted(
                    f"The database {branch.name!r} could not prepare, so transaction {key!r} was "
                    f"rolled back: {text_of(error)}",
                    transaction_id=key,
                ) from error

    def committed(self, stamp: Stamp) -> list[Entry]:
        """Carry out the commit, or the rest of it after an interrupt.

        Returns:
            The confirmations of the databases that committed; ``recover`` commits the others.
        """
        self.transient.commit()
        confirmed = [
            confirmation(branch.name, self._transaction.owner, stamp)
            for branch in self._branches.values()
            if _quietly(branch.commit)
        ]
        self._end(commit=True)
        self.followed = True
        return confirmed

    def rolled_back(self, reason: str, *, counted: bool) -> None:
        """Carry out the rollback, or the rest of it after an interrupt.

        Args:
            reason: The reason, recorded with the returned messages.
            counted: Whether the messages' deliveries count.
        """
        if self.followed:  # the connections may have other work by now
            return
        self.transient.rollback(reason, counted=counted)
        for branch in self._branches.values():
            _quietly(branch.rollback)
        if self.last is not None:
            _quietly(self.last.rollback)
        self._end(commit=False)
        self.followed = True

    def _end(self, *, commit: bool) -> None:
        for auxiliary in self.auxiliaries.values():
            _quietly(lambda one=auxiliary: one.end(commit=commit))  # type: ignore[misc]

    def _check_new(self, name: str, connection: Any) -> None:
        if not check_id(name, "name"):
            raise InvalidInput(f"{name!r}: give the database a name.", name=name)
        known: list[TwoPhase | LastResource | Auxiliary] = [] if self.last is None else [self.last]
        known += [*self._branches.values(), *self.auxiliaries.values()]
        if name in {one.name for one in known}:
            raise InvalidInput(
                f"{name!r} already takes part in this transaction: use the enlisted connection, "
                "or another name.",
                name=name,
            )
        for one in known:
            if one.connection is connection:  # ending the work of one would end the other's
                raise InvalidInput(
                    f"The connection of {name!r} already takes part in this transaction as "
                    f"{one.name!r}: open another one.",
                    name=name,
                )


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
    _check_waits(name, connection, needed)


def _check_waits(name: str, connection: object, methods: Sequence[str]) -> None:
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
    if (begun and not _is_always_inside(connection)) or _status(connection) in _AT_WORK:
        raise InvalidInput(
            f"The connection of {name!r} has an open transaction: commit it or roll it back first.",
            name=name,
        )


def has_failed(connection: object) -> bool:
    """Return whether a connection says that its work can only be rolled back."""
    return _status(connection) == _FAILED


def _check_transactional(name: str, connection: object) -> None:
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


def _commit(connection: Any) -> None:
    """Commit; if the transaction has failed, roll it back and raise the database's error."""
    if has_failed(connection):
        try:
            _execute(connection, "SELECT 1")  # refused, with the reason
        finally:
            connection.rollback()
    connection.commit()


def _is_always_inside(connection: object) -> bool:
    """Return whether a connection is in a transaction at any time, and does not say in which.

    That of sqlite3 is with ``autocommit=False``.
    """
    return getattr(connection, "autocommit", None) is False and isinstance(
        getattr(connection, "isolation_level", None), str
    )


def _begin(connection: Any) -> None:
    """Begin a transaction of sqlite3, which begins one by itself before some statements only.

    It does so if the first word is INSERT, UPDATE, DELETE or REPLACE: an INSERT that begins with
    WITH, or a CREATE TABLE, would be permanent at once.
    """
    level = getattr(connection, "isolation_level", None)
    if isinstance(level, str) and getattr(connection, "in_transaction", None) is False:
        _execute(connection, f"BEGIN {level}")


def _mark(connection: Any) -> bool:
    """Mark where the work begins, by a savepoint that is lost if the work is rolled back meanwhile.

    Its release then fails: after an error that a handler passed over and that had the database
    roll back, after the handler's own COMMIT or ROLLBACK, and in another session of a driver that
    connects again by itself.

    Returns:
        Whether it is marked; false if the database does not know these statements.
    """
    try:
        for statement in (_MARK, _RELEASE, _MARK):
            _execute(connection, statement)
    except Exception as error:
        logger.debug("no savepoint error=%s", error)
        return False
    return True


# --------------------------------------------------------------------- the last resource

_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {DECISIONS} "
    "(attempt varchar(32) PRIMARY KEY, decision varchar(16) NOT NULL)"
)


def _provide_table(connection: Any) -> None:
    """Create the table of decisions unless it is there: not every user may create one.

    It is committed at once, so that nobody who creates it too waits for the user's work.

    Raises:
        DatabaseUnavailable: It is not there, and cannot be created.
    """
    if _has_table(connection):
        return
    try:
        _execute(connection, _CREATE)
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
        _execute(connection, f"SELECT decision FROM {DECISIONS} WHERE 1 = 0").fetchall()
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
            _execute(connection, _insert(attempt, model.ROLLED_BACK))
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
    cursor = _execute(
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


def _execute(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor


def _quietly(act: Callable[[], object]) -> bool:
    """Carry out a consequence of a decision; a failure is only logged: ``recover`` repeats it."""
    try:
        act()
    except Exception as error:
        logger.warning("a participant could not follow error=%s", error)
        return False
    return True
