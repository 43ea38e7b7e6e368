"""The lanes of a claim's next try while an earlier try may still land (pure).

An entry of a lane bars every other entry planned for the same place in it. So tries that share a
lane exclude each other: at most one of them lands, and no more is taken than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txnqueue.core.model import Entry
from txnqueue.core.state import QueueState

Places = frozenset[tuple[int | None, int | None]]
NOTHING: Places = frozenset()


def places_of(entries: Iterable[Entry], queue_id: str) -> Places:
    """Return the places in the lanes of a queue that entries have, or are planned for.

    What lands at the places of the last plan is what that plan says: nothing else has come into
    those lanes since an earlier one.
    """
    return frozenset((e.lane, e.sequence) for e in entries if e.queue_id == queue_id)


@dataclass(slots=True)
class Tries:
    """The tries of one call so far, each by lane with the sequence number planned there."""

    planned: list[Mapping[int, int]] = field(default_factory=list)

    def note(self, places: Mapping[int, int]) -> None:
        """Remember one more try."""
        self.planned.append(dict(places))

    def in_order(self, fold: QueueState, lanes: Iterable[int]) -> list[int]:
        """Order lanes: those of tries that may still land first, those of the lost try last."""
        waiting = dict.fromkeys(lane for places in self._waiting(fold) for lane in places)
        lost = self.planned[-1] if self.planned else {}
        others = [lane for lane in lanes if lane not in waiting]
        return [*waiting, *sorted(others, key=lambda lane: lane in lost)]

    def excluded_by(self, fold: QueueState, lanes: Iterable[int]) -> bool:
        """Return whether every earlier try that may still land shares one of the given lanes."""
        chosen = set(lanes)
        return all(not chosen.isdisjoint(places) for places in self._waiting(fold))

    def _waiting(self, fold: QueueState) -> list[Mapping[int, int]]:
        """Return the tries that may still land: their places in all their lanes are still free."""
        return [
            places
            for places in self.planned
            if all(fold.lanes[lane].next_sequence == place for lane, place in places.items())
        ]
