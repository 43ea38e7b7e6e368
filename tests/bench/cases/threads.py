"""Transactions of several threads: of one process, of two, and of one of version 0.1.0."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests import drivers
from tests.bench.case import Case, Comparison, Parts, Side
from tests.bench.worker import COUNT, LANES, Work
from tests.bench.world import World
from tests.stores.older_code import HistoryMissing, code_of

TARGETS = {1: 1.3, 4: 2.0, 8: 2.5}
"""Threads of this version, and how many times their rate one thread of the older one takes."""
SECONDS = 5.0
SECONDS_QUICK = 1.0
SECONDS_MAX = 300.0
"""A process that says nothing for so long is ended."""
OLDER = "1 thread of 0.1.0"
TWO = "2 processes, 4 threads each"
_BENCH = Path(__file__).resolve().parents[1]


class Process:
    """A process of its own, on the same Java, that works in windows."""

    def __init__(self, world: World, root: Path, threads: int, folder: Path) -> None:
        """Start it, and let it do a window that does not count."""
        self._process = drivers.start(
            "tests.bench.worker", root, threads, window(world),
            attach_to=world.spark, stdin=subprocess.PIPE, folder=folder,
        )  # fmt: skip
        self.fill()
        self.begin()
        self.end()

    def fill(self) -> None:
        """See to it that enough messages wait."""
        self._tell("fill")
        self._answer()

    def begin(self) -> None:
        """Let a window begin."""
        self._tell("work")

    def end(self) -> float:
        """Wait for its end, and tell what a transaction took."""
        return float(self._answer())

    def _tell(self, what: str) -> None:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        watch = threading.Timer(SECONDS_MAX, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            raise AssertionError(f"the process ended with {self._process.wait()}")
        return line


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"threads": lambda: _threads(world)}


def window(world: World) -> float:
    """Tell how many seconds threads work."""
    return SECONDS_QUICK if world.quick else SECONDS


def _threads(world: World) -> Case:
    work = Work(world.spark, str(world.path("store")))
    sides = {
        f"{n}": Side(f"{n} threads" if n > 1 else "1 thread", _here(world, work, n), work.fill)
        for n in TARGETS
    }
    sides[TWO] = _side(TWO, _two(world))
    title = f"receive {COUNT}, aggregate, commit: by threads, on {LANES} lanes"
    comparisons = [Comparison("1", f"{n}", at_least=True) for n in TARGETS if n > 1]
    try:
        sides[OLDER] = _side(OLDER, [_older(world)])
    except HistoryMissing:
        title += " (not beside 0.1.0, whose code is not in git's history here)"
    else:
        comparisons += [
            Comparison(OLDER, f"{n}", target, at_least=True) for n, target in TARGETS.items()
        ]
        comparisons.append(Comparison(OLDER, TWO, at_least=True))
    return Case("threads", title, sides, comparisons, rounds_max=5)


def _here(world: World, work: Work, threads: int) -> Callable[[], Parts]:
    return lambda: {"transaction": work.per_transaction(threads, window(world))}


def _two(world: World) -> Sequence[Process]:
    root = world.path("store")
    return [Process(world, root, 4, drivers.FOLDER) for _ in range(2)]


def _older(world: World) -> Process:
    """Start a process of 0.1.0, which works as those of this version do."""
    folder = world.path("code")
    code_of("0.1.0", folder)
    (folder / "tests/bench").mkdir()
    for name in ("__init__.py", "floors.py", "worker.py"):
        shutil.copy(_BENCH / name, folder / "tests/bench" / name)
    return Process(world, world.path("store"), 1, folder)


def _side(title: str, processes: Sequence[Process]) -> Side:
    """Make a side of processes that work at the same time."""

    def fill() -> None:
        for process in processes:
            process.fill()

    def run() -> Parts:
        for process in processes:
            process.begin()
        return {"transaction": 1 / sum(1 / process.end() for process in processes)}

    return Side(title, run, fill)
