"""Checks that the entries that are only in the archive had finished.

The history reads an entry wherever it is. Queues, transactions and changes of tables read the
journal alone: an entry that they still need, and that is only in the archive, is lost for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from txnqueue.client.archive import NAMES_MAX, Past, portions
from txnqueue.core import model
from txnqueue.core.model import Entry, PositionId
from txnqueue.core.state import compaction
from txnqueue.core.state.confirmations import manifest_participants, unconfirmed
from txnqueue.reports.consistency import CheckedPromise, Problems, named
from txnqueue.storage.journal import EntryFilter, Journal
from txnqueue.storage.store import Store

_OPEN = frozenset({model.PREPARED, model.CHANGE_DECIDED})
_KINDS = {
    "fence": frozenset({model.HORIZON_ADVANCED, model.HISTORY_REMOVED}),
    "catalog": frozenset({model.PAYLOAD_LISTED}),
    "transaction": frozenset({model.PREPARED, *model.DECISIONS}),
    "table": frozenset({model.CHANGE_DECIDED, model.BRANCH_CONFIRMED, *model.CHANGE_ENDINGS}),
}
"""The kinds that leave the journal, by the family of their shard; lanes have their own rule."""


class Departures:
    """Every entry that is only in the archive had finished, as maintenance decides it."""

    def __init__(self, store: Store, beginning: int, problems: Problems) -> None:
        """Read nothing yet.

        Args:
            store: The store.
            beginning: Of what came before this version not all is known.
            problems: Takes what is wrong.
        """
        self._store = store
        self._beginning = beginning
        self._problems = problems
        self._needs: _Needs | None = None
        self._owing: dict[str, Entry] = {}
        self._recent: list[Entry] = []
        self._recent_after: dict[tuple[str | None, int | None], int] = {}
        self._right = self._expected = 0

    def see(self, entry: Entry) -> None:
        """Record an entry that is only in the archive."""
        if self._needs is None:  # after the archive was opened: what it has had left by then
            self._needs = _Needs(self._store.journal)
        self._count(entry, finished=self._needs.lets_go(entry))
        if self._needs.detects_duplicates(entry):
            self._recent.append(entry)
        is_known = entry.kind == model.COMMITTED and entry.version >= self._beginning
        if is_known and manifest_participants(entry.body):
            self._owing[entry.attempt or ""] = entry
            if len(self._owing) >= NAMES_MAX:
                self._ask()

    def claims(self, unfinished: Iterable[Entry]) -> list[CheckedPromise]:
        """Tell what was found, if anything has left the journal.

        Args:
            unfinished: The entries that wait for a later one: prepared transactions, and changes.
        """
        self._ask()
        for entry in [*self._still_needed(), *self._away(list(unfinished))]:
            self._right -= 1
            self._tell(entry)
        if not self._expected:
            return []
        what = "entries that left the journal when finished"
        return [CheckedPromise(what, self._right, self._expected)]

    def note_compaction(self, compacted: Entry) -> None:
        """Note from when on a lane's positions stay in the journal, by a compaction of any age.

        One by a clock that was ahead let positions go that a later one would have kept.
        """
        lane, at_ms = (compacted.queue_id, compacted.lane), compacted.body.get("recent_after")
        if at_ms is not None:
            self._recent_after[lane] = max(at_ms, self._recent_after.get(lane, at_ms))

    def _still_needed(self) -> list[Entry]:
        """List the positions of consumed messages that no compaction has let go."""
        return [
            entry
            for entry in self._recent
            if entry.version >= self._beginning
            and entry.recorded_at_ms > self._recent_after.get((entry.queue_id, entry.lane), -1)
        ]

    def _count(self, entry: Entry, *, finished: bool) -> None:
        self._expected += 1
        self._right += finished
        if not finished:
            self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        self._problems.add(f"{named(entry)} is needed in the journal, and is only in the archive")

    def _ask(self) -> None:
        """Check that the databases have confirmed what was decided for them."""
        meant = EntryFilter(kinds=[model.BRANCH_CONFIRMED], attempts=set(self._owing))
        facts = Past(self._store).find(meant) if self._owing else []
        for _, entry in unconfirmed(self._owing.values(), facts):
            self._right -= 1
            self._tell(entry)
        self._owing.clear()

    def _away(self, unfinished: list[Entry]) -> list[Entry]:
        """Find those that are not in the journal, unless they have finished meanwhile."""
        if not unfinished:
            return []
        names = {e.entry_id for e in self._store.journal.find(EntryFilter(kinds=_OPEN))}
        left = [entry for entry in unfinished if entry.entry_id not in names]
        ended = self._ended({entry.stream for entry in left})
        return [
            e for e in left if (e.attempt if e.kind == model.PREPARED else e.entry_id) not in ended
        ]

    def _ended(self, streams: set[str]) -> set[str | PositionId | None]:
        """Find which attempts are decided by now, and which changes have ended, of some streams."""
        ended: set[str | PositionId | None] = set()
        past, kinds = Past(self._store), model.CHANGE_ENDINGS | model.DECISIONS
        for names in portions(streams):
            for entry in past.find(EntryFilter(kinds=kinds, streams=names)):
                ended.add(entry.attempt if entry.kind in model.DECISIONS else entry.ended_change)
        return ended


class _Needs:
    """What the journal has that tells which other entries are not needed there any more."""

    def __init__(self, journal: Journal) -> None:
        kinds = model.MARKS | _OPEN | {model.COMPACTED, model.QUEUE_DROPPED}
        by_kind: dict[str, list[Entry]] = defaultdict(list)
        for entry in journal.find(EntryFilter(kinds=kinds)):
            by_kind[entry.kind].append(entry)
        marks = [entry for kind in model.MARKS for entry in by_kind[kind]]
        self._horizon = model.horizon(marks)
        self._beginning = model.beginning(marks)
        self._listed = model.newest_sequence(by_kind[model.PAYLOAD_LISTED])
        self._dropped = {e.queue_id for e in by_kind[model.QUEUE_DROPPED]}
        self._prepared = {entry.attempt for entry in by_kind[model.PREPARED]}
        self._decided = {entry.entry_id for entry in by_kind[model.CHANGE_DECIDED]}
        found = compaction.compactions(by_kind[model.COMPACTED])
        newest = {(entry.queue_id, entry.lane): entry for entry in found}
        self._compacted = {lane: (one, compaction.names(one)) for lane, one in newest.items()}

    def lets_go(self, entry: Entry) -> bool:
        """Return whether an entry may be missing in the journal, beside what is there."""
        family = entry.shard.partition("/")[0]
        if entry.version >= self._horizon:
            return False
        if family in ("lane", "backlog"):
            return entry.queue_id in self._dropped or self._is_compacted(entry)
        if entry.kind not in _KINDS.get(family, ()):
            return False
        if family == "fence":
            newest = {model.HORIZON_ADVANCED: self._horizon, model.HISTORY_REMOVED: self._beginning}
            return (entry.begun or 0) < newest[entry.kind]
        if family == "catalog":
            return (entry.sequence or 0) < self._listed
        if entry.kind in model.DECISIONS:  # a prepared entry that stays would be in doubt again
            return entry.attempt not in self._prepared
        if entry.ended_change is not None:  # a change that stays would be applied again
            return entry.ended_change not in self._decided
        return True

    def detects_duplicates(self, entry: Entry) -> bool:
        """Return whether a lane's newest compaction leaves an entry to detect duplicates by."""
        newest, named = self._compacted.get((entry.queue_id, entry.lane), (None, frozenset()))
        return (
            compaction.stays(entry, newest)
            and entry.queue_id not in self._dropped
            and entry.entry_id not in named
        )

    def _is_compacted(self, entry: Entry) -> bool:
        """Return whether the newest compaction of a lane stands for one of its entries."""
        newest, named = self._compacted.get((entry.queue_id, entry.lane), (None, frozenset()))
        return (
            newest is not None
            and entry.kind in model.COMPACTABLE
            and entry.entry_id not in named
            and not compaction.is_after(entry, newest)
        )
