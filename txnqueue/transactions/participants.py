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

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.settings import check_id, text_of
from txnqueue.core.state.confirmations import FORMAT_ID, branch_of, confirmation
from txnqueue.errors import InvalidInput, LimitExceeded, TransactionAborted
from txnqueue.transactions.auxiliary import Auxiliary
from txnqueue.transactions.connections import check_waits, has_failed, mark, quietly, release
from txnqueue.transactions.last_resource import LastResource
from txnqueue.transactions.transient import TransientWork

if TYPE_CHECKING:
    from txnqueue.transactions.attempt import Attempt

logger = logging.getLogger("txnqueue")

PART_LENGTH_MAX = 64
"""The most bytes in either part of a branch's name (XA)."""


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
        check_waits(name, connection, needed)
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
        self._marked = mark(connection)

    def prepare(self) -> None:
        """Prepare the branch, unless the database has rolled back its work."""
        if not self._prepared:
            if self._marked or has_failed(self.connection):
                release(self.connection)
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
            quietly(one.rollback)
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
            if quietly(branch.commit)
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
            quietly(branch.rollback)
        if self.last is not None:
            quietly(self.last.rollback)
        self._end(commit=False)
        self.followed = True

    def _end(self, *, commit: bool) -> None:
        for auxiliary in self.auxiliaries.values():
            quietly(partial(auxiliary.end, commit=commit))

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
