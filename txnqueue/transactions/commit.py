"""Commit, prepare or roll back an attempt of a transaction, each by one append."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from txnqueue.client.append import Landed, Planner, in_doubt
from txnqueue.core import model
from txnqueue.core.instants import by_then_ms
from txnqueue.core.model import Entry
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import check_text, describe_error, text_of
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    Busy,
    HistoryRemoved,
    InvalidInput,
    LeaseLost,
    QueueError,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.messages.charges import Fault, fault_of
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.last_resource import LastResource
from txnqueue.transactions.prepared import decide_prepared, receipt_of
from txnqueue.transactions.table_applier import follow
from txnqueue.transactions.table_changes import sealed
from txnqueue.transactions.transient import resolve

logger = logging.getLogger("txnqueue")


def joinable(attempt: Attempt) -> bool:
    """Return whether an attempt's commit can share an append with another plan."""
    return attempt.participants.last is None and attempt.durable


def commit(attempt: Attempt) -> Receipt:
    """Commit an attempt by one append.

    Returns:
        The receipt; for an id that was committed before, the receipt of that commit.

    Raises:
        TransactionAborted: Certainly not committed: another client aborted this attempt
            after its lease, another attempt of the id was faster, conflicts outlasted the
            retries, or a queue is being dropped, which is then the error's cause.
        TransactionUnknown: The commit is in doubt; ``manager.outcome(id)`` answers.
        LeaseLost: Others may have messages that were held under a lease; it is rolled back.
        SettlementPending: Another, prepared transaction settles messages of the same lease:
            nothing was changed; decide that one, then commit again.
    """
    attempt.begin()
    if attempt.status is Status.COMMITTED and attempt.receipt is not None:
        if attempt.already_committed:
            attempt.participants.undo_ignored()
        elif not attempt.participants.followed:  # an interrupt left this undone
            _carry_out(attempt)
        return attempt.receipt
    promised, last = attempt.promised(), attempt.participants.last
    if last is not None and (promised or last.may_have_committed):
        raise _in_doubt(attempt, last)  # the database decides, and its answer is not known
    if promised:
        receipt = _decide_prepared(attempt, commit=True)
        assert receipt is not None
        return receipt
    _check_open(attempt)
    if attempt.close_in_memory():
        return _commit_in_memory(attempt)
    if last is not None:
        return _commit_by_last_resource(attempt, last)
    try:
        return committed_by(attempt, commit_joined(attempt, None))
    except (TransactionFinished, TransactionUnknown):
        if attempt.receipt is None:
            raise
        return attempt.receipt  # an interrupted commit had landed


def commit_joined(attempt: Attempt, more: Planner | None, *, in_order: bool = False) -> Landed:
    """Commit an attempt, joined in one append with another plan.

    The other plan is left out as a whole if it lost twice, cannot be planned, or excludes the
    commit.

    Args:
        attempt: The attempt.
        more: Plans the rest of the append; None for the commit alone.
        in_order: Whether the rest may not take messages behind those that the commit returns.

    Returns:
        The entries that landed.
    """
    _check_open(attempt)
    return _land(attempt, attempt.committing(more, in_order=in_order), "commit")


def committed_by(attempt: Attempt, landed: Landed) -> Receipt:
    """Record that an attempt's commit has landed, and return its receipt."""
    mine = next(e for e in landed.entries if e.kind == model.COMMITTED and e.stream == attempt.id)
    return _happened(attempt, mine)


def prepare(attempt: Attempt) -> None:
    """Prepare an attempt, so that either decision can be carried out.

    From now on no time-out, crash or maintenance ends the transaction, only an explicit
    ``commit`` or ``rollback``, here or through the manager.

    Raises:
        TransactionAborted: As in ``commit``.
        TransactionUnknown: As in ``commit``.
        LeaseLost: As in ``commit``.
        SettlementPending: As in ``commit``.
        InvalidInput: A database that cannot prepare, or transient messages, take part; nothing
            was changed.
    """
    attempt.begin()
    if attempt.interrupted and attempt.promised():
        return
    _check_open(attempt)
    if attempt.participants.transient:
        raise InvalidInput(
            f"Transaction {attempt.id!r} sent or received transient messages, which cannot be "
            "prepared because they end with this process: commit() it, or send with durable=True."
        )
    if attempt.participants.last is not None:
        raise InvalidInput(
            f"{attempt.participants.last.name!r} decides by its own commit and cannot prepare: "
            "commit() the transaction."
        )
    _prepare(attempt)


