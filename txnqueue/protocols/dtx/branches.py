"""Branches: transactions that sessions of any process share and any coordinator decides.

Each session has a part of the branch, which is in the journal once the session has ended. A
branch that exceeds its time-out is rolled back by the next client that encounters it, unless it
is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from txnqueue.client.append import Landed
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.planning import Plan, Stamp, branches
from txnqueue.core.state import TransactionState
from txnqueue.core.state.branch import (
    ASSOCIATE,
    COORDINATE,
    HEURISTIC,
    TIMED_OUT,
    Branch,
    Ending,
    Ticket,
    check_allowed,
    check_not_heuristic,
    check_ticket,
    ended_before,
    ending_of,
)
from txnqueue.core.state.branch import found as branch_found
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    BranchExists,
    BranchMisused,
    BranchNotFound,
    QueueError,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.messages.takeover import abort_branch
from txnqueue.protocols.dtx.sessions import BranchSession

Act = Callable[[Branch], "Plan | Ending"]
"""Plans an operation on an undecided branch, or returns its result."""


class Branches:
    """The branches of a store: sessions work in them, coordinators decide them."""

    def __init__(self, client: Client) -> None:
        """Work on a store."""
        self._client = client

    def find(self, key: str) -> Branch:
        """Read a branch.

        Raises:
            BranchNotFound: There is no branch with this key.
        """
        return branch_found(self._client.cache.key_states([key])[key])

    def still_suspended(self, sessions: Collection[BranchSession]) -> set[str]:
        """Find which sessions are suspended in branches that are not decided, by their names."""
        states = self._client.cache.key_states(one.id for one in sessions)
        found = {key: Branch.of(state) for key, state in states.items()}
        undecided = {key: branch for key, branch in found.items() if branch and branch.open}
        return {
            one.name
            for one in sessions
            if one.id in undecided and undecided[one.id].sessions.get(one.name) == model.SUSPENDED
        }

    def session(self, key: str) -> BranchSession:
        """Make a session that does not work yet; its name identifies an append without a reply."""
        return BranchSession(self._client, key, "", 0, self._client.runtime.new_id())

    def start(
        self,
        key: str,
        timeout_seconds: float,
        ticket: Ticket | None = None,
        session: BranchSession | None = None,
    ) -> BranchSession | Ending:
        """Start a branch, and work in it.

        Args:
            key: Its name.
            timeout_seconds: How long it may take until it is prepared, unless a time-out is set.
            ticket: Who may work in it, and who may decide it; None: anybody.
            session: The session of an earlier try in doubt, which is continued if it landed.

        Returns:
            The session; or how the branch has ended since an earlier try.

        Raises:
            BranchExists: It was already started by others.
            NotPermitted: The ticket excludes this principal.
        """
        client = self._client
        check_ticket(ticket)
        client.open()
        mine, attempt = session or self.session(key), client.runtime.new_id()
        mine.ticket = ticket
        if ticket is not None:
            check_allowed(key, ticket.to_json(), client.runtime.actor, ASSOCIATE)

        def plan(_lost: int) -> Plan | None:
            begun = client.cache.version_to_begin()  # again, if the horizon passed the last one
            state = client.cache.key_state(key)
            if any(entry.body.get("session") == mine.name for entry in state.branch):
                return None
            if state.branch or state.decisions or state.prepared:
                raise BranchExists(
                    f"Branch {key!r} was already started: join it, or use a new xid.",
                    transaction_id=key,
                )
            return branches.start(
                key, attempt, begun, mine.name, timeout_seconds, ticket=ticket, stamp=client.stamp()
            )

        landed = client.land(plan, "start branch", transaction_id=key)
        if landed is None:
            return self.join(key, ticket, mine)
        mine.belong_to(landed.entries[0].attempt or "", landed.entries[0].begun or 0)
        mine.at_work = True
        return mine

    def join(
        self, key: str, ticket: Ticket | None = None, session: BranchSession | None = None
    ) -> BranchSession | Ending:
        """Work in a branch that any session has started.

        Args:
            key: The branch.
            ticket: A ticket of its realm.
            session: As in ``start``.

        Returns:
            The session, or why there is none because the branch can only be rolled back.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: It is prepared, or an operator has decided it.
            NotPermitted: It is restricted to others.
        """
        mine = session or self.session(key)
        return self._associate(key, ticket, [mine], lambda _branch: (mine, None))

    def resume(
        self,
        key: str,
        suspended: BranchSession | None = None,
        ticket: Ticket | None = None,
        session: BranchSession | None = None,
    ) -> BranchSession | Ending:
        """Resume suspended work of this or any other process.

        Args:
            key: The branch.
            suspended: Our own suspended session, which continues with its work.
            ticket: As in ``join``.
            session: As in ``start``; it continues what others have suspended.

        Returns:
            As ``join``.

        Raises:
            BranchNotFound: As in ``join``.
            BranchMisused: It is prepared, nothing is suspended, or an operator has decided it.
            NotPermitted: As in ``join``.
        """
        other = session or self.session(key)
        own = suspended or other

        def choose(branch: Branch) -> tuple[BranchSession, str | None]:
            if own.name in branch.suspended:
                return own, own.name
            if not branch.suspended:
                raise BranchMisused(
                    f"Branch {key!r} is not suspended: join it, or end it with suspend=True first.",
                    transaction_id=key,
                )
            return other, branch.suspended[0]

        return self._associate(key, ticket, [own, other], choose)

    def state_of(self, session: BranchSession) -> str | None:
        """Return whether a session is associated, suspended or ended; None if it never began.

        An associated session can be ended.

        Raises:
            BranchNotFound: There is no such branch.
        """
        self._client.open()
        branch = self.find(session.id)
        state = branch.sessions.get(session.name)
        if state == model.ASSOCIATED:
            session.belong_to(branch.attempt, branch.begun)
            session.at_work = True
        return state

    def end(
        self,
        session: BranchSession,
        *,
        suspend: bool = False,
        fail: bool = False,
        ticket: Ticket | None = None,
    ) -> Ending:
        """End or suspend a session's work, which becomes a part of the branch.

        If the outcome is in doubt, the session takes no more work, because its part may be sealed;
        it can be ended again, in the same way or another.

        Args:
            session: The session.
            suspend: Whether the work is resumed later.
            fail: Whether the branch can only be rolled back from now on.
            ticket: As in ``join``.

        Returns:
            ``DONE``, or why the branch can only be rolled back.

        Raises:
            BranchNotFound: It has already ended, and can no longer be ended in this way.
            NotPermitted: It is restricted to others.
        """
        rollback_only = fail

        def act(branch: Branch) -> Plan | Ending:
            nonlocal rollback_only
            rollback_only = fail or branch.rollback_only is not None
            if branch.has_ended(session.name, suspend=suspend, fail=fail):
                return Ending.DONE
            stamp = self._client.stamp()
            facts, given_back = session.sealed(stamp)
            return branches.end(
                branch, session.name, facts, given_back, stamp, suspend=suspend, fail=fail
            )

        operation = "suspend branch" if suspend else "end branch"
        was_at_work = session.at_work  # false if an earlier end is in doubt
        session.close()
        try:
            ending = self._land(session.id, act, operation, ASSOCIATE, ticket)[1]
        except TxnQueueError as error:
            in_doubt = isinstance(error, (TransactionUnknown, BranchNotFound))
            session.at_work = was_at_work and not in_doubt
            raise
        if ending in HEURISTIC:  # it ended without a reply, was prepared, and was decided since
            raise ended_before(session.id)
        return Ending.ROLLED_BACK if ending is Ending.DONE and rollback_only else ending

    def waiting(self, ticket: Ticket | None = None) -> list[str]:
        """List the branches that are prepared and undecided, or heuristically completed.

        Args:
            ticket: Excludes the branches of other realms.
        """
        check_ticket(ticket)
        self._client.open()
        states = TransactionState.by_key(self._client.cache.transaction_entries())
        found = (Branch.of(state) for state in states.values())
        return [
            branch.key
            for branch in found
            if branch is not None
            and (branch.heuristic or (branch.prepared and not branch.decision))
            and (ticket is None or branch.realm in (None, ticket.realm))
        ]

    def prepare(self, key: str, ticket: Ticket | None = None) -> Ending:
        """Promise that a branch can be committed or rolled back, whatever fails.

        Returns:
            ``DONE``; ``READ_ONLY`` if there was nothing to do and it is committed; otherwise
            how it was rolled back.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: A session works in it, it is prepared, or an operator has decided it.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("prepared")
            if branch.prepared is not None:
                raise BranchMisused(
                    f"Branch {key!r} is already prepared: commit it or roll it back.",
                    transaction_id=key,
                )
            stamp = self._client.stamp()
            if branch.rollback_only is not None:
                return branches.rollback(branch, stamp, branch.rollback_only)
            kind = model.PREPARED if branch.facts() else model.COMMITTED
            return branches.seal(branch, kind, stamp)

        landed, ending = self._land(key, act, "prepare branch", COORDINATE, ticket)
        check_not_heuristic(key, ending)
        kinds = [entry.kind for entry in landed.entries] if landed is not None else []
        return Ending.READ_ONLY if model.COMMITTED in kinds else ending

    def commit(self, key: str, *, one_phase: bool = False, ticket: Ticket | None = None) -> Ending:
        """Commit a prepared branch, or with ``one_phase`` an unprepared one.

        Returns:
            ``DONE``, or how it was decided otherwise.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: A session works in it, or ``one_phase`` does not fit its state.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("committed")
            if one_phase != (branch.prepared is None):
                remedy = (
                    "is prepared: commit it without one_phase"
                    if one_phase
                    else "is not prepared: prepare it first, or commit it with one_phase=True"
                )
                raise BranchMisused(f"Branch {key!r} {remedy}.", transaction_id=key)
            stamp = self._client.stamp()
            if branch.prepared is not None:
                return branches.decide(branch, stamp, commit=True)
            if branch.rollback_only is not None:
                return branches.rollback(branch, stamp, branch.rollback_only)
            return branches.seal(branch, model.COMMITTED, stamp)

        return self._land(key, act, "commit branch", COORDINATE, ticket)[1]

    def rollback(self, key: str, ticket: Ticket | None = None) -> Ending:
        """Roll back a branch, prepared or not.

        Returns:
            ``DONE``, or how it was decided before.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: A session works in it.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("rolled back", suspended=True)
            stamp = self._client.stamp()
            if branch.prepared is not None:
                return branches.decide(branch, stamp, commit=False)
            return branches.rollback(branch, stamp, "rolled back", asked=True)

        return self._land(key, act, "rollback branch", COORDINATE, ticket)[1]

    def forget(self, key: str, ticket: Ticket | None = None) -> None:
        """Forget an operator's decision.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: A session works in it, or no operator has decided it.
            NotPermitted: It is restricted to others.
        """

        def plan(_lost: int) -> Plan:
            branch = self._permitted(key, COORDINATE, ticket)
            if branch.ending is None:
                branch.check_ended("forgotten")
            if branch.heuristic is None:
                raise BranchMisused(
                    f"No operator has decided branch {key!r}: there is nothing to forget.",
                    transaction_id=key,
                )
            return branches.forget(branch.heuristic, self._client.stamp())

        self._client.open()
        self._client.land(plan, "forget branch", transaction_id=key)

    def set_timeout(self, key: str, seconds: float, ticket: Ticket | None = None) -> Ending:
        """Set how many seconds a branch may take from its start; 0 restores the default.

        Returns:
            ``DONE``, or how it was decided before.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            return branches.set_timeout(branch, seconds or None, self._client.stamp())

        return self._land(key, act, "set time-out", COORDINATE, ticket)[1]

    def timeout_seconds(self, key: str) -> float:
        """Return how many seconds a branch may take, even if they are over but not acted upon yet.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
        """
        self._client.open()
        branch = self.find(key)
        if branch.ending is not None:
            raise BranchNotFound(
                f"Branch {key!r} is {branch.ending.value}: its time-out is known only until the "
                "branch ends.",
                transaction_id=key,
            )
        return branch.timeout_seconds

    # -------------------------------------------------------------------------- helpers

    def _permitted(self, key: str, role: str, ticket: Ticket | None) -> Branch:
        branch = self.find(key)
        branch.check_presented(ticket)
        branch.check_permitted(self._client.runtime.actor, role)
        return branch

    def _associate(
        self,
        key: str,
        ticket: Ticket | None,
        sessions: Sequence[BranchSession],
        choose: Callable[[Branch], tuple[BranchSession, str | None]],
    ) -> BranchSession | Ending:
        """Associate the session that ``choose`` returns, together with what it resumes."""
        found: list[BranchSession] = []
        for session in sessions:
            session.ticket = ticket

        def act(branch: Branch) -> Plan | Ending:
            for session in sessions:
                session.belong_to(branch.attempt, branch.begun)
            found[:] = [s for s in sessions if branch.sessions.get(s.name) == model.ASSOCIATED]
            if found:
                return Ending.DONE  # an earlier try landed without a reply
            if branch.prepared is not None:
                raise BranchMisused(
                    f"Branch {key!r} is prepared and takes no more work: commit it or roll it "
                    "back, then start another branch.",
                    transaction_id=key,
                )
            if branch.rollback_only is not None:
                return Ending.ROLLED_BACK
            chosen, resumes = choose(branch)
            return branches.associate(branch, chosen.name, resumes, self._client.stamp())

        landed, ending = self._land(key, act, "join branch", ASSOCIATE, ticket)
        check_not_heuristic(key, ending)
        if ending is not Ending.DONE:
            return ending
        if landed is not None:
            name = landed.entries[0].body["session"]
            found = [session for session in sessions if session.name == name]
        found[0].at_work = True
        return found[0]

    def _land(
        self, key: str, act: Act, operation: str, role: str, ticket: Ticket | None
    ) -> tuple[Landed | None, Ending]:
        """Append an operation on a branch, unless the branch is decided or took too long."""
        client = self._client
        client.open()
        answer = Ending.DONE

        def plan(_lost: int) -> Plan | None:
            nonlocal answer
            branch = self._permitted(key, role, ticket)
            found: Plan | Ending | None = branch.ending
            if found is None and branch.overdue(client.runtime.now_ms()):
                found = abort_branch(client, branch, TIMED_OUT)
            if found is None:
                found = act(branch)
            if isinstance(found, Plan):
                return found
            answer = found
            return None

        try:
            landed = client.land(plan, operation, transaction_id=key)
        except QueueError as error:
            if not is_closed(error):
                raise
            return self._land(key, _rolling_back(error, client.stamp()), operation, role, ticket)
        if landed is None:
            return None, answer
        decision = next((e for e in landed.entries if e.kind in model.DECISIONS), None)
        return landed, Ending.DONE if decision is None else ending_of(decision)


def _rolling_back(error: QueueError, stamp: Stamp) -> Act:
    """Roll back a branch whose queue was dropped meanwhile: it can no longer commit."""

    def act(branch: Branch) -> Plan | Ending:
        if branch.prepared is not None:
            raise error
        return branches.rollback(branch, stamp, str(error))

    return act
