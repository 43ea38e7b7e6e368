"""The public class ``Queue``: send, receive, peek, move, purge, alter, drain and drop."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from txnqueue.admin.alteration import alter
from txnqueue.admin.drop import QueueDropResult, drop_queue
from txnqueue.batch import Batch, claim_batch
from txnqueue.client.client import Client, QueuePart
from txnqueue.client.consumer import Consumer
from txnqueue.copies import copies_of
from txnqueue.core import markup
from txnqueue.core.bounds import Bounds
from txnqueue.core.handlers import check_function
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    MESSAGES_PER_RECEIVE_MAX,
    QueueInfo,
    check_checkpoint,
    check_count,
    check_flag,
    check_number,
    check_predicate,
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
    """A queue of a store. Each call is a transaction by itself unless it is given one."""

    def __init__(self, client: Client, info: QueueInfo, attempt: Attempt | None = None) -> None:
        """Wrap a queue; users get it from ``manager.queue`` or ``tx.queue``."""
        self._client = client
        self._opened = info
        self._attempt = attempt

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._opened.name

    @property
    def info(self) -> QueueInfo:
        """The queue's description in the catalog, the newest that this client has read."""
        return self._client.cache.newest(self._opened)

    @property
    def schema(self) -> StructType:
        """The columns of the queue's payload."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(dict(self.info.schema))

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show depth, dead letters and columns in a notebook.

        Reads the states of the queue and of its dead-letter queue, and no payload.
        """
        return queue_shown(self._client, self.info, self.depth(), self.in_flight())

    def __repr__(self) -> str:
        """Show the name and the store."""
        return f"<Queue {self.name} of {self._client.store.root}>"

    # -------------------------------------------------------------------------- sending

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
        """Send one message per row.

        A string for ``priority``, ``available_at``, ``delay_seconds`` or ``ttl_seconds`` names a
        column of the rows, which need not be one of the queue's; null there means the default.
        Instants that differ by row are rounded up to the queue's ``delay_step_seconds``.

        Args:
            rows: A DataFrame, a pandas or Arrow table, or a list of dicts, with the queue's
                columns. A ``_message`` column is left out; missing nullable columns are null.
            order_by: Columns that order the messages of each lane; the order of the rows when left
                out. Unless the queue is ordered, a delay or time to live by column comes first.
            priority: 0 to 9; the highest is received first; 4 when left out.
            available_at: The messages cannot be received before this instant.
            delay_seconds: The messages cannot be received until this many seconds have passed.
            ttl_seconds: The messages expire after this many seconds: they are no longer
                delivered, and go to the dead-letter queue with ``dead_letter_expired``.
            headers: Headers of all these messages, as strings by name. The headers
                ``correlation_id`` and ``reply_to`` also have a field in ``_message`` each.
            header_columns: By header name, the column of the rows that the header is taken from:
                a column of the queue with strings, whole numbers, booleans or dates, or another
                one, with strings. Null there means that the message lacks the header.
            durable: Whether the messages are kept in the store; the queue's setting when left
                out. False keeps them in the memory of this process only, with the same
                transactions and no Delta commit: they are gone when the process ends.
            transaction: The transaction that sends them; None commits at once.
            progress: Whether to show in a notebook or a terminal that the send is under way,
                and for how long.

        Returns:
            The number of messages and the send id.

        Raises:
            SchemaMismatch: A column is unknown, missing, of another type, or null without being
                nullable; nothing was staged.
            LimitExceeded: The rows have too many different delays and priorities for one send,
                or there is no memory left for transient messages.
            Busy: The queue's columns were being altered at every try; nothing was sent.
            QueueClosed: The queue is being dropped; once dropped, ``QueueNotFound``.
            TransactionAborted: Conflicts outlasted the retries of the call's own transaction;
                nothing was sent.
            TransactionUnknown: The call's own commit is in doubt; ``manager.outcome(id)`` tells the
                outcome.
            TransactionNotGiven: ``transaction=`` was left out inside a transaction block.
            TransactionFinished: The given transaction takes no more work.
            TransactionMismatch: The given transaction belongs to another manager.
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
        """Send copies of a batch's messages to this queue, for example of a ``replay``.

        The copies are new messages with the payload and the headers of the originals, whose ids
        they carry in the header ``txnqueue.origin``; priority, delay and time to live are not
        copied. Repeated in a transaction with the same id, the call sends them once.

        Args:
            batch: The messages, of a queue with the same columns; the batch itself is neither
                settled nor changed.
            transaction: As in ``send``.

        Returns:
            The number of messages and the send id.

        Raises:
            SchemaMismatch: As in ``send``.
            PayloadRemoved: The payload of the messages is past its retention.
            QueueClosed: As in ``send``.
            TransactionAborted: As in ``send``.
            TransactionUnknown: As in ``send``.
            TransactionNotGiven: As in ``send``.
            TransactionFinished: As in ``send``.
            TransactionMismatch: As in ``send``.

        Example::

            again = orders.replay(after=receipt.commit_seq, where="customer = 'c7'")
            with manager.transaction("orders of c7, once more") as tx:
                orders.resend(again, transaction=tx)
        """
        if not isinstance(batch, Batch):
            raise InvalidInput(
                f"resend({type(batch).__name__}): give a batch from receive() or replay(); to "
                "send rows, use send().",
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

        Each micro-batch is one transaction, named by the id of the streaming query, which its
        checkpoint holds, and the batch's number: a batch that is run again after a crash is not
        sent again. A query whose checkpoint was deleted is a new one and sends again what it
        reads again; ``message_id`` with ``duplicate_window_seconds`` drops such duplicates.

        Args:
            name: Tells the sinks for this queue apart if one ``foreachBatch`` calls several.
            order_by: As in ``send``.
            priority: As in ``send``.
            available_at: As in ``send``.
            delay_seconds: As in ``send``, counted from when the micro-batch is sent.
            ttl_seconds: As in ``send``.
            headers: As in ``send``.
            header_columns: As in ``send``.

        Returns:
            The function; it raises what ``send`` raises, and then the streaming query fails.

        Raises:
            InvalidInput: The session is a Spark Connect session, or a value cannot be used.

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
        info = self.info
        options.check(self.schema, info.settings, self.name)
        return Sink(
            self._client,
            info.queue_id,
            name,
            lambda rows, tx: send_with(self, rows, options, tx),
            inside=self._bound,
        )

    # ------------------------------------------------------------------------ receiving

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
        """Receive the first available messages: at most ``limit``, possibly none.

        Messages that failed once come back in batches of at most their former size; after
        further failures the batches get smaller, until a bad message is alone.

        Args:
            limit: At most this many messages.
            lease_seconds: How long the messages are held; the queue's setting when left out.
            where: Only messages that match this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included. It is evaluated over the waiting messages,
                in growing pieces, until enough are found.
            matching: Instead, only messages that have a match in this DataFrame, which is
                evaluated for each piece.
            on: The columns to match on.
            wait_seconds: How long to wait for a message if there is none. Waiting reads only the
                journal's version, at growing intervals.
            transaction: The transaction that acquires them; None holds them under a lease.

        Returns:
            The batch; ``len(batch)`` is 0 if nothing is available.

        Raises:
            InvalidInput: An argument is invalid, or the predicate or ``matching`` cannot be used.
            LimitExceeded: ``limit`` or a time is out of range.
            Busy: Every try lost to another consumer.
            LeaseLost: Another instance opened this manager's consumer id.
            QueueClosed: The queue is being dropped; once dropped, ``QueueNotFound``.
            TransactionUnknown: The claim is in doubt; if it landed, the messages come back when the
                lease ends.
            TransactionNotGiven: ``transaction=`` was left out inside a transaction block.
            TransactionFinished: The given transaction takes no more work.
            TransactionMismatch: The given transaction belongs to another manager.
        """
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        tx = self._resolve(transaction, f"{self.name}.receive")
        check_number("wait_seconds", wait_seconds, 0, LEASE_SECONDS_MAX)
        wanted = self._selector(where, matching, on, few=True)
        if tx is not None and tx.already_committed:
            return Batch(self._client, self.schema, [], tx)
        patience = Poller(self._client, self.info, wait_seconds)
        while True:
            of_lane = wanted.of_lane if wanted else None
            batch = claim_batch(
                self._client,
                self.info,
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
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``.

        Returns:
            A DataFrame with the columns of ``Batch.df``; committed state only, in no particular
            order.

        Raises:
            InvalidInput: A value cannot be used.
            QueueNotFound: The queue was dropped.
        """
        parts, carried = self._first(limit, where)
        frame = self._client.payload.frame(self.schema, parts)
        del carried  # it keeps transient rows in memory until they are read
        return frame

    def peek_messages(self, limit: int = 20, where: str | None = None) -> list[Message]:
        """Look at the first available messages as ``peek`` does, as dicts in delivery order.

        Args:
            limit: As in ``peek``.
            where: As in ``peek``.

        Returns:
            One dict per message, with the columns of ``Batch.df``.

        Raises:
            InvalidInput: As in ``peek``.
            QueueNotFound: As in ``peek``.
        """
        parts, carried = self._first(limit, where)
        rows = messages_of(self._client.payload.table(self.schema, parts))
        del carried
        return rows

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

        In the steady state a batch costs one append, which commits it and claims the next one.
        When the handler fails, its batch is rolled back and redelivered: once as it was, then in
        smaller pieces, until the failing message is alone and goes to the dead-letter queue. If
        all remaining messages wait for their redelivery, the drain ends unfinished. A mistake of
        the job ends the drain at once; neither that nor a failure of the store counts as a
        delivery. Until a batch has succeeded, only the first of the other failures counts.

        With ``ahead=1`` this append runs while the next batch is handled: a handler begins before
        the previous batch is committed, and may have to be repeated if that commit fails. It must
        not rely on what the previous call of the handler wrote, and holds its messages for up to
        twice as long. ``tx.table()`` and databases in the transaction are then refused.

        Args:
            handler: ``handler(batch, tx)``; ``tx.queue(name)`` gives queues to send to. It
                may get messages again, so effects outside the transaction need a key. Messages
                that it releases are available at once, also to this drain: ``modify`` or
                ``reject`` them instead. A coroutine or a generator is refused, because the work
                must be done when the handler returns.
            where: Only messages that match this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included; it is evaluated once per message, and again
                after a failed delivery, which ``_message`` shows.
            batch_size: At most this many messages in a batch.
            run_id: Names the run: repeated with the same id, it continues after the last
                committed batch, and a finished run claims nothing. Runs of other queues need
                other ids.
            until: ``snapshot``: until the messages that were there at the start are consumed;
                ``empty``: until nothing is left.
            max_seconds: Begin no batch after this many seconds.
            max_messages: Begin no batch after this many messages.
            max_batches: Begin no batch after this many batches.
            errors_max: Give up after this many failures in a row.
            on_batch: Called with the number of messages after each commit.
            stopped: Called before each batch; once it returns true, the batch in hand is the last.
            ahead: How many batches are handled before the previous one is committed: 0 or 1.
            progress: Whether to show the progress in a notebook or a terminal.

        Returns:
            The counts of what was consumed, and how the drain ended.

        Raises:
            HandlerFailed: The handler failed ``errors_max`` times in a row, or by a mistake of
                the job: a missing queue or table, wrong columns, ``NameError``.
            StoreError: The handler met a file of the store that is damaged or cannot be read; no
                delivery counts.
            QueueClosed: This queue, or one that the handler sent to, is being dropped.
            InvalidInput: ``ahead=1`` on an ordered queue, a function is async or has a yield, or a
                run of another queue has this ``run_id``.
            TransactionNotGiven: The call was made inside a transaction; a drain begins its own
                transaction for each batch.
            Busy: Others won every conflict for a claim: repeat the call.
            StoreBusy: The store refused a claim or a commit: repeat the call.
            LeaseLost: Messages of a batch belong to others since its lease ended: repeat the call.
            SettlementPending: A prepared transaction settles messages of the same lease.
            TransactionUnknown: A commit is in doubt; ``manager.outcome(id)`` tells the outcome.
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
        checkpoint: str | os.PathLike[str] | None = None,
        where: str | None = None,
        batch_size: int = 100_000,
        max_messages: int | None = None,
        errors_max: int = 20,
        on_batch: Callable[[int], None] | None = None,
    ) -> Stream:
        """Consume the queue in a background thread until the stream is stopped.

        A stream is a drain that goes on: each batch is one transaction, and failed messages are
        redelivered as in ``drain``. While the queue is empty it reads only the journal's version,
        at least every 5 seconds, and wakes when a delay or a lease ends. The journal records
        what was consumed: a stream that is restarted, or started beside others, continues with
        what is left, whether or not it has a checkpoint. An error that ends it is logged.

        Args:
            handler: As in ``drain``; it runs in the stream's thread.
            checkpoint: A name for this stream, which may look like a path; nothing is written
                there. It is the consumer id under which the stream holds its batches. If a process
                was killed, the next stream with its checkpoint receives at once the batch that it
                held, and need not wait for the end of the lease. Give a checkpoint to one stream at
                a time: a later one takes over, and the earlier one ends when it finds that the
                later one holds messages, as a manager with this consumer id would. When left out,
                batches are held under the manager's consumer id.
            where: As in ``drain``; evaluated anew over the waiting messages at each wake-up.
            batch_size: At most this many messages in a batch.
            max_messages: End after this many messages; unbounded when left out.
            errors_max: Give up after this many failures in a row.
            on_batch: Called with the number of messages after each commit.

        Returns:
            The running stream.

        Raises:
            InvalidInput: A value cannot be used.
            TransactionNotGiven: The call was made inside a transaction.

        Example::

            def pay(batch, tx):
                tx.queue("payments").send(batch.df.select("customer", "amount"))


            with orders.stream(pay, batch_size=10_000) as stream:
                stream.await_termination(timeout_seconds=3_600)
        """
        at_once(self._client, f"{self.name}.stream", self._bound)
        _check_functions(handler=handler, on_batch=on_batch)
        named = check_checkpoint(checkpoint)
        self._client.open()
        drain = Drain(
            self._client,
            self,
            handler,
            batch_size,
            None,
            errors_max=errors_max,
            select=lambda: self._selector(where, few=True),
            consumer=None if named is None else Consumer(named, self._client.runtime.now_ms()),
        )
        return Stream(self._client, self, drain, max_messages, on_batch)

    def replay(
        self,
        after: int = -1,
        upto: int | None = None,
        *,
        where: str | None = None,
        limit: int | None = None,
        partial: bool = False,
    ) -> ReplayedBatch:
        """Read again the messages that were consumed between two commits, as they were.

        These are the messages that a commit accepted in this queue, not those rejected, moved,
        purged or transient. The queue may be dropped meanwhile, if its payload still exists.

        Args:
            after: The commit_seq to begin after; the beginning of the history when left out.
            upto: The last commit_seq; the newest when left out.
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``.
            limit: At most this many messages, those that were consumed first; all when left out.
            partial: Whether to leave out messages whose payload was removed or erased, instead of
                raising ``PayloadRemoved``.

        Returns:
            A batch that can be read but not settled, in commit order; columns as in ``Batch.df``.

        Raises:
            PayloadRemoved: Some of the payload was removed or erased; the error says after which
                commit the payload is complete.
            HistoryRemoved: The history after ``after`` is no longer complete.
            InvalidInput: There is no such commit yet, or the predicate cannot be evaluated.

        Example::

            again = orders.replay(after=receipt.commit_seq)
            again.df.groupBy("customer").count().show()
        """
        if limit is not None:
            check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        check_flag("partial", partial)
        where = None if where is None else check_predicate(where)
        return replayed(
            self._client,
            self.info,
            self.schema,
            after,
            upto,
            where=where,
            limit=limit,
            partial=partial,
        )

    # ------------------------------------------------------------------------- counting

    def depth(self, *, lapsed: bool = False) -> int:
        """Count the messages that can be received now: not in flight, delayed or expired.

        Messages whose lease has ended count as in flight until the next ``receive``, those of an
        ended transaction or branch until the next ``receive`` or ``recover``. In an ordered queue,
        messages count that wait behind delayed messages, or behind those in flight, in their lane.

        Args:
            lapsed: Whether to count those as well, since the next receive gets them: a scheduler
                that starts a consumer only for waiting messages needs this count.

        Returns:
            The number of messages, durable ones and those in the memory of this process.

        Raises:
            InvalidInput: ``lapsed`` is neither True nor False.
            QueueNotFound: The queue was dropped.
        """
        return browse.depth(self._client, self.info, lapsed=lapsed)

    def in_flight(self) -> int:
        """Count the messages that are received and not settled.

        Returns:
            The number of messages, durable ones and those in the memory of this process.

        Raises:
            QueueNotFound: The queue was dropped.
        """
        return browse.total(self._client, self.info, QueueState.in_flight)

    def dead_letters(self) -> DeadLetters:
        """Report this queue's dead letters by origin and reason.

        Returns:
            The dead letters of this queue; for a dead-letter queue itself, all messages that came
            into it. ``redrive(where=…)`` on the dead-letter queue sends some of them back.

        Example::

            orders.dead_letters().df().show()
            manager.queue("orders.dead").redrive("_message.origin.reason = 'deliveries_max'")
        """
        return DeadLetters(self._client, self.info)

    # -------------------------------------------------------------- moving and removing

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
        """Move waiting messages to another queue with the same columns; nothing is copied.

        The other queue's rules give them new places; priority, delay and time to live are kept.
        Messages in flight stay. Inside a transaction the messages are acquired now and are in
        the other queue once it commits. A rollback returns them to their places and counts no
        delivery; those that waited for their redelivery are available at once.

        Args:
            to: The other queue, or its name.
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``.
            matching: Instead, only messages that have a match in this DataFrame.
            on: The columns to match on.
            limit: At most this many: the first ones of a lane, and if there are too few, of the
                next; all when left out.
            transaction: The transaction that moves them; None moves at once.

        Returns:
            The number of messages moved.

        Raises:
            QueueNotFound: The other queue does not exist.
            SchemaMismatch: The other queue has other columns.
            InvalidInput: It is the same queue, or a value cannot be used.
            LimitExceeded: The selected messages lie in too many ranges; nothing was changed.
            QueueClosed: One of the two queues is being dropped.
            Busy: Others won every conflict; ``done`` of the error counts what is moved already,
                which is nothing inside a transaction.
            TransactionUnknown: An append is in doubt; ``done`` counts as for ``Busy``.
            TransactionNotGiven: ``transaction=`` was left out inside a transaction block.
            TransactionFinished: The given transaction takes no more work.
            TransactionMismatch: The given transaction belongs to another manager.

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

    def redrive(
        self,
        where: str | None = None,
        *,
        limit: int | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Send dead letters back to the queues and lanes that they came from.

        Among messages of their priority they come last, and their delivery counts start at 0
        again. Messages that were sent to this queue stay.

        Args:
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``,
                such as ``"_message.origin.reason = 'deliveries_max'"``.
            limit: At most this many; all when left out.
            transaction: As in ``move``.

        Returns:
            The number of messages sent back.

        Raises:
            QueueNotFound: A queue that some of them came from no longer exists. None was sent
                back, unless that queue was dropped during the call: the error says how many were.
            LimitExceeded: As in ``move``.
            QueueClosed: As in ``move``.
            Busy: As in ``move``.
            TransactionUnknown: As in ``move``.
            TransactionNotGiven: As in ``move``.
            TransactionFinished: As in ``move``.
            TransactionMismatch: As in ``move``.
        """
        tx = self._resolve(transaction, f"{self.name}.redrive")

        def route_of(part: QueuePart) -> Route:
            return to_origin(part.client)

        selector = self._selector(where, few=limit is not None)
        among = came_from_elsewhere
        return self._move(tx, route_of, "redriven", selector, limit, among=among, routed_first=True)

    def purge(self, where: str | None = None, *, reason: str | None = None) -> int:
        """Delete messages for good, on record.

        Messages in flight stay with their holder, who may still accept, reject or move them. If
        they would return to the queue (release, rollback, expired lease), they are purged
        instead.

        Args:
            where: Only messages that match this SQL predicate over the columns of ``Batch.df``.
            reason: The reason, recorded in the history.

        Returns:
            The number of messages deleted at once.

        Raises:
            LimitExceeded: The selected messages lie in too many ranges; nothing was changed.
            QueueClosed: The queue is being dropped; once dropped, ``QueueNotFound``.
            Busy: Others won every conflict; ``done`` of the error counts what is purged already.
            TransactionUnknown: An append is in doubt; ``done`` counts as for ``Busy``.
            TransactionNotGiven: The call was made inside a transaction.
        """
        return self._purge(None, where, reason)

    # ------------------------------------------------------------------------- altering

    def alter(
        self, add: str | StructType | None = None, **settings: Unpack[ChangeableSettings]
    ) -> dict[str, tuple[object, object]]:
        """Add columns to the queue, or change its settings, while others work on it.

        Existing messages, and sends staged before the change, have null in the new columns.
        The dead-letter queue gets the columns too. Repeating the call changes nothing.

        Args:
            add: Nullable columns, as DDL or ``StructType``.
            **settings: New values of ``lease_seconds``, ``deliveries_max``,
                ``redelivery_delay_seconds``, ``redelivery_delay_seconds_max``,
                ``dead_letter_expired`` or ``delay_step_seconds``, as ``create_queue`` takes
                them; the other settings are fixed. Messages that already wait for their
                redelivery follow the new values.

        Returns:
            The changes: by the name of the setting, or ``column <name>``, the former and the new
            value; of a column, None and its type.

        Raises:
            SchemaMismatch: A column is not nullable, or exists with another type.
            InvalidInput: A setting is fixed, or its value cannot be used.
            QueueInUse: Columns of a dead-letter queue follow those of the queue that uses it.
            QueueClosed: The queue is being dropped.
            TransactionNotGiven: The call was made inside a transaction.
        """
        at_once(self._client, f"{self.name}.alter", self._bound)
        columns = None if add is None else schema_from(self._client.store.spark, add, "add")
        if columns is not None:
            check_schema(columns, None)
        return alter(self._client, self.info, columns, settings)

    def drop(self, *, reason: str | None = None) -> QueueDropResult:
        """Drop exactly this queue with all its messages.

        Repeating the call continues a drop that is not finished. ``manager.drop_queue`` drops the
        queue that has the name now, which may have been created since this one was opened.

        From the first step on the queue is closing: an open transaction that sent to it or
        received from it cannot commit and is aborted. A prepared transaction delays the second
        step until it is decided; then drop again, or call ``manager.recover()``. The history
        stays, and so does the dead-letter queue, which can be dropped afterwards.

        Args:
            reason: The reason, recorded in the history.

        Returns:
            Whether the queue is gone, and if not, what holds it back.

        Raises:
            QueueInUse: The queue takes the dead letters of another queue.
            TransactionNotGiven: The call was made inside a transaction.
        """
        at_once(self._client, f"{self.name}.drop", self._bound)
        reason = check_text("reason", reason)
        return drop_queue(self._client, self.info, reason)

    # -------------------------------------------------------------------------- helpers

    @property
    def _bound(self) -> Attempt | None:
        """The attempt that calls without ``transaction=`` work in; None outside a transaction."""
        return self._attempt

    def _resolve(self, transaction: Transaction | NotGiven | None, what: str) -> Attempt | None:
        self._client.open()
        return resolve(self._client, transaction, what, self._bound)

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

    def _send(self, rows: Rows, options: SendOptions, inside: Attempt | None) -> SendResult:
        """Send messages in the given attempt, or in a new one that commits at once."""
        tx = inside or Attempt(self._client)
        tx.check_active()
        if tx.already_committed:
            return SendResult(0, "", tx.id, tx.receipt)
        send = self._staged(rows, options, tx)
        if inside is None and send.count:
            commit_alone(tx)
        return SendResult(send.count, send.send_id, tx.id, tx.receipt)

    def _staged(
        self,
        rows: Rows,
        options: SendOptions,
        tx: Attempt,
        *,
        record: Callable[[StagedSend], None] | None = None,
    ) -> StagedSend:
        """Stage messages in an attempt, which records them unless ``record`` does."""
        check_not_streaming(rows, f"{self.name}.send", "queue.sink()")
        self._client.states.check_open(self.info)
        info = self.info
        placing = options.placing(info.settings, self._client.runtime.now_ms())
        kept = is_kept(options.durable, tx, self.name, otherwise=info.settings.durable)

        def stage_rows() -> StagedSend:
            return staged(
                self._client,
                self.info,
                self.schema,
                tx,
                rows,
                options=options,
                placing=placing,
                durable=kept,
                record=record,
            )

        try:
            return stage_rows()
        except SchemaMismatch:
            if not self._client.cache.renewed(info):  # the rows may have columns added since
                raise
            return stage_rows()

    def _first(self, limit: int, where: str | None) -> tuple[list[Part], list[TransientRows]]:
        check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        self._client.open()
        return browse.first(self._client, self.info, limit, self._selector(where, few=True))

    def _move(
        self,
        tx: Attempt | None,
        route_of: Callable[[QueuePart], Route],
        reason: str,
        selector: Selector | None,
        limit: int | None,
        *,
        among: Callable[[Segment], bool] = lambda _segment: True,
        routed_first: bool = False,
    ) -> int:
        """Move waiting messages, by the commit of an attempt or at once."""
        if tx is not None:
            tx.follow_memory()
        return acquisition.move(
            self._client,
            self.info,
            tx,
            route_of,
            reason,
            selector=selector,
            limit=limit,
            among=among,
            routed_first=routed_first,
        )

    def _purge(self, gone: removal.Gone | None, where: str | None, reason: str | None) -> int:
        """Delete messages, and pass those that are deleted at once to ``gone``."""
        self._client.open()
        at_once(self._client, f"{self.name}.purge", self._bound)
        reason = check_text("reason", reason)
        selector, progress = self._selector(where), removal.Progress()
        with progress.telling("purged"):
            for part in self._client.parts_of(self.info):
                removal.purge(
                    part.client, part.info, selector, reason, progress=progress, gone=gone
                )
        return progress.removed


def _check_functions(**functions: object) -> None:
    """Check that the given functions can be called; only the handler is required.

    Raises:
        InvalidInput: One of them cannot be called.
    """
    for name, called in functions.items():
        if called is not None or name == "handler":
            check_function(name, called)


def send_with(
    queue: Queue, rows: Rows, options: SendOptions, transaction: Transaction | NotGiven | None
) -> SendResult:
    """Send to a queue with prepared options; for the library's own packages."""
    return queue._send(rows, options, queue._resolve(transaction, f"{queue.name}.send"))


def stage_with(
    queue: Queue, rows: Rows, attempt: Attempt, record: Callable[[StagedSend], None]
) -> StagedSend:
    """Stage rows that ``record`` records in the attempt; for the library's own packages."""
    return queue._staged(rows, SendOptions(), attempt, record=record)
