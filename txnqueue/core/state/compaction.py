"""Compact a lane's log: record its state in an entry, and fold from there (pure).

A compaction is an ordinary entry of the lane's log, written from one version, its *pin*. It holds
the messages in flight, and the waiting messages of every position from which any were ever taken.
All later positions are untouched, as their own entries show. A fold then needs the newest
compaction, the entries after it, and the positions that have messages left or were posted so
recently that they help to detect duplicates: all other entries may be deleted, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from txnqueue.core import model, planning, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning import Plan, Selection, Stamp
from txnqueue.core.redelivery import CLOCKS_APART_MS
from txnqueue.core.state import (
    AttemptOwner,
    Claim,
    LaneState,
    LeaseOwner,
    Owner,
    Position,
    QueueState,
    Segment,
)
from txnqueue.core.state.duplicates import Arrival, read_ids
from txnqueue.errors import StoreCorrupt

LOG_MAX = 1_000
"""The length of a lane's log from which on the next claim in the lane compacts it."""
RUNS_MAX = 10_000
"""The most runs in a compaction; a lane with more is not compacted until some have left."""
DUPLICATES_MAX = 100_000
"""The most positions with duplicates in a compaction; a lane with more is not compacted until the
window has passed some."""


def recent_after(fold: QueueState, lane: LaneState, now_ms: int) -> int | None:
    """Find the instant (ms) after which a lane's positions help to detect duplicates.

    A duplicate is detected by a message posted less than a window before it. It may be in any
    lane now, or be posted from now on by any client's clock.

    Returns:
        The instant; None if the queue does not detect duplicates.
    """
    if fold.window_ms is None:
        return None
    standing = (position.posted_at_ms for position in fold.positions.values())
    oldest_ms = min(standing, default=now_ms)
    recent_ms = min(oldest_ms, now_ms - CLOCKS_APART_MS) - fold.window_ms
    if lane.recent_after > now_ms:  # by a clock that was ahead: nothing would stay until then
        return recent_ms
    return max(lane.recent_after, recent_ms)


def is_due(
    fold: QueueState, lane: LaneState, now_ms: int, log_max: int = LOG_MAX, per_run: int = 2
) -> bool:
    """Return whether a compaction of a lane is worth its cost.

    Duplicates that the window has passed would not be in it, so they do not count: there may be
    any number of them, and only a compaction lets them go.

    Args:
        fold: The queue.
        lane: The lane.
        now_ms: The present instant.
        log_max: The least length of the log.
        per_run: The least ratio of the log's length to the runs in the compaction.
    """
    if lane.log < log_max or not lane.compactable:
        return False
    runs = sum(1 for s in lane.available if s.position.place <= lane.touched)
    runs += sum(len(claim.items) for claim in lane.claims.values())
    if runs > RUNS_MAX or lane.log < per_run * runs:
        return False
    if not lane.duplicates:
        return True
    duplicates = len(_duplicates(lane, recent_after(fold, lane, now_ms)))
    return duplicates <= DUPLICATES_MAX and lane.log >= per_run * (runs + duplicates)


def _duplicates(
    lane: LaneState, recent_after: int | None
) -> list[tuple[PositionId, tuple[int, tuple[Range, ...]]]]:
    """List the duplicates that a compaction names: those that the window has not passed."""
    if recent_after is None:
        return []
    return [one for one in lane.duplicates.items() if one[1][0] > recent_after]


def compact(fold: QueueState, lane_number: int, stamp: Stamp) -> Plan:
    """Plan a compaction of a lane as the next entry of its log."""
    lane, queue_id = fold.lanes[lane_number], fold.queue_id
    entry = Entry.in_lane(
        queue_id,
        lane.lane,
        model.COMPACTED,
        sequence=lane.next_sequence,
        body=body(lane, fold.version, recent_after(fold, lane, stamp.now_ms)),
        **stamp.columns(),
    )
    conditions = planning.lane_conditions(queue_id, [(lane.lane, lane.next_sequence)])
    return Plan((entry,), conditions)


