"""Remove what is past the retention of the history: first the fact, then the entries.

The fact is recorded in the fence before anything is deleted, and says from which version on the
history is whole. So a reader that misses an entry finds there that it may have been removed; a
crash in between leaves more than is promised, and the next maintenance deletes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.state import retention
from txnqueue.storage.journal import Journal

STREAM = "history"


@dataclass(frozen=True, slots=True)
class HistoryRemoval:
    """What may be removed.

    Attributes:
        version: From here on the history is whole.
        day: What the archive keeps under the days before this one goes.
        standing: The older positions that are known: what was done to their messages stays.
    """

    version: int
    day: str
    standing: Sequence[Entry]


def find(
    journal: Journal, entries: Iterable[Entry], advanced: Iterable[Entry], last_day: str
) -> HistoryRemoval | None:
    """Find what may be removed.

    Args:
        journal: The journal; there is an archive.
        entries: What the journal holds. What leaves it meanwhile stays known by this.
        advanced: What the archive holds of what advanced the horizon.
        last_day: The history shall reach back to this day (ISO), or beyond.
    """
    here, archive = tuple(entries), journal.archive
    found = retention.beginning((*here, *advanced), last_day)
    if found is None:
        return None
    version, day = found
    lately = archive.read(kinds=[model.POSTED], days=(day, "9999-12-31"), before=version)
    return HistoryRemoval(version, day, retention.standing((*here, *lately), version))


def announce(client: Client, removal: HistoryRemoval) -> None:
    """Record in the fence that the history begins later now, unless it is recorded already.

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
    """Return from where on decisions are complete: they stay, but earlier versions removed them."""
    found = list(fence)
    if max((e.sequence or 0 for e in found if e.kind == model.LAYOUT_CHANGED), default=1) < 2:
        return {}  # a version before 0.2 may remove them any time, by this very mark
    return {"decisions_from": model.decisions_beginning(found)}
