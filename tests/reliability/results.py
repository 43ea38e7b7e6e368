"""The result files of the long runs: one per kind, a line for each run, kept in the repository."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reliability"
AGAIN = "again"
"""The file of the cases that failed and were done again."""


@dataclass
class Failure:
    """A number that failed, and the first line of what it said."""

    number: int
    what: str


class Listed(NamedTuple):
    """Which list of cases a run had: how long it was, and its fingerprint, if that is known."""

    of: int | None
    fingerprint: str | None


@dataclass
class Run:
    """One run of a kind: which numbers it did, and what came of them.

    Attributes:
        kind: What was run.
        date: When it began (ISO, UTC).
        commit: Of what; with a ``+`` if something was not committed.
        first: The first number.
        next: The number after the last one that is done.
        of: How many numbers there are, if they are a list: each stands for the case at its
            remainder.
        n: How many cases that was: one number may be several.
        seconds: How long it took.
        counts: What happened in them.
        failures: Which numbers failed.
        fingerprint: Which list it is; older lines do not say.
        left_out: From where to where, before ``next``, numbers were not done: their cases had
            passed as those of earlier lists.
    """

    kind: str
    date: str
    commit: str
    first: int
    next: int
    of: int | None = None
    n: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    fingerprint: str | None = None
    left_out: list[list[int]] = field(default_factory=list)

    @property
    def listed(self) -> Listed:
        """The list that its numbers are of."""
        return Listed(self.of, self.fingerprint)

    @property
    def numbers(self) -> Iterator[int]:
        """The numbers that were done."""
        left_out = {number for gap in self.left_out for number in range(*gap)}
        return (number for number in range(self.first, self.next) if number not in left_out)

    def leave_out(self, until: int) -> None:
        """Record that the next numbers are not done, up to one that is."""
        if until > self.next:
            self.left_out.append([self.next, until])
            self.next = until

    def add(self, n: int, counts: Counter[str], seconds: float, failed: str | None) -> None:
        """Record the next number."""
        if failed is not None:
            self.failures.append(Failure(self.next, failed))
        self.next += 1
        self.n += n
        self.seconds = round(self.seconds + seconds, 3)  # many take less than a tenth
        self.counts = dict(sorted((Counter(self.counts) + counts).items()))


@dataclass(frozen=True)
class Again:
    """A case that failed, done again.

    Attributes:
        kind: Of which kind it is.
        number: The number that it failed with.
        date: When it was done again (ISO, UTC).
        commit: With what.
        n: How many numbers that was: a place in the code is another one in other code, so that
            all of its operation are done. A number with which nothing could be done is none.
        failed: What those said that failed.
        found: How many numbers it was looked for with; older lines do not say.
        before: How many others were done before it in its store, if the kind does several in one;
            older lines do not say, and there it was alone.
    """

    kind: str
    number: int
    date: str
    commit: str
    n: int
    failed: list[str]
    found: int | None = None
    before: int | None = None

    def passes(self, run: Run) -> bool:
        """Whether it passes since it failed in a run: with the same code it is only fickle."""
        return self.n > 0 and not self.failed and self.commit != run.commit


@dataclass(frozen=True)
class Told:
    """What the page says of a kind each of whose numbers is told of.

    Attributes:
        done: How much of the list passed: what could not be done is none of it.
        bound: Whether that is all.
        lines: The table.
    """

    done: str
    bound: str
    lines: list[str]


def path_of(kind: str, folder: Path = FOLDER) -> Path:
    """Find the file of a kind."""
    return folder / f"{kind}.jsonl"


def read(kind: str, folder: Path = FOLDER) -> list[Run]:
    """Read the runs of a kind, oldest first."""
    path = path_of(kind, folder)
    if not path.is_file():
        return []
    return [_run(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _run(found: dict[str, Any]) -> Run:
    return Run(**{**found, "failures": [Failure(**one) for one in found["failures"]]})


def write(kind: str, runs: Sequence[Run], folder: Path = FOLDER) -> None:
    """Write the runs of a kind: all of them or nothing, whenever the process is killed."""
    path = path_of(kind, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    lines = [json.dumps(_line(run), ensure_ascii=False) + "\n" for run in runs]
    beside.write_text("".join(lines), encoding="utf-8")
    os.replace(beside, path)


def _line(run: Run) -> dict[str, Any]:
    """Write a run as it was read: an older one has no fingerprint, and few leave something out."""
    optional = ("fingerprint", "left_out")
    return {name: v for name, v in asdict(run).items() if name not in optional or v}


def read_again(folder: Path = FOLDER) -> list[Again]:
    """Read which cases were done again, oldest first."""
    path = path_of(AGAIN, folder)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [Again(**json.loads(line)) for line in lines]


def add_again(done: Again, folder: Path = FOLDER) -> None:
    """Write down that a case was done again."""
    with path_of(AGAIN, folder).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(done), ensure_ascii=False) + "\n")


# --------------------------------------------------------------------------------- lists


def fingerprint(names: Iterable[str]) -> str:
    """Tell a list of cases from others: from those with other cases, or in another order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def first_number(runs: Sequence[Run], listed: Listed) -> int:
    """Find the number that a run begins with.

    That is where the last one ended. A list that is not the last run's, or of which that is not
    known, begins with its first case: at the next multiple of its length, so that no number has
    two meanings.
    """
    after = next_number(runs)
    if not runs or not listed.of or runs[-1].listed == listed:
        return after
    return -(-after // listed.of) * listed.of


def keep_list(names: Iterable[str], folder: Path = FOLDER) -> None:
    """Keep which cases a list has, so that they are known again in other lists.

    Each has a line: the beginning of its name's SHA-256.
    """
    listed = list(names)
    path = _path_of_list(fingerprint(listed), folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{_hashed(name)}\n" for name in listed), encoding="utf-8")


def kept_list(listed: Listed, folder: Path = FOLDER) -> list[str]:
    """Read the cases of a list, each by its hash: none if it is not kept."""
    path = _path_of_list(str(listed.fingerprint), folder)
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


def _path_of_list(print_of_it: str, folder: Path) -> Path:
    return folder / "lists" / f"{print_of_it}.txt"


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def passed(
    runs: Sequence[Run], listed: Listed, settled: Set[int], folder: Path = FOLDER
) -> dict[int, Run]:
    """Find which cases of a list passed, by their places in it, and in which run last.

    A case of another list is known by its name, if both lists are kept. Cases of a list of which
    only the length is known are those of another one that is as long and as little known.

    Args:
        runs: The runs.
        listed: The list.
        settled: The numbers that failed, and pass since.
        folder: Where the lists are.
    """
    places = {case: place for place, case in enumerate(kept_list(listed, folder))}
    found = dict[int, Run]()
    for run in runs:
        cases = [] if run.listed == listed else kept_list(run.listed, folder)
        if run.listed != listed and not (places and cases):
            continue
        failed = {failure.number for failure in run.failures} - settled
        for number in run.numbers:
            at = number % (run.of or number + 1)
            place = places.get(cases[at]) if cases else at
            if place is not None and number in failed:
                found.pop(place, None)
            elif place is not None:
                found[place] = run
    return found


# ------------------------------------------------------------------------------- figures


def next_number(runs: Sequence[Run]) -> int:
    """Find the number that a run goes on with."""
    return max((run.next for run in runs), default=0)


def total(runs: Sequence[Run]) -> int:
    """Count the cases of all runs."""
    return sum(run.n for run in runs)


def clean(runs: Sequence[Run]) -> int:
    """Count the cases since the last run in which something failed."""
    failed = [index for index, run in enumerate(runs) if run.failures]
    return total(runs[failed[-1] + 1 :] if failed else runs)


def bound(n: int) -> float:
    """Bound the share of failing cases at 95 %, if none of n independent ones failed."""
    return min(1.0, 3 / n) if n else 1.0


def interval(hits: int, n: int) -> tuple[float, float]:
    """Bound a share at 95 % from both sides, as Wilson does."""
    if not n:
        return 0.0, 1.0
    share, z = hits / n, 1.96
    middle, width = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, (middle - width) / (1 + z * z / n)), min(
        1.0, (middle + width) / (1 + z * z / n)
    )
