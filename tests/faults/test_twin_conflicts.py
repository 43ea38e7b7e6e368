"""The twin in memory meets conflicts just where Delta does: the same pairs of appends."""

from __future__ import annotations

import pytest

from tests.delta.units import APART, BARRED, RIVALS
from txnqueue.core.model import Unit
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.memory import MemoryJournal


def meet(first: Unit, second: Unit, before: Unit) -> tuple[bool, bool]:
    """Let the second append land between the first one's snapshot and its commit."""
    journal = MemoryJournal()
    if before.entries:
        assert journal.append([before], {}).won[0]
    landed: list[bool] = []

    def step(name: str) -> None:
        if name == "append lands":
            journal.step = lambda name: None
            landed.append(journal.append([second], {}).won[0])

    journal.step = step
    try:
        return journal.append([first], {}).won[0], landed[0]
    except AppendConflict:
        return False, landed[0]


@pytest.mark.parametrize("name", RIVALS)
def test_of_two_rivals_exactly_one_lands(name: str) -> None:
    before, first, second = RIVALS[name](name)
    assert meet(first, second, before) == (False, True)
    assert meet(second, first, before) == (False, True)


@pytest.mark.parametrize("name", BARRED)
def test_what_is_barred_does_not_land(name: str) -> None:
    before, first, barring = BARRED[name](name)
    assert meet(first, barring, before) == (False, True)
    assert meet(barring, first, before) == (True, True), "what lands before it has its effect"


@pytest.mark.parametrize("name", APART)
def test_appends_that_need_not_meet_both_land(name: str) -> None:
    before, first, second = APART[name](name)
    assert meet(first, second, before) == (True, True)
    assert meet(second, first, before) == (True, True)
