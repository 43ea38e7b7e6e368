"""What a queue and a transaction are, as the journal's entries tell it (pure)."""

from txnqueue.ledger.fold import LaneFold, QueueFold
from txnqueue.ledger.keys import KeyState
from txnqueue.ledger.values import Claim, Owner, Position, Segment, in_turn

__all__ = [
    "Claim",
    "KeyState",
    "LaneFold",
    "Owner",
    "Position",
    "QueueFold",
    "Segment",
    "in_turn",
]
