"""Two operations, one after the other, each with a fault of its own, before anybody recovers.

The second client comes to what the first one left: claims of somebody who is gone, rows that no
entry names, a statement that is still on its way.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tests.faults.injection import WRITES, Injector, InjectorOfCall
from tests.faults.matrix import (
    RECOVERIES,
    Case,
    act,
    begin,
    calls_of,
    cases,
    drained,
    finish,
    judge,
)
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation
from tests.faults.world import World, check_exactly_once

OF_EACH = 5
"""So many of the faults of each ordered pair are drawn."""
FIRST, SECOND = "A", "A2"
HERE = tuple(one for one in (*OPERATIONS, *IN_MEMORY) if not one.unique)
"""Those that tell duplicates need another queue."""
AS_THEY_LEFT_IT = (
    *("give payload back", "forget history", "commit of a redrive", "redrive"),
    "commit and keep",
)
"""What does something, or so much, only where nobody else was: it comes first."""


SECOND_ONES = tuple(one for one in HERE if one.name not in AS_THEY_LEFT_IT)


@dataclass(frozen=True)
class Pair:
    """Two spoiled operations, and who recovers from both."""

    first: Case
    second: Case
    recovery: str

    def __str__(self) -> str:
        return f"{self.first.spoiled}; then {self.second.spoiled}; {self.recovery}"


@dataclass(frozen=True)
class _Done:
    case: Case
    told: str
    actor: str
    scenario: int
    began_at: int


@cache
def _spoiled(operation: Operation) -> Sequence[Case]:
    """List what can happen to the calls of an operation that write."""
    return [case for case in cases(operation) if case.call in WRITES and case.recovery == "other"]


@cache
def _calls(operation: Operation) -> Sequence[str]:
    return calls_of(operation, World.messages)


def _nth(case: Case) -> int:
    return _calls(case.operation)[: case.at].count(case.call)


def pairs() -> list[Pair]:
    """Draw some of each ordered pair, in a shuffled order: always the same."""
    dice = random.Random(0)
    found = [
        Pair(dice.choice(_spoiled(first)), dice.choice(_spoiled(second)), dice.choice(RECOVERIES))
        for first in HERE
        for second in SECOND_ONES
        for _ in range(OF_EACH)
    ]
    dice.shuffle(found)
    return found


def run(world: World, pair: Pair) -> bool:
    """Spoil two operations in a new world, recover, and check every promise.

    Returns:
        Whether the second fault happened: after the first one its client may do something else.
    """
    injectors: list[Injector] = []
    done = []
    for actor, case in ((FIRST, pair.first), (SECOND, pair.second)):
        injectors.append(InjectorOfCall(case.call, _nth(case), case.fault))
        done.append(_spoil(world, actor, case, injectors[-1]))
        world.scenario += 1  # what is prepared stays so
    assert injectors[0].spoiled, f"{pair}: the first one made {injectors[0].calls}"
    if pair.recovery != "two":
        _flush(injectors)
    world.ledger()
    _recover(world, pair.recovery)
    _flush(injectors)
    drained(world)
    world.helper("Z").recover()  # whoever applied a change confirms it by a next append
    ledger = world.ledger()
    for one in done:
        world.actor, world.scenario, world.began_at = one.actor, one.scenario, one.began_at
        operation = one.case.operation
        told = one.told if operation.key or operation.sends else "unknown"
        judge(world, ledger, operation, told, f"{pair}: {operation.name}")
    check_exactly_once(world, ledger, world.sent)
    return injectors[1].spoiled


def _spoil(world: World, actor: str, case: Case, injector: Injector) -> _Done:
    client = world.manager(actor, injector)
    subject = begin(world, case.operation, client)
    injector.arm()
    told = act(case.operation, client, subject)
    injector.disarm()
    return _Done(case, told, actor, world.scenario, world.began_at)


def _flush(injectors: Sequence[Injector]) -> None:
    for injector in injectors:
        injector.flush()


def _recover(world: World, recovery: str) -> None:
    """Let both clients recover at once, or after the leases another one or two at a time."""
    names = [FIRST, SECOND] if recovery == "same" else ["B", "C"][: 1 + (recovery == "two")]
    if recovery != "same":
        world.lease_over()
    finish(world, [world.manager(name, actor=f"{name} again") for name in names])
