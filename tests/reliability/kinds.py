"""What the long runs can do: each kind does one number after the other, as long as it may."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.delta import failing_storage
from tests.delta import test_crash_on_delta as on_delta
from tests.delta import test_two_drivers as two_drivers
from tests.delta.storage_calls import compiled
from tests.faults import matrix
from tests.faults.scenarios import IN_MEMORY, OPERATIONS
from tests.faults.simulation import simulate
from tests.faults.world import World
from tests.histories import checker, runs
from tests.histories.history import History
from tests.reliability import meetings, versions
from tests.reliability.session import Session
from tests.stores import test_damage
from txnqueue.storage.store import DeltaStore

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "build" / "reliability"
"""Where the histories are kept in which something was found."""
PYTEST_SECONDS = 3_600
UNKNOWN_MAX = 0.1
KILLS_EACH, SENDS_EACH = 10, 20
CALLS_MAX = 40
"""More than any of the operations makes of a kind."""
OPERATIONS_ON_DISK = tuple(failing_storage.OPERATIONS)


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        name: Names it, its file and its argument.
        title: What a number of it is.
        unit: What is counted.
        store: On which store.
        does: What is done and compared.
        blind: What it cannot show.
        run: Does one number; returns how many cases that was, and what happened.
        total: How many there are, if they are a list; None: any number.
        independent: Whether its cases are drawn, so that there is a bound for those not drawn.
    """

    name: str
    title: str
    unit: str
    store: str
    does: str
    blind: str
    run: Callable[[Session, int], tuple[int, Counter[str]]]
    total: Callable[[], int] | None = None
    independent: bool = True


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


def _histories_memory(_: Session, number: int) -> tuple[int, Counter[str]]:
    return _checked("histories-memory", number, runs.in_memory(number))


def _histories_threads(session: Session, number: int) -> tuple[int, Counter[str]]:
    history = runs.on_delta_by_threads(session.spark, session.folder() / "store", number)
    return _checked("histories-threads", number, history)


def _histories_processes(session: Session, number: int) -> tuple[int, Counter[str]]:
    history = runs.on_delta_by_processes(session.spark, session.folder() / "store", number)
    return _checked("histories-processes", number, history)


# -------------------------------------------------------------------------------- faults


@cache
def _cells() -> list[matrix.Case]:
    return [case for operation in (*OPERATIONS, *IN_MEMORY) for case in matrix.cases(operation)]


def _crash_matrix(_: Session, number: int) -> tuple[int, Counter[str]]:
    case = _cells()[number % len(_cells())]
    try:
        matrix.run(matrix.fresh(unique=case.operation.unique), case)
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return 1, Counter({case.fault.value: 1})


@cache
def _cells_on_delta() -> list[matrix.Case]:
    return on_delta.long_sample()


def _crash_matrix_delta(session: Session, number: int) -> tuple[int, Counter[str]]:
    case = _cells_on_delta()[number % len(_cells_on_delta())]
    world: World = session.kept.pop("world", None) or on_delta.new_world(
        DeltaStore(session.spark, str(session.folder()))
    )
    try:
        matrix.run(world, case)
    except Exception as error:  # what it left behind is not for the next one
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    session.kept["world"] = world
    return 1, Counter({case.fault.value: 1})


def _simulator(_: Session, number: int) -> tuple[int, Counter[str]]:
    counts = simulate(number)
    wanted = ("committed", "prepared", "take-overs", "crashes", "killed", "in doubt", "conflicts")
    return 1, Counter({what: counts[what] for what in wanted})


@cache
def _failing_calls() -> list[failing_storage.Cell]:
    found = itertools.product(
        range(1, CALLS_MAX + 1), OPERATIONS_ON_DISK, failing_storage.KINDS, (False, True)
    )
    return [failing_storage.Cell(what, kind, nth, after) for nth, what, kind, after in found]


