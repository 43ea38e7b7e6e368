"""What a handler did, or would have done, according to entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import Position
from txnqueue.messages.parts import part_of
from txnqueue.storage.payload import Part
from txnqueue.storage.tables import Change


@dataclass(frozen=True)
class Deeds:
    """What entries say that was done, by one transaction or by several."""

    entries: Sequence[Entry]
    names: Mapping[str, str]

    def counts(self) -> Counter[tuple[str, str | None, str | None]]:
        """Count the messages by fate, and the rows by table."""
        found: Counter[tuple[str, str | None, str | None]] = Counter()
        for entry in self.entries:
            queue = self.names.get(entry.queue_id or "")
            if entry.kind == model.POSTED:
                if not model.was_moved(entry.body.get("origin")):
                    found["sent", queue, None] += entry.count or 0
            elif entry.kind == model.MOVED:
                found["moved", self.names.get(entry.body.get("target") or ""), None] += (
                    entry.count or 0
                )
            elif entry.kind == model.CHANGE_DECIDED:
                change = Change.from_json(entry.body["change"])
                rows = change.source.count if change.source is not None else 1
                found[change.operation, None, change.table] += rows
            else:
                found[entry.kind, queue, None] += entry.count or 0
        return found

    def parts(self, info: QueueInfo) -> list[Part]:
        """Find where the rows lie that were sent to a queue."""
        return [
            part_of(Position.of(entry), entry.ranges, info.name, entry.lane or 0, 0)
            for entry in self.entries
            if entry.kind == model.POSTED
            and entry.queue_id in (info.queue_id, info.in_memory().queue_id)
            and not model.was_moved(entry.body.get("origin"))
        ]
