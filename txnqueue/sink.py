"""Sinks: write each micro-batch of a streaming query in one transaction, once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from txnqueue.client import archive
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.core.settings import TRANSACTION_ID_LENGTH_MAX, check_name, text_of
from txnqueue.errors import InvalidInput, TransactionFinished
from txnqueue.storage.journal.sessions import is_connect
from txnqueue.storage.payload.frames import is_frame
from txnqueue.transaction import Rollback, Transaction, call_handler, rolled_back_by_handler
from txnqueue.transactions.attempt import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("txnqueue")

SinkHandler = Callable[["DataFrame", Transaction], object]
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
"""Spark's local properties about a streaming query, on the thread that calls the function of
``foreachBatch``."""
_written: dict[tuple[str, str, str], tuple[int, str]] = {}
"""By store, query and target: the batch that a sink of this process wrote last, or writes now, and
the run of the query."""
_newest: dict[tuple[str, str, str], tuple[str | None, int]] = {}
"""By the same: the run of the query, and the newest batch that was committed before it."""
_lock = threading.Lock()
_LONGEST_QUERY, _LONGEST_BATCH = "0" * 36, 2**63 - 1


class Sink:
    """A function for ``foreachBatch``: each micro-batch is one transaction, and happens once.

    The transaction id consists of the query's id, which its checkpoint holds, and the batch's
    number. So a repeated batch gets the receipt of its first run, and a query with a new
    checkpoint, whatever its name, is a different query.
    """

    def __init__(
        self,
        client: Client,
        target: str,
        name: str | None,
        write: SinkHandler,
        *,
        inside: Attempt | None = None,
    ) -> None:
        """Describe the sink.

        Args:
            client: The client of the store.
            target: The id of what is written to: a batch is written once to each target.
            name: Distinguishes several sinks that write one batch to one target.
            write: Writes the rows of a batch in a transaction.
            inside: The transaction in which the target was opened.

        Raises:
            InvalidInput: The session is a Spark Connect session, the target belongs to a
                transaction, or the name is invalid.
        """
        check_possible(client, inside)
        self._client = client
        self._target = target if name is None else f"{target}/{check_name(name, 'sink')}"
        room = TRANSACTION_ID_LENGTH_MAX - len(_id_of(_LONGEST_QUERY, target, _LONGEST_BATCH))
        if name is not None and len(name) >= room:
            raise InvalidInput(
                f"The sink's name {name!r} is too long together with the target {target!r}, with "
                f"which it names transactions: use at most {room - 1} characters.",
                name="name",
            )
        self._write = write

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, unless an earlier run of it was committed.

        Raises:
            InvalidInput: The caller is not ``foreachBatch``, or calls twice in a batch, or the
                batch was planned anew after an earlier one with its number was committed.
            TransactionAborted: The handler rolled back, so the rows were not written.
            TransactionFinished: The handler left the transaction prepared or in doubt.
        """
        batch = _MicroBatch.of(rows, batch_id)
        with _once(self._client.cache.store_id, self._target, batch):
            self._write_once(rows, batch)

    def _write_once(self, rows: DataFrame, batch: _MicroBatch) -> None:
        attempt = Attempt(
            self._client,
            _id_of(batch.query, self._target, batch.batch),
            metadata=asdict(batch),
        )
        attempt.is_batch = True
        with Transaction(attempt) as tx:
            if not tx.already_committed:
                batch.check_is_after(self._newest_before(batch))
                call_handler(self._write, rows, tx)
                if tx.status is Status.ROLLED_BACK:  # the query would go on without these rows
                    raise rolled_back_by_handler(attempt)
                _check_written(attempt)
                if attempt.is_empty and tx.status is Status.ACTIVE:
                    raise Rollback(tx)  # nothing is recorded of a batch without rows
            else:
                batch.check_is(attempt.committed_metadata)

    def _newest_before(self, batch: _MicroBatch) -> int:
        """Find the newest batch that was committed here before this run of the query; -1: none."""
        key = (self._client.cache.store_id, batch.query, self._target)
        run, newest = _newest.get(key, ("", -1))
        if run != batch.run:
            newest = _newest_batch(self._client, batch.query, self._target)
            _newest[key] = batch.run, newest
        return newest


def _newest_batch(client: Client, query: str, target: str) -> int:
    """Find the newest batch of a query that is committed at a target; -1 if none is."""
    prefix = _id_of(query, target, 0).removesuffix("0")
    entries = archive.of_shard(client.store, model.transaction_shard(f"{prefix}0"), prefix)
    numbers = (e.stream.removeprefix(prefix) for e in entries if e.kind == model.COMMITTED)
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def check_possible(client: Client, inside: Attempt | None) -> None:
    """Check that there can be a sink.

    Raises:
        InvalidInput: The session is a Spark Connect session, or its target belongs to a
            transaction.
    """
    if inside is not None:
        raise InvalidInput(
            f"A sink begins a transaction for each batch and cannot work in {inside.id!r}: "
            "open its targets with the manager."
        )
    if client.store.spark is not None and is_connect(client.store.spark):
        raise InvalidInput(
            "Over Spark Connect, foreachBatch does not learn its query, so batches of "
            "different queries cannot be told apart: run the streaming query on a classic "
            "session."
        )


