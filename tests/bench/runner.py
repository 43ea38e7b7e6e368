"""Measures groups of cases: sides in shuffled order, in rounds, with a calibration between them."""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.case import Case, Group, Parts, Side, seconds
from tests.bench.ratios import DRIFT_MAX, drift
from tests.bench.world import World

ROUNDS_MIN = 3
CALIBRATIONS = 5
"""Appends whose median is one calibration."""


@dataclass
class Measured:
    """What a case gave.

    Attributes:
        case: The case.
        samples: What each side took, by round.
        calibrations: What the calibration took: before the first round, between them, at the end.
    """

    case: Case
    samples: dict[str, list[Parts]] = field(default_factory=lambda: defaultdict(list))
    calibrations: list[float] = field(default_factory=list)

    @property
    def drift(self) -> float:
        """How far the calibration was from its median."""
        return drift(self.calibrations)

    @property
    def void(self) -> bool:
        """Whether the machine was too unsteady to believe any of it."""
        return self.drift > DRIFT_MAX

    def values(self, side: str) -> list[float]:
        """Give what a side took as a whole, by round."""
        return [sum(parts.values()) for parts in self.samples[side]]


class Runner:
    """Measures what it is given within the time that there is."""

    def __init__(
        self,
        world: World,
        *,
        rounds: int,
        say: Callable[[str], None] = lambda line: None,
        seed: int = 0,
    ) -> None:
        """Set the bounds.

        Args:
            world: What the cases work on.
            rounds: At most so many rounds of each case.
            say: Told what is going on.
            seed: Of the order.
        """
        self._world, self._rounds, self._say = world, rounds, say
        self._random = random.Random(seed)
        self.failed: dict[str, Exception] = {}
        """Cases that could not be prepared, or measured to the end, and why."""

    def measure(self, group: Group, chosen: Collection[str], until: float) -> list[Measured]:
        """Measure the cases of a group that were chosen.

        What fails is left out, and noted in ``failed``.

        Args:
            group: The group.
            chosen: The names of its cases that are wanted.
            until: By the clock of ``time.monotonic``: no round begins that would end later,
                once there are three of them.
        """
        self._world.begin_group()
        found = list(self._prepared(group, chosen))
        if not self._world.quick:
            self._round(group, [one for one in found if one.case.warms], "warming up", counts=False)
        calibrations, longest = [self._calibrate()], 0.0
        for number in range(self._rounds):
            now = time.monotonic()
            if number >= ROUNDS_MIN and now + longest > until:
                break
            due = [one for one in found if number < one.case.rounds_max]
            if not self._sound(due):
                break
            self._round(group, due, f"round {number + 1}", counts=True)
            calibrations.append(self._calibrate())
            longest = max(longest, time.monotonic() - now)
        for one in found:
            one.calibrations = calibrations
        return self._sound(found)

    def _prepared(self, group: Group, chosen: Collection[str]) -> Iterator[Measured]:
        for name in chosen:
            self._say(f"{group.name}: preparing {name}")
            try:
                yield Measured(group.makers[name]())
            except Exception as error:
                self.failed[name] = error

    def _sound(self, found: Sequence[Measured]) -> list[Measured]:
        return [one for one in found if one.case.name not in self.failed]

    def _round(self, group: Group, due: Sequence[Measured], title: str, *, counts: bool) -> None:
        sides = [(one, name) for one in due for name in one.case.sides]
        self._random.shuffle(sides)
        for one, name in sides:
            if one.case.name in self.failed:
                continue
            self._say(f"{group.name}, {title}: {one.case.name}, {name}")
            try:
                parts = self._taken(one.case.sides[name])
            except Exception as error:
                self.failed[one.case.name] = error
                continue
            if counts:
                one.samples[name].append(parts)

    @staticmethod
    def _taken(side: Side) -> Parts:
        side.before()
        gc.collect()
        return side.run()

    def _calibrate(self) -> float:
        self._say("calibrating")
        times = 1 if self._world.quick else CALIBRATIONS
        return median(seconds(self._world.calibrate) for _ in range(times))
