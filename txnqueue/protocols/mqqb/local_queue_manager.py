"""The local queue manager: work in transactions, and the events that decide them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txnqueue import acquiring, model, moving, ranges
from txnqueue.deciding import Status
from txnqueue.errors import (
    InvalidInput,
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
)
from txnqueue.ledger import KeyState, LaneFold, Segment
from txnqueue.protocols.mqqb.elements import Message as QueueMessage
from txnqueue.protocols.mqqb.elements import (
    MessagePosition,
    OperationType,
    Queue,
    State,
    Transaction,
    TransactionalOperation,
    TransactionCollection,
)
from txnqueue.protocols.mqqb.events import (
    Event,
    MessagePositionAvailable,
    MessagePositionDeleted,
    RStatus,
    event_of,
)
from txnqueue.protocols.mqqb.manifests import operations_of
from txnqueue.protocols.reading import messages_of
from txnqueue.transaction import Transaction as CoreTransaction

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager

logger = logging.getLogger("txnqueue")
RECEIVED = "received"
"""The dequeue reason unless another is given."""
PURGED = "purged"
_GONE = (TransactionAborted, LeaseLost, TransactionMismatch)


class LocalQueueManager:
    """A store's queues and transactions under the names of MS-MQQB.

    Its transactions are the store's: they are listed, recovered and decided through the
    plain interface too, and what is prepared there can be decided here.
    """

    def __init__(
        self, manager: QueueManager, on_event: Callable[[Event], object] | None = None
    ) -> None:
        """Use a manager.

        Args:
            manager: The plain interface.
            on_event: Called with each event that is generated: Message Position Deleted,
                Message Position Available. What it raises is logged.
        """
        self.manager = manager
        self._client = manager._client
        self._on_event = on_event or (lambda event: None)
        self._own: dict[str, Transaction] = {}

    @property
    def transaction_collection(self) -> TransactionCollection:
        """The transactions that Transaction Commit and Transaction Abort find.

        Those begun here that nobody has decided, and those that are prepared in the store,
        whoever prepared them.
        """
        return TransactionCollection(self._transactions)

    def queue(self, name: str) -> Queue:
        """Look at a queue.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return Queue(self._client, self.manager.queue(name))

    # ----------------------------------------------------------------------------- work

    def create_transaction(
        self, identifier: str | None = None, *, lease_seconds: float | None = None
    ) -> Transaction:
        """Create a transaction; an identifier is used once.

        Args:
            identifier: Its id in the store; a new one when left out.
            lease_seconds: For how long its locked positions are left alone by others.

        Raises:
            TransactionFinished: The identifier was used before.
        """
        core = self.manager.transaction(identifier, lease_seconds=lease_seconds)
        core.begin()
        state = self._client.key_states([core.id])[core.id]
        if core.already_committed or state.decisions or state.prepared or core.id in self._own:
            raise TransactionFinished(
                f"The transaction identifier {core.id!r} was used before: take a new one.",
                transaction_id=core.id,
            )
        made = self._own[core.id] = Transaction(core.id, core=core)
        return made

    def enqueue_message(
        self,
        queue: str,
        body: Mapping[str, Any],
        transaction_identifier: str | None = None,
        *,
        priority: int | None = None,
    ) -> MessagePosition:
        """Put a message into a queue.

        Args:
            queue: The queue's name.
            body: The queue's columns.
            transaction_identifier: The transaction whose commit makes it available; None
                makes it available at once.
            priority: 0 to 9.

        Returns:
            The position: Locked until the transaction is decided.

        Raises:
            TransactionMismatch: There is no such transaction here.
            SchemaMismatch: The body does not fit.
        """
        transaction = self._working(transaction_identifier)
        core = self._core(transaction)
        place = self.queue(queue)
        place.core.send([dict(body)], priority=priority, transaction=core)
        staged = core._work.sends[-1]
        message = QueueMessage(f"{staged.send_id}:{staged.runs[0].first}")
        position = MessagePosition(place, message, pending=lambda: self._undecided(core))
        operation = TransactionalOperation(OperationType.ENQUEUE, position)
        self._done(transaction, core, operation)
        return position

    def dequeue_message(
        self,
        position: MessagePosition,
        reason: str = RECEIVED,
        transaction_identifier: str | None = None,
    ) -> dict[str, Any]:
        """Take a message out of its queue.

        Args:
            position: Where it stands: Available.
            reason: The dequeue reason; it stands in the store's history.
            transaction_identifier: The transaction whose commit deletes the position; until
                then it is Locked. None deletes it at once.

        Returns:
            What the message carries, and ``_message``.

        Raises:
            InvalidInput: The position is not Available.
            TransactionMismatch: There is no such transaction here.
        """
        transaction = self._working(transaction_identifier)
        self._check_available(position)
        core = self._core(transaction)
        queue = position.queue_reference
        batch = queue.core.claim(1, core, wanted=_only(position))
        if not len(batch):
            raise _not_available(position)
        found = messages_of(batch, core)[0]
        batch.accept(reason=reason, transaction=core)
        operation = TransactionalOperation(OperationType.DEQUEUE, position, reason)
        self._done(transaction, core, operation)
        return found

    def move_message(
        self,
        position: MessagePosition,
        target_queue: str,
        transaction_identifier: str | None = None,
    ) -> None:
        """Move a message to another queue: there it is a new position of the same message.

        Args:
            position: Where it stands: Available.
            target_queue: The other queue's name; it has the same columns.
            transaction_identifier: As in ``dequeue_message``.

        Raises:
            InvalidInput: The position is not Available.
            SchemaMismatch: The other queue has other columns.
            TransactionMismatch: There is no such transaction here.
        """
        transaction = self._working(transaction_identifier)
        self._check_available(position)
        target, here = self.queue(target_queue), position.queue_reference.core
        routes = [
            (
                part,
                moving.to_queue(
                    self._client.of(part),
                    part,
                    target.core.info.in_memory() if part.transient else target.core.info,
                    here.schema,
                ),
            )
            for part in self._client.parts_of(here.info)
        ]
        core = self._core(transaction)
        moved = acquiring.move_inside(
            self._client, routes, here.schema, core, "moved", _only(position)
        )
        if not moved:
            raise _not_available(position)
        operation = TransactionalOperation(
            OperationType.MOVE, position, target_queue_reference=target
        )
        self._done(transaction, core, operation)

    def purge_queue(self, queue: str, reason: str | None = PURGED) -> int:
        """Delete a queue's messages; a Locked position becomes PurgePending.

        It is deleted when its transaction is aborted, instead of becoming Available.

        Returns:
            How many positions are Deleted at once.
        """
        return self.queue(queue).core.purge(reason=reason)

    # -------------------------------------------------------------------------- deciding

    def transaction_prepare(self, transaction_identifier: str) -> RStatus:
        """Prepare a transaction: from now on nothing but a decision ends it.

        Returns:
            As ``transaction_commit``.

        Raises:
            TransactionUnknown: In doubt; ask for it again, which finds out.
        """
        transaction = self._transactions().get(transaction_identifier)
        if transaction is None or not self._prepared(transaction):
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        return RStatus.MQ_OK

    def transaction_commit(self, transaction_identifier: str) -> RStatus:
        """Process a Transaction Commit event.

        All operations happen by one append; then each is processed in order, and removed.

        Returns:
            MQ_OK, or MQ_ERROR_TRANSACTION_SEQUENCE if there is no such transaction (any more):
            then nothing is changed.

        Raises:
            TransactionUnknown: In doubt; generate the event again, which finds out.
        """
        transaction = self._transactions().get(transaction_identifier)
        if transaction is None or not self._committed(transaction):
            self._own.pop(transaction_identifier, None)
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        self._process(transaction)
        self._own.pop(transaction_identifier, None)
        return RStatus.MQ_OK

    def transaction_abort(self, transaction_identifier: str) -> RStatus:
        """Process a Transaction Abort event: locked positions are Available again.

        Returns:
            As ``transaction_commit``.

        Raises:
            TransactionUnknown: In doubt; generate the event again, which finds out.
        """
        transaction = self._transactions().get(transaction_identifier)
        if transaction is None:
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        try:
            if transaction.core is None or transaction.core.status is Status.PREPARED:
                self.manager.rollback(transaction_identifier, "aborted")
            else:
                transaction.core.rollback("aborted")
        except (TransactionFinished, TransactionMismatch):  # it is decided: there is none any more
            self._own.pop(transaction_identifier, None)
            return RStatus.MQ_ERROR_TRANSACTION_SEQUENCE
        self._own.pop(transaction_identifier, None)
        self._undo(transaction)
        return RStatus.MQ_OK

    # -------------------------------------------------------------------------- helpers

    def _transactions(self) -> dict[str, Transaction]:
        self._client.open()
        entries = self._client.transaction_entries()
        found: dict[str, Transaction] = {}
        for identifier, transaction in self._own.items():
            core = transaction.core
            assert core is not None
            state = KeyState.of(identifier, entries)
            decided = state.decided(core.attempt)
            if decided is None or core.status is Status.UNKNOWN:
                found[identifier] = transaction
        keys = sorted({e.stream for e in entries if e.kind == model.PREPARED} - set(self._own))
        for key in keys:
            prepared = KeyState.of(key, entries).in_doubt
            if prepared is not None:
                pending = self._pending(key)
                operations = operations_of(self._client, self.queue, prepared, pending)
                found[key] = Transaction(key, operations)
        return found

    def _pending(self, identifier: str) -> Callable[[], bool]:
        return lambda: identifier in self.transaction_collection

    def _undecided(self, core: CoreTransaction) -> bool:
        return core.id in self._transactions()

    def _working(self, identifier: str | None) -> Transaction | None:
        """Find the transaction that takes an operation; None: each stands for itself."""
        if identifier is None:
            return None
        transaction = self._transactions().get(identifier)
        if transaction is None or transaction.core is None:
            raise TransactionMismatch(
                f"There is no transaction {identifier!r} here that takes work: create one.",
                transaction_id=identifier,
            )
        transaction.core.check_active()
        return transaction

    def _core(self, transaction: Transaction | None) -> CoreTransaction:
        if transaction is None or transaction.core is None:
            return self._client.begin_transaction()
        return transaction.core

    def _done(
        self,
        transaction: Transaction | None,
        core: CoreTransaction,
        operation: TransactionalOperation,
    ) -> None:
        """Take note of an operation; without a transaction it happens now."""
        if transaction is not None:
            transaction.transactional_operation_collection.append(operation)
            return
        core.commit()
        self._process(Transaction(core.id, [operation], core))

    def _check_available(self, position: MessagePosition) -> None:
        if position.state is not State.AVAILABLE:
            raise _not_available(position)

    def _prepared(self, transaction: Transaction) -> bool:
        """Prepare; false if that is impossible for good."""
        core = transaction.core
        if core is not None and core.status is Status.ACTIVE:
            try:
                core.prepare()
            except _GONE:
                self._own.pop(core.id, None)
                return False
        elif core is not None and core.status is Status.UNKNOWN:
            if self._look(core) == model.COMMITTED:
                return False  # the commit that was in doubt is to be asked for again
            if core.status is Status.UNKNOWN:
                self._was_committed(core)
                self._own.pop(core.id, None)
                return False
        return True

    def _look(self, core: CoreTransaction) -> str | None:
        """See how a transaction in doubt is decided, or that it is prepared."""
        state = self._client.key_state(core.id)
        decided = state.decided(core.attempt)
        if decided is None and core.attempt in state.prepared:
            core.status = Status.PREPARED
        return decided

    def _committed(self, transaction: Transaction) -> bool:
        """Commit; false if that is impossible for good."""
        core = transaction.core
        if core is not None and core.status is Status.UNKNOWN:
            self._look(core)
        try:
            if core is None or core.status is Status.PREPARED:
                self.manager.commit(transaction.identifier)
            elif core.status is Status.UNKNOWN:
                return self._was_committed(core)
            else:
                core.commit()
        except (*_GONE, TransactionFinished):
            return False
        return True

    def _was_committed(self, core: CoreTransaction) -> bool:
        """Find out what became of a commit that was in doubt; it is over after that."""
        try:
            core.rollback("in doubt")
        except TransactionFinished:
            return True
        return False

    def _process(self, transaction: Transaction) -> None:
        """Process each operation of a committed transaction in order, and remove it."""
        operations = transaction.transactional_operation_collection
        while operations:
            try:
                self._on_event(event_of(operations[0]))
            except Exception as error:  # what was committed is committed, whoever fails to hear it
                logger.warning(
                    "event failed transaction=%s error=%s", transaction.identifier, error
                )
            del operations[0]

    def _undo(self, transaction: Transaction) -> None:
        operations = transaction.transactional_operation_collection
        while operations:
            position = operations[0].message_position_reference
            if operations[0].operation_type is not OperationType.ENQUEUE:
                queue, state = position.queue_reference, position.state
                if state is State.DELETED:  # its purge was pending
                    self._on_event(MessagePositionDeleted(queue, position, PURGED))
                elif state is State.AVAILABLE:
                    self._on_event(MessagePositionAvailable(queue, position))
            del operations[0]


def _only(position: MessagePosition) -> Callable[[LaneFold, Sequence[Segment]], list[Segment]]:
    """Cut one message out of segments of a lane."""
    _, offset = position.message_reference.place

    def wanted(lane: LaneFold, segments: Iterable[Segment]) -> list[Segment]:
        return [
            segment.cut(offset, offset)
            for segment in segments
            if segment.position.position_id == position.position_id
            and ranges.intersection(((segment.first, segment.last),), ((offset, offset),))
        ]

    return wanted


def _not_available(position: MessagePosition) -> InvalidInput:
    return InvalidInput(
        f"{position.message_reference.identifier!r} in {position.queue_reference.name!r} is "
        f"{position.state.value}: take one that is Available and not delayed.",
        name=position.message_reference.identifier,
    )
