"""The transactions of a resource, between declare and discharge.

Requested work is collected here until the discharge; one commit of the store's own transaction
decides it, with the store's journal, leases and recovery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txnqueue.client.append import in_doubt
from txnqueue.core import ranges
from txnqueue.core.settings import REASON_LENGTH_MAX, describe_error
from txnqueue.errors import (
    AlreadySettled,
    HistoryRemoved,
    LeaseLost,
    QueueError,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.messages.takeover import LEASE_OVER
from txnqueue.protocols.amqp.delivery_ids import DeliveryIds
from txnqueue.protocols.amqp.messages import Posting, stage
from txnqueue.protocols.amqp.performatives import Transfer
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    DeliveryState,
    Error,
    ErrorCondition,
    Outcome,
    Payload,
    Rejected,
    Released,
    Section,
    TransactionalState,
    TransactionError,
)
from txnqueue.transaction import attempt_of
from txnqueue.transactions.commit import roll_back_unless_prepared

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.core.model import Range
    from txnqueue.core.state import Position
    from txnqueue.protocols.amqp.coordinator import CoordinatorLink
    from txnqueue.protocols.amqp.links import IncomingLink
    from txnqueue.protocols.amqp.sending_link import SendingLink
    from txnqueue.protocols.amqp.session import Session
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

logger = logging.getLogger("txnqueue")
POSTINGS_HELD_MAX = 10_000
"""The number of messages of a transaction held in memory before they are staged."""
POSTED_OCTETS_MAX = 32 * 1024 * 1024
"""The octets of messages that a connection's transactions hold in memory before they are staged."""
COMPACT_COUNT = 1_000
"""The number of deliveries with which a transaction first looks for claims that are settled."""
HEADER_WORK_MAX = 1_000_000
"""The most cells (header names times messages, and names times names) before messages are staged.

Each name is a column of all of them, and messages may have names of their own.
"""
POSTING_OCTETS = 500
"""What each of these messages counts for in addition to its octets, however short it is."""


@dataclass(eq=False, slots=True)
class IncomingDelivery:
    """A message transferred by a controller, complete or in parts so far.

    Attributes:
        link: The link on which it arrives.
        delivery_id: Its number in the session.
        settled: Whether the controller has settled it.
        settles_first: Whether the resource settles it before the controller does.
        transaction: The live transaction in which it is posted.
        parts: The parts that have arrived, octets or sections; empty once it is carried out.
        outcome: Its outcome, once that is known.
        state: Its state at the resource.
    """

    link: IncomingLink
    delivery_id: int
    settled: bool
    settles_first: bool
    transaction: LiveTransaction | None = None
    parts: bytearray | list[Section] = field(default_factory=list)
    outcome: Outcome | None = None
    state: DeliveryState | None = None

    @property
    def payload(self) -> Payload:
        """The parts that have arrived, joined."""
        return bytes(self.parts) if isinstance(self.parts, bytearray) else tuple(self.parts)