def body(lane: LaneState, pin: int, recent_after: int | None) -> dict[str, Any]:
    """Write a lane's state at a version as the body of a compaction.

    Args:
        lane: The lane.
        pin: The version.
        recent_after: The instant (ms) after which the entries of posted positions stay in any
            case; None if the queue does not detect duplicates.
    """
    said = {
        "v": 1,
        "pin": pin,
        "touched": list(lane.touched),
        "waiting": _waiting(lane),
        "in_flight": [_claim_to_json(claim) for claim in lane.claims.values()],
    }
    failed = failures(lane)
    if failed:
        said["failures"] = failed
    if lane.errors:
        said["errors"] = [
            [append_id, index, [[[list(part) for part in parts], text] for parts, text in errors]]
            for (append_id, index), errors in sorted(lane.errors.items())
        ]
    if recent_after is None:
        return said
    duplicates = [
        [append_id, index, posted_at_ms, [list(part) for part in parts]]
        for (append_id, index), (posted_at_ms, parts) in sorted(_duplicates(lane, recent_after))
    ]
    return {
        **said,
        "recent_after": recent_after,
        "duplicates": duplicates,
        "left_out": lane.left_out,
    }


def before(
    fold: QueueState, chosen: Selection, stamp: Stamp, log_max: int = LOG_MAX
) -> tuple[Plan, Selection]:
    """Plan the compaction of a lane with a long log, in the append that takes messages out of it.

    Returns:
        The plan, empty if no compaction is due, and the selection with the sequence number of
        its entry.
    """
    lane = fold.lanes[chosen.lane]
    if not is_due(fold, lane, stamp.now_ms, log_max) or chosen.sequence != lane.next_sequence:
        return Plan(), chosen
    chosen.sequence += 1
    return compact(fold, chosen.lane, stamp), chosen


def advance(fold: QueueState, entries: Iterable[Entry], version: int) -> None:
    """Advance a fold to a version; an empty fold starts from the compactions."""
    if fold.version < 0:
        entries = start(fold, entries)
    fold.advance(entries, version)


def start(fold: QueueState, entries: Iterable[Entry]) -> list[Entry]:
    """Set an empty fold to the state in the newest compaction of each lane.

    Returns:
        The entries that are still to be applied.

    Raises:
        StoreCorrupt: The entry of a position that a compaction names is missing.
    """
    found = list(entries)
    fenced = [entry for entry in found if entry.lane is None]  # about the whole queue
    found = [entry for entry in found if entry.lane is not None]
    mine = model.queue_stream(fold.queue_id)
    if any(e.kind == model.QUEUE_DROPPED and e.stream == mine for e in fenced):
        return fenced  # a dropped queue has no messages, and no entry follows
    newest = {entry.lane or 0: entry for entry in compactions(found)}
    named = {lane: _named(entry) for lane, entry in newest.items()}
    positions: dict[PositionId, Position] = {}
    left = fenced
    for entry in found:
        lane = entry.lane or 0
        if lane not in newest or is_after(entry, newest[lane]):
            left.append(entry)
        elif entry.kind == model.POSTED and entry.entry_id in named[lane]:
            positions[entry.entry_id] = Position.of(entry)
    for lane, entry in newest.items():
        _restore(fold, entry, positions, named[lane])
    if fold.duplicates is not None:
        fold.duplicates.restore(_arrivals(fold, found, newest, named))
    return left


def _arrivals(
    fold: QueueState,
    entries: Iterable[Entry],
    newest: Mapping[int, Entry],
    named: Mapping[int, Counter[PositionId]],
) -> list[Arrival]:
    """List the positions of all lanes that help to detect duplicates, in commit order."""
    found = []
    for entry in sorted(entries, key=lambda entry: entry.place):
        if entry.kind != model.POSTED:
            continue
        lane = entry.lane or 0
        compaction = newest.get(lane)
        stands = compaction is None or is_after(entry, compaction) or entry.entry_id in named[lane]
        if stands or stays(entry, compaction):
            _, left_out = fold.lanes[lane].duplicates.get(entry.entry_id, (0, ()))
            ids = read_ids(entry.body.get("ids"))
            found.append(Arrival(Position.of(entry), ids, left_out, stands))
    return found


