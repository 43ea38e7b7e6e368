"""The work of an attempt, and the entries by which a decision records it.

No other client knows of the staged sends, the settled messages and the changes of tables until a
decision names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnqueue.client.client import Client
from txnqueue.core import model, planning, ranges
from txnqueue.core.model import Condition, Entry
from txnqueue.core.planning import Disposition, Plan, Stamp, decisions
from txnqueue.core.state import AttemptOwner, QueueState
from txnqueue.messages.claim import HeldClaim
from txnqueue.messages.move import departures, in_order
from txnqueue.messages.settlement import Account, Name, check_held, kept_until, name_of, still_ours
from txnqueue.messages.staged import StagedSend
from txnqueue.storage.tables import Change
from txnqueue.transactions.table_changes import decided


@dataclass(slots=True)
class PlannedWork:
    """The work of one attempt as entries.

    Attributes:
        queue_ids: The queues that it posts to or settles in.
        facts: The entries that post, settle and change.
        binds: The entries of lanes by which it settles messages held under leases.
        conditions: Further conditions of the append.
    """

    queue_ids: set[str]
    facts: list[Entry] = field(default_factory=list)
    binds: list[Entry] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """The work of one attempt.

    Attributes:
        sends: The staged sends.
        accounts: The messages that it acquired, or that it settles.
        changes: The changes of the user's tables.
        sealed_ms: When the entries of its durable work were last written.
        kept_until_ms: The deadlines of the kept claims in them, which hold once they have landed.
    """

    sends: list[StagedSend] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    sealed_ms: int = 0
    kept_until_ms: dict[Name, int] = field(default_factory=dict)

    def durable(self, attempt: str) -> bool:
        """Return whether any of the work concerns durable messages or tables."""
        return bool(self.changes) or self._any(attempt, transient=False)

    def transient(self, attempt: str) -> bool:
        """Return whether any of the work concerns transient messages."""
        return self._any(attempt, transient=True)

    def forget(self, attempt: str) -> None:
        """Forget what it would have settled of leases, whose holder may keep them for long."""
        for account in self.accounts:
            if account.acquirer is None:
                account.unsay(attempt)

    def _any(self, attempt: str, *, transient: bool) -> bool:
        return any(send.info.transient == transient for send in self.sends) or any(
            one.info.transient == transient and account.dispositions(one, attempt)
            for account in self.accounts
            for one in account.held
        )

    def seal(
        self,
        client: Client,
        owner: AttemptOwner,
        kind: str,
        rolled_back: Iterable[str],
        stamp: Stamp,
        *,
        body: dict[str, Any],
    ) -> Plan:
        """Plan the one append that commits or prepares the durable or the transient work.

        Args:
            client: The client of the durable or the transient part, which selects the work; it
                reads whether the settled messages are still held.
            owner: The attempt.
            kind: ``committed`` or ``prepared``.
            rolled_back: Other attempts of the key that were read as rolled back.
            stamp: The author and the instant.
            body: Further fields of the decision.

        Raises:
            LeaseLost: Others may have some of the messages now.
        """
        gathered = self.gathered(client, owner, stamp)
        self.sealed_ms = stamp.now_ms
        sealed = decisions.seal(
            kind, owner, gathered.facts, gathered.queue_ids, rolled_back, stamp=stamp, body=body
        )
        return _binding(gathered.binds) + sealed + Plan((), tuple(gathered.conditions))

    def gathered(self, client: Client, owner: AttemptOwner, stamp: Stamp) -> PlannedWork:
        """Write the durable or the transient work as entries.

        Args:
            client: The client of the durable or the transient part, which selects the work; it
                reads whether the settled messages are still held.
            owner: The attempt.
            stamp: The author and the instant.

        Raises:
            LeaseLost: Others may have some of the messages now.
        """
        transient = client is client.transient
        sends = [send for send in self.sends if send.info.transient == transient]
        found = PlannedWork({send.info.queue_id for send in sends})
        found.facts += [entry for send in sends for entry in send.positions(owner, stamp)]
        if not transient:
            found.facts += [decided(change, owner, stamp) for change in self.changes]
        ended = [
            (one, dispositions)
            for account in self.accounts
            for one in account.held
            if one.info.transient == transient
            and (dispositions := account.dispositions(one, owner.attempt))
        ]
        found.queue_ids.update(one.info.queue_id for one, _ in ended)
        found.binds = _binds(client, ended, owner, stamp)
        moved: list[Entry] = []
        dead: list[Entry] = []
        for one, dispositions in ended:
            for disposition in dispositions:
                entry = _settle(one, disposition, owner, stamp)
                found.facts.append(entry)
                if disposition.kind == model.KEPT:
                    self.kept_until_ms[name_of(one)] = entry.body["deadline"]
                leaving = departures(one, disposition, stamp, owner)
                arrivals = moved if disposition.kind == model.MOVED else dead
                arrivals += leaving.entries
                found.conditions += leaving.conditions
        held = [one for account in self.accounts for one in account.held]
        # Dead letters are not cut: each of thousands may have one of a few reasons.
        found.facts += (*in_order(moved, held, cut=True), *in_order(dead, held))
        return found

    def released(
        self, stamp: Stamp, reason: str, *, counted: bool = True, transient: bool = False
    ) -> list[Entry]:
        """Make the entries that release the acquired messages; those under a lease stay."""
        return [
            entry
            for account in self.accounts
            for one in account.held
            if one.info.transient == transient
            for entry in planning.release_claims(
                one.info.queue_id, [one.claim], stamp, reason, counted=counted
            )
        ]

    def decided_at(self, at_ms: int) -> None:
        """Let the leases of kept messages begin when the work was committed, as they do.

        Prepared work is committed later than it was sealed. If an earlier try of a commit has
        landed, that was earlier than the last one was sealed. A lease that ends later, because it
        was extended since or was longer before, stays as it is.
        """
        for one in (one for account in self.accounts if account.keeping for one in account.held):
            sealed_until_ms = self.kept_until_ms.get(name_of(one))
            if sealed_until_ms is not None:  # else all of it was settled
                until_ms = sealed_until_ms + at_ms - self.sealed_ms
                kept_until(one.claim, until_ms, at_ms)

    def committed(self, attempt: str) -> None:
        """Record in the accounts that an attempt's dispositions were carried out."""
        for account in self.accounts:
            account.committed(attempt)