@dataclass(eq=False, slots=True)
class OutgoingDelivery:
    """A message that the resource has acquired to send, and has not forgotten yet.

    Attributes:
        link: The link on which it is sent.
        batch: The claim that holds it.
        message_id: Its id in the queue.
        acquired_in: The live transaction that acquired it; None if it is held under a lease.
        transaction: The live transaction to which it or its outcome belongs.
        position: Its place in the queue; None if it is not to be sent.
        outcome: The outcome to be applied if that transaction commits.
        settled: Whether it is settled, so its state can no longer change.
        state: Its state as last set by the controller.
        former_state: Its state before that transaction.
        started: Whether a part of it has been sent.
        delivery_id: Its number in the session, once a part of it has been sent.
        payload: The message; None while it is not read, empty once there is nothing left to send.
        sent: How much of the payload has been sent.
    """

    link: SendingLink
    batch: Batch
    message_id: str
    acquired_in: LiveTransaction | None
    transaction: LiveTransaction | None
    position: Position | None = None
    payload: Payload | None = None
    sent: int = 0
    settled: bool = False
    outcome: Outcome | None = None
    state: DeliveryState | None = None
    former_state: DeliveryState | None = None
    started: bool = False
    delivery_id: int = -1

    @property
    def unsent(self) -> bool:
        """Whether a part of it is still to be sent."""
        return self.payload is None or self.sent < len(self.payload)

    def take_part(self, size: int | None) -> Payload:
        """Take the next part to be sent; None means all that is left.

        Only the part is copied: a long message may have very many.
        """
        assert self.payload is not None
        end = len(self.payload) if size is None else self.sent + size
        part, self.sent = self.payload[self.sent : end], end
        if not self.unsent:
            self.drop()
        return part

    def drop(self) -> None:
        """Forget the message: nothing more of it is sent."""
        self.payload, self.sent = (), 0

    def associate(self, transaction: LiveTransaction, outcome: Outcome | None) -> None:
        """Set a provisional outcome in a transaction."""
        if self.transaction is None:
            self.former_state, self.transaction = self.state, transaction
            transaction.deliveries[self] = None
        self.outcome = outcome
        self.state = TransactionalState(transaction.txn_id, outcome)


@dataclass(eq=False, slots=True)
class ConsumedClaim:
    """A claim whose deliveries are all settled in a transaction.

    Attributes:
        link: The link on which they were sent.
        places: The offsets of the messages that were acquired outside of the transaction, by send:
            if it is rolled back, they get the default outcome.
    """

    link: SendingLink
    places: dict[str, tuple[Range, ...]] = field(default_factory=dict)

    def add(self, messages: Iterable[str]) -> None:
        """Add messages that were acquired outside."""
        offsets: defaultdict[str, list[int]] = defaultdict(list)
        for message_id in messages:
            send_id, _, offset = message_id.rpartition(":")
            offsets[send_id].append(int(offset))
        for send_id, found in offsets.items():
            known = self.places.get(send_id, ())
            self.places[send_id] = ranges.added(known, ranges.of_offsets(found))

    def deliveries(self, batch: Batch) -> Iterable[OutgoingDelivery]:
        """Make the deliveries of these messages anew."""
        for send_id, part in self.places.items():
            for first, last in part:
                for offset in range(first, last + 1):
                    message_id = f"{send_id}:{offset}"
                    yield OutgoingDelivery(self.link, batch, message_id, None, None, settled=True)


Outcomes = list[tuple[OutgoingDelivery, Outcome]]
"""Deliveries of one claim with their outcomes."""


def _ids() -> defaultdict[Session, DeliveryIds]:
    return defaultdict(DeliveryIds)


