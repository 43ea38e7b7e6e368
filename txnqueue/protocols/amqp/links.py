"""The ends of links at the resource: posting messages to queues, and sending those of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp.messages import posting_of, stage
from txnqueue.protocols.amqp.performatives import (
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
    Error,
    ErrorCondition,
    Rejected,
    Source,
    Target,
    TransactionalState,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.session import Session
    from txnqueue.queue import Queue

CREDIT = 1_000
"""So many deliveries a controller may send before it is granted more."""


class Link:
    """The resource's end of a link."""

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
            rcv_settle_mode=attach.rcv_settle_mode,
        )

    def detach(self, error: Error | None = None) -> None:
        """End the link, and tell the controller why."""
        if not self.attached:
            return
        self.attached, self.error = False, error
        self.closed()
        self.session.emit(Detach(handle=self.handle, error=error))

    def closed(self) -> None:
        """Let go of what belongs to the link."""


class IncomingLink(Link):
    """An end that receives: it grants credit, and puts the parts of a delivery together."""

    def __init__(self, session: Session, attach: Attach) -> None:
        """Take the resource's end of a link that a controller sends on."""
        super().__init__(session, attach)
        self._credit = 0
        self._delivery_count = 0
        self._partial: IncomingDelivery | None = None

    def grant(self) -> None:
        """Let the controller send some more."""
        if self._credit <= CREDIT // 2:
            self._credit = CREDIT
            self.session.emit(
                Flow(handle=self.handle, delivery_count=self._delivery_count, link_credit=CREDIT)
            )

    def transfer(self, frame: Transfer) -> None:
        """Take a delivery, or a part of one."""
        delivery = self._partial
        if delivery is None:
            delivery = self._begin(frame)
        else:
            self.check_part(delivery, frame)
        if frame.aborted:
            self._end_part(delivery)
            return
        delivery.payload = delivery.payload + frame.payload  # type: ignore[operator]
        if frame.more:
            self._partial = delivery
            if delivery.transaction is not None:
                delivery.transaction.partial.add(delivery)
            return
        self._end_part(delivery)
        self.complete(delivery)
        self.grant()

    def check_first(self, frame: Transfer) -> LiveTransaction | None:
        """Find the transaction of a new delivery, and check that it may come."""
        if isinstance(frame.state, TransactionalState):
            return self.session.transaction(frame.state.txn_id)
        return None

    def check_part(self, delivery: IncomingDelivery, frame: Transfer) -> None:
        """Check that a further part belongs to the same transaction as the first."""

    def complete(self, delivery: IncomingDelivery) -> None:
        """Do what a delivery asks for."""
        raise NotImplementedError

    def _begin(self, frame: Transfer) -> IncomingDelivery:
        if self._credit == 0:
            raise AmqpError(
                ErrorCondition.TRANSFER_LIMIT_EXCEEDED, "The link has no credit: wait for a flow."
            )
        if frame.delivery_id is None:
            raise AmqpError(ErrorCondition.INVALID_FIELD, "A delivery begins without its id.")
        transaction = self.check_first(frame)
        self._credit -= 1
        self._delivery_count += 1
        return IncomingDelivery(
            self,
            frame.delivery_id,
            frame.settled,
            transaction,
            frame.payload[:0],
            None,
            frame.state,
        )

    def _end_part(self, delivery: IncomingDelivery) -> None:
        self._partial = None
        if delivery.transaction is not None:
            delivery.transaction.partial.discard(delivery)


class ReceivingLink(IncomingLink):
    """An end by which messages are posted to a queue."""

    def __init__(self, session: Session, attach: Attach, queue: Queue) -> None:
        """Take the resource's end of a link to a queue."""
        super().__init__(session, attach)
        self.queue = queue

    def check_part(self, delivery: IncomingDelivery, frame: Transfer) -> None:
        """Check that all parts name the transaction of the first one, or none does."""
        named = frame.state.txn_id if isinstance(frame.state, TransactionalState) else None
        meant = delivery.transaction.txn_id if delivery.transaction else None
        over = delivery.transaction is not None and delivery.transaction.ended
        if named == meant and (frame.aborted or not over):
            return
        self._end_part(delivery)
        if over:
            self.session.transaction(meant)  # says why it is over
        others = [] if named is None else [self.session.transaction(named)]
        for transaction in [delivery.transaction, *others]:
            if transaction is not None:
                transaction.doom("A delivery was split over several transactions.")
        raise AmqpError(
            ErrorCondition.NOT_ALLOWED, "All parts of a delivery name the same transaction."
        )

    def complete(self, delivery: IncomingDelivery) -> None:
        """Post a message: now, or with the commit of its transaction."""
        transaction = delivery.transaction
        try:
            posting = posting_of(self.queue, self.session.connection.sections(delivery.payload))
        except InvalidInput as error:
            delivery.outcome = Rejected(Error(ErrorCondition.INVALID_FIELD, str(error)))
            if delivery.settled:
                self._refuse_settled(transaction, str(error))
                return
        else:
            delivery.outcome = Accepted()
            if transaction is not None:
                transaction.post(self.queue, posting)
            else:
                stage(self.queue, [posting], None)
        if delivery.settled:
            return
        delivery.state = delivery.outcome
        if transaction is not None:
            delivery.state = TransactionalState(transaction.txn_id, delivery.outcome)
            transaction.incoming.append(delivery)
        if not self.settles_first:
            self.session.incoming[delivery.delivery_id] = delivery
        self.session.emit(
            Disposition(
                role=Role.RECEIVER,
                first=delivery.delivery_id,
                settled=self.settles_first,
                state=delivery.state,
            )
        )

    @staticmethod
    def _refuse_settled(transaction: LiveTransaction | None, why: str) -> None:
        """Refuse what nobody can be told of: the commit, or else the link."""
        if transaction is None:
            raise AmqpError(ErrorCondition.INVALID_FIELD, why)
        transaction.doom(f"A settled message could not be posted: {why}")


def terminus(attach: Attach) -> Source | Target | Coordinator | None:
    """Find which terminus of the resource's an attach is about."""
    return attach.target if attach.role is Role.SENDER else attach.source
