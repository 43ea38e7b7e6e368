"""The journal's entries: their kinds, shards, streams, columns and conditions (pure).

The state of a store is the immutable entries of one journal. An entry lies in a *shard* (the
unit of conflict and of reading) and belongs to a *stream* inside it (the unit of sequence
numbers).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

LAYOUT = 2
TRANSACTION_SHARDS = 16
TABLE_SHARDS = 16
PROTOCOL_SHARDS = 16
ALL_TRANSACTIONS = tuple(f"transaction/{number}" for number in range(TRANSACTION_SHARDS))
ALL_TABLES = tuple(f"table/{number}" for number in range(TABLE_SHARDS))
FENCE = "fence"
CATALOG = "catalog"
ORDINAL_BITS = 10
"""The low bits of a commit_seq, which hold the unit's place in its append; above is the version."""
COMMITS_PER_VERSION = 1 << ORDINAL_BITS
"""The number of commits that one version of the journal can have."""
IN_MEMORY = "~memory"
"""The suffix of the ids of transient queues and of their payload."""

# kinds, by the shard that they lie in
LAYOUT_CHANGED = "layout_changed"
HORIZON_ADVANCED = "horizon_advanced"
HISTORY_REMOVED = "history_removed"
QUEUE_CLOSING = "queue_closing"
QUEUE_DROPPED = "queue_dropped"
QUEUE_CREATED = "queue_created"
QUEUE_ALTERED = "queue_altered"
EXCHANGE_CREATED = "exchange_created"
EXCHANGE_ALTERED = "exchange_altered"
EXCHANGE_CLOSING = "exchange_closing"
EXCHANGE_DROPPED = "exchange_dropped"
QUEUE_BOUND = "queue_bound"
QUEUE_UNBOUND = "queue_unbound"
PAYLOAD_LISTED = "payload_listed"
PAYLOAD_REMOVED = "payload_removed"
PAYLOAD_ERASING = "payload_erasing"
PAYLOAD_ERASED = "payload_erased"
PREPARED = "prepared"
COMMITTED = "committed"
ROLLED_BACK = "rolled_back"
POSTED = "posted"
CLAIMED = "claimed"
BOUND = "bound"
LEASE_EXTENDED = "lease_extended"
DEAD_LETTERED = "dead_lettered"
EXPIRED = "expired"
PURGED = "purged"
PURGE_PENDING = "purge_pending"
MOVED = "moved"
DUPLICATE = "duplicate"
COMPACTED = "compacted"
ACCEPTED = "accepted"
RELEASED = "released"
REJECTED = "rejected"
KEPT = "kept"
CHANGE_DECIDED = "change_decided"
CHANGE_APPLIED = "change_applied"
CHANGE_WAIVED = "change_waived"
BRANCH_CONFIRMED = "branch_confirmed"
HEURISTIC = "heuristic"
FORGOTTEN = "forgotten"
STARTED = "started"
ASSOCIATED = "associated"
SUSPENDED = "suspended"
ENDED = "ended"
PART = "part"
TIMEOUT_SET = "timeout_set"
ROLLBACK_ONLY = "rollback_only"
EXECUTED = "executed"

COMPACTABLE = frozenset(
    {POSTED, CLAIMED, BOUND, LEASE_EXTENDED, DEAD_LETTERED, EXPIRED, PURGED, MOVED}
    | {ACCEPTED, RELEASED, REJECTED, KEPT, PURGE_PENDING, COMPACTED, DUPLICATE}
)
"""Entries of lanes and backlogs that a compaction can replace; other kinds prevent it."""
NAMING = COMPACTABLE - {POSTED}
"""Entries of lanes and backlogs that can name positions posted before."""
SETTLEMENTS = frozenset({ACCEPTED, RELEASED, REJECTED, MOVED})
"""Entries that end a claim, or a part of it; ``moved`` does so if it names a claim."""
REMOVALS = frozenset({DEAD_LETTERED, EXPIRED, PURGED, MOVED, DUPLICATE})
"""Entries of a lane's log that take available messages out of it for good."""
DECISIONS = frozenset({COMMITTED, ROLLED_BACK})
CHANGE_ENDINGS = frozenset({CHANGE_APPLIED, CHANGE_WAIVED})
"""Entries that confirm what became of a decided change of a table."""
MARKS = frozenset({HORIZON_ADVANCED, HISTORY_REMOVED, PAYLOAD_LISTED})
"""Entries of the fence and of the catalog that leave the journal after newer ones; no others do."""
KEPT_FOR_EVER = DECISIONS | {PREPARED, HEURISTIC, FORGOTTEN}
"""Entries that never leave the archive, so that every transaction's outcome stays known."""
BRANCH = frozenset({STARTED, ASSOCIATED, SUSPENDED, ENDED, PART, TIMEOUT_SET, ROLLBACK_ONLY})
"""Entries of a transaction that several sessions share: they have sequence numbers."""

