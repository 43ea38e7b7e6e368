"""The exchange as an object of the API: binding queues and publishing."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue.admin import binding, exchange_alteration
from txnqueue.admin.drop import ExchangeDropResult, drop_exchange
from txnqueue.client.client import Client
from txnqueue.core import exchanges
from txnqueue.core.exchanges import Binding, ExchangeInfo
from txnqueue.core.settings import QueueInfo, QueueSettings, check_flag, check_name, check_text
from txnqueue.errors import InvalidInput, Unroutable
from txnqueue.messages.placement import SendOptions
from txnqueue.messages.publish import PublishResult, Returned, published
from txnqueue.queue import Queue, send_with
from txnqueue.reports.exchanges import bindings_of, described, found
from txnqueue.reports.report import Report
from txnqueue.reports.snapshot import schema_of
from txnqueue.sink import Sink, check_possible
from txnqueue.storage.payload.frames import check_not_streaming
from txnqueue.storage.payload.schemas import check_schema, schema_from
from txnqueue.transaction import Transaction, at_once, resolve
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import commit_alone
from txnqueue.types import NOT_GIVEN, BindingRow, ExchangeDescription, NotGiven, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Exchange:
    """Where producers publish without knowing the queues; bindings decide which queues get what.

    Example::

        events = manager.create_exchange("events", "topic", "region string, amount double")
        events.bind("european", routing_key="eu.#")
        events.publish(df, routing_key_column="region")
    """

    def __init__(self, client: Client, info: ExchangeInfo, attempt: Attempt | None = None) -> None:
        """Hold an exchange; users get it from ``manager.exchange`` or ``tx.exchange``."""
        self._client = client
        self._info = info
        self._attempt = attempt

    @property
    def _bound(self) -> Attempt | None:
        """The transaction that calls work in unless they name another."""
        return self._attempt

    @property
    def name(self) -> str:
        """The exchange's name; empty for the default exchange."""
        return self._info.name

    @property
    def info(self) -> ExchangeInfo:
        """The catalog's description of the exchange."""
        return self._info

    @property
    def schema(self) -> StructType:
        """The payload's columns; none for the default exchange."""
        from pyspark.sql.types import StructType

        return schema_of(self._info) if self._info.schema else StructType([])

    def __repr__(self) -> str:
        """Show the name, the kind and the store."""
        return f"<Exchange {self.name!r} ({self._info.kind}) of {self._client.store.root}>"

    def describe(self) -> ExchangeDescription:
        """Describe the exchange.

        Returns:
            name, type, arguments, unroutable, dead_letter (a queue's name or None),
            columns (by name), bindings (their number) and closing (whether it is being dropped).

        Raises:
            ExchangeNotFound: The exchange was dropped.
        """
        topology = self._client.cache.topology()
        self._info = topology.known(self._info)
        return described(topology, self._info)

    def alter(self, add: str | StructType) -> dict[str, tuple[object, object]]:
        """Add columns to the exchange, while others publish to it.

        The queues that it posts to need the columns first: ``Queue.alter`` adds them. Messages
        published before have null in them. Repeating the call changes nothing.

        Args:
            add: Nullable columns, as DDL or ``StructType``.

        Returns:
            What changed: by ``column <name>``, None and the column's type.

        Raises:
            SchemaMismatch: A column is not nullable, exists with another type, or is missing in a
                queue that the exchange posts to; ``queues`` names all such queues.
            ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
            TransactionNotGiven: Inside a transaction.
        """
        self._not_default("The default exchange has no columns")
        at_once(self._client, f"{self.name}.alter", self._bound)
        columns = check_schema(schema_from(self._client.store.spark, add, "add"), None)
        return exchange_alteration.alter(self._client, self._info, columns)

    def drop(self, *, reason: str | None = None) -> ExchangeDropResult:
        """Drop the exchange and its bindings; calling again goes on where the drop stopped.

        From the first step on the exchange takes no messages, and an open transaction that
        published to it is aborted when it commits. A prepared transaction that published to it
        holds the second step back until it is decided; then drop again, or call
        ``manager.recover()``. Published messages stay in their queues.

        Args:
            reason: Why; recorded in the history.

        Returns:
            Whether the exchange is gone, and what holds it back if not.

        Raises:
            TransactionNotGiven: Inside a transaction.
        """
        self._not_default("The default exchange cannot be dropped")
        at_once(self._client, f"{self.name}.drop", self._bound)
        reason = check_text("reason", reason)
        return drop_exchange(self._client, self._info, reason)

    # ------------------------------------------------------------------------- bindings

    def bind(
        self,
        queue: str | Queue,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Bind a queue, so that it gets messages that are published from now on.

        A binding takes effect at once, whatever transaction is open; repeating it changes nothing.
        A message goes to a queue once, however many of the queue's bindings match it.

        Args:
            queue: The queue, or its name. It must have the exchange's columns.
            routing_key: For a direct exchange, the key that messages must have; for a topic
                exchange, a pattern of words between dots, with "*" for one word and "#" for any
                number. Other kinds ignore it.
            arguments: For a headers exchange, the headers that messages must have, by name; with
                None any value will do. ``"x-match": "any"`` requires one of them, "all" (the
                default) every one.

        Returns:
            Whether this binding is new.

        Raises:
            QueueNotFound: There is no such queue.
            SchemaMismatch: The queue's columns do not fit the exchange's.
            LimitExceeded: The exchange would have too many bindings or bound queues.
            ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
        """
        self._not_default("Every queue is bound to the default exchange, by its name and no other")
        info = self._queue(queue)
        wanted = self._binding(info, routing_key, arguments)
        return binding.bind(self._client, self._info, info, wanted)

    def unbind(
        self,
        queue: str | Queue,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> bool:
        """Remove a binding: messages that are published from now on do not use it.

        Args:
            queue: As it was bound.
            routing_key: As it was bound.
            arguments: As it was bound.

        Returns:
            Whether there was such a binding.

        Raises:
            QueueNotFound: There is no such queue.
            ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
        """
        self._not_default("No queue can be unbound from the default exchange")
        info = self._queue(queue)
        wanted = self._binding(info, routing_key, arguments)
        return binding.unbind(self._client, self._info, info, wanted)

    def bindings(self, *, history: bool = False) -> Report[BindingRow]:
        """Report the current bindings, in the order in which they were made.

        Args:
            history: Report every binding and unbinding instead.

        Returns:
            Columns kind (bound, unbound), exchange, queue, routing_key string, arguments map
            of strings, reason, actor, run_id string, recorded_at timestamp, commit_seq long.
        """
        return bindings_of(self._client, self._info.exchange_id, history=history)

    # ----------------------------------------------------------------------- publishing

    def publish(
        self,
        rows: Rows,
        *,
        routing_key: str = "",
        routing_key_column: str | None = None,
        keep_order: bool | None = None,
        order_by: str | list[str] | None = None,
        priority: int | str | None = None,
        available_at: datetime.datetime | str | None = None,
        delay_seconds: float | str | None = None,
        ttl_seconds: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        header_columns: Mapping[str, str] | None = None,
        durable: bool | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> PublishResult:
        """Publish messages, one per row, to every queue whose bindings match them.

        The bindings are read once, now: later changes of bindings do not affect these messages. The
        payload is written once, however many queues get it.

        Args:
            rows: As in ``Queue.send``, with the exchange's columns.
            routing_key: The routing key of all these messages.
            routing_key_column: Instead, the column of the rows that holds it, which need not be
                one of the exchange's; null is the empty key.
            keep_order: Whether every lane gets its messages in the order of the rows; when omitted,
                yes, unless the rows are a DataFrame without ``order_by``. Without it only messages
                that go to the same queues keep their order relative to each other, and a publish
                may be of any size.
            order_by: As in ``Queue.send``.
            priority: As in ``Queue.send``.
            available_at: As in ``Queue.send``.
            delay_seconds: As in ``Queue.send``, rounded up to whole seconds if it is a column.
            ttl_seconds: As in ``Queue.send``, rounded up to whole seconds if it is a column.
            headers: As in ``Queue.send``. The routing key, if there is one, is added as
                ``routing_key``.
            header_columns: As in ``Queue.send``.
            durable: Whether the messages are kept in the store; they are when omitted, whatever the
                queues' own setting, which counts for the default exchange only. Messages that are
                not durable are kept in the memory of this process, as in ``Queue.send``.
            transaction: The transaction that publishes them; None commits at once.

        Returns:
            The number of messages, in total and by queue, and the unroutable ones.

        Raises:
            Unroutable: Some messages match no binding, and the exchange refuses that; nothing was
                staged.
            QueueNotFound: The default exchange has no queue of that name.
            SchemaMismatch: As in ``Queue.send``.
            LimitExceeded: The messages lie in too many places.
            ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
            TransactionAborted: Conflicts outlasted the retries of the call's own transaction;
                nothing was published.
            TransactionUnknown: The call's own commit is in doubt; ``manager.outcome(id)`` tells the
                outcome.
            TransactionNotGiven: Inside a block, ``transaction=`` was left out.
            TransactionFinished: The given transaction takes no more work.
            TransactionMismatch: The given transaction belongs to another manager.
        """
        check_not_streaming(rows, f"{self.name}.publish", "exchange.sink()")
        _check_keep_order(keep_order)
        key, column = exchanges.check_keys(routing_key, routing_key_column)
        options = SendOptions(
            order_by=order_by,
            priority=priority,
            available_at=available_at,
            delay_seconds=delay_seconds,
            ttl_seconds=ttl_seconds,
            headers=headers,
            header_columns=header_columns,
            durable=durable,
        )
        if self.name == exchanges.DEFAULT_EXCHANGE:
            return self._send_to(self._named(key, column), rows, options, transaction)
        inside = self._resolve(transaction)
        tx = inside or Attempt(self._client)
        tx.check_active()
        if tx.already_committed:
            nothing = Returned((self._client, self.schema))
            return PublishResult(0, {}, 0, "", tx.id, tx.receipt, nothing)
        found = self._client.cache.topology()
        info = self._info = found.newest(self._info)
        result = published(
            self._client,
            tx,
            found,
            rows,
            options,
            info=info,
            schema=schema_of(info),  # fixed here: other threads may learn of columns meanwhile
            key=key,
            key_column=column,
            keep_order=keep_order,
        )
        if inside is None and result.queues:
            return replace(result, receipt=commit_alone(tx))
        return result

    def sink(
        self,
        *,
        name: str | None = None,
        routing_key: str = "",
        routing_key_column: str | None = None,
        keep_order: bool | None = None,
        order_by: str | list[str] | None = None,
        priority: int | str | None = None,
        available_at: datetime.datetime | str | None = None,
        delay_seconds: float | str | None = None,
        ttl_seconds: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        header_columns: Mapping[str, str] | None = None,
    ) -> Callable[[DataFrame, int], None]:
        """Make a ``foreachBatch`` function that publishes each micro-batch of a stream once.

        It works as ``Queue.sink`` does. No caller takes returned messages: a batch with unroutable
        messages fails the query, unless the exchange sends them to its dead-letter queue.

        Args:
            name: Distinguishes several sinks for this exchange that one ``foreachBatch`` calls.
            routing_key: As in ``publish``.
            routing_key_column: As in ``publish``.
            keep_order: As in ``publish``.
            order_by: As in ``publish``.
            priority: As in ``publish``.
            available_at: As in ``publish``.
            delay_seconds: As in ``publish``, from when the batch is published.
            ttl_seconds: As in ``publish``.
            headers: As in ``publish``.
            header_columns: As in ``publish``.

        Returns:
            The function; an error that ``publish`` raises fails the streaming query.

        Raises:
            InvalidInput: The session is a Spark Connect session, or a value is invalid.
            QueueNotFound: The default exchange has no queue of that name.
        """
        key, column = exchanges.check_keys(routing_key, routing_key_column)
        _check_keep_order(keep_order)
        placed: dict[str, Any] = {
            "order_by": order_by,
            "priority": priority,
            "available_at": available_at,
            "delay_seconds": delay_seconds,
            "ttl_seconds": ttl_seconds,
            "headers": headers,
            "header_columns": header_columns,
        }
        self._client.open()
        options = SendOptions(**placed)
        placed = {option: getattr(options, option) for option in placed}  # copies, not the caller's

        def write(rows: DataFrame, tx: Transaction) -> None:
            published = self.publish(
                rows,
                routing_key=routing_key,
                routing_key_column=routing_key_column,
                keep_order=keep_order,
                transaction=tx,
                **placed,
            )
            if published.unroutable and self._info.unroutable == exchanges.RETURN:
                raise Unroutable(
                    f"No binding matches {published.unroutable} messages of the batch, and a "
                    "stream cannot take them back: bind a queue for them, or create the exchange "
                    "with unroutable='dead_letter'. Nothing of the batch was published.",
                    name=self.name,
                )

        check_possible(self._client, self._bound)
        target = self._info.exchange_id
        if self.name == exchanges.DEFAULT_EXCHANGE:
            queue = self._named(key, column)
            target = queue.info.queue_id
            options.check(queue.schema, queue.info.settings, queue.name)
        else:
            options.check(schema_of(self._info), QueueSettings(), self.name)
        return Sink(self._client, target, name, write, inside=self._bound)

    # -------------------------------------------------------------------------- helpers

    def _resolve(self, transaction: Transaction | NotGiven | None) -> Attempt | None:
        self._client.open()
        return resolve(self._client, transaction, f"{self.name}.publish", self._bound)

    def _not_default(self, why: str) -> None:
        if self.name == exchanges.DEFAULT_EXCHANGE:
            raise InvalidInput(f"{why}: create an exchange of your own.")

    def _named(self, key: str, column: str | None) -> Queue:
        """Open the queue to which the default exchange sends what has this key.

        Raises:
            InvalidInput: The key is to come from a column.
            QueueNotFound: There is no queue of that name.
        """
        if column is not None:
            raise InvalidInput(
                "The default exchange has no columns: give the name of a queue as routing_key=."
            )
        return Queue(self._client, self._client.cache.queue(key), self._bound)

    def _send_to(
        self,
        queue: Queue,
        rows: Rows,
        options: SendOptions,
        transaction: Transaction | NotGiven | None,
    ) -> PublishResult:
        """Send to the only queue that gets messages of the default exchange with one key."""
        sent = send_with(queue, rows, options, transaction)
        return PublishResult(
            sent.count,
            {queue.name: sent.count} if sent.count else {},
            0,
            sent.send_id,
            sent.transaction_id,
            sent.receipt,
            Returned((self._client, queue.schema)),
        )

    def _queue(self, queue: str | Queue) -> QueueInfo:
        if isinstance(queue, Queue):
            if queue._client.cache.store_id != self._client.cache.store_id:
                raise InvalidInput(
                    f"The queue {queue.name!r} is in the store {queue._client.store.root!r}: name "
                    "a queue of the exchange's own store.",
                    name="queue",
                )
            return queue.info
        return self._client.cache.queue_now(check_name(queue))

    def _binding(
        self, info: QueueInfo, routing_key: str, arguments: Mapping[str, Any] | None
    ) -> Binding:
        asked, match = exchanges.read_arguments({} if arguments is None else arguments)
        key = exchanges.check_key(routing_key)
        return Binding(info.queue_id, key, asked, match)


def _check_keep_order(keep_order: object) -> None:
    if keep_order is not None:
        check_flag("keep_order", keep_order)


def open_exchange(client: Client, name: str, attempt: Attempt | None = None) -> Exchange:
    """Find an exchange by name.

    Raises:
        ExchangeNotFound: There is no such exchange.
    """
    return Exchange(client, found(client, name), attempt)
