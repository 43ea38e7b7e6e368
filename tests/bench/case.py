"""What a case is: sides that are measured in the same rounds, and how they compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Parts = Mapping[str, float]
"""What a side took, by part; their sum is its value."""


@dataclass(frozen=True)
class Side:
    """One of the things that a case compares.

    Attributes:
        title: What it is, for the reader of the table.
        run: Does it once, and says what it took.
        before: What has to be there each time; it is not measured.
    """

    title: str
    run: Callable[[], Parts]
    before: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Comparison:
    """Two sides of a case whose ratio is of interest.

    Attributes:
        above: The name of the side in the numerator.
        below: The name of the side in the denominator.
        target: What the ratio should be.
        at_least: Whether it should be at least the target; else at most.
    """

    above: str = "txnqueue"
    below: str = "floor"
    target: float | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Case:
    """Something that is measured.

    Attributes:
        name: A short name, which ``--only`` finds it by.
        title: What is measured, for the reader of the table.
        sides: What is measured in each round, by name.
        comparisons: Whose ratios are reported.
        unit: What the values are: seconds, or bytes.
        rounds_max: At most so many rounds, whatever there is time for.
        warms: Whether a round before the first is not counted.
    """

    name: str
    title: str
    sides: Mapping[str, Side]
    comparisons: Sequence[Comparison] = (Comparison(),)
    unit: str = "s"
    rounds_max: int = 10
    warms: bool = True


@dataclass(frozen=True)
class Group:
    """Cases that are measured together, in shuffled order.

    Attributes:
        name: Its name, which ``--only`` finds all of its cases by.
        makers: What prepares each case, by the case's name.
        share: Which part of the time it gets, beside the others.
        full: Whether only the full run has it.
    """

    name: str
    makers: Mapping[str, Callable[[], Case]]
    share: float
    full: bool = False


def steps(**parts: Callable[[], object]) -> Callable[[], Parts]:
    """Make what runs some steps one after the other, and measures each."""

    def run() -> Parts:
        return {name: seconds(step) for name, step in parts.items()}

    return run


def seconds(step: Callable[[], object]) -> float:
    """Measure one step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
