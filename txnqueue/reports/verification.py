"""Prove from a store's own tables that it keeps its promises.

Three sources that do not depend on each other are compared: the entries replayed message by
message, the fold that the library works with, and what Delta's log says of the journal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.state import QueueState, catalog, retention
from txnqueue.core.state import compaction as compacting
from txnqueue.errors import StoreCorrupt
from txnqueue.transactions.table_applier import unapplied

EVERYTHING: tuple[Range, ...] = ((0, (1 << 62) - 1),)
"""All offsets of a send."""
Parts = dict[PositionId, tuple[Range, ...]]


@dataclass(frozen=True, slots=True)
class CheckedPromise:
    """One line of the proof: what is claimed, what was found, what must be."""

    claim: str
    found: int
    expected: int

    @property
    def holds(self) -> bool:
        """Whether it holds."""
        return self.found == self.expected


@dataclass(frozen=True, slots=True)
class Verification:
    """A proof: one line per claim, and examples of what is wrong."""

    claims: tuple[CheckedPromise, ...]
    problems: tuple[str, ...]
    commit_seq: int

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims) and not self.problems

    def __repr__(self) -> str:
        """Show the claims as lines."""
        lines = [
            f"{'✓' if c.holds else '✗'} {c.claim}: {c.found} of {c.expected}" for c in self.claims
        ]
        return "\n".join([f"Store as of commit {self.commit_seq}", *lines, *self.problems])


def verify(client: Client) -> Verification:
    """Check everything that the journal, Delta's log and the payload tables say.

    What was removed from the history is not asked for: what was whole in one entry with it is
    checked from the history's beginning on. Messages are replayed from where each was sent,
    because all that was done to one stays as long as it is known.
    """
    past = archive.everything(client.store)
    entries = sorted(past.entries, key=lambda entry: entry.place)
    since = [entry for entry in entries if entry.version >= past.beginning]
    problems: list[str] = []
    claims = [
        *_decisions(entries, problems),
        *_manifests(entries, since, problems),
        *_messages(entries, problems),
        *_compactions(entries, past.beginning, problems),
        *_tables(entries, past.beginning),
        *_log(client, entries, past),
    ]
    claims += _payload(client, entries)
    newest = max((entry.commit_seq for entry in entries), default=-1)
    return Verification(tuple(claims), tuple(problems[:20]), newest)


def _decisions(entries: list[Entry], problems: list[str]) -> list[CheckedPromise]:
    """Each attempt is decided once, each key committed once, and nothing precedes a prepare."""
    by_attempt: Counter[str | None] = Counter()
    by_key: Counter[str] = Counter()
    sequences: Counter[tuple[str, str, int]] = Counter()
    for entry in entries:
        if entry.kind in model.DECISIONS:
            by_attempt[entry.attempt] += 1
        if entry.kind == model.COMMITTED:
            by_key[entry.stream] += 1
        if entry.sequence is not None:
            sequences[entry.shard, entry.stream, entry.sequence] += 1
    for what, counted in (("attempt", by_attempt), ("transaction", by_key), ("", sequences)):
        twice = [str(name) for name, times in counted.items() if times > 1]
        problems += [f"decided or given twice: {what} {name}" for name in twice]
    return [
        CheckedPromise(
            "attempts decided once", sum(n == 1 for n in by_attempt.values()), len(by_attempt)
        ),
        CheckedPromise(
            "transactions committed once", sum(n == 1 for n in by_key.values()), len(by_key)
        ),
        CheckedPromise(
            "sequence numbers given once",
            sum(n == 1 for n in sequences.values()),
            len(sequences),
        ),
    ]


def _manifests(
    entries: list[Entry], since: list[Entry], problems: list[str]
) -> list[CheckedPromise]:
    """What a commit says that it posted and settled stands beside it, and nowhere else.

    That of a branch names the newest part of each session.

    Args:
        entries: All entries.
        since: Those from the history's beginning on: of older commits not all is known.
        problems: Takes what is wrong.
    """
    parts: dict[str | None, dict[str, int | None]] = defaultdict(dict)
    beside: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        if entry.kind == model.PART:
            parts[entry.attempt][entry.body["session"]] = entry.sequence
        which = "posted" if entry.kind == model.POSTED else "settled"
        if entry.kind == model.POSTED or entry.is_settlement:
            if entry.attempt is not None and entry.sequence is None:
                beside[entry.append_id, entry.attempt][f"{which} {entry.queue_id}"] += (
                    entry.count or 0
                )
    committed = [entry for entry in since if entry.kind == model.COMMITTED]
    right = 0
    for entry in committed:
        manifest = entry.body.get("manifest", {})
        said = Counter(
            {
                f"{which} {queue_id}": count
                for which in ("posted", "settled")
                for queue_id, count in manifest.get(which, {}).items()
            }
        )
        whole = entry.body.get("parts", {}) == parts.get(entry.attempt, {})
        if whole and said == beside[entry.append_id, entry.attempt or ""]:
            right += 1
        else:
            problems.append(f"the manifest of {entry.stream} is not what was written beside it")
    return [CheckedPromise("manifests whose counts hold", right, len(committed))]


def _messages(entries: list[Entry], problems: list[str]) -> list[CheckedPromise]:
    """Every posted message is in exactly one place: waiting, in flight, or gone once."""
    posted: Parts = {e.entry_id: e.ranges for e in entries if e.kind == model.POSTED}
    total = sum(map(ranges.count, posted.values()))
    gone, twice = _gone(entries)
    problems += [f"retired twice: {what}" for what in twice]
    standing: Parts = {}
    for queue_id, info in catalog.every_queue(entries).items():
        fold = QueueState(queue_id, info.settings.lanes)
        shards = set(fold.shards)
        try:
            fold.advance((e for e in entries if e.shard in shards), 0)
        except StoreCorrupt as error:
            problems.append(str(error))
        for lane in fold.lanes.values():
            for segment in lane.available:
                _add(standing, segment.position.position_id, ((segment.first, segment.last),))
        for claim in fold.claims():
            for position_id, part in claim.items.items():
                _add(standing, position_id, part)
    both = sum(
        ranges.count(ranges.intersection(part, gone.get(position_id, ())))
        for position_id, part in standing.items()
    )
    found = sum(map(ranges.count, standing.values())) + sum(map(ranges.count, gone.values()))
    return [
        CheckedPromise("messages posted = waiting + in flight + gone", found, total),
        CheckedPromise("messages both here and gone", both, 0),
        CheckedPromise("messages retired twice", len(twice), 0),
    ]


def _log(client: Client, entries: list[Entry], past: Past) -> list[CheckedPromise]:
    """Delta's log shows what the tables show: entries come once, and leave for the archive.

    From there may have been removed what is older than the history's beginning. What the log
    does not show as inserted is older than the log.
    """
    journal, version = client.store.journal, past.version
    audit = journal.audit(version)
    known = {entry.entry_id for entry in entries}
    there = {entry.entry_id for entry in journal.read_all(upto=version).entries}
    back = len(audit.deleted & there)
    inserted = {e for e, landed in audit.inserted.items() if landed >= past.beginning}
    oldest = audit.since - 1
    wanted = {e for e in audit.deleted if audit.inserted.get(e, oldest) >= past.beginning}
    claims = [
        CheckedPromise("entries that Delta's log shows as changed", audit.updated, 0),
        CheckedPromise("entries deleted that the archive holds", len(wanted & known), len(wanted)),
        CheckedPromise("entries deleted that came back", back, 0),
    ]
    if audit.complete:
        since = sum(entry.version >= past.beginning for entry in entries)
        claims.append(
            CheckedPromise("entries that Delta's log shows as inserted", len(inserted), since)
        )
    return claims


def _compactions(entries: list[Entry], beginning: int, problems: list[str]) -> list[CheckedPromise]:
    """What each compaction says is what the entries before it make of its lane.

    Before the history's beginning not all entries are known, and what the last compaction said
    then stands for them.
    """
    infos = catalog.every_queue(entries)
    said = [e for e in entries if e.kind == model.COMPACTED and e.queue_id in infos]
    said = [entry for entry in said if entry.version >= beginning]
    right = 0
    for compaction in said:
        info = infos[compaction.queue_id or ""]
        fold = QueueState(info.queue_id, info.settings.lanes)
        pin, recent_after = compaction.body["pin"], compaction.body.get("recent_after")
        mine = [
            e
            for e in entries
            if e.shard in fold.shards and e.lane == compaction.lane and e.version <= pin
        ]
        try:
            if beginning >= 0:
                compacting.advance(fold, (e for e in mine if e.version < beginning), 0)
            fold.advance((e for e in mine if e.version >= beginning), pin)
        except StoreCorrupt as error:
            problems.append(str(error))
            continue
        lane = fold.lanes[compaction.lane or 0]
        if "errors" not in compaction.body:
            lane.errors.clear()  # versions that wrote none did not know of them
        if _says(compaction.body, compacting.body(lane, fold.version, recent_after)):
            right += 1
        else:
            problems.append(f"the compaction {compaction.entry_id} is not what came before it")
    return [CheckedPromise("compactions that hold", right, len(said))]


def _without_clocks(body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a compaction when leases began: older versions say less of it."""
    clocks = ("began_at", "began_by")
    claims = [{k: v for k, v in one.items() if k not in clocks} for one in body["in_flight"]]
    return {**body, "in_flight": claims}


