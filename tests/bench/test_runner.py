"""The order in which sides are measured, how often, and for how long; without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.bench.case import Case, Group, Parts, Side
from tests.bench.runner import ROUNDS_MIN, Runner


class NoWorld:
    quick = False

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def begin_group(self) -> None:
        self.seen.append("begin")

    def calibrate(self) -> None:
        self.seen.append("calibrate")


def measured(
    *names: str, rounds: int, until: float = float("inf"), **settings: Any
) -> tuple[list[Any], list[str]]:
    seen: list[str] = []

    def side(name: str) -> Side:
        def run() -> Parts:
            seen.append(name)
            return {"it": 1.0}

        return Side(name, run, lambda: seen.append(f"before {name}"))

    def maker(name: str) -> Callable[[], Case]:
        sides = {key: side(f"{name} {key}") for key in ("txnqueue", "floor")}
        return lambda: Case(name, name, sides, **settings)

    world: Any = NoWorld(seen)
    group = Group("group", {name: maker(name) for name in names}, 1)
    found = Runner(world, rounds=rounds).measure(group, names[:2], until)
    return found, [name for name in seen if name != "calibrate"]


def test_each_side_is_measured_once_a_round_in_another_order_after_a_warm_up() -> None:
    found, seen = measured("a", "b", "not chosen", rounds=4)
    assert [one.case.name for one in found] == ["a", "b"]
    assert all(one.values(side) == [1.0] * 4 for one in found for side in ("txnqueue", "floor"))
    assert all(len(one.calibrations) == 5 for one in found)
    assert seen.pop(0) == "begin"
    runs = seen[1::2]
    assert seen[::2] == [f"before {name}" for name in runs]
    rounds = [tuple(runs[n : n + 4]) for n in range(0, 20, 4)]
    sides = {"a txnqueue", "a floor", "b txnqueue", "b floor"}
    assert len(runs) == 20 and all(set(one) == sides for one in rounds)
    assert len(set(rounds)) > 2


def test_when_there_is_no_time_there_are_three_rounds() -> None:
    (one,), _ = measured("a", rounds=8, until=time.monotonic())
    assert len(one.values("floor")) == ROUNDS_MIN


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_case_may_have_fewer_rounds_and_no_warm_up(rounds: int) -> None:
    (one,), seen = measured("a", rounds=8, rounds_max=rounds, warms=False)
    assert len(one.values("floor")) == rounds
    assert seen.count("a floor") == rounds


def test_a_case_that_fails_does_not_take_the_others_with_it() -> None:
    def broken() -> Parts:
        raise ConnectionError("away")

    def unprepared() -> Case:
        raise LookupError("not there")

    whole = {"floor": Side("floor", lambda: {"it": 1.0})}
    makers = {
        "good": lambda: Case("good", "good", whole),
        "bad": lambda: Case("bad", "bad", {**whole, "txnqueue": Side("txnqueue", broken)}),
        "worse": unprepared,
    }
    runner = Runner(cast(Any, NoWorld([])), rounds=2)
    (one,) = runner.measure(Group("group", makers, 1), list(makers), float("inf"))
    assert (one.case.name, one.values("floor")) == ("good", [1.0, 1.0])
    assert {name: type(error) for name, error in runner.failed.items()} == {
        "bad": ConnectionError,
        "worse": LookupError,
    }
