"""What a decision answers, what a send has staged, and decisions on prepared transactions."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnqueue import demarcating, model, planning, recalling, sealing
from txnqueue.applying import follow, is_applied
from txnqueue.branching import COORDINATE, Branch, is_branch
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.duplicates import write_ids
from txnqueue.errors import TransactionFinished, TransactionMismatch, TransactionNotFound
from txnqueue.ledger import KeyState, Owner
from txnqueue.model import Entry
from txnqueue.payload import Placing, Run
from txnqueue.payload.arranging import Place, sort_key
from txnqueue.planning import Plan
from txnqueue.receiving import abort_branch


class Status(str, enum.Enum):
    """Where a transaction stands."""

    NOT_STARTED = "not_started"
    ACTIVE = "active"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a commit answers.

    Attributes:
        transaction_id: The transaction.
        commit_seq: Its place in commit order, which is total and never changes.
        journal_version: The Delta version of the journal that holds it; without durable work
            the one at which it began.
        committed_at: When, by the clock of whoever committed it: information only.
        applied: Whether its table changes have been applied; true if it has none.
    """

    transaction_id: str
    commit_seq: int
    journal_version: int
    committed_at: datetime.datetime
    applied: bool = True

    @classmethod
    def of(cls, entry: Entry, applied: bool = True) -> Receipt:
        """Read the receipt from the entry that decided."""
        instant = datetime.datetime.fromtimestamp(
            entry.recorded_at_ms / 1000, datetime.timezone.utc
        )
        return cls(entry.transaction_key or "", entry.commit_seq, entry.version, instant, applied)

    @classmethod
    def in_memory(cls, transaction_id: str, begun: int, committed_at_ms: int) -> Receipt:
        """Write the receipt of a commit without durable work.

        It has no place of its own in commit order: it names the version that it began at.
        """
        instant = datetime.datetime.fromtimestamp(committed_at_ms / 1000, datetime.timezone.utc)
        return cls(transaction_id, model.commit_seq(begun), begun, instant)


