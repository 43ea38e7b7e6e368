"""Judges mutants: which tests reach the mistake, and whether one of them finds it."""

from __future__ import annotations

import bisect
import hashlib
import json
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.reliability import nursery, results
from tests.reliability.mutants import TARGETS, Mutant, mutants
from tests.reliability.nursery import Ran, Trial
from tests.reliability.session import Session

KEPT = Path(__file__).resolve().parents[2] / "build" / "reliability"
REACHED = "reached.json"
"""Which test reaches which lines, and its seconds, by the file of the test. It is made anew for a
file that has changed, and for all of them when what is mutated has."""
LOOKED_AT = results.FOLDER / "mutants-looked-at.json"
"""What was found out about survivors, by the text of the lines."""
_FAULTS = (
    "branches crash_matrix drain_faults dtx_machine exchange_drops forgetting growth "
    "interleavings keeping queue_machine table_changes transient_faults twin_conflicts"
)
_PROTOCOLS = "coordination demarcation drivers execution faults queries tpc"
TESTS = (
    "tests/core",
    "tests/conformance",
    *(f"tests/faults/test_{name}.py" for name in _FAULTS.split()),
    *(f"tests/specifications/test_dtx_{name}.py" for name in _PROTOCOLS.split()),
)
"""What judges: the tests in memory, without those that break protocols themselves."""
KILLED = ("killed", "killed by time")
JUDGED_SECONDS, FAULTS_SECONDS = 8.0, 16.0
"""How many seconds of the tests that reach a mistake are run, the quickest first, where the n-th
case of a test counts n times: of all of them, and then of those with faults and histories."""


@dataclass(frozen=True)
class Verdict:
    """What a survivor is.

    Attributes:
        path: The module.
        before: The line as it was when the mistake survived.
        after: The line with the mistake.
        verdict: ``equivalent``: nobody could tell; ``killed since``: a test was written;
            ``gap``: none was; ``dead code``: it was deleted.
        why: Why nobody could tell, or which test it is.
        now: The line that took its place, and of which the verdict is as true.
    """

    path: str
    before: str
    after: str
    verdict: str
    why: str
    now: str | None = None

    @property
    def key(self) -> str:
        """How a failure names the mutant."""
        return f"{self.path}: {self.before} → {self.after}"


@cache
def _verdicts() -> tuple[Verdict, ...]:
    there = LOOKED_AT.is_file()
    return tuple(
        Verdict(**one) for one in (json.loads(LOOKED_AT.read_text("utf-8")) if there else [])
    )


def looked_at(what: str) -> Verdict | None:
    """Find what is known of a survivor, by what the failure says: that may be cut off."""
    said = re.sub(r"^.*?(survived|not reached): ", "", what)
    return next((one for one in _verdicts() if one.key.startswith(said)), None)


