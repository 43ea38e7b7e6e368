"""How an attempt of a transaction ends: committed, prepared, rolled back; each by one append."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from txnqueue import model
from txnqueue.appending import Landed, Planner, in_doubt
from txnqueue.applying import follow
from txnqueue.changes import sealed
from txnqueue.charges import Fault, fault_of
from txnqueue.config import check_text, reason_of
from txnqueue.deciding import Receipt, Status, decide_prepared, receipt_of
from txnqueue.drafting import Draft
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
from txnqueue.model import Entry
from txnqueue.participants import LastResource
from txnqueue.planning import Plan
from txnqueue.transient_work import resolve

logger = logging.getLogger("txnqueue")
JOINED_TRIES = 2
"""So often a commit is tried together with something else before it goes alone."""


class Ending(Draft):
    """An attempt that can be ended."""

    @property
    def joinable(self) -> bool:
        """Whether its commit can share an append with something else."""
        return self._participants.last is None and self._durable

    def commit(self) -> Receipt:
        """Decide that everything happened: one append.

        Returns:
            The receipt; under an id that was committed before, the first one.

        Raises:
            TransactionAborted: Surely not committed: somebody else aborted this attempt
                after its lease, another attempt of the id was faster, or a queue is being
                dropped, which is then the error's cause.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
            LeaseLost: Messages that were held under a lease are others' now; rolled back.
            TransactionMismatch: Another transaction that is prepared settles messages of the
                same lease: nothing was changed; decide that one, and commit again.
        """
        self.begin()
        if self.status is Status.COMMITTED and self.receipt is not None:
            if self.already_committed:
                self._participants.undo_ignored()
            return self.receipt
        if self.status is Status.UNKNOWN and self._participants.last is not None:
            raise self._in_doubt(self._participants.last)
        if self.status is Status.PREPARED:
            receipt = self._decide_prepared(commit=True)
            assert receipt is not None
            return receipt
        self._check_open()
        if not self._durable:
            return self._commit_in_memory()
        if self._participants.last is not None:
            return self._commit_by_last_resource(self._participants.last)
        try:
            return self.committed_by(self.commit_joined(None))
        except (TransactionFinished, TransactionUnknown):
            if self.receipt is None:
                raise
            return self.receipt  # an interrupted commit had landed

    def commit_joined(self, more: Planner | None) -> Landed:
        """Commit in one append with something else.

        That is left out if it lost twice, or cannot be planned: nothing of it then happens.

        Args:
            more: Plans what else goes into the append; None: nothing.

        Returns:
            What landed.
        """
        self._check_open()

        def plan(lost: int) -> Plan:
            nonlocal more
            decided = self._plan_seal(model.COMMITTED, lost)
            if more is None or lost >= JOINED_TRIES:
                return decided
            try:
                joined = more(lost)
            except Exception as error:
                # Whoever asked for it asks again, and learns why. The commit waits for nobody.
                logger.info("commit alone transaction_id=%s error=%s", self.id, reason_of(error))
                more = joined = None
            return decided + joined if joined is not None else decided

        return self._land(plan, "commit")

    def committed_by(self, landed: Landed) -> Receipt:
        """Take note that the commit has landed."""
        mine = next(e for e in landed.entries if e.kind == model.COMMITTED and e.stream == self.id)
        return self._happened(mine)

    def prepare(self) -> None:
        """Promise that either decision can be carried out, and wait for one.

        From here on no time-out, crash or clean-up ends the transaction: only an explicit
        ``commit`` or ``rollback``, here or through the manager.

        Raises:
            TransactionAborted: As in ``commit``.
            TransactionUnknown: As in ``commit``.
            TransactionMismatch: As in ``commit``.
            InvalidInput: A database takes part that cannot prepare, or messages that are
                in memory only; nothing was changed.
        """
        self.begin()
        self._check_open()
        if self._transient:
            raise InvalidInput(
                f"Transaction {self.id!r} sent or received transient messages, which no promise "
                "survives this process with: commit() it, or send with durable=True."
            )
        if self._participants.last is not None:
            raise InvalidInput(
                f"{self._participants.last.name!r} decides by its own commit and cannot prepare: "
                "commit() the transaction."
            )
        self._prepare()

    def rollback(self, reason: str | None = None, *, counted: bool = True) -> None:
        """Decide that nothing happened; messages go back to their original places.

        Messages acquired inside go back to the queue. Messages that were held under a
        lease stay with their holder, unsettled.

        Args:
            reason: Why; it stands in the journal.
            counted: Whether the messages' deliveries count; not if nobody looked at them.

        Raises:
            TransactionFinished: It is committed, maybe by an interrupted commit that landed.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
        """
        check_text("reason", reason)
        if self.status is Status.ROLLED_BACK:
            return
        if self.already_committed:
            self._participants.undo_ignored()
        if self.status is Status.UNKNOWN and self._participants.last is not None:
            raise self._in_doubt(self._participants.last)
        counted = counted and self.charges
        self._decide_rollback(reason, counted)
        self._transient.roll_back(reason or "rolled back", counted)
        self._participants.rolled_back()

    def _land(self, plan: Planner, operation: str) -> Landed:
        """Append what decides or prepares; what surely cannot land is rolled back."""
        with self._rolled_back_if_refused(), self._transient.deciding():
            self._transient.prepare(self._body)
            self._prepare_others()
            self._deciding = True
            try:
                landed = self.client.land(plan, operation, transaction_id=self.id)
            except TransactionFinished:
                if self._decision is not None:
                    self._happened(self._decision)
                raise
        assert landed is not None
        return landed

    @contextmanager
    def _rolled_back_if_refused(self) -> Iterator[None]:
        """Roll back what surely cannot be committed or prepared, and say so."""
        try:
            yield
        except (TransactionUnknown, HistoryRemoved):
            self.status = Status.UNKNOWN
            raise
        except Busy as error:
            self._give_up(error, counted=False)
            raise TransactionAborted(
                f"Transaction {self.id!r} met conflicts at every try and was rolled back: run it "
                "again.",
                transaction_id=self.id,
            ) from error
        except QueueError as error:  # what it works on is being dropped
            self._give_up(error, counted=False)
            raise TransactionAborted(
                f"Transaction {self.id!r} was rolled back, surely and for good: {error}",
                transaction_id=self.id,
            ) from error
        except (TransactionAborted, LeaseLost) as error:
            self._give_up(error, counted=fault_of(error) is Fault.MESSAGE)
            raise

    def _give_up(self, error: Exception, *, counted: bool) -> None:
        """Roll back for certain after a commit that could not land.

        Args:
            error: Why it could not.
            counted: Whether the messages may be why, so that their deliveries count.

        Raises:
            TransactionUnknown: Not even that is certain.
        """
        if self.status is Status.PREPARED:
            return
        try:
            self.rollback(reason=reason_of(error), counted=counted)
        except Exception as failed:
            if not isinstance(failed, TransactionFinished):
                self.status = Status.UNKNOWN
            attempt = model.attempt_id(self.attempt, self._begun)
            raise in_doubt(self.id, attempt, failed) from failed

    def _check_open(self) -> None:
        if self.status is not Status.ACTIVE:
            raise TransactionFinished(
                f"Transaction {self.id!r} is {self.status.value}: begin a new one."
            )

    def _prepare(self) -> None:
        self._land(lambda lost: self._plan_seal(model.PREPARED, lost), "prepare")
        self.status = Status.PREPARED

    def _prepare_others(self) -> None:
        """Check once more that tables will take their changes, and let databases prepare.

        Raises:
            TransactionAborted: One of them cannot.
        """
        if self.changes:
            self._work.changes = sealed(self.client, self.changes, self.id)
        try:
            self._participants.prepare()
        except Exception as error:
            raise TransactionAborted(
                f"A database could not prepare, and transaction {self.id!r} was rolled back: "
                f"{error}",
                transaction_id=self.id,
            ) from error

    def _decide_rollback(self, reason: str | None, counted: bool) -> None:
        if self.status is Status.NOT_STARTED:
            self.status = Status.ROLLED_BACK
            return
        if self.status is Status.PREPARED:
            self._decide_prepared(commit=False, reason=reason)
            return
        if self.status is Status.COMMITTED:
            raise TransactionFinished(f"Transaction {self.id!r} is committed.")
        if self._transient.committed:
            self._committed_in_memory()
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        if not self._claiming and not self._deciding:
            self.status = Status.ROLLED_BACK  # only staged: nothing anywhere names it
            return
        try:
            self.client.land(
                lambda lost: self._plan_rollback(reason or "rolled back", counted),
                "rollback",
                transaction_id=self.id,
            )
        except (TransactionUnknown, HistoryRemoved):
            self.status = Status.UNKNOWN
            raise
        if self._decision is not None:
            self._happened(self._decision)
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        self.status = Status.ROLLED_BACK

    def _decide_prepared(self, *, commit: bool, reason: str | None = None) -> Receipt | None:
        receipt = decide_prepared(
            self.client,
            self.id,
            commit=commit,
            reason=reason,
            attempt=self.attempt,
            by_last_resource=self._participants.last is not None,
        )
        self.status = Status.COMMITTED if commit else Status.ROLLED_BACK
        self._transient.follow(commit=commit)
        if commit:
            self.receipt = receipt
            self._work.committed(self.attempt)
            self._confirm_others()
            entry = self.client.key_state(self.id).committed
            if self._participants and entry is not None:
                self.receipt = receipt = receipt_of(self.client, entry)
        return receipt

    def _happened(self, decision: Entry) -> Receipt:
        """Take note of a commit, and carry out what follows from it."""
        follows = bool(self.changes or self._participants)
        self.receipt = Receipt.of(decision, applied=not follows)
        self.status = Status.COMMITTED
        self._transient.follow(commit=True)
        self._work.committed(self.attempt)
        self._confirm_others()
        if follows:
            self.receipt = Receipt.of(decision, follow(self.client, decision))
        return self.receipt

    def _confirm_others(self) -> None:
        """Let databases carry out the commit; what they confirm rides on the next append."""
        self.client.add_confirmations(self._participants.committed(self.client.stamp()))

    def _commit_by_last_resource(self, last: LastResource) -> Receipt:
        """Prepare here, commit there with a row that says so, decide here by that row."""
        try:
            self._prepare()
        except TransactionUnknown:
            last.rollback()  # its row was not written: whatever is decided, it has not committed
            raise
        self.status = Status.UNKNOWN  # until the row is known, whatever interrupts us
        try:
            committed = last.decide()
        except Exception as error:
            raise self._in_doubt(last) from error
        if not committed:
            self.status = Status.PREPARED
            self.rollback(f"{last.name} rolled back")
            raise TransactionAborted(
                f"{last.name!r} could not commit, and transaction {self.id!r} was rolled back.",
                transaction_id=self.id,
            )
        try:
            receipt = self._decide_prepared(commit=True)
        except Exception as error:
            raise self._in_doubt(last) from error
        assert receipt is not None
        return receipt

    def _in_doubt(self, last: LastResource) -> TransactionUnknown:
        return TransactionUnknown(
            f"{last.name!r} does not say whether {self.id!r} is committed: recover() with a "
            "connection to it decides.",
            transaction_id=self.id,
            attempt=model.attempt_id(self.attempt, self._begun),
        )

    def _commit_in_memory(self) -> Receipt:
        """Commit what has no durable work, or no work at all: no entry in the journal."""
        if self._transient:
            with self._rolled_back_if_refused():
                resolve(self.client, [self.id], abort=[self.id])
                self._transient.commit(self._body)
        return self._committed_in_memory()

    def _committed_in_memory(self) -> Receipt:
        self.receipt = Receipt.in_memory(self.id, self._begun, self.client.runtime.now_ms())
        self.status = Status.COMMITTED
        self._work.committed(self.attempt)
        self._confirm_others()
        return self.receipt
