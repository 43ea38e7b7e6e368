"""The in-memory work of a transaction: one more participant in its commit.

Work of one kind is one append to that kind's journal. With work of both kinds the work in
memory prepares first, which may fail and costs nothing; then the durable append decides; then
the work in memory commits, which expects nothing and cannot fail. While the outcome is in
doubt it stays prepared.

Of the attempts of an id one is committed, whatever work each of them has. The journal tells those
apart that append to it. One that commits in memory only asks it first; and one that has no work in
memory says there that it is about to append.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.custody import NotRead
from txnqueue.core.planning import Plan, decisions
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.errors import HistoryRemoved, TransactionAborted

if TYPE_CHECKING:
    from txnqueue.transactions.attempt import Attempt

logger = logging.getLogger("txnqueue")


class TransientWork:
    """What one attempt does with transient messages.

    Attributes:
        claimed: Whether it has claimed any, so that a rollback must give them back.
    """

    def __init__(self, transaction: Attempt) -> None:
        """Belong to an attempt that has done nothing yet."""
        self._transaction = transaction
        self._client = transaction.client
        self._work = transaction.work
        self._owner: AttemptOwner | None = None
        self._looked_at = -1
        self.claimed = False

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return self._owner is not None and (
            self.claimed or self._work.transient(self._owner.attempt)
        )

    def begin(self) -> None:
        """Record that this attempt sends, receives or settles transient messages."""
        self._owner = self._transaction.owner
        store = self._client.store.transient
        with store.lock:
            store.working[self._owner.attempt] = self

    def staged(self) -> list[tuple[str, str]]:
        """Name what it has staged."""
        return [(send.payload_id, send.send_id) for send in self._work.sends if send.info.transient]

    def commit_alone(self) -> None:
        """Commit a transaction that has no other work.

        Raises:
            TransactionAborted: The attempt was aborted, or another one was committed first.
            QueueClosed: A queue is being dropped; QueueNotFound if it is dropped.
            LeaseLost: Messages held under a lease were taken over.
        """
        self._seal(model.COMMITTED)
        self._end()

    def prepare(self) -> None:
        """Make sure that nothing can prevent a commit any more.

        Raises:
            TransactionAborted: As in ``commit_alone``.
            QueueClosed: As in ``commit_alone``.
            LeaseLost: As in ``commit_alone``.
        """
        if not self:
            self._announce()
        elif not (self._prepared or self.committed):  # as a call did that was interrupted
            self._seal(model.PREPARED)

    @property
    def _prepared(self) -> bool:
        """Whether it waits for a decision."""
        return self._attempt in self._client.store.transient.journal.prepared

    @property
    def committed(self) -> bool:
        """Whether it was committed in memory, possibly by a call that was interrupted."""
        if self._owner is None:
            return False
        key = self._owner.key
        state = self._client.transient.states.key_states([key])[key]
        return state.decided(self._attempt) == model.COMMITTED

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Keep others from resolving it while the durable append that decides it is under way."""
        attempts, attempt = self._client.store.transient.deciding, self._attempt
        try:
            attempts.add(attempt)
            yield
        finally:
            attempts.discard(attempt)

    def commit(self) -> None:
        """Carry out the commit that was decided."""
        self._follow(commit=True)

    def rollback(self, reason: str, *, counted: bool) -> None:
        """Return what was received, prepared or not."""
        if not self._prepared and self.claimed and self._owner is not None:
            self._client.transient.land(
                lambda _lost: self._plan_rollback(reason, counted=counted),
                "rollback",
                transaction_id=self._owner.key,
            )
        self._follow(commit=False, reason=reason, counted=counted)

    # -------------------------------------------------------------------------- helpers

    @property
    def _attempt(self) -> str:
        return self._transaction.attempt_id

    def on_record(self) -> None:
        """Record that the journal says of the attempt that it is committed, or prepared."""
        self._client.store.transient.end_elsewhere(self._attempt)

    def _announce(self) -> None:
        """Say that an attempt of an id without work here is about to be committed.

        Raises:
            TransactionAborted: Another one was committed here.
        """
        if not self._transaction.is_named:
            return
        store, owner = self._client.store.transient, self._transaction.owner
        with store.lock:
            self._check_undecided(self._client.transient.states.key_states([owner.key])[owner.key])
            store.elsewhere[owner.attempt] = owner

    def _follow(self, *, commit: bool, reason: str | None = None, counted: bool = True) -> None:
        if self._prepared:
            decide(self._client, self._attempt, commit=commit, reason=reason, counted=counted)
        self._end()

    def _end(self) -> None:
        """Let go of what the attempt staged and did not post."""
        store = self._client.store.transient
        with store.lock:
            store.working.pop(self._attempt, None)
        self.on_record()

    def _seal(self, kind: str) -> None:
        memory, owner = self._client.transient, self._owner
        assert owner is not None
        infos = {send.info.queue_id: send.info for send in self._work.sends if send.info.transient}

        def plan(_lost: int) -> Plan:
            for info in infos.values():
                memory.states.check_open(info)
            rolled_back = self._others(owner, kind)
            stamp = memory.stamp()
            said = self._transaction.body(kind, stamp)
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
        state = self._client.transient.states.key_states([key])[key]
        self._check_undecided(state)
        if kind == model.COMMITTED and self._transaction.is_named:
            self._check_alone([other for other in state.prepared if other not in state.decisions])
        return [other for other in {*state.decisions, *state.prepared} if other != attempt]

    def _check_undecided(self, state: TransactionState) -> None:
        """Check that nothing was decided here of the attempt, and no other one was committed.

        Raises:
            TransactionAborted: It was.
        """
        key, own = self._transaction.id, state.decisions.get(self._attempt)
        if own is not None or state.committed is not None:
            why = "another attempt was committed first" if own is None else own.reason
            raise TransactionAborted(
                f"Transaction {key!r} was aborted: {why or 'rolled back'}.",
                transaction_id=key,
                reason=why,
            )

    def _check_alone(self, prepared: Sequence[str]) -> None:
        """Check that the journal has committed no other attempt of the id, and will commit none.

        Args:
            prepared: The attempts that are prepared here.

        Raises:
            TransactionAborted: It has, or may.
            NotRead: The journal is to be asked first.
        """
        store, key, mine = self._client.store.transient, self._transaction.id, self._attempt
        elsewhere = (one for one in store.elsewhere.values() if one.attempt != mine)
        if prepared or any(one.key == key for one in elsewhere):
            raise TransactionAborted(
                f"Another attempt of transaction {key!r} waits for its decision.",
                transaction_id=key,
            )
        if self._looked_at != store.ended_elsewhere:
            raise NotRead(self._look)

    def _look(self) -> None:
        """Ask the journal whether an attempt of the id was committed since this one began.

        Raises:
            TransactionAborted: One was, or is prepared.
        """
        transaction, now = self._transaction, self._client.store.transient.ended_elsewhere
        cache = self._client.cache
        transaction.check_first(cache.key_state(transaction.id, archived_since=transaction.begun))
        self._looked_at = now

    def _plan_rollback(self, reason: str, *, counted: bool) -> Plan | None:
        owner = self._owner
        assert owner is not None
        state = self._client.transient.states.key_states([owner.key])[owner.key]
        if state.decided(owner.attempt) is not None:
            return None
        stamp = self._client.stamp()
        released = self._work.released(stamp, reason, counted=counted, transient=True)
        said = None if counted else {"counted": False}
        return decisions.rollback(owner, released, stamp, reason, said)


