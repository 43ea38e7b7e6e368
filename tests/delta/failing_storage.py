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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.delta.storage_calls import CLASS, CONTEXT_CLASS
from tests.faults import failures
from tests.faults.audit import check
from tests.faults.pasts import everything
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core.receipt import Status
from txnqueue.errors import TransactionUnknown
from txnqueue.platform.local_spark import local_spark

ROOT = Path(__file__).resolve().parents[2]
WRITES = ("create", "rename")
KINDS = (*WRITES, "list", "open")
QUEUE: Any = {"dead_letter": False, "lease_seconds": 1.0, "deliveries_max": 1_000}


@dataclass(frozen=True)
class Cell:
    """Which call fails in which operation.

    Attributes:
        operation: The operation.
        kind: The kind of call.
        nth: Which of them.
        after: Whether it does all that it should before it fails.
        verified: Whether the whole store is verified afterwards, with all cells since the last
            time, if the operation is one that could damage what it is not about. What is gone
            stays gone, so that not every cell needs it.
    """

    operation: str
    kind: str
    nth: int
    after: bool
    verified: bool = True

    @property
    def writes(self) -> bool:
        """Whether the call changes something."""
        return self.kind in WRITES


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
    """The driver process, seen from the tests.

    Attributes:
        cells: How many it has run.
    """

    def __init__(self, folder: Path, classes: Path) -> None:
        """Start it."""
        self.cells = 0
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
        self.cells += 1
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
        """Create the queues and the table."""
        self._spark, self._table = spark, f"{root}-table"
        self._disk = getattr(spark._jvm, CLASS)
        self._numbers = itertools.count()
        self._other = QueueManager(spark, root, actor="other")
        for name in ("in", "out"):
            self._other.create_queue(name, "n long", **QUEUE)
        spark.sql(f"CREATE TABLE delta.`{self._table}` (n LONG) USING delta").collect()
        for operation in OPERATIONS:  # what is done once in a process is done
            self.run(Cell(operation, "nothing", 1, after=False))

    def run(self, cell: Cell) -> Found:
        """Run one cell, and find out whether all is as it was told."""
        number, operation = next(self._numbers), OPERATIONS[cell.operation]
        task = Task(f"T{number}", number, self._table)
        if operation.waits:
            self._other.queue("in").send([{"n": number}])
        manager = QueueManager(self._spark, self._other.root, actor="A", consumer=f"c{number}")
        manager.list_queues()
        self._disk.spoil(cell.kind, cell.nth, cell.after)
        told, error = self._told(lambda: operation.act(manager, task))
        hit = self._disk.spoiled()
        self._disk.spoil(None, 0, False)
        committed = self._other.outcome(task.key).status is Status.COMMITTED
        problem = failures.unfit(error) or self._problem(operation, task, told, committed)
        if operation.everywhere and cell.verified:
            problem = problem or self._found_by_verify()
        return Found(hit, told, type(error).__name__ if error else "", committed, problem)

    def _told(self, act: Callable[[], None]) -> tuple[str, Exception | None]:
        try:
            act()
        except TransactionUnknown as error:
            return "unknown", error
        except Exception as error:  # which ones may come, is judged
            return "failed", error
        return "ok", None

    def _problem(self, operation: Operation, task: Task, told: str, committed: bool) -> str:
        if operation.decides and told == "ok" and not committed:
            return "it was told ok, and is not committed"
        if operation.decides and told == "failed" and committed:
            return "it was told of a failure, and is committed"
        try:
            operation.check(self._other, task, told, committed)
            self._check_nothing_is_left()
        except AssertionError as error:
            return str(error)
        return ""

    def _found_by_verify(self) -> str:
        proof = self._other.history.verify()
        return "" if proof.ok else str(proof)

    def _check_nothing_is_left(self) -> None:
        for name in ("in", "out"):
            left = self._other.queue(name)
            assert not left.depth() and not left.in_flight(), f"{name} has something left"
        check(everything(client_of(self._other).store))


@dataclass(frozen=True)
class Task:
    """What an operation is about: its transaction, its number, and the table that it may change."""

    key: str
    number: int
    table: str
    batches: list[int] = field(default_factory=list)
    """How many messages each batch had of whose commit a drain was told."""


@dataclass(frozen=True)
class Operation:
    """What is done on the disk that fails, and what is looked at afterwards.

    Attributes:
        act: Does it.
        check: Compares what there is with what was told and decided, and takes the messages.
        waits: Whether a message waits for it.
        decides: Whether it commits a transaction of the task's key.
        everywhere: Whether it works on all that the store has.
    """

    act: Callable[[QueueManager, Task], None]
    check: Callable[[QueueManager, Task, str, bool], None]
    waits: bool = False
    decides: bool = True
    everywhere: bool = False


