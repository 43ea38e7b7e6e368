"""Branches: sessions of any process share one transaction, and anybody decides it.

A session's work is known to others once it has ended: then its part stands in the journal.
A branch that takes too long is rolled back by whoever meets it; a prepared one never.
"""

from __future__ import annotations

from collections.abc import Callable

from txnqueue import branching, demarcating, model
from txnqueue.appending import Landed
from txnqueue.branching import (
    ASSOCIATE,
    COORDINATE,
    HEURISTIC,
    TIMED_OUT,
    Branch,
    Ending,
    Ticket,
)
from txnqueue.client import Client
from txnqueue.closing import is_closed
from txnqueue.errors import (
    BranchExists,
    BranchMisused,
    BranchNotFound,
    QueueError,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.ledger import KeyState
from txnqueue.planning import Plan, Stamp
from txnqueue.receiving import abort_branch
from txnqueue.sessions import Session

Act = Callable[[Branch], "Plan | Ending"]
"""Plans what is wanted of a branch that is undecided, or says what came of it."""


class Branches:
    """What sessions and coordinators do with branches."""

    def __init__(self, client: Client) -> None:
        """Work on a store."""
        self._client = client

    def find(self, key: str) -> Branch:
        """Read a branch.

        Raises:
            BranchNotFound: There is none of this key.
        """
        return branching.found(self._client.key_states([key])[key])

    def waiting(self, ticket: Ticket | None = None) -> list[str]:
        """List the branches that are prepared and undecided, or heuristically completed.

        Args:
            ticket: Leaves out the branches of other realms.
        """
        self._client.open()
        states = KeyState.by_key(self._client.transaction_entries())
        found = (Branch.of(state) for state in states.values())
        return [
            branch.key
            for branch in found
            if branch is not None
            and (branch.heuristic or (branch.prepared and not branch.decision))
            and (ticket is None or branch.realm in (None, ticket.realm))
        ]

    # -------------------------------------------------------------------------- sessions

    def start(self, key: str, timeout_seconds: float, ticket: Ticket | None = None) -> Session:
        """Start a branch, and work in it.

        Args:
            key: Its name.
            timeout_seconds: How long it may take until it is prepared, unless that is set.
            ticket: Who may work in it, and who may decide it; None: anybody.

        Raises:
            BranchExists: It was started before.
            NotPermitted: The ticket keeps ourselves out.
        """
        client = self._client
        client.open()
        name, attempt = client.runtime.new_id(), client.runtime.new_id()
        if ticket is not None:
            branching.check_allowed(key, ticket.to_json(), client.runtime.actor, ASSOCIATE)

        def plan(lost: int) -> Plan:
            begun = client.version_to_begin()  # anew, if the horizon has passed the last one
            state = client.key_state(key)
            if state.branch or state.decisions or state.prepared:
                raise BranchExists(
                    f"Branch {key!r} was started before: join it, or use a new xid.",
                    transaction_id=key,
                )
            return demarcating.start(
                key, attempt, begun, name, timeout_seconds, ticket, client.stamp()
            )

        landed = client.land(plan, "start branch", transaction_id=key)
        assert landed is not None
        return Session(client, key, attempt, landed.entries[0].begun or 0, name)

    def join(self, key: str, ticket: Ticket | None = None) -> Session | Ending:
        """Work in a branch that was started by anybody.

        Returns:
            The session, or why there is none: the branch can only be rolled back.

        Raises:
            BranchNotFound: There is none, or it is completed.
            BranchMisused: It is prepared, or an operator has decided it.
            NotPermitted: It is restricted to others.
        """
        return self._associate(key, ticket, lambda branch: (self._client.runtime.new_id(), None))

    def resume(
        self, key: str, suspended: Session | None = None, ticket: Ticket | None = None
    ) -> Session | Ending:
        """Go on with work that was suspended, by us or by a session of any other process.

        Args:
            key: The branch.
            suspended: Our own suspended session, which goes on with all that it did.
            ticket: As in ``join``.

        Returns:
            As ``join``.

        Raises:
            BranchNotFound: As in ``join``.
            BranchMisused: It is prepared, nothing is suspended, or an operator has decided it.
            NotPermitted: As in ``join``.
        """
        known = suspended.name if suspended is not None else ""

        def choose(branch: Branch) -> tuple[str, str | None] | None:
            if known in branch.suspended:
                return known, known
            if branch.sessions.get(known) == model.ASSOCIATED:
                return None  # an earlier resume landed, unheard
            if not branch.suspended:
                raise BranchMisused(f"Branch {key!r} is not suspended.", transaction_id=key)
            return self._client.runtime.new_id(), branch.suspended[0]

        found = self._associate(key, ticket, choose)
        ours = found is Ending.DONE or (isinstance(found, Session) and found.name == known)
        if suspended is not None and ours:
            suspended.at_work = True
            return suspended
        return found

    def end(
        self,
        session: Session,
        *,
        suspend: bool = False,
        fail: bool = False,
        ticket: Ticket | None = None,
    ) -> Ending:
        """End a session's work, or suspend it: what it did becomes a part of the branch.

        When that is in doubt the session takes no more work, for its part may be sealed. It
        can be ended again, in the same way or otherwise.

        Args:
            session: The session.
            suspend: It goes on later.
            fail: The branch can only be rolled back from now on.
            ticket: As in ``join``.

        Returns:
            ``DONE``, or why the branch can only be rolled back.

        Raises:
            BranchNotFound: It has ended before, and cannot be ended so any more.
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
            return demarcating.end(
                branch, session.name, facts, given_back, stamp, suspend=suspend, fail=fail
            )

        operation = "suspend branch" if suspend else "end branch"
        session.at_work = False
        try:
            ending = self._land(session.id, act, operation, ASSOCIATE, ticket)[1]
        except TxnQueueError as error:
            session.at_work = not isinstance(error, (TransactionUnknown, BranchNotFound))
            raise
        if ending in HEURISTIC:  # it ended unheard, was prepared, and has been decided since
            raise branching.ended_before(session.id)
        return Ending.ROLLED_BACK if ending is Ending.DONE and rollback_only else ending

    # ------------------------------------------------------------------------ decisions

    def prepare(self, key: str, ticket: Ticket | None = None) -> Ending:
        """Promise that a branch can be committed and rolled back, whatever fails.

        Returns:
            ``DONE``; ``READ_ONLY`` if there was nothing to do, and it is committed; else how
            it was rolled back.

        Raises:
            BranchNotFound: There is none, or it is completed.
            BranchMisused: A session works in it, it is prepared, or an operator has decided it.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("prepared")
            if branch.prepared is not None:
                raise BranchMisused(f"Branch {key!r} is prepared.", transaction_id=key)
            stamp = self._client.stamp()
            if branch.rollback_only is not None:
                return demarcating.rollback(branch, stamp, branch.rollback_only)
            kind = model.PREPARED if branch.facts() else model.COMMITTED
            return demarcating.seal(branch, kind, stamp)

        landed, ending = self._land(key, act, "prepare branch", COORDINATE, ticket)
        branching.check_not_heuristic(key, ending)
        kinds = [entry.kind for entry in landed.entries] if landed is not None else []
        return Ending.READ_ONLY if model.COMMITTED in kinds else ending

    def commit(self, key: str, *, one_phase: bool = False, ticket: Ticket | None = None) -> Ending:
        """Commit a prepared branch, or with ``one_phase`` one that is not prepared.

        Returns:
            ``DONE``, or how it was decided otherwise.

        Raises:
            BranchNotFound: There is none, or it is completed.
            BranchMisused: A session works in it, or it is (not) prepared.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("committed")
            if one_phase != (branch.prepared is None):
                raise BranchMisused(
                    f"Branch {key!r} is {'' if one_phase else 'not '}prepared.",
                    transaction_id=key,
                )
            stamp = self._client.stamp()
            if branch.prepared is not None:
                return demarcating.decide(branch, stamp, commit=True)
            if branch.rollback_only is not None:
                return demarcating.rollback(branch, stamp, branch.rollback_only)
            return demarcating.seal(branch, model.COMMITTED, stamp)

        return self._land(key, act, "commit branch", COORDINATE, ticket)[1]

    def rollback(self, key: str, ticket: Ticket | None = None) -> Ending:
        """Roll a branch back, prepared or not.

        Returns:
            ``DONE``, or how it was decided before.

        Raises:
            BranchNotFound: There is none, or it is completed.
            BranchMisused: A session works in it.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            branch.check_ended("rolled back", suspended=True)
            stamp = self._client.stamp()
            if branch.prepared is not None:
                return demarcating.decide(branch, stamp, commit=False)
            return demarcating.rollback(branch, stamp, "rolled back", asked=True)

        return self._land(key, act, "rollback branch", COORDINATE, ticket)[1]

    def forget(self, key: str, ticket: Ticket | None = None) -> None:
        """Forget an operator's decision.

        Raises:
            BranchNotFound: There is no such branch, or it is completed.
            BranchMisused: A session works in it, or no operator has decided it.
            NotPermitted: It is restricted to others.
        """

        def plan(lost: int) -> Plan:
            branch = self._permitted(key, COORDINATE, ticket)
            if branch.ending is None:
                branch.check_ended("forgotten")
            if branch.heuristic is None:
                raise BranchMisused(f"No operator has decided branch {key!r}.", transaction_id=key)
            return demarcating.forget(branch.heuristic, self._client.stamp())

        self._client.open()
        self._client.land(plan, "forget branch", transaction_id=key)

    def set_timeout(self, key: str, seconds: float, ticket: Ticket | None = None) -> Ending:
        """Set how long a branch may take, from its start; 0: the default again.

        Returns:
            ``DONE``, or how it was decided before.

        Raises:
            BranchNotFound: There is none, or it is completed.
            NotPermitted: It is restricted to others.
        """

        def act(branch: Branch) -> Plan | Ending:
            return demarcating.set_timeout(branch, seconds or None, self._client.stamp())

        return self._land(key, act, "set time-out", COORDINATE, ticket)[1]

    def timeout_seconds(self, key: str) -> float:
        """Say how long a branch may take.

        Raises:
            BranchNotFound: There is none, or it is completed.
        """
        self._client.open()
        branch = self.find(key)
        if branch.ending is not None:
            raise BranchNotFound(f"Branch {key!r} is {branch.ending.value}.", transaction_id=key)
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
        choose: Callable[[Branch], tuple[str, str | None] | None],
    ) -> Session | Ending:
        """Associate a session; ``choose`` names it, and what it resumes. None: it is already."""
        made: list[Session] = []

        def act(branch: Branch) -> Plan | Ending:
            if branch.prepared is not None:
                raise BranchMisused(
                    f"Branch {key!r} is prepared and takes no more work.", transaction_id=key
                )
            if branch.rollback_only is not None:
                return Ending.ROLLED_BACK
            chosen = choose(branch)
            if chosen is None:
                return Ending.DONE
            name, resumes = chosen
            made.append(Session(self._client, key, branch.attempt, branch.begun, name))
            return demarcating.associate(branch, name, resumes, self._client.stamp())

        landed, ending = self._land(key, act, "join branch", ASSOCIATE, ticket)
        branching.check_not_heuristic(key, ending)
        if ending is not Ending.DONE or landed is None:
            return ending
        name = landed.entries[0].body["session"]
        return next(session for session in made if session.name == name)

    def _land(
        self, key: str, act: Act, operation: str, role: str, ticket: Ticket | None
    ) -> tuple[Landed | None, Ending]:
        """Append what is wanted of a branch, unless it is decided or took too long."""
        client = self._client
        client.open()
        answer = Ending.DONE

        def plan(lost: int) -> Plan | None:
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
        return landed, Ending.DONE if decision is None else branching.ending_of(decision)


def _rolling_back(error: QueueError, stamp: Stamp) -> Act:
    """Roll a branch back whose queue was dropped under it; nothing else can become of it."""

    def act(branch: Branch) -> Plan | Ending:
        if branch.prepared is not None:
            raise error
        return demarcating.rollback(branch, stamp, str(error))

    return act
