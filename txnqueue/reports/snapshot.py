"""The state of a store after one commit, folded from its entries."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry
from txnqueue.core.routing import ExchangeInfo, arguments_of
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, catalog
from txnqueue.core.state.topology import Topology, binding_of
from txnqueue.errors import InvalidInput
from txnqueue.messages.claim import part_of
from txnqueue.reports.report import frame_of
from txnqueue.storage.journal import EntryFilter, Newest, Order
from txnqueue.storage.payload import Part
from txnqueue.types import Author, BindingRow, DispatchRow, QueueRow, TransactionRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_QUEUES = (
    "queue lanes posted available delayed in_flight purge_pending accepted rejected "
    "dead_lettered expired purged moved duplicates"
)
_AUTHOR = "reason actor run_id recorded_at commit_seq"
_TRANSACTIONS = f"transaction_id attempt status {_AUTHOR}"
_DISPATCHES = f"kind queue lane sequence claim_sequence transaction_id attempt count {_AUTHOR}"
BINDINGS = f"kind exchange queue routing_key arguments {_AUTHOR}"


class Snapshot:
    """The state of a store after one commit; what it is not asked for, it does not read."""

    def __init__(self, client: Client, past: Past, at_ms: int | None = None) -> None:
        """Fold what is asked for; users get snapshots from ``manager.history.as_of``."""
        self._client = client
        self._past = past
        self._at_ms = at_ms

    @cached_property
    def at_ms(self) -> int:
        """The instant that decides what is delayed and expired."""
        return max(0, self._newest.recorded_at_ms) if self._at_ms is None else self._at_ms

    @property
    def commit_seq(self) -> int:
        """The last commit that belongs to it; -1: there is none."""
        return self._newest.commit_seq

    def queues(self) -> DataFrame:
        """Show every queue: name, lanes, available, delayed, in_flight, and what came of the rest.

        Columns: queue string, lanes int, posted, available, delayed, in_flight, purge_pending,
        accepted, rejected, dead_lettered, expired, purged, moved, duplicates long. Expired are
        also those that are still to be taken out; duplicates only those that were found. Of
        those in flight, purge_pending were purged meanwhile: they go instead of coming back.
        They are counted from the history's beginning: what stood then counts as posted.
        """
        return self._frame(self.queue_rows(), _QUEUES)

    def transactions(self) -> DataFrame:
        """Show every attempt that claimed, prepared or was decided, as far as it is known.

        Columns: transaction_id, attempt, status, reason, actor, run_id string, recorded_at
        timestamp, commit_seq long (null while undecided).
        """
        return self._frame(self.transaction_rows(), _TRANSACTIONS)

    def dispatches(self) -> DataFrame:
        """Show every claim, settlement and move, as far as it is known.

        Columns: kind, queue string, lane int, sequence, claim_sequence long, transaction_id,
        attempt string, count long, reason, actor, run_id string, recorded_at timestamp,
        commit_seq long.
        """
        return self._frame(self.dispatch_rows(), _DISPATCHES)

    def bindings(self) -> DataFrame:
        """Show every binding of a queue to an exchange.

        Columns: kind (bound), exchange, queue, routing_key string, arguments map of strings,
        reason, actor, run_id string, recorded_at timestamp, commit_seq long.
        """
        return self._frame(self.binding_rows(), BINDINGS)

    def queue(self, name: str) -> DataFrame:
        """Show the messages that stood in a queue: payload, ``_message`` and ``state``.

        ``state`` is available, delayed (or past its time to live), in_flight, or
        purge_pending: in flight, and purged.
        """
        from pyspark.sql import functions as F

        info = self._info(name)
        schema = schema_of(info)
        frames = [
            self._client.store.payload.frame(schema, parts).withColumn("state", F.lit(state))
            for state, parts in self._parts(info).items()
        ]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def queue_rows(self) -> list[QueueRow]:
        """List what ``queues`` shows."""
        tallies = {info.queue_id: _Tally(info) for info in self._infos.values()}
        beginning = self._past.beginning
        for entry in self._past.stream(Order.COMMIT):
            if entry.shard == model.FENCE:
                for tally in tallies.values():
                    tally.fold.apply(entry)
            elif entry.queue_id in tallies:
                tallies[entry.queue_id].add(entry, known=entry.version >= beginning)
        return [tally.row(self.at_ms) for tally in tallies.values()]

    def transaction_rows(self) -> list[TransactionRow]:
        """List what ``transactions`` shows."""
        found: dict[str, Entry] = {}
        horizon = self._horizon()
        rank = {model.PREPARED: 1, model.ROLLED_BACK: 2, model.COMMITTED: 2}
        for entry in self._past.stream(Order.COMMIT):
            if entry.attempt is None:
                continue
            before = found.get(entry.attempt)
            if before is None or rank.get(before.kind, 0) < rank.get(entry.kind, 0):
                found[entry.attempt] = replace(entry, body={}, ranges=())
        return [
            {
                "transaction_id": entry.transaction_key,
                "attempt": attempt,
                "status": entry.kind if entry.kind in rank else "pending",
                **author_of(entry),
                "commit_seq": entry.commit_seq if entry.kind in model.DECISIONS else None,
            }
            for attempt, entry in found.items()
            if entry.kind in rank or not self._may_be_decided(entry, horizon)
        ]

    def dispatch_rows(self) -> list[DispatchRow]:
        """List what ``dispatches`` shows."""
        ever = catalog.every_queue(self._catalog)
        names = {queue_id: info.name for queue_id, info in ever.items()}
        return [
            {
                "kind": entry.kind,
                "queue": names.get(entry.queue_id or ""),
                "lane": entry.lane,
                "sequence": entry.sequence,
                "claim_sequence": entry.claim_sequence,
                "transaction_id": entry.transaction_key,
                "attempt": entry.attempt,
                "count": entry.count,
                **author_of(entry),
                "commit_seq": entry.commit_seq,
            }
            for entry in self._past.stream(Order.COMMIT)
            if entry.queue_id in names
            and entry.shard != model.CATALOG
            and entry.kind != model.COMPACTED
        ]

    def binding_rows(self) -> list[BindingRow]:
        """List what ``bindings`` shows."""
        return binding_rows(self._catalog)

    def message_rows(self, name: str) -> pa.Table:
        """Read the messages that stood in a queue, available ones first."""
        info = self._info(name)
        parts = [part for found in self._parts(info).values() for part in found]
        return self._client.store.payload.table(schema_of(info), parts)

    # -------------------------------------------------------------------------- helpers

    @cached_property
    def _newest(self) -> Newest:
        return self._past.newest()

    @cached_property
    def _catalog(self) -> list[Entry]:
        return self._past.catalog()

    @cached_property
    def _infos(self) -> dict[str, QueueInfo]:
        return catalog.queues(self._catalog)

    def _info(self, name: str) -> QueueInfo:
        if name not in self._infos:
            raise InvalidInput(f"There was no queue {name!r} then.", name=name)
        return self._infos[name]

    def _horizon(self) -> int:
        """Read how far the horizon had advanced; only needed if decisions can be missing."""
        if self._past.beginning < 0:
            return -1
        advanced = EntryFilter(shards=[model.FENCE], kinds=[model.HORIZON_ADVANCED])
        return model.horizon(self._past.find(advanced))

    def _may_be_decided(self, entry: Entry, horizon: int) -> bool:
        """Say whether the decision of an attempt may be missing because it was removed."""
        return entry.version < self._past.beginning and (entry.begun or 0) < horizon

    def _fold(self, info: QueueInfo) -> QueueState:
        """Fold one queue, from what lies in its own shards and what the fence says of it."""
        fold, queue_id = QueueState(info.queue_id, info.settings.lanes), info.queue_id
        wanted = (archive.of_lanes(queue_id, info.settings.lanes), archive.of_fence(queue_id))
        found = self._past.find(*wanted)
        fold.advance(archive.known(found, self._past.beginning), 0)
        return fold

    def _parts(self, info: QueueInfo) -> dict[str, list[Part]]:
        fold = self._fold(info)
        states = ("available", "delayed", "in_flight", "purge_pending")
        parts: dict[str, list[Part]] = {state: [] for state in states}
        for lane in fold.lanes.values():
            for segment in lane.available:
                ready = segment.receivable(self.at_ms, info.redelivery)
                found = (segment.first, segment.last)
                one = part_of(
                    segment.position, (found,), info.name, lane.lane, segment.delivery_count
                )
                parts["available" if ready else "delayed"].append(one)
            for claim in lane.claims.values():
                for position_id, held in claim.items.items():
                    purged = claim.purging.get(position_id, ())
                    found_in = {
                        "in_flight": ranges.difference(held, purged),
                        "purge_pending": ranges.intersection(held, purged),
                    }
                    for state, piece in found_in.items():
                        if piece:
                            position, count = fold.positions[position_id], claim.delivery_count
                            one = part_of(position, piece, info.name, lane.lane, count)
                            parts[state].append(one)
        return parts

    def _frame(self, rows: Sequence[Mapping[str, Any]], columns: str) -> DataFrame:
        return frame_of(self._client, rows, columns)


class _Tally:
    """Folds one queue, entry by entry, and counts what became of its messages."""

    def __init__(self, info: QueueInfo) -> None:
        """Begin before the first entry."""
        self._info = info
        self.fold = QueueState(info.queue_id, info.settings.lanes)
        self._shards = frozenset(self.fold.shards)
        self._counts: Counter[str] = Counter()
        self._before: tuple[int, int] | None = None

    def add(self, entry: Entry, *, known: bool) -> None:
        """Take note of an entry; only those from the history's beginning on count."""
        if known and self._before is None:
            self._before = (self.fold.length(), self.fold.purged_in_flight)
        if entry.shard in self._shards:
            self.fold.apply(entry)
        if known:
            self._counts[entry.kind] += entry.count or 0

    def row(self, at_ms: int) -> QueueRow:
        """Tell what ``queues`` shows of it."""
        fold, info = self.fold, self._info
        length, purged_before = self._before or (fold.length(), fold.purged_in_flight)
        standing = sum(s.size for lane in fold.lanes.values() for s in lane.available)
        available = fold.available(at_ms, info.redelivery)
        posted = length + self._counts[model.POSTED]
        removed = {kind: self._counts[kind] for kind in sorted(model.REMOVALS)}
        over = sum(
            s.size
            for lane in fold.lanes.values()
            for s in lane.available
            if s.position.expired(at_ms)
        )
        removed[model.PURGED] += fold.purged_in_flight - purged_before
        gone = sum(removed.values())
        rejected = self._counts[model.REJECTED]
        in_flight = fold.in_flight()
        return {
            "queue": info.name,
            "lanes": info.settings.lanes,
            "posted": posted,
            "available": available,
            "delayed": standing - available - over,
            "in_flight": in_flight,
            "purge_pending": fold.purge_pending(),
            "accepted": posted - standing - in_flight - gone - rejected,
            "rejected": rejected,
            "dead_lettered": removed[model.DEAD_LETTERED],
            "expired": removed[model.EXPIRED] + over,
            "purged": removed[model.PURGED],
            "moved": removed[model.MOVED],
            "duplicates": removed[model.DUPLICATE],
        }


