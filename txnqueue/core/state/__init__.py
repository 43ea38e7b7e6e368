"""The states of queues and transactions, folded from the journal's entries (pure)."""

from txnqueue.core.state.positions import (
    AttemptOwner,
    Claim,
    Errors,
    LeaseOwner,
    Owner,
    Position,
    Segment,
    in_turn,
)
from txnqueue.core.state.queue import LaneState, QueueState
from txnqueue.core.state.transaction import TransactionState

__all__ = [
    "AttemptOwner",
    "Claim",
    "Errors",
    "LaneState",
    "LeaseOwner",
    "Owner",
    "Position",
    "QueueState",
    "Segment",
    "TransactionState",
    "in_turn",
]
