"""Compaction: a fold from the newest compaction is the fold from the beginning."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_ledger import LEASE, OTHER, STAMP, TX, Log
from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.planning import Disposition, Removal, Selection, Stamp
from txnqueue.core.redelivery import AT_ONCE
from txnqueue.core.state import AttemptOwner, LeaseOwner, QueueState, Segment, compaction
from txnqueue.errors import StoreCorrupt

LANES = 2
STEPS = 60


class CompactedLog(Log):
    """A log that compactions are written into, from whatever version."""

    def compact(self, lane: int = 0) -> Entry:
        return self.land(self.plan(lane))

    def plan(self, lane: int) -> Entry:
        return compaction.compact(self.fold, lane, STAMP).entries[0]

    def land(self, entry: Entry) -> Entry:
        body = json.loads(json.dumps(dict(entry.body)))  # what the store gives back
        (written,) = self.append(replace(entry, body=body))[:1]
        assert isinstance(written, Entry)
        return written

    def cold(self, without: Any = ()) -> QueueState:
        fold = QueueState("q", len(self.fold.lanes))
        kept = [entry for entry in self.entries if entry.entry_id not in without]
        compaction.advance(fold, kept, self.version)
        return fold

    def superfluous(self) -> list[Entry]:
        """What the newest compactions made superfluous."""
        newest = {e.lane: e for e in self.entries if e.kind == model.COMPACTED}
        return [
            e
            for e in self.entries
            if e.lane in newest
            and e is not newest[e.lane]
            and not compaction.is_after(e, newest[e.lane])
            and e.entry_id not in compaction.names(newest[e.lane])
            and not compaction.stays(e, newest[e.lane])
        ]


def state(fold: QueueState) -> Any:
    """Everything that a fold knows, but how long its logs are."""
    lanes = {
        number: (lane.next_sequence, lane.available, lane.claims, lane.touched)
        for number, lane in fold.lanes.items()
    }
    return lanes, fold.positions, fold._unretired


def live(log: CompactedLog, chance: random.Random) -> None:
    """Do something in the life of a queue."""
    lane = chance.randrange(LANES)
    claims = [c for c in log.fold.claims() if c.lane == lane]
    often = ("post", "post", "claim", "claim", "settle", "settle")
    act = chance.choice((*often, "void", "extend", "bind", "purge", "refuse", "purge in flight"))
    if act == "post":
        first = chance.randrange(5)
        parts = [(first, first + chance.randrange(6))]
        if chance.random() < 0.3:
            parts.append((20, 20 + chance.randrange(3)))
        log.post(*parts, lane=lane, priority=chance.choice((4, 4, 4, 9)))
    elif act == "claim":
        log_claim(log, lane, chance)
    elif act == "void" and claims:
        log_claim(log, lane, chance, ended=[chance.choice(claims)])
    elif act == "settle" and claims:
        claim = chance.choice(claims)
        kind = chance.choice((model.ACCEPTED, model.RELEASED, model.REJECTED))
        items: Any = None
        if chance.random() < 0.5:
            position_id, pending = next(iter(claim.items.items()))
            items = ((position_id, ((pending[0][0], pending[0][0]),)),)
        owner = claim.attempt
        log.settle(claim, kind, items, owner, counted=chance.random() < 0.5)
    elif act in ("extend", "bind") and claims:
        claim = chance.choice(claims)
        sequence = log.fold.lanes[lane].next_sequence
        if act == "extend":
            log.append(planning.lease_extended("q", claim, sequence, 9_000, STAMP))
        elif isinstance(claim.owner, LeaseOwner):
            log.append(planning.bind("q", claim, OTHER, sequence, STAMP))
    elif act == "refuse" and claims:
        claim = chance.choice(claims)
        place = None if claim.attempt is not None else log.fold.lanes[lane].next_sequence
        refused = Disposition(model.RELEASED, counted=True, undeliverable_here=True)
        owner = claim.attempt if place is None else None
        log.append(planning.settlement("q", claim, refused, STAMP, sequence=place, owner=owner))
    elif act == "purge in flight" and claims:
        held = [
            Segment(log.fold.positions[position_id], parts[0][0], parts[0][0])
            for position_id, parts in chance.choice(claims).items.items()
        ]
        chosen = Selection(lane, log.fold.lanes[lane].next_sequence)
        plan, _ = planning.purge_pending("q", chosen, held, STAMP, "why")
        log.append(*plan.entries)
    elif act == "purge":
        chosen = log.select(lane=lane, limit=2)
        if chosen.segments:
            removal = Removal(model.PURGED, tuple(chosen.segments), "why")
            chosen.segments = []
            plan, _ = planning.remove("q", "q", chosen, removal, STAMP)
            log.append(*plan.entries)


def log_claim(log: CompactedLog, lane: int, chance: random.Random, ended: Any = ()) -> None:
    chosen = log.select(chance.randrange(1, 12), lane, ended)
    owner = chance.choice((LEASE, TX, OTHER))
    if chosen.segments:
        counts = chance.random() < 0.8
        log.append(*planning.claim("q", chosen, owner, 2_000, STAMP, counts=counts).entries)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_a_fold_from_the_newest_compaction_is_the_fold_from_the_beginning(seed: int) -> None:
    chance, log = random.Random(seed), CompactedLog(LANES)
    planned: tuple[int, Entry] | None = None
    for _ in range(STEPS):
        if planned is None and chance.random() < 0.15:
            lane = chance.randrange(LANES)
            planned = (lane, log.plan(lane))
        elif planned is not None and chance.random() < 0.5:
            lane, entry = planned
            planned = None
            # Like every entry of the lane it lands only if nobody took its number. Facts of
            # the backlog may have landed since its pin.
            if entry.sequence == log.fold.lanes[lane].next_sequence:
                log.land(entry)
        else:
            live(log, chance)
        expected = state(log.fold)
        assert state(log.cold()) == expected
        superfluous = log.superfluous()
        some = chance.sample(superfluous, chance.randint(0, len(superfluous)))
        assert state(log.cold({e.entry_id for e in some})) == expected
        assert state(log.cold({e.entry_id for e in superfluous})) == expected


def test_facts_that_landed_after_the_pin_count() -> None:
    log = CompactedLog()
    log.post((0, 9))
    held = log.claim(4, TX)
    entry = log.plan(0)
    log.settle(held, model.ACCEPTED, owner=TX)
    log.post((50, 59))
    log.land(entry)
    fold = log.cold({e.entry_id for e in log.superfluous()})
    assert state(fold) == state(log.fold)
    assert fold.available(0, AT_ONCE) == 16
    assert fold.in_flight() == 0


def test_delivery_counts_and_the_size_of_the_former_claim_are_carried() -> None:
    log = CompactedLog()
    log.post((0, 19))
    log.settle(log.claim(20), model.RELEASED, counted=True)
    log.compact()
    fold = log.cold({e.entry_id for e in log.superfluous()})
    assert [(s.delivery_count, s.former) for s in fold.lanes[0].available] == [(1, 20)]


def test_every_process_writes_what_is_purged_in_flight_in_the_same_order() -> None:
    """A process of its own would have an order of its own, and take the others' for wrong."""
    log = CompactedLog()
    for _ in range(9):
        log.post((0, 1))
    held = log.claim(18)
    pending = [Segment(log.fold.positions[name], 0, 1) for name in held.items]
    chosen = Selection(0, log.fold.lanes[0].next_sequence)
    log.append(*planning.purge_pending("q", chosen, pending, STAMP, "why")[0].entries)
    (said,) = log.compact().body["in_flight"]
    assert said["purging"] == said["items"]
    assert len(said["purging"]) == 9


