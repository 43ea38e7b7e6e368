"""Pairs of operations whose clients meet: one is held at a store call, the other runs to its end.

Built once for the store in memory and the one on Delta. Each client has a manager, and on Delta a
store object, of its own. What must come of it is in ``pair_rules.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.faults.audit import Ledger, Standing
from tests.faults.injection import FaultyStore, Injector
from tests.faults.pair_rules import (
    ACCEPTED,
    ASIDE,
    AVAILABLE,
    CLOSING,
    DROPPED,
    FINAL,
    GONE,
    HELD,
    OPEN,
    PREPARED,
    RULES,
    Board,
    Move,
    Outcome,
    Place,
    Reached,
    outcomes,
    shared,
)
from tests.faults.world import LEASE_SECONDS, RETRY, World
from txnqueue.core import model
from txnqueue.errors import TxnQueueError
from txnqueue.manager import QueueManager
from txnqueue.storage.store import DeltaStore
from txnqueue.testing import runtime

PAIRS = tuple(itertools.combinations_with_replacement(RULES, 2))
SAME, APART = "same", "apart"
HOLDERS = ("accept", "extend", "commit", "prepare", "recover", *[n for n in RULES if " pre" in n])
"""Which work on a message that somebody has by then."""
TAKERS = ("claim", "move", "drop")
"""Which find a message that waits."""
AGED_SECONDS = 7_200.0
OLD_SECONDS = 3_600.0
SIDES = ("A", "B")
_ENDS = {model.ACCEPTED: ACCEPTED, model.MOVED: ASIDE, model.QUEUE_DROPPED: GONE}
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
    """

    pair: tuple[str, str]
    relation: str
    held: int
    at: int
    call: str

    def __str__(self) -> str:
        other = self.pair[1 - self.held]
        return f"{self.pair[self.held]} held at {self.at} {self.call}, {other}, {self.relation}"


