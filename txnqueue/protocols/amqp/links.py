"""The resource's ends of links: what they have in common, and those that receive."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput, QueueClosed, QueueNotFound, SchemaMismatch
from txnqueue.protocols.amqp.messages import Posting, posting_of, stage
from txnqueue.protocols.amqp.performatives import (
    TXN_ID,
    Attach,
    Detach,
    Disposition,
    Flow,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    Transfer,
)
from txnqueue.protocols.amqp.transactions import IncomingDelivery, LiveTransaction
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    Coordinator,
    DeliveryState,
    Described,
    Error,
    ErrorCondition,
    Properties,
    Rejected,
    Section,
    Source,
    Target,
    TransactionalState,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.session import Session
    from txnqueue.queue import Queue

CREDIT = 1_000
"""The number of deliveries that a controller may send before it is granted more."""
COUNTS = 1 << 32
"""The number of delivery counts before they wrap around."""


class Link:
    """The resource's end of a link.

    Attributes:
        queue_id: The queue without which it ends; None if it belongs to no queue.
        message_bytes_max: The longest message that it takes; None if it takes none.
    """

    queue_id: str | None = None
    message_bytes_max: int | None = None

    def __init__(self, session: Session, attach: Attach) -> None:
        """Take the resource's end of a link that a controller attaches."""
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.role = attach.role
        self.source = attach.source or Source()
        self.target = attach.target
        self.settles_first = attach.rcv_settle_mode is ReceiverSettleMode.FIRST
        self.sends_settled = attach.snd_settle_mode is SenderSettleMode.SETTLED
        self.error: Error | None = None
        self.attached = True

    def answer(self, attach: Attach) -> Attach:
        """Write the attach that answers the controller's."""
        role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
        return Attach(
            name=self.name,
            handle=self.handle,
            role=role,
            source=attach.source,
            target=self.target,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=ReceiverSettleMode(not self.settles_first),
            initial_delivery_count=0 if role is Role.SENDER else None,
            max_message_size=self.message_bytes_max,
        )

    def transfer(self, frame: Transfer) -> None:
        """Take a delivery, or a part of one.

        Raises:
            AmqpError: It cannot be taken: the link must be ended.
        """
        raise AmqpError(ErrorCondition.NOT_ALLOWED, "On this link, only the resource sends.")

    def flow(self, frame: Flow) -> None:
        """Take the controller's state of credit and transactions.

        Raises:
            AmqpError: It asks for something that this end does not support.
        """
        raise NotImplementedError

    def detach(self, error: Error | None = None) -> None:
        """End the link, and tell the controller why."""
        if not self.attached:
            return
        self.attached, self.error = False, error
        self.closed()
        self.session.ended(self)
        self.session.emit(Detach(handle=self.handle, error=error))

    def detached(self, frame: Detach) -> None:
        """Process a detach by the controller, for good or keeping the deliveries."""
        self.attached = False
        if frame.closed:
            self.closed()
        else:
            self.suspended()
        self.session.emit(Detach(handle=self.handle, closed=frame.closed))

    def closed(self) -> None:
        """Release what belongs to the link."""

    def suspended(self) -> None:
        """Release what cannot be continued; the controller keeps what it has received."""


