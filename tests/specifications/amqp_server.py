"""A thin AMQP server: Proton's engine reads and writes frames, a resource answers them.

It shows that nothing but translation is between a socket and ``Session.handle``. Proton gives no
access to the properties of a flow, so that nobody can acquire in a transaction here.
"""

from __future__ import annotations

import itertools
from typing import Any

import proton
from proton import Condition, Delivery, Described, Endpoint, Handler, Terminus, ulong

from txnqueue.errors import InvalidInput
from txnqueue.protocols.amqp import (
    Attach,
    Coordinator,
    Detach,
    Disposition,
    Flow,
    ProtonCodec,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    Source,
    Target,
    TransactionalResource,
    TransactionalState,
    Transfer,
)
from txnqueue.protocols.amqp.types import Accepted, Declared, Modified, Rejected, Released

CODES = {
    Accepted: Delivery.ACCEPTED,
    Rejected: Delivery.REJECTED,
    Released: Delivery.RELEASED,
    Modified: Delivery.MODIFIED,
    Declared: 0x33,
    TransactionalState: 0x34,
}
STATES = {Delivery.ACCEPTED: Accepted(), Delivery.RELEASED: Released()}


class Server(Handler):
    """Serves every connection that comes in."""

    def __init__(self, resource: TransactionalResource) -> None:
        super().__init__()
        self.resource, self.codec = resource, ProtonCodec()
        self.peers: dict[Any, Peer] = {}

    def on_connection_remote_open(self, event: Any) -> None:
        connection = self.resource.connect(codec=self.codec)
        self.peers[event.connection] = Peer(connection.begin(), self.codec)
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_link_remote_open(self, event: Any) -> None:
        self.peers[event.connection].attach(event.link)

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender and event.link.credit:
            self.peers[event.connection].flow(event.link)

    def on_delivery(self, event: Any) -> None:
        peer = self.peers[event.connection]
        try:
            if event.link.is_receiver:
                if event.delivery.readable and not event.delivery.partial:
                    peer.transfer(event.delivery)
            elif event.delivery.updated:
                peer.disposition(event.delivery)
        except InvalidInput as error:  # nobody can tell which transaction it was about
            self.gone(event.connection)
            event.connection.condition = Condition("amqp:decode-error", str(error))
            event.connection.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self.peers[event.connection].detach(event.link, closed=False)

    def on_link_remote_close(self, event: Any) -> None:
        self.peers[event.connection].detach(event.link)

    def on_connection_remote_close(self, event: Any) -> None:
        self.gone(event.connection)
        event.connection.close()

    def on_transport_tail_closed(self, event: Any) -> None:
        self.gone(event.connection)

    def gone(self, connection: Any) -> None:
        peer = self.peers.pop(connection, None)
        if peer is not None:
            peer.session.connection.close()


