"""The class dtx-demarcation: begin and end of a channel's work in a branch."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from txnqueue.core import model
from txnqueue.core.settings import check_flag
from txnqueue.core.state.branch import Ending, Ticket, check_ticket
from txnqueue.errors import InvalidInput
from txnqueue.protocols.dtx.handles import ChannelExchange, ChannelQueue
from txnqueue.protocols.dtx.replies import (
    STATUS,
    CommandInvalid,
    Lifetime,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    XaStatus,
    about_branches,
    replying,
)
from txnqueue.protocols.dtx.sessions import BranchSession
from txnqueue.protocols.dtx.xid import Xid, check_xid

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.protocols.dtx.channel import Connection
    from txnqueue.queue import Queue


logger = logging.getLogger("txnqueue")
SUSPENDED_COUNT = 100
"""With this many suspended sessions, a channel looks up which of them others have resumed."""


class DtxDemarcation(Lifetime):
    """Begin and end of a channel's work in a branch.

    Between ``start`` and ``end``, queues from ``queue`` work in the branch; otherwise each call
    is a transaction of its own.
    """

    def __init__(self, connection: Connection) -> None:
        """Demarcate work on a connection."""
        self._connection = connection
        self._selected = False
        self._working: BranchSession | None = None
        self._suspended: dict[Xid, BranchSession] = {}
        self._look_at_count = SUSPENDED_COUNT
        self._doubtful: dict[Xid, BranchSession] = {}
        """Sessions whose association is in doubt; by their names the journal shows if it landed."""

    @property
    def working(self) -> bool:
        """Whether the channel works in a branch."""
        return self._working is not None

    def select(self) -> None:
        """Use the channel for distributed transactions; repeating it does nothing."""
        self._check_open()
        self._selected = True

    def start(
        self,
        xid: Xid,
        *,
        join: bool = False,
        resume: bool = False,
        ticket: Ticket | None = None,
    ) -> XaStatus:
        """Begin work in a branch, new or already started.

        Args:
            xid: The branch; without ``join`` and ``resume`` it must not have been used before.
            join: Whether the branch was already started, by this channel or another one.
            resume: Whether to resume work in it that was suspended here or elsewhere.
            ticket: Who may work in a new branch and who may decide it; for an existing branch, a
                ticket of its realm.

        Returns:
            xa-ok; or xa-rbrollback if the branch can only be rolled back, and the channel does
            not work in it.

        Raises:
            CommandInvalid: The channel is not selected, or works in a branch; ``join`` and
                ``resume`` are both given; the branch is not suspended, is prepared, or was
                decided by an operator.
            NotAllowed: The xid was used before, or the ticket excludes this principal.
            NotFound: There is no such branch, or it is completed.
            NotImplementedHere: This connection does not support joining.
            InternalError: It failed. Start it again in the same way: if it landed after all, the
                channel works in the branch; ``end`` and ``close`` end that work too.
        """
        check_xid(xid)
        _check_how(ticket, join=join, resume=resume)
        self._check_selected()
        if join and resume:
            raise CommandInvalid("join and resume exclude each other: give one of them.")
        if self._working is not None:
            raise CommandInvalid(f"The channel works in {self._working.id!r}: end that first.")
        if join and not self._connection.join_supported:
            raise NotImplementedHere(
                "This connection does not support joining: create one with join_supported=True."
            )
        found = self._associated(xid, ticket, join=join, resume=resume)
        if isinstance(found, BranchSession):
            self._working = found
        if resume:
            self._suspended.pop(xid, None)
        self._doubtful.pop(xid, None)  # not earlier: after an interrupt the channel must know it
        return XaStatus.RBROLLBACK if isinstance(found, Ending) else XaStatus.OK

    def end(
        self,
        xid: Xid,
        *,
        fail: bool = False,
        suspend: bool = False,
        ticket: Ticket | None = None,
    ) -> XaStatus:
        """End work in a branch: done, failed, or suspended for later.

        Args:
            xid: The branch that the channel works in.
            fail: Whether the branch can only be rolled back from now on.
            suspend: Whether the work is resumed later, by ``start(resume=True)``.
            ticket: As in ``start``.

        Returns:
            xa-ok, xa-rbrollback (the branch can only be rolled back, or was), or xa-rbtimeout
            (it took too long, and was rolled back).

        Raises:
            CommandInvalid: The channel is not selected, or ``fail`` and ``suspend`` are both given.
            NotFound: The channel does not work in this branch, or no longer does: its work is
                suspended, or others have decided it.
            InternalError: It failed: end it again. Until then the branch takes no more work from
                the channel, because its part may be sealed.
        """
        check_xid(xid)
        _check_how(ticket, fail=fail, suspend=suspend)
        self._check_selected()
        if fail and suspend:
            raise CommandInvalid("fail and suspend exclude each other: give one of them.")
        session = self._working
        if session is None or session.id != xid.transaction_id:
            session = self._regained(xid)
            self._working = self._working or session
        return self._end(xid, session, ticket, suspend=suspend, fail=fail)

    def queue(self, name: str) -> Queue:
        """Return a queue, which works in the branch between ``start`` and ``end``.

        A queue taken before ``start`` works in whichever branch the channel works in; one taken
        between ``start`` and ``end`` belongs only to that work.

        Raises:
            QueueNotFound: There is no such queue.
            CommandInvalid: The channel is closed.
        """
        self._check_open()
        if self._working is not None:
            return self._working.queue(name)
        return ChannelQueue(self._connection.manager.queue(name), self._at_work)

    def exchange(self, name: str = "") -> Exchange:
        """Return an exchange, which publishes in the branch between ``start`` and ``end``.

        Raises:
            ExchangeNotFound: There is no such exchange.
            CommandInvalid: The channel is closed.
        """
        self._check_open()
        if self._working is not None:
            return self._working.exchange(name)
        return ChannelExchange(self._connection.manager.exchange(name), self._at_work)

    def close(self) -> None:
        """Close the channel; work that it has not ended counts as failed.

        Repeating it does nothing, or ends what could not be ended before.

        Raises:
            InternalError: Work could not be ended: close it again, or wait for the time-out.
        """
        self._closed = True
        working = self._working
        if working is not None:
            xid = Xid.from_transaction_id(working.id)
            with suppress(NotFound):  # it has already ended
                self._end(xid, working, working.ticket, suspend=False, fail=True)
        for xid in list(self._doubtful):
            with suppress(NotFound):  # it never landed
                session = self._regained(xid)
                self._end(xid, session, session.ticket, suspend=False, fail=True)
        self._doubtful.clear()
        self._suspended.clear()

    # -------------------------------------------------------------------------- helpers

    def _associated(
        self, xid: Xid, ticket: Ticket | None, *, join: bool, resume: bool
    ) -> BranchSession | Ending:
        """Associate with a branch; if that is in doubt, the next try continues it."""
        branches, key = self._connection.branches, xid.transaction_id
        earlier = self._doubtful.get(xid)
        session = self._doubtful[xid] = earlier or branches.session(key)
        try:
            with about_branches() if join or resume else replying():
                if resume:
                    return branches.resume(key, self._suspended.get(xid), ticket, session)
                if join:
                    return branches.join(key, ticket, session)
                seconds = self._connection.default_timeout_seconds
                return branches.start(key, seconds, ticket, session)
        except (NotFound, CommandInvalid, NotAllowed, InvalidInput):
            if earlier is None:  # this try changed nothing
                del self._doubtful[xid]
            raise

    def _regained(self, xid: Xid) -> BranchSession:
        """Find the session of an association in doubt that has landed.

        Raises:
            NotFound: There is no such session.
        """
        state = None
        for known in (self._doubtful, self._suspended):
            session = known.get(xid)
            if session is None:
                continue
            with about_branches():
                state = self._connection.branches.state_of(session)
            if state == model.ASSOCIATED:
                return session
        if state == model.SUSPENDED:
            raise NotFound(f"The work in {xid.transaction_id!r} is suspended: resume it first.")
        self._suspended.pop(xid, None)  # others have resumed it
        raise NotFound(f"The channel does not work in {xid.transaction_id!r}.")

    def _end(
        self, xid: Xid, session: BranchSession, ticket: Ticket | None, *, suspend: bool, fail: bool
    ) -> XaStatus:
        """End a session's work; unless that is in doubt, the channel no longer works in it."""
        try:
            with about_branches():
                ending = self._connection.branches.end(
                    session, suspend=suspend, fail=fail, ticket=ticket
                )
        except NotFound:  # an earlier end landed without a reply, and others continued from there
            self._left(xid, session)
            raise
        self._left(xid, session)
        if suspend and ending is not Ending.TIMED_OUT:
            self._suspended[xid] = session
            if len(self._suspended) >= self._look_at_count:
                self._forget_resumed()
        return STATUS[ending]

    def _forget_resumed(self) -> None:
        """Forget the suspended work that others have resumed or decided since."""
        try:
            left = self._connection.branches.still_suspended(self._suspended.values())
        except Exception as error:  # what was ended has ended all the same
            logger.info("suspended work not looked through error=%s", error)
            return
        self._suspended = {xid: one for xid, one in self._suspended.items() if one.name in left}
        self._look_at_count = max(SUSPENDED_COUNT, 2 * len(self._suspended))

    def _left(self, xid: Xid, session: BranchSession) -> None:
        """Record that a session has stopped working."""
        if self._working is session:
            self._working = None
        for known in (self._doubtful, self._suspended):
            if known.get(xid) is session:
                del known[xid]

    def _at_work(self) -> BranchSession | None:
        """Return the session for calls on a queue that was taken outside any branch."""
        self._check_open()
        return self._working

    def _check_selected(self) -> None:
        self._check_open()
        if not self._selected:
            raise CommandInvalid(
                "The channel is not in use for distributed transactions: call select() first."
            )


def _check_how(ticket: Ticket | None, **flags: bool) -> None:
    """Check the ticket and the flags of a method.

    Raises:
        InvalidInput: One of them is of another type.
    """
    check_ticket(ticket)
    for name, value in flags.items():
        check_flag(name, value)
