"""The transactions of a store: begun, tried again, asked about, decided by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txnqueue import model, recalling
from txnqueue.appending import in_doubt
from txnqueue.attempts import Attempt
from txnqueue.branching import TIMED_OUT, Branch
from txnqueue.client import Client
from txnqueue.config import RetryPolicy, check_known_as, check_reason, check_text
from txnqueue.deciding import Receipt, Status, decide_prepared, forget, receipt_of
from txnqueue.errors import (
    Busy,
    HistoryRemoved,
    InvalidInput,
    TransactionMismatch,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.ledger import KeyState, Owner
from txnqueue.recovery import BRANCH_SECONDS_MIN, Recovery, abort_attempt, abort_undecided, recover
from txnqueue.transaction import Transaction
from txnqueue.transient_work import resolve
from txnqueue.types import Database, TwoPhaseDatabase


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a transaction.

    Attributes:
        transaction_id: The transaction's id.
        status: committed, rolled_back, prepared, active (a branch that is started), or
            unknown: nothing is decided. A transaction that left no entry is unknown, and
            its messages return when its leases end. So is one whose decision was removed
            from the history; the reason says from where on it is known.
        receipt: The commit.
        reason: Why it was rolled back, or may be unknown.
        attempts: How many attempts the journal knows.
        heuristic: Whether an operator decided it, and nobody has forgotten that.
    """

    transaction_id: str
    status: Status
    receipt: Receipt | None = None
    reason: str | None = None
    attempts: int = 0
    heuristic: bool = False


