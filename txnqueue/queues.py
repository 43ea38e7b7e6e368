"""The queues of a store: made, opened, altered as declared, dropped, listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue import creation, declaring
from txnqueue.client import Client
from txnqueue.config import check_known_as, check_name, check_reason
from txnqueue.configuring import Configuration
from txnqueue.declaring import Step
from txnqueue.dropping import DropResult
from txnqueue.errors import SchemaMismatch
from txnqueue.payload.schemas import check_schema
from txnqueue.queue import Queue
from txnqueue.recovery import release_leases
from txnqueue.scope import at_once
from txnqueue.types import Tabular

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Queues:
    """What a manager does about queues."""

    _client: Client
    _configuration: Configuration

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
            redelivery_delay_seconds: What comes back from a failed delivery can be received
                again after so many seconds, and twice as many after each further one; 0: at
                once.
            redelivery_delay_seconds_max: It never waits longer than this; an hour when left
                out.
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
            TransactionNotGiven: Inside a transaction block.
        """
        check_name(name)
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

    def release(self, queue: str, *, consumer: str, reason: str) -> int:
        """End all leases of a consumer as an operator: its messages are available again.

        For a consumer that is gone for good, or whose clock is wrong, so that nobody wants to wait
        for its leases. If it is alive after all, it is told by ``LeaseLost``. What a transaction
        holds ends by ``rollback``.

        Args:
            queue: The queue's name.
            consumer: Who holds the leases.
            reason: Why; it stands in the history.

        Returns:
            How many messages came back.

        Raises:
            QueueNotFound: There is no such queue.
            InvalidInput: The consumer holds no lease there; the message names those who do.
        """
        check_reason(reason)
        check_known_as(consumer, "consumer")
        return release_leases(self._client, self.queue(queue).info, consumer, reason)

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
