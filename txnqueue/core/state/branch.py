"""Branches: transactions that several sessions share, and what is planned of them (pure).

A branch is known from its start. Each session's work is a *part*: sealed when the session
ends or is suspended, with what it posts, settles and would give back. What prepares or
commits reads the parts from the journal, so that it may be another process than the
sessions', and expects that no entry of the branch was written since: no session is
at work, and no part is left out.
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
from txnqueue.core.settings import BRANCH_PREFIX, check_id
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.errors import (
    BranchMisused,
    BranchNotFound,
    InvalidInput,
    NotPermitted,
    StoreCorrupt,
)

TIMED_OUT = "time-out"
"""Why a branch was rolled back that took too long."""
ASSOCIATE, COORDINATE = "associate", "coordinate"
"""What a ticket may restrict: to work in a branch, and to decide it."""


class Ending(str, enum.Enum):
    """What came of a wish to end or to decide a branch."""

    DONE = "done"
    READ_ONLY = "read-only"
    ROLLED_BACK = "rolled back"
    TIMED_OUT = "timed out"
    HEURISTIC_COMMIT = "heuristically committed"
    HEURISTIC_ROLLBACK = "heuristically rolled back"


HEURISTIC = (Ending.HEURISTIC_COMMIT, Ending.HEURISTIC_ROLLBACK)
"""That an operator has decided, and the decision is not forgotten."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who may work in a branch, and who may decide it; fixed when the branch is started.

    Attributes:
        realm: Names the ticket: each session in the branch presents one of its realm.
        associate: The principals that may work in the branch; None: any.
        coordinate: The principals that may decide it; None: any.

    Raises:
        InvalidInput: One of them cannot be used: one name is a tuple, too.
    """

    realm: str
    associate: tuple[str, ...] | None = None
    coordinate: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check what was given."""
        check_id(self.realm, "realm")
        for role in (ASSOCIATE, COORDINATE):
            allowed = getattr(self, role)
            if allowed is None:
                continue
            if not isinstance(allowed, (tuple, list)):  # a text would permit every part of it
                raise InvalidInput(f"{role}={allowed!r}: give a tuple of principals.", name=role)
            for principal in allowed:
                check_id(principal, role)

    def to_json(self) -> dict[str, Any]:
        """Write it into a body."""
        return {"realm": self.realm, ASSOCIATE: self.associate, COORDINATE: self.coordinate}


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch at one version of the journal.

    Attributes:
        key: Its name, which is a transaction's key.
        attempt: The only attempt of the key.
        begun: Where it began.
        next_sequence: What its next entry expects.
        started_at_ms: When it was started, by its starter's clock.
        began_by_ms: The smallest clock that anybody has recorded since.
        timeout_default: In seconds; as its starter gave it.
        timeout_seconds: As last set, or the default.
        sessions: ``associated``, ``suspended`` or ``ended``, by session.
        parts: The newest part of each session.
        rollback_only: Why it can only be rolled back, if so.
        ticket: Who is restricted to what.
        prepared: What was prepared.
        decision: What was decided.
        heuristic: The operator's decision, unless it is forgotten.
        lost: Whether the horizon has passed it while it was undecided and not prepared: then
            it is never decided any more, and never happened.
    """

    key: str
    attempt: str
    begun: int
    next_sequence: int
    started_at_ms: int
    began_by_ms: int
    timeout_default: float
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
        """Fold what the journal says of a key; None if it is no branch.

        Raises:
            StoreCorrupt: Something was written of a branch that was never started.
        """
        entries = sorted(state.branch, key=lambda entry: entry.sequence or 0)
        if not entries:
            return None
        first = entries[0]
        if first.kind != model.STARTED:
            raise StoreCorrupt(
                f"The branch {state.key!r} has entries, and was never started: stop "
                "writing to the store, and keep it as it is."
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
            timeout_default=default,
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
        """Whether it is neither prepared nor decided, and may be."""
        return self.prepared is None and self.decision is None and not self.lost

    @property
    def realm(self) -> str | None:
        """The realm whose tickets are asked for; None if it is not restricted."""
        return None if self.ticket is None else str(self.ticket["realm"])

    @property
    def associated(self) -> bool:
        """Whether a session is at work."""
        return model.ASSOCIATED in self.sessions.values()

    @property
    def suspended(self) -> list[str]:
        """The sessions that are to be resumed."""
        return [name for name, state in self.sessions.items() if state == model.SUSPENDED]

    @property
    def ending(self) -> Ending | None:
        """How it was ended by others than its coordinator; None while it is undecided.

        Raises:
            BranchNotFound: Its coordinator has completed it, or an operator's decision is
                forgotten.
        """
        if self.decision is None:
            return Ending.TIMED_OUT if self.lost else None
        committed = self.decision.kind == model.COMMITTED
        if self.heuristic is not None:
            return Ending.HEURISTIC_COMMIT if committed else Ending.HEURISTIC_ROLLBACK
        if committed or self.decision.body.get("asked"):
            raise BranchNotFound(
                f"Branch {self.key!r} is completed: it was {self.decision.kind} before.",
                transaction_id=self.key,
            )
        return ending_of(self.decision)

    def ends_at_ms(self, now_ms: int, began_by_ms: int = sys.maxsize) -> int:
        """Return until when it has to be prepared or decided, as seen at an instant.

        A branch that is to begin in the future was started by a clock that is ahead. It began at
        the smallest clock recorded since at the latest, as a lease does.

        Args:
            now_ms: The instant.
            began_by_ms: When it had surely begun, by what else is known.
        """
        began_at_ms = self.started_at_ms
        if began_at_ms > now_ms:
            began_at_ms = min(began_at_ms, self.began_by_ms, began_by_ms)
        return began_at_ms + round(self.timeout_seconds * 1000)

    def overdue(self, now_ms: int, began_by_ms: int = sys.maxsize) -> bool:
        """Return whether its time is over at an instant; never once it is prepared."""
        return self.open and self.ends_at_ms(now_ms, began_by_ms) <= now_ms

    def facts(self) -> list[Entry]:
        """Write what a commit posts and settles: the parts, in the order of their sealing."""
        return [entry for part in self._parts() for entry in _entries(part, "entries")]

    def given_back(self) -> list[Entry]:
        """Write what a roll back gives back: what the parts acquired."""
        return [entry for part in self._parts() for entry in _entries(part, "claims")]

    def check_ended(self, what: str, *, suspended: bool = False) -> None:
        """Check that no session works in it; a suspended one may be allowed for.

        Raises:
            BranchMisused: One does.
        """
        if self.associated or (self.suspended and not suspended):
            raise BranchMisused(
                f"Branch {self.key!r} cannot be {what}: a session "
                f"{'works in it' if self.associated else 'is suspended in it'}.",
                transaction_id=self.key,
            )

    def has_ended(self, session: str, *, suspend: bool, fail: bool) -> bool:
        """Return whether an earlier end of a session landed unheard, and is the one wanted now.

        Raises:
            BranchNotFound: It landed, and nothing else can be made of it; or the session is not
                there, as in a store that was put back.
        """
        found = self.sessions.get(session)
        if found is None:
            raise BranchNotFound(
                f"The work in branch {self.key!r} is not in the store, which may have been put "
                "back: join the branch, and do the work again.",
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
        """Check that a session may associate with it, or coordinate it.

        Raises:
            NotPermitted: It is restricted to others.
        """
        if self.ticket is not None:
            check_allowed(self.key, self.ticket, principal, role)

    def check_presented(self, ticket: Ticket | None) -> None:
        """Check that a ticket is of the branch's realm.

        Raises:
            InvalidInput: It is no ticket.
            NotPermitted: It is of another one, or there is none.
        """
        check_ticket(ticket)
        if self.realm is not None and (ticket is None or ticket.realm != self.realm):
            raise NotPermitted(
                f"Branch {self.key!r} is of the realm {self.realm!r}: present a ticket for it.",
                transaction_id=self.key,
            )

    def expects_next(self) -> Condition:
        """Expect that nothing has been written of it since."""
        return model.next_sequence(model.transaction_shard(self.key), self.key, self.next_sequence)

    def _parts(self) -> list[Entry]:
        return sorted(self.parts.values(), key=lambda part: part.sequence or 0)


def fold(key: str, entries: Iterable[Entry]) -> Branch:
    """Fold the entries of a branch.

    Raises:
        BranchNotFound: They are of none.
    """
    return found(TransactionState.of(key, entries))


def found(state: TransactionState) -> Branch:
    """Fold what the journal says of a key that must be a branch's.

    Raises:
        BranchNotFound: It is none.
    """
    branch = Branch.of(state)
    if branch is None:
        raise BranchNotFound(
            f"There is no branch {state.key!r}: check the xid, or start the branch first.",
            transaction_id=state.key,
        )
    return branch


def check_allowed(key: str, ticket: Mapping[str, Any], principal: str, role: str) -> None:
    """Check that a ticket permits to associate with a branch, or to coordinate it.

    Raises:
        NotPermitted: It names others.
    """
    allowed = ticket[role]
    if allowed is not None and principal not in allowed:
        raise NotPermitted(
            f"Branch {key!r} is restricted: {principal!r} may not {role}; "
            f"{', '.join(allowed) or 'no one'} may.",
            transaction_id=key,
        )


def check_ticket(ticket: object) -> None:
    """Check that what is presented, if anything, is a ticket.

    Raises:
        InvalidInput: It is something else.
    """
    if ticket is not None and not isinstance(ticket, Ticket):
        raise InvalidInput(f"ticket={ticket!r}: give an AccessTicket.", name="ticket")


def check_not_heuristic(key: str, ending: Ending) -> None:
    """Check that no operator has decided a branch; only who decides it is told how.

    Raises:
        BranchMisused: One has.
    """
    if ending in HEURISTIC:
        raise BranchMisused(
            f"Branch {key!r} is {ending.value}: commit or roll it back to be told, then forget it.",
            transaction_id=key,
        )


def ended_before(key: str) -> BranchNotFound:
    """Make the error that says that a session's work has ended before."""
    return BranchNotFound(
        f"The work in branch {key!r} has ended already: join the branch for more work, or resume "
        "the work if it was suspended.",
        transaction_id=key,
    )


def is_branch(key: str) -> bool:
    """Return whether a transaction's key names a branch."""
    return key.startswith(BRANCH_PREFIX)


def ending_of(decision: Entry) -> Ending:
    """Return the result of a request, from the decision that was written."""
    if decision.kind == model.COMMITTED or decision.body.get("asked"):
        return Ending.DONE
    return Ending.TIMED_OUT if decision.reason == TIMED_OUT else Ending.ROLLED_BACK


def _entries(part: Entry, which: str) -> list[Entry]:
    return [decisions.entry_from_json(data) for data in part.body[which]]
