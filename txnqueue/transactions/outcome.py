"""The outcome of a transaction, from the journal or from memory."""

from __future__ import annotations

from txnqueue.client import archive
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import APPEND_PREFIX, is_whole, shown
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.core.state.branch import TIMED_OUT, Branch
from txnqueue.errors import InvalidInput
from txnqueue.results import Outcome
from txnqueue.transactions.prepared import receipt_of
from txnqueue.transactions.transient import resolve


def attempt_named(key: str, attempt: str) -> AttemptOwner:
    """Read an attempt from its name in errors.

    Raises:
        InvalidInput: The text is not an attempt's name.
    """
    name, _, begun = attempt.rpartition("@") if isinstance(attempt, str) else ("", "", "")
    if not name or not is_whole(begun):
        raise InvalidInput(
            f"attempt={shown(attempt)}: give error.attempt of a TransactionUnknown.", name="attempt"
        )
    return AttemptOwner(key, name, int(begun))


def outcome_of(client: Client, transaction_id: str, attempt: str | None = None) -> Outcome:
    """Return the outcome of a transaction, or of one attempt of it, from the journal.

    Args:
        client: Reads the journal.
        transaction_id: The transaction's id, or an append's name in an error.
        attempt: The attempt, by its name in an error; all attempts when left out.

    Raises:
        InvalidInput: The id is empty, which none can be, or ``attempt`` is not an attempt's name.
    """
    if not transaction_id:  # as of a variable that a script did not set: it would wait for ever
        raise InvalidInput(
            "transaction_id='': give the id of a transaction.", name="transaction_id"
        )
    resolve(client, [transaction_id])
    state = client.cache.key_state(transaction_id)
    asked = None if attempt is None else attempt_named(transaction_id, attempt)
    attempts = len({*state.decisions, *state.prepared})
    committed = state.committed
    if committed is not None and (asked is None or committed.attempt == asked.attempt):
        receipt = receipt_of(client, committed)
        by_operator = committed.attempt in state.heuristics
        return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts, by_operator)
    waits = state.in_doubt
    if waits is not None and (asked is None or waits.attempt == asked.attempt):
        return Outcome(transaction_id, Status.PREPARED, None, None, attempts)
    if asked is not None and asked.attempt not in state.decisions:
        return _of_absent(client, state, asked, attempts)
    if state.decisions:
        last = list(state.decisions.values())[-1]
        if asked is not None:
            last = state.decisions[asked.attempt]
        by_operator = last.attempt in state.heuristics
        return Outcome(transaction_id, Status.ROLLED_BACK, None, last.reason, attempts, by_operator)
    branch = Branch.of(state)
    if branch is not None:
        status = Status.ROLLED_BACK if branch.lost else Status.ACTIVE
        return Outcome(transaction_id, status, None, TIMED_OUT if branch.lost else None, 1)
    return _in_memory(client, transaction_id)


def _of_absent(
    client: Client, state: TransactionState, asked: AttemptOwner, attempts: int
) -> Outcome:
    """Return the outcome of an attempt without entries.

    It is undecided, was never decided in time, or another attempt of its id was committed first.
    """
    if state.committed is not None:
        reason = "another attempt of its transaction id was committed first"
        return Outcome(state.key, Status.ROLLED_BACK, None, reason, attempts)
    if not state.is_over(asked):
        reason = "it left no entry, and may still land: rollback makes sure that it does not"
        return Outcome(state.key, Status.UNDECIDED, None, reason, attempts)
    client.cache.check_known(asked)
    return Outcome(state.key, Status.ROLLED_BACK, None, "never decided in time", attempts)


def _in_memory(client: Client, transaction_id: str) -> Outcome:
    """Return the outcome of a transaction without durable work, while the memory knows it."""
    state = client.transient.states.key_states([transaction_id])[transaction_id]
    attempts, entry = len(state.decisions), state.committed
    if entry is not None:
        receipt = Receipt.in_memory(transaction_id, entry.begun or 0, entry.recorded_at_ms)
        return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts)
    if state.decisions:
        last = list(state.decisions.values())[-1]
        return Outcome(transaction_id, Status.ROLLED_BACK, None, last.reason, attempts)
    if transaction_id.startswith(APPEND_PREFIX):  # only now: a user may have named a transaction so
        return _of_append(client, transaction_id)
    return _unknown(client, transaction_id)


def _of_append(client: Client, known_as: str) -> Outcome:
    """Return the outcome of an append, of which each try has an id and a shard."""
    ids, _, shards = known_as.removeprefix(APPEND_PREFIX).partition("@")
    mine = archive.of_append(client.store, ids.split(","), shards.split(","))
    if not mine:
        return _unknown(client, known_as)
    return Outcome(known_as, Status.COMMITTED, Receipt.of(mine[0]), None, 1)


def _unknown(client: Client, known_as: str) -> Outcome:
    """Return the outcome of a transaction without entries, which may have been removed."""
    beginning = archive.decisions_beginning_of(client.store.journal)
    if beginning < 0:
        return Outcome(known_as, Status.UNDECIDED)
    first = model.commit_seq(beginning)
    reason = f"what was decided before commit_seq {first} was removed from the history"
    return Outcome(known_as, Status.UNKNOWN, None, reason)
