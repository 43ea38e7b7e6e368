"""The class dtx-coordination: branches are prepared, decided, recovered, timed and forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnqueue.core.settings import BRANCH_SECONDS_MAX, check_number
from txnqueue.core.state.branch import Ending, Ticket
from txnqueue.errors import LimitExceeded
from txnqueue.protocols.dtx.replies import (
    STATUS,
    CommandInvalid,
    InternalError,
    Lifetime,
    NotFound,
    XaStatus,
    about_branches,
    replying,
)
from txnqueue.protocols.dtx.xid import Xid, check_xid

if TYPE_CHECKING:
    from txnqueue.protocols.dtx.branches import Branches
    from txnqueue.protocols.dtx.channel import Connection


class DtxCoordination(Lifetime):
    """What a transaction manager does with branches, whichever sessions worked in them."""

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
        with self._asked(xid) as branches:
            return STATUS[branches.prepare(xid.transaction_id, ticket)]

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
        with self._asked(xid) as branches:
            return STATUS[branches.commit(xid.transaction_id, one_phase=one_phase, ticket=ticket)]

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
        with self._asked(xid) as branches:
            return STATUS[branches.rollback(xid.transaction_id, ticket)]

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
            CommandInvalid: Neither is given, and no scan is open: ``recover_all`` needs none.
            InternalError: It failed.
        """
        self._check_open()
        if not (startscan or endscan) and self._scanned is None:
            raise CommandInvalid("No scan is open: begin one with recover(startscan=True).")
        with replying():
            keys = self._connection.branches.waiting(ticket)
        listed = set() if startscan or self._scanned is None else self._scanned
        self._scanned = None if endscan else listed.union(keys)
        return [Xid.from_transaction_id(key) for key in keys if key not in listed]

    def recover_all(self, *, ticket: Ticket | None = None) -> list[Xid]:
        """List all branches that are prepared or heuristically completed, whatever scan is open.

        Args:
            ticket: As in ``recover``.

        Raises:
            InternalError: It failed.
        """
        self._check_open()
        with replying():
            keys = self._connection.branches.waiting(ticket)
        return [Xid.from_transaction_id(key) for key in keys]

    def forget(self, xid: Xid, *, ticket: Ticket | None = None) -> None:
        """Forget a branch that an operator has decided: its outcome stays, the xid is gone.

        Raises:
            NotFound: There is no such branch, or it is completed or forgotten.
            CommandInvalid: A channel works in it, or no operator has decided it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        with self._asked(xid) as branches:
            branches.forget(xid.transaction_id, ticket)

    def set_timeout(self, xid: Xid, seconds: float, *, ticket: Ticket | None = None) -> None:
        """Set how long a branch may take from its start until it is prepared.

        Args:
            xid: The branch.
            seconds: 0 is the default again.
            ticket: One of the branch's realm.

        Raises:
            NotFound: There is no such branch, or it is completed.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed, or so long a time-out cannot be set.
        """
        with self._asked(xid) as branches:
            try:
                check_number("seconds", seconds, 0, BRANCH_SECONDS_MAX)
            except LimitExceeded as error:
                raise InternalError(str(error)) from error
            ending = branches.set_timeout(xid.transaction_id, seconds, ticket)
        if ending is not Ending.DONE:
            raise NotFound(f"{xid.transaction_id!r} is {ending.value}.")

    def get_timeout(self, xid: Xid) -> float:
        """Return how many seconds a branch may take: as last set, or the default.

        That they are over is noticed by a client that starts or ends work in the branch, decides
        it, wants what it holds, or recovers.

        Raises:
            NotFound: There is no such branch, or it is completed.
            InternalError: It failed.
        """
        with self._asked(xid) as branches:
            return branches.timeout_seconds(xid.transaction_id)

    @contextmanager
    def _asked(self, xid: Xid) -> Iterator[Branches]:
        """Check that the channel may be asked about a branch, and answer its errors by codes."""
        check_xid(xid)
        self._check_open()
        with about_branches():
            yield self._connection.branches