def test_positions_that_nobody_touched_are_not_written_out() -> None:
    log = CompactedLog()
    for _ in range(50):
        log.post((0, 9))
    log.claim(5)
    entry = log.compact()
    assert len(entry.body["waiting"]) == len(compaction.names(entry)) == 1
    assert log.cold().available(0, AT_ONCE) == 495


def test_a_position_that_is_missing_is_an_error() -> None:
    log = CompactedLog()
    position_id = log.post((0, 9))
    log.claim(5)
    log.compact()
    with pytest.raises(StoreCorrupt, match="names the position"):
        log.cold({position_id})


def is_due(log: CompactedLog, log_max: int, per_run: int = 2) -> bool:
    return compaction.is_due(log.fold, log.fold.lanes[0], 0, log_max, per_run)


def test_a_compaction_pays_when_the_log_is_much_longer_than_it() -> None:
    log = CompactedLog()
    log.post((0, 99))
    for _ in range(10):
        log.settle(log.claim(10), model.RELEASED)
    lane = log.fold.lanes[0]
    assert lane.log == 20
    assert is_due(log, 20)
    assert not is_due(log, 21)
    assert len(lane.available) == 2
    assert is_due(log, 20, per_run=10)
    assert not is_due(log, 20, per_run=11)
    log.compact()
    assert (lane.log, log.cold().lanes[0].log) == (0, 0)
    for _ in range(40):  # many pieces in flight: as long as the log that it would replace
        log.claim(1)
    assert lane.log == 40
    assert not is_due(log, 20)