def _failing_storage(session: Session, number: int) -> tuple[int, Counter[str]]:
    cell = _failing_calls()[number % len(_failing_calls())]
    process = session.kept.pop("disk", None) or _new_process(session)
    found = process.run(cell)
    if found.problem:
        process.close()
        raise AssertionError(f"{cell}: {found}")
    session.kept["disk"] = process
    told = "there was no such call" if found.hit is None else f"told {found.told}"
    return int(found.hit is not None), Counter({told: 1})


def _new_process(session: Session) -> failing_storage.Process:
    folder, classes = session.folder(), session.folder()
    compiled(session.spark._jvm, classes)
    return failing_storage.Process(folder, classes)


def _kills(session: Session, number: int) -> tuple[int, Counter[str]]:
    folder = str(session.folder())
    two_drivers.kill(session.spark, folder, number, KILLS_EACH, SENDS_EACH, attached=True)
    return KILLS_EACH, Counter({"messages": SENDS_EACH * 10})


def _kills_with_java(session: Session, number: int) -> tuple[int, Counter[str]]:
    folder = str(session.folder())
    two_drivers.kill(session.spark, folder, number, KILLS_EACH, SENDS_EACH, attached=False)
    return KILLS_EACH, Counter({"messages": SENDS_EACH * 10})


def _damage(session: Session, number: int) -> tuple[int, Counter[str]]:
    if "damage" not in session.kept:
        session.kept["damage"] = test_damage.Damaged(session.folder())
    said = session.kept["damage"].say(number)
    return 1, Counter(said)


def _versions(session: Session, number: int) -> tuple[int, Counter[str]]:
    return versions.run(number, session.folder())


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


def _broken_variants(_: Session, number: int) -> tuple[int, Counter[str]]:
    return passed(number, "-m", "not spark", *_broken_files()), Counter()


def _broken_files() -> list[str]:
    found = [*ROOT.glob("tests/faults/test_broken_*.py")]
    found += ROOT.glob("tests/specifications/test_broken_*.py")
    return sorted(str(path.relative_to(ROOT)) for path in found)


HOSTILE = ("tests/core/test_rows.py", "tests/specifications/test_amqp_columns.py")


