"""Remove history after its retention: first record the removal, then delete the entries.

The record is written to the fence before anything is deleted, and tells from which version on the
history is complete. So a reader that misses an entry learns there that it may have been removed. A
crash in between leaves more history than promised, which the next maintenance deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txnqueue.admin.retention import archived_by_ms
from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.state import retention
from txnqueue.storage.journal import Archive, Journal

STREAM = "history"


@dataclass(frozen=True, slots=True)
class HistoryRemoval:
    """The history that may be removed.

    Attributes:
        version: The history is complete from this version on.
        day: Archived entries under earlier days are deleted.
        standing: The known older positions, and those that their messages were in before: what was
            done to these messages stays.
    """

    version: int
    day: str
    standing: Sequence[Entry]


def find(
    journal: Journal,
    entries: Iterable[Entry],
    advanced: Iterable[Entry],
    last_day: str,
    now_ms: int,
) -> HistoryRemoval | None:
    """Find the history that may be removed.

    Args:
        journal: The journal; there is an archive.
        entries: The journal's entries, which also show those that leave it meanwhile.
        advanced: The archived entries that advanced the horizon.
        last_day: The history must reach back to this day (ISO) or further.
        now_ms: The instant from which on the future begins.
    """
    here, archive = tuple(entries), journal.archive
    known = (*here, *advanced)
    found = retention.beginning(known, last_day, now_ms)
    while found and archived_by_ms(journal, found[0], now_ms) >= retention.over_ms(last_day):
        found = retention.beginning(known, last_day, now_ms, before=found[0])
    if found is None:
        return None
    version, day = found
    lately = archive.read(kinds=[model.POSTED], days=(day, "9999-12-31"), before=version)
    standing = retention.standing((*here, *lately), version)
    return HistoryRemoval(version, day, _with_former(archive, standing, day))


def _with_former(archive: Archive, standing: Sequence[Entry], day: str) -> list[Entry]:
    """Add the positions that messages were in before they were moved, or became dead letters.

    They have left the journal; nothing but the messages that were moved tells that they matter.
    Those archived from ``day`` on stand already.
    """
    found, newest = [*standing], standing
    known = {entry.entry_id for entry in standing}
    while wanted := retention.former(newest) - known:
        known |= wanted
        named = [Entry("", "", model.POSTED, append_id=name[0], index=name[1]) for name in wanted]
        newest = archive.read(among=named, kinds=[model.POSTED], days=("0001-01-01", day))
        found += newest
    return found


def announce(client: Client, removal: HistoryRemoval) -> None:
    """Record in the fence the later beginning of the history, unless it is already recorded.

    Raises:
        Busy: Others were faster at every try; nothing may be deleted.
    """

    def plan(_lost: int) -> Plan | None:
        fence = client.store.journal.read([model.FENCE]).entries
        if model.beginning(fence) >= removal.version:
            return None
        version, stamp = removal.version, client.stamp()
        body = {"day": removal.day, **_decisions(fence)}
        return planning.mark(fence, STREAM, model.HISTORY_REMOVED, version, body, stamp=stamp)

    client.land(plan, "remove history")


def _decisions(fence: Iterable[Entry]) -> dict[str, int]:
    """Return where complete decisions begin: they stay, but earlier releases removed them."""
    found = list(fence)
    if max((e.sequence or 0 for e in found if e.kind == model.LAYOUT_CHANGED), default=1) < 2:
        return {}  # a release before 0.2 may remove them any time, by this very mark
    return {"decisions_from": model.decisions_beginning(found)}