def _send(manager: QueueManager, task: Task) -> None:
    with manager.transaction(task.key) as tx:
        tx.queue("out").send([{"n": task.number}])


def _send_frame(manager: QueueManager, task: Task) -> None:
    frame = client_of(manager).store.spark.range(task.number, task.number + 1)
    with manager.transaction(task.key) as tx:
        tx.queue("out").send(frame.withColumnRenamed("id", "n"))


def _pass_on(manager: QueueManager, task: Task) -> None:
    with manager.transaction(task.key) as tx:
        batch = tx.queue("in").receive(10)
        assert [message["n"] for message in batch.messages()] == [task.number]
        tx.queue("out").send([{"n": task.number}])


def _change(manager: QueueManager, task: Task) -> None:
    with manager.transaction(task.key) as tx:
        tx.table(task.table).append([{"n": task.number}])


def _drain(manager: QueueManager, task: Task) -> None:
    def pass_on(batch: Any, tx: Any) -> None:
        tx.queue("out").send(batch.df.select("n"))

    manager.queue("in").drain(pass_on, on_batch=task.batches.append)


def _accept(manager: QueueManager, task: Task) -> None:
    manager.queue("in").receive(10).accept()


def _create(manager: QueueManager, task: Task) -> None:
    manager.create_queue(f"new{task.number}", "n long", **QUEUE)


def _maintain(manager: QueueManager, task: Task) -> None:
    manager.maintain(transaction_seconds_max=0, payload_retention_days=0)


def _sent(other: QueueManager, task: Task, _told: str, committed: bool) -> None:
    if committed:
        _take(other, "out", task.number)


def _passed_on(other: QueueManager, task: Task, _told: str, committed: bool) -> None:
    _take(other, "out" if committed else "in", task.number)


def _changed(other: QueueManager, task: Task, _told: str, committed: bool) -> None:
    """The row is there once, as soon as somebody has recovered; or never."""
    other.recover()
    rows = client_of(other).store.spark.read.format("delta").load(task.table)
    found = rows.where(f"n = {task.number}").count()
    assert found == int(committed), f"the table has the row {found} times"


def _drained(other: QueueManager, task: Task, told: str, _committed: bool) -> None:
    """The message is in one of both queues: in the second one if so it was told, and only then.

    A drain goes on after a commit, and may fail there: what it told of the batch counts.
    """
    waiting = other.queue("out").depth()
    assert waiting or (told != "ok" and not task.batches), "it was told ok, and nothing was sent"
    assert told != "failed" or task.batches or not waiting, "it was told of a failure, and has sent"
    _take(other, "out" if waiting else "in", task.number)


def _accepted(other: QueueManager, task: Task, told: str, _committed: bool) -> None:
    """It is gone, or comes back after its lease: it is gone if so it was told, and only then."""
    left = other.queue("in").depth() + other.queue("in").in_flight()
    assert not left or told != "ok", "it was told ok, and the message is still there"
    assert left or told != "failed", "it was told of a failure, and the message is gone"
    if left:
        _take(other, "in", task.number)


def _created(other: QueueManager, task: Task, told: str, _committed: bool) -> None:
    """Whoever creates it again has it; it is there already if so it was told, and only then."""
    name = f"new{task.number}"
    known = name in other.list_queues()
    assert known or told != "ok", "it was told ok, and there is no such queue"
    assert not known or told != "failed", "it was told of a failure, and there is such a queue"
    other.create_queue(name, "n long", exist_ok=True, **QUEUE).send([{"n": task.number}])
    _take(other, name, task.number)
    other.drop_queue(name)


def _maintained(other: QueueManager, task: Task, _told: str, _committed: bool) -> None:
    """What waits is not gone."""
    _take(other, "in", task.number)


def _take(other: QueueManager, name: str, number: int) -> None:
    """Take the one message that must be there, once its holder's lease is over."""
    batch = other.queue(name).receive(10, wait_seconds=30)
    found = [message["n"] for message in batch.messages()]
    assert found == [number], f"{name} has {found}, not {number}"
    batch.accept()


OPERATIONS: dict[str, Operation] = {
    "send": Operation(_send, _sent),
    "send a frame": Operation(_send_frame, _sent),
    "receive, send and commit": Operation(_pass_on, _passed_on, waits=True),
    "change a table": Operation(_change, _changed),
    "drain and send": Operation(_drain, _drained, waits=True, decides=False),
    "accept a batch": Operation(_accept, _accepted, waits=True, decides=False),
    "create a new queue": Operation(_create, _created, decides=False),
    "maintain": Operation(_maintain, _maintained, waits=True, decides=False, everywhere=True),
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