class Hold(Injector):
    """Holds its client before its n-th call of all, and lets another one act."""

    def __init__(self, at: int | None, act: Callable[[], None]) -> None:
        super().__init__()
        self.reached: Reached | None = None
        self._nth, self._act = at, act

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, after the other client if it is time."""
        if self.armed and len(self.calls) == self._nth:
            self.meet(name)
        return super().call(name, perform)

    def meet(self, name: str = "") -> None:
        """Let the other one act now, if it has not: before a call of this name."""
        if self.reached is None:
            self.reached = Reached(
                len(self.calls), self.calls.count("append"), planned=name == "append"
            )
            self._act()


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
    """A world in which meetings take place, one after another."""

    spark: Any = None
    expected: Board = field(default_factory=Board)
    queue_name: str = "in"
    queue_ids: dict[str, str] = field(default_factory=dict)

    def client(self, name: str, injector: Injector) -> QueueManager:
        """Start a client of a pair, which shares nothing with others but the tables."""
        if self.spark is None:
            return self.manager(name, injector)
        self.generation += 1
        made = runtime(self.clock, f"{name}#{self.generation}", RETRY)
        made.actor = made.consumer = name
        own: Any = FaultyStore(DeltaStore(self.spark, self.store.root), injector)
        return QueueManager(self.spark, "memory", store=own, runtime=made)

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
        world = PairWorld(store=DeltaStore(spark, root), spark=spark, schema_of="out")
    for name in ("out", "aside", "in"):
        world.create(name, dead_letter=False)
    world.create_table()
    past = world.helper("creator").queue("in")
    past.send([{"i": _NO_NUMBER}])
    past.receive(1).accept()
    world.numbers(world.ledger())  # before its payload is removed
    world.next()
    return world


# ------------------------------------------------------------------------------ the board


def build(world: PairWorld, meeting: Meeting, injectors: tuple[Injector, Injector]) -> list[Side]:
    """Set the board up: who holds what, and what waits."""
    world.clock.advance(AGED_SECONDS)
    world.expected = Board()
    same, pair = meeting.relation == SAME, meeting.pair
    one = same and shared(pair)
    board = world.expected
    board.apart = not same
    board.rivals = same and set(pair) <= {"commit", "prepare"}
    creator = world.helper("creator")
    world.create("in", dead_letter=False)
    sides = []
    for index, (name, does) in enumerate(zip(SIDES, pair, strict=True)):
        number: int | None = world.base + (1 if one else 1 + index)
        if does == "maintain" or (does == "drop" and not same):
            number = None
        client = world.client(name, injectors[index])
        side = Side(name, does, number, client, Move(does, name, number))
        side.queue = client.queue("in")
        sides.append(side)
    holders = [s for s in sides if s.does in HOLDERS]
    if one and holders:  # of one message, or of one transaction that the other is to abort
        holders = [s for s in holders if s.does != "recover"][:1] or holders[:1]
    if holders:
        creator.queue("in").send([{"i": s.number} for s in holders])
    for side in holders:
        _hold(world, side, sides, inside=not (board.rivals and pair[0] == pair[1]))
    if one:
        for side in sides:
            side.work = holders[0].work if holders and side.work is None else side.work
    waiting = sorted({s.number for s in sides if s.does in TAKERS and s.number is not None})
    if waiting:
        creator.queue("in").send([{"i": n} for n in waiting])
        board.places.update({n: Place() for n in waiting})
    if not same:
        for side in (s for s in sides if s.does == "drop"):
            world.create(f"side{world.suffix}", dead_letter=False)
            side.queue = side.manager.queue(f"side{world.suffix}")
    if "rollback prepared" in pair:
        world.explicit.update(s.work for s in sides if s.does == "rollback prepared")
    _let_leases_end(world, same=same)
    world.queue_ids = {name: world.queue_id(name) for name in ("in", "aside", "out")}
    return sides


def _hold(world: PairWorld, side: Side, sides: list[Side], *, inside: bool) -> None:
    """Let a client, or one that is gone, take the first message of the lane."""
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


# --------------------------------------------------------------------------------- running


def run(world: PairWorld, meeting: Meeting, hold: type[Hold] = Hold) -> str:
    """Let two operations meet, and compare everything with what must come of it.

    Args:
        world: Where; it is whole again afterwards.
        meeting: Who is held, and where.
        hold: What holds.

    Returns:
        What both were told.
    """
    told: dict[str, str] = {}
    sides: list[Side] = []

    def meanwhile() -> None:
        other = sides[1 - meeting.held]
        told[other.name] = act(other)

    holds = hold(meeting.at, meanwhile)
    injectors = (holds, Injector()) if meeting.held == 0 else (Injector(), holds)
    sides += build(world, meeting, injectors)
    world.numbers(world.ledger())  # what a drop or maintenance removes is known before
    digest = world.helper("reader").history.digest()
    held, other = sides[meeting.held], sides[1 - meeting.held]
    holds.arm()
    told[held.name] = act(held)
    holds.meet()
    holds.disarm()
    assert holds.reached is not None
    must = outcomes(world.expected, held.rule, holds.reached, other.rule)
    found = _found(world, meeting, (told[held.name], told[other.name]))
    assert found in must, f"{meeting}: {found}, not {must}"
    _settle(world, meeting, found)
    verified = world.helper("reader").history.verify(digest=digest)
    assert verified.ok, f"{meeting}: {verified}"
    world.next()
    return f"{found.told[0]}, {found.told[1]}"


def _found(world: PairWorld, meeting: Meeting, told: tuple[str, str]) -> Outcome:
    """Find where each message is, and what was sent and changed."""
    if "drop" in meeting.pair:
        world.helper("last").recover()
    ledger = world.ledger()
    numbers = world.number_of(ledger)
    out = [n for s, n in numbers.items() if _stands_in(world, ledger, s, "out")]
    table = [n for n in world.table_numbers() if n >= world.base]
    for once in (out, table):
        assert len(once) == len(set(once)), f"P1 {meeting}: {once} are there twice"
    assert f"side{world.suffix}" not in world.helper("last").list_queues(), "it was not dropped"
    closed = ledger.closed.get(world.queue_ids["in"])
    return Outcome(
        told,
        {n: seen(world, ledger, s) for s, n in numbers.items() if _stands_in(world, ledger, s)},
        set(out),
        set(table),
        {None: OPEN, model.QUEUE_CLOSING: CLOSING, model.QUEUE_DROPPED: DROPPED}[closed],
    )


def _stands_in(world: PairWorld, ledger: Ledger, standing: Standing, name: str = "in") -> bool:
    return ledger.posted[standing].queue_id == world.queue_ids[name]


def seen(world: PairWorld, ledger: Ledger, standing: Standing) -> str:
    """Say where a message is, as the journal has it."""
    if standing in ledger.retired:
        return _ENDS[ledger.retired[standing].kind]
    claim = ledger.held.get(standing)
    if claim is None:
        return AVAILABLE
    entry = ledger.claims[claim]
    owner = ledger.bound.get(claim, entry.attempt)
    if owner in ledger.prepared and owner not in ledger.decided:
        return PREPARED
    return f"{HELD} by {entry.body['consumer']}"


def _settle(world: PairWorld, meeting: Meeting, found: Outcome) -> None:
    """Bring everything to its end: nothing is lost, and nothing comes twice."""
    world.lease_over()
    last = world.helper("last")
    for key in last.recover().prepared:
        last.commit(key)
    if "drop" in meeting.pair:
        last.recover()
    for name in ("in", "aside"):
        if name in last.list_queues():
            queue = last.queue(name)
            while len(batch := queue.receive(100)):
                batch.accept()
    ledger = world.ledger()
    numbers = world.number_of(ledger)
    ends: dict[int, list[str]] = {n: [] for n in found.places}
    for standing, number in numbers.items():
        if not _stands_in(world, ledger, standing, "out"):
            ends[number].append(seen(world, ledger, standing))
    for number, states in ends.items():
        assert sorted(states) in _LAST, f"P2 {meeting}: {number} ended as {states}"
        before = found.places[number]
        assert before not in FINAL or before in states, f"P2 {meeting}: {number} was {before}"


_LAST = ([ACCEPTED], [GONE], sorted([ASIDE, ACCEPTED]))
"""How a message may have ended, in ``in`` and ``aside`` together."""


# ------------------------------------------------------------------------------- the cases


@cache
def calls_of(pair: tuple[str, str], relation: str, held: int) -> tuple[str, ...]:
    """Find which store calls an operation makes on its board, if nobody meets it."""
    world = new_world()
    injectors = Injector(), Injector()
    sides = build(world, Meeting(pair, relation, held, 0, ""), injectors)
    injectors[held].arm()
    told = act(sides[held])
    assert told == "ok", f"{pair} {relation}: alone {pair[held]} is told {told}"
    return tuple(injectors[held].calls)


def meetings(relation: str) -> Iterator[Meeting]:
    """List every pair, each of its operations held at each of its calls."""
    for pair in PAIRS:
        for held in (0,) if pair[0] == pair[1] else (0, 1):
            for at, call in enumerate(calls_of(pair, relation, held)):
                yield Meeting(pair, relation, held, at, call)


def everywhere() -> list[Meeting]:
    """List all meetings: those first that are held just before they would land."""
    found = [*meetings(SAME), *meetings(APART)]
    first: set[tuple[object, ...]] = set()

    def rank(one: Meeting) -> tuple[bool, bool]:
        what = one.pair, one.relation, one.held
        deciding = one.call == "append" and what not in first
        if deciding:
            first.add(what)
        return not deciding, one.relation == APART

    return sorted(found, key=rank)
