"""The queue manager: opens a store and hands out queues and transactions."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from txnqueue import creation, declaring, model, recalling, views
from txnqueue.applying import Applier
from txnqueue.attempts import Attempt
from txnqueue.branching import TIMED_OUT, Branch
from txnqueue.client import Client
from txnqueue.config import (
    RetryPolicy,
    check_known_as,
    check_name,
    check_reason,
    check_text,
)
from txnqueue.configuring import Configuration
from txnqueue.deciding import Receipt, decide_prepared, forget, receipt_of
from txnqueue.declaring import Step
from txnqueue.dropping import DropResult
from txnqueue.errors import (
    InvalidInput,
    PlatformMissing,
    SchemaMismatch,
    TransactionUnknown,
)
from txnqueue.exchange import Exchange
from txnqueue.exchanges import Exchanges
from txnqueue.history import History
from txnqueue.maintenance import Maintenance, Retention, maintain
from txnqueue.metrics import Metrics
from txnqueue.payload.schemas import check_schema
from txnqueue.queue import Queue
from txnqueue.recovery import BRANCH_SECONDS_MIN, Recovery, recover
from txnqueue.runtime import Runtime
from txnqueue.store import DeltaStore, Store
from txnqueue.transaction import Status, Transaction
from txnqueue.transient_work import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a transaction.

    Attributes:
        transaction_id: The transaction's id.
        status: committed, rolled_back, prepared, active (a branch that is started), or
            unknown: nothing is decided. A transaction that left no entry is unknown, and
            its messages return when its leases end.
        receipt: The commit.
        reason: Why it was rolled back.
        attempts: How many attempts the journal knows.
        heuristic: Whether an operator decided it, and nobody has forgotten that.
    """

    transaction_id: str
    status: Status
    receipt: Receipt | None = None
    reason: str | None = None
    attempts: int = 0
    heuristic: bool = False


