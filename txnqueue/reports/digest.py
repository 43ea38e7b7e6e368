"""A chained digest of the journal's entries, for an auditor to keep outside the store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry
from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal import Order

_FORM = re.compile(
    r"txnqueue-1:(-1|[0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18}):([0-9a-f]{64}):([0-9a-f]{64})"
)
_UNITS = model.commit_seq(1)
_COLUMNS = (
    "shard", "stream", "kind", "sequence", "append_id", "transaction_key", "attempt", "begun",
    "queue_id", "lane", "claim_lane", "claim_sequence", "count", "reason", "actor", "run_id",
    "recorded_at_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryDigest(Facts):
    """A digest of the entries of a store's history up to a commit.

    ``str(digest)`` is one line to keep; ``HistoryDigest.parse`` reads it.

    Attributes:
        commit_seq: The last commit that it covers.
        sha256: The digest, in hexadecimal digits.
        entries: How many entries it was computed over.
        after: It was computed over the commits after this one; -1: from the first one on.
        seed: What the chain began with: the earlier digest's ``sha256`` if it continues one.
    """

    commit_seq: int
    sha256: str
    entries: int
    after: int
    seed: str

    @classmethod
    def parse(cls, text: str) -> HistoryDigest:
        """Read a digest from the line that ``str`` made of it.

        Args:
            text: The line.

        Returns:
            The digest.

        Raises:
            InvalidInput: That is no such line.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None or int(found[1]) > int(found[2]):
            raise InvalidInput(
                f"{shown(text)} is not a digest: give the whole line that history.digest() "
                "returned, 'txnqueue-1:…'.",
                name="digest",
            )
        after, commit_seq, entries, seed, sha256 = found.groups()
        return cls(int(commit_seq), sha256, int(entries), int(after), seed)

    def __str__(self) -> str:
        """Write it as one line."""
        told = (self.after, self.commit_seq, self.entries, self.seed, self.sha256)
        return ":".join(map(str, ("txnqueue-1", *told)))


def chain_after(after: HistoryDigest | str | int) -> tuple[int, str]:
    """Find after which commit a digest begins, and with what (pure).

    Raises:
        InvalidInput: It is neither a digest nor a commit_seq.
    """
    if isinstance(after, HistoryDigest | str):
        earlier = HistoryDigest.parse(str(after))
        return earlier.commit_seq, earlier.sha256
    if not isinstance(after, int) or isinstance(after, bool) or not -1 <= after < 2**63:
        raise InvalidInput(f"after={shown(after)}: give a digest or a commit_seq.", name="after")
    return after, _first_seed(after)


def computed(past: Past, after: int, commit_seq: int, seed: str) -> HistoryDigest:
    """Compute the digest of the entries after one commit and up to another.

    Raises:
        HistoryRemoved: Some of them may have been removed.
    """
    sha256, entries = _chained(past.stream(Order.COMMIT, after), seed)
    return HistoryDigest(commit_seq, sha256, entries, after, seed)


def _first_seed(after: int) -> str:
    """Return what a chain begins with that continues no other."""
    return hashlib.sha256(f"txnqueue history digest 1 after {after}".encode()).hexdigest()


def _chained(entries: Iterable[Entry], seed: str) -> tuple[str, int]:
    link, count = bytes.fromhex(seed), 0
    for entry in entries:
        link = hashlib.sha256(link + canonical(entry)).digest()
        count += 1
    return link.hex(), count


def canonical(entry: Entry) -> bytes:
    """Write an entry as bytes that are the same wherever it lies (pure).

    Columns without a value are left out, so that a column that a later version adds changes no
    digest of older entries.
    """
    told = {name: getattr(entry, name) for name in _COLUMNS}
    told["commit_seq"], told["index"] = model.commit_seq(entry.version, entry.ordinal), entry.index
    if not 0 <= entry.ordinal < _UNITS:  # else commit_seq tells version and ordinal apart
        told["ordinal"] = entry.ordinal
    told["ranges"] = [list(one) for one in entry.ranges] or None
    told["body"] = dict(entry.body) or None
    left = {name: value for name, value in told.items() if value is not None}
    return json.dumps(left, sort_keys=True, separators=(",", ":")).encode()
