"""The statistics of the benchmarks, on values whose ratios are known."""

from __future__ import annotations

import random

import pytest

from tests.bench.ratios import DRIFT_MAX, drift, ratio


def test_a_ratio_is_that_of_the_medians() -> None:
    assert ratio([3.0, 9.0, 3.3], [2.0, 2.2, 1.8]).value == pytest.approx(3.3 / 2.0)


def test_the_interval_has_the_truth_about_as_often_as_it_says() -> None:
    """Both sides are slow in the same rounds; the true ratio is 1.5."""
    found, draw = 0, random.Random(5)
    for _ in range(200):
        busy = [draw.lognormvariate(0, 0.3) for _ in range(10)]
        above = [1.5 * slow * draw.lognormvariate(0, 0.05) for slow in busy]
        below = [slow * draw.lognormvariate(0, 0.05) for slow in busy]
        one = ratio(above, below)
        assert one.low <= one.value <= one.high
        found += one.low <= 1.5 <= one.high
    assert found >= 170


def test_rounds_are_drawn_in_pairs() -> None:
    """What slows both sides alike leaves the interval narrow."""
    busy = [1.0, 5.0, 1.2, 4.0, 1.1, 6.0, 1.3]
    one = ratio([2 * slow for slow in busy], busy)
    assert (one.low, one.value, one.high) == pytest.approx((2, 2, 2))


def test_an_interval_is_the_same_each_time() -> None:
    above, below = [1.0, 1.4, 1.2, 1.9], [1.0, 1.1, 0.8, 1.2]
    assert ratio(above, below) == ratio(above, below)


@pytest.mark.parametrize("above", [[], [1.0]])
def test_without_pairs_there_is_no_ratio(above: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        ratio(above, [1.0, 2.0] if above else [])


def test_drift_is_the_farthest_from_the_median() -> None:
    assert drift([1.0, 1.1, 1.3]) == pytest.approx(0.2 / 1.1)
    assert drift([1.0, 1.0, 1.0, 1.3]) > DRIFT_MAX > drift([1.0, 1.0, 1.0, 1.2])
    assert drift([1.0, 1.0, 0.6]) == pytest.approx(0.4)
    assert drift([]) == 0