def stays(entry: Entry, compaction: Entry | None) -> bool:
    """Return whether an entry stays because its position helps to detect duplicates."""
    recent = None if compaction is None else compaction.body.get("recent_after")
    return recent is not None and entry.kind == model.POSTED and entry.recorded_at_ms > recent


def compactions(entries: Iterable[Entry]) -> list[Entry]:
    """List the compactions among some entries, the newest of each lane last."""
    found = (entry for entry in entries if entry.kind == model.COMPACTED)
    return sorted(found, key=lambda entry: entry.sequence or 0)


def is_after(entry: Entry, compaction: Entry) -> bool:
    """Return whether an entry of a compacted lane is not part of the compaction's state."""
    if entry.sequence is not None:
        return entry.sequence > (compaction.sequence or 0)
    if entry.kind == model.POSTED:
        return entry.place > _touched(compaction)
    return entry.version > int(compaction.body["pin"])


def names(compaction: Entry) -> frozenset[PositionId]:
    """List the positions whose entries a compaction needs."""
    return frozenset(_named(compaction))


# ------------------------------------------------------------------------------ the body


def _waiting(lane: LaneState) -> list[list[Any]]:
    """Write the waiting messages of touched positions: by position, runs with their history."""
    runs: dict[PositionId, list[list[Any]]] = {}
    for segment in lane.available:
        if segment.position.place <= lane.touched:
            run: list[Any] = [segment.first, segment.last, segment.delivery_count, segment.former]
            if segment.not_to:
                run.append(sorted(segment.not_to))
            runs.setdefault(segment.position.position_id, []).append(run)
    return [[append_id, index, found] for (append_id, index), found in runs.items()]


def failures(lane: LaneState) -> list[list[Any]]:
    """Write when the last delivery of each waiting run failed, by the run's first message."""
    return [
        [*segment.position.position_id, segment.first, segment.failed_at_ms]
        for segment in lane.available
        if segment.failed_at_ms
    ]


def _claim_to_json(claim: Claim) -> dict[str, Any]:
    return {
        "sequence": claim.sequence,
        "owner": _owner_to_json(claim.owner),
        **_opening(claim),
        "bound": None if claim.bound is None else _owner_to_json(claim.bound),
        "deadline": claim.deadline_ms,
        **_beginning(claim),
        "delivery_count": claim.delivery_count,
        "size": claim.size,
        "former": claim.former,
        "claimed_at": claim.claimed_at_ms,
        "counts": claim.counts,
        "not_to": sorted(claim.not_to),
        "items": _parts_to_json(claim.items),
        "purging": _parts_to_json(claim.purging),
    }


def _owner_to_json(owner: Owner) -> dict[str, Any]:
    """Write an owner of either kind with the same five names; a lease has no attempt."""
    known = asdict(owner)
    return {name: known.get(name) for name in ("consumer", "epoch", "key", "attempt", "begun")}


def _opening(claim: Claim) -> dict[str, int]:
    """Write when the holder's consumer id was opened: beside the owner, as older versions read."""
    opened_ms = claim.owner.opened_ms
    return {"opened": opened_ms} if opened_ms else {}


def _owner_from_json(said: Mapping[str, Any], opened_ms: int) -> Owner:
    if said["attempt"] is None:
        return LeaseOwner(said["consumer"], said["epoch"], opened_ms)
    return AttemptOwner(**said, opened_ms=opened_ms)


def _beginning(claim: Claim) -> dict[str, int]:
    """Write when a lease began, where that differs from when it was claimed."""
    said = {"began_at": claim.began_at_ms, "began_by": claim.began_by_ms}
    return {k: ms for k, ms in said.items() if ms != claim.claimed_at_ms}


