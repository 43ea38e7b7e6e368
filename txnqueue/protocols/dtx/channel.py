"""Connections and channels: the classes dtx-demarcation and dtx-coordination."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.branches import Branches
from txnqueue.branching import Ending, Ticket
from txnqueue.config import BRANCH_SECONDS_DEFAULT, BRANCH_SECONDS_MAX, check_number
from txnqueue.errors import InvalidInput, TxnQueueError
from txnqueue.protocols.dtx.querying import Querying
from txnqueue.protocols.dtx.replies import (
    STATUS,
    CommandInvalid,
    NotFound,
    NotImplementedHere,
    XaStatus,
    replying,
)
from txnqueue.protocols.dtx.xid import Xid
from txnqueue.sessions import Session

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue


class Connection:
    """Distributed transactions on one manager's queues; it makes channels."""

    def __init__(
        self,
        manager: QueueManager,
        *,
        default_timeout_seconds: float = BRANCH_SECONDS_DEFAULT,
        join_supported: bool = True,
    ) -> None:
        """Use a manager.

        Args:
            manager: Its actor is the principal that tickets speak of.
            default_timeout_seconds: So long a branch that is started here may take until it
                is prepared, unless a time-out is set.
            join_supported: Whether channels here may join branches that others started.
        """
        check_number("default_timeout_seconds", default_timeout_seconds, 0.001, BRANCH_SECONDS_MAX)
        self.manager = manager
        self.default_timeout_seconds = default_timeout_seconds
        self.join_supported = join_supported
        self.branches = Branches(manager._client)

    @property
    def principal(self) -> str:
        """Who works here."""
        return self.manager._client.runtime.actor

    def channel(self) -> Channel:
        """Open a channel; one for each thread that works in branches."""
        return Channel(self)


