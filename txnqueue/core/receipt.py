"""The status of a transaction, and the receipt of its commit."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.instants import instant
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry


class Status(str, enum.Enum):
    """The status of a transaction.

    ``UNDECIDED``: the journal has no decision of the transaction. ``UNKNOWN``: the status cannot
    be determined here, because the client's commit got no reply, or because the transaction was
    removed from the history.
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
    """The result of a commit.

    Attributes:
        transaction_id: The transaction.
        commit_seq: The commit's place in commit order, which is total and never changes.
        journal_version: The Delta version of the journal that holds the commit; without durable
            work, the version at which the transaction began.
        committed_at: The instant by the committing client's clock; for information only.
        applied: Whether the table changes have been applied; true if there are none.
    """

    transaction_id: str
    commit_seq: int
    journal_version: int
    committed_at: datetime.datetime
    applied: bool = True

    @classmethod
    def of(cls, entry: Entry, *, applied: bool = True) -> Receipt:
        """Read the receipt from the entry that committed the transaction."""
        committed_at = instant(entry.recorded_at_ms)
        key = entry.transaction_key or ""
        return cls(key, entry.commit_seq, entry.version, committed_at, applied)

    @classmethod
    def in_memory(cls, transaction_id: str, begun: int, committed_at_ms: int) -> Receipt:
        """Make the receipt of a commit without durable work.

        Such a commit has no place in commit order: the receipt names the version at which the
        transaction began.
        """
        committed_at = instant(committed_at_ms)
        return cls(transaction_id, model.commit_seq(begun), begun, committed_at)