class Transactions:
    """What a manager does about transactions."""

    _client: Client

    def transaction(
        self,
        transaction_id: str | None = None,
        *,
        lease_seconds: float | None = None,
        digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Transaction:
        """Begin a transaction: a block that commits on exit and rolls back on an exception.

        Args:
            transaction_id: Names the work, so that it happens once however often it is
                run: under an id that was committed, ``tx.already_committed`` says so, and
                receive and send do nothing.
            lease_seconds: For how long received messages are held before others may abort
                this transaction; each queue's setting when left out.
            digest: Tells a repetition from another work under the same id.
            metadata: Stored with the decision, for auditors.
        """
        return Transaction(
            self._client,
            transaction_id,
            lease_seconds=lease_seconds,
            digest=digest,
            metadata=metadata,
        )

    def attempts(
        self,
        retry: RetryPolicy | None = None,
        *,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Iterator[Transaction]:
        """Offer fresh attempts of one transaction until one is committed.

        ``TransactionAborted`` and ``Busy`` raised inside an attempt's block are tried again,
        bounded, with full jitter; ``TransactionUnknown`` is settled first; a handler's own
        error goes on. Under an id that was committed before, no attempt is offered.

        Example::

            for attempt in manager.attempts():
                with attempt as tx:
                    ...
        """
        runtime = self._client.runtime
        policy = runtime.retry if retry is None else retry
        if not isinstance(policy, RetryPolicy):
            raise InvalidInput(f"retry={retry!r}: give a RetryPolicy.", name="retry")
        key = transaction_id or model.generated_key(self._client.shard, runtime.new_id())
        started = runtime.monotonic()
        for tries in range(1, policy.attempts_max + 1):
            tx = Attempt(
                self._client, key, digest=digest, look_up=transaction_id is not None or tries > 1
            )
            tx.begin()
            if tx.already_committed:
                return
            elapsed = runtime.monotonic() - started
            tx.last = tries == policy.attempts_max or elapsed >= policy.seconds_max
            yield tx
            if tx.status is Status.COMMITTED or tx.failure is None:
                return
            if isinstance(tx.failure, TransactionUnknown):
                status = self.outcome(key).status
                if status is Status.COMMITTED:
                    return
                if status is Status.PREPARED:  # somebody has to decide it first
                    raise tx.failure
                self._client.check_known(tx.owner)  # else nobody knows whether it was committed
            runtime.sleep(policy.wait_seconds(tries, runtime.dice()))

    def run_transaction(
        self,
        handler: Callable[[Transaction], object],
        *,
        retry: RetryPolicy | None = None,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Receipt:
        """Run a handler in a transaction, again after conflicts; it may run more than once.

        Args:
            handler: ``handler(tx)``; ``tx.queue(name)`` gives queues to work on.
            retry: How often and how long.
            transaction_id: As in ``transaction``; committed before, the handler is not run.
            digest: As in ``transaction``.

        Returns:
            The receipt: under an id that was committed before, the first one.

        Raises:
            TransactionAborted: Conflicts outlasted the retries.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
        """
        if not callable(handler):
            raise InvalidInput(f"handler={handler!r}: give a function.", name="handler")
        key = transaction_id or ""
        for attempt in self.attempts(retry, transaction_id=transaction_id, digest=digest):
            key = attempt.id
            with attempt as tx:
                handler(tx)
            if attempt.receipt is not None:
                return attempt.receipt
        receipt = self.outcome(key).receipt
        if receipt is None:
            raise in_doubt(key or "", None, None)
        return receipt

    def outcome(self, transaction_id: str, attempt: str | None = None) -> Outcome:
        """Say what became of a transaction, from the journal.

        Without an attempt the answer is about the last one that was decided: while another
        attempt of the same id is in doubt, it may still be committed.

        Args:
            transaction_id: Its id, or ``error.transaction_id`` of a ``TransactionUnknown``.
            attempt: ``error.attempt`` of a ``TransactionUnknown``: the answer is about that
                attempt, and ``unknown`` as long as it may still land.

        Raises:
            InvalidInput: It is no attempt as an error names it.
        """
        check_known_as(transaction_id)
        self._client.open()
        if transaction_id.startswith("append:"):
            return self._append_outcome(transaction_id)
        resolve(self._client, [transaction_id])
        state = self._client.key_state(transaction_id)
        asked = None if attempt is None else _attempt_of(transaction_id, attempt)
        attempts = len({*state.decisions, *state.prepared})
        if state.committed is not None:
            receipt = receipt_of(self._client, state.committed)
            by_operator = state.committed.attempt in state.heuristics
            return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts, by_operator)
        waits = state.in_doubt
        if waits is not None and (asked is None or waits.attempt == asked.attempt):
            return Outcome(transaction_id, Status.PREPARED, None, None, attempts)
        if asked is not None and asked.attempt not in state.decisions:
            return self._outcome_of_absent(state, asked, attempts)
        if state.decisions:
            last = list(state.decisions.values())[-1]
            if asked is not None:
                last = state.decisions[asked.attempt or ""]
            by_operator = last.attempt in state.heuristics
            return Outcome(
                transaction_id, Status.ROLLED_BACK, None, last.reason, attempts, by_operator
            )
        branch = Branch.of(state)
        if branch is not None:
            status = Status.ROLLED_BACK if branch.lost else Status.ACTIVE
            return Outcome(transaction_id, status, None, TIMED_OUT if branch.lost else None, 1)
        return self._outcome_in_memory(transaction_id)

    def commit(self, transaction_id: str) -> Receipt:
        """Commit a prepared transaction, whoever prepared it; repeating is a no-op.

        Raises:
            TransactionNotFound: The journal says nothing of this id.
            TransactionMismatch: Nothing is prepared under this id.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: It was rolled back.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_known_as(transaction_id)
        self._client.open()
        receipt = decide_prepared(self._client, transaction_id, commit=True)
        assert receipt is not None
        return receipt

    def rollback(
        self, transaction_id: str, reason: str | None = None, attempt: str | None = None
    ) -> None:
        """Roll back a transaction that is prepared or holds messages, whoever works on it.

        Repeating is a no-op. A client that still works on it is refused when it commits; so an
        operator ends a transaction that hangs, without waiting for its leases.

        Args:
            transaction_id: The transaction.
            reason: Why; it stands in the journal.
            attempt: ``error.attempt`` of a ``TransactionUnknown``: make sure that it never lands.

        Raises:
            TransactionNotFound: The journal says nothing of this id, and no undecided attempt of
                it holds messages: what it sent is seen by nobody, and waits for nothing.
            TransactionMismatch: Nothing is prepared under this id.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: It was committed.
            TransactionUnknown: It is in doubt whether all of it is rolled back: call it again.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_text("reason", reason)
        check_known_as(transaction_id)
        self._client.open()
        if attempt is not None:
            abort_attempt(self._client, _attempt_of(transaction_id, attempt), reason or "in doubt")
            return
        refused: TxnQueueError | None = None
        try:
            decide_prepared(self._client, transaction_id, commit=False, reason=reason)
        except (TransactionMismatch, HistoryRemoved) as error:
            refused = error
        # An attempt that was prepared is not the only one: another may hold messages.
        try:
            aborted = abort_undecided(self._client, transaction_id, reason or "rolled back")
        except Exception as error:
            if refused is not None or isinstance(error, TransactionUnknown):
                raise
            raise in_doubt(transaction_id, None, error) from error  # half of it is done
        if refused is not None and not aborted:
            raise refused

    def decide_heuristically(self, transaction_id: str, *, commit: bool, reason: str) -> None:
        """Decide a prepared transaction as an operator, instead of whoever is to decide it.

        For when that one is gone for good. It is on record, and told to whoever decides
        later, until ``forget``; the other resources may have been decided otherwise.

        Args:
            transaction_id: The transaction.
            commit: Whether it is committed.
            reason: Why; it stands in the journal.

        Raises:
            TransactionNotFound: The journal says nothing of this id.
            TransactionMismatch: Nothing is prepared under this id.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: It is decided already.
        """
        check_reason(reason)
        check_known_as(transaction_id)
        self._client.open()
        decide_prepared(self._client, transaction_id, commit=commit, reason=reason, heuristic=True)

    def forget(self, transaction_id: str) -> None:
        """Forget that an operator decided a transaction, once all are told; the outcome stays.

        Raises:
            TransactionNotFound: The journal says nothing of this id.
            TransactionMismatch: No operator's decision of it is on record.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_known_as(transaction_id)
        self._client.open()
        forget(self._client, transaction_id)

    def recover(
        self,
        connections: Mapping[str, Database | TwoPhaseDatabase] | None = None,
        *,
        branch_seconds_min: float = BRANCH_SECONDS_MIN,
    ) -> Recovery:
        """Finish what dead clients left: abort what is over, carry out what was decided.

        Args:
            connections: DB-API 2.0 connections to databases that took part, by the names under
                which they were enlisted.
            branch_seconds_min: Leave a database's branch alone that nobody decided yet, until it
                is prepared for so long.

        Returns:
            What was aborted and released, what is prepared and waits for a decision, and what
            could not be carried out yet, with what to do.

        Raises:
            Busy: Others were faster with one of them at every try; what was finished before it
                stands, so that it is only to be called again.
        """
        self._client.open()
        try:
            return recover(self._client, connections, branch_seconds_min)
        except Busy as error:
            raise Busy(
                "Others were faster at every try with one of the things to finish; what was "
                "finished before stands: call recover again.",
                operation=error.operation,
                queue=error.queue,
                tries=error.tries,
            ) from error

    def _outcome_of_absent(self, state: KeyState, asked: Owner, attempts: int) -> Outcome:
        """Say of an attempt without a decision whether it may still get one."""
        if not state.is_over(asked):
            reason = "it left no entry, and may still land: rollback makes sure that it does not"
            return Outcome(state.key, Status.UNKNOWN, None, reason, attempts)
        self._client.check_known(asked)
        return Outcome(state.key, Status.ROLLED_BACK, None, "never decided in time", attempts)

    def _outcome_in_memory(self, transaction_id: str) -> Outcome:
        """Say what became of a transaction that had no durable work, as long as it is known."""
        state = self._client.transient.key_states([transaction_id])[transaction_id]
        attempts, entry = len(state.decisions), state.committed
        if entry is not None:
            receipt = Receipt.in_memory(transaction_id, entry.begun or 0, entry.recorded_at_ms)
            return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts)
        if state.decisions:
            last = list(state.decisions.values())[-1]
            return Outcome(transaction_id, Status.ROLLED_BACK, None, last.reason, attempts)
        return self._unknown(transaction_id)

    def _append_outcome(self, known_as: str) -> Outcome:
        append_id, _, shard = known_as.removeprefix("append:").partition("@")
        mine = recalling.of_append(self._client.store, append_id, shard)
        if not mine:
            return self._unknown(known_as)
        return Outcome(known_as, Status.COMMITTED, Receipt.of(mine[0]), None, 1)

    def _unknown(self, known_as: str) -> Outcome:
        """Say that nothing is known of a transaction; maybe it was, and is not any more."""
        beginning = recalling.decisions_beginning_of(self._client.store.journal)
        if beginning < 0:
            return Outcome(known_as, Status.UNKNOWN)
        first = model.commit_seq(beginning)
        reason = f"what was decided before commit_seq {first} was removed from the history"
        return Outcome(known_as, Status.UNKNOWN, None, reason)


def _attempt_of(key: str, attempt: str) -> Owner:
    """Read an attempt as errors name it.

    Raises:
        InvalidInput: It is none.
    """
    name, _, begun = attempt.rpartition("@") if isinstance(attempt, str) else ("", "", "")
    if not name or not begun.isdecimal():
        raise InvalidInput(
            f"attempt={attempt!r}: give error.attempt of a TransactionUnknown.", name="attempt"
        )
    return Owner("", 0, key, name, int(begun))