class Judge:
    """The process that tries mutants, and what it knows of the tests."""

    def __init__(self, tests: Sequence[str] = TESTS, kept: Path = KEPT) -> None:
        """Start it, and let it collect the tests.

        Args:
            tests: Files and folders of tests.
            kept: The folder for what is known of them.
        """
        context = multiprocessing.get_context("spawn")
        self._connection: Connection[Any, Any]
        self._connection, theirs = context.Pipe()
        kept.mkdir(parents=True, exist_ok=True)
        self._process = context.Process(
            target=nursery.serve,
            args=(theirs, tuple(tests), TARGETS, kept),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._path = kept / REACHED
        self._files = sorted(_files(tests))
        self._ran: list[dict[str, Any]] = []

    def close(self) -> None:
        """Let it end."""
        self._connection.close()
        self._process.join()

    @property
    def ran(self) -> list[dict[str, Any]]:
        """What each test reaches, the quickest first."""
        if not self._ran:
            known = self._known()
            found = [one for file in self._files for one in known[file]["ran"]]
            self._ran = sorted(found, key=lambda one: one["seconds"])
        return self._ran

    def _known(self) -> dict[str, dict[str, Any]]:
        """Read what is kept, and run without mistakes the tests whose file is not as it was."""
        there = self._path.is_file()
        known = json.loads(self._path.read_text(encoding="utf-8")) if there else {}
        targets = [_text(path) for path in TARGETS]
        for file in self._files:
            of = hashlib.sha256("\0".join([_text(file), *targets]).encode()).hexdigest()
            if file not in known or known[file]["of"] != of:
                known[file] = {"of": of, "ran": self._recorded(file)}
                self._keep(known)
        return known

    def _recorded(self, file: str) -> list[dict[str, Any]]:
        """Run the tests of a file without mistakes."""
        self._connection.send(file)
        found = []
        while isinstance(ran := self._connection.recv(), Ran):
            found.append(vars(ran))
        return found

    def _keep(self, known: dict[str, dict[str, Any]]) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(known), encoding="utf-8")
        os.replace(beside, self._path)

    def chosen(self, mutant: Mutant) -> tuple[tuple[str, float], ...]:
        """Choose the tests that reach the statement of a mutant."""
        reaching, cases = [], Counter[str]()
        for one in self.ran:
            if self._statement(mutant) in one["statements"].get(mutant.path, ()):
                function = one["test"].partition("[")[0]
                cases[function] += 1
                reaching.append((cases[function] * one["seconds"], one["seconds"], one["test"]))
        chosen, seconds = [], 0.0
        for _, took, name in sorted(reaching):
            limit = FAULTS_SECONDS if name.startswith("tests/faults") else JUDGED_SECONDS
            if seconds + took <= limit:
                chosen.append((name, took))
                seconds += took
        return tuple(chosen)

    def _statement(self, mutant: Mutant) -> int:
        """Find the line on which the statement begins that a mutant is in."""
        known = _statements(mutant.path)
        return known[bisect.bisect_right(known, mutant.line) - 1]

    def judge(self, mutant: Mutant) -> tuple[str, str | None]:
        """Tell what became of a mutant, and which test found it."""
        source = mutant.source()
        try:
            compile(source, mutant.path, "exec")
        except SyntaxError:
            return "void", None
        chosen = self.chosen(mutant)
        if not chosen:
            return "not reached", None
        while True:
            outcome, test = self._try(Trial(mutant.path, source, chosen))
            if outcome == nursery.PASSED or test is None:
                return "survived", None
            alone = tuple(one for one in chosen if one[0] == test)
            if self._try(Trial(mutant.path, None, alone))[0] == nursery.PASSED:
                return ("killed" if outcome == nursery.FAILED else "killed by time"), test
            chosen = tuple(one for one in chosen if one[0] != test)  # it needs what ran before it

    def _try(self, trial: Trial) -> tuple[str, str | None]:
        self._connection.send(trial)
        found: tuple[str, str | None] = self._connection.recv()
        return found


@cache
def _statements(path: str) -> list[int]:
    return nursery.statements(_text(path))


def _text(path: str) -> str:
    return (nursery.ROOT / path).read_text(encoding="utf-8")


def _files(tests: Iterable[str]) -> Iterator[str]:
    """List the files of tests that files and folders name."""
    for name in tests:
        path = nursery.ROOT / name
        for file in path.glob("test_*.py") if path.is_dir() else [path]:
            yield str(file.relative_to(nursery.ROOT))


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Judge one mutant.

    Raises:
        AssertionError: No test finds it.
    """
    judge: Judge = session.kept.get("judge") or Judge()
    session.kept["judge"] = judge
    mutant = mutants()[number % len(mutants())]
    outcome, _ = judge.judge(mutant)
    if outcome in ("survived", "not reached"):
        before, after = mutant.change()
        said = f"{outcome}: {mutant.path}: {before} → {after}"
        known = looked_at(said)
        if known is None or known.verdict != "equivalent":
            raise AssertionError(said)
        outcome = "equivalent"
    return int(outcome != "void"), Counter({outcome: 1})
