"""Whether what was measured again and again stays as it is, or grows with the work that is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt

import numpy as np

WARM = 5
"""So many of a process's first values are left out: its Java still compiles and fills its heap."""
PER = 1_000
"""A slope is a growth per so many commits."""
GROWTH_MAX = 0.01
"""What may grow by more than a hundredth per thousand commits was not shown to be flat."""

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Commits and value, by the process that they were measured in."""


class Verdict(Enum):
    """What values say of a growth."""

    FLAT = "flat"
    GROWS = "grows"
    UNKNOWN = "not known yet"


@dataclass(frozen=True)
class Trend:
    """A straight line through values, as least squares find it.

    Attributes:
        level: The median of the values.
        slope: The growth per thousand commits, in the values' own unit.
        low: The lower end of its interval at 95 %.
        high: The upper end.
        values: How many values it is found from.
    """

    level: float
    slope: float
    low: float
    high: float
    values: int

    @property
    def verdict(self) -> Verdict:
        """Growth that is there is told, however small; flat is what can hardly grow."""
        if self.low > 0:
            return Verdict.GROWS
        return Verdict.FLAT if self.high <= GROWTH_MAX * self.level else Verdict.UNKNOWN


def trend(series: Series, warm: int = WARM) -> Trend | None:
    """Find the slope that all processes have in common; each has a level of its own.

    So no value of one process is compared with one of another, between which the machine may
    have changed. Values that lie beside each other are alike: the interval is wider by that.

    Returns:
        The line; None if there are too few values for one.
    """
    runs = _runs(series, warm)
    if not runs:
        return None
    centred = [run - run.mean(axis=0) for run in runs]
    return _line(_level(runs), centred, constants=len(runs))


def trend_of_ratios(series: Series, warm: int = WARM) -> Trend | None:
    """Find the slope of values that all processes have in common, with their level.

    All values may be compared: the machine was the same for both parts of each. What a store takes
    longer as soon as it was maintained a few times is in the level, and not in the slope.

    Returns:
        The line; None if there are too few values for one.
    """
    runs = _runs(series, warm)
    if not runs:
        return None
    middle = np.concatenate(runs).mean(axis=0)
    return _line(_level(runs), [run - middle for run in runs], constants=1)


def _runs(series: Series, warm: int) -> list[np.ndarray]:
    """Take the values of each process that has enough of them, without its first ones."""
    return [np.array(run[warm:], dtype=float) for run in series.values() if len(run) > warm + 2]


def _level(runs: Sequence[np.ndarray]) -> float:
    return float(np.median(np.concatenate([run[:, 1] for run in runs])))


def _line(level: float, runs: Sequence[np.ndarray], constants: int) -> Trend:
    """Find the slope through the origin, to which the runs were moved by some constants."""
    x, y = np.concatenate(runs).T
    free = len(x) - constants - 1
    spread = float(x @ x)
    slope = float(x @ y) / spread
    rests = [run[:, 1] - slope * run[:, 0] for run in runs]
    squares = float(sum(rest @ rest for rest in rests))
    half = _quantile(free) * sqrt(squares / free / spread) * _likeness(rests)
    return Trend(level, slope * PER, (slope - half) * PER, (slope + half) * PER, len(x))


def _likeness(rests: Sequence[np.ndarray]) -> float:
    """Say by how much values that follow each other are alike, as a factor of the interval.

    A line that was fitted to few values hides some of it, by about (2 + 4 like) / values.
    """
    squares = float(sum(rest @ rest for rest in rests))
    products = float(sum(rest[1:] @ rest[:-1] for rest in rests))
    like = products / squares if squares else 0.0
    like += (2 + 4 * like) * len(rests) / sum(map(len, rests))
    like = min(max(like, 0.0), 0.95)
    return sqrt((1 + like) / (1 - like))


def _quantile(free: int) -> float:
    """Approximate the quantile of Student's distribution that bounds 95 % from both sides."""
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
