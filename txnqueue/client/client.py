"""What the parts of one manager share: the store, the runtime, the folds that it keeps."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from txnqueue.client.append import Append, Landed, Planner
from txnqueue.client.cache import Cache
from txnqueue.client.runtime import Runtime
from txnqueue.core import model
from txnqueue.core.planning import Plan, Stamp
from txnqueue.core.receipt import Status
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, TransactionState, compaction
from txnqueue.core.state.closing import closed_error
from txnqueue.errors import QueueError
from txnqueue.storage.payload.kinds import BothKinds
from txnqueue.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


logger = logging.getLogger("txnqueue")
ASKING_SECONDS = 30.0
"""How long a client claims available messages before it looks once at those that others hold."""


class Block(Protocol):
    """A transaction block that a thread is inside of."""

    id: str
    status: Status

    @property
    def takes_work(self) -> bool:
        """Whether it is neither decided nor about to be."""


class Client(Cache):
    """One manager's view of a store."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Share a store; nothing is read yet."""
        super().__init__(store, runtime)
        self._transient: TransientClient | None = None
        self.payload = BothKinds(store.payload, store.transient.payload, store.spark)
        self.shard = int(runtime.new_id()[:1], 16) % model.TRANSACTION_SHARDS
        self._staging: set[str] = set()
        self.confirmations: list[model.Entry] = []
        self.conflicts: Counter[str] = Counter()
        self._epochs: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self.log_max = compaction.LOG_MAX
        self._local = threading.local()

    # --------------------------------------------------------------- transient messages

    @property
    def transient(self) -> TransientClient:
        """This manager's view of the messages that are in the memory of this process."""
        if self._transient is None:
            self._transient = TransientClient(self)
        return self._transient

    def of(self, info: QueueInfo) -> Client:
        """Return the view of the store that holds a queue or, given its description, its part."""
        return self.transient if info.transient else self

    def parts_of(self, info: QueueInfo) -> list[QueuePart]:
        """List the parts of a queue: durable, and transient if there may be any."""
        durable = QueuePart(self, info)
        if not self.store.transient.used:
            return [durable]
        return [durable, QueuePart(self.transient, info.in_memory())]

    # -------------------------------------------------------------------------- appends

    def stamp(self) -> Stamp:
        """Return the author, run and time of an append."""
        runtime = self.runtime
        return Stamp(runtime.actor, runtime.run_id, runtime.now_ms())

    def author(self) -> dict[str, object]:
        """Return the author, as metadata for the histories of Delta tables."""
        return {"actor": self.runtime.actor, "run_id": self.runtime.run_id}

    def land(
        self,
        plan: Planner,
        operation: str,
        *,
        transaction_id: str | None = None,
        queue: str | None = None,
    ) -> Landed | None:
        """Append what is planned, whatever the store answers.

        What is to be confirmed of table changes rides along: facts that expect nothing.
        """
        with self.lock:
            riding = tuple(self.confirmations)

        append = Append(
            self.store.journal,
            self.runtime,
            operation,
            transaction_id=transaction_id,
            queue=queue,
            read=self.read_missing,
        )
        try:
            landed = append.land(plan, riding)
        except QueueError as error:
            self._learn_closed(error)
            raise
        finally:
            if queue is not None:
                self.conflicts[queue] += append.lost
        if landed is not None and riding:
            with self.lock:
                self.confirmations = [fact for fact in self.confirmations if fact not in riding]
        return landed

    def create_staging(self, payload_id: str, schema: StructType) -> None:
        """Create the payload table for rows of these types, once."""
        if payload_id not in self._staging:
            self.store.payload.create(payload_id, schema)
            self._staging.add(payload_id)

    def confirm(self, facts: Iterable[model.Entry] = ()) -> None:
        """Append what is to be confirmed now, and some more facts."""
        with self.lock:
            now = (*self.confirmations, *facts)
            self.confirmations = []
        if not now:
            return
        try:
            self.land(lambda _lost: Plan(now, (model.layout_unchanged(),)), "confirm changes")
        except BaseException:
            self.add_confirmations(now)  # said twice it says the same
            raise

    def add_confirmations(self, facts: Iterable[model.Entry]) -> None:
        """Keep facts for the next append."""
        with self.lock:
            self.confirmations.extend(facts)

    # ------------------------------------------------------------- consumers and blocks

    def epoch(self, fold: QueueState) -> int:
        """Open this manager's consumer id on a queue: one above what it left in flight."""
        if fold.queue_id not in self._epochs:
            mine = [c.owner.epoch for c in fold.claims() if c.owner.consumer == self.consumer]
            self._epochs[fold.queue_id] = max(mine, default=0) + 1
        return self._epochs[fold.queue_id]

    def turn(self, queue_id: str) -> int:
        """Count the receives on a queue, so that each starts at the next lane."""
        self._turns[queue_id] = self._turns.get(queue_id, -1) + 1
        return self._turns[queue_id]

    def asks_again(self, queue_id: str) -> bool:
        """Return whether to look for a queue's messages with other holders, though it has more.

        The answer is true once every ``ASKING_SECONDS``, the first time after one such period.
        """
        now = self.runtime.monotonic()
        if now - self._asked.setdefault(queue_id, now) < ASKING_SECONDS:
            return False
        self._asked[queue_id] = now
        return True

    @property
    def consumer(self) -> str:
        """The id under which this manager holds leases."""
        return self.runtime.consumer

    @property
    def blocks(self) -> list[Block]:
        """The transaction blocks that this thread is inside of, innermost last."""
        if not hasattr(self._local, "blocks"):
            self._local.blocks = []
        blocks: list[Block] = self._local.blocks
        return blocks


