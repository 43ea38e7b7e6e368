"""Keep a store small: compact, advance the horizon, archive, drop payload, clean up files.

Every step may be the last one before a crash, be repeated, and run beside producers, consumers and
another maintenance. Rows are deleted only because of conditions that stay true
(``state.retention``), and archived entries only after they were read back from the archive.
"""

from __future__ import annotations

import datetime
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txnqueue.admin import erasure, history_removal, inventory, recovery
from txnqueue.admin.reclamation import Reclamation, Terms, Vacuum
from txnqueue.admin.retention import Retention
from txnqueue.client.archive import check_archive
from txnqueue.client.client import Client
from txnqueue.client.runtime import Retries
from txnqueue.core import model, planning
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo, shown
from txnqueue.core.state import QueueState, compaction, retention
from txnqueue.core.state.overview import Survey
from txnqueue.errors import Busy, InvalidInput, QueueError, StoreCorrupt, TransactionUnknown
from txnqueue.storage.journal import AppendConflict, Reading
from txnqueue.storage.journal.removed_files import READING_SECONDS_MAX
from txnqueue.transactions.table_applier import Applier
from txnqueue.version import __version__

logger = logging.getLogger("txnqueue")
ARCHIVED_MAX = 20_000
"""How many entries are copied and deleted at a time."""
FILES_MAX = 32
"""A shard in more files than this is rewritten into few."""
DAY_FILES_MAX = 8
"""A day of the archive in more files than this is rewritten into few, once it is over."""
DAYS_MAX = 31
"""So many days of the archive are rewritten at a time, those with the most files first."""
_FEED_NOT_NEEDED_SINCE = 2
"""The first layout whose clients all read the journal's files where Delta's feed has no answer."""
_FIRST = frozenset({model.PREPARED, model.CHANGE_DECIDED})
"""Entries that leave no later than the entry that ended them: alone they would look open."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult(Facts):
    """What a maintenance did, or with ``dry_run`` would do.

    Attributes:
        compacted: How many lanes had their log compacted.
        horizon: The version of the journal below which nothing is decided any more; -1: none.
        archived: How many entries left the journal for the archive.
        slices: How many slices of payload were dropped.
        forgotten: How many entries were removed from the archive: the history begins later now.
        removed: Dropped owners of payload (queue ids, and ``exchange-<exchange id>``) of whose
            payload nothing is left on disk.
        orphans: Payload tables that nothing names, because the creation that made them was
            interrupted. They stay; they are looked for once in seven days, by a dry run, and by
            ``vacuum="full"``.
        rewritten: How many shards of the journal and days of the archive were rewritten into few
            files.
        skipped: What could not be done this time, with the reason; the next maintenance does it.
        dry_run: Whether nothing was changed.
    """

    compacted: int = 0
    horizon: int = -1
    archived: int = 0
    slices: int = 0
    forgotten: int = 0
    removed: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    rewritten: int = 0
    skipped: tuple[str, ...] = ()
    dry_run: bool = False


def maintain(
    client: Client, retention: Retention, *, vacuum: Vacuum = True, dry_run: bool = False
) -> MaintenanceResult:
    """Do all maintenance that is due; see ``QueueManager.maintain``."""
    if not isinstance(vacuum, bool) and not (isinstance(vacuum, str) and vacuum == "full"):
        raise InvalidInput(f"vacuum={shown(vacuum)}: give True, False or 'full'.", name="vacuum")
    return _Run(client, retention, dry_run=dry_run).run(vacuum)


class _Run:
    """One maintenance."""

    def __init__(self, client: Client, retention: Retention, *, dry_run: bool) -> None:
        self._client = client
        self._journal = client.store.journal
        self._retention = retention
        self._dry_run = dry_run
        self._skipped: list[str] = []
        self._reading = Reading((), -1)
        self._archived_marks: tuple[Entry, ...] | None = None
        self._day_before = ""
        seconds = client.runtime.now_ms() / 1000
        self._today = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).date()

    def run(self, vacuum: Vacuum) -> MaintenanceResult:
        infos = list(self._client.cache.queues().values())
        target, due = self._begin(infos)
        self._erase()
        self._confirm_applied()
        compacted = sum(self._compact(info, target) for info in due)
        horizon = self._advance(self._read().entries, target)
        reading = self._reading if self._dry_run else self._read()
        entries = reading.entries
        if not self._dry_run:  # what is below the horizon is known now, and grows no more
            horizon = model.horizon(entries)
        gone = self._archive(entries, horizon)
        forgotten = self._forget(entries)
        seconds_min = self._seconds_min(infos) if vacuum else 0.0
        terms = Terms(self._retention, self._today, vacuum, seconds_min, self._dry_run)
        reclamation = Reclamation(
            self._client, terms, reading, self._marks, self._patiently, skipped=self._skipped
        )
        payload = reclamation.run(gone, horizon)
        rewritten = self._rewrite_shards() + self._rewrite_days()
        if vacuum and not self._dry_run:
            self._vacuum(seconds_min, horizon, full=vacuum == "full")
        done = MaintenanceResult(
            compacted,
            horizon,
            len(gone),
            payload.slices,
            forgotten,
            payload.removed,
            payload.orphans,
            rewritten,
            tuple(self._skipped),
            self._dry_run,
        )
        logger.info("maintained %s", done)
        return done

    def _erase(self) -> None:
        """Delete the rows of erasures that a crash interrupted."""
        if self._dry_run:
            return
        for owner, error in erasure.finish(self._client, self._reading.entries).items():
            self._skipped.append(f"erasure of {owner}: {error}"[:300])

    def _confirm_applied(self) -> None:
        """Confirm table changes whose clients died after they had applied them."""
        if self._dry_run:
            return
        try:
            Applier(self._client).confirm_applied(self._reading.entries)
        except (Busy, TransactionUnknown) as error:
            self._skipped.append(f"table changes: {error}"[:300])

    def _read(self) -> Reading:
        """Read what is new in the journal; what was read before never changes."""
        known = self._reading
        found = self._journal.read_all(after=known.version)
        if known.version >= 0 and model.horizon(found.entries) > known.version:
            found = self._journal.read_all()  # entries that came in between may have left
        elif known.version >= 0:
            found = Reading((*known.entries, *found.entries), found.version)
        self._reading = found
        return found

    def _marks(self) -> tuple[Entry, ...]:
        """Read, at most once, the archived entries that advanced the horizon."""
        if model.horizon(self._reading.entries) < 0:  # there is no archive yet
            return ()
        if self._archived_marks is None:
            archive = self._journal.archive
            self._archived_marks = archive.read(kinds=[model.HORIZON_ADVANCED])
        return self._archived_marks

    # --------------------------------------------------------------- lanes and the horizon

    def _begin(self, infos: Sequence[QueueInfo]) -> tuple[int, list[QueueInfo]]:
        """Find how far the horizon may advance, and which queues to compact for it.

        Returns:
            The horizon to advance to, and the queues with a lane that is due.
        """
        now_ms = self._client.runtime.now_ms()
        cutoff_ms = now_ms - round(self._retention.transaction_seconds_max * 1000)
        entries = self._read().entries  # takes long: without the lock
        self._day_before = model.archive_day(entries)
        if self._abort_overdue(infos):
            entries = self._read().entries
        with self._client.lock:
            folds = self._client.states.folds(infos)
            found = retention.next_horizon(entries, folds, now_ms, cutoff_ms)
            target = max(found, model.horizon(entries))
            each = zip(infos, folds, strict=True)
            due = [
                i for i, fold in each if any(_is_due(fold, n, target, now_ms) for n in fold.lanes)
            ]
        return target, due

    def _abort_overdue(self, infos: Sequence[QueueInfo]) -> bool:
        """Abort overdue branches, whose sessions are dead and which hold the horizon back.

        Returns:
            Whether there was any.
        """
        entries = self._reading.entries
        survey = Survey.of(entries, model.horizon(entries), infos)
        if self._dry_run or not survey.overdue(self._client.runtime.now_ms()):
            return False
        try:
            aborted, _ = recovery.abort_overdue(self._client, survey)
        except Busy as error:
            self._skipped.append(f"overdue branches: {error}")
            return False
        logger.info("overdue branches aborted transaction_ids=%s", aborted)
        return True

    def _compact(self, info: QueueInfo, target: int) -> int:
        """Compact the lanes of a queue that have entries that could leave."""
        due: list[int] = []

        def plan(_lost: int) -> Plan | None:
            due.clear()
            with self._client.lock:
                fold = self._client.states.fold(info)
                stamp = self._client.stamp()
                due.extend(n for n in fold.lanes if _is_due(fold, n, target, stamp.now_ms))
                found = sum((compaction.compact(fold, n, stamp) for n in due), Plan())
            return found if found.entries else None

        if self._dry_run:
            plan(0)
            return len(due)
        try:
            landed = self._client.land(plan, "compact", queue=info.name)
        except QueueError:  # it is being dropped
            return 0
        except Busy as error:
            self._skipped.append(f"compaction of {info.name}: {error}")
            return 0
        entries = landed.entries if landed else ()
        return sum(entry.kind == model.COMPACTED for entry in entries)

    def _advance(self, entries: Sequence[Entry], target: int) -> int:
        """Advance the horizon and record the day, if that lets anything leave.

        Returns:
            The new horizon.

        Raises:
            StoreCorrupt: The archive is gone, or is that of another journal.
        """
        now = model.horizon(entries)
        check_archive(self._client.store, now)
        width = self._client.cache.slice_width
        leaving = retention.finished(entries, target)
        useful = any(entry.kind not in model.MARKS for entry in leaving)
        further = target > now and (useful or target // width > max(now, 0) // width)
        today = self._today.isoformat()
        wrong = retention.day_ahead(entries, today)
        if not (further or wrong or (useful and model.archive_day(entries) < today)):
            return now
        if self._dry_run:
            return target
        if now < 0:
            self._journal.archive.create()

        def plan(_lost: int) -> Plan | None:
            fence = self._journal.read([model.FENCE]).entries
            horizon, said = model.horizon(fence), model.newest_day(fence)
            corrections, day, _ = said
            if said == wrong:
                corrections, day = corrections + 1, today
            elif horizon >= target and day >= today:
                return None
            body = {
                "staging": sorted(retention.staging_owners([*fence, *entries])),
                "day": max(day, today),  # never an earlier one, though a clock is slow
                **({"corrections": corrections} if corrections else {}),
            }
            upto, stamp = max(horizon, target), self._client.stamp()
            return planning.mark(fence, "horizon", model.HORIZON_ADVANCED, upto, body, stamp=stamp)

        try:
            self._client.land(plan, "advance horizon")
        except Busy as error:
            self._skipped.append(f"horizon: {error}")
        return target

    # ------------------------------------------------------------------------ the archive

    def _archive(self, entries: Sequence[Entry], horizon: int) -> set[model.PositionId]:
        """Copy finished entries into the archive, read them back, delete them from the journal.

        They are archived under the day that the same reading shows: a client that reads a later day
        archives under that. So a day tells which states can do without the entries under it.

        All of them move together, because each move costs two commits. If others write all the
        time to a shard among them, each kind of shards moves by itself: not all are as busy.

        Returns:
            The ids of the entries that have left.
        """
        day = model.archive_day(entries)
        if day < self._today.isoformat() and not self._dry_run:
            return set()  # payload is kept from that day on: record it first
        finished = [*model.each_once(retention.finished(entries, horizon))]
        finished.sort(key=lambda entry: (entry.kind not in _FIRST, entry.place))
        moved = self._moved(finished, day)
        families: dict[str, list[Entry]] = defaultdict(list)
        for entry in finished[len(moved) :]:
            families[entry.shard.partition("/")[0]].append(entry)
        if len(families) > 1:
            for family in families.values():
                moved += self._moved(family, day)
        return {entry.entry_id for entry in moved}

    def _moved(self, entries: list[Entry], day: str) -> list[Entry]:
        """Move entries a bounded number at a time, and return those that have left."""
        for at in range(0, len(entries), ARCHIVED_MAX):
            if not (self._dry_run or self._move(entries[at : at + ARCHIVED_MAX], day)):
                return entries[:at]  # later entries must not leave before these
        return [*entries]

    def _move(self, entries: list[Entry], day: str) -> bool:
        archive = self._journal.archive

        def copy() -> None:
            archive.add(entries, day, self._metadata("archive"))

        if not self._patiently("archive", copy):
            return False
        kept = {e.entry_id: e for e in archive.read(among=entries, days=(day, day))}
        wrong = [e for e in entries if e.entry_id in kept and kept[e.entry_id] != e]
        if wrong:
            raise StoreCorrupt(
                f"The archive and the journal differ in the entry {wrong[0].entry_id}: stop "
                "writing to the store, and keep both as they are."
            )
        there = [entry for entry in entries if entry.entry_id in kept]
        if not there:  # another run moved them
            return True
        return self._patiently(
            "deletion of what is archived",
            lambda: self._journal.remove(there, day, self._metadata("remove archived")),
        )

    def _forget(self, entries: Sequence[Entry]) -> int:
        """Remove history that is past its retention."""
        days = self._retention.history_days
        if days is None or model.horizon(entries) < 0:  # nothing was ever archived
            return 0
        # One day more: a day's last entries are that many whole days old only a day later.
        last_day = (self._today - datetime.timedelta(days=days + 1)).isoformat()
        now_ms = self._client.runtime.now_ms()
        removal = history_removal.find(self._journal, entries, self._marks(), last_day, now_ms)
        if removal is None:
            return 0
        archive, found = self._journal.archive, 0
        if self._dry_run:
            return archive.forget(removal.day, removal.standing, None)
        try:
            history_removal.announce(self._client, removal)
        except Busy as error:
            self._skipped.append(f"history: {error}")
            return 0

        def forget() -> None:
            nonlocal found
            about = self._metadata("remove history")
            found = archive.forget(removal.day, removal.standing, about)

        self._patiently("history", forget)
        return found

    # ----------------------------------------------------------------------------- files

    def _rewrite_days(self) -> int:
        """Rewrite days of the archive that are spread over many files into few.

        Each maintenance adds files to its own day. The first one of a day looks at those before
        it, to which nothing is added any more.
        """
        today = self._today.isoformat()
        if not "" < self._day_before < today:
            return 0
        archive = self._journal.archive
        files = {day: count for day, count in archive.files().items() if day < today}
        many = [day for day, count in files.items() if count > DAY_FILES_MAX]
        most = sorted(many, key=lambda day: (-files[day], day))[:DAYS_MAX]
        if not most or self._dry_run:
            return len(most)
        about, what = self._metadata("rewrite archive"), "files of the archive"
        try:
            self._patiently(what, lambda: archive.rewrite(most, about))
            now = archive.files()
        except Exception as error:  # all else is done; who asks the history is told of damage
            logger.warning("not rewritten what=%s", what, exc_info=True)
            self._skipped.append(f"{what}: {error}"[:300])
            return 0
        return sum(now.get(day, 0) < files[day] for day in most)

    def _rewrite_shards(self) -> int:
        """Rewrite shards that are spread over many files into few."""
        many = sorted(s for s, n in self._journal.files().items() if n > FILES_MAX)
        if not many or self._dry_run:
            return len(many)
        done = self._patiently(
            "files of the journal",
            lambda: self._journal.rewrite(many, self._metadata("rewrite")),
        )
        return len(many) if done else 0

    def _vacuum(self, seconds_min: float, horizon: int, *, full: bool) -> None:
        """Remove files of the journal and of the archive that no retained version names.

        A failure in one step does not stop the others. What is held reads payload: the journal's
        files are only kept for queries that are under way.
        """
        journal, least = self._journal, min(seconds_min, READING_SECONDS_MAX)
        steps: dict[str, Callable[[], str | None]] = {
            "how long removed files are kept": self._limit_removed_files,
            "the journal": lambda: journal.vacuum(least, full=full),
        }
        if horizon >= 0:  # before that there is no archive
            steps["the archive"] = lambda: journal.archive.vacuum(seconds_min, full=full)
        for what, step in steps.items():
            try:
                reason = step()
            except Exception as error:
                logger.warning("vacuum failed at=%s", what, exc_info=True)
                reason = f"{what}: {error}"[:300]
            if reason is not None:
                self._skipped.append(f"vacuum: {reason}")

    def _limit_removed_files(self) -> None:
        """Choose how long Delta keeps removed files of the journal.

        Drivers of 0.1.0, which may work on an older store, fail if its change feed has forgotten
        the newest entry of a shard.
        """
        if self._client.cache.layout < _FEED_NOT_NEEDED_SINCE:
            return
        about = self._metadata("limit removed files")
        self._patiently("retention of files", lambda: self._journal.limit_removed_files(about))

    def _seconds_min(self, infos: Sequence[QueueInfo]) -> float:
        """Find how long tables must keep deleted files, because a reader may need them.

        A message may be held for ever, as by a heartbeat. A DataFrame of it that is older than a
        week may fail then, so that what was erased does not stay on the disk because of it.
        """
        longest = max([info.settings.lease_seconds for info in infos], default=0.0)
        held = min(max(longest, self._held_seconds(infos)), inventory.FILES_DAYS * 86_400)
        return max(held, self._retention.transaction_seconds_max)

    def _held_seconds(self, infos: Sequence[QueueInfo]) -> float:
        """Find the longest time for which any message that is now in flight is held."""
        now_ms = self._client.runtime.now_ms()
        with self._client.lock:
            claims = [claim for fold in self._client.states.folds(infos) for claim in fold.claims()]
        held_ms = (c.deadline_ms - c.claimed_at_ms for c in claims if c.ends_at_ms(now_ms) > now_ms)
        return max(held_ms, default=0) / 1000

    # --------------------------------------------------------------------------- helpers

    def _patiently(self, what: str, act: Callable[[], None]) -> bool:
        """Do something that may conflict with live clients; retry, bounded; return whether done."""
        retries = Retries(self._client.runtime)
        while True:
            try:
                act()
                return True
            except AppendConflict as error:
                if not retries.fail():
                    self._skipped.append(f"{what}: {error}"[:300])
                    return False
            retries.wait()

    def _metadata(self, operation: str) -> dict[str, object]:
        about = {"txnqueue": __version__, "operation": operation, "transaction_id": None}
        return {**about, "queue": None, **self._client.author()}


def _is_due(fold: QueueState, number: int, target: int, now_ms: int) -> bool:
    """Return whether a compaction lets entries of a lane leave, now or in the next maintenance."""
    lane = fold.lanes[number]
    return lane.log > 0 and lane.log_from <= target and compaction.is_due(fold, lane, now_ms, 1, 0)
