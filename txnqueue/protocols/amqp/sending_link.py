"""The resource's sending end of a link: it acquires messages, in a transaction or outside."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.protocols.amqp.links import COUNTS, Link
from txnqueue.protocols.amqp.messages import sections_of
from txnqueue.protocols.amqp.performatives import TXN_ID, Attach, Flow, Transfer
from txnqueue.protocols.amqp.transactions import (
    LiveTransaction,
    OutgoingDelivery,
    apply,
    apply_defaults,
)
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    ErrorCondition,
    Outcome,
    Payload,
    Released,
    TransactionalState,
)
from txnqueue.protocols.deliveries import written_messages
from txnqueue.transaction import attempt_of

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.protocols.amqp.session import Session
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")


class SendingLink(Link):
    """An end that acquires messages of a queue and sends them.

    Attributes:
        credit: The number of messages that the controller takes beyond those that wait.
        transaction: The transaction that acquires them; None: they are held under a lease.
    """

    def __init__(self, session: Session, attach: Attach, queue: Queue) -> None:
        """Take the resource's end of a link from a queue."""
        super().__init__(session, attach)
        self.queue = queue
        self.queue_id = queue.info.queue_id
        self.credit = 0
        self.transaction: LiveTransaction | None = None
        self._delivery_count = 0
        self._octets_max = attach.max_message_size
        self._drain = False
        self._waiting: deque[OutgoingDelivery] = deque()

    @property
    def default_outcome(self) -> Outcome:
        """The outcome of a delivery that ends without one."""
        return self.source.default_outcome or Released()

    @property
    def unsent(self) -> int:
        """The number of deliveries that are acquired, of which no part is sent."""
        return len(self._waiting) - (bool(self._waiting) and self._waiting[0].started)

    @property
    def waiting(self) -> tuple[OutgoingDelivery, ...]:
        """The deliveries that are acquired and not completely sent."""
        return tuple(self._waiting)

    def flow(self, frame: Flow) -> None:
        """Take over the credit and the transaction of later acquisitions."""
        moved = False
        if TXN_ID in frame.properties:
            moved = self._enter(frame.properties[TXN_ID])
        if frame.link_credit is not None:
            known = frame.delivery_count if frame.delivery_count is not None else 0
            under_way = (self._delivery_count - known) % COUNTS
            credit = max(0, frame.link_credit - under_way)
            self._withdraw(max(0, self.unsent - credit))
            self.credit = credit - self.unsent
        self._drain = frame.drain
        drained = self.pump()
        if (frame.echo or moved) and not drained:
            self._tell()

    def pump(self) -> bool:
        """Send as many messages as the credit allows.

        Returns:
            Whether the credit was returned because the controller drains.
        """
        self._send_waiting()
        more = False
        while not more and self._may_acquire():
            limit = self.credit
            if self.session.window is not None:
                limit = min(limit, self.session.window)
            limit = min(limit, self.session.connection.unsettled_left())
            if limit <= 0:
                break
            transaction = self.transaction
            batch = self.queue.receive(
                limit, transaction=transaction.transaction if transaction else None
            )
            if not len(batch):
                break
            self._acquired(batch)
            self._send_waiting()
            # These go settled, so no limit on unsettled deliveries stops them: the rest waits.
            more = self.sends_settled
        if more or not (self._drain and self._may_acquire()):
            return False
        self._count(self.credit)
        self.credit, self._drain = 0, False
        self._tell()
        return True

    def leave(self, transaction: LiveTransaction) -> None:
        """Acquire outside any transaction from now on."""
        if self.transaction is transaction:
            self.transaction = None
            if self.attached:
                self._tell()

    def give_up(self, delivery: OutgoingDelivery) -> None:
        """Stop sending a delivery; if none of it was sent, its credit remains."""
        delivery.rest = ()
        if delivery in self._waiting:
            self._waiting.remove(delivery)
            self.credit += not delivery.started

    def closed(self) -> None:
        """Apply the default outcome to deliveries without one; a transaction's end with it."""
        unsent = self._stop()
        mine = [d for d in self.session.unsettled.values() if d.link is self]
        self._give_back(mine + unsent)

    def suspended(self) -> None:
        """Give back messages not completely sent; the controller may still settle the others."""
        unsent = self._stop()
        mine = [d for d in self.session.unsettled.values() if d.link is self]
        self._give_back([d for d in mine if d.rest] + unsent)

    # -------------------------------------------------------------------------- helpers

    def _may_acquire(self) -> bool:
        """Return whether the controller has credit and reads what it is sent.

        While a discharge is in doubt, it is not known yet what the next acquisitions belong to.
        """
        session, transaction = self.session, self.transaction
        return bool(
            self.credit
            and not self._waiting
            and session.can_send
            and session.connection.is_read
            and (transaction is None or attempt_of(transaction.transaction).takes_work)
        )

    def _stop(self) -> list[OutgoingDelivery]:
        """Stop acquiring and sending; messages to go settled but not sent are not accepted.

        Returns:
            The other deliveries of which no part is sent.
        """
        left = [one for one in self._waiting if self.sends_settled]
        unsent = [one for one in self._waiting if not (self.sends_settled or one.started)]
        self._waiting.clear()
        self._return(left)
        if self.transaction is not None:
            self.transaction.links.discard(self)
            self.transaction = None
        return unsent

    def _withdraw(self, count: int) -> None:
        """Return the last deliveries that wait, because the controller takes fewer now."""
        self._return([self._waiting.pop() for _ in range(count)])

    def _return(self, unsent: list[OutgoingDelivery]) -> None:
        """Return what will not be sent: at once, or with its transaction, however that ends."""
        for delivery in unsent:
            delivery.rest, delivery.settled = (), True  # the controller is told nothing more of it
            if delivery.transaction is not None:
                delivery.outcome = Released()
        self._release(one for one in unsent if one.outcome is None)

    def _release(self, deliveries: Iterable[OutgoingDelivery]) -> None:
        """Give back messages that were to go settled outside a transaction."""
        try:
            apply([(one, Released()) for one in deliveries], None)
        except Exception as error:  # when the lease ends, others get the messages
            logger.warning("not released link=%s error=%s", self.name, error)

    def _give_back(self, mine: list[OutgoingDelivery]) -> None:
        for delivery in mine:
            delivery.settled, delivery.rest = True, ()
            if delivery.transaction is not None and delivery.outcome is None:
                delivery.associate(delivery.transaction, self.default_outcome)
            self.session.forget(delivery)
        apply_defaults(delivery for delivery in mine if delivery.transaction is None)

    def _enter(self, txn_id: bytes | None) -> bool:
        if txn_id is None:
            found = None
        elif not self.session.connection.resource.transactional_acquisition:
            raise AmqpError(
                ErrorCondition.NOT_IMPLEMENTED, "This link does not acquire in transactions."
            )
        else:
            found = self.session.transaction(txn_id)
        if found is self.transaction:
            return False
        if self.transaction is not None:
            self.transaction.links.discard(self)
        if found is not None:
            found.links.add(self)
        self.transaction = found
        return True

    def _acquired(self, batch: Batch) -> None:
        """Make deliveries from a claim."""
        transaction = self.transaction
        connection = self.session.connection
        core = transaction.transaction if transaction is not None else None

        schema = self.queue.schema

        def write(message: Mapping[str, Any]) -> tuple[str, Payload]:
            payload = connection.payload(sections_of(message, schema))
            self._check_size(payload)
            return message["_message"]["id"], payload

        for message_id, payload in written_messages(batch, core, write):
            delivery = OutgoingDelivery(
                self,
                batch,
                message_id,
                transaction,
                transaction,
                payload,
                settled=self.sends_settled,
            )
            if transaction is not None:
                delivery.state = TransactionalState(transaction.txn_id)
                transaction.deliveries.append(delivery)
            self._waiting.append(delivery)
        self.credit -= len(batch)

    def _check_size(self, payload: Payload) -> None:
        """Check that the controller takes a message of this length.

        Raises:
            AmqpError: It does not: the link must be ended.
        """
        size_max = self._octets_max
        if size_max is not None and isinstance(payload, bytes) and len(payload) > size_max:
            raise AmqpError(
                ErrorCondition.MESSAGE_SIZE_EXCEEDED,
                f"The next message has {len(payload)} octets: attach with a max-message-size of "
                f"more than {size_max}.",
            )

    def _start(self, delivery: OutgoingDelivery) -> None:
        """Number a delivery when it is first sent, because ids follow each other in that order."""
        delivery.delivery_id = self.session.next_delivery_id()
        delivery.started = True
        self._count(1)
        if self.sends_settled and delivery.transaction is not None:
            delivery.associate(delivery.transaction, Accepted())
        elif not self.sends_settled:
            self.session.unsettled[delivery.delivery_id] = delivery

    def _count(self, deliveries: int) -> None:
        self._delivery_count = (self._delivery_count + deliveries) % COUNTS

    def _accept_going(self) -> None:
        """Accept messages that go settled and complete now, with one commit for each claim.

        This happens before they are sent, so no message is sent that others have meanwhile got.
        Those of a transaction are accepted by its commit, as far as they have begun to be sent.
        """
        going = [one for one in self._going() if one.transaction is None and one.outcome is None]
        apply([(one, Accepted()) for one in going], None)
        for delivery in going:
            delivery.outcome = Accepted()

    def _going(self) -> Iterator[OutgoingDelivery]:
        """Yield the deliveries that fit completely into the session's window."""
        size, window = self.session.connection.payload_max, self.session.window
        for delivery in self._waiting:
            if window is not None:
                window -= 1 if size is None else max(1, -(-len(delivery.rest) // size))
                if window < 0:
                    return
            yield delivery

    def _send_waiting(self) -> None:
        if self.sends_settled:
            self._accept_going()
        size = self.session.connection.payload_max
        while self._waiting and self.session.can_send:
            delivery = self._waiting[0]
            if not delivery.started:
                self._start(delivery)
            part = delivery.rest if size is None else delivery.rest[:size]
            delivery.rest = delivery.rest[len(part) :]
            more = bool(delivery.rest)
            state = None if delivery.transaction is None else delivery.state
            if isinstance(state, TransactionalState):
                state = TransactionalState(state.txn_id)
            self.session.send(
                Transfer(
                    handle=self.handle,
                    delivery_id=delivery.delivery_id,
                    delivery_tag=delivery.delivery_id.to_bytes(4, "big"),
                    settled=self.sends_settled,
                    more=more,
                    state=state,
                    payload=part,
                )
            )
            if not more:
                self._waiting.popleft()

    def _tell(self) -> None:
        """Tell the controller the credit and the transaction of later transfers.

        To it, what waits has not used up its credit.
        """
        self.session.emit(
            Flow(
                handle=self.handle,
                delivery_count=self._delivery_count,
                link_credit=self.credit + self.unsent,
                drain=self._drain,
                properties={TXN_ID: self.transaction.txn_id if self.transaction else None},
            )
        )
