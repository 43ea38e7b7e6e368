"""Runs whose histories are recorded: in memory, and on Delta by threads or by driver processes."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import drivers
from tests.faults.audit import audit
from tests.faults.injection import Crash, Fault, FaultyStore, Injector, faults_of
from tests.faults.pasts import everything
from tests.histories.clients import Client, create_queues
from tests.histories.facts import (
    Seen,
    carried,
    facts_of,
    name_and_digest,
    name_of,
    versions_on_disk,
)
from tests.histories.history import History, paired
from tests.histories.recorder import Event, Recorder, events_in, into_file
from tests.switching import switching
from txnqueue import QueueManager, look
from txnqueue.client.runtime import Runtime
from txnqueue.core import model
from txnqueue.core.settings import RetryPolicy
from txnqueue.storage.files.store import FilesStore
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.store import DeltaStore, MemoryStore
from txnqueue.testing import Clock, runtime

RETRY = RetryPolicy(attempts_max=8, seconds_max=1e4, wait_seconds_first=0.0)
NOT_DRAWN = (Fault.INTERRUPTED,)
"""The crash matrix presses keys; here a client that is interrupted would only be one that died."""
LANES = 2


@dataclass(frozen=True)
class Size:
    """How much goes on in a run."""

    clients: int = 4
    actions: int = 30
    fault_rate: float = 0.02
    lease_seconds: float = 60.0


IN_MEMORY = Size()
THREADS = Size(clients=3, actions=8, fault_rate=0.02, lease_seconds=3.0)
PROCESSES = Size(clients=2, actions=9, fault_rate=0.0, lease_seconds=3.0)


class Chance(Injector):
    """Spoils store calls at random; one client's, so that one thread draws."""

    def __init__(self, dice: random.Random, rate: float, late: list[Callable[[], Any]]) -> None:
        """Hold the dice, and where calls wait that land later."""
        super().__init__()
        self._dice, self._rate = dice, rate
        self.late = late

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, spoiled or not."""
        if self.armed and not self.dead and self._dice.random() < self._rate:
            faults = [fault for fault in faults_of(name) if fault not in NOT_DRAWN]
            self.at, self.fault = len(self.calls), self._dice.choice(faults)
        return super().call(name, perform)


@dataclass
class Threads:
    """Clients in threads of one process, each with a way of its own to one store."""

    store: Any
    seed: int
    size: Size
    new_runtime: Callable[[str], Runtime]
    pause: Callable[[], object]
    snapshot: Callable[[QueueManager], Any]
    watch: Callable[[], object] = lambda: None
    events: list[Event] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """Let them work, and one more bring it all to an end."""
        create_queues(self._manager("creator"), self.size.lease_seconds, LANES)
        threads = [
            threading.Thread(target=self._work, args=(f"c{n}",)) for n in range(self.size.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        self._client("last", random.Random(self.seed), self._manager("last")).drain()
        self.watch()

    def _work(self, name: str) -> None:
        dice, late = random.Random(f"{self.seed}/{name}"), list[Callable[[], Any]]()
        try:
            _, client = self._started(name, 0, dice, late)
            for turn in range(self.size.actions):
                try:
                    client.step()
                except Crash:
                    _, client = self._started(name, turn + 1, dice, late)
                if dice.random() < 0.2:
                    _land(late)
                self.watch()
            _land(late)
        except BaseException as error:
            self.errors.append(error)

    def _started(
        self, name: str, life: int, dice: random.Random, late: list[Callable[[], Any]]
    ) -> tuple[Injector, Client]:
        injector = Chance(dice, self.size.fault_rate, late)
        manager = self._manager(name, FaultyStore(self.store, injector), f"{name}.{life}")
        manager.list_queues()  # open the store, as any client has before it works
        injector.arm()
        return injector, self._client(f"{name}.{life}", dice, manager)

    def _manager(self, name: str, store: Any = None, life: str = "") -> QueueManager:
        made = self.new_runtime(life or name)
        made.actor = made.consumer = name
        made.retry = RETRY
        return QueueManager(
            self.store.spark, "memory", store=self.store if store is None else store, runtime=made
        )

    def _client(self, name: str, dice: random.Random, manager: QueueManager) -> Client:
        recorder = Recorder(name, self.events.append)
        return Client(
            name,
            manager,
            recorder,
            dice,
            pause=self.pause,
            snapshot=lambda: self.snapshot(manager),
        )


def _land(late: list[Callable[[], Any]]) -> None:
    """Let land what was on its way."""
    while late:
        try:
            late.pop(0)()
        except (AppendConflict, ConnectionError):
            continue


def in_memory(seed: int, size: Size = IN_MEMORY) -> History:
    """Record a run of threads on a store in memory, whose clock is turned by those who wait."""
    store, clock = MemoryStore(), Clock()
    seen = Seen(store)
    threads = Threads(
        store,
        seed,
        size,
        lambda name: runtime(clock, name),
        lambda: clock.advance(size.lease_seconds + 1),
        lambda manager: manager.history.as_of(),
        seen.look,
    )
    with switching(1e-5):
        threads.run()
    about = {"seed": seed, "store": "memory", "clients": "threads", "faults": size.fault_rate > 0}
    return _told(store, threads.events, seen.versions, about, name_and_digest)


def on_delta_by_threads(spark: Any, root: Path, seed: int, size: Size = THREADS) -> History:
    """Record a run of threads of one driver on Delta; whoever looks does so without Spark."""
    store = DeltaStore(spark, str(root))
    threads = Threads(
        store,
        seed,
        size,
        lambda name: Runtime(),
        lambda: time.sleep(size.lease_seconds + 0.5),
        lambda manager: look(str(root)).history.as_of(),
    )
    threads.run()
    about = {"seed": seed, "store": "delta", "clients": "threads", "faults": size.fault_rate > 0}
    return _told(FilesStore(str(root)), threads.events, versions_on_disk(root), about)


def on_delta_by_processes(
    spark: Any, root: Path, seed: int, size: Size = PROCESSES, *, attached: bool = True
) -> History:
    """Record a run of driver processes on Delta, which are killed at random and started again."""
    events = root.parent / f"{root.name}-events"
    events.mkdir()
    manager = QueueManager(spark, str(root), actor="creator")
    create_queues(manager, size.lease_seconds, LANES)
    on_delta = OnDelta(root, events, size, spark if attached else None)
    dice = random.Random(seed)
    lives = {f"c{n}": 0 for n in range(size.clients)}
    running = {name: on_delta.start(name, 0) for name in lives}
    while running:
        time.sleep(dice.uniform(0.5, 5.0))  # a random moment, not a wait for something
        name = dice.choice(sorted(running))
        if running[name].poll() is None and lives[name] < KILLS_EACH:
            running[name].kill()
            running[name].wait()
            lives[name] += 1
            running[name] = on_delta.start(name, lives[name])
        for name in [n for n in running if running[n].poll() is not None]:
            assert running.pop(name).returncode == 0, f"the driver {name} failed"
    on_delta.client("last", manager, dice).drain()
    kills = sum(lives.values())
    about = {"seed": seed, "store": "delta", "clients": "processes", "kills": kills}
    return _told(FilesStore(str(root)), list(events_in(events)), versions_on_disk(root), about)


KILLS_EACH = 2
"""How often each driver process is killed, if it is not done before."""


@dataclass(frozen=True)
class OnDelta:
    """A run of driver processes: where its store is, and where they write what they did."""

    root: Path
    events: Path
    size: Size
    attach_to: Any = None

    def client(self, name: str, manager: QueueManager, dice: random.Random) -> Client:
        """Make a client that records into a file of its own; it looks without Spark."""
        return Client(
            name,
            manager,
            Recorder(name, into_file(self.events / f"{name}.jsonl")),
            dice,
            pause=lambda: time.sleep(self.size.lease_seconds + 0.5),
            snapshot=self.snapshot,
        )

    def snapshot(self) -> Any:
        """Look at the store as it is now."""
        return look(str(self.root)).history.as_of()

    def start(self, name: str, life: int) -> subprocess.Popen[str]:
        """Start a driver process, and wait until it can work."""
        size = self.size
        given = (self.root, self.events, name, life, size.actions, size.lease_seconds)
        process = drivers.start("tests.histories.driver", *given, attach_to=self.attach_to)
        assert process.stdout is not None
        said = next((line for line in process.stdout if line.startswith("ready")), None)
        assert said is not None, f"the driver {name} failed"
        return process


def _told(
    store: Any,
    events: list[Event],
    versions: dict[int, frozenset[str]],
    about: dict[str, Any],
    named: Callable[[model.Entry], str] = name_of,
) -> History:
    """Tell what the clients said and what the store says; a second checker replays the entries."""
    entries = everything(store)
    operations = paired(events)
    explicit = {
        one.txn
        for one in operations
        if one.txn
        and (one.what == "rollback" or (one.what == "decide" and not one.given["commit"]))
    }
    problems = audit(entries, explicit).problems
    created = [entry for entry in entries if entry.kind == model.QUEUE_CREATED]
    names = {entry.queue_id or "": entry.body["name"] for entry in created}
    schema = store.payload.schema(created[0].body["schema"])
    facts = facts_of(entries, names, carried(store, entries, schema), named)
    return History(operations, tuple(facts), versions, tuple(problems), about)
