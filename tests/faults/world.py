"""A store that several clients share, with one clock, and what a test may ask about it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.faults import files
from tests.faults.audit import Ledger, Message, Standing, accepted, check
from tests.faults.files import SPARK_EACH, Files
from tests.faults.injection import FaultyStore, Injector
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.settings import RetryPolicy
from txnqueue.manager import QueueManager
from txnqueue.storage.payload import Part
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, plain_schema, runtime

SCHEMA = "i long"
LEASE_SECONDS = 60.0
DELIVERIES_MAX = 3
WINDOW_SECONDS = 24 * 3600.0
RETRY = RetryPolicy(attempts_max=6, seconds_max=1e4, wait_seconds_first=0.0)


class Unmade(MemoryStore):
    """A store in memory that must be created first, as one on a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.made = False

    def exists(self) -> bool:
        return self.made

    def create(self) -> None:
        self.made = True


@dataclass
class World:
    """One store, one clock, any number of clients.

    A world is used for one scenario after another: ``next`` gives ids and numbers that no
    scenario had before. What its ``actor`` has written since it began is the scenario's operation.
    """

    store: Any = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Clock)
    explicit: set[str] = field(default_factory=set)
    prepared: set[str] = field(default_factory=set)
    generation: int = 0
    scenario: int = 0
    sent: int = 0
    messages: int = 6
    table: str = "lake/gold"
    known: list[Entry] = field(default_factory=list)
    carried: dict[Message, int] = field(default_factory=dict)
    helpers: dict[str, QueueManager] = field(default_factory=dict)
    sessions: dict[str, Any] = field(default_factory=dict)
    began_at: int = 0
    actor: str = "A"
    schema_of: str = "in"

    @property
    def suffix(self) -> str:
        """Tell the transaction ids of this scenario from those of others."""
        return f"-{self.scenario}"

    @property
    def base(self) -> int:
        """The first number that this scenario sends."""
        return self.scenario * 1_000

    def next(self) -> None:
        """Begin another scenario."""
        self.scenario += 1
        self.prepared.clear()

    def manager(
        self, name: str, injector: Injector | None = None, actor: str | None = None
    ) -> QueueManager:
        """Start a client; the same name again is the same client, started anew."""
        self.generation += 1
        made = runtime(self.clock, f"{name}#{self.generation}", RETRY)
        made.actor, made.consumer = actor or name, name
        store: Any = FaultyStore(self.store, injector) if injector else self.store
        return QueueManager(self.store.spark, "memory", store=store, runtime=made)

    def helper(self, name: str) -> QueueManager:
        """Give a client of the test's own, which lives as long as the world."""
        if name not in self.helpers:
            self.helpers[name] = self.manager(name)
        return self.helpers[name]

    def create(
        self, name: str, lanes: int = 1, dead_letter: bool = True, *, unique: bool = False
    ) -> None:
        """Create a queue of numbers; with ``unique`` it delivers each number once."""
        self.helper("creator").create_queue(
            name,
            SCHEMA,
            exist_ok=True,
            lanes=lanes,
            lease_seconds=LEASE_SECONDS,
            deliveries_max=DELIVERIES_MAX,
            dead_letter=dead_letter,
            message_id="i",
            duplicate_window_seconds=WINDOW_SECONDS if unique else None,
        )

    def create_table(self) -> None:
        """Create a user's table of numbers."""
        if self.store.spark is None:
            self.store.tables.create(self.table, plain_schema("i long"))
        else:
            self.table = f"{self.store.root}/lake/gold"
            self.store.spark.sql(f"CREATE TABLE delta.`{self.table}` (i long) USING delta")

    def table_numbers(self) -> list[int]:
        """Read the user's table, in memory in the order in which it was written."""
        if self.store.spark is None:
            rows = self.store.tables.rows(self.table)
            return rows.column("i").to_pylist() if rows.num_columns else []
        found = self.files.table_numbers()
        if self.asks_spark:
            frame = self.store.spark.read.format("delta").load(self.table)
            assert sorted(found) == sorted(row[0] for row in frame.collect())
        return found

    def rows_of(self, payload_id: str) -> int:
        """Count the rows that there are of an owner of payload."""
        if self.store.spark is None:
            sends = vars(self.store.payload)["_sends"].items()
            return sum(rows.num_rows for (owner, _), rows in sends if owner == payload_id)
        path = f"{self.store.root}/payload/{payload_id}"
        return int(self.store.spark.read.format("delta").load(path).count())

    def lease_over(self) -> None:
        """Turn the clock past every lease."""
        self.clock.advance(LEASE_SECONDS + 1)

    def entries(self) -> tuple[Entry, ...]:
        """Read everything: what is new since it was read last."""
        after = max((entry.version for entry in self.known), default=-1)
        if self.store.spark is None:
            new = files.entries_after(self.store, after)
        else:
            new = self.files.entries_after(after)
        if self.asks_spark:
            theirs = files.entries_after(self.store, after)
            assert sorted(new, key=repr) == sorted(theirs, key=repr), "Spark and the files differ"
        self.known += new
        return tuple(self.known)

    @cached_property
    def files(self) -> Files:
        """The files of a store on Delta, and of its user's table."""
        return Files(self.store.root, self.table)

    @property
    def asks_spark(self) -> bool:
        """Whether Spark is asked what the files have told."""
        return self.store.spark is not None and self.scenario % SPARK_EACH == 0

    def ledger(self) -> Ledger:
        """Replay everything and fail on a breach."""
        return check(self.entries(), self.explicit)

    def queue_id(self, name: str) -> str:
        """Find a queue's id."""
        return self.helper("reader").queue(name).info.queue_id

    def numbers(self, ledger: Ledger) -> dict[Message, int]:
        """Read what each posted message carries."""
        parts = {
            (entry.body["send"], entry.ranges): Part(
                entry.body["payload"],
                entry.body["slice"],
                entry.body["send"],
                entry.ranges,
                "",
                0,
                0,
                0,
                None,
                None,
            )
            for (_, offset), entry in ledger.posted.items()
            if entry.body.get("origin") is None and (entry.body["send"], offset) not in self.carried
        }
        if parts:
            schema = self.helper("reader").queue(self.schema_of).schema
            wanted = list(parts.values())
            if self.store.spark is None:
                found = files.carried(self.store, schema, wanted)
            else:
                found = self.files.carried(schema, wanted)
            if self.asks_spark:
                assert found == files.carried(self.store, schema, wanted)
            self.carried |= found
        return self.carried


