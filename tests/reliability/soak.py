"""A store that is worked on for long by one driver process, and what it costs meanwhile.

Two producers, four consumers and maintenance work beside each other, each by a manager of its
own, which lives as long as the process. The store stays in ``build/reliability/soak`` between the
runs: a number is a slice of its work, after which each of its messages has to be in the output
once. A slice that was killed is begun again; what it had sent is not sent twice.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.conftest import INTERPRETED
from tests.reliability import points, results
from tests.reliability.gauge import Gauge
from tests.reliability.points import Point
from tests.reliability.session import Session
from txnqueue import QueueManager
from txnqueue.admin import maintenance
from txnqueue.client import readers
from txnqueue.storage.journal import groups, removed_files
from txnqueue.storage.journal.tail import Tail

FOLDER = Path(__file__).resolve().parents[2] / "build" / "reliability" / "soak"
VERIFIED_EVERY = 10
MEASURED_EVERY = 2
LEASE_SECONDS = 30.0
TAIL_ENTRIES, READ_ENTRIES = 2_000, 200
"""A tenth of what a process keeps of the entries that it wrote, and each manager of those that it
read: so they have them from their second slice on, and what memory grows by after that is something
else."""
REMOVED, READING_SECONDS = 200, 120.0
KEPT_FOR = {360.0: "6 minutes", 604_800.0: "7 days"}
"""A tenth of how many removed files Delta should list, of how long a query may read, and of how
long they are listed at least: so the list is as long as it gets from the fifth slice on."""
KEPT = {"transaction_seconds_max": 120.0, "payload_retention_days": 0}
"""What is finished leaves the journal soon, so that all that maintenance does is done."""


@dataclass(frozen=True)
class Slice:
    """How much work a number is, and who does it."""

    commits: int = 50
    messages: int = 100
    producers: int = 2
    consumers: int = 4
    idle_seconds: float = 0.05
    maintained_seconds: float = 20.0
    stuck_seconds: float = 900.0


@dataclass
class Work:
    """What the threads of one slice know of each other."""

    numbers: Iterator[int]
    until: float
    produced: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    sends: list[float] = field(default_factory=list)
    receives: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **found: int) -> None:
        """Count what happened; an underscore stands for a space."""
        with self.lock:
            self.counts.update({what.replace("_", " "): n for what, n in found.items()})

    def going(self) -> bool:
        """Return whether to go on; who waits for messages that never come is stuck."""
        assert time.monotonic() < self.until, "the slice does not end: messages are stuck"
        return not self.over.is_set()


def open_queues(manager: QueueManager) -> None:
    """Create the queues that there are not yet."""
    for name in ("in", "out"):
        manager.create_queue(
            name, "i long, what string", lanes=4, lease_seconds=LEASE_SECONDS, exist_ok=True
        )


class Soak:
    """The managers and threads that work on a store, slice by slice."""

    def __init__(self, manager_of: Callable[[str], QueueManager], each: Slice) -> None:
        """Open the store, or create it."""
        self._each = each
        self.auditor = manager_of("auditor")
        open_queues(self.auditor)
        self._keeper = manager_of("keeper")
        self._producers = [manager_of(f"producer-{n}") for n in range(each.producers)]
        self._consumers = [manager_of(f"consumer-{n}") for n in range(each.consumers)]
        self._threads = ThreadPoolExecutor(each.producers + each.consumers + 1)

    def close(self) -> None:
        """End the threads, and close the managers."""
        self._threads.shutdown()
        for manager in [self.auditor, self._keeper, *self._producers, *self._consumers]:
            manager.close()

    def work(self, part: int) -> Work:
        """Do a slice, and check that each of its messages came through once.

        Raises:
            AssertionError: A message is missing, is there twice, or does not come.
        """
        each = self._each
        numbers = iter(range(part * each.commits, (part + 1) * each.commits))
        work = Work(numbers, time.monotonic() + each.stuck_seconds)
        producing = [self._start(self._produce, one, work) for one in self._producers]
        consuming = [self._start(self._consume, one, work) for one in self._consumers]
        keeping = self._start(self._maintain, self._keeper, work)
        wait(producing)
        work.produced.set()
        wait(consuming)
        work.over.set()
        for one in [*producing, *consuming, keeping]:
            one.result()
        self._check(part)
        if part % VERIFIED_EVERY == VERIFIED_EVERY - 1:
            found = self.auditor.history.verify()
            assert found.ok, f"after slice {part}: {found}"
            work.count(whole_verifications=1)
        return work

    def _start(
        self, act: Callable[[QueueManager, Work], None], manager: QueueManager, work: Work
    ) -> Future[None]:
        def run() -> None:
            try:
                act(manager, work)
            except BaseException:
                work.over.set()  # the others need not go on
                raise

        return self._threads.submit(run)

    def _produce(self, manager: QueueManager, work: Work) -> None:
        queue = manager.queue("in")
        while work.going() and (number := next(work.numbers, None)) is not None:
            first = number * self._each.messages
            mine = range(first, first + self._each.messages)
            rows = [{"i": i, "what": f"message {i} of send {number}"} for i in mine]
            began = time.perf_counter()
            manager.run_transaction(
                lambda tx, rows=rows: queue.send(rows, transaction=tx),  # type: ignore[misc]
                transaction_id=f"send/{number}",
            )
            work.sends.append(time.perf_counter() - began)

    def _consume(self, manager: QueueManager, work: Work) -> None:
        queue, out = manager.queue("in"), manager.queue("out")
        while work.going():
            last = work.produced.is_set()
            began = time.perf_counter()
            found = 0
            for tries, attempt in enumerate(manager.attempts()):
                work.count(transactions_tried_again=int(tries > 0))
                with attempt as tx:
                    batch = queue.receive(self._each.messages, transaction=tx)
                    found = len(batch)
                    if not found:
                        tx.rollback()
                        continue
                    rows = [{"i": row["i"], "what": row["what"]} for row in batch.messages()]
                    out.send(rows, transaction=tx)
            if found:
                work.receives.append(time.perf_counter() - began)
                work.count(messages=found)
            elif last and not queue.depth() + queue.in_flight():
                return
            else:
                work.over.wait(self._each.idle_seconds)

    def _maintain(self, manager: QueueManager, work: Work) -> None:
        while work.going():
            done = manager.maintain(**KEPT)  # type: ignore[arg-type]
            late = int(bool(done.skipped))
            work.count(maintenance_runs=1, entries_archived=done.archived, left_for_later=late)
            work.over.wait(self._each.maintained_seconds)

    def _check(self, part: int) -> None:
        """Take what came through out of the output, in a transaction of this slice."""
        count = self._each.commits * self._each.messages
        wanted = range(part * count, (part + 1) * count)

        def take(tx: Any) -> None:
            batch = tx.queue("out").receive(2 * count)
            got = Counter(row["i"] for row in batch.messages())
            missing = [i for i in wanted if i not in got]
            twice = [i for i, times in got.items() if times > 1]
            strange = [i for i in got if i not in wanted and i >= 0]  # others were measured with
            said = f"slice {part}: {len(missing)} are missing, such as {missing[:3]}; "
            said += f"{len(twice)} are there twice, such as {twice[:3]}; "
            said += f"{len(strange)} are not of it, such as {strange[:3]}"
            assert not (missing or twice or strange), said

        self.auditor.run_transaction(take, transaction_id=f"check/{part}")
        left = {name: self.auditor.queue(name).depth() for name in self.auditor.list_queues()}
        assert not any(left.values()), f"slice {part}: {left} messages wait"


# -------------------------------------------------------------------------------- on Delta


@dataclass
class Place:
    """The store between the runs, and how far it has come.

    Attributes:
        folder: Where the stores are.
        store: The one that is worked on, by when it was made.
        parts: How many slices are done.
    """

    folder: Path
    store: str
    parts: int

    @property
    def root(self) -> Path:
        """Where the store is."""
        return self.folder / self.store

    @classmethod
    def open(cls, folder: Path) -> Place:
        """Go on with the store that is there, or begin one."""
        try:
            said = json.loads((folder / "progress.json").read_text("utf-8"))
            return cls(folder, said["store"], said["parts"])
        except FileNotFoundError:
            found = cls(folder, now(), 0)
            found.keep()
            return found

    def keep(self) -> None:
        """Write down how far it has come."""
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / "progress.new"
        beside.write_text(json.dumps({"store": self.store, "parts": self.parts}), "utf-8")
        os.replace(beside, self.folder / "progress.json")

    def leave(self) -> None:
        """Leave a store in which something is wrong as it is; the next slice makes another one."""
        (self.folder / "progress.json").unlink()


def now() -> str:
    """Return the time as a name."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")


