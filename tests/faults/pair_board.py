"""The board on which two operations meet: who holds what, what waits, and what each one does.

Built once for the store in memory and the one on Delta. Each client has a manager, and on Delta a
store object, of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.audit import Ledger, Standing
from tests.faults.injection import FaultyStore, Injector
from tests.faults.pair_rules import HELD, PREPARED, RULES, Board, Move, Place, shared
from tests.faults.world import LEASE_SECONDS, RETRY, World
from txnqueue.errors import TxnQueueError
from txnqueue.manager import QueueManager
from txnqueue.reports.digest import HistoryDigest
from txnqueue.storage.store import DeltaStore
from txnqueue.testing import runtime

SAME, APART = "same", "apart"
HOLDERS = ("accept", "extend", "commit", "prepare", "recover", *[n for n in RULES if " pre" in n])
"""Which work on a message that somebody has by then."""
TAKERS = ("claim", "move", "drop")
"""Which find a message that waits."""
AGED_SECONDS = 7_200.0
OLD_SECONDS = 3_600.0
SIDES = ("A", "B")
_NO_NUMBER = 900


@dataclass(frozen=True)
class Meeting:
    """One case.

    Attributes:
        pair: The operations of the clients A and B.
        relation: ``same``: all leases are over, so that everybody may take everything, and where
            it makes sense both are about one message, one transaction or one id. ``apart``: all
            leases run, and a drop is of another queue; they share the lane.
        held: Which of the two is held, 0 or 1.
        at: Before which of its store calls; after all of them if it makes fewer.
        call: That call's name.
        inside: Whether it is held inside of that append, which has its snapshot, and not before.
    """

    pair: tuple[str, str]
    relation: str
    held: int
    at: int
    call: str
    inside: bool = False

    def __str__(self) -> str:
        held, other = self.pair[self.held], self.pair[1 - self.held]
        where = f"{'in' if self.inside else 'at'} {self.at} {self.call}"
        return f"{held} held {where}, {other}, {self.relation}"


@dataclass
class Side:
    """One client of a pair, and what it works on."""

    name: str
    does: str
    number: int | None
    manager: QueueManager
    rule: Move
    work: Any = None
    queue: Any = None


@dataclass
class PairWorld(World):
    """A world in which meetings take place, one after another.

    Attributes:
        spark: Spark's session, if it is on Delta.
        expected: The board of the meeting, as it is before.
        queue_ids: The queues' ids in this meeting.
        verified_each: After so many meetings the whole history is verified.
        digest: That of the history, when it was verified last.
    """

    spark: Any = None
    expected: Board = field(default_factory=Board)
    queue_ids: dict[str, str] = field(default_factory=dict)
    verified_each: int = 1
    digest: HistoryDigest | None = None

    def client(self, name: str, injector: Injector) -> QueueManager:
        """Start a client of a pair, which shares nothing with others but the tables."""
        if self.spark is None:
            return self.manager(name, injector)
        self.generation += 1
        made = runtime(self.clock, f"{name}#{self.generation}", RETRY)
        made.actor = made.consumer = name
        own: Any = FaultyStore(DeltaStore(self.spark, self.store.root), injector)
        return QueueManager(self.spark, "memory", store=own, runtime=made)

    def verify(self) -> None:
        """Verify the whole history, if it is time: what was there before is there unchanged."""
        history = self.helper("reader").history
        if self.digest is not None and self.scenario % self.verified_each == 0:
            verified = history.verify(digest=self.digest)
            assert verified.ok, f"after {self.verified_each} meetings: {verified}"
            self.digest = None
        if self.digest is None:
            self.digest = history.digest()

    def number_of(self, ledger: Ledger) -> dict[Standing, int]:
        """Read which number each posted message of the store carries."""
        carried = self.numbers(ledger)
        sends = {s: entry.body["send"] for s, entry in ledger.posted.items()}
        found = {s: carried.get((send, s[1]), -1) for s, send in sends.items()}
        return {s: number for s, number in found.items() if number >= self.base}


def new_world(spark: Any = None, root: str | None = None) -> PairWorld:
    """Make a world with its queues, and a past that maintenance can archive."""
    if spark is None or root is None:
        world = PairWorld(schema_of="out")
    else:
        store = DeltaStore(spark, root)
        world = PairWorld(store=store, spark=spark, schema_of="out", verified_each=10)
    for name in ("out", "aside", "in"):
        world.create(name, dead_letter=False)
    world.create_table()
    past = world.helper("creator").queue("in")
    past.send([{"i": _NO_NUMBER}])
    past.receive(1).accept()
    world.numbers(world.ledger())  # before its payload is removed
    world.verify()
    world.next()
    return world


# ------------------------------------------------------------------------------ the board


def build(world: PairWorld, meeting: Meeting, injectors: tuple[Injector, Injector]) -> list[Side]:
    """Set the board up: who holds what, and what waits."""
    world.clock.advance(AGED_SECONDS)
    same, pair = meeting.relation == SAME, meeting.pair
    board = world.expected = Board(apart=not same)
    board.rivals = same and set(pair) <= {"commit", "prepare"}
    one = same and shared(pair)
    world.create("in", dead_letter=False)
    sides = _sides(world, meeting, injectors, one=one)
    _let_hold(world, sides, one=one)
    waiting = sorted({s.number for s in sides if s.does in TAKERS and s.number is not None})
    if waiting:
        world.helper("creator").queue("in").send([{"i": n} for n in waiting])
        board.places.update({n: Place() for n in waiting})
    for side in sides:
        if side.does == "drop" and not same:
            world.create(f"side{world.suffix}", dead_letter=False)
            side.queue = side.manager.queue(f"side{world.suffix}")
        if side.does == "rollback prepared":
            world.explicit.add(side.work)
    _let_leases_end(world, same=same)
    world.queue_ids = {name: world.queue_id(name) for name in ("in", "aside", "out")}
    return sides


def _sides(
    world: PairWorld, meeting: Meeting, injectors: tuple[Injector, Injector], *, one: bool
) -> list[Side]:
    """Start both clients; with ``one`` they are about one and the same message."""
    sides = []
    for index, (name, does) in enumerate(zip(SIDES, meeting.pair, strict=True)):
        number: int | None = world.base + (1 if one else 1 + index)
        if does == "maintain" or (does == "drop" and meeting.relation == APART):
            number = None
        client = world.client(name, injectors[index])
        side = Side(name, does, number, client, Move(does, name, number))
        side.queue = client.queue("in")
        sides.append(side)
    return sides


def _let_hold(world: PairWorld, sides: list[Side], *, one: bool) -> None:
    """Let messages be sent and held, in the order of the lane."""
    holders = [side for side in sides if side.does in HOLDERS]
    if one:  # a recovery finds the other one's transaction, or both find one of somebody gone
        holders = sorted(holders, key=lambda side: side.does == "recover")[:1]
    if not holders:
        return
    world.helper("creator").queue("in").send([{"i": side.number} for side in holders])
    inside = not (world.expected.rivals and sides[0].does == sides[1].does)
    for side in holders:
        _hold(world, side, inside=inside)
    if one:
        for side in sides:
            side.work = holders[0].work


def _hold(world: PairWorld, side: Side, *, inside: bool) -> None:
    """Let a client, or one that is gone, take the first message of the lane.

    Two attempts of one id hold theirs under leases: the second one would take over from the first.
    """
    number = side.number
    assert number is not None
    key = f"K{'' if world.expected.rivals else side.name}{world.suffix}"
    place = Place(HELD, side.name)
    if side.does in ("accept", "extend"):
        side.work = side.queue.receive(1)
    elif side.does == "commit":
        tx = side.work = side.manager.transaction(key)
        place.inside = inside
        if inside:
            side.queue.receive(1, transaction=tx)
        else:
            side.queue.receive(1).accept(transaction=tx)
        tx.queue("out").send([{"i": number}])
        tx.table(world.table).append([{"i": number}])
    elif side.does == "prepare":
        tx = side.work = side.manager.transaction(key)
        side.queue.receive(1).accept(transaction=tx)
        tx.queue("out").send([{"i": number}])
    elif side.does == "recover":
        place.holder, place.inside, place.over = f"X{side.name}", True, True
        other = world.manager(place.holder)
        left = other.transaction(lease_seconds=1)
        other.queue("in").receive(1, transaction=left)
    else:
        place.state = PREPARED
        place.holder = None
        _prepare(world, side)
    world.expected.places[number] = place


def _prepare(world: PairWorld, side: Side) -> None:
    other = world.manager(f"P{side.name}")
    tx = other.transaction(f"P{side.name}{world.suffix}")
    other.queue("in").receive(1, transaction=tx)
    tx.queue("out").send([{"i": side.number}])
    tx.prepare()
    side.work = tx.id


def _let_leases_end(world: PairWorld, *, same: bool) -> None:
    world.clock.advance(LEASE_SECONDS + 1 if same else 2)
    for place in world.expected.places.values():
        place.over = place.over or (same and place.state == HELD)


# ----------------------------------------------------------------------------- operations


def act(side: Side) -> str:
    """Do a client's operation, and say what it was told."""
    try:
        ACTS[side.does](side)
    except TxnQueueError as error:
        return type(error).__name__
    return "ok"


ACTS: dict[str, Callable[[Side], object]] = {
    "send": lambda side: side.queue.send([{"i": side.number}]),
    "claim": lambda side: side.queue.receive(1),
    "accept": lambda side: side.work.accept(),
    "extend": lambda side: side.work.extend_lease(LEASE_SECONDS),
    "commit": lambda side: side.work.commit(),
    "prepare": lambda side: side.work.prepare(),
    "recover": lambda side: side.manager.recover(),
    "commit prepared": lambda side: side.manager.commit(side.work),
    "rollback prepared": lambda side: side.manager.rollback(side.work),
    "move": lambda side: side.queue.move("aside"),
    "maintain": lambda side: side.manager.maintain(
        transaction_seconds_max=OLD_SECONDS, payload_retention_days=0, vacuum=False
    ),
    "drop": lambda side: side.queue.drop(),
}
