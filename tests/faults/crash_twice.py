"""One operation with two faults in it: what comes after a fault that it survived fails as well.

The question whether a lost append has landed is not answered; a second try lands late, beside
the first one; whoever rolls back what was interrupted is interrupted again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tests.faults import failures
from tests.faults.injection import WRITES, Crash, Fault, InjectorOfCall, faults_of
from tests.faults.matrix import (
    RECOVERIES,
    Case,
    act,
    aftermath,
    begin,
    cases,
    check,
    fresh,
    nth_of,
)
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation
from tests.faults.world import World
from txnqueue import QueueManager
from txnqueue.errors import TransactionUnknown, TxnQueueError

ENDS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
"""After these the client makes no more calls."""


@dataclass(frozen=True)
class Twice:
    """A fault at a call that writes, and another one so many calls after it."""

    first: Case
    after: int
    call: str
    fault: Fault
    recovery: str

    def __str__(self) -> str:
        second = f"{self.after} calls later {self.call} / {self.fault.value}"
        return f"{self.first.spoiled} / {second} / {self.recovery}"


class InjectorOfTwo(InjectorOfCall):
    """Spoils the nth call of a name, and another call, so many after it."""

    def __init__(
        self, name: str, nth: int, fault: Fault, after: int = -1, second: Fault | None = None
    ) -> None:
        super().__init__(name, nth, fault)
        self.spoiled_twice = False
        self._after, self._second = after, second
        self._first = 0

    @property
    def later(self) -> Sequence[str]:
        """The calls after the first one that was spoiled."""
        return self.calls[self._first + 1 :] if self.spoiled else ()

    def _is_turn_of(self, name: str) -> bool:
        if not self.spoiled:
            self._first = len(self.calls)
            return super()._is_turn_of(name)
        if self.spoiled_twice or len(self.later) != self._after:
            return False
        self.spoiled_twice, self.fault = True, self._second
        return True


def twice(operation: Operation) -> Iterator[Twice]:
    """List what can be spoiled after each fault of an operation that is survived."""
    dice = random.Random(operation.name)
    for first in _survived(operation):
        for after, call in enumerate(_later(first)):
            for fault in faults_of(call):
                yield Twice(first, after, call, fault, dice.choice(RECOVERIES))


@cache
def everything() -> list[Twice]:
    """List the same of all operations, in a shuffled order."""
    found = [one for operation in (*OPERATIONS, *IN_MEMORY) for one in twice(operation)]
    random.Random(0).shuffle(found)
    return found


def _survived(operation: Operation) -> Iterator[Case]:
    for case in cases(operation):
        if case.call in WRITES and case.recovery == "other" and case.fault not in ENDS:
            yield case


def _later(first: Case) -> Sequence[str]:
    """Find which calls are made after a fault."""
    world = fresh(unique=first.operation.unique)
    injector = _injector(first, world)
    _spoil(world, first.operation, injector)
    return injector.later


def _injector(
    first: Case, world: World, after: int = -1, second: Fault | None = None
) -> InjectorOfTwo:
    return InjectorOfTwo(first.call, nth_of(first, world.messages), first.fault, after, second)


def run(cell: Twice) -> None:
    """Spoil an operation twice in a new world, recover, and check every promise."""
    first = cell.first
    world = fresh(unique=first.operation.unique)
    injector = _injector(first, world, cell.after, cell.fault)
    told = _spoil(world, first.operation, injector)
    assert injector.spoiled_twice, f"{cell}: it made {injector.calls}"
    aftermath(world, injector, cell.recovery)
    check(world, first.operation, told, str(cell))


def _spoil(world: World, operation: Operation, injector: InjectorOfTwo) -> str:
    """Do an operation, and say what the client was told."""
    client = world.manager("A", injector)
    subject = begin(world, operation, client)
    injector.arm()
    told = _told(operation, client, subject)
    injector.disarm()
    return told


def _told(operation: Operation, client: QueueManager, subject: object) -> str:
    try:
        return act(operation, client, subject)
    except TransactionUnknown:
        return "unknown"
    except (KeyboardInterrupt, Crash):
        return "crashed"
    except (TxnQueueError, ConnectionError) as error:
        assert not failures.unfit(error), failures.unfit(error)
        return "crashed"  # as who was interrupted rolled back: of the work nothing is told
