"""Pairs of operations that meet on real Delta: two of them; the long runs do all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import pairs
from tests.faults.pair_board import SAME, Meeting, PairWorld, new_world

pytestmark = [pytest.mark.spark]
MEETINGS = {
    Meeting(("claim", "commit"), SAME, 1, 0, "append"): "TransactionAborted, ok",
    Meeting(("commit prepared", "rollback prepared"), SAME, 0, 0, "append"): (
        "TransactionFinished, ok"
    ),
}
"""A commit that comes after a take-over, and two decisions of one transaction: who loses is held
when nothing but its append is left."""


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> PairWorld:
    made = new_world(spark, str(tmp_path_factory.mktemp("pairs")))
    made.verified_each = len(MEETINGS)
    return made


@pytest.mark.parametrize("meeting", MEETINGS, ids=str)
def test_two_operations_that_meet_do_what_the_table_says(
    world: PairWorld, meeting: Meeting
) -> None:
    calls = pairs.calls_of(meeting.pair, meeting.relation, meeting.held)
    at = calls.index(meeting.call)
    told = pairs.run(world, Meeting(meeting.pair, SAME, meeting.held, at, meeting.call))
    assert told == MEETINGS[meeting]
