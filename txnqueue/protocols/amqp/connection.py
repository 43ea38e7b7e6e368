"""Connections of a resource: sessions that share transactions, and periodic work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from txnqueue.errors import InvalidInput, PlatformMissing, TransactionUnknown
from txnqueue.protocols.amqp.coordinator import CoordinatorLink
from txnqueue.protocols.amqp.links import IncomingLink, Link
from txnqueue.protocols.amqp.sending_link import SendingLink
from txnqueue.protocols.amqp.session import Session
from txnqueue.protocols.amqp.transactions import LiveTransaction, Outcomes, answered
from txnqueue.protocols.amqp.types import AmqpError, Error, ErrorCondition, Payload, Section

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.protocols.amqp.resource import TransactionalResource

Kind = TypeVar("Kind", bound=Link)
logger = logging.getLogger("txnqueue")
UNREAD_OCTETS_MAX = 1024 * 1024
"""The octets that may wait to be read by a controller before it is sent no further messages."""
OWED_MAX = 10_000
"""The number of claims that are given back by later ticks; the oldest are left to their leases."""


class Codec(Protocol):
    """Turns sections into octets and back."""

    def encode(self, sections: Sequence[Section]) -> bytes:
        """Write a message."""
        ...

    def decode(self, octets: bytes) -> tuple[Section, ...]:
        """Read a message."""
        ...


class Connection:
    """A controller's connection to a resource; one thread at a time may use it.

    Attributes:
        sessions: The sessions that are open.
        unread: Returns the octets that were sent and that the controller has not read yet.
        queued_octets: The octets of messages that the sessions have for the controller.
        is_paused: Whether messages wait, or may be acquired, until ``pump`` is called because the
            controller has read what it was sent.
        store_is_away: Whether the store has not answered since the last tick, when something was
            to be given back or rolled back.
        payload_max: The most that one transfer carries: octets of a message with a codec,
            otherwise sections; None: whole messages.
    """

    def __init__(
        self,
        resource: TransactionalResource,
        codec: Codec | None = None,
        payload_max: int | None = None,
    ) -> None:
        """Connect; use ``TransactionalResource.connect``."""
        self.resource = resource
        self.codec = codec
        self.payload_max = payload_max
        self.unread: Callable[[], int] | None = None
        self.queued_octets = 0
        self.is_paused = self.store_is_away = False
        self.sessions: list[Session] = []
        self._in_doubt: list[LiveTransaction] = []
        self._owed: deque[tuple[Outcomes, float]] = deque(maxlen=OWED_MAX)

    def begin(self, incoming_window: int | None = None) -> Session:
        """Begin a session.

        Args:
            incoming_window: The transfers that the controller can take; None: any number.
        """
        session = Session(self, incoming_window)
        self.sessions.append(session)
        return session

    def close(self) -> None:
        """End every session and roll back the transactions that are not discharged.

        What is in doubt is left to the ticks of the resource's other connections.
        """
        for session in list(self.sessions):
            session.end()
        left, self._in_doubt = self._in_doubt, []
        for one in left:
            self.resource.leave_open(one.transaction, "The connection was closed.")

    def tick(self) -> None:
        """Do the periodic work.

        Leases are extended, new messages are sent (to a controller on a socket, by ``pump``),
        transactions that take too long and links of dropped queues are ended, and what could not
        be given back or rolled back is tried again.

        Raises:
            PlatformMissing: The store is closed in this process.
        """
        self.store_is_away = False
        self._end_links_of_dropped_queues()
        self.resource.roll_back_left_open()
        self._give_back_owed()
        self.resolve(())
        for session in list(self.sessions):
            session.tick()

    def pump(self) -> None:
        """Send what is available for the controller, as far as it allows that."""
        self.is_paused = False
        for session in list(self.sessions):
            session.pump()
            if self.is_paused:  # next time, the others are first
                self.sessions.remove(session)
                self.sessions.append(session)
                return

    def may_send(self) -> bool:
        """Return whether the controller reads what it is sent; if not, messages wait until it does.

        A controller in this process takes all that it asks for.
        """
        if self.unread is None or self.queued_octets + self.unread() <= UNREAD_OCTETS_MAX:
            return True
        self.is_paused = True
        return False

    def leave_to_pump(self) -> bool:
        """Leave what else could be acquired to ``pump``, if the controller is on a socket.

        Of a queue that is never empty there is always more to acquire, and until that ends the
        controller would get nothing. One in this process has whatever is acquired for it.

        Returns:
            Whether it is left.
        """
        self.is_paused = self.is_paused or self.unread is not None
        return self.unread is not None

    def give_back(self, mine: Outcomes, lease_seconds: float) -> None:
        """Apply outcomes to deliveries of one claim, or leave that to later ticks.

        If the store does not answer, what follows is left to them, too: each attempt takes long.

        Args:
            mine: The deliveries.
            lease_seconds: The time within which that makes sense: if the store is away for longer,
                the lease ends and others get the messages.
        """
        self._give_back(mine, self.resource.monotonic() + lease_seconds)

    def partial_octets(self) -> int:
        """Count the octets of the controller's messages that have not come completely."""
        return sum(one.partial_octets for one in self._links(IncomingLink))

    def unsent_octets_left(self) -> int:
        """Count the octets of messages that may still be read before some of them are sent."""
        held = sum(one.unsent_octets for one in self._links(SendingLink))
        return self.resource.limits.unsent_bytes - held

    def transactions(self) -> Iterator[LiveTransaction]:
        """Yield the transactions that are declared on this connection and not discharged."""
        for control in self._links(CoordinatorLink):
            yield from control.transactions.values()

    def undecided_count(self) -> int:
        """Count the transactions that are neither discharged nor rolled back, or are in doubt."""
        in_doubt = sum(len(one.in_doubt) for one in self._links(CoordinatorLink))
        return in_doubt + len(self._in_doubt) + sum(not one.ended for one in self.transactions())

    def claims_beside(self, transaction: LiveTransaction) -> set[Batch]:
        """Find the claims with messages that do not belong to a transaction, or not yet."""
        others = [*self.transactions(), *self._in_doubt]
        for control in self._links(CoordinatorLink):
            others += [discharge.transaction for discharge in control.in_doubt]
        held = [one for session in self.sessions for one in session.unsettled.values()]
        held += [one for link in self._links(SendingLink) for one in link.waiting]
        held += [one for other in others if other is not transaction for one in other.deliveries]
        return {one.batch for one in held}

    def unsettled_left(self) -> int:
        """Count the deliveries that may still be sent before some are settled."""
        return self.resource.limits.unsettled - sum(one.held_count for one in self.sessions)

    def incoming_left(self) -> int:
        """Count the deliveries that the controller may still send before it settles some."""
        return self.resource.limits.unsettled - sum(len(one.incoming) for one in self.sessions)

    def resolve(self, transactions: Iterable[LiveTransaction]) -> None:
        """Resolve transactions in doubt whose control links have ended, as soon as possible.

        Nobody waits for their answers any more, but deliveries and links still belong to them.

        Args:
            transactions: Further ones; those that are still in doubt are asked about with each
                tick.
        """
        known, self._in_doubt = self._in_doubt, []
        for transaction in [*known, *transactions]:
            try:
                transaction.resolve()
            except TransactionUnknown:
                self._in_doubt.append(transaction)
                if transaction not in known:  # ticks may be many until the store answers
                    logger.warning("in doubt transaction_id=%s", transaction.transaction.id)

    def doom(self, txn_ids: Sequence[object], why: str) -> None:
        """Keep the transactions with these txn-ids from being committed."""
        for transaction in self.transactions():
            if transaction.txn_id in txn_ids:
                transaction.doom(why)

    def sections(self, payload: Payload) -> tuple[Section, ...]:
        """Read a message."""
        if isinstance(payload, tuple):
            return payload
        if self.codec is None:
            raise AmqpError(
                ErrorCondition.DECODE_ERROR, "This connection has no codec: send sections."
            )
        try:
            return self.codec.decode(payload)
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.DECODE_ERROR, str(error)) from error

    def payload(self, sections: tuple[Section, ...]) -> Payload:
        """Write a message."""
        return sections if self.codec is None else self.codec.encode(sections)

    def _give_back(self, mine: Outcomes, until: float) -> None:
        self.store_is_away = self.store_is_away or not answered(mine)
        if self.store_is_away and self.resource.monotonic() < until:
            self._owed.append((mine, until))

    def _give_back_owed(self) -> None:
        """Give back what could not be, the first last: it is the one that failed.

        So one that fails again and again keeps no others waiting.
        """
        owed = list(self._owed)
        self._owed.clear()
        for mine, until in owed[1:] + owed[:1]:
            self._give_back(mine, until)

    def _links(self, kind: type[Kind]) -> Iterator[Kind]:
        """Yield the links of all sessions that are of one kind."""
        for session in self.sessions:
            yield from (link for link in session.links.values() if isinstance(link, kind))

    def _end_links_of_dropped_queues(self) -> None:
        """End links of dropped queues, which would otherwise notice only when used."""
        ids = {link: link.queue_id for link in self._links(Link) if link.queue_id is not None}
        if not ids:
            return
        try:
            open_ids = self.resource.queue_ids()
        except PlatformMissing:
            raise
        except Exception as error:  # the next tick tries again
            logger.warning("queues not read error=%s", error)
            return
        for link, queue_id in ids.items():
            if queue_id not in open_ids:
                link.detach(Error(ErrorCondition.RESOURCE_DELETED, "The queue is dropped."))
