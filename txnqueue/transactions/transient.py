"""The part of a transaction that is in memory, and how it follows the decision.

Work of one kind is one append to that kind's journal. With work of both kinds the part in
memory is prepared first, which may fail and costs nothing; then the durable append decides;
then the part in memory is committed, which expects nothing and cannot fail. Where the outcome
is in doubt it stays prepared until somebody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txnqueue.client.client import Client
from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, decisions
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.errors import HistoryRemoved, TransactionAborted

if TYPE_CHECKING:
    from txnqueue.transactions.work import Work

logger = logging.getLogger("txnqueue")
Body = Callable[[str, planning.Stamp], dict[str, Any]]
"""Writes what a decision of a kind says besides."""


class TransientWork:
    """What one attempt does with transient messages."""

    def __init__(self, client: Client, work: Work) -> None:
        """Belong to an attempt that has done nothing yet."""
        self._client = client
        self._work = work
        self._owner: AttemptOwner | None = None
        self.claimed = False

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return self._owner is not None and (
            self.claimed or self._work.transient(self._owner.attempt)
        )

    def begin(self, owner: AttemptOwner) -> None:
        """Take note that transient messages are sent or received by this attempt."""
        self._owner = owner
        store = self._client.store.transient
        with store.lock:
            store.working[owner.attempt] = self

    def staged(self) -> list[tuple[str, str]]:
        """Name what it has staged."""
        return [(send.payload_id, send.send_id) for send in self._work.sends if send.info.transient]

    def commit(self, body: Body) -> None:
        """Commit a transaction that has no other work.

        Raises:
            TransactionAborted: Somebody aborted the attempt, or another one was faster.
            QueueClosed: A queue is being dropped; or it is gone: QueueNotFound.
            LeaseLost: Messages that were held under a lease are others' now.
        """
        self._seal(model.COMMITTED, body)
        self._end()

    def prepare(self, body: Body) -> None:
        """Make sure that nothing can stand in the way of a commit any more.

        Raises:
            TransactionAborted: As in ``commit``.
            LeaseLost: As in ``commit``.
        """
        if self and not self._prepared:
            self._seal(model.PREPARED, body)

    @property
    def _prepared(self) -> bool:
        """Whether it waits for a decision, maybe because a call was interrupted."""
        return self._attempt in self._client.store.transient.journal.prepared

    @property
    def committed(self) -> bool:
        """Whether it was committed here, maybe by a call that was interrupted."""
        if self._owner is None:
            return False
        key = self._owner.key
        state = self._client.transient.key_states([key])[key]
        return state.decided(self._attempt) == model.COMMITTED

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Keep others from asking what became of it, while its decision is on its way."""
        attempts, attempt = self._client.store.transient.deciding, self._attempt
        attempts.add(attempt)
        try:
            yield
        finally:
            attempts.discard(attempt)

    def follow(self, *, commit: bool) -> None:
        """Do as was decided."""
        if self._prepared:
            decide(self._client, self._attempt, commit=commit)
        self._end()

    def roll_back(self, reason: str, *, counted: bool) -> None:
        """Give back what was received."""
        if not self._prepared and self.claimed and self._owner is not None:
            self._client.transient.land(
                lambda _lost: self._plan_rollback(reason, counted=counted),
                "rollback",
                transaction_id=self._owner.key,
            )
        self.follow(commit=False)

    # -------------------------------------------------------------------------- helpers

    @property
    def _attempt(self) -> str:
        return self._owner.attempt if self._owner else ""

    def _end(self) -> None:
        """Say that this attempt does no more: what it staged and is not posted is not needed."""
        store = self._client.store.transient
        with store.lock:
            store.working.pop(self._attempt, None)

    def _seal(self, kind: str, body: Body) -> None:
        memory, owner = self._client.transient, self._owner
        assert owner is not None
        infos = {send.info.queue_id: send.info for send in self._work.sends if send.info.transient}

        def plan(_lost: int) -> Plan:
            for info in infos.values():
                memory.check_open(info)
            rolled_back = self._others(owner, kind)
            stamp = memory.stamp()
            said = body(kind, stamp)
            if kind == model.PREPARED:
                said["claims"] = [
                    decisions.entry_to_json(entry)
                    for entry in self._work.released(stamp, "rolled back", transient=True)
                ]
            return self._work.seal(memory, owner, kind, rolled_back, stamp, body=said)

        memory.land(plan, kind, transaction_id=owner.key)

    def _others(self, owner: AttemptOwner, kind: str) -> list[str]:
        """List the other attempts of the id, which must not have been committed.

        Those that are prepared wait for the durable journal, which lets one of them win: so
        what is committed here only cannot pass by them.
        """
        key, attempt = owner.key, owner.attempt
        state = self._client.transient.key_states([key])[key]
        own = state.decisions.get(attempt)
        if own is not None or state.committed is not None:
            why = own.reason if own is not None else "another attempt was committed first"
            raise TransactionAborted(
                f"Transaction {key!r} was aborted: {why}.", transaction_id=key, reason=why
            )
        waiting = [other for other in state.prepared if other not in state.decisions]
        if waiting and kind == model.COMMITTED:
            raise TransactionAborted(
                f"Another attempt of transaction {key!r} waits for its decision.",
                transaction_id=key,
            )
        return [other for other in {*state.decisions, *state.prepared} if other != attempt]

    def _plan_rollback(self, reason: str, *, counted: bool) -> Plan | None:
        owner = self._owner
        assert owner is not None
        state = self._client.transient.key_states([owner.key])[owner.key]
        if state.decided(owner.attempt) is not None:
            return None
        stamp = self._client.stamp()
        released = self._work.released(stamp, reason, counted=counted, transient=True)
        said = None if counted else {"counted": False}
        return decisions.rollback(owner, released, stamp, reason, said)