def rollback(
    attempt: Attempt,
    reason: str | None = None,
    *,
    counted: bool = True,
    unless_prepared: bool = False,
) -> None:
    """Roll back an attempt.

    Messages acquired inside return to their original places. Messages that were held under a
    lease stay with their holder, unsettled.

    Args:
        attempt: The attempt.
        reason: The reason, recorded in the journal.
        counted: Whether the messages' deliveries count; false if no handler got them.
        unless_prepared: Whether it stays as it is, with the status PREPARED, if it is prepared.
            This is for whoever ends what an error, an interrupted call, or one in doubt left
            behind: once it is prepared, others may rely on it, and only a decision ends it. Only a
            last resource, which has not decided yet, keeps no promise.

    Raises:
        TransactionFinished: It is committed, possibly by an interrupted commit that landed.
        TransactionUnknown: The rollback is in doubt; ``manager.outcome(id)`` answers.
    """
    reason = check_text("reason", reason)
    if attempt.status is Status.ROLLED_BACK:
        attempt.participants.rolled_back(reason or "rolled back", counted=counted)  # or the rest
        return
    if attempt.already_committed:
        attempt.participants.undo_ignored()
    last = attempt.participants.last
    if last is not None and last.may_have_committed and attempt.status is Status.UNKNOWN:
        raise _in_doubt(attempt, last)
    counted = counted and attempt.charges
    attempt.rollback_reason, attempt.rollback_counted = reason, counted
    try:
        _decide_rollback(
            attempt, reason, counted=counted, unless_prepared=unless_prepared and last is None
        )
    except BaseException:
        if attempt.participants.are_waiting and _never_commits(attempt):
            # Whatever became of the rollback, nothing of it stays open.
            attempt.status = Status.UNKNOWN
            attempt.participants.rolled_back(reason or "rolled back", counted=counted)
        raise
    if not attempt.is_prepared:
        attempt.participants.rolled_back(reason or "rolled back", counted=counted)
        attempt.work.forget(attempt.attempt_id)


def _never_commits(attempt: Attempt) -> bool:
    """Return whether nobody can commit it, though its rollback may not be on record."""
    last = attempt.participants.last
    if attempt.status is Status.COMMITTED:
        return False
    if last is not None and not attempt.is_prepared and not last.may_have_committed:
        return True  # without the database's row nobody commits what may be prepared
    return not attempt.landing


def roll_back_unless_prepared(attempt: Attempt, reason: str) -> bool:
    """Roll back an attempt whose decision is in doubt, unless it turns out to be prepared.

    Returns:
        Whether it is rolled back; if not, it is prepared, and others may rely on that.

    Raises:
        TransactionFinished: It is committed.
    """
    rollback(attempt, reason, unless_prepared=True)
    return not attempt.is_prepared


def learn_decision(attempt: Attempt) -> None:
    """Learn how a prepared attempt was decided, which any client may do by its id.

    Its participants, and the batches that it kept or returns, follow the decision.
    """
    if attempt.status is not Status.PREPARED:
        return
    decided = attempt.client.cache.key_state(attempt.id).decided(attempt.attempt_id)
    if decided is not None:
        _decide_prepared(attempt, commit=decided == model.COMMITTED)
        if decided == model.ROLLED_BACK:
            attempt.participants.rolled_back("rolled back", counted=True)


def roll_back_after(attempt: Attempt, error: BaseException, *, counted: bool | None = None) -> None:
    """Roll back an attempt after an error if it is undecided; a failure of that is only logged.

    If it is decided, what an interrupt has left of that is carried out.

    A prepare that was interrupted may have landed; then the attempt stays prepared, as it does
    after one that was not.

    Args:
        attempt: The attempt.
        error: What ended it.
        counted: Whether the messages' deliveries count; None: unless the store caused the error.
    """
    if attempt.status is not Status.ACTIVE and not _was_stopped_before_its_row(attempt, error):
        _finish(attempt)
        return
    if counted is None:
        counted = fault_of(error) is not Fault.STORE
    try:
        rollback(attempt, describe_error(error), counted=counted, unless_prepared=True)
    except TransactionFinished:  # an interrupted commit had landed
        logger.info("committed after all transaction_id=%s", attempt.id)
    except Exception as failed:
        logger.warning("rollback failed transaction_id=%s error=%s", attempt.id, failed)
    except BaseException:  # nobody else may be left to carry out the rest
        _finish(attempt)
        raise


