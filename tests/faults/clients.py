"""The simulator's clients, and what happens to their store calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import greenlet

from tests.faults import fleeting
from tests.faults.behind import InTurns, Turned
from tests.faults.consuming import Consuming
from tests.faults.deciding import Deciding
from tests.faults.fleeting import Fleeting
from tests.faults.injection import Crash, FaultyStore
from tests.faults.reference import (
    COMES_AND_GOES,
    QUEUES,
    Holding,
    Intent,
)
from tests.faults.sending import Sending
from tests.inside import attempt_of, client_of
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.core.state.closure import is_closed
from txnqueue.errors import Busy, HandlerFailed, QueueClosed, QueueNotFound, TransactionUnknown
from txnqueue.manager import QueueManager
from txnqueue.storage.journal import AppendConflict
from txnqueue.testing import runtime

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation

STANDS_FOR_ITSELF = {"rollback", "close queue", "recover"}
"""Appends of calls that make several: what landed before one that did not is not undone."""


PASSING: tuple[type[Exception], ...] = (Busy, ConnectionError, QueueClosed, QueueNotFound)


class Luck:
    """What happens to the store calls of one client."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self.simulation, self.client = simulation, client

    def call(self, name: str, perform: Any) -> Any:
        simulation, client = self.simulation, self.client
        chance, counts = simulation.random.random, simulation.reference.counts
        if client.dead:
            raise Crash(name)
        if chance() >= simulation.fault_rate * (5 if name == "append" else 1):
            return self._heard(perform)
        fault = simulation.random.choice(
            ("fails", "lost", "late", "conflict", "crash")
            if name == "append"
            else ("fails", "crash")
        )
        client.doubtful = True
        counts[f"{name} {fault}"] += 1
        if fault == "late":
            simulation.late.append(perform)
        elif fault in ("lost", "conflict") or (fault == "crash" and chance() < 0.5):
            self._heard(perform)
        if fault == "crash":
            client.dead = True
            raise Crash(name)
        if fault == "conflict":
            raise AppendConflict("Delta met its own commit")
        raise ConnectionError(f"{name}: {fault}")

    def _heard(self, perform: Any) -> Any:
        try:
            return perform()
        except AppendConflict:
            self.simulation.reference.counts["conflicts"] += 1
            raise


