"""The status of a transaction, and the receipt of its commit."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry


class Status(str, enum.Enum):
    """The status of a transaction.

    ``UNDECIDED`` is what the journal says of a transaction without a decision, ``UNKNOWN`` that
    it cannot be told here: a client of its own commit that was not answered, or the journal of what
    was removed from the history.
    """

    NOT_STARTED = "not_started"
    ACTIVE = "active"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Receipt(Facts):
    """What a commit answers.

    Attributes:
        transaction_id: The transaction.
        commit_seq: Its place in commit order, which is total and never changes.
        journal_version: The Delta version of the journal that holds it; without durable work
            the one at which it began.
        committed_at: When, by the committing client's clock: information only.
        applied: Whether its table changes have been applied; true if it has none.
    """

    transaction_id: str
    commit_seq: int
    journal_version: int
    committed_at: datetime.datetime
    applied: bool = True

    @classmethod
    def of(cls, entry: Entry, *, applied: bool = True) -> Receipt:
        """Read the receipt from the entry that decided."""
        instant = datetime.datetime.fromtimestamp(
            entry.recorded_at_ms / 1000, datetime.timezone.utc
        )
        return cls(entry.transaction_key or "", entry.commit_seq, entry.version, instant, applied)

    @classmethod
    def in_memory(cls, transaction_id: str, begun: int, committed_at_ms: int) -> Receipt:
        """Write the receipt of a commit without durable work.

        It has no place of its own in commit order: it names the version that it began at.
        """
        instant = datetime.datetime.fromtimestamp(committed_at_ms / 1000, datetime.timezone.utc)
        return cls(transaction_id, model.commit_seq(begun), begun, instant)
