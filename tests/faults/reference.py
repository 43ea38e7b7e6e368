"""What must be: a model that knows single messages only, and follows every commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.inside import claims_of
from txnqueue.core import model
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock

LEASE_SECONDS = 30.0
QUEUES = ("in", "out")
COMES_AND_GOES = "aside"
"""A queue that is dropped and created again."""
WANTED = {"to.in": ("in",), "to.out": ("out",), "to.both": QUEUES, "nobody": ()}
"""Which queues want what is published with a key: "in" is bound by patterns."""


@dataclass
class Hold:
    """Until when a claim is held: said by a clock, and when that was by the world's clock."""

    deadline: int
    began: int
    landed: int
    by: int

    def ends(self, now: int, taker_now: int) -> int:
        """When it ends by a taker's clock; what began in its future began when it landed.

        The taker may have seen it before its clock passed that.
        """
        seen = taker_now - (now - self.landed)
        if self.began <= seen:
            return self.deadline
        return min(self.by, seen) + self.deadline - self.began


@dataclass(eq=False)
class Taken:
    """A claim: who holds which messages until when."""

    attempt: str | None
    key: str | None
    actor: str
    holds: list[Hold]
    size: int
    former: int
    messages: set[int]
    bound: str | None = None
    counts: bool = True
    epoch: int = 0
    call: str = ""

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

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        deliveries_max: int,
        window_seconds: int | None,
        delay_seconds: int = 0,
    ) -> None:
        self.store, self.deliveries_max = store, deliveries_max
        self.delay_seconds, self.delay_seconds_max = delay_seconds, 3 * delay_seconds
        self.window_seconds = window_seconds
        self.window_ms = None if window_seconds is None else window_seconds * 1000
        self.unique: set[str] = set()
        self.ordered: set[str] = set()
        self.epochs: dict[tuple[str, str], int] = {}
        self.removed: set[str] = set()
        self.firsts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.twice: set[int] = set()
        self.seen = len(store.journal.commits)
        self.place: dict[int, tuple[Any, ...]] = {}
        self.copies: dict[tuple[int, str], int] = {}
        self.bound: set[str] = set()
        self.order: dict[int, tuple[int, ...]] = {}
        self.history: dict[int, tuple[int, int]] = {}
        self.failed: dict[int, int] = {}
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
        self.clock, self.followed_ms = clock, clock.now_ms
        self.preparing: set[str] = set()
        self.intents: dict[str, Intent] = {}
        self.calls: dict[str, Intent] = {}
        self.settles: dict[str, dict[int, str]] = {}
        self.landed: defaultdict[str, list[str]] = defaultdict(list)
        self.claimed_by: defaultdict[str, set[int]] = defaultdict(set)
        self.not_given: set[str] = set()
        self.snapshots: dict[tuple[str, str], int] = {}
        self.passed_over: defaultdict[str, set[int]] = defaultdict(set)
        self.ahead: set[str] = set()
        self.came_back: defaultdict[str, set[int]] = defaultdict(set)
        self.consumers: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.denied: set[str] = set()
        self.disturbed: dict[str, bool] = {}
        self.horizon, self.day = -1, (0, "")
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
        actor: str | None = None,
        *,
        twice: bool = False,
        own: Collection[str | None] = (),
    ) -> list[int]:
        """List what can be received at an instant, in delivery order of each lane.

        With ``twice`` also the duplicates that nobody has found yet. ``own`` are the attempts
        that are one with who receives.
        """
        consumer = None if actor is None else self.consumers[actor]
        found = [
            m
            for m, place in self.place.items()
            if place[:2] == ("ready", queue_id)
            and lane in (None, place[2])
            and self.window[m][0] <= at_ms
            and not self.waits(m, at_ms)
            and not self.expired(m, at_ms)
            and (twice or m not in self.twice)
            and consumer not in self.not_to[m]
        ]
        if queue_id in self.ordered and actor is not None:
            found = self._in_order(queue_id, at_ms, actor, own, found)
        return sorted(found, key=self.order.__getitem__)

    def _in_order(
        self,
        queue_id: str,
        at_ms: int,
        actor: str,
        own: Collection[str | None],
        found: list[int],
    ) -> list[int]:
        """Leave out what is behind a message that waits, and lanes that others work on.

        Transactions are others, also those of the actor; and what a call has claimed that did not
        give it to anybody, as its outcome was in doubt, is nobody's until the lease ends.
        """
        waiting: dict[int, tuple[int, ...]] = {}
        for m, place in self.place.items():
            if place[:2] == ("ready", queue_id) and self.waits(m, at_ms):
                first = waiting.setdefault(place[2], self.order[m])
                waiting[place[2]] = min(first, self.order[m])
        mine = self.consumers[actor], self.epochs.get((actor, queue_id))

        def is_others(claim: Taken) -> bool:
            if claim.attempt is not None:
                return claim.attempt not in own
            if claim.call in self.not_given:
                return True
            return (self.consumers[claim.actor], claim.epoch) != mine

        others = {
            lane
            for (name, lane, _), claim in self.claims.items()
            if name == queue_id and claim.messages and is_others(claim)
        }
        return [
            m
            for m in found
            if (lane := self.place[m][2]) not in others
            and (lane not in waiting or self.order[m] < waiting[lane])
        ]

    def expired(self, message: int, at_ms: int) -> bool:
        """Whether a message's time to live is over."""
        expires = self.window[message][1]
        return expires is not None and expires <= at_ms

    def waits(self, message: int, at_ms: int) -> bool:
        """Whether a message waits because its last delivery failed; a dead one does not."""
        (count, former), failed_ms = self.history[message], self.failed.get(message)
        dead = former == 1 and count >= self.deliveries_max and self.dead_of[self.place[message][1]]
        if failed_ms is None or not self.delay_seconds or dead or failed_ms > at_ms + 3_600_000:
            return False
        seconds = min(self.delay_seconds * 2 ** (count - 1), self.delay_seconds_max)
        return bool(failed_ms + seconds * 1000 > at_ms)

    def ids(self, batch: Any) -> dict[int, str]:
        """Find the messages of a batch, in delivery order, with their ids."""
        return {
            self.standing[position_id, offset]: f"{one.positions[position_id].send_id}:{offset}"
            for one in claims_of(batch)
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
                for mine, about in units(entries, metadata):
                    self._commit(mine, str(about["run_id"]), str(about["operation"]))
            except (AssertionError, KeyError) as breach:
                self.breach = AssertionError(f"{breach} at version {self.seen - 1}")
                raise self.breach from breach
        self.followed_ms = self.clock.now_ms

    def _commit(self, entries: Any, call: str, operation: str) -> None:
        assert call not in self.denied, f"P9 {operation} of {call} landed after it was denied"
        self.effects: defaultdict[str | None, dict[int, str]] = defaultdict(dict)
        self.deciding = {e.attempt: e.kind for e in entries if e.stream == e.transaction_key}
        self.commit, self.call, self.operation = entries, call, operation
        self.ready_before, self.by_commit = self._all_ready(), set[int]()
        for entry in entries:
            for hold in (hold for claim in self.claims.values() for hold in claim.holds):
                hold.by = min(hold.by, entry.recorded_at_ms)
            self._check_open(entry)
            before = self._all_ready()
            getattr(self, f"_{entry.kind}")(entry)
            if self.deciding.get(entry.attempt) == model.COMMITTED:
                self.by_commit |= self._all_ready() - before
        for message, place in self.place.items():
            assert place[0] != "moving", f"P1 {message} left {place} and arrived nowhere"
        if operation == "commit" and call in self.ahead:  # a handler may be receiving meanwhile
            self.came_back[call] = self._all_ready() - self.ready_before
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

    def _all_ready(self) -> set[int]:
        return {message for message, place in self.place.items() if place[0] == "ready"}

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
        self.dead_of[entry.queue_id] = entry.body["dead_letter"]

    def _payload_removed(self, entry: Any) -> None:
        payload_id = entry.body["payload"]
        assert payload_id in self.dropped - self.removed, f"P2 {payload_id} was removed"
        self.removed.add(payload_id)
        self.counts["payload removed"] += 1

    def _payload_listed(self, entry: Any) -> None:
        """It says nothing of any message."""

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
        elif intent and intent.actor != entry.actor and entry.stream not in self.explicit:
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
                self.failed.pop(message, None)
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
        self.epochs[entry.actor, entry.queue_id] = body["epoch"]
        if counts and not self.disturbed.get(self.call, True):
            own = (entry.attempt, *self.deciding)  # a drain commits a batch with the next claim
            first = self.ready(entry.queue_id, at_ms, entry.lane, entry.actor, own=own)
            upto = self.snapshots.get((self.call, entry.queue_id), entry.version)
            passed_over = self.passed_over[self.call]
            upto = min(upto, entry.version - 1)  # what the same append posts is not there yet
            passed_over = passed_over | {m for m in first if self.order[m][1] > upto}
            known = [message for message in first if message not in passed_over]
            if entry.queue_id not in self.ordered:
                # Planned beside a commit of the drain, it does not know what comes back by that.
                passed_over = passed_over | self.came_back[self.call]
                if self.operation == "commit":
                    # What it posts or gives back is not there yet; what the claim takes over is.
                    passed_over = passed_over | self.by_commit
            others = [message for message in first if message not in passed_over]
            taken = (first[: entry.count], known[: entry.count], others[: entry.count])
            assert self._messages(entry) in taken, f"{name} takes others than the first ones"
        size, owner = entry.count, (entry.attempt, entry.transaction_key, entry.actor)
        holds, epoch = [self._hold(entry)], body["epoch"]
        alone = body.get("size", size)
        claim = Taken(*owner, holds, alone, body["former"], set(), counts=counts, epoch=epoch)
        claim.call = self.call
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
                assert not self.waits(message, at_ms), f"{message} failed, and does not wait"
                assert not self.expired(message, at_ms), f"{message} has expired"
                assert history[1] == 0 or size <= self._at_most(*history), "it does not narrow"
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
        day = (entry.body.get("corrections", 0), entry.body["day"])
        # It stands where only the day is new.
        assert (entry.begun, day) > (self.horizon, self.day), "the horizon goes back"
        assert entry.begun >= self.horizon and day >= self.day
        self.horizon, self.day = entry.begun, day
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
        claim.holds.append(self._hold(entry))
        self.counts["kept"] += 1

    def _lease_extended(self, entry: Any) -> None:
        claim = self.claims.get((entry.queue_id, entry.claim_lane, entry.claim_sequence))
        if claim:
            claim.holds.append(self._hold(entry))

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
        ended_ms = self._ended(entry, entry.body.get("failed_at"), claim)
        for message in self._settled(entry, back=True):
            self._give_back(message, name, claim, bool(entry.body.get("counted")), ended_ms)
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
        ends = dict(zip(entry.body["supersedes"], entry.body.get("ended_at", ()), strict=True))
        self.counts["waits"] += bool(ends) and self.delay_seconds > 0
        for sequence in entry.body["supersedes"]:
            name = (entry.queue_id, entry.lane, sequence)
            claim = self.claims.pop(name, None)
            assert claim is not None, f"P2 {name} is taken over, and has ended"
            attempt = claim.holder
            void = claim.attempt is not None and attempt == claim.attempt and self._is_over(attempt)
            assert void or self._over(claim, entry), f"P6 {name} is taken over before its time"
            self.counts["void claims"] += void
            assert attempt is None or self._is_over(attempt), f"P2 {name}: {attempt} is undecided"
            ended_ms = self._ended(entry, ends[sequence], claim)
            for message in claim.messages:
                self._give_back(message, name, claim, True, ended_ms)
            self.counts["take-overs"] += 1

    def _ended(self, entry: Any, said: int | None, claim: Taken) -> int:
        """When a delivery ended: with its lease if others say so, or when it is written."""
        recorded_ms = int(entry.recorded_at_ms)
        # A lease by a clock that is ahead ends before its deadline, as the others see it.
        latest_ms = min(recorded_ms, max(hold.deadline for hold in claim.holds))
        assert said is None or said <= latest_ms, f"{said} is later than {latest_ms}"
        return recorded_ms if said is None else said

    def _give_back(
        self, message: int, name: Any, claim: Taken, counted: bool, ended_ms: int
    ) -> None:
        count, former = self.history[message]
        counted = counted and claim.counts
        self.history[message] = (count + 1, claim.size) if counted else (count, former)
        self.failed.pop(message, None)
        if counted:
            self.failed[message] = ended_ms
        self.place[message] = ("ready", *name[:2])
        if message in self.purging:
            self.purging.remove(message)
            self.place[message] = ("gone", "purged")
            self.counts["purged in flight"] += 1

    def _at_most(self, count: int, former: int) -> int:
        """How many may be delivered together after so many failed deliveries."""
        if count == 1:
            return former
        # Alone in the last delivery; with too few of them, tenths go on.
        return 1 if count == self.deliveries_max - 1 else max(1, former // 10)

    def _over(self, claim: Taken, entry: Any) -> bool:
        """Whether by the clock of who wrote it, or as its own past, a claim may be ended.

        Who only aborts a transaction does not read its lanes, and may miss an extension.
        """
        missed = self.operation == "recover" and self.disturbed.get(self.call, True)
        now_ms, taker_ms = self.clock.now_ms, entry.recorded_at_ms
        ends = [hold.ends(now_ms, taker_ms) for hold in claim.holds]
        deadline = min(ends) if missed else ends[-1]
        older_self = self.consumers[claim.actor] == self.consumers[entry.actor]
        same_key = claim.key is not None and claim.key.startswith(self.keys.get(self.call, "-"))
        return deadline <= taker_ms or (older_self and claim.actor != entry.actor) or same_key

    def _hold(self, entry: Any) -> Hold:
        at_ms = entry.recorded_at_ms
        return Hold(entry.body["deadline"], at_ms, self.followed_ms, at_ms)

    def _is_over(self, attempt: str) -> bool:
        """Whether an attempt is decided, or can never be."""
        below = self.begun[attempt] < self.horizon and attempt not in self.prepared
        return attempt in self.decided or below

    def _waits(self, attempt: str | None) -> bool:
        return attempt in self.prepared and attempt not in self.decided


def units(entries: Any, metadata: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Take a commit apart: the entries of each unit, and what the store's history says of it."""
    group = metadata.get("group")
    if group is None:
        return [(entries, metadata)]
    return [
        ([e for e in entries if e.ordinal == ordinal], {**metadata, **group[ordinal]})
        for ordinal in sorted({entry.ordinal for entry in entries})
    ]
