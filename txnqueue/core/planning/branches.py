"""Plan the entries of branches: their sessions, parts and decisions (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, Stamp, decisions
from txnqueue.core.state import AttemptOwner
from txnqueue.core.state.branch import Branch, Ticket


def start(
    key: str,
    attempt: str,
    begun: int,
    session: str,
    timeout_seconds: float,
    *,
    ticket: Ticket | None,
    stamp: Stamp,
) -> Plan:
    """Plan the first entries of a branch: its start, and the association of its first session."""
    owner = AttemptOwner(key, attempt, begun)
    body = {
        "timeout": timeout_seconds,
        "started_at": stamp.now_ms,
        "ticket": None if ticket is None else ticket.to_json(),
    }
    entries = (
        decisions.decision(model.STARTED, owner, stamp, body=body, sequence=1),
        decisions.decision(model.ASSOCIATED, owner, stamp, body={"session": session}, sequence=2),
    )
    return Plan(
        entries, (model.unused(key), model.horizon_at_most(begun), model.layout_unchanged())
    )


def associate(branch: Branch, session: str, resumes: str | None, stamp: Stamp) -> Plan:
    """Plan the association of a session with a branch: a new session, or a resumed one."""
    body = {"session": session} if resumes is None else {"session": session, "resumes": resumes}
    return _next(branch, [(model.ASSOCIATED, body, None)], stamp)


def end(
    branch: Branch,
    session: str,
    facts: Sequence[Entry],
    given_back: Sequence[Entry],
    stamp: Stamp,
    *,
    suspend: bool = False,
    fail: bool = False,
) -> Plan:
    """Plan the end of a session's work, or its suspension, with its part sealed.

    Args:
        branch: The branch.
        session: The session; its former part, if there is one, is replaced.
        facts: The entries that a commit posts and settles.
        given_back: The entries by which a rollback returns messages.
        stamp: The author and the instant.
        suspend: Whether the session is only suspended.
        fail: Whether the work failed, so that the branch can only be rolled back.
    """
    said: list[tuple[str, dict[str, Any], str | None]] = []
    if facts or given_back or session in branch.parts:
        part = {
            "session": session,
            "entries": [] if fail else [decisions.entry_to_json(entry) for entry in facts],
            "claims": [decisions.entry_to_json(entry) for entry in given_back],
        }
        said.append((model.PART, part, None))
    said.append((model.SUSPENDED if suspend else model.ENDED, {"session": session}, None))
    if fail:
        said.append((model.ROLLBACK_ONLY, {"session": session}, "a part of the work failed"))
    return _next(branch, said, stamp)


def set_timeout(branch: Branch, seconds: float | None, stamp: Stamp) -> Plan:
    """Plan a new time-out of a branch; None restores the default."""
    return _next(branch, [(model.TIMEOUT_SET, {"seconds": seconds}, None)], stamp)


def seal(branch: Branch, kind: str, stamp: Stamp) -> Plan:
    """Plan the one append that prepares or commits a branch and names all its parts."""
    facts = branch.facts()
    body: dict[str, Any] = {"parts": {s: part.sequence for s, part in branch.parts.items()}}
    if kind == model.PREPARED:
        body["claims"] = [decisions.entry_to_json(entry) for entry in branch.given_back()]
    else:
        body["asked"] = True
    queue_ids = {entry.queue_id for entry in facts if entry.queue_id is not None}
    sealed = decisions.seal(kind, branch.owner, facts, queue_ids, (), stamp=stamp, body=body)
    return sealed + Plan((), (branch.expects_next(),))


def rollback(branch: Branch, stamp: Stamp, reason: str, *, asked: bool = False) -> Plan:
    """Plan the append that rolls back a branch that is not prepared and has no session at work.

    Args:
        branch: The branch.
        stamp: The author and the instant.
        reason: The reason.
        asked: Whether the coordinator asked for the rollback, and so need not be told of it.
    """
    said = {"asked": True} if asked else {}
    planned = decisions.rollback(branch.owner, branch.given_back(), stamp, reason, said)
    return planned + Plan((), (branch.expects_next(),))


def decide(branch: Branch, stamp: Stamp, *, commit: bool) -> Plan:
    """Plan the append by which the coordinator decides a prepared branch."""
    assert branch.prepared is not None
    reason = None if commit else "rolled back"
    return decisions.decide_prepared(
        branch.prepared, commit=commit, stamp=stamp, reason=reason, said={"asked": True}
    )


def tombstone(branch: Branch, held: Iterable[Entry], stamp: Stamp, reason: str) -> Plan:
    """Plan the append that aborts a branch, whichever sessions work in it.

    Args:
        branch: The branch, not prepared.
        held: The entries that return messages, read from the queues: sessions that have not
            ended have sealed nothing.
        stamp: The author and the instant.
        reason: The reason.
    """
    return decisions.rollback(branch.owner, tuple(held), stamp, reason)


def forget(heuristic: Entry, stamp: Stamp) -> Plan:
    """Plan the entry that forgets an operator's decision, which those concerned now know."""
    owner = AttemptOwner.of(heuristic)
    return Plan(
        (decisions.decision(model.FORGOTTEN, owner, stamp, body={}),),
        (model.not_forgotten(owner.key, owner.attempt), model.layout_unchanged()),
    )


def _next(
    branch: Branch, said: Sequence[tuple[str, dict[str, Any], str | None]], stamp: Stamp
) -> Plan:
    """Plan the next entries of an undecided branch, which must not have been prepared since.

    The horizon does not end a prepared branch.
    """
    prepared = branch.prepared is not None
    entries = tuple(
        decisions.decision(
            kind,
            branch.owner,
            stamp,
            body=body,
            reason=reason,
            sequence=sequence,
        )
        for sequence, (kind, body, reason) in enumerate(said, branch.next_sequence)
    )
    return Plan(
        entries,
        (
            branch.expects_next(),
            model.undecided(branch.key, branch.attempt, unprepared=not prepared),
            *(() if prepared else (model.horizon_at_most(branch.begun),)),
            model.layout_unchanged(),
        ),
    )
