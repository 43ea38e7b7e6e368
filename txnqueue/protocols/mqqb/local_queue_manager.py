"""The local queue manager: operations at once or in transactions, and the events deciding them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from txnqueue.batch import Batch, claim_batch, unsay
from txnqueue.core import model, ranges
from txnqueue.core.handlers import check_function, check_ran
from txnqueue.core.receipt import Status
from txnqueue.core.settings import check_id, describe_error, shown
from txnqueue.core.state import AttemptOwner, LaneState, Segment, TransactionState
from txnqueue.errors import (
    DecidedByDatabase,
    InvalidInput,
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
)
from txnqueue.manager import client_of
from txnqueue.messages import acquisition, move
from txnqueue.protocols.deliveries import give_back, is_of_messages
from txnqueue.protocols.mqqb.effects import PURGED, Effects
from txnqueue.protocols.mqqb.elements import Message as QueueMessage
from txnqueue.protocols.mqqb.elements import (
    MessagePosition,
    OperationType,
    Queue,
    State,
    Transaction,
    TransactionalOperation,
    TransactionCollection,
    identifier_of,
)
from txnqueue.protocols.mqqb.events import Event, MessagePositionDeleted, RStatus
from txnqueue.protocols.mqqb.manifests import operations_of
from txnqueue.queue import Queue as CoreQueue
from txnqueue.transaction import Transaction as CoreTransaction
from txnqueue.transaction import attempt_of
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import of_a_call, roll_back_unless_prepared

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager

logger = logging.getLogger("txnqueue")
RECEIVED = "received"
"""The default dequeue reason."""
_Work = tuple[CoreTransaction, list[TransactionalOperation]]
"""The transaction of an operation, and the list to which it is added."""
_UNDECIDABLE = (TransactionNotFound, TransactionNotPrepared, DecidedByDatabase)
_GONE = (TransactionAborted, LeaseLost, *_UNDECIDABLE)


class LocalQueueManager:
    """The queues and transactions of a store, under the names of MS-MQQB.

    Its transactions are transactions of the store: they are listed, recovered and decided through
    the plain interface too, and transactions prepared there can be decided here. A transaction
    can be given instead of its identifier.
    """

    def __init__(
        self, manager: QueueManager, on_event: Callable[[Event], object] | None = None
    ) -> None:
        """Use a manager.

        Args:
            manager: The plain interface.
            on_event: Called with each generated event: Message Position Deleted or Message
                Position Available. Its errors are logged.

        Raises:
            InvalidInput: ``manager`` is none, or ``on_event`` cannot be called with an event.
        """
        if on_event is not None:
            check_function("on_event", on_event, "a function that gets an event")
        self.manager = manager
        self._client = client_of(manager)
        self._on_event = on_event
        self._own: dict[str, Transaction] = {}

    @property
    def transaction_collection(self) -> TransactionCollection:
        """The transactions that Transaction Commit and Transaction Abort can decide.

        They are the undecided ones begun here, and those prepared in the store by any client.
        """
        return TransactionCollection(self._transactions)

    def queue(self, name: str) -> Queue:
        """Return a queue.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return Queue(self._client, self.manager.queue(name))

    def create_transaction(
        self, identifier: str | None = None, *, lease_seconds: float | None = None
    ) -> Transaction:
        """Create a transaction; an identifier can be used only once.

        Args:
            identifier: Its id in the store; generated if omitted.
            lease_seconds: How long other clients leave its Locked positions alone.

        Raises:
            TransactionFinished: The identifier was used before.
        """
        core = self.manager.transaction(identifier, lease_seconds=lease_seconds)
        attempt_of(core).begin()
        state = self._client.cache.key_states([core.id])[core.id]
        if core.already_committed or state.decisions or state.prepared or core.id in self._own:
            raise TransactionFinished(
                f"The transaction identifier {core.id!r} was used before: use a new one.",
                transaction_id=core.id,
            )
        made = self._own[core.id] = Transaction(core.id, core=core)
        return made

    def enqueue_message(
        self,
        queue: str,
        body: Mapping[str, Any],
        transaction_identifier: Transaction | str | None = None,
        *,
        priority: int | None = None,
    ) -> MessagePosition:
        """Put a message into a queue.

        Args:
            queue: The queue's name.
            body: The queue's columns.
            transaction_identifier: The transaction whose commit makes it available, or its
                identifier; None: it is available at once.
            priority: 0 to 9.

        Returns:
            The position, which is Locked until the transaction is decided.

        Raises:
            TransactionNotFound: There is no such transaction here.
            SchemaMismatch: The body does not fit.
        """
        place = self.queue(queue)
        if not isinstance(body, Mapping):
            raise InvalidInput(
                f"body={shown(body)}: give the queue's columns as a dict.", name="body"
            )
        with self._work(transaction_identifier) as (core, operations):
            sent = place.core.send([dict(body)], priority=priority, transaction=core)
            staged = next(s for s in attempt_of(core).staged if s.send_id == sent.send_id)
            message = QueueMessage(f"{staged.send_id}:{staged.runs[0].first}")
            position = MessagePosition(place, message, pending=self._pending(core.id))
            operations.append(TransactionalOperation(OperationType.ENQUEUE, position))
        return position

    def dequeue_message(
        self,
        position: MessagePosition,
        reason: str = RECEIVED,
        transaction_identifier: Transaction | str | None = None,
    ) -> dict[str, Any]:
        """Take a message out of its queue.

        Args:
            position: Its position, which must be Available.
            reason: The dequeue reason, which is recorded in the store's history.
            transaction_identifier: The transaction whose commit deletes the position, or its
                identifier; until then it is Locked. None: it is deleted at once.

        Returns:
            The message's columns and ``_message``.

        Raises:
            InvalidInput: The position is not Available.
            TransactionNotFound: There is no such transaction here.
        """
        check_id(reason, "reason")
        with self._work(transaction_identifier) as (core, operations):
            here = self._available(position)
            operation = TransactionalOperation(OperationType.DEQUEUE, position, reason)
            batch = self._claimed(here.core, attempt_of(core), position)
            try:
                if not len(batch):
                    raise _not_available(position)
                (found,) = batch.messages()
                batch.accept(reason=reason, transaction=core)
                operations.append(operation)
            except BaseException as error:  # the caller did not get it, so it is not consumed
                unsay(batch, core)
                give_back(batch, core, error)
                operations[:] = [one for one in operations if one is not operation]
                raise
        return found

    def move_message(
        self,
        position: MessagePosition,
        target_queue: str,
        transaction_identifier: Transaction | str | None = None,
    ) -> None:
        """Move a message to another queue, where it has a new position.

        Args:
            position: Its position, which must be Available.
            target_queue: The name of the other queue, which must have the same columns.
            transaction_identifier: As in ``dequeue_message``.

        Raises:
            InvalidInput: The position is not Available.
            SchemaMismatch: The other queue has other columns.
            TransactionNotFound: There is no such transaction here.
        """
        with self._work(transaction_identifier) as (core, operations):
            here, target = self._available(position).core, self.queue(target_queue)
            routes = [
                (
                    part,
                    move.to_queue(part.client, part.info, part.same_part_of(target.core.info)),
                )
                for part in self._client.parts_of(here.info)
            ]
            operation = TransactionalOperation(
                OperationType.MOVE, position, target_queue_reference=target
            )
            attempt = attempt_of(core)
            attempt.follow_memory()
            moved = acquisition.move_inside(routes, attempt, "moved", _only(position))
            if not moved:
                raise _not_available(position)
            operations.append(operation)

    def purge_queue(self, queue: str, reason: str | None = PURGED) -> int:
        """Delete a queue's messages; a Locked position becomes PurgePending.

        Such a position is deleted when its transaction is aborted, instead of becoming Available.
        Message Position Deleted is generated for each position on its deletion, with this reason.

        Args:
            queue: The queue's name.
            reason: The reason, which is recorded in the store's history.

        Returns:
            The number of positions Deleted at once.
        """
        place = self.queue(queue)
        deleted: list[MessagePosition] | None = None if self._on_event is None else []
        try:
            return place.purge(reason, deleted)
        finally:
            for position in deleted or ():
                self._generate(MessagePositionDeleted(place, position, reason))

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

    def _claimed(self, queue: CoreQueue, attempt: Attempt, position: MessagePosition) -> Batch:
        """Acquire the message of a position if it is still available."""
        wanted = _only(position)
        return claim_batch(self._client, queue.info, queue.schema, 1, attempt, wanted=wanted)

    def _transactions(self) -> dict[str, Transaction]:
        self._client.open()
        entries = self._client.cache.transaction_entries()
        found = {
            identifier: transaction
            for identifier, transaction in list(self._own.items())  # other threads add to them
            if transaction.asked or _is_open(transaction, TransactionState.of(identifier, entries))
        }
        keys = sorted({e.stream for e in entries if e.kind == model.PREPARED} - found.keys())
        for key in keys:
            prepared = TransactionState.of(key, entries).in_doubt
            if prepared is not None:
                pending = self._pending(key)
                operations = operations_of(self._client, self.queue, prepared, pending)
                owner = AttemptOwner.of(prepared)
                found[key] = Transaction(key, operations, prepared=owner)
        return found

    def _pending(self, identifier: str) -> Callable[[], str | None]:
        return lambda: identifier if identifier in self.transaction_collection else None

    @contextmanager
    def _work(self, transaction: Transaction | str | None) -> Iterator[_Work]:
        """Yield the transaction for an operation; with None, one that is committed at once."""
        if transaction is not None:
            working = self._working(identifier_of(transaction))
            assert working.core is not None
            yield working.core, working.transactional_operation_collection
            return
        alone = self.manager.transaction()
        made = Transaction(alone.id, core=alone)
        try:
            yield alone, made.transactional_operation_collection
        except BaseException as error:  # nobody saw the message
            counted = is_of_messages(error)
            self._tell(partial(alone.rollback, describe_error(error), counted=counted), made)
            raise
        with of_a_call(attempt_of(alone)):
            alone.commit()
        self._process(made, Effects(self._client, made))

    def _working(self, identifier: str) -> Transaction:
        transaction = self._transactions().get(identifier)
        if transaction is None or transaction.core is None:
            raise TransactionNotFound(
                f"There is no open transaction {identifier!r} here: create one.",
                transaction_id=identifier,
            )
        attempt_of(transaction.core).check_active()
        return transaction

    def _available(self, position: MessagePosition) -> Queue:
        """Check that a position is Available to this manager, and return its queue."""
        if not isinstance(position, MessagePosition):
            raise InvalidInput(
                f"position={shown(position)}: give one of a queue's message_position_list.",
                name="position",
            )
        if position.state is not State.AVAILABLE:
            raise _not_available(position)
        return self.queue(position.queue_reference.name)

    def _process(self, transaction: Transaction, effects: Effects, *, abort: bool = False) -> None:
        """Process each operation of a decided transaction in order, and remove it.

        The decision stands even if a listener cannot be notified, which is logged. All events are
        determined before the first one is delivered, because a listener may act on it.
        """
        operations = transaction.transactional_operation_collection
        what = effects.of_abort if abort else effects.of_commit
        events: list[Event | None] = [None] * len(operations)
        if self._on_event is not None and operations:
            events = [self._tell(partial(what, one), transaction) for one in operations]
        for event in events:
            if event is not None:
                self._generate(event)
            del operations[0]

    @staticmethod
    def _tell(asked: Callable[[], Event | None], transaction: Transaction) -> Event | None:
        try:
            return asked()
        except Exception as error:  # the decision stands
            logger.warning("event lost transaction=%s error=%s", transaction.identifier, error)
            return None

    def _generate(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            check_ran(self._on_event(event), "on_event")
        except Exception as error:  # of the listener: the decision stands
            logger.warning("event failed event=%s error=%s", type(event).__name__, error)

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


def _is_open(transaction: Transaction, state: TransactionState) -> bool:
    """Return whether a transaction begun here is undecided, here and in the journal."""
    core = transaction.core
    assert core is not None
    attempt = attempt_of(core)
    if core.status in (Status.COMMITTED, Status.ROLLED_BACK):  # the journal may not record it
        return False
    in_doubt = core.status is Status.UNKNOWN or attempt.interrupted
    return in_doubt or state.decided(attempt.attempt_id) is None


def _only(position: MessagePosition) -> Callable[[LaneState, Sequence[Segment]], list[Segment]]:
    """Select one message from the segments of a lane."""
    _, offset = position.message_reference.place

    def wanted(_lane: LaneState, segments: Iterable[Segment]) -> list[Segment]:
        return [
            segment.cut(offset, offset)
            for segment in segments
            if segment.position.position_id == position.position_id
            and ranges.intersection(((segment.first, segment.last),), ((offset, offset),))
        ]

    return wanted


def _not_available(position: MessagePosition) -> InvalidInput:
    state = position.state
    remedy = "take one that is Available"
    if state is State.AVAILABLE:
        remedy = "it is delayed, or another consumer works on its lane; take another one, or wait"
    return InvalidInput(
        f"{position.message_reference.identifier!r} in {position.queue_reference.name!r} is "
        f"{state.value}: {remedy}.",
        name=position.message_reference.identifier,
    )