def _settle(one: HeldClaim, disposition: Disposition, owner: AttemptOwner, stamp: Stamp) -> Entry:
    """Make the entry of a disposition; that of a kept claim names the new deadline."""
    if disposition.kind == model.KEPT:
        items = one.items if disposition.items is None else disposition.items
        count = sum(ranges.count(part) for _, part in items)
        # A lease of the queue's length from now, but no shorter than the caller asked for.
        lasts_until_ms = stamp.now_ms + round(one.info.settings.lease_seconds * 1000)
        deadline_ms = max(one.claim.deadline_seen_ms(stamp.now_ms), lasts_until_ms)
        return planning.kept(one.info.queue_id, one.claim, count, deadline_ms, stamp, owner=owner)
    return planning.settlement(
        one.info.queue_id, one.claim, disposition, stamp, sequence=None, owner=owner
    )


def _binds(
    client: Client,
    ended: Sequence[tuple[HeldClaim, Sequence[Disposition]]],
    owner: AttemptOwner,
    stamp: Stamp,
) -> list[Entry]:
    """Make the entries of lanes by which an attempt settles claims held under leases.

    Raises:
        LeaseLost: Others may have some of the messages now.
    """
    binds: list[Entry] = []
    folds: dict[str, QueueState] = {}
    earlier: Counter[tuple[str, int]] = Counter()
    with client.lock:
        for one, dispositions in ended:
            if isinstance(one.claim.owner, AttemptOwner):
                continue
            fold, held = still_ours(client, one, folds)
            for disposition in dispositions:
                check_held(one, held, disposition)
            queue_id = one.info.queue_id
            sequence = fold.lanes[held.lane].next_sequence + earlier[queue_id, held.lane]
            binds.append(planning.bind(queue_id, held, owner, sequence, stamp))
            earlier[queue_id, held.lane] += 1
    return binds


def _binding(binds: Sequence[Entry]) -> Plan:
    conditions: dict[str, Condition] = {}
    for entry in binds:
        expected = model.next_sequence(entry.shard, entry.stream, entry.sequence or 0)
        conditions.setdefault(entry.shard, expected)
    return Plan(tuple(binds), tuple(conditions.values()))