def _says(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Say whether a compaction is right; it may follow one that did not say when what failed."""
    failed, known = (set(map(tuple, body.get("failures", ()))) for body in (found, expected))
    found, expected = _without_clocks(found), _without_clocks(expected)
    return failed <= known and {**found, "failures": 0} == {**expected, "failures": 0}


def _gone(entries: list[Entry]) -> tuple[Parts, list[str]]:
    """Replay which messages were retired, entry by entry, without the fold."""
    claimed: dict[tuple[str | None, int | None, int | None], tuple[Entry, Parts]] = {}
    bound: dict[tuple[str | None, int | None, int | None], str | None] = {}
    posted: dict[str | None, Parts] = defaultdict(dict)
    gone: Parts = {}
    purging: Parts = {}
    twice: list[str] = []

    def back(items: Parts, entry: Entry) -> None:
        """What comes back goes, if it was purged meanwhile."""
        for position_id, part in items.items():
            going = ranges.intersection(part, purging.get(position_id, ()))
            if going:
                retire([(position_id, going)], entry)
                purging[position_id] = ranges.difference(purging[position_id], going)

    def retire(items: Iterable[tuple[PositionId, tuple[Range, ...]]], entry: Entry) -> None:
        for position_id, part in items:
            if ranges.intersection(gone.get(position_id, ()), part):
                twice.append(f"{position_id} by {entry.kind} in {entry.append_id}")
            _add(gone, position_id, part)

    for entry in entries:
        name = (entry.queue_id, entry.claim_lane, entry.claim_sequence)
        if entry.kind == model.POSTED:
            posted[entry.queue_id][entry.entry_id] = entry.ranges
        elif entry.kind == model.QUEUE_DROPPED and entry.shard == model.FENCE:
            for position_id, part in posted[entry.queue_id].items():
                left = ranges.difference(part, gone.get(position_id, ()))
                _add(gone, position_id, left)
            claimed = {name: held for name, held in claimed.items() if name[0] != entry.queue_id}
        elif entry.kind == model.CLAIMED:
            items = dict(model.unpack_items(entry))
            claimed[entry.queue_id, entry.lane, entry.sequence] = (entry, items)
        elif entry.kind == model.BOUND:
            bound[name] = entry.attempt
        elif entry.kind == model.PURGE_PENDING:
            held: Parts = {}
            for (queue_id, lane, _), (_, items) in claimed.items():
                if (queue_id, lane) == (entry.queue_id, entry.lane):
                    for position_id, part in items.items():
                        _add(held, position_id, part)
            for position_id, part in model.unpack_items(entry):
                mine = ranges.intersection(part, held.get(position_id, ()))
                _add(purging, position_id, mine)
                left = ranges.difference(ranges.difference(part, mine), gone.get(position_id, ()))
                retire([(position_id, left)], entry)
        elif entry.is_removal:
            retire(model.unpack_items(entry), entry)
        elif entry.is_settlement and name in claimed:
            claim, items = claimed[name]
            if entry.sequence is None and bound.get(name, claim.attempt) != entry.attempt:
                continue  # not the holder's: it does not count
            meant = dict(model.unpack_items(entry)) or dict(items)
            for position_id, part in meant.items():
                mine = ranges.intersection(items.get(position_id, ()), part)
                items[position_id] = ranges.difference(items.get(position_id, ()), part)
                if entry.kind == model.RELEASED:
                    back({position_id: mine}, entry)
                elif mine:
                    retire([(position_id, mine)], entry)
        if entry.kind == model.CLAIMED or entry.is_removal:
            for sequence in entry.body.get("supersedes", ()):
                ended = claimed.pop((entry.queue_id, entry.lane, sequence), None)
                back(ended[1] if ended else {}, entry)
    return gone, twice


def _tables(entries: list[Entry], beginning: int) -> list[CheckedPromise]:
    """Every table change belongs to a committed transaction; what waits is counted.

    Args:
        entries: All entries.
        beginning: Of changes that were decided before this version not all is known.
    """
    since = [entry for entry in entries if entry.version >= beginning]
    committed = {entry.attempt for entry in entries if entry.kind == model.COMMITTED}
    decided = [entry for entry in since if entry.kind == model.CHANGE_DECIDED]
    right = sum(entry.attempt in committed for entry in decided)
    left = sum(map(len, unapplied(since).values()))
    known = {entry.entry_id for entry in decided}
    ended = {
        tuple(entry.body["change"])
        for entry in since
        if entry.kind in (model.CHANGE_APPLIED, model.CHANGE_WAIVED)
        and (tuple(entry.body["change"]) in known or (entry.begun or 0) >= beginning)
    }
    return [
        CheckedPromise("table changes of committed transactions", right, len(decided)),
        CheckedPromise(
            "table changes applied or waived, or known to wait", len(ended) + left, len(decided)
        ),
    ]


def _payload(client: Client, entries: list[Entry]) -> list[CheckedPromise]:
    """Every message that was sent has its payload: one row, and no more.

    Slices that nothing in the journal speaks of any more may be gone, and are left out: also
    those of which that became true while we looked.
    """
    payload, journal = client.store.payload, client.store.journal
    live = retention.named_slices(journal.read_all().entries)
    while True:
        wanted, expected = _places(entries, live)
        found = sum(payload.rows(owner, places) for owner, places in wanted.items())
        now = live if found == expected else retention.named_slices(journal.read_all().entries)
        left = {owner: slices & now.get(owner, set()) for owner, slices in live.items()}
        if left == live:
            what = "messages and waiting changes whose payload is there, once"
            return [CheckedPromise(what, found, expected)]
        live = left


def _places(
    entries: list[Entry], live: retention.Slices
) -> tuple[dict[str, list[tuple[int, str, tuple[Range, ...]]]], int]:
    """List where payload must be, by owner, and how many rows that are.

    Args:
        entries: All entries.
        live: The slices that are looked at.
    """
    wanted: dict[str, list[tuple[int, str, tuple[Range, ...]]]] = defaultdict(list)
    expected = 0
    for entry in entries:
        if entry.kind == model.POSTED and not model.was_moved(entry.body.get("origin")):
            owner, number = entry.body["payload"], entry.body["slice"]
            if number in live.get(owner, ()):
                wanted[owner].append((number, entry.body["send"], entry.ranges))
                expected += ranges.count(entry.ranges)
    for changes in unapplied(entries).values():  # what was applied needs its rows no more
        for source in (one.change.source for one in changes):
            if source is not None and source.slice in live.get(source.payload_id, ()):
                wanted[source.payload_id].append((source.slice, source.send_id, EVERYTHING))
                expected += source.count
    return wanted, expected


def _add(parts: Parts, position_id: PositionId, part: tuple[Range, ...]) -> None:
    parts[position_id] = ranges.normalised((*parts.get(position_id, ()), *part))
