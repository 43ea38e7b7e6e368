"""A batch: the messages that one receive brought, and how they are settled."""

from __future__ import annotations

import datetime
import html
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue import holding, model, moving, ranges
from txnqueue.client import Client
from txnqueue.config import LEASE_SECONDS_MAX, check_flag, check_number, check_text
from txnqueue.errors import (
    AlreadySettled,
    BranchMisused,
    InvalidInput,
    PayloadRemoved,
    TransactionMismatch,
)
from txnqueue.heartbeat import Heartbeat
from txnqueue.holding import Said, name_of
from txnqueue.ledger import Owner
from txnqueue.matching import Reasons, offsets_of
from txnqueue.payload import Part, evaluating
from txnqueue.planning import Disposition
from txnqueue.receiving import Held, part_of
from txnqueue.scope import NOT_GIVEN, NotGiven, resolve
from txnqueue.settling import Settling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

SaidOf = Callable[[Held, Disposition], list[Disposition]]


class Batch:
    """Messages in flight: looked at as a DataFrame, settled as a whole or in parts.

    ``len(batch)`` counts the messages. Received inside a transaction, what is neither
    released nor rejected is accepted by its commit. Received outside, they are held under
    a lease until they are settled or the lease ends.
    """

    def __init__(
        self,
        client: Client,
        schema: StructType,
        held: Sequence[Held],
        transaction: Transaction | None,
    ) -> None:
        """Wrap claims of ours; users get batches from ``Queue.receive``."""
        self._client = client
        self._schema = schema
        self._held = list(held)
        self._transaction = transaction
        self._carried = [  # what is in memory only stays there as long as this batch
            client.store.transient.payload.carried(position.payload_id, position.send_id)
            for one in held
            if one.info.transient
            for position in one.positions.values()
        ]
        self._account = Settling(self._held)
        self._keeping = False

    # ------------------------------------------------------------------------- looking

    def __len__(self) -> int:
        """Count the messages."""
        return sum(ranges.count(part) for one in self._held for part in one.claim.items.values())

    @property
    def df(self) -> DataFrame:
        """The messages as a DataFrame on the user's session, pinned to this batch.

        The payload's columns and one struct ``_message``: id, message_id (the column that
        the queue was given, else the id), queue, lane, delivery_count, redelivered,
        enqueued_at, transaction_id, headers, correlation_id, reply_to, origin (queue, reason,
        delivery_count of a moved message), send_id, send_offset.
        """
        return self._client.payload.frame(self._schema, self._parts())

    def to_arrow(self) -> pa.Table:
        """Read the messages into an Arrow table, in delivery order; columns as in ``df``."""
        return self._client.payload.table(self._schema, self._parts())

    def messages(self) -> list[dict[str, Any]]:
        """Read the messages as dicts, in delivery order; for a few, not for a million."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    @property
    def held_until(self) -> datetime.datetime | None:
        """When the lease ends; None for an empty batch."""
        deadlines = [one.claim.deadline_ms for one in self._held]
        if not deadlines:
            return None
        return datetime.datetime.fromtimestamp(min(deadlines) / 1000, datetime.timezone.utc)

    @property
    def holds(self) -> bool:
        """Whether any of the messages are not settled yet, as far as this batch was told."""
        return self._account.anything

    def __repr__(self) -> str:
        """Say what is held until when."""
        names = sorted({one.info.name for one in self._held}) or ["nothing"]
        return f"<Batch of {len(self)} from {', '.join(names)}, held until {self.held_until}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    # ------------------------------------------------------------------------ settling

    def accept(
        self,
        where: str | None = None,
        *,
        matching: object = None,
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
        matching: object = None,
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
        matching: object = None,
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
        matching: object = None,
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
        matching: object = None,
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

    # ------------------------------------------------------- what transactions ask of it

    @property
    def claims(self) -> list[Held]:
        """The claims behind the batch."""
        return list(self._held)

    def dispositions(self, one: Held, attempt: str) -> list[Disposition]:
        """Write out how a claim ends in a commit: what was said, and what follows from it."""
        said = self._account.said(attempt)
        found = list(said.get(name_of(one), ()))
        if self._transaction is None:
            return found
        rest = tuple(self._account.left(one, attempt).items())
        accepted = any(d.kind == model.ACCEPTED for ds in said.values() for d in ds)
        follows = model.RELEASED if accepted else model.ACCEPTED
        if self._keeping:
            follows = model.KEPT
        if rest:
            found.append(Disposition(follows, rest if found else None))
        return found

    def committed(self, attempt: str) -> None:
        """Take note that what was said in an attempt has happened."""
        self._account.committed(attempt)
        if self._keeping:
            for one in self._held:
                one.claim.owner = Owner(one.claim.owner.consumer, one.claim.owner.epoch)
            self._transaction, self._keeping = None, False

    # -------------------------------------------------------------------------- helpers

    def _by_side(self, which: Callable[[Held], bool]) -> list[tuple[Client, list[Held]]]:
        """Sort some of the claims by the view of the store that they are in."""
        found: dict[bool, list[Held]] = {}
        for one in self._held:
            if which(one):
                found.setdefault(one.info.transient, []).append(one)
        return [(self._client.of(held[0].info), held) for held in found.values()]

    def _parts(self) -> list[Part]:
        return [
            part_of(one.positions[pid], part, one.info.name, claim.lane, claim.delivery_count)
            for one in self._held
            for claim in [one.claim]
            for pid, part in claim.items.items()
        ]

    def _named(
        self, where: str | None, matching: object, reason_column: str | None
    ) -> Reasons | None:
        """Find which messages are meant, by reason; None: all that are left."""
        if where is not None and matching is not None:
            raise InvalidInput("Give where= or matching=, not both.")
        if reason_column is not None and matching is None:
            raise InvalidInput("reason_column= names a column of matching=: give both.")
        if where is not None:
            if not isinstance(where, str):
                raise InvalidInput(f"where={where!r}: give a SQL predicate as a string.")
            with evaluating("where", where):
                return offsets_of(self.df.where(where), None)
        return None if matching is None else offsets_of(matching, reason_column)

    def _settle(
        self,
        kind: str,
        named: Reasons | None,
        reason: str | None,
        transaction: Transaction | NotGiven | None,
        said_of: SaidOf = lambda _, said: [said],
    ) -> int:
        """Settle messages; ``said_of`` completes what is said of each claim's part."""
        target = self._target(transaction)
        attempt = target.attempt if target else None
        held = {name_of(one): one for one in self._held}
        try:
            chosen = {
                name: [full for disposition in found for full in said_of(held[name], disposition)]
                for name, found in self._account.chosen(kind, named, reason, attempt).items()
            }
        except PayloadRemoved:
            self._check_ours()  # what others have settled may be gone, payload and all
            raise
        messages = sum(
            ranges.count(part)
            for found in chosen.values()
            for disposition in found
            for _, part in disposition.items or ()
        )
        if named is not None and messages < sum(
            len(offsets) for by_send in named.values() for offsets in by_send.values()
        ):
            raise AlreadySettled("Some of these messages are settled, or not of this batch.")
        if not messages:
            return 0
        if target is None:
            self._settle_now(chosen)
            return messages
        target.adopt(self)
        self._account.say(target.attempt, chosen)
        return messages

    def _settle_now(self, chosen: Said) -> None:
        """Settle outside a transaction."""
        sides = self._by_side(lambda one: name_of(one) in chosen)
        if len(sides) == 1:
            holding.settle(*sides[0], chosen)
            self._account.settled(chosen)
        else:  # both kinds, as a whole: that takes a transaction
            with self._client.begin_transaction() as tx:
                tx.adopt(self)
                self._account.say(tx.attempt, chosen)

    def _check_ours(self) -> None:
        """Check that what is not settled is held still.

        Raises:
            LeaseLost: Others may have some of it now, or have settled it.
        """
        for one in self._held:
            side = self._client.of(one.info)
            if self._account.rest(one):
                with side.lock:
                    holding.still_ours(side, one, {})

    def _target(self, transaction: Transaction | NotGiven | None) -> Transaction | None:
        if self._transaction is None:
            return resolve(self._client, transaction, "settling a batch")
        if transaction is not NOT_GIVEN and transaction is not self._transaction:
            raise TransactionMismatch(
                f"The batch was received in transaction {self._transaction.id!r}: settle it there."
            )
        self._transaction.check_active()
        return self._transaction
