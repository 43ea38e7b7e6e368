"""Both forms of the views equal the fold on random histories, sensible or not."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.reports.views_folding import (
    FAR_FUTURE_MS,
    STATES,
    per_state,
    plain_types,
    quick_session,
    replay,
    shown,
    told_of,
)
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.core.state import QueueState, catalog
from txnqueue.reports import views
from txnqueue.reports.ledger import Ledger
from txnqueue.reports.views.pieces import frame
from txnqueue.storage.journal.tables import TableNames

LANES, STEPS = 8, 70
AT_MS = 400_000
"""When the views are asked: some of what failed still waits then."""
ATTEMPTS = ("a1", "a2", "a3")


class Dice:
    """Draw entries that a queue's log can hold, sensible or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delays: Any = {
            "redelivery_delay_seconds": 20,
            "redelivery_delay_seconds_max": 100,
        }
        settings = QueueSettings(lanes=LANES, deliveries_max=3, **delays)
        schema = {"type": "struct", "fields": [{"name": "number", "type": "long"}]}
        self.info = QueueInfo("q", "q-1", "q-1", schema, 1, settings, "dead")
        self.before = replace(self.info, settings=QueueSettings(lanes=LANES))
        self.fold = QueueState("q-1", LANES)
        self.entries, self.payload, self.sequences = list[Any](), list[Any](), Counter[Any]()
        self.number, self.closed_at = 0, (1 << 60, 0, 0)

    def run(self, dropped: Any) -> Any:
        self.alter()
        self.draw(LANES * STEPS)
        if dropped:
            self.drop()
            self.draw(LANES, [self.settle])
        return self

    def alter(self) -> None:
        """Say the settings of the queue, which was another one before."""
        (said, *_) = catalog.write(model.QUEUE_ALTERED, self.info, Stamp("anna", "r", 0)).entries
        shard = model.backlog_shard("q-1")
        said = replace(
            said, shard=shard, stream="queue", sequence=None, append_id="altered", version=0
        )
        self.entries.append(said)
        self.fold.apply(said)

    def drop(self) -> None:
        """Drop the queue; what is rolled back after that is still said."""
        for kind in (model.QUEUE_CLOSING, model.QUEUE_DROPPED):
            self.number += 1
            stream = model.queue_stream("q-1")
            entry = Entry(
                model.FENCE, stream, kind, append_id=f"e{self.number}", queue_id="q-1",
                version=self.number, actor="anna", recorded_at_ms=self.number * 1000,
                reason="not needed",
            )  # fmt: skip
            self.entries.append(entry)
            self.fold.apply(entry)
            self.closed_at = min(self.closed_at, entry.place)
        self.number = 4 * self.number + 4  # what comes has higher versions

    def draw(self, steps: int, draws: Any = None) -> None:
        for _ in range(steps):
            self.number += 1
            lane = self.random.randrange(LANES)
            every = [
                self.post, self.claim, self.dead, self.bind, self.settle, self.extend, self.purge,
            ]  # fmt: skip
            weights = None if draws else [2, 4, 1, 2, 6, 1, 1]
            self.random.choices(draws or every, weights)[0](lane)

    def add(
        self,
        kind: Any,
        lane: int,
        *,
        in_lane: Any,
        sequence: int | None = None,
        items: Any = (),
        **columns: Any,
    ) -> None:
        body = columns.pop("body", {})
        listed, parts, count = model.pack_items(items)
        if kind != model.POSTED:
            body["items"] = listed
            columns |= {"ranges": parts, "count": count}
        if in_lane and sequence is None:
            self.sequences[lane] += 1
            sequence = self.sequences[lane]
        attempt = columns.get("attempt")
        entry = Entry(
            model.lane_shard("q-1", lane) if in_lane else model.backlog_shard("q-1"),
            model.lane_stream(lane), kind, sequence=sequence, append_id=f"e{self.number}",
            # several commits share a version, several entries a commit
            version=self.number // 4, ordinal=self.number // 2 % 2, index=self.number % 2,
            transaction_key=attempt and f"key of {attempt}", begun=attempt and 0,
            queue_id="q-1", lane=lane,
            actor=self.random.choice(("anna", "bert")), recorded_at_ms=self.number * 1000,
            body=body, **columns,
        )  # fmt: skip
        self.entries.append(entry)
        self.fold.apply(entry)

    def post(self, lane: int) -> None:
        send, first, parts = f"s{self.number}", 0, []
        for _ in range(self.random.randint(1, 3)):
            first += self.random.randint(0, 3)
            last = first + self.random.randint(0, 7)
            parts.append((first, last))
            first = last + 2
        self.payload += [(send, offset) for offset in range(first + 3)]
        times = {
            name: self.random.choice((None, 1, FAR_FUTURE_MS))
            for name in ("available_at", "expires_at")
        }
        body = {"payload": "q-1", "slice": 0, "send": send, **times}
        count = sum(last - first + 1 for first, last in parts)
        self.add(
            model.POSTED, lane, in_lane=False, ranges=tuple(parts), count=count, body=body,
            attempt=self.random.choice(ATTEMPTS), reason=self.random.choice((None, "moved here")),
        )  # fmt: skip

    def claim(self, lane: int) -> None:
        body = {
            "supersedes": self.superseded(lane),
            "consumer": "c", "epoch": 1, "deadline": 0, "former": 0,
            "delivery_count": self.random.randint(0, 3),
            "counts": self.random.random() < 0.8,
        }  # fmt: skip
        if body["supersedes"] and self.random.random() < 0.7:
            body["ended_at"] = [self.instant() for _ in body["supersedes"]]
        items = self.available(lane, body["supersedes"])
        attempt = self.random.choice((None, *ATTEMPTS))
        if items:
            self.add(model.CLAIMED, lane, in_lane=True, items=items, body=body, attempt=attempt)

    def dead(self, lane: int) -> None:
        body = {"supersedes": self.superseded(lane), "target": "dead"}
        items = self.available(lane, body["supersedes"])
        if items:
            kind = self.random.choice((model.DEAD_LETTERED, model.DUPLICATE))
            reason = "deliveries_max" if kind == model.DEAD_LETTERED else "duplicate"
            self.add(kind, lane, in_lane=True, items=items, body=body, reason=reason)

    def purge(self, lane: int) -> None:
        here = self.fold.lanes[lane]
        held = [item for claim in here.claims.values() for item in claim.items.items()]
        standing: list[Any] = [
            (s.position.position_id, ((s.first, s.last),)) for s in here.available
        ]
        some = self.random.sample(standing, min(len(standing), self.random.choice((0, 0, 1))))
        items = self.parts_of(list(dict(held + some).items()))
        if items:
            reason = self.random.choice((None, "wrong import"))
            self.add(model.PURGE_PENDING, lane, in_lane=True, items=items, reason=reason)

    def bind(self, lane: int) -> None:
        sequence, _ = self.some_claim(lane)
        self.add(
            model.BOUND, lane, in_lane=True, claim_lane=lane, claim_sequence=sequence,
            attempt=self.random.choice(ATTEMPTS),
        )  # fmt: skip

    def extend(self, lane: int) -> None:
        sequence, _ = self.some_claim(lane)
        self.add(
            model.LEASE_EXTENDED, lane, in_lane=True, claim_lane=lane, claim_sequence=sequence,
            body={"deadline": 5},
        )  # fmt: skip

    def settle(self, lane: int) -> None:
        sequence, claim = self.some_claim(lane)
        holder = claim.attempt_id if claim else None
        in_lane = self.random.random() < 0.4
        attempt = None if in_lane else self.random.choice((holder, holder, *ATTEMPTS, None))
        items = ()
        if self.random.random() < 0.7:
            held = list((claim.items if claim else {}).items())
            other = [(key, p.ranges) for key, p in self.fold.positions.items()]
            items = self.parts_of(held + self.random.sample(other, min(1, len(other))))
        self.add(
            self.random.choice(sorted(model.SETTLEMENTS)), lane, in_lane=in_lane, items=items,
            claim_lane=lane, claim_sequence=sequence, attempt=attempt,
            reason=self.random.choice((None, "why")),
            body={"counted": self.random.random() < 0.5, **self.failed()},
        )  # fmt: skip

    def failed(self) -> Any:
        return {"failed_at": self.instant()} if self.random.random() < 0.3 else {}

    def instant(self) -> Any:
        """Draw when a delivery ended; some clocks are far ahead."""
        return self.random.choice((self.number * 1000 - 5_000, AT_MS, 1 << 50))

    def some_claim(self, lane: int) -> Any:
        """Choose a claim, mostly one that has not ended."""
        claims = list(self.fold.lanes[lane].claims.values())
        if claims and self.random.random() < 0.85:
            claim = self.random.choice(claims)
            return claim.sequence, claim
        return self.random.randint(1, self.sequences[lane] + 1), None

    def superseded(self, lane: int) -> Any:
        claims = list(self.fold.lanes[lane].claims)
        return self.random.sample(claims, min(len(claims), self.random.choice((0, 0, 1, 2))))

    def available(self, lane: int, superseded: Any) -> Any:
        here = self.fold.lanes[lane]
        found: dict[Any, Any] = {}
        for segment in here.available:
            parts = found.setdefault(segment.position.position_id, [])
            parts.append((segment.first, segment.last))
        for sequence in superseded:
            claim = here.claims[sequence]
            for position_id, parts in claim.items.items():
                purged = claim.purging.get(position_id, ())
                found.setdefault(position_id, []).extend(ranges.difference(parts, purged))
        return self.parts_of([(k, tuple(sorted(parts))) for k, parts in found.items()])

    def parts_of(self, items: Any) -> Any:
        """Choose some messages of some positions, each position once."""
        chosen = {}
        for position_id, parts in self.random.sample(items, min(len(items), 3)):
            some = []
            for first, last in parts:
                low = self.random.randint(first, last)
                if self.random.random() < 0.8:
                    some.append((low, self.random.randint(low, last)))
            if some:
                chosen[position_id] = tuple(some)
        return list(chosen.items())