@dataclass(eq=False, slots=True)
class LiveTransaction:
    """A transaction that is declared and not discharged.

    Attributes:
        txn_id: Its name for the controller.
        transaction: The transaction in the store.
        control: The control link on which it was declared.
        deadline: When it is rolled back, by the monotonic clock; None: never.
        distributed: Whether its discharge leaves the decision to the coordinator of its
            global transaction.
        error: Why it can no longer be committed; None if it can.
        ended: Whether it was rolled back.
        postings: Messages that are not staged yet, and the names of their headers, by queue.
        posted_octets: Their length.
        partial: Deliveries of the controller that have not come completely.
        incoming: Its deliveries whose state it must be told after the discharge.
        accepted: Its other deliveries that were accepted, by session.
        rejected: Its other deliveries that were rejected, by session.
        deliveries: Deliveries to the controller that were acquired in it, or have an outcome in it.
        consumed: The claims whose deliveries are all settled; their outcomes are known to the
            store's transaction.
        kept: The deliveries acquired in it that its discharge keeps, since they have no outcome.
        compact_count: The number of deliveries with which it looks for such claims.
        links: The links that acquire in it.
    """

    txn_id: bytes
    transaction: Transaction
    control: CoordinatorLink
    deadline: float | None = None
    distributed: bool = False
    error: Error | None = None
    ended: bool = False
    postings: dict[str, tuple[Queue, list[Posting], set[str]]] = field(default_factory=dict)
    posted_octets: int = 0
    partial: set[IncomingDelivery] = field(default_factory=set)
    incoming: dict[tuple[Session, int], IncomingDelivery] = field(default_factory=dict)
    accepted: defaultdict[Session, DeliveryIds] = field(default_factory=_ids)
    rejected: defaultdict[Session, DeliveryIds] = field(default_factory=_ids)
    deliveries: dict[OutgoingDelivery, None] = field(default_factory=dict)
    consumed: dict[Batch, ConsumedClaim] = field(default_factory=dict)
    kept: list[OutgoingDelivery] = field(default_factory=list)
    compact_count: int = COMPACT_COUNT
    links: set[SendingLink] = field(default_factory=set)

    # ------------------------------------------------------------------------- work

    def check_open(self) -> None:
        """Check that it takes more work.

        Raises:
            AmqpError: It was rolled back, or a discharge of it was interrupted.
        """
        if self.ended and self.error is not None:
            raise AmqpError(self.error.condition, self.error.description)
        try:
            attempt_of(self.transaction).check_active()
        except TransactionFinished as error:
            raise AmqpError(ErrorCondition.NOT_ALLOWED, str(error)) from error

    def post(self, queue: Queue, posting: Posting, octets: int = 0) -> None:
        """Add a message that becomes available with the commit.

        Args:
            queue: Its queue.
            posting: The message.
            octets: Its length.
        """
        if self.error is not None:
            return  # it cannot be committed
        _, held, names = self.postings.setdefault(queue.name, (queue, [], set()))
        count = len(names | posting.headers.keys())
        if held and count * (count + len(held) + 1) > HEADER_WORK_MAX:
            self._stage_early()
        held.append(posting)
        names.update(posting.headers)
        self.posted_octets += octets + POSTING_OCTETS
        if len(held) >= POSTINGS_HELD_MAX:
            self._stage_early()
        beside = list(self.control.session.connection.transactions())
        if sum(one.posted_octets for one in beside) < POSTED_OCTETS_MAX:
            return
        largest = max(beside, key=lambda one: one.posted_octets)
        try:
            largest._stage_early()
        except Exception:
            if largest is self:
                raise  # otherwise the discharge of that one tells it

    def posted(self, delivery: IncomingDelivery) -> None:
        """Record a posting of which the controller was told; few are needed as they are."""
        if delivery.settles_first:
            self._note(delivery)
        else:
            self.incoming[delivery.link.session, delivery.delivery_id] = delivery

    def keep_id_of(self, delivery: IncomingDelivery) -> None:
        """Forget the state of a posting that the controller is told nothing more about."""
        place = delivery.link.session, delivery.delivery_id
        if self.incoming.get(place) is delivery:
            del self.incoming[place]
            self._note(delivery)

    def _note(self, delivery: IncomingDelivery) -> None:
        of_kind = self.rejected if isinstance(delivery.outcome, Rejected) else self.accepted
        of_kind[delivery.link.session].add(delivery.delivery_id)

    def consume(self, deliveries: Iterable[OutgoingDelivery]) -> None:
        """Pass the outcomes of settled deliveries on, and forget the deliveries.

        Neither end can change their outcomes any more, so only their claims are kept.
        """
        mine = [one for one in deliveries if one in self.deliveries and one.outcome is not None]
        if self.ended or not attempt_of(self.transaction).takes_work:
            return  # its end decides on them
        apply([(one, one.outcome) for one in mine if one.outcome is not None], self.transaction)
        for claim in by_claim(mine):
            batch, link = claim[0].batch, claim[0].link
            kept = self.consumed.setdefault(batch, ConsumedClaim(link))
            kept.add(one.message_id for one in claim if one.acquired_in is not self)
            for one in claim:
                del self.deliveries[one]

    def compact(self) -> None:
        """Consume the claims whose deliveries are all settled, once there are many deliveries."""
        if len(self.deliveries) < self.compact_count:
            return
        others = self.control.session.connection.claims_beside(self)
        for mine in by_claim(self.deliveries):
            is_settled = all(one.settled and one.outcome is not None for one in mine)
            if not is_settled or mine[0].batch in others:
                continue
            try:
                self.consume(mine)
            except Exception as error:  # the discharge tells the controller
                logger.warning("not passed on txn=%s error=%s", self.txn_id.hex(), error)
        self.compact_count = max(COMPACT_COUNT, 2 * len(self.deliveries))

    def doom(self, description: str) -> None:
        """Prevent the commit, because something that the controller relies on was not done."""
        self.error = self.error or Error(TransactionError.ROLLBACK, description)

    # -------------------------------------------------------------------- discharge

    def commit(self) -> None:
        """Carry everything out in one commit; with a global-id, prepare it.

        Raises:
            AmqpError: It was rolled back instead.
            TransactionUnknown: The outcome is in doubt; ``resolve`` finds out.
        """
        try:
            if self.error is not None:
                raise AmqpError(self.error.condition, self.error.description)
            if attempt_of(self.transaction).takes_work:
                self._say_everything()
            if self.distributed:
                self.transaction.prepare()
            else:
                self.transaction.commit()
        except TransactionUnknown:
            raise
        except Exception as error:  # it may have happened all the same, or be prepared
            refused = _refusal(error)
            if not self.resolve(refused.error):
                raise refused from error
            return
        self.committed()

    def resolve(self, error: Error | None = None) -> bool:
        """Resolve a discharge that failed or is in doubt: roll back if it has not happened.

        Args:
            error: Why it failed.

        Returns:
            Whether it is committed, or prepared.

        Raises:
            TransactionUnknown: The outcome is still in doubt.
        """
        not_happened = Error(TransactionError.ROLLBACK, "The commit has not happened.")
        self.roll_back(error or self.error or not_happened)
        return not self.ended

    def committed(self) -> None:
        """Give deliveries the applied outcomes, and forget the transaction.

        A prepared one, too: what becomes of it, its coordinator decides. What a link that closed or
        took fewer while the discharge was in doubt left behind was kept: its outcome follows.
        """
        late = {one: one.outcome for one in self.kept if one.outcome is not None}
        for posted in self.incoming.values():
            posted.state, posted.transaction = posted.outcome, None
            posted.link.session.show(posted)
        for delivery in self.deliveries:
            session = delivery.link.session
            if delivery.outcome is not None and delivery.delivery_id in session.unsettled:
                session.settled.add(delivery.delivery_id)
            released = delivery.acquired_in is self and isinstance(delivery.outcome, Released)
            if released and not _is_stuck(delivery):  # then the rest of it is sent later
                _end_acquisition(delivery)
                continue
            delivery.transaction = delivery.acquired_in = None
            if delivery.outcome is not None:
                delivery.link.session.settle(delivery, delivery.outcome)
            else:
                delivery.state = None
        self._leave_links()
        give_back([(one, late[one]) for one in mine] for mine in by_claim(late))

    def roll_back(self, error: Error) -> None:
        """Undo everything: end acquisitions, forget outcomes, post nothing.

        If a discharge that was interrupted, or is in doubt, has committed or prepared it, nothing
        is undone, and ``ended`` stays false.

        Raises:
            TransactionUnknown: It is not known yet whether one has, or the rollback is not on
                record as it must be; from now on it can no longer be committed.
        """
        if self.ended:
            return
        try:
            undone = self._undo(_reason(error))
        except TransactionFinished:
            undone = False
        except TransactionUnknown:
            self.error = self.error or error
            raise
        if not undone:
            self.committed()
            return
        self.ended, self.error = True, error
        for posted in self.incoming.values():
            posted.state = posted.outcome = posted.transaction = None
            posted.link.session.show(posted)
        kept = [delivery for delivery in self.deliveries if delivery.acquired_in is not self]
        for delivery in self.deliveries:
            if delivery.acquired_in is self:
                _end_acquisition(delivery)
        for delivery in kept:
            delivery.transaction, delivery.outcome = None, None
            delivery.state = delivery.former_state
        apply_defaults(delivery for delivery in kept if delivery.settled)
        for batch, claim in self.consumed.items():
            apply_defaults(claim.deliveries(batch))
        self._leave_links()

    def _undo(self, reason: str) -> bool:
        """Roll back in the store, or leave that to later ticks if the store does not answer.

        Whether a discharge in doubt has happened, only the store knows: it is asked always. And
        only what is on record there keeps other parts of a global transaction from being prepared.
        So of both nobody is told anything before the store answers.

        Returns:
            Whether it is rolled back, or will be; if not, it is prepared.

        Raises:
            TransactionFinished: It is committed.
            TransactionUnknown: It is not known whether it is committed or prepared, or it is a
                part of a global transaction and its rollback is not on record.
        """
        connection = self.control.session.connection
        attempt = attempt_of(self.transaction)
        may_have_landed = attempt.in_doubt
        failed: Exception | None = None
        if may_have_landed or not connection.store_is_away:
            try:
                return roll_back_unless_prepared(attempt, reason)
            except TransactionFinished:
                raise
            except HistoryRemoved as error:  # for good: others need not wait for the next tick
                failed = error
            except Exception as error:
                failed, connection.store_is_away = error, True
        if may_have_landed or self.distributed:
            raise in_doubt(self.transaction.id, None, failed) from failed
        if failed is not None:
            logger.warning("rollback failed txn=%s error=%s", self.txn_id.hex(), failed)
        connection.resource.leave_open(self.transaction, reason)
        return True

    def _say_everything(self) -> None:
        """Pass postings and outcomes to the store's transaction, once."""
        try:
            self._stage()
            self._say_outcomes()
        except BaseException:
            self.doom("A discharge of it was interrupted.")
            raise

    def _stage_early(self) -> None:
        """Stage the messages held in memory; if that fails, it can no longer be committed."""
        try:
            self._stage()
        except BaseException as error:  # what was staged would be staged again
            self.doom(f"A message could not be staged: {describe_error(error)}")
            self.postings, self.posted_octets = {}, 0
            raise

    def _stage(self) -> None:
        """Stage the messages held in memory."""
        for queue, held, names in self.postings.values():
            if held:
                stage(queue, held, self.transaction)
                held.clear()
                names.clear()
        self.posted_octets = 0

    def _say_outcomes(self) -> None:
        """Pass the outcomes to the store's transaction; messages without one are kept.

        With a global-id they are released: whoever decides it cannot leave them to this controller.
        """
        if self.distributed:
            for delivery in self.deliveries:
                if delivery.acquired_in is self and delivery.outcome is None:
                    delivery.outcome = Released()
        said = [(d, d.outcome) for d in self.deliveries if d.outcome is not None]
        self.kept = [d for d in self.deliveries if d.acquired_in is self and d.outcome is None]
        apply(said, self.transaction)
        silent = {id(d.batch): d.batch for d in self.deliveries if d.acquired_in is self}
        for batch in silent.values():
            batch.keep()

    def _leave_links(self) -> None:
        self.postings, self.posted_octets = {}, 0
        self.incoming, self.deliveries, links = {}, {}, self.links
        self.accepted, self.rejected, self.consumed = _ids(), _ids(), {}
        self.links, self.kept = set(), []
        for link in links:
            link.leave(self)


