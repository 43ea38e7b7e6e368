"""The appends of a drain: commit a batch, claim the next one, or both at once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnqueue.batch import Batch, claim_batch
from txnqueue.client.client import Client
from txnqueue.core.receipt import Receipt
from txnqueue.core.settings import describe_error
from txnqueue.errors import TransactionAborted
from txnqueue.messages.claim import ClaimPlanner, HeldClaim, Wanting
from txnqueue.messages.receive import VersionLimit, lease_of, upto_of
from txnqueue.messages.settlement import Account
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt

if TYPE_CHECKING:
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch of a drain.

    Attributes:
        number: Its number in the run.
        attempt: The attempt that decides it.
        batch: The messages; empty if nothing was claimed.
    """

    number: int
    attempt: Attempt
    batch: Batch

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.batch)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The batch that a drain is to claim next.

    Attributes:
        number: The number of the batch in the run.
        attempt: The attempt that is to acquire it.
        limit: The most messages; 0 claims nothing.
        upto: Leave out messages posted after this.
        wanting: Cuts the selected messages out of segments of a lane.
        beside: The attempts of the drain that are not decided yet.
    """

    number: int
    attempt: Attempt
    limit: int
    upto: VersionLimit | None = None
    wanting: Wanting | None = None
    beside: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one append that another thread made.

    Attributes:
        claimed: The next batch; empty if there was none, or it could not be claimed.
        receipt: The receipt of the batch that was committed, if one was.
        error: Why that batch was not committed; then nothing is claimed.
    """

    claimed: Claimed
    receipt: Receipt | None = None
    error: BaseException | None = None


class Steps:
    """The appends of a drain; several threads may make them, one after the other."""

    def __init__(self, client: Client, queue: Queue) -> None:
        """Make the appends of one client on one queue."""
        self._client = client
        self._queue = queue

    def claim(self, wanted: Wanted) -> Claimed:
        """Claim a batch by a separate append."""
        if wanted.limit <= 0:
            return self._nothing(wanted)
        try:
            return self._claim(wanted)
        except BaseException as error:
            self._give_back(wanted.attempt, error)
            raise

    def commit_and_claim(self, done: Attempt, wanted: Wanted) -> tuple[Receipt, Claimed]:
        """Commit a batch and claim the next one, by one append.

        Returns:
            The receipt, and the next batch: empty if there was no room for one, or if its claim
            was lost twice, could not be planned beside the commit, or failed after it.
        """
        if wanted.limit <= 0 or not commit.joinable(done):
            return commit.commit(done), self._nothing(wanted)
        following, info = wanted.attempt, self._queue.info
        planner = ClaimPlanner(
            self._client,
            info,
            wanted.limit,
            lease_of(info, following),
            following,
            upto=upto_of(wanted.upto, info),
            beside=wanted.beside,
            wanted=wanted.wanting,
        )
        try:
            landed = commit.commit_joined(done, planner.plan, in_order=info.settings.ordered)
            receipt = commit.committed_by(done, landed)
        except TransactionAborted:  # nothing landed, so nothing is held
            raise
        except BaseException as error:
            self._give_back(following, error)
            raise
        try:
            held = planner.held(landed.entries)
            return receipt, self._claim(wanted, held) if held else self._nothing(wanted)
        except BaseException as error:
            self._give_back(following, error)
            if not isinstance(error, Exception):
                raise
            # The batch is committed; the next claim meets the same error and reports it.
            return receipt, self._nothing(wanted)

    def behind(self, done: Attempt | None, wanted: Wanted) -> Step:
        """Commit a batch, if one is handled, and claim the next one, while a handler runs.

        Nothing is raised: the result holds the error.
        """
        try:
            if done is not None:
                receipt, claimed = self.commit_and_claim(done, wanted)
                return Step(claimed, receipt)
            return Step(self.claim(wanted))
        except BaseException as error:
            nothing = self._nothing(wanted)
            if done is None and isinstance(error, Exception):
                # As above: the next claim meets the error and reports it.
                logger.info("nothing claimed ahead error=%s", describe_error(error))
                return Step(nothing)
            return Step(nothing, error=error)

    # -------------------------------------------------------------------------- helpers

    def _nothing(self, wanted: Wanted) -> Claimed:
        batch = Batch(self._client, self._queue.schema, [], wanted.attempt)
        return Claimed(wanted.number, wanted.attempt, batch)

    def _claim(self, wanted: Wanted, before: Sequence[HeldClaim] = ()) -> Claimed:
        batch = claim_batch(
            self._client,
            self._queue.info,
            self._queue.schema,
            wanted.limit,
            wanted.attempt,
            upto=wanted.upto,
            wanted=wanted.wanting,
            beside=wanted.beside,
            before=before,
        )
        return Claimed(wanted.number, wanted.attempt, batch)

    def _give_back(self, attempt: Attempt, error: BaseException) -> None:
        """Roll back an attempt whose claim failed, with the messages that it holds in the journal.

        The claim may have landed nevertheless; its messages were delivered to no one.
        """
        try:
            client, info = self._client, self._queue.info
            mine = attempt.attempt_id
            with client.lock:
                claims = [
                    c
                    for c in client.states.fold(info).claims()
                    if c.acquirer and c.acquirer.attempt == mine
                ]
            attempt.add_account(Account([HeldClaim(info, c, {}) for c in claims], attempt))
        except Exception as failed:  # the rollback voids the claims; the next receive takes over
            about = (attempt.id, failed)
            logger.warning("what is held cannot be read transaction_id=%s error=%s", *about)
        commit.roll_back_after(attempt, error, counted=False)
