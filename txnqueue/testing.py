"""For tests of code that uses txnqueue: a store in memory, a clock to turn, faults to inject."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txnqueue.config import RetryPolicy
from txnqueue.errors import SchemaMismatch
from txnqueue.manager import QueueManager
from txnqueue.runtime import Runtime
from txnqueue.store import MemoryStore, Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Clock", "MemoryStore", "memory_manager", "plain_schema"]


@dataclass(slots=True)
class Clock:
    """A clock that stands still until it is turned."""

    now_ms: int = 1_700_000_000_000

    def advance(self, seconds: float) -> None:
        """Turn the clock."""
        self.now_ms += round(seconds * 1000)


@dataclass(slots=True)
class Ids:
    """Ids that are the same in every run of a test: a name, then a number."""

    seed: str
    numbers: Any = field(default_factory=itertools.count)

    def __call__(self) -> str:
        """Draw the next id: 32 hexadecimal digits."""
        import hashlib

        return hashlib.md5(f"{self.seed}/{next(self.numbers)}".encode()).hexdigest()


def runtime(
    clock: Clock,
    name: str = "client",
    retry: RetryPolicy | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Runtime:
    """Make a runtime whose time, ids and chance are all determined.

    Args:
        clock: The clock; sleeping turns it.
        name: Names the consumer and seeds the ids.
        retry: How appends that meet a conflict are tried again.
        sleep: What sleeping does instead of turning the clock.
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
    """Make a manager of a store in memory: same protocol, no Spark.

    Args:
        store: A store to share with other managers; a new one when left out.
        clock: The clock; one that stands still when left out.
        name: Names the consumer and the actor.

    Example::

        manager = memory_manager()
        orders = manager.create_queue("orders", "order_id long")
        orders.send([{"order_id": 1}])
        assert orders.depth() == 1
    """
    return QueueManager(
        None, store=store or MemoryStore(), runtime=runtime(clock or Clock(), name)
    )


def plain_schema(ddl: str) -> StructType:
    """Read a schema of plain types written as DDL, without a session.

    Raises:
        SchemaMismatch: It has types that only a session can read.
    """
    from pyspark.sql import types as T

    plain: Mapping[str, T.DataType] = {
        "string": T.StringType(),
        "long": T.LongType(),
        "bigint": T.LongType(),
        "int": T.IntegerType(),
        "integer": T.IntegerType(),
        "smallint": T.ShortType(),
        "double": T.DoubleType(),
        "float": T.FloatType(),
        "boolean": T.BooleanType(),
        "date": T.DateType(),
        "timestamp": T.TimestampType(),
        "binary": T.BinaryType(),
    }
    columns = []
    for text in ddl.split(","):
        words: Sequence[str] = text.split()
        required = [word.lower() for word in words[2:]] == ["not", "null"]
        if len(words) not in (2, 4) or words[1].lower() not in plain or (
            len(words) == 4 and not required
        ):
            raise SchemaMismatch(f"{text.strip()!r} is no plain column: write 'name type'.")
        columns.append(T.StructField(words[0].strip("`"), plain[words[1].lower()], not required))
    return T.StructType(columns)