def _hostile_input(_: Session, number: int) -> tuple[int, Counter[str]]:
    return examples(number, "-m", "not spark", *HOSTILE), Counter()


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "histories-memory",
            "recorded histories in memory",
            "histories",
            "in memory",
            "Four threads send, pass on, prepare, decide, lease and look, with faults at random; "
            "what each saw is compared with the journal and with every version of it.",
            "What Delta, Spark and file systems do. Threads take turns as Python lets them: a "
            "number is not repeated exactly.",
            _histories_memory,
        ),
        Kind(
            "histories-threads",
            "recorded histories on Delta, threads",
            "histories",
            "Delta on a local disk, one driver",
            "The same by three threads of one driver; who looks reads the files without Spark, and "
            "each version is read again from Delta's log alone.",
            "Object stores, clusters; maintenance at the same time.",
            _histories_threads,
        ),
        Kind(
            "histories-processes",
            "recorded histories on Delta, driver processes",
            "histories",
            "Delta on a local disk, two driver processes attached to one Java",
            "The same by two processes, each killed twice at a random moment and started again.",
            "A Java that dies with its driver: test_two_drivers.py kills those.",
            _histories_processes,
        ),
        Kind(
            "crash-matrix",
            "cells of the crash matrix in memory",
            "cells",
            "in memory",
            "Each operation × each store call in it × each fault × each recovery.",
            "Two faults at once; other operations at the same time.",
            _crash_matrix,
            lambda: len(_cells()),
        ),
        Kind(
            "crash-matrix-delta",
            "cells of the crash matrix on Delta",
            "cells",
            "Delta on a local disk",
            "Each operation × each writing store call in it × each fault, recovered by another "
            "client.",
            "Faults inside of a store call: those of the file system are a kind of their own.",
            _crash_matrix_delta,
            lambda: len(_cells_on_delta()),
        ),
        Kind(
            "pairs-memory",
            "pairs of operations that meet, in memory",
            "meetings",
            "in memory",
            f"{meetings.DOES} Besides, each is held inside of each of its appends.",
            "Two holds in one operation; three operations.",
            meetings.in_memory,
            meetings.total_in_memory,
        ),
        Kind(
            "pairs-delta",
            "pairs of operations that meet, on Delta",
            "meetings",
            "Delta on a local disk, two managers of one driver",
            meetings.DOES,
            "Meetings inside of a store call: test_conflicts.py forces those of two appends.",
            meetings.on_delta,
            meetings.total,
        ),
        Kind(
            "kills",
            "kills of driver processes",
            "kills",
            "Delta on a local disk, a producer and a consumer attached to one Java",
            "A producer and a consumer are killed at random moments and started again; ten times, "
            "then everything is drained, and each message is there once.",
            "Statements of the dead are carried out by the Java that lives on.",
            _kills,
        ),
        Kind(
            "kills-java",
            "kills of driver processes with their Java",
            "kills",
            "Delta on a local disk, a producer and a consumer with a Java of their own",
            "The same with a Java that dies with its process, in the middle of whatever it writes.",
            "Power failures: Delta does not force its files to the disk.",
            _kills_with_java,
        ),
        Kind(
            "failing-storage",
            "calls to the storage that fail",
            "calls",
            "Delta on a local disk whose calls go through a file system of the tests' own",
            "The n-th create, rename, list or open fails, or succeeds and says that it failed, for "
            "n = 1, 2, 3 …, in a send of rows, a send of a frame, and a transaction that receives "
            "and sends; what the client is told is compared with the journal.",
            "Two calls that fail; a disk that says it has written and has not.",
            _failing_storage,
            lambda: len(_failing_calls()),
        ),
        Kind(
            "damage",
            "damaged files",
            "cells",
            "Delta on a local disk, read without Spark; with Hadoop's sums beside the files and "
            "without",
            "The newest and an older commit, Delta's checksum, the checkpoint and three data files "
            "of the journal, the archive and each payload table are deleted, emptied, cut, zeroed "
            "in part, or have one bit flipped at seven places; six questions have the answer that "
            "they had before, or an error that names the damage.",
            "Damage to two files; commits that are older than the checkpoint.",
            _damage,
            lambda: 2 * test_damage.CELLS,
        ),
        Kind(
            "versions",
            "versions of Python, Spark and Delta",
            "tests",
            "in memory and Delta on a local disk, each in a virtual environment of its own",
            "The tests of the core, and the conformance suite in memory or a part of it on Delta, "
            "with each Python and each Spark that the package allows, and Delta's release for it.",
            "Platforms with a Spark of their own; other releases than those that are named; "
            "another Java than the machine's.",
            _versions,
            lambda: len(versions.ALL),
            independent=False,
        ),
        Kind(
            "simulator",
            "seeds of the simulator",
            "seeds",
            "in memory",
            "200 actions of two to four clients, interleaved within their calls, with faults, late "
            "replies, kills, zombies and clocks apart; each commit is compared with a model.",
            "What the model and the library have wrong alike; Delta and Spark.",
            _simulator,
        ),
        Kind(
            "broken-variants",
            "protocols that are broken on purpose",
            "variants caught",
            "in memory",
            "One rule of the real code is broken at a time: the checks must find each.",
            "Mistakes that nobody thought of.",
            _broken_variants,
            independent=False,
        ),
        Kind(
            "hostile-input",
            "hostile rows, frames and columns",
            "examples",
            "in memory",
            "Hypothesis draws rows, schemas and AMQP messages: a typed error, or a round trip.",
            "What the strategies do not draw; Spark's own reading of frames.",
            _hostile_input,
        ),
    )
}