def schema_of(info: QueueInfo | ExchangeInfo) -> StructType:
    """Read the payload's columns."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(dict(info.schema))


def binding_rows(
    entries: Iterable[Entry], exchange_id: str | None = None, *, history: bool = False
) -> list[BindingRow]:
    """List bindings, in the order in which they were made.

    Args:
        entries: The catalog's entries.
        exchange_id: Only those to this exchange.
        history: Every time that a queue was bound or unbound, instead of what holds now.
    """
    entries = sorted(entries, key=lambda entry: entry.place)
    kinds = {model.QUEUE_BOUND: "bound", model.QUEUE_UNBOUND: "unbound"}
    topology = Topology.of(entries)
    if history:
        said = [entry for entry in entries if entry.kind in kinds]
    else:
        said = [
            found[binding]
            for info in topology.exchanges.values()
            if (found := topology.bound.get(info.exchange_id))
            for binding in topology.bindings(info)
        ]
    return [
        {
            "kind": kinds[entry.kind],
            "exchange": entry.body["name"],
            "queue": entry.body["queue"],
            "routing_key": entry.body["routing_key"],
            "arguments": arguments_of(
                binding_of(entry), topology.ever[entry.body["exchange"]].kind
            ),
            **author_of(entry),
            "commit_seq": entry.commit_seq,
        }
        for entry in said
        if exchange_id in (None, entry.body["exchange"])
    ]


def author_of(entry: Entry) -> Author:
    """Say who wrote an entry, when and why: columns of every answer."""
    return {
        "reason": entry.reason,
        "actor": entry.actor,
        "run_id": entry.run_id,
        "recorded_at": datetime.datetime.fromtimestamp(
            entry.recorded_at_ms / 1000, datetime.timezone.utc
        ),
    }
