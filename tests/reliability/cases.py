"""What the long runs do for one number of each kind."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.delta import failing_storage, s3_kills
from tests.delta import hostile_frames as frames
from tests.delta import test_crash_on_delta as on_delta
from tests.delta import test_twin as twin
from tests.delta import test_two_drivers as two_drivers
from tests.delta.hdfs import MiniHdfs
from tests.delta.s3 import BUCKET, S3Server, settings
from tests.delta.storage_calls import compiled
from tests.faults import crash_pairs as spoiled_pairs
from tests.faults import crash_twice as spoiled_twice
from tests.faults import interrupts, matrix
from tests.faults import test_interleavings as interleavings
from tests.faults.scenarios import EVERYTHING
from tests.faults.simulation import simulate
from tests.faults.world import World
from tests.histories import checker, runs
from tests.histories.history import History
from tests.reliability.session import Session
from tests.stores import test_damage
from txnqueue import QueueManager
from txnqueue.storage.store import DeltaStore

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "build" / "reliability"
"""Where the histories are kept in which something was found."""
PYTEST_SECONDS = 3_600
UNKNOWN_MAX = 0.1
KILLS_EACH, SENDS_EACH = 10, 20
CELLS_IN_ONE_STORE = 20
"""So many cells are run in one store, before its journal has grown too long."""
CALLS_MAX = {
    "send": (12, 8, 12, 24),
    "send a frame": (14, 10, 14, 42),
    "receive, send and commit": (14, 8, 18, 46),
    "change a table": (14, 8, 38, 42),
    "drain and send": (14, 8, 12, 24),
    "accept a batch": (10, 8, 10, 46),
    "create a new queue": (8, 6, 8, 4),
    "maintain": (70, 46, 108, 580),
}
"""A quarter more creates, renames, lists and opens than each operation was seen to make."""
CELLS_OF_AN_OLD_STORE = 30
"""After so many cells an operation makes all its calls: maintenance opens 160 files in a new store,
and 270 after it has worked on it seven times."""
VERIFIED_EVERY = 5
"""After so many cells of maintenance all is verified: that takes longer than a cell."""
CALLS_SHUFFLED = 160
"""So many of each kind of maintenance, and 40 of the others, are run in a shuffled order."""
CALLS_TOGETHER = 195
"""So many calls of all operations come first, then all others but those of maintenance."""
CALLS_BOTH_WAYS = 1_032
"""So many come before the lists and opens that only fail: one that has been done and says that it
failed leaves nothing else behind. The calls that write come first among these."""


# ----------------------------------------------------------------------------- histories


def _checked(name: str, number: int, history: History) -> tuple[int, Counter[str]]:
    found = checker.check(history)
    if found:
        FOUND.mkdir(parents=True, exist_ok=True)
        (FOUND / f"{name}-{number}.json").write_text(history.dumped(), encoding="utf-8")
        raise AssertionError("; ".join(f"{one.name}: {one.what}" for one in found))
    counts = checker.figures(history)
    if counts["info"] >= UNKNOWN_MAX * counts["operations"]:  # too little is known of it
        return 0, Counter({"void runs": 1})
    kills = Counter({"kills": history.about.get("kills", 0)})
    wanted = ("operations", "info", "committed", "take-overs", "versions read again", "messages")
    return 1, Counter({what: counts[what] for what in wanted}) + kills


def histories_memory(_: Session, number: int) -> tuple[int, Counter[str]]:
    return _checked("histories-memory", number, runs.in_memory(number))


def histories_threads(session: Session, number: int) -> tuple[int, Counter[str]]:
    history = runs.on_delta_by_threads(session.spark, session.folder() / "store", number)
    return _checked("histories-threads", number, history)


def histories_processes(session: Session, number: int) -> tuple[int, Counter[str]]:
    history = runs.on_delta_by_processes(session.spark, session.folder() / "store", number)
    return _checked("histories-processes", number, history)


# -------------------------------------------------------------------------------- faults


@cache
def cells() -> list[matrix.Case]:
    return [case for operation in EVERYTHING for case in matrix.cases(operation)]


def crash_matrix(_: Session, number: int) -> tuple[int, Counter[str]]:
    case = cells()[number % len(cells())]
    try:
        matrix.run(matrix.fresh_for(case.operation), case)
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return 1, Counter({case.fault.value: 1})


@cache
def ordered_pairs() -> list[spoiled_pairs.Pair]:
    return spoiled_pairs.pairs()


def crash_pairs(_: Session, number: int) -> tuple[int, Counter[str]]:
    pair = ordered_pairs()[number % len(ordered_pairs())]
    try:
        both = spoiled_pairs.run(matrix.fresh(), pair)
    except Exception as error:
        raise AssertionError(f"{pair}: {type(error).__name__}: {error}") from error
    if not both:  # it is the crash matrix that has one fault
        return 0, Counter({"the second fault did not happen": 1})
    return 1, Counter(case.fault.value for case in (pair.first, pair.second))


def crash_twice(_: Session, number: int) -> tuple[int, Counter[str]]:
    every = spoiled_twice.everything()
    cell = every[number % len(every)]
    try:
        spoiled_twice.run(cell)
    except Exception as error:
        raise AssertionError(f"{cell}: {type(error).__name__}: {error}") from error
    return 1, Counter((cell.first.fault.value, cell.fault.value))


def interrupts_in_memory(_: Session, number: int) -> tuple[int, Counter[str]]:
    operation, nth = interrupts.cases()[number % len(interrupts.cases())]
    told = interrupts.run(matrix.fresh(unique=operation.unique), operation, nth)
    if told == interrupts.UNHEARD:
        return 0, Counter({told: 1})
    return 1, Counter({"not told" if told == "crashed" else f"told {told}": 1})


@cache
def cells_on_delta() -> list[matrix.Case]:
    """List the cells, shuffled: those that were run are of all operations, whenever it stops."""
    found = on_delta.everything()
    random.Random(0).shuffle(found)
    return found


def crash_matrix_delta(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Run a cell in the store of the last ones of its kind, unless they failed or were many."""
    case = cells_on_delta()[number % len(cells_on_delta())]
    worlds = session.kept.setdefault("worlds", {})
    kind = on_delta.kind_of_world(case.operation)
    world = worlds.pop(kind, None) or _new_world(session, case)
    try:
        try:
            matrix.run(world, case)
        except matrix.NoSuchCall:
            world = _new_world(session, case)
            matrix.run(world, case)
    except Exception as error:  # what it left behind is not for the next one
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    if world.scenario < CELLS_IN_ONE_STORE:
        worlds[kind] = world
    return 1, Counter({case.fault.value: 1})


