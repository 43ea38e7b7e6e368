"""The public class ``Batch``: the messages of one receive, and their settlement."""

from __future__ import annotations

import datetime
import html
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.core.instants import by_then_ms, instant
from txnqueue.core.receipt import Status
from txnqueue.core.settings import (
    LEASE_SECONDS_MAX,
    QueueInfo,
    check_flag,
    check_number,
    check_predicate,
    check_text,
    is_text,
    shown,
)
from txnqueue.core.state import Claim, Position
from txnqueue.errors import (
    AlreadySettled,
    BranchMisused,
    InvalidInput,
    LeaseLost,
    PayloadRemoved,
    SettlementPending,
    TransactionMismatch,
)
from txnqueue.heartbeat import Heartbeat
from txnqueue.messages import settlement
from txnqueue.messages.claim import HeldClaim, Wanting
from txnqueue.messages.move import routed, target_of, to_queue
from txnqueue.messages.parts import part_of
from txnqueue.messages.receive import VersionLimit, claim, given
from txnqueue.messages.selector import Reasons, fulfilling, ranges_of
from txnqueue.messages.settlement import Account, Dispositions, Name, Unanswered, name_of
from txnqueue.storage.payload import Part, messages_of
from txnqueue.transaction import Transaction, attempt_of, resolve
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.commit import has_landed, learn_decision, of_a_call
from txnqueue.transactions.transient import resolve as resolve_memory
from txnqueue.types import NOT_GIVEN, Matching, Message, NotGiven

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from txnqueue.queue import Queue


def half_over(until: datetime.datetime, seconds: float, now_ms: int) -> bool:
    """Return whether half of a lease is over, so that it should be extended.

    If more than all of it seems to be left, this clock was set back since: to others the lease may
    be about to end.

    Args:
        until: The end of the lease.
        seconds: Its length.
        now_ms: The clock that it was taken by.
    """
    left_ms, length_ms = by_then_ms(until) - now_ms, round(seconds * 1000)
    return not length_ms / 2 < left_ms <= length_ms


