"""Python's names for it: the two-phase commit of the DB-API 2.0 (PEP 249).

So a transaction manager that drives databases drives a store of queues just the same; one of
them is this library, in another store: ``tx.enlist("orders", TpcConnection(manager))``.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from txnqueue.core.state.branch import Ticket
from txnqueue.protocols.dtx.channel import Connection
from txnqueue.protocols.dtx.replies import (
    BranchRolledBack,
    CommandInvalid,
    HeuristicallyCompleted,
    NotImplementedHere,
    XaStatus,
)
from txnqueue.protocols.dtx.xid import Xid

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue

_ROLLED_BACK = (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)


class TpcXid(NamedTuple):
    """An xid as PEP 249 has it: text, not octets.

    Attributes:
        format_id: A whole number from 0.
        gtrid: What names the transaction; with ``bqual`` 128 bytes at most.
        bqual: What names the branch.
        prepared: When the branch was prepared; known of those that ``tpc_recover`` lists.
    """

    format_id: int
    gtrid: str
    bqual: str
    prepared: datetime.datetime | None = None

    @property
    def xid(self) -> Xid:
        """The same in octets."""
        parts = (part.encode("utf-8", "surrogateescape") for part in (self.gtrid, self.bqual))
        return Xid.of(self.format_id, *parts)

    @classmethod
    def of(cls, xid: Xid, prepared: datetime.datetime | None = None) -> TpcXid:
        """Read octets as text; what is no UTF-8 survives all the same."""
        gtrid, bqual = (part.decode("utf-8", "surrogateescape") for part in (xid.gtrid, xid.bqual))
        return cls(xid.format_id, gtrid, bqual, prepared)


class TpcConnection:
    """A store of queues as a resource that a transaction manager decides.

    Between ``tpc_begin`` and the end of its transaction ``queue`` gives queues that work in
    the branch; outside of it each call is a transaction of its own.
    """

    def __init__(self, manager: QueueManager, *, ticket: Ticket | None = None) -> None:
        """Offer a manager's queues.

        Args:
            manager: The store.
            ticket: For the branches that are begun here.
        """
        self._connection = Connection(manager)
        self._channel = self._connection.channel()
        self._channel.select()
        self._ticket = ticket
        self._xid: Xid | None = None
        self._prepared: XaStatus | None = None

    def xid(self, format_id: int, gtrid: str, bqual: str) -> TpcXid:
        """Make an xid for this connection.

        Raises:
            InvalidInput: It is too long, or out of range.
        """
        made = TpcXid(format_id, gtrid, bqual)
        _ = made.xid  # its limits are checked now, not when it is used
        return made

    def queue(self, name: str) -> Queue:
        """Give a queue: in a transaction one that works in its branch.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return self._channel.queue(name)

    def tpc_begin(self, xid: TpcXid) -> None:
        """Begin a branch; its xid may not have been used before.

        Raises:
            CommandInvalid: A transaction is open.
            NotAllowed: The xid was used before.
        """
        if self._xid is not None:
            raise CommandInvalid("A transaction is open on this connection: end it first.")
        self._channel.start(xid.xid, ticket=self._ticket)
        self._xid, self._prepared = xid.xid, None

    def tpc_prepare(self) -> None:
        """Prepare what was done since ``tpc_begin``.

        Raises:
            CommandInvalid: No transaction is open, or it is prepared.
            BranchRolledBack: It was rolled back, by its time-out or by another client.
        """
        xid = self._open()
        if self._prepared is not None:
            raise CommandInvalid("The transaction is prepared: commit it or roll it back.")
        self._end(xid)
        status = self._channel.prepare(xid, ticket=self._ticket)
        self._told(xid, status, "prepared")
        self._prepared = status

    def tpc_commit(self, xid: TpcXid | None = None) -> None:
        """Commit the transaction, prepared or not; or a prepared one of another time.

        Args:
            xid: One that ``tpc_recover`` listed; the open transaction when left out.

        Raises:
            CommandInvalid: Another transaction is open, or none.
            BranchRolledBack: It was rolled back.
            HeuristicallyCompleted: An operator rolled it back.
        """
        if xid is not None:
            self._nothing_open()
            self._told(xid.xid, self._channel.commit(xid.xid, ticket=self._ticket), "committed")
            return
        mine = self._open()
        if self._prepared is None:
            self._end(mine)
        if self._prepared is not XaStatus.RDONLY:
            one_phase = self._prepared is None
            status = self._channel.commit(mine, one_phase=one_phase, ticket=self._ticket)
            self._told(mine, status, "committed")
        self._xid = None

    def tpc_rollback(self, xid: TpcXid | None = None) -> None:
        """Roll the transaction back, prepared or not; or a prepared one of another time.

        Args:
            xid: As in ``tpc_commit``.

        Raises:
            CommandInvalid: Another transaction is open, or none.
            HeuristicallyCompleted: An operator committed it.
        """
        if xid is not None:
            self._nothing_open()
            status = self._channel.rollback(xid.xid, ticket=self._ticket)
            self._told(xid.xid, status, "rolled back")
            return
        mine = self._open()
        if self._prepared is None:
            self._end(mine)
        if self._prepared is not XaStatus.RDONLY:
            status = self._channel.rollback(mine, ticket=self._ticket)
            self._told(mine, status, "rolled back")
        self._xid = None

    def tpc_recover(self) -> list[TpcXid]:
        """List the branches that wait for ``tpc_commit(xid)`` or ``tpc_rollback(xid)``."""
        found = self._channel.recover_all(ticket=self._ticket)
        return [TpcXid.of(xid, self._prepared_at(xid)) for xid in found]

    def commit(self) -> None:
        """Do nothing: outside of a two-phase transaction each call has committed itself.

        Raises:
            CommandInvalid: A two-phase transaction is open.
        """
        self._nothing_open()

    def rollback(self) -> None:
        """Do nothing: outside of a two-phase transaction nothing is left to be undone.

        Raises:
            CommandInvalid: A two-phase transaction is open.
        """
        self._nothing_open()

    def cursor(self) -> NoReturn:
        """Refuse: a store of queues runs no statements.

        Raises:
            NotImplementedHere: Always.
        """
        raise NotImplementedHere("There are no cursors here: queue(name) gives queues.")

    def close(self) -> None:
        """Close the connection; what it has not ended has failed, what is prepared stays."""
        self._channel.close()
        self._xid = None

    def _open(self) -> Xid:
        if self._xid is None:
            raise CommandInvalid("No transaction is open: tpc_begin(xid) begins one.")
        return self._xid

    def _nothing_open(self) -> None:
        if self._xid is not None:
            raise CommandInvalid("A two-phase transaction is open: tpc_commit or tpc_rollback.")

    def _end(self, xid: Xid) -> None:
        """End the work, unless an earlier try has; what it says, the decision says again."""
        if self._channel.working:
            self._channel.end(xid, ticket=self._ticket)

    def _told(self, xid: Xid, status: XaStatus, wanted: str) -> None:
        """Raise what is no success.

        Raises:
            BranchRolledBack: It was rolled back, and should not be.
            HeuristicallyCompleted: An operator decided otherwise.
        """
        key = xid.transaction_id
        wanted_rollback = wanted == "rolled back"
        if status in _ROLLED_BACK and not wanted_rollback:
            self._xid = None
            raise BranchRolledBack(
                f"{key!r} was rolled back: {status.value}.", transaction_id=key, status=status
            )
        agreed = XaStatus.HEURRB if wanted_rollback else XaStatus.HEURCOM
        if status in (XaStatus.HEURCOM, XaStatus.HEURRB) and status is not agreed:
            self._xid = None
            raise HeuristicallyCompleted(
                f"An operator has decided {key!r}: {status.value}.",
                transaction_id=key,
                status=status,
            )

    def _prepared_at(self, xid: Xid) -> datetime.datetime | None:
        entry = self._connection.branches.find(xid.transaction_id).prepared
        if entry is None:
            return None
        return datetime.datetime.fromtimestamp(entry.recorded_at_ms / 1000, datetime.timezone.utc)