def _new_world(session: Session, case: matrix.Case) -> World:
    return on_delta.new_world(DeltaStore(session.spark, str(session.folder())), case.operation)


def simulator(_: Session, number: int) -> tuple[int, Counter[str]]:
    counts = simulate(number)
    wanted = ("committed", "prepared", "take-overs", "crashes", "killed", "in doubt", "conflicts")
    return 1, Counter({what: counts[what] for what in wanted})


def names_of_programs() -> list[str]:
    """Name the programs whose interleavings are explored."""
    return [*interleavings.TOGETHER, *interleavings.DROPPING]


def explored(_: Session, number: int) -> tuple[int, Counter[str]]:
    """Explore a program, with all faults."""
    name = names_of_programs()[number % len(names_of_programs())]
    try:
        if name in interleavings.DROPPING:
            found = interleavings.dropping(name)
        else:
            found = interleavings.together(name, everything=True)
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    return 1, Counter({"states": found.states, "paths": found.paths})


def twins(session: Session, number: int) -> tuple[int, Counter[str]]:
    return 1, _steps(twin.compare(session.spark, session.folder() / "store", number))


def wrong_clocks(session: Session, number: int) -> tuple[int, Counter[str]]:
    folder = session.folder() / "store"
    return 1, _steps(twin.compare_with_wrong_clocks(session.spark, folder, number))


def _steps(told: Counter[str]) -> Counter[str]:
    """Count the steps, the errors among them, and what went wrong with the clocks."""
    refused = sum(count for what, count in told.items() if what[0].isupper())
    counts = {"steps": twin.STEPS, "steps that were refused": refused}
    return Counter({**counts, "jumps back": told["jumps back"]})


