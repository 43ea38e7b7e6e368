"""The transactional resource: a store of queues as an AMQP 1.0 container."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from txnqueue.core import model
from txnqueue.core.handlers import check_function
from txnqueue.core.receipt import Status
from txnqueue.core.settings import BRANCH_SECONDS_MAX, check_flag, check_number, check_texts
from txnqueue.errors import (
    HistoryRemoved,
    InvalidInput,
    PlatformMissing,
    QueueClosed,
    QueueNotFound,
    TransactionFinished,
)
from txnqueue.manager import client_of
from txnqueue.protocols.amqp.connection import Codec, Connection
from txnqueue.protocols.amqp.limits import Limits, check_limits
from txnqueue.protocols.amqp.performatives import Role
from txnqueue.protocols.amqp.transactions import LiveTransaction
from txnqueue.protocols.amqp.types import AmqpError, ErrorCondition, TransactionError, TxnCapability
from txnqueue.transaction import attempt_of
from txnqueue.transactions.commit import roll_back_unless_prepared

if TYPE_CHECKING:
    from txnqueue.client.client import Client
    from txnqueue.manager import QueueManager
    from txnqueue.protocols.amqp.coordinator import CoordinatorLink
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

logger = logging.getLogger("txnqueue")
LEFT_OPEN_MAX = 1_000
"""How many transactions that could not be rolled back are remembered; their leases end anyway."""
CAPABILITIES = (
    TxnCapability.LOCAL_TRANSACTIONS,
    TxnCapability.MULTI_TXNS_PER_SSN,
    TxnCapability.MULTI_SSNS_PER_TXN,
)


class TransactionalResource:
    """A store as a transactional resource, to which controllers connect to request work.

    Each transaction is a transaction of the store. Its txn-id encodes its id in the store:
    ``key_of`` returns the id under which the manager lists, recovers and decides it.

    Example::

        session = TransactionalResource(manager).connect().begin()
        target = Target("orders")
        session.handle(Attach(name="s", handle=0, role=Role.SENDER, target=target))
        message = (AmqpValue({"order_id": 1, "amount": 9.5}),)
        session.handle(Transfer(handle=0, delivery_id=0, payload=message))
    """

    def __init__(
        self,
        manager: QueueManager,
        *,
        capabilities: Collection[TxnCapability | str] = CAPABILITIES,
        timeout_seconds: float | None = None,
        transactional_acquisition: bool = True,
        allows: Callable[[Role, str], bool] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Offer a store.

        Args:
            manager: The store.
            capabilities: The coordinator's capabilities. With distributed-transactions, a declare
                may name a global-id, which is a transaction id of the store: its discharge
                prepares the work, and ``manager.commit`` or ``manager.rollback`` decides it.
            timeout_seconds: The time after which open transactions are rolled back.
            transactional_acquisition: Whether links acquire in transactions.
            allows: Decides, by the controller's role and the queue's name, whether it may send
                to a queue or receive from it; if omitted, everything is allowed.
            limits: The limits of a connection; if omitted, the defaults of a server.

        Raises:
            InvalidInput: A capability is unknown or not supported, or the time is not a number.
            LimitExceeded: The time is out of range.
        """
        client_of(manager)
        check_flag("transactional_acquisition", transactional_acquisition)
        if allows is not None:
            check_function("allows", allows)
        wanted = check_texts("capabilities", capabilities, "a list of capabilities")
        self.manager = manager
        try:
            self.capabilities = tuple(map(TxnCapability, wanted))
        except ValueError as error:
            raise InvalidInput(f"capabilities: {error}.", name="capabilities") from error
        if TxnCapability.PROMOTABLE_TRANSACTIONS in self.capabilities:
            raise InvalidInput(
                "Transactions cannot be promoted: omit promotable-transactions.",
                name="capabilities",
            )
        if timeout_seconds is not None:
            check_number("timeout_seconds", timeout_seconds, 0.001, BRANCH_SECONDS_MAX)
        self.timeout_seconds = timeout_seconds
        self.transactional_acquisition = transactional_acquisition
        self.limits = check_limits(limits)
        self._lock = threading.Lock()
        self._globals: dict[str, Transaction] = {}
        self._left_open: deque[tuple[Transaction, str]] = deque(maxlen=LEFT_OPEN_MAX)
        self._queues_read_seconds = -math.inf
        self._allows = (lambda _role, _name: True) if allows is None else allows

    def connect(self, codec: Codec | None = None, payload_max: int | None = None) -> Connection:
        """Accept a controller's connection.

        Args:
            codec: Encodes and decodes messages; with None, sections are passed as they are.
            payload_max: The most that one transfer carries: octets of a message with a codec,
                otherwise sections; None: whole messages. A frame is longer by its header and its
                performative.
        """
        return Connection(self, codec, payload_max)

    def now_ms(self) -> int:
        """Return the current time."""
        return self._client().runtime.now_ms()

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set."""
        return self._client().runtime.monotonic()

    def queue_ids(self) -> set[str]:
        """Return the ids of the existing queues that are not being dropped."""
        known = self._client().cache.queues().values()
        return {info.queue_id for info in known if not info.closing}

    def read_queues(self) -> None:
        """Read the queues as they are now, at most once a second: others may have altered them."""
        now = self.monotonic()
        if now - self._queues_read_seconds >= 1.0:
            self._queues_read_seconds = now
            self._client().cache.queues()

    def queue(self, address: str | None, role: Role) -> Queue:
        """Open the queue of an address.

        Args:
            address: The queue's name.
            role: The controller's role: sender or receiver.

        Raises:
            AmqpError: There is no such queue, or the controller may not use it in this role.
        """
        if not self._allows(role, address or ""):
            what = "send to" if role is Role.SENDER else "receive from"
            raise AmqpError(
                ErrorCondition.UNAUTHORIZED_ACCESS,
                f"No rule lets this user {what} {address!r}.",
            )
        try:
            return self.manager.queue(address or "")
        except (QueueNotFound, QueueClosed, InvalidInput) as error:
            # The error's own text names the other queues, and is for those who may see them.
            raise AmqpError(
                ErrorCondition.NOT_FOUND, f"There is no queue {address!r}, or it is dropped."
            ) from error

    def begin(self, control: CoordinatorLink, global_id: bytes | str | None) -> LiveTransaction:
        """Allocate a transaction.

        Raises:
            AmqpError: The global transaction takes no more work.
            InvalidInput: The global-id cannot be a transaction's id.
        """
        local = self.manager.transaction()
        txn_id = txn_id_of(local.id)
        deadline = None
        if self.timeout_seconds is not None:
            deadline = self.monotonic() + self.timeout_seconds
        if global_id is None:
            attempt_of(local).begin()
            return LiveTransaction(txn_id, local, control, deadline)
        transaction = self._begin_global(_key_of_global(global_id))
        return LiveTransaction(txn_id, transaction, control, deadline, distributed=True)

    def _begin_global(self, key: str) -> Transaction:
        """Begin the only work of this resource on a global transaction.

        Raises:
            AmqpError: It takes no more work, or another declare works on it.
        """
        transaction = self.manager.transaction(key)
        over = (Status.COMMITTED, Status.ROLLED_BACK, Status.PREPARED)
        with self._lock:
            self._globals = {k: tx for k, tx in self._globals.items() if tx.status not in over}
            if self._globals.setdefault(key, transaction) is not transaction:
                raise _no_more_work(key)
        try:
            if self.manager.outcome(key).status not in (Status.UNDECIDED, Status.UNKNOWN):
                raise _no_more_work(key)
            attempt = attempt_of(transaction)
            attempt.begin()
            attempt.is_part = True
            attempt.claiming()  # a rollback is recorded, because it ends the global transaction
        except BaseException:
            with self._lock:  # it may be over by now, and another one's
                if self._globals.get(key) is transaction:
                    del self._globals[key]
            raise
        return transaction

    def leave_open(self, transaction: Transaction, reason: str) -> None:
        """Keep a transaction whose rollback failed, to roll it back with a later tick.

        One in doubt is left as it is if its discharge turns out to have happened.
        """
        with self._lock:
            self._left_open.append((transaction, reason))

    def roll_back_left_open(self) -> None:
        """Roll back what could not be rolled back, so that nobody waits for the ends of leases.

        It ends with the first failure: a store that is away for one is away for all of them.
        """
        while True:
            with self._lock:
                if not self._left_open:
                    return
                transaction, reason = self._left_open[0]
            try:
                roll_back_unless_prepared(attempt_of(transaction), reason)
            except (TransactionFinished, HistoryRemoved, PlatformMissing):
                pass  # it is committed, or nobody can roll it back
            except Exception as error:
                logger.info("not rolled back yet id=%s error=%s", transaction.id, error)
                return
            with self._lock:  # another connection's tick may have been faster
                if self._left_open and self._left_open[0][0] is transaction:
                    self._left_open.popleft()

    def _client(self) -> Client:
        return client_of(self.manager)


def _no_more_work(key: str) -> AmqpError:
    return AmqpError(
        TransactionError.ROLLBACK,
        f"The global transaction {key!r} takes no more work, or another declare works on it: use "
        "another one.",
    )


def _key_of_global(global_id: bytes | str) -> str:
    """Read a global-id as a transaction's id."""
    if isinstance(global_id, str):
        return global_id
    try:
        return global_id.decode()
    except (UnicodeDecodeError, AttributeError) as error:
        raise InvalidInput(
            f"global-id {global_id!r} is not text: give a string, or its octets in UTF-8.",
            name="global-id",
        ) from error


def txn_id_of(key: str) -> bytes:
    """Encode the id of a local transaction as a txn-id of 17 octets."""
    if not model.is_generated_key(key):
        raise InvalidInput(
            f"{key!r} is not the id of a local transaction: give the id that the library "
            "generated.",
            name="txn-id",
        )
    return bytes([int(key[1], 16)]) + bytes.fromhex(key[3:])


def key_of(txn_id: bytes) -> str:
    """Return the id under which the store knows a local transaction."""
    if len(txn_id) != 17 or txn_id[0] > 15:
        raise InvalidInput(
            f"{txn_id!r} is not the txn-id of a local transaction: give the octets that declare "
            "returned.",
            name="txn-id",
        )
    return model.generated_key(txn_id[0], txn_id[1:].hex())
