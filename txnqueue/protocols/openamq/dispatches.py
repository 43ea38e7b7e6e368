"""The messages dispatched to a channel: dispatching and settling."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claims_of
from txnqueue.core.handlers import check_function, check_ran
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    MESSAGES_PER_RECEIVE_MAX,
    check_count,
    check_number,
    check_text,
    shown,
)
from txnqueue.core.state import catalog
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    QueueClosed,
    QueueError,
    QueueNotFound,
    TransactionAborted,
    TransactionFinished,
)
from txnqueue.messages import settlement
from txnqueue.protocols.openamq.lists import (
    Consumer,
    Delivery,
    Dispatch,
    Reply,
    Status,
    by_batch,
    held_by,
    ids,
)
from txnqueue.queue import Queue
from txnqueue.transaction import attempt_of
from txnqueue.transactions.commit import has_landed, of_a_call

if TYPE_CHECKING:
    from txnqueue.protocols.openamq.connection import Connection
    from txnqueue.transaction import Transaction

logger = logging.getLogger("txnqueue")
Tags = int | Iterable[int]
Settle = Callable[[Batch, list[str], "Transaction | None"], object]
"""Settles some messages of a receive, at once or in a transaction."""
DISPATCHED_MAX = 1_000
LOST = (LeaseLost, AlreadySettled, QueueError)
"""The errors that show that messages are no longer ours."""


class Dispatches:
    """The messages held by a channel's client, and its waiting consumers."""

    def __init__(self, connection: Connection, lease_seconds: float | None) -> None:
        """Begin without messages; use ``Connection.channel``."""
        if lease_seconds is not None:
            check_number("lease_seconds", lease_seconds, 0.001, LEASE_SECONDS_MAX)
        self._connection = connection
        self._manager = connection.manager
        self._lease_seconds = lease_seconds
        self._closed = False
        self._tags = itertools.count(1)  # thread-safe: commits of other threads may dispatch here
        self._consumer = 0
        self._dispatched: dict[int, Dispatch] = {}
        self._given_back: Counter[str] = Counter()
        self._unanswered: tuple[Transaction, list[Dispatch]] | None = None
        """A transaction that was to settle messages of several receives, and failed or was
        interrupted, until it is known whether it has landed."""

    @property
    def dispatch_list(self) -> list[Dispatch]:
        """The messages dispatched to this channel and not settled, in the order of their tags.

        It does not contain messages that a consumer has yet to be called with; no call settles
        those.
        """
        return [dispatch for dispatch in self._all() if dispatch._waits is None]

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
            except Exception as error:
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
        _check_whole("consumer", consumer)
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
                    rest = [one for one in found[number:] if one.tag in self._dispatched]
                    self._connection.dispatch_waiting(self._give_back(rest), given_back_by=self)
                    return number
                if dispatch.tag not in self._dispatched:  # lost meanwhile
                    continue
                dispatch._waits = None
                try:
                    check_ran(consumer.deliver(dispatch), "deliver")
                except Exception as error:  # a commit stands even if a consumer fails
                    logger.warning("consumer failed queue=%s error=%s", consumer.queue, error)
            return len(found)
        finally:
            for dispatch in self._all():
                if dispatch._waits is call:  # it was interrupted
                    dispatch._waits = None

    def _deliver_all(self, consumer: Consumer) -> int:
        """Dispatch all messages of a queue, except those behind messages that are given back."""
        count, given_back = 0, self._given_back[consumer.queue]
        while True:
            try:
                found = self.deliver(consumer)
            except Exception as error:
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
            except Exception as error:
                if not found:
                    raise
                logger.warning("dispatched in part queue=%s error=%s", source.name, error)
                return found
            if not len(batch):
                return found
            found += self._received(source, batch, waits)
        return found

    def _received(self, source: Queue, batch: Batch, waits: object) -> Iterator[Dispatch]:
        delivery = Delivery(batch)
        for one in claims_of(batch):
            for position_id, ranges in one.claim.items.items():
                for message_id in ids(one.positions[position_id].send_id, ranges):
                    tag = next(self._tags)
                    dispatch = self._dispatched[tag] = Dispatch(
                        tag,
                        source.name,
                        message_id,
                        not one.info.transient,
                        _waits=waits,
                        _delivery=delivery,
                        _held=one,
                    )
                    yield dispatch

    # ---------------------------------------------------------------------------- settling

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
        found = self._unacknowledged(_check_whole("tag", tag))
        if not found:
            return Reply(Status.NO_MATCH)
        self._settle(found, _failed)
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
        found = self._unacknowledged(tags)
        self._settle(
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
        client = self._manager._client
        ours = (one._held for one in self._all() if not one._is_lost)
        held = list({id(one): one for one in ours}.values())
        with self._forgetting_lost():
            for side, mine in settlement.by_client(client, held):
                settlement.extend(side, mine, seconds)
        return Reply(count=sum(not one._is_lost for one in self._all()))

    def _settle(self, found: list[Dispatch], settle: Settle) -> None:
        """Settle messages at once, in one append whenever they were dispatched."""
        by_receive = by_batch(found)
        if len(by_receive) > 1:
            self._settle_together(found, by_receive, settle)
            return
        with self._forgetting_lost():
            for batch, names in by_receive:
                settle(batch, names, None)
        self._destroy(found)

    def _settle_together(
        self, found: list[Dispatch], by_receive: Iterable[tuple[Batch, list[str]]], settle: Settle
    ) -> None:
        """Settle messages of several receives by a transaction."""
        alone = self._manager.transaction()
        try:
            with (
                self._forgetting_lost(),
                of_a_call(attempt_of(alone)),
                alone as transaction,
            ):
                for batch, names in by_receive:
                    settle(batch, names, transaction)
            self._destroy(found)
        except BaseException:
            self._unanswered = (alone, found)
            raise

    def _give_back(self, found: list[Dispatch]) -> list[str]:
        """Give messages back; if nobody looked at a message, its delivery does not count.

        Returns:
            The queues to which they returned.
        """
        for seen, settle in ((True, _failed), (False, _untouched)):
            for _ in range(2):  # a second time without the lost ones
                left = [o for o in found if o.looked_at == seen and o.tag in self._dispatched]
                with contextlib.suppress(*LOST):
                    self._settle(left, settle)
        return list(dict.fromkeys(one.queue for one in found))

    # -------------------------------------------------------------------------- helpers

    def _taking_dead_letters(self) -> set[str]:
        entries = self._manager._client.cache.catalog_entries()
        ids = {info.dead_letter_id for info in catalog.every_queue(entries).values()}
        return {name for name, info in catalog.queues(entries).items() if info.queue_id in ids}

    def _consumers(self) -> list[Consumer]:
        return [one for one in list(self._connection.consumers) if one.channel is self]

    def _all(self) -> list[Dispatch]:
        return list(self._dispatched.values())  # other threads may dispatch here meanwhile

    def _check_open(self) -> None:
        if self._closed:
            raise TransactionFinished("The channel is closed: open another one.")

    def _learn_outcome(self) -> None:
        """Find out whether a call that failed or was interrupted has settled its messages.

        Raises:
            TransactionUnknown: The journal cannot be read.
        """
        if self._unanswered is None:
            return
        transaction, found = self._unanswered
        if has_landed(attempt_of(transaction)):
            self._destroy(found)
        self._unanswered = None

    def _matching(self, tags: Tags | None) -> list[Dispatch]:
        """Find the dispatched messages with the given tags, in the order of their tags."""
        self._learn_outcome()
        if tags is None:
            return self.dispatch_list
        wanted: Container[int]
        if isinstance(tags, range):
            wanted = tags  # however long it is
        elif isinstance(tags, Iterable) and not isinstance(tags, (str, bytes, Mapping)):
            wanted = {_check_whole("tags", tag) for tag in tags}
        else:
            wanted = {_check_whole("tags", tags)}
        return [dispatch for dispatch in self.dispatch_list if dispatch.tag in wanted]

    def _unacknowledged(self, tags: Tags | None) -> list[Dispatch]:
        return [one for one in self._matching(tags) if not one.acknowledged]

    def _keep(self, acknowledged: Iterable[Dispatch]) -> None:
        """Keep messages whose acknowledgement waits for the commit, though they are lost.

        A call in another thread may have found that meanwhile: the commit has to fail for them.
        """
        for one in acknowledged:
            self._dispatched.setdefault(one.tag, one)

    def _destroy(self, settled: Iterable[Dispatch]) -> None:
        for dispatch in list(settled):
            self._dispatched.pop(dispatch.tag, None)

    @contextmanager
    def _forgetting_lost(self) -> Iterator[None]:
        """Remove lost messages from the list when an error shows that some are lost."""
        try:
            yield
        except (*LOST, TransactionAborted) as error:
            if isinstance(error, LOST) or is_closed(error.__cause__):
                self._forget_lost()
            raise

    def _forget_lost(self) -> None:
        """Keep only messages that are still ours; keep all if that cannot be determined now.

        Those whose acknowledgement waits for the commit stay: it has to fail for them.
        """
        by_receive: dict[Batch, list[Dispatch]] = {}
        for dispatch in self._all():
            by_receive.setdefault(dispatch.batch, []).append(dispatch)
        try:
            for batch, mine in by_receive.items():
                held = set(held_by(self._manager._client, batch))
                lost = [one for one in mine if one.message_id not in held]
                self._destroy(one for one in lost if not one.acknowledged)
                for one in lost:
                    one._is_lost = True
        except Exception as error:  # the original error takes precedence
            logger.warning("dispatch list not looked through error=%s", error)


def _failed(batch: Batch, names: list[str], inside: Transaction | None) -> None:
    batch.modify(matching=names, delivery_failed=True, transaction=inside)


def _untouched(batch: Batch, names: list[str], inside: Transaction | None) -> None:
    batch.release(matching=names, transaction=inside)


def _check_limit(limit: object) -> None:
    check_count("limit", limit, 1, MESSAGES_PER_RECEIVE_MAX)


def _check_whole(name: str, value: object) -> int:
    """Check that a tag or a consumer's number is a whole number.

    Raises:
        InvalidInput: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name}={shown(value)}: give a whole number.", name=name)
    return value
