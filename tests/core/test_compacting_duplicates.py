"""Compaction of a queue that tells duplicates: whoever folds from it tells the same ones."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.test_compacting import CompactedLog, state
from tests.core.test_ledger import LEASE, offsets
from txnqueue.core import model, planning, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning import Selection, Stamp
from txnqueue.core.redelivery import AT_ONCE, CLOCKS_APART_MS
from txnqueue.core.state import LaneState, QueueState, Segment
from txnqueue.core.state import compaction as compacting
from txnqueue.core.state.duplicates import digest, write_ids

LANES = 2
MINUTE_MS = 60_000
WINDOW_MS = 120 * MINUTE_MS
APART_MS = 25 * MINUTE_MS
STEPS = 120


class Unique(CompactedLog):
    """Some days of a queue that delivers each id once in a while."""

    def __init__(self, seed: int) -> None:
        super().__init__(LANES)
        self.random = random.Random(seed)
        self.fold = QueueState("q", LANES, WINDOW_MS)
        self.now_ms = 10**9
        self.names: dict[PositionId, list[str]] = {}
        self.firsts: defaultdict[str, list[int]] = defaultdict(list)
        self.twice: set[tuple[PositionId, int]] = set()
        self.forgotten = 0

    def stamp(self) -> Stamp:
        """Say when it is, by somebody's clock."""
        return Stamp("me", None, self.now_ms + self.random.randint(-APART_MS, APART_MS))

    def plan(self, lane: int) -> Entry:
        return compacting.compact(self.fold, lane, self.stamp()).entries[0]

    def cold(self, without: Any = ()) -> QueueState:
        fold = QueueState("q", LANES, WINDOW_MS)
        kept = [entry for entry in self.entries if entry.entry_id not in without]
        compacting.advance(fold, kept, self.version)
        return fold

    def tidied(self) -> QueueState:
        """Fold what is left when everything superfluous has gone."""
        gone = {entry.entry_id for entry in self.superfluous()}
        self.forgotten += sum(e.kind == model.POSTED for e in self.superfluous())
        return self.cold(gone)

    # ----------------------------------------------------------------- what happens

    def send(self) -> None:
        lane, size = self.random.randrange(LANES), self.random.randint(1, 4)
        names = [self.random.choice("abcdefgh") for _ in range(size)]
        body: dict[str, Any] = {"payload": "p", "slice": 0, "send": f"s{self.version}"}
        if self.random.random() < 0.5:
            body["ids"] = write_ids(map(digest, names))
        at_ms = self.stamp().now_ms
        entry = Entry("backlog/q", f"lane/{lane}", model.POSTED, queue_id="q", lane=lane)
        said = replace(entry, ranges=((0, size - 1),), body=body, recorded_at_ms=at_ms)
        version = self.version + 1
        self.names[f"a{version}", 0] = names
        for offset, name in enumerate(names):
            if any(at_ms < first + WINDOW_MS for first in self.firsts[name]):
                self.twice.add(((f"a{version}", 0), offset))
            else:
                self.firsts[name].append(at_ms)
        self.append(said)

    def claim_by(self, fold: QueueState) -> None:
        """Take messages by what somebody knows."""
        lane = fold.lanes[self.random.randrange(LANES)]
        left_out = self.left_out(fold)
        limit = self.random.randint(1, 6)
        chosen = planning.select(lane, (), limit, self.now_ms, AT_ONCE, left_out=left_out)
        self.check(chosen.segments, duplicates=False)
        self.check(chosen.duplicates, duplicates=True)
        self.land_claim(chosen)

    def land_claim(self, chosen: Selection) -> None:
        entries: tuple[Entry, ...] = ()
        if chosen.duplicates:
            said = planning.leaving_out(chosen.duplicates)
            plan, chosen = planning.remove("q", "q", chosen, said, self.stamp())
            entries += plan.entries
        if chosen.segments:
            entries += planning.claim("q", chosen, LEASE, 2_000, self.stamp()).entries
        if entries:
            self.append(*entries)

    def end_claim(self) -> None:
        claims = self.fold.claims()
        if claims:
            kind = self.random.choice((model.ACCEPTED, model.ACCEPTED, model.RELEASED))
            self.settle(self.random.choice(claims), kind)

    # ---------------------------------------------------------------- what must be so

    def left_out(self, fold: QueueState) -> Callable[[Segment], tuple[Range, ...]]:
        """Say what is a duplicate, as ``finding`` does, by what a fold knows."""
        known = fold.duplicates
        assert known is not None

        def of(segment: Segment) -> tuple[Range, ...]:
            position = segment.position
            if not known.looked_at(position.position_id):
                arrivals = known.to_look_at(position, self.now_ms)
                for arrival in arrivals:
                    names = self.names[arrival.position.position_id]
                    arrival.ids = b"".join(map(digest, names))
                known.learn(arrivals)
            return known.of(position.position_id)

        return of

    def check(self, segments: list[Segment], *, duplicates: bool) -> None:
        for segment in segments:
            for offset in range(segment.first, segment.last + 1):
                found = (segment.position.position_id, offset)
                assert (found in self.twice) == duplicates, f"{found} is told wrongly"

    def check_all(self, fold: QueueState) -> None:
        """Check what a fold says of everything that waits."""
        left_out = self.left_out(fold)
        for lane in fold.lanes.values():
            for segment in lane.available:
                said = offsets(ranges.intersection(left_out(segment), (whole(segment),)))
                position_id = segment.position.position_id
                twice = [n for n in offsets((whole(segment),)) if (position_id, n) in self.twice]
                assert said == twice, f"{position_id}: {said}, not {twice}"