class DtxDemarcation:
    """Where the work of a channel in a branch begins and ends.

    Between ``start`` and ``end`` what ``queue`` gives works in the branch; outside of them
    each call stands for itself.
    """

    def __init__(self, connection: Connection) -> None:
        """Demarcate work on a connection."""
        self._connection = connection
        self._selected = False
        self._working: Session | None = None
        self._suspended: dict[Xid, Session] = {}

    @property
    def working(self) -> bool:
        """Whether the channel works in a branch."""
        return self._working is not None

    def select(self) -> None:
        """Use the channel for distributed transactions; again does nothing."""
        self._selected = True

    def start(
        self,
        xid: Xid,
        *,
        join: bool = False,
        resume: bool = False,
        ticket: Ticket | None = None,
    ) -> XaStatus:
        """Work in a branch from now on: a new one, or one that was started before.

        Args:
            xid: The branch; without ``join`` and ``resume`` nobody may have used it before.
            join: Whether the branch was started before, by this channel or another one.
            resume: Whether work in it goes on that was suspended, here or elsewhere.
            ticket: Who may work in the branch and who may decide it, when it is started; one
                of the same realm, later.

        Returns:
            xa-ok; or xa-rbrollback: the branch can only be rolled back, and the channel does
            not work in it.

        Raises:
            CommandInvalid: The channel is not selected, or works in a branch; ``join`` and
                ``resume`` together; the branch is not suspended, is prepared, or was decided
                by an operator.
            NotAllowed: The xid was used before; the ticket keeps us out.
            NotFound: There is no such branch, or it is completed.
            NotImplementedHere: Joining is not offered here.
            InternalError: It failed.
        """
        _check(xid)
        self._check_selected()
        if join and resume:
            raise CommandInvalid("join and resume exclude each other.")
        if self._working is not None:
            raise CommandInvalid(f"The channel works in {self._working.id!r}: end that first.")
        if join and not self._connection.join_supported:
            raise NotImplementedHere("Branches that others started cannot be joined here.")
        branches, key = self._connection.branches, xid.transaction_id
        found: Session | Ending
        with replying():
            if resume:
                found = branches.resume(key, self._suspended.get(xid), ticket)
                self._suspended.pop(xid, None)
            elif join:
                found = branches.join(key, ticket)
            else:
                found = branches.start(key, self._connection.default_timeout_seconds, ticket)
        if isinstance(found, Ending):
            return XaStatus.RBROLLBACK
        self._working = found
        return XaStatus.OK

    def end(
        self,
        xid: Xid,
        *,
        fail: bool = False,
        suspend: bool = False,
        ticket: Ticket | None = None,
    ) -> XaStatus:
        """Work in a branch no more: done, failed, or suspended for later.

        Args:
            xid: The branch that the channel works in.
            fail: The branch can only be rolled back.
            suspend: The work goes on later, by ``start(resume=True)``.
            ticket: As in ``start``.

        Returns:
            xa-ok, xa-rbrollback (the branch can only be rolled back, or was), or xa-rbtimeout
            (it took too long, and was rolled back).

        Raises:
            CommandInvalid: The channel is not selected; ``fail`` and ``suspend`` together.
            NotFound: The channel does not work in this branch, or not any more.
            InternalError: It failed: end it again. Until then the branch takes no more work of
                the channel, as its part may be sealed.
        """
        _check(xid)
        self._check_selected()
        if fail and suspend:
            raise CommandInvalid("fail and suspend exclude each other.")
        session = self._working
        if session is None or session.id != xid.transaction_id:
            raise NotFound(f"The channel does not work in {xid.transaction_id!r}.")
        try:
            with replying():
                ending = self._connection.branches.end(
                    session, suspend=suspend, fail=fail, ticket=ticket
                )
        except NotFound:  # an earlier end landed unheard, and others went on from there
            self._working = None
            raise
        self._working = None
        if suspend and ending is not Ending.TIMED_OUT:
            self._suspended[xid] = session
        return STATUS[ending]

    def queue(self, name: str) -> Queue:
        """Give a queue: between ``start`` and ``end`` one that works in the branch.

        Raises:
            QueueNotFound: There is no such queue.
        """
        if self._working is not None:
            return self._working.queue(name)
        return self._connection.manager.queue(name)

    def exchange(self, name: str = "") -> Exchange:
        """Give an exchange: between ``start`` and ``end`` one that publishes in the branch.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        if self._working is not None:
            return self._working.exchange(name)
        return self._connection.manager.exchange(name)

    def close(self) -> None:
        """Close the channel; the work that it has not ended has failed."""
        if self._working is not None:
            xid = Xid.from_transaction_id(self._working.id)
            try:
                self.end(xid, fail=True)
            except NotFound:
                pass  # it has ended before
            except TxnQueueError:
                self._working = None  # the branch's time-out ends it
                raise

    def _check_selected(self) -> None:
        if not self._selected:
            raise CommandInvalid("The channel is not used for distributed transactions: select().")


class DtxCoordination:
    """What a transaction manager does with branches, whoever worked in them."""

    def __init__(self, connection: Connection) -> None:
        """Coordinate branches on a connection."""
        self._connection = connection
        self._scanned: set[str] | None = None

    def prepare(self, xid: Xid, *, ticket: Ticket | None = None) -> XaStatus:
        """Prepare a branch: from now on it can be committed and rolled back, whatever fails.

        Args:
            xid: The branch; every channel has ended its work in it.
            ticket: One of the branch's realm.

        Returns:
            xa-ok; xa-rdonly: there was nothing to do, and it is committed; xa-rbrollback or
            xa-rbtimeout: it was rolled back.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it, work is suspended, it is prepared, or an
                operator has decided it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed; the branch may or may not be prepared.
        """
        _check(xid)
        with replying():
            return STATUS[self._connection.branches.prepare(xid.transaction_id, ticket)]

    def commit(
        self, xid: Xid, *, one_phase: bool = False, ticket: Ticket | None = None
    ) -> XaStatus:
        """Commit a branch: what it sent can be received, what it received is gone.

        Args:
            xid: The branch.
            one_phase: Whether it is committed without having been prepared.
            ticket: One of the branch's realm.

        Returns:
            xa-ok; xa-heurcom or xa-heurrb: an operator has decided; xa-rbrollback or
            xa-rbtimeout: it was rolled back.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it, work is suspended, or ``one_phase`` does not
                fit: a prepared branch takes two phases, any other one.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        _check(xid)
        with replying():
            return STATUS[
                self._connection.branches.commit(
                    xid.transaction_id, one_phase=one_phase, ticket=ticket
                )
            ]

    def rollback(self, xid: Xid, *, ticket: Ticket | None = None) -> XaStatus:
        """Roll a branch back: what it sent is dropped, what it received can be received again.

        Args:
            xid: The branch, prepared or not.
            ticket: One of the branch's realm.

        Returns:
            As ``commit``.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        _check(xid)
        with replying():
            return STATUS[self._connection.branches.rollback(xid.transaction_id, ticket)]

    def recover(
        self, *, startscan: bool = False, endscan: bool = False, ticket: Ticket | None = None
    ) -> list[Xid]:
        """List the branches that are prepared or heuristically completed.

        Args:
            startscan: Begin a scan, at its start again if one is open.
            endscan: End the scan afterwards.
            ticket: Leaves out the branches of other realms.

        Returns:
            Those that this scan has not listed yet.

        Raises:
            CommandInvalid: Neither is given, and no scan is open.
            InternalError: It failed.
        """
        if not (startscan or endscan) and self._scanned is None:
            raise CommandInvalid("No scan is open: recover(startscan=True) begins one.")
        with replying():
            keys = self._connection.branches.waiting(ticket)
        listed = set() if startscan or self._scanned is None else self._scanned
        self._scanned = None if endscan else listed.union(keys)
        return [Xid.from_transaction_id(key) for key in keys if key not in listed]

    def forget(self, xid: Xid, *, ticket: Ticket | None = None) -> None:
        """Forget a branch that an operator has decided: its outcome stays, the xid is gone.

        Raises:
            NotFound: There is no such branch, or it is completed or forgotten.
            CommandInvalid: A channel works in it, or no operator has decided it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        _check(xid)
        with replying():
            self._connection.branches.forget(xid.transaction_id, ticket)

    def set_timeout(self, xid: Xid, seconds: float, *, ticket: Ticket | None = None) -> None:
        """Say how long a branch may take from its start until it is prepared.

        Args:
            xid: The branch.
            seconds: 0 is the default again.
            ticket: One of the branch's realm.

        Raises:
            NotFound: There is no such branch, or it is completed.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        _check(xid)
        check_number("seconds", seconds, 0, BRANCH_SECONDS_MAX)
        with replying():
            ending = self._connection.branches.set_timeout(xid.transaction_id, seconds, ticket)
        if ending is not Ending.DONE:
            raise NotFound(f"{xid.transaction_id!r} is {ending.value}.")

    def get_timeout(self, xid: Xid) -> float:
        """Say how many seconds a branch may take: as last set, or the default.

        Raises:
            NotFound: There is no such branch, or it is completed.
            InternalError: It failed.
        """
        _check(xid)
        with replying():
            return self._connection.branches.timeout_seconds(xid.transaction_id)


class Channel(DtxDemarcation, DtxCoordination, Querying):
    """A channel of a connection; as a block it is closed at the end."""

    def __init__(self, connection: Connection) -> None:
        """Open it; ``Connection.channel`` does."""
        DtxDemarcation.__init__(self, connection)
        DtxCoordination.__init__(self, connection)
        Querying.__init__(self, connection.manager)

    def __enter__(self) -> Channel:
        """Use it in a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def _check(xid: object) -> None:
    if not isinstance(xid, Xid):
        raise InvalidInput(f"xid={xid!r}: give an Xid.", name="xid")
