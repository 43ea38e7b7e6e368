"""How long undecided transactions, payload and history are kept."""

from __future__ import annotations

from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.settings import LEASE_SECONDS_MAX, check_count, check_number
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal import EntryFilter, Journal

DAYS_MAX = 36_600


@dataclass(frozen=True, slots=True)
class Retention:
    """How long undecided transactions, payload and history are kept.

    Attributes:
        transaction_seconds_max: How long a transaction may stay undecided.
        payload_days: How long payload is kept after its positions left the journal.
        history_days: How long entries that left the journal are kept, not shorter than payload;
            None: for ever.
    """

    transaction_seconds_max: float = 86_400.0
    payload_days: int = 7
    history_days: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        check_number("transaction_seconds_max", self.transaction_seconds_max, 0, LEASE_SECONDS_MAX)
        _check_days("payload_retention_days", self.payload_days)
        if self.history_days is None:
            return
        _check_days("history_retention_days", self.history_days)
        if self.history_days < self.payload_days:
            raise InvalidInput(
                f"history_retention_days={self.history_days} is less than "
                f"payload_retention_days={self.payload_days}: set it to at least that, because "
                "payload is kept only as long as its history.",
                name="history_retention_days",
            )


def _check_days(name: str, days: int) -> None:
    check_count(name, days, 0, DAYS_MAX)


def archived_by_ms(journal: Journal, version: int, now_ms: int) -> int:
    """Find the latest instant at which archived entries below a version were recorded.

    It proves that a day which was recorded at that version by a clock that was behind is wrong,
    also when all entries that could prove it have left the journal. The future proves nothing.

    Args:
        journal: The journal; there is an archive.
        version: The version.
        now_ms: The instant at which the future begins.

    Returns:
        The instant; -1 if there is none.
    """
    before = EntryFilter(upto=model.commit_seq(version) - 1, recorded_upto_ms=now_ms)
    return journal.archive.newest(before).latest_ms