Range = tuple[int, int]
"""First and last send offset, both included."""
PositionId = tuple[str, int]
"""The append that posted the position, and the entry's index in it."""
Item = tuple[PositionId, tuple[Range, ...]]
"""Some messages of one position."""
Parts = dict[PositionId, tuple[Range, ...]]
"""Some messages, by position."""

_GENERATED_KEY = re.compile(r"t([0-9a-f])-[0-9a-f]{32}")
_NUMBERED_KEY = re.compile(r"(.+)/(?:[0-9]+|end)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One immutable row of the journal, with the columns of its table.

    ``append_id``, ``ordinal`` and ``index`` are set when the entry becomes part of an
    append, ``version`` (the Delta version of the journal) when it is read or has landed.
    """

    shard: str
    stream: str
    kind: str
    sequence: int | None = None
    append_id: str = ""
    ordinal: int = 0
    index: int = 0
    transaction_key: str | None = None
    attempt: str | None = None
    begun: int | None = None
    queue_id: str | None = None
    lane: int | None = None
    claim_lane: int | None = None
    claim_sequence: int | None = None
    ranges: tuple[Range, ...] = ()
    count: int | None = None
    reason: str | None = None
    actor: str | None = None
    run_id: str | None = None
    recorded_at_ms: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    version: int = -1

    @classmethod
    def in_lane(
        cls, queue_id: str, lane: int, kind: str, *, sequence: int, **columns: Any
    ) -> Entry:
        """Make an entry of a lane's dispatch log, with its sequence number there."""
        shard, stream = lane_shard(queue_id, lane), lane_stream(lane)
        return cls(shard, stream, kind, sequence=sequence, queue_id=queue_id, lane=lane, **columns)

    @classmethod
    def in_backlog(cls, queue_id: str, lane: int, kind: str, **columns: Any) -> Entry:
        """Make an entry of a queue's backlog, about one lane and without a sequence number."""
        shard, stream = backlog_shard(queue_id), lane_stream(lane)
        return cls(shard, stream, kind, queue_id=queue_id, lane=lane, **columns)

    @property
    def place(self) -> tuple[int, int, int]:
        """The entry's place in commit order: version, ordinal, index."""
        return (self.version, self.ordinal, self.index)

    @property
    def is_settlement(self) -> bool:
        """Whether the entry ends a claim, or a part of it."""
        return self.kind in SETTLEMENTS and self.claim_sequence is not None

    @property
    def is_removal(self) -> bool:
        """Whether the entry takes available messages out of a lane for good."""
        return self.kind in REMOVALS and self.claim_sequence is None

    @property
    def ended_change(self) -> PositionId | None:
        """The entry id of the table change that the entry confirms; None if it confirms none."""
        if self.kind not in CHANGE_ENDINGS:
            return None
        append_id, index = self.body["change"]
        return (append_id, index)

    @property
    def entry_id(self) -> PositionId:
        """The entry's permanent name: its append id and its index in the append."""
        return (self.append_id, self.index)

    @property
    def commit_seq(self) -> int:
        """The number that orders commits: version · 2¹⁰ + ordinal."""
        return commit_seq(self.version, self.ordinal)


def each_once(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Take each entry once (pure), as it landed first.

    An entry that is being archived is in both tables. In the journal of an older store the
    confirmation of a table change may also appear twice: a late try could land after the next one.
    """
    found: dict[PositionId, Entry] = {}
    for entry in entries:
        known = found.setdefault(entry.entry_id, entry)
        if known is not entry and entry.place < known.place:
            found[entry.entry_id] = entry
    return tuple(found.values())


def commit_seq(version: int, ordinal: int = 0) -> int:
    """Number a commit by the journal's Delta version and the unit's place in its append."""
    return (version << ORDINAL_BITS) + ordinal


def version_of(commit_seq: int) -> int:
    """Return the journal's Delta version that a commit_seq contains."""
    return commit_seq >> ORDINAL_BITS


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of the entries of one stream when an append lands.

    The set of entries that match every given field must be empty, or with ``present`` not empty.
    To expect the next sequence number n is to expect no entry with a sequence of n or more.
    """

    shard: str
    stream: str
    kinds: tuple[str, ...] | None = None
    attempts: tuple[str, ...] | None = None
    attempts_except: tuple[str, ...] | None = None
    sequence_from: int | None = None
    begun_above: int | None = None
    present: bool = False

    def matches(self, entry: Entry) -> bool:
        """Return whether an entry matches every given field of the condition."""
        return (
            entry.shard == self.shard
            and entry.stream == self.stream
            and (self.kinds is None or entry.kind in self.kinds)
            and (self.attempts is None or entry.attempt in self.attempts)
            and (self.attempts_except is None or entry.attempt not in self.attempts_except)
            and (
                self.sequence_from is None
                or (entry.sequence is not None and entry.sequence >= self.sequence_from)
            )
            and (
                self.begun_above is None
                or (entry.begun is not None and entry.begun > self.begun_above)
            )
        )

    def holds(self, entries: Iterable[Entry]) -> bool:
        """Return whether the condition holds for a set of entries."""
        return any(map(self.matches, entries)) == self.present


@dataclass(frozen=True, slots=True)
class Unit:
    """Entries that go into the journal all or none, and the conditions for that."""

    append_id: str
    entries: tuple[Entry, ...]
    conditions: tuple[Condition, ...]
    operation: str = ""

    @classmethod
    def of(
        cls,
        append_id: str,
        entries: Sequence[Entry],
        conditions: Sequence[Condition],
        operation: str = "",
    ) -> Unit:
        """Make the unit of one append: stamp its entries with the append id and an index."""
        stamped = tuple(
            replace(entry, append_id=append_id, index=index) for index, entry in enumerate(entries)
        )
        return cls(append_id, stamped, tuple(dict.fromkeys(conditions)), operation)

    @property
    def reads(self) -> frozenset[str]:
        """The shards that the append reads: those of its conditions, and one of its entries.

        Thus a try that lands late finds that another one with the same append id has landed.
        """
        shards = frozenset(condition.shard for condition in self.conditions)
        own = {entry.shard for entry in self.entries}
        return shards if shards & own else shards | set(sorted(own)[:1])

    def same_content(self, other: Unit) -> bool:
        """Return whether another unit has equal entries and conditions, whatever its append id."""

        def bare(unit: Unit) -> list[Entry]:
            return [replace(e, append_id="", recorded_at_ms=0) for e in unit.entries]

        return self.conditions == other.conditions and bare(self) == bare(other)


# ------------------------------------------------------------------------------ shards


def generated_key(shard: int, unique: str) -> str:
    """Make the key of a transaction that the client did not name; it contains the shard."""
    return f"t{shard:x}-{unique}"


def is_generated_key(key: str) -> bool:
    """Return whether the library generated this key, so that it cannot have been used before."""
    return _GENERATED_KEY.fullmatch(key) is not None


def transaction_shard(key: str) -> str:
    """Find the shard of a transaction key.

    A generated key contains its shard. The keys of one run, ``<run id>/<n>`` and
    ``<run id>/end``, share a shard, so that one read finds how far the run got.
    """
    generated = _GENERATED_KEY.fullmatch(key)
    if generated:
        return f"transaction/{int(generated.group(1), 16)}"
    numbered = _NUMBERED_KEY.fullmatch(key)
    prefix = numbered.group(1) if numbered else key
    return f"transaction/{zlib.crc32(prefix.encode()) % TRANSACTION_SHARDS}"


def run_of(entry: Entry) -> str | None:
    """Return the run that an entry belongs to: its recorded run id, else the one in its key.

    The transactions of a drain are called ``<run id>/<n>``.
    """
    if entry.run_id is not None:
        return entry.run_id
    numbered = _NUMBERED_KEY.fullmatch(entry.transaction_key or "")
    return numbered.group(1) if numbered else None


def table_shard(table_id: str) -> str:
    """Find the shard of the changes of a user's table; the stream is the table's id."""
    return f"table/{zlib.crc32(table_id.encode()) % TABLE_SHARDS}"


def protocol_shard(stream: str) -> str:
    """Find the shard of a protocol's durable state that the core has no entries for."""
    return f"protocol/{zlib.crc32(stream.encode()) % PROTOCOL_SHARDS}"


def lane_shard(queue_id: str, lane: int) -> str:
    """Name the shard of one lane's dispatch log."""
    return f"lane/{queue_id}/{lane}"


def backlog_shard(queue_id: str) -> str:
    """Name the shard of a queue's backlog: positions posted, claims settled by transactions."""
    return f"backlog/{queue_id}"


def in_memory(owner_id: str) -> str:
    """Make the id of the transient part of a queue, or of its payload.

    The transient part is a separate queue in memory. Names have no "~", so no queue's id ends so.
    """
    return owner_id if is_in_memory(owner_id) else owner_id + IN_MEMORY


def is_in_memory(owner_id: str) -> bool:
    """Return whether an id names a transient queue or its payload."""
    return owner_id.endswith(IN_MEMORY)


def queue_stream(queue_id: str) -> str:
    """Name a queue's stream in the fence."""
    return f"queue/{queue_id}"


def exchange_stream(exchange_id: str) -> str:
    """Name an exchange's stream in the fence."""
    return f"exchange/{exchange_id}"


def lane_stream(lane: int) -> str:
    """Name a lane's stream, which is the same in its dispatch log and in the backlog."""
    return f"lane/{lane}"


# -------------------------------------------------------------------------- conditions


def next_sequence(shard: str, stream: str, sequence: int) -> Condition:
    """Expect that this sequence number of a stream, and all later ones, are free."""
    return Condition(shard, stream, sequence_from=sequence)


def not_extended(queue_id: str, lane: int, sequence: int) -> Condition:
    """Expect that from this sequence number of a lane on, no lease of it was extended."""
    shard, stream = lane_shard(queue_id, lane), lane_stream(lane)
    return Condition(shard, stream, kinds=(LEASE_EXTENDED,), sequence_from=sequence)


def queue_open(queue_id: str) -> Condition:
    """Expect that a queue is neither closing nor dropped."""
    return Condition(FENCE, queue_stream(queue_id), kinds=(QUEUE_CLOSING, QUEUE_DROPPED))


def exchange_open(exchange_id: str) -> Condition:
    """Expect that an exchange is neither closing nor dropped."""
    return Condition(
        FENCE, exchange_stream(exchange_id), kinds=(EXCHANGE_CLOSING, EXCHANGE_DROPPED)
    )


def horizon_at_most(begun: int) -> Condition:
    """Expect that the horizon has not passed the version at which work began."""
    return Condition(FENCE, "horizon", kinds=(HORIZON_ADVANCED,), begun_above=begun)


def payload_stream(payload_id: str) -> str:
    """Name the stream in the catalog that records only that a payload table was removed."""
    return f"payload/{payload_id}"


def erasure_stream(payload_id: str) -> str:
    """Name the stream in the catalog that records which rows of a payload table were erased."""
    return f"erased/{payload_id}"


def payload_there(payload_id: str) -> Condition:
    """Expect that a payload table without a queue has not been removed.

    Versions before 0.2 remove such tables.
    """
    return Condition(CATALOG, payload_stream(payload_id), kinds=(PAYLOAD_REMOVED,))


def layout_unchanged() -> Condition:
    """Expect that the store has no newer layout than this library writes."""
    return Condition(FENCE, "layout", kinds=(LAYOUT_CHANGED,), sequence_from=LAYOUT + 1)


def undecided(key: str, attempt: str, *, unprepared: bool) -> Condition:
    """Expect that an attempt is undecided, and with ``unprepared`` also not prepared."""
    kinds = (COMMITTED, ROLLED_BACK, PREPARED) if unprepared else (COMMITTED, ROLLED_BACK)
    return Condition(transaction_shard(key), key, kinds=kinds, attempts=(attempt,))


def key_free(key: str, attempt: str, rolled_back: Iterable[str] = ()) -> Condition:
    """Expect that no other attempt of a key is prepared or committed.

    ``rolled_back`` names other attempts that were read as rolled back: they may have been
    prepared once, but that is final and does not conflict.
    """
    others = tuple(sorted({attempt, *rolled_back}))
    return Condition(
        transaction_shard(key), key, kinds=(PREPARED, COMMITTED), attempts_except=others
    )


def others_not_rolled_back(key: str, attempt: str) -> Condition:
    """Expect that no other attempt of a key is rolled back."""
    return Condition(transaction_shard(key), key, kinds=(ROLLED_BACK,), attempts_except=(attempt,))


def unused(key: str) -> Condition:
    """Expect that a transaction key has no entries."""
    return Condition(transaction_shard(key), key)


def not_forgotten(key: str, attempt: str) -> Condition:
    """Expect that the heuristic decision of an attempt has not been forgotten."""
    return Condition(transaction_shard(key), key, kinds=(FORGOTTEN,), attempts=(attempt,))


def is_prepared(key: str, attempt: str) -> Condition:
    """Expect that an attempt was prepared."""
    return Condition(
        transaction_shard(key), key, kinds=(PREPARED,), attempts=(attempt,), present=True
    )


def horizon(entries: Iterable[Entry]) -> int:
    """Find the version below which nothing is decided any more; -1 if there is none."""
    return max((e.begun or 0 for e in entries if e.kind == HORIZON_ADVANCED), default=-1)


def archive_day(entries: Iterable[Entry]) -> str:
    """Find the day (ISO) under which entries are archived now; "" if none is recorded yet."""
    return newest_day(entries)[1]


def newest_day(entries: Iterable[Entry]) -> tuple[int, str, int]:
    """Find the newest recorded day: the number of corrections before it, the day, its version.

    A day (ISO) that was recorded by a clock that was ahead is corrected once; after that, days
    count anew.
    """
    said = (
        (e.body.get("corrections", 0), e.body.get("day", ""), e.version)
        for e in entries
        if e.kind == HORIZON_ADVANCED
    )
    return max(said, default=(0, "", -1))


def attempt_id(attempt: str | None, begun: int | None) -> str:
    """Make an attempt's public id, which identifies it even if no entry of it is found."""
    return f"{attempt}@{begun}"


def beginning(entries: Iterable[Entry]) -> int:
    """Find the version from which on the history is complete; -1 if nothing was ever removed."""
    return max((e.begun or 0 for e in entries if e.kind == HISTORY_REMOVED), default=-1)


def decisions_beginning(entries: Iterable[Entry]) -> int:
    """Find the version from which on every decision is known; -1 if none was ever removed.

    Only versions before 0.2 removed decisions with the rest of the history.
    """
    marks = [entry for entry in entries if entry.kind == HISTORY_REMOVED]
    if not marks:
        return -1
    newest = max(marks, key=lambda entry: entry.begun or 0)
    return int(newest.body.get("decisions_from", newest.begun or 0))


def messages(entries: Iterable[Entry]) -> int:
    """Count the messages that entries are about."""
    return sum(entry.count or 0 for entry in entries)


def newest_sequence(entries: Iterable[Entry]) -> int:
    """Find the highest sequence number; 0 if there is none."""
    return max((entry.sequence or 0 for entry in entries), default=0)


# ------------------------------------------------------------------------------- items


def pack_items(items: Iterable[Item]) -> tuple[list[list[Any]], tuple[Range, ...], int]:
    """Write items for an entry: the list in the body, the ranges column and the count."""
    listed: list[list[Any]] = []
    ranges: list[Range] = []
    for (append_id, index), part in items:
        listed.append([append_id, index, len(part)])
        ranges.extend(part)
    return listed, tuple(ranges), sum(last - first + 1 for first, last in ranges)


def superseded(entry: Entry) -> list[tuple[int, int]]:
    """Read which claims of its lane an entry ends, and when (ms) the delivery of each ended.

    Where an entry does not say when, the instant at which it was recorded counts.
    """
    sequences = entry.body.get("supersedes", ())
    ended = entry.body.get("ended_at") or [entry.recorded_at_ms] * len(sequences)
    return list(zip(sequences, ended, strict=True))


def was_moved(origin: Mapping[str, Any] | None) -> bool:
    """Return whether an origin names a former position; that of a published message does not."""
    return origin is not None and "position" in origin


def published_to(kind: str, body: Mapping[str, Any]) -> str | None:
    """Return the id of the exchange to which an entry's messages were published; None if none."""
    if kind != POSTED or was_moved(body.get("origin")):
        return None
    return body.get("exchange")


def unpack_items(entry: Entry) -> list[Item]:
    """Read the items of an entry: the inverse of ``pack_items``."""
    items: list[Item] = []
    at = 0
    for append_id, index, length in entry.body.get("items", ()):
        items.append(((append_id, index), entry.ranges[at : at + length]))
        at += length
    return items