def test_a_compaction_that_would_name_many_pieces_that_wait_does_not_pay() -> None:
    log = CompactedLog()
    log.post((0, 99))
    pieces = 20
    held = [log.claim(1) for _ in range(2 * pieces)]
    for nth, claim in enumerate(held):
        log.settle(claim, model.RELEASED if nth % 2 else model.ACCEPTED)
    lane = log.fold.lanes[0]
    runs = len(lane.available)
    assert runs > pieces - 1 and not lane.claims
    assert is_due(log, lane.log, per_run=lane.log // runs)
    assert not is_due(log, lane.log, per_run=lane.log // runs + 1)
    for most, pays in ((runs, True), (runs - 1, False)):
        with mock.patch.object(compaction, "RUNS_MAX", most):
            assert is_due(log, lane.log, per_run=1) == pays
    log.post((0, 9))  # nobody has touched it: it is not written out
    assert is_due(log, lane.log, per_run=lane.log // runs)


def test_a_fold_starts_at_the_newest_compaction_whatever_the_order_of_reading() -> None:
    log = CompactedLog()
    for _ in range(2):
        log.post((0, 9))
        log.settle(log.claim(4), model.ACCEPTED)
        log.compact()
    first = next(entry for entry in log.entries if entry.kind == model.COMPACTED)
    gone = {entry.entry_id for entry in log.superfluous() if entry is not first}
    left = [entry for entry in log.entries if entry.entry_id not in gone]
    for found in (left, left[::-1]):
        fold = QueueState("q", len(log.fold.lanes))
        compaction.advance(fold, found, log.version)
        assert state(fold) == state(log.fold)


def test_owners_are_stored_with_the_names_that_older_versions_read() -> None:
    log = CompactedLog(lanes=LANES)
    log.post((0, 3))
    lease, inside = log.claim(2, owner=LEASE), log.claim(owner=TX)
    log.append(planning.bind("q", lease, OTHER, log.fold.lanes[0].next_sequence, STAMP))
    stored = {said["sequence"]: said for said in log.plan(0).body["in_flight"]}
    none = {"key": None, "attempt": None, "begun": None}
    bound = {"key": "k2", "attempt": "a2", "begun": 0}
    assert stored[lease.sequence]["owner"] == {"consumer": "c1", "epoch": 1, **none}
    assert stored[lease.sequence]["bound"] == {"consumer": "c1", "epoch": 1, **bound}
    assert stored[inside.sequence]["owner"]["attempt"] == "a1"
    assert stored[inside.sequence]["bound"] is None


def test_when_a_consumer_id_was_opened_is_stored_beside_the_owner() -> None:
    """Older versions take an owner's names for all that there are."""
    log = CompactedLog()
    log.post((0, 3))
    for owner in (LeaseOwner("c1", 1, 900), TX.claiming_as(LeaseOwner("c1", 1, 900)), LEASE):
        log.claim(1, owner=owner)
    log.compact()
    assert [c.owner.opened_ms for c in log.fold.claims()] == [900, 900, 0]
    assert [c.owner.opened_ms for c in log.cold().claims()] == [900, 900, 0]
    stored = log.plan(0).body["in_flight"]
    assert [said.get("opened") for said in stored] == [900, 900, None]
    assert {len(said["owner"]) for said in stored} == {5}


NAMED: dict[str, Any] = {"transaction_key": "k", "attempt": "a1", "begun": 0}


@pytest.mark.parametrize("missing", NAMED)
def test_an_entry_that_names_no_attempt_is_not_taken_for_one(missing: str) -> None:
    entry = Entry("lane/q/0", "lane/0", model.BOUND)
    assert AttemptOwner.of(replace(entry, **NAMED)) == AttemptOwner("k", "a1", 0)
    with pytest.raises(StoreCorrupt, match="names no attempt"):
        AttemptOwner.of(replace(entry, **{**NAMED, missing: None}))


def test_the_stored_form_of_a_settlement_is_the_first_one() -> None:
    """Whoever reads another form has to be told: it is numbered."""
    log = CompactedLog()
    log.post((0, 3))
    held = log.claim(2)
    entry = planning.settlement(
        "q", held, Disposition(model.ACCEPTED), STAMP, sequence=2, owner=None
    )
    assert (entry.body["v"], entry.body["counted"]) == (1, False)


def test_a_fact_belongs_to_a_compaction_up_to_its_pin() -> None:
    at = ("lane/q/0", "lane/0")
    compacted = Entry(*at, model.COMPACTED, sequence=7, version=9, body={"pin": 5})
    for version, is_after in ((5, False), (6, True)):
        fact = Entry(*at, model.ACCEPTED, version=version)
        assert compaction.is_after(fact, compacted) == is_after


def test_a_posted_entry_stays_if_it_was_recorded_after_what_is_recent() -> None:
    at = ("backlog/q", "lane/0")
    compacted = Entry(*at, model.COMPACTED, body={"recent_after": 1_000})
    for recorded_at_ms, stays in ((1_000, False), (1_001, True)):
        posted = Entry(*at, model.POSTED, recorded_at_ms=recorded_at_ms)
        assert compaction.stays(posted, compacted) == stays


def test_a_lease_that_a_clock_ahead_began_keeps_its_bound_in_a_compaction() -> None:
    log = CompactedLog()
    log.post((0, 9))
    chosen = log.select(2)
    ahead = Stamp("me", None, 9_000)
    log.append(*planning.claim("q", chosen, LEASE, 99_000, ahead).entries)
    log.settle(log.claim(1), model.ACCEPTED)  # recorded at 1,000
    before = log.fold.claim(0, chosen.sequence)
    assert (before.began_at_ms, before.began_by_ms) == (9_000, 1_000)
    log.land(compaction.compact(log.fold, 0, ahead).entries[0])
    after = log.cold().claim(0, chosen.sequence)
    assert (after.began_at_ms, after.began_by_ms) == (9_000, 1_000)


def test_a_lease_that_a_clock_ahead_began_is_bound_by_clocks_after_a_compaction() -> None:
    log = CompactedLog()
    log.post((0, 9))
    chosen = log.select(2)
    log.append(*planning.claim("q", chosen, LEASE, 99_000, Stamp("me", None, 9_000)).entries)
    log.land(compaction.compact(log.fold, 0, Stamp("me", None, 9_000)).entries[0])
    log.settle(log.claim(1), model.ACCEPTED)  # recorded at 1,000
    for fold in (log.fold, log.cold()):
        assert fold.claim(0, chosen.sequence).began_by_ms == 1_000


def test_a_queue_that_tells_no_duplicates_has_left_out_none_after_a_compaction() -> None:
    log = CompactedLog()
    log.post((0, 1))
    log.settle(log.claim(1), model.ACCEPTED)
    log.compact()
    assert log.cold().left_out == 0
