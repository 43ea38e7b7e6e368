"""A session of a resource: frames go in and come out, and find their links and transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, LeaseLost, QueueClosed, QueueNotFound
from txnqueue.protocols.amqp.coordinator import CoordinatorLink
from txnqueue.protocols.amqp.links import IncomingLink, Link, ReceivingLink, terminus
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Performative,
    Role,
    Transfer,
)
from txnqueue.protocols.amqp.sending import SendingLink
from txnqueue.protocols.amqp.transactions import (
    IncomingDelivery,
    LiveTransaction,
    OutgoingDelivery,
    apply,
    check_outcome,
)
from txnqueue.protocols.amqp.types import (
    AmqpError,
    Coordinator,
    DeliveryState,
    Error,
    ErrorCondition,
    Modified,
    Outcome,
    TransactionalState,
    TransactionError,
    TxnCapability,
    transaction_id,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.connection import Connection

logger = logging.getLogger("txnqueue")


class Session:
    """One session of a connection: frames go in by ``handle``, and come out of ``frames``.

    Attributes:
        links: The links that are attached, by handle.
        window: So many transfers the controller can take now; None: any number.
        incoming: Deliveries of the controller's that neither end has forgotten.
        unsettled: Deliveries to the controller that are not settled.
    """

    def __init__(self, connection: Connection, incoming_window: int | None) -> None:
        """Begin a session; use ``Connection.begin``."""
        self.connection = connection
        self.window = incoming_window
        self.links: dict[int, Link] = {}
        self.incoming: dict[int, IncomingDelivery] = {}
        self.unsettled: dict[int, OutgoingDelivery] = {}
        self._gone: set[int] = set()
        self._frames: list[Performative] = []
        self._next_delivery_id = 0

    # ----------------------------------------------------------------------- frames

    def handle(self, performative: Performative) -> list[Performative]:
        """Take what the controller sends.

        Returns:
            What is to be sent back on this session. Other sessions of the connection may have
            something to say too: see their ``frames``.

        Raises:
            AmqpError: It speaks of a link that there is not: end the session.
        """
        if isinstance(performative, Attach):
            self._attach(performative)
        elif isinstance(performative, Disposition):
            self._disposition(performative)
        elif isinstance(performative, Flow) and performative.handle is None:
            self._flow(performative)
        else:
            self._on_link(performative)
        return self.frames()

    def frames(self) -> list[Performative]:
        """Take what is to be sent to the controller."""
        frames, self._frames = self._frames, []
        return frames

    def tick(self) -> None:
        """Do what time brings."""
        now_ms = self.connection.resource.now_ms()
        for link in list(self.links.values()):
            if isinstance(link, CoordinatorLink):
                link.tick(now_ms)
        self._extend_leases(now_ms)
        self._pump()

    def end(self) -> None:
        """End the session: every link is closed, control links first."""
        links = sorted(self.links.values(), key=lambda link: not isinstance(link, CoordinatorLink))
        for link in links:
            link.detach()
        self.links = {}
        if self in self.connection.sessions:
            self.connection.sessions.remove(self)

    # ------------------------------------------------------------- for links and transactions

    @property
    def can_send(self) -> bool:
        """Whether the controller takes another transfer."""
        return self.window is None or self.window > 0

    def emit(self, performative: Performative) -> None:
        """Tell the controller something."""
        self._frames.append(performative)

    def send(self, transfer: Transfer) -> None:
        """Send a transfer, which uses the window up."""
        if self.window is not None:
            self.window -= 1
        self.emit(transfer)

    def next_delivery_id(self) -> int:
        """Number a delivery to the controller."""
        self._next_delivery_id += 1
        return self._next_delivery_id - 1

    def transaction(self, txn_id: object) -> LiveTransaction:
        """Find the transaction that work is asked for in.

        Raises:
            AmqpError: There is none that this session can work in.
        """
        shared = TxnCapability.MULTI_SSNS_PER_TXN in self.connection.resource.capabilities
        try:
            wanted = transaction_id(txn_id)
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.INVALID_FIELD, str(error)) from error
        for found in self.connection.transactions():
            if found.txn_id == wanted and (shared or found.control.session is self):
                if found.ended and found.error is not None:
                    raise AmqpError(found.error.condition, found.error.description)
                return found
        raise AmqpError(TransactionError.UNKNOWN_ID, f"There is no transaction {wanted.hex()}.")

    def show(self, posted: IncomingDelivery) -> None:
        """Show the state of a posted delivery, unless it is settled."""
        if posted.delivery_id in self.incoming:
            self.emit(Disposition(role=Role.RECEIVER, first=posted.delivery_id, state=posted.state))

    def settle(self, delivery: OutgoingDelivery, state: DeliveryState) -> None:
        """Settle a delivery to the controller with a state, and forget it."""
        if not delivery.settled:
            self.emit(
                Disposition(role=Role.SENDER, first=delivery.delivery_id, settled=True, state=state)
            )
        delivery.settled = True
        self.forget(delivery)

    def forget(self, delivery: OutgoingDelivery) -> None:
        """Forget a delivery to the controller."""
        self.unsettled.pop(delivery.delivery_id, None)

    # ------------------------------------------------------------------ one per performative

    def _attach(self, attach: Attach) -> None:
        try:
            link = self._link(attach)
        except AmqpError as error:
            role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
            self.emit(Attach(name=attach.name, handle=attach.handle, role=role))
            self.emit(Detach(handle=attach.handle, error=error.error))
            if attach.handle not in self.links:
                self._gone.add(attach.handle)
            return
        self._gone.discard(attach.handle)
        self.links[attach.handle] = link
        self.emit(link.answer(attach))
        if isinstance(link, IncomingLink):
            link.grant()

    def _link(self, attach: Attach) -> Link:
        if attach.handle in self.links:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, f"Handle {attach.handle} is in use.")
        attached = {
            (link.name, link.role)
            for session in self.connection.sessions
            for link in session.links.values()
        }
        if (attach.name, attach.role) in attached:  # both directions have names of their own
            raise AmqpError(ErrorCondition.NOT_ALLOWED, f"A link {attach.name!r} is attached.")
        if attach.unsettled is not None:
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, "Links cannot be resumed: attach a new one."
            )
        node = terminus(attach)
        if isinstance(node, Coordinator):
            return CoordinatorLink(self, attach)
        address = node.address if node is not None else None
        try:
            queue = self.connection.resource.manager.queue(address or "")
        except (QueueNotFound, InvalidInput) as error:
            raise AmqpError(ErrorCondition.NOT_FOUND, str(error)) from error
        if attach.role is Role.SENDER:
            return ReceivingLink(self, attach, queue)
        return SendingLink(self, attach, queue)

    def _on_link(self, performative: Flow | Transfer | Detach) -> None:
        handle = performative.handle
        link = self.links.get(handle) if handle is not None else None
        if link is None:
            if handle in self._gone:  # sent before the controller knew, or to answer
                if isinstance(performative, Detach):
                    self._gone.discard(performative.handle)
                return
            raise AmqpError(ErrorCondition.UNATTACHED_HANDLE, f"Handle {handle} is not attached.")
        if isinstance(performative, Detach):
            link.detach()
            self.links.pop(link.handle, None)
        elif isinstance(performative, Transfer) and isinstance(link, IncomingLink):
            self._guarded(link, lambda: link.transfer(performative))
        elif isinstance(performative, Flow) and isinstance(link, SendingLink):
            self._flow(performative)
            self._guarded(link, lambda: link.flow(performative))

    def _flow(self, flow: Flow) -> None:
        if flow.incoming_window is not None:
            self.window = flow.incoming_window
        if flow.handle is None:
            self._pump()

    def _disposition(self, frame: Disposition) -> None:
        last = frame.first if frame.last is None else frame.last
        named = range(frame.first, last + 1)
        if frame.role is Role.SENDER:
            for delivery_id in named:
                if frame.settled:
                    self.incoming.pop(delivery_id, None)
            return
        found = [d for n, d in sorted(self.unsettled.items()) if n in named]
        by_link: dict[Link, list[OutgoingDelivery]] = {}
        for delivery in found:
            by_link.setdefault(delivery.link, []).append(delivery)
        for link, deliveries in by_link.items():
            self._guarded(link, lambda some=deliveries: self._dispose(some, frame))  # type: ignore[misc]

    def _dispose(self, deliveries: list[OutgoingDelivery], frame: Disposition) -> None:
        """Take what the controller says of deliveries of one link."""
        transaction, outcome = None, frame.state
        if isinstance(frame.state, TransactionalState):
            transaction, outcome = self.transaction(frame.state.txn_id), frame.state.outcome
        try:
            said = check_outcome(outcome)
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.NOT_IMPLEMENTED, str(error)) from error
        if said is None and not frame.settled and transaction is None:
            return
        for delivery in deliveries:
            live = delivery.transaction
            if live is not None and live is not transaction:
                (transaction or live).control.detach(
                    Error(TransactionError.ROLLBACK, "A delivery of another live transaction.")
                )
                return
        if frame.settled and said is None:
            said = deliveries[0].link.default_outcome
        if transaction is None:
            assert said is not None
            self._retire(deliveries, said, frame.settled)
            return
        for delivery in deliveries:
            delivery.associate(transaction, said)
            if frame.settled:
                delivery.settled = True
                self.forget(delivery)

    # -------------------------------------------------------------------------- helpers

    def _retire(self, deliveries: list[OutgoingDelivery], outcome: Outcome, settled: bool) -> None:
        """Apply an outcome at once; what was lost meanwhile is told to have failed."""
        state = outcome
        try:
            apply([(delivery, outcome) for delivery in deliveries], None)
        except LeaseLost as error:
            logger.warning("outcome not applied link=%s error=%s", deliveries[0].link.name, error)
            state = Modified(delivery_failed=True)
        for delivery in deliveries:
            delivery.settled = settled
            self.settle(delivery, state)

    def _guarded(self, link: Link, act: Callable[[], None]) -> None:
        """Do something on a link; whatever fails ends the link, and says why."""
        try:
            act()
        except AmqpError as error:
            link.detach(error.error)
        except (QueueClosed, QueueNotFound) as error:
            link.detach(Error(ErrorCondition.RESOURCE_DELETED, str(error)))
        except Exception as error:
            logger.warning("link ended name=%s error=%s", link.name, error)
            link.detach(Error(ErrorCondition.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
        for other in [one for one in self.links.values() if not one.attached]:
            self._gone.add(other.handle)
            del self.links[other.handle]

    def _pump(self) -> None:
        for link in list(self.links.values()):
            if isinstance(link, SendingLink):
                self._guarded(link, lambda one=link: one.pump() and None)  # type: ignore[misc]

    def _extend_leases(self, now_ms: int) -> None:
        """Hold what the controller has for longer, once half of its lease is over."""
        for delivery in list({id(d.batch): d for d in self.unsettled.values()}.values()):
            batch, lease = delivery.batch, delivery.link.queue.info.settings.lease_seconds
            until = batch.held_until
            if until is None or until.timestamp() * 1000 - now_ms > lease * 500:
                continue
            try:
                batch.extend_lease(lease)
            except LeaseLost as error:
                logger.warning("lease not extended error=%s", error)