def whole(segment: Segment) -> Range:
    return (segment.first, segment.last)


def play(seed: int) -> Unique:
    """Live for some days, and look at everything after each step."""
    log = Unique(seed)
    for _ in range(STEPS):
        chance = log.random.random()
        if chance < 0.3:
            log.send()
        elif chance < 0.55:
            log.claim_by(log.random.choice((log.fold, log.tidied())))
        elif chance < 0.7:
            log.end_claim()
        elif chance < 0.85:
            log.compact(log.random.randrange(LANES))
        else:
            log.now_ms += log.random.choice((1, 10, 60, 200, 600)) * MINUTE_MS
        cold = log.tidied()
        assert state(cold) == state(log.fold)
        assert cold.left_out == log.fold.left_out
        log.check_all(cold)
        log.check_all(log.fold)
    return log


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whoever_folds_from_a_compaction_tells_the_same_duplicates(first: int) -> None:
    played = [play(seed) for seed in range(first, first + 10)]
    assert sum(log.forgotten for log in played) > 100, "nothing ever left"
    assert sum(len(log.twice) for log in played) > 100, "nothing ever came twice"


def test_what_a_compaction_drops_is_not_read_by_a_client_whose_clock_is_behind() -> None:
    """Its payload may be gone."""
    log = CompactedLog()
    log.fold = QueueState("q", 1, WINDOW_MS)
    log.post((0, 3))
    log.settle(log.claim(), model.ACCEPTED)
    said = compacting.compact(log.fold, 0, Stamp("me", None, 10 * WINDOW_MS))
    log.land(said.entries[0])
    left = log.fold.positions[log.post((0, 3))]
    known = log.fold.duplicates
    assert known is not None
    assert [arrival.position for arrival in known.to_look_at(left, 0)] == [left]


def with_duplicates(count: int) -> QueueState:
    """Make a queue whose lane has had so many duplicates, posted at the first instant."""
    fold = QueueState("q", 1, WINDOW_MS)
    fold.lanes[0].log = 20
    fold.lanes[0].duplicates = {(f"a{n}", 0): (1, ((0, 0),)) for n in range(count)}
    return fold


PASSED_MS = 1 + CLOCKS_APART_MS + WINDOW_MS


@pytest.mark.parametrize(("told", "pays"), [(10, True), (11, False)])
def test_a_compaction_that_would_name_many_duplicates_does_not_pay(told: int, pays: bool) -> None:
    fold = with_duplicates(told)
    assert compacting.is_due(fold, fold.lanes[0], PASSED_MS - 1, 20) is pays
    assert compacting.is_due(fold, fold.lanes[0], PASSED_MS, 20), "it would name none of them"


