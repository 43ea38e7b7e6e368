"""Parts of the history are removed, and no other part of it is told otherwise than it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import LONG
from tests.faults.forgetting import CHECKS, days_go_by

SEEDS = 2_000 if LONG else 8


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_is_known_is_known_rightly(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("chunk", range(4))
def test_days_go_by(chunk: int) -> None:
    for seed in range(100 + chunk * SEEDS // 4, 100 + (chunk + 1) * SEEDS // 4):
        days_go_by(seed)
