"""The depths of queues, and their arrivals and departures, between two moments (pure)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.instants import instant
from txnqueue.core.model import Entry
from txnqueue.core.redelivery import Redelivery
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.core.state.queue import LaneState
from txnqueue.reports.audit.figures import DepthPoint, LaneLag, QueueDifference
from txnqueue.reports.tally import Tally

VERSIONS_MAX = 250
"""The approximate maximum number of points of a queue."""


@dataclass(slots=True)
class _Held:
    """What some lanes hold at an instant."""

    available: int = 0
    delayed: int = 0
    expired: int = 0
    in_flight: int = 0
    oldest_at_ms: int | None = None

    def add(self, lane: LaneState, at_ms: int, rules: Redelivery) -> None:
        """Count the messages of a lane, each of which is in one state.

        Nothing makes most messages wait, and there may be many: that is asked here.
        """
        available, oldest = 0, sys.maxsize
        for segment in lane.available:
            position = segment.position
            if (
                segment.failed_at_ms == 0
                and position.available_at_ms is None
                and position.expires_at_ms is None
            ) or segment.receivable(at_ms, rules):
                available += segment.last - segment.first + 1
                oldest = min(oldest, position.posted_at_ms)
            elif position.expired(at_ms):
                self.expired += segment.size
            else:
                self.delayed += segment.size
        self.available += available
        if available:
            self.oldest_at_ms = min(oldest, self.oldest_at_ms or oldest)
        self.in_flight += sum(claim.count for claim in lane.claims.values())

    def oldest_age_seconds(self, at_ms: int) -> float | None:
        """Return the age of the oldest available message; a clock that was ahead makes it new."""
        return None if self.oldest_at_ms is None else max(0, at_ms - self.oldest_at_ms) / 1000


class Depths:
    """Folds every queue that there ever was, and takes points between two moments."""

    def __init__(
        self, infos: Iterable[QueueInfo], after: int, upto: int, beginning: int = -1
    ) -> None:
        """Begin before the first entry.

        Args:
            infos: All queues that there ever were up to the second moment.
            after: The commit_seq of the first moment.
            upto: That of the second.
            beginning: The first commit_seq whose state is known.
        """
        self._after = after
        self._beginning = max(0, beginning)
        versions = model.version_of(upto) - model.version_of(max(after, 0))
        self.every_versions = max(1, -(-versions // VERSIONS_MAX))
        self._tallies = {info.queue_id: Tally(info) for info in infos}
        self._fence = {model.queue_stream(one): tally for one, tally in self._tallies.items()}
        self._dropped: dict[str, int] = {}
        self._before: dict[str, int] | None = None
        self._said: list[Entry] = []
        self._infos: dict[str, QueueInfo] = {}
        self._touched: set[str] = set()
        self._newest = -1
        self.at_ms = 0
        self.points: list[DepthPoint] = []

    def see(self, entry: Entry) -> None:
        """Record the next entry, in commit order."""
        begins = entry.commit_seq != self._newest
        self._turn_to(entry.commit_seq)
        # Each commit has its own clock: one that was ahead must not make all that follows late.
        self.at_ms = max(entry.recorded_at_ms, 0 if begins else self.at_ms)
        inside = entry.commit_seq > self._after
        if entry.shard == model.CATALOG and entry.kind in catalog.KINDS:
            self._said.append(entry)
            self._infos = {}
        if entry.shard == model.FENCE:
            self._fenced(entry, inside=inside)
        elif entry.queue_id in self._tallies:
            self._tallies[entry.queue_id].add(entry, known=inside)
            self._touched.add(entry.queue_id)

    def finish(self, at_ms: int) -> None:
        """Take the last points.

        Args:
            at_ms: The instant that the second moment is looked at.
        """
        if self._before is None:
            self._begin()
        self.at_ms = at_ms
        self._touched = set(self._tallies)
        self._take_points()

    def differences(self) -> Iterator[QueueDifference]:
        """Pass on what came and went in each queue that was there at some time between."""
        before = self._before or {}
        there = {info.queue_id for info in catalog.queues(self._said).values()}
        for queue_id, tally in self._tallies.items():
            counts, dropped = tally.row(self.at_ms), self._dropped.get(queue_id, 0)
            held = before.get(queue_id, 0)
            length = tally.fold.length()
            if queue_id not in there and queue_id not in self._dropped and not held:
                continue
            yield QueueDifference(
                queue=tally.info.name,
                messages_before=held,
                posted=counts["posted"] - held,
                accepted=counts["accepted"] - dropped,
                rejected=counts["rejected"],
                dead_lettered=counts["dead_lettered"],
                expired=counts["expired"] - self._over(tally),
                purged=counts["purged"],
                moved=counts["moved"],
                duplicates=counts["duplicates"],
                dropped=dropped,
                messages_after=length,
                there=queue_id in there,
            )

    def lanes(self) -> Iterator[LaneLag]:
        """Pass on what waits in each lane of each queue that is there at the end."""
        for info in catalog.queues(self._said).values():
            for lane in self._tallies[info.queue_id].fold.lanes.values():
                held = _Held()
                held.add(lane, self.at_ms, info.redelivery)
                yield LaneLag(
                    queue=info.name,
                    lane=lane.lane,
                    available=held.available,
                    delayed=held.delayed,
                    in_flight=held.in_flight,
                    oldest_age_seconds=held.oldest_age_seconds(self.at_ms),
                )

    def held(self) -> dict[str, tuple[QueueInfo, Tally]]:
        """Return by id the queues that are there at the end, with what is known of them."""
        infos = catalog.queues(self._said).values()
        return {info.queue_id: (info, self._tallies[info.queue_id]) for info in infos}

    # -------------------------------------------------------------------------- helpers

    def _turn_to(self, commit_seq: int) -> None:
        """Take points of the state after the last commit, if one is due before the next."""
        if commit_seq == self._newest:
            return
        if commit_seq > self._after and self._before is None:
            self._begin()
        elif self._newest > self._after and self._is_due(commit_seq):
            self._take_points()
        self._newest = commit_seq

    def _is_due(self, commit_seq: int) -> bool:
        every = self.every_versions
        version, newest = model.version_of(commit_seq), model.version_of(self._newest)
        return every == 1 or version // every != newest // every

    def _begin(self) -> None:
        self._before = {one: tally.fold.length() for one, tally in self._tallies.items()}
        for tally in self._tallies.values():
            tally.begin()
        self._touched = set(self._tallies)
        if self._newest >= self._beginning:
            self._take_points()

    def _take_points(self) -> None:
        """Measure each queue that was touched since the last points, and is there."""
        if not self._infos:
            self._infos = {one.queue_id: one for one in catalog.queues(self._said).values()}
        for queue_id in sorted(self._touched & self._infos.keys()):
            held, info = _Held(), self._infos[queue_id]
            fold = self._tallies[queue_id].fold
            for lane in fold.lanes.values():
                held.add(lane, self.at_ms, info.redelivery)
            self.points.append(
                DepthPoint(
                    queue=info.name,
                    commit_seq=self._newest,
                    at=instant(self.at_ms),
                    available=held.available,
                    delayed=held.delayed,
                    in_flight=held.in_flight,
                    purge_pending=fold.purge_pending(),
                    expired=held.expired,
                    oldest_age_seconds=held.oldest_age_seconds(self.at_ms),
                )
            )
        self._touched.clear()

    def _fenced(self, entry: Entry, *, inside: bool) -> None:
        tally = self._fence.get(entry.stream)
        if tally is None:
            return
        if entry.kind == model.QUEUE_DROPPED and inside:
            self._dropped[tally.info.queue_id] = tally.fold.length()
        tally.fold.apply(entry)

    def _over(self, tally: Tally) -> int:
        """Count what has expired and is still there: ``Tally.row`` takes it for gone."""
        return sum(
            segment.size
            for lane in tally.fold.lanes.values()
            for segment in lane.available
            if segment.position.expired(self.at_ms)
        )
