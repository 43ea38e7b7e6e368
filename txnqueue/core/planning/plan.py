"""A plan of an append: its entries, its conditions, its author (pure).

A plan is made from folds read at one version. Its conditions determine whether it still holds
when the append lands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Condition, Entry


@dataclass(frozen=True, slots=True)
class Plan:
    """Entries to append and the conditions under which they may land."""

    entries: tuple[Entry, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __add__(self, other: Plan) -> Plan:
        """Join two plans into one append: the union of what both read, expect and write."""
        return Plan(self.entries + other.entries, self.conditions + other.conditions)

    def excludes(self, other: Plan) -> bool:
        """Return whether one of two plans writes what the other expects to be absent.

        Each plan assumes that it is alone. Joined in one append, both would land nevertheless,
        because conditions are checked only against what was there before.
        """
        return self._breaks(other) or other._breaks(self)

    def gives_back_to(self, other: Plan) -> bool:
        """Return whether it returns messages to a lane that another plan takes messages from.

        The other plan does not know of them, and takes those behind them.
        """
        taken = {(e.queue_id, e.lane) for e in other.entries if e.kind == model.CLAIMED}
        returned = (e for e in self.entries if e.kind == model.RELEASED)
        return any((entry.queue_id, entry.lane) in taken for entry in returned)

    def _breaks(self, other: Plan) -> bool:
        written: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            written.setdefault((entry.shard, entry.stream), []).append(entry)
        return any(
            condition.matches(entry)
            for condition in other.conditions
            if not condition.present
            for entry in written.get((condition.shard, condition.stream), ())
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """The author, run and instant (ms) that every entry of an append records."""

    actor: str
    run_id: str | None
    now_ms: int

    def columns(self) -> dict[str, Any]:
        """Return the columns that every entry gets."""
        return {"actor": self.actor, "run_id": self.run_id, "recorded_at_ms": self.now_ms}


def mark(
    entries: Iterable[Entry],
    stream: str,
    kind: str,
    version: int,
    body: Any,
    *,
    stamp: Stamp,
    shard: str = model.FENCE,
) -> Plan:
    """Plan the next entry of a kind, recording a fact about a version of the journal.

    Args:
        entries: The entries of the shard.
        stream: The stream that has all entries of this kind, and no others.
        kind: The kind.
        version: The version that the fact is about or holds from.
        body: Further fields.
        stamp: The author and the instant.
        shard: The shard of the entry.
    """
    sequence = model.newest_sequence(e for e in entries if e.kind == kind) + 1
    entry = Entry(
        shard,
        stream,
        kind,
        sequence=sequence,
        begun=version,
        body={"v": 1, **body},
        **stamp.columns(),
    )
    conditions = (model.next_sequence(shard, stream, sequence), model.layout_unchanged())
    return Plan((entry,), conditions)


def lane_conditions(queue_id: str, sequences: Iterable[tuple[int, int]]) -> tuple[Condition, ...]:
    """Expect the next sequence of each lane, an open queue, and an unchanged layout."""
    nexts = (
        model.next_sequence(model.lane_shard(queue_id, lane), model.lane_stream(lane), sequence)
        for lane, sequence in sequences
    )
    return (*nexts, model.queue_open(queue_id), model.layout_unchanged())
