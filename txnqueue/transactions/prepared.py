"""Decide prepared transactions, and forget heuristic decisions."""

from __future__ import annotations

from typing import NoReturn

from txnqueue.client import archive
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, branches
from txnqueue.core.planning import decisions as planned
from txnqueue.core.receipt import Receipt
from txnqueue.core.state import TransactionState
from txnqueue.core.state.branch import COORDINATE, Branch, is_branch
from txnqueue.errors import (
    DecidedByDatabase,
    HeuristicNotFound,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
)
from txnqueue.messages.takeover import abort_branch
from txnqueue.transactions.table_applier import follow, is_applied


def decide_prepared(
    client: Client,
    key: str,
    *,
    commit: bool,
    reason: str | None = None,
    attempt: str | None = None,
    by_last_resource: bool = False,
    heuristic: bool = False,
    counted: bool = True,
) -> Receipt | None:
    """Decide a prepared transaction; any client may, and repeating the decision is a no-op.

    Args:
        client: The client that decides.
        key: The transaction.
        commit: Whether to commit; else it is rolled back.
        reason: The reason.
        attempt: The attempt; the prepared one when left out.
        by_last_resource: Whether this is the decision of the transaction's last resource.
        heuristic: Whether an operator decides in place of the coordinator.
        counted: Whether a rollback counts as a delivery of the returned messages.

    Returns:
        The receipt of a commit; None of a rollback.

    Raises:
        TransactionFinished: The transaction is already decided otherwise.
        TransactionNotFound: Nothing is recorded of the transaction.
        TransactionNotPrepared: The transaction is undecided, and not prepared.
        DecidedByDatabase: A database decides the transaction.
        NotPermitted: The transaction is a branch that is restricted to other principals.
        HistoryRemoved: Nothing is recorded of the transaction, and it may have been removed.
    """
    wanted = model.COMMITTED if commit else model.ROLLED_BACK
    already: list[Entry] = []

    def plan(_lost: int) -> Plan | None:
        already.clear()
        state = client.cache.key_state(key)
        prepared = state.in_doubt
        branch = None if heuristic else _permitted(client, state)
        if branch is not None and branch.open and not commit:
            return abort_branch(client, branch, reason or "rolled back")
        if branch is not None and branch.lost and not commit:
            return None  # the horizon has passed the branch, so it never happened
        if prepared is not None and attempt in (None, prepared.attempt):
            if not (by_last_resource or heuristic):
                _check_not_of_database(prepared)
            return planned.decide_prepared(
                prepared,
                commit=commit,
                stamp=client.stamp(),
                reason=reason,
                heuristic=heuristic,
                counted=counted,
            )
        found = _decision_of(state, branch, attempt)
        if found is None:
            _check_found_prepared(client, state)
        _check_same(found, wanted, state, heuristic=heuristic)
        already.append(found)
        return None

    landed = client.land(plan, _operation(commit=commit, heuristic=heuristic), transaction_id=key)
    if not commit:
        return None
    entries = landed.entries if landed is not None else already
    decided = next(e for e in entries if e.kind == wanted and e.stream == key)
    return Receipt.of(decided, applied=follow(client, decided))


def forget(client: Client, key: str) -> None:
    """Forget that an operator decided a transaction; its outcome stays.

    Raises:
        TransactionNotFound: Nothing is recorded of the transaction.
        HeuristicNotFound: No operator decided it, or the decision is forgotten already.
        NotPermitted: The transaction is a branch that is restricted to other principals.
    """

    def plan(_lost: int) -> Plan:
        state = client.cache.key_state(key)
        _permitted(client, state)
        for entry in state.heuristics.values():
            return branches.forget(entry, client.stamp())
        _check_found(client, state)
        raise HeuristicNotFound(
            f"No operator's decision on {key!r} is recorded: see recover().heuristic.",
            transaction_id=key,
        )

    client.land(plan, "forget", transaction_id=key)


