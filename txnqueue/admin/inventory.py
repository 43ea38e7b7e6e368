"""The findings of the last maintenance in the payload tables, so the next reads only a few (pure).

An inventory is taken at a version of the journal, and covers everything decided by then: a table
without decisions since has no other slices. Rows that were staged but never decided leave no trace
in the journal, so every table is examined from time to time.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry

STREAM = "inventory"
COMPLETE_DAYS = 7
"""Every payload table is examined once in this many days, whatever is known about it."""
FILES_DAYS = 7
"""Deleted rows are not searched again within this many days: their files are kept that long."""
Slices = Mapping[str, Collection[int]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of the payload tables.

    Attributes:
        version: The version of the journal that the inventory covers.
        day: The day (ISO) under which entries that left the journal were archived then.
        complete: The day (ISO) on which all tables were last examined.
        slices: The slices that had rows, by owner; an owner that is missing had none.
        deleted: By owner, when rows were deleted whose files may still exist: first and last,
            in milliseconds since 1970.
        missed: The owners whose tables could not be read.
    """

    version: int = -1
    day: str = ""
    complete: str = ""
    slices: Slices = field(default_factory=dict)
    deleted: Mapping[str, Span] = field(default_factory=dict)
    missed: frozenset[str] = frozenset()

    def is_complete(self, today: str) -> bool:
        """Return whether all tables were examined recently; a day in the future does not count."""
        last = datetime.date.fromisoformat(today)
        first = (last - datetime.timedelta(days=COMPLETE_DAYS - 1)).isoformat()
        return first <= self.complete <= today

    def says(self, other: Inventory) -> bool:
        """Return whether another inventory has the same contents, whenever it was taken."""
        ignored = {"day": ""}
        return {**self.body(), **ignored} == {**other.body(), **ignored}

    def with_deleted(self, deleted: Mapping[str, Span]) -> Inventory:
        """Return the inventory with further deletions."""
        spans = {
            owner: (min(first, known[0]), max(last, known[1]))
            for owner, (first, last) in deleted.items()
            for known in [self.deleted.get(owner, (first, last))]
        }
        return replace(self, deleted={**self.deleted, **spans})

    def body(self) -> dict[str, Any]:
        """Return the body of the inventory's entry."""
        return {
            "v": 1,
            "day": self.day,
            "complete": self.complete,
            "slices": {owner: sorted(found) for owner, found in sorted(self.slices.items())},
            "deleted": {owner: list(span) for owner, span in sorted(self.deleted.items())},
            **({"missed": sorted(self.missed)} if self.missed else {}),
        }


def newest(entries: Iterable[Entry]) -> Entry | None:
    """Find the entry of the newest inventory."""
    taken = (entry for entry in entries if entry.kind == model.PAYLOAD_LISTED)
    return max(taken, key=lambda entry: entry.sequence or 0, default=None)


def read(entry: Entry | None) -> Inventory | None:
    """Read an inventory from its entry."""
    if entry is None:
        return None
    said = entry.body
    deleted = {owner: (first, last) for owner, (first, last) in said["deleted"].items()}
    missed = frozenset(said.get("missed", ()))
    return Inventory(
        entry.begun or 0, said["day"], said["complete"], said["slices"], deleted, missed
    )


def removed(entries: Iterable[Entry]) -> set[str]:
    """Find the owners whose payload has been removed for good."""
    return {e.body["payload"] for e in entries if e.kind == model.PAYLOAD_REMOVED}


def dropped(entries: Iterable[Entry], horizon: int) -> dict[str, Entry]:
    """Find the owners that were dropped below the horizon, each with the entry of its drop."""
    kinds = (model.QUEUE_DROPPED, model.EXCHANGE_DROPPED)
    return {
        entry.body["payload"]: entry
        for entry in entries
        if entry.shard == model.CATALOG and entry.kind in kinds and entry.version < horizon
        if entry.body["payload"] is not None
    }
