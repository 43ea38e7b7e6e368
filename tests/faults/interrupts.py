"""Interrupt an operation where Python lets it be: the client that was interrupted goes on.

Python looks for signals when a function begins, and after each call of a function that is
written in C; it is there that Ctrl-C, or the stop button of a notebook, raises its exception. The
store in memory is left alone: statements on Delta run in other threads, to their end.
"""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import txnqueue
from tests.faults import matrix
from tests.faults.audit import Ledger
from tests.faults.scenarios import IN_MEMORY, OPERATIONS, Operation
from tests.faults.world import World, consume_and_produce
from tests.inside import client_of
from txnqueue.manager import QueueManager
from txnqueue.transaction import Transaction

PACKAGE = str(Path(txnqueue.__file__).parent) + "/"
APART = (f"{PACKAGE}storage/", f"{PACKAGE}testing")
UNTOLD = ("__exit__", "<genexpr>")
"""The end of a block cannot know that it was interrupted as it began; and nobody is told of a
generator that is interrupted while it is thrown away."""
LONGEST_SECONDS = 1_000
UNHEARD = "the exception did not arrive"
"""Python ignores one that is raised in a generator which is thrown away; nobody was interrupted."""
_LINE = re.compile(r":\d+")


class Interrupt:
    """Interrupts this thread at the nth place at which the library can be interrupted."""

    def __init__(self, nth: int | None = None) -> None:
        """Count only, without a number."""
        self.places: list[str] = []
        self.at: str | None = None
        self._nth = nth
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = sys.getprofile()
        sys.setprofile(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        sys.setprofile(self._before)

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        begins = event == "call" and frame.f_lineno == frame.f_code.co_firstlineno
        if begins and frame.f_code.co_name in UNTOLD:
            return
        if not (begins or event == "c_return") or _is_apart(frame):
            return
        after = "" if begins else f" after {getattr(called, '__name__', called)}"
        where = frame.f_code.co_filename.removeprefix(PACKAGE)
        self.places.append(f"{where}:{frame.f_lineno}{after}")
        if len(self.places) == self._nth:
            sys.setprofile(self._before)
            self.at = self.places[-1]
            raise KeyboardInterrupt(self.at)


def _block(client: QueueManager, world: World) -> None:
    with client.transaction(f"T{world.suffix}") as tx:
        consume_and_produce(client.queue("in").receive(3, transaction=tx), tx)


def _attempts(client: QueueManager, world: World) -> None:
    for attempt in client.attempts(transaction_id=f"T{world.suffix}"):
        with attempt as tx:
            consume_and_produce(client.queue("in").receive(3, transaction=tx), tx)


def _leased(client: QueueManager, world: World) -> None:
    batch = client.queue("in").receive(3)
    with client.transaction(f"T{world.suffix}") as tx:
        consume_and_produce(batch, tx)
        batch.accept(transaction=tx)


def _committed(world: World, ledger: Ledger) -> bool:
    return f"T{world.suffix}" in ledger.committed


BLOCKS = [
    Operation(name, lambda world, client: None, act, _committed, key="T")
    for name, act in {"a block": _block, "attempts": _attempts, "a lease": _leased}.items()
]
ALL = [*OPERATIONS, *IN_MEMORY, *BLOCKS]


@cache
def cases() -> list[tuple[Operation, int]]:
    """List each place of each operation, in an order in which every part is a sample."""
    return [(one, nth) for one, nth, _ in _shuffled()]


@cache
def names() -> list[str]:
    """Name the cases: not by their lines, which a comment moves."""
    return [f"{one.name} / place {nth} {_LINE.sub('', where)}" for one, nth, where in _shuffled()]


def sought(name: str) -> str:
    """Say what a failure begins with: places move with the code, so all of an operation's do."""
    return f"{name.partition(' / place ')[0]} / place "


@cache
def _shuffled() -> list[tuple[Operation, int, str]]:
    found = [(one, nth, where) for one in ALL for nth, where in enumerate(places(one), 1)]
    random.Random(1).shuffle(found)
    return found


def _is_apart(frame: FrameType | None) -> bool:
    """Return whether this is within a call of the store."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(APART):
            return True
        frame = frame.f_back
    return False


def places(operation: Operation) -> list[str]:
    """List the places at which an operation can be interrupted."""
    world = matrix.fresh(unique=operation.unique)
    client = world.manager("A")
    subject = matrix.begin(world, operation, client)
    with Interrupt() as interrupt:
        operation.act(client, subject)
    return interrupt.places


def run(world: World, operation: Operation, nth: int) -> str:
    """Interrupt an operation, and check that its client goes on as if it had not been.

    Returns:
        What the client was told, or what became of its transaction; ``UNHEARD`` if the operation
        went on to its end, as if nothing had been.

    Raises:
        AssertionError: Something is not as it should be, at a place that this names; or the
            operation has no such place.
    """
    client = world.manager("A")
    subject = matrix.begin(world, operation, client)
    ended = list[None]()

    def act(client: QueueManager, subject: Any) -> None:
        operation.act(client, subject)
        ended.append(None)

    with Interrupt(nth) as interrupt:
        reported = matrix.act(replace(operation, act=act), client, subject)
    assert interrupt.at is not None, f"{operation.name} / place {nth} was not reached"
    if reported == "failed" and isinstance(subject, Transaction):
        # Its own handle rolled it back, prepared or not: of a prepare itself nothing was told.
        world.explicit.add(subject.id)
        reported = "crashed" if operation.name == "prepare" else reported
    case = f"{operation.name} / place {nth} {interrupt.at}"
    client_of(client).runtime.actor = "A again"  # tells what it does next from the operation
    try:
        client.queue("in").send([{"i": world.base + 900}])
        world.sent += 1
        matrix.finish(world, [client])
        seen = [client.queue("in").depth(), client.queue("in").in_flight()]
        fresh = world.manager("F").queue("in")
        assert seen == [fresh.depth(), fresh.in_flight()], f"{case}: it goes by {seen}"
        world.clock.advance(LONGEST_SECONDS)  # it may have extended a lease, and not know it
        matrix.check(world, operation, reported, case)
    except Exception as error:
        if case in str(error):
            raise
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return UNHEARD if ended else reported
