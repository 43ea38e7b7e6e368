"""Find the entries that may leave the journal, and the payload that is not needed (pure).

The answers stay true: an entry that has finished is never needed again. So a client may act on
them later, twice, in part, or at the same time as another. An entry of a kind unknown here has not
finished.
"""

from __future__ import annotations

import datetime
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry, PositionId
from txnqueue.core.state import QueueState
from txnqueue.core.state.compaction import compactions, is_after, names, stays
from txnqueue.core.state.confirmations import unconfirmed

Slices = dict[str, set[int]]
"""Slices of payload, by owner."""
_TRANSACTIONS = frozenset({model.PREPARED, *model.DECISIONS})
DAY_MS = 86_400_000


def next_horizon(
    entries: Iterable[Entry], folds: Iterable[QueueState], now_ms: int, cutoff_ms: int
) -> int:
    """Find how far the horizon may advance.

    All entries below it were recorded before the cutoff, and work that began after the cutoff
    began above it. An entry recorded in the future, by a clock that is ahead, was recorded at the
    latest at the smallest clock of a later version. A transaction whose claims are still held
    holds the horizon back until it is decided, and so does a branch until it is prepared or
    decided.

    Args:
        entries: The journal.
        folds: The states of all queues.
        now_ms: The instant that decides which claims are still held.
        cutoff_ms: Work that began before this instant may be cut off.

    Returns:
        The version; -1 if the horizon may not advance at all.
    """
    found = sorted(entries, key=lambda entry: entry.version)
    young, by_ms = None, now_ms
    for entry in reversed(found):
        recorded_ms = by_ms if entry.recorded_at_ms > now_ms else entry.recorded_at_ms
        by_ms = min(by_ms, recorded_ms)
        young = entry.version if recorded_ms > cutoff_ms else young
    old = max((e.version for e in found if young is None or e.version < young), default=-1)
    horizon = model.horizon(found)
    decided = {entry.attempt for entry in found if entry.kind in model.DECISIONS}
    held = [
        claim.attempt.begun
        for fold in folds
        for claim in fold.claims()
        # What is left of a claim that an attempt has settled in part stays bound to it.
        if claim.attempt is not None and claim.attempt.attempt not in decided
        if claim.attempt.begun >= horizon and claim.ends_at_ms(now_ms) > now_ms
    ]
    return min([old, *held, *_open_branches(found, horizon)])


def beginning(
    entries: Iterable[Entry], last_day: str, now_ms: int, before: int = sys.maxsize
) -> tuple[int, str] | None:
    """Find how much of the history may be removed.

    Entries are archived under the newest day in the journal when it was read. So entries archived
    under an earlier day had finished before the later day was recorded. A clock that was behind
    may have recorded a day that was long over, so a day does not count once any clock has recorded
    an instant after ``last_day``. Instants in the future prove nothing.

    Args:
        entries: The journal, and the entries in the archive that advanced the horizon.
        last_day: The latest day (ISO) to which the history may be cut.
        now_ms: The instant at which the future begins.
        before: Days that were recorded from this version on do not count.

    Returns:
        A version and a day: every state from that version on can be folded without the entries
        archived under earlier days; None if nothing may be removed.
    """
    found = list(entries)
    advanced = [e for e in found if e.kind == model.HORIZON_ADVANCED and "day" in e.body]
    corrections = model.newest_day(advanced)[0]
    later_ms = over_ms(last_day)
    later = [e.version for e in found if later_ms <= e.recorded_at_ms <= now_ms]
    by = min([before, *later])
    said = [
        (e.body["day"], e.version)
        for e in advanced
        if e.body.get("corrections", 0) == corrections
        if e.body["day"] <= last_day and e.version < by
    ]
    if not said:
        return None
    day = max(day for day, _ in said)
    return min(version for one, version in said if one == day), day


def day_ahead(entries: Iterable[Entry], today: str) -> tuple[int, str, int] | None:
    """Find the newest recorded day, if the clock that recorded it was more than a day ahead.

    The reader's clock is not proof: some entry recorded since must show an earlier day.

    Args:
        entries: The journal.
        today: The day by the reader's clock (ISO).

    Returns:
        The result of ``model.newest_day``; None if no clock contradicts that day.
    """
    found = list(entries)
    said = model.newest_day(found)
    _, day, version = said
    date = datetime.date.fromisoformat(today)
    if date == datetime.date.max:  # there is no later one
        return None
    latest = date + datetime.timedelta(days=1)
    if not day or day <= latest.isoformat():
        return None
    by_ms = midnight_ms(day) - DAY_MS
    denied = any(e.version > version and 0 < e.recorded_at_ms < by_ms for e in found)
    return said if denied else None


