"""The local queue manager: work in transactions, and the events that decide them."""

from __future__ import annotations

from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    DecidedByDatabase,
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
)
from txnqueue.protocols.mqqb.effects import Effects
from txnqueue.protocols.mqqb.elements import Transaction, identifier_of
from txnqueue.protocols.mqqb.events import RStatus
from txnqueue.protocols.mqqb.operations import Operations
from txnqueue.transaction import Transaction as CoreTransaction
from txnqueue.transaction import attempt_of
from txnqueue.transactions.commit import roll_back_unless_prepared

_UNDECIDABLE = (TransactionNotFound, TransactionNotPrepared, DecidedByDatabase)
_GONE = (TransactionAborted, LeaseLost, *_UNDECIDABLE)


class LocalQueueManager(Operations):
    """The queues and transactions of a store, under the names of MS-MQQB.

    Its transactions are transactions of the store: they are listed, recovered and decided through
    the plain interface too, and transactions prepared there can be decided here. A transaction
    can be given instead of its identifier.
    """

    def transaction_prepare(self, transaction_identifier: Transaction | str) -> RStatus:
        """Prepare a transaction, which then ends only by a decision.

        Returns:
            As ``transaction_commit``.

        Raises:
            TransactionUnknown: The outcome is in doubt; call it again to find out.
            InvalidInput: It has work on transient messages, which only a commit can end: nothing
                was changed.
            SettlementPending: Another prepared transaction settles messages of a lease that this
                one settles too: nothing was changed; decide that one, and ask for it again.
        """
        identifier = identifier_of(transaction_identifier)
        transaction = self._transactions().get(identifier)
        if transaction is None or not self._prepared(transaction):
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        return RStatus.MQ_OK

    def transaction_commit(self, transaction_identifier: Transaction | str) -> RStatus:
        """Process a Transaction Commit event.

        One append carries out all operations; then each is processed in order and removed.

        Returns:
            MQ_OK, or MQ_ERROR_TRANSACTION_SEQUENCE if there is no such transaction or it has
            ended; then nothing is changed.

        Raises:
            TransactionUnknown: In doubt; generate the event again, which finds out.
            SettlementPending: Another prepared transaction settles messages of a lease that this
                one settles too: nothing was changed; decide that one, and ask for it again.
        """
        identifier = identifier_of(transaction_identifier)
        transaction = self._transactions().get(identifier)
        if transaction is None:
            self._own.pop(identifier, None)
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        effects = Effects(self._client, transaction)
        self._ask(transaction)
        if not self._committed(transaction):
            self._own.pop(identifier, None)
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        return self._decided(transaction, effects)

    def transaction_abort(self, transaction_identifier: Transaction | str) -> RStatus:
        """Process a Transaction Abort event, which makes Locked positions Available again.

        Returns:
            As ``transaction_commit``.

        Raises:
            TransactionUnknown: In doubt; generate the event again, which finds out.
        """
        identifier = identifier_of(transaction_identifier)
        transaction = self._transactions().get(identifier)
        if transaction is None:
            self._own.pop(identifier, None)
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        effects = Effects(self._client, transaction)
        self._ask(transaction)
        try:
            if transaction.core is None:
                self.manager.rollback(identifier, "aborted")
            else:
                transaction.core.rollback("aborted")
        except (TransactionFinished, *_UNDECIDABLE):  # it is already decided
            core = transaction.core
            if core is None or core.status is not Status.COMMITTED:
                self._own.pop(identifier, None)  # otherwise the commit will be requested again
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        return self._decided(transaction, effects, abort=True)

    # -------------------------------------------------------------------------- helpers

    def _ask(self, transaction: Transaction) -> None:
        """Note that a decision is asked for: if it is in doubt, a repeated request finds out."""
        transaction.asked = True
        self._own.setdefault(transaction.identifier, transaction)

    def _decided(
        self, transaction: Transaction, effects: Effects, *, abort: bool = False
    ) -> RStatus:
        """Process a decided transaction, unless a concurrent request does."""
        try:
            if self._own.pop(transaction.identifier, None) is None:
                return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
            self._process(transaction, effects, abort=abort)
        except BaseException:  # interrupted: a repeated request processes the other operations
            self._own[transaction.identifier] = transaction
            raise
        return RStatus.MQ_OK

    def _prepared(self, transaction: Transaction) -> bool:
        """Prepare; return false if that is permanently impossible."""
        core = transaction.core
        if core is None:
            return True
        if attempt_of(core).in_doubt and self._look(core) == model.COMMITTED:
            return False  # the commit in doubt must be requested again
        if core.status is Status.ACTIVE:
            try:
                core.prepare()
            except _GONE:
                self._own.pop(core.id, None)
            except TransactionFinished:
                pass  # a decision in doubt has just landed
        elif core.status is Status.UNKNOWN and self._has_not_happened(core):
            self._own.pop(core.id, None)
        return core.status is Status.PREPARED

    def _look(self, core: CoreTransaction) -> str | None:
        """Return the decision of a transaction in doubt, or that it is prepared."""
        state = self._client.cache.key_state(core.id)
        attempt = attempt_of(core)
        decided = state.decided(attempt.attempt_id)
        if decided is None and attempt.attempt_id in state.prepared:
            attempt.status = Status.PREPARED
        return decided

    def _committed(self, transaction: Transaction) -> bool:
        """Commit; return false if that is permanently impossible."""
        core = transaction.core
        if core is not None and core.status is Status.UNKNOWN and self._has_not_happened(core):
            return False
        try:
            if core is None:
                self.manager.commit(transaction.identifier)
            else:
                core.commit()
        except (*_GONE, TransactionFinished):
            return False
        return True

    def _has_not_happened(self, core: CoreTransaction) -> bool:
        """Roll back what is in doubt, unless it is committed or prepared: others may rely on that.

        Returns:
            Whether it is rolled back.
        """
        try:
            return roll_back_unless_prepared(attempt_of(core), "in doubt")
        except TransactionFinished:
            return False
