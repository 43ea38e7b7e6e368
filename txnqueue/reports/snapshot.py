"""The state of a store after one commit, folded from its entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.core import markup, model, ranges
from txnqueue.core.exchanges import ExchangeInfo, arguments_of
from txnqueue.core.instants import instant
from txnqueue.core.model import Entry
from txnqueue.core.settings import (
    MESSAGE_COLUMN,
    MESSAGES_PER_RECEIVE_MAX,
    QueueInfo,
    check_count,
    check_id,
)
from txnqueue.core.state import QueueState, catalog
from txnqueue.core.state.topology import KINDS as EXCHANGE_KINDS
from txnqueue.core.state.topology import Topology, binding_of
from txnqueue.core.state.transaction import undecided
from txnqueue.errors import QueueNotFound
from txnqueue.messages.parts import part_of
from txnqueue.reports.postings import Posting
from txnqueue.reports.report import Report
from txnqueue.reports.tally import Tally
from txnqueue.storage.journal import Newest, Order
from txnqueue.storage.payload import Part, messages_of
from txnqueue.storage.payload.column_names import folded
from txnqueue.types import (
    Author,
    BindingRow,
    DispatchRow,
    ExchangeRow,
    Message,
    QueueCounts,
    QueueRow,
    TransactionRow,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_QUEUES = (
    "queue queue_id lanes group_by lease_seconds deliveries_max dead_letter_id created_at "
    "created_by closing"
)
_EXCHANGES = (
    "exchange exchange_id type unroutable dead_letter_id bindings created_at created_by closing"
)
_COUNTS = (
    "queue lanes posted available delayed in_flight purge_pending accepted rejected "
    "dead_lettered expired purged moved duplicates"
)
_AUTHOR = "reason actor run_id recorded_at commit_seq"
_TRANSACTIONS = f"transaction_id attempt status {_AUTHOR}"
_DISPATCHES = f"kind queue lane sequence claim_sequence transaction_id attempt count {_AUTHOR}"
BINDINGS = f"kind exchange queue routing_key arguments {_AUTHOR}"


class Snapshot:
    """The state of a store after one commit; each query reads only what it needs."""

    def __init__(self, client: Client, past: Past, at_ms: int | None = None) -> None:
        """Hold a state of a store; users get snapshots from ``manager.history.as_of``."""
        self._client = client
        self._past = past
        self._at_ms = at_ms

    @cached_property
    def at_ms(self) -> int:
        """The instant, in milliseconds since 1970, that decides what is delayed and expired."""
        return max(0, self._newest.recorded_at_ms) if self._at_ms is None else self._at_ms

    @property
    def commit_seq(self) -> int:
        """The last commit of the state; -1 if there is none."""
        return self._newest.commit_seq

    def __repr__(self) -> str:
        """Show the store's root."""
        return f"<Snapshot of {self._client.store.root}>"

    def queues(self) -> Report[QueueRow]:
        """Report every queue and some of its settings, with the columns of the SQL view ``queues``.

        ``Queue.info.settings`` has all settings of a queue as it is now.

        Columns: queue, queue_id string, lanes int, group_by string, lease_seconds double,
        deliveries_max int, dead_letter_id string, created_at timestamp, created_by string,
        closing boolean.
        """
        return Report(self._client, self._queues, _QUEUES, is_short=True)

    def counts(self) -> Report[QueueCounts]:
        """Count the fates of each queue's messages.

        Columns: queue string, lanes int, posted, available, delayed, in_flight, purge_pending,
        accepted, rejected, dead_lettered, expired, purged, moved, duplicates long. Expired
        includes expired messages that are still to be removed; duplicates counts only those that
        were found. purge_pending counts the messages in flight that were purged: they are removed
        instead of returning. The counts begin with the history: messages in the queue at its
        beginning count as posted.
        """
        return Report(self._client, self._counts, _COUNTS)

    def transactions(self) -> Report[TransactionRow]:
        """Report every known attempt that claimed messages, was prepared or was decided.

        Columns: transaction_id, attempt, status, reason, actor, run_id string, recorded_at
        timestamp, commit_seq long (null while undecided).
        """
        return Report(self._client, self._transactions, _TRANSACTIONS)

    def dispatches(self) -> Report[DispatchRow]:
        """Report every known entry of the queues: positions, claims, settlements, leases.

        The alterations and drops of queues are among them.

        Columns: kind, queue string, lane int, sequence, claim_sequence long, transaction_id,
        attempt string, count long, reason, actor, run_id string, recorded_at timestamp,
        commit_seq long.
        """
        return Report(self._client, self._dispatches, _DISPATCHES)

    def exchanges(self) -> Report[ExchangeRow]:
        """Report every exchange except the default one, which has no name.

        Columns: exchange, exchange_id, type (direct, topic, fanout or headers), unroutable (return,
        dead_letter or refuse), dead_letter_id string, bindings long (how many it has), created_at
        timestamp, created_by string, closing boolean.
        """
        return Report(self._client, self._exchanges, _EXCHANGES)

    def bindings(self) -> Report[BindingRow]:
        """Report every binding of a queue to an exchange.

        Columns: kind (bound), exchange, queue, routing_key string, arguments map of strings,
        reason, actor, run_id string, recorded_at timestamp, commit_seq long.
        """
        return Report(self._client, lambda: binding_rows(self._catalog), BINDINGS, is_short=True)

    def messages(self, queue: str, limit: int | None = None) -> Report[Message]:
        """Report the messages that were in a queue: the payload, ``_message`` and ``state``.

        ``state`` is available, delayed (or expired), in_flight, or purge_pending (in flight and
        purged); the column is ``_state`` if the payload has a ``state``. Available messages come
        first. The DataFrame reads the payload when Spark runs it.

        Args:
            queue: The queue.
            limit: The most messages to report; all when omitted.

        Raises:
            QueueNotFound: There was no such queue.
            InvalidInput: The limit is no whole number.
            LimitExceeded: The limit is out of range.
        """
        if limit is not None:
            check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        info = self._info(check_id(queue, "queue"))
        names = [column["name"] for column in info.schema["fields"]]
        columns = set(map(folded, names))
        state = "_state" if folded("state") in columns else "state"
        return Report(
            self._client,
            lambda: self._messages(info, state, limit),
            " ".join([*names, MESSAGE_COLUMN, state]),
            lambda: self._frame(info, state, limit),
        )

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show the queues in a notebook; only the entries of the catalog are read."""
        at = instant(self.at_ms)
        caption = f"Queues after commit {self.commit_seq}, {at:%Y-%m-%d %H:%M:%S} UTC"
        columns = ("queue", "lanes", "lease_seconds", "created_at", "created_by", "closing")
        asked = "counts() tells what became of their messages, messages(queue) lists them"
        return f"{markup.records(caption, self._queues(), columns)}<p>{asked}</p>"

    # -------------------------------------------------------------------------- helpers

    def _frame(self, info: QueueInfo, state: str, limit: int | None) -> DataFrame:
        from pyspark.sql import functions as F

        schema, payload = schema_of(info), self._client.store.payload
        placed = self._parts(info)
        there = {name: parts for name, parts in placed.items() if parts} or placed
        frames = [
            payload.frame(schema, parts).withColumn(state, F.lit(name))
            for name, parts in there.items()
        ]
        whole = reduce(lambda one, other: one.unionByName(other), frames)
        return whole if limit is None else whole.limit(limit)

    def _messages(self, info: QueueInfo, state: str, limit: int | None) -> list[Message]:
        payload = self._client.store.payload
        schema = payload.schema(info.schema)
        found: list[Message] = []
        for name, parts in self._parts(info).items():
            left = None if limit is None else limit - len(found)
            if parts and left != 0:
                table = payload.table(schema, parts).slice(0, left)
                rows: Sequence[Mapping[str, Any]] = messages_of(table)
                found += [Message({**row, state: name}) for row in rows]
        return found

    def _queues(self) -> list[QueueRow]:
        created: dict[str | None, Entry] = {}
        for entry in sorted(self._catalog, key=lambda entry: entry.place):
            if entry.kind in catalog.KINDS:
                created.setdefault(entry.queue_id, entry)
        return [
            {
                "queue": info.name,
                "queue_id": info.queue_id,
                "lanes": info.settings.lanes,
                "group_by": info.settings.group_by,
                "lease_seconds": info.settings.lease_seconds,
                "deliveries_max": info.settings.deliveries_max,
                "dead_letter_id": info.dead_letter_id,
                "created_at": author_of(created[info.queue_id])["recorded_at"],
                "created_by": created[info.queue_id].actor,
                "closing": info.closing,
            }
            for info in self._infos.values()
        ]

    def _exchanges(self) -> list[ExchangeRow]:
        topology = Topology.of(self._catalog)
        created: dict[str, Entry] = {}
        for entry in sorted(self._catalog, key=lambda entry: entry.place):
            if entry.kind in EXCHANGE_KINDS:
                created.setdefault(entry.body["exchange"], entry)
        return [
            {
                "exchange": info.name,
                "exchange_id": info.exchange_id,
                "type": info.kind,
                "unroutable": info.unroutable,
                "dead_letter_id": info.dead_letter_id,
                "bindings": len(topology.bindings(info)),
                "created_at": author_of(created[info.exchange_id])["recorded_at"],
                "created_by": created[info.exchange_id].actor,
                "closing": info.closing,
            }
            for info in topology.exchanges.values()
            if info.name
        ]

    def _counts(self) -> list[QueueCounts]:
        tallies = {info.queue_id: Tally(info) for info in self._infos.values()}
        entries = self._past.stream(Order.COMMIT)  # it knows from when on all entries exist
        for entry in entries:
            if entry.shard == model.FENCE:
                for tally in tallies.values():
                    tally.fold.apply(entry)
            elif entry.queue_id in tallies:
                known = entry.version >= self._past.beginning
                tallies[entry.queue_id].add(entry, known=known)
        return [tally.row(self.at_ms) for tally in tallies.values()]

    def _transactions(self) -> list[TransactionRow]:
        found: dict[str, Entry] = {}
        rank = {model.PREPARED: 1, model.ROLLED_BACK: 2, model.COMMITTED: 2}
        horizon = -1
        for entry in self._past.stream(Order.COMMIT):
            if entry.kind == model.HORIZON_ADVANCED:
                horizon = max(horizon, model.horizon([entry]))
            if entry.attempt is None:
                continue
            before = found.get(entry.attempt)
            if before is None or rank.get(before.kind, 0) < rank.get(entry.kind, 0):
                found[entry.attempt] = replace(entry, body={}, ranges=())
        return [
            {
                "transaction_id": entry.transaction_key,
                "attempt": attempt,
                "status": entry.kind if entry.kind in rank else undecided(entry.begun, horizon),
                **author_of(entry),
                "commit_seq": entry.commit_seq if entry.kind in model.DECISIONS else None,
            }
            for attempt, entry in found.items()
            if entry.kind in rank or not self._may_be_decided(entry, horizon)
        ]

    def _dispatches(self) -> list[DispatchRow]:
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
            raise QueueNotFound(
                f"There was no queue {name!r} then: queues() of this snapshot lists those that "
                "existed.",
                name=name,
            )
        return self._infos[name]

    def _may_be_decided(self, entry: Entry, horizon: int) -> bool:
        """Return whether the decision of an attempt may be missing because it was removed."""
        return entry.version < self._past.beginning and (entry.begun or 0) < horizon

    def _fold(self, info: QueueInfo) -> QueueState:
        """Fold one queue from the entries of its shards, and those of the fence about it."""
        lanes = info.settings.lanes
        fold = QueueState(info.queue_id, lanes)
        fold.advance(self._client.cache.pasts.read(self._past, info.queue_id, lanes), 0)
        return fold

    def _parts(self, info: QueueInfo) -> dict[str, list[Part]]:
        placed = self._placed(info).items()
        return {state: [one.part for one in found] for state, found in placed}

    def _placed(self, info: QueueInfo) -> dict[str, list[Posting]]:
        fold = self._fold(info)
        states = ("available", "delayed", "in_flight", "purge_pending")
        placed: dict[str, list[Posting]] = {state: [] for state in states}
        for lane in fold.lanes.values():
            for segment in lane.available:
                ready = segment.timeless or segment.receivable(self.at_ms, info.redelivery)
                found = (segment.first, segment.last)
                one = part_of(
                    segment.position, (found,), info.name, lane.lane, segment.delivery_count
                )
                posting = Posting.of(segment.position, one)
                placed["available" if ready else "delayed"].append(posting)
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
                            placed[state].append(Posting.of(position, one))
        return placed


def standing(snapshot: Snapshot, queue: str) -> list[Posting]:
    """List the messages that were in a queue, in the order of the commits that posted them.

    Raises:
        QueueNotFound: There was no such queue.
    """
    placed = snapshot._placed(snapshot._info(queue)).values()
    return sorted(chain.from_iterable(placed), key=lambda one: one.commit_seq)


def schema_of(info: QueueInfo | ExchangeInfo) -> StructType:
    """Return the payload's columns."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(dict(info.schema))


def binding_rows(
    entries: Iterable[Entry], exchange_id: str | None = None, *, history: bool = False
) -> list[BindingRow]:
    """List bindings, in the order in which they were made.

    Args:
        entries: The entries of the catalog.
        exchange_id: Only the bindings to this exchange.
        history: Every binding and unbinding, instead of the current bindings.
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
    """Return the columns of every report: who wrote an entry, when and why."""
    return {
        "reason": entry.reason,
        "actor": entry.actor,
        "run_id": entry.run_id,
        "recorded_at": instant(entry.recorded_at_ms),
    }
