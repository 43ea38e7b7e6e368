"""The queue manager: what a store can do, in one object."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from txnqueue import views
from txnqueue.applying import Applier
from txnqueue.client import Client
from txnqueue.config import RetryPolicy, check_reason
from txnqueue.configuring import Configuration
from txnqueue.errors import PlatformMissing
from txnqueue.exchange import open_exchange
from txnqueue.exchanges import Exchanges
from txnqueue.history import History
from txnqueue.maintenance import Maintenance, Vacuum, maintain
from txnqueue.metrics import Metrics
from txnqueue.queue import Queue
from txnqueue.queues import Queues
from txnqueue.retention import Retention
from txnqueue.runtime import Runtime
from txnqueue.store import DeltaStore, Store
from txnqueue.transaction import Transaction
from txnqueue.transactions import Transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueueManager(Queues, Transactions, Exchanges):
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
            store, chosen, Queue, lambda client: Transaction(client, None), open_exchange
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

    def close(self) -> None:
        """Let go of the library's own sessions and threads; nothing of the store is changed.

        What is under way ends before. Leases stay until they are over; an undecided transaction
        is aborted by whoever wants its messages. Classic Spark needs no call of it; on Spark
        Connect each session of a manager's is kept by the server until then.

        Example::

            with QueueManager(spark, "/lake/messaging") as manager:
                manager.queue("orders").send(df)
        """
        self._client.store.close()

    def __enter__(self) -> QueueManager:
        """Give the manager, which is closed when the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Show where the store is."""
        return f"<QueueManager of {self.root}>"

    def maintain(
        self,
        *,
        transaction_seconds_max: float = 86_400.0,
        payload_retention_days: int = 7,
        history_retention_days: int | None = None,
        vacuum: Vacuum = True,
        dry_run: bool = False,
    ) -> Maintenance:
        """Keep the store small and fast; run it from time to time, beside everything else.

        Lanes are compacted; what is finished moves from the journal to the archive, where the
        history finds it; payload that nobody needs is dropped; files are made few.

        Args:
            transaction_seconds_max: For so long a transaction may stay undecided: what began
                earlier may be refused when it commits, unless it is prepared or still holds
                messages. It is refused once anything could be archived by that.
            payload_retention_days: For so many days the payload of consumed messages is kept
                after their entries have left the journal.
            history_retention_days: Keep the history for at least this many days, and not fewer
                than the payload. Older entries are deleted, except decisions of transactions, and
                entries of messages still in a queue and of later messages of that queue. None:
                all is kept.
            vacuum: Whether files are deleted that Delta has kept for older versions, where
                their retention allows it. ``"full"`` lists the folders of all tables and also
                finds what appends left behind that lost a race or crashed: it takes longer, and
                once a month is enough.
            dry_run: Only tell what would be done.

        Returns:
            What was done, and what could not be done this time.

        Raises:
            InvalidInput: A value cannot be used.
        """
        self._client.open()
        retention = Retention(
            transaction_seconds_max, payload_retention_days, history_retention_days
        )
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


def _conf_of(spark: SparkSession | None) -> Callable[[str], str | None]:
    """Look up Spark's configuration key by key: to read it whole takes longer."""
    return lambda key: None if spark is None else spark.conf.get(key, None)
