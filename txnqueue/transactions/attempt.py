"""An attempt of a transaction: its state, its work, and the plans of its decision.

The messages that it sent are staged, and no entry names them until the decision does; those that
it received are claimed by it; one append decides all of it. A run of a transaction is an
*attempt* of its id (the *key*): a rollback ends the attempt, not the key.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from txnqueue.client.append import Planner
from txnqueue.client.client import Client
from txnqueue.client.consumer import Consumer
from txnqueue.core import model, planning
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, decisions
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    check_metadata,
    check_number,
    check_text,
    check_transaction_id,
    describe_error,
    is_queue_id,
)
from txnqueue.core.state import AttemptOwner, TransactionState
from txnqueue.errors import TransactionAborted, TransactionFinished, TransactionIdReused
from txnqueue.messages.settlement import Account
from txnqueue.messages.staged import StagedSend
from txnqueue.messages.takeover import ended_error, too_late_error
from txnqueue.storage.tables import Change
from txnqueue.transactions.participants import Participants
from txnqueue.transactions.table_applier import follow
from txnqueue.transactions.transient import resolve
from txnqueue.transactions.work import Work

logger = logging.getLogger("txnqueue")
DRAINED = "drained"
"""The queue's id, in the metadata of the decisions of a drain's run; 0.1.0 did not record it."""
UNDECIDED = "another attempt of its transaction id is prepared"
"""Why an attempt was aborted that no repetition helps, until somebody decides the other one."""
_OF_A_RUN = re.compile(r"\d+|end").fullmatch
NUMBER_MAX = 10**9
"""The number of a batch for which its id has room, wherever the length of an id is limited."""
JOINED_TRIES = 2
"""How often a commit is tried joined with the next claim before it is committed alone."""


def drained_queue(committed: Entry) -> str | None:
    """Return the id of the queue whose run made a commit; None if it is none of a run.

    A user may have metadata of that name: those of a run are nothing but the id of a queue.
    """
    number, metadata = committed.stream.rpartition("/")[2], committed.body.get("metadata") or {}
    queue_id = metadata.get(DRAINED)
    is_mark = len(metadata) == 1 and is_queue_id(queue_id)
    return queue_id if is_mark and _OF_A_RUN(number) else None


class Attempt:
    """One attempt of a transaction: its state, its work, and the plans of its decision."""

    is_part = False
    """Whether the other attempts of its id are parts of the same work, and no tries of it.

    Then it is not committed or prepared once another one is rolled back.
    """
    is_batch = False
    """Whether it is a batch of a run or of a stream, whose ids end with growing numbers."""
    ahead = False
    """Whether its client goes on with other work before it is decided, as if it had been."""
    rehearsed = False
    """Whether it is an attempt of a rehearsal."""

    def __init__(
        self,
        client: Client,
        transaction_id: str | None = None,
        *,
        lease_seconds: float | None = None,
        digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        look_up: bool = True,
        consumer: Consumer | None = None,
    ) -> None:
        """Name the attempt; nothing is read or written yet. Use ``manager.transaction``."""
        self.client = client
        self.consumer = client.consumer if consumer is None else consumer
        """The holder of what it receives."""
        runtime = client.runtime
        self.takes_transient = True
        """Whether it may send and receive transient messages."""
        self.keeps = True
        """Whether its commit may leave received messages under a lease of its client."""
        self.is_named = transaction_id is not None
        """Whether the client gave its id, so that there may be other attempts of the id."""
        self._look_up_first = self.is_named and look_up
        self.id = (
            check_transaction_id(transaction_id)
            if transaction_id is not None
            else model.generated_key(client.shard, runtime.new_id())
        )
        self.attempt_id = runtime.new_id()
        self.status = Status.NOT_STARTED
        self.receipt: Receipt | None = None
        self.already_committed = False
        self.committed_metadata: Mapping[str, Any] = {}
        """The metadata of the attempt of the same id that was committed before."""
        if lease_seconds is not None:
            check_number("lease_seconds", lease_seconds, 0.001, LEASE_SECONDS_MAX)
        self.lease_seconds = lease_seconds
        self.digest = check_text("digest", digest)
        self.metadata = check_metadata(metadata)
        self.begun = -1
        self.work = Work()
        self._adding = threading.RLock()
        """Held while work is added, and while it is closed: no work comes between. Whoever needs
        the lock of the memory, too, takes that inside of this one."""
        self._closed = False
        """Whether it takes no more work, because it is about to be decided."""
        self.decision: Entry | None = None
        self.participants = Participants(self)
        self.claimed = False
        self.deciding = False
        self.landing = False
        """Whether an append was begun that commits or prepares it: before that, nobody can."""
        self.promising = False
        """Whether a prepare was begun, which may have landed if it was interrupted."""
        self._rolled_back: list[str] = []
        self.rollback_reason: str | None = None
        """Why this client has rolled it back."""
        self.rollback_counted = True
        """Whether the deliveries of its messages counted when this client rolled it back."""
        self.charges = True
        """Whether the deliveries of its messages count if it is rolled back."""
        self.dead_lettered = 0
        """The number of messages that its receives found and moved to the dead letters."""

    @property
    def owner(self) -> AttemptOwner:
        """The attempt as the owner of claims and decisions."""
        return AttemptOwner(self.id, self.attempt_id, self.begun, self.consumer.id)

    @property
    def attempt_name(self) -> str:
        """The attempt, among all of its id, as errors name it and ``outcome`` takes it (pure)."""
        return model.attempt_id(self.attempt_id, self.begun)

    @property
    def longest_id(self) -> str:
        """Its id; if it is a batch, the id of one with a large number (pure)."""
        return f"{self.id.rpartition('/')[0]}/{NUMBER_MAX}" if self.is_batch else self.id

    @property
    def changes(self) -> list[Change]:
        """The changes of tables in its work."""
        return self.work.changes

    @property
    def interrupted(self) -> bool:
        """Whether a decision of it was interrupted, which may still land."""
        return self.deciding and self.status is Status.ACTIVE

    @property
    def is_prepared(self) -> bool:
        """Whether it is prepared, as far as this client knows, and waits for a decision."""
        return self.status is Status.PREPARED

    @property
    def in_doubt(self) -> bool:
        """Whether a decision of it was begun, and is not known to have landed or not."""
        return self.deciding and self.status in (Status.ACTIVE, Status.UNKNOWN)

    @property
    def durable(self) -> bool:
        """Whether the journal must record its decision.

        The journal records an id that the client gave, unless all of the work is in memory: then
        the process remembers the id, as one of the last ``TRANSIENT_KEYS_MAX``.
        """
        work = self.work.durable(self.attempt_id) or self.participants or self.claimed
        return bool(work) or (self.is_named and not self.participants.transient)

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to decide yet."""
        work = self.work
        queued = work.sends or work.accounts or work.changes or self.claimed
        return not (queued or self.participants.are_waiting)

    def begin(self, version: int | None = None) -> None:
        """Begin at a version of the journal, and look up an id that the client gave.

        Args:
            version: The version at which the id was looked up; the newest known when left out.
        """
        if self.status is not Status.NOT_STARTED:
            return
        self.client.open()
        self.begun = self.client.cache.version_to_begin() if version is None else version
        if self._look_up_first:
            self._look_up(self.client.cache.key_state(self.id))
            if not self.already_committed and self.client.store.transient.used:
                self._look_up(
                    self.client.transient.states.key_states([self.id])[self.id], memory=True
                )
        if self.status is Status.NOT_STARTED:  # only once the look-up of the id has succeeded
            self.status = Status.ACTIVE

    def _look_up(self, state: TransactionState, *, memory: bool = False) -> None:
        """Find whether the id was committed before, in the journal or only in memory.

        Raises:
            TransactionIdReused: The id was committed with another digest, or by a drain, whose
                batch would be taken for this work.
        """
        if not memory:
            self._rolled_back = state.rolled_back()
        entry = state.committed
        if entry is None:
            return
        digest = entry.body.get("digest")
        if self.digest is not None and digest is not None and digest != self.digest:
            self.status = Status.ROLLED_BACK
            raise TransactionIdReused(
                f"Transaction id {self.id!r} was committed with another digest ({digest}): use a "
                "new id for new work.",
                transaction_id=self.id,
                digest=digest,
            )
        if drained_queue(entry) is not None and DRAINED not in self.metadata:
            self.status = Status.ROLLED_BACK
            raise TransactionIdReused(
                f"Transaction id {self.id!r} was committed by a drain with "
                f"run_id={self.id.rpartition('/')[0]!r}: use another id.",
                transaction_id=self.id,
                digest=digest,
            )
        # Repeating the work finishes it, because its table changes may not be applied yet.
        if memory:
            self.receipt = Receipt.in_memory(self.id, entry.begun or 0, entry.recorded_at_ms)
        else:
            self.receipt = Receipt.of(entry, applied=follow(self.client, entry))
        self.committed_metadata = entry.body.get("metadata") or {}
        self.status, self.already_committed = Status.COMMITTED, True

    @property
    def staged(self) -> list[StagedSend]:
        """The sends that it has staged, in their order."""
        return list(self.work.sends)

    @property
    def slice(self) -> int:
        """The slice into which its payload is staged."""
        return self.client.cache.slice_of(self.begun)

    @property
    def takes_work(self) -> bool:
        """Whether it is neither decided nor about to be."""
        return self.status in (Status.NOT_STARTED, Status.ACTIVE) and not self._closed

    def check_active(self) -> None:
        """Check that the attempt takes more work.

        Raises:
            TransactionFinished: It is decided, prepared, in doubt, or about to be decided: an
                interrupted commit can still land, with the work that it names and no other.
        """
        self.begin()
        if self._closed and self.status is Status.ACTIVE:
            raise TransactionFinished(
                f"Transaction {self.id!r} was being decided and takes no more work: commit it "
                "again, or roll it back.",
                transaction_id=self.id,
            )
        if self.status is not Status.ACTIVE and not self.already_committed:
            raise TransactionFinished(
                f"Transaction {self.id!r} is {self.status.value} and takes no more work: "
                f"{self.remedy}.",
                transaction_id=self.id,
            )

    @property
    def remedy(self) -> str:
        """What the user can do when it takes no more work (pure)."""
        if self.status is Status.PREPARED:
            return "commit it or roll it back, or begin a new one"
        if self.status is not Status.UNKNOWN:
            return "begin a new one"
        if not self.landing:
            return "it never commits, but its rollback is not on record: roll it back again"
        named = self.attempt_name
        return f"it may have committed, ask outcome({self.id!r}, {named!r}), or roll it back"

    def promised(self) -> bool:
        """Return whether it is prepared, also by an interrupted prepare that landed."""
        if self.interrupted and self.promising:
            self._note_prepared(self.client.cache.key_state(self.id))
        return self.status is Status.PREPARED

    def _note_prepared(self, state: TransactionState) -> None:
        if self.attempt_id in state.prepared and state.decided(self.attempt_id) is None:
            self.status = Status.PREPARED

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Add work; another thread that wants to decide the attempt waits meanwhile.

        Raises:
            TransactionFinished: As in ``check_active``: another thread was faster.
        """
        with self._adding:
            self.check_active()
            yield

    def has_won(self) -> bool:
        """Return whether the journal says that of all attempts of its id this one committed."""
        committed = self.client.cache.key_state(self.id).committed
        return committed is not None and committed.attempt == self.attempt_id

    def close(self) -> None:
        """Take no more work: the attempt is about to be decided."""
        with self.closing():
            pass

    def close_in_memory(self) -> bool:
        """Take no more work, if all of it is in memory, and return whether it is.

        What is decided in memory is done or not, and never in doubt: so nobody can find a decision
        of it in the journal, as after ``close``.
        """
        with self._adding:
            self._closed = self._closed or not self.durable
            return not self.durable

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Take no more work from the end of the block on; whoever adds some waits for it."""
        with self._adding:
            yield
            self._closed = self.deciding = True

    def add_send(self, send: StagedSend) -> None:
        """Record staged rows."""
        self.add_sends([send])

    def add_sends(self, sends: Sequence[StagedSend]) -> None:
        """Record staged rows for several queues: all, or none if the call is interrupted.

        Raises:
            TransactionFinished: As in ``adding``.
        """
        with self.adding():
            if any(send.info.transient for send in sends):
                self.participants.transient.begin()
            self.work.sends += sends

    def take_back(self, sends: Sequence[StagedSend]) -> None:
        """Forget staged rows of a call that failed; those that other threads have recorded stay."""
        own = set(map(id, sends))
        with self._adding:
            self.work.sends[:] = [send for send in self.work.sends if id(send) not in own]

    def claiming(self, *, transient: bool = False) -> None:
        """Record that a claim is about to be appended, which a rollback must then release."""
        if transient:
            self.participants.transient.begin()
            self.participants.transient.claimed = True
        else:
            self.claimed = True

    def add_account(self, account: Account) -> None:
        """Record acquired messages: from now on a commit accepts those without a disposition.

        So this comes last in a call that acquires, where an interrupt can no longer part it.

        Raises:
            TransactionFinished: As in ``adding``.
        """
        self.check_active()
        if self._closed:  # no call comes after this, in which there could be an interrupt
            self.check_active()
        self.work.accounts += [account]

    def follow_memory(self) -> None:
        """Resolve the attempts of its id that wait in memory for an outcome."""
        if self.takes_transient:
            resolve(self.client, abort=(self.id,))

    def adopt(self, account: Account) -> None:
        """Record messages held under leases that this transaction settles."""
        if account not in self.work.accounts:
            self.work.accounts.append(account)
        if any(one.info.transient for one in account.held):
            self.participants.transient.begin()

    # ------------------------------------------------------- what a decision would write

    def committing(self, more: Planner | None = None, *, in_order: bool = False) -> Planner:
        """Plan its commit, joined with another plan unless that fails or has lost too often.

        Plans that exclude each other are not joined: for example, a commit that settles messages
        of a lease in a lane, and a claim in the same lane.

        Args:
            more: Plans the rest of the append; None for the commit alone.
            in_order: Whether the rest may not take messages behind those that the commit returns.
        """

        def alone(error: Exception) -> None:
            # The caller repeats the other plan and meets its error; the commit does not wait.
            nonlocal more
            about = (self.id, describe_error(error))
            logger.info("commit alone transaction_id=%s error=%s", *about)
            more = None

        def plan(lost: int) -> Plan:
            decided = self.plan_seal(model.COMMITTED, lost)
            if more is None or lost >= JOINED_TRIES:
                return decided
            try:
                joined = more(lost)
            except NotRead as missing:
                missing.without = alone
                raise
            except Exception as error:
                alone(error)
                return decided
            if joined is None or decided.excludes(joined):
                return decided
            if in_order and decided.gives_back_to(joined):
                return decided
            return decided + joined

        return plan

    def preparing(self, lost: int) -> Plan:
        """Plan the append that prepares it."""
        return self.plan_seal(model.PREPARED, lost)

    def rolling_back(self, reason: str, *, counted: bool, unless_prepared: bool) -> Planner:
        """Make the planner of its rollback, whatever its state in the journal is by then."""
        return lambda _lost: self.plan_rollback(
            reason, counted=counted, unless_prepared=unless_prepared
        )

    def plan_seal(self, kind: str, lost: int) -> Plan:
        """Plan the append that commits or prepares it; after a conflict, check its rivals first."""
        if lost or self.is_part:
            self._rolled_back = self._rivals()
        stamp = self.client.stamp()
        body = self.body(kind, stamp)
        sealed = self.work.seal(self.client, self.owner, kind, self._rolled_back, stamp, body=body)
        if self.is_part:
            sealed += Plan((), (model.others_not_rolled_back(self.id, self.attempt_id),))
        return sealed

    def body(self, kind: str, stamp: planning.Stamp) -> dict[str, Any]:
        """Write the further fields of a decision."""
        body: dict[str, Any] = {}
        if self.digest is not None:
            body["digest"] = self.digest
        if self.metadata:
            body["metadata"] = self.metadata
        if self.participants.names:
            body["participants"] = self.participants.names
        if self.participants.last is not None:
            body["last_resource"] = self.participants.last.name
        if kind == model.PREPARED:
            body["claims"] = [
                decisions.entry_to_json(e) for e in self.work.released(stamp, "prepared")
            ]
        return body

    def plan_rollback(self, reason: str, *, counted: bool, unless_prepared: bool) -> Plan | None:
        """Plan the append that rolls it back.

        Args:
            reason: The reason.
            counted: Whether the deliveries of its messages count.
            unless_prepared: Whether it stays as it is if it is prepared.

        Returns:
            The plan; None if it is decided, can never be, or stays prepared.
        """
        state = self.client.cache.key_state(self.id, archived_since=self.begun)
        decided = state.decisions.get(self.attempt_id)
        if decided is not None:
            if decided.kind == model.COMMITTED:  # an interrupted commit landed after all
                self.decision, self.status = decided, Status.COMMITTED
            return None
        if state.is_over(self.owner):  # below the horizon: it never happened, and never will
            if self.deciding:  # unless an interrupted commit landed long ago
                self.client.cache.never_decided(state, self.owner)
            return None
        stamp = self.client.stamp()
        prepared = state.prepared.get(self.attempt_id)
        if prepared is not None and unless_prepared:
            self.status = Status.PREPARED
            return None
        if prepared is not None:  # an interrupted prepare landed after all
            return decisions.decide_prepared(
                prepared, commit=False, stamp=stamp, reason=reason, counted=counted
            )
        released = self.work.released(stamp, reason, counted=counted)
        said = None if counted else {"counted": False}
        return decisions.rollback(self.owner, released, stamp, reason, said)

    def _rivals(self) -> list[str]:
        """Return the rolled-back attempts of the id, after checking that this one may win.

        Raises:
            TransactionAborted: This attempt was aborted, or another one is committed or prepared;
                or, of parts of the same work, rolled back.
            TransactionFinished: This attempt is committed, or prepared, after all.
        """
        state = self.client.cache.key_state(self.id, archived_since=self.begun)
        decided = state.decisions.get(self.attempt_id)
        if self.client.cache.never_decided(state, self.owner):
            raise too_late_error(self.id)
        if decided is not None:
            if decided.kind == model.COMMITTED:
                self.decision = decided
            raise ended_error(decided)
        self._note_prepared(state)
        if self.status is Status.PREPARED:
            raise TransactionFinished(
                f"Transaction {self.id!r} is already prepared: commit it or roll it back.",
                transaction_id=self.id,
            )
        self.check_first(state)
        rolled_back = state.rolled_back()
        if self.is_part and rolled_back:
            raise TransactionAborted(
                f"Another part of transaction {self.id!r} was rolled back, and so is this one.",
                transaction_id=self.id,
            )
        return rolled_back

    def check_first(self, state: TransactionState) -> None:
        """Check that no other attempt of the id is committed, or waits for its decision.

        Raises:
            TransactionAborted: Another attempt is committed or prepared.
        """
        if self.attempt_id not in state.decisions and state.committed is not None:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} was committed first: use its receipt "
                "instead of repeating the work.",
                transaction_id=self.id,
                receipt=Receipt.of(state.committed),
            )
        waiting = state.in_doubt
        if waiting is not None and waiting.attempt != self.attempt_id:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} is prepared: decide it first.",
                transaction_id=self.id,
                reason=UNDECIDED,
            )
