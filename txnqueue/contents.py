"""What a batch holds: the messages, their claims, and what is said of each."""

from __future__ import annotations

import datetime
import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from txnqueue import holding, model, ranges
from txnqueue.client import Client
from txnqueue.errors import (
    AlreadySettled,
    InvalidInput,
    PayloadRemoved,
    TransactionMismatch,
)
from txnqueue.holding import Said, name_of
from txnqueue.ledger import Owner
from txnqueue.matching import Reasons, offsets_of
from txnqueue.payload import Part, evaluating
from txnqueue.planning import Disposition
from txnqueue.receiving import Held, part_of
from txnqueue.scope import NOT_GIVEN, NotGiven, resolve
from txnqueue.settling import Settling
from txnqueue.types import Matching, Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from txnqueue.transaction import Transaction

SaidOf = Callable[[Held, Disposition], list[Disposition]]


class Contents:
    """The messages of a batch, and how what is said of them becomes their settlement."""

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

    # -------------------------------------------------------------------------- looking

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

    def messages(self) -> list[Message]:
        """Read the messages as dicts, in delivery order; for a few, not for a million."""
        rows: list[Message] = self.to_arrow().to_pylist()
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

    @property
    def lease_over(self) -> bool:
        """Whether a lease of the batch has ended by this client's clock."""
        now_ms = self._client.runtime.now_ms()
        return any(one.claim.ends_at_ms(now_ms) <= now_ms for one in self._held)

    def __repr__(self) -> str:
        """Say what is held until when."""
        names = sorted({one.info.name for one in self._held}) or ["nothing"]
        return f"<Batch of {len(self)} from {', '.join(names)}, held until {self.held_until}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    # ------------------------------------------------------ what transactions ask of it

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

    # ------------------------------------------------------------------------- settling

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
        self, where: str | None, matching: Matching | None, reason_column: str | None
    ) -> Reasons | None:
        """Find which messages are meant, by reason; None: all that are left."""
        if where is not None and matching is not None:
            raise InvalidInput("Give where= or matching=, not both.")
        if reason_column is not None and matching is None:
            raise InvalidInput("reason_column= names a column of matching=: give both.")
        if reason_column is not None and not isinstance(reason_column, str):
            raise InvalidInput(f"reason_column={reason_column!r}: give a column's name.")
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
