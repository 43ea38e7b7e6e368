"""An attempt of a transaction that is not decided: what it is, and what would decide it.

What it sent is staged and named by nobody until the decision names it; what it received
is claimed by it; one append decides it all. A run of a transaction is an *attempt* of its
id (the *key*): a rollback ends the attempt, not the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txnqueue import model, planning, sealing
from txnqueue.applying import follow
from txnqueue.client import Client
from txnqueue.config import check_metadata, check_text, check_transaction_id
from txnqueue.deciding import Receipt, Status
from txnqueue.errors import TransactionAborted, TransactionFinished, TransactionIdReused
from txnqueue.ledger import KeyState, Owner
from txnqueue.model import Entry
from txnqueue.participants import Participants
from txnqueue.planning import Plan
from txnqueue.tables import Change
from txnqueue.transient_work import TransientWork
from txnqueue.work import Work


class Draft:
    """What an attempt has gathered, and the entries that a decision of it would write."""

    def __init__(
        self,
        client: Client,
        transaction_id: str | None,
        *,
        lease_seconds: float | None = None,
        digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        look_up: bool = True,
    ) -> None:
        """Name the attempt; nothing is read or written yet. Use ``manager.transaction``."""
        self.client = client
        runtime = client.runtime
        self._given = transaction_id is not None
        self._look_up_first = self._given and look_up
        self.id = (
            check_transaction_id(transaction_id)
            if transaction_id is not None
            else model.generated_key(client.shard, runtime.new_id())
        )
        self.attempt = runtime.new_id()
        self.status = Status.NOT_STARTED
        self.receipt: Receipt | None = None
        self.already_committed = False
        self.lease_seconds = lease_seconds
        self.digest = check_text("digest", digest)
        self.metadata = check_metadata(metadata)
        self._begun = -1
        self._work = Work()
        self._transient = TransientWork(client, self._work)
        self._decision: Entry | None = None
        self._participants = Participants(self)
        self._claiming = False
        self._deciding = False
        self._rolled_back: list[str] = []
        self._entered = False
        self.charges = True
        """Whether the deliveries of its messages count if it is rolled back."""
        self.dead_lettered = 0
        """How many messages its receives found that are dead letters now."""

    @property
    def owner(self) -> Owner:
        """The attempt as the owner of claims and decisions."""
        return Owner(self.client.consumer, 0, self.id, self.attempt, self._begun)

    @property
    def changes(self) -> list[Change]:
        """The changes of tables that it has gathered."""
        return self._work.changes

    @property
    def interrupted(self) -> bool:
        """Whether something interrupted a decision of it, which may land as it was."""
        return self._deciding and self.status is Status.ACTIVE

    @property
    def _durable(self) -> bool:
        """Whether the journal must say what becomes of it.

        An id that the client gave is written down there, unless all that it stands for is
        in memory, where it is remembered as long as that.
        """
        work = self._work.durable(self.attempt) or self._participants or self._claiming
        return bool(work) or (self._given and not self._transient)

    def begin(self, version: int | None = None) -> None:
        """Begin: learn a version of the journal, and look up an id that the client gave.

        Args:
            version: Begin at this one, where the id was looked up.
        """
        if self.status is not Status.NOT_STARTED:
            return
        self.client.open()
        self._begun = self.client.version_to_begin() if version is None else version
        self.status = Status.ACTIVE
        if self._look_up_first:
            self._look_up(self.client.key_state(self.id))
            if not self.already_committed and self.client.store.transient.used:
                self._look_up(self.client.transient.key_states([self.id])[self.id], memory=True)

    def _look_up(self, state: KeyState, *, memory: bool = False) -> None:
        """Find out whether the id was committed before, in the journal or in memory only."""
        if not memory:
            self._rolled_back = state.rolled_back()
        entry = state.committed
        if entry is None:
            return
        digest = entry.body.get("digest")
        if self.digest is not None and digest is not None and digest != self.digest:
            self.status = Status.ROLLED_BACK
            raise TransactionIdReused(
                f"Transaction id {self.id!r} was committed with another digest ({digest}): use a "
                "new id for new work.",
                transaction_id=self.id,
                digest=digest,
            )
        # Whoever repeats the work finishes it: its table changes may not be applied yet.
        self.status, self.already_committed = Status.COMMITTED, True
        if memory:
            self.receipt = Receipt.in_memory(self.id, entry.begun or 0, entry.recorded_at_ms)
        else:
            self.receipt = Receipt.of(entry, follow(self.client, entry))

    def _plan_seal(self, kind: str, lost: int) -> Plan:
        if lost:
            self._rolled_back = self._rivals()
        stamp = self.client.stamp()
        body = self._body(kind, stamp)
        return self._work.seal(self.client, self.owner, kind, self._rolled_back, stamp, body)

    def _body(self, kind: str, stamp: planning.Stamp) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self.digest is not None:
            body["digest"] = self.digest
        if self.metadata:
            body["metadata"] = self.metadata
        if self._participants.names:
            body["participants"] = self._participants.names
        if self._participants.last is not None:
            body["last_resource"] = self._participants.last.name
        if kind == model.PREPARED:
            body["claims"] = [
                sealing.entry_to_json(e) for e in self._work.released(stamp, "prepared")
            ]
        return body

    def _plan_rollback(self, reason: str, counted: bool) -> Plan | None:
        state = self.client.key_state(self.id, archived_since=self._begun)
        decided = state.decisions.get(self.attempt)
        if decided is not None:
            if decided.kind == model.COMMITTED:  # an interrupted commit landed after all
                self._decision, self.status = decided, Status.COMMITTED
            return None
        if state.is_over(self.owner):  # below the horizon: it never happened, for ever
            if self._deciding:  # unless an interrupted commit landed, long ago
                self.client.never_decided(state, self.owner)
            return None
        stamp = self.client.stamp()
        prepared = state.prepared.get(self.attempt)
        if prepared is not None:  # an interrupted prepare landed after all
            return sealing.decide_prepared(prepared, commit=False, stamp=stamp, reason=reason)
        released = self._work.released(stamp, reason, counted)
        said = None if counted else {"counted": False}
        return sealing.rollback(self.owner, released, stamp, reason, said)

    def _rivals(self) -> list[str]:
        """Look at the other attempts of the id, and at what became of this one.

        Raises:
            TransactionAborted: This attempt was aborted, or another one cannot be overtaken.
        """
        state = self.client.key_state(self.id, archived_since=self._begun)
        decided = state.decided(self.attempt)
        if self.client.never_decided(state, self.owner):
            raise TransactionAborted(
                f"Transaction {self.id!r} was not decided in time: the store's maintenance has "
                "closed the time in which it began. Run it again; maintain() says for how long a "
                "transaction may stay open.",
                transaction_id=self.id,
            )
        if decided == model.COMMITTED:
            self._decision = state.decisions[self.attempt]
            raise TransactionFinished(f"Transaction {self.id!r} is committed after all.")
        if decided == model.ROLLED_BACK:
            entry = state.decisions[self.attempt]
            raise TransactionAborted(
                f"Transaction {self.id!r} was aborted by {entry.actor}: {entry.reason}.",
                transaction_id=self.id,
                reason=entry.reason,
            )
        if decided is None and state.committed is not None:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} was committed first.",
                transaction_id=self.id,
                receipt=Receipt.of(state.committed),
            )
        waiting = state.in_doubt
        if waiting is not None and waiting.attempt != self.attempt:
            raise TransactionAborted(
                f"Another attempt of transaction {self.id!r} is prepared: decide it first.",
                transaction_id=self.id,
            )
        return state.rolled_back()
