"""Queues that people write themselves, beside a drain of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side, seconds
from tests.bench.cases.receiving import BATCHES, Backlog, drained
from tests.bench.floors import SETTINGS, aggregate, orders
from tests.bench.peers.deletion import Deletion
from tests.bench.peers.status_merge import StatusMerge
from tests.bench.peers.status_update import StatusUpdate
from tests.bench.peers.streaming import ForeachBatch, Sink
from tests.bench.world import World

COUNT = 1_000
BATCHED = {
    "peers at 10000": (COUNT, 10_000, 2.5),
    "peers at 1000000": (COUNT, 1_000_000, 3.0),
    "peers with 300000": (300_000, 1_500_000, 5.0),
}
"""Messages of a batch, messages that wait, and how many times a drained batch the best correct peer
should take."""
COMPILED_FROM = 100_000
"""A session that compiles what it runs is faster with so many rows: peers get the better one."""
PEERS: Mapping[str, Any] = {
    "status UPDATE": StatusUpdate,
    "status MERGE": StatusMerge,
    "DELETE": Deletion,
}
STREAMS: Mapping[str, Any] = {"foreachBatch": ForeachBatch, "stream to Delta": Sink}
FILES = 6
"""Of a thousand rows each: the batches that a stream has in one run."""


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the cases, and what prepares them."""
    queues = {name: partial(_queues, world, name, *case) for name, case in BATCHED.items()}
    return {**queues, "streams": partial(_streams, world)}


class Waiting:
    """A peer's queue in which messages wait."""

    def __init__(self, world: World, peer: Any, count: int, size: int) -> None:
        session = tuned(world.spark, compiled=size >= COMPILED_FROM)
        self._spark, self._count, self._size = world.spark, count, size
        self._peer = peer(session, world.path("peer"))
        self._sent = self._left = 0

    def need(self, count: int) -> None:
        """See to it that so many messages wait; as many again are sent when they do not."""
        if self._left < count:
            self._peer.send(orders(self._spark, self._size, self._sent))
            self._sent += self._size
            self._left += self._size

    def consume(self) -> Parts:
        """Consume one batch."""
        count = self._count
        took = seconds(lambda: self._peer.consume(count, lambda frame: aggregate(frame, count)))
        self._left -= count
        return {"batch": took}


def tuned(spark: Any, *, compiled: bool = False) -> Any:
    """Make a session with the settings of the library, and compiling if that is faster."""
    session = spark.newSession()
    for key, value in SETTINGS.items():
        if not (compiled and "codegen" in key):
            session.conf.set(key, value)
    return session


def _queues(world: World, name: str, count: int, size: int, target: float) -> Case:
    backlog = Backlog(world, size, beside=False)
    enough = max(size // 2, BATCHES * count)
    sides = {
        "txnqueue": Side(
            "a drained batch",
            lambda: drained(backlog.queue, count),
            lambda: backlog.need(enough),
        )
    }
    for title, peer in PEERS.items():
        waiting = Waiting(world, peer, count, size)
        sides[title] = Side(title, waiting.consume, partial(waiting.need, enough))
    return Case(
        name,
        f"a batch of {count:,} of {size:,} waiting messages: claim, read, acknowledge",
        sides,
        [
            Comparison(peer, "txnqueue", None if peer == "DELETE" else target, at_least=True)
            for peer in PEERS
        ],
        rounds_max=5,
    )


def _streams(world: World) -> Case:
    queue = world.queue()
    numbers = iter(range(0, 10**9, COUNT))
    found = {name: stream(world.spark, world.path("peer")) for name, stream in STREAMS.items()}
    out = world.path("out")

    def fill(send: Callable[[Any], object]) -> None:
        for _ in range(FILES):
            send(orders(world.spark, COUNT, next(numbers)))

    return Case(
        "streams",
        f"a micro-batch of {COUNT:,} messages; foreachBatch aggregates them, the sink writes them",
        {
            "txnqueue": Side(
                "a drained batch", lambda: drained(queue, COUNT), lambda: fill(queue.send)
            ),
            "foreachBatch": Side(
                "foreachBatch",
                lambda: {"batch": found["foreachBatch"].run(_handled)},
                lambda: fill(found["foreachBatch"].send),
            ),
            "stream to Delta": Side(
                "stream to Delta",
                lambda: {"batch": found["stream to Delta"].run(out)},
                lambda: fill(found["stream to Delta"].send),
            ),
        },
        [Comparison(name, "txnqueue") for name in STREAMS],
        rounds_max=5,
    )


def _handled(frame: Any, number: int) -> None:
    aggregate(frame, COUNT)
