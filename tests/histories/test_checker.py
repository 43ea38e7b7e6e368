"""The checker finds what is wrong with a history by its name, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.histories import checker, stories
from tests.histories.cycles import RT, RW, WR, WW, Edge, worst
from tests.histories.history import loaded
from tests.histories.stories import Story


@pytest.mark.parametrize("story", stories.GOOD, ids=lambda one: one.__name__)
def test_nothing_is_wrong_with_a_good_history(story: Callable[[], Story]) -> None:
    assert not [str(found) for found in checker.check(story().told())]


@pytest.mark.parametrize("story", stories.BAD, ids=lambda one: one.__name__)
def test_a_bad_history_is_found_out(story: Callable[[], Story]) -> None:
    found = {one.name for one in checker.check(story().told())}
    assert stories.BAD[story] in found


@pytest.mark.parametrize("left_out", checker.CHECKS, ids=lambda one: one.__name__)
def test_each_check_finds_something_that_no_other_one_finds(
    left_out: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(one for one in checker.CHECKS if one is not left_out)
    monkeypatch.setattr(checker, "CHECKS", others)
    missed = [
        story.__name__
        for story, name in stories.BAD.items()
        if name not in {one.name for one in checker.check(story().told())}
    ]
    assert missed


def test_there_are_enough_stories_of_each_sort() -> None:
    assert len(stories.GOOD) >= 5
    assert len(set(stories.BAD.values())) >= 15


def test_a_history_that_was_written_down_is_read_as_it_was() -> None:
    for story in (*stories.GOOD, *stories.BAD):
        history = story().told()
        again = loaded(history.dumped())
        assert again == history
        assert list(map(str, checker.check(again))) == list(map(str, checker.check(history)))


def test_a_witness_shows_what_was_called_and_what_the_journal_says() -> None:
    (found,) = checker.check(stories.lost_commit().told())[:1]
    assert "c1 commit T1 ok" in str(found)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((WW, WW), "G0"),
        ((WW, WR), "G1c"),
        ((WR, RW), "G-single"),
        ((RW, WW, RW), "G2"),
        ((WW, RT), "G0-realtime"),
        ((WR, RT), "G1c-realtime"),
        ((RW, RT), "G-single-realtime"),
        ((RW, RT, RW), "G2-realtime"),
    ],
)
def test_a_circle_is_called_by_its_edges(kinds: tuple[str, ...], name: str) -> None:
    nodes = [str(n) for n in range(len(kinds))]
    around = [Edge(nodes[n - 1], nodes[n], kind) for n, kind in enumerate(kinds)]
    beside = [Edge("x", nodes[0], WW), Edge(nodes[0], "y", RW), Edge("y", "z", WR)]
    found = worst([*beside, *around])
    assert found is not None
    assert found.name == name
    assert {edge.before for edge in found.edges} == set(nodes)
    assert worst([*beside, *around[1:]]) is None


def test_the_shortest_circle_is_shown() -> None:
    long = [Edge(str(n), str((n + 1) % 6), WW) for n in range(6)]
    found = worst([*long, Edge("3", "2", WW)])
    assert found is not None
    assert str(found) in ("2 -ww-> 3 -ww-> 2", "3 -ww-> 2 -ww-> 3")
