"""Every interleaving of the real code's store calls, with faults, on the store in memory."""

from __future__ import annotations

import pytest

from tests.conftest import LONG
from tests.faults import programs
from tests.faults.explore import Found, explore

STATES_MAX = 20_000_000
EVERYTHING = {"crash": 1, "lose": 1, "late": 1, "tick": 1}
"""The long run lets all of it happen, in each of the programs; but not to a drain, which makes so
many calls that it would take hours."""

TOGETHER = {
    "two transactions, a crash, a lost reply, a take-over": (
        {"A": programs.consumer("A"), "B": programs.consumer("B")},
        {"crash": 1, "lose": 1, "tick": 1},
    ),
    "two transactions, a crash, a lost reply": (
        {"A": programs.consumer("A"), "B": programs.consumer("B")},
        {"crash": 1, "lose": 1},
    ),
    "two transactions, an append that lands late": (
        {"A": programs.consumer("A"), "B": programs.consumer("B")},
        {"late": 1},
    ),
    "two transactions that change a table": (
        {"A": programs.changer("A"), "B": programs.changer("B")},
        {"crash": 1, "lose": 1},
    ),
    "a table change and a recovery": (
        {"A": programs.changer("A"), "B": programs.recoverer("B")},
        {"crash": 1, "lose": 1},
    ),
    "two attempts of one key": (
        {"A": programs.consumer("A", "K"), "B": programs.consumer("B", "K")},
        {"crash": 1, "lose": 1},
    ),
    "a transaction and an acknowledgement under a lease": (
        {"A": programs.consumer("A"), "B": programs.acknowledger("B")},
        {"lose": 1, "tick": 1},
    ),
    "two acknowledgements": (
        {"A": programs.acknowledger("A"), "B": programs.acknowledger("B")},
        {"lose": 1, "tick": 1},
    ),
    "a leased message settled in a transaction": (
        {"A": programs.binder("A"), "B": programs.consumer("B")},
        {"crash": 1, "tick": 1},
    ),
    "a prepared transaction and a recovery": (
        {"A": programs.preparer("A", "K"), "B": programs.recoverer("B")},
        {"crash": 1, "tick": 1},
    ),
    "a prepared transaction and another consumer": (
        {"A": programs.preparer("A", "K"), "B": programs.consumer("B")},
        {"crash": 1, "tick": 1},
    ),
    "a roll back and another consumer": (
        {"A": programs.rolls_back("A"), "B": programs.consumer("B")},
        {"crash": 1, "late": 1},
    ),
    "a drain and another consumer": (
        {"A": programs.drainer("A"), "B": programs.consumer("B")},
        {"lose": 1},
    ),
    "a drain that dies and another consumer": (
        {"A": programs.drainer("A"), "B": programs.consumer("B")},
        {"crash": 1},
    ),
    "a drain that is interrupted": (
        {"A": programs.drainer("A"), "B": programs.recoverer("B")},
        {"crash": 1, "tick": 1},
    ),
}


DROPPING = {
    "a drop and a commit": ({"A": programs.consumer("A"), "B": programs.dropper("B")}, {"lose": 1}),
    "a drop, a prepare and its commit": (
        {"A": programs.preparer("A", "K"), "B": programs.dropper("B")},
        {"crash": 1},
    ),
    "two drops": ({"A": programs.dropper("A"), "B": programs.dropper("B")}, {"crash": 1}),
    "a drop of the queue that is consumed": (
        {"A": programs.dropper("A", "in"), "B": programs.acknowledger("B")},
        {"late": 1},
    ),
}
"""What is judged otherwise, because a queue goes away."""
DROPPING_IN_SHORT = ("a drop, a prepare and its commit",)


IN_SHORT = (
    "two transactions, a crash, a lost reply",
    "a table change and a recovery",
)
"""What the default run explores; the long one explores all, with more faults."""


def together(name: str, *, everything: bool) -> Found:
    """Explore one of the programs, with the faults of its own or with all of them."""
    clients, faults = TOGETHER[name]
    faults = EVERYTHING if everything and not name.startswith("a drain") else faults
    found = explore(programs.build, clients, programs.judge, states_max=STATES_MAX, **faults)
    return _whole(found)


def dropping(name: str) -> Found:
    """Explore one of the programs in which a queue goes away."""
    clients, faults = DROPPING[name]
    judge = programs.judge_drop if "consumed" not in name else programs.judge_source_dropped
    found = _whole(explore(programs.build, clients, judge, states_max=STATES_MAX, **faults))
    assert len(found.ends) > 2, "vacuous: they never met"
    return found


def _whole(found: Found) -> Found:
    assert not found.truncated, "the search was cut short"
    assert found.ends.get("A ok"), "vacuous: the first client never succeeded"
    return found


@pytest.mark.parametrize("name", TOGETHER if LONG else IN_SHORT)
def test_no_interleaving_breaks_a_promise(name: str) -> None:
    assert together(name, everything=LONG).states > 100


@pytest.mark.parametrize("name", DROPPING if LONG else DROPPING_IN_SHORT)
def test_no_interleaving_with_a_drop_breaks_a_promise(name: str) -> None:
    assert dropping(name).states > 100
