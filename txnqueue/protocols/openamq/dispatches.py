"""The messages dispatched to a channel, and how they are settled."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claims_of
from txnqueue.core.settings import shown
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLost,
    QueueError,
    TransactionAborted,
)
from txnqueue.manager import client_of
from txnqueue.messages import settlement
from txnqueue.protocols.openamq.lists import (
    Delivery,
    Dispatch,
    by_batch,
    held_by,
    ids,
)
from txnqueue.queue import Queue
from txnqueue.transaction import attempt_of
from txnqueue.transactions.commit import has_landed, of_a_call

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.transaction import Transaction

logger = logging.getLogger("txnqueue")
Tags = int | Iterable[int]
Settle = Callable[[Batch, list[str], "Transaction | None"], object]
"""Settles some messages of a receive, at once or in a transaction."""
LOST = (LeaseLost, AlreadySettled, QueueError)
"""The errors that show that messages are no longer ours."""


class Dispatches:
    """The messages that a channel's client holds."""

    def __init__(self, manager: QueueManager) -> None:
        """Begin without messages."""
        self._manager = manager
        self._client = client_of(manager)
        self._tags = itertools.count(1)  # thread-safe: commits of other threads may dispatch here
        self._dispatched: dict[int, Dispatch] = {}
        self._unanswered: tuple[Transaction, list[Dispatch]] | None = None
        """A transaction that was to settle messages of several receives, and failed or was
        interrupted, until it is known whether it has landed."""

    def add(self, source: Queue, batch: Batch, waits: object) -> list[Dispatch]:
        """Add the messages of a receive.

        Args:
            source: The queue that they were received from.
            batch: The receive.
            waits: Marks that a consumer has yet to be called with them; None: the client has them.
        """
        delivery, added = Delivery(batch), list[Dispatch]()
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
                    added.append(dispatch)
        return added

    def listed(self) -> list[Dispatch]:
        """Return the unsettled messages but those that a consumer has yet to be called with."""
        return [dispatch for dispatch in self.all() if dispatch._waits is None]

    def all(self) -> list[Dispatch]:
        """Return all messages that are not settled, in the order of their tags."""
        return list(self._dispatched.values())  # other threads may dispatch here meanwhile

    def __contains__(self, dispatch: Dispatch) -> bool:
        """Return whether a message is still held."""
        return dispatch.tag in self._dispatched

    def clear(self) -> None:
        """Forget all messages."""
        self._dispatched.clear()

    def unacknowledged(self, tags: Tags | None) -> list[Dispatch]:
        """Find the messages with the given tags whose acknowledgement waits for no commit."""
        return [one for one in self._matching(tags) if not one.acknowledged]

    def keep(self, acknowledged: Iterable[Dispatch]) -> None:
        """Keep messages whose acknowledgement waits for the commit, though they are lost.

        A call in another thread may have found that meanwhile: the commit has to fail for them.
        """
        for one in acknowledged:
            self._dispatched.setdefault(one.tag, one)

    def destroy(self, settled: Iterable[Dispatch]) -> None:
        """Remove settled messages from the list."""
        for dispatch in list(settled):
            self._dispatched.pop(dispatch.tag, None)

    # ---------------------------------------------------------------------------- settling

    def settle(self, found: list[Dispatch], settle: Settle) -> None:
        """Settle messages at once, in one append whenever they were dispatched."""
        by_receive = by_batch(found)
        if len(by_receive) > 1:
            self._settle_together(found, by_receive, settle)
            return
        with self.forgetting_lost():
            for batch, names in by_receive:
                settle(batch, names, None)
        self.destroy(found)

    def give_back(self, found: list[Dispatch]) -> list[str]:
        """Give messages back; if nobody looked at a message, its delivery does not count.

        Returns:
            The queues to which they returned.
        """
        for seen, settle in ((True, delivery_failed), (False, _untouched)):
            for _ in range(2):  # a second time without the lost ones
                left = [o for o in found if o.looked_at == seen and o in self]
                with contextlib.suppress(*LOST):
                    self.settle(left, settle)
        return list(dict.fromkeys(one.queue for one in found))

    def extend_lease(self, seconds: float) -> int:
        """Extend the lease of all messages, as ``Channel.extend_lease`` does; return how many."""
        ours = (one._held for one in self.all() if not one._is_lost)
        held = list({id(one): one for one in ours}.values())
        with self.forgetting_lost():
            for side, mine in settlement.by_client(self._client, held):
                settlement.extend(side, mine, seconds)
        return sum(not one._is_lost for one in self.all())

    @contextmanager
    def forgetting_lost(self) -> Iterator[None]:
        """Remove lost messages from the list when an error shows that some are lost."""
        try:
            yield
        except (*LOST, TransactionAborted) as error:
            if isinstance(error, LOST) or is_closed(error.__cause__):
                self._forget_lost()
            raise

    # -------------------------------------------------------------------------- helpers

    def _settle_together(
        self, found: list[Dispatch], by_receive: Iterable[tuple[Batch, list[str]]], settle: Settle
    ) -> None:
        """Settle messages of several receives by a transaction."""
        alone = self._manager.transaction()
        try:
            with (
                self.forgetting_lost(),
                of_a_call(attempt_of(alone)),
                alone as transaction,
            ):
                for batch, names in by_receive:
                    settle(batch, names, transaction)
            self.destroy(found)
        except BaseException:
            self._unanswered = (alone, found)
            raise

    def _learn_outcome(self) -> None:
        """Find out whether a call that failed or was interrupted has settled its messages.

        Raises:
            TransactionUnknown: The journal cannot be read.
        """
        if self._unanswered is None:
            return
        transaction, found = self._unanswered
        if has_landed(attempt_of(transaction)):
            self.destroy(found)
        self._unanswered = None

    def _matching(self, tags: Tags | None) -> list[Dispatch]:
        """Find the dispatched messages with the given tags, in the order of their tags."""
        self._learn_outcome()
        if tags is None:
            return self.listed()
        wanted: Container[int]
        if isinstance(tags, range):
            wanted = tags  # however long it is
        elif isinstance(tags, Iterable) and not isinstance(tags, (str, bytes, Mapping)):
            wanted = {check_whole("tags", tag) for tag in tags}
        else:
            wanted = {check_whole("tags", tags)}
        return [dispatch for dispatch in self.listed() if dispatch.tag in wanted]

    def _forget_lost(self) -> None:
        """Keep only messages that are still ours; keep all if that cannot be determined now.

        Those whose acknowledgement waits for the commit stay: it has to fail for them.
        """
        by_receive: dict[Batch, list[Dispatch]] = {}
        for dispatch in self.all():
            by_receive.setdefault(dispatch.batch, []).append(dispatch)
        try:
            for batch, mine in by_receive.items():
                held = set(held_by(self._client, batch))
                lost = [one for one in mine if one.message_id not in held]
                self.destroy(one for one in lost if not one.acknowledged)
                for one in lost:
                    one._is_lost = True
        except Exception as error:  # the original error takes precedence
            logger.warning("dispatch list not looked through error=%s", error)


def delivery_failed(batch: Batch, names: list[str], inside: Transaction | None) -> None:
    """Give messages of a receive back; their delivery counts as failed."""
    batch.modify(matching=names, delivery_failed=True, transaction=inside)


def _untouched(batch: Batch, names: list[str], inside: Transaction | None) -> None:
    batch.release(matching=names, transaction=inside)


def check_whole(name: str, value: object) -> int:
    """Check that a tag or a consumer's number is a whole number.

    Raises:
        InvalidInput: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name}={shown(value)}: give a whole number.", name=name)
    return value
