"""Pairs of operations whose clients meet: one is held at a store call, the other runs to its end.

What must come of it is in ``pair_rules.py``; ``pair_board.py`` sets up what it is about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tests.faults.audit import Ledger, Standing
from tests.faults.injection import Injector
from tests.faults.pair_board import APART, SAME, Meeting, PairWorld, Side, act, build, new_world
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
    Outcome,
    Reached,
    outcomes,
)
from txnqueue.core import model

_IN_TURN = tuple(itertools.combinations_with_replacement(RULES, 2))
PAIRS = tuple(_IN_TURN[place * 31 % len(_IN_TURN)] for place in range(len(_IN_TURN)))
"""All 78, so that the first few of them are of all operations already."""
_ENDS = {model.ACCEPTED: ACCEPTED, model.MOVED: ASIDE, model.QUEUE_DROPPED: GONE}


class Hold(Injector):
    """Holds its client at its n-th call of all, and lets another one act."""

    def __init__(self, meeting: Meeting, act: Callable[[], None]) -> None:
        super().__init__()
        self.reached: Reached | None = None
        self._meeting, self._act = meeting, act
        self._entered = False

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, after the other client if it is time."""
        if not self.armed or len(self.calls) != self._meeting.at:
            return super().call(name, perform)
        if not self._meeting.inside:
            self.meet(name)
            return super().call(name, perform)
        self._entered = True
        try:
            return super().call(name, perform)
        finally:
            self._entered = False

    def step(self, name: str) -> None:
        """Let the other one act when an append has its snapshot, and has not landed."""
        if self._entered and name == "append lands":
            self.meet("append")

    def meet(self, name: str = "") -> None:
        """Let the other one act now, if it has not: before a call of this name."""
        if self.reached is None:
            landed = self.calls.count("append") - self._entered
            self.reached = Reached(len(self.calls), landed, planned=name == "append")
            self._act()


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

    holds = hold(meeting, meanwhile)
    if meeting.inside:
        world.store.journal.step = holds.step
    injectors = (holds, Injector()) if meeting.held == 0 else (Injector(), holds)
    sides += build(world, meeting, injectors)
    world.numbers(world.ledger())  # what a drop or maintenance removes is known before
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
    world.verify()
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


def deciding(relation: str) -> list[Meeting]:
    """List the meetings of every pair in which one is held just before its first append."""
    first: dict[tuple[object, ...], Meeting] = {}
    for one in meetings(relation):
        if one.call == "append":
            first.setdefault((one.pair, one.held), one)
    return list(first.values())


def everywhere() -> list[Meeting]:
    """List all meetings at store calls: those first that are held just before they would land."""
    first = [*deciding(SAME), *deciding(APART)]
    known = set(first)
    return first + [one for one in (*meetings(SAME), *meetings(APART)) if one not in known]


def in_appends() -> list[Meeting]:
    """List the meetings inside of appends, which have their snapshot: in memory only."""
    return [replace(one, inside=True) for one in everywhere() if one.call == "append"]
