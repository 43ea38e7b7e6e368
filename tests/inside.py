"""The one door by which tests reach the inside: what a move of the core may change."""

from typing import Any

from txnqueue.batch import Batch, claims_of
from txnqueue.client.client import Client
from txnqueue.core.state.topology import Topology
from txnqueue.manager import QueueManager
from txnqueue.queue import Queue
from txnqueue.transaction import Transaction, attempt_of
from txnqueue.transactions.attempt import Attempt

__all__ = [
    "attempt_id",
    "attempt_of",
    "beside",
    "claims_of",
    "client_of",
    "lease_over",
    "topology",
]


def attempt_id(transaction: Transaction) -> str:
    """Name the attempt behind a transaction."""
    return attempt_of(transaction).attempt_id


def beside(queue: Queue) -> Transaction:
    """Begin a transaction of the manager that opened a queue."""
    return Transaction(Attempt(client_of(queue)))


def topology(manager: QueueManager) -> Topology:
    """Read the exchanges and bindings of a store."""
    return client_of(manager).cache.topology()


def client_of(held: Any) -> Client:
    """Give the client behind what a user holds: a manager, a queue, a batch, an exchange."""
    client: Client = held._client
    return client


def lease_over(batch: Batch) -> bool:
    """Tell whether the lease of unsettled messages has ended by the client's clock."""
    return any(batch._unsettled().values())
