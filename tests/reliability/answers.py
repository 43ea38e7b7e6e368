"""What the long runs answer, in short: a table of questions at the top of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reliability import results, soak_page
from tests.reliability.kinds import KINDS, Kind
from tests.reliability.results import Run

HELD_FIRST = "held just before its first append, about the same"
FOUND_MIN = 0.9
"""So many of the mutants that are not equivalent have to be found at first sight."""


@dataclass(frozen=True)
class Question:
    """What is asked of runs of some kinds.

    Attributes:
        text: The question.
        kinds: The kinds that answer it.
        goal: So many cases of them together have to pass; None: the whole list of each.
        part: The part of a list that has to be done, where it is not the whole.
    """

    text: str
    kinds: tuple[str, ...]
    goal: int | None = None
    part: str | None = None


QUESTIONS = (
    Question(
        "Does any client see what contradicts the journal, or another client?",
        ("histories-threads", "histories-processes"),
        500,
    ),
    Question("Two operations meet, one held at any call: in memory", ("pairs-memory",)),
    Question(
        "The same on Delta, held just before the first append, about the same message",
        ("pairs-delta",),
        part=HELD_FIRST,
    ),
    Question("A store call fails, or its client dies in it: in memory", ("crash-matrix",)),
    Question("The same on Delta", ("crash-matrix-delta",)),
    Question("Two such faults in a row", ("crash-pairs", "crash-twice")),
    Question("An interrupt, wherever Python allows one", ("interrupts",)),
    Question("Driver processes are killed, on a local disk", ("kills", "kills-java"), 300),
    Question("The same on HDFS", ("kills-hdfs",), 300),
    Question("A call to the storage fails, or says that it failed", ("failing-storage",)),
    Question("A file is damaged: read without Spark", ("damage",)),
    Question("The same, proved by Spark", ("damage-proof",)),
    Question("Hostile DataFrames", ("hostile-frames",), 300),
    Question(
        "Hostile rows, commands, files and AMQP frames",
        ("hostile-input", "hostile-commands"),
        10_000,
    ),
    Question("Disturbances in the life of a notebook", ("notebook-life",), 200),
    Question("Does what lives long stay as quick and as small?", ("soak",), 10_000),
    Question("The first work of this version on a store of 0.1.0 is disturbed", ("upgrade",)),
    Question("Versions of Python, Spark, Delta and Java", ("versions",)),
    Question("The conformance suite over Spark Connect", ("connect",)),
    Question("Delta and the store in memory do the same", ("twins",), 500),
    Question("Wrong clocks make no difference", ("wrong-clocks",), 100),
    Question("Every interleaving of two small programs", ("interleavings",)),
    Question("Random work with everything that can go wrong", ("simulator",), 100_000),
    Question("Sequences that Hypothesis draws", ("machines",), 20_000),
    Question("A rule of the code that is broken is found", ("broken-variants",), 120),
    Question("A statement that is made wrong is found", ("mutants",)),
)


@dataclass(frozen=True)
class Done:
    """How far a kind is.

    Attributes:
        runs: Its runs.
        passed: How many cases of the last run's list pass, by the part of the list.
        failing: How many failures do not pass since.
        changed: Whether the list has changed since the last run.
    """

    runs: Sequence[Run]
    passed: Mapping[str, int]
    failing: int
    changed: bool = False


def lines(done: Mapping[str, Done], folder: Path) -> Iterator[str]:
    """Write a row for each question that some run is about."""
    yield "| question | asked | reached | fails still | |"
    yield "|---|---:|---:|---:|---|"
    for one in QUESTIONS:
        known = [(KINDS[name], done[name]) for name in one.kinds if name in done]
        if known:
            yield _row(one, known, folder)


def _row(asked: Question, known: Sequence[tuple[Kind, Done]], folder: Path) -> str:
    kind, one = known[0]
    failing = sum(done.failing for _, done in known)
    if kind.found:
        share = of_mutants(kind, one)
        wanted, reached = f"{FOUND_MIN:.0%}", f"{share:.1%} of those that are not equivalent"
        answer = "yes" if share >= FOUND_MIN else "no"
    else:
        least = asked.goal or sum(_length(kind, done, asked.part) for kind, done in known)
        n = sum(_reached(asked, kind, done) for kind, done in known)
        wanted, reached = f"{least:,} {kind.unit}", f"{n:,}"
        answer = "yes" if n >= least and not failing else "in part"
        if asked.goal is None and any(done.changed for _, done in known):
            answer += ", of a list that has changed since"
    if kind.shown is not None and answer == "yes":
        answer = soak_page.in_short(folder)
    return f"| {asked.text} | {wanted} | {reached} | {failing} | {answer} |"


def _reached(asked: Question, kind: Kind, done: Done) -> int:
    if asked.goal is not None:
        return done.runs[-1].n if kind.whole else results.total(done.runs)
    return done.passed.get(asked.part, 0) if asked.part else sum(done.passed.values())


def _length(kind: Kind, done: Done, part: str | None) -> int:
    if part is not None and kind.parts is not None:
        return Counter(kind.parts())[part]
    return done.runs[-1].of or 0


def of_mutants(kind: Kind, done: Done) -> float:
    """Return which share of the mutants that are not equivalent was found at first sight."""
    hits = sum(run.counts.get(count, 0) for run in done.runs for count in kind.found)
    equal = sum(equivalent(kind, run) for run in done.runs)
    return hits / max(results.total(done.runs) - equal, 1)


def equivalent(kind: Kind, run: Run) -> int:
    """Count the mutants of a run that do what the code does."""
    looked_at = kind.looked_at
    assert looked_at is not None
    verdicts = [looked_at(failure.what) for failure in run.failures]
    return run.counts.get("equivalent", 0) + sum(
        one is not None and one.verdict == "equivalent" for one in verdicts
    )