class QueueManager(Exchanges):
    """A store of queues: any number of managers, threads and drivers work on one.

    Example::

        manager = QueueManager(spark, "/lake/messaging")
        orders = manager.create_queue("orders", "order_id long, amount double", exist_ok=True)
        orders.send([{"order_id": 1, "amount": 9.5}])
        with manager.transaction() as tx:
            batch = orders.receive(1000, transaction=tx)
            batch.reject(where="amount < 0", reason="negative", transaction=tx)
    """

    def __init__(
        self,
        spark: SparkSession | None,
        root: str | None = None,
        *,
        actor: str | None = None,
        run_id: str | None = None,
        consumer: str | None = None,
        retry: RetryPolicy | None = None,
        store: Store | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Name a store; it is opened by the first call, and made by ``create_queue``.

        Args:
            spark: The session that DataFrames live on; the library tunes one of its own.
            root: Where the store is: with a "/" a path, otherwise a catalog schema. This and
                what follows may also be said by Spark's configuration (``spark.txnqueue.root``,
                ``spark.txnqueue.retry.attempts_max``) or the environment (``TXNQUEUE_ROOT``).
            actor: Who is written into every entry; the current user when left out.
            run_id: The run of a job that the work belongs to.
            consumer: Names who holds leases. The same id again takes over at once what an
                earlier process of that id left behind; that one is fenced.
            retry: How appends that meet a conflict are tried again.
            store: A store to use instead of the one at ``root``.
            runtime: The clock and the source of ids, for tests.

        Raises:
            PlatformMissing: There is neither a session nor a store.
            InvalidInput: The configuration says what cannot be used.
        """
        said = self._configuration = Configuration(_conf_of(spark), os.environ)
        if store is None:
            where = said.value("root", root).value
            if spark is None or where is None:
                raise PlatformMissing(
                    "QueueManager(spark, root): give a SparkSession and a path or schema."
                )
            store = DeltaStore(spark, where)
        chosen = runtime or Runtime(retry=said.retry())
        chosen.actor = said.value("actor", actor).value or chosen.actor
        chosen.run_id = said.value("run_id", run_id).value or chosen.run_id
        chosen.consumer = said.value("consumer", consumer).value or chosen.consumer
        chosen.retry = retry or chosen.retry
        self._client = Client(
            store, chosen, Queue, lambda client: Transaction(client, None), Exchange.open
        )

    @property
    def root(self) -> str:
        """Where the store is."""
        return self._client.store.root

    @property
    def history(self) -> History:
        """Ask what was: as-of, trace."""
        return History(self._client)

    def metrics(self) -> Metrics:
        """Measure every queue: what waits, since when, what is in flight, dead or delayed.

        Returns:
            The numbers as rows, as a DataFrame, as JSON and as Prometheus' text.
        """
        return Metrics(self._client)

    def __repr__(self) -> str:
        """Show where the store is."""
        return f"<QueueManager of {self.root}>"

    # -------------------------------------------------------------------------- queues

    def create_queue(
        self,
        name: str,
        schema: str | StructType | None = None,
        *,
        like: Any = None,
        exist_ok: bool = False,
        lanes: int | None = None,
        group_by: str | None = None,
        lease_seconds: float | None = None,
        deliveries_max: int | None = None,
        dead_letter: bool | None = None,
        dead_letter_expired: bool | None = None,
        delay_step_seconds: float | None = None,
        ordered: bool | None = None,
        durable: bool | None = None,
        message_id: str | None = None,
        duplicate_window_seconds: float | None = None,
    ) -> Queue:
        """Create a queue, and its dead-letter queue ``<name>.dead``; makes the store if needed.

        What is left out is as Spark's configuration says (``spark.txnqueue.queue.lanes``), or the
        environment (``TXNQUEUE_QUEUE_LANES``), or else as ``QueueSettings`` has it.

        Args:
            name: Letters, digits, '.', '_' or '-'.
            schema: The payload's columns, as DDL or ``StructType``.
            like: A DataFrame, pandas or Arrow table to take the schema from instead.
            exist_ok: Use a queue of that name as it is, if its schema is the same, or was
                before columns were added.
            lanes: The units of order and of parallel consumption; 1 is one strict FIFO.
            group_by: A column whose equal values stay in order, in one lane.
            lease_seconds: How long received messages are held.
            deliveries_max: So many failed deliveries of a message alone make it dead.
            dead_letter: Whether there is a dead-letter queue.
            dead_letter_expired: Whether messages whose time to live is over go there too.
            delay_step_seconds: Delays and times to live that differ by row are rounded up to
                it; the coarser, the fewer positions one send makes.
            ordered: While a consumer has messages of a lane in flight, no other one gets
                messages of that lane, so that they are worked on in order; the other lanes
                are free.
            durable: Whether messages are kept in the store. Those of a queue that is not, or
                of a send that says so, are kept in the memory of the sending process only:
                they cost no Delta commit, other processes do not see them, and they are gone
                when the process ends.
            message_id: A column that names the messages and is never null:
                ``_message.message_id`` shows it.
            duplicate_window_seconds: For so long after the first message of an id, in commit
                order, no other one of that id is delivered; up to 7 days.

        Returns:
            The queue.

        Raises:
            QueueExists: There is one already.
            QueueClosed: There is one that is being dropped.
            InvalidName: The name cannot be used.
            SchemaMismatch: The schema cannot be used, or is another one than the queue's.
        """
        check_name(name)
        settings = self._configuration.queue_settings(
            {
                "lanes": lanes,
                "group_by": group_by,
                "lease_seconds": lease_seconds,
                "deliveries_max": deliveries_max,
                "dead_letter": dead_letter,
                "dead_letter_expired": dead_letter_expired,
                "delay_step_seconds": delay_step_seconds,
                "ordered": ordered,
                "durable": durable,
                "message_id": message_id,
                "duplicate_window_seconds": duplicate_window_seconds,
            }
        )
        columns = creation.read_schema(self._client, schema, like)
        columns = check_schema(columns, group_by, message_id)
        creation.create_store(self._client)
        existing = self._client.queues().get(name)
        if existing is None:
            existing = creation.create_queue(self._client, name, columns, settings, exist_ok)
        elif existing.closing or not exist_ok:
            raise creation.taken(existing)
        queue = Queue(self._client, existing)
        if not creation.has_had(self._client, existing, columns):
            raise SchemaMismatch(
                f"Queue {name!r} has the schema {queue.schema.simpleString()}, not "
                f"{columns.simpleString()}."
            )
        return queue

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: There is no such queue.
            StoreNotFound: There is no store at this root.
        """
        self._client.open()
        return Queue(self._client, self._client.queue(check_name(name)))

    def drop_queue(
        self, name: str, *, reason: str | None = None, missing_ok: bool = False
    ) -> DropResult:
        """Drop a queue with everything in it; repeating it goes on, as ``Queue.drop`` says.

        Args:
            name: The queue's name.
            reason: Why; it stands in the history.
            missing_ok: No error if there is no such queue.

        Returns:
            Whether it is gone, and which prepared transactions hold it back if not.

        Raises:
            QueueNotFound: There is no such queue.
            QueueInUse: It takes the dead letters of another queue.
            TransactionNotGiven: Inside a transaction block.
        """
        check_name(name)
        if name not in self._client.queues() and missing_ok:
            return DropResult(name, True)
        return Queue(self._client, self._client.queue(name)).drop(reason=reason)

    def apply(
        self, declarations: Mapping[str, Any], *, dry_run: bool = False, drop: bool = False
    ) -> list[Step]:
        """Make queues as they are declared; repeating it changes nothing.

        Everything is checked before anything is changed. Queues that are not mentioned are
        left alone, and so is a setting that is left out.

        Args:
            declarations: ``queues``: by name ``schema`` and settings, as ``create_queue`` takes
                them; ``drop``: a list of names.
            dry_run: Say what would be changed, and change nothing.
            drop: Drop what ``drop`` names; without it nothing is dropped.

        Returns:
            What was changed, or would be.

        Raises:
            InvalidInput: A key is unknown, or a queue is there with a setting that is fixed.
            SchemaMismatch: A queue is there with another type of a column.

        Example::

            manager.apply({"queues": {"orders": {"schema": "order_id long", "lanes": 4}}})
        """
        declared = declaring.read(self._client, declarations)
        steps = declaring.plan(self._client, declared, drop)
        return steps if dry_run else [self._carry_out(step, declared) for step in steps]

    def _carry_out(self, step: Step, declared: declaring.Declarations) -> Step:
        if step.action == "drop":
            self.drop_queue(step.queue, missing_ok=True)
            return step
        one = next(one for one in declared.queues if one.name == step.queue)
        if step.action == "create":
            self.create_queue(one.name, one.columns, exist_ok=True, **one.settings)
        else:
            queue = self.queue(one.name)
            queue.alter(one.columns, **declaring.different(queue.info, one.settings))
        return step

    def list_queues(self) -> list[str]:
        """List the queues' names, dead-letter queues and those that are closing included.

        Raises:
            StoreNotFound: There is no store at this root.
        """
        return sorted(self._client.queues())

    # -------------------------------------------------------------------- transactions

    def transaction(
        self,
        transaction_id: str | None = None,
        *,
        lease_seconds: float | None = None,
        digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Transaction:
        """Begin a transaction: a block that commits on exit and rolls back on an exception.

        Args:
            transaction_id: Names the work, so that it happens once however often it is
                run: under an id that was committed, ``tx.already_committed`` says so, and
                receive and send do nothing.
            lease_seconds: For how long received messages are held before others may abort
                this transaction; each queue's setting when left out.
            digest: Tells a repetition from another work under the same id.
            metadata: Stored with the decision, for auditors.
        """
        return Transaction(
            self._client,
            transaction_id,
            lease_seconds=lease_seconds,
            digest=digest,
            metadata=metadata,
        )

    def attempts(
        self,
        retry: RetryPolicy | None = None,
        *,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Iterator[Transaction]:
        """Offer fresh attempts of one transaction until one is committed.

        ``TransactionAborted`` and ``Busy`` raised inside an attempt's block are tried again,
        bounded, with full jitter; ``TransactionUnknown`` is settled first; a handler's own
        error goes on. Under an id that was committed before, no attempt is offered.

        Example::

            for attempt in manager.attempts():
                with attempt as tx:
                    ...
        """
        runtime = self._client.runtime
        policy = runtime.retry if retry is None else retry
        if not isinstance(policy, RetryPolicy):
            raise InvalidInput(f"retry={retry!r}: give a RetryPolicy.", name="retry")
        key = transaction_id or model.generated_key(self._client.shard, runtime.new_id())
        started = runtime.monotonic()
        for tries in range(1, policy.attempts_max + 1):
            tx = Attempt(
                self._client, key, digest=digest, look_up=transaction_id is not None or tries > 1
            )
            tx.begin()
            if tx.already_committed:
                return
            elapsed = runtime.monotonic() - started
            tx.last = tries == policy.attempts_max or elapsed >= policy.seconds_max
            yield tx
            if tx.status is Status.COMMITTED or tx.failure is None:
                return
            if isinstance(tx.failure, TransactionUnknown):
                status = self.outcome(key).status
                if status is Status.COMMITTED:
                    return
                if status is Status.PREPARED:  # somebody has to decide it first
                    raise tx.failure
            runtime.sleep(policy.wait_seconds(tries, runtime.dice()))

    def run_transaction(
        self,
        handler: Callable[[Transaction], Result],
        *,
        retry: RetryPolicy | None = None,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Receipt:
        """Run a handler in a transaction, again after conflicts; it may run more than once.

        Args:
            handler: ``handler(tx)``; ``tx.queue(name)`` gives queues to work on.
            retry: How often and how long.
            transaction_id: As in ``transaction``; committed before, the handler is not run.
            digest: As in ``transaction``.

        Returns:
            The receipt: under an id that was committed before, the first one.

        Raises:
            TransactionAborted: Conflicts outlasted the retries.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` answers.
        """
        if not callable(handler):
            raise InvalidInput(f"handler={handler!r}: give a function.", name="handler")
        key = transaction_id
        for attempt in self.attempts(retry, transaction_id=transaction_id, digest=digest):
            key = attempt.id
            with attempt as tx:
                handler(tx)
            if attempt.receipt is not None:
                return attempt.receipt
        receipt = self.outcome(key or "").receipt
        if receipt is None:
            raise TransactionUnknown(
                f"The outcome of {key!r} is in doubt: ask manager.outcome({key!r}).",
                transaction_id=key,
            )
        return receipt

    def outcome(self, transaction_id: str) -> Outcome:
        """Say what became of a transaction, from the journal.

        Args:
            transaction_id: Its id, or what a ``TransactionUnknown`` carries.
        """
        check_known_as(transaction_id)
        self._client.open()
        if transaction_id.startswith("append:"):
            return self._append_outcome(transaction_id)
        resolve(self._client, [transaction_id])
        state = self._client.key_state(transaction_id)
        attempts = len({*state.decisions, *state.prepared})
        if state.committed is not None:
            receipt = receipt_of(self._client, state.committed)
            by_operator = state.committed.attempt in state.heuristics
            return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts, by_operator)
        if state.in_doubt is not None:
            return Outcome(transaction_id, Status.PREPARED, None, None, attempts)
        if state.decisions:
            last = list(state.decisions.values())[-1]
            by_operator = last.attempt in state.heuristics
            return Outcome(
                transaction_id, Status.ROLLED_BACK, None, last.reason, attempts, by_operator
            )
        branch = Branch.of(state)
        if branch is not None:
            status = Status.ROLLED_BACK if branch.lost else Status.ACTIVE
            return Outcome(transaction_id, status, None, TIMED_OUT if branch.lost else None, 1)
        return self._outcome_in_memory(transaction_id)

    def commit(self, transaction_id: str) -> Receipt:
        """Commit a prepared transaction, whoever prepared it; repeating is a no-op.

        Raises:
            TransactionMismatch: Nothing is prepared under this id.
            TransactionFinished: It was rolled back.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_known_as(transaction_id)
        self._client.open()
        receipt = decide_prepared(self._client, transaction_id, commit=True)
        assert receipt is not None
        return receipt

    def rollback(self, transaction_id: str, reason: str | None = None) -> None:
        """Roll back a prepared transaction, whoever prepared it; repeating is a no-op.

        A branch that several sessions share is rolled back even if it is not prepared.

        Raises:
            TransactionMismatch: Nothing is prepared under this id.
            TransactionFinished: It was committed.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_text("reason", reason)
        check_known_as(transaction_id)
        self._client.open()
        decide_prepared(self._client, transaction_id, commit=False, reason=reason)

    def decide_heuristically(self, transaction_id: str, *, commit: bool, reason: str) -> None:
        """Decide a prepared transaction as an operator, instead of whoever is to decide it.

        For when that one is gone for good. It is on record, and told to whoever decides
        later, until ``forget``; the other resources may have been decided otherwise.

        Args:
            transaction_id: The transaction.
            commit: Whether it is committed.
            reason: Why; it stands in the journal.

        Raises:
            TransactionMismatch: Nothing is prepared under this id.
            TransactionFinished: It is decided already.
        """
        check_reason(reason)
        check_known_as(transaction_id)
        self._client.open()
        decide_prepared(self._client, transaction_id, commit=commit, reason=reason, heuristic=True)

    def forget(self, transaction_id: str) -> None:
        """Forget that an operator decided a transaction, once all are told; the outcome stays.

        Raises:
            TransactionMismatch: No operator's decision of it is on record.
            NotPermitted: It is a branch that is restricted to other principals.
        """
        check_known_as(transaction_id)
        self._client.open()
        forget(self._client, transaction_id)

    def recover(
        self,
        connections: Mapping[str, Any] | None = None,
        *,
        branch_seconds_min: float = BRANCH_SECONDS_MIN,
    ) -> Recovery:
        """Finish what dead clients left: abort what is over, carry out what was decided.

        Args:
            connections: DB-API 2.0 connections to databases that took part, by the names under
                which they were enlisted.
            branch_seconds_min: Leave a database's branch alone that nobody decided yet, until it
                is prepared for so long.

        Returns:
            What was aborted and released, what is prepared and waits for a decision, and what
            could not be carried out yet, with what to do.
        """
        self._client.open()
        return recover(self._client, connections, branch_seconds_min)

    def maintain(
        self,
        *,
        transaction_seconds_max: float = 86_400.0,
        payload_retention_days: int = 7,
        vacuum: bool = True,
        dry_run: bool = False,
    ) -> Maintenance:
        """Keep the store small and fast; run it from time to time, beside everything else.

        Lanes are compacted; what is finished moves from the journal to the archive, where the
        history finds it; payload that nobody needs is dropped; files are made few.

        Args:
            transaction_seconds_max: For so long a transaction may stay undecided: what began
                earlier is refused when it commits, unless it is prepared or still holds
                messages.
            payload_retention_days: For so many days the payload of consumed messages is kept
                after their entries have left the journal.
            vacuum: Whether files are deleted that Delta has kept for older versions, where
                their retention allows it.
            dry_run: Only tell what would be done.

        Returns:
            What was done, and what could not be done this time.

        Raises:
            InvalidInput: A value cannot be used.
        """
        self._client.open()
        retention = Retention(transaction_seconds_max, payload_retention_days)
        return maintain(self._client, retention, vacuum=vacuum, dry_run=dry_run)

    def apply_change(self, change_id: str) -> None:
        """Apply a waiting table change to the table as it is, though it was replaced or set back.

        Args:
            change_id: As ``recover().waiting`` names it; the oldest of its table.

        Raises:
            InvalidInput: No such change waits.
            ChangeWaiting: It cannot be applied even so.
        """
        self._client.open()
        Applier(self._client).apply_to_table_as_it_is(change_id)
        self._client.confirm()

    def waive_change(self, change_id: str, reason: str) -> None:
        """Give a waiting table change up, for ever and on record.

        Args:
            change_id: As ``recover().waiting`` names it; the oldest of its table.
            reason: Why; it stands in the journal.

        Raises:
            InvalidInput: No such change waits, or it was applied already.
        """
        check_reason(reason)
        self._client.open()
        Applier(self._client).waive(change_id, reason)

    def create_views(
        self, prefix: str = "", as_of: int | datetime.datetime | None = None
    ) -> list[str]:
        """Create views for SQL: queues, transactions, dispatches, and one per queue.

        Args:
            prefix: Put before each name.
            as_of: A commit_seq, to show the state after that commit; now when left out.

        Returns:
            The views' names. With a path they are temporary, in a catalog schema permanent.
        """
        self._client.open()
        return views.create_views(self._client, self.history, prefix, as_of)

    def view_statements(
        self, prefix: str = "", as_of: int | datetime.datetime | None = None
    ) -> dict[str, str]:
        """Write the statements that ``create_views`` runs: plain SQL, by the views' names.

        Args:
            prefix: As in ``create_views``.
            as_of: As in ``create_views``.
        """
        self._client.open()
        return views.of_store(self._client, self.history, prefix, as_of)

    # ------------------------------------------------------------------------- helpers

    def _outcome_in_memory(self, transaction_id: str) -> Outcome:
        """Say what became of a transaction that had no durable work, as long as it is known."""
        state = self._client.transient.key_states([transaction_id])[transaction_id]
        attempts, entry = len(state.decisions), state.committed
        if entry is not None:
            receipt = Receipt.in_memory(transaction_id, entry.begun or 0, entry.recorded_at_ms)
            return Outcome(transaction_id, Status.COMMITTED, receipt, None, attempts)
        if state.decisions:
            last = list(state.decisions.values())[-1]
            return Outcome(transaction_id, Status.ROLLED_BACK, None, last.reason, attempts)
        return Outcome(transaction_id, Status.UNKNOWN)

    def _append_outcome(self, known_as: str) -> Outcome:
        append_id, _, shard = known_as.removeprefix("append:").partition("@")
        mine = recalling.of_append(self._client.store, append_id, shard)
        if not mine:
            return Outcome(known_as, Status.UNKNOWN)
        return Outcome(known_as, Status.COMMITTED, Receipt.of(mine[0]), None, 1)


def _conf_of(spark: SparkSession | None) -> Callable[[str], str | None]:
    """Look up Spark's configuration key by key: to read it whole takes longer."""
    return lambda key: None if spark is None else spark.conf.get(key, None)