class Client(Sending, Consuming, Deciding, Fleeting):
    """One manager and what it holds: it does one thing after the other."""

    def __init__(self, simulation: Simulation, consumer: str) -> None:
        self.simulation, self.reference = simulation, simulation.reference
        self.name = f"c{simulation.number()}"
        self.dead = self.doubtful = False
        self.running: Any = None
        self.call = ""
        skew_ms = simulation.random.randint(-simulation.skew_ms, simulation.skew_ms)
        self.runtime = runtime(simulation.clock, self.name, simulation.retry)
        self.runtime.now_ms = lambda: simulation.clock.now_ms + skew_ms
        self.runtime.consumer = self.reference.consumers[self.name] = consumer
        self.runtime.sleep = lambda seconds: simulation.pause()
        self.began = 0
        self.runtime.dice = simulation.random.random
        self.runtime.new_background = lambda: InTurns(self)
        self.behind: list[Turned] = []
        self._last: Any = None
        luck: Any = Luck(simulation, self)
        store: Any = FaultyStore(simulation.store, luck)
        self.manager = QueueManager(None, store=store, runtime=self.runtime)
        self.forget_all()
        client_of(self.manager).log_max = simulation.random.choice((3, 10, 1_000))
        self.open: dict[Any, Intent] = {}
        self.leased: list[Holding] = []

    # -------------------------------------------------------------------------- running

    def start(self, action: str) -> None:
        """Begin an action, and go on until the scheduler takes over."""
        self.running = greenlet.greenlet(lambda: self._run(action))
        self.resume()

    def resume(self) -> None:
        """Go on, in one of the client's threads: in the one that holds its lock, if one does."""
        self.behind = [act for act in self.behind if not act.done]
        threads = [self.running, *(act.thread for act in self.behind)]
        if not (self._last in threads and self._holds_lock()):
            self._last = self.simulation.random.choice(threads) if self.behind else self.running
        self._last.switch()
        if self.running.dead:
            self.running = None
            self._end_threads()

    def _holds_lock(self) -> bool:
        """Whether the thread that was the last to run keeps the others from going on."""
        client = client_of(self.manager)
        reading: Any = client.cache._shards._lock
        return client.holds_lock() or bool(reading._is_owned())

    def _end_threads(self) -> None:
        for act in self.behind:
            act.kill()
        self.behind = []

    def kill(self) -> None:
        """Die here and now, wherever that is."""
        self.dead = True
        self._end_threads()
        if self.running is not None:
            self.running.throw(Crash("killed"))

    def _run(self, action: str) -> None:
        self.call = self.runtime.run_id = f"{self.name}.{self.simulation.number()} {action}"
        self.doubtful = False
        self.began = len(self.simulation.store.journal.commits) - 1
        self.reference.disturbed[self.call] = False
        try:
            getattr(self, f"do_{action}")()
            self.reference.follow()
        except Crash:
            self.reference.counts["crashes"] += 1
        except ConnectionError:
            self.reference.counts["unreachable"] += 1
        finally:
            del self.reference.disturbed[self.call]

    def ask(self, what: Any, *expected: type[Exception]) -> tuple[Any, Exception | None]:
        """Make one call; an error that is not in doubt says that nothing of it will happen."""
        try:
            answer = what()
        except TransactionUnknown as error:
            self.reference.counts["in doubt"] += 1
            return None, error
        except PASSING + expected as error:
            self.reference.follow()
            self.reference.counts[type(error).__name__] += 1
            if is_closed(error):
                closed: Any = error
                queue_id = closed.queue_id.removesuffix(model.IN_MEMORY)
                assert queue_id in self.reference.closed, f"P9 it is open: {error}"
            landed = set(self.reference.landed[self.call]) - STANDS_FOR_ITSELF
            assert HandlerFailed in expected or not landed or self.doubtful, (
                f"P9 {self.call} landed, and raised {error!r}"
            )
            return None, error
        self.reference.follow()
        return answer, None

    @property
    def quiet(self) -> bool:
        """Whether nobody else changed anything since the call began."""
        self.reference.follow()
        return not self.reference.disturbed[self.call]

    def queue(self) -> Any:
        if self.simulation.random.random() < 0.2:
            try:
                return self.manager.queue(COMES_AND_GOES)
            except QueueNotFound:
                pass
        return self.manager.queue(self.simulation.random.choice(QUEUES))

    def active(self, *, ending: bool = False) -> tuple[Any, Intent] | tuple[None, None]:
        """Pick an open transaction of this client, which takes more work or is to be ended."""
        found = [
            (tx, intent)
            for tx, intent in self.open.items()
            if tx.status is Status.ACTIVE and (ending or attempt_of(tx).takes_work)
        ]
        return self.simulation.random.choice(found) if found else (None, None)


ACTIONS = {
    "send": 10,
    "send_inside": 10,
    "publish": 3,
    "publish_inside": 3,
    "bind": 0.5,
    "receive": 12,
    "receive_inside": 14,
    "settle": 12,
    "settle_inside": 6,
    "keep": 2,
    "adopt": 6,
    "extend": 2,
    "begin": 5,
    "commit": 12,
    "prepare": 4,
    "rollback": 6,
    "decide": 4,
    "recover": 2,
    "maintain": 3,
    "look": 4,
    "outcome": 2,
    "drain": 3,
    "purge": 0.3,
    "redrive": 1,
    "move": 0.5,
    "drop": 1,
    "alter": 0.5,
    "create": 2,
    "move_inside": 2,
}
ACTIONS |= fleeting.ACTIONS
