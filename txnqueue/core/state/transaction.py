"""The state of a transaction's key: its attempts and their decisions (pure)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state.positions import AttemptOwner
from txnqueue.errors import StoreCorrupt


def undecided(begun: int | None, horizon: int) -> str:
    """Tell of an attempt without a decision whether it can still have one: below the horizon, not.

    It is rolled back then, as ``outcome`` says of it, though nobody has written that down.
    """
    return model.ROLLED_BACK if (begun or 0) < horizon else "pending"


@dataclass(slots=True)
class TransactionState:
    """The journal's entries of one transaction key, over all its attempts.

    ``heuristics`` are an operator's decisions that are not forgotten yet; ``branch`` holds the
    entries of the sessions that share the transaction, and ``began_by_ms`` the smallest clock that
    any client recorded since; ``horizon`` is the version below which no client decides any more,
    as far as it was read.
    """

    key: str
    horizon: int = -1
    decisions: dict[str, Entry] = field(default_factory=dict)
    prepared: dict[str, Entry] = field(default_factory=dict)
    heuristics: dict[str, Entry] = field(default_factory=dict)
    branch: list[Entry] = field(default_factory=list)
    began_by_ms: int = sys.maxsize

    @classmethod
    def of(cls, key: str, entries: Iterable[Entry], horizon: int = -1) -> TransactionState:
        """Fold the entries of a transaction shard into the state of one key."""
        state = cls(key, horizon)
        for entry in sorted(entries, key=attrgetter("place")):
            if state.branch:
                state.began_by_ms = min(state.began_by_ms, _clock_ms(entry))
            if entry.stream != key or entry.attempt is None:
                continue
            if entry.kind == model.PREPARED:
                state.prepared[entry.attempt] = entry
            elif entry.kind in model.DECISIONS:
                state.decisions.setdefault(entry.attempt, entry)
            elif entry.kind == model.HEURISTIC:
                state.heuristics[entry.attempt] = entry
            elif entry.kind == model.FORGOTTEN:
                state.heuristics.pop(entry.attempt, None)
            elif entry.kind in model.BRANCH:
                state.branch.append(entry)
            else:
                raise StoreCorrupt(
                    f"An entry of kind {entry.kind!r} lies in {entry.shard!r}: stop writing to "
                    "the store, and keep it as it is."
                )
        return state

    @classmethod
    def by_key(cls, entries: Iterable[Entry], horizon: int = -1) -> dict[str, TransactionState]:
        """Fold the entries of transaction shards into the states of all keys, sorted by key."""
        found = list(entries)
        return cls.of_keys(sorted({entry.stream for entry in found}), found, horizon)

    @classmethod
    def of_keys(
        cls, keys: Collection[str], entries: Iterable[Entry], horizon: int = -1
    ) -> dict[str, TransactionState]:
        """Fold the entries of transaction shards into the states of some keys, in one pass."""
        grouped: dict[str, list[Entry]] = {key: [] for key in keys}
        began_by_ms = dict.fromkeys(keys, sys.maxsize)
        clock_ms = sys.maxsize
        for entry in sorted(entries, key=attrgetter("place"), reverse=True):
            clock_ms = min(clock_ms, _clock_ms(entry))
            mine = grouped.get(entry.stream)
            if mine is not None:
                mine.append(entry)
                began_by_ms[entry.stream] = clock_ms
        states = {key: cls.of(key, mine, horizon) for key, mine in grouped.items()}
        for key, state in states.items():
            state.began_by_ms = began_by_ms[key]
        return states

    @property
    def is_known(self) -> bool:
        """Whether the journal has an entry of the key."""
        return bool(self.decisions or self.prepared or self.heuristics or self.branch)

    @property
    def committed(self) -> Entry | None:
        """The decision that committed an attempt of the key; None if there is none."""
        return next((e for e in self.decisions.values() if e.kind == model.COMMITTED), None)

    @property
    def in_doubt(self) -> Entry | None:
        """The prepared entry that waits for a decision; None if there is none."""
        return next((e for a, e in self.prepared.items() if a not in self.decisions), None)

    def rolled_back(self) -> list[str]:
        """List the attempts that were rolled back."""
        return [a for a, e in self.decisions.items() if e.kind == model.ROLLED_BACK]

    def decided(self, attempt: str) -> str | None:
        """Return how an attempt ended: committed, rolled_back, or None while undecided."""
        entry = self.decisions.get(attempt)
        return entry.kind if entry else None

    def is_over(self, owner: AttemptOwner) -> bool:
        """Return whether an attempt of the key can no longer be decided.

        Below the horizon only prepared attempts are still decided: any other attempt without a
        decision never happened, or its decision has moved to the archive.
        """
        if owner.attempt in self.decisions:
            return True
        return owner.begun < self.horizon and owner.attempt not in self.prepared


def _clock_ms(entry: Entry) -> int:
    """Return the clock that an entry recorded; an entry without one counts as latest."""
    return entry.recorded_at_ms if entry.recorded_at_ms > 0 else sys.maxsize
