"""The newest states of queues: of their durable parts, or of their transient parts."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from txnqueue.client.cache import Cache
from txnqueue.client.readers import StateReader
from txnqueue.client.runtime import Runtime
from txnqueue.core import custody, model
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState, TransactionState, catalog
from txnqueue.core.state.closure import closed_error
from txnqueue.errors import QueueClosed
from txnqueue.storage.store import Store

if TYPE_CHECKING:
    from txnqueue.storage.transient import TransientStore


class StateSource(Protocol):
    """A source of states: the tables of a store, or the memory of the process.

    Attributes:
        lock: The lock to hold while a state is used, so that the state does not change.
        serial: Whether appends are made under the lock, one after the other.
    """

    lock: threading.RLock
    serial: bool

    def read(self, infos: Sequence[QueueInfo]) -> list[QueueState]:
        """Advance the states of some queues to the newest version."""
        ...

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the queues, or their transient parts, by name."""
        ...

    def key_states(self, keys: Iterable[str]) -> dict[str, TransactionState]:
        """Read the states of some transaction keys."""
        ...

    def landed(self) -> None:
        """Record that an append has landed."""
        ...


class States:
    """The states of the queues of one source, each at the newest version that was read."""

    def __init__(self, source: StateSource, cache: Cache, runtime: Runtime) -> None:
        """Read from a source.

        Args:
            source: The source of the states.
            cache: Is told which queues were altered or closed.
            runtime: The clock.
        """
        self._source = source
        self._cache = cache
        self._runtime = runtime

    def fold(self, info: QueueInfo) -> QueueState:
        """Advance the state of a queue to the newest version, by one query of the new entries."""
        (fold,) = self.folds([info])
        return fold

    def folds(self, infos: Iterable[QueueInfo]) -> list[QueueState]:
        """Advance the states of some queues to the newest version, by one query of new entries.

        Queues that were not read before take one more query for each thousand shards. One thread
        works at a time, because entries that two threads read at once would be applied twice.
        """
        with self._source.lock:
            wanted, before_ms = list(infos), self._runtime.now_ms()
            folds = self._source.read(wanted)
            now_ms = self._runtime.now_ms()
            for info, fold in zip(wanted, folds, strict=True):
                fold.seen_at(now_ms, before_ms)
                self._learn_of(info, fold)
            return folds

    def for_update(self, info: QueueInfo) -> QueueState:
        """Read the newest state of a queue, for work on it.

        Raises:
            QueueClosed: The queue is being dropped.
            QueueNotFound: The queue was dropped.
        """
        fold = self.fold(info)
        self.check_open(info)
        return fold

    def for_read(self, info: QueueInfo) -> QueueState:
        """Read the newest state of a queue, which may be closing, for reading only.

        Raises:
            QueueNotFound: The queue was dropped.
        """
        fold = self.fold(info)
        if fold.closed is not None and fold.closed.kind == model.QUEUE_DROPPED:
            self.check_open(info)
        return fold

    def check_open(self, info: QueueInfo) -> None:
        """Check that a queue is not known to be closing or dropped; an open queue costs nothing.

        Raises:
            QueueClosed: The queue is being dropped.
            QueueNotFound: The queue was dropped.
        """
        if isinstance(self._cache.closed(info), QueueClosed):  # it may be dropped by now
            self.fold(info)
        error = self._cache.closed(info)
        if error is not None:
            raise copy.copy(error)

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the queues, or their transient parts, by name."""
        return self._source.queues()

    def key_states(self, keys: Iterable[str]) -> dict[str, TransactionState]:
        """Read the states of some transaction keys, by one query."""
        return self._source.key_states(keys)

    def _learn_of(self, info: QueueInfo, fold: QueueState) -> None:
        cache = self._cache
        if fold.altered is not None:
            known = cache.newest(info)
            if fold.altered.body["sequence"] > known.sequence:
                cache.learn(catalog.told(fold.altered, known))
        if fold.closed is not None:
            cache.learn_closed(closed_error(fold.closed))


class StoredStates:
    """The states of durable queues; each read applies the new entries of the store's journal."""

    def __init__(self, store: Store, cache: Cache) -> None:
        """Read from a store; nothing is read yet."""
        self.lock = custody.new_lock()
        self.serial = False
        self._cache = cache
        self._reader = StateReader(store.journal, custody.Custody(self.lock))

    def read(self, infos: Sequence[QueueInfo]) -> list[QueueState]:
        """Advance the states of some queues to the newest version."""
        return self._reader.read(infos)

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the queues by name."""
        return self._cache.queues()

    def key_states(self, keys: Iterable[str]) -> dict[str, TransactionState]:
        """Read the states of some transaction keys, by one query."""
        return self._cache.key_states(keys)

    def landed(self) -> None:
        """Do nothing: the next read finds the append."""


class TransientStates:
    """The states in the memory of the process, which all its managers share.

    The catalog is the durable store's; no call here makes a Delta commit, or waits for one.
    """

    def __init__(self, store: TransientStore, cache: Cache) -> None:
        """Read from the transient store of the store whose catalog is cached."""
        self.lock = store.lock
        self.serial = True
        self._store = store
        self._cache = cache

    def read(self, infos: Sequence[QueueInfo]) -> list[QueueState]:
        """Advance the states of the transient parts of some queues to the newest version."""
        store = self._store
        described = ((info.queue_id, info.settings) for info in infos)
        return [store.fold(name, has.lanes, has.duplicate_window_ms) for name, has in described]

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the transient parts of the queues by name."""
        return {name: info.in_memory() for name, info in self._cache.queues().items()}

    def key_states(self, keys: Iterable[str]) -> dict[str, TransactionState]:
        """Read the states of some transaction keys in memory.

        Only entries of branches are dated by others of their shard, and there are none in memory.
        """
        wanted = dict.fromkeys(sorted(keys))
        shards = [model.transaction_shard(key) for key in wanted]
        entries = self._store.journal.read(shards).entries
        mine = [entry for entry in entries if entry.stream in wanted]
        return TransactionState.of_keys(wanted, mine)

    def landed(self) -> None:
        """Remove from memory the entries that are no longer needed, once there are many."""
        self._store.landed()