@dataclass(frozen=True, slots=True)
class Publication:
    """What the positions of published rows say besides.

    Attributes:
        payload_id: The owner of the payload: the exchange.
        schema_version: Of the exchange's columns.
        exchange_id: The exchange.
        origin: That they are dead letters, and why; None if the queue was bound.
    """

    payload_id: str
    schema_version: int
    exchange_id: str
    origin: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StagedSend:
    """Rows that were staged for a queue: positions, once a decision names them.

    Rows share a position if they share the lane, the priority and both instants.
    """

    info: QueueInfo
    slice: int
    send_id: str
    runs: tuple[Run, ...]
    placing: Placing = field(default_factory=Placing)
    published: Publication | None = None

    @property
    def payload_id(self) -> str:
        """The owner of the payload: the queue, or the exchange that it was published to."""
        return self.info.payload_id if self.published is None else self.published.payload_id

    @property
    def places(self) -> dict[Place, list[Run]]:
        """The runs of each position, in the order in which the positions stand."""
        found: dict[Place, list[Run]] = {}
        for run in self.runs:
            place = (run.lane, run.priority, run.available_step, run.expires_step)
            found.setdefault(place, []).append(run)
        return dict(sorted(found.items(), key=lambda item: sort_key(item[0])))

    def positions(self, owner: Owner, stamp: planning.Stamp) -> list[Entry]:
        """Write the positions that the commit posts."""
        said = self._owner()
        reason = said["origin"]["reason"] if "origin" in said else None
        return [
            Entry(
                model.backlog_shard(self.info.queue_id),
                model.lane_stream(lane),
                model.POSTED,
                transaction_key=owner.key,
                attempt=owner.attempt,
                begun=owner.begun,
                queue_id=self.info.queue_id,
                lane=lane,
                ranges=tuple(run.range for run in runs),
                count=sum(run.count for run in runs),
                reason=reason,
                body={
                    "v": 1,
                    "slice": self.slice,
                    "send": self.send_id,
                    "priority": priority,
                    **said,
                    **self._instants(available_step, expires_step),
                    **self._names(runs),
                },
                **stamp.columns(),
            )
            for (lane, priority, available_step, expires_step), runs in self.places.items()
        ]

    def _owner(self) -> dict[str, Any]:
        """Say whose payload it is, and how it came here."""
        published = self.published
        if published is None:
            return {"payload": self.payload_id, "schema": self.info.schema_version}
        said = {
            "payload": self.payload_id,
            "schema": published.schema_version,
            "exchange": published.exchange_id,
        }
        return said if published.origin is None else {**said, "origin": dict(published.origin)}

    def _names(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Say which column names the messages, and what they are called if they are few."""
        column = self.info.settings.message_id
        found: dict[str, Any] = {} if column is None else {"message_id": column}
        if all(run.ids is not None for run in runs):
            found["ids"] = write_ids(one for run in runs for one in run.ids or ())
        return found

    def _instants(self, available_step: int | None, expires_step: int | None) -> dict[str, int]:
        """Say when messages may be delivered, as far as it is not at once and for ever."""
        placing, found = self.placing, {}
        steps = {"available_at": available_step, "expires_at": expires_step}
        fixed = {"available_at": placing.available_at, "expires_at": placing.expires_at}
        for name, step in steps.items():
            value = fixed[name]
            if step is not None:
                found[name] = step * placing.step_ms
            elif isinstance(value, int):
                found[name] = value
        return found


def decide_prepared(
    client: Client,
    key: str,
    *,
    commit: bool,
    reason: str | None = None,
    attempt: str | None = None,
    by_last_resource: bool = False,
    heuristic: bool = False,
) -> Receipt | None:
    """Decide a prepared transaction; anybody may, and repeating the decision is a no-op.

    Args:
        client: Whose decision it is.
        key: The transaction.
        commit: Whether it is committed.
        reason: Why.
        attempt: The attempt; the one that waits when left out.
        by_last_resource: Whether the database has decided that is to decide.
        heuristic: Whether an operator decides instead of whoever is to decide.

    Returns:
        The receipt of a commit.

    Raises:
        TransactionFinished: It is decided otherwise already.
        TransactionNotFound: The journal says nothing of it.
        TransactionMismatch: Nothing is prepared under this id, or a database decides it.
        NotPermitted: It is a branch that is restricted to other principals.
        HistoryRemoved: Nothing is known of it, or not any more.
    """
    wanted = model.COMMITTED if commit else model.ROLLED_BACK
    already: list[Entry] = []

    def plan(lost: int) -> Plan | None:
        already.clear()
        state = client.key_state(key)
        prepared = state.in_doubt
        branch = None if heuristic else _permitted(client, state)
        if branch is not None and branch.open and not commit:
            return abort_branch(client, branch, reason or "rolled back")
        if branch is not None and branch.lost and not commit:
            return None  # the horizon has passed it: it never happened
        if prepared is not None and attempt in (None, prepared.attempt):
            last = prepared.body.get("last_resource")
            if last is not None and not (by_last_resource or heuristic):
                raise TransactionMismatch(
                    f"Transaction {key!r} is decided by the database {last!r}: "
                    f"recover({{{last!r}: connection}}) asks it.",
                    transaction_id=key,
                )
            return sealing.decide_prepared(
                prepared,
                commit=commit,
                stamp=client.stamp(),
                reason=reason,
                heuristic=heuristic,
            )
        wanted_attempts = list(state.prepared) if attempt is None else [attempt]
        wanted_attempts += [] if branch is None else [branch.attempt]
        decisions = [state.decisions[a] for a in wanted_attempts if a in state.decisions]
        if not decisions:
            beginning = recalling.decisions_beginning_of(client.store.journal)
            if beginning >= 0 and not is_branch(key):  # of those nothing ever leaves
                what = f"Nothing is known of transaction {key!r}, or not any more"
                raise recalling.removed(what, beginning)
            _check_found(client, state)
            raise TransactionMismatch(f"Nothing is prepared under {key!r}: see recover().")
        if decisions[-1].kind != wanted or (heuristic and not state.heuristics):
            raise TransactionFinished(f"Transaction {key!r} is {decisions[-1].kind} already.")
        already.append(decisions[-1])
        return None

    operation = "commit prepared" if commit else "rollback prepared"
    if heuristic:
        operation = f"heuristic {'commit' if commit else 'rollback'}"
    landed = client.land(plan, operation, transaction_id=key)
    if not commit:
        return None
    entries = landed.entries if landed is not None else already
    decided = next(e for e in entries if e.kind == wanted and e.stream == key)
    return Receipt.of(decided, follow(client, decided))


def forget(client: Client, key: str) -> None:
    """Forget that an operator decided a transaction; its outcome stays.

    Raises:
        TransactionNotFound: The journal says nothing of it.
        TransactionMismatch: No operator decided it, or it is forgotten already.
    """

    def plan(lost: int) -> Plan:
        state = client.key_state(key)
        _permitted(client, state)
        for entry in state.heuristics.values():
            return demarcating.forget(entry, client.stamp())
        _check_found(client, state)
        raise TransactionMismatch(
            f"No operator's decision of {key!r} is on record: see recover().heuristic.",
            transaction_id=key,
        )

    client.land(plan, "forget", transaction_id=key)


def _check_found(client: Client, state: KeyState) -> None:
    """Check that something was written of a transaction, in the journal or in memory.

    Raises:
        TransactionNotFound: Nothing was.
    """
    if not (state.is_known or client.transient.key_states([state.key])[state.key].is_known):
        raise TransactionNotFound(
            f"The journal says nothing of {state.key!r}: check the id; recover() lists what waits "
            "for a decision.",
            transaction_id=state.key,
        )


def _permitted(client: Client, state: KeyState) -> Branch | None:
    """Find the branch, if it is one, and check that we may coordinate it."""
    branch = Branch.of(state)
    if branch is not None:
        branch.check_permitted(client.runtime.actor, COORDINATE)
    return branch


def receipt_of(client: Client, decision: Entry) -> Receipt:
    """Write the receipt of a commit of former times, with what became of its table changes."""
    return Receipt.of(decision, is_applied(client, decision))