def _check_written(attempt: Attempt) -> None:
    """Check that a handler left its transaction to the sink, or committed it.

    Raises:
        TransactionFinished: It is prepared or in doubt, so the rows may never be written, but the
            query would go on without them.
    """
    if attempt.status not in (Status.ACTIVE, Status.COMMITTED):
        raise TransactionFinished(
            f"The handler left transaction {attempt.id!r} {attempt.status.value}, so the rows of "
            "the batch may not be written: leave the commit to the sink. Start the query again to "
            "repeat the batch; if manager.outcome() says that the transaction is prepared, decide "
            "it first.",
            transaction_id=attempt.id,
        )


def _id_of(query: str, target: str, batch: int) -> str:
    """Return the transaction id of a batch (pure)."""
    return f"sink/{query}/{target}/{batch}"


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """What distinguishes a micro-batch from all others.

    Attributes:
        query: The query's id, which stays the same as long as the query has its checkpoint.
        batch: The batch's number in the query.
        run: The run of the query, which calls its function once per batch; None: Spark does not
            tell.
        planned_ms: When Spark decided which rows the batch has, as the checkpoint records;
            None: unknown.
    """

    query: str
    batch: int
    run: str | None
    planned_ms: int | None

    @classmethod
    def of(cls, rows: object, batch_id: object) -> _MicroBatch:
        """Ask Spark which micro-batch this thread runs.

        Raises:
            InvalidInput: This thread runs no batch, or a batch with another number.
        """
        found = rows.sparkSession.sparkContext.getLocalProperty if is_frame(rows) else _nothing
        query, number = found(_QUERY), found(_BATCH)
        if not query or not number:
            raise InvalidInput(
                "A sink is called by a streaming query, in the thread that runs its batch: use "
                "df.writeStream.foreachBatch(queue.sink()), or send these rows with queue.send(df)."
            )
        if str(batch_id) != number:
            raise InvalidInput(
                f"batch_id={batch_id!r}, but this is batch {number} of the query: pass on what "
                "foreachBatch gives.",
                name="batch_id",
            )
        return cls(query, int(number), *_run_and_plan(rows, query, number))

    def check_is(self, committed: Mapping[str, object]) -> None:
        """Check that the batch committed under the same id is this one.

        Args:
            committed: The recorded metadata of the committed batch.

        Raises:
            InvalidInput: This batch has, or may have, other rows, which would be lost.
        """
        planned_ms = committed.get("planned_ms")
        if None not in (planned_ms, self.planned_ms) and planned_ms != self.planned_ms:
            raise self._planned_anew(f"Another batch {self.batch} of the query was written here")

    def check_is_after(self, newest: int) -> None:
        """Check that no later batch was committed before, which may have had these rows.

        An earlier run of this batch may have had none, so that nothing is recorded of it.

        Args:
            newest: The newest batch of the query that was committed before this run.

        Raises:
            InvalidInput: One was.
        """
        # One of this number is this batch, whose commit by another run has landed by now.
        if self.batch < newest:
            raise self._planned_anew(
                f"Batch {newest} of the query was written here, and this is batch {self.batch}"
            )

    def _planned_anew(self, found: str) -> InvalidInput:
        return InvalidInput(
            f"{found}: its checkpoint was restored, changed or copied since, so it is unknown "
            "which rows were sent. Use a new checkpoint, or sink(name=...) with a new name, to "
            "send these rows as well.",
            name="checkpointLocation",
        )


def _nothing(_key: str) -> None:
    return None


@contextmanager
def _once(store_id: str, target: str, batch: _MicroBatch) -> Iterator[None]:
    """Let one call in a run write a batch to a target; one that failed may be made again.

    In each run, and not only in the first one: a second sink of one name would take the first
    one's commit for its own, and lose its rows.

    Raises:
        InvalidInput: Another call has written it in this run, or is about to.
    """
    if batch.run is None:  # all runs would be one
        yield
        return
    key, mine = (store_id, batch.query, target), (batch.batch, batch.run)
    with _lock:
        if _written.get(key) == mine:
            raise InvalidInput(
                f"Batch {batch.batch} of the query was already written here by another call in "
                "this run: give each further sink in a foreachBatch a name of its own, "
                "sink(name=...), and leave that of the first one as it is.",
                name="name",
            )
        _written[key] = mine
    try:
        yield
    except BaseException:
        with _lock:
            if _written.get(key) == mine:  # and not that of another run, which has begun since
                del _written[key]
        raise


def _run_and_plan(rows: Any, query: str, batch: str) -> tuple[str | None, int | None]:
    """Ask Spark for the run of a query, and when a batch was planned; None: it does not tell."""
    from py4j.protocol import Py4JError

    run, planned_ms = None, None
    state = rows.sparkSession._jsparkSession.sharedState()
    try:
        running = {str(each.getKey()): each for each in state.activeStreamingQueries().entrySet()}
        execution = running[query].getValue()
        run = str(execution.runId())
        planned = execution.offsetLog().offsetSeqMetadataForBatchId(int(batch))
        planned_ms = int(planned.get().batchTimestampMs())
    except (Py4JError, KeyError) as error:
        logger.warning(
            "Spark does not tell when a batch was planned, so a restored checkpoint may not be "
            "noticed query=%s batch=%s error=%s",
            query,
            batch,
            text_of(error),
        )
    return run, planned_ms
