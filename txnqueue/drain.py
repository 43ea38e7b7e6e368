"""Drain a queue: receive, handle and commit it batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claims_of, half_of_lease_over
from txnqueue.client.client import Client
from txnqueue.client.consumer import Consumer
from txnqueue.client.runtime import Background, UnderWay
from txnqueue.core.bounds import Bounds
from txnqueue.core.handlers import check_ran
from txnqueue.core.receipt import Receipt, Status
from txnqueue.core.settings import check_choice, check_count, describe_error, shown
from txnqueue.core.state.closure import is_closed
from txnqueue.drain_steps import Claimed, Step, Steps, Wanted
from txnqueue.errors import (
    HandlerFailed,
    InvalidInput,
    LeaseLost,
    StoreCorrupt,
    StoreError,
    TransactionAborted,
    TransactionFinished,
)
from txnqueue.messages import browse
from txnqueue.messages.charges import Charges, Fault, fault_of
from txnqueue.messages.claim import Wanting
from txnqueue.messages.receive import VersionLimit, lease_of, now
from txnqueue.messages.selector import Selector
from txnqueue.messages.takeover import RIVAL, is_taken_over
from txnqueue.results import DrainResult
from txnqueue.storage.journal.exceptions import met_by_handler
from txnqueue.transaction import Transaction, call_handler, rolled_back_by_handler
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import UNDECIDED, Attempt
from txnqueue.transactions.drain_run import DrainRun
from txnqueue.types import Until

if TYPE_CHECKING:
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")
Handler = Callable[[Batch, Transaction], object]
_AT_WORK = 3
"""A drain has at most so many batches that are not decided."""


class Drain:
    """One drain of one queue, whose transactions are named ``<run id>/<n>``.

    With ``ahead=1`` a drain holds up to three batches: one whose handler runs; the one before it,
    which is *done* and being committed; and the one after it, which the same append claims. The
    commits still come in the order of the numbers. If a batch fails, the batches after it are
    returned, and their deliveries do not count.
    """

    def __init__(
        self,
        client: Client,
        queue: Queue,
        handler: Handler,
        batch_size: int,
        run_id: str | None,
        *,
        errors_max: int,
        select: Callable[[], Selector | None] = lambda: None,
        ahead: int = 0,
        consumer: Consumer | None = None,
    ) -> None:
        """Describe the drain; nothing is read yet.

        Args:
            client: The client that consumes.
            queue: The queue.
            handler: Handles a batch in its transaction.
            batch_size: The most messages of a batch.
            run_id: Names the run; without one the run cannot be repeated.
            errors_max: How many failures in a row end the drain.
            select: Makes the selector of the messages, anew at each call of ``run``.
            ahead: How many batches are handled before the previous one is committed.
            consumer: The holder of the batches, if not the client's.
        """
        check_count("batch_size", batch_size, 1, 100_000_000)
        check_count("errors_max", errors_max, 1, 1_000_000)
        _check_ahead(ahead, queue)
        self._client = client
        self._queue = queue
        self._handler = handler
        self._batch_size = batch_size
        self._errors_max = errors_max
        self._select = select
        self._selector = select()
        self._charges = Charges(ordered=queue.info.settings.ordered)
        self._consumer = client.consumer if consumer is None else consumer
        self._run = DrainRun(client, queue.info, run_id, self._charges.recall, self._consumer)
        self._steps = Steps(client, queue)
        self._ahead = bool(ahead)
        self._background: Background | None = None
        self._done: Claimed | None = None
        self._begun: list[Attempt] = []
        self._bounds, self._started = Bounds(), 0.0
        self._on_batch: Callable[[int], object] | None = None
        self._upto: VersionLimit | None = None
        self._batches = self._messages = self._errors = self._failures_in_a_row = 0
        self._last_error: Exception | None = None
        self._applied = True
        self._of_others = self._dead_lettered = 0
        self._counting: list[Attempt] = []

    def run(
        self,
        until: Until,
        bounds: Bounds,
        on_batch: Callable[[int], object] | None,
    ) -> DrainResult:
        """Consume until there is nothing left, or a bound is reached.

        A drain without a run id may be run again; its counts then go on.
        """
        check_choice("until", until, ("snapshot", "empty"))
        self._client.open()
        self._selector = self._select()
        if self._run.given:
            self._run.find_place()
        if self._run.finished:
            return DrainResult(self._run.id, finished=True, already_finished=True)
        if until == "snapshot":
            self._upto = now(self._client)
        self._bounds, self._on_batch = bounds, on_batch
        self._started = self._client.runtime.monotonic()
        try:
            self._consume()
        except BaseException as error:
            self._let_go(error)
            raise
        finally:
            if self._background is not None:
                self._background.shutdown(wait=False)
                self._background = None
        # The run is not finished while others hold messages, which may come back, or while some
        # are undeliverable here: another consumer may receive those in the same run.
        finished = self._run.finished or (self._room() > 0 and not self._of_others)
        if finished and self._run.given:
            finished = self._run.end()
        result = replace(self._result(finished=finished), stopped=bounds.asked_to_stop())
        self._log("drain ended", None, finished=finished, messages=self._messages)
        return result

    @property
    def result(self) -> DrainResult:
        """The counts of what the drain has consumed so far."""
        return self._result(finished=False)

    # ------------------------------------------------------------------ batch by batch

    def _consume(self) -> None:
        current = self._receive()
        while len(current) or (self._room() > 0 and self._more()):
            if len(current):
                current = self._overlap(current) if self._flows else self._handle(current)
                continue
            current = self._receive()  # there may be more than the last claim looked for
            if not len(current):
                self._charges.forgive()

    @property
    def _flows(self) -> bool:
        """Whether the next batch is claimed while a handler runs: only after one has succeeded."""
        return self._ahead and self._charges.proven and not self._failures_in_a_row

    def _handle(self, current: Claimed) -> Claimed:
        """Handle a batch, commit it, and return the next one."""
        if not self._succeeded(current, self._call(current)):
            return self._receive()
        return self._decide(current)

    def _decide(self, done: Claimed) -> Claimed:
        """Commit a handled batch, and claim the next one by the same append."""
        wanted = self._wanted(done)
        try:
            receipt, claimed = self._steps.commit_and_claim(done.attempt, wanted)
        except Exception as error:  # the batch is counted as failed, or this ends the drain
            self._not_committed(done, error)
            return self._receive()
        self._committed(done, receipt)
        return claimed

    def _overlap(self, current: Claimed) -> Claimed:
        """Handle a batch while the one before it is committed and the next one is claimed."""
        done, self._done = self._done, None
        if self._bounds.over(self._seconds()) or not self._held_on(current):
            commit.rollback(current.attempt, "not begun", counted=False)
            return self._receive() if done is None else self._decide(done)
        pending = [current] if done is None else [done, current]
        before = None if done is None else done.attempt
        step = partial(self._steps.behind, before, self._wanted(*pending))
        if self._background is None:
            self._background = self._client.runtime.new_background()
        under_way = self._background.submit(step)
        landed, failure = self._awaited(under_way, self._call(current))
        if landed.error is not None:
            return self._nothing_before(done, current, landed.error, failure)
        if done is not None and landed.receipt is not None:
            self._committed(done, landed.receipt)
        if not self._succeeded(current, failure):
            commit.rollback(landed.claimed.attempt, "a batch before it failed", counted=False)
            return self._receive()
        if not len(landed.claimed):
            return self._decide(current)
        self._done = current
        return landed.claimed

    @staticmethod
    def _awaited(
        under_way: UnderWay[Step], failure: BaseException | None
    ) -> tuple[Step, BaseException | None]:
        """Wait for the append that ran beside a handler, even if that wait is interrupted once."""
        try:
            return under_way.result(), failure
        except BaseException as interruption:
            return under_way.result(), interruption

    def _nothing_before(
        self,
        done: Claimed | None,
        current: Claimed,
        error: BaseException,
        failure: BaseException | None,
    ) -> Claimed:
        """Return a batch whose predecessor was not committed: its number is no longer valid."""
        if isinstance(failure, Exception):
            self._errors += 1
        counted = isinstance(failure, Exception) and fault_of(failure) is Fault.MESSAGE
        if current.attempt.status is Status.ACTIVE:
            reason = describe_error(failure or error)
            commit.rollback(current.attempt, reason, counted=counted)
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        if done is None or not isinstance(error, Exception):
            raise error
        self._not_committed(done, error)
        return self._receive()

    def _held_on(self, current: Claimed) -> bool:
        """Renew the lease of a batch that was claimed ahead, if less than half of it is left.

        Returns:
            Whether the batch is still held.
        """
        seconds = lease_of(self._queue.info, current.attempt)
        if not half_of_lease_over(current.batch, seconds, self._client.runtime.now_ms()):
            return True
        try:
            current.batch.extend_lease(seconds)
        except LeaseLost:
            return False
        return True

    def _let_go(self, error: BaseException) -> None:
        """Return the batches in hand after an error; one whose delivery counts is rolled back."""
        if self._background is not None:
            self._background.shutdown(wait=True)  # its claim may land, and is then returned too
        for attempt in self._begun:
            commit.roll_back_after(attempt, error, counted=False)

    # -------------------------------------------------------------------------- helpers

    def _seconds(self) -> float:
        return self._client.runtime.monotonic() - self._started

    def _room(self, *pending: Claimed) -> int:
        """How many messages the next batch may hold if pending ones succeed; 0 ends the drain."""
        if self._run.finished:
            return 0
        size = self._charges.limit(self._batch_size)
        messages = self._messages + sum(len(one) for one in pending)
        return self._bounds.room(size, self._seconds(), messages, self._batches + len(pending))

    def _more(self) -> bool:
        """Return whether there is something to receive; note what others hold by that reading."""
        receivable, self._of_others = browse.left(
            self._client, self._queue.info, self._consumer, self._upto, self._selector
        )
        return receivable

    def _wanting(self) -> Wanting | None:
        """Return the filter of the messages that the next batch may hold; None for no filter."""
        chosen = self._selector.of_lane if self._selector is not None else None
        if not self._charges.passes_over:
            return chosen
        if chosen is None:
            return self._charges.wanted
        return lambda lane, segments: self._charges.wanted(lane, chosen(lane, segments))

    def _wanted(self, *pending: Claimed) -> Wanted:
        """Describe the claim of the batch after those that are pending, and begin its attempt."""
        number = pending[-1].number + 1 if pending else None
        attempt = self._run.begin(number)
        room = self._room(*pending)
        attempt.ahead = self._ahead
        self._counting.append(attempt)  # its handler receives too, after the next one has begun
        while len(self._counting) > _AT_WORK:
            self._dead_lettered += self._counting.pop(0).dead_lettered
        begun = [tx for tx in self._begun if tx.status is Status.ACTIVE]
        self._begun = [*begun[-_AT_WORK:], attempt]
        return Wanted(
            self._run.number if number is None else number,
            attempt,
            room,
            self._upto,
            self._wanting() if room > 0 else None,
            [one.attempt.attempt_id for one in pending],
        )

    def _receive(self) -> Claimed:
        """Claim a batch by a separate append."""
        return self._steps.claim(self._wanted())

    def _call(self, current: Claimed) -> BaseException | None:
        """Pass a batch to the handler, and return the exception that it raised, if any.

        What it raises because a file of the payload cannot be read is no failure of its own: the
        error of that file is returned instead.
        """
        tx = current.attempt
        tx.charges = self._charges.next_counts
        blocks = self._client.blocks
        try:
            blocks.append(tx)
            call_handler(self._handler, current.batch, Transaction(tx))
        except BaseException as error:
            of_file = met_by_handler(self._client.payload.folder, error)
            if of_file is not None and of_file is not error:
                of_file.__cause__ = error
            return of_file or error
        finally:
            if tx in blocks:
                blocks.remove(tx)
            if self._ahead:
                tx.close()
        return None

    def _succeeded(self, current: Claimed, failure: BaseException | None) -> bool:
        """Return whether a batch was handled; roll it back if its handler failed.

        Raises:
            HandlerFailed: Handlers failed too often in a row, or by a mistake of the job.
            StoreError: A file of the store cannot be read.
            TransactionFinished: The handler committed or prepared the transaction.
        """
        tx = current.attempt
        if failure is not None and not isinstance(failure, Exception):
            commit.rollback(tx, reason="interrupted", unless_prepared=True)
            raise failure
        if failure is not None:
            counted = fault_of(failure) is Fault.MESSAGE
            commit.rollback(tx, describe_error(failure), counted=counted, unless_prepared=True)
            if tx.is_prepared:
                raise _left(tx) from failure
            if is_closed(failure) or type(failure) in (StoreCorrupt, StoreError):
                raise failure  # the next batch would meet it again
            self._errors += 1
            self._failed(failure, current)
            return False
        if tx.status is Status.ROLLED_BACK:
            self._charges.failed(claims_of(current.batch), counted=tx.rollback_counted)
            self._failed(rolled_back_by_handler(tx), current)
            return False
        if tx.status is not Status.ACTIVE:
            raise _left(tx)
        return True

    def _not_committed(self, done: Claimed, error: Exception) -> None:
        """Record that the commit of a batch failed.

        Raises:
            Exception: The error, if the drain cannot go on.
            HandlerFailed: As in ``_failed``.
        """
        if not isinstance(error, TransactionAborted):
            commit.roll_back_after(done.attempt, error, counted=False)
            raise error
        self._run.lose_place()
        if error.reason == UNDECIDED:
            raise error
        if error.__cause__ is not None and is_closed(error.__cause__):
            raise error.__cause__ from None  # the queue or exchange will not come back
        self._failed(error, done)

    def _failed(self, error: Exception, current: Claimed) -> None:
        """Count a batch that was not committed.

        Raises:
            HandlerFailed: Too many batches failed in a row, or one by a mistake of the job.
            TransactionAborted: Another driver works on the run, and has not finished it.
        """
        if self._run.given and is_taken_over(error, current.attempt.id):
            self._run.find_place()
            if self._run.finished:
                return
            if error.reason == RIVAL:
                raise TransactionAborted(
                    f"Another driver works on the run {self._run.id!r}, and has taken over the "
                    "batch of this one: nothing of it was committed, and this drain ends, so that "
                    "one of them goes on.",
                    transaction_id=error.transaction_id,
                    reason=RIVAL,
                ) from error
        fault = fault_of(error)
        self._last_error = error
        self._failures_in_a_row += 1
        self._log("batch rolled back", None, error=describe_error(error))
        if fault is Fault.JOB:
            raise HandlerFailed(
                f"The job itself is at fault, not a message: {_sentence(error)} Its batch "
                "was released, and the delivery does not count: correct the job and run it again.",
                result=self._result(finished=False),
            ) from error
        if fault is Fault.MESSAGE:
            held = claims_of(current.batch)
            self._charges.failed(held, counted=current.attempt.charges)
        if self._failures_in_a_row >= self._errors_max:
            raise HandlerFailed(
                f"{self._failures_in_a_row} batches in a row were rolled back, the last with "
                f"{_sentence(error)} Nothing of these batches was committed: correct the "
                "handler, then drain again.",
                result=self._result(finished=False),
            ) from error

    def _committed(self, done: Claimed, receipt: Receipt) -> None:
        """Record a commit, and report it."""
        self._run.committed(done.number, receipt.journal_version)
        self._applied &= receipt.applied
        self._messages += len(done)
        self._batches += 1
        self._failures_in_a_row = 0
        self._charges.succeeded()
        self._log("batch committed", done.attempt, messages=len(done))
        if self._on_batch is not None:
            check_ran(self._on_batch(len(done)), "on_batch")

    def _result(self, *, finished: bool) -> DrainResult:
        return DrainResult(
            self._run.id,
            self._batches,
            self._messages,
            self._errors,
            finished,
            last_error=self._last_error,
            applied=self._applied,
            dead_lettered=self._dead_lettered + sum(one.dead_lettered for one in self._counting),
        )

    def _log(self, event: str, tx: Attempt | None, **details: object) -> None:
        """Log an event to the logger ``txnqueue``, with its details as ``record.details``."""
        about: dict[str, object] = {"queue": self._queue.name, "run_id": self._run.id}
        if tx is not None and tx.receipt is not None:
            about["transaction_id"] = tx.id
            about["commit_seq"] = tx.receipt.commit_seq
            about["applied"] = tx.receipt.applied
        said = {**about, **details}
        text = " ".join(f"{key}={value}" for key, value in said.items())
        logger.info("%s %s", event, text, extra={"event": event, "details": said})


def _left(attempt: Attempt) -> TransactionFinished:
    """Make the error of a handler that committed or prepared its transaction."""
    return TransactionFinished(
        f"The handler left transaction {attempt.id!r} {attempt.status.value}: only the drain may "
        "decide it. See manager.outcome() before you repeat the run.",
        transaction_id=attempt.id,
    )


def _sentence(error: Exception) -> str:
    return f"{describe_error(error).removesuffix('.')}."


def _check_ahead(ahead: int, queue: Queue) -> None:
    """Check how far a drain may handle batches ahead of its commits.

    Raises:
        InvalidInput: The value is neither 0 nor 1, or it is 1 and the queue is ordered.
    """
    if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead not in (0, 1):
        raise InvalidInput(
            f"ahead={shown(ahead)}: give 1 to handle a batch while the previous one is committed, "
            "or 0 to handle it after that.",
            name="ahead",
        )
    if ahead and queue.info.settings.ordered:
        raise InvalidInput(
            f"ahead=1 handles a batch before the previous one is committed, but {queue.name!r} is "
            "ordered: drain it with ahead=0.",
            name="ahead",
        )