class Batch:
    """Messages in flight: read as a DataFrame, settled as a whole or in parts.

    ``len(batch)`` counts the messages. If they were received inside a transaction, its commit
    accepts those not settled, or releases them once some were accepted explicitly. Received
    outside, they are held under a lease until they are settled or the lease ends; a call that
    settles them at once, and is interrupted or in doubt, can be repeated with the same arguments.
    """

    _at_work: Callable[[], Attempt | None] = staticmethod(lambda: None)
    """Returns the attempt in which messages held under a lease are settled if none is given."""

    def __init__(
        self,
        client: Client,
        schema: StructType,
        held: Sequence[HeldClaim],
        attempt: Attempt | None = None,
    ) -> None:
        """Wrap this client's claims; users get batches from ``Queue.receive``."""
        self._client = client
        self._schema = schema
        self._carried = [  # keeps transient rows in memory as long as this batch lives
            client.store.transient.payload.carried(position.payload_id, position.send_id)
            for one in held
            if one.info.transient
            for position in one.positions.values()
        ]
        self._attempt = attempt
        self._account = Account(held, attempt)

    # -------------------------------------------------------------------------- looking

    def __len__(self) -> int:
        """Count the messages."""
        return sum(
            ranges.count(part) for one in self._account.held for part in one.claim.items.values()
        )

    @property
    def df(self) -> DataFrame:
        """The messages as a DataFrame on the user's session, pinned to this batch.

        The columns are those of the payload and one struct ``_message``: id, message_id (the
        queue's ``message_id`` column, else the id), queue string, lane, delivery_count int,
        redelivered boolean, enqueued_at timestamp, transaction_id string, headers map of strings,
        correlation_id, reply_to string, origin (a struct with queue, reason string, delivery_count
        int of a moved message, and error string, which made it a dead letter), send_id string,
        send_offset long. ``MessageInfo`` describes each field.
        """
        return self._client.payload.frame(self._schema, self._parts())

    def to_arrow(self) -> pa.Table:
        """Read the messages into an Arrow table, in delivery order; columns as in ``df``."""
        return self._client.payload.table(self._schema, self._parts())

    def messages(self) -> list[Message]:
        """Read the messages as dicts, in delivery order; meant for small batches."""
        return messages_of(self.to_arrow())

    @property
    def held_until(self) -> datetime.datetime | None:
        """The instant (UTC) at which the first lease ends; None for an empty batch.

        Leases whose messages are all settled do not count, as long as there are others.
        """
        first = _first_to_end(self)
        return None if first is None else instant(first.deadline_ms)

    @property
    def holds(self) -> bool:
        """Whether this batch still has unsettled messages, as far as it knows."""
        inside = self._inside
        is_decided = inside is not None and inside.status in (Status.COMMITTED, Status.ROLLED_BACK)
        return self._account.anything and not is_decided

    def __repr__(self) -> str:
        """Show the number of messages, their queues and the end of the lease."""
        if not self._account.held:
            return "<Batch without messages>"
        names = sorted({one.info.name for one in self._account.held})
        held = f"held until {self.held_until}" if self.holds else "no longer held"
        return f"<Batch of {len(self)} from {', '.join(names)}, {held}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    # ------------------------------------------------------------------------- settling

    def _parts(self) -> list[Part]:
        return [
            part_of(one.positions[pid], part, one.info.name, claim.lane, claim.delivery_count)
            for one in self._account.held
            for claim in [one.claim]
            for pid, part in claim.items.items()
        ]

    def _named(
        self, where: str | None, matching: Matching | None, reason_column: str | None
    ) -> Reasons | None:
        """Find the selected messages, by reason; None means all that are left."""
        if where is not None and matching is not None:
            raise InvalidInput("Give where= or matching=, not both.")
        if reason_column is not None and matching is None:
            raise InvalidInput("reason_column= names a column of matching=: give matching= too.")
        if reason_column is not None and not is_text(reason_column):
            raise InvalidInput(
                f"reason_column={shown(reason_column)}: give the name of a column.",
                name="reason_column",
            )
        folder = self._client.payload.folder
        if where is not None:
            where = check_predicate(where)  # before a DataFrame is made
            return fulfilling(self.df, where, folder)
        return None if matching is None else ranges_of(matching, reason_column, folder)

    def _settle(
        self,
        kind: str,
        named: Reasons | None,
        reason: str | None,
        transaction: Transaction | NotGiven | None,
        complete: settlement.Complete | None = None,
        *,
        how: tuple[object, ...] = (),
    ) -> int:
        """Settle messages; ``complete`` completes the dispositions of each claim, as ``how`` says.

        A call at once that repeats an interrupted one goes on with it, also if that has landed.
        """
        target = self._target(transaction)
        account, attempt_id = self._account, target.attempt_id if target else None
        asked = (kind, named, reason, how)
        if account.unanswered:
            earlier = self._unanswered(asked if target is None else ())
            if earlier is not None:
                return self._settle_now(earlier)
        try:
            chosen = account.chosen(kind, named, reason, attempt_id)
            if complete is not None:
                chosen = settlement.completed(account, chosen, complete)
        except PayloadRemoved:
            self._check_ours()  # the payload may be gone because others settled the messages
            raise
        messages = settlement.count(chosen)
        missing, wanted = (0, 0) if named is None else account.missing(named, chosen)
        if missing:
            raise AlreadySettled(
                f"{missing} of these {wanted} messages are already settled, or are not "
                "in this batch: name messages of batch.messages(), each once. Nothing was changed."
            )
        if not messages:
            return 0
        if target is not None:
            _say(target, account, chosen)
            return messages
        return self._settle_now(Unanswered(asked, self._settling(chosen)))

    def _settling(self, chosen: Dispositions) -> settlement.Settling:
        """Describe a settlement outside a transaction."""
        held = [one for one in self._account.held if name_of(one) in chosen]
        parts = settlement.by_client(self._client, held)
        if len(parts) == 1:
            return settlement.AtOnce(*parts[0], chosen)
        return _Together(self._client, self._account, chosen)

    def _settle_now(self, call: Unanswered) -> int:
        """Carry out a settlement outside a transaction, and return the number of messages."""
        account, chosen = self._account, call.settling.chosen
        messages = settlement.count(chosen)
        try:
            account.forget(call)
            call.settling.land()
            account.settled(chosen)
        except BaseException:  # from here on nothing can be interrupted, nor after the end
            account.remember(call)
            raise
        return messages

    def _unanswered(self, asked: tuple[object, ...]) -> Unanswered | None:
        """Return the call to go on with; None if none of those that were interrupted is repeated.

        What the others have settled is recorded; those that can no longer land are forgotten.
        """
        account, found = self._account, None
        for call in account.unanswered:
            outcome = call.settling.outcome()
            if call.asked == asked and outcome is not False:
                found = call
            elif outcome:
                account.settled(call.settling.chosen)
            if outcome is False or (outcome and call is not found):
                account.forget(call)
        return found

    def _check_ours(self) -> None:
        """Check that the unsettled messages are still held.

        Raises:
            LeaseLost: Others may have some of the messages now, or have settled them.
        """
        for one in self._account.held:
            side = self._client.of(one.info)
            if self._account.rest(one):
                with side.lock:
                    settlement.still_ours(side, one, {})

    @property
    def _inside(self) -> Attempt | None:
        """The attempt that holds the messages; None if a lease holds them, or they are kept."""
        return self._attempt if self._account.acquirer is not None else None

    def _target(self, transaction: Transaction | NotGiven | None) -> Attempt | None:
        if self._inside is not None:
            learn_decision(self._inside)
        inside = self._inside
        if inside is None:
            bound = self._at_work() if transaction is NOT_GIVEN else None
            return resolve(self._client, transaction, "settling a batch", bound)
        given = attempt_of(transaction) if isinstance(transaction, Transaction) else transaction
        if given is not NOT_GIVEN and given is not inside:
            raise TransactionMismatch(
                f"The batch was received in transaction {inside.id!r}: settle it there.",
                transaction_id=inside.id,
            )
        inside.check_active()
        return inside

    def accept(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        reason: str | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Consume messages: they are removed for good once this is committed.

        The commit of the transaction that received the batch accepts every message you did not
        settle; if you accepted some explicitly, it releases the others instead. Of a batch held
        under a lease only the selected messages are settled, and the others stay held.

        Args:
            where: A SQL predicate over the columns of ``df``; all unsettled messages when left
                out.
            matching: Messages of this batch: a DataFrame, pandas or Arrow table with
                ``_message``, dicts from ``messages()``, or message ids.
            reason: The reason, recorded in the history.
            transaction: The transaction to settle in; None settles at once.

        Returns:
            The number of messages selected.

        Raises:
            AlreadySettled: Some of the selected messages are already settled.
            LeaseLost: Other consumers may have the messages now; nothing was changed.
            SettlementPending: A prepared transaction settles messages of the same lease: decide it
                first; nothing was changed.
            QueueClosed: The queue is being dropped; nothing was changed.
            Busy: Others won every conflict; nothing was changed.
            TransactionUnknown: In doubt; repeat the call with the same arguments.
            TransactionNotGiven: ``transaction=`` was left out inside a transaction block.
            TransactionFinished: The transaction takes no more work.
            TransactionMismatch: The batch was received in another transaction, or the given one
                belongs to another manager.
        """
        reason = check_text("reason", reason)
        named = self._named(where, matching, None)
        return self._settle(model.ACCEPTED, named, reason, transaction)

    def release(
        self,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Return messages to their original places, without counting the delivery.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            transaction: As in ``accept``.

        Returns:
            The number of messages selected.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
            SettlementPending: As in ``accept``.
            QueueClosed: As in ``accept``.
            Busy: As in ``accept``.
            TransactionUnknown: As in ``accept``.
            TransactionNotGiven: As in ``accept``.
            TransactionFinished: As in ``accept``.
            TransactionMismatch: As in ``accept``.
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
        """Move messages to the dead-letter queue with a reason, or remove them if there is none.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            reason: The reason, recorded in the dead letters' ``_message.origin.reason``.
            reason_column: A column of ``matching`` with the reason of each message.
            transaction: As in ``accept``.

        Returns:
            The number of messages selected.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
            SettlementPending: As in ``accept``.
            QueueClosed: As in ``accept``.
            Busy: As in ``accept``.
            TransactionUnknown: As in ``accept``.
            TransactionNotGiven: As in ``accept``.
            TransactionFinished: As in ``accept``.
            TransactionMismatch: As in ``accept``.
        """
        reason = check_text("reason", reason)
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
        """Return messages to their original places, and choose how they are redelivered.

        Args:
            where: As in ``accept``.
            matching: As in ``accept``.
            delivery_failed: Whether the delivery counts, so that a message that fails again and
                again ends as a dead letter; false counts none, as ``release``.
            undeliverable_here: Whether this manager's consumer id never gets the messages again.
                They wait for a consumer with another id, or until they are moved, purged or
                expire.
            transaction: As in ``accept``.

        Returns:
            The number of messages selected.

        Raises:
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
            SettlementPending: As in ``accept``.
            QueueClosed: As in ``accept``.
            Busy: As in ``accept``.
            TransactionUnknown: As in ``accept``.
            TransactionNotGiven: As in ``accept``.
            TransactionFinished: As in ``accept``.
            TransactionMismatch: As in ``accept``.
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
            how=(delivery_failed, undeliverable_here),
        )

    def move(
        self,
        to: str | Queue,
        where: str | None = None,
        *,
        matching: Matching | None = None,
        transaction: Transaction | NotGiven | None = NOT_GIVEN,
    ) -> int:
        """Move messages to another queue with the same columns; nothing is copied.

        The other queue's rules give them new places; priority, delay and time to live are kept.
        Inside a transaction the messages are in the other queue once it commits.

        Args:
            to: The other queue, or its name.
            where: As in ``accept``.
            matching: As in ``accept``.
            transaction: As in ``accept``.

        Returns:
            The number of messages selected.

        Raises:
            QueueNotFound: The other queue does not exist.
            SchemaMismatch: The other queue has other columns.
            AlreadySettled: As in ``accept``.
            LeaseLost: As in ``accept``.
            SettlementPending: As in ``accept``.
            QueueClosed: As in ``accept``.
            Busy: As in ``accept``.
            TransactionUnknown: As in ``accept``.
            TransactionNotGiven: As in ``accept``.
            TransactionFinished: As in ``accept``.
            TransactionMismatch: As in ``accept``.

        Example::

            batch = orders.receive(1_000)
            batch.move("orders-of-vips", where="customer IN ('c1', 'c7')")
            batch.accept()
        """
        target = target_of(self._client, to)
        named = self._named(where, matching, None)
        routes = {
            one.info.queue_id: to_queue(
                self._client,
                one.info,
                target.in_memory() if one.info.transient else target,
            )
            for one in self._account.held
        }
        return self._settle(
            model.MOVED,
            named,
            "moved",
            transaction,
            lambda one, said: routed(routes[one.info.queue_id], one, said),
            how=(target.queue_id,),
        )

    def _unsettled(self) -> dict[Name, bool]:
        """Return the claims that have unsettled messages, and whether the lease of each is over."""
        now_ms = self._client.runtime.now_ms()
        held = [one for one in self._account.held if self._account.rest(one)] if self.holds else ()
        return {name_of(one): one.claim.ends_at_ms(now_ms) <= now_ms for one in held}

    def keep(self) -> None:
        """Let the commit leave the unsettled messages in flight, under a lease.

        Messages acquired inside a transaction can then be settled after it, in another one or at
        once. Their deliveries do not count anew; a rollback returns them. A batch received
        outside a transaction is kept anyway.

        Raises:
            BranchMisused: The batch was received in a branch, which others may commit.
            TransactionFinished: The transaction that received it takes no more work.
        """
        inside = self._inside
        if inside is not None:
            inside.check_active()
            if not inside.keeps:
                raise BranchMisused(
                    "Messages received in a branch cannot be kept: settle them in the branch."
                )
            self._account.keeping = True

    def heartbeat(
        self, lease_seconds: float = 300.0, every_seconds: float | None = None
    ) -> Heartbeat:
        """Extend the lease while a block runs: one append per beat, from another thread.

        Args:
            lease_seconds: Each beat extends the lease to this many seconds from then, and
                shortens none that ends later.
            every_seconds: The seconds between beats; a third of the lease when left out.

        Returns:
            A context manager for the block.

        Raises:
            InvalidInput: A value cannot be used.
            LeaseLost: At the end of the block, unless an error ends it: a lease was lost, and
                other consumers may have the messages.

        Example::

            with batch.heartbeat(lease_seconds=120):
                train_a_model(batch.df)
            batch.accept()
        """
        check_number("lease_seconds", lease_seconds, 0.001, LEASE_SECONDS_MAX)
        every = max(0.001, lease_seconds / 3) if every_seconds is None else every_seconds
        check_number("every_seconds", every, 0.001, lease_seconds)
        extend = partial(extend_leases, [self])
        return Heartbeat(lease_seconds, every, self._unsettled, extend)

    def extend_lease(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now, by one append.

        It never shortens a lease: one that ends later stays as it is.

        Args:
            seconds: The length of the new lease, from now.

        Raises:
            LeaseLost: Other consumers may have the messages now.
            SettlementPending: A prepared transaction settles some of the messages, and holds them
                whatever the clock says; the lease of the others was extended.
            TransactionUnknown: Whether it was extended is in doubt, whatever the outcome of the
                transaction that it names: extend it again.
        """
        check_number("seconds", seconds, 0.001, LEASE_SECONDS_MAX)
        extend_leases([self], seconds)


def claims_of(batch: Batch) -> list[HeldClaim]:
    """Return the claims behind a batch; for the library's own packages."""
    return list(batch._account.held)


def half_of_lease_over(
    batch: Batch, seconds: float, now_ms: int, lost: Collection[Name] = ()
) -> bool:
    """Return whether half of a batch's lease is over; for the library's own packages.

    Args:
        batch: The batch.
        seconds: The length to which its lease would be extended; it may be a longer one.
        now_ms: The clock that it was taken by.
        lost: The claims that are known as lost, which are left out.
    """
    first = _first_to_end(batch, lost)
    if first is None:
        return False
    longest = max(seconds, (first.deadline_ms - first.began_at_ms) / 1000)
    return half_over(instant(first.deadline_ms), longest, now_ms)


def _first_to_end(batch: Batch, lost: Collection[Name] = ()) -> Claim | None:
    """Find the claim whose lease ends first, among those with messages left if there are some."""
    claims = [one for one in claims_of(batch) if name_of(one) not in lost]
    left = [one.claim for one in claims if batch._account.rest(one)]
    among = left or [one.claim for one in claims]
    return min(among, key=lambda claim: claim.deadline_ms, default=None)


def extend_leases(
    batches: Sequence[Batch], seconds: float, lost: dict[Name, LeaseLost] | None = None
) -> None:
    """Extend the leases of a manager's batches by one append; for the library's own packages.

    Of durable and transient messages it takes two appends. So all claims are checked before the
    first one; what is lost between the two is told although the leases of the others were extended.

    Args:
        batches: The batches.
        seconds: The length of the new leases, from now.
        lost: The claims that are known as lost, which are left out; takes those that are found to
            be, so that the leases of the others do not end for that. None refuses them.

    Raises:
        LeaseLost: As in ``Batch.extend_lease``; no lease was extended unless it was lost meanwhile.
        SettlementPending: As in ``Batch.extend_lease``.
    """
    known: Collection[Name] = () if lost is None else lost
    accounts = [batch._account for batch in batches if batch.holds]
    unsettled = [one for account in accounts for one in account.held if account.rest(one)]
    waiting: list[SettlementPending] = []
    kept = [one for one in unsettled if name_of(one) not in known]
    sides = settlement.by_client(batches[0]._client, kept)
    for client, held in sides[1:] if lost is None else ():  # the first append checks its own
        settlement.check_ours(client, held)
    for client, held in sides:
        pending: dict[Name, SettlementPending] = {}
        settlement.extend(client, held, seconds, pending, lost)
        waiting += pending.values()
    if waiting:
        raise waiting[0]


def ids_of(batch: Batch) -> list[str]:
    """Return the ids of a batch's messages, in delivery order; for the library's own packages.

    Nothing is read for that.
    """
    return [
        f"{part.send_id}:{offset}"
        for part in batch._parts()
        for first, last in part.ranges
        for offset in range(first, last + 1)
    ]


def positions_of(batch: Batch) -> list[Position]:
    """Return the position of each of a batch's messages, in the order of ``ids_of``."""
    return [
        one.positions[pid]
        for one in batch._account.held
        for pid, part in one.claim.items.items()
        for _ in range(ranges.count(part))
    ]


def some_messages(batch: Batch, ids: Collection[str]) -> list[Message]:
    """Read some of a batch's messages, in delivery order; for the library's own packages.

    Args:
        batch: The batch.
        ids: The ids of the messages.
    """
    payload = batch._client.payload
    (wanted,) = ranges_of(ids, None, payload.folder).values()
    parts = [
        replace(part, ranges=ranges.intersection(part.ranges, wanted[part.send_id]))
        for part in batch._parts()
        if part.send_id in wanted
    ]
    parts = [part for part in parts if part.ranges]
    return messages_of(payload.table(batch._schema, parts))


def unsay(batch: Batch, transaction: Transaction) -> None:
    """Take back a batch's dispositions in a transaction; for the library's own packages."""
    batch._account.unsay(attempt_of(transaction).attempt_id)


class _Together:
    """Settles durable and transient messages at once, for which it takes a transaction."""

    def __init__(self, client: Client, account: Account, chosen: Dispositions) -> None:
        """Describe the settlement; no transaction is begun yet."""
        self.chosen = chosen
        self._client = client
        self._account = account
        self._attempt: Attempt | None = None

    def land(self) -> None:
        """Carry it out, unless an earlier call has done so."""
        if self._attempt is not None and self.outcome():
            return
        self._attempt = attempt = Attempt(self._client)
        with of_a_call(attempt), Transaction(attempt):
            _say(attempt, self._account, self.chosen)

    def outcome(self) -> bool:
        """Find out whether it was carried out; if not, it never will be."""
        if self._attempt is None:
            return False
        if has_landed(self._attempt):
            return True
        self._account.unsay(self._attempt.attempt_id)
        return False


def _say(attempt: Attempt, account: settlement.Account, chosen: Dispositions) -> None:
    """Let an attempt settle messages when it commits."""
    with attempt.adding():
        attempt.adopt(account)
        account.say(attempt.attempt_id, chosen)


def claim_batch(
    client: Client,
    info: QueueInfo,
    schema: StructType,
    limit: int,
    attempt: Attempt | None,
    *,
    lease_seconds: float | None = None,
    upto: VersionLimit | None = None,
    wanted: Wanting | None = None,
    beside: Collection[str] = (),
    before: Sequence[HeldClaim] = (),
) -> Batch:
    """Claim a batch of durable and transient messages, for an attempt or under a lease.

    Args:
        client: The client that claims.
        info: The queue.
        schema: The payload's columns.
        limit: The most messages; this and the following are as in ``receive.claim``.
        attempt: The attempt that acquires them; None for a lease.
        lease_seconds: How long the messages are held.
        upto: Leave out messages posted after this.
        wanted: Cuts the messages that a selector wants out of segments of a lane.
        beside: The undecided attempts of the same drain.
        before: Claims made already that belong to the batch.
    """
    if attempt is None:
        resolve_memory(client)
    else:
        attempt.follow_memory()
    held = claim(
        client,
        info,
        limit,
        attempt,
        lease_seconds,
        upto=upto,
        wanted=wanted,
        beside=beside,
        before=before,
    )
    with given(client, held, attempt):
        batch = Batch(client, schema, held, attempt)
        if attempt is not None and held:
            attempt.add_account(batch._account)
    return batch
