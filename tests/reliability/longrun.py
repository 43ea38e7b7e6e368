"""Does the numbers of a kind, one after the other, and writes down each as soon as it is done."""

from __future__ import annotations

import datetime
import itertools
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.reliability import results
from tests.reliability.kinds import Kind
from tests.reliability.results import Again, Failure, Listed, Run
from tests.reliability.session import Session

LINE_MAX = 300
AHEAD = 2
"""So many numbers for each that is done at the same time are begun before the first is written."""


class Done(NamedTuple):
    """What came of a number: how many cases it was, what happened, and what it failed with."""

    n: int
    counts: Counter[str]
    failed: str | None


class Stop:
    """Whether somebody wants a long run to end: by Ctrl-C, or by a signal.

    It ends after the number that it is at: an interrupt in the middle of one is what some of the
    cases are about, and would be taken for theirs.
    """

    def __init__(self) -> None:
        """Wait for signals."""
        self.wanted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._want)

    def _want(self, number: int, frame: object) -> None:
        self.wanted = True
        print("it ends after this number; what is done is written, so that it can be killed")


def run(
    kind: Kind,
    session: Session,
    seconds: float,
    folder: Path = results.FOLDER,
    stop: Stop | None = None,
) -> Run:
    """Go on with a kind where the last run of it ended, until the time is over.

    A list of cases ends with its last one, and one that has changed begins with its first one: if
    lists of the kind are kept, with the first one that has not passed yet. Whatever stops it, what
    is done is written.

    Args:
        kind: What is run.
        session: What it works with.
        seconds: For how long; one number is done at least.
        folder: Where the result files are.
        stop: Ends it before.

    Returns:
        What was done.
    """
    before = results.read(kind.name, folder)
    listed = kind.listed()
    # What is drawn from a list goes on: from its start it would be drawn again, which tests were
    # written for since.
    sampled = bool(kind.found)
    first = results.next_number(before) if sampled else results.first_number(before, listed)
    of = listed.of
    known = _known(kind, listed, before, folder) if kind.lists_kept else frozenset()
    if known and of and not set(range(first % of)) <= known:
        first = -(-first // of) * of  # some of those before have not passed: they come first
    found = Run(kind.name, now(), commit(), first, first, of, fingerprint=listed.fingerprint)
    began = written = time.monotonic()
    end = None if of is None else (first // of + 1) * of

    def over() -> bool:
        return time.monotonic() - began >= seconds or (stop is not None and stop.wanted)

    def wanted(number: int) -> bool:
        return of is None or number % of not in known

    for number, (n, counts, failed) in _each(kind, session, _numbers(first, end, wanted, over)):
        ended = time.monotonic()
        found.leave_out(number)
        found.add(n, counts, ended - written, failed)
        written = ended
        results.write(kind.name, [*before, found], folder)
    if end is not None and not any(map(wanted, range(found.next, end))):
        found.leave_out(end)
        results.write(kind.name, [*before, found], folder)
    return found


def _known(kind: Kind, listed: Listed, before: list[Run], folder: Path) -> Set[int]:
    """Find which cases passed, in lists of now or before, by their places: if all, all are due."""
    assert kind.names is not None, "what is known by no name cannot be known again"
    results.keep_list(kind.names(), folder)
    passed = results.passed(before, listed, frozenset(), folder).keys()
    return passed if len(passed) != listed.of else frozenset()


def _numbers(
    first: int, end: int | None, wanted: Callable[[int], bool], over: Callable[[], bool]
) -> Iterator[int]:
    """Count those that are wanted, until the time is over or to the end of a list."""
    for number in itertools.count(first) if end is None else range(first, end):
        if not wanted(number):
            continue
        yield number
        if over():
            return


def _each(kind: Kind, session: Session, numbers: Iterable[int]) -> Iterator[tuple[int, Done]]:
    """Do numbers, in threads if several are done at the same time, and tell of each in order."""
    if kind.side_by_side == 1:
        yield from ((number, _one(kind, session, number)) for number in numbers)
        return
    idle: SimpleQueue[Session] = SimpleQueue()
    for _ in range(kind.side_by_side):
        idle.put(session.beside())

    def do(number: int) -> Done:
        mine = idle.get()
        try:
            return _one(kind, mine, number)
        finally:
            idle.put(mine)

    with ThreadPoolExecutor(kind.side_by_side) as threads:
        begun: deque[tuple[int, Future[Done]]] = deque()
        for number in numbers:
            begun.append((number, threads.submit(do, number)))
            if len(begun) == AHEAD * kind.side_by_side:
                earliest, one = begun.popleft()
                yield earliest, one.result()
        yield from ((number, one.result()) for number, one in begun)


def run_again(kind: Kind, session: Session, folder: Path = results.FOLDER) -> list[Again]:
    """Do again what has failed in a kind, and write down what comes of it.

    Returns:
        What was done, for each failure.
    """
    done = []
    for run in results.read(kind.name, folder):
        for failure in run.failures:
            done.append(_repeated(kind, session, failure))
            results.add_again(done[-1], folder)
    return done


def _repeated(kind: Kind, session: Session, failure: Failure) -> Again:
    """Do a case again, and after those that would be in its store before it."""
    began, numbers = now(), kind.numbers_of(failure)
    said = [_in_its_store(kind, session, number) for number in numbers]
    failed = [one.failed for one in said if one.failed is not None]
    done = sum(one.n > 0 for one in said)
    shares = kind.in_one_store > 1
    before = max((len(kind.before(number)) for number in numbers), default=0) if shares else None
    return Again(
        kind.name, failure.number, began, commit(), done, failed, found=len(numbers), before=before
    )


def _in_its_store(kind: Kind, session: Session, number: int) -> Done:
    """Do a number in a store that is as old as it may have been."""
    if kind.in_one_store == 1:
        return _one(kind, session, number)
    mine = session.beside()  # which has no store yet
    for other in kind.before(number):
        done = _one(kind, mine, other)
        if done.failed is not None:  # and its store is gone with it
            return done._replace(failed=f"one before it: {done.failed}"[:LINE_MAX])
    return _one(kind, mine, number)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:LINE_MAX]


def now() -> str:
    """Tell the time."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")


def _one(kind: Kind, session: Session, number: int) -> Done:
    try:
        n, counts = kind.run(session, number)
    except Exception as error:
        return Done(1, Counter(), _line(error))
    return Done(n, counts, None)


def commit() -> str:
    """Name the commit that is checked out, with a ``+`` if something of the code differs."""
    git = ["git", "-C", str(Path(__file__).parent)]
    name = subprocess.run(
        [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    where = [":/txnqueue", ":/tests"]
    differs = subprocess.run(
        [*git, "diff", "--quiet", "HEAD", "--", *where], capture_output=True, check=False
    ).returncode
    return (name or "unknown") + ("+" if differs else "")
