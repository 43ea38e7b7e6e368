"""Branches: transactions that several sessions share (pure).

A branch is in the journal from its start. Each session's work is a *part*, sealed when the
session ends or is suspended, with the entries that it posts and settles and those that a rollback
returns. The append that prepares or commits takes the parts from the journal, so any process may
make it. It expects that no entry of the branch was written since, so that no session is at work and
no part is missing.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Condition, Entry
from txnqueue.core.planning import decisions
from txnqueue.core.settings import BRANCH_PREFIX, check_id, check_texts, shown
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.errors import (
    BranchMisused,
    BranchNotFound,
    InvalidInput,
    NotPermitted,
    StoreCorrupt,
)

TIMED_OUT = "time-out"
"""The reason of the rollback of a branch that took too long."""
ASSOCIATE, COORDINATE = "associate", "coordinate"
"""The roles that a ticket may restrict: working in a branch, and deciding it."""


class Ending(str, enum.Enum):
    """The result of a request to end or to decide a branch."""

    DONE = "done"
    READ_ONLY = "read-only"
    ROLLED_BACK = "rolled back"
    TIMED_OUT = "timed out"
    HEURISTIC_COMMIT = "heuristically committed"
    HEURISTIC_ROLLBACK = "heuristically rolled back"


HEURISTIC = (Ending.HEURISTIC_COMMIT, Ending.HEURISTIC_ROLLBACK)
"""The results if an operator has decided, and the decision is not forgotten."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who may work in a branch, and who may decide it; fixed when the branch is started.

    Attributes:
        realm: The ticket's name: each session in the branch presents a ticket of this realm.
        associate: The principals that may work in the branch; None for any.
        coordinate: The principals that may decide it; None for any.

    Raises:
        InvalidInput: A value cannot be used; a single principal must be given in a tuple, too.
    """

    realm: str
    associate: tuple[str, ...] | None = None
    coordinate: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        check_id(self.realm, "realm")
        for role in (ASSOCIATE, COORDINATE):
            allowed = getattr(self, role)
            if allowed is not None:
                named = check_texts(role, allowed, "a tuple of principals")
                object.__setattr__(self, role, named)

    def to_json(self) -> dict[str, Any]:
        """Write the ticket for an entry's body."""
        return {"realm": self.realm, ASSOCIATE: self.associate, COORDINATE: self.coordinate}


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch at one version of the journal.

    Attributes:
        key: Its name, which is a transaction's key.
        attempt: The only attempt of the key.
        begun: The journal's version at which it began.
        next_sequence: The sequence number of its next entry.
        started_at_ms: When it was started, by the starter's clock.
        began_by_ms: The smallest clock that any client has recorded since.
        timeout_seconds: The time-out in seconds as last set, or as the starter gave it.
        sessions: ``associated``, ``suspended`` or ``ended``, by session.
        parts: The newest part of each session.
        rollback_only: Why it can only be rolled back; None if it can be committed.
        ticket: The ticket that restricts it; None if any principal may work in it and decide it.
        prepared: The entry that prepared it, if any.
        decision: The entry that decided it, if any.
        heuristic: The operator's decision, unless it is forgotten.
        lost: Whether the horizon passed it while it was undecided and not prepared: then it can
            no longer be decided, and never happened.
    """

    key: str
    attempt: str
    begun: int
    next_sequence: int
    started_at_ms: int
    began_by_ms: int
    timeout_seconds: float
    sessions: Mapping[str, str]
    parts: Mapping[str, Entry]
    rollback_only: str | None
    ticket: Mapping[str, Any] | None
    prepared: Entry | None
    decision: Entry | None
    heuristic: Entry | None
    lost: bool

    @classmethod
    def of(cls, state: TransactionState) -> Branch | None:
        """Fold the entries of a key into a branch; None if the key is not a branch's.

        Raises:
            StoreCorrupt: A branch that was never started has entries.
        """
        entries = state.branch  # in commit order, which is that of their sequences
        if not entries:
            return None
        first = entries[0]
        if first.kind != model.STARTED:
            raise StoreCorrupt(
                f"The branch {state.key!r} has entries but was never started: stop writing to the "
                "store, and keep it as it is."
            )
        default = timeout = first.body["timeout"]
        sessions: dict[str, str] = {}
        parts: dict[str, Entry] = {}
        rollback_only = None
        for entry in entries:
            name = entry.body.get("session", "")
            if entry.kind == model.ASSOCIATED:
                resumed = entry.body.get("resumes")
                if resumed is not None:
                    sessions[resumed] = model.ENDED
                sessions[name] = model.ASSOCIATED
            elif entry.kind in (model.SUSPENDED, model.ENDED):
                sessions[name] = entry.kind
            elif entry.kind == model.PART:
                parts[name] = entry
            elif entry.kind == model.ROLLBACK_ONLY:
                rollback_only = entry.reason
            elif entry.kind == model.TIMEOUT_SET:
                timeout = entry.body["seconds"] or default
        owner = AttemptOwner.of(first)
        attempt = owner.attempt
        decision = state.decisions.get(attempt)
        return cls(
            key=state.key,
            attempt=attempt,
            begun=owner.begun,
            next_sequence=(entries[-1].sequence or 0) + 1,
            started_at_ms=first.body["started_at"],
            began_by_ms=state.began_by_ms,
            timeout_seconds=timeout,
            sessions=sessions,
            parts=parts,
            rollback_only=rollback_only,
            ticket=first.body["ticket"],
            prepared=state.prepared.get(attempt),
            decision=decision,
            heuristic=state.heuristics.get(attempt),
            lost=decision is None and state.is_over(owner),
        )

    @property
    def owner(self) -> AttemptOwner:
        """The attempt as the owner of decisions."""
        return AttemptOwner(self.key, self.attempt, self.begun)

    @property
    def open(self) -> bool:
        """Whether the branch is neither prepared nor decided, and can still be."""
        return self.prepared is None and self.decision is None and not self.lost

    @property
    def realm(self) -> str | None:
        """The realm of the tickets that sessions must present; None if it is not restricted."""
        return None if self.ticket is None else str(self.ticket["realm"])

    @property
    def associated(self) -> bool:
        """Whether a session is at work."""
        return model.ASSOCIATED in self.sessions.values()

    @property
    def suspended(self) -> list[str]:
        """The sessions that are suspended."""
        return [name for name, state in self.sessions.items() if state == model.SUSPENDED]

    @property
    def ending(self) -> Ending | None:
        """How others than the coordinator ended the branch; None while it is undecided.

        Raises:
            BranchNotFound: The coordinator has completed it, or an operator's decision is
                forgotten.
        """
        if self.decision is None:
            return Ending.TIMED_OUT if self.lost else None
        committed = self.decision.kind == model.COMMITTED
        if self.heuristic is not None:
            return Ending.HEURISTIC_COMMIT if committed else Ending.HEURISTIC_ROLLBACK
        if committed or self.decision.body.get("asked"):
            raise BranchNotFound(
                f"Branch {self.key!r} is already completed ({self.decision.kind}); start another "
                "branch for new work.",
                transaction_id=self.key,
            )
        return ending_of(self.decision)

    def ends_at_ms(self, now_ms: int, began_by_ms: int = sys.maxsize) -> int:
        """Return the instant by which it has to be prepared or decided, as seen at ``now_ms``.

        A branch that seems to begin in the future was started by a clock that is ahead. It began
        at the latest at the smallest clock recorded since, as a lease does.

        Args:
            now_ms: The present instant.
            began_by_ms: An instant by which it had certainly begun, known otherwise.
        """
        began_at_ms = self.started_at_ms
        if began_at_ms > now_ms:
            began_at_ms = min(began_at_ms, self.began_by_ms, began_by_ms)
        return began_at_ms + round(self.timeout_seconds * 1000)

    def overdue(self, now_ms: int, began_by_ms: int = sys.maxsize) -> bool:
        """Return whether its time-out is over at an instant; never once it is prepared."""
        return self.open and self.ends_at_ms(now_ms, began_by_ms) <= now_ms

    def facts(self) -> list[Entry]:
        """Return the entries that a commit posts and settles, in the order of sealing."""
        return [entry for part in self._parts() for entry in _entries(part, "entries")]

    def given_back(self) -> list[Entry]:
        """Return the entries by which a rollback returns the messages that the parts acquired."""
        return [entry for part in self._parts() for entry in _entries(part, "claims")]

    def check_ended(self, what: str, *, suspended: bool = False) -> None:
        """Check that no session works in the branch; suspended ones may be permitted.

        Raises:
            BranchMisused: A session works in the branch, or is suspended.
        """
        if self.associated or (self.suspended and not suspended):
            raise BranchMisused(
                f"Branch {self.key!r} cannot be {what}: a session "
                f"{'works in it' if self.associated else 'is suspended in it'}. Let it end its "
                "work there first.",
                transaction_id=self.key,
            )

    def has_ended(self, session: str, *, suspend: bool, fail: bool) -> bool:
        """Return whether an earlier end of a session landed without a reply, as it is wanted now.

        Raises:
            BranchNotFound: Another end landed that cannot be changed, or the session is missing,
                as in a store that was put back.
        """
        found = self.sessions.get(session)
        if found is None:
            raise BranchNotFound(
                f"The work in branch {self.key!r} is not in the store, which may have been "
                "restored to an older state: join the branch, and do the work again.",
                transaction_id=self.key,
            )
        if found == model.ASSOCIATED:
            return False
        wanted = model.SUSPENDED if suspend else model.ENDED
        if self.rollback_only is not None if fail else found == wanted:
            return True
        if self.prepared is not None or suspend:
            raise ended_before(self.key)
        return False

    def check_permitted(self, principal: str, role: str) -> None:
        """Check that a principal may associate with the branch, or coordinate it.

        Raises:
            NotPermitted: The branch is restricted to others.
        """
        if self.ticket is not None:
            check_allowed(self.key, self.ticket, principal, role)

    def check_presented(self, ticket: Ticket | None) -> None:
        """Check that a ticket is of the branch's realm.

        Raises:
            InvalidInput: The value is not a ticket.
            NotPermitted: The ticket is of another realm, or is missing.
        """
        check_ticket(ticket)
        if self.realm is not None and (ticket is None or ticket.realm != self.realm):
            raise NotPermitted(
                f"Branch {self.key!r} belongs to the realm {self.realm!r}: present a ticket for "
                "it.",
                transaction_id=self.key,
            )

    def expects_next(self) -> Condition:
        """Expect that no entry of the branch has been written since."""
        return model.next_sequence(model.transaction_shard(self.key), self.key, self.next_sequence)

    def _parts(self) -> list[Entry]:
        return sorted(self.parts.values(), key=lambda part: part.sequence or 0)


def fold(key: str, entries: Iterable[Entry]) -> Branch:
    """Fold the entries of a branch.

    Raises:
        BranchNotFound: The key is not a branch's.
    """
    return found(TransactionState.of(key, entries))


def found(state: TransactionState) -> Branch:
    """Return the branch of a key that must be a branch's.

    Raises:
        BranchNotFound: There is no branch of this key.
    """
    branch = Branch.of(state)
    if branch is None:
        raise BranchNotFound(
            f"There is no branch {state.key!r}: check the xid, or start the branch first.",
            transaction_id=state.key,
        )
    return branch


def check_allowed(key: str, ticket: Mapping[str, Any], principal: str, role: str) -> None:
    """Check that a ticket permits a principal to associate with a branch, or to coordinate it.

    Raises:
        NotPermitted: The ticket names others.
    """
    allowed = ticket[role]
    if allowed is not None and principal not in allowed:
        raise NotPermitted(
            f"Branch {key!r} is restricted: {principal!r} may not {role}; "
            f"{', '.join(allowed) or 'no one'} may.",
            transaction_id=key,
        )


def check_ticket(ticket: object) -> None:
    """Check that a presented value is a ticket or None.

    Raises:
        InvalidInput: The value is something else.
    """
    if ticket is not None and not isinstance(ticket, Ticket):
        raise InvalidInput(f"ticket={shown(ticket)}: give an AccessTicket.", name="ticket")


def check_not_heuristic(key: str, ending: Ending) -> None:
    """Check that no operator has decided a branch; only its coordinator is told the decision.

    Raises:
        BranchMisused: An operator has decided the branch.
    """
    if ending in HEURISTIC:
        raise BranchMisused(
            f"Branch {key!r} is {ending.value}: commit it or roll it back to learn the outcome, "
            "then forget it.",
            transaction_id=key,
        )


def ended_before(key: str) -> BranchNotFound:
    """Make the error for a session whose work has ended already."""
    return BranchNotFound(
        f"The work in branch {key!r} has already ended: join the branch for more work, or resume "
        "the work if it was suspended.",
        transaction_id=key,
    )


def is_branch(key: str) -> bool:
    """Return whether a transaction's key names a branch."""
    return key.startswith(BRANCH_PREFIX)


def ending_of(decision: Entry) -> Ending:
    """Return the result that a recorded decision gives to a request."""
    if decision.kind == model.COMMITTED or decision.body.get("asked"):
        return Ending.DONE
    return Ending.TIMED_OUT if decision.reason == TIMED_OUT else Ending.ROLLED_BACK


def _entries(part: Entry, which: str) -> list[Entry]:
    return [decisions.entry_from_json(data) for data in part.body[which]]