class Driver:
    """This process, as one that works on the store for as long as it lives."""

    def __init__(self, spark: Any, folder: Path, each: Slice | None = None) -> None:
        """Begin to work as users do: with statements that are compiled."""
        self._java = spark._jvm
        self._place, self._process = Place.open(folder), now()
        session = spark.newSession()
        for name in INTERPRETED:
            session.conf.unset(name)
        root = str(self._place.root)

        def manager_of(name: str) -> QueueManager:
            return QueueManager(session, root, actor=name, consumer=name)

        self.each = each or Slice()
        new = self._place.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        self._bounds = contextlib.ExitStack()
        smaller: dict[tuple[Any, str], object] = {
            (groups, "Tail"): functools.partial(Tail, entries_max=TAIL_ENTRIES),
            (readers, "ENTRIES_KEPT"): READ_ENTRIES,
            (removed_files, "REMOVED_MAX"): REMOVED,
            (removed_files, "INTERVALS"): KEPT_FOR,
            (maintenance, "READING_SECONDS_MAX"): READING_SECONDS,
        }
        for (module, name), value in smaller.items():
            self._bounds.enter_context(patch.object(module, name, value))
        self._soak = Soak(manager_of, self.each)
        self._new = QueueManager(session, str(new), actor="gauge")
        open_queues(self._new)
        self._gauge = Gauge(self._soak.auditor, self._new, points.processes(self._java))

    def close(self) -> None:
        """End the work."""
        self._soak.close()
        self._new.close()
        self._bounds.close()

    def do(self) -> tuple[Point | None, Counter[str]]:
        """Do the next slice, and measure; not if an earlier process had done a part of it."""
        place, each = self._place, self.each
        began = time.monotonic()
        try:
            work = self._soak.work(place.parts)
        except AssertionError:
            place.leave()
            raise
        seconds = round(time.monotonic() - began, 1)
        place.parts += 1
        place.keep()
        commits = place.parts * each.commits
        if work.counts["messages"] < each.commits * each.messages:
            return None, work.counts
        send, receive = points.of_times(work.sends), points.of_times(work.receives)
        ratios = None if place.parts % MEASURED_EVERY else self._gauge.ratio()
        point = Point(
            place.store, self._process, place.parts - 1, commits, commits * each.messages, seconds,
            send_ms=send[0], send_ms_high=send[1],
            receive_ms=receive[0], receive_ms_high=receive[1],
            **points.of_processes(self._java), **points.of_folder(place.root / "journal"),
            **points.of_ratios(ratios),
        )  # fmt: skip
        return point, work.counts


def run(session: Session, _: int) -> tuple[int, Counter[str]]:
    """Do the next slice of the store that is kept."""
    driver: Driver = session.kept.pop("soak", None) or Driver(session.spark, FOLDER)
    try:
        point, counts = driver.do()
    except BaseException:
        driver.close()
        raise
    session.kept["soak"] = driver
    if point is not None:
        points.add(point, results.FOLDER)
    return driver.each.commits, +counts