def _parts_to_json(items: Mapping[PositionId, tuple[Range, ...]]) -> list[list[Any]]:
    return [
        [append_id, index, [list(part) for part in parts]]
        for (append_id, index), parts in items.items()
    ]


def _parts_from_json(said: list[list[Any]]) -> dict[PositionId, tuple[Range, ...]]:
    return {
        (append_id, index): tuple((first, last) for first, last in parts)
        for append_id, index, parts in said
    }


def _claim_from_json(lane: int, said: dict[str, Any], compaction: Entry) -> Claim:
    began_at_ms = said.get("began_at", said["claimed_at"])
    return Claim(
        lane=lane,
        sequence=said["sequence"],
        owner=_owner_from_json(said["owner"], said.get("opened", 0)),
        deadline_ms=said["deadline"],
        delivery_count=said["delivery_count"],
        size=said["size"],
        former=said["former"],
        items=_parts_from_json(said["items"]),
        claimed_at_ms=said["claimed_at"],
        counts=said["counts"],
        not_to=frozenset(said["not_to"]),
        purging=_parts_from_json(said["purging"]),
        began_at_ms=began_at_ms,
        began_by_ms=min(said.get("began_by", said["claimed_at"]), compaction.recorded_at_ms),
        version=compaction.version,
        bound=None if said["bound"] is None else AttemptOwner(**said["bound"]),
    )


def _touched(compaction: Entry) -> tuple[int, int, int]:
    version, ordinal, index = compaction.body["touched"]
    return (version, ordinal, index)


def _named(compaction: Entry) -> Counter[PositionId]:
    """Count the messages in a compaction, by position."""
    messages: Counter[PositionId] = Counter()
    for append_id, index, runs in compaction.body["waiting"]:
        messages[append_id, index] += sum(last - first + 1 for first, last, *_ in runs)
    for said in compaction.body["in_flight"]:
        for append_id, index, parts in said["items"]:
            messages[append_id, index] += ranges.count(tuple((a, b) for a, b in parts))
    return messages


def _restore(
    fold: QueueState,
    compaction: Entry,
    positions: dict[PositionId, Position],
    named: Counter[PositionId],
) -> None:
    lane = fold.lanes[compaction.lane or 0]
    missing = [position_id for position_id in named if position_id not in positions]
    if missing:
        raise StoreCorrupt(
            f"The compaction of lane {lane.lane} names the position {missing[0]}, whose entry is "
            "missing: stop writing to the store, and keep it as it is."
        )
    for position_id, messages in named.items():
        fold.know(positions[position_id], messages)
    failed = {(name, index, at): ms for name, index, at, ms in compaction.body.get("failures", ())}
    for append_id, index, runs in compaction.body["waiting"]:
        for first, last, delivery_count, former, *not_to in runs:
            position = positions[append_id, index]
            others = frozenset(not_to[0] if not_to else ())
            failed_at_ms = failed.get((append_id, index, first), 0)
            lane.put(Segment(position, first, last, delivery_count, former, others, failed_at_ms))
    for said in compaction.body["in_flight"]:
        claim = _claim_from_json(lane.lane, said, compaction)
        lane.claims[claim.sequence] = claim
        fold.note_began(claim)
    lane.next_sequence = (compaction.sequence or 0) + 1
    lane.touched = _touched(compaction)
    lane.recent_after = compaction.body.get("recent_after", -1)
    lane.left_out = compaction.body.get("left_out", 0)
    lane.errors = {
        (append_id, index): tuple((tuple((a, b) for a, b in parts), text) for parts, text in errors)
        for append_id, index, errors in compaction.body.get("errors", ())
    }
    lane.duplicates = {
        (append_id, index): (posted_at_ms, tuple((first, last) for first, last in parts))
        for append_id, index, posted_at_ms, parts in compaction.body.get("duplicates", ())
    }
