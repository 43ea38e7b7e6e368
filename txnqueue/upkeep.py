"""A queue as it is kept in order: purged, moved, redriven, altered, dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnqueue import acquiring, moving, removing
from txnqueue.altering import alter
from txnqueue.client import Client
from txnqueue.config import (
    QueueInfo,
    check_text,
)
from txnqueue.dead_letters import DeadLetters
from txnqueue.dropping import DropResult, drop
from txnqueue.payload.schemas import check_schema, schema_from
from txnqueue.scope import NOT_GIVEN, NotGiven, at_once, resolve
from txnqueue.selecting import Selector
from txnqueue.transaction import Transaction
from txnqueue.types import ChangeableSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from txnqueue.queue import Queue


class Upkeep:
    """What is done with a queue but sending and receiving."""

    def __init__(
        self, client: Client, info: QueueInfo, transaction: Transaction | None = None
    ) -> None:
        """Hold a queue; users get it from ``manager.queue`` or ``tx.queue``."""
        self._client = client
        self._opened = info
        self._transaction = transaction

    @property
    def _bound(self) -> Transaction | None:
        """What its calls work in, unless they say otherwise."""
        return self._transaction

    @property
    def _info(self) -> QueueInfo:
        """The queue as it was read last, by whatever call."""
        return self._client.newest(self._opened)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._opened.name

    @property
    def info(self) -> QueueInfo:
        """What the catalog says of the queue."""
        return self._info

    @property
    def schema(self) -> StructType:
        """The payload's columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(dict(self._info.schema))

    def __repr__(self) -> str:
        """Show the name and the store."""
        return f"<Queue {self.name} of {self._client.store.root}>"

    def purge(self, where: str | None = None, *, reason: str | None = None) -> int:
        """Throw messages away, for good and on record.

        What is in flight stays with who holds it: accepted, rejected or moved, it ends so;
        if it is released, rolled back or its lease ends, it goes instead of coming back.

        Args:
            where: Only messages that fulfil this SQL predicate over the columns of ``df``.
            reason: Why; it stands in the history.

        Returns:
            How many are gone at once.
        """
        return self._purge(None, where, reason)

    def move(
        self,
        to: str | Queue,
        where: str | None = None,
        *,
        matching: DataFrame | None = None,
        on: str | Sequence[str] | None = None,
        limit: int | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Move waiting messages to another queue of the same columns; nothing is copied.

        They get new places there by that queue's rules, and keep priority, delay and time to
        live; what is in flight stays. Inside a transaction they are acquired now, and stand
        in the other queue from its commit on; a roll back puts them back as they were.

        Args:
            to: The other queue, or its name.
            where: Only messages that fulfil this SQL predicate over the columns of ``df``.
            matching: Instead, only messages that have a match in this DataFrame.
            on: The columns that match.
            limit: At most so many, the first ones of each lane in turn; all when left out.
            transaction: The transaction that moves them; None moves at once.

        Returns:
            How many were moved.

        Raises:
            QueueNotFound: There is no such queue.
            SchemaMismatch: It has other columns.

        Example::

            with manager.transaction() as tx:
                orders.move("orders-of-vips", "customer = 'c7'", transaction=tx)
                audit.send([{"what": "moved c7"}], transaction=tx)
        """
        tx = self._resolve(transaction, f"{self.name}.move")
        target = moving.target_of(self._client, to)

        def route_of(part: QueueInfo) -> moving.Route:
            there = target.in_memory() if part.transient else target
            return moving.to_queue(self._client.of(part), part, there, self.schema)

        selector = self._selector(where, matching, on)
        return acquiring.move(
            self._client, self._info, self.schema, tx, route_of, "moved", selector, limit
        )

    def dead_letters(self) -> DeadLetters:
        """Count this queue's dead letters by the reason why they are dead.

        Returns:
            What came into the dead-letter queue from here; of a dead-letter queue itself, all
            that came into it. ``redrive(where=…)`` on that queue sends some of them back.

        Example::

            orders.dead_letters().df().show()
            manager.queue("orders.dead").redrive("_message.origin.reason = 'deliveries_max'")
        """
        return DeadLetters(self._client, self._info)

    def redrive(
        self,
        where: str | None = None,
        *,
        limit: int | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Send dead letters back to the queues and lanes that they came from.

        Their deliveries are counted from 0 again. Messages that were sent here stay.

        Args:
            where: Only messages that fulfil this SQL predicate over the columns of ``df``,
                such as ``"_message.origin.reason = 'deliveries_max'"``.
            limit: At most so many; all when left out.
            transaction: As in ``move``.

        Returns:
            How many went back.

        Raises:
            QueueNotFound: A queue that they came from is gone.
        """
        tx = self._resolve(transaction, f"{self.name}.redrive")

        def route_of(part: QueueInfo) -> moving.Route:
            return moving.to_origin(self._client.of(part))

        return acquiring.move(
            self._client,
            self._info,
            self.schema,
            tx,
            route_of,
            "redriven",
            self._selector(where),
            limit,
            moving.came_from_elsewhere,
        )

    def alter(
        self, add: str | StructType | None = None, **settings: Unpack[ChangeableSettings]
    ) -> dict[str, tuple[object, object]]:
        """Add columns to the queue, or change settings, while others work on it.

        Messages that are there, and sends that were staged before, have null in new columns.
        The dead-letter queue gets the columns too. Repeating it changes nothing.

        Args:
            add: Nullable columns, as DDL or ``StructType``.
            **settings: New values of ``lease_seconds``, ``deliveries_max``,
                ``redelivery_delay_seconds``, ``redelivery_delay_seconds_max``,
                ``dead_letter_expired`` or ``delay_step_seconds``, as ``create_queue`` takes
                them; the others are fixed. What waits already for its redelivery goes by the
                new values.

        Returns:
            What changed: by name, the former and the new value.

        Raises:
            SchemaMismatch: A column cannot be null, or is there with another type.
            InvalidInput: A setting is fixed, or its value cannot be used.
            QueueInUse: Columns of a dead-letter queue follow those of the queue that uses it.
            QueueClosed: The queue is being dropped.
            TransactionNotGiven: Inside a transaction block.
        """
        at_once(self._client, f"{self.name}.alter")
        columns = None if add is None else schema_from(self._client.store.spark, add)
        if columns is not None:
            check_schema(columns, None)
        return alter(self._client, self._info, columns, settings)

    def drop(self, *, reason: str | None = None) -> DropResult:
        """Drop the queue with everything in it; repeating it goes on.

        From the first step on it takes no work: a commit of an open transaction that sent to
        it or received from it is aborted. A prepared transaction holds the second step back
        until it is decided; then drop again, or ``manager.recover()``. Its history stays, and
        so does its dead-letter queue, which can be dropped after it.

        Args:
            reason: Why; it stands in the history.

        Returns:
            Whether it is gone, and what holds it back if not.

        Raises:
            QueueInUse: It takes the dead letters of another queue.
            TransactionNotGiven: Inside a transaction block.
        """
        at_once(self._client, f"{self.name}.drop")
        check_text("reason", reason)
        return drop(self._client, self._info, reason)

    # -------------------------------------------------------------------------- helpers

    def _resolve(self, transaction: Transaction | NotGiven | None, what: str) -> Transaction | None:
        self._client.open()
        return resolve(self._client, transaction, what, self._bound)

    def _purge(self, gone: removing.Gone | None, where: str | None, reason: str | None) -> int:
        """Throw messages away, and tell somebody which are gone at once."""
        self._client.open()
        at_once(self._client, f"{self.name}.purge")
        check_text("reason", reason)
        selector = self._selector(where)
        return sum(
            removing.purge(self._client.of(part), part, selector, reason, gone)
            for part in self._client.parts_of(self._info)
        )

    def _selector(
        self,
        where: str | None,
        matching: DataFrame | None = None,
        on: str | Sequence[str] | None = None,
    ) -> Selector | None:
        if where is None and matching is None and on is None:
            return None
        return Selector(self._client, self.name, self.schema, where, matching, on)
