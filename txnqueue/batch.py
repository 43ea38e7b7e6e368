"""A batch: the messages that one receive brought, and how they are settled."""

from __future__ import annotations

import datetime
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txnqueue import model, moving, planning, ranges
from txnqueue.client import Client
from txnqueue.config import LEASE_SECONDS_MAX, check_flag, check_number, check_text
from txnqueue.errors import (
    AlreadySettled,
    BranchMisused,
    InvalidInput,
    LeaseLost,
    PayloadRemoved,
    TransactionMismatch,
)
from txnqueue.heartbeat import Heartbeat
from txnqueue.ledger import Claim, Owner, QueueFold
from txnqueue.matching import Reasons, offsets_of
from txnqueue.model import Item, PositionId, Range
from txnqueue.moving import departures
from txnqueue.payload import Part, evaluating
from txnqueue.planning import Disposition, Plan
from txnqueue.receiving import Held, part_of
from txnqueue.scope import NOT_GIVEN, NotGiven, resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

Name = tuple[str, int, int]
"""A claim's name over all queues: queue id, lane, sequence."""
Said = dict[Name, list[Disposition]]
"""What was said of each claim, in the order in which it was said."""
SaidOf = Callable[[Held, Disposition], list[Disposition]]
LaneWriter = Callable[[Held, Claim, int], Sequence[model.Entry]]


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
        self._rest: dict[Name, dict[PositionId, tuple[Range, ...]]] = {
            _name(one): dict(one.claim.items) for one in held
        }
        self._said: dict[str, Said] = {}
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
        return any(self._rest.values())

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

        for side, held in self._by_side(lambda one: bool(self._rest[_name(one)])):
            self._extend(side, held, seconds)

    # ------------------------------------------------------- what transactions ask of it

    @property
    def claims(self) -> list[Held]:
        """The claims behind the batch."""
        return list(self._held)

    def dispositions(self, one: Held, attempt: str) -> list[Disposition]:
        """Write out how a claim ends in a commit: what was said, and what follows from it."""
        said = self._said.get(attempt, {})
        found = list(said.get(_name(one), ()))
        if self._transaction is None:
            return found
        rest = tuple(self._left(one, attempt).items())
        accepted = any(d.kind == model.ACCEPTED for ds in said.values() for d in ds)
        follows = model.RELEASED if accepted else model.ACCEPTED
        if self._keeping:
            follows = model.KEPT
        if rest:
            found.append(Disposition(follows, rest if found else None))
        return found

    def committed(self, attempt: str) -> None:
        """Take note that what was said in an attempt has happened."""
        for one in self._held:
            self._rest[_name(one)] = self._left(one, attempt)
            if self._keeping:
                one.claim.owner = Owner(one.claim.owner.consumer, one.claim.owner.epoch)
        self._said.pop(attempt, None)
        if self._keeping:
            self._transaction, self._keeping = None, False

    # -------------------------------------------------------------------------- helpers

    def _by_side(self, which: Callable[[Held], bool]) -> list[tuple[Client, list[Held]]]:
        """Sort some of the claims by the view of the store that they are in."""
        found: dict[bool, list[Held]] = {}
        for one in self._held:
            if which(one):
                found.setdefault(one.info.transient, []).append(one)
        return [(self._client.of(held[0].info), held) for held in found.values()]

    def _extend(self, side: Client, mine: Sequence[Held], seconds: float) -> None:
        deadline_ms = 0

        def plan(lost: int) -> Plan:
            nonlocal deadline_ms
            stamp = side.stamp()
            deadline_ms = stamp.now_ms + round(seconds * 1000)
            return self._lane_plan(
                side,
                mine,
                lambda one, held, sequence: [
                    planning.lease_extended(one.info.queue_id, held, sequence, deadline_ms, stamp)
                ],
            )

        side.land(plan, "extend lease", queue=mine[0].info.name)
        for one in self._held:
            if self._client.of(one.info) is side:
                one.claim.deadline_ms = deadline_ms

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
        held = {_name(one): one for one in self._held}
        try:
            chosen = {
                name: [full for disposition in found for full in said_of(held[name], disposition)]
                for name, found in self._chosen(kind, named, reason, attempt).items()
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
            for name, found in chosen.items():
                for disposition in found:
                    self._rest[name] = _without(self._rest[name], disposition.items or ())
            return messages
        target.adopt(self)
        said = self._said.setdefault(target.attempt, {})
        for name, found in chosen.items():
            said.setdefault(name, []).extend(found)
        return messages

    def _check_ours(self) -> None:
        """Check that what is not settled is held still.

        Raises:
            LeaseLost: Others may have some of it now, or have settled it.
        """
        for one in self._held:
            side = self._client.of(one.info)
            if self._rest[_name(one)]:
                with side.lock:
                    still_ours(side, one, {})

    def _left(self, one: Held, attempt: str | None) -> dict[PositionId, tuple[Range, ...]]:
        """What of a claim is not settled yet, and not spoken of in an attempt."""
        left = self._rest[_name(one)]
        for disposition in self._said.get(attempt or "", {}).get(_name(one), ()):
            left = _without(left, disposition.items or ())
        return left

    def _target(self, transaction: Transaction | NotGiven | None) -> Transaction | None:
        if self._transaction is None:
            return resolve(self._client, transaction, "settling a batch")
        if transaction is not NOT_GIVEN and transaction is not self._transaction:
            raise TransactionMismatch(
                f"The batch was received in transaction {self._transaction.id!r}: settle it there."
            )
        self._transaction.check_active()
        return self._transaction

    def _chosen(
        self, kind: str, named: Reasons | None, reason: str | None, attempt: str | None
    ) -> Said:
        """Write what is meant as dispositions of each claim, out of what is left of it."""
        meant: list[tuple[str | None, Mapping[str, Sequence[int]] | None]]
        meant = [(reason, None)] if named is None else [(r or reason, s) for r, s in named.items()]
        chosen: Said = {}
        for one in self._held:
            left = self._left(one, attempt)
            for why, by_send in meant:
                items = _meant(one, left, by_send)
                if items:
                    disposition = Disposition(kind, items, why)
                    chosen.setdefault(_name(one), []).append(disposition)
        if named is None and not chosen and self._held:
            raise AlreadySettled("All messages of this batch are settled already.")
        return chosen

    def _settle_now(self, chosen: Said) -> None:
        """Settle outside a transaction: the lane entries are the settlement."""
        sides = self._by_side(lambda one: _name(one) in chosen)
        if len(sides) > 1:  # both kinds, as a whole: that takes a transaction
            with self._client.begin_transaction() as tx:
                tx.adopt(self)
                self._said[tx.attempt] = chosen
            return
        (side, involved) = sides[0]

        def plan(lost: int) -> Plan:
            stamp, moved = side.stamp(), Plan()

            def write(one: Held, held: Claim, sequence: int) -> list[model.Entry]:
                nonlocal moved
                written: list[model.Entry] = []
                for disposition in chosen[_name(one)]:
                    check_held(one, held, disposition)
                    moved += departures(one, disposition, stamp)
                    number = sequence + len(written)
                    queue_id = one.info.queue_id
                    written.append(
                        planning.settlement(
                            queue_id, held, disposition, stamp, sequence=number, owner=None
                        )
                    )
                return written

            lanes = self._lane_plan(side, involved, write)
            posted = moving.in_order(moved.entries, involved)
            return lanes + Plan(tuple(posted), moved.conditions)

        side.land(plan, "settle", queue=involved[0].info.name)

    def _lane_plan(self, side: Client, involved: Sequence[Held], write: LaneWriter) -> Plan:
        """Plan entries of the lanes that hold our claims, which must be ours still.

        Args:
            side: The view of the store that they are in.
            involved: The claims that the entries are about.
            write: Given what we hold, the claim as it stands in the journal, and the next
                sequence number of its lane, writes entries with sequence numbers from there.
        """
        entries: list[model.Entry] = []
        firsts: dict[tuple[str, int], int] = {}
        nexts: dict[tuple[str, int], int] = {}
        folds: dict[str, QueueFold] = {}
        with side.lock:
            for one in involved:
                fold, held = still_ours(side, one, folds)
                lane = (one.info.queue_id, held.lane)
                sequence = nexts.setdefault(lane, fold.lanes[held.lane].next_sequence)
                firsts.setdefault(lane, sequence)
                written = write(one, held, sequence)
                nexts[lane] += len(written)
                entries += written
        conditions = [
            condition
            for (queue_id, lane), sequence in firsts.items()
            for condition in planning.lane_conditions(queue_id, [(lane, sequence)])
        ]
        return Plan(tuple(entries), tuple(conditions))


def _name(one: Held) -> Name:
    return (one.info.queue_id, *one.claim.name)


def still_ours(client: Client, one: Held, folds: dict[str, QueueFold]) -> tuple[QueueFold, Claim]:
    """Find a claim of ours in the journal as it is now.

    Args:
        client: Reads the journal; its lock must be held as long as the answer is used.
        one: The claim.
        folds: The queues that were read for the same append; each is read once.

    Raises:
        LeaseLost: It was ended: taken over, or settled.
        TransactionMismatch: A transaction that is not decided yet settles it.
    """
    if one.info.queue_id not in folds:
        folds[one.info.queue_id] = client.fold_to_change(one.info)
    fold = folds[one.info.queue_id]
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if claim.bound is None:
        return fold, claim
    # The transaction is read first and the queue after it: what it settled is seen then.
    bound = claim.bound
    state = client.key_state(bound.key or "", archived_since=None)
    fold = folds[one.info.queue_id] = client.fold(one.info)
    claim = fold.claim(*one.claim.name)
    if claim is None:
        raise _lost(one)
    if not state.is_over(bound):
        raise TransactionMismatch(
            f"Transaction {bound.key!r} is about to settle these messages: decide it first.",
            transaction_id=bound.key,
        )
    return fold, claim


def check_held(one: Held, held: Claim, disposition: Disposition) -> None:
    """Check that everything that is about to be settled is still in flight under the claim.

    Args:
        one: The claim as we got it.
        held: The claim as it stands, of the reading that says the lane's next number: what
            changes later bars the append.
        disposition: What is about to be settled.

    Raises:
        LeaseLost: Some of it was settled meanwhile.
    """
    for position_id, part in disposition.items or ():
        if ranges.difference(part, held.items.get(position_id, ())):
            raise _lost(one)


def _lost(one: Held) -> LeaseLost:
    return LeaseLost(
        f"The claim {one.claim.name} on {one.info.name!r} was lost: its lease ended and others "
        "may have the messages now, or they are settled. Nothing was changed.",
        queue=one.info.name,
        claim=one.claim.name,
    )


def _meant(
    one: Held,
    left: Mapping[PositionId, tuple[Range, ...]],
    by_send: Mapping[str, Sequence[int]] | None,
) -> tuple[Item, ...]:
    """Find which messages of a claim are meant: all that are left, or those of some sends."""
    items: list[Item] = []
    for position_id, part in left.items():
        if by_send is not None:
            wanted = by_send.get(one.positions[position_id].send_id, ())
            part = ranges.intersection(part, ranges.of_offsets(wanted))
        if part:
            items.append((position_id, part))
    return tuple(items)


def _without(
    left: Mapping[PositionId, tuple[Range, ...]], taken: Iterable[Item]
) -> dict[PositionId, tuple[Range, ...]]:
    """Leave out what is taken."""
    gone = dict(taken)
    rest = {pid: ranges.difference(part, gone.get(pid, ())) for pid, part in left.items()}
    return {pid: part for pid, part in rest.items() if part}