def midnight_ms(day: str) -> float:
    """Find when a day begins (ISO)."""
    midnight = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.timezone.utc)
    return midnight.timestamp() * 1000


def over_ms(day: str) -> float:
    """Find when a day ends (ISO)."""
    return midnight_ms(day) + DAY_MS


def standing(entries: Iterable[Entry], version: int) -> list[Entry]:
    """Find the positions posted before a version; the entries about their messages stay.

    Args:
        entries: Positions: those of the journal, and those that left it too recently.
        version: Leave out positions posted from this version on.
    """
    return [e for e in entries if e.kind == model.POSTED and e.version < version]


def former(positions: Iterable[Entry]) -> set[PositionId]:
    """Find the positions that the messages of some positions were in before (pure).

    They have left these by a move, a redrive, or as dead letters.
    """
    origins = [entry.body.get("origin") for entry in positions]
    found = (origin["position"] for origin in origins if origin and model.was_moved(origin))
    return {(str(append_id), int(index)) for append_id, index in found}


def oldest(positions: Iterable[Entry]) -> dict[str, int]:
    """Find the version of the oldest of some positions, by queue id."""
    found: dict[str, int] = {}
    for entry in positions:
        queue_id = entry.queue_id or ""
        found[queue_id] = min(entry.version, found.get(queue_id, entry.version))
    return found


def concerning(entries: Iterable[Entry], positions: Iterable[Entry]) -> set[PositionId]:
    """Find the entries about the messages of some positions, by entry id.

    These are the positions, the entries that name one, and the entries about claims of them. An
    entry that supersedes claims may end one of them, so it belongs here too, with the entries
    about its own claim.

    Args:
        entries: All entries of the positions' queues.
        positions: The positions.
    """
    known = {position.entry_id for position in positions}
    claims: set[tuple[str | None, int | None, int | None]] = set()
    found: set[PositionId] = set()
    following: list[Entry] = []
    for entry in entries:
        named = {position_id for position_id, _ in model.unpack_items(entry)}
        if entry.body.get("supersedes") or named & known:
            found.add(entry.entry_id)
            if entry.kind == model.CLAIMED:
                claims.add((entry.queue_id, entry.lane, entry.sequence))
        elif entry.claim_sequence is not None:
            following.append(entry)
    return (
        known
        | found
        | {
            entry.entry_id
            for entry in following
            if (entry.queue_id, entry.claim_lane, entry.claim_sequence) in claims
        }
    )


def finished(entries: Iterable[Entry], horizon: int) -> list[Entry]:
    """List the entries that may leave the journal: finished, and below the horizon."""
    by_family: dict[str, list[Entry]] = defaultdict(list)
    everything = list(entries)
    for entry in everything:
        by_family[entry.shard.partition("/")[0]].append(entry)
    missing = unconfirmed(by_family["transaction"], by_family["table"])
    awaiting = {entry.attempt for _, entry in missing}
    left = [
        *_of_fence(by_family[model.FENCE], horizon),
        *_of_catalog(by_family[model.CATALOG]),
        *_of_transactions(by_family["transaction"], horizon, awaiting),
        *_of_tables(by_family["table"], horizon, by_family["transaction"]),
        *_of_queues([*by_family["lane"], *by_family["backlog"]], _dropped(by_family, horizon)),
    ]
    return [entry for entry in left if entry.version < horizon]


def named_slices(entries: Iterable[Entry]) -> Slices:
    """Find the payload that entries name, as ``NamedPayload`` collects it."""
    named = NamedPayload()
    for entry in entries:
        named.see(entry)
    return named.slices


