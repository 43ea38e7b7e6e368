"""A batch: the messages that one receive brought, and how they are settled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txnqueue import holding, model, moving
from txnqueue.config import LEASE_SECONDS_MAX, check_flag, check_number, check_text
from txnqueue.contents import Contents
from txnqueue.errors import (
    BranchMisused,
)
from txnqueue.heartbeat import Heartbeat
from txnqueue.scope import NOT_GIVEN, NotGiven
from txnqueue.types import Matching

if TYPE_CHECKING:
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction


class Batch(Contents):
    """Messages in flight: looked at as a DataFrame, settled as a whole or in parts.

    ``len(batch)`` counts the messages. Received inside a transaction, what is neither
    released nor rejected is accepted by its commit. Received outside, they are held under
    a lease until they are settled or the lease ends.
    """

    def accept(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        reason: str | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Consume messages: they are gone for good once this is committed.

        Of a batch that was received inside a transaction, the commit accepts whatever nobody
        spoke of; once a part is accepted explicitly, it releases that instead. Of a batch
        held under a lease it settles what was named, and the rest stays held.

        Args:
            where: A SQL predicate over the columns of ``df``; all messages when left out.
            matching: Messages of this batch: a DataFrame or Arrow table with ``_message``,
                dicts from ``messages()``, or message ids.
            reason: Why; it stands in the history.
            transaction: The transaction to settle in; None settles at once.

        Returns:
            How many messages were named.

        Raises:
            AlreadySettled: Some of them are settled.
            LeaseLost: Others may have them now; nothing was changed.
        """
        check_text("reason", reason)
        named = self._named(where, matching, None)
        return self._settle(model.ACCEPTED, named, reason, transaction)

    def release(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Give messages back to their original places; the delivery is not counted.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            transaction: As in ``accept``.

        Returns:
            How many messages were named.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
        """
        named = self._named(where, matching, None)
        return self._settle(model.RELEASED, named, None, transaction)

    def reject(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        reason: str | None = None,
        reason_column: str | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Move messages to the dead-letter queue, with the reason; without one they are dropped.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            reason: Why; it stands in the dead letters' ``_message.origin.reason``.
            reason_column: A column of ``matching`` that says why, row by row.
            transaction: As in ``accept``.

        Returns:
            How many messages were named.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
        """
        check_text("reason", reason)
        named = self._named(where, matching, reason_column)
        return self._settle(model.REJECTED, named, reason, transaction)

    def modify(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        delivery_failed: bool = True,
        undeliverable_here: bool = False,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Give messages back to their original places, and say what becomes of them next.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            delivery_failed: The delivery counts, so that a message that fails again and again
                ends as a dead letter; false does what ``release`` does.
            undeliverable_here: This manager's consumer id does not get them again, others do.
                If there is no other, they wait: for a consumer with another id, or until they
                are moved, purged or expire.
            transaction: As in ``accept``.

        Returns:
            How many messages were named.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
        """
        check_flag("delivery_failed", delivery_failed)
        check_flag("undeliverable_here", undeliverable_here)
        named = self._named(where, matching, None)
        return self._settle(
            model.RELEASED,
            named,
            None,
            transaction,
            lambda _, said: [
                replace(said, counted=delivery_failed, undeliverable_here=undeliverable_here)
            ],
        )

    def move(
        self,
        to: str | Queue,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Move messages to another queue of the same columns; nothing is copied.

        They get their places there by that queue's rules, and keep priority, delay and time
        to live. Inside a transaction they stand there from its commit on.

        Args:
            to: The other queue, or its name.
            where: As in ``accept``.
            matching: As in ``accept``.
            transaction: As in ``accept``.

        Returns:
            How many messages were named.

        Raises:
            QueueNotFound: There is no such queue.
            SchemaMismatch: It has other columns.
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.

        Example::

            batch = orders.receive(1_000)
            batch.move("orders-of-vips", where="customer IN ('c1', 'c7')")
            batch.accept()
        """
        target = moving.target_of(self._client, to)
        named = self._named(where, matching, None)
        routes = {
            one.info.queue_id: moving.to_queue(
                self._client,
                one.info,
                target.in_memory() if one.info.transient else target,
                self._schema,
            )
            for one in self._held
        }
        return self._settle(
            model.MOVED,
            named,
            "moved",
            transaction,
            lambda one, said: moving.routed(routes[one.info.queue_id], one, said),
        )

    def move_by(self, route: moving.Route, reason: str) -> int:
        """Move all messages along a route, in the transaction that acquired them."""
        return self._settle(
            model.MOVED,
            None,
            reason,
            self._transaction,
            lambda one, said: moving.routed(route, one, said),
        )

    def keep(self) -> None:
        """Keep what nobody speaks of: the commit leaves it received, under a lease.

        So messages that were acquired inside a transaction can be settled after it, in another
        one or at once. Their deliveries do not count anew; a roll back gives them back. A batch
        that was received outside is kept anyhow.

        Raises:
            BranchMisused: It was received in a branch, which others may commit.
        """
        if self._transaction is not None:
            self._transaction.check_active()
            if not self._transaction.keeps:
                raise BranchMisused(
                    "What was received in a branch cannot be kept: settle it in the branch."
                )
            self._keeping = True

    def heartbeat(
        self, lease_seconds: float = 300.0, every_seconds: float | None = None
    ) -> Heartbeat:
        """Keep the messages while a block runs: one append per beat, from another thread.

        Args:
            lease_seconds: Each beat holds them for so many seconds more.
            every_seconds: The time between beats; a third of the lease when left out.

        Returns:
            What is to be entered with ``with``.

        Example::

            with batch.heartbeat(lease_seconds=120):
                train_a_model(batch.df)
            batch.accept()
        """
        check_number("lease_seconds", lease_seconds, 0.001, LEASE_SECONDS_MAX)
        every = lease_seconds / 3 if every_seconds is None else every_seconds
        check_number("every_seconds", every, 0.001, lease_seconds)
        return Heartbeat(self, lease_seconds, every)

    def extend_lease(self, seconds: float) -> None:
        """Hold the messages longer: for so many seconds from now, by one append.

        Args:
            seconds: The new lease, from now.

        Raises:
            LeaseLost: Others may have them now.
        """
        check_number("seconds", seconds, 0.001, LEASE_SECONDS_MAX)
        if not self.holds:
            return

        for side, held in self._by_side(lambda one: bool(self._account.rest(one))):
            deadline_ms = holding.extend(side, held, seconds)
            for one in self._held:
                if self._client.of(one.info) is side:
                    one.claim.deadline_ms = deadline_ms
