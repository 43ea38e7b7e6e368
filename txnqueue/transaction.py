"""A transaction: begin, seal, commit, roll back, prepare.

What it sent is staged and named by nobody until the decision names it; what it received
is claimed by it; one append decides it all. A run of a transaction is an *attempt* of its
id (the *key*): a rollback ends the attempt, not the key.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from txnqueue import model, planning, sealing
from txnqueue.appending import Landed, Planner
from txnqueue.applying import follow
from txnqueue.batch import Batch
from txnqueue.changes import TableChanges, sealed
from txnqueue.client import Client
from txnqueue.config import (
    check_known_as,
    check_metadata,
    check_text,
    check_transaction_id,
    reason_of,
)
from txnqueue.deciding import Receipt, StagedSend, decide_prepared, receipt_of
from txnqueue.errors import (
    Busy,
    HistoryRemoved,
    InvalidInput,
    LeaseLost,
    QueueClosed,
    QueueNotFound,
    TransactionAborted,
    TransactionFinished,
    TransactionIdReused,
    TransactionUnknown,
)
from txnqueue.ledger import KeyState, Owner
from txnqueue.model import Entry
from txnqueue.participants import Auxiliary, LastResource, Participants
from txnqueue.planning import Plan
from txnqueue.tables import Change
from txnqueue.transient_work import TransientWork, resolve
from txnqueue.work import Work

if TYPE_CHECKING:
    from txnqueue.exchange import Exchange
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")
JOINED_TRIES = 2
"""So often a commit is tried together with something else before it goes alone."""


class Status(str, enum.Enum):
    """Where a transaction stands."""

    NOT_STARTED = "not_started"
    ACTIVE = "active"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


class Transaction:
    """Work that happens entirely and once, or not at all. Single use.

    As a block it commits on exit and rolls back on an exception::

        with manager.transaction() as tx:
            batch = orders.receive(1000, transaction=tx)
            invoices.send(price(batch.df), transaction=tx)

    Without a block, ``commit()`` or ``rollback()`` ends it.
    """

    takes_transient = True
    """Whether it may send and receive messages that are in memory only."""
    keeps = True
    """Whether its commit may leave what it received under a lease of its own client."""

    def __init__(
        self,
        client: Client,
        transaction_id: str | None,
        *,
        lease_seconds: float | None = None,
        digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        look_up: bool = True,
    ) -> None:
        """Name the attempt; nothing is read or written yet. Use ``manager.transaction``."""
        self.client = client
        runtime = client.runtime
        self._given = transaction_id is not None
        self._look_up_first = self._given and look_up
        self.id = (
            check_transaction_id(transaction_id)
            if transaction_id is not None
            else model.generated_key(client.shard, runtime.new_id())
        )
        self.attempt = runtime.new_id()
        self.status = Status.NOT_STARTED
        self.receipt: Receipt | None = None
        self.already_committed = False
        self.lease_seconds = lease_seconds
        self.digest = check_text("digest", digest)
        self.metadata = check_metadata(metadata)
        self._begun = -1
        self._work = Work()
        self._transient = TransientWork(client, self._work)
        self._decision: Entry | None = None
        self._participants = Participants(self)
        self._claiming = False
        self._deciding = False
        self._rolled_back: list[str] = []
        self._entered = False

    # ------------------------------------------------------------------------- public

    def queue(self, name: str) -> Queue:
        """Give a queue whose calls all work in this transaction.

        Raises:
            QueueNotFound: There is no such queue.
        """
        check_known_as(name, "name")
        self.begin()
        return self.client.make_queue(self.client.queue(name), self)

    def exchange(self, name: str) -> Exchange:
        """Give an exchange that publishes in this transaction.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        check_known_as(name, "name")
        self.begin()
        return self.client.make_exchange(name, self)

    def table(self, name: str, *, lineage: bool = False) -> TableChanges:
        """Give a Delta table of the user's that this transaction changes when it commits.

        Its changes are decided with the messages, and applied in commit order right after:
        by the commit itself, or by whoever recovers. Readers of the table may see that it
        was committed a moment later than they see the messages.

        Args:
            name: A path if it has a "/", otherwise a name of the catalog.
            lineage: Whether rows written carry the transaction's id, in a column
                ``_transaction_id`` that the table must have.
        """
        return TableChanges(self, name, lineage)

    def enlist(self, name: str, connection: Any, *, last: bool = False) -> Any:
        """Let a database take part: its work is committed with everything else, or not at all.

        Args:
            name: What the database is called, the same whenever it takes part; ``recover``
                asks for a connection to it by this name.
            connection: A DB-API 2.0 connection with two-phase commit (``tpc_begin`` …). Work on
                it from now on belongs to the transaction.
            last: For one database without two-phase commit: its own commit decides, by a row
                in a table ``txnqueue_decisions``.

        Returns:
            The connection.

        Raises:
            InvalidInput: It cannot take part so.
            LimitExceeded: The transaction's id is too long for a branch.

        Example::

            with manager.transaction() as tx:
                batch = orders.receive(100, transaction=tx)
                billing = tx.enlist("billing", psycopg.connect(...))
                billing.cursor().execute("INSERT INTO ...")
        """
        self.check_active()
        if self.already_committed:
            self._participants.ignore(connection)
        else:
            self._participants.enlist(name, connection, last)
        return connection

    def auxiliary(self, name: str, connection: Any) -> Auxiliary:
        """Use a database beside the transaction, in transactions that stand for themselves.

        They are committed and rolled back when the user says so; what is left open in the
        end follows the outcome.

        Args:
            name: The data source: one connection each.
            connection: A DB-API 2.0 connection.
        """
        self.check_active()
        return self._participants.auxiliary(name, connection)

    def commit(self) -> Receipt:
        """Decide that everything happened: one append.

        Returns:
            The receipt; under an id that was committed before, the first one.

        Raises:
            TransactionAborted: Surely not committed: somebody else aborted this attempt
                after its lease, another attempt of the id was faster, or a queue is being
                dropped, which is then the error's cause.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
            LeaseLost: Messages that were held under a lease are others' now; rolled back.
            TransactionMismatch: Another transaction that is prepared settles messages of the
                same lease: nothing was changed; decide that one, and commit again.
        """
        self.begin()
        if self.status is Status.COMMITTED and self.receipt is not None:
            if self.already_committed:
                self._participants.undo_ignored()
            return self.receipt
        if self.status is Status.UNKNOWN and self._participants.last is not None:
            raise self._in_doubt(self._participants.last)
        if self.status is Status.PREPARED:
            receipt = self._decide_prepared(commit=True)
            assert receipt is not None
            return receipt
        self._check_open()
        if not self._durable:
            return self._commit_in_memory()
        if self._participants.last is not None:
            return self._commit_by_last_resource(self._participants.last)
        try:
            return self.committed_by(self.commit_joined(None))
        except (TransactionFinished, TransactionUnknown):
            if self.receipt is None:
                raise
            return self.receipt  # an interrupted commit had landed

    def commit_joined(self, more: Planner | None) -> Landed:
        """Commit in one append with something else, which is left out if it lost twice.

        Args:
            more: Plans what else goes into the append; None: nothing.

        Returns:
            What landed.
        """
        self._check_open()

        def plan(lost: int) -> Plan:
            decided = self._plan_seal(model.COMMITTED, lost)
            joined = more(lost) if more is not None and lost < JOINED_TRIES else None
            return decided + joined if joined is not None else decided

        return self._land(plan, "commit")

    def _land(self, plan: Planner, operation: str) -> Landed:
        """Append what decides or prepares; what surely cannot land is rolled back."""
        with self._rolled_back_if_refused(), self._transient.deciding():
            self._transient.prepare(self._body)
            self._prepare_others()
            self._deciding = True
            landed = self.client.land(plan, operation, transaction_id=self.id)
        assert landed is not None
        return landed

    @contextmanager
    def _rolled_back_if_refused(self) -> Iterator[None]:
        """Roll back what surely cannot be committed or prepared, and say so."""
        try:
            yield
        except (TransactionUnknown, HistoryRemoved):
            self.status = Status.UNKNOWN
            raise
        except Busy as error:
            self._give_up(error)
            raise TransactionAborted(
                f"Transaction {self.id!r} met conflicts at every try and was rolled back: run it "
                "again.",
                transaction_id=self.id,
            ) from error
        except (QueueClosed, QueueNotFound) as error:
            self._give_up(error)
            raise TransactionAborted(
                f"Transaction {self.id!r} was rolled back, surely and for good: {error}",
                transaction_id=self.id,
            ) from error
        except (TransactionAborted, LeaseLost) as error:
            self._give_up(error)
            raise

    def rollback(self, reason: str | None = None, *, counted: bool = True) -> None:
        """Decide that nothing happened; messages go back to their original places.

        Messages acquired inside go back to the queue. Messages that were held under a
        lease stay with their holder, unsettled.

        Args:
            reason: Why; it stands in the journal.
            counted: Whether the messages' deliveries count; not if nobody looked at them.

        Raises:
            TransactionFinished: It is committed, maybe by an interrupted commit that landed.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
        """
        check_text("reason", reason)
        if self.status is Status.ROLLED_BACK:
            return
        if self.already_committed:
            self._participants.undo_ignored()
        if self.status is Status.UNKNOWN and self._participants.last is not None:
            raise self._in_doubt(self._participants.last)
        self._decide_rollback(reason, counted)
        self._transient.roll_back(reason or "rolled back", counted)
        self._participants.rolled_back()

    def _decide_rollback(self, reason: str | None, counted: bool) -> None:
        if self.status is Status.NOT_STARTED:
            self.status = Status.ROLLED_BACK
            return
        if self.status is Status.PREPARED:
            self._decide_prepared(commit=False, reason=reason)
            return
        if self.status is Status.COMMITTED:
            raise TransactionFinished(f"Transaction {self.id!r} is committed.")
        if self._transient.committed:
            self._committed_in_memory()
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        if not self._claiming and not self._deciding:
            self.status = Status.ROLLED_BACK  # only staged: nothing anywhere names it
            return
        try:
            self.client.land(
                lambda lost: self._plan_rollback(reason or "rolled back", counted),
                "rollback",
                transaction_id=self.id,
            )
        except (TransactionUnknown, HistoryRemoved):
            self.status = Status.UNKNOWN
            raise
        if self._decision is not None:
            self._happened(self._decision)
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        self.status = Status.ROLLED_BACK

    def prepare(self) -> None:
        """Promise that either decision can be carried out, and wait for one.

        From here on no time-out, crash or clean-up ends the transaction: only an explicit
        ``commit`` or ``rollback``, here or through the manager.

        Raises:
            TransactionAborted: As in ``commit``.
            TransactionUnknown: As in ``commit``.
            TransactionMismatch: As in ``commit``.
            InvalidInput: A database takes part that cannot prepare, or messages that are
                in memory only; nothing was changed.
        """
        self.begin()
        self._check_open()
        if self._transient:
            raise InvalidInput(
                f"Transaction {self.id!r} sent or received transient messages, which no promise "
                "survives this process with: commit() it, or send with durable=True."
            )
        if self._participants.last is not None:
            raise InvalidInput(
                f"{self._participants.last.name!r} decides by its own commit and cannot prepare: "
                "commit() the transaction."
            )
        self._prepare()

    def _prepare(self) -> None:
        self._land(lambda lost: self._plan_seal(model.PREPARED, lost), "prepare")
        self.status = Status.PREPARED

    def __enter__(self) -> Transaction:
        """Begin."""
        if self._entered:
            raise TransactionFinished("A transaction block can be used once: begin a new one.")
        self._entered = True
        self.check_active()
        self.client.blocks.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back on an exception, which goes on."""
        self.client.blocks.remove(self)
        if self.already_committed:
            self._participants.undo_ignored()
        if error is None:
            if self.status is Status.ACTIVE:
                try:
                    self.commit()
                except Exception as failed:
                    self._roll_back_after(failed)
                    raise
            return
        self._roll_back_after(error)

    def _roll_back_after(self, error: BaseException) -> None:
        """Roll back if nothing is decided yet; the error that led here is the one to see."""
        if self.status is not Status.ACTIVE:
            return
        try:
            self.rollback(reason=reason_of(error))
        except Exception as failed:
            logger.warning("rollback failed transaction_id=%s error=%s", self.id, failed)

    def __repr__(self) -> str:
        """Show the id and the status."""
        return f"<Transaction {self.id} {self.status.value}>"

    # ------------------------------------------------------- for queues, batches, drains

    @property
    def owner(self) -> Owner:
        """The attempt as the owner of claims and decisions."""
        return Owner(self.client.consumer, 0, self.id, self.attempt, self._begun)

    @property
    def changes(self) -> list[Change]:
        """The changes of tables that it has gathered."""
        return self._work.changes

    @property
    def staged(self) -> list[StagedSend]:
        """What it has staged, in the order of the sends."""
        return list(self._work.sends)

    @property
    def interrupted(self) -> bool:
        """Whether something interrupted a decision of it, which may land as it was."""
        return self._deciding and self.status is Status.ACTIVE

    @property
    def slice(self) -> int:
        """The slice that its payload is staged into."""
        return self.client.slice_of(self._begun)

    @property
    def joinable(self) -> bool:
        """Whether its commit can share an append with something else."""
        return self._participants.last is None and self._durable

    @property
    def _durable(self) -> bool:
        """Whether the journal must say what becomes of it.

        An id that the client gave is written down there, unless all that it stands for is
        in memory, where it is remembered as long as that.
        """
        work = self._work.durable(self.attempt) or self._participants or self._claiming
        return bool(work) or (self._given and not self._transient)

    def begin(self, version: int | None = None) -> None:
        """Begin: learn a version of the journal, and look up an id that the client gave.

        Args:
            version: Begin at this one, where the id was looked up.
        """
        if self.status is not Status.NOT_STARTED:
            return
        self.client.open()
        self._begun = self.client.version_to_begin() if version is None else version
        self.status = Status.ACTIVE
        if self._look_up_first:
            self._look_up(self.client.key_state(self.id))
            if not self.already_committed and self.client.store.transient.used:
                self._look_up(self.client.transient.key_states([self.id])[self.id], memory=True)

    def check_active(self) -> None:
        """Check that it takes more work.

        Raises:
            TransactionFinished: It is decided, prepared, in doubt, or about to be decided: what
                an interrupted commit has named can still land, and nothing else with it.
        """
        self.begin()
        if self.interrupted:
            raise TransactionFinished(
                f"Transaction {self.id!r} was about to be decided and takes no more work: commit "
                "it again, or roll it back."
            )
        if self.status is not Status.ACTIVE and not self.already_committed:
            raise TransactionFinished(
                f"Transaction {self.id!r} is {self.status.value} and takes no more work: begin a "
                "new one."
            )

    def add_send(self, send: StagedSend) -> None:
        """Take note of staged rows."""
        self._work.sends.append(send)
        if send.info.transient:
            self._transient.begin(self.owner)

    def claiming(self, *, transient: bool = False) -> None:
        """Take note that a claim is about to be appended: a rollback must say so from now on."""
        if transient:
            self._transient.begin(self.owner)
            self._transient.claimed = True
        else:
            self._claiming = True

    def add_batch(self, batch: Batch) -> None:
        """Take note of messages acquired inside."""
        self._work.batches.append(batch)

    def adopt(self, batch: Batch) -> None:
        """Take note of a batch held under a lease that is settled in this transaction."""
        if batch not in self._work.batches:
            self._work.batches.append(batch)
        if any(one.info.transient for one in batch.claims):
            self._transient.begin(self.owner)

    def committed_by(self, landed: Landed) -> Receipt:
        """Take note that the commit has landed."""
        mine = next(e for e in landed.entries if e.kind == model.COMMITTED and e.stream == self.id)
        return self._happened(mine)

    # ------------------------------------------------------------------------ planning

    def _plan_seal(self, kind: str, lost: int) -> Plan:
        if lost:
            self._rolled_back = self._rivals()
        stamp = self.client.stamp()
        body = self._body(kind, stamp)
        return self._work.seal(self.client, self.owner, kind, self._rolled_back, stamp, body)

    def _body(self, kind: str, stamp: planning.Stamp) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self.digest is not None:
            body["digest"] = self.digest
        if self.metadata:
            body["metadata"] = self.metadata
        if self._participants.names:
            body["participants"] = self._participants.names
        if self._participants.last is not None:
            body["last_resource"] = self._participants.last.name
        if kind == model.PREPARED:
            body["claims"] = [
                sealing.entry_to_json(e) for e in self._work.released(stamp, "prepared")
            ]
        return body

    def _plan_rollback(self, reason: str, counted: bool) -> Plan | None:
        state = self.client.key_state(self.id, archived_since=self._begun)
        decided = state.decisions.get(self.attempt)
        if decided is not None:
            if decided.kind == model.COMMITTED:  # an interrupted commit landed after all
                self._decision, self.status = decided, Status.COMMITTED
            return None
        if state.is_over(self.owner):  # below the horizon: it never happened, for ever
            if self._deciding:  # unless an interrupted commit landed, long ago
                self.client.never_decided(state, self.owner)
            return None
        stamp = self.client.stamp()
        prepared = state.prepared.get(self.attempt)
        if prepared is not None:  # an interrupted prepare landed after all
            return sealing.decide_prepared(prepared, commit=False, stamp=stamp, reason=reason)
        return sealing.rollback(
            self.owner, self._work.released(stamp, reason, counted), stamp, reason
        )

    def _rivals(self) -> list[str]:
        """Look at the other attempts of the id, and at what became of this one.

        Raises:
            TransactionAborted: This attempt was aborted, or another one cannot be overtaken.
        """
        state = self.client.key_state(self.id, archived_since=self._begun)
        decided = state.decided(self.attempt)
        if self.client.never_decided(state, self.owner):
            raise TransactionAborted(
                f"Transaction {self.id!r} was not decided in time: the store's maintenance has "
                "closed the time in which it began. Run it again; maintain() says for how long a "
                "transaction may stay open.",
                transaction_id=self.id,
            )
        if decided == model.COMMITTED:
            self._happened(state.decisions[self.attempt])
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        if decided == model.ROLLED_BACK:
            entry = state.decisions[self.attempt]
            raise TransactionAborted(
                f"Transaction {self.id!r} was aborted by {entry.actor}: {entry.reason}.",
                transaction_id=self.id,
                reason=entry.reason,
            )
        if decided is None and state.committed is not None:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} was committed first.",
                transaction_id=self.id,
                receipt=Receipt.of(state.committed),
            )
        waiting = state.in_doubt
        if waiting is not None and waiting.attempt != self.attempt:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} is prepared: decide it first.",
                transaction_id=self.id,
            )
        return state.rolled_back()

    def _look_up(self, state: KeyState, *, memory: bool = False) -> None:
        """Find out whether the id was committed before, in the journal or in memory only."""
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
        # Whoever repeats the work finishes it: its table changes may not be applied yet.
        self.status, self.already_committed = Status.COMMITTED, True
        if memory:
            self.receipt = Receipt.in_memory(self.id, entry.begun or 0, entry.recorded_at_ms)
        else:
            self.receipt = Receipt.of(entry, follow(self.client, entry))

    # -------------------------------------------------------------------------- endings

    def _check_open(self) -> None:
        if self.status is not Status.ACTIVE:
            raise TransactionFinished(
                f"Transaction {self.id!r} is {self.status.value}: begin a new one."
            )

    def _prepare_others(self) -> None:
        """Check once more that tables will take their changes, and let databases prepare.

        Raises:
            TransactionAborted: One of them cannot.
        """
        if self.changes:
            self._work.changes = sealed(self.client, self.changes, self.id)
        try:
            self._participants.prepare()
        except Exception as error:
            raise TransactionAborted(
                f"A database could not prepare, and transaction {self.id!r} was rolled back: "
                f"{error}",
                transaction_id=self.id,
            ) from error

    def _happened(self, decision: Entry) -> Receipt:
        """Take note of a commit, and carry out what follows from it."""
        follows = bool(self.changes or self._participants)
        self.receipt = Receipt.of(decision, applied=not follows)
        self.status = Status.COMMITTED
        self._transient.follow(commit=True)
        self._work.committed(self.attempt)
        self._confirm_others()
        if follows:
            self.receipt = Receipt.of(decision, follow(self.client, decision))
        return self.receipt

    def _confirm_others(self) -> None:
        """Let databases carry out the commit; what they confirm rides on the next append."""
        self.client.add_confirmations(self._participants.committed(self.client.stamp()))

    def _commit_by_last_resource(self, last: LastResource) -> Receipt:
        """Prepare here, commit there with a row that says so, decide here by that row."""
        try:
            self._prepare()
        except TransactionUnknown:
            last.rollback()  # its row was not written: whatever is decided, it has not committed
            raise
        self.status = Status.UNKNOWN  # until the row is known, whatever interrupts us
        try:
            committed = last.decide()
        except Exception as error:
            raise self._in_doubt(last) from error
        if not committed:
            self.status = Status.PREPARED
            self.rollback(f"{last.name} rolled back")
            raise TransactionAborted(
                f"{last.name!r} could not commit, and transaction {self.id!r} was rolled back.",
                transaction_id=self.id,
            )
        try:
            receipt = self._decide_prepared(commit=True)
        except Exception as error:
            raise self._in_doubt(last) from error
        assert receipt is not None
        return receipt

    def _in_doubt(self, last: LastResource) -> TransactionUnknown:
        return TransactionUnknown(
            f"{last.name!r} does not say whether {self.id!r} is committed: recover() with a "
            "connection to it decides.",
            transaction_id=self.id,
        )

    def _commit_in_memory(self) -> Receipt:
        """Commit what has no durable work, or no work at all: no entry in the journal."""
        if self._transient:
            with self._rolled_back_if_refused():
                resolve(self.client, [self.id], abort=[self.id])
                self._transient.commit(self._body)
        return self._committed_in_memory()

    def _committed_in_memory(self) -> Receipt:
        self.receipt = Receipt.in_memory(self.id, self._begun, self.client.runtime.now_ms())
        self.status = Status.COMMITTED
        self._work.committed(self.attempt)
        self._confirm_others()
        return self.receipt

    def _give_up(self, error: Exception) -> None:
        """Roll back for certain after a commit that could not land.

        Raises:
            TransactionUnknown: Not even that is certain.
        """
        if self.status is Status.PREPARED:
            return
        try:
            self.rollback(reason=type(error).__name__)
        except Exception as failed:
            if not isinstance(failed, TransactionFinished):
                self.status = Status.UNKNOWN
            raise TransactionUnknown(
                f"The outcome of {self.id!r} is in doubt: ask manager.outcome({self.id!r}).",
                transaction_id=self.id,
            ) from failed

    def _decide_prepared(self, *, commit: bool, reason: str | None = None) -> Receipt | None:
        receipt = decide_prepared(
            self.client,
            self.id,
            commit=commit,
            reason=reason,
            attempt=self.attempt,
            by_last_resource=self._participants.last is not None,
        )
        self.status = Status.COMMITTED if commit else Status.ROLLED_BACK
        self._transient.follow(commit=commit)
        if commit:
            self.receipt = receipt
            self._work.committed(self.attempt)
            self._confirm_others()
            entry = self.client.key_state(self.id).committed
            if self._participants and entry is not None:
                self.receipt = receipt = receipt_of(self.client, entry)
        return receipt
