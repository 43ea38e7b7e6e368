"""Stores and choke points that are wrong on purpose: meetings of two operations must show each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults import pairs
from tests.faults.pair_board import Meeting, new_world
from tests.faults.pair_rules import Reached
from tests.faults.pairs import Hold
from txnqueue.core import model
from txnqueue.core.model import Condition, Unit
from txnqueue.storage.journal.memory import MemoryJournal

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
    return [one for one in pairs.everywhere() if one.call == "append"]


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