def _check_not_of_database(prepared: Entry) -> None:
    """Check that no last resource decides a prepared attempt.

    Raises:
        DecidedByDatabase: One does.
    """
    key, last = prepared.stream, prepared.body.get("last_resource")
    if last is not None:
        raise DecidedByDatabase(
            f"Transaction {key!r} is decided by the database {last!r}: call "
            f"recover({{{last!r}: connection}}) to ask it.",
            transaction_id=key,
            database=last,
        )


def _decision_of(
    state: TransactionState, branch: Branch | None, attempt: str | None
) -> Entry | None:
    """Return the decision of an attempt, or of the key, whichever of its attempts was decided.

    A commit is final for the key; without one the last rollback is the answer, that of an attempt
    that was prepared, or of the branch, before those of others.
    """
    if attempt is None and state.committed is not None:
        return state.committed
    attempts = list(state.prepared) if attempt is None else [attempt]
    attempts += [] if branch is None else [branch.attempt]
    decisions = [state.decisions[one] for one in attempts if one in state.decisions]
    if attempt is None and not decisions:
        decisions = list(state.decisions.values())
    return decisions[-1] if decisions else None


def _check_found_prepared(client: Client, state: TransactionState) -> NoReturn:
    """Say why a transaction that is neither prepared nor decided cannot be decided.

    Raises:
        HistoryRemoved: Its decision may have been removed.
        TransactionNotFound: Nothing is recorded of it.
        TransactionNotPrepared: It is undecided, and not prepared.
    """
    key = state.key
    beginning = archive.decisions_beginning_of(client.store.journal)
    if beginning >= 0 and not is_branch(key):  # entries of branches are never removed
        raise archive.removed(f"Transaction {key!r} is unknown or no longer known", beginning)
    _check_found(client, state)
    raise TransactionNotPrepared(
        f"Transaction {key!r} is not prepared: only its own client can commit it; "
        "recover().prepared lists transactions that can be decided by id.",
        transaction_id=key,
    )


def _check_same(found: Entry, wanted: str, state: TransactionState, *, heuristic: bool) -> None:
    """Check that a decision is the wanted one, and an operator's own if an operator repeats it.

    Raises:
        TransactionFinished: It is another one.
    """
    if found.kind != wanted or (heuristic and not state.heuristics):
        raise TransactionFinished(
            f"Transaction {state.key!r} is already {found.kind}: manager.outcome(id) shows "
            "when and why.",
            transaction_id=state.key,
        )


def _operation(*, commit: bool, heuristic: bool) -> str:
    if heuristic:
        return f"heuristic {'commit' if commit else 'rollback'}"
    return "commit prepared" if commit else "rollback prepared"


def _check_found(client: Client, state: TransactionState) -> None:
    """Check that a transaction has entries, in the journal or in memory.

    Raises:
        TransactionNotFound: It has none.
    """
    if not (state.is_known or client.transient.states.key_states([state.key])[state.key].is_known):
        raise TransactionNotFound(
            f"No transaction {state.key!r} is recorded: check the id; recover() lists those that "
            "wait for a decision.",
            transaction_id=state.key,
        )


def check_permitted(client: Client, key: str) -> None:
    """Check that a client may coordinate a transaction: anybody may, unless it is a branch.

    Raises:
        NotPermitted: The branch is restricted to other principals.
    """
    if is_branch(key):
        _permitted(client, client.cache.key_state(key))


def _permitted(client: Client, state: TransactionState) -> Branch | None:
    """Return a key's branch, if it is one, after checking that this client may coordinate it.

    Raises:
        NotPermitted: The branch is restricted to other principals.
    """
    branch = Branch.of(state)
    if branch is not None:
        branch.check_permitted(client.runtime.actor, COORDINATE)
    return branch


def receipt_of(client: Client, decision: Entry) -> Receipt:
    """Return the receipt of an earlier commit, and whether its changes are applied by now."""
    return Receipt.of(decision, applied=is_applied(client, decision))
