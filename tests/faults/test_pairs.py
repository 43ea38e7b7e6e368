"""Pairs of operations that meet, in memory."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conftest import LONG
from tests.faults import pairs
from tests.faults.pair_board import SAME, Meeting, new_world
from tests.faults.pair_rules import RULES, Board, Move, Place, Reached, outcomes

SHARE = 1 if LONG else 8
"""The ordinary run does each eighth meeting."""


def all_meetings() -> list[Meeting]:
    return pairs.everywhere()


def before_appends() -> list[Meeting]:
    """The meetings in which one is held just before it would land."""
    return [one for one in all_meetings() if one.call == "append"]


def test_every_pair_meets_both_ways_and_in_both_relations() -> None:
    found = {(one.pair, one.relation, one.held) for one in all_meetings()}
    assert len(RULES) == 12
    assert len(pairs.PAIRS) == 78
    assert len(found) == 2 * 12 * 12
    deciding = all_meetings()[: len(found)]
    assert {one.call for one in deciding} == {"append"}
    assert {(one.pair, one.relation, one.held) for one in deciding} == found


@pytest.mark.parametrize("part", range(4))
def test_two_operations_that_meet_do_what_the_table_says(part: int) -> None:
    both = [*all_meetings(), *pairs.in_appends()]
    told = Counter(pairs.run(new_world(), one) for one in both[part :: 4 * SHARE])
    assert told["ok, ok"], "vacuous: nothing went well"
    assert len(told) > 1, "vacuous: they never met"


def test_each_error_of_the_table_is_told() -> None:
    """The table is not vacuous: each operation that can lose does, against somebody."""
    lost: dict[str, set[str]] = {name: set() for name in RULES}
    for one in before_appends():
        if one.relation == SAME:
            told = pairs.run(new_world(), one).split(", ")
            lost[one.pair[one.held]].add(told[0])
            lost[one.pair[1 - one.held]].add(told[1])
    wanted = {
        name: {what for what in (rule.closed, rule.dropped, rule.needs and rule.refused) if what}
        for name, rule in RULES.items()
    }
    assert {name: told - {"ok"} for name, told in lost.items()} == wanted


def test_a_claim_takes_the_first_message_that_others_may_take() -> None:
    """The rule itself, on a board of its own."""
    for over, taken in ((True, 1), (False, 2)):
        board = Board({1: Place("held", "A", over=over), 2: Place()})
        held, other = Move("accept", "A", 1), Move("claim", "B", 2)
        (found,) = outcomes(board, held, Reached(1, 0, planned=True), other)
        assert found.told == (("LeaseLost" if over else "ok"), "ok")
        assert found.places[taken] == "held by B"
