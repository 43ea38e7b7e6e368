"""Dispositions by a controller: outcomes of deliveries to it, settlement of its own."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from txnqueue.errors import LeaseLost
from txnqueue.protocols.amqp.frames import NUMBERS
from txnqueue.protocols.amqp.performatives import Disposition, Role, transactions_named
from txnqueue.protocols.amqp.transactions import (
    IncomingDelivery,
    LiveTransaction,
    OutgoingDelivery,
    apply,
    apply_defaults,
    by_claim,
)
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    Error,
    ErrorCondition,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
    TransactionalState,
    TransactionError,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.session import Session

logger = logging.getLogger("txnqueue")
Known = TypeVar("Known", IncomingDelivery, OutgoingDelivery)


def take(session: Session, frame: Disposition) -> str | None:
    """Carry out a disposition.

    It passes over deliveries in its range that the controller has settled already.

    Returns:
        Why it was not carried out, or not for every delivery that it names; None if it was.

    Raises:
        AmqpError: It is not carried out, and no link is left to tell that: it names deliveries
            that were never sent, in a transaction that there is not, or those of a link that is
            detached, or of a transaction in doubt.
    """
    named = _named(frame)
    if frame.role is Role.SENDER:
        return _settle_postings(session, frame, named)
    found = _found(session, named)
    unknown = len(named) - len(found) - session.settled.count(named)
    links = dict.fromkeys(one.link for one in found)
    try:
        transaction, outcome = _asked(session, frame)
    except AmqpError as error:
        nobody_told = error.error.condition is TransactionError.UNKNOWN_ID and not links
        if nobody_told and not session.has_sent(named):
            raise  # no link could be ended, and no discharge refused, to tell the controller
        untold = not all(link.attached for link in links)
        for link in links:
            link.detach(error.error)
        if untold:
            raise
        return str(error)
    if transaction is None and outcome is None and not frame.settled:
        return None
    for delivery in found:
        live = delivery.transaction
        if live is not None and live is not transaction:
            why = "The delivery belongs to another live transaction."
            if frame.settled:
                _settled(found)
            control = (transaction or live).control
            if not control.attached:
                raise AmqpError(TransactionError.ROLLBACK, why)
            control.detach(Error(TransactionError.ROLLBACK, why))
            if frame.settled:
                _leave_to_default(session, found)
            return why
    failed = []
    for link in links:
        mine = [one for one in found if one.link is link]
        said = outcome or (link.default_outcome if frame.settled else None)
        act = partial(_apply, mine, transaction, said, settled=frame.settled)
        failed.append(session.guarded(link, act))
    if unknown or not found:
        failed.append(f"{unknown or len(named)} of its deliveries are not known any more")
    return next((why for why in failed if why is not None), None)


def _found(session: Session, named: range) -> list[OutgoingDelivery]:
    """Find the deliveries that are sent and not settled.

    If one belongs to a discharge in doubt whose control link has ended, the store is asked first.
    """
    found = [one for one in _known(session.unsettled, named) if one.started]
    if all(one.transaction is None or one.transaction.control.attached for one in found):
        return found
    session.connection.resolve(())
    return [one for one in _known(session.unsettled, named) if one.started]


def _settled(deliveries: list[OutgoingDelivery]) -> None:
    """Record that the controller has forgotten deliveries."""
    for delivery in deliveries:
        delivery.settled = True
        delivery.link.session.settled.add(delivery.delivery_id)


def _leave_to_default(session: Session, deliveries: list[OutgoingDelivery]) -> None:
    """Forget settled deliveries to which no outcome was applied.

    Those of a live transaction follow its end, with the default outcome if they have none.
    """
    left = [one for one in deliveries if session.unsettled.get(one.delivery_id) is one]
    for delivery in left:
        session.forget(delivery)
        if delivery.transaction is not None and delivery.outcome is None:
            delivery.associate(delivery.transaction, delivery.link.default_outcome)
    apply_defaults(one for one in left if one.transaction is None)


def _asked(session: Session, frame: Disposition) -> tuple[LiveTransaction | None, Outcome | None]:
    """Read the transaction and the outcome that a disposition gives.

    Raises:
        AmqpError: There is no such transaction, or queues cannot apply the outcome.
    """
    if isinstance(frame.state, TransactionalState):
        return session.transaction(frame.state.txn_id), checked(frame.state.outcome)
    if isinstance(frame.state, Received):  # how much of a delivery has arrived; not an outcome
        return None, None
    return None, checked(frame.state)


def checked(outcome: object) -> Outcome | None:
    """Check that an outcome, given or the default, is one that queues can apply.

    Raises:
        AmqpError: They cannot.
    """
    if isinstance(outcome, Modified) and outcome.undeliverable_here:
        raise AmqpError(
            ErrorCondition.NOT_IMPLEMENTED,
            "modified with undeliverable-here: a queue does not record that.",
        )
    if outcome is None or isinstance(outcome, Accepted | Rejected | Released | Modified):
        return outcome
    raise AmqpError(
        ErrorCondition.NOT_IMPLEMENTED, f"{outcome!r} is not a terminal outcome of a delivery."
    )


def _apply(
    deliveries: list[OutgoingDelivery],
    transaction: LiveTransaction | None,
    outcome: Outcome | None,
    *,
    settled: bool,
) -> None:
    """Apply an outcome to deliveries of one link, in a transaction or at once."""
    if transaction is None:
        assert outcome is not None
        _retire(deliveries, outcome, settled=settled)
        return
    for delivery in deliveries:
        delivery.associate(transaction, outcome)
    if settled:
        _settled(deliveries)
        for delivery in deliveries:
            delivery.link.session.forget(delivery)
    transaction.compact()


def _retire(deliveries: list[OutgoingDelivery], outcome: Outcome, *, settled: bool) -> None:
    """Apply an outcome at once; deliveries lost meanwhile are reported as failed."""
    for mine in by_claim(deliveries):
        for part, state in _applied(mine, outcome):
            for delivery in part:
                delivery.settled = settled
                delivery.link.session.settle(delivery, state)
                if state is outcome:
                    delivery.link.session.settled.add(delivery.delivery_id)


def _applied(
    mine: list[OutgoingDelivery], outcome: Outcome
) -> list[tuple[list[OutgoingDelivery], Outcome]]:
    """Apply an outcome to deliveries of one claim, and return what came of them.

    The messages of each lane have a lease of their own: what was applied to the others must not be
    reported as failed.
    """
    try:
        apply([(delivery, outcome) for delivery in mine], None)
    except LeaseLost as error:
        lanes: dict[int, list[OutgoingDelivery]] = {}
        for delivery in mine:
            assert delivery.position is not None
            lanes.setdefault(delivery.position.lane, []).append(delivery)
        if len(lanes) > 1:
            return [found for part in lanes.values() for found in _applied(part, outcome)]
        logger.warning("outcome not applied link=%r error=%s", mine[0].link.name, error)
        return [(mine, Modified(delivery_failed=True))]
    return [(mine, outcome)]


def _settle_postings(session: Session, frame: Disposition, named: range) -> str | None:
    """Forget deliveries that the controller has posted and settles.

    It may name the transaction in which it posted them; that is not a request for work. A
    delivery settled before its rejection can have arrived counts as sent settled.
    """
    why = _contradicted(session, frame, named)
    if frame.settled:
        for delivery in _known(session.incoming, named):
            del session.incoming[delivery.delivery_id]
            if delivery.transaction is not None:
                delivery.transaction.keep_id_of(delivery)
        session.grant()
    return why


def _contradicted(session: Session, frame: Disposition, named: range) -> str | None:
    """Return why a controller errs about its deliveries in a transaction; None if it does not."""
    txn_ids = transactions_named(frame)
    if not txn_ids or not isinstance(frame.state, TransactionalState):
        return None
    for transaction in session.connection.transactions():
        if transaction.txn_id in txn_ids:
            return _contradiction(session, transaction, named, frame.state.outcome)
    return None


def _contradiction(
    session: Session, transaction: LiveTransaction, named: range, outcome: Outcome | None
) -> str | None:
    """Return why a controller that settles deliveries errs about them; None if it does not."""
    mine = {number: one for (of, number), one in transaction.incoming.items() if of is session}
    told = [one.outcome for one in _known(mine, named)]
    accepted = transaction.accepted[session].count(named)
    rejected = transaction.rejected[session].count(named)
    if not (told or accepted or rejected):
        return "none of its deliveries is posted in the transaction"
    if rejected and not isinstance(outcome, Rejected):
        return f"{rejected} of its deliveries were rejected"
    if accepted and outcome is not None:
        told.append(Accepted())
    if outcome is not None and any(outcome != one for one in told):
        return "one of its deliveries has another outcome"
    return None


def _named(frame: Disposition) -> range:
    """Number the deliveries that a disposition names; after the last id, 0 is ``NUMBERS``."""
    last = frame.first if frame.last is None else frame.last
    if last < frame.first and last + NUMBERS - frame.first < NUMBERS // 2:
        last += NUMBERS
    return range(frame.first, last + 1)


def _known(deliveries: dict[int, Known], named: range) -> list[Known]:
    """Find the deliveries that a disposition names, in their order."""
    if len(named) <= len(deliveries):
        ids = (number % NUMBERS for number in named)
        return [deliveries[number] for number in ids if number in deliveries]
    places = {(number - named.start) % NUMBERS: found for number, found in deliveries.items()}
    return [found for place, found in sorted(places.items()) if place < len(named)]