@pytest.fixture(scope="module")
def quick(spark: Any) -> Any:
    return quick_session(spark)


def former(dice: Dice) -> list[int | None]:
    """Name the newest state, and one some versions before the queue was dropped."""
    in_use = [e for e in dice.entries if e.place < dice.closed_at]
    return [None, in_use[-1].commit_seq - model.commit_seq(10)]


def entries_of(dice: Dice, upto: int | None) -> list[Entry]:
    return [e for e in dice.entries if upto is None or e.commit_seq <= upto]


def ledger_of(dice: Dice, upto: int | None) -> Ledger:
    ledger = Ledger(dice.info)
    ledger.advance(entries_of(dice, upto), 0)
    return ledger


def all_states(dropped: Any, upto: int | None) -> set[str]:
    gone = {"accepted", "rejected", "dead_lettered", "duplicate", "dropped", "moved", "purged"}
    return gone if dropped and upto is None else {*STATES, "duplicate"}


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_ledger_tells_of_each_message_what_the_fold_does(seed: int, dropped: Any) -> None:
    dice = Dice(seed).run(dropped)
    for upto in former(dice):
        expected, fold = replay(dice.info, entries_of(dice, upto), AT_MS)
        ledger = ledger_of(dice, upto)
        told = Counter(
            told_of(piece, offset)
            for piece in ledger.pieces(AT_MS)
            for first, last in piece.ranges
            for offset in range(first, last + 1)
        )
        assert told == expected
        assert set(per_state(expected)) <= all_states(dropped, upto)
        assert (ledger.length(), ledger.in_flight()) == (fold.length(), fold.in_flight())


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "dropped"), [(1, False), (3, True)])
def test_random_histories_fold_alike(quick: Any, seed: int, dropped: Any) -> None:
    dice = Dice(seed).run(dropped)
    names = TableNames.of("/nowhere")
    _register(quick, dice)
    at_ms = AT_MS
    for commit_seq in former(dice):
        entries = entries_of(dice, commit_seq)
        text = views.statements(names, {"q": dice.before}, "", commit_seq, at_ms)["q"]
        query = (
            text.partition(" AS\n")[2]
            .replace(names.journal, "random_journal")
            .replace(names.archive, "random_archive")
            .replace("_metadata.row_commit_version AS version", "version")
            .replace(names.payload("q-1"), "random_payload")
        )
        quick.sql(query).createOrReplaceTempView("random_shown")
        expected, _ = replay(dice.info, entries, at_ms)
        assert shown(quick, "random_shown") == expected
        assert set(per_state(expected)) == all_states(dropped, commit_seq)

        pieces = list(ledger_of(dice, commit_seq).pieces(at_ms))
        still = frame(quick, lambda _: "random_payload", dice.info, {"q-1": dice.info}, pieces)
        still.createOrReplaceTempView("random_still")
        assert shown(quick, "random_still") == expected
        live, still = quick.table("random_shown"), quick.table("random_still")
        assert plain_types(live) == plain_types(still)
        assert sorted(told_numbers(live)) == sorted(told_numbers(still))


