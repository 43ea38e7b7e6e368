"""What was: the state after any commit, and the path of any message.

Everything is answered from the journal's entries, which name versions and authors.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue import catalog, model, ranges
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.ledger import Position, QueueFold
from txnqueue.model import Entry, PositionId
from txnqueue.payload import Part
from txnqueue.receiving import part_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TRACED_MAX = 1_000
_QUEUES = "queue lanes posted available delayed in_flight accepted rejected dead_lettered"
_AUTHOR = "reason actor run_id recorded_at commit_seq"
_TRANSACTIONS = f"transaction_id attempt status {_AUTHOR}"
_DISPATCHES = f"kind queue lane sequence claim_sequence transaction_id attempt count {_AUTHOR}"
_TYPES = {
    **dict.fromkeys(_QUEUES.split()[2:], pa.int64()),
    **dict.fromkeys(("sequence", "claim_sequence", "count", "commit_seq"), pa.int64()),
    **dict.fromkeys(("lane", "lanes"), pa.int32()),
    "recorded_at": pa.timestamp("us", "UTC"),
}


class History:
    """Questions about the past of a store; get it from ``manager.history``."""

    def __init__(self, client: Client) -> None:
        """Ask about a manager's store."""
        self._client = client

    def as_of(
        self,
        commit_seq: int | datetime.datetime | None = None,
        *,
        timestamp: datetime.datetime | None = None,
    ) -> Snapshot:
        """Take the state after a commit: one consistent cut over every queue.

        Args:
            commit_seq: The commit, as a receipt names it; or an aware instant.
            timestamp: The instant: after the last commit recorded by then.

        Returns:
            The state; as it is now when nothing is given.

        Raises:
            InvalidInput: There is no such commit yet, or the instant has no time zone.
        """
        self._client.open()
        if commit_seq is not None and timestamp is not None:
            raise InvalidInput("Give commit_seq or timestamp=, not both.")
        if isinstance(commit_seq, datetime.datetime):
            commit_seq, timestamp = None, commit_seq
        if timestamp is not None:
            return self._at(timestamp)
        journal = self._client.store.journal
        newest = journal.version()
        if commit_seq is None:
            return Snapshot(self._client, journal.read_all(upto=newest).entries, None)
        if not isinstance(commit_seq, int) or commit_seq < 0 or commit_seq >> 10 > newest:
            raise InvalidInput(
                f"commit_seq={commit_seq!r}: the newest commit of this store is "
                f"{model.commit_seq(newest)}.",
                name="commit_seq",
            )
        entries = journal.read_all(upto=commit_seq >> 10).entries
        kept = tuple(entry for entry in entries if entry.commit_seq <= commit_seq)
        return Snapshot(self._client, kept, None)

    def _at(self, timestamp: datetime.datetime) -> Snapshot:
        if timestamp.tzinfo is None:
            raise InvalidInput(f"timestamp={timestamp}: give it a time zone.", name="timestamp")
        at_ms = round(timestamp.timestamp() * 1000)
        entries = self._client.store.journal.read_all().entries
        last = max((e.commit_seq for e in entries if e.recorded_at_ms <= at_ms), default=-1)
        kept = tuple(entry for entry in entries if entry.commit_seq <= last)
        return Snapshot(self._client, kept, at_ms)

    def trace(
        self,
        message_id: str | None = None,
        *,
        queue: str | None = None,
        where: str | None = None,
    ) -> list[dict[str, Any]]:
        """Follow messages through the store: one row per step, in commit order.

        Args:
            message_id: The message's id, ``<send id>:<offset>``.
            queue: Instead, the queue that the messages were sent to, with ``where``.
            where: A SQL predicate over the payload's columns.

        Returns:
            Rows with message_id, step (sent, moved, claimed, accepted, released, rejected,
            dead_lettered, …), queue, lane, transaction_id, attempt, decision (of that
            transaction, as it stands), reason, actor, run_id, recorded_at and commit_seq.

        Raises:
            InvalidInput: Neither a message id nor a queue and a predicate were given.
        """
        self._client.open()
        if message_id is not None:
            send_id, _, offset = message_id.rpartition(":")
            if not offset.isdigit():
                raise InvalidInput(f"{message_id!r} is no message id.", name="message_id")
            found = [(send_id, int(offset))]
        elif queue is not None and where is not None:
            found = self._find(self._client.queue(queue), where)
        else:
            raise InvalidInput("Give a message id, or queue= and where=.")
        entries = sorted(self._client.store.journal.read_all().entries, key=lambda e: e.place)
        return [step for one in found for step in _steps(one, entries)]

    def _find(self, info: QueueInfo, where: str) -> list[tuple[str, int]]:
        schema = Snapshot._schema(info)
        return self._client.store.payload.find(schema, info.payload_id, where, TRACED_MAX)


