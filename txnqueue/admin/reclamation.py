"""Delete payload that is no longer needed, at a cost that depends on its amount.

Slices that nothing names are deleted entirely, and so is all payload of a dropped queue or
exchange. The tables are kept, because views of other queues, and clients unaware of a drop, may
read them. The findings, including the tables that stay empty for ever, are recorded in the catalog,
so a table that has not changed is not read again.
"""

from __future__ import annotations

import datetime
import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from txnqueue.admin import inventory, orphans
from txnqueue.admin.inventory import Inventory
from txnqueue.admin.retention import Retention, archived_by_ms
from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry, PositionId
from txnqueue.core.planning import Plan
from txnqueue.core.state import erasures, retention
from txnqueue.errors import Busy
from txnqueue.storage.journal import Reading

logger = logging.getLogger("txnqueue")
Vacuum = bool | Literal["full"]
"""Whether a maintenance removes files: by Delta's log, or in full by listing the folders."""
FACTS_MAX = 100
"""How many owners one append records as removed."""
_FILES_MS = inventory.FILES_DAYS * retention.DAY_MS
_CLOCKS_DIFFER_MS = retention.DAY_MS
"""Files that cannot be seen are taken for gone that much later, because clocks differ."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The freed payload.

    Attributes:
        slices: How many slices were deleted.
        removed: The owners, dropped before, whose payload has left the disk.
        orphans: The tables that nothing names, if they were looked for.
    """

    slices: int = 0
    removed: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """How a maintenance treats payload.

    Attributes:
        retention: How long payload is kept.
        today: The day of the maintenance.
        vacuum: Whether files are removed, and which.
        seconds_min: Files are removed only if tables keep them for at least this long.
        dry_run: Whether to change nothing.
    """

    retention: Retention
    today: datetime.date
    vacuum: Vacuum
    seconds_min: float
    dry_run: bool


