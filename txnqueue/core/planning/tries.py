"""Which lanes a claim goes to when an earlier try of it may still land.

An entry of a lane bars every other that was planned for the same place there. So tries that
share a lane exclude each other: one of them lands at most, and takes no more than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txnqueue.core.state import QueueState


@dataclass(slots=True)
class Tries:
    """What one call has planned so far: by lane, the place of its entry there."""

    planned: list[Mapping[int, int]] = field(default_factory=list)

    def note(self, places: Mapping[int, int]) -> None:
        """Remember one more try."""
        self.planned.append(dict(places))

    def in_order(self, fold: QueueState, lanes: Iterable[int]) -> list[int]:
        """Put the lanes of tries that may still land first, and those of lost ones last."""
        waiting = dict.fromkeys(lane for places in self._waiting(fold) for lane in places)
        lost = self.planned[-1] if self.planned else {}
        others = [lane for lane in lanes if lane not in waiting]
        return [*waiting, *sorted(others, key=lambda lane: lane in lost)]

    def excluded_by(self, fold: QueueState, lanes: Iterable[int]) -> bool:
        """Return whether every earlier try that may still land goes to one of some lanes."""
        chosen = set(lanes)
        return all(not chosen.isdisjoint(places) for places in self._waiting(fold))

    def _waiting(self, fold: QueueState) -> list[Mapping[int, int]]:
        """The tries that nothing bars yet: what each expects of its lanes still holds."""
        return [
            places
            for places in self.planned
            if all(fold.lanes[lane].next_sequence == place for lane, place in places.items())
        ]