def _reason(error: Error) -> str:
    """Format the reason of a rollback for the journal."""
    return f"{error.symbol}: {error.description}"[:REASON_LENGTH_MAX]


def _refusal(error: Exception) -> AmqpError:
    """Return why a commit was not possible."""
    if isinstance(error, AmqpError):
        return error
    late = isinstance(error, TransactionAborted) and error.reason == LEASE_OVER
    condition = TransactionError.TIMEOUT if late else TransactionError.ROLLBACK
    return AmqpError(condition, str(error))


def _end_acquisition(delivery: OutgoingDelivery) -> None:
    """Tell the controller that a message has returned to its queue."""
    session = delivery.link.session
    delivery.transaction = delivery.acquired_in = None
    if not delivery.unsent:
        session.settle(delivery, Released())
        return
    stuck = _is_stuck(delivery)
    delivery.link.give_up(delivery)
    session.forget(delivery)
    if stuck:
        why = "A message of it was half sent, and the session's window is closed."
        delivery.link.detach(Error(TransactionError.ROLLBACK, why))
    elif delivery.started:
        session.send(
            Transfer(handle=delivery.link.handle, delivery_id=delivery.delivery_id, aborted=True)
        )


def _is_stuck(delivery: OutgoingDelivery) -> bool:
    """Return whether a delivery is half sent, and the window has no room for a word about it."""
    return delivery.unsent and delivery.started and not delivery.link.session.can_send


