"""The work between two moments: runs, attempts of transactions, and failures (pure)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from txnqueue.core import model
from txnqueue.core.instants import instant
from txnqueue.core.model import Entry
from txnqueue.core.state.transaction import undecided
from txnqueue.reports.audit.figures import AttemptLine, Cause, Event, RunLine

EVENTS_MAX = 100_000
"""The entries that a report has at most, the newest ones."""
CAUSES_MAX = 1_000
"""The causes that are told apart; further ones are counted under one name."""
OTHER_REASONS = "(further reasons)"
ASTRAY = frozenset(
    {
        model.REJECTED,
        model.DEAD_LETTERED,
        model.EXPIRED,
        model.PURGED,
        model.PURGE_PENDING,
        model.RELEASED,
    }
)


@dataclass(slots=True)
class _RunSums:
    """What is known of a run after some entries."""

    first_ms: int
    last_ms: int
    counts: Counter[str] = field(default_factory=Counter)
    queues: dict[str, None] = field(default_factory=dict)


class Runs:
    """Sums up what each actor did in each run."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Begin before the first entry.

        Args:
            names: What the queues are called, by their ids.
        """
        self._names = names
        self._sums: dict[tuple[str | None, str | None], _RunSums] = {}

    def see(self, entry: Entry) -> None:
        """Record the next entry between the two moments."""
        at_ms = entry.recorded_at_ms
        name = (model.run_of(entry), entry.actor)
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _RunSums(at_ms, at_ms)
        sums.first_ms, sums.last_ms = min(sums.first_ms, at_ms), max(sums.last_ms, at_ms)
        if entry.kind in model.DECISIONS:
            sums.counts[entry.kind] += 1
        elif not _is_of_a_move(entry):
            sums.counts[entry.kind] += entry.count or 0
        if (queue := self._names.get(entry.queue_id or "")) is not None:
            sums.queues[queue] = None

    def lines(self) -> Iterator[RunLine]:
        """Pass on the runs, by when they began."""
        each = sorted(self._sums.items(), key=lambda one: one[1].first_ms)
        for (run_id, actor), sums in each:
            yield RunLine(
                run_id=run_id,
                actor=actor,
                first_at=instant(sums.first_ms),
                last_at=instant(sums.last_ms),
                committed=sums.counts[model.COMMITTED],
                rolled_back=sums.counts[model.ROLLED_BACK],
                sent=sums.counts[model.POSTED],
                received=sums.counts[model.CLAIMED],
                accepted=sums.counts[model.ACCEPTED],
                rejected=sums.counts[model.REJECTED],
                released=sums.counts[model.RELEASED],
                queues=tuple(sums.queues),
            )


def _is_of_a_move(entry: Entry) -> bool:
    """Return whether an entry posts what was moved, or claims it for that: no send, no delivery."""
    if entry.kind == model.CLAIMED:
        return not entry.body.get("counts", True)
    return entry.kind == model.POSTED and model.was_moved(entry.body.get("origin"))


@dataclass(slots=True)
class _AttemptSums:
    """What is known of an attempt after some entries."""

    began_ms: int
    newest: Entry
    touched: bool = False
    decision: Entry | None = None
    prepared: bool = False
    posted: int = 0
    settled: int = 0
    changes: int = 0

    def add(self, entry: Entry) -> None:
        """Record an entry of the attempt."""
        self.newest = entry
        if entry.kind in model.DECISIONS:
            self.decision = entry
        elif entry.kind == model.PREPARED:
            self.prepared = True
        elif entry.kind == model.POSTED:
            self.posted += entry.count or 0
        elif entry.is_settlement:
            self.settled += entry.count or 0
        elif entry.kind == model.CHANGE_DECIDED:
            self.changes += 1

    def status(self, horizon: int) -> str:
        """Tell what has become of it: below the horizon only what was prepared is decided."""
        if self.decision is not None:
            return self.decision.kind
        if self.prepared:
            return model.PREPARED
        return undecided(self.newest.begun, horizon)


class Attempts:
    """Follows attempts of transactions; of those that had ended before only the ids are kept."""

    def __init__(self, after: int, beginning: int) -> None:
        """Begin before the first entry.

        Args:
            after: The commit_seq of the first moment.
            beginning: Of older versions than this decisions may have been removed.
        """
        self._after, self._beginning = after, beginning
        self._horizon = -1
        self._open: dict[str, _AttemptSums] = {}
        self._ended: list[_AttemptSums] = []
        self._over: set[str] = set()
        self._ended_in = (-1, set[str]())

    def see(self, entry: Entry) -> None:
        """Record the next entry, in commit order, also from before the first moment."""
        if entry.kind == model.HORIZON_ADVANCED:
            self._horizon = max(self._horizon, model.horizon([entry]))
        if entry.attempt is None:
            return
        self._forget_ended(entry.commit_seq)
        if entry.attempt in self._over:
            return  # what is confirmed, or acknowledged, later
        sums = self._open.get(entry.attempt)
        if sums is None:
            sums = self._open[entry.attempt] = _AttemptSums(entry.recorded_at_ms, entry)
        sums.add(entry)
        sums.touched |= entry.commit_seq > self._after
        if entry.kind in model.DECISIONS:
            self._ended_in[1].add(entry.attempt)

    def lines(self) -> Iterator[AttemptLine]:
        """Pass on the attempts that wrote anything between the two moments, as they began."""
        self._forget_ended(-1)
        left = (one for one in self._open.values() if not self._may_be_decided(one))
        found = [one for one in (*self._ended, *left) if one.touched]
        for sums in sorted(found, key=lambda one: one.began_ms):
            said = sums.decision or sums.newest
            yield AttemptLine(
                transaction_id=said.transaction_key or "",
                attempt=said.attempt or "",
                status=sums.status(self._horizon),
                reason=said.reason,
                actor=said.actor,
                run_id=model.run_of(said),
                began_at=instant(sums.began_ms),
                decided_at=instant(said.recorded_at_ms) if sums.decision else None,
                commit_seq=said.commit_seq if sums.decision else None,
                posted=sums.posted,
                settled=sums.settled,
                changes=sums.changes,
            )

    def _forget_ended(self, commit_seq: int) -> None:
        """Set aside attempts that an earlier commit ended, as their work belongs to that commit."""
        newest, ended = self._ended_in
        if commit_seq == newest:
            return
        for attempt in ended:
            sums = self._open.pop(attempt)
            if sums.touched:
                self._ended.append(sums)
        self._over |= ended
        self._ended_in = (commit_seq, set())

    def _may_be_decided(self, sums: _AttemptSums) -> bool:
        """Return whether its decision may be missing because it was removed."""
        newest = sums.newest
        return (
            sums.decision is None
            and not sums.prepared
            and newest.version < self._beginning
            and (newest.begun or 0) < self._horizon
        )


class Causes:
    """Counts why messages went astray, and why transactions were rolled back."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Begin before the first entry.

        Args:
            names: What the queues are called, by their ids.
        """
        self._names = names
        self._found: dict[tuple[str, str | None, str | None], list[int]] = {}

    def see(self, entry: Entry) -> None:
        """Record the next entry between the two moments."""
        if entry.kind not in ASTRAY and entry.kind != model.ROLLED_BACK:
            return
        if entry.kind == model.RELEASED and entry.reason is None:
            return  # given back on purpose
        name = (entry.kind, self._names.get(entry.queue_id or ""), entry.reason)
        if name not in self._found and len(self._found) >= CAUSES_MAX:
            name = (entry.kind, None, OTHER_REASONS)
        at_ms = entry.recorded_at_ms
        sums = self._found.setdefault(name, [0, 0, at_ms, at_ms])
        sums[0] += 1
        sums[1] += entry.count or 0
        sums[2], sums[3] = min(sums[2], at_ms), max(sums[3], at_ms)

    def lines(self) -> Iterator[Cause]:
        """Pass on the causes, the most frequent first."""
        each = sorted(self._found.items(), key=lambda one: (-one[1][1], -one[1][0], str(one[0])))
        for (kind, queue, reason), (times, messages, first_ms, last_ms) in each:
            yield Cause(kind, queue, reason, times, messages, instant(first_ms), instant(last_ms))


class Events:
    """Keeps the newest entries."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """Begin before the first entry.

        Args:
            names: What the queues are called, by their ids.
        """
        self._names = names
        self._tables: dict[str, str] = {}
        self._kept: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._seen = 0

    def see(self, entry: Entry, *, inside: bool) -> None:
        """Record the next entry, in commit order.

        Args:
            entry: The entry.
            inside: Whether it lies between the two moments.
        """
        if entry.kind == model.CHANGE_DECIDED:
            self._tables[entry.stream] = str(entry.body["change"]["table"])
        if not inside:
            return
        self._seen += 1
        self._kept.append(
            Event(
                commit_seq=entry.commit_seq,
                at=instant(entry.recorded_at_ms),
                kind=entry.kind,
                queue=self._names.get(entry.queue_id or ""),
                lane=entry.lane,
                count=entry.count,
                transaction_id=entry.transaction_key,
                table=self._tables.get(entry.stream),
                reason=entry.reason,
                actor=entry.actor,
                run_id=model.run_of(entry),
            )
        )

    def lines(self) -> tuple[tuple[Event, ...], int]:
        """Return the entries that were kept, and how many older ones there were."""
        return tuple(self._kept), self._seen - len(self._kept)