def _was_stopped_before_its_row(attempt: Attempt, error: BaseException) -> bool:
    """Return whether an interrupt came between a last resource's prepare and its decision row.

    Without the row nobody commits what is prepared, and no lease ends it.
    """
    last = attempt.participants.last
    is_open = attempt.status in (Status.UNKNOWN, Status.PREPARED)
    interrupted = not isinstance(error, Exception)
    return last is not None and is_open and interrupted and not last.may_have_committed


def _finish(attempt: Attempt) -> None:
    """Carry out the rest of a decision, if an interrupt came as its participants followed it."""
    if attempt.already_committed or attempt.participants.followed:
        return
    if attempt.status is Status.COMMITTED:
        _carry_out(attempt)
    elif attempt.status is Status.ROLLED_BACK:
        reason, counted = attempt.rollback_reason, attempt.rollback_counted
        attempt.participants.rolled_back(reason or "rolled back", counted=counted)


def end_interrupted(attempt: Attempt, error: BaseException, *, counted: bool) -> None:
    """End a commit that was interrupted: carry it out if it has landed, else undo what it holds.

    Otherwise messages would be held until their leases end, rows of a database until its
    connection is closed, and work in memory or prepared work until a recovery. What is only sent
    holds nothing, so that nobody who interrupts waits for one more append.
    """
    if attempt.status is Status.COMMITTED:
        _carry_out(attempt)
    elif attempt.claimed or attempt.participants.are_waiting:
        roll_back_after(attempt, error, counted=counted)


def commit_alone(attempt: Attempt) -> Receipt:
    """Commit the transaction that a call began for itself."""
    with of_a_call(attempt):
        return commit(attempt)


@contextmanager
def of_a_call(attempt: Attempt) -> Iterator[None]:
    """Clean up when the transaction that a call began for itself fails or is interrupted.

    A queue that was closed meanwhile becomes the call's error.
    """
    try:
        yield
    except TransactionAborted as error:
        if error.__cause__ is not None and is_closed(error.__cause__):
            raise error.__cause__ from None
        raise
    except BaseException as error:
        end_interrupted(attempt, error, counted=False)
        raise


def resolve_doubt(attempt: Attempt) -> Status:
    """Find out how an attempt in doubt ended, and carry that out in its participants.

    Returns:
        COMMITTED, ROLLED_BACK, or PREPARED: others may rely on that. What is not committed is
        rolled back, so that it never will be.

    Raises:
        TransactionUnknown: The journal cannot be read, or a last resource does not tell.
        HistoryRemoved: Its decision may have been removed.
    """
    try:
        rollback(attempt, "in doubt", counted=False, unless_prepared=True)
    except TransactionFinished:  # it is committed
        commit(attempt)  # or the rest of it
    except (TransactionUnknown, HistoryRemoved):
        raise
    except Exception as error:
        raise in_doubt(attempt.id, attempt.attempt_name, error) from error
    return attempt.status


def has_landed(attempt: Attempt) -> bool:
    """Find out whether a call's own transaction is committed; if it is not, it never will be.

    Raises:
        TransactionUnknown: The journal cannot be read.
        HistoryRemoved: Its decision may have been removed.
    """
    return resolve_doubt(attempt) is Status.COMMITTED


def _land(attempt: Attempt, plan: Planner, operation: str) -> Landed:
    """Land the append that commits or prepares; roll back an attempt that certainly cannot."""
    with _rolled_back_if_refused(attempt), attempt.participants.transient.deciding():
        with attempt.closing():
            if attempt.changes:
                attempt.work.changes = sealed(attempt.client, attempt.changes, attempt.id)
            attempt.participants.prepare()
        before, attempt.landing = attempt.landing, True
        try:
            landed = attempt.client.land(plan, operation, transaction_id=attempt.id)
        except (TransactionUnknown, HistoryRemoved):
            raise
        except TransactionFinished:
            if attempt.decision is not None:
                _happened(attempt, attempt.decision)
            raise
        except Exception:  # certainly nothing landed
            attempt.landing = before
            raise
    assert landed is not None
    attempt.participants.transient.on_record()
    return landed


