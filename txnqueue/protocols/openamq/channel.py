"""Channels, whose sends and acknowledgements can be transactional."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any

from txnqueue.batch import Batch, unsay
from txnqueue.core.handlers import check_function, check_ran
from txnqueue.core.receipt import Receipt
from txnqueue.core.receipt import Status as Outcome
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    MESSAGES_PER_RECEIVE_MAX,
    check_count,
    check_flag,
    check_number,
    check_text,
)
from txnqueue.core.state import catalog
from txnqueue.errors import (
    InvalidInput,
    QueueClosed,
    QueueNotFound,
    TransactionAborted,
    TransactionFinished,
    TransactionNotGiven,
    TransactionUnknown,
)
from txnqueue.exchange import Exchange
from txnqueue.manager import client_of
from txnqueue.protocols.openamq.dispatches import (
    LOST,
    Dispatches,
    Tags,
    check_whole,
    delivery_failed,
)
from txnqueue.protocols.openamq.lists import Consumer, Dispatch, Held, Reply, Status, by_batch
from txnqueue.queue import Queue
from txnqueue.transaction import Transaction, attempt_of

if TYPE_CHECKING:
    from txnqueue.protocols.openamq.connection import Connection
    from txnqueue.types import Rows

logger = logging.getLogger("txnqueue")
DISPATCHED_MAX = 1_000
_OWN = {"self", "rows", "routing_key", "durable", "transaction"}
_PLACING = signature(Queue.send).parameters.keys() - _OWN
_ROUTING = signature(Exchange.publish).parameters.keys() - _OWN


class Channel:
    """A conversation with the store, whose sends and acknowledgements can be transactional."""

    def __init__(self, connection: Connection, *, lease_seconds: float | None = None) -> None:
        """Open a channel without transactions; use ``Connection.channel``."""
        if lease_seconds is not None:
            check_number("lease_seconds", lease_seconds, 0.001, LEASE_SECONDS_MAX)
        self._connection = connection
        self._manager = connection.manager
        self._lease_seconds = lease_seconds
        self._closed = False
        self._dispatches = Dispatches(connection.manager)
        self._consumer = 0
        self._given_back: Counter[str] = Counter()
        self._transacted = False
        self._transactional = False
        self._transaction: Transaction | None = None
        self._changing = threading.RLock()
        """Held while the transaction changes: a consumer may be called in another thread."""
        self._committed_to: list[str] = []
        """The queues that got messages by a commit, until they are dispatched."""

    @property
    def transact_list(self) -> list[Held]:
        """The messages sent in the open transaction, in order."""
        if self._transaction is None:
            return []
        client = client_of(self._manager)
        return [
            Held(
                queue.name,
                sum(run.count for run in staged.runs),
                not staged.info.transient,
                queue,
                staged,
            )
            for staged in attempt_of(self._transaction).staged
            for queue in [Queue(client, staged.info)]
        ]

    @property
    def dispatch_list(self) -> list[Dispatch]:
        """The messages dispatched to this channel and not settled, in the order of their tags.

        It does not contain messages that a consumer has yet to be called with; no call settles
        those.
        """
        return self._dispatches.listed()

    @property
    def transaction_id(self) -> str | None:
        """The id of the open transaction, for ``manager.outcome``; None if there is none."""
        return self._transaction.id if self._transaction is not None else None

    def select(self, *, transacted: bool = True) -> Reply:
        """Set the default: whether sends and acknowledgements belong to a transaction.

        Each send or acknowledgement can override it.

        Raises:
            TransactionFinished: The channel is closed.
        """
        self._check_open()
        self._transacted = check_flag("transacted", transacted)
        self._transactional = self._transactional or transacted
        return Reply()

    def send(
        self,
        queue: str,
        rows: Rows,
        *,
        persistent: bool = True,
        transacted: bool | None = None,
        **placing: Any,
    ) -> Reply:
        """Send messages, one per row: held until the commit, or directly to the queue.

        Args:
            queue: The queue's name.
            rows: As in ``Queue.send``.
            persistent: Whether the store keeps them; otherwise they are in memory only.
            transacted: Whether they belong to the transaction; if omitted, as selected.
            **placing: Other arguments of ``Queue.send``: priority, headers, …

        Raises:
            SchemaMismatch: As in ``Queue.send``; nothing is held and nothing was sent.
            TransactionUnknown: A direct send, or an earlier commit, is in doubt.
        """
        self._check_open()
        check_flag("persistent", persistent)
        _check_given("send", placing, _PLACING)
        target = self._manager.queue(queue)
        if not self._is_transacted(transacted=transacted):
            sent = target.send(rows, durable=persistent, transaction=None, **placing)
            self._connection.dispatch_waiting([queue] if sent.count else ())
            return Reply(count=sent.count, receipt=sent.receipt)
        with self._changed_alone():
            inside = self._open_transaction()
            sent = target.send(rows, durable=persistent, transaction=inside, **placing)
        return Reply(count=sent.count)

    def publish(
        self,
        exchange: str,
        rows: Rows,
        routing_key: str = "",
        *,
        persistent: bool = True,
        transacted: bool | None = None,
        **placing: Any,
    ) -> Reply:
        """Send messages to an exchange, whose bindings determine which queues get them.

        Args:
            exchange: The exchange's name.
            rows: As in ``Exchange.publish``.
            routing_key: The routing key of all these messages.
            persistent: As in ``send``.
            transacted: As in ``send``.
            **placing: Other arguments of ``Exchange.publish``: ``routing_key_column``, priority,
                headers, …

        Returns:
            The number published; ``published`` tells which queues get them.

        Raises:
            Unroutable: As in ``Exchange.publish``; nothing is held and nothing was sent.
            SchemaMismatch: As in ``send``.
            TransactionUnknown: As in ``send``.
        """
        self._check_open()
        check_flag("persistent", persistent)
        _check_given("publish", placing, _ROUTING)
        target = self._manager.exchange(exchange)
        publish = partial(
            target.publish, rows, routing_key=routing_key, durable=persistent, **placing
        )
        if self._is_transacted(transacted=transacted):
            with self._changed_alone():
                published = publish(transaction=self._open_transaction())
        else:
            published = publish(transaction=None)
            self._connection.dispatch_waiting(published.queues)
        return Reply(count=published.count, receipt=published.receipt, published=published)

    # ------------------------------------------------------------------------- dispatching

    def dispatch(self, queue: str | None = None, *, limit: int = DISPATCHED_MAX) -> Reply:
        """Dispatch waiting messages, durable and transient, to this channel.

        Args:
            queue: The queue; if omitted, all queues with messages, except those that take, or
                ever took, the dead letters of other queues.
            limit: The maximum number per queue.
        """
        self._check_open()
        _check_limit(limit)
        if queue is not None:
            names = [queue]
        else:
            dead_letters = self._taking_dead_letters()
            names = [name for name in self._manager.list_queues() if name not in dead_letters]
        found: list[Dispatch] = []
        for name in names:
            try:
                found += self._dispatch(self._manager.queue(name), limit)
            except Exception as error:  # the caller must learn of what is dispatched already
                gone = queue is None and isinstance(error, (QueueClosed, QueueNotFound))
                if not found and not gone:
                    raise
                logger.warning("queue not dispatched queue=%s error=%s", name, error)
        return Reply(count=len(found), dispatches=tuple(found))

    def consume(
        self, queue: str, deliver: Callable[[Dispatch], object], *, limit: int = DISPATCHED_MAX
    ) -> Reply:
        """Wait for messages of a queue, which are dispatched here whenever a channel adds some.

        Messages that already wait are dispatched at once. A consumer gets what the channels of its
        connection send and commit, and what other channels of it give back; messages from other
        clients arrive with the next ``dispatch``.

        Args:
            queue: The queue's name.
            deliver: Called with each dispatch. Its errors are logged, and the message stays
                dispatched.
            limit: The maximum number at a time: after it, other consumers of the queue get some,
                and then this one again.

        Returns:
            The number dispatched, and the consumer's number.
        """
        self._check_open()
        _check_limit(limit)
        check_function("deliver", deliver, "a function that gets a Dispatch")
        self._manager.queue(queue)
        self._consumer += 1
        consumer = Consumer(self, self._consumer, queue, deliver, limit)
        self._connection.consumers.append(consumer)
        try:
            return Reply(count=self._deliver_all(consumer), consumer=consumer.number)
        except BaseException:
            self.cancel(consumer.number)
            raise

    def cancel(self, consumer: int) -> Reply:
        """Stop a consumer; messages that it already has stay dispatched.

        Args:
            consumer: Its number, from the reply to ``consume``.

        Returns:
            The status ``NO_MATCH`` if this channel has no such consumer.
        """
        self._check_open()
        check_whole("consumer", consumer)
        mine = [one for one in self._consumers() if one.number == consumer]
        self._connection.cancel(mine)
        return Reply(Status.OK if mine else Status.NO_MATCH)

    def deliver(self, consumer: Consumer) -> int:
        """Dispatch as many messages as a consumer takes at a time, and return their number."""
        if consumer not in self._connection.consumers:
            return 0
        call = object()
        try:
            found = self._dispatch(self._manager.queue(consumer.queue), consumer.limit, call)
            for number, dispatch in enumerate(found):
                if consumer not in self._connection.consumers:  # cancelled by its own call
                    rest = [one for one in found[number:] if one in self._dispatches]
                    self._connection.dispatch_waiting(
                        self._dispatches.give_back(rest), given_back_by=self
                    )
                    return number
                if dispatch not in self._dispatches:  # lost meanwhile
                    continue
                dispatch._waits = None
                try:
                    check_ran(consumer.deliver(dispatch), "deliver")
                except Exception as error:  # a commit stands even if a consumer fails
                    logger.warning("consumer failed queue=%s error=%s", consumer.queue, error)
            return len(found)
        finally:
            for dispatch in self._dispatches.all():
                if dispatch._waits is call:  # it was interrupted
                    dispatch._waits = None

    # ---------------------------------------------------------------------------- settling

    def ack(self, tags: Tags | None = None, *, transacted: bool | None = None) -> Reply:
        """Acknowledge dispatched messages, at once or with the commit.

        Args:
            tags: One tag, or several as a ``range`` or a list; if omitted, all that are not
                acknowledged. A tag that matches nothing is not an error.
            transacted: Whether it belongs to the transaction; if omitted, as selected.

        Returns:
            The number acknowledged.

        Raises:
            LeaseLost: Other clients may have some of them now; these have left the dispatch list,
                and nothing was acknowledged.
            QueueNotFound: The same, because a queue was dropped; ``QueueClosed`` while it is being
                dropped.
        """
        self._check_open()
        with self._changed_alone():
            found = self._dispatches.unacknowledged(tags)
            if not self._is_transacted(transacted=transacted):
                self._dispatches.settle(found, _accepted)
            elif found:
                self._open_transaction()
                for one in found:
                    one.acknowledged = True
                self._dispatches.keep(found)
        return Reply(count=len(found))

    def unget(self, tag: int) -> Reply:
        """Give one dispatched message back to its queue at once, for any client.

        The delivery counts as failed, so a message that no consumer can process becomes a dead
        letter. Waiting consumers of other channels get it.

        Args:
            tag: Its tag.

        Returns:
            The status ``NO_MATCH``, with nothing changed, if no dispatched message has this tag or
            its acknowledgement waits for the commit.

        Raises:
            LeaseLost: Other clients may have it now.
            QueueNotFound: Its queue was dropped, and it has left the dispatch list.
        """
        self._check_open()
        found = self._dispatches.unacknowledged(check_whole("tag", tag))
        if not found:
            return Reply(Status.NO_MATCH)
        self._dispatches.settle(found, delivery_failed)
        self._given_back[found[0].queue] += 1
        self._connection.dispatch_waiting([found[0].queue], given_back_by=self)
        return Reply(count=1)

    def reject(self, tags: Tags | None = None, *, reason: str | None = None) -> Reply:
        """Move dispatched messages to their dead-letter queues at once; without one, delete them.

        Args:
            tags: As in ``ack``. Those whose acknowledgement waits for the commit stay.
            reason: The reason, recorded in the dead letters' ``_message.origin.reason``.

        Returns:
            The number rejected.

        Raises:
            LeaseLost: Other clients may have some of them now; nothing was rejected.
            QueueNotFound: As in ``ack``.
        """
        self._check_open()
        check_text("reason", reason)
        found = self._dispatches.unacknowledged(tags)
        self._dispatches.settle(
            found,
            lambda batch, names, inside: batch.reject(
                matching=names, reason=reason, transaction=inside
            ),
        )
        return Reply(count=len(found))

    def extend_lease(self, seconds: float) -> Reply:
        """Extend the lease of all dispatched messages; one that ends later stays as it is.

        Args:
            seconds: The new lease in seconds, from now.

        Returns:
            The number of messages held, without those that are known as lost.

        Raises:
            LeaseLost: Other clients may have some of them now, and these have left the
                dispatch list, except those whose acknowledgement waits for the commit, which will
                fail for them; extend the lease again for the rest.
            QueueNotFound: The same, because a queue was dropped; ``QueueClosed`` while it is being
                dropped.
        """
        self._check_open()
        check_number("seconds", seconds, 0.001, LEASE_SECONDS_MAX)
        return Reply(count=self._dispatches.extend_lease(seconds))

    # ------------------------------------------------------------------------- transactions

    def commit(self) -> Reply:
        """Commit what was sent and acknowledged, in one append.

        Dispatched messages that are not acknowledged stay as they are. The queues that got
        messages are then dispatched to waiting consumers.

        Returns:
            The number of messages sent and acknowledged, and the receipt.

        Raises:
            TransactionAborted: Certainly not committed; the state is that after a rollback.
                Messages of a dropped queue have left the dispatch list.
            LeaseLost: The same, because other clients may have some of the messages now.
            AlreadySettled: The same, because some were settled by other means.
            QueueNotFound: The same, because a queue was dropped.
            TransactionUnknown: In doubt; call ``commit`` again to find out the outcome.
            TransactionNotGiven: The channel never used transactions: what it sent and
                acknowledged has taken effect.
        """
        self._check_open()
        self._check_transactional("commit")
        with self._changed_alone():
            transaction, acknowledged = self._transaction, self._acknowledged()
            if transaction is None:
                return Reply()
            if transaction.receipt is not None:  # it committed, and was interrupted afterwards
                receipt = transaction.receipt
            elif transaction.status is Outcome.UNKNOWN:
                receipt = self._settled_doubt(transaction)
            else:
                receipt = self._commit(transaction, acknowledged)
            return self._committed(receipt, acknowledged)

    def rollback(self) -> Reply:
        """Drop sent messages and take acknowledgements back; no message returns to its queue.

        Returns:
            The number of messages dropped or unacknowledged again.

        Raises:
            TransactionFinished: A commit that was in doubt has happened.
            TransactionUnknown: It is still in doubt.
            TransactionNotGiven: As in ``commit``.
        """
        self._check_open()
        self._check_transactional("rollback")
        return self._roll_back()

    def close(self) -> Reply:
        """Roll back the open transaction, and give back all dispatched messages.

        For messages that were never looked at, the delivery does not count; for the others it
        does. Waiting consumers of other channels get them.
        """
        if self._closed:
            return Reply()
        reply = self._roll_back()
        self._connection.cancel(self._consumers())
        queues = self._dispatches.give_back(self._dispatches.all())
        self._dispatches.clear()
        self._closed = True
        self._connection.forget(self)
        self._connection.dispatch_waiting(queues, given_back_by=self)
        return reply

    # -------------------------------------------------------------------------- helpers

    def _deliver_all(self, consumer: Consumer) -> int:
        """Dispatch all messages of a queue, except those behind messages that are given back."""
        count, given_back = 0, self._given_back[consumer.queue]
        while True:
            try:
                found = self.deliver(consumer)
            except Exception as error:  # what was delivered before counts
                if not count:
                    raise
                logger.warning("dispatched in part queue=%s error=%s", consumer.queue, error)
                return count
            count += found
            if found < consumer.limit or self._given_back[consumer.queue] != given_back:
                return count

    def _dispatch(self, source: Queue, limit: int, waits: object = None) -> list[Dispatch]:
        """Claim until there are enough or none is left: redelivered messages come in pieces."""
        found: list[Dispatch] = []
        while len(found) < limit:
            try:
                left = limit - len(found)
                batch = source.receive(left, lease_seconds=self._lease_seconds, transaction=None)
            except Exception as error:  # the caller must learn of what is dispatched already
                if not found:
                    raise
                logger.warning("dispatched in part queue=%s error=%s", source.name, error)
                return found
            if not len(batch):
                return found
            found += self._dispatches.add(source, batch, waits)
        return found

    def _taking_dead_letters(self) -> set[str]:
        entries = client_of(self._manager).cache.catalog_entries()
        ids = {info.dead_letter_id for info in catalog.every_queue(entries).values()}
        return {name for name, info in catalog.queues(entries).items() if info.queue_id in ids}

    def _consumers(self) -> list[Consumer]:
        return [one for one in list(self._connection.consumers) if one.channel is self]

    def _check_open(self) -> None:
        if self._closed:
            raise TransactionFinished("The channel is closed: open another one.")

    def _roll_back(self) -> Reply:
        with self._changed_alone():
            acknowledged, count = self._acknowledged(), sum(one.count for one in self.transact_list)
            if self._transaction is not None:
                try:
                    self._transaction.rollback("rolled back")
                except TransactionFinished:
                    if self._transaction.receipt is not None:
                        self._committed(self._transaction.receipt, acknowledged)
                    raise
            self._rolled_back()
            return Reply(count=count + len(acknowledged))

    @contextmanager
    def _changed_alone(self) -> Iterator[None]:
        """Let no other thread change the transaction; then dispatch what was committed.

        Consumers are called without the lock, because they may wait for other channels.
        """
        try:
            with self._changing:
                yield
        finally:
            queues, self._committed_to = self._committed_to, []
            if queues:
                self._connection.dispatch_waiting(queues)

    def _commit(self, transaction: Transaction, acknowledged: list[Dispatch]) -> Receipt:
        with self._dispatches.forgetting_lost():  # after the rollback, which unacknowledges them
            try:
                if attempt_of(transaction).takes_work:
                    for batch, names in by_batch(acknowledged):
                        unsay(batch, transaction)  # settled by an interrupted commit
                        batch.accept(matching=names, transaction=transaction)
                return transaction.commit()
            except (*LOST, TransactionAborted):
                transaction.rollback()
                self._rolled_back()
                raise

    def _settled_doubt(self, transaction: Transaction) -> Receipt:
        """Return the receipt of a commit that was in doubt.

        Raises:
            TransactionUnknown: It is still in doubt; ``rollback`` decides it.
            TransactionAborted: It was rolled back.
        """
        outcome = self._manager.outcome(transaction.id)
        if outcome.receipt is not None:
            return outcome.receipt
        if outcome.status is Outcome.ROLLED_BACK:
            self._rolled_back()
            raise TransactionAborted(
                f"Transaction {transaction.id!r} was rolled back, and its messages will be "
                "delivered again: repeat its work.",
                transaction_id=transaction.id,
            )
        raise TransactionUnknown(
            f"The outcome of {transaction.id!r} is still in doubt: call rollback(), which rolls "
            "it back unless it was committed.",
            transaction_id=transaction.id,
        )

    def _committed(self, receipt: Receipt, acknowledged: list[Dispatch]) -> Reply:
        sent = self.transact_list
        count = len(acknowledged) + sum(one.count for one in sent)
        self._committed_to += dict.fromkeys(one.queue for one in sent)
        self._dispatches.destroy(acknowledged)
        self._transaction = None
        return Reply(count=count, receipt=receipt)

    def _rolled_back(self) -> None:
        for dispatch in self.dispatch_list:
            dispatch.acknowledged = False
        self._dispatches.destroy(one for one in self.dispatch_list if one._is_lost)
        self._transaction = None

    def _is_transacted(self, *, transacted: bool | None) -> bool:
        """Return whether an operation belongs to the transaction: by argument, or the default."""
        if transacted is None:
            return self._transacted
        self._transactional = check_flag("transacted", transacted) or self._transactional
        return transacted

    def _check_transactional(self, operation: str) -> None:
        if not self._transactional:
            raise TransactionNotGiven(
                f"{operation} on a channel without transactions: what it sent and acknowledged "
                "has taken effect. Call select(transacted=True) first, or pass transacted=True in "
                "each call."
            )

    def _open_transaction(self) -> Transaction:
        if self._transaction is None:
            self._transaction = self._manager.transaction()
        attempt_of(self._transaction).check_active()
        return self._transaction

    def _acknowledged(self) -> list[Dispatch]:
        return [dispatch for dispatch in self.dispatch_list if dispatch.acknowledged]

    def __enter__(self) -> Channel:
        """Use the channel in a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the channel; an error of the block takes precedence."""
        close_after(error, "channel", self.close)


def _check_limit(limit: object) -> None:
    check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)


def close_after(error: BaseException | None, what: str, close: Callable[[], object]) -> None:
    """Close something at the end of its block; an error of the block takes precedence."""
    if error is None:
        close()
        return
    try:
        close()
    except Exception as failed:
        logger.warning("%s not closed error=%s", what, failed)


def _accepted(batch: Batch, names: list[str], inside: Transaction | None) -> None:
    batch.accept(matching=names, transaction=inside)


def _check_given(operation: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of arguments that are passed on.

    Raises:
        InvalidInput: One of them is unknown, or is set by the channel.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidInput(
            f"{operation} takes no {unknown[0]}=: a channel has its own transaction (transacted=) "
            f"and its own setting of durability (persistent=). It takes {', '.join(sorted(known))} "
            "as well.",
            name=unknown[0],
        )