class IncomingLink(Link):
    """An end that receives: it grants credit, and assembles the parts of a delivery."""

    message_bytes_max: int

    def __init__(self, session: Session, attach: Attach) -> None:
        """Take the resource's end of a link that a controller sends on."""
        super().__init__(session, attach)
        self.message_bytes_max = session.connection.resource.limits.message_bytes
        self._credit = 0
        self._delivery_count = (attach.initial_delivery_count or 0) % COUNTS
        self._partial: IncomingDelivery | None = None

    def grant(self) -> None:
        """Grant the controller more credit."""
        credit = self.credit_max()
        # A discharge that cannot be answered otherwise has ended its link.
        if self.attached and self._credit <= CREDIT // 2 and credit > self._credit:
            self._credit = credit
            self._tell()

    def credit_max(self) -> int:
        """Count the deliveries that the controller may send before it is granted more."""
        return CREDIT

    @property
    def partial_octets(self) -> int:
        """The octets of a delivery that has not come completely."""
        return 0 if self._partial is None else len(self._partial.parts)

    def closed(self) -> None:
        """Forget what has come of a delivery; its transaction still knows that it is not whole."""
        if self._partial is not None:
            self._partial.parts.clear()
            self._partial = None

    def suspended(self) -> None:
        """Do the same: links cannot be resumed."""
        IncomingLink.closed(self)

    def flow(self, frame: Flow) -> None:
        """Report the credit to the controller if it asks."""
        if frame.properties.get(TXN_ID) is not None:
            raise AmqpError(
                ErrorCondition.NOT_IMPLEMENTED,
                "A link on which the resource receives acquires nothing.",
            )
        if frame.echo:
            self._tell()

    def transfer(self, frame: Transfer) -> None:
        """Take a delivery, or a part of one."""
        delivery = self._partial
        if delivery is None:
            delivery = self._begin(frame)
        else:
            self._check_part(delivery, frame)
        if frame.aborted:
            self._end_part(delivery)
            self.grant()
            return
        delivery.settled = delivery.settled or frame.settled
        self._set_mode(delivery, frame.rcv_settle_mode)
        delivery.parts += frame.payload  # type: ignore[operator]  # of the same kind
        self._check_size(delivery, more=frame.more)
        if frame.more:
            self._partial = delivery
            if delivery.transaction is not None:
                delivery.transaction.partial.add(delivery)
            return
        self._end_part(delivery)
        self.complete(delivery)
        delivery.parts.clear()  # only the state of the delivery is kept, maybe for long
        self.grant()

    def check(self, frame: Transfer) -> LiveTransaction | None:
        """Find the transaction of a new delivery, and check that it is allowed."""
        if isinstance(frame.state, TransactionalState):
            return self.session.transaction(frame.state.txn_id)
        return None

    def complete(self, delivery: IncomingDelivery) -> None:
        """Carry out a complete delivery."""
        raise NotImplementedError

    def _begin(self, frame: Transfer) -> IncomingDelivery:
        if self._credit == 0:
            raise AmqpError(
                ErrorCondition.TRANSFER_LIMIT_EXCEEDED, "The link has no credit: wait for a flow."
            )
        if frame.delivery_id is None:
            raise AmqpError(
                ErrorCondition.INVALID_FIELD,
                "The first transfer of a delivery must have a delivery-id.",
            )
        if frame.message_format:
            raise AmqpError(
                ErrorCondition.NOT_IMPLEMENTED,
                f"message-format {frame.message_format}: only messages of format 0 are read here.",
            )
        _check_state(frame)
        transaction = self.check(frame)
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) % COUNTS
        return IncomingDelivery(
            self,
            frame.delivery_id,
            frame.settled,
            self.settles_first,
            transaction,
            bytearray() if isinstance(frame.payload, bytes) else [],
            None,
            frame.state,
        )

    def _check_part(self, delivery: IncomingDelivery, frame: Transfer) -> None:
        """Check that a part belongs to the current delivery and to its transaction."""
        named = frame.state.txn_id if isinstance(frame.state, TransactionalState) else None
        meant = delivery.transaction.txn_id if delivery.transaction else None
        another = frame.delivery_id not in (None, delivery.delivery_id)
        over = delivery.transaction is not None and delivery.transaction.ended
        if named == meant and not another and (frame.aborted or not over):
            _check_state(frame)
            return
        self._end_part(delivery)
        if over and not another:
            self.session.transaction(meant)  # raises the error that says why it is over
        if delivery.transaction is not None:
            delivery.transaction.doom("A delivery of it has not come completely.")
        why = "A delivery must end before the next one begins"
        if not another:
            why = "All transfers of a delivery must name the same transaction"
        raise AmqpError(ErrorCondition.NOT_ALLOWED, f"{why}.")

    def _set_mode(self, delivery: IncomingDelivery, mode: ReceiverSettleMode | None) -> None:
        """Let a delivery be settled as its transfer says.

        Raises:
            AmqpError: It says second, and the link first.
        """
        if mode is None or delivery.settled:
            return
        delivery.settles_first = mode is ReceiverSettleMode.FIRST
        if self.settles_first and not delivery.settles_first:
            self._end_part(delivery)
            raise AmqpError(
                ErrorCondition.INVALID_FIELD,
                "rcv-settle-mode: the link is attached with first, so no transfer may say second.",
            )

    def _check_size(self, delivery: IncomingDelivery, *, more: bool) -> None:
        limits = self.session.connection.resource.limits
        beside = self.session.connection.partial_octets() - self.partial_octets if more else 0
        if len(delivery.parts) > self.message_bytes_max:
            condition = ErrorCondition.MESSAGE_SIZE_EXCEEDED
            why = f"A message may have at most {self.message_bytes_max} octets on this link."
        elif beside and beside + len(delivery.parts) > limits.partial_bytes:
            condition = ErrorCondition.RESOURCE_LIMIT_EXCEEDED
            why = (
                f"Messages that have not come completely may have {limits.partial_bytes} octets "
                "together: send fewer at the same time."
            )
        else:
            return
        delivery.parts.clear()
        self._end_part(delivery)
        if delivery.transaction is not None:
            delivery.transaction.doom("A delivery of it was too long.")
        raise AmqpError(condition, why)

    def _end_part(self, delivery: IncomingDelivery) -> None:
        self._partial = None
        if delivery.transaction is not None:
            delivery.transaction.partial.discard(delivery)

    def _tell(self) -> None:
        self.session.emit(
            Flow(handle=self.handle, delivery_count=self._delivery_count, link_credit=self._credit)
        )


