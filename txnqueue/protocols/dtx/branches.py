"""Branches: sessions of any process share one transaction, and anybody decides it.

A branch that takes too long is rolled back by whoever meets it; a prepared one never.
"""

from __future__ import annotations

from txnqueue.core import model
from txnqueue.core.planning import Plan, branches
from txnqueue.core.state import TransactionState
from txnqueue.core.state.branch import COORDINATE, Branch, Ending, Ticket, check_not_heuristic
from txnqueue.errors import BranchMisused, BranchNotFound
from txnqueue.protocols.dtx.associations import Associations


class Branches(Associations):
    """What sessions and coordinators do with branches."""

    def waiting(self, ticket: Ticket | None = None) -> list[str]:
        """List the branches that are prepared and undecided, or heuristically completed.

        Args:
            ticket: Leaves out the branches of other realms.
        """
        self._client.open()
        states = TransactionState.by_key(self._client.transaction_entries())
        found = (Branch.of(state) for state in states.values())
        return [
            branch.key
            for branch in found
            if branch is not None
            and (branch.heuristic or (branch.prepared and not branch.decision))
            and (ticket is None or branch.realm in (None, ticket.realm))
        ]

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
                return branches.rollback(branch, stamp, branch.rollback_only)
            kind = model.PREPARED if branch.facts() else model.COMMITTED
            return branches.seal(branch, kind, stamp)

        landed, ending = self._land(key, act, "prepare branch", COORDINATE, ticket)
        check_not_heuristic(key, ending)
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
                return branches.decide(branch, stamp, commit=True)
            if branch.rollback_only is not None:
                return branches.rollback(branch, stamp, branch.rollback_only)
            return branches.seal(branch, model.COMMITTED, stamp)

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
                raise BranchMisused(f"No operator has decided branch {key!r}.", transaction_id=key)
            return branches.forget(branch.heuristic, self._client.stamp())

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
            return branches.set_timeout(branch, seconds or None, self._client.stamp())

        return self._land(key, act, "set time-out", COORDINATE, ticket)[1]

    def timeout_seconds(self, key: str) -> float:
        """Say how long a branch may take, even if that is over and nobody has noticed yet.

        Raises:
            BranchNotFound: There is none, or it is completed.
        """
        self._client.open()
        branch = self.find(key)
        if branch.ending is not None:
            raise BranchNotFound(f"Branch {key!r} is {branch.ending.value}.", transaction_id=key)
        return branch.timeout_seconds
