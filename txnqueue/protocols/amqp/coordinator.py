"""The transaction coordinator: the target of control links."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, TransactionUnknown, TxnQueueError
from txnqueue.protocols.amqp.links import IncomingLink
from txnqueue.protocols.amqp.performatives import Attach, Disposition, Role, Transfer
from txnqueue.protocols.amqp.transactions import IncomingDelivery, LiveTransaction
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpError,
    AmqpValue,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    ErrorCondition,
    Outcome,
    Rejected,
    TransactionalState,
    TransactionError,
    TxnCapability,
    transaction_id,
)

if TYPE_CHECKING:
    from txnqueue.protocols.amqp.session import Session

REQUEST_BYTES_MAX = 4_096
"""The length of a message with a declare or a discharge: every client may send them."""


@dataclass(eq=False, frozen=True, slots=True)
class PendingDischarge:
    """A discharge that is not answered yet.

    Attributes:
        transaction: What it discharges.
        delivery: The request.
        fail: Whether it asks for a rollback.
    """

    transaction: LiveTransaction
    delivery: IncomingDelivery
    fail: bool


class CoordinatorLink(IncomingLink):
    """The resource's end of a control link: it allocates and completes transactions.

    Attributes:
        transactions: The transactions declared here and not discharged, by txn-id; some of them
            may have been rolled back.
        in_doubt: The discharges whose outcome is in doubt, so that they are not answered yet.
    """

    def __init__(self, session: Session, attach: Attach) -> None:
        """Take the resource's end of a control link."""
        super().__init__(session, attach)
        self.settles_first = True  # an answer is its last word
        self.message_bytes_max = min(self.message_bytes_max, REQUEST_BYTES_MAX)
        self.target = Coordinator(session.connection.resource.capabilities)
        self.transactions: dict[bytes, LiveTransaction] = {}
        self.in_doubt: list[PendingDischarge] = []

    def check(self, frame: Transfer) -> None:
        """Check that a delivery is not transactional work."""
        if isinstance(frame.state, TransactionalState):
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, "Transactional work is not allowed on the control link."
            )

    def complete(self, delivery: IncomingDelivery) -> None:
        """Declare or discharge."""
        if delivery.settled:
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED, "Declare and discharge must not be sent settled."
            )
        body = self._body(delivery)
        try:
            if isinstance(body, Declare):
                self._answer(delivery, Declared(self._declare(body)))
            else:
                self._discharge(delivery, body)
        except AmqpError as error:
            self._refuse(delivery, error)

    def tick(self, seconds: float) -> None:
        """Roll back transactions that take too long, and ask again about those in doubt.

        Args:
            seconds: The monotonic clock.
        """
        for transaction in list(self.transactions.values()):
            if transaction.deadline is not None and transaction.deadline <= seconds:
                with contextlib.suppress(TransactionUnknown):  # the next tick asks again
                    transaction.roll_back(
                        Error(TransactionError.TIMEOUT, "The transaction took too long.")
                    )
        for discharge in list(self.in_doubt):
            if self.attached:
                self._resolve(discharge)

    def closed(self) -> None:
        """Roll back every transaction that was declared here and is not discharged."""
        super().closed()
        for transaction in self.transactions.values():
            transaction.doom("The control link is closed.")
        in_doubt = [discharge.transaction for discharge in self.in_doubt]
        self.session.connection.resolve([*self.transactions.values(), *in_doubt])
        self.transactions, self.in_doubt = {}, []

    def suspended(self) -> None:
        """Do the same as when it is closed: control links cannot be resumed."""
        self.closed()

    # -------------------------------------------------------------------------- helpers

    def _body(self, delivery: IncomingDelivery) -> Declare | Discharge:
        """Read the request from the one amqp-value section; other sections are ignored.

        Raises:
            AmqpError: It is not a declare or a discharge.
        """
        sections = self.session.connection.sections(delivery.payload)
        values = [one.value for one in sections if isinstance(one, AmqpValue)]
        if len(values) == 1 and isinstance(values[0], Declare | Discharge):
            return values[0]
        raise AmqpError(
            ErrorCondition.NOT_ALLOWED,
            "A coordinator takes declare and discharge, in one amqp-value section.",
        )

    def _declare(self, body: Declare) -> bytes:
        connection = self.session.connection
        able = connection.resource.capabilities
        if body.global_id is not None and TxnCapability.DISTRIBUTED_TRANSACTIONS not in able:
            raise AmqpError(
                ErrorCondition.NOT_IMPLEMENTED, "global-id: only local transactions are supported."
            )
        transactions_max = connection.resource.limits.transactions
        if connection.undecided_count() >= transactions_max:
            raise AmqpError(
                ErrorCondition.RESOURCE_LIMIT_EXCEEDED,
                f"A connection has at most {transactions_max} transactions: discharge one.",
            )
        several = TxnCapability.MULTI_TXNS_PER_SSN in able
        if not several and any(
            not one.ended and one.control.session is self.session
            for one in connection.transactions()
        ):
            raise AmqpError(
                ErrorCondition.RESOURCE_LIMIT_EXCEEDED,
                "A session has one transaction at a time: discharge the other one.",
            )
        try:
            transaction = connection.resource.begin(self, body.global_id)
        except AmqpError:
            raise
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.INVALID_FIELD, str(error)) from error
        except TxnQueueError as error:
            raise AmqpError(ErrorCondition.INTERNAL_ERROR, str(error)) from error
        self.transactions[transaction.txn_id] = transaction
        self._forget_ended(transactions_max)
        return transaction.txn_id

    def _forget_ended(self, kept_max: int) -> None:
        """Forget the oldest rolled-back transactions, kept only to tell the controller why."""
        ended = [txn_id for txn_id, one in self.transactions.items() if one.ended]
        for txn_id in ended[: max(0, len(ended) - kept_max)]:
            del self.transactions[txn_id]

    def _discharge(self, delivery: IncomingDelivery, body: Discharge) -> None:
        try:
            transaction = self.transactions.get(transaction_id(body.txn_id))
        except InvalidInput as error:
            raise AmqpError(ErrorCondition.INVALID_FIELD, str(error)) from error
        if transaction is None:
            raise AmqpError(TransactionError.UNKNOWN_ID, "There is no such transaction.")
        if transaction.partial and not body.fail:
            self.detach(
                Error(TransactionError.ROLLBACK, "A delivery of it has not come completely.")
            )
            return
        discharge = PendingDischarge(transaction, delivery, bool(body.fail))
        try:
            if body.fail:
                transaction.roll_back(Error(TransactionError.ROLLBACK, "Discharged as failed."))
            else:
                transaction.commit()
        except TransactionUnknown:
            del self.transactions[transaction.txn_id]
            self.in_doubt.append(discharge)
            return
        self._conclude(discharge)

    def _resolve(self, discharge: PendingDischarge) -> None:
        transaction = discharge.transaction
        try:
            transaction.resolve()
        except TransactionUnknown:
            return
        self.in_doubt.remove(discharge)
        self.transactions[transaction.txn_id] = transaction
        try:
            self._conclude(discharge)
        except AmqpError as error:
            self._refuse(discharge.delivery, error)

    def _conclude(self, discharge: PendingDischarge) -> None:
        """Accept a discharge after which the transaction has ended as it asks.

        Raises:
            AmqpError: It has ended otherwise; its txn-id stays known.
        """
        transaction = discharge.transaction
        if discharge.fail and not transaction.ended:
            raise AmqpError(
                ErrorCondition.NOT_ALLOWED,
                "A discharge of it that was interrupted has committed or prepared it.",
            )
        if transaction.ended and not discharge.fail:
            assert transaction.error is not None
            raise AmqpError(transaction.error.condition, transaction.error.description)
        del self.transactions[transaction.txn_id]
        self._answer(discharge.delivery, Accepted())

    def _answer(self, delivery: IncomingDelivery, state: Outcome | Declared) -> None:
        self.session.emit(
            Disposition(role=Role.RECEIVER, first=delivery.delivery_id, settled=True, state=state)
        )

    def _refuse(self, delivery: IncomingDelivery, error: AmqpError) -> None:
        """Refuse a delivery: by rejecting it, or by ending a link that does not take rejections."""
        if self.source.supports_rejected:
            self._answer(delivery, Rejected(error.error))
        else:
            self.detach(error.error)
