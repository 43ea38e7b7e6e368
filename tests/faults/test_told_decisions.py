"""The simulator finds out who is told of a decision that was not made, or made otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.simulation import simulate
from tests.histories.broken import commits_what_is_to_be_rolled_back, rolls_nothing_back

SEEDS_MAX = 30


@pytest.mark.parametrize("broken", [commits_what_is_to_be_rolled_back, rolls_nothing_back])
def test_a_decision_that_was_made_otherwise_is_found_out(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"P9 .* is said to be rolled_back"):
        for seed in range(SEEDS_MAX):
            simulate(seed)
