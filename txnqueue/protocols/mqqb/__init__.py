"""The transactions of MS-MQQB on the queues of a store.

A ``LocalQueueManager`` has a collection of transactions, and a transaction has a collection of
operations: Enqueue, Dequeue with its reason, Move. A *message position* represents a message in a
queue; a move creates a new position of the same message. The events Transaction Commit and
Transaction Abort decide all operations of a transaction at once.

Example::

    local = LocalQueueManager(manager)
    transaction = local.create_transaction()
    local.enqueue_message("invoices", {"order_id": 7}, transaction.identifier)
    first = local.queue("orders").message_position_list[0]
    local.dequeue_message(first, "priced", transaction.identifier)
    assert local.transaction_commit(transaction.identifier) is RStatus.MQ_OK
"""

from txnqueue.protocols.mqqb.elements import (
    Message,
    MessagePosition,
    OperationType,
    Queue,
    State,
    Transaction,
    TransactionalOperation,
    TransactionCollection,
)
from txnqueue.protocols.mqqb.events import MessagePositionAvailable, MessagePositionDeleted, RStatus
from txnqueue.protocols.mqqb.local_queue_manager import LocalQueueManager

__all__ = [
    "LocalQueueManager",
    "Message",
    "MessagePosition",
    "MessagePositionAvailable",
    "MessagePositionDeleted",
    "OperationType",
    "Queue",
    "RStatus",
    "State",
    "Transaction",
    "TransactionCollection",
    "TransactionalOperation",
]
