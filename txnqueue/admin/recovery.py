"""Finish the work of dead clients; any client may do it, and repeating it has no effect."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnqueue.admin import drop, erasure
from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult
from txnqueue.client.append import Landed, in_doubt
from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.markup import Facts
from txnqueue.core.planning import Disposition, Plan, decisions
from txnqueue.core.settings import QueueInfo, check_id, check_number, describe_error, shown
from txnqueue.core.state import AttemptOwner, Claim, TransactionState
from txnqueue.core.state.branch import TIMED_OUT, Branch, is_branch
from txnqueue.core.state.confirmations import (
    confirmation,
    owner_of,
    participant_stream,
    unconfirmed,
)
from txnqueue.core.state.overview import Survey
from txnqueue.errors import (
    Busy,
    DecidedByDatabase,
    HistoryRemoved,
    InvalidInput,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.messages.takeover import LEASE_OVER, abort_branch, held_inside, may_end
from txnqueue.transactions.connections import check_idle, has_failed
from txnqueue.transactions.last_resource import decision
from txnqueue.transactions.outcome import attempt_named
from txnqueue.transactions.prepared import check_permitted, decide_prepared
from txnqueue.transactions.table_applier import Applier, WaitingChange
from txnqueue.transactions.transient import resolve as follow_decisions

logger = logging.getLogger("txnqueue")
BRANCH_SECONDS_MIN = 60.0
"""How many seconds a prepared branch is left to a client that may still be deciding it."""
_NOT_DECIDABLE = (
    TransactionNotFound,
    TransactionNotPrepared,
    TransactionFinished,
    DecidedByDatabase,
    HistoryRemoved,
)
"""Errors that say that nothing is prepared under an id; an attempt of it may hold messages."""


@dataclass(frozen=True, slots=True)
class RecoveryResult(Facts):
    """The result of a recovery.

    Attributes:
        aborted: Transactions whose leases or time-outs were over, aborted now.
        released: The number of messages that returned to their queues.
        prepared: Transactions that are prepared and wait for ``commit`` or ``rollback``.
        waiting: Table changes that are decided and cannot be applied, with what to do.
        databases: Databases that have not confirmed a commit: ``recover`` with a connection
            to each of them finishes it.
        heuristic: Transactions that an operator decided and that are not forgotten yet.
        drops: Queues whose drop was begun: gone now, or held back by prepared transactions.
        exchange_drops: Exchanges whose drop was begun, likewise.
        erasing: Why rows that are recorded as erased may still be in a payload table, by the id of
            its owner; the next ``erase``, ``maintain`` or ``recover`` tries again.
    """

    aborted: tuple[str, ...]
    released: int
    prepared: tuple[str, ...]
    waiting: tuple[WaitingChange, ...] = ()
    databases: tuple[str, ...] = ()
    heuristic: tuple[str, ...] = ()
    drops: tuple[QueueDropResult, ...] = ()
    exchange_drops: tuple[ExchangeDropResult, ...] = ()
    erasing: dict[str, str] = field(default_factory=dict)


def recover(
    client: Client,
    connections: Mapping[str, Any] | None = None,
    branch_seconds_min: float = BRANCH_SECONDS_MIN,
) -> RecoveryResult:
    """Abort the expired, carry out decisions, go on with drops, and list what waits.

    A connection that does not work holds up nothing else.

    Raises:
        InvalidInput: The connections are not named, or the number of seconds is none.
        Busy: Others were faster with one of them at every try.
    """
    try:
        return _recovered(client, connections, branch_seconds_min)
    except Busy as error:
        raise Busy(
            "Concurrent writers won every retry for one of the items to recover; those "
            "finished before it stay finished: call recover again.",
            operation=error.operation,
            queue=error.queue,
            tries=error.tries,
        ) from error


def _recovered(
    client: Client, connections: Mapping[str, Any] | None, branch_seconds_min: float
) -> RecoveryResult:
    given = _checked(connections)
    check_number("branch_seconds_min", branch_seconds_min, 0, math.inf)
    for name, connection in given.items():  # the branches follow the decisions of their databases
        _unless_raising(_decide_by_last_resource, client, name, connection, branch_seconds_min)
    for name, connection in given.items():
        _unless_raising(_resolve_branches, client, name, connection, branch_seconds_min)
    follow_decisions(client, abort=None)
    told = tuple(client.confirmations)  # they ride on the next append, whichever that is
    found = client.cache.survey()
    left = erasure.finish(client, found.erasures)  # a failure here does not stop the rest
    held_up = Applier(client).apply(known=found.changes)
    overdue, given_back = abort_overdue(client, found)
    aborted, released = _abort_abandoned(client, found)
    client.confirm()
    return RecoveryResult(
        (*overdue, *aborted),
        given_back + released,
        found.prepared,
        tuple(held_up),
        found.unconfirmed_by(told),
        found.heuristic,
        tuple(drop.finish_queue(client, info) for info in found.closing),
        tuple(drop.finish_exchange(client, info) for info in found.closing_exchanges),
        {owner: describe_error(error) for owner, error in left.items()},
    )


def _checked(connections: object) -> dict[str, Any]:
    if connections is None:
        return {}
    if not isinstance(connections, Mapping):
        raise InvalidInput(
            f"connections={shown(connections)}: give a dict of connections by the names under "
            "which their databases were enlisted.",
            name="connections",
        )
    for name, connection in connections.items():
        check_id(name, "connections")
        if not has_failed(connection):
            check_idle(name, connection)  # asking the database rolls back what is open
    return dict(connections)


def abort_overdue(client: Client, found: Survey) -> tuple[tuple[str, ...], int]:
    """Abort the overdue branches that are not prepared.

    Returns:
        Their transaction ids, and how many messages returned to their queues.

    Raises:
        Busy: Others were faster at every try.
    """
    aborted: list[str] = []
    released = 0
    for late in found.overdue(client.runtime.now_ms()):
        key = late.key

        def plan(_lost: int, late: Branch = late) -> Plan | None:
            branch = Branch.of(client.cache.key_states([late.key])[late.key])
            if branch is None or not branch.overdue(client.runtime.now_ms(), late.began_by_ms):
                return None
            return abort_branch(client, branch, TIMED_OUT)

        landed = client.land(plan, "recover", transaction_id=key)
        if landed is not None:
            aborted.append(key)
            released += model.messages(e for e in landed.entries if e.kind == model.RELEASED)
    return tuple(aborted), released


def _abort_abandoned(client: Client, found: Survey) -> tuple[tuple[str, ...], int]:
    """Abort undecided transactions all of whose leases are over."""
    left = held_inside(client, found.infos)
    now_ms = client.runtime.now_ms()
    dead = {
        attempt: (owner, claims)
        for attempt, (owner, claims) in left.items()
        if all(claim.ends_at_ms(now_ms) <= now_ms for _, claim in claims)
    }
    states = client.cache.key_states(owner.key for owner, _ in dead.values())
    aborted: list[str] = []
    released = 0
    for owner, claims in dead.values():
        state = states[owner.key]
        if state.is_over(owner) or not may_end(claims[0][1], states, now_ms):
            continue
        if owner.is_branch:
            continue  # its own time-out aborts it
        queues = {queue_id for queue_id, _ in claims}
        infos = [info for info in found.infos if info.queue_id in queues]
        landed = _abort_expired(client, owner, infos)
        if landed is not None:
            aborted.append(owner.key)
            released += model.messages(e for e in landed.entries if e.kind == model.RELEASED)
    return tuple(aborted), released


def _abort_expired(
    client: Client, owner: AttemptOwner, infos: Sequence[QueueInfo]
) -> Landed | None:
    """Write the tombstone of an attempt, unless one of its leases in some queues runs again.

    Others were aborted since the leases were read; the attempt's client may have extended them.

    Args:
        client: The client of the store.
        owner: The attempt.
        infos: The queues in which it held messages.

    Returns:
        What landed; None if it is decided, prepared or held again.
    """
    key, attempt = owner.key, owner.attempt

    def plan(_lost: int) -> Plan | None:
        state = client.cache.key_state(key, archived_since=None)
        if state.is_over(owner) or attempt in state.prepared:
            return None
        with client.lock:
            folds = client.states.folds(infos)
            stamp = client.stamp()
            held = [
                (fold, claim)
                for fold in folds
                for claim in fold.claims()
                if claim.acquirer is not None and claim.acquirer.attempt == attempt
            ]
            if not held or any(c.ends_at_ms(stamp.now_ms) > stamp.now_ms for _, c in held):
                return None
            released = [
                entry
                for fold, claim in held
                for entry in planning.end_claims(fold.queue_id, [claim], stamp, LEASE_OVER)
            ]
            seen = {(f.queue_id, c.lane): f.lanes[c.lane].next_sequence for f, c in held}
        conditions = tuple(model.not_extended(*lane, after) for lane, after in seen.items())
        return decisions.rollback(owner, released, stamp, LEASE_OVER) + Plan((), conditions)

    return client.land(plan, "recover", transaction_id=key)


def _unless_raising(act: Callable[..., None], client: Client, name: str, *rest: Any) -> None:
    """Recover one database; a failure does not stop the others and the tables."""
    try:
        act(client, name, *rest)
    except Exception as error:
        logger.warning("database not recovered name=%s error=%s", name, error)


def _decide_by_last_resource(
    client: Client, name: str, connection: Any, seconds_min: float
) -> None:
    """Decide the prepared transactions whose last resource is this database.

    A client that prepared one recently may be about to commit there.
    """
    entries = client.cache.transaction_entries()
    for entry in entries:
        if entry.kind != model.PREPARED or entry.body.get("last_resource") != name:
            continue
        state = client.cache.key_states([entry.stream])[entry.stream]
        if state.in_doubt is None or state.in_doubt.attempt != entry.attempt:
            continue
        left_behind = seconds_min <= 0 or _prepared_seconds(client, entry, entries) >= seconds_min
        committed = decision(connection, AttemptOwner.of(entry).attempt, may_decide=left_behind)
        if committed is None:
            continue
        reason = None if committed else f"{name} rolled back"
        decide_prepared(
            client,
            entry.stream,
            commit=committed,
            reason=reason,
            attempt=entry.attempt,
            by_last_resource=True,
        )


def _resolve_branches(client: Client, name: str, connection: Any, seconds_min: float) -> None:
    """Finish the prepared branches of a database as the journal decided, or decides now."""
    store_id = client.cache.store_id
    # Read before the database: a branch that is prepared later is not among them.
    facts = client.cache.table_entries([participant_stream(name)])
    listed = unconfirmed(client.cache.transaction_entries(), facts)
    if not hasattr(connection, "tpc_recover"):
        if any(participant == name for participant, _ in listed):
            raise InvalidInput(
                f"The connection of {name!r} has no tpc_recover: branches prepared there cannot "
                "be listed, so commits stay unconfirmed. Use a driver that has it.",
                name=name,
            )
        return
    found = connection.tpc_recover()
    branches = [(xid, owner) for xid in found if (owner := owner_of(xid, store_id)) is not None]
    elsewhere: set[str] = set()
    left: set[str] = set()
    ended: set[str] = set()
    for branch in branches:
        xid, owner = branch
        if not _is_here(connection, xid):
            elsewhere.add(owner.attempt)
        elif _end_branch(client, name, connection, branch, seconds_min=seconds_min):
            ended.add(owner.attempt)
        else:
            left.add(owner.attempt)
    for participant, entry in listed:
        if participant != name or entry.attempt in left:
            continue
        owner = AttemptOwner.of(entry)
        if owner.attempt in ended or _counts_as_committed(
            name, entry, elsewhere=owner.attempt in elsewhere
        ):
            client.add_confirmations([confirmation(name, owner, client.stamp())])


def _counts_as_committed(name: str, entry: model.Entry, *, elsewhere: bool) -> bool:
    """Return whether a commit is confirmed of which no branch is prepared in a database.

    Its client may have died after it committed the branch. While a branch of it is
    prepared in another database of the cluster, this may be the wrong database: a later recovery
    finds that out.
    """
    if elsewhere:
        logger.warning(
            "a branch is prepared in another database of the cluster, so this one is not confirmed "
            "yet name=%s transaction_id=%s",
            name,
            entry.stream,
        )
    else:
        logger.warning(
            "no branch is prepared, so it counts as committed name=%s transaction_id=%s",
            name,
            entry.stream,
        )
    return not elsewhere


def _end_branch(
    client: Client,
    name: str,
    connection: Any,
    branch: tuple[Any, AttemptOwner],
    *,
    seconds_min: float,
) -> bool:
    """End a branch as its attempt was decided, or is now; return whether that is done."""
    xid, owner = branch
    left_behind = seconds_min <= 0 or _age_seconds(client, xid) >= seconds_min
    try:
        decided = _decided(client, owner, may_abort=left_behind)
    except HistoryRemoved as error:  # only an operator can end it, at the database
        logger.warning("branch left in doubt name=%s xid=%s error=%s", name, xid, error)
        return False
    if decided is None:
        return False
    end = connection.tpc_commit if decided == model.COMMITTED else connection.tpc_rollback
    try:
        end(xid)
    except Exception as error:  # the next recovery tries again; the others go on
        logger.warning("branch not ended name=%s xid=%s error=%s", name, xid, error)
        return False
    return True


def _is_here(connection: Any, xid: Any) -> bool:
    """Return whether a branch is of a connection's database, the only one where it can be ended.

    PostgreSQL lists the branches of all databases of its cluster. It is asked for its own name,
    because a pool may have the client connect by another one.
    """
    database = getattr(xid, "database", None)
    if database is None:
        return True
    cursor = connection.cursor()
    cursor.execute("SELECT 1 WHERE current_database() = %s", (database,))
    found = cursor.fetchone()
    connection.rollback()  # no branch can be ended inside a transaction
    return found is not None


def _decided(client: Client, owner: AttemptOwner, *, may_abort: bool) -> str | None:
    """Find how the attempt of a branch ended; abort it if it is left behind.

    Raises:
        HistoryRemoved: The attempt began so long ago that its decision may have been removed.
    """
    key, attempt = owner.key, owner.attempt
    for _ in range(2):
        state = client.cache.key_state(key)
        if client.cache.never_decided(state, owner):
            return model.ROLLED_BACK  # below the horizon: it never happened
        if state.decided(attempt) is not None or attempt in state.prepared or not may_abort:
            return state.decided(attempt)
        _, claims = held_inside(client, client.cache.queues().values()).get(attempt, (owner, []))
        abort(client, owner, claims, LEASE_OVER)
    return None


def _prepared_seconds(
    client: Client, prepared: model.Entry, entries: Sequence[model.Entry]
) -> float:
    """Return how long ago an attempt was prepared, by the smallest clock recorded since."""
    since_ms = min(e.recorded_at_ms for e in entries if e.version >= prepared.version)
    return (client.runtime.now_ms() - since_ms) / 1000


def _age_seconds(client: Client, xid: Any) -> float:
    """Return how long ago a branch was prepared; infinity if the database does not say."""
    since = getattr(xid, "prepared", None)
    if since is None:
        return float("inf")
    return client.runtime.now_ms() / 1000 - float(since.timestamp())


def roll_back(client: Client, key: str, reason: str | None, attempt: str | None) -> None:
    """Roll back a transaction that is prepared or holds messages; repeating is a no-op.

    Args:
        client: The client that decides.
        key: The transaction.
        reason: Why.
        attempt: The attempt that an error names: ensure that it never lands. When omitted, the
            prepared attempt and all that hold messages.

    Raises:
        TransactionNotFound: Nothing is recorded under this id, and no undecided attempt of
            it holds messages.
        TransactionNotPrepared: The transaction is undecided, and not prepared.
        DecidedByDatabase: A database decides the transaction.
        HistoryRemoved: Nothing is recorded of the transaction, and it may have been removed.
        TransactionFinished: The transaction was committed, and no other attempt of it held
            messages that could be released.
        TransactionUnknown: Only part of it is known to be rolled back.
        NotPermitted: The transaction is a branch that is restricted to other principals.
    """
    if attempt is not None:
        abort_attempt(client, attempt_named(key, attempt), reason or "in doubt")
        return
    refused: TxnQueueError | None = None
    try:
        decide_prepared(client, key, commit=False, reason=reason)
    except _NOT_DECIDABLE as error:
        refused = error
    # The prepared attempt may not be the only one: another may hold messages.
    try:
        aborted = abort_undecided(client, key, reason or "rolled back")
    except Exception as error:
        if refused is not None or isinstance(error, TransactionUnknown):
            raise
        raise in_doubt(key, None, error) from error  # half of it is done
    if refused is not None and not aborted:
        raise refused


def abort_undecided(client: Client, key: str, reason: str) -> int:
    """Abort every undecided attempt of a transaction that holds messages.

    Returns:
        How many attempts were aborted.
    """
    if is_branch(key):  # its coordinator or its time-out ends it
        return 0
    held = held_inside(client, client.cache.queues().values()).values()
    mine = [(owner, claims) for owner, claims in held if owner.key == key]
    return sum(abort(client, owner, claims, reason) for owner, claims in mine)


def abort_attempt(client: Client, owner: AttemptOwner, reason: str) -> None:
    """Ensure that an attempt never lands, whether or not anything of it is found.

    Raises:
        TransactionFinished: The attempt is committed.
        NotPermitted: It is that of a branch that is restricted to other principals.
    """
    key, attempt = owner.key, owner.attempt
    check_permitted(client, key)
    _, claims = held_inside(client, client.cache.queues().values()).get(attempt, (owner, []))
    abort(client, owner, claims, reason)
    state = client.cache.key_state(key)
    if attempt in state.prepared and attempt not in state.decisions:
        decide_prepared(client, key, commit=False, reason=reason, attempt=attempt)
    elif state.decided(attempt) == model.COMMITTED:
        raise TransactionFinished(
            f"Transaction {key!r} is committed and cannot be rolled back: undo its work in a new "
            "transaction.",
            transaction_id=key,
        )
    else:
        client.cache.never_decided(state, owner)  # raises if that cannot be told any more


def release_leases(client: Client, info: QueueInfo, consumer: str, reason: str) -> int:
    """End all leases that a consumer holds in a queue, as if they had expired.

    Returns:
        How many messages returned to the queue.

    Raises:
        InvalidInput: The consumer holds no lease there.
    """

    def plan(lost: int) -> Plan | None:
        with client.lock:
            bound = {c.attempt.key for c in client.states.fold(info).claims() if c.attempt}
        states = client.cache.key_states(bound)
        with client.lock:
            fold, stamp = client.states.for_update(info), client.stamp()
            leases = [claim for claim in fold.claims() if _is_lease(claim, states)]
            mine = [claim for claim in leases if claim.owner.consumer == consumer]
            if not mine and not lost:
                raise _no_lease(info, consumer, leases)
            nexts = {claim.lane: fold.lanes[claim.lane].next_sequence for claim in mine}
        ended = Disposition(model.RELEASED, reason=reason, counted=True)
        firsts: dict[int, int] = {}
        entries: list[model.Entry] = []
        for claim in mine:
            sequence = nexts[claim.lane]
            firsts.setdefault(claim.lane, sequence)
            nexts[claim.lane] += 1
            entries.append(
                planning.settlement(
                    info.queue_id, claim, ended, stamp, sequence=sequence, owner=None
                )
            )
        conditions = planning.lane_conditions(info.queue_id, list(firsts.items()))
        return Plan(tuple(entries), tuple(conditions)) if entries else None

    landed = client.land(plan, "release leases", queue=info.name)
    return model.messages(landed.entries) if landed else 0


def _is_lease(claim: Claim, states: Mapping[str, TransactionState]) -> bool:
    """Return whether a lease alone holds the messages: no transaction, or one that is over."""
    if claim.attempt is None:
        return True
    state = states.get(claim.attempt.key)
    return claim.acquirer is None and state is not None and state.is_over(claim.attempt)


def _no_lease(info: QueueInfo, consumer: str, leases: Sequence[Claim]) -> InvalidInput:
    counts: Counter[str] = Counter()
    for claim in leases:
        counts[claim.owner.consumer] += claim.count
    held = ", ".join(f"{name!r} ({count})" for name, count in sorted(counts.items()))
    return InvalidInput(
        f"The consumer {consumer!r} holds no lease in {info.name!r}; leases hold messages for: "
        f"{held or 'no consumer'}.",
        name="consumer",
    )


def abort(
    client: Client, owner: AttemptOwner, claims: list[tuple[str, Claim]], reason: str
) -> bool:
    """Write the tombstone of an attempt; return False if it was decided or prepared meanwhile."""
    key, attempt = owner.key, owner.attempt

    def plan(_lost: int) -> Plan | None:
        state = client.cache.key_state(key, archived_since=None)
        if state.is_over(owner) or attempt in state.prepared:
            return None
        stamp = client.stamp()
        released = [
            entry
            for queue_id, claim in claims
            for entry in planning.end_claims(queue_id, [claim], stamp, reason)
        ]
        return decisions.rollback(owner, released, stamp, reason)

    return client.land(plan, "recover", transaction_id=key) is not None
