"""All that is known of a store, and what all entries that there ever were make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.storage.journal import EntryFilter, Newest, Order


def everything(store: Any) -> tuple[Entry, ...]:
    """Read every entry that is known."""
    return tuple(Past(store).stream(Order.COMMIT))


class Told(Past):
    """A past that somebody tells, instead of a store."""

    def __init__(self, entries: Iterable[Entry], beginning: int = -1) -> None:
        self._entries = sorted(entries, key=Order.COMMIT.key)
        self.beginning = beginning
        self.upto = max((entry.commit_seq for entry in self._entries), default=-1)
        self.version = self.upto >> 10

    def catalog(self) -> list[Entry]:
        return [entry for entry in self._entries if entry.shard == model.CATALOG]

    def find(self, *wanted: EntryFilter) -> list[Entry]:
        return [e for e in self._entries if any(one.matches(e) for one in wanted)]

    def stream(self, order: Order, after: int = -1) -> Iterator[Entry]:
        return iter(sorted((e for e in self._entries if e.commit_seq > after), key=order.key))

    def newest(self, wanted: EntryFilter | None = None) -> Newest:
        return Newest.among((e.commit_seq, e.recorded_at_ms) for e in self._entries)
