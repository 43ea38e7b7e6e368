"""A session of a resource: it dispatches performatives to its links and transactions."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from txnqueue.batch import claims_of, extend_leases, half_of_lease_over
from txnqueue.errors import (
    InvalidInput,
    LeaseLost,
    PlatformMissing,
    QueueClosed,
    QueueError,
    QueueNotFound,
    SettlementPending,
)
from txnqueue.messages.settlement import Name, name_of
from txnqueue.protocols.amqp import dispositions
from txnqueue.protocols.amqp.bodies import is_plain, unwritable_property
from txnqueue.protocols.amqp.columns import unwritable
from txnqueue.protocols.amqp.coordinator import CoordinatorLink
from txnqueue.protocols.amqp.delivery_ids import DeliveryIds
from txnqueue.protocols.amqp.frames import NUMBERS
from txnqueue.protocols.amqp.links import IncomingLink, Link, ReceivingLink, terminus
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Performative,
    Role,
    Transfer,
    transactions_named,
)
from txnqueue.protocols.amqp.sending_link import SendingLink
from txnqueue.protocols.amqp.transactions import IncomingDelivery, LiveTransaction, OutgoingDelivery
from txnqueue.protocols.amqp.types import (
    AmqpError,
    Coordinator,
    DeliveryState,
    Error,
    ErrorCondition,
    Source,
    Target,
    TransactionError,
    TxnCapability,
    transaction_id,
)

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.protocols.amqp.connection import Connection

logger = logging.getLogger("txnqueue")
CLAIMS_MAX = 1_000
"""The number of claims whose leases are extended by one append."""
SETTLED_RANGES_MAX = 1_000
"""The number of ranges of settled deliveries that a session remembers."""


class Session:
    """A session of a connection: ``handle`` takes performatives, ``frames`` returns them.

    Attributes:
        links: The attached links, by handle.
        window: The number of transfers that the controller can take now; None: any number.
        incoming: Deliveries from the controller that neither end has forgotten.
        unsettled: Deliveries to the controller that are not settled.
        settled: The deliveries to the controller that were sent settled, or whose outcome it has
            given for good.
    """

    def __init__(self, connection: Connection, incoming_window: int | None) -> None:
        """Begin a session; use ``Connection.begin``."""
        self.connection = connection
        self.window = incoming_window
        self.links: dict[int, Link] = {}
        self.incoming: dict[int, IncomingDelivery] = {}
        self.unsettled: dict[int, OutgoingDelivery] = {}
        self.settled = DeliveryIds(SETTLED_RANGES_MAX)
        self._open = True
        self._gone: set[int] = set()
        self._lost: dict[Name, LeaseLost] = {}
        """The claims among those of the controller whose leases were lost, each with why."""
        self._frames: list[Performative] = []
        self._queued_octets = 0
        self._next_delivery_id = 0
        self._all_ids_used = False

    # ----------------------------------------------------------------------- frames

    def handle(self, performative: Performative) -> list[Performative]:
        """Process a performative from the controller, whatever has ended meanwhile.

        If it names a live transaction and is not carried out, that transaction can no longer be
        committed: a controller need not wait for answers before it discharges.

        Returns:
            The answers to send on this session. Other sessions of the connection may have
            something to send too: see their ``frames``.

        Raises:
            AmqpError: It names a link that does not exist, the session has ended, or it failed for
                deliveries of a detached link: end the session.
        """
        kind = type(performative).__name__.lower()
        why: str | None = "it was interrupted"
        try:
            why = self._take(performative)
        except AmqpError as error:
            why = str(error)
            raise
        finally:
            if why is not None:
                named = transactions_named(performative)
                self.connection.doom(named, f"A {kind} was not carried out: {why}")
        return self.frames()

    def frames(self) -> list[Performative]:
        """Take the performatives to be sent to the controller."""
        frames, self._frames = self._frames, []
        self.connection.queued_octets -= self._queued_octets
        self._queued_octets = 0
        return frames

    def tick(self) -> None:
        """Do the periodic work."""
        resource = self.connection.resource
        seconds = resource.monotonic()
        for link in list(self.links.values()):
            if isinstance(link, CoordinatorLink):
                link.tick(seconds)
        self.grant()
        self._extend_leases(resource.now_ms())
        if not self.connection.leave_to_pump():  # no lease of others must wait for acquisitions
            self.pump()

    def pump(self) -> None:
        """Send what is available for the controller, as far as it allows that."""
        for link in [one for one in self.links.values() if isinstance(one, SendingLink)]:
            self.guarded(link, partial(_pump, link))
            if self.connection.is_paused:  # what it acquired is sent before others acquire
                if link.attached:  # next time, it is the last
                    self.links[link.handle] = self.links.pop(link.handle)
                return

    def end(self) -> None:
        """End the session: every link is closed, control links first."""
        self._open = False
        links = sorted(self.links.values(), key=lambda link: not isinstance(link, CoordinatorLink))
        for link in links:
            link.detach()
        self._close_suspended(lambda _link: True)
        if self in self.connection.sessions:
            self.connection.sessions.remove(self)

    # ------------------------------------------------------------- for links and transactions

    @property
    def can_send(self) -> bool:
        """Whether the controller can take another transfer."""
        return self.window is None or self.window > 0

    @property
    def held_count(self) -> int:
        """The number of deliveries that the controller has to settle, sent or about to be sent."""
        links = [link for link in self.links.values() if isinstance(link, SendingLink)]
        return len(self.unsettled) + sum(one.unsent for one in links if not one.sends_settled)

    def emit(self, performative: Performative) -> None:
        """Queue a performative for the controller."""
        self._frames.append(performative)

    def send(self, transfer: Transfer) -> None:
        """Send a transfer, which uses up the window."""
        if self.window is not None:
            self.window -= 1
        if isinstance(transfer.payload, bytes):
            self._queued_octets += len(transfer.payload)
            self.connection.queued_octets += len(transfer.payload)
        self.emit(transfer)

    def next_delivery_id(self) -> int:
        """Return the number of the next delivery to the controller."""
        number = self._next_delivery_id
        self._next_delivery_id = (number + 1) % NUMBERS
        self._all_ids_used = self._all_ids_used or not self._next_delivery_id
        if number % (NUMBERS // 2) == 0:  # long before an id is that of another delivery
            self.settled.clear()
        return number

    def has_sent(self, named: range) -> bool:
        """Return whether all ids of a range are those of deliveries that were sent."""
        return self._all_ids_used or named.stop <= self._next_delivery_id

    def transaction(self, txn_id: object) -> LiveTransaction:
        """Find the transaction in which work is requested.

        Raises:
            AmqpError: There is no such transaction in which this session can work.
        """
        shared = TxnCapability.MULTI_SSNS_PER_TXN in self.connection.resource.capabilities
        try:
            wanted = transaction_id(txn_id)
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.INVALID_FIELD, str(error)) from error
        for found in self.connection.transactions():
            if found.txn_id == wanted and (shared or found.control.session is self):
                found.check_open()
                return found
        raise AmqpError(TransactionError.UNKNOWN_ID, f"There is no transaction {wanted.hex()}.")

    def ended(self, link: Link) -> None:
        """Remove a link that the resource has ended; the controller may not know it yet."""
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
            self._gone.add(link.handle)

    def show(self, posted: IncomingDelivery) -> None:
        """Send the state of a posted delivery, unless it is settled."""
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

    def grant(self) -> None:
        """Grant more credit where the controller has settled deliveries."""
        for link in self.links.values():
            if isinstance(link, IncomingLink):
                link.grant()

    def guarded(self, link: Link, act: Callable[[], None]) -> str | None:
        """Do something on a link; if it fails, end the link with the reason.

        Returns:
            Why it was not done; None if it was.

        Raises:
            AmqpError: It failed, and the link is detached: only the session's end tells it.
        """
        try:
            act()
        except Exception as error:
            found = _error(error, link.name)
            gone = isinstance(error, QueueClosed | QueueNotFound)  # with all of its messages
            if not link.attached and not gone:
                raise AmqpError(found.condition, found.description) from error
            link.detach(found)
            return f"{found.symbol}: {found.description}"
        return None

    # ------------------------------------------------------------------ one per performative

    def _take(self, performative: Performative) -> str | None:
        """Carry out a performative; return why it was not carried out, or None."""
        if not self._open:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, "The session has ended: begin a new one.")
        if isinstance(performative, Attach):
            return self._attach(performative)
        if isinstance(performative, Disposition):
            return dispositions.take(self, performative)
        if isinstance(performative, Flow):
            return self._flow(performative)
        return self._on_link(performative)

    def _attach(self, attach: Attach) -> str | None:
        try:
            link = self._link(attach)
        except Exception as failed:  # the peer is told by a detach, and the session goes on
            error = _error(failed, attach.name)
            role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
            self.emit(Attach(name=attach.name, handle=attach.handle, role=role))
            self.emit(Detach(handle=attach.handle, error=error))
            if attach.handle not in self.links:
                self._gone.add(attach.handle)
            return error.description
        self._gone.discard(attach.handle)
        self.links[attach.handle] = link
        self.emit(link.answer(attach))
        if isinstance(link, IncomingLink):
            link.grant()
        return None

    def _link(self, attach: Attach) -> Link:
        """Make the resource's end of a link.

        Raises:
            AmqpError: The link is refused.
        """
        if attach.handle in self.links:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, f"Handle {attach.handle} is in use.")
        attached = {
            (link.name, link.role)
            for session in self.connection.sessions
            for link in session.links.values()
        }
        if (attach.name, attach.role) in attached:  # each direction has its own names
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, f"A link {attach.name!r} is already attached."
            )
        links_max = self.connection.resource.limits.links
        if len(attached) >= links_max:
            raise AmqpError(
                ErrorCondition.RESOURCE_LIMIT_EXCEEDED,
                f"A connection has at most {links_max} links: detach one.",
            )
        if attach.unsettled is not None:
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, "Links cannot be resumed: attach a new one."
            )
        for session in self.connection.sessions:  # the new link replaces the old one
            session._close_suspended(lambda one: (one.name, one.role) == (attach.name, attach.role))
        node = terminus(attach)
        if isinstance(node, Coordinator):
            return CoordinatorLink(self, attach)
        if isinstance(node, Target) and node.address is None and not node.dynamic:
            return ReceivingLink(self, attach, None)
        _check_node(node)
        queue = self.connection.resource.queue(
            node.address if node is not None else None, attach.role
        )
        if attach.role is Role.SENDER:
            return ReceivingLink(self, attach, queue)
        plain = is_plain(queue.schema)
        why = unwritable_property(queue.schema) if plain else unwritable(queue.schema)
        if why is not None:
            raise AmqpError(
                ErrorCondition.NOT_IMPLEMENTED, f"Messages of {queue.name!r} cannot be sent: {why}."
            )
        return SendingLink(self, attach, queue)

    def _on_link(self, performative: Transfer | Flow | Detach) -> str | None:
        handle = performative.handle
        link = self.links.get(handle) if handle is not None else None
        if link is None:
            if handle not in self._gone:
                raise AmqpError(
                    ErrorCondition.UNATTACHED_HANDLE, f"Handle {handle} is not attached."
                )
            if isinstance(performative, Detach):
                self._gone.discard(performative.handle)
            return f"the link of handle {handle} has ended"  # sent before the controller knew
        if isinstance(performative, Detach):
            del self.links[link.handle]
            link.detached(performative)
            return None
        if isinstance(performative, Transfer):
            return self.guarded(link, lambda: link.transfer(performative))
        return self.guarded(link, lambda: link.flow(performative))

    def _flow(self, flow: Flow) -> str | None:
        if flow.incoming_window is not None:
            self.window = flow.incoming_window
        if flow.handle is not None:
            return self._on_link(flow)
        self.pump()
        return "it names no link"

    # -------------------------------------------------------------------------- helpers

    def _close_suspended(self, wanted: Callable[[Link], bool]) -> None:
        """Close detached links whose deliveries the controller could still settle."""
        links: set[Link] = {one.link for one in self.unsettled.values()}
        for link in links | {one.link for one in self.incoming.values()}:
            if not link.attached and wanted(link):
                link.closed()

    def _extend_leases(self, now_ms: int) -> None:
        """Extend the leases of the controller's messages once half of their time is over.

        Messages settled in a transaction are held until its discharge, and messages that go
        settled until they are sent.
        """
        held = self._held_claims()
        names = {name_of(one) for batch in held for one in claims_of(batch)} if self._lost else ()
        self._lost = {name: error for name, error in self._lost.items() if name in names}
        due: defaultdict[float, list[Batch]] = defaultdict(list)
        for batch, link in held.items():
            lease = link.queue.info.settings.lease_seconds
            if half_of_lease_over(batch, lease, now_ms, self._lost):
                due[lease].append(batch)
        for lease, batches in due.items():
            for first in range(0, len(batches), CLAIMS_MAX):
                self._extend(batches[first : first + CLAIMS_MAX], lease)

    def _extend(self, batches: list[Batch], lease_seconds: float) -> None:
        """Extend leases by one append, without those that are found to be lost.

        A controller may hold thousands of claims.
        """
        known = set(self._lost)
        try:
            extend_leases(batches, lease_seconds, self._lost)
        except SettlementPending:
            pass  # the leases of the others were extended
        except (QueueClosed, QueueNotFound) as error:
            self._extend_by_queue(batches, lease_seconds, error)
            return
        except Exception as error:  # the next tick tries again
            logger.warning("lease not extended error=%s", error)
        for name in self._lost.keys() - known:
            logger.warning("lease lost error=%s", self._lost[name])

    def _extend_by_queue(
        self, batches: list[Batch], lease_seconds: float, dropped: QueueError
    ) -> None:
        """Extend leases of which some are of a dropped queue, whose messages nobody gets again."""
        queues: defaultdict[str, list[Batch]] = defaultdict(list)
        for batch in batches:
            queues[claims_of(batch)[0].info.queue_id].append(batch)
        if len(queues) > 1:
            for mine in queues.values():
                self._extend(mine, lease_seconds)
            return
        logger.warning("leases lost error=%s", dropped)
        lost = LeaseLost(str(dropped))
        self._lost.update((name_of(one), lost) for batch in batches for one in claims_of(batch))

    def _held_claims(self) -> dict[Batch, SendingLink]:
        """Find the claims that hold messages for the controller, each with its link."""
        held = list(self.unsettled.values())
        claims: dict[Batch, SendingLink] = {}
        for link in self.links.values():
            if isinstance(link, SendingLink):
                held += link.waiting
            elif isinstance(link, CoordinatorLink):
                for transaction in link.transactions.values():
                    held += transaction.deliveries
                    claims.update((one, it.link) for one, it in transaction.consumed.items())
        claims.update((one.batch, one.link) for one in held)
        return claims


def _check_node(node: Source | Target | None) -> None:
    """Check that a terminus requests nothing that a queue would do differently.

    Raises:
        AmqpError: It does.
    """
    why = None
    if node is not None and node.dynamic:
        why = "Links cannot create queues: name an existing one."
    elif isinstance(node, Source) and node.distribution_mode == "copy":
        why = "Messages cannot be copied: use the distribution mode move."
    elif isinstance(node, Source) and node.filters:
        why = f"Filters are not supported: omit {', '.join(node.filters)}."
    if why is not None:
        raise AmqpError(ErrorCondition.NOT_IMPLEMENTED, why)
    if isinstance(node, Source):
        dispositions.checked(node.default_outcome)


def _pump(link: SendingLink) -> None:
    """Send what is available on a link; if the store is closed, the next tick says so to all."""
    with contextlib.suppress(PlatformMissing):
        link.pump()


def _error(error: Exception, link_name: str) -> Error:
    """Return the reason for a failure on a link, in the specification's terms."""
    if isinstance(error, AmqpError):
        return error.error
    if isinstance(error, QueueClosed | QueueNotFound):
        return Error(ErrorCondition.RESOURCE_DELETED, "The queue is dropped.")
    logger.warning("link ended name=%r error=%s", link_name, error)
    return Error(ErrorCondition.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
