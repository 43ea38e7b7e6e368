"""The client that the parts of one manager share: store, runtime, cache and states."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from txnqueue.client.append import Append, Landed, Planner
from txnqueue.client.cache import Cache
from txnqueue.client.consumer import Consumer
from txnqueue.client.runtime import Runtime
from txnqueue.client.states import States, StateSource, StoredStates, TransientStates
from txnqueue.core import custody, model
from txnqueue.core.planning import Plan, Stamp
from txnqueue.core.receipt import Status
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, compaction, confirmations
from txnqueue.errors import QueueError
from txnqueue.storage.payload.kinds import BothKinds
from txnqueue.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


logger = logging.getLogger("txnqueue")
Result = TypeVar("Result")
ASKING_SECONDS = 30.0
"""How long a client claims available messages before it once looks up those that others hold."""


class Block(Protocol):
    """A transaction block that a thread is in."""

    id: str
    status: Status

    @property
    def takes_work(self) -> bool:
        """Whether it is neither decided nor about to be."""


class Stoppable(Protocol):
    """A consumer in a background thread."""

    def stop(self) -> bool:
        """End the consumer after its present batch, and wait for that."""


_FIRST = threading.Lock()


class Client:
    """One manager's view of a store, or of the store's transient messages.

    Attributes:
        cache: The cache of the store without the states of queues; both views share it.
        states: The states of the view's queues.
        consumer: The holder of the manager's leases.
        streams: The manager's consumers in background threads.
    """

    def __init__(self, store: Store, runtime: Runtime, durable: Client | None = None) -> None:
        """Make a view of a store; nothing is read yet.

        Args:
            store: The store, or its transient store.
            runtime: The clock, the ids and the actor.
            durable: For a view of transient messages, the view of the durable ones.
        """
        self.store = store
        self.runtime = runtime
        self._transient: Client | None = None
        if durable is None:
            self.consumer: Consumer = Consumer(runtime.consumer, runtime.now_ms())
            self.cache = Cache(store, runtime)
            source: StateSource = StoredStates(store, self.cache)
            self.payload = BothKinds(store.payload, store.transient.payload, store.spark)
            self.log_max = compaction.LOG_MAX
        else:
            self.consumer = durable.consumer
            self.cache = durable.cache
            source = TransientStates(store.transient, self.cache)
            self.payload = durable.payload
            self.log_max = sys.maxsize  # the transient store removes old entries itself
        self.states = States(source, self.cache, runtime)
        self.lock = source.lock
        self._source = source
        self.shard = int(runtime.new_id()[:1], 16) % model.TRANSACTION_SHARDS
        self._staging: set[str] = set()
        self.confirmations: list[model.Entry] = []
        self.conflicts: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._local = threading.local()
        self.streams: weakref.WeakSet[Stoppable] = weakref.WeakSet()

    # --------------------------------------------------------------- transient messages

    @property
    def transient(self) -> Client:
        """This manager's view of the messages that are in the memory of this process."""
        if self.store is self.store.transient:
            return self
        if self._transient is None:
            made = Client(self.store.transient, self.runtime, durable=self)
            with _FIRST:  # two views would take over each other's claims as their own past
                self._transient = self._transient or made
        return self._transient

    def of(self, info: QueueInfo) -> Client:
        """Return the view that holds a queue, or the transient part that a description is of."""
        return self.transient if info.transient else self

    def parts_of(self, info: QueueInfo) -> list[QueuePart]:
        """List the parts of a queue: the durable one, and the transient one if there may be one."""
        durable = QueuePart(self, info)
        if not self.store.transient.used:
            return [durable]
        return [durable, QueuePart(self.transient, info.in_memory())]

    def open(self) -> None:
        """Check once that the store exists and has a layout that this library knows.

        Raises:
            StoreNotFound: There is no store at this root.
            LayoutUnsupported: Another version of the library wrote it.
        """
        self.cache.open()

    # ----------------------------------------------------------------------------- lock

    def holds_lock(self) -> bool:
        """Return whether this thread holds the lock of this view or of the transient store."""
        locks = (self.lock, self.store.transient.lock)
        return any(custody.Custody(lock).held() for lock in locks)

    def informed(self, act: Callable[[], Result]) -> Result:
        """Run a function on states under the lock, reading first the payload that it needs.

        The function is begun again after each reading, which is made without the lock. If the
        caller holds a lock, ``NotRead`` is raised so that it releases the lock before the reading.
        """
        while True:
            try:
                with self.lock:
                    return act()
            except custody.NotRead as missing:
                self.read_missing(missing)

    def read_missing(self, missing: custody.NotRead) -> None:
        """Read what was found missing under the lock, unless a lock is still held.

        Raises:
            NotRead: This thread holds a lock, and must release it first.
        """
        if self.holds_lock():
            raise missing
        missing.read()

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
        """Land a planned append, whatever the store answers."""
        return self.land_append(
            self.append(operation, transaction_id=transaction_id, queue=queue), plan
        )

    def append(
        self, operation: str, *, transaction_id: str | None = None, queue: str | None = None
    ) -> Append:
        """Begin an append that is not planned yet."""
        return Append(
            self.store.journal,
            self.runtime,
            operation,
            transaction_id=transaction_id,
            queue=queue,
            read=self.read_missing,
        )

    def land_append(self, append: Append, plan: Planner) -> Landed | None:
        """Land an append, or go on with one that was interrupted or is in doubt.

        Pending confirmations ride along: they are entries without conditions.
        """

        def act() -> Landed | None:
            appended = self._land(append, plan)
            if appended is not None:
                self._source.landed()
            return appended

        return self.informed(act) if self._source.serial else act()

    def _land(self, append: Append, plan: Planner) -> Landed | None:
        with self.lock:
            riding = tuple(self.confirmations)
        try:
            landed = append.land(plan, riding)
        except QueueError as error:
            self.cache.learn_closed(error)
            raise
        finally:
            if append.queue is not None:
                self.conflicts[append.queue] += append.lost
        if landed is not None and riding:
            # An earlier try that landed had only what was pending at its time.
            there = set(map(confirmations.name_of, landed.entries))
            with self.lock:
                left = [f for f in self.confirmations if confirmations.name_of(f) not in there]
                self.confirmations = left
        return landed

    def create_staging(self, payload_id: str, schema: StructType) -> None:
        """Create the payload table for rows of these types, once."""
        if payload_id not in self._staging:
            self.store.payload.create(payload_id, schema)
            self._staging.add(payload_id)

    def confirm(self, facts: Iterable[model.Entry] = ()) -> None:
        """Append the pending confirmations now, with some more entries."""
        with self.lock:
            now = (*self.confirmations, *facts)
            self.confirmations = []
        if not now:
            return

        def confirmed(_lost: int) -> Plan:
            # The horizon bars a late try, which would repeat entries that have left the journal.
            begun = self.cache.version_to_begin()
            return Plan(now, (model.layout_unchanged(), model.horizon_at_most(begun)))

        try:
            self.land(confirmed, "confirm changes")
        except BaseException:
            self.add_confirmations(now)  # a confirmation may be repeated
            raise

    def close(self) -> None:
        """Append the pending confirmations, which no later append would carry; close the store.

        That is tried, and not promised: ``recover`` finds what the tables have, as after a crash.
        """
        try:
            if self.confirmations and self.store.answers():
                self.confirm()
        except Exception as error:
            logger.warning("not confirmed error=%s", error)
        finally:
            self.store.close()

    def add_confirmations(self, facts: Iterable[model.Entry]) -> None:
        """Keep confirmations for the next append."""
        with self.lock:
            self.confirmations.extend(facts)

    # ------------------------------------------------------------- consumers and blocks

    def turn(self, queue_id: str) -> int:
        """Count the receives on a queue, so that each begins at the next lane."""
        self._turns[queue_id] = self._turns.get(queue_id, -1) + 1
        return self._turns[queue_id]

    def asks_again(self, queue_id: str) -> bool:
        """Return whether to look up messages that others hold, though there are available ones.

        It is true once every ``ASKING_SECONDS``, the first time after one such period.
        """
        now = self.runtime.monotonic()
        if now - self._asked.setdefault(queue_id, now) < ASKING_SECONDS:
            return False
        self._asked[queue_id] = now
        return True

    @property
    def blocks(self) -> list[Block]:
        """The transaction blocks that this thread is in, innermost last."""
        if not hasattr(self._local, "blocks"):
            self._local.blocks = []
        blocks: list[Block] = self._local.blocks
        return blocks


@dataclass(frozen=True)
class QueuePart:
    """The durable or the transient part of a queue, with the view of the store that holds it.

    Attributes:
        client: Reads the part's state, and appends to its journal.
        info: Describes the part as a separate queue.
    """

    client: Client
    info: QueueInfo

    @contextmanager
    def state(self) -> Iterator[QueueState]:
        """Hold the newest state of the part; it does not change inside the block."""
        with self.client.lock:
            yield self.client.states.fold(self.info)

    @contextmanager
    def state_for_read(self) -> Iterator[QueueState]:
        """Hold the newest state of the part, which may be closing.

        Raises:
            QueueNotFound: The queue was dropped.
        """
        with self.client.lock:
            yield self.client.states.for_read(self.info)

    def same_part_of(self, other: QueueInfo) -> QueueInfo:
        """Return the description of the same part, durable or transient, of another queue."""
        return other.in_memory() if self.info.transient else other