class NamedPayload:
    """Collects the payload that entries name: positions, changes of tables, undecided manifests.

    What a decision posted names its payload itself. The manifest does not: that of a branch stays
    in the journal as long as anybody may ask for the branch. The order of the entries is free.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._named: Slices = {}
        self._decided: set[str | None] = set()
        self._prepared: dict[str | None, Entry] = {}

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        if entry.kind == model.PREPARED:
            if entry.attempt not in self._decided:
                self._prepared[entry.attempt] = entry
        elif entry.kind in model.DECISIONS:
            self._decided.add(entry.attempt)
            self._prepared.pop(entry.attempt, None)
        else:
            _name(self._named, entry.kind, entry.body)

    @property
    def slices(self) -> Slices:
        """The slices, by owner."""
        found = {owner: set(numbers) for owner, numbers in self._named.items()}
        for prepared in self._prepared.values():
            for data in prepared.body["manifest"]["entries"]:
                _name(found, data["kind"], data["body"])
        return found


def _name(found: Slices, kind: str, body: Mapping[str, Any]) -> None:
    if kind == model.POSTED:
        found.setdefault(body["payload"], set()).add(body["slice"])
    elif kind == model.CHANGE_DECIDED and body["change"].get("source"):
        source = body["change"]["source"]
        found.setdefault(source["payload_id"], set()).add(source["slice"])


def staging_owners(entries: Iterable[Entry]) -> set[str]:
    """Find all present and former owners of rows staged for changes of tables."""
    found = list(entries)
    before = (e.body.get("staging", ()) for e in found if e.kind == model.HORIZON_ADVANCED)
    now = named_slices(e for e in found if e.kind == model.CHANGE_DECIDED)
    return set(now).union(*before)


def droppable(slices: Iterable[int], named: Iterable[int], horizon: int, width: int) -> list[int]:
    """List the slices of an owner that cannot be needed again.

    No entry names such a slice, and work that began in it can no longer be decided, because the
    slice lies below the horizon.
    """
    wanted = set(named)
    return sorted(n for n in slices if (n + 1) * width <= horizon and n not in wanted)


# ---------------------------------------------------------------------- family by family


def _open_branches(entries: Iterable[Entry], horizon: int) -> list[int]:
    """List the versions at which the branches began that are neither prepared nor decided.

    A branch that was started while the horizon passed it is over and holds nothing back.
    """
    ended = {e.attempt for e in entries if e.kind in _TRANSACTIONS}
    begun = (e.begun or 0 for e in entries if e.kind == model.STARTED and e.attempt not in ended)
    return [version for version in begun if version >= horizon]


def _of_fence(entries: list[Entry], horizon: int) -> list[Entry]:
    """List superseded horizons and beginnings of the history; other entries of the fence stay."""
    newest = {model.HORIZON_ADVANCED: horizon, model.HISTORY_REMOVED: model.beginning(entries)}
    return [e for e in entries if e.kind in newest and (e.begun or 0) < newest[e.kind]]


def _of_catalog(entries: list[Entry]) -> list[Entry]:
    """List superseded inventories of payload; other entries of the catalog stay."""
    taken = [entry for entry in entries if entry.kind == model.PAYLOAD_LISTED]
    newest = model.newest_sequence(taken)
    return [entry for entry in taken if (entry.sequence or 0) < newest]


def _of_transactions(entries: list[Entry], horizon: int, kept: set[str | None]) -> list[Entry]:
    """List the entries of attempts that are decided and that their databases have confirmed.

    The prepared entry and the decision leave together: they lie in one shard.
    """
    by_key: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_key[entry.stream].append(entry)
    left: list[Entry] = []
    for mine in by_key.values():
        if any(entry.kind not in _TRANSACTIONS for entry in mine):
            continue
        decided = {
            e.attempt for e in mine if e.kind in model.DECISIONS and e.version < horizon
        } - kept
        left += [entry for entry in mine if entry.attempt in decided]
    return left


def _of_tables(entries: list[Entry], horizon: int, transactions: list[Entry]) -> list[Entry]:
    """List table changes that have ended, and confirmations whose decision has left."""
    decided = {e.entry_id: e for e in entries if e.kind == model.CHANGE_DECIDED}
    endings: dict[PositionId, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.ended_change is not None:
            endings[entry.ended_change].append(entry)
    left: list[Entry] = []
    for name, found in endings.items():
        both = [*found, *([decided[name]] if name in decided else ())]
        if all(entry.version < horizon for entry in both):
            left += both
    there = {entry.attempt for entry in transactions}
    left += [e for e in entries if e.kind == model.BRANCH_CONFIRMED and e.attempt not in there]
    return left


def _dropped(by_family: Mapping[str, list[Entry]], horizon: int) -> set[str | None]:
    """List the ids of the queues that were dropped below the horizon."""
    return {
        entry.queue_id
        for entry in by_family.get(model.FENCE, ())
        if entry.kind == model.QUEUE_DROPPED and entry.version < horizon
    }


def _of_queues(entries: list[Entry], dropped: set[str | None]) -> list[Entry]:
    """List the entries that a lane's newest compaction replaces, and those of dropped queues."""
    newest = {(entry.queue_id, entry.lane): entry for entry in compactions(entries)}
    needed = {lane: names(entry) for lane, entry in newest.items()}
    left: list[Entry] = []
    for entry in entries:
        lane = (entry.queue_id, entry.lane)
        compaction = newest.get(lane)
        if entry.queue_id in dropped or (
            compaction is not None
            and entry is not compaction
            and entry.kind in model.COMPACTABLE
            and not is_after(entry, compaction)
            and entry.entry_id not in needed[lane]
            and not stays(entry, compaction)
        ):
            left.append(entry)
    return left