class ReceivingLink(IncomingLink):
    """An end that posts messages to its queue, or each to the queue that it names."""

    def __init__(self, session: Session, attach: Attach, queue: Queue | None) -> None:
        """Take the resource's end of a link to a queue, or to the anonymous terminus."""
        super().__init__(session, attach)
        self._queue = queue
        self.queue_id = None if queue is None else queue.info.queue_id

    def credit_max(self) -> int:
        """Count what the controller may send, less what it has not settled."""
        if self.settles_first:
            return CREDIT
        return min(CREDIT, self.session.connection.incoming_left())

    def complete(self, delivery: IncomingDelivery) -> None:
        """Post a message, now or with the commit of its transaction."""
        sections = self.session.connection.sections(delivery.payload)
        try:
            queue, posting = self._posting(sections)
            if delivery.transaction is None:
                self._post(queue, posting)
        except AmqpError as error:
            self._refuse(delivery, error)
            return
        if delivery.transaction is not None:
            delivery.transaction.post(queue, posting, len(delivery.parts))
        delivery.outcome = Accepted()
        self._tell_outcome(delivery)

    def closed(self) -> None:
        """Forget the states of deliveries on the link."""
        super().closed()
        for delivery in [one for one in self.session.incoming.values() if one.link is self]:
            del self.session.incoming[delivery.delivery_id]
            if delivery.transaction is not None:
                delivery.transaction.keep_id_of(delivery)

    # -------------------------------------------------------------------------- helpers

    def _posting(self, sections: tuple[Section, ...]) -> tuple[Queue, Posting]:
        """Read a message, and check that its queue will take it.

        Raises:
            AmqpError: It would not.
        """
        queue = self._queue or self._named(sections)
        try:
            return queue, self._fitting(queue, sections)
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.INVALID_FIELD, str(error)) from error

    def _fitting(self, queue: Queue, sections: tuple[Section, ...]) -> Posting:
        """Read a message by the columns of its queue, which another client may have just added.

        Raises:
            InvalidInput: The queue will not take it.
            AmqpError: Its body is not of the kind that the queue takes.
        """
        try:
            return posting_of(queue, sections)
        except SchemaMismatch:
            with suppress(Exception):  # the store is away: it is read by the columns as known
                self.session.connection.resource.read_queues()
            return posting_of(queue, sections)

    def _named(self, sections: tuple[Section, ...]) -> Queue:
        """Find the queue that a message of the anonymous terminus goes to."""
        name = next((one.to for one in sections if isinstance(one, Properties)), None)
        if name is None:
            raise AmqpError(
                ErrorCondition.INVALID_FIELD,
                "The link's target has no address: name the queue in the `to` field of the "
                "properties.",
            )
        return self.session.connection.resource.queue(name, Role.SENDER)

    def _post(self, queue: Queue, posting: Posting) -> None:
        """Post a message at once.

        Raises:
            AmqpError: The queue that it names is being dropped; the link itself is not affected.
        """
        try:
            stage(queue, [posting], None)
        except (QueueClosed, QueueNotFound) as error:
            if self._queue is not None:
                raise
            raise AmqpError(
                ErrorCondition.NOT_FOUND, f"The queue {queue.name!r} is dropped."
            ) from error

    def _tell_outcome(self, delivery: IncomingDelivery) -> None:
        """Send the outcome of a message, unless it was sent settled."""
        if delivery.settled or delivery.outcome is None:
            return
        transaction = delivery.transaction
        delivery.state = delivery.outcome
        if transaction is not None:
            delivery.state = TransactionalState(transaction.txn_id, delivery.outcome)
            transaction.posted(delivery)
        if not delivery.settles_first:
            self.session.incoming[delivery.delivery_id] = delivery
        self.session.emit(
            Disposition(
                role=Role.RECEIVER,
                first=delivery.delivery_id,
                settled=delivery.settles_first,
                state=delivery.state,
            )
        )

    def _refuse(self, delivery: IncomingDelivery, error: AmqpError) -> None:
        """Refuse a message: by rejecting it, else by failing the commit, else by ending the link.

        Raises:
            AmqpError: The link must be ended to tell the controller.
        """
        if delivery.settled and delivery.transaction is not None:
            delivery.transaction.doom(f"A settled message could not be posted: {error.description}")
        elif delivery.settled or not self.source.supports_rejected:
            raise error
        else:
            delivery.outcome = Rejected(error.error)
            self._tell_outcome(delivery)


def _check_state(frame: Transfer) -> None:
    """Check the state of a delivery: one that says something else is not posted as if it had none.

    Raises:
        AmqpError: It is none of the specification's.
    """
    known = isinstance(frame.state, DeliveryState) and not isinstance(frame.state, Described)
    if frame.state is not None and not known:
        raise AmqpError(
            ErrorCondition.NOT_IMPLEMENTED, f"{shown(frame.state)} is not the state of a delivery."
        )


def terminus(attach: Attach) -> Source | Target | Coordinator | None:
    """Return the terminus of an attach that is at the resource."""
    return attach.target if attach.role is Role.SENDER else attach.source