def apply(
    settled: Iterable[tuple[OutgoingDelivery, Outcome]], transaction: Transaction | None
) -> None:
    """Apply outcomes, with one call for each batch and outcome.

    Args:
        settled: Deliveries with their outcomes.
        transaction: The transaction whose commit applies them; None: at once.
    """
    groups: dict[tuple[int, Outcome], tuple[Batch, list[str]]] = {}
    for delivery, outcome in settled:
        group = groups.setdefault((id(delivery.batch), outcome), (delivery.batch, []))
        group[1].append(delivery.message_id)
    for (_, outcome), (batch, ids) in groups.items():
        if isinstance(outcome, Accepted):
            batch.accept(matching=ids, transaction=transaction)
        elif isinstance(outcome, Rejected):
            error = outcome.error
            why = (error.description or error.symbol)[:REASON_LENGTH_MAX] if error else None
            batch.reject(matching=ids, reason=why, transaction=transaction)
        elif isinstance(outcome, Released):
            batch.release(matching=ids, transaction=transaction)
        else:
            failed = outcome.delivery_failed
            batch.modify(matching=ids, delivery_failed=failed, transaction=transaction)


def by_claim(deliveries: Iterable[OutgoingDelivery]) -> Iterable[list[OutgoingDelivery]]:
    """Group deliveries by the claim that holds them, which belongs to one link."""
    groups: dict[Batch, list[OutgoingDelivery]] = {}
    for delivery in deliveries:
        groups.setdefault(delivery.batch, []).append(delivery)
    return groups.values()


