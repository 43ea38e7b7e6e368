"""The two-phase commit of Python's DB-API 2.0 (PEP 249) on a store of queues.

A transaction manager for databases can drive a store of queues in the same way. This library is
one, so a transaction can span two stores: ``tx.enlist("orders", TpcConnection(manager))``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from txnqueue.core.instants import instant
from txnqueue.core.settings import shown
from txnqueue.core.state.branch import Ticket, check_ticket
from txnqueue.errors import InvalidInput
from txnqueue.protocols.dtx.channel import Channel, Connection
from txnqueue.protocols.dtx.replies import (
    BranchRolledBack,
    CommandInvalid,
    HeuristicallyCompleted,
    NotFound,
    NotImplementedHere,
    XaStatus,
    replying,
)
from txnqueue.protocols.dtx.sessions import BranchSession
from txnqueue.protocols.dtx.xid import Xid

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue

_ROLLED_BACK = (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)


class TpcXid(NamedTuple):
    """An xid in the form of PEP 249: text, not octets.

    Attributes:
        format_id: A whole number of at least 0.
        gtrid: The name of the transaction; together with ``bqual`` at most 128 bytes.
        bqual: The name of the branch.
        prepared: When the branch was prepared; set by ``tpc_recover``.
    """

    format_id: int
    gtrid: str
    bqual: str
    prepared: datetime.datetime | None = None

    @property
    def xid(self) -> Xid:
        """The same xid as octets.

        Raises:
            InvalidInput: It cannot be encoded, is too long, or is out of range.
        """
        return Xid.of(self.format_id, _octets("gtrid", self.gtrid), _octets("bqual", self.bqual))

    @classmethod
    def of(cls, xid: Xid, prepared: datetime.datetime | None = None) -> TpcXid:
        """Convert octets to text; bytes that are not UTF-8 are preserved."""
        gtrid, bqual = (part.decode("utf-8", "surrogateescape") for part in (xid.gtrid, xid.bqual))
        return cls(xid.format_id, gtrid, bqual, prepared)


def _octets(name: str, part: object) -> bytes:
    """Convert a part of an xid to octets."""
    try:
        if isinstance(part, str):
            return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        pass
    raise InvalidInput(f"{name}={shown(part)}: give text that can be encoded in UTF-8.", name=name)


class _TpcChannel(Channel):
    """A channel on which no call is its own transaction while a transaction is open."""

    xid: Xid | None = None
    """The open transaction, from its begin to its decision."""

    def _at_work(self) -> BranchSession | None:
        session = super()._at_work()
        if session is None and self.xid is not None:
            raise CommandInvalid(
                f"{self.xid.transaction_id!r} takes no more work: tpc_commit or tpc_rollback it "
                "first."
            )
        return session


class TpcConnection:
    """A store of queues as a resource of a transaction manager.

    Between ``tpc_begin`` and ``tpc_prepare`` or the decision, ``queue`` returns queues that work
    in the branch. A prepared transaction takes no more work; outside a transaction, each call is
    a transaction of its own.
    """

    def __init__(self, manager: QueueManager, *, ticket: Ticket | None = None) -> None:
        """Create a connection to a manager's queues.

        Args:
            manager: The store.
            ticket: The ticket for branches begun here.

        Raises:
            InvalidInput: One of them is something else.
        """
        check_ticket(ticket)
        self._connection = Connection(manager)
        self._channel = _TpcChannel(self._connection)
        self._channel.select()
        self._ticket = ticket
        self._prepared: XaStatus | None = None
        self._in_doubt = False
        """Whether the branch may be prepared by an earlier try without a reply."""

    def xid(self, format_id: int, gtrid: str, bqual: str) -> TpcXid:
        """Make an xid for this connection.

        Raises:
            InvalidInput: It is too long, or out of range.
        """
        made = TpcXid(format_id, gtrid, bqual)
        _ = made.xid  # checks its limits now, not when it is used
        return made

    def queue(self, name: str) -> Queue:
        """Return a queue; one taken in a transaction works only in that branch.

        A queue taken outside a transaction works in whichever one is open; its calls raise
        ``CommandInvalid`` between ``tpc_prepare`` and the decision. After ``tpc_prepare``, calls on
        a queue taken in the transaction raise ``TransactionFinished``.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return self._channel.queue(name)

    def tpc_begin(self, xid: TpcXid) -> None:
        """Begin a branch with an xid that was not used before.

        Raises:
            CommandInvalid: A transaction is open.
            NotAllowed: The xid was used before.
            BranchRolledBack: An earlier try began it, and it was rolled back since.
        """
        if self._channel.xid is not None:
            raise CommandInvalid(
                "A transaction is open on this connection: commit it or roll it back first."
            )
        begun = _of_text(xid)
        self._channel.xid, self._prepared, self._in_doubt = begun, None, False
        try:
            _told(begun, self._channel.start(begun, ticket=self._ticket), "begun")
        except BaseException:  # also an interrupt: what has begun can then be rolled back
            if not self._channel.working:
                self._channel.xid = None
            raise

    def tpc_prepare(self) -> None:
        """Prepare the work since ``tpc_begin``.

        Raises:
            CommandInvalid: No transaction is open, or it is already prepared.
            NotFound: It is completed, or unknown here.
            BranchRolledBack: It was rolled back, by its time-out or by another client.
        """
        with self._open() as xid:
            if self._prepared is not None:
                raise CommandInvalid("The transaction is prepared: commit it or roll it back.")
            self._end(xid)
            self._prepared = self._prepare(xid)

    def tpc_commit(self, xid: TpcXid | None = None) -> None:
        """Commit the open transaction, prepared or not, or a recovered one.

        Args:
            xid: An xid from ``tpc_recover``; if omitted, the open transaction.

        Raises:
            CommandInvalid: Another transaction is open, or none.
            NotFound: It is completed, perhaps by an earlier try, or unknown here.
            BranchRolledBack: It was rolled back.
            HeuristicallyCompleted: An operator rolled it back.
        """
        if xid is not None:
            self._nothing_open()
            other = _of_text(xid)
            _told(other, self._channel.commit(other, ticket=self._ticket), "committed")
            return
        with self._open() as mine:
            if self._prepared is None:
                self._end(mine)
            if self._prepared is not XaStatus.RDONLY:
                _told(mine, self._commit(mine), "committed")
        self._channel.xid = None

    def tpc_rollback(self, xid: TpcXid | None = None) -> None:
        """Roll back the open transaction, prepared or not, or a recovered one.

        Args:
            xid: As in ``tpc_commit``.

        Raises:
            CommandInvalid: Another transaction is open, or none.
            NotFound: It is completed, perhaps by an earlier try, or unknown here.
            HeuristicallyCompleted: An operator committed it.
        """
        if xid is not None:
            self._nothing_open()
            other = _of_text(xid)
            _told(other, self._channel.rollback(other, ticket=self._ticket), "rolled back")
            return
        with self._open() as mine:
            if self._prepared is None:
                self._end(mine)
            if self._prepared is not XaStatus.RDONLY:
                status = self._channel.rollback(mine, ticket=self._ticket)
                _told(mine, status, "rolled back")
        self._channel.xid = None

    def tpc_recover(self) -> list[TpcXid]:
        """List the branches that wait for ``tpc_commit(xid)`` or ``tpc_rollback(xid)``."""
        found = self._channel.recover_all(ticket=self._ticket)
        with replying():
            return [TpcXid.of(xid, self._prepared_at(xid)) for xid in found]

    def commit(self) -> None:
        """Do nothing: outside a two-phase transaction, each call commits by itself.

        Raises:
            CommandInvalid: A two-phase transaction is open.
        """
        self._nothing_open()

    def rollback(self) -> None:
        """Do nothing: outside a two-phase transaction, there is nothing to undo.

        Raises:
            CommandInvalid: A two-phase transaction is open.
        """
        self._nothing_open()

    def cursor(self) -> NoReturn:
        """Refuse, because a store of queues runs no statements.

        Raises:
            NotImplementedHere: Always.
        """
        raise NotImplementedHere("Cursors are not supported: get queues with queue(name).")

    def close(self) -> None:
        """Close the connection; work that is not ended fails, prepared transactions remain."""
        self._channel.close()
        self._channel.xid = None

    @contextmanager
    def _open(self) -> Iterator[Xid]:
        """Yield the open transaction; if it turns out to be completed, it is no longer open."""
        if self._channel.xid is None:
            raise CommandInvalid("No transaction is open: begin one with tpc_begin(xid).")
        try:
            yield self._channel.xid
        except (NotFound, BranchRolledBack, HeuristicallyCompleted):
            self._channel.xid = None
            raise

    def _nothing_open(self) -> None:
        if self._channel.xid is not None:
            raise CommandInvalid(
                "A two-phase transaction is open: end it with tpc_commit or tpc_rollback."
            )

    def _end(self, xid: Xid) -> None:
        """End the work unless an earlier try has; the decision will return the same status."""
        if self._channel.working:
            self._channel.end(xid, ticket=self._ticket)

    def _prepare(self, xid: Xid) -> XaStatus:
        """Prepare the branch, unless an earlier try without a reply has."""
        in_doubt, self._in_doubt = self._in_doubt, True
        try:
            status = self._channel.prepare(xid, ticket=self._ticket)
        except CommandInvalid:
            self._in_doubt = in_doubt
            if not self._has_prepared(xid):
                raise
            return XaStatus.OK
        _told(xid, status, "prepared")
        return status

    def _commit(self, xid: Xid) -> XaStatus:
        """Commit the branch; without one_phase if it is prepared, even by a try without a reply."""
        one_phase = self._prepared is None
        try:
            return self._channel.commit(xid, one_phase=one_phase, ticket=self._ticket)
        except CommandInvalid:
            if not self._has_prepared(xid):
                raise
        return self._channel.commit(xid, ticket=self._ticket)

    def _has_prepared(self, xid: Xid) -> bool:
        """Return whether an earlier try without a reply has prepared the branch."""
        if not self._in_doubt:
            return False
        with replying():
            branch = self._connection.branches.find(xid.transaction_id)
        return branch.prepared is not None and branch.decision is None

    def _prepared_at(self, xid: Xid) -> datetime.datetime | None:
        entry = self._connection.branches.find(xid.transaction_id).prepared
        if entry is None:
            return None
        return instant(entry.recorded_at_ms)


def _of_text(xid: object) -> Xid:
    """Read an xid of this interface.

    Raises:
        InvalidInput: It is not an xid.
    """
    if not isinstance(xid, TpcXid):
        raise InvalidInput(
            f"xid={shown(xid)}: give what xid() or tpc_recover() returned.", name="xid"
        )
    return xid.xid


def _told(xid: Xid, status: XaStatus, wanted: str) -> None:
    """Raise an error for a status that is not the wanted one.

    Raises:
        BranchRolledBack: The branch was rolled back instead.
        HeuristicallyCompleted: An operator decided otherwise.
    """
    key = xid.transaction_id
    wanted_rollback = wanted == "rolled back"
    if status in _ROLLED_BACK and not wanted_rollback:
        raise BranchRolledBack(
            f"{key!r} was rolled back: {status.value}.", transaction_id=key, status=status
        )
    agreed = XaStatus.HEURRB if wanted_rollback else XaStatus.HEURCOM
    if status in (XaStatus.HEURCOM, XaStatus.HEURRB) and status is not agreed:
        raise HeuristicallyCompleted(
            f"An operator has decided {key!r}: {status.value}.",
            transaction_id=key,
            status=status,
        )