def told_numbers(view: Any) -> list[tuple[str, int]]:
    """Read the payload of each message: it is that of its own offset."""
    return [tuple(row) for row in view.select("message_id", "number").collect()]


def _register(spark: Any, dice: Any) -> None:
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("shard", "stream", "kind", "append_id")),
            *((name, pa.string()) for name in ("transaction_key", "attempt", "queue_id")),
            *((name, pa.string()) for name in ("reason", "actor", "run_id", "body")),
            *((name, pa.int32()) for name in ("ordinal", "index", "lane", "claim_lane")),
            *((name, pa.int64()) for name in ("sequence", "begun", "claim_sequence", "count")),
            ("version", pa.int64()),
            ("recorded_at", pa.timestamp("ms", "UTC")),
            ("ranges", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
        ]
    )
    rows = []
    for entry in dice.entries:
        row = {n: getattr(entry, n) for n in schema.names if n not in ("recorded_at", "body")}
        row["ranges"] = [{"first": first, "last": last} for first, last in entry.ranges]
        rows.append(row | {"recorded_at": entry.recorded_at_ms, "body": json.dumps(entry.body)})
    random.Random(0).shuffle(rows)
    chance = random.Random(1)
    left = {(row["append_id"], row["index"]) for row in rows if chance.random() < 0.5}
    moving = {name for name in left if chance.random() < 0.1}
    here = [r for r in rows if (r["append_id"], r["index"]) not in left - moving]
    journal = spark.createDataFrame(pa.Table.from_pylist(here, schema=schema))
    journal.createOrReplaceTempView("random_journal")
    kept = [r for r in rows if (r["append_id"], r["index"]) in left]
    archive = spark.createDataFrame(pa.Table.from_pylist(kept, schema=schema))
    archive = archive.selectExpr("*", "version * 1024 + ordinal AS commit_seq").drop("version")
    archive.createOrReplaceTempView("random_archive")
    payload = [
        {"slice": 0, "send_id": send, "send_offset": offset, "number": number}
        for number, (send, offset) in enumerate(dice.payload)
    ]
    columns = [("slice", pa.int64()), ("send_id", pa.string()), ("send_offset", pa.int64())]
    columns += [("number", pa.int64()), ("headers", pa.map_(pa.string(), pa.string()))]
    table = pa.Table.from_pylist(payload, schema=pa.schema(columns))
    spark.createDataFrame(table).createOrReplaceTempView("random_payload")
