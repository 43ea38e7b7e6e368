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


@dataclass(slots=True)
class Tries:
    """The tries of one call so far.

    Attributes:
        planned: Each by lane with the sequence number planned there.
        wanted: The places of all entries of the last plan, whether it was tried or not; None
            before it is made, or if that failed.
    """

    planned: list[Mapping[int, int]] = field(default_factory=list)
    wanted: Places | None = None

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

    def want(self, entries: Iterable[Entry], queue_id: str) -> None:
        """Note what the last plan would write about a queue."""
        self.wanted = _places_of(entries, queue_id)

    def something_is_left(self, landed: Iterable[Entry], queue_id: str) -> bool:
        """Return whether an earlier try landed, and what the last plan wants may still be there.

        What lands at the places of the last plan is what that plan says: nothing else has come
        into those lanes since an earlier one.
        """
        if self.wanted is None:
            return True
        return bool(self.wanted) and _places_of(landed, queue_id) != self.wanted

    def _waiting(self, fold: QueueState) -> list[Mapping[int, int]]:
        """Return the tries that may still land: their places in all their lanes are still free."""
        return [
            places
            for places in self.planned
            if all(fold.lanes[lane].next_sequence == place for lane, place in places.items())
        ]


def _places_of(entries: Iterable[Entry], queue_id: str) -> Places:
    return frozenset((e.lane, e.sequence) for e in entries if e.queue_id == queue_id)
