"""The in-memory work of a transaction: one more participant in its commit.

Durable work alone, or transient work alone, is one append to its journal. With both, the work in
memory prepares first, which may fail and costs nothing; then the durable append decides; then the
work in memory commits, which has no conditions and cannot fail. While the outcome is in doubt,
the work in memory stays prepared.

Only one attempt of an id is committed, whatever the kinds of their work. The durable journal lets
one of those win that append to it. An attempt that commits only in memory reads that journal
first; one without work in memory announces there that it is about to append.
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
    """The work of one attempt on transient messages.

    Attributes:
        claimed: Whether it has claimed any, which a rollback must return.
    """

    def __init__(self, transaction: Attempt) -> None:
        """Begin without work, for an attempt."""
        self._transaction = transaction
        self._client = transaction.client
        self._work = transaction.work
        self._owner: AttemptOwner | None = None
        self._looked_at = -1
        self.claimed = False

    def __bool__(self) -> bool:
        """Return whether there is any such work."""
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
        """List the staged transient sends, by payload id and send id."""
        return [(send.payload_id, send.send_id) for send in self._work.sends if send.info.transient]

    def commit_alone(self) -> None:
        """Commit a transaction that has no other work.

        Raises:
            TransactionAborted: The attempt was aborted, or another one was committed first.
            QueueClosed: A queue is being dropped; once dropped, ``QueueNotFound``.
            LeaseLost: Messages held under a lease were taken over.
        """
        self._seal(model.COMMITTED)
        self._end()

    def prepare(self) -> None:
        """Prepare the work, so that nothing can prevent its commit any more.

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
        """Whether the work waits for a decision."""
        return self._attempt in self._client.store.transient.journal.prepared

    @property
    def committed(self) -> bool:
        """Whether the work was committed in memory, possibly by a call that was interrupted."""
        if self._owner is None:
            return False
        key = self._owner.key
        state = self._client.transient.states.key_states([key])[key]
        return state.decided(self._attempt) == model.COMMITTED

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Keep others from resolving the work while the durable append that decides it runs."""
        attempts, attempt = self._client.store.transient.deciding, self._attempt
        try:
            attempts.add(attempt)
            yield
        finally:
            attempts.discard(attempt)

    def commit(self) -> None:
        """Carry out the decided commit."""
        self._follow(commit=True)

    def rollback(self, reason: str, *, counted: bool) -> None:
        """Roll back the work, prepared or not, and return the received messages."""
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
        """Record that the durable journal shows the attempt as committed or prepared."""
        self._client.store.transient.end_elsewhere(self._attempt)

    def _announce(self) -> None:
        """Announce that an attempt without work in memory is about to be committed.

        Raises:
            TransactionAborted: Another attempt of the id was committed in memory.
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
        """Release the attempt's rows in memory that it staged and did not post."""
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
            said = {**self._transaction.body(kind, stamp), "named": self._transaction.is_named}
            if kind == model.PREPARED:
                said["claims"] = [
                    decisions.entry_to_json(entry)
                    for entry in self._work.released(stamp, "rolled back", transient=True)
                ]
            return self._work.seal(memory, owner, kind, rolled_back, stamp, body=said)

        memory.land(plan, kind, transaction_id=owner.key)

    def _others(self, owner: AttemptOwner, kind: str) -> list[str]:
        """List the other attempts of the id, after checking that none was committed.

        Prepared attempts wait for the durable journal, which lets one of them win: so an attempt
        must not commit only in memory while there are any.
        """
        key, attempt = owner.key, owner.attempt
        state = self._client.transient.states.key_states([key])[key]
        self._check_undecided(state)
        if kind == model.COMMITTED and self._transaction.is_named:
            self._check_alone([other for other in state.prepared if other not in state.decisions])
        return [other for other in {*state.decisions, *state.prepared} if other != attempt]

    def _check_undecided(self, state: TransactionState) -> None:
        """Check that in memory this attempt is undecided, and no other one is committed.

        Raises:
            TransactionAborted: This attempt is decided, or another one is committed.
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
        """Check that the durable journal has committed no other attempt of the id, and cannot.

        Args:
            prepared: The other attempts that are prepared in memory.

        Raises:
            TransactionAborted: Another attempt waits for its decision.
            NotRead: The journal must be read first.
        """
        store, key, mine = self._client.store.transient, self._transaction.id, self._attempt
        elsewhere = (one for one in store.elsewhere.values() if one.attempt != mine)
        if prepared or any(one.key == key for one in elsewhere):
            raise TransactionAborted(
                f"Another attempt of transaction {key!r} is prepared: decide it first.",
                transaction_id=key,
            )
        if self._looked_at != store.ended_elsewhere:
            raise NotRead(self._look)

    def _look(self) -> None:
        """Check in the durable journal that no other attempt of the id has won.

        Raises:
            TransactionAborted: Another attempt is committed or prepared.
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
    """Carry out in memory the decision of an attempt; repeating it is a no-op.

    Args:
        client: The client whose store's memory it is.
        attempt: The attempt that was decided.
        commit: Whether it was committed; else it was rolled back.
        reason: Why it was rolled back.
        counted: Whether a rollback counts as a delivery of the returned messages.
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
    """Find the outcomes of work that waits in memory for them, and carry them out.

    Args:
        client: Reads the journal.
        keys: The transactions to look up; None for all.
        abort: The transactions to abort if they are undecided; None for all.

    Raises:
        HistoryRemoved: The outcome of one of ``keys`` was removed; without ``keys`` it is left
            waiting.
    """
    store = client.store.transient
    wanted = None if keys is None else set(keys)
    aborted = None if abort is None else set(abort)
    waiting = [one for one in store.waiting() if wanted is None or one.key in wanted]
    # No work here waits for attempts that may commit elsewhere: these only if asked for by key.
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
        """Read the key's state, with decisions in the archive since the attempt began."""
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
