"""A queue as its users hold it: send, receive, peek, depth, drain."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from txnqueue import looking
from txnqueue.batch import Batch
from txnqueue.client import Client
from txnqueue.config import (
    LEASE_SECONDS_MAX,
    MESSAGES_PER_RECEIVE_MAX,
    QueueInfo,
    check_number,
)
from txnqueue.consumer import Bounds, Drain, DrainResult, Handler
from txnqueue.errors import InvalidInput, SchemaMismatch
from txnqueue.gathering import Upto, gather, upto_of
from txnqueue.ledger import QueueFold
from txnqueue.payload import Part
from txnqueue.placing import check_headers, placing_of
from txnqueue.receiving import Held, Receiver, Wanting
from txnqueue.scope import NOT_GIVEN, NotGiven
from txnqueue.selecting import Selector
from txnqueue.sending import Sent, staged
from txnqueue.staging import is_kept
from txnqueue.transaction import Transaction, commit_alone
from txnqueue.types import Message, Rows, Until
from txnqueue.upkeep import Upkeep
from txnqueue.waiting import Patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txnqueue.transient import Carried


class Queue(Upkeep):
    """A queue of a store. Every call is its own transaction unless one is given."""

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
    ) -> Sent:
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
            ttl_seconds: The messages expire so many seconds from now: they are delivered no
                more, and go to the dead-letter queue with ``dead_letter_expired``.
            headers: Headers that all these messages get, as strings by name. Those called
                ``correlation_id`` and ``reply_to`` have columns of their own in ``_message``.
            header_columns: Columns of the rows that headers are taken from, by the headers'
                names: strings, whole numbers, booleans or dates. They need not be the queue's.
            durable: Whether the messages are kept in the store; the queue's setting when left
                out. Others are kept in the memory of this process only, with the same
                transactions and no Delta commit: they are gone when the process ends.
            transaction: The transaction that sends them; None commits at once.

        Returns:
            How many, and what they are called.

        Raises:
            SchemaMismatch: A column is unknown, missing, of another type or null though it
                may not be; nothing was staged.
            LimitExceeded: So many different delays and priorities are too many for one send,
                or there is no memory left for transient messages.
            QueueClosed: The queue is being dropped; after that it is ``QueueNotFound``.
            TransactionNotGiven: Inside a block, ``transaction=`` was left out.
        """
        inside = self._resolve(transaction, f"{self.name}.send")
        tx = inside or Transaction(self._client, None)
        tx.check_active()
        if tx.already_committed:
            return Sent(0, "", tx.id, tx.receipt)
        self._client.check_open(self._info)
        info, now_ms = self._info, self._client.runtime.now_ms()
        placing = placing_of(
            info.settings, now_ms, priority, available_at, delay_seconds, ttl_seconds
        )
        kept = is_kept(durable, info.settings.durable, tx, self.name)
        said = check_headers(headers or {}, header_columns or {})
        try:
            send = staged(
                self._client, self._info, self.schema, tx, kept, rows, order_by, placing, *said
            )
        except SchemaMismatch:
            if not self._client.renewed(info):  # columns that came since may be meant
                raise
            send = staged(
                self._client, self._info, self.schema, tx, kept, rows, order_by, placing, *said
            )
        count = sum(run.count for run in send.runs)
        if inside is None and count:
            commit_alone(tx)
        return Sent(count, send.send_id, tx.id, tx.receipt)

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
            limit: At most so many messages.
            lease_seconds: For how long they are held; the queue's setting when left out.
            where: Only messages that fulfil this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included. It is evaluated over all that waits.
            matching: Instead, only messages that have a match in this DataFrame.
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
        if not isinstance(limit, int):
            raise InvalidInput(f"limit={limit!r}: give a whole number.")
        check_number("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        tx = self._resolve(transaction, f"{self.name}.receive")
        check_number("wait_seconds", wait_seconds, 0, LEASE_SECONDS_MAX)
        wanted = self._selector(where, matching, on)
        if tx is not None and tx.already_committed:
            return Batch(self._client, self.schema, [], tx)
        patience = Patience(self._client, self._info, wait_seconds)
        while True:
            of_lane = wanted.of_lane if wanted else None
            batch = self.claim(limit, tx, lease_seconds, wanted=of_lane)
            if len(batch) or not patience.until_something_changes():
                return batch

    def peek(self, limit: int = 20, where: str | None = None) -> DataFrame:
        """Look at the first available messages without claiming them.

        Args:
            limit: At most so many messages.
            where: Only messages that fulfil this SQL predicate over the columns of ``df``.

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
        rows: list[Message] = self._client.payload.table(self.schema, parts).to_pylist()
        del carried
        return rows

    def depth(self) -> int:
        """Count what can be received now: not in flight, not delayed, not expired.

        What a lease, a transaction or a branch holds that is over counts as in flight until
        somebody receives it, or recovers.
        """
        now_ms = self._client.runtime.now_ms()

        def available(fold: QueueFold) -> int:
            return fold.available(now_ms, self._info.redelivery)

        return looking.total(self._client, self._info, available)

    def in_flight(self) -> int:
        """Count what is received and not settled."""
        return looking.total(self._client, self._info, QueueFold.in_flight)

    def drain(
        self,
        handler: Handler,
        *,
        where: str | None = None,
        batch_size: int = 100_000,
        run_id: str | None = None,
        until: Until = "start",
        max_seconds: float | None = None,
        max_messages: int | None = None,
        max_batches: int | None = None,
        errors_max: int = 20,
        on_batch: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> DrainResult:
        """Consume the queue batch by batch, each batch in one transaction.

        In the steady state a batch costs one append, which is its commit and the claim of
        the next one. When the handler fails, its batch is rolled back and redelivered: once as
        it was, then in smaller pieces, until what fails is alone and goes to the dead-letter
        queue. If all that is left waits for its redelivery, the drain ends unfinished. An error
        that no message can cause ends the drain at once, and counts no delivery; until a batch
        has succeeded, of the others only the first counts.

        Args:
            handler: ``handler(batch, tx)``; ``tx.queue(name)`` gives queues to send to. It
                may see messages again, so effects outside of the transaction need a key.
            where: Only messages that fulfil this SQL predicate over the columns of
                ``Batch.df``, ``_message`` included; each message is looked at once.
            batch_size: At most so many messages in a batch.
            run_id: Names the run: repeated with the same id it goes on after the last
                committed batch, and a finished run claims nothing.
            until: ``start``: what was there at the start; ``empty``: until nothing is left.
            max_seconds: Begin no further batch after so many seconds.
            max_messages: Begin no further batch after so many messages.
            max_batches: Begin no further batch after so many batches.
            errors_max: Give up after so many failures in a row.
            on_batch: Called with the number of messages after each commit.
            stopped: Asked before each batch; true: the one at hand is the last.

        Returns:
            What was consumed, and how it ended.

        Raises:
            HandlerFailed: The handler failed ``errors_max`` times in a row, or by a mistake of
                the job: a queue or table that is not there, wrong columns, ``NameError``.
            QueueClosed: This queue, or one that the handler sent to, is being dropped.
        """
        for name, called in {"handler": handler, "on_batch": on_batch, "stopped": stopped}.items():
            if not callable(called) and (called is not None or name == "handler"):
                raise InvalidInput(f"{name}={called!r}: give a function.", name=name)
        bounds = Bounds(max_seconds, max_messages, max_batches)
        if stopped is not None:
            bounds = replace(bounds, stopped=stopped)
        selector = self._selector(where)
        drain = Drain(self._client, self, handler, batch_size, run_id, errors_max, selector)
        return drain.run(until, bounds, on_batch)

    # ----------------------------------------------------------------------- for drains

    def claim(
        self,
        limit: int,
        transaction: Transaction | None,
        lease_seconds: float | None = None,
        upto: Upto | None = None,
        wanted: Wanting | None = None,
        before: Sequence[Held] = (),
    ) -> Batch:
        """Claim a batch, of both kinds of messages.

        Args:
            limit: At most so many messages.
            transaction: What acquires them; None for a lease.
            lease_seconds: For how long they are held.
            upto: Leave out what was posted after this.
            wanted: Cuts what a selector wants out of segments of a lane.
            before: What was claimed already and belongs to the batch.
        """

        def make(side: Client, part: QueueInfo, left: int, fresh_only: bool) -> Receiver:
            version = upto_of(upto, part)
            seconds = self._lease_seconds(transaction, lease_seconds)
            return Receiver(
                side, part, left, seconds, transaction, version, None, wanted, fresh_only
            )

        held = gather(self._client, self._info, limit, transaction, make, before)
        batch = Batch(self._client, self.schema, held, transaction)
        if transaction is not None and len(batch):
            transaction.add_batch(batch)
        return batch

    def receiver(
        self,
        limit: int,
        transaction: Transaction | None,
        upto: Upto | None = None,
        joined_with: str | None = None,
        wanted: Wanting | None = None,
    ) -> Receiver:
        """Make the planner of a claim of durable messages that is joined with a commit."""
        seconds = self._lease_seconds(transaction, None)
        version = upto_of(upto, self._info)
        return Receiver(
            self._client, self._info, limit, seconds, transaction, version, joined_with, wanted
        )

    def left(self, upto: Upto | None, selector: Selector | None = None) -> tuple[bool, int]:
        """Say whether there is something to receive, as ``looking.left``."""
        return looking.left(self._client, self._info, upto, selector)

    # -------------------------------------------------------------------------- helpers

    def _lease_seconds(self, transaction: Transaction | None, lease_seconds: float | None) -> float:
        seconds = lease_seconds
        if seconds is None and transaction is not None:
            seconds = transaction.lease_seconds
        if seconds is None:
            seconds = self._info.settings.lease_seconds
        check_number("lease_seconds", seconds, 0.001, LEASE_SECONDS_MAX)
        return seconds

    def _first(self, limit: int, where: str | None) -> tuple[list[Part], list[Carried]]:
        check_number("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        self._client.open()
        return looking.first(self._client, self._info, limit, self._selector(where))
