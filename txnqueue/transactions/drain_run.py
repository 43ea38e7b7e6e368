"""A run of a drain, whose transactions are named ``<run id>/<number>``, without gaps.

A number is committed only after the previous one is known to be committed, so a run continues
after the largest number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txnqueue.client import archive
from txnqueue.client.client import Client
from txnqueue.client.consumer import Consumer
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.settings import (
    TRANSACTION_ID_LENGTH_MAX,
    QueueInfo,
    check_transaction_id,
)
from txnqueue.errors import InvalidInput, TransactionAborted
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import DRAINED, NUMBER_MAX, Attempt, drained_queue

RUN_ID_LENGTH_MAX = TRANSACTION_ID_LENGTH_MAX - len(f"/{NUMBER_MAX}")
"""The characters of a run id, to which the ids of its transactions add the number of a batch."""
MARKED_LAYOUT = 2
"""The layout of the stores in which all decisions of runs name the queue."""
PLACED_SECONDS_MAX = 600.0
"""The seconds without a commit after which a run's place is looked up again."""


class DrainRun:
    """A run's place: the number of its next batch.

    Attributes:
        id: The run's id, given or drawn.
        given: Whether the id was given, so that other drivers may work on the run, too.
        number: The number of the next batch to be committed.
        finished: Whether another driver has recorded the run's end.
    """

    def __init__(
        self,
        client: Client,
        queue: QueueInfo,
        run_id: str | None,
        recall: Callable[[Iterable[Entry]], None],
        consumer: Consumer,
    ) -> None:
        """Name the run; nothing is read yet.

        Args:
            client: The client that works on the run.
            queue: The queue that it drains.
            run_id: The run's id; None draws one.
            recall: Called with the earlier decisions of the run's batches.
            consumer: The holder of the batches.
        """
        self._client = client
        self._queue = queue
        self.given = run_id is not None
        self._metadata = {DRAINED: queue.queue_id} if self.given else None
        self.id = run_id if run_id is not None else f"d-{client.runtime.new_id()}"
        check_transaction_id(self.id, "run_id", RUN_ID_LENGTH_MAX)
        self.number = 0
        self.finished = False
        self._recall = recall
        self._consumer = consumer
        self._gapless = True
        self._placed: tuple[int, float] | None = None

    def find_place(self) -> None:
        """Find the number of the run's next batch, and whether the run has finished.

        Raises:
            InvalidInput: It is the run of another queue. Schedulers give one id to all tasks of a
                run: the second queue would be taken for finished, and never be consumed. Or a
                transaction that is none of a run has the id of its end.
        """
        client = self._client
        self._placed = (client.cache.version_to_begin(), client.runtime.monotonic())
        prefix = f"{self.id}/"
        shard = model.transaction_shard(f"{prefix}0")
        decisions = [
            entry
            for entry in (
                *archive.of_shard(client.store, shard, prefix),
                *client.store.transient.journal.read([shard]).entries,
            )
            if entry.kind in model.DECISIONS
            and entry.stream.startswith(prefix)
            and "/" not in entry.stream[len(prefix) :]  # of a run whose id begins with this one's
        ]
        committed = {e.stream[len(prefix) :]: e for e in decisions if e.kind == model.COMMITTED}
        self._check_queue(committed.values())
        if "end" in committed and not self._is_of_a_run(committed["end"]):
            raise InvalidInput(
                f"run_id={self.id!r}: a transaction {f'{self.id}/end'!r} is committed that is not "
                "the end of a run: give another run_id.",
                name="run_id",
            )
        found = {int(n) for n in committed if n.isdecimal()}
        self.number = max([self.number, *(n + 1 for n in found)])
        self._gapless = len(found) == self.number  # a former version could leave numbers out
        self._recall(e for e in decisions if e.kind != model.COMMITTED or self._is_of_a_run(e))
        self.finished = "end" in committed

    def _check_queue(self, committed: Iterable[Entry]) -> None:
        drained = set(map(drained_queue, committed)) - {None}
        if drained - {self._queue.queue_id}:
            raise InvalidInput(
                f"run_id={self.id!r} was given to a run of another queue than "
                f"{self._queue.name!r}: give each queue's runs ids of their own, such as "
                f"{f'{self._queue.name}/{self.id}'!r}.",
                name="run_id",
            )

    def _is_of_a_run(self, committed: Entry) -> bool:
        """Return whether a commit is one of a run, as far as the store tells.

        In a store of the first layout 0.1.0 may have written it, which did not mark them.
        """
        return drained_queue(committed) is not None or self._client.cache.layout < MARKED_LAYOUT

    def lose_place(self) -> None:
        """Look up the place before the next batch, because another driver may be at work."""
        self._placed = None

    def begin(self, number: int | None = None) -> Attempt:
        """Begin the transaction of a batch; without a number, of the next one to be committed.

        Another driver of the run may have committed the number, and that commit may be in the
        archive by now. So the transaction begins at the version at which the run's place was last
        found: if the horizon has passed that version, its commit is refused.
        """
        seconds = self._client.runtime.monotonic()
        if self.given and (self._placed is None or seconds - self._placed[1] > PLACED_SECONDS_MAX):
            self.find_place()
        number = self.number if number is None else number
        transaction_id = f"{self.id}/{number}"
        attempt = Attempt(
            self._client,
            transaction_id,
            metadata=self._metadata,
            look_up=False,
            consumer=self._consumer,
        )
        attempt.is_batch = True
        attempt.begin(self._placed[0] if self._placed is not None else None)
        return attempt

    def committed(self, number: int, version: int) -> None:
        """Record a commit as the run's place, if no number is missing before it.

        Then the next number cannot have been committed earlier: a number is committed only after
        the one before it was found committed.

        Args:
            number: The number that was committed.
            version: The version of the journal that holds the commit.
        """
        self.number = number + 1
        if self._gapless and self._placed is not None and version > self._placed[0]:
            self._placed = (version, self._client.runtime.monotonic())

    def end(self) -> bool:
        """Record that the run has finished; another driver of the run may do so as well.

        Returns:
            Whether it is recorded, here or by another driver: if every try met a conflict, or the
            horizon has passed the attempt, the next run records it.
        """
        if self.finished:
            return True
        try:
            commit.commit(Attempt(self._client, f"{self.id}/end", metadata=self._metadata))
        except TransactionAborted as error:
            return error.receipt is not None
        return True