def decide(client: Client, attempt: str, *, commit: bool) -> None:
    """Do in memory as was decided in the journal; again it is a no-op."""
    store, memory = client.store.transient, client.transient

    def plan(_lost: int) -> Plan | None:
        prepared = store.journal.prepared.get(attempt)
        if prepared is None:
            return None
        return decisions.decide_prepared(prepared, commit=commit, stamp=memory.stamp(), reason=None)

    memory.land(plan, "commit" if commit else "rollback")


def resolve(
    client: Client, keys: Iterable[str] | None = None, *, abort: Iterable[str] | None = ()
) -> None:
    """Find what became of work that waits in memory for an outcome, and do the same.

    Args:
        client: Reads the journal.
        keys: The transactions to look at; None: all.
        abort: Those that are to be aborted if nothing is decided; None: all.

    Raises:
        HistoryRemoved: The outcome of one of the keys was removed; without keys it just waits.
    """
    waiting = client.store.transient.waiting()
    if keys is not None:
        wanted = set(keys)
        waiting = [entry for entry in waiting if entry.stream in wanted]
    for entry in waiting:
        try:
            _resolve(client, entry, abort=abort is None or entry.stream in set(abort))
        except HistoryRemoved as error:
            if keys is not None:
                raise
            logger.warning("left in doubt transaction_id=%s error=%s", entry.stream, error)


def _resolve(client: Client, waiting: Entry, *, abort: bool) -> None:
    owner = AttemptOwner.of(waiting)
    key, attempt = owner.key, owner.attempt

    def look() -> TransactionState:
        """What was decided long ago, or surely never will be, counts as well."""
        return client.key_state(key, archived_since=waiting.begun)

    def plan(_lost: int) -> Plan | None:
        state = look()
        if not abort or state.is_over(owner) or attempt in state.prepared or state.committed:
            return None
        return decisions.rollback(owner, (), client.stamp(), "in doubt")

    if abort:
        client.land(plan, "rollback", transaction_id=key)
    state = look()
    decided = state.decided(attempt)
    if decided == model.COMMITTED:
        decide(client, attempt, commit=True)
    elif decided or state.committed is not None or client.never_decided(state, owner):
        decide(client, attempt, commit=False)