@dataclass(frozen=True)
class QueuePart:
    """The durable or the transient part of a queue, with the view of the store that holds it.

    Attributes:
        client: Reads its state, and appends to its journal.
        info: Describes it as a queue of its own.
    """

    client: Client
    info: QueueInfo

    @contextmanager
    def state(self) -> Iterator[QueueState]:
        """Hold the newest state of the part; it does not change inside the block."""
        with self.client.lock:
            yield self.client.fold(self.info)

    @contextmanager
    def state_for_read(self) -> Iterator[QueueState]:
        """Hold the newest state of the part, which may be closing.

        Raises:
            QueueNotFound: The queue was dropped.
        """
        with self.client.lock:
            yield self.client.state_for_read(self.info)

    def same_part_of(self, other: QueueInfo) -> QueueInfo:
        """Describe the part of another queue that is of the same kind."""
        return other.in_memory() if self.info.transient else other


class TransientClient(Client):
    """One manager's view of the transient messages, which all managers of a process share.

    The catalog is the durable store's; nothing here makes a Delta commit, or waits for one.
    """

    def __init__(self, durable: Client) -> None:
        """Look at the transient part of a client's store."""
        super().__init__(durable.store.transient, durable.runtime)
        self._durable = durable
        self._shared = durable.store.transient
        self.lock = self._shared.lock
        self.payload = durable.payload
        self.log_max = sys.maxsize  # the memory forgets what is not needed by itself

    @property
    def transient(self) -> TransientClient:
        """Itself."""
        return self

    def open(self) -> None:
        """Check nothing: memory is always there."""

    def check_open(self, info: QueueInfo) -> None:
        """Check that nothing was read so far of a queue's being dropped, here or in the store.

        Raises:
            QueueClosed: It is being dropped.
            QueueNotFound: It is gone.
        """
        super().check_open(info)
        durable = {model.in_memory(queue_id): e for queue_id, e in self._durable.closed.items()}
        if info.queue_id in durable:
            raise durable[info.queue_id]

    def fold(self, info: QueueInfo) -> QueueState:
        """Bring the fold of a queue's transient part up to now."""
        settings = info.settings
        fold = self._shared.fold(info.queue_id, settings.lanes, settings.duplicate_window_ms)
        fold.seen_at(self.runtime.now_ms())
        if fold.closed is not None:
            self._learn_closed(closed_error(fold.closed))
        return fold

    def folds(self, infos: Iterable[QueueInfo]) -> list[QueueState]:
        """Bring the folds of the transient parts of some queues up to now."""
        return [self.fold(info) for info in infos]

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the transient parts of the queues by name."""
        return {name: info.in_memory() for name, info in self._durable.queues().items()}

    def key_states(
        self, keys: Iterable[str], archived_since: int | None = None
    ) -> dict[str, TransactionState]:
        """Read what is known in memory of some transaction keys."""
        wanted = sorted(set(keys))
        entries = self.store.journal.read([model.transaction_shard(key) for key in wanted]).entries
        return {key: TransactionState.of(key, entries) for key in wanted}

    def land(
        self,
        plan: Planner,
        operation: str,
        *,
        transaction_id: str | None = None,
        queue: str | None = None,
    ) -> Landed | None:
        """Append what is planned; no other thread of this process appends meanwhile."""

        def landing() -> Landed | None:
            said = {"transaction_id": transaction_id, "queue": queue}
            landed = super(TransientClient, self).land(plan, operation, **said)
            if landed is not None:
                self._shared.landed()
            return landed

        return self.informed(landing)