class Peer:
    """One connection: the performatives of its links, both ways."""

    def __init__(self, session: Any, codec: ProtonCodec) -> None:
        self.session, self.codec = session, codec
        self.links: dict[int, Any] = {}
        self.handles: dict[Any, int] = {}
        self.counts: dict[int, int] = {}
        self.incoming: dict[int, Any] = {}
        self.outgoing: dict[int, Any] = {}
        self.numbers: dict[tuple[int, str], int] = {}
        self._next = itertools.count()
        self._deliveries = itertools.count()

    # --------------------------------------------------------------------- from the wire

    def attach(self, link: Any) -> None:
        handle = next(self._next)
        self.links[handle], self.handles[_key(link)] = link, handle
        self.counts[handle] = 0
        coordinator = link.remote_target.type == Terminus.COORDINATOR
        target = Coordinator() if coordinator else Target(link.remote_target.address)
        self.take(
            Attach(
                name=link.name,
                handle=handle,
                role=Role.RECEIVER if link.is_sender else Role.SENDER,
                source=Source(link.remote_source.address),
                target=target,
                snd_settle_mode=SenderSettleMode(link.remote_snd_settle_mode),
                rcv_settle_mode=ReceiverSettleMode(link.remote_rcv_settle_mode),
            )
        )

    def flow(self, link: Any) -> None:
        handle = self.handles[_key(link)]
        self.take(Flow(handle=handle, delivery_count=self.counts[handle], link_credit=link.credit))

    def transfer(self, delivery: Any) -> None:
        number = next(self._deliveries)
        self.incoming[number] = delivery
        octets = bytes(delivery.link.recv(delivery.pending) or b"")
        delivery.link.advance()
        self.take(
            Transfer(
                handle=self.handles[_key(delivery.link)],
                delivery_id=number,
                delivery_tag=delivery.tag.encode(),
                settled=delivery.settled,
                state=self.state(delivery),
                payload=octets,
            )
        )

    def disposition(self, delivery: Any) -> None:
        number = self.numbers[self.handles[_key(delivery.link)], delivery.tag]
        settled, state = delivery.settled, self.state(delivery)
        if settled:
            delivery.settle()
        self.take(Disposition(role=Role.RECEIVER, first=number, settled=settled, state=state))

    def detach(self, link: Any, *, closed: bool = True) -> None:
        handle = self.handles.pop(_key(link), None)
        if handle is not None:
            self.take(Detach(handle=handle, closed=closed))
        if closed:
            link.close()

    def state(self, delivery: Any) -> Any:
        if delivery.remote_state != CODES[TransactionalState]:
            return STATES.get(delivery.remote_state)
        data = delivery.remote.data
        octets = proton.Data()
        octets.put_object(Described(ulong(0x34), [bytes(data[0]), *data[1:]]))
        return self.codec.decode_type(bytes(octets.encode()))

    # ----------------------------------------------------------------------- to the wire

    def take(self, performative: Any) -> None:
        for frame in self.session.handle(performative):
            getattr(self, f"send_{type(frame).__name__.lower()}")(frame)

    def send_attach(self, frame: Attach) -> None:
        link = self.links[frame.handle]
        link.source.copy(link.remote_source)
        if frame.target is None and frame.source is None:
            link.target.type = Terminus.UNSPECIFIED
        else:
            link.target.copy(link.remote_target)
        link.open()

    def send_detach(self, frame: Detach) -> None:
        link = self.links[frame.handle]
        if frame.error is not None:
            link.condition = Condition(frame.error.symbol, frame.error.description)
        if not frame.closed:
            link.detach()
        elif not link.state & Endpoint.LOCAL_CLOSED:
            link.close()

    def send_flow(self, frame: Flow) -> None:
        link = self.links[frame.handle or 0]
        if link.is_receiver:
            link.flow((frame.link_credit or 0) - link.credit)

    def send_transfer(self, frame: Transfer) -> None:
        link, number = self.links[frame.handle], frame.delivery_id or 0
        tag = str(number)
        delivery = link.delivery(tag)
        self.outgoing[number] = delivery
        self.numbers[frame.handle, tag] = number
        self.counts[frame.handle] += 1
        link.send(frame.payload)
        link.advance()
        if frame.settled:
            delivery.settle()

    def send_disposition(self, frame: Disposition) -> None:
        known = self.incoming if frame.role is Role.RECEIVER else self.outgoing
        delivery = known[frame.first]
        if frame.state is not None:
            self.put(delivery, frame.state)
        if frame.settled:
            delivery.settle()

    def put(self, delivery: Any, state: Any) -> None:
        if isinstance(state, Rejected) and state.error is not None:
            error = state.error
            delivery.local.condition = Condition(error.symbol, error.description)
        elif isinstance(state, Declared):
            delivery.local.data = [state.txn_id]
        elif isinstance(state, TransactionalState):
            outcome = ulong(CODES[type(state.outcome)])
            delivery.local.data = [state.txn_id, Described(outcome, [])]
        delivery.update(CODES[type(state)])


def _key(link: Any) -> tuple[str, bool]:
    """Both directions have names of their own."""
    return (link.name, link.is_sender)
