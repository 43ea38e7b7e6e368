"""The controller's ends of links: posting, acquiring and retiring, declaring and discharging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txnqueue.errors import TransactionUnknown
from txnqueue.protocols.amqp.performatives import (
    TXN_ID,
    Attach,
    Detach,
    Disposition,
    Flow,
    Role,
    Transfer,
)
from txnqueue.protocols.amqp.resource import key_of
from txnqueue.protocols.amqp.types import (
    AmqpError,
    AmqpValue,
    ApplicationProperties,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    ErrorCondition,
    Header,
    Outcome,
    Payload,
    Properties,
    Rejected,
    Section,
    TransactionalState,
    TxnCapability,
)

if TYPE_CHECKING:
    from tests.specifications.amqp_controller import ControllerSession


@dataclass(eq=False, slots=True)
class Delivery:
    """A message as the controller knows it.

    Attributes:
        delivery_id: Its number in the session, for its direction.
        payload: What has come or was sent of it.
        state: Its state, as the other end told last.
        settled: Whether the other end has settled it.
        complete: Whether all of it has come.
        aborted: Whether the resource gave it up half sent.
    """

    delivery_id: int
    payload: Payload = ()
    state: DeliveryState | None = None
    settled: bool = False
    complete: bool = False
    aborted: bool = False

    @property
    def body(self) -> Any:
        """The value of the amqp-value section."""
        return next(s.value for s in self.payload if isinstance(s, AmqpValue))


class Endpoint:
    """The controller's end of a link.

    Attributes:
        deliveries: The deliveries that it knows, by their ids.
        credit: How many messages may still be sent on the link.
        delivery_count: How many have been sent on it, or given up by draining.
        error: Why the resource ended the link.
        answer: The attach that the resource answered with.
    """

    role = Role.SENDER

    def __init__(self, session: ControllerSession, attach: Attach) -> None:
        """Attach a link; use the methods of a session.

        Raises:
            AmqpError: The resource refuses the link.
        """
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.deliveries: dict[int, Delivery] = {}
        self.credit = 0
        self.delivery_count = 0
        self.transaction: bytes | None = None
        self.error: Error | None = None
        self.attached = True
        self.suspended = False
        self.answer = attach
        session.links[attach.handle] = self
        session.send(attach)
        self.check()

    def check(self) -> None:
        """Check that the link is attached.

        Raises:
            AmqpError: The resource ended it, and this says why; or it was detached here.
        """
        if self.error is not None:
            raise AmqpError(self.error.condition, self.error.description)
        if not self.attached:
            raise AmqpError(
                ErrorCondition.UNATTACHED_HANDLE, f"The link {self.name!r} is detached."
            )

    def detach(self, *, closed: bool = True) -> None:
        """End the link.

        Args:
            closed: Whether it is over. Otherwise a receiver may still dispose of what it got.
        """
        self.suspended = not closed
        self.session.send(Detach(handle=self.handle, closed=closed))
        self.attached = False
        self.session.links.pop(self.handle, None)

    def take(self, frame: Attach | Flow | Transfer | Detach) -> None:
        """Take what the resource sends on the link."""
        if isinstance(frame, Attach):
            self.answer = frame
        elif isinstance(frame, Detach):
            self.attached, self.error = False, frame.error
            self.session.links.pop(self.handle, None)
        elif isinstance(frame, Flow):
            self.credit = frame.link_credit or 0
            self.delivery_count = frame.delivery_count or 0
            self.transaction = frame.properties.get(TXN_ID)


class Sender(Endpoint):
    """Posts messages to a queue, or each to the one that it is sent to."""

    def send(
        self,
        row: Any,
        txn_id: bytes | None = None,
        *,
        settled: bool = False,
        header: Header | None = None,
        headers: Mapping[str, str] | None = None,
        to: str | None = None,
    ) -> Delivery:
        """Post a message: at once, or with the commit of a transaction.

        Args:
            row: The queue's columns, as a dict.
            txn_id: The transaction.
            settled: Whether its outcome is not to be sent.
            header: The message's priority and time to live.
            headers: The message's application-properties.
            to: The queue, if the link has no address.

        Raises:
            AmqpError: The resource ended the link.
        """
        sections: list[Section] = [] if header is None else [header]
        if to is not None:
            sections.append(Properties(to=to))
        if headers:
            sections.append(ApplicationProperties(headers))
        payload = self.session.connection.payload((*sections, AmqpValue(row)))
        state = None if txn_id is None else TransactionalState(txn_id)
        return self.transfer(payload, state=state, settled=settled)

    def transfer(
        self,
        payload: Payload,
        *,
        state: DeliveryState | None = None,
        settled: bool = False,
        more: bool = False,
        aborted: bool = False,
        part_of: Delivery | None = None,
    ) -> Delivery:
        """Transfer a delivery, or a part of one; see ``Transfer``."""
        self.check()
        delivery = part_of or Delivery(self.session.next_delivery_id(), settled=settled)
        self.deliveries[delivery.delivery_id] = delivery
        self.session.send(
            Transfer(
                handle=self.handle,
                delivery_id=delivery.delivery_id,
                delivery_tag=delivery.delivery_id.to_bytes(4, "big"),
                settled=settled,
                more=more,
                state=state,
                aborted=aborted,
                payload=payload,
            )
        )
        self.check()
        return delivery

    def settle(self, delivery: Delivery) -> None:
        """Forget a delivery whose outcome is known."""
        self.session.send(Disposition(role=Role.SENDER, first=delivery.delivery_id, settled=True))


class Receiver(Endpoint):
    """Acquires messages of a queue, and says how they end."""

    role = Role.RECEIVER

    def flow(
        self, credit: int, txn_id: bytes | None = None, *, drain: bool = False
    ) -> list[Delivery]:
        """Ask for messages.

        Args:
            credit: The most that may be sent from now on.
            txn_id: The transaction that acquires them, until it is discharged; left out, the
                link stays in the one that it is in, or in none.
            drain: Whether credit that cannot be used up now is given back.

        Returns:
            What has come.

        Raises:
            AmqpError: The resource ended the link.
        """
        before = set(self.deliveries)
        self.session.send(
            Flow(
                handle=self.handle,
                delivery_count=self.delivery_count,
                link_credit=credit,
                drain=drain,
                properties={} if txn_id is None else {TXN_ID: txn_id},
            )
        )
        self.check()
        return [found for n, found in self.deliveries.items() if n not in before]

    def dispose(
        self,
        deliveries: Iterable[Delivery],
        outcome: Outcome | None,
        txn_id: bytes | None = None,
        *,
        settled: bool = False,
    ) -> None:
        """Return how deliveries end: at once, or with the commit of a transaction.

        Raises:
            AmqpError: The link is detached, or the resource ended it for this.
        """
        state: DeliveryState | None = outcome
        if txn_id is not None:
            state = TransactionalState(txn_id, outcome)
        if not self.suspended:
            self.check()
        for delivery in deliveries:
            self.session.send(
                Disposition(
                    role=Role.RECEIVER,
                    first=delivery.delivery_id,
                    settled=settled,
                    state=state,
                )
            )
            if not self.suspended:
                self.check()

    def take(self, frame: Attach | Flow | Transfer | Detach) -> None:
        """Take what the resource sends on the link."""
        if not isinstance(frame, Transfer):
            super().take(frame)
            return
        assert frame.delivery_id is not None
        self.delivery_count += frame.delivery_id not in self.deliveries
        new = Delivery(frame.delivery_id, frame.payload[:0], frame.state, frame.settled)
        delivery = self.deliveries.setdefault(frame.delivery_id, new)
        delivery.payload = delivery.payload + frame.payload  # type: ignore[operator]
        delivery.complete = not frame.more and not frame.aborted
        delivery.aborted = frame.aborted
        if delivery.complete:
            delivery.payload = self.session.connection.sections(delivery.payload)


class Control(Sender):
    """A control link: declares and discharges."""

    @property
    def capabilities(self) -> tuple[TxnCapability | str, ...]:
        """The actual capabilities of the resource's coordinator."""
        target = self.answer.target
        return target.capabilities if isinstance(target, Coordinator) else ()

    def declare(self, global_id: bytes | str | None = None) -> bytes:
        """Ask for a txn-id.

        Raises:
            AmqpError: The resource refuses.
        """
        state = self._ask(Declare(global_id))
        assert isinstance(state, Declared)
        return state.txn_id

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> None:
        """Commit a transaction, or let it fail.

        Raises:
            AmqpError: The transaction is rolled back instead.
            TransactionUnknown: The resource does not know yet how it ended.
        """
        if self._ask(Discharge(txn_id, fail)) is None:
            raise TransactionUnknown(
                "The discharge is not answered yet: tick() asks again.",
                transaction_id=key_of(txn_id),
            )

    def _ask(self, body: Declare | Discharge) -> DeliveryState | None:
        payload = self.session.connection.payload((AmqpValue(body),))
        delivery = self.transfer(payload)
        if isinstance(delivery.state, Rejected):
            error = delivery.state.error or Error(ErrorCondition.INTERNAL_ERROR)
            raise AmqpError(error.condition, error.description)
        return delivery.state