@contextmanager
def _rolled_back_if_refused(attempt: Attempt) -> Iterator[None]:
    """Roll back an attempt that certainly cannot be committed or prepared, and raise that."""
    try:
        yield
    except (TransactionUnknown, HistoryRemoved):
        attempt.status = Status.UNKNOWN
        raise
    except Busy as error:
        _give_up(attempt, error, counted=False)
        raise TransactionAborted(
            f"Transaction {attempt.id!r} met a conflict at every try and was rolled back: run it "
            "again.",
            transaction_id=attempt.id,
        ) from error
    except QueueError as error:  # a queue or exchange that it uses is being dropped
        _give_up(attempt, error, counted=False)
        raise TransactionAborted(
            f"Transaction {attempt.id!r} was certainly rolled back: {error}",
            transaction_id=attempt.id,
        ) from error
    except (TransactionAborted, LeaseLost) as error:
        _give_up(attempt, error, counted=fault_of(error) is Fault.MESSAGE)
        raise


def _give_up(attempt: Attempt, error: Exception, *, counted: bool) -> None:
    """Roll back after a commit or prepare that could not land.

    Args:
        attempt: The attempt.
        error: The error that kept it from landing.
        counted: Whether the messages may have caused the error, so that their deliveries count.

    Raises:
        TransactionUnknown: Even the rollback is not certain.
    """
    if attempt.status is Status.PREPARED:
        return
    try:
        rollback(attempt, reason=describe_error(error), counted=counted)
    except Exception as failed:
        if not isinstance(failed, TransactionFinished):
            attempt.status = Status.UNKNOWN
        raise in_doubt(attempt.id, attempt.attempt_name, failed) from failed


def _check_open(attempt: Attempt) -> None:
    if attempt.status is not Status.ACTIVE:
        raise TransactionFinished(
            f"Transaction {attempt.id!r} is {attempt.status.value}: {attempt.remedy}.",
            transaction_id=attempt.id,
        )


def _prepare(attempt: Attempt) -> None:
    attempt.promising = True
    _land(attempt, attempt.preparing, "prepare")
    attempt.status = Status.PREPARED


def _decide_rollback(
    attempt: Attempt, reason: str | None, *, counted: bool, unless_prepared: bool
) -> None:
    if attempt.status is Status.NOT_STARTED:
        attempt.status = Status.ROLLED_BACK
        return
    if attempt.status is Status.PREPARED:
        if unless_prepared:
            return
        _decide_prepared(attempt, commit=False, reason=reason, counted=counted)
        return
    if attempt.status is Status.COMMITTED:
        raise TransactionFinished(
            f"Transaction {attempt.id!r} is committed and cannot be rolled back: undo its work in "
            "a new transaction.",
            transaction_id=attempt.id,
        )
    if not attempt.durable and attempt.participants.transient.committed:
        _committed_in_memory(attempt)
        raise _committed_after_all(attempt)
    if not attempt.claimed and not attempt.deciding:
        attempt.status = Status.ROLLED_BACK  # its work is only staged, and no entry names it
        return
    plan = attempt.rolling_back(
        reason or "rolled back", counted=counted, unless_prepared=unless_prepared
    )
    try:
        attempt.client.land(plan, "rollback", transaction_id=attempt.id)
    except (TransactionUnknown, HistoryRemoved):
        attempt.status = Status.UNKNOWN
        raise
    if attempt.decision is not None:
        _happened(attempt, attempt.decision)
        raise _committed_after_all(attempt)
    if not attempt.is_prepared:
        attempt.status = Status.ROLLED_BACK


def _committed_after_all(attempt: Attempt) -> TransactionFinished:
    return TransactionFinished(
        f"Transaction {attempt.id!r} is already committed and cannot be rolled back: begin "
        "another one for more work.",
        transaction_id=attempt.id,
    )