@cache
def failing_calls() -> list[failing_storage.Cell]:
    """List first the first calls, then the second ones: of all operations, in a shuffled order.

    Maintenance makes most of the calls: after a while it waits for the others to be complete.
    """

    def cells(what: str, numbers: Iterable[int]) -> list[failing_storage.Cell]:
        return [
            failing_storage.Cell(what, kind, nth, after)
            for nth in numbers
            for kind in failing_storage.KINDS
            for after in (False, True)
        ]

    def is_made(cell: failing_storage.Cell) -> bool:
        most = dict(zip(failing_storage.KINDS, CALLS_MAX[cell.operation], strict=True))
        return cell.nth <= most[cell.kind]

    found, more = list[failing_storage.Cell](), list[failing_storage.Cell]()
    for what, most in CALLS_MAX.items():
        # What is shuffled stays the same: runs go on where the last one ended.
        shuffled = CALLS_SHUFFLED if what == "maintain" else 40
        found += cells(what, range(1, shuffled + 1))
        more += cells(what, range(shuffled + 1, max(most) + 1))
    random.Random(0).shuffle(found)
    listed = sorted(filter(is_made, [*found, *more]), key=lambda cell: cell.nth)
    later = sorted(listed[CALLS_TOGETHER:], key=lambda cell: cell.operation == "maintain")
    both = listed[:CALLS_TOGETHER] + later
    rest = [cell for cell in both[CALLS_BOTH_WAYS:] if cell.writes or not cell.after]
    return both[:CALLS_BOTH_WAYS] + sorted(rest, key=lambda cell: not cell.writes)


def parts_of_failing_calls() -> list[str]:
    """Name the part of the list that each call is of."""
    return [
        f"maintenance, {cell.kind}" if cell.operation == "maintain" else "all other operations"
        for cell in failing_calls()
    ]


def _title(cell: failing_storage.Cell) -> str:
    what = "is done, and says that it failed" if cell.after else "fails"
    return f"{cell.operation} / {cell.kind} {cell.nth} {what}"


def names_of_failing_calls() -> list[str]:
    """Name the calls."""
    return list(map(_title, failing_calls()))


def storage_that_fails(session: Session, number: int) -> tuple[int, Counter[str]]:
    cell = failing_calls()[number % len(failing_calls())]
    missing = session.kept.setdefault("missing calls", {})
    series = (cell.operation, cell.kind, cell.after)
    if cell.nth > missing.get(series, cell.nth):  # it has no more such calls
        return 0, Counter({"there was no such call": 1})
    process = session.kept.pop("disk", None) or _new_process(session)
    cell = replace(cell, verified=number % VERIFIED_EVERY == 0)
    found = process.run(cell)
    while found.hit is None and not found.problem and process.cells < CELLS_OF_AN_OLD_STORE:
        found = process.run(cell)  # maintenance of a store that is older makes more calls
    if found.problem:
        process.close()
        raise AssertionError(f"{_title(cell)}: {found}")
    session.kept["disk"] = process
    if found.hit is None:
        missing[series] = cell.nth
    told = "there was no such call" if found.hit is None else f"told {found.told}"
    return int(found.hit is not None), Counter({told: 1})


def _new_process(session: Session) -> failing_storage.Process:
    folder, classes = session.folder(), session.folder()
    compiled(session.spark._jvm, classes)
    return failing_storage.Process(folder, classes)


def kills(session: Session, number: int) -> tuple[int, Counter[str]]:
    folder = str(session.folder())
    alive = two_drivers.kill(session.spark, folder, number, KILLS_EACH, SENDS_EACH, attached=True)
    return alive, Counter({"messages": SENDS_EACH * 10})


def kills_with_java(session: Session, number: int) -> tuple[int, Counter[str]]:
    folder = str(session.folder())
    alive = two_drivers.kill(session.spark, folder, number, KILLS_EACH, SENDS_EACH, attached=False)
    return alive, Counter({"messages": SENDS_EACH * 10})


def kills_on_hdfs(session: Session, number: int) -> tuple[int, Counter[str]]:
    hdfs = session.kept.get("hdfs") or MiniHdfs(session.folder())
    session.kept["hdfs"] = hdfs
    root = f"{hdfs.url}/store-{number}"
    alive = two_drivers.kill(session.spark, root, number, KILLS_EACH, SENDS_EACH, attached=False)
    return alive, Counter({"messages": SENDS_EACH * 10})


