"""The queue manager: the object through which a program uses a store."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.admin import creation
from txnqueue.admin.declarations import DeclarationResult, carry_out, plan, read
from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult, drop_named
from txnqueue.admin.erasure import EraseResult, erase
from txnqueue.admin.exchange_creation import Asked, create_exchange
from txnqueue.admin.maintenance import MaintenanceResult, maintain
from txnqueue.admin.reclamation import Vacuum
from txnqueue.admin.recovery import (
    BRANCH_SECONDS_MIN,
    RecoveryResult,
    recover,
    release_leases,
    roll_back,
)
from txnqueue.admin.retention import Retention
from txnqueue.attempts import attempts, run
from txnqueue.client.client import Client
from txnqueue.client.runtime import Runtime
from txnqueue.core import exchanges, markup
from txnqueue.core.configuration import Configuration
from txnqueue.core.handlers import check_function
from txnqueue.core.receipt import Receipt
from txnqueue.core.settings import (
    RetryPolicy,
    check_flag,
    check_id,
    check_name,
    check_predicate,
    check_reason,
    check_retry,
    check_root,
    check_text,
    shown,
)
from txnqueue.drain import Handler
from txnqueue.errors import ExchangeNotFound, InvalidInput, PlatformMissing
from txnqueue.exchange import Exchange, open_exchange
from txnqueue.queue import Queue
from txnqueue.rehearsal import Rehearsal, rehearse
from txnqueue.reports import views
from txnqueue.reports.history import History
from txnqueue.reports.metrics import Metrics, queues_shown
from txnqueue.results import Outcome
from txnqueue.sink import Sink, SinkHandler
from txnqueue.storage.payload.schemas import check_schema
from txnqueue.storage.store import DeltaStore, Store
from txnqueue.transaction import Transaction, at_once
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.outcome import outcome_of
from txnqueue.transactions.prepared import decide_prepared, forget
from txnqueue.transactions.table_applier import Applier
from txnqueue.types import Database, ExchangeKind, Tabular, TwoPhaseDatabase, Unwanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class QueueManager:
    """A client of one store, which any number of managers, threads and drivers may share.

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
        root: str | os.PathLike[str] | None = None,
        *,
        actor: str | None = None,
        run_id: str | None = None,
        consumer: str | None = None,
        retry: RetryPolicy | None = None,
        store: Store | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Configure access to a store; the first call opens it, and ``create_queue`` creates it.

        Args:
            spark: The session of all DataFrames; the library's own statements run on a tuned one.
            root: The store's address: a path if it has a "/", otherwise a catalog schema, in the
                session's current catalog unless it names one (``catalog.schema``). Root, actor,
                run_id, consumer and retry can also be set in Spark's configuration
                (``spark.txnqueue.root``, ``spark.txnqueue.retry.attempts_max``) or in the
                environment (``TXNQUEUE_ROOT``).
            actor: The name recorded in every entry; the current user when omitted.
            run_id: The job run that the work belongs to.
            consumer: The consumer id, which holds leases. A new process with the same id takes
                over the leases of the earlier one at once; the earlier one is fenced when it finds
                that the new one holds messages.
            retry: How appends that meet a conflict are retried.
            store: A store to use instead of the one at ``root``.
            runtime: The clock and the source of ids, for tests.

        Raises:
            PlatformMissing: ``store`` is omitted, and the session or the root is missing.
            InvalidInput: An argument or a configured value is invalid.
        """
        configured = self._configuration = Configuration(_conf_of(spark), os.environ)
        given_retry = None if retry is None else check_retry(retry)
        chosen = Runtime(retry=given_retry or configured.retry()) if runtime is None else runtime
        if not isinstance(chosen, Runtime):
            raise InvalidInput(
                f"runtime={shown(runtime)}: give a Runtime, or omit it.", name="runtime"
            )
        if store is not None and getattr(store, "journal", None) is None:
            raise InvalidInput(
                f"store={shown(store)}: give a store, such as txnqueue.testing.MemoryStore(), or "
                "omit it.",
                name="store",
            )
        given = None if root is None else check_root(root)
        chosen.actor = _text(configured, "actor", actor) or chosen.actor
        chosen.run_id = _text(configured, "run_id", run_id) or chosen.run_id
        chosen.consumer = _text(configured, "consumer", consumer) or chosen.consumer
        chosen.retry = given_retry or chosen.retry
        if store is None:
            where = configured.value("root", given).value
            if spark is None or where is None:
                raise PlatformMissing(
                    "QueueManager(spark, root): give a SparkSession and a path or schema."
                )
            store = DeltaStore(
                spark,
                check_root(where),
                monotonic=chosen.monotonic,
                several_drivers=configured.value("storage.several_drivers").value,
            )
        self._client = Client(store, chosen)

    @property
    def root(self) -> str:
        """The store's address: a path or a catalog schema."""
        return self._client.store.root

    @property
    def history(self) -> History:
        """Queries of the past: the state after a commit, traces, changes."""
        return History(self._client)

    def rehearse(
        self,
        handler: Handler,
        queue: str | Queue,
        as_of: int | datetime.datetime | None = None,
        *,
        limit: int = 1_000,
        batch_size: int | None = None,
        where: str | None = None,
        partial: bool = False,
    ) -> Rehearsal:
        """Run a handler on a past state and compare what it would do with what was really done.

        The handler receives what was receivable then, in one batch or batch by batch. Each batch
        has a transaction that sends, settles and changes tables as in ``drain``; all checks are
        made, against the queues as they were and the tables as they are. A batch sees what earlier
        batches sent and settled, but not their table changes. Nothing is written to the store: rows
        stay in this process. Effects of the handler elsewhere are real: files, services, databases,
        tables that it writes itself, and calls with ``transaction=None``. The first batch that
        fails is the last one, where a drain would retry it in smaller pieces.

        Args:
            handler: ``handler(batch, tx)``, as in ``drain``; it sends through ``tx.queue(name)``.
                ``tx.commit``, ``tx.prepare``, ``tx.enlist`` and ``tx.auxiliary`` are refused.
            queue: The queue, or the name that it had.
            as_of: The state to run on: the one after a commit_seq or at an aware instant; now when
                omitted. Payload that was removed since then cannot be read.
            limit: At most this many messages.
            batch_size: At most this many messages in a batch; all in one when omitted.
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``.
            partial: Whether to leave out messages whose payload was removed or erased.

        Returns:
            The comparison, counted and row by row; its ``error`` is what the handler raised.

        Raises:
            QueueNotFound: There was no such queue then.
            HistoryRemoved: The state is older than the beginning of the history.
            InvalidInput: There is no such commit yet, or a value is invalid.

        Example::

            rehearsal = manager.rehearse(pay, "orders", as_of=receipt.commit_seq)
            rehearsal.df().show()
            rehearsal.sent("payments").df().show()
        """
        return rehearse(
            self._client,
            handler,
            queue,
            as_of,
            limit,
            batch_size=batch_size,
            where=where,
            partial=partial,
        )

    def metrics(self) -> Metrics:
        """Measure every queue: messages available, delayed, in flight and dead, and their ages.

        Returns:
            The measurements as rows, a DataFrame, JSON and Prometheus text.
        """
        return Metrics(self._client)

    def close(self) -> None:
        """Close the library's own sessions and threads.

        Streams and AMQP servers are stopped, and statements in progress end first. A call of
        another thread that needs one more raises ``PlatformMissing``, also amid a commit: end
        drains and the calls of other threads before. If the last commit changed tables, one append
        records that they are changed; should it fail, ``maintain`` or ``recover`` make up for it as
        long as the tables' histories show the change. Leases stay until they expire; an undecided
        transaction is aborted by the next client that needs its messages. On Spark Connect the
        server keeps each session of a manager until it is closed; classic Spark needs no ``close``
        for that.

        Example::

            with QueueManager(spark, "/lake/messaging") as manager:
                manager.queue("orders").send(df)
        """
        for stream in list(self._client.streams):
            stream.stop()
        self._client.close()

    def __enter__(self) -> QueueManager:
        """Return the manager, which is closed when the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the manager."""
        self.close()

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show the queues and their counts in a notebook, by what ``metrics()`` reads."""
        return queues_shown(self._client)

    def __repr__(self) -> str:
        """Show the store's root."""
        return f"<QueueManager of {self.root}>"

    def maintain(
        self,
        *,
        transaction_seconds_max: float = 86_400.0,
        payload_retention_days: int = 7,
        history_retention_days: int | None = None,
        vacuum: Vacuum = True,
        dry_run: bool = False,
    ) -> MaintenanceResult:
        """Keep the store small and fast; run it from time to time, beside any other work.

        Overdue branches are aborted. Lanes are compacted; finished entries move from the journal to
        the archive, where the history finds them; payload that is no longer needed is deleted;
        small files are combined.

        Args:
            transaction_seconds_max: How long a transaction may stay undecided. The commit of one
                that began earlier may be refused, unless it is prepared or still holds messages;
                it is refused once that lets anything be archived.
            payload_retention_days: Keep the payload of consumed messages for at least this many
                days after their entries have left the journal. It is deleted together with what was
                sent in the same hundred versions of the journal, or a thousand in older stores.
            history_retention_days: Keep the history for at least this many days, and not fewer
                than the payload. Older entries are deleted, except decisions of transactions and
                what was done to messages that are still in a queue. None keeps everything.
            vacuum: Whether to delete files that Delta has kept for older versions, where
                their retention allows it. ``"full"`` examines every payload table, lists the
                folders of all tables and also finds the files of appends that lost a race or
                crashed: it takes longer, and once a month is enough.
            dry_run: Report what would be done, and change nothing.

        Returns:
            What was done, and what could not be done this time.

        Raises:
            InvalidInput: A value is invalid.
        """
        check_flag("dry_run", dry_run)
        self._client.open()
        retention = Retention(
            transaction_seconds_max, payload_retention_days, history_retention_days
        )
        return maintain(self._client, retention, vacuum=vacuum, dry_run=dry_run)

    def erase(self, queue: str, where: str, reason: str) -> EraseResult:
        """Delete the payload of messages for good, and keep their history.

        Waiting messages are purged first, also in other queues that they were moved or published
        to; while any are in flight the call is refused. The journal records which rows were erased,
        by whom and why, but neither ``where`` nor any value.

        Args:
            queue: The queue that they were sent, published or moved to; dropped queues of that name
                are searched as well.
            where: A SQL predicate over the payload's columns and ``_message.headers``; columns that
                only another queue of that name has are null.
            reason: Why; recorded in the journal for ever, so it should name no person.

        Returns:
            What was erased, and until when Delta keeps the old files.

        Raises:
            QueueNotFound: There never was such a queue.
            NotErasable: Some messages are in flight, or needed to detect duplicates.
            QueueClosed: Some messages wait in a queue that is being dropped.
            LimitExceeded: The messages lie in too many ranges: erase fewer at a time.
            Busy: Others won every retry; the error says what was done. Rows that are recorded as
                erased are deleted by the next ``erase``, ``maintain`` or ``recover``.
            TransactionNotGiven: Inside a transaction block.

        Example::

            manager.erase("orders", "customer_id = 4711", reason="request 2026-118")
        """
        name = check_id(queue, "queue")
        at_once(self._client, "erase")
        return erase(self._client, name, check_predicate(where), check_reason(reason))

    def apply_change(self, change_id: str) -> None:
        """Apply a waiting change to its table as it is now, even if replaced or restored since.

        Args:
            change_id: The change's id in ``recover().waiting``; the oldest of its table.

        Raises:
            ChangeNotFound: No such change waits.
            ChangeWaiting: The change still cannot be applied, or an older one of its table waits.
        """
        change = check_id(change_id, "change_id")
        self._client.open()
        Applier(self._client).apply_to_table_as_it_is(change)
        self._client.confirm()

    def waive_change(self, change_id: str, reason: str, *, table_gone: bool = False) -> None:
        """Abandon a waiting table change for good, on record.

        Args:
            change_id: The change's id in ``recover().waiting``; the oldest of its table.
            reason: Why; recorded in the journal.
            table_gone: Whether the table is gone for good, or is no Delta table any more: then
                it cannot tell that the change was applied already, nor keep others from it.

        Raises:
            ChangeNotFound: No such change waits, or it was already applied.
            ChangeWaiting: An older change of its table waits.
            TableNotFound: The table is not found in this session, and ``table_gone`` is false.
            InvalidInput: It is no Delta table any more, and ``table_gone`` is false.
            Busy: Others changed the table at every try.
        """
        check_flag("table_gone", table_gone)
        reason, change = check_reason(reason), check_id(change_id, "change_id")
        self._client.open()
        Applier(self._client).waive(change, reason, table_gone=table_gone)

    def take_over(self, reason: str) -> bool:
        """Take the store over from another driver that was active recently, on record.

        This is for storage that supports one driver only, such as S3 without the library's log
        store or Delta's for several drivers, and for an operator who knows that the other driver
        has ended. If it runs on, it is refused within a minute. On other storage there is nothing
        to take over.

        Args:
            reason: Why; recorded in the history of the journal's table.

        Returns:
            Whether there was anything to take over.

        Raises:
            SecondDriver: Another driver took the store over at the same time.
        """
        why = check_reason(reason)
        self._client.open()
        return self._client.store.take_over({**self._client.author(), "reason": why})

    def create_views(
        self, prefix: str = "", as_of: int | datetime.datetime | None = None
    ) -> list[str]:
        """Create SQL views: queues, transactions, dispatches, bindings, and one per queue.

        In a catalog schema they are permanent and follow the store. With a path they are temporary
        and show the store at the time of the call; call again to refresh them.

        Args:
            prefix: Goes before each name.
            as_of: The state to show: the one after a commit_seq or at an aware instant; now when
                omitted.

        Returns:
            The views' names.

        Raises:
            PlatformMissing: The store is in memory.
            InvalidName: The prefix cannot begin a name, or a table has one of the names.
            InvalidInput: There is no such commit yet, or the instant has no time zone.
            HistoryRemoved: The state is older than the beginning of the history.
        """
        self._client.open()
        return views.create_views(self._client, prefix, as_of)

    def view_statements(
        self, prefix: str = "", as_of: int | datetime.datetime | None = None
    ) -> dict[str, str]:
        """Return plain SQL statements that create the views, by view name.

        With a path the views are temporary too, but follow the store unless ``as_of`` is given.

        Args:
            prefix: As in ``create_views``.
            as_of: As in ``create_views``.

        Returns:
            One statement per view, by its name.

        Raises:
            PlatformMissing: As in ``create_views``.
            InvalidName: The prefix cannot begin a name, or makes one that is reserved for tables.
            InvalidInput: As in ``create_views``.
            HistoryRemoved: As in ``create_views``.
        """
        self._client.open()
        return views.of_store(self._client, prefix, as_of)

    def create_queue(
        self,
        name: str,
        schema: str | StructType | None = None,
        *,
        like: Tabular | None = None,
        exist_ok: bool = False,
        lanes: int | None = None,
        group_by: str | None = None,
        lease_seconds: float | None = None,
        deliveries_max: int | None = None,
        redelivery_delay_seconds: float | None = None,
        redelivery_delay_seconds_max: float | None = None,
        dead_letter: bool | None = None,
        dead_letter_expired: bool | None = None,
        delay_step_seconds: float | None = None,
        ordered: bool | None = None,
        durable: bool | None = None,
        message_id: str | None = None,
        duplicate_window_seconds: float | None = None,
    ) -> Queue:
        """Create a queue and its dead-letter queue ``<name>.dead``, and the store if needed.

        Omitted settings come from Spark's configuration (``spark.txnqueue.queue.lanes``), then the
        environment (``TXNQUEUE_QUEUE_LANES``), then the defaults of ``QueueSettings``.

        Args:
            name: Letters, digits, '.', '_' or '-'.
            schema: The payload's columns, as DDL or ``StructType``.
            like: A DataFrame, pandas or Arrow table whose schema to use instead.
            exist_ok: Return an existing queue of that name as it is, if its schema is the same, or
                was the same before columns were added.
            lanes: The units of order and of parallel consumption; 1 is one strict FIFO.
            group_by: A column whose equal values stay in order, in one lane.
            lease_seconds: How long received messages are held.
            deliveries_max: After this many failed deliveries, the last of them alone, a message is
                a dead letter.
            redelivery_delay_seconds: How long a message waits after its first failed delivery; the
                wait doubles with each further one. 0: it does not wait.
            redelivery_delay_seconds_max: The longest such wait; an hour when omitted.
            dead_letter: Whether there is a dead-letter queue.
            dead_letter_expired: Whether expired messages go to the dead-letter queue too.
            delay_step_seconds: Delays and times to live that differ by row are rounded up to a
                multiple of this; the coarser, the fewer positions one send makes.
            ordered: While a consumer has messages of a lane in flight, no other consumer gets
                messages of that lane, nor does another transaction of this one, so that they are
                processed in order; the other lanes are free. A consumer that receives again
                under a lease, before it has settled the first batch, gets the next messages.
            durable: Whether messages are kept in the store. Messages of a queue or a send that is
                not durable are kept in the memory of the sending process only: they cost no Delta
                commit, other processes do not see them, and they are lost when the process ends.
            message_id: A column, never null, whose values are the message ids:
                ``_message.message_id`` shows them.
            duplicate_window_seconds: For this long after the first message with an id, in commit
                order, no other message with that id is delivered; up to 7 days.

        Returns:
            The queue.

        Raises:
            QueueExists: The queue exists already.
            QueueClosed: The queue exists and is being dropped.
            InvalidName: The name is invalid.
            SchemaMismatch: The schema is invalid, or differs from that of the existing queue.
            InvalidInput: Settings, given or configured, are invalid or contradict each other; or
                schema and like are given, or neither.
            LimitExceeded: A setting is out of range.
            Busy: Others won every retry; there is no such queue: try again.
            TransactionUnknown: The creation is in doubt; repeated, it says whether it landed.
            TransactionNotGiven: Inside a transaction block.
        """
        name = check_name(name)
        check_flag("exist_ok", exist_ok)
        at_once(self._client, "create_queue")
        settings = self._configuration.queue_settings(
            {
                "lanes": lanes,
                "group_by": group_by,
                "lease_seconds": lease_seconds,
                "deliveries_max": deliveries_max,
                "redelivery_delay_seconds": redelivery_delay_seconds,
                "redelivery_delay_seconds_max": redelivery_delay_seconds_max,
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
        info = creation.ensure_queue(self._client, name, columns, settings, exist_ok=exist_ok)
        return Queue(self._client, info)

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Args:
            name: The queue's name.

        Returns:
            The queue, outside any transaction; ``tx.queue`` opens one that works in ``tx``.

        Raises:
            QueueNotFound: There is no such queue.
            InvalidName: The name is invalid.
            StoreNotFound: There is no store at this root.
        """
        self._client.open()
        return Queue(self._client, self._client.cache.queue(check_name(name)))

    def release(self, queue: str, *, consumer: str, reason: str) -> int:
        """End all leases of a consumer, as an operator: as if they had expired.

        Use it for a consumer that is gone for good, or whose clock is wrong, instead of waiting for
        its leases. The deliveries count: the messages wait for the queue's redelivery delay, and
        become dead letters once their deliveries are used up. If the consumer is still running, its
        next call raises ``LeaseLost``. What a transaction holds is returned by ``rollback``.

        Args:
            queue: The queue's name.
            consumer: The consumer id that holds the leases.
            reason: Why; recorded in the history.

        Returns:
            How many messages returned to the queue.

        Raises:
            QueueNotFound: There is no such queue.
            InvalidInput: The consumer holds no lease there; the message names those that do.
        """
        reason, consumer = check_reason(reason), check_id(consumer, "consumer")
        info = self._client.cache.queue_now(check_name(queue))
        return release_leases(self._client, info, consumer, reason)

    def drop_queue(
        self, name: str, *, reason: str | None = None, missing_ok: bool = False
    ) -> QueueDropResult:
        """Drop the queue that has this name now; calling again goes on, as in ``Queue.drop``.

        Args:
            name: The queue's name.
            reason: Why; recorded in the history.
            missing_ok: No error if there is no such queue.

        Returns:
            Whether the queue is gone, and which prepared transactions hold it back if not.

        Raises:
            QueueNotFound: There is no such queue.
            QueueInUse: Another queue's dead letters go to it.
            TransactionNotGiven: Inside a transaction block.
        """
        name = check_name(name)
        check_flag("missing_ok", missing_ok)
        at_once(self._client, "drop_queue")
        return drop_named(self._client, name, reason, missing_ok=missing_ok)

    def declare(
        self, declarations: Mapping[str, Any], *, dry_run: bool = False, drop: bool = False
    ) -> list[DeclarationResult]:
        """Create and alter queues as declared; repeating it changes nothing.

        Everything is checked before anything is changed. Queues and settings that are not mentioned
        are left alone.

        Args:
            declarations: ``queues``: by name, ``schema`` and settings as in ``create_queue``;
                ``drop``: a list of names.
            dry_run: Report what would be changed, and change nothing.
            drop: Drop the queues that ``drop`` names; otherwise nothing is dropped. A prepared
                transaction can hold a drop back, as in ``drop_queue``: declare again later.

        Returns:
            What was changed, or would be.

        Raises:
            InvalidInput: A key is unknown, or an existing queue differs in a fixed setting.
            SchemaMismatch: An existing queue has a column with another type.
            QueueClosed: A declared queue is being dropped.
            QueueInUse: A queue to drop, or to get columns, takes another queue's dead letters.
            TransactionNotGiven: Inside a transaction block, unless it is a dry run.

        Example::

            manager.declare({"queues": {"orders": {"schema": "order_id long", "lanes": 4}}})
        """
        check_flag("dry_run", dry_run)
        check_flag("drop", drop)
        if not dry_run:
            at_once(self._client, "declare")
        declared = read(self._client, declarations)
        settings_of = self._configuration.declared_settings
        steps = plan(self._client, declared, settings_of, drop=drop)
        if dry_run:
            return steps
        return carry_out(self._client, declared, steps, settings_of)

    def list_queues(self) -> list[str]:
        """List the names of the queues, including dead-letter queues and closing ones.

        Raises:
            StoreNotFound: There is no store at this root.
        """
        return sorted(self._client.cache.queues())

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
            transaction_id: Names the work, so that it happens once however often it is run. If the
                id was committed before, ``tx.already_committed`` is true, and receive and send do
                nothing.
            lease_seconds: How long received messages are held before others may abort this
                transaction; each queue's setting when omitted.
            digest: Distinguishes a repetition from other work under the same id.
            metadata: Stored with the decision, for auditors.

        Returns:
            The transaction. It begins with its block, or with its first call.

        Raises:
            InvalidInput: A value is invalid.
            TransactionIdReused: As it begins: the id was committed with another digest.
        """
        return Transaction(
            Attempt(
                self._client,
                transaction_id,
                lease_seconds=lease_seconds,
                digest=digest,
                metadata=metadata,
            )
        )

    def attempts(
        self,
        retry: RetryPolicy | None = None,
        *,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Iterator[Transaction]:
        """Yield fresh attempts of one transaction until one is committed.

        ``TransactionAborted`` and ``Busy`` raised in an attempt's block are retried, bounded, with
        full jitter; a ``TransactionUnknown`` is resolved first; the handler's own errors propagate.
        ``Rollback`` ends the attempts. If the id was committed before, no attempt is yielded.

        Leave the block at its end. ``return`` or ``break`` in it leaves the loop, too: if the
        commit fails at that moment, nothing can be tried again, and only a warning says so.

        Raises:
            InvalidInput: An attempt was neither entered nor decided; it is rolled back.

        Example::

            for attempt in manager.attempts():
                with attempt as tx:
                    ...
        """
        return attempts(self._client, retry, transaction_id=transaction_id, digest=digest)

    def run_transaction(
        self,
        handler: Callable[[Transaction], object],
        *,
        retry: RetryPolicy | None = None,
        transaction_id: str | None = None,
        digest: str | None = None,
    ) -> Receipt:
        """Run a handler in a transaction and retry after conflicts; it may run more than once.

        Args:
            handler: ``handler(tx)``; ``tx.queue(name)`` returns queues to work on.
            retry: How often and for how long to retry.
            transaction_id: As in ``transaction``; if it was committed before, the handler is not
                run.
            digest: As in ``transaction``.

        Returns:
            The receipt; the first one if the id was committed before.

        Raises:
            TransactionAborted: Conflicts outlasted the retries, or the handler rolled back.
            Busy: Conflicts of a call of the handler, such as a receive, outlasted the retries.
            TransactionUnknown: In doubt; ``manager.outcome(id)`` tells the outcome.
        """
        return run(self._client, handler, retry=retry, transaction_id=transaction_id, digest=digest)

    def sink(self, handler: SinkHandler, *, name: str = "all") -> Callable[[DataFrame, int], None]:
        """Make a ``foreachBatch`` function that runs a handler in one transaction per micro-batch.

        What the handler sends and changes in the transaction happens once for each micro-batch of a
        streaming query, as by ``Queue.sink``, and in all queues and tables or in none.

        Args:
            handler: ``handler(df, tx)``, with the rows of the batch. After a crash it may run
                again, so effects outside the transaction need an idempotency key.
            name: Distinguishes several sinks that one ``foreachBatch`` calls.

        Returns:
            The function; an error that the handler raises fails the streaming query, and so does a
            rollback, with ``TransactionAborted``: the query would go on without these rows. A
            transaction that the handler leaves prepared or in doubt fails it with
            ``TransactionFinished``. To write nothing of a batch, do nothing.

        Raises:
            InvalidInput: The session is a Spark Connect session, or a value is invalid.

        Example::

            def book(df, tx):
                tx.queue("orders").send(df)
                tx.table("gold.sales").append(df)

            stream.writeStream.foreachBatch(manager.sink(book)).option(
                "checkpointLocation", "/lake/checkpoints/sales"
            ).start()
        """
        check_function("handler", handler)
        check_name(name, "sink")
        self._client.open()
        return Sink(self._client, "handler", name, handler)

    def outcome(self, transaction_id: str, attempt: str | None = None) -> Outcome:
        """Look up the outcome of a transaction in the journal.

        Without ``attempt`` the outcome is that of the last attempt that was decided: another
        attempt of the same id that is in doubt may still be committed.

        Args:
            transaction_id: The id, or ``error.transaction_id`` of a ``TransactionUnknown``.
            attempt: ``error.attempt`` of a ``TransactionUnknown``: the outcome is that of this
                attempt, and ``undecided`` as long as it may still land.

        Returns:
            The outcome: its ``status``, and what is known of it. An unknown id is ``undecided``.

        Raises:
            InvalidInput: The id is empty, or ``attempt`` is not one that an error names.
        """
        transaction_id = check_id(transaction_id)
        self._client.open()
        return outcome_of(self._client, transaction_id, attempt)

    def commit(self, transaction_id: str) -> Receipt:
        """Commit a prepared transaction, from any client; repeating is a no-op.

        Args:
            transaction_id: The transaction.

        Returns:
            The receipt; that of the first commit if the call is repeated.

        Raises:
            TransactionNotFound: No decision, preparation or branch is recorded under this id, also
                if a transaction of this id is at work.
            TransactionNotPrepared: It is a branch that is started, and not prepared.
            DecidedByDatabase: An enlisted database decides it.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: The transaction was rolled back.
            NotPermitted: The transaction is a branch restricted to other principals.
        """
        transaction_id = check_id(transaction_id)
        self._client.open()
        receipt = decide_prepared(self._client, transaction_id, commit=True)
        assert receipt is not None
        return receipt

    def rollback(
        self, transaction_id: str, reason: str | None = None, attempt: str | None = None
    ) -> None:
        """Roll back a transaction that is prepared or holds messages, from any client.

        Repeating is a no-op. A client that still works on the transaction is refused when it
        commits; so an operator can end a transaction that hangs without waiting for its leases.
        An attempt that holds no messages leaves no trace until it is decided, and can be named
        only by ``attempt``.

        Args:
            transaction_id: The transaction.
            reason: Why; recorded in the journal.
            attempt: ``error.attempt`` of a ``TransactionUnknown``: ensure that it never lands.

        Raises:
            TransactionNotFound: Nothing is recorded under this id, and no undecided attempt of
                it holds messages: what it sent is never seen.
            TransactionNotPrepared: The transaction is undecided, and not prepared.
            DecidedByDatabase: An enlisted database decides it.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: The transaction was committed, and no other attempt of it held
                messages that could be released.
            TransactionUnknown: Part of it may not be rolled back yet: call again.
            NotPermitted: The transaction is a branch restricted to other principals.
        """
        reason = check_text("reason", reason)
        transaction_id = check_id(transaction_id)
        self._client.open()
        roll_back(self._client, transaction_id, reason, attempt)

    def decide_heuristically(self, transaction_id: str, *, commit: bool, reason: str) -> None:
        """Decide a prepared transaction as an operator, instead of its coordinator.

        Use it when the coordinator is gone for good; other resources may have been decided
        differently. The decision is listed in ``recover().heuristic`` and told by ``outcome``, and
        a DTX coordinator gets it as XA's heuristic outcome, until ``forget``.

        Args:
            transaction_id: The transaction.
            commit: Whether to commit it.
            reason: Why; recorded in the journal.

        Raises:
            TransactionNotFound: As for ``commit``.
            TransactionNotPrepared: It is a branch that is started, and not prepared.
            DecidedByDatabase: An enlisted database decides it.
            HistoryRemoved: Nothing is known of this id, or not any more.
            TransactionFinished: The transaction is already decided.
        """
        check_flag("commit", commit)
        reason = check_reason(reason)
        transaction_id = check_id(transaction_id)
        self._client.open()
        decide_prepared(self._client, transaction_id, commit=commit, reason=reason, heuristic=True)

    def forget(self, transaction_id: str) -> None:
        """Remove an operator's decision from the list of heuristic ones; the outcome stays.

        Args:
            transaction_id: The transaction.

        Raises:
            TransactionNotFound: Nothing is recorded under this id.
            HeuristicNotFound: No operator's decision of this transaction is on record.
            NotPermitted: The transaction is a branch restricted to other principals.
        """
        transaction_id = check_id(transaction_id)
        self._client.open()
        forget(self._client, transaction_id)

    def recover(
        self,
        connections: Mapping[str, Database | TwoPhaseDatabase] | None = None,
        *,
        branch_seconds_min: float = BRANCH_SECONDS_MIN,
    ) -> RecoveryResult:
        """Finish what dead clients left: abort the expired, and carry out what was decided.

        Args:
            connections: DB-API 2.0 connections to databases that took part, by the names under
                which they were enlisted, without work of their own: it would be rolled back.
            branch_seconds_min: How long an undecided branch of a database, and a transaction that
                waits for its last resource's own commit, must be prepared before it is ended;
                0 ends it at once.

        Returns:
            What was aborted and released, what is prepared and waits for a decision, and what
            could not be carried out yet, with what to do.

        Raises:
            InvalidInput: A value is invalid.
            Busy: Others were faster with one of them at every try; what was finished before
                stands: call again.
        """
        self._client.open()
        return recover(self._client, connections, branch_seconds_min)

    def create_exchange(
        self,
        name: str,
        kind: ExchangeKind = exchanges.DIRECT,
        schema: str | StructType | None = None,
        *,
        like: Tabular | None = None,
        unroutable: Unwanted = exchanges.RETURN,
        dead_letter_queue: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> Exchange:
        """Create an exchange, to which queues that have its columns can be bound.

        Args:
            name: Letters, digits, '.', '_' or '-'; a queue may have the same name.
            kind: Which messages a binding wants: ``direct`` those with its routing key, ``topic``
                those whose routing key fits its pattern, ``fanout`` all, ``headers`` those with the
                headers that it asks for.
            schema: The payload's columns, as DDL or ``StructType``.
            like: A DataFrame, pandas or Arrow table whose schema to use instead.
            unroutable: What becomes of unroutable messages: ``return`` hands them back in the
                result of ``publish``, ``dead_letter`` sends them to a queue, ``refuse`` refuses
                everything that is published with them.
            dead_letter_queue: The queue for ``unroutable="dead_letter"``.
            arguments: Shown by ``describe``, without effect: strings, numbers and booleans by name.
            exist_ok: Return an existing exchange of that name as it is, if all the above is the
                same; its columns may be those that it had before some were added.

        Returns:
            The exchange.

        Raises:
            ExchangeExists: The exchange exists already, or with ``exist_ok`` a different one does.
            ExchangeClosed: The exchange exists and is being dropped.
            InvalidName: The name is invalid.
            SchemaMismatch: The schema is invalid, or differs from that of the existing exchange
                or of the dead-letter queue.
            QueueNotFound: There is no such dead-letter queue.
            PayloadRemoved: The call took so long that a maintenance removed its empty table.
            TransactionNotGiven: Inside a transaction block.
        """
        name = check_name(name, "exchange")
        check_flag("exist_ok", exist_ok)
        at_once(self._client, "create_exchange")
        asked = Asked(
            name,
            kind,
            creation.read_schema(self._client, schema, like),
            unroutable,
            dead_letter_queue,
            {} if arguments is None else arguments,
        )
        return Exchange(self._client, create_exchange(self._client, asked, exist_ok=exist_ok))

    def exchange(self, name: str = exchanges.DEFAULT_EXCHANGE) -> Exchange:
        """Open an exchange; without a name the default one, to which every queue is bound.

        Args:
            name: The exchange's name.

        Returns:
            The exchange, outside any transaction; ``tx.exchange`` opens one that works in ``tx``.

        Raises:
            ExchangeNotFound: There is no such exchange.
            InvalidName: The name is invalid.
            StoreNotFound: There is no store at this root.
        """
        return open_exchange(self._client, exchanges.check_exchange_name(name))

    def drop_exchange(
        self, name: str, *, reason: str | None = None, missing_ok: bool = False
    ) -> ExchangeDropResult:
        """Drop an exchange and its bindings; calling again goes on, as in ``Exchange.drop``.

        Args:
            name: The exchange's name.
            reason: Why; recorded in the history.
            missing_ok: No error if there is no such exchange.

        Returns:
            Whether the exchange is gone, and which prepared transactions hold it back if not.

        Raises:
            ExchangeNotFound: There is no such exchange.
            TransactionNotGiven: Inside a transaction block.
        """
        name = check_name(name, "exchange")
        check_flag("missing_ok", missing_ok)
        at_once(self._client, "drop_exchange")
        try:
            exchange = open_exchange(self._client, name)
        except ExchangeNotFound:
            if not missing_ok:
                raise
            return ExchangeDropResult(name, dropped=True, existed=False)
        return exchange.drop(reason=reason)

    def list_exchanges(self) -> list[str]:
        """List the names of the exchanges, including closing ones.

        The default exchange has no name and is not listed.

        Raises:
            StoreNotFound: There is no store at this root.
        """
        return sorted(filter(None, self._client.cache.topology().exchanges))


def client_of(manager: object) -> Client:
    """Return the client behind a manager; for the library's own packages.

    Raises:
        InvalidInput: The value is not a manager.
    """
    if not isinstance(manager, QueueManager):
        raise InvalidInput(
            f"manager={shown(manager)}: give a QueueManager, such as QueueManager(spark, root).",
            name="manager",
        )
    return manager._client


def _conf_of(spark: SparkSession | None) -> Callable[[str], str | None]:
    """Look up Spark's configuration key by key: reading it whole takes longer.

    Raises:
        InvalidInput: The value is not a session.
    """
    if spark is None:
        return lambda _key: None
    get = getattr(getattr(spark, "conf", None), "get", None)
    if get is None:  # such as of a root that was given alone
        raise InvalidInput(
            f"spark={shown(spark)}: give a SparkSession as the first argument, and then the root.",
            name="spark",
        )
    return lambda key: get(key, None)


def _text(configured: Configuration, key: str, given: object) -> str | None:
    """Find a setting that is recorded in entries.

    Raises:
        InvalidInput: It is blank or no text; a blank one would mean what an omitted one means.
    """
    text = check_text(key, configured.value(key, given).value)
    if text is not None and not text.strip():
        raise InvalidInput(
            f"{key}={shown(text)}: give text that is not empty, or omit it.", name=key
        )
    return text
