"""A queue as its users hold it: send, receive, look, move, purge, alter, drain, drop."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from txnqueue.admin.alteration import alter
from txnqueue.admin.drop import QueueDropResult, drop_queue
from txnqueue.batch import Batch, claim_batch
from txnqueue.client.client import Client, QueuePart
from txnqueue.copies import copies_of
from txnqueue.core import markup
from txnqueue.core.bounds import Bounds
from txnqueue.core.handlers import check_function
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    MESSAGES_PER_RECEIVE_MAX,
    QueueInfo,
    check_count,
    check_flag,
    check_number,
    check_text,
)
from txnqueue.core.state import QueueState, Segment
from txnqueue.drain import Drain, Handler
from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.messages import acquisition, browse, removal
from txnqueue.messages.move import Route, came_from_elsewhere, target_of, to_origin, to_queue
from txnqueue.messages.placement import SendOptions
from txnqueue.messages.receive import Poller
from txnqueue.messages.selector import Selector
from txnqueue.messages.send import SendResult, is_kept, staged
from txnqueue.messages.staged import StagedSend
from txnqueue.platform.progress import counting, showing_progress
from txnqueue.replayed_batch import ReplayedBatch, replayed
from txnqueue.reports.metrics import DeadLetters, queue_shown
from txnqueue.results import DrainResult
from txnqueue.sink import Sink
from txnqueue.storage.payload import Part, messages_of
from txnqueue.storage.payload.frames import check_not_streaming
from txnqueue.storage.payload.schemas import check_schema, schema_from
from txnqueue.stream import Stream
from txnqueue.transaction import Transaction, at_once, resolve
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import commit_alone
from txnqueue.types import NOT_GIVEN, ChangeableSettings, Message, NotGiven, Rows, Until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from txnqueue.storage.transient import TransientRows


class Queue:
    """A queue of a store. Every call is its own transaction unless one is given."""

    def __init__(self, client: Client, info: QueueInfo, attempt: Attempt | None = None) -> None:
        """Hold a queue; users get it from ``manager.queue`` or ``tx.queue``."""
        self._client = client
        self._opened = info
        self._attempt = attempt

    @property
    def _bound(self) -> Attempt | None:
        """What its calls work in, unless they say otherwise."""
        return self._attempt

    @property
    def _info(self) -> QueueInfo:
        """The queue as it was read last, by whatever call."""
        return self._client.cache.newest(self._opened)

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

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show depth, dead letters and columns in a notebook.

        It reads the states of the queue and of its dead-letter queue, and no payload.
        """
        return queue_shown(self._client, self._info, self.depth(), self.in_flight())

    def __repr__(self) -> str:
        """Show the name and the store."""
        return f"<Queue {self.name} of {self._client.store.root}>"

    def purge(self, where: str | None = None, *, reason: str | None = None) -> int:
        """Delete messages for good, and record that.

        Messages in flight stay with their holder, who may still accept, reject or move them. If
        they would return to the queue (release, rollback, expired lease), they are purged
        instead.

        Args:
            where: Only messages that match this SQL predicate over the columns of ``df``.
            reason: Why; recorded in the history.

        Returns:
            The number of messages deleted at once.

        Raises:
            TransactionNotGiven: Inside a transaction.
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

        They get new places by that queue's rules, and keep priority, delay and time to live;
        messages in flight stay. Inside a transaction they are acquired now and are in the other
        queue from its commit on; a rollback returns them as they were.

        Args:
            to: The other queue, or its name.
            where: Only messages that match this SQL predicate over the columns of ``df``.
            matching: Instead, only messages that have a match in this DataFrame.
            on: The columns that match.
            limit: At most this many, the first ones of each lane in turn; all when left out.
            transaction: The transaction that moves them; None moves at once.

        Returns:
            The number of messages moved.

        Raises:
            QueueNotFound: There is no such queue.
            SchemaMismatch: It has other columns.

        Example::

            with manager.transaction() as tx:
                orders.move("orders-of-vips", "customer = 'c7'", transaction=tx)
                audit.send([{"what": "moved c7"}], transaction=tx)
        """
        tx = self._resolve(transaction, f"{self.name}.move")
        target = target_of(self._client, to)

        def route_of(part: QueuePart) -> Route:
            return to_queue(part.client, part.info, part.same_part_of(target))

        selector = self._selector(where, matching, on, few=limit is not None)
        return self._move(tx, route_of, "moved", selector, limit)

    def dead_letters(self) -> DeadLetters:
        """Report this queue's dead letters by origin and reason.

        Returns:
            The dead letters of this queue; for a dead-letter queue itself, all messages that came
            into it. ``redrive(where=…)`` on that queue sends some of them back.

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
            where: Only messages that match this SQL predicate over the columns of ``df``,
                such as ``"_message.origin.reason = 'deliveries_max'"``.
            limit: At most this many; all when left out.
            transaction: As in ``move``.

        Returns:
            The number of messages sent back.

        Raises:
            QueueNotFound: A queue that they came from is gone.
        """
        tx = self._resolve(transaction, f"{self.name}.redrive")

        def route_of(part: QueuePart) -> Route:
            return to_origin(part.client)

        selector = self._selector(where, few=limit is not None)
        return self._move(tx, route_of, "redriven", selector, limit, among=came_from_elsewhere)

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
            TransactionNotGiven: Inside a transaction.
        """
        at_once(self._client, f"{self.name}.alter", self._bound)
        columns = None if add is None else schema_from(self._client.store.spark, add)
        if columns is not None:
            check_schema(columns, None)
        return alter(self._client, self._info, columns, settings)

    def drop(self, *, reason: str | None = None) -> QueueDropResult:
        """Drop exactly this queue with everything in it; repeating it goes on.

        ``manager.drop_queue`` drops the queue that has the name now, which may have been created
        since this one was opened.

        From the first step on it takes no work: a commit of an open transaction that sent to
        it or received from it is aborted. A prepared transaction holds the second step back
        until it is decided; then drop again, or ``manager.recover()``. Its history stays, and
        so does its dead-letter queue, which can be dropped after it.

        Args:
            reason: Why; recorded in the history.

        Returns:
            Whether it is gone, and what holds it back if not.

        Raises:
            QueueInUse: It takes the dead letters of another queue.
            TransactionNotGiven: Inside a transaction.
        """
        at_once(self._client, f"{self.name}.drop", self._bound)
        reason = check_text("reason", reason)
        return drop_queue(self._client, self._info, reason)

    # -------------------------------------------------------------------------- helpers

    def _resolve(self, transaction: Transaction | NotGiven | None, what: str) -> Attempt | None:
        self._client.open()
        return resolve(self._client, transaction, what, self._bound)

    def _purge(self, gone: removal.Gone | None, where: str | None, reason: str | None) -> int:
        """Delete messages, and report those that are deleted at once."""
        self._client.open()
        at_once(self._client, f"{self.name}.purge", self._bound)
        reason = check_text("reason", reason)
        selector = self._selector(where)
        return sum(
            removal.purge(part.client, part.info, selector, reason, gone)
            for part in self._client.parts_of(self._info)
        )

    def _selector(
        self,
        where: str | None,
        matching: DataFrame | None = None,
        on: str | Sequence[str] | None = None,
        *,
        few: bool = False,
    ) -> Selector | None:
        if where is None and matching is None and on is None:
            return None
        return Selector(self._client, self.name, self.schema, where, matching, on=on, few=few)

    def send(
        self,
        rows: Rows,
        *,
        order_by: str | list[str] | None = None,
        priority: int | str | None = None,
        available_at: datetime.datetime | str | None = None,
        delay_seconds: float | str | None = None,
        ttl_seconds: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        header_columns: Mapping[str, str] | None = None,
        durable: bool | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
        progress: bool = False,
    ) -> SendResult:
        """Send messages: one per row.

        Where a value can be a string it names a column of the rows, which need not be one of
        the queue's; a null there means what leaving it out means. Instants that differ by row
        are rounded up to the queue's ``delay_step_seconds``.

        Args:
            rows: A DataFrame, a pandas or Arrow table, or a list of dicts, with the queue's
                columns. A ``_message`` column is left out; missing nullable columns are null.
            order_by: Columns that order the messages; the rows' own order when left out.
            priority: 0 to 9; the highest is received first, 4 when left out.
            available_at: The messages cannot be received before this instant.
            delay_seconds: The same, from now on.
            ttl_seconds: The messages expire after this many seconds: they are no longer
                delivered, and go to the dead-letter queue with ``dead_letter_expired``.
            headers: Headers that all these messages get, as strings by name. Those called
                ``correlation_id`` and ``reply_to`` have columns of their own in ``_message``.
            header_columns: Columns of the rows that headers are taken from, by the headers'
                names: strings, whole numbers, booleans or dates. They need not be the queue's.
            durable: Whether the messages are kept in the store; the queue's setting when left
                out. Others are kept in the memory of this process only, with the same
                transactions and no Delta commit: they are gone when the process ends.
            transaction: The transaction that sends them; None commits at once.
            progress: Whether to show in a notebook or a terminal that it is under way, and for
                how long.

        Returns:
            The number of messages and the send id.

        Raises:
            SchemaMismatch: A column is unknown, missing, of another type or null though it
                may not be; nothing was staged.
            LimitExceeded: The rows have too many different delays and priorities for one send,
                or there is no memory left for transient messages.
            QueueClosed: The queue is being dropped; after that it is ``QueueNotFound``.
            TransactionNotGiven: Inside a block, ``transaction=`` was left out.
        """
        check_flag("progress", progress)
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
        inside = self._resolve(transaction, f"{self.name}.send")
        if not progress:
            return self._send(rows, options, inside)
        with showing_progress(f"send to {self.name}", None) as show:
            result = self._send(rows, options, inside)
            show(result.count)
            return result

    def resend(
        self, batch: Batch, *, transaction: Transaction | NotGiven | None = NOT_GIVEN
    ) -> SendResult:
        """Send copies of a batch's messages here, such as of those that ``replay`` shows.

        The copies are new messages, with the payload and the headers of the first ones, and a
        header ``txnqueue.origin`` with their ids; priority, delay and time to live are not
        copied. In a transaction with an id of its own it may be repeated: they are sent once.

        Args:
            batch: The messages, of a queue with the same columns; what becomes of the batch itself
                is not changed.
            transaction: As in ``send``.

        Returns:
            The number of messages and the send id.

        Raises:
            SchemaMismatch: As in ``send``.
            PayloadRemoved: Their payload is past its retention.
            QueueClosed: As in ``send``.
            TransactionNotGiven: As in ``send``.

        Example::

            again = orders.replay(after=receipt.commit_seq, where="customer = 'c7'")
            with manager.transaction("orders of c7, once more") as tx:
                orders.resend(again, transaction=tx)
        """
        if not isinstance(batch, Batch):
            raise InvalidInput(
                f"resend({type(batch).__name__}): give a batch, of receive() or replay(); send() "
                "takes rows.",
                name="batch",
            )
        inside = self._resolve(transaction, f"{self.name}.resend")
        if inside is not None and inside.already_committed:
            return SendResult(0, "", inside.id, inside.receipt)  # the payload may be gone by now
        by_spark = self._client.store.spark is not None
        rows, headers = copies_of(batch, by_spark=by_spark)
        return self._send(rows, SendOptions(header_columns=headers), inside)

    def sink(
        self,
        *,
        name: str | None = None,
        order_by: str | list[str] | None = None,
        priority: int | str | None = None,
        available_at: datetime.datetime | str | None = None,
        delay_seconds: float | str | None = None,
        ttl_seconds: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        header_columns: Mapping[str, str] | None = None,
    ) -> Callable[[DataFrame, int], None]:
        """Make a function for ``foreachBatch`` that sends each micro-batch of a stream once.

        A micro-batch is one transaction, named by the id of the streaming query, which its
        checkpoint holds, and the batch's number: a batch that is run again after a crash is not
        sent again. A query whose checkpoint was deleted is a new one and sends what it reads
        again; a queue with ``message_id`` and ``duplicate_window_seconds`` leaves that out.

        Args:
            name: Tells several sinks that one ``foreachBatch`` calls for this queue apart.
            order_by: As in ``send``.
            priority: As in ``send``.
            available_at: As in ``send``.
            delay_seconds: As in ``send``, from when the batch is sent.
            ttl_seconds: As in ``send``.
            headers: As in ``send``.
            header_columns: As in ``send``.

        Returns:
            The function; it raises what ``send`` raises, and the streaming query fails by that.

        Raises:
            InvalidInput: The session is one of Spark Connect, or a value cannot be used.

        Example::

            stream = spark.readStream.table("clicks").select("order_id", "amount")
            query = (
                stream.writeStream.foreachBatch(orders.sink())
                .option("checkpointLocation", "/lake/checkpoints/clicks")
                .start()
            )
        """
        options = SendOptions(
            order_by=order_by,
            priority=priority,
            available_at=available_at,
            delay_seconds=delay_seconds,
            ttl_seconds=ttl_seconds,
            headers=headers,
            header_columns=header_columns,
        )
        self._client.open()
        info = self._info
        options.check(self.schema, info.settings, self.name)
        return Sink(
            self._client,
            info.queue_id,
            name,
            lambda rows, tx: send_with(self, rows, options, tx),
            inside=self._bound,
        )

    def receive(
        self,
        limit: int = 1_000,
        *,
        lease_seconds: float | None = None,
        where: str | None = None,
        matching: DataFrame | None = None,
        on: str | Sequence[str] | None = None,
        wait_seconds: float = 0.0,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> Batch:
        """Receive the first available messages: at most ``limit``, maybe none.

        What failed once comes again in batches of at most the size that it had, what failed
        more often in ever smaller ones, so that one bad message ends up alone.

        Args:
            limit: At most this many messages.
            lease_seconds: For how long they are held; the queue's setting when left out.
            where: Only messages that match this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included. It is evaluated over what waits, in
                growing pieces, until enough is found.
            matching: Instead, only messages that have a match in this DataFrame, which is
                evaluated for each piece.
            on: The columns that match.
            wait_seconds: Wait so long for a message if there is none. Only the journal's
                version is asked meanwhile, ever more seldom.
            transaction: The transaction that acquires them; None holds them under a lease.

        Returns:
            The batch; ``len(batch)`` is 0 if nothing is available.

        Raises:
            Busy: Other consumers were faster at every try.
            LeaseLost: Another instance opened this manager's consumer id.
            QueueClosed: The queue is being dropped; after that it is ``QueueNotFound``.
            TransactionNotGiven: Inside a block, ``transaction=`` was left out.
        """
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        tx = self._resolve(transaction, f"{self.name}.receive")
        check_number("wait_seconds", wait_seconds, 0, LEASE_SECONDS_MAX)
        wanted = self._selector(where, matching, on, few=True)
        if tx is not None and tx.already_committed:
            return Batch(self._client, self.schema, [], tx)
        patience = Poller(self._client, self._info, wait_seconds)
        while True:
            of_lane = wanted.of_lane if wanted else None
            batch = claim_batch(
                self._client,
                self._info,
                self.schema,
                limit,
                tx,
                lease_seconds=lease_seconds,
                wanted=of_lane,
            )
            if batch._account.held or not patience.wait_for_change():
                return batch

    def peek(self, limit: int = 20, where: str | None = None) -> DataFrame:
        """Look at the first available messages without claiming them.

        Args:
            limit: At most this many messages.
            where: Only messages that match this SQL predicate over the columns of ``df``.

        Returns:
            A DataFrame as ``Batch.df``; committed state only, in no particular order.
        """
        parts, carried = self._first(limit, where)
        frame = self._client.payload.frame(self.schema, parts)
        del carried  # what is in memory stays there until it is read
        return frame

    def peek_messages(self, limit: int = 20, where: str | None = None) -> list[Message]:
        """Look at the first available messages as dicts, in delivery order; as ``peek``."""
        parts, carried = self._first(limit, where)
        rows = messages_of(self._client.payload.table(self.schema, parts))
        del carried
        return rows

    def replay(
        self,
        after: int = -1,
        upto: int | None = None,
        *,
        where: str | None = None,
        limit: int | None = None,
    ) -> ReplayedBatch:
        """Look at the messages again that were consumed between two commits, as they were.

        A message is in it if a commit accepted it here; what was rejected, moved, purged or kept
        in memory only is not. The queue may be dropped by now, as long as its payload is there.

        Args:
            after: The commit_seq to begin after; all that is known when left out.
            upto: The last commit_seq; the newest when left out.
            where: Only messages that match this SQL predicate over the columns of ``df``.
            limit: At most this many messages, those that were consumed first; all when left out.

        Returns:
            A batch that can be read, but not settled; in commit order. Columns as ``Batch.df``.

        Raises:
            PayloadRemoved: Payload of some of them was removed; the message says after which
                commit it is all there.
            HistoryRemoved: What came after that commit is not all known any more.
            InvalidInput: There is no such commit yet, or the predicate cannot be evaluated.

        Example::

            again = orders.replay(after=receipt.commit_seq)
            again.df.groupBy("customer").count().show()
        """
        if limit is not None:
            check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        return replayed(
            self._client, self._info, self.schema, after, upto, where=where, limit=limit
        )

    def depth(self, *, lapsed: bool = False) -> int:
        """Count what can be received now: not in flight, not delayed, not expired.

        What a lease, a transaction or a branch holds that is over counts as in flight until
        the next receive or recover.

        Args:
            lapsed: Whether to count that as well, because the next receive gets it: so asks who
                starts a consumer only if there is something for it.
        """
        check_flag("lapsed", lapsed)
        return browse.depth(self._client, self._info, lapsed=lapsed)

    def in_flight(self) -> int:
        """Count what is received and not settled."""
        return browse.total(self._client, self._info, QueueState.in_flight)

    def drain(
        self,
        handler: Handler,
        *,
        where: str | None = None,
        batch_size: int = 100_000,
        run_id: str | None = None,
        until: Until = "snapshot",
        max_seconds: float | None = None,
        max_messages: int | None = None,
        max_batches: int | None = None,
        errors_max: int = 20,
        on_batch: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
        ahead: int = 0,
        progress: bool = False,
    ) -> DrainResult:
        """Consume the queue batch by batch, each batch in one transaction.

        In the steady state a batch costs one append, which is its commit and the claim of
        the next one. When the handler fails, its batch is rolled back and redelivered: once as
        it was, then in smaller pieces, until what fails is alone and goes to the dead-letter
        queue. If all that is left waits for its redelivery, the drain ends unfinished. An error
        that no message can cause ends the drain at once, and counts no delivery; until a batch
        has succeeded, of the others only the first counts.

        With ``ahead=1`` that append runs while the next batch is handled: the handler of a
        batch begins before the one before it is committed, and may have to be repeated if that
        fails. It must not rely on what the handler before it wrote, and holds its messages for up
        to twice as long. ``tx.table()`` and databases in the transaction are refused then.

        Args:
            handler: ``handler(batch, tx)``; ``tx.queue(name)`` gives queues to send to. It
                may see messages again, so effects outside of the transaction need a key. What it
                releases is available at once, also to this drain: ``modify`` or ``reject`` it.
                It has done its work when it returns: a coroutine or a generator is refused.
            where: Only messages that match this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included; each message is looked at once.
            batch_size: At most this many messages in a batch.
            run_id: Names the run: repeated with the same id it goes on after the last
                committed batch, and a finished run claims nothing.
            until: ``snapshot``: what was there when it began; ``empty``: until nothing is left.
            max_seconds: Begin no batch after this many seconds.
            max_messages: Begin no batch after this many messages.
            max_batches: Begin no batch after this many batches.
            errors_max: Give up after this many failures in a row.
            on_batch: Called with the number of messages after each commit.
            stopped: Asked before each batch; true: the one at hand is the last.
            ahead: How many batches are handled before the one before them is committed: 0 or 1.
            progress: Whether to show in a notebook or a terminal how far it is.

        Returns:
            What was consumed, and how it ended.

        Raises:
            HandlerFailed: The handler failed ``errors_max`` times in a row, or by a mistake of
                the job: a queue or table that is not there, wrong columns, ``NameError``.
            QueueClosed: This queue, or one that the handler sent to, is being dropped.
            InvalidInput: ``ahead=1`` on an ordered queue, or a function is async or has a yield.
            TransactionNotGiven: Inside a transaction: a drain begins a transaction for each
                batch.
            PlatformMissing: ``progress`` in a terminal needs rich.
        """
        at_once(self._client, f"{self.name}.drain", self._bound)
        _check_functions(handler=handler, on_batch=on_batch, stopped=stopped)
        check_flag("progress", progress)
        bounds = Bounds(max_seconds, max_messages, max_batches)
        if stopped is not None:
            bounds = replace(bounds, stopped=stopped)
        drain = Drain(
            self._client,
            self,
            handler,
            batch_size,
            run_id,
            errors_max=errors_max,
            select=lambda: self._selector(where, few=True),
            ahead=ahead,
        )
        if not progress:
            return drain.run(until, bounds, on_batch)
        total = self.depth() if where is None and until == "snapshot" else None
        if total is not None and max_messages is not None:
            total = min(total, max_messages)
        with showing_progress(f"drain of {self.name}", total) as show:
            return drain.run(until, bounds, counting(show, on_batch))

    def stream(
        self,
        handler: Handler,
        *,
        where: str | None = None,
        batch_size: int = 100_000,
        max_messages: int | None = None,
        errors_max: int = 20,
        on_batch: Callable[[int], None] | None = None,
    ) -> Stream:
        """Consume the queue in a thread of its own, whenever something comes, until it is stopped.

        It is a drain that goes on: each batch is one transaction, and what fails comes again as
        ``drain`` says. While there is nothing it asks the journal only for its version, at most
        5 seconds apart, and wakes when a delay or a lease ends. It needs no checkpoint: a stream
        that was killed, and one that is started beside others, goes on with what is left.

        Args:
            handler: As in ``drain``; it runs in the stream's thread.
            where: As in ``drain``; each time that it wakes, what waits is looked at anew.
            batch_size: At most this many messages in a batch.
            max_messages: End after this many messages; go on when left out.
            errors_max: Give up after this many failures in a row.
            on_batch: Called with the number of messages after each commit.

        Returns:
            The stream, which has started.

        Raises:
            InvalidInput: A value cannot be used.
            TransactionNotGiven: Inside a transaction.

        Example::

            def pay(batch, tx):
                tx.queue("payments").send(batch.df.select("customer", "amount"))


            with orders.stream(pay, batch_size=10_000) as stream:
                stream.await_termination(timeout_seconds=3_600)
        """
        at_once(self._client, f"{self.name}.stream", self._bound)
        _check_functions(handler=handler, on_batch=on_batch)
        self._client.open()
        drain = Drain(
            self._client,
            self,
            handler,
            batch_size,
            None,
            errors_max=errors_max,
            select=lambda: self._selector(where, few=True),
        )
        return Stream(self._client, self, drain, max_messages, on_batch)

    # -------------------------------------------------------------------------- helpers

    def _send(self, rows: Rows, options: SendOptions, inside: Attempt | None) -> SendResult:
        """Send messages in an attempt, or in one of their own."""
        tx = inside or Attempt(self._client)
        tx.check_active()
        if tx.already_committed:
            return SendResult(0, "", tx.id, tx.receipt)
        send = self._staged(rows, options, tx)
        if inside is None and send.count:
            commit_alone(tx)
        return SendResult(send.count, send.send_id, tx.id, tx.receipt)

    def _staged(
        self, rows: Rows, options: SendOptions, tx: Attempt, *, recorded: bool = True
    ) -> StagedSend:
        """Stage messages in an attempt, which records them unless the caller lets it."""
        check_not_streaming(rows, f"{self.name}.send", "queue.sink()")
        self._client.states.check_open(self._info)
        info = self._info
        placing = options.placing(info.settings, self._client.runtime.now_ms())
        kept = is_kept(options.durable, tx, self.name, otherwise=info.settings.durable)

        def stage_rows() -> StagedSend:
            return staged(
                self._client,
                self._info,
                self.schema,
                tx,
                rows,
                options=options,
                placing=placing,
                durable=kept,
                recorded=recorded,
            )

        try:
            return stage_rows()
        except SchemaMismatch:
            if not self._client.cache.renewed(info):  # columns that came since may be meant
                raise
            return stage_rows()

    def _move(
        self,
        tx: Attempt | None,
        route_of: Callable[[QueuePart], Route],
        reason: str,
        selector: Selector | None,
        limit: int | None,
        *,
        among: Callable[[Segment], bool] = lambda _segment: True,
    ) -> int:
        """Move what waits, by the commit of an attempt or at once."""
        if tx is not None:
            tx.follow_memory()
        return acquisition.move(
            self._client,
            self._info,
            tx,
            route_of,
            reason,
            selector=selector,
            limit=limit,
            among=among,
        )

    def _first(self, limit: int, where: str | None) -> tuple[list[Part], list[TransientRows]]:
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        self._client.open()
        return browse.first(self._client, self._info, limit, self._selector(where, few=True))


def _check_functions(**functions: object) -> None:
    """Check that what is to be called can be; only the handler has to be there.

    Raises:
        InvalidInput: It cannot.
    """
    for name, called in functions.items():
        if called is not None or name == "handler":
            check_function(name, called)


def send_with(
    queue: Queue, rows: Rows, options: SendOptions, transaction: Transaction | NotGiven | None
) -> SendResult:
    """Send to a queue with options made elsewhere, for the library's own rooms."""
    return queue._send(rows, options, queue._resolve(transaction, f"{queue.name}.send"))


def stage_with(queue: Queue, rows: Rows, attempt: Attempt) -> StagedSend:
    """Stage what a call sends that records it itself, for the library's own rooms."""
    return queue._staged(rows, SendOptions(), attempt, recorded=False)
