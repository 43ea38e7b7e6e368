"""A transaction controller in this process, for tests of sessions without sockets.

It speaks the same performatives with a resource as a controller on a network does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.specifications.amqp_endpoints import Control, Endpoint, Receiver, Sender
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Disposition,
    Performative,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
)
from txnqueue.protocols.amqp.types import (
    AmqpError,
    Coordinator,
    ErrorCondition,
    Outcome,
    Source,
    Target,
    TxnCapability,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.connection import Codec, Connection
    from txnqueue.protocols.amqp.resource import TransactionalResource
    from txnqueue.protocols.amqp.session import Session


class ControllerSession:
    """A session of a controller's."""

    def __init__(self, connection: Connection, incoming_window: int | None = None) -> None:
        """Begin a session."""
        self.connection = connection
        self.session: Session = connection.begin(incoming_window)
        self.links: dict[int, Endpoint] = {}
        self._handles = itertools.count()
        self._delivery_ids = itertools.count()

    def sender(
        self,
        address: str | None = None,
        rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST,
        *,
        outcomes: tuple[str, ...] | None = None,
    ) -> Sender:
        """Attach a link to a queue, or without an address to the anonymous terminus."""
        source, target = Source(outcomes=outcomes), Target(address)
        attach = self.attach(
            Role.SENDER, source=source, target=target, rcv_settle_mode=rcv_settle_mode
        )
        return Sender(self, attach)

    def receiver(
        self,
        address: str,
        *,
        snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED,
        default_outcome: Outcome | None = None,
    ) -> Receiver:
        """Attach a link from a queue."""
        source = Source(address, default_outcome)
        return Receiver(
            self, self.attach(Role.RECEIVER, source=source, snd_settle_mode=snd_settle_mode)
        )

    def attach(self, role: Role, **what: Any) -> Attach:
        """Write an attach with the next handle."""
        handle = next(self._handles)
        name = what.pop("name", f"link-{id(self):x}-{handle}")
        counts_from = 0 if role is Role.SENDER else None
        return Attach(
            name=name, handle=handle, role=role, initial_delivery_count=counts_from, **what
        )

    def next_delivery_id(self) -> int:
        """Number a delivery to the resource."""
        return next(self._delivery_ids)

    def send(self, performative: Performative) -> list[Performative]:
        """Send something, and take what all sessions of the connection are told."""
        frames = self.session.handle(performative)
        self.take(frames)
        return frames

    def take(self, frames: Iterable[Performative]) -> None:
        """Take what the resource sends."""
        for frame in frames:
            if isinstance(frame, Disposition):
                self._dispose(frame)
            elif frame.handle in self.links:
                self.links[frame.handle].take(frame)

    def _dispose(self, frame: Disposition) -> None:
        role = Role.SENDER if frame.role is Role.RECEIVER else Role.RECEIVER
        last = frame.first if frame.last is None else frame.last
        for link in self.links.values():
            for number in range(frame.first, last + 1):
                delivery = link.deliveries.get(number) if link.role is role else None
                if delivery is not None:
                    delivery.state = frame.state
                    delivery.settled = delivery.settled or frame.settled


class TransactionController:
    """A container as transaction controller: a connection, a session and a control link."""

    def __init__(
        self,
        resource: TransactionalResource,
        *,
        capabilities: Sequence[TxnCapability] = (TxnCapability.LOCAL_TRANSACTIONS,),
        outcomes: tuple[str, ...] | None = None,
        incoming_window: int | None = None,
        codec: Codec | None = None,
        payload_max: int | None = None,
    ) -> None:
        """Connect to a resource.

        Args:
            resource: The resource.
            capabilities: What the coordinator has to be able to do.
            outcomes: The outcomes that the control link supports; all when left out.
            incoming_window: The transfers that the first session takes; None: any number.
            codec: As in ``TransactionalResource.connect``.
            payload_max: As in ``TransactionalResource.connect``.

        Raises:
            AmqpError: The coordinator cannot do what is wanted.
        """
        self.connection = resource.connect(codec, payload_max)
        self.sessions = [ControllerSession(self.connection, incoming_window)]
        self._wanted = tuple(capabilities)
        self._outcomes = outcomes
        self.control = self.control_link()

    def session(self, incoming_window: int | None = None) -> ControllerSession:
        """Begin a further session."""
        self.sessions.append(ControllerSession(self.connection, incoming_window))
        return self.sessions[-1]

    def control_link(self, session: ControllerSession | None = None) -> Control:
        """Attach a control link.

        Raises:
            AmqpError: The coordinator cannot do what is wanted.
        """
        on = session or self.sessions[0]
        source, target = Source(outcomes=self._outcomes), Coordinator(self._wanted)
        control = Control(on, on.attach(Role.SENDER, source=source, target=target))
        missing = [one.value for one in self._wanted if one not in control.capabilities]
        if missing:
            control.detach()
            raise AmqpError(ErrorCondition.NOT_IMPLEMENTED, f"The resource lacks {missing}.")
        return control

    def declare(self, global_id: bytes | str | None = None) -> bytes:
        """Ask for a txn-id; see ``Control.declare``."""
        return self.control.declare(global_id)

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> None:
        """Commit a transaction, or let it fail; see ``Control.discharge``."""
        self.control.discharge(txn_id, fail=fail)
        self.sync()

    def sender(self, address: str | None = None, **options: Any) -> Sender:
        """Attach a link to a queue, or to the anonymous terminus, on the first session."""
        return self.sessions[0].sender(address, **options)

    def receiver(self, address: str, **options: Any) -> Receiver:
        """Attach a link from a queue on the first session."""
        return self.sessions[0].receiver(address, **options)

    def tick(self) -> None:
        """Let time pass at the resource, and take what it sends."""
        self.connection.tick()
        self.sync()

    def sync(self) -> None:
        """Take what the resource sends on every session."""
        for session in self.sessions:
            session.take(session.session.frames())

    def close(self) -> None:
        """Close the connection: what is not discharged is rolled back."""
        self.connection.close()
        self.sync()
