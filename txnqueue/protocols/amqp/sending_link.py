"""The resource's sending end of a link: it acquires messages, in a transaction or outside."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from txnqueue.batch import ids_of, positions_of, some_messages
from txnqueue.errors import Busy, InvalidInput
from txnqueue.protocols.amqp.links import COUNTS, Link
from txnqueue.protocols.amqp.messages import sections_of
from txnqueue.protocols.amqp.performatives import TXN_ID, Attach, Flow, Transfer
from txnqueue.protocols.amqp.transactions import (
    LiveTransaction,
    OutgoingDelivery,
    apply,
    apply_defaults,
    by_claim,
    give_back,
)
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    ErrorCondition,
    Modified,
    Outcome,
    Payload,
    Released,
    TransactionalState,
)
from txnqueue.protocols.deliveries import is_of_messages
from txnqueue.transaction import attempt_of

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.protocols.amqp.session import Session
    from txnqueue.queue import Queue
    from txnqueue.types import Message

logger = logging.getLogger("txnqueue")
PORTION_GROWTH = 16
"""How many messages are read at first, and how many times the last number are read next at most.

How long messages are is only known once they are read.
"""


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
        self._gone: list[OutgoingDelivery] = []
        self._portion, self._longest = 1, 1

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

    @property
    def unsent_octets(self) -> int:
        """The octets of the messages that are read and not sent."""
        read = takewhile(lambda one: one.payload is not None, self._waiting)
        return sum(_octets(one.payload) - one.sent for one in read)

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
            try:
                batch = self.queue.receive(
                    limit, transaction=transaction.transaction if transaction else None
                )
            except Busy as error:  # nothing was changed: the next tick tries again
                logger.info("nothing acquired link=%s error=%s", self.name, error)
                return False
            try:
                if not len(batch):
                    break
                self._acquired(batch)
            except BaseException:  # the controller will not get them, so they are not consumed
                self._return_unseen(batch)
                raise
            self._send_waiting()
            # The rest waits: on a socket because others do, and what goes settled because no limit
            # on unsettled deliveries stops it.
            more = self.session.connection.leave_to_pump() or self.sends_settled
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
        delivery.drop()
        if delivery in self._waiting:
            self._waiting.remove(delivery)
            self.credit += not delivery.started

    def closed(self) -> None:
        """Apply the default outcome to deliveries without one; a transaction's end with it."""
        self._stop()
        self._give_back([d for d in self.session.unsettled.values() if d.link is self])

    def suspended(self) -> None:
        """Give back messages not completely sent; the controller may still settle the others."""
        self._stop()
        mine = [d for d in self.session.unsettled.values() if d.link is self]
        self._give_back([d for d in mine if d.unsent])

    # -------------------------------------------------------------------------- helpers

    def _may_acquire(self) -> bool:
        """Return whether the controller has credit and reads what it is sent.

        While a discharge is in doubt, it is not known yet what the next acquisitions belong to.
        """
        may = self.credit and not self._waiting and not _is_in_doubt(self.transaction)
        return bool(may and self._may_send())

    def _may_send(self) -> bool:
        """Return whether the session's window is open, and the controller reads what it is sent.

        While a discharge is in doubt, what was acquired in its transaction waits: the discharge has
        fixed what it accepts, and does not accept what is sent now.
        """
        in_doubt = bool(self._waiting) and _is_in_doubt(self._waiting[0].transaction)
        return not in_doubt and self.session.can_send and self.session.connection.may_send()

    def _stop(self) -> None:
        """Stop acquiring and sending; messages of which nothing is sent go back."""
        left = [one for one in self._waiting if self.sends_settled or not one.started]
        self._waiting.clear()
        self._return(left)
        if self.transaction is not None:
            self.transaction.links.discard(self)
            self.transaction = None

    def _withdraw(self, count: int) -> None:
        """Return the last deliveries that wait, because the controller takes fewer now."""
        self._return([self._waiting.pop() for _ in range(count)])

    def _return(self, unsent: list[OutgoingDelivery]) -> None:
        """Return what will not be sent: at once, or with its transaction, however that ends."""
        for delivery in unsent:
            delivery.drop()
            delivery.settled = True  # the controller is told nothing more of it
            if delivery.transaction is not None and (self.sends_settled or not delivery.outcome):
                delivery.outcome = Released()
        left = by_claim(one for one in unsent if one.outcome is None)
        give_back([(one, Released()) for one in mine] for mine in left)

    def _give_back(self, mine: list[OutgoingDelivery]) -> None:
        """End deliveries: the default outcome is for those that the controller has wholly got."""
        for delivery in mine:
            self.session.forget(delivery)
        whole = [delivery for delivery in mine if not delivery.unsent]
        self._return([delivery for delivery in mine if delivery.unsent])
        for delivery in whole:
            delivery.settled = True
            if delivery.transaction is not None and delivery.outcome is None:
                delivery.associate(delivery.transaction, self.default_outcome)
        apply_defaults(delivery for delivery in whole if delivery.transaction is None)

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
        """Make deliveries from a claim; their messages are read when they can be sent."""
        transaction = self.transaction
        if transaction is not None:
            transaction.compact()
        for message_id, position in zip(ids_of(batch), positions_of(batch), strict=True):
            delivery = OutgoingDelivery(
                self,
                batch,
                message_id,
                transaction,
                transaction,
                position,
                settled=self.sends_settled,
            )
            if transaction is not None:
                delivery.state = TransactionalState(transaction.txn_id)
                transaction.deliveries[delivery] = None
            self._waiting.append(delivery)
        self.credit -= len(batch)

    def _return_unseen(self, batch: Batch) -> None:
        """Return a claim whose deliveries were not all made: nothing of it was sent.

        The commit of its transaction would accept what has no delivery.
        """
        live = self.transaction
        self._waiting = deque(one for one in self._waiting if one.batch is not batch)
        if live is not None:
            for delivery in [one for one in live.deliveries if one.batch is batch]:
                del live.deliveries[delivery]
        try:
            batch.release(transaction=None if live is None else live.transaction)
        except BaseException as error:  # what is not returned comes back when its lease ends
            if live is not None:
                live.doom("Messages that it acquired could be neither sent nor returned.")
            if not isinstance(error, Exception):
                raise
            logger.warning("not returned link=%s error=%s", self.name, error)

    def _read(self) -> None:
        """Read the next messages, as many as probably fit into the octets that are left.

        Raises:
            AmqpError: One of them is too long for the controller: the link must be ended.
        """
        due = list(islice(self._waiting, self._portion_max()))
        try:
            found = some_messages(due[0].batch, [one.message_id for one in due])
        except InvalidInput as error:
            if not is_of_messages(error):
                raise
            due, found = due[:1], self._read_alone(due[0])
        messages = {one["_message"]["id"]: one for one in found}
        for delivery in due:
            try:
                delivery.payload = self._written(delivery, messages[delivery.message_id])
            except Exception:
                self._fail(delivery)
                raise
        self._portion = len(due)
        self._longest = max(1, *(_octets(one.payload) for one in due))

    def _read_alone(self, delivery: OutgoingDelivery) -> list[Message]:
        """Read a message that may be the one of several that cannot be read."""
        try:
            return some_messages(delivery.batch, [delivery.message_id])
        except InvalidInput as error:
            if is_of_messages(error):
                self._fail(delivery)
            raise

    def _portion_max(self) -> int:
        """Count the messages to read next."""
        left = self.session.connection.unsent_octets_left() // self._longest
        return max(1, min(left, self._portion * PORTION_GROWTH))

    def _written(self, delivery: OutgoingDelivery, message: Message) -> Payload:
        assert delivery.position is not None
        now_ms = self.session.connection.resource.now_ms()
        sections = sections_of(message, self.queue.schema, delivery.position, now_ms)
        payload = self.session.connection.payload(sections)
        self._check_size(payload)
        return payload

    def _fail(self, delivery: OutgoingDelivery) -> None:
        """Let the delivery of a message that cannot be sent count as failed.

        Otherwise it would be received again and again, and keep the messages behind it from
        everybody.
        """
        self._waiting.remove(delivery)
        delivery.drop()
        delivery.settled, delivery.outcome = True, Modified(delivery_failed=True)
        if delivery.transaction is not None:
            return
        give_back([[(delivery, delivery.outcome)]])

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
        if self.sends_settled:
            self.session.settled.add(delivery.delivery_id)
            if delivery.transaction is not None:
                delivery.associate(delivery.transaction, Accepted())
        else:
            self.session.unsettled[delivery.delivery_id] = delivery

    def _count(self, deliveries: int) -> None:
        self._delivery_count = (self._delivery_count + deliveries) % COUNTS

    def _send_waiting(self) -> None:
        while self._waiting and self._may_send():
            if self._waiting[0].payload is None:
                self._read()
            for delivery in self._accepted_going() or [self._waiting[0]]:
                self._send(delivery)
        if self._gone and not self._waiting:
            self._consume_gone()

    def _consume_gone(self) -> None:
        """Let a transaction forget the deliveries of a claim that has gone settled."""
        gone, self._gone = self._gone, []
        for transaction in {one.transaction for one in gone} - {None}:
            assert transaction is not None
            transaction.consume(one for one in gone if one.transaction is transaction)

    def _accepted_going(self) -> Sequence[OutgoingDelivery]:
        """Accept messages that go settled and complete now, with one commit.

        This happens before they are sent, so no message is sent that others have meanwhile got.
        Those of a transaction are accepted by its commit, as far as they have begun to be sent.
        """
        going = self._going() if self.sends_settled else []
        apply([(one, Accepted()) for one in going if one.outcome is None], None)
        for delivery in going:
            delivery.outcome = Accepted()
        return going

    def _going(self) -> list[OutgoingDelivery]:
        """List the next deliveries outside a transaction that fit completely into the window."""
        size, window = self.session.connection.payload_max, self.session.window
        found: list[OutgoingDelivery] = []
        for delivery in self._waiting:
            if delivery.payload is None or delivery.transaction is not None:
                break
            if window is not None:
                left = len(delivery.payload) - delivery.sent
                window -= 1 if size is None else max(1, -(-left // size))
                if window < 0:
                    break
            found.append(delivery)
        return found

    def _send(self, delivery: OutgoingDelivery) -> None:
        """Send the next delivery, as far as the window allows."""
        if not delivery.started:
            self._start(delivery)
        acquired_in = delivery.acquired_in
        state = None if acquired_in is None else TransactionalState(acquired_in.txn_id)
        while delivery.unsent and self.session.can_send:
            part = delivery.take_part(self.session.connection.payload_max)
            self.session.send(
                Transfer(
                    handle=self.handle,
                    delivery_id=delivery.delivery_id,
                    delivery_tag=delivery.delivery_id.to_bytes(4, "big"),
                    settled=self.sends_settled,
                    more=delivery.unsent,
                    state=state,
                    payload=part,
                )
            )
        if not delivery.unsent:
            self._waiting.popleft()
            if self.sends_settled and delivery.transaction is not None:
                self._gone.append(delivery)

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


def _is_in_doubt(transaction: LiveTransaction | None) -> bool:
    """Return whether the end of a transaction is being decided, and its outcome is not known."""
    return transaction is not None and not attempt_of(transaction.transaction).takes_work


def _octets(payload: Payload | None) -> int:
    """Count the octets of a message; those of sections are not known."""
    return len(payload) if isinstance(payload, bytes) else 0
