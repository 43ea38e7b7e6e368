"""The class dtx-coordination: prepare, decide, recover, forget and time branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnqueue.core.settings import BRANCH_SECONDS_MAX, check_flag, check_number
from txnqueue.core.state.branch import Ending, Ticket, check_ticket
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
    """The operations of a transaction manager on branches, whichever sessions worked in them."""

    def __init__(self, connection: Connection) -> None:
        """Coordinate branches on a connection."""
        self._connection = connection
        self._scanned: set[str] | None = None

    def prepare(self, xid: Xid, *, ticket: Ticket | None = None) -> XaStatus:
        """Prepare a branch, which can then be committed or rolled back, whatever fails.

        Args:
            xid: The branch, in which every channel has ended its work.
            ticket: A ticket of the branch's realm.

        Returns:
            xa-ok; xa-rdonly if there was nothing to do and it is committed; xa-rbrollback or
            xa-rbtimeout if it was rolled back.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it, work is suspended, it is prepared, or an
                operator has decided it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed; the branch may or may not be prepared.
        """
        with self._asked(xid, ticket) as branches:
            return STATUS[branches.prepare(xid.transaction_id, ticket)]

    def commit(
        self, xid: Xid, *, one_phase: bool = False, ticket: Ticket | None = None
    ) -> XaStatus:
        """Commit a branch: the messages it sent become available, those it received are consumed.

        Args:
            xid: The branch.
            one_phase: Whether it is committed without having been prepared.
            ticket: A ticket of the branch's realm.

        Returns:
            xa-ok; xa-heurcom or xa-heurrb if an operator has decided; xa-rbrollback or
            xa-rbtimeout if it was rolled back.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it, work is suspended, or ``one_phase`` does not
                fit: it must be false for a prepared branch, and true for any other.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        check_flag("one_phase", one_phase)
        with self._asked(xid, ticket) as branches:
            return STATUS[branches.commit(xid.transaction_id, one_phase=one_phase, ticket=ticket)]

    def rollback(self, xid: Xid, *, ticket: Ticket | None = None) -> XaStatus:
        """Roll back a branch: messages it sent are dropped, those it received are available again.

        Args:
            xid: The branch, prepared or not.
            ticket: A ticket of the branch's realm.

        Returns:
            As ``commit``.

        Raises:
            NotFound: There is no such branch, or it is completed.
            CommandInvalid: A channel works in it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        with self._asked(xid, ticket) as branches:
            return STATUS[branches.rollback(xid.transaction_id, ticket)]

    def recover(
        self, *, startscan: bool = False, endscan: bool = False, ticket: Ticket | None = None
    ) -> list[Xid]:
        """List the branches that are prepared or heuristically completed.

        Args:
            startscan: Whether to begin a scan; one that is open starts again.
            endscan: Whether to end the scan afterwards.
            ticket: Excludes the branches of other realms.

        Returns:
            The branches that this scan has not listed yet.

        Raises:
            CommandInvalid: Neither is given, and no scan is open; ``recover_all`` needs none.
            InternalError: It failed.
        """
        self._check_open()
        check_flag("startscan", startscan)
        check_flag("endscan", endscan)
        check_ticket(ticket)
        if not (startscan or endscan) and self._scanned is None:
            raise CommandInvalid("No scan is open: begin one with recover(startscan=True).")
        with replying():
            keys = self._connection.branches.waiting(ticket)
        listed = set() if startscan or self._scanned is None else self._scanned
        self._scanned = None if endscan else listed.union(keys)
        return [Xid.from_transaction_id(key) for key in keys if key not in listed]

    def recover_all(self, *, ticket: Ticket | None = None) -> list[Xid]:
        """List all branches that are prepared or heuristically completed, independently of scans.

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
        """Forget a branch that an operator has decided: its outcome remains, but not its xid.

        Raises:
            NotFound: There is no such branch, or it is completed or forgotten.
            CommandInvalid: A channel works in it, or no operator has decided it.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed.
        """
        with self._asked(xid, ticket) as branches:
            branches.forget(xid.transaction_id, ticket)

    def set_timeout(self, xid: Xid, seconds: float, *, ticket: Ticket | None = None) -> None:
        """Set how long a branch may take from its start until it is prepared.

        Args:
            xid: The branch.
            seconds: The time-out in seconds; 0 restores the default.
            ticket: A ticket of the branch's realm.

        Raises:
            NotFound: There is no such branch, or it is completed.
            NotAllowed: The branch is restricted to others.
            InternalError: It failed, or the time-out is too long.
        """
        with self._asked(xid, ticket) as branches:
            try:
                check_number("seconds", seconds, 0, BRANCH_SECONDS_MAX)
            except LimitExceeded as error:
                raise InternalError(str(error)) from error
            ending = branches.set_timeout(xid.transaction_id, seconds, ticket)
        if ending is not Ending.DONE:
            raise NotFound(f"{xid.transaction_id!r} is {ending.value}.")

    def get_timeout(self, xid: Xid) -> float:
        """Return the time-out of a branch in seconds: as last set, or the default.

        A time-out takes effect when a client next starts or ends work in the branch, decides it,
        needs messages that it holds, or recovers.

        Raises:
            NotFound: There is no such branch, or it is completed.
            InternalError: It failed.
        """
        with self._asked(xid) as branches:
            return branches.timeout_seconds(xid.transaction_id)

    @contextmanager
    def _asked(self, xid: Xid, ticket: Ticket | None = None) -> Iterator[Branches]:
        """Check that the channel can be used for a branch, and translate errors to reply codes."""
        check_xid(xid)
        check_ticket(ticket)
        self._check_open()
        with about_branches():
            yield self._connection.branches
