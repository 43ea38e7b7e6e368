"""Filters on entries, expressed once for Python and for SQL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from txnqueue.core.model import Entry
from txnqueue.storage.journal.tables import literal, literals

_ITEMS = "from_json(body, 'items array<array<string>>').items"
_ANY, _NONE = "1 = 1", "1 = 0"
"""A name in parentheses after WHERE, such as ``(true)``, would be parsed as a table's alias."""
_SUPERSEDES = "from_json(body, 'supersedes array<bigint>').supersedes"


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on an entry; those that are None do not apply.

    Attributes:
        shards: It is in one of these shards.
        streams: It belongs to one of these streams.
        kinds: It is of one of these kinds.
        append_ids: One of these appends wrote it.
        attempts: It belongs to one of these attempts.
        queue_ids: It concerns one of these queues.
        sends: It posts messages of one of these sends.
        naming: It names messages in positions posted by one of these appends.
        offsets: It posts or names a message at one of these send offsets.
        claims: It concerns one of these claims of its lane, or takes one over.
        after: Its commit_seq is larger; -1: any.
        upto: Its commit_seq is not larger.
        recorded_upto_ms: It was recorded at this time or earlier.
    """

    shards: Collection[str] | None = None
    streams: Collection[str] | None = None
    kinds: Collection[str] | None = None
    append_ids: Collection[str] | None = None
    attempts: Collection[str] | None = None
    queue_ids: Collection[str] | None = None
    sends: Collection[str] | None = None
    naming: Collection[str] | None = None
    offsets: Collection[int] | None = None
    claims: Collection[int] | None = None
    after: int = -1
    upto: int | None = None
    recorded_upto_ms: int | None = None

    def matches(self, entry: Entry) -> bool:
        """Return whether an entry matches."""
        return (
            (self.shards is None or entry.shard in self.shards)
            and (self.streams is None or entry.stream in self.streams)
            and (self.kinds is None or entry.kind in self.kinds)
            and (self.append_ids is None or entry.append_id in self.append_ids)
            and (self.attempts is None or entry.attempt in self.attempts)
            and (self.queue_ids is None or entry.queue_id in self.queue_ids)
            and (self.sends is None or entry.body.get("send") in self.sends)
            and (
                self.naming is None
                or any(item[0] in self.naming for item in entry.body.get("items", ()))
            )
            and (self.offsets is None or self._holds_one(entry, self.offsets))
            and (self.claims is None or self._is_about_claims(entry, self.claims))
            and (self.after < 0 or self.after < entry.commit_seq)
            and (self.upto is None or entry.commit_seq <= self.upto)
            and (self.recorded_upto_ms is None or entry.recorded_at_ms <= self.recorded_upto_ms)
        )

    @staticmethod
    def _holds_one(entry: Entry, offsets: Collection[int]) -> bool:
        return any(first <= one <= last for one in offsets for first, last in entry.ranges)

    @staticmethod
    def _is_about_claims(entry: Entry, claims: Collection[int]) -> bool:
        ended = entry.body.get("supersedes", ())
        return entry.claim_sequence in claims or any(number in claims for number in ended)

    def sql(self, commit_seq: str) -> str:
        """Return the filter as a SQL predicate.

        Args:
            commit_seq: The expression for an entry's commit_seq.
        """
        terms = [
            f"{column} IN ({literals(sorted(values)) or 'NULL'})"
            for column, values in (
                ("shard", self.shards),
                ("stream", self.streams),
                ("kind", self.kinds),
                ("append_id", self.append_ids),
                ("attempt", self.attempts),
                ("queue_id", self.queue_ids),
                ("get_json_object(body, '$.send')", self.sends),
            )
            if values is not None
        ]
        if self.naming is not None:
            named = literals(sorted(self.naming)) or "NULL"
            terms.append(f"exists({_ITEMS}, i -> i[0] IN ({named}))")
        if self.offsets is not None:
            holds = (f"r.first <= {one} AND r.last >= {one}" for one in sorted(self.offsets))
            terms.append(f"exists(ranges, r -> {' OR '.join(holds) or 'false'})")
        if self.claims is not None:
            numbers = ", ".join(map(literal, sorted(self.claims))) or "NULL"
            ended = f"exists({_SUPERSEDES}, n -> n IN ({numbers}))"
            terms.append(f"(claim_sequence IN ({numbers}) OR {ended})")
        # A row without a number is damaged; left out here, it would be read elsewhere.
        for sign, bound in ((">", self.after if self.after >= 0 else None), ("<=", self.upto)):
            if bound is not None:
                terms.append(f"({commit_seq} {sign} {literal(bound)} OR {commit_seq} IS NULL)")
        if self.recorded_upto_ms is not None:
            terms.append(f"unix_millis(recorded_at) <= {literal(self.recorded_upto_ms)}")
        return " AND ".join(terms) or _ANY


def any_of(filters: Collection[EntryFilter], commit_seq: str) -> str:
    """Return the predicate that an entry matches any of some filters.

    The shards of all filters are a separate condition on the partition, so Delta opens only the
    files of those shards.
    """
    meant = " OR ".join(f"({one.sql(commit_seq)})" for one in filters) or _NONE
    shards = shards_of(filters)
    if shards is None:
        return meant
    return f"shard IN ({literals(sorted(shards)) or 'NULL'}) AND ({meant})"


def shards_of(filters: Collection[EntryFilter]) -> set[str] | None:
    """Return the shards that some filters cover; None: any."""
    if any(one.shards is None for one in filters):
        return None
    return {shard for one in filters for shard in one.shards or ()}