class Snapshot:
    """The state of a store after one commit."""

    def __init__(self, client: Client, entries: Iterable[Entry], at_ms: int | None) -> None:
        """Fold entries; users get snapshots from ``manager.history.as_of``."""
        self._client = client
        self._entries = sorted(entries, key=lambda entry: entry.place)
        self._infos = catalog.queues(e for e in self._entries if e.shard == model.CATALOG)
        newest = max((entry.recorded_at_ms for entry in self._entries), default=0)
        self.at_ms = newest if at_ms is None else at_ms
        self.commit_seq = max((entry.commit_seq for entry in self._entries), default=-1)

    def queues(self) -> DataFrame:
        """Show every queue: name, lanes, available, delayed, in_flight, and what came of the rest.

        Columns: queue string, lanes int, posted, available, delayed, in_flight, accepted,
        rejected, dead_lettered long.
        """
        return self._frame(self.queue_rows(), _QUEUES)

    def transactions(self) -> DataFrame:
        """Show every attempt that claimed, prepared or was decided.

        Columns: transaction_id, attempt, status, reason, actor, run_id string, recorded_at
        timestamp, commit_seq long (null while undecided).
        """
        return self._frame(self.transaction_rows(), _TRANSACTIONS)

    def dispatches(self) -> DataFrame:
        """Show every claim, settlement and move.

        Columns: kind, queue string, lane int, sequence, claim_sequence long, transaction_id,
        attempt string, count long, reason, actor, run_id string, recorded_at timestamp,
        commit_seq long.
        """
        return self._frame(self.dispatch_rows(), _DISPATCHES)

    def queue(self, name: str) -> DataFrame:
        """Show the messages that stood in a queue: payload, ``_message`` and ``state``.

        ``state`` is available, delayed (or past its time to live) or in_flight.
        """
        from pyspark.sql import functions as F

        info = self._info(name)
        schema = self._schema(info)
        frames = [
            self._client.store.payload.frame(schema, parts).withColumn("state", F.lit(state))
            for state, parts in self._parts(info).items()
        ]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def queue_rows(self) -> list[dict[str, Any]]:
        """List what ``queues`` shows."""
        return [self._queue_row(info) for info in self._infos.values()]

    def transaction_rows(self) -> list[dict[str, Any]]:
        """List what ``transactions`` shows."""
        rows: dict[str, dict[str, Any]] = {}
        rank = {"pending": 0, model.PREPARED: 1, model.ROLLED_BACK: 2, model.COMMITTED: 2}
        for entry in self._entries:
            if entry.attempt is None:
                continue
            status = entry.kind if entry.kind in rank else "pending"
            row = rows.get(entry.attempt)
            if row is not None and rank[row["status"]] >= rank[status]:
                continue
            rows[entry.attempt] = {
                "transaction_id": entry.transaction_key,
                "attempt": entry.attempt,
                "status": status,
                **_author(entry),
                "commit_seq": entry.commit_seq if rank[status] == 2 else None,
            }
        return list(rows.values())

    def dispatch_rows(self) -> list[dict[str, Any]]:
        """List what ``dispatches`` shows."""
        names = {info.queue_id: info.name for info in self._infos.values()}
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
                **_author(entry),
                "commit_seq": entry.commit_seq,
            }
            for entry in self._entries
            if entry.queue_id in names and entry.shard != model.CATALOG
        ]

    def message_rows(self, name: str) -> pa.Table:
        """Read the messages that stood in a queue, available ones first."""
        info = self._info(name)
        parts = [part for found in self._parts(info).values() for part in found]
        return self._client.store.payload.table(self._schema(info), parts)

    # -------------------------------------------------------------------------- helpers

    def _info(self, name: str) -> QueueInfo:
        if name not in self._infos:
            raise InvalidInput(f"There was no queue {name!r} then.", name=name)
        return self._infos[name]

    @staticmethod
    def _schema(info: QueueInfo) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(dict(info.schema))

    def _fold(self, info: QueueInfo) -> QueueFold:
        fold = QueueFold(info.queue_id, info.settings.lanes)
        shards = set(fold.shards)
        fold.advance((e for e in self._entries if e.shard in shards), 0)
        return fold

    def _queue_row(self, info: QueueInfo) -> dict[str, Any]:
        fold = self._fold(info)
        mine = [entry for entry in self._entries if entry.queue_id == info.queue_id]
        standing = sum(s.size for lane in fold.lanes.values() for s in lane.available)
        available = fold.available(self.at_ms)
        posted = sum(entry.count or 0 for entry in mine if entry.kind == model.POSTED)
        dead = sum(entry.count or 0 for entry in mine if entry.kind == model.DEAD_LETTERED)
        rejected = sum(entry.count or 0 for entry in mine if entry.kind == model.REJECTED)
        in_flight = fold.in_flight()
        return {
            "queue": info.name,
            "lanes": info.settings.lanes,
            "posted": posted,
            "available": available,
            "delayed": standing - available,
            "in_flight": in_flight,
            "accepted": posted - standing - in_flight - dead - rejected,
            "rejected": rejected,
            "dead_lettered": dead,
        }

    def _parts(self, info: QueueInfo) -> dict[str, list[Part]]:
        fold = self._fold(info)
        parts: dict[str, list[Part]] = {"available": [], "delayed": [], "in_flight": []}
        for lane in fold.lanes.values():
            for segment in lane.available:
                ready = segment.position.receivable(self.at_ms)
                found = (segment.first, segment.last)
                one = part_of(
                    segment.position, (found,), info.name, lane.lane, segment.delivery_count
                )
                parts["available" if ready else "delayed"].append(one)
            for claim in lane.claims.values():
                for position_id, held in claim.items.items():
                    position = fold.positions[position_id]
                    count = claim.delivery_count
                    parts["in_flight"].append(part_of(position, held, info.name, lane.lane, count))
        return parts

    def _frame(self, rows: list[dict[str, Any]], columns: str) -> DataFrame:
        spark = self._client.store.spark
        if spark is None:
            raise PlatformMissing("A DataFrame needs a session: use the method that ends in _rows.")
        schema = pa.schema((name, _TYPES.get(name, pa.string())) for name in columns.split())
        return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def _author(entry: Entry) -> dict[str, Any]:
    return {
        "reason": entry.reason,
        "actor": entry.actor,
        "run_id": entry.run_id,
        "recorded_at": datetime.datetime.fromtimestamp(
            entry.recorded_at_ms / 1000, datetime.timezone.utc
        ),
    }