class Reclamation:
    """The part of a maintenance that frees payload."""

    def __init__(
        self,
        client: Client,
        terms: Terms,
        reading: Reading,
        marks: Callable[[], Iterable[Entry]],
        patiently: Callable[[str, Callable[[], None]], bool],
        *,
        skipped: list[str],
    ) -> None:
        """Begin with the inventory of the last maintenance.

        Args:
            client: The client of the store.
            terms: How payload is treated.
            reading: The journal, as it was before anything was archived.
            marks: Reads the archived entries that advanced the horizon.
            patiently: Runs an operation that may conflict with live clients.
            skipped: Collects what could not be done.
        """
        self._client = client
        self._payload = client.store.payload
        self._terms = terms
        self._reading = reading
        self._entries = reading.entries
        self._marks = marks
        self._patiently = patiently
        self._skipped = skipped
        self._now_ms = client.runtime.now_ms()
        self._entry = inventory.newest(self._entries)
        self._before = inventory.read(self._entry) or Inventory()
        self._known = {owner: set(found) for owner, found in self._before.slices.items()}
        self._deleted = {
            owner: (min(first, self._now_ms), min(last, self._now_ms))
            for owner, (first, last) in self._before.deleted.items()
        }
        self._erased_ms: dict[str, int] = {}
        self._missed: set[str] = set()
        self._empty: dict[str, Entry] = {}

    def run(self, gone: set[PositionId], horizon: int) -> Reclaimed:
        """Free the payload that is no longer needed.

        Args:
            gone: The entries that have left the journal since it was read.
            horizon: The version below which no transaction is decided any more.
        """
        complete = self._is_complete()
        catalog = [entry for entry in self._entries if entry.shard == model.CATALOG]
        owners = orphans.owners(catalog) | retention.staging_owners(self._entries)
        found, listed = self._orphans() if complete else (orphans.Orphans(), False)
        self._note_erased(catalog)
        owners |= found.staging | self._known.keys() | self._deleted.keys()
        if horizon < 0:  # nothing has ever left, but rows may have been erased
            self._vacuum(owners if self._terms.vacuum == "full" else owners & self._overdue())
            return Reclaimed(orphans=found.owners)
        removed = inventory.removed(catalog)
        if self._terms.vacuum != "full":
            owners -= removed - self._known.keys() - self._deleted.keys()
        asked = self._look(owners, complete=complete)
        named = retention.named_slices(e for e in self._entries if e.entry_id not in gone)
        leaving = [e for e in self._entries if e.entry_id in gone]
        dropped = self._drop(named, horizon, leaving)
        self._clear(inventory.dropped(catalog, horizon), owners - named.keys() - removed)
        self._vacuum(owners if self._terms.vacuum == "full" else owners & self._overdue())
        self._note(complete=listed, asked=bool(asked), owners=owners)
        return Reclaimed(dropped, tuple(sorted(self._empty)), found.owners)

    # ------------------------------------------------------------------ what there is

    def _is_complete(self) -> bool:
        """Return whether to read all tables, and not only those that something is known about."""
        terms = self._terms
        asked = terms.vacuum == "full" or terms.dry_run
        return asked or not self._before.is_complete(terms.today.isoformat())

    def _before_ms(self) -> int:
        """Return the newest creation time of a table whose creation must be over by now."""
        return self._now_ms - round(self._terms.retention.transaction_seconds_max * 1000)

    def _orphans(self) -> tuple[orphans.Orphans, bool]:
        """Find the tables that nothing names; return also whether all tables could be listed."""
        try:
            return orphans.find(self._client, self._before_ms()), True
        except Exception as error:  # perhaps of a table that is not the store's
            logger.warning("payload tables not listed", exc_info=True)
            self._skipped.append(f"list of payload tables: {error}"[:300])
            return orphans.Orphans(), False

    def _look(self, owners: set[str], *, complete: bool) -> set[str]:
        """Read which slices there are in tables with decisions since the inventory, or in all.

        If slices are missing, another run deleted them and could not record it.

        Returns:
            The owners whose tables were read.
        """
        active = self._active()
        asked = owners if complete else owners & (active.keys() | self._before.missed)
        for owner in sorted(asked):
            try:
                there = self._payload.slices(owner)
            except Exception as error:  # of one table: the others go on, and the result says so
                self._fail(owner, error)
                self._missed.add(owner)
                continue
            expected = self._known.get(owner, set()) | active.get(owner, set())
            if self._entry is None or not expected <= there:
                self._note_deleted(owner)
            self._known[owner] = there
        return asked

    def _active(self) -> retention.Slices:
        """Find the slices of decisions since the inventory, including archived ones."""
        version, day = self._before.version, self._before.day
        found = [*self._entries]
        if self._entry is not None and model.horizon(self._entries) > version:
            found += self._lately
            if day and day < self._kept_from:
                found += self._archived(day, self._kept_from)
        return retention.named_slices(entry for entry in found if entry.version > version)

    @cached_property
    def _lately(self) -> tuple[Entry, ...]:
        """The positions and changes that left the journal within the retention."""
        if model.horizon(self._entries) < 0:  # nothing was ever archived, and a dry run only reads
            return ()
        return self._archived(self._kept_from, "9999-12-31")

    def _archived(self, first: str, last: str) -> tuple[Entry, ...]:
        kinds = (model.POSTED, model.CHANGE_DECIDED)
        return self._client.store.journal.archive.read(days=(first, last), kinds=kinds)

    @cached_property
    def _kept_from(self) -> str:
        """The first day whose archived entries may still be needed.

        An entry that left in the last minute of a day has been gone for N whole days only when the
        day after those begins. A slow clock may have recorded an earlier day meanwhile.
        """
        days = self._terms.retention.payload_days
        first = self._terms.today - datetime.timedelta(days=days or -1)  # 0: nothing is kept
        since_ms = retention.midnight_ms(first.isoformat())
        known = (*self._entries, *self._marks())
        recent = (e.version for e in known if e.recorded_at_ms >= since_ms)
        marks = [e for e in known if e.kind == model.HORIZON_ADVANCED and "day" in e.body]
        marks.sort(key=lambda mark: mark.version)
        recently = self._recently(marks, min(recent, default=sys.maxsize), since_ms)
        said: list[str] = [mark.body["day"] for mark in recently]
        return min([first.isoformat(), *said])

    def _recently(self, marks: Sequence[Entry], since: int, since_ms: float) -> Sequence[Entry]:
        """Leave out the marks that were made before an instant.

        Args:
            marks: Entries that advanced the horizon, in commit order.
            since: The version from which on entries in the journal show that they are younger.
            since_ms: The instant.
        """

        def is_recent(mark: Entry) -> bool:
            if mark.version >= since:
                return True
            journal = self._client.store.journal
            return archived_by_ms(journal, mark.version, self._now_ms) >= since_ms

        older = [mark for mark in marks if mark.version < since]
        if not older or not is_recent(older[-1]):  # nearly always: no clock was behind
            return marks[len(older) :]
        return marks[bisect_left(marks, True, key=is_recent) :]  # noqa: FBT003 - what is sought

    # ------------------------------------------------------------------ what is given back

    def _drop(self, named: retention.Slices, horizon: int, leaving: Sequence[Entry]) -> int:
        """Delete slices that are no longer needed: orphans, and those consumed long enough ago.

        Args:
            named: The slices that the journal names.
            horizon: The version below which no transaction is decided any more.
            leaving: The entries that leave the journal in this very run; a dry run archives none.
        """
        width = self._client.cache.slice_width
        found = {
            owner: slices
            for owner, there in sorted(self._known.items())
            if (slices := retention.droppable(there, named.get(owner, ()), horizon, width))
        }
        day = max(model.archive_day(self._entries), self._terms.today.isoformat())
        lately = leaving if found and day >= self._kept_from else []
        recent = retention.named_slices((*self._lately, *lately)) if found else {}
        dropped = 0
        for owner, slices in found.items():
            old = [number for number in slices if number not in recent.get(owner, ())]
            if old and (self._terms.dry_run or self._dropped(owner, old)):
                dropped += len(old)
        return dropped

    def _dropped(self, owner: str, slices: list[int]) -> bool:
        try:
            what = f"payload of {owner}"
            if not self._patiently(what, lambda: self._payload.drop(owner, slices)):
                return False
        except Exception as error:  # of one table: the others go on, and the result says so
            self._fail(owner, error)
            return False
        self._known[owner] -= set(slices)
        self._note_deleted(owner)
        return True

    def _note_erased(self, catalog: Iterable[Entry]) -> None:
        """Note the rows erased since the inventory, whose files may still exist."""
        for one in erasures.erasures(catalog):
            if one.done is None:
                continue
            at_ms = min(one.done.recorded_at_ms, self._now_ms)
            self._erased_ms[one.payload_id] = max(at_ms, self._erased_ms.get(one.payload_id, at_ms))
            if one.done.version > self._before.version:
                first, last = self._deleted.get(one.payload_id, (at_ms, at_ms))
                self._deleted[one.payload_id] = (min(first, at_ms), max(last, at_ms))

    def _note_deleted(self, owner: str) -> None:
        now_ms = self._client.runtime.now_ms()  # its rows were deleted in this very run
        first, _ = self._deleted.get(owner, (now_ms, 0))
        self._deleted[owner] = (first, now_ms)

    def _clear(self, ended: Mapping[str, Entry], owners: set[str]) -> None:
        """Check that dropped owners have no rows and files left, and record those that have none.

        Args:
            ended: The owners that were dropped below the horizon.
            owners: The owners whose tables may be read.
        """
        if not self._terms.vacuum or self._terms.dry_run:
            return
        waiting = {o for o, (_, last) in self._deleted.items() if self._now_ms - last < _FILES_MS}
        for owner in sorted(ended.keys() & owners - waiting - self._missed):
            if not self._known.get(owner) and self._is_empty(owner):
                self._empty[owner] = ended[owner]
                self._deleted.pop(owner, None)
        facts = sorted(self._empty)
        for at in range(0, len(facts), FACTS_MAX):
            self._say_removed(facts[at : at + FACTS_MAX])

    def _is_empty(self, owner: str) -> bool:
        """Remove the remaining files of an owner, and return whether none are left."""
        try:
            self._known[owner] = self._payload.slices(owner)
            if self._known[owner]:  # of a client that did not know of the drop: deleted as usual
                return False
            reason = self._payload.vacuum(owner, self._terms.seconds_min, full=True)
            left = self._payload.removed_files(owner)
        except Exception as error:  # of one table: the others go on, and the result says so
            self._fail(owner, error)
            return False
        if reason is not None:
            self._skipped.append(f"vacuum: {reason}")
        elif left:  # some are too young by Delta's clock
            self._note_deleted(owner)
        return reason is None and not left

    def _overdue(self) -> set[str]:
        """Find the owners of deleted rows whose files need not be kept any longer."""
        return {o for o, (first, _) in self._deleted.items() if self._now_ms - first >= _FILES_MS}

    def _in_no_log(self, owner: str) -> bool:
        """Return whether to remove files that no log names, because rows were erased.

        A killed driver may have left files that it wrote and did not commit: neither the log nor a
        query shows them, and they may contain what was erased.
        """
        first, _ = self._deleted.get(owner, (0, 0))
        return first <= self._erased_ms.get(owner, -1)

    def _vacuum(self, owners: Iterable[str]) -> None:
        """Remove files that no retained version names; never while a reader may need them.

        A failure in one table does not stop the others.
        """
        terms, payload = self._terms, self._payload
        if not terms.vacuum or terms.dry_run:
            return
        for owner in sorted(set(owners) - self._empty.keys()):
            try:
                full = terms.vacuum == "full" or self._in_no_log(owner)
                reason = payload.vacuum(owner, terms.seconds_min, full=full)
                if reason is not None:
                    self._skipped.append(f"vacuum: {reason}")
                elif owner in self._overdue():
                    self._note_removed(owner, payload.files_kept_seconds(owner))
            except Exception as error:
                self._fail(owner, error)

    def _note_removed(self, owner: str, kept_seconds: float) -> None:
        """Note that files of rows deleted at least this long ago are gone.

        Once all of them should be, the disk is asked, wherever it can be seen: this run, those
        that deleted and the storage may have different clocks.
        """
        first, last = self._deleted[owner]
        gone_ms = self._now_ms - round(kept_seconds * 1000)
        left = None if last > gone_ms else self._payload.removed_files(owner)
        if left:  # some are younger than it seemed, or a killed driver left them
            reason = self._payload.vacuum(owner, self._terms.seconds_min, full=True)
            if reason is not None:
                self._skipped.append(f"vacuum: {reason}")
            left = self._payload.removed_files(owner)
        if left is None and last > gone_ms - _CLOCKS_DIFFER_MS:
            self._deleted[owner] = (max(first, gone_ms), last)
            return
        del self._deleted[owner]
        if left:
            self._note_deleted(owner)

    def _fail(self, owner: str, error: Exception) -> None:
        logger.warning("payload not maintained owner=%s", owner, exc_info=True)
        self._skipped.append(f"payload of {owner}: {error}"[:300])

    # ------------------------------------------------------------------ what is written down

    def _say_removed(self, owners: list[str]) -> None:
        """Record that the payload of some owners is gone for good."""

        def plan(_lost: int) -> Plan | None:
            known = inventory.removed(self._client.cache.catalog_entries())
            stamp = self._client.stamp()
            entries = tuple(
                Entry(
                    model.CATALOG,
                    model.payload_stream(owner),
                    model.PAYLOAD_REMOVED,
                    sequence=1,
                    queue_id=self._empty[owner].queue_id,
                    reason="dropped, and past its retention",
                    body={"v": 1, "payload": owner, "name": self._empty[owner].body["name"]},
                    **stamp.columns(),
                )
                for owner in owners
                if owner not in known
            )
            nexts = (model.next_sequence(model.CATALOG, entry.stream, 1) for entry in entries)
            return Plan(entries, (*nexts, model.layout_unchanged())) if entries else None

        try:
            self._client.land(plan, "remove payload")
        except Busy as error:  # the next maintenance finds it empty again
            for owner in owners:
                del self._empty[owner]
            self._skipped.append(f"payload: {error}")

    def _note(self, *, complete: bool, asked: bool, owners: set[str]) -> None:
        """Record the inventory for the next maintenance, unless it is unchanged."""
        before, today = self._before, self._terms.today.isoformat()
        after = Inventory(
            self._reading.version,
            model.archive_day(self._entries),
            today if complete else before.complete,
            {o: there for o, there in self._known.items() if there and o in owners},
            {o: ms for o, ms in self._deleted.items() if o in owners},
            frozenset(self._missed),
        )
        if self._terms.dry_run or not (asked or not after.says(before)):
            return
        known = 0 if self._entry is None else self._entry.sequence or 0

        def plan(_lost: int) -> Plan | None:
            entries, mine = self._client.cache.catalog_entries(), after
            newest = inventory.newest(entries)
            theirs = inventory.read(newest)
            if theirs is not None and newest is not None and (newest.sequence or 0) > known:
                # Another maintenance was faster, and its inventory is as true.
                mine = theirs.with_deleted(after.deleted)
                if mine.says(theirs):
                    return None
            return planning.mark(
                entries,
                inventory.STREAM,
                model.PAYLOAD_LISTED,
                mine.version,
                mine.body(),
                stamp=self._client.stamp(),
                shard=model.CATALOG,
            )

        try:
            self._client.land(plan, "list payload")
        except Busy as error:  # the next maintenance reads the tables again
            self._skipped.append(f"inventory of payload: {error}")