def decide(
    client: Client, attempt: str, *, commit: bool, reason: str | None = None, counted: bool = True
) -> None:
    """Do in memory as was decided in the journal; again it is a no-op.

    Args:
        client: Whose memory it is.
        attempt: What was decided.
        commit: Whether it is committed.
        reason: Why.
        counted: Whether a roll back counts as a delivery of what goes back.
    """
    store, memory = client.store.transient, client.transient

    def plan(_lost: int) -> Plan | None:
        prepared = store.journal.prepared.get(attempt)
        if prepared is None:
            return None
        return decisions.decide_prepared(
            prepared, commit=commit, stamp=memory.stamp(), reason=reason, counted=counted
        )

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
    store = client.store.transient
    wanted = None if keys is None else set(keys)
    aborted = None if abort is None else set(abort)
    waiting = [one for one in store.waiting() if wanted is None or one.key in wanted]
    # Nothing here waits for what may be committed elsewhere, unless it is asked for.
    waiting += [one for one in store.waiting_elsewhere() if one.key in (wanted or ())]
    for owner in waiting:
        try:
            _resolve(client, owner, abort=aborted is None or owner.key in aborted)
        except HistoryRemoved as error:
            if keys is not None:
                raise
            logger.warning("left in doubt transaction_id=%s error=%s", owner.key, error)


def _resolve(client: Client, owner: AttemptOwner, *, abort: bool) -> None:
    key, attempt = owner.key, owner.attempt

    def look() -> TransactionState:
        """What was decided long ago, or surely never will be, counts as well."""
        return client.cache.key_state(key, archived_since=owner.begun)

    def plan(_lost: int) -> Plan | None:
        state = look()
        if not abort or state.is_over(owner) or attempt in state.prepared or state.committed:
            return None
        return decisions.rollback(owner, (), client.stamp(), "in doubt")

    if abort:
        client.land(plan, "rollback", transaction_id=key)
    state = look()
    decided = state.decisions.get(attempt)
    if decided is not None:
        committed, counted = decided.kind == model.COMMITTED, decided.body.get("counted", True)
        decide(client, attempt, commit=committed, reason=decided.reason, counted=counted)
    elif state.committed is not None or client.cache.never_decided(state, owner):
        decide(client, attempt, commit=False, reason="never decided")
    else:
        return
    client.store.transient.end_elsewhere(attempt)
