"""The whole queue in memory: several clients, interleaved within their calls, against a model.

A seeded simulator draws everything: who acts next and what it does, where inside a call it
is interrupted for another client, what the clock and each client's own idea of it say, which
call fails, lands unheard or lands late, who dies. A model that knows single messages only
follows every commit and checks the promises P1 to P6 and P9 at each one, and everything that
a client is told.

A failure names its seed: ``simulate(seed)`` runs it again.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import greenlet
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.protocol import audit
from tests.protocol.faults import Crash, FaultyStore
from tests.stateful import fleeting
from tests.stateful.fleeting import FLEETING, PASSING, Fleeting
from txnqueue import creation, model, recalling
from txnqueue.closing import is_closed
from txnqueue.config import RetryPolicy
from txnqueue.errors import (
    Busy,
    HandlerFailed,
    LeaseLost,
    QueueClosed,
    QueueNotFound,
    TransactionAborted,
    TransactionFinished,
    TransactionMismatch,
    TransactionUnknown,
)
from txnqueue.journal import AppendConflict
from txnqueue.manager import QueueManager
from txnqueue.store import MemoryStore
from txnqueue.testing import Clock, runtime
from txnqueue.transaction import Status

LONG = os.environ.get("TXNQUEUE_LONG") == "1"
SEEDS, CHUNKS, STEPS = (20_000 if LONG else 1_000), 20, 200
LEASE_SECONDS = 30.0
QUEUES = ("in", "out")
COMES_AND_GOES = "aside"
"""A queue that is dropped and created again."""
WANTED = {"to.in": ("in",), "to.out": ("out",), "to.both": QUEUES, "nobody": ()}
"""Which queues want what is published with a key: "in" is bound by patterns."""
WINDOWS = (None, 15, 120)
"""In seconds, within which ``in`` leaves out duplicates; shorter than clocks are apart."""
KINDS = {
    "accept": model.ACCEPTED,
    "release": model.RELEASED,
    "reject": model.REJECTED,
    "move": model.MOVED,
    "refuse": model.RELEASED,
}

STANDS_FOR_ITSELF = {"rollback", "close queue", "recover"}
"""Appends of calls that make several: what landed before one that did not is not undone."""

# ------------------------------------------------------------------------------- the model


@dataclass(eq=False)
class Taken:
    """A claim: who holds which messages until when."""

    attempt: str | None
    key: str | None
    actor: str
    deadlines: list[int]
    size: int
    former: int
    messages: set[int]
    bound: str | None = None
    counts: bool = True

    @property
    def holder(self) -> str | None:
        return self.bound or self.attempt


@dataclass(eq=False)
class Intent:
    """What a client wants one attempt, or one call, to do: sends by queue, and what it said."""

    actor: str
    key: str | None = None
    sends: dict[int, str] = field(default_factory=dict)
    said: dict[Holding, dict[int, str]] = field(default_factory=dict)

    def expected(self) -> dict[int, str]:
        """Write out what the commit shall do; not said, what was received inside is accepted."""
        found = dict(self.sends)
        for holding, said in self.said.items():
            if holding.inside:
                rest = model.RELEASED if model.ACCEPTED in said.values() else model.ACCEPTED
                rest = model.KEPT if holding.keeping else rest
                found.update(dict.fromkeys(holding.messages, rest))
            found.update(said)
        return found


@dataclass(eq=False)
class Holding:
    """A batch that a client holds, inside of a transaction or under a lease.

    ``free`` are the messages of it that are not settled, nor spoken of in a transaction;
    ``keeping``: the commit leaves them held.
    """

    batch: Any
    messages: set[int]
    inside: bool
    free: set[int]
    keeping: bool = False


class Reference:
    """Where every single message is; follows the journal commit by commit.

    What is published is another message in each queue, although its payload is the same.

    A message is nowhere until staged, then "staged", (ready, queue, lane), (held, claim),
    (moving, target) for as long as an append takes, or gone.
    """

    def __init__(self, store: MemoryStore, deliveries_max: int, window_seconds: int | None) -> None:
        self.store, self.deliveries_max = store, deliveries_max
        self.window_seconds = window_seconds
        self.window_ms = None if window_seconds is None else window_seconds * 1000
        self.unique: set[str] = set()
        self.payloads: set[str] = set()
        self.removed: set[str] = set()
        self.firsts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.twice: set[int] = set()
        self.seen = len(store.journal.commits)
        self.place: dict[int, tuple[Any, ...]] = {}
        self.copies: dict[tuple[int, str], int] = {}
        self.bound: set[str] = set()
        self.order: dict[int, tuple[int, ...]] = {}
        self.history: dict[int, tuple[int, int]] = {}
        self.window: dict[int, tuple[int, int | None]] = {}
        self.standing: dict[tuple[Any, int], int] = {}
        self.not_to: dict[int, set[str]] = {}
        self.purging: set[int] = set()
        self.claims: dict[tuple[str, int, int], Taken] = {}
        self.dead_of: dict[str, str | None] = {}
        self.decided: dict[str, str] = {}
        self.prepared: dict[str, str] = {}
        self.committed: dict[str, tuple[str, int]] = {}
        self.explicit: set[str] = set()
        self.preparing: set[str] = set()
        self.intents: dict[str, Intent] = {}
        self.calls: dict[str, Intent] = {}
        self.settles: dict[str, dict[int, str]] = {}
        self.landed: defaultdict[str, list[str]] = defaultdict(list)
        self.claimed_by: defaultdict[str, set[int]] = defaultdict(set)
        self.consumers: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.denied: set[str] = set()
        self.disturbed: dict[str, bool] = {}
        self.horizon = -1
        self.begun: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.closed: set[str] = set()
        self.dropped: set[str] = set()
        self.went: set[str] = set()
        self.names: dict[str, set[str]] = {}
        self.breach: AssertionError | None = None

    # ------------------------------------------------------------- what others ask of it

    def ready(
        self,
        queue_id: str,
        at_ms: int,
        lane: int | None = None,
        consumer: str | None = None,
        *,
        twice: bool = False,
    ) -> list[int]:
        """List what can be received at an instant, in delivery order of each lane.

        With ``twice`` also the duplicates that nobody has found yet.
        """
        found = [
            m
            for m, place in self.place.items()
            if place[:2] == ("ready", queue_id)
            and lane in (None, place[2])
            and self.window[m][0] <= at_ms
            and not self.expired(m, at_ms)
            and (twice or m not in self.twice)
            and consumer not in self.not_to[m]
        ]
        return sorted(found, key=self.order.__getitem__)

    def expired(self, message: int, at_ms: int) -> bool:
        """Whether a message's time to live is over."""
        expires = self.window[message][1]
        return expires is not None and expires <= at_ms

    def ids(self, batch: Any) -> dict[int, str]:
        """Find the messages of a batch, in delivery order, with their ids."""
        return {
            self.standing[position_id, offset]: f"{one.positions[position_id].send_id}:{offset}"
            for one in batch.claims
            for position_id, part in one.claim.items.items()
            for first, last in part
            for offset in range(first, last + 1)
        }

    def numbers(self, messages: Any) -> list[int]:
        """Read what messages carry."""
        carried = {copy: number for (number, _), copy in self.copies.items()}
        return [carried.get(message, message) for message in messages]

    def held(self, queue_id: str) -> int:
        return sum(p[0] == "held" and p[1][0] == queue_id for p in self.place.values())

    def waiting(self) -> set[str]:
        """The keys that are prepared and undecided."""
        return {key for attempt, key in self.prepared.items() if attempt not in self.decided}

    # ------------------------------------------------------------------------- following

    def follow(self) -> None:
        """Apply what has landed since."""
        commits = self.store.journal.commits
        if self.breach:  # somebody swallowed it
            raise self.breach
        while self.seen < len(commits):
            entries, metadata = commits[self.seen]
            self.seen += 1
            try:
                self._commit(entries, str(metadata["run_id"]), str(metadata["operation"]))
            except (AssertionError, KeyError) as breach:
                self.breach = AssertionError(f"{breach} at version {self.seen - 1}")
                raise self.breach from breach

    def _commit(self, entries: Any, call: str, operation: str) -> None:
        assert call not in self.denied, f"P9 {operation} of {call} landed after it was denied"
        self.effects: defaultdict[str | None, dict[int, str]] = defaultdict(dict)
        self.deciding = {e.attempt: e.kind for e in entries if e.stream == e.transaction_key}
        self.commit, self.call, self.operation = entries, call, operation
        for entry in entries:
            self._check_open(entry)
            getattr(self, f"_{entry.kind}")(entry)
        for message, place in self.place.items():
            assert place[0] != "moving", f"P1 {message} left {place} and arrived nowhere"
        for attempt, kind in self.deciding.items():
            if kind == model.COMMITTED:
                intent = self.intents.get(attempt) or self.calls.get(call) or Intent("nobody")
                wanted = intent.expected()
                assert self.effects[attempt] == wanted, f"P1 {self.effects[attempt]} for {wanted}"
        if operation == "settle":
            wanted = self.settles[call]
            assert self.effects[None] == wanted, f"P2 {self.effects[None]} for {wanted}"
        self.landed[call].append(operation)
        for other in self.disturbed:
            self.disturbed[other] |= other != call

    def _check_open(self, entry: Any) -> None:
        """From its closing on a queue takes no work but what was prepared."""
        if entry.queue_id not in self.closed or entry.shard in (model.CATALOG, model.FENCE):
            return
        rolled_back = entry.kind == model.RELEASED and entry.sequence is None
        before = entry.attempt in self.prepared and entry.queue_id not in self.dropped
        assert rolled_back or before, f"P6 {entry.kind} in {entry.queue_id}, which was closed"

    def naming(self, queue_id: str) -> set[str]:
        """The prepared and undecided transactions that name a queue."""
        found = {a for a, named in self.names.items() if queue_id in named}
        return {self.prepared[attempt] for attempt in found if attempt not in self.decided}

    # --------------------------------------------------------------- one method per kind

    def _queue_created(self, entry: Any) -> None:
        assert entry.body["payload"] not in self.removed, "P2 its payload table was removed"
        self.payloads.add(entry.body["payload"])
        self.dead_of[entry.queue_id] = entry.body["dead_letter"]

    def _payload_removed(self, entry: Any) -> None:
        payload_id = entry.body["payload"]
        assert payload_id not in self.payloads | self.removed, f"P2 {payload_id} was removed"
        self.removed.add(payload_id)

    def _queue_altered(self, entry: Any) -> None:
        self.counts["altered"] += entry.shard == model.CATALOG

    def _queue_closing(self, entry: Any) -> None:
        if entry.shard == model.FENCE:
            assert entry.queue_id not in self.closed, f"{entry.queue_id} is closed twice"
            self.closed.add(entry.queue_id)

    def _queue_dropped(self, entry: Any) -> None:
        if entry.shard != model.FENCE:
            return
        queue_id, gone = entry.queue_id, 0
        assert queue_id in self.closed and queue_id not in self.dropped, queue_id
        assert not self.naming(queue_id), f"P5 {queue_id} went under {self.naming(queue_id)}"
        self.dropped.add(queue_id)
        for message, place in self.place.items():
            ready = place[:2] == ("ready", queue_id)
            if ready or (place[0] == "held" and place[1][0] == queue_id):
                self.place[message] = ("gone", "dropped")
                gone += 1
        assert gone == entry.count, f"P2 {gone} went with {queue_id}, not {entry.count}"
        gone_with_it = [c for name, c in self.claims.items() if name[0] == queue_id]
        self.went.update(c.holder for c in gone_with_it if c.holder)
        self.claims = {name: c for name, c in self.claims.items() if name[0] != queue_id}
        self.counts["dropped"] += 1

    def _committed(self, entry: Any) -> None:
        self._decide(entry)
        others = [a for a, k in self.prepared.items() if k == entry.stream and a != entry.attempt]
        assert all(a in self.decided for a in others), f"P5 {entry.stream} overtook a prepared one"
        assert entry.stream not in self.committed, f"P1 {entry.stream} was committed twice"
        self.committed[entry.stream] = (entry.attempt, entry.commit_seq)

    def _rolled_back(self, entry: Any) -> None:
        self._decide(entry)
        intent = self.intents.get(entry.attempt)
        if entry.attempt in self.prepared:
            allowed = entry.stream in self.explicit or entry.attempt in self.preparing
            assert allowed, f"P5 prepared {entry.stream} was aborted"
        elif intent and intent.actor != entry.actor:
            mine = [c for c in self.claims.values() if c.holder == entry.attempt]
            over = any(self._over(claim, entry) for claim in mine)
            assert over or entry.attempt in self.went, "P6 aborted before its time"
            self.counts["tombstones"] += 1

    def _prepared(self, entry: Any) -> None:
        assert entry.attempt not in self.decided, f"P4 {entry.attempt} was decided before"
        assert entry.stream not in self.waiting(), f"P5 {entry.stream} is prepared twice"
        self.prepared[entry.attempt] = entry.stream
        manifest = entry.body["manifest"]["entries"]
        self.names[entry.attempt] = {e["queue_id"] for e in manifest if e["queue_id"]}
        assert self.names[entry.attempt].isdisjoint(self.closed), "P6 prepared in a closed queue"
        self.counts["prepared"] += 1

    def _decide(self, entry: Any) -> None:
        assert entry.attempt not in self.decided, f"P4 {entry.attempt} was decided twice"
        assert not (entry.attempt in self.denied and entry.kind == model.COMMITTED), (
            f"P9 {entry.stream} was committed after its client heard that it was not"
        )
        if entry.attempt in self.prepared and entry.attempt not in self.preparing:
            assert self.operation.endswith("prepared"), f"P5 {entry.stream}: {self.operation}"
        self.decided[entry.attempt] = entry.kind
        self.counts[entry.kind] += 1

    def _posted(self, entry: Any) -> None:
        decided = self.deciding.get(entry.attempt)
        assert entry.attempt is None or decided == model.COMMITTED, "P3 posted without a commit"
        rows = self.store.payload._sends[entry.body["payload"], entry.body["send"]]
        values, ids = rows.column("n"), rows.column("id")
        for first, last in entry.ranges:
            for offset in range(first, last + 1):
                message = values[offset].as_py()
                origin = entry.body.get("origin")
                if origin is not None:
                    message = self.standing[tuple(origin["position"]), offset]
                elif "exchange" in entry.body:
                    message = self.copies[message, entry.queue_id]
                    self.counts["published"] += 1
                self._name(entry, message, ids[offset].as_py())
                if origin is None:
                    assert self.place.get(message) == ("staged",), f"P2 {message} is posted twice"
                    self.effects[entry.attempt][message] = entry.queue_id
                else:
                    moving = ("moving", entry.queue_id)
                    assert self.place[message] == moving, f"P2 {message}: {self.place[message]}"
                self.place[message] = ("ready", entry.queue_id, entry.lane)
                self.order[message] = (-entry.body["priority"], *entry.place, offset)
                times = (entry.body.get("available_at", 0), entry.body.get("expires_at"))
                self.window[message] = times
                self.history[message] = (0, 0)
                self.not_to[message] = set()
                self.standing[entry.entry_id, offset] = message

    def _name(self, entry: Any, message: int, message_id: int) -> None:
        """Find out whether what is posted is a duplicate, by all that was posted before."""
        self.twice.discard(message)
        if self.window_ms is None or entry.queue_id not in self.unique:
            return
        firsts, at_ms = self.firsts[entry.queue_id, message_id], entry.recorded_at_ms
        moved = entry.body.get("origin") is not None
        if not moved and any(at_ms - first < self.window_ms for first in firsts):
            self.twice.add(message)
        else:
            firsts.append(at_ms)

    def _duplicate(self, entry: Any) -> None:
        self._end_superseded(entry)
        for message in self._taken_out(entry, twice=True):
            self.place[message] = ("gone", "duplicate")
            self.counts["duplicates"] += 1

    def _claimed(self, entry: Any) -> None:
        self._end_superseded(entry)
        name = (entry.queue_id, entry.lane, entry.sequence)
        body, at_ms = entry.body, entry.recorded_at_ms
        counts, consumer = body.get("counts", True), self.consumers[entry.actor]
        if counts and not self.disturbed.get(self.call, True):
            first = self.ready(entry.queue_id, at_ms, entry.lane, consumer)[: entry.count]
            assert self._messages(entry) == first, f"{name} takes others than the first ones"
        size, owner = entry.count, (entry.attempt, entry.transaction_key, entry.actor)
        claim = Taken(*owner, [body["deadline"]], size, body["former"], set(), counts=counts)
        self.begun[entry.attempt] = entry.begun
        for message in self._messages(entry):
            ready = ("ready", entry.queue_id, entry.lane)
            assert self.place[message] == ready, f"P2 {message} is claimed: {self.place[message]}"
            assert message not in self.twice, f"{message} is a duplicate, and delivered"
            history = self.history[message]
            assert history == (body["delivery_count"], body["former"]), f"{message}: {history}"
            assert self.not_to[message] == set(body.get("not_to", ())), f"{message} is refused"
            if counts:  # it is delivered, and not just acquired for a move
                assert consumer not in self.not_to[message], f"{message} is not for {consumer}"
                assert self.window[message][0] <= at_ms, f"{message} is delayed"
                assert not self.expired(message, at_ms), f"{message} has expired"
                assert history[1] == 0 or size <= max(1, history[1] // 10), "it does not narrow"
            claim.messages.add(message)
            self.place[message] = ("held", name)
        assert len(claim.messages) == size, "a claim counts what it names"
        self.claims[name] = claim
        self.claimed_by[self.call] |= claim.messages

    def _dead_lettered(self, entry: Any) -> None:
        self._end_superseded(entry)
        for message in self._messages(entry):
            ready = ("ready", entry.queue_id, entry.lane)
            assert self.place[message] == ready, f"P2 {message} is dead: {self.place[message]}"
            count, former = self.history[message]
            assert count >= self.deliveries_max and former == 1, f"{message} died too early"
            self.place[message] = ("moving", self.dead_of[entry.queue_id])
            self.counts["dead letters"] += 1

    def _expired(self, entry: Any) -> None:
        self._end_superseded(entry)
        for message in self._taken_out(entry):
            assert self.expired(message, entry.recorded_at_ms), f"{message} expired too early"
            self.place[message] = ("gone", "expired")
            self.counts["expired"] += 1

    def _purge_pending(self, entry: Any) -> None:
        for message in self._messages(entry):
            place = self.place[message]
            if place[0] == "held" and place[1][:2] == (entry.queue_id, entry.lane):
                self.purging.add(message)
            elif place == ("ready", entry.queue_id, entry.lane):  # it came back just before
                self.place[message] = ("gone", "purged")
                self.counts["purged just in time"] += 1

    def _purged(self, entry: Any) -> None:
        self._end_superseded(entry)
        for message in self._taken_out(entry):
            self.place[message] = ("gone", "purged")
            self.counts["purged"] += 1

    def _moved(self, entry: Any) -> None:
        inside = entry.claim_sequence is not None
        for message in self._settled(entry) if inside else self._taken_out(entry):
            self.place[message] = ("moving", entry.body["target"])
            self.counts["moved inside" if inside else "moved"] += 1

    def _queue_bound(self, entry: Any) -> None:
        assert entry.body["routing_key"] not in self.bound, "bound twice"
        self.bound.add(entry.body["routing_key"])
        self.counts["bound"] += 1

    def _queue_unbound(self, entry: Any) -> None:
        self.bound.remove(entry.body["routing_key"])

    def _compacted(self, entry: Any) -> None:
        self.counts["compacted"] += 1

    def _horizon_advanced(self, entry: Any) -> None:
        assert entry.begun > self.horizon, "the horizon goes back"
        self.horizon = entry.begun
        self.counts["horizons"] += 1

    def _bound(self, entry: Any) -> None:
        assert self.deciding.get(entry.attempt) != model.ROLLED_BACK, "a bind is no rollback's"
        assert entry.attempt in self.deciding, "P1 bound without a decision"
        claim = self.claims[entry.queue_id, entry.claim_lane, entry.claim_sequence]
        assert claim.attempt is None, "a transaction's own claim is not bound"
        claim.bound = entry.attempt
        self.begun[entry.attempt] = entry.begun

    def _kept(self, entry: Any) -> None:
        claim = self.claims[entry.queue_id, entry.claim_lane, entry.claim_sequence]
        assert self.deciding.get(entry.attempt) == model.COMMITTED, "P1 kept without a commit"
        assert claim.attempt == entry.attempt, f"P6 it is {claim.attempt}'s to keep"
        assert len(claim.messages) == entry.count, "P2 what is kept is all that is left"
        self.effects[entry.attempt].update(dict.fromkeys(claim.messages, model.KEPT))
        claim.attempt = claim.key = claim.bound = None
        claim.deadlines.append(entry.body["deadline"])
        self.counts["kept"] += 1

    def _lease_extended(self, entry: Any) -> None:
        claim = self.claims.get((entry.queue_id, entry.claim_lane, entry.claim_sequence))
        if claim:
            claim.deadlines.append(entry.body["deadline"])

    def _accepted(self, entry: Any) -> None:
        for message in self._settled(entry):
            self.place[message] = ("gone", "accepted")

    def _rejected(self, entry: Any) -> None:
        target = self.dead_of[entry.queue_id]
        for message in self._settled(entry):
            self.place[message] = ("moving", target) if target else ("gone", "rejected")

    def _released(self, entry: Any) -> None:
        if entry.queue_id in self.dropped:
            return
        name = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        claim = self.claims[name]
        for message in self._settled(entry, back=True):
            self._give_back(message, name, claim, bool(entry.body.get("counted")))
            if entry.body.get("not_to"):
                assert entry.body["not_to"] == self.consumers[claim.actor]
                self.not_to[message].add(entry.body["not_to"])
                self.counts["refused"] += 1

    # -------------------------------------------------------------------------- helpers

    def _messages(self, entry: Any) -> list[int]:
        return [
            self.standing[position_id, offset]
            for position_id, part in model.unpack_items(entry)
            for first, last in part
            for offset in range(first, last + 1)
        ]

    def _taken_out(self, entry: Any, *, twice: bool = False) -> list[int]:
        for message in (found := self._messages(entry)):
            assert (message in self.twice) == twice, f"{message} is {entry.kind}: {twice}"
            ready = ("ready", entry.queue_id, entry.lane)
            assert self.place[message] == ready, f"P2 {message}: {self.place[message]}"
        return found

    def _settled(self, entry: Any, back: bool = False) -> list[int]:
        name = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        claim = self.claims.get(name)
        assert claim is not None, f"P6 {entry.kind} of {name}, which has ended"
        if entry.sequence is None:
            assert entry.attempt in self.deciding, "P1 settled without a decision"
            assert claim.holder == entry.attempt, f"P6 {name} is {claim.holder}'s"
        else:
            assert claim.attempt is None, f"{name} is a transaction's"
            assert not self._waits(claim.bound), f"P5 {name} is prepared to be settled"
        named = self._messages(entry) or sorted(claim.messages)
        assert claim.messages.issuperset(named), f"P2 {named} of {name} were settled before"
        for message in named:
            assert message not in self.effects[entry.attempt], f"P2 {message} is settled twice"
            self.effects[entry.attempt][message] = entry.kind
        claim.messages.difference_update(named)
        if not back:
            self.purging.difference_update(named)
        if not claim.messages:
            del self.claims[name]
        return named

    def _end_superseded(self, entry: Any) -> None:
        for sequence in entry.body.get("supersedes", ()):
            name = (entry.queue_id, entry.lane, sequence)
            claim = self.claims.pop(name, None)
            assert claim is not None, f"P2 {name} is taken over, and has ended"
            assert self._over(claim, entry), f"P6 {name} is taken over before its time"
            attempt = claim.holder
            assert attempt is None or self._is_over(attempt), f"P2 {name}: {attempt} is undecided"
            for message in claim.messages:
                self._give_back(message, name, claim, counted=True)
            self.counts["take-overs"] += 1

    def _give_back(self, message: int, name: Any, claim: Taken, counted: bool) -> None:
        count, former = self.history[message]
        counted = counted and claim.counts
        self.history[message] = (count + 1, claim.size) if counted else (count, former)
        self.place[message] = ("ready", *name[:2])
        if message in self.purging:
            self.purging.remove(message)
            self.place[message] = ("gone", "purged")
            self.counts["purged in flight"] += 1

    def _over(self, claim: Taken, entry: Any) -> bool:
        """Whether by the clock of who wrote it, or as its own past, a claim may be ended.

        Who only aborts a transaction does not read its lanes, and may miss an extension.
        """
        missed = self.operation == "recover" and self.disturbed.get(self.call, True)
        deadline = min(claim.deadlines) if missed else claim.deadlines[-1]
        older_self = self.consumers[claim.actor] == self.consumers[entry.actor]
        same_key = claim.key is not None and claim.key.startswith(self.keys.get(self.call, "-"))
        return (
            deadline <= entry.recorded_at_ms
            or (older_self and claim.actor != entry.actor)
            or same_key
        )

    def _is_over(self, attempt: str) -> bool:
        """Whether an attempt is decided, or can never be."""
        below = self.begun[attempt] < self.horizon and attempt not in self.prepared
        return attempt in self.decided or below

    def _waits(self, attempt: str | None) -> bool:
        return attempt in self.prepared and attempt not in self.decided


# ----------------------------------------------------------------------------- the clients


class Luck:
    """What happens to the store calls of one client."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self.simulation, self.client = simulation, client

    def call(self, name: str, perform: Any) -> Any:
        simulation, client = self.simulation, self.client
        chance, counts = simulation.random.random, simulation.reference.counts
        if client.dead:
            raise Crash(name)
        if chance() >= simulation.fault_rate * (5 if name == "append" else 1):
            return self._heard(perform)
        fault = simulation.random.choice(
            ("fails", "lost", "late", "conflict", "crash")
            if name == "append"
            else ("fails", "crash")
        )
        client.doubtful = True
        counts[f"{name} {fault}"] += 1
        if fault == "late":
            simulation.late.append(perform)
        elif fault in ("lost", "conflict") or (fault == "crash" and chance() < 0.5):
            self._heard(perform)
        if fault == "crash":
            client.dead = True
            raise Crash(name)
        if fault == "conflict":
            raise AppendConflict("Delta met its own commit")
        raise ConnectionError(f"{name}: {fault}")

    def _heard(self, perform: Any) -> Any:
        try:
            return perform()
        except AppendConflict:
            self.simulation.reference.counts["conflicts"] += 1
            raise


class Client(Fleeting):
    """One manager and what it holds: it does one thing after the other."""

    def __init__(self, simulation: Simulation, consumer: str) -> None:
        self.simulation, self.reference = simulation, simulation.reference
        self.name = f"c{simulation.number()}"
        self.dead = self.doubtful = False
        self.running: Any = None
        self.call = ""
        skew_ms = simulation.random.randint(-simulation.skew_ms, simulation.skew_ms)
        self.runtime = runtime(simulation.clock, self.name, simulation.retry)
        self.runtime.now_ms = lambda: simulation.clock.now_ms + skew_ms
        self.runtime.consumer = self.reference.consumers[self.name] = consumer
        self.runtime.sleep = lambda seconds: simulation.pause()
        self.began = 0
        self.runtime.dice = lambda: simulation.random.random()
        store = FaultyStore(simulation.store, Luck(simulation, self))
        self.manager = QueueManager(None, store=store, runtime=self.runtime)
        self.forget_all()
        self.manager._client.log_max = simulation.random.choice((3, 10, 1_000))
        self.open: dict[Any, Intent] = {}
        self.leased: list[Holding] = []

    # -------------------------------------------------------------------------- running

    def start(self, action: str) -> None:
        """Begin an action, and go on until the scheduler takes over."""
        self.running = greenlet.greenlet(lambda: self._run(action))
        self.resume()

    def resume(self) -> None:
        self.running.switch()
        if self.running.dead:
            self.running = None

    def kill(self) -> None:
        """Die here and now, wherever that is."""
        self.dead = True
        if self.running is not None:
            self.running.throw(Crash("killed"))

    def _run(self, action: str) -> None:
        self.call = self.runtime.run_id = f"{self.name}.{self.simulation.number()} {action}"
        self.doubtful = False
        self.began = len(self.simulation.store.journal.commits) - 1
        self.reference.disturbed[self.call] = False
        try:
            getattr(self, f"do_{action}")()
            self.reference.follow()
        except Crash:
            self.reference.counts["crashes"] += 1
        except ConnectionError:
            self.reference.counts["unreachable"] += 1
        finally:
            del self.reference.disturbed[self.call]

    def ask(self, what: Any, *expected: type[Exception]) -> tuple[Any, Exception | None]:
        """Make one call; an error that is not in doubt says that nothing of it will happen."""
        try:
            answer = what()
        except TransactionUnknown as error:
            self.reference.counts["in doubt"] += 1
            return None, error
        except (Busy, ConnectionError, QueueClosed, QueueNotFound, *expected) as error:
            self.reference.follow()
            self.reference.counts[type(error).__name__] += 1
            if is_closed(error):
                queue_id = error.queue_id.removesuffix(model.IN_MEMORY)
                assert queue_id in self.reference.closed, f"P9 it is open: {error}"
            landed = set(self.reference.landed[self.call]) - STANDS_FOR_ITSELF
            assert HandlerFailed in expected or not landed or self.doubtful, (
                f"P9 {self.call} landed, and raised {error!r}"
            )
            return None, error
        self.reference.follow()
        return answer, None

    @property
    def quiet(self) -> bool:
        """Whether nobody else changed anything since the call began."""
        self.reference.follow()
        return not self.reference.disturbed[self.call]

    def queue(self) -> Any:
        if self.simulation.random.random() < 0.2:
            try:
                return self.manager.queue(COMES_AND_GOES)
            except QueueNotFound:
                pass
        return self.manager.queue(self.simulation.random.choice(QUEUES))

    def active(self, *, ending: bool = False) -> tuple[Any, Intent] | tuple[None, None]:
        """Pick an open transaction of this client, which takes more work or is to be ended."""
        found = [
            (tx, intent)
            for tx, intent in self.open.items()
            if tx.status is Status.ACTIVE and (ending or not tx.interrupted)
        ]
        return self.simulation.random.choice(found) if found else (None, None)

    # -------------------------------------------------------------------------- sending

    def _rows(self, queue: Any, intent: Intent) -> list[dict[str, int]]:
        draw = self.simulation.random
        fresh = [self.simulation.number() for _ in range(draw.randint(1, 4))]
        for message in fresh:
            self.reference.place[message] = ("staged",)
            intent.sends[message] = queue.info.queue_id
        return [{"n": message, "id": self._id(message)} for message in fresh]

    def _id(self, number: int) -> int:
        """Draw an id: sometimes one that others draw, too, for a while."""
        draw = self.simulation.random
        often = max(1, number // 40 - draw.randrange(3))
        return often if draw.random() < 0.3 else number

    def placing(self) -> dict[str, Any]:
        """Draw what a send says of priority, delay and time to live: mostly nothing."""
        draw = self.simulation.random
        said: dict[str, Any] = {}
        if draw.random() < 0.15:
            said["priority"] = draw.choice((0, 5, 9))
        if draw.random() < 0.1:
            said["delay_seconds"] = draw.choice((1, 15, 60))
        if draw.random() < 0.1:
            said["ttl_seconds"] = draw.choice((5, 40, 600))
        return said

    def do_purge(self) -> None:
        queue = self.queue()
        self.ask(queue.purge)

    def do_drop(self) -> None:
        result, _ = self.ask(lambda: self.manager.drop_queue(COMES_AND_GOES))
        if result and not result.dropped:
            self.reference.counts["held back"] += 1
            assert result.held_by, "P5 it is held back by nothing"
            queue_id = self.manager.queue(COMES_AND_GOES).info.queue_id
            if self.quiet:
                assert set(result.held_by) == self.reference.naming(queue_id)

    def do_alter(self) -> None:
        try:
            queue = self.manager.queue(COMES_AND_GOES)
        except QueueNotFound:
            return
        number = self.simulation.random.randrange(3)
        self.ask(lambda: queue.alter(f"c{number} string", delay_step_seconds=1 + number))

    def do_create(self) -> None:
        simulation = self.simulation
        self.ask(lambda: simulation.create(self, COMES_AND_GOES, simulation.lanes, False))

    def do_redrive(self) -> None:
        dead = self.manager.queue("in.dead")
        self.ask(dead.redrive)

    def do_move(self) -> None:
        source, target = self.simulation.random.sample(QUEUES, 2)
        self.ask(lambda: self.manager.queue(source).move(target))

    def do_move_inside(self) -> None:
        """Move, or send dead letters back, in a transaction."""
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        source, target = self.simulation.random.sample((*QUEUES, "in.dead"), 2)
        limit = self.simulation.random.choice((None, 1, 3))
        self.reference.keys[self.call] = tx.id
        queue, before = self.manager.queue(source), len(tx._work.batches)

        def move() -> int:
            if source == "in.dead":
                return queue.redrive(limit=limit, transaction=tx)
            return queue.move(target, limit=limit, transaction=tx)

        count, _ = self.ask(move, LeaseLost)
        if count is None:
            return
        moved = [self._holding(batch, inside=True) for batch in tx._work.batches[before:]]
        assert sum(len(holding.messages) for holding in moved) == count
        for holding in moved:
            intent.said[holding] = dict.fromkeys(holding.messages, model.MOVED)
            holding.free.clear()

    def do_send(self) -> None:
        queue, intent = self.queue(), Intent(self.name)
        self.reference.calls[self.call] = intent
        rows = self._rows(queue, intent)
        said = self.placing()
        sent, error = self.ask(lambda: queue.send(rows, **said), TransactionAborted)
        if sent:
            assert sent.count == len(rows)
            self._check_receipt(sent.receipt)
        elif error is not None and not isinstance(error, TransactionUnknown):
            self.reference.denied.add(self.call)

    def do_send_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        self._send_to(self.queue().name, tx, intent)

    def _send_to(self, name: str, tx: Any, intent: Intent) -> None:
        try:
            queue = self.manager.queue(name)
        except QueueNotFound:
            return
        aside = Intent(self.name)
        rows = self._rows(queue, aside)
        said = self.placing()
        sent, _ = self.ask(lambda: queue.send(rows, transaction=tx, **said))
        if sent:
            intent.sends.update(aside.sends)

    def _published_rows(self, intent: Intent) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Draw what is published, and how many of it each queue must get."""
        expected: Counter[str] = Counter()
        drawn = []
        for _ in range(self.simulation.random.randint(1, 4)):
            key = self.simulation.random.choice(list(WANTED))
            number = self.simulation.number()
            drawn.append({"n": number, "id": self._id(number), "k": key})
            for name in WANTED[key]:
                queue_id = self.manager.queue(name).info.queue_id
                copy = self.reference.copies[number, queue_id] = self.simulation.number()
                self.reference.place[copy] = ("staged",)
                intent.sends[copy] = queue_id
                expected[name] += 1
        return drawn, dict(expected)

    def do_publish(self) -> None:
        events, intent = self.manager.exchange("events"), Intent(self.name)
        self.reference.calls[self.call] = intent
        drawn, expected = self._published_rows(intent)
        said = self.placing()
        published, error = self.ask(
            lambda: events.publish(drawn, routing_key_column="k", **said), TransactionAborted
        )
        if published:
            assert (published.count, published.queues) == (len(drawn), expected)
            if expected:
                self._check_receipt(published.receipt)
        elif error is not None and not isinstance(error, TransactionUnknown):
            self.reference.denied.add(self.call)

    def do_publish_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        events, aside = self.manager.exchange("events"), Intent(self.name)
        drawn, _ = self._published_rows(aside)
        said = {**self.placing(), "keep_order": self.simulation.random.random() < 0.5}
        published, _ = self.ask(
            lambda: events.publish(drawn, routing_key_column="k", transaction=tx, **said)
        )
        if published:
            intent.sends.update(aside.sends)

    def do_bind(self) -> None:
        """Bind a queue by a key that nobody publishes with, or unbind it."""
        events = self.manager.exchange("events")
        change = self.simulation.random.choice((events.bind, events.unbind))
        self.ask(lambda: change("out", self.simulation.random.choice(("x", "y"))))

    # ------------------------------------------------------------------------- receiving

    def _holding(self, batch: Any, inside: bool) -> Holding:
        found = list(self.reference.ids(batch))
        assert len(batch) == len(found), "P2 a batch names a message twice"
        taken = self.reference.claimed_by[self.call]
        assert set(found) == taken or (self.doubtful and taken.issuperset(found)), "not as claimed"
        if self.simulation.random.random() < 0.1 and not self.simulation.fault_rate:
            carried = [row["n"] for row in batch.messages()]
            assert carried == self.reference.numbers(found)
        return Holding(batch, set(found), inside, set(found))

    def do_receive(self) -> None:
        queue = self.queue()
        limit = self.simulation.random.choice((1, 2, 5, 20))
        began_ms = self.runtime.now_ms()
        batch, _ = self.ask(lambda: queue.receive(limit), LeaseLost)
        if batch is None:
            return
        holding = self._holding(batch, inside=False)
        if holding.messages:
            self.leased.append(holding)
        elif self.quiet and not self.doubtful and began_ms == self.runtime.now_ms():
            me = self.runtime.consumer
            left = self.reference.ready(queue.info.queue_id, began_ms, consumer=me)
            assert not left, f"P2 nothing was received, and {left} are available"

    def do_receive_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        queue, limit = self.queue(), self.simulation.random.choice((1, 2, 5, 20))
        self.reference.keys[self.call] = tx.id
        batch, _ = self.ask(lambda: queue.receive(limit, transaction=tx), LeaseLost)
        if batch is not None:
            holding = self._holding(batch, inside=True)
            if any(holding.messages & other.messages for other in intent.said):
                del self.open[tx]  # it took over a lease of its own that it was to settle
            intent.said[holding] = {}

    # -------------------------------------------------------------------------- settling

    def _choose(self, holding: Holding) -> tuple[str, set[int], Any]:
        """Choose what becomes of which messages of a batch that are not settled yet."""
        rest = sorted(holding.free)
        kinds = list(KINDS)
        if holding.batch.claims[0].info.name not in QUEUES:  # it may have other columns by now
            kinds.remove("move")
        kind = self.simulation.random.choice(kinds)
        if len(rest) > 1 and self.simulation.random.random() < 0.5:
            rest = rest[: self.simulation.random.randint(1, len(rest) - 1)]
        if holding.messages.difference(rest):
            ids = self.reference.ids(holding.batch)
            named = {ids[message] for message in rest}
            # What was published to two queues and moved into one of them stands there twice.
            return kind, {m for m in holding.free if ids[m] in named}, sorted(named)
        return kind, set(rest), None

    def _settling(self, batch: Any, kind: str, matching: Any, **transaction: Any) -> Any:
        """Write down the call that settles messages so."""
        if kind == "move":
            here = batch.claims[0].info.name
            target = next(name for name in QUEUES if name != here)
            return lambda: batch.move(target, matching=matching, **transaction)
        if kind == "refuse":
            return lambda: batch.modify(
                matching=matching, delivery_failed=False, undeliverable_here=True, **transaction
            )
        return lambda: getattr(batch, kind)(matching=matching, **transaction)

    def do_settle(self) -> None:
        held = [h for h in self.leased if h.free]
        if not held:
            return self.do_receive()
        holding = self.simulation.random.choice(held)
        kind, chosen, matching = self._choose(holding)
        self.reference.settles[self.call] = dict.fromkeys(chosen, KINDS[kind])
        settle = self._settling(holding.batch, kind, matching)
        count, error = self.ask(settle, LeaseLost, TransactionMismatch)
        if error is None:
            assert count == len(chosen)
            assert self.reference.landed[self.call] == ["settle"], "P2 it was said to be settled"
            holding.free -= chosen
        else:
            if not isinstance(error, TransactionUnknown):
                self.reference.denied.add(self.call)
            self.leased.remove(holding)

    def do_settle_inside(self) -> None:
        tx, intent = self.active()
        held = [h for h in intent.said if h.inside and h.free] if intent else []
        if not held:
            return self.do_receive_inside()
        holding = self.simulation.random.choice(held)
        kind, chosen, matching = self._choose(holding)
        settle = self._settling(holding.batch, kind, matching, transaction=tx)
        count, error = self.ask(settle, LeaseLost)
        if error is None:
            assert count == len(chosen)
            holding.free -= chosen
            intent.said[holding].update(dict.fromkeys(chosen, KINDS[kind]))

    def do_keep(self) -> None:
        """Let the commit leave what is not spoken of with this client."""
        _, intent = self.active()
        held = [h for h in intent.said if h.inside and h.free] if intent else []
        if not held:
            return self.do_receive_inside()
        holding = self.simulation.random.choice(held)
        holding.keeping = True
        holding.batch.keep()

    def do_adopt(self) -> None:
        """Settle in a transaction what is held under a lease."""
        tx, intent = self.active()
        inside = {m for h in intent.said if h.inside for m in h.messages} if intent else set()
        held = [h for h in self.leased if h.free and h.messages.isdisjoint(inside)]
        if tx is None or not held:
            return self.do_receive()
        holding = self.simulation.random.choice(held)
        kind, chosen, matching = self._choose(holding)
        settle = self._settling(holding.batch, kind, matching, transaction=tx)
        count, error = self.ask(settle, LeaseLost)
        if error is None:
            assert count == len(chosen)
            holding.free -= chosen
            said = intent.said.setdefault(holding, {})
            said.update(dict.fromkeys(chosen, KINDS[kind]))

    def do_extend(self) -> None:
        held = [h for i in self.open.values() for h in i.said if h.inside and h.messages]
        held += [h for h in self.leased if h.free == h.messages]
        if held:
            holding = self.simulation.random.choice(held)
            self.ask(lambda: holding.batch.extend_lease(60), LeaseLost, TransactionMismatch)

    # ----------------------------------------------------------------------- transactions

    def do_begin(self) -> None:
        key = self.simulation.random.choice((None, self.simulation.key()))
        known = key in self.reference.committed
        tx = self.manager.transaction(key)
        _, error = self.ask(tx.begin)
        if error is not None:
            return
        if tx.already_committed and tx.id in self.keys_alone:
            return
        if tx.already_committed:
            assert self.reference.committed[tx.id][1] == tx.receipt.commit_seq
            assert self.queue().send([{"n": 0}], transaction=tx).count == 0
            self.reference.counts["already committed"] += 1
            return
        assert not known, f"P9 {key} was committed, and its client is not told"
        intent = Intent(self.name, tx.id)
        self.open[tx] = self.reference.intents[tx.attempt] = intent

    def do_commit(self) -> None:
        tx, intent = self.active(ending=True)
        if tx is None:
            return self.do_begin()
        receipt, error = self.ask(tx.commit, TransactionAborted, LeaseLost, TransactionMismatch)
        if receipt is not None and intent.expected():
            self._check_receipt(receipt)
            said = self.reference.decided.get(tx.attempt)
            assert said == model.COMMITTED, f"P9 {tx.id} is said to be committed: {said}"
        if receipt is not None:
            self.committed_with(tx)
        self._ended(tx, intent, error)

    def do_prepare(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        if self.refuses_to_prepare(tx):
            return
        if self.simulation.random.random() < 0.5:
            self._send_to(COMES_AND_GOES, tx, intent)
        self.reference.preparing.add(tx.attempt)
        _, error = self.ask(tx.prepare, TransactionAborted, LeaseLost, TransactionMismatch)
        if error is None:
            self.reference.preparing.remove(tx.attempt)
            assert tx.attempt in self.reference.prepared, "P5 it is said to be prepared"
        self._ended(tx, intent, error)

    def do_rollback(self) -> None:
        tx, intent = self.active(ending=True)
        if tx is None:
            return self.do_begin()
        _, error = self.ask(lambda: tx.rollback("no"))
        if error is None:
            self.reference.denied.add(tx.attempt)
        self._ended(tx, intent, error)

    def _ended(self, tx: Any, intent: Intent, error: Exception | None) -> None:
        """Believe what was said of a transaction, and forget it."""
        if (
            isinstance(error, ConnectionError | Busy | TransactionMismatch)
            and tx.status is Status.ACTIVE
        ):
            self.reference.denied.add(self.call)
            return
        if isinstance(error, TransactionAborted | LeaseLost):
            assert tx.status is Status.ROLLED_BACK
            self.reference.denied.add(tx.attempt)
        if isinstance(error, LeaseLost):
            self.reference.counts["fenced"] += 1
        for holding, said in intent.said.items():
            if tx.status is Status.ROLLED_BACK and not holding.inside:
                holding.free |= said.keys()
            elif tx.status is Status.COMMITTED and holding.keeping:
                holding.inside = holding.keeping = False
                self.leased.append(holding)
            elif tx.status is not Status.COMMITTED and holding in self.leased:
                self.leased.remove(holding)
        del self.open[tx]
        if isinstance(error, TransactionUnknown):
            if self.simulation.random.random() < 0.5:
                self._settle_doubt(tx)
            known = self.simulation.store.journal.known_version()
            outcome, failed = self.ask(lambda: self.manager.outcome(tx.id))
            late = self.simulation.store.journal.known_version() > known  # it landed just now
            if failed is None and self.quiet and not late:
                self._check_outcome(tx.id, outcome)

    def _settle_doubt(self, tx: Any) -> None:
        """Roll back what is in doubt: it is refused if it was committed after all."""
        _, error = self.ask(lambda: tx.rollback("in doubt"), TransactionFinished)
        committed = self.reference.decided.get(tx.attempt) == model.COMMITTED
        if error is None:
            assert not committed, f"P9 {tx.id} is said to be rolled back, and was committed"
            self.reference.denied.add(tx.attempt)
        elif isinstance(error, TransactionFinished):
            assert committed, f"P9 {tx.id} is said to be committed, and was not"

    def _check_receipt(self, receipt: Any) -> None:
        """P4: it happened during the call, and its number says so."""
        assert receipt.journal_version == receipt.commit_seq >> 10
        newest = len(self.simulation.store.journal.commits) - 1
        assert self.began < receipt.journal_version <= newest, f"P4 {receipt} since {self.began}"

    def _check_outcome(self, key: str, outcome: Any) -> None:
        if key in self.keys_alone:
            return
        if outcome.status is Status.COMMITTED:
            assert self.reference.committed[key][1] == outcome.receipt.commit_seq
        else:
            assert key not in self.reference.committed, f"P9 {key} was committed: {outcome}"
        assert (outcome.status is Status.PREPARED) == (key in self.reference.waiting())

    # --------------------------------------------------------------------------- anybody

    def do_decide(self) -> None:
        waiting = sorted(self.reference.waiting())
        key = self.simulation.random.choice(waiting or [self.simulation.key()])
        known = key in self.reference.prepared.values()
        if self.simulation.random.random() < 0.5:
            receipt, error = self.ask(
                lambda: self.manager.commit(key), TransactionFinished, TransactionMismatch
            )
            if receipt is not None:
                assert self.reference.committed[key][1] == receipt.commit_seq
        else:
            self.reference.explicit.add(key)
            _, error = self.ask(
                lambda: self.manager.rollback(key), TransactionFinished, TransactionMismatch
            )
        if isinstance(error, TransactionMismatch):
            assert not known, f"P5 {key} is prepared, and nobody knows"
        if error is None:
            self.reference.counts["decided"] += 1

    def do_recover(self) -> None:
        recovery, _ = self.ask(self.manager.recover)
        if recovery is not None and self.quiet:
            assert set(recovery.prepared) == self.reference.waiting(), "P5 listed are exactly those"
            self.reference.counts["recovered"] += len(recovery.aborted)

    def do_maintain(self) -> None:
        seconds = self.simulation.random.choice((0, 0, 5, LEASE_SECONDS, 1_000))
        days = self.simulation.random.choice((0, 0, 1))
        done, _ = self.ask(
            lambda: self.manager.maintain(
                transaction_seconds_max=seconds, payload_retention_days=days
            )
        )
        if done:
            self.reference.counts["archived"] += done.archived
            self.reference.counts["slices"] += done.slices

    def do_look(self) -> None:
        """P3: what can be seen is what was committed."""
        queue = self.queue()
        began_ms = self.runtime.now_ms()
        looked, _ = self.ask(lambda: (queue.depth(), queue.in_flight()))
        if looked and self.quiet and began_ms == self.runtime.now_ms():
            queue_id = queue.info.queue_id
            ready = self.reference.ready(queue_id, began_ms, twice=True)
            expected = (len(ready), self.reference.held(queue_id))
            assert looked == expected, f"P3 it looks like {looked}, and is {expected}"

    def do_outcome(self) -> None:
        key = self.simulation.key()
        outcome, _ = self.ask(lambda: self.manager.outcome(key))
        if outcome and self.quiet:
            self._check_outcome(key, outcome)

    def do_drain(self) -> None:
        source, target = self.manager.queue("in"), self.manager.queue("out")
        run_id = self.simulation.random.choice((None, "nightly"))
        if run_id:
            self.reference.keys[self.call] = f"{run_id}/"
        fails = self.simulation.random.random() < 0.3

        def handler(batch: Any, tx: Any) -> None:
            self.reference.keys[self.call] = f"{tx.id.rpartition('/')[0]}/"
            self.reference.follow()
            intent = self.reference.intents[tx.attempt] = Intent(self.name, tx.id)
            messages = set(self.reference.ids(batch))
            intent.said[Holding(batch, messages, True, messages)] = {}
            if fails:
                raise ValueError("bad row")
            rows = self._rows(target, intent)
            target.send(rows, transaction=tx)

        result, _ = self.ask(
            lambda: source.drain(
                handler,
                batch_size=self.simulation.random.choice((1, 3, 10)),
                run_id=run_id,
                until=self.simulation.random.choice(("start", "empty")),
                max_messages=self.simulation.random.choice((None, 5)),
                errors_max=2,
            ),
            HandlerFailed,
            LeaseLost,
        )
        if result:
            self.reference.counts["drained"] += result.messages


ACTIONS = {
    "send": 10,
    "send_inside": 10,
    "publish": 3,
    "publish_inside": 3,
    "bind": 0.5,
    "receive": 12,
    "receive_inside": 14,
    "settle": 12,
    "settle_inside": 6,
    "keep": 2,
    "adopt": 6,
    "extend": 2,
    "begin": 5,
    "commit": 12,
    "prepare": 4,
    "rollback": 6,
    "decide": 4,
    "recover": 2,
    "maintain": 3,
    "look": 4,
    "outcome": 2,
    "drain": 3,
    "purge": 0.3,
    "redrive": 1,
    "move": 0.5,
    "drop": 1,
    "alter": 0.5,
    "create": 2,
    "move_inside": 2,
}
ACTIONS |= fleeting.ACTIONS
_NAMES, _WEIGHTS = list(ACTIONS), list(ACTIONS.values())


class Simulation:
    """One store, some clients, one source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.main = greenlet.getcurrent()
        self.clock = Clock()
        self.late: list[Any] = []
        self.fault_rate = self.switch_rate = 0.0
        self._number = 0
        self.retry = RetryPolicy(chance.choice((2, 4, 12)), 3600, 0.0)
        self.skew_ms = chance.choice((0, 2_000, 1_000_000))
        self.store = MemoryStore(step=self._step)
        self.reference = Reference(self.store, chance.choice((1, 2, 4)), chance.choice(WINDOWS))
        if chance.random() < 0.5:
            self._read_ids_in_the_payload()
        self.clients: list[Client] = []
        self.lanes = chance.choice((1, 1, 2, 3))
        self._create()
        self.clients = [Client(self, f"consumer {n}") for n in range(chance.randint(2, 4))]
        self.fault_rate = chance.choice((0.0, 0.01, 0.05))
        self.switch_rate = chance.choice((0.0, 0.1, 0.4))

    def _read_ids_in_the_payload(self) -> None:
        """Let sends not write their ids beside their positions, as large ones do not."""
        stage = self.store.payload.stage
        self.store.payload.stage = lambda send, rows: [
            replace(run, ids=None) for run in stage(send, rows)
        ]

    def _create(self) -> None:
        creator = Client(self, "creator")
        width, creation.SLICE_WIDTH = creation.SLICE_WIDTH, self.random.choice((4, 20, 1_000))
        creation.create_store(creator.manager._client)
        creation.SLICE_WIDTH = width
        for name in (*QUEUES, COMES_AND_GOES):
            queue = self.create(creator, name, self.lanes, name == "in")
            if name == "in":
                self.reference.unique.add(queue.info.queue_id)
            self.reference.dead_of[queue.info.queue_id] = queue.info.dead_letter_id
        events = creator.manager.create_exchange("events", "topic", "n long, id long not null")
        for name, pattern in (("in", "*.in"), ("in", "#.both"), ("in", "to.both")):
            events.bind(name, pattern)
        for pattern in ("to.out", "to.both"):
            events.bind("out", pattern)
        creator.manager.create_queue(
            FLEETING,
            "n long",
            lanes=self.lanes,
            lease_seconds=LEASE_SECONDS,
            dead_letter=False,
            durable=False,
        )
        creator.manager.create_exchange(PASSING, "fanout", "n long").bind(FLEETING)
        self.reference.seen = len(self.store.journal.commits)

    def create(self, client: Client, name: str, lanes: int, dead_letter: bool) -> Any:
        return client.manager.create_queue(
            name,
            "n long, id long",
            lanes=lanes,
            group_by="n",
            lease_seconds=LEASE_SECONDS,
            deliveries_max=self.reference.deliveries_max,
            dead_letter=dead_letter,
            message_id="id",
            duplicate_window_seconds=self.reference.window_seconds if name == "in" else None,
            exist_ok=True,
        )

    def number(self) -> int:
        """Draw a number that was not drawn before."""
        self._number += 1
        return self._number

    def key(self) -> str:
        """Draw a transaction id that others draw too, for a while."""
        return f"k{self._number // 100}-{self.random.randrange(3)}"

    def _step(self, name: str) -> None:
        """Between two steps of a store call another client may act."""
        if greenlet.getcurrent() is not self.main and self.random.random() < self.switch_rate:
            self.main.switch()

    def pause(self) -> None:
        """A client waits before it tries again."""
        if greenlet.getcurrent() is not self.main:
            self.main.switch()

    def step(self) -> None:
        """Do one action, and whatever else goes on until it begins."""
        while True:
            client = self.random.choice(self.clients)
            self.around(client)
            if client.dead:
                continue
            if client.running is None:
                client.start(self.random.choices(_NAMES, _WEIGHTS)[0])
                self.reference.follow()
                return
            client.resume()
            self.reference.follow()

    def around(self, client: Client) -> None:
        """Time passes, late replies land, processes die and come back."""
        chance = self.random.random()
        if chance < 0.05:
            self.clock.advance(self.random.choice((1, 10, LEASE_SECONDS + 1, 500)))
        if self.late and chance < 0.2:
            self.land_late()
        if client.dead or chance > 0.995:
            if not client.dead and self.random.random() < 0.5:
                client.kill()
                self.reference.counts["killed"] += 1
            consumer = self.random.choice((client.runtime.consumer, f"consumer {self.number()}"))
            replaced = client.dead or len(self.clients) > 5
            if not replaced:
                self.reference.counts["zombies"] += 1
                self.clients.append(Client(self, consumer))
            elif client.dead:
                self.clients[self.clients.index(client)] = Client(self, consumer)

    def land_late(self) -> None:
        try:
            self.late.pop(self.random.randrange(len(self.late)))()
            self.reference.counts["landed late"] += 1
        except AppendConflict:
            pass

    def settle_down(self) -> None:
        """Let everybody finish, then find every message in exactly one place."""
        self.fault_rate = self.switch_rate = 0.0
        for client in self.clients:
            while client.running is not None:
                client.resume()
        while self.late:
            self.land_late()
        self.reference.follow()
        self.clock.advance(7 * 24 * 3600)
        last = Client(self, "the last one")
        for key in sorted(self.reference.waiting()):
            last.call = last.runtime.run_id = "decide at last"
            last.manager.commit(key)
        self.reference.follow()
        last.runtime.run_id = "recover at last"
        last.manager.recover()
        self.reference.follow()
        for client in self.clients:
            if not client.dead:
                client.find_fleeting()
        assert self.reference.closed == self.reference.dropped, "P5 nothing holds a drop back"
        queues = [
            n for n in (*QUEUES, "in.dead", COMES_AND_GOES) if n in last.manager.list_queues()
        ]
        left = {
            m
            for m, place in self.reference.place.items()
            if place[0] in ("ready", "held")
            and m not in self.reference.twice
            and not self.reference.expired(m, self.clock.now_ms)
            and m not in self.reference.purging
        }
        self.reference.disturbed.clear()
        received = [m for name in queues for m in self._empty(last, name)]
        self.reference.follow()  # a receive that finds only expired messages takes them out
        carried = sorted(self.reference.numbers(left))
        assert sorted(received) == carried, "P2 everything comes once"
        assert not [m for m, p in self.reference.place.items() if p[0] not in ("gone", "staged")]
        prepared, preparing = self.reference.prepared, self.reference.preparing
        explicit = self.reference.explicit | {prepared[a] for a in preparing & prepared.keys()}
        audit.check(recalling.everything(self.store).entries, explicit)
        last.runtime.run_id = "verify at last"
        proof = last.manager.history.verify()
        assert proof.ok, str(proof)

    def _empty(self, client: Client, name: str) -> list[int]:
        """Receive and accept a queue's messages until there are none."""
        queue, received = client.manager.queue(name), []
        while True:
            client.call = client.runtime.run_id = f"empty {name} {self.number()}"
            batch = queue.receive(1_000)
            if not len(batch) and queue.depth() == queue.in_flight() == 0:
                return received
            self.reference.follow()
            found = self.reference.ids(batch)
            self.reference.settles[client.call] = dict.fromkeys(found, model.ACCEPTED)
            if found:
                received += [row["n"] for row in batch.messages()]
                batch.accept()
            self.reference.follow()


# ------------------------------------------------------------------------------- the tests


def simulate(seed: int, steps: int = STEPS) -> Counter[str]:
    """Run one seed, and count what happened."""
    simulation = Simulation(random.Random(seed))
    try:
        for _ in range(steps):
            simulation.step()
        simulation.settle_down()
    except BaseException as error:
        error.add_note(f"Again with: simulate(seed={seed}, steps={steps})")
        raise
    return simulation.reference.counts


TOTALS: Counter[str] = Counter()
SEEN = (
    *("committed", "rolled_back", "prepared", "decided", "drained", "recovered", "dead letters"),
    *("take-overs", "tombstones", "zombies", "fenced", "kept", "killed", "crashes", "in doubt"),
    *("conflicts", "append lost", "append late", "landed late", "append conflict"),
    *("append fails", "append crash", "stage fails", "stage crash", "read fails", "read crash"),
    *("Busy", "LeaseLost", "TransactionAborted", "TransactionFinished", "TransactionMismatch"),
    *("HandlerFailed", "already committed", "expired", "purged", "moved", "moved inside"),
    *("published", "bound"),
    *("purged in flight", "refused"),
    "duplicates",
    *("dropped", "held back", "altered", "QueueClosed", "QueueNotFound"),
    *fleeting.SEEN,
    *("compacted", "horizons", "archived", "slices", "add crash", "remove crash", "remove fails"),
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken_by_any_seed(chunk):
    size = SEEDS // CHUNKS
    for seed in range(chunk * size, (chunk + 1) * size):
        TOTALS.update(simulate(seed))


@pytest.mark.parametrize("what", SEEN)
def test_everything_that_can_go_wrong_did(what):
    """A simulator that never meets a conflict or a crash proves nothing."""
    if not TOTALS:
        for seed in range(SEEDS // CHUNKS):
            TOTALS.update(simulate(seed))
    assert TOTALS[what] > 0


class QueueMachine(RuleBasedStateMachine):
    """The same clients, driven by Hypothesis, which shrinks what it finds."""

    @initialize(chance=st.randoms(use_true_random=False))
    def begin(self, chance):
        self.simulation = Simulation(chance)

    @rule(action=st.sampled_from(list(ACTIONS)), who=st.integers(0, 5))
    def act(self, action, who):
        clients = self.simulation.clients
        client = clients[who % len(clients)]
        if client.running is not None:
            client.resume()
        elif not client.dead:
            client.start(action)

    @rule(seconds=st.sampled_from([1, LEASE_SECONDS + 1]))
    def wait(self, seconds):
        self.simulation.clock.advance(seconds)

    @rule(who=st.integers(0, 5))
    def die_and_come_back(self, who):
        clients = self.simulation.clients
        client = clients[who % len(clients)]
        if not client.dead:
            client.kill()
        clients[clients.index(client)] = Client(self.simulation, client.runtime.consumer)

    @rule()
    def hear_late(self):
        if self.simulation.late:
            self.simulation.land_late()

    @invariant()
    def promises_hold(self):
        if hasattr(self, "simulation"):
            self.simulation.reference.follow()

    def teardown(self):
        if hasattr(self, "simulation"):
            self.simulation.settle_down()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=400 if LONG else 40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