def kills_on_s3(session: Session, number: int) -> tuple[int, Counter[str]]:
    server = session.kept.get("s3") or S3Server(session.folder())
    session.kept["s3"] = server
    root = f"s3a://{BUCKET}/store-{number}"
    alive = s3_kills.killed(settings(server.url), root, number, KILLS_EACH, SENDS_EACH)
    return alive, Counter({"messages": SENDS_EACH * 10})


_SUMS = ("with Hadoop's sums", "without Hadoop's sums")


@cache
def names_of_damage() -> list[str]:
    """Name the damages: each is done twice."""
    with TemporaryDirectory(prefix="txnqueue-damage-") as folder:
        damaged = test_damage.Damaged(Path(folder))
        numbers = range(2 * test_damage.ALL_CELLS)
        return [f"{damaged.name(n)}; {_SUMS[not damaged.has_sums(n)]}" for n in numbers]


def sought_of_damage(name: str) -> str:
    """Say what a failure begins with: it does not tell whether there were Hadoop's sums."""
    return f"{name.rpartition('; ')[0]}:"


def damage(session: Session, number: int) -> tuple[int, Counter[str]]:
    if "damage" not in session.kept:
        session.kept["damage"] = test_damage.Damaged(session.folder())
    said = session.kept["damage"].say(number % (2 * test_damage.ALL_CELLS))
    return 1, Counter(said)


def damage_proved(session: Session, number: int) -> tuple[int, Counter[str]]:
    if "damage" not in session.kept:
        session.kept["damage"] = test_damage.Damaged(session.folder())
    number %= 2 * test_damage.ALL_CELLS
    said = session.kept["damage"].prove(session.spark, number, session.folder())
    return 1, Counter(said)


# ------------------------------------------------------------------------ tests of pytest


def _pytest(number: int, *what: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *what),
            *("--hypothesis-show-statistics", f"--hypothesis-seed={number}"),
        ],
        cwd=ROOT,
        env={**os.environ, "TXNQUEUE_LONG": "1"},
        capture_output=True,
        text=True,
        timeout=PYTEST_SECONDS,
        check=False,
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 0, "; ".join(failed) or done.stdout[-500:] + done.stderr[-500:]
    return done.stdout


def passed(number: int, *what: str) -> int:
    """Run tests, and count those that pass."""
    found = re.search(r"(\d+) passed", _pytest(number, *what))
    assert found is not None, "no tests were run"
    return int(found[1])


def examples(number: int, *what: str) -> int:
    """Run tests with a seed, and count the examples that Hypothesis drew for them."""
    found = sum(map(int, re.findall(r"- (\d+) passing,", _pytest(number, *what))))
    assert found, "no examples were run"
    return found


CATCHES = "not when_nothing_is_broken and not one_fault_does_not_show"
"""What these two show is that something passes: it is no variant that is caught."""


def broken_variants(_: Session, number: int) -> tuple[int, Counter[str]]:
    only = ("-m", "not spark", "-k", CATCHES)
    return passed(number, *only, *_broken_files()), Counter()


def _broken_files() -> list[str]:
    found = ROOT.glob("tests/*/test_broken_*.py")
    return sorted(str(path.relative_to(ROOT)) for path in found)


MACHINES = ("tests/faults/test_queue_machine.py", "tests/faults/test_dtx_machine.py")


def machines(_: Session, number: int) -> tuple[int, Counter[str]]:
    only = ("-k", "TestQueueMachine or TestBranching")
    return examples(number, *only, *MACHINES), Counter()


HOSTILE = ("tests/core/test_rows.py", "tests/specifications/test_amqp_columns.py")


HOSTILE_FILES = (
    "tests/shell/test_hostile_commands.py",
    "tests/specifications/test_amqp_hostile_frames.py",
)


def hostile_commands(_: Session, number: int) -> tuple[int, Counter[str]]:
    return examples(number, *HOSTILE_FILES), Counter()


def hostile_frames(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Offer a frame to the store of the last ones, unless they failed or were one of each sort."""
    manager = session.kept.pop("offers", None) or QueueManager(
        session.spark, str(session.folder() / "store")
    )
    told = frames.offer(manager, session.spark, number)
    if (number + 1) % len(frames.SORTS):
        session.kept["offers"] = manager
    else:
        proof = manager.history.verify()
        assert proof.ok, str(proof)
    return 1, Counter({told: 1})


def hostile_input(_: Session, number: int) -> tuple[int, Counter[str]]:
    return examples(number, "-m", "not spark", *HOSTILE), Counter()
