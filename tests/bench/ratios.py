"""The statistics of paired measurements: medians, their ratio and how sure it is, and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

RESAMPLES = 4_000
CONFIDENCE = 0.95
DRIFT_MAX = 0.25
"""By how much the calibration may leave its median before a case is void."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians, with its bootstrap interval.

    Attributes:
        value: The median of what stands above over the median of what stands below.
        low: The lower end of the interval.
        high: The upper end.
    """

    value: float
    low: float
    high: float


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Compare two sides that were measured in the same rounds.

    Rounds are drawn again, not single measurements: what made the machine slow in a round made
    both sides slow.

    Args:
        above: One value a round.
        below: One value a round, in the same order.

    Raises:
        ValueError: There are no rounds, or a side lacks some.
    """
    if not above or len(above) != len(below):
        raise ValueError(f"{len(above)} and {len(below)} values are not pairs of rounds.")
    value = median(above) / median(below)
    drawn = np.random.default_rng(0).integers(0, len(above), (RESAMPLES, len(above)))
    medians = [np.median(np.asarray(side)[drawn], axis=1) for side in (above, below)]
    beside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians[0] / medians[1], [beside, 1 - beside])
    return Ratio(value, float(low), float(high))


def drift(calibrations: Sequence[float]) -> float:
    """Tell how far a calibration was from the median of all, as a part of it; 0 without any."""
    if not calibrations:
        return 0.0
    middle = median(calibrations)
    return max(abs(one / middle - 1) for one in calibrations)