def consume_and_produce(batch: Any, tx: Any) -> None:
    """The handler of all scenarios: for each message in, one of the same number out."""
    numbers = batch.to_arrow().column("i").to_pylist()
    tx.queue("out").send([{"i": i} for i in numbers])


def consume_and_change(batch: Any, tx: Any, table: str) -> None:
    """Besides, append the same numbers to a table of the user's."""
    consume_and_produce(batch, tx)
    tx.table(table).append([{"i": i} for i in sorted(batch.to_arrow().column("i").to_pylist())])


def consume_and_append_twice(batch: Any, tx: Any, table: str) -> None:
    """The same by two appends to the table."""
    consume_and_produce(batch, tx)
    numbers = sorted(batch.to_arrow().column("i").to_pylist())
    for part in (numbers[:1], numbers[1:]):
        tx.table(table).append([{"i": i} for i in part])


def check_table(world: World, ledger: Ledger) -> None:
    """Check that the user's table holds what was decided of it: all, once, in commit order.

    But for what an operator has waived.
    """
    changes = [e for e in world.known if "change" in e.body]
    decided = [e for e in changes if e.kind == model.CHANGE_DECIDED]
    ended = {tuple(e.body["change"]): e.kind for e in changes if e.kind in model.CHANGE_ENDINGS}
    left = {e.entry_id for e in decided} - ended.keys()
    assert not left, f"P7 nobody confirmed {left}"
    decided = [e for e in decided if ended[e.entry_id] != model.CHANGE_WAIVED]
    numbers, target = world.numbers(ledger), world.queue_id("out")
    expected = []
    for entry in sorted(decided, key=lambda e: e.place):
        assert entry.attempt in ledger.committed.values(), f"P3 {entry.attempt} did not commit"
        expected += sorted(
            numbers[posted.body["send"], standing[1]]
            for standing, posted in ledger.posted.items()
            if posted.attempt == entry.attempt and posted.queue_id == target
        )
    found = world.table_numbers()
    if world.store.spark is not None:  # a Delta table has no order
        expected, found = sorted(expected), sorted(found)
    assert found == expected, f"P1 the table holds {found}, not {expected}"


def drain(manager: QueueManager, name: str = "in") -> None:
    """Consume whatever can be received."""
    manager.queue(name).drain(consume_and_produce, batch_size=100, until="empty")


def check_unique(world: World, ledger: Ledger) -> None:
    """Check that of each number the first message was delivered, and no other."""
    numbers, source = world.numbers(ledger), world.queue_id("in")
    if world.helper("reader").queue("in").info.settings.duplicate_window_ms is None:
        return
    first: dict[int, Standing] = {}
    for standing, entry in sorted(
        ledger.posted.items(), key=lambda item: (item[1].place, item[0][1])
    ):
        if entry.queue_id != source or entry.body.get("origin") is not None:
            continue
        number = numbers[entry.body["send"], standing[1]]
        left_out = first.setdefault(number, standing) != standing
        said = standing in ledger.retired and ledger.retired[standing].kind == model.DUPLICATE
        assert said == left_out, f"{number} at {standing}: a duplicate {left_out}, and said {said}"


def check_exactly_once(world: World, ledger: Ledger, sent: int) -> None:
    """Check promises over values: what transactions accepted, they produced, and once.

    Args:
        world: The world, after everything was drained.
        ledger: What was just replayed of it.
        sent: How many messages must have come to an end in ``in``.
    """
    numbers = world.numbers(ledger)
    source, target = world.queue_id("in"), world.queue_id("out")
    consumed: dict[str | None, list[int]] = defaultdict(list)
    produced: dict[str | None, list[int]] = defaultdict(list)
    for standing, entry in ledger.retired.items():
        if entry.queue_id == source and entry.kind == model.ACCEPTED and entry.attempt:
            send = ledger.posted[standing].body["send"]
            consumed[entry.attempt].append(numbers[send, standing[1]])
    for (_, offset), entry in ledger.posted.items():
        if entry.queue_id == target:
            produced[entry.attempt].append(numbers[entry.body["send"], offset])
    for attempt, values in produced.items():
        assert sorted(values) == sorted(consumed[attempt]), f"P1 {attempt}: {values}"
    for attempt, values in consumed.items():
        assert sorted(values) == sorted(produced[attempt]), f"P1 {attempt}: {values}"
    twice = [m for m, n in accepted(ledger, source).items() if n > 1]
    assert not twice, f"P2 accepted twice: {twice}"
    check_unique(world, ledger)
    came_in = [s for s, e in ledger.posted.items() if e.queue_id == source]
    waiting = [s for s in came_in if s not in ledger.retired]
    assert not waiting, f"P2 still waiting after a drain: {waiting}"
    assert len(came_in) == sent, f"P2 {len(came_in)} messages came in, not {sent}"
    check_table(world, ledger)
