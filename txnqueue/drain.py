"""Drain a queue: receive, handle, commit, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claim_batch
from txnqueue.client import archive
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import check_number, check_transaction_id, describe_error
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import HandlerFailed, InvalidInput, TransactionAborted, TransactionFinished
from txnqueue.messages import browse
from txnqueue.messages.charges import Charges, Fault, fault_of
from txnqueue.messages.claim import ClaimPlanner, HeldClaim, Wanting
from txnqueue.messages.receive import VersionLimit, lease_of, now, upto_of
from txnqueue.messages.selector import Selector
from txnqueue.messages.settlement import Account
from txnqueue.results import DrainResult
from txnqueue.transaction import Transaction
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt
from txnqueue.types import Until

if TYPE_CHECKING:
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")
_NUMBER_MAX = 10**9
PLACED_SECONDS_MAX = 600.0
"""The seconds without a commit after which a run's place is looked up again."""
Handler = Callable[[Batch, Transaction], object]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends a drain before the queue is empty; None: nothing of the kind.

    Attributes:
        max_seconds: Begin no batch after this many seconds.
        max_messages: Begin no batch after this many messages.
        max_batches: Begin no batch after this many.
        stopped: Asked before each batch: whether to stop.
    """

    max_seconds: float | None = None
    max_messages: int | None = None
    max_batches: int | None = None
    stopped: Callable[[], bool] = _never

    def __post_init__(self) -> None:
        """Check every value."""
        if self.max_seconds is not None:
            check_number("max_seconds", self.max_seconds, 0, float("inf"))
        for name in ("max_messages", "max_batches"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, float("inf"))

    def room(self, size: int, seconds: float, messages: int, batches: int) -> int:
        """How many messages the next batch may hold; 0 ends the drain."""
        if self.stopped():
            return 0
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return 0
        if self.max_batches is not None and batches >= self.max_batches:
            return 0
        return size if self.max_messages is None else min(size, self.max_messages - messages)


class Drain:
    """One drain of one queue; its transactions are called ``<run id>/<n>``."""

    def __init__(
        self,
        client: Client,
        queue: Queue,
        handler: Handler,
        batch_size: int,
        run_id: str | None,
        *,
        errors_max: int,
        selector: Selector | None = None,
    ) -> None:
        """Describe the drain; nothing is read yet."""
        check_number("batch_size", batch_size, 1, 100_000_000)
        check_number("errors_max", errors_max, 1, 1_000_000)
        self._client = client
        self._queue = queue
        self._handler = handler
        self._batch_size = batch_size
        self._given = run_id is not None
        self._run_id = run_id if run_id is not None else f"d-{client.runtime.new_id()}"
        check_transaction_id(self._run_id)
        check_transaction_id(f"{self._run_id}/{_NUMBER_MAX}")
        self._errors_max = errors_max
        self._selector = selector
        self._charges = Charges(ordered=queue.info.settings.ordered)
        self._number = 0
        self._gapless = True
        self._placed: tuple[int, float] | None = None
        self._upto: VersionLimit | None = None
        self._batches = self._messages = self._errors = self._failures_in_a_row = 0
        self._last_error: Exception | None = None
        self._applied = True
        self._of_others = self._dead_lettered = 0
        self._current: Attempt | None = None

    def run(
        self,
        until: Until,
        bounds: Bounds,
        on_batch: Callable[[int], None] | None,
    ) -> DrainResult:
        """Consume until there is nothing left, or a bound is reached."""
        if until not in ("snapshot", "empty"):
            raise InvalidInput(f"until={until!r}: say 'snapshot' or 'empty'.")
        self._client.open()
        if self._given and not self._find_place():
            return DrainResult(self._run_id, finished=True, already_finished=True)
        if until == "snapshot":
            self._upto = now(self._client)
        started = self._client.runtime.monotonic()

        def room(batches_done: int = 0) -> int:
            """How many messages the next batch may hold; 0 ends the drain."""
            seconds = self._client.runtime.monotonic() - started
            batches = self._batches + batches_done
            size = self._charges.limit(self._batch_size)
            return bounds.room(size, seconds, self._messages, batches)

        tx, batch = self._receive(room())
        while len(batch) or (room() > 0 and self._more()):
            if not len(batch):  # there may be more than the last claim looked for
                tx, batch = self._receive(room())
                if not len(batch):
                    self._charges.forgive()
                continue
            if not self._handle(batch, tx):
                tx, batch = self._receive(room())
                continue
            count, done, handled = len(batch), tx, batch
            self._messages += count
            try:
                tx, batch = self._commit_and_receive(tx, room(1))
            except Exception as error:
                self._messages -= count
                self._not_committed(handled, done, error)
                tx, batch = self._receive(room())
                continue
            self._batches += 1
            self._failures_in_a_row = 0
            self._charges.succeeded()
            self._log("batch committed", done, messages=count)
            if on_batch is not None:
                self._unless_raising(on_batch, count, tx)
        # What others hold may come back, and what is for others may be this run's at another
        # consumer: then the run is not at its end.
        finished = room() > 0 and not self._of_others
        if finished and self._given:
            finished = self._end()
        result = replace(self._result(finished=finished), stopped=bounds.stopped())
        self._log("drain ended", None, finished=finished, messages=self._messages)
        return result

    # -------------------------------------------------------------------------- helpers

    def _more(self) -> bool:
        """Return whether there is something to receive; what others hold is of the same reading."""
        receivable, self._of_others = browse.left(
            self._client, self._queue.info, self._upto, self._selector
        )
        return receivable

    def _wanted(self) -> Wanting | None:
        """Return which messages the next batch may hold; None if that is all."""
        chosen = self._selector.of_lane if self._selector is not None else None
        if not self._charges.passes_over:
            return chosen
        if chosen is None:
            return self._charges.wanted
        return lambda lane, segments: self._charges.wanted(lane, chosen(lane, segments))

    def _find_place(self) -> bool:
        """Find the number of the next batch of the run; false if the run has finished."""
        self._placed = (self._client.cache.version_to_begin(), self._client.runtime.monotonic())
        prefix = f"{self._run_id}/"
        shard = model.transaction_shard(f"{prefix}0")
        decisions = [
            entry
            for entry in (
                *archive.of_shard(self._client.store, shard, prefix),
                *self._client.store.transient.journal.read([shard]).entries,
            )
            if entry.kind in model.DECISIONS and entry.stream.startswith(prefix)
        ]
        committed = [e.stream[len(prefix) :] for e in decisions if e.kind == model.COMMITTED]
        found = {int(n) for n in committed if n.isdecimal()}
        self._number = max([self._number, *(n + 1 for n in found)])
        self._gapless = len(found) == self._number  # a former version could leave numbers out
        self._charges.recall(decisions)
        return "end" not in committed

    def _end(self) -> bool:
        """Record that the run has finished; another driver of the run may do so as well.

        Returns:
            Whether it is recorded: if others were faster at every try, or it came too late for
            the store's maintenance, the next run does it.
        """
        try:
            commit.commit(Attempt(self._client, f"{self._run_id}/end"))
        except TransactionAborted as error:
            return error.receipt is not None
        return True

    def _attempt(self, ahead: int = 0) -> Attempt:
        """Begin the transaction of the next batch, or of a later one.

        Another driver of the run may have committed its number, and the archive hold that by
        now. So it begins where the run's place was found last: the horizon cannot pass that
        without its being refused.
        """
        seconds = self._client.runtime.monotonic()
        if self._given and (self._placed is None or seconds - self._placed[1] > PLACED_SECONDS_MAX):
            self._find_place()
        tx = Attempt(self._client, f"{self._run_id}/{self._number + ahead}", look_up=False)
        tx.begin(self._placed[0] if self._placed is not None else None)
        self._dead_lettered += self._current.dead_lettered if self._current is not None else 0
        self._current = tx
        return tx

    def _receive(self, limit: int) -> tuple[Attempt, Batch]:
        """Claim a batch by an append of its own."""
        tx = self._attempt()
        if limit <= 0:
            return tx, Batch(self._client, self._queue.schema, [], tx)
        try:
            return tx, self._claim(limit, tx, self._wanted())
        except BaseException as error:
            self._give_back(tx, error)
            raise

    def _give_back(self, tx: Attempt, error: BaseException) -> None:
        """Roll back a transaction whose claim failed, and what the journal says that it holds.

        The claim may have landed all the same, and its messages were delivered to no one.
        """
        try:
            client, info = self._client, self._queue.info
            mine = tx.attempt_id
            with client.lock:
                claims = [
                    c
                    for c in client.states.fold(info).claims()
                    if c.acquirer and c.acquirer.attempt == mine
                ]
            tx.add_account(Account([HeldClaim(info, claim, {}) for claim in claims], tx))
        except Exception as failed:  # then they are void, and the next receive finds that
            logger.warning("what is held cannot be read transaction_id=%s error=%s", tx.id, failed)
        commit.roll_back_after(tx, error, counted=False)

    def _claim(
        self, limit: int, tx: Attempt, wanted: Wanting | None, before: Sequence[HeldClaim] = ()
    ) -> Batch:
        queue = self._queue
        return claim_batch(
            self._client,
            queue.info,
            queue.schema,
            limit,
            tx,
            upto=self._upto,
            wanted=wanted,
            before=before,
        )

    def _handle(self, batch: Batch, tx: Attempt) -> bool:
        """Hand a batch to the handler; roll it back if that fails.

        Raises:
            HandlerFailed: It failed too often in a row, or by a mistake of the job.
        """
        tx.charges = self._charges.next_counts
        self._client.blocks.append(tx)
        try:
            self._handler(batch, Transaction(tx))
        except Exception as error:
            fault = fault_of(error)
            commit.rollback(tx, reason=describe_error(error), counted=fault is Fault.MESSAGE)
            if is_closed(error):
                raise
            self._errors += 1
            self._failed(error, batch, tx)
            return False
        except BaseException:
            commit.rollback(tx, reason="interrupted")
            raise
        finally:
            self._client.blocks.remove(tx)
        if tx.status is Status.ROLLED_BACK:
            self._charges.failed(batch._account.held, counted=tx.charges)
            rolled_back = "The handler rolled the transaction back."
            self._failed(TransactionAborted(rolled_back, transaction_id=tx.id), batch, tx)
            return False
        if tx.status is not Status.ACTIVE:
            raise TransactionFinished(
                f"The handler left transaction {tx.id!r} {tx.status.value}: the drain commits it, "
                "not the handler. See manager.outcome() before you repeat the run.",
                transaction_id=tx.id,
            )
        return True

    def _not_committed(self, batch: Batch, tx: Attempt, error: Exception) -> None:
        """Record that the commit of a batch failed.

        Raises:
            Exception: The error, if the drain cannot go on.
            HandlerFailed: As in ``_failed``.
        """
        if not isinstance(error, TransactionAborted):
            commit.roll_back_after(tx, error, counted=False)
            raise error
        self._placed = None
        if error.__cause__ is not None and is_closed(error.__cause__):
            raise error.__cause__ from None  # it will not come back
        self._failed(error, batch, tx)

    def _failed(self, error: Exception, batch: Batch, tx: Attempt) -> None:
        """Count a batch that was not committed.

        Raises:
            HandlerFailed: Too many in a row, or by a mistake of the job.
        """
        fault = fault_of(error)
        self._last_error = error
        self._failures_in_a_row += 1
        self._log("batch rolled back", None, error=describe_error(error))
        if fault is Fault.JOB:
            raise HandlerFailed(
                "The job failed by a mistake of its own, and not by a message: "
                f"{describe_error(error)} Its batch was given back, and the delivery does not "
                "count: mend the job and repeat the run.",
                result=self._result(finished=False),
            ) from error
        if fault is Fault.MESSAGE:
            self._charges.failed(batch._account.held, counted=tx.charges)
        if self._failures_in_a_row >= self._errors_max:
            raise HandlerFailed(
                f"{self._failures_in_a_row} batches in a row were rolled back, the last with "
                f"{describe_error(error)}. Nothing of these batches was "
                "committed: mend the handler, then drain again.",
                result=self._result(finished=False),
            ) from error

    def _commit_and_receive(self, tx: Attempt, room: int) -> tuple[Attempt, Batch]:
        """Commit a batch and claim the next one, by one append.

        Returns:
            The next transaction and its batch, which is empty if there was no room for one, the
            claim was lost twice, could not be planned, or failed after the commit.
        """
        following = self._attempt(ahead=1)
        nothing = Batch(self._client, self._queue.schema, [], following)
        if room <= 0 or not commit.joinable(tx):
            self._committed(commit.commit(tx))
            return following, nothing
        wanted = self._wanted()
        info = self._queue.info
        receiver = ClaimPlanner(
            self._client,
            info,
            room,
            lease_of(info, following),
            following,
            upto=upto_of(self._upto, info),
            joined_with=tx.attempt_id,
            wanted=wanted,
        )
        try:
            landed = commit.commit_joined(tx, receiver.plan)
            self._committed(commit.committed_by(tx, landed))
        except TransactionAborted:  # of which nothing landed
            raise
        except BaseException as error:
            self._give_back(following, error)
            raise
        try:
            held = receiver.held(landed.entries)
            if not held:
                return following, nothing
            return following, self._claim(room, following, wanted, held)
        except BaseException as error:
            self._give_back(following, error)
            if not isinstance(error, Exception):
                raise
            # The batch is committed. The call for the next one asks again, and learns why.
            return following, nothing

    def _committed(self, receipt: Receipt) -> None:
        """Record a commit: the run's next number cannot have been committed before it.

        A number is committed only after the one before it was found committed: none is left
        out, or what left one out is known.
        """
        self._number += 1
        self._applied &= receipt.applied
        if self._gapless and self._placed is not None and receipt.journal_version > self._placed[0]:
            self._placed = (receipt.journal_version, self._client.runtime.monotonic())

    def _unless_raising(self, on_batch: Callable[[int], None], count: int, ahead: Attempt) -> None:
        """Report a commit; if that raises, what was claimed ahead goes back uncounted."""
        try:
            on_batch(count)
        except BaseException:
            commit.rollback(ahead, reason="drain ended", counted=False)
            raise

    def _result(self, *, finished: bool) -> DrainResult:
        return DrainResult(
            self._run_id,
            self._batches,
            self._messages,
            self._errors,
            finished,
            last_error=self._last_error,
            applied=self._applied,
            dead_lettered=self._dead_lettered
            + (self._current.dead_lettered if self._current is not None else 0),
        )

    def _log(self, event: str, tx: Attempt | None, **details: object) -> None:
        """Write what happened to the log ``txnqueue``, with its details as ``record.details``."""
        about: dict[str, object] = {"queue": self._queue.name, "run_id": self._run_id}
        if tx is not None and tx.receipt is not None:
            about["transaction_id"] = tx.id
            about["commit_seq"] = tx.receipt.commit_seq
            about["applied"] = tx.receipt.applied
        said = {**about, **details}
        text = " ".join(f"{key}={value}" for key, value in said.items())
        logger.info("%s %s", event, text, extra={"event": event, "details": said})
