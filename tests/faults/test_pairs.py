"""Pairs of operations that meet, in memory; and whether the table finds what is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults import pairs
from tests.faults.pair_board import SAME, Meeting, new_world
from tests.faults.pair_rules import RULES, Board, Move, Place, Reached, outcomes
from tests.faults.pairs import Hold
from txnqueue.core import model
from txnqueue.core.model import Condition, Unit
from txnqueue.storage.journal.memory import MemoryJournal

SHARE = 1 if LONG else 8
"""The ordinary run does each eighth meeting."""


def all_meetings() -> list[Meeting]:
    return pairs.everywhere()


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


# ------------------------------------------------------------------- what must be found

Break = Callable[[pytest.MonkeyPatch], type[Hold]]


class LetsGo(Hold):
    """Lets its client go on first, and the other one act after that."""

    def meet(self, name: str = "") -> None:
        if not name:  # its own operation has ended
            super().meet()
            self.reached = Reached(0, 0, planned=False)


def does_not_hold(patch: pytest.MonkeyPatch) -> type[Hold]:
    """A choke point that does not hold: the other one comes after the end."""
    return LetsGo


def without(leaves_out: Callable[[Condition], bool]) -> Break:
    """A store that does not ask for some conditions of an append."""

    def broken(patch: pytest.MonkeyPatch) -> type[Hold]:
        real = Unit.of

        def of(append_id: str, entries: Any, conditions: Any, operation: str = "") -> Unit:
            kept = [one for one in conditions if not leaves_out(one)]
            return real(append_id, entries, kept, operation)

        patch.setattr(Unit, "of", of)
        return Hold

    return broken


def looks_away(patch: pytest.MonkeyPatch) -> type[Hold]:
    """A store whose appends miss what has landed since their snapshot."""
    patch.setattr(MemoryJournal, "_added_since", lambda self, shard, snapshot: False)
    return Hold


def before_appends() -> list[Meeting]:
    """The meetings in which one is held just before it would land."""
    return [one for one in all_meetings() if one.call == "append"]


BROKEN: dict[str, tuple[Break, str]] = {
    "a choke point that does not hold": (does_not_hold, "not [Outcome"),
    "lanes whose next number nobody expects": (
        without(lambda one: one.shard.startswith("lane") and one.sequence_from is not None),
        "given twice",
    ),
    "decisions of what is decided": (
        without(lambda one: one.attempts is not None and model.ROLLED_BACK in (one.kinds or ())),
        "decided twice",
    ),
    "two attempts of one id": (
        without(lambda one: one.attempts_except is not None),
        "another attempt of it was prepared",
    ),
    "work in a queue that is being dropped": (
        without(lambda one: model.QUEUE_CLOSING in (one.kinds or ())),
        "after queue_dropped",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_table_finds_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, said = BROKEN[name]
    hold = broken(monkeypatch)
    with pytest.raises(AssertionError) as found:
        for one in before_appends():
            pairs.run(new_world(), one, hold)
    assert said in str(found.value)


def test_the_table_finds_a_conflict_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = looks_away(monkeypatch)
    inside = [one for one in pairs.in_appends() if one.pair == ("claim", "claim")]
    with pytest.raises(AssertionError, match="given twice"):
        for one in inside:
            pairs.run(new_world(), one, hold)
