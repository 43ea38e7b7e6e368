"""The state of a store after one commit, folded from its entries."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
    """The state of a store after one commit."""

    def __init__(
        self,
        client: Client,
        entries: Iterable[Entry],
        at_ms: int | None,
        beginning: int = -1,
    ) -> None:
        """Fold entries; users get snapshots from ``manager.history.as_of``."""
        self._client = client
        self._beginning = beginning
        self._entries = sorted(entries, key=lambda entry: entry.place)
        self._infos = catalog.queues(self._entries)
        self._by_shard = defaultdict[str, list[Entry]](list)
        self._by_queue = defaultdict[str | None, list[Entry]](list)
        for entry in self._entries:
            self._by_shard[entry.shard].append(entry)
            self._by_queue[entry.queue_id].append(entry)
        newest = max((entry.recorded_at_ms for entry in self._entries), default=0)
        self.at_ms = newest if at_ms is None else at_ms
        self.commit_seq = max((entry.commit_seq for entry in self._entries), default=-1)

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
        return [self._queue_row(info) for info in self._infos.values()]

    def transaction_rows(self) -> list[TransactionRow]:
        """List what ``transactions`` shows."""
        found: dict[str, Entry] = {}
        horizon = model.horizon(self._by_shard[model.FENCE])
        rank = {model.PREPARED: 1, model.ROLLED_BACK: 2, model.COMMITTED: 2}
        for entry in self._entries:
            if entry.attempt is None:
                continue
            before = found.get(entry.attempt)
            if before is None or rank.get(before.kind, 0) < rank.get(entry.kind, 0):
                found[entry.attempt] = entry
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
        ever = catalog.every_queue(self._entries)
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
            for entry in self._entries
            if entry.queue_id in names
            and entry.shard != model.CATALOG
            and entry.kind != model.COMPACTED
        ]

    def binding_rows(self) -> list[BindingRow]:
        """List what ``bindings`` shows."""
        return binding_rows(self._by_shard[model.CATALOG])

    def message_rows(self, name: str) -> pa.Table:
        """Read the messages that stood in a queue, available ones first."""
        info = self._info(name)
        parts = [part for found in self._parts(info).values() for part in found]
        return self._client.store.payload.table(schema_of(info), parts)

    # -------------------------------------------------------------------------- helpers

    def _info(self, name: str) -> QueueInfo:
        if name not in self._infos:
            raise InvalidInput(f"There was no queue {name!r} then.", name=name)
        return self._infos[name]

    def _may_be_decided(self, entry: Entry, horizon: int) -> bool:
        """Say whether the decision of an attempt may be missing because it was removed."""
        return entry.version < self._beginning and (entry.begun or 0) < horizon

    def _fold(self, info: QueueInfo, before: int | None = None) -> QueueState:
        fold = QueueState(info.queue_id, info.settings.lanes)
        mine = (e for shard in fold.shards for e in self._by_shard[shard])
        fold.advance((e for e in mine if before is None or e.version < before), 0)
        return fold

    def _queue_row(self, info: QueueInfo) -> QueueRow:
        fold, first = self._fold(info), self._fold(info, self._beginning)
        mine = [e for e in self._by_queue[info.queue_id] if e.version >= self._beginning]
        standing = sum(s.size for lane in fold.lanes.values() for s in lane.available)
        available = fold.available(self.at_ms, info.redelivery)
        posted = first.length() + sum(e.count or 0 for e in mine if e.kind == model.POSTED)
        removed = {
            kind: sum(entry.count or 0 for entry in mine if entry.kind == kind)
            for kind in sorted(model.REMOVALS)
        }
        over = sum(
            s.size
            for lane in fold.lanes.values()
            for s in lane.available
            if s.position.expired(self.at_ms)
        )
        removed[model.PURGED] += fold.purged_in_flight - first.purged_in_flight
        gone = sum(removed.values())
        rejected = sum(entry.count or 0 for entry in mine if entry.kind == model.REJECTED)
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