def _decide_prepared(
    attempt: Attempt, *, commit: bool, reason: str | None = None, counted: bool = True
) -> Receipt | None:
    receipt = decide_prepared(
        attempt.client,
        attempt.id,
        commit=commit,
        reason=reason,
        attempt=attempt.attempt_id,
        by_last_resource=attempt.participants.last is not None,
        counted=counted,
    )
    attempt.status = Status.COMMITTED if commit else Status.ROLLED_BACK
    if commit:
        attempt.receipt = receipt
        if receipt is not None:
            attempt.work.decided_at(by_then_ms(receipt.committed_at))
        _carry_out(attempt)
        if receipt is not None and attempt.participants:
            attempt.receipt = receipt = _after_databases(attempt, receipt)
    return receipt


def _after_databases(attempt: Attempt, receipt: Receipt) -> Receipt:
    """Return a new receipt after the databases have confirmed; the old one if reading fails."""
    try:
        entry = attempt.client.cache.key_state(attempt.id).committed
        return receipt if entry is None else receipt_of(attempt.client, entry)
    except Exception as error:
        logger.warning("receipt not read again transaction_id=%s error=%s", attempt.id, error)
        return receipt


def _happened(attempt: Attempt, decision: Entry) -> Receipt:
    """Record a commit, carry it out, and return its receipt."""
    follows = bool(attempt.changes or attempt.participants)
    attempt.receipt = Receipt.of(decision, applied=not follows)
    attempt.status = Status.COMMITTED
    attempt.work.decided_at(decision.recorded_at_ms)
    _carry_out(attempt)
    if follows and not attempt.rehearsed:
        attempt.receipt = Receipt.of(decision, applied=follow(attempt.client, decision))
    return attempt.receipt


def _carry_out(attempt: Attempt) -> None:
    """Let the participants carry out the commit; confirmations ride on the next append."""
    attempt.work.committed(attempt.attempt_id)
    attempt.client.add_confirmations(attempt.participants.committed(attempt.client.stamp()))


def _commit_by_last_resource(attempt: Attempt, last: LastResource) -> Receipt:
    """Prepare here, commit the database with a decision row, then decide here by that row."""
    try:
        _prepare(attempt)
    except (TransactionUnknown, HistoryRemoved):
        # The database has no decision row, so nobody can commit what may be prepared.
        attempt.participants.rolled_back("in doubt", counted=False)
        raise
    attempt.status = Status.UNKNOWN  # until the row is known, also after an interrupt
    try:
        committed = last.decide()
    except Exception as error:
        raise _in_doubt(attempt, last) from error
    if not committed:
        attempt.status = Status.PREPARED
        why = "run it again." if last.refusal is None else text_of(last.refusal)
        refused = TransactionAborted(
            f"{last.name!r} could not commit, so transaction {attempt.id!r} was rolled back: {why}",
            transaction_id=attempt.id,
        )
        refused.__cause__ = last.refusal  # whoever counts deliveries asks for the cause
        rollback(attempt, describe_error(refused), counted=fault_of(refused) is Fault.MESSAGE)
        raise refused
    try:
        receipt = _decide_prepared(attempt, commit=True)
    except Exception as error:
        raise _in_doubt(attempt, last) from error
    assert receipt is not None
    return receipt


def _in_doubt(attempt: Attempt, last: LastResource) -> TransactionUnknown:
    return TransactionUnknown(
        f"{last.name!r} does not tell whether {attempt.id!r} is committed: call recover() with a "
        "connection to it.",
        transaction_id=attempt.id,
        attempt=attempt.attempt_name,
    )


def _commit_in_memory(attempt: Attempt) -> Receipt:
    """Commit an attempt without durable work, or without any, with no entry in the journal."""
    memory = attempt.participants.transient
    if memory and not memory.committed:  # as it is by a call that was interrupted
        with _rolled_back_if_refused(attempt):
            resolve(attempt.client, [attempt.id], abort=[attempt.id])
            memory.commit_alone()
    return _committed_in_memory(attempt)


def _committed_in_memory(attempt: Attempt) -> Receipt:
    attempt.receipt = Receipt.in_memory(attempt.id, attempt.begun, attempt.client.runtime.now_ms())
    attempt.status = Status.COMMITTED
    attempt.work.decided_at(attempt.work.sealed_ms)
    _carry_out(attempt)
    return attempt.receipt
