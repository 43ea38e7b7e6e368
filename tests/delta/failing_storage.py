"""A driver process on a disk one of whose calls fails: what it was told, and what is so.

It reads cells from its standard input, one JSON object per line: which operation, and which call of
which kind fails, before it has done anything or after it has done everything. It answers each by a
line. Its Java has another file system for local files (``java/WatchedFileSystem.java``).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.delta.storage_calls import CLASS, CONTEXT_CLASS
from tests.faults.audit import check
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core.receipt import Status
from txnqueue.errors import TransactionUnknown
from txnqueue.platform.local_spark import local_spark

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("create", "rename", "list", "open")
LEASE_SECONDS = 1.0


@dataclass(frozen=True)
class Cell:
    """Which call fails in which operation."""

    operation: str
    kind: str
    nth: int
    after: bool


@dataclass(frozen=True)
class Found:
    """What came of a cell.

    Attributes:
        hit: The path of the call that failed; None: there were not so many calls.
        told: What the client was told: ok, failed or unknown.
        error: The class of the error.
        committed: Whether the journal says that its transaction is committed.
        problem: What is wrong with that; empty: nothing.
    """

    hit: str | None
    told: str
    error: str
    committed: bool
    problem: str = ""


class Process:
    """The driver process, seen from the tests."""

    def __init__(self, folder: Path, classes: Path) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.delta.failing_storage", str(folder), str(classes)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"),
            text=True,
        )

    def run(self, cell: Cell) -> Found:
        """Run one cell."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asdict(cell)), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                return Found(**json.loads(line))
        raise AssertionError(f"the process has ended at {cell}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class Worker:
    """Runs cells on one store, one after the other."""

    def __init__(self, spark: Any, root: str) -> None:
        """Create the queues."""
        self._spark, self._root = spark, root
        self._disk = getattr(spark._jvm, CLASS)
        self._numbers = itertools.count()
        self._expected: list[int] = []
        self._other = QueueManager(spark, root, actor="other")
        for name in ("in", "out"):
            self._other.create_queue(
                name, "n long", dead_letter=False, lease_seconds=LEASE_SECONDS, deliveries_max=1_000
            )
        for operation in OPERATIONS:  # what is done once in a process is done
            self.run(Cell(operation, "nothing", 1, after=False))

    def run(self, cell: Cell) -> Found:
        """Run one cell, and find out whether all is as it was told."""
        number = next(self._numbers)
        key = f"T{number}"
        takes = cell.operation.startswith("receive")
        if takes:
            self._other.queue("in").send([{"n": number}])
        manager = QueueManager(self._spark, self._root, actor="A", consumer=f"c{number}")
        manager.list_queues()
        self._disk.spoil(cell.kind, cell.nth, cell.after)
        told, error = self._told(lambda: OPERATIONS[cell.operation](manager, key, number))
        hit = self._disk.spoiled()
        self._disk.spoil(None, 0, False)
        status = self._other.outcome(key).status
        committed = status is Status.COMMITTED
        problem = self._problem(number, told, committed=committed, takes=takes)
        return Found(hit, told, error, committed, problem)

    def _told(self, act: Callable[[], None]) -> tuple[str, str]:
        try:
            act()
        except TransactionUnknown as error:
            return "unknown", type(error).__name__
        except Exception as error:
            return "failed", type(error).__name__
        return "ok", ""

    def _problem(self, number: int, told: str, *, committed: bool, takes: bool) -> str:
        if told == "ok" and not committed:
            return "it was told ok, and is not committed"
        if told == "failed" and committed:
            return "it was told of a failure, and is committed"
        try:
            if takes and not committed:
                self._take("in", number)
            if committed:
                self._take("out", number)
            for name in ("in", "out"):
                left = self._other.queue(name)
                assert not left.depth() and not left.in_flight(), f"{name} has something left"
            check(client_of(self._other).store.journal.read_all().entries)
        except AssertionError as error:
            return str(error)
        return ""

    def _take(self, name: str, number: int) -> None:
        """Take the one message that must be there, once its holder's lease is over."""
        batch = self._other.queue(name).receive(10, wait_seconds=30)
        found = [message["n"] for message in batch.messages()]
        assert found == [number], f"{name} has {found}, not {number}"
        batch.accept()


def _send(manager: QueueManager, key: str, number: int) -> None:
    with manager.transaction(key) as tx:
        tx.queue("out").send([{"n": number}])


def _send_frame(manager: QueueManager, key: str, number: int) -> None:
    frame = client_of(manager).store.spark.range(number, number + 1).withColumnRenamed("id", "n")
    with manager.transaction(key) as tx:
        tx.queue("out").send(frame)


def _pass_on(manager: QueueManager, key: str, number: int) -> None:
    with manager.transaction(key) as tx:
        batch = tx.queue("in").receive(10)
        assert [message["n"] for message in batch.messages()] == [number]
        tx.queue("out").send([{"n": number}])


OPERATIONS: dict[str, Callable[[QueueManager, str, int], None]] = {
    "send": _send,
    "send a frame": _send_frame,
    "receive, send and commit": _pass_on,
}


def main(folder: str, classes: str) -> None:
    """Answer each line."""
    spark = local_spark(
        "failing storage",
        memory="1g",
        settings={
            "spark.driver.extraClassPath": classes,
            "spark.hadoop.fs.file.impl": CLASS,
            "spark.hadoop.fs.AbstractFileSystem.file.impl": CONTEXT_CLASS,
        },
        short_lived=True,
    )
    worker = Worker(spark, f"{folder}/store")
    for line in sys.stdin:
        found = worker.run(Cell(**json.loads(line)))
        print(json.dumps(asdict(found)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
