"""Dead letters by where they came from and why: whose error is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txnqueue.reports.causes import Standing, counted


def letter(at_ms: int, error: str | None) -> Standing:
    origin = {"queue": "orders", "queue_id": "q", "reason": "deliveries_max", "error": error}
    position: Any = SimpleNamespace(origin=origin, posted_at_ms=at_ms)
    return Standing("waiting", position, ((0, 0),), 0, 2)


@pytest.mark.parametrize(
    ("letters", "told"),
    [
        ([(1, "old"), (2, None)], None),
        ([(2, None), (1, "old")], None),
        ([(1, None), (2, "new")], "new"),
        ([(2, "new"), (1, "old")], "new"),
        ([(2, None), (2, "new"), (1, "old")], "new"),
        ([(1, "old"), (2, "new"), (2, None)], "new"),
    ],
)
def test_the_error_is_that_of_the_newest_dead_letter(
    letters: list[tuple[int, str | None]], told: str | None
) -> None:
    (cause,) = counted(letter(*one) for one in letters)
    assert (cause.row["error"], cause.row["waiting"]) == (told, len(letters))
