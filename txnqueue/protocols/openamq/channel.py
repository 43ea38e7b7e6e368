"""Channels: what is sent and acknowledged on one can be a transaction."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from txnqueue.catalog import DEAD_SUFFIX
from txnqueue.config import MESSAGES_PER_RECEIVE_MAX, check_number
from txnqueue.deciding import Receipt
from txnqueue.deciding import Status as Outcome
from txnqueue.errors import (
    LeaseLost,
    TransactionAborted,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.protocols.openamq.lists import (
    Consumer,
    Dispatch,
    Held,
    Reply,
    Status,
    by_batch,
    held_by,
    ids,
)
from txnqueue.queue import Queue
from txnqueue.transaction import Transaction

if TYPE_CHECKING:
    from txnqueue.protocols.openamq.connection import Connection

logger = logging.getLogger("txnqueue")
Tags = int | Iterable[int]
DISPATCHED_MAX = 1_000


class Channel:
    """A conversation with the store: what it sends and acknowledges can be a transaction."""

    def __init__(self, connection: Connection, *, lease_seconds: float | None = None) -> None:
        """Open a channel, not transacted; users get it from ``Connection.channel``."""
        self._connection = connection
        self._manager = connection.manager
        self._lease_seconds = lease_seconds
        self._transacted = False
        self._closed = False
        self._tag = 0
        self._dispatched: dict[int, Dispatch] = {}
        self._held: list[Held] = []
        self._transaction: Transaction | None = None

    @property
    def dispatch_list(self) -> list[Dispatch]:
        """What is dispatched to this channel, and not settled; in the order of the tags."""
        return list(self._dispatched.values())

    @property
    def transact_list(self) -> list[Held]:
        """What was sent in the transaction that is open, in order."""
        return list(self._held)

    @property
    def transaction_id(self) -> str | None:
        """The id of the open transaction, as ``manager.outcome`` knows it; None: there is none."""
        return self._transaction.id if self._transaction is not None else None

    def select(self, transacted: bool = True) -> Reply:
        """Say whether sends and acknowledgements belong to a transaction from now on.

        A send or an acknowledgement may say otherwise for itself.

        Raises:
            TransactionFinished: The channel is closed.
        """
        self._check_open()
        self._transacted = transacted
        return Reply()

    def send(
        self,
        queue: str,
        rows: object,
        *,
        persistent: bool = True,
        transacted: bool | None = None,
        **placing: Any,
    ) -> Reply:
        """Send complete messages, one per row: held until the commit, or straight to the queue.

        Args:
            queue: The queue's name.
            rows: As in ``Queue.send``.
            persistent: Whether the store keeps them; others are in memory only.
            transacted: Whether they belong to the transaction; as selected when left out.
            **placing: What ``Queue.send`` takes besides: priority, headers, …

        Raises:
            SchemaMismatch: As in ``Queue.send``; nothing is held and nothing was sent.
            TransactionUnknown: Sent straight, in doubt; or an earlier commit is.
        """
        self._check_open()
        target = self._manager.queue(queue)
        if not (self._transacted if transacted is None else transacted):
            sent = target.send(rows, durable=persistent, transaction=None, **placing)
            self._connection.dispatch_waiting([queue] if sent.count else ())
            return Reply(count=sent.count, receipt=sent.receipt)
        transaction = self._open_transaction()
        sent = target.send(rows, durable=persistent, transaction=transaction, **placing)
        if sent.count:
            staged = transaction.staged[-1]
            self._held.append(Held(queue, sent.count, persistent, target, staged))
        return Reply(count=sent.count)

    # ------------------------------------------------------------------------- dispatching

    def dispatch(self, queue: str | None = None, *, limit: int = DISPATCHED_MAX) -> Reply:
        """Dispatch waiting messages to this channel, of both kinds.

        Args:
            queue: The queue; when left out all that have messages, but for those that take
                the dead letters of others.
            limit: At most so many of each queue.
        """
        self._check_open()
        check_number("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)
        names = self._manager.list_queues() if queue is None else [queue]
        if queue is None:
            names = [name for name in names if not name.endswith(DEAD_SUFFIX)]
        found: list[Dispatch] = []
        for name in names:
            found += self._dispatch(self._manager.queue(name), limit)
        return Reply(count=len(found), dispatches=tuple(found))

    def consume(
        self, queue: str, deliver: Callable[[Dispatch], object], *, limit: int = DISPATCHED_MAX
    ) -> Reply:
        """Wait for messages of a queue: they are dispatched here whenever a channel adds some.

        What waits already is dispatched at once. A consumer hears of sends and commits of the
        channels of its connection; what other clients send comes with the next ``dispatch``.

        Args:
            queue: The queue's name.
            deliver: Called with each dispatch. What it raises is logged, and the message
                stays dispatched.
            limit: At most so many at a time.
        """
        self._check_open()
        self._manager.queue(queue)
        consumer = Consumer(self, queue, deliver, limit)
        self._connection.consumers.append(consumer)
        return Reply(count=self.deliver(consumer))

    def _dispatch(self, source: Queue, limit: int) -> list[Dispatch]:
        batch = source.receive(limit, lease_seconds=self._lease_seconds, transaction=None)
        found = []
        for one in batch.claims:
            for position_id, ranges in one.claim.items.items():
                for message_id in ids(one.positions[position_id].send_id, ranges):
                    self._tag += 1
                    durable = not one.info.transient
                    found.append(
                        Dispatch(self._tag, source.name, message_id, durable, _batch=batch)
                    )
        self._dispatched.update((dispatch.tag, dispatch) for dispatch in found)
        return found

    def deliver(self, consumer: Consumer) -> int:
        """Dispatch what a consumer waits for; answers how much that is."""
        found = self._dispatch(self._manager.queue(consumer.queue), consumer.limit)
        for dispatch in found:
            try:
                consumer.deliver(dispatch)
            except Exception as error:  # what was committed is committed, whoever cannot take it
                logger.warning("consumer failed queue=%s error=%s", consumer.queue, error)
        return len(found)

    # -------------------------------------------------------------------- acknowledgements

    def ack(self, tags: Tags | None = None, *, transacted: bool | None = None) -> Reply:
        """Acknowledge dispatched messages: at once, or with the commit.

        Args:
            tags: One tag, or several, as a ``range`` or a list; all that are not acknowledged
                when left out. A tag that matches nothing is no error.
            transacted: Whether it belongs to the transaction; as selected when left out.

        Returns:
            How many were acknowledged.

        Raises:
            LeaseLost: Other clients may have some of them now; nothing was acknowledged.
        """
        self._check_open()
        found = [one for one in self._matching(tags) if not one.acknowledged]
        if self._transacted if transacted is None else transacted:
            if found:
                self._open_transaction()
            for one in found:
                one.acknowledged = True
            return Reply(count=len(found))
        self._accept(found)
        return Reply(count=len(found))

    def _accept(self, found: list[Dispatch]) -> None:
        """Consume messages at once: by one append, whenever they were dispatched."""
        by_receive = by_batch(found)
        with self._forgetting_lost():
            if len(by_receive) == 1:
                ((batch, names),) = by_receive
                batch.accept(matching=names, transaction=None)
            elif by_receive:
                with self._manager.transaction() as transaction:
                    for batch, names in by_receive:
                        batch.accept(matching=names, transaction=transaction)
        self._destroy(found)

    def unget(self, tag: int) -> Reply:
        """Give one dispatched message back to its queue, at once, for anybody.

        Args:
            tag: Its tag.

        Returns:
            The status ``NO_MATCH``, and nothing has changed, if no dispatched message has this
            tag, or if its acknowledgement waits for the commit.

        Raises:
            LeaseLost: Other clients may have it now.
        """
        self._check_open()
        found = [one for one in self._matching(tag) if not one.acknowledged]
        if len(found) != 1:
            return Reply(Status.NO_MATCH)
        self._unget(found)
        return Reply(count=1)

    def _unget(self, found: list[Dispatch]) -> None:
        for batch, names in by_batch(found):
            with self._forgetting_lost():
                batch.release(matching=names, transaction=None)
        self._destroy(found)

    # ------------------------------------------------------------------------- transactions

    def commit(self) -> Reply:
        """Decide: what was sent is in its queues, what was acknowledged is gone. One append.

        What is dispatched and not acknowledged stays as it is. Queues that got messages are
        then dispatched to the consumers that wait for them.

        Returns:
            How many messages were sent and acknowledged, and the receipt.

        Raises:
            TransactionAborted: Surely not committed; it is as after a roll back.
            LeaseLost: The same, because other clients may have some of the messages now.
            TransactionUnknown: In doubt; ``commit`` again asks what became of it.
        """
        self._check_open()
        transaction, acknowledged = self._transaction, self._acknowledged()
        if transaction is None:
            return Reply()
        if transaction.status is Outcome.UNKNOWN:
            receipt = self._settled_doubt(transaction)
        else:
            receipt = self._commit(transaction, acknowledged)
        return self._committed(receipt, acknowledged)

    def rollback(self) -> Reply:
        """Drop what was sent, and take acknowledgements back; no message goes to its queue.

        Returns:
            How many messages were dropped and are unacknowledged again.

        Raises:
            TransactionFinished: A commit that was in doubt has happened.
            TransactionUnknown: It still is in doubt.
        """
        self._check_open()
        acknowledged, count = self._acknowledged(), sum(one.count for one in self._held)
        if self._transaction is not None:
            try:
                self._transaction.rollback("rolled back")
            except TransactionFinished:
                if self._transaction.receipt is not None:
                    self._committed(self._transaction.receipt, acknowledged)
                raise
        self._rolled_back()
        return Reply(count=count + len(acknowledged))

    def close(self) -> Reply:
        """Roll the open transaction back, and give back whatever is dispatched."""
        if self._closed:
            return Reply()
        reply = self.rollback()
        consumers = self._connection.consumers
        consumers[:] = [one for one in consumers if one.channel is not self]
        for batch in {dispatch._batch: None for dispatch in self.dispatch_list}:
            with contextlib.suppress(LeaseLost):  # others have the rest of it already
                self._unget([one for one in self.dispatch_list if one._batch is batch])
        self._dispatched.clear()
        self._closed = True
        return reply

    def _commit(self, transaction: Transaction, acknowledged: list[Dispatch]) -> Receipt:
        try:
            with self._forgetting_lost():
                for batch, names in by_batch(acknowledged):
                    if not transaction.interrupted:
                        batch.accept(matching=names, transaction=transaction)
                return transaction.commit()
        except (TransactionAborted, LeaseLost):
            transaction.rollback()
            self._rolled_back()
            raise

    def _settled_doubt(self, transaction: Transaction) -> Receipt:
        """Ask what became of a commit that was in doubt.

        Raises:
            TransactionUnknown: Nobody knows yet; ``rollback`` decides it.
            TransactionAborted: It was rolled back.
        """
        outcome = self._manager.outcome(transaction.id)
        if outcome.receipt is not None:
            return outcome.receipt
        if outcome.status is Outcome.ROLLED_BACK:
            self._rolled_back()
            raise TransactionAborted(
                f"Transaction {transaction.id!r} was rolled back.", transaction_id=transaction.id
            )
        raise TransactionUnknown(
            f"The outcome of {transaction.id!r} is in doubt still: rollback() decides it, unless "
            "it happened.",
            transaction_id=transaction.id,
        )

    def _committed(self, receipt: Receipt, acknowledged: list[Dispatch]) -> Reply:
        count = len(acknowledged) + sum(one.count for one in self._held)
        queues = list(dict.fromkeys(one.queue for one in self._held))
        self._destroy(acknowledged)
        self._held.clear()
        self._transaction = None
        self._connection.dispatch_waiting(queues)
        return Reply(count=count, receipt=receipt)

    def _rolled_back(self) -> None:
        for dispatch in self._dispatched.values():
            dispatch.acknowledged = False
        self._held.clear()
        self._transaction = None

    def _open_transaction(self) -> Transaction:
        if self._transaction is None:
            self._transaction = self._manager.transaction()
        self._transaction.check_active()
        return self._transaction

    # -------------------------------------------------------------------------- helpers

    def _check_open(self) -> None:
        if self._closed:
            raise TransactionFinished("The channel is closed: open another one.")

    def _matching(self, tags: Tags | None) -> list[Dispatch]:
        """Find the dispatched messages that are meant, in the order of their tags."""
        if tags is None:
            return self.dispatch_list
        wanted = {tags} if isinstance(tags, int) else set(tags)
        return [dispatch for tag, dispatch in self._dispatched.items() if tag in wanted]

    def _acknowledged(self) -> list[Dispatch]:
        return [dispatch for dispatch in self._dispatched.values() if dispatch.acknowledged]

    def _destroy(self, settled: Iterable[Dispatch]) -> None:
        for dispatch in list(settled):
            self._dispatched.pop(dispatch.tag, None)

    @contextmanager
    def _forgetting_lost(self) -> Iterator[None]:
        """Take what others have by now out of the list, when it turns out so."""
        try:
            yield
        except LeaseLost:
            for batch in {one._batch: None for one in self._dispatched.values()}:
                held = set(held_by(self._manager._client, batch))
                mine = [one for one in self._dispatched.values() if one._batch is batch]
                self._destroy(one for one in mine if one.message_id not in held)
            raise

    def __enter__(self) -> Channel:
        """Use the channel for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
