"""Pairs of operations that meet on real Delta: three of them; the long runs do all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import pairs
from tests.faults.pair_board import SAME, Meeting, PairWorld, new_world

pytestmark = [pytest.mark.spark]
MEETINGS = {
    Meeting(("claim", "commit"), SAME, 1, 0, "append"): "TransactionAborted, ok",
    Meeting(("accept", "claim"), SAME, 1, 0, "append"): "ok, ok",
    Meeting(("commit prepared", "rollback prepared"), SAME, 0, 0, "append"): (
        "TransactionFinished, ok"
    ),
}
"""A take-over that a late commit finds, a settlement that a late take-over finds, and two
decisions of one transaction: the loser is held when nothing but its append is left."""


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> PairWorld:
    return new_world(spark, str(tmp_path_factory.mktemp("pairs")))


@pytest.mark.parametrize("meeting", MEETINGS, ids=str)
def test_two_operations_that_meet_do_what_the_table_says(
    world: PairWorld, meeting: Meeting
) -> None:
    calls = pairs.calls_of(meeting.pair, meeting.relation, meeting.held)
    at = calls.index(meeting.call)
    told = pairs.run(world, Meeting(meeting.pair, SAME, meeting.held, at, meeting.call))
    assert told == MEETINGS[meeting]
