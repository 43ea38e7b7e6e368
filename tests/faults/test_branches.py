"""Every interleaving of the sessions and coordinators of one branch, with faults."""

from __future__ import annotations

import pytest

from tests.conftest import LONG
from tests.faults import programs
from tests.faults.explore import explore

STATES_MAX = 20_000_000

TOGETHER = {
    "two parts and a coordinator": (
        programs.build_parts,
        {"A": programs.ender("A"), "B": programs.ender("B"), "C": programs.coordinator("C")},
        {},
    ),
    "a part and a one-phase commit, a time-out": (
        programs.build_parts,
        {"A": programs.ender("A"), "C": programs.coordinator("C", one_phase=True)},
        {"tick": 1},
    ),
    "who joins and who coordinates, a crash and a lost reply": (
        programs.build_branch,
        {"A": programs.joiner("A"), "C": programs.coordinator("C")},
        {"crash": 1, "lose": 1},
    ),
    "who joins and who commits in one phase, an append that lands late": (
        programs.build_branch,
        {"A": programs.joiner("A"), "C": programs.coordinator("C", one_phase=True)},
        {"late": 1},
    ),
    "two that start the same xid": (
        programs.build,
        {"A": programs.starter("A"), "B": programs.starter("B")},
        {},
    ),
    "a branch and another consumer, a time-out": (
        programs.build_parts,
        {"A": programs.ender("A"), "B": programs.consumer("B")},
        {"tick": 1},
    ),
    "a suspended session and a coordinator": (
        programs.build,
        {"A": programs.suspender("A"), "C": programs.coordinator("C")},
        {"lose": 1},
    ),
    "two coordinators and an operator": (
        programs.build_prepared,
        {
            "A": programs.coordinator("A", prepared=True),
            "B": programs.undoer("B"),
            "O": programs.operator("O"),
        },
        {"lose": 1},
    ),
}
FOR_LONG = ("two coordinators and an operator",)
LONG_FAULTS = {"crash": 1, "lose": 1, "late": 1, "tick": 1}
"""The long run lets all of it happen where two clients meet."""


@pytest.mark.parametrize("name", [one for one in TOGETHER if LONG or one not in FOR_LONG])
def test_no_interleaving_tears_a_branch(name: str) -> None:
    build, clients, faults = TOGETHER[name]
    faults = LONG_FAULTS if LONG and len(clients) == 2 else faults
    found = explore(build, clients, programs.judge, states_max=STATES_MAX, **faults)
    print(f"{name}: {found.states} states, {found.paths} paths, {found.ends}")
    assert not found.truncated, "the search was cut short"
    assert found.ends.get("A ok"), "vacuous: the first client never succeeded"