@pytest.mark.parametrize(("most", "due"), [(11, True), (10, False)])
def test_a_compaction_of_very_many_duplicates_waits_until_the_window_has_passed(
    monkeypatch: pytest.MonkeyPatch, most: int, due: bool
) -> None:
    fold = with_duplicates(11)
    monkeypatch.setattr(compacting, "RUNS_MAX", 0)
    monkeypatch.setattr(compacting, "DUPLICATES_MAX", most)
    assert compacting.is_due(fold, fold.lanes[0], PASSED_MS - 1, 1, 1) is due
    assert compacting.is_due(fold, fold.lanes[0], PASSED_MS, 1, 1)


def test_after_a_clock_that_was_ahead_what_is_recent_is_told_by_the_present_one() -> None:
    fold, now_ms = QueueState("q", 1, WINDOW_MS), 10**9
    recent_ms = now_ms - CLOCKS_APART_MS - WINDOW_MS
    for before_ms, expected in ((0, recent_ms), (now_ms, now_ms), (now_ms + 1, recent_ms)):
        fold.lanes[0].recent_after = before_ms
        assert compacting.recent_after(fold, fold.lanes[0], now_ms) == expected


def test_what_was_posted_after_a_compaction_stands() -> None:
    log = CompactedLog()
    log.fold = QueueState("q", 1, WINDOW_MS)
    log.post((0, 1))
    log.settle(log.claim(), model.ACCEPTED)
    log.compact()
    log.post((0, 1))
    fold = QueueState("q", 1, WINDOW_MS)
    compacting.advance(fold, log.entries, log.version)
    assert fold.duplicates is not None
    (position,) = fold.positions.values()
    assert [one.stands for one in fold.duplicates.to_look_at(position, 1_000)][-1]


def test_who_has_not_searched_knows_what_others_have_left_out() -> None:
    log = CompactedLog()
    log.fold = QueueState("q", 1, WINDOW_MS)
    log.post((0, 3))
    chosen = log.select(2, left_out=lambda segment: ((1, 1),))
    said = planning.leaving_out(chosen.duplicates)
    log.append(*planning.remove("q", "q", chosen, said, Stamp("me", None, 1_000))[0].entries)
    assert log.fold.duplicates is not None
    (position,) = log.fold.positions.values()
    (arrival,) = log.fold.duplicates.to_look_at(position, 1_000)
    assert arrival.left_out == ((1, 1),)


def keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let positions leave as soon as nothing of them stands."""
    patch.setattr(compacting, "stays", lambda entry, compaction: False)


def looks_at_the_clock_only(patch: pytest.MonkeyPatch) -> None:
    """Keep what was posted less than a window before now, whatever waits."""
    patch.setattr(
        compacting,
        "recent_after",
        lambda fold, lane, now_ms: max(lane.recent_after, now_ms - CLOCKS_APART_MS - WINDOW_MS),
    )


def trusts_clocks(patch: pytest.MonkeyPatch) -> None:
    """Keep no more than a window."""
    patch.setattr(compacting, "CLOCKS_APART_MS", -APART_MS)


def forgets_what_was_left_out(patch: pytest.MonkeyPatch) -> None:
    """Do not write down which of the positions were duplicates."""
    patch.setattr(LaneState, "leave_out", lambda *given: None)


def restores_lane_by_lane(patch: pytest.MonkeyPatch) -> None:
    """Restore what came lately in the order of lanes, not of commits."""
    real = compacting._arrivals

    def arrivals(*given: Any) -> Any:
        return sorted(real(*given), key=lambda one: (one.position.lane, one.position.place))

    patch.setattr(compacting, "_arrivals", arrivals)


@pytest.mark.parametrize(
    "broken",
    [
        keeps_nothing,
        looks_at_the_clock_only,
        trusts_clocks,
        forgets_what_was_left_out,
        restores_lane_by_lane,
    ],
)
def test_a_broken_compaction_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(60):
            play(seed)
