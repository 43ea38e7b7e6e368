"""Helpers for tests of code that uses txnqueue: a store in memory and a clock to advance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from txnqueue.client.runtime import Runtime
from txnqueue.core.settings import RetryPolicy, check_id, shown
from txnqueue.errors import InvalidInput
from txnqueue.manager import QueueManager
from txnqueue.storage.payload.schemas import plain_schema
from txnqueue.storage.store import MemoryStore, Store

__all__ = ["Clock", "MemoryStore", "memory_manager", "plain_schema"]


_MANAGERS = itertools.count()


@dataclass(slots=True)
class Clock:
    """A clock that stands still until it is advanced."""

    now_ms: int = 1_700_000_000_000

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_ms += round(seconds * 1000)


@dataclass(slots=True)
class Ids:
    """Ids that are the same in every run of a test, made from a name and a number."""

    seed: str
    numbers: Any = field(default_factory=itertools.count)

    def __call__(self) -> str:
        """Return the next id: 32 hexadecimal digits."""
        import hashlib

        return hashlib.md5(
            f"{self.seed}/{next(self.numbers)}".encode(), usedforsecurity=False
        ).hexdigest()


def runtime(
    clock: Clock,
    name: str = "client",
    retry: RetryPolicy | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Runtime:
    """Make a runtime whose time, ids and random choices are all determined.

    Args:
        clock: The clock; sleeping advances it.
        name: Names the consumer and seeds the ids.
        retry: How appends that meet a conflict are retried.
        sleep: Called for a sleep instead of advancing the clock.
    """
    ids = Ids(name)
    return Runtime(
        now_ms=lambda: clock.now_ms,
        monotonic=lambda: clock.now_ms / 1000,
        sleep=sleep or clock.advance,
        new_id=ids,
        dice=lambda: 0.5,
        actor=name,
        consumer=name,
        retry=retry or RetryPolicy(),
    )


def memory_manager(
    store: Store | None = None, clock: Clock | None = None, name: str = "client"
) -> QueueManager:
    """Make a manager of a store in memory: the same protocol, without Spark.

    Args:
        store: A store to share with other managers; a new one when omitted.
        clock: The clock; one that stands still when omitted.
        name: Names the consumer and the actor; give managers that share a store different names.

    Returns:
        The manager.

    Raises:
        InvalidInput: A value is invalid.

    Example::

        manager = memory_manager()
        orders = manager.create_queue("orders", "order_id long")
        orders.send([{"order_id": 1}])
        assert orders.depth() == 1
    """
    check_id(name, "name")
    if clock is not None and not isinstance(clock, Clock):
        raise InvalidInput(f"clock={shown(clock)}: give a Clock, or omit it.", name="clock")
    shared: Store = MemoryStore() if store is None else store
    made = runtime(Clock() if clock is None else clock, f"{name}#{next(_MANAGERS)}")
    return QueueManager(None, store=shared, runtime=made, actor=name, consumer=name)
