"""Which messages still have their payload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from txnqueue.core import ranges
from txnqueue.core.model import Entry, Range
from txnqueue.core.state import erasures
from txnqueue.storage.payload import Part, PayloadStore


class Presence:
    """Which payload is there still, of what was removed and erased since; looked up once."""

    def __init__(self, payload: PayloadStore, facts: Iterable[Entry]) -> None:
        """Look at nothing yet.

        Args:
            payload: Where the payload was staged.
            facts: The catalog's entries, as they are now: they say what was erased.
        """
        self._payload = payload
        self._erased = erasures.rows_of(erasures.erasures(facts))
        self._slices: dict[str, set[int]] = {}

    def is_removed(self, part: Part) -> bool:
        """Return whether a maintenance has removed some messages."""
        if part.payload_id not in self._slices:
            self._slices[part.payload_id] = self._payload.slices(part.payload_id)
        return part.slice not in self._slices[part.payload_id]

    def erased(self, part: Part) -> tuple[Range, ...]:
        """Find which of some messages were erased."""
        gone = self._erased.get(part.payload_id, {}).get((part.slice, part.send_id), ())
        return ranges.intersection(part.ranges, gone)

    def left(self, parts: Iterable[Part]) -> list[Part]:
        """Leave of some messages those that can still be read."""
        found = (
            replace(part, ranges=ranges.difference(part.ranges, self.erased(part)))
            for part in parts
            if not self.is_removed(part)
        )
        return [part for part in found if part.ranges]

    def gone(self, parts: Iterable[Part]) -> list[Part]:
        """Find the messages that can no longer be read."""
        found = (
            part if self.is_removed(part) else replace(part, ranges=self.erased(part))
            for part in parts
        )
        return [part for part in found if part.ranges]
