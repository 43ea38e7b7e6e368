"""Effects beyond the queues: changes of tables, and decisions of operators (pure)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from txnqueue.core import model
from txnqueue.core.instants import instant
from txnqueue.core.model import Entry, PositionId
from txnqueue.reports.audit.figures import HeuristicDecision, TableChange, TableLag


class FollowedChanges:
    """Follows changes of tables from their decision to their end."""

    def __init__(self, after: int) -> None:
        """Begin before the first entry.

        Args:
            after: The commit_seq of the first moment.
        """
        self._after = after
        self._unconfirmed: dict[PositionId, Entry] = {}
        self._ended: list[TableChange] = []

    def see(self, entry: Entry) -> None:
        """Record the next entry, in commit order, also from before the first moment."""
        if entry.kind == model.CHANGE_DECIDED:
            self._unconfirmed[entry.entry_id] = entry
        elif entry.ended_change is not None:
            decided = self._unconfirmed.pop(entry.ended_change, None)
            if decided is not None and max(entry.commit_seq, decided.commit_seq) > self._after:
                self._ended.append(_change(decided, entry))

    def lines(self) -> tuple[TableChange, ...]:
        """Return the changes in the order of their decisions; the unconfirmed are among them."""
        found = [*self._ended, *(_change(one) for one in self._unconfirmed.values())]
        return tuple(sorted(found, key=lambda one: one.commit_seq))


def _change(decided: Entry, ended: Entry | None = None) -> TableChange:
    status = "unconfirmed"
    if ended is not None:
        status = "applied" if ended.kind == model.CHANGE_APPLIED else "waived"
    return TableChange(
        table=str(decided.body["change"]["table"]),
        operation=str(decided.body["change"]["operation"]),
        rows=decided.count,
        transaction_id=decided.transaction_key or "",
        actor=decided.actor,
        run_id=model.run_of(decided),
        commit_seq=decided.commit_seq,
        decided_at=instant(decided.recorded_at_ms),
        status=status,
        ended_at=None if ended is None else instant(ended.recorded_at_ms),
        reason=None if ended is None else ended.reason,
    )


def by_table(changes: Iterable[TableChange]) -> Iterator[TableLag]:
    """Put the changes of each table together."""
    grouped = defaultdict[str, list[TableChange]](list)
    for change in changes:
        grouped[change.table].append(change)
    for table, found in sorted(grouped.items()):
        lags = [c.lag_seconds for c in found if c.lag_seconds is not None and c.status == "applied"]
        yield TableLag(
            table=table,
            decided=len(found),
            applied=sum(change.status == "applied" for change in found),
            waived=sum(change.status == "waived" for change in found),
            unconfirmed=sum(change.status == "unconfirmed" for change in found),
            lag_seconds_median=statistics.median(lags) if lags else None,
            lag_seconds_max=max(lags, default=None),
        )


class Heuristics:
    """Finds what operators decided of prepared transactions."""

    def __init__(self, after: int) -> None:
        """Begin before the first entry.

        Args:
            after: The commit_seq of the first moment.
        """
        self._after = after
        self._found: dict[str, HeuristicDecision] = {}

    def see(self, entry: Entry) -> None:
        """Record the next entry, in commit order, also from before the first moment."""
        attempt = entry.attempt or ""
        if entry.kind == model.HEURISTIC:
            self._found[attempt] = HeuristicDecision(
                transaction_id=entry.transaction_key or "",
                decision=str(entry.body["decision"]),
                reason=entry.reason,
                actor=entry.actor,
                run_id=model.run_of(entry),
                at=instant(entry.recorded_at_ms),
                commit_seq=entry.commit_seq,
            )
        elif entry.kind == model.FORGOTTEN and attempt in self._found:
            if entry.commit_seq <= self._after:
                del self._found[attempt]
            else:
                self._found[attempt] = replace(
                    self._found[attempt],
                    forgotten_at=instant(entry.recorded_at_ms),
                    forgotten_by=entry.actor,
                )

    def lines(self) -> tuple[HeuristicDecision, ...]:
        """Return the decisions between the two moments, and those still on record."""
        return tuple(self._found.values())
