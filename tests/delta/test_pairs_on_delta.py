"""Pairs of operations that meet on real Delta: two of them; the long runs do all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults import pairs
from tests.faults.pair_board import SAME, Meeting, PairWorld, new_world

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not LONG, reason="half a minute each; in memory they are met always"),
]
MEETINGS = {
    ("claim", "commit"): "TransactionAborted, ok",
    ("rollback prepared", "commit prepared"): "TransactionFinished, ok",
}
"""A commit that comes after a take-over, and two decisions of one transaction: the second of a pair
is held when nothing but its append is left, and loses."""


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> PairWorld:
    made = new_world(spark, str(tmp_path_factory.mktemp("pairs")))
    made.verified_each = len(MEETINGS)
    return made


@pytest.mark.parametrize("pair", MEETINGS, ids=", ".join)
def test_two_operations_that_meet_do_what_the_table_says(
    world: PairWorld, pair: tuple[str, str]
) -> None:
    at = pairs.calls_of(pair, SAME, 1).index("append")
    assert pairs.run(world, Meeting(pair, SAME, 1, at, "append")) == MEETINGS[pair]