def apply_defaults(deliveries: Iterable[OutgoingDelivery]) -> None:
    """Apply their source's default outcome to deliveries that can no longer be settled.

    Those of one claim share a commit: a client may hold thousands when it vanishes.
    """
    give_back([(one, one.link.default_outcome) for one in mine] for mine in by_claim(deliveries))


def give_back(claims: Iterable[Outcomes]) -> None:
    """Apply outcomes to deliveries that their links forget, claim by claim."""
    for mine in claims:
        link = mine[0][0].link
        link.session.connection.give_back(mine, link.queue.info.settings.lease_seconds)
        for delivery, _ in mine:
            delivery.link.session.forget(delivery)


def answered(mine: Outcomes) -> bool:
    """Apply outcomes to deliveries of one claim, as far as they are held.

    If some are lost, it tries halves and halves of those: others are mostly held beside each other,
    and an append for each of thousands would take hours.

    Returns:
        Whether the store answered.
    """
    try:
        apply(mine, None)
    except Exception as error:
        if len(mine) > 1 and isinstance(error, LeaseLost | AlreadySettled):
            half = len(mine) // 2
            return answered(mine[:half]) and answered(mine[half:])
        about = (mine[0][0].message_id, len(mine), error)
        logger.warning("not given back message=%s count=%s error=%s", *about)
        return isinstance(error, LeaseLost | AlreadySettled | QueueError)
    return True