def _steps(message: tuple[str, int], entries: list[Entry]) -> list[dict[str, Any]]:
    """Follow one message through the entries, in commit order."""
    send_id, offset = message
    decisions = {e.attempt: e.kind for e in entries if e.kind in model.DECISIONS}
    names = {i.queue_id: i.name for i in catalog.queues(entries).values()}
    positions: dict[PositionId, Position] = {}
    claims: set[tuple[str | None, int | None, int | None]] = set()
    steps = []
    for entry in entries:
        step = _step(entry, send_id, offset, positions, claims)
        if step is None:
            continue
        steps.append(
            {
                "message_id": f"{send_id}:{offset}",
                "step": step,
                "queue": names.get(entry.queue_id or ""),
                "lane": entry.lane,
                "transaction_id": entry.transaction_key,
                "attempt": entry.attempt,
                "decision": decisions.get(entry.attempt) if entry.attempt else None,
                **_author(entry),
                "commit_seq": entry.commit_seq,
            }
        )
    return steps


def _step(
    entry: Entry,
    send_id: str,
    offset: int,
    positions: dict[PositionId, Position],
    claims: set[tuple[str | None, int | None, int | None]],
) -> str | None:
    """Say what an entry did to a message; None if it is about others."""
    if entry.kind == model.POSTED:
        here = entry.body["send"] == send_id and _holds(entry.ranges, offset)
        if here:
            positions[entry.entry_id] = Position.of(entry)
        moved = entry.body.get("origin") is not None
        return ("moved" if moved else "sent") if here else None
    if entry.kind in (model.CLAIMED, model.DEAD_LETTERED):
        if not _names(entry, positions, offset):
            return None
        if entry.kind == model.CLAIMED:
            claims.add((entry.queue_id, entry.lane, entry.sequence))
        return entry.kind
    if entry.claim_sequence is not None:
        claim = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        whole = not entry.body.get("items")
        if claim in claims and (whole or _names(entry, positions, offset)):
            return entry.kind
    return None


def _names(entry: Entry, positions: dict[PositionId, Position], offset: int) -> bool:
    return any(
        position_id in positions and _holds(part, offset)
        for position_id, part in model.unpack_items(entry)
    )


def _holds(part: Iterable[model.Range], offset: int) -> bool:
    return bool(ranges.intersection(tuple(part), ((offset, offset),)))
